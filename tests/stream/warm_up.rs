//! If an element must know the run time in advance, the model runs before the first frame. Otherwise the first frame is the warm-up. In
//! both cases, a model that never runs is an error, not a warning per frame.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;

use gst::prelude::*;
use gstreamer as gst;
use roiflow::devices::null::Gate;
use roiflow::frame::{ObjectId, Rect};
use roiflow::runtime::{Error, ErrorKind};

use crate::harness::{Slow, TIMEOUT, caps, detect_compiled_through, eventually, face, pipeline, results, run};
use crate::rig::{Rig, SIZE, black};

/// Returns a device. `fails` gets the number of a run, counted with the warm-up runs, and returns whether this run fails.
fn failing(name: &str, fails: impl Fn(u64) -> bool + Send + Sync + 'static) -> Arc<Slow> {
    let n_runs = AtomicU64::new(0);
    Slow::computing(name, 1, move |io| {
        if fails(n_runs.fetch_add(1, Ordering::AcqRel)) {
            return Err(Error::new(ErrorKind::Device, "the device is on fire"));
        }
        // Outputs in the format of the detector and the classifier of these tests.
        let (shape, answer): (&[usize], &[f32]) = match io.input_tensor(0).shape()[..] {
            [1, 64, 64, 3] => (&[1, 1, 6], &[0.0, 1.0, 0.25, 0.25, 0.75, 0.75]),
            _ => (&[1, 4], &[1.0, 0.0, 0.0, 0.0]),
        };
        io.output(0, shape)?.dense_mut::<f32>()?.copy_from_slice(answer);
        Ok(())
    })
}

/// Returns the warnings and errors on the bus since the last call.
fn said(rig: &Rig) -> Vec<String> {
    let next = || rig.bus.pop_filtered(&[gst::MessageType::Warning, gst::MessageType::Error]);
    let text = |message: gst::Message| match message.view() {
        gst::MessageView::Warning(warning) => format!("warning: {}", warning.error()),
        gst::MessageView::Error(error) => format!("error: {}", error.error()),
        other => unreachable!("filtered, {other:?}"),
    };
    std::iter::from_fn(next).map(text).collect()
}

#[test]
fn warm_up_runs_only_if_run_time_matters() {
    let slow = Slow::open("warm-up", 1);
    let line = |properties| slow.detect(&format!("nireq=1 queue-policy=wait {properties}"));
    for (what, rig, n_before) in [
        ("a file", Rig::begun(&line("")), 0),
        ("a live source", Rig::begun_live(&line("model-instance-id=live")), 2),
        ("a limit of the latency", Rig::begun(&line("model-instance-id=limit max-latency=60000")), 2),
        ("another stream of a model that is warm", Rig::begun_live(&line("model-instance-id=live")), 0),
    ] {
        assert_eq!(rig.count("runs"), n_before, "{what}");
        rig.frame(0).unwrap();
        rig.next();
        assert_eq!((rig.count("runs"), rig.count("inferred")), (n_before + 1, 1), "{what}");
    }
}

#[test]
fn broken_model_ends_stream_with_first_frame() {
    let device = failing("never-runs", |_| true);
    let rig = Rig::begun(&device.detect("nireq=1 max-failures=-1"));
    for round in 0..2 {
        assert_eq!(rig.refusal(), gst::FlowError::Error, "upstream gets the error");
        let said = said(&rig);
        let [said] = &said[..] else { panic!("expected one error: {said:?}") };
        for part in ["error: the model has never run", "the device is on fire", "`roiflow bench MODEL --device NULL.never-runs`"] {
            assert!(said.contains(part), "{said}");
        }
        let left = rig.left();
        assert!(left.len() == 1 && left[0].status.contains("on fire"), "round {round}: {left:?}");
        rig.check_counts();
        // A flush resets the count.
        rig.event(gst::event::FlushStart::new());
        rig.event(gst::event::FlushStop::new(true));
        rig.segment();
    }
}

