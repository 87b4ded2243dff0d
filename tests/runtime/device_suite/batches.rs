//! Batches of slices, on every device. The runtime copies tensors with one batch item each into the model's input.

use roiflow::runtime::ErrorKind;
use roiflow::tensor::{ElementType, Tensor};

use super::{UnderTest, batch, doubled, numbers};
use crate::request::{kind, port};
use crate::support::{row, values};

/// Returns `n` slices of four numbers, and the tensor of which the slices are regions. The slices are not adjacent in memory: the tensor
/// has `n` times 3 rows and 7 columns.
fn slices(n: usize) -> (Tensor, Vec<Tensor>) {
    let big = Tensor::from_slice([3 * n, 7], &vec![-1.0_f32; 21 * n]).unwrap();
    let slices = (0..n).map(|idx| big.roi(&[3 * idx + 1, 2], &[3 * idx + 2, 6]).unwrap()).collect();
    (big, slices)
}

/// Equivalent OpenVINO tests: SetInputTensorsBase, SetInputTensorsAsync, SetInputTensors_Multiple_Infer. Each run reads the slices when it
/// starts, so values that were written after `set_tensors` are used. In contrast to OpenVINO (SetInputTensors_Strides), slices may have
/// strides.
pub fn slices_of_a_batch_are_gathered_when_a_run_begins(device: &UnderTest) {
    let fixed = device.reshaped([4, 4], "N...").unwrap();
    for model in [fixed, (device.double)()] {
        let request = model.create_infer_request().unwrap();
        let (big, slices) = slices(4);
        request.set_tensors("x", &slices).unwrap();
        for round in 0..5 {
            for (row, slice) in slices.iter().enumerate() {
                let mut view = slice.view_mut::<f32>().unwrap();
                view.iter_mut().zip(&numbers(10 * round + row, 1)).for_each(|(to, from)| *to = *from);
            }
            if round % 2 == 0 {
                request.infer(()).unwrap();
            } else {
                request.start_async(()).unwrap();
                request.wait().unwrap();
            }
            let expected: Vec<f32> = (0..4).flat_map(|row| doubled(&numbers(10 * round + row, 1))).collect();
            let output = request.output_tensor(()).unwrap();
            assert_eq!((&output.shape()[..], values(&output)), (&[4, 4][..], expected));
        }
        assert_eq!(values(&big).iter().filter(|value| **value == -1.0).count(), 4 * 21 - 16);
    }
}

/// Equivalent OpenVINO test: SetInputTensors_Can_Infer_Dynamic. The batch size is the number of slices.
pub fn an_open_batch_is_the_number_of_slices(device: &UnderTest) {
    for model in device.open_models() {
        let request = model.create_infer_request().unwrap();
        for n in [4, 2, 1, 12] {
            let slices: Vec<Tensor> = (0..n).map(|row| batch(4 * row, 1)).collect();
            request.set_tensors((), &slices).unwrap();
            request.infer(()).unwrap();
            let output = request.output_tensor(()).unwrap();
            assert_eq!((&output.shape()[..], values(&output)), (&[n, 4][..], doubled(&numbers(0, n))));
        }
    }
}

/// Equivalent OpenVINO test: SetTensors_Batch1. One slice is set as an ordinary tensor, which `input_tensor` returns.
pub fn a_batch_of_one_is_a_tensor(device: &UnderTest) {
    for model in [(device.double)(), (device.identity)()] {
        let request = model.create_infer_request().unwrap();
        let only = row([1.0, 2.0, 3.0, 4.0]);
        request.set_tensors("x", std::slice::from_ref(&only)).unwrap();
        assert!(request.input_tensor("x").unwrap().is_same(&only));
        request.infer(()).unwrap();
        only.view_mut::<f32>().unwrap().fill(0.0);
        request.infer(()).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), [0.0; 4]);
    }
}

/// Equivalent OpenVINO tests: SetInputTensors_Get_Tensor_Not_Allowed, SetInputTensors_override_with_set.
pub fn a_tensor_takes_the_place_of_a_batch(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    let (_big, slices) = slices(3);
    request.set_tensors((), &slices).unwrap();
    for asked in [request.tensor("x"), request.input_tensor(()), request.input_tensors().map(|mut tensors| tensors.remove(0))] {
        let error = asked.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Tensor);
        assert!(error.to_string().contains("a batch of 3 slices was set"), "{error}");
    }
    request.output_tensor(()).unwrap();
    let other = batch(7, 2);
    request.set_tensor("x", &other).unwrap();
    assert!(request.input_tensor(()).unwrap().is_same(&other));
    request.infer(()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(7, 2)));
}

