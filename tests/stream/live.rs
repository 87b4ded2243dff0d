//! Live sources with GStreamer's test clock and controlled runs: order, latency, lateness, and held frames.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;
use gstreamer_check::Harness;
use roiflow::devices::null::{Gate, NullDevice, Script};
use roiflow::frame::{PixelRect, Size};
use roiflow::runtime::executor::Pool;

use crate::harness::{FRAME_TIME, TIMEOUT, caps, detect, eventually, init, is_alone, on_buffers, picture, pipeline, stamp};
use crate::rig::{SIZE, black};

/// A device whose runs end individually, in any order. Runs before `hold` are not counted and end at once. Only the very first run, the
/// warm-up, takes the time `warm_up`.
struct Numbered {
    name: String,
    warm_up: Duration,
    state: Mutex<NumberedState>,
    changed: Condvar,
}

#[derive(Default)]
struct NumberedState {
    is_warm: bool,
    counts: bool,
    n_begun: usize,
    let_go: BTreeSet<usize>,
}

impl Numbered {
    fn new(name: &str, n_threads: usize) -> Arc<Self> {
        Self::warmed_up_in(Duration::ZERO, name, n_threads, None)
    }

    /// Like [`Numbered::new`], with this duration of the warm-up, and with a gate that blocks the compilation.
    fn warmed_up_in(warm_up: Duration, name: &str, n_threads: usize, compile_gate: Option<Arc<Gate>>) -> Arc<Self> {
        init();
        let name = format!("NULL.numbered-{name}");
        let numbered = Arc::new(Self { name: name.clone(), warm_up, state: Mutex::default(), changed: Condvar::new() });
        let of_runs = numbered.clone();
        let script = Script {
            executor: Some(Arc::new(Pool::new("numbered", n_threads).unwrap())),
            compile_gate,
            ..Script::computing(move |io, _| {
                of_runs.pass();
                io.output(0, &[1, 1, 6])?.dense_mut::<f32>()?.copy_from_slice(&[0.0, 1.0, 0.25, 0.25, 0.75, 0.75]);
                Ok(())
            })
        };
        roiflow::stages::Engine::of_process().register_device(Arc::new(NullDevice::instance(&name, Arc::new(script))));
        numbered
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        if !state.counts {
            let is_first = !std::mem::replace(&mut state.is_warm, true);
            drop(state);
            return std::thread::sleep(if is_first { self.warm_up } else { Duration::ZERO });
        }
        let number = state.n_begun;
        state.n_begun += 1;
        self.changed.notify_all();
        let (_state, waited) = self.changed.wait_timeout_while(state, TIMEOUT.into(), |state| !state.let_go.contains(&number)).unwrap();
        assert!(!waited.timed_out(), "run {number} was never released");
    }

    /// Counts runs from now on and makes them wait.
    fn hold(&self) {
        *self.state.lock().unwrap() = NumberedState { counts: true, ..NumberedState::default() };
    }

    fn wait_for(&self, n_begun: usize) {
        let state = self.state.lock().unwrap();
        let (state, waited) = self.changed.wait_timeout_while(state, TIMEOUT.into(), |state| state.n_begun < n_begun).unwrap();
        assert!(!waited.timed_out(), "{} of {n_begun} runs began", state.n_begun);
    }

    fn let_go(&self, number: usize) {
        self.state.lock().unwrap().let_go.insert(number);
        self.changed.notify_all();
    }
}

/// Returns an element with the test clock and a live source.
fn harness(line: &str) -> (Harness, gst::Element) {
    init();
    let element = gst::parse::launch(line).unwrap();
    let mut harness = Harness::with_element(&element, Some("sink"), Some("src"));
    harness.set_src_caps(caps("RGB", SIZE));
    harness.play();
    (harness, element)
}

/// Like [`harness`], with a source that follows the test clock, which advances one frame time per frame.
fn behind_a_camera(line: &str) -> (Harness, gst::Element) {
    let (mut harness, element) = harness(line);
    harness.add_src_parse("videotestsrc is-live=true ! capsfilter caps=video/x-raw,format=RGB,width=64,height=48,framerate=25/1", true);
    (harness, element)
}

fn count(element: &gst::Element, field: &str) -> u64 {
    element.property::<gst::Structure>("stats").get(field).unwrap()
}

fn number(buffer: &gst::BufferRef) -> u64 {
    buffer.pts().unwrap() / FRAME_TIME
}

fn status(buffer: &gst::BufferRef) -> String {
    format!("{:?}", roiflow::elements::meta::read(buffer, SIZE).unwrap().status)
}

