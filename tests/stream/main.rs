//! The elements in real pipelines, and what they promise.

mod harness;

mod bad_input;
mod classify;
mod detect;
mod flow;
mod meta;
mod overlay;
mod publish;
