//! Results of video analytics: geometry, detections and attributes. All types are plain values.
//!
//! Reading order: [`rect`], [`transform`], [`similarity`], [`geometry`], [`contour`], [`polygon`], [`detection`], [`scene`].
//! [`json`] writes the results of a frame as one line of JSON. [`gap`] describes missing results. [`redaction`] hides credentials in text.
//!
//! This crate uses no pixels, models, threads or GStreamer.

#![forbid(unsafe_code)]

pub mod coco;
pub mod contour;
pub mod csv;
pub mod detection;
pub mod gap;
pub mod geometry;
pub mod json;
pub mod polygon;
pub mod rect;
pub mod redaction;
pub mod scene;
pub mod similarity;
pub mod transform;

pub use detection::{Classification, Detection, FrameResults, InferenceStatus, LostTrack, ObjectId, Outcome, ScoredLabel, TrackState};
pub use gap::{EPOCHS_PER_ASSIGNMENT, Gap, LastResult};
pub use geometry::{Geometry, Grid, Keypoint, Keypoints, RotatedRect, Skeleton};
pub use rect::{PixelRect, Point, Rect, Size};
pub use scene::{Direction, SceneEvent, SceneEventKind};
pub use similarity::Similarity;
pub use transform::Transform;
