//! Checks the request pool: a request has one user at a time, and is idle when it is taken.

use std::collections::HashSet;
use std::sync::{Arc, Mutex as Hidden};

use roiflow_check::runtime::RequestPool;
use shuttle::thread;

use crate::Check;
use crate::explore::{Search, explore, point};
use crate::world::{Crank, Journal, append_step, model};

pub fn checks() -> Vec<Check> {
    vec![
        Check {
            name: "a_pooled_request_has_one_user",
            bounds: "2 threads, two takes each, a pool of 1; at most 3 preemptions",
            run: a_pooled_request_has_one_user,
        },
        Check {
            name: "a_pooled_request_is_idle_when_taken",
            bounds: "given back while it runs, beside a taker; at most 3 preemptions",
            run: a_pooled_request_is_idle_when_taken,
        },
    ]
}

fn a_pooled_request_has_one_user() -> usize {
    explore(Search::Preemptions(3), || {
        let (model, pool) = (model(), Arc::new(RequestPool::new(1)));
        let users: Arc<Hidden<HashSet<u64>>> = Arc::default();
        let take = move || {
            for _ in 0..2 {
                let request = pool.take_or_create(&model).unwrap();
                assert!(users.lock().unwrap().insert(request.id()), "two users have the same request");
                request.infer(()).unwrap();
                users.lock().unwrap().remove(&request.id());
                drop(request);
            }
        };
        let other = thread::spawn(take.clone());
        take();
        other.join().unwrap();
    })
}

fn a_pooled_request_is_idle_when_taken() -> usize {
    explore(Search::Preemptions(3), || {
        let (model, pool) = (model(), Arc::new(RequestPool::new(1)));
        let (crank, workers) = Crank::start(1);
        let request = pool.take_or_create(&model).unwrap();
        append_step(&request, crank.clone(), &Arc::new(Journal::default()), false);
        request.start_async(()).unwrap();
        drop(request);
        point();
        assert!(pool.take_or_create(&model).unwrap().infer(()).is_ok(), "a run of another user is in progress");
        pool.clear();
        crank.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    })
}
