//! Preprocesses and decodes a batch. Each job has one batch item: it writes its image into this item of the input, and decodes this item of
//! the outputs.
//!
//! If a batch item cannot be preprocessed or decoded, only the job of that item fails. This module asks the [`Queue`] only for the
//! number of cores that a run may use.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use super::client::stopped;
use super::dispatch::Queue;
use super::job::{Alignment, Job, JobImage, JobInput};
use crate::frame::Transform;
use crate::runtime::{Dim, Error, ErrorKind, FillInput, Port, Result, RunContext};
use crate::tensor::{BytesMut, ElementType, MAX_RANK, Shape, Tensor, append_f32, bf16, f16};
use crate::vision::decode::{Output, Results};
use crate::vision::{Preprocess, Scratch, Target};

/// The batch items of one run. All steps of the run share them.
pub(super) struct Batch {
    /// The batch items of the current run. The list is empty while the request is idle, and during decoding.
    pub(super) items: Vec<BatchItem>,
    /// Number of images that the run computes: the number of items, or the batch size of a model with a fixed batch size.
    n_images: usize,
    /// Shape of the model's input for one batch item. All items of the run have the same shape.
    pub(super) input_shape: Option<Shape>,
    /// Time when the jobs were assigned to the request. `began` is the time when the run's first step started.
    pub(super) assigned: Option<Instant>,
    pub(super) began: Option<Instant>,
}

impl Batch {
    pub(super) fn new(max_items: usize) -> Self {
        Self { items: Vec::with_capacity(max_items), n_images: 0, input_shape: None, assigned: None, began: None }
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
    fn shape(&mut self, port: &Port) -> Result<Shape> {
        let mut batch = self.batch.lock().unwrap();
        let Some(of_one) = batch.input_shape else { return Err(stopped()) };
        batch.n_images = match port.shape.dims().first() {
            Some(Dim::Fixed(n_images)) => *n_images,
            _ => batch.items.len(),
        };
        Ok(with_batch_size(&of_one, batch.n_images))
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

/// Memory of the decode step of a request. It is reused for each run.
#[derive(Default)]
pub(super) struct DecodeMemory {
    results: Results,
    /// The numbers of each output whose element type is not `f32`.
    numbers: Vec<Vec<f32>>,
}

/// Decode step of a run: decodes the outputs of each batch item and stores the results in the item's job.
pub(super) fn decode_batch(batch: &Mutex<Batch>, context: &RunContext<'_>, memory: &mut DecodeMemory) -> Result<()> {
    let (mut items, n_images) = {
        let mut batch = batch.lock().unwrap();
        (std::mem::take(&mut batch.items), batch.n_images)
    };
    let decoded = decode_items(&mut items, n_images, context, memory);
    batch.lock().unwrap().items = items;
    decoded
}

fn decode_items(
    items: &mut [BatchItem],
    n_images: usize,
    context: &RunContext<'_>,
    DecodeMemory { results, numbers }: &mut DecodeMemory,
) -> Result<()> {
    let n_items = items.len();
    numbers.resize_with(context.n_outputs(), Vec::new);
    // For each output: the shape and the number of values of one batch item, and the values of all batch items.
    let mut values = Vec::with_capacity(context.n_outputs());
    for (output_idx, numbers) in numbers.iter_mut().enumerate() {
        let (mut shape, data) = values_of(context, output_idx, numbers)?;
        let mut n_values = data.len();
        if n_images > 1 {
            // A table of the rows of all images can be read if only the first image is in use.
            let has_all_rows = match (&shape[..], &*items) {
                ([_, n_columns], [item]) => item.job.names_images(output_idx, *n_columns),
                _ => false,
            };
            if !has_all_rows {
                if shape.first() != Some(&n_images) {
                    let port = context.output_port(output_idx)?;
                    let message = format!("output {port}: expected {n_images} batch items, got {shape}. Set batch-size=1");
                    return Err(Error::new(ErrorKind::Device, message));
                }
                shape = with_batch_size(&shape, 1);
                n_values /= n_images;
            }
        }
        values.push((shape, n_values, data));
    }
    let mut outputs: Vec<Output<'_>> = Vec::with_capacity(values.len());
    for (item_idx, item) in items.iter_mut().enumerate().filter(|(_, item)| item.failed.is_none()) {
        outputs.clear();
        for (output_idx, (shape, n_values, data)) in values.iter().enumerate() {
            let data = &data[item_idx * n_values..][..*n_values];
            outputs.push(Output { name: context.output_port(output_idx)?.name(), shape, data });
        }
        let (job, frame_from_input) = (&mut item.job, item.frame_from_input);
        match catch_panic("decoding", || job.decode(&outputs, &frame_from_input, results)) {
            Ok(()) => {}
            // If the batch has only one item, an error of the item is the error of the run.
            Err(error) if n_items == 1 => return Err(error),
            Err(error) => item.failed = Some(error),
        }
    }
    Ok(())
}

/// Returns the values of an output as `f32`. Other element types are converted in `numbers`.
fn values_of<'a>(context: &'a RunContext<'_>, output_idx: usize, numbers: &'a mut Vec<f32>) -> Result<(Shape, &'a [f32])> {
    macro_rules! converted {
        ($($element:ident => $type:ty),+ $(,)?) => {
            match context.output_port(output_idx)?.element {
                $(ElementType::$element => {
                    let (shape, values) = context.output::<$type>(output_idx)?;
                    numbers.clear();
                    append_f32(values, numbers);
                    Ok((shape, &**numbers))
                })+
                // The element type is `f32`, or a type for which `output` returns an error.
                _ => context.output::<f32>(output_idx),
            }
        };
    }
    converted! {
        Bool => bool, U8 => u8, I8 => i8, U16 => u16, I16 => i16, U32 => u32, I32 => i32, U64 => u64, I64 => i64,
        F16 => f16, Bf16 => bf16, F64 => f64,
    }
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
