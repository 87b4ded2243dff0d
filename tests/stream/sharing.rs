//! Elements of several streams and pipelines that share a compiled model: a stalled, failed or removed stream does not block others, and
//! frames form batches.

use std::sync::Arc;
use std::time::Duration;

use gst::prelude::*;
use gstreamer as gst;
use roiflow::devices::null::{NullDevice, Script};
use roiflow::frame::{PixelRect, Size};

use crate::harness::{
    Slow, TIMEOUT, attach, caps, classify, collect, detect, eventually, face, feed, init, is_alone, picture, pipeline, results, run, tiny,
};
use crate::rig::{Rig, black};

/// A null device for one test.
struct Scripted {
    script: Arc<Script>,
}

impl Scripted {
    /// Registers a device with one output, whose batch items all have the values `row`.
    fn register(name: &str, row: &'static [f32], shape: fn(usize) -> Vec<usize>) -> Arc<Self> {
        init();
        let script = Arc::new(Script::computing(move |io, _| {
            let n_rows = io.input(0).layout().shape()[0];
            io.output(0, &shape(n_rows))?.dense_mut::<f32>()?.chunks_mut(row.len()).for_each(|output| output.copy_from_slice(row));
            Ok(())
        }));
        roiflow::stages::Engine::of_process().register_device(Arc::new(NullDevice::instance(name, script.clone())));
        Arc::new(Self { script })
    }

    /// Returns a detector that finds one box per image.
    fn detector(name: &str) -> Arc<Self> {
        Self::register(name, &[0.0, 1.0, 0.25, 0.25, 0.75, 0.75], |n_rows| vec![n_rows, 1, 6])
    }

    fn n_compiled(&self) -> usize {
        self.script.n_compiled()
    }
}

fn to(state: gst::State, pipelines: &[gst::Pipeline]) {
    for pipeline in pipelines {
        pipeline.set_state(state).unwrap();
    }
}

#[test]
fn pipelines_share_model_and_last_one_frees_it() {
    let device = Scripted::detector("NULL.sixteen");
    let before = Arc::strong_count(&device.script);
    for named in ["", "model-instance-id=of-all"] {
        let line = format!(
            "videotestsrc num-buffers=30 ! video/x-raw,format=RGB,width=64,height=48 ! {} ! fakesink name=sink",
            detect("rectangle", &format!("device=NULL.sixteen name=detect {named}"))
        );
        let n_compiled = device.n_compiled();
        let pipelines: Vec<gst::Pipeline> = (0..16).map(|_| pipeline(&line)).collect();
        let playing: Vec<_> = pipelines
            .iter()
            .cloned()
            .map(|pipeline| {
                std::thread::spawn(move || {
                    let bus = pipeline.bus().unwrap();
                    let _ = pipeline.set_state(gst::State::Playing);
                    let ended = bus.timed_pop_filtered(TIMEOUT, &[gst::MessageType::Eos, gst::MessageType::Error]).unwrap();
                    assert_eq!(ended.type_(), gst::MessageType::Eos, "{ended:?}");
                })
            })
            .collect();
        playing.into_iter().for_each(|playing| playing.join().unwrap());
        assert_eq!(device.n_compiled(), n_compiled + 1);
        for pipeline in &pipelines {
            let stats: gst::Structure = pipeline.by_name("detect").unwrap().property("stats");
            let count = |field: &str| stats.get::<u64>(field).unwrap();
            assert_eq!((count("frames-in"), count("inferred"), count("objects")), (30, 30, 30), "{stats}");
            assert_eq!((count("runs"), count("rows")), (30, 30), "{stats}");
        }
        to(gst::State::Null, &pipelines[..15]);
        assert!(Arc::strong_count(&device.script) > before);
        to(gst::State::Null, &pipelines[15..]);
        assert_eq!(Arc::strong_count(&device.script), before, "released before the state change returns");
    }
}

