//! The completion callback: when it is called, which calls are allowed inside it, and which state of the request it gets.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use roiflow::runtime::ErrorKind;

use super::*;
use crate::support::{in_time, row, values};

/// Equivalent OpenVINO tests: canCallAsyncWithCompletionCallback, callbackTakesOKIfAsyncRequestWasOK.
#[test]
fn the_callback_ran_without_error_before_wait_returns() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let called = Arc::new(Mutex::new(Vec::new()));
    let log = called.clone();
    request.set_callback(move |_, result| log.lock().unwrap().push(result.is_ok())).unwrap();
    for n in 1..=3 {
        request.start_async(()).unwrap();
        request.wait().unwrap();
        assert_eq!(*called.lock().unwrap(), vec![true; n]);
    }
}

/// Equivalent OpenVINO test: syncInferDoesNotCallCompletionCallback.
#[test]
fn a_synchronous_run_does_not_call_back() {
    let request = compile(doubling()).create_infer_request().unwrap();
    request.set_callback(|_, _| panic!("called")).unwrap();
    request.infer(()).unwrap();
    request.wait().unwrap();
}

/// Equivalent OpenVINO test: callbackIsCalledIfAsyncRequestFailed.
#[test]
fn the_error_of_a_run_reaches_the_callback_once_and_wait() {
    let request = compile(failing()).create_infer_request().unwrap();
    let (sender, receiver) = mpsc::channel();
    request.set_callback(move |_, result| sender.send(kind(result)).unwrap()).unwrap();
    request.start_async(()).unwrap();
    assert_eq!(kind(request.wait()), Some(ErrorKind::Device));
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [Some(ErrorKind::Device)]);
}

/// Equivalent OpenVINO test: canStartSeveralAsyncInsideCompletionCallbackWithSafeDtor.
#[test]
fn the_callback_may_restart_the_request_ten_times() {
    let model = compile(doubling());
    let request = model.create_infer_request().unwrap();
    let (sender, receiver) = mpsc::channel();
    let n_called = AtomicUsize::new(0);
    request
        .set_callback(move |request, result| {
            result.unwrap();
            let n = n_called.fetch_add(1, Ordering::AcqRel) + 1;
            assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0 * n as f32; 4]);
            if n <= 10 {
                request.start_async(row([(n + 1) as f32; 4])).unwrap();
            }
            sender.send(n).unwrap();
        })
        .unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    let called: Vec<usize> = (0..11).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    assert_eq!(called, (1..=11).collect::<Vec<_>>());
    request.wait().unwrap();
    drop(request);
    assert!(receiver.recv().is_err(), "the callback was not dropped with its request");
}

/// Equivalent OpenVINO tests: ReturnResultNotReadyFromWaitInAsyncModeForTooSmallTimeout, wait_for_return_busy. The request is idle before
/// the callback is called. Waiters continue only after the callback has returned.
#[test]
fn waiters_go_on_only_after_the_callback_ended() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let (entered, has_entered) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    request
        .set_callback(move |request, _| {
            entered.send(kind(request.output_tensor(()))).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
        })
        .unwrap();
    request.start_async(()).unwrap();
    assert_eq!(has_entered.recv().unwrap(), None, "the request is idle in its callback");
    assert!(!request.wait_for(Duration::ZERO).unwrap());
    assert!(!request.wait_for(Duration::from_millis(1)).unwrap());
    assert_eq!(kind(request.start_async(())), Some(ErrorKind::Busy), "only the callback itself may start the next run");
    assert_eq!(kind(request.tensor("y")), Some(ErrorKind::Busy), "other threads cannot read the tensors during the callback");
    go_on.send(()).unwrap();
    request.wait().unwrap();
    assert!(request.wait_for(Duration::ZERO).unwrap());
}

/// Equivalent OpenVINO test: ImplDoesNotCopyCallback.
#[test]
fn the_closure_is_moved_and_not_cloned() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let captured = Arc::new(());
    let (sender, receiver) = mpsc::channel();
    let watched = Arc::downgrade(&captured);
    request.set_callback(move |_, _| sender.send(Arc::strong_count(&captured)).unwrap()).unwrap();
    request.start_async(()).unwrap();
    request.wait().unwrap();
    assert_eq!(receiver.recv().unwrap(), 1);
    request.clear_callback().unwrap();
    assert!(watched.upgrade().is_none(), "a callback that was removed is freed");
}

