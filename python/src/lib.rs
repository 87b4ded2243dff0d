//! The compiled part of the Python package `roiflow`.

use pyo3::prelude::*;

/// The module `roiflow._roiflow`; the package `roiflow` re-exports its items.
#[pymodule]
mod _roiflow {}
