//! How a stage finds the description of a model if the user names none: from the list of known models, from metadata, from ports, or from a
//! DL Streamer file. If nothing is found, the error names the file that the user must write.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use roiflow::devices;
use roiflow::frame::{Frame, Outcome, PixelFormat, Rect, Size};
use roiflow::runtime::{Dim, ErrorKind, ModelInfo, PartialShape, Port};
use roiflow::stages::{Description, KnownBy, ModelSpec, Source, Stage, StageOptions, Task};
use roiflow::tensor::ElementType;
use roiflow::vision::decode::{Output, Results};
use roiflow::vision::{Anchor, ChannelOrder, InputLayout, Preprocess, Resize, Rounding};
use serde_json::Value;

use crate::support::{Scratch, description, is_here, real};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/descriptions").join(name)
}

fn port(name: &str, shape: &[Option<usize>]) -> Port {
    let dims = shape.iter().map(|extent| extent.map_or(Dim::Dynamic, Dim::Fixed));
    Port::new(name, ElementType::F32, PartialShape::new(dims.collect()).unwrap())
}

/// A list of ports: the name and the shape of each.
type Ports<'a> = &'a [(&'a str, &'a [usize])];

/// Returns the ports of a model with these names and shapes. An extent of 0 stands for a dynamic extent.
fn ports(inputs: Ports<'_>, outputs: Ports<'_>) -> ModelInfo {
    let all = |list: Ports<'_>| {
        let shape = |shape: &[usize]| shape.iter().map(|&extent| (extent > 0).then_some(extent)).collect::<Vec<_>>();
        list.iter().map(|(name, extents)| port(name, &shape(extents))).collect()
    };
    ModelInfo { inputs: all(inputs), outputs: all(outputs), metadata: BTreeMap::new() }
}

fn with_metadata(info: ModelInfo, entries: &[(&str, &str)]) -> ModelInfo {
    ModelInfo { metadata: entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(), ..info }
}

/// Returns stage options for a model file that does not exist.
fn options() -> StageOptions {
    StageOptions { model: "/no/such/model.onnx".into(), ..StageOptions::default() }
}

