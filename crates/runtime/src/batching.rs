//! Batching: combines runs of several requests into one call of the engine. [`Config::batch_size`] sets the maximum number of runs in one
//! call.
//!
//! Each request contributes one batch item to a call, and has its own tensors, steps and callback. Two compiled models execute the runs:
//!
//! - `alone` executes single runs. It is the model as the caller compiled it.
//! - `together` executes calls of several batch items. The first axis of its inputs is dynamic, up to the batch size. If the caller's model
//!   already has a dynamic first axis, `together` is the same model as `alone`.
//!
//! The first step of a run offers its inputs to the [`collector`](super::collector), which decides whether the run is batched. A batched
//! run copies its batch item out of the outputs of the call, and skips the steps of the device. A single run executes the steps of the
//! device, as it does without batching.
//!
//! When a call starts, one pass copies the inputs from the tensors of the requests into the input tensors of the call. The tensors of the
//! requests keep their values, because callbacks and steps may read them, and because the run executes alone if the call fails. A run
//! cannot write its inputs directly into the tensors of the call, because the collector decides only later whether to start a call.
//!
//! Three kinds of runs are not batched: runs whose inputs already have a batch size above 1, runs with a tensor in device memory, and
//! synchronous runs. A synchronous run computes on the calling thread, and this thread should not wait for the runs of other requests.

use std::sync::Arc;
use std::time::Duration;

use super::collector::{Collector, Row, Terms};
use super::config::MAX_BATCH_SIZE;
use super::device::{Device, DeviceModel, DeviceRequest, DeviceStep};
use super::executor::{Executor, Executors};
use super::io::DeviceIo;
use super::steps::{Step, StepTask};
use super::{CompiledModel, Config, Dim, Error, ErrorKind, Ignored, Model, ModelInfo, NodeTime, Port, Precision, Result};
use crate::tensor::{Element, ElementType, MAX_RANK, Shape, Tensor, Values, bf16, f16};

/// Checks that the batch size is in range.
pub(super) fn check(config: &Config) -> Result<()> {
    match config.batch_size {
        1..=MAX_BATCH_SIZE => Ok(()),
        other => Err(Error::new(ErrorKind::Config, format!("batch size: expected 1 (none) to {MAX_BATCH_SIZE}, got {other}"))),
    }
}

/// Adds batching to a compiled model. `alone` is the model as the caller compiled it.
pub(super) fn gathering(
    device: &dyn Device,
    name: &str,
    model: &Model,
    alone: &Arc<dyn DeviceModel>,
    config: &Config,
    executors: &Executors,
) -> Result<Arc<dyn DeviceModel>> {
    // No code sets a callback on the requests that execute the calls, so they need no executor for callbacks.
    let of_calls = Config { callback_thread: false, callback_executor: None, ..config.clone() };
    let Opened { device_model: together, model: calls } = open_rows(device, name, model, alone, config.batch_size, &of_calls, executors)?;
    let first = alone
        .steps()
        .into_iter()
        .next()
        .ok_or_else(|| Error::new(ErrorKind::Device, "expected a model with at least one step, got none"))?;
    let resume = first.executor;
    let ends_on_resume = together.steps().last().is_some_and(|last| Arc::ptr_eq(&last.executor, &resume));
    let terms = Terms {
        size: config.batch_size,
        timeout: config.batch_timeout,
        resume: resume.clone(),
        ends_on_resume,
        profiles: config.profiling,
    };
    let n_calls = together.optimal_number_of_requests().max(1);
    let requests = (0..n_calls).map(|_| calls.create_infer_request()).collect::<Result<_>>()?;
    let gathering = Gathering { collector: Arc::new(Collector::new(terms, requests)?), resume, n_rows: n_calls * config.batch_size };
    Ok(Arc::new(BatchingModel { alone: alone.clone(), gathering }))
}

/// A compiled model that accepts several batch items in a call.
pub(super) struct Opened {
    pub(super) device_model: Arc<dyn DeviceModel>,
    pub(super) model: CompiledModel,
}

