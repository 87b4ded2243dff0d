//! Typed options for compiling a model. The module `options` parses them from text.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::executor::Executor;
use super::{Error, ErrorKind, Result};

/// The largest [`Config::batch_size`].
pub const MAX_BATCH_SIZE: usize = 1024;

/// Options for compiling a model. The defaults of [`Config::default`] suit a single pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Config {
    /// Number of concurrent requests. `None`, the default, selects the device's optimal number.
    pub n_requests: Option<usize>,
    /// Optimization goal: throughput or latency.
    pub performance: Performance,
    /// Number of CPU threads of one run. `None`, the default, divides the cores by the number of requests.
    pub n_threads: Option<usize>,
    /// Precision in which an engine computes `f32` models. If the engine cannot change its precision, [`Properties::ignored`] reports it.
    pub precision: Precision,
    /// Folder in which engines cache compiled models. Only OpenVINO, and ONNX Runtime on the CPU, use it.
    pub cache_folder: Option<PathBuf>,
    /// Whether to measure the time of each node, for [`InferRequest::profiling_info`](super::InferRequest::profiling_info). The default is
    /// `false`, which costs nothing. `true` costs a few tenths of a microsecond per node.
    pub profiling: bool,
    /// Whether this model runs exclusively. All models of the device with this option run one at a time, in the order of their starts.
    /// While a callback or step of a run waits for another request, the next run may start. The default is `false`.
    pub exclusive_requests: bool,
    /// Whether callbacks are called on a separate thread, so that long callbacks do not block an engine. All models of the core share this
    /// thread. Runs without a callback do not use it. The default is `false`: a callback is then called on the thread that completed the
    /// run, which saves 5 to 25 microseconds.
    pub callback_thread: bool,
    /// The executor of preprocessing, of engines that compute on the calling thread, and of user steps that have no executor of their own.
    /// Set this option, for example, to give some models a separate [`Pool`](super::executor::Pool). `None`, the default, selects the pool
    /// that all models share.
    ///
    /// If a callback or step waits, a `Pool` runs other tasks on an additional worker. An executor of another type cannot do this: give it
    /// one more thread for each callback or step that may wait.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub executor: Option<Arc<dyn Executor>>,
    /// The executor of callbacks, as an alternative to [`Config::callback_thread`]. The default is `None`.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub callback_executor: Option<Arc<dyn Executor>>,
    /// Maximum number of runs that are combined into one call of the engine, from 1 to [`MAX_BATCH_SIZE`]. The default, 1, disables
    /// batching.
    ///
    /// Batching is faster if a call has a fixed cost, or if the engine computes several batch items more efficiently than single items. The
    /// built-in engine computes batch items sequentially, so batching does not make it faster. Batch items must be independent, see
    /// [`Core::compile_model`](super::Core::compile_model).
    pub batch_size: usize,
    /// Longest time that a run waits for other runs to form a batch; 5 ms by default. With 0, a run does not wait for a batch: only runs
    /// that already wait for a busy engine are combined. If all requests of the model wait, their runs start before the time is over.
    #[cfg_attr(feature = "serde", serde(with = "crate::formats::seconds"))]
    pub batch_timeout: Duration,
    /// Whether the caller knows that the outputs of each batch item depend on that item only. The default, `false`, lets the device prove
    /// it from the graph, or a test find out. With `true`, neither is needed; a device that knows of a dependence still refuses. The device
    /// REMOTE knows nothing about the graph, so it batches only with `true`. If `true` is wrong, runs change the results of other runs.
    pub batch_independent: bool,
    /// Longest time that the drop of the last handle blocks while the request runs; 5 s by default. After that time, the run keeps its
    /// memory and frees it when it ends.
    #[cfg_attr(feature = "serde", serde(with = "crate::formats::seconds"))]
    pub drop_patience: Duration,
    /// Options of one engine. Each name has the prefix of the engine: `OPENVINO.NUM_STREAMS`, `ORT.session.intra_op.allow_spinning`. These
    /// options override the other fields of this type. A device ignores options with the prefix of another engine. OpenVINO rejects unknown
    /// names; ONNX Runtime does not check names.
    pub engine_options: BTreeMap<String, String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            n_requests: None,
            performance: Performance::default(),
            n_threads: None,
            precision: Precision::default(),
            cache_folder: None,
            profiling: false,
            exclusive_requests: false,
            callback_thread: false,
            executor: None,
            callback_executor: None,
            batch_size: 1,
            batch_timeout: Duration::from_millis(5),
            batch_independent: false,
            drop_patience: Duration::from_secs(5),
            engine_options: BTreeMap::new(),
        }
    }
}

/// The optimization goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Performance {
    /// Maximizes results per second: many requests with few threads each.
    #[default]
    Throughput,
    /// Minimizes the time to each result: one request on all cores.
    Latency,
}

