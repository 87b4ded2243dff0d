//! Decoders in complete inference stages: models with several heads, numbers and embeddings, and decoders that an application registers.

use std::sync::mpsc;

use roiflow::frame::{Frame, Geometry, ObjectId, Outcome, PixelFormat, PixelRect, Point, Rect, Size};
use roiflow::runtime::ErrorKind;
use roiflow::stages::{Engine, Region, RunGuard, Stage, StageOptions, StageResults};
use roiflow::tensor::Result;
use roiflow::vision::decode::{BoxDecoder, BoxScheme, Decoder, DecoderRegistry, Output, RawAttribute, RawDetection, Results, Subject};

use crate::support::{Scratch, receive, tiny};

/// Returns a black image with a red square in the center.
fn red_square() -> Frame {
    let pixels: Vec<u8> = (0..64 * 64)
        .flat_map(|n| if (16..48).contains(&(n / 64)) && (16..48).contains(&(n % 64)) { [255, 0, 0] } else { [0; 3] })
        .collect();
    Frame::from_packed(PixelFormat::Rgb, Size::new(64, 64), &pixels).unwrap()
}

fn options(scratch: &Scratch, model: &str, output: &str) -> StageOptions {
    let (task, layout) = if model == "rectangle.onnx" { ("detection", "nhwc") } else { ("classification", "nchw") };
    let text = format!("version = 1\ntask = \"{task}\"\nname = \"own\"\n[input]\nlayout = \"{layout}\"\n[output]\n{output}\n");
    let description = Some(scratch.file("description.toml", text));
    StageOptions { model: tiny(model), description, device: Some("CPU".to_owned()), ..StageOptions::default() }
}

fn refusal(scratch: &Scratch, model: &str, output: &str) -> String {
    let options = options(scratch, model, output);
    let error = if model == "rectangle.onnx" { Stage::detector(&options).err() } else { Stage::classifier(&options).err() };
    let error = error.unwrap_or_else(|| panic!("not refused: {output}"));
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    error.to_string()
}

/// Returns the classifications of a red image by the tiny color model.
fn classified(scratch: &Scratch, output: &str) -> Vec<(String, Outcome)> {
    let red = Frame::from_packed(PixelFormat::Rgb, Size::new(8, 8), &[255, 0, 0].repeat(64)).unwrap();
    let classifier = Stage::classifier(&options(scratch, "color.onnx", output)).unwrap();
    classifier.classify(&red).unwrap().into_iter().map(|results| (results.name.to_string(), results.outcome)).collect()
}

#[test]
fn every_head_gives_an_attribute() {
    let scratch = Scratch::new("heads");
    let heads = r#"
        [[output.heads]]
        name = "best"
        decoder = "classes"
        labels = ["red", "green", "blue", "other"]
        [[output.heads]]
        name = "any"
        decoder = "multi-label"
        activation = "none"
        threshold = 0.9
        labels = ["red", "green", "blue", "other"]
        [[output.heads]]
        name = "unsure"
        decoder = "classes"
        threshold = 1.0
        activation = "softmax"
        [[output.heads]]
        name = "vector"
        decoder = "embedding"
    "#;
    let results = classified(&scratch, heads);
    let names: Vec<&str> = results.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["best", "any", "vector"], "a head whose score is below its threshold has no result");
    assert!(matches!(&results[0].1, Outcome::Label { label: Some(label), .. } if **label == *"red"), "{results:?}");
    let Outcome::Labels(labels) = &results[1].1 else { panic!("{results:?}") };
    assert!(labels.len() == 1 && labels[0].label.as_deref() == Some("red") && labels[0].confidence > 0.9, "{labels:?}");
    let Outcome::Tensor { shape, data } = &results[2].1 else { panic!("{results:?}") };
    let length: f32 = data.iter().map(|value| value * value).sum::<f32>().sqrt();
    assert!(shape[..] == [1, 4] && (length - 1.0).abs() < 1e-6, "{shape:?} {data:?}");
}

