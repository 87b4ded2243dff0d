//! Cancellation of runs: its effects, and the state of the request afterwards.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use roiflow::runtime::executor::{Executor, Task};
use roiflow::runtime::{ErrorKind, Interrupt, RunContext, WeakInferRequest};

use super::*;
use crate::support::{in_time, receive, row, values};

/// Equivalent OpenVINO test: canCancelAsyncRequest. The run succeeds or fails with `Canceled`. No other result is possible.
#[test]
fn a_canceled_run_ends_well_or_as_canceled() {
    let request = compile(doubling()).create_infer_request().unwrap();
    for _ in 0..200 {
        request.start_async(()).unwrap();
        request.cancel();
        assert!(matches!(kind(request.wait()), None | Some(ErrorKind::Canceled)));
    }
}

/// Equivalent OpenVINO test: CanResetAfterCancelAsyncRequest.
#[test]
fn a_canceled_request_starts_again() {
    let (request, manual) = turned_by_hand();
    for _ in 0..3 {
        request.start_async(row([1.0; 4])).unwrap();
        request.cancel();
        assert!(manual.run_one());
        assert_eq!(kind(request.wait()), Some(ErrorKind::Canceled));
        request.start_async(row([2.0; 4])).unwrap();
        assert!(manual.run_one());
        request.wait().unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [4.0; 4]);
    }
}

/// Equivalent OpenVINO test: canCancelBeforeAsyncRequest.
#[test]
fn canceling_an_idle_request_is_harmless() {
    let request = compile(doubling()).create_infer_request().unwrap();
    request.cancel();
    request.wait().unwrap();
    request.infer(()).unwrap();
    request.cancel();
    request.start_async(()).unwrap();
    request.wait().unwrap();
}

/// Equivalent OpenVINO test: canCancelInferRequest.
#[test]
fn another_thread_may_cancel_a_synchronous_run() {
    let (request, gate) = gated();
    let running = std::thread::spawn({
        let request = request.clone();
        move || request.infer(())
    });
    gate.wait_for_arrivals(1);
    request.cancel();
    gate.open();
    assert!(matches!(kind(running.join().unwrap()), None | Some(ErrorKind::Canceled)));
    request.infer(()).unwrap();
}

#[test]
fn a_device_that_looks_at_the_flag_ends_at_once() {
    let gate = Gate::closed();
    let mut script = Script::computing(|io, cancel| cancel.check().and_then(|()| double(io)));
    script.gate = Some(gate.clone());
    let request = compile(script).create_infer_request().unwrap();
    request.start_async(()).unwrap();
    gate.wait_for_arrivals(1);
    request.cancel();
    gate.open();
    assert_eq!(kind(request.wait()), Some(ErrorKind::Canceled));
    request.infer(()).unwrap();
}

/// The steps after the current step are skipped.
#[test]
fn the_steps_after_a_cancel_are_skipped() {
    let (request, gate) = gated();
    let n_decoded = Arc::new(AtomicUsize::new(0));
    let n = n_decoded.clone();
    request
        .append_step("decode", move |_| {
            n.fetch_add(1, Ordering::AcqRel);
            Ok(())
        })
        .unwrap();
    request.start_async(()).unwrap();
    gate.wait_for_arrivals(1);
    request.cancel();
    gate.open();
    assert_eq!(kind(request.wait()), Some(ErrorKind::Canceled));
    assert_eq!(n_decoded.load(Ordering::Acquire), 0);
    request.infer(()).unwrap();
    assert_eq!(n_decoded.load(Ordering::Acquire), 1);
}

#[test]
fn a_canceled_run_calls_back_once_with_that_error() {
    let (request, manual) = turned_by_hand();
    let (sender, receiver) = mpsc::channel();
    request.set_callback(move |_, result| sender.send(kind(result)).unwrap()).unwrap();
    request.start_async(()).unwrap();
    request.cancel();
    request.cancel();
    assert!(manual.run_one());
    assert_eq!(kind(request.wait()), Some(ErrorKind::Canceled));
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [Some(ErrorKind::Canceled)]);
}

#[test]
fn a_cancel_in_the_callback_does_not_reach_the_next_run() {
    let (request, manual) = turned_by_hand();
    request.set_callback(|request, _| request.cancel()).unwrap();
    for _ in 0..2 {
        request.start_async(()).unwrap();
        assert!(manual.run_one());
        request.wait().unwrap();
    }
}

/// Dropping a canceled request does not block, even if its run is still in progress.
#[test]
fn a_canceled_request_can_be_dropped_while_it_runs() {
    let (request, manual) = turned_by_hand();
    request.start_async(()).unwrap();
    request.cancel();
    in_time(move || drop(request));
    assert!(manual.run_one(), "the task of the dropped run has no effect");
}

