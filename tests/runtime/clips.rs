//! Classifiers whose input is a clip: the frames of an object over time.
//!
//! The models are `clip.onnx` and `clip_open.onnx` of `assets/tiny`. Their scores depend on the order of the frames.

use std::sync::mpsc;

use roiflow::frame::{Colorimetry, Frame, ObjectId, Outcome, PixelFormat, PixelRect, Size};
use roiflow::stages::{Clips, RunGuard, Stage, StageOptions, StageResults};
use roiflow::tensor::{ElementType, Tensor};
use roiflow::vision::Region;

use crate::support::tiny;

const LABELS: &str =
    "[output]\ndecoder = \"multi-label\"\nactivation = \"none\"\nthreshold = 0.05\nlabels = [\"brighter\", \"darker\", \"still\"]";

fn options(name: &str, clip: &str) -> StageOptions {
    let text = format!("version = 1\ntask = \"classification\"\n[clip]\n{clip}\n{LABELS}");
    StageOptions { model: tiny(name), device: Some("CPU".to_owned()), description_text: Some(text), ..StageOptions::default() }
}

/// A frame of 16 by 8 pixels. Its left half has the first luma, its right half the second luma.
fn frame(left: u8, right: u8) -> Frame {
    let row: Vec<u8> = [[left; 8 * 3], [right; 8 * 3]].concat();
    Frame::from_packed(PixelFormat::Rgb, Size::new(16, 8), &row.repeat(8)).unwrap()
}

fn region(id: i32, x: u32) -> Region {
    (ObjectId(id), PixelRect { x, y: 0, width: 8, height: 8 }).into()
}

/// ID of a region, its best label, and the confidence.
type Found = (Option<i32>, String, f32);

/// Runs clips, and returns their results.
fn run(stage: &Stage, inputs: Vec<(Option<ObjectId>, Tensor)>) -> Vec<Found> {
    let (sender, receiver) = mpsc::channel();
    let inputs = inputs.into_iter().map(|(id, input)| (id, Ok(input)));
    stage.submit_clips(inputs, 0, RunGuard::now(), move |results: StageResults| sender.send(results).unwrap());
    let results = receiver.recv().unwrap().into_result().unwrap();
    let best = |outcome: &Outcome| match outcome {
        Outcome::Labels(labels) => (labels[0].label.as_deref().unwrap().to_owned(), labels[0].confidence),
        other => panic!("{other:?}"),
    };
    let whole = results.classifications.iter().map(|found| (None, best(&found.outcome)));
    let of_regions = results.of_regions.iter().map(|(id, found)| (Some(id.0), best(&found.outcome)));
    let mut all: Vec<_> = whole.chain(of_regions).map(|(id, (label, confidence))| (id, label, confidence)).collect();
    all.sort_by_key(|(id, ..)| *id);
    all
}

fn close(found: &[Found], expected: &[(Option<i32>, &str, f32)]) {
    let is_same =
        |(one, other): (&Found, &(Option<i32>, &str, f32))| one.0 == other.0 && one.1 == other.1 && (one.2 - other.2).abs() < 1e-5;
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(is_same), "{found:?}, expected {expected:?}");
}

/// The left object becomes brighter by 20 a frame, the right one darker by 10 a frame. The sum of the weights is computed by hand:
/// 0.8 * (3 * 2 * 20) / 255 + 0.2 * (2 * 20) / 255 for every second frame.
#[test]
fn each_object_has_a_clip_of_its_own_frames() {
    let stage = Stage::classifier(&options("clip.onnx", "stride = 2\nstep = 2")).unwrap();
    let mut clips = Clips::new(&stage).unwrap();
    let mut complete = Vec::new();
    for number in 0..12_u64 {
        let frame = frame(10 + 20 * number as u8, 200 - 10 * number as u8);
        let mut of_frame = Vec::new();
        for (track, region) in [(ObjectId(1), region(11, 0)), (ObjectId(2), region(12, 8))] {
            // The right object appears two frames later.
            if (track.0 == 1 || number >= 2) && clips.add(&stage, &frame, number, Some((track, &region))).unwrap() {
                of_frame.push((Some(region.id), clips.input(Some(track)).unwrap()));
            }
        }
        if !of_frame.is_empty() {
            complete.push((number, run(&stage, of_frame)));
        }
    }
    let change = |step: f32| (0.8 * 6.0 * step + 0.2 * 2.0 * step) / 255.0;
    let numbers: Vec<u64> = complete.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [6, 8, 10], "a clip of four frames spans seven, and two of its frames are new after four");
    close(&complete[0].1, &[(Some(11), "brighter", change(20.0))]);
    close(&complete[1].1, &[(Some(12), "darker", change(10.0))]);
    close(&complete[2].1, &[(Some(11), "brighter", change(20.0))]);
}

