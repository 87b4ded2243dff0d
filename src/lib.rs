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
//! picture or a crop of one. Each crate or folder turns one of these types into the next; from the bottom up, in reading order:
//!
//! | crate or folder | what it is | what it must not know |
//! |---|---|---|
//! | [`tensor`] | bytes with a shape, shared, leased | pixels, models, GStreamer |
//! | `roiflow-results` | geometry, detections, classifications, their form in JSON ([`frame`], [`redaction`]) | pixels, models, GStreamer |
//! | [`vision`] | frames; pixels to input tensor, output tensor to detections; pure | requests, files, clocks |
//! | [`runtime`] | models, requests, runs | engines, pixels, GStreamer |
//! | [`devices`] | engines: one folder each, same file names | frames, other devices |
//! | `roiflow-analytics` | objects over time: tracks, motion, results used again ([`stages`]) | models, GStreamer |
//! | `roiflow-inference` | a model put to work: frame in, results out ([`stages`]) | GStreamer |
//! | `roiflow-publish` | messages to files and standard output, through a bounded queue | GStreamer, formats |
//! | `elements` | GStreamer on one side, inference on the other | requests |
//! | `pipeline` | from a description file to a running pipeline | requests, pixels |
//! | `cli` | what the user types | pads, pixels |
//!
//! The crates lie in `crates`; ARCHITECTURE.md has the arrows between them and the recipes.

#![deny(unsafe_code)]

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "gst")]
pub mod elements;
#[cfg(feature = "gst")]
pub mod pipeline;
#[cfg(feature = "gst")]
use roiflow_devices::folders;
pub use roiflow_results::redaction;
pub use roiflow_runtime::inputs;
pub use {
    roiflow_devices as devices, roiflow_publish as publish, roiflow_runtime as runtime, roiflow_tensor as tensor, roiflow_vision as vision,
};

/// The code of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// A picture, its regions, what was found in it.
pub mod frame {
    pub use roiflow_results::*;
    pub use roiflow_vision::frame::*;
}

/// A model put to work: frame in, results out.
pub mod stages {
    pub use roiflow_analytics::*;
    pub use roiflow_inference::*;
    pub use roiflow_vision::crop::{self, Crop, Region};
}
