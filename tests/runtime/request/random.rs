//! Random sequences of operations on one request, compared with a simple model of the expected behavior.
//!
//! The request runs on manual executors. So only the sequence determines the order of events, and failures are reproducible. A failing
//! sequence is reduced to the operations that are needed for the failure, and printed with its seed. `ROIFLOW_SEQUENCES` sets the number of
//! sequences, and `ROIFLOW_SEED` the seed of the first sequence. Tests that need real threads are in `concurrent`.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ::futures::executor::block_on;
use roiflow::runtime::{ErrorKind, RunFuture};
use roiflow::tensor::{ElementType, Tensor, View};

use super::*;
use crate::support::{row, values};

/// An operation of a sequence. The number is the first value of the input, see [`outcome_of`].
#[derive(Debug, Clone, Copy, PartialEq)]
enum Op {
    Start(i32),
    StartAsBefore,
    Infer(i32),
    Run(i32),
    Await,
    StartWrongShape,
    Turn,
    Cancel,
    Wait,
    WaitForNothing,
    PollFuture(usize),
    DropFuture(usize),
    SetTensor(i32),
    ReadOutput,
    ViewInput,
    ViewOutput,
    ForgetViews,
    SetCallback(Call),
    ClearCallback,
    AppendStep,
    ClearSteps,
    FeedBack,
    DropRequest,
}

/// The action of the callback after it has recorded its arguments.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Call {
    Return,
    Restart(i32),
    Infer(i32),
    Cancel,
    Panic,
    Await,
}

/// Returns the expected outcome of a run with this input value: an error of the device, a panic of the device, or `None` for success.
fn outcome_of(value: i32) -> Option<ErrorKind> {
    match value {
        -1 => Some(ErrorKind::Device),
        -2 => Some(ErrorKind::Panic),
        _ => None,
    }
}

struct Generator(u64);

impl Generator {
    /// Returns a random number below `n`.
    fn next(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % n as u64) as usize
    }

    fn value(&mut self) -> i32 {
        self.next(12) as i32 - 2
    }

    fn op(&mut self) -> Op {
        match self.next(32) {
            0..=3 => Op::Start(self.value()),
            4 => Op::StartAsBefore,
            5 => Op::Infer(self.value()),
            6 | 7 => Op::Run(self.value()),
            8 => Op::Await,
            9 => Op::StartWrongShape,
            10..=14 => Op::Turn,
            15 => Op::Cancel,
            16 => Op::Wait,
            17 => Op::WaitForNothing,
            18 | 19 => Op::PollFuture(self.next(4)),
            20 => Op::DropFuture(self.next(4)),
            21 => Op::SetTensor(self.value()),
            22 => Op::ReadOutput,
            23 => Op::ViewInput,
            24 => Op::ViewOutput,
            25 => Op::ForgetViews,
            26 | 27 => Op::SetCallback(match self.next(8) {
                0..=2 => Call::Return,
                3 => Call::Restart(self.value()),
                4 => Call::Infer(self.value().abs()),
                5 => Call::Cancel,
                6 => Call::Panic,
                _ => Call::Await,
            }),
            28 => Op::ClearCallback,
            29 => Op::AppendStep,
            30 => Op::ClearSteps,
            _ if self.next(8) == 0 => Op::DropRequest,
            _ => Op::FeedBack,
        }
    }
}

/// The expected state of the request.
#[derive(Default)]
struct Expected {
    /// The current run: its number, its input value, and whether it was canceled.
    running: Option<(u64, i32, bool)>,
    n_started: u64,
    /// The outcome of the latest run that ended.
    latest: Option<ErrorKind>,
    /// The outcomes of all runs, which futures return.
    outcomes: Vec<Option<ErrorKind>>,
    input: i32,
    /// The first value of the output; `None` while it is undefined, for example after a failed run.
    output: Option<i32>,
    callback: Option<Call>,
    /// The runs whose tasks are in the manual executor, in order. Includes canceled runs.
    queued: VecDeque<u64>,
    /// The arguments of each call of the callback: the outcome, and the first value of the output.
    told: Vec<Told>,
    n_steps: usize,
    n_steps_run: usize,
}