#[test]
fn failed_first_frame_of_working_model_is_a_warning() {
    // The runs are: the first frame's run, two runs that test the model, and the second frame's run.
    let device = failing("first-fails", |n| n == 0 || n == 4);
    let rig = Rig::begun(&device.detect("nireq=1"));
    for (n, n_runs) in [(0, 3), (1, 4), (2, 5), (3, 6)] {
        rig.frame(n).unwrap();
        rig.next();
        assert_eq!(rig.count("runs"), n_runs, "a model that has run is not tested again");
        let said = said(&rig);
        assert_eq!(said.len() == 1 && said[0].starts_with("warning: inference failed on frame"), n % 2 == 0, "frame {n}: {said:?}");
    }
    assert_eq!((rig.count("failed"), rig.count("inferred")), (2, 2));
}

#[test]
fn broken_classifier_ends_stream_with_first_object() {
    let device = failing("classifier-never-runs", |_| true);
    let rig = Rig::begun(&device.classify("nireq=1 batch-size=1"));
    rig.frames(0..5);
    (0..5).for_each(|_| drop(rig.next()));
    assert_eq!((rig.count("inferred"), said(&rig)), (5, vec![]));
    let mut frame = black(5);
    let objects = vec![face(1, Rect::from_corners(8.0, 8.0, 24.0, 24.0))];
    roiflow::elements::meta::attach(frame.make_mut(), results(SIZE, 5, objects));
    // This push may already return the error.
    let _result = rig.source.push(frame);
    let said = rig.error();
    assert!(said.contains("never run") && said.contains("on fire"), "{said}");
}

#[test]
fn model_with_successful_run_is_not_tested_again() {
    let is_lost = Arc::new(AtomicBool::new(false));
    let lost = is_lost.clone();
    let device = failing("has-run", move |_| lost.load(Ordering::Acquire));
    let fails = |what: &str, rig: &Rig| {
        is_lost.store(true, Ordering::Release);
        rig.frame(100).unwrap();
        while !rig.next().starts_with("frame 100") {}
        let said = said(rig);
        assert!(said.len() == 1 && said[0].starts_with("warning"), "{what}: {said:?}");
        is_lost.store(false, Ordering::Release);
    };
    let (first, second) = (Rig::begun(&device.detect("nireq=1")), Rig::begun(&device.detect("nireq=1")));
    first.frame(0).unwrap();
    first.next();
    fails("another stream of the same model", &second);
    first.element.set_state(gst::State::Ready).unwrap();
    first.element.set_state(gst::State::Playing).unwrap();
    first.begin();
    fails("a restarted stream", &first);

    // Runs in the background (`classifier-async-mode`) are counted as well.
    let rig = Rig::begun(&device.classify("nireq=1 batch-size=1 classifier-async-mode=true reclassify-interval=1"));
    let tracked = |n: u64| {
        let mut frame = black(n);
        let object = roiflow::frame::Detection { track: Some(ObjectId(1)), ..face(1, Rect::from_corners(8.0, 8.0, 24.0, 24.0)) };
        roiflow::elements::meta::attach(frame.make_mut(), results(SIZE, n, vec![object]));
        frame
    };
    rig.source.push(tracked(0)).unwrap();
    rig.next();
    eventually("it has run", || rig.count("runs") == 1);
    is_lost.store(true, Ordering::Release);
    eventually("the failure is reported", || {
        let n = rig.count("frames-in");
        rig.source.push(tracked(n)).unwrap();
        rig.next();
        rig.count("failed") > 0
    });
    assert!(said(&rig).iter().all(|said| said.starts_with("warning")));
}

#[test]
fn failed_warm_up_of_working_model_starts_stream() {
    let is_lost = Arc::new(AtomicBool::new(false));
    let n_failed = Arc::new(AtomicU64::new(0));
    let (lost, failed) = (is_lost.clone(), n_failed.clone());
    let device = failing("warm-up-fails", move |_| {
        let fails = lost.load(Ordering::Acquire);
        failed.fetch_add(u64::from(fails), Ordering::AcqRel);
        fails
    });
    let first = Rig::begun(&device.detect("nireq=1"));
    first.frame(0).unwrap();
    first.next();
    is_lost.store(true, Ordering::Release);
    // The model is tested after it is loaded, and again when the caps arrive.
    let second = Rig::begun(&device.detect("nireq=1 max-latency=60000"));
    assert_eq!(n_failed.load(Ordering::Acquire), 2);
    is_lost.store(false, Ordering::Release);
    second.frame(1).unwrap();
    assert_eq!(second.next(), "frame 1 of 64x48");
    assert_eq!((second.count("inferred"), said(&second)), (1, vec![]));
}

