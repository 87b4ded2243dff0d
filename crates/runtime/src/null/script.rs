//! What the null device does when it is asked to run.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::executor::Executor;
use crate::io::DeviceIo;
use crate::{CancelToken, Result};

type Compute = Box<dyn Fn(&mut DeviceIo<'_>, &CancelToken) -> Result<()> + Send + Sync>;

/// What to do in a run, and what was done. Fields that are not set do nothing.
#[derive(Default)]
pub struct Script {
    /// Runs pass through it before they compute.
    pub gate: Option<Arc<Gate>>,
    /// Compilations for the device pass through it.
    pub compile_gate: Option<Arc<Gate>>,
    /// Writes the outputs, fails or panics; without it they are zeros.
    pub compute: Option<Compute>,
    /// Where the device's step runs; without it on the pool of the processor.
    pub executor: Option<Arc<dyn Executor>>,
    /// The device computes in parallel to the processor: a run waits at the gate on a separate waiter of the device, while the
    /// processor preprocesses and completes other runs.
    pub has_own_waiter: bool,
    /// The device computes on this executor in parallel to the processor, and notifies the [`Completion`](crate::Completion) at the end. A
    /// run passes the gate on this executor, and no thread waits for it. Replaces the waiter.
    pub engine: Option<Arc<dyn Executor>>,
    /// Steps after the first, each on a separate executor, such as the waiter of an accelerator.
    pub more_steps: Vec<(&'static str, Arc<dyn Executor>)>,
    /// The outputs of a batch item depend on the other items of the batch. Otherwise each item is independent.
    pub mixes_rows: bool,
    /// How often the device was called. Runs that were gathered into one call count once.
    pub n_calls: AtomicUsize,
    /// How often a model was compiled for the device.
    pub n_compiled: AtomicUsize,
}

impl Script {
    /// A script that computes with this closure.
    pub fn computing(compute: impl Fn(&mut DeviceIo<'_>, &CancelToken) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { compute: Some(Box::new(compute)), ..Self::default() }
    }

    pub(super) fn pass_gate(&self) {
        if let Some(gate) = &self.gate {
            gate.pass();
        }
    }

    /// How often the device was called.
    pub fn n_calls(&self) -> usize {
        self.n_calls.load(Ordering::Acquire)
    }

    /// How often a model was compiled for the device.
    pub fn n_compiled(&self) -> usize {
        self.n_compiled.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({} calls)", self.n_calls())
    }
}

/// Holds runs, or who compiles, back until a test lets them go: order without sleeping.
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
    /// A closed gate.
    pub fn closed() -> Arc<Self> {
        Arc::default()
    }

    /// Blocks until one has arrived in front of the gate, or passed it: `n` in all since it was made.
    pub fn wait_for_arrivals(&self, n: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.n_arrived < n).unwrap());
    }

    /// Lets `n` more pass.
    pub fn admit(&self, n: usize) {
        self.state.lock().unwrap().n_admitted += n;
        self.changed.notify_all();
    }

    /// Lets all pass, now and later.
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
