//! Batching of runs into one engine call: the order of runs, and the result of each. Most batch timeouts are hours or zero, so the clock
//! does not affect the outcome. Tests with other timeouts check only results, not times.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use roiflow::runtime::{AsyncInferQueue, Axes, ContextParams, MAX_BATCH_SIZE};
use roiflow::tensor::Tensor;

use super::*;
use crate::support::{eventually, in_time, receive, row, values};

pub(super) const HOURS: Duration = Duration::from_secs(100 * 3600);

pub(super) fn batches(batch_size: usize, batch_timeout: Duration) -> Config {
    Config { batch_size, batch_timeout, ..Config::default() }
}

/// The number of batch items in each call, in the order of the calls.
pub(super) type Calls = Arc<Mutex<Vec<usize>>>;

/// Computes `y = 2 x` and records the number of batch items of each call. Fails if the call is canceled or if an item starts with -1.
/// Panics if an item starts with -2.
pub(super) fn counting(calls: &Calls) -> Script {
    let calls = calls.clone();
    Script::computing(move |io, cancel| {
        calls.lock().unwrap().push(io.input(0).layout().shape()[0]);
        cancel.check()?;
        let rows = read(io.input(0));
        assert!(rows.chunks(4).all(|row| row[0] != -2.0), "the device panics");
        match rows.chunks(4).any(|row| row[0] == -1.0) {
            true => Err(Error::new(ErrorKind::Device, "a bad row")),
            false => double(io),
        }
    })
}

pub(super) fn calls_of(calls: &Calls) -> Vec<usize> {
    calls.lock().unwrap().clone()
}

pub(super) fn compile_counting(batch_size: usize, timeout: Duration) -> (CompiledModel, Calls) {
    let calls = Calls::default();
    (compile_with(counting(&calls), &batches(batch_size, timeout)), calls)
}

pub(super) fn requests(model: &CompiledModel, n: usize) -> Vec<InferRequest> {
    (0..n).map(|_| model.create_infer_request().unwrap()).collect()
}

pub(super) fn start(requests: &[InferRequest], first: f32) {
    for (idx, request) in requests.iter().enumerate() {
        request.start_async(row([first + idx as f32; 4])).unwrap();
    }
}

/// Checks that each request has its own result.
pub(super) fn check(requests: &[InferRequest], first: f32) {
    for (idx, request) in requests.iter().enumerate() {
        wait(request).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0 * (first + idx as f32); 4], "request {idx}");
    }
}

pub(super) fn wait(request: &InferRequest) -> Result<()> {
    let request = request.clone();
    in_time(move || request.wait())
}

#[test]
fn eight_runs_are_one_call_and_each_gets_its_own_row() {
    let (model, calls) = compile_counting(8, HOURS);
    let requests = requests(&model, 8);
    for round in 1..=3 {
        start(&requests, 10.0 * round as f32);
        check(&requests, 10.0 * round as f32);
        assert_eq!(calls_of(&calls), vec![8; round]);
    }
}

#[test]
fn without_a_batch_size_each_run_is_a_call() {
    let (model, calls) = compile_counting(1, HOURS);
    let requests = requests(&model, 4);
    start(&requests, 1.0);
    check(&requests, 1.0);
    assert_eq!(calls_of(&calls), [1; 4]);
    assert!(requests[0].step_times().unwrap().iter().map(|step| &*step.name).eq(["fill", "infer"]));
}

