//! Blocking waits inside callbacks and steps, fairness between models, and executors of the caller.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use roiflow::runtime::executor::{self, Executor, Manual, Pool};
use roiflow::runtime::{AsyncInferQueue, InferRequest};

use super::*;

/// Returns configurations that run callbacks and steps on one thread, and configurations that run them on the threads of the CPU pool.
fn configs() -> [Config; 4] {
    [
        Config::default(),
        Config { callback_thread: true, ..Config::default() },
        Config { exclusive_requests: true, ..Config::default() },
        Config { executor: Some(Arc::new(Pool::new("one", 1).unwrap())), ..Config::default() },
    ]
}

/// Returns a number of requests that is larger than the number of worker threads.
fn n_requests() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from) + 2
}

fn requests(model: &CompiledModel, n: usize) -> Vec<InferRequest> {
    (0..n).map(|_| model.create_infer_request().unwrap()).collect()
}

/// Starts all requests, then waits for each with a time limit.
fn run_all(requests: Vec<InferRequest>) {
    in_time(move || {
        requests.iter().for_each(|request| request.start_async(batch(1, 1)).unwrap());
        requests.iter().for_each(|request| request.wait().unwrap());
    });
}

/// Many requests run at the same time. The callback of each request starts a further request and waits for it. In half of the cases, the
/// further request has a callback too.
pub fn callbacks_may_wait_for_other_requests(device: &UnderTest) {
    for (config, has_callback) in configs().iter().flat_map(|config| [(config, false), (config, true)]) {
        let model = device.with(config);
        let first = requests(&model, n_requests());
        for request in &first {
            let second = model.create_infer_request().unwrap();
            if has_callback {
                second.set_callback(|_, result| result.unwrap()).unwrap();
            }
            let start = move |_: &InferRequest, result: Result<()>| {
                result.unwrap();
                second.start_async(batch(7, 2)).unwrap();
                second.wait().unwrap();
                assert_eq!(values(&second.output_tensor(()).unwrap()), doubled(&numbers(7, 2)));
            };
            request.set_callback(start).unwrap();
        }
        run_all(first);
    }
}

pub fn steps_may_wait_for_other_requests(device: &UnderTest) {
    for config in configs() {
        let model = device.with(&config);
        let first = requests(&model, n_requests());
        for request in &first {
            let (before, after) = (model.create_infer_request().unwrap(), model.create_infer_request().unwrap());
            let run = |request: &InferRequest| {
                request.start_async(batch(7, 2))?;
                request.wait()
            };
            request.prepend_step("before", move |_| run(&before)).unwrap();
            request.append_step("after", move |_| run(&after)).unwrap();
        }
        run_all(first);
    }
}

/// All workers execute callbacks that wait for one run, which the test does not let end. Meanwhile, other runs must still complete.
pub fn a_wait_in_a_callback_delays_no_other_run(device: &UnderTest) {
    for config in configs() {
        let model = device.with(&config);
        let (first, held, manual) = (requests(&model, n_requests()), model.create_infer_request().unwrap(), Arc::new(Manual::default()));
        held.prepend_step_on(manual.clone(), "held", |_| Ok(())).unwrap();
        held.start_async(batch(1, 1)).unwrap();
        let (sender, entered) = mpsc::channel();
        for request in &first {
            let (held, sender) = (held.clone(), sender.clone());
            let wait = move |_: &InferRequest, _| {
                sender.send(()).unwrap();
                held.wait().unwrap();
            };
            request.set_callback(wait).unwrap();
            request.start_async(batch(1, 1)).unwrap();
        }
        in_time({
            let n = first.len();
            move || (0..n).for_each(|_| entered.recv().unwrap())
        });
        run_all(requests(&model, n_requests()));
        assert!(manual.run_one());
        in_time(move || first.iter().for_each(|request| request.wait().unwrap()));
    }
}

pub fn a_queue_may_feed_a_second_queue_and_wait(device: &UnderTest) {
    for config in configs() {
        let model = device.with(&config);
        let first = AsyncInferQueue::<()>::new(&model, n_requests()).unwrap();
        let second = Arc::new(AsyncInferQueue::<()>::new(&model, 1).unwrap());
        let n_ended = Arc::new(AtomicUsize::new(0));
        let n = n_ended.clone();
        second.set_callback(move |_, (), result| {
            result.unwrap();
            n.fetch_add(1, Ordering::AcqRel);
        });
        let feeding = second.clone();
        first.set_callback(move |_, (), result| {
            result.unwrap();
            feeding.start_async(batch(3, 1), ()).unwrap();
            feeding.wait_all().unwrap();
        });
        in_time(move || {
            for _ in 0..30 {
                first.start_async(batch(1, 1), ()).unwrap();
            }
            first.wait_all().unwrap();
            second.wait_all().unwrap();
        });
        assert_eq!(n_ended.load(Ordering::Acquire), 30);
    }
}

