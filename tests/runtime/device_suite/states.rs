//! Variables on every device: the state that a recurrent model keeps in each request.

use roiflow::runtime::{ErrorKind, InferRequest, Port, VariableState};
use roiflow::tensor::{ElementType, Tensor};

use super::UnderTest;
use crate::support::{Written, eventually, row, values};

fn only_state(request: &InferRequest) -> VariableState {
    request.query_state().unwrap().remove(0)
}

fn add(request: &InferRequest, value: f32) -> f32 {
    request.infer(row([value; 4])).unwrap();
    values(&request.output_tensor(()).unwrap())[3]
}

/// Equivalent OpenVINO test: QueryState. Variables have names, and their ports are removed from the model.
pub fn a_variable_has_a_name_and_its_ports_are_no_ports_of_the_model(device: &UnderTest) {
    let model = device.summing();
    let names = |ports: &[Port]| ports.iter().map(|port| port.name().to_owned()).collect::<Vec<_>>();
    assert_eq!((names(model.inputs()), names(model.outputs())), (vec!["x".to_owned()], vec!["y".to_owned()]));
    let request = model.create_infer_request().unwrap();
    assert_eq!(only_state(&request).name(), "total_in");
    assert_eq!((request.input_tensors().unwrap().len(), request.results().unwrap().len()), (1, 1));
    assert!(request.tensor("total_in").is_err() && request.tensor("total_out").is_err());
}

pub fn what_a_run_leaves_is_what_the_next_one_reads(device: &UnderTest) {
    let model = device.summing();
    let request = model.create_infer_request().unwrap();
    assert_eq!([1.0, 2.0, 4.0].map(|value| add(&request, value)), [1.0, 3.0, 7.0]);
    request.start_async(row([1.0; 4])).unwrap();
    request.wait().unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [8.0; 4]);
    assert_eq!(values(&only_state(&request).state().unwrap()), [8.0; 4]);
}

/// Equivalent OpenVINO test: SetState. A state that was set is read back unchanged and used by the next run.
pub fn a_state_that_is_set_is_read_back_and_used(device: &UnderTest) {
    let model = device.summing();
    let request = model.create_infer_request().unwrap();
    let state = only_state(&request);
    let users = row([1.0, 2.0, 3.0, 4.0]);
    state.set_state(&users).unwrap();
    users.view_mut::<f32>().unwrap().fill(99.0);
    assert_eq!(values(&state.state().unwrap()), [1.0, 2.0, 3.0, 4.0]);
    request.infer(row([10.0; 4])).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [11.0, 12.0, 13.0, 14.0]);
    let error = state.set_state(&Tensor::new(ElementType::F32, [4]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "variable `total_in`: expected [1, 4] f32, got [4] f32");
}

/// Equivalent OpenVINO test: infer_querystate. A model without variables has an empty list, and a reset has no effect.
pub fn a_model_without_variables_has_an_empty_list(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    assert!(request.query_state().unwrap().is_empty());
    request.reset_state().unwrap();
}

pub fn a_state_that_is_reset_is_zeros_again(device: &UnderTest) {
    let model = device.summing();
    let (request, other) = (model.create_infer_request().unwrap(), model.create_infer_request().unwrap());
    for reset_one in [false, true] {
        assert_eq!([3.0, 4.0].map(|value| add(&request, value)), [3.0, 7.0]);
        other.infer(row([1.0; 4])).unwrap();
        if reset_one { only_state(&request).reset() } else { request.reset_state() }.unwrap();
        assert_eq!(values(&only_state(&request).state().unwrap()), [0.0; 4]);
    }
    assert_eq!(values(&only_state(&other).state().unwrap()), [2.0; 4]);
}

/// Equivalent OpenVINO tests: 2infers_set, 2infers. Runs of one request do not change the state of another request. In this test, many
/// requests run concurrently.
pub fn requests_never_see_each_others_state_under_load(device: &UnderTest) {
    let model = device.summing();
    let requests: Vec<_> = (0..8).map(|_| model.create_infer_request().unwrap()).collect();
    for round in 1..=100 {
        for (request_idx, request) in requests.iter().enumerate() {
            request.start_async(row([request_idx as f32; 4])).unwrap();
        }
        for (request_idx, request) in requests.iter().enumerate() {
            request.wait().unwrap();
            assert_eq!(values(&request.output_tensor(()).unwrap()), [(round * request_idx) as f32; 4]);
        }
    }
}

pub fn a_run_that_fails_leaves_the_state_as_it_was(device: &UnderTest) {
    let model = device.summing();
    let request = model.create_infer_request().unwrap();
    add(&request, 5.0);
    request
        .append_step("refuse", |run| match run.run() {
            2 => Err(roiflow::runtime::Error::new(ErrorKind::Device, "the second run")),
            _ => Ok(()),
        })
        .unwrap();
    assert_eq!(request.infer(row([1.0; 4])).unwrap_err().kind(), ErrorKind::Device);
    assert_eq!(values(&only_state(&request).state().unwrap()), [5.0; 4]);
    assert_eq!(add(&request, 1.0), 6.0);
}

/// The future is dropped after its run has ended, without being polled, or while its run may be in progress.
pub fn a_future_that_is_dropped_leaves_no_state_and_no_input(device: &UnderTest) {
    let model = device.summing();
    for round in 0..20 {
        let memory = Written::new(&[0x3f80_0000_3f80_0000; 2]); // four times 1.0
        let input = memory.tensor(ElementType::F32, &[1, 4]);
        let future = model.infer_async(&input);
        if round % 2 == 0 {
            // The run has ended when its leases have ended.
            let running = input.clone();
            eventually(move || running.view_mut::<f32>().is_ok());
        }
        drop((future, input));
        eventually(move || memory.n_owners() == 1);
        assert_eq!(values(&model.infer(row([2.0; 4])).unwrap()["y"]), [2.0; 4], "round {round}");
    }
}

/// Each call of direct inference starts from the initial state, because all callers share the cached request.
pub fn direct_inference_keeps_no_state(device: &UnderTest) {
    let model = device.summing();
    for _ in 0..3 {
        assert_eq!(values(&model.infer(row([2.0; 4])).unwrap()["y"]), [2.0; 4]);
    }
}
