//! Invalid models and descriptions. Each error contains the expected and actual values, and says what to do.

use std::path::PathBuf;

use roiflow::devices;
use roiflow::runtime::{Config, Error, ErrorKind, Model, ModelInfo, Result};
use roiflow::stages::spec::load_model;
use roiflow::stages::{Stage, StageOptions};

use crate::support::{Scratch, real, tiny};

/// Collects failures, so that one run of a test prints all failures of its table.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    /// Checks that `result` is an error of this kind whose text contains all parts.
    fn check<T>(&mut self, case: &str, result: Result<T>, kind: ErrorKind, parts: &[&str]) {
        let Err(error) = result else { return self.0.push(format!("{case}: no error")) };
        let message = error.to_string();
        eprintln!("{case}: {message}");
        let missing: Vec<_> = parts.iter().filter(|part| !message.contains(**part)).collect();
        if error.kind() != kind || !missing.is_empty() {
            self.0.push(format!("{case}: expected {kind:?} with {missing:?}, got {error:?}"));
        }
    }
}

impl Drop for Failures {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.0.is_empty(), "{}", self.0.join("\n"));
        }
    }
}

#[test]
fn file_that_is_not_a_model_is_an_error() {
    let scratch = Scratch::new("bad-files");
    let whole = std::fs::read(tiny("stripes.onnx")).unwrap();
    let mut failures = Failures::default();
    let mut check = |case: &str, path: PathBuf, kind: ErrorKind, parts: &[&str]| {
        let name = path.display().to_string();
        let parts: Vec<&str> = [&[&*name], parts].concat();
        let core = devices::core();
        let compiled = core.read_model(&path).and_then(|model| core.compile_model(&model, "CPU", &Config::default()));
        failures.check(case, compiled, kind, &parts);
    };
    check("missing", scratch.path().join("missing.onnx"), ErrorKind::Io, &["cannot read model", "No such file", "check the path"]);
    check("folder", scratch.path().to_owned(), ErrorKind::Io, &["cannot read model", "regular file, got a folder", "check the path"]);
    let no_model = ["is not an ONNX model", "reads ONNX"];
    check("text", scratch.file("text.onnx", "once upon a time, there was no model"), ErrorKind::Model, &no_model);
    check("toml", scratch.file("stripes.toml", std::fs::read(tiny("stripes.toml")).unwrap()), ErrorKind::Model, &no_model);
    check("empty", scratch.file("empty.onnx", ""), ErrorKind::Model, &no_model);
    check("zeros", scratch.file("zeros.onnx", [0; 400]), ErrorKind::Model, &no_model);
    check("cut in the middle", scratch.file("cut.onnx", &whole[..whole.len() / 2]), ErrorKind::Model, &no_model);
    check("cut at the end", scratch.file("end.onnx", &whole[..whole.len() - 3]), ErrorKind::Model, &no_model);
    let unsupported = ["FancyOp", "node `", "device CPU", "OpenVINO", "ONNX Runtime"];
    check("unsupported", tiny("unsupported.onnx"), ErrorKind::Model, &unsupported);
}

/// Reading truncated model files, and files with one changed byte, returns a model or an error and never panics.
#[test]
fn no_broken_file_panics() {
    let whole = std::fs::read(tiny("double.onnx")).unwrap();
    let scratch = Scratch::new("broken-files");
    let core = devices::core();
    let compile = |bytes: &[u8]| {
        let path = scratch.file("broken.onnx", bytes);
        core.read_model(&path).and_then(|model| core.compile_model(&model, "CPU", &Config::default())).map(drop)
    };
    compile(&whole).unwrap();
    (0..whole.len()).for_each(|n_bytes| drop(compile(&whole[..n_bytes])));
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        for value in [0, 0x7f, 0x80, 0xff] {
            changed[at] = value;
            drop(compile(&changed));
        }
    }
}

#[test]
fn unknown_device_error_lists_the_known_devices() {
    let core = devices::core();
    let model = core.read_model(tiny("double.onnx")).unwrap();
    let mut failures = Failures::default();
    let known = ["`GPU`", "CPU", "NULL"];
    failures.check("core", core.compile_model(&model, "GPU", &Config::default()), ErrorKind::NotFound, &known);
    let options = StageOptions { model: tiny("color.onnx"), device: Some("GPU".to_owned()), ..StageOptions::default() };
    failures.check("stage", Stage::classifier(&options), ErrorKind::NotFound, &known);
    let ports = Model::from_ports(ModelInfo::default());
    let message = ["device CPU", "only ports"];
    failures.check("ports", core.compile_model(&ports, "CPU", &Config::default()), ErrorKind::Unsupported, &message);
}

