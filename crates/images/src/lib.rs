//! Reads image files, and draws results on frames.
//!
//! - [`mod@file`] reads a complete image file as an upright RGB image, and limits its size.
//! - [`draw`] draws rectangles and text on frames in any format.
//! - [`overlay`] draws the results of a frame.
//!
//! Uses frames and results, but no models, threads or GStreamer.

#![forbid(unsafe_code)]

pub mod draw;
pub mod file;
pub mod overlay;

use roiflow_vision::frame;
