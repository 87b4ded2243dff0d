//! The classes of the package's Python files that the compiled part uses.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

/// Returns a class of the package. Its module is imported only once.
fn class<'py>(py: Python<'py>, cell: &'static PyOnceLock<Py<PyType>>, module: &str, name: &str) -> PyResult<&'py Bound<'py, PyType>> {
    cell.import(py, module, name)
}

macro_rules! classes {
    ($($(#[$doc:meta])* $function:ident => $module:literal, $name:literal;)+) => {$(
        $(#[$doc])*
        pub fn $function<'py>(py: Python<'py>) -> PyResult<&'py Bound<'py, PyType>> {
            static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            class(py, &CLASS, $module, $name)
        }
    )+};
}

classes! {
    shape_class => "roiflow._shapes", "Shape";
    strides_class => "roiflow._shapes", "Strides";
    partial_shape_class => "roiflow._shapes", "PartialShape";
    results_class => "roiflow._results", "OVDict";
    profiling_class => "roiflow._profiling", "ProfilingInfo";
    /// The Python class that derives from the compiled class. It allows attributes, weak references and subclasses.
    request_class => "roiflow._api", "InferRequest";
    compiled_class => "roiflow._api", "CompiledModel";
}

/// Creates a `Shape`.
pub fn shape<'py>(py: Python<'py>, extents: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    shape_class(py)?.call1((extents.to_vec(),))
}

/// Creates a `Strides` object.
pub fn strides<'py>(py: Python<'py>, stride_bytes: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    strides_class(py)?.call1((stride_bytes.to_vec(),))
}

/// Creates a `PartialShape` from pairs of the minimum and the maximum extent. A maximum of -1 means no limit.
pub fn partial_shape<'py>(py: Python<'py>, bounds: Vec<(i64, i64)>) -> PyResult<Bound<'py, PyAny>> {
    partial_shape_class(py)?.call1((bounds,))
}

/// Creates an `OVDict` from a dictionary that maps ports to arrays.
pub fn results<'py>(py: Python<'py>, values: Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    results_class(py)?.call1((values,))
}
