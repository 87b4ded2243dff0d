//! Executors and thread pools.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::ThreadId;

use roiflow::runtime::ErrorKind;
use roiflow::runtime::executor::{Executor, Inline, MAX_REQUESTS, Manual, Pool, Task};

use super::*;
use crate::support::{eventually, in_time};

/// A task that calls a closure.
struct Work(Box<dyn Fn() + Send + Sync>);

impl Task for Work {
    fn run(self: Arc<Self>) {
        self.0();
    }
}

/// A task that calls a closure and is urgent.
struct Urgent(Work);

impl Task for Urgent {
    fn run(self: Arc<Self>) {
        self.0.0();
    }

    fn is_urgent(&self) -> bool {
        true
    }
}

fn work(action: impl Fn() + Send + Sync + 'static) -> Arc<Work> {
    Arc::new(Work(Box::new(action)))
}

/// Equivalent OpenVINO tests: canCreateTaskExecutor, canRunCustomFunction, canRun2FunctionsOneByOne.
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

/// Returns a pool with one worker. The worker stays busy until the returned sender is dropped.
fn held() -> (Pool, mpsc::Sender<()>) {
    let pool = Pool::new("held", 1).unwrap();
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    pool.execute(work(move || gate.lock().unwrap().recv().unwrap_or(())));
    (pool, open)
}

#[test]
fn urgent_tasks_go_before_others_in_their_own_order() {
    let (pool, open) = held();
    let order = Arc::new(Mutex::new(Vec::new()));
    for (n, is_urgent) in [(0, false), (1, true), (2, false), (3, true)] {
        let order = order.clone();
        let noted = Work(Box::new(move || order.lock().unwrap().push(n)));
        match is_urgent {
            true => pool.execute(Arc::new(Urgent(noted))),
            false => pool.execute(Arc::new(noted)),
        }
    }
    drop(open);
    drop(pool);
    assert_eq!(*order.lock().unwrap(), [1, 3, 0, 2]);
}

#[test]
fn urgent_tasks_without_end_leave_others_their_turn() {
    let (pool, open) = held();
    let pool = Arc::new(pool);
    let others = Arc::new(AtomicUsize::new(0));
    // Each urgent task queues the next urgent task until all other tasks have run.
    struct Chain(std::sync::Weak<Pool>, Arc<AtomicUsize>, AtomicUsize);
    impl Task for Chain {
        fn run(self: Arc<Self>) {
            let n_run = self.2.fetch_add(1, Ordering::AcqRel);
            assert!(n_run < 1000, "the other tasks never run");
            if let Some(pool) = self.0.upgrade().filter(|_| self.1.load(Ordering::Acquire) < 3) {
                pool.execute(self);
            }
        }

        fn is_urgent(&self) -> bool {
            true
        }
    }
    let chain = Arc::new(Chain(Arc::downgrade(&pool), others.clone(), AtomicUsize::new(0)));
    pool.execute(chain.clone());
    for _ in 0..3 {
        let others = others.clone();
        pool.execute(work(move || {
            others.fetch_add(1, Ordering::AcqRel);
        }));
    }
    drop(open);
    eventually(move || others.load(Ordering::Acquire) == 3);
    drop(pool);
    let n_run = chain.2.load(Ordering::Acquire);
    assert!((48..=66).contains(&n_run), "expected at most 16 urgent tasks in a row before each other task: {n_run}");
}

