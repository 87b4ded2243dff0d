//! All kinds of inputs: single values, lists, pairs, maps and batches, shared or copied with a cast. Setting several inputs is atomic.

use std::collections::{BTreeMap, HashMap};

use ndarray::{Array2, arr0, arr2, aview1};
use roiflow::inputs;
use roiflow::runtime::{Axes, Dim, ErrorKind, Input, Inputs, PortKey};
use roiflow::tensor::{ElementType, Tensor, f16};

use super::tensors::adding;
use super::*;
use crate::support::{row, values};

/// Runs the request with these inputs and returns the value of its output `sum`.
#[track_caller]
fn sum_of(request: &InferRequest, inputs: impl Inputs) -> f32 {
    request.infer(inputs).unwrap();
    values(&request.tensor("sum").unwrap())[0]
}

/// Equivalent OpenVINO tests (see `tests/conformance.txt`): C19 infer with list, partial list, dict (str/int/port keys mixed), single
/// array, C19 containers not mutated, C19 set_tensors with every key kind.
#[test]
fn lists_pairs_and_maps_mean_the_same() {
    let model = adding();
    let request = model.create_infer_request().unwrap();
    let (three, one) = (row([3.0; 4]), row([1.0; 4]));
    let port_b = model.inputs()[1].clone();
    let list = vec![three.clone(), one.clone()];
    assert_eq!(sum_of(&request, &list), 4.0);
    assert_eq!(sum_of(&request, &list[1..]), 2.0, "a shorter list sets the first inputs");
    assert_eq!(sum_of(&request, [&three]), 4.0, "the other inputs keep their values");
    assert_eq!(sum_of(&request, [("a", &one)]), 2.0);
    assert_eq!(sum_of(&request, vec![("a".to_owned(), three.clone())]), 4.0);
    assert_eq!(sum_of(&request, [(&port_b, &three)]), 6.0);
    assert_eq!(sum_of(&request, HashMap::from([("a", &one), ("b", &one)])), 2.0);
    assert_eq!(sum_of(&request, BTreeMap::from([(0, three.clone()), (1, three.clone())])), 6.0);
    assert_eq!(sum_of(&request, HashMap::from([("first".to_owned(), one.clone())])), 4.0);
    let array = arr2(&[[10.0_f32; 4]]);
    assert_eq!(sum_of(&request, inputs!["a" => &array, &port_b => &three]), 13.0);
    assert_eq!(sum_of(&request, inputs![1 => &array, "first" => &one]), 11.0);
    assert_eq!(sum_of(&request, inputs![PortKey::Index(0) => Input::Batch(std::slice::from_ref(&three))]), 13.0);
    assert_eq!(kind(request.infer(Input::Share(one.clone()))), Some(ErrorKind::NotFound), "a single value needs a model with one input");
    assert_eq!(sum_of(&request, ()), 13.0, "`()` keeps all inputs");
    assert_eq!((values(&three), values(&one), list.len()), (vec![3.0; 4], vec![1.0; 4], 2), "the caller's values are unchanged");
}

/// Equivalent OpenVINO tests (see `tests/conformance.txt`): C18 array-like inputs, C18 single input, C18 mixed dtypes. An array is copied
/// and cast when it is set.
#[test]
fn an_array_is_copied_at_once_and_cast() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let output = request.output_tensor(()).unwrap();
    let own = request.input_tensor(()).unwrap();
    let mut array = arr2(&[[1.0_f32, 2.0, 3.0, 4.0]]);
    request.set_inputs(&array).unwrap();
    array.fill(0.0);
    request.infer(()).unwrap();
    assert_eq!(values(&output), [2.0, 4.0, 6.0, 8.0]);
    request.infer(arr2(&[[1_u8, 2, 3, 255]])).unwrap();
    assert_eq!(values(&output), [2.0, 4.0, 6.0, 510.0]);
    request.infer(arr2(&[[-1_i64, 0, 1, 2]])).unwrap();
    assert_eq!(values(&output), [-2.0, 0.0, 2.0, 4.0]);
    request.start_async(arr2(&[[f16::from_f32(0.5); 4]])).unwrap();
    request.wait().unwrap();
    assert_eq!(values(&output), [1.0; 4]);
    request.infer(arr2(&[[0.25_f64; 4]])).unwrap();
    let wide = Array2::from_shape_fn((8, 2), |(row, column)| (10 * row + column) as f32);
    request.infer(wide.slice(ndarray::s![..;2, 1..]).reversed_axes()).unwrap();
    assert_eq!(values(&output), [2.0, 42.0, 82.0, 122.0], "any strides");
    assert!(request.input_tensor(()).unwrap().is_same(&own), "all values were copied into the request's own tensor");
}

