//! Preprocesses an image into a model's input tensor: crop, color conversion, resize, normalization, layout and element type, in one pass.
//!
//! This file defines the result of preprocessing. The other files implement its steps. Neither the image nor the crop is copied. Nothing
//! is allocated once the scratch buffers have grown.

use std::fmt;

use super::bands::{Band, Fill, Workspace};
use super::crop::RotatedPlacement;
use super::image::Image;
use super::letterbox::Placement;
use super::simd::{Simd, SimdBackend};
use super::store::{InputElement, InputRow, Normalizer};
use super::warp::WarpedLine;
use crate::frame::{Frame, Similarity, Size, Transform};
use crate::tensor::{BytesMut, ElementType, Error, ErrorKind, Layout, Result, Tensor};

/// Options of preprocessing.
///
/// The result is defined as follows:
///
/// 1. Each source pixel is converted to RGB in 0..=255, with the matrix and range of the frame. Subsampled formats use the chroma sample that
///    covers the pixel. The result is clamped, not rounded. Gray has three equal components.
/// 2. An input pixel is the bilinear interpolation at `(x + 0.5) * s - 0.5`, where `s` is the source extent divided by the scaled extent. The
///    edges of the image or region are replicated.
/// 3. The written value is `(pixel - mean) / scale`.
///
/// With [`Rounding::Exact`], two cases have a small error, because they use multiples of 1/16384. For 8-bit RGB and inputs of three
/// channels, the weights are rounded: the error is at most 1/128 of a pixel value. For 8-bit luma and chroma, the factors are rounded:
/// the error is below 0.01, for values of 0 to 255.
///
/// With [`Preprocess::antialias`], an input pixel is the weighted mean of the source pixels around its center, along each axis. The center
/// is `c = (x + 0.5) * s`. Pixel `i` has the weight `max(0, 1 - |i + 0.5 - c| / max(s, 1))`. Pixels beyond
/// the edges of the source region are left out, and the weights of the other pixels are scaled so that their sum is 1. For upscaling, this
/// equals bilinear interpolation. Pillow's `BILINEAR` and torchvision's `antialias=True` use the same filter.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocess {
    /// Colors of the input's channels. Default: [`ChannelOrder::Rgb`].
    pub color: ChannelOrder,
    /// Order of the input's axes. Default: [`InputLayout::Nchw`].
    pub layout: InputLayout,
    /// Rotation before resizing. Default: none.
    pub rotation: Rotation,
    /// How the image is resized to the input. Default: [`Resize::Stretch`].
    pub resize: Resize,
    /// Pixel value of letterbox borders before normalization, 0..=255. Default: 114.
    pub pad: f32,
    /// Mean of each channel in pixel values (0..=255), in the order of the input's channels. A gray input uses only the first mean.
    /// Default: 0.
    pub mean: [f32; 3],
    /// Divisor of each channel, after the mean is subtracted; not 0. Default: 1.
    pub scale: [f32; 3],
    /// Rounding of intermediate values. Default: [`Rounding::Exact`].
    pub rounding: Rounding,
    /// Whether downscaling uses all source pixels instead of the two nearest per axis. Set this option for models that were trained on
    /// antialiased images. Default: false.
    pub antialias: bool,
}

/// Colors of an input's channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChannelOrder {
    #[default]
    Rgb,
    Bgr,
    /// One channel: `0.299 R + 0.587 G + 0.114 B`.
    Gray,
}

impl ChannelOrder {
    /// Returns the number of channels.
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

/// How an image is resized to an input of another aspect ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resize {
    /// Scales both axes independently.
    #[default]
    Stretch,
    /// Scales by `r = min(W / w, H / h)` and fills the borders with [`Preprocess::pad`].
    Letterbox { anchor: Anchor },
    /// Scales by `r = max(W / w, H / h)` and crops both sides equally.
    Crop,
}

/// Position of a letterboxed image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Anchor {
    /// Top left. The scaled size is truncated to whole pixels, as in YOLOX.
    TopLeft,
    /// Center. The scaled size is rounded, ties to even, as in Ultralytics models. If a border cannot be halved, the left or top
    /// part is smaller.
    #[default]
    Center,
}

/// Rotation of an image before resizing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rotation {
    #[default]
    None,
    /// Rotates by 90 degrees clockwise: the left edge becomes the top edge.
    Clockwise,
    /// Rotates by 180 degrees.
    Half,
    /// Rotates by 270 degrees clockwise: the right edge becomes the top edge.
    Counterclockwise,
}

impl Rotation {
    /// Whether width and height are swapped.
    pub const fn swaps_axes(self) -> bool {
        matches!(self, Self::Clockwise | Self::Counterclockwise)
    }

