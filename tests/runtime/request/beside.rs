//! Tests with a device that works like an accelerator. One step submits the run to the engine, which reports completion later. No thread
//! waits for that report. All other methods of the device are the default implementations of the traits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use roiflow::runtime::device::{Device, DeviceInfo, DeviceModel, DeviceRequest, DeviceStep};
use roiflow::runtime::executor::{Executor, Executors};
use roiflow::runtime::{CancelToken, Completion, ContextParams, Interrupt, ModelSource, RemoteContext};
use roiflow::tensor::{Shape, Tensor};

use super::*;
use crate::support::{eventually, in_time, receive, row, values};

type Rows = fn(&mut DeviceIo<'_>) -> Result<()>;

/// A device that computes `y = 2 x`, or `rows`. After compilation, a run completes only when the test calls a method of `hand`.
struct Beside {
    hand: Arc<Hand>,
    rows: Rows,
    log: Arc<Log>,
    /// If set, no step uses a pool: steps run on the thread that starts the run, and later steps on the thread that completes it through
    /// `hand`.
    is_inline: bool,
    /// Whether the step that starts the engine is the last step, so that no later step reads the results.
    is_one_step: bool,
}

/// The engine. It completes a run only when the test calls a method.
#[derive(Default)]
struct Hand {
    holds: AtomicBool,
    pending: Mutex<VecDeque<Arc<Completion>>>,
}

impl Hand {
    fn submit(&self, completion: &Arc<Completion>) {
        match self.holds.load(Ordering::Acquire) {
            true => self.pending.lock().unwrap().push_back(completion.clone()),
            false => completion.complete(Ok(())),
        }
    }

    /// Completes the oldest submitted run.
    fn run_one(&self) -> bool {
        self.end_one(Ok(()))
    }

    fn end_one(&self, result: Result<()>) -> bool {
        let oldest = self.pending.lock().unwrap().pop_front();
        oldest.map(|completion| completion.complete(result)).is_some()
    }

    fn n_queued(&self) -> usize {
        self.pending.lock().unwrap().len()
    }
}

/// Counts the calls of the engine, and selects the calls that fail.
#[derive(Default)]
struct Log {
    n_allocated: AtomicUsize,
    n_submitted: AtomicUsize,
    n_ended: AtomicUsize,
    interrupted: Mutex<Option<mpsc::Sender<()>>>,
    /// Whether the engine fails to start the next run, but still reports its completion.
    refuses: AtomicBool,
    /// Whether the step that starts the next run fails after the engine has started.
    fails_behind: AtomicBool,
}

impl Interrupt for Log {
    fn interrupt(&self) {
        if let Some(sender) = &*self.interrupted.lock().unwrap() {
            sender.send(()).unwrap();
        }
    }
}

impl Beside {
    fn new(rows: Rows) -> Arc<Self> {
        Arc::new(Self { hand: Arc::default(), rows, log: Arc::default(), is_inline: false, is_one_step: false })
    }

    fn inline(rows: Rows) -> Arc<Self> {
        Arc::new(Self { hand: Arc::default(), rows, log: Arc::default(), is_inline: true, is_one_step: false })
    }

    fn compile(self: &Arc<Self>, inputs: Vec<Port>, config: &Config) -> Result<CompiledModel> {
        self.hand.holds.store(false, Ordering::Release);
        let mut core = Core::new();
        core.register(self.clone());
        let outputs = inputs.iter().map(|port| Port { names: vec!["y".into()], ..port.clone() }).take(1).collect();
        let compiled = core.compile_model(&Model::from_ports(ModelInfo { inputs, outputs, ..ModelInfo::default() }), "BESIDE", config);
        self.hand.holds.store(true, Ordering::Release);
        self.log.n_ended.store(0, Ordering::Release);
        compiled
    }

    fn n_ended(&self) -> usize {
        self.log.n_ended.load(Ordering::Acquire)
    }

    fn n_submitted(&self) -> usize {
        self.log.n_submitted.load(Ordering::Acquire)
    }

    /// Waits until `n` runs are submitted to the engine. No thread waits for their completion.
    fn wait_for_submitted(&self, n: usize) {
        let hand = self.hand.clone();
        eventually(move || hand.n_queued() == n);
    }
}

impl Device for Beside {
    fn name(&self) -> &str {
        "BESIDE"
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { description: "for tests".to_owned(), properties: Vec::new(), missing: None }
    }

    fn read_model(&self, _source: &ModelSource) -> Result<ModelInfo> {
        Err(Error::new(ErrorKind::Unsupported, "device BESIDE reads no files"))
    }

    fn compile(&self, model: &Model, _config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        let executor: Arc<dyn Executor> = if self.is_inline { Arc::new(Inline) } else { executors.cpu()? };
        let (hand, log) = (self.hand.clone(), self.log.clone());
        let mut info = model.info().clone();
        // Like real engines, this device does not report axes.
        info.inputs.iter_mut().for_each(|port| port.axes = None);
        Ok(Arc::new(BesideModel { info, executor, hand, rows: self.rows, log, is_one_step: self.is_one_step }))
    }
}

struct BesideModel {
    info: ModelInfo,
    executor: Arc<dyn Executor>,
    hand: Arc<Hand>,
    rows: Rows,
    log: Arc<Log>,
    is_one_step: bool,
}

impl DeviceModel for BesideModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn steps(&self) -> Vec<DeviceStep> {
        let names = if self.is_one_step { &["submit"][..] } else { &["submit", "finish"] };
        names.iter().map(|name| DeviceStep { name, executor: self.executor.clone() }).collect()
    }

    fn optimal_number_of_requests(&self) -> usize {
        1
    }

    fn create_request(&self) -> Result<Box<dyn DeviceRequest>> {
        let (hand, log) = (self.hand.clone(), self.log.clone());
        Ok(Box::new(BesideRequest { hand, rows: self.rows, log, completion: Completion::new(), is_one_step: self.is_one_step }))
    }
}

