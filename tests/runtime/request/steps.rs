//! The steps of a run: their order, their executors, and which steps are skipped after an error.

use std::sync::{Arc, Mutex, mpsc};

use roiflow::runtime::{ErrorKind, FillInput, RunContext};
use roiflow::tensor::{BytesMut, Shape};

use super::*;
use crate::support::{in_time, receive, values};

type Log = Arc<Mutex<Vec<&'static str>>>;

fn write_to(log: &Log, line: &'static str) {
    log.lock().unwrap().push(line);
}

/// A filler that logs its call and writes ones.
struct Ones(Log);

impl FillInput for Ones {
    fn shape(&mut self, _port: &Port) -> Result<Shape> {
        Ok(Shape::from([1, 4]))
    }

    fn fill(&mut self, input: &mut BytesMut) -> Result<()> {
        write_to(&self.0, "fill");
        input.dense_mut::<f32>()?.fill(1.0);
        Ok(())
    }
}

/// Returns a script that adds an entry to the log when it is called. If `fails` is set, the script then fails.
fn logged(log: &Log, fails: bool) -> Script {
    let log = log.clone();
    Script::computing(move |io, _| {
        write_to(&log, "infer");
        if fails { Err(Error::new(ErrorKind::Device, "the device is on fire")) } else { double(io) }
    })
}

#[test]
fn fill_device_and_appended_steps_run_in_this_order_in_both_ways() {
    let log = Log::default();
    let request = compile(logged(&log, false)).create_infer_request().unwrap();
    request.set_input((), Ones(log.clone())).unwrap();
    for name in ["decode", "count"] {
        let log = log.clone();
        request
            .append_step(name, move |context| {
                assert_eq!(context.output::<f32>(0).unwrap(), (Shape::from([1, 4]), &[2.0; 4][..]));
                assert_eq!((context.n_outputs(), context.output_port("y").unwrap().name()), (1, "y"));
                write_to(&log, name);
                Ok(())
            })
            .unwrap();
    }
    request.infer(()).unwrap();
    request.start_async(()).unwrap();
    request.wait().unwrap();
    assert_eq!(*log.lock().unwrap(), ["fill", "infer", "decode", "count", "fill", "infer", "decode", "count"]);
    let names: Vec<String> = request.step_times().unwrap().iter().map(|step| step.name.to_string()).collect();
    assert_eq!(names, ["fill", "infer", "decode", "count"]);
}

/// If a step fails, the remaining steps are skipped and the run completes.
#[test]
fn an_error_skips_the_steps_after_it() {
    let log = Log::default();
    let request = compile(logged(&log, true)).create_infer_request().unwrap();
    request.set_input((), Ones(log.clone())).unwrap();
    let after = log.clone();
    request
        .append_step("decode", move |_| {
            write_to(&after, "decode");
            Ok(())
        })
        .unwrap();
    let called = log.clone();
    request.set_callback(move |_, result| write_to(&called, if result.is_err() { "failed" } else { "ended" })).unwrap();
    request.start_async(()).unwrap();
    assert_eq!(kind(request.wait()), Some(ErrorKind::Device));
    assert_eq!(*log.lock().unwrap(), ["fill", "infer", "failed"]);
}

/// Consecutive steps on the same executor are one task of this executor. A step on another executor is a new task.
#[test]
fn a_run_hops_only_where_the_executor_changes() {
    let (first, second) = (Arc::new(Manual::default()), Arc::new(Manual::default()));
    let log = Log::default();
    let mut script = logged(&log, false);
    script.executor = Some(Arc::new(Inline));
    script.more_steps = vec![
        ("submit", first.clone()),
        ("check", first.clone()),
        ("wait", second.clone()),
        ("note", Arc::new(Inline)),
        ("finish", first.clone()),
    ];
    let request = compile(script).create_infer_request().unwrap();
    request.start_async(()).unwrap();
    assert_eq!(*log.lock().unwrap(), ["infer"], "inline steps run on the starting thread");
    let queued = || (first.n_queued(), second.n_queued());
    assert_eq!(queued(), (1, 0));
    assert!(first.run_one());
    assert_eq!(queued(), (0, 1), "two neighbors on one executor are one task");
    assert!(second.run_one());
    assert_eq!(queued(), (1, 0), "an inline step joins the one before it");
    assert!(!request.wait_for(std::time::Duration::ZERO).unwrap());
    assert!(first.run_one());
    assert_eq!(queued(), (0, 0));
    request.wait().unwrap();
    let names: Vec<String> = request.step_times().unwrap().iter().map(|step| step.name.to_string()).collect();
    assert_eq!(names, ["fill", "infer", "submit", "check", "wait", "note", "finish"]);
}

