//! Panics in code of the user or of a device become errors of kind `Panic`. A panic must not cause a hang or an abort.

use std::sync::mpsc;

use roiflow::runtime::executor::{Executor, Pool, Task};
use roiflow::runtime::{ErrorKind, FillInput};
use roiflow::tensor::{BytesMut, Shape};

use super::*;
use crate::support::{in_time, row, values};

/// The point at which a filler fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    ShapePanics,
    ShapeFails,
    FillPanics,
    FillFails,
}

/// A filler that fails once and later writes ones.
struct Faulty(Option<Fault>);

impl Faulty {
    fn at(&mut self, panics: Fault, fails: Fault) -> Result<()> {
        match self.0.take_if(|fault| *fault == panics || *fault == fails) {
            Some(fault) if fault == panics => panic!("{fault:?}"),
            Some(fault) => Err(Error::new(ErrorKind::Io, format!("{fault:?}"))),
            None => Ok(()),
        }
    }
}

impl FillInput for Faulty {
    fn shape(&mut self, _port: &Port) -> Result<Shape> {
        self.at(Fault::ShapePanics, Fault::ShapeFails).map(|()| Shape::from([1, 4]))
    }

    fn fill(&mut self, input: &mut BytesMut) -> Result<()> {
        self.at(Fault::FillPanics, Fault::FillFails)?;
        input.dense_mut::<f32>().unwrap().fill(1.0);
        Ok(())
    }
}

#[test]
fn what_goes_wrong_in_a_filler_is_an_error_and_the_request_stays_usable() {
    for fault in [Fault::ShapePanics, Fault::ShapeFails, Fault::FillPanics, Fault::FillFails] {
        for synchronous in [true, false] {
            let request = compile(doubling()).create_infer_request().unwrap();
            request.set_input((), Faulty(Some(fault))).unwrap();
            let ran = if synchronous { request.infer(()) } else { request.start_async(()).and_then(|()| request.wait()) };
            let error = ran.unwrap_err();
            let expected = if matches!(fault, Fault::ShapePanics | Fault::FillPanics) { ErrorKind::Panic } else { ErrorKind::Io };
            assert_eq!(error.kind(), expected, "{fault:?}: {error}");
            assert!(error.to_string().contains(&format!("{fault:?}")), "{error}");
            request.infer(()).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0; 4]);
        }
    }
}

#[test]
fn a_filler_may_ask_its_own_request_for_its_shape() {
    struct Asking(roiflow::runtime::WeakInferRequest);

    impl FillInput for Asking {
        fn shape(&mut self, _port: &Port) -> Result<Shape> {
            let request = self.0.upgrade().expect("it is starting");
            request.cancel();
            assert_eq!(kind(request.input_tensor(())), Some(ErrorKind::Busy));
            Ok(Shape::from([1, 4]))
        }

        fn fill(&mut self, _input: &mut BytesMut) -> Result<()> {
            Ok(())
        }
    }

    in_time(|| {
        let request = compile(doubling()).create_infer_request().unwrap();
        request.set_input((), Asking(request.downgrade())).unwrap();
        assert!(matches!(kind(request.infer(())), None | Some(ErrorKind::Canceled)));
    });
}

#[test]
fn a_panic_in_the_device_is_an_error_of_wait_and_of_infer() {
    let script = Script::computing(|io, _| if read(io.input(0))[0] < 0.0 { panic!("in the device") } else { double(io) });
    let request = compile(script).create_infer_request().unwrap();
    let bad = row([-1.0; 4]);
    request.start_async(&bad).unwrap();
    let error = request.wait().unwrap_err();
    assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::Panic, "step `infer` panicked: in the device"));
    assert_eq!(kind(request.infer(())), Some(ErrorKind::Panic));
    bad.view_mut::<f32>().unwrap().fill(1.0);
    request.infer(()).unwrap();
}

#[test]
fn a_panic_in_an_appended_step_is_an_error_that_names_it() {
    let request = compile(doubling()).create_infer_request().unwrap();
    request.append_step("decode", |context| if context.run() == 1 { panic!("run {}", context.run()) } else { Ok(()) }).unwrap();
    request.start_async(()).unwrap();
    assert_eq!(request.wait().unwrap_err().to_string(), "step `decode` panicked: run 1");
    request.start_async(()).unwrap();
    request.wait().unwrap();
}

