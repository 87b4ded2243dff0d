//! `CompiledModel::infer` runs on cached requests and may be called from any number of threads.

use std::sync::mpsc;

use ndarray::arr2;
use roiflow::inputs;
use roiflow::runtime::{ErrorKind, Input, RequestPool};
use roiflow::tensor::Tensor;

use super::tensors::adding;
use super::*;
use crate::support::{eventually, row, values};

/// All callers share the cached request. A missing input would keep the value of an earlier caller.
#[test]
fn all_inputs_must_be_given() {
    let model = adding();
    let (a, b) = (row([3.0; 4]), row([1.0; 4]));
    model.infer([("a", &a), ("b", &b)]).unwrap();
    let error = model.infer([("a", &a)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tensor);
    assert!(error.to_string().contains("`b` [1, 4] f32 is missing: expected all 2, got 1"), "{error}");
    assert_eq!(kind(model.infer(())), Some(ErrorKind::Tensor));
    assert_eq!(kind(model.infer([&a])), Some(ErrorKind::Tensor), "a list that is too short");
    assert_eq!(kind(model.infer([("a", &a), ("first", &b)])), Some(ErrorKind::Tensor), "two names of one input");
    assert_eq!(kind(model.infer([("a", &a), ("c", &b)])), Some(ErrorKind::NotFound));
}

#[test]
fn results_are_the_callers_own() {
    let model = compile(doubling());
    let first = model.infer(row([1.0; 4])).unwrap();
    let second = model.infer(row([2.0; 4])).unwrap();
    let view = first.view::<f32>(()).unwrap();
    let third = model.infer(arr2(&[[3.0_f32; 4]])).unwrap();
    assert_eq!([view[[0, 0]], values(&second[0])[0], values(&third[0])[0]], [2.0, 4.0, 6.0]);
    first.tensor(()).unwrap();
}

/// The caller's tensors are shared during the call and released when the call returns or fails.
#[test]
fn inputs_are_given_back_when_the_call_returns() {
    let (sender, receiver) = mpsc::channel();
    let script = Script::computing(move |io, _| {
        sender.send(io.input(0).extent().as_ptr() as usize).unwrap();
        if read(io.input(0))[0] < 0.0 { Err(Error::new(ErrorKind::Device, "no")) } else { double(io) }
    });
    let model = compile(script);
    for value in [1.0, -1.0] {
        let mut input = row([value; 4]);
        let ran = model.infer(&input);
        assert_eq!(kind(ran), (value < 0.0).then_some(ErrorKind::Device));
        assert_eq!(receiver.recv().unwrap(), input.address() as usize, "no copy was made");
        input.view_mut::<f32>().unwrap().fill(0.0);
        input.set_shape([2, 2]).unwrap();
        let kept = model.infer(row([5.0; 4])).unwrap();
        assert_ne!(receiver.recv().unwrap(), input.address() as usize);
        assert_eq!(values(&kept[0]), [10.0; 4]);
    }
    let batch = [row([1.0; 4])];
    model.infer(inputs!["x" => Input::Batch(&batch)]).unwrap();
    batch[0].view_mut::<f32>().unwrap().fill(0.0);
}

/// Equivalent OpenVINO test (see `tests/conformance.txt`): C18 mixed dtypes. One call gets a batch of `f32` tensors for the input `a`, and
/// an `i32` array for the input `b`.
#[test]
fn arrays_tensors_and_batches_are_mixed() {
    let inputs = vec![port("a", &[0, 4]), port("b", &[0, 4])];
    let script = Script::computing(|io, _| {
        let (a, b) = (read(io.input(0)), read(io.input(1)));
        let shape = *io.input(0).layout().shape();
        write(io, 0, &shape, a.iter().zip(&b).map(|(a, b)| a + b).collect())
    });
    let model = compile_ports(Arc::new(script), inputs, vec![port("y", &[0, 4])]);
    let slices = [row([1.0; 4]), row([2.0; 4])];
    let results = model.infer(inputs!["a" => Input::Batch(&slices), 1 => &arr2(&[[10_i32; 4], [20; 4]])]).unwrap();
    assert_eq!(values(&results[0]), [11.0, 11.0, 11.0, 11.0, 22.0, 22.0, 22.0, 22.0]);
}

/// Each of many threads gets the results of its own inputs, even if input shapes differ.
#[test]
fn calls_at_once_do_not_see_each_other() {
    let model = compile_ports(Arc::new(doubling()), vec![port("x", &[0, 4])], vec![port("y", &[0, 4])]);
    std::thread::scope(|scope| {
        for thread_idx in 0..4 {
            let model = model.clone();
            scope.spawn(move || {
                for round in 0..100 {
                    let (value, n_rows) = ((100 * thread_idx + round) as f32, 1 + (round + thread_idx) % 3);
                    let results = model.infer(Tensor::from_slice([n_rows, 4], &vec![value; 4 * n_rows]).unwrap()).unwrap();
                    assert_eq!(values(&results[0]), vec![2.0 * value; 4 * n_rows]);
                }
            });
        }
    });
}

/// At most the optimal number of requests is cached. `release` frees them.
#[test]
fn requests_are_kept_and_released() {
    let gate = Gate::closed();
    let script = Arc::new(Script { gate: Some(gate.clone()), ..doubling() });
    let model = compile_ports(script.clone(), vec![port("x", &[1, 4])], vec![port("y", &[1, 4])]);
    let base = Arc::strong_count(&script);
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| drop(model.infer(row([1.0; 4])).unwrap()));
        }
        gate.wait_for_arrivals(5);
        assert_eq!(Arc::strong_count(&script), base + 5, "one for each call");
        gate.open();
    });
    assert_eq!(Arc::strong_count(&script), base + model.optimal_number_of_requests());
    model.clone().release();
    assert_eq!(Arc::strong_count(&script), base);
    model.infer(row([1.0; 4])).unwrap();
    assert_eq!(Arc::strong_count(&script), base + 1);
}