/// Returns a model that accepts 1 to `max_rows` batch items along its first axis. Recompiles the model if the first axis of an input is
/// fixed. Fails if the batch items depend on each other.
pub(super) fn open_rows(
    device: &dyn Device,
    name: &str,
    model: &Model,
    alone: &Arc<dyn DeviceModel>,
    max_rows: usize,
    config: &Config,
    executors: &Executors,
) -> Result<Opened> {
    if !model.variables().is_empty() {
        return Err(refused(
            "each request of a stateful model has its own state, and a call for several runs would mix the states; use batch size 1",
        ));
    }
    let must_open = check_ports(alone.info(), model.info(), max_rows)?;
    let (opened, together) = if must_open {
        let opened = model.with_open_batch(max_rows)?;
        let together = device.compile(&opened, config, executors).map_err(|error| {
            refused(format!(
                "the first axis of an input is fixed at 1, and the model cannot be compiled for 1 to {max_rows} batch items: {error}"
            ))
        })?;
        (opened, together)
    } else {
        (model.clone(), alone.clone())
    };
    let compiled = |model: &Model, compiled: &Arc<dyn DeviceModel>| {
        CompiledModel::new(name, model, compiled.clone(), config.clone(), executors.clone())
    };
    let calls = compiled(&opened, &together);
    check_independent(&compiled(model, alone), &calls, &*together, max_rows)?;
    Ok(Opened { device_model: together, model: calls })
}

/// Checks that a model accepts up to `max_rows` independent batch items without a second compilation.
pub(super) fn check_rows(model: &CompiledModel, device_model: &dyn DeviceModel, max_rows: usize) -> Result<()> {
    if check_ports(model.info(), model.info(), max_rows)? {
        return Err(refused("the first axis of an input is fixed at 1"));
    }
    check_independent(model, model, device_model, max_rows)
}

fn check_independent(alone: &CompiledModel, together: &CompiledModel, device_model: &dyn DeviceModel, max_rows: usize) -> Result<()> {
    match device_model.rows_are_independent() {
        Some(true) => Ok(()),
        Some(false) => Err(refused(mixes_rows("the device reports a dependence"))),
        None if together.properties().config.batch_independent => Ok(()),
        None if device_model.rows_can_be_tried() => try_rows(alone, together, max_rows.min(3)),
        None => Err(refused(format!(
            "device {} does not know whether its batch items are independent; if they are, set the option `batch-independent=true`, otherwise use batch size 1",
            together.device()
        ))),
    }
}

fn refused(why: impl AsRef<str>) -> Error {
    Error::new(ErrorKind::Unsupported, why.as_ref())
}

fn mixes_rows(how: &str) -> String {
    format!("its batch items are not independent ({how}), so the result of one run would depend on other runs; use batch size 1")
}

/// Checks that the first axis of every port can be the batch axis. `info` has the ports of the compiled model. `said` has the ports before
/// compilation, with the axes that the caller declared. Returns whether the first axis of an input is fixed at 1, so that the model must be
/// recompiled.
fn check_ports(info: &ModelInfo, said: &ModelInfo, size: usize) -> Result<bool> {
    if info.inputs.is_empty() {
        return Err(refused("the model has no inputs, so its runs cannot be batched; use batch size 1"));
    }
    for (port, said) in info.inputs.iter().zip(&said.inputs) {
        let rank = port.shape.dims().len();
        let fail = |what: &str| Err(refused(format!("input {port}: {what}")));
        let batch_axis = match &said.axes {
            Some(axes) => axes.batch_axis(rank).map_err(|error| error.context(format!("input {port}")))?,
            None => (rank > 0).then_some(0),
        };
        if batch_axis != Some(0) {
            let axes = said.axes.as_ref().map_or("none".to_owned(), |axes| format!("`{axes}`"));
            return fail(&format!("expected the batch as its first axis, as in `NCHW`, got the axes {axes}; use batch size 1"));
        }
        let first = port.shape.dims()[0];
        if first != Dim::Fixed(1) && !(first.admits(1) && first.admits(size)) {
            return fail(&format!(
                "expected a first axis of 1, or a dynamic one from 1 to {size}, got {first}; reshape the model, or use batch size 1"
            ));
        }
        if port.shape.dims()[1..].iter().any(Dim::is_open) {
            return fail(
                "expected all extents except the first to be fixed, because all items of a batch have one shape; reshape the model",
            );
        }
    }
    if let Some(port) = info.outputs.iter().find(|port| !port.shape.dims().first().is_some_and(|first| first.admits(1))) {
        return Err(refused(format!("output {port}: expected the batch as its first axis; use batch size 1")));
    }
    Ok(info.inputs.iter().any(|port| port.shape.dims()[0] == Dim::Fixed(1)))
}

