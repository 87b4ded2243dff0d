//! Variables: the state that a recurrent model keeps in each request.

use std::sync::Arc;

use roiflow::devices::{self, null::Script};
use roiflow::runtime::{CompiledModel, Config, Core, Dim, ErrorKind, InferRequest, Model, ModelInfo, PartialShape, Port, VariableState};
use roiflow::tensor::{ElementType, Tensor};

use crate::request::{port, read, write};
use crate::support::{row, tiny, values};

/// `x`, `total_in` -> `y` = `total_out` = x + total_in, stateful, on each device.
fn summing() -> [CompiledModel; 2] {
    let model = devices::core().read_model(tiny("sum.onnx")).unwrap().make_stateful([("total_in", "total_out")]).unwrap();
    let cpu = devices::core().compile_model(&model, "CPU", &Config::default()).unwrap();
    let script = Script::computing(|io, _| {
        let sum: Vec<f32> = read(io.input(0)).iter().zip(read(io.input(1))).map(|(x, total)| x + total).collect();
        write(io, 0, &[1, 4], sum.clone())?;
        write(io, 1, &[1, 4], sum)
    });
    let info = ModelInfo {
        inputs: vec![port("x", &[1, 4]), port("total_in", &[1, 4])],
        outputs: vec![port("y", &[1, 4]), port("total_out", &[1, 4])],
        ..ModelInfo::default()
    };
    [cpu, on_null(script, &Model::from_ports(info).make_stateful([("total_in", "total_out")]).unwrap())]
}

fn on_null(script: Script, model: &Model) -> CompiledModel {
    let mut core = Core::new();
    core.register(Arc::new(devices::null::NullDevice::new(Arc::new(script))));
    core.compile_model(model, "NULL", &Config::default()).unwrap()
}

fn only_state(request: &InferRequest) -> VariableState {
    request.query_state().unwrap().remove(0)
}

fn add(request: &InferRequest, value: f32) -> f32 {
    request.infer(row([value; 4])).unwrap();
    values(&request.output_tensor(()).unwrap())[3]
}

/// QueryState: variables by name; their ports are gone from the model.
#[test]
fn a_variable_has_a_name_and_its_ports_are_no_ports_of_the_model() {
    for model in summing() {
        let names = |ports: &[Port]| ports.iter().map(|port| port.name().to_owned()).collect::<Vec<_>>();
        assert_eq!((names(model.inputs()), names(model.outputs())), (vec!["x".to_owned()], vec!["y".to_owned()]));
        let request = model.create_infer_request().unwrap();
        assert_eq!(only_state(&request).name(), "total_in");
        assert_eq!((request.input_tensors().unwrap().len(), request.results().unwrap().len()), (1, 1));
        assert!(request.tensor("total_in").is_err() && request.tensor("total_out").is_err());
    }
}

/// infer_querystate: a model without variables has none, and resetting them does nothing.
#[test]
fn a_model_without_variables_has_an_empty_list() {
    let request = crate::support::compile(&tiny("double.onnx")).create_infer_request().unwrap();
    assert!(request.query_state().unwrap().is_empty());
    request.reset_state().unwrap();
}

#[test]
fn what_a_run_leaves_is_what_the_next_one_reads() {
    for model in summing() {
        let request = model.create_infer_request().unwrap();
        assert_eq!([1.0, 2.0, 4.0].map(|value| add(&request, value)), [1.0, 3.0, 7.0]);
        request.start_async(row([1.0; 4])).unwrap();
        request.wait().unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [8.0; 4]);
        assert_eq!(values(&only_state(&request).state().unwrap()), [8.0; 4]);
    }
}

