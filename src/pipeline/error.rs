//! Errors of pipelines.

use std::fmt;

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The user has made a mistake, such as an unknown parameter or an invalid description.
    Usage,
    /// The usage is correct, but an operation failed: a file is missing, or a stream is broken, for example.
    Failed,
    /// The operation may succeed later: an inference server does not answer, or a device takes too long.
    Unavailable,
    /// The reader of standard output has closed the pipe. This is not a failure.
    Closed,
}

/// A message for the user, with its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// `Result` with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error of the kind [`ErrorKind::Usage`].
    pub fn usage(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Usage, message: message.into() }
    }

    /// Creates an error of the kind [`ErrorKind::Failed`].
    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Failed, message: message.into() }
    }

    /// Creates an error of the kind [`ErrorKind::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Unavailable, message: message.into() }
    }

    /// Returns the error of a closed standard output.
    pub(super) fn closed() -> Self {
        Self { kind: ErrorKind::Closed, message: "the reader of standard output closed the pipe".to_owned() }
    }

    /// Returns the kind of an error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the error with these credentials removed.
    pub(super) fn scrubbed(self, secrets: &crate::redaction::Secrets) -> Self {
        Self { message: secrets.scrub(&self.message).into_owned(), ..self }
    }

    pub(super) fn context(self, what: impl fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
