//! Converts properties with OpenVINO's names to options of roiflow's configuration, and back.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};

use crate::errors::{ConfigError, NotFound, OrRaise};
use crate::inputs::each_item;
use crate::runtime::{Config, Performance, Precision};
use crate::types::{Type, name_of};

/// The properties that can be set: OpenVINO's name, and the name of roiflow's option.
const SETTABLE: [(&str, &str); 7] = [
    ("PERF_COUNT", "profiling"),
    ("PERFORMANCE_HINT", "performance"),
    ("PERFORMANCE_HINT_NUM_REQUESTS", "requests"),
    ("INFERENCE_NUM_THREADS", "threads"),
    ("INFERENCE_PRECISION_HINT", "precision"),
    ("NUM_STREAMS", "requests"),
    ("CACHE_DIR", "cache-folder"),
];

/// The names of all options of roiflow's configuration.
const OWN: [&str; 11] = [
    "performance",
    "requests",
    "threads",
    "precision",
    "cache-folder",
    "profiling",
    "exclusive-requests",
    "callback-thread",
    "batch-size",
    "batch-timeout",
    "batch-independent",
];

/// Returns the names of all properties: those that can be set, and `read_only`.
pub fn supported(read_only: &[&'static str]) -> Vec<&'static str> {
    SETTABLE.iter().map(|(name, _)| *name).chain(read_only.iter().copied()).chain(OWN).collect()
}

/// Sets the properties of a dictionary.
pub fn set_all(config: &mut Config, properties: &Bound<'_, PyDict>) -> PyResult<()> {
    each_item(properties, |name, value| {
        let name: String = name.str()?.extract()?;
        set(config, &name, value)
    })
}

fn set(config: &mut Config, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let text = text_of(value)?;
    if OWN.contains(&name) || name.contains('.') {
        return config.set(name, &text).or_raise();
    }
    let Some((_, option)) = SETTABLE.iter().find(|(known, _)| *known == name) else {
        return Err(unknown(name, &supported(&[])));
    };
    let fail = |expected: &str| Err(ConfigError::new_err(format!("property {name}: expected {expected}, got {text}")));
    let lower = text.to_lowercase();
    match *option {
        "profiling" => match lower.as_str() {
            "true" | "yes" | "1" => config.profiling = true,
            "false" | "no" | "0" => config.profiling = false,
            _ => return fail("True or False"),
        },
        "performance" => match lower.as_str() {
            "latency" => config.performance = Performance::Latency,
            "throughput" | "cumulative_throughput" => config.performance = Performance::Throughput,
            _ => return fail("LATENCY or THROUGHPUT"),
        },
        // If the value is 0 or AUTO, the device chooses the number.
        "requests" | "threads" => {
            let number = match lower.as_str() {
                "0" | "auto" | "-1" => None,
                number => match number.parse::<usize>() {
                    Ok(number) if number <= 4096 => Some(number),
                    _ => return fail("a number from 0 to 4096"),
                },
            };
            if *option == "requests" { config.n_requests = number } else { config.n_threads = number }
        }
        "precision" => match lower.as_str() {
            "f32" | "dynamic" => config.precision = Precision::F32,
            "bf16" => config.precision = Precision::Bf16,
            "f16" => config.precision = Precision::F16,
            _ => return fail("f32, bf16 or f16"),
        },
        _ => config.cache_folder = (!text.is_empty()).then(|| text.into()),
    }
    Ok(())
}

/// Converts a value to text. An element type or a member of an enumeration becomes its name, a number or boolean has its usual form.
fn text_of(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(element) = value.cast::<Type>() {
        return Ok(name_of(element.get().0).to_owned());
    }
    if value.is_instance_of::<PyBool>() {
        return Ok(if value.extract()? { "true" } else { "false" }.to_owned());
    }
    let has_name = value.hasattr("name")? && value.hasattr("value")?;
    if has_name { value.getattr("name")?.extract() } else { value.str()?.extract() }
}

/// Returns the value of a property, or its default value if it was not set. Returns `None` if no option has this name.
pub fn get(py: Python<'_>, config: &Config, name: &str) -> PyResult<Option<Py<PyAny>>> {
    let option = SETTABLE.iter().find(|(known, _)| *known == name).map_or(name, |(_, option)| option);
    let performance = match config.performance {
        Performance::Latency => "LATENCY",
        Performance::Throughput => "THROUGHPUT",
    };
    let precision = match config.precision {
        Precision::Bf16 => "bf16",
        Precision::F16 => "f16",
        Precision::F32 => "f32",
    };
    let value = match option {
        "profiling" => config.profiling.into_py_any(py)?,
        "performance" => performance.into_py_any(py)?,
        "requests" => config.n_requests.unwrap_or(0).into_py_any(py)?,
        "threads" => config.n_threads.unwrap_or(0).into_py_any(py)?,
        "precision" => precision.into_py_any(py)?,
        "cache-folder" => config.cache_folder.as_ref().map_or(String::new(), |folder| folder.display().to_string()).into_py_any(py)?,
        "exclusive-requests" => config.exclusive_requests.into_py_any(py)?,
        "callback-thread" => config.callback_thread.into_py_any(py)?,
        "batch-size" => config.batch_size.into_py_any(py)?,
        "batch-timeout" => (config.batch_timeout.as_secs_f64() * 1e3).into_py_any(py)?,
        "batch-independent" => config.batch_independent.into_py_any(py)?,
        _ => match config.engine_options.get(name) {
            Some(value) => value.into_py_any(py)?,
            None => return Ok(None),
        },
    };
    Ok(Some(value))
}

/// Creates the exception for an unknown property.
pub fn unknown(name: &str, known: &[&str]) -> PyErr {
    NotFound::new_err(format!("no property {name}: expected one of {}", known.join(", ")))
}
