//! Real ONNX files on the built-in engine.

use std::sync::Arc;

use ndarray::Axis;
use roiflow::devices;
use roiflow::runtime::{Config, Core, Dim, ErrorKind, PartialShape};
use roiflow::tensor::{Element, ElementType, Tensor};

use crate::request::drop::check_that_tensors_outlive;
use crate::support::{compile, real, tiny};

/// The tensors of the request are in memory of the engine. This memory must stay valid after the request, the model and the core are
/// dropped.
#[test]
fn tensors_of_the_embedded_engine_outlive_request_model_and_core() {
    let compiled = {
        let mut core = Core::new();
        core.register(Arc::new(devices::cpu::CpuDevice));
        core.compile_model(&core.read_model(tiny("double.onnx")).unwrap(), "CPU", &Config::default()).unwrap()
    };
    check_that_tensors_outlive(compiled);
}

#[test]
fn every_float_model_of_the_development_set_loads_and_runs() {
    let names = [
        "ultraface_rfb_320_nhwc.onnx",
        "gender-v1.onnx",
        "age-v1.onnx",
        "version-RFB-320.onnx",
        "yolox_nano_416x416.onnx",
        "nanodet_m_320.onnx",
        "emotion_mini_xception.onnx",
        "vehicle-attributes-recognition-barrier-0039.onnx",
        "person-reidentification-retail-0288.onnx",
    ];
    for name in names {
        let Some(path) = real(&format!("models/{name}")) else { return };
        let model = compile(&path);
        let request = model.create_infer_request().unwrap();
        for (input_idx, port) in model.inputs().iter().enumerate() {
            let shape = port.shape.with_dynamic(|_| Some(1)).unwrap();
            assert_eq!(port.element, f32::TYPE, "{name}");
            request.set_input_tensor(input_idx, &Tensor::new(port.element, shape).unwrap()).unwrap();
        }
        request.infer(()).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (output_idx, port) in model.outputs().iter().enumerate() {
            let output = request.output_tensor(output_idx).unwrap();
            assert!(port.shape.admits(&output.shape()), "{name}: {port} got {}", output.shape());
            assert!(output.view::<f32>().unwrap().iter().all(|value| value.is_finite()), "{name}: {port}");
        }
    }
}

#[test]
fn a_model_that_the_engine_lacks_names_the_node_and_who_can() {
    let Some(path) = real("models/efficientnet_lite0_uint8.onnx") else { return };
    let core = devices::core();
    let model = core.read_model(&path).unwrap();
    assert_eq!(model.info().inputs[0].element, ElementType::U8);
    let error = core.compile_model(&model, "CPU", &Config::default()).unwrap_err().to_string();
    eprintln!("{error}");
    assert!(error.contains("OpenVINO") && error.contains("node"), "{error}");
}

#[test]
fn a_batch_gives_what_its_rows_give_one_by_one() {
    let Some(path) = real("models/gender-v1.onnx") else { return };
    let model = compile(&path);
    assert_eq!(model.inputs()[0].shape.dims()[0], Dim::Dynamic);
    let values: Vec<f32> = (0..3 * 3 * 32 * 32).map(|i| ((i * 7919) % 255) as f32 / 128.0 - 1.0).collect();
    let batch = Tensor::from_slice([3, 3, 32, 32], &values).unwrap();
    let together = model.infer(&batch).unwrap().into_tensors().remove(0);
    assert_eq!(together.shape()[..], [3, 2]);
    for row in 0..3 {
        let one = batch.roi(&[row, 0, 0, 0], &[row + 1, 3, 32, 32]).unwrap();
        let alone = model.infer(&one).unwrap().into_tensors().remove(0);
        assert_eq!(alone.view::<f32>().unwrap().to_vec(), together.roi(&[row, 0], &[row + 1, 2]).unwrap().view::<f32>().unwrap().to_vec());
    }
}

