//! Behavior that every device must have. Each test is written once and runs on all devices. The list at the end of this file adds each
//! device in one line. Doc comments name the equivalent OpenVINO behavior test.

mod batches;
mod blocking;
mod gathering;
mod growing;
mod limits;
mod nodes;
mod regions;
mod sources;
mod states;

use std::sync::{Arc, OnceLock};

use batches::*;
use blocking::*;
use gathering::*;
use growing::*;
use limits::*;
use nodes::*;
use regions::*;
use roiflow::devices;
use roiflow::devices::null::{NullDevice, Script};
use roiflow::devices::remote::RemoteDevice;
use roiflow::runtime::executor::Pool;
use roiflow::runtime::{CompiledModel, Config, Core, Dim, ErrorKind, FillInput, Model, ModelInfo, PartialShape, Port, Precision, Result};
use roiflow::tensor::{BytesMut, ElementType, Shape, Tensor};

use sources::*;
use states::*;

use crate::kserve::{Served, Server};
use crate::request::{compile_ports, doubling, kind, port, read, write};
use crate::support::{Scratch, compile_on, eventually, in_time, row, tiny, values};

/// A device, and functions that compile the models of the suite on it.
struct UnderTest {
    name: &'static str,
    /// `a` [1, 4], `b` [1, 4] -> `sum` [1, 4], `difference` [1, 4].
    add: fn() -> CompiledModel,
    /// `x` [?, 4] -> `y` [?, 4] = 2 x.
    double: fn() -> CompiledModel,
    /// `x` [1, 4] -> `y` [1, 4] = x.
    identity: fn() -> CompiledModel,
    /// A separate core, the name of the device, and the model `double` before compilation.
    source: fn() -> (Core, &'static str, Model),
    /// Compiles `identity` with these options. The model file has a fixed batch size of 1.
    identity_with: fn(&Config) -> Result<CompiledModel>,
    /// `x` [?, 4] -> `y` [?, 4], with these options. The model subtracts the mean of all batch items from each item.
    center_with: fn(&Config) -> Result<CompiledModel>,
    /// Same as `source`, for the model `x` [1, 4], `total_in` [1, 4] -> `y` = `total_out` = x + total_in.
    sum: fn() -> (Core, &'static str, Model),
}

impl UnderTest {
    /// Compiles the model `double` with these options.
    fn with(&self, config: &Config) -> CompiledModel {
        let (core, name, model) = (self.source)();
        core.compile_model(&model, name, config).unwrap()
    }

    /// Compiles the model `sum`. Its total is a variable, whose value each request keeps from run to run.
    fn summing(&self) -> CompiledModel {
        let (core, name, model) = (self.sum)();
        core.compile_model(&model.make_stateful([("total_in", "total_out")]).unwrap(), name, &Config::default()).unwrap()
    }

    /// Compiles the model `double` after a reshape to this input shape with these axes.
    fn reshaped(&self, shape: impl Into<PartialShape>, axes: &str) -> Result<CompiledModel> {
        let (core, name, model) = (self.source)();
        let model = model.reshape([("x", shape.into())])?.with_axes("x", axes.parse()?)?;
        core.compile_model(&model, name, &Config::default())
    }

    /// Compiles the model `double` three times: with an unbounded batch size, with a bounded batch size, and with both axes dynamic.
    fn open_models(&self) -> [CompiledModel; 3] {
        let bounded = self.reshaped([Dim::from(1..=12), 4.into()], "N?").unwrap();
        [(self.double)(), bounded, self.reshaped([Dim::Dynamic; 2], "N?").unwrap()]
    }
}

/// A device that compiles the ONNX files of the tiny models.
macro_rules! engine {
    ($name:literal) => {
        UnderTest {
            name: $name,
            add: || compile_on($name, &tiny("add.onnx")),
            double: || compile_on($name, &tiny("double.onnx")),
            identity: || compile_on($name, &tiny("identity.onnx")),
            source: || {
                let core = devices::core();
                let model = core.read_model(tiny("double.onnx")).unwrap();
                (core.clone(), $name, model)
            },
            identity_with: |config| tiny_with($name, "identity.onnx", config),
            center_with: |config| tiny_with($name, "center.onnx", config),
            sum: || {
                let core = devices::core();
                let model = core.read_model(tiny("sum.onnx")).unwrap();
                (core.clone(), $name, model)
            },
        }
    };
}

fn tiny_with(device: &str, name: &str, config: &Config) -> Result<CompiledModel> {
    let core = devices::core();
    core.compile_model(&core.read_model(tiny(name))?, device, config)
}

/// The device REMOTE with a server that computes the tiny models. `address` is the method of the server that returns an address.
macro_rules! remote {
    ($address:path) => {
        UnderTest {
            name: "REMOTE",
            add: || remote_with($address(servers(), "add"), &Config::default()).unwrap(),
            double: || remote_with($address(servers(), "double"), &Config::default()).unwrap(),
            identity: || remote_with($address(servers(), "identity"), &Config::default()).unwrap(),
            source: || remote_model($address(servers(), "double")),
            identity_with: |config| remote_with($address(servers(), "identity"), config),
            center_with: |config| remote_with($address(servers(), "center"), config),
            sum: || remote_model($address(servers(), "sum")),
        }
    };
}

/// Returns the server of this process.
fn servers() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let models = || ["add", "double", "identity", "center", "sum"].map(|name| Served::of_file(name, &tiny(&format!("{name}.onnx"))));
    SERVER.get_or_init(|| Server::start(models().into()))
}

fn remote_model(address: String) -> (Core, &'static str, Model) {
    let mut core = Core::new();
    core.register(Arc::new(RemoteDevice));
    let model = core.read_model(address).unwrap();
    (core, "REMOTE", model)
}

fn remote_with(address: String, config: &Config) -> Result<CompiledModel> {
    let (core, name, model) = remote_model(address);
    core.compile_model(&model, name, config)
}

const REMOTE: UnderTest = remote!(Server::grpc);
const REMOTE_HTTP: UnderTest = remote!(Server::http);
const CPU: UnderTest = engine!("CPU");
const ORT_CPU: UnderTest = engine!("ORT.CPU");
const OPENVINO_CPU: UnderTest = engine!("OPENVINO.CPU");
/// The runtime treats this device as an accelerator: the engine reports completion through a callback.
const OPENVINO_HETERO: UnderTest = engine!("OPENVINO.HETERO:CPU");

/// The device NULL. `run` changes each script before the device gets it.
macro_rules! null {
    ($run:path) => {
        UnderTest {
            name: "NULL",
            add: || {
                let script = Script::computing(|io, _| {
                    let (a, b) = (read(io.input(0)), read(io.input(1)));
                    write(io, 0, &[1, 4], a.iter().zip(&b).map(|(a, b)| a + b).collect())?;
                    write(io, 1, &[1, 4], a.iter().zip(&b).map(|(a, b)| a - b).collect())
                });
                let inputs = vec![port("a", &[1, 4]), port("b", &[1, 4])];
                compile_ports(Arc::new($run(script)), inputs, vec![port("sum", &[1, 4]), port("difference", &[1, 4])])
            },
            double: || compile_ports(Arc::new($run(doubling())), vec![port("x", &[0, 4])], vec![port("y", &[0, 4])]),
            identity: || {
                let script = Script::computing(|io, _| {
                    let same = read(io.input(0));
                    write(io, 0, &[1, 4], same)
                });
                compile_ports(Arc::new($run(script)), vec![port("x", &[1, 4])], vec![port("y", &[1, 4])])
            },
            source: || {
                let mut core = Core::new();
                core.register(Arc::new(NullDevice::new(Arc::new($run(doubling())))));
                let info = ModelInfo { inputs: vec![port("x", &[0, 4])], outputs: vec![port("y", &[0, 0])], ..ModelInfo::default() };
                (core, "NULL", Model::from_ports(info))
            },
            identity_with: |config| {
                let script = Script::computing(|io, _| {
                    let (shape, same) = (*io.input(0).layout().shape(), read(io.input(0)));
                    write(io, 0, &shape, same)
                });
                null_with($run(script), 1, config)
            },
            center_with: |config| null_with($run(Script { mixes_rows: true, ..doubling() }), 0, config),
            sum: || {
                let script = Script::computing(|io, _| {
                    let sum: Vec<f32> = read(io.input(0)).iter().zip(read(io.input(1))).map(|(x, total)| x + total).collect();
                    write(io, 0, &[1, 4], sum.clone())?;
                    write(io, 1, &[1, 4], sum)
                });
                let mut core = Core::new();
                core.register(Arc::new(NullDevice::new(Arc::new($run(script)))));
                let info = ModelInfo {
                    inputs: vec![port("x", &[1, 4]), port("total_in", &[1, 4])],
                    outputs: vec![port("y", &[1, 4]), port("total_out", &[1, 4])],
                    ..ModelInfo::default()
                };
                (core, "NULL", Model::from_ports(info))
            },
        }
    };
}

const NULL: UnderTest = null!(std::convert::identity);
/// The device NULL with an engine that computes on its own threads and reports completion, like an accelerator.
const NULL_ENGINE: UnderTest = null!(on_an_engine);

fn on_an_engine(script: Script) -> Script {
    Script { engine: Some(Arc::new(Pool::new("engine", 2).unwrap())), ..script }
}

/// Compiles a model `x` [n_rows, 4] -> `y` [n_rows, 4] for the device NULL. If `n_rows` is 0, the batch size is dynamic.
fn null_with(script: Script, n_rows: usize, config: &Config) -> Result<CompiledModel> {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(Arc::new(script))));
    let info = ModelInfo { inputs: vec![port("x", &[n_rows, 4])], outputs: vec![port("y", &[n_rows, 4])], ..ModelInfo::default() };
    core.compile_model(&Model::from_ports(info), "NULL", config)
}

