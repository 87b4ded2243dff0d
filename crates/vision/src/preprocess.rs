//! Fills a model's input with a picture: crop, color conversion, resize, normalization, layout and element type in one pass
//! over the pixels. Owns the definition of that pass; the other files are its steps, in the order that `mod.rs` names.
//! Makes no copy of the picture or of the crop, allocates nothing once its scratch has grown, knows no models.

use std::fmt;

use super::bands::{Band, Fill, Workspace};
use super::letterbox::Placement;
use super::picture::Picture;
use super::simd::{InstructionSet, Instructions};
use super::store::{InputElement, InputRow, Normalizer};
use super::warp::WarpedLine;
use crate::frame::{Frame, Similarity, Size, Transform};
use crate::tensor::{BytesMut, ElementType, Error, ErrorKind, Layout, Result, Tensor};

/// How pictures become the input of a model.
///
/// The pass is defined exactly. Each source pixel becomes red, green and blue in 0..=255: a subsampled format takes the chroma
/// sample that the pixel shares, matrix and range are the frame's, the result is clamped and not rounded; a gray picture has
/// three equal colors. An input pixel is the bilinear mix at `(x + 0.5) * s - 0.5`, where `s` is the picture's extent over its
/// scaled extent; beyond the edges of the picture (of the region, if it is one) its edge is replicated. The value
/// written is `(pixel - mean) / scale`.
///
/// Where a picture of red, green and blue in 8 bits fills an input of three channels, and nothing is rounded, the weights of its columns are
/// whole steps of 1/16384, which makes a difference of 1/128 of a pixel value at most. Where a picture of luma and color differences in 8 bits is
/// filled, and nothing is rounded, the factors of the conversion are such steps: a color is off by less than 0.01, where white is 255.
///
/// With [`Preprocess::antialias`] an input pixel is, along each axis, the mean of the source pixels around its center
/// `c = (x + 0.5) * s`, the pixel `i` weighing `max(0, 1 - |i + 0.5 - c| / max(s, 1))`; pixels beyond the edges weigh nothing, and those
/// that are left weigh 1 together. Where a picture grows that is the bilinear mix. Pillow's `BILINEAR` and torchvision's
/// `antialias=True` do the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocess {
    /// Which color each channel of the input is. Default: [`ChannelOrder::Rgb`].
    pub color: ChannelOrder,
    /// Where the channel axis of the input is. Default: [`InputLayout::Nchw`].
    pub layout: InputLayout,
    /// By how much the picture is turned before it is fitted in. Default: not at all.
    pub rotation: Rotation,
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
    /// Whether all pixels of a picture that is made smaller count, instead of the two nearest along each axis. For models that were
    /// trained on pictures made so. Default: false.
    pub antialias: bool,
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

/// By how much a picture is turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rotation {
    #[default]
    None,
    /// By 90 degrees: what was on the left is at the top.
    Clockwise,
    /// By 180 degrees.
    Half,
    /// By 270 degrees clockwise: what was on the right is at the top.
    Counterclockwise,
}

impl Rotation {
    /// Whether width and height change places.
    pub const fn swaps_axes(self) -> bool {
        matches!(self, Self::Clockwise | Self::Counterclockwise)
    }

    /// The size of a picture of this size after the turn.
    pub const fn turned(self, size: Size) -> Size {
        if self.swaps_axes() { Size::new(size.height, size.width) } else { size }
    }
}

/// Rounding between the steps of the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// None.
    #[default]
    Exact,
    /// What a chain of 8-bit pictures gives: whole numbers, half up, after the conversion to red, green and blue and after that
    /// to gray; and a resize in whole numbers, bit for bit that of OpenCV's `INTER_LINEAR`, or with [`Preprocess::antialias`] that
    /// of Pillow's `BILINEAR` (up to version 12) on 8-bit pictures. For models whose answers are
    /// compared with a program that prepares pictures so; it is a little darker than the exact mix.
    U8,
}

impl Default for Preprocess {
    fn default() -> Self {
        Self {
            color: ChannelOrder::default(),
            layout: InputLayout::default(),
            rotation: Rotation::default(),
            resize: Resize::default(),
            pad: 114.0,
            mean: [0.0; 3],
            scale: [1.0; 3],
            rounding: Rounding::default(),
            antialias: false,
        }
    }
}

