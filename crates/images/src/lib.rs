//! Reads image files, cuts regions out of frames, and draws results on frames.
//!
//! - [`mod@file`] reads a complete image file as an upright RGB image, and limits its size.
//! - [`crop`] cuts regions out of frames, and encodes them as JPEG.
//! - [`draw`] draws rectangles and text on frames in any format.
//! - [`overlay`] draws the results of a frame.
//! - [`picture`] encodes a frame with its results as a small JPEG.
//!
//! Uses frames and results, but no models, threads or GStreamer.

#![forbid(unsafe_code)]

pub mod crop;
pub mod draw;
pub mod file;
pub mod overlay;
pub mod picture;
mod shapes;

use roiflow_vision::frame;
