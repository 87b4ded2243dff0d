//! The server of `roiflow serve`: adds, changes and removes streams over HTTP while others run, and shows their results.
//!
//! This crate knows HTTP, the store, security, metrics and the page. It does not know GStreamer: a [`Backend`] runs the streams.
//!
//! - [`stream`]: what a stream is for clients. [`backend`]: what the program that runs streams implements.
//! - [`nodes`]: which streams there are, on this server or on several. [`store`]: keeps those of a server without other nodes over restarts. `state_folder`: the files of the server.
//! - [`registry`]: the streams of this server; it starts them again after failures.
//! - [`feed`]: results and pictures from a running stream to any number of clients. [`events`]: the list of events, which `event_file` keeps over restarts.
//! - [`crops`]: the latest objects, cut out of the frames of a stream.
//! - [`models`]: the folder of models, to which clients may add files.
//! - [`video`]: live video of a stream for browsers.
//! - [`policy`]: which names, inputs, pipelines and files clients may use. [`token`]: who may do what. [`config`]: the file `server.toml`.
//! - [`telemetry`]: spans and logs for collectors of OpenTelemetry.
//! - [`http`]: the server itself, with [`metrics`] and [`page`]. [`tls`]: its certificate. [`proxies`]: in front of it.

#![deny(unsafe_code)]

pub mod backend;
pub mod config;
pub mod crops;
pub mod error;
mod event_file;
pub mod events;
pub mod feed;
pub mod http;
pub mod metrics;
pub mod models;
pub mod nodes;
pub mod page;
pub mod policy;
pub mod proxies;
pub mod registry;
mod state_folder;
pub mod store;
pub mod stream;
pub mod telemetry;
pub mod tls;
pub mod token;
pub mod video;

pub use backend::{Backend, Failure, FailureKind, Prepared, Running, Start, Video};
pub use config::Config;
pub use crops::Cut;
pub use error::Error;
pub use feed::{Feed, FrameResult, Pixels};
pub use http::Server;

pub use registry::Registry;
