//! What the devices of loaded engines have in common: how a run's tensors become values of the engine's, and how a compiled model
//! is handed to the runtime. Such engines take pointers to dense memory and give errors as texts.
//!
//! Calls no engine, so it has no `unsafe`: each device makes and uses its values itself.

use std::ffi::CString;
use std::sync::Arc;

use super::exit;
use crate::runtime::device::{DeviceModel, DeviceRequest, DeviceStep};
use crate::runtime::io::DeviceIo;
use crate::runtime::{Error, ErrorKind, Ignored, ModelInfo, ModelSource, Result};
use crate::tensor::{ElementType, Shape, Tensor};

/// What can go wrong in a call: the engine's own words.
pub type Said<T> = Result<T, String>;

/// A text for an engine.
///
/// # Errors
/// If it holds a zero byte.
pub fn c_string(text: &str) -> Said<CString> {
    CString::new(text).map_err(|_| format!("`{}` holds a zero byte", text.escape_debug()))
}

/// What an engine says, on one line and not without end: some print the model.
pub fn one_line(said: &str) -> String {
    const MAX_CHARACTERS: usize = 1000;
    let line = said.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}

/// What an engine says of a run, as an error.
pub fn device_error(device: &str) -> impl Fn(String) -> Error {
    move |said| Error::new(ErrorKind::Device, format!("device {device}: {said}"))
}

/// What an engine says of a model, as an error.
pub fn refused(device: &str, source: &ModelSource, why: &str) -> Error {
    Error::new(ErrorKind::Model, format!("device {device} cannot run `{source}`: {why}"))
}

/// A device can't run a model of this source at all.
pub fn no_source(device: &str, source: &ModelSource) -> Error {
    let what = if *source == ModelSource::Ports { "this model is ports alone" } else { "it does not know where this one lies" };
    Error::new(ErrorKind::Unsupported, format!("device {device} runs model files, or the bytes of one; {what}: `{source}`"))
}

/// The format of a model, where it is certainly none of the ONNX files: whatever else is in the model, the error is then about ONNX. A
/// file says it by its ending, bytes by how they begin.
pub fn other_format(source: &ModelSource) -> Option<&'static str> {
    const ENDINGS: [&str; 6] = [IR, "ort", "tflite", "pb", "pdmodel", "gguf"];
    match source {
        ModelSource::File(path) => {
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            ENDINGS.into_iter().find(|known| ending.eq_ignore_ascii_case(known))
        }
        ModelSource::Bytes(bytes) => {
            let bytes = bytes.model().trim_ascii_start();
            // A text may begin with the mark of its byte order.
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

/// OpenVINO's own format.
pub const IR: &str = "xml";

/// The file has as many inputs as when the caller read it.
///
/// # Errors
/// If it changed since.
pub fn check_unchanged(file: &ModelInfo, read: &ModelInfo) -> Said<()> {
    let (got, expected) = (file.inputs.len(), read.inputs.len());
    if got == expected {
        return Ok(());
    }
    Err(format!("it changed since it was read: expected {expected} inputs, got {got}; read it again"))
}

/// A model as an engine holds it; requests share it.
pub trait EngineModel: Send + Sync + 'static {
    /// The device's name for users.
    fn device(&self) -> &str;

    /// The ports as compiled.
    fn info(&self) -> &ModelInfo;

    /// Makes the engine's part of a request.
    ///
    /// # Errors
    /// The engine's.
    fn create_request(self: Arc<Self>) -> Said<Box<dyn DeviceRequest>>;
}

/// What the runtime holds: the model, and where its runs take place.
pub struct Compiled<M> {
    /// The engine's model.
    pub model: Arc<M>,
    /// The steps of a run.
    pub steps: Vec<DeviceStep>,
    /// How many requests keep the device busy.
    pub n_requests: usize,
    /// The options that the caller gave in vain.
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

/// No input is empty because nothing was set. An empty one that was set is the engine's to compute.
///
/// # Errors
/// `Tensor` if one is.
pub fn check_inputs(info: &ModelInfo, io: &DeviceIo<'_>) -> Result<()> {
    for (input_idx, port) in info.inputs.iter().enumerate() {
        let shape = io.input(input_idx).layout().shape();
        if shape.contains(&0) && port.shape.to_static().is_none() && !io.is_given(input_idx) {
            return Err(Error::new(ErrorKind::Tensor, format!("input {port}: got the empty shape {shape}; set a tensor first")));
        }
    }
    Ok(())
}

/// Dense memory that an engine is to read or write.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Where it begins.
    pub ptr: *mut u8,
    /// Its length.
    pub n_bytes: usize,
    /// The shape of the tensor in it.
    pub shape: Shape,
    /// The type of its elements.
    pub element: ElementType,
}

/// What stands for one input or output of a request: a value of the engine's over the memory of the run's tensor. It is kept
/// while the tensor stays where it is; of a tensor with gaps there is a copy without.
pub struct Place<V> {
    /// The value over memory that lay at this address with this shape in the last run.
    over: Option<(usize, Shape, V)>,
    dense: Option<Tensor>,
}

impl<V> Default for Place<V> {
    fn default() -> Self {
        Self { over: None, dense: None }
    }
}

impl<V> Place<V> {
    /// So many places.
    pub fn list(n_places: usize) -> Vec<Self> {
        (0..n_places).map(|_| Self::default()).collect()
    }

    /// The value for an input; `make` is called where the last run's does not do. The memory is there until the run ends, and
    /// is only to be read, though engines ask for pointers to write.
    ///
    /// # Errors
    /// Those of `make`; `Tensor` if there is no memory for a copy without gaps.
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

    /// The value for an output with this shape; as [`Place::input`], and then [`Place::finish`] after the run.
    ///
    /// # Errors
    /// As there, and those of [`DeviceIo::output`].
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

    /// Copies an output to its tensor, if that has gaps.
    ///
    /// # Errors
    /// Those of [`DeviceIo::output`].
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