/// Counts the interrupts of the engine.
#[derive(Default)]
struct Engine(AtomicUsize);

impl Interrupt for Engine {
    fn interrupt(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// A cancel interrupts the engine only during a computation. Tested with both functions that a device can use: `interrupting` and
/// `interrupt_with`.
#[test]
fn a_cancel_interrupts_the_engine_only_while_it_computes() {
    for (is_computing, is_in_one_step) in [(true, true), (true, false), (false, true), (false, false)] {
        let engine = Arc::new(Engine::default());
        let (computing, interrupted) = (engine.clone(), engine.clone() as Arc<dyn Interrupt>);
        let (sender, receiver) = mpsc::channel();
        let told = sender.clone();
        let script = Script::computing(move |io, cancel| {
            let compute = || {
                told.send("computing").unwrap();
                while is_computing && computing.0.load(Ordering::Acquire) == 0 {}
            };
            if is_in_one_step {
                cancel.interrupting(&interrupted, compute);
            } else {
                cancel.interrupt_with(&interrupted);
                compute();
                cancel.forget();
            }
            double(io)
        });
        let request = compile(script).create_infer_request().unwrap();
        let until_canceled = move |context: &RunContext<'_>| {
            sender.send("computed").unwrap();
            while !context.cancel().is_canceled() {}
            Ok(())
        };
        request.append_step("until canceled", until_canceled).unwrap();
        request.append_step("never", |_| Ok(())).unwrap();
        request.start_async(()).unwrap();
        assert_eq!(receive(&receiver), "computing");
        if !is_computing {
            assert_eq!(receive(&receiver), "computed");
        }
        request.cancel();
        assert_eq!(kind(in_time(move || request.wait())), Some(ErrorKind::Canceled));
        assert_eq!(engine.0.load(Ordering::Acquire), usize::from(is_computing));
    }
}

/// An executor that drops its tasks without running them.
#[derive(Debug)]
struct Loses;

impl Executor for Loses {
    fn execute(&self, task: Arc<dyn Task>) {
        drop(task);
    }
}

#[test]
fn a_cancel_ends_a_run_whose_task_was_lost() {
    let request = compile(doubling()).create_infer_request().unwrap();
    for is_first in [true, false] {
        match is_first {
            true => request.prepend_step_on(Arc::new(Loses), "lost", |_| Ok(())).unwrap(),
            false => request.append_step_on(Arc::new(Loses), "lost", |_| Ok(())).unwrap(),
        }
        for calls_back in [false, true] {
            let (sender, receiver) = mpsc::channel();
            if calls_back {
                request.set_callback(move |_, result| sender.send(kind(result)).unwrap()).unwrap();
            }
            request.start_async(row([1.0; 4])).unwrap();
            request.cancel();
            let waiting = request.clone();
            assert_eq!(kind(in_time(move || waiting.wait())), Some(ErrorKind::Canceled));
            assert_eq!(receiver.try_iter().collect::<Vec<_>>(), vec![Some(ErrorKind::Canceled); usize::from(calls_back)]);
            request.clear_callback().unwrap();
        }
        request.clear_steps().unwrap();
        request.infer(row([2.0; 4])).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [4.0; 4]);
    }
}

/// The thread that cancels may hold a lock that the callback also takes.
#[test]
fn a_cancel_does_not_call_back_on_its_own_thread() {
    let (request, _manual) = turned_by_hand();
    let lock = Arc::new(Mutex::new(()));
    let taken = lock.clone();
    request.set_callback(move |_, _| drop(taken.lock().unwrap())).unwrap();
    let canceling = request.clone();
    in_time(move || {
        canceling.start_async(()).unwrap();
        let held = lock.lock().unwrap();
        canceling.cancel();
        drop(held);
        assert_eq!(kind(canceling.wait()), Some(ErrorKind::Canceled));
    });
}

/// The task of a canceled run is still in one queue while the next run waits in another queue.
#[test]
fn a_task_of_an_earlier_run_executes_nothing() {
    let [first, second] = [(); 2].map(|()| Arc::new(Manual::default()));
    let request = compile(doubling()).create_infer_request().unwrap();
    let (sender, receiver) = mpsc::channel();
    for (executor, name) in [(&first, "first"), (&second, "second")] {
        let sender = sender.clone();
        let tells = move |_: &RunContext<'_>| {
            sender.send(name).unwrap();
            Ok(())
        };
        request.prepend_step_on(executor.clone(), name, tells).unwrap();
    }
    for _ in 0..3 {
        request.start_async(()).unwrap();
        request.cancel();
        assert_eq!(kind(request.wait()), Some(ErrorKind::Canceled));
    }
    request.start_async(()).unwrap();
    for _ in 0..3 {
        assert!(first.run_one());
        assert_eq!(receiver.try_recv(), Err(mpsc::TryRecvError::Empty), "the task of a canceled run executed a step");
    }
    assert!(first.run_one());
    assert_eq!(receiver.try_recv(), Ok("first"));
    assert!(!first.run_one());
    assert_eq!(receiver.try_recv(), Err(mpsc::TryRecvError::Empty), "the second step ran on the wrong executor");
    assert!(second.run_one());
    request.wait().unwrap();
    assert_eq!(receiver.try_recv(), Ok("second"));
}

