//! Calls that fail while a run is in progress, and the state of a request after a failed start.

use roiflow::runtime::{ErrorKind, FillInput};
use roiflow::tensor::{BytesMut, ElementType, Shape, Tensor};

use super::*;
use crate::support::{row, values};

struct Nothing;

impl FillInput for Nothing {
    fn shape(&mut self, _port: &Port) -> Result<Shape> {
        Ok(Shape::from([1, 4]))
    }

    fn fill(&mut self, _input: &mut BytesMut) -> Result<()> {
        Ok(())
    }
}

/// Equivalent OpenVINO tests: returnRequestBusyOnStartAsync, returnRequestBusyOnInfer, returnRequestBusyOnGetPerformanceCounts,
/// returnRequestBusyOnGetBlob, returnRequestBusyOnSetBlob, returnRequestBusyOnSetCompletionCallback,
/// throwExceptionOnSetTensorAfterAsyncInfer, throwExceptionOnGetTensorAfterAsyncInfer.
#[test]
fn every_access_to_a_running_request_is_busy() {
    let (request, manual) = turned_by_hand();
    let tensor = row([0.0; 4]);
    request.start_async(()).unwrap();
    type Access = fn(&InferRequest, &Tensor) -> Result<()>;
    let accesses: [(&str, Access); 18] = [
        ("start_async", |request, _| request.start_async(())),
        ("start_async with a tensor", |request, tensor| request.start_async(tensor)),
        ("infer", |request, _| request.infer(())),
        ("step_times", |request, _| request.step_times().map(drop)),
        ("visit_step_times", |request, _| request.visit_step_times(|_, _| ())),
        ("latency", |request, _| request.latency().map(drop)),
        ("tensor", |request, _| request.tensor("x").map(drop)),
        ("tensor of an output", |request, _| request.tensor("y").map(drop)),
        ("input_tensor", |request, _| request.input_tensor(()).map(drop)),
        ("output_tensor", |request, _| request.output_tensor(()).map(drop)),
        ("set_tensor", |request, tensor| request.set_tensor("x", tensor)),
        ("set_tensor of an output", |request, tensor| request.set_tensor("y", tensor)),
        ("set_input_tensor", |request, tensor| request.set_input_tensor(0, tensor)),
        ("set_output_tensor", |request, tensor| request.set_output_tensor(0, tensor)),
        ("set_input", |request, _| request.set_input(0, Nothing)),
        ("append_step", |request, _| request.append_step("more", |_| Ok(()))),
        ("set_callback", |request, _| request.set_callback(|_, _| ())),
        ("clear_callback", |request, _| request.clear_callback()),
    ];
    for (name, access) in accesses {
        assert_eq!(kind(access(&request, &tensor)), Some(ErrorKind::Busy), "{name}");
    }
    assert!(manual.run_one());
    request.wait().unwrap();
    for (name, access) in &accesses[3..] {
        access(&request, &tensor).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Equivalent OpenVINO tests: canResetBusyStatusIfStartAsyncFails, canResetBusyStatusIfInferFails. Tensors are checked before the state of
/// the request changes.
#[test]
fn a_start_that_failed_leaves_the_request_idle_and_usable() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let mut input = row([1.0; 4]);
    request.set_input_tensor((), &input).unwrap();
    input.set_shape([4, 1]).unwrap();
    assert_eq!(kind(request.start_async(())), Some(ErrorKind::Tensor));
    assert_eq!(kind(request.infer(())), Some(ErrorKind::Tensor));
    assert!(request.input_tensor(()).is_ok(), "the request is idle");
    assert!(!request.wait_for(std::time::Duration::ZERO).unwrap(), "nothing was started");
    input.set_shape([1, 4]).unwrap();
    request.infer(()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0; 4]);
}

