//! The elements in real pipelines, and what they promise.

#[cfg(feature = "cli")]
mod cli;
mod harness;

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
mod motion;
#[cfg(feature = "cli")]
mod outputs;
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