#[test]
fn urgent_tasks_of_many_threads_are_all_run() {
    let n_done = Arc::new(AtomicUsize::new(0));
    for round in 1..=50 {
        let pool = Arc::new(Pool::new("many", 2).unwrap());
        let threads: Vec<_> = (0..4)
            .map(|thread_idx| {
                let (pool, n_done) = (pool.clone(), n_done.clone());
                std::thread::spawn(move || {
                    for n in 0..100 {
                        let n_done = n_done.clone();
                        let counted = Work(Box::new(move || {
                            n_done.fetch_add(1, Ordering::AcqRel);
                        }));
                        match (n + thread_idx) % 3 {
                            0 => pool.execute(Arc::new(counted)),
                            _ => pool.execute(Arc::new(Urgent(counted))),
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let seen = n_done.clone();
        // The pool must not be dropped before this wait: its drop would also run tasks for which no worker was notified.
        eventually(move || seen.load(Ordering::Acquire) == round * 400);
    }
}

/// Equivalent OpenVINO tests: executorNotReleasedUntilTasksAreDone, canRun2FunctionsOneByOneWithoutWait.
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

/// Equivalent OpenVINO test: canRunMultipleTasksFromMultipleThreads.
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

/// Equivalent OpenVINO test: startAsyncIsNotBlockedByAnotherTask.
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

/// Equivalent OpenVINO test: runAndWaitDoesNotOwnTasks.
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

/// Equivalent OpenVINO tests (see `tests/conformance.txt`): C16 manager is single, C16 the same device the same one. A device always gets
/// the same executor.
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

/// Equivalent OpenVINO test (see `tests/conformance.txt`): C16 different devices get different executors. Tasks on two executors run on
/// different threads.
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

/// If the maximum number of requests exists, creating another request fails.
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

/// Equivalent OpenVINO tests: canSetExclusiveAsyncRequests, withoutExclusiveAsyncRequests. Checks the number of executors.
#[test]
fn exclusive_models_of_a_device_share_one_worker() {
    let core = devices_core();
    let shared: Vec<_> = (0..2).map(|_| compile_on(&core, "NULL", &Config::default())).collect();
    assert_eq!(core.executors().n_named(), 0);
    let exclusive = Config { exclusive_requests: true, ..Config::default() };
    let models: Vec<_> = (0..2).map(|_| compile_on(&core, "NULL", &exclusive)).collect();
    assert_eq!(core.executors().n_named(), 1);
    for model in shared.iter().chain(&models) {
        let request = model.create_infer_request().unwrap();
        request.start_async(()).unwrap();
        request.wait().unwrap();
    }
    let cpu: Arc<dyn Executor> = core.executors().cpu().unwrap();
    assert!(core.executors().for_model("NULL", &Config::default()).unwrap() == cpu);
    drop(models);
    // The worker releases the last run shortly after it has notified the waiter.
    eventually(move || core.executors().n_named() == 0);
}

/// Exclusive runs execute one after the other in the order of their starts, even if preprocessing takes longer for some of them.
#[test]
fn exclusive_runs_keep_the_order_of_their_starts() {
    /// A filler that waits until the last run has been started.
    struct Slow(Arc<std::sync::Barrier>, usize);
    impl roiflow::runtime::FillInput for Slow {
        fn shape(&mut self, _port: &Port) -> Result<roiflow::tensor::Shape> {
            Ok([1, 4].into())
        }

        fn fill(&mut self, input: &mut roiflow::tensor::BytesMut) -> Result<()> {
            if self.1 == 0 {
                self.0.wait();
            }
            assert_eq!(std::thread::current().name(), Some("roiflow-NULL-exclusive-0"), "`fill` ran on another executor");
            input.dense_mut::<f32>()?.fill(self.1 as f32);
            Ok(())
        }
    }
    let (sender, receiver) = mpsc::channel();
    let at_once = Arc::new(AtomicUsize::new(0));
    let n = at_once.clone();
    let script = Script::computing(move |io, _| {
        assert_eq!(n.fetch_add(1, Ordering::AcqRel), 0, "one at a time");
        sender.send(read(io.input(0))[0] as usize).unwrap();
        double(io)?;
        n.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    });
    let model = compile_with(script, &Config { exclusive_requests: true, ..Config::default() });
    let requests: Vec<_> = (0..20).map(|_| model.create_infer_request().unwrap()).collect();
    for round in 0..20 {
        let all_started = Arc::new(std::sync::Barrier::new(2));
        for (request_idx, request) in requests.iter().enumerate() {
            request.set_input((), Slow(all_started.clone(), request_idx)).unwrap();
            request.start_async(()).unwrap();
        }
        all_started.wait();
        requests.iter().for_each(|request| request.wait().unwrap());
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), (0..20).collect::<Vec<_>>(), "round {round}");
    }
}

/// Equivalent OpenVINO test: ReusableCPUStreamsExecutor. While a handle of a named pool exists, requests for this name return the same
/// pool.
#[test]
fn a_named_pool_is_reused_while_it_is_kept() {
    let executors = devices_core().executors().clone();
    let first = executors.named("waiter", 2).unwrap();
    assert!(Arc::ptr_eq(&first, &executors.named("waiter", 1).unwrap()));
    assert_eq!(first.n_threads(), 2);
    assert!(!Arc::ptr_eq(&first, &executors.named("other", 1).unwrap()), "different names are different executors");
    assert_eq!(executors.n_named(), 1, "a pool without handles still exists");
    drop(first);
    assert_eq!(executors.n_named(), 0);
    assert_eq!(executors.named("waiter", 1).unwrap().n_threads(), 1);
}

/// Only requests are counted, not tasks. A dropped request does not count, even if an executor still holds its tasks.
#[test]
fn tasks_of_dropped_requests_count_as_no_requests() {
    let manual = Arc::new(Manual::default());
    let model = compile(doubling());
    for _ in 0..MAX_REQUESTS + 10 {
        let request = model.create_infer_request().unwrap();
        request.prepend_step_on(manual.clone(), "kept", |_| Ok(())).unwrap();
        request.start_async(()).unwrap();
    }
    assert_eq!(manual.n_queued(), MAX_REQUESTS + 10);
    model.create_infer_request().unwrap().infer(()).unwrap();
    while manual.run_one() {}
}

/// The only worker of the pool queues many tasks. No other worker could run them meanwhile.
#[test]
fn a_task_may_queue_any_number_of_tasks_on_its_own_pool() {
    for is_urgent in [false, true] {
        let n_tasks = 3 * MAX_REQUESTS;
        let pool = Arc::new(Pool::new("one", 1).unwrap());
        let n_done = Arc::new(AtomicUsize::new(0));
        let (weak, n) = (Arc::downgrade(&pool), n_done.clone());
        pool.execute(work(move || {
            for _ in 0..n_tasks {
                let n = n.clone();
                let counted = Work(Box::new(move || {
                    n.fetch_add(1, Ordering::AcqRel);
                }));
                let pool = weak.upgrade().expect("the test waits for the tasks");
                match is_urgent {
                    true => pool.execute(Arc::new(Urgent(counted))),
                    false => pool.execute(Arc::new(counted)),
                }
            }
        }));
        eventually(move || n_done.load(Ordering::Acquire) == n_tasks);
        drop(pool);
    }
}