/// The precision in which an engine computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Precision {
    /// 32 bits. All devices give the same results, up to rounding.
    #[default]
    F32,
    /// 16 bits with the exponent range of `f32`, on processors that support it. Faster, but probabilities may change in the third digit.
    Bf16,
    /// 16 bits (IEEE half precision), on devices that support it.
    F16,
}

impl Config {
    /// Checks that the numbers are at least 1.
    pub(super) fn check_numbers(&self) -> Result<()> {
        for (option, number) in [("n_requests", self.n_requests), ("n_threads", self.n_threads)] {
            if number == Some(0) {
                let message = format!("{option}: expected at least 1, or None for the device's own choice, got Some(0)");
                return Err(Error::new(ErrorKind::Config, message));
            }
        }
        Ok(())
    }

    /// Checks that at most one option sets the executor of the steps, and at most one option sets the executor of callbacks.
    pub(super) fn check_executors(&self) -> Result<()> {
        let pairs = [
            (self.executor.is_some() && self.exclusive_requests, "executor", "exclusive_requests"),
            (self.callback_executor.is_some() && self.callback_thread, "callback_executor", "callback_thread"),
        ];
        match pairs.iter().find(|(are_both_set, ..)| *are_both_set) {
            None => Ok(()),
            Some((_, option, other)) => {
                Err(Error::new(ErrorKind::Config, format!("expected one of `{option}` and `{other}`, got both; remove one of them")))
            }
        }
    }

    /// Returns the number of concurrent engine calls, and the number of threads of each call, for this number of cores. Neither is 0. The
    /// product of the two numbers exceeds the number of cores only if the caller set [`Config::n_requests`] or [`Config::n_threads`] too
    /// high. With batching, up to [`Config::batch_size`] requests share one call.
    pub fn requests_and_threads(&self, n_cores: usize) -> (usize, usize) {
        let one_request = match self.performance {
            Performance::Throughput => self.n_threads.unwrap_or(1),
            Performance::Latency => n_cores,
        };
        let asked = self.n_requests.map(|n_requests| n_requests.div_ceil(self.batch_size.max(1)));
        let n_requests = asked.unwrap_or_else(|| n_cores / one_request.max(1)).max(1);
        (n_requests, self.n_threads.unwrap_or(n_cores / n_requests).max(1))
    }
}

/// An option that has no effect, see [`Properties::ignored`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// The name of the field in [`Config`].
    pub option: &'static str,
    /// The reason why the option has no effect on this device.
    pub why: String,
}

impl Ignored {
    /// Returns the options that were set but have no effect. Each element of `options` says whether the option was set, its name, and the
    /// reason why it has no effect.
    pub fn of<'a>(options: impl IntoIterator<Item = (bool, &'static str, &'a str)>) -> Vec<Self> {
        let given = options.into_iter().filter(|(is_given, ..)| *is_given);
        given.map(|(_, option, why)| Self { option, why: why.to_owned() }).collect()
    }
}

/// Properties of a compiled model, see [`CompiledModel::properties`](super::CompiledModel::properties).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// The name of the model for messages: the path of its file, or the name of its source.
    pub model_name: String,
    /// The device for which the model was compiled.
    pub device: String,
    /// The optimal number of concurrent requests.
    pub optimal_number_of_requests: usize,
    /// The options with which the model was compiled.
    pub config: Config,
    /// The options that were set but have no effect on this device. Options that have their default value are not included.
    pub ignored: Vec<Ignored>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_times_threads_are_the_cores() {
        let latency = Config { performance: Performance::Latency, ..Config::default() };
        let with = |n_requests, n_threads| Config { n_requests, n_threads, ..Config::default() };
        let cases = [
            (Config::default(), 8, (8, 1)),
            (latency.clone(), 8, (1, 8)),
            (Config { n_threads: Some(2), ..latency.clone() }, 8, (1, 2)),
            (Config { n_requests: Some(4), ..latency }, 8, (4, 2)),
            (with(Some(1), None), 8, (1, 8)),
            (with(Some(3), None), 8, (3, 2)),
            (with(Some(16), None), 8, (16, 1)),
            (with(None, Some(4)), 8, (2, 4)),
            (with(None, Some(16)), 8, (1, 16)),
            (with(Some(0), Some(0)), 1, (1, 1)),
            (Config { batch_size: 8, ..with(Some(16), None) }, 8, (2, 4)),
            (Config { batch_size: 8, ..with(Some(3), None) }, 8, (1, 8)),
            (Config { batch_size: 8, ..with(None, None) }, 8, (8, 1)),
        ];
        for (config, n_cores, expected) in cases {
            assert_eq!(config.requests_and_threads(n_cores), expected, "{config:?} on {n_cores} cores");
        }
    }
}
