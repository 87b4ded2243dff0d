//! Source images of preprocessing. An image is a frame or a tensor, with a read lease on its bytes and the positions of its pixel
//! components. This module does not scale or convert colors.

use std::ops::RangeInclusive;

use super::InputLayout;
use super::color::ColorModel;
use super::simd::Simd;
use crate::frame::{Frame, MAX_PLANES, PixelFormat, Size};
use crate::tensor::{Bytes, ElementType, Error, ErrorKind, Result, Tensor};

/// A readable image of at least 1x1 pixels.
#[derive(Debug)]
pub(super) struct Image {
    planes: [Option<Bytes>; MAX_PLANES],
    size: Size,
    color_model: ColorModel,
    sample: SampleType,
    components: [Component; 3],
    /// Offset of the image's first pixel within the first chroma sample, in pixels per axis.
    phase: (usize, usize),
}

/// Storage type of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleType {
    U8,
    /// Little-endian.
    U16,
    F32,
}

impl SampleType {
    pub(super) const fn n_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Position of the samples of a component in its plane.
#[derive(Debug, Clone, Copy, Default)]
struct Component {
    plane_idx: usize,
    /// Offset of the first sample.
    offset_bytes: usize,
    row_stride_bytes: usize,
    spacing: Spacing,
    /// Whether two rows share a row of samples.
    shares_rows: bool,
}

/// Distance of adjacent samples in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Spacing {
    stride_bytes: usize,
    /// `Some` if two columns share a sample. The value, 0 or 1, is the offset of the first column in its sample.
    subsampled: Option<usize>,
}

impl Spacing {
    /// Returns the byte offset of the sample of a column, from the first sample of the row.
    pub(super) fn position(self, column: u32) -> usize {
        let column = column as usize;
        self.subsampled.map_or(column, |phase| (column + phase) / 2) * self.stride_bytes
    }
}

/// A group of components whose samples are interleaved in memory. They are sampled together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Group {
    /// Index of the component that is first in memory.
    pub(super) first_component: usize,
    n_components: usize,
    offsets: [usize; 3],
}

impl Group {
    /// Returns the byte offsets of the components, relative to the component that is first in memory.
    pub(super) fn offsets(&self) -> &[usize] {
        &self.offsets[..self.n_components]
    }

    /// Returns the number of pieces in a block ([`super::sample::Grid`]): two per component, rounded up to a power of two, so
    /// that blocks end at register boundaries.
    pub(super) fn n_pieces(&self) -> usize {
        (2 * self.n_components).next_power_of_two()
    }
}

impl Image {
    /// Leases the planes of a frame for reading.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Busy`] while the frame is leased for writing.
    pub(super) fn of_frame(frame: &Frame) -> Result<Self> {
        let mut planes = [const { None }; MAX_PLANES];
        for (slot, plane) in planes.iter_mut().zip(frame.planes()) {
            *slot = Some(plane.bytes()?);
        }
        let format = frame.format();
        let row_stride_bytes = |plane_idx: usize| {
            let plane = planes[plane_idx].as_ref().expect("a frame has the planes of its format");
            plane.layout().stride_bytes()[0]
        };
        let phase = (frame.chroma_phase().0 as usize, frame.chroma_phase().1 as usize);
        let components = format.components().map(|place| {
            let (of_width, of_height) = place.n_pixels;
            // In a plane with pixel pairs, luma may begin with the second pixel of a pair.
            let skipped_bytes = if format.has_pixel_pairs() && of_width == 1 { phase.0 * place.stride_bytes } else { 0 };
            Component {
                plane_idx: place.plane_idx,
                offset_bytes: place.offset_bytes + skipped_bytes,
                row_stride_bytes: row_stride_bytes(place.plane_idx),
                spacing: Spacing { stride_bytes: place.stride_bytes, subsampled: (of_width == 2).then_some(phase.0) },
                shares_rows: of_height == 2,
            }
        });
        let coefficients = frame.colorimetry().yuv_coefficients(format);
        let sample = if format.depth() == 8 { SampleType::U8 } else { SampleType::U16 };
        let color_model = match format {
            _ if format.is_rgb() => ColorModel::Rgb,
            PixelFormat::Gray8 => ColorModel::luma(coefficients),
            _ => ColorModel::yuv(coefficients),
        };
        Ok(Self { planes, size: frame.size(), color_model, sample, components, phase })
    }

