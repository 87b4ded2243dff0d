//! The class `Model`.

use std::sync::Mutex;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::OrRaise;
use crate::interpreter::drop_detached;
use crate::package;
use crate::port::{Key, Output, new_owner, no_key, ports_of};
use crate::runtime::{self, Dim, PartialShape, PortKey};

/// A model that is not compiled yet. `Core.read_model` creates it.
#[pyclass(frozen, module = "roiflow", weakref)]
pub struct Model {
    owner: u64,
    inner: Mutex<runtime::Model>,
}

impl Model {
    /// Creates the Python object of a model.
    pub fn new(model: runtime::Model) -> Self {
        Self { owner: new_owner(), inner: Mutex::new(model) }
    }

    /// Returns a copy of the current model.
    pub fn inner(&self) -> runtime::Model {
        self.inner.lock().unwrap().clone()
    }

    fn port(&self, is_input: bool, key: Option<&Bound<'_, PyAny>>) -> PyResult<Output> {
        let model = self.inner();
        let (kind, ports) = if is_input { ("input", &model.info().inputs) } else { ("output", &model.info().outputs) };
        let ports = ports_of(self.owner, is_input, ports);
        let key = match key {
            Some(key) => Key::from_value(key)?.ok_or_else(|| no_key(key))?,
            None => Key::Only,
        };
        Ok(Output(ports[key.find(kind, &ports)?].clone()))
    }
}

#[pymethods]
impl Model {
    /// The inputs, in order.
    #[getter]
    fn inputs(&self) -> Vec<Output> {
        ports_of(self.owner, true, &self.inner().info().inputs).into_iter().map(Output).collect()
    }

    /// The outputs, in order.
    #[getter]
    fn outputs(&self) -> Vec<Output> {
        ports_of(self.owner, false, &self.inner().info().outputs).into_iter().map(Output).collect()
    }

    /// The input with this index or name; without an argument, the only input. Raises RuntimeError if there is no such input, or if there
    /// are several inputs and no argument.
    #[pyo3(signature = (key=None))]
    fn input(&self, key: Option<&Bound<'_, PyAny>>) -> PyResult<Output> {
        self.port(true, key)
    }

    /// The output with this index or name; without an argument, the only output. Raises RuntimeError if there is no such output, or if
    /// there are several outputs and no argument.
    #[pyo3(signature = (key=None))]
    fn output(&self, key: Option<&Bound<'_, PyAny>>) -> PyResult<Output> {
        self.port(false, key)
    }

    /// The name: the path of the file.
    fn get_friendly_name(&self) -> String {
        self.inner().name()
    }

    /// Changes the shapes of inputs. The argument is the shape of the only input, or a dictionary whose keys are names, indexes or ports.
    /// An extent of -1 is dynamic; a pair is the minimum and the maximum extent. Port objects that exist already keep their shapes.
    ///
    /// Raises RuntimeError if there is no such input, or if the number of axes differs.
    fn reshape(&self, shapes: &Bound<'_, PyAny>) -> PyResult<()> {
        let model = self.inner();
        let ports = ports_of(self.owner, true, &model.info().inputs);
        let shapes = match shapes.cast::<PyDict>() {
            Ok(dict) => dict
                .iter()
                .map(|(key, shape)| {
                    let key = Key::from_value(&key)?.ok_or_else(|| no_key(&key))?;
                    Ok((key.find("input", &ports)?, partial_shape_from(&shape)?))
                })
                .collect::<PyResult<Vec<_>>>()?,
            Err(_) => vec![(Key::Only.find("input", &ports)?, partial_shape_from(shapes)?)],
        };
        let reshaped = model.reshape(shapes.into_iter().map(|(idx, shape)| (PortKey::Index(idx), shape))).or_raise()?;
        *self.inner.lock().unwrap() = reshaped;
        Ok(())
    }

    /// Turns pairs of an input and an output into variables. The dictionary maps names of inputs to names of outputs. The output of a run
    /// is then the input of the next run of the same request.
    ///
    /// The compiled model does not have these ports. `InferRequest.query_state` returns the variables. Raises RuntimeError if there are no
    /// such ports, or if the types of a pair differ.
    fn make_stateful(&self, pairs: &Bound<'_, PyDict>) -> PyResult<()> {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(input, output)| Ok((input.extract()?, output.extract()?))).collect::<PyResult<_>>()?;
        let stateful = self.inner().make_stateful(pairs.iter().map(|(input, output)| (&**input, &**output))).or_raise()?;
        *self.inner.lock().unwrap() = stateful;
        Ok(())
    }

    fn __repr__(&self) -> String {
        let model = self.inner();
        let list = |ports: &[runtime::Port]| ports.iter().map(|port| port.to_string()).collect::<Vec<_>>().join(", ");
        format!("<Model: '{}' inputs[{}] outputs[{}]>", model.name(), list(&model.info().inputs), list(&model.info().outputs))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot pickle 'Model' object: read it again"))
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Freeing the bytes of a large model takes time, so the interpreter's lock is released meanwhile.
        drop_detached(self.inner());
    }
}

/// Converts a value to a shape with dynamic extents, by the rules of the class `PartialShape`.
fn partial_shape_from(value: &Bound<'_, PyAny>) -> PyResult<PartialShape> {
    let shape = package::partial_shape_class(value.py())?.call1((value,))?;
    let bounds: Vec<(i64, i64)> = shape.call_method0("_bounds")?.extract()?;
    let dims = bounds.into_iter().map(|(min, max)| match (usize::try_from(min), usize::try_from(max)) {
        (Ok(min), Ok(max)) if min == max => Dim::Fixed(min),
        (Ok(min), Ok(max)) => Dim::Range { min, max },
        (Ok(0) | Err(_), Err(_)) => Dim::Dynamic,
        (Ok(min), Err(_)) => Dim::Range { min, max: usize::MAX },
        (Err(_), Ok(max)) => Dim::Range { min: 0, max },
    });
    PartialShape::new(dims.collect()).or_raise()
}
