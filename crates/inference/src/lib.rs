//! Inference stages. A stage is a model with its preprocessing and decoding: frames in, results out.
//!
//! - [`spec`] reads a model and its description into a [`ModelSpec`] and checks it against the model's ports.
//! - [`image_input`] preprocesses images into the input of a request.
//! - A [`Stage`] is a detector or a classifier. It runs frames and regions on a bounded set of requests and passes results to a closure.
//!   Stages of the same model can share the model's requests ([`Sharing`]). A [`RunGuard`] cancels frames whose runs have not started.
//! - An [`Engine`] has the devices, decoders and compiled models of its stages. A [`Snapshot`] has the models and files of a stream, as they were
//!   when the stream first read them.
//! - [`InFlightQueue`] is the queue of frames in flight: bounded, in arrival order.
//! - [`flow`] is the state machine of a stream.
//!
//! This crate uses vision and the runtime, but not GStreamer.

#![forbid(unsafe_code)]

mod batch;
mod client;
mod clips;
mod copies;
mod dispatch;
pub mod engine;
pub mod flow;
mod gallery;
pub mod image;
pub mod in_flight_queue;
mod instance;
mod job;
pub mod labels;
mod model_inputs;
mod nearest;
mod output_check;
mod results;
#[cfg(test)]
mod results_schema;
pub mod run_guard;
mod snapshot;
mod spares;
pub mod spec;
mod stage;
mod thresholds;
mod throttle;
mod tiled;

use roiflow_vision::frame;
use {roiflow_devices as devices, roiflow_runtime as runtime, roiflow_tensor as tensor, roiflow_vision as vision};

// Reexport the types of the runtime that appear in the interface of stages.
pub use crate::runtime::text::{OneLine, Printable, Quoted};
pub use crate::runtime::{Error, ErrorKind, MAX_BATCH_SIZE, Result, files};
pub use client::{Scheduling, StageStats, StepStats};
pub use clips::Clips;
pub use engine::{Engine, Preparing};
pub use gallery::{GalleryChoice, GalleryEntry, UNKNOWN, read_gallery};
pub use image::image_input;
pub use in_flight_queue::{InFlightQueue, Ticket};
pub use instance::{DEFAULT_BATCH_TIMEOUT, Sharing};
pub use job::StageResults;
pub use nearest::{did_you_mean, hint_of_unknown, nearest};
pub use run_guard::{CancelReason, RunGuard};
pub use snapshot::Snapshot;
pub use spec::{Clip, ClipLayout, Description, Head, KnownBy, ModelSpec, Source, StageOptions, Task, Thresholds};
pub use stage::Stage;
