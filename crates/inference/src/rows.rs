//! Batch items of a call: each job preprocesses its image into its batch item of the input, and decodes its batch item of the outputs.
//!
//! If a batch item cannot be preprocessed or decoded, only its job fails. Knows no queue.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use super::client::stopped;
use super::dispatch::Queue;
use super::job::{Job, Picture};
use crate::frame::Transform;
use crate::runtime::{Error, ErrorKind, FillInput, Port, Result, RunContext};
use crate::tensor::{BytesMut, ElementType, MAX_RANK, Shape};
use crate::vision::decode::{Output, Results};
use crate::vision::{Scratch, Target};

/// Data shared by the steps of a run.
pub(super) struct Slot {
    /// Empty while the request is idle and during decoding.
    pub(super) rows: Vec<Row>,
    /// Input shape, equal for all batch items.
    pub(super) input_shape: Option<Shape>,
    /// When the jobs were assigned, and when a thread started with them.
    pub(super) placed: Option<Instant>,
    pub(super) began: Option<Instant>,
}

impl Slot {
    pub(super) fn new(max_rows: usize) -> Self {
        Self { rows: Vec::with_capacity(max_rows), input_shape: None, placed: None, began: None }
    }
}

/// A waiting or running job.
pub(super) struct Row {
    pub(super) job: Job,
    /// Group of jobs: those of one frame.
    pub(super) group: u64,
    /// Its position in the queue.
    pub(super) order: Instant,
    pub(super) submitted: Instant,
    /// Runs in a separate call: a batched call failed, or a thread waits for it.
    pub(super) alone: bool,
    frame_from_input: Transform,
    /// The error of this batch item.
    pub(super) failed: Option<Error>,
}

impl Row {
    pub(super) fn new(job: Job, group: u64, order: Instant, submitted: Instant, alone: bool) -> Self {
        Self { job, group, order, submitted, alone, frame_from_input: Transform::IDENTITY, failed: None }
    }
}

/// Preprocesses the input from the jobs in the slot.
pub(super) struct JobRows {
    slot: Arc<Mutex<Slot>>,
    queue: Weak<Queue>,
    scratch: Scratch,
}

impl JobRows {
    pub(super) fn new(slot: Arc<Mutex<Slot>>, queue: Weak<Queue>) -> Self {
        Self { slot, queue, scratch: Scratch::default() }
    }
}

impl FillInput for JobRows {
    fn shape(&mut self, _port: &Port) -> Result<Shape> {
        let slot = self.slot.lock().unwrap();
        let Some(of_one) = slot.input_shape else { return Err(stopped()) };
        Ok(with_rows(&of_one, slot.rows.len()))
    }

    fn frame(&mut self) -> Option<u64> {
        self.slot.lock().unwrap().rows.first().map(|row| row.job.runs.frame_number)
    }

    fn fill(&mut self, input: &mut BytesMut) -> Result<()> {
        let n_rows = {
            let mut slot = self.slot.lock().unwrap();
            slot.began = Some(Instant::now());
            slot.rows.len()
        };
        self.scratch.set_threads(self.queue.upgrade().map_or(1, |queue| queue.n_cores_of_a_run()));
        let mut n_filled = 0;
        for row_idx in 0..n_rows {
            let (frame, alignment, client) = {
                let slot = self.slot.lock().unwrap();
                let job = &slot.rows[row_idx].job;
                let Picture { frame, alignment, .. } = job.picture();
                (frame.clone(), *alignment, job.runs.client.clone())
            };
            let preprocess = &client.spec.preprocess;
            let scratch = &mut self.scratch;
            let filled = calm("filling the input", || match alignment {
                // Results of aligned images are mapped by the alignment.
                Some(alignment) => {
                    preprocess.fill_along(&frame, &alignment, input, row_idx, scratch)?;
                    Ok(Transform::IDENTITY)
                }
                None => Ok(preprocess.fill_into(&frame, Target::Host(input), row_idx, scratch)?),
            });
            drop(frame);
            match filled {
                Ok(frame_from_input) => {
                    self.slot.lock().unwrap().rows[row_idx].frame_from_input = frame_from_input;
                    n_filled += 1;
                }
                Err(error) if n_rows == 1 => return Err(error),
                // The batch item keeps values of an earlier call. Its outputs are ignored.
                Err(error) => self.slot.lock().unwrap().rows[row_idx].failed = Some(error),
            }
        }
        if n_filled == 0 { Err(Error::new(ErrorKind::Tensor, "none of the rows could be filled")) } else { Ok(()) }
    }
}

