//! Tests that need no GStreamer: the request runtime, the devices, vision.

mod golden_fill;
mod models;
mod support;
