//! The class `Core`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyTuple};

use crate::compiled::CompiledModel;
use crate::errors::OrRaise;
use crate::interpreter::detached;
use crate::model::Model;
use crate::package;
use crate::properties;
use crate::remote::RemoteContext;
use crate::runtime::{self, Config, ModelBytes, ModelSource};

const READ_ONLY: [&str; 4] = ["FULL_DEVICE_NAME", "SUPPORTED_PROPERTIES", "AVAILABLE_DEVICES", "OPTIMAL_NUMBER_OF_INFER_REQUESTS"];

/// Reads models, compiles models for devices, and lists the devices of this machine.
#[pyclass(frozen, module = "roiflow", subclass, name = "Core")]
pub struct Core {
    /// The properties that `set_property` set, by device.
    configs: Mutex<HashMap<String, Config>>,
}

fn runtime_core() -> &'static runtime::Core {
    roiflow_devices::core()
}

/// Returns the names and descriptions of the devices. Searches for engines, and may load their libraries.
fn devices(py: Python<'_>) -> Vec<(String, runtime::device::DeviceInfo)> {
    detached(py, || runtime_core().devices())
}

/// Checks that there is a device with this name. Raises RuntimeError if there is none.
fn check_device(py: Python<'_>, name: &str) -> PyResult<()> {
    if ["CPU", "AUTO", "NULL"].contains(&name) || name.starts_with("OPENVINO.") || name.starts_with("ORT.") {
        return Ok(());
    }
    if devices(py).iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    detached(py, || runtime_core().default_context(name)).map(drop).or_raise()
}

/// Reads a model from a path, or from the bytes of a file.
pub fn read_model(py: Python<'_>, model: &Bound<'_, PyAny>, weights: Option<&Bound<'_, PyAny>>) -> PyResult<runtime::Model> {
    let bytes_of = |value: &Bound<'_, PyAny>| -> PyResult<Option<Vec<u8>>> {
        let is_buffer = value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyByteArray>() || value.hasattr("getvalue")?;
        if !is_buffer {
            return Ok(None);
        }
        if let Ok(bytes) = value.cast::<PyByteArray>() {
            return Ok(Some(bytes.to_vec()));
        }
        let value = if value.hasattr("getvalue")? { value.call_method0("getvalue")? } else { value.clone() };
        Ok(Some(value.cast::<PyBytes>()?.as_bytes().to_vec()))
    };
    let source = match bytes_of(model)? {
        Some(bytes) => {
            let bytes = ModelBytes::new(bytes);
            ModelSource::Bytes(match weights.map(bytes_of).transpose()?.flatten() {
                Some(weights) => bytes.with_weights(weights),
                None => bytes,
            })
        }
        None => model
            .extract::<PathBuf>()
            .map_err(|_| PyTypeError::new_err(format!("expected a path or the bytes of a model file, got {}", model.get_type())))?
            .into(),
    };
    detached(py, || runtime_core().read_model(source)).or_raise()
}