/// With the keys and values of a description; what is as most models have it is left out.
impl fmt::Display for Preprocess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { color, layout, rotation, resize, pad, mean, scale, rounding, antialias } = self;
        let color = match color {
            ChannelOrder::Rgb => "rgb",
            ChannelOrder::Bgr => "bgr",
            ChannelOrder::Gray => "gray",
        };
        let layout = match layout {
            InputLayout::Nchw => "nchw",
            InputLayout::Nhwc => "nhwc",
        };
        let (resize, has_border) = match resize {
            Resize::Stretch => ("stretch", false),
            Resize::Letterbox { anchor: Anchor::Center } => ("letterbox", true),
            Resize::Letterbox { anchor: Anchor::TopLeft } => ("letterbox-top-left", true),
            Resize::Crop => ("crop", false),
        };
        write!(f, "{color}, {layout}, {resize}")?;
        if has_border {
            write!(f, ", pad {pad}")?;
        }
        match rotation {
            Rotation::None => {}
            Rotation::Clockwise => f.write_str(", rotate 90")?,
            Rotation::Half => f.write_str(", rotate 180")?,
            Rotation::Counterclockwise => f.write_str(", rotate 270")?,
        }
        if *antialias {
            f.write_str(", antialias")?;
        }
        if *rounding == Rounding::U8 {
            f.write_str(", rounding u8")?;
        }
        write!(f, ", (pixel - {mean:?}) / {scale:?}")
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
        self.fill_from(&Picture::of_frame(frame)?, input, row, scratch)
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
        self.fill_from(&Picture::of_tensor(picture, layout)?, input, row, scratch)
    }

    /// Fills row `row` of `input` with what `frame` shows along the grid of `frame_from_input`: pixel `(x, y)` of the input is the bilinear
    /// mix of the four pixels around the place that these numbers are mapped to, whole numbers being the centers of pixels in both, as
    /// with OpenCV's `warpAffine` and `INTER_LINEAR`. Around the frame everything is [`Preprocess::pad`].
    ///
    /// Colors, layout, `mean`, `scale` and element types are as of [`Preprocess::fill`]; `resize`, `rotation` and `antialias` do nothing here. With
    /// [`Rounding::U8`] colors are rounded to whole numbers before they are mixed, and again, half up, after that.
    ///
    /// # Errors
    /// As [`Preprocess::fill`].
    pub fn fill_along(
        &self,
        frame: &Frame,
        frame_from_input: &Similarity,
        input: &mut BytesMut,
        row: usize,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let input_size = self.check_row(input.layout(), row)?;
        let picture = Picture::of_frame(frame)?;
        let (width, source_rows) = (input_size.width as usize, picture.rows());
        let Scratch { instructions, warped, lines: line_buffer, .. } = scratch;
        warped.begin(self, width, picture.sample());
        let mut target = InputRow::new(input, self.layout, Rotation::None, row, *instructions, line_buffer)?;
        for y in 0..input_size.height as usize {
            target.blend(y, 0, width, &warped.line(y, width, frame_from_input, source_rows, *instructions));
        }
        Ok(())
    }

    /// The size of the input, if it has the row and takes pictures.
    pub(super) fn check_row(&self, layout: &Layout, row: usize) -> Result<Size> {
        self.check_element(layout.element())?;
        let input_size = self.input_size(layout.shape())?;
        if row >= layout.shape()[0] {
            return Err(Error::new(ErrorKind::Shape, format!("image input of shape {}: there is no row {row}", layout.shape())));
        }
        Ok(input_size)
    }

    fn fill_from(&self, picture: &Picture, input: &mut BytesMut, row: usize, scratch: &mut Scratch) -> Result<Transform> {
        let input_size = self.check_row(input.layout(), row)?;
        // Lines of the picture as it is become lines, or columns, of the input; so all but where they lie is as if nothing were turned.
        let placement = Placement::of_turned(self.resize, self.rotation, picture.size(), input_size);
        let is_filtered = self.is_filtered(picture.size(), placement.scaled);
        let fill = Fill { preprocess: self, picture, placement, input_size: self.rotation.turned(input_size), is_filtered };
        let Scratch { instructions, n_threads, workspace, bands, lines, .. } = scratch;
        let target = InputRow::new(input, self.layout, self.rotation, row, *instructions, lines)?;
        fill.run(target, *n_threads, workspace, bands, *instructions);
        Ok(placement.frame_from_input)
    }

    /// Whether the filter of `antialias` makes anything else than the bilinear mix does: OpenCV's and Pillow's roundings differ.
    fn is_filtered(&self, picture: Size, scaled: Size) -> bool {
        let shrinks = picture.width > scaled.width || picture.height > scaled.height;
        self.antialias && (shrinks || self.rounding == Rounding::U8)
    }

    /// Of the channels of the input in their order; gray has only the first.
    pub(super) fn normalizers(&self) -> [Normalizer; 3] {
        std::array::from_fn(|channel| Normalizer { mean: self.mean[channel], factor: 1.0 / self.scale[channel] })
    }

    /// Which of the colors red, green and blue (or the only one) each channel is.
    pub(super) fn color_of_channel(&self) -> [usize; 3] {
        match self.color {
            ChannelOrder::Rgb => [0, 1, 2],
            ChannelOrder::Bgr => [2, 1, 0],
            ChannelOrder::Gray => [0; 3],
        }
    }
}

/// Buffers that [`Preprocess::fill`] reuses, and the instructions that it runs on: the sampling positions, the samples of one source
/// row, the most recent ones scaled to the input's width (four, with [`Preprocess::antialias`] as many as a line is made of), and a line
/// of the input; all that once more for each further thread. Grows to the largest need seen and stays; one per thread that fills.
#[derive(Debug)]
pub struct Scratch {
    instructions: Instructions,
    n_threads: usize,
    workspace: Workspace,
    bands: Vec<Band>,
    warped: WarpedLine,
    lines: Vec<u8>,
}

impl Default for Scratch {
    /// For the fastest instructions of this processor.
    fn default() -> Self {
        Self::on(Instructions::fastest())
    }
}

impl Scratch {
    /// For these instructions, if this processor has them. The results are the same with all: for tests and benchmarks.
    pub fn with_instructions(set: InstructionSet) -> Option<Self> {
        Instructions::of(set).map(Self::on)
    }

    /// Lets large pictures be filled by so many threads at once, the caller's included, which is worth it where the other cores have nothing
    /// else to do. The results are the same. Without it, 1.
    pub fn set_threads(&mut self, n_threads: usize) {
        self.n_threads = n_threads.max(1);
    }

    fn on(instructions: Instructions) -> Self {
        Self {
            instructions,
            n_threads: 1,
            workspace: Workspace::default(),
            bands: Vec::new(),
            warped: WarpedLine::default(),
            lines: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
