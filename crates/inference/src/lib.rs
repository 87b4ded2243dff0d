//! A model put to work: frame in, results out. The one place where pixels meet requests.
//!
//! - [`spec`] turns a model file and its description into a [`ModelSpec`] that is checked against the model's ports.
//! - [`image_input`] makes a frame, or a region of one, the input of a request.
//! - A [`Stage`], a detector or a classifier, runs frames and regions on a bounded set of requests, which stages that ask for the same
//!   model can share ([`Sharing`]); results come by a callback that must not block. A [`Permit`] takes frames back whose runs have not begun.
//! - An [`Engine`] is what stages share: devices, decoders, compiled models.
//! - [`flow`] is the life of a stream as a state machine.
//! - [`Window`] holds frames in flight, bounded, and lets their results leave in arrival order.
//!
//! Knows vision and the runtime. Knows no GStreamer.

#![forbid(unsafe_code)]

mod client;
mod copies;
mod dispatch;
pub mod engine;
pub mod flow;
pub mod image;
mod instance;
mod job;
pub mod labels;
mod nearest;
mod output_check;
mod pace;
pub mod permit;
mod results;
mod rows;
pub mod spec;
mod stage;
mod thresholds;
pub mod window;

use roiflow_vision::frame;
use {roiflow_devices as devices, roiflow_runtime as runtime, roiflow_tensor as tensor, roiflow_vision as vision};

// What stages return; elements know no other part of the runtime.
pub use crate::runtime::text::{OneLine, Printable};
pub use crate::runtime::{Error, ErrorKind, MAX_BATCH_SIZE, Result, files};
pub use client::{Scheduling, StageStats, StepStats};
pub use engine::{Engine, Preparing};
pub use image::image_input;
pub use instance::{DEFAULT_BATCH_TIMEOUT, Sharing};
pub use job::StageResults;
pub use nearest::{did_you_mean, hint_of_unknown, nearest};
pub use permit::{Permit, Withdrawal};
pub use spec::{Description, Head, ModelSpec, Source, StageOptions, Task};
pub use stage::Stage;
pub use window::{Ticket, Window};