fn load(info: &ModelInfo) -> ModelSpec {
    ModelSpec::load(&options(), info).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(info: &ModelInfo) -> String {
    let error = ModelSpec::load(&options(), info).map(|spec| spec.source).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    error.to_string()
}

fn decoder(spec: &ModelSpec) -> &str {
    assert_eq!(spec.task, Task::Detection);
    &spec.heads[0].decoder_name
}

/// Returns the score threshold and the IoU threshold in the specification of a model.
fn thresholds(spec: &ModelSpec) -> (f32, f32) {
    let decoder = &spec.heads[0].decoder;
    let iou = decoder.summary().strip_prefix("iou-threshold ").map_or(f32::NAN, |iou| iou.parse().unwrap());
    (decoder.threshold().unwrap(), iou)
}

fn labels(spec: &ModelSpec) -> Vec<String> {
    (0..spec.labels.len() as u32).map(|class_id| spec.labels.get(class_id).unwrap().to_string()).collect()
}

/// Returns the content of a description as text, without the field `source`, which says where the description was found.
fn content(spec: &ModelSpec) -> String {
    let ModelSpec { name, task, heads, preprocess, crop, input_size, input_shape, labels, .. } = spec;
    format!("{name} {task:?} {heads:?} {preprocess:?} {crop:?} {input_size} {input_shape} {labels:?}")
}

#[test]
fn known_model_is_found_by_checksum_or_name() {
    let models = [
        ("age-v1.onnx", "age"),
        ("gender-v1.onnx", "gender"),
        ("emotion_mini_xception.onnx", "emotion-mini-xception"),
        ("nanodet_m_320.onnx", "nanodet-m"),
        ("person-reidentification-retail-0288.onnx", "person-reidentification-retail-0288"),
        ("ultraface_rfb_320_nhwc.onnx", "ultraface-rfb-320"),
        ("version-RFB-320.onnx", "ultraface-rfb-320-nchw"),
        ("vehicle-attributes-recognition-barrier-0039.onnx", "vehicle-attributes"),
        ("yolox_nano_416x416.onnx", "yolox-nano"),
    ];
    let scratch = Scratch::new("known-models");
    for (file, name) in models {
        let Some(model) = real(&format!("models/{file}")) else { return };
        let info = devices::core().read_model(&model).unwrap().info().clone();
        let spec = |options: &StageOptions| ModelSpec::load(options, &info).unwrap_or_else(|error| panic!("{file}: {error}"));
        let options = StageOptions { model: model.clone(), ..StageOptions::default() };
        let by_checksum = spec(&options);
        assert!(
            matches!(by_checksum.source, Source::Known { name: known, found: KnownBy::Checksum } if known == name),
            "{file}: {}",
            by_checksum.source
        );
        let named = spec(&StageOptions { description: Some(description(&format!("{name}.toml"))), ..options.clone() });
        assert_eq!(content(&by_checksum), content(&named), "{file}");
        assert_eq!(by_checksum.assumed, named.assumed, "{file}");
        let by_own_name = spec(&StageOptions { description: Some(name.into()), ..options.clone() });
        assert!(matches!(by_own_name.source, Source::Known { name: known, found: KnownBy::User } if known == name), "{file}");
        assert_eq!(content(&by_own_name), content(&named), "{file}");
        // A renamed file still has the known checksum. A file with other bytes is recognized by its name, and a message reports this.
        let renamed = scratch.file("other.onnx", std::fs::read(&model).unwrap());
        assert_eq!(spec(&StageOptions { model: renamed, ..StageOptions::default() }).source, by_checksum.source, "{file}");
        let changed = scratch.file(file, b"other bytes");
        let by_name = spec(&StageOptions { model: changed, ..StageOptions::default() });
        assert!(
            matches!(by_name.source, Source::Known { name: known, found: KnownBy::FileName } if known == name),
            "{file}: {}",
            by_name.source
        );
        assert!(by_name.assumed[0].contains(name) && by_name.assumed[0].contains("checksum is not known"), "{:?}", by_name.assumed);
    }
}

/// `roiflow describe` writes a description of a known model. The written description is equivalent to the built-in description, and does
/// not depend on the path of the model.
#[test]
fn written_description_is_equivalent() {
    let scratch = Scratch::new("written-down");
    let files =
        ["age-v1", "gender-v1", "emotion_mini_xception", "nanodet_m_320", "person-reidentification-retail-0288", "ultraface_rfb_320_nhwc"];
    let files = files.into_iter().chain(["version-RFB-320", "vehicle-attributes-recognition-barrier-0039", "yolox_nano_416x416"]);
    for file in files.map(|file| format!("models/{file}.onnx")).filter_map(|file| real(&file)).chain([golden("yolo.onnx")]) {
        let info = devices::core().read_model(&file).unwrap().info().clone();
        let options = StageOptions { model: file.clone(), ..StageOptions::default() };
        let (begun, open) = Description::draft(&options, &info).unwrap();
        assert!(open.is_empty(), "{open:?}");
        let path = scratch.file("written.toml", begun.with_own_labels(&options.engine).unwrap().text);
        let written = ModelSpec::load(&StageOptions { description: Some(path), ..options.clone() }, &info).unwrap();
        assert_eq!(content(&written), content(&ModelSpec::load(&options, &info).unwrap()), "{}", file.display());
        // A model with a single head and labels can be described with other labels. Skip all other models.
        if written.labels.is_empty() || written.heads.len() > 1 {
            continue;
        }
        let names: Vec<String> = (0..written.labels.len()).map(|n| format!("name {n}")).collect();
        let labels_file = scratch.file("names.txt", names.join("\n"));
        let path = scratch.file("relabeled.toml", begun.with_labels(&labels_file).unwrap().text);
        let relabeled = ModelSpec::load(&StageOptions { description: Some(path), ..options }, &info).unwrap();
        assert_eq!(labels(&relabeled), names, "{}", file.display());
        assert_eq!(relabeled.preprocess, written.preprocess);
    }
}

#[test]
fn name_without_matching_ports_is_not_a_known_model() {
    let info = ports(&[("image", &[1, 3, 32, 32])], &[("scores", &[1, 5])]);
    let error = ModelSpec::load(&StageOptions { model: "/no/such/gender-v1.onnx".into(), ..options() }, &info).unwrap_err().to_string();
    assert!(error.contains("has no description") && error.contains("roiflow describe /no/such/gender-v1.onnx"), "{error}");
}

#[test]
fn file_next_to_the_model_precedes_known_models() {
    let Some(model) = real("models/gender-v1.onnx") else { return };
    let scratch = Scratch::new("beside-known");
    let info = devices::core().read_model(&model).unwrap().info().clone();
    let model = scratch.file("gender-v1.onnx", std::fs::read(&model).unwrap());
    let load = |options: &StageOptions| ModelSpec::load(options, &info).unwrap();
    let options = StageOptions { model, ..StageOptions::default() };
    // This JSON file is not a model-proc file. Another program uses it.
    scratch.file("gender-v1.json", r#"{"accuracy": 0.5}"#);
    assert!(matches!(load(&options).source, Source::Known { .. }));
    let json = r#"{"json_schema_version": "2.2.0", "output_postproc": [{"converter": "label", "labels": ["a", "b"]}]}"#;
    let json = scratch.file("gender-v1.json", json);
    assert_eq!((load(&options).source, labels(&load(&options))), (Source::NextToModel(json.clone()), vec!["a".to_owned(), "b".to_owned()]));
    let toml = std::fs::read_to_string(description("gender.toml")).unwrap().replace("female", "one");
    let toml = scratch.file("gender-v1.toml", toml);
    assert_eq!((load(&options).source, labels(&load(&options))[0].as_str()), (Source::NextToModel(toml.clone()), "one"));
    let named = StageOptions { model_proc: Some(json.clone()), ..options.clone() };
    assert_eq!(load(&named).source, Source::Named(json.clone()));
    // The property `description` accepts a description and a model-proc file.
    assert_eq!(content(&load(&StageOptions { description: Some(json), ..options.clone() })), content(&load(&named)));
    let both = StageOptions { description: Some(toml), ..named };
    let error = ModelSpec::load(&both, &info).unwrap_err().to_string();
    assert!(error.contains("both `description` and `model-proc`"), "{error}");
}

/// The ports and the metadata in the test cases are from files that Ultralytics wrote. `tests/golden/descriptions/make.py` lists the
/// versions of Ultralytics.
#[test]
fn ultralytics_export_needs_no_description() {
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(golden("ultralytics.json")).unwrap()).unwrap();
    let names: Vec<&str> = golden["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let expected = [
        ("yolov8n", "yolov8", Size::new(96, 64)),
        ("yolo11n", "yolov8", Size::new(96, 64)),
        ("yolov8n", "yolov10", Size::new(64, 64)),
        ("yolov10n", "yolov8", Size::new(64, 64)),
        ("yolo26n", "yolov8", Size::new(64, 64)),
        ("yolov8n-cls", "classes", Size::new(64, 64)),
        ("yolov8n-seg", "yolov8-seg", Size::new(64, 64)),
        ("yolov8n-pose", "yolov8-pose", Size::new(64, 64)),
        ("yolov8n-obb", "yolov8-obb", Size::new(64, 64)),
        // The output of this export has six columns. Ultralytics does not document their meaning.
        ("rtdetr-l", "an RT-DETR of 4 classes", Size::new(64, 64)),
    ];
    for (case, (network, reader, size)) in golden["cases"].as_array().unwrap().iter().zip(expected) {
        assert_eq!(case["network"], network);
        let list = |key: &str| {
            let ports = case[key].as_array().unwrap().iter();
            let shape =
                |shape: &Value| shape.as_array().unwrap().iter().map(|extent| extent.as_u64().map(|n| n as usize)).collect::<Vec<_>>();
            ports.map(|one| port(one["name"].as_str().unwrap(), &shape(&one["shape"]))).collect::<Vec<_>>()
        };
        let metadata = case["metadata"].as_object().unwrap().iter().map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()));
        let info = ModelInfo { inputs: list("inputs"), outputs: list("outputs"), metadata: metadata.collect() };
        if reader.contains(' ') {
            let message = refused(&info);
            assert!(message.contains(reader) && message.contains("expected"), "{network}: {message}");
            continue;
        }
        let spec = load(&info);
        assert_eq!(spec.source.to_string(), "of the metadata of an Ultralytics export");
        assert_eq!((spec.input_size, labels(&spec)), (size, names.iter().map(|name| (*name).to_owned()).collect()), "{network}");
        let is_classifier = reader == "classes";
        let resize = if is_classifier { Resize::Crop } else { Resize::Letterbox { anchor: Anchor::Center } };
        let preprocess = Preprocess {
            color: ChannelOrder::Rgb,
            layout: InputLayout::Nchw,
            resize,
            scale: [255.0; 3],
            rounding: Rounding::U8,
            ..Preprocess::default()
        };
        let preprocess = Preprocess { pad: if is_classifier { preprocess.pad } else { 114.0 }, antialias: is_classifier, ..preprocess };
        assert_eq!(spec.preprocess, preprocess, "{network}");
        if !is_classifier {
            assert_eq!((decoder(&spec), thresholds(&spec).0), (reader, 0.25), "{network}");
            assert!(reader == "yolov10" || thresholds(&spec).1 == 0.7, "{network}");
        }
        assert!(
            spec.assumed.iter().any(|message| message.contains("[input] `color` is rgb: Ultralytics preprocesses this way")),
            "{:?}",
            spec.assumed
        );
    }
}