/// Equivalent OpenVINO test (see `tests/conformance.txt`): C19 non-writable inputs always copied. After the copy, the request and the
/// caller do not see each other's changes.
#[test]
fn a_copy_after_a_shared_tensor_goes_into_the_requests_own() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let (own, users) = (request.input_tensor(()).unwrap(), row([1.0; 4]));
    request.infer(&users).unwrap();
    assert!(request.input_tensor(()).unwrap().is_same(&users));
    request.infer(arr2(&[[5.0_f32; 4]])).unwrap();
    assert!(request.input_tensor(()).unwrap().is_same(&own));
    assert_eq!((values(&users), values(&own)), (vec![1.0; 4], vec![5.0; 4]));
}

/// Equivalent OpenVINO tests (see `tests/conformance.txt`): C19 dynamic model with 3 shapes, C19 scalars (sharing rules).
#[test]
fn an_array_gives_an_open_input_its_shape() {
    let model = compile_ports(Arc::new(doubling()), vec![port("x", &[0, 0])], vec![port("y", &[0, 0])]);
    let request = model.create_infer_request().unwrap();
    for shape in [(2, 3), (1, 1), (5, 2)] {
        request.infer(Array2::from_elem(shape, 1.5_f32)).unwrap();
        let output = request.output_tensor(()).unwrap();
        assert_eq!((&output.shape()[..], values(&output)), (&[shape.0, shape.1][..], vec![3.0; shape.0 * shape.1]));
    }
    let request = compile_ports(Arc::new(doubling()), vec![port("x", &[])], vec![port("y", &[])]).create_infer_request().unwrap();
    request.infer(arr0(4.0_f64)).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [8.0]);
    request.infer(Tensor::from_slice([], &[0.5_f32]).unwrap()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [1.0]);
    assert_eq!(kind(request.infer(aview1(&[1.0_f32]))), Some(ErrorKind::Tensor), "an array of one number is not a scalar");
}

