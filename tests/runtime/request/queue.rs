//! `AsyncInferQueue`, with more jobs than requests.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};

use ndarray::arr2;
use roiflow::runtime::queue::TryStartError;
use roiflow::runtime::{AsyncInferQueue, ErrorKind, Input, Inputs, JobErrors, PortKey, RefusedJob};

use super::panic::more_than_workers;
use super::*;
use crate::support::{in_time, receive, row, values};

/// Returns a script that fails for numbers below zero.
fn picky() -> Script {
    Script::computing(
        |io, _| if read(io.input(0))[0] < 0.0 { Err(Error::new(ErrorKind::Device, "a number below zero")) } else { double(io) },
    )
}

/// Returns a queue whose device blocks its jobs until the returned gate opens.
fn gated_queue<U: Send + 'static>(n_requests: usize) -> (AsyncInferQueue<U>, Arc<Gate>) {
    let gate = Gate::closed();
    let queue = AsyncInferQueue::new(&compile(Script { gate: Some(gate.clone()), ..picky() }), n_requests).unwrap();
    (queue, gate)
}

fn kinds(errors: &JobErrors) -> Vec<(u64, ErrorKind)> {
    errors.errors.iter().map(|failed| (failed.job, failed.error.kind())).collect()
}

/// Equivalent OpenVINO test: infer_queue. Eight jobs run on four requests. The callback is called once per job, with the data and values of
/// that job.
#[test]
fn eight_jobs_run_on_four_requests() {
    let queue = AsyncInferQueue::new(&compile(doubling()), 4).unwrap();
    let (sender, receiver) = mpsc::channel();
    queue.set_callback(move |request, job: usize, result| {
        let output = result.and_then(|()| request.output_tensor(())).map(|output| values(&output)[0]);
        sender.send((job, output.unwrap(), request.latency().unwrap() > std::time::Duration::ZERO)).unwrap();
    });
    let numbers: Vec<u64> = (0..8).map(|job| queue.start_async(row([job as f32; 4]), job).unwrap()).collect();
    assert_eq!(numbers, (0..8).collect::<Vec<_>>());
    queue.wait_all().unwrap();
    let mut answers: Vec<_> = receiver.try_iter().collect();
    answers.sort_by_key(|(job, ..)| *job);
    assert_eq!(answers, (0..8).map(|job| (job, 2.0 * job as f32, true)).collect::<Vec<_>>());
    queue.wait_all().unwrap();
    assert!(queue.is_ready());
}

/// The callback of the first job waits for a run that is queued behind all jobs. The threads that complete these jobs wait for the callback.
#[test]
fn callback_that_changes_variables_may_wait_for_another_request() {
    let gate = Gate::closed();
    // Both use the threads of one core.
    let model = compile(Script { gate: Some(gate.clone()), ..picky() });
    let queue = AsyncInferQueue::new(&model, more_than_workers()).unwrap();
    let other = model.create_infer_request().unwrap();
    let (sender, receiver) = mpsc::channel();
    let mut n_calls = 0;
    queue.set_callback_mut(move |_, _: (), result| {
        result.unwrap();
        n_calls += 1;
        if n_calls == 1 {
            other.start_async(row([1.0; 4])).unwrap();
            other.wait().unwrap();
        }
        sender.send(n_calls).unwrap();
    });
    let n_jobs = queue.len();
    for _ in 0..n_jobs {
        queue.start_async(row([1.0; 4]), ()).unwrap();
    }
    gate.open();
    in_time(move || queue.wait_all()).unwrap();
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), (1..=n_jobs).collect::<Vec<_>>());
}

/// Equivalent OpenVINO test: infer_queue_iteration.
#[test]
#[allow(clippy::mutable_key_type, reason = "a handle is hashed by its number, which never changes")]
fn the_requests_of_a_queue_can_be_looked_at() {
    let model = compile(doubling());
    let queue = AsyncInferQueue::<()>::new(&model, 3).unwrap();
    assert_eq!((queue.len(), queue.is_empty()), (3, false));
    assert_eq!(queue.iter().cloned().collect::<HashSet<InferRequest>>().len(), 3);
    assert_eq!(queue[2].model_inputs()[0].name(), "x");
    assert_eq!(AsyncInferQueue::<()>::new(&model, 0).unwrap().len(), model.optimal_number_of_requests());
    assert_eq!(format!("{queue:?}"), "AsyncInferQueue(3 requests)");
}

