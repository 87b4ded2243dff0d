//! Runs through requests against bare engine calls on the same threads: one at a time, several at once, and the latency of handing a run to
//! another thread.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crossbeam_channel::{Receiver, Sender, bounded};
use futures::executor::block_on;
use futures::future::join_all;
use roiflow::runtime::executor::{Executor, Pool, Task};
use roiflow::runtime::{AsyncInferQueue, InferRequest, Result};

use crate::budgets::{ASYNC_MORE_US, MODEL_MORE_PERCENT, SYNC_MORE_US};
use crate::engines::{BareCall, Engines, Subject};
use crate::harness::{Clock, Effort, Pairs};
use crate::report::Report;

/// Compares runs on the caller's thread with bare calls.
pub fn sync(engines: &Engines, effort: &Effort, report: &mut Report) -> Result<()> {
    let compare = |subject: &Subject| -> Result<_> {
        let (mut bare, request) = (subject.bare(), subject.request()?);
        Ok(effort
            .compare(|n_runs| (0..n_runs).for_each(|_| bare()), |n_runs| (0..n_runs).for_each(|_| request.infer(()).expect("it runs"))))
    };
    let pairs = compare(&engines.noop)?;
    report.more_us("sync, no-op model", &pairs, Clock::Wall, Some(SYNC_MORE_US));
    report.more_us("sync, no-op model", &pairs, Clock::Cpu, Some(SYNC_MORE_US));
    let (mut bare, request, input) = (engines.noop.bare(), engines.noop.request()?, engines.noop.request()?.input_tensor(())?);
    let pairs = effort
        .compare(|n_runs| (0..n_runs).for_each(|_| bare()), |n_runs| (0..n_runs).for_each(|_| request.infer(&input).expect("it runs")));
    report.more_us("sync with a tensor set, no-op model", &pairs, Clock::Wall, Some(SYNC_MORE_US));
    let pairs = effort.compare(
        |n_runs| (0..n_runs).for_each(|_| bare()),
        |n_runs| (0..n_runs).for_each(|_| drop(black_box(engines.noop.model.infer(&input).expect("it runs")))),
    );
    report.more_us("sync through the model, results owned, no-op model", &pairs, Clock::Wall, None);
    for subject in std::iter::once(&engines.millisecond).chain(&engines.models) {
        let pairs = compare(subject)?;
        for clock in [Clock::Wall, Clock::Cpu] {
            report.more_percent(&format!("sync, {}", subject.name), &pairs, clock, Some(MODEL_MORE_PERCENT));
        }
    }
    Ok(())
}

/// Measures runs that keep all threads busy. The callback of each run starts the next run.
pub fn callback(engines: &Engines, effort: &Effort, report: &mut Report) -> Result<()> {
    saturated("callback", engines, effort, report, |subject, n_requests| {
        let restarting = Restarting::new(subject, n_requests)?;
        Ok(Box::new(move |n_runs| restarting.run(n_runs)))
    })
}

/// Measures runs that keep all threads busy. One thread starts the runs through a queue, and waits for idle requests.
pub fn queue(engines: &Engines, effort: &Effort, report: &mut Report) -> Result<()> {
    saturated("queue", engines, effort, report, |subject, n_requests| {
        let queue = Queue::new(subject, n_requests)?;
        Ok(Box::new(move |n_runs| queue.run(n_runs)))
    })
}

/// Measures runs that keep all threads busy. One thread starts and awaits all runs.
pub fn awaited(engines: &Engines, effort: &Effort, report: &mut Report) -> Result<()> {
    saturated(".await", engines, effort, report, |subject, n_requests| {
        let requests = requests(subject, n_requests)?;
        Ok(Box::new(move |n_runs| await_each(&requests, n_runs)))
    })
}

type Runs = Box<dyn FnMut(usize)>;

/// Compares runs that keep all threads busy with bare calls on the same threads.
fn saturated(
    way: &str,
    engines: &Engines,
    effort: &Effort,
    report: &mut Report,
    ours: impl Fn(&Subject, usize) -> Result<Runs>,
) -> Result<()> {
    let n_threads = engines.n_threads()?;
    // Each thread has one running request and one ready request.
    let n_requests = 2 * n_threads;
    let effort = effort.of_threads(n_requests);
    let feeds_itself = way == "callback";
    for subject in [&engines.noop, &engines.short, &engines.millisecond].into_iter().chain(&engines.models) {
        let name = format!("{way}, saturated, {}", subject.name);
        let is_long = ![&engines.noop, &engines.short].into_iter().any(|short| std::ptr::eq(short, subject));
        // All cores are busy on both sides, so processor time is compared. Wall time is also reported, to confirm that all cores are busy.
        let mut more = |name: &str, pairs: &Pairs, judged: bool| match is_long {
            true => {
                report.more_percent(name, pairs, Clock::Cpu, judged.then_some(MODEL_MORE_PERCENT));
                report.more_percent(name, pairs, Clock::Wall, None);
            }
            false => {
                report.more_us(name, pairs, Clock::Cpu, judged.then_some(ASYNC_MORE_US));
                report.more_us(name, pairs, Clock::Wall, None);
            }
        };
        let (bare, mut ours) = (Threads::new(engines, subject, n_threads)?, ours(subject, n_requests)?);
        // In any implementation, the thread that starts the runs sleeps and is woken for each run. So the baseline also has one thread that
        // starts the bare calls.
        more(&name, &effort.compare(|n_runs| bare.run(n_runs), &mut ours), feeds_itself);
        if !feeds_itself {
            let fed = Fed::new(engines, subject, n_requests)?;
            more(&format!("{name}, both fed by a thread"), &effort.compare(|n_runs| fed.run(n_runs), &mut ours), true);
        }
    }
    Ok(())
}