#[test]
fn time_may_be_before_the_channels_and_the_input_may_have_six_axes() {
    for (name, layout, shape) in
        [("clip_time_first.onnx", "ntchw", &[1, 4, 3, 8, 8][..]), ("clip_six_axes.onnx", "ncthw", &[1, 1, 3, 4, 8, 8][..])]
    {
        let stage = Stage::classifier(&options(name, &format!("step = 1\nlayout = \"{layout}\""))).unwrap();
        assert_eq!(&stage.spec().input_shape[..], shape, "{name}");
        assert!(stage.warm_up().is_ok(), "{name}");
        let mut clips = Clips::new(&stage).unwrap();
        // The left object becomes brighter, and the right one darker. Both clips are in one batch.
        for number in 0..4_u8 {
            let frame = frame(10 + 20 * number, 200 - 10 * number);
            for (track, x) in [(1, 0), (2, 8)] {
                let is_complete = clips.add(&stage, &frame, number.into(), Some((ObjectId(track), &region(10 + track, x)))).unwrap();
                assert_eq!(is_complete, number == 3, "{name}");
            }
        }
        let input = |track: i32| (Some(ObjectId(10 + track)), clips.input(Some(ObjectId(track))).unwrap());
        let change = |step: f32| (0.8 * 3.0 * step + 0.2 * step) / 255.0;
        close(&run(&stage, vec![input(1), input(2)]), &[(Some(11), "brighter", change(20.0)), (Some(12), "darker", change(10.0))]);
    }
}

#[test]
fn clip_of_whole_frames_with_channels_last_has_the_described_length() {
    let stage = Stage::classifier_of_frames(&options("clip_open.onnx", "frames = 3\nstep = 1\nlayout = \"nthwc\"")).unwrap();
    assert_eq!(stage.spec().input_shape[..], [1, 3, 8, 8, 3]);
    assert!(stage.warm_up().is_ok());
    let mut clips = Clips::new(&stage).unwrap();
    let mut found = Vec::new();
    for (number, luma) in [250_u8, 150, 100, 40].into_iter().enumerate() {
        if clips.add(&stage, &frame(luma, luma), number as u64, None).unwrap() {
            found.extend(run(&stage, vec![(None, clips.input(None).unwrap())]));
        }
    }
    close(&found, &[(None, "darker", 150.0 / 255.0), (None, "darker", 110.0 / 255.0)]);
}

/// A clip of four frames with a stride of two spans eight frames.
#[test]
fn frames_of_missing_objects_are_released() {
    let stage = Stage::classifier(&options("clip.onnx", "stride = 2")).unwrap();
    let mut clips = Clips::new(&stage).unwrap();
    let frame = frame(0, 0);
    let mut add = |number, track: i32| {
        let is_complete = clips.add(&stage, &frame, number, Some((ObjectId(track), &region(track, 0)))).unwrap();
        (is_complete, clips.len())
    };
    assert_eq!([0, 2, 4].map(|number| add(number, 1)), [(false, 1); 3]);
    assert_eq!(add(11, 2), (false, 2), "missing for seven frames");
    assert_eq!(add(11, 1), (true, 2), "it was seen again within the span of a clip");
    assert_eq!(add(19, 2), (false, 1), "missing for eight frames");
    assert_eq!(add(20, 1), (false, 2), "the object begins a new clip");
    let n_objects = (100..1000).map(|track| add(21, track).1).max();
    assert_eq!(n_objects, Some(256));
    clips.release_missing(28);
    assert_eq!(clips.len(), 254, "missing for seven frames; the objects 1 and 2 are missing for longer");
    clips.release_missing(29);
    assert!(clips.is_empty() && clips.input(Some(ObjectId(1))).is_err());
}