/// Returns a batch with `n_rows` items of four different numbers. The numbers depend on `first`, so a test can distinguish two batches.
fn batch(first: usize, n_rows: usize) -> Tensor {
    Tensor::from_slice([n_rows, 4], &numbers(first, n_rows)).unwrap()
}

fn numbers(first: usize, n_rows: usize) -> Vec<f32> {
    (0..4 * n_rows).map(|idx| (first + idx) as f32 + 0.5).collect()
}

fn doubled(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| 2.0 * value).collect()
}

/// Equivalent OpenVINO tests: CheckInputsOutputs, Cancreate_infer_request, getInputsFromFunctionWithSeveralInputs,
/// getOutputsFromFunctionWithSeveralOutputs.
fn ports_are_those_of_the_model(device: &UnderTest) {
    let model = (device.add)();
    let names = |ports: &[Port]| ports.iter().map(|port| port.name().to_owned()).collect::<Vec<_>>();
    assert_eq!((names(model.inputs()), names(model.outputs())), (vec!["a".into(), "b".into()], vec!["sum".into(), "difference".into()]));
    let request = model.create_infer_request().unwrap();
    for port in model.inputs().iter().chain(model.outputs()) {
        assert_eq!((request.tensor(port).unwrap().element(), &request.tensor(port).unwrap().shape()[..]), (ElementType::F32, &[1, 4][..]));
        assert!(request.tensor(port.name()).unwrap().is_same(&request.tensor(port).unwrap()));
    }
    assert!(model.optimal_number_of_requests() >= 1);
}

