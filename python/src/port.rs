//! Ports of models (`Output`) and of compiled models (`ConstOutput`), and the keys with which callers select a port.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PySet, PyString};

use crate::errors::{Error, NotFound, TensorError};
use crate::package;
use crate::runtime::{Dim, Port};
use crate::types::{Type, name_of};

/// A port of one model.
pub struct PortOf {
    /// The number of the model; see [`new_owner`].
    owner: u64,
    pub is_input: bool,
    pub idx: usize,
    pub port: Port,
}

/// Returns a new number for a model. The ports of the model store it, so ports of different models are not equal.
pub fn new_owner() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Creates the ports of all inputs, or of all outputs, of a model.
pub fn ports_of(owner: u64, is_input: bool, ports: &[Port]) -> Vec<Arc<PortOf>> {
    ports.iter().enumerate().map(|(idx, port)| Arc::new(PortOf { owner, is_input, idx, port: port.clone() })).collect()
}

impl PortOf {
    fn describe(&self, class: &str) -> String {
        let names: Vec<&str> = self.port.names.iter().map(|name| &**name).collect();
        let shape = self.port.shape.to_string().replace(", ", ",");
        format!("<{class}: names[{}] shape{shape} type: {}>", names.join(", "), name_of(self.port.element))
    }

    fn hash_of(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.owner, self.is_input, self.idx).hash(&mut hasher);
        hasher.finish()
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.owner, self.is_input, self.idx) == (other.owner, other.is_input, other.idx)
    }

    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.port.shape.to_static() {
            Some(shape) => package::shape(py, &shape),
            None => {
                Err(TensorError::new_err(format!("port {}: its shape is dynamic; use partial_shape, or the shape of a tensor", self.port)))
            }
        }
    }

    fn partial_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let bounds = self.port.shape.dims().iter().map(|dim| match *dim {
            Dim::Fixed(extent) => (extent as i64, extent as i64),
            Dim::Range { min, max } => (min as i64, i64::try_from(max).unwrap_or(-1)),
            Dim::Dynamic => (0, -1),
        });
        package::partial_shape(py, bounds.collect())
    }
}

macro_rules! port_class {
    ($class:ident, $doc:literal) => {
        #[doc = $doc]
        #[pyclass(frozen, module = "roiflow", weakref)]
        pub struct $class(pub Arc<PortOf>);

        #[pymethods]
        impl $class {
            /// The tensor names.
            #[getter(names)]
            fn names_property<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PySet>> {
                PySet::new(py, self.0.port.names.iter().map(|name| &**name))
            }

            /// The first tensor name. Raises RuntimeError if the port has no name.
            #[getter(any_name)]
            fn any_name_property(&self) -> PyResult<&str> {
                self.0.port.names.first().map(|name| &**name).ok_or_else(|| Error::new_err("the port has no name"))
            }

            /// The index among the inputs, or among the outputs.
            #[getter(index)]
            fn index_property(&self) -> usize {
                self.0.idx
            }

            /// The type of the elements of its tensors.
            #[getter(element_type)]
            fn element_type_property(&self) -> Type {
                Type(self.0.port.element)
            }

            /// The shape of its tensors. Raises RuntimeError if it is dynamic: see `partial_shape`.
            #[getter(shape)]
            fn shape_property<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.0.shape(py)
            }

            /// The shape, with dynamic extents.
            #[getter(partial_shape)]
            fn partial_shape_property<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.0.partial_shape(py)
            }

            fn get_names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PySet>> {
                self.names_property(py)
            }

            fn get_any_name(&self) -> PyResult<&str> {
                self.any_name_property()
            }

            fn get_index(&self) -> usize {
                self.0.idx
            }

            fn get_element_type(&self) -> Type {
                self.element_type_property()
            }

            fn get_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.0.shape(py)
            }

            fn get_partial_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.0.partial_shape(py)
            }

            fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
                port_from(other).is_some_and(|other| self.0.is_same(&other))
            }

            fn __hash__(&self) -> u64 {
                self.0.hash_of()
            }

            fn __repr__(&self) -> String {
                self.0.describe(stringify!($class))
            }

            fn __copy__(&self) -> Self {
                Self(self.0.clone())
            }

            fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
                Err(PyTypeError::new_err(concat!("cannot deepcopy '", stringify!($class), "' object: it stands for a port of a model")))
            }

            fn __reduce__(&self) -> PyResult<()> {
                Err(PyTypeError::new_err(concat!("cannot pickle '", stringify!($class), "' object: it stands for a port of a model")))
            }
        }
    };
}

