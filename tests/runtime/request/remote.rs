//! Tensors in device memory. The host can only copy them. Requests use them without a copy.

use roiflow::devices::null::NullMemory;
use roiflow::runtime::{ContextParams, RemoteContext};
use roiflow::tensor::{ElementType, ErrorKind as TensorErrorKind, Shape, Tensor};

use super::*;
use crate::support::{compile as compile_file, row, tiny, values};

const NUMBERS: [f32; 4] = [1.0, 2.0, 3.0, 4.0];

fn core() -> &'static Core {
    roiflow::devices::core()
}

fn context() -> RemoteContext {
    core().default_context("NULL").unwrap()
}

fn remote(values: [f32; 4]) -> Tensor {
    let tensor = context().create_tensor(ElementType::F32, [1, 4]).unwrap();
    tensor.copy_from(&row(values)).unwrap();
    tensor
}

fn copied(tensor: &Tensor) -> Vec<f32> {
    let host = context().create_host_tensor(tensor.element(), tensor.shape()).unwrap();
    tensor.copy_to(&host).unwrap();
    values(&host)
}

/// Returns a script for `y = 2 x`. The device reads and writes tensors in its own memory directly.
fn doubling_there() -> Script {
    Script::computing(|io, _| {
        let input = match NullMemory::on_device(io.input_tensor(0)) {
            Some(input) => read(&input.bytes()?),
            None => read(io.input(0)),
        };
        let shape = io.input_tensor(0).shape();
        let doubled: Vec<f32> = input.into_iter().map(|value| 2.0 * value).collect();
        match NullMemory::on_device(io.output_tensor(0, &shape)?) {
            Some(output) => {
                let bytes: Vec<u8> = doubled.into_iter().flat_map(f32::to_le_bytes).collect();
                Ok(output.bytes_mut()?.copy_all_from_dense(&bytes)?)
            }
            None => write(io, 0, &shape, doubled),
        }
    })
}

fn doubling_rows() -> CompiledModel {
    compile_ports(Arc::new(doubling_there()), vec![port("x", &[0, 4])], vec![port("y", &[0, 4])])
}

/// Equivalent OpenVINO test: canCreateRemote. A tensor has the parameters of its context.
#[test]
fn a_context_is_the_devices_own_or_made_from_parameters() {
    assert_eq!((context().device(), context().params()), ("NULL", ContextParams::DeviceMemory { max_bytes: None }));
    let small = core().create_context("NULL", &ContextParams::DeviceMemory { max_bytes: Some(100) }).unwrap();
    let first = small.create_tensor(ElementType::F32, [4, 4]).unwrap();
    assert_eq!((first.element(), &first.shape()[..]), (ElementType::F32, &[4, 4][..]));
    let error = small.create_tensor(ElementType::U8, [37]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("expected at most 100 bytes in total, got 37 more than the 64 in use"), "{error}");
    drop(first);
    small.create_tensor(ElementType::U8, [100]).unwrap();
    assert_eq!(core().default_context("GPU.7").unwrap_err().kind(), ErrorKind::NotFound);
}

/// Equivalent OpenVINO test: cantCreateBlobWithInvalidSize.
#[test]
fn a_size_that_overflows_is_refused() {
    for context in [context(), core().create_context("NULL", &ContextParams::SharedMemory).unwrap()] {
        assert_eq!(kind(context.create_tensor(ElementType::F64, [usize::MAX / 4, 3])), Some(ErrorKind::Tensor));
    }
}

/// Equivalent OpenVINO test: test_remote_api. The device CPU has no default context, so getting it fails.
#[test]
fn a_device_without_memory_of_its_own_says_so() {
    for context in [core().default_context("CPU"), core().create_context("CPU", &ContextParams::DeviceMemory { max_bytes: Some(1) })] {
        let error = context.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("device CPU") && error.to_string().contains("SharedMemory"), "{error}");
    }
}

/// Equivalent OpenVINO tests: remoteTensorAsTensor, test_remote_api. The host can read the element type and shape, and set the shape. The
/// host cannot access the values.
#[test]
fn the_host_sees_type_and_shape_and_nothing_else() {
    let mut tensor = context().create_tensor(ElementType::F32, [2, 6]).unwrap();
    assert!(tensor.is_remote());
    for refused in [
        tensor.view::<f32>().map(drop),
        tensor.view_mut::<f32>().map(drop),
        tensor.bytes().map(drop),
        tensor.bytes_mut().map(drop),
        tensor.roi(&[0, 1], &[1, 2]).unwrap().view::<f32>().map(drop),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), TensorErrorKind::Remote);
        assert!(error.to_string().contains("the memory of NULL") && error.to_string().contains("copy"), "{error}");
    }
    assert_eq!(tensor.view::<u8>().unwrap_err().kind(), TensorErrorKind::ElementType);
    tensor.set_shape([3, 4]).unwrap();
    tensor.set_shape([1]).unwrap();
    assert_eq!(tensor.set_shape([13]).unwrap_err().kind(), TensorErrorKind::Shape);
    tensor.set_shape([12]).unwrap();
    assert_eq!(copied(&tensor), [0.0; 12]);
}

