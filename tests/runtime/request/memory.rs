//! Threads and memory do not grow with the number of requests and runs (C21, 8). Each test has a process of its own.

use std::fs;

use super::*;
use crate::support::{alone, resident_bytes, row};

/// What may come and go in an allocator that is warm.
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

/// Resident memory after 20 000 times is about what it was after 2000.
fn check(action: impl Fn()) {
    let Some(_) = resident_bytes() else { return eprintln!("skipped: no /proc here") };
    (0..2000).for_each(|_| action());
    let before = resident_bytes().unwrap();
    (0..20_000).for_each(|_| action());
    let grown = resident_bytes().unwrap().saturating_sub(before);
    eprintln!("grown by {grown} bytes");
    assert!(grown < MAX_GROWTH_BYTES, "grown by {grown} bytes");
}