/// More runs start than fit into a batch. The first runs fill a batch, and the remaining runs wait for the next batch.
#[test]
fn a_full_batch_leaves_and_the_others_wait_for_company() {
    let gate = Gate::closed();
    let calls = Calls::default();
    let model = compile_with(Script { gate: Some(gate.clone()), ..counting(&calls) }, &batches(3, HOURS));
    let requests = requests(&model, 6);
    start(&requests[..4], 1.0);
    gate.wait_for_arrivals(1);
    gate.open();
    let started = requests[..4].to_vec();
    let n_ended = move || started.iter().filter(|request| request.wait_for(Duration::ZERO).unwrap()).count();
    // Several threads preprocess the inputs, so any of the four runs may be the last one.
    let enough = n_ended.clone();
    eventually(move || enough() == 3);
    assert_eq!((n_ended(), calls_of(&calls)), (3, vec![3]), "the fourth run waits for a batch");
    start(&requests[4..], 5.0);
    check(&requests, 1.0);
    assert_eq!(calls_of(&calls), [3, 3]);
}

/// A run waits for further runs until the batch timeout expires. In this test no other run starts.
#[test]
fn a_lone_run_goes_alone_when_its_time_is_over() {
    let (model, calls) = compile_counting(8, Duration::from_millis(1));
    let requests = requests(&model, 8);
    for round in 0..3 {
        start(&requests[..1], 7.0);
        check(&requests[..1], 7.0);
        assert_eq!(calls_of(&calls), vec![1; round + 1]);
    }
    start(&requests[..3], 7.0);
    check(&requests[..3], 7.0);
    assert_eq!(calls_of(&calls)[3..].iter().sum::<usize>(), 3, "every run is in exactly one call");
}

#[test]
fn runs_that_are_all_there_are_do_not_wait() {
    let (model, calls) = compile_counting(8, HOURS);
    let mut requests = requests(&model, 3);
    start(&requests, 1.0);
    check(&requests, 1.0);
    assert_eq!(calls_of(&calls), [3]);
    // One request is dropped while the other runs already wait.
    start(&requests[..2], 1.0);
    drop(requests.pop());
    check(&requests, 1.0);
    assert_eq!(calls_of(&calls), [3, 2]);
    drop(requests.pop());
    start(&requests, 1.0);
    check(&requests, 1.0);
    assert_eq!(calls_of(&calls), [3, 2, 1]);
}

/// With a batch timeout of 0, runs do not wait for further runs. Runs are batched only while all engines are busy.
#[test]
fn without_a_time_limit_only_those_are_gathered_that_wait_for_the_engine() {
    let calls_of_eight = || {
        let gate = Gate::closed();
        let calls = Calls::default();
        let model = compile_with(Script { gate: Some(gate.clone()), ..counting(&calls) }, &batches(8, Duration::ZERO));
        let requests = requests(&model, 8);
        // Two runs keep the device busy. Each of the two starts before another run arrives.
        for idx in 0..2 {
            start(&requests[idx..=idx], 1.0 + idx as f32);
            gate.wait_for_arrivals(1 + idx);
        }
        start(&requests[2..], 3.0);
        gate.open();
        check(&requests, 1.0);
        let calls = calls_of(&calls);
        assert_eq!(calls.iter().sum::<usize>(), 8);
        calls
    };
    // The test cannot detect whether a run is already waiting. A run that arrives late finds an idle engine and is not batched. So the test
    // makes several attempts.
    let tries: Vec<_> = (0..20).map(|_| calls_of_eight()).collect();
    assert!(
        tries.iter().any(|calls| calls.len() <= 4),
        "{tries:?}: expected at most 4 calls: two single runs, then six runs of which at most one is single"
    );
}

#[test]
fn a_failed_batch_is_tried_run_by_run_and_the_bad_input_fails_alone() {
    let (model, calls) = compile_counting(4, HOURS);
    let requests = requests(&model, 4);
    for bad in [-1.0, -2.0] {
        calls.lock().unwrap().clear();
        for (idx, request) in requests.iter().enumerate() {
            request.start_async(row([if idx == 2 { bad } else { idx as f32 }; 4])).unwrap();
        }
        for (idx, request) in requests.iter().enumerate() {
            let ended = wait(request);
            match idx {
                2 if bad == -1.0 => assert_eq!(ended.unwrap_err().to_string(), "a bad row"),
                2 => assert_eq!(kind(ended), Some(ErrorKind::Panic)),
                _ => assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0 * idx as f32; 4]),
            }
        }
        assert_eq!(calls_of(&calls), [4, 1, 1, 1, 1]);
    }
    start(&requests, 1.0);
    check(&requests, 1.0);
}

