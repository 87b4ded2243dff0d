//! Convenience methods, each of which replaces several calls.

use std::sync::{Arc, mpsc};

use ::futures::executor::block_on;
use roiflow::inputs;
use roiflow::runtime::executor::Pool;
use roiflow::runtime::{AsyncInferQueue, ErrorKind, FillInput, Input, PipelineStep};
use roiflow::tensor::{BytesMut, ElementType, Shape, Tensor};

use super::tensors::adding;
use super::*;
use crate::support::{in_time, receive, row, values};

#[test]
fn values_are_written_and_read_in_one_call() {
    let request = adding().create_infer_request().unwrap();
    request.input_mut::<f32>("a").unwrap().fill(1.0);
    request.input_mut::<f32>(1).unwrap().fill(2.0);
    request.infer(()).unwrap();
    let output = request.output::<f32>(()).or_else(|_| request.output::<f32>(0)).unwrap();
    assert_eq!(output.to_vec(), [3.0; 4]);
    assert_eq!(kind(request.output::<u8>(0)), Some(ErrorKind::Tensor));
    assert_eq!(kind(request.output::<f32>("no")), Some(ErrorKind::NotFound));
    assert_eq!(kind(request.input_mut::<f32>("no")), Some(ErrorKind::NotFound));
}

#[test]
fn user_data_comes_with_the_start_of_its_run() {
    let (request, manual) = turned_by_hand();
    let (sender, receiver) = mpsc::channel();
    request.set_callback(move |request, _| sender.send(*request.user_data::<u64>().unwrap()).unwrap()).unwrap();
    for frame in [3_u64, 4] {
        request.start_with(row([1.0; 4]), Arc::new(frame)).unwrap();
        // A start that fails does not change the data of the current run.
        assert_eq!(kind(request.start_with((), Arc::new(99_u64))), Some(ErrorKind::Busy));
        assert!(manual.run_one());
        assert_eq!(receive(&receiver), frame);
    }
    assert_eq!(kind(request.start_with(Tensor::new(ElementType::U8, [1, 4]).unwrap(), Arc::new(5_u64))), Some(ErrorKind::Tensor));
    assert_eq!(*request.user_data::<u64>().unwrap(), 4);
}

#[test]
fn a_callback_may_change_what_it_captured() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let (sender, receiver) = mpsc::channel();
    let mut n_runs = 0;
    request
        .set_callback(move |request, result| {
            n_runs += 1;
            sender.send((n_runs, result.is_ok())).unwrap();
            assert!(n_runs != 2, "a panic in the second run");
            if n_runs < 5 && n_runs != 1 {
                request.start_async(()).unwrap();
            }
        })
        .unwrap();
    for _ in 0..3 {
        request.start_async(()).unwrap();
        // The second error has the kind `Panic`.
        let _panicked = request.wait();
    }
    assert_eq!((0..5).map(|_| receive(&receiver)).collect::<Vec<_>>(), (1..=5).map(|n| (n, true)).collect::<Vec<_>>());
}

#[test]
fn a_run_that_is_awaited_gives_its_results() {
    let request = adding().create_infer_request().unwrap();
    let results = block_on(request.run([("a", row([1.0; 4])), ("b", row([2.0; 4]))])).unwrap();
    assert_eq!(results.view::<f32>(0).unwrap().to_vec(), [3.0; 4]);
    assert!(results.tensor(0).unwrap().is_same(&request.output_tensor(0).unwrap()), "no copy");
    drop(results);
    block_on(request.run(()).without_results()).unwrap();
    // The request is started again before the results of the first run are read.
    let (request, manual) = turned_by_hand();
    let run = request.run(());
    assert!(manual.run_one());
    request.start_async(()).unwrap();
    assert_eq!(kind(block_on(run)), Some(ErrorKind::Busy));
    assert!(manual.run_one());
}

#[test]
fn a_model_infers_without_blocking_a_thread() {
    let model = compile(doubling());
    let (one, two) = (model.infer_async(row([1.0; 4])), model.infer_async(row([2.0; 4])));
    let (one, two) = block_on(async { (one.await.unwrap(), two.await.unwrap()) });
    assert_eq!([one.view::<f32>(()).unwrap()[[0, 0]], two.view::<f32>(()).unwrap()[[0, 0]]], [2.0, 4.0]);
    assert_eq!(kind(block_on(model.infer_async(()))), Some(ErrorKind::Tensor), "an input is missing");
    assert_eq!(kind(block_on(compile(failing()).infer_async(row([1.0; 4])))), Some(ErrorKind::Device));
}

