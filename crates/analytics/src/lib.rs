//! Analytics over time, without models: object tracking, lines and zones, result reuse, motion detection.
//!
//! - [`Tracker`] assigns each object a track ID that stays the same from frame to frame.
//! - [`ResultCache`] caches the classifications of tracked objects for later frames.
//! - [`SceneCounter`] counts tracked objects at lines and in zones, and measures their speed.
//! - [`CameraMotion`] estimates the motion of the camera between two frames.
//! - [`StreamTime`] gives each frame its time, although single timestamps are wrong.
//! - [`MotionGate`] reports whether a frame differs from a reference frame.
//!
//! This crate works on results and frames. It runs no models, reads no clocks and does not depend on GStreamer.

#![forbid(unsafe_code)]

pub mod camera_motion;
pub mod motion;
pub mod reuse;
pub mod scene;
pub mod time;
pub mod track;

pub use camera_motion::CameraMotion;
pub use motion::MotionGate;
pub use reuse::{ResultCache, ReuseOptions};
use roiflow_tensor as tensor;
use roiflow_vision::frame;
pub use scene::{SceneCounter, SceneCounts};
pub use time::{FrameTime, StreamTime};
pub use track::{Method as TrackMethod, TrackCounts, TrackOptions, Tracker};
