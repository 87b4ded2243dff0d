//! A small model is compiled once for each core on OpenVINO's processor device, with one request each.
//!
//! There, a call computes on the thread that makes it only if the model has one stream of one thread. Else the calling thread sleeps while
//! one of the library computes: two wake-ups for each call, after which the system may leave a computing thread behind another one while a
//! core is idle. With copies, two cores were idle for 0.9 % of the time of a cascade instead of 9.6.
//!
//! What it costs is memory for the weights, so it is done for small models on few cores, and with a folder where compiled models are kept,
//! from which a copy comes in some milliseconds. A canceled run ends with its call, not between two nodes of the model.

use std::num::NonZero;
use std::path::Path;

use super::StageOptions;
use super::spec::DEFAULT_DEVICE;
use crate::runtime::{CompiledModel, Config, Performance, Result};

/// The device that is faster so.
const DEVICE: &str = "OPENVINO.CPU";
/// With more cores, a thread that is left behind is a small part of them.
const MAX_COPIES: usize = 4;
/// What the copies may take beside the first one.
const MAX_BYTES: u64 = 32 << 20;

/// The compiled models of a stage, which are the same, and how many requests there are of all.
pub(super) struct Copies {
    pub(super) models: Vec<CompiledModel>,
    pub(super) n_requests: usize,
}

impl Copies {
    /// One model with as many requests as it likes.
    pub(super) fn one(model: CompiledModel) -> Self {
        Self { n_requests: model.optimal_number_of_requests(), models: vec![model] }
    }

    /// Compiles a model: copies of it where that is faster, or else one.
    ///
    /// # Errors
    /// Those of `compile`.
    pub(super) fn compile(options: &StageOptions, config: &Config, compile: impl Fn(&Config) -> Result<CompiledModel>) -> Result<Self> {
        let Some(n_copies) = n_copies(options, config) else { return compile(config).map(Self::one) };
        let of_one = Config { n_requests: Some(1), n_threads: Some(1), ..config.clone() };
        let first = compile(&of_one)?;
        match first.device() {
            DEVICE => {}
            // So compiled as it would be for all requests.
            "CPU" | "ORT.CPU" => return Ok(Self { models: vec![first], n_requests: n_copies }),
            _ => return compile(config).map(Self::one),
        }
        let mut models = vec![first];
        for _ in 1..n_copies {
            models.push(compile(&of_one)?);
        }
        Ok(Self { models, n_requests: n_copies })
    }
}

/// How many copies are wanted, if the device is the one that is faster so.
fn n_copies(options: &StageOptions, config: &Config) -> Option<usize> {
    let n_copies = std::thread::available_parallelism().map_or(1, NonZero::get);
    let device = options.device.as_deref().unwrap_or(DEFAULT_DEVICE);
    let leaves_it_open = [DEFAULT_DEVICE, DEVICE].contains(&device)
        && options.batch_size.is_none_or(|max| max <= 1)
        && config.performance == Performance::Throughput
        && (config.n_requests, config.n_threads) == (None, None)
        && !(config.exclusive_requests || config.profiling)
        && config.engine_options.is_empty();
    let is_affordable = (2..=MAX_COPIES).contains(&n_copies)
        && config.cache_folder.is_some()
        && weights_bytes(&options.model).is_some_and(|n_bytes| n_bytes * (n_copies as u64 - 1) <= MAX_BYTES);
    (leaves_it_open && is_affordable).then_some(n_copies)
}

/// The size of the file that has the weights.
fn weights_bytes(model: &Path) -> Option<u64> {
    let is_ir = model.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("xml"));
    let file = if is_ir { &model.with_extension("bin") } else { model };
    Some(std::fs::metadata(file).ok()?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_made_of_small_models_where_nothing_else_is_asked_for() {
        let n_cores = std::thread::available_parallelism().unwrap().get();
        let options =
            StageOptions { model: Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx"), ..StageOptions::default() };
        let config = Config { cache_folder: Some("kept".into()), ..Config::default() };
        let expected = (2..=MAX_COPIES).contains(&n_cores).then_some(n_cores);
        assert_eq!(n_copies(&options, &config), expected);
        let on = |device: &str| StageOptions { device: Some(device.to_owned()), ..options.clone() };
        assert_eq!(n_copies(&on(DEVICE), &config), expected);
        for device in ["CPU", "ORT.CPU", "NULL", "OPENVINO.GPU"] {
            assert_eq!(n_copies(&on(device), &config), None, "{device}");
        }
        assert_eq!(n_copies(&StageOptions { batch_size: Some(8), ..options.clone() }, &config), None);
        assert_eq!(n_copies(&StageOptions { model: "missing.onnx".into(), ..options.clone() }, &config), None);
        for config in [
            Config { cache_folder: None, ..config.clone() },
            Config { n_requests: Some(3), ..config.clone() },
            Config { n_threads: Some(1), ..config.clone() },
            Config { performance: Performance::Latency, ..config.clone() },
            Config { profiling: true, ..config.clone() },
            Config { engine_options: [("OPENVINO.NUM_STREAMS".to_owned(), "2".to_owned())].into(), ..config.clone() },
        ] {
            assert_eq!(n_copies(&options, &config), None, "{config:?}");
        }
    }
}
