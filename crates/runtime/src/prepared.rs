//! Splits a run into parts, for bindings to other languages. [`InferRequest::prepare`] prepares the run. [`PreparedRun::start`] then starts
//! it. Alternatively, [`PreparedRun::run`] runs it on the calling thread, and its outputs can be read before the request becomes idle.
//!
//! Between these parts, the request is running: its tensors belong to the run, and accesses by other callers fail with `Busy`.

use std::fmt;

use super::error::catch;
use super::run::Shared;
use super::steps::Body;
use super::{InferRequest, Inputs, Result, Results};

/// A run whose inputs are set and whose tensors are leased. [`PreparedRun::start`] or [`PreparedRun::run`] continues it. Dropping a
/// `PreparedRun` that was not continued cancels the run.
pub struct PreparedRun {
    request: InferRequest,
    /// `None` after the run was started.
    body: Option<Box<Body>>,
}

/// A run whose steps have ended. Dropping this value makes the request idle.
pub struct EndedRun {
    request: InferRequest,
    /// `None` only while the value is dropped.
    body: Option<Box<Body>>,
}

impl InferRequest {
    /// Sets `inputs` and takes the leases of a run, but does not start the run. `calls_back` sets whether the callback is called after
    /// [`PreparedRun::start`].
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::start_async`].
    pub fn prepare(&self, inputs: impl Inputs, calls_back: bool) -> Result<PreparedRun> {
        let body = self.begin(&inputs, calls_back)?;
        Ok(PreparedRun { request: self.clone(), body: Some(body) })
    }
}

impl PreparedRun {
    /// Starts the run and returns immediately, as [`InferRequest::start_async`] does.
    pub fn start(mut self) {
        if let Some(body) = self.body.take() {
            self.request.shared().pass_on(body);
        }
    }

    /// Returns the number of elements of all inputs; `None` if an input is a batch of slices, or is made by a filler.
    pub fn n_input_elements(&self) -> Option<usize> {
        let inputs = self.body.as_ref().map_or(&[][..], |body| &body.io.inputs);
        inputs.iter().map(|slot| Some(slot.given()?.shape().iter().product::<usize>())).sum()
    }

    /// Runs on the calling thread, as [`InferRequest::infer`] does. The request stays busy for other callers until the [`EndedRun`] is
    /// dropped.
    pub fn run(mut self) -> EndedRun {
        let body = self.body.take().map(|body| self.request.shared().run_held(body));
        EndedRun { request: self.request.clone(), body }
    }
}

impl EndedRun {
    /// Returns `Ok` if the run succeeded.
    ///
    /// # Errors
    /// Returns the error of the step or the device that failed.
    pub fn outcome(&self) -> Result<()> {
        self.body.as_ref().map_or(Ok(()), |body| body.outcome.clone())
    }

    /// Returns the outputs of this run, without a copy.
    pub fn results(&self) -> Results {
        let body = self.body.as_ref().expect("only the drop takes the body");
        let tensors = body.io.visible_outputs().iter().map(|slot| slot.tensor.clone()).enumerate().collect();
        Results::new(self.request.model().outputs.clone(), tensors)
    }
}

impl Shared {
    /// Runs all steps on the calling thread and releases the leases. The request stays running until the caller calls [`Shared::end`].
    fn run_held(&self, mut body: Box<Body>) -> Box<Body> {
        self.run_steps(&mut body);
        let released = catch(format_args!("the end of a lease"), || body.io.release());
        body.outcome = std::mem::replace(&mut body.outcome, Ok(())).and(released);
        body
    }
}

impl Drop for PreparedRun {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            self.request.shared().abandon(body);
        }
    }
}

impl Drop for EndedRun {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            self.request.shared().end(body);
        }
    }
}

impl fmt::Debug for PreparedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreparedRun({:?})", self.request)
    }
}

impl fmt::Debug for EndedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndedRun({:?})", self.request)
    }
}
