//! Tells a profiler what each thread is doing: with the feature `ittapi` the steps of requests are tasks of Intel's ITT, under the
//! names that they have in a trace; without the feature there is nothing to tell it with.

#[cfg(not(feature = "ittapi"))]
mod disabled;
#[cfg(feature = "ittapi")]
mod enabled;

#[cfg(not(feature = "ittapi"))]
pub(super) use disabled::layer;
#[cfg(feature = "ittapi")]
pub(super) use enabled::layer;
