//! Typed options of a compiled model. String maps exist only where a user typed a string.

/// How a model is compiled. [`Config::default`] suits a single pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// How many requests the caller means to run at once; `None` lets the device decide.
    pub n_requests: Option<usize>,
    /// Time each node of the model, for [`InferRequest::profiling_info`](super::InferRequest::profiling_info). Costs some tenths of
    /// a microsecond per node, and nothing when off.
    pub profiling: bool,
}