#[pymethods]
impl Core {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "()")]
    fn py_new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        // A subclass may have other arguments in its constructor.
        Self { configs: Mutex::default() }
    }

    /// Raises TypeError if there are arguments.
    fn __init__(&self) {}

    /// The names of the devices that can be used on this machine. The first call searches for engines.
    #[getter(available_devices)]
    fn available_devices_property(&self, py: Python<'_>) -> Vec<String> {
        let usable = |(name, info): (String, runtime::device::DeviceInfo)| {
            (info.missing.is_none() && !["AUTO", "NULL", "REMOTE"].contains(&&*name)).then_some(name)
        };
        devices(py).into_iter().filter_map(usable).collect()
    }

    /// Same as `available_devices`.
    fn get_available_devices(&self, py: Python<'_>) -> Vec<String> {
        self.available_devices_property(py)
    }

    /// Reads a model from a path, or from the bytes of a file.
    ///
    /// Raises RuntimeError if the file cannot be read or is not a model; the message names the file. Raises TypeError for arguments of
    /// other types.
    #[pyo3(signature = (model, weights=None))]
    fn read_model(&self, py: Python<'_>, model: &Bound<'_, PyAny>, weights: Option<&Bound<'_, PyAny>>) -> PyResult<Model> {
        read_model(py, model, weights).map(Model::new)
    }

    /// Compiles a model, or the model of a file, for a device. Without a device name, the device is `AUTO`: the first of `OPENVINO.CPU`,
    /// `ORT.CPU` and `CPU` that runs the model.
    ///
    /// Properties have names of OpenVINO (`PERFORMANCE_HINT`, ...) or names of roiflow. Raises RuntimeError if there is no such device or
    /// property, or if the device cannot run the model.
    #[pyo3(signature = (model, device_name=None, config=None))]
    fn compile_model<'py>(
        &self,
        py: Python<'py>,
        model: &Bound<'py, PyAny>,
        device_name: Option<&Bound<'py, PyAny>>,
        config: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // As in OpenVINO, the second argument may be the configuration instead of a device name.
        let (device_name, config) = match device_name.and_then(|value| value.cast::<PyDict>().ok()) {
            Some(given) => (None, Some(given)),
            None => (device_name, config),
        };
        let device: String = device_name.filter(|name| !name.is_none()).map_or(Ok("AUTO".to_owned()), |name| name.extract())?;
        check_device(py, &device)?;
        let mut settings = self.config_of(&device);
        if let Some(config) = config {
            properties::set_all(&mut settings, config)?;
        }
        let model = match model.cast::<Model>() {
            Ok(model) => model.get().inner(),
            Err(_) => read_model(py, model, None)?,
        };
        let compiled = detached(py, || runtime_core().compile_model(&model, &device, &settings)).or_raise()?;
        let own = Bound::new(py, CompiledModel::new(py, compiled)?)?;
        package::compiled_class(py)?.call1((own,))
    }

    /// Sets properties of a device for models that are compiled later. Without a device name, sets the properties of all devices.
    ///
    /// Raises RuntimeError if there is no such device or property.
    #[pyo3(signature = (device_name, properties=None))]
    fn set_property(&self, py: Python<'_>, device_name: &Bound<'_, PyAny>, properties: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let (device, properties) = match (device_name.cast::<PyDict>(), properties) {
            (Ok(properties), None) => (String::new(), properties.clone()),
            (_, Some(properties)) => {
                let device: String = device_name.extract()?;
                check_device(py, &device)?;
                (device, properties.clone())
            }
            _ => return Err(PyTypeError::new_err("set_property(device_name, properties): expected a name and a dictionary")),
        };
        let mut config = self.config_of(&device);
        properties::set_all(&mut config, &properties)?;
        self.configs.lock().unwrap().insert(device, config);
        Ok(())
    }

    /// Returns a property of a device: the value that was set, the default value, or a value that the device reports.
    ///
    /// Raises RuntimeError if there is no such device or property.
    fn get_property(&self, py: Python<'_>, device_name: &str, name: &str) -> PyResult<Py<PyAny>> {
        check_device(py, device_name)?;
        let known = properties::supported(&READ_ONLY);
        match name {
            "FULL_DEVICE_NAME" => {
                let of_device = devices(py).into_iter().find(|(known, _)| known == device_name);
                of_device.map_or(device_name.to_owned(), |(_, info)| info.description).into_py_any(py)
            }
            "SUPPORTED_PROPERTIES" => known.into_py_any(py),
            "AVAILABLE_DEVICES" => self.available_devices_property(py).into_py_any(py),
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS" => {
                let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
                self.config_of(device_name).requests_and_threads(n_cores).0.into_py_any(py)
            }
            _ => properties::get(py, &self.config_of(device_name), name)?.ok_or_else(|| properties::unknown(name, &known)),
        }
    }

    /// The memory context of a device. Raises RuntimeError if the device has no separate memory, such as CPU.
    fn get_default_context(&self, device_name: &str) -> PyResult<RemoteContext> {
        runtime_core().default_context(device_name).or_raise().map(RemoteContext)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot pickle 'Core' object: make another one"))
    }

    fn __copy__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot copy 'Core' object: make another one"))
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> PyResult<()> {
        self.__copy__()
    }
}

impl Core {
    /// Returns the configuration of a device. If the device has no configuration, returns the configuration of all devices.
    fn config_of(&self, device: &str) -> Config {
        let configs = self.configs.lock().unwrap();
        configs.get(device).or_else(|| configs.get("")).cloned().unwrap_or_default()
    }
}
