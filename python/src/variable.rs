//! The class `VariableState`.

use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::interpreter::drop_detached;
use crate::runtime;
use crate::tensor_class::{tensor_from, wrap};

/// A variable whose value a request keeps from run to run. `InferRequest.query_state` returns it.
#[pyclass(frozen, module = "roiflow")]
pub struct VariableState(Option<runtime::VariableState>);

impl VariableState {
    /// Creates the Python object of a variable.
    pub fn new(variable: runtime::VariableState) -> Self {
        Self(Some(variable))
    }

    fn inner(&self) -> &runtime::VariableState {
        self.0.as_ref().expect("only the drop takes it")
    }
}

#[pymethods]
impl VariableState {
    /// The name, which is the name of the input.
    #[getter]
    fn name(&self) -> &str {
        self.inner().name()
    }

    /// A copy of the value. Setting it copies the values of a tensor. Raises RuntimeError while the request runs, or if the tensor has
    /// another element type or shape.
    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        wrap(py, self.inner().state().or_raise()?)
    }

    #[setter(state)]
    fn set_state(&self, state: &Bound<'_, PyAny>) -> PyResult<()> {
        self.inner().set_state(&tensor_from(state)?).or_raise()
    }

    /// Sets the value to zeros. Raises RuntimeError while the request runs.
    fn reset(&self) -> PyResult<()> {
        self.inner().reset().or_raise()
    }

    fn __repr__(&self) -> String {
        format!("<VariableState: '{}'>", self.inner().name())
    }
}

impl Drop for VariableState {
    fn drop(&mut self) {
        // The variable has a reference to its request. If this is the last one, its drop may wait for the run.
        drop_detached(self.0.take());
    }
}
