//! Who runs tasks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::ThreadId;

use roiflow::runtime::ErrorKind;
use roiflow::runtime::executor::{Executor, Inline, MAX_REQUESTS, Manual, Pool, Task};

use super::*;
use crate::support::in_time;

/// Does something when it is run.
struct Work(Box<dyn Fn() + Send + Sync>);

impl Task for Work {
    fn run(self: Arc<Self>) {
        self.0();
    }
}

fn work(action: impl Fn() + Send + Sync + 'static) -> Arc<Work> {
    Arc::new(Work(Box::new(action)))
}

/// canCreateTaskExecutor, canRunCustomFunction, canRun2FunctionsOneByOne.
#[test]
fn every_executor_runs_tasks_in_order() {
    let manual = Arc::new(Manual::default());
    let executors: [Arc<dyn Executor>; 3] = [Arc::new(Inline), Arc::new(Pool::new("one", 1).unwrap()), manual.clone()];
    for executor in executors {
        let (sender, receiver) = mpsc::channel();
        for n in 0..2 {
            let sender = sender.clone();
            executor.execute(work(move || sender.send(n).unwrap()));
        }
        while manual.run_one() {}
        assert_eq!((receiver.recv().unwrap(), receiver.recv().unwrap()), (0, 1), "{executor:?}");
    }
}

/// executorNotReleasedUntilTasksAreDone, canRun2FunctionsOneByOneWithoutWait.
#[test]
fn a_pool_that_is_dropped_ends_its_tasks_first() {
    let n_done = Arc::new(AtomicUsize::new(0));
    let pool = Pool::new("two", 2).unwrap();
    for _ in 0..100 {
        let n = n_done.clone();
        pool.execute(work(move || {
            n.fetch_add(1, Ordering::AcqRel);
        }));
    }
    drop(pool);
    assert_eq!(n_done.load(Ordering::Acquire), 100);
}

/// canRunMultipleTasksFromMultipleThreads.
#[test]
fn many_threads_may_queue_tasks() {
    let n_done = Arc::new(AtomicUsize::new(0));
    let pool = Pool::new("two", 2).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let n = n_done.clone();
                    pool.execute(work(move || {
                        n.fetch_add(1, Ordering::AcqRel);
                    }));
                }
            });
        }
    });
    drop(pool);
    assert_eq!(n_done.load(Ordering::Acquire), 400);
}

/// startAsyncIsNotBlockedByAnotherTask.
#[test]
fn a_start_is_not_held_up_by_a_task_that_runs() {
    let gate = Gate::closed();
    let pool: Arc<dyn Executor> = Arc::new(Pool::new("one", 1).unwrap());
    let request =
        |gate: Option<Arc<Gate>>| compile(Script { gate, executor: Some(pool.clone()), ..doubling() }).create_infer_request().unwrap();
    let (held, free) = (request(Some(gate.clone())), request(None));
    held.start_async(()).unwrap();
    gate.wait_for_arrivals(1);
    let free = in_time(move || {
        free.start_async(()).unwrap();
        free
    });
    gate.open();
    held.wait().unwrap();
    free.wait().unwrap();
}

/// runAndWaitDoesNotOwnTasks.
#[test]
fn an_executor_forgets_a_task_that_it_ran() {
    let (sender, receiver) = mpsc::channel();
    let task = work(move || sender.send(()).unwrap());
    let pool = Pool::new("one", 1).unwrap();
    pool.execute(task.clone());
    receiver.recv().unwrap();
    drop(pool);
    assert_eq!(Arc::strong_count(&task), 1);
}

/// The manager is single; the same device gets the same executor (C16).
#[test]
fn all_models_of_a_core_share_one_pool() {
    let core = devices_core();
    assert!(Arc::ptr_eq(&core.executors().cpu().unwrap(), &core.clone().executors().cpu().unwrap()));
    let cpu = core.executors().cpu().unwrap();
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(cpu.n_threads(), n_threads);
}

fn devices_core() -> Core {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::default()));
    core
}

/// Different executors of different devices run on different threads (C16).
#[test]
fn steps_run_where_their_executor_says() {
    let pools = [Arc::new(Pool::new("first", 1).unwrap()), Arc::new(Pool::new("second", 1).unwrap())];
    let threads: Vec<ThreadId> = pools
        .iter()
        .map(|pool| {
            let seen = Arc::new(Mutex::new(None));
            let there = seen.clone();
            let script = Script::computing(move |io, _| {
                *there.lock().unwrap() = Some(std::thread::current().id());
                double(io)
            });
            let request = compile(Script { executor: Some(pool.clone()), ..script }).create_infer_request().unwrap();
            request.start_async(()).unwrap();
            request.wait().unwrap();
            seen.lock().unwrap().take().unwrap()
        })
        .collect();
    assert_ne!(threads[0], threads[1]);
    assert!(!threads.contains(&std::thread::current().id()));
}

/// A queue never overflows: the request that would be too many is refused when it is made.
#[test]
fn too_many_requests_are_refused_when_they_are_made() {
    let model = compile(doubling());
    let mut requests: Vec<_> = (0..MAX_REQUESTS).map(|_| model.create_infer_request().unwrap()).collect();
    let error = model.create_infer_request().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("drop some"), "{error}");
    requests.pop();
    requests.push(model.create_infer_request().unwrap());
    requests.iter().for_each(|request| request.start_async(()).unwrap());
    requests.iter().for_each(|request| request.wait().unwrap());
}