/// Equivalent OpenVINO tests: SetInputTensors_Incorrect_count, SetInputTensors_Batch_Incorrect, SetInputTensors_Empty_Array,
/// SetInputTensors_diff_batches, SetInputTensors_Incorrect_tensor_element_type, SetInputTensors_Incorrect_tensor_shape,
/// SetInputTensors_Batch_No_Batch, SetInputTensors_Batch_Non_0. Each error has the expected and the actual shape, and the request does not
/// change.
pub fn slices_that_make_no_batch_are_refused(device: &UnderTest) {
    let of = |shape: &[usize]| Tensor::new(ElementType::F32, shape).unwrap();
    let one = || of(&[1, 4]);
    let fixed: &[(&str, Vec<Tensor>, &str)] = &[
        ("too few", vec![one(); 3], "expected [4, 4] f32, got [3, 4] f32"),
        ("too many", vec![one(); 5], "expected [4, 4] f32, got [5, 4] f32"),
        ("one", vec![one()], "expected [4, 4] f32, got [1, 4] f32"),
        ("none", vec![], "expected at least one slice, got an empty batch"),
        ("slices of two", vec![of(&[2, 4]), of(&[2, 4])], "slice 0 of 2: expected [1, 4] f32, got [2, 4] f32"),
        ("unequal batches", vec![one(), of(&[2, 4]), one()], "slice 1 of 3: expected [1, 4] f32, got [2, 4] f32"),
        ("another extent", vec![one(), one(), of(&[1, 5]), one()], "slice 2 of 4: expected [1, 4] f32, got [1, 5] f32"),
        ("all of another extent", vec![of(&[1, 5]); 4], "expected [4, 4] f32, got [4, 5] f32"),
        ("another rank", vec![one(), of(&[1, 4, 1]), one(), one()], "slice 1 of 4: expected [1, 4] f32, got [1, 4, 1] f32"),
        ("no rank", vec![of(&[]); 4], "slice 0 of 4: expected [1, 4] f32, got [] f32"),
        ("another type", vec![Tensor::new(ElementType::U8, [1, 4]).unwrap(); 4], "slice 0 of 4: expected [1, 4] f32, got [1, 4] u8"),
    ];
    let request = device.reshaped([4, 4], "N?").unwrap().create_infer_request().unwrap();
    let before = batch(3, 4);
    request.set_tensor("x", &before).unwrap();
    for (case, slices, said) in fixed {
        let error = request.set_tensors("x", slices).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Tensor, "{case}");
        assert!(error.to_string().contains(said) && error.to_string().contains("input `x`"), "{case}: {error}");
        assert!(request.input_tensor(()).unwrap().is_same(&before), "{case}");
    }
    request.infer(()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(3, 4)));
    for axes in ["CH", "CN"] {
        let request = device.reshaped([4, 4], axes).unwrap().create_infer_request().unwrap();
        let error = request.set_tensors((), &[one(), one(), one(), one()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Tensor, "{axes}");
        assert!(error.to_string().contains(&format!("the batch as the first axis, as in `NCHW`; the port's axes: `{axes}`")), "{error}");
    }
}

/// If a slice is reshaped after it was set, starting the run fails.
pub fn a_slice_that_changes_its_shape_fails_the_start(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    let mut slices = vec![batch(0, 1), batch(4, 1)];
    request.set_tensors((), &slices).unwrap();
    slices[1].set_shape([1, 2]).unwrap();
    for ran in [request.infer(()), request.start_async(())] {
        assert_eq!(kind(ran), Some(ErrorKind::Tensor));
    }
    slices[0].view_mut::<f32>().unwrap().fill(0.5);
    slices[1].set_shape([1, 4]).unwrap();
    request.infer(()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap())[..4], [1.0; 4]);
}

/// Equivalent OpenVINO tests: SetInputTensors_No_Name, SetTensors_No_Name, SetTensors_Friendly_Name, SetInputTensors_No_index,
/// SetInputTensors_no_name_multiple_inputs. Names of nodes are not names of tensors.
pub fn a_batch_for_an_unknown_port_is_refused(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    let slices = vec![batch(0, 1); 2];
    let foreign = port("x", &[9, 9]);
    for refused in [
        request.set_tensors("undefined", &slices),
        request.set_tensors("Mul", &slices),
        request.set_tensors("y", &slices),
        request.set_tensors(10, &slices),
        request.set_tensors(&foreign, &slices),
        (device.add)().create_infer_request().unwrap().set_tensors((), &slices),
    ] {
        assert_eq!(kind(refused), Some(ErrorKind::NotFound));
    }
    request.infer(batch(0, 2)).unwrap();
}

/// Equivalent OpenVINO tests (see `tests/conformance.txt`): SetInputTensors_Correct_all, C19 batched_tensors. The key of the port is its
/// name, its index or its handle, or is omitted because the model has one input.
pub fn a_batch_is_set_by_any_key(device: &UnderTest) {
    let model = (device.double)();
    let request = model.create_infer_request().unwrap();
    let check = |first: usize| {
        request.infer(()).unwrap();
        assert_eq!(values(&request.output_tensor(()).unwrap()), doubled(&numbers(first, 2)));
    };
    let slices = |first: usize| [batch(first, 1), batch(first + 4, 1)];
    request.set_tensors("x", &slices(1)).unwrap();
    check(1);
    request.set_tensors(0, &slices(2)).unwrap();
    check(2);
    request.set_tensors(&model.inputs()[0], &slices(3)).unwrap();
    check(3);
    request.set_tensors((), &slices(4)).unwrap();
    check(4);
}