#[test]
fn ultralytics_metadata_must_match_the_ports() {
    let image: Ports<'_> = &[("images", &[1, 3, 64, 64])];
    let entries = |names: &'static str| [("author", "Ultralytics"), ("task", "detect"), ("names", names), ("imgsz", "[64, 64]")];
    let three = "{0: 'a', 1: 'b', 2: 'c'}";
    for (outputs, names, parts) in [
        (&[("output0", &[1, 84, 84][..])][..], three, ["a YOLO of 3 classes", "[1, 84, 84]"]),
        (&[("output0", &[1, 300, 7])], three, ["expected one output [1, 7, N]", "[1, 300, 7]"]),
        (&[("a", &[1, 7, 84]), ("b", &[1, 7, 84])], three, ["expected one output", "`b`"]),
        (&[("output0", &[1, 7, 84])], "{0: 'a', 2: 'c'}", ["metadata `names`", "{0: 'a', 2: 'c'}"]),
        (&[("output0", &[1, 7, 84])], "{0: 'a', 1: 'b', 2: __import__('os')}", ["metadata `names`", "__import__"]),
    ] {
        let message = refused(&with_metadata(ports(image, outputs), &entries(names)));
        assert!(parts.iter().all(|part| message.contains(part)), "{outputs:?}: {message}");
    }
    // With NMS inside the model, the output contains final boxes of six columns, without a column per class. Two different metadata keys
    // announce this.
    for flag in [("end2end", "True"), ("args", "{'nms': True}")] {
        let outputs: Ports<'_> = &[("output0", &[1, 300, 6])];
        let entries = [&entries(three)[..], &[flag]].concat();
        assert_eq!(decoder(&load(&with_metadata(ports(image, outputs), &entries))), "yolov10");
    }
    let with_task = |task: &'static str, outputs: Ports<'_>, more: &[(&'static str, &'static str)]| {
        let entries = [&[("author", "Ultralytics"), ("task", task), ("names", "['a', 'b']"), ("imgsz", "[64, 64]")], more].concat();
        with_metadata(ports(image, outputs), &entries)
    };
    let (masks, poses): (Ports<'_>, Ports<'_>) = (&[("a", &[1, 300, 14]), ("b", &[1, 8, 16, 16])], &[("a", &[1, 10, 84])]);
    assert_eq!(decoder(&load(&with_task("segment", masks, &[("end2end", "True")]))), "yolov10-seg");
    assert_eq!(decoder(&load(&with_task("pose", poses, &[("kpt_shape", "[2, 2]")]))), "yolov8-pose");
    assert_eq!(decoder(&load(&with_task("obb", &[("a", &[1, 300, 7])], &[]))), "yolov10-obb");
    let transformer: Ports<'_> = &[("a", &[1, 300, 6])];
    let spec = load(&with_task("detect", transformer, &[("head", "RTDETRDecoder")]));
    assert_eq!((decoder(&spec), spec.preprocess.resize), ("rtdetr", Resize::Stretch));
    for (task, outputs, more, part) in [
        ("segment", &[("a", &[1, 38, 84][..])][..], &[][..], "prototypes [1, coefficients, h, w]"),
        ("pose", poses, &[("kpt_shape", "[17, 3]")], "[1, 57, N]"),
        ("pose", poses, &[("kpt_shape", "seventeen")], "metadata `kpt_shape`"),
        ("depth", poses, &[], "`segment`, `pose`, `obb` or `classify`"),
    ] {
        let message = refused(&with_task(task, outputs, more));
        assert!(message.contains(part), "{task}: {message}");
    }
    // The export script of the YOLOv5 repository writes only these two keys.
    let yolov5 = [("stride", "32"), ("names", "['a', 'b', 'c']")];
    let spec = load(&with_metadata(ports(image, &[("output0", &[1, 252, 8])]), &yolov5));
    assert_eq!((decoder(&spec), thresholds(&spec)), ("yolov5", (0.25, 0.45)));
    assert_eq!(decoder(&load(&with_metadata(ports(image, &[("output0", &[1, 7, 84])]), &yolov5))), "yolov8");
    let with_masks: Ports<'_> = &[("output0", &[1, 252, 40]), ("output1", &[1, 32, 16, 16])];
    assert_eq!(decoder(&load(&with_metadata(ports(image, with_masks), &yolov5))), "yolov5-seg");
    let message = refused(&with_metadata(ports(image, &[("output0", &[1, 252, 9])]), &yolov5));
    assert!(message.contains("[1, N, 8] or [1, 7, N]") && message.contains("[1, 252, 9]"), "{message}");
}

#[test]
fn ultralytics_export_runs_on_the_embedded_engine() {
    let detector =
        Stage::detector(&StageOptions { model: golden("yolo.onnx"), device: Some("CPU".to_owned()), ..StageOptions::default() }).unwrap();
    // The frame has twice the size of the input, with borders of a quarter of the height at the top and bottom.
    let frame = Frame::from_packed(PixelFormat::Gray8, Size::new(192, 64), &[0; 192 * 64]).unwrap();
    let found = detector.detect(&frame).unwrap();
    let [found] = &*found else { panic!("{found:?}") };
    assert_eq!(found.label.as_deref(), Some("a \"quoted\" \\ name"));
    let Rect { x, y, width, height } = found.rect;
    let near = |value: f32, expected: f32| (value - expected).abs() < 0.01;
    assert!(near(x, 76.8) && near(width, 38.4) && near(y, 19.2) && near(height, 25.6), "{:?}", found.rect);
}

