//! Checks the request queue with several producers, failing jobs, borrowed requests, and a drop of the queue.

use std::sync::Arc;
use std::sync::Mutex as Hidden;

use roiflow_check::runtime::AsyncInferQueue;
use roiflow_check::runtime::queue::TryStartError;
use shuttle::thread;

use crate::Check;
use crate::explore::{Search, explore, point};
use crate::world::{Crank, End, Journal, append_step, model};

pub fn checks() -> Vec<Check> {
    vec![
        Check {
            name: "every_job_ends_once",
            bounds: "2 producers, two jobs each, 1 and 2 requests, every second run fails; at most 1 preemption",
            run: || jobs(Search::Preemptions(1)),
        },
        Check {
            name: "every_job_ends_once_drawn",
            bounds: "as before; priorities with 3 changes",
            run: || jobs(Search::Pct { depth: 4, n: 10_000 }),
        },
        Check { name: "a_callback_may_try_the_next_job", bounds: "2 producers, 1 request; at most 2 preemptions", run: chained },
        Check {
            name: "a_borrowed_request_comes_back",
            bounds: "borrowed, run by the borrower beside a producer, at most 1 preemption; run or changed by another thread, at most 2",
            run: a_borrowed_request_comes_back,
        },
        Check { name: "a_dropped_queue_is_silent", bounds: "dropped beside 2 running jobs; at most 2 preemptions", run: dropped },
    ]
}

/// The jobs that the callback received, with their results.
type Told = Arc<Hidden<Vec<(u64, End)>>>;

struct World {
    queue: Arc<AsyncInferQueue<u64>>,
    crank: Arc<Crank>,
    workers: Vec<thread::JoinHandle<()>>,
    journal: Arc<Journal>,
    told: Told,
}

fn world(n_requests: usize, fails: bool) -> World {
    let (crank, workers) = Crank::start(1);
    let (journal, told) = (Arc::new(Journal::default()), Told::default());
    let queue = Arc::new(AsyncInferQueue::new(&model(), n_requests).unwrap());
    for request in queue.iter() {
        append_step(request, crank.clone(), &Arc::new(Journal::default()), fails);
    }
    let (to, note) = (told.clone(), journal.clone());
    queue.set_callback(move |request, job, result| {
        note.expect(request.latency().is_ok(), || format!("job {job} is told before its request is idle"));
        to.lock().unwrap().push((job, End::from(&result)));
    });
    World { queue, crank, workers, journal, told }
}

impl World {
    fn close(self) {
        drop(self.queue);
        self.crank.close();
        self.workers.into_iter().for_each(|worker| worker.join().unwrap());
        self.journal.close();
    }
}

fn start(queue: &AsyncInferQueue<u64>, job: u64) {
    let _number = queue.start_async((), job).unwrap();
}

fn jobs(search: Search) -> usize {
    let mut n = 0;
    for n_requests in [1, 2] {
        n += explore(search, move || {
            let world = world(n_requests, true);
            let queue = world.queue.clone();
            let other = thread::spawn(move || (0..2).for_each(|job| start(&queue, job)));
            (2..4).for_each(|job| start(&world.queue, job));
            other.join().unwrap();
            let failed = world.queue.wait_all().map_or_else(|errors| errors.errors.len(), |()| 0);
            let mut told = world.told.lock().unwrap().clone();
            let n_failed = told.iter().filter(|(_, end)| *end != End::Good).count();
            told.sort_by_key(|(job, _)| *job);
            assert_eq!(told.iter().map(|(job, _)| *job).collect::<Vec<_>>(), [0, 1, 2, 3], "each job once, before wait_all returns");
            assert_eq!(failed, n_failed, "wait_all returned another number of errors");
            assert!(world.queue.wait_all().is_ok(), "wait_all returned an error twice");
            assert!((0..n_requests).all(|_| world.queue.try_take_idle().map(std::mem::forget).is_some()), "all requests are idle");
            world.close();
        });
    }
    n
}

fn chained() -> usize {
    explore(Search::Preemptions(2), || {
        let world = world(1, false);
        let (told, weak) = (world.told.clone(), Arc::downgrade(&world.queue));
        world.queue.set_callback(move |_request, job, result| {
            told.lock().unwrap().push((job, End::from(&result)));
            if let Some(queue) = weak.upgrade() {
                // The job's own request is not idle before the callback returns.
                let tried = queue.try_start_async((), job + 100);
                assert!(matches!(tried, Err(TryStartError::Full(_))), "the request of a running callback is not idle");
            }
        });
        let queue = world.queue.clone();
        let other = thread::spawn(move || start(&queue, 0));
        world.queue.start_async((), 1).unwrap();
        other.join().unwrap();
        world.queue.wait_all().expect("no callback panicked");
        assert_eq!(world.told.lock().unwrap().len(), 2);
        world.close();
    })
}

fn a_borrowed_request_comes_back() -> usize {
    let mut n = 0;
    for way in 0..4 {
        n += explore(Search::Preemptions(if way < 2 { 1 } else { 2 }), move || {
            let world = world(1, false);
            let queue = world.queue.clone();
            let producer = (way < 2).then(|| thread::spawn(move || queue.start_async((), 0).is_ok()));
            let idle = world.queue.take_idle().unwrap();
            let mut runner = None;
            match way {
                0 => idle.infer(()).unwrap(),
                1 => idle.start_async(()).unwrap(),
                // Another thread has a clone of the request, and runs or changes the request while the borrower returns it.
                2 => {
                    let clone = (*idle).clone();
                    runner = Some(thread::spawn(move || drop(clone.infer(()))));
                }
                _ => {
                    let clone = (*idle).clone();
                    runner = Some(thread::spawn(move || drop(clone.clear_inputs())));
                }
            }
            point();
            drop(idle);
            if let Some(runner) = runner {
                runner.join().unwrap();
            }
            assert!(producer.is_none_or(|producer| producer.join().unwrap()), "a job is refused");
            let _told = world.queue.wait_all();
            drop(world.queue.take_idle().expect("the request was not returned"));
            world.close();
        });
    }
    n
}

fn dropped() -> usize {
    explore(Search::Preemptions(2), || {
        let World { queue, crank, workers, journal, told } = world(2, false);
        queue.start_async((), 0).unwrap();
        queue.start_async((), 1).unwrap();
        drop(queue);
        let n_told = told.lock().unwrap().len();
        point();
        crank.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(told.lock().unwrap().len(), n_told, "a callback after the drop of the queue");
        assert_eq!(Arc::strong_count(&told), 1, "the callback outlives the queue");
        journal.close();
    })
}
