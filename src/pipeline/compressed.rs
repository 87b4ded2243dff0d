//! Shows an application the compressed frames of a source before they are decoded, so that it can send them on without another encoder.
//!
//! This is done only for H.264, and only if the frames at the tap are the frames of the source: nothing has cropped or rotated them, or drawn
//! on them. In particular, blurred faces are never sent without the blur.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use gst::prelude::*;
use gstreamer as gst;

use super::{FrameTap, reasons, tap, upright};
use crate::intake::{factory_name, klass};

/// Elements after which a frame still shows what the source has sent. After any other element, which may hide faces, video is encoded again.
const UNCHANGING: &[&str] = &[
    "queue",
    "queue2",
    "tee",
    "identity",
    "clocksync",
    "capsfilter",
    "videoconvert",
    "videoscale",
    "videoconvertscale",
    "videorate",
    "uridecodebin",
    "uridecodebin3",
    "decodebin",
    "decodebin3",
    "roisource",
    "roiattach",
    "roidetect",
    "roitrack",
    "roianalytics",
    "roiclassify",
    "roicrop",
    "roirecord",
    "roipublish",
];

/// A compressed frame on its way to the decoder.
pub struct CompressedFrame<'a> {
    buffer: &'a gst::BufferRef,
    caps: &'a H264,
    /// Presentation timestamp in nanoseconds.
    pub pts_ns: u64,
    /// Decoding timestamp in nanoseconds, if the source has it.
    pub dts_ns: Option<u64>,
    /// Whether the frame needs no other frame.
    pub is_key: bool,
    /// When the frame has arrived from its source; see [`TappedFrame::arrived`](super::TappedFrame::arrived).
    pub arrived: Option<Instant>,
}

/// What the caps of compressed frames say.
#[derive(Debug, Clone, PartialEq)]
struct H264 {
    /// The configuration record; `None`: the frames have start codes.
    config: Option<Vec<u8>>,
    width: u16,
    height: u16,
}

impl CompressedFrame<'_> {
    /// The configuration record (`avcC`) of frames with lengths of four bytes; `None`: the frames have start codes.
    pub fn config(&self) -> Option<&[u8]> {
        self.caps.config.as_deref()
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (u16, u16) {
        (self.caps.width, self.caps.height)
    }

    /// Calls a function with the bytes of the frame. Returns `None` if the memory cannot be read.
    pub fn with_bytes<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        self.buffer.map_readable().ok().map(|bytes| read(&bytes))
    }
}

impl H264 {
    fn of(caps: &gst::Caps) -> Option<Self> {
        let structure = caps.structure(0).filter(|structure| structure.name() == "video/x-h264")?;
        let text = |name: &str| structure.get::<String>(name).ok();
        if text("alignment").as_deref() != Some("au") {
            return None;
        }
        let config = match &*text("stream-format")? {
            "avc" => Some(structure.get::<gst::Buffer>("codec_data").ok()?.map_readable().ok()?.to_vec()),
            "byte-stream" => None,
            _ => return None,
        };
        // Lengths have four bytes, as nearly all encoders write them.
        if config.as_ref().is_some_and(|config| config.get(4).is_none_or(|sizes| sizes & 3 != 3)) {
            return None;
        }
        let side = |name: &str| u16::try_from(structure.get::<i32>(name).ok()?).ok();
        Some(Self { config, width: side("width")?, height: side("height")? })
    }
}

/// The compressed frames of one pipeline.
#[derive(Debug, Default)]
pub(super) struct Compressed {
    /// Whether the source has sent H.264 to its decoder.
    has_come: AtomicBool,
    /// Whether the frames at the tap are those of the source; `None`: not known yet.
    is_unchanged: Mutex<Option<bool>>,
    /// Whether both hold.
    is_passed: AtomicBool,
}

