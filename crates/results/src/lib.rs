//! What was found in a frame, and where. Plain values.
//!
//! Reading order: [`rect`], [`transform`], [`similarity`], [`geometry`], [`detection`]; [`json`] is the form of the results of a
//! frame for other programs; [`redaction`] hides credentials in any text.
//!
//! Knows no pixels, no models, no threads, no GStreamer.

#![forbid(unsafe_code)]

pub mod detection;
pub mod geometry;
pub mod json;
pub mod rect;
pub mod redaction;
pub mod similarity;
pub mod transform;

pub use detection::{Classification, Detection, FrameResults, InferenceStatus, ObjectId, Outcome, ScoredLabel, TrackState};
pub use geometry::{Geometry, Grid, Keypoint, Keypoints, RotatedRect, Skeleton};
pub use rect::{PixelRect, Point, Rect, Size};
pub use similarity::Similarity;
pub use transform::Transform;