/// Equivalent OpenVINO test (see `tests/conformance.txt`): C19 output dict of model 1 as input of model 2 (=8).
#[test]
fn results_of_one_model_are_the_inputs_of_another() {
    let first = compile_ports(Arc::new(doubling()), vec![port("x", &[1, 4])], vec![port("x", &[1, 4])]);
    let results = first.infer(row([2.0; 4])).unwrap();
    assert_eq!(values(&first.infer(&results).unwrap()["x"]), [8.0; 4]);
    let request = first.create_infer_request().unwrap();
    request.infer(results).unwrap();
    assert_eq!(values(&request.results().unwrap()["x"]), [8.0; 4]);
    let other = compile(doubling());
    assert_eq!(kind(other.infer(request.results().unwrap()).map(drop)), None, "the input has the name of the output");
    assert_eq!(kind(request.infer(other.infer(row([1.0; 4])).unwrap())), Some(ErrorKind::NotFound), "`y` is no input");
}

/// A pool gives its requests to any user, so no user may find the callback or the tensors of another one.
#[test]
fn a_customized_request_is_not_used_again() {
    type Customize = fn(&InferRequest);
    let customs: [(&str, Customize); 5] = [
        ("callback", |request| request.set_callback(|_, _| ()).unwrap()),
        ("user data", |request| request.set_user_data(Arc::new(1)).unwrap()),
        ("name", |request| request.set_name("mine")),
        ("step", |request| request.append_step("mine", |_| Ok(())).unwrap()),
        ("output", |request| request.set_output_tensor((), &row([0.0; 4])).unwrap()),
    ];
    let model = compile(doubling());
    let pool = RequestPool::new(2);
    let first = pool.take_or_create(&model).unwrap().id();
    assert_eq!(pool.take_or_create(&model).unwrap().id(), first, "an idle request is used again");
    for (name, customize) in customs {
        let request = pool.take_or_create(&model).unwrap();
        customize(&request);
        let id = request.id();
        drop(request);
        assert_ne!(pool.take_or_create(&model).unwrap().id(), id, "{name}");
    }
    // The run ends after the request has returned.
    let gate = Gate::closed();
    let model = compile(Script { gate: Some(gate.clone()), ..doubling() });
    let request = pool.take_or_create(&model).unwrap();
    let (id, output) = (request.id(), row([0.0; 4]));
    request.set_output_tensor((), &output).unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    drop(request);
    gate.open();
    eventually(move || output.view_mut::<f32>().is_ok());
    assert_ne!(pool.take_or_create(&model).unwrap().id(), id);
}