    /// Leases a tensor that contains one image, of shape `[1, C, H, W]` or `[1, H, W, C]`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] or [`ErrorKind::ElementType`] if the tensor is not an image. Returns [`ErrorKind::Busy`] while it is
    /// leased for writing.
    pub(super) fn of_tensor(image: &Tensor, axes: InputLayout) -> Result<Self> {
        let bytes = image.bytes()?;
        let layout = *bytes.layout();
        let sample = match layout.element() {
            ElementType::U8 => SampleType::U8,
            ElementType::F32 => SampleType::F32,
            other => return Err(Error::new(ErrorKind::ElementType, format!("image tensor: expected element type u8 or f32, got {other}"))),
        };
        let (expected, channel, line, column) = match axes {
            InputLayout::Nchw => ("[1, C, H, W]", 1, 2, 3),
            InputLayout::Nhwc => ("[1, H, W, C]", 3, 1, 2),
        };
        let shape = layout.shape();
        let is_image = shape.len() == 4 && shape[0] == 1 && (1..=4).contains(&shape[channel]);
        let size = if is_image { u32::try_from(shape[column]).ok().zip(u32::try_from(shape[line]).ok()) } else { None };
        let Some((width @ 1.., height @ 1..)) = size else {
            let message = format!("image tensor: expected {expected} with 1 to 4 channels and at least one pixel, got {shape}");
            return Err(Error::new(ErrorKind::Shape, message));
        };
        let strides = layout.stride_bytes();
        let is_colored = shape[channel] >= 3;
        let components = [0, 1, 2].map(|color| Component {
            plane_idx: 0,
            offset_bytes: if is_colored { color * strides[channel] } else { 0 },
            row_stride_bytes: strides[line],
            spacing: Spacing { stride_bytes: strides[column], subsampled: None },
            shares_rows: false,
        });
        Ok(Self {
            planes: [Some(bytes), None, None],
            size: Size::new(width, height),
            color_model: if is_colored { ColorModel::Rgb } else { ColorModel::Gray },
            sample,
            components,
            phase: (0, 0),
        })
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    pub(super) fn color_model(&self) -> ColorModel {
        self.color_model
    }

    pub(super) fn sample(&self) -> SampleType {
        self.sample
    }

    /// Returns the number of distinct components.
    pub(super) fn n_components(&self) -> usize {
        match self.color_model {
            ColorModel::Yuv(_) | ColorModel::Rgb => 3,
            ColorModel::Luma(_) | ColorModel::Gray => 1,
        }
    }

    /// Returns the components in groups of one, two or three. The components of a group are interleaved in memory.
    pub(super) fn groups(&self) -> impl Iterator<Item = Group> {
        let mut begin = 0;
        std::iter::from_fn(move || {
            let components = &self.components[..self.n_components()];
            let [first, ..] = components.get(begin..)? else { return None };
            let lies_beside = |other: &Component| {
                let is_near = other.offset_bytes.abs_diff(first.offset_bytes) < first.spacing.stride_bytes;
                other.plane_idx == first.plane_idx && other.spacing == first.spacing && is_near
            };
            let n_components = components[begin..].iter().take_while(|component| lies_beside(component)).count();
            // The components of a group have the same distance between adjacent samples.
            let members = &components[begin..begin + n_components.max(1)];
            let (first_idx, lowest) = members.iter().enumerate().min_by_key(|(_, member)| member.offset_bytes)?;
            let mut offsets = [0; 3];
            offsets.iter_mut().zip(members).for_each(|(offset, member)| *offset = member.offset_bytes - lowest.offset_bytes);
            let group = Group { first_component: begin + first_idx, n_components: members.len(), offsets };
            begin += members.len();
            Some(group)
        })
    }

    pub(super) fn spacing(&self, component_idx: usize) -> Spacing {
        self.components[component_idx].spacing
    }

    /// Returns read access to the rows.
    pub(super) fn rows(&self) -> Rows<'_> {
        let planes = self.components.map(|component| {
            let plane = self.planes[component.plane_idx].as_ref().expect("an image has the planes of its components");
            &plane.extent()[component.offset_bytes..]
        });
        Rows { image: self, planes }
    }
}

