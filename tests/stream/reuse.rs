//! Result reuse of `roiclassify`: it classifies only when necessary, and keeps the results of an object in every frame. Objects never get
//! results of other objects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gst::prelude::*;
use gstreamer as gst;
use roiflow::elements::meta;
use roiflow::frame::{Detection, InferenceStatus, ObjectId, PixelRect, Rect, Size};
use roiflow::runtime::{Error, ErrorKind};

use crate::harness::{
    Ending, Slow, TIMEOUT, attach, caps, classify, collect, detect, eventually, face, feed, labels, picture, pipeline, results, run, stamp,
};
use crate::reference::real;
use crate::rig::{Rig, black};

const SIZE: Size = Size::new(64, 48);
const RED: [u8; 3] = [255, 0, 0];
const GREEN: [u8; 3] = [0, 255, 0];
const BLUE: [u8; 3] = [0, 0, 255];
const WHERE: Rect = Rect { x: 10.0, y: 8.0, width: 20.0, height: 30.0 };

/// Returns a tracked object; its detection ID differs in each frame.
fn tracked(n: u64, name: i32, rect: Rect) -> Detection {
    Detection { track: Some(ObjectId(name)), classifications: vec![], ..face(1000 + 10 * n as i32 + name, rect) }
}

/// Returns a frame of one color.
fn filled(color: [u8; 3]) -> gst::Buffer {
    picture(SIZE, PixelRect::whole(SIZE), color)
}

/// Output of a run: the labels of each frame, and the statistics of the element `classify`.
struct Seen {
    labels: Vec<String>,
    stats: gst::Structure,
    ending: Ending,
}

impl Seen {
    fn count(&self, field: &str) -> u64 {
        self.stats.get(field).unwrap_or_else(|error| panic!("{field}: {error}"))
    }
}

/// Runs frames of these colors with these objects through a classifier with these properties.
fn through(model: &str, properties: &str, colors: &[[u8; 3]], objects: impl Fn(u64) -> Vec<Detection> + Send + 'static) -> Seen {
    let line = classify(model, &format!("name=classify {properties}"));
    let pipeline = pipeline(&format!("appsrc name=source ! identity name=attach ! {line} ! fakesink name=sink"));
    attach(&pipeline, move |n| results(SIZE, n, objects(n)));
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), colors.iter().map(|color| filled(*color)));
    let ending = run(&pipeline);
    let labels = arrived.lock().unwrap().iter().map(|arrived| labels(&arrived.results().unwrap()).join(" ")).collect();
    Seen { labels, stats: pipeline.by_name("classify").unwrap().property("stats"), ending }
}

/// Colors of this many frames, alternately red, green and blue.
fn colors(n_frames: usize) -> Vec<[u8; 3]> {
    [RED, GREEN, BLUE].into_iter().cycle().take(n_frames).collect()
}

fn one(n: u64) -> Vec<Detection> {
    vec![tracked(n, 1, WHERE)]
}

#[test]
fn object_is_reclassified_at_interval_and_reuses_results() {
    for (interval, expected, n_classified) in [
        ("", "red green blue red green blue red", 7),
        ("reclassify-interval=1", "red green blue red green blue red", 7),
        ("reclassify-interval=0", "red red red red red red red", 1),
        ("reclassify-interval=2", "red red blue blue green green red", 4),
        ("reclassify-interval=4", "red red red red green green green", 2),
    ] {
        // The labels are the same for any number of frames in flight.
        for nireq in [1, 5] {
            let seen = through("color", &format!("{interval} nireq={nireq}"), &colors(7), one);
            assert_eq!((seen.ending.error.as_deref(), &*seen.ending.warnings), (None, &[][..]));
            assert_eq!(seen.labels.join(" "), expected, "{interval}");
            let n_recalled = if n_classified == 7 { 0 } else { 7 - n_classified };
            assert_eq!((seen.count("objects-classified"), seen.count("objects-recalled")), (n_classified, n_recalled), "{interval}");
            assert_eq!(seen.count("inferred"), 7, "a frame with only reused results counts as inferred");
        }
    }
}

