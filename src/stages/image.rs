//! Frames, and regions of frames, as inputs of requests.

use crate::frame::Frame;
use crate::runtime::{Error, FillInput, Port, Result};
use crate::tensor::{BytesMut, Shape};
use crate::vision::{Preprocess, Scratch};

/// Fills an input from a frame in one pass: crop, color, resize, normalize, layout. For a batch, give several frames.
///
/// ```no_run
/// # use roiflow::{frame::{Frame, PixelRect}, runtime::InferRequest, stages::image_input, vision::Preprocess};
/// # fn classify(request: InferRequest, frame: Frame) -> roiflow::runtime::Result<()> {
/// let face = frame.region(PixelRect { x: 40, y: 30, width: 64, height: 64 })?;
/// request.set_input("images", image_input(face, Preprocess::default()))?;
/// request.infer(())?;
/// # Ok(())
/// # }
/// ```
pub fn image_input(frames: impl Into<Frames>, preprocess: Preprocess) -> impl FillInput {
    ImageInput { frames: frames.into().0, preprocess, scratch: Scratch::default() }
}

/// One frame, or one per row of a batch.
#[derive(Debug, Clone)]
pub struct Frames(Vec<Frame>);

impl From<Frame> for Frames {
    fn from(frame: Frame) -> Self {
        Self(vec![frame])
    }
}

impl From<Vec<Frame>> for Frames {
    fn from(frames: Vec<Frame>) -> Self {
        Self(frames)
    }
}

struct ImageInput {
    frames: Vec<Frame>,
    preprocess: Preprocess,
    scratch: Scratch,
}

impl FillInput for ImageInput {
    fn shape(&mut self, port: &Port) -> Result<Shape> {
        let n_frames = self.frames.len();
        let shape = port.shape.with_dynamic(|axis| (axis == 0).then_some(n_frames));
        let shape = shape.ok_or_else(|| {
            Error::new(crate::runtime::ErrorKind::Tensor, "the model leaves the size of the picture open: set a tensor instead")
        })?;
        self.preprocess.input_size(&shape)?;
        if shape[0] != n_frames {
            return Err(Error::new(crate::runtime::ErrorKind::Tensor, format!("expected a batch of {} frames, got {n_frames}", shape[0])));
        }
        Ok(shape)
    }

    fn fill(&mut self, input: &mut BytesMut) -> Result<()> {
        for (row, frame) in self.frames.iter().enumerate() {
            self.preprocess.fill(frame, input, row, &mut self.scratch)?;
        }
        Ok(())
    }
}