/// Equivalent OpenVINO test: infer_queue_userdata_is_empty. One job and five jobs, without data and without a callback.
#[test]
fn jobs_need_no_data_and_no_callback() {
    for n_jobs in [1, 5] {
        let queue = AsyncInferQueue::new(&compile(doubling()), 2).unwrap();
        for _ in 0..n_jobs {
            queue.start_async(row([1.0; 4]), ()).unwrap();
        }
        queue.wait_all().unwrap();
        assert!(queue.iter().any(|request| values(&request.output_tensor(()).unwrap()) == [2.0; 4]));
    }
}

/// Equivalent OpenVINO tests (see `tests/conformance.txt`): results_async_infer, C18 start_async with 3 requests and callbacks. Results
/// equal those of a synchronous run.
#[test]
fn results_are_those_of_a_synchronous_run() {
    let model = compile(doubling());
    let queue = AsyncInferQueue::new(&model, 3).unwrap();
    let (sender, receiver) = mpsc::channel();
    queue.set_callback(move |request, input: f32, _| sender.send((input, request.results().unwrap().array::<f32>(()).unwrap())).unwrap());
    for n in 0..9 {
        queue.start_async(arr2(&[[n as f32; 4]]), n as f32).unwrap();
    }
    queue.wait_all().unwrap();
    for (input, output) in receiver.try_iter() {
        assert_eq!(output, model.infer(row([input; 4])).unwrap().array::<f32>(()).unwrap());
    }
}

/// Equivalent OpenVINO tests: fail_on_cpp_model, fail_on_py_model. `wait_all` returns a panic of the callback, and the queue stays usable.
#[test]
fn a_panic_of_the_callback_comes_out_of_wait_all() {
    let queue = AsyncInferQueue::new(&compile(doubling()), 2).unwrap();
    queue.set_callback(|_, job: u64, _| assert!(job != 1, "not this one"));
    for job in 0..4 {
        queue.start_async(row([1.0; 4]), job).unwrap();
    }
    let errors = queue.wait_all().unwrap_err();
    assert_eq!(kinds(&errors), [(1, ErrorKind::Panic)]);
    assert!(errors.to_string().contains("job 1: the queue's callback panicked: not this one"), "{errors}");
    assert_eq!(Error::from(errors).kind(), ErrorKind::Panic);
    queue.start_async((), 9).unwrap();
    queue.wait_all().unwrap();
}

/// Equivalent OpenVINO test: fail_in_inference. In contrast to OpenVINO, the callback of a failed job is called with the error.
#[test]
fn the_error_of_a_job_reaches_its_callback_and_wait_all_once() {
    let queue = AsyncInferQueue::new(&compile(picky()), 2).unwrap();
    let (sender, receiver) = mpsc::channel();
    queue.set_callback(move |_, job: u64, result| sender.send((job, kind(result))).unwrap());
    for job in 0..6 {
        queue.start_async(row([if job % 3 == 1 { -1.0 } else { 1.0 }; 4]), job).unwrap();
    }
    let errors = queue.wait_all().unwrap_err();
    assert_eq!((errors.errors.len(), errors.n_more), (2, 0));
    assert!(errors.errors.iter().all(|failed| failed.job % 3 == 1 && failed.error.kind() == ErrorKind::Device), "{errors}");
    let mut told: Vec<_> = receiver.try_iter().collect();
    told.sort_by_key(|(job, _)| *job);
    assert_eq!(told, (0..6).map(|job| (job, (job % 3 == 1).then_some(ErrorKind::Device))).collect::<Vec<_>>());
    queue.wait_all().unwrap();
}

/// The queue stores a limited number of errors and counts further errors. Each error is returned once.
#[test]
fn errors_do_not_pile_up() {
    let queue = AsyncInferQueue::new(&compile(failing()), 2).unwrap();
    for _ in 0..100 {
        queue.start_async((), ()).unwrap();
    }
    let errors = queue.wait_all().unwrap_err();
    assert_eq!((errors.errors.len(), errors.n_more), (16, 84));
    assert!(errors.to_string().ends_with("; and 84 more"), "{errors}");
    queue.wait_all().unwrap();
    queue.start_async((), ()).unwrap();
    assert_eq!(kinds(&queue.wait_all().unwrap_err()), [(100, ErrorKind::Device)]);
}

