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

/// A model that was read and is not compiled: `Core.read_model` makes it.
#[pyclass(frozen, module = "roiflow", weakref)]
pub struct Model {
    owner: u64,
    inner: Mutex<runtime::Model>,
}

impl Model {
    /// The object of a model.
    pub fn new(model: runtime::Model) -> Self {
        Self { owner: new_owner(), inner: Mutex::new(model) }
    }

    /// The model as it is now.
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

    /// The input with this index or name, or the only one. Raises RuntimeError if there is none, or are several.
    #[pyo3(signature = (key=None))]
    fn input(&self, key: Option<&Bound<'_, PyAny>>) -> PyResult<Output> {
        self.port(true, key)
    }

    /// The output with this index or name, or the only one. Raises RuntimeError if there is none, or are several.
    #[pyo3(signature = (key=None))]
    fn output(&self, key: Option<&Bound<'_, PyAny>>) -> PyResult<Output> {
        self.port(false, key)
    }

    /// The name: the path of the file.
    fn get_friendly_name(&self) -> String {
        self.inner().name()
    }

    /// Gives inputs other shapes: one for the only input, or a dictionary by name, index or port. An extent of -1 is dynamic, a pair the least and
    /// greatest extent. Ports that were read before keep their shapes.
    ///
    /// Raises RuntimeError if there is no such input or the number of axes differs.
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

    /// Makes pairs of an input and an output variables, by name: the output of a run is the input of the request's next run.
    ///
    /// Both ports are removed from the compiled model; `InferRequest.query_state` gives the variables. Raises RuntimeError if there are no
    /// such ports or they differ in type.
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
        // Bytes of a model may be large, nothing more.
        drop_detached(self.inner());
    }
}

/// A shape with dynamic extents: what the class `PartialShape` makes of a value.
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
