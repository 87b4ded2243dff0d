//! Shared by the devices of loaded engines: the tensors of a run become values of the engine, and a compiled model is passed to the runtime.
//! Such engines take pointers to dense memory and return errors as text.
//!
//! Calls no engine, so it has no `unsafe`: each device creates and uses its values itself.

use std::ffi::CString;
use std::sync::Arc;

use super::exit;
use crate::runtime::device::{DeviceModel, DeviceRequest, DeviceStep};
use crate::runtime::io::DeviceIo;
use crate::runtime::{Error, ErrorKind, Ignored, ModelInfo, ModelSource, Result};
use crate::tensor::{ElementType, Shape, Tensor};

/// The result of an engine call. The error is the engine's message.
pub type EngineResult<T> = Result<T, String>;

/// A C string for an engine.
///
/// # Errors
/// If the text contains a zero byte.
pub fn c_string(text: &str) -> EngineResult<CString> {
    CString::new(text).map_err(|_| format!("`{}` holds a zero byte", text.escape_debug()))
}

/// The message of an engine, on one line and shortened: some engines print the model.
pub fn one_line(message: &str) -> String {
    const MAX_CHARACTERS: usize = 1000;
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}

/// The error of a run, from the engine's message.
pub fn device_error(device: &str) -> impl Fn(String) -> Error {
    move |message| Error::new(ErrorKind::Device, format!("device {device}: {message}"))
}

/// The error for a model that the engine refused.
pub fn refused(device: &str, source: &ModelSource, why: &str) -> Error {
    Error::new(ErrorKind::Model, format!("device {device} cannot run `{source}`: {why}"))
}

/// The error for a source that a device cannot read at all.
pub fn no_source(device: &str, source: &ModelSource) -> Error {
    let what = if *source == ModelSource::Ports { "this model is ports alone" } else { "it does not know where this one lies" };
    Error::new(ErrorKind::Unsupported, format!("device {device} runs model files, or the bytes of one; {what}: `{source}`"))
}

/// The format of a model that is certainly not ONNX, so that errors name the format instead of ONNX. The format of a file is known by its
/// ending, that of bytes by their first bytes.
pub fn other_format(source: &ModelSource) -> Option<&'static str> {
    const ENDINGS: [&str; 6] = [IR, "ort", "tflite", "pb", "pdmodel", "gguf"];
    match source {
        ModelSource::File(path) => {
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            ENDINGS.into_iter().find(|known| ending.eq_ignore_ascii_case(known))
        }
        ModelSource::Bytes(bytes) => {
            let bytes = bytes.model().trim_ascii_start();
            // Text may begin with a byte order mark.
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

/// Checks that the file has as many inputs as when the caller read it.
///
/// # Errors
/// If the file changed since.
pub fn check_unchanged(file: &ModelInfo, read: &ModelInfo) -> EngineResult<()> {
    let (got, expected) = (file.inputs.len(), read.inputs.len());
    if got == expected {
        return Ok(());
    }
    Err(format!("it changed since it was read: expected {expected} inputs, got {got}; read it again"))
}

/// A compiled model of an engine. Requests share it.
pub trait EngineModel: Send + Sync + 'static {
    /// The name of the device.
    fn device(&self) -> &str;

    /// The ports as compiled.
    fn info(&self) -> &ModelInfo;

    /// Creates the engine's part of a request.
    ///
    /// # Errors
    /// The engine's message.
    fn create_request(self: Arc<Self>) -> EngineResult<Box<dyn DeviceRequest>>;
}

/// A compiled model with the steps of its runs, for the runtime.
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

    fn create_request(&self) -> Result<Box<dyn DeviceRequest>> {
        let _inside = exit::try_enter()?;
        self.model.clone().create_request().map_err(device_error(self.model.device()))
    }
}

/// Checks that each input of dynamic shape was set. An empty input that was set is computed.
///
/// # Errors
/// `Tensor` if an input is empty because it was never set.
pub fn check_inputs(info: &ModelInfo, io: &DeviceIo<'_>) -> Result<()> {
    for (input_idx, port) in info.inputs.iter().enumerate() {
        let shape = io.input(input_idx).layout().shape();
        if shape.contains(&0) && port.shape.to_static().is_none() && !io.is_given(input_idx) {
            return Err(Error::new(ErrorKind::Tensor, format!("input {port}: got the empty shape {shape}; set a tensor first")));
        }
    }
    Ok(())
}

/// Dense memory that an engine reads or writes.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// The first byte.
    pub ptr: *mut u8,
    /// The length in bytes.
    pub n_bytes: usize,
    /// The shape of the tensor in it.
    pub shape: Shape,
    /// The type of its elements.
    pub element: ElementType,
}

/// The engine's value for one input or output of a request, over the memory of the run's tensor. The value is reused while address and shape stay
/// the same. A tensor with gaps is copied into a dense one.
pub struct BoundValue<V> {
    /// Address, shape and value of the last run.
    over: Option<(usize, Shape, V)>,
    dense: Option<Tensor>,
}

impl<V> Default for BoundValue<V> {
    fn default() -> Self {
        Self { over: None, dense: None }
    }
}

impl<V> BoundValue<V> {
    /// A list of empty ones.
    pub fn list(n_values: usize) -> Vec<Self> {
        (0..n_values).map(|_| Self::default()).collect()
    }

    /// The value for an input. `make` creates one if that of the last run does not fit. The memory is valid until the run ends, and must only
    /// be read, although engines take mutable pointers.
    ///
    /// # Errors
    /// The error of `make`; an error of the tensor, if a dense copy cannot be allocated.
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

    /// The value for an output of this shape, as [`BoundValue::input`]. [`BoundValue::finish`] must follow the run.
    ///
    /// # Errors
    /// As [`BoundValue::input`] and [`DeviceIo::output`].
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

    /// Copies an output into its tensor, if the tensor has gaps.
    ///
    /// # Errors
    /// As [`DeviceIo::output`].
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
        Ok(&self.over.as_ref().expect("it was there, or was just made").2)
    }

    fn dense(&mut self, element: ElementType, shape: Shape) -> Result<Tensor> {
        match &self.dense {
            Some(dense) if dense.shape() == shape => Ok(dense.clone()),
            _ => Ok(self.dense.insert(Tensor::new(element, shape)?).clone()),
        }
    }
}