    /// Returns the size of an image after the rotation.
    pub const fn turned(self, size: Size) -> Size {
        if self.swaps_axes() { Size::new(size.height, size.width) } else { size }
    }
}

/// Rounding of intermediate values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// Intermediate values are not rounded.
    #[default]
    Exact,
    /// Colors are rounded to integers, half up, after the conversion to RGB and to gray.
    ///
    /// Resizing is bit-exact with OpenCV's `INTER_LINEAR` on 8-bit images, or with Pillow's `BILINEAR` (up to version 12) if
    /// [`Preprocess::antialias`] is set. Use `U8` to reproduce the results of programs that use these libraries. The values are
    /// slightly smaller on average than with [`Rounding::Exact`].
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

/// Formats the options as keys of a model description. Keys with default values are left out.
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
    /// Returns the width and height of an input of this shape, `[N, C, H, W]` or `[N, H, W, C]`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] unless the shape has four axes, the channels of [`Preprocess::color`], and at least one pixel. Returns
    /// [`ErrorKind::Unsupported`] if `pad`, `mean` or `scale` is not finite, or `scale` is 0.
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

    /// Checks that the element type of an input is supported: f32, f16, bf16, u8, i8 or i32.
    ///
    /// # Errors
    /// Returns [`ErrorKind::ElementType`] if the type is not one of these.
    pub fn check_element(&self, element: ElementType) -> Result<()> {
        InputElement::new(element).map(drop)
    }

    /// Writes `frame` into batch item `row` of `input`. Returns `frame_from_input`.
    ///
    /// `frame_from_input` maps input pixels to pixels of the frame or region. The origin of both coordinate systems is the top left corner.
    /// `input` has the shape that [`Preprocess::input_size`] describes, with any batch size and strides. `u8`, `i8` and `i32` values are
    /// rounded half up and saturated. Other batch items are not changed.
    ///
    /// # Errors
    /// Returns the errors of [`Preprocess::input_size`] and [`Preprocess::check_element`]. Returns [`ErrorKind::Shape`] if the batch item
    /// does not exist. Returns [`ErrorKind::Busy`] while the frame is leased for writing.
    pub fn fill(&self, frame: &Frame, input: &mut BytesMut, row: usize, scratch: &mut Scratch) -> Result<Transform> {
        self.fill_from(&Image::of_frame(frame)?, input, row, scratch)
    }

    /// Like [`Preprocess::fill`], but reads a tensor that contains one image, such as a region of another model's input.
    ///
    /// `image` has the shape `[1, C, H, W]` or `[1, H, W, C]`, as set by `layout`. It has one to four channels, any strides, and `f32` or
    /// `u8` elements. The values are RGB pixels in any range. `mean` and `scale` must refer to that range. Images with one or two
    /// channels are gray: the first channel is used. A fourth channel is ignored.
    ///
    /// # Errors
    /// Returns the errors of [`Preprocess::fill`]. Returns [`ErrorKind::Shape`] or [`ErrorKind::ElementType`] if `image` has another form.
    /// Returns [`ErrorKind::Unsupported`] with [`Rounding::U8`] if its elements are not `u8`.
    pub fn fill_values(
        &self,
        image: &Tensor,
        layout: InputLayout,
        input: &mut BytesMut,
        row: usize,
        scratch: &mut Scratch,
    ) -> Result<Transform> {
        if self.rounding == Rounding::U8 && image.element() != ElementType::U8 {
            let message = format!("rounding to 8 bits: expected a u8 image, got {}. Use exact rounding", image.element());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        self.fill_from(&Image::of_tensor(image, layout)?, input, row, scratch)
    }

    /// Writes `frame` into batch item `row` of `input`, aligned by `frame_from_input`.
    ///
    /// An input pixel is the bilinear interpolation at its mapped position. Integer coordinates are pixel centers in both spaces, as in
    /// OpenCV's `warpAffine` with `INTER_LINEAR`. Pixels outside the frame have the value [`Preprocess::pad`].
    ///
    /// `resize`, `rotation` and `antialias` have no effect; all other options work as for [`Preprocess::fill`]. With [`Rounding::U8`],
    /// colors are rounded to integers before the interpolation, and its result is rounded half up.
    ///
    /// # Errors
    /// Returns the errors of [`Preprocess::fill`].
    pub fn fill_along(
        &self,
        frame: &Frame,
        frame_from_input: &Similarity,
        input: &mut BytesMut,
        row: usize,
        scratch: &mut Scratch,
    ) -> Result<()> {
        self.fill_warped(frame, |x, y| frame_from_input.apply(x as f64, y as f64), input, row, scratch)
    }

    /// Like [`Preprocess::fill_along`], for a rotated box that is turned upright. Pixels of the input outside the box have the value
    /// [`Preprocess::pad`]. [`RotatedPlacement::new`] has applied `resize`.
    ///
    /// # Errors
    /// Returns the errors of [`Preprocess::fill`].
    pub fn fill_rotated(
        &self,
        frame: &Frame,
        placement: &RotatedPlacement,
        input: &mut BytesMut,
        row: usize,
        scratch: &mut Scratch,
    ) -> Result<()> {
        self.fill_warped(frame, |x, y| placement.sample(x, y), input, row, scratch)
    }

    /// `position` maps the column and row of an input pixel to a position in the frame.
    fn fill_warped(
        &self,
        frame: &Frame,
        position: impl Fn(usize, usize) -> (f64, f64),
        input: &mut BytesMut,
        row: usize,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let input_size = self.check_row(input.layout(), row)?;
        let image = Image::of_frame(frame)?;
        let (width, source_rows) = (input_size.width as usize, image.rows());
        let Scratch { simd, warped, lines: line_buffer, .. } = scratch;
        warped.begin(self, width, image.sample());
        let mut target = InputRow::new(input, self.layout, Rotation::None, row, *simd, line_buffer)?;
        for y in 0..input_size.height as usize {
            target.blend(y, 0, width, &warped.line(y, width, &position, source_rows, *simd));
        }
        Ok(())
    }

    /// Checks that the batch item exists and that the element type is supported. Returns the size of the input.
    pub(super) fn check_row(&self, layout: &Layout, row: usize) -> Result<Size> {
        self.check_element(layout.element())?;
        let input_size = self.input_size(layout.shape())?;
        if row >= layout.shape()[0] {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("image input of shape {}: expected an existing batch item, got {row}", layout.shape()),
            ));
        }
        Ok(input_size)
    }

    fn fill_from(&self, image: &Image, input: &mut BytesMut, row: usize, scratch: &mut Scratch) -> Result<Transform> {
        let input_size = self.check_row(input.layout(), row)?;
        // Each line of the unrotated image becomes a line or a column of the input. The rotation changes only the position where the line
        // is written.
        let placement = Placement::of_turned(self.resize, self.rotation, image.size(), input_size);
        let is_filtered = self.is_filtered(image.size(), placement.scaled);
        let fill = Fill { preprocess: self, image, placement, input_size: self.rotation.turned(input_size), is_filtered };
        let Scratch { simd, n_threads, workspace, bands, lines, .. } = scratch;
        let target = InputRow::new(input, self.layout, self.rotation, row, *simd, lines)?;
        fill.run(target, *n_threads, workspace, bands, *simd);
        Ok(placement.frame_from_input)
    }

    /// Whether the antialiasing filter is used. Upscaling does not need the filter, except with [`Rounding::U8`], which must
    /// round like Pillow.
    fn is_filtered(&self, image: Size, scaled: Size) -> bool {
        let shrinks = image.width > scaled.width || image.height > scaled.height;
        self.antialias && (shrinks || self.rounding == Rounding::U8)
    }

    /// Returns the normalization of each channel. A gray input uses only the first entry.
    pub(super) fn normalizers(&self) -> [Normalizer; 3] {
        std::array::from_fn(|channel| Normalizer { mean: self.mean[channel], factor: 1.0 / self.scale[channel] })
    }

    /// Returns, for each channel, the index of its color in red, green and blue. The index is 0 for gray.
    pub(super) fn color_of_channel(&self) -> [usize; 3] {
        match self.color {
            ChannelOrder::Rgb => [0, 1, 2],
            ChannelOrder::Bgr => [2, 1, 0],
            ChannelOrder::Gray => [0; 3],
        }
    }
}