/// If the engine returns fewer batch items than expected, the call fails.
#[test]
fn a_call_with_too_few_rows_is_tried_run_by_run() {
    let script = Script::computing(|io, _| {
        let rows = read(io.input(0));
        write(io, 0, &[1, 4], rows[..4].iter().map(|value| 2.0 * value).collect())
    });
    let model = compile_with(script, &batches(3, HOURS));
    let requests = requests(&model, 3);
    start(&requests, 1.0);
    check(&requests, 1.0);
}

#[test]
fn a_canceled_run_leaves_the_others_to_their_results() {
    let gate = Gate::closed();
    let calls = Calls::default();
    let model = compile_with(Script { gate: Some(gate.clone()), ..counting(&calls) }, &batches(3, HOURS));
    let requests = requests(&model, 3);
    start(&requests, 1.0);
    gate.wait_for_arrivals(1);
    requests[1].cancel();
    gate.open();
    assert_eq!(kind(wait(&requests[1])), Some(ErrorKind::Canceled));
    for idx in [0, 2] {
        check(&requests[idx..=idx], 1.0 + idx as f32);
    }
    start(&requests, 1.0);
    check(&requests, 1.0);
    assert_eq!(calls_of(&calls), [3, 3]);
}

/// The call of the canceled run waits in the queue of its executor. It has copied its inputs, so it leases no tensor of the run.
#[test]
fn tensors_of_a_canceled_run_are_free_while_its_call_is_queued() {
    let hand = Arc::new(Manual::default());
    let model = compile_with(doubling(), &Config { executor: Some(hand.clone()), ..batches(2, HOURS) });
    let requests = requests(&model, 2);
    let inputs = [row([1.0; 4]), row([2.0; 4])];
    for (request, input) in requests.iter().zip(&inputs) {
        request.start_async(input).unwrap();
    }
    assert!(hand.run_one() && hand.run_one());
    assert_eq!(hand.n_queued(), 1, "the call");
    requests[0].cancel();
    assert_eq!(kind(wait(&requests[0])), Some(ErrorKind::Canceled));
    inputs[0].view_mut::<f32>().unwrap().fill(7.0);
    while hand.run_one() {}
    check(&requests[1..], 2.0);
}

#[test]
fn a_canceled_run_ends_while_it_waits_for_company() {
    let (model, calls) = compile_counting(3, HOURS);
    let requests = requests(&model, 3);
    for _ in 0..100 {
        start(&requests[..1], 1.0);
        requests[0].cancel();
        assert_eq!(kind(wait(&requests[0])), Some(ErrorKind::Canceled));
    }
    assert!(calls_of(&calls).is_empty());
    start(&requests, 1.0);
    check(&requests, 1.0);
    assert_eq!(calls_of(&calls), [3]);
}

#[test]
fn a_dropped_future_leaves_the_others_to_their_results() {
    let (model, calls) = compile_counting(3, HOURS);
    let requests = requests(&model, 3);
    let future = requests[0].run(row([1.0; 4]));
    start(&requests[1..2], 2.0);
    drop(future);
    assert_eq!(kind(wait(&requests[0])), Some(ErrorKind::Canceled));
    // The first request starts again, and the second run waits for it.
    start(&requests[..1], 1.0);
    start(&requests[2..], 3.0);
    check(&requests, 1.0);
    assert_eq!(calls_of(&calls), [3]);
}

