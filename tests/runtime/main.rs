//! Tests that do not need GStreamer: the runtime of inference requests, the devices, and vision.

mod allocations;
mod bad_models;
mod clips;
mod crops;
#[path = "../support/decoders.rs"]
mod decoders;
mod denormals;
mod descriptions;
#[path = "../support/descriptions.rs"]
mod descriptions_cases;
mod device_suite;
mod element_types;
mod engines;
mod files_of_models;
#[path = "../support/fill.rs"]
mod fill;
mod foreign_models;
mod formats;
mod galleries;
mod golden_align;
mod golden_antialias;
mod golden_decoders;
mod golden_fill;
mod golden_scene;
mod golden_tracks;
mod image_results;
mod images;
mod independence;
mod inference_servers;
#[path = "../support/kserve.rs"]
mod kserve;
#[path = "../support/model_files.rs"]
mod model_files;
mod model_proc;
mod models;
#[path = "../support/onnx.rs"]
mod onnx;
mod own_decoders;
mod profiling;
mod random_decoders;
mod random_descriptions;
mod random_fill;
mod random_graphs;
mod random_model_files;
mod real_decoders;
mod real_servers;
mod reference;
mod request;
#[cfg(target_os = "linux")]
mod shared;
mod sharing;
mod simd;
#[path = "../support/slow_proxy.rs"]
mod slow_proxy;
mod small_models;
#[path = "../support/source.rs"]
mod source;
mod sources;
mod stages;
mod streaming;
mod support;
mod tensors;
#[path = "../support/tls_proxy.rs"]
mod tls_proxy;
mod variables;
