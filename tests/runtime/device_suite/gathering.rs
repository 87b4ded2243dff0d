//! Tests of batching, on every device: the runs of several requests are combined into one engine call.

use std::sync::Arc;
use std::time::Duration;

use roiflow::devices;
use roiflow::devices::auto::AutoDevice;
use roiflow::runtime::{CompiledModel, Config, Core, ErrorKind};

use super::{UnderTest, batch, doubled, numbers};
use crate::request::kind;
use crate::support::{in_time, tiny, values};

/// Only the server knows whether a model on it mixes its batch items, so the option says it.
fn batches(device: &UnderTest, batch_size: usize, batch_timeout: Duration) -> Config {
    Config { batch_size, batch_timeout, batch_independent: device.name == "REMOTE", ..Config::default() }
}

fn double_in_batches(device: &UnderTest, batch_size: usize, batch_timeout: Duration) -> CompiledModel {
    let (core, name, model) = (device.source)();
    core.compile_model(&model, name, &batches(device, batch_size, batch_timeout)).unwrap()
}

const HOURS: Duration = Duration::from_secs(100 * 3600);

/// Starts twice as many runs as fit into one batch. The tests in `request::batching` check the number of calls with the device NULL.
pub fn gathered_runs_get_each_its_own_row(device: &UnderTest) {
    let model = double_in_batches(device, 4, HOURS);
    assert_eq!(model.inputs()[0].shape.to_string(), "[?, 4]");
    let requests: Vec<_> = (0..8).map(|_| model.create_infer_request().unwrap()).collect();
    let addresses = || requests.iter().map(|request| request.output_tensor(()).unwrap().address()).collect::<Vec<_>>();
    let mut before = None;
    for round in 0..10 {
        for (idx, request) in requests.iter().enumerate() {
            request.start_async(batch(100 * round + 4 * idx, 1)).unwrap();
        }
        for (idx, request) in requests.iter().enumerate() {
            let running = request.clone();
            in_time(move || running.wait()).unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(100 * round + 4 * idx, 1)), "request {idx}");
        }
        assert_eq!(*before.get_or_insert_with(addresses), addresses(), "the addresses of the results changed");
    }
    // Two kinds of runs are not batched: a synchronous run, and a run whose input has several batch items.
    requests[0].infer(batch(7, 1)).unwrap();
    assert_eq!(values(&requests[0].output_tensor(()).unwrap()), doubled(&numbers(7, 1)));
    requests[1].start_async(batch(9, 3)).unwrap();
    requests[1].wait().unwrap();
    assert_eq!(values(&requests[1].output_tensor(()).unwrap()), doubled(&numbers(9, 3)));
}

/// The batch never becomes full, so the runs start when the batch timeout expires.
pub fn a_batch_that_is_not_full_goes_when_its_time_is_over(device: &UnderTest) {
    let model = double_in_batches(device, 8, Duration::from_millis(1));
    let requests: Vec<_> = (0..4).map(|_| model.create_infer_request().unwrap()).collect();
    for n_runs in [1, 2, 3, 1] {
        for (idx, request) in requests[..n_runs].iter().enumerate() {
            request.start_async(batch(4 * idx, 1)).unwrap();
        }
        for (idx, request) in requests[..n_runs].iter().enumerate() {
            let running = request.clone();
            in_time(move || running.wait()).unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(4 * idx, 1)), "{n_runs} runs, request {idx}");
        }
    }
}

/// A model whose file fixes the batch size at 1 is compiled for more batch items. The inputs of each request still have one item.
pub fn a_model_of_one_row_is_gathered(device: &UnderTest) {
    let model = (device.identity_with)(&batches(device, 3, HOURS)).unwrap();
    assert_eq!((model.inputs()[0].shape.to_string(), model.outputs()[0].shape.to_string()), ("[1, 4]".to_owned(), "[1, 4]".to_owned()));
    let requests: Vec<_> = (0..3).map(|_| model.create_infer_request().unwrap()).collect();
    for round in 0..3 {
        for (idx, request) in requests.iter().enumerate() {
            request.start_async(batch(10 * round + idx, 1)).unwrap();
        }
        for (idx, request) in requests.iter().enumerate() {
            let running = request.clone();
            in_time(move || running.wait()).unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), numbers(10 * round + idx, 1));
        }
    }
}

