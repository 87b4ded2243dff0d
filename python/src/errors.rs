//! The exceptions of the package, and how errors of the runtime become exceptions.

use pyo3::create_exception;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::runtime::{self, ErrorKind};
use crate::tensor;

create_exception!(roiflow, Error, PyRuntimeError, "The base of all errors of roiflow.");
create_exception!(roiflow, Busy, Error, "The request, or a tensor that it needs, is in use. Wait for the run, or use another request.");
create_exception!(roiflow, Canceled, Error, "The run was canceled.");
create_exception!(roiflow, Stopped, Error, "The request was stopped: its last handle is gone, or the process ends.");
create_exception!(roiflow, OwnedByQueue, Error, "The request belongs to a queue, which sets its callback.");
create_exception!(roiflow, WouldDeadlock, Error, "The call would wait for itself: a callback waits for its own request or queue.");
create_exception!(roiflow, NotFound, Error, "There is no such port, device or property.");
create_exception!(roiflow, TensorError, Error, "Element type, shape or memory of a tensor do not match.");
create_exception!(roiflow, OutOfMemory, Error, "There is no memory for a tensor. The message names the number of bytes.");
create_exception!(roiflow, ConfigError, Error, "A property or its value is invalid.");
create_exception!(roiflow, ReadError, Error, "A file cannot be read.");
create_exception!(roiflow, ModelError, Error, "The file is not a model, or the device cannot run it.");
create_exception!(roiflow, Unsupported, Error, "The device does not support the operation, or is missing on this machine.");
create_exception!(roiflow, DeviceError, Error, "The device failed during a run.");
create_exception!(roiflow, Panicked, Error, "A part of roiflow failed in a way that it did not foresee. Please report it.");

/// Converts an error to an exception.
pub fn raise(error: runtime::Error) -> PyErr {
    let message = error.to_string();
    match error.kind() {
        ErrorKind::Busy => Busy::new_err(with_word("busy", message)),
        ErrorKind::Canceled => Canceled::new_err(with_word("cancel", message)),
        ErrorKind::Stopped => Stopped::new_err(message),
        ErrorKind::OwnedByQueue => OwnedByQueue::new_err(message),
        ErrorKind::WouldDeadlock => WouldDeadlock::new_err(message),
        ErrorKind::NotFound => NotFound::new_err(message),
        ErrorKind::Tensor | ErrorKind::Conflict => TensorError::new_err(message),
        ErrorKind::OutOfMemory => OutOfMemory::new_err(message),
        ErrorKind::Config => ConfigError::new_err(message),
        ErrorKind::Io => ReadError::new_err(message),
        ErrorKind::Model => ModelError::new_err(message),
        ErrorKind::Unsupported => Unsupported::new_err(message),
        ErrorKind::Device | ErrorKind::Unavailable | ErrorKind::Timeout => DeviceError::new_err(message),
        ErrorKind::Panic => Panicked::new_err(message),
        _ => Error::new_err(message),
    }
}

/// Adds `word` to the message, because programs written for OpenVINO search the message for this word.
fn with_word(word: &str, message: String) -> String {
    if message.to_lowercase().contains(word) { message } else { format!("{word}: {message}") }
}

/// Turns errors of roiflow's crates into exceptions.
pub trait OrRaise<T> {
    /// Returns the value, or raises the exception of the error.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for runtime::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(raise)
    }
}

impl<T> OrRaise<T> for tensor::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| raise(error.into()))
    }
}