/// The request is dropped while it waits for a batch, or during its call.
#[test]
fn a_dropped_request_leaves_the_others_to_their_results() {
    for is_on in [false, true] {
        let gate = Gate::closed();
        let calls = Calls::default();
        let model = compile_with(Script { gate: Some(gate.clone()), ..counting(&calls) }, &batches(3, HOURS));
        let mut requests = requests(&model, 4);
        start(&requests[..if is_on { 3 } else { 2 }], 1.0);
        if is_on {
            gate.wait_for_arrivals(1);
        }
        let dropped = requests.remove(1);
        in_time(move || drop(dropped));
        if !is_on {
            start(&requests[1..], 3.0);
        }
        gate.open();
        check(&requests[..1], 1.0);
        check(&requests[1..2], 3.0);
        if !is_on {
            check(&requests[2..], 4.0);
        }
        assert_eq!(calls_of(&calls), [3]);
    }
}

/// If all requests of a call are dropped, the call is canceled and the next call starts.
#[test]
fn a_call_that_nobody_waits_for_is_canceled() {
    let gate = Gate::closed();
    gate.open();
    let n_calls = Arc::new(AtomicUsize::new(0));
    let n = n_calls.clone();
    // The first call ends only when it is canceled. Dropping its requests must still return.
    let script = Script::computing(move |io, cancel| {
        let is_first = n.fetch_add(1, Ordering::AcqRel) == 0;
        while is_first && !cancel.is_canceled() {
            std::thread::yield_now();
        }
        cancel.check().and_then(|()| double(io))
    });
    let model = compile_with(Script { gate: Some(gate.clone()), ..script }, &batches(2, HOURS));
    let requests = requests(&model, 2);
    start(&requests, 1.0);
    gate.wait_for_arrivals(1);
    in_time(move || drop(requests));
    let requests = self::requests(&model, 2);
    start(&requests, 1.0);
    in_time(move || check(&requests, 1.0));
    assert_eq!(n_calls.load(Ordering::Acquire), 2);
}

#[test]
fn the_model_and_its_last_request_may_be_dropped_while_a_call_is_on() {
    let gate = Gate::closed();
    let model = compile_with(Script { gate: Some(gate.clone()), ..doubling() }, &batches(2, HOURS));
    let requests = requests(&model, 2);
    start(&requests, 1.0);
    gate.wait_for_arrivals(1);
    let dropping = std::thread::spawn(move || drop((model, requests)));
    gate.open();
    in_time(move || dropping.join().unwrap());
}

#[test]
fn callbacks_come_once_each_see_their_own_row_and_may_start_the_next_run() {
    let (model, calls) = compile_counting(4, HOURS);
    let requests = requests(&model, 4);
    let (sender, receiver) = mpsc::channel();
    for (idx, request) in requests.iter().enumerate() {
        let (sender, n) = (sender.clone(), AtomicUsize::new(0));
        let called = move |request: &InferRequest, result: Result<()>| {
            result.unwrap();
            sender.send((idx, values(&request.output_tensor(()).unwrap())[0])).unwrap();
            if n.fetch_add(1, Ordering::AcqRel) < 4 {
                request.start_async(request.output_tensor(()).unwrap()).unwrap();
            }
        };
        request.set_callback(called).unwrap();
    }
    start(&requests, 1.0);
    let mut told: Vec<(usize, f32)> = (0..20).map(|_| receive(&receiver)).collect();
    told.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let expected: Vec<_> = (0..4).flat_map(|idx| (1..=5).map(move |round| (idx, (1.0 + idx as f32) * 2_f32.powi(round)))).collect();
    assert_eq!(told, expected);
    requests.iter().for_each(|request| wait(request).unwrap());
    assert!(receiver.try_recv().is_err());
    assert_eq!(calls_of(&calls), [4; 5]);
}

