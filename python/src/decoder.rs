//! Decoders that are Python functions.
//!
//! A decoder runs on a thread of the runtime, which takes the interpreter's lock for the call. While the function runs, this thread must
//! not wait for another run, because that run may wait for this decoder. [`is_decoding`] returns whether the current thread is in this
//! state.

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex};

use numpy::{PyArray1, PyArray2, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString, PyTuple};
use roiflow_inference::Engine;
use roiflow_results::{Outcome, Point, Rect, Size};
use roiflow_vision::decode::{BoxDecoder, BoxScheme, Decoder, Output, RawAttribute, RawDetection, Results, Subject};

use crate::array;
use crate::inputs::each_item;
use crate::interpreter::{called, detached};
use crate::runtime;
use crate::tensor::{Error, ErrorKind, Result};

thread_local! {
    static IS_DECODING: Cell<bool> = const { Cell::new(false) };
}

/// The last exception of each decoder, with the name of the decoder.
static RAISED: Mutex<Vec<(Arc<str>, PyErr)>> = Mutex::new(Vec::new());

/// Returns whether this thread is inside a decoder's function.
pub fn is_decoding() -> bool {
    IS_DECODING.get()
}

/// Returns the exception of the decoder that caused this error, or `None` if no decoder caused it.
pub fn raised(py: Python<'_>, error: &runtime::Error) -> Option<PyErr> {
    let message = error.to_string();
    let raised = RAISED.lock().unwrap();
    raised.iter().find(|(name, _)| message.contains(&begin_of_message(name))).map(|(_, error)| error.clone_ref(py))
}

fn begin_of_message(name: &str) -> String {
    format!("decoder `{name}` raised ")
}

/// Registers a function as a decoder, for models that are loaded later.
///
/// Raises TypeError if `function` cannot be called, and ValueError if the name or the task is invalid.
#[pyfunction]
pub fn _register_decoder(py: Python<'_>, name: &str, function: Bound<'_, PyAny>, task: &str) -> PyResult<()> {
    static REGISTERING: Mutex<()> = Mutex::new(());
    if !function.is_callable() {
        return Err(PyTypeError::new_err(format!("decoder `{name}`: expected a function, got {}", function.get_type())));
    }
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
        return Err(PyValueError::new_err(format!("expected a name of letters, digits, `-`, `_` and `.`, got {name:?}")));
    }
    let is_detection = match task {
        "detection" => true,
        "classification" => false,
        other => return Err(PyValueError::new_err(format!("task: expected \"detection\" or \"classification\", got {other:?}"))),
    };
    let function = Arc::new(Function { name: name.into(), function: function.unbind() });
    detached(py, || {
        let _one_at_a_time = REGISTERING.lock().unwrap();
        let mut decoders = Engine::of_process().decoders();
        if is_detection {
            decoders.register(name, Subject::Objects, move |section| BoxDecoder::new(Boxes(function.clone()), section));
        } else {
            decoders.register(name, Subject::Attributes, move |_| Ok(Attributes(function.clone())));
        }
        Engine::of_process().set_decoders(decoders);
    });
    Ok(())
}

/// A Python function, with the name of its decoder.
struct Function {
    name: Arc<str>,
    function: Py<PyAny>,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({})", self.name)
    }
}

