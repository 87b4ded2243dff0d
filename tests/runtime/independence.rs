//! Whether the batch items of a model are independent: proofs from its operators, and the test for all other models.

use std::time::Duration;

use roiflow::devices;
use roiflow::runtime::{CompiledModel, Config, Dim, ErrorKind, ModelBytes, PartialShape, Result};
use roiflow::tensor::Tensor;

use crate::onnx::Onnx;
use crate::support::{is_here, real, tiny, values};

const DEVICES: [&str; 3] = ["CPU", "ORT.CPU", "OPENVINO.CPU"];

fn batches() -> Config {
    Config { batch_size: 2, batch_timeout: Duration::from_secs(3600), ..Config::default() }
}

fn compile(model: &Onnx, device: &str, config: &Config) -> Result<CompiledModel> {
    let core = devices::core();
    core.compile_model(&core.read_model(ModelBytes::new(model.bytes()))?, device, config)
}

/// Returns whether the device proves that the items of the model are independent. The device CPU cannot compile all models without a proof.
fn is_proven(model: &Onnx, device: &str) -> bool {
    let core = devices::core();
    let model = core.read_model(ModelBytes::new(model.bytes())).unwrap();
    let compiled = core.compile_device_model(&model, device, &Config::default(), &|_| Ok(()));
    compiled.is_ok_and(|compiled| compiled.rows_are_independent() == Some(true))
}

/// Adds operators that return `x / 255` if `largest` of all batch items is above the threshold, and `x` otherwise.
fn switching(reduction: &str, comparison: &str, threshold: f32) -> Onnx {
    Onnx::new()
        .input("x", &[-1, 4])
        .floats("threshold", &[1], &[threshold])
        .floats("scale", &[1], &[255.0])
        .node_with(reduction, "x", "all", &[("keepdims", &[1])])
        .node(comparison, "all threshold", "is_large")
        .node("Div", "x scale", "small")
        .node("Where", "is_large small x", "y")
        .output("y", &[-1, 4])
}

/// These models give each item its own result for many inputs, but not for all.
#[test]
fn models_that_mix_items_for_some_inputs_are_not_batched() {
    let models = [
        ("largest above 1", switching("ReduceMax", "Greater", 1.0)),
        ("largest above 0.75", switching("ReduceMax", "Greater", 0.75)),
        ("largest above 100", switching("ReduceMax", "Greater", 100.0)),
        ("smallest below -1", switching("ReduceMin", "Less", -1.0)),
        ("smallest below 0", switching("ReduceMin", "Less", 0.0)),
        ("mean above 5", switching("ReduceMean", "Greater", 5.0)),
        ("sum of squares above 300", switching("ReduceSumSquare", "Greater", 300.0)),
    ];
    for device in DEVICES.into_iter().filter(|device| is_here(device)) {
        for (name, model) in &models {
            let error = compile(model, device, &batches()).map(|_| name).unwrap_err();
            assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("not independent"), "{name} on {device}: {error}");
            // A batch of the caller is computed as a whole, whatever batch came before.
            let compiled = compile(model, device, &Config::default()).unwrap();
            if *name == "largest above 1" {
                for (first, divided) in [(0.25, 1.0), (200.0, 255.0)] {
                    let batch = Tensor::from_slice([2, 4], &[first, 0.0, 0.5, 0.75, 0.5, 0.5, 0.5, 0.5_f32]).unwrap();
                    let expected: Vec<f32> = values(&batch).iter().map(|value| value / divided).collect();
                    let got = values(&compiled.infer(&batch).unwrap()[0]);
                    assert!(
                        got.iter().zip(&expected).all(|(got, expected)| (got - expected).abs() < 1e-6),
                        "{device}: {got:?}, {expected:?}"
                    );
                }
            }
        }
    }
}