/// Equivalent OpenVINO test (see `tests/conformance.txt`): C19 wrong type. The error contains the expected and the actual value, and no
/// input is set.
#[test]
fn if_one_input_does_not_fit_none_is_set() {
    let model = adding();
    let request = model.create_infer_request().unwrap();
    let (a, b) = (row([1.0; 4]), row([2.0; 4]));
    request.infer([&a, &b]).unwrap();
    let (other, short) = (row([9.0; 4]), Tensor::new(ElementType::F32, [1, 3]).unwrap());
    let bytes = Tensor::new(ElementType::U8, [1, 4]).unwrap();
    let (array, long) = (arr2(&[[9.0_f32; 4]]), arr2(&[[9.0_f32; 5]]));
    let refused: [(Result<()>, ErrorKind, &str); 8] = [
        (request.set_inputs([("a", &other), ("b", &short)]), ErrorKind::Tensor, "input `b`: expected [1, 4] f32, got [1, 3] f32"),
        (request.infer([("a", &other), ("b", &bytes)]), ErrorKind::Tensor, "input `b`: expected [1, 4] f32, got [1, 4] u8"),
        (request.infer([("a", &other), ("c", &other)]), ErrorKind::NotFound, "no input `c`"),
        (request.infer([&other, &other, &other]), ErrorKind::NotFound, "no input number 2"),
        (request.infer(inputs!["a" => &array, "b" => &long]), ErrorKind::Tensor, "input `b`: expected [1, 4] f32, got [1, 5] f32"),
        (request.start_async(inputs!["a" => &array, "b" => Input::Batch(&[])]), ErrorKind::Tensor, "empty batch"),
        (request.infer(&array), ErrorKind::NotFound, "select one of `a`, `b`"),
        (request.start_async(HashMap::from([(0, &other), (7, &other)])), ErrorKind::NotFound, "no input number 7"),
    ];
    for (refused, kind, said) in refused {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(said), "expected `{said}`: {error}");
    }
    assert!(request.tensor("a").unwrap().is_same(&a) && request.tensor("b").unwrap().is_same(&b));
    assert_eq!(sum_of(&request, ()), 3.0);
    assert_eq!(values(&request.tensor("sum").unwrap()), [3.0; 4]);
}

/// A view leases the tensor into which values would be copied. The call fails with `Busy` and sets no input.
#[test]
fn a_copy_into_a_tensor_that_is_viewed_is_busy() {
    let request = adding().create_infer_request().unwrap();
    let (own, a) = (request.input_tensor("b").unwrap(), row([1.0; 4]));
    request.set_tensor("a", &a).unwrap();
    let view = own.view::<f32>().unwrap();
    let array = arr2(&[[1.0_f32; 4]]);
    let error = request.set_inputs(inputs!["a" => &array, "b" => &array]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("input `b`"), "{error}");
    assert!(request.tensor("a").unwrap().is_same(&a));
    assert_eq!(kind(request.set_inputs([("b", view.view())])), Some(ErrorKind::Busy), "the value is a view of the input's own tensor");
    drop(view);
    assert_eq!(sum_of(&request, [("b", &array)]), 2.0);
}

/// The user's `Inputs` value panics. `start_async` returns the panic as an error, and `set_inputs` propagates it.
#[test]
fn inputs_that_panic_leave_the_request_idle() {
    struct Panics;
    impl Inputs for Panics {
        fn visit(&self, _see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
            panic!("in the inputs")
        }
    }
    let request = compile(doubling()).create_infer_request().unwrap();
    let error = request.start_async(Panics).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Panic);
    assert!(error.to_string().contains("in the inputs"), "{error}");
    let set = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| request.set_inputs(Panics)));
    assert!(set.is_err());
    request.infer(row([1.0; 4])).unwrap();
}

/// Equivalent OpenVINO tests: SetInputTensors_Batch_No_Batch, SetInputTensors_Batch_Non_0. The axes that the caller declares select the
/// batch axis. By default, it is the first axis.
#[test]
fn the_axes_that_the_caller_said_decide_where_the_batch_is() {
    let info = ModelInfo { inputs: vec![port("x", &[0, 4])], outputs: vec![port("y", &[0, 0])], ..ModelInfo::default() };
    let model = Model::from_ports(info);
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(Arc::new(doubling()))));
    let slices = [row([1.0; 4]), row([2.0; 4])];
    for (axes, accepted) in [(None, true), (Some("NC"), true), (Some("N..."), true), (Some("CN"), false), (Some("..."), false)] {
        let model = match axes {
            Some(axes) => model.with_axes("x", axes.parse::<Axes>().unwrap()).unwrap(),
            None => model.clone(),
        };
        let compiled = core.compile_model(&model, "NULL", &Config::default()).unwrap();
        assert_eq!(compiled.inputs()[0].axes.as_ref().map(ToString::to_string).as_deref(), axes);
        let request = compiled.create_infer_request().unwrap();
        let set = request.set_tensors((), &slices);
        assert_eq!(kind(set), if accepted { None } else { Some(ErrorKind::Tensor) }, "{axes:?}");
    }
    let scalar = compile_ports(Arc::default(), vec![port("x", &[])], vec![port("y", &[])]).create_infer_request().unwrap();
    assert_eq!(kind(scalar.set_tensors((), &[Tensor::new(ElementType::F32, []).unwrap()])), Some(ErrorKind::Tensor));
}

