//! Where a model comes from: a file, bytes in memory, or a place that a device knows.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a model comes from. A path converts into it, so [`Core::read_model`](super::Core::read_model) takes one as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A file, in any format that a device reads. What it refers to lies beside it.
    File(PathBuf),
    /// The bytes of such a file.
    Bytes(ModelBytes),
    /// A model that lies elsewhere, by a name or URL that a device knows: on a server that computes, in the memory of an accelerator.
    /// None of the devices here knows any.
    Remote(Arc<str>),
    /// Ports only: for devices that compute nothing.
    Ports,
}

/// The bytes of a model file, and those of its weights where the format has them in a second file. Cheap to clone.
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
    /// The bytes of a file that holds all of the model: an .onnx file without files of weights, or the .xml file of OpenVINO IR, see
    /// [`ModelBytes::with_weights`].
    pub fn new(model: impl Into<Arc<[u8]>>) -> Self {
        Self { name: None, model: model.into(), weights: None }
    }

    /// What to call the model in messages. Without it they say how many bytes it has.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// The bytes of the .bin file that belongs to an .xml file of OpenVINO IR.
    #[must_use]
    pub fn with_weights(self, weights: impl Into<Arc<[u8]>>) -> Self {
        Self { weights: Some(weights.into()), ..self }
    }

    /// Of the model's file.
    pub fn model(&self) -> &[u8] {
        &self.model
    }

    /// Of the file of weights, if there is one.
    pub fn weights(&self) -> Option<&[u8]> {
        self.weights.as_deref()
    }
}

/// Without the bytes.
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

/// What to call the model in messages.
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

impl<P: AsRef<Path> + ?Sized> From<&P> for ModelSource {
    fn from(path: &P) -> Self {
        Self::File(path.as_ref().to_owned())
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl From<String> for ModelSource {
    fn from(path: String) -> Self {
        Self::File(path.into())
    }
}

impl From<ModelBytes> for ModelSource {
    fn from(bytes: ModelBytes) -> Self {
        Self::Bytes(bytes)
    }
}