#[test]
fn a_failed_start_lets_go_of_the_tensors_that_it_had_taken() {
    let model = compile_ports(Arc::new(Script::default()), vec![port("a", &[1, 4]), port("b", &[1, 4])], vec![port("y", &[1, 4])]);
    let request = model.create_infer_request().unwrap();
    let (good, mut bad) = (row([1.0; 4]), row([1.0; 4]));
    request.set_input_tensor("a", &good).unwrap();
    request.set_input_tensor("b", &bad).unwrap();
    bad.set_shape([2, 2]).unwrap();
    assert_eq!(kind(request.start_async(())), Some(ErrorKind::Tensor));
    good.view_mut::<f32>().unwrap().fill(0.0);
    request.output_tensor(()).unwrap().view_mut::<f32>().unwrap().fill(0.0);
}

#[test]
fn what_a_running_request_reads_cannot_be_written() {
    let (request, manual) = turned_by_hand();
    let mut input = row([1.0; 4]);
    let region = input.roi(&[0, 0], &[1, 2]).unwrap();
    request.start_async(&input).unwrap();
    let busy = Some(roiflow::tensor::ErrorKind::Busy);
    assert_eq!(input.view_mut::<f32>().err().map(|error| error.kind()), busy);
    assert_eq!(region.view_mut::<f32>().err().map(|error| error.kind()), busy);
    assert_eq!(input.set_shape([2, 2]).err().map(|error| error.kind()), busy);
    assert_eq!(row([0.0; 4]).copy_to(&input).err().map(|error| error.kind()), busy);
    assert_eq!(values(&input), [1.0; 4], "the input may still be read");
    assert!(manual.run_one());
    request.wait().unwrap();
    input.view_mut::<f32>().unwrap().fill(0.0);
}

#[test]
fn what_a_running_request_writes_cannot_be_read() {
    let (request, manual) = turned_by_hand();
    let output = request.output_tensor(()).unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    assert_eq!(output.view::<f32>().err().map(|error| error.kind()), Some(roiflow::tensor::ErrorKind::Busy));
    assert!(manual.run_one());
    request.wait().unwrap();
    assert_eq!(values(&output), [2.0; 4]);
}

#[test]
fn two_running_requests_may_read_the_same_tensor() {
    let ((first, first_hand), (second, second_hand)) = (turned_by_hand(), turned_by_hand());
    let input = row([3.0; 4]);
    first.start_async(&input).unwrap();
    second.start_async(&input).unwrap();
    assert!(second_hand.run_one() && first_hand.run_one());
    for request in [first, second] {
        request.wait().unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [6.0; 4]);
    }
}

#[test]
fn the_second_of_two_requests_with_one_output_tensor_is_busy_and_stays_usable() {
    let ((first, first_hand), (second, second_hand)) = (turned_by_hand(), turned_by_hand());
    let output = Tensor::new(ElementType::F32, [1, 4]).unwrap();
    for request in [&first, &second] {
        request.set_output_tensor((), &output).unwrap();
    }
    first.start_async(row([1.0; 4])).unwrap();
    let error = second.start_async(row([2.0; 4])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("output `y`"), "{error}");
    assert!(second.output_tensor(()).unwrap().is_same(&output), "the second one is idle");
    assert!(first_hand.run_one());
    first.wait().unwrap();
    second.start_async(()).unwrap();
    assert!(second_hand.run_one());
    second.wait().unwrap();
    assert_eq!(values(&output), [4.0; 4]);
}

#[test]
fn a_tensor_is_not_input_and_output_of_the_same_run() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let tensor = row([1.0; 4]);
    request.set_input_tensor((), &tensor).unwrap();
    request.set_output_tensor((), &tensor).unwrap();
    let error = request.infer(()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("shares memory with that of input `x`"), "{error}");
    request.set_output_tensor((), &row([0.0; 4])).unwrap();
    request.infer(()).unwrap();
}

#[test]
fn a_view_that_somebody_holds_refuses_the_start() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let input = request.input_tensor(()).unwrap();
    let writing = input.view_mut::<f32>().unwrap();
    let error = request.start_async(()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("input `x`"), "{error}");
    drop(writing);
    let reading = request.output_tensor(()).unwrap().view::<f32>().unwrap();
    assert_eq!(kind(request.start_async(())), Some(ErrorKind::Busy));
    drop(reading);
    request.infer(()).unwrap();
}