pub fn results_in_order_may_be_read_in_a_callback(device: &UnderTest) {
    for config in configs() {
        let model = device.with(&config);
        let first = requests(&model, n_requests());
        for request in &first {
            let queue = AsyncInferQueue::<()>::new(&model, 2).unwrap();
            let read = move |_: &InferRequest, _| {
                let inputs = (0..5).map(|first| batch(first, 1));
                let read: Result<Vec<_>> = queue.ordered(inputs, |request| Ok(values(&request.output_tensor(())?))).collect();
                assert_eq!(read.unwrap(), (0..5).map(|first| doubled(&numbers(first, 1))).collect::<Vec<_>>());
            };
            request.set_callback(read).unwrap();
        }
        run_all(first);
    }
}

/// The callback waits on a channel, which the runtime does not detect. The callback of a second request sends to that channel.
pub fn waits_that_the_runtime_does_not_see_may_be_reported(device: &UnderTest) {
    for config in configs() {
        let model = device.with(&config);
        let first = requests(&model, n_requests());
        for request in &first {
            let second = model.create_infer_request().unwrap();
            let (sender, receiver) = mpsc::channel();
            second.set_callback(move |_, result| sender.send(result).unwrap()).unwrap();
            let receiver = Mutex::new(receiver);
            let start = move |_: &InferRequest, _| {
                second.start_async(batch(7, 2)).unwrap();
                executor::blocking(|| receiver.lock().unwrap().recv().unwrap()).unwrap().unwrap();
            };
            request.set_callback(start).unwrap();
        }
        run_all(first);
    }
}

/// Exactly one wait fails with `WouldDeadlock`. Then the other waits succeed.
pub fn callbacks_that_wait_for_each_other_get_an_error(device: &UnderTest) {
    for (config, n) in configs().iter().flat_map(|config| [(config, 2), (config, 3)]) {
        let model = device.with(config);
        let requests = requests(&model, n);
        let (all_inside, (sender, ends)) = (Arc::new(Barrier::new(n)), mpsc::channel());
        for (idx, request) in requests.iter().enumerate() {
            let (next, all_inside, sender) = (requests[(idx + 1) % n].downgrade(), all_inside.clone(), sender.clone());
            let wait = move |_: &InferRequest, _| {
                executor::blocking(|| all_inside.wait()).unwrap();
                sender.send(kind(next.upgrade().unwrap().wait())).unwrap();
            };
            request.set_callback(wait).unwrap();
        }
        let ends = in_time(move || {
            requests.iter().for_each(|request| request.start_async(batch(1, 1)).unwrap());
            requests.iter().for_each(|request| request.wait().unwrap());
            ends.try_iter().collect::<Vec<_>>()
        });
        assert_eq!(ends.len(), n);
        assert_eq!(ends.iter().filter(|end| **end == Some(ErrorKind::WouldDeadlock)).count(), 1, "{ends:?}");
        assert_eq!(ends.iter().filter(|end| end.is_none()).count(), n - 1, "{ends:?}");
    }
}

/// Each of two queues has one request. The callback of that request waits for the other queue: for an idle request, or for all jobs.
pub fn queues_that_wait_for_each_other_get_an_error(device: &UnderTest) {
    for (config, waits_for_all) in configs().iter().flat_map(|config| [(config, false), (config, true)]) {
        let model = device.with(config);
        let queues: [_; 2] = std::array::from_fn(|_| Arc::new(AsyncInferQueue::<()>::new(&model, 1).unwrap()));
        let (both_inside, (sender, ends)) = (Arc::new(Barrier::new(2)), mpsc::channel());
        for (idx, queue) in queues.iter().enumerate() {
            let (other, both_inside, sender) = (Arc::downgrade(&queues[1 - idx]), both_inside.clone(), sender.clone());
            queue.set_callback(move |_, (), _| {
                executor::blocking(|| both_inside.wait()).unwrap();
                let other = other.upgrade().unwrap();
                let ended = if waits_for_all { other.wait_all().map_err(Into::into) } else { other.take_idle().map(drop) };
                sender.send(kind(ended)).unwrap();
            });
        }
        let ends = in_time(move || {
            for queue in &queues {
                queue.start_async(batch(1, 1), ()).unwrap();
            }
            queues.iter().for_each(|queue| queue.wait_all().unwrap());
            ends.try_iter().collect::<Vec<_>>()
        });
        assert!(ends.contains(&Some(ErrorKind::WouldDeadlock)) && ends.contains(&None), "{ends:?}");
    }
}

