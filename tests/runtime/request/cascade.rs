//! The output of a request is the input of another request or of the same request. If the element types are equal, nothing is copied. A
//! reader never gets a mix of two runs.

use roiflow::runtime::ErrorKind;
use roiflow::tensor::{ElementType, Tensor};

use super::*;
use crate::support::{row, values};

/// Equivalent OpenVINO tests: Inference_ROI_Tensor, roi_nchw. The input is a region of an image with two channels.
#[test]
fn a_window_of_two_channels_gives_exact_numbers() {
    let big = Tensor::from_slice([1, 2, 5, 5], &(0..50).map(|value| value as f32).collect::<Vec<_>>()).unwrap();
    let model = compile_ports(Arc::new(doubling()), vec![port("x", &[1, 2, 3, 3])], vec![port("y", &[1, 2, 3, 3])]);
    let window = big.roi(&[0, 0, 1, 1], &[1, 2, 4, 4]).unwrap();
    let expected = [6, 7, 8, 11, 12, 13, 16, 17, 18, 31, 32, 33, 36, 37, 38, 41, 42, 43].map(|value| 2.0 * value as f32);
    assert_eq!(values(&model.infer(&window).unwrap()[0]), expected);
}

/// Equivalent OpenVINO tests: Inference_ROI_Tensor, roi_1d. The input is the middle of a row.
#[test]
fn a_window_of_one_axis_gives_exact_numbers() {
    let big = Tensor::from_slice([5], &[0.0_f32, 1.0, 2.0, 3.0, 4.0]).unwrap();
    let model = compile_ports(Arc::new(doubling()), vec![port("x", &[3])], vec![port("y", &[3])]);
    assert_eq!(values(&model.infer(big.roi(&[1], &[4]).unwrap()).unwrap()[0]), [2.0, 4.0, 6.0]);
}

/// Compiles a model whose output has one more row than its input. The additional row contains the number of rows.
fn growing() -> CompiledModel {
    let script = Script::computing(|io, _| {
        let mut rows = read(io.input(0));
        let n_rows = rows.len() / 16;
        rows.extend([n_rows as f32; 16]);
        write(io, 0, &[n_rows + 1, 16], rows)
    });
    compile_ports(Arc::new(script), vec![port("x", &[0, 16])], vec![port("y", &[0, 16])])
}

/// Equivalent OpenVINO test: OVIterationChaining.Simple. The first tensor has the shape {0, 16}. The output is fed back ten times and grows
/// by one row each time.
#[test]
fn an_output_that_is_fed_back_grows_by_a_row_each_time() {
    for asynchronous in [false, true] {
        let request = growing().create_infer_request().unwrap();
        request.set_tensor("x", &Tensor::new(ElementType::F32, [0, 16]).unwrap()).unwrap();
        for n_rows in 1..=10 {
            if asynchronous {
                request.start_async(()).unwrap();
                request.wait().unwrap();
            } else {
                request.infer(()).unwrap();
            }
            let output = request.output_tensor(()).unwrap();
            let expected: Vec<f32> = (0..n_rows).flat_map(|row| [row as f32; 16]).collect();
            assert_eq!((&output.shape()[..], values(&output)), (&[n_rows, 16][..], expected));
            request.set_tensor("x", &output).unwrap();
            assert!(request.tensor("x").unwrap().is_same(&output), "no copy");
        }
    }
}

/// The request alternates between two tensors. Once both exist, feeding back the output allocates no memory.
#[test]
fn two_tensors_take_turns_when_an_output_is_fed_back() {
    let request = compile(doubling()).create_infer_request().unwrap();
    request.infer(row([1.0; 4])).unwrap();
    let mut addresses = Vec::new();
    for _ in 0..6 {
        let output = request.output_tensor(()).unwrap();
        addresses.push(output.address() as usize);
        request.infer(&output).unwrap();
    }
    assert_eq!(addresses[..2], addresses[2..4]);
    assert_eq!(addresses[..2], addresses[4..]);
    assert_ne!(addresses[0], addresses[1]);
    assert_eq!(values(&request.output_tensor(()).unwrap()), [128.0; 4]);
}

/// The two inputs of the model are its two latest outputs. A run must write neither of them while it reads them.
#[test]
fn the_two_latest_outputs_may_both_be_fed_back() {
    let script = Script::computing(|io, _| {
        let (a, b) = (read(io.input(0)), read(io.input(1)));
        write(io, 0, &[1, 4], a.iter().zip(&b).map(|(a, b)| a + b).collect())
    });
    let model = compile_ports(Arc::new(script), vec![port("a", &[1, 4]), port("b", &[1, 4])], vec![port("y", &[1, 4])]);
    let request = model.create_infer_request().unwrap();
    let (mut last, mut latest) = (row([0.0; 4]), row([1.0; 4]));
    let mut fibonacci = Vec::new();
    for _ in 0..10 {
        request.infer([&last, &latest]).unwrap();
        (last, latest) = (latest, request.output_tensor(()).unwrap());
        fibonacci.push(values(&latest)[0]);
    }
    assert_eq!(fibonacci, [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 34.0, 55.0, 89.0]);
}

/// A start fails with `Busy` if the run would read a tensor that another running request writes.
#[test]
fn the_output_of_a_running_request_is_nobodys_input() {
    let ((first, first_hand), (second, second_hand)) = (turned_by_hand(), turned_by_hand());
    second.set_input_tensor((), &first.output_tensor(()).unwrap()).unwrap();
    first.start_async(row([1.0; 4])).unwrap();
    let error = second.start_async(()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("input `x`"), "{error}");
    assert!(first_hand.run_one());
    first.wait().unwrap();
    second.start_async(()).unwrap();
    let error = first.start_async(()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "a run cannot write the input of another run");
    assert!(error.to_string().contains("output `y`"), "{error}");
    assert!(second_hand.run_one());
    second.wait().unwrap();
    assert_eq!(values(&second.output_tensor(()).unwrap()), [4.0; 4]);
}

/// The callback of each request starts the next request with its output.
#[test]
fn a_cascade_goes_from_callback_to_callback() {
    let model = compile(doubling());
    let (first, second) = (model.create_infer_request().unwrap(), model.create_infer_request().unwrap());
    let (sender, receiver) = std::sync::mpsc::channel();
    let next = second.clone();
    first.set_callback(move |request, result| result.and_then(|()| next.start_async(request.results()?.tensor(())?)).unwrap()).unwrap();
    second.set_callback(move |request, _| sender.send(values(&request.output_tensor(()).unwrap())).unwrap()).unwrap();
    for value in [1.0, 2.0] {
        first.start_async(row([value; 4])).unwrap();
        assert_eq!(crate::support::receive(&receiver), [4.0 * value; 4]);
        first.wait().unwrap();
        second.wait().unwrap();
    }
}