/// Equivalent OpenVINO test: test_remote_api. `create_host_tensor` returns an ordinary tensor.
#[test]
fn a_host_tensor_of_the_context_is_a_plain_tensor() {
    let tensor = context().create_host_tensor(ElementType::F32, [2, 2]).unwrap();
    tensor.view_mut::<f32>().unwrap().fill(3.0);
    assert!(!tensor.is_remote());
    assert_eq!(values(&tensor), [3.0; 4]);
}

#[test]
fn copies_cross_in_every_combination_of_sides_and_strides() {
    let numbers: Vec<f32> = (0..20).map(|value| value as f32).collect();
    let host = Tensor::from_slice([4, 5], &numbers).unwrap();
    let (device, other) = (
        context().create_tensor(ElementType::F32, [4, 5]).unwrap(),
        core()
            .create_context("NULL", &ContextParams::DeviceMemory { max_bytes: None })
            .unwrap()
            .create_tensor(ElementType::F32, [4, 5])
            .unwrap(),
    );
    host.copy_to(&device).unwrap();
    device.copy_to(&other).unwrap();
    assert_eq!(copied(&other), numbers);
    // Copies a region of one tensor to a region of another tensor.
    let (from, to) = (host.roi(&[1, 1], &[3, 4]).unwrap(), device.roi(&[2, 0], &[4, 3]).unwrap());
    from.copy_to(&to).unwrap();
    let expected = [&numbers[..10], &[6.0, 7.0, 8.0, 13.0, 14.0], &[11.0, 12.0, 13.0, 18.0, 19.0]].concat();
    assert_eq!(copied(&device), expected);
    assert_eq!(copied(&device.roi(&[3, 1], &[4, 3]).unwrap()), [12.0, 13.0]);
    let target = Tensor::from_slice([4, 5], &[-1.0_f32; 20]).unwrap();
    device.roi(&[2, 0], &[4, 3]).unwrap().copy_to(&target.roi(&[0, 2], &[2, 5]).unwrap()).unwrap();
    assert_eq!(values(&target)[..10], [-1.0, -1.0, 6.0, 7.0, 8.0, -1.0, -1.0, 11.0, 12.0, 13.0]);
}

#[test]
fn copies_that_do_not_fit_are_refused() {
    let (device, host) = (remote(NUMBERS), row(NUMBERS));
    let kinds = |target: &Tensor| (device.copy_to(target).unwrap_err().kind(), target.copy_to(&device).unwrap_err().kind());
    assert_eq!(kinds(&Tensor::new(ElementType::F32, [4]).unwrap()), (TensorErrorKind::Shape, TensorErrorKind::Shape));
    assert_eq!(kinds(&Tensor::new(ElementType::I32, [1, 4]).unwrap()), (TensorErrorKind::ElementType, TensorErrorKind::ElementType));
    assert_eq!(device.copy_to(&device).unwrap_err().kind(), TensorErrorKind::Busy);
    let view = host.view::<f32>().unwrap();
    assert_eq!(device.copy_to(&host).unwrap_err().kind(), TensorErrorKind::Busy);
    drop(view);
    device.copy_to(&host).unwrap();
}

/// Equivalent OpenVINO tests: inferWithRemoteNoThrow, canInputRemoteTensor. Runs a remote input with a host output and with a remote
/// output.
#[test]
fn a_request_runs_on_remote_inputs_and_outputs_where_they_lie() {
    let request = compile(doubling_there()).create_infer_request().unwrap();
    let (input, output) = (remote(NUMBERS), context().create_tensor(ElementType::F32, [1, 4]).unwrap());
    request.infer(&input).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0, 4.0, 6.0, 8.0]);
    request.set_output_tensor((), &output).unwrap();
    request.start_async(()).unwrap();
    request.wait().unwrap();
    assert_eq!(copied(&output), [2.0, 4.0, 6.0, 8.0]);
    assert!(request.input_tensor(()).unwrap().is_same(&input) && request.output_tensor(()).unwrap().is_same(&output));
    request.infer(row([5.0; 4])).unwrap();
    assert_eq!(copied(&output), [10.0; 4], "a host tensor replaces the remote tensor");
}

