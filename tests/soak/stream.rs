//! One stream of the soak test: the pipeline, the operations on the pipeline, and the checks.

use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use roiflow::elements::{caps, meta};

use super::Violations;
use super::faulty::{Faulty, SCRIPTED};
use super::random::Random;
use super::watch::{PATIENCE, Watch};

/// Operations on a stream.
pub const OPERATIONS: [&str; N_OPERATIONS] = [
    "flushes",
    "seeks",
    "seeks without a flush",
    "pads relinked while blocked",
    "pads relinked in mid-push",
    "pauses",
    "times READY",
    "times NULL",
    "properties changed",
    "times a device broke",
    "loops",
    "restarts after an error",
];
pub const N_OPERATIONS: usize = 12;
/// Index of the loop of the clip, which occurs without a request of the test.
const LOOP: usize = 10;
const RESTART: usize = 11;
/// Relative frequency of each operation.
const WEIGHTS: [u64; N_OPERATIONS] = [12, 16, 4, 8, 12, 8, 4, 1, 16, 3, 0, 0];

/// Configuration of a stream.
pub struct Kind {
    pub name: &'static str,
    /// The elements after the decoder.
    pub line: String,
    /// Whether the stream is never stopped.
    pub is_long: bool,
    /// Device of the detector, if the device can be made to fail.
    pub faulty: Option<Arc<Faulty>>,
}

/// One stream of the soak test. See the module.
pub struct Stream {
    idx: usize,
    name: String,
    is_long: bool,
    faulty: Option<Arc<Faulty>>,
    pipeline: gst::Pipeline,
    bus: gst::Bus,
    /// Inference elements in order, with counters of their frames.
    stages: Vec<Stage>,
    /// Linked pads that can be relinked.
    seams: Vec<(gst::Pad, gst::Pad)>,
    seen: Arc<Seen>,
    random: Random,
    watch: Arc<Watch>,
    violations: Arc<Violations>,
    /// Number of each operation, by index in [`OPERATIONS`].
    pub n_operations: [u64; N_OPERATIONS],
    /// Number of operations that can cause an element to refuse a frame.
    n_disturbances: u64,
    is_at_end: bool,
    /// Whether pads were relinked since the stream began.
    was_parted: bool,
    /// State at the last relinking: numbers of frames that the first element had received and accepted.
    linked_at: (u64, u64),
    begin: Instant,
}

struct Stage {
    element: gst::Element,
    came: Arc<Passed>,
    left: Arc<Passed>,
}

/// Frames that have passed a pad.
#[derive(Default)]
struct Passed {
    n: AtomicU64,
    /// Number of the last frame.
    last: AtomicU64,
}

/// State shared with the probes.
struct Seen {
    begin: Instant,
    /// Number of the next frame at the point where frames enter.
    n_numbered: AtomicU64,
    sink: Passed,
    /// Arrival time of the last frame at the sink, in milliseconds.
    last_ms: AtomicU64,
    /// Last frame number of the detector; -1 before the first.
    last_frame_number: AtomicI64,
    flush: AtomicU8,
}

/// Time without a frame after which EOS must have arrived.
const STILL: Duration = Duration::from_secs(3);

const NO_FLUSH: u8 = 0;
const FLUSH_WANTED: u8 = 1;
const FLUSHES: u8 = 2;

