//! From a description file to a running pipeline.
//!
//! [`spec`] is the file as written, [`graph`] its gst-launch line taken apart, [`plan`] the file as understood: parameters
//! resolved, input and outputs known. [`build`] makes a `gst::Pipeline` of a plan, [`mod@run`] plays it to its end, [`stats`]
//! measures it meanwhile; `decoders` opens what a decoder needs, [`outputs`] guards the files that are written. [`streams`] plays several at once. [`stream`] is the same for an application: push frames in, iterate over frames with their results.
//!
//! Knows the elements by their names and properties. Knows no requests and no pixels but those it hands over.

pub mod build;
mod decoders;
mod display;
pub mod error;
pub mod graph;
pub mod images;
pub mod input;
pub mod outputs;
pub mod plan;
pub mod run;
pub mod spec;
pub mod stats;
pub mod stream;
pub mod streams;

pub use crate::elements::destination::{Deadline, Destination, IfExists};
pub use error::{Error, ErrorKind, Result};
pub use input::Input;
pub use plan::{Outputs, Plan};
pub use run::{Ending, Event, Interrupt, Progress, run};
pub use spec::Spec;
pub use stream::{ResultFrame, Stream};
