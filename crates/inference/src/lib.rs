//! Inference stages: models with preprocessing and decoding. Frames in, results out.
//!
//! - [`spec`] reads a model and its description into a [`ModelSpec`] and checks it against the model's ports.
//! - [`image_input`] preprocesses a frame or a region into the input of a request.
//! - A [`Stage`] is a detector or a classifier. It runs frames and regions on a bounded set of requests, which stages of the same model
//!   share ([`Sharing`]). A closure that must not block gets the results. A [`RunGuard`] withdraws frames whose runs have not started.
//! - An [`Engine`] holds devices, decoders and compiled models for its stages.
//! - [`flow`] is the state machine of a stream.
//! - [`InFlightQueue`] is the in-flight queue: bounded, and in arrival order.
//!
//! Knows vision and the runtime. Knows no GStreamer.

#![forbid(unsafe_code)]

mod batch;
mod client;
mod copies;
mod dispatch;
pub mod engine;
pub mod flow;
pub mod image;
pub mod in_flight_queue;
mod instance;
mod job;
pub mod labels;
mod nearest;
mod output_check;
mod results;
pub mod run_guard;
pub mod spec;
mod stage;
mod thresholds;
mod throttle;

use roiflow_vision::frame;
use {roiflow_devices as devices, roiflow_runtime as runtime, roiflow_tensor as tensor, roiflow_vision as vision};

// What stages return; elements know no other part of the runtime.
pub use crate::runtime::text::{OneLine, Printable};
pub use crate::runtime::{Error, ErrorKind, MAX_BATCH_SIZE, Result, files};
pub use client::{Scheduling, StageStats, StepStats};
pub use engine::{Engine, Preparing};
pub use image::image_input;
pub use in_flight_queue::{InFlightQueue, Ticket};
pub use instance::{DEFAULT_BATCH_TIMEOUT, Sharing};
pub use job::StageResults;
pub use nearest::{did_you_mean, hint_of_unknown, nearest};
pub use run_guard::{CancelReason, RunGuard};
pub use spec::{Description, Head, ModelSpec, Source, StageOptions, Task};
pub use stage::Stage;
