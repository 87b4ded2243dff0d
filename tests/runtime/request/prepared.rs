//! Interfaces for bindings to other languages: runs that are split into preparation, computation and end, and queue waits with a time
//! limit.

use std::time::Duration;

use roiflow::runtime::{AsyncInferQueue, ErrorKind};

use super::*;
use crate::support::{row, values};

const AT_ONCE: Duration = Duration::ZERO;

#[test]
fn outputs_are_read_before_the_request_is_idle() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let ended = request.prepare(row([1.0; 4]), false).unwrap().run();
    ended.outcome().unwrap();
    assert_eq!(values(ended.results().tensor(()).unwrap()), [2.0; 4]);
    assert_eq!(request.infer(()).unwrap_err().kind(), ErrorKind::Busy, "a prepared request is busy");
    drop(ended);
    request.infer(row([2.0; 4])).unwrap();
}

#[test]
fn a_prepared_run_starts_later_and_calls_back_if_asked_to() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    request.set_callback(move |_, result| sender.send(result.is_ok()).unwrap()).unwrap();
    for calls_back in [true, false] {
        let prepared = request.prepare(row([3.0; 4]), calls_back).unwrap();
        assert_eq!(request.output_tensor(()).unwrap_err().kind(), ErrorKind::Busy);
        prepared.start();
        request.wait().unwrap();
        assert_eq!(receiver.try_iter().count(), usize::from(calls_back));
    }
}

#[test]
fn a_prepared_run_that_is_dropped_is_canceled() {
    let request = compile(doubling()).create_infer_request().unwrap();
    drop(request.prepare(row([3.0; 4]), true).unwrap());
    assert_eq!(request.wait().unwrap_err().kind(), ErrorKind::Canceled);
    request.infer(row([1.0; 4])).unwrap();
}

#[test]
fn waits_for_a_queue_end_with_their_limit() {
    let gate = Gate::closed();
    let queue = AsyncInferQueue::<()>::new(&compile(Script { gate: Some(gate.clone()), ..doubling() }), 2).unwrap();
    let first = queue.take_idle_for(AT_ONCE).unwrap().unwrap();
    assert!(queue.try_take(first.index()).is_none(), "it is taken");
    let second = queue.try_take_longest_idle().unwrap();
    assert!(queue.take_idle_for(AT_ONCE).unwrap().is_none() && queue.longest_idle_for(AT_ONCE).unwrap().is_none());
    let (first_idx, second_idx) = (first.index(), second.index());
    first.start(row([1.0; 4]), ()).unwrap();
    drop(second);
    assert_eq!(queue.longest_idle_for(AT_ONCE).unwrap(), Some(second_idx));
    assert!(!queue.wait_all_for(Duration::from_millis(1)).unwrap());
    gate.open();
    assert!(queue.wait_all_for(Duration::from_secs(60)).unwrap());
    assert_eq!(queue.longest_idle_for(AT_ONCE).unwrap(), Some(second_idx), "the request that was idle longest");
    assert!(queue.try_take(first_idx).is_some());
}

#[test]
fn a_request_of_a_queue_runs_synchronously_in_its_callback() {
    let queue = AsyncInferQueue::<()>::new(&compile(doubling()), 1).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    queue.set_callback(move |request, (), _| {
        request.infer(row([5.0; 4])).unwrap();
        sender.send((values(&request.output_tensor(()).unwrap()), request.start_async(()).unwrap_err().kind())).unwrap();
    });
    queue.start_async(row([1.0; 4]), ()).unwrap();
    queue.wait_all().unwrap();
    assert_eq!(receiver.recv().unwrap(), (vec![10.0; 4], ErrorKind::OwnedByQueue));
    assert!(queue.is_ready());
}
