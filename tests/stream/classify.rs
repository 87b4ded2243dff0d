//! `roiclassify` classifies each region and attaches the result to its object.

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video::VideoRegionOfInterestMeta as RoiMeta;
use roiflow::frame::{Detection, InferenceStatus, ObjectId, Outcome, PixelFormat, PixelRect, Point, Rect, Size};

use roiflow::vision::decode::{Decoder, DecoderRegistry, Output, RawAttribute, Results, Subject};
use roiflow::{elements, stages};

use crate::harness::{
    Arrived, Folder, attach, caps, classify, collect, detect, feed, labels, on_buffers, picture, pipeline, results, run, tiny,
};

const SIZE: Size = Size::new(64, 48);
const COLORS: [(&str, [u8; 3]); 3] = [("red", [255, 0, 0]), ("green", [0, 255, 0]), ("blue", [0, 0, 255])];

/// Returns an image of vertical bars in red, green, blue and black, each 16 pixels wide.
fn bars() -> gst::Buffer {
    let row = (0..SIZE.width as usize).flat_map(|x| COLORS.get(x / 16).map_or([0; 3], |(_, color)| *color));
    let row: Vec<u8> = row.collect();
    gst::Buffer::from_mut_slice(row.repeat(SIZE.height as usize))
}

fn object(id: i32, label: &str, rect: Rect) -> Detection {
    let label = Some(label.into());
    Detection {
        id: ObjectId(id),
        track: None,
        track_state: None,
        parent: None,
        rect,
        keypoints: vec![],
        confidence: 0.5,
        label_id: 0,
        label,
        classifications: vec![],
    }
}

fn bar(id: i32, bar: usize, label: &str) -> Detection {
    object(id, label, Rect { x: bar as f32 * 16.0, y: 8.0, width: 16.0, height: 32.0 })
}

/// Runs frames of bars with these objects through `middle`.
fn through(format: PixelFormat, middle: &str, n_frames: u64, objects: fn(u64) -> Vec<Detection>) -> Vec<Arrived> {
    let line =
        format!("appsrc name=source ! videoconvert ! video/x-raw,format={format} ! identity name=attach ! {middle} ! fakesink name=sink");
    let pipeline = pipeline(&line);
    attach(&pipeline, move |n| results(SIZE, n, objects(n)));
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), (0..n_frames).map(|_| bars()));
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings), (None, vec![]), "{format}: {middle}");
    std::mem::take(&mut *arrived.lock().unwrap())
}

#[test]
fn each_region_gets_its_own_color_in_every_format() {
    for format in PixelFormat::ALL {
        let arrived = through(format, &classify("color", ""), 3, |_| (0..4).map(|n| bar(n + 1, n as usize, "bar")).collect());
        assert_eq!(arrived.len(), 3);
        for arrived in &arrived {
            let results = arrived.results().unwrap();
            let expected = if format == PixelFormat::Gray8 { ["other"; 4] } else { ["red", "green", "blue", "other"] };
            assert_eq!(labels(&results), expected, "{format}");
            for detection in &results.detections {
                let classification = &detection.classifications[0];
                assert_eq!((&*classification.name, &*classification.model), ("color", "color"));
                let Outcome::Label { confidence, .. } = classification.outcome else { panic!("{classification:?}") };
                assert!(confidence > 0.6, "{format}: {classification:?}");
            }
        }
    }
}

#[test]
fn full_frame_region_classifies_frame_regardless_of_objects() {
    let whole = classify("color", "inference-region=full-frame name=whole");
    let said = |arrived: &Arrived| {
        let results = arrived.results().unwrap();
        assert!(results.detections.iter().all(|detection| detection.classifications.is_empty()));
        let said = results.classifications.iter().map(crate::harness::answer).collect::<Vec<_>>();
        (results.status, results.detections.len(), said)
    };
    // Every second frame has two objects. The frames between them have none.
    let objects: fn(u64) -> Vec<Detection> = |n| (0..n as usize % 2 * 2).map(|place| bar(place as i32 + 1, place, "bar")).collect();
    let arrived = through(PixelFormat::Rgb, &format!("{whole} inference-interval=2 carry-results=true"), 4, objects);
    let status =
        |n: usize| if n.is_multiple_of(2) { InferenceStatus::Inferred } else { InferenceStatus::Skipped("inference-interval".into()) };
    // The bars of the whole frame are red, green and blue in equal parts, and the rest is black: no color dominates.
    let first = said(&arrived[0]).2;
    assert_eq!(first.len(), 1);
    for (n, arrived) in arrived.iter().enumerate() {
        assert_eq!(said(arrived), (status(n), n % 2 * 2, first.clone()), "frame {n}");
    }
    // Without objects, the result is the color of the whole image.
    for (label, color) in COLORS {
        let line = format!("appsrc name=source ! {whole} ! fakesink name=sink");
        let pipeline = pipeline(&line);
        let arrived = collect(&pipeline, "sink", "sink");
        feed(&pipeline, &caps("RGB", SIZE), [picture(SIZE, PixelRect::whole(SIZE), color)]);
        let ending = run(&pipeline);
        assert_eq!((ending.error, ending.warnings), (None, vec![]));
        assert_eq!(said(&arrived.lock().unwrap()[0]), (InferenceStatus::Inferred, 0, vec![label.to_owned()]));
        let stats: gst::Structure = pipeline.by_name("whole").unwrap().property("stats");
        assert_eq!((stats.get("inferred"), stats.get("objects")), (Ok(1_u64), Ok(0_u64)), "{stats}");
    }
}