/// A description of `rectangle.onnx`. The test cases replace parts of it.
const DETECTOR: &str = r#"
version = 1
task = "detection"
[input]
color = "rgb"
layout = "nhwc"
resize = "stretch"
[output]
decoder = "ultraface"
threshold = 0.5
labels = ["rectangle"]
"#;

/// A description of `color.onnx`. The test cases replace parts of it.
const CLASSIFIER: &str = r#"
version = 1
task = "classification"
[input]
color = "rgb"
layout = "nchw"
[output]
decoder = "classes"
activation = "none"
labels = ["red", "green", "blue", "other"]
"#;

#[test]
fn invalid_description_error_has_both_sides() {
    #[derive(Debug)]
    struct Case {
        name: &'static str,
        model: &'static str,
        from: &'static str,
        to: &'static str,
        kind: ErrorKind,
        message: &'static [&'static str],
    }
    let detector = |name, from, to, message| Case { name, model: "rectangle.onnx", from, to, kind: ErrorKind::Config, message };
    let classifier = |name, from, to, message| Case { name, model: "color.onnx", from, to, kind: ErrorKind::Config, message };
    let cases = [
        detector("no TOML", "version = 1", "version 1", &["line 2", "expected"]),
        detector("unknown key", "resize = ", "rezise = ", &["unknown field `rezise`", "`resize`"]),
        detector("unknown table", "[output]", "[outputs]", &["unknown field `outputs`", "`output`"]),
        detector("no version", "version = 1\n", "", &["missing field `version`"]),
        detector("wrong version", "version = 1", "version = 2", &["expected `version = 1`, got 2"]),
        detector(
            "unknown task",
            "\"detection\"",
            "\"segmentation\"",
            &["unknown variant `segmentation`", "`detection`", "`classification`"],
        ),
        detector(
            "no decoder",
            "decoder = \"ultraface\"\n",
            "",
            &["`decoder` is not given", "several decoders match", "yolov5, yolov10, ultraface"],
        ),
        detector(
            "unknown decoder",
            "\"ultraface\"",
            "\"ultrafase\"",
            &["`ultrafase`", "yolov5, yolov8, yolov10, yolox, ssd", "did you mean `ultraface`?"],
        ),
        detector(
            "decoder of the other task",
            "\"ultraface\"",
            "\"classes\"",
            &["`classes` for detection", "yolov5, yolov8, yolov10, yolox, ssd"],
        ),
        detector(
            "decoder that contradicts the model",
            "\"ultraface\"",
            "\"yolox\"",
            &["decoder `yolox` contradicts the model: expected", "[1, 84, 5 + classes]", "`boxes` [1, 1, 6]"],
        ),
        detector("decoder of a list", "\"ultraface\"", "\"ssd\"", &["decoder `ssd` contradicts", "[1, 1, N, 7]", "`boxes` [1, 1, 6]"]),
        detector("foreign key", "threshold = 0.5", "normalize = true", &["`normalize`", "is not a key of decoder `ultraface`"]),
        detector(
            "activation of a classifier",
            "threshold = 0.5",
            "activation = \"bytes\"",
            &["`activation`", "sigmoid or softmax", "got bytes"],
        ),
        detector("coordinates that are a word", "threshold = 0.5", "coordinates = \"normal\"", &["`normal`", "`normalized`"]),
        detector("mistyped key", "threshold = 0.5", "treshold = 0.5", &["`treshold`", "did you mean `threshold`?"]),
        detector("unknown key", "threshold = 0.5", "top-k = 0", &["`top-k`", "expected one of"]),
        detector("newer version", "version = 1", "version = 99", &["expected `version = 1`, got 99"]),
        detector("no name", "version = 1", "version = 1\nname = \" \"", &["`name`", "at least one letter"]),
        detector("a pad too large", "resize =", "pad = 300\nresize =", &["`pad`", "0 to 255, got 300"]),
        detector("a pad below zero", "resize =", "pad = -1\nresize =", &["`pad`", "0 to 255, got -1"]),
        detector("a pad that is NaN", "resize =", "pad = nan\nresize =", &["`pad`", "0 to 255, got NaN"]),
        detector("no boxes", "threshold = 0.5", "max-boxes = 0", &["`max-boxes`", "1 to 100000, got 0"]),
        detector("too many boxes", "threshold = 0.5", "max-boxes = 4000000000", &["`max-boxes`", "1 to 100000, got 4000000000"]),
        detector("boxes below zero", "threshold = 0.5", "max-boxes = -1", &["max-boxes", "-1"]),
        detector("an overlap that is NaN", "threshold = 0.5", "iou-threshold = nan", &["`iou-threshold`", "0 to 1, got NaN"]),
        detector("an overlap below zero", "threshold = 0.5", "iou-threshold = -0.5", &["`iou-threshold`", "0 to 1, got -0.5"]),
        detector("a sigma of zero", "threshold = 0.5", "nms = \"gaussian\"\nnms-sigma = 0", &["`nms-sigma`", "larger than 0", "got 0"]),
        detector("a sigma that is NaN", "threshold = 0.5", "nms = \"gaussian\"\nnms-sigma = nan", &["`nms-sigma`", "got NaN"]),
        detector("a scale that is NaN", "resize =", "scale = nan\nresize =", &["`scale`", "finite", "NaN"]),
        detector("a scale near zero", "resize =", "scale = 1e-30\nresize =", &["`scale`", "0.000001 to 1000000", "got 1e-30"]),
        detector("infinite mean", "resize =", "mean = inf\nresize =", &["`mean`", "finite", "inf"]),
        detector("a mean too large", "resize =", "mean = 1e30\nresize =", &["`mean`", "-1000000 to 1000000"]),
        detector("a size of zero", "resize =", "size = [0, 64]\nresize =", &["`size`", "1 to 16384", "[0, 64]"]),
        detector("a size too large", "resize =", "size = [64, 100000]\nresize =", &["`size`", "1 to 16384", "[64, 100000]"]),
        detector("no labels", "[\"rectangle\"]", "[]", &["`labels`", "at least one name"]),
        detector(
            "a labels file without a name",
            "labels = [\"rectangle\"]",
            "labels-file = \"\"",
            &["`labels-file`", "the name of a file"],
        ),
        detector("invalid background", "threshold = 0.5", "background = 7", &["`background`", "is not a key of decoder `ultraface`"]),
        detector(
            "a labels file elsewhere",
            "labels = [\"rectangle\"]",
            "labels-file = \"/etc/passwd\"",
            &["`labels-file`", "/etc/passwd", "absolute path", "--allow-outside-files"],
        ),
        detector(
            "a labels file above",
            "labels = [\"rectangle\"]",
            "labels-file = \"../x.txt\"",
            &["`labels-file`", "`../x.txt`", "lies outside"],
        ),
        classifier(
            "a weight that is NaN",
            "\"classes\"\nactivation = \"none\"",
            "\"expectation\"\nweights = [0.0, nan, 1.0, 2.0]",
            &["`weights`", "finite", "NaN"],
        ),
        classifier("no weights at all", "\"classes\"\nactivation = \"none\"", "\"expectation\"\nweights = []", &["`weights`", "got none"]),
        classifier("a scale of zero", "\"classes\"\nactivation = \"none\"", "\"regression\"\nscale = 0.0", &["`scale`", "other than 0"]),
        classifier("a margin too large", "color =", "margin = 11\ncolor =", &["`margin`", "0 to 10, got 11"]),
        classifier("points that are far away", "color =", "align = [[0.0, 0.0], [1e30, 1.0]]\ncolor =", &["`align`", "2 to 100 points"]),
        detector("threshold too large", "threshold = 0.5", "threshold = 50.0", &["`threshold`: expected 0 to 1, got 50"]),
        detector("threshold below zero", "threshold = 0.5", "threshold = -0.1", &["`threshold`: expected 0 to 1, got -0.1"]),
        detector("threshold that is NaN", "threshold = 0.5", "threshold = nan", &["`threshold`: expected 0 to 1, got NaN"]),
        detector("threshold as text", "threshold = 0.5", "threshold = \"half\"", &["threshold", "invalid type", "half"]),
        detector("overlap too large", "threshold = 0.5", "iou-threshold = 1.5", &["`iou-threshold`: expected 0 to 1, got 1.5"]),
        detector("too many labels", "[\"rectangle\"]", "[\"background\", \"rectangle\"]", &["expected 1 labels", "got 2"]),
        detector("unknown color", "\"rgb\"", "\"yuv\"", &["unknown variant `yuv`", "`rgb`", "`bgr`", "`gray`"]),
        detector(
            "layout that contradicts the input",
            "\"nhwc\"",
            "\"nchw\"",
            &["contradicts the model's input", "[N, C, H, W]", "[1, 64, 64, 3]"],
        ),
        detector("color that contradicts the input", "\"rgb\"", "\"gray\"", &["contradicts the model's input", "C = 1", "[1, 64, 64, 3]"]),
        detector("size that contradicts the input", "resize =", "size = [32, 64]\nresize =", &["`size = [32, 64]`", "[1, 64, 64, 3]"]),
        detector("a mean of two numbers", "resize =", "mean = [1.0, 2.0]\nresize =", &["mean", "3 numbers", "got 2"]),
        detector("a scale of zero", "resize =", "scale = [1.0, 0.0, 1.0]\nresize =", &["`scale`", "other than 0, got 0"]),
        detector("mean that is a string", "resize =", "mean = \"imagenet\"\nresize =", &["mean", "a number, or a list of one per channel"]),
        detector("a mean that is NaN", "resize =", "mean = [nan, 0.0, 0.0]\nresize =", &["mean", "finite"]),
        detector("labels twice", "labels =", "labels-file = \"labels.txt\"\nlabels =", &["both `labels` and `labels-file`", "one of them"]),
        Case {
            kind: ErrorKind::Io,
            ..detector(
                "labels file that is missing",
                "labels = [\"rectangle\"]",
                "labels-file = \"nowhere.txt\"",
                &["cannot read labels file", "nowhere.txt", "one label per line"],
            )
        },
        classifier("too few labels", ", \"other\"]", "]", &["expected 4 labels", "got 3"]),
        classifier(
            "unknown decoder",
            "\"classes\"",
            "\"clases\"",
            &["`clases` for classification", "classes, multi-label, expectation", "did you mean `classes`?"],
        ),
        classifier(
            "nothing like it",
            "\"classes\"",
            "\"ultraface\"",
            &["`ultraface` for classification", "classes, multi-label, expectation"],
        ),
        classifier("no weights", "\"classes\"", "\"expectation\"", &["`expectation` needs `weights`"]),
        classifier(
            "too few weights",
            "\"classes\"\nactivation = \"none\"",
            "\"expectation\"\nweights = [0.0, 50.0, 100.0]",
            &["decoder `expectation` contradicts the model", "3", "[?, 4]"],
        ),
        classifier("foreign weights", "activation =", "weights = [1.0]\nactivation =", &["`weights`", "is not a key of decoder `classes`"]),
        classifier("foreign key", "activation =", "max-boxes = 3\nactivation =", &["`max-boxes`", "is not a key of decoder `classes`"]),
        classifier("unknown tensor", "activation =", "tensor = \"logits\"\nactivation =", &["got `logits`", "`probabilities`"]),
        classifier("unknown activation", "\"none\"", "\"relu\"", &["unknown variant `relu`", "`softmax`"]),
        classifier("threshold out of range", "activation =", "threshold = 1.01\nactivation =", &["`threshold`: expected 0 to 1, got 1.01"]),
    ];
    let scratch = Scratch::new("bad-descriptions");
    let mut failures = Failures::default();
    for case in &cases {
        let text = if case.model == "rectangle.onnx" { DETECTOR } else { CLASSIFIER };
        assert!(text.contains(case.from), "{case:?}");
        let path = scratch.file("description.toml", text.replacen(case.from, case.to, 1));
        let parts: Vec<&str> = [&[path.to_str().unwrap()], case.message].concat();
        let options = StageOptions { model: tiny(case.model), description: Some(path.clone()), ..StageOptions::default() };
        let refused: Option<Error> = match case.model {
            "rectangle.onnx" => Stage::detector(&options).err(),
            _ => Stage::classifier(&options).err(),
        };
        failures.check(case.name, refused.map_or(Ok(()), Err), case.kind, &parts);
    }
}