struct BesideRequest {
    hand: Arc<Hand>,
    rows: Rows,
    log: Arc<Log>,
    completion: Arc<Completion>,
    is_one_step: bool,
}

impl DeviceRequest for BesideRequest {
    fn allocate_input(&mut self, _port_idx: usize, shape: Shape) -> Result<Tensor> {
        self.log.n_allocated.fetch_add(1, Ordering::AcqRel);
        Ok(Tensor::new(ElementType::F32, shape)?)
    }

    fn run_step(&mut self, step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()> {
        if step_idx > 0 {
            return (self.rows)(io);
        }
        if self.is_one_step {
            (self.rows)(io)?;
        }
        self.log.n_submitted.fetch_add(1, Ordering::AcqRel);
        self.completion.start(|| {
            self.hand.submit(&self.completion);
            match self.log.refuses.swap(false, Ordering::AcqRel) {
                true => Err(Error::new(ErrorKind::Device, "the engine is busy")),
                false => Ok(()),
            }
        })?;
        let engine: Arc<dyn Interrupt> = self.log.clone();
        cancel.interrupt_with(&engine);
        match self.log.fails_behind.swap(false, Ordering::AcqRel) {
            true => Err(Error::new(ErrorKind::Device, "behind the start")),
            false => Ok(()),
        }
    }

    fn completion(&self) -> Option<Arc<Completion>> {
        Some(self.completion.clone())
    }

    fn end_run(&mut self) {
        assert!(!self.completion.is_pending(), "the engine uses the tensors of a run that ends");
        self.log.n_ended.fetch_add(1, Ordering::AcqRel);
    }
}

fn batches(batch_size: usize) -> Config {
    Config { batch_size, batch_timeout: Duration::from_secs(100 * 3600), ..Config::default() }
}

/// Waits for the run and returns its result. The test has dropped all other handles of the request.
fn ended(request: &InferRequest) -> Result<()> {
    let request = request.clone();
    in_time(move || request.wait())
}

fn x() -> Vec<Port> {
    vec![port("x", &[0, 4])]
}

/// Tests with and without batching. With batching, this is the only request of the model.
#[test]
fn a_run_waits_for_the_engine_where_its_request_says() {
    for batch_size in [1, 2] {
        let device = Beside::new(double);
        let request = device.compile(x(), &batches(batch_size)).unwrap().create_infer_request().unwrap();
        let n_before = device.n_submitted();
        request.start_async(row([3.0; 4])).unwrap();
        device.wait_for_submitted(1);
        assert_eq!((device.n_submitted() - n_before, request.wait_for(Duration::ZERO).unwrap()), (1, false));
        assert!(device.hand.run_one());
        ended(&request).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [6.0; 4]);
    }
}

