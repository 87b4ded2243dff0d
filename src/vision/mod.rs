//! Pixels to input tensor, output tensor to detections. Pure functions.
//!
//! Two directions, connected by one value. [`Preprocess::fill`] leads from *frame* space (pixels of the frame or region that
//! is given) to *input* space (pixels of the model's input) and returns `frame_from_input`; [`decode::BoxDecoder`] leads from
//! the model's outputs to rectangles in input space, which that transform brings back:
//!
//! ```text
//! Frame --Preprocess::fill--> input tensor      (model)      outputs --BoxDecoder::decode--> boxes in input space
//!                 \------------- frame_from_input --------------------------------> boxes in the frame
//! ```
//!
//! Reading order: [`preprocess`], `letterbox`, `color`, `values`, `resize`, `store` (its steps in order), [`decode`], [`nms`].
//!
//! Knows tensors and frames. Knows no requests, no models, no files, no clocks, no threads, no GStreamer.

#![forbid(unsafe_code)]

mod color;
pub mod decode;
mod letterbox;
pub mod nms;
pub mod preprocess;
mod resize;
mod store;
mod values;

pub use preprocess::{Anchor, ChannelOrder, InputLayout, Preprocess, Resize, Rounding, Scratch};
