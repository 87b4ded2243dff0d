//! Code that the devices share. It passes the tensors of a run to an engine, and a compiled model to the runtime. The engines take pointers
//! to dense memory, and return errors as text.
//!
//! This module calls no engine, so it has no `unsafe` code. Each device creates and uses the objects of its engine itself.

use std::ffi::CString;
use std::sync::Arc;

use super::exit;
use crate::runtime::device::{DeviceModel, DeviceRequest, DeviceStep};
use crate::runtime::io::DeviceIo;
use crate::runtime::{Error, ErrorKind, Ignored, ModelInfo, ModelSource, Result};
use crate::tensor::{ElementType, Shape, Tensor};

/// The result of an engine call. The error is the message of the engine.
pub type EngineResult<T> = Result<T, String>;

/// Converts text to a C string for an engine.
///
/// # Errors
/// Returns an error if the text contains a zero byte.
pub fn c_string(text: &str) -> EngineResult<CString> {
    CString::new(text).map_err(|_| format!("the text `{}` contains a zero byte, which engines do not accept", text.escape_debug()))
}

/// Shortens an engine's message and puts it on one line, because some engines print the whole model.
pub fn one_line(message: &str) -> String {
    const MAX_CHARACTERS: usize = 1000;
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}

/// Returns a function that converts an engine's message to the error of a run.
pub fn device_error(device: &str) -> impl Fn(String) -> Error {
    move |message| Error::new(ErrorKind::Device, format!("device {device}: {message}"))
}

/// Returns the error for a model that the engine refused.
pub fn refused(device: &str, source: &ModelSource, why: &str) -> Error {
    Error::new(ErrorKind::Model, format!("device {device} cannot run `{source}`: {why}"))
}

/// Returns the error for a source that a device cannot read at all.
pub fn no_source(device: &str, source: &ModelSource) -> Error {
    let what = if *source == ModelSource::Ports { "this model has only ports and no file" } else { "the device cannot access this model" };
    Error::new(ErrorKind::Unsupported, format!("device {device} needs a model file, or the bytes of a model file; {what}: `{source}`"))
}

/// If a model is certainly not ONNX, returns the file ending of its format, so that errors can name this format. The format of a file is
/// recognized by its ending, the format of a model in memory by its first bytes.
pub fn other_format(source: &ModelSource) -> Option<&'static str> {
    const ENDINGS: [&str; 6] = [IR, "ort", "tflite", "pb", "pdmodel", "gguf"];
    match source {
        ModelSource::File(path) => {
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            ENDINGS.into_iter().find(|known| ending.eq_ignore_ascii_case(known))
        }
        ModelSource::Bytes(bytes) => {
            let bytes = bytes.model().trim_ascii_start();
            // The XML text of an IR may begin with a byte order mark.
            let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            match bytes.get(4..8) {
                _ if text.starts_with(b"<") => Some(IR),
                Some(b"ORTM") => Some("ort"),
                Some(b"TFL3") => Some("tflite"),
                _ if bytes.starts_with(b"GGUF") => Some("gguf"),
                _ => None,
            }
        }
        ModelSource::Remote(_) | ModelSource::Ports => None,
    }
}

/// The file ending of OpenVINO IR.
pub const IR: &str = "xml";

/// Checks that the compiled model has as many inputs and outputs as when the caller read the file. `read` has the ports that the caller read.
///
/// # Errors
/// Returns an error if a number has changed.
pub fn check_unchanged(file: &ModelInfo, read: &ModelInfo) -> EngineResult<()> {
    for (kind, got, expected) in [("inputs", &file.inputs, &read.inputs), ("outputs", &file.outputs, &read.outputs)] {
        let (got, expected) = (got.len(), expected.len());
        if got != expected {
            return Err(format!("expected {expected} {kind}, as read before, got {got}; if the file changed, read the model again"));
        }
    }
    Ok(())
}

/// A compiled model of an engine. Its requests share it.
pub trait EngineModel: Send + Sync + 'static {
    /// Returns the name of the device.
    fn device(&self) -> &str;

    /// Returns the ports that the engine reports after compilation.
    fn info(&self) -> &ModelInfo;

    /// Returns whether the operators of the model prove that its batch items are independent.
    fn has_independent_rows(&self) -> bool;

    /// Creates an inference request of the engine.
    ///
    /// # Errors
    /// Returns the engine's message.
    fn create_request(self: Arc<Self>) -> EngineResult<Box<dyn DeviceRequest>>;
}

/// A compiled model as the runtime uses it: the engine's model and the steps of a run.
pub struct Compiled<M> {
    /// The engine's model.
    pub model: Arc<M>,
    /// The steps of a run.
    pub steps: Vec<DeviceStep>,
    /// The optimal number of requests.
    pub n_requests: usize,
    /// The options that have no effect.
    pub ignored: Vec<Ignored>,
}

impl<M: EngineModel> DeviceModel for Compiled<M> {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn device(&self) -> Option<&str> {
        Some(self.model.device())
    }

    fn steps(&self) -> Vec<DeviceStep> {
        self.steps.clone()
    }

    fn optimal_number_of_requests(&self) -> usize {
        self.n_requests
    }

    fn ignored(&self) -> Vec<Ignored> {
        self.ignored.clone()
    }

    fn rows_are_independent(&self) -> Option<bool> {
        self.model.has_independent_rows().then_some(true)
    }

