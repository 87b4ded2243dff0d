//! Sources that hang while they stop, as the driver of a camera may do: their streams go on, and end if too many pipelines hang. Sources that
//! stall, with another element that fails while their stream drains.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use gst_base::subclass::base_src::CreateSuccess;
use gst_base::subclass::prelude::*;
use gstreamer as gst;
use gstreamer_base as gst_base;
use roiflow::pipeline::{Event, Outputs, PipelineHandle, Restart};

use crate::cli::Folder;
use crate::harness::{eventually, init};
use crate::restarts::{FAST, check_order, plan};

/// Frames that a source delivers before it fails.
const N_FRAMES: u64 = 5;

/// Whether sources hang while they stop.
static HANGS: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

fn set_hangs(hangs: bool) {
    *HANGS.0.lock().unwrap() = hangs;
    HANGS.1.notify_all();
}

/// A source that fails or stalls after some frames.
#[derive(Default)]
struct HangingSource {
    state: Mutex<State>,
    unlocked: Condvar,
}

#[derive(Default)]
struct State {
    n_frames: u64,
    /// Whether the source delivers nothing after its frames, instead of failing.
    stalls: bool,
    is_unlocked: bool,
}

/// Whether the last element of the pipeline fails when it receives EOS.
static SINK_FAILS: AtomicBool = AtomicBool::new(false);

impl HangingSource {
    /// Makes the last element of the pipeline fail once, when it receives EOS.
    fn make_sink_fail(&self) {
        let parents = std::iter::successors(Some(self.obj().clone().upcast::<gst::Object>()), |object| object.parent());
        let pipeline = parents.last().and_then(|top| top.downcast::<gst::Pipeline>().ok()).unwrap();
        let sink = pipeline.by_name("roiflow-sink").unwrap();
        sink.static_pad("sink").unwrap().add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, |pad, info| {
            let is_eos = info.event().is_some_and(|event| event.type_() == gst::EventType::Eos);
            if is_eos && SINK_FAILS.swap(false, Ordering::AcqRel) {
                gst::element_error!(pad.parent_element().unwrap(), gst::CoreError::Failed, ["scripted failure"]);
            }
            gst::PadProbeReturn::Ok
        });
    }
}

#[glib::object_subclass]
impl ObjectSubclass for HangingSource {
    const NAME: &'static str = "TestHangingSource";
    type Type = Source;
    type ParentType = gst_base::PushSrc;
    type Interfaces = (gst::URIHandler,);
}

glib::wrapper! {
    struct Source(ObjectSubclass<HangingSource>) @extends gst_base::PushSrc, gst_base::BaseSrc, gst::Element, gst::Object,
        @implements gst::URIHandler;
}

impl ObjectImpl for HangingSource {
    fn constructed(&self) {
        self.parent_constructed();
        self.obj().set_live(true);
        self.obj().set_format(gst::Format::Time);
    }
}

impl GstObjectImpl for HangingSource {}

impl ElementImpl for HangingSource {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: std::sync::OnceLock<gst::subclass::ElementMetadata> = std::sync::OnceLock::new();
        Some(
            METADATA.get_or_init(|| gst::subclass::ElementMetadata::new("Hanging source", "Source/Video", "Hangs while it stops", "Tests")),
        )
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: std::sync::OnceLock<Vec<gst::PadTemplate>> = std::sync::OnceLock::new();
        TEMPLATES.get_or_init(|| {
            let caps = "video/x-raw,format=GRAY8,width=64,height=64,framerate=25/1".parse::<gst::Caps>().unwrap();
            vec![gst::PadTemplate::new("src", gst::PadDirection::Src, gst::PadPresence::Always, &caps).unwrap()]
        })
    }
}

impl BaseSrcImpl for HangingSource {
    fn unlock(&self) -> Result<(), gst::ErrorMessage> {
        self.state.lock().unwrap().is_unlocked = true;
        self.unlocked.notify_all();
        Ok(())
    }

    fn unlock_stop(&self) -> Result<(), gst::ErrorMessage> {
        self.state.lock().unwrap().is_unlocked = false;
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        let mut hangs = HANGS.0.lock().unwrap();
        while *hangs {
            hangs = HANGS.1.wait(hangs).unwrap();
        }
        Ok(())
    }
}