/// A synchronous run does not use an executor.
#[test]
fn a_synchronous_run_stays_on_the_callers_thread() {
    let manual = Arc::new(Manual::default());
    let mut script = doubling();
    script.executor = Some(manual.clone());
    script.more_steps = vec![("wait", manual.clone())];
    let request = compile(script).create_infer_request().unwrap();
    let caller = std::thread::current().id();
    request
        .append_step("decode", move |_| {
            assert_eq!(std::thread::current().id(), caller);
            Ok(())
        })
        .unwrap();
    request.infer(()).unwrap();
    assert_eq!(manual.n_queued(), 0);
}

#[test]
fn a_filler_replaces_a_tensor_and_a_tensor_replaces_a_filler() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let own = request.input_tensor(()).unwrap();
    let users = crate::support::row([5.0; 4]);
    request.set_input_tensor((), &users).unwrap();
    request.set_input((), Ones(Log::default())).unwrap();
    request.infer(()).unwrap();
    assert_eq!((values(&request.output_tensor(()).unwrap()), values(&users)), (vec![2.0; 4], vec![5.0; 4]));
    request.infer(&users).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [10.0; 4]);
    drop(own);
}

#[test]
fn appended_steps_know_the_number_of_the_run() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let seen = runs.clone();
    request
        .append_step("count", move |context| {
            seen.lock().unwrap().push(context.run());
            Ok(())
        })
        .unwrap();
    request.infer(()).unwrap();
    request.start_async(()).unwrap();
    request.wait().unwrap();
    request.infer(()).unwrap();
    assert_eq!(*runs.lock().unwrap(), [1, 2, 3]);
}

/// The latency and step times of a request are those of its latest run.
#[test]
fn every_run_has_a_latency() {
    let request = compile(doubling()).create_infer_request().unwrap();
    assert_eq!(request.latency().unwrap(), std::time::Duration::ZERO);
    request.infer(()).unwrap();
    let steps: std::time::Duration = request.step_times().unwrap().iter().map(|step| step.duration).sum();
    assert!(request.latency().unwrap() >= steps && steps > std::time::Duration::ZERO);
}

/// Steps that the user prepends run before preprocessing, in the order in which they were added.
#[test]
fn prepended_steps_run_before_the_fill() {
    let log = Log::default();
    let request = compile(logged(&log, false)).create_infer_request().unwrap();
    request.set_input((), Ones(log.clone())).unwrap();
    for name in ["first", "second"] {
        let to = log.clone();
        request
            .prepend_step(name, move |context| {
                assert_eq!(context.input::<f32>(0).unwrap_err().kind(), ErrorKind::Tensor, "the input is not filled before `fill`");
                assert_eq!((context.n_inputs(), context.input_port(()).unwrap().name(), context.cancel().is_canceled()), (1, "x", false));
                write_to(&to, name);
                Ok(())
            })
            .unwrap();
    }
    let to = log.clone();
    request
        .append_step("last", move |context| {
            assert_eq!(context.input::<f32>(0).unwrap(), (Shape::from([1, 4]), &[1.0; 4][..]));
            write_to(&to, "last");
            Ok(())
        })
        .unwrap();
    for asynchronous in [false, true] {
        if asynchronous {
            request.start_async(()).unwrap();
            request.wait().unwrap();
        } else {
            request.infer(()).unwrap();
        }
        assert_eq!(std::mem::take(&mut *log.lock().unwrap()), ["first", "second", "fill", "infer", "last"]);
    }
    let names = || request.step_times().unwrap().iter().map(|step| step.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(), ["first", "second", "fill", "infer", "last"]);
    let mut visited = Vec::new();
    request.visit_step_times(|name, _| visited.push(name.to_string())).unwrap();
    assert_eq!(visited, names());
    request.clear_steps().unwrap();
    assert_eq!(names(), ["fill", "infer"]);
    request.prepend_step("again", |_| Ok(())).unwrap();
    assert_eq!(names(), ["again", "fill", "infer"]);
    request.infer(()).unwrap();
    assert_eq!(std::mem::take(&mut *log.lock().unwrap()), ["fill", "infer"]);
}

