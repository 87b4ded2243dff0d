//! Profiling data of the nodes of a model, on every device. The module `profiling` tests the node names of each engine.

use std::time::{Duration, Instant};

use roiflow::runtime::{CompiledModel, Config, ErrorKind, InferRequest, NodeStatus, NodeTime};

use crate::request::kind;

use super::{UnderTest, batch, doubled, numbers};
use crate::support::{in_time, values};

/// Compiles a model with profiling. If this version of ONNX Runtime does not support profiling, prints a message and returns `None`.
fn profiled(device: &UnderTest) -> Option<CompiledModel> {
    let model = device.with(&Config { profiling: true, ..Config::default() });
    match model.create_infer_request().unwrap().profiling_info() {
        Err(error) if error.kind() == ErrorKind::Unsupported && device.name.starts_with("ORT.") => {
            assert!(error.to_string().contains("need ONNX Runtime 1.25 or newer"), "{error}");
            eprintln!("skipped on {}: {error}", device.name);
            None
        }
        asked => asked.map(|_| Some(model)).unwrap(),
    }
}

fn executed(request: &InferRequest) -> Vec<NodeTime> {
    request.profiling_info().unwrap().into_iter().filter(|node| node.status == NodeStatus::Executed).collect()
}

/// Equivalent OpenVINO tests: NotEmptyAfterSyncInfer, NotEmptyAfterAsyncInfer.
pub fn nodes_are_told_after_synchronous_and_asynchronous_runs(device: &UnderTest) {
    let Some(model) = profiled(device) else { return };
    let request = model.create_infer_request().unwrap();
    // Some engines report the mean of all previous runs, so compare node times with the longest run.
    let mut longest = Duration::ZERO;
    for n_rows in [3, 5, 5] {
        for asynchronous in [false, true] {
            let begin = Instant::now();
            if asynchronous {
                request.start_async(batch(0, n_rows)).unwrap();
                request.wait().unwrap();
            } else {
                request.infer(batch(0, n_rows)).unwrap();
            }
            longest = longest.max(begin.elapsed());
            let nodes = executed(&request);
            assert!(!nodes.is_empty() && nodes.iter().all(|node| !node.name.is_empty() && !node.kind.is_empty()), "{nodes:?}");
            // Engines count whole microseconds, so the time of each node may be rounded up by one microsecond.
            let rounding = Duration::from_micros(nodes.len() as u64);
            assert!(nodes.iter().map(|node| node.real).sum::<Duration>() <= longest + rounding, "{nodes:?} in {longest:?}");
        }
    }
}

pub fn before_the_first_run_no_node_is_told_to_have_run(device: &UnderTest) {
    let Some(model) = profiled(device) else { return };
    let request = model.create_infer_request().unwrap();
    let nodes = request.profiling_info().unwrap();
    assert!(nodes.iter().all(|node| node.status != NodeStatus::Executed && node.real.is_zero()), "{nodes:?}");
}

/// Profiling data excludes the runs of other requests, and does not accumulate over runs.
pub fn the_nodes_are_those_of_the_requests_own_run(device: &UnderTest) {
    let Some(model) = profiled(device) else { return };
    let (busy, idle) = (model.create_infer_request().unwrap(), model.create_infer_request().unwrap());
    busy.infer(batch(0, 2)).unwrap();
    let once = executed(&busy).len();
    for _ in 0..5 {
        busy.infer(batch(0, 2)).unwrap();
    }
    assert_eq!(executed(&busy).len(), once, "the list of nodes grew with the runs");
    assert!(executed(&idle).is_empty());
}

/// Equivalent OpenVINO test: perfCountWereNotEnabledExceptionTest.
pub fn profiling_that_was_not_enabled_is_an_error(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    request.infer(batch(0, 1)).unwrap();
    let error = request.profiling_info().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("Config { profiling: true"), "{error}");
}

pub fn profiling_changes_no_result(device: &UnderTest) {
    let model = device.with(&Config { profiling: true, ..Config::default() });
    let requests: Vec<_> = (0..4).map(|_| model.create_infer_request().unwrap()).collect();
    for round in 0..5 {
        for (request_idx, request) in requests.iter().enumerate() {
            request.start_async(batch(10 * round + request_idx, 3)).unwrap();
        }
        for (request_idx, request) in requests.iter().enumerate() {
            request.wait().unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(10 * round + request_idx, 3)));
        }
    }
}

/// One thread polls the times while another thread starts runs.
pub fn profiling_that_is_polled_keeps_no_run_from_its_start(device: &UnderTest) {
    let Some(model) = profiled(device) else { return };
    in_time(move || {
        let request = model.create_infer_request().unwrap();
        let (polled, is_over) = (request.clone(), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                    // While the request runs, the times are not readable.
                    let times = polled.profiling_info();
                    assert!(times.is_ok() || kind(times) == Some(ErrorKind::Busy));
                }
            });
            let refused: Vec<_> = (0..200).filter_map(|_| request.start_async(batch(0, 1)).and_then(|()| request.wait()).err()).collect();
            is_over.store(true, std::sync::atomic::Ordering::Release);
            assert!(refused.is_empty(), "{} of 200 starts: {}", refused.len(), refused[0]);
        });
    });
}