impl PushSrcImpl for HangingSource {
    fn create(&self, _buffer: Option<&mut gst::BufferRef>) -> Result<CreateSuccess, gst::FlowError> {
        let mut state = self.state.lock().unwrap();
        if state.n_frames == N_FRAMES && state.stalls {
            if SINK_FAILS.load(Ordering::Acquire) {
                self.make_sink_fail();
            }
            while !state.is_unlocked {
                state = self.unlocked.wait(state).unwrap();
            }
            return Err(gst::FlowError::Flushing);
        }
        if state.n_frames == N_FRAMES {
            gst::element_imp_error!(self, gst::ResourceError::Read, ["the device is gone"]);
            return Err(gst::FlowError::Error);
        }
        let mut buffer = gst::Buffer::with_size(64 * 64).unwrap();
        buffer.get_mut().unwrap().set_pts(gst::ClockTime::from_mseconds(40 * state.n_frames));
        state.n_frames += 1;
        Ok(CreateSuccess::NewBuffer(buffer))
    }
}

impl URIHandlerImpl for HangingSource {
    const URI_TYPE: gst::URIType = gst::URIType::Src;

    fn protocols() -> &'static [&'static str] {
        &["hanging", "stalling"]
    }

    fn uri(&self) -> Option<String> {
        Some("hanging://device".to_owned())
    }

    fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        self.state.lock().unwrap().stalls = uri.starts_with("stalling");
        Ok(())
    }
}

fn register_source() {
    init();
    gst::Element::register(None, "testhangingsource", gst::Rank::PRIMARY, Source::static_type()).unwrap();
}

#[test]
fn stalled_source_is_opened_again_although_another_element_fails() {
    register_source();
    SINK_FAILS.store(true, Ordering::Release);
    let (handle, events) = PipelineHandle::new().unwrap();
    let mut stalling = plan("stalling://device", "CPU", Outputs::default(), FAST);
    stalling.limits.source_timeout = Some(Duration::from_millis(500));
    let stream = handle.add(&stalling).unwrap();
    let next = || loop {
        match events.next_timeout(Duration::from_secs(60)).expect("an event in time").event {
            Event::Progress(_) | Event::Warning(_) | Event::Started => {}
            event => return event,
        }
    };
    let lost = next();
    assert!(matches!(&lost, Event::SourceLost { reason } if reason.to_string().contains("delivered nothing for 0.5 s")), "{lost:?}");
    let back = next();
    assert!(matches!(back, Event::SourceBack { .. }), "{back:?}");
    assert!(!SINK_FAILS.load(Ordering::Acquire), "the element has failed");
    eventually("the source delivers all frames again", || handle.counters(stream).is_some_and(|stats| stats.n_frames >= 2 * N_FRAMES));
    handle.remove(stream).unwrap();
}

#[test]
fn stream_goes_on_beside_hanging_pipelines_and_ends_at_their_limit() {
    register_source();
    let folder = Folder::new("hanging");
    let json = folder.file("o.jsonl");
    let outputs = Outputs { json: Some(json.clone().into()), ..Outputs::default() };
    let (handle, events) = PipelineHandle::new().unwrap();
    set_hangs(true);
    let stream = handle.add(&plan("hanging://device", "CPU", outputs, Restart { give_up_after: None, ..FAST })).unwrap();
    // Three pipelines hang. Each is abandoned after at most ten seconds, and then the stream ends.
    let begin = Instant::now();
    let error = handle.wait(stream).unwrap_err().to_string();
    assert!(error.contains("pipelines did not stop") && error.contains("restart the process"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(90), "{:?}", begin.elapsed());
    set_hangs(false);
    drop(handle);
    assert!(events.into_iter().any(|event| matches!(event.event, Event::SourceLost { .. })));
    // The numbers go on, although the pipelines did not stop.
    let numbers: Vec<u64> = check_order(&json).iter().map(|line| line["frame"].as_u64().unwrap()).collect();
    assert!(numbers.len() as u64 >= 3 * N_FRAMES && numbers.iter().copied().eq(0..numbers.len() as u64), "{numbers:?}");
}