/// Measures the time per run with 1 to 8 requests. The baseline is the bare engine with one thread per request, but at most one per core.
pub fn throughput(engines: &Engines, effort: &Effort, report: &mut Report) -> Result<()> {
    let n_threads = engines.n_threads()?;
    let gender = engines.models.iter().find(|subject| subject.name == "gender");
    for subject in std::iter::once(&engines.millisecond).chain(gender) {
        for n_requests in [1, 2, 3, 4, 8] {
            let bare = Threads::new(engines, subject, n_requests.min(n_threads))?;
            let restarting = Restarting::new(subject, n_requests)?;
            let pairs = effort.of_threads(n_requests).compare(|n_runs| bare.run(n_runs), |n_runs| restarting.run(n_runs));
            report.more_percent(&format!("time per run, {n_requests} requests, {}", subject.name), &pairs, Clock::Wall, None);
        }
    }
    Ok(())
}

/// Measures the latency of a call to a sleeping thread and back. The baseline sends through a channel; the other side uses a request.
pub fn wake_up(engines: &Engines, effort: &Effort, report: &mut Report) -> Result<()> {
    let echo = Echo::new();
    let request = engines.noop.request()?;
    let queue = Queue::new(&engines.noop, 1)?;
    let ways: [(&str, &dyn Fn(usize)); 3] = [
        ("start and wait", &|n_runs| {
            for _ in 0..n_runs {
                request.start_async(()).expect("it is idle");
                request.wait().expect("it runs");
            }
        }),
        (".await", &|n_runs| (0..n_runs).for_each(|_| block_on(request.run(()).without_results()).expect("it runs"))),
        ("queue, start and wait for all", &|n_runs| (0..n_runs).for_each(|_| queue.run(1))),
    ];
    for (way, ours) in ways {
        let pairs = effort.compare(|n_runs| (0..n_runs).for_each(|_| echo.call()), ours);
        report.more_us(&format!("there and back, {way}, against channels"), &pairs, Clock::Wall, None);
    }
    Ok(())
}

pub fn requests(subject: &Subject, n_requests: usize) -> Result<Vec<InferRequest>> {
    (0..n_requests).map(|_| subject.request()).collect()
}

/// Executes bare calls on the threads that run models.
struct Threads {
    pool: Arc<Pool>,
    tasks: Vec<Arc<Loop>>,
    left: Arc<AtomicUsize>,
    ended: Receiver<()>,
}

struct Loop {
    call: Mutex<BareCall>,
    left: Arc<AtomicUsize>,
    ended: Sender<()>,
}

impl Threads {
    fn new(engines: &Engines, subject: &Subject, n_threads: usize) -> Result<Self> {
        let (left, (ended, ends)) = (Arc::new(AtomicUsize::new(0)), bounded(n_threads));
        let new = |_| Arc::new(Loop { call: Mutex::new(subject.bare()), left: left.clone(), ended: ended.clone() });
        Ok(Self { pool: engines.core.executors().cpu()?, tasks: (0..n_threads).map(new).collect(), left, ended: ends })
    }

    fn run(&self, n_runs: usize) {
        self.left.store(n_runs, Ordering::Release);
        self.tasks.iter().for_each(|task| self.pool.execute(task.clone()));
        self.tasks.iter().for_each(|_| self.ended.recv().expect("the tasks hold the other end"));
    }
}

impl Task for Loop {
    fn run(self: Arc<Self>) {
        let mut call = self.call.lock().unwrap();
        while take_one(&self.left) {
            call();
        }
        self.ended.send(()).expect("who waits holds the other end");
    }
}