/// Adds operators that image models have.
fn network() -> Onnx {
    Onnx::new()
        .input("x", &[-1, 2, 4, 4])
        .floats("w", &[3, 2, 3, 3], &[0.1; 54])
        .floats("b", &[3], &[0.5, -0.5, 0.25])
        .floats("fc", &[3, 5], &[0.3; 15])
        .integers("flat", &[0, -1])
        .integers("last", &[1])
        .node_with("Conv", "x w b", "c", &[("pads", &[1, 1, 1, 1]), ("kernel_shape", &[3, 3])])
        .node("Relu", "c", "r")
        .node_with("MaxPool", "r", "p", &[("kernel_shape", &[2, 2]), ("strides", &[2, 2])])
        .node("GlobalAveragePool", "p", "g")
        .node("Reshape", "g flat", "f")
        .node("MatMul", "f fc", "m")
        .node_with("Softmax", "m", "y", &[("axis", &[-1])])
        .output("y", &[-1, 5])
}

#[test]
fn operators_prove_that_items_are_independent() {
    let on = |dims: &[i64]| Onnx::new().input("x", dims);
    let with =
        |operator: &str, attributes: &[(&str, &[i64])]| on(&[-1, 4]).node_with(operator, "x", "y", attributes).output("y", &[-1, -1]);
    let shape = |numbers: &[i64], dims: &[i64]| on(dims).integers("s", numbers).node("Reshape", "x s", "y").output("y", &[-1, -1]);
    let independent = [
        ("a network", network()),
        ("Softmax of the last axis", with("Softmax", &[("axis", &[-1])])),
        ("Flatten", on(&[-1, 2, 2]).node("Flatten", "x", "y").output("y", &[-1, 4])),
        ("Concat of the second axis", on(&[-1, 4]).node_with("Concat", "x x", "y", &[("axis", &[1])]).output("y", &[-1, 8])),
        ("Transpose of later axes", on(&[-1, 2, 3]).node_with("Transpose", "x", "y", &[("perm", &[0, 2, 1])]).output("y", &[-1, 3, 2])),
        ("Reshape that copies the batch size", shape(&[0, -1], &[-1, 2, 2])),
        ("Reshape to the known number of values", shape(&[-1, 4], &[-1, 2, 2])),
        ("ReduceMean of the second axis", with("ReduceMean", &[("axes", &[1]), ("keepdims", &[1])])),
    ];
    let unknown = [
        ("Softmax of the first axis", with("Softmax", &[("axis", &[0])])),
        ("Softmax of the first axis, counted from the end", with("Softmax", &[("axis", &[-2])])),
        ("ReduceMean of all", with("ReduceMean", &[("keepdims", &[1])])),
        (
            "CumSum over the batch",
            on(&[-1, 4]).integers("zero", &[0]).node("Squeeze", "zero", "axis").node("CumSum", "x axis", "y").output("y", &[-1, 4]),
        ),
        ("Reshape that joins items", shape(&[-1, 8], &[-1, 4])),
        ("Reshape that divides items", shape(&[-1, 2], &[-1, 4])),
        ("Concat of items", on(&[-1, 4]).node_with("Concat", "x x", "y", &[("axis", &[0])]).output("y", &[-1, 4])),
        ("a constant for each item", on(&[-1, 4]).floats("c", &[2, 4], &[1.0; 8]).node("Add", "x c", "y").output("y", &[2, 4])),
        ("Transpose of the batch", on(&[-1, 4]).node_with("Transpose", "x", "y", &[("perm", &[1, 0])]).output("y", &[4, -1])),
        ("an output that is constant", network().floats("k", &[1, 4], &[1.0; 4]).node("Relu", "k", "z").output("z", &[1, 4])),
    ];
    for device in DEVICES.into_iter().filter(|device| is_here(device)) {
        for (name, model) in &independent {
            assert!(is_proven(model, device), "{name} on {device}");
        }
        for (name, model) in &unknown {
            assert!(!is_proven(model, device), "{name} on {device}");
        }
    }
}

