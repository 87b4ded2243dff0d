//! Errors of the runtime: a kind for programs, and a message for people.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::tensor;

/// The kind of an error, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request, or a tensor that it needs, is in use.
    Busy,
    /// The run was canceled.
    Canceled,
    /// The request was stopped: its last handle is gone.
    Stopped,
    /// The request belongs to a queue, which alone starts it and is called back by it.
    OwnedByQueue,
    /// The wait could never end: a callback waits for its own request.
    WouldDeadlock,
    /// No such port, device or property.
    NotFound,
    /// Element type, shape or tensor do not match the port.
    Tensor,
    /// Out of memory; the message names the number of bytes.
    OutOfMemory,
    /// An invalid property or option.
    Config,
    /// A file cannot be read.
    Io,
    /// The file is not a model, or the device cannot run it.
    Model,
    /// The device does not support it.
    Unsupported,
    /// The device failed during a run.
    Device,
    /// A step or a callback panicked.
    Panic,
}

/// An error of the runtime or a device. Every waiter of a failed run gets a clone.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// `Result` with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error; the message says what was expected, what came, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), source: None }))
    }

    /// The same with the error that caused it.
    pub fn with_source(kind: ErrorKind, message: impl Into<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), source: Some(source.into()) }))
    }

    /// What a panic said that was caught at this place; of the kind [`ErrorKind::Panic`].
    pub fn of_panic(place: &str, panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::new(ErrorKind::Panic, format!("{place} panicked: {}", said.unwrap_or("(no message)")))
    }

    /// The reason.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The same error, saying first what it happened to: "input `data`", a path, a device.
    pub fn context(self, what: impl fmt::Display) -> Self {
        let message = format!("{what}: {}", self.0.message);
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Self(Arc::new(Inner { message, ..inner })),
            Err(shared) => Self(Arc::new(Inner { kind: shared.kind, message, source: None })),
        }
    }
}

/// Runs code of the user's or of a device; its panic becomes an error that names `place`.
pub(crate) fn catch<R>(place: fmt::Arguments<'_>, action: impl FnOnce() -> R) -> Result<R> {
    catch_unwind(AssertUnwindSafe(action)).map_err(|panic| {
        let error = Error::of_panic(&place.to_string(), &*panic);
        drop_panic(panic);
        error
    })
}

/// Drops what a panic carried. That may be any value, and its drop may panic, too.
pub(crate) fn drop_panic(panic: Box<dyn Any + Send>) {
    let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) else { return };
    let is_text = again.is::<&'static str>() || again.is::<String>();
    if !is_text {
        // Its drop may panic as well, and so on without end.
        std::mem::forget(again);
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)?;
        match &self.0.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<tensor::Error> for Error {
    fn from(error: tensor::Error) -> Self {
        let kind = match error.kind() {
            tensor::ErrorKind::Busy => ErrorKind::Busy,
            tensor::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
            tensor::ErrorKind::Unsupported => ErrorKind::Unsupported,
            tensor::ErrorKind::Io => ErrorKind::Io,
            _ => ErrorKind::Tensor,
        };
        Self::new(kind, error.to_string())
    }
}