type Told = (Option<ErrorKind>, Option<i32>);

impl Expected {
    /// Starts a run. Synchronous runs, and runs that fail immediately, are not queued.
    fn begin(&mut self, value: i32, synchronous: bool) -> u64 {
        self.n_started += 1;
        if !synchronous && outcome_of(value).is_none() {
            self.queued.push_back(self.n_started);
        }
        self.outcomes.push(None);
        self.input = value;
        self.running = Some((self.n_started, value, false));
        self.output = None;
        self.n_started
    }

    /// Completes the current run.
    fn end(&mut self, calls_back: bool) {
        let (run, value, canceled) = self.running.take().expect("a run is on");
        let outcome = outcome_of(value).or(canceled.then_some(ErrorKind::Canceled));
        if outcome.is_none() {
            self.output = Some(2 * value);
            self.n_steps_run += self.n_steps;
        } else if outcome == Some(ErrorKind::Canceled) {
            // The device had written the output before it noticed the cancel.
            self.output = Some(2 * value);
        }
        self.settle(run, outcome);
        if !calls_back {
            return;
        }
        let Some(call) = self.callback else { return };
        self.told.push((outcome, outcome.is_none().then_some(2 * value)));
        match call {
            Call::Return | Call::Cancel => {}
            Call::Await => self.told.push((Some(ErrorKind::WouldDeadlock), None)),
            Call::Panic => self.settle(run, Some(ErrorKind::Panic)),
            Call::Restart(value) => {
                self.callback = Some(Call::Return);
                self.begin(value, false);
                // A run that fails immediately ends on the current thread. The callback of the failed run is called after the current
                // callback.
                if outcome_of(value).is_some() {
                    self.end(true);
                }
            }
            Call::Infer(value) => {
                self.callback = Some(Call::Return);
                self.begin(value, true);
                self.end(false);
            }
        }
    }

    fn settle(&mut self, run: u64, outcome: Option<ErrorKind>) {
        self.outcomes[run as usize - 1] = outcome;
        if run == self.n_started {
            self.latest = outcome;
        }
    }
}

/// Counts the wakeups of an async task.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

struct Awaited {
    run: u64,
    future: RunFuture,
    /// Whether dropping the future cancels the run.
    owns_run: bool,
    woken: Arc<Woken>,
    was_polled: bool,
}

/// The request, and all handles, futures and views of the sequence.
struct World {
    request: InferRequest,
    hand: Arc<Manual>,
    told: Arc<Mutex<Vec<Told>>>,
    n_steps_run: Arc<AtomicUsize>,
    futures: Vec<Awaited>,
    views: Vec<(Tensor, View<f32>)>,
    expected: Expected,
}

impl World {
    fn new() -> Self {
        let script = Script::computing(|io, _| match read(io.input(0))[0] {
            -1.0 => Err(Error::new(ErrorKind::Device, "below zero")),
            -2.0 => std::panic::resume_unwind(Box::new("in the device")),
            _ => double(io),
        });
        let hand = Arc::new(Manual::default());
        let mut script = script;
        by_hand(&mut script, &hand);
        Self {
            request: compile(script).create_infer_request().unwrap(),
            hand,
            told: Arc::default(),
            n_steps_run: Arc::default(),
            futures: Vec::new(),
            views: Vec::new(),
            expected: Expected { output: Some(0), ..Expected::default() },
        }
    }

    /// Returns the error that a start must return now, with a new input or with the current input.
    fn refuses(&self, is_new_input: bool) -> Option<ErrorKind> {
        if self.expected.running.is_some() {
            return Some(ErrorKind::Busy);
        }
        let (input, output) = (self.request.input_tensor(()).unwrap(), self.request.output_tensor(()).unwrap());
        // If the output is also the input, the run writes to another tensor. Then readers of the input do not prevent the run.
        let stays = is_new_input || !input.shares_memory_with(&output);
        let is_viewed = self.views.iter().any(|(tensor, _)| tensor.shares_memory_with(&output));
        (stays && is_viewed).then_some(ErrorKind::Busy)
    }