#[test]
fn object_filters_on_full_frame_are_warned_about() {
    for properties in ["object-class=face", "min-object-width=5", "reclassify-interval=5", "classifier-async-mode=true"] {
        let line = format!(
            "videotestsrc num-buffers=2 ! videoconvert ! {} ! fakesink",
            classify("color", &format!("inference-region=full-frame {properties}"))
        );
        let ending = run(&pipeline(&line));
        assert_eq!((ending.error, ending.warnings.len()), (None, 1), "{properties}");
        assert!(ending.warnings[0].contains("inference-region=roi-list"), "{}", ending.warnings[0]);
    }
}

#[test]
fn results_belong_to_object_with_same_id() {
    // Three of the four objects have the same box. The order of the objects differs from frame to frame.
    let objects = |n: u64| -> Vec<Detection> {
        let mut objects = vec![bar(11, 0, "a"), bar(12, 0, "b"), bar(13, 2, "c"), bar(14, 0, "d")];
        objects.rotate_left(n as usize % 4);
        objects
    };
    let middle = format!("{} ! {}", classify("color", "nireq=4"), classify("brightness", "nireq=3"));
    for arrived in through(PixelFormat::Rgb, &middle, 12, objects) {
        let results = arrived.results().unwrap();
        for detection in &results.detections {
            let color = if detection.id.0 == 13 { "blue" } else { "red" };
            let one = roiflow::frame::FrameResults { detections: vec![detection.clone()], ..results.clone() };
            assert_eq!(labels(&one)[0], color, "{detection:?}");
            assert_eq!(detection.classifications.len(), 2, "results of both models, in the order of the elements");
            assert_eq!(&*detection.classifications[1].name, "brightness");
        }
        let params: Vec<usize> = arrived.buffer.iter_meta::<RoiMeta>().map(|roi| roi.params().count()).collect();
        assert_eq!(params, [3; 4], "region metas have the detection and both results");
    }
}

#[test]
fn object_class_selects_classified_objects() {
    let objects = |_| vec![bar(1, 0, "car"), bar(2, 1, "person"), bar(3, 2, "tree"), Detection { label: None, ..bar(4, 0, "") }];
    for (class, expected) in
        [("person", vec!["green"]), ("car, tree", vec!["red", "blue"]), ("none", vec![]), ("", vec!["red", "green", "blue", "red"])]
    {
        let middle = format!("{} object-class=\"{class}\"", classify("color", ""));
        let arrived = through(PixelFormat::Rgb, &middle, 1, objects);
        let results = arrived[0].results().unwrap();
        assert_eq!((labels(&results), results.detections.len()), (expected.into_iter().map(String::from).collect(), 4), "{class}");
    }
}

#[test]
fn regions_of_foreign_detector_are_classified_and_numbered() {
    let pipeline = pipeline(&format!("appsrc name=source ! identity name=attach ! {} ! fakesink name=sink", classify("color", "")));
    on_buffers(&pipeline, "attach", "src", |_, buffer| {
        let buffer = buffer.make_mut();
        RoiMeta::add(buffer, "bar", (16, 0, 16, 48)).set_id(5);
        RoiMeta::add(buffer, "bar", (32, 0, 16, 48));
    });
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), (0..3).map(|_| bars()));
    assert_eq!(run(&pipeline).error, None);
    for (arrived, n) in arrived.lock().unwrap().iter().zip(0_u64..) {
        let results = arrived.results().unwrap();
        assert_eq!((results.frame_number, labels(&results)), (n, vec!["green".to_owned(), "blue".to_owned()]));
        assert_eq!(results.detections[0].id.0, 5);
        let said: Vec<String> =
            arrived.buffer.iter_meta::<RoiMeta>().map(|roi| roi.param("color").unwrap().get::<String>("label").unwrap()).collect();
        assert_eq!(said, ["green", "blue"], "results are on the foreign detector's metas");
    }
}

