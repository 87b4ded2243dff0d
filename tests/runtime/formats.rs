//! Serialization of ports, models, options and times with serde.

use std::time::Duration;

use roiflow::devices;
use roiflow::runtime::{Config, Dim, ModelInfo, NodeStatus, NodeTime, PartialShape, Performance, Port, Precision, StepTime};
use roiflow::tensor::ElementType;
use serde_json::{Value, from_value, json, to_value};

use crate::support::tiny;

#[test]
fn ports_of_a_model_are_written_and_read() {
    let mut info = devices::core().read_model(tiny("double.onnx")).unwrap().info().clone();
    info.metadata.insert("task".to_owned(), "double".to_owned());
    let written = to_value(&info).unwrap();
    let port = |name: &str| json!({ "names": [name], "element": "f32", "shape": ["?", 4], "axes": null });
    assert_eq!(written, json!({ "inputs": [port("x")], "outputs": [port("y")], "metadata": { "task": "double" } }));
    assert_eq!(from_value::<ModelInfo>(written).unwrap(), info);
    let mut port = Port::new("image", ElementType::U8, PartialShape::from([Dim::from(1..=8), 3.into()]));
    port.axes = Some("NC".parse().unwrap());
    let written = to_value(&port).unwrap();
    assert_eq!(written, json!({ "names": ["image"], "element": "u8", "shape": ["1..8", 3], "axes": "NC" }));
    assert_eq!(from_value::<Port>(written).unwrap(), port);
}

#[test]
fn what_is_no_port_is_refused() {
    let with = |key: &str, value: Value| {
        let mut port = json!({ "names": ["x"], "element": "f32", "shape": [1], "axes": null });
        port[key] = value;
        from_value::<Port>(port).map_err(|error| error.to_string())
    };
    assert!(with("shape", json!(["2..4", "?", 1])).is_ok());
    for (key, value, says) in [
        ("element", json!("f31"), "f31"),
        ("shape", json!(["8..2"]), "8..2"),
        ("shape", json!(["any"]), "`any`"),
        ("shape", json!([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]), "axes"),
        ("axes", json!("NN"), "NN"),
    ] {
        let error = with(key, value).unwrap_err();
        assert!(error.contains(says), "{key}: {error}");
    }
}

#[test]
fn options_are_written_and_read_and_others_are_refused() {
    let config = Config {
        performance: Performance::Latency,
        precision: Precision::Bf16,
        n_requests: Some(3),
        batch_timeout: Duration::from_micros(2500),
        engine_options: [("OPENVINO.NUM_STREAMS".to_owned(), "2".to_owned())].into(),
        ..Config::default()
    };
    let written = to_value(&config).unwrap();
    assert_eq!(
        (&written["performance"], &written["precision"], &written["batch_timeout"]),
        (&json!("latency"), &json!("bf16"), &json!(0.0025))
    );
    assert_eq!(from_value::<Config>(written).unwrap(), config);
    assert_eq!(from_value::<Config>(json!({ "profiling": true })).unwrap(), Config { profiling: true, ..Config::default() });
    assert!(from_value::<Config>(json!({ "profilling": true })).unwrap_err().to_string().contains("profilling"));
    assert!(from_value::<Config>(json!({ "batch_timeout": -1 })).is_err());
}

#[test]
fn times_are_written_in_seconds_and_read() {
    let step = StepTime { name: "fill".into(), duration: Duration::from_micros(1500) };
    assert_eq!(to_value(&step).unwrap(), json!({ "name": "fill", "duration": 0.0015 }));
    assert_eq!(from_value::<StepTime>(to_value(&step).unwrap()).unwrap(), step);
    for cpu in [None, Some(Duration::from_micros(250))] {
        let node =
            NodeTime { name: "conv1".into(), kind: "Conv".into(), status: NodeStatus::OptimizedOut, real: Duration::from_millis(2), cpu };
        assert_eq!(to_value(&node).unwrap()["status"], "optimized_out");
        assert_eq!(from_value::<NodeTime>(to_value(&node).unwrap()).unwrap(), node);
    }
}
