//! Images for people: image files that are read, and results that are drawn on frames.
//!
//! - [`mod@file`] reads an image file: complete, upright, as RGB, with limits.
//! - [`draw`] draws rectangles and text on frames in any format.
//! - [`overlay`] draws the results of a frame.
//!
//! Uses frames and results, but no models, threads or GStreamer.

#![forbid(unsafe_code)]

pub mod draw;
pub mod file;
pub mod overlay;

use roiflow_vision::frame;
