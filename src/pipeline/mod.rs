//! From a description file to a running pipeline.
//!
//! [`spec`] is the file as written, [`graph`] its gst-launch line taken apart, [`plan`] the file as understood: parameters
//! resolved, input and outputs known. [`build`] makes a `gst::Pipeline` of a plan, [`mod@check`] finds what would be refused without playing it, [`mod@run`] plays it to its end, [`stats`]
//! measures it meanwhile; `decoders` opens what a decoder needs. [`streams`] plays several at once. [`stream`] is the same for an application: push frames in, iterate over frames with their results.
//!
//! Knows the elements by their names and properties. Knows no requests and no pixels but those it hands over.

pub mod build;
pub mod check;
mod decoders;
pub mod error;
pub mod graph;
pub mod images;
pub mod input;
pub mod plan;
pub mod run;
pub mod spec;
pub mod stats;
pub mod stream;
pub mod streams;

pub use check::check;
pub use error::{Error, ErrorKind, Result};
pub use input::Input;
pub use plan::{Outputs, Plan};
pub use run::{Ending, Event, Interrupt, Progress, run};
pub use spec::Spec;
pub use stream::{ResultFrame, Stream};
