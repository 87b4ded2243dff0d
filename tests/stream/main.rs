//! The elements in real pipelines, and what they promise.

#[cfg(feature = "cli")]
mod cli;
mod harness;
mod installed;

mod bad_input;
mod cascade;
mod classify;
mod detect;
mod documentation;
mod economy;
#[cfg(feature = "cli")]
mod endings;
mod failures;
mod flow;
#[cfg(feature = "cli")]
mod limits;
mod link;
mod live;
mod meta;
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
#[cfg(feature = "cli")]
mod upright;
mod warm_up;