port_class!(Output, "An input or output of a model that is not compiled. Equal to itself alone.");
port_class!(ConstOutput, "An input or output of a compiled model. Equal to itself alone.");

/// If the value is a port, returns it.
pub fn port_from(value: &Bound<'_, PyAny>) -> Option<Arc<PortOf>> {
    if let Ok(port) = value.cast::<ConstOutput>() {
        return Some(port.get().0.clone());
    }
    value.cast::<Output>().ok().map(|port| port.get().0.clone())
}

/// A key with which a caller selects a port.
pub enum Key {
    Name(String),
    Index(usize),
    Port(Arc<PortOf>),
    /// The caller passed no key. The only port is selected.
    Only,
}

impl Key {
    /// Converts a name, an index or a port to a key. Returns `None` for values of other types.
    pub fn from_value(value: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if let Ok(name) = value.cast::<PyString>() {
            return Ok(Some(Self::Name(name.to_str()?.to_owned())));
        }
        if let Some(port) = port_from(value) {
            return Ok(Some(Self::Port(port)));
        }
        if value.hasattr("__index__")? { Ok(Some(Self::Index(index_from(value)?))) } else { Ok(None) }
    }

    /// Returns the index of the selected port in `ports`, which are all inputs or all outputs of a model.
    pub fn find(&self, kind: &str, ports: &[Arc<PortOf>]) -> PyResult<usize> {
        let has_name = |port: &PortOf, name: &str| port.port.names.iter().any(|own| **own == *name);
        let found = match self {
            Self::Name(name) => ports.iter().position(|port| has_name(port, name)),
            Self::Index(idx) => (*idx < ports.len()).then_some(*idx),
            Self::Port(port) => ports.iter().position(|own| own.is_same(port)).or_else(|| {
                // The port may belong to the model before compilation, or to a different compiled model. Then find the port by its name.
                let is_alike = |own: &Arc<PortOf>| {
                    own.owner != port.owner
                        && own.is_input == port.is_input
                        && own.port.element == port.port.element
                        && port.port.names.iter().any(|name| has_name(own, name))
                };
                ports.iter().position(is_alike)
            }),
            Self::Only if ports.len() == 1 => Some(0),
            Self::Only => None,
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = ports.iter().map(|port| port.port.name()).collect();
            let names = names.join(", ");
            NotFound::new_err(match self {
                Self::Name(name) => format!("no {kind} `{name}`: the model has {names}"),
                Self::Index(idx) => format!("no {kind} number {idx}: the model has {}: {names}", ports.len()),
                Self::Port(port) => format!("no {kind} {}: the model has {names}", port.port),
                Self::Only => format!("the model has {} {kind}s: select one of {names}", ports.len()),
            })
        })
    }
}

/// Converts a value to an index.
///
/// Raises NotFound for a negative or very large number, and TypeError for other values.
pub fn index_from(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    value.extract::<usize>().map_err(|error| match error.is_instance_of::<pyo3::exceptions::PyOverflowError>(value.py()) {
        true => NotFound::new_err(format!("no input or output number {value}: expected 0 or more; indexes from the end are not supported")),
        false => error,
    })
}

/// Creates the exception for a key that is neither a name, an index nor a port.
pub fn no_key(value: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!("Incompatible key type for input: {value}; expected a name, an index or a port"))
}
