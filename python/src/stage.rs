//! Models that take images: `_Stage`, a detector or a classifier, and `_Run`, the run of one image. Python code uses them through the
//! classes of `roiflow._vision`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTimeoutError, PyUserWarning, PyValueError};
use pyo3::prelude::*;
use roiflow_inference::spec::described_task;
use roiflow_inference::{Engine, GalleryChoice, RunGuard, Sharing, Stage, StageOptions, StageResults, Task};
use roiflow_results::{FrameResults, Size, Transform};

use crate::array;
use crate::decoder;
use crate::errors::{Canceled, OrRaise, WouldDeadlock, raise};
use crate::image::frame_of;
use crate::interpreter::{detached, drop_detached, wait_in_slices};
use crate::results::PyResults;
use crate::runtime::{self, ErrorKind};
use crate::tensor::process::ProcessToken;

/// A model with its preprocessing and decoding.
#[pyclass(frozen, name = "_Stage", module = "roiflow._roiflow")]
pub struct PyStage {
    /// `None` only while this object is dropped.
    stage: Option<Arc<Stage>>,
    /// Class numbers of the detections that are reported; `None` if all classes are reported.
    classes: Option<Arc<[u32]>>,
}

impl Drop for PyStage {
    fn drop(&mut self) {
        drop_detached(self.stage.take());
    }
}

impl PyStage {
    fn stage(&self) -> &Arc<Stage> {
        self.stage.as_ref().expect("a stage exists until it is dropped")
    }
}

#[pymethods]
impl PyStage {
    /// Loads and compiles a model.
    ///
    /// Raises an exception if the model cannot be read or compiled, or if its description is missing or invalid.
    #[new]
    #[pyo3(signature = (model, description, description_text, device, threshold, iou_threshold, labels, gallery, classes, batch_size, config))]
    #[allow(clippy::too_many_arguments, reason = "called by `_vision.py` alone")]
    fn new(
        py: Python<'_>,
        model: PathBuf,
        description: Option<PathBuf>,
        description_text: Option<String>,
        device: Option<String>,
        threshold: Option<f32>,
        iou_threshold: Option<f32>,
        labels: Option<Vec<String>>,
        gallery: Option<PathBuf>,
        classes: Option<Vec<Bound<'_, PyAny>>>,
        batch_size: Option<usize>,
        config: Option<String>,
    ) -> PyResult<Self> {
        let options = StageOptions {
            model,
            description,
            description_text,
            device,
            labels,
            gallery: gallery.map(GalleryChoice::File).unwrap_or_default(),
            threshold,
            iou_threshold,
            config,
            batch_size,
            sharing: Sharing::SameOptions,
            engine: Engine::of_process().clone(),
            ..StageOptions::default()
        };
        let load = || match described_task(&options)? {
            Task::Detection => Stage::detector(&options),
            Task::Classification => Stage::classifier(&options),
        };
        let stage = Self { stage: Some(Arc::new(detached(py, load).or_raise()?)), classes: None };
        let Some(classes) = classes else { return Ok(stage) };
        if stage.stage().spec().task != Task::Detection {
            return Err(PyValueError::new_err(
                "classes: expected none for a classifier, which reports one label; compare the label of its attribute",
            ));
        }
        let classes = classes.iter().map(|class| stage.class_of(class)).collect::<PyResult<Vec<u32>>>()?;
        Ok(Self { stage: Some(stage.stage().clone()), classes: Some(classes.into()) })
    }

    /// `detection` or `classification`.
    #[getter]
    fn task(&self) -> String {
        self.stage().spec().task.to_string()
    }

    /// Name of the results; for a classifier, the name of the attribute.
    #[getter]
    fn name(&self) -> String {
        self.stage().spec().name.to_string()
    }

