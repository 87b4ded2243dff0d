//! Locks, atomics and deadlines for requests, pools and leases. Builds for the model checker replace these types.
//!
//! With `--cfg roiflow_check` (which `scripts/check-models` sets), the scheduler of the model checker implements these types and tries many
//! thread interleavings. IDs and statistics use the atomics of the standard library directly, because they do not order other accesses.

#[cfg(roiflow_check)]
mod checked;
#[cfg(not(roiflow_check))]
mod native;

#[cfg(roiflow_check)]
pub use checked::*;
#[cfg(not(roiflow_check))]
pub use native::*;