/// A compiled model that batches the runs of its requests. It consists of the model that the device compiled (`alone`), and of the
/// collector.
struct BatchingModel {
    alone: Arc<dyn DeviceModel>,
    gathering: Gathering,
}

/// The batching of a compiled model, see [`Config::batch_size`]. Only the runtime creates this type.
pub struct Gathering {
    collector: Arc<Collector>,
    /// The executor on which a run continues after its batch item was computed.
    resume: Arc<dyn Executor>,
    /// The maximum number of batch items that the engine computes concurrently: the number of concurrent calls times the batch size.
    n_rows: usize,
}

impl DeviceModel for BatchingModel {
    fn info(&self) -> &ModelInfo {
        self.alone.info()
    }

    fn device(&self) -> Option<&str> {
        self.alone.device()
    }

    fn ignored(&self) -> Vec<Ignored> {
        self.alone.ignored()
    }

    fn steps(&self) -> Vec<DeviceStep> {
        self.alone.steps()
    }

    fn optimal_number_of_requests(&self) -> usize {
        self.gathering.n_rows
    }

    fn gathering(&self) -> Option<&Gathering> {
        Some(&self.gathering)
    }

    fn create_request(&self) -> Result<Box<dyn DeviceRequest>> {
        self.alone.create_request()
    }
}

impl Gathering {
    /// Registers a new request with the collector.
    pub(super) fn take_seat(&self, info: &ModelInfo) -> Seat {
        Seat {
            seat_idx: self.collector.take_seat(),
            collector: self.collector.clone(),
            resume: self.resume.clone(),
            n_inputs: info.inputs.len(),
            n_outputs: info.outputs.len(),
            inputs: Vec::new(),
            is_gathered: false,
            times: Vec::new(),
            profile: None,
        }
    }
}

/// The registration of one request with the collector. Only the runs of registered requests can be batched.
pub(super) struct Seat {
    collector: Arc<Collector>,
    seat_idx: usize,
    resume: Arc<dyn Executor>,
    n_inputs: usize,
    n_outputs: usize,
    /// This list is empty between runs, and is reused to avoid allocations. A run fills it with its inputs and passes it to the collector.
    inputs: Vec<Tensor>,
    /// Whether the latest run was batched.
    is_gathered: bool,
    /// The durations of the steps in the call that included the latest run.
    times: Vec<Duration>,
    profile: Option<Arc<[NodeTime]>>,
}

impl Seat {
    /// Returns the two steps that come before the steps of the device: `join` offers the inputs of the run to the collector, and `batch`
    /// takes the run's batch item out of the outputs of the call.
    pub(super) fn steps(&self) -> [Step; 2] {
        let step = |name: &str, executor, task| Step { name: name.into(), executor, task, duration: Duration::ZERO };
        let waiting_room = self.collector.waiting_room(self.seat_idx);
        [step("join", self.resume.clone(), StepTask::Join), step("batch", waiting_room, StepTask::TakeRow)]
    }

    pub(super) fn join(&mut self, io: &DeviceIo<'_>) -> Result<()> {
        self.is_gathered = false;
        let is_row = |input_idx| io.input_tensor(input_idx).shape().first() == Some(&1);
        if io.is_on_host() && (0..self.n_inputs).all(is_row) {
            let mut inputs = std::mem::take(&mut self.inputs);
            inputs.extend((0..self.n_inputs).map(|input_idx| io.input_tensor(input_idx).clone()));
            self.collector.offer(self.seat_idx, inputs);
        }
        Ok(())
    }

    pub(super) fn take_row(&mut self, io: &mut DeviceIo<'_>) -> Result<()> {
        let Some(row) = self.collector.row(self.seat_idx) else { return Ok(()) };
        self.is_gathered = true;
        self.profile = self.collector.times(&row, &mut self.times);
        let copied = (0..self.n_outputs).try_for_each(|output_idx| self.copy_row(&row, output_idx, io));
        self.leave();
        copied
    }

    fn copy_row(&self, row: &Row, output_idx: usize, io: &mut DeviceIo<'_>) -> Result<()> {
        let row = row_of(&self.collector.output(row, output_idx), row.row_idx)?;
        Ok(row.elements()?.copy_to(io.output(output_idx, &row.shape())?)?)
    }

    /// Reports to the collector that the run no longer needs the engine.
    pub(super) fn leave(&mut self) {
        if let Some(mut inputs) = self.collector.leave(self.seat_idx) {
            inputs.clear();
            self.inputs = inputs;
        }
    }