/// A run with a batch leases every slice, so that no slice changes while it is read.
#[test]
fn the_slices_of_a_running_batch_cannot_be_written() {
    let (before_fill, manual) = (Arc::new(Manual::default()), Arc::new(Manual::default()));
    let mut script = doubling();
    by_hand(&mut script, &manual);
    let request = compile_ports(Arc::new(script), vec![port("x", &[0, 4])], vec![port("y", &[0, 4])]).create_infer_request().unwrap();
    request.prepend_step_on(before_fill.clone(), "before", |_| Ok(())).unwrap();
    let big = Tensor::from_slice([2, 8], &[1.0_f32; 16]).unwrap();
    let slices = [big.roi(&[0, 0], &[1, 4]).unwrap(), row([3.0; 4])];
    request.set_tensors((), &slices).unwrap();
    request.start_async(()).unwrap();
    for tensor in [&big, &slices[0], &slices[1]] {
        assert_eq!(tensor.view_mut::<f32>().err().map(|error| error.kind()), Some(roiflow::tensor::ErrorKind::Busy));
    }
    assert!(before_fill.run_one());
    // The slices have been copied and are no longer leased, although the run is still in progress.
    big.view_mut::<f32>().unwrap().fill(0.0);
    assert!(manual.run_one());
    request.wait().unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0, 2.0, 2.0, 2.0, 6.0, 6.0, 6.0, 6.0]);
}

/// Equivalent OpenVINO test (see `tests/conformance.txt`): C19 set_tensors with every key kind. Setting outputs is also atomic.
#[test]
fn several_outputs_are_set_at_once() {
    let model = adding();
    let request = model.create_infer_request().unwrap();
    let (sum, difference) = (row([0.0; 4]), row([0.0; 4]));
    request.set_output_tensors([("sum", &sum), ("last", &difference)]).unwrap();
    request.infer([&row([5.0; 4]), &row([2.0; 4])]).unwrap();
    assert_eq!((values(&sum), values(&difference)), (vec![7.0; 4], vec![3.0; 4]));
    let short = Tensor::new(ElementType::F32, [3]).unwrap();
    let other = row([0.0; 4]);
    assert_eq!(kind(request.set_output_tensors([(0, &other), (1, &short)])), Some(ErrorKind::Tensor));
    assert_eq!(kind(request.set_output_tensors([("sum", &other), ("a", &other)])), Some(ErrorKind::NotFound));
    assert!(request.tensor("sum").unwrap().is_same(&sum) && request.tensor("difference").unwrap().is_same(&difference));
    request.set_output_tensors(HashMap::from([(&model.outputs()[0].name().to_owned(), other.clone())])).unwrap();
    assert!(request.tensor("sum").unwrap().is_same(&other));
}

/// An output whose extents have bounds accepts a tensor of any shape. The run sets the shape of the result.
#[test]
fn an_output_within_bounds_accepts_a_tensor_that_has_no_size_yet() {
    let bounded = |name| Port::new(name, ElementType::F32, [Dim::from(1..=4), 4.into()]);
    let request = compile_ports(Arc::new(doubling()), vec![bounded("x")], vec![bounded("y")]).create_infer_request().unwrap();
    for wrong in [&[0, 4][..], &[9, 4], &[2, 4], &[12], &[2, 2, 2]] {
        let output = Tensor::new(ElementType::F32, wrong).unwrap();
        request.set_output_tensor((), &output).unwrap();
        request.infer(Tensor::from_slice([3, 4], &[1.0_f32; 12]).unwrap()).unwrap();
        assert_eq!((&output.shape()[..], values(&output)), (&[3, 4][..], vec![2.0; 12]), "{wrong:?}");
    }
    assert_eq!(kind(request.set_output_tensor((), &Tensor::new(ElementType::U8, [3, 4]).unwrap())), Some(ErrorKind::Tensor));
}

