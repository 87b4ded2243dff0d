//! Preprocesses and decodes a batch. Each job has one batch item: it writes its image into this item of the input, and decodes this item of
//! the outputs.
//!
//! If a batch item cannot be preprocessed or decoded, only the job of that item fails. This module asks the [`Queue`] only for the
//! number of cores that a run may use.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use super::client::stopped;
use super::dispatch::Queue;
use super::job::{Alignment, Job, JobImage, JobInput};
use crate::frame::Transform;
use crate::runtime::{Error, ErrorKind, FillInput, Port, Result, RunContext};
use crate::tensor::{BytesMut, ElementType, MAX_RANK, Shape, Tensor};
use crate::vision::decode::{Output, Results};
use crate::vision::{Preprocess, Scratch, Target};

/// The batch items of one run. All steps of the run share them.
pub(super) struct Batch {
    /// The batch items of the current run. The list is empty while the request is idle, and during decoding.
    pub(super) items: Vec<BatchItem>,
    /// Shape of the model's input for one batch item. All items of the run have the same shape.
    pub(super) input_shape: Option<Shape>,
    /// Time when the jobs were assigned to the request. `began` is the time when the run's first step started.
    pub(super) assigned: Option<Instant>,
    pub(super) began: Option<Instant>,
}

impl Batch {
    pub(super) fn new(max_items: usize) -> Self {
        Self { items: Vec::with_capacity(max_items), input_shape: None, assigned: None, began: None }
    }
}

/// A waiting or running job.
pub(super) struct BatchItem {
    pub(super) job: Job,
    /// Number of the group to which the job belongs. The jobs of one frame form a group.
    pub(super) group: u64,
    /// Sort key of the job in the queue: an arrival time, see [`Scheduling`](super::Scheduling).
    pub(super) order: Instant,
    pub(super) submitted: Instant,
    /// Whether the job runs in a separate call, because its batch failed or because a blocking caller waits for it.
    pub(super) alone: bool,
    frame_from_input: Transform,
    /// Error of preprocessing or decoding for this batch item alone.
    pub(super) failed: Option<Error>,
}

impl BatchItem {
    pub(super) fn new(job: Job, group: u64, order: Instant, submitted: Instant, alone: bool) -> Self {
        Self { job, group, order, submitted, alone, frame_from_input: Transform::IDENTITY, failed: None }
    }
}

/// Preprocesses the images of a batch into the input of a request.
pub(super) struct BatchInput {
    batch: Arc<Mutex<Batch>>,
    queue: Weak<Queue>,
    scratch: Scratch,
}

impl BatchInput {
    pub(super) fn new(batch: Arc<Mutex<Batch>>, queue: Weak<Queue>) -> Self {
        Self { batch, queue, scratch: Scratch::default() }
    }
}

impl FillInput for BatchInput {
    fn shape(&mut self, _port: &Port) -> Result<Shape> {
        let batch = self.batch.lock().unwrap();
        let Some(of_one) = batch.input_shape else { return Err(stopped()) };
        Ok(with_batch_size(&of_one, batch.items.len()))
    }

    fn frame(&mut self) -> Option<u64> {
        self.batch.lock().unwrap().items.first().map(|item| item.job.runs.frame_number)
    }

    fn fill(&mut self, input: &mut BytesMut) -> Result<()> {
        let n_items = {
            let mut batch = self.batch.lock().unwrap();
            batch.began = Some(Instant::now());
            batch.items.len()
        };
        self.scratch.set_threads(self.queue.upgrade().map_or(1, |queue| queue.n_cores_of_a_run()));
        let mut n_filled = 0;
        for item_idx in 0..n_items {
            let (image, alignment, client) = {
                let batch = self.batch.lock().unwrap();
                let job = &batch.items[item_idx].job;
                let JobInput { image, alignment, .. } = job.input();
                (image.clone(), *alignment, job.runs.client.clone())
            };
            let filled = if client.spec.clip.is_some() && matches!(image, JobImage::Frame(_)) {
                Err(Error::new(
                    ErrorKind::Config,
                    "the model's input is a clip: expected the frames of a stream, got one image. Use the element `roiclassify`",
                ))
            } else {
                fill_item(&client.spec.preprocess, &image, alignment, input, item_idx, &mut self.scratch)
            };
            drop(image);
            match filled {
                Ok(frame_from_input) => {
                    self.batch.lock().unwrap().items[item_idx].frame_from_input = frame_from_input;
                    n_filled += 1;
                }
                Err(error) if n_items == 1 => return Err(error),
                // The other batch items run although the preprocessing of this item failed. The part of the input for this item keeps the
                // values of an earlier run, and the outputs for this item are ignored.
                Err(error) => self.batch.lock().unwrap().items[item_idx].failed = Some(error),
            }
        }
        if n_filled == 0 { Err(Error::new(ErrorKind::Tensor, "preprocessing failed for all batch items")) } else { Ok(()) }
    }
}

