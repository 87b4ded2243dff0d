//! Several requests that are used on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use super::*;
use crate::support::{in_time, row, values};

/// Equivalent OpenVINO test: canRun3SyncRequestsConsistentlyFromThreads.
#[test]
fn three_threads_run_three_requests_synchronously() {
    let model = compile(doubling());
    std::thread::scope(|scope| {
        for thread_idx in 0..3 {
            let request = model.create_infer_request().unwrap();
            scope.spawn(move || {
                for round in 0..100 {
                    let value = (100 * thread_idx + round) as f32;
                    request.infer(row([value; 4])).unwrap();
                    assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0 * value; 4]);
                }
            });
        }
    });
}

/// Equivalent OpenVINO test: canRun3AsyncRequestsConsistentlyFromThreadsWithoutWait.
#[test]
fn three_requests_are_started_and_dropped_without_a_wait() {
    let model = compile(doubling());
    in_time(move || {
        for _ in 0..100 {
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    let request = model.create_infer_request().unwrap();
                    scope.spawn(move || request.start_async(()).unwrap());
                }
            });
        }
    });
}

/// Equivalent OpenVINO test: canRun3AsyncRequestsConsistentlyWithWait.
#[test]
fn three_requests_run_one_after_the_other() {
    let model = compile(doubling());
    for value in 0..3 {
        let request = model.create_infer_request().unwrap();
        request.start_async(row([value as f32; 4])).unwrap();
        request.wait().unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0 * value as f32; 4]);
    }
}

/// Equivalent OpenVINO test: canRun3AsyncRequestsParallelWithWait.
#[test]
fn three_running_requests_are_waited_for_out_of_order() {
    let model = compile(doubling());
    let requests: Vec<_> = (0..3).map(|_| model.create_infer_request().unwrap()).collect();
    for (value, request) in requests.iter().enumerate() {
        request.start_async(row([value as f32; 4])).unwrap();
    }
    for value in [2, 0, 1] {
        requests[value].wait().unwrap();
        assert_eq!(values(&requests[value].output_tensor(()).unwrap()), [2.0 * value as f32; 4]);
    }
}

/// Many threads start the same request at the same time. One start succeeds, and the others fail with `Busy`.
#[test]
fn one_of_many_simultaneous_starts_wins() {
    let (request, manual) = turned_by_hand();
    for _ in 0..50 {
        let barrier = Arc::new(Barrier::new(4));
        let n_started = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    match request.start_async(()) {
                        Ok(()) => {
                            n_started.fetch_add(1, Ordering::AcqRel);
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Busy),
                    }
                });
            }
        });
        assert_eq!(n_started.into_inner(), 1);
        assert!(manual.run_one() && !manual.run_one());
        request.wait().unwrap();
    }
}

/// Equivalent OpenVINO test: OVInferConsistencyTest.Infer. Each thread that shares a compiled model gets only its own results.
#[test]
fn many_threads_infer_over_one_model() {
    let model = compile(doubling());
    std::thread::scope(|scope| {
        for thread_idx in 0..8 {
            let model = model.clone();
            scope.spawn(move || {
                for round in 0..200 {
                    let value = (1000 * thread_idx + round) as f32;
                    assert_eq!(values(&model.infer(row([value; 4])).unwrap()[0]), [2.0 * value; 4]);
                }
            });
        }
    });
}

/// Many threads start, wait for, cancel and drop requests concurrently. Every call must return.
#[test]
fn handles_of_one_request_are_used_from_many_threads() {
    let seed = 0x5eed_u64;
    eprintln!("seed {seed}");
    in_time(move || {
        let request = compile(doubling()).create_infer_request().unwrap();
        request.set_callback(|_, _| ()).unwrap();
        std::thread::scope(|scope| {
            for thread_idx in 0..4_u64 {
                let request = request.clone();
                scope.spawn(move || {
                    let mut state = seed + thread_idx;
                    for _ in 0..500 {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        match (state >> 40) % 5 {
                            0 => drop(request.start_async(())),
                            1 => drop(request.wait()),
                            2 => request.cancel(),
                            3 => drop(request.infer(())),
                            _ => drop(request.output_tensor(())),
                        }
                    }
                });
            }
        });
        drop(request.wait());
        request.infer(()).unwrap();
    });
}
