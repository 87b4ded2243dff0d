//! Converts the inputs of a run from all forms in which Python programs can pass them.
//!
//! All conversions that can call Python code (casts, `__array__`) are done in this module, before the request is used.

use std::sync::Arc;

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::array;
use crate::errors::TensorError;
use crate::package;
use crate::port::{Key, PortOf, no_key};
use crate::runtime::{self, Input, PortKey};
use crate::tensor::{self, BytesMut, ElementType, Tensor, Values};
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
            for (key, value) in dict.iter() {
                let idx = Key::from_value(&key)?.ok_or_else(|| no_key(&key))?.find("input", ports)?;
                given.push((idx, value_of(&value, share, &ports[idx])?));
            }
            return Ok(Self(given));
        }
        if let Ok(list) = inputs.cast::<PyList>() {
            let is_of_numbers = ports.len() == 1 && !list.is_empty() && list.iter().all(|item| is_number_or_row(&item));
            if !is_of_numbers {
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

/// Returns whether the value is a number or a list of numbers.
fn is_number_or_row(value: &Bound<'_, PyAny>) -> bool {
    is_number(value) || value.cast::<PyList>().is_ok_and(|row| !row.is_empty() && row.iter().all(|item| is_number_or_row(&item)))
}

fn is_value(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(value.is_instance_of::<PyTensor>() || is_number(value) || array::as_array(value)?.is_some())
}

/// Converts one value for one input.
fn value_of(value: &Bound<'_, PyAny>, share: bool, port: &PortOf) -> PyResult<Value> {
    let element = port.port.element;
    // Check for an array first, because arrays are the most common values.
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return of_array(array, share, element);
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
        let one = array::plain(&array::cast(&array, element)?)?;
        let shape = port.port.shape.to_static().filter(|shape| shape.iter().all(|extent| *extent == 1));
        let shape = shape.unwrap_or(tensor::Shape::new(&[]));
        return Ok(Value::Copy(Dense { tensor: array::shared(&one, element, &shape)?, shape }));
    }
    if value.cast::<PyList>().is_ok_and(|list| list.iter().all(|item| is_number_or_row(&item))) {
        let array = array::numpy_function(value.py(), "array")?.call1((value,))?.cast_into::<PyUntypedArray>()?;
        return of_array(&array, false, element);
    }
    match array::as_array(value)? {
        Some(array) => of_array(&array, share, element),
        None => Err(incompatible(value)),
    }
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