/// After the canceled run has ended, the request returns to the model, which reuses it.
#[test]
fn a_dropped_inference_is_canceled() {
    let (manual, mut script) = (Arc::new(Manual::default()), doubling());
    by_hand(&mut script, &manual);
    let model = compile(script);
    drop(model.infer_async(row([1.0; 4])));
    let next = model.infer_async(row([3.0; 4]));
    while manual.run_one() {}
    assert_eq!(block_on(next).unwrap().view::<f32>(()).unwrap()[[0, 0]], 6.0);
    let next = model.infer_async(row([4.0; 4]));
    while manual.run_one() {}
    assert_eq!(block_on(next).unwrap().view::<f32>(()).unwrap()[[0, 0]], 8.0);
}

#[test]
fn flat_values_take_the_shape_of_their_input() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let doubled = |request: &InferRequest| request.output::<f32>(()).unwrap().to_vec();
    let expected = [2.0, 4.0, 6.0, 8.0];
    request.infer(vec![1.0_f32, 2.0, 3.0, 4.0]).unwrap();
    assert_eq!(doubled(&request), expected);
    let slice: &[u8] = &[1, 2, 3, 4];
    request.infer([("x", slice)]).unwrap();
    assert_eq!(doubled(&request), expected);
    request.infer([1_i64, 2, 3, 4]).unwrap();
    request.infer([("x", vec![1.0_f64, 2.0, 3.0, 4.0])]).unwrap();
    request.infer(inputs!["x" => &[1.0_f32, 2.0, 3.0, 4.0]]).unwrap();
    request.infer([vec![1.0_f32, 2.0, 3.0, 4.0]]).unwrap();
    assert_eq!(doubled(&request), expected);
    let error = request.infer(vec![1.0_f32; 3]).unwrap_err();
    assert_eq!(error.to_string(), "input `x`: expected [1, 4] f32, got 3 values without a shape");
    assert_eq!((error.kind(), error.port()), (ErrorKind::Tensor, Some("x")));
    // One extent is dynamic, and is calculated from the number of values.
    let open = compile_ports(Arc::new(doubling()), vec![port("x", &[0, 4])], vec![port("y", &[0, 4])]).create_infer_request().unwrap();
    open.infer(vec![0.5_f32; 12]).unwrap();
    assert_eq!((&open.output_tensor(()).unwrap().shape()[..], doubled(&open)), (&[3, 4][..], vec![1.0; 12]));
    assert_eq!(kind(open.infer(vec![0.5_f32; 13])), Some(ErrorKind::Tensor));
    let two_open = compile_ports(Arc::new(doubling()), vec![port("x", &[0, 0])], vec![port("y", &[0, 0])]).create_infer_request().unwrap();
    assert_eq!(kind(two_open.infer(vec![0.5_f32; 4])), Some(ErrorKind::Tensor), "two dynamic extents cannot be calculated");
    let scalar = compile_ports(Arc::new(doubling()), vec![port("x", &[1])], vec![port("y", &[1])]).create_infer_request().unwrap();
    scalar.infer(3.0_f32).unwrap();
    scalar.infer([("x", 3_u8)]).unwrap();
    assert_eq!(doubled(&scalar), [6.0]);
}

#[test]
fn inputs_and_outputs_are_set_in_one_call_or_none_is() {
    let request = adding().create_infer_request().unwrap();
    let (a, b, sum) = (row([1.0; 4]), row([2.0; 4]), row([0.0; 4]));
    let name = request.model_outputs()[0].name().to_owned();
    request.set_all(inputs![0 => &a, &request.model_inputs()[1] => Input::Share(b.clone()), name.as_str() => &sum]).unwrap();
    request.infer(()).unwrap();
    assert_eq!(values(&sum), [3.0; 4]);
    let (other, wrong) = (row([9.0; 4]), Tensor::new(ElementType::F32, [2, 4]).unwrap());
    let refused = [
        (request.set_all([("a", &other), (&*name, &wrong)]), ErrorKind::Tensor),
        (request.set_all([(&*name, &other), ("b", &wrong)]), ErrorKind::Tensor),
        (request.set_all([("a", &other), ("no", &other)]), ErrorKind::NotFound),
        (request.set_all([(&*name, &other), (&*name, &a)]), ErrorKind::Tensor),
        (request.set_all([(&*name, vec![1.0_f32; 4])]), ErrorKind::Tensor),
    ];
    for (set, expected) in refused {
        assert_eq!(kind(set), Some(expected));
        assert!(request.tensor("a").unwrap().is_same(&a) && request.output_tensor(0).unwrap().is_same(&sum));
    }
}