#[test]
fn results_are_cached_per_object() {
    // The second object appears in the second frame, the first is gone in the third.
    let objects = |n: u64| {
        let (first, second) = (tracked(n, 1, WHERE), tracked(n, 2, Rect { x: 35.0, ..WHERE }));
        match n {
            0 => vec![first],
            2 => vec![second],
            _ => vec![second, first],
        }
    };
    let seen = through("color", "reclassify-interval=0", &colors(4), objects);
    assert_eq!(seen.labels, ["red", "green red", "green", "green red"]);
    assert_eq!(seen.count("objects-classified"), 2);
}

#[test]
fn untracked_objects_are_always_classified_with_one_warning() {
    let nameless = |n: u64| vec![Detection { track: None, ..tracked(n, 1, WHERE) }];
    for (properties, is_said) in [("reclassify-interval=0", true), ("consensus=3", true), ("classifier-async-mode=true", true), ("", false)]
    {
        let seen = through("color", properties, &colors(40), nameless);
        assert_eq!(seen.ending.error, None);
        assert_eq!(
            seen.labels,
            colors(40)
                .iter()
                .map(|color| if *color == RED {
                    "red"
                } else if *color == GREEN {
                    "green"
                } else {
                    "blue"
                })
                .collect::<Vec<_>>()
        );
        assert_eq!((seen.count("objects-classified"), seen.count("objects-nameless")), (40, if is_said { 40 } else { 0 }));
        assert_eq!(seen.ending.warnings.len(), usize::from(is_said), "{:?}", seen.ending.warnings);
        assert!(!is_said || seen.ending.warnings[0].contains("put `roitrack` between"), "{:?}", seen.ending.warnings);
    }
    // If at least one object has a track ID, there is no warning.
    let seen = through("color", "reclassify-interval=0", &colors(40), |n| {
        if n == 3 { one(n) } else { vec![Detection { track: None, ..tracked(n, 1, WHERE) }] }
    });
    assert_eq!(seen.ending.warnings, [] as [String; 0]);
}

#[test]
fn grown_or_moved_object_is_reclassified() {
    let wide = |width: f32| Rect { width, ..WHERE };
    let growing = move |n: u64| vec![tracked(n, 1, wide([20.0, 22.0, 25.0, 26.0, 31.0][n as usize]))];
    let seen = through("color", "reclassify-interval=0 reclassify-growth=0.2", &colors(5), growing);
    assert_eq!(seen.labels.join(" "), "red red blue blue green");
    let moving = move |n: u64| vec![tracked(n, 1, Rect { x: [10.0, 11.0, 16.0, 15.0, 15.0][n as usize], ..WHERE })];
    let seen = through("color", "reclassify-movement=0.2", &colors(5), moving);
    assert_eq!(seen.labels.join(" "), "red red blue blue blue");
    assert_eq!(seen.count("objects-classified"), 2);
}

#[test]
fn label_is_vote_of_last_results() {
    let sequence = [RED, GREEN, RED, GREEN, GREEN, BLUE, BLUE, BLUE];
    let seen = through("color", "consensus=3", &sequence, one);
    assert_eq!(seen.labels[0], "red");
    // While each label has one result, the label with the higher confidence wins. If the confidences are equal, the newer label wins.
    // Later, two of three results decide.
    assert_eq!(seen.labels[2..], ["red", "green", "green", "green", "blue", "blue"]);
    // After three results, the object is classified in every second frame.
    let seen = through("color", "consensus=3 reclassify-interval=2", &sequence, one);
    assert_eq!((seen.count("objects-classified"), &*seen.labels[3], &*seen.labels[4], &*seen.labels[6]), (5, "red", "green", "blue"));
    let gray = |level: u8| [level; 3];
    let seen = through("brightness", "consensus=2", &[gray(0), gray(255), gray(255), gray(0)], one);
    assert_eq!(seen.labels, ["0", "50", "100", "50"]);
}