impl Stream {
    #[allow(clippy::too_many_arguments, reason = "called once")]
    pub fn new(
        idx: usize,
        kind: &Kind,
        is_paced: bool,
        stops: bool,
        clip: &Path,
        leak: usize,
        seed: u64,
        watch: &Arc<Watch>,
        violations: &Arc<Violations>,
    ) -> Self {
        // An unlinked pad stops a source permanently. An application that relinks elements in a running pipeline must hide this from the
        // source.
        let line = format!(
            "errorignore name=head ignore-error=false ignore-notnegotiated=false ignore-notlinked=true convert-to=ok ! identity name=in silent=true ! {} \
             ! fakesink name=sink sync={is_paced} qos={is_paced} filesrc location=\"{}\" ! decodebin name=decode",
            kind.line,
            clip.display()
        );
        let pipeline = gst::parse::launch(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let pipeline: gst::Pipeline = pipeline.downcast().expect("several elements are a pipeline");
        let begin = Instant::now();
        let seen = Arc::new(Seen {
            begin,
            n_numbered: AtomicU64::new(0),
            sink: Passed::default(),
            last_ms: AtomicU64::new(0),
            last_frame_number: AtomicI64::new(-1),
            flush: AtomicU8::new(NO_FLUSH),
        });
        let element = |name: &str| pipeline.by_name(name).expect("named in the line above");
        let pad = |element: &gst::Element, name: &str| element.static_pad(name).expect("filters and sinks have it");

        // The decoder's pads are created and removed with each start.
        let head = pad(&element("head"), "sink").downgrade();
        element("decode").connect_pad_added(move |_, decoded| {
            let is_video =
                decoded.current_caps().is_some_and(|caps| caps.structure(0).is_some_and(|caps| caps.name().starts_with("video")));
            if let Some(head) = head.upgrade().filter(|head| is_video && !head.is_linked()) {
                let _linked = decoded.link(&head);
            }
        });
        pipeline.connect_deep_element_added(|_, _, element| {
            if element.find_property("max-threads").is_some() {
                element.set_property("max-threads", 1_i32);
            }
        });

        let in_order: Vec<gst::Element> = {
            let mut elements: Vec<gst::Element> = pipeline.iterate_sorted().into_iter().flatten().collect();
            elements.reverse();
            elements
        };
        let is_inference = |element: &&gst::Element| element.find_property("max-failures").is_some();
        let mut stages = Vec::new();
        for element in in_order.iter().filter(is_inference) {
            let (came, left) = (Arc::new(Passed::default()), Arc::new(Passed::default()));
            if stages.is_empty() {
                let of_probe = seen.clone();
                let _probe = pad(element, "sink").add_probe(gst::PadProbeType::BUFFER, move |_, info| {
                    if let Some(buffer) = info.buffer_mut() {
                        buffer.make_mut().set_offset(of_probe.n_numbered.fetch_add(1, Ordering::AcqRel) + 1);
                    }
                    gst::PadProbeReturn::Ok
                });
            }
            for (name, passed) in [("sink", &came), ("src", &left)] {
                let at = format!("stream {idx}, {} of {}", name, element.name());
                count(&pad(element, name), at, passed.clone(), violations.clone());
            }
            stages.push(Stage { element: element.clone(), came, left });
        }
        assert_eq!(stages.len(), 2, "{line}");

        let sink = pad(&element("sink"), "sink");
        watch_sink(idx, &sink, &seen, violations, leak);
        flush_when_asked(&element("in"), &seen, !is_paced);
        let mut seams = Vec::new();
        for stage in &stages {
            for name in ["sink", "src"] {
                let own = pad(&stage.element, name);
                let peer = own.peer().expect("linked by the line above");
                seams.push(if name == "sink" { (peer, own) } else { (own, peer) });
            }
        }
        Self {
            idx,
            name: format!("{}{}", kind.name, if is_paced { ", at its own pace" } else { "" }),
            is_long: kind.is_long && !stops,
            faulty: kind.faulty.clone(),
            bus: pipeline.bus().expect("a pipeline has a bus"),
            pipeline,
            stages,
            seams,
            seen,
            random: Random::new(seed.wrapping_mul(31).wrapping_add(idx as u64)),
            watch: watch.clone(),
            violations: violations.clone(),
            n_operations: [0; N_OPERATIONS],
            n_disturbances: 0,
            is_at_end: false,
            was_parted: false,
            linked_at: (0, 0),
            begin,
        }
    }

    /// Returns the number of frames at the sink.
    pub fn n_frames(&self) -> u64 {
        self.seen.sink.n.load(Ordering::Acquire)
    }

    /// Plays until this time with random operations, then rests.
    pub fn round(&mut self, until: Instant) {
        self.reach(gst::State::Playing, "start");
        while Instant::now() < until {
            let pause = Instant::now() + Duration::from_millis(self.random.below(500));
            while Instant::now() < pause.min(until) {
                std::thread::sleep(Duration::from_millis(5));
                self.attend();
            }
            self.do_something();
        }
        match self.is_long {
            true => self.reach(gst::State::Paused, "rest"),
            false => {
                self.stop(gst::State::Ready, "rest");
                self.check();
            }
        }
    }

    /// Ends the stream and checks it for the last time.
    pub fn end(&mut self) {
        self.stop(gst::State::Ready, "end");
        self.check();
        self.stop(gst::State::Null, "end");
        self.check();
    }

    /// Summary of the stream in one line.
    pub fn report(&self) -> String {
        let of_stage = |stage: &Stage| {
            let count = |field: &str| stats(&stage.element, field);
            let reasons = ["flush", "downstream", "queue-policy", "max-latency", "qos", "max-failures"];
            let dropped: Vec<String> = reasons
                .iter()
                .map(|reason| (reason, count(&format!("dropped-{reason}"))))
                .filter(|(_, n)| *n > 0)
                .map(|(reason, n)| format!("{n} {reason}"))
                .collect();
            let dropped = if dropped.is_empty() { "none".to_owned() } else { dropped.join(", ") };
            format!(
                "{} in = {} out + {} dropped ({dropped}), {} failed, {} skipped",
                count("frames-in"),
                count("frames-out"),
                count("dropped"),
                count("failed"),
                count("skipped")
            )
        };
        let stages: Vec<String> = self.stages.iter().map(of_stage).collect();
        format!("stream {:2} ({}): {}", self.idx, self.name, stages.join("; "))
    }

    fn do_something(&mut self) {
        let sum: u64 = WEIGHTS.iter().sum();
        let mut drawn = self.random.below(sum);
        let operation = WEIGHTS.iter().position(|weight| {
            let is_it = drawn < *weight;
            drawn = drawn.wrapping_sub(*weight);
            is_it
        });
        let Some(operation) = operation else { return };
        let stops = matches!(operation, 6 | 7);
        if (stops && self.is_long) || (operation == 9 && self.faulty.is_none()) {
            return;
        }
        self.n_operations[operation] += 1;
        self.n_disturbances += 1;
        let watch = self.watch.clone();
        let idx = self.idx;
        match operation {
            0 => watch.watched(idx, "flush", || self.flush()),
            1 => self.seek(gst::SeekFlags::FLUSH),
            2 => self.seek_without_flush(),
            3 => watch.watched(idx, "relink while blocked", || self.relink_blocked()),
            4 => watch.watched(idx, "relink in mid-push", || self.relink()),
            5 => {
                self.reach(gst::State::Paused, "pause");
                std::thread::sleep(Duration::from_millis(self.random.below(50)));
                self.reach(gst::State::Playing, "play on");
            }
            6 | 7 => {
                self.stop(if operation == 6 { gst::State::Ready } else { gst::State::Null }, "stop");
                self.check();
                self.reach(gst::State::Playing, "start again");
            }
            8 => self.change_a_property(),
            _ => {
                let Some(faulty) = self.faulty.clone() else { return };
                faulty.breaks(true);
                let until = Instant::now() + Duration::from_millis(20 + self.random.below(300));
                while Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                    self.attend();
                }
                faulty.breaks(false);
            }
        }
    }

