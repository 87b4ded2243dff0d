//! Engines may flush denormal numbers to zero. Engines must not change this setting for the calling code, because Rust assumes the default
//! floating-point environment.

use std::hint::black_box;
use std::sync::mpsc;

use roiflow::devices;
use roiflow::runtime::Config;

use crate::support::{is_here, receive, row, tiny};

const DEVICES: [&str; 4] = ["CPU", "ORT.CPU", "OPENVINO.CPU", "OPENVINO.HETERO:CPU"];

fn has_denormals() -> bool {
    black_box(f32::MIN_POSITIVE) * black_box(0.5) > 0.0
}

/// Each device is tested on a new thread, because engines change the settings of the first thread that calls them.
#[test]
fn an_engine_leaves_the_float_control_of_its_caller() {
    for device in DEVICES.into_iter().filter(|device| is_here(device)) {
        let works = move || {
            let core = devices::core();
            let model = core.read_model(tiny("double.onnx")).unwrap();
            assert!(has_denormals(), "{device}: after the model was read");
            let model = core.compile_model(&model, device, &Config::default()).unwrap();
            assert!(has_denormals(), "{device}: after the model was compiled");
            let request = model.create_infer_request().unwrap();
            for _ in 0..2 {
                request.infer(row([1.0; 4])).unwrap();
                assert!(has_denormals(), "{device}: after a run");
            }
        };
        for _ in 0..2 {
            std::thread::spawn(works).join().unwrap();
        }
    }
}

/// Covers the threads of pools and the threads of engines.
#[test]
fn steps_and_callbacks_compute_with_denormals() {
    for device in DEVICES.into_iter().filter(|device| is_here(device)) {
        let core = devices::core();
        let model = core.compile_model(&core.read_model(tiny("double.onnx")).unwrap(), device, &Config::default()).unwrap();
        let request = model.create_infer_request().unwrap();
        let (sender, receiver) = mpsc::channel();
        let of_step = sender.clone();
        request
            .append_step("look", move |_| {
                of_step.send(("step", has_denormals())).unwrap();
                Ok(())
            })
            .unwrap();
        request.set_callback(move |_, _| sender.send(("callback", has_denormals())).unwrap()).unwrap();
        for _ in 0..3 {
            request.start_async(row([1.0; 4])).unwrap();
            request.wait().unwrap();
            assert_eq!([receive(&receiver), receive(&receiver)], [("step", true), ("callback", true)], "{device}");
        }
    }
}
