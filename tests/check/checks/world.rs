//! Parts that the checks of requests share: an executor whose threads the checker controls, a model without ports, and a journal of events.
//! The journal uses locks of the standard library, because the journal itself is not checked.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex as Hidden};

use roiflow_check::devices::null::{NullDevice, Script};
use roiflow_check::runtime::executor::{Executor, Inline, Task};
use roiflow_check::runtime::{CompiledModel, Config, Core, Error, ErrorKind, InferRequest, Model, ModelInfo};
use roiflow_check::sync::{Condvar, Mutex};
use shuttle::thread::{self, JoinHandle};

/// A pool of one or several threads that the checker controls.
#[derive(Default)]
pub struct Crank {
    state: Mutex<(VecDeque<Arc<dyn Task>>, bool)>,
    changed: Condvar,
}

impl Crank {
    /// Starts `n` threads that run tasks until the pool is closed.
    pub fn start(n: usize) -> (Arc<Self>, Vec<JoinHandle<()>>) {
        let crank = Arc::new(Self::default());
        let threads = (0..n).map(|_| {
            let crank = crank.clone();
            thread::spawn(move || while crank.run_one() {})
        });
        let threads = threads.collect();
        (crank, threads)
    }

    fn run_one(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        let task = loop {
            match state.0.pop_front() {
                Some(task) => break task,
                None if state.1 => return false,
                None => state = self.changed.wait(state).unwrap(),
            }
        };
        drop(state);
        task.run();
        true
    }

    /// Accepts no more tasks. The threads end after all tasks ran.
    pub fn close(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl Executor for Crank {
    fn execute(&self, task: Arc<dyn Task>) {
        self.state.lock().unwrap().0.push_back(task);
        self.changed.notify_all();
    }
}

impl fmt::Debug for Crank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Crank")
    }
}

/// An asynchronous engine on the threads of a pool.
#[derive(Debug)]
pub struct Engine {
    crank: Arc<Crank>,
    journal: Arc<Journal>,
}

/// A run that the engine computes.
struct Computes {
    task: Arc<dyn Task>,
    journal: Arc<Journal>,
}

impl Engine {
    pub fn new(crank: &Arc<Crank>, journal: &Arc<Journal>) -> Arc<Self> {
        Arc::new(Self { crank: crank.clone(), journal: journal.clone() })
    }
}

impl Executor for Engine {
    fn execute(&self, task: Arc<dyn Task>) {
        self.journal.with(|entries| entries.n_computing += 1);
        self.crank.execute(Arc::new(Computes { task, journal: self.journal.clone() }));
    }
}

impl Task for Computes {
    fn run(self: Arc<Self>) {
        self.journal.with(|entries| entries.n_computing -= 1);
        self.task.clone().run();
    }
}

/// Creates a model without ports. The only step of the model does nothing, on the caller's thread.
pub fn model() -> CompiledModel {
    model_on(None)
}

/// Creates a model without ports on the asynchronous engine.
pub fn model_on(engine: Option<Arc<dyn Executor>>) -> CompiledModel {
    let mut core = Core::new();
    let script = Script { executor: Some(Arc::new(Inline)), engine, ..Script::computing(|_, _| Ok(())) };
    core.register(Arc::new(NullDevice::new(Arc::new(script))));
    core.compile_model(&Model::from_ports(ModelInfo::default()), "NULL", &Config::default()).unwrap()
}

/// Result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Good,
    Canceled,
    /// The step failed; with the number of the run.
    Failed(u64),
    Other(ErrorKind),
}

impl From<&Result<(), Error>> for End {
    fn from(result: &Result<(), Error>) -> Self {
        match result {
            Ok(()) => Self::Good,
            Err(error) if error.kind() == ErrorKind::Canceled => Self::Canceled,
            Err(error) => {
                error.to_string().strip_prefix("run ").and_then(|n| n.parse().ok()).map_or(Self::Other(error.kind()), Self::Failed)
            }
        }
    }
}

/// The events so far. Violations are recorded and reported at the end, because a panic in a callback would become an error of the run.
#[derive(Default)]
pub struct Journal(Hidden<Entries>);

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Journal")
    }
}

#[derive(Default)]
pub struct Entries {
    pub findings: Vec<String>,
    /// Numbers of asynchronous starts: `n_begun` is counted before the call of the start, and `n_started` after it.
    pub n_begun: u64,
    pub n_started: u64,
    /// Synchronous runs that were started.
    pub n_synchronous: u64,
    /// Result of each run as passed to its callback, which may still be active.
    pub ends: Vec<End>,
    /// Callbacks that have returned.
    pub n_called: u64,
    pub is_calling: bool,
    /// The run that last wrote the output.
    pub output: u64,
    /// The runs whose step ran, in order.
    pub stepped: Vec<u64>,
    /// Whether dropping the last handle has returned.
    pub is_gone: bool,
    pub n_passed_time: u64,
    /// Runs that the engine is computing; at most one.
    pub n_computing: u64,
}

impl Journal {
    pub fn with<R>(&self, action: impl FnOnce(&mut Entries) -> R) -> R {
        action(&mut self.0.lock().unwrap())
    }

    pub fn expect(&self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.with(|entries| entries.findings.push(otherwise()));
        }
    }

    /// Fails the schedule if there are violations.
    pub fn close(&self) {
        let findings = self.with(|entries| std::mem::take(&mut entries.findings));
        assert!(findings.is_empty(), "found: {}", findings.join("; "));
    }
}

/// Appends the step that identifies a run: it writes the output, and fails every second run if configured.
pub fn append_step(request: &InferRequest, crank: Arc<dyn Executor>, journal: &Arc<Journal>, fails: bool) {
    let journal = journal.clone();
    let step = move |context: &roiflow_check::runtime::RunContext<'_>| {
        let run = context.run();
        journal.with(|entries| {
            if entries.stepped.last().is_some_and(|last| *last >= run) {
                let stepped = entries.stepped.clone();
                entries.findings.push(format!("run {run} is stepped after {stepped:?}"));
            }
            if entries.n_computing > 0 {
                entries.findings.push(format!("run {run} is stepped while its engine computes"));
            }
            entries.stepped.push(run);
            entries.output = run;
        });
        if fails && run % 2 == 0 { Err(Error::new(ErrorKind::Device, format!("run {run}"))) } else { Ok(()) }
    };
    request.append_step_on(crank, "known", step).unwrap();
}
