//! Checks the thread pool: another worker replaces a blocked worker, no task is lost, and cyclic waits fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use roiflow_check::runtime::executor::{Executor, Pool, Task, blocking};
use roiflow_check::runtime::{ErrorKind, InferRequest};
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::thread;

use crate::Check;
use crate::explore::{Search, explore};
use crate::world::{Journal, append_step, model};

pub fn checks() -> Vec<Check> {
    vec![
        Check {
            name: "a_worker_blocked_in_a_callback_lends_its_place",
            bounds: "1 worker, a callback that starts and waits for a second request, two runs; at most 1 preemption, and drawn, priorities with 3 changes",
            run: || callback_waits(Search::Preemptions(1)) + callback_waits(Search::Pct { depth: 4, n: 3_000 }),
        },
        Check {
            name: "callbacks_that_wait_for_each_other_end",
            bounds: "2 requests, 1 worker; at most 1 preemption, and drawn, priorities with 3 changes",
            run: || cycle(Search::Preemptions(1)) + cycle(Search::Pct { depth: 4, n: 3_000 }),
        },
        Check {
            name: "a_pool_loses_no_task",
            bounds: "2 workers, a task that blocks until a later task runs, 3 further tasks; priorities with 3 changes, and drawn",
            run: || tasks(Search::Pct { depth: 4, n: 5_000 }) + tasks(Search::Random(5_000)),
        },
    ]
}

/// Returns a request whose step and callback run on the pool.
fn request(pool: &Arc<Pool>) -> InferRequest {
    let request = model().create_infer_request().unwrap();
    append_step(&request, pool.clone(), &Arc::new(Journal::default()), false);
    request
}

fn callback_waits(search: Search) -> usize {
    explore(search, || {
        let pool = Arc::new(Pool::new("one", 1).unwrap());
        let (first, second) = (request(&pool), request(&pool));
        let wait = move |_: &InferRequest, _| {
            second.start_async(()).unwrap();
            second.wait().unwrap();
        };
        first.set_callback(wait).unwrap();
        for _ in 0..2 {
            first.start_async(()).unwrap();
            first.wait().unwrap();
        }
    })
}

/// In a cycle of two callbacks that wait for each other, either wait may fail, or may begin after the other callback has ended.
fn cycle(search: Search) -> usize {
    explore(search, || {
        let pool = Arc::new(Pool::new("one", 1).unwrap());
        // All requests use one core, because cycles are detected per core.
        let model = model();
        let requests: [InferRequest; 2] = std::array::from_fn(|_| {
            let request = model.create_infer_request().unwrap();
            append_step(&request, pool.clone(), &Arc::new(Journal::default()), false);
            request
        });
        for idx in 0..2 {
            let other = requests[1 - idx].downgrade();
            let wait = move |_: &InferRequest, _| {
                let Some(other) = other.upgrade() else { return };
                let waited = other.wait();
                assert!(waited.is_ok() || waited.is_err_and(|error| error.kind() == ErrorKind::WouldDeadlock));
            };
            requests[idx].set_callback(wait).unwrap();
        }
        let other = requests[1].clone();
        let starts = thread::spawn(move || {
            other.start_async(()).unwrap();
            other.wait().unwrap();
        });
        requests[0].start_async(()).unwrap();
        requests[0].wait().unwrap();
        starts.join().unwrap();
    })
}

/// Runs a closure.
struct Work<F>(F);

impl<F: Fn() + Send + Sync> Task for Work<F> {
    fn run(self: Arc<Self>) {
        self.0();
    }
}

fn tasks(search: Search) -> usize {
    explore(search, || {
        let pool = Arc::new(Pool::new("two", 2).unwrap());
        let (n_ended, (ended, ends)): (Arc<AtomicUsize>, (Sender<()>, Receiver<()>)) = (Arc::default(), channel());
        let (open, opened) = channel::<()>();
        let (open, opened, ended) = (Shared::new(open), Shared::new(opened), Shared::new(ended));
        let end = {
            let n_ended = n_ended.clone();
            Arc::new(move || {
                n_ended.fetch_add(1, Ordering::SeqCst);
                ended.with(|ended| ended.send(()).unwrap());
            })
        };
        let blocks = end.clone();
        pool.execute(Arc::new(Work(move || {
            blocking(|| opened.with(|opened| opened.recv().unwrap())).unwrap();
            blocks();
        })));
        let opens = end.clone();
        pool.execute(Arc::new(Work(move || {
            open.with(|open| open.send(()).unwrap());
            opens();
        })));
        for _ in 0..3 {
            let end = end.clone();
            pool.execute(Arc::new(Work(move || end())));
        }
        // The assertion is before the drop of the pool, because the drop also runs tasks of which no worker was notified.
        (0..5).for_each(|_| ends.recv().unwrap());
        assert_eq!(n_ended.load(Ordering::SeqCst), 5);
    })
}

/// An end of a channel that tasks share.
struct Shared<T>(roiflow_check::sync::Mutex<T>);

impl<T> Shared<T> {
    fn new(value: T) -> Self {
        Self(roiflow_check::sync::Mutex::new(value))
    }

    fn with<R>(&self, action: impl FnOnce(&T) -> R) -> R {
        action(&self.0.lock().unwrap())
    }
}
