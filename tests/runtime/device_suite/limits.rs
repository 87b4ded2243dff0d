//! Tensors without elements, extremely large tensors, and cancellation at arbitrary times.

use std::sync::Arc;

use ndarray::Array2;
use roiflow::runtime::ErrorKind;
use roiflow::runtime::executor::{Executor, Task};

use super::*;

/// An input with 0 batch items gives an output with 0 batch items. If the input was not set, the run fails.
pub fn a_batch_of_zero_rows_is_computed(device: &UnderTest) {
    let model = (device.double)();
    let request = model.create_infer_request().unwrap();
    if device.name != "NULL" {
        let error = request.infer(()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Tensor);
        assert!(error.to_string().contains("set a tensor first"), "{error}");
    }
    for _ in 0..2 {
        request.infer(batch(0, 0)).unwrap();
        assert_eq!(request.output_tensor(()).unwrap().shape()[..], [0, 4]);
        request.infer(batch(3, 2)).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(3, 2)));
        request.infer(Array2::<f32>::zeros((0, 4))).unwrap();
        assert_eq!(request.output_tensor(()).unwrap().shape()[..], [0, 4]);
        request.start_async(batch(1, 1).roi(&[0, 0], &[0, 4]).unwrap()).unwrap();
        request.wait().unwrap();
        assert_eq!(request.output_tensor(()).unwrap().shape()[..], [0, 4]);
    }
    assert_eq!(model.infer(batch(0, 0)).unwrap()[0].shape()[..], [0, 4]);
}

/// The size exceeds the address space, so allocation always fails. Some engines already fail at compilation.
pub fn a_request_for_which_there_is_no_memory_is_refused(device: &UnderTest) {
    let n_rows = 1_usize << 44;
    match device.reshaped([n_rows, 4], "N?") {
        Err(error) => assert_ne!(error.kind(), ErrorKind::Panic, "{error}"),
        Ok(model) => {
            let error = model.create_infer_request().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
            assert!(error.to_string().contains(&(n_rows * 16).to_string()), "{error}");
        }
    }
    let request = (device.double)().create_infer_request().unwrap();
    let mut input = request.input_tensor(()).unwrap();
    assert_eq!(input.set_shape([n_rows, 4]).unwrap_err().kind(), roiflow::tensor::ErrorKind::OutOfMemory);
    request.infer(batch(1, 2)).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(1, 2)));
}

/// An executor that drops its tasks without running them.
#[derive(Debug)]
struct Loses;

impl Executor for Loses {
    fn execute(&self, task: Arc<dyn Task>) {
        drop(task);
    }
}

/// The executor drops the step of the user without running it. This step comes before the steps of the device, or after them.
pub fn a_run_whose_step_is_queued_ends_with_its_cancel(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    for is_before in [true, false] {
        match is_before {
            true => request.prepend_step_on(Arc::new(Loses), "lost", |_| Ok(())).unwrap(),
            false => request.append_step_on(Arc::new(Loses), "lost", |_| Ok(())).unwrap(),
        }
        for _ in 0..5 {
            request.start_async(batch(0, 2)).unwrap();
            request.cancel();
            let waiting = request.clone();
            assert_eq!(kind(in_time(move || waiting.wait())), Some(ErrorKind::Canceled));
        }
        request.clear_steps().unwrap();
        request.infer(batch(5, 3)).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(5, 3)));
    }
}

/// A cancel at any time cancels the current run or has no effect. A cancel never affects a later run.
pub fn a_cancel_from_another_thread_leaves_the_request_usable(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    let (to_cancel, is_on) = std::sync::mpsc::sync_channel(0);
    let canceling = request.clone();
    let thread = std::thread::spawn(move || {
        while is_on.recv().is_ok() {
            canceling.cancel();
        }
    });
    for round in 0..100 {
        request.start_async(batch(round, 2)).unwrap();
        to_cancel.send(()).unwrap();
        let waiting = request.clone();
        let ended = in_time(move || waiting.wait());
        assert!(matches!(kind(ended), None | Some(ErrorKind::Canceled)), "round {round}");
    }
    drop(to_cancel);
    thread.join().unwrap();
    request.infer(batch(5, 3)).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(5, 3)));
}
