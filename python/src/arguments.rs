//! Binds the arguments of methods that have several forms, as overloaded methods of OpenVINO have.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Finds the first form that the arguments match. A form is a list of parameter names. Returns the index of the form, and the arguments in
/// the order of its parameters.
///
/// Raises TypeError if no form matches.
pub fn bind<'py>(
    method: &str,
    forms: &[&[&str]],
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<(usize, Vec<Bound<'py, PyAny>>)> {
    let n_given = args.len() + kwargs.map_or(0, |kwargs| kwargs.len());
    'forms: for (form_idx, form) in forms.iter().enumerate() {
        if form.len() != n_given || args.len() > form.len() {
            continue;
        }
        let mut values: Vec<_> = args.iter().collect();
        for name in &form[args.len()..] {
            match kwargs.map(|kwargs| kwargs.get_item(name)).transpose()?.flatten() {
                Some(value) => values.push(value),
                None => continue 'forms,
            }
        }
        return Ok((form_idx, values));
    }
    let forms: Vec<String> = forms.iter().map(|form| format!("{method}({})", form.join(", "))).collect();
    Err(PyTypeError::new_err(format!("{method}: expected {}, got {n_given} arguments of other names or number", forms.join(" or "))))
}
