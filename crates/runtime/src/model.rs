//! A model before compilation: its source, its ports, and methods that change the ports.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Axes, Dim, Error, ErrorKind, ModelSource, PartialShape, Port, PortKey, Result};

/// The ports and metadata of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct ModelInfo {
    /// The inputs, in order.
    pub inputs: Vec<Port>,
    /// The outputs, in order.
    pub outputs: Vec<Port>,
    /// The metadata of the file, as pairs of key and value.
    pub metadata: BTreeMap<String, String>,
}

/// A model that was read but not compiled. Clones share its data.
#[derive(Debug, Clone)]
pub struct Model {
    source: Arc<ModelSource>,
    info: Arc<ModelInfo>,
    variables: Arc<[VariablePorts]>,
    is_reshaped: bool,
}

/// The ports of a variable: a run writes the output, and the next run reads that value as the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VariablePorts {
    /// Index of the input in [`ModelInfo::inputs`].
    pub input_idx: usize,
    /// Index of the output in [`ModelInfo::outputs`].
    pub output_idx: usize,
}

impl Model {
    /// Creates a model that was read from `source`.
    pub(super) fn new(source: ModelSource, info: ModelInfo) -> Self {
        Self { source: Arc::new(source), info: Arc::new(info), variables: Arc::default(), is_reshaped: false }
    }

    /// Creates a model that has ports but no source.
    pub fn from_ports(info: ModelInfo) -> Self {
        Self::new(ModelSource::Ports, info)
    }

    /// Returns the source of the model.
    pub fn source(&self) -> &ModelSource {
        &self.source
    }

    /// Returns the ports and metadata. Ports that belong to variables are included.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Returns the model with the given input shapes. Inputs that are not named in `shapes` keep their shape. Output shapes are dynamic
    /// until the model is compiled.
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
    /// Returns `NotFound` if there is no such input. Returns `Tensor` if the number of axes differs, or if a range is empty. Does not check
    /// whether the model can be computed with these shapes: if it cannot, a later compilation fails.
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

    /// Returns whether [`Model::reshape`] was called, so that the input shapes may differ from the shapes in the file.
    pub fn is_reshaped(&self) -> bool {
        self.is_reshaped
    }

    /// Returns the model with dynamic first axes: if the first axis of an input has the extent 1, this axis becomes dynamic, from 1 to
    /// `max`.
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
            // This model has no file, so no engine infers its output shapes. Make their first axes dynamic, as for the inputs.
            let info = Arc::make_mut(&mut model.info);
            info.outputs.iter_mut().try_for_each(|port| open(port).map(|shape| port.shape = shape))?;
        }
        Ok(model)
    }

    /// Returns the model with names for the axes of an input. [`InferRequest::set_tensors`](super::InferRequest::set_tensors) stacks
    /// tensors along the axis that is named as the batch. If no names are set, it uses the first axis.
    ///
    /// # Errors
    /// Returns `NotFound` if there is no such input; `Tensor` if `axes` has a different number of axes than the input.
    pub fn with_axes<'a>(&self, key: impl Into<PortKey<'a>>, axes: Axes) -> Result<Self> {
        let mut info = (*self.info).clone();
        let port_idx = key.into().find("input", &info.inputs)?;
        let port = &mut info.inputs[port_idx];
        axes.batch_axis(port.shape.dims().len()).map_err(|error| error.context(format!("input {port}")))?;
        port.axes = Some(axes);
        Ok(Self { info: Arc::new(info), ..self.clone() })
    }

    /// Returns a model in which pairs of an input and an output are variables. A request keeps the output of a run and uses it as the input
    /// of its next run. The compiled model no longer has these two ports. [`InferRequest::query_state`] reads, sets and resets variables.
    /// Use this method for recurrent models whose state is exported as inputs and outputs.
    ///
    /// The initial value of a variable is zero. A dynamic extent is initially 0, which many models cannot compute. So reshape the model
    /// first, or set the state before the first run.
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
    /// Returns `NotFound` if there is no such port. Returns `Tensor` if the two ports of a pair differ in element type or number of axes,
    /// or if a port already belongs to a variable.
    pub fn make_stateful<'a, I: Into<PortKey<'a>>, O: Into<PortKey<'a>>>(&self, pairs: impl IntoIterator<Item = (I, O)>) -> Result<Self> {
        let mut variables = self.variables.to_vec();
        for (input, output) in pairs {
            let input_idx = input.into().find("input", &self.info.inputs)?;
            let output_idx = output.into().find("output", &self.info.outputs)?;
            let (from, to) = (&self.info.outputs[output_idx], &self.info.inputs[input_idx]);
            if from.element != to.element || from.shape.dims().len() != to.shape.dims().len() {
                let message = format!("variable of input {to} and output {from}: expected the same element type and number of axes");
                return Err(Error::new(ErrorKind::Tensor, message));
            }
            if variables.iter().any(|known| known.input_idx == input_idx || known.output_idx == output_idx) {
                return Err(Error::new(
                    ErrorKind::Tensor,
                    format!("variable of input {to} and output {from}: one of these ports is already a variable"),
                ));
            }
            variables.push(VariablePorts { input_idx, output_idx });
        }
        Ok(Self { variables: variables.into(), ..self.clone() })
    }

    /// Returns the variables that [`Model::make_stateful`] defined.
    pub fn variables(&self) -> &[VariablePorts] {
        &self.variables
    }

    /// Returns the name of the model for messages: its path, or the name of its source.
    pub fn name(&self) -> String {
        self.source.to_string()
    }
}
