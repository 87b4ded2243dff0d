//! Images as inputs of requests: frames, regions of frames, regions of tensors, and batches.

use std::sync::Arc;

use roiflow::devices::null::Script;
use roiflow::frame::{Colorimetry, Frame, PixelFormat, PixelRect, Size};
use roiflow::runtime::{CompiledModel, Dim, ErrorKind, InferRequest, PartialShape, Port};
use roiflow::stages::image_input;
use roiflow::tensor::{self, ElementType, Tensor};
use roiflow::vision::{InputLayout, Preprocess};

use crate::request::{compile_ports, read, write};
use crate::support::values;

/// Compiles a model that returns its input: `image` [?, 3, 4, 4] -> `same` [?, 48].
fn mirror(batch: Dim) -> CompiledModel {
    let script = Script::computing(|io, _| {
        let (n_rows, same) = (io.input(0).layout().shape()[0], read(io.input(0)));
        write(io, 0, &[n_rows, 48], same)
    });
    let shape = |dims: Vec<Dim>| PartialShape::new(dims).unwrap();
    let input = Port::new("image", ElementType::F32, shape(vec![batch, 3.into(), 4.into(), 4.into()]));
    let output = Port::new("same", ElementType::F32, shape(vec![(..).into(), 48.into()]));
    compile_ports(Arc::new(script), vec![input], vec![output])
}

/// Returns a frame in which the pixel at (x, y) is `[10 x, 10 y, 0]`.
fn ramp(width: u32, height: u32) -> Frame {
    let pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| [10 * x as u8, 10 * y as u8, 0]));
    Frame::from_packed(PixelFormat::Rgb, Size::new(width, height), &pixels.collect::<Vec<u8>>()).unwrap()
}

fn same(request: &InferRequest) -> Vec<f32> {
    values(&request.output_tensor(()).unwrap())
}

#[test]
fn region_is_read_from_frame_memory_when_the_run_starts() {
    let request = mirror(1.into()).create_infer_request().unwrap();
    let region = ramp(12, 9).region(PixelRect { x: 5, y: 2, width: 4, height: 4 }).unwrap();
    request.set_input("image", image_input(region)).unwrap();
    request.infer(()).unwrap();
    let expected = |color: fn(f32, f32) -> f32| (0..16).map(move |idx| color(5.0 + (idx % 4) as f32, 2.0 + (idx / 4) as f32));
    let planes: Vec<f32> = expected(|x, _| 10.0 * x).chain(expected(|_, y| 10.0 * y)).chain(expected(|_, _| 0.0)).collect();
    assert_eq!(same(&request), planes);
}

/// The image is a region of the input tensor of another model.
#[test]
fn tensor_region_of_another_model_is_an_image() {
    let request = mirror(1.into()).create_infer_request().unwrap();
    let input_tensor = Tensor::from_slice([1, 3, 20, 20], &(0..1200).map(|value| value as f32).collect::<Vec<_>>()).unwrap();
    // The region has the size of the input, so it is not copied.
    let window = input_tensor.roi(&[0, 0, 2, 3], &[1, 3, 6, 7]).unwrap();
    request.set_tensor("image", &window).unwrap();
    request.infer(()).unwrap();
    let as_it_is = same(&request);
    request.set_input("image", image_input((window, InputLayout::Nchw))).unwrap();
    request.infer(()).unwrap();
    assert_eq!(same(&request), as_it_is);
    // The region has twice the size of the input. Downscaling by two makes each value the mean of four pixels.
    let larger = input_tensor.roi(&[0, 0, 0, 0], &[1, 3, 8, 8]).unwrap();
    request.set_input("image", image_input((larger, InputLayout::Nchw))).unwrap();
    request.infer(()).unwrap();
    assert_eq!(same(&request)[..2], [(0.0 + 1.0 + 20.0 + 21.0) / 4.0, (2.0 + 3.0 + 22.0 + 23.0) / 4.0]);
}

