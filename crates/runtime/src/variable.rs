//! Variables: the state that a recurrent model keeps between runs of a request.
//!
//! Each request has its own state. A variable has two tensors: a run reads one and writes the other, and they are swapped when the run has
//! succeeded. A failed or canceled run leaves the state unchanged, so it can be repeated.

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

    /// The name: that of the input.
    pub fn name(&self) -> &str {
        self.port().name()
    }

    /// Name, element type and shape.
    pub fn port(&self) -> &Port {
        &self.request.model().variables[self.variable_idx]
    }

    /// A copy of its value.
    ///
    /// # Errors
    /// `Busy` while the request runs.
    pub fn state(&self) -> Result<Tensor> {
        self.request.shared().edit(|body| body.io.variable(self.variable_idx))
    }

    /// Sets its value to a copy of `state`.
    ///
    /// # Errors
    /// `Tensor` if element type or shape do not match; `Busy` while the request runs, or `state` is in use.
    pub fn set_state(&self, state: &Tensor) -> Result<()> {
        self.request.shared().edit(|Body { device, io, .. }| io.set_variable(&mut **device, self.variable_idx, Some(state)))
    }

    /// Resets it to zeros, with extent 0 for dynamic axes.
    ///
    /// # Errors
    /// `Busy` while the request runs.
    pub fn reset(&self) -> Result<()> {
        self.request.shared().edit(|Body { device, io, .. }| io.set_variable(&mut **device, self.variable_idx, None))
    }
}

impl fmt::Debug for VariableState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VariableState({} of {:?})", self.port(), self.request)
    }
}
