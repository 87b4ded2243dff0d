//! Tests that need no GStreamer: the request runtime, the devices, vision.

mod allocations;
mod bad_models;
mod device_suite;
mod engines;
mod golden_fill;
mod instructions;
mod models;
mod pictures;
mod profiling;
mod reference;
mod request;
#[cfg(target_os = "linux")]
mod shared;
mod sharing;
mod stages;
mod streaming;
mod support;
mod tensors;
mod variables;
