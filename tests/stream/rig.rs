//! An element between two pads of the test, which records every frame and event that leaves, in order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use gst::prelude::*;
use gstreamer as gst;
use roiflow::frame::{InferenceStatus, PixelRect, Size};

use crate::harness::{FRAME_TIME, TIMEOUT, caps, eventually, init, picture, stamp};

pub const SIZE: Size = Size::new(64, 48);
pub const OTHER_SIZE: Size = Size::new(128, 96);

pub fn black(n: u64) -> gst::Buffer {
    stamp(picture(SIZE, PixelRect { x: 0, y: 0, width: 0, height: 0 }, [0; 3]), n)
}

/// An element between two pads of the test.
pub struct Rig {
    pub element: gst::Element,
    pub source: gst::Pad,
    pub sink: gst::Pad,
    pub bus: gst::Bus,
    seen: Receiver<String>,
    answer: Arc<Mutex<Answer>>,
    left: Arc<Mutex<Vec<Left>>>,
    /// Whether the source reports that it is live.
    pub is_live: Arc<AtomicBool>,
}

/// A frame that left the element.
#[derive(Debug, Clone, PartialEq)]
pub struct Left {
    pub n: u64,
    /// `inferred`, or the skip reason or error.
    pub status: String,
    pub ids: Vec<i32>,
    /// Track IDs, 0 = none.
    pub tracks: Vec<i32>,
    /// Classification labels of all objects.
    pub labels: Vec<String>,
    pub is_after_gap: bool,
}

impl Left {
    fn of(n: u64, buffer: &gst::BufferRef, size: Size) -> Self {
        let results = roiflow::elements::meta::read(buffer, size).unwrap();
        let status = match &results.status {
            InferenceStatus::Inferred => "inferred".to_owned(),
            InferenceStatus::Skipped(reason) | InferenceStatus::Failed(reason) => reason.to_string(),
        };
        let ids = results.detections.iter().map(|detection| detection.id.0).collect();
        let tracks = results.detections.iter().map(|detection| detection.track.map_or(0, |track| track.0)).collect();
        let labels = crate::harness::labels(&results);
        Self { n, status, ids, tracks, labels, is_after_gap: buffer.flags().contains(gst::BufferFlags::DISCONT) }
    }
}

/// Flow return of the sink for each buffer.
pub type Answer = Box<dyn FnMut(&gst::Pad) -> Result<gst::FlowSuccess, gst::FlowError> + Send>;

impl Rig {
    pub fn new(line: &str) -> Self {
        Self::behind(line, false)
    }

    /// Creates the rig with a live or non-live source.
    pub fn behind(line: &str, is_live: bool) -> Self {
        init();
        let element = gst::parse::launch(line).unwrap();
        let (sender, seen) = channel();
        let answer: Arc<Mutex<Answer>> = Arc::new(Mutex::new(Box::new(|_| Ok(gst::FlowSuccess::Ok))));
        let left = Arc::new(Mutex::new(Vec::new()));
        let (of_events, of_chain, leaving) = (sender.clone(), answer.clone(), left.clone());
        let sink = gst::Pad::builder(gst::PadDirection::Sink)
            .chain_function(move |pad, _, buffer| {
                let current = pad.current_caps();
                let caps = current.as_ref().map_or("no caps".to_owned(), |caps| size_of(caps));
                let size = current.as_ref().and_then(|caps| roiflow::elements::caps::size_in_caps(caps)).unwrap_or(SIZE);
                let n = buffer.pts().unwrap() / FRAME_TIME;
                let answer = (of_chain.lock().unwrap())(pad);
                if answer.is_ok() {
                    leaving.lock().unwrap().push(Left::of(n, &buffer, size));
                    let _ = sender.send(format!("frame {n} of {caps}"));
                }
                answer
            })
            .event_function(move |_, _, event| {
                let _ = of_events.send(described(&event));
                true
            })
            .query_function(|_, _, query| match query.view_mut() {
                gst::QueryViewMut::AcceptCaps(accept) => {
                    accept.set_result(true);
                    true
                }
                _ => false,
            })
            .build();
        let is_live = Arc::new(AtomicBool::new(is_live));
        let says_live = is_live.clone();
        let source = gst::Pad::builder(gst::PadDirection::Src)
            .query_function(move |pad, parent, query| match query.view_mut() {
                gst::QueryViewMut::Latency(latency) => {
                    latency.set(says_live.load(Ordering::Acquire), gst::ClockTime::ZERO, gst::ClockTime::NONE);
                    true
                }
                _ => gst::Pad::query_default(pad, parent, query),
            })
            .build();
        let bus = gst::Bus::new();
        element.set_bus(Some(&bus));
        sink.set_active(true).unwrap();
        source.set_active(true).unwrap();
        source.link(&element.static_pad("sink").unwrap()).unwrap();
        let rig = Self { element, source, sink, bus, seen, answer, left, is_live };
        rig.element.set_state(gst::State::Playing).unwrap();
        rig
    }

