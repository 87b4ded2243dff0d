//! Typed options of a compiled model. String maps exist only where a user typed a string; `options` reads what users type.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::{Error, ErrorKind, Result};

/// The largest [`Config::batch_size`].
pub const MAX_BATCH_SIZE: usize = 1024;

/// How a model is compiled. [`Config::default`] suits a single pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How many requests the caller means to run at once; `None`, the default, lets the device decide.
    pub n_requests: Option<usize>,
    /// What the requests and threads are arranged for.
    pub performance: Performance,
    /// Processor threads that one run uses; `None`: so many that requests times threads are the cores.
    pub n_threads: Option<usize>,
    /// The precision in which an engine computes `f32` models, where it has a choice; where it has none,
    /// [`Properties::ignored`] says so.
    pub precision: Precision,
    /// Where engines that can (OpenVINO, ONNX Runtime on the processor) keep compiled models for the next time.
    pub cache_folder: Option<PathBuf>,
    /// Time each node of the model, for [`InferRequest::profiling_info`](super::InferRequest::profiling_info). Off by default, and
    /// then without a cost; on, some tenths of a microsecond per node.
    pub profiling: bool,
    /// The runs of all models of the device that ask for it go one at a time, in the order of their starts. Off by default.
    pub exclusive_requests: bool,
    /// Callbacks run on a thread of their own, one for the process, so that long ones hold up no engine. Off by default: on the
    /// thread that ended the run, without the hop of some 5 to 25 microseconds.
    pub callback_thread: bool,
    /// The most runs of requests that are gathered into one call of the engine, 1 to [`MAX_BATCH_SIZE`]. 1, the default: none are.
    ///
    /// A call of several rows is faster where a call costs something by itself, or where the engine computes several pictures
    /// better than one; the embedded engine runs row by row and gains nothing. The model must be one of independent rows, see
    /// [`Core::compile_model`](super::Core::compile_model).
    pub batch_size: usize,
    /// How long a run waits for others at most, by default 5 ms; with 0 it is gathered only with those that wait for the engine
    /// anyway. A run that could have no company, because all requests of the model wait already, does not wait at all.
    pub batch_timeout: Duration,
    /// How long dropping the last handle of a running request waits for the run, by default 5 s. What then still runs keeps its
    /// memory and frees it when it ends.
    pub drop_patience: Duration,
    /// Options that only one engine knows, in its own words: names begin with the engine's prefix, as in `OPENVINO.NUM_STREAMS` or
    /// `ORT.session.intra_op.allow_spinning`. They come after what the other options arrange, and those of other engines than the
    /// one that runs the model are left alone. What the engine says of them is its own: OpenVINO refuses a name that it does not
    /// know, ONNX Runtime does not look.
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
            batch_size: 1,
            batch_timeout: Duration::from_millis(5),
            drop_patience: Duration::from_secs(5),
            engine_options: BTreeMap::new(),
        }
    }
}

/// What a device is arranged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Performance {
    /// As many results per second as can be: many requests with few threads each.
    #[default]
    Throughput,
    /// Each result as soon as can be: one request on all cores.
    Latency,
}

/// The precision of computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32 bits, so that all devices give the same results.
    #[default]
    F32,
    /// 16 bits with the exponent of `f32`, on processors that have it: faster, probabilities move in the third digit.
    Bf16,
    /// 16 bits, on devices that have it.
    F16,
}

impl Config {
    /// Whether the numbers are ones that a device can arrange itself for.
    pub(super) fn check_numbers(&self) -> Result<()> {
        for (option, number) in [("n_requests", self.n_requests), ("n_threads", self.n_threads)] {
            if number == Some(0) {
                let message = format!("{option}: expected at least 1, or None for the device's own choice, got Some(0)");
                return Err(Error::new(ErrorKind::Config, message));
            }
        }
        Ok(())
    }

    /// Calls of the engine at once and threads of each, on a machine with so many cores. Both at least one; more than the cores
    /// together only if the caller asked for that. Requests that are gathered share a call.
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

/// An option that was given and changes nothing, see [`Properties::ignored`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// The field of [`Config`].
    pub option: &'static str,
    /// Why this device does without it.
    pub why: String,
}

impl Ignored {
    /// Those of the options that were given: each comes with whether it was, its name, and why it changes nothing.
    pub fn of<'a>(options: impl IntoIterator<Item = (bool, &'static str, &'a str)>) -> Vec<Self> {
        let given = options.into_iter().filter(|(is_given, ..)| *is_given);
        given.map(|(_, option, why)| Self { option, why: why.to_owned() }).collect()
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
    /// Those of them that were given and that the device does not use; what is left at its default is not among them.
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