/// The callback executor belongs to the caller. Runs without a callback queue no task on it.
pub fn a_run_without_a_callback_needs_no_callback_thread(device: &UnderTest) {
    let manual = Arc::new(Manual::default());
    let model = device.with(&Config { callback_executor: Some(manual.clone()), ..Config::default() });
    let request = model.create_infer_request().unwrap();
    run_all(vec![request.clone()]);
    assert_eq!(manual.n_queued(), 0);
    let (sender, receiver) = mpsc::channel();
    request.set_callback(move |_, result| sender.send(result).unwrap()).unwrap();
    request.start_async(batch(1, 1)).unwrap();
    eventually({
        let manual = manual.clone();
        move || manual.n_queued() == 1
    });
    assert!(receiver.try_recv().is_err() && manual.run_one());
    receiver.recv().unwrap().unwrap();
    request.wait().unwrap();
}

/// One model has many queued runs. A run of another model must be among the next two runs to start.
pub fn models_with_waiting_runs_take_turns(device: &UnderTest) {
    let pool = Arc::new(Pool::new("one", 1).unwrap());
    let config = Config { executor: Some(pool.clone()), ..Config::default() };
    let (many, one) = (device.with(&config), device.with(&config));
    let begun = Arc::new(Mutex::new(Vec::new()));
    let (open, gate) = mpsc::channel::<()>();
    let held = many.create_infer_request().unwrap();
    held.prepend_step("held", move |_| {
        gate.recv().unwrap_or(());
        Ok(())
    })
    .unwrap();
    held.start_async(batch(1, 1)).unwrap();
    let of_many = requests(&many, 20);
    let of_one = one.create_infer_request().unwrap();
    for (name, request) in of_many.iter().map(|request| ("many", request)).chain([("one", &of_one)]) {
        let begun = begun.clone();
        request
            .prepend_step("note", move |_| {
                begun.lock().unwrap().push(name);
                Ok(())
            })
            .unwrap();
        request.start_async(batch(1, 1)).unwrap();
    }
    drop(open);
    in_time(move || of_many.iter().chain([&of_one, &held]).for_each(|request| request.wait().unwrap()));
    let begun = begun.lock().unwrap();
    assert!(begun[..2].contains(&"one"), "{begun:?}");
}

pub fn steps_and_callbacks_run_on_the_callers_executors(device: &UnderTest) {
    let (steps, callbacks) = (Arc::new(Pool::new("steps", 2).unwrap()), Arc::new(Pool::new("calls", 1).unwrap()));
    let config = Config { executor: Some(steps.clone()), callback_executor: Some(callbacks), ..Config::default() };
    let model = device.with(&config);
    assert_eq!(model.properties().config, config);
    assert_eq!(model.properties().config.executor, Some(steps as Arc<dyn Executor>));
    let request = model.create_infer_request().unwrap();
    let (sender, names) = mpsc::channel();
    let note = move || sender.send(std::thread::current().name().unwrap_or_default().to_owned()).unwrap();
    let of_step = note.clone();
    request
        .prepend_step("before", move |_| {
            of_step();
            Ok(())
        })
        .unwrap();
    let of_step = note.clone();
    request
        .append_step("after", move |_| {
            of_step();
            Ok(())
        })
        .unwrap();
    request.set_callback(move |_, _| note()).unwrap();
    run_all(vec![request]);
    let names: Vec<_> = names.try_iter().collect();
    assert_eq!(names.len(), 3);
    assert!(names[..2].iter().all(|name| name.starts_with("steps-")) && names[2] == "calls-0", "{names:?}");
}

pub fn two_executors_for_one_purpose_are_refused(device: &UnderTest) {
    let executor: Option<Arc<dyn Executor>> = Some(Arc::new(Manual::default()));
    let both = [
        Config { executor: executor.clone(), exclusive_requests: true, ..Config::default() },
        Config { callback_executor: executor, callback_thread: true, ..Config::default() },
    ];
    for config in both {
        let (core, name, model) = (device.source)();
        let error = core.compile_model(&model, name, &config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("got both"), "{error}");
    }
}
