//! Locks, atomics and deadlines for requests, pools and leases. A model checker can replace them.
//!
//! With `--cfg roiflow_check` (set by `scripts/check-models`), a scheduler implements these types and tries thread interleavings. IDs and
//! statistics use the atomics of the standard library directly, because they do not order other accesses.

#[cfg(roiflow_check)]
mod checked;
#[cfg(not(roiflow_check))]
mod native;

#[cfg(roiflow_check)]
pub use checked::*;
#[cfg(not(roiflow_check))]
pub use native::*;