/// `clear_inputs` releases the tensors of the user. The request then uses its own tensors again.
#[test]
fn inputs_that_are_cleared_are_the_requests_own_again() {
    let request = adding().create_infer_request().unwrap();
    let own = request.input_tensors().unwrap();
    request.set_inputs(inputs!["a" => &row([1.0; 4]), "b" => Input::Share(row([2.0; 4]))]).unwrap();
    request.clear_inputs().unwrap();
    for (now, before) in request.input_tensors().unwrap().iter().zip(&own) {
        assert!(now.is_same(before));
    }
    assert_eq!(sum_of(&request, ()), 0.0);
}

#[test]
fn inputs_say_what_they_are() {
    let tensor = row([0.0; 4]);
    assert_eq!(format!("{:?}", Input::from(&tensor)), "Share(Tensor([1, 4] f32))");
    assert_eq!(format!("{:?}", Input::from(&arr2(&[[1_u8, 2]]))), "Copy([1, 2] u8)");
    assert_eq!(format!("{:?}", Input::Batch(&[tensor])), "Batch([Tensor([1, 4] f32)])");
}

/// A single value is set as the only input of the model.
#[test]
fn a_value_needs_no_key_where_there_is_one_input() {
    let request = compile(doubling()).create_infer_request().unwrap();
    let (shared, copied) = (row([1.0; 4]), arr2(&[[2.0_f32; 4]]));
    for (input, expected) in [(Input::Share(shared), 2.0), (Input::Copy(&copied), 4.0), (Input::Batch(&[row([3.0; 4])]), 6.0)] {
        request.infer(&input).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [expected; 4]);
    }
}

/// Errors about batches contain the expected and the actual shape. The port and the first slice determine the expected shape.
#[test]
fn slices_that_do_not_fit_are_refused_with_what_was_expected() {
    let refusal = |dims: &[usize], slices: &[&[usize]]| {
        let model = compile_ports(Arc::default(), vec![port("x", dims)], vec![port("y", dims)]);
        let slices: Vec<_> =
            slices.iter().map(|shape| Tensor::new(ElementType::F32, roiflow::tensor::Shape::new(shape)).unwrap()).collect();
        model.create_infer_request().unwrap().set_tensors("x", &slices).unwrap_err().to_string()
    };
    assert_eq!(
        refusal(&[0, 0], &[&[1, 3], &[1, 4]]),
        "input `x` [?, ?] f32: slice 1 of 2: expected [1, 3] f32, got [1, 4] f32",
        "a dynamic extent is that of the first slice"
    );
    assert_eq!(refusal(&[0, 4], &[&[1, 3], &[1, 4]]), "input `x` [?, 4] f32: slice 1 of 2: expected [1, 4] f32, got [1, 4] f32");
    assert_eq!(refusal(&[0, 0], &[&[4]]), "input `x` [?, ?] f32: slice 0 of 1: expected [1, ?] f32, got [4] f32");
    let scalar = refusal(&[], &[&[], &[]]);
    assert!(scalar.contains("a batch of slices needs the batch as the first axis, as in `NCHW`; the port's axes: none"), "{scalar}");
}