/// Equivalent OpenVINO test: returnGeneralErrorIfCallbackThrowException.
#[test]
fn a_panic_in_the_callback_comes_out_of_wait() {
    let request = compile(doubling()).create_infer_request().unwrap();
    request.set_callback(|_, _| panic!("in the callback")).unwrap();
    for _ in 0..2 {
        request.start_async(()).unwrap();
        let error = request.wait().unwrap_err();
        assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::Panic, "the callback panicked: in the callback"));
    }
    request.clear_callback().unwrap();
    request.start_async(()).unwrap();
    request.wait().unwrap();
}

#[test]
fn a_callback_that_restarts_and_panics_does_not_stop_the_next_run() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let (sender, receiver) = mpsc::channel();
    request
        .set_callback(move |request, result| {
            sender.send(kind(result)).unwrap();
            if values(&request.output_tensor(()).unwrap())[0] == 2.0 {
                request.start_async(row([2.0; 4])).unwrap();
                panic!("after the start");
            }
        })
        .unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    let results: Vec<_> = (0..2).map(|_| receiver.recv_timeout(std::time::Duration::from_secs(60)).unwrap()).collect();
    assert_eq!(results, [None, None]);
    in_time(move || request.wait()).unwrap();
}

/// Equivalent OpenVINO test: canRunMultipleTasksWithExceptionInside.
#[test]
fn panics_leave_the_workers_alive() {
    let script = Script::computing(|io, _| if read(io.input(0))[0] < 0.0 { panic!("in the device") } else { double(io) });
    let model = compile(script);
    let requests: Vec<_> = (0..20).map(|_| model.create_infer_request().unwrap()).collect();
    for request in &requests {
        request.start_async(row([-1.0; 4])).unwrap();
    }
    for request in requests {
        assert_eq!(kind(request.wait()), Some(ErrorKind::Panic));
        request.start_async(row([1.0; 4])).unwrap();
        request.wait().unwrap();
    }
}

/// Returns a number of panics that is larger than the number of workers. If each panic ended a worker, no worker would be left.
pub(super) fn more_than_workers() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from) + 2
}

/// An executor that panics, either before it takes the task or after it has run the task.
#[derive(Debug)]
struct Panicking {
    runs_first: bool,
}

impl Executor for Panicking {
    fn execute(&self, task: Arc<dyn Task>) {
        if self.runs_first {
            task.run();
        }
        panic!("in the executor");
    }
}

#[test]
fn an_executor_that_panics_ends_the_run_with_that_error() {
    let refuses: Arc<dyn Executor> = Arc::new(Panicking { runs_first: false });
    let model = compile(doubling());
    for is_first in [true, false] {
        for _ in 0..more_than_workers() {
            let request = model.create_infer_request().unwrap();
            let (sender, receiver) = mpsc::channel();
            request.set_callback(move |_, result| sender.send(kind(result)).unwrap()).unwrap();
            match is_first {
                true => request.prepend_step_on(refuses.clone(), "refused", |_| Ok(())).unwrap(),
                false => request.append_step_on(refuses.clone(), "refused", |_| Ok(())).unwrap(),
            }
            request.start_async(row([1.0; 4])).unwrap();
            let (request, error) = in_time(move || (request.clone(), request.wait().unwrap_err()));
            assert_eq!(error.kind(), ErrorKind::Panic);
            assert!(error.to_string().contains("in the executor"), "{error}");
            assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [Some(ErrorKind::Panic)]);
            request.clear_steps().unwrap();
            request.start_async(row([1.0; 4])).unwrap();
            in_time(move || request.wait()).unwrap();
        }
    }
}

#[test]
fn an_executor_that_panics_after_the_task_changes_nothing() {
    let request = compile(doubling()).create_infer_request().unwrap();
    request.append_step_on(Arc::new(Panicking { runs_first: true }), "run", |_| Ok(())).unwrap();
    for _ in 0..more_than_workers() {
        request.start_async(row([1.0; 4])).unwrap();
        let request = request.clone();
        in_time(move || request.wait()).unwrap();
    }
}

/// The payload of a panic can have any type.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("in the drop of what a panic carried");
    }
}

