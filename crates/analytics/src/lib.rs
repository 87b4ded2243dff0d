//! Analytics over time, without models: tracking, reuse of classifications, motion.
//!
//! - [`Tracker`] gives each object a track ID that stays the same from frame to frame.
//! - [`AnswerCache`] stores the classifications of tracked objects for later frames.
//! - [`MotionGate`] reports whether a frame differs from an earlier one.
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
