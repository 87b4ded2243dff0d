//! Regions of one tensor as inputs and outputs. Regions without a common element are independent, including adjacent regions.

use super::*;

/// Returns a tensor of two adjacent images with four columns each, and the left and the right half of this tensor.
fn halves(n_rows: usize) -> (Tensor, [Tensor; 2]) {
    let whole = Tensor::from_slice([n_rows, 8], &vec![-1.0_f32; 8 * n_rows]).unwrap();
    let half = |column: usize| whole.roi(&[0, column], &[n_rows, column + 4]).unwrap();
    (whole.clone(), [half(0), half(4)])
}

/// Each request writes its half while the other half is leased. Then two threads run the two requests concurrently, and neither thread
/// waits for the other.
pub fn outputs_in_disjoint_regions_are_written_at_the_same_time(device: &UnderTest) {
    let (whole, [left, right]) = halves(3);
    let model = (device.double)();
    let request_of = |output: &Tensor| {
        let request = model.create_infer_request().unwrap();
        request.set_output_tensor((), output).unwrap();
        request
    };
    let (into_left, into_right) = (request_of(&left), request_of(&right));
    for (held, free, request) in [(&left, &right, &into_right), (&right, &left, &into_left)] {
        let held = held.view_mut::<f32>().unwrap();
        request.infer(batch(3, 3)).unwrap();
        assert_eq!(values(free), doubled(&numbers(3, 3)));
        assert_eq!(kind(whole.view::<f32>().map_err(Into::into)), Some(ErrorKind::Busy));
        drop(held);
    }
    std::thread::scope(|scope| {
        for (request, output) in [(&into_left, &left), (&into_right, &right)] {
            scope.spawn(move || {
                for round in 0..100 {
                    request.infer(batch(round, 3)).unwrap();
                    assert_eq!(values(output), doubled(&numbers(round, 3)));
                }
            });
        }
    });
    let top = whole.roi(&[0, 0], &[1, 8]).unwrap();
    let held = top.view::<f32>().unwrap();
    assert_eq!(kind(into_left.infer(())), Some(ErrorKind::Busy), "the regions overlap");
    drop(held);
    into_left.infer(()).unwrap();
}

pub fn a_run_reads_one_region_and_writes_another_of_the_tensor(device: &UnderTest) {
    let (whole, [left, right]) = halves(2);
    left.view_mut::<f32>().unwrap().fill(2.5);
    let request = (device.double)().create_infer_request().unwrap();
    request.set_output_tensor((), &right).unwrap();
    request.infer(&left).unwrap();
    assert_eq!(values(&whole), [[2.5, 2.5, 2.5, 2.5, 5.0, 5.0, 5.0, 5.0]; 2].concat());
    let middle = whole.roi(&[0, 2], &[2, 6]).unwrap();
    let error = request.infer(&middle).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("a run cannot write a tensor that it reads"), "{error}");
    request.infer(&left).unwrap();
}

pub fn two_outputs_of_a_request_are_regions_of_one_tensor(device: &UnderTest) {
    let (whole, [left, right]) = halves(1);
    let request = (device.add)().create_infer_request().unwrap();
    request.set_tensor("sum", &left).unwrap();
    request.set_tensor("difference", &right).unwrap();
    request.set_tensor("a", &row([8.0, 7.0, 6.0, 5.0])).unwrap();
    request.set_tensor("b", &row([1.0, 2.0, 3.0, 4.0])).unwrap();
    request.infer(()).unwrap();
    assert_eq!(values(&whole), [9.0, 9.0, 9.0, 9.0, 7.0, 5.0, 3.0, 1.0]);
    let error = request.set_tensor("difference", &whole.roi(&[0, 3], &[1, 7]).unwrap()).unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("shares memory with that of output"), "{error}");
}

/// The output has no elements when the run starts, and grows within its memory.
pub fn an_empty_output_leases_its_memory_once_it_has_elements(device: &UnderTest) {
    let request = (device.double)().create_infer_request().unwrap();
    let mut output = batch(0, 4);
    let address = output.address();
    let row = output.roi(&[3, 0], &[4, 4]).unwrap();
    output.set_shape([0, 4]).unwrap();
    let (_reads, _writes) = (output.view::<f32>().unwrap(), row.view_mut::<f32>().unwrap());
    drop((_reads, _writes));
    request.set_output_tensor((), &output).unwrap();
    request.infer(batch(2, 4)).unwrap();
    assert_eq!((values(&output), output.address()), (doubled(&numbers(2, 4)), address));
    output.set_shape([0, 4]).unwrap();
    let held = row.view_mut::<f32>().unwrap();
    assert_eq!(kind(request.infer(batch(2, 4))), Some(ErrorKind::Busy), "another guard writes the output");
    drop(held);
    request.infer(batch(1, 4)).unwrap();
    assert_eq!(values(&output), doubled(&numbers(1, 4)));
}