    /// Starts a run, which may be refused. A run that fails immediately has ended when the start returns.
    fn start(&mut self, value: i32, refused: Option<ErrorKind>, started: Result<()>) {
        // Inputs are set before the tensors are leased. So a view of the output prevents the run, but the input is set.
        if self.expected.running.is_none() {
            self.expected.input = value;
        }
        assert_eq!(kind(started), refused);
        if refused.is_none() {
            self.expected.begin(value, false);
            if outcome_of(value).is_some() {
                self.expected.end(true);
            }
        }
    }

    /// Cancels the current run. The current run waits in the manual executor, so the cancel ends the run at once. The callback of the run
    /// is called on another thread.
    fn cancel(&mut self, cancel: impl FnOnce()) {
        let ended = self.request.completed();
        cancel();
        if let Some((_, _, canceled)) = &mut self.expected.running {
            *canceled = true;
            let _outcome = block_on(ended);
            self.expected.end(true);
            if self.expected.running.is_none() {
                // The callback may have started another run that failed immediately and also called the callback.
                let _outcome = self.request.wait();
            }
        }
    }

    fn set_callback(&mut self, call: Call) -> Result<()> {
        let told = self.told.clone();
        let is_first = std::sync::atomic::AtomicBool::new(true);
        self.request.set_callback(move |request, result| {
            // After a failed run, the output is undefined.
            let output = result.is_ok().then(|| values(&request.output_tensor(()).unwrap())[0] as i32);
            told.lock().unwrap().push((kind(result), output));
            match call {
                Call::Return => {}
                Call::Cancel => request.cancel(),
                Call::Panic => std::panic::resume_unwind(Box::new("in the callback")),
                Call::Await => {
                    assert_eq!(kind(request.wait_for(Duration::ZERO)), Some(ErrorKind::WouldDeadlock));
                    told.lock().unwrap().push((kind(request.wait()), None));
                }
                Call::Restart(value) => {
                    if is_first.swap(false, Ordering::AcqRel) {
                        let _started = request.start_async(row([value as f32; 4]));
                    }
                }
                Call::Infer(value) => {
                    if is_first.swap(false, Ordering::AcqRel) {
                        let _ran = request.infer(row([value as f32; 4]));
                    }
                }
            }
        })
    }

