//! Errors of the runtime. Each error has a kind for programs and a message for people.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::tensor;

/// The kind of an error, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request, or a tensor that the request needs, is in use.
    Busy,
    /// The run was canceled.
    Canceled,
    /// The request was stopped, because its last handle was dropped.
    Stopped,
    /// The request belongs to a queue. Only the queue may start it and set its callback.
    OwnedByQueue,
    /// The wait would never end, for example because a callback waits for its own request.
    WouldDeadlock,
    /// There is no such port, device or property.
    NotFound,
    /// The element type or shape of a tensor does not match the port.
    Tensor,
    /// Tensors of one request share memory in a way that no run allows. In contrast to [`ErrorKind::Busy`], waiting does not help.
    Conflict,
    /// The system is out of memory. The message contains the number of bytes.
    OutOfMemory,
    /// A property or option is invalid.
    Config,
    /// A file cannot be read.
    Io,
    /// The file is not a model, or the device cannot run the model.
    Model,
    /// The device does not support the operation.
    Unsupported,
    /// The device failed during a run.
    Device,
    /// The device cannot be reached, or cannot run the model at present, for example because no inference server is up. The same call may
    /// succeed later.
    Unavailable,
    /// The device did not complete the run in time. The same call may succeed later.
    Timeout,
    /// A step or a callback panicked.
    Panic,
}

impl ErrorKind {
    /// Returns whether the same call may succeed later: when another run or lease has ended ([`ErrorKind::Busy`]), or when the device has
    /// recovered ([`ErrorKind::Unavailable`], [`ErrorKind::Timeout`]).
    pub fn is_transient(self) -> bool {
        self == Self::Busy || self.is_outage()
    }

    /// Returns whether the device was unavailable or too slow, while model and inputs may be right: [`ErrorKind::Unavailable`] or
    /// [`ErrorKind::Timeout`].
    pub fn is_outage(self) -> bool {
        matches!(self, Self::Unavailable | Self::Timeout)
    }
}

/// An error of the runtime or a device. Every thread that waits for a failed run gets a clone.
///
/// Programs use [`Error::kind`]. If the error concerns a port, they can also use [`Error::port`], [`Error::expected`] and [`Error::got`].
/// The message, for people, also contains the port, the expected value and the actual value.
///
/// ```
/// # use roiflow::{devices, runtime::ErrorKind, tensor::Tensor};
/// # fn main() -> roiflow::runtime::Result<()> {
/// # let model = devices::core().compile("assets/tiny/add.onnx", "CPU")?;
/// # let request = model.create_infer_request()?;
/// let error = request.set_tensor("a", &Tensor::from_slice([4], &[0.0_f32; 4])?).unwrap_err();
/// assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Tensor, false));
/// assert_eq!((error.port(), error.expected(), error.got()), (Some("a"), Some("[1, 4] f32"), Some("[4] f32")));
/// assert_eq!(error.to_string(), "input `a`: expected [1, 4] f32, got [4] f32");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    port: Option<Box<str>>,
    expected_and_got: Option<(Box<str>, Box<str>)>,
}

/// `Result` with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error. The message should say what was expected, what was found, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), source: None, port: None, expected_and_got: None }))
    }

    /// Adds the name of the port that the error concerns. The message is unchanged.
    pub fn with_port(self, name: &str) -> Self {
        Self(Arc::new(Inner { port: Some(name.into()), ..self.into_inner() }))
    }

    /// Adds the expected and the actual value as text, for [`Error::expected`] and [`Error::got`]. The message is unchanged.
    pub fn with_expected(self, expected: impl fmt::Display, got: impl fmt::Display) -> Self {
        let expected_and_got = Some((expected.to_string().into(), got.to_string().into()));
        Self(Arc::new(Inner { expected_and_got, ..self.into_inner() }))
    }

    /// Creates an error with the underlying error that caused it.
    pub fn with_source(kind: ErrorKind, message: impl Into<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source: Box<dyn std::error::Error + Send + Sync> = source.into();
        Self(Arc::new(Inner { source: Some(source.into()), ..Self::new(kind, message).into_inner() }))
    }

    /// Creates an error of the kind [`ErrorKind::Panic`] from a caught panic. `place` names the code that panicked.
    pub fn of_panic(place: &str, panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::new(ErrorKind::Panic, format!("{place} panicked: {}", said.unwrap_or("(no message)")))
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the same call may succeed later, see [`ErrorKind::is_transient`].
    pub fn is_transient(&self) -> bool {
        self.0.kind.is_transient()
    }

    /// Returns the name of the input, output or variable that the error concerns; `None` if it concerns no port.
    pub fn port(&self) -> Option<&str> {
        self.0.port.as_deref()
    }

    /// Returns the expected value, for example `[1, 4] f32`; `None` if the error does not compare two values.
    pub fn expected(&self) -> Option<&str> {
        self.0.expected_and_got.as_ref().map(|(expected, _)| &**expected)
    }

    /// Returns the actual value, which differs from [`Error::expected`]; `None` if the error does not compare two values.
    pub fn got(&self) -> Option<&str> {
        self.0.expected_and_got.as_ref().map(|(_, got)| &**got)
    }

    fn into_inner(self) -> Inner {
        Arc::try_unwrap(self.0).unwrap_or_else(|shared| Inner {
            kind: shared.kind,
            message: shared.message.clone(),
            source: shared.source.clone(),
            port: shared.port.clone(),
            expected_and_got: shared.expected_and_got.clone(),
        })
    }

    /// Puts the object that the error concerns in front of the message, for example "input `data`", a path or a device.
    pub fn context(self, what: impl fmt::Display) -> Self {
        let message = format!("{what}: {}", self.0.message);
        Self(Arc::new(Inner { message, ..self.into_inner() }))
    }
}

/// Runs `action`, which calls code of the user or of a device. If it panics, returns an error that names `place`.
pub(crate) fn catch<R>(place: fmt::Arguments<'_>, action: impl FnOnce() -> R) -> Result<R> {
    catch_unwind(AssertUnwindSafe(action)).map_err(|panic| {
        let error = Error::of_panic(&place.to_string(), &*panic);
        drop_panic(panic);
        error
    })
}

/// Drops the payload of a panic. The payload may be a value of any type, so its drop may panic as well.
pub(crate) fn drop_panic(panic: Box<dyn Any + Send>) {
    let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) else { return };
    let is_text = again.is::<&'static str>() || again.is::<String>();
    if !is_text {
        // The drop of this second payload may panic again, and so on without end. So the second payload is leaked.
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
