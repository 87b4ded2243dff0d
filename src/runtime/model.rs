//! A model before it is compiled: where it comes from, its ports, and what may still be changed of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Axes, Error, ErrorKind, PartialShape, Port, PortKey, Result};

/// What a model says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelInfo {
    /// Its inputs, in order.
    pub inputs: Vec<Port>,
    /// Its outputs, in order.
    pub outputs: Vec<Port>,
    /// Key and value pairs that the exporter left in the file.
    pub metadata: BTreeMap<String, String>,
}

/// Where a model comes from.
#[derive(Debug, Clone)]
pub enum ModelSource {
    /// A file, in any format that a device reads.
    File(PathBuf),
    /// Ports only: for devices that compute nothing.
    Ports,
}

/// A model that was read but is not compiled. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Model {
    source: Arc<ModelSource>,
    info: Arc<ModelInfo>,
}

impl Model {
    /// A model of a file; devices make it when they read one.
    pub fn from_file(path: &Path, info: ModelInfo) -> Self {
        Self { source: Arc::new(ModelSource::File(path.to_owned())), info: Arc::new(info) }
    }

    /// A model that is ports alone.
    pub fn from_ports(info: ModelInfo) -> Self {
        Self { source: Arc::new(ModelSource::Ports), info: Arc::new(info) }
    }

    /// Where it comes from.
    pub fn source(&self) -> &ModelSource {
        &self.source
    }

    /// Ports and metadata.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The same model with other input shapes, to be compiled for them. What is not named stays. The outputs' extents are
    /// open until it is compiled.
    ///
    /// ```
    /// # use roiflow::{devices, runtime::{Config, Dim, PartialShape}};
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// let core = devices::core();
    /// let model = core.read_model("assets/tiny/double.onnx")?; // x [?, 4]
    /// let model = model.reshape([("x", PartialShape::from([Dim::from(1..=8), 4.into()]))])?;
    /// let compiled = core.compile_model(&model, "CPU", &Config::default())?;
    /// assert_eq!(compiled.inputs()[0].shape.to_string(), "[1..8, 4]");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NotFound` if there is no such input; `Tensor` if the number of axes would change. Whether the model can be computed at
    /// these shapes is known when it is compiled.
    pub fn reshape<'a, K: Into<PortKey<'a>>>(&self, shapes: impl IntoIterator<Item = (K, PartialShape)>) -> Result<Self> {
        let mut info = (*self.info).clone();
        for (key, shape) in shapes {
            let port_idx = key.into().find("input", &info.inputs)?;
            let port = &mut info.inputs[port_idx];
            if shape.dims().len() != port.shape.dims().len() {
                let message = format!("reshape of input {port}: expected {} axes, got {shape}", port.shape.dims().len());
                return Err(Error::new(ErrorKind::Tensor, message));
            }
            port.shape = shape;
        }
        if let ModelSource::File(_) = *self.source {
            info.outputs.iter_mut().for_each(|port| port.shape = port.shape.all_open());
        }
        Ok(Self { source: self.source.clone(), info: Arc::new(info) })
    }

    /// The same model with the meaning of an input's axes said, for
    /// [`InferRequest::set_tensors`](super::InferRequest::set_tensors). Where nobody says it, the first axis is the batch.
    ///
    /// # Errors
    /// `NotFound` if there is no such input; `Tensor` if it has another number of axes.
    pub fn with_axes<'a>(&self, key: impl Into<PortKey<'a>>, axes: Axes) -> Result<Self> {
        let mut info = (*self.info).clone();
        let port_idx = key.into().find("input", &info.inputs)?;
        let port = &mut info.inputs[port_idx];
        axes.batch_axis(port.shape.dims().len()).map_err(|error| error.context(format!("input {port}")))?;
        port.axes = Some(axes);
        Ok(Self { source: self.source.clone(), info: Arc::new(info) })
    }

    /// What to call it in messages: the path, or the name of its first input.
    pub fn name(&self) -> String {
        match &*self.source {
            ModelSource::File(path) => path.display().to_string(),
            ModelSource::Ports => "model of ports".to_owned(),
        }
    }
}
