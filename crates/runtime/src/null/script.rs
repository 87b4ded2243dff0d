//! The script of a `NULL` device: what the device does in a run, and what the device counts.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::executor::Executor;
use crate::io::DeviceIo;
use crate::{CancelToken, Result};

type Compute = Box<dyn Fn(&mut DeviceIo<'_>, &CancelToken) -> Result<()> + Send + Sync>;

/// What the device does in a run, and counters of what it did. Optional fields that are not set have no effect.
#[derive(Default)]
pub struct Script {
    /// The gate that each run passes before it computes.
    pub gate: Option<Arc<Gate>>,
    /// The gate that each compilation passes before it begins.
    pub compile_gate: Option<Arc<Gate>>,
    /// Writes the outputs, fails or panics. If this closure is not set, the outputs are zeros.
    pub compute: Option<Compute>,
    /// The executor of the device's CPU steps. The default is the CPU pool.
    pub executor: Option<Arc<dyn Executor>>,
    /// Whether the device has a waiter thread, as if it computed in parallel to the CPU. A run then waits at the gate on this thread, while
    /// the CPU preprocesses and completes other runs.
    pub has_own_waiter: bool,
    /// An executor that stands for an asynchronous engine. A run passes the gate on this executor, then the device notifies the
    /// [`Completion`](crate::Completion). No thread waits for the run. If this field is set, `has_own_waiter` has no effect.
    pub engine: Option<Arc<dyn Executor>>,
    /// Steps after the usual steps of the device, each with its name and its own executor, for example the waiter of an accelerator.
    pub more_steps: Vec<(&'static str, Arc<dyn Executor>)>,
    /// Whether the outputs of a batch item depend on the other items of the batch.
    pub mixes_rows: bool,
    /// How often the device was called. A call for several batched runs counts once.
    pub n_calls: AtomicUsize,
    /// How often a model was compiled for the device.
    pub n_compiled: AtomicUsize,
}

impl Script {
    /// Creates a script that computes with this closure.
    pub fn computing(compute: impl Fn(&mut DeviceIo<'_>, &CancelToken) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { compute: Some(Box::new(compute)), ..Self::default() }
    }

    pub(super) fn pass_gate(&self) {
        if let Some(gate) = &self.gate {
            gate.pass();
        }
    }

    /// Returns how often the device was called.
    pub fn n_calls(&self) -> usize {
        self.n_calls.load(Ordering::Acquire)
    }

    /// Returns how often a model was compiled for the device.
    pub fn n_compiled(&self) -> usize {
        self.n_compiled.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({} calls)", self.n_calls())
    }
}

/// Blocks runs or compilations until a test lets them pass. So a test can set the order of events without sleeping.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    n_arrived: usize,
    n_admitted: usize,
    open: bool,
}

impl Gate {
    /// Creates a closed gate.
    pub fn closed() -> Arc<Self> {
        Arc::default()
    }

    /// Blocks until, since the gate was created, `n` runs have arrived at it. Runs that have already passed the gate count as well.
    pub fn wait_for_arrivals(&self, n: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.n_arrived < n).unwrap());
    }

    /// Lets `n` more runs pass. These runs may already wait at the gate, or arrive later.
    pub fn admit(&self, n: usize) {
        self.state.lock().unwrap().n_admitted += n;
        self.changed.notify_all();
    }

    /// Lets all waiting and future runs pass.
    pub fn open(&self) {
        self.state.lock().unwrap().open = true;
        self.changed.notify_all();
    }

    pub(super) fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.n_arrived += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| !state.open && state.n_admitted == 0).unwrap();
        if !state.open {
            state.n_admitted -= 1;
        }
    }
}