#[test]
fn a_call_of_several_runs_waits_for_the_engine_as_one_run_does() {
    let device = Beside::new(double);
    let model = device.compile(x(), &batches(3)).unwrap();
    let requests: Vec<_> = (0..3).map(|_| model.create_infer_request().unwrap()).collect();
    let n_before = device.n_submitted();
    requests.iter().enumerate().for_each(|(idx, request)| request.start_async(row([idx as f32; 4])).unwrap());
    device.wait_for_submitted(1);
    assert_eq!(device.n_submitted() - n_before, 1);
    assert!(device.hand.run_one());
    for (idx, request) in requests.iter().enumerate() {
        ended(request).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0 * idx as f32; 4]);
    }
}

/// While the only engine is busy, runs are batched, even if the batch timeout is short. When the engine becomes idle, they start in one
/// call.
#[test]
fn runs_gather_while_the_engine_is_busy() {
    let device = Beside::inline(double);
    let model = device.compile(x(), &Config { batch_timeout: Duration::ZERO, ..batches(8) }).unwrap();
    let requests: Vec<_> = (0..4).map(|_| model.create_infer_request().unwrap()).collect();
    let n_before = device.n_submitted();
    for (idx, request) in requests.iter().enumerate() {
        request.start_async(row([idx as f32; 4])).unwrap();
        assert_eq!((device.n_submitted() - n_before, device.hand.n_queued()), (1, 1), "run {idx}");
    }
    assert!(device.hand.run_one());
    ended(&requests[0]).unwrap();
    assert_eq!((device.n_submitted() - n_before, device.hand.n_queued()), (2, 1));
    requests[0].start_async(row([9.0; 4])).unwrap();
    assert_eq!(device.hand.n_queued(), 1, "the engine computes a batch of the other three runs");
    assert!(device.hand.run_one());
    for (idx, request) in requests.iter().enumerate().skip(1) {
        ended(request).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0 * idx as f32; 4]);
    }
    assert!(device.hand.run_one());
    ended(&requests[0]).unwrap();
    assert_eq!((device.n_submitted() - n_before, device.hand.n_queued()), (3, 0));
}

/// Axes that the caller declared are used, although the engine does not report axes.
#[test]
fn the_callers_axes_hold_on_a_device_that_knows_none() {
    let core = {
        let mut core = Core::new();
        core.register(Beside::new(double));
        core
    };
    let model = Model::from_ports(ModelInfo { inputs: x(), outputs: vec![port("y", &[0, 4])], ..ModelInfo::default() });
    for (axes, expected) in [("NC", None), ("CN", Some(ErrorKind::Tensor))] {
        let model = core.compile_model(&model.with_axes("x", axes.parse().unwrap()).unwrap(), "BESIDE", &Config::default()).unwrap();
        assert_eq!(model.inputs()[0].axes, Some(axes.parse().unwrap()));
        let request = model.create_infer_request().unwrap();
        assert_eq!(kind(request.set_tensors("x", &[row([1.0; 4]), row([2.0; 4])])), expected, "{axes}");
    }
}

