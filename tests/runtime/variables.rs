//! Tests of variables that are independent of the device. The tests in `device_suite::states` run on every device.

use std::sync::Arc;

use roiflow::devices::{self, null::Script};
use roiflow::runtime::{CompiledModel, Config, Core, Dim, ErrorKind, InferRequest, Model, ModelInfo, PartialShape, Port, VariableState};
use roiflow::tensor::ElementType;

use crate::request::{port, read, write};
use crate::support::{row, tiny, values};

fn on_null(script: Script, model: &Model) -> CompiledModel {
    let mut core = Core::new();
    core.register(Arc::new(devices::null::NullDevice::new(Arc::new(script))));
    core.compile_model(model, "NULL", &Config::default()).unwrap()
}

fn only_state(request: &InferRequest) -> VariableState {
    request.query_state().unwrap().remove(0)
}

/// A reset of one variable does not change the other variables.
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

/// A state of dynamic shape grows with the values that runs write.
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
    assert!(refused(&once, ("total_in", "y")).to_string().contains("already a variable"));
    let stripes = devices::core().read_model(tiny("stripes.onnx")).unwrap();
    let error = refused(&stripes, ("image", "boxes")).to_string();
    assert!(error.contains("`image` [1, 3, 60, 80] f32") && error.contains("`boxes` [1, 300, 6] f32"), "{error}");
}