/// Equivalent OpenVINO test: test_cancel. Every job succeeds or is canceled.
#[test]
fn canceled_jobs_end_and_the_queue_goes_on() {
    let (queue, gate) = gated_queue(2);
    let (sender, receiver) = mpsc::channel();
    queue.set_callback(move |_, (), result| sender.send(kind(result)).unwrap());
    for _ in 0..2 {
        queue.start_async((), ()).unwrap();
    }
    queue.iter().for_each(InferRequest::cancel);
    gate.open();
    let ended = queue.wait_all();
    assert!(receiver.try_iter().all(|kind| matches!(kind, None | Some(ErrorKind::Canceled))));
    assert!(ended.err().is_none_or(|errors| kinds(&errors).iter().all(|(_, kind)| *kind == ErrorKind::Canceled)));
    queue.start_async((), ()).unwrap();
    queue.wait_all().unwrap();
}

/// `start_async` waits for an idle request. `try_start_async` does not wait, and returns the data of the job.
#[test]
fn a_full_queue_holds_back_or_says_so() {
    let (queue, gate) = gated_queue(2);
    let queue = Arc::new(queue);
    for job in 0..2 {
        queue.start_async((), format!("job {job}")).unwrap();
    }
    gate.wait_for_arrivals(1);
    assert!(!queue.is_ready());
    match queue.try_start_async((), "data".to_owned()) {
        Err(TryStartError::Full(data)) => assert_eq!(data, "data"),
        other => panic!("{other:?}"),
    }
    assert!(queue.try_take_idle().is_none());
    let started = std::thread::spawn({
        let queue = queue.clone();
        move || queue.start_async((), "waits".to_owned())
    });
    gate.open();
    assert_eq!(in_time(move || started.join().unwrap()).unwrap(), 2);
    in_time(move || queue.wait_all()).unwrap();
}

/// An invalid input is rejected immediately, and the request is available to the next job.
#[test]
fn a_job_that_is_refused_costs_no_request() {
    let queue = AsyncInferQueue::new(&compile(doubling()), 1).unwrap();
    for _ in 0..3 {
        assert_eq!(kind(queue.start_async(arr2(&[[1.0_f32; 3]]), ())), Some(ErrorKind::Tensor));
        assert!(
            matches!(queue.try_start_async([("z", &row([0.0; 4]))], ()), Err(TryStartError::Refused(error)) if error.kind() == ErrorKind::NotFound)
        );
    }
    assert!(queue.is_ready());
    queue.start_async(row([1.0; 4]), ()).unwrap();
    queue.wait_all().unwrap();
}

/// Equivalent OpenVINO test: get_idle_handle. An idle request is taken, prepared and started, or returned unused.
#[test]
fn an_idle_request_that_is_taken_is_nobody_elses() {
    let queue = AsyncInferQueue::new(&compile(doubling()), 2).unwrap();
    let (sender, receiver) = mpsc::channel();
    queue.set_callback(move |request, job: &str, _| sender.send((job, values(&request.output_tensor(()).unwrap())[0])).unwrap());
    let (first, second) = (queue.take_idle().unwrap(), queue.take_idle().unwrap());
    assert_ne!(*first, *second);
    assert!(!queue.is_ready() && queue.try_take_idle().is_none());
    first.set_input_tensor((), &row([4.0; 4])).unwrap();
    first.start((), "prepared").unwrap();
    assert_eq!(receive(&receiver), ("prepared", 8.0));
    drop(second);
    let _both = (queue.take_idle().unwrap(), queue.take_idle().unwrap());
    queue.wait_all().unwrap();
}

/// The owner of an idle request starts a run that is not a job. The request becomes idle in the queue when this run ends.
#[test]
fn a_run_of_the_holders_own_keeps_the_request_until_it_ends() {
    let (queue, gate) = gated_queue::<()>(1);
    queue.set_callback(|_, (), _| panic!("no job was started"));
    let idle = queue.take_idle().unwrap();
    idle.start_async(()).unwrap();
    drop(idle);
    assert!(!queue.is_ready());
    gate.open();
    in_time(move || {
        queue.wait_all().unwrap();
        assert!(queue.is_ready());
    });
}

