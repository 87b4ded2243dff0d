//! A forked process does not have the threads of its parent. Calls in that process must return errors and must not block forever.

use std::time::{Duration, Instant};

use roiflow::runtime::{AsyncInferQueue, ErrorKind};

use super::*;
use crate::support::{alone, row, values};

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

const WITHOUT_WAITING: i32 = 1;

/// Runs the checks in the child process. Returns one bit per failed check.
fn in_child(running: InferRequest, idle: InferRequest, queue: AsyncInferQueue<()>) -> i32 {
    let refused = Some(ErrorKind::Unsupported);
    let mut wrong = 0;
    wrong |= i32::from(kind(running.wait()) != refused);
    wrong |= i32::from(kind(running.wait_for(Duration::from_secs(3600))) != refused) << 1;
    wrong |= i32::from(kind(::futures::executor::block_on(running.completed())) != refused) << 2;
    wrong |= i32::from(kind(idle.start_async(())) != refused) << 3;
    wrong |= i32::from(kind(queue.start_async((), ())) != refused) << 4;
    // A synchronous run computes on this thread, so it also works in a forked process, which has no worker threads.
    wrong |= i32::from(idle.infer(row([1.0; 4])).is_err() || values(&idle.output_tensor(()).unwrap()) != [2.0; 4]) << 5;
    drop((running, idle, queue));
    wrong
}

/// The pool was started in the parent process, and the request is created in the child process.
#[test]
fn a_pool_that_was_started_before_the_fork_is_refused() {
    alone("request::fork::a_pool_that_was_started_before_the_fork_is_refused", || {
        let model = compile(doubling());
        // SAFETY: as in `a_forked_process_gets_errors_and_waits_for_nothing`.
        let child = unsafe { fork() };
        if child == 0 {
            let refused = model.create_infer_request().and_then(|request| request.start_async(()));
            let is_wrong = kind(refused) != Some(ErrorKind::Unsupported);
            // SAFETY: as in `a_forked_process_gets_errors_and_waits_for_nothing`.
            unsafe { _exit(is_wrong.into()) }
        }
        wait_for_child(child);
    });
}

/// Waits for the child process and checks that it succeeded.
fn wait_for_child(child: i32) {
    let (begin, mut status) = (Instant::now(), 0);
    // SAFETY: `waitpid` gets the ID of a child of this process and a valid pointer for the status.
    while unsafe { waitpid(child, &raw mut status, WITHOUT_WAITING) } == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the child hangs");
        std::thread::yield_now();
    }
    assert_eq!(status, 0, "the second byte is the exit code of the child");
}

#[test]
fn a_forked_process_gets_errors_and_waits_for_nothing() {
    alone("request::fork::a_forked_process_gets_errors_and_waits_for_nothing", || {
        let (running, gate) = gated();
        let model = compile(doubling());
        let (idle, queue) = (model.create_infer_request().unwrap(), AsyncInferQueue::new(&model, 1).unwrap());
        running.start_async(()).unwrap();
        gate.wait_for_arrivals(1);
        // SAFETY: the child allocates memory, which glibc allows after a fork, and exits without running the exit handlers of the parent.
        let child = unsafe { fork() };
        if child == 0 {
            let wrong = in_child(running, idle, queue);
            // SAFETY: `_exit` may always be called. It ends the child process without running the exit handlers of the parent.
            unsafe { _exit(wrong) }
        }
        wait_for_child(child);
        gate.open();
        running.wait().unwrap();
    });
}
