//! A model before it is compiled: where it comes from, its ports, and what may still be changed of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Axes, Dim, Error, ErrorKind, ModelSource, PartialShape, Port, PortKey, Result};

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

/// A model that was read but is not compiled. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Model {
    source: Arc<ModelSource>,
    info: Arc<ModelInfo>,
    variables: Arc<[VariablePorts]>,
    is_reshaped: bool,
}

/// An output that is the input of the next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VariablePorts {
    /// Index among the inputs of [`ModelInfo`].
    pub input_idx: usize,
    /// Index among its outputs.
    pub output_idx: usize,
}

impl Model {
    /// A model that was read from `source`.
    pub(super) fn new(source: ModelSource, info: ModelInfo) -> Self {
        Self { source: Arc::new(source), info: Arc::new(info), variables: Arc::default(), is_reshaped: false }
    }

    /// A model that is ports alone.
    pub fn from_ports(info: ModelInfo) -> Self {
        Self::new(ModelSource::Ports, info)
    }

    /// Where it comes from.
    pub fn source(&self) -> &ModelSource {
        &self.source
    }

    /// Ports and metadata; the ports of variables are among them.
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
    /// `NotFound` if there is no such input; `Tensor` if the number of axes would change, or bounds admit no extent. Whether the model can be computed at
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
            shape.check().map_err(|error| error.context(format!("reshape of input {port}")))?;
            port.shape = shape;
        }
        if *self.source != ModelSource::Ports {
            info.outputs.iter_mut().for_each(|port| port.shape = port.shape.all_open());
        }
        Ok(Self { info: Arc::new(info), is_reshaped: true, ..self.clone() })
    }

    /// Whether input shapes may be others than those of the file.
    pub fn is_reshaped(&self) -> bool {
        self.is_reshaped
    }

    /// The same model with the first axis open from 1 to `max` wherever it is fixed at 1: a batch.
    pub(super) fn with_open_batch(&self, max: usize) -> Result<Self> {
        let open = |port: &Port| {
            let dims = port.shape.dims().iter().enumerate().map(|(axis, dim)| match (axis, dim) {
                (0, Dim::Fixed(1)) => Dim::Range { min: 1, max },
                (_, dim) => *dim,
            });
            PartialShape::new(dims.collect())
        };
        let inputs = self.info.inputs.iter().enumerate().map(|(input_idx, port)| Ok((input_idx, open(port)?)));
        let mut model = self.reshape(inputs.collect::<Result<Vec<_>>>()?)?;
        if let ModelSource::Ports = *self.source {
            // Nobody computes their shapes.
            let info = Arc::make_mut(&mut model.info);
            info.outputs.iter_mut().try_for_each(|port| open(port).map(|shape| port.shape = shape))?;
        }
        Ok(model)
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
        Ok(Self { info: Arc::new(info), ..self.clone() })
    }

    /// The same model with pairs of an input and an output made variables: what a run writes to the output is the input of the
    /// request's next run. Both disappear from the ports of the compiled model; [`InferRequest::query_state`] reads, sets and
    /// resets them. For recurrent models that were exported with their state as inputs and outputs.
    ///
    /// A variable begins as zeros; where its shape is open, with an extent of 0, so reshape the model first or set the state.
    ///
    /// ```
    /// # use roiflow::{devices, runtime::Config};
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// let core = devices::core();
    /// let model = core.read_model("assets/tiny/sum.onnx")?; // x, total_in [1, 4] -> y = total_out = x + total_in
    /// let model = core.compile_model(&model.make_stateful([("total_in", "total_out")])?, "CPU", &Config::default())?;
    /// let request = model.create_infer_request()?;
    /// for expected in [1.0, 2.0, 3.0] {
    ///     request.infer(&ndarray::arr2(&[[1.0_f32; 4]]))?; // `x` is the only input now
    ///     assert_eq!(request.output_tensor(())?.view::<f32>()?[[0, 0]], expected);
    /// }
    /// request.reset_state()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`InferRequest::query_state`]: super::InferRequest::query_state
    ///
    /// # Errors
    /// `NotFound` if there is no such port; `Tensor` if the two differ in element type or number of axes, or one of them is a
    /// variable already.
    pub fn make_stateful<'a, I: Into<PortKey<'a>>, O: Into<PortKey<'a>>>(&self, pairs: impl IntoIterator<Item = (I, O)>) -> Result<Self> {
        let mut variables = self.variables.to_vec();
        for (input, output) in pairs {
            let input_idx = input.into().find("input", &self.info.inputs)?;
            let output_idx = output.into().find("output", &self.info.outputs)?;
            let (from, to) = (&self.info.outputs[output_idx], &self.info.inputs[input_idx]);
            if from.element != to.element || from.shape.dims().len() != to.shape.dims().len() {
                let message = format!("variable of input {to} and output {from}: expected one element type and number of axes");
                return Err(Error::new(ErrorKind::Tensor, message));
            }
            if variables.iter().any(|known| known.input_idx == input_idx || known.output_idx == output_idx) {
                return Err(Error::new(
                    ErrorKind::Tensor,
                    format!("variable of input {to} and output {from}: one of them is a variable already"),
                ));
            }
            variables.push(VariablePorts { input_idx, output_idx });
        }
        Ok(Self { variables: variables.into(), ..self.clone() })
    }

    /// What [`Model::make_stateful`] made variables.
    pub fn variables(&self) -> &[VariablePorts] {
        &self.variables
    }

    /// What to call it in messages: the path, or the name that its source has.
    pub fn name(&self) -> String {
        self.source.to_string()
    }
}
