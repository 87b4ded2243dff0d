//! Fills a model's input with a picture: crop, color conversion, resize, normalization, layout and element type in one pass
//! over the pixels. Owns the definition of that pass; `letterbox`, `color`, `resize` and `store` are its steps.
//! Makes no copy of the picture or of the crop, allocates nothing once its scratch has grown, knows no models.

use super::color::{Columns, Conversion, Pixel, PixelRows, Planes};
use super::letterbox::Placement;
use super::resize::{self, ColumnPlan, Tap};
use super::store::{InputElement, store_row};
use super::values::Values;
use crate::frame::{Frame, Size, Transform};
use crate::tensor::{BytesMut, ElementType, Error, ErrorKind, Layout, Result, Tensor};

/// How pictures become the input of a model.
///
/// The pass is defined exactly. Each source pixel becomes red, green and blue in 0..=255: a subsampled format takes the chroma
/// sample that the pixel shares, matrix and range are the frame's, the result is clamped and not rounded; a gray picture has
/// three equal colors. An input pixel is the bilinear mix at `(x + 0.5) * s - 0.5`, where `s` is the picture's extent over its
/// scaled extent; beyond the edges of the picture (of the region, if it is one) its edge is replicated. The value written is
/// `(pixel - mean) / scale`.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocess {
    /// Which color each channel of the input is. Default: [`ChannelOrder::Rgb`].
    pub color: ChannelOrder,
    /// Where the channel axis of the input is. Default: [`InputLayout::Nchw`].
    pub layout: InputLayout,
    /// How a picture of another shape fits. Default: [`Resize::Stretch`].
    pub resize: Resize,
    /// The pixel value of letterbox borders, 0..=255, before normalization. Default: 114.
    pub pad: f32,
    /// Subtracted from the pixel values (0..=255), per channel of the input in its order; gray takes the first. Default: 0.
    pub mean: [f32; 3],
    /// Divides what is left, likewise. Default: 1.
    pub scale: [f32; 3],
    /// Whether values in between are rounded. Default: [`Rounding::Exact`].
    pub rounding: Rounding,
}

/// The colors of an input's channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChannelOrder {
    #[default]
    Rgb,
    Bgr,
    /// One channel: `0.299 R + 0.587 G + 0.114 B`.
    Gray,
}

impl ChannelOrder {
    /// Number of channels.
    pub const fn n_channels(self) -> usize {
        match self {
            Self::Rgb | Self::Bgr => 3,
            Self::Gray => 1,
        }
    }
}

/// The order of an input's axes: batch, channels, height, width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InputLayout {
    #[default]
    Nchw,
    Nhwc,
}

/// How a picture fits into an input of another shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resize {
    /// Both axes scaled on their own.
    #[default]
    Stretch,
    /// Scaled by `r = min(W / w, H / h)`, the rest filled with [`Preprocess::pad`].
    Letterbox { anchor: Anchor },
    /// Scaled by `r = max(W / w, H / h)`, what stands out cut off equally on both sides.
    Crop,
}

/// Where a letterboxed picture lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Anchor {
    /// At the top-left corner; its size is truncated to whole pixels (as YOLOX does).
    TopLeft,
    /// In the center, rather left and up; its size is rounded, ties to even (as Ultralytics models do).
    #[default]
    Center,
}

/// Rounding between the steps of the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// None.
    #[default]
    Exact,
    /// What a chain of 8-bit pictures gives: whole numbers, half up, after the conversion to red, green and blue and after that
    /// to gray; and a resize in whole numbers, bit for bit that of OpenCV's `INTER_LINEAR`. For models whose answers are
    /// compared with a program that prepares pictures so; it is a little darker than the exact mix.
    U8,
}

impl Default for Preprocess {
    fn default() -> Self {
        Self {
            color: ChannelOrder::default(),
            layout: InputLayout::default(),
            resize: Resize::default(),
            pad: 114.0,
            mean: [0.0; 3],
            scale: [1.0; 3],
            rounding: Rounding::default(),
        }
    }
}

