//! What the checks of requests share: an executor whose threads the checker sees, a model that computes nothing, and a journal
//! of what happened. The journal uses the standard library's locks: it is no part of what is checked.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex as Hidden};

use roiflow_check::devices::null::{NullDevice, Script};
use roiflow_check::runtime::executor::{Executor, Inline, Task};
use roiflow_check::runtime::{CompiledModel, Config, Core, Error, ErrorKind, InferRequest, Model, ModelInfo};
use roiflow_check::sync::{Condvar, Mutex};
use shuttle::thread::{self, JoinHandle};

/// A pool of one thread, or of several, that the checker sees.
#[derive(Default)]
pub struct Crank {
    state: Mutex<(VecDeque<Arc<dyn Task>>, bool)>,
    changed: Condvar,
}

impl Crank {
    /// Starts `n` threads that run what comes until the crank is closed.
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

    /// No more tasks come; the threads end when all are run.
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

/// An engine that computes beside the processor, on the threads of a crank.
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

/// A model without ports; its own step does nothing, on the caller's thread.
pub fn model() -> CompiledModel {
    model_on(None)
}

/// The same, on an engine.
pub fn model_on(engine: Option<Arc<dyn Executor>>) -> CompiledModel {
    let mut core = Core::new();
    let script = Script { executor: Some(Arc::new(Inline)), engine, ..Script::computing(|_, _| Ok(())) };
    core.register(Arc::new(NullDevice::new(Arc::new(script))));
    core.compile_model(&Model::from_ports(ModelInfo::default()), "NULL", &Config::default()).unwrap()
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Good,
    Canceled,
    /// The step said so; with the number of the run.
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

/// What happened. Findings are noted, and told at the end: a panic inside a callback would be an error of the run.
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
    /// Asynchronous starts, before the call and after it.
    pub n_begun: u64,
    pub n_started: u64,
    /// Synchronous runs that were begun.
    pub n_synchronous: u64,
    /// How each run ended, as its callback was told; the callback may still be on.
    pub ends: Vec<End>,
    /// Callbacks that returned.
    pub n_called: u64,
    pub is_calling: bool,
    /// The run that wrote the output last.
    pub output: u64,
    /// The runs whose step was run, in order.
    pub stepped: Vec<u64>,
    /// The last handle's drop has returned.
    pub is_gone: bool,
    pub n_passed_time: u64,
    /// Runs that the engine computes; at most one.
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

    /// Fails the schedule if anything was found.
    pub fn close(&self) {
        let findings = self.with(|entries| std::mem::take(&mut entries.findings));
        assert!(findings.is_empty(), "found: {}", findings.join("; "));
    }
}

/// Appends the step that a run is known by: it writes the output, and fails every second run if asked to.
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