/// A dynamic first axis is not always a batch axis. If runs of this model were batched, each run would change the results of the other
/// runs.
pub fn a_model_that_mixes_its_rows_is_not_gathered(device: &UnderTest) {
    let error = (device.center_with)(&Config { batch_size: 4, batch_timeout: HOURS, ..Config::default() }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let expected = if device.name == "REMOTE" { "set the option `batch-independent=true`" } else { "its batch items are not independent" };
    assert!(error.to_string().contains(expected), "{error}");
    (device.center_with)(&Config::default()).unwrap();
}

pub fn a_gathered_run_that_is_canceled_or_dropped_leaves_the_others_alone(device: &UnderTest) {
    let model = double_in_batches(device, 3, Duration::from_millis(1));
    for round in 0..30 {
        let mut requests: Vec<_> = (0..3).map(|_| model.create_infer_request().unwrap()).collect();
        for (idx, request) in requests.iter().enumerate() {
            request.start_async(batch(round + idx, 1)).unwrap();
        }
        let one = requests.remove(1);
        if round % 2 == 0 {
            one.cancel();
            assert!(matches!(kind(in_time(move || one.wait())), None | Some(ErrorKind::Canceled)));
        } else {
            in_time(move || drop(one));
        }
        for (request, idx) in requests.iter().zip([0, 2]) {
            let running = request.clone();
            in_time(move || running.wait()).unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(round + idx, 1)));
        }
    }
}

/// A canceled run has ended when `wait` returns, although its call goes on. Its tensors are free then.
pub fn a_canceled_run_of_a_batch_can_start_again_at_once(device: &UnderTest) {
    let model = double_in_batches(device, 2, Duration::from_millis(1));
    let requests: Vec<_> = (0..2).map(|_| model.create_infer_request().unwrap()).collect();
    let inputs = [batch(1, 1), batch(5, 1)];
    in_time(move || {
        for round in 0..200 {
            for (request, input) in requests.iter().zip(&inputs) {
                request.start_async(input).unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
            let canceled = &requests[round % 2];
            canceled.cancel();
            assert!(matches!(kind(canceled.wait()), None | Some(ErrorKind::Canceled)));
            canceled.set_input_tensor((), &inputs[round % 2]).unwrap();
            drop(inputs[round % 2].view_mut::<f32>().unwrap_or_else(|error| panic!("round {round}: {error}")));
            requests[1 - round % 2].wait().unwrap();
        }
    });
}

/// `AUTO` returns the compiled model of the chosen device, which already batches runs, and reports the name of that device.
#[test]
fn a_device_that_stands_for_others_gathers_once() {
    let (mut core, inner) = (Core::new(), devices::core());
    core.register(Arc::new(AutoDevice::with_order(inner.clone(), "CPU")));
    let model = inner.read_model(tiny("double.onnx")).unwrap();
    let config = Config { batch_size: 2, batch_timeout: Duration::ZERO, ..Config::default() };
    let (chosen, itself) = (core.compile_model(&model, "AUTO", &config).unwrap(), inner.compile_model(&model, "CPU", &config).unwrap());
    assert_eq!((chosen.device(), itself.device()), ("CPU", "CPU"));
    assert_eq!(chosen.optimal_number_of_requests(), itself.optimal_number_of_requests());
    let names = |model: &CompiledModel| {
        let steps = model.create_infer_request().unwrap().step_times().unwrap();
        steps.into_iter().map(|step| step.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&chosen), names(&itself));
    assert_eq!(names(&itself)[..3], ["fill", "join", "batch"]);
}