/// Bare calls on the threads that run models. A separate thread passes them one by one, and sleeps until one of these threads is free.
///
/// The passing thread sleeps immediately, like the thread that starts requests. With a crossbeam channel, the passing thread would first
/// yield until the computing thread has run. No calls would then be queued, and at 90 % load the baseline would use less CPU time,
/// which would make the comparison unfair.
struct Fed {
    pool: Arc<Pool>,
    calls: Vec<Arc<Call>>,
    idle: Arc<Idle>,
}

struct Call {
    call_idx: usize,
    call: Mutex<BareCall>,
    idle: Arc<Idle>,
}

#[derive(Default)]
struct Idle {
    calls: Mutex<Vec<usize>>,
    changed: Condvar,
}

impl Idle {
    fn put(&self, call_idx: usize) {
        self.calls.lock().unwrap().push(call_idx);
        self.changed.notify_one();
    }

    fn take(&self) -> usize {
        let mut calls = self.changed.wait_while(self.calls.lock().unwrap(), |calls| calls.is_empty()).unwrap();
        calls.pop().expect("there is one")
    }
}

impl Fed {
    fn new(engines: &Engines, subject: &Subject, n_calls: usize) -> Result<Self> {
        let idle = Arc::new(Idle::default());
        let new = |call_idx| Arc::new(Call { call_idx, call: Mutex::new(subject.bare()), idle: idle.clone() });
        (0..n_calls).for_each(|call_idx| idle.put(call_idx));
        Ok(Self { pool: engines.core.executors().cpu()?, calls: (0..n_calls).map(new).collect(), idle })
    }

    fn run(&self, n_runs: usize) {
        (0..n_runs).for_each(|_| self.pool.execute(self.calls[self.idle.take()].clone()));
        let all: Vec<usize> = self.calls.iter().map(|_| self.idle.take()).collect();
        all.into_iter().for_each(|call_idx| self.idle.put(call_idx));
    }
}

impl Task for Call {
    fn run(self: Arc<Self>) {
        (self.call.lock().unwrap())();
        self.idle.put(self.call_idx);
    }
}

fn take_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1)).is_ok()
}

/// Requests that are restarted by their callbacks until enough runs are done.
pub struct Restarting {
    requests: Vec<InferRequest>,
    left: Arc<AtomicUsize>,
    ended: Receiver<()>,
}

impl Restarting {
    pub fn new(subject: &Subject, n_requests: usize) -> Result<Self> {
        let (left, (ended, ends)) = (Arc::new(AtomicUsize::new(0)), bounded(n_requests));
        let requests = requests(subject, n_requests)?;
        for request in &requests {
            let (left, ended) = (left.clone(), ended.clone());
            request.set_callback(move |request, result| {
                let again = result.is_ok() && take_one(&left) && request.start_async(()).is_ok();
                if !again {
                    ended.send(()).expect("who waits holds the other end");
                }
            })?;
        }
        Ok(Self { requests, left, ended: ends })
    }

    pub fn run(&self, n_runs: usize) {
        self.left.store(n_runs, Ordering::Release);
        let n_started =
            self.requests.iter().take_while(|_| take_one(&self.left)).map(|request| request.start_async(()).expect("it is idle"));
        let n_started = n_started.count();
        (0..n_started).for_each(|_| self.ended.recv().expect("the callbacks hold the other end"));
        self.requests.iter().for_each(|request| request.wait().expect("it runs"));
        assert_eq!(self.left.load(Ordering::Acquire), 0, "a run failed");
    }
}

/// A queue that one thread feeds.
pub struct Queue(AsyncInferQueue<usize>);

impl Queue {
    pub fn new(subject: &Subject, n_requests: usize) -> Result<Self> {
        let queue = AsyncInferQueue::new(&subject.model, n_requests)?;
        queue.iter().try_for_each(|request| subject.prepare(request))?;
        queue.set_callback(|_request, job, _result| {
            black_box(job);
        });
        Ok(Self(queue))
    }

    pub fn run(&self, n_runs: usize) {
        for job in 0..n_runs {
            self.0.start_async((), job).expect("it runs");
        }
        self.0.wait_all().expect("all run");
    }
}

/// Runs several requests until `n_runs` runs are done, and awaits all of them on the calling thread.
fn await_each(requests: &[InferRequest], n_runs: usize) {
    let left = AtomicUsize::new(n_runs);
    block_on(join_all(requests.iter().map(async |request| {
        while take_one(&left) {
            request.run(()).without_results().await.expect("it runs");
        }
    })));
}

/// A thread that answers each message.
struct Echo {
    there: Sender<()>,
    back: Receiver<()>,
}

impl Echo {
    fn new() -> Self {
        let ((there, hears), (answers, back)) = (bounded(1), bounded(1));
        std::thread::spawn(move || hears.iter().try_for_each(|()| answers.send(())));
        Self { there, back }
    }

    fn call(&self) {
        self.there.send(()).expect("the other thread listens");
        self.back.recv().expect("the other thread answers");
    }
}