#[test]
fn results_leave_in_arrival_order_as_soon_as_they_are_ready() {
    let device = Numbered::new("order", 3);
    let (mut harness, element) = harness(&detect("rectangle", &format!("device={} nireq=3", device.name)));
    device.hold();
    for n in 0..3 {
        harness.push(black(n)).unwrap();
        device.wait_for(n as usize + 1);
    }
    // The first run ends last.
    let before = count(&element, "runs");
    device.let_go(2);
    device.let_go(1);
    eventually("two runs have ended", || count(&element, "runs") == before + 2);
    assert_eq!(harness.buffers_received(), 0, "no frame overtakes another");
    device.let_go(0);
    let order: Vec<u64> = (0..3).map(|_| number(&harness.pull().unwrap())).collect();
    assert_eq!(order, [0, 1, 2]);

    // The run of frame 3 ends, although no further frame arrives and the run of frame 4 is still in progress.
    harness.push(black(3)).unwrap();
    device.wait_for(4);
    harness.push(black(4)).unwrap();
    device.wait_for(5);
    device.let_go(3);
    assert_eq!(number(&harness.pull().unwrap()), 3);
    assert_eq!(harness.buffers_received(), 4);
    device.let_go(4);
    assert_eq!(number(&harness.pull().unwrap()), 4);
}

#[test]
fn latency_is_raised_with_message_and_never_lowered() {
    let device = Numbered::new("latency", 1);
    let (mut harness, element) = harness(&detect("rectangle", &format!("device={} nireq=1", device.name)));
    let bus = gst::Bus::new();
    element.set_bus(Some(&bus));
    let upstream = gst::ClockTime::from_mseconds(10);
    harness.set_upstream_latency(upstream);
    let first = harness.query_latency().unwrap();
    assert!(first > upstream, "{first}: expected warm-up latency plus upstream's");
    let raises = || std::iter::from_fn(|| bus.pop_filtered(&[gst::MessageType::Latency])).count();
    assert_eq!(raises(), 0);
    device.hold();
    harness.push(black(0)).unwrap();
    device.wait_for(1);
    // The run time grows by more than 20 %. A run is slow only because the test holds it.
    let begin = Instant::now();
    let of_element = Duration::from_nanos((first - upstream).nseconds());
    std::thread::sleep(of_element * 2 + Duration::from_millis(20));
    let took = begin.elapsed();
    device.let_go(0);
    harness.pull().unwrap();
    let raised = harness.query_latency().unwrap();
    assert!(raised >= upstream + gst::ClockTime::from_nseconds(took.as_nanos() as u64), "{raised} after a run of {took:?}");
    assert_eq!(raises(), 1);
    for n in 1..20 {
        device.let_go(n);
        harness.push(black(n as u64)).unwrap();
        harness.pull().unwrap();
    }
    assert!(harness.query_latency().unwrap() >= raised, "the reported latency stays");
}

#[test]
fn live_frames_are_inferred_or_skipped_with_reason_in_order() {
    for (policy, drops) in [("", false), ("drop-frames=true", true)] {
        let device = Numbered::new("camera", 1);
        let (mut harness, element) = behind_a_camera(&detect("rectangle", &format!("device={} nireq=1 {policy}", device.name)));
        device.hold();
        // The engine completes one run per ten frames.
        const N_FRAMES: u64 = 200;
        for n in 0..N_FRAMES {
            harness.src_crank_and_push_many(1, 1).unwrap();
            if n % 10 == 0 {
                device.wait_for(n as usize / 10 + 1);
            }
            if n % 10 == 9 {
                device.let_go(n as usize / 10);
                // A completed frame keeps its slot until it leaves.
                eventually("it has left", || count(&element, "inferred") == n / 10 + 1);
            }
        }
        (N_FRAMES as usize / 10..N_FRAMES as usize).for_each(|number| device.let_go(number));
        assert!(harness.push_event(gst::event::Eos::new()));
        eventually("all have left", || count(&element, "frames-here") == 0);
        let mut left = Vec::new();
        while let Some(buffer) = harness.try_pull() {
            left.push((number(&buffer), status(&buffer)));
        }
        assert!(left.windows(2).all(|pair| pair[0].0 < pair[1].0), "{left:?}");
        let n_inferred = left.iter().filter(|(_, status)| status == "Inferred").count() as u64;
        assert!((20..40).contains(&n_inferred), "expected one of ten, and the last waiting ones: {left:?}");
        let not_inferred = count(&element, if drops { "dropped-queue-policy" } else { "skipped-queue-policy" });
        assert_eq!((count(&element, "frames-in"), n_inferred + not_inferred), (N_FRAMES, N_FRAMES));
        assert_eq!(left.len() as u64, if drops { n_inferred } else { N_FRAMES }, "{policy}");
    }
}

/// Longer than any delay of a thread on a busy machine. A frame waits for a slot at most as long as a recent run took.
const LONG_RUN: Duration = Duration::from_secs(2);