    /// Returns the durations of the device's steps in the call; `None` if the latest run was not batched.
    pub(super) fn times(&self) -> Option<&[Duration]> {
        self.is_gathered.then_some(&*self.times)
    }

    /// Returns the execution times of the nodes in the call; `None` if the latest run was not batched, or if the device reported no times.
    pub(super) fn profile(&self) -> Option<Vec<NodeTime>> {
        self.profile.as_ref().filter(|_| self.is_gathered).map(|profile| profile.to_vec())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
        self.collector.give_seat_back(self.seat_idx);
    }
}

/// Returns the region of one batch item in a tensor.
fn row_of(batch: &Tensor, row_idx: usize) -> Result<Tensor> {
    let shape = batch.shape();
    let (mut begin, mut end) = ([0; MAX_RANK], [0; MAX_RANK]);
    end[..shape.len()].copy_from_slice(&shape);
    (begin[0], end[0]) = (row_idx, row_idx + 1);
    Ok(batch.roi(&begin[..shape.len()], &end[..shape.len()])?)
}

/// Checks that the outputs of a batch item do not depend on the other items: runs a few random items in one call, then each item alone, and
/// compares the outputs.
fn try_rows(alone: &CompiledModel, together: &CompiledModel, n_rows: usize) -> Result<()> {
    for draw in Draw::ALL {
        try_draw(alone, together, n_rows, draw).map_err(|error| match draw {
            // The model may not accept these values, for example as indices. Then the items count as dependent.
            Draw::Usual => error,
            _ => refused(format!("the test whether its batch items are independent failed: {error}")),
        })?;
    }
    alone.release();
    together.release();
    Ok(())
}

/// The values of a batch that tests whether batch items are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Draw {
    /// Numbers from 0 to 1.
    Usual,
    /// Numbers of both signs.
    Signed,
    /// Numbers of pixels: 0 to 255.
    Large,
    /// Numbers near 0.
    Small,
    /// All numbers of an item are equal.
    Constant,
    /// Only the last item has large numbers.
    LargeLast,
    /// Only the first item has numbers below 0.
    NegativeFirst,
}

impl Draw {
    const ALL: [Self; 7] = [Self::Usual, Self::Signed, Self::Large, Self::Small, Self::Constant, Self::LargeLast, Self::NegativeFirst];

    /// Returns a number of item `row_idx` of `n_rows`. `random` is from 0 to 1. `is_index` limits the result to 0 and 1, because the model
    /// may use an integer as an index, and a larger index may be out of range.
    fn number(self, random: f32, row_idx: usize, n_rows: usize, is_index: bool) -> f32 {
        if is_index {
            return match self {
                Self::Constant | Self::LargeLast => f32::from(u8::from(row_idx + 1 == n_rows)),
                Self::NegativeFirst => f32::from(u8::from(row_idx > 0)),
                _ => random.round(),
            };
        }
        match self {
            Self::Usual => random,
            Self::Signed => 2.0 * random - 1.0,
            Self::Large => 255.0 * random,
            Self::Small => random / 1024.0,
            Self::Constant => row_idx as f32 / 2.0,
            Self::LargeLast => {
                if row_idx + 1 == n_rows {
                    255.0 * random
                } else {
                    random
                }
            }
            Self::NegativeFirst => {
                if row_idx == 0 {
                    -8.0 * random
                } else {
                    random
                }
            }
        }
    }
}

fn try_draw(alone: &CompiledModel, together: &CompiledModel, n_rows: usize, draw: Draw) -> Result<()> {
    let precision = together.properties().config.precision;
    let batches = alone.inputs().iter().map(|port| noise(port, n_rows, draw)).collect::<Result<Vec<_>>>()?;
    let whole = together.infer(&batches).map_err(|error| error.context(format!("{n_rows} batch items in one call")))?.into_tensors();
    for (port, output) in together.outputs().iter().zip(&whole) {
        if output.shape().first() != Some(&n_rows) {
            return Err(refused(format!(
                "output {port}: expected {n_rows} batch items, got the shape {}; use batch size 1",
                output.shape()
            )));
        }
    }
    for row_idx in 0..n_rows {
        let rows = batches.iter().map(|batch| row_of(batch, row_idx)).collect::<Result<Vec<_>>>()?;
        let results = alone.infer(&rows).map_err(|error| error.context("one batch item"))?.into_tensors();
        for ((port, of_one), of_all) in together.outputs().iter().zip(&results).zip(&whole) {
            if let Some(difference) = difference(of_one, &row_of(of_all, row_idx)?, precision)? {
                let how = format!("output {port}, batch item {row_idx}: {difference}");
                return Err(refused(mixes_rows(&how)));
            }
        }
    }
    Ok(())
}

