//! Compiles a small model several times. Each compiled copy has one request. Some devices run faster with copies: for a cascade on
//! OpenVINO's CPU device, copies reduced the idle time of two cores from 9.6 % to 0.9 %.
//!
//! Each copy needs memory for its weights, so copies are used only for small models and on few cores. They also require a cache of compiled
//! models, from which a copy loads within milliseconds. The first copy is compiled at the start. Further copies are compiled when jobs wait
//! for a request. While other processes use the cores, further copies are used; see [`super::spares`]. A canceled run of a copy stops when
//! the engine's call returns. Without copies, a canceled run can stop earlier, between two nodes of the model.

use std::num::NonZero;
use std::sync::Arc;

use super::StageOptions;
use crate::runtime::executor::Executor;
use crate::runtime::{CompiledModel, Config, Core, Model, ModelInfo, Performance, Result};

/// Maximum number of cores for which copies are used. With more cores, one idle core is a smaller part of the machine's computing
/// power, so copies gain less.
const MAX_COPIES: usize = 4;
/// Maximum memory of all copies except the first.
const MAX_BYTES: u64 = 32 << 20;

/// A compiled model, and the closure that compiles further copies of it.
pub(super) struct Copies {
    pub(super) first: CompiledModel,
    /// Total number of requests of all copies.
    pub(super) n_requests: usize,
    /// Compiles a further copy with one request. `None` if no copies are used: `first` then has all requests.
    pub(super) compile_another: Option<CompileAnother>,
}

/// The argument is the executor of the copy. `None`: the copies share the executor of the first one.
pub(super) type CompileAnother = Box<dyn Fn(Option<Arc<dyn Executor>>) -> Result<CompiledModel> + Send + Sync>;

impl Copies {
    /// Returns a single compiled model with the device's optimal number of requests.
    pub(super) fn one(model: CompiledModel) -> Self {
        Self { n_requests: model.optimal_number_of_requests(), first: model, compile_another: None }
    }

    /// Compiles a model. If copies are used, compiles only the first copy, for one request.
    ///
    /// # Errors
    /// Returns the errors of [`Core::compile_accepted`].
    pub(super) fn compile(
        core: &Core,
        model: &Model,
        device: &str,
        options: &StageOptions,
        config: &Config,
        accept: &dyn Fn(&ModelInfo) -> Result<()>,
    ) -> Result<Self> {
        let is_affordable =
            |n_copies: &usize| core.copy_bytes(model, device).is_some_and(|bytes| bytes * (*n_copies as u64 - 1) <= MAX_BYTES);
        let Some(n_copies) = n_copies(options, config).filter(is_affordable) else {
            return core.compile_accepted(model, device, config, accept).map(Self::one);
        };
        let of_one = Config { n_requests: Some(1), n_threads: Some(1), ..config.clone() };
        let first = core.compile_accepted(model, device, &of_one, accept)?;
        if first.device() != device && core.copy_bytes(model, first.device()).is_none() {
            // `AUTO` selected a device other than the one for which copies were planned, so do not use copies.
            return core.compile_accepted(model, device, config, accept).map(Self::one);
        }
        let (core, model, device) = (core.clone(), model.clone(), first.device().to_owned());
        let compile_another = move |executor: Option<Arc<dyn Executor>>| {
            let executor = executor.or_else(|| of_one.executor.clone());
            core.compile_model(&model, &device, &Config { executor, ..of_one.clone() })
        };
        Ok(Self { first, n_requests: n_copies, compile_another: Some(Box::new(compile_another)) })
    }
}

/// Returns the number of copies, which is the number of cores. Returns `None` if the user's options exclude copies, if there is no cache of
/// compiled models, or if there are too few or too many cores.
fn n_copies(options: &StageOptions, config: &Config) -> Option<usize> {
    let n_copies = std::thread::available_parallelism().map_or(1, NonZero::get);
    let leaves_it_open = options.batch_size.is_none_or(|max| max <= 1)
        && config.performance == Performance::Throughput
        && (config.n_requests, config.n_threads) == (None, None)
        && !(config.exclusive_requests || config.profiling)
        && config.engine_options.is_empty();
    (leaves_it_open && config.cache_folder.is_some() && (2..=MAX_COPIES).contains(&n_copies)).then_some(n_copies)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn copies_are_used_only_without_conflicting_options() {
        let n_cores = std::thread::available_parallelism().unwrap().get();
        let options =
            StageOptions { model: Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx"), ..StageOptions::default() };
        let config = Config { cache_folder: Some("kept".into()), ..Config::default() };
        let expected = (2..=MAX_COPIES).contains(&n_cores).then_some(n_cores);
        assert_eq!(n_copies(&options, &config), expected);
        assert_eq!(n_copies(&StageOptions { batch_size: Some(8), ..options.clone() }, &config), None);
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

    #[test]
    fn copies_are_compiled_only_on_devices_that_prefer_them() {
        let n_cores = std::thread::available_parallelism().unwrap().get();
        let folder = std::env::temp_dir().join(format!("roiflow-copies-{}", std::process::id()));
        let options =
            StageOptions { model: Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx"), ..StageOptions::default() };
        let config = Config { cache_folder: Some(folder.clone()), ..Config::default() };
        let core = crate::devices::core();
        let model = core.read_model(&options.model).unwrap();
        for (device, info) in core.devices() {
            if info.missing.is_some() || !["AUTO", "CPU", "ORT.CPU", "OPENVINO.CPU"].contains(&&*device) {
                continue;
            }
            let copies = Copies::compile(core, &model, &device, &options, &config, &|_| Ok(())).unwrap();
            let is_faster = core.copy_bytes(&model, &device).is_some();
            assert_eq!(is_faster, copies.first.device() == "OPENVINO.CPU", "{device}");
            let has_copies = is_faster && (2..=MAX_COPIES).contains(&n_cores);
            assert_eq!(copies.n_requests, n_cores, "{device}");
            assert_eq!(copies.compile_another.is_some(), has_copies, "{device}");
            if let Some(compile_another) = copies.compile_another {
                let other = compile_another(None).unwrap();
                assert_eq!(other.properties().config, copies.first.properties().config);
                assert_eq!((other.properties().config.n_requests, other.properties().config.n_threads), (Some(1), Some(1)));
            }
        }
        std::fs::remove_dir_all(folder).ok();
    }
}
