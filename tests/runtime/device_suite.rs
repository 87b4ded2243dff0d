//! Behavior that every device must have, written once; a device joins with one line at the end. Doc comments name the OpenVINO
//! behavior test of which a test is the equivalent.

use std::sync::Arc;

use roiflow::devices::null::Script;
use roiflow::runtime::{CompiledModel, ErrorKind, FillInput, Port, Result};
use roiflow::tensor::{BytesMut, ElementType, Shape, Tensor};

use crate::request::{compile_ports, double, port, read, write};
use crate::support::{compile_on, in_time, row, tiny, values};

/// A device, and how it gets the three models of the suite.
struct UnderTest {
    name: &'static str,
    /// `a` [1, 4], `b` [1, 4] -> `sum` [1, 4], `difference` [1, 4].
    add: fn() -> CompiledModel,
    /// `x` [?, 4] -> `y` [?, 4] = 2 x.
    double: fn() -> CompiledModel,
    /// `x` [1, 4] -> `y` [1, 4] = x.
    identity: fn() -> CompiledModel,
}

/// A device that reads the tiny models.
macro_rules! engine {
    ($name:literal) => {
        UnderTest {
            name: $name,
            add: || compile_on($name, &tiny("add.onnx")),
            double: || compile_on($name, &tiny("double.onnx")),
            identity: || compile_on($name, &tiny("identity.onnx")),
        }
    };
}

const CPU: UnderTest = engine!("CPU");
const ORT_CPU: UnderTest = engine!("ORT.CPU");
const OPENVINO_CPU: UnderTest = engine!("OPENVINO.CPU");

const NULL: UnderTest = UnderTest {
    name: "NULL",
    add: || {
        let script = Script::computing(|io, _| {
            let (a, b) = (read(io.input(0)), read(io.input(1)));
            write(io, 0, &[1, 4], a.iter().zip(&b).map(|(a, b)| a + b).collect())?;
            write(io, 1, &[1, 4], a.iter().zip(&b).map(|(a, b)| a - b).collect())
        });
        let inputs = vec![port("a", &[1, 4]), port("b", &[1, 4])];
        compile_ports(Arc::new(script), inputs, vec![port("sum", &[1, 4]), port("difference", &[1, 4])])
    },
    double: || compile_ports(Arc::new(Script::computing(|io, _| double(io))), vec![port("x", &[0, 4])], vec![port("y", &[0, 4])]),
    identity: || {
        let script = Script::computing(|io, _| {
            let same = read(io.input(0));
            write(io, 0, &[1, 4], same)
        });
        compile_ports(Arc::new(script), vec![port("x", &[1, 4])], vec![port("y", &[1, 4])])
    },
};

/// `n` rows of four different numbers; `first` tells one batch from another.
fn batch(first: usize, n_rows: usize) -> Tensor {
    Tensor::from_slice([n_rows, 4], &numbers(first, n_rows)).unwrap()
}

fn numbers(first: usize, n_rows: usize) -> Vec<f32> {
    (0..4 * n_rows).map(|idx| (first + idx) as f32 + 0.5).collect()
}

fn doubled(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| 2.0 * value).collect()
}

/// CheckInputsOutputs, getInputsFromFunctionWithSeveralInputs.
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

/// Infer, AsyncInfer.
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

/// canInferWithSetInOutBlobs, SetOutputTensorPreAllocatedMemoryBeforeInfer.
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

/// secondCallGetInput/OutputAfterInferSync.
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

/// CheckInferIsNotChangeInput.
fn a_run_does_not_change_its_input(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    let input = batch(3, 2);
    for _ in 0..2 {
        request.infer(&input).unwrap();
        assert_eq!(values(&input), numbers(3, 2));
    }
}

/// canInferAfterIOBlobReallocation, InferStaticNetworkSetChangedInputTensorThrow, InferStaticNetworkSetChangedOutputTensorThrow.
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

/// Inference_ROI_Tensor: roi_nchw, roi_1d.
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

/// SetInputTensors_Can_Infer_Dynamic: a batch takes the number of its rows.
fn rows_of_a_batch_do_not_mix(device: &UnderTest) {
    let model = (device.double)();
    let together = values(&model.infer(batch(10, 5)).unwrap()[0]);
    assert_eq!(together, doubled(&numbers(10, 5)));
    for row_idx in 0..5 {
        let alone = batch(10, 5).roi(&[row_idx, 0], &[row_idx + 1, 4]).unwrap();
        assert_eq!(values(&model.infer(&alone).unwrap()[0]), together[4 * row_idx..][..4]);
    }
}

/// InferDynamicNetwork, …WithGetTensor2times, InferUpperBoundNetworkAfterIOTensorsReshaping.
fn batch_sizes_may_alternate(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    for (first, n_rows) in [1, 1, 4, 1, 2, 12, 3, 1].into_iter().enumerate() {
        request.infer(batch(first, n_rows)).unwrap();
        let output = request.output_tensor(()).unwrap();
        assert_eq!((&output.shape()[..], values(&output)), (&[n_rows, 4][..], doubled(&numbers(first, n_rows))));
    }
}

