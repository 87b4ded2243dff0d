//! Starting of runs, and all kinds of waits.

use std::sync::Arc;
use std::time::Duration;

use roiflow::runtime::ErrorKind;

use super::*;
use crate::support::{in_time, receive, row, values};

/// Equivalent OpenVINO test: CorrectOneAsyncInferWithGetInOutWithInfWait.
#[test]
fn a_run_on_the_requests_own_tensors_ends() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let (input, output) = (request.input_tensor(()).unwrap(), request.output_tensor(()).unwrap());
    input.view_mut::<f32>().unwrap().fill(1.5);
    request.start_async(()).unwrap();
    request.wait().unwrap();
    assert_eq!(values(&output), [3.0; 4]);
    request.wait().unwrap();
}

/// Equivalent OpenVINO test: canstart_asyncInferWithGetInOutWithStatusOnlyWait.
#[test]
fn asking_for_the_status_right_after_the_start_is_no_error() {
    let (request, manual) = turned_by_hand();
    request.start_async(()).unwrap();
    assert!(!request.wait_for(Duration::ZERO).unwrap());
    assert!(manual.run_one());
    assert!(request.wait_for(Duration::ZERO).unwrap());
}

/// Equivalent OpenVINO tests: canWaitWithotStartSsync, returnInferNotStartedOnWait.
#[test]
fn waiting_before_any_start_returns_at_once() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let request = in_time(move || {
        request.wait().unwrap();
        request
    });
    assert!(!request.wait_for(Duration::ZERO).unwrap());
    assert!(!request.wait_for(Duration::from_millis(1)).unwrap());
}

/// Equivalent OpenVINO test: FailedAsyncInferWithNegativeTimeForWait. A `Duration` cannot be negative, and the longest one must not fail
/// either.
#[test]
fn the_longest_timeout_is_as_good_as_none() {
    let (request, manual) = turned_by_hand();
    assert!(!request.wait_for(Duration::MAX).unwrap());
    request.start_async(()).unwrap();
    let waiting = std::thread::spawn({
        let request = request.clone();
        move || request.wait_for(Duration::MAX)
    });
    assert!(manual.run_one());
    assert!(waiting.join().unwrap().unwrap());
}

/// A wait with a time limit returns when the run ends, if the run ends before the limit.
#[test]
fn a_long_limit_is_not_over_before_the_run_is() {
    for _ in 0..10 {
        let (request, manual) = turned_by_hand();
        request.start_async(()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn({
            let request = request.clone();
            move || {
                sender.send(()).unwrap();
                request.wait_for(Duration::from_secs(3600))
            }
        });
        receive(&receiver);
        // Give the other thread time to begin its wait before the run ends. The test also passes if the wait begins later.
        (0..100).for_each(|_| std::thread::yield_now());
        assert!(manual.run_one());
        assert!(in_time(move || waiting.join().unwrap()).unwrap());
    }
}

#[test]
fn synchronous_and_asynchronous_runs_may_alternate() {
    let request = compile(doubling()).create_infer_request().unwrap();
    for round in 0..10 {
        let value = round as f32;
        request.infer(row([value; 4])).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0 * value; 4]);
        request.start_async(row([-value; 4])).unwrap();
        request.wait().unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [-2.0 * value; 4]);
    }
}

/// Every wait returns the error of the run, including waits of other threads and later waits.
#[test]
fn the_error_of_a_run_reaches_every_wait() {
    let manual = Arc::new(Manual::default());
    let mut script = doubling();
    by_hand(&mut script, &manual);
    let request = compile(script).create_infer_request().unwrap();
    request.append_step("fail", |_| Err(Error::new(ErrorKind::Device, "no luck"))).unwrap();
    request.start_async(()).unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let request = request.clone();
            std::thread::spawn(move || request.wait())
        })
        .collect();
    assert!(manual.run_one());
    for waiter in waiting {
        assert_eq!(waiter.join().unwrap().unwrap_err().to_string(), "no luck");
    }
    assert_eq!(kind(request.wait()), Some(ErrorKind::Device));
    assert_eq!(kind(request.wait_for(Duration::ZERO)), Some(ErrorKind::Device));
}

/// Equivalent OpenVINO test: canCatchExceptionIfAsyncRequestFailedAndNoCallback.
#[test]
fn a_failing_device_is_an_error_of_wait_and_the_request_stays_usable() {
    let request = compile(failing()).create_infer_request().unwrap();
    for _ in 0..3 {
        request.start_async(()).unwrap();
        assert_eq!(kind(request.wait()), Some(ErrorKind::Device));
        assert_eq!(kind(request.infer(())), Some(ErrorKind::Device));
        assert!(request.output_tensor(()).is_ok());
    }
}

#[test]
fn the_next_run_forgets_the_error_of_the_last() {
    let script = Script::computing(|io, _| if read(io.input(0))[0] < 0.0 { Err(Error::new(ErrorKind::Device, "no")) } else { double(io) });
    let request = compile(script).create_infer_request().unwrap();
    assert_eq!(kind(request.infer(row([-1.0; 4]))), Some(ErrorKind::Device));
    request.start_async(row([1.0; 4])).unwrap();
    request.wait().unwrap();
}