/// An executor may keep a task and run it a second time.
#[test]
fn a_task_that_is_run_twice_runs_one_step() {
    #[derive(Default)]
    struct Twice(Mutex<Vec<Arc<dyn Task>>>);
    impl std::fmt::Debug for Twice {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Twice")
        }
    }
    impl Executor for Twice {
        fn execute(&self, task: Arc<dyn Task>) {
            self.0.lock().unwrap().push(task.clone());
            task.run();
        }
    }
    let (twice, manual) = (Arc::new(Twice::default()), Arc::new(Manual::default()));
    let request = compile(doubling()).create_infer_request().unwrap();
    let (n_steps, n) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counting = |n: &Arc<AtomicUsize>| {
        let n = n.clone();
        move |_: &RunContext<'_>| {
            n.fetch_add(1, Ordering::AcqRel);
            Ok(())
        }
    };
    request.prepend_step_on(twice.clone(), "twice", counting(&n_steps)).unwrap();
    request.prepend_step_on(manual.clone(), "manual", counting(&n)).unwrap();
    request.start_async(()).unwrap();
    let kept = std::mem::take(&mut *twice.0.lock().unwrap());
    kept.into_iter().for_each(Task::run);
    assert_eq!((n_steps.load(Ordering::Acquire), n.load(Ordering::Acquire)), (1, 0));
    assert!(manual.run_one());
    request.wait().unwrap();
    assert_eq!((n_steps.load(Ordering::Acquire), n.load(Ordering::Acquire)), (1, 1));
}

/// An interrupt that calls methods of its own request and then panics. The calls must not block.
struct Meddles {
    request: Mutex<Option<WeakInferRequest>>,
    seen: mpsc::Sender<Vec<Option<ErrorKind>>>,
    computes: Arc<AtomicUsize>,
}

impl Interrupt for Meddles {
    fn interrupt(&self) {
        let request = self.request.lock().unwrap().as_ref().and_then(WeakInferRequest::upgrade);
        if let Some(request) = request {
            request.cancel();
            let seen = [kind(request.wait()), kind(request.output_tensor(())), kind(request.latency())];
            self.seen.send(seen.to_vec()).unwrap();
        }
        self.computes.store(0, Ordering::Release);
        panic!("in the interrupt");
    }
}

/// No lock is held while an interrupt runs: it may use the request, and its panic is ignored.
#[test]
fn an_interrupt_may_use_its_request_and_panic() {
    let (sender, receiver) = mpsc::channel();
    let computes = Arc::new(AtomicUsize::new(1));
    let meddles = Arc::new(Meddles { request: Mutex::default(), seen: sender, computes: computes.clone() });
    let (interrupt, computing) = (meddles.clone() as Arc<dyn Interrupt>, computes.clone());
    let (begun, has_begun) = mpsc::channel();
    let script = Script::computing(move |io, cancel| {
        cancel.interrupting(&interrupt, || {
            begun.send(()).unwrap();
            while computing.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
            }
        });
        double(io)
    });
    let request = compile(script).create_infer_request().unwrap();
    *meddles.request.lock().unwrap() = Some(request.downgrade());
    request.append_step("never", |_| Ok(())).unwrap();
    for round in 0..4 {
        computes.store(1, Ordering::Release);
        let running = request.clone();
        let future = if round % 2 == 1 {
            Some(request.run(()).without_results())
        } else {
            request.start_async(()).ok().map(|()| request.completed())
        };
        receive(&has_begun);
        in_time(move || if round % 2 == 1 { drop(future) } else { running.cancel() });
        assert_eq!(receive(&receiver), [Some(ErrorKind::WouldDeadlock), Some(ErrorKind::Busy), Some(ErrorKind::Busy)]);
        let waiting = request.clone();
        assert_eq!(kind(in_time(move || waiting.wait())), Some(ErrorKind::Canceled));
    }
    // Dropping a running request also interrupts the engine.
    computes.store(1, Ordering::Release);
    request.start_async(()).unwrap();
    receive(&has_begun);
    in_time(move || drop(request));
}