#[test]
fn waiting_in_the_own_callback_is_refused() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let (sender, receiver) = mpsc::channel();
    request.set_callback(move |request, _| sender.send((kind(request.wait()), kind(request.wait_for(Duration::MAX)))).unwrap()).unwrap();
    request.start_async(()).unwrap();
    let would = Some(ErrorKind::WouldDeadlock);
    assert_eq!(receiver.recv_timeout(Duration::from_secs(60)).unwrap(), (would, would));
    request.wait().unwrap();
}

/// A callback may wait for another request.
#[test]
fn a_callback_may_infer_on_its_own_and_on_other_requests() {
    let model = compile(doubling());
    let (request, other) = (model.create_infer_request().unwrap(), model.create_infer_request().unwrap());
    let (sender, receiver) = mpsc::channel();
    request
        .set_callback(move |request, _| {
            request.infer(row([5.0; 4])).unwrap();
            other.infer(request.output_tensor(()).unwrap()).unwrap();
            sender.send(values(&other.output_tensor(()).unwrap())).unwrap();
        })
        .unwrap();
    request.start_async(()).unwrap();
    request.wait().unwrap();
    assert_eq!(receiver.recv().unwrap(), [20.0; 4]);
}

/// The actions of callbacks, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// Run 2 starts and ends on another thread, during the callback of run 1. Then `end_of_first` ends that callback.
fn run_within_a_callback(end_of_first: fn()) -> (InferRequest, Log) {
    let (request, manual) = turned_by_hand();
    let log: Log = Arc::default();
    let (in_callback, hand) = (log.clone(), manual.clone());
    let n_called = AtomicUsize::new(0);
    request
        .set_callback(move |request, result| {
            let write = |line: String| in_callback.lock().unwrap().push(line);
            let n = n_called.fetch_add(1, Ordering::AcqRel) + 1;
            write(format!("callback {n}: {:?} {:?}", kind(result), request.output_tensor(()).map(|y| values(&y)[0]).ok()));
            if n == 1 {
                request.start_async(row([2.0; 4])).unwrap();
                let hand = hand.clone();
                std::thread::spawn(move || assert!(hand.run_one())).join().unwrap();
                write(format!("run 2 is over: {:?} {}", kind(request.output_tensor(())), request.wait().is_err()));
                end_of_first();
            }
        })
        .unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    assert!(manual.run_one());
    (request, log)
}

#[test]
fn a_callback_never_sees_the_outputs_of_a_later_run() {
    let (request, log) = run_within_a_callback(|| ());
    request.wait().unwrap();
    assert_eq!(*log.lock().unwrap(), ["callback 1: None Some(2.0)", "run 2 is over: Some(Busy) true", "callback 2: None Some(4.0)"]);
}

#[test]
fn a_panic_of_one_callback_is_no_error_of_the_next_run() {
    let (request, log) = run_within_a_callback(|| panic!("at the end of the first callback"));
    assert_eq!(log.lock().unwrap()[2], "callback 2: None Some(4.0)");
    request.wait().unwrap();
}

#[test]
fn a_callback_may_be_exchanged_between_runs_and_in_the_callback() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let (sender, receiver) = mpsc::channel();
    request
        .set_callback(move |request, _| {
            sender.send("first").unwrap();
            let sender = sender.clone();
            request.set_callback(move |_, _| sender.send("second").unwrap()).unwrap();
        })
        .unwrap();
    for _ in 0..3 {
        request.start_async(()).unwrap();
        request.wait().unwrap();
    }
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), ["first", "second", "second"]);
    request.clear_callback().unwrap();
    request.start_async(()).unwrap();
    request.wait().unwrap();
    assert_eq!(receiver.try_iter().count(), 0);
}

