//! Sources of models: a file, bytes in memory, or a name that a device knows.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The source of a model. A path converts into a `ModelSource`, so [`Core::read_model`](super::Core::read_model) accepts a path directly. So
/// does the address of a model on an inference server, such as `grpc://host:8001/model`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A model file in any format that a device reads. External data files must be in the same folder.
    File(PathBuf),
    /// The bytes of a model file.
    Bytes(ModelBytes),
    /// A name or URL that a device knows, for example a model on an inference server. The device `REMOTE` knows URLs with the schemes
    /// `grpc`, `grpcs`, `http` and `https`, with commas between several servers, and options such as `,timeout=500` after them.
    Remote(Arc<str>),
    /// No model: only ports, for devices that compute nothing, such as the NULL device.
    Ports,
}

/// The bytes of a model file, and the bytes of its weights file if the format has one. Clones share the bytes.
///
/// ```
/// # use roiflow::{devices, runtime::{Config, ModelBytes}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let core = devices::core();
/// let model = core.read_model(ModelBytes::new(std::fs::read("assets/tiny/double.onnx")?).named("double"))?;
/// let model = core.compile_model(&model, "CPU", &Config::default())?;
/// assert_eq!(model.name(), "double");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ModelBytes {
    name: Option<Arc<str>>,
    model: Arc<[u8]>,
    weights: Option<Arc<[u8]>>,
}

impl ModelBytes {
    /// Creates a model from the bytes of an .onnx file without external weights, or from the bytes of the .xml file of an OpenVINO IR. An
    /// IR also needs [`ModelBytes::with_weights`].
    pub fn new(model: impl Into<Arc<[u8]>>) -> Self {
        Self { name: None, model: model.into(), weights: None }
    }

    /// Sets the name of the model in messages. Without a name, messages call it "model of N bytes".
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Sets the bytes of the .bin file of an OpenVINO IR.
    #[must_use]
    pub fn with_weights(self, weights: impl Into<Arc<[u8]>>) -> Self {
        Self { weights: Some(weights.into()), ..self }
    }

    /// Returns the bytes of the model file.
    pub fn model(&self) -> &[u8] {
        &self.model
    }

    /// Returns the bytes of the weights file, if there is one.
    pub fn weights(&self) -> Option<&[u8]> {
        self.weights.as_deref()
    }
}

/// Prints the name or the number of bytes, but not the bytes.
impl fmt::Debug for ModelBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelBytes({self})")
    }
}

impl fmt::Display for ModelBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "model of {} bytes", self.model.len()),
        }
    }
}

/// Writes the name of the model for messages.
impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Remote(name) => f.write_str(name),
            Self::Ports => f.write_str("model of ports"),
        }
    }
}

impl ModelSource {
    /// Returns whether this text is the address of a model on an inference server.
    pub fn is_address(text: &str) -> bool {
        ["grpc://", "grpcs://", "http://", "https://"].iter().any(|scheme| text.starts_with(scheme))
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for ModelSource {
    fn from(path: &P) -> Self {
        path.as_ref().to_owned().into()
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> Self {
        match path.to_str().filter(|text| Self::is_address(text)) {
            Some(address) => Self::Remote(address.into()),
            None => Self::File(path),
        }
    }
}

impl From<String> for ModelSource {
    fn from(path: String) -> Self {
        PathBuf::from(path).into()
    }
}

impl From<ModelBytes> for ModelSource {
    fn from(bytes: ModelBytes) -> Self {
        Self::Bytes(bytes)
    }
}