/// A drop during the computation interrupts the engine. The drop returns when the engine no longer uses the tensors.
#[test]
fn a_drop_while_the_engine_computes_waits_for_its_end() {
    for batch_size in [1, 2] {
        let device = Beside::new(double);
        let (sender, interrupted) = mpsc::channel();
        let model = device.compile(x(), &batches(batch_size)).unwrap();
        *device.log.interrupted.lock().unwrap() = Some(sender);
        let request = model.create_infer_request().unwrap();
        request.start_async(row([1.0; 4])).unwrap();
        device.wait_for_submitted(1);
        let dropping = std::thread::spawn(move || drop(request));
        receive(&interrupted);
        assert_eq!(device.n_ended(), 0);
        assert!(device.hand.run_one());
        in_time(move || dropping.join().unwrap());
        assert_eq!(device.n_ended(), 1, "the run ended before the engine completed it");
    }
}

/// A cancel during the computation interrupts the engine. The run ends when the engine no longer uses the tensors.
#[test]
fn a_canceled_run_ends_when_the_engine_is_done_with_it() {
    for batch_size in [1, 2] {
        let device = Beside::new(double);
        let request = device.compile(x(), &batches(batch_size)).unwrap().create_infer_request().unwrap();
        request.start_async(row([1.0; 4])).unwrap();
        device.wait_for_submitted(1);
        request.cancel();
        assert!(!request.wait_for(Duration::ZERO).unwrap());
        assert!(device.hand.run_one());
        assert_eq!(kind(in_time(move || request.wait())), Some(ErrorKind::Canceled));
        assert_eq!(device.n_ended(), 1);
    }
}

/// Returns a device, and a request whose run is submitted to the engine of this device. The caller must drop the request before the device.
fn submitted(batch_size: usize) -> (Arc<Beside>, InferRequest) {
    let device = Beside::new(double);
    let request = device.compile(x(), &batches(batch_size)).unwrap().create_infer_request().unwrap();
    request.start_async(row([3.0; 4])).unwrap();
    device.wait_for_submitted(1);
    (device, request)
}

/// Checks that the next run of the request works normally.
fn runs_again(device: &Beside, request: &InferRequest) {
    request.start_async(row([4.0; 4])).unwrap();
    device.wait_for_submitted(1);
    assert!(device.hand.run_one());
    ended(request).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [8.0; 4]);
}

#[test]
fn an_error_of_the_engine_is_the_error_of_the_run() {
    for batch_size in [1, 2] {
        let (device, request) = submitted(batch_size);
        assert!(device.hand.end_one(Err(Error::new(ErrorKind::Device, "out of order"))));
        let error = ended(&request).unwrap_err();
        assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::Device, "out of order"));
        assert_eq!(device.n_ended(), 1);
        runs_again(&device, &request);
    }
}

#[test]
fn an_engine_that_refuses_to_start_fails_the_run_and_leaves_nothing_pending() {
    let device = Beside::new(double);
    let request = device.compile(x(), &Config::default()).unwrap().create_infer_request().unwrap();
    device.log.refuses.store(true, Ordering::Release);
    request.start_async(row([1.0; 4])).unwrap();
    assert_eq!(ended(&request).unwrap_err().to_string(), "the engine is busy");
    // A late completion of the failed run has no effect.
    assert!(device.hand.run_one());
    runs_again(&device, &request);
}

/// The engine may use the tensors of a run until it completes the run, even if a step has failed.
#[test]
fn a_step_that_fails_after_the_start_ends_its_run_when_the_engine_is_done() {
    for calls_back_apart in [false, true] {
        let device = Beside::new(double);
        let config = Config { callback_thread: calls_back_apart, ..Config::default() };
        let request = device.compile(x(), &config).unwrap().create_infer_request().unwrap();
        device.log.fails_behind.store(true, Ordering::Release);
        request.start_async(row([1.0; 4])).unwrap();
        device.wait_for_submitted(1);
        request.cancel();
        assert!(!request.wait_for(Duration::from_millis(20)).unwrap());
        assert!(device.hand.run_one());
        assert_eq!(ended(&request).unwrap_err().to_string(), "behind the start");
        runs_again(&device, &request);
    }
}