/// The second input is no batch, and neither is the output that depends on it alone.
#[test]
fn an_input_without_batch_items_is_used_as_a_whole() {
    let apart = Onnx::new().input("x", &[-1, 4]).input("s", &[1, 8]).node("Relu", "x", "y").node("Tanh", "s", "z");
    let apart = apart.output("y", &[-1, 4]).output("z", &[1, 8]);
    let sum = Onnx::new().input("x", &[-1, 4]).input("b", &[3, 4]).node("Add", "x b", "y").output("y", &[-1, 4]);
    for device in DEVICES.into_iter().filter(|device| is_here(device)) {
        assert!(device != "CPU" || !is_proven(&apart, device) && !is_proven(&sum, device));
        let (x, b) = (Tensor::from_slice([3, 4], &[1.0_f32; 12]).unwrap(), Tensor::from_slice([3, 4], &[2.0_f32; 12]).unwrap());
        let s = Tensor::from_slice([1, 8], &[0.5_f32; 8]).unwrap();
        let results = compile(&apart, device, &Config::default()).unwrap().infer([("x", &x), ("s", &s)]).unwrap();
        assert_eq!((&*results["y"].shape(), &*results["z"].shape()), (&[3, 4][..], &[1, 8][..]), "{device}");
        let results = compile(&sum, device, &Config::default()).unwrap().infer([("x", &x), ("b", &b)]).unwrap();
        assert_eq!(values(&results[0]), [3.0; 12], "{device}");
    }
}

/// Many small items are computed together only if their number repeats.
#[test]
fn batches_of_any_size_have_the_results_of_their_items() {
    let model = Onnx::new().input("x", &[-1, 4]).node("Relu", "x", "y").output("y", &[-1, 4]);
    for device in DEVICES.into_iter().filter(|device| is_here(device)) {
        let compiled = compile(&model, device, &Config::default()).unwrap();
        for n_rows in (60..75).chain([70, 70, 71, 70, 70]) {
            let x: Vec<f32> = (0..4 * n_rows).map(|idx| idx as f32 - 100.0).collect();
            let expected: Vec<f32> = x.iter().map(|value| value.max(0.0)).collect();
            let got = compiled.infer(Tensor::from_slice([n_rows, 4], &x).unwrap()).unwrap();
            assert_eq!(values(&got[0]), expected, "{n_rows} on {device}");
        }
    }
}

/// The proof covers models in practice, so that their batches need no test.
#[test]
fn real_models_are_proven_independent() {
    let core = devices::core();
    for name in ["gender-v1.onnx", "age-v1.onnx"] {
        let Some(path) = real(&format!("models/{name}")) else { return };
        let model = core.read_model(path).unwrap();
        let input = &model.info().inputs[0];
        let open = PartialShape::new([Dim::Dynamic].into_iter().chain(input.shape.dims()[1..].iter().copied()).collect()).unwrap();
        let model = model.reshape([(input.name().to_owned().as_str(), open)]).unwrap();
        let compiled = core.compile_device_model(&model, "ORT.CPU", &Config::default(), &|_| Ok(())).unwrap();
        assert_eq!(compiled.rows_are_independent(), Some(true), "{name}");
    }
}

/// A model with an operator that no proof covers is batched after the test.
#[test]
fn models_with_other_operators_are_tested() {
    let model = Onnx::new().input("x", &[-1, 4]).integers("s", &[1, 4]).node("Expand", "x s", "y").output("y", &[-1, 4]);
    for device in DEVICES.into_iter().filter(|device| is_here(device)) {
        assert!(!is_proven(&model, device), "{device}");
        compile(&model, device, &batches()).unwrap();
    }
}

/// The caller knows more than the test. A device that knows of a dependence still refuses.
#[test]
fn the_option_replaces_the_test() {
    let config = Config { batch_independent: true, ..batches() };
    compile(&switching("ReduceMax", "Greater", 1.0), "CPU", &config).unwrap();
    let core = devices::core();
    assert!(core.compile_model(&core.read_model(tiny("double.onnx")).unwrap(), "CPU", &config).is_ok());
}
