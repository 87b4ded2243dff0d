//! Dropping of handles: in any order, during a run, and in the request's own callback. Also tests which values stay usable after others are
//! dropped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use roiflow::runtime::executor::{Executor, Task};
use roiflow::tensor::Tensor;

use super::*;
use crate::support::{eventually, in_time, row, values};

/// Equivalent OpenVINO test (see `tests/conformance.txt`): C13 all 6 drop orders of core, compiled model and request. The equivalent of the
/// test canRun3AsyncRequestsConsistentlyFromThreadsWithoutWait is in the module `concurrent`.
#[test]
fn core_model_and_request_may_go_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for running in [false, true] {
            let mut core = Core::new();
            core.register(Arc::new(NullDevice::new(Arc::new(doubling()))));
            let info = ModelInfo { inputs: vec![port("x", &[1, 4])], outputs: vec![port("y", &[1, 4])], ..ModelInfo::default() };
            let model = core.compile_model(&Model::from_ports(info), "NULL", &Config::default()).unwrap();
            let request = model.create_infer_request().unwrap();
            if running {
                request.start_async(()).unwrap();
            }
            let (mut core, mut model, mut request) = (Some(core), Some(model), Some(request));
            in_time(move || {
                for owner in order {
                    match owner {
                        0 => drop(core.take()),
                        1 => drop(model.take()),
                        _ => drop(request.take()),
                    }
                }
            });
        }
    }
}

/// Equivalent OpenVINO tests: LoadedAny, CreateRequestWithCoreRemoved. A request works after its core and model are dropped.
#[test]
fn a_request_works_without_its_core_and_model() {
    let request = compile(doubling()).create_infer_request().unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    request.wait().unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0; 4]);
    assert_eq!(request.compiled_model().outputs()[0].name(), "y");
    assert_eq!(request.compiled_model().properties().device, "NULL");
}

/// Equivalent OpenVINO test: LoadedTensor.
#[test]
fn tensors_outlive_request_model_and_core() {
    check_that_tensors_outlive(compile(doubling()));
}

/// Checks tensors that outlive their request. The model must double rows of four values. Only the request keeps the model and its core
/// alive.
pub fn check_that_tensors_outlive(model: CompiledModel) {
    let request = model.create_infer_request().unwrap();
    let own: Tensor = request.input_tensor(()).unwrap();
    request.infer(row([4.0; 4])).unwrap();
    let output = request.output_tensor(()).unwrap();
    let region = output.roi(&[0, 1], &[1, 3]).unwrap();
    drop((request, model));
    assert_eq!((values(&output), values(&region)), (vec![8.0; 4], vec![8.0; 2]));
    own.view_mut::<f32>().unwrap().fill(1.0);
}

/// Dropping a running request waits for the run, and the callback is not called.
#[test]
fn a_request_that_is_dropped_while_it_runs_never_calls_back() {
    let (request, gate) = gated();
    let n_called = Arc::new(AtomicUsize::new(0));
    let n = n_called.clone();
    request
        .set_callback(move |_, _| {
            n.fetch_add(1, Ordering::AcqRel);
        })
        .unwrap();
    request.start_async(()).unwrap();
    gate.wait_for_arrivals(1);
    let weak = request.downgrade();
    let dropping = std::thread::spawn(move || drop(request));
    // No handle is left. The result must not depend on whether the run or the drop continues first.
    while weak.upgrade().is_some() {
        std::thread::yield_now();
    }
    gate.open();
    dropping.join().unwrap();
    assert_eq!(n_called.load(Ordering::Acquire), 0);
    assert_eq!(Arc::strong_count(&n_called), 1, "the callback was not dropped");
}

