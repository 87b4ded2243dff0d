//! Converts the inputs of a run from all forms in which Python programs can pass them.
//!
//! All conversions that can call Python code (casts, `__array__`) are done in this module, before the request is used.

use std::sync::Arc;

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::array;
use crate::errors::TensorError;
use crate::package;
use crate::port::{Key, PortOf, no_key};
use crate::runtime::{self, Input, PortKey};
use crate::tensor::{self, BytesMut, ElementType, MAX_RANK, Tensor, Values};
use crate::tensor_class::{Tensor as PyTensor, tensor_from};

/// Values for some inputs of a model, by index.
pub struct Given(Vec<(usize, Value)>);

enum Value {
    /// The tensor is used without a copy.
    Share(Tensor),
    /// The values are copied into the request's own tensor.
    Copy(Dense),
}

/// A contiguous tensor over the memory of an array. Its element type is the type of the port.
struct Dense {
    tensor: Tensor,
    shape: tensor::Shape,
}

impl Values for Dense {
    fn element(&self) -> ElementType {
        self.tensor.element()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn copy_to(&self, target: &mut BytesMut) -> tensor::Result<()> {
        self.tensor.bytes()?.copy_to(target)
    }

    fn copies_always(&self) -> bool {
        true // The copy never fails, because no other lease covers this memory: `bytes` never returns `Busy`.
    }
}

impl runtime::Inputs for Given {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> runtime::Result<()>) -> runtime::Result<()> {
        self.0.iter().try_for_each(|(idx, value)| match value {
            Value::Share(tensor) => see(PortKey::Index(*idx), &Input::Share(tensor.clone())),
            Value::Copy(values) => see(PortKey::Index(*idx), &Input::Copy(values)),
        })
    }
}

impl Given {
    /// Converts `inputs` to values of the ports. If `share` is true, arrays are shared without a copy where possible.
    ///
    /// Raises TypeError if a value or a key has an unsupported type. Raises RuntimeError if no input has the key, or if a value cannot be
    /// cast.
    pub fn parse(inputs: Option<&Bound<'_, PyAny>>, share: bool, ports: &[Arc<PortOf>]) -> PyResult<Self> {
        let Some(inputs) = inputs.filter(|inputs| !inputs.is_none()) else { return Ok(Self(Vec::new())) };
        let py = inputs.py();
        let in_order = |values: Vec<Bound<'_, PyAny>>| -> PyResult<Self> {
            if values.len() > ports.len() {
                let message = format!("expected at most {} inputs, got {}", ports.len(), values.len());
                return Err(TensorError::new_err(message));
            }
            let values = values.iter().zip(ports).enumerate();
            values.map(|(idx, (value, port))| Ok((idx, value_of(value, share, port)?))).collect::<PyResult<_>>().map(Self)
        };
        if let Ok(dict) = inputs.cast::<PyDict>() {
            let mut given = Vec::with_capacity(dict.len());
            each_item(dict, |key, value| {
                let idx = Key::from_value(key)?.ok_or_else(|| no_key(key))?.find("input", ports)?;
                given.push((idx, value_of(value, share, &ports[idx])?));
                Ok(())
            })?;
            return Ok(Self(given));
        }
        if let Ok(list) = inputs.cast::<PyList>() {
            if ports.len() != 1 || list.is_empty() || !is_of_numbers(list, 1)? {
                return in_order(list.iter().collect());
            }
        } else if let Ok(tuple) = inputs.cast::<PyTuple>() {
            return in_order(tuple.iter().collect());
        } else if inputs.is_instance(package::results_class(py)?)? {
            return in_order(inputs.call_method0("values")?.try_iter()?.collect::<PyResult<_>>()?);
        }
        // Check the type of the value first: an unsupported type is a TypeError for every model, even if the model has several inputs.
        if ports.len() != 1 {
            if !is_value(inputs)? {
                return Err(incompatible(inputs));
            }
            let idx = Key::Only.find("input", ports)?;
            return Ok(Self(vec![(idx, value_of(inputs, share, &ports[idx])?)]));
        }
        Ok(Self(vec![(0, value_of(inputs, share, &ports[0])?)]))
    }
}

fn incompatible(value: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!("Incompatible inputs of type: {}", value.get_type()))
}

fn is_number(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<pyo3::types::PyFloat>() || value.is_instance_of::<pyo3::types::PyInt>()
}

