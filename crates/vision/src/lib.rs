//! Preprocessing and postprocessing: pixels to input tensors, output tensors to detections. Pure functions.
//!
//! [`Preprocess::fill`] maps *frame* space (pixels of a frame or region) to *input* space (pixels of the model's input) and returns the
//! transform `frame_from_input`. A [`decode::Decoder`] turns the model's outputs into results in input space, which that transform maps
//! back to the frame:
//!
//! ```text
//! Frame --Preprocess::fill--> input tensor      (model)      outputs --Decoder::decode--> results in input space
//!                 \------------- frame_from_input ---------------------------> results in the frame
//! ```
//!
//! Reading order: [`preprocess`]; its steps `letterbox`, `image`, `sample`, `samples`, `color`, `resize`, `rows`. Faster variants:
//! `pairs` for packed RGB bytes, `yuv` for luma and chroma bytes. Other filters: `antialias` and `filtered` for antialiased downscaling,
//! `warp` for alignment by keypoints. Then `store`, `bands`, `simd` and `aligned`; [`decode`], [`nms`].
//!
//! Knows tensors and frames. Knows no requests, models, files, clocks or GStreamer, and no threads except those that share a large frame.

#![deny(unsafe_code)]

mod aligned;
mod antialias;
mod bands;
mod color;
pub mod cut;
pub mod decode;
mod filtered;
pub mod frame;
mod image;
mod letterbox;
pub mod nms;
mod pairs;
pub mod preprocess;
mod resize;
mod sample;
mod samples;
mod scaled_rows;
#[allow(unsafe_code, reason = "calls of functions that are compiled for instructions which not every processor has")]
mod simd;
mod store;
pub mod target;
mod warp;
mod yuv;

use roiflow_tensor as tensor;

pub use cut::{Cut, Region};
pub use preprocess::{Anchor, ChannelOrder, InputLayout, Preprocess, Resize, Rotation, Rounding, Scratch};
pub use simd::SimdBackend;
pub use target::{DeviceFill, Target};