    /// Flushes from the start of the graph, and waits until the sink plays again, because a flush resets the state of the sink.
    fn flush(&mut self) {
        self.flush_between_frames();
        self.reach(gst::State::Playing, "play on after a flush");
    }

    /// Runs on the streaming thread.
    fn flush_between_frames(&self) {
        let flush = &self.seen.flush;
        flush.store(FLUSH_WANTED, Ordering::Release);
        let begin = Instant::now();
        while flush.load(Ordering::Acquire) != NO_FLUSH {
            // At the end of the stream no further frame may arrive.
            if begin.elapsed() > Duration::from_millis(200)
                && flush.compare_exchange(FLUSH_WANTED, NO_FLUSH, Ordering::AcqRel, Ordering::Acquire).is_ok()
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn seek(&mut self, flags: gst::SeekFlags) {
        let duration = self.pipeline.query_duration::<gst::ClockTime>().unwrap_or(gst::ClockTime::from_seconds(1));
        let to = gst::ClockTime::from_nseconds(self.random.below(duration.nseconds()));
        let how = if self.random.below(2) == 0 { gst::SeekFlags::ACCURATE } else { gst::SeekFlags::KEY_UNIT };
        let (watch, pipeline) = (self.watch.clone(), self.pipeline.clone());
        watch.watched(self.idx, format!("seek to {to:.3} {:?}", flags | how), || drop(pipeline.seek_simple(flags | how, to)));
        self.reach(gst::State::Playing, "play on after a seek");
    }

    /// Seeks only while the sink plays. A demuxer that seeks without a flush waits until its push is accepted. A seek blocks state changes
    /// of the pipeline. So a sink that is about to play would never accept the push.
    fn seek_without_flush(&mut self) {
        let (reached, current, pending) = self.pipeline.state(gst::ClockTime::ZERO);
        if reached == Ok(gst::StateChangeSuccess::Success) && (current, pending) == (gst::State::Playing, gst::State::VoidPending) {
            self.seek(gst::SeekFlags::empty());
        }
    }

    fn relink_blocked(&mut self) {
        let seam = self.random.below(self.seams.len() as u64) as usize;
        let (src, sink) = self.seams[seam].clone();
        let (sender, done) = mpsc::channel();
        let of_sink = sink.clone();
        let probe = src.add_probe(gst::PadProbeType::IDLE, move |src, _| {
            let linked = src.unlink(&of_sink).map_err(|error| error.to_string());
            let linked = linked.and_then(|()| src.link(&of_sink).map(drop).map_err(|error| error.to_string()));
            let _heard = sender.send(linked);
            gst::PadProbeReturn::Remove
        });
        match done.recv_timeout(Duration::from_millis(500)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.violations.add(format!("stream {}: pads could not be relinked: {error}", self.idx)),
            // Downstream holds a frame, so the pad is not idle. A later operation tries again.
            Err(_) => probe.into_iter().for_each(|probe| src.remove_probe(probe)),
        }
        if !src.is_linked() && src.link(&sink).is_err() {
            self.violations.add(format!("stream {}: pads could not be relinked", self.idx));
        }
    }

    fn relink(&mut self) {
        let seam = self.random.below(self.seams.len() as u64) as usize;
        let (src, sink) = self.seams[seam].clone();
        self.was_parted = true;
        if src.unlink(&sink).is_err() {
            self.violations.add(format!("stream {}: pads could not be parted", self.idx));
        }
        std::thread::sleep(Duration::from_micros(self.random.below(20_000)));
        if let Err(error) = src.link(&sink) {
            self.violations.add(format!("stream {}: pads could not be relinked: {error}", self.idx));
        }
        self.linked_at = self.n_at_first();
    }

    /// Returns the number of frames that arrived at the first element, and the number of frames that this element accepted.
    fn n_at_first(&self) -> (u64, u64) {
        let first = &self.stages[0];
        (first.came.n.load(Ordering::Acquire), stats(&first.element, "frames-in"))
    }

    fn change_a_property(&mut self) {
        let element = &self.stages[self.random.below(self.stages.len() as u64) as usize].element;
        let properties: [(&str, &[&str]); 7] = [
            ("queue-policy", &["auto", "wait", "drop-oldest", "drop-newest"]),
            ("max-latency", &["0", "20", "100"]),
            ("drop-frames", &["true", "false"]),
            ("inference-interval", &["1", "2", "5"]),
            ("carry-results", &["true", "false"]),
            ("qos", &["true", "false"]),
            ("stats-interval", &["0", "20"]),
        ];
        let (name, values) = properties[self.random.below(properties.len() as u64) as usize];
        element.set_property_from_str(name, values[self.random.below(values.len() as u64) as usize]);
    }

    /// Handles the messages on the bus.
    fn attend(&mut self) {
        if self.read_bus() {
            self.n_operations[RESTART] += 1;
            self.stop(gst::State::Ready, "stop after an error");
            self.check();
            self.reach(gst::State::Playing, "start after an error");
        }
        let (silent, is_lost) = (self.silent(), self.has_lost_eos());
        if self.was_parted && silent > STILL {
            let (n_came, n_taken) = self.n_at_first();
            if n_came > self.linked_at.0 + 150 && n_taken == self.linked_at.1 {
                let n_came = n_came - self.linked_at.0;
                self.violations.add(format!(
                    "stream {} ({}): pads were relinked, {n_came} frames arrived at the first element since, and it accepted none",
                    self.idx, self.name
                ));
            }
        }
        if !is_lost && silent > PATIENCE {
            self.violations.add(format!("stream {} ({}): no frame for {} s", self.idx, self.name, silent.as_secs()));
        }
        if std::mem::take(&mut self.is_at_end) || is_lost || silent > PATIENCE {
            self.n_operations[LOOP] += 1;
            self.n_disturbances += 1;
            self.was_parted = false;
            self.seen.come_to_sink();
            let (watch, pipeline) = (self.watch.clone(), self.pipeline.clone());
            watch.watched(self.idx, "loop", || {
                drop(pipeline.seek_simple(gst::SeekFlags::FLUSH | gst::SeekFlags::KEY_UNIT, gst::ClockTime::ZERO));
            });
            self.reach(gst::State::Playing, "play on after a loop");
        }
    }

    /// Returns the time since the last frame at the sink.
    fn silent(&self) -> Duration {
        self.begin.elapsed().saturating_sub(Duration::from_millis(self.seen.last_ms.load(Ordering::Acquire)))
    }

    /// Whether EOS was lost at an unlinked pad before an inference element. In this case no further frame arrives, and a sink in PAUSED
    /// waits forever. EOS inside an inference element must reach the sink.
    fn has_lost_eos(&self) -> bool {
        let has_eos = |pad: &gst::Pad| pad.sticky_event::<gst::event::Eos>(0).is_some();
        let is_ours = |pad: &gst::Pad| pad.parent_element().is_some_and(|parent| self.stages.iter().any(|stage| stage.element == parent));
        let is_lost = |(src, sink): &(gst::Pad, gst::Pad)| !is_ours(src) && has_eos(src) && !has_eos(sink);
        self.was_parted && self.silent() > STILL && self.seams.iter().any(is_lost)
    }

    /// Whether there was an error.
    fn read_bus(&mut self) -> bool {
        let mut has_error = false;
        while let Some(message) = self.bus.pop() {
            match message.view() {
                gst::MessageView::Eos(_) => self.is_at_end = true,
                gst::MessageView::Latency(_) => drop(self.pipeline.recalculate_latency()),
                gst::MessageView::Error(error) => {
                    let text = error.error().to_string();
                    // Only the first error is reported, because later errors follow from the first.
                    if !has_error && !self.is_provoked(&text) {
                        let source = error.src().map(|source| source.name().to_string()).unwrap_or_default();
                        let details = error.debug().unwrap_or_default();
                        self.violations.add(format!("stream {} ({}): {source}: {text} [{details}]", self.idx, self.name));
                    }
                    has_error = true;
                }
                gst::MessageView::Warning(warning) => {
                    let text = warning.error().to_string();
                    if !text.contains(SCRIPTED) && !text.contains("max-latency is") {
                        self.violations.add(format!("stream {} ({}): warning: {text}", self.idx, self.name));
                    }
                }
                _ => {}
            }
        }
        has_error
    }

    fn is_provoked(&self, error: &str) -> bool {
        error.contains(SCRIPTED) || (self.was_parted && error.contains("downstream returned NotLinked"))
    }

    /// Changes to this state and waits for it, regardless of provoked errors.
    fn reach(&mut self, state: gst::State, what: &str) {
        let watch = self.watch.clone();
        self.seen.come_to_sink();
        watch.watched(self.idx, what, || {
            let mut changed = self.pipeline.set_state(state).map(drop);
            loop {
                if self.read_bus() || changed.is_err() {
                    self.n_operations[RESTART] += 1;
                    self.n_disturbances += 1;
                    let _stopped = self.pipeline.set_state(gst::State::Ready);
                    self.forget_messages();
                    changed = self.pipeline.set_state(state).map(drop);
                }
                let (reached, current, _) = self.pipeline.state(gst::ClockTime::from_mseconds(20));
                match reached {
                    Ok(gst::StateChangeSuccess::Async) => {}
                    Ok(_) if current == state => break,
                    Ok(_) => changed = self.pipeline.set_state(state).map(drop),
                    Err(error) => changed = Err(error),
                }
                if self.is_at_end {
                    break; // Without a frame, the pipeline may not reach PLAYING.
                }
                if self.has_lost_eos() {
                    self.n_disturbances += 1;
                    self.seen.come_to_sink();
                    drop(self.pipeline.seek_simple(gst::SeekFlags::FLUSH | gst::SeekFlags::KEY_UNIT, gst::ClockTime::ZERO));
                }
            }
        });
        self.seen.come_to_sink();
    }

    /// Changes down to this state.
    fn stop(&mut self, state: gst::State, what: &str) {
        let watch = self.watch.clone();
        self.n_disturbances += 1;
        watch.watched(self.idx, what, || {
            if self.pipeline.set_state(state).is_err() {
                self.violations.add(format!("stream {}: it does not stop", self.idx));
            }
        });
        self.forget_messages();
        self.seen.last_frame_number.store(-1, Ordering::Release);
    }

    fn forget_messages(&mut self) {
        while self.bus.pop().is_some() {}
        (self.is_at_end, self.was_parted) = (false, false);
        self.seen.last_frame_number.store(-1, Ordering::Release);
    }

    /// Invariants of a stopped stream.
    fn check(&self) {
        let mut wrong = Vec::new();
        for (stage_idx, stage) in self.stages.iter().enumerate() {
            let count = |field: &str| stats(&stage.element, field);
            let sum = |fields: &[&str]| fields.iter().map(|field| count(field)).sum::<u64>();
            let mut same = |what: &str, left: u64, right: u64| {
                if left != right {
                    wrong.push(format!("{}: {what}: {left} and {right}", stage.element.name()));
                }
            };
            same("frames in, and out + dropped", count("frames-in"), sum(&["frames-out", "dropped"]));
            same("frames here, and none", count("frames-here"), 0);
            same("frames out, and by outcome", count("frames-out"), sum(&["inferred", "skipped", "failed"]));
            let skipped =
                ["skipped-inference-interval", "skipped-motion-threshold", "skipped-queue-policy", "skipped-max-latency", "skipped-qos"];
            same("skipped, and by reason", count("skipped"), sum(&skipped));
            let dropped = ["queue-policy", "max-latency", "qos", "flush", "downstream", "max-failures"];
            same("dropped, and by reason", count("dropped"), dropped.iter().map(|why| count(&format!("dropped-{why}"))).sum());
            // Each disturbance may cause one frame to be refused, so the counts may differ by the number of disturbances.
            let mut near = |what: &str, more: u64, fewer: u64, off: u64| {
                if more < fewer || more - fewer > off {
                    wrong.push(format!("{}: {what}: {more} and {fewer}, at most {off} apart", stage.element.name()));
                }
            };
            let (came, left) = (stage.came.n.load(Ordering::Acquire), stage.left.n.load(Ordering::Acquire));
            near("frames at the source pad", count("frames-out"), left, self.n_disturbances);
            // While the first element is unlinked, upstream may retry any number of times.
            near("frames at the sink pad", came, count("frames-in"), if stage_idx == 0 { u64::MAX } else { self.n_disturbances });
            if let Some(next) = self.stages.get(stage_idx + 1) {
                near("frames at the next element", left, next.came.n.load(Ordering::Acquire), self.n_disturbances);
            }
        }
        if !wrong.is_empty() {
            self.violations.add(format!("stream {} ({}): {}", self.idx, self.name, wrong.join("; ")));
        }
    }
}

impl Seen {
    fn come_to_sink(&self) {
        self.last_ms.store(self.begin.elapsed().as_millis() as u64, Ordering::Release);
    }
}

fn stats(element: &gst::Element, field: &str) -> u64 {
    element.property::<gst::Structure>("stats").get(field).unwrap_or_else(|error| panic!("{field}: {error}"))
}

/// Counts the frames that pass a pad, and asserts their order.
fn count(pad: &gst::Pad, at: String, passed: Arc<Passed>, violations: Arc<Violations>) {
    let _probe = pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let Some(buffer) = info.buffer() {
            passed.n.fetch_add(1, Ordering::AcqRel);
            let (number, last) = (buffer.offset(), passed.last.swap(buffer.offset(), Ordering::AcqRel));
            if number <= last {
                violations.add(format!("{at}: frame {number} behind frame {last}"));
            }
        }
        gst::PadProbeReturn::Ok
    });
}

