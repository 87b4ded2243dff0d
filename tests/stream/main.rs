//! The elements in real pipelines, and what they promise.

mod harness;

mod meta;
mod overlay;
mod publish;
