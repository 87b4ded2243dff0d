//! What a run may cost beyond the engine's own call: all budgets of `make bench` in one place.
//!
//! A budget is missed only if the whole 95 % interval of the median lies beyond it.

/// A run through a request on the caller's thread, in microseconds of wall time more than the bare call.
pub const SYNC_MORE_US: f64 = 5.0;

/// A run by start and callback, by the queue, or by `.await`, when the workers always have something to do: microseconds of
/// processor time more than the bare call on the same threads. Where one thread feeds the others (queue, `.await`), one feeds the
/// bare calls too; the figure against calls that nobody feeds is printed beside it.
pub const ASYNC_MORE_US: f64 = 5.0;

/// Either kind of run on a model of a millisecond or longer, in percent of the bare call.
pub const MODEL_MORE_PERCENT: f64 = 1.0;

/// Making, and dropping, a tensor that is a region of another one, in nanoseconds of processor time.
pub const ROI_NS: f64 = 50.0;

/// Making a tensor that is a region of another one.
pub const ROI_ALLOCATIONS: f64 = 0.0;

/// Heap allocations in a run, in steady state, engine apart.
pub const RUN_ALLOCATIONS: f64 = 0.0;

/// A frame of one of 16 streams on one compiled model, against one of a single stream: processor time.
pub const STREAMS: f64 = 1.05;
/// Heap allocations for the names over time of a frame's objects, once there have been as many as there will be.
pub const TRACKING_ALLOCATIONS: f64 = 0.0;

/// Boxes from an output of 25,200 rows of 85 values, suppressed, in microseconds of processor time.
pub const DECODER_US: f64 = 1000.0;