/// Each wait of a frame in [`fast_engine_infers_every_live_frame`] may take at least this long: the element averages the duration of the
/// warm-up with those of the six short runs that follow, so 2 s shrink to 0.9 s.
const SHORTEST_ALLOWED_WAIT: Duration = Duration::from_millis(800);

#[test]
fn fast_engine_infers_every_live_frame() {
    for n_requests in [1, 2] {
        // The elements measure time with the system's clock. An attempt in which the machine delays a push beyond the allowed wait shows
        // nothing, so it is repeated.
        let is_shown = (0..20).any(|attempt| {
            let device = Numbered::warmed_up_in(LONG_RUN, &format!("keeps-up-{n_requests}-{attempt}"), n_requests, None);
            let (mut harness, element) = behind_a_camera(&detect("rectangle", &format!("device={} nireq={n_requests}", device.name)));
            device.hold();
            let n_slots = count(&element, "window");
            harness.src_crank_and_push_many(n_slots as u32, n_slots as u32).unwrap();
            // Each of these frames finds no slot until a run ends while it waits.
            const N_WAIT: u64 = 6;
            let mut longest = Duration::ZERO;
            for n in n_slots..n_slots + N_WAIT {
                let begin = Instant::now();
                std::thread::scope(|scope| {
                    let pushing = scope.spawn(|| harness.src_crank_and_push_many(1, 1));
                    eventually("the frame has come", || count(&element, "frames-in") == n + 1);
                    device.let_go((n - n_slots) as usize);
                    pushing.join().unwrap().unwrap();
                });
                longest = longest.max(begin.elapsed());
            }
            let n_frames = n_slots + N_WAIT;
            (0..n_frames as usize).for_each(|number| device.let_go(number));
            assert!(harness.push_event(gst::event::Eos::new()));
            eventually("all have left", || count(&element, "frames-here") == 0);
            let counts = ["inferred", "skipped", "dropped"].map(|field| count(&element, field));
            let is_complete = counts == [n_frames, 0, 0];
            assert!(is_complete || longest >= SHORTEST_ALLOWED_WAIT, "{n_requests} requests: {counts:?}, pushes took at most {longest:?}");
            is_complete
        });
        assert!(is_shown, "{n_requests} requests: in each attempt, the machine delayed a push by more than {SHORTEST_ALLOWED_WAIT:?}");
    }
}

#[test]
fn explicit_drop_policy_never_waits_for_a_slot() {
    for policy in ["queue-policy=drop-oldest", "queue-policy=drop-newest", "max-latency=60000"] {
        // Without a policy, the fourth frame would wait for the duration `LONG_RUN`, and later frames would not wait. On a busy machine,
        // the pushes may take as long even without that wait, but not in every attempt.
        let is_quick = (0..5).any(|_| {
            let device = Numbered::warmed_up_in(LONG_RUN, "asked-for", 1, None);
            let (mut harness, element) = behind_a_camera(&detect("rectangle", &format!("device={} nireq=1 {policy}", device.name)));
            device.hold();
            let begin = Instant::now();
            harness.src_crank_and_push_many(8, 8).unwrap();
            let took = begin.elapsed();
            // One frame runs, and two have a slot.
            assert_eq!((count(&element, "frames-in"), count(&element, "frames-out")), (8, 0), "{policy}");
            (0..8).for_each(|number| device.let_go(number));
            assert!(harness.push_event(gst::event::Eos::new()));
            eventually("all have left", || count(&element, "frames-here") == 0);
            assert_eq!((count(&element, "inferred"), count(&element, "skipped-queue-policy")), (3, 5), "{policy}");
            took < LONG_RUN
        });
        assert!(is_quick, "{policy}: a frame waits for a slot");
    }
}

#[test]
fn frames_arriving_during_loading_are_all_inferred() {
    for policy in ["", "drop-frames=true"] {
        let gate = Gate::closed();
        let device = Numbered::warmed_up_in(LONG_RUN, &format!("loading{}", policy.len()), 1, Some(gate.clone()));
        let line = detect("rectangle", &format!("device={} nireq=1 {policy}", device.name));
        const N_FRAMES: u64 = 9;
        let playing = std::thread::spawn(move || {
            let (mut harness, element) = harness(&line);
            // All frames are late now. Three frames have a slot. Each further frame is less late than the frame before it.
            harness.use_testclock();
            harness.set_time(FRAME_TIME * N_FRAMES).unwrap();
            (0..N_FRAMES).for_each(|n| assert_eq!(harness.push(black(n)), Ok(gst::FlowSuccess::Ok)));
            assert!(harness.push_event(gst::event::Eos::new()));
            eventually("all have left", || count(&element, "frames-here") == 0);
            ["inferred", "skipped", "dropped"].map(|field| count(&element, field))
        });
        gate.wait_for_arrivals(1);
        gate.open();
        let counts = playing.join().unwrap();
        assert_eq!(counts, [N_FRAMES, 0, 0], "{policy}");
    }
}