#[test]
fn extreme_boxes_pass_and_are_clipped_to_frame() {
    let objects = |_| {
        let rect = |x, y, width, height| Rect { x, y, width, height };
        vec![
            object(1, "half outside", rect(-100.0, -100.0, 116.0, 300.0)),
            object(2, "outside", rect(500.0, 0.0, 10.0, 10.0)),
            object(3, "empty", rect(16.0, 8.0, 0.0, 10.0)),
            object(4, "not a number", rect(f32::NAN, 8.0, 16.0, 10.0)),
            object(5, "endless", rect(0.0, 0.0, f32::INFINITY, 10.0)),
            object(6, "negative", rect(30.0, 30.0, -10.0, -10.0)),
            object(7, "one pixel", rect(17.0, 9.0, 1.0, 1.0)),
            object(8, "less than a pixel", rect(40.2, 9.2, 0.1, 0.1)),
            object(9, "odd", rect(33.0, 7.0, 13.0, 11.0)),
        ]
    };
    for format in [PixelFormat::Rgb, PixelFormat::Nv12, PixelFormat::I420] {
        let arrived = through(format, &classify("color", ""), 2, objects);
        assert_eq!(arrived.len(), 2);
        for arrived in &arrived {
            let results = arrived.results().unwrap();
            assert_eq!(results.status, InferenceStatus::Inferred);
            let classified: Vec<i32> =
                results.detections.iter().filter(|detection| !detection.classifications.is_empty()).map(|found| found.id.0).collect();
            assert_eq!(classified, [1, 7, 8, 9], "{format}: objects with a pixel in the frame");
            assert_eq!(labels(&results), ["red", "green", "blue", "blue"], "{format}");
        }
    }
}

#[test]
fn frames_without_objects_pass_in_order_between_those_with_many() {
    let objects = |n: u64| -> Vec<Detection> {
        if n.is_multiple_of(3) { (1..=40).map(|id| bar(id, id as usize % 3, "bar")).collect() } else { vec![] }
    };
    for nireq in [1, 2, 5, 16] {
        let arrived = through(PixelFormat::Rgb, &classify("color", &format!("nireq={nireq}")), 30, objects);
        let numbers: Vec<u64> = arrived.iter().map(|arrived| arrived.results().unwrap().frame_number).collect();
        assert_eq!(numbers, (0..30).collect::<Vec<_>>(), "nireq={nireq}");
        for (arrived, n) in arrived.iter().zip(0_u64..) {
            assert_eq!(labels(&arrived.results().unwrap()).len(), if n.is_multiple_of(3) { 40 } else { 0 });
        }
    }
}

#[test]
fn cascade_detects_box_and_classifies_its_color() {
    let line = format!("appsrc name=source ! {} ! {} ! fakesink name=sink", detect("rectangle", ""), classify("color", ""));
    let pipeline = pipeline(&line);
    let arrived = collect(&pipeline, "sink", "sink");
    let frame = |n: usize| picture(SIZE, PixelRect { x: n as u32 % 7 * 4, y: 9, width: 20, height: 24 }, COLORS[n % 3].1);
    feed(&pipeline, &caps("RGB", SIZE), (0..21).map(frame));
    assert_eq!(run(&pipeline).error, None);
    let arrived = arrived.lock().unwrap();
    assert_eq!(arrived.len(), 21);
    for (n, arrived) in arrived.iter().enumerate() {
        let results = arrived.results().unwrap();
        assert_eq!(labels(&results), [COLORS[n % 3].0], "frame {n}");
    }
}

#[test]
fn result_below_threshold_is_left_out() {
    let half = |_| vec![object(1, "red and green", Rect { x: 8.0, y: 0.0, width: 16.0, height: 48.0 }), bar(2, 2, "bar")];
    let arrived = through(PixelFormat::Rgb, &classify("color", "threshold=0.99"), 1, half);
    let results = arrived[0].results().unwrap();
    assert_eq!((labels(&results), results.detections.len()), (vec!["blue".to_owned()], 2));
    assert_eq!(results.detections[1].classifications.len(), 1);
}

