//! A tensor as a picture: rows of pixels from values of any strides. Knows no formats and no colorimetry.

use super::InputLayout;
use super::color::{Columns, Conversion, Pixel, PixelRows, to_gray};
use crate::frame::Size;
use crate::tensor::{Bytes, ElementType, Error, ErrorKind, Result, Tensor};

/// A read lease on the values of one picture.
pub(super) struct Values {
    bytes: Bytes,
    size: Size,
    is_u8: bool,
    /// Where red, green and blue lie in a pixel; all the same for gray.
    channel_offset_bytes: [usize; 3],
    line_stride_bytes: usize,
    column_stride_bytes: usize,
}

impl Values {
    /// # Errors
    /// [`ErrorKind::Shape`] or [`ErrorKind::ElementType`] if it is no picture; [`ErrorKind::Busy`] while somebody writes to it.
    pub(super) fn lease(picture: &Tensor, axes: InputLayout) -> Result<Self> {
        let bytes = picture.bytes()?;
        let layout = *bytes.layout();
        let is_u8 = match layout.element() {
            ElementType::U8 => true,
            ElementType::F32 => false,
            other => return Err(Error::new(ErrorKind::ElementType, format!("picture in a tensor: expected u8 or f32, got {other}"))),
        };
        let (expected, channel, line, column) = match axes {
            InputLayout::Nchw => ("[1, C, H, W]", 1, 2, 3),
            InputLayout::Nhwc => ("[1, H, W, C]", 3, 1, 2),
        };
        let shape = layout.shape();
        let is_picture = shape.len() == 4 && shape[0] == 1 && (1..=4).contains(&shape[channel]);
        let size = if is_picture { u32::try_from(shape[column]).ok().zip(u32::try_from(shape[line]).ok()) } else { None };
        let Some((width @ 1.., height @ 1..)) = size else {
            let message = format!("picture in a tensor: expected {expected} with 1 to 4 channels and at least one pixel, got {shape}");
            return Err(Error::new(ErrorKind::Shape, message));
        };
        let strides = layout.stride_bytes();
        let is_colored = shape[channel] >= 3;
        let channel_offset_bytes = [0, 1, 2].map(|color| if is_colored { color * strides[channel] } else { 0 });
        let (line_stride_bytes, column_stride_bytes) = (strides[line], strides[column]);
        Ok(Self { bytes, size: Size::new(width, height), is_u8, channel_offset_bytes, line_stride_bytes, column_stride_bytes })
    }

    fn pixel(&self, y: usize, x: usize) -> Pixel {
        let begin = y * self.line_stride_bytes + x * self.column_stride_bytes;
        let extent = self.bytes.extent();
        let [r, g, b] = self.channel_offset_bytes.map(|offset| {
            let at = &extent[begin + offset..];
            if self.is_u8 { f32::from(at[0]) } else { f32::from_ne_bytes([at[0], at[1], at[2], at[3]]) }
        });
        [r, g, b, 0.0]
    }
}

impl PixelRows for Values {
    fn size(&self) -> Size {
        self.size
    }

    fn convert_row(&self, y: usize, columns: Columns<'_>, conversion: Conversion, pixels: &mut [Pixel]) {
        match columns {
            Columns::From(first) => pixels.iter_mut().enumerate().for_each(|(idx, pixel)| *pixel = self.pixel(y, first + idx)),
            Columns::Listed(listed) => pixels.iter_mut().zip(listed).for_each(|(pixel, &x)| *pixel = self.pixel(y, x as usize)),
        }
        if conversion.gray && self.channel_offset_bytes[1] != 0 {
            to_gray(pixels, conversion.round);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, PixelFormat, PixelRect};
    use crate::tensor::BytesMut;
    use crate::vision::{ChannelOrder, Preprocess, Resize, Scratch};

    fn filled(shape: [usize; 4], fill: impl FnOnce(&mut BytesMut, &mut Scratch)) -> Vec<f32> {
        let input = Tensor::new(ElementType::F32, shape).unwrap();
        fill(&mut input.bytes_mut().unwrap(), &mut Scratch::default());
        input.view::<f32>().unwrap().to_vec()
    }

    /// A window of a picture in a tensor is filled as the same region of a frame over the same bytes.
    #[test]
    fn a_window_of_a_tensor_is_filled_like_a_region_of_a_frame() {
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

    #[test]
    fn what_is_no_picture_is_refused() {
        for (element, shape) in [
            (ElementType::I32, &[1, 3, 2, 2][..]),
            (ElementType::U8, &[3, 2, 2]),
            (ElementType::F32, &[2, 3, 2, 2]),
            (ElementType::F32, &[1, 5, 2, 2]),
            (ElementType::U8, &[1, 3, 0, 2]),
        ] {
            assert!(Values::lease(&Tensor::new(element, shape).unwrap(), InputLayout::Nchw).is_err(), "{element} {shape:?}");
        }
    }
}
