//! Adapts images as inputs of requests. An image is a frame, a region of a frame, or a tensor.

use crate::frame::{Frame, Size};
use crate::runtime::{Error, ErrorKind, FillInput, Port, Result};
use crate::tensor::{BytesMut, Shape, Tensor};
use crate::vision::{InputLayout, Preprocess, Scratch};

/// Preprocesses images into an input in one pass: crop, color conversion, resize, normalization, layout. Several images become batch items.
///
/// Without [`ImageInput::preprocess`], the input is `NCHW` RGB with values in 0..=255, and images are stretched to the size of the input.
///
/// A detected box becomes the input of a classifier without a copy of the crop:
///
/// ```
/// # use roiflow::{devices, frame::{Frame, PixelFormat, PixelRect, Size}, runtime::Config, stages::image_input};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let core = devices::core();
/// # let model = core.compile_model(&core.read_model("assets/tiny/color.onnx")?, "CPU", &Config::default())?;
/// # let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(64, 48), &[200; 64 * 48 * 3])?;
/// let request = model.create_infer_request()?;
/// request.set_input((), image_input(frame.region(PixelRect { x: 8, y: 4, width: 40, height: 40 })?))?;
/// request.infer(())?;
/// # Ok(())
/// # }
/// ```
///
/// Regions of a detector's input tensor also work. If the classifier's input has exactly the size of the region, pass the region to
/// [`InferRequest::set_tensor`](crate::runtime::InferRequest::set_tensor). Otherwise use `image_input`:
///
/// ```
/// # use roiflow::{devices, runtime::Config, stages::image_input, tensor::{ElementType, Tensor}, vision::InputLayout};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let core = devices::core();
/// # let model = core.compile_model(&core.read_model("assets/tiny/color.onnx")?, "CPU", &Config::default())?;
/// # let request = model.create_infer_request()?;
/// // The input of a previous model and a detected box: memory is shared, not copied.
/// let input_tensor = Tensor::new(ElementType::F32, [1, 3, 20, 20])?;
/// let roi_tensor = input_tensor.roi(&[0, 0, 2, 3], &[1, 3, 12, 15])?;
/// request.set_input((), image_input((roi_tensor, InputLayout::Nchw)))?;
/// request.infer(())?;
/// # Ok(())
/// # }
/// ```
pub fn image_input(images: impl Into<Images>) -> ImageInput {
    ImageInput { images: images.into().0, preprocess: Preprocess::default(), scratch: Scratch::default() }
}

/// The argument of [`image_input`]: one image, or one image per batch item.
///
/// An image is a [`Frame`], a region of a frame, or a tensor with its layout. A tensor has the shape `[1, C, H, W]` or `[1, H, W, C]` and
/// `f32` or `u8` elements, see [`Preprocess::fill_values`].
#[derive(Debug, Clone)]
pub struct Images(Vec<Image>);

#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "a frame stores its planes inline, so that creating a region allocates nothing")]
enum Image {
    Frame(Frame),
    Values(Tensor, InputLayout),
}

impl From<Frame> for Image {
    fn from(frame: Frame) -> Self {
        Self::Frame(frame)
    }
}

impl From<(Tensor, InputLayout)> for Image {
    fn from((tensor, layout): (Tensor, InputLayout)) -> Self {
        Self::Values(tensor, layout)
    }
}

impl From<Frame> for Images {
    fn from(frame: Frame) -> Self {
        Self(vec![frame.into()])
    }
}

impl From<(Tensor, InputLayout)> for Images {
    fn from(image: (Tensor, InputLayout)) -> Self {
        Self(vec![image.into()])
    }
}

impl From<Vec<Frame>> for Images {
    fn from(frames: Vec<Frame>) -> Self {
        Self(frames.into_iter().map(Into::into).collect())
    }
}

impl From<Vec<(Tensor, InputLayout)>> for Images {
    fn from(images: Vec<(Tensor, InputLayout)>) -> Self {
        Self(images.into_iter().map(Into::into).collect())
    }
}

/// An input of a request, created by [`image_input`].
#[derive(Debug)]
pub struct ImageInput {
    images: Vec<Image>,
    preprocess: Preprocess,
    scratch: Scratch,
}

impl ImageInput {
    /// Sets the preprocessing, which replaces the default.
    #[must_use]
    pub fn preprocess(mut self, preprocess: Preprocess) -> Self {
        self.preprocess = preprocess;
        self
    }
}

impl FillInput for ImageInput {
    fn shape(&mut self, port: &Port) -> Result<Shape> {
        let n_images = self.images.len();
        let image_size = match &*self.images {
            [] => return Err(Error::new(ErrorKind::Tensor, "expected at least one image, got none")),
            [first, ..] => first.size(),
        };
        // If the width or height of the port is dynamic, use the width or height of the first image.
        let (height_axis, width_axis) = match self.preprocess.layout {
            InputLayout::Nchw => (2, 3),
            InputLayout::Nhwc => (1, 2),
        };
        let shape = port.shape.with_dynamic(|axis| match axis {
            0 => Some(n_images),
            axis if axis == height_axis => Some(image_size.height as usize),
            axis if axis == width_axis => Some(image_size.width as usize),
            _ => Some(self.preprocess.color.n_channels()),
        });
        let shape = shape.expect("no extent is left open");
        self.preprocess.input_size(&shape)?;
        if shape[0] != n_images {
            return Err(Error::new(ErrorKind::Tensor, format!("expected a batch of {} images, got {n_images}", shape[0])));
        }
        Ok(shape)
    }

    fn fill(&mut self, input: &mut BytesMut) -> Result<()> {
        let Self { images, preprocess, scratch } = self;
        for (row, image) in images.iter().enumerate() {
            match image {
                Image::Frame(frame) => preprocess.fill(frame, input, row, scratch)?,
                Image::Values(tensor, layout) => preprocess.fill_values(tensor, *layout, input, row, scratch)?,
            };
        }
        Ok(())
    }
}

impl Image {
    /// Returns the size of the image, at least 1x1. An invalid size is not an error here, because preprocessing reports it.
    fn size(&self) -> Size {
        match self {
            Self::Frame(frame) => frame.size(),
            Self::Values(tensor, layout) => {
                let shape = tensor.shape();
                let extent = |axis: usize| shape.get(axis).and_then(|&extent| u32::try_from(extent).ok()).unwrap_or(1).max(1);
                match layout {
                    InputLayout::Nchw => Size::new(extent(3), extent(2)),
                    InputLayout::Nhwc => Size::new(extent(2), extent(1)),
                }
            }
        }
    }
}
