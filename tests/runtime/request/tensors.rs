//! The tensors of a request: their names, the values that they accept, and the owners of their memory.

use std::sync::Arc;

use roiflow::runtime::ErrorKind;
use roiflow::tensor::{ElementType, Tensor};

use super::*;
use crate::support::{Written, row, values};

/// Compiles the model `a`, `b` -> `sum`, `difference`. The first and the last port have a second name.
pub(super) fn adding() -> CompiledModel {
    let script = Script::computing(|io, _| {
        let (a, b) = (read(io.input(0)), read(io.input(1)));
        let with = |op: fn(f32, f32) -> f32| a.iter().zip(&b).map(|(a, b)| op(*a, *b)).collect();
        let (sum, difference) = (with(|a, b| a + b), with(|a, b| a - b));
        write(io, 0, &[1, 4], sum)?;
        write(io, 1, &[1, 4], difference)
    });
    let named = |mut port: Port, more: &str| {
        port.names.push(more.into());
        port
    };
    let inputs = vec![named(port("a", &[1, 4]), "first"), port("b", &[1, 4])];
    let outputs = vec![port("sum", &[1, 4]), named(port("difference", &[1, 4]), "last")];
    compile_ports(Arc::new(script), inputs, outputs)
}

/// Equivalent OpenVINO tests: Cancreate_infer_request, CheckInputsOutputs, canInferWithoutSetAndGetInOutSync,
/// canInferWithoutSetAndGetInOutAsync.
#[test]
fn a_new_request_has_tensors_that_fit_its_ports_and_runs() {
    let model = adding();
    let request = model.create_infer_request().unwrap();
    for port in model.inputs().iter().chain(model.outputs()) {
        let tensor = request.tensor(port).unwrap();
        assert_eq!(tensor.element(), port.element);
        assert!(port.shape.admits(&tensor.shape()));
    }
    request.infer(()).unwrap();
    request.start_async(()).unwrap();
    request.wait().unwrap();
    assert_eq!(values(&request.tensor("sum").unwrap()), [0.0; 4]);
}

/// Equivalent OpenVINO tests: getInputsFromFunctionWithSeveralInputs, getOutputsFromFunctionWithSeveralOutputs,
/// getOutputsFromSplitFunctionWithSeveralOutputs.
#[test]
fn name_alias_index_and_port_mean_the_same_tensor() {
    let model = adding();
    let request = model.create_infer_request().unwrap();
    let (a, b) = (request.input_tensor(0).unwrap(), request.input_tensor(1).unwrap());
    let (sum, difference) = (request.output_tensor(0).unwrap(), request.output_tensor(1).unwrap());
    for same in [request.tensor("a"), request.tensor("first"), request.tensor(&model.inputs()[0]), request.input_tensor("first")] {
        assert!(same.unwrap().is_same(&a));
    }
    for same in [request.tensor("difference"), request.tensor("last"), request.tensor(&model.outputs()[1]), request.output_tensor("last")] {
        assert!(same.unwrap().is_same(&difference));
    }
    for (one, other) in [(&a, &b), (&sum, &difference), (&a, &sum)] {
        assert!(!one.is_same(other));
    }
}

/// Equivalent OpenVINO tests: getInputFromFunctionWithSingleInput, getOutputFromFunctionWithSingleInput.
#[test]
fn the_only_port_needs_no_name() {
    let request = compile(doubling()).create_infer_request().unwrap();
    assert!(request.input_tensor(()).unwrap().is_same(&request.tensor("x").unwrap()));
    assert!(request.output_tensor(()).unwrap().is_same(&request.tensor("y").unwrap()));
    request.set_input_tensor((), &row([1.0; 4])).unwrap();
    let several = adding().create_infer_request().unwrap();
    let error = several.input_tensor(()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("`a`, `b`"), "{error}");
    assert!(several.set_output_tensor((), &row([1.0; 4])).is_err());
}

