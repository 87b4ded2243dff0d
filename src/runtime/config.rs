//! Typed options of a compiled model. String maps exist only where a user typed a string.

use std::time::Duration;

/// How a model is compiled. [`Config::default`] suits a single pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How many requests the caller means to run at once; `None`, the default, lets the device decide.
    pub n_requests: Option<usize>,
    /// Time each node of the model, for [`InferRequest::profiling_info`](super::InferRequest::profiling_info). Off by default, and
    /// then without a cost; on, some tenths of a microsecond per node.
    pub profiling: bool,
    /// The runs of all models of the device that ask for it go one at a time, in the order of their starts. Off by default.
    pub exclusive_requests: bool,
    /// Callbacks run on a thread of their own, one for the process, so that long ones hold up no engine. Off by default: on the
    /// thread that ended the run, without the hop of some 5 to 25 microseconds.
    pub callback_thread: bool,
    /// How long dropping the last handle of a running request waits for the run, by default 5 s. What then still runs keeps its
    /// memory and frees it when it ends.
    pub drop_patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            n_requests: None,
            profiling: false,
            exclusive_requests: false,
            callback_thread: false,
            drop_patience: Duration::from_secs(5),
        }
    }
}

/// What a compiled model says of itself, see [`CompiledModel::properties`](super::CompiledModel::properties).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// The model's name in messages: the path of its file.
    pub model_name: String,
    /// The device that it was compiled for.
    pub device: String,
    /// How many requests keep it busy.
    pub optimal_number_of_requests: usize,
    /// The options that it was compiled with.
    pub config: Config,
}
