//! Variables: what a recurrent model keeps from one run of a request to the next.
//!
//! Each request has its own. A run reads a variable's tensor and writes the other one of its two; when the whole run has
//! succeeded they change places. A run that fails, or is canceled, leaves the state as it was, so it can be started again.

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

    /// Its name: that of the input that was made a variable.
    pub fn name(&self) -> &str {
        self.port().name()
    }

    /// Name, element type and shape.
    pub fn port(&self) -> &Port {
        &self.request.model().variables[self.variable_idx]
    }

    /// Its value, copied.
    ///
    /// # Errors
    /// `Busy` while the request runs.
    pub fn state(&self) -> Result<Tensor> {
        self.request.shared().edit(|body| body.io.variable(self.variable_idx))
    }

    /// Gives it a value, copied.
    ///
    /// # Errors
    /// `Tensor` if element type or shape do not fit; `Busy` while the request runs, or `state` is in use.
    pub fn set_state(&self, state: &Tensor) -> Result<()> {
        self.request.shared().edit(|Body { device, io, .. }| io.set_variable(&mut **device, self.variable_idx, Some(state)))
    }

    /// Gives it its default: zeros, with an extent of 0 where the shape is open.
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
