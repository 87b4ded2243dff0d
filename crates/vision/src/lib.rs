//! Preprocessing converts pixels to input tensors; postprocessing converts output tensors to detections. All functions are pure.
//!
//! There are two coordinate spaces. *Frame* space has the pixels of a frame or region. *Input* space has the pixels of a model's input.
//! [`Preprocess::fill`] writes the input tensor and returns the transform `frame_from_input`. A [`decode::Decoder`] turns the model's
//! outputs into results in input space. The transform maps these results back to the frame:
//!
//! ```text
//! Frame --Preprocess::fill--> input tensor      (model)      outputs --Decoder::decode--> results in input space
//!                 \------------- frame_from_input ---------------------------> results in the frame
//! ```
//!
//! Reading order:
//!
//! 1. [`preprocess`] defines the result. Its steps: `letterbox`, `image`, `sample`, `samples`, `color`, `resize`, `scaled_rows`, `store`.
//! 2. Faster variants: `pairs` for packed RGB bytes, `yuv` for luma and chroma bytes.
//! 3. Other filters: `antialias` and `filtered` for antialiased downscaling, `warp` for alignment by keypoints.
//! 4. Infrastructure: `bands` (threads), `simd`, `aligned` (buffers).
//! 5. Postprocessing: [`decode`], [`nms`]; [`tiles`] divides a frame into tiles, and merges the detections in them.
//!
//! This crate uses tensors and frames, but no requests, models, files, clocks or GStreamer. It starts threads only for large frames.

#![deny(unsafe_code)]

mod aligned;
mod antialias;
mod bands;
mod color;
pub mod crop;
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
#[allow(unsafe_code, reason = "calls functions that are compiled for CPU features which not every processor has")]
mod simd;
mod store;
pub mod target;
pub mod tiles;
mod warp;
mod yuv;

use roiflow_tensor as tensor;

pub use crop::{Crop, Region};
pub use preprocess::{Anchor, ChannelOrder, InputLayout, Preprocess, Resize, Rotation, Rounding, Scratch};
pub use simd::SimdBackend;
pub use target::{DeviceFill, Target};
pub use tiles::{SearchArea, TileCount, Tiles};