/// Equivalent OpenVINO tests: failToSetTensorWithIncorrectName, SetInputTensors_No_index.
#[test]
fn an_unknown_name_index_or_port_lists_the_known_ones() {
    let request = adding().create_infer_request().unwrap();
    let (tensor, foreign) = (row([0.0; 4]), port("c", &[1, 4]));
    let results = [
        request.tensor("c").map(drop),
        request.input_tensor("sum").map(drop),
        request.output_tensor("a").map(drop),
        request.input_tensor(2).map(drop),
        request.output_tensor(10).map(drop),
        request.tensor(&foreign).map(drop),
        request.set_tensor("c", &tensor),
        request.set_input_tensor("sum", &tensor),
        request.set_input_tensor(2, &tensor),
        request.set_output_tensor(&foreign, &tensor),
        request.infer([("c", &tensor)]),
    ];
    for (result_idx, result) in results.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{result_idx}");
        assert!(error.to_string().contains("the model has `"), "{result_idx}: {error}");
    }
    for both in [request.tensor("c").map(drop), request.set_tensor("c", &tensor)] {
        let error = both.unwrap_err().to_string();
        assert!(error.contains("`a`, `b`") && error.contains("`sum`, `difference`"), "expected the names of inputs and outputs: {error}");
    }
}

/// Equivalent OpenVINO tests: canSetAndGetInput, canSetAndGetOutput, getAfterSetInputDoNotChangeInput, getAfterSetOutputDoNotChangeOutput,
/// canInferWithSetInOutBlobs.
#[test]
fn the_users_tensors_stay_the_requests_tensors() {
    let request = adding().create_infer_request().unwrap();
    let tensors = [row([1.0; 4]), row([2.0; 4]), row([0.0; 4]), row([0.0; 4])];
    let names = ["a", "b", "sum", "difference"];
    let check = || {
        for (name, tensor) in names.iter().zip(&tensors) {
            assert!(request.tensor(*name).unwrap().is_same(tensor), "{name}");
        }
    };
    for (name, tensor) in names.iter().zip(&tensors) {
        request.set_tensor(*name, tensor).unwrap();
    }
    check();
    request.infer(()).unwrap();
    request.start_async(()).unwrap();
    request.wait().unwrap();
    check();
    assert_eq!((values(&tensors[2]), values(&tensors[3])), (vec![3.0; 4], vec![-1.0; 4]));
}

/// Equivalent OpenVINO tests: secondCallGetInputDoNotReAllocateData, secondCallGetOutputDoNotReAllocateData, canInferWithGetIn,
/// canInferWithGetOut.
#[test]
fn the_requests_own_tensors_stay_where_they_are() {
    let request = adding().create_infer_request().unwrap();
    let addresses = || ["a", "b", "sum", "difference"].map(|name| request.tensor(name).unwrap().address());
    let before = addresses();
    assert_eq!(addresses(), before);
    request.tensor("a").unwrap().view_mut::<f32>().unwrap().fill(7.0);
    request.infer(()).unwrap();
    assert_eq!(addresses(), before);
    request.start_async(()).unwrap();
    request.wait().unwrap();
    assert_eq!(addresses(), before);
    assert_eq!(values(&request.tensor("sum").unwrap()), [7.0; 4]);
}

/// Equivalent OpenVINO test: CheckInferIsNotChangeInput.
#[test]
fn a_run_does_not_change_its_input() {
    let request = adding().create_infer_request().unwrap();
    let (a, b) = (row([1.0, 2.0, 3.0, 4.0]), row([0.5, 0.25, 0.0, -1.0]));
    for _ in 0..2 {
        request.infer([("a", &a), ("b", &b)]).unwrap();
        assert_eq!((values(&a), values(&b)), (vec![1.0, 2.0, 3.0, 4.0], vec![0.5, 0.25, 0.0, -1.0]));
    }
}

/// Equivalent OpenVINO tests: CanSetInBlobWithDifferentPrecision, CanSetOutBlobWithDifferentPrecision.
#[test]
fn only_the_ports_element_type_is_accepted() {
    for own in ElementType::ALL {
        let of = |name: &str| Port { element: own, ..port(name, &[1, 4]) };
        let request = compile_ports(Arc::default(), vec![of("x")], vec![of("y")]).create_infer_request().unwrap();
        for element in ElementType::ALL {
            for port in ["x", "y"] {
                match request.set_tensor(port, &Tensor::new(element, [1, 4]).unwrap()) {
                    Ok(()) => assert_eq!(element, own),
                    Err(error) => {
                        assert_ne!(element, own);
                        assert_eq!(error.kind(), ErrorKind::Tensor);
                        assert!(error.to_string().contains(&format!("expected [1, 4] {own}, got [1, 4] {element}")), "{error}");
                    }
                }
            }
        }
        request.infer(()).unwrap();
    }
}