#[test]
fn an_error_says_port_expected_and_got_to_programs() {
    let request = adding().create_infer_request().unwrap();
    let error = request.set_tensor("a", &Tensor::new(ElementType::U8, [1, 4]).unwrap()).unwrap_err().context("camera 1");
    assert_eq!((error.port(), error.expected(), error.got()), (Some("a"), Some("[1, 4] f32"), Some("[1, 4] u8")));
    assert_eq!(error.to_string(), "camera 1: input `a`: expected [1, 4] f32, got [1, 4] u8");
    // A copy of the error has the same port and the same source.
    let with_source = Error::with_source(ErrorKind::Io, "no file", std::io::Error::other("gone")).with_port("x");
    let copy = with_source.clone().context("again");
    assert_eq!((copy.port(), std::error::Error::source(&copy).unwrap().to_string()), (Some("x"), "gone".to_owned()));
}

struct Nothing;

impl FillInput for Nothing {
    fn shape(&mut self, _port: &Port) -> Result<Shape> {
        Ok(Shape::from([1, 4]))
    }

    fn fill(&mut self, _input: &mut BytesMut) -> Result<()> {
        Ok(())
    }
}

/// `Busy` and `Conflict` are different: `Busy` ends when the other use ends, but tensors with a `Conflict` can never be used together.
#[test]
fn a_conflict_of_a_requests_own_tensors_is_not_transient() {
    let request = adding().create_infer_request().unwrap();
    let a = request.input_tensor("a").unwrap();
    request.set_tensor("b", &a).unwrap();
    request.infer(()).unwrap();
    request.set_input("a", Nothing).unwrap();
    let error = request.infer(()).unwrap_err();
    assert_eq!((error.kind(), error.is_transient(), error.port()), (ErrorKind::Conflict, false, Some("b")));
    assert!(error.to_string().contains("shares memory with input `a`"), "{error}");
    request.clear_inputs().unwrap();
    let both = row([0.0; 4]);
    request.set_output_tensor(0, &both).unwrap();
    request.set_tensor("b", &both).unwrap();
    assert_eq!(kind(request.infer(())), Some(ErrorKind::Conflict));
    request.clear_inputs().unwrap();
    let read = both.view::<f32>().unwrap();
    let error = request.infer(()).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Busy, true));
    drop(read);
    request.infer(()).unwrap();
}

#[test]
fn a_name_is_in_debug_and_in_errors_of_the_start() {
    let (request, manual) = turned_by_hand();
    assert_eq!((format!("{request:?}"), request.name()), (format!("InferRequest({})", request.id()), None));
    request.set_name("front door");
    assert_eq!(format!("{request:?}"), format!("InferRequest({} `front door`)", request.id()));
    request.start_async(()).unwrap();
    let error = request.start_async(()).unwrap_err();
    assert!(error.is_transient() && error.to_string().starts_with("request `front door`: the request is running"), "{error}");
    assert!(manual.run_one());
}

#[test]
fn a_pipeline_is_replaced_as_a_whole() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let pool = Arc::new(Pool::new("pipeline", 1).unwrap());
    let (sender, receiver) = mpsc::channel();
    let step = |name: &'static str| {
        let sender = sender.clone();
        PipelineStep::new(name, pool.clone(), move |run| {
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            sender.send((name, thread, run.output::<f32>("y").is_ok_and(|(_, y)| y[0] == 2.0))).unwrap();
            Ok(())
        })
    };
    let names = |request: &InferRequest| request.step_times().unwrap().iter().map(|step| step.name.to_string()).collect::<Vec<_>>();
    let built_in = names(&request);
    request.append_step("dropped", |_| Ok(())).unwrap();
    let mut steps = vec![step("first")];
    steps.extend(request.pipeline().unwrap().into_iter().map(|step| step.on(pool.clone())));
    steps.push(step("last"));
    request.set_pipeline(steps).unwrap();
    assert_eq!(names(&request), [&["first".to_owned()][..], &built_in, &["last".to_owned()]].concat());
    request.start_async(row([1.0; 4])).unwrap();
    request.wait().unwrap();
    let (first, last) = (receive(&receiver), receive(&receiver));
    assert_eq!((first.0, last.0, last.2), ("first", "last", true));
    assert!(first.1.contains("pipeline") && first.1 == last.1, "{first:?} {last:?}");
    // An invalid pipeline does not change the request.
    let twice = || request.pipeline().unwrap().into_iter().chain(request.pipeline().unwrap()).collect::<Vec<_>>();
    let reversed = || request.pipeline().unwrap().into_iter().rev().collect::<Vec<_>>();
    for bad in [Vec::new(), vec![step("alone")], twice(), reversed()] {
        let error = request.set_pipeline(bad).unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("fill"), "{error}");
    }
    assert_eq!(names(&request).len(), built_in.len() + 2);
    // Steps that are added later are placed before or after all other steps.
    request.prepend_step("second", |_| Ok(())).unwrap();
    request.append_step("very last", |_| Ok(())).unwrap();
    assert_eq!((names(&request)[1].as_str(), names(&request).last().unwrap().as_str()), ("second", "very last"));
    request.clear_steps().unwrap();
    assert_eq!(names(&request), built_in);
}