#[test]
fn full_store_keeps_the_clips_of_its_objects() {
    let stage = Stage::classifier(&options("clip.onnx", "")).unwrap();
    let mut clips = Clips::new(&stage).unwrap();
    let frame = frame(0, 0);
    let mut add = |number, track: i32| clips.add(&stage, &frame, number, Some((ObjectId(track), &region(track, 0)))).unwrap();
    let mut complete = |number| (0..257).filter(|track| add(number, *track)).count();
    assert_eq!([0, 1, 2, 3, 4, 5].map(&mut complete), [0, 0, 0, 256, 0, 256], "one object more than the store holds");
    // The first object leaves the picture. Its frames are released, and the last object is stored instead.
    let mut complete = |number| (1..257).filter(|track| add(number, *track)).collect::<Vec<_>>();
    let found = [6, 7, 8, 9, 10, 11, 12].map(&mut complete);
    assert!(found[..6].iter().all(|of_frame| !of_frame.contains(&256)) && found[6].contains(&256), "{found:?}");
}

#[test]
fn failed_preprocessing_keeps_the_stored_frames() {
    let stage = Stage::classifier(&options("clip.onnx", "step = 1")).unwrap();
    let mut clips = Clips::new(&stage).unwrap();
    let luma = |number: u8| frame(10 * number, 0);
    for number in 0..4 {
        assert_eq!(clips.add(&stage, &luma(number), number.into(), Some((ObjectId(1), &region(11, 0)))).unwrap(), number == 3);
    }
    // Nothing can be read from a frame whose memory is leased for writing.
    let plane = Tensor::new(ElementType::U8, PixelFormat::Rgb.plane_shape(0, Size::new(16, 8))).unwrap();
    let leased = Frame::from_planes(PixelFormat::Rgb, Size::new(16, 8), std::slice::from_ref(&plane), Colorimetry::default()).unwrap();
    let lease = plane.bytes_mut().unwrap();
    let mut add_leased = |track: i32| clips.add(&stage, &leased, 4, Some((ObjectId(track), &region(track, 0)))).unwrap_err().to_string();
    assert!([1, 2].map(&mut add_leased).iter().all(|error| error.contains("is being written")), "{}", add_leased(1));
    drop(lease);
    let outside = region(12, 100);
    assert!(!clips.add(&stage, &luma(5), 5, Some((ObjectId(1), &outside))).unwrap(), "outside the frame");
    assert!(!clips.add(&stage, &luma(5), 5, Some((ObjectId(2), &outside))).unwrap());
    assert_eq!(clips.len(), 1, "an object without a stored frame takes no place");
    // The weighted sum of the frames 0 to 3, and then of the frames 1, 2, 3 and 6.
    let input = clips.input(Some(ObjectId(1))).unwrap();
    close(&run(&stage, vec![(Some(ObjectId(11)), input)]), &[(Some(11), "brighter", (0.8 * 30.0 + 0.2 * 10.0) / 255.0)]);
    assert!(clips.add(&stage, &luma(6), 6, Some((ObjectId(1), &region(11, 0)))).unwrap());
    let input = clips.input(Some(ObjectId(1))).unwrap();
    close(&run(&stage, vec![(Some(ObjectId(11)), input)]), &[(Some(11), "brighter", (0.8 * 50.0 + 0.2 * 10.0) / 255.0)]);
}

#[test]
fn wrong_clip_sections_are_refused_with_advice() {
    for (name, clip, parts) in [
        ("clip.onnx", "frames = 5", ["[clip] `frames`", "[?, 3, 4, 8, 8]"]),
        ("clip.onnx", "stride = 0", ["[clip] `stride`: expected 1 to 1000 frames", "got 0"]),
        ("clip.onnx", "step = 5", ["[clip] `step`: expected 1 to 4 frames", "got 5"]),
        ("clip.onnx", "layout = \"nthwc\"", ["[?, 3, 4, 8, 8]", "Correct `layout`"]),
        ("clip.onnx", "[input]\nlayout = \"nchw\"", ["[input] `layout` and [clip]", "Remove `layout` from [input]"]),
        ("clip_open.onnx", "layout = \"nthwc\"", ["dynamic number of frames", "add `frames`"]),
        ("clip_open.onnx", "layout = \"nthwc\"\nframes = 1", ["[clip] `frames`: expected 2 to 256 frames", "got 1"]),
        ("color.onnx", "", ["expected an input with the axes [N, C, T, H, W]", "or remove [clip]"]),
    ] {
        let error = Stage::classifier(&options(name, clip)).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{name} {clip}: {error}");
    }
    let text = format!("version = 1\ntask = \"detection\"\n[clip]\n{}", LABELS.replace("multi-label", "custom"));
    let error = Stage::detector(&StageOptions { description_text: Some(text), ..options("clip.onnx", "") }).unwrap_err().to_string();
    assert!(error.contains("[clip]: expected a classifier, got a detector"), "{error}");
}
