//! Element types: any model can be read, each device decides whether it can run it, and no device silently changes results.

use roiflow::devices::auto::AutoDevice;
use roiflow::devices::{self};
use roiflow::runtime::{Config, Core, ErrorKind, ModelBytes, ModelInfo, Port};
use roiflow::tensor::{ElementType, Tensor, bf16};
use std::sync::Arc;

use crate::onnx::Onnx;
use crate::support::{Scratch, is_here, row, tiny, values};

const DEVICES: [&str; 4] = ["CPU", "ORT.CPU", "OPENVINO.CPU", "OPENVINO.HETERO:CPU"];

/// Returns a core whose device `AUTO` tries devices in this order.
fn auto(order: &str) -> Core {
    let mut core = devices::core().clone();
    core.register(Arc::new(AutoDevice::with_order(devices::core().clone(), order)));
    core
}

#[test]
fn a_bf16_model_is_read_and_each_device_decides() {
    let core = devices::core();
    let model = core.read_model(tiny("bf16.onnx")).unwrap();
    assert_eq!(model.info().inputs[0].element, ElementType::Bf16);
    let input = Tensor::from_slice([1, 4], &[1.0, -2.0, 0.5, 96.0].map(bf16::from_f32)).unwrap();
    let error = core.compile_model(&model, "CPU", &Config::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Model);
    for part in ["device CPU", "bf16.onnx", "input `x`", "bf16", "ONNX Runtime"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    for device in DEVICES.into_iter().skip(1).filter(|device| is_here(device)) {
        let compiled = core.compile_model(&model, device, &Config::default()).unwrap();
        let results = compiled.infer(&input).unwrap();
        assert_eq!(results.view::<f32>("y").unwrap().to_vec(), [1.0, -2.0, 0.5, 96.0], "{device}");
    }
    if is_here("ORT.CPU") {
        let core = auto("CPU,ORT.CPU");
        assert_eq!(core.compile_model(&model, "AUTO", &Config::default()).unwrap().device(), "ORT.CPU");
    }
}

/// OpenVINO computes integers in 32 bits, so a run with larger values must fail.
#[test]
fn integers_beyond_32_bits_are_exact_or_refused() {
    let core = devices::core();
    let model = core.read_model(tiny("int64.onnx")).unwrap();
    let (small, large) = ([0, -1, i64::from(i32::MAX) - 1, i64::from(i32::MIN)], [5, 6, 1 << 40, 7]);
    let tensor = |values: [i64; 4]| Tensor::from_slice([1, 4], &values).unwrap();
    for device in DEVICES.into_iter().filter(|device| is_here(device)) {
        let request = core.compile_model(&model, device, &Config::default()).unwrap().create_infer_request().unwrap();
        let run = |input: &Tensor| request.infer(input).map(|()| request.results().unwrap().view::<i64>(()).unwrap().to_vec());
        assert_eq!(run(&tensor(small)).unwrap(), small.map(|value| value + 1), "{device}");
        // This test also covers a region of a larger tensor.
        let wide = Tensor::from_slice([1, 8], &[9, 5, 6, 1 << 40, 7, 9, 9, 9_i64]).unwrap().roi(&[0, 1], &[1, 5]).unwrap();
        for input in [tensor(large), wide] {
            match run(&input) {
                Ok(values) => assert_eq!(values, large.map(|value| value + 1), "{device}"),
                Err(error) => {
                    assert!(device.starts_with("OPENVINO") && error.kind() == ErrorKind::Unsupported, "{device}: {error}");
                    for part in [device, "input `x`", "1099511627776", "32 bits", "ORT.CPU"] {
                        assert!(error.to_string().contains(part), "{part}: {error}");
                    }
                }
            }
        }
        assert_eq!(run(&tensor(small)).unwrap(), small.map(|value| value + 1), "{device}: the request works after the error");
    }
}

/// Constants are known when a model is compiled. A limit of `Slice` may have any value.
#[test]
fn constants_beyond_32_bits_are_exact_or_refused() {
    use tract_onnx::pb::tensor_proto::DataType;
    let large = 1_i64 << 40;
    let on = || Onnx::new().input_of("x", DataType::Int32, &[4]).node_with("Cast", "x", "wide", &[("to", &[7])]);
    let sum = on().integers("c", &[large]).node("Add", "wide c", "y").output_of("y", DataType::Int64, &[4]);
    let slice = |limit| {
        let model = Onnx::new().input("x", &[1, 4]).integers("starts", &[1]).integers("ends", &[limit]).integers("axes", &[1]);
        model.node("Slice", "x starts ends axes", "y").output("y", &[1, 3])
    };
    let expand = Onnx::new().input("x", &[1]).integers("s", &[large]).node("Expand", "x s", "e").node_with(
        "ReduceMax",
        "e",
        "y",
        &[("keepdims", &[1])],
    );
    let expand = expand.output("y", &[1]);
    // The limit of the slice is moved first.
    let computed = Onnx::new().input("x", &[1, 4]).integers("one", &[1]).integers("end", &[i64::MAX]).integers("axis", &[0]);
    let computed = computed.node("Squeeze", "end axis", "number").node("Unsqueeze", "number axis", "list");
    let computed = computed.node_with("Cast", "list", "cast", &[("to", &[7])]).node_with("Concat", "cast", "ends", &[("axis", &[0])]);
    let computed = computed.node("Slice", "x one ends one", "y").output("y", &[1, 3]);
    let scratch = Scratch::new("large-constants");
    let (many, apart) = (scratch.path().join("many.onnx"), scratch.path().join("apart.onnx"));
    let values_of_many: Vec<i64> = (0..600).map(|idx| if idx == 599 { large } else { 0 }).collect();
    let sum_of_many = Onnx::new().input_of("x", DataType::Int32, &[600]).node_with("Cast", "x", "wide", &[("to", &[7])]);
    let sum_of_many = sum_of_many.integers("c", &values_of_many).node("Add", "wide c", "y").output_of("y", DataType::Int64, &[600]);
    std::fs::write(&many, sum_of_many.bytes()).unwrap();
    sum_of_many.write_apart(&apart, "apart.bin");
    let unsigned = Onnx::new().input_of("x", DataType::Int32, &[4]).node_with("Cast", "x", "wide", &[("to", &[13])]);
    let unsigned = unsigned.unsigned("c", &[u64::MAX]).node("Equal", "wide c", "y").output_of("y", DataType::Bool, &[4]);
    let core = devices::core();
    let compiled = |model: &Onnx, device: &str| {
        core.compile_model(&core.read_model(ModelBytes::new(model.bytes())).unwrap(), device, &Config::default())
    };
    let input = Tensor::from_slice([4], &[1, 2, 3, -4_i32]).unwrap();
    for device in DEVICES.into_iter().chain(["AUTO"]).filter(|device| *device == "AUTO" || is_here(device)) {
        match compiled(&sum, device) {
            Ok(model) => {
                let got = model.infer(&input).unwrap().view::<i64>(()).unwrap().to_vec();
                assert_eq!(got, [1, 2, 3, -4].map(|value| large + value), "{device}");
            }
            // The built-in engine does not run this cast.
            Err(error) if device == "CPU" => assert_eq!(error.kind(), ErrorKind::Model, "{error}"),
            Err(error) => {
                let message = error.to_string();
                assert!(device.starts_with("OPENVINO") && error.kind() == ErrorKind::Unsupported, "{device}: {error}");
                assert!(["`Add`", "1099511627776", "32 bits", "ORT.CPU"].iter().all(|part| message.contains(part)), "{device}: {error}");
            }
        }
        for limit in [i64::MAX, large, 4] {
            let got = compiled(&slice(limit), device).unwrap().infer(row([1.0, 2.0, 3.0, 4.0])).unwrap();
            assert_eq!(values(&got[0]), [2.0, 3.0, 4.0], "{device}");
        }
        // The built-in engine narrows the limit in the cast, so it refuses the model.
        match compiled(&computed, device) {
            Ok(model) => assert_eq!(values(&model.infer(row([1.0, 2.0, 3.0, 4.0])).unwrap()[0]), [2.0, 3.0, 4.0], "{device}"),
            Err(error) => assert_eq!((device, error.kind()), ("CPU", ErrorKind::Model), "{error}"),
        }
        // Values of large constants are in no outline of a file, and values in other files neither.
        for (name, path) in [("many", &many), ("apart", &apart)] {
            let ran = core.compile_model(&core.read_model(path).unwrap(), device, &Config::default()).and_then(|model| {
                let input = Tensor::from_slice([600], &[1_i32; 600]).unwrap();
                Ok(model.infer(input)?.view::<i64>(())?.iter().copied().max())
            });
            match ran {
                Ok(largest) => assert_eq!(largest, Some(large + 1), "{name} on {device}"),
                Err(error) => assert!(device == "CPU" || device.starts_with("OPENVINO"), "{name} on {device}: {error}"),
            }
        }
        match compiled(&unsigned, device) {
            Ok(_) => assert!(!device.starts_with("OPENVINO"), "{device}"),
            Err(error) => assert!(device == "CPU" || error.kind() == ErrorKind::Unsupported, "{device}: {error}"),
        }
        // No memory has this size, so each device returns an error.
        let ran = compiled(&expand, device).and_then(|model| model.infer(Tensor::from_slice([1], &[3.0_f32]).unwrap()).map(drop));
        assert!(ran.is_err(), "{device}");
    }
}

#[test]
fn constants_of_branches_beyond_32_bits_are_exact_or_refused() {
    use tract_onnx::pb::tensor_proto::DataType;
    const LARGE: i64 = 1 << 40;
    let branch = |own: i64| Onnx::new().integers("c", &[own]).node("Add", "wide c", "z").output_of("z", DataType::Int64, &[4]);
    let model = Onnx::new().input_of("x", DataType::Int32, &[4]).input_of("choice", DataType::Bool, &[1]);
    let model = model.node_with("Cast", "x", "wide", &[("to", &[7])]).node("If", "choice", "y");
    let model = model.body("then_branch", branch(LARGE)).body("else_branch", branch(1)).output_of("y", DataType::Int64, &[4]);
    let core = devices::core();
    for device in DEVICES.into_iter().chain(["AUTO"]).filter(|device| *device == "AUTO" || is_here(device)) {
        let read = core.read_model(ModelBytes::new(model.bytes())).unwrap();
        match core.compile_model(&read, device, &Config::default()) {
            Ok(compiled) => {
                let request = compiled.create_infer_request().unwrap();
                for (choice, added) in [(true, LARGE), (false, 1)] {
                    let choice = Tensor::from_slice([1], &[choice]).unwrap();
                    request.set_tensor("x", &Tensor::from_slice([4], &[1, 2, 3, -4_i32]).unwrap()).unwrap();
                    request.set_tensor("choice", &choice).unwrap();
                    request.infer(()).unwrap();
                    let got = request.results().unwrap().view::<i64>(()).unwrap().to_vec();
                    assert_eq!(got, [1, 2, 3, -4].map(|value| added + value), "{device}");
                }
            }
            Err(error) => assert!(device == "CPU" || (device.starts_with("OPENVINO") && error.to_string().contains("`Add`")), "{error}"),
        }
    }
}

#[test]
fn auto_skips_a_device_that_would_change_results_and_says_why() {
    if !is_here("OPENVINO.CPU") {
        return;
    }
    let model = devices::core().read_model(tiny("int64.onnx")).unwrap();
    let compiled = auto("OPENVINO.CPU,CPU").compile_model(&model, "AUTO", &Config::default()).unwrap();
    assert_eq!(compiled.device(), "CPU");
    let reason = devices::core().inexact(&model, "OPENVINO.CPU").unwrap();
    assert!(reason.contains("input `x`") && reason.contains("i64") && reason.contains("32 bits"), "{reason}");
    assert_eq!(devices::core().inexact(&model, "CPU"), None);
    let float = devices::core().read_model(tiny("double.onnx")).unwrap();
    assert_eq!(devices::core().inexact(&float, "OPENVINO.CPU"), None);
    // If no other device runs the model, the error says which device was skipped, and how to use it.
    let error = auto("OPENVINO.CPU,CPPU").compile_model(&model, "AUTO", &Config::default()).map(|compiled| compiled.device().to_owned());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("OPENVINO.CPU") && error.contains(&reason) && error.contains("set it as the device"), "{error}");
    // If the list of devices has only this device, `AUTO` uses it.
    let compiled = auto("OPENVINO.CPU").compile_model(&model, "AUTO", &Config::default()).unwrap();
    assert_eq!(compiled.device(), "OPENVINO.CPU");
}

/// Whether OpenVINO computes exactly depends only on the element types, so this test uses ports without a model.
#[test]
fn the_types_that_openvino_narrows_are_known() {
    if !is_here("OPENVINO.CPU") {
        return;
    }
    let says = |input: ElementType, output: ElementType| {
        let port = |name: &str, element| Port::new(name, element, [1, 4]);
        let info = ModelInfo { inputs: vec![port("x", input)], outputs: vec![port("y", output)], ..ModelInfo::default() };
        devices::core().inexact(&roiflow::runtime::Model::from_ports(info), "OPENVINO.CPU").is_some()
    };
    use ElementType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    for exact in [Bool, U8, I8, U16, I16, I32, F16, Bf16, F32] {
        assert!(!says(exact, F32), "{exact}");
    }
    for narrowed in [I64, U64, U32, F64] {
        assert!(says(narrowed, F32), "{narrowed}");
    }
    assert!(says(F32, F64));
    assert!(!says(F32, I64), "integer outputs are not reported");
}