/// Setting one input twice is an error. In a map, the iteration order would decide which value is used.
#[test]
fn an_input_that_is_given_twice_is_refused() {
    let request = adding().create_infer_request().unwrap();
    let (a, b) = (row([1.0; 4]), row([2.0; 4]));
    request.set_inputs([&a, &b]).unwrap();
    let array = arr2(&[[3.0_f32; 4]]);
    let refused = [
        request.set_inputs([("a", &b), ("a", &a)]),
        request.infer([("a", &b), ("first", &a)]),
        request.start_async(inputs!["a" => &b, 0 => &array]),
        request.set_inputs(inputs![0 => &array, "a" => &array]),
        request.set_inputs(inputs![0 => Input::Batch(std::slice::from_ref(&b)), "a" => &b]),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Tensor, "{error}");
        assert!(error.to_string().contains("input `a`") && error.to_string().contains("two in one call"), "{error}");
    }
    assert!(request.tensor("a").unwrap().is_same(&a) && request.tensor("b").unwrap().is_same(&b));
    assert_eq!(sum_of(&request, ()), 3.0);
}

/// Inputs of a user-defined type that write values and then fail or panic.
struct Fails {
    panics: bool,
}

impl roiflow::tensor::Values for Fails {
    fn element(&self) -> ElementType {
        ElementType::F32
    }

    fn shape(&self) -> &[usize] {
        &[1, 4]
    }

    fn copy_to(&self, target: &mut roiflow::tensor::BytesMut) -> roiflow::tensor::Result<()> {
        target.extent_mut().fill(7);
        assert!(!self.panics, "in the copy");
        Err(roiflow::tensor::Error::new(roiflow::tensor::ErrorKind::Shape, "no more values"))
    }
}

#[test]
fn a_copy_that_fails_sets_nothing() {
    let request = adding().create_infer_request().unwrap();
    let own = [request.input_tensor("a").unwrap(), request.input_tensor("b").unwrap()];
    let array = arr2(&[[1.0_f32; 4]]);
    request.set_inputs([&array, &array]).unwrap();
    let (other, nine) = (row([9.0; 4]), arr2(&[[9.0_f32; 4]]));
    for panics in [false, true] {
        let fails = Fails { panics };
        let fails = Input::Copy(&fails);
        let refused = [
            request.start_async(inputs!["a" => &other, "b" => fails.clone()]),
            request.start_async(inputs!["b" => fails.clone(), "a" => &other]),
            request.infer(inputs!["a" => &nine, "b" => fails.clone()]),
            request.infer(inputs!["b" => fails.clone(), "a" => &nine]),
        ];
        let expected = Some(if panics { ErrorKind::Panic } else { ErrorKind::Tensor });
        for refused in refused {
            assert_eq!(kind(refused), expected);
        }
        for (own, name) in own.iter().zip(["a", "b"]) {
            assert!(request.input_tensor(name).unwrap().is_same(own));
            assert_eq!(values(own), [1.0; 4], "{name}");
            drop(own.view_mut::<f32>().unwrap());
        }
        assert_eq!(sum_of(&request, ()), 2.0);
    }
}

/// A larger shape needs new memory. A view of the smaller tensor keeps the old memory.
#[test]
fn a_copy_that_is_refused_leaves_the_shape() {
    let model = compile_ports(Arc::new(doubling()), vec![port("x", &[0, 4])], vec![port("y", &[0, 4])]);
    let request = model.create_infer_request().unwrap();
    request.set_inputs(Array2::from_elem((3, 4), 1.0_f32)).unwrap();
    let own = request.input_tensor(()).unwrap();
    let view = own.view::<f32>().unwrap();
    assert_eq!(kind(request.set_inputs(Array2::from_elem((2, 4), 2.0_f32))), Some(ErrorKind::Busy));
    assert_eq!((&own.shape()[..], view.to_vec()), (&[3, 4][..], vec![1.0; 12]));
    request.infer(Array2::from_elem((5, 4), 2.0_f32)).unwrap();
    assert_eq!(view.to_vec(), [1.0; 12]);
    assert_eq!(values(&request.output_tensor(()).unwrap()), [4.0; 20]);
}