/// Equivalent OpenVINO tests: canInferWithoutSetAndGetInOutSync, canInferWithoutSetAndGetInOutAsync,
/// CorrectOneAsyncInferWithGetInOutWithInfWait.
fn synchronous_and_asynchronous_runs_give_the_same(device: &UnderTest) {
    let model = (device.add)();
    let (a, b) = (row([1.0, 2.0, 3.0, 4.0]), row([0.5, 0.25, -3.0, 10.0]));
    let request = model.create_infer_request().unwrap();
    let answers = || (values(&request.tensor("sum").unwrap()), values(&request.tensor("difference").unwrap()));
    request.infer([("a", &a), ("b", &b)]).unwrap();
    assert_eq!(answers(), (vec![1.5, 2.25, 0.0, 14.0], vec![0.5, 1.75, 6.0, -6.0]));
    let first = answers();
    request.tensor("sum").unwrap().view_mut::<f32>().unwrap().fill(0.0);
    request.start_async(()).unwrap();
    request.wait().unwrap();
    assert_eq!(answers(), first);
    let direct = model.infer([("a", &a), ("b", &b)]).unwrap();
    assert_eq!((values(&direct[0]), values(&direct[1])), first);
}

/// Equivalent OpenVINO tests: canInferWithSetInOutBlobs, canSetAndGetOutput, getAfterSetOutputDoNotChangeOutput.
fn results_land_in_the_users_own_memory(device: &UnderTest) {
    let request = (device.add)().create_infer_request().unwrap();
    let (sum, difference) = (row([9.0; 4]), row([9.0; 4]));
    let before = sum.address();
    request.set_tensor("sum", &sum).unwrap();
    request.set_tensor("difference", &difference).unwrap();
    for value in [1.0, 2.0] {
        request.infer([("a", &row([value; 4])), ("b", &row([1.0; 4]))]).unwrap();
        assert_eq!((values(&sum), values(&difference)), (vec![value + 1.0; 4], vec![value - 1.0; 4]));
        assert_eq!(sum.address(), before);
        assert!(request.tensor("sum").unwrap().is_same(&sum));
    }
}

/// Equivalent OpenVINO tests: secondCallGetInputAfterInferSync, secondCallGetOutputAfterInferSync, secondCallGetInputDoNotReAllocateData,
/// secondCallGetOutputDoNotReAllocateData.
fn own_tensors_stay_where_they_are(device: &UnderTest) {
    let request = (device.identity)().create_infer_request().unwrap();
    let addresses = || (request.input_tensor(()).unwrap().address(), request.output_tensor(()).unwrap().address());
    let before = addresses();
    for value in 0..3 {
        request.input_tensor(()).unwrap().view_mut::<f32>().unwrap().fill(value as f32);
        request.infer(()).unwrap();
        request.start_async(()).unwrap();
        request.wait().unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [value as f32; 4]);
        assert_eq!(addresses(), before);
    }
}

/// Equivalent OpenVINO test: CheckInferIsNotChangeInput.
fn a_run_does_not_change_its_input(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    let input = batch(3, 2);
    for _ in 0..2 {
        request.infer(&input).unwrap();
        assert_eq!(values(&input), numbers(3, 2));
    }
}

/// Equivalent OpenVINO tests: canInferAfterIOBlobReallocation, InferStaticNetworkSetChangedInputTensorThrow,
/// InferStaticNetworkSetChangedOutputTensorThrow.
fn a_fixed_tensor_that_is_reshaped_away_and_back_works(device: &UnderTest) {
    for port in ["x", "y"] {
        let request = (device.identity)().create_infer_request().unwrap();
        let mut tensor = request.tensor(port).unwrap();
        for away in [&[4, 4][..], &[1, 2], &[4]] {
            tensor.set_shape(away).unwrap();
            assert_eq!(request.infer(()).unwrap_err().kind(), ErrorKind::Tensor, "{port} {away:?}");
        }
        tensor.set_shape([1, 4]).unwrap();
        request.input_tensor(()).unwrap().view_mut::<f32>().unwrap().assign(&*row([1.0, 2.0, 3.0, 4.0]).view::<f32>().unwrap());
        request.infer(()).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [1.0, 2.0, 3.0, 4.0], "{port}");
    }
}

