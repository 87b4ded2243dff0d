//! The results of a run: all outputs or selected outputs, shared with the request or copied.

use roiflow::runtime::ErrorKind;

use super::tensors::adding;
use super::*;
use crate::support::{row, values};

/// Returns a request that has computed 3 + 1 and 3 - 1.
fn computed() -> InferRequest {
    let request = adding().create_infer_request().unwrap();
    request.infer([&row([3.0; 4]), &row([1.0; 4])]).unwrap();
    request
}

/// Equivalent OpenVINO tests (see `tests/conformance.txt`): C19 get_results, C19 inputs/outputs properties, C19 tensor_setter.
#[test]
fn results_are_found_by_name_alias_index_and_port() {
    let request = computed();
    let results = request.results().unwrap();
    assert_eq!((results.len(), results.is_empty()), (2, false));
    for same in [results.tensor("difference"), results.tensor("last"), results.tensor(1), results.tensor(&request.model_outputs()[1])] {
        assert!(same.unwrap().is_same(&request.output_tensor(1).unwrap()), "no copy is made");
    }
    assert_eq!((values(&results["sum"]), values(&results[1])), (vec![4.0; 4], vec![2.0; 4]));
    assert_eq!(results.view::<f32>("sum").unwrap()[[0, 3]], 4.0);
    assert_eq!(results.array::<f32>(1).unwrap(), ndarray::arr2(&[[2.0; 4]]).into_dyn());
    let names: Vec<_> = results.iter().map(|(port, tensor)| (port.name().to_owned(), values(tensor)[0])).collect();
    assert_eq!(names, [("sum".to_owned(), 4.0), ("difference".to_owned(), 2.0)]);
    assert_eq!(format!("{results:?}"), "{\"sum\": Tensor([1, 4] f32), \"difference\": Tensor([1, 4] f32)}");
    for (result, expected) in [
        (results.view::<u8>("sum").map(drop), ErrorKind::Tensor),
        (results.tensor("a").map(drop), ErrorKind::NotFound),
        (results.tensor(2).map(drop), ErrorKind::NotFound),
        (results.tensor(()).map(drop), ErrorKind::NotFound),
    ] {
        assert_eq!(kind(result), Some(expected));
    }
    assert_eq!(results.into_tensors().len(), 2);
}

#[test]
fn only_those_asked_for_are_given_in_that_order() {
    let request = computed();
    let results = request.results_of(["last", "sum"]).unwrap();
    assert_eq!(results.iter().map(|(port, _)| port.name()).collect::<Vec<_>>(), ["difference", "sum"]);
    let one = request.results_of([1]).unwrap();
    assert_eq!((one.len(), values(&one["difference"])), (1, vec![2.0; 4]));
    let error = one.tensor("sum").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("`sum` [1, 4] f32 was not requested"), "{error}");
    assert!(request.results_of::<&str>([]).unwrap().is_empty());
    assert_eq!(kind(request.results_of(["sum", "a"])), Some(ErrorKind::NotFound));
}

/// Equivalent OpenVINO test (see `tests/conformance.txt`): C19 share_inputs/share_outputs memory identity.
#[test]
fn shared_results_follow_the_next_run_and_owned_ones_do_not() {
    let request = computed();
    let shared = request.results().unwrap();
    let owned = shared.to_owned().unwrap();
    assert!(!owned["sum"].shares_memory_with(&shared["sum"]));
    request.infer([&row([7.0; 4])]).unwrap();
    assert_eq!((values(&shared["sum"]), values(&owned["sum"])), (vec![8.0; 4], vec![4.0; 4]));
    let view = shared.view::<f32>("sum").unwrap();
    assert_eq!(kind(request.infer(())), Some(ErrorKind::Busy), "a view prevents the next run");
    drop(view);
    request.infer(()).unwrap();
}

#[test]
fn results_of_a_running_request_are_busy() {
    let (request, manual) = turned_by_hand();
    let before = request.results().unwrap();
    request.start_async(row([1.0; 4])).unwrap();
    assert_eq!(kind(request.results()), Some(ErrorKind::Busy));
    assert_eq!(kind(request.results_of(["y"])), Some(ErrorKind::Busy));
    assert_eq!(kind(before.view::<f32>("y")), Some(ErrorKind::Busy));
    assert_eq!(kind(before.to_owned()), Some(ErrorKind::Busy));
    assert!(manual.run_one());
    request.wait().unwrap();
    assert_eq!(values(&before["y"]), [2.0; 4]);
}

#[test]
#[should_panic(expected = "no output `z`: the model has `sum`, `difference`")]
fn an_index_that_is_no_output_panics_with_the_names() {
    drop(computed().results().unwrap()["z"].clone());
}

/// Equivalent OpenVINO test (see `tests/conformance.txt`): C19 get_compiled_model.
#[test]
fn a_request_knows_its_model() {
    let request = computed();
    let model = request.compiled_model();
    let again = model.create_infer_request().unwrap();
    again.infer([&row([3.0; 4]), &row([1.0; 4])]).unwrap();
    assert_eq!(values(&again.results().unwrap()["sum"]), values(&request.results().unwrap()["sum"]));
    let properties = model.properties();
    assert_eq!((&*properties.device, &*properties.model_name, properties.optimal_number_of_requests), ("NULL", "model of ports", 2));
    assert_eq!(properties.config, Config::default());
}
