//! What can go wrong between a description and the end of a stream.

use std::fmt;

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// What was asked makes no sense: an unknown parameter, a description with a mistake.
    Usage,
    /// What was asked can't be done: a missing file, a stream that breaks.
    Failed,
    /// The reader of standard output closed it, which is no failure of the run.
    Closed,
}

/// A sentence for people, and whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// `Result` with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of what was asked.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Usage, message: message.into() }
    }

    /// An error of what was done.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Failed, message: message.into() }
    }

    /// The reader of standard output closed it.
    pub(super) fn closed() -> Self {
        Self { kind: ErrorKind::Closed, message: "the reader of standard output closed it".to_owned() }
    }

    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
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