/// Equivalent OpenVINO test: canInputOutputRemoteTensor. A remote output that is too large gets the shape of the result, in the same
/// memory.
#[test]
fn a_remote_output_with_room_is_reshaped_and_one_without_fails_the_run() {
    let request = doubling_rows().create_infer_request().unwrap();
    let output = context().create_tensor(ElementType::F32, [3, 4]).unwrap();
    request.set_output_tensor((), &output).unwrap();
    request.infer(remote(NUMBERS)).unwrap();
    assert_eq!((&output.shape()[..], copied(&output)), (&[1, 4][..], vec![2.0, 4.0, 6.0, 8.0]));
    let rows = Tensor::from_slice([3, 4], &[1.0_f32; 12]).unwrap();
    request.infer(&rows).unwrap();
    assert_eq!((&output.shape()[..], copied(&output)), (&[3, 4][..], vec![2.0; 12]));
    let error = request.infer(Tensor::new(ElementType::F32, [4, 4]).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tensor);
    assert!(error.to_string().contains("64 bytes") && error.to_string().contains("48"), "{error}");
    request.infer(&rows).unwrap();
}

#[test]
fn a_region_of_a_remote_tensor_is_an_input_like_any_other() {
    let whole = context().create_tensor(ElementType::F32, [3, 6]).unwrap();
    whole.copy_from(&Tensor::from_slice([3, 6], &(0..18).map(|value| value as f32).collect::<Vec<_>>()).unwrap()).unwrap();
    let request = doubling_rows().create_infer_request().unwrap();
    request.infer(whole.roi(&[1, 1], &[3, 5]).unwrap()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [14.0, 16.0, 18.0, 20.0, 26.0, 28.0, 30.0, 32.0]);
    let target = context().create_tensor(ElementType::F32, [3, 6]).unwrap();
    request.set_output_tensor((), &target.roi(&[0, 2], &[2, 6]).unwrap()).unwrap();
    request.infer(()).unwrap();
    assert_eq!(copied(&target)[..12], [0.0, 0.0, 14.0, 16.0, 18.0, 20.0, 0.0, 0.0, 26.0, 28.0, 30.0, 32.0]);
}

#[test]
fn type_and_shape_of_a_remote_tensor_are_checked_like_any_others() {
    let request = compile(doubling_there()).create_infer_request().unwrap();
    let mut tensor = context().create_tensor(ElementType::F32, [2, 2]).unwrap();
    assert_eq!(kind(request.set_input_tensor((), &tensor)), Some(ErrorKind::Tensor));
    tensor.set_shape([1, 4]).unwrap();
    request.set_input_tensor((), &tensor).unwrap();
    tensor.set_shape([1, 2]).unwrap();
    assert_eq!(kind(request.infer(())), Some(ErrorKind::Tensor));
    tensor.set_shape([1, 4]).unwrap();
    let mut output = context().create_tensor(ElementType::F32, [1, 4]).unwrap();
    request.set_output_tensor((), &output).unwrap();
    output.set_shape([4]).unwrap();
    assert_eq!(kind(request.infer(())), Some(ErrorKind::Tensor));
    output.set_shape([1, 4]).unwrap();
    request.infer(()).unwrap();
}

#[test]
fn a_running_request_leases_its_remote_tensors() {
    let gate = Gate::closed();
    let request = compile(Script { gate: Some(gate.clone()), ..doubling_there() }).create_infer_request().unwrap();
    let (input, output) = (remote(NUMBERS), remote([0.0; 4]));
    request.set_output_tensor((), &output).unwrap();
    request.start_async(&input).unwrap();
    gate.wait_for_arrivals(1);
    assert_eq!(input.copy_from(&row([9.0; 4])).unwrap_err().kind(), TensorErrorKind::Busy);
    assert_eq!(output.copy_to(&row([0.0; 4])).unwrap_err().kind(), TensorErrorKind::Busy);
    assert_eq!(output.clone().set_shape([2]).unwrap_err().kind(), TensorErrorKind::Busy);
    assert_eq!(copied(&input), NUMBERS, "the tensor can still be read");
    gate.open();
    request.wait().unwrap();
    assert_eq!(copied(&output), [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn a_device_refuses_memory_of_another_one_when_it_is_set() {
    let request = compile_file(&tiny("identity.onnx")).create_infer_request().unwrap();
    let tensor = remote(NUMBERS);
    for refused in [
        request.set_input_tensor((), &tensor),
        request.set_output_tensor((), &tensor),
        request.set_output_tensors([((), &tensor)]),
        request.infer(&tensor),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("the memory of NULL"), "{error}");
    }
    request.infer(row(NUMBERS)).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), NUMBERS);
}

