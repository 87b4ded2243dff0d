//! Tasks for Intel's ITT profilers: with the feature `ittapi`, steps of requests are tasks with the same names as in a trace.

#[cfg(not(feature = "ittapi"))]
mod disabled;
#[cfg(feature = "ittapi")]
mod enabled;

#[cfg(not(feature = "ittapi"))]
pub(super) use disabled::layer;
#[cfg(feature = "ittapi")]
pub(super) use enabled::layer;
