//! The part of the product that the address sanitizer looks at: its very files, with the null device alone.

pub mod devices;
#[path = "../../src/frame/mod.rs"]
pub mod frame;
#[path = "../../src/runtime/mod.rs"]
pub mod runtime;
#[path = "../../src/stages/cut.rs"]
mod cut;
/// Of the stages what needs no engine.
pub mod stages {
    pub use crate::cut::{Cut, Region};
}
#[path = "../../src/sync.rs"]
mod sync;
#[path = "../../src/tensor/mod.rs"]
pub mod tensor;
#[path = "../../src/vision/mod.rs"]
pub mod vision;