/// A dynamic first axis is a batch axis only if batch items are independent.
#[test]
fn a_model_that_mixes_its_rows_gets_them_all_at_once() {
    let rows = |n_rows: usize| Tensor::from_slice([n_rows, 4], &(0..4 * n_rows).map(|n| (n * n) as f32).collect::<Vec<_>>()).unwrap();
    let center = compile(&tiny("center.onnx"));
    let append = compile(&tiny("append.onnx"));
    // Equal batch items give equal results in any case. The engine must not take equal results as a proof that items are independent.
    center.infer(Tensor::new(ElementType::F32, [2, 4]).unwrap()).unwrap();
    for n_rows in [3, 1, 2, 3, 5] {
        let (input, values) = (rows(n_rows), rows(n_rows).view::<f32>().unwrap().to_owned());
        let centered = center.infer(&input).unwrap().array::<f32>(()).unwrap();
        let expected = &values - &values.mean_axis(Axis(0)).unwrap();
        assert!((&centered - &expected).iter().all(|difference| difference.abs() < 1e-4), "{n_rows}: {centered}, expected {expected}");
        let appended = append.infer(&input).unwrap().array::<f32>(()).unwrap();
        assert_eq!(appended.shape(), [n_rows + 1, 4]);
        assert_eq!(appended.iter().copied().collect::<Vec<_>>()[4 * n_rows..], [0.5, 1.5, 2.5, 3.5]);
    }
}

/// Equivalent OpenVINO test: OVIterationChaining.Simple. The output is fed back ten times and grows by one row each time.
#[test]
fn an_output_that_grows_is_fed_back_without_a_copy() {
    let request = compile(&tiny("append.onnx")).create_infer_request().unwrap();
    request.set_input_tensor((), &Tensor::new(ElementType::F32, [1, 4]).unwrap()).unwrap();
    for n_rows in 2..12 {
        request.infer(()).unwrap();
        let output = request.output_tensor(()).unwrap();
        assert_eq!(output.shape()[..], [n_rows, 4]);
        request.set_input_tensor((), &output).unwrap();
        assert!(request.input_tensor(()).unwrap().is_same(&output));
    }
    let grown = request.output_tensor(()).unwrap().view::<f32>().unwrap().to_vec();
    assert_eq!((&grown[..4], &grown[40..]), (&[0.0; 4][..], &[0.5, 1.5, 2.5, 3.5][..]));
}

#[test]
fn the_number_of_requests_is_the_callers_or_what_the_device_likes() {
    let core = devices::core();
    let model = core.read_model(tiny("double.onnx")).unwrap();
    let optimal =
        |n_requests| core.compile_model(&model, "CPU", &Config { n_requests, ..Config::default() }).unwrap().optimal_number_of_requests();
    assert_eq!(optimal(Some(5)), 5);
    assert_eq!(optimal(None), std::thread::available_parallelism().unwrap().get());
}

/// `reshape` accepts every shape with the right number of axes. If the model cannot compute a shape, compilation fails.
#[test]
fn a_model_that_cannot_be_computed_at_a_shape_is_refused_when_it_is_compiled() {
    let core = devices::core();
    let model = core.read_model(tiny("color.onnx")).unwrap();
    let five_channels = model.reshape([("image", PartialShape::from([1, 5, 8, 8]))]).unwrap();
    let error = core.compile_model(&five_channels, "CPU", &Config::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Model, "{error}");
    assert!(error.to_string().contains("color.onnx"), "{error}");
    let larger = model.reshape([("image", PartialShape::from([1, 3, 16, 16]))]).unwrap();
    let compiled = core.compile_model(&larger, "CPU", &Config::default()).unwrap();
    assert_eq!(compiled.outputs()[0].shape.to_string(), "[1, 4]");
    let picture = Tensor::from_slice([1, 3, 16, 16], &[255.0_f32; 768]).unwrap();
    let scores = compiled.infer(&picture).unwrap().array::<f32>(()).unwrap();
    assert!(scores[[0, 3]] > 0.9, "expected the class `other` for white: {scores}");
}