/// Read access to the rows of an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) image: &'a Image,
    /// For each component, the bytes of its plane from the component's first sample on.
    planes: [&'a [u8]; 3],
}

impl<'a> Rows<'a> {
    /// Returns the bytes of a component from row `y` to the end of the plane.
    pub(super) fn row(&self, component_idx: usize, y: u32) -> &'a [u8] {
        let row_stride_bytes = self.image.components[component_idx].row_stride_bytes;
        &self.planes[component_idx][self.row_idx(component_idx, y) * row_stride_bytes..]
    }

    /// Returns the index of the plane row that contains the samples of a component for image row `y`.
    pub(super) fn row_idx(&self, component_idx: usize, y: u32) -> usize {
        let y = y as usize;
        if self.image.components[component_idx].shares_rows { (y + self.image.phase.1) / 2 } else { y }
    }

    /// Whether rows `y` and `y + 1` share the samples of all components except the first.
    pub(super) fn shares_with_next(&self, y: u32) -> bool {
        y + 1 < self.image.size().height && (1..3).all(|component| self.row_idx(component, y) == self.row_idx(component, y + 1))
    }

    /// Prefetches the samples of a component in these columns of row `y`.
    pub(super) fn prefetch(&self, component_idx: usize, y: u32, columns: RangeInclusive<u32>, simd: Simd) {
        let (row, spacing) = (self.row(component_idx, y), self.image.spacing(component_idx));
        let end = spacing.position(*columns.end()) + spacing.stride_bytes;
        simd.prefetch(&row[spacing.position(*columns.start())..end.min(row.len())]);
    }

    /// Returns the sample of a component at column `x` of row `y`.
    pub(super) fn sample<const N: usize>(&self, component_idx: usize, x: u32, y: u32) -> [u8; N] {
        let position = self.image.components[component_idx].spacing.position(x);
        *self.row(component_idx, y)[position..].first_chunk().expect("the row contains the sample")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Colorimetry, PixelRect};
    use crate::tensor::BytesMut;
    use crate::{ChannelOrder, Preprocess, Resize, Scratch};

    fn filled(shape: [usize; 4], fill: impl FnOnce(&mut BytesMut, &mut Scratch)) -> Vec<f32> {
        let input = Tensor::new(ElementType::F32, shape).unwrap();
        fill(&mut input.bytes_mut().unwrap(), &mut Scratch::default());
        input.view::<f32>().unwrap().to_vec()
    }

    /// A tensor region gives the same input as a frame region over the same bytes.
    #[test]
    fn tensor_region_is_preprocessed_like_a_frame_region() {
        let (width, height) = (23, 17);
        let bytes: Vec<u8> = (0..width * height * 3).map(|idx| (idx * 7919 % 251) as u8).collect();
        let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(width as u32, height as u32), &bytes).unwrap();
        let region = frame.region(PixelRect { x: 3, y: 2, width: 14, height: 11 }).unwrap();
        let nhwc = Tensor::from_slice([1, height, width, 3], &bytes).unwrap();
        let planar: Vec<f32> = (0..3).flat_map(|c| bytes.iter().skip(c).step_by(3).map(|&byte| f32::from(byte))).collect();
        let nchw = Tensor::from_slice([1, 3, height, width], &planar).unwrap();
        for (color, resize) in
            [(ChannelOrder::Rgb, Resize::Stretch), (ChannelOrder::Bgr, Resize::Crop), (ChannelOrder::Gray, Resize::Stretch)]
        {
            let preprocess = Preprocess { color, resize, mean: [10.0, 20.0, 30.0], scale: [2.0; 3], ..Preprocess::default() };
            let shape = [1, color.n_channels(), 5, 8];
            let expected = filled(shape, |input, scratch| {
                preprocess.fill(&region, input, 0, scratch).unwrap();
            });
            for (tensor, axes, begin, end) in
                [(&nhwc, InputLayout::Nhwc, [0, 2, 3, 0], [1, 13, 17, 3]), (&nchw, InputLayout::Nchw, [0, 0, 2, 3], [1, 3, 13, 17])]
            {
                let window = tensor.roi(&begin, &end).unwrap();
                let got = filled(shape, |input, scratch| {
                    preprocess.fill_values(&window, axes, input, 0, scratch).unwrap();
                });
                let worst = got.iter().zip(&expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-4, "{color:?} {axes:?}: {worst}");
            }
        }
    }

    /// Returns the red value of each pixel, rounded.
    fn reds(frame: &Frame) -> Vec<i32> {
        let Size { width, height } = frame.size();
        let values = filled([1, 3, height as usize, width as usize], |input, scratch| {
            Preprocess::default().fill(frame, input, 0, scratch).unwrap();
        });
        values[..values.len() / 3].iter().map(|red| red.round() as i32).collect()
    }

    #[test]
    fn interleaved_formats_have_correct_component_offsets() {
        for (format, bytes) in [
            (PixelFormat::Rgb, &[1, 2, 3, 4, 5, 6][..]),
            (PixelFormat::Bgr, &[3, 2, 1, 6, 5, 4]),
            (PixelFormat::Rgbx, &[1, 2, 3, 99, 4, 5, 6, 99]),
            (PixelFormat::Rgba, &[1, 2, 3, 99, 4, 5, 6, 99]),
            (PixelFormat::Bgrx, &[3, 2, 1, 99, 6, 5, 4, 99]),
            (PixelFormat::Bgra, &[3, 2, 1, 99, 6, 5, 4, 99]),
            (PixelFormat::Xrgb, &[99, 1, 2, 3, 99, 4, 5, 6]),
            (PixelFormat::Argb, &[99, 1, 2, 3, 99, 4, 5, 6]),
            (PixelFormat::Xbgr, &[99, 3, 2, 1, 99, 6, 5, 4]),
            (PixelFormat::Abgr, &[99, 3, 2, 1, 99, 6, 5, 4]),
        ] {
            let frame = Frame::from_packed(format, Size::new(2, 1), bytes).unwrap();
            let values = filled([1, 3, 1, 2], |input, scratch| {
                Preprocess::default().fill(&frame, input, 0, scratch).unwrap();
            });
            assert_eq!(values, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0], "{format}");
        }
    }

    #[test]
    fn regions_share_the_chroma_pairs_of_the_whole_frame() {
        let luma = Tensor::from_slice([2, 5], &[100_u8; 10]).unwrap();
        let u = Tensor::from_slice([1, 3], &[128_u8; 3]).unwrap();
        let v = Tensor::from_slice([1, 3], &[128_u8, 138, 148]).unwrap();
        let frame = Frame::from_planes(PixelFormat::I420, Size::new(5, 2), &[luma, u, v], Colorimetry::default()).unwrap();
        assert_eq!(reds(&frame), [98, 98, 114, 114, 130].repeat(2));
        let region = |x, width| frame.region(PixelRect { x, y: 1, width, height: 1 }).unwrap();
        assert_eq!(reds(&region(1, 4)), [98, 114, 114, 130]);
        assert_eq!(reds(&region(2, 2)), [114, 114]);
        assert_eq!(reds(&region(3, 2)), [114, 130]);
    }

    #[test]
    fn tensor_that_is_not_an_image_is_an_error() {
        for (element, shape) in [
            (ElementType::I32, &[1, 3, 2, 2][..]),
            (ElementType::U8, &[3, 2, 2]),
            (ElementType::F32, &[2, 3, 2, 2]),
            (ElementType::F32, &[1, 5, 2, 2]),
            (ElementType::U8, &[1, 3, 0, 2]),
        ] {
            assert!(Image::of_tensor(&Tensor::new(element, shape).unwrap(), InputLayout::Nchw).is_err(), "{element} {shape:?}");
        }
    }
}
