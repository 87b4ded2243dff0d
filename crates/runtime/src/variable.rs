//! Variables: the state that a recurrent model keeps between the runs of a request.
//!
//! Each request has its own state. A variable has two tensors. A run reads one and writes the other, and they are swapped after the run has
//! succeeded. A failed or canceled run does not change the state, so the run can be repeated.

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

    /// The name of the variable, which is the name of its input.
    pub fn name(&self) -> &str {
        self.port().name()
    }

    /// The name, element type and shape of the variable.
    pub fn port(&self) -> &Port {
        &self.request.model().variables[self.variable_idx]
    }

    /// A copy of the value.
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

    /// Resets the variable to zeros, with an extent of 0 on dynamic axes.
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