/// Creates a tensor of `n_rows` batch items with different values.
fn noise(port: &Port, n_rows: usize, draw: Draw) -> Result<Tensor> {
    let mut is_batch = true;
    let mut extents = port.shape.dims().iter().map(|dim| match dim {
        _ if std::mem::take(&mut is_batch) => n_rows,
        Dim::Fixed(extent) => *extent,
        _ => 0,
    });
    let dims: [usize; MAX_RANK] = std::array::from_fn(|_| extents.next().unwrap_or(0));
    let tensor = Tensor::new(port.element, Shape::new(&dims[..port.shape.dims().len()]))?;
    let mut state = 0x9e37_79b9_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as f32 / 256.0
    };
    let mut bytes = tensor.bytes_mut()?;
    let len = bytes.extent().len() / port.element.size();
    let is_float = matches!(port.element, ElementType::F32 | ElementType::F64 | ElementType::F16 | ElementType::Bf16);
    // Pixels are whole numbers from 0 to 255.
    let scale = if port.element == ElementType::U8 && draw == Draw::Usual { 255.0 } else { 1.0 };
    let is_index = !is_float && port.element != ElementType::U8;
    let number = |idx: usize, random: f32| scale * draw.number(random, idx * n_rows / len, n_rows, is_index);
    let values: Vec<f32> = (0..len).map(|idx| number(idx, random())).collect();
    let shape = tensor.shape();
    let values = ndarray::ArrayD::from_shape_vec(&*shape, values).map_err(|error| Error::new(ErrorKind::Tensor, error.to_string()))?;
    Values::copy_to(&values, &mut bytes)?;
    drop(bytes);
    Ok(tensor)
}

/// Describes the first pair of values that differ by more than rounding can explain; `None` if there is none. Rounding depends on the value
/// and on the largest value, because a small value may be a difference of large ones.
fn difference(one: &Tensor, of_all: &Tensor, precision: Precision) -> Result<Option<String>> {
    if one.shape() != of_all.shape() {
        return Ok(Some(format!("computed alone, the item has the shape {}; computed in a batch, {}", one.shape(), of_all.shape())));
    }
    let is_short = matches!(one.element(), ElementType::F16 | ElementType::Bf16) || precision != Precision::F32;
    let tolerance = if is_short { 3e-2 } else { 1e-3 };
    let numbers = match one.element() {
        ElementType::F32 => (numbers::<f32>(one)?, numbers::<f32>(of_all)?),
        ElementType::F64 => (numbers::<f64>(one)?, numbers::<f64>(of_all)?),
        ElementType::F16 => (numbers::<f16>(one)?, numbers::<f16>(of_all)?),
        ElementType::Bf16 => (numbers::<bf16>(one)?, numbers::<bf16>(of_all)?),
        _ => {
            let (mut a, mut b) = (vec![0; one.layout().dense_bytes()], vec![0; of_all.layout().dense_bytes()]);
            one.elements()?.copy_all_to_dense(&mut a)?;
            of_all.elements()?.copy_all_to_dense(&mut b)?;
            return Ok((a != b).then(|| "the bytes differ from those of a run with one item".to_owned()));
        }
    };
    // `inf - inf` is NaN, so infinite values are compared with `==`, and only finite values with the tolerance.
    let largest = numbers.1.iter().filter(|value| value.is_finite()).fold(0.0_f32, |largest, value| largest.max(value.abs()));
    // Values that are all small, such as probabilities of many classes, must not differ by as much as they are large.
    let scale = largest.clamp(1e-6, 1.0);
    let is_near = |a: f32, b: f32| b.is_finite() && (a - b).abs() <= tolerance * (scale + b.abs() + largest / 128.0);
    let is_close = |a: f32, b: f32| a == b || is_near(a, b) || (a.is_nan() && b.is_nan());
    let differs = numbers.0.iter().zip(&numbers.1).find(|(a, b)| !is_close(**a, **b));
    Ok(differs.map(|(a, b)| format!("computed alone, a value is {a}; computed in a batch, {b}")))
}