/// If a callback fails to start the next run, the request stays idle.
#[test]
fn a_restart_that_fails_in_the_callback_ends_the_chain() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let (sender, receiver) = mpsc::channel();
    request
        .set_callback(move |request, _| {
            let input = request.input_tensor(()).unwrap();
            let _writing = input.view_mut::<f32>().unwrap();
            sender.send(kind(request.start_async(()))).unwrap();
        })
        .unwrap();
    request.start_async(()).unwrap();
    let request = in_time(move || {
        request.wait().unwrap();
        request
    });
    assert_eq!(receiver.recv().unwrap(), Some(ErrorKind::Busy));
    request.infer(()).unwrap();
}

/// User data stays attached to the request, also while the request runs.
#[test]
fn user_data_is_there_for_the_callback() {
    let (request, manual) = turned_by_hand();
    assert!(request.user_data::<String>().is_none());
    request.set_user_data(Arc::new("frame 7".to_owned())).unwrap();
    let (sender, receiver) = mpsc::channel();
    request.set_callback(move |request, _| sender.send(request.user_data::<String>()).unwrap()).unwrap();
    request.start_async(()).unwrap();
    assert_eq!(request.user_data::<String>().as_deref().map(String::as_str), Some("frame 7"));
    assert!(request.user_data::<u64>().is_none(), "the user data is not a number");
    assert_eq!(kind(request.set_user_data(Arc::new(1_u64))), Some(ErrorKind::Busy));
    assert!(manual.run_one());
    assert_eq!(receiver.recv().unwrap().as_deref().map(String::as_str), Some("frame 7"));
    let replaced = request.user_data::<String>().unwrap();
    request.set_user_data(Arc::new(8_u64)).unwrap();
    assert_eq!((Arc::strong_count(&replaced), request.user_data::<u64>().as_deref()), (1, Some(&8)));
    let data = request.user_data::<u64>().unwrap();
    drop(request);
    assert_eq!(Arc::strong_count(&data), 1);
}

/// If callbacks have their own thread, a long callback does not block an engine.
#[test]
fn callbacks_run_on_their_own_thread_if_the_model_says_so() {
    let config = Config { callback_thread: true, ..Config::default() };
    let pool = Arc::new(roiflow::runtime::executor::Pool::new("one", 1).unwrap());
    let model = compile_with(Script { executor: Some(pool), ..doubling() }, &config);
    let (first, second) = (model.create_infer_request().unwrap(), model.create_infer_request().unwrap());
    let (entered, has_entered) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    first
        .set_callback(move |_, result| {
            entered.send((result.is_ok(), std::thread::current().name().map(str::to_owned))).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
        })
        .unwrap();
    first.start_async(row([1.0; 4])).unwrap();
    assert_eq!(has_entered.recv().unwrap(), (true, Some("roiflow-callbacks-0".to_owned())));
    second.infer(row([2.0; 4])).unwrap();
    let (done, is_done) = mpsc::channel();
    second
        .append_step_on(Arc::new(Inline), "note", move |_| {
            done.send(()).unwrap();
            Ok(())
        })
        .unwrap();
    second.start_async(()).unwrap();
    crate::support::receive(&is_done);
    go_on.send(()).unwrap();
    first.wait().unwrap();
    second.wait().unwrap();
}

/// If a request is dropped between the last step of a run and its callback, the callback is not called.
#[test]
fn a_drop_before_the_callback_threads_turn_calls_nobody() {
    let config = Config { callback_thread: true, ..Config::default() };
    let model = compile_with(doubling(), &config);
    let (blocking, dropped) = (model.create_infer_request().unwrap(), model.create_infer_request().unwrap());
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let (entered, has_entered) = mpsc::channel();
    blocking
        .set_callback(move |_, _| {
            entered.send(()).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
        })
        .unwrap();
    blocking.start_async(()).unwrap();
    crate::support::receive(&has_entered);
    let called = Arc::new(AtomicUsize::new(0));
    let n = called.clone();
    dropped
        .set_callback(move |_, _| {
            n.fetch_add(1, Ordering::AcqRel);
        })
        .unwrap();
    dropped.start_async(()).unwrap();
    in_time(move || drop(dropped));
    go_on.send(()).unwrap();
    blocking.wait().unwrap();
    assert_eq!((called.load(Ordering::Acquire), Arc::strong_count(&called)), (0, 1));
}