/// Returns whether each item of a list is a number, or a list of numbers that is not empty. `depth` is the number of lists around the items.
///
/// Raises TypeError if there are more lists inside each other than a tensor has axes, as in a list that contains itself.
fn is_of_numbers(list: &Bound<'_, PyList>, depth: usize) -> PyResult<bool> {
    if depth > MAX_RANK {
        return Err(PyTypeError::new_err(format!(
            "expected at most {MAX_RANK} lists inside each other, as many as a tensor has axes, got more"
        )));
    }
    for item in list.iter() {
        let is_known = match item.cast::<PyList>() {
            Ok(row) => !row.is_empty() && is_of_numbers(row, depth + 1)?,
            Err(_) => is_number(&item),
        };
        if !is_known {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Calls `visit` with each entry of a dictionary.
///
/// Raises RuntimeError if the dictionary changes its size meanwhile, as Python's own iteration does.
pub fn each_item(dict: &Bound<'_, PyDict>, mut visit: impl FnMut(&Bound<'_, PyAny>, &Bound<'_, PyAny>) -> PyResult<()>) -> PyResult<()> {
    let n_items = dict.len();
    for item in dict.items().iter() {
        let (key, value) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
        visit(&key, &value)?;
        if dict.len() != n_items {
            return Err(PyRuntimeError::new_err("the dictionary changed its size while it was read"));
        }
    }
    Ok(())
}

fn is_value(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(value.is_instance_of::<PyTensor>() || is_number(value) || array::as_array(value)?.is_some())
}

/// Converts one value for one input.
fn value_of(value: &Bound<'_, PyAny>, share: bool, port: &PortOf) -> PyResult<Value> {
    let element = port.port.element;
    // Check for an array first, because arrays are the most common values.
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        let is_number = array.ndim() == 0 && !port.port.shape.dims().is_empty();
        return if is_number { of_number(array, port) } else { of_array(array, share, element) };
    }
    if value.is_instance_of::<PyTensor>() {
        return tensor_from(value).map(Value::Share);
    }
    if value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>() {
        return Err(incompatible(value));
    }
    let numpy_scalar = value.is_instance(&array::numpy_function(value.py(), "generic")?)?;
    if is_number(value) || numpy_scalar {
        // A number is a value for inputs of one element.
        let array = array::numpy_function(value.py(), "asarray")?.call1((value,))?.cast_into::<PyUntypedArray>()?;
        return of_number(&array, port);
    }
    if let Ok(list) = value.cast::<PyList>()
        && is_of_numbers(list, 1)?
    {
        let array = array::numpy_function(value.py(), "array")?.call1((value,))?.cast_into::<PyUntypedArray>()?;
        return of_array(&array, false, element);
    }
    match array::as_array(value)? {
        Some(array) => of_array(&array, share, element),
        None => Err(incompatible(value)),
    }
}

/// Converts an array without axes for an input of one element. Such an input may have any number of axes.
fn of_number(array: &Bound<'_, PyUntypedArray>, port: &PortOf) -> PyResult<Value> {
    let element = port.port.element;
    let one = array::plain(&array::cast(array, element)?)?;
    let shape = port.port.shape.with_dynamic(|_| Some(1)).filter(|shape| shape.iter().all(|extent| *extent == 1));
    let shape = shape.unwrap_or(tensor::Shape::new(&[]));
    Ok(Value::Copy(Dense { tensor: array::shared(&one, element, &shape)?, shape }))
}

fn of_array(array: &Bound<'_, PyUntypedArray>, share: bool, element: ElementType) -> PyResult<Value> {
    let of_array = array::element_of(array)?;
    let plain = if of_array == element { array::plain(array)? } else { array::plain(&array::cast(array, element)?)? };
    let shape = array::checked_shape(plain.shape())?;
    let is_own = plain.is(array);
    let tensor = array::shared(&plain, element, &shape)?;
    if is_own && !(share && array::is_writable(array) && element != ElementType::Bf16) {
        return Ok(Value::Copy(Dense { tensor, shape }));
    }
    // At this point, `plain` is the caller's array, whose memory can be shared, or a copy to which only this call refers. A copy is always
    // shared. The caller's array is shared only if the caller requests it. Otherwise, its values are copied into the request's own tensor.
    if is_own || share { Ok(Value::Share(tensor)) } else { Ok(Value::Copy(Dense { tensor, shape })) }
}