fn watch_sink(idx: usize, sink: &gst::Pad, seen: &Arc<Seen>, violations: &Arc<Violations>, leak: usize) {
    let (seen, violations) = (seen.clone(), violations.clone());
    let _probe = sink.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        let Some(buffer) = info.buffer() else { return gst::PadProbeReturn::Ok };
        seen.come_to_sink();
        seen.sink.n.fetch_add(1, Ordering::AcqRel);
        let (number, last) = (buffer.offset(), seen.sink.last.swap(buffer.offset(), Ordering::AcqRel));
        if number <= last {
            violations.add(format!("stream {idx}: frame {number} behind frame {last} at the sink"));
        }
        let size = pad.current_caps().and_then(|caps| caps::size_in_caps(&caps));
        match size.and_then(|size| meta::read(buffer, size)) {
            None => violations.add(format!("stream {idx}: frame {number} came without results")),
            Some(results) => {
                let frame_number = results.frame_number as i64;
                let last = seen.last_frame_number.swap(frame_number, Ordering::AcqRel);
                if frame_number <= last {
                    violations.add(format!("stream {idx}: results of frame {frame_number} behind those of frame {last}"));
                }
                // An object has at most one result of each classifier: a carried, reused or late result never appears in addition to a new
                // result.
                if let Some(twice) = results.detections.iter().find(|detection| detection.classifications.len() > 1) {
                    violations.add(format!("stream {idx}: frame {number}: {} answers on one object", twice.classifications.len()));
                }
            }
        }
        if leak > 0 {
            std::mem::forget(vec![1_u8; leak]);
        }
        gst::PadProbeReturn::Ok
    });
}

/// A flush as sent by an upstream element in mid-stream: on the streaming thread, between two frames.
fn flush_when_asked(element: &gst::Element, seen: &Arc<Seen>, resets_time: bool) {
    let seen = seen.clone();
    let src = element.static_pad("src").expect("a filter has it").downgrade();
    let _probe = element.static_pad("sink").expect("a filter has it").add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        let is_asked = seen.flush.compare_exchange(FLUSH_WANTED, FLUSHES, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if let Some(src) = src.upgrade().filter(|_| is_asked) {
            let segment = src.sticky_event::<gst::event::Segment>(0);
            src.push_event(gst::event::FlushStart::new());
            src.push_event(gst::event::FlushStop::new(resets_time));
            if let Some(segment) = segment {
                src.push_event(gst::event::Segment::new(segment.segment()));
            }
        }
        if is_asked {
            seen.flush.store(NO_FLUSH, Ordering::Release);
        }
        gst::PadProbeReturn::Ok
    });
}
