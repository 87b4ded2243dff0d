//! Futures of runs, in any async executor.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use ::futures::executor::{LocalPool, block_on};
use ::futures::future::join_all;
use ::futures::task::LocalSpawnExt as _;
use roiflow::runtime::{ErrorKind, RunFuture, RunOutput};
use roiflow::tensor::{ElementType, Tensor};

use super::*;
use crate::support::{in_time, receive, row, values};

/// Counts how often a task is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Woken {
    fn n(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

fn poll<T: RunOutput>(future: &mut RunFuture<T>, woken: &Arc<Woken>) -> Poll<Result<T>> {
    Pin::new(future).poll(&mut Context::from_waker(&Waker::from(woken.clone())))
}

#[test]
fn a_run_is_awaited() {
    let request = compile(doubling()).create_infer_request().unwrap();
    block_on(async {
        request.run(row([1.0; 4])).await.unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0; 4]);
        request.start_async(row([2.0; 4])).unwrap();
        (&request).await.unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [4.0; 4]);
        request.clone().await.unwrap();
    });
    let never_started = compile(doubling()).create_infer_request().unwrap();
    block_on(never_started.clone().into_future()).unwrap();
    assert_eq!(never_started.run(()).request(), &never_started);
}

/// The future returns the error of the start or of the run.
#[test]
fn errors_come_out_of_the_future() {
    let request = compile(failing()).create_infer_request().unwrap();
    assert_eq!(kind(block_on(request.run(()))), Some(ErrorKind::Device));
    assert_eq!(kind(block_on(request.clone().into_future())), Some(ErrorKind::Device));
    assert_eq!(kind(block_on(request.run(Tensor::new(ElementType::U8, [1, 4]).unwrap()))), Some(ErrorKind::Tensor));
    let (busy, manual) = turned_by_hand();
    busy.start_async(()).unwrap();
    assert_eq!(kind(block_on(busy.run(()))), Some(ErrorKind::Busy));
    assert!(manual.run_one());
    block_on(busy.into_future()).unwrap();
}

/// Both runs are in progress at the same time, and several async tasks of one thread make progress.
#[test]
fn several_runs_are_awaited_together() {
    let model = compile(doubling());
    let requests: Vec<_> = (0..4).map(|_| model.create_infer_request().unwrap()).collect();
    let runs = requests.iter().enumerate().map(|(n, request)| request.run(row([n as f32; 4])));
    assert!(block_on(join_all(runs)).iter().all(Result::is_ok));
    let mut pool = LocalPool::new();
    let sum = std::rc::Rc::new(std::cell::Cell::new(0.0));
    for request in requests {
        let to = sum.clone();
        let task = async move {
            for _ in 0..10 {
                request.run(row([1.0; 4])).await.unwrap();
                to.set(to.get() + values(&request.output_tensor(()).unwrap())[0]);
            }
        };
        pool.spawner().spawn_local(task).unwrap();
    }
    pool.run();
    assert_eq!(sum.get(), 80.0);
}

/// Dropping a future cancels its own run and no other run.
#[test]
fn a_future_that_is_dropped_cancels_its_run() {
    let (request, manual) = turned_by_hand();
    drop(request.run(()));
    assert!(manual.run_one());
    assert_eq!(kind(request.wait()), Some(ErrorKind::Canceled));
    let over = request.run(());
    assert!(manual.run_one());
    let next = request.run(());
    drop(over);
    assert!(manual.run_one());
    block_on(next).unwrap();
    let mut ready = request.run(());
    assert!(manual.run_one());
    assert!(matches!(poll(&mut ready, &Arc::default()), Poll::Ready(Ok(_))));
    request.start_async(()).unwrap();
    drop(ready);
    assert!(manual.run_one());
    request.wait().unwrap();
}

/// A future returns the result of its own run, even if later runs have ended.
#[test]
fn a_future_gives_the_outcome_of_its_own_run() {
    let script = Script::computing(|io, _| if read(io.input(0))[0] < 0.0 { Err(Error::new(ErrorKind::Device, "no")) } else { double(io) });
    let request = compile(Script { executor: Some(Arc::new(Inline)), ..script }).create_infer_request().unwrap();
    let failed = request.run(row([-1.0; 4]));
    let fine = request.run(row([1.0; 4]));
    let later = request.clone().into_future();
    request.infer(row([2.0; 4])).unwrap();
    assert_eq!(kind(block_on(failed)), Some(ErrorKind::Device));
    block_on(later).unwrap();
    block_on(fine).unwrap();
}

/// Every waiting async task is woken once, even if it has polled several times.
#[test]
fn several_tasks_are_woken_once_each() {
    let (request, manual) = turned_by_hand();
    let mut run = request.run(());
    let mut others = [request.clone().into_future(), request.clone().into_future()];
    let woken: [Arc<Woken>; 3] = Default::default();
    for _ in 0..3 {
        assert!(poll(&mut run, &woken[0]).is_pending());
        assert!(poll(&mut others[0], &woken[1]).is_pending());
        assert!(poll(&mut others[1], &woken[2]).is_pending());
    }
    assert!(manual.run_one());
    assert_eq!(woken.each_ref().map(|woken| woken.n()), [1, 1, 1]);
    assert!(poll(&mut run, &woken[0]).is_ready() && others.iter_mut().all(|other| poll(other, &woken[1]).is_ready()));
}

/// If a future moves to another async task, it wakes that task.
#[test]
fn the_task_that_asked_last_is_woken() {
    let (request, manual) = turned_by_hand();
    let mut run = request.run(());
    let (first, last) = (Arc::<Woken>::default(), Arc::<Woken>::default());
    assert!(poll(&mut run, &first).is_pending() && poll(&mut run, &last).is_pending());
    assert!(manual.run_one());
    assert_eq!(last.n(), 1);
    block_on(run).unwrap();
}