    /// Executes an operation. Returns false if the sequence has ended.
    fn act(&mut self, op: Op) -> bool {
        let busy = self.expected.running.map(|_| ErrorKind::Busy);
        let request = self.request.clone();
        let of = |value: i32| row([value as f32; 4]);
        match op {
            Op::Start(value) => self.start(value, self.refuses(true), request.start_async(of(value))),
            Op::StartAsBefore => self.start(self.expected.input, self.refuses(false), request.start_async(())),
            Op::Infer(value) => {
                let refused = self.refuses(true);
                let ran = request.infer(of(value));
                if self.expected.running.is_none() {
                    self.expected.input = value;
                }
                assert_eq!(kind(ran), refused.or(outcome_of(value)));
                if refused.is_none() {
                    self.expected.begin(value, true);
                    self.expected.end(false);
                }
            }
            Op::Run(value) => {
                let refused = self.refuses(true);
                let mut future = request.run(of(value));
                if self.expected.running.is_none() {
                    self.expected.input = value;
                }
                if refused.is_some() {
                    let woken = Waker::from(Arc::<Woken>::default());
                    match Pin::new(&mut future).poll(&mut Context::from_waker(&woken)) {
                        Poll::Ready(started) => assert_eq!(kind(started), refused),
                        Poll::Pending => panic!("a refused start must return its error at once"),
                    }
                } else {
                    let run = self.expected.begin(value, false);
                    if outcome_of(value).is_some() {
                        self.expected.end(true);
                    }
                    self.futures.push(Awaited {
                        run,
                        future: future.without_results(),
                        owns_run: true,
                        woken: Arc::default(),
                        was_polled: false,
                    });
                }
            }
            Op::Await => {
                let run = self.expected.n_started;
                let future = request.into_future();
                self.futures.push(Awaited { run, future, owns_run: false, woken: Arc::default(), was_polled: false });
            }
            Op::StartWrongShape => {
                let wrong = Tensor::new(ElementType::F32, [4, 1]).unwrap();
                assert_eq!(kind(request.start_async(wrong)), busy.or(Some(ErrorKind::Tensor)));
            }
            Op::Turn => {
                let turned = self.expected.queued.pop_front();
                assert_eq!(self.hand.run_one(), turned.is_some());
                // The task of a canceled run has no effect.
                if turned.is_some() && turned == self.expected.running.map(|(run, ..)| run) {
                    self.expected.end(true);
                }
            }
            Op::Cancel => self.cancel(|| request.cancel()),
            Op::Wait if busy.is_some() => {}
            Op::Wait => assert_eq!(kind(request.wait()), self.expected.latest),
            Op::WaitForNothing => {
                let waited = request.wait_for(Duration::ZERO);
                match self.expected.latest {
                    _ if busy.is_some() || self.expected.n_started == 0 => assert!(!waited.unwrap()),
                    None => assert!(waited.unwrap()),
                    Some(latest) => assert_eq!(kind(waited), Some(latest)),
                }
            }
            Op::PollFuture(idx) if idx < self.futures.len() => {
                let Awaited { run, future, woken, was_polled, .. } = &mut self.futures[idx];
                let is_over = self.expected.running.is_none_or(|(running, ..)| running > *run);
                match Pin::new(future).poll(&mut Context::from_waker(&Waker::from(woken.clone()))) {
                    Poll::Pending => {
                        assert!(!is_over, "run {run} is over");
                        *was_polled = true;
                    }
                    Poll::Ready(outcome) => {
                        assert!(is_over, "run {run} is not over");
                        let expected = run.checked_sub(1).and_then(|idx| self.expected.outcomes[idx as usize]);
                        assert_eq!(kind(outcome), expected);
                        assert_eq!(woken.0.load(Ordering::Acquire), usize::from(*was_polled), "woken once if it waited");
                        drop(self.futures.remove(idx));
                    }
                }
            }
            Op::DropFuture(idx) if idx < self.futures.len() => {
                let Awaited { run, future, owns_run, .. } = self.futures.remove(idx);
                if owns_run && self.expected.running.is_some_and(|(running, ..)| running == run) {
                    self.cancel(|| drop(future));
                }
            }
            Op::PollFuture(_) | Op::DropFuture(_) => {}
            Op::SetTensor(value) => {
                assert_eq!(kind(request.set_tensor("x", &of(value))), busy);
                if busy.is_none() {
                    self.expected.input = value;
                }
            }
            Op::ReadOutput => {
                let output = request.output_tensor(()).map(|output| values(&output)[0] as i32);
                match (busy, self.expected.output) {
                    (Some(_), _) => assert_eq!(kind(output), busy),
                    (None, Some(expected)) => assert_eq!(output.unwrap(), expected),
                    (None, None) => drop(output.unwrap()),
                }
            }
            Op::ViewInput => match request.input_tensor(()) {
                Ok(tensor) => self.views.push((tensor.clone(), tensor.view().unwrap())),
                refused => assert_eq!(kind(refused), busy),
            },
            Op::ViewOutput => match request.output_tensor(()) {
                Ok(tensor) => self.views.push((tensor.clone(), tensor.view().unwrap())),
                refused => assert_eq!(kind(refused), busy),
            },
            Op::ForgetViews => self.views.clear(),
            Op::SetCallback(call) => {
                assert_eq!(kind(self.set_callback(call)), busy);
                if busy.is_none() {
                    self.expected.callback = Some(call);
                }
            }
            Op::ClearCallback => {
                assert_eq!(kind(request.clear_callback()), busy);
                if busy.is_none() {
                    self.expected.callback = None;
                }
            }
            Op::AppendStep => {
                let n = self.n_steps_run.clone();
                let appended = request.append_step_on(Arc::new(Inline), "count", move |context| {
                    assert_eq!(context.output::<f32>(0)?.1[0], 2.0 * context.input::<f32>(0)?.1[0]);
                    n.fetch_add(1, Ordering::AcqRel);
                    Ok(())
                });
                assert_eq!(kind(appended), busy);
                self.expected.n_steps += usize::from(busy.is_none());
            }
            Op::ClearSteps => {
                assert_eq!(kind(request.clear_steps()), busy);
                if busy.is_none() {
                    self.expected.n_steps = 0;
                }
            }
            Op::FeedBack => {
                if let Some(output) = self.expected.output {
                    request.set_tensor("x", &request.output_tensor(()).unwrap()).unwrap();
                    self.expected.input = output;
                }
            }
            Op::DropRequest => return false,
        }
        self.check();
        true
    }