#[test]
fn stalled_stream_does_not_block_others() {
    let device = Scripted::detector("NULL.still");
    let line = detect("rectangle", "device=NULL.still nireq=1 queue-policy=wait");
    let (still, other) = (Rig::begun(&line), Rig::begun(&line));
    let (sender, go_on) = std::sync::mpsc::channel::<()>();
    still.answer(move |_| {
        let _ = go_on.recv();
        Ok(gst::FlowSuccess::Ok)
    });
    let source = still.source.clone();
    // Push more frames than the element can hold, so that the source waits, too.
    let pushing = std::thread::spawn(move || (0..20).for_each(|n| assert!(source.push(black(n)).is_ok())));
    eventually("its window is full", || still.count("frames-in") == 5);
    for n in 0..100 {
        other.frame(n).unwrap();
        assert_eq!(other.next(), format!("frame {n} of 64x48"));
    }
    assert_eq!((other.count("inferred"), device.n_compiled()), (100, 1));
    drop(sender);
    pushing.join().unwrap();
    still.event(gst::event::Eos::new());
    assert_eq!(still.until_eos().len(), 20);
}

#[test]
fn failed_or_removed_stream_loses_only_its_frames() {
    let slow = Slow::open("dies", 1);
    let line = slow.detect("nireq=1 queue-policy=wait");
    let (failing, leaving, other) = (Rig::begun(&line), Rig::begun(&line), Rig::begun(&line));
    failing.answer(|_| Err(gst::FlowError::Error));
    assert_eq!(failing.refusal(), gst::FlowError::Error);
    failing.element.set_state(gst::State::Null).unwrap();
    slow.hold();
    other.frame(0).unwrap();
    slow.wait_for(1);
    leaving.frame(0).unwrap();
    // No run ends, so the state change would not return if it waited for the runs of other streams.
    let begin = std::time::Instant::now();
    leaving.element.set_state(gst::State::Null).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(4), "it waited for frames of other streams: {:?}", begin.elapsed());
    slow.release();
    other.frames(1..10);
    other.event(gst::event::Eos::new());
    assert_eq!(other.until_eos().len(), 10);
    assert_eq!((other.count("inferred"), other.count("failed")), (10, 0));
    other.check_counts();
}

#[test]
fn frames_of_streams_form_batches_with_timeout() {
    let device = Scripted::detector("NULL.gathered");
    let line = |timeout| detect("rectangle", &format!("device=NULL.gathered nireq=1 batch-size=8 batch-timeout={timeout}"));
    {
        // With a single stream, the run starts when the timeout expires, because no other stream fills the batch.
        let first = Rig::begun(&line(20));
        let n_calls = device.script.n_calls();
        first.frame(0).unwrap();
        assert_eq!(first.next(), "frame 0 of 64x48");
        assert_eq!(device.script.n_calls(), n_calls + 1);
    }
    let rigs: Vec<Rig> = (0..8).map(|_| Rig::begun(&line(1000))).collect();
    let n_calls = device.script.n_calls();
    rigs.iter().for_each(|rig| rig.frames(0..1));
    rigs.iter().for_each(|rig| assert_eq!(rig.next(), "frame 0 of 64x48"));
    let n_calls = device.script.n_calls() - n_calls;
    // A machine stall of one second between two frames splits the batch.
    assert!((1..=2).contains(&n_calls), "{n_calls} calls");
    assert!(rigs.iter().all(|rig| rig.left()[0].ids.len() == 1));
}

#[test]
fn regions_of_frame_form_one_batch() {
    let device = Scripted::register("NULL.regions", &[0.0, 1.0, 0.0, 0.0], |n_rows| vec![n_rows, 4]);
    let line = format!(
        "appsrc name=source ! identity name=attach ! {} ! fakesink name=sink",
        classify("color", "device=NULL.regions nireq=1 name=classify")
    );
    let pipeline = pipeline(&line);
    let size = Size::new(64, 48);
    attach(&pipeline, move |n| {
        let faces = (0..16).map(|id| face(id + 1, PixelRect { x: id as u32 * 4, y: 8, width: 4, height: 8 }.to_rect()));
        results(size, n, faces.collect())
    });
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", size), (0..10).map(|_| picture(size, PixelRect { x: 0, y: 0, width: 9, height: 9 }, [255; 3])));
    assert_eq!(run(&pipeline).error, None);
    assert_eq!(device.script.n_calls(), 10, "one run per frame");
    for arrived in &*arrived.lock().unwrap() {
        let results = arrived.results().unwrap();
        assert!(results.detections.iter().all(|face| face.classifications.iter().any(|said| &*said.name == "color")), "{results:?}");
    }
}