    /// Creates a linked rig with a started stream.
    pub fn begun(line: &str) -> Self {
        Self::new(line).with_a_stream()
    }

    /// Like [`Rig::begun`], with a live source. The model is warmed up when this returns.
    pub fn begun_live(line: &str) -> Self {
        Self::behind(line, true).with_a_stream()
    }

    fn with_a_stream(self) -> Self {
        let rig = self;
        rig.link();
        rig.begin();
        rig.expect(&["stream-start", "caps 64x48", "segment"]);
        rig
    }

    pub fn link(&self) {
        self.element.static_pad("src").unwrap().link(&self.sink).unwrap();
    }

    pub fn begin(&self) {
        self.event(gst::event::StreamStart::new("stream"));
        self.event(gst::event::Caps::new(&caps("RGB", SIZE)));
        self.segment();
    }

    pub fn segment(&self) {
        self.event(gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new()));
    }

    pub fn event(&self, event: gst::Event) {
        assert!(self.source.push_event(event.clone()), "{event:?}");
    }

    pub fn frame(&self, n: u64) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.source.push(black(n))
    }

    /// Pushes frames and asserts that they are accepted.
    pub fn frames(&self, numbers: std::ops::Range<u64>) {
        for n in numbers {
            self.frame(n).unwrap();
        }
    }

    pub fn answer(&self, answer: impl FnMut(&gst::Pad) -> Result<gst::FlowSuccess, gst::FlowError> + Send + 'static) {
        *self.answer.lock().unwrap() = Box::new(answer);
    }

    pub fn next(&self) -> String {
        self.seen.recv_timeout(TIMEOUT.into()).expect("an item leaves in time")
    }

    pub fn expect(&self, expected: &[&str]) {
        let seen: Vec<String> = expected.iter().map(|_| self.next()).collect();
        assert_eq!(seen, expected);
    }

    /// Takes the frames that have left.
    pub fn left(&self) -> Vec<Left> {
        std::mem::take(&mut *self.left.lock().unwrap())
    }

    /// Returns the items until EOS in short form: frames by number and status.
    pub fn until_eos(&self) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let next = self.next();
            if next == "eos" {
                return seen;
            }
            seen.push(next);
        }
    }

    pub fn count(&self, field: &str) -> u64 {
        self.element.property::<gst::Structure>("stats").get(field).unwrap_or_else(|error| panic!("{field}: {error}"))
    }

    /// Asserts that every arrived frame left or was dropped, and that every frame that left has a status.
    pub fn check_counts(&self) {
        // EOS may arrive before the last frame is counted.
        eventually("no frame is here", || self.count("frames-here") == 0);
        let [came, left, dropped] = ["frames-in", "frames-out", "dropped"].map(|field| self.count(field));
        assert_eq!(came, left + dropped, "{}", self.element.property::<gst::Structure>("stats"));
        let reasons = |of: &str, names: &[&str]| names.iter().map(|name| self.count(&format!("{of}-{name}"))).sum::<u64>();
        let skips = ["queue-policy", "max-latency", "qos"];
        assert_eq!(
            self.count("skipped"),
            reasons("skipped", &skips) + self.count("skipped-inference-interval") + self.count("skipped-motion-threshold")
        );
        assert_eq!(dropped, reasons("dropped", &skips) + reasons("dropped", &["flush", "downstream", "max-failures"]));
        assert_eq!(left, self.count("inferred") + self.count("skipped") + self.count("failed"));
    }

    pub fn refusal(&self) -> gst::FlowError {
        refusal(&self.source)
    }

    pub fn error(&self) -> String {
        let message = self.bus.timed_pop_filtered(TIMEOUT, &[gst::MessageType::Error]).expect("an error is posted in time");
        let gst::MessageView::Error(error) = message.view() else { unreachable!("filtered") };
        error.error().to_string()
    }

    pub fn has_error(&self) -> bool {
        self.bus.pop_filtered(&[gst::MessageType::Error]).is_some()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.element.set_state(gst::State::Null).unwrap();
        let _ = self.sink.set_active(false);
        let _ = self.source.set_active(false);
    }
}

/// Pushes frames until an error is returned.
pub fn refusal(source: &gst::Pad) -> gst::FlowError {
    (0..1000).find_map(|n| source.push(black(n)).err()).expect("the downstream error is returned")
}

fn size_of(caps: &gst::CapsRef) -> String {
    roiflow::elements::caps::size_in_caps(caps).unwrap().to_string()
}

fn described(event: &gst::Event) -> String {
    match event.view() {
        gst::EventView::Caps(caps) => format!("caps {}", size_of(caps.caps())),
        gst::EventView::CustomDownstream(custom) => custom.structure().unwrap().name().to_string(),
        _ => event.type_().name().to_string(),
    }
}