/// Equivalent OpenVINO test: Inference_ROI_Tensor. Engines must not read the gaps between the rows of a region. The tests for roi_nchw and
/// roi_1d are in `request::cascade`.
fn a_strided_region_as_input_gives_exact_numbers(device: &UnderTest) {
    let big = Tensor::from_slice([5, 7], &(0..35).map(|value| value as f32).collect::<Vec<_>>()).unwrap();
    let request = (device.double)().create_infer_request().unwrap();
    request.infer(big.roi(&[1, 2], &[4, 6]).unwrap()).unwrap();
    let expected = [9, 10, 11, 12, 16, 17, 18, 19, 23, 24, 25, 26].map(|value| 2.0 * value as f32);
    assert_eq!(values(&request.output_tensor(()).unwrap()), expected);
    let one = big.roi(&[4, 3], &[5, 7]).unwrap();
    request.infer(&one).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [62.0, 64.0, 66.0, 68.0]);
    let fixed = (device.identity)().create_infer_request().unwrap();
    fixed.infer(&one).unwrap();
    assert_eq!(values(&fixed.output_tensor(()).unwrap()), [31.0, 32.0, 33.0, 34.0]);
}

fn a_strided_region_as_output_leaves_its_neighbors_alone(device: &UnderTest) {
    for n_rows in [1, 3] {
        let big = Tensor::from_slice([5, 7], &[-1.0_f32; 35]).unwrap();
        let window = big.roi(&[1, 2], &[1 + n_rows, 6]).unwrap();
        let request = (device.double)().create_infer_request().unwrap();
        request.set_output_tensor((), &window).unwrap();
        request.infer(batch(0, n_rows)).unwrap();
        assert_eq!(values(&window), doubled(&numbers(0, n_rows)));
        let untouched = values(&big).iter().filter(|value| **value == -1.0).count();
        assert_eq!(untouched, 35 - 4 * n_rows);
    }
}

/// The output of each batch item must not depend on the other items.
fn rows_of_a_batch_do_not_mix(device: &UnderTest) {
    let model = (device.double)();
    let together = values(&model.infer(batch(10, 5)).unwrap()[0]);
    assert_eq!(together, doubled(&numbers(10, 5)));
    for row_idx in 0..5 {
        let alone = batch(10, 5).roi(&[row_idx, 0], &[row_idx + 1, 4]).unwrap();
        assert_eq!(values(&model.infer(&alone).unwrap()[0]), together[4 * row_idx..][..4]);
    }
}

/// Equivalent OpenVINO test: InferDynamicNetwork. A request runs the same shape twice, then a larger shape within the bounds, then smaller
/// and larger shapes alternately.
fn batch_sizes_may_alternate(device: &UnderTest) {
    for model in device.open_models() {
        let request = model.create_infer_request().unwrap();
        for (first, n_rows) in [1, 1, 4, 1, 2, 12, 3, 1].into_iter().enumerate() {
            request.infer(batch(first, n_rows)).unwrap();
            let output = request.output_tensor(()).unwrap();
            assert_eq!((&output.shape()[..], values(&output)), (&[n_rows, 4][..], doubled(&numbers(first, n_rows))));
        }
    }
}

/// Equivalent OpenVINO tests: InferDynamicNetworkWithoutSetShape, InferDynamicNetworkBoundWithoutSetShape. An input tensor exists before
/// its shape is known. A run with this empty tensor fails if the port has a lower bound.
fn the_tensor_of_an_open_input_is_there_before_its_shape(device: &UnderTest) {
    for model in device.open_models() {
        let request = model.create_infer_request().unwrap();
        let input = request.input_tensor(()).unwrap();
        assert_eq!((input.element(), input.shape().n_elements()), (ElementType::F32, Some(0)));
        assert_eq!(request.output_tensor(()).unwrap().element(), ElementType::F32);
    }
    let bounded = device.reshaped([Dim::from(1..=12), 4.into()], "N?").unwrap().create_infer_request().unwrap();
    let error = bounded.infer(()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tensor);
    assert!(error.to_string().contains("expected [1..12, 4] f32, got [0, 4] f32"), "{error}");
}

/// Equivalent OpenVINO tests: InferDynamicNetworkWithGetTensor, InferUpperBoundNetworkWithGetTensor, InferFullyDynamicNetworkWithGetTensor,
/// InferDynamicNetworkWithGetTensor2times, InferUpperBoundNetworkAfterIOTensorsReshaping. Before the run, the output has its type and no
/// elements. After the run, it has the results, also through an older handle.
fn an_open_input_grows_and_shrinks_with_set_shape(device: &UnderTest) {
    for model in device.open_models() {
        let request = model.create_infer_request().unwrap();
        let (mut input, output) = (request.input_tensor(()).unwrap(), request.output_tensor(()).unwrap());
        assert_eq!((output.element(), output.shape().n_elements()), (ElementType::F32, Some(0)));
        for n_rows in [1, 4, 1, 2, 5, 1, 3] {
            input.set_shape([n_rows, 4]).unwrap();
            input.view_mut::<f32>().unwrap().assign(&*batch(7, n_rows).view::<f32>().unwrap());
            request.infer(()).unwrap();
            assert_eq!((&output.shape()[..], values(&output)), (&[n_rows, 4][..], doubled(&numbers(7, n_rows))));
            assert!(request.input_tensor(()).unwrap().is_same(&input));
        }
    }
}

/// Equivalent OpenVINO test: InferDynamicNetworkGetSameTensor2times. A shape that was set remains for later runs.
fn a_shape_that_was_set_stays_for_the_next_runs(device: &UnderTest) {
    for model in device.open_models() {
        let request = model.create_infer_request().unwrap();
        request.input_tensor(()).unwrap().set_shape([3, 4]).unwrap();
        for first in 0..2 {
            let input = request.input_tensor(()).unwrap();
            assert_eq!(input.shape()[..], [3, 4]);
            input.view_mut::<f32>().unwrap().assign(&*batch(first, 3).view::<f32>().unwrap());
            request.start_async(()).unwrap();
            request.wait().unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(first, 3)));
        }
    }
}