impl Compressed {
    /// Shows the tap the compressed frames of a pipeline.
    pub(super) fn install(pipeline: &gst::Pipeline, tap: &Arc<dyn FrameTap>) -> Arc<Self> {
        let compressed = Arc::new(Self::default());
        let (of_signal, tap) = (compressed.clone(), Arc::downgrade(tap));
        pipeline.connect_deep_element_added(move |_, _, element| {
            if element.name() == upright::NAME {
                of_signal.set_changed();
            }
            let klass = klass(element);
            if !klass.contains("Decoder") || !klass.contains("Video") || !reasons::is_in_source(element.upcast_ref()) {
                return;
            }
            let Some(pad) = element.static_pad("sink") else { return };
            let (compressed, tap) = (of_signal.clone(), tap.clone());
            let known: Mutex<Option<(gst::Caps, Option<H264>)>> = Mutex::default();
            pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
                if let (Some(buffer), Some(tap), Some(caps)) = (info.buffer(), tap.upgrade(), pad.current_caps()) {
                    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                    if known.as_ref().is_none_or(|(of, _)| *of != caps) {
                        let h264 = H264::of(&caps);
                        *known = Some((caps, h264));
                    }
                    if let Some((_, Some(h264))) = &*known {
                        compressed.show(pad, buffer, h264, &*tap);
                    }
                }
                gst::PadProbeReturn::Ok
            });
        });
        compressed
    }

    fn show(&self, pad: &gst::Pad, buffer: &gst::BufferRef, caps: &H264, tap: &dyn FrameTap) {
        self.has_come.store(true, Ordering::Release);
        if !self.is_passed.load(Ordering::Acquire) || !tap.wants_compressed() {
            return;
        }
        let Some(pts) = buffer.pts() else { return };
        let is_shown = tap.compressed(&CompressedFrame {
            buffer,
            caps,
            pts_ns: pts.nseconds(),
            dts_ns: buffer.dts().map(gst::ClockTime::nseconds),
            is_key: !buffer.flags().contains(gst::BufferFlags::DELTA_UNIT),
            arrived: tap::arrival(pad, buffer),
        });
        if !is_shown {
            self.set_changed();
        }
    }

    /// The tap does not get compressed frames from now on, also if it has got earlier ones.
    fn set_changed(&self) {
        let mut is_unchanged = self.is_unchanged.lock().unwrap_or_else(PoisonError::into_inner);
        *is_unchanged = Some(false);
        self.is_passed.store(false, Ordering::Release);
    }

    /// Whether the tap gets the compressed frames of the frames that arrive at this pad.
    pub(super) fn is_passed_to(&self, pad: &gst::Pad) -> bool {
        if !self.has_come.load(Ordering::Acquire) {
            return false;
        }
        let mut is_unchanged = self.is_unchanged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_passed = *is_unchanged.get_or_insert_with(|| pad.parent_element().is_some_and(|element| is_unchanged_before(&element)));
        self.is_passed.store(is_passed, Ordering::Release);
        is_passed
    }
}

/// Whether all elements upstream let the frames show what the source has sent.
fn is_unchanged_before(last: &gst::Element) -> bool {
    let (mut seen, mut open) = (HashSet::new(), vec![last.clone()]);
    while let Some(element) = open.pop() {
        let factory = factory_name(&element);
        if !UNCHANGING.contains(&&*factory) {
            tracing::debug!("live video is encoded again, because `{factory}` changes the frames of the source");
            return false;
        }
        if seen.insert(element.name()) {
            // A source is a bin without sink pads.
            let peers = element.sink_pads().into_iter().filter_map(|pad| pad.peer()?.parent_element());
            open.extend(peers);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline(line: &str) -> (gst::Pipeline, gst::Element) {
        crate::elements::register_static().unwrap();
        let pipeline = gst::parse::launch(line).unwrap().downcast::<gst::Pipeline>().unwrap();
        let last = pipeline.by_name("last").unwrap();
        (pipeline, last)
    }

    #[test]
    fn only_listed_elements_leave_the_frames_of_the_source_unchanged() {
        let is_unchanged = |line: &str| is_unchanged_before(&pipeline(line).1);
        assert!(is_unchanged("queue ! videoconvert ! roitrack ! roipublish name=last"));
        for changing in ["roioverlay", "videoflip"] {
            assert!(!is_unchanged(&format!("queue ! {changing} ! roitrack ! identity name=last")), "{changing}");
        }
        assert!(!UNCHANGING.contains(&"roi-not-written-yet"));
    }

    #[test]
    fn rotation_that_is_inserted_later_ends_the_compressed_frames() {
        struct NoTap;
        impl FrameTap for NoTap {
            fn frame(&self, _: &crate::pipeline::TappedFrame<'_>) {}
        }
        let (pipeline, last) = pipeline("queue ! identity name=last");
        let tap: Arc<dyn FrameTap> = Arc::new(NoTap);
        let compressed = Compressed::install(&pipeline, &tap);
        let pad = last.static_pad("src").unwrap();
        compressed.has_come.store(true, Ordering::Release);
        assert!(compressed.is_passed_to(&pad));
        // As `upright` does: the element is in the pipeline before it is linked.
        pipeline.add(&gst::ElementFactory::make("videoflip").name(upright::NAME).build().unwrap()).unwrap();
        assert!(!compressed.is_passed_to(&pad) && !compressed.is_passed.load(Ordering::Acquire));
    }
}