/// Another handle of a taken request runs it synchronously. The request must become idle in the queue when this run ends.
#[test]
fn a_synchronous_run_by_another_handle_does_not_lose_the_request() {
    let (queue, gate) = gated_queue::<()>(1);
    let idle = queue.take_idle().unwrap();
    let other: InferRequest = idle.clone();
    let running = std::thread::spawn(move || other.infer(()));
    gate.wait_for_arrivals(1);
    drop(idle);
    gate.open();
    running.join().unwrap().unwrap();
    in_time(move || {
        queue.wait_all().unwrap();
        drop(queue.take_idle().unwrap());
    });
}

/// Inputs whose `visit` blocks until the test continues it. An edit of the request stays in progress meanwhile.
struct Slow {
    begun: Mutex<mpsc::Sender<()>>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Inputs for Slow {
    fn visit(&self, _see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        // Inputs are visited twice: first to check them, then to set them.
        let _heard = self.begun.lock().unwrap().send(());
        let _told = self.go_on.lock().unwrap().recv();
        Ok(())
    }
}

fn slow() -> (Slow, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let ((begun, has_begun), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    (Slow { begun: Mutex::new(begun), go_on: Mutex::new(may_go_on) }, has_begun, go_on)
}

/// Another handle sets an input while the owner returns the request to the queue.
#[test]
fn an_edit_by_another_handle_does_not_lose_the_request() {
    let queue = AsyncInferQueue::<()>::new(&compile(doubling()), 1).unwrap();
    let idle = queue.take_idle().unwrap();
    let other: InferRequest = idle.clone();
    let (inputs, has_begun, go_on) = slow();
    let editing = std::thread::spawn(move || other.set_inputs(inputs));
    receive(&has_begun);
    drop(idle);
    drop(go_on);
    editing.join().unwrap().unwrap();
    in_time(move || {
        queue.wait_all().unwrap();
        queue.start_async((), ()).unwrap();
        queue.wait_all().unwrap();
    });
}

/// An async task that awaited the run sets the next inputs before the queue is notified of the end of the run.
#[test]
fn an_edit_right_after_a_run_does_not_lose_the_request() {
    struct Edits {
        request: InferRequest,
        slow: Mutex<Option<(Slow, mpsc::Receiver<()>)>>,
    }
    impl Wake for Edits {
        fn wake(self: Arc<Self>) {
            let (request, (inputs, has_begun)) = (self.request.clone(), self.slow.lock().unwrap().take().unwrap());
            std::thread::spawn(move || request.set_inputs(inputs));
            receive(&has_begun);
        }
    }
    let (queue, gate) = gated_queue(1);
    let (inputs, has_begun, go_on) = slow();
    queue.start_async((), ()).unwrap();
    gate.wait_for_arrivals(1);
    let waker = Waker::from(Arc::new(Edits { request: queue[0].clone(), slow: Mutex::new(Some((inputs, has_begun))) }));
    let mut awaited = std::pin::pin!(queue[0].clone().into_future());
    assert!(awaited.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    gate.open();
    in_time(move || {
        queue.wait_all().unwrap();
        drop(go_on);
        drop(queue.take_idle().unwrap());
    });
}

/// Each of many producers gets its own request. No start fails with `Busy`.
#[test]
fn many_producers_never_meet_a_busy_request() {
    let queue = AsyncInferQueue::new(&compile(doubling()), 3).unwrap();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let to = answers.clone();
    queue.set_callback(move |request, input: f32, _| to.lock().unwrap().push((input, values(&request.output_tensor(()).unwrap())[0])));
    in_time(move || {
        std::thread::scope(|scope| {
            for producer in 0..6 {
                let queue = &queue;
                scope.spawn(move || {
                    for n in 0..100 {
                        let input = (1000 * producer + n) as f32;
                        queue.start_async(arr2(&[[input; 4]]), input).unwrap();
                        if n % 10 == 0 {
                            drop(queue.try_take_idle());
                        }
                    }
                });
            }
        });
        queue.wait_all().unwrap();
    });
    let answers = answers.lock().unwrap();
    assert_eq!(answers.len(), 600);
    assert!(answers.iter().all(|(input, output)| *output == 2.0 * input));
}

/// A wait that could never end inside the queue's own callback is an error.
#[test]
fn waiting_in_the_queues_own_callback_is_refused() {
    let queue = Arc::new(AsyncInferQueue::new(&compile(doubling()), 1).unwrap());
    let (sender, receiver) = mpsc::channel();
    let inside = Arc::downgrade(&queue);
    queue.set_callback(move |_, depth: usize, _| {
        let Some(queue) = inside.upgrade() else { return };
        if depth == 0 {
            let waited = queue.wait_all().map_err(Error::from);
            sender.send((kind(waited), kind(queue.start_async((), 1)), queue.try_start_async((), 1).is_err())).unwrap();
        }
    });
    queue.start_async((), 0).unwrap();
    let would = Some(ErrorKind::WouldDeadlock);
    assert_eq!(receive(&receiver), (would, would, true));
    queue.wait_all().unwrap();
}

/// A callback may start the next job if another request is idle.
#[test]
fn a_callback_may_start_a_job_on_another_request() {
    let queue = Arc::new(AsyncInferQueue::new(&compile(doubling()), 2).unwrap());
    let (sender, receiver) = mpsc::channel();
    let inside = Arc::downgrade(&queue);
    queue.set_callback(move |_, is_first: bool, _| {
        if is_first && let Some(queue) = inside.upgrade() {
            queue.start_async((), false).unwrap();
        }
        sender.send(is_first).unwrap();
    });
    for _ in 0..20 {
        queue.start_async((), true).unwrap();
        let mut called = [receive(&receiver), receive(&receiver)];
        called.sort_unstable();
        assert_eq!(called, [false, true]);
        queue.wait_all().unwrap();
    }
}

/// Dropping the queue cancels its jobs and frees their data. No callback is called after that.
#[test]
fn a_queue_that_is_dropped_while_it_runs_calls_nobody_back() {
    let (queue, gate) = gated_queue(2);
    let (called, data) = (Arc::new(AtomicBool::new(false)), Arc::new(()));
    let set = called.clone();
    queue.set_callback(move |_, _data: Arc<()>, _| set.store(true, Ordering::Release));
    for _ in 0..2 {
        queue.start_async((), data.clone()).unwrap();
    }
    gate.wait_for_arrivals(1);
    let watched = data.clone();
    let dropping = std::thread::spawn(move || drop(queue));
    // The drop first discards the callback, and then frees the data of the jobs. Once the data is freed, no callback may be called.
    in_time(move || {
        while Arc::strong_count(&watched) > 2 {
            std::thread::yield_now();
        }
    });
    gate.open();
    in_time(move || dropping.join().unwrap());
    assert!(!called.load(Ordering::Acquire));
    assert_eq!((Arc::strong_count(&called), Arc::strong_count(&data)), (1, 1));
}

/// A value that sends a message when it is dropped.
struct Says(&'static str, mpsc::Sender<&'static str>);

impl Drop for Says {
    fn drop(&mut self) {
        self.1.send(self.0).unwrap();
    }
}

/// If a callback is running, dropping the queue waits for it.
#[test]
fn the_drop_of_a_queue_waits_for_its_callbacks() {
    let (queue, gate) = gated_queue(2);
    let (entered, has_entered) = mpsc::channel();
    let (sender, said) = mpsc::channel();
    let (said, has_ended) = (Mutex::new(said), Arc::new(AtomicBool::new(false)));
    let ended = has_ended.clone();
    let opened = gate.clone();
    queue.set_callback(move |_, of_job: Option<Says>, _| {
        if of_job.is_some() {
            return;
        }
        entered.send(()).unwrap();
        // The drop of the queue begins: it frees the data of the other job, which sends this message.
        assert_eq!(receive(&said.lock().unwrap()), "the drop has begun");
        opened.open();
        ended.store(true, Ordering::Release);
    });
    queue.start_async((), None).unwrap();
    gate.wait_for_arrivals(1);
    gate.admit(1);
    receive(&has_entered);
    queue.start_async((), Some(Says("the drop has begun", sender.clone()))).unwrap();
    let dropping = std::thread::spawn(move || {
        drop(queue);
        let waited = has_ended.load(Ordering::Acquire);
        // This message prevents the callback from blocking forever if no other message was sent.
        let _heard = sender.send("the drop is over");
        waited
    });
    assert!(in_time(move || dropping.join().unwrap()), "the callback ended first");
}

/// The last handle of the queue may be dropped in the queue's own callback.
#[test]
fn a_queue_may_be_dropped_in_its_own_callback() {
    let queue = Arc::new(Mutex::new(None));
    let inside = queue.clone();
    let (sender, receiver) = mpsc::channel();
    let made = AsyncInferQueue::new(&compile(doubling()), 2).unwrap();
    made.set_callback(move |_, (), _| {
        drop::<Option<AsyncInferQueue>>(inside.lock().unwrap().take());
        sender.send(()).unwrap();
    });
    let mut held = queue.lock().unwrap();
    made.start_async((), ()).unwrap();
    *held = Some(made);
    drop(held);
    receive(&receiver);
    in_time(move || assert!(queue.lock().unwrap().is_none()));
}

/// The callback may be replaced while jobs run. Jobs that end afterwards use the new callback.
#[test]
fn the_callback_may_be_exchanged() {
    let (queue, gate) = gated_queue(1);
    let n_first = Arc::new(AtomicUsize::new(0));
    let n = n_first.clone();
    queue.set_callback(move |_, (), _| {
        n.fetch_add(1, Ordering::AcqRel);
    });
    queue.start_async((), ()).unwrap();
    let (sender, receiver) = mpsc::channel();
    queue.set_callback(move |_, (), _| sender.send(()).unwrap());
    gate.open();
    queue.wait_all().unwrap();
    receive(&receiver);
    assert_eq!((n_first.load(Ordering::Acquire), Arc::strong_count(&n_first)), (0, 1));
}

/// Other code may only read the requests of a queue. Only the queue starts jobs and sets the callback.
#[test]
fn a_request_of_a_queue_is_started_and_wired_by_the_queue_alone() {
    let queue = AsyncInferQueue::new(&compile(doubling()), 2).unwrap();
    let (sender, receiver) = mpsc::channel();
    queue.set_callback(move |_, job: u64, result| sender.send((job, kind(result))).unwrap());
    let owned = Some(ErrorKind::OwnedByQueue);
    let outsiders: Vec<InferRequest> = queue.iter().cloned().collect();
    in_time(move || {
        for job in 0..200 {
            queue.start_async(row([1.0; 4]), job).unwrap();
            for request in &outsiders {
                assert_eq!(kind(request.start_async(())), owned);
                assert_eq!(kind(request.infer(row([2.0; 4]))), owned);
                assert_eq!(kind(::futures::executor::block_on(request.run(()))), owned);
                assert_eq!(kind(request.set_callback(|_, _| ())), owned);
                assert_eq!(kind(request.clear_callback()), owned);
            }
        }
        queue.wait_all().unwrap();
        assert_eq!(receiver.try_iter().collect::<HashMap<_, _>>(), (0..200).map(|job| (job, None)).collect());
        let idle = [queue.try_take_idle().unwrap(), queue.try_take_idle().unwrap()];
        assert!(queue.try_take_idle().is_none(), "there are two requests");
        // The owner of an idle request may run it, but may not replace its callback.
        idle[0].infer(row([3.0; 4])).unwrap();
        assert_eq!(values(&idle[0].output_tensor(()).unwrap()), [6.0; 4]);
        assert_eq!(kind(idle[0].set_callback(|_, _| ())), owned);
        drop(idle);
        assert_eq!(kind(outsiders[0].infer(())), owned);
    });
}

#[test]
fn a_refused_job_gives_its_data_back_and_takes_no_number() {
    let queue = AsyncInferQueue::new(&compile(doubling()), 1).unwrap();
    let bad = arr2(&[[1.0_f32; 3]]);
    for number in 0..3 {
        let RefusedJob { error, user_data } = queue.start_or_return(&bad, "data".to_owned()).unwrap_err();
        assert_eq!((error.kind(), &*user_data), (ErrorKind::Tensor, "data"));
        assert_eq!(kind(queue.start_async(&bad, "lost".to_owned())), Some(ErrorKind::Tensor));
        assert_eq!(queue.start_or_return(row([1.0; 4]), user_data).unwrap(), number);
    }
    queue.wait_all().unwrap();
    let busy = queue[0].input_tensor(()).unwrap();
    let view = busy.view_mut::<f32>().unwrap();
    let refused = queue.take_idle().unwrap().start_or_return((), "kept".to_owned()).unwrap_err();
    assert_eq!((refused.error.kind(), &*refused.user_data), (ErrorKind::Busy, "kept"));
    drop(view);
}
