//! The class `CompiledModel`, and the state that it shares with its requests.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::bind;
use crate::errors::{ConfigError, Error, OrRaise};
use crate::inputs::Given;
use crate::interpreter::{self, detached, drop_detached};
use crate::package;
use crate::port::{ConstOutput, Key, PortOf, new_owner, no_key, ports_of};
use crate::properties;
use crate::request::{Handle, InferRequest};
use crate::run::infer;
use crate::runtime;
use crate::variable::VariableState;

const READ_ONLY: [&str; 4] = ["NETWORK_NAME", "OPTIMAL_NUMBER_OF_INFER_REQUESTS", "EXECUTION_DEVICES", "SUPPORTED_PROPERTIES"];

/// A compiled model with its ports. The requests and queues of the model share this value.
pub struct Compiled {
    pub model: runtime::CompiledModel,
    pub inputs: Vec<Arc<PortOf>>,
    pub outputs: Vec<Arc<PortOf>>,
    /// The outputs as Python objects, which are the keys of results.
    pub output_objects: Vec<Py<ConstOutput>>,
    /// The idle requests of direct calls, with their numbers. A call takes the request with the smallest number, so calls that follow each
    /// other use the same request.
    direct: Mutex<Vec<(usize, runtime::InferRequest)>>,
    /// The number of requests that were created for direct calls.
    n_direct: Mutex<usize>,
    /// The largest number of input elements of a short run. A run with more elements may take longer.
    pub n_elements_of_short_runs: AtomicUsize,
}

/// A model that is compiled for a device. `Core.compile_model` creates it.
#[pyclass(frozen, module = "roiflow._roiflow", subclass, name = "CompiledModel")]
pub struct CompiledModel {
    /// Empty until `__init__` of a subclass calls `__init__` of this class.
    shared: OnceLock<Arc<Compiled>>,
}

impl CompiledModel {
    /// Creates the Python object of a compiled model.
    pub fn new(py: Python<'_>, model: runtime::CompiledModel) -> PyResult<Self> {
        let owner = new_owner();
        let inputs = ports_of(owner, true, model.inputs());
        let outputs = ports_of(owner, false, model.outputs());
        let output_objects = outputs.iter().map(|port| Py::new(py, ConstOutput(port.clone()))).collect::<PyResult<_>>()?;
        let shared = Compiled {
            model,
            inputs,
            outputs,
            output_objects,
            direct: Mutex::default(),
            n_direct: Mutex::new(0),
            n_elements_of_short_runs: AtomicUsize::new(0),
        };
        Ok(Self::of(Arc::new(shared)))
    }

    /// Creates another Python object for the same compiled model.
    pub fn of(shared: Arc<Compiled>) -> Self {
        Self { shared: OnceLock::from(shared) }
    }

    /// Returns the state that requests share with this object.
    pub fn shared(&self) -> PyResult<&Arc<Compiled>> {
        self.shared.get().ok_or_else(|| Error::new_err("CompiledModel.__init__ was not called with a compiled model"))
    }
}

/// A request that a direct call uses. Dropping this value returns the request to the idle requests.
struct Direct<'a> {
    compiled: &'a Compiled,
    number: usize,
    request: Option<runtime::InferRequest>,
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.compiled.direct.lock().unwrap().push((self.number, request));
        }
    }
}

impl Compiled {
    fn take_direct(&self, py: Python<'_>) -> PyResult<Direct<'_>> {
        let idle = {
            let mut direct = self.direct.lock().unwrap();
            let least = direct.iter().enumerate().min_by_key(|(_, (number, _))| *number).map(|(at, _)| at);
            least.map(|at| direct.swap_remove(at))
        };
        let (number, request) = match idle {
            Some(idle) => idle,
            None => {
                let request = detached(py, || self.model.create_infer_request()).or_raise()?;
                interpreter::note(&request);
                let mut n_direct = self.n_direct.lock().unwrap();
                *n_direct += 1;
                (*n_direct, request)
            }
        };
        Ok(Direct { compiled: self, number, request: Some(request) })
    }

    fn port(&self, is_input: bool, key: Option<&Bound<'_, PyAny>>) -> PyResult<ConstOutput> {
        let (kind, ports) = if is_input { ("input", &self.inputs) } else { ("output", &self.outputs) };
        let key = match key {
            Some(key) => Key::from_value(key)?.ok_or_else(|| no_key(key))?,
            None => Key::Only,
        };
        Ok(ConstOutput(ports[key.find(kind, ports)?].clone()))
    }

    /// Returns the Python objects of all inputs, or of all outputs.
    pub fn ports(&self, is_input: bool) -> Vec<ConstOutput> {
        let ports = if is_input { &self.inputs } else { &self.outputs };
        ports.iter().cloned().map(ConstOutput).collect()
    }
}

impl Direct<'_> {
    fn request(&self) -> &runtime::InferRequest {
        self.request.as_ref().expect("only the drop takes it")
    }
}

#[pymethods]
impl CompiledModel {
    #[new]
    #[pyo3(signature = (*args, **_kwargs))]
    fn py_new(args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        // A subclass may have other arguments in its constructor. Such a subclass passes the model to `__init__`.
        let other = args.get_item(0).ok().and_then(|other| other.cast_into::<CompiledModel>().ok());
        Self { shared: other.and_then(|other| other.get().shared.get().cloned()).map_or_else(OnceLock::new, OnceLock::from) }
    }

    fn __init__(&self, other: &Bound<'_, CompiledModel>) -> PyResult<()> {
        let _unless_set_already = self.shared.set(other.get().shared()?.clone());
        Ok(())
    }

