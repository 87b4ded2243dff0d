//! Panics in everything that a user or a device brings: errors of kind `Panic`, never a hang, never an abort.

use std::sync::mpsc;

use roiflow::runtime::{ErrorKind, FillInput};
use roiflow::tensor::{BytesMut, Shape};

use super::*;
use crate::support::{in_time, row, values};

/// Where a filler goes wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    ShapePanics,
    ShapeFails,
    FillPanics,
    FillFails,
}

/// Goes wrong once; then it fills ones.
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

/// returnGeneralErrorIfCallbackThrowException.
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

/// canRunMultipleTasksWithExceptionInside.
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