#[test]
fn unchanged_descriptions_of_the_cases_are_valid() {
    let scratch = Scratch::new("good-descriptions");
    for (model, text) in [("rectangle.onnx", DETECTOR), ("color.onnx", CLASSIFIER)] {
        let description = Some(scratch.file("description.toml", text));
        load_model(&StageOptions { model: tiny(model), description, ..StageOptions::default() }).unwrap();
    }
}

#[test]
fn missing_description_error_names_the_file_to_write() {
    let scratch = Scratch::new("no-description");
    let model = scratch.file("model.onnx", std::fs::read(tiny("color.onnx")).unwrap());
    let mut failures = Failures::default();
    let options = StageOptions { model: model.clone(), ..StageOptions::default() };
    let beside = model.with_extension("toml").display().to_string();
    failures.check(
        "none",
        Stage::classifier(&options),
        ErrorKind::Config,
        &["has no description", "not guessed", &beside, "docs/model-descriptions.md"],
    );
    let named = StageOptions { description: Some(scratch.path().join("nowhere.toml")), ..options.clone() };
    failures.check("named", Stage::classifier(&named), ErrorKind::Io, &["cannot read model description", "nowhere.toml", "check the path"]);
    scratch.file("model.toml", CLASSIFIER);
    Stage::classifier(&options).unwrap();
}