#[test]
fn steps_of_the_user_run_for_each_run_with_its_own_inputs_and_outputs() {
    let (model, calls) = compile_counting(2, HOURS);
    let requests = requests(&model, 2);
    let (sender, receiver) = mpsc::channel();
    for request in &requests {
        let sender = sender.clone();
        let seen = move |context: &roiflow::runtime::RunContext<'_>| {
            let (input, output) = (context.input::<f32>(0)?.1.to_vec(), context.output::<f32>(0)?.1.to_vec());
            sender.send((input[0], output[0])).unwrap();
            Ok(())
        };
        request.append_step("decode", seen).unwrap();
    }
    start(&requests, 3.0);
    check(&requests, 3.0);
    let mut seen = [receive(&receiver), receive(&receiver)];
    seen.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(seen, [(3.0, 6.0), (4.0, 8.0)]);
    assert_eq!(calls_of(&calls), [2]);
}

/// Step times of a batched run: the engine's time is the time of the whole call. A run that is not batched has the same steps.
#[test]
fn step_times_name_the_steps_of_the_device_and_tell_the_time_of_the_call() {
    let script = Script::computing(|io, _| {
        let begin = std::time::Instant::now();
        while begin.elapsed() < Duration::from_millis(2) {}
        double(io)
    });
    let model = compile_with(script, &batches(2, HOURS));
    let requests = requests(&model, 2);
    start(&requests, 1.0);
    check(&requests, 1.0);
    requests[0].infer(()).unwrap();
    for request in &requests {
        let times = request.step_times().unwrap();
        assert!(times.iter().map(|step| &*step.name).eq(["fill", "join", "batch", "infer"]));
        assert!(times[3].duration >= Duration::from_millis(2), "{times:?}");
        assert!(request.latency().unwrap() >= Duration::from_millis(2));
    }
}

/// On a device that computes in parallel to the CPU, each step runs once per call instead of once per run.
#[test]
fn a_device_with_several_steps_takes_them_once_for_all() {
    let calls = Calls::default();
    let script = Arc::new(Script { has_own_waiter: true, ..counting(&calls) });
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(script.clone())));
    let model = compile_on(&core, "NULL", &batches(4, HOURS));
    let requests = requests(&model, 4);
    start(&requests, 1.0);
    check(&requests, 1.0);
    assert_eq!((calls_of(&calls), script.n_calls()), (vec![4], 1));
    requests[0].infer(row([9.0; 4])).unwrap();
    check(&requests[..1], 9.0);
    assert_eq!(script.n_calls(), 2);
}

#[test]
fn inputs_of_every_kind_are_gathered() {
    struct Seven;
    impl roiflow::runtime::FillInput for Seven {
        fn shape(&mut self, _port: &Port) -> Result<roiflow::tensor::Shape> {
            Ok([1, 4].into())
        }

        fn fill(&mut self, input: &mut roiflow::tensor::BytesMut) -> Result<()> {
            input.dense_mut::<f32>()?.fill(7.0);
            Ok(())
        }
    }
    let (model, calls) = compile_counting(5, HOURS);
    let requests = requests(&model, 5);
    let big = Tensor::from_slice([3, 6], &(0..18).map(|value| value as f32).collect::<Vec<_>>()).unwrap();
    requests[0].set_input((), Seven).unwrap();
    requests[1].set_tensor("x", &big.roi(&[1, 1], &[2, 5]).unwrap()).unwrap();
    requests[2].set_tensors("x", &[row([1.0, 2.0, 3.0, 4.0])]).unwrap();
    requests[3].input_tensor(()).unwrap().view_mut::<f32>().unwrap().fill(5.0);
    requests[4].set_inputs(ndarray::arr2(&[[6_u8; 4]])).unwrap();
    // The output is a region of a tensor that the user set.
    let results = Tensor::from_slice([3, 6], &[-1.0_f32; 18]).unwrap();
    requests[4].set_output_tensor((), &results.roi(&[1, 1], &[2, 5]).unwrap()).unwrap();
    requests.iter().for_each(|request| request.start_async(()).unwrap());
    requests.iter().for_each(|request| wait(request).unwrap());
    let outputs: Vec<_> = requests.iter().map(|request| values(&request.output_tensor(()).unwrap())).collect();
    let expected = [[14.0; 4], [14.0, 16.0, 18.0, 20.0], [2.0, 4.0, 6.0, 8.0], [10.0; 4], [12.0; 4]];
    assert_eq!(outputs, expected.map(|row| row.to_vec()));
    assert_eq!(values(&results).iter().filter(|value| **value == -1.0).count(), 14, "only the region of the output was written");
    assert_eq!(values(&requests[0].input_tensor(()).unwrap()), [7.0; 4], "the filler wrote to the request's own tensor");
    assert_eq!(calls_of(&calls), [5]);
}

