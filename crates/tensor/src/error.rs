//! What can go wrong with a tensor: an opaque error with a kind for callers and a sentence for people.

use std::fmt;

/// The reason, for code that wants to react to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody else holds a lease that excludes this access.
    Busy,
    /// The element type is not the expected one.
    ElementType,
    /// Shape, strides or a region do not fit.
    Shape,
    /// The memory may not be written, or what another process offers is not safe to map.
    Access,
    /// There is not so much memory; the message names the number of bytes.
    OutOfMemory,
    /// The memory is a device's: the host reaches it by copying only.
    Remote,
    /// A descriptor, socket or mapping that the system refuses, or a peer that does not speak our language.
    Io,
    /// The combination is not offered.
    Unsupported,
}

/// An error of this crate, and of the crates of frames and vision over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// `Result` with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error; the message says what was expected and what came.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The reason.
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