#[test]
fn no_step_lies_between_those_of_the_device() {
    let (request, _manual) = turned_by_hand();
    let mut steps = request.pipeline().unwrap();
    let executor = steps[0].executor().clone();
    steps.insert(steps.len() - 1, PipelineStep::new("between", executor, |_| Ok(())));
    let error = request.set_pipeline(steps).unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("`between`"), "{error}");
}

#[test]
fn a_job_waits_for_an_idle_request_without_a_thread() {
    let (manual, mut script) = (Arc::new(Manual::default()), doubling());
    by_hand(&mut script, &manual);
    let queue = AsyncInferQueue::new(&compile(script), 1).unwrap();
    let (sender, receiver) = mpsc::channel();
    queue.set_callback(move |request, job: u32, _| sender.send((job, request.output::<f32>(()).unwrap()[[0, 0]])).unwrap());
    assert_eq!(block_on(queue.push(row([1.0; 4]), 1)).unwrap(), 0);
    let turn = async { while manual.run_one() {} };
    let (second, ()) = block_on(async { ::futures::join!(queue.push(row([2.0; 4]), 2), turn) });
    assert_eq!((second.unwrap(), receive(&receiver)), (1, (1, 2.0)));
    // If a waiting job is discarded, its request becomes available to other jobs.
    let waits = queue.push(row([3.0; 4]), 3);
    drop(waits);
    while manual.run_one() {}
    assert_eq!(receive(&receiver), (2, 4.0));
    assert_eq!(kind(block_on(queue.push(Tensor::new(ElementType::U8, [1, 4]).unwrap(), 4))), Some(ErrorKind::Tensor));
    drop(block_on(queue.idle()).unwrap());
    assert!(queue.is_ready());
}

#[test]
fn a_queues_callback_may_change_what_it_captured() {
    let queue = Arc::new(AsyncInferQueue::new(&compile(doubling()), 4).unwrap());
    let (sender, receiver) = mpsc::channel();
    let mut sum = 0.0;
    queue.set_callback_mut(move |request, _: (), _| {
        sum += request.output::<f32>(()).unwrap()[[0, 0]];
        sender.send(sum).unwrap();
    });
    let queue = in_time(move || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|_| assert!(queue.start_async(row([0.5; 4]), ()).is_ok())));
            }
        });
        queue.wait_all().unwrap();
        queue
    });
    assert_eq!(receiver.try_iter().collect::<Vec<f32>>(), (1..=100).map(|n| n as f32).collect::<Vec<_>>());
    drop(queue);
}

/// With an inline executor, a job completes inside the callback that started it.
#[test]
fn a_queues_callback_that_would_call_itself_is_an_error_of_the_job() {
    let script = Script { executor: Some(Arc::new(Inline)), ..doubling() };
    let queue = Arc::new(AsyncInferQueue::new(&compile(script), 2).unwrap());
    let weak = Arc::downgrade(&queue);
    queue.set_callback_mut(move |_, job: u32, _| {
        if job == 1 {
            weak.upgrade().unwrap().start_async(row([1.0; 4]), 2).unwrap();
        }
    });
    queue.start_async(row([1.0; 4]), 1).unwrap();
    let errors = queue.wait_all().unwrap_err();
    assert_eq!(errors.errors.iter().map(|error| (error.job, error.error.kind())).collect::<Vec<_>>(), [(1, ErrorKind::WouldDeadlock)]);
    queue.start_async(row([1.0; 4]), 3).unwrap();
    queue.wait_all().unwrap();
}
