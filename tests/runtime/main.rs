//! Tests that need no GStreamer: the request runtime, the devices, vision.

mod models;
mod support;
