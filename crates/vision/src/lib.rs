//! Pixels to input tensor, output tensor to detections. Pure functions.
//!
//! Two directions, connected by one value. [`Preprocess::fill`] leads from *frame* space (pixels of the frame or region that
//! is given) to *input* space (pixels of the model's input) and returns `frame_from_input`; a [`decode::Decoder`] leads from
//! the model's outputs to results in input space, which that transform brings back:
//!
//! ```text
//! Frame --Preprocess::fill--> input tensor      (model)      outputs --Decoder::decode--> results in input space
//!                 \------------- frame_from_input ---------------------------> results in the frame
//! ```
//!
//! Reading order: [`preprocess`]; its steps `letterbox`, `picture`, `sample`, `samples`, `color`, `resize`, `rows`; instead of most of these
//! for bytes that are colors as they are `pairs`, for bytes of luma and color differences `yuv`; for pictures that are made smaller without
//! moire `antialias` and `filtered`, for pictures that are brought into a pose `warp`; then `store`, `bands` around them, and `simd` and
//! `aligned` under them; [`decode`], [`nms`].
//!
//! Knows tensors and frames. Knows no requests, no models, no files, no clocks, no GStreamer, and no threads but
//! those that share a large picture.

#![deny(unsafe_code)]

mod aligned;
mod antialias;
mod bands;
mod color;
pub mod cut;
pub mod decode;
mod filtered;
pub mod frame;
mod letterbox;
pub mod nms;
mod pairs;
mod picture;
pub mod preprocess;
mod resize;
mod rows;
mod sample;
mod samples;
#[allow(unsafe_code, reason = "calls of functions that are compiled for instructions which not every processor has")]
mod simd;
mod store;
pub mod target;
mod warp;
mod yuv;

use roiflow_tensor as tensor;

pub use cut::{Cut, Region};
pub use preprocess::{Anchor, ChannelOrder, InputLayout, Preprocess, Resize, Rotation, Rounding, Scratch};
pub use simd::InstructionSet;
pub use target::{DeviceFill, Target};
