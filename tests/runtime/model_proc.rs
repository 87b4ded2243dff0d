//! DL Streamer's model-proc files: their conversion to descriptions, and errors for unsupported options. The files follow the documentation
//! of DL Streamer. Each file tests one key.

use std::collections::BTreeMap;

use roiflow::runtime::{Dim, ErrorKind, ModelInfo, PartialShape, Port};
use roiflow::stages::{Description, Head, ModelSpec, StageOptions, Task};
use roiflow::tensor::ElementType;
use roiflow::vision::{Anchor, ChannelOrder, InputLayout, Preprocess, Resize};

use crate::support::Scratch;

fn info(outputs: &[(&str, &[usize])]) -> ModelInfo {
    let port = |name: &str, shape: &[usize]| {
        let dims = shape.iter().map(|&extent| Dim::Fixed(extent)).collect();
        Port::new(name, ElementType::F32, PartialShape::new(dims).unwrap())
    };
    let outputs = outputs.iter().map(|(name, shape)| port(name, shape)).collect();
    ModelInfo { inputs: vec![port("data", &[1, 3, 64, 96])], outputs, metadata: BTreeMap::new() }
}

/// Returns the specification of a model that has this model-proc file and a labels file in the same folder.
fn read(text: &str, info: &ModelInfo) -> Result<ModelSpec, String> {
    let scratch = Scratch::new("model-proc");
    scratch.file("two.txt", "one\ntwo\n");
    let path = scratch.file("model-proc.json", text);
    let options = StageOptions { model: "/no/such/model.onnx".into(), model_proc: Some(path), ..StageOptions::default() };
    let spec = ModelSpec::load(&options, info).map_err(|error| {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        error.to_string()
    })?;
    // The converted description must be equivalent to the model-proc file.
    let written = Description::find(&options, info).and_then(|found| found.with_own_labels(&options.engine)).unwrap();
    let path = scratch.file("written.toml", &written.text);
    let named = StageOptions { description: Some(path), model_proc: None, ..options };
    let again = ModelSpec::load(&named, info).unwrap_or_else(|error| panic!("{error}\n{}", written.text));
    let content = |spec: &ModelSpec| format!("{} {:?} {:?} {:?}", spec.name, spec.task, spec.preprocess, spec.labels);
    assert_eq!(content(&again), content(&spec), "{}", written.text);
    Ok(spec)
}

const SSD: &[(&str, &[usize])] = &[("detection_out", &[1, 1, 200, 7])];