#[test]
fn skipped_frames_reuse_results() {
    let seen = through("color", "reclassify-interval=0 inference-interval=3", &colors(5), one);
    assert_eq!(seen.labels.join(" "), "red red red red red");
    assert_eq!((seen.count("skipped-inference-interval"), seen.count("objects-classified")), (3, 1));
}

#[test]
fn object_size_limits_select_classified_objects() {
    let objects = |n: u64| {
        let of = |name: i32, width: f32, height: f32| tracked(n, name, Rect { x: 2.0, y: 2.0, width, height });
        vec![of(1, 5.0, 30.0), of(2, 10.0, 30.0), of(3, 40.0, 30.0), of(4, 10.0, 4.0), of(5, 10.0, 44.0), of(6, 200.0, 30.0)]
    };
    for (properties, n_expected) in [
        ("", 6),
        ("min-object-width=10", 5),
        ("max-object-width=40", 5),
        ("min-object-height=5", 5),
        ("max-object-height=43", 5),
        ("min-object-width=10 min-object-height=5 max-object-width=40 max-object-height=43", 2),
        // A box outside the frame is clipped.
        ("min-object-width=62 max-object-width=62", 1),
    ] {
        let seen = through("color", properties, &colors(1), objects);
        assert_eq!(seen.count("objects-classified"), n_expected, "{properties}");
    }
    // An object that became too small keeps its earlier result.
    let shrinking = |n: u64| vec![tracked(n, 1, Rect { width: 30.0 - 10.0 * n as f32, ..WHERE })];
    let seen = through("color", "reclassify-interval=2 min-object-width=15", &colors(3), shrinking);
    assert_eq!((seen.labels.join(" ").as_str(), seen.count("objects-classified")), ("red red red", 1));
    // The size limits also apply to a detector.
    let line = format!("{} ! fakesink name=sink", detect("rectangle", "inference-region=roi-list max-object-width=12"));
    let pipeline = pipeline(&format!("appsrc name=source ! identity name=attach ! {line}"));
    // The selected objects do not overlap, because an object in overlapping parents is reported once.
    let apart = move |n: u64| {
        let move_right = |(mut object, x): (Detection, f32)| {
            object.rect.x += x;
            object
        };
        objects(n).into_iter().zip([0.0, 8.0, 0.0, 22.0, 36.0, 0.0]).map(move_right).collect::<Vec<_>>()
    };
    attach(&pipeline, move |n| results(SIZE, n, apart(n)));
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), [filled(RED)]);
    assert_eq!(run(&pipeline).error, None);
    let found = arrived.lock().unwrap()[0].results().unwrap().detections;
    let parents: Vec<Option<i32>> = found[6..].iter().map(|found| found.parent.map(|parent| parent.0 - 1000)).collect();
    assert_eq!(parents, [Some(1), Some(2), Some(4), Some(5)]);
}