/// Equivalent OpenVINO test: SetInputTensors_remote_tensor_default. The host copies the slices of a batch, so they cannot be remote.
#[test]
fn a_batch_of_remote_slices_is_refused_and_a_batch_of_one_is_a_tensor() {
    let request = doubling_rows().create_infer_request().unwrap();
    let slices = [remote(NUMBERS), remote(NUMBERS)];
    let error = request.set_tensors("x", &slices).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("the memory of NULL"), "{error}");
    request.set_tensors("x", &slices[..1]).unwrap();
    request.infer(()).unwrap();
    assert_eq!(values(&request.output_tensor(()).unwrap()), [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn results_of_ones_own_come_out_of_remote_outputs() {
    let request = compile(doubling_there()).create_infer_request().unwrap();
    request.set_output_tensors([((), remote([0.0; 4]))]).unwrap();
    request.infer(remote(NUMBERS)).unwrap();
    let results = request.results().unwrap();
    assert_eq!(kind(results.view::<f32>(())), Some(ErrorKind::Tensor));
    assert_eq!(values(&results.to_owned().unwrap()[0]), [2.0, 4.0, 6.0, 8.0]);
}

/// A device accepts a remote input but then requests its bytes, which the host cannot access.
#[test]
fn whoever_asks_for_the_bytes_of_a_remote_input_is_told_where_it_lies() {
    let request = compile(doubling_there()).create_infer_request().unwrap();
    request.append_step("decode", |context| context.input::<f32>(0).map(drop)).unwrap();
    let error = request.infer(remote(NUMBERS)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tensor);
    assert!(error.to_string().contains("`x`") && error.to_string().contains("the memory of NULL"), "{error}");
    let error = compile(doubling()).create_infer_request().unwrap().infer(remote(NUMBERS)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Panic);
    assert!(error.to_string().contains("input 0 is in device memory"), "{error}");
}

#[test]
fn a_decoder_that_asks_for_a_remote_output_gets_an_error() {
    let request = compile(doubling_there()).create_infer_request().unwrap();
    request.append_step("decode", |context| context.output::<f32>(0).map(drop)).unwrap();
    request.infer(remote(NUMBERS)).unwrap();
    request.set_output_tensor((), &remote(NUMBERS)).unwrap();
    let error = request.infer(()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Tensor);
    assert!(error.to_string().contains("`y`") && error.to_string().contains("the memory of NULL"), "{error}");
}

/// Without a script, the device NULL writes zeros to its output tensors, also if they are in its own memory.
#[test]
fn the_zeros_of_the_null_device_reach_its_own_memory() {
    let request = compile(Script::default()).create_infer_request().unwrap();
    let output = remote(NUMBERS);
    request.set_output_tensor((), &output).unwrap();
    request.infer(remote(NUMBERS)).unwrap();
    assert_eq!(copied(&output), [0.0; 4]);
}

/// Equivalent OpenVINO tests: LoadedRemoteContext, LoadedTensor. A tensor stays usable after its context is dropped, and a context after
/// its core is dropped.
#[test]
fn tensors_outlive_their_context_and_contexts_their_core() {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::default()));
    let context = core.default_context("NULL").unwrap();
    drop(core);
    let tensor = context.create_tensor(ElementType::F32, Shape::from([1, 4])).unwrap();
    drop(context);
    tensor.copy_from(&row(NUMBERS)).unwrap();
    assert_eq!(copied(&tensor), NUMBERS);
}

/// The runtime converts the error of a tensor to an error of the same kind, if it has this kind.
#[test]
fn errors_of_tensors_are_errors_of_the_runtime() {
    let input = row([1.0; 4]);
    let _writing = input.view_mut::<f32>().unwrap();
    let of = |error: roiflow::tensor::Error| Error::from(error).kind();
    assert_eq!(of(input.view::<f32>().unwrap_err()), ErrorKind::Busy);
    assert_eq!(of(Tensor::shared(ElementType::Bool, [1, 4]).unwrap_err()), ErrorKind::Unsupported);
    assert_eq!(of(Tensor::new(ElementType::F32, [usize::MAX, 2]).unwrap_err()), ErrorKind::Tensor);
    let error = Error::with_source(ErrorKind::Io, "no file", std::io::Error::other("the disk is gone")).context("model");
    assert_eq!(error.to_string(), "model: no file");
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the disk is gone");
}
