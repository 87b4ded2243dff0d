//! Video analytics: a frame goes through a detector, each box becomes a zero-copy region of interest over the same memory,
//! classifiers run on the regions, and the results travel on with the buffer.
//!
//! # The map
//!
//! A frame takes a one-way trip, and each hop has its own type:
//!
//! ```text
//! gst::Buffer -> Frame -> Tensor -> (request) -> Tensor -> Detections -> meta on the same gst::Buffer -> downstream
//! ```
//!
//! A region of a frame is again a `Frame` (same memory, smaller view), so a classifier does not know whether it was handed a
//! picture or a crop of one. Each folder turns one of these types into the next; from the bottom up, in reading order:
//!
//! | folder | what it is | what it must not know |
//! |---|---|---|
//! | `folders` | where roiflow's own files lie on a user's system | everything else |
//! | `sync` | locks, atomics and deadlines of the two folders that the model checks look at | everything else |
//! | [`tensor`] | bytes with a shape, shared, leased | pixels, models, threads, GStreamer |
//! | [`frame`] | a picture, its regions, what was found in it | models, threads, GStreamer |
//! | [`vision`] | pixels to input tensor, output tensor to detections; pure | requests, files, clocks |
//! | [`runtime`] | models, requests, runs | devices, pictures, GStreamer |
//! | [`devices`] | engines: one folder each, same file names | frames, other devices |
//! | [`stages`] | a model put to work: frame in, results out | GStreamer |
//! | [`publish`] | messages to files and standard output, through a bounded queue | GStreamer, formats |
//! | `redaction` | credentials kept out of what is shown and written | files, GStreamer |
//! | `elements` | GStreamer on one side, stages on the other | requests |
//! | `pipeline` | from a description file to a running pipeline | requests, pixels |
//! | `cli` | what the user types | pads, pixels |
//!
//! `tests/tidy.rs` holds the import table that this implies.
//!
//! # Recipes
//!
//! - A device: copy `devices/null`, add its line in `devices/mod.rs`, one line in `tests/runtime/device_suite.rs`, one row in the README.
//! - A decoder: one file in `vision/decode/`, one arm in `decode/mod.rs`, golden data, one description in `assets/models/`.
//! - An element: one folder in `elements/`, one line in `elements/mod.rs`, one file in `tests/stream/`, one row in the README.

#[cfg(feature = "cli")]
pub mod cli;
pub mod devices;
#[cfg(feature = "gst")]
pub mod elements;
mod folders;
pub mod frame;
#[cfg(feature = "gst")]
pub mod pipeline;
pub mod publish;
#[cfg(feature = "gst")]
pub mod redaction;
pub mod runtime;
pub mod stages;
mod sync;
pub mod tensor;
pub mod vision;
