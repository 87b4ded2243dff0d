//! Variables: the state that a recurrent model keeps between the runs of a request.
//!
//! Each request has its own state. A variable has two tensors: a run reads the old value from one of them and writes the new value to the
//! other. The two tensors are swapped after the run has succeeded. A failed or canceled run does not change the state, so the run can be
//! repeated.

use std::fmt;

use super::steps::Body;
use super::{InferRequest, Port, Result};
use crate::tensor::Tensor;

/// A variable of one request.
#[derive(Clone)]
pub struct VariableState {
    request: InferRequest,
    variable_idx: usize,
}

impl VariableState {
    pub(super) fn new(request: InferRequest, variable_idx: usize) -> Self {
        Self { request, variable_idx }
    }

    /// Returns the name of the variable, which is the name of its model input.
    pub fn name(&self) -> &str {
        self.port().name()
    }

    /// Returns the port of the variable's model input: its name, element type and shape.
    pub fn port(&self) -> &Port {
        &self.request.model().variables[self.variable_idx]
    }

    /// Returns a copy of the current value of the variable.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn state(&self) -> Result<Tensor> {
        self.request.shared().edit(|body| body.io.variable(self.variable_idx))
    }

    /// Sets the variable to a copy of `state`.
    ///
    /// # Errors
    /// Returns `Tensor` if the element type or shape does not match; `Busy` while the request runs, or while `state` is in use.
    pub fn set_state(&self, state: &Tensor) -> Result<()> {
        self.request.shared().edit(|Body { device, io, .. }| io.set_variable(&mut **device, self.variable_idx, Some(state)))
    }

    /// Resets the variable to zeros. Dynamic axes get an extent of 0.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn reset(&self) -> Result<()> {
        self.request.shared().edit(|Body { device, io, .. }| io.set_variable(&mut **device, self.variable_idx, None))
    }
}

impl fmt::Debug for VariableState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VariableState({} of {:?})", self.port(), self.request)
    }
}
