//! The request machine: models are compiled for devices, requests run on them.
//!
//! # Life of a request
//!
//! ```text
//!              start_async / infer                    last step done, or a step failed
//!     Idle ───────────────────────────▶ Running ────────────────────────────▶ Idle, calling back ──▶ Idle
//!      ▲                                  │  ▲                                        │    (waiters go on)
//!      │                                  │  └──────── start_async in the callback ───┘
//!      └── errors of start leave it idle  └─ cancel: the run ends at the next step boundary
//! ```
//!
//! - A run is a list of steps, each a task for an executor: steps that the user prepended, fill the inputs, the device's own
//!   steps, steps that the user appended (decoders). Neighbors with the same executor run as one task. See [`steps`].
//! - While a request runs, its tensors, steps and device state *belong to the run*: they are moved out of the request, so
//!   every accessor answers [`ErrorKind::Busy`] by construction. The run holds leases on the tensors' memory, so the same
//!   tensor set elsewhere can't be torn either.
//! - Completion, in this order: the request is idle; the callback runs, with the result or the error and without any lock;
//!   then waiters go on. A run that ends while the callback of an earlier one is still on stays unfinished until that
//!   callback ends; only the callback's own thread may start the request meanwhile. So a callback never sees the outputs of
//!   a later run.
//! - A panic in a step or a callback is an error of that run.
//! - Dropping the last handle stops new work, cancels, and waits a bounded time; memory that a device still touches is owned
//!   by the run and freed when the device returns.
//!
//! Reading order: [`mod@core`], [`model`], [`source`], [`port`], [`compiled`], [`request`] (what a caller does), [`mod@inputs`], [`results`],
//! `state`, `run` (how it is done), [`steps`], [`io`], [`executor`], [`future`], [`queue`], [`ordered`], [`request_pool`],
//! [`variable`], [`device`], [`completion`] (work beside the processor), [`config`] and `options` (as text), [`profile`], [`remote`], `batching` and `collector` (several runs in one call).
//!
//! The whole story, with snippets to copy, is in the [`guide`].
//!
//! Knows tensors. Knows no device, no picture, no GStreamer.

#![forbid(unsafe_code)]

mod batching;
mod collector;
pub mod compiled;
pub mod completion;
pub mod config;
pub mod core;
pub mod device;
pub mod error;
pub mod executor;
pub mod files;
pub mod future;
#[doc = include_str!("../docs/inference-requests.md")]
pub mod guide {}
pub mod inputs;
pub mod io;
pub mod model;
pub mod null;
mod options;
pub mod ordered;
pub mod port;
pub mod profile;
pub mod queue;
pub mod remote;
pub mod request;
pub mod request_pool;
pub mod results;
mod run;
pub mod source;
mod state;
pub mod steps;
pub mod text;
pub mod variable;

use roiflow_tensor as tensor;
use roiflow_tensor::sync;

pub use self::core::Core;
pub use compiled::CompiledModel;
pub use completion::Completion;
pub use config::{Config, Ignored, MAX_BATCH_SIZE, Performance, Precision, Properties};
pub use error::{Error, ErrorKind, Result};
pub use future::RunFuture;
pub use inputs::{Input, Inputs};
pub use io::{FillInput, RunContext};
pub use model::{Model, ModelInfo, VariablePorts};
pub use ordered::{Ordered, OrderedStream};
pub use port::{Axes, Dim, PartialShape, Port, PortKey};
pub use profile::{NodeStatus, NodeTime, StepTime};
pub use queue::{AsyncInferQueue, JobErrors, RefusedJob};
pub use remote::{ContextParams, RemoteContext};
pub use request::{InferRequest, WeakInferRequest};
pub use request_pool::{PooledRequest, RequestPool};
pub use results::Results;
pub use source::{ModelBytes, ModelSource};
pub use steps::{CancelToken, Interrupt};
pub use variable::VariableState;