#[test]
fn a_request_that_is_dropped_in_the_queue_never_runs() {
    let (manual, script) = (Arc::new(Manual::default()), Arc::new(Script { executor: None, ..doubling() }));
    let mut queued = doubling();
    queued.executor = Some(manual.clone());
    let request = compile(queued).create_infer_request().unwrap();
    let (entered, has_entered) = mpsc::channel();
    request.set_callback(move |_, _| entered.send(()).unwrap()).unwrap();
    request.start_async(()).unwrap();
    // Preprocessing runs on the pool and then queues the step of the device. Wait until the step is queued.
    while manual.n_queued() == 0 {
        std::thread::yield_now();
    }
    let output = request.output_tensor(());
    assert!(output.is_err());
    in_time(move || drop(request));
    assert!(manual.run_one());
    assert!(has_entered.try_recv().is_err());
    assert_eq!(script.n_calls(), 0);
}

/// Dropping a running request releases its tensors.
#[test]
fn the_users_tensors_are_free_after_the_drop() {
    let (request, manual) = turned_by_hand();
    let (input, output) = (row([1.0; 4]), row([0.0; 4]));
    request.set_output_tensor((), &output).unwrap();
    request.start_async(&input).unwrap();
    assert!(input.view_mut::<f32>().is_err() && output.view::<f32>().is_err());
    drop(request);
    input.view_mut::<f32>().unwrap().fill(0.0);
    output.view_mut::<f32>().unwrap().fill(0.0);
    assert!(manual.run_one());
}

/// The request's own callback drops the last handle. The drop must not block.
#[test]
fn a_callback_may_drop_the_last_handle() {
    for restarts in [false, true] {
        let request = compile(doubling()).create_infer_request().unwrap();
        let holder = Arc::new(Mutex::new(Some(request.clone())));
        let (sender, receiver) = mpsc::channel();
        let (held, weak) = (holder.clone(), request.downgrade());
        request
            .set_callback(move |request, _| {
                drop(held.lock().unwrap().take());
                if restarts {
                    // The start cannot fail with `Stopped`, because the running callback still has a handle of the request.
                    let _started = request.start_async(());
                }
                sender.send(()).unwrap();
            })
            .unwrap();
        request.start_async(()).unwrap();
        drop(request);
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        in_time(move || {
            while weak.upgrade().is_some() {
                std::thread::yield_now();
            }
        });
        assert!(holder.lock().unwrap().is_none());
    }
}

/// A callback may drop the last handle of another running request.
#[test]
fn a_callback_may_drop_another_running_request() {
    let (other, manual) = turned_by_hand();
    other.start_async(()).unwrap();
    let other = Mutex::new(Some(other));
    let request = compile(doubling()).create_infer_request().unwrap();
    request.set_callback(move |_, _| drop(other.lock().unwrap().take())).unwrap();
    request.start_async(()).unwrap();
    in_time(move || request.wait()).unwrap();
    assert!(manual.run_one());
}

/// A step drops the last handle of its own request. The drop must not wait for the step.
#[test]
fn a_step_may_drop_the_last_handle() {
    let (request, gate) = gated();
    let holder = Arc::new(Mutex::new(None));
    let (sender, receiver) = mpsc::channel();
    let held = holder.clone();
    request
        .append_step("last", move |_| {
            let begun = std::time::Instant::now();
            drop::<Option<InferRequest>>(held.lock().unwrap().take());
            sender.send(begun.elapsed()).unwrap();
            Ok(())
        })
        .unwrap();
    request.start_async(()).unwrap();
    gate.wait_for_arrivals(1);
    *holder.lock().unwrap() = Some(request);
    gate.open();
    let waited = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(waited < Duration::from_secs(2), "the drop waited {waited:?} for its own step");
}

/// A step that waits for its own run gets an error. Without the error, the step would block forever.
#[test]
fn waiting_in_an_own_step_is_refused() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let weak = request.downgrade();
    request
        .append_step("wait", move |_| match weak.upgrade() {
            Some(request) => request.wait(),
            None => Ok(()),
        })
        .unwrap();
    let request_in_step = request.clone();
    assert_eq!(kind(in_time(move || request_in_step.infer(()))), Some(ErrorKind::WouldDeadlock));
    request.start_async(()).unwrap();
    assert_eq!(kind(in_time(move || request.wait())), Some(ErrorKind::WouldDeadlock));
}