/// Reusable buffers of [`Preprocess::fill`], and the SIMD backend that it uses. Use one value per calling thread. The buffers grow
/// to the largest size needed.
#[derive(Debug)]
pub struct Scratch {
    simd: Simd,
    n_threads: usize,
    workspace: Workspace,
    bands: Vec<Band>,
    warped: WarpedLine,
    lines: Vec<u8>,
}

impl Default for Scratch {
    /// Creates buffers for the fastest SIMD backend of this processor.
    fn default() -> Self {
        Self::on(Simd::fastest())
    }
}

impl Scratch {
    /// Creates buffers for this SIMD backend; `None` if the processor does not support it. All backends give the same results, so only
    /// tests and benchmarks need this function.
    pub fn with_simd_backend(backend: SimdBackend) -> Option<Self> {
        Simd::of(backend).map(Self::on)
    }

    /// Sets the number of threads for large images, including the calling thread. More threads are useful only if other cores are idle.
    /// The number does not change the results. Default: 1.
    pub fn set_threads(&mut self, n_threads: usize) {
        self.n_threads = n_threads.max(1);
    }

    fn on(simd: Simd) -> Self {
        Self { simd, n_threads: 1, workspace: Workspace::default(), bands: Vec::new(), warped: WarpedLine::default(), lines: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
