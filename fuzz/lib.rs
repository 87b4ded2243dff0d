//! The part of the product that is fuzzed: its very files, without requests, engines and GStreamer.

#[path = "../src/frame/mod.rs"]
pub mod frame;
#[path = "../src/stages/cut.rs"]
mod cut;
/// Of the stages what needs no requests.
pub mod stages {
    pub use crate::cut::{Cut, Region};
}
#[path = "../src/sync.rs"]
#[allow(dead_code, unused_imports, reason = "most of it is for requests")]
mod sync;
#[path = "../src/tensor/mod.rs"]
pub mod tensor;
#[path = "../src/vision/mod.rs"]
pub mod vision;