/// Equivalent OpenVINO tests: failToSetInputWithIncorrectSizes, failToSetOutputWithIncorrectSizes.
#[test]
fn a_tensor_of_another_shape_is_refused_with_both_shapes() {
    let request = compile(doubling()).create_infer_request().unwrap();
    for shape in [&[4][..], &[1, 5], &[2, 4], &[1, 4, 1], &[1, 0], &[]] {
        let tensor = Tensor::new(ElementType::F32, shape).unwrap();
        for (set, port) in [(request.set_input_tensor((), &tensor), "input `x`"), (request.set_output_tensor((), &tensor), "output `y`")] {
            let error = set.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Tensor);
            assert_eq!(error.to_string(), format!("{port}: expected [1, 4] f32, got {shape:?} f32"));
        }
    }
}

/// Equivalent OpenVINO tests: canInferAfterIOBlobReallocation, InferStaticNetworkSetChangedInputTensorThrow,
/// InferStaticNetworkSetChangedOutputTensorThrow.
#[test]
fn a_tensor_that_is_reshaped_away_fails_the_start_and_back_it_works() {
    #[derive(Debug)]
    struct Case {
        port: &'static str,
        users: bool,
    }
    for case in ["x", "y"].into_iter().flat_map(|port| [Case { port, users: false }, Case { port, users: true }]) {
        let request = compile(doubling()).create_infer_request().unwrap();
        if case.users {
            request.set_tensor(case.port, &row([0.0; 4])).unwrap();
        }
        let mut tensor = request.tensor(case.port).unwrap();
        for away in [&[2, 4][..], &[1, 2], &[4]] {
            tensor.set_shape(away).unwrap();
            for ran in [request.infer(()), request.start_async(())] {
                let error = ran.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Tensor, "{case:?}");
                assert!(
                    error.to_string().contains(&format!("`{}`: expected [1, 4] f32, got {away:?} f32", case.port)),
                    "{case:?}: {error}"
                );
            }
        }
        tensor.set_shape([1, 4]).unwrap();
        request.input_tensor(()).unwrap().view_mut::<f32>().unwrap().fill(2.0);
        request.infer(()).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        assert_eq!(values(&request.output_tensor(()).unwrap()), [4.0; 4], "{case:?}");
    }
}

/// Inputs are one tensor, a list (which may be shorter than the list of ports), or named tensors.
#[test]
fn inputs_are_given_by_list_by_index_or_by_name() {
    let request = adding().create_infer_request().unwrap();
    let (a, b) = (row([3.0; 4]), row([1.0; 4]));
    let both = [a.clone(), b.clone()];
    let sum = || values(&request.tensor("sum").unwrap())[0];
    request.infer(&both[..]).unwrap();
    assert_eq!(sum(), 4.0);
    request.infer(&both[1..]).unwrap();
    assert_eq!(sum(), 2.0, "a shorter list sets the first inputs and leaves the others");
    request.infer([(1, &a)]).unwrap();
    assert_eq!(sum(), 4.0);
    request.infer([("first", &a), ("b", &a)]).unwrap();
    assert_eq!(sum(), 6.0);
    assert_eq!(kind(request.infer(&a)), Some(ErrorKind::NotFound), "one tensor is not enough for two inputs");
    let three = [a.clone(), b.clone(), b];
    assert_eq!(kind(request.infer(&three[..])), Some(ErrorKind::NotFound));
    request.infer([("b", &a), ("a", &a)]).unwrap();
    request.infer(()).unwrap();
    assert_eq!(sum(), 6.0, "inputs keep their values");
}