/// If a prepended step fails, the run fails.
#[test]
fn an_error_of_a_prepended_step_is_the_runs_and_nothing_is_computed() {
    let log = Log::default();
    let request = compile(logged(&log, false)).create_infer_request().unwrap();
    request.set_input((), Ones(log.clone())).unwrap();
    request.prepend_step("refuse", |_| Err(Error::new(ErrorKind::Config, "not today"))).unwrap();
    request.start_async(()).unwrap();
    assert_eq!(request.wait().unwrap_err().to_string(), "not today");
    assert_eq!(kind(request.infer(())), Some(ErrorKind::Config));
    assert!(log.lock().unwrap().is_empty());
    request.clear_steps().unwrap();
    request.infer(()).unwrap();
}

/// A step runs on the executor that the user passed with it.
#[test]
fn steps_run_where_the_user_says() {
    let (before, after) = (Arc::new(Manual::default()), Arc::new(Manual::default()));
    let log = Log::default();
    let script = Script { executor: Some(Arc::new(Inline)), ..logged(&log, false) };
    let request = compile(script).create_infer_request().unwrap();
    let (first, last) = (log.clone(), log.clone());
    let step = |log: Log, line| {
        move |_: &RunContext<'_>| {
            write_to(&log, line);
            Ok(())
        }
    };
    request.prepend_step_on(before.clone(), "before", step(first, "before")).unwrap();
    request.append_step_on(after.clone(), "after", step(last, "after")).unwrap();
    request.start_async(()).unwrap();
    assert_eq!((log.lock().unwrap().len(), before.n_queued(), after.n_queued()), (0, 1, 0));
    assert!(before.run_one());
    assert_eq!((&log.lock().unwrap()[..], after.n_queued()), (&["before", "infer"][..], 1));
    assert!(after.run_one());
    request.wait().unwrap();
    assert_eq!(*log.lock().unwrap(), ["before", "infer", "after"]);
}

/// Values that steps have captured are dropped when the steps are cleared, not earlier.
#[test]
fn cleared_steps_are_freed() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let captured = Arc::new(());
    let (first, last) = (captured.clone(), captured.clone());
    request
        .prepend_step("first", move |_| {
            let _kept = &first;
            Ok(())
        })
        .unwrap();
    request
        .append_step("last", move |_| {
            let _kept = &last;
            Ok(())
        })
        .unwrap();
    request.infer(()).unwrap();
    assert_eq!(Arc::strong_count(&captured), 3);
    request.clear_steps().unwrap();
    assert_eq!(Arc::strong_count(&captured), 1);
}

/// A user step can read the number of ports of its run, and whether the run is canceled.
#[test]
fn a_step_sees_all_ports_and_a_cancel() {
    let request = tensors::adding().create_infer_request().unwrap();
    let (sender, receiver) = mpsc::channel();
    let until_canceled = move |context: &RunContext<'_>| {
        sender.send((context.n_inputs(), context.n_outputs())).unwrap();
        while !context.cancel().is_canceled() {
            std::thread::yield_now();
        }
        Ok(())
    };
    request.append_step("until canceled", until_canceled).unwrap();
    request.append_step("never", |_| panic!("a step ran after the cancel")).unwrap();
    request.start_async(()).unwrap();
    assert_eq!(receive(&receiver), (2, 2));
    request.cancel();
    assert_eq!(kind(in_time(move || request.wait())), Some(ErrorKind::Canceled));
}

/// A device gets exactly the ports of the model. The outputs that it computes must match their shapes.
#[test]
fn a_device_that_computes_another_shape_fails_the_run() {
    let script = Script::computing(|io, _| {
        assert_eq!((io.n_inputs(), io.n_outputs()), (2, 2));
        write(io, 1, &[2, 4], vec![0.0; 8])
    });
    let ports = || vec![port("a", &[1, 4]), port("b", &[1, 4])];
    let request = compile_ports(Arc::new(script), ports(), ports()).create_infer_request().unwrap();
    let error = request.infer(()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert_eq!(error.to_string(), "output `b` [1, 4] f32: the engine computed the shape [2, 4]");
}