#[test]
fn model_info_of_an_ir_gives_preprocessing_and_labels() {
    if !is_here("OPENVINO.CPU") {
        return;
    }
    let options = StageOptions { model: golden("ssd.xml"), device: Some("OPENVINO.CPU".to_owned()), ..StageOptions::default() };
    let (_, spec) = roiflow::stages::spec::load_model(&options).unwrap();
    assert_eq!(spec.source.to_string(), "of model_info in the model file");
    assert_eq!((decoder(&spec), thresholds(&spec).0, labels(&spec).join(" ").as_str()), ("ssd", 0.25, "one two three four"));
    let preprocess = Preprocess {
        color: ChannelOrder::Rgb,
        layout: InputLayout::Nchw,
        resize: Resize::Letterbox { anchor: Anchor::Center },
        pad: 114.0,
        mean: [123.675, 116.28, 103.53],
        scale: [58.395, 57.12, 57.375],
        ..Preprocess::default()
    };
    assert_eq!(spec.preprocess, preprocess);
    let found =
        Stage::detector(&options).unwrap().detect(&Frame::from_packed(PixelFormat::Gray8, Size::new(96, 64), &[0; 96 * 64]).unwrap());
    assert_eq!(found.unwrap()[0].label.as_deref(), Some("three"));
}

/// `metadata.yaml` contains more information than `model_info`: in `model_info`, all models have the type YOLO.
#[test]
fn openvino_export_of_ultralytics_uses_metadata_yaml() {
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(golden("ultralytics.json")).unwrap()).unwrap();
    let names: Vec<&str> = golden["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let scratch = Scratch::new("ultralytics-openvino");
    for case in golden["cases"].as_array().unwrap().iter().filter(|case| case["yaml"].is_string()) {
        let entries: Vec<(&str, &str)> =
            case["metadata"].as_object().unwrap().iter().map(|(key, value)| (&**key, value.as_str().unwrap())).collect();
        let is_classifier = case["network"] == "yolov8n-cls";
        let output: &[usize] = if is_classifier { &[1, 4] } else { &[1, 8, 84] };
        let info = with_metadata(ports(&[("x", &[1, 3, 64, 64])], &[("output0", output)]), &entries);
        let options = StageOptions { model: scratch.path().join("model.xml"), ..StageOptions::default() };
        let yaml = scratch.file("metadata.yaml", case["yaml"].as_str().unwrap());
        let spec = ModelSpec::load(&options, &info).unwrap();
        assert_eq!(
            (spec.source.to_string().as_str(), labels(&spec)),
            ("of the metadata of an Ultralytics export", names.iter().map(|name| (*name).to_owned()).collect())
        );
        assert_eq!(spec.preprocess.resize, if is_classifier { Resize::Crop } else { Resize::Letterbox { anchor: Anchor::Center } });
        // Without `metadata.yaml`, `model_info` is sufficient for a detector, but underscores replace the spaces in its labels.
        std::fs::remove_file(yaml).unwrap();
        match ModelSpec::load(&options, &info) {
            Ok(spec) => {
                assert!(!is_classifier && spec.source.to_string() == "of model_info in the model file");
                assert_eq!((decoder(&spec), labels(&spec)[2].as_str(), thresholds(&spec)), ("yolov8", "a_\"quoted\"_\\_name", (0.25, 0.7)));
            }
            Err(error) => assert!(is_classifier && error.to_string().contains("`YOLO`"), "{error}"),
        }
    }
}