/// Equivalent OpenVINO tests: InferDynamicNetworkWithSetTensor, InferFullyDynamicNetworkWithSetTensor,
/// InferDynamicNetworkWithSetTensor2times.
fn an_open_input_takes_the_shape_of_the_users_tensor(device: &UnderTest) {
    for model in device.open_models() {
        let request = model.create_infer_request().unwrap();
        for n_rows in [4, 1, 6] {
            let input = batch(n_rows, n_rows);
            request.set_tensor("x", &input).unwrap();
            assert!(request.tensor("x").unwrap().is_same(&input));
            request.start_async(()).unwrap();
            request.wait().unwrap();
            let output = request.output_tensor(()).unwrap();
            assert_eq!((&output.shape()[..], values(&output)), (&[n_rows, 4][..], doubled(&numbers(n_rows, n_rows))));
        }
    }
}

/// Equivalent OpenVINO tests: InferOutOfRangeShapeNetworkWithGetTensorLower, InferOutOfRangeShapeNetworkWithGetTensorUpper. The error has
/// the expected and the actual shape, and the request stays usable.
fn an_extent_out_of_its_bounds_is_an_error(device: &UnderTest) {
    let request = device.reshaped([Dim::from(2..=5), 4.into()], "N?").unwrap().create_infer_request().unwrap();
    let mut input = request.input_tensor(()).unwrap();
    for n_rows in [1, 6] {
        input.set_shape([n_rows, 4]).unwrap();
        let errors = [request.infer(()), request.start_async(()), request.set_input_tensor((), &batch(0, n_rows))];
        for error in errors.map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::Tensor);
            assert!(error.to_string().contains(&format!("expected [2..5, 4] f32, got [{n_rows}, 4] f32")), "{error}");
        }
    }
    for n_rows in [2, 5] {
        request.infer(batch(1, n_rows)).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(1, n_rows)));
    }
}

/// Equivalent OpenVINO tests: InferDynamicNetworkSetUnexpectedOutputTensorBeforeInfer, InferDynamicNetworkSetOutputShapeBeforeInfer. The
/// user's output tensor gets the actual shape, also if it was empty before.
fn an_open_output_of_another_size_is_reshaped(device: &UnderTest) {
    for model in device.open_models() {
        let request = model.create_infer_request().unwrap();
        for wrong in [[8, 4], [0, 4], [1, 4], [3, 4]] {
            let output = Tensor::new(ElementType::F32, wrong).unwrap();
            request.set_output_tensor((), &output).unwrap();
            request.infer(batch(2, 3)).unwrap();
            assert_eq!((&output.shape()[..], values(&output)), (&[3, 4][..], doubled(&numbers(2, 3))), "{wrong:?}");
            assert!(request.output_tensor(()).unwrap().is_same(&output));
        }
        let mut own = request.output_tensor(()).unwrap();
        own.set_shape([7, 4]).unwrap();
        request.infer(batch(1, 2)).unwrap();
        assert_eq!((&own.shape()[..], values(&own)), (&[2, 4][..], doubled(&numbers(1, 2))));
    }
}

/// Equivalent OpenVINO tests: InferDynamicNetworkSetOutputTensorPreAllocatedMemoryBeforeInfer,
/// InferDynamicNetworkGetOutputThenSetOutputTensorPreAllocatedMemoryBeforeInfer. The result is written to the user's memory.
fn an_open_output_that_is_large_enough_keeps_its_memory(device: &UnderTest) {
    for asked_before in [false, true] {
        for model in device.open_models() {
            let request = model.create_infer_request().unwrap();
            if asked_before {
                assert_eq!(request.output_tensor(()).unwrap().shape().n_elements(), Some(0));
            }
            let large = Tensor::new(ElementType::F32, [8, 4]).unwrap();
            let before = large.address();
            request.set_output_tensor((), &large).unwrap();
            for n_rows in [3, 8, 1] {
                request.infer(batch(1, n_rows)).unwrap();
                let after = (&large.shape()[..], large.address(), values(&large));
                assert_eq!(after, (&[n_rows, 4][..], before, doubled(&numbers(1, n_rows))));
            }
        }
    }
}

/// Equivalent OpenVINO test: InferDynamicNetworkWithLocalCore. The request is created after the core was dropped.
fn requests_are_made_and_run_without_the_core(device: &UnderTest) {
    let model = device.reshaped([Dim::Dynamic, 4.into()], "N?").unwrap();
    let request = model.create_infer_request().unwrap();
    drop(model);
    request.infer(batch(3, 2)).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(3, 2)));
}

/// Equivalent OpenVINO test: SetInputTensors_Cache_CheckDeepCopy. Later changes to the model do not affect its requests.
fn a_model_that_is_changed_later_does_not_change_its_requests(device: &UnderTest) {
    let (core, name, model) = (device.source)();
    let request = core.compile_model(&model, name, &Config::default()).unwrap().create_infer_request().unwrap();
    let other = model.reshape([("x", PartialShape::from([2, 4]))]).unwrap().with_axes("x", "CH".parse().unwrap()).unwrap();
    assert_eq!(model.info().inputs[0].shape.to_string(), "[?, 4]");
    drop((model, other));
    request.set_tensors("x", &[batch(0, 1), batch(4, 1), batch(8, 1)]).unwrap();
    request.infer(()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(0, 3)));
}