/// An extent that is dynamic accepts any value. `device_suite` contains OVNotSupport and the other tests of dynamic shapes.
#[test]
fn an_open_extent_accepts_any_and_the_others_stay_fixed() {
    let model = compile_ports(Arc::new(doubling()), vec![port("x", &[0, 4])], vec![port("y", &[0, 4])]);
    let request = model.create_infer_request().unwrap();
    assert_eq!(request.input_tensor(()).unwrap().shape()[..], [0, 4]);
    for n_rows in [1, 3, 2] {
        request.infer(Tensor::from_slice([n_rows, 4], &vec![1.5_f32; 4 * n_rows]).unwrap()).unwrap();
        assert_eq!(request.output_tensor(()).unwrap().shape()[..], [n_rows, 4]);
        assert_eq!(values(&request.output_tensor(()).unwrap()), vec![3.0; 4 * n_rows]);
    }
    let error = request.set_input_tensor((), &Tensor::new(ElementType::F32, [2, 5]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "input `x`: expected [?, 4] f32, got [2, 5] f32");
}

/// A handle is equal to its clones, and not equal to a handle of another request.
#[test]
#[allow(clippy::mutable_key_type, reason = "a handle is hashed by its number, which never changes")]
fn handles_of_one_request_are_equal() {
    let model = compile(doubling());
    let (request, other) = (model.create_infer_request().unwrap(), model.create_infer_request().unwrap());
    assert_eq!(request, request.clone());
    assert_ne!(request, other);
    let set: std::collections::HashSet<InferRequest> = [request.clone(), request.clone(), other].into();
    assert_eq!(set.len(), 2);
    assert_eq!(request.compiled_model().inputs(), model.inputs());
}

/// Engines check an index, and use it later. Other code may write an array of Python in between, so the run reads a copy.
#[test]
fn indices_that_other_code_writes_are_copied_when_a_run_starts() {
    for (element, n_bytes) in [(ElementType::I64, 8), (ElementType::U32, 4), (ElementType::Bool, 1), (ElementType::F32, 4)] {
        let gate = Gate::closed();
        let (sender, receiver) = std::sync::mpsc::channel();
        let script = Script::computing(move |io, _| {
            sender.send(io.input(0).extent()[0]).unwrap();
            Ok(())
        });
        let input = Port::new("x", element, [8 / n_bytes]);
        let script = Script { gate: Some(gate.clone()), ..script };
        let request = compile_ports(Arc::new(script), vec![input], vec![port("y", &[1])]).create_infer_request().unwrap();
        let memory = Written::new(&[0]);
        request.set_input_tensor((), &memory.tensor(element, &[8 / n_bytes])).unwrap();
        memory.set(0, 1); // A write before the start is seen.
        request.start_async(()).unwrap();
        gate.wait_for_arrivals(1);
        memory.set(0, 0);
        gate.open();
        request.wait().unwrap();
        // Wrong pixels are sound, so floats are not copied.
        let expected = u8::from(element != ElementType::F32);
        assert_eq!(receiver.recv().unwrap(), expected, "{element}");
    }
}

/// The binding gives out arrays over the memory of tensors. From then on, other code may write it.
#[test]
fn indices_in_memory_that_was_given_out_are_copied() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let script = Script::computing(move |io, _| {
        sender.send((io.input(0).extent().as_ptr() as usize, io.input(0).extent()[0])).unwrap();
        Ok(())
    });
    let model = compile_ports(Arc::new(script), vec![Port::new("x", ElementType::I64, [1])], vec![port("y", &[1])]);
    let request = model.create_infer_request().unwrap();
    let run = |value: i64| {
        request.infer(()).unwrap();
        let (address, first) = receiver.recv().unwrap();
        assert_eq!(first, value as u8);
        address
    };
    let own = request.input_tensor(()).unwrap();
    own.view_mut::<i64>().unwrap()[[0]] = 1;
    assert_eq!(run(1), own.address() as usize, "nothing is copied without need");
    own.let_others_write();
    assert_ne!(run(1), own.address() as usize);
    let mut given = Tensor::from_slice([1], &[2_i64]).unwrap();
    request.set_input_tensor((), &given).unwrap();
    assert_eq!(run(2), given.address() as usize);
    given.let_others_write();
    let copy = run(2);
    assert!(copy != given.address() as usize && copy != own.address() as usize);
    given.set_shape([2]).unwrap();
    assert!(given.is_written_by_others(), "the larger memory too");
}
