//! Reads pipeline descriptions, builds pipelines from them, and runs the pipelines.
//!
//! - Description: [`spec`] is the parsed file, [`graph`] its tokenized gst-launch line, and [`plan`] the resolved description with values
//!   for all parameters. `parse` and `properties` check a line before GStreamer's parser reads it.
//! - Building: [`build`] creates a `gst::Pipeline` from a plan. [`mod@check`] finds errors without playing it, and [`mod@prepare`] those of
//!   a stream that is to continue with another plan.
//! - Running: [`handle`] adds and removes streams while other streams run. `supervisor` is the bus loop of all streams. In this loop,
//!   `life` handles one stream, and `session` one pipeline of a stream. [`crate::restart`] decides when a lost source is opened again. `carry`
//!   has the state that the next pipeline takes over, and `live` the changes that need no new pipeline. [`mod@run`] and [`streams`] play plans to their end, [`stats`] measures the
//!   pipelines.
//! - Supervision: `watch` monitors the source, `decoded` compares decoded frames with what the file declares, `upright` rotates frames, `arrival`
//!   gives time stamps to frames without one, and `start` lets stream time begin with the first frame. `crate::intake` limits what a source
//!   sends. [`descriptors`] counts open files.
//!   [`limits`] ends a run early. `reasons` turns errors of elements into messages.
//! - [`mod@probe`] opens an input, and tells what it sends.
//! - Files: [`outputs`] protects input files from being overwritten. [`images_out`] writes images. [`naming`] names streams. `decoders`
//!   loads the libraries of a decoder.
//! - Galleries: [`gallery`] computes the vectors of images.
//! - Applications: [`stream`] runs a plan for an application that pushes frames and iterates over frames with results. [`tap`] shows an
//!   application the frames of a pipeline, without delaying them, and `compressed` the compressed frames of its source.
//!
//! [`input`] parses inputs. [`uri`] handles addresses, with [`credentials`], which [`logins`] reads again; `numbered` finds images by their numbers, and
//! `images` reads them.
//!
//! Pipelines are built from the names and properties of elements. Only `carry`, `check`, `outputs` and `session` use types of elements. This module
//! uses no inference requests, and reads pixels only to pass them on, except in [`gallery`].

mod arrival;
pub mod build;
mod carry;
pub mod check;
mod compressed;
mod container;
pub mod credentials;
mod decoded;
#[allow(unsafe_code, reason = "opens libraries")]
mod decoders;
#[allow(unsafe_code, reason = "reads and raises a limit of the process")]
pub mod descriptors;
mod display;
pub mod error;
pub mod gallery;
pub mod graph;
pub mod handle;
mod images;
pub mod images_out;
pub mod input;
mod life;
pub mod limits;
mod live;
pub mod logins;
pub mod models;
pub mod naming;
mod numbered;
pub mod outputs;
mod parse;
pub mod plan;
pub mod prepare;
pub mod probe;
mod properties;
mod reasons;
pub mod run;
mod session;
pub mod spec;
mod start;
pub mod stats;
pub mod stream;
pub mod streams;
mod supervision;
mod supervisor;
pub mod tap;
mod upright;
pub mod uri;
mod watch;

pub use crate::publish::{Deadline, IfExists, OutputFile};
pub use crate::restart::{Restart, RestartPolicy};
pub use check::check;
pub use compressed::CompressedFrame;
pub use credentials::Credentials;
pub use error::{Error, ErrorKind, Result};
pub use handle::{Event, Events, Phase, PipelineHandle, Status, StreamEvent, StreamId};
pub use images::ImageRate;
pub use images_out::ImageFiles;
pub use input::Input;
pub use limits::Limits;
pub use logins::Logins;
pub use models::{Classifier, Models};
pub use plan::{Crops, Outputs, Plan, SpoolFolder};
pub use prepare::prepare;
pub use probe::probe;
pub use run::{Ending, Interrupt, Progress, run};
pub use spec::Spec;
pub use stream::{ResultFrame, Stream};
pub use tap::{FrameTap, Tap, TappedFrame};
pub use uri::{Uri, file_uri};
