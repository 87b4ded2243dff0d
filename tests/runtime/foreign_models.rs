//! Models that other programs exported: element types of outputs, formats of lists of boxes, and layouts.

use roiflow::frame::{Detection, Frame, Outcome, PixelFormat, Rect, Size};
use roiflow::stages::{Result, Stage, StageOptions};
use roiflow::tensor::ElementType;

use crate::onnx::{OnnxOutput, columns_model, constant_model, floats};
use crate::support::{Scratch, is_here};

const DEVICES: [&str; 3] = ["CPU", "ORT.CPU", "OPENVINO.CPU"];

fn frame(width: u32, height: u32) -> Frame {
    Frame::from_packed(PixelFormat::Rgb, Size::new(width, height), &vec![90; (width * height * 3) as usize]).unwrap()
}

/// Returns the options of a stage for a model with these outputs. Its input is an image of 64x64 pixels.
fn options(scratch: &Scratch, outputs: &[OnnxOutput<'_>], description: &str) -> StageOptions {
    let model = scratch.file("model.onnx", constant_model(&[1, 3, 64, 64], outputs));
    let description_text = (!description.is_empty()).then(|| format!("version = 1\n{description}"));
    StageOptions { model, description_text, device: Some("CPU".to_owned()), ..StageOptions::default() }
}

fn detected(options: &StageOptions) -> Result<Vec<(Rect, f32, u32)>> {
    let found = Stage::detector(options)?.detect(&frame(64, 64))?;
    Ok(found.iter().map(|Detection { rect, confidence, label_id, .. }| (*rect, *confidence, *label_id)).collect())
}

/// Half-precision exports have outputs of 16 bits. The values in this test are exact in all types.
#[test]
fn outputs_of_any_numeric_type_are_decoded() {
    let scratch = Scratch::new("output-types");
    let list = |element| OnnxOutput { element, ..floats("y", &[1, 2, 6], [8.0, 16.0, 40.0, 48.0, 1.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]) };
    let scores = |element| OnnxOutput { element, ..floats("y", &[1, 3], [0.0, 1.0, 0.0]) };
    let boxes = "task = \"detection\"\n[output]\ndecoder = \"yolov10\"";
    let classes = "task = \"classification\"\n[output]\ndecoder = \"classes\"\nactivation = \"none\"";
    use ElementType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    let mut decoded = Vec::new();
    for device in DEVICES.into_iter().filter(|device| is_here(device)) {
        for element in [F16, Bf16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, Bool] {
            let on_device =
                |outputs: OnnxOutput<'_>, text| StageOptions { device: Some(device.to_owned()), ..options(&scratch, &[outputs], text) };
            let is_bool = element == Bool;
            if !is_bool {
                match detected(&on_device(list(element), boxes)) {
                    Ok(found) => assert_eq!(found, [(Rect::from_corners(8.0, 16.0, 40.0, 48.0), 1.0, 3)], "{device}, {element}"),
                    // An engine may lack an operator for a type.
                    Err(error) => {
                        assert!(
                            ![F16, F32, F64, I32, I64].contains(&element) && error.to_string().contains("device"),
                            "{device}, {element}: {error}"
                        );
                        continue;
                    }
                }
            }
            let classifier = match Stage::classifier(&on_device(scores(element), classes)) {
                Ok(classifier) => classifier,
                Err(_) if is_bool => continue,
                Err(error) => panic!("{device}, {element}: {error}"),
            };
            let found = classifier.classify(&frame(64, 64)).unwrap_or_else(|error| panic!("{device}, {element}: {error}"));
            assert!(matches!(found[0].outcome, Outcome::Label { confidence: 1.0, label_id: 1, .. }), "{device}, {element}: {found:?}");
            decoded.push((device, element));
        }
    }
    assert!([F16, Bf16].iter().all(|half| decoded.iter().any(|(_, element)| element == half)), "{decoded:?}");
}

fn warning_of(options: &StageOptions, n_frames: usize) -> Option<String> {
    let detector = Stage::detector(options).unwrap_or_else(|error| panic!("{error}"));
    (0..n_frames).for_each(|_| drop(detector.detect(&frame(64, 64)).unwrap()));
    detector.take_warning()
}

/// The formats of the exports with NMS that have no common decoder elsewhere. The car is at 10..20, 20..40 of 64x64 pixels.
#[test]
fn final_boxes_of_each_exporter_are_decoded() {
    let scratch = Scratch::new("final-boxes");
    let car = (Rect::from_corners(10.0, 20.0, 20.0, 40.0), 0.9, 2);
    let bus = (Rect::from_corners(30.0, 25.0, 40.0, 30.0), 0.6, 0);
    let places = [10.0, 20.0, 20.0, 40.0, 30.0, 25.0, 40.0, 30.0];
    let integers = |output: OnnxOutput<'static>, element| OnnxOutput { element, ..output };
    let exports: [(&str, Vec<OnnxOutput<'static>>); 5] = [
        ("YOLOv7", vec![floats("output", &[2, 7], [0.0, 10.0, 20.0, 20.0, 40.0, 2.0, 0.9, 0.0, 30.0, 25.0, 40.0, 30.0, 0.0, 0.6])]),
        (
            "YOLO-NAS",
            vec![floats(
                "graph2_flat_predictions",
                &[2, 7],
                [0.0, 10.0, 20.0, 20.0, 40.0, 0.9, 2.0, 0.0, 30.0, 25.0, 40.0, 30.0, 0.6, 0.0],
            )],
        ),
        ("YOLOX", vec![floats("output", &[2, 7], [10.0, 20.0, 20.0, 40.0, 1.0, 0.9, 2.0, 30.0, 25.0, 40.0, 30.0, 1.0, 0.6, 0.0])]),
        (
            "torchvision",
            vec![
                floats("boxes", &[2, 4], places),
                integers(floats("labels", &[2], [2.0, 0.0]), ElementType::I64),
                floats("scores", &[2], [0.9, 0.6]),
            ],
        ),
        (
            "EfficientNMS",
            vec![
                integers(floats("num_dets", &[1, 1], [2.0]), ElementType::I32),
                floats("det_boxes", &[1, 2, 4], places),
                floats("det_scores", &[1, 2], [0.9, 0.6]),
                integers(floats("det_classes", &[1, 2], [2.0, 0.0]), ElementType::I32),
            ],
        ),
    ];
    for (name, outputs) in &exports {
        for decoder in ["", "decoder = \"final-boxes\""] {
            let text = format!("task = \"detection\"\n[output]\nthreshold = 0.3\n{decoder}");
            let found = detected(&options(&scratch, outputs, &text)).unwrap_or_else(|error| panic!("{name}, {decoder}: {error}"));
            assert_eq!(found, [car, bus], "{name}, {decoder}");
        }
    }
    assert_eq!(detected(&options(&scratch, &exports[4].1, "")).unwrap(), [car, bus], "the names show the preprocessing");
}

#[test]
fn run_that_finds_nothing_names_the_decoder_of_the_outputs() {
    let scratch = Scratch::new("nothing-found");
    // A grid of YOLOX with one class, before decoding: 84 cells of 64x64 pixels. The decoder of another grid finds nothing in it.
    let mut rows = vec![0.0; 84 * 6];
    rows.chunks_mut(6).for_each(|row| row.copy_from_slice(&[0.1, 0.1, 1.2, 1.2, 0.001, 0.9]));
    rows[6 * 70 + 4] = 0.95;
    let outputs = [floats("output", &[1, 84, 6], rows.clone())];
    let described =
        |decoder: &str| options(&scratch, &outputs, &format!("task = \"detection\"\n[output]\nthreshold = 0.5\ndecoder = \"{decoder}\""));
    let warning = warning_of(&described("yolov10"), 1).unwrap();
    assert!(warning.contains("84 of 84 class numbers are not whole numbers"), "{warning}");
    assert!(warning.contains("Decoder `yolox` finds objects in these outputs"), "{warning}");
    assert_eq!(warning_of(&described("yolox"), 3), None);
    // As rows of `ultraface`, the second column is the score, and the last four are corners.
    rows.chunks_mut(6).for_each(|row| row[1..4].copy_from_slice(&[0.01, 0.0005, 0.0005]));
    let outputs = [floats("output", &[1, 84, 6], rows)];
    let text = "task = \"detection\"\n[output]\nthreshold = 0.5\ndecoder = \"ultraface\"";
    assert_eq!(warning_of(&options(&scratch, &outputs, text), 2), None, "too few images");
    let warning = warning_of(&options(&scratch, &outputs, text), 3).unwrap();
    assert!(warning.contains("found nothing in the first 3 images with decoder `ultraface`"), "{warning}");
    assert!(warning.contains("set `decoder = \"yolox\"`") && warning.contains("--decoder yolox"), "{warning}");
}

#[test]
fn more_objects_than_the_limit_are_reported_once() {
    let scratch = Scratch::new("cut");
    let rows: Vec<f32> = (0..400).flat_map(|n| [n as f32 / 8.0, 1.0, n as f32 / 8.0 + 0.5 + (n % 7) as f32, 9.0, 0.9, n as f32]).collect();
    let outputs = [floats("output", &[1, 400, 6], rows)];
    let described = |keys: &str| {
        options(&scratch, &outputs, &format!("task = \"detection\"\n[output]\nthreshold = 0.5\ndecoder = \"yolov10\"\n{keys}"))
    };
    let detector = Stage::detector(&described("")).unwrap();
    assert_eq!(detector.detect(&frame(64, 64)).unwrap().len(), 300);
    let warning = detector.take_warning().unwrap();
    assert!(warning.contains("more than 300 objects") && warning.contains("`max-boxes`"), "{warning}");
    detector.detect(&frame(64, 64)).unwrap();
    assert_eq!(detector.take_warning(), None);
    assert_eq!(warning_of(&described("max-boxes = 300"), 2), None, "the limit is intended");
    assert_eq!(detected(&described("max-boxes = 1000")).unwrap().len(), 400);
}

/// The metadata promise final boxes, but the rows are not suppressed.
#[test]
fn repeated_boxes_of_a_list_are_a_warning() {
    let scratch = Scratch::new("repeated");
    let rows: Vec<f32> = (0..40).flat_map(|n| [8.0 + 0.01 * n as f32, 8.0, 40.0, 40.0, 0.9 - 0.01 * n as f32, 2.0]).collect();
    let described = options(&scratch, &[floats("output0", &[1, 40, 6], rows)], "task = \"detection\"\n[output]\ndecoder = \"yolov10\"");
    let warning = warning_of(&described, 1).unwrap();
    assert!(warning.contains("39 of 40 boxes nearly equal") && warning.contains("NMS"), "{warning}");
}

/// Each batch item is a frame. The items that are not used are padding.
#[test]
fn model_with_fixed_batch_size_runs_padded() {
    let scratch = Scratch::new("fixed-batch");
    let places = [8.0, 16.0, 40.0, 48.0, 0.9, 3.0];
    let rows: Vec<f32> = (0..4).flat_map(|image| places.map(|value| value + if image == 0 { 0.0 } else { 100.0 })).collect();
    let outputs = [floats("y", &[4, 1, 6], rows)];
    let model = scratch.file("batch.onnx", constant_model(&[4, 3, 64, 64], &outputs));
    let text = "version = 1\ntask = \"detection\"\n[output]\nthreshold = 0.5\ndecoder = \"yolov10\"";
    for device in DEVICES.into_iter().filter(|device| is_here(device)) {
        let options = StageOptions {
            model: model.clone(),
            description_text: Some(text.to_owned()),
            device: Some(device.to_owned()),
            ..StageOptions::default()
        };
        let detector = Stage::detector(&options).unwrap_or_else(|error| panic!("{device}: {error}"));
        let found = detector.detect(&frame(64, 64)).unwrap_or_else(|error| panic!("{device}: {error}"));
        assert_eq!(found.iter().map(|found| found.rect).collect::<Vec<_>>(), [Rect::from_corners(8.0, 16.0, 40.0, 48.0)], "{device}");
        let warning = detector.take_warning().unwrap();
        assert!(warning.contains("fixed batch size of 4") && warning.contains("batch-size=4"), "{warning}");
        assert_eq!(warning_of(&StageOptions { batch_size: Some(4), ..options }, 1), None);
    }
}

/// The table has no batch axis, but the rows of all images. Without a column that tells the image, padding would become objects.
#[test]
fn rows_of_all_images_need_a_column_with_the_image() {
    let scratch = Scratch::new("rows-of-images");
    let place = [8.0, 16.0, 40.0, 48.0];
    let rows: Vec<f32> = (0..2).flat_map(|image| [&[image as f32][..], &place, &[3.0, 0.9]].concat()).collect();
    let text = "version = 1\ntask = \"detection\"\n[output]\nthreshold = 0.5\ndecoder = \"final-boxes\"";
    let detector = |name: &str, output: OnnxOutput<'_>| {
        let options = StageOptions {
            model: scratch.file(name, constant_model(&[4, 3, 64, 64], &[output])),
            description_text: Some(text.to_owned()),
            device: Some("CPU".to_owned()),
            ..StageOptions::default()
        };
        Stage::detector(&options).and_then(|detector| detector.detect(&frame(64, 64)))
    };
    let found = detector("image.onnx", floats("y", &[2, 7], rows)).unwrap();
    assert_eq!(found.iter().map(|found| found.rect).collect::<Vec<_>>(), [Rect::from_corners(8.0, 16.0, 40.0, 48.0)]);
    let rows: Vec<f32> = (0..2).flat_map(|_| [&place[..], &[0.9, 3.0]].concat()).collect();
    let error = detector("none.onnx", floats("y", &[2, 6], rows)).unwrap_err().to_string();
    assert!(error.contains("expected 4 batch items"), "{error}");
}

/// The region of 32x16 pixels is in rows 16 to 48 of the input. The rest of the input is border.
#[test]
fn object_in_the_border_of_its_region_is_dropped() {
    use roiflow::frame::{ObjectId, PixelRect};
    use roiflow::stages::RunGuard;
    let scratch = Scratch::new("border");
    let rows = [8.0, 2.0, 40.0, 10.0, 0.9, 0.0, 8.0, 20.0, 40.0, 30.0, 0.8, 1.0, 8.0, 50.0, 40.0, 60.0, 0.7, 0.0];
    let text = "task = \"detection\"\n[input]\nresize = \"letterbox\"\n[output]\ndecoder = \"yolov10\"";
    let detector = Stage::detector(&options(&scratch, &[floats("y", &[1, 3, 6], rows)], text)).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let region = (ObjectId(1), PixelRect { x: 16, y: 16, width: 32, height: 16 });
    detector.submit_regions(frame(64, 64), 0, [region], RunGuard::now(), move |found| sender.send(found).unwrap());
    let found = crate::support::receive(&receiver).into_result().unwrap().detections;
    assert_eq!(found.iter().map(|found| found.rect).collect::<Vec<_>>(), [Rect::from_corners(20.0, 18.0, 36.0, 23.0)]);
}

/// A region has the first width into which it fits. The outputs of each width are decoded for that width.
#[test]
fn wide_regions_run_with_a_wider_input() {
    use roiflow::frame::{ObjectId, PixelRect};
    use roiflow::stages::RunGuard;
    let scratch = Scratch::new("widths");
    let text = r#"
        version = 1
        task = "classification"
        [input]
        resize = "letterbox-top-left"
        size = [64, 32]
        widths = [128, 256]
        [output]
        decoder = "custom"
    "#;
    let options = StageOptions {
        model: scratch.file("columns.onnx", columns_model(32)),
        description_text: Some(text.to_owned()),
        device: Some("CPU".to_owned()),
        ..StageOptions::default()
    };
    let classifier = Stage::classifier(&options).unwrap_or_else(|error| panic!("{error}"));
    let (sender, receiver) = std::sync::mpsc::channel();
    let region = |id: i32, width: u32, height: u32| (ObjectId(id), PixelRect { x: 0, y: 0, width, height });
    let regions = [region(1, 20, 10), region(2, 40, 10), region(3, 70, 10), region(4, 64, 4), region(5, 10, 60)];
    classifier.submit_regions(frame(100, 60), 0, regions, RunGuard::now(), move |found| sender.send(found).unwrap());
    let mut widths: Vec<(i32, usize)> = Vec::new();
    for (ObjectId(id), found) in crate::support::receive(&receiver).into_result().unwrap().of_regions {
        let Outcome::Tensor { shape, .. } = found.outcome else { panic!("{found:?}") };
        widths.push((id, shape[1]));
    }
    widths.sort_unstable();
    assert_eq!(widths, [(1, 64), (2, 128), (3, 256), (4, 256), (5, 64)]);
    assert_eq!(classifier.stats().n_items, 5);
    for (keys, part) in [("widths = [128, 64]", "ascending order"), ("widths = [0]", "1 to 16384")] {
        let description_text = Some(text.replace("widths = [128, 256]", keys));
        let error = Stage::classifier(&StageOptions { description_text, ..options.clone() }).err().unwrap().to_string();
        assert!(error.contains("`widths`") && error.contains(part), "{error}");
    }
}
