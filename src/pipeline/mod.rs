//! From a description file to a running pipeline.
//!
//! [`spec`] is the file as written, [`graph`] its gst-launch line taken apart, [`plan`] the file as understood: parameters
//! resolved, input and outputs known. [`build`] makes a `gst::Pipeline` of a plan, [`mod@check`] finds what would be refused without
//! playing it, [`handle`] runs streams of plans that are added and removed while others run: `supervisor` is the one bus loop, `session` one
//! stream on it. [`mod@run`] and [`streams`] play plans to their end, [`stats`] measures them; `decoders` opens what a decoder needs,
//! [`outputs`] guards the files that are written. `parse` and `properties` check a line before GStreamer's parser takes it.
//! Of a running pipeline, `watch` supervises the source, `decoded` compares the frames that came with what the file declares, `upright`
//! rotates frames, [`limits`] ends a run early, [`naming`] names streams as the user wants, and `reasons` turns errors of elements into
//! sentences. [`stream`] runs a plan for an application: push frames in, iterate over frames with their results.
//!
//! [`input`] says what an input is: [`uri`] of addresses, with [`credentials`]; `picture` and `images` of pictures. [`pictures_out`] writes pictures.
//!
//! Knows the elements by their names and properties. Knows no requests and no pixels but those it hands over.

pub mod build;
pub mod check;
mod container;
pub mod credentials;
mod decoded;
#[allow(unsafe_code, reason = "opens libraries")]
mod decoders;
mod display;
pub mod error;
pub mod graph;
pub mod handle;
mod images;
pub mod input;
pub mod limits;
mod models;
pub mod naming;
pub mod outputs;
mod parse;
mod picture;
pub mod pictures_out;
pub mod plan;
mod properties;
mod reasons;
pub mod run;
mod session;
pub mod spec;
pub mod stats;
pub mod stream;
pub mod streams;
mod supervisor;
mod upright;
pub mod uri;
mod watch;

pub use crate::publish::{Deadline, IfExists, OutputFile};
pub use check::check;
pub use credentials::Credentials;
pub use error::{Error, ErrorKind, Result};
pub use handle::{Event, Events, Phase, PipelineHandle, Status, StreamEvent, StreamId};
pub use input::Input;
pub use limits::Limits;
pub use models::Models;
pub use pictures_out::Pictures;
pub use plan::{Outputs, Plan};
pub use run::{Ending, Interrupt, Progress, run};
pub use spec::Spec;
pub use stream::{ResultFrame, Stream};
pub use uri::{Uri, file_uri};