/// Options of the caller are checked in the same way as keys of the description.
#[test]
fn caller_options_are_checked() {
    let scratch = Scratch::new("bad-options");
    let options = StageOptions { model: tiny("rectangle.onnx"), ..StageOptions::default() };
    let mut failures = Failures::default();
    let mut check =
        |case: &str, options: StageOptions, kind: ErrorKind, parts: &[&str]| failures.check(case, Stage::detector(&options), kind, parts);
    let range = ["expected 0 to 1, got"];
    check("threshold", StageOptions { threshold: Some(2.0), ..options.clone() }, ErrorKind::Config, &range);
    check("overlap", StageOptions { iou_threshold: Some(f32::NAN), ..options.clone() }, ErrorKind::Config, &range);
    let labels = Some(vec!["a".to_owned(), "b".to_owned()]);
    check("labels", StageOptions { labels, ..options.clone() }, ErrorKind::Config, &["expected 1 labels", "got 2"]);
    let labels_file = Some(scratch.file("labels.txt", "one\ntwo\nthree\n\n"));
    check("labels file", StageOptions { labels_file, ..options.clone() }, ErrorKind::Config, &["expected 1 labels", "got 3"]);
    let labels_file = Some(scratch.file("labels.bin", [0xff, 0xfe, 0]));
    check("no text", StageOptions { labels_file, ..options }, ErrorKind::Io, &["cannot read labels file", "UTF-8", "one label per line"]);
}

