//! Sources that hang while they stop, as the driver of a camera may do: their streams go on, and end if too many pipelines hang.

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
use crate::harness::init;
use crate::restarts::{FAST, check_order, plan};

/// Frames that a source delivers before it fails.
const N_FRAMES: u64 = 5;

/// Whether sources hang while they stop.
static HANGS: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

fn set_hangs(hangs: bool) {
    *HANGS.0.lock().unwrap() = hangs;
    HANGS.1.notify_all();
}

#[derive(Default)]
struct HangingSource(Mutex<u64>);

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
        let mut n = self.0.lock().unwrap();
        if *n == N_FRAMES {
            gst::element_imp_error!(self, gst::ResourceError::Read, ["the device is gone"]);
            return Err(gst::FlowError::Error);
        }
        let mut buffer = gst::Buffer::with_size(64 * 64).unwrap();
        buffer.get_mut().unwrap().set_pts(gst::ClockTime::from_mseconds(40 * *n));
        *n += 1;
        Ok(CreateSuccess::NewBuffer(buffer))
    }
}

impl URIHandlerImpl for HangingSource {
    const URI_TYPE: gst::URIType = gst::URIType::Src;

    fn protocols() -> &'static [&'static str] {
        &["hanging"]
    }

    fn uri(&self) -> Option<String> {
        Some("hanging://device".to_owned())
    }

    fn set_uri(&self, _uri: &str) -> Result<(), glib::Error> {
        Ok(())
    }
}

#[test]
fn stream_goes_on_beside_hanging_pipelines_and_ends_at_their_limit() {
    init();
    gst::Element::register(None, "testhangingsource", gst::Rank::PRIMARY, Source::static_type()).unwrap();
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