#[test]
fn a_payload_that_panics_when_dropped_leaves_the_workers_alive() {
    struct Filler;
    impl FillInput for Filler {
        fn shape(&mut self, _port: &Port) -> Result<Shape> {
            Ok(Shape::from([1, 4]))
        }

        fn fill(&mut self, _input: &mut BytesMut) -> Result<()> {
            std::panic::panic_any(Bomb)
        }
    }
    let in_device = || Script::computing(|_, _| std::panic::panic_any(Bomb));
    let models = [compile(in_device()), compile(doubling()), compile(doubling()), compile(doubling())];
    for (place, model) in models.into_iter().enumerate() {
        for _ in 0..more_than_workers() {
            let request = model.create_infer_request().unwrap();
            match place {
                1 => request.append_step("step", |_| std::panic::panic_any(Bomb)).unwrap(),
                2 => request.set_callback(|_, _| std::panic::panic_any(Bomb)).unwrap(),
                3 => request.set_input((), Filler).unwrap(),
                _ => {}
            }
            request.start_async(()).unwrap();
            let error = in_time(move || request.wait().unwrap_err());
            assert_eq!(error.kind(), ErrorKind::Panic, "place {place}: {error}");
        }
    }
    let request = compile(doubling()).create_infer_request().unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    in_time(move || request.wait()).unwrap();
}

#[test]
fn a_task_that_panics_leaves_its_worker_alive() {
    struct Panics;
    impl Task for Panics {
        fn run(self: Arc<Self>) {
            std::panic::panic_any(Bomb)
        }
    }
    struct Tells(mpsc::Sender<()>);
    impl Task for Tells {
        fn run(self: Arc<Self>) {
            self.0.send(()).unwrap();
        }
    }
    let pool = Pool::new("two", 2).unwrap();
    for _ in 0..5 {
        pool.execute(Arc::new(Panics));
    }
    let (sender, receiver) = mpsc::channel();
    pool.execute(Arc::new(Tells(sender)));
    crate::support::receive(&receiver);
}

/// A filler panics after other tensors were leased. The leases on the other tensors must be released.
#[test]
fn a_panic_between_two_leases_ends_the_first_one() {
    struct Panics;
    impl FillInput for Panics {
        fn shape(&mut self, _port: &Port) -> Result<Shape> {
            Ok(Shape::from([1, 4]))
        }

        fn frame(&mut self) -> Option<u64> {
            panic!("in the frame")
        }

        fn fill(&mut self, _input: &mut BytesMut) -> Result<()> {
            Ok(())
        }
    }
    let model = compile_ports(Arc::default(), vec![port("a", &[1, 4]), port("b", &[1, 4])], vec![port("y", &[1, 4])]);
    let request = model.create_infer_request().unwrap();
    let a = row([1.0; 4]);
    request.set_tensor("a", &a).unwrap();
    request.set_input("b", Panics).unwrap();
    assert_eq!(kind(request.start_async(())), Some(ErrorKind::Panic));
    a.view_mut::<f32>().unwrap().fill(0.0);
    request.clear_inputs().unwrap();
    request.infer(()).unwrap();
}

/// After a panic in the inputs, the runtime must not assume that the calling thread is still inside a step.
#[test]
fn a_thread_whose_inputs_panicked_may_wait() {
    struct Panics;
    impl roiflow::runtime::Inputs for Panics {
        fn visit(&self, _see: &mut dyn FnMut(roiflow::runtime::PortKey<'_>, &roiflow::runtime::Input<'_>) -> Result<()>) -> Result<()> {
            panic!("in the inputs")
        }
    }
    let (request, gate) = gated();
    for _ in 0..2 {
        assert_eq!(kind(request.start_async(Panics)), Some(ErrorKind::Panic));
        assert_eq!(kind(request.infer(Panics)), Some(ErrorKind::Panic));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| request.set_inputs(Panics))).is_err());
    }
    request.start_async(()).unwrap();
    gate.wait_for_arrivals(1);
    assert!(!request.wait_for(std::time::Duration::from_millis(1)).unwrap());
    gate.open();
    request.wait().unwrap();
}

/// The closure that receives step times is called without any lock. The closure may use the request, and may panic.
#[test]
fn the_times_of_steps_are_visited_without_a_lock() {
    let request = compile(doubling()).create_infer_request().unwrap();
    request.infer(row([1.0; 4])).unwrap();
    let visited = request.clone();
    in_time(move || {
        let mut n_visited = 0;
        visited
            .visit_step_times(|_, _| {
                n_visited += 1;
                assert_eq!(visited.step_times().unwrap().len(), 2);
                assert_eq!(values(&visited.output_tensor(()).unwrap()), [2.0; 4]);
            })
            .unwrap();
        assert_eq!(n_visited, 2);
        let ran = visited.visit_step_times(|_, _| visited.infer(()).unwrap());
        assert_eq!(kind(ran), Some(ErrorKind::Busy), "the times are those of one run");
        let panics = || visited.visit_step_times(|_, _| panic!("in the closure"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    });
    request.infer(row([2.0; 4])).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [4.0; 4]);
}
