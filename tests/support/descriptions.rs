//! A test case for the readers of descriptions, generated from bytes: the bytes as text, or a valid description with some words replaced.
//! Asserts that accepted descriptions are usable. Random tests and fuzz targets include this file, so it uses no other test helpers.

use std::collections::BTreeMap;

use roiflow::runtime::{Dim, ModelInfo, PartialShape, Port};
use roiflow::stages::{Description, ModelSpec, Source, StageOptions};
use roiflow::tensor::ElementType;

/// Valid descriptions of models with the ports below.
const GOOD: [&str; 4] = [
    include_str!("../../assets/models/ultraface-rfb-320-nchw.toml"),
    include_str!("../../assets/models/vehicle-attributes.toml"),
    include_str!("../../assets/models/person-attributes-recognition-crossroad-0234.toml"),
    "version = 1\ntask = \"detection\"\n[input]\ncolor = \"rgb\"\nresize = \"letterbox\"\npad = 114\nsize = [96, 64]\nrounding = \"u8\"\n[output]\ndecoder = \"yolov8\"\nthreshold = 0.25\niou-threshold = 0.7\nmax-boxes = 10\nnms = \"gaussian\"\nnms-sigma = 0.5\nclass-agnostic = true\nlabels = [\"a\", \"b\"]\n",
];

/// Valid DL Streamer files, written after its documentation.
const GOOD_PROC: [&str; 3] = [
    r#"{"json_schema_version": "2.2.0", "input_preproc": [{"format": "image", "params": {"resize": "aspect-ratio", "color_space": "RGB", "range": [0.0, 1.0], "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25], "padding": {"fill_value": [114.0, 114.0, 114.0]}}}], "output_postproc": [{"converter": "yolo_v8", "iou_threshold": 0.5, "labels": ["a", "b"]}]}"#,
    r#"{"json_schema_version": "2.1.0", "input_preproc": [], "output_postproc": [{"converter": "label", "method": "max", "layer_name": "color", "attribute_name": "color", "labels": ["1", "2", "3", "4", "5", "6", "7"]}, {"converter": "text", "text_scale": 100.0, "layer_name": "age", "attribute_name": "age"}]}"#,
    r#"{"output_postproc": [{"converter": "label", "method": "compound", "threshold": 0.5, "layer_name": "attributes", "labels": ["a", "", "b", "no b"]}]}"#,
];

/// Replacements for words, in addition to words of the text.
const WORDS: [&str; 24] = [
    "-1",
    "0",
    "1e39",
    "nan",
    "-inf",
    "9223372036854775807",
    "\"\"",
    "[]",
    "{}",
    "true",
    "null",
    "\"\\u0000\"",
    "[1, 2]",
    "1.0",
    "2.0",
    "\"custom\"",
    "\"classes\"",
    "\"detection\"",
    "\"classification\"",
    "heads",
    "weights",
    "\"nhwc\"",
    "[[output.heads]]",
    "\"expectation\"",
];

/// Runs the case. Returns true if the text is a description of one of the models.
pub fn try_description(bytes: &[u8]) -> bool {
    let (kind, rest) = bytes.split_first().map_or((0, bytes), |(kind, rest)| (*kind, rest));
    let is_proc = kind & 1 == 1;
    let text = match kind >> 1 {
        0..64 => String::from_utf8_lossy(rest).into_owned(),
        _ => changed(rest, is_proc),
    };
    models().iter().filter(|info| is_understood(&text, is_proc, info)).count() > 0
}

fn is_understood(text: &str, is_proc: bool, info: &ModelInfo) -> bool {
    let source = Source::Named("/no/such/folder/description".into());
    let options = StageOptions { model: "/no/such/model.onnx".into(), ..StageOptions::default() };
    let description = match is_proc {
        true => Description::of_model_proc(text, source, info),
        false => Ok(Description { source, text: text.to_owned(), assumed: Vec::new() }),
    };
    let Ok(spec) = description.and_then(|description| ModelSpec::of_description(&description, &options, info)) else { return false };
    let preprocess = &spec.preprocess;
    assert!(preprocess.scale.iter().all(|scale| *scale != 0.0 && scale.is_finite()), "{text}: {preprocess:?}");
    assert!(preprocess.mean.iter().all(|mean| mean.is_finite()), "{text}: {preprocess:?}");
    assert!(info.inputs[0].shape.admits(&spec.input_shape), "{text}: {}", spec.input_shape);
    assert!(!spec.heads.is_empty(), "{text}");
    for head in &spec.heads {
        assert!(head.output_idx.is_none_or(|output_idx| output_idx < info.outputs.len()), "{text}: {head:?}");
        assert!(head.decoder.threshold().is_none_or(|threshold| (0.0..=1.0).contains(&threshold)), "{text}: {head:?}");
    }
    true
}

/// Returns a valid text with some words replaced, as selected by the bytes.
fn changed(bytes: &[u8], is_proc: bool) -> String {
    let mut bytes = bytes.iter().map(|&byte| usize::from(byte));
    let mut below = |limit: usize| bytes.next().unwrap_or(0) % limit.max(1);
    let good: &[&str] = if is_proc { &GOOD_PROC } else { &GOOD };
    let text = good[below(good.len())];
    let mut words: Vec<&str> = text.split_inclusive([' ', '\n', ',', '[', ']', '{', '}', ':']).collect();
    for _ in 0..below(5) {
        let (place, other) = (below(words.len() * 2) % words.len(), below(words.len()));
        match below(4) {
            0 => drop(words.remove(place)),
            1 => words.swap(place, other),
            2 => words.insert(place, words[other]),
            _ => words[place] = WORDS[below(WORDS.len())],
        }
    }
    words.concat()
}

/// Detectors with two kinds of outputs, and classifiers.
fn models() -> [ModelInfo; 4] {
    let port = |name: &str, shape: &[usize]| {
        let dims = shape.iter().map(|&extent| if extent == 0 { Dim::Dynamic } else { Dim::Fixed(extent) });
        Port::new(name, ElementType::F32, PartialShape::new(dims.collect()).expect("few axes"))
    };
    let model = |input: &[usize], outputs: &[(&str, &[usize])]| ModelInfo {
        inputs: vec![port("image", input)],
        outputs: outputs.iter().map(|(name, shape)| port(name, shape)).collect(),
        metadata: BTreeMap::new(),
    };
    [
        model(&[1, 3, 240, 320], &[("scores", &[1, 4420, 2]), ("boxes", &[1, 4420, 4])]),
        model(&[1, 3, 72, 72], &[("type", &[1, 4, 1, 1]), ("color", &[1, 7, 1, 1]), ("age", &[1, 1])]),
        model(&[1, 3, 160, 80], &[("attributes", &[1, 7])]),
        model(&[1, 3, 0, 0], &[("output0", &[1, 6, 126])]),
    ]
}
