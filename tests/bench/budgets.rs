//! All budgets of `make bench`: the allowed overhead over the bare engine call.
//!
//! A budget is missed only if the whole 95 % interval of the median is beyond it.

/// Additional wall time of a run on the caller's thread, in microseconds.
pub const SYNC_MORE_US: f64 = 5.0;

/// Additional CPU time, in microseconds, of a run by start and callback, by a queue, or by `.await`, while all workers are busy. Both sides
/// use the same threads. With a queue and with `.await`, one thread starts all runs, so the baseline also has one thread that starts the
/// bare calls. The benchmark also prints the difference to bare calls without such a thread.
pub const ASYNC_MORE_US: f64 = 5.0;

/// Overhead of any run of a model that takes at least a millisecond, in percent.
pub const MODEL_MORE_PERCENT: f64 = 1.0;

/// Processor time of creating and dropping a tensor region, in nanoseconds.
pub const ROI_NS: f64 = 50.0;

/// Number of heap allocations when a tensor region is created.
pub const ROI_ALLOCATIONS: f64 = 0.0;

/// Heap allocations of a run in steady state, without the engine.
pub const RUN_ALLOCATIONS: f64 = 0.0;

/// Additional wall time of a run on an inference server, in microseconds, over a bare call with `tonic`. The input has 270,000 bytes.
pub const REMOTE_MORE_US: f64 = 300.0;

/// Processor time per frame with 16 streams on one compiled model, relative to a single stream.
pub const STREAMS: f64 = 1.05;
/// Heap allocations for tracking a frame's objects, in steady state.
pub const TRACKING_ALLOCATIONS: f64 = 0.0;
/// Time for tracking 20 and 300 objects of a frame, in microseconds.
pub const TRACKING_20_US: f64 = 50.0;
pub const TRACKING_300_US: f64 = 1000.0;

/// Processor time of decoding an output of 25,200 rows of 85 values, including NMS, in microseconds.
pub const DECODER_US: f64 = 1000.0;