#[test]
fn custom_decoder_returns_raw_outputs() {
    let scratch = Scratch::new("custom");
    let results = classified(&scratch, "decoder = \"custom\"");
    let [(name, Outcome::Tensor { shape, data })] = &results[..] else { panic!("{results:?}") };
    assert_eq!((name.as_str(), &shape[..], data.len()), ("own", &[1, 4][..], 4));
    assert!(data[0] > 0.9 && (data.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{data:?}");
}

/// With `task = "detection"`, raw outputs belong to the whole frame or to a region of the frame.
#[test]
fn custom_detector_returns_raw_outputs_and_no_boxes() {
    let scratch = Scratch::new("raw");
    let detector = Stage::detector(&options(&scratch, "rectangle.onnx", "decoder = \"custom\"")).unwrap();
    assert_eq!(detector.detect(&red_square()).unwrap(), []);
    let expected = Outcome::Tensor { shape: vec![1, 1, 6], data: [0.0, 1.0, 0.25, 0.25, 0.75, 0.75].into() };
    let (sender, receiver) = mpsc::channel();
    let first_sender = sender.clone();
    detector
        .submit(red_square(), 0, RunGuard::now(), move |found| first_sender.send(found.into_result().unwrap().classifications).unwrap());
    let results = receive(&receiver);
    assert_eq!((&*results[0].name, &*results[0].model, &results[0].outcome), ("own", "rectangle", &expected));
    let whole = [(ObjectId(7), PixelRect::whole(Size::new(64, 64)))];
    let done = move |found: StageResults| {
        let [(ObjectId(7), results)] = &found.of_regions[..] else { panic!("{found:?}") };
        sender.send(vec![results.clone()]).unwrap();
    };
    detector.submit_regions(red_square(), 1, whole, RunGuard::now(), done);
    assert_eq!(receive(&receiver)[0].outcome, expected);
}

#[test]
fn decoder_may_be_omitted_only_if_unique() {
    let scratch = Scratch::new("deduced");
    let message = refusal(&scratch, "rectangle.onnx", "");
    assert!(message.contains("several decoders match") && message.contains("yolov5, yolov10, ultraface"), "{message}");
    let message = refusal(&scratch, "color.onnx", "");
    assert!(message.contains("expected one of classes, multi-label"), "{message}");
}

#[test]
fn conflicting_keys_are_errors() {
    let scratch = Scratch::new("foreign-keys");
    for (model, output, parts) in [
        (
            "rectangle.onnx",
            "decoder = \"yolov10\"\nnms = \"linear\"",
            ["line 8: `nms` is not a key of decoder `yolov10`", "expected one of `decoder`, "],
        ),
        (
            "rectangle.onnx",
            "decoder = \"ultraface\"\nbackground = 0",
            ["`background` is not a key of decoder `ultraface`", "(decoders with `background`: boxes-scores, detr)"],
        ),
        ("rectangle.onnx", "decoder = \"ultraface\"\ntensors = { box = \"boxes\" }", ["(none)", "got `box`"]),
        ("rectangle.onnx", "decoder = \"ultraface\"\ntensors = { box = \"rows\" }", ["got `rows`", "`boxes`"]),
        ("rectangle.onnx", "decoder = \"ultraface\"\nnms-sigma = 0.1", ["`nms-sigma`", "`nms = \"gaussian\"`"]),
        ("rectangle.onnx", "decoder = \"ultraface\"\nnms = \"gaussian\"\nnms-sigma = 0.0", ["larger than 0", "got 0"]),
        (
            "rectangle.onnx",
            "decoder = \"ultraface\"\nnormalize = true",
            ["`normalize` is not a key of", "decoders with `normalize`: embedding"],
        ),
        ("rectangle.onnx", "decoder = \"yolov3\"", ["unknown decoder `yolov3`", "did you mean `yolov5`"]),
        (
            "rectangle.onnx",
            "decoder = \"custom\"\nthreshold = 0.5",
            ["`threshold` is not a key of decoder `custom`", "expected one of `decoder`, `tensor`"],
        ),
        ("rectangle.onnx", "decoder = \"ssd\"", ["[1, 1, N, 7]", "[1, 1, 6]"]),
        ("color.onnx", "decoder = \"regression\"", ["one number", "[?, 4]"]),
        ("color.onnx", "decoder = \"regression\"\nscale = inf", ["finite numbers", "inf"]),
        ("color.onnx", "decoder = \"embedding\"\nscale = 2.0", ["`scale` is not a key of decoder `embedding`", "regression"]),
        ("color.onnx", "threshold = 0.5\n[[output.heads]]\nname = \"a\"\ndecoder = \"classes\"", ["`heads` and `threshold`", "each"]),
        ("color.onnx", "[[output.heads]]\ndecoder = \"classes\"", ["expected a `name`", "JSON"]),
        (
            "color.onnx",
            "[[output.heads]]\nname = \"a\"\ndecoder = \"classes\"\n[[output.heads]]\nname = \"a\"\ndecoder = \"classes\"",
            ["unique names", "`a` twice"],
        ),
    ] {
        let message = refusal(&scratch, model, output);
        assert!(parts.iter().all(|part| message.contains(part)), "{output}: {message}");
    }
}

/// A decoder of boxes that reads one box per row.
#[derive(Debug, serde::Deserialize)]
struct Middle {
    /// The class index of all boxes.
    class: u32,
}

impl BoxScheme for Middle {
    fn check(&self, _outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        Ok(2)
    }

    /// Returns valid boxes, boxes outside the input, invalid boxes, and scores above 1.
    fn candidates(&self, outputs: &[Output<'_>], _input: Size, _score_min: f32, results: &mut Results) -> Result<()> {
        assert_eq!(outputs[0].shape, [1, 1, 6]);
        let mut found = |x: f32, width: f32, score: f32, row: u32| {
            results.boxes.push(RawDetection { rect: Rect { x, y: 8.0, width, height: 8.0 }, score, class_id: self.class, row });
            results.add_keypoints(row, [Point { x, y: if row == 4 { f32::INFINITY } else { 1.0 } }]);
        };
        found(8.0, 16.0, 7.0, 0);
        found(900.0, 16.0, 0.9, 1);
        found(8.0, f32::NAN, 0.9, 2);
        found(8.0, 8.0, f32::NAN, 3);
        found(40.0, 8.0, 0.75, 4);
        found(40.0, 8.0, 0.25, 5);
        Ok(())
    }
}

/// Options of a decoder that returns one number for the image and one for each object.
#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Fixed {
    the_number: f32,
}

impl Decoder for Fixed {
    fn check(&self, _outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        Ok(0)
    }

    fn decode(&self, _outputs: &[Output<'_>], _input: Size, results: &mut Results) -> Result<()> {
        results.boxes.push(RawDetection { rect: Rect { x: 8.0, y: 8.0, width: 8.0, height: 8.0 }, score: 0.5, class_id: 0, row: 0 });
        let outcome = Outcome::Value(-self.the_number);
        results.attributes.push(RawAttribute { of: Some(0), name: Some("depth".into()), outcome });
        results.say(Outcome::Value(self.the_number));
        Ok(())
    }
}

#[test]
fn registered_decoders_are_used_and_checked() {
    let scratch = Scratch::new("registered");
    let mut decoders = DecoderRegistry::default();
    decoders.register("middle", Subject::Objects, |section| BoxDecoder::new(section.read::<Middle>()?, section));
    decoders.register("fixed", Subject::Anything, |section| section.read::<Fixed>());
    let engine = Engine::new(roiflow::devices::core().clone());
    engine.set_decoders(decoders);
    let options = |model: &str, output: &str| StageOptions { engine: engine.clone(), ..options(&scratch, model, output) };
    let detector = |output: &str| Stage::detector(&options("rectangle.onnx", output));
    let middle = detector("decoder = \"middle\"\nclass = 1\nlabels = [\"one\", \"other\"]").unwrap();
    assert_eq!(&*middle.spec().heads[0].decoder_name, "middle");
    let found = middle.detect(&red_square()).unwrap();
    let found: Vec<_> = found.iter().map(|found| (found.rect.x, found.confidence, found.label.as_deref(), &found.keypoints[..])).collect();
    assert_eq!(found, [(8.0, 1.0, Some("other"), &[Point { x: 8.0, y: 1.0 }][..]), (40.0, 0.75, Some("other"), &[])]);

    let fixed = detector("decoder = \"fixed\"\nthe-number = 7").unwrap().detect(&red_square()).unwrap();
    let results: Vec<_> = fixed.iter().flat_map(|found| &found.classifications).map(|results| (&*results.name, &results.outcome)).collect();
    assert_eq!(results, [("depth", &Outcome::Value(-7.0))]);
    let classifier = Stage::classifier(&options("color.onnx", "decoder = \"fixed\"\nthe-number = 7")).unwrap();
    let results = classifier.classify(&red_square()).unwrap();
    assert_eq!((results.len(), &*results[0].name, &results[0].outcome), (1, "own", &Outcome::Value(7.0)));

    for (output, parts) in [
        ("decoder = \"middel\"", ["unknown decoder `middel` for detection", "did you mean `middle`?"]),
        ("decoder = \"middle\"", ["line 6", "missing field `class`"]),
        ("decoder = \"middle\"\nclass = \"a\"", ["line 8, column 9", "expected u32"]),
        ("decoder = \"middle\"\nclass = 1\nthe-number = 7", ["line 9: `the-number` is not a key of decoder `middle`", "fixed"]),
        ("decoder = \"fixed\"\nthe-number = 7\nthreshold = 0.5", ["`threshold` is not a key of decoder `fixed`", "`the-number`"]),
        ("decoder = \"fixed\"\nthe-number = 7\nlables = []", ["unknown field `lables`", "did you mean `labels`?"]),
    ] {
        let message = detector(output).unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{output}: {message}");
    }
    let message = refusal(&scratch, "rectangle.onnx", "decoder = \"middle\"\nclass = 1");
    assert!(message.contains("unknown decoder `middle`"), "the decoder is registered in one engine only: {message}");
}

/// A decoder that returns one point in the input, for the whole image and for an object.
#[derive(Debug, serde::Deserialize)]
struct Pin {
    x: f32,
    y: f32,
}

impl Decoder for Pin {
    fn check(&self, _outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        Ok(0)
    }

    fn decode(&self, _outputs: &[Output<'_>], _input: Size, results: &mut Results) -> Result<()> {
        let pin = |of| RawAttribute { of, name: None, outcome: outline(Point { x: self.x, y: self.y }) };
        results.attributes.extend([pin(None), pin(Some(0)), pin(Some(9))]);
        results.boxes.push(RawDetection { rect: Rect { x: 0.0, y: 0.0, width: 8.0, height: 8.0 }, score: 0.5, class_id: 0, row: 0 });
        Ok(())
    }
}

fn outline(point: Point) -> Outcome {
    Outcome::Geometry(Geometry::Polygons(vec![vec![point]]))
}

#[test]
fn geometry_of_registered_decoders_is_mapped_to_the_frame() {
    let scratch = Scratch::new("geometry");
    let mut decoders = DecoderRegistry::default();
    decoders.register("pin", Subject::Anything, |section| section.read::<Pin>());
    let engine = Engine::new(roiflow::devices::core().clone());
    engine.set_decoders(decoders);
    let options = |model: &str, output: &str| StageOptions { engine: engine.clone(), ..options(&scratch, model, output) };
    let black = |width: u32, height: u32| {
        Frame::from_packed(PixelFormat::Gray8, Size::new(width, height), &vec![0; (width * height) as usize]).unwrap()
    };
    // The frame has twice the width and four times the height of the input. The second case is a region that starts at (16, 8).
    let detector = Stage::detector(&options("rectangle.onnx", "decoder = \"pin\"\nx = 4\ny = 2")).unwrap();
    let Size { width, height } = detector.spec().input_size;
    let (frame, expected) = (black(2 * width, 4 * height), outline(Point { x: 8.0, y: 8.0 }));
    let (sender, receiver) = mpsc::channel();
    let first_sender = sender.clone();
    detector.submit(frame.clone(), 0, RunGuard::now(), move |found| first_sender.send(found.into_result().unwrap()).unwrap());
    let found = receive(&receiver);
    assert_eq!((found.classifications.len(), &found.classifications[0].outcome), (1, &expected));
    assert_eq!((found.detections.len(), &found.detections[0].classifications[0].outcome), (1, &expected));
    let (sender, receiver) = mpsc::channel();
    let region = PixelRect { x: 16, y: 8, width, height };
    let done = move |found: StageResults| sender.send(found).unwrap();
    detector.submit_regions(frame, 1, [(ObjectId(7), region)], RunGuard::now(), done);
    let (found, expected) = (receive(&receiver), outline(Point { x: 20.0, y: 10.0 }));
    assert_eq!((&found.of_regions[0].1.outcome, &found.detections[0].classifications[0].outcome), (&expected, &expected));

    let classifier = Stage::classifier(&options("color.onnx", "decoder = \"pin\"\nx = 4\ny = 2")).unwrap();
    let region = (ObjectId(7), PixelRect { x: 16, y: 8, width: 16, height: 8 });
    let (sender, receiver) = mpsc::channel();
    let done = move |classified: StageResults| sender.send(classified.of_regions).unwrap();
    classifier.submit_regions(black(64, 64), 0, [region], RunGuard::now(), done);
    let [(ObjectId(7), results)] = &receive(&receiver)[..] else { panic!("one region") };
    assert_eq!(results.outcome, outline(Point { x: 24.0, y: 10.0 }), "an input of 8x8 is half as wide as the region");

    // With alignment, the corners of the input correspond to (40, 45) and (56, 61) in the frame.
    let aligned = options("color.onnx", "decoder = \"pin\"\nx = 4.5\ny = 2.5");
    let description = aligned.description.as_ref().unwrap();
    let text = std::fs::read_to_string(description).unwrap().replace("[input]", "[input]\nalign = [[0.0, 0.0], [1.0, 1.0]]");
    std::fs::write(description, text).unwrap();
    let keypoints = [40.0, 56.0].map(|x| Point { x, y: x + 5.0 }).to_vec();
    let region = Region { id: ObjectId(7), rect: Rect { x: 0.0, y: 0.0, width: 64.0, height: 64.0 }, keypoints, rotated: None };
    let (sender, receiver) = mpsc::channel();
    let done = move |classified: StageResults| sender.send(classified.of_regions).unwrap();
    // The stage must exist until the result arrives, because dropping a stage discards waiting frames.
    let classifier = Stage::classifier(&aligned).unwrap();
    classifier.submit_regions(black(64, 64), 0, [region], RunGuard::now(), done);
    let classified = receive(&receiver);
    let [(_, results)] = &classified[..] else { panic!("one region: {classified:?}") };
    let Outcome::Geometry(Geometry::Polygons(polygons)) = &results.outcome else { panic!("{results:?}") };
    let Point { x, y } = polygons[0][0];
    assert!((x - 48.5).abs() < 1e-3 && (y - 49.5).abs() < 1e-3, "{x}, {y}");
}