/// Preprocesses an image into the batch item `item_idx` of the input. Returns the transform from input to frame coordinates, which is the
/// identity for an image with an alignment. A panic becomes an error.
pub(super) fn fill_item(
    preprocess: &Preprocess,
    image: &JobImage,
    alignment: Option<Alignment>,
    input: &mut BytesMut,
    item_idx: usize,
    scratch: &mut Scratch,
) -> Result<Transform> {
    catch_panic("preprocessing", || match (image, alignment) {
        // The alignment itself maps the results back to the frame.
        (JobImage::Frame(frame), Some(alignment)) => {
            match alignment {
                Alignment::Keypoints(similarity) => preprocess.fill_along(frame, &similarity, input, item_idx, scratch)?,
                Alignment::Rotated(placement) => preprocess.fill_rotated(frame, &placement, input, item_idx, scratch)?,
            }
            Ok(Transform::IDENTITY)
        }
        (JobImage::Frame(frame), None) => Ok(preprocess.fill_into(frame, Target::Host(input), item_idx, scratch)?),
        (JobImage::Values(values, frame_from_input), _) => copy_item(values, input, item_idx).map(|()| *frame_from_input),
    })
}

/// Copies values that the caller has preprocessed into the batch item `item_idx` of the input.
fn copy_item(values: &Tensor, input: &mut BytesMut, item_idx: usize) -> Result<()> {
    let values = values.bytes()?;
    let n_bytes = values.layout().dense_bytes();
    let are_dense = values.layout().is_dense() && input.layout().is_dense() && values.layout().element() == input.layout().element();
    let item = if are_dense { input.extent_mut().get_mut(item_idx * n_bytes..(item_idx + 1) * n_bytes) } else { None };
    let item = item.ok_or_else(|| {
        Error::new(ErrorKind::Tensor, "prepared input: expected dense values of one batch item, got another layout, size or element type")
    })?;
    item.copy_from_slice(values.extent());
    Ok(())
}

/// Decode step of a run: decodes the outputs of each batch item and stores the results in the item's job.
pub(super) fn decode_batch(batch: &Mutex<Batch>, context: &RunContext<'_>, scratch: &mut Results) -> Result<()> {
    let mut items = std::mem::take(&mut batch.lock().unwrap().items);
    let decoded = decode_items(&mut items, context, scratch);
    batch.lock().unwrap().items = items;
    decoded
}

fn decode_items(items: &mut [BatchItem], context: &RunContext<'_>, scratch: &mut Results) -> Result<()> {
    let n_items = items.len();
    // For each output: the shape of one batch item, and the values of all batch items.
    let mut values = Vec::with_capacity(context.n_outputs());
    for output_idx in 0..context.n_outputs() {
        let (mut shape, data) = values_of(context, output_idx)?;
        if n_items > 1 {
            if shape.first() != Some(&n_items) {
                let port = context.output_port(output_idx)?;
                let message = format!("output {port}: expected {n_items} batch items, got {shape}. Set batch-size=1");
                return Err(Error::new(ErrorKind::Device, message));
            }
            shape = with_batch_size(&shape, 1);
        }
        values.push((shape, data));
    }
    let mut outputs: Vec<Output<'_>> = Vec::with_capacity(values.len());
    for (item_idx, item) in items.iter_mut().enumerate().filter(|(_, item)| item.failed.is_none()) {
        outputs.clear();
        for (output_idx, (shape, data)) in values.iter().enumerate() {
            let len = data.len() / n_items;
            outputs.push(Output { name: context.output_port(output_idx)?.name(), shape, data: &data[item_idx * len..][..len] });
        }
        let (job, frame_from_input) = (&mut item.job, item.frame_from_input);
        match catch_panic("decoding", || job.decode(&outputs, &frame_from_input, scratch)) {
            Ok(()) => {}
            // If the batch has only one item, an error of the item is the error of the run.
            Err(error) if n_items == 1 => return Err(error),
            Err(error) => item.failed = Some(error),
        }
    }
    Ok(())
}

/// Returns the values of an output as `f32`. Other element types are converted.
fn values_of<'a>(context: &'a RunContext<'_>, output_idx: usize) -> Result<(Shape, Cow<'a, [f32]>)> {
    macro_rules! cast {
        ($type:ty) => {{
            let (shape, values) = context.output::<$type>(output_idx)?;
            (shape, values.iter().map(|&value| value as f32).collect())
        }};
    }
    Ok(match context.output_port(output_idx)?.element {
        ElementType::U8 => cast!(u8),
        ElementType::I8 => cast!(i8),
        ElementType::I32 => cast!(i32),
        ElementType::U32 => cast!(u32),
        ElementType::I64 => cast!(i64),
        ElementType::U64 => cast!(u64),
        ElementType::F64 => cast!(f64),
        // The element type is `f32`, or a type for which `output` returns an error.
        _ => {
            let (shape, values) = context.output::<f32>(output_idx)?;
            (shape, Cow::Borrowed(values))
        }
    })
}

/// Returns the shape with its first extent, the batch size, replaced by `n_items`.
fn with_batch_size(shape: &Shape, n_items: usize) -> Shape {
    let mut extents = [0; MAX_RANK];
    extents[..shape.len()].copy_from_slice(shape);
    extents[0] = n_items;
    Shape::new(&extents[..shape.len()])
}

/// Calls `work` and returns its result. Converts a panic into an error that names the operation `what`.
fn catch_panic<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Error::of_panic(what, &*panic)))
}
