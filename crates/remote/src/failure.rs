//! A failed call: the kind of its error, whether the server may have computed it, and whether the server or the connection caused it.

use std::fmt;

use crate::runtime::{Error, ErrorKind};

/// Why a call failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    /// The expected and the actual situation, and what to do.
    pub(crate) message: String,
    /// Whether the server certainly computed nothing, so that another server may get the call.
    pub(crate) is_uncomputed: bool,
    pub(crate) blames: Blame,
}

/// What caused a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blame {
    /// Neither server nor connection: the call itself was wrong, or was canceled.
    Nothing,
    /// The server: it was too slow, overloaded, or had an internal error. After several such calls in a row, it is ejected.
    Server,
    /// The connection: it cannot be used any more.
    Connection,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), is_uncomputed: false, blames: Blame::Nothing }
    }

    /// The server cannot be reached, or cannot run the model now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { is_uncomputed: true, blames: Blame::Server, ..Self::new(ErrorKind::Unavailable, message) }
    }

    /// The connection ended while the server may have been computing.
    pub(crate) fn broken(message: impl fmt::Display) -> Self {
        let message = format!("the connection ended before the results arrived: {message}");
        Self { blames: Blame::Connection, ..Self::new(ErrorKind::Unavailable, message) }
    }

    pub(crate) fn timeout(message: impl Into<String>) -> Self {
        Self { blames: Blame::Server, ..Self::new(ErrorKind::Timeout, message) }
    }

    pub(crate) fn canceled() -> Self {
        Self::new(ErrorKind::Canceled, "the run was canceled")
    }

    /// The server sent something that the protocol does not allow.
    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self { blames: Blame::Server, ..Self::new(ErrorKind::Device, message) }
    }

    /// Adds the address of the server in front of the message.
    pub(crate) fn at(self, server: &impl fmt::Display) -> Self {
        Self { message: format!("{server}: {}", self.message), ..self }
    }

    /// Returns the error of a run or a compilation.
    pub(crate) fn into_error(self) -> Error {
        Error::new(self.kind, format!("device {}: {}", super::NAME, self.message))
    }
}

/// Returns the failure for a status of gRPC other than `OK`. `message` is the text of the server.
pub(crate) fn of_grpc_status(code: u32, message: &str) -> Failure {
    let message = super::one_line(message);
    let fail = |kind, blames, name: &str, what_to_do: &str| {
        let said = if message.is_empty() { String::new() } else { format!(": {message}") };
        let what_to_do = if what_to_do.is_empty() { String::new() } else { format!(". {what_to_do}") };
        Failure { blames, ..Failure::new(kind, format!("the server answered {name}{said}{what_to_do}")) }
    };
    match code {
        1 => fail(ErrorKind::Device, Blame::Server, "CANCELLED", ""),
        3 => fail(
            ErrorKind::Tensor,
            Blame::Nothing,
            "INVALID_ARGUMENT",
            "Check the shapes and types of the inputs with `roiflow inspect URL`",
        ),
        4 => Failure::timeout(format!("the server answered DEADLINE_EXCEEDED: {message}")),
        5 => fail(ErrorKind::NotFound, Blame::Nothing, "NOT_FOUND", "Check the model and its version in remote.url"),
        7 => fail(ErrorKind::Config, Blame::Nothing, "PERMISSION_DENIED", "Check the token in the variable that remote.token-env names"),
        8 => fail(ErrorKind::Device, Blame::Server, "RESOURCE_EXHAUSTED", "Reduce `nireq`, or add a server to remote.url"),
        12 => fail(ErrorKind::Unsupported, Blame::Nothing, "UNIMPLEMENTED", "Use a server that speaks KServe v2"),
        // The server refused the call before it computed anything.
        14 => Failure { is_uncomputed: true, ..fail(ErrorKind::Unavailable, Blame::Server, "UNAVAILABLE", "") },
        16 => fail(ErrorKind::Config, Blame::Nothing, "UNAUTHENTICATED", "Set remote.token-env to the variable with the token"),
        13 => fail(ErrorKind::Device, Blame::Server, "INTERNAL", ""),
        other => fail(ErrorKind::Device, Blame::Server, &format!("status {other}"), ""),
    }
}

/// Returns the failure for a status of HTTP other than 200. `message` is the text of the server.
pub(crate) fn of_http_status(status: u16, message: &str) -> Failure {
    let said = super::one_line(message);
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    let fail = |kind, blames, what_to_do: &str| {
        let what_to_do = if what_to_do.is_empty() { String::new() } else { format!(". {what_to_do}") };
        Failure { blames, ..Failure::new(kind, format!("the server answered {status}{said}{what_to_do}")) }
    };
    match status {
        400 | 422 => fail(ErrorKind::Tensor, Blame::Nothing, "Check the shapes and types of the inputs with `roiflow inspect URL`"),
        401 | 403 => fail(ErrorKind::Config, Blame::Nothing, "Set remote.token-env to the variable with the token"),
        404 => fail(ErrorKind::NotFound, Blame::Nothing, "Check the model and its version in remote.url"),
        408 | 504 => Failure::timeout(format!("the server answered {status}{said}")),
        429 | 502 | 503 => Failure { is_uncomputed: status != 502, ..fail(ErrorKind::Unavailable, Blame::Server, "") },
        _ => fail(ErrorKind::Device, Blame::Server, ""),
    }
}