/// The decode step: each job decodes its batch item.
pub(super) fn decode_rows(slot: &Mutex<Slot>, context: &RunContext<'_>, scratch: &mut Results) -> Result<()> {
    let mut rows = std::mem::take(&mut slot.lock().unwrap().rows);
    let decoded = decode_each(&mut rows, context, scratch);
    slot.lock().unwrap().rows = rows;
    decoded
}

fn decode_each(rows: &mut [Row], context: &RunContext<'_>, scratch: &mut Results) -> Result<()> {
    let n_rows = rows.len();
    // The shape of an output per batch item, and all values.
    let mut values = Vec::with_capacity(context.n_outputs());
    for output_idx in 0..context.n_outputs() {
        let (mut shape, data) = values_of(context, output_idx)?;
        if n_rows > 1 {
            if shape.first() != Some(&n_rows) {
                let port = context.output_port(output_idx);
                let message = format!("output {port}: expected {n_rows} rows for as many pictures, got {shape}; use batch-size=1");
                return Err(Error::new(ErrorKind::Device, message));
            }
            shape = with_rows(&shape, 1);
        }
        values.push((shape, data));
    }
    let mut outputs: Vec<Output<'_>> = Vec::with_capacity(values.len());
    for (row_idx, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.failed.is_none()) {
        outputs.clear();
        outputs.extend(values.iter().enumerate().map(|(output_idx, (shape, data))| {
            let len = data.len() / n_rows;
            Output { name: context.output_port(output_idx).name(), shape, data: &data[row_idx * len..][..len] }
        }));
        let (job, frame_from_input) = (&mut row.job, row.frame_from_input);
        match calm("reading the outputs", || job.decode(&outputs, &frame_from_input, scratch)) {
            Ok(()) => {}
            // An unbatched run has the shape of the run.
            Err(error) if n_rows == 1 => return Err(error),
            Err(error) => row.failed = Some(error),
        }
    }
    Ok(())
}

/// The values of an output as `f32`; other types are cast.
fn values_of<'a>(context: &'a RunContext<'_>, output_idx: usize) -> Result<(Shape, Cow<'a, [f32]>)> {
    macro_rules! cast {
        ($type:ty) => {{
            let (shape, values) = context.output::<$type>(output_idx)?;
            (shape, values.iter().map(|&value| value as f32).collect())
        }};
    }
    Ok(match context.output_port(output_idx).element {
        ElementType::U8 => cast!(u8),
        ElementType::I8 => cast!(i8),
        ElementType::I32 => cast!(i32),
        ElementType::U32 => cast!(u32),
        ElementType::I64 => cast!(i64),
        ElementType::U64 => cast!(u64),
        ElementType::F64 => cast!(f64),
        // Other types are refused there.
        _ => {
            let (shape, values) = context.output::<f32>(output_idx)?;
            (shape, Cow::Borrowed(values))
        }
    })
}

/// Whether shapes are equal except for the first axis.
fn with_rows(shape: &Shape, n_rows: usize) -> Shape {
    let mut extents = [0; MAX_RANK];
    extents[..shape.len()].copy_from_slice(shape);
    extents[0] = n_rows;
    Shape::new(&extents[..shape.len()])
}

/// Turns a panic into an error of the batch item.
fn calm<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Error::of_panic(what, &*panic)))
}
