//! The numbers of threads and bytes must not grow with the number of requests and runs. Each test runs in a separate process.

use std::fs;

use super::*;
use crate::support::{alone, resident_bytes, row, tiny};

/// Tolerance for memory that the allocator itself keeps or releases.
const MAX_GROWTH_BYTES: usize = 4 << 20;

#[test]
fn the_number_of_threads_does_not_grow_with_the_requests() {
    alone("request::memory::the_number_of_threads_does_not_grow_with_the_requests", || {
        let Ok(_) = fs::read_dir("/proc/self/task") else { return eprintln!("skipped: no /proc here") };
        let n_threads = || fs::read_dir("/proc/self/task").unwrap().count();
        let model = compile(doubling());
        let first = model.create_infer_request().unwrap();
        first.start_async(()).unwrap();
        first.wait().unwrap();
        let before = n_threads();
        let requests: Vec<_> = (0..500).map(|_| model.create_infer_request().unwrap()).collect();
        requests.iter().for_each(|request| request.start_async(()).unwrap());
        requests.iter().for_each(|request| request.wait().unwrap());
        assert_eq!(n_threads(), before);
    });
}

#[test]
fn requests_that_come_and_go_do_not_grow_the_memory() {
    alone("request::memory::requests_that_come_and_go_do_not_grow_the_memory", || {
        let model = compile(doubling());
        check(|| {
            let request = model.create_infer_request().unwrap();
            request.set_callback(|_, _| ()).unwrap();
            request.append_step("decode", |_| Ok(())).unwrap();
            request.start_async(()).unwrap();
            request.wait().unwrap();
        });
    });
}

#[test]
fn runs_from_fresh_threads_do_not_grow_the_memory() {
    alone("request::memory::runs_from_fresh_threads_do_not_grow_the_memory", || {
        let model = compile(doubling());
        check(|| {
            let model = model.clone();
            std::thread::spawn(move || drop(model.infer(row([1.0; 4])).unwrap())).join().unwrap();
        });
    });
}

#[test]
fn runs_that_fail_do_not_grow_the_memory() {
    alone("request::memory::runs_that_fail_do_not_grow_the_memory", || {
        let request = compile(failing()).create_infer_request().unwrap();
        request.set_callback(|_, _| ()).unwrap();
        check(|| {
            request.start_async(()).unwrap();
            request.wait().unwrap_err();
        });
    });
}

/// Many runs of one request: one million with `ROIFLOW_LONG_RUNS`.
#[test]
fn runs_of_one_request_do_not_grow_the_memory() {
    alone("request::memory::runs_of_one_request_do_not_grow_the_memory", || {
        let request = compile(doubling()).create_infer_request().unwrap();
        request.set_callback(|_, _| ()).unwrap();
        let input = row([1.0; 4]);
        check_n(1_000_000, || {
            request.start_async(&input).unwrap();
            request.wait().unwrap();
        });
    });
}

/// Requests of the built-in engine that are created and dropped, and direct inference with changing batch sizes.
#[test]
fn runs_on_the_embedded_engine_do_not_grow_the_memory() {
    alone("request::memory::runs_on_the_embedded_engine_do_not_grow_the_memory", || {
        let model = crate::support::compile(&tiny("double.onnx"));
        let request = model.create_infer_request().unwrap();
        let inputs: Vec<_> = (1..=4).map(|n| roiflow::tensor::Tensor::new(ElementType::F32, [n, 4]).unwrap()).collect();
        let mut n_runs = 0;
        check_n(10_000, || {
            let input = &inputs[n_runs % 4];
            n_runs += 1;
            request.start_async(input).unwrap();
            request.wait().unwrap();
            drop(model.infer(input).unwrap());
        });
    });
}

/// The engine has buffers per request and thread. A request may be dropped on a thread that never ran it.
#[test]
fn requests_of_the_embedded_engine_that_come_and_go_do_not_grow_the_memory() {
    alone("request::memory::requests_of_the_embedded_engine_that_come_and_go_do_not_grow_the_memory", || {
        let model = crate::support::compile(&tiny("color.onnx"));
        let picture = roiflow::tensor::Tensor::new(ElementType::F32, [1, 3, 8, 8]).unwrap();
        check_n(10_000, || {
            let request = model.create_infer_request().unwrap();
            request.start_async(&picture).unwrap();
            request.wait().unwrap();
            std::thread::spawn(move || drop(request)).join().unwrap();
        });
    });
}

/// The memory of jobs in a queue is bounded, for successful and failed jobs. The memory of futures is bounded as well.
#[test]
fn jobs_and_futures_do_not_grow_the_memory() {
    alone("request::memory::jobs_and_futures_do_not_grow_the_memory", || {
        let script =
            Script::computing(|io, _| if read(io.input(0))[0] < 0.0 { Err(Error::new(ErrorKind::Device, "no")) } else { double(io) });
        let model = compile(script);
        let (good, bad) = (row([1.0; 4]), row([-1.0; 4]));
        let queue = roiflow::runtime::AsyncInferQueue::new(&model, 2).unwrap();
        queue.set_callback(|_, _job: Box<u64>, _| ());
        let request = model.create_infer_request().unwrap();
        check_n(200_000, || {
            queue.start_async(&good, Box::new(1)).unwrap();
            queue.start_async(&bad, Box::new(2)).unwrap();
            drop(request.run(&good));
            drop(::futures::executor::block_on(request.clone().into_future()));
        });
        assert_eq!(queue.wait_all().unwrap_err().errors.len(), 16);
    });
}

fn check(action: impl FnMut()) {
    check_n(20_000, action);
}

/// Checks that resident memory is about the same after 2000 calls and after `n` calls. Without `ROIFLOW_LONG_RUNS`, `n` is limited to
/// 20,000 to save time.
fn check_n(n: usize, mut action: impl FnMut()) {
    let Some(_) = resident_bytes() else { return eprintln!("skipped: no /proc here") };
    let n = if std::env::var_os("ROIFLOW_LONG_RUNS").is_some() { n } else { n.min(20_000) };
    (0..2000).for_each(|_| action());
    let before = resident_bytes().unwrap();
    (0..n).for_each(|_| action());
    let grown = resident_bytes().unwrap().saturating_sub(before);
    eprintln!("grown by {grown} bytes in {n} times, from {before}");
    assert!(grown < MAX_GROWTH_BYTES, "grown by {grown} bytes");
}
