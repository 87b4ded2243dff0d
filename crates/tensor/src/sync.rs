//! The primitives that requests, pools and leases are built on, in one place, so that a model checker can take their place.
//!
//! With `--cfg roiflow_check`, which `scripts/check-models` sets, they are those of a scheduler that tries interleavings.
//! What only counts or names (ids, statistics) uses the standard library directly: nothing is ordered by it.

#[cfg(roiflow_check)]
mod checked;
#[cfg(not(roiflow_check))]
mod native;

#[cfg(roiflow_check)]
pub use checked::*;
#[cfg(not(roiflow_check))]
pub use native::*;