    /// The labels of the classes, in order.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.stage().spec().labels.names().iter().map(|label| label.to_string()).collect()
    }

    /// Width and height of the model's input.
    #[getter]
    fn input_size(&self) -> (u32, u32) {
        let size = self.stage().spec().input_size;
        (size.width, size.height)
    }

    /// The device that runs the model.
    #[getter]
    fn device(&self) -> String {
        self.stage().model().device().to_owned()
    }

    /// Source of the description.
    #[getter]
    fn source(&self) -> String {
        self.stage().spec().source.to_string()
    }

    /// Defaults that replace keys missing in the description, one sentence each.
    #[getter]
    fn assumed(&self) -> Vec<String> {
        self.stage().spec().assumed.clone()
    }

    /// Number of concurrent images that keep the device busy.
    #[getter]
    fn n_images_at_once(&self) -> usize {
        self.stage().n_frames_at_once()
    }

    /// Starts a run for the whole image. With `rois`, starts a run for the regions of these detections.
    fn submit(&self, py: Python<'_>, image: &Bound<'_, PyUntypedArray>, color: &str, rois: Option<&PyResults>) -> PyResult<PyRun> {
        if decoder::is_decoding() {
            return Err(WouldDeadlock::new_err(CALLED_BY_DECODER));
        }
        let frame = frame_of(image, color)?;
        let size = frame.size();
        if let Some(rois) = rois {
            rois.check_size(size)?;
        }
        let stage = self.stage();
        let (state, guard) = (Arc::new(State::default()), RunGuard::now());
        let (done_state, classes) = (state.clone(), self.classes.clone());
        let before = rois.map(|rois| rois.results.clone());
        detached(py, || match before {
            None => {
                let results = FrameResults { size, ..FrameResults::default() };
                let done = move |of_stage| done_state.complete(results, of_stage, classes.as_deref());
                stage.submit(frame, 0, guard.clone(), done);
            }
            Some(before) => {
                let crop = &stage.spec().crop;
                // An object outside the image has no pixels to classify. Its results stay unchanged.
                let is_inside = |region: &roiflow_vision::Region| {
                    crop.alignment(&region.keypoints, stage.spec().input_size).is_some() || crop.rect(region.rect, size).is_some()
                };
                let regions: Vec<_> = before.detections.iter().map(|detection| crop.region(detection)).filter(is_inside).collect();
                let done = move |of_stage| done_state.complete((*before).clone(), of_stage, classes.as_deref());
                stage.submit_regions(frame, 0, regions, guard.clone(), done);
            }
        });
        Ok(PyRun { state, guard, is_canceled: AtomicBool::new(false), stage: Some(stage.clone()) })
    }

    /// Starts a run for an input that the program has preprocessed. `size` is the size of the image. Coordinates are mapped per axis:
    /// `image = input * scale + offset`.
    fn submit_values(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyUntypedArray>,
        size: (u32, u32),
        scale: (f32, f32),
        offset: (f32, f32),
    ) -> PyResult<PyRun> {
        if decoder::is_decoding() {
            return Err(WouldDeadlock::new_err(CALLED_BY_DECODER));
        }
        let stage = self.stage();
        let element = stage.model().inputs()[0].element;
        let values = if array::element_of(values)? == element { array::plain(values)? } else { array::cast(values, element)? };
        let values = array::shared(&values, element, &array::checked_shape(values.shape())?)?;
        let (state, guard) = (Arc::new(State::default()), RunGuard::now());
        let (done_state, classes) = (state.clone(), self.classes.clone());
        let results = FrameResults { size: Size::new(size.0, size.1), ..FrameResults::default() };
        let frame_from_input = Transform { scale, offset, swaps_axes: false };
        let done = move |of_stage| done_state.complete(results, of_stage, classes.as_deref());
        detached(py, || stage.submit_values(values, frame_from_input, 0, guard.clone(), done)).or_raise()?;
        Ok(PyRun { state, guard, is_canceled: AtomicBool::new(false), stage: Some(stage.clone()) })
    }
}

/// The message of the exception that is raised if a decoder calls a model.
const CALLED_BY_DECODER: &str =
    "a decoder called a model: the model would wait for the decoder. Decode first, and call the other model with the results";

impl PyStage {
    /// Returns the number of a class that is given by its label or its number. Raises ValueError if the class does not exist.
    fn class_of(&self, class: &Bound<'_, PyAny>) -> PyResult<u32> {
        let labels = self.stage().spec().labels.names();
        let unknown = |shown: String| {
            let known = match labels.len() {
                0 => "the number of a class, because the model has no labels".to_owned(),
                n => {
                    let listed = labels.iter().take(12).map(|label| &**label).collect::<Vec<_>>().join(", ");
                    format!("one of {listed}{}", if n > 12 { format!(" and {} more", n - 12) } else { String::new() })
                }
            };
            PyValueError::new_err(format!("classes: expected {known}, got {shown}"))
        };
        if let Ok(label) = class.extract::<&str>() {
            let found = labels.iter().position(|known| &**known == label);
            return found.and_then(|idx| u32::try_from(idx).ok()).ok_or_else(|| unknown(format!("`{label}`")));
        }
        match class.extract::<u32>() {
            Ok(number) if labels.is_empty() || (number as usize) < labels.len() => Ok(number),
            _ => Err(unknown(class.str()?.to_string())),
        }
    }
}