fn ssd_with(params: &str) -> Result<ModelSpec, String> {
    let input = if params.is_empty() { String::new() } else { format!(r#"{{"format": "image", "params": {{{params}}}}}"#) };
    let text = format!(
        r#"{{"json_schema_version": "2.2.0", "input_preproc": [{input}], "output_postproc": [{{"converter": "detection_output", "labels": ["", "face"]}}]}}"#
    );
    read(&text, &info(SSD))
}

#[test]
fn input_preproc_is_converted_to_preprocessing() {
    let plain = || Preprocess { color: ChannelOrder::Bgr, layout: InputLayout::Nchw, ..Preprocess::default() };
    let letterbox = Resize::Letterbox { anchor: Anchor::Center };
    for (params, expected) in [
        ("", plain()),
        (r#""color_space": "RGB""#, Preprocess { color: ChannelOrder::Rgb, ..plain() }),
        (r#""resize": "no-aspect-ratio""#, plain()),
        (r#""resize": "aspect-ratio""#, Preprocess { resize: letterbox, pad: 0.0, ..plain() }),
        (r#""resize": "aspect-ratio-pad""#, Preprocess { resize: Resize::Letterbox { anchor: Anchor::TopLeft }, pad: 0.0, ..plain() }),
        (
            r#""resize": "aspect-ratio", "padding": {"stride_x": 0, "stride_y": 0, "fill_value": [114.0, 114.0, 114.0]}"#,
            Preprocess { resize: letterbox, pad: 114.0, ..plain() },
        ),
        (r#""resize": "aspect-ratio", "crop": "central""#, Preprocess { resize: Resize::Crop, ..plain() }),
        (r#""range": [0.0, 1.0]"#, Preprocess { scale: [255.0; 3], ..plain() }),
        (r#""range": [-1.0, 1.0]"#, Preprocess { mean: [127.5; 3], scale: [127.5; 3], ..plain() }),
        (r#""mean": [1, 2, 3], "std": [4, 5, 6]"#, Preprocess { mean: [1.0, 2.0, 3.0], scale: [4.0, 5.0, 6.0], ..plain() }),
    ] {
        let spec = ssd_with(params).unwrap_or_else(|error| panic!("{params}: {error}"));
        assert_eq!(spec.preprocess, expected, "{params}");
    }
    // Values are first scaled to a range. Then the mean and standard deviation are applied. The published values for ImageNet assume this
    // order.
    let spec =
        ssd_with(r#""color_space": "RGB", "range": [0.0, 1.0], "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]"#).unwrap();
    for (found, expected) in spec.preprocess.mean.iter().chain(&spec.preprocess.scale).zip([123.675, 116.28, 103.53, 58.395, 57.12, 57.375])
    {
        assert!((found - expected).abs() < 1e-3, "{:?}", spec.preprocess);
    }
    assert!(ssd_with("").unwrap().assumed.iter().any(|message| message.contains("`color` is bgr: the default of DL Streamer")));
}

#[test]
fn unsupported_preprocessing_is_an_error() {
    for (params, parts) in [
        (r#""resize": "no""#, ["`resize`", "`no`"]),
        (r#""crop": "top_left""#, ["`crop`", "`top_left`"]),
        (r#""crop": "central""#, ["`crop`", "aspect-ratio"]),
        (r#""color_space": "YUV""#, ["`color_space`", "`YUV`"]),
        (r#""padding": {"stride_x": 8, "stride_y": 8}"#, ["`padding`", "no `stride`"]),
        (r#""resize": "aspect-ratio", "padding": {"fill_value": [0, 1, 2]}"#, ["`fill_value`", "[0.0, 1.0, 2.0]"]),
        (r#""range": [1.0, 1.0]"#, ["`range`", "1 and 1"]),
        (r#""mean": [1, 2, 3]"#, ["`mean`", "`std`"]),
        (r#""mean": [1], "std": [0]"#, ["`std` of 0", "together"]),
        (r#""rotate": true"#, ["unknown field `rotate`", "model-proc.json"]),
    ] {
        let message = ssd_with(params).map(|spec| spec.preprocess).unwrap_err();
        assert!(parts.iter().all(|part| message.contains(part)), "{params}: {message}");
    }
}

#[test]
fn detector_converters_have_decoders() {
    let boxes: &[(&str, &[usize])] = &[("boxes", &[100, 5]), ("labels", &[100])];
    for (converter, outputs, expected) in [
        ("detection_output", SSD, "ssd"),
        ("boxes_labels", boxes, "boxes-labels"),
        ("yolo_v7", &[("output", &[1, 378, 7][..])][..], "yolov5"),
        ("yolo_v5", &[("output", &[1, 378, 7])], "yolov5"),
        ("yolo_v8", &[("output", &[1, 6, 126])], "yolov8"),
        ("yolo_v10", &[("output", &[1, 300, 6])], "yolov10"),
        ("yolo_x", &[("output", &[1, 126, 7])], "yolox"),
    ] {
        let text =
            format!(r#"{{"output_postproc": [{{"converter": "{converter}", "labels": "two.txt", "classes": 2, "anchors": [1.0]}}]}}"#);
        let spec = read(&text, &info(outputs)).unwrap_or_else(|error| panic!("{converter}: {error}"));
        assert_eq!((spec.task, spec.labels.len()), (Task::Detection, 2), "{converter}");
        assert_eq!((&*spec.heads[0].decoder_name, spec.heads[0].decoder.threshold()), (expected, Some(0.5)), "{converter}");
    }
    let text = r#"{"output_postproc": [{"converter": "yolo_v8", "iou_threshold": 0.25}]}"#;
    let heads = read(text, &info(&[("output", &[1, 6, 126])])).unwrap().heads;
    assert_eq!(heads[0].decoder.summary(), "iou-threshold 0.25");
    for empty in ["[]", r#"[{"converter": "detection_output"}]"#] {
        let spec = read(&format!(r#"{{"output_postproc": {empty}, "input_preproc": []}}"#), &info(SSD)).unwrap();
        assert_eq!((spec.task, &*spec.heads[0].decoder_name), (Task::Detection, "ssd"), "{empty}");
    }
}

/// The anchors of YOLOv2 are in cells, those of YOLOv3 in pixels with the coarsest grid first.
#[test]
fn anchors_of_yolo_v2_to_v4_are_lists_of_the_grids() {
    let written = |output: &str, outputs: &[(&str, &[usize])]| {
        let text = format!(r#"{{"output_postproc": [{output}]}}"#);
        let spec = read(&text, &info(outputs)).unwrap_or_else(|error| panic!("{output}: {error}"));
        assert_eq!((spec.task, &*spec.heads[0].decoder_name), (Task::Detection, "yolo-anchors"));
        format!("{:?}", spec.heads[0].decoder)
    };
    let v2 = r#"{"converter": "yolo_v2", "classes": 2, "anchors": [0.5, 1, 2, 3]}"#;
    for shape in [&[1, 14, 2, 3][..], &[1, 84]] {
        let decoder = written(v2, &[("out", shape)]);
        assert!(decoder.contains("anchors: [[[16.0, 32.0], [64.0, 96.0]]]") && decoder.contains("activated: true"), "{decoder}");
    }
    let v4 = r#"{"converter": "yolo_v4", "do_cls_softmax": true, "output_sigmoid_activation": true, "anchors": [1, 2, 3, 4, 50, 60, 70, 80], "masks": [2, 3, 0, 1]}"#;
    let decoder = written(v4, &[("coarse", &[1, 14, 2, 3]), ("fine", &[1, 14, 4, 6])]);
    for part in ["anchors: [[[1.0, 2.0], [3.0, 4.0]], [[50.0, 60.0], [70.0, 80.0]]]", "activated: false", "softmax: true"] {
        assert!(decoder.contains(part), "{part}: {decoder}");
    }
}

#[test]
fn further_inputs_and_labels_by_index_are_read() {
    let mut plate = info(&[("d_predictions.0", &[1, 88])]);
    plate.inputs.push(Port::new("seq_ind", ElementType::F32, [88, 1]));
    let text = r#"{"input_preproc": [{"layer_name": "data", "format": "image"}, {"layer_name": "seq_ind", "format": "sequence_index"}],
        "output_postproc": [{"attribute_name": "license_plate", "labels": ["0", "1"], "converter": "label", "method": "index"}]}"#;
    let spec = read(text, &plate).unwrap();
    assert_eq!((spec.task, &*spec.name, &*spec.heads[0].decoder_name), (Task::Classification, "license_plate", "text-indexes"));
    let mut masks = info(&[("boxes", &[100, 5]), ("labels", &[100]), ("masks", &[100, 28, 28])]);
    masks.inputs.push(Port::new("image_info", ElementType::F32, [1, 3]));
    let text = r#"{"input_preproc": [{"format": "image", "params": {"color_space": "BGR"}}, {"format": "image_info", "params": {"scale": 1.0}}],
        "output_postproc": [{"converter": "mask_rcnn", "labels": ["a"]}]}"#;
    let spec = read(text, &masks).unwrap();
    assert_eq!((spec.task, &*spec.heads[0].decoder_name), (Task::Detection, "boxes-masks"));
}

#[test]
fn classifier_converters_have_decoders() {
    type Heads = Vec<(String, String, usize)>;
    let heads = |converters: &str, outputs: &[(&str, &[usize])]| -> Heads {
        let text = format!(r#"{{"json_schema_version": "2.0.0", "input_preproc": [], "output_postproc": [{converters}]}}"#);
        let spec = read(&text, &info(outputs)).unwrap_or_else(|error| panic!("{converters}: {error}"));
        assert_eq!(spec.task, Task::Classification);
        let summary = |head: &Head| format!("{}, {}", head.decoder_name, head.decoder.summary());
        spec.heads.iter().map(|head| (head.name.to_string(), summary(head), head.labels.len())).collect()
    };
    let one = |name: &str, decoder: &str, n_labels| -> Heads { vec![(name.to_owned(), decoder.to_owned(), n_labels)] };
    let two: &[(&str, &[usize])] = &[("prob", &[1, 2, 1, 1])];
    let label = |more: &str| format!(r#"{{"attribute_name": "a", "converter": "label", "labels": ["x", "y"]{more}}}"#);
    assert_eq!(heads(&label(""), two), one("a", "classes, activation none", 2));
    assert_eq!(heads(&label(r#", "method": "max""#), two), one("a", "classes, activation none", 2));
    assert_eq!(heads(&label(r#", "method": "softmax""#), two), one("a", "classes, activation softmax", 2));
    assert_eq!(heads(&label(r#", "method": "multi", "threshold": 0.25"#), two), one("a", "multi-label, activation none", 2));
    let compound = r#"{"attribute_name": "a", "converter": "label", "method": "compound", "labels": ["hat", "", "bag", "no bag"]}"#;
    assert_eq!(heads(compound, two), one("a", "multi-label, activation none", 2));
    assert_eq!(heads(r#"{"converter": "raw_data_copy"}"#, two), one("model", "custom, unchanged", 0));
    // Age and gender. OpenVINO adds a port number to the name of a layer with several outputs.
    let both = r#"{"attribute_name": "age", "layer_name": "age_conv3", "converter": "text", "text_scale": 100.0, "text_precision": 0},
        {"attribute_name": "gender", "layer_name": "prob", "converter": "label", "labels": ["Female", "Male"], "method": "max"}"#;
    let expected = [one("age", "regression, value * 100 + 0", 0), one("gender", "classes, activation none", 2)].concat();
    assert_eq!(heads(both, &[("prob:0", &[1, 2, 1, 1]), ("age_conv3", &[1, 1, 1, 1])]), expected);
}

#[test]
fn unsupported_values_are_errors_with_the_choices() {
    let two: &[(&str, &[usize])] = &[("prob", &[1, 2]), ("other", &[1, 2])];
    for (text, outputs, parts) in [
        ("{", SSD, ["model-proc.json", "EOF"]),
        (r#"{"json_schema_version": "1.0.0", "output_postproc": []}"#, SSD, ["2.0.0 to 2.2.0", "`1.0.0`"]),
        (r#"{"output_postproc": [{"labels": ["a"]}]}"#, SSD, ["a `converter`", "detection_output, boxes_labels"]),
        (r#"{"output_postproc": [{"converter": "keypoints_hrnet"}]}"#, SSD, ["`keypoints_hrnet`", "yolov8-pose"]),
        (r#"{"output_postproc": [{"converter": "mask_rcnn"}]}"#, SSD, ["`mask_rcnn`", "[N, 5], [N] and [N, h, w]"]),
        (r#"{"output_postproc": [{"converter": "yolo_v3"}]}"#, SSD, ["`anchors`", "a width and a height"]),
        (r#"{"output_postproc": [{"converter": "yolo_v3", "anchors": [1, 2], "masks": [0, 7]}]}"#, SSD, ["`masks`", "[0, 7]"]),
        // roiflow has no decoder for output maps with anchors.
        (r#"{"output_postproc": [{"converter": "yolo_v5"}]}"#, &[("a", &[1, 21, 8, 12][..])], ["`yolo_v5`", "expected one of"]),
        (r#"{"output_postproc": [{"converter": "label", "method": "other"}]}"#, SSD, ["softmax, multi, compound or index", "`other`"]),
        (r#"{"output_postproc": [{"converter": "label"}, {"converter": "label"}]}"#, two, ["a `layer_name` in each", "2"]),
        (r#"{"output_postproc": [{"converter": "label", "layer_name": "none"}]}"#, two, ["no output `none`", "`prob`, `other`"]),
        (
            r#"{"output_postproc": [{"converter": "label", "layer_name": "prob"}, {"converter": "detection_output", "layer_name": "other"}]}"#,
            two,
            ["one converter of a detector", "several"],
        ),
        (r#"{"input_preproc": [{"format": "audio"}], "output_postproc": []}"#, SSD, ["`audio`", "image, image_info or sequence_index"]),
        (r#"{"input_preproc": [{"format": "image_info", "params": {"scale": 2}}], "output_postproc": []}"#, SSD, ["`scale`", "expected 1"]),
        (r#"{"output_postproc": [{"converter": "label", "labels": ["a"]}]}"#, &[("prob", &[1, 2])], ["expected 2 labels", "got 1"]),
    ] {
        let message = read(text, &info(outputs)).map(|spec| spec.task).unwrap_err();
        assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message}");
    }
}