/// Keypoints of face detectors move with the results when the frame size changes. Each object is aligned by its own keypoints.
#[test]
fn classifier_aligns_by_keypoints_and_warns_once_without_them() {
    let folder = Folder::new("align");
    let text = std::fs::read_to_string(tiny("color.toml")).unwrap();
    let align = "[input]\nalign = [[0.2, 0.2], [0.8, 0.2], [0.5, 0.5], [0.2, 0.8], [0.8, 0.8]]\npad = 0.0";
    let description = folder.write("aligned.toml", text.replace("[input]", align));
    let along = |bar: usize| {
        let corners = [(3.0, 12.0), (13.0, 12.0), (8.0, 17.0), (3.0, 22.0), (13.0, 22.0)];
        corners.map(|(x, y)| Point { x: 16.0 * bar as f32 + x, y }).to_vec()
    };
    let objects = move |_| {
        vec![
            // The box of this object is red, but its keypoints are in the blue bar.
            Detection { keypoints: along(2), ..bar(1, 0, "face") },
            Detection { keypoints: along(1), ..bar(2, 1, "face") },
            bar(3, 1, "no face"),
            Detection { keypoints: along(2)[..3].to_vec(), ..bar(4, 0, "half a face") },
        ]
    };
    let line = format!(
        "appsrc name=source ! identity name=attach ! videoscale ! video/x-raw,width=128,height=96 ! {} ! fakesink name=sink",
        classify("color", &format!("name=classify description=\"{description}\""))
    );
    let pipeline = pipeline(&line);
    attach(&pipeline, move |n| results(SIZE, n, objects(n)));
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), (0..3).map(|_| bars()));
    let ending = run(&pipeline);
    assert_eq!(ending.error, None);
    let stats = pipeline.by_name("classify").unwrap().property::<gst::Structure>("stats");
    assert_eq!(stats.get::<u64>("objects-unaligned"), Ok(6), "two per frame");
    let [warning] = &*ending.warnings else { panic!("expected one warning, got {:?}", ending.warnings) };
    assert!(["5 keypoints", "boxes", "YuNet", "once"].iter().all(|part| warning.contains(part)), "{warning}");
    let arrived = arrived.lock().unwrap();
    assert_eq!(arrived.len(), 3);
    for arrived in &*arrived {
        assert_eq!(arrived.size(), Size::new(128, 96));
        let results = arrived.results().unwrap();
        let of = |id: i32| roiflow::frame::FrameResults {
            detections: results.detections.iter().filter(|detection| detection.id.0 == id).cloned().collect(),
            ..results.clone()
        };
        assert_eq!([1, 2, 3, 4].map(|id| labels(&of(id)).concat()), ["blue", "green", "green", "red"]);
    }
}

/// Decoder that returns the same text for every image.
#[derive(Debug, serde::Deserialize)]
struct Reader {
    text: String,
}

impl Decoder for Reader {
    fn check(&self, _outputs: &[(&str, &[usize])], _input: Size) -> roiflow::tensor::Result<u32> {
        Ok(0)
    }

    fn decode(&self, _outputs: &[Output<'_>], _input: Size, results: &mut Results) -> roiflow::tensor::Result<()> {
        let outcome = Outcome::Text { text: self.text.as_str().into(), confidence: 0.5 };
        results.attributes.push(RawAttribute { of: None, name: None, outcome });
        Ok(())
    }
}

#[test]
fn elements_use_decoders_of_given_engine() {
    let folder = Folder::new("own decoder");
    let description = "version = 1\ntask = \"classification\"\nname = \"plate\"\n[input]\nlayout = \"nchw\"\n[output]\ndecoder = \"reader\"\ntext = \"B 12\"\n";
    let description = folder.write("reader.toml", description);
    let mut decoders = DecoderRegistry::default();
    decoders.register("reader", Subject::Attributes, |section| section.read::<Reader>());
    let engine = stages::Engine::new(roiflow::devices::core().clone());
    engine.set_decoders(decoders);
    let line = format!(
        "appsrc name=source ! identity name=attach ! {} ! fakesink name=sink",
        classify("color", &format!("description=\"{description}\""))
    );
    let pipeline = pipeline(&line);
    elements::set_engine(&pipeline, &engine);
    attach(&pipeline, |n| results(SIZE, n, vec![bar(1, 0, "car")]));
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), [bars()]);
    assert_eq!(run(&pipeline).error, None);
    let arrived = arrived.lock().unwrap();
    let results = arrived[0].results().unwrap();
    let said: Vec<_> = results.detections[0].classifications.iter().map(|said| (&*said.name, &said.outcome)).collect();
    assert_eq!(said, [("plate", &Outcome::Text { text: "B 12".into(), confidence: 0.5 })]);
}
