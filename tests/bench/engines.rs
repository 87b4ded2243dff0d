//! Engines to measure: bare calls, and the same engines behind a compiled model.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use roiflow::devices::cpu::CpuDevice;
use roiflow::devices::null::{NullDevice, Script};
use roiflow::runtime::{CompiledModel, Config, Core, InferRequest, Model, ModelInfo, Port, Result};
use roiflow::tensor::{ElementType, Tensor};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::plan::SimplePlan;

/// Calls an engine once, without roiflow. Inputs are prepared, and outputs are ignored.
pub type BareCall = Box<dyn FnMut() + Send>;

/// An engine with a model: bare, and through roiflow.
pub struct Subject {
    pub name: &'static str,
    pub model: CompiledModel,
    bare: Box<dyn Fn() -> BareCall>,
    input: Option<Tensor>,
}

impl Subject {
    /// Creates a subject from a compiled model and its bare call.
    pub fn new(name: &'static str, model: CompiledModel, bare: Box<dyn Fn() -> BareCall>, input: Option<Tensor>) -> Self {
        Self { name, model, bare, input }
    }

    /// Returns a bare call with a separate engine state.
    pub fn bare(&self) -> BareCall {
        (self.bare)()
    }

    /// Returns a request whose input is at the position where the engine reads it, as for the bare call.
    pub fn request(&self) -> Result<InferRequest> {
        let request = self.model.create_infer_request()?;
        self.prepare(&request)?;
        Ok(request)
    }

    /// Writes the input to the position where the engine reads it.
    pub fn prepare(&self, request: &InferRequest) -> Result<()> {
        match &self.input {
            Some(input) => request.set_inputs(input.view::<f32>()?.view()),
            None => Ok(()),
        }
    }
}

/// All engines in one [`Core`], so that they use the same threads.
pub struct Engines {
    pub core: Core,
    /// A model that computes nothing.
    pub noop: Subject,
    /// A model that computes for about 100 microseconds.
    pub short: Subject,
    /// A model that computes for about a millisecond.
    pub millisecond: Subject,
    /// The models of the demo that exist on this machine.
    pub models: Vec<Subject>,
    /// Rounds of [`compute`] per millisecond.
    pub rounds_per_ms: u64,
}

impl Engines {
    /// `folders` may contain the demo's models. A quick run uses at most one model.
    pub fn new(folders: &[PathBuf], quick: bool) -> Result<Self> {
        let rounds_per_ms = rounds_per_ms();
        let mut core = Core::new();
        core.register(Arc::new(CpuDevice));
        let noop = computing(&mut core, "no-op model", 0)?;
        let short = computing(&mut core, "0.1 ms model", rounds_per_ms / 10)?;
        let millisecond = computing(&mut core, "1 ms model", rounds_per_ms)?;
        let mut found = Vec::new();
        let wanted = [
            ("gender", "gender-v1.onnx", [1, 3, 32, 32]),
            ("age", "age-v1.onnx", [1, 3, 64, 64]),
            ("ultraface", "ultraface_rfb_320_nhwc.onnx", [1, 240, 320, 3]),
        ];
        for (name, file, shape) in wanted.into_iter().take(if quick { 1 } else { usize::MAX }) {
            match folders.iter().map(|folder| folder.join(file)).find(|path| path.exists()) {
                Some(path) => found.push(embedded(&core, name, &path, shape)?),
                None => println!("{name}: skipped, `{file}` is not there; `make demo` fetches it, or set ROIFLOW_MODELS"),
            }
        }
        Ok(Self { core, noop, short, millisecond, models: found, rounds_per_ms })
    }

    /// Returns the number of threads that run models.
    pub fn n_threads(&self) -> Result<usize> {
        Ok(self.core.executors().cpu()?.n_threads())
    }
}

/// Returns a model with one input and one output, on a null device that executes `n_rounds` of arithmetic.
fn computing(core: &mut Core, name: &'static str, n_rounds: u64) -> Result<Subject> {
    let device = format!("NULL.{name}");
    let script = Script::computing(move |_io, _cancel| {
        compute(n_rounds);
        Ok(())
    });
    core.register(Arc::new(NullDevice::instance(&device, Arc::new(script))));
    let port = |name: &str, extent: usize| Port::new(name, ElementType::F32, [1, extent]);
    let info = ModelInfo { inputs: vec![port("in", 16)], outputs: vec![port("out", 4)], ..ModelInfo::default() };
    let model = core.compile_model(&Model::from_ports(info), &device, &Config::default())?;
    let bare = move || -> BareCall { Box::new(move || compute(n_rounds)) };
    Ok(Subject { name, model, bare: Box::new(bare), input: None })
}

/// Keeps one core busy with arithmetic, without accessing memory. The number of operations is fixed, so the processor time hardly varies.
#[inline(never)]
pub fn compute(n_rounds: u64) {
    let mut state = black_box(0x9E37_79B9_7F4A_7C15_u64);
    for _ in 0..n_rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

fn rounds_per_ms() -> u64 {
    const N_ROUNDS: u64 = 1_000_000;
    compute(N_ROUNDS);
    let fastest = (0..5).map(|_| {
        let begin = Instant::now();
        compute(N_ROUNDS);
        begin.elapsed()
    });
    let fastest = fastest.min().unwrap_or(Duration::from_millis(1));
    (N_ROUNDS as f64 * 1e6 / fastest.as_nanos().max(1) as f64) as u64
}

/// Returns a model of the demo: on device `CPU`, and through the engine's own interface with the same options.
fn embedded(core: &Core, name: &'static str, path: &Path, shape: [usize; 4]) -> Result<Subject> {
    let model = core.compile_model(&core.read_model(path)?, "CPU", &Config::default())?;
    let mut state = 1_u32;
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    let input = Tensor::from_slice(shape, &values)?;
    let plan =
        bare_plan(path, shape).unwrap_or_else(|error| panic!("device CPU runs {}, and its engine does not: {error:#}", path.display()));
    let bare = move || -> BareCall {
        let mut state = plan.spawn().expect("a plan that was compiled can be run");
        let input = tract_onnx::prelude::Tensor::from_shape(&shape, &values).expect("as many values as the shape has");
        let input = TValue::from_const(Arc::new(input));
        Box::new(move || {
            let outputs = state.run(tvec![input.clone()]);
            black_box(outputs.expect("the model runs on what its shape says"));
        })
    };
    Ok(Subject { name, model, bare: Box::new(bare), input: Some(input) })
}

fn bare_plan(path: &Path, shape: [usize; 4]) -> TractResult<Arc<TypedSimplePlan>> {
    let mut model = onnx().with_ignore_output_shapes(true).with_ignore_value_info(true).model_for_path(path)?;
    model.set_input_fact(0, InferenceFact::dt_shape(f32::datum_type(), shape))?;
    SimplePlan::new(model.into_optimized()?)
}
