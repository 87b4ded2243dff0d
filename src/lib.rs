//! Video analytics for GStreamer: detects, tracks and classifies objects in video frames. Each detected box is a zero-copy region of
//! interest in the frame's memory; classifiers run on the regions. The results are attached to the buffer.
//!
//! # Structure
//!
//! A frame passes through these types:
//!
//! ```text
//! gst::Buffer -> Frame -> Tensor -> (request) -> Tensor -> Detections -> meta on the same gst::Buffer -> downstream
//! ```
//!
//! A region of a frame is again a `Frame`: a smaller view of the same memory. So a classifier handles frames and regions equally. Each
//! crate or folder converts one of these types to the next one. The table lists the crates and folders from the lowest layer up, which is
//! also the reading order:
//!
//! | crate or folder | content | does not use |
//! |---|---|---|
//! | [`tensor`] | typed memory with a shape, shared and borrowed at run time | pixels, models, GStreamer |
//! | `roiflow-results` | geometry, detections, classifications, and their JSON ([`frame`], [`redaction`]) | pixels, models, GStreamer |
//! | [`vision`] | frames; preprocessing to input tensors, decoding of output tensors; pure | requests, files, clocks |
//! | [`runtime`] | models, inference requests, runs | engines, pixels, GStreamer |
//! | [`devices`] | engines: one folder each, same file names | frames, other devices |
//! | `roiflow-analytics` | object tracking, motion detection, result reuse ([`stages`]) | models, GStreamer |
//! | `roiflow-inference` | inference stages: frame in, results out ([`stages`]) | GStreamer |
//! | `roiflow-publish` | messages to files and standard output, through a bounded queue | GStreamer, formats |
//! | `roiflow-onvif` | ONVIF cameras: discovery, addresses of streams | GStreamer, other crates |
//! | `roiflow-images` | image files; drawing of results on frames | models, GStreamer |
//! | `restart` | when a lost source is opened again | GStreamer |
//! | `intake` | limits of what a source may send | streams |
//! | `roiflow-server` | the server of `roiflow serve`: HTTP, store, security, metrics, page | frames, models, GStreamer |
//! | `elements` | GStreamer elements: buffers to frames, results to metas | requests |
//! | `pipeline` | pipeline descriptions and running pipelines | requests, pixels |
//! | `serve` | streams of the server as pipelines | pads, pixels, HTTP |
//! | `cli` | the command line | pads, pixels |
//!
//! The crates are in the folder `crates`. ARCHITECTURE.md has their dependencies and the recipes.

#![deny(unsafe_code)]

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "gst")]
pub mod elements;
#[cfg(feature = "gst")]
mod intake;
#[cfg(feature = "gst")]
pub mod pipeline;
#[cfg(feature = "serve")]
pub mod serve;

#[cfg(feature = "gst")]
pub mod restart;
#[cfg(feature = "gst")]
use roiflow_devices::folders;
#[cfg(feature = "cli")]
pub use roiflow_onvif as onvif;
pub use roiflow_results::redaction;
pub use roiflow_runtime::inputs;
pub use {
    roiflow_devices as devices, roiflow_publish as publish, roiflow_runtime as runtime, roiflow_tensor as tensor, roiflow_vision as vision,
};

/// Runs the code of the README as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// Frames, regions of frames, and their results.
pub mod frame {
    pub use roiflow_results::*;
    pub use roiflow_vision::frame::*;
}

/// Inference stages: a model with its preprocessing and postprocessing.
pub mod stages {
    pub use roiflow_analytics::*;
    pub use roiflow_inference::*;
    pub use roiflow_vision::crop::{self, Crop, Region};
    pub use roiflow_vision::tiles::{self, SearchArea, TileCount, Tiles};
}