/// The outcome of a run.
type Ended = runtime::Result<Arc<FrameResults>>;

/// The state of a run. The Python object of the run shares it with the closure that ends the run.
struct State {
    ended: Mutex<Option<Ended>>,
    has_ended: Condvar,
    process: ProcessToken,
}

impl Default for State {
    fn default() -> Self {
        Self { ended: Mutex::default(), has_ended: Condvar::new(), process: ProcessToken::current() }
    }
}

impl State {
    /// Stores the results and wakes up waiting threads. Called once for each run, on a thread of the runtime.
    fn complete(&self, mut results: FrameResults, of_stage: StageResults, classes: Option<&[u32]>) {
        let ended = of_stage.into_result().map(|mut of_stage| {
            if let Some(classes) = classes {
                of_stage.detections.retain(|detection| classes.contains(&detection.label_id));
            }
            of_stage.add_to(&mut results);
            Arc::new(results)
        });
        *self.ended.lock().unwrap() = Some(ended);
        self.has_ended.notify_all();
    }

    /// Waits for the end of the run, at most for `limit`. Returns `None` if the run has not ended by then. Fails in a fork of the process that
    /// started the run, which has none of the threads that compute.
    fn wait(&self, limit: Option<Duration>) -> Option<Ended> {
        if !self.process.is_current() {
            let message = "this process was forked while the run was pending: load the model in this process, or start the process with \
                           `spawn` or `forkserver`";
            return Some(Err(runtime::Error::new(ErrorKind::Unsupported, message)));
        }
        let ended = self.ended.lock().unwrap();
        match limit {
            None => self.has_ended.wait_while(ended, |ended| ended.is_none()).unwrap().clone(),
            Some(limit) => self.has_ended.wait_timeout_while(ended, limit, |ended| ended.is_none()).unwrap().0.clone(),
        }
    }
}

/// The run of one image. The image is kept alive until the run ends.
#[pyclass(frozen, name = "_Run", module = "roiflow._roiflow")]
pub struct PyRun {
    state: Arc<State>,
    guard: Arc<RunGuard>,
    is_canceled: AtomicBool,
    /// `None` only while this object is dropped.
    stage: Option<Arc<Stage>>,
}

impl Drop for PyRun {
    fn drop(&mut self) {
        // Nothing can read the results any more, so cancel the run if it has not begun.
        self.guard.cancel();
        drop_detached(self.stage.take());
    }
}

#[pymethods]
impl PyRun {
    /// Returns whether the run has ended.
    fn done(&self, py: Python<'_>) -> bool {
        detached(py, || self.state.wait(Some(Duration::ZERO)).is_some())
    }

    /// Cancels the run if it has not begun.
    fn cancel(&self, py: Python<'_>) {
        self.is_canceled.store(true, Ordering::Release);
        detached(py, || {
            self.guard.cancel();
            if let Some(stage) = &self.stage {
                stage.discard_canceled();
            }
        });
    }

    /// Waits for the results.
    ///
    /// Raises the exception of the run, TimeoutError after `timeout` seconds, and exceptions of signal handlers.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PyResults> {
        if decoder::is_decoding() {
            return Err(WouldDeadlock::new_err("a decoder waits for a model, which may wait for the decoder"));
        }
        let limit = timeout.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
        let begin = Instant::now();
        let waited = wait_in_slices(py, |slice| {
            let left = limit.map(|limit| limit.saturating_sub(begin.elapsed()));
            let is_over = left.is_some_and(|left| slice.is_none_or(|slice| left <= slice));
            let ended = self.state.wait(left.into_iter().chain(slice).min());
            let warning = self.stage.as_ref().filter(|_| ended.is_some()).and_then(|stage| stage.take_warning());
            if ended.is_some() || is_over { Some((ended, warning)) } else { None }
        });
        let (ended, warning) = waited.inspect_err(|_| self.cancel(py))?;
        if let Some(warning) = warning {
            let message = std::ffi::CString::new(warning.replace('\0', "?"))?;
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &message, 3)?;
        }
        match ended {
            Some(Ok(results)) => Ok(PyResults { results }),
            // The stage stops a canceled run before it begins.
            Some(Err(error)) if error.kind() == ErrorKind::Stopped && self.is_canceled.load(Ordering::Acquire) => {
                Err(Canceled::new_err("the run was canceled"))
            }
            Some(Err(error)) => Err(decoder::raised(py, &error).unwrap_or_else(|| raise(error))),
            None => Err(PyTimeoutError::new_err(format!("the run did not end within {} seconds", timeout.unwrap_or_default()))),
        }
    }
}
