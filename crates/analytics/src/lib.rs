//! What is known of objects over time, without models.
//!
//! - [`Tracker`] names the objects of a frame as those of the frames before.
//! - [`AnswerCache`] keeps what classifiers said of them.
//! - [`MotionGate`] tells whether the picture has changed.
//!
//! Knows results and frames. Knows no models, no clocks, no GStreamer.

#![forbid(unsafe_code)]

pub mod motion;
pub mod reuse;
pub mod track;

pub use motion::MotionGate;
pub use reuse::{AnswerCache, ReuseOptions};
use roiflow_tensor as tensor;
use roiflow_vision::frame;
pub use track::{TrackCounts, TrackOptions, Tracker};