#[test]
fn a_weak_handle_does_not_keep_a_request() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let weak = request.downgrade();
    assert_eq!(weak.upgrade(), Some(request.clone()));
    drop(request);
    assert_eq!(weak.upgrade(), None);
}

/// A run that outlives its dropped request keeps its tensors and steps. The end of the run frees the tensors and steps.
#[test]
fn a_run_that_outlives_its_request_keeps_its_memory_until_it_ends() {
    let gate = Gate::closed();
    let config = Config { drop_patience: Duration::ZERO, ..Config::default() };
    let model = compile_with(Script { gate: Some(gate.clone()), ..doubling() }, &config);
    let request = model.create_infer_request().unwrap();
    let (input, output, watched) = (row([1.0; 4]), row([0.0; 4]), Arc::new(()));
    let kept = watched.clone();
    request
        .append_step("keep", move |_| {
            let _kept = &kept;
            Ok(())
        })
        .unwrap();
    let called = watched.clone();
    request
        .set_callback(move |_, _| {
            let _called = &called;
            panic!("the request was dropped, so no callback is called")
        })
        .unwrap();
    request.set_output_tensor((), &output).unwrap();
    request.start_async(&input).unwrap();
    gate.wait_for_arrivals(1);
    in_time(move || drop(request));
    assert_eq!(Arc::strong_count(&watched), 2, "the callback was dropped, and the run still exists");
    let busy = Some(roiflow::tensor::ErrorKind::Busy);
    assert_eq!(input.view_mut::<f32>().err().map(|error| error.kind()), busy, "the device still reads it");
    assert_eq!(output.view::<f32>().err().map(|error| error.kind()), busy, "the device still writes it");
    gate.open();
    in_time(move || {
        while Arc::strong_count(&watched) > 1 {
            std::thread::yield_now();
        }
        input.view_mut::<f32>().unwrap().fill(0.0);
        output.view_mut::<f32>().unwrap().fill(0.0);
    });
}

/// An executor that runs tasks immediately and keeps references to them. The executor behaves like a worker that was preempted before it
/// released its last task.
#[derive(Debug, Default)]
struct Hoarder(Mutex<Vec<Kept>>);

struct Kept(Arc<dyn Task>);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a task with {} owners", Arc::strong_count(&self.0))
    }
}

impl Executor for Hoarder {
    fn execute(&self, task: Arc<dyn Task>) {
        self.0.lock().unwrap().push(Kept(task.clone()));
        task.run();
    }
}

/// The drop itself must free the request and the model. If a worker freed an engine later, the process might already be exiting.
#[test]
fn model_and_request_are_freed_when_their_drops_return() {
    let (script, watched) = (Arc::new(doubling()), Arc::new(()));
    let model = compile_ports(script.clone(), vec![port("x", &[1, 4])], vec![port("y", &[1, 4])]);
    let request = model.create_infer_request().unwrap();
    let executor = Arc::new(Hoarder::default());
    let kept = watched.clone();
    request
        .append_step_on(executor.clone(), "keep", move |_| {
            let _kept = &kept;
            Ok(())
        })
        .unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    request.wait().unwrap();
    drop((model, request));
    assert_eq!(executor.0.lock().unwrap().len(), 1, "the task is still there");
    assert_eq!((Arc::strong_count(&script), Arc::strong_count(&watched)), (1, 1));
    // The worker that queued the step may hold a reference to the executor slightly longer.
    eventually(move || Arc::strong_count(&executor) == 1);
}

/// A run that outlives its dropped request still counts in the maximum number of requests.
#[test]
fn a_drop_waits_no_longer_than_it_was_told() {
    let gate = Gate::closed();
    let patience = Duration::from_millis(20);
    let config = Config { drop_patience: patience, ..Config::default() };
    let request = compile_with(Script { gate: Some(gate.clone()), ..doubling() }, &config).create_infer_request().unwrap();
    request.start_async(()).unwrap();
    gate.wait_for_arrivals(1);
    let begun = std::time::Instant::now();
    in_time(move || drop(request));
    assert!(begun.elapsed() >= patience);
    gate.open();
}