/// As without batching, a run leases the tensors that it reads from its start to its end.
#[test]
fn tensors_of_the_user_are_leased_for_the_run_and_then_free() {
    let (model, _calls) = compile_counting(2, HOURS);
    let requests = requests(&model, 2);
    let input = row([1.0; 4]);
    requests[0].start_async(&input).unwrap();
    assert!(input.view_mut::<f32>().is_err(), "a run that waits for a batch leases its input");
    start(&requests[1..], 2.0);
    check(&requests, 1.0);
    input.view_mut::<f32>().unwrap().fill(5.0);
    requests[0].clear_inputs().unwrap();
    assert!(input.view_mut::<f32>().is_ok());
}

#[test]
fn a_batch_of_the_requests_own_goes_by_itself_at_once() {
    let calls = Calls::default();
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(Arc::new(counting(&calls)))));
    let info = ModelInfo { inputs: vec![port("x", &[0, 4])], outputs: vec![port("y", &[0, 4])], ..ModelInfo::default() };
    let model = core.compile_model(&Model::from_ports(info), "NULL", &batches(3, HOURS)).unwrap();
    let requests = requests(&model, 4);
    start(&requests[..2], 1.0);
    requests[2].set_tensors((), &[row([3.0; 4]), row([4.0; 4])]).unwrap();
    requests[2].start_async(()).unwrap();
    wait(&requests[2]).unwrap();
    assert_eq!(values(&requests[2].output_tensor(()).unwrap()), [[6.0; 4], [8.0; 4]].as_flattened());
    requests[2].start_async(Tensor::from_slice([5, 4], &[1.0_f32; 20]).unwrap()).unwrap();
    wait(&requests[2]).unwrap();
    assert_eq!(calls_of(&calls), [2, 5]);
    start(&requests[3..], 3.0);
    check(&requests[..2], 1.0);
    check(&requests[3..], 3.0);
    assert_eq!(calls_of(&calls), [2, 5, 3]);
}

#[test]
fn a_run_on_the_memory_of_a_device_goes_by_itself_at_once() {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::default()));
    let model = compile_on(&core, "NULL", &batches(3, HOURS));
    let requests = requests(&model, 3);
    let context = core.create_context("NULL", &ContextParams::DeviceMemory { max_bytes: None }).unwrap();
    let remote = context.create_tensor(ElementType::F32, [1, 4]).unwrap();
    requests[0].set_tensor("x", &remote).unwrap();
    requests[1].set_output_tensor("y", &remote.clone()).unwrap();
    for request in &requests[..2] {
        request.start_async(()).unwrap();
        wait(request).unwrap();
    }
}

#[test]
fn a_synchronous_run_goes_by_itself_on_its_callers_thread() {
    let (model, calls) = compile_counting(4, HOURS);
    let requests = requests(&model, 4);
    start(&requests[..2], 1.0);
    requests[2].infer(row([3.0; 4])).unwrap();
    check(&requests[2..3], 3.0);
    assert_eq!(values(&model.infer(row([4.0; 4])).unwrap()[0]), [8.0; 4]);
    assert_eq!(calls_of(&calls), [1, 1]);
    start(&requests[2..], 3.0);
    check(&requests, 1.0);
    assert_eq!(calls_of(&calls), [1, 1, 4]);
}