    fn check(&self) {
        assert_eq!(*self.told.lock().unwrap(), self.expected.told);
        assert_eq!(self.n_steps_run.load(Ordering::Acquire), self.expected.n_steps_run);
    }

    /// Drops all handles, which may happen during a run. No callback may be called after that, and all memory must be freed.
    fn end(mut self) {
        // Only the future that owns the current run cancels it when dropped, which calls the callback.
        let running = self.expected.running.map(|(run, ..)| run);
        if let Some(idx) = self.futures.iter().position(|awaited| awaited.owns_run && Some(awaited.run) == running) {
            let future = self.futures.remove(idx).future;
            self.cancel(|| drop(future));
        }
        let Self { request, hand, told, n_steps_run, futures, views, expected } = self;
        let weak = request.downgrade();
        drop((futures, request, views));
        assert!(weak.upgrade().is_none());
        while hand.run_one() {}
        assert_eq!(*told.lock().unwrap(), expected.told);
        assert_eq!(Arc::strong_count(&told), 1, "the callback is freed");
        assert_eq!(Arc::strong_count(&n_steps_run), 1, "the steps are freed");
    }
}

/// Runs a sequence. Returns the failure message if it fails.
fn failure(ops: &[Op]) -> Option<String> {
    let ran = std::panic::catch_unwind(|| {
        let mut world = World::new();
        for (idx, op) in ops.iter().enumerate() {
            let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.act(*op)));
            match acted {
                Ok(true) => {}
                Ok(false) => break,
                Err(panic) => {
                    let said = panic.downcast_ref::<String>().cloned();
                    let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
                    std::panic::panic_any(format!("operation {idx}, {op:?}: {}", said.unwrap_or_default()));
                }
            }
        }
        world.end();
    });
    ran.err().map(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned())).unwrap_or_default()
    })
}

/// Removes the operations that are not needed for the failure.
fn shortest(mut ops: Vec<Op>) -> Vec<Op> {
    let mut idx = 0;
    while idx < ops.len() {
        let mut fewer = ops.clone();
        fewer.remove(idx);
        if failure(&fewer).is_some() {
            ops = fewer;
            idx = 0;
        } else {
            idx += 1;
        }
    }
    ops
}

#[test]
fn random_sequences_keep_the_contract() {
    let number = |key: &str, default: u64| std::env::var(key).ok().map_or(default, |text| text.parse().expect(key));
    let (n_sequences, first_seed) = (number("ROIFLOW_SEQUENCES", 1000), number("ROIFLOW_SEED", 0x5eed));
    for seed in first_seed..first_seed + n_sequences {
        let mut generator = Generator(seed);
        let ops: Vec<Op> = (0..10 + generator.next(50)).map(|_| generator.op()).collect();
        if failure(&ops).is_some() {
            let ops = shortest(ops);
            panic!("ROIFLOW_SEED={seed} ROIFLOW_SEQUENCES=1: {}\n{ops:#?}", failure(&ops).unwrap_or_default());
        }
    }
}