    /// The inputs, in order.
    #[getter]
    fn inputs(&self) -> PyResult<Vec<ConstOutput>> {
        Ok(self.shared()?.ports(true))
    }

    /// The outputs, in order.
    #[getter]
    fn outputs(&self) -> PyResult<Vec<ConstOutput>> {
        Ok(self.shared()?.ports(false))
    }

    /// The input with this index or name; without an argument, the only input. Raises RuntimeError if there is no such input, or if there
    /// are several inputs and no argument.
    #[pyo3(signature = (*args, **kwargs))]
    fn input(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<ConstOutput> {
        let (_, keys) = bind("input", &[&[], &["index"], &["tensor_name"], &["key"]], args, kwargs)?;
        self.shared()?.port(true, keys.first())
    }

    /// The output with this index or name; without an argument, the only output. Raises RuntimeError if there is no such output, or if
    /// there are several outputs and no argument.
    #[pyo3(signature = (*args, **kwargs))]
    fn output(&self, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<ConstOutput> {
        let (_, keys) = bind("output", &[&[], &["index"], &["tensor_name"], &["key"]], args, kwargs)?;
        self.shared()?.port(false, keys.first())
    }

    /// Runs the model once and returns the outputs. Any number of threads may call this method at the same time.
    ///
    /// Consecutive calls use the same request: an input that a call omits keeps its previous value. Arrays are shared where possible, see
    /// `InferRequest.infer`. Raises the same exceptions as `InferRequest.infer`.
    #[pyo3(signature = (inputs=None, share_inputs=true, share_outputs=false, *, shared_memory=None))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: Option<&Bound<'py, PyAny>>,
        share_inputs: bool,
        share_outputs: bool,
        shared_memory: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared()?;
        let given = Given::parse(inputs, shared_memory.unwrap_or(share_inputs), &shared.inputs)?;
        let direct = shared.take_direct(py)?;
        infer(py, direct.request(), shared, given, share_outputs)
    }

    /// Runs the model once with a new request, and returns copies of the outputs. Raises the same exceptions as `InferRequest.infer`.
    #[pyo3(signature = (inputs=None))]
    fn infer_new_request<'py>(&self, py: Python<'py>, inputs: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared()?;
        let given = Given::parse(inputs, false, &shared.inputs)?;
        let request = detached(py, || shared.model.create_infer_request()).or_raise()?;
        let results = infer(py, &request, shared, given, false);
        drop_detached(request);
        results
    }

    /// Creates a request with its own tensors. Raises RuntimeError if their memory cannot be allocated.
    fn create_infer_request<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared()?;
        let request = detached(py, || shared.model.create_infer_request()).or_raise()?;
        let own = Bound::new(py, InferRequest::new(Py::new(py, Handle::new(shared.clone(), request, None))?))?;
        package::request_class(py)?.call1((own,))
    }

    /// The variables of the request of direct calls.
    fn query_state(&self, py: Python<'_>) -> PyResult<Vec<VariableState>> {
        let direct = self.shared()?.take_direct(py)?;
        Ok(direct.request().query_state().or_raise()?.into_iter().map(VariableState::new).collect())
    }

    /// Resets the variables of the request of direct calls.
    fn reset_state(&self, py: Python<'_>) -> PyResult<()> {
        self.shared()?.take_direct(py)?.request().reset_state().or_raise()
    }

    /// Frees the requests of direct calls except the first one, which keeps inputs and variables.
    fn release_memory(&self) -> PyResult<()> {
        let mut direct = self.shared()?.direct.lock().unwrap();
        let (first, others): (Vec<_>, Vec<_>) = direct.drain(..).partition(|(number, _)| *number == 1);
        *direct = first;
        drop(direct);
        others.iter().for_each(|(_, request)| interpreter::forget(request.id()));
        drop_detached(others);
        Ok(())
    }

    /// Returns a property of the model: NETWORK_NAME, EXECUTION_DEVICES, OPTIMAL_NUMBER_OF_INFER_REQUESTS, SUPPORTED_PROPERTIES, or a
    /// property that the model was compiled with. Raises RuntimeError for other names.
    fn get_property(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        let model = &self.shared()?.model;
        let known = properties::supported(&READ_ONLY);
        match name {
            "NETWORK_NAME" => model.name().into_py_any(py),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS" => model.optimal_number_of_requests().into_py_any(py),
            "EXECUTION_DEVICES" => vec![model.device()].into_py_any(py),
            "SUPPORTED_PROPERTIES" => known.into_py_any(py),
            _ => properties::get(py, &model.properties().config, name)?.ok_or_else(|| properties::unknown(name, &known)),
        }
    }

    /// Raises RuntimeError: the properties of a compiled model are fixed.
    fn set_property(&self, _properties: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(ConfigError::new_err("the properties of a compiled model are fixed: give them to compile_model"))
    }

    fn __repr__(&self) -> PyResult<String> {
        let shared = self.shared()?;
        let list = |ports: &[Arc<PortOf>]| ports.iter().map(|port| port.port.to_string()).collect::<Vec<_>>().join(", ");
        Ok(format!(
            "<CompiledModel: '{}' on {} inputs[{}] outputs[{}]>",
            shared.model.name(),
            shared.model.device(),
            list(&shared.inputs),
            list(&shared.outputs)
        ))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot pickle 'CompiledModel' object: compile the model again"))
    }

    fn __copy__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot copy 'CompiledModel' object"))
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> PyResult<()> {
        self.__copy__()
    }
}

impl Drop for CompiledModel {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        // If this is the last reference, its drop frees the engine's model, which may wait for threads.
        drop_detached(shared);
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        self.direct.lock().unwrap().iter().for_each(|(_, request)| interpreter::forget(request.id()));
    }
}
