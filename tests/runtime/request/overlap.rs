//! A device that computes in parallel to the CPU. Work on several frames, and work of several instances of the device, overlaps.

use std::sync::mpsc;

use roiflow::runtime::FillInput;
use roiflow::tensor::{BytesMut, Shape};

use super::*;
use crate::support::{eventually, in_time, receive, values};

/// A filler that writes its number and sends it.
struct Says(f32, mpsc::Sender<f32>);

impl FillInput for Says {
    fn shape(&mut self, _port: &Port) -> Result<Shape> {
        Ok(Shape::from([1, 4]))
    }

    fn fill(&mut self, input: &mut BytesMut) -> Result<()> {
        input.dense_mut::<f32>()?.fill(self.0);
        self.1.send(self.0).unwrap();
        Ok(())
    }
}

fn with_waiter(gate: &Arc<Gate>) -> Arc<Script> {
    Arc::new(Script { gate: Some(gate.clone()), has_own_waiter: true, ..doubling() })
}

/// While the device computes one frame, the CPU preprocesses the next frame.
#[test]
fn the_fill_of_one_frame_overlaps_with_the_wait_for_another() {
    let gate = Gate::closed();
    let model = compile_ports(with_waiter(&gate), vec![port("x", &[1, 4])], vec![port("y", &[1, 4])]);
    let (sender, filled) = mpsc::channel();
    let requests: Vec<_> = (1..=3)
        .map(|n| {
            let request = model.create_infer_request().unwrap();
            request.set_input((), Says(n as f32, sender.clone())).unwrap();
            request
        })
        .collect();
    for (request_idx, request) in requests.iter().enumerate() {
        request.start_async(()).unwrap();
        assert_eq!(receive(&filled), (request_idx + 1) as f32, "although the first is still in the device");
    }
    gate.wait_for_arrivals(1);
    assert!(requests.iter().all(|request| !request.wait_for(std::time::Duration::ZERO).unwrap()));
    gate.open();
    for (request_idx, request) in requests.iter().enumerate() {
        request.wait().unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0 * (request_idx + 1) as f32; 4]);
    }
    let names: Vec<String> = requests[0].step_times().unwrap().iter().map(|step| step.name.to_string()).collect();
    assert_eq!(names, ["fill", "submit", "wait", "finish"]);
}

/// Preprocessing runs on the CPU. Preprocessing must not wait in the queue of a device.
#[test]
fn a_fill_does_not_wait_for_the_queue_of_the_device() {
    let hand = Arc::new(Manual::default());
    let request = compile(Script { executor: Some(hand.clone()), ..doubling() }).create_infer_request().unwrap();
    let (sender, filled) = mpsc::channel();
    request.set_input((), Says(1.0, sender)).unwrap();
    request.start_async(()).unwrap();
    assert_eq!(receive(&filled), 1.0);
    let queued = hand.clone();
    eventually(move || queued.n_queued() == 1);
    assert!(hand.run_one());
    in_time(move || request.wait()).unwrap();
}

/// Each instance of the device has a separate waiter thread, so the runtime waits for both at the same time. With a common waiter, the
/// second run would not arrive.
#[test]
fn two_instances_of_a_device_overlap() {
    let gate = Gate::closed();
    let mut core = Core::new();
    for name in ["NULL.0", "NULL.1"] {
        core.register(Arc::new(NullDevice::instance(name, with_waiter(&gate))));
    }
    let requests: Vec<_> =
        ["NULL.0", "NULL.1"].iter().map(|device| compile_on(&core, device, &Config::default()).create_infer_request().unwrap()).collect();
    assert_eq!(core.executors().n_named(), 2);
    requests.iter().for_each(|request| request.start_async(()).unwrap());
    let arrived = gate.clone();
    in_time(move || arrived.wait_for_arrivals(2));
    gate.open();
    requests.iter().for_each(|request| request.wait().unwrap());
    drop(requests);
    // A waiter exists while a model of its device exists. The waiter releases the last run shortly after it has notified the waiting
    // threads.
    eventually(move || core.executors().n_named() == 0);
}

/// All models of one instance share its waiter thread.
#[test]
fn the_models_of_one_instance_share_a_waiter() {
    let gate = Gate::closed();
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(with_waiter(&gate))));
    let models: Vec<_> = (0..3).map(|_| compile_on(&core, "NULL", &Config::default())).collect();
    assert_eq!(core.executors().n_named(), 1);
    let requests: Vec<_> = models.iter().map(|model| model.create_infer_request().unwrap()).collect();
    requests.iter().for_each(|request| request.start_async(()).unwrap());
    // The order of arrival at the waiter is undefined, because several workers preprocess.
    in_time(move || {
        for n_arrived in 1..=requests.len() {
            gate.wait_for_arrivals(n_arrived);
            gate.admit(1);
        }
        requests.iter().for_each(|request| request.wait().unwrap());
    });
}

/// A request is dropped while the device computes. The waiter thread must be free for the next request.
#[test]
fn a_drop_beside_the_device_does_not_block_its_waiter() {
    let gate = Gate::closed();
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(with_waiter(&gate))));
    let config = Config { drop_patience: std::time::Duration::ZERO, ..Config::default() };
    let model = compile_on(&core, "NULL", &config);
    let (dropped, next) = (model.create_infer_request().unwrap(), model.create_infer_request().unwrap());
    dropped.start_async(()).unwrap();
    gate.wait_for_arrivals(1);
    in_time(move || drop(dropped));
    next.start_async(()).unwrap();
    gate.open();
    in_time(move || next.wait()).unwrap();
}
