//! Requests that are taken from a pool or a queue and returned to it.

use std::sync::Arc;

use roiflow::runtime::{AsyncInferQueue, RequestPool};

use super::*;
use crate::support::in_time;

#[test]
fn a_pooled_request_that_is_given_back_while_it_runs_is_taken_again_only_when_idle() {
    in_time(|| {
        let manual = Arc::new(Manual::default());
        let model = compile(Script { executor: Some(manual.clone()), ..doubling() });
        let pool = RequestPool::new(1);
        let first = pool.take_or_create(&model).unwrap();
        first.start_async(()).unwrap();
        let id = first.id();
        let weak = first.downgrade();
        drop(first);
        assert_ne!(pool.take_or_create(&model).unwrap().id(), id, "it runs");
        while manual.n_queued() == 0 {
            std::thread::yield_now(); // Preprocessing is a step on the CPU pool.
        }
        assert!(manual.run_one());
        weak.upgrade().unwrap().wait().unwrap();
        assert_eq!(pool.take_or_create(&model).unwrap().id(), id);
    });
}

/// While another thread runs the request through another handle, its owner returns it to the queue. The request is idle when that run ends.
#[test]
fn a_borrowed_request_that_somebody_runs_synchronously_comes_back_when_that_run_ends() {
    in_time(|| {
        let gate = Gate::closed();
        let model = compile(Script { executor: Some(Arc::new(Inline)), gate: Some(gate.clone()), ..doubling() });
        let queue = AsyncInferQueue::<()>::new(&model, 1).unwrap();
        let idle = queue.take_idle().unwrap();
        let clone = (*idle).clone();
        let running = std::thread::spawn(move || clone.infer(()));
        gate.wait_for_arrivals(1);
        drop(idle);
        assert!(!queue.is_ready(), "it runs");
        gate.open();
        running.join().unwrap().unwrap();
        queue.wait_all().unwrap();
        assert!(queue.is_ready());
    });
}