#[test]
fn contradictory_settings_are_warned_about() {
    for (properties, parts) in [
        ("min-object-width=50 max-object-width=20", ["min-object-width=50", "max-object-width=20"]),
        ("min-object-height=2 max-object-height=1", ["min-object-height=2", "max-object-height=1"]),
    ] {
        let seen = through("color", properties, &colors(1), one);
        let said = seen.ending.error.unwrap();
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
    for (properties, parts) in [
        ("reclassify-growth=0.2", ["reclassify-growth=0.2", "reclassify-interval=1"]),
        ("reclassify-movement=0.2 reclassify-interval=0", ["reclassify-movement=0.2", "reclassify-interval=0"]),
    ] {
        let seen = through("color", properties, &colors(1), one);
        assert_eq!(seen.ending.error, None);
        let [said] = &*seen.ending.warnings else { panic!("{:?}", seen.ending.warnings) };
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

#[test]
fn class_thresholds_apply_and_invalid_ones_are_errors() {
    let detected = |properties: &str| {
        let pipeline = pipeline(&format!("appsrc name=source ! {} ! fakesink name=sink", detect("rectangle", properties)));
        let arrived = collect(&pipeline, "sink", "sink");
        let size = Size::new(64, 64);
        feed(&pipeline, &caps("RGB", size), [picture(size, PixelRect { x: 16, y: 15, width: 32, height: 30 }, RED)]);
        let ending = run(&pipeline);
        let n_found = arrived.lock().unwrap().iter().map(|arrived| arrived.results().unwrap().detections.len()).sum::<usize>();
        (ending.error, n_found)
    };
    assert_eq!(detected("class-thresholds=\"rectangle=0.9\""), (None, 1));
    assert_eq!(detected("class-thresholds=\"rectangle=1\""), (None, 0), "scores must exceed the threshold");
    assert_eq!(detected("threshold=1 class-thresholds=\"rectangle=0.5\""), (None, 1));
    assert_eq!(detected("labels=thing class-thresholds=\"thing=1\""), (None, 0));
    for (text, parts) in [
        ("rectangle", ["class-thresholds", "such as person=0.6,car=0.4"]),
        ("rectangle=2", ["from 0 to 1 for `rectangle`", "got `2`"]),
        ("rectangel=0.5", ["no label `rectangel`", "did you mean `rectangle`"]),
    ] {
        let said = detected(&format!("class-thresholds=\"{text}\"")).0.unwrap();
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

/// The model finds one `car` in each frame.
#[test]
fn detector_reports_only_the_wanted_classes() {
    let labels = |properties: &str| {
        let picture = picture(SIZE, PixelRect { x: 16, y: 15, width: 32, height: 30 }, RED);
        let line = format!(
            "appsrc name=source ! {} ! roidetect model={} {properties} ! fakesink name=sink",
            detect("rectangle", ""),
            crate::harness::tiny("ultralytics.onnx")
        );
        let pipeline = pipeline(&line);
        let arrived = collect(&pipeline, "sink", "sink");
        feed(&pipeline, &caps("RGB", SIZE), [picture]);
        if let Some(error) = run(&pipeline).error {
            return Err(error);
        }
        let results = arrived.lock().unwrap()[0].results().unwrap();
        Ok(results.detections.iter().map(|found| found.label.as_deref().unwrap().to_owned()).collect::<Vec<_>>().join(" "))
    };
    for (properties, expected) in [
        ("", "rectangle car"),
        ("keep-classes=\"person, car\"", "rectangle car"),
        ("keep-classes=person", "rectangle"),
        ("drop-classes=person", "rectangle car"),
        ("drop-classes=car", "rectangle"),
        ("keep-classes=person tiles=2x2", "rectangle"),
        ("keep-classes=car inference-region=roi-list", "rectangle car"),
        ("keep-classes=person inference-region=roi-list object-class=rectangle", "rectangle"),
        ("keep-classes=car class-thresholds=car=0.95", "rectangle"),
    ] {
        assert_eq!(labels(properties), Ok(expected.to_owned()), "{properties}");
    }
    for (properties, parts) in [
        ("keep-classes=cat", ["keep-classes: the model has no label `cat`", "did you mean `car`"]),
        ("drop-classes=tree", ["drop-classes: the model has no label `tree`", "expected one of"]),
        ("keep-classes=car drop-classes=car", ["keep-classes and drop-classes", "at least one class"]),
    ] {
        let error = labels(properties).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{properties}: {error}");
    }
}

/// Frame `n` of a color, with one tracked object.
fn frame(n: u64, color: [u8; 3]) -> gst::Buffer {
    let mut buffer = stamp(filled(color), n);
    meta::attach(buffer.get_mut().unwrap(), results(SIZE, n, one(n)));
    buffer
}

/// Returns a device that classifies the color of each region by its first pixels.
fn says_colors(name: &str, n_threads: usize) -> Arc<Slow> {
    Slow::computing(name, n_threads, answer)
}

fn answer(io: &mut roiflow::runtime::io::DeviceIo<'_>) -> roiflow::runtime::Result<()> {
    let n_rows = io.input(0).layout().shape()[0];
    let n_values = io.input(0).layout().n_elements() / n_rows;
    // The channels are planar; the first value of a channel represents the region.
    let rows: Vec<[f32; 3]> =
        io.input(0).dense::<f32>()?.chunks(n_values).map(|row| [0, 1, 2].map(|channel| row[channel * (n_values / 3)])).collect();
    let output = io.output(0, &[n_rows, 4])?;
    for (output, [red, green, blue]) in output.dense_mut::<f32>()?.chunks_mut(4).zip(rows) {
        output.copy_from_slice(&[red, green, blue, 0.0].map(|value| value.clamp(0.0, 1.0)));
    }
    Ok(())
}

#[test]
fn failed_run_is_retried_with_next_frame() {
    let n_runs = Arc::new(AtomicUsize::new(0));
    let counted = n_runs.clone();
    // The first run fails; then a black frame tests whether the model works.
    let slow = Slow::computing("reuse-fails", 1, move |io| match counted.fetch_add(1, Ordering::AcqRel) {
        0 => Err(Error::new(ErrorKind::Device, "no luck")),
        _ => answer(io),
    });
    let rig = Rig::begun(&slow.classify("reclassify-interval=0"));
    for (n, color) in (0..).zip([RED, GREEN, BLUE]) {
        rig.source.push(frame(n, color)).unwrap();
        assert_eq!(rig.next(), format!("frame {n} of 64x48"));
    }
    let seen: Vec<(String, Vec<String>)> = rig.left().into_iter().map(|left| (left.status, left.labels)).collect();
    assert!(seen[0].0.contains("no luck") && seen[0].1.is_empty(), "{seen:?}");
    assert_eq!((&seen[1].1, &seen[2].1), (&vec!["green".to_owned()], &vec!["green".to_owned()]));
    assert_eq!(rig.count("objects-classified"), 2);
}

#[test]
fn async_mode_does_not_delay_frames() {
    let slow = says_colors("reuse-async", 1);
    let rig = Rig::begun(&slow.classify("nireq=1 classifier-async-mode=true reclassify-interval=0"));
    slow.hold();
    for n in 0..5 {
        rig.source.push(frame(n, RED)).unwrap();
        assert_eq!(rig.next(), format!("frame {n} of 64x48"), "no run has ended");
    }
    assert!(rig.left().iter().all(|left| left.labels.is_empty() && left.status == "inferred"));
    slow.release();
    eventually("the result is there", || {
        let n = rig.count("frames-in");
        rig.source.push(frame(n, GREEN)).unwrap();
        rig.next();
        rig.left()[0].labels == ["red"]
    });
    assert_eq!(rig.count("objects-classified"), 1);
    // After a flush, objects are classified again, and earlier results are discarded.
    slow.hold();
    rig.event(gst::event::FlushStart::new());
    rig.event(gst::event::FlushStop::new(true));
    rig.segment();
    rig.expect(&["flush-start", "flush-stop", "segment"]);
    rig.source.push(frame(1000, BLUE)).unwrap();
    assert_eq!(rig.next(), "frame 1000 of 64x48");
    slow.wait_for(1);
    rig.event(gst::event::FlushStart::new());
    rig.event(gst::event::FlushStop::new(true));
    rig.segment();
    rig.expect(&["flush-start", "flush-stop", "segment"]);
    rig.left();
    slow.release();
    eventually("the second result is there", || {
        let n = 2000 + rig.count("frames-in");
        rig.source.push(frame(n, GREEN)).unwrap();
        rig.next();
        let labels = rig.left()[0].labels.clone();
        assert!(labels.is_empty() || labels == ["green"], "results from before the flush: {labels:?}");
        labels == ["green"]
    });
}

#[test]
fn background_runs_are_bounded_and_rest_is_retried() {
    let slow = says_colors("reuse-bound", 1);
    let rig = Rig::begun(&slow.classify("nireq=1 classifier-async-mode=true"));
    slow.hold();
    for n in 0..20 {
        rig.source.push(frame(n, RED)).unwrap();
        assert_eq!(rig.next(), format!("frame {n} of 64x48"));
    }
    assert_eq!((rig.count("objects-classified"), rig.count("objects-passed-over")), (2, 18), "one runs, one waits");
    slow.release();
    eventually("later frames are classified", || {
        let n = rig.count("frames-in");
        rig.source.push(frame(n, BLUE)).unwrap();
        rig.next();
        rig.left().pop().unwrap().labels == ["blue"]
    });
    rig.event(gst::event::Eos::new());
    rig.until_eos();
    rig.check_counts();
}

#[test]
fn background_failure_is_reported_with_next_frame() {
    let n_runs = Arc::new(AtomicUsize::new(0));
    let counted = n_runs.clone();
    let slow = Slow::computing("reuse-async-fails", 1, move |io| match counted.fetch_add(1, Ordering::AcqRel) {
        0 => Err(Error::new(ErrorKind::Device, "no luck")),
        _ => answer(io),
    });
    let rig = Rig::begun(&slow.classify("nireq=1 classifier-async-mode=true reclassify-interval=0"));
    rig.source.push(frame(0, RED)).unwrap();
    rig.next();
    eventually("the failure is reported", || {
        let n = rig.count("frames-in");
        rig.source.push(frame(n, GREEN)).unwrap();
        rig.next();
        rig.left().pop().unwrap().status.contains("background classification failed for 1 regions of frame 0")
    });
    assert_eq!(rig.count("failed"), 1);
    let message = rig.bus.timed_pop_filtered(TIMEOUT, &[gst::MessageType::Warning]).expect("the failure is a warning");
    let gst::MessageView::Warning(warning) = message.view() else { unreachable!("filtered") };
    let said = warning.error().to_string();
    assert!(said.contains("no luck") && said.contains("background classification failed for 1 regions of frame 0"), "{said}");
    eventually("the next try succeeds", || {
        let n = rig.count("frames-in");
        rig.source.push(frame(n, GREEN)).unwrap();
        rig.next();
        rig.left().pop().unwrap().labels == ["green"]
    });
}

/// Pushes a frame with an untracked object.
fn push_a_new_object(rig: &Rig, n: u64) {
    let mut buffer = stamp(filled(RED), n);
    meta::attach(buffer.get_mut().unwrap(), results(SIZE, n, vec![tracked(n, 1000 + n as i32, WHERE)]));
    rig.source.push(buffer).unwrap();
    assert_eq!(rig.next(), format!("frame {n} of 64x48"));
}

#[test]
fn successful_background_run_resets_failure_count() {
    let n_runs = Arc::new(AtomicUsize::new(0));
    let counted = n_runs.clone();
    let slow = Slow::computing("reuse-async-count", 1, move |io| match counted.fetch_add(1, Ordering::AcqRel) {
        // Every second run fails. The first run succeeds, which shows that the model works.
        n if n % 2 == 1 => Err(Error::new(ErrorKind::Device, "no luck")),
        _ => answer(io),
    });
    let rig = Rig::begun(&slow.classify("nireq=1 classifier-async-mode=true max-failures=2"));
    for n in 0..12 {
        push_a_new_object(&rig, n);
        eventually("its run is over", || rig.count("runs") == n + 1);
    }
    eventually("all failures are reported", || {
        rig.source.push(black(100)).unwrap();
        rig.next();
        rig.count("failed") == 6
    });
    assert!(!rig.has_error(), "never two in a row");
}

#[test]
fn canceled_background_runs_are_not_failures() {
    let slow = says_colors("reuse-async-unlinked", 1);
    let rig = Rig::begun(&slow.classify("nireq=1 classifier-async-mode=true max-failures=0"));
    push_a_new_object(&rig, 0);
    eventually("it has run", || rig.count("runs") == 1);
    slow.hold();
    push_a_new_object(&rig, 1);
    slow.wait_for(1);
    // This run waits for the request.
    push_a_new_object(&rig, 2);
    rig.element.static_pad("src").unwrap().unlink(&rig.sink).unwrap();
    assert_eq!(rig.refusal(), gst::FlowError::NotLinked);
    slow.release();
    rig.link();
    for n in 10..20 {
        eventually("the frame is accepted", || rig.source.push(black(n)).is_ok());
        while rig.next() != format!("frame {n} of 64x48") {}
    }
    assert_eq!(rig.count("failed"), 0);
    assert!(!rig.has_error());
}

#[test]
fn flush_and_stop_discard_cached_results() {
    let slow = says_colors("reuse-reset", 1);
    let rig = Rig::begun(&slow.classify("reclassify-interval=0"));
    let see = |n: u64, color: [u8; 3]| {
        rig.source.push(frame(n, color)).unwrap();
        while rig.next() != format!("frame {n} of 64x48") {}
        rig.left().pop().unwrap().labels
    };
    assert_eq!([see(0, RED), see(1, GREEN)], [["red"], ["red"]]);
    rig.event(gst::event::FlushStart::new());
    rig.event(gst::event::FlushStop::new(true));
    rig.segment();
    assert_eq!([see(2, GREEN), see(3, BLUE)], [["green"], ["green"]]);
    rig.element.set_state(gst::State::Ready).unwrap();
    rig.element.set_state(gst::State::Playing).unwrap();
    rig.begin();
    assert_eq!([see(4, BLUE), see(5, RED)], [["blue"], ["blue"]]);
}

#[test]
fn tenth_of_runs_gives_similar_results_on_real_clip() {
    let (Some(clip), Some(models)) = (real("videos/faces_grid_1280x720.mp4"), real("models")) else { return };
    let descriptions = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models");
    let (models, descriptions) = (models.display(), descriptions.display());
    let play = |properties: &str| {
        let line = format!(
            "filesrc location={} ! decodebin ! videoconvert ! video/x-raw,format=NV12 \
             ! roidetect model={models}/ultraface_rfb_320_nhwc.onnx description={descriptions}/ultraface-rfb-320.toml ! roitrack \
             ! roiclassify name=classify model={models}/gender-v1.onnx description={descriptions}/gender.toml {properties} ! fakesink name=sink",
            clip.display()
        );
        let pipeline = pipeline(&line);
        let arrived = collect(&pipeline, "sink", "sink");
        let ending = run(&pipeline);
        assert_eq!((ending.error, ending.warnings), (None, vec![]));
        let said: Vec<Vec<String>> = arrived.lock().unwrap().iter().map(|arrived| labels(&arrived.results().unwrap())).collect();
        let n_failed =
            arrived.lock().unwrap().iter().filter(|arrived| arrived.results().unwrap().status != InferenceStatus::Inferred).count();
        assert_eq!(n_failed, 0);
        let stats: gst::Structure = pipeline.by_name("classify").unwrap().property("stats");
        let count = |field: &str| stats.get::<u64>(field).unwrap();
        (said, count("objects-classified"), count("objects-recalled"))
    };
    let (every, n_every, _) = play("");
    let n_objects: usize = every.iter().map(Vec::len).sum();
    assert_eq!(n_every, n_objects as u64);
    for properties in [
        "reclassify-interval=10",
        "reclassify-interval=10 reclassify-growth=0.2 consensus=5",
        "reclassify-interval=0",
        "reclassify-movement=0.1",
    ] {
        let (said, n_classified, n_recalled) = play(properties);
        assert_eq!(
            said.iter().map(Vec::len).collect::<Vec<_>>(),
            every.iter().map(Vec::len).collect::<Vec<_>>(),
            "each object has a label"
        );
        let n_same: usize = said.iter().zip(&every).map(|(some, every)| some.iter().zip(every).filter(|(a, b)| a == b).count()).sum();
        eprintln!(
            "{properties}: {n_classified} of {n_objects} objects classified, {n_recalled} recalled, {:.1} % of the labels as in every frame",
            100.0 * n_same as f64 / n_objects as f64
        );
        assert!(n_classified < n_every && n_same * 10 >= n_objects * 8, "{properties}");
    }
    let kinds: BTreeSet<&String> = every.iter().flatten().collect();
    assert_eq!(kinds.len(), 2);
}
