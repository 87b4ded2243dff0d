//! Errors of tensors. Each error has a kind for programs and a message for people.

use std::fmt;

/// The kind of an error, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A lease of another guard, or of a running request, excludes this access.
    Busy,
    /// The element type is not the expected type.
    ElementType,
    /// A shape, stride or region does not fit.
    Shape,
    /// The memory is read-only, or it belongs to another process and mapping it would not be safe.
    Access,
    /// No memory is left. The message contains the number of bytes.
    OutOfMemory,
    /// The memory belongs to a device, so the host can only copy it.
    Remote,
    /// The system refused a descriptor, socket or mapping, or another process sent data that is not a tensor.
    Io,
    /// The operation is not supported for this tensor.
    Unsupported,
}

/// The error type of this crate and of `roiflow-vision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// `Result` with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error. The message should say what was expected and what was found instead.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