#[test]
fn missing_model_info_keys_use_reported_defaults() {
    let image: Ports<'_> = &[("image", &[1, 3, 64, 64])];
    let ssd = with_metadata(ports(image, &[("boxes", &[1, 1, 100, 7])]), &[("model_info model_type", "ssd")]);
    let spec = load(&ssd);
    assert_eq!(
        (decoder(&spec), thresholds(&spec).0, spec.preprocess.color, spec.preprocess.resize),
        ("ssd", 0.5, ChannelOrder::Bgr, Resize::Stretch)
    );
    assert!(spec.assumed.iter().any(|message| message.contains("`resize` is stretch: the default of Model API")), "{:?}", spec.assumed);
    for (key, value, resize) in [
        ("resize_type", "crop", Resize::Crop),
        ("resize_type", "standard", Resize::Stretch),
        ("resize_type", "fit_to_window", Resize::Letterbox { anchor: Anchor::TopLeft }),
        ("resize_type", "fit_to_window_letterbox", Resize::Letterbox { anchor: Anchor::Center }),
    ] {
        let mut info = ssd.clone();
        info.metadata.insert(format!("model_info {key}"), value.to_owned());
        assert_eq!(load(&info).preprocess.resize, resize, "{value}");
    }
    let classifier = |more: &[(&str, &str)]| {
        let entries = [&[("model_info model_type", "Classification"), ("model_info labels", "a b c")], more].concat();
        let answers = [("logits", &[1, 3][..]), ("saliency_map", &[1, 3, 7, 7]), ("feature_vector", &[1, 64])];
        with_metadata(ports(image, &answers), &entries)
    };
    for (more, expected, summary) in
        [(&[][..], "classes", "activation softmax"), (&[("model_info multilabel", "True")], "multi-label", "activation sigmoid")]
    {
        let heads = load(&classifier(more)).heads;
        assert_eq!((&*heads[0].decoder_name, heads[0].decoder.summary().as_str()), (expected, summary));
        assert_eq!((heads[0].output_idx, heads[0].labels.len()), (Some(0), 3));
    }
    for (entries, parts) in [
        (&[("model_info model_type", "MaskRCNN")][..], ["`MaskRCNN`", "expected one of SSD"]),
        (&[("model_info model_type", "YOLOv8")], ["no decoder of that kind", "[1, 1, 100, 7]"]),
        (&[("model_info model_type", "ssd"), ("model_info resize_type", "zoom")], ["`resize_type`", "`zoom`"]),
        (&[("model_info model_type", "ssd"), ("model_info pad_value", "x")], ["", ""]),
        (&[("model_info model_type", "ssd"), ("model_info mean_values", "1 2")], ["`mean_values`: expected 1 or 3 numbers", "`1 2`"]),
        (
            &[("model_info model_type", "ssd"), ("model_info embedded_processing", "True")],
            ["embedded_processing", "export the model without"],
        ),
    ] {
        let info = with_metadata(ssd.clone(), entries);
        if parts == ["", ""] {
            load(&info); // Without borders, the pad value has no effect.
        } else {
            let message = refused(&info);
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}

#[test]
fn characteristic_ports_are_sufficient() {
    let image = |height, width| ("input", [1, 3, height, width]);
    let cases: [(_, Ports<'_>, _, _, _); 3] = [
        (image(240, 320), &[("scores", &[1, 4420, 2]), ("boxes", &[1, 4420, 4])], "ultraface", ChannelOrder::Rgb, [127.0; 3]),
        (image(240, 320), &[("both", &[1, 4420, 6])], "ultraface", ChannelOrder::Rgb, [127.0; 3]),
        (
            image(640, 640),
            &[("a", &[1, 16800, 4]), ("b", &[1, 16800, 2]), ("c", &[1, 16800, 10])],
            "retinaface",
            ChannelOrder::Bgr,
            [104.0, 117.0, 123.0],
        ),
    ];
    for ((name, shape), outputs, expected, color, mean) in cases {
        let spec = load(&ports(&[(name, &shape)], outputs));
        assert_eq!(
            (decoder(&spec), spec.preprocess.color, spec.preprocess.mean, labels(&spec)),
            (expected, color, mean, vec!["face".to_owned()])
        );
        assert!(
            spec.assumed.iter().any(|message| message.contains("`color`") && message.contains("which is preprocessed this way")),
            "{:?}",
            spec.assumed
        );
    }
}

#[test]
fn detectors_of_mediapipe_are_recognized_by_rows_and_keypoints() {
    let cases: [(usize, Ports<'_>, &str, f32, f32); 4] = [
        (128, &[("regressors", &[1, 896, 16]), ("classificators", &[1, 896, 1])], "face", 127.5, 127.5),
        (192, &[("Identity", &[1, 2016, 18]), ("Identity_1", &[1, 2016, 1])], "palm", 0.0, 255.0),
        (224, &[("Identity_1", &[1, 2254, 1]), ("Identity", &[1, 2254, 12])], "person", 127.5, 127.5),
        (192, &[("regressors", &[1, 2304, 16]), ("classificators", &[1, 2304, 1])], "face", 127.5, 127.5),
    ];
    for (side, outputs, label, mean, scale) in cases {
        let info = ports(&[("input", &[1, side, side, 3])], outputs);
        let spec = load(&info);
        assert_eq!((decoder(&spec), labels(&spec)), ("blazeface", vec![label.to_owned()]));
        assert_eq!((spec.preprocess.mean, spec.preprocess.scale), ([mean; 3], [scale; 3]), "{label}");
        assert_eq!((spec.preprocess.layout, spec.preprocess.pad), (InputLayout::Nhwc, 0.0));
        let (named, open) = Description::draft_with_decoder("blazeface", &info).unwrap();
        assert!(open.is_empty(), "{open:?}");
        assert_eq!(labels(&ModelSpec::of_description(&named, &options(), &info).unwrap()), [label]);
    }
}

#[test]
fn multipose_movenet_is_recognized_by_integer_pixels() {
    let info = |element| {
        let mut info = ports(&[("input", &[1, 256, 256, 3])], &[("output_0", &[1, 6, 56])]);
        info.inputs[0].element = element;
        info
    };
    let spec = load(&info(ElementType::I32));
    assert_eq!((decoder(&spec), labels(&spec)), ("movenet-multi", vec!["person".to_owned()]));
    assert_eq!((spec.preprocess.mean, spec.preprocess.scale), ([0.0; 3], [1.0; 3]));
    // Without integer pixels, a list of 56 columns may belong to any model.
    assert!(refused(&info(ElementType::F32)).contains("has no description"));
}

#[test]
fn detectors_of_tensorflow_lite_2_are_recognized_by_numbered_names() {
    let outputs: Ports<'_> = &[
        ("StatefulPartitionedCall:1", &[1, 25]),
        ("StatefulPartitionedCall:3", &[1, 25, 4]),
        ("StatefulPartitionedCall:0", &[1]),
        ("StatefulPartitionedCall:2", &[1, 25]),
    ];
    let mut info = ports(&[("serving_default_images:0", &[1, 320, 320, 3])], outputs);
    info.inputs[0].element = ElementType::U8;
    assert_eq!(decoder(&load(&info)), "tf-ssd");
    // Other models have outputs with such names, too.
    info.outputs.truncate(3);
    assert!(refused(&info).contains("has no description"));
}

#[test]
fn exports_of_paddle_detection_may_have_inputs_for_size_and_scale() {
    let outputs: Ports<'_> = &[("multiclass_nms3_0.tmp_0", &[0, 6]), ("multiclass_nms3_0.tmp_2", &[0])];
    let scratch = Scratch::new("paddle");
    let text = "version = 1\ntask = \"detection\"\n[input]\ncolor = \"rgb\"\nlayout = \"nchw\"\n[output]\ndecoder = \"multiclass-nms\"\n";
    let named = StageOptions { description: Some(scratch.file("model.toml", text)), ..options() };
    let load = |inputs: Ports<'_>| ModelSpec::load(&named, &ports(inputs, outputs));
    let [image, shape, scale]: [(&str, &[usize]); 3] = [("image", &[0, 3, 640, 640]), ("im_shape", &[0, 2]), ("scale_factor", &[0, 2])];
    for inputs in [&[image, scale][..], &[shape, image, scale]] {
        assert_eq!(decoder(&load(inputs).unwrap()), "multiclass-nms");
    }
    let message = load(&[image, ("scale_factor", &[0, 3])]).unwrap_err().to_string();
    assert!(message.contains("expected a model with one image input") && message.contains("size and scale"), "{message}");
}

#[test]
fn model_with_fixed_batch_size_has_an_input_of_one_image() {
    let maps: [(&str, &[usize]); 4] = [("537", &[10, 1, 8, 8]), ("538", &[10, 2, 8, 8]), ("539", &[10, 2, 8, 8]), ("540", &[10, 10, 8, 8])];
    let spec = load(&ports(&[("input.1", &[10, 3, 32, 32])], &maps));
    assert_eq!((spec.n_images, &spec.input_shape[..]), (10, &[1, 3, 32, 32][..]));
}

#[test]
fn ambiguous_ports_are_an_error_with_advice() {
    let image: Ports<'_> = &[("image", &[1, 3, 640, 640])];
    for (info, parts) in [
        // A pose model with one class has the same ports as a detector with 52 classes.
        (ports(image, &[("output0", &[1, 56, 8400])]), &["the decoder `yolov8`", "how images are preprocessed"][..]),
        (ports(image, &[("output0", &[1, 25200, 85])]), &["the decoder `yolov5`", "how images are preprocessed"]),
        (ports(image, &[("list", &[1, 300, 6])]), &["the decoder `yolov5` or `yolov10` or `ultraface`"]),
        (ports(image, &[("scores", &[1, 1000])]), &["no detector decoder", "classifier"]),
        (ports(&[("a", &[1, 3, 8, 8]), ("b", &[1, 4])], &[("scores", &[1, 10])]), &["the model has 2 inputs"]),
        (ports(&[("tokens", &[1, 77])], &[("scores", &[1, 10])]), &["`tokens`", "not an image"]),
        (ports(&[], &[]), &["the model has 0 inputs"]),
    ] {
        let message = refused(&info);
        let all = [
            "has no description",
            "/no/such/model.toml",
            "`roiflow describe /no/such/model.onnx --decoder NAME --out /no/such/model.toml`",
            "not guessed",
        ];
        assert!(all.iter().chain(parts).all(|part| message.contains(part)), "{parts:?}: {message}");
        // The draft is a valid TOML file. The values that the user must fill in are comments, such as `# task = `.
        let (begun, open) = Description::draft(&options(), &info).unwrap();
        assert!(!open.is_empty() && begun.text.contains("version = 1") && begun.text.contains("# task = "), "{}", begun.text);
        begun.text.parse::<toml::Table>().unwrap_or_else(|error| panic!("{error}\n{}", begun.text));
    }
}

/// The number of rows is that of a grid, so the model is not a list of final boxes.
#[test]
fn grid_is_recognized_by_its_number_of_rows() {
    let image: Ports<'_> = &[("images", &[1, 3, 416, 416])];
    for (outputs, expected) in [
        (&[("output", &[1, 3549, 6][..])][..], "the decoder `yolox`, but"),
        (&[("output", &[1, 10647, 6])], "the decoder `yolov5`, but"),
        (&[("output", &[1, 84, 3549])], "the decoder `yolov8`, but"),
        (&[("output", &[1, 300, 6])], "`yolov10`"),
        (&[("758", &[1, 85, 26, 26])], "`fastestdet`"),
    ] {
        let message = refused(&ports(image, outputs));
        assert!(message.contains(expected), "{outputs:?}: {message}");
    }
}

/// Exporters of detectors with NMS name their outputs. TensorFlow has corners with y first.
#[test]
fn lists_of_final_boxes_are_recognized_by_the_names_of_their_outputs() {
    let image: Ports<'_> = &[("images", &[1, 3, 640, 640])];
    let named = |names: [&'static str; 4]| -> [(&'static str, &'static [usize]); 4] {
        [(names[0], &[1, 1]), (names[1], &[1, 100, 4]), (names[2], &[1, 100]), (names[3], &[1, 100])]
    };
    let efficient = load(&ports(image, &named(["num_dets", "det_boxes", "det_scores", "det_classes"])));
    assert_eq!((decoder(&efficient), efficient.preprocess.pad), ("final-boxes", 114.0));
    for (outputs, expected) in [
        (named(["num_predictions", "pred_boxes", "pred_scores", "pred_classes"]).to_vec(), "final-boxes"),
        (vec![("boxes", &[0, 4][..]), ("labels", &[0]), ("scores", &[0])], "final-boxes"),
        (vec![("output", &[0, 7][..])], "final-boxes"),
        (named(["num_detections", "detection_boxes", "detection_scores", "detection_classes"]).to_vec(), "tf-ssd"),
    ] {
        let text = "version = 1\ntask = \"detection\"\n[input]\ncolor = \"rgb\"\n[output]\n";
        let described = StageOptions { description_text: Some(text.to_owned()), ..options() };
        let spec = ModelSpec::load(&described, &ports(image, &outputs)).unwrap_or_else(|error| panic!("{outputs:?}: {error}"));
        assert_eq!(decoder(&spec), expected, "{outputs:?}");
    }
}

/// The description of each decoder loads, or lacks only a value that is reported.
#[test]
fn draft_of_each_decoder_of_detectors_loads() {
    let cases: [(&str, &[usize], &str); 4] = [
        ("db-text", &[1, 1, 640, 640], ""),
        ("multiclass-nms", &[0, 6], ""),
        ("final-boxes", &[0, 7], ""),
        ("yolo-anchors", &[1, 255, 20, 20], "anchors = [[[1, 2], [3, 4], [5, 6]]]"),
    ];
    for (name, shape, missing) in cases {
        let info = ports(&[("images", &[1, 3, 640, 640])], &[("output", shape)]);
        let (begun, open) = Description::draft_with_decoder(name, &info).unwrap();
        assert_eq!(open.is_empty(), missing.is_empty(), "{name}: {open:?}");
        assert!(missing.is_empty() || open[0].contains("`anchors`"), "{open:?}");
        let text = format!("{}{missing}\n", begun.text);
        let completed = StageOptions { description_text: Some(text), ..options() };
        let spec = ModelSpec::load(&completed, &info).unwrap_or_else(|error| panic!("{name}: {error}\n{}", begun.text));
        assert_eq!(decoder(&spec), name);
    }
}

/// The files follow those of published models: ViT of Transformers, a model of timm, and a recognizer of PaddleOCR.
#[test]
fn configuration_files_next_to_a_model_describe_it() {
    let scratch = Scratch::new("configurations");
    let model = scratch.file("model.onnx", b"not read");
    let options = StageOptions { model, ..StageOptions::default() };
    let near = |found: [f32; 3], expected: [f32; 3]| found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-3);
    let classifier = ports(&[("pixel_values", &[1, 3, 224, 224])], &[("logits", &[1, 2])]);
    scratch.file("config.json", r#"{"architectures": ["ViTForImageClassification"], "id2label": {"0": "cat", "1": "dog"}}"#);
    scratch.file(
        "preprocessor_config.json",
        r#"{"do_normalize": true, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.25], "size": {"height": 224, "width": 224}}"#,
    );
    let spec = ModelSpec::load(&options, &classifier).unwrap();
    assert_eq!((spec.task, &*spec.heads[0].decoder_name, labels(&spec).join(",")), (Task::Classification, "classes", "cat,dog".to_owned()));
    assert_eq!((spec.preprocess.resize, spec.preprocess.antialias), (Resize::Stretch, true));
    assert!(near(spec.preprocess.mean, [127.5; 3]) && near(spec.preprocess.scale, [127.5, 127.5, 63.75]), "{:?}", spec.preprocess);
    // RT-DETR has no class for "no object", DETR has.
    for (architecture, n_classes) in [("RTDetrForObjectDetection", 2), ("DetrForObjectDetection", 3)] {
        scratch.file("config.json", format!(r#"{{"architectures": ["{architecture}"], "id2label": {{"0": "cat", "1": "dog"}}}}"#));
        let outputs: [(&str, &[usize]); 2] = [("logits", &[1, 100, n_classes]), ("pred_boxes", &[1, 100, 4])];
        let spec = ModelSpec::load(&options, &ports(&[("pixel_values", &[1, 3, 224, 224])], &outputs));
        let spec = spec.unwrap_or_else(|error| panic!("{architecture}: {error}"));
        assert_eq!((decoder(&spec), spec.labels.len()), ("detr", n_classes), "{architecture}");
    }
    // The file belongs to another model of the folder.
    let yolox = ports(&[("images", &[1, 3, 416, 416])], &[("output", &[1, 3549, 85])]);
    let error = ModelSpec::load(&options, &yolox).unwrap_err().to_string();
    assert!(error.contains("match the decoder `yolox`"), "{error}");
    scratch.file("config.json", r#"{"architectures": ["BertModel"]}"#);
    assert!(ModelSpec::load(&options, &classifier).unwrap_err().to_string().contains("has no description"));
    scratch.file(
        "config.json",
        r#"{"architecture": "resnet18", "label_names": ["a", "b"],
            "pretrained_cfg": {"input_size": [3, 224, 224], "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}"#,
    );
    let spec = ModelSpec::load(&options, &ports(&[("x", &[0, 3, 0, 0])], &[("y", &[0, 2])])).unwrap();
    assert_eq!((spec.input_size, spec.preprocess.resize, labels(&spec).join(",")), (Size::new(224, 224), Resize::Crop, "a,b".to_owned()));
    let (mean, scale) = (spec.preprocess.mean, spec.preprocess.scale);
    assert!(near(mean, [123.675, 116.28, 103.53]) && near(scale, [58.395, 57.12, 57.375]), "{:?}", spec.preprocess);
    std::fs::remove_file(scratch.path().join("config.json")).unwrap();
    let characters = ["a", "''''", "'\"'", r#""\\""#].map(|scalar| format!("  - {scalar}\n")).concat();
    scratch.file("inference.yml", format!("PostProcess:\n  name: CTCLabelDecode\n  character_dict:\n{characters}Other: 1\n"));
    let spec = ModelSpec::load(&options, &ports(&[("x", &[0, 3, 48, 0])], &[("y", &[0, 0, 5])])).unwrap();
    assert_eq!((&*spec.heads[0].decoder_name, labels(&spec).concat()), ("ctc", "a'\"\\".to_owned()));
    assert_eq!(spec.widths, [640, 1280, 2560]);
}

#[test]
fn background_class_needs_no_label() {
    let info = ports(&[("input", &[1, 3, 64, 64])], &[("dets", &[1, 20, 4]), ("labels", &[1, 20, 4])]);
    let with = |keys: &str| {
        let text = format!(
            "version = 1\ntask = \"detection\"\n[input]\n[output]\ndecoder = \"detr\"\nlabels = [\"cat\", \"dog\", \"bird\"]\n{keys}"
        );
        ModelSpec::load(&StageOptions { description_text: Some(text), ..options() }, &info).map(|spec| labels(&spec))
    };
    let message = with("").unwrap_err().to_string();
    for part in ["expected 4 labels", "got 3", "`background = 3`", "`no object`", "activation = \"sigmoid\""] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(with("background = 3").unwrap(), ["cat", "dog", "bird", "background"]);
    assert_eq!(with("background = 0").unwrap(), ["background", "cat", "dog", "bird"]);
}

#[test]
fn given_decoder_adds_the_preprocessing_of_its_family() {
    let info = ports(&[("images", &[1, 3, 416, 416])], &[("output", &[1, 3549, 6])]);
    assert!(refused(&info).contains("yolox"));
    let (begun, open) = Description::draft_with_decoder("yolox", &info).unwrap();
    assert!(open.is_empty(), "{open:?}");
    let spec = ModelSpec::of_description(&begun, &options(), &info).unwrap();
    let expected = Preprocess {
        color: ChannelOrder::Bgr,
        resize: Resize::Letterbox { anchor: Anchor::TopLeft },
        pad: 114.0,
        rounding: Rounding::U8,
        ..Preprocess::default()
    };
    assert_eq!((decoder(&spec), spec.preprocess.clone()), ("yolox", Preprocess { layout: InputLayout::Nchw, ..expected }));
    // Converters of Paddle models write the class names into the metadata entry `character`.
    let outputs: [(&str, &[usize]); 2] = [("boxes", &[1, 16800, 4]), ("scores", &[1, 16800, 2])];
    let paddle = with_metadata(ports(&[("image", &[1, 3, 640, 640])], &outputs), &[("character", "figure\ntable")]);
    assert!(Description::draft(&options(), &paddle).unwrap().0.text.contains("labels = [\"figure\", \"table\"]"));
    // Models with the decoder `ssd` are preprocessed in several ways, so the draft leaves the color order open.
    let (begun, open) =
        Description::draft_with_decoder("ssd", &ports(&[("images", &[1, 3, 416, 416])], &[("output", &[1, 1, 9, 7])])).unwrap();
    assert!(!open.is_empty() && begun.text.contains("\ndecoder = \"ssd\"") && begun.text.contains("# color = "), "{}", begun.text);
}

/// Each of these models has two outputs. No known decoder uses both of them. The decoder `yolov5` would ignore one of them, so it must not
/// be chosen.
#[test]
fn decoder_that_ignores_outputs_is_not_chosen() {
    let image: Ports<'_> = &[("input", &[1, 3, 128, 128])];
    let in_parts: [Ports<'_>; 2] = [
        &[("regressors", &[1, 895, 16]), ("classificators", &[1, 895, 1])],
        &[("classificators", &[1, 895, 1]), ("regressors", &[1, 895, 16])],
    ];
    for outputs in in_parts {
        let message = refused(&ports(image, outputs));
        assert!(message.contains("the model's outputs match no detector decoder") && !message.contains("yolov5"), "{message}");
        let scratch = Scratch::new("no-decoder");
        let text = "version = 1\ntask = \"detection\"\n[input]\ncolor = \"rgb\"\nlayout = \"nchw\"\n[output]\n";
        let named = StageOptions { description: Some(scratch.file("model.toml", text)), ..options() };
        let message = ModelSpec::load(&named, &ports(image, outputs)).unwrap_err().to_string();
        assert!(message.contains("`decoder` is not given, and no decoder matches"), "{message}");
        // The model has a single output, but the number of rows of that output does not match YOLOv5.
        let message = ModelSpec::load(&named, &ports(image, &[("both", &[1, 896, 17])])).unwrap_err().to_string();
        assert!(message.contains("do not have the number of rows of `yolov5` models"), "{message}");
        // The number of rows, 3 x (256 + 64 + 16), matches YOLOv5. A decoder that the description names is used in any case.
        let spec = ModelSpec::load(&named, &ports(image, &[("both", &[1, 1008, 17])])).unwrap();
        assert_eq!(decoder(&spec), "yolov5");
        let text = format!("{text}decoder = \"yolov5\"\n");
        let named = StageOptions { description: Some(scratch.file("model.toml", text)), ..options() };
        assert_eq!(decoder(&ModelSpec::load(&named, &ports(image, outputs)).unwrap()), "yolov5");
    }
}

#[test]
fn known_ports_with_an_additional_output_are_not_certain() {
    let faces = ("input", &[1, 3, 640, 640][..]);
    let retinaface: Ports<'_> = &[("a", &[1, 16800, 4]), ("b", &[1, 16800, 2]), ("c", &[1, 16800, 10])];
    assert_eq!(decoder(&load(&ports(&[faces], retinaface))), "retinaface");
    let more = [retinaface, &[("mask", &[1, 16800, 32])]].concat();
    let message = refused(&ports(&[faces], &more));
    assert!(message.contains("has no description"), "{message}");
}

/// The last output is quantized, with a zero point. The scores of the second box are `(40 - 20) * 0.04` and `(22 - 20) * 0.04`.
#[test]
fn quantized_tensors_represent_numbers_by_scale_and_zero_point() {
    let info = ports(&[("image", &[1, 3, 64, 64])], &[("boxes", &[1, 2, 4]), ("scores", &[1, 2, 2])]);
    let scratch = Scratch::new("quantized");
    let load = |input: &str, output: &str| {
        let text = format!(
            "version = 1\ntask = \"detection\"\n[input]\nmean = 10\nscale = 2\n{input}\n[output]\ndecoder = \"boxes-scores\"\n{output}\n"
        );
        let named = StageOptions { description: Some(scratch.file("model.toml", text)), ..options() };
        ModelSpec::load(&named, &info)
    };
    let spec =
        load("quantization = { scale = 0.5, zero-point = 100 }", "quantization = { scores = { scale = 0.04, zero-point = 20 } }").unwrap();
    // A pixel of 60 is the number (60 - 10) / 2 = 25, whose integer is 25 / 0.5 + 100 = 150.
    let (mean, scale) = (spec.preprocess.mean[0], spec.preprocess.scale[0]);
    assert_eq!((60.0 - mean) / scale, 150.0);
    let scores = [20.0, 20.0, 40.0, 22.0];
    let outputs = [
        Output { name: "boxes", shape: &[1, 2, 4], data: &[0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 1.0, 1.0] },
        Output { name: "scores", shape: &[1, 2, 2], data: &scores },
    ];
    let mut results = Results::default();
    spec.heads[0].decode(&outputs, Size::new(64, 64), &mut results).unwrap();
    assert_eq!((results.boxes.len(), results.boxes[0].class_id, results.boxes[0].row), (1, 0, 1));
    assert!((results.boxes[0].score - 0.8).abs() < 1e-6, "{:?}", results.boxes);
    let memory = |results: &Results| results.numbers.iter().map(|numbers| numbers.as_ptr()).collect::<Vec<_>>();
    let of_first = memory(&results);
    spec.heads[0].decode(&outputs, Size::new(64, 64), &mut results).unwrap();
    assert_eq!((of_first.len(), memory(&results)), (1, of_first), "the next image uses the same memory");
    for (input, output, parts) in [
        ("quantization = { scale = 0.0 }", "", ["[input] `quantization`", "expected a scale"]),
        ("quantization = { zero-point = 1 }", "", ["missing field `scale`", "line 6"]),
        (
            "",
            "quantization = { scores = { scale = 1.0, zero-point = 70000 } }",
            ["[output] `quantization` of `scores`", "got 1e0 and 70000"],
        ),
        ("", "quantization = { score = { scale = 1.0 } }", ["expected the name of an output, got `score`", "`scores`"]),
    ] {
        let message = load(input, output).unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{parts:?}: {message}");
    }
}

#[test]
fn head_converts_only_the_quantized_outputs_that_it_reads() {
    let info = ports(&[("image", &[1, 3, 64, 64])], &[("first", &[1, 2]), ("second", &[1, 3])]);
    let scratch = Scratch::new("quantized heads");
    let text = "version = 1\ntask = \"classification\"\n[output]\ndecoder = \"custom\"\n\
                quantization = { first = { scale = 2.0 }, second = { scale = 3.0, zero-point = 1 } }\n";
    let spec = ModelSpec::load(&StageOptions { description: Some(scratch.file("model.toml", text)), ..options() }, &info).unwrap();
    let outputs =
        [Output { name: "first", shape: &[1, 2], data: &[1.0, 2.0] }, Output { name: "second", shape: &[1, 3], data: &[1.0, 2.0, 3.0] }];
    let expected: [&[f32]; 2] = [&[2.0, 4.0], &[0.0, 3.0, 6.0]];
    for (head, expected) in spec.heads.iter().zip(expected) {
        let mut results = Results::default();
        head.decode(&outputs, Size::new(64, 64), &mut results).unwrap();
        assert_eq!(results.numbers, [expected], "head `{}`", head.name);
        assert!(matches!(&results.attributes[0].outcome, Outcome::Tensor { data, .. } if **data == *expected), "{:?}", results.attributes);
    }
}