#[test]
fn live_frames_leave_within_max_latency() {
    const N_FRAMES: u64 = 150;
    let device = Numbered::new("hangs", 1);
    let (mut harness, element) = behind_a_camera(&detect("rectangle", &format!("device={} nireq=1 max-latency=200", device.name)));
    device.hold();
    harness.src_crank_and_push_many(N_FRAMES as u32, N_FRAMES as u32).unwrap();
    // No run ends, so all frames must be skipped.
    let left: Vec<(u64, String)> = (0..N_FRAMES).map(|_| harness.pull().unwrap()).map(|frame| (number(&frame), status(&frame))).collect();
    assert_eq!(left.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (0..N_FRAMES).collect::<Vec<_>>());
    assert!(left.iter().all(|(_, status)| status.starts_with("Skipped")), "{left:?}");
    eventually("none is here", || count(&element, "frames-here") == 0);
    assert_eq!(
        count(&element, "skipped-queue-policy") + count(&element, "skipped-max-latency"),
        N_FRAMES,
        "what was not inferred is counted"
    );
    assert!(
        count(&element, "skipped-max-latency") > 0 && count(&element, "latency-p99-ns") >= 150_000_000,
        "expected to wait for max-latency"
    );
    (0..N_FRAMES as usize).for_each(|number| device.let_go(number));
}

#[test]
fn backpressure_slows_source_and_bounds_memory() {
    if !is_alone() {
        return;
    }
    const FRAME: Size = Size::new(1280, 720);
    const N_FRAMES: u64 = 300;
    let device = Numbered::new("slowed", 1);
    let pipeline = pipeline(&format!("appsrc name=source format=time max-buffers=1 block=true ! {} ! fakesink name=sink", {
        detect("rectangle", &format!("device={} nireq=1 name=detect", device.name))
    }));
    let source: gst_app::AppSrc = pipeline.by_name("source").unwrap().downcast().unwrap();
    source.set_caps(Some(&caps("RGB", FRAME)));
    let resident = Arc::new(Mutex::new(Vec::new()));
    let seen = resident.clone();
    on_buffers(&pipeline, "sink", "sink", move |_, _| seen.lock().unwrap().push(crate::flow::resident_kib()));
    pipeline.set_state(gst::State::Playing).unwrap();
    // Each frame has its own memory. All frames together have 800 MB.
    let feeding = std::thread::spawn(move || {
        for n in 0..N_FRAMES {
            let frame = picture(FRAME, PixelRect { x: 0, y: 0, width: 0, height: 0 }, [0; 3]);
            source.push_buffer(stamp(frame, n)).unwrap();
        }
        source.end_of_stream().unwrap();
    });
    let element = pipeline.by_name("detect").unwrap();
    let bus = pipeline.bus().unwrap();
    let ended = bus.timed_pop_filtered(TIMEOUT, &[gst::MessageType::Eos, gst::MessageType::Error]).unwrap();
    assert_eq!(ended.type_(), gst::MessageType::Eos, "{ended:?}");
    feeding.join().unwrap();
    assert_eq!((count(&element, "frames-in"), count(&element, "inferred")), (N_FRAMES, N_FRAMES));
    pipeline.set_state(gst::State::Null).unwrap();
    let resident = resident.lock().unwrap();
    let (least, most) = (resident.iter().min().unwrap(), resident.iter().max().unwrap());
    eprintln!("resident KiB: {least} to {most}");
    // A frame has 2.6 MiB. The queue, the source and the current push hold frames.
    assert!(most - least < 40 * 1024, "{resident:?}");
}

#[test]
fn device_memory_caps_are_refused_with_remedy() {
    let (mut harness, element) = harness(&detect("rectangle", ""));
    let bus = gst::Bus::new();
    element.set_bus(Some(&bus));
    for feature in ["memory:DMABuf", "memory:GLMemory", "memory:VAMemory"] {
        let mut on_device = caps("NV12", SIZE);
        on_device.get_mut().unwrap().set_features(0, Some(gst::CapsFeatures::new([feature])));
        let accepted = element.static_pad("sink").unwrap().query_caps(None);
        assert!(!accepted.can_intersect(&on_device), "the query must be accepted: {accepted}");
        let _stored = harness.push_event(gst::event::Caps::new(&on_device));
        let message = bus.timed_pop_filtered(TIMEOUT, &[gst::MessageType::Error]).expect("an error is posted");
        let gst::MessageView::Error(error) = message.view() else { unreachable!("filtered") };
        let said = error.error().to_string();
        assert!(["system memory", feature, "gldownload", "vapostproc"].iter().all(|part| said.contains(part)), "{said}");
    }
}
