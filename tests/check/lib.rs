//! The part of the product that the model checks look at: its very files, with `sync` from a model checker.

#[path = "../../src/tensor/mod.rs"]
pub mod tensor;

#[path = "../../src/runtime/mod.rs"]
pub mod runtime;

#[path = "../../src/stages/flow.rs"]
pub mod flow;

pub mod devices;
pub mod sync;