/// A future is ready only after the callback has returned, as with `wait`.
#[test]
fn a_future_is_ready_only_after_the_callback_ended() {
    let (request, manual) = turned_by_hand();
    let (inside, seen) = (Arc::new(Mutex::new(None::<RunFuture>)), Arc::new(Mutex::new(Vec::new())));
    let (held, log, woken) = (inside.clone(), seen.clone(), Arc::<Woken>::default());
    let in_callback = woken.clone();
    request.set_callback(move |_, _| log.lock().unwrap().push((held.lock().unwrap().is_some(), in_callback.n()))).unwrap();
    let mut run = request.run(());
    assert!(poll(&mut run, &woken).is_pending());
    *inside.lock().unwrap() = Some(run.without_results());
    assert!(manual.run_one());
    assert_eq!(*seen.lock().unwrap(), [(true, 0)]);
    assert_eq!(woken.n(), 1);
    let run = inside.lock().unwrap().take().unwrap();
    block_on(run).unwrap();
}

/// Awaiting a run inside the callback of the same request would deadlock, so it is an error.
#[test]
fn awaiting_in_the_own_callback_is_refused() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let (sender, receiver) = mpsc::channel();
    request.set_callback(move |request, _| sender.send(kind(block_on(request.into_future()))).unwrap()).unwrap();
    request.start_async(()).unwrap();
    assert_eq!(receive(&receiver), Some(ErrorKind::WouldDeadlock));
    in_time(move || request.wait()).unwrap();
}

/// The future is awaited on one thread, and the run is started on another.
#[test]
fn a_future_moves_to_another_thread() {
    let (request, gate) = gated();
    let run = request.run(row([1.0; 4]));
    let waiting = std::thread::spawn(move || block_on(run));
    gate.wait_for_arrivals(1);
    gate.open();
    in_time(move || waiting.join().unwrap()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0; 4]);
}

/// The future keeps the request alive, so the run completes without another handle.
#[test]
fn a_future_keeps_its_request() {
    let (request, gate) = gated();
    let weak = request.downgrade();
    let run = request.run(());
    drop(request);
    gate.open();
    block_on(run).unwrap();
    assert!(weak.upgrade().is_none());
}

#[test]
#[should_panic(expected = "must not be polled after it was ready")]
fn polling_a_future_again_panics() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let mut run = request.into_future();
    for _ in 0..2 {
        assert!(poll(&mut run, &Arc::default()).is_ready());
    }
}

/// A future that moves between async tasks keeps only the waker of the latest task.
#[test]
fn a_future_keeps_one_waker_however_often_it_is_polled() {
    let (request, manual) = turned_by_hand();
    let mut run = request.run(());
    let mut observer = request.completed();
    let wakers: Vec<Arc<Woken>> = (0..1000).map(|_| Arc::default()).collect();
    for woken in &wakers {
        assert!(poll(&mut run, woken).is_pending() && poll(&mut observer, woken).is_pending());
    }
    let kept: Vec<usize> = wakers.iter().map(|woken| Arc::strong_count(woken) - 1).collect();
    assert_eq!((kept.iter().sum::<usize>(), kept[999]), (2, 2), "one for each future");
    assert!(manual.run_one());
    let n_woken: Vec<usize> = wakers.iter().map(|woken| woken.n()).collect();
    assert_eq!((n_woken.iter().sum::<usize>(), n_woken[999]), (2, 2));
    block_on(run).unwrap();
    block_on(observer).unwrap();
}

/// Dropping a future drops its waker.
#[test]
fn a_dropped_future_leaves_no_waker_behind() {
    let (request, manual) = turned_by_hand();
    request.start_async(()).unwrap();
    let woken = Arc::<Woken>::default();
    for _ in 0..10 {
        let mut observer = request.completed();
        assert!(poll(&mut observer, &woken).is_pending());
    }
    assert_eq!(Arc::strong_count(&woken), 1);
    assert!(manual.run_one());
    assert_eq!(woken.n(), 0);
}

/// Several futures may wait for one run. Only the future that `run` returned cancels the run when it is dropped.
#[test]
fn dropping_an_observer_cancels_nothing() {
    let (request, manual) = turned_by_hand();
    let run = request.run(row([1.0; 4]));
    drop((request.completed(), request.clone().into_future(), (&request).into_future()));
    assert!(manual.run_one());
    block_on(run).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0; 4]);
    let (run, observer) = (request.run(()), request.completed());
    drop(run);
    assert_eq!(kind(block_on(observer)), Some(ErrorKind::Canceled));
}

/// Wakers and their clones are user code. No lock is held while they run, and a panic in one waker does not prevent other wakeups.
#[test]
fn a_waker_may_use_the_request_and_panic() {
    struct Meddles(InferRequest, AtomicUsize);
    impl Wake for Meddles {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1, Ordering::AcqRel);
            self.0.wait().unwrap();
            panic!("in the waker");
        }
    }
    let (request, manual) = turned_by_hand();
    let meddles = Arc::new(Meddles(request.clone(), AtomicUsize::new(0)));
    let woken = Arc::<Woken>::default();
    let mut run = request.run(());
    let mut observers = [request.completed(), request.completed()];
    assert!(Pin::new(&mut run).poll(&mut Context::from_waker(&Waker::from(meddles.clone()))).is_pending());
    assert!(Pin::new(&mut observers[0]).poll(&mut Context::from_waker(&Waker::from(meddles.clone()))).is_pending());
    assert!(poll(&mut observers[1], &woken).is_pending());
    in_time(move || assert!(manual.run_one()));
    assert_eq!((meddles.1.load(Ordering::Acquire), woken.n()), (2, 1));
    block_on(run).unwrap();
}
