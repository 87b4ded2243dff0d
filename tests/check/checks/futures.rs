//! Checks futures of runs and ordered results: no wake-up is lost, and dropping a future cancels its run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::{future::Future, pin::pin};

use roiflow_check::runtime::AsyncInferQueue;
use shuttle::{future::block_on, thread};

use crate::Check;
use crate::explore::{Search, explore, point};
use crate::world::{Crank, End, Journal, append_step, model};

pub fn checks() -> Vec<Check> {
    vec![
        Check { name: "an_awaiting_task_is_woken", bounds: "a future beside its run and a canceler; at most 2 preemptions", run: woken },
        Check {
            name: "two_tasks_that_await_a_run_are_both_woken",
            bounds: "two futures of one run; at most 2 preemptions",
            run: both_woken,
        },
        Check {
            name: "a_dropped_future_cancels",
            bounds: "a future dropped before or after its first poll; at most 3 preemptions",
            run: a_dropped_future_cancels,
        },
        Check {
            name: "a_waker_goes_before_the_next_callback",
            bounds: "a future of the first run, a callback that restarts twice, 2 workers; at most 1 preemption",
            run: a_waker_goes_before_the_next_callback,
        },
        Check { name: "results_come_in_order", bounds: "3 inputs on 1 and 2 requests; at most 2 preemptions", run: results_come_in_order },
    ]
}

fn woken() -> usize {
    explore(Search::Preemptions(2), || {
        let (crank, workers) = Crank::start(1);
        let request = model().create_infer_request().unwrap();
        append_step(&request, crank.clone(), &Arc::new(Journal::default()), false);
        let canceler = {
            let request = request.clone();
            thread::spawn(move || request.cancel())
        };
        let end = End::from(&block_on(request.run(()).without_results()));
        assert!([End::Good, End::Canceled].contains(&end), "got {end:?}");
        assert!(request.infer(()).is_ok() || end == End::Good, "the next run is not canceled by the one before");
        canceler.join().unwrap();
        drop(request);
        crank.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    })
}

fn both_woken() -> usize {
    explore(Search::Preemptions(2), || {
        let (crank, workers) = Crank::start(1);
        let request = model().create_infer_request().unwrap();
        append_step(&request, crank.clone(), &Arc::new(Journal::default()), false);
        request.start_async(()).unwrap();
        let other = {
            let request = request.clone();
            thread::spawn(move || block_on(request.into_future_of_its_run()))
        };
        block_on(request.clone().into_future_of_its_run()).unwrap();
        other.join().unwrap().unwrap();
        drop(request);
        crank.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    })
}

trait OfItsRun {
    fn into_future_of_its_run(self) -> roiflow_check::runtime::RunFuture;
}

impl OfItsRun for roiflow_check::runtime::InferRequest {
    fn into_future_of_its_run(self) -> roiflow_check::runtime::RunFuture {
        std::future::IntoFuture::into_future(self)
    }
}

fn a_dropped_future_cancels() -> usize {
    let mut n = 0;
    for is_polled in [false, true] {
        let is_canceled_once = Arc::new(AtomicUsize::new(0));
        let noted = is_canceled_once.clone();
        n += explore(Search::Preemptions(3), move || {
            let (crank, workers) = Crank::start(1);
            let journal = Arc::new(Journal::default());
            let request = model().create_infer_request().unwrap();
            append_step(&request, crank.clone(), &journal, false);
            let mut future = request.run(()).without_results();
            let is_over = is_polled && pin!(&mut future).poll(&mut Context::from_waker(Waker::noop())).is_ready();
            let n_stepped = journal.with(|entries| entries.stepped.len());
            drop(future);
            point();
            let end = End::from(&request.wait());
            match end {
                End::Good => assert_eq!(journal.with(|entries| entries.stepped.len()), 1),
                End::Canceled => {
                    assert!(!is_over && n_stepped == 0, "a run that was over is canceled");
                    noted.store(1, Ordering::SeqCst);
                }
                _ => panic!("got {end:?}"),
            }
            drop(request);
            crank.close();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            journal.close();
        });
        assert_eq!(is_canceled_once.load(Ordering::SeqCst), 1, "no schedule cancels");
    }
    n
}

#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn a_waker_goes_before_the_next_callback() -> usize {
    explore(Search::Preemptions(1), || {
        let (crank, workers) = Crank::start(2);
        let journal = Arc::new(Journal::default());
        let request = model().create_infer_request().unwrap();
        append_step(&request, crank.clone(), &journal, false);
        // Values of `stage`: 0: no callback has begun; 1: the first callback has begun; 2: the waker was registered before the callback
        // began.
        let (woken, stage) = (Arc::new(Counting::default()), Arc::new(AtomicUsize::new(0)));
        let (to, n_called, counting, at) = (journal.clone(), AtomicUsize::new(0), woken.clone(), stage.clone());
        request
            .set_callback(move |request, _result| {
                let nth = n_called.fetch_add(1, Ordering::SeqCst);
                let _noted_earlier = at.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
                if nth == 1 && at.load(Ordering::SeqCst) == 2 {
                    let is_woken = counting.0.load(Ordering::SeqCst) == 1;
                    to.expect(is_woken, || "the waiter of the first run sleeps through the second callback".to_owned());
                }
                if nth < 2 {
                    request.start_async(()).unwrap();
                }
            })
            .unwrap();
        let run = request.run(()).without_results();
        // Each waiter needs a separate future, because a future keeps only the waker of its latest poll.
        let mut observer = request.completed();
        let is_pending = pin!(&mut observer).poll(&mut Context::from_waker(&Waker::from(woken.clone()))).is_pending();
        if is_pending {
            let _callback_came_earlier = stage.compare_exchange(0, 2, Ordering::SeqCst, Ordering::SeqCst);
        }
        block_on(run).unwrap();
        drop((request.wait(), request.wait(), request.wait()));
        drop(observer);
        drop(request);
        crank.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        journal.close();
    })
}

fn results_come_in_order() -> usize {
    let mut n = 0;
    for n_requests in [1, 2] {
        n += explore(Search::Preemptions(2), move || {
            let (crank, workers) = Crank::start(1);
            let queue = AsyncInferQueue::<()>::new(&model(), n_requests).unwrap();
            for request in queue.iter() {
                append_step(request, crank.clone(), &Arc::new(Journal::default()), false);
            }
            let n_read = AtomicUsize::new(0);
            // The single worker takes the jobs in the order of their start.
            let read = move |_: &roiflow_check::runtime::InferRequest| Ok(n_read.fetch_add(1, Ordering::SeqCst));
            let results: Vec<usize> = queue.ordered([(), (), ()], read).map(|result| result.unwrap()).collect();
            assert_eq!(results, [0, 1, 2]);
            drop(queue);
            crank.close();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
    }
    n
}