/// Setting two outputs that share memory fails, and the error names both ports. Without this check, every start would fail with `Busy`.
#[test]
fn one_tensor_for_two_outputs_is_refused() {
    let request = adding().create_infer_request().unwrap();
    let (one, big) = (row([0.0; 4]), Tensor::new(ElementType::F32, [2, 4]).unwrap());
    let before = request.output_tensors().unwrap();
    let refused = [
        request.set_output_tensors([("sum", &one), ("difference", &one)]),
        request.set_output_tensor("sum", &before[1]),
        request.set_tensor("sum", &before[1]),
        request.set_output_tensors([("sum", &before[1])]),
    ];
    for refused in refused {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains("`sum`") && error.to_string().contains("`difference`"), "{error}");
    }
    request.set_output_tensor("sum", &big.roi(&[0, 0], &[1, 4]).unwrap()).unwrap();
    assert_eq!(kind(request.set_output_tensor("difference", &big.roi(&[0, 0], &[1, 4]).unwrap())), Some(ErrorKind::Conflict));
    // One call may exchange the tensors of two outputs.
    request.set_output_tensors([("sum", &before[1]), ("difference", &before[0])]).unwrap();
    request.infer([&row([5.0; 4]), &row([2.0; 4])]).unwrap();
    assert_eq!((values(&before[1]), values(&before[0])), (vec![7.0; 4], vec![3.0; 4]));
}

#[test]
fn the_requests_own_input_is_no_output_and_no_batch() {
    let model = compile_ports(Arc::new(doubling()), vec![port("x", &[0, 4])], vec![port("y", &[0, 4])]);
    let request = model.create_infer_request().unwrap();
    request.set_inputs(Array2::from_elem((3, 4), 1.0_f32)).unwrap();
    let own = request.input_tensor(()).unwrap();
    let slices = [0, 1].map(|row| own.roi(&[row, 0], &[row + 1, 4]).unwrap());
    for refused in [request.set_output_tensor((), &own), request.set_output_tensor((), &slices[1]), request.set_tensors((), &slices)] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains("input `x`"), "{error}");
    }
    request.infer(()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0; 12]);
}

/// If a step requests a port that does not exist, the error contains the number of ports.
#[test]
fn a_step_that_asks_for_no_such_port_gets_an_error() {
    let request = adding().create_infer_request().unwrap();
    request
        .append_step("asks", |context| {
            assert_eq!(kind(context.output::<f32>(7)), Some(ErrorKind::NotFound));
            assert_eq!(kind(context.input::<f32>(2)), Some(ErrorKind::NotFound));
            context.output::<f32>(context.n_outputs()).map(drop)
        })
        .unwrap();
    let error = request.infer(()).unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("the model has `sum`, `difference`")), (ErrorKind::NotFound, true), "{error}");
}

#[test]
fn bounds_that_admit_nothing_and_zero_requests_are_refused() {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::default()));
    let empty = Dim::Range { min: 8, max: 2 };
    let model = Model::from_ports(ModelInfo { inputs: vec![port("x", &[0, 4])], outputs: vec![port("y", &[1])], ..ModelInfo::default() });
    let shape = PartialShape::from([empty, 4.into()]);
    let error = model.reshape([("x", shape.clone())]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tensor);
    assert!(error.to_string().contains("input `x`") && error.to_string().contains("8..2"), "{error}");
    assert_eq!(kind(PartialShape::new(vec![empty])), Some(ErrorKind::Tensor));
    let of_port = Model::from_ports(ModelInfo { inputs: vec![Port::new("x", ElementType::F32, shape)], ..ModelInfo::default() });
    assert_eq!(kind(core.compile_model(&of_port, "NULL", &Config::default())), Some(ErrorKind::Tensor));
    for config in [Config { n_requests: Some(0), ..Config::default() }, Config { n_threads: Some(0), ..Config::default() }] {
        let error = core.compile_model(&model, "NULL", &config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("at least 1"), "{error}");
    }
}