    fn create_request(&self) -> Result<Box<dyn DeviceRequest>> {
        let _inside = exit::try_enter()?;
        self.model.clone().create_request().map_err(device_error(self.model.device()))
    }
}

/// Checks that the caller set each input of dynamic shape. An input that the caller set to an empty tensor is accepted.
///
/// # Errors
/// Returns `Tensor` if an input of dynamic shape was never set.
pub fn check_inputs(info: &ModelInfo, io: &DeviceIo<'_>) -> Result<()> {
    for (input_idx, port) in info.inputs.iter().enumerate() {
        let shape = io.input(input_idx).layout().shape();
        if shape.contains(&0) && port.shape.to_static().is_none() && !io.is_given(input_idx) {
            return Err(Error::new(ErrorKind::Tensor, format!("input {port}: got the empty shape {shape}; set a tensor first")));
        }
    }
    Ok(())
}

/// Dense memory that an engine reads or writes, with the shape and type of the tensor in it.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// The first byte.
    pub ptr: *mut u8,
    /// The length in bytes.
    pub n_bytes: usize,
    /// The shape of the tensor in this memory.
    pub shape: Shape,
    /// The type of the tensor's elements.
    pub element: ElementType,
}

/// The engine's object for one input or output of a request, such as an `OrtValue`. It refers to the memory of the run's tensor. Later runs
/// use the same object as long as address and shape stay the same. If the tensor has gaps, the object refers to a dense copy.
pub struct BoundValue<V> {
    /// The object of the latest run, with the address and shape for which it was created.
    over: Option<(usize, Shape, V)>,
    dense: Option<Tensor>,
}

impl<V> Default for BoundValue<V> {
    fn default() -> Self {
        Self { over: None, dense: None }
    }
}

impl<V> BoundValue<V> {
    /// Creates `n_values` entries without an object.
    pub fn list(n_values: usize) -> Vec<Self> {
        (0..n_values).map(|_| Self::default()).collect()
    }

    /// Returns the engine's object for an input. If the object of the latest run does not fit, calls `make` to create a new one. The memory
    /// is valid until the run ends. The engine must only read this memory, although the functions of engines take mutable pointers.
    ///
    /// # Errors
    /// Returns the error of `make`, or the tensor's error if a dense copy cannot be allocated.
    pub fn input(&mut self, io: &DeviceIo<'_>, input_idx: usize, make: impl FnOnce(&Extent) -> Result<V>) -> Result<&V> {
        let bytes = io.input(input_idx);
        let (element, shape) = (bytes.layout().element(), *bytes.layout().shape());
        if bytes.layout().is_dense() {
            let extent = bytes.extent();
            return self.over(&Extent { ptr: extent.as_ptr().cast_mut(), n_bytes: extent.len(), shape, element }, make);
        }
        let copy = self.dense(element, shape)?;
        let mut copy = copy.bytes_mut()?;
        let extent = copy.extent_mut();
        bytes.copy_all_to_dense(extent)?;
        let extent = Extent { ptr: extent.as_mut_ptr(), n_bytes: extent.len(), shape, element };
        self.over(&extent, make)
    }

    /// Returns the engine's object for an output of this shape; see [`BoundValue::input`]. [`BoundValue::finish`] must be called after the
    /// run.
    ///
    /// # Errors
    /// Returns the errors of [`BoundValue::input`] and [`DeviceIo::output`].
    pub fn output(
        &mut self,
        io: &mut DeviceIo<'_>,
        output_idx: usize,
        shape: Shape,
        make: impl FnOnce(&Extent) -> Result<V>,
    ) -> Result<&V> {
        let bytes = io.output(output_idx, &shape)?;
        let element = bytes.layout().element();
        if bytes.layout().is_dense() {
            self.dense = None;
            let extent = bytes.extent_mut();
            return self.over(&Extent { ptr: extent.as_mut_ptr(), n_bytes: extent.len(), shape, element }, make);
        }
        let copy = self.dense(element, shape)?;
        let mut copy = copy.bytes_mut()?;
        let extent = copy.extent_mut();
        let extent = Extent { ptr: extent.as_mut_ptr(), n_bytes: extent.len(), shape, element };
        self.over(&extent, make)
    }

    /// Must be called after a run. If the output's tensor has gaps, the engine wrote to a dense copy. This method copies the values from
    /// the dense copy into the tensor.
    ///
    /// # Errors
    /// Returns the errors of [`DeviceIo::output`].
    pub fn finish(&self, io: &mut DeviceIo<'_>, output_idx: usize) -> Result<()> {
        if let Some(dense) = &self.dense {
            io.output(output_idx, &dense.shape())?.copy_all_from_dense(dense.bytes()?.extent())?;
        }
        Ok(())
    }

    fn over(&mut self, extent: &Extent, make: impl FnOnce(&Extent) -> Result<V>) -> Result<&V> {
        let is_same = |(address, shape, _): &(usize, Shape, V)| *address == extent.ptr as usize && *shape == extent.shape;
        if !self.over.as_ref().is_some_and(is_same) {
            self.over = None;
            self.over = Some((extent.ptr as usize, extent.shape, make(extent)?));
        }
        Ok(&self.over.as_ref().expect("the value existed or was just created").2)
    }

    fn dense(&mut self, element: ElementType, shape: Shape) -> Result<Tensor> {
        match &self.dense {
            Some(dense) if dense.shape() == shape => Ok(dense.clone()),
            _ => Ok(self.dense.insert(Tensor::new(element, shape)?).clone()),
        }
    }
}