/// Compiles models after `reshape` to fixed and bounded extents. A wrong number of axes, or an unknown name, is an error.
fn a_model_is_compiled_for_the_shapes_that_the_caller_says(device: &UnderTest) {
    let fixed = device.reshaped([3, 4], "N?").unwrap();
    assert_eq!(fixed.inputs()[0].shape.to_string(), "[3, 4]");
    let request = fixed.create_infer_request().unwrap();
    assert_eq!(request.input_tensor(()).unwrap().shape()[..], [3, 4]);
    assert_eq!(kind(request.infer(batch(0, 2))), Some(ErrorKind::Tensor));
    request.infer(batch(0, 3)).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(0, 3)));
    // The file fixes the second extent to 4.
    for (shape, n_columns) in [([Dim::Dynamic, 6.into()], 6), ([1.into(), Dim::from(5..=7)], 5), ([1.into(), 3.into()], 3)] {
        let other = device.reshaped(shape, "N?").unwrap();
        let input = Tensor::from_slice([1, n_columns], &vec![1.5_f32; n_columns]).unwrap();
        let output = other.infer(&input).unwrap().into_tensors().remove(0);
        assert_eq!((&output.shape()[..], values(&output)), (&[1, n_columns][..], vec![3.0; n_columns]));
    }
    for (shape, key, expected) in
        [(vec![4], "x", ErrorKind::Tensor), (vec![1, 4, 1], "x", ErrorKind::Tensor), (vec![1, 4], "y", ErrorKind::NotFound)]
    {
        let (_, _, model) = (device.source)();
        let shape = PartialShape::new(shape.into_iter().map(Dim::Fixed).collect()).unwrap();
        assert_eq!(kind(model.reshape([(key, shape)])), Some(expected));
    }
    let (_, _, model) = (device.source)();
    assert_eq!(kind(model.with_axes("x", "NCHW".parse().unwrap())), Some(ErrorKind::Tensor));
    assert_eq!(kind(model.with_axes("y", "N?".parse().unwrap())), Some(ErrorKind::NotFound));
}

/// A filler for an input with this number of batch items. The filler writes consecutive numbers.
struct Rows(usize);

impl FillInput for Rows {
    fn shape(&mut self, _port: &Port) -> Result<Shape> {
        Ok(Shape::from([self.0, 4]))
    }

    fn fill(&mut self, input: &mut BytesMut) -> Result<()> {
        input.dense_mut::<f32>()?.copy_from_slice(&numbers(0, self.0));
        Ok(())
    }
}

/// A filler writes the input in memory of the device. Then the test sets a region of that memory as the input tensor.
fn part_of_a_filled_input_is_a_tensor_of_its_own(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    request.set_input((), Rows(3)).unwrap();
    request.infer(()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(0, 3)));
    let mut input = request.input_tensor(()).unwrap();
    let first = input.roi(&[0, 0], &[1, 4]).unwrap();
    request.infer(&first).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(0, 1)));
    for n_rows in [2, 1] {
        input.set_shape([n_rows, 4]).unwrap();
        request.infer(&input).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(0, n_rows)));
    }
    request.set_input((), Rows(2)).unwrap();
    request.infer(()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(0, 2)));
}

/// Equivalent OpenVINO tests: StaticOutputToStaticInput, StaticOutputToDynamicInput, DynamicOutputToDynamicInput.
fn the_output_of_one_request_is_the_input_of_the_next(device: &UnderTest) {
    let (fixed, open, next) = ((device.identity)(), (device.double)(), (device.double)());
    let requests = [fixed, open, next].map(|model| model.create_infer_request().unwrap());
    let [first, second, third] = &requests;
    first.infer(row([1.0, 2.0, 3.0, 4.0])).unwrap();
    second.infer(first.output_tensor(()).unwrap()).unwrap();
    third.start_async(second.output_tensor(()).unwrap()).unwrap();
    third.wait().unwrap();
    assert_eq!(values(&third.output_tensor(()).unwrap()), [4.0, 8.0, 12.0, 16.0]);
}

/// Equivalent OpenVINO test: DynamicInputToDynamicOutput. The first request writes to the second request's input.
fn one_request_writes_into_the_input_of_the_next(device: &UnderTest) {
    let (first, second) = ((device.double)().create_infer_request().unwrap(), (device.double)().create_infer_request().unwrap());
    first.set_output_tensor((), &second.input_tensor(()).unwrap()).unwrap();
    for n_rows in [2, 1, 4] {
        first.infer(batch(n_rows, n_rows)).unwrap();
        second.infer(()).unwrap();
        assert_eq!(values(&second.output_tensor(()).unwrap()), doubled(&doubled(&numbers(n_rows, n_rows))));
    }
}

/// The output of each run is the input of the next run, ten times: once with output tensors of the user and once with the request's own
/// tensors. A run never writes to a tensor that it reads. The tests in `request::cascade` cover tensors that grow.
fn the_output_is_fed_back(device: &UnderTest) {
    for is_own in [false, true] {
        let request = (device.double)().create_infer_request().unwrap();
        let mut input = batch(0, 2);
        for _ in 0..10 {
            if !is_own {
                request.set_output_tensor((), &Tensor::new(ElementType::F32, [2, 4]).unwrap()).unwrap();
            }
            request.infer(&input).unwrap();
            input = request.output_tensor(()).unwrap();
        }
        assert_eq!(values(&input), numbers(0, 2).iter().map(|value| 1024.0 * value).collect::<Vec<_>>());
    }
}