fn numbers<T: Element>(tensor: &Tensor) -> Result<Vec<f32>> {
    let numbers = Tensor::new(ElementType::F32, tensor.shape())?;
    let view = tensor.view::<T>()?;
    Values::copy_to(&*view, &mut numbers.bytes_mut()?)?;
    drop(view);
    Ok(numbers.view::<f32>()?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(element: ElementType, values: &[f32]) -> Tensor {
        let tensor = Tensor::new(element, [values.len()]).unwrap();
        Values::copy_to(&ndarray::aview1(values), &mut tensor.bytes_mut().unwrap()).unwrap();
        tensor
    }

    #[test]
    fn rows_are_the_same_but_for_the_order_of_sums() {
        use ElementType::{Bf16, Bool, F16, F32, F64, I64, U8};
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let precise = [(1.0, 1.0), (1.0, 1.0015), (-100.0, -100.05), (0.0, -0.0009), (inf, inf), (nan, nan)];
        let short = [(1.0, 1.03), (-100.0, -102.0), (0.0, 0.02)];
        let wrong = [(1.0, 1.1), (1.0, -1.0), (100.0, 108.0), (0.0, 0.05), (inf, -inf), (inf, 1.0), (1.0, inf), (nan, 1.0), (1.0, nan)];
        let differs = |element, precision, (alone, in_batch): (f32, f32)| {
            let (alone, in_batch) = (tensor(element, &[2.0, alone]), tensor(element, &[2.0, in_batch]));
            difference(&alone, &in_batch, precision).unwrap().is_some()
        };
        for (element, precision) in [F32, F64, F16, Bf16].into_iter().flat_map(|it| [(it, Precision::F32), (it, Precision::F16)]) {
            let is_short = precision != Precision::F32 || [F16, Bf16].contains(&element);
            let cases = [(&precise[..], false), (&short[..], !is_short), (&wrong[..], true)];
            for (pair, expected) in cases.iter().flat_map(|(pairs, expected)| pairs.iter().map(move |pair| (*pair, *expected))) {
                assert_eq!(differs(element, precision, pair), expected, "{pair:?} as {element}, computed in {precision:?}");
            }
        }
        let small = difference(&tensor(F32, &[1e-4, 2e-4]), &tensor(F32, &[2e-4, 2e-4]), Precision::F32).unwrap();
        assert!(small.is_some(), "small values differ, too");
        for element in [U8, I64, Bool] {
            assert!(!differs(element, Precision::F16, (1.0, 1.0)) && differs(element, Precision::F16, (1.0, 0.0)), "{element}");
        }
        let other = difference(&tensor(F32, &[1.0, 2.0]), &tensor(F32, &[1.0]), Precision::F32).unwrap();
        assert_eq!(other.as_deref(), Some("computed alone, the item has the shape [2]; computed in a batch, [1]"));
    }

    #[test]
    fn rows_to_try_are_drawn_from_what_a_model_can_take() {
        let values = |element| {
            let port = Port::new("x", element, [Dim::Dynamic, Dim::Fixed(5), Dim::Fixed(8)]);
            let tensor = noise(&port, 3, Draw::Usual).unwrap();
            assert_eq!(*tensor.shape(), [3, 5, 8]);
            match element {
                ElementType::F32 => numbers::<f32>(&tensor),
                ElementType::F16 => numbers::<f16>(&tensor),
                ElementType::U8 => numbers::<u8>(&tensor),
                _ => numbers::<i64>(&tensor),
            }
            .unwrap()
        };
        for element in [ElementType::F32, ElementType::F16, ElementType::U8, ElementType::I64] {
            let values = values(element);
            let rows: Vec<_> = values.chunks(40).collect();
            assert!(rows[0] != rows[1] && rows[1] != rows[2] && rows[0] != rows[2], "{element}: {rows:?}");
            let range = match element {
                ElementType::F32 | ElementType::F16 => 0.0..=1.0,
                ElementType::U8 => 0.0..=255.0,
                // The model may use an integer as an index, so only 0 and 1 are drawn.
                _ => 0.0..=1.0,
            };
            assert!(values.iter().all(|value| range.contains(value)), "{element}: {values:?}");
            let n_between = values.iter().filter(|value| **value != *range.start() && **value != *range.end()).count();
            assert_eq!(n_between > 60, element != ElementType::I64, "{element}: {values:?}");
        }
    }
}