#[test]
fn unsupported_inputs_and_outputs_are_errors() {
    let scratch = Scratch::new("several-ports");
    let mut failures = Failures::default();
    let description = Some(scratch.file("add.toml", CLASSIFIER));
    let options = StageOptions { model: tiny("add.onnx"), description, ..StageOptions::default() };
    failures.check("two inputs", Stage::classifier(&options), ErrorKind::Config, &["one image input", "add.onnx", "has 2"]);
    let Some(model) = real("models/vehicle-attributes-recognition-barrier-0039.onnx") else { return };
    let description = Some(scratch.file("vehicle.toml", CLASSIFIER.replace("labels = [\"red\", \"green\", \"blue\", \"other\"]", "")));
    let options = StageOptions { model, description, ..StageOptions::default() };
    failures.check("two outputs", Stage::classifier(&options), ErrorKind::Config, &["has 2 outputs", "`tensor`", "`color`", "`type`"]);
}

/// The built-in engine reads the model, and the device NULL runs it. All outputs are zero, so there are no detections.
#[test]
fn detector_on_the_null_device_finds_nothing() {
    let options = StageOptions { model: tiny("stripes.onnx"), device: Some("NULL".to_owned()), ..StageOptions::default() };
    let detector = Stage::detector(&options).unwrap();
    let frame = roiflow::frame::Frame::from_packed(roiflow::frame::PixelFormat::Gray8, roiflow::frame::Size::new(8, 8), &[255; 64]);
    assert_eq!(detector.detect(&frame.unwrap()).unwrap(), []);
}