/// Equivalent OpenVINO tests: OVInferConsistencyTest.Infer, canRun3SyncRequestsConsistentlyFromThreads.
fn many_threads_infer_over_one_model(device: &UnderTest) {
    let model = (device.double)();
    std::thread::scope(|scope| {
        for thread_idx in 0..4 {
            let model = &model;
            scope.spawn(move || {
                for round in 0..50 {
                    let (first, n_rows) = (1000 * thread_idx + round, 1 + round % 3);
                    assert_eq!(values(&model.infer(batch(first, n_rows)).unwrap()[0]), doubled(&numbers(first, n_rows)));
                }
            });
        }
    });
}

/// Equivalent OpenVINO tests: OVInferConsistencyTest.AsyncInfer, canRun3AsyncRequestsParallelWithWait.
fn requests_run_beside_each_other(device: &UnderTest) {
    let model = (device.double)();
    let requests: Vec<_> = (0..8).map(|_| model.create_infer_request().unwrap()).collect();
    for round in 0..10 {
        for (request_idx, request) in requests.iter().enumerate() {
            request.start_async(batch(100 * round + request_idx, 2)).unwrap();
        }
        for (request_idx, request) in requests.iter().enumerate().rev() {
            request.wait().unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(100 * round + request_idx, 2)));
        }
    }
}

/// Equivalent OpenVINO tests: canCancelAsyncRequest, CanResetAfterCancelAsyncRequest. With the second configuration, the model computes on
/// the thread that starts the run, so the run ends when the engine call returns.
fn a_canceled_request_runs_again(device: &UnderTest) {
    let of_one = Config { n_requests: Some(1), n_threads: Some(1), ..Config::default() };
    for config in [Config::default(), of_one] {
        let request = device.with(&config).create_infer_request().unwrap();
        for round in 0..50 {
            request.start_async(batch(round, 3)).unwrap();
            request.cancel();
            assert!(matches!(request.wait().map_err(|error| error.kind()), Ok(()) | Err(ErrorKind::Canceled)));
            request.start_async(()).unwrap();
            request.wait().unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(round, 3)));
        }
    }
}

/// Only options that were set may be reported as ignored. Each report contains the name in `Config` and a reason.
fn options_that_change_nothing_are_told(device: &UnderTest) {
    assert_eq!(device.with(&Config::default()).properties().ignored, []);
    let scratch = Scratch::new(&format!("ignored-{}", device.name));
    let (precision, cache_folder) = (Precision::Bf16, Some(scratch.path().to_owned()));
    let model = device.with(&Config { precision, cache_folder, n_threads: Some(2), ..Config::default() });
    for ignored in model.properties().ignored {
        assert!(["precision", "cache_folder", "n_threads"].contains(&ignored.option) && !ignored.why.is_empty(), "{ignored:?}");
    }
    assert_eq!(values(&model.infer(batch(0, 2)).unwrap()[0]), doubled(&numbers(0, 2)));
}

/// Equivalent OpenVINO test: canStartSeveralAsyncInsideCompletionCallbackWithSafeDtor.
fn the_callback_may_restart_the_request(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    request
        .set_callback(move |request, result| {
            let output = result.and_then(|()| request.output_tensor(())).map(|output| values(&output)).unwrap();
            sender.send(output[0]).unwrap();
            if output[0] < 1024.0 {
                request.start_async(Tensor::from_slice([1, 4], &output).unwrap()).unwrap();
            }
        })
        .unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    let answers: Vec<f32> = in_time(move || (0..10).map(|_| receiver.recv().unwrap()).collect());
    assert_eq!(answers, (1..=10).map(|power| 2_f32.powi(power)).collect::<Vec<_>>());
}

/// Equivalent OpenVINO test: canRun3AsyncRequestsConsistentlyFromThreadsWithoutWait.
fn requests_may_be_dropped_while_they_run(device: &UnderTest) {
    let model = (device.double)();
    let input = batch(0, 8);
    in_time(move || {
        for _ in 0..50 {
            let request = model.create_infer_request().unwrap();
            request.start_async(&input).unwrap();
            let output = model.create_infer_request().unwrap().output_tensor(()).unwrap();
            drop(request);
            assert_eq!(values(&output), [0.0_f32; 0]);
        }
        drop(model);
        input.view_mut::<f32>().unwrap().fill(0.0);
    });
}