#[test]
fn a_queue_keeps_its_promises_over_gathered_runs() {
    let calls = Calls::default();
    let model = compile_with(counting(&calls), &batches(4, Duration::from_millis(1)));
    let queue = AsyncInferQueue::new(&model, 8).unwrap();
    assert_eq!((model.optimal_number_of_requests(), AsyncInferQueue::<()>::new(&model, 0).unwrap().len()), (8, 8));
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = told.clone();
    queue.set_callback(move |request, job: i32, result| {
        let output = result.map(|()| values(&request.output_tensor(()).unwrap())[0]);
        to.lock().unwrap().push((job, output.map_err(|error| error.to_string())));
    });
    for job in 0..100 {
        let bad = job % 10 == 9;
        queue.start_async(row([if bad { -1.0 } else { job as f32 }; 4]), job).unwrap();
    }
    let queue = Arc::new(queue);
    let errors = in_time({
        let queue = queue.clone();
        move || queue.wait_all().unwrap_err()
    });
    assert_eq!(errors.errors.len() as u64 + errors.n_more, 10);
    let mut told = told.lock().unwrap().clone();
    told.sort_by_key(|(job, _)| *job);
    let expected = (0..100).map(|job| (job, if job % 10 == 9 { Err("a bad row".to_owned()) } else { Ok(2.0 * job as f32) }));
    assert_eq!(told, expected.collect::<Vec<_>>());
    let n_rows: usize = calls_of(&calls).iter().sum();
    assert!(calls_of(&calls).iter().all(|n_rows| *n_rows <= 4) && n_rows >= 100);
    drop(queue);
}

/// Several owners, such as streams, use one compiled model. The runs of all owners are batched together.
#[test]
fn owners_of_one_compiled_model_share_its_batches() {
    let (model, calls) = compile_counting(4, HOURS);
    let owners = [model.clone(), model.clone(), model.clone(), model];
    let requests: Vec<_> = owners.iter().map(|model| model.create_infer_request().unwrap()).collect();
    let threads: Vec<_> = requests
        .iter()
        .cloned()
        .enumerate()
        .map(|(idx, request)| {
            std::thread::spawn(move || {
                for round in 0..50 {
                    request.start_async(row([(100 * idx + round) as f32; 4])).unwrap();
                    request.wait().unwrap();
                    assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0 * (100 * idx + round) as f32; 4]);
                }
            })
        })
        .collect();
    in_time(move || threads.into_iter().for_each(|thread| thread.join().unwrap()));
    assert_eq!(calls_of(&calls), [4; 50]);
    assert_eq!(owners[0].properties().config.batch_size, 4);
}

/// All steps run on the thread that starts the last run. Callbacks then start further runs inside that start, so the runtime must not hold
/// a lock meanwhile.
#[test]
fn runs_that_end_inside_the_last_start_call_back_and_start_again() {
    let calls = Calls::default();
    let script = Script { executor: Some(Arc::new(Inline)), ..counting(&calls) };
    let model = compile_with(script, &batches(3, HOURS));
    let requests = requests(&model, 3);
    let n_called = Arc::new(AtomicUsize::new(0));
    for request in &requests {
        let n_called = n_called.clone();
        let called = move |request: &InferRequest, _result: Result<()>| {
            if n_called.fetch_add(1, Ordering::AcqRel) < 6 {
                request.start_async(()).unwrap();
            }
        };
        request.set_callback(called).unwrap();
    }
    in_time(move || {
        start(&requests, 1.0);
        requests.iter().for_each(|request| request.wait().unwrap());
        // The run is also canceled on the current thread.
        requests[0].start_async(()).unwrap();
        requests[0].cancel();
        assert_eq!(kind(requests[0].wait()), Some(ErrorKind::Canceled));
    });
    assert_eq!((calls_of(&calls), n_called.load(Ordering::Acquire)), (vec![3; 3], 10));
}

