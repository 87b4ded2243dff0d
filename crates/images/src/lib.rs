//! Reads image files, cuts regions out of frames, and draws results on frames.
//!
//! - [`mod@file`] reads a complete image file as an upright RGB image, and limits its size. It also reads gray PNG images with their numbers.
//! - [`crop`] cuts regions out of frames, and encodes them as JPEG.
//! - [`draw`] draws rectangles, lines and bitmaps of text on frames in any format; [`obscure`] makes areas unrecognizable.
//! - [`font`] makes text into bitmaps. [`damage`] keeps which areas were drawn on.
//! - [`overlay`] draws the results of a frame, with trails, and the lines and zones of a [`scene`].
//! - [`privacy`] selects the objects that must be unrecognizable.
//! - [`picture`] encodes a frame with its results as a small JPEG.
//!
//! Uses frames and results, but no models, threads or GStreamer.

#![forbid(unsafe_code)]

pub mod crop;
pub mod damage;
pub mod draw;
pub mod file;
pub mod font;
pub mod obscure;
pub mod overlay;
pub mod picture;
pub mod privacy;
pub mod scene;
mod shapes;
mod trails;

use roiflow_vision::frame;