impl Function {
    /// Calls the function with the outputs and the size of the input. `take` reads the value that the function returned.
    fn call(&self, outputs: &[Output<'_>], input: Size, take: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>) -> Result<()> {
        let fail = |message: String| Err(Error::new(ErrorKind::Unsupported, message));
        let ended = called(|py| {
            let is_decoding = IS_DECODING.replace(true);
            let ended = self.call_attached(py, outputs, input).and_then(|value| take(&value));
            IS_DECODING.set(is_decoding);
            ended.map_err(|error| {
                let text = format!("{}{error}", begin_of_message(&self.name));
                // Drop the previous exception after the lock is released, because dropping an exception can run any Python code.
                let before = {
                    let mut raised = RAISED.lock().unwrap();
                    let before = raised.iter().position(|(name, _)| *name == self.name).map(|idx| raised.swap_remove(idx));
                    raised.push((self.name.clone(), error));
                    before
                };
                drop(before);
                text
            })
        });
        match ended {
            Some(Ok(())) => Ok(()),
            Some(Err(message)) => fail(message),
            None => fail(format!("decoder `{}` was not called: the interpreter ends", self.name)),
        }
    }

    fn call_attached<'py>(&self, py: Python<'py>, outputs: &[Output<'_>], input: Size) -> PyResult<Bound<'py, PyAny>> {
        let arrays = PyDict::new(py);
        for Output { name, shape, data } in outputs {
            arrays.set_item(name, PyArray1::from_slice(py, data).reshape(numpy::ndarray::IxDyn(shape))?)?;
        }
        self.function.bind(py).call1((arrays, (input.width, input.height)))
    }
}

/// A decoder whose function returns boxes.
#[derive(Debug)]
struct Boxes(Arc<Function>);

impl BoxScheme for Boxes {
    fn check(&self, _outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        Ok(0)
    }

    /// Returns false, because a function may leave out rows.
    fn appends_all_rows(&self) -> bool {
        false
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        self.0.call(outputs, input, |value| {
            let Some(rows) = rows_of(value)? else { return Ok(()) };
            let rows = rows.try_readonly()?;
            for (row_idx, row) in (0..).zip(rows.as_array().rows()) {
                let values = row.to_vec();
                let [x_min, y_min, x_max, y_max, score, class] = values[..6] else { continue };
                if score > score_min {
                    let class_id = if (0.0..65536.0).contains(&class) {
                        class as u32
                    } else {
                        return Err(PyValueError::new_err(format!(
                            "expected the number of a class, 0 or more, in row {row_idx}, got {class}"
                        )));
                    };
                    let rect = Rect::from_corners(x_min, y_min, x_max, y_max);
                    results.boxes.push(RawDetection { rect, score, class_id, row: row_idx });
                    if values.len() > 6 {
                        results.add_keypoints(row_idx, values[6..].as_chunks().0.iter().map(|&[x, y]| Point { x, y }));
                    }
                }
            }
            Ok(())
        })
    }
}

/// Reads the rows that a function returned. Returns `None` if it returned no rows.
fn rows_of<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyArray2<f32>>>> {
    if value.is_none() {
        return Ok(None);
    }
    let array = array::numpy_function(value.py(), "ascontiguousarray")?.call1((value, "float32"))?;
    let array = array.cast_into::<PyArrayDyn<f32>>()?;
    match *array.shape() {
        _ if array.len() == 0 => Ok(None),
        [_, n_columns] if n_columns >= 6 && n_columns % 2 == 0 => Ok(Some(array.into_any().cast_into()?)),
        _ => Err(PyValueError::new_err(format!(
            "expected rows of x_min, y_min, x_max, y_max, confidence, class and pairs of keypoint coordinates, [N, 6 + 2 K], got shape {:?}",
            array.shape()
        ))),
    }
}

/// A decoder whose function returns attributes.
#[derive(Debug)]
struct Attributes(Arc<Function>);

impl Decoder for Attributes {
    fn check(&self, _outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        Ok(0)
    }

    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        self.0.call(outputs, input, |value| {
            if let Ok(named) = value.cast::<PyDict>() {
                each_item(named, |name, value| {
                    let name: String = name.extract()?;
                    results.attributes.push(RawAttribute { of: None, name: Some(name.into()), outcome: outcome_of(value)? });
                    Ok(())
                })?;
            } else if !value.is_none() {
                results.say(outcome_of(value)?);
            }
            Ok(())
        })
    }
}

/// Converts the value of an attribute: a number, a text, a class with its confidence, or an array.
fn outcome_of(value: &Bound<'_, PyAny>) -> PyResult<Outcome> {
    let is_number = value.is_instance_of::<PyFloat>() || (value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>());
    let is_scalar = is_number || value.is_instance(&array::numpy_function(value.py(), "number")?)?;
    if is_scalar {
        return Ok(Outcome::Value(value.extract()?));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Outcome::Text { text: text.to_string().into(), confidence: 1.0 });
    }
    if let Ok(pair) = value.cast::<PyTuple>()
        && pair.len() == 2
    {
        let (class, confidence) = (pair.get_item(0)?, pair.get_item(1)?.extract::<f32>()?);
        return match class.cast::<PyString>() {
            Ok(text) => Ok(Outcome::Text { text: text.to_string().into(), confidence }),
            Err(_) => Ok(Outcome::Label { label_id: class.extract()?, label: None, confidence }),
        };
    }
    let Some(array) = array::as_array(value)? else {
        return Err(PyTypeError::new_err(format!(
            "expected a number, a text, a class number with its confidence, an array, or a dictionary of these, got {}",
            value.get_type()
        )));
    };
    let array = array::numpy_function(value.py(), "ascontiguousarray")?.call1((array, "float32"))?.cast_into::<PyArrayDyn<f32>>()?;
    let (shape, array) = (array.shape().to_vec(), array.try_readonly()?);
    Ok(Outcome::Tensor { shape, data: array.as_slice()?.into() })
}