/// The run ends when the engine reports completion. Asynchronous and synchronous runs are tested.
#[test]
fn the_last_step_may_be_the_one_that_starts_the_engine() {
    let fails = || Error::new(ErrorKind::Device, "out of order");
    for (is_inline, batch_size) in [(true, 1), (false, 1), (true, 2), (false, 2)] {
        let mut device = if is_inline { Beside::inline(double) } else { Beside::new(double) };
        Arc::get_mut(&mut device).unwrap().is_one_step = true;
        let request = device.compile(x(), &batches(batch_size)).unwrap().create_infer_request().unwrap();
        for result in [Ok(()), Err(fails()), Ok(())] {
            let expected = result.as_ref().err().map(ToString::to_string);
            request.start_async(row([3.0; 4])).unwrap();
            device.wait_for_submitted(1);
            assert!(!request.wait_for(Duration::ZERO).unwrap());
            assert!(device.hand.end_one(result));
            assert_eq!(ended(&request).err().map(|error| error.to_string()), expected);
        }
        let running = request.clone();
        let run = std::thread::spawn(move || running.infer(row([5.0; 4])));
        device.wait_for_submitted(1);
        assert!(device.hand.end_one(Err(fails())));
        assert_eq!(in_time(move || run.join().unwrap()).unwrap_err().to_string(), fails().to_string());
        runs_again(&device, &request);
    }
}

/// The engine may complete a run while the step that submits it still executes, or later. Tested with steps on the calling thread and on
/// other threads.
#[test]
fn a_run_goes_on_whichever_comes_first() {
    for (is_inline, batch_size) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
        let device = if is_inline { Beside::inline(double) } else { Beside::new(double) };
        let request = device.compile(x(), &batches(batch_size)).unwrap().create_infer_request().unwrap();
        device.hand.holds.store(false, Ordering::Release);
        for value in 1..=3 {
            request.start_async(row([value as f32; 4])).unwrap();
            ended(&request).unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0 * value as f32; 4]);
        }
        device.hand.holds.store(true, Ordering::Release);
        runs_again(&device, &request);
    }
}

#[test]
fn a_synchronous_run_waits_for_the_engine_on_its_own_thread() {
    for is_canceled in [false, true] {
        let device = Beside::new(double);
        let request = device.compile(x(), &Config::default()).unwrap().create_infer_request().unwrap();
        let running = request.clone();
        let run = std::thread::spawn(move || running.infer(row([5.0; 4])));
        device.wait_for_submitted(1);
        if is_canceled {
            request.cancel();
        }
        assert!(!run.is_finished() && device.n_ended() == 0);
        assert!(device.hand.run_one());
        assert_eq!(kind(in_time(move || run.join().unwrap())), is_canceled.then_some(ErrorKind::Canceled));
        assert_eq!(device.n_ended(), 1);
    }
}

#[test]
fn a_completion_that_is_told_again_is_ignored() {
    let (device, request) = submitted(1);
    let completion = device.hand.pending.lock().unwrap()[0].clone();
    assert!(device.hand.run_one());
    completion.complete(Err(Error::new(ErrorKind::Device, "again")));
    ended(&request).unwrap();
    completion.complete(Err(Error::new(ErrorKind::Device, "and when nothing is on")));
    runs_again(&device, &request);
}

/// Dropping the request blocks for at most `drop_patience`. The memory of the run is freed when the engine completes the run.
#[test]
fn an_engine_that_never_tells_holds_up_nobody_for_longer_than_said() {
    let device = Beside::new(double);
    let config = Config { drop_patience: Duration::from_millis(20), ..Config::default() };
    let request = device.compile(x(), &config).unwrap().create_infer_request().unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    device.wait_for_submitted(1);
    assert!(!request.wait_for(Duration::from_millis(20)).unwrap());
    request.cancel();
    assert!(!request.wait_for(Duration::from_millis(20)).unwrap());
    in_time(move || drop(request));
    assert_eq!(device.n_ended(), 0, "the engine may still write");
    let completion = Arc::downgrade(&device.hand.pending.lock().unwrap()[0]);
    assert!(device.hand.run_one());
    eventually(move || completion.strong_count() == 0);
    assert_eq!(device.n_ended(), 1);
}