#[test]
fn live_latency_is_reported_later_after_failed_warm_up() {
    let is_lost = Arc::new(AtomicBool::new(false));
    let lost = is_lost.clone();
    let device = failing("untold", move |_| lost.load(Ordering::Acquire));
    let first = Rig::begun(&device.detect("nireq=1"));
    first.frame(0).unwrap();
    first.next();
    is_lost.store(true, Ordering::Release);
    let second = Rig::begun_live(&device.detect("nireq=1 queue-policy=wait"));
    is_lost.store(false, Ordering::Release);
    let latency = || {
        let mut query = gst::query::Latency::new();
        assert!(second.element.static_pad("src").unwrap().query(&mut query));
        query.result().1
    };
    let messages = || std::iter::from_fn(|| second.bus.pop_filtered(&[gst::MessageType::Latency])).count();
    second.frame(1).unwrap();
    assert_eq!(second.next(), "frame 1 of 64x48");
    eventually("the pipeline must query the latency", || messages() == 1);
    let told = latency();
    assert!(told > gst::ClockTime::ZERO);
    assert_eq!((second.count("inferred"), said(&second)), (1, vec![]));
}

/// Sends a flush, and returns whether it completed while the device was held.
fn flushes(rig: &Rig) -> bool {
    let (source, (sender, ended)) = (rig.source.clone(), channel());
    std::thread::spawn(move || {
        source.push_event(gst::event::FlushStart::new());
        source.push_event(gst::event::FlushStop::new(true));
        let _nobody_waits = sender.send(());
    });
    ended.recv_timeout(TIMEOUT.into()).is_ok()
}

/// Starts a stream on a new thread. When this function returns, that thread waits for the model or its warm-up.
fn begin_aside(rig: &Rig) -> std::thread::JoinHandle<()> {
    let (source, (sender, caps_came)) = (rig.source.clone(), channel());
    let sinkpad = rig.element.static_pad("sink").unwrap();
    let probe = sinkpad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
        if info.event().is_some_and(|event| event.type_() == gst::EventType::Caps) {
            let _told = sender.send(());
        }
        gst::PadProbeReturn::Ok
    });
    let beginning = std::thread::spawn(move || {
        source.push_event(gst::event::StreamStart::new("stream"));
        source.push_event(gst::event::Caps::new(&caps("RGB", SIZE)));
    });
    // Now the thread that pushes CAPS holds the pad's stream lock. FLUSH_STOP needs this lock, so it waits.
    caps_came.recv_timeout(TIMEOUT.into()).unwrap();
    sinkpad.remove_probe(probe.unwrap());
    beginning
}

/// Returns a live stream with a cached model that hangs in its warm-up.
fn hangs_in_warm_up(slow: &Slow) -> Rig {
    let rig = Rig::begun(&slow.detect("nireq=1 queue-policy=wait"));
    rig.element.set_state(gst::State::Ready).unwrap();
    rig.is_live.store(true, Ordering::Release);
    slow.hold();
    rig.element.set_state(gst::State::Playing).unwrap();
    rig
}

#[test]
fn flush_does_not_wait_for_loading_or_warm_up() {
    let gate = Gate::closed();
    let making = Rig::behind(&detect_compiled_through(&gate, "flushed-while-made"), false);
    making.link();
    let slow = Slow::open("flushed-while-warm", 1);
    let hanging = hangs_in_warm_up(&slow);
    let beginnings = [("a model that is being made", &making), ("a warm-up that hangs", &hanging)].map(|(what, rig)| {
        let beginning = begin_aside(rig);
        assert!(flushes(rig), "{what}");
        beginning
    });
    slow.wait_for(1);
    gate.open();
    slow.release();
    // After a flush that removed its events, upstream may send its caps again. The repeated caps must wait for the model.
    beginnings.into_iter().for_each(|beginning| beginning.join().unwrap());
    for rig in [making, hanging] {
        rig.segment();
        rig.frame(1).unwrap();
        while rig.next() != "frame 1 of 64x48" {}
        assert_eq!(
            (rig.count("inferred"), said(&rig)),
            (1, vec![]),
            "the caps are known, although they arrived before the model was loaded"
        );
    }
}

