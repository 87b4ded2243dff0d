//! Tests that need no GStreamer: the request runtime, the devices, vision.

mod allocations;
mod bad_models;
mod device_suite;
mod golden_fill;
mod models;
mod pictures;
mod reference;
mod request;
mod stages;
mod streaming;
mod support;
mod tensors;
mod variables;