#[test]
fn a_device_that_says_no_more_has_host_memory_and_no_times_of_nodes() {
    let (device, mut core) = (Beside::new(double), Core::new());
    core.register(Arc::new(NullDevice::default()));
    core.register(device.clone());
    let unsupported = |result: Result<RemoteContext>, expected: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(expected), "{error}");
    };
    let of_device = ContextParams::DeviceMemory { max_bytes: None };
    unsupported(core.default_context("BESIDE"), "device BESIDE has no memory of its own");
    unsupported(core.create_context("BESIDE", &of_device), "device BESIDE has no memory of its own");
    let remote = core.create_context("NULL", &of_device).unwrap().create_tensor(ElementType::F32, [1, 4]).unwrap();
    for batch_size in [1, 2] {
        let model = device.compile(x(), &batches(batch_size)).unwrap();
        assert_eq!(model.properties().ignored, []);
        assert_eq!(model.optimal_number_of_requests(), batch_size);
        let request = model.create_infer_request().unwrap();
        device.hand.holds.store(false, Ordering::Release);
        assert_eq!(kind(request.set_tensor("x", &remote)), Some(ErrorKind::Unsupported));
        request.infer(row([1.0; 4])).unwrap();
        let error = request.profiling_info().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("does not report the times of nodes"), "{error}");
    }
}

/// If the device does not know whether batch items are independent, compilation tests it.
#[test]
fn rows_are_gathered_only_if_none_depends_on_the_others() {
    let less_the_first: Rows = |io| {
        let (values, shape) = (read(io.input(0)), *io.input(0).layout().shape());
        write(io, 0, &shape, values.iter().map(|value| value - values[0]).collect())
    };
    let one_row: Rows = |io| {
        let values = read(io.input(0));
        write(io, 0, &[1, 4], values[..4].to_vec())
    };
    let failing: Rows = |io| match io.input(0).layout().shape()[0] {
        1 => double(io),
        _ => Err(Error::new(ErrorKind::Device, "one row at a time")),
    };
    let cases = [
        (less_the_first, "its batch items are not independent (output `y` [?, 4] f32, batch item 1: "),
        (one_row, "output `y` [?, 4] f32: expected 3 batch items, got the shape [1, 4]"),
        (failing, "3 batch items in one call: one row at a time"),
    ];
    for (rows, expected) in cases {
        let device = Beside::new(rows);
        device.compile(x(), &batches(1)).unwrap();
        assert_eq!(device.n_submitted(), 0, "without batching, there are no test runs");
        let error = device.compile(x(), &batches(3)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("batch size 3 of `model of ports` on device BESIDE: {expected}")), "{error}");
    }
}

/// The device allocates the memory of the request's own tensor. The device allocates new memory only if the present memory is too small.
#[test]
fn an_input_that_is_copied_stays_in_the_memory_that_the_device_gave() {
    let device = Beside::new(double);
    let request = device.compile(x(), &Config::default()).unwrap().create_infer_request().unwrap();
    let mut address = None;
    for (n_rows, n_allocated) in [(0, 1), (3, 2), (1, 2), (2, 2), (3, 2), (0, 2), (4, 3), (3, 3)] {
        request.set_inputs(ndarray::Array2::from_elem((n_rows, 4), 1.0_f32)).unwrap();
        assert_eq!(device.log.n_allocated.load(Ordering::Acquire), n_allocated, "{n_rows} rows");
        let tensor = request.input_tensor(()).unwrap();
        assert_eq!(values(&tensor), vec![1.0; 4 * n_rows]);
        if n_allocated == 2 {
            assert_eq!(*address.get_or_insert_with(|| tensor.address()), tensor.address());
        }
    }
}
