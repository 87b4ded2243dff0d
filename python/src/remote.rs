//! The class `RemoteContext`.

use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::runtime;
use crate::tensor_class::{shape_from, wrap};
use crate::types::element_from;

/// The memory of a device. `Core.get_default_context` returns it.
#[pyclass(frozen, module = "roiflow")]
pub struct RemoteContext(pub runtime::RemoteContext);

#[pymethods]
impl RemoteContext {
    /// The device that the memory belongs to.
    fn get_device_name(&self) -> &str {
        self.0.device()
    }

    /// Creates a tensor of zeros in the memory of the device. Raises RuntimeError if there is not enough memory.
    fn create_tensor(&self, py: Python<'_>, r#type: &Bound<'_, PyAny>, shape: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        wrap(py, self.0.create_tensor(element_from(r#type)?, shape_from(shape)?).or_raise()?)
    }

    /// Creates a tensor in host memory from which copies to and from the device are fast. Raises RuntimeError if there is not enough
    /// memory.
    fn create_host_tensor(&self, py: Python<'_>, r#type: &Bound<'_, PyAny>, shape: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        wrap(py, self.0.create_host_tensor(element_from(r#type)?, shape_from(shape)?).or_raise()?)
    }

    fn __repr__(&self) -> String {
        format!("<RemoteContext: {}>", self.0.device())
    }
}