/// SetState: read back equal, and used by the next run.
#[test]
fn a_state_that_is_set_is_read_back_and_used() {
    for model in summing() {
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
}

/// Reset: only the one that is reset has its default again.
#[test]
fn a_reset_is_of_one_variable_or_of_all() {
    let script = Script::computing(|io, _| {
        for (input_idx, output_idx) in [(1, 1), (2, 2)] {
            let next = read(io.input(input_idx)).iter().map(|value| value + 1.0).collect();
            write(io, output_idx, &[1, 4], next)?;
        }
        let x = read(io.input(0));
        write(io, 0, &[1, 4], x)
    });
    let ports = |names: [&str; 3]| names.map(|name| port(name, &[1, 4])).to_vec();
    let info = ModelInfo { inputs: ports(["x", "a", "b"]), outputs: ports(["y", "a_next", "b_next"]), ..ModelInfo::default() };
    let model = Model::from_ports(info).make_stateful([("a", "a_next"), ("b", "b_next")]).unwrap();
    let request = on_null(script, &model).create_infer_request().unwrap();
    let states = request.query_state().unwrap();
    let both = || states.iter().map(|state| values(&state.state().unwrap())[0]).collect::<Vec<_>>();
    (0..3).for_each(|_| request.infer(()).unwrap());
    assert_eq!(both(), [3.0, 3.0]);
    states[1].reset().unwrap();
    assert_eq!(both(), [3.0, 0.0]);
    request.infer(()).unwrap();
    assert_eq!(both(), [4.0, 1.0]);
    request.reset_state().unwrap();
    assert_eq!(both(), [0.0, 0.0]);
}

/// 2infers_set, 2infers: running one request leaves the state of another alone; here many, at once.
#[test]
fn requests_never_see_each_others_state_under_load() {
    for model in summing() {
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
}

#[test]
fn a_run_that_fails_leaves_the_state_as_it_was() {
    for model in summing() {
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
}

#[test]
fn the_state_is_busy_while_the_request_runs() {
    let gate = devices::null::Gate::closed();
    let info = ModelInfo { inputs: vec![port("x", &[1, 4])], outputs: vec![port("x_next", &[1, 4])], ..ModelInfo::default() };
    let model = Model::from_ports(info).make_stateful([("x", "x_next")]).unwrap();
    let request = on_null(Script { gate: Some(gate.clone()), ..Script::default() }, &model).create_infer_request().unwrap();
    let state = only_state(&request);
    request.start_async(()).unwrap();
    gate.wait_for_arrivals(1);
    let refused =
        [state.state().map(drop), state.set_state(&row([0.0; 4])), state.reset(), request.reset_state(), request.query_state().map(drop)];
    assert!(refused.into_iter().all(|result| result.unwrap_err().kind() == ErrorKind::Busy));
    gate.open();
    request.wait().unwrap();
    state.state().unwrap();
}

/// Each call of direct inference begins anew: the request that it keeps is anybody's.
#[test]
fn direct_inference_keeps_no_state() {
    for model in summing() {
        for _ in 0..3 {
            assert_eq!(values(&model.infer(row([2.0; 4])).unwrap()["y"]), [2.0; 4]);
        }
    }
}

/// A state whose shape is open grows with what the runs write.
#[test]
fn a_state_may_grow() {
    let script = Script::computing(|io, _| {
        let (mut kept, n_rows) = (read(io.input(1)), io.input(1).layout().shape()[0]);
        kept.extend(read(io.input(0)));
        let n = kept.len() as f32;
        write(io, 1, &[n_rows + 1, 4], kept)?;
        write(io, 0, &[1], vec![n])
    });
    let open = PartialShape::from([Dim::Dynamic, Dim::Fixed(4)]);
    let info = ModelInfo {
        inputs: vec![port("x", &[1, 4]), Port::new("past", ElementType::F32, open.clone())],
        outputs: vec![port("length", &[1]), Port::new("present", ElementType::F32, open)],
        ..ModelInfo::default()
    };
    let model = Model::from_ports(info).make_stateful([("past", "present")]).unwrap();
    let request = on_null(script, &model).create_infer_request().unwrap();
    for n_rows in 1..20 {
        request.infer(row([n_rows as f32; 4])).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [(4 * n_rows) as f32]);
    }
    let state = only_state(&request).state().unwrap();
    assert_eq!((state.shape()[0], values(&state)[4 * 7]), (19, 8.0));
    request.reset_state().unwrap();
    assert_eq!(only_state(&request).state().unwrap().shape()[..], [0, 4]);
}

#[test]
fn pairs_that_do_not_fit_are_refused_with_both_ports() {
    let model = devices::core().read_model(tiny("sum.onnx")).unwrap();
    let refused = |model: &Model, pair| model.make_stateful([pair]).unwrap_err();
    assert_eq!(refused(&model, ("total", "total_out")).kind(), ErrorKind::NotFound);
    assert_eq!(refused(&model, ("total_in", "z")).kind(), ErrorKind::NotFound);
    let once = model.make_stateful([("total_in", "total_out")]).unwrap();
    assert!(refused(&once, ("total_in", "y")).to_string().contains("variable already"));
    let stripes = devices::core().read_model(tiny("stripes.onnx")).unwrap();
    let error = refused(&stripes, ("image", "boxes")).to_string();
    assert!(error.contains("`image` [1, 3, 60, 80] f32") && error.contains("`boxes` [1, 300, 6] f32"), "{error}");
}
