//! Errors of requests: a status, a stable code, and what was expected, what was found and what to do.

use serde::Serialize;

/// An error that a client receives as JSON: `{"error": {...}}`.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Error {
    /// HTTP status.
    #[serde(skip)]
    pub status: u16,
    /// Stable name of the kind of error, for programs.
    pub code: &'static str,
    /// The whole error as one text, for people.
    pub message: String,
    /// What was expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// What was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// `Result` with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with a text only.
    pub fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), expected: None, found: None, advice: None }
    }

    /// An error about a value: `what: expected ..., got ....  advice.`
    pub fn value(code: &'static str, what: &str, expected: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let (expected, found, advice) = (expected.into(), found.into(), advice.into());
        let mut message = format!("{what}: expected {expected}, got {found}");
        if !advice.is_empty() {
            message.push_str(". ");
            message.push_str(&advice);
        }
        let advice = Some(advice).filter(|advice| !advice.is_empty());
        Self { status: 400, code, message, expected: Some(expected), found: Some(found), advice }
    }

    /// The same error with another status.
    #[must_use]
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// An error of the server itself.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "internal", message)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
