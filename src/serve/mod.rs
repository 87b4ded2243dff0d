//! Runs the streams of `roiflow serve` on pipelines: the backend of the crate `roiflow-server`.

mod backend;
mod running;
mod video;

pub use backend::{Destinations, Pipelines};
