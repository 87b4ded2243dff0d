//! Cancel: what it ends, and what it leaves usable.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use roiflow::runtime::{ErrorKind, Interrupt, RunContext};

use super::*;
use crate::support::{in_time, receive, row, values};

/// canCancelAsyncRequest: success or `Canceled`, nothing else.
#[test]
fn a_canceled_run_ends_well_or_as_canceled() {
    let request = compile(doubling()).create_infer_request().unwrap();
    for _ in 0..200 {
        request.start_async(()).unwrap();
        request.cancel();
        assert!(matches!(kind(request.wait()), None | Some(ErrorKind::Canceled)));
    }
}

/// CanResetAfterCancelAsyncRequest.
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

/// canCancelBeforeAsyncRequest.
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

/// canCancelInferRequest.
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

/// Cancel takes effect at the next step boundary (C21, 6).
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

/// Cancel never hangs the drop (C21, 6).
#[test]
fn a_canceled_request_can_be_dropped_while_it_runs() {
    let (request, manual) = turned_by_hand();
    request.start_async(()).unwrap();
    request.cancel();
    in_time(move || drop(request));
    assert!(manual.run_one(), "its place in the queue finds nothing to do");
}

/// Counts how often it was told to stop.
#[derive(Default)]
struct Engine(AtomicUsize);

impl Interrupt for Engine {
    fn interrupt(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// An engine is told of a cancel while it computes, and not when it has computed; however it says that it does.
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
