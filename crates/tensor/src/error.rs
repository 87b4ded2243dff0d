//! Errors of tensors: a kind for programs, and a message for people.

use std::fmt;

/// The kind of an error, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another lease excludes this access.
    Busy,
    /// The element type is not the expected one.
    ElementType,
    /// Shape, strides or a region do not fit.
    Shape,
    /// The memory is read-only, or memory of another process is not safe to map.
    Access,
    /// Out of memory; the message names the number of bytes.
    OutOfMemory,
    /// The memory belongs to a device: the host can only copy it.
    Remote,
    /// The system refused a descriptor, socket or mapping, or a peer sent something else than tensors.
    Io,
    /// The combination is not supported.
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
    /// Makes an error. The message says what was expected and what was found.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The kind.
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
