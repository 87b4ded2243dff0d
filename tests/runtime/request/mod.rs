//! Requests on the device NULL: lifetimes, tensors and errors, with one topic per file. Gates, channels and manual executors force the
//! order of events. Doc comments name the equivalent OpenVINO behavior test.

mod batching;
mod beside;
mod busy;
mod callback;
mod cancel;
mod cascade;
mod concurrent;
mod devices;
mod direct;
pub mod drop;
mod executors;
#[cfg(target_os = "linux")]
mod fork;
mod futures;
mod gathering;
mod inputs;
mod memory;
mod ordered;
mod overlap;
mod panic;
mod pools;
mod prepared;
mod queue;
mod random;
mod remote;
mod results;
mod shortcuts;
mod start_wait;
mod steps;
mod tensors;
mod waiters;

use std::sync::Arc;

use roiflow::devices::null::{Gate, NullDevice, Script};
use roiflow::runtime::executor::{Inline, Manual};
use roiflow::runtime::io::DeviceIo;
use roiflow::runtime::{CompiledModel, Config, Core, Dim, Error, ErrorKind, InferRequest, Model, ModelInfo, PartialShape, Port, Result};
use roiflow::tensor::{Bytes, ElementType};

/// Returns a port of type `f32`. An extent of 0 stands for a dynamic extent.
pub fn port(name: &str, dims: &[usize]) -> Port {
    let dims = dims.iter().map(|&extent| if extent == 0 { Dim::Dynamic } else { Dim::Fixed(extent) });
    Port::new(name, ElementType::F32, PartialShape::new(dims.collect()).unwrap())
}

/// Compiles a model made from ports, without a file, for a new device `NULL` that only this model uses.
pub fn compile_ports(script: Arc<Script>, inputs: Vec<Port>, outputs: Vec<Port>) -> CompiledModel {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(script)));
    let model = Model::from_ports(ModelInfo { inputs, outputs, ..ModelInfo::default() });
    core.compile_model(&model, "NULL", &Config::default()).unwrap()
}

/// Compiles a model `x` [1, 4] -> `y` [1, 4] with these options.
pub fn compile_with(script: Script, config: &Config) -> CompiledModel {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(Arc::new(script))));
    compile_on(&core, "NULL", config)
}

/// Compiles a model `x` [1, 4] -> `y` [1, 4] for a device of this core.
pub fn compile_on(core: &Core, device: &str, config: &Config) -> CompiledModel {
    let info = ModelInfo { inputs: vec![port("x", &[1, 4])], outputs: vec![port("y", &[1, 4])], ..ModelInfo::default() };
    core.compile_model(&Model::from_ports(info), device, config).unwrap()
}

/// Compiles a model `x` [1, 4] -> `y` [1, 4].
pub fn compile(script: Script) -> CompiledModel {
    compile_ports(Arc::new(script), vec![port("x", &[1, 4])], vec![port("y", &[1, 4])])
}

/// Returns a script that computes `y = 2 x` immediately.
pub fn doubling() -> Script {
    Script::computing(|io, _cancel| double(io))
}

/// Computes `y = 2 x` for any shape and strides.
pub fn double(io: &mut DeviceIo<'_>) -> Result<()> {
    let doubled = read(io.input(0)).into_iter().map(|value| 2.0 * value).collect();
    let shape = *io.input(0).layout().shape();
    write(io, 0, &shape, doubled)
}

/// Returns the values of an input with any strides.
pub fn read(bytes: &Bytes) -> Vec<f32> {
    let mut dense = vec![0; bytes.layout().dense_bytes()];
    bytes.copy_all_to_dense(&mut dense).unwrap();
    dense.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

/// Writes values into an output and gives it this shape.
pub fn write(io: &mut DeviceIo<'_>, output_idx: usize, shape: &[usize], values: Vec<f32>) -> Result<()> {
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    Ok(io.output(output_idx, shape)?.copy_all_from_dense(&bytes)?)
}

/// Returns a request whose runs compute `y = 2 x` on the thread that starts them. A run ends when the test runs a task of the returned
/// executor.
pub fn turned_by_hand() -> (InferRequest, Arc<Manual>) {
    let (manual, mut script) = (Arc::new(Manual::default()), doubling());
    by_hand(&mut script, &manual);
    (compile(script).create_infer_request().unwrap(), manual)
}

/// Runs the steps after the computation on this manual executor.
pub fn by_hand(script: &mut Script, manual: &Arc<Manual>) {
    script.executor = Some(Arc::new(Inline));
    script.more_steps.push(("wait", manual.clone()));
}

/// Returns a request whose runs wait on a worker at the returned gate before they compute `y = 2 x`.
pub fn gated() -> (InferRequest, Arc<Gate>) {
    let gate = Gate::closed();
    let request = compile(Script { gate: Some(gate.clone()), ..doubling() }).create_infer_request().unwrap();
    (request, gate)
}

/// Returns a script that always fails.
pub fn failing() -> Script {
    Script::computing(|_, _| Err(Error::new(ErrorKind::Device, "the device is on fire")))
}

/// Returns the kind of the error, or `None` if there is no error.
pub fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}