#[test]
fn hanging_warm_up_is_abandoned_on_stop() {
    let slow = Slow::open("hangs", 1);
    let rig = hangs_in_warm_up(&slow);
    let beginning = begin_aside(&rig);
    slow.wait_for(1);
    // The change to NULL waits for the hanging warm-up until a time limit.
    rig.element.set_state(gst::State::Null).unwrap();
    beginning.join().unwrap();
    // Remove the bus, because messages on it hold references to the element.
    rig.element.set_bus(None::<&gst::Bus>);
    let element = rig.element.downgrade();
    drop(rig);
    slow.release();
    eventually("its resources are released", || element.upgrade().is_none());
}

#[test]
fn broken_model_is_reported_in_paused() {
    let device = failing("paused", |_| true);
    let pipeline = pipeline(&format!("videotestsrc ! video/x-raw,format=RGB,width=64,height=48 ! {} ! fakesink", device.detect("nireq=1")));
    pipeline.set_state(gst::State::Paused).unwrap();
    let message = pipeline.bus().unwrap().timed_pop_filtered(TIMEOUT, &[gst::MessageType::Error]);
    pipeline.set_state(gst::State::Null).unwrap();
    let message = message.expect("an error is reported");
    let gst::MessageView::Error(error) = message.view() else { unreachable!("filtered") };
    assert!(error.error().to_string().contains("never run"), "{error:?}");
}

#[test]
fn stream_that_becomes_live_is_warmed_up() {
    let slow = Slow::open("turns-live", 1);
    let rig = Rig::begun(&slow.detect("nireq=1 queue-policy=wait"));
    rig.is_live.store(true, Ordering::Release);
    rig.begin();
    rig.expect(&["stream-start", "caps 64x48", "segment"]);
    assert_eq!(rig.count("runs"), 2);

    // The only request is busy: the warm-up waits for it when the flush arrives.
    let slow = Slow::open("turns-live-busy", 1);
    let rig = Rig::begun(&slow.detect("nireq=1 queue-policy=wait"));
    slow.hold();
    rig.frame(0).unwrap();
    slow.wait_for(1);
    rig.is_live.store(true, Ordering::Release);
    let source = rig.source.clone();
    let beginning = std::thread::spawn(move || {
        source.push_event(gst::event::StreamStart::new("live"));
        source.push_event(gst::event::Caps::new(&caps("RGB", SIZE)));
    });
    eventually("the caps have passed", || {
        rig.event(gst::event::FlushStart::new());
        rig.event(gst::event::FlushStop::new(true));
        beginning.is_finished()
    });
    slow.release();
    rig.begin();
    rig.frame(1).unwrap();
    while rig.next() != "frame 1 of 64x48" {}
    assert_eq!((said(&rig), rig.count("inferred")), (vec![], 1));
}

#[test]
fn live_stream_with_broken_model_does_not_start() {
    let device = failing("live-never-runs", |_| true);
    let line = format!("videotestsrc is-live=true ! video/x-raw,format=RGB,width=64,height=48 ! {} ! fakesink", device.detect("nireq=1"));
    let pipeline = pipeline(&line);
    for _ in 0..2 {
        let ending = run(&pipeline);
        let said = ending.error.expect("an error ends it");
        assert!(said.contains("the device is on fire"), "{said}");
        assert_eq!(ending.warnings, Vec::<String>::new());
    }
}

#[test]
fn latency_query_waits_for_model_only_if_live() {
    let gate = Gate::closed();
    let rig = Rig::new(&detect_compiled_through(&gate, "latency-asked"));
    gate.wait_for_arrivals(1);
    let (answered, answer) = channel();
    let pad = rig.element.static_pad("src").unwrap();
    std::thread::spawn(move || {
        let mut query = gst::query::Latency::new();
        let _ = answered.send(pad.query(&mut query).then(|| query.result().0));
    });
    assert_eq!(answer.recv_timeout(TIMEOUT.into()), Ok(Some(false)));
    gate.open();
}