#[test]
fn several_images_are_batch_items_in_order() {
    let request = mirror((..).into()).create_infer_request().unwrap();
    let frame = ramp(12, 12);
    let regions = [0, 3, 8].map(|x| frame.region(PixelRect { x, y: 0, width: 4, height: 4 }).unwrap());
    for n_images in [3, 1, 2] {
        request.set_input((), image_input(regions[..n_images].to_vec())).unwrap();
        request.infer(()).unwrap();
        let rows = same(&request);
        assert_eq!(rows.len(), 48 * n_images);
        for (row_idx, x) in [0.0, 3.0, 8.0].into_iter().take(n_images).enumerate() {
            assert_eq!(rows[48 * row_idx..][..4], [x, x + 1.0, x + 2.0, x + 3.0].map(|x| 10.0 * x));
        }
    }
}

#[test]
fn dynamic_size_is_that_of_the_image() {
    let script = Script::computing(|io, _| {
        let shape = io.input(0).layout().shape().iter().map(|&extent| extent as f32).collect();
        write(io, 0, &[4], shape)
    });
    let open = PartialShape::new(vec![Dim::Dynamic; 4]).unwrap();
    let ports = (vec![Port::new("image", ElementType::F32, open)], vec![Port::new("shape", ElementType::F32, [4])]);
    let request = compile_ports(Arc::new(script), ports.0, ports.1).create_infer_request().unwrap();
    for (layout, expected) in [(InputLayout::Nchw, [1.0, 3.0, 9.0, 12.0]), (InputLayout::Nhwc, [1.0, 9.0, 12.0, 3.0])] {
        let preprocess = Preprocess { layout, ..Preprocess::default() };
        request.set_input((), image_input(ramp(12, 9)).preprocess(preprocess)).unwrap();
        request.infer(()).unwrap();
        assert_eq!(same(&request), expected);
    }
}

#[test]
fn unsuitable_images_are_errors_of_the_run() {
    let request = mirror(1.into()).create_infer_request().unwrap();
    let refused = |request: &InferRequest| request.infer(()).unwrap_err();
    request.set_input((), image_input(vec![ramp(4, 4), ramp(4, 4)])).unwrap();
    assert_eq!(refused(&request).to_string(), "input `image` [1, 3, 4, 4] f32: expected a batch of 1 images, got 2");
    request.set_input((), image_input(Vec::<Frame>::new())).unwrap();
    assert!(refused(&request).to_string().contains("expected at least one image"));
    let flat = Tensor::new(ElementType::F32, [3, 4, 4]).unwrap();
    request.set_input((), image_input((flat, InputLayout::Nchw))).unwrap();
    let error = refused(&request);
    assert_eq!(error.kind(), ErrorKind::Tensor);
    assert!(error.to_string().contains("expected [1, C, H, W]") && error.to_string().contains("got [3, 4, 4]"), "{error}");
    request.set_input((), image_input(ramp(4, 4))).unwrap();
    request.infer(()).unwrap();
}

#[test]
fn plane_with_gaps_between_pixels_is_an_error() {
    let wider = Tensor::new(ElementType::U8, [2, 4, 4]).unwrap();
    let (begin, end, size) = ([0, 0, 0], [2, 4, 3], Size::new(4, 2));
    let gaps = wider.roi(&begin, &end).unwrap();
    let error = Frame::from_planes(PixelFormat::Rgb, size, &[gaps], Colorimetry::default()).unwrap_err();
    let message = "expected pixels side by side, strides of [3, 1] bytes within a row, got [4, 1]; copy the plane first";
    assert!(error.to_string().contains(message) && error.kind() == tensor::ErrorKind::Shape, "{error}");
    // With one pixel per row, the distance between pixels does not matter. Pixels of four bytes have no gaps in this tensor.
    for (width, begin, end) in [(1, [0, 0, 0], [2, 1, 3]), (2, [0, 1, 0], [2, 3, 4])] {
        let format = if width == 1 { PixelFormat::Rgb } else { PixelFormat::Rgbx };
        let plane = wider.roi(&begin, &end).unwrap();
        Frame::from_planes(format, Size::new(width, 2), &[plane], Colorimetry::default()).unwrap();
    }
}
