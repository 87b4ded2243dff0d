//! Inference requests: models are compiled for devices, and requests run them, with the semantics of OpenVINO's infer request.
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
//! - While a request runs, its tensors, steps and device state *belong to the run*: they are moved out of the request, so every accessor
//!   fails with [`ErrorKind::Busy`] by construction. The run holds leases on the memory of its tensors, so a tensor that is also set
//!   elsewhere cannot be changed either.
//! - Completion, in this order: the request becomes idle; the callback runs with the result or the error, without any lock; then waiting
//!   threads continue. A run that ends during the callback of an earlier run stays unfinished until that callback returns. Meanwhile only
//!   the thread of the callback may start the request. So a callback never sees the outputs of a later run.
//! - A panic in a step or a callback becomes an error of that run.
//! - Dropping the last handle prevents new work, cancels the run, and waits for a bounded time. Memory that a device still uses is owned by
//!   the run and freed when the device returns.
//!
//! Reading order: [`mod@core`], [`model`], [`source`], [`port`], [`compiled`], [`request`] (what a caller does), [`mod@inputs`],
//! [`results`], [`prepared`], `state`, `run` (how it is done), [`steps`], [`pipeline`], [`io`], [`executor`], `pool` and `waits` (blocked
//! workers), [`future`], [`queue`], [`ordered`], [`request_pool`], [`variable`], [`device`], [`completion`] (asynchronous devices),
//! [`config`] and `options` (as text), [`profile`], [`remote`], `batching` and `collector` (several runs in one call).
//!
//! The [`guide`] explains requests with examples.
//!
//! Knows tensors. Knows no engine, no image, no GStreamer.

#![forbid(unsafe_code)]

mod batching;
mod collector;
pub mod compiled;
pub mod completion;
pub mod config;
mod context;
pub mod core;
pub mod device;
pub mod error;
pub mod executor;
pub mod files;
#[cfg(feature = "serde")]
mod formats;
pub mod future;
#[doc = include_str!("../docs/inference-requests.md")]
pub mod guide {}
pub mod inputs;
pub mod io;
pub mod model;
pub mod null;
mod options;
pub mod ordered;
pub mod pipeline;
mod pool;
pub mod port;
pub mod prepared;
pub mod profile;
pub mod queue;
pub mod remote;
pub mod request;
pub mod request_pool;
pub mod results;
mod run;
pub mod source;
mod spans;
mod state;
pub mod steps;
pub mod text;
pub mod variable;
mod waits;

use roiflow_tensor as tensor;
use roiflow_tensor::sync;

pub use self::core::Core;
pub use compiled::CompiledModel;
pub use completion::Completion;
pub use config::{Config, Ignored, MAX_BATCH_SIZE, Performance, Precision, Properties};
pub use context::RunContext;
pub use error::{Error, ErrorKind, Result};
pub use future::{InferFuture, RunFuture, RunOutput};
pub use inputs::{Input, Inputs};
pub use io::FillInput;
pub use model::{Model, ModelInfo, VariablePorts};
pub use ordered::{Ordered, OrderedStream};
pub use pipeline::PipelineStep;
pub use port::{Axes, Dim, PartialShape, Port, PortKey};
pub use prepared::{EndedRun, PreparedRun};
pub use profile::{NodeStatus, NodeTime, StepTime};
pub use queue::{AsyncInferQueue, IdleRequest, JobErrors, RefusedJob};
pub use remote::{ContextParams, RemoteContext};
pub use request::{InferRequest, WeakInferRequest};
pub use request_pool::{PooledRequest, RequestPool};
pub use results::Results;
pub use source::{ModelBytes, ModelSource};
pub use steps::{CancelToken, Interrupt};
pub use variable::VariableState;