/// Generates the tests of the suite for one device.
macro_rules! joins {
    ($device:ident as $module:ident) => {
        joins!(@ $device $module [
            ports_are_those_of_the_model,
            synchronous_and_asynchronous_runs_give_the_same,
            results_land_in_the_users_own_memory,
            own_tensors_stay_where_they_are,
            a_run_does_not_change_its_input,
            a_fixed_tensor_that_is_reshaped_away_and_back_works,
            a_strided_region_as_input_gives_exact_numbers,
            a_strided_region_as_output_leaves_its_neighbors_alone,
            outputs_in_disjoint_regions_are_written_at_the_same_time,
            a_run_reads_one_region_and_writes_another_of_the_tensor,
            two_outputs_of_a_request_are_regions_of_one_tensor,
            an_empty_output_leases_its_memory_once_it_has_elements,
            rows_of_a_batch_do_not_mix,
            batch_sizes_may_alternate,
            the_tensor_of_an_open_input_is_there_before_its_shape,
            an_open_input_grows_and_shrinks_with_set_shape,
            a_shape_that_was_set_stays_for_the_next_runs,
            an_open_input_takes_the_shape_of_the_users_tensor,
            an_extent_out_of_its_bounds_is_an_error,
            an_open_output_of_another_size_is_reshaped,
            an_open_output_that_is_large_enough_keeps_its_memory,
            requests_are_made_and_run_without_the_core,
            slices_of_a_batch_are_gathered_when_a_run_begins,
            an_open_batch_is_the_number_of_slices,
            a_batch_of_one_is_a_tensor,
            a_tensor_takes_the_place_of_a_batch,
            slices_that_make_no_batch_are_refused,
            a_slice_that_changes_its_shape_fails_the_start,
            a_batch_for_an_unknown_port_is_refused,
            a_batch_is_set_by_any_key,
            a_model_that_is_changed_later_does_not_change_its_requests,
            a_model_is_compiled_for_the_shapes_that_the_caller_says,
            part_of_a_filled_input_is_a_tensor_of_its_own,
            the_output_of_one_request_is_the_input_of_the_next,
            one_request_writes_into_the_input_of_the_next,
            the_output_is_fed_back,
            many_threads_infer_over_one_model,
            requests_run_beside_each_other,
            a_canceled_request_runs_again,
            the_callback_may_restart_the_request,
            requests_may_be_dropped_while_they_run,
            gathered_runs_get_each_its_own_row,
            a_batch_that_is_not_full_goes_when_its_time_is_over,
            a_model_of_one_row_is_gathered,
            a_model_that_mixes_its_rows_is_not_gathered,
            a_gathered_run_that_is_canceled_or_dropped_leaves_the_others_alone,
            a_canceled_run_of_a_batch_can_start_again_at_once,
            a_variable_has_a_name_and_its_ports_are_no_ports_of_the_model,
            a_model_without_variables_has_an_empty_list,
            what_a_run_leaves_is_what_the_next_one_reads,
            a_state_that_is_set_is_read_back_and_used,
            a_state_that_is_reset_is_zeros_again,
            requests_never_see_each_others_state_under_load,
            a_run_that_fails_leaves_the_state_as_it_was,
            direct_inference_keeps_no_state,
            a_future_that_is_dropped_leaves_no_state_and_no_input,
            profiling_that_is_polled_keeps_no_run_from_its_start,
            nodes_are_told_after_synchronous_and_asynchronous_runs,
            before_the_first_run_no_node_is_told_to_have_run,
            the_nodes_are_those_of_the_requests_own_run,
            options_that_change_nothing_are_told,
            profiling_that_was_not_enabled_is_an_error,
            profiling_changes_no_result,
            a_growing_cascade_of_two_threads_is_never_torn,
            a_reader_of_a_growing_output_fails_no_started_run,
            a_growing_output_that_is_read_gets_fresh_memory,
            a_batch_of_zero_rows_is_computed,
            a_request_for_which_there_is_no_memory_is_refused,
            a_run_whose_step_is_queued_ends_with_its_cancel,
            a_cancel_from_another_thread_leaves_the_request_usable,
            a_model_of_bytes_computes_what_its_file_does,
            bytes_that_are_no_model_are_an_error,
            callbacks_may_wait_for_other_requests,
            steps_may_wait_for_other_requests,
            a_wait_in_a_callback_delays_no_other_run,
            a_queue_may_feed_a_second_queue_and_wait,
            results_in_order_may_be_read_in_a_callback,
            waits_that_the_runtime_does_not_see_may_be_reported,
            callbacks_that_wait_for_each_other_get_an_error,
            queues_that_wait_for_each_other_get_an_error,
            a_run_without_a_callback_needs_no_callback_thread,
            models_with_waiting_runs_take_turns,
            steps_and_callbacks_run_on_the_callers_executors,
            two_executors_for_one_purpose_are_refused,
        ]);
    };
    (@ $device:ident $module:ident [$($behavior:ident),* $(,)?]) => {
        mod $module {
            use crate::support::is_here;

            $(#[test]
            fn $behavior() {
                if is_here(super::$device.name) {
                    super::$behavior(&super::$device);
                }
            })*
        }
    };
}

joins!(CPU as cpu);
joins!(REMOTE as remote);
joins!(REMOTE_HTTP as remote_http);
joins!(NULL as null);
joins!(NULL_ENGINE as null_engine);
joins!(ORT_CPU as ort_cpu);
joins!(OPENVINO_CPU as openvino_cpu);
joins!(OPENVINO_HETERO as openvino_hetero);

/// Without a script, the device NULL writes zeros to the outputs and to no other memory. An output may be a region of a tensor of the
/// caller.
#[test]
fn the_zeros_of_the_null_device_stay_inside_the_output() {
    let big = Tensor::from_slice([3, 6], &[-1.0_f32; 18]).unwrap();
    let model = compile_ports(Arc::default(), vec![port("x", &[2, 4])], vec![port("y", &[2, 4])]);
    let request = model.create_infer_request().unwrap();
    request.set_output_tensor((), &big.roi(&[1, 1], &[3, 5]).unwrap()).unwrap();
    request.infer(()).unwrap();
    let expected = [[-1.0; 6], [-1.0, 0.0, 0.0, 0.0, 0.0, -1.0], [-1.0, 0.0, 0.0, 0.0, 0.0, -1.0]];
    assert_eq!(values(&big), expected.as_flattened());
}
