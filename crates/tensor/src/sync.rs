//! Locks, atomics and deadlines of requests, pools and leases, so that a model checker can replace them.
//!
//! With `--cfg roiflow_check` (set by `scripts/check-models`), they belong to a scheduler that tries interleavings. Ids and statistics use
//! the standard library's atomics directly, because they order nothing.

#[cfg(roiflow_check)]
mod checked;
#[cfg(not(roiflow_check))]
mod native;

#[cfg(roiflow_check)]
pub use checked::*;
#[cfg(not(roiflow_check))]
pub use native::*;