impl Preprocess {
    /// The size in pixels of an input of this shape, `[N, C, H, W]` or `[N, H, W, C]`.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] unless there are four axes, the channels of [`Preprocess::color`], and at least one pixel;
    /// [`ErrorKind::Unsupported`] if `mean`, `scale` or `pad` cannot be computed with.
    pub fn input_size(&self, shape: &[usize]) -> Result<Size> {
        let n_channels = self.color.n_channels();
        let (axes, found) = match (self.layout, shape) {
            (InputLayout::Nchw, &[_, channels, height, width]) => ("[N, C, H, W]", Some((channels, height, width))),
            (InputLayout::Nhwc, &[_, height, width, channels]) => ("[N, H, W, C]", Some((channels, height, width))),
            (InputLayout::Nchw, _) => ("[N, C, H, W]", None),
            (InputLayout::Nhwc, _) => ("[N, H, W, C]", None),
        };
        let extent = |extent: usize| u32::try_from(extent).ok().filter(|&extent| extent > 0);
        let size = match found {
            Some((channels, height, width)) if channels == n_channels => extent(width).zip(extent(height)),
            _ => None,
        };
        let Some((width, height)) = size else {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("image input: expected {axes} with C = {n_channels} for {:?} and at least one pixel, got {shape:?}", self.color),
            ));
        };
        let computable = self.pad.is_finite()
            && self.mean.iter().all(|mean| mean.is_finite())
            && self.scale.iter().all(|scale| scale.is_finite() && *scale != 0.0);
        if !computable {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "image input: expected finite pad and mean, and a finite scale that is not 0, got pad {}, mean {:?}, scale {:?}",
                    self.pad, self.mean, self.scale
                ),
            ));
        }
        Ok(Size::new(width, height))
    }

    /// Whether pictures can be filled into an input of this element type: f32, f16, bf16, u8 or i8.
    ///
    /// # Errors
    /// [`ErrorKind::ElementType`] if not.
    pub fn check_element(&self, element: ElementType) -> Result<()> {
        InputElement::new(element).map(drop)
    }

    /// Fills row `row` of `input` with `frame` and returns `frame_from_input`: input pixels to pixels of the frame (or
    /// region) given, both measured from the top-left corner.
    ///
    /// `input` has the shape that [`Preprocess::input_size`] describes, any batch size and any strides. Floating-point types
    /// take the values as they are; `u8` and `i8` round half up and saturate. Other rows are not touched.
    ///
    /// # Errors
    /// As [`Preprocess::input_size`] and [`Preprocess::check_element`]; [`ErrorKind::Shape`] if there is no such row;
    /// [`ErrorKind::Busy`] while somebody writes to the frame.
    pub fn fill(&self, frame: &Frame, input: &mut BytesMut, row: usize, scratch: &mut Scratch) -> Result<Transform> {
        self.fill_from(&Planes::lease(frame)?, input, row, scratch)
    }

    /// As [`Preprocess::fill`], from a tensor that holds one picture, such as a window of another model's input.
    ///
    /// `picture` has the shape `[1, C, H, W]` or `[1, H, W, C]`, as `layout` says, one to four channels, any strides, and
    /// elements of type `f32` or `u8`. Its values stand for pixels in the order red, green, blue as they are, in whatever
    /// range: `mean` and `scale` apply to them. One or two channels are gray (the first); a fourth is ignored.
    ///
    /// # Errors
    /// As [`Preprocess::fill`]; [`ErrorKind::Shape`] or [`ErrorKind::ElementType`] if `picture` is not like that;
    /// [`ErrorKind::Unsupported`] with [`Rounding::U8`] unless its elements are `u8`.
    pub fn fill_values(
        &self,
        picture: &Tensor,
        layout: InputLayout,
        input: &mut BytesMut,
        row: usize,
        scratch: &mut Scratch,
    ) -> Result<Transform> {
        if self.rounding == Rounding::U8 && picture.element() != ElementType::U8 {
            let message = format!("rounding to 8 bits: expected a u8 picture, got {}; use exact rounding", picture.element());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        self.fill_from(&Values::lease(picture, layout)?, input, row, scratch)
    }

    fn fill_from(&self, picture: &impl PixelRows, input: &mut BytesMut, row: usize, scratch: &mut Scratch) -> Result<Transform> {
        let layout = *input.layout();
        let element = InputElement::new(layout.element())?;
        let input_size = self.input_size(layout.shape())?;
        if row >= layout.shape()[0] {
            return Err(Error::new(ErrorKind::Shape, format!("image input of shape {}: there is no row {row}", layout.shape())));
        }
        let size = picture.size();
        let placement = Placement::new(self.resize, size, input_size);
        let (columns, rows) = placement.visible(input_size);
        scratch.begin(self, size, &placement, columns.clone());

        let cells = Cells::new(&layout, self.layout, row);
        let n_left = columns.start;
        let n_right = input_size.width as usize - columns.end;
        let normalizers = self.normalizers();
        let bytes = input.extent_mut();
        for y in 0..input_size.height as usize {
            if !rows.contains(&y) {
                for (channel, normalizer) in normalizers.clone().enumerate() {
                    let border = std::iter::repeat_n(normalizer.value(self.pad), input_size.width as usize);
                    store_row(cells.from(bytes, channel, y, 0), cells.stride_bytes, element, border);
                }
                continue;
            }
            let scaled_row = (y as i64 - placement.offset.1) as u64;
            let tap = self.tap()(scaled_row, size.height, placement.scaled.height);
            let (first, second) = scratch.rows(tap, picture);
            for (channel, normalizer) in normalizers.clone().enumerate() {
                let border = normalizer.value(self.pad);
                if n_left > 0 {
                    store_row(cells.from(bytes, channel, y, 0), cells.stride_bytes, element, std::iter::repeat_n(border, n_left));
                }
                if n_right > 0 {
                    let target = cells.from(bytes, channel, y, columns.end);
                    store_row(target, cells.stride_bytes, element, std::iter::repeat_n(border, n_right));
                }
                let target = cells.from(bytes, channel, y, columns.start);
                let range = self.color_idx(channel) * columns.len()..(self.color_idx(channel) + 1) * columns.len();
                let pairs = first[range.clone()].iter().zip(&second[range]);
                match self.rounding {
                    Rounding::Exact => {
                        let mixed = pairs.map(|(first, second)| first + (second - first) * tap.weight);
                        store_row(target, cells.stride_bytes, element, mixed.map(|pixel| normalizer.value(pixel)));
                    }
                    Rounding::U8 => {
                        let mixed = pairs.map(|(first, second)| normalizer.value(resize::mix_whole(*first, *second, tap.weight)));
                        store_row(target, cells.stride_bytes, element, mixed);
                    }
                }
            }
        }
        Ok(placement.frame_from_input)
    }

    /// Where an input pixel is sampled.
    fn tap(&self) -> fn(u64, u32, u32) -> Tap {
        match self.rounding {
            Rounding::Exact => Tap::at,
            Rounding::U8 => Tap::whole_at,
        }
    }

    fn normalizers(&self) -> impl Iterator<Item = Normalizer> + Clone + use<> {
        let (mean, scale) = (self.mean, self.scale);
        (0..self.color.n_channels()).map(move |channel| Normalizer { mean: mean[channel], factor: 1.0 / scale[channel] })
    }

    /// Which of the converted colors a channel is.
    fn color_idx(&self, channel: usize) -> usize {
        match self.color {
            ChannelOrder::Rgb => channel,
            ChannelOrder::Bgr => 2 - channel,
            ChannelOrder::Gray => 0,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Normalizer {
    mean: f32,
    factor: f32,
}

impl Normalizer {
    #[inline(always)]
    fn value(self, pixel: f32) -> f32 {
        (pixel - self.mean) * self.factor
    }
}

/// Where the values of one row of the batch lie in its bytes.
struct Cells {
    row_offset_bytes: usize,
    channel_stride_bytes: usize,
    line_stride_bytes: usize,
    /// From one value of a channel to its right neighbor.
    stride_bytes: usize,
}

impl Cells {
    fn new(layout: &Layout, axes: InputLayout, row: usize) -> Self {
        let strides = layout.stride_bytes();
        let (channel, line, column) = match axes {
            InputLayout::Nchw => (1, 2, 3),
            InputLayout::Nhwc => (3, 1, 2),
        };
        Self {
            row_offset_bytes: row * strides[0],
            channel_stride_bytes: strides[channel],
            line_stride_bytes: strides[line],
            // An axis of one element may have any stride, 0 included.
            stride_bytes: if layout.shape()[column] > 1 { strides[column] } else { layout.element().size() },
        }
    }

    fn from<'a>(&self, bytes: &'a mut [u8], channel: usize, y: usize, x: usize) -> &'a mut [u8] {
        let offset = self.row_offset_bytes + channel * self.channel_stride_bytes + y * self.line_stride_bytes + x * self.stride_bytes;
        &mut bytes[offset..]
    }
}

/// Buffers that [`Preprocess::fill`] reuses: the sampling positions, one converted source row, and the two most recent ones
/// scaled to the input's width. Grows to the largest need seen and stays; one per thread that fills.
#[derive(Debug, Default)]
pub struct Scratch {
    columns: ColumnPlan,
    pixels: Vec<Pixel>,
    /// Each one row per color, one after the other.
    scaled_rows: [Vec<f32>; 2],
    /// Which source row is in each.
    source_rows: [Option<u32>; 2],
    conversion: Option<Conversion>,
}

impl Scratch {
    fn begin(&mut self, preprocess: &Preprocess, picture: Size, placement: &Placement, columns: std::ops::Range<usize>) {
        self.columns.set(preprocess.tap(), columns, placement.offset.0, picture.width, placement.scaled.width);
        self.pixels.resize(self.columns.n_pixels, [0.0; 4]);
        for row in &mut self.scaled_rows {
            row.resize(self.columns.taps.len() * preprocess.color.n_channels(), 0.0);
        }
        self.source_rows = [None; 2];
        self.conversion = Some(Conversion { round: preprocess.rounding == Rounding::U8, gray: preprocess.color == ChannelOrder::Gray });
    }

    /// The two source rows of a tap, converted and scaled to the input's width.
    fn rows(&mut self, tap: Tap, picture: &impl PixelRows) -> (&[f32], &[f32]) {
        let first_slot = self.slot(tap.first, tap.second, picture);
        let second_slot = self.slot(tap.second, tap.first, picture);
        (&self.scaled_rows[first_slot], &self.scaled_rows[second_slot])
    }

    /// The slot that holds source row `wanted`; if it has to be made, it does not replace `kept`.
    fn slot(&mut self, wanted: u32, kept: u32, picture: &impl PixelRows) -> usize {
        if let Some(slot) = self.source_rows.iter().position(|&row| row == Some(wanted)) {
            return slot;
        }
        let slot = usize::from(self.source_rows[0] == Some(kept));
        let columns =
            if self.columns.listed.is_empty() { Columns::From(self.columns.first) } else { Columns::Listed(&self.columns.listed) };
        let conversion = self.conversion.expect("begin sets it");
        picture.convert_row(wanted as usize, columns, conversion, &mut self.pixels);
        let scaled = &mut self.scaled_rows[slot];
        if conversion.gray {
            resize::mix_gray(&self.pixels, &self.columns.taps, scaled);
        } else {
            resize::mix_colors(&self.pixels, &self.columns.taps, scaled);
        }
        self.source_rows[slot] = Some(wanted);
        slot
    }
}

#[cfg(test)]
mod tests;