/// …WithoutSetShape, InferFullyDynamicNetworkWithGetTensor: an earlier handle sees the new shape.
fn an_open_input_grows_and_shrinks_with_set_shape(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    let (mut input, output) = (request.input_tensor(()).unwrap(), request.output_tensor(()).unwrap());
    assert_eq!((&input.shape()[..], &output.shape()[..]), (&[0, 4][..], &[0, 4][..]));
    for n_rows in [2, 5, 1, 3] {
        input.set_shape([n_rows, 4]).unwrap();
        input.view_mut::<f32>().unwrap().assign(&*batch(7, n_rows).view::<f32>().unwrap());
        request.infer(()).unwrap();
        assert_eq!((&output.shape()[..], values(&output)), (&[n_rows, 4][..], doubled(&numbers(7, n_rows))));
        assert!(request.input_tensor(()).unwrap().is_same(&input));
    }
}

/// …SetUnexpectedOutputTensorBeforeInfer, …SetOutputShapeBeforeInfer: the user's tensor gets the real shape, its memory stays.
fn an_open_output_of_another_size_is_reshaped(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    let large = Tensor::new(ElementType::F32, [8, 4]).unwrap();
    let before = large.address();
    request.set_output_tensor((), &large).unwrap();
    request.infer(batch(1, 3)).unwrap();
    assert_eq!((&large.shape()[..], large.address(), values(&large)), (&[3, 4][..], before, doubled(&numbers(1, 3))));
    let small = Tensor::new(ElementType::F32, [0, 4]).unwrap();
    request.set_output_tensor((), &small).unwrap();
    request.infer(batch(2, 3)).unwrap();
    assert_eq!(values(&small), doubled(&numbers(2, 3)));
}

/// Fills as many rows as it is told, counting up.
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

/// What a filler wrote into is the device's own memory; a part of it is another tensor.
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

/// StaticOutputToStaticInput, StaticOutputToDynamicInput, DynamicOutputToDynamicInput.
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

/// DynamicInputToDynamicOutput: the first request writes into the second one's input.
fn one_request_writes_into_the_input_of_the_next(device: &UnderTest) {
    let (first, second) = ((device.double)().create_infer_request().unwrap(), (device.double)().create_infer_request().unwrap());
    first.set_output_tensor((), &second.input_tensor(()).unwrap()).unwrap();
    for n_rows in [2, 1, 4] {
        first.infer(batch(n_rows, n_rows)).unwrap();
        second.infer(()).unwrap();
        assert_eq!(values(&second.output_tensor(()).unwrap()), doubled(&doubled(&numbers(n_rows, n_rows))));
    }
}

/// OVIterationChaining.Simple: the output is fed back ten times. Two tensors change places, as a run does not write what it
/// reads.
fn the_output_is_fed_back(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    let mut input = batch(0, 2);
    for _ in 0..10 {
        let output = Tensor::new(ElementType::F32, [2, 4]).unwrap();
        request.set_output_tensor((), &output).unwrap();
        request.infer(&input).unwrap();
        input = output;
    }
    assert_eq!(values(&input), numbers(0, 2).iter().map(|value| 1024.0 * value).collect::<Vec<_>>());
}

/// OVInferConsistencyTest.
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

/// canRun3AsyncRequestsParallelWithWait.
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

/// canCancelAsyncRequest, CanResetAfterCancelAsyncRequest.
fn a_canceled_request_runs_again(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    for round in 0..50 {
        request.start_async(batch(round, 3)).unwrap();
        request.cancel();
        assert!(matches!(request.wait().map_err(|error| error.kind()), Ok(()) | Err(ErrorKind::Canceled)));
        request.start_async(()).unwrap();
        request.wait().unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(round, 3)));
    }
}

/// canStartSeveralAsyncInsideCompletionCallbackWithSafeDtor.
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

/// canRun3AsyncRequestsConsistentlyFromThreadsWithoutWait, C13.
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

/// Writes the suite out for one device.
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
            rows_of_a_batch_do_not_mix,
            batch_sizes_may_alternate,
            an_open_input_grows_and_shrinks_with_set_shape,
            an_open_output_of_another_size_is_reshaped,
            part_of_a_filled_input_is_a_tensor_of_its_own,
            the_output_of_one_request_is_the_input_of_the_next,
            one_request_writes_into_the_input_of_the_next,
            the_output_is_fed_back,
            many_threads_infer_over_one_model,
            requests_run_beside_each_other,
            a_canceled_request_runs_again,
            the_callback_may_restart_the_request,
            requests_may_be_dropped_while_they_run,
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
joins!(NULL as null);
joins!(ORT_CPU as ort_cpu);
joins!(OPENVINO_CPU as openvino_cpu);

/// Without a script the null device writes zeros, also into the regions of somebody's tensor, and nowhere else.
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