#[test]
fn a_batch_size_out_of_its_range_is_refused() {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::default()));
    let info = ModelInfo { inputs: vec![port("x", &[1, 4])], outputs: vec![port("y", &[1, 4])], ..ModelInfo::default() };
    let model = Model::from_ports(info);
    for batch_size in [0, MAX_BATCH_SIZE + 1] {
        let error = core.compile_model(&model, "NULL", &batches(batch_size, HOURS)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_eq!(error.to_string(), format!("batch size: expected 1 (none) to 1024, got {batch_size}"));
    }
    core.compile_model(&model, "NULL", &batches(MAX_BATCH_SIZE, HOURS)).unwrap();
}

/// If runs of a model cannot be batched, compilation fails with the expected and the actual value.
#[test]
fn a_model_without_a_batch_is_refused_when_it_is_compiled() {
    let one = |dims: &[usize]| vec![port("x", dims)];
    let cases: Vec<(Vec<Port>, Vec<Port>, Script, &str)> = vec![
        (one(&[4, 4]), one(&[4, 4]), doubling(), "input `x` [4, 4] f32: expected a first axis of 1, or a dynamic one from 1 to 8, got 4"),
        (one(&[]), one(&[1]), doubling(), "input `x` [] f32: expected the batch as its first axis, as in `NCHW`, got the axes none"),
        (one(&[0, 0]), one(&[0, 0]), doubling(), "input `x` [?, ?] f32: expected all extents except the first to be fixed"),
        (vec![], one(&[1, 4]), doubling(), "the model has no inputs"),
        (one(&[1, 4]), vec![port("y", &[100, 4])], doubling(), "output `y` [100, 4] f32: expected the batch as its first axis"),
        (one(&[1, 4]), one(&[1, 4]), Script { mixes_rows: true, ..doubling() }, "its batch items are not independent"),
    ];
    for (inputs, outputs, script, expected) in cases {
        let mut core = Core::new();
        core.register(Arc::new(NullDevice::new(Arc::new(script))));
        let model = Model::from_ports(ModelInfo { inputs, outputs, ..ModelInfo::default() });
        core.compile_model(&model, "NULL", &Config::default()).unwrap();
        let error = core.compile_model(&model, "NULL", &batches(8, HOURS)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let expected = format!("batch size 8 of `model of ports` on device NULL: {expected}");
        assert!(error.to_string().starts_with(&expected), "{error}\n{expected}");
    }
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::default()));
    let info = ModelInfo { inputs: one(&[1, 4]), outputs: one(&[1, 4]), ..ModelInfo::default() };
    let model = Model::from_ports(info).with_axes("x", "CN".parse::<Axes>().unwrap()).unwrap();
    let error = core.compile_model(&model, "NULL", &batches(8, HOURS)).unwrap_err();
    assert!(error.to_string().contains("got the axes `CN`"), "{error}");
    let bounded = Model::from_ports(ModelInfo {
        inputs: vec![Port::new("x", ElementType::F32, [Dim::from(1..=4), 4.into()])],
        outputs: one(&[0, 4]),
        ..ModelInfo::default()
    });
    assert_eq!(kind(core.compile_model(&bounded, "NULL", &batches(8, HOURS))), Some(ErrorKind::Unsupported));
    core.compile_model(&bounded, "NULL", &batches(4, HOURS)).unwrap();
}

#[test]
fn a_stateful_model_is_refused_when_it_is_compiled() {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::default()));
    let info = ModelInfo {
        inputs: vec![port("x", &[1, 4]), port("state", &[1, 4])],
        outputs: vec![port("y", &[1, 4]), port("state_out", &[1, 4])],
        ..ModelInfo::default()
    };
    let model = Model::from_ports(info).make_stateful([("state", "state_out")]).unwrap();
    let error = core.compile_model(&model, "NULL", &batches(2, HOURS)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("each request of a stateful model has its own state"), "{error}");
}
