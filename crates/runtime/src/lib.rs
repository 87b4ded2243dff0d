//! Inference requests with the semantics of OpenVINO: a model is compiled for a device, and requests run the compiled model.
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
//! - A run is a list of steps. Each step is a task for an executor. The order is: steps that the user prepended, the step that fills the
//!   inputs, the steps of the device, and steps that the user appended, such as decoders. Consecutive steps with the same executor run as
//!   one task. See [`steps`].
//! - While a request runs, its tensors, steps and device state *belong to the run*: they are moved out of the request, so every accessor
//!   fails with [`ErrorKind::Busy`]. The run also leases the memory of its tensors, so a tensor that is also set on another request cannot
//!   be changed during the run.
//! - Completion has a fixed order. First the request becomes idle. Then the callback gets the result or the error, while no lock is held.
//!   Then threads that wait for the run continue. If a callback starts its request again, the new run may end before the callback returns.
//!   The new run then stays unfinished until the callback returns, and only the thread of the callback may start the request. So a callback
//!   never sees the outputs of a later run.
//! - A panic in a step or a callback becomes an error of that run.
//! - Dropping the last handle of a request prevents new runs, cancels the current run, and waits for a bounded time. If the device still
//!   uses memory after that time, the run keeps this memory and frees it when the device returns.
//!
//! To read the source, read the modules in this order:
//!
//! - Interface for callers: [`mod@core`], [`model`], [`source`], [`port`], [`compiled`], [`request`], [`mod@inputs`], [`results`],
//!   [`prepared`].
//! - Execution of runs: `state`, `run`, [`steps`], [`pipeline`], [`io`], [`executor`], `pool`, and `waits` (workers that block).
//! - Further interfaces for callers: [`future`], [`queue`], [`ordered`], [`request_pool`], [`variable`].
//! - Devices: [`device`], [`completion`] (asynchronous devices), [`config`], `options` (the configuration as text), [`profile`],
//!   [`remote`], and `batching` with `collector` (several runs in one call of the engine).
//!
//! The [`guide`] explains requests with examples.
//!
//! This crate depends only on the tensor crate. The runtime has no code for a specific engine, for images, or for GStreamer.

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
