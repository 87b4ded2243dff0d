//! A model put to work: frame in, results out. The one place where pixels meet requests.
//!
//! - [`spec`] turns a model file and its description into a [`ModelSpec`] that is checked against the model's ports.
//! - [`image_input`] makes a frame, or a region of one, the input of a request.
//! - [`Detector`] and [`Classifier`] run jobs on a bounded set of requests, which those who ask for the same model can share
//!   ([`Sharing`]); results come by a callback that must not block. A [`Permit`] takes jobs back that have not begun.
//! - A [`Cut`] says which part of a frame is the picture of a detection.
//! - [`Tracker`] names the objects of a frame as those of the frames before; [`AnswerCache`] keeps what was said of them.
//! - [`MotionGate`] tells whether the picture has changed.
//! - [`Window`] holds frames in flight, bounded, and lets their results leave in arrival order.
//!
//! Knows vision and the runtime. Knows no GStreamer.

#![forbid(unsafe_code)]

pub mod classifier;
mod copies;
pub mod cut;
pub mod detector;
mod dispatch;
pub mod image;
mod instance;
pub mod labels;
pub mod motion;
mod nearest;
mod output_check;
mod pace;
pub mod permit;
mod results;
pub mod reuse;
mod rows;
pub mod spec;
mod thresholds;
pub mod track;
pub mod window;

// What stages return; elements know no other part of the runtime.
pub use crate::runtime::text::{OneLine, Printable};
pub use crate::runtime::{Error, ErrorKind, MAX_BATCH_SIZE, Result, files};
pub use classifier::Classifier;
pub use cut::{Cut, Region};
pub use detector::Detector;
pub use dispatch::{Scheduling, StageStats, StepStats};
pub use image::image_input;
pub use instance::{DEFAULT_BATCH_TIMEOUT, Sharing};
pub use motion::MotionGate;
pub use nearest::{did_you_mean, hint_of_unknown, nearest};
pub use permit::{Permit, Withdrawal};
pub use reuse::{AnswerCache, ReuseOptions};
pub use spec::{Description, Head, ModelSpec, Source, StageOptions, Task, keep_compiled_models_in, prepare_device, register_device};
pub use track::{TrackCounts, TrackOptions, Tracker};
pub use window::{Ticket, Window};
