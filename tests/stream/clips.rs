//! Models whose input is a clip: `roiclassify` collects the frames of each tracked object.
//!
//! `clip.onnx` says whether a clip of four frames with a stride of two becomes brighter or darker. Its first result of an object is in the seventh
//! frame.

use gst::prelude::*;
use gstreamer as gst;
use roiflow::elements::meta;
use roiflow::frame::{Detection, ObjectId, PixelRect, Rect, Size};

use crate::harness::{Ending, answer, attach, caps, classify, collect, face, feed, picture, pipeline, results, run, stamp};
use crate::rig::Rig;

const SIZE: Size = Size::new(64, 48);
const LEFT: Rect = Rect { x: 0.0, y: 0.0, width: 32.0, height: 48.0 };
const RIGHT: Rect = Rect { x: 32.0, ..LEFT };

fn object(n: u64, track: Option<i32>, rect: Rect) -> Detection {
    let id = 1000 + 10 * n as i32 + track.unwrap_or_default();
    Detection { track: track.map(ObjectId), classifications: vec![], ..face(id, rect) }
}

/// A frame whose left half has this luma. The right half is black.
fn frame(luma: u8) -> gst::Buffer {
    picture(SIZE, PixelRect { x: 0, y: 0, width: 32, height: 48 }, [luma; 3])
}

/// Runs frames with these objects, and returns the labels of each frame: those of the objects, or those of the whole frame.
fn through(properties: &str, lumas: &[u8], objects: impl Fn(u64) -> Vec<Detection> + Send + 'static) -> (Vec<Vec<String>>, Ending) {
    let line = classify("clip", &format!("name=classify {properties}"));
    let pipeline = pipeline(&format!("appsrc name=source ! identity name=attach ! {line} ! fakesink name=sink"));
    attach(&pipeline, move |n| results(SIZE, n, objects(n)));
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), lumas.iter().map(|luma| frame(*luma)));
    let ending = run(&pipeline);
    let labels = |arrived: &crate::harness::Arrived| {
        let results = arrived.results().unwrap();
        let of_objects = results.detections.iter().map(|object| object.classifications.first().map_or("-".to_owned(), answer));
        of_objects.chain(results.classifications.iter().map(answer)).collect()
    };
    let labels = arrived.lock().unwrap().iter().map(labels).collect();
    (labels, ending)
}

#[test]
fn tracked_objects_carry_the_result_of_their_last_clip() {
    // The left object becomes brighter in the frames 0 to 8, and then darker.
    let lumas: Vec<u8> = (0..20).map(|n: u8| if n <= 8 { 20 * n } else { 160 - 14 * (n - 8) }).collect();
    for nireq in [1, 3] {
        // The right object is not detected in the frames 3 to 14, which is longer than its clip.
        let objects = |n: u64| {
            let right = (!(3..15).contains(&n)).then(|| object(n, Some(2), RIGHT));
            [Some(object(n, Some(1), LEFT)), right, Some(object(n, None, RIGHT))].into_iter().flatten().collect()
        };
        let (labels, ending) = through(&format!("nireq={nireq}"), &lumas, objects);
        assert_eq!((ending.error, ending.warnings), (None, vec![]));
        let first: Vec<&str> = labels.iter().map(|of_frame| &*of_frame[0]).collect();
        assert_eq!(first[..6], ["-"; 6]);
        assert_eq!(first[6..12], ["brighter"; 6], "also in frames without a new clip");
        assert_eq!(first[14..], ["darker"; 6]);
        // The frames 0 and 2 of the right object were released, so the frames 15, 17 and 19 are no complete clip.
        assert!(labels.iter().all(|of_frame| of_frame[1..].iter().all(|label| label == "-")), "{labels:?}");
    }
}

#[test]
fn objects_without_track_ids_have_no_clips_and_one_warning() {
    let (labels, ending) = through("", &[50; 40], |n| vec![object(n, None, LEFT)]);
    assert!(labels.iter().all(|of_frame| of_frame == &["-"]), "{labels:?}");
    assert_eq!((ending.error, ending.warnings.len()), (None, 1), "{:?}", ending.warnings);
    assert!(ending.warnings[0].contains("roitrack"), "{:?}", ending.warnings);
}

#[test]
fn clips_of_whole_frames_need_no_objects() {
    let lumas: Vec<u8> = (0..12).map(|n| 240 - 20 * n).collect();
    let (labels, ending) = through("inference-region=full-frame", &lumas, |_| vec![]);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let expected: Vec<&[&str]> = (0..12).map(|n| if n < 6 { &[][..] } else { &["darker"][..] }).collect();
    assert_eq!(labels, expected);
}

#[test]
fn run_without_a_result_ends_the_result_of_earlier_clips() {
    // The brightness rises in the frames 0 to 8, and then stays. The clip of the frames 4, 6, 8 and 10 is below the threshold.
    let lumas: Vec<u8> = (0..14).map(|n: u8| 20 * n.min(8)).collect();
    let expected = |none: &[&str]| {
        (0..14)
            .map(|n| if (6..10).contains(&n) { vec!["brighter".to_owned()] } else { none.iter().map(|text| (*text).to_owned()).collect() })
            .collect::<Vec<_>>()
    };
    for nireq in [1, 3] {
        let (labels, ending) = through(&format!("nireq={nireq} threshold=0.3"), &lumas, |n| vec![object(n, Some(1), LEFT)]);
        assert_eq!((ending.error, ending.warnings), (None, vec![]));
        assert_eq!(labels, expected(&["-"]), "an object, nireq={nireq}");
        // Half of a whole frame is black, so the scores are half of those of the object.
        let properties = format!("nireq={nireq} threshold=0.15 inference-region=full-frame");
        let (labels, ending) = through(&properties, &lumas, |_| vec![]);
        assert_eq!((ending.error, ending.warnings), (None, vec![]));
        assert_eq!(labels, expected(&[]), "the whole frame, nireq={nireq}");
    }
}

#[test]
fn new_clip_of_a_returned_object_begins_without_the_old_result() {
    // The object is missing in the frames 8 to 17, which is longer than its clip.
    let lumas: Vec<u8> = (0..26).map(|n| 8 * n).collect();
    let objects = |n: u64| if (8..18).contains(&n) { vec![] } else { vec![object(n, Some(1), LEFT)] };
    let (labels, ending) = through("", &lumas, objects);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let has_result = |n: u64| (6..8).contains(&n) || n >= 24;
    let expected = |n: u64| match n {
        8..18 => vec![],
        n if has_result(n) => vec!["brighter".to_owned()],
        _ => vec!["-".to_owned()],
    };
    assert_eq!(labels, (0..26).map(expected).collect::<Vec<_>>());
}

#[test]
fn flush_releases_clips_and_results() {
    let rig = Rig::begun(&classify("clip", "name=classify"));
    let see = |n: u64| {
        let mut buffer = stamp(frame(200 - 10 * (n % 20) as u8), n);
        meta::attach(buffer.make_mut(), results(SIZE, n, vec![object(n, Some(1), LEFT)]));
        rig.source.push(buffer).unwrap();
        while !rig.next().starts_with("frame") {}
        rig.left().pop().unwrap().labels.join(" ")
    };
    let first: Vec<String> = (0..8).map(see).collect();
    assert_eq!(first, ["", "", "", "", "", "", "darker", "darker"]);
    rig.event(gst::event::FlushStart::new());
    rig.event(gst::event::FlushStop::new(true));
    rig.segment();
    let second: Vec<String> = (8..16).map(see).collect();
    assert_eq!(second, ["", "", "", "", "", "", "darker", "darker"]);
}