#[test]
fn contradictory_options_of_shared_model_are_errors() {
    let first = Rig::begun(&detect("rectangle", "device=CPU nireq=1 model-instance-id=both"));
    for (model, properties, says) in [
        ("stripes", "", "stripes.onnx"),
        ("rectangle", "nireq=2", "nireq: 1 in the other element, 2 in this one"),
        ("rectangle", "device=ORT.CPU", "device: CPU in the other element, ORT.CPU in this one"),
    ] {
        let other = pipeline(&format!("fakesrc ! {} ! fakesink", detect(model, &format!("model-instance-id=both {properties}"))));
        let error = run(&other).error.unwrap();
        assert!(error.contains("model-instance-id `both`") && error.contains(says), "{error}");
    }
    first.frame(0).unwrap();
    assert_eq!(first.next(), "frame 0 of 64x48");
    assert_eq!(first.element.property::<Option<String>>("model-instance-id").as_deref(), Some("both"));
}

#[test]
fn thresholds_and_policies_are_not_shared() {
    let device = Scripted::register("NULL.own", &[0.0, 0.8, 0.25, 0.25, 0.75, 0.75], |n_rows| vec![n_rows, 1, 6]);
    let rig = |properties: &str| Rig::begun(&detect("rectangle", &format!("device=NULL.own {properties}")));
    let (low, high, seldom) = (rig("threshold=0.1"), rig("threshold=0.9 scheduling-policy=latency"), rig("inference-interval=2"));
    for rig in [&low, &high, &seldom] {
        rig.frames(0..4);
        (0..4).for_each(|n| assert_eq!(rig.next(), format!("frame {n} of 64x48")));
    }
    let found = |rig: &Rig| rig.left().iter().map(|left| left.ids.len()).collect::<Vec<_>>();
    assert_eq!((found(&low), found(&high), found(&seldom)), (vec![1; 4], vec![0; 4], vec![1, 0, 1, 0]));
    assert_eq!(device.n_compiled(), 1);
    assert!(low.count("window") > high.count("window"));
}

/// Measures the memory that an additional stream uses in addition to its frames. The model, the requests and the threads already exist.
#[test]
fn additional_stream_uses_no_model_memory() {
    if !is_alone() {
        return;
    }
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    let line = format!(
        "videotestsrc num-buffers=60 ! video/x-raw,format=NV12,width=320,height=240 ! roidetect model={} device=CPU ! fakesink",
        tiny("stripes.onnx")
    );
    let mut kilobytes = Vec::new();
    for n_streams in [1, 2, 4, 8, 16] {
        let pipelines: Vec<gst::Pipeline> = (0..n_streams).map(|_| pipeline(&line)).collect();
        let begin = std::time::Instant::now();
        to(gst::State::Playing, &pipelines);
        for pipeline in &pipelines {
            let ended = pipeline.bus().unwrap().timed_pop_filtered(TIMEOUT, &[gst::MessageType::Eos, gst::MessageType::Error]).unwrap();
            assert_eq!(ended.type_(), gst::MessageType::Eos);
        }
        let took = begin.elapsed();
        kilobytes.push(resident());
        to(gst::State::Null, &pipelines);
        eprintln!(
            "{n_streams:2} streams: {:7.1} frames/s, {:6.0} us a frame, {} KiB resident",
            f64::from(n_streams) * 60.0 / took.as_secs_f64(),
            took.as_secs_f64() * 1e6 / f64::from(n_streams) / 60.0,
            kilobytes[kilobytes.len() - 1]
        );
    }
    // A queue of NV12 frames of this size needs less than 1 MiB; threads and pads of GStreamer need some more.
    let per_stream = kilobytes[4].saturating_sub(kilobytes[0]) / 15;
    assert!(per_stream < 4096, "{per_stream} KiB for each further stream: {kilobytes:?}");
}
