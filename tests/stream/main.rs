//! The elements in real pipelines, and what they promise.

#[cfg(feature = "cli")]
mod cli;
mod harness;
#[cfg(feature = "cli")]
mod hostile_models;

mod bad_input;
mod cascade;
mod classify;
mod detect;
mod documentation;
mod economy;
mod failures;
mod flow;
mod link;
mod live;
mod meta;
#[cfg(feature = "cli")]
mod models_cli;
mod motion;
mod overlay;
mod pipelines;
mod policies;
mod publish;
mod reference;
mod rig;
mod shared;
mod sharing;
mod soak;
mod stats;
#[cfg(feature = "cli")]
mod trace;
mod track;
mod warm_up;
