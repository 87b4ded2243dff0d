//! Monitors the source of a stream. Detects a source that delivers no data any more, and an EOS that was not expected.
//!
//! The arrival of data is measured at the source. So the module does not mistake a model that is still compiling, or a slow output, for a
//! lost camera. While downstream blocks a buffer of the source, the source cannot deliver data, and is not considered late.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;
use gstreamer_base as gst_base;

use super::plan::{ENTRY, SOURCE};
use super::{Error, Input, Plan, reasons};
use crate::intake::{Intake, factory_name, is_in_rtsp, is_source, klass};

/// Minimum timeout for HLS and DASH. The data of a segment arrives at once, and the next segment may follow only after ten
/// seconds or more.
const LEAST_TIMEOUT_OF_SEGMENTS: Duration = Duration::from_secs(30);
/// Minimum timeout before the first data. A source needs time to connect, and a busy machine delays the connection.
const LEAST_TIMEOUT_OF_FIRST_DATA: Duration = Duration::from_secs(5);
/// Maximum time that an RTSP source tries UDP before it switches to TCP.
const MAX_UDP_TRY: Duration = Duration::from_secs(5);
/// Time that may be missing at the end of a recording, because durations are rounded.
const TOLERANCE: gst::ClockTime = gst::ClockTime::from_mseconds(1000);

/// Monitors the source of a running pipeline.
pub(super) struct Watch {
    arrivals: Arc<Arrivals>,
    /// Arrivals of decoded frames at the output of the source.
    frames: Arc<Arrivals>,
    intake: Arc<Intake>,
    source: gst::Element,
    name: String,
    timeout: Option<Duration>,
    frame_timeout: Option<Duration>,
    /// Whether the input is standard input: its end is regular, because the sender may be any program.
    is_descriptor: bool,
}

struct Arrivals {
    begin: Instant,
    /// Time of the first arrival.
    first: OnceLock<Instant>,
    /// Time of the last arrival, in milliseconds since `begin`.
    last_ms: AtomicU64,
    n_buffers: AtomicU64,
    /// Number of decoded frames that was passed to the last call of `overdue`.
    n_decoded: AtomicU64,
    /// Number of buffers that the source is pushing and that downstream has not accepted yet.
    n_in_push: AtomicUsize,
    /// Position in bytes of the end of the data that has arrived, if the buffers have positions.
    end_bytes: AtomicU64,
    /// Whether lateness cannot be detected, because data is pulled or comes from unknown elements.
    is_unknown: AtomicBool,
    is_segmented: AtomicBool,
    /// Whether the source has delivered all its data.
    is_done: AtomicBool,
}

impl Watch {
    /// Starts to monitor the source of a pipeline. Call this before the pipeline starts. Returns `None` for sources that cannot be lost:
    /// files, images, and frames of the application.
    pub(super) fn new(pipeline: &gst::Pipeline, plan: &Plan, intake: Arc<Intake>) -> Option<Self> {
        let Input::Uri(uri) = &plan.input else { return None };
        let is_descriptor = uri.is_descriptor();
        let source = pipeline.by_name(SOURCE)?;
        let (arrivals, frames) = (Arc::<Arrivals>::default(), Arc::<Arrivals>::default());
        let timeout = plan.limits.source_timeout;
        if source.find_property("uri").is_some() {
            source.connect_closure(
                "source-setup",
                false,
                glib::closure!(move |_decoder: &gst::Element, source: &gst::Element| set_up(source, timeout)),
            );
        }
        if let Some(pad) = pipeline.by_name(ENTRY).and_then(|entry| entry.static_pad("src")) {
            // Drop flush events: a lost RTSP source flushes, and the flush would discard frames in encoders and muxers.
            pad.add_probe(gst::PadProbeType::EVENT_FLUSH, |_, _| gst::PadProbeReturn::Drop);
        }
        let of_frames = frames.clone();
        source.connect_pad_added(move |_, pad| watch_pad(pad, &of_frames));
        let seen = arrivals.clone();
        // Not on the pipeline, whose handlers come first: the probes of the intake must come first.
        if let Some(bin) = source.downcast_ref::<gst::Bin>() {
            bin.connect_deep_element_added(move |_, bin, element| watch_element(bin, element, &seen));
        }
        let frame_timeout = plan.limits.frame_timeout;
        Some(Self { arrivals, frames, intake, source, name: reasons::name(plan), timeout, frame_timeout, is_descriptor })
    }

    /// Returns an error if the source has delivered nothing for too long. `n_decoded` is the current number of decoded frames.
    pub(super) fn overdue(&self, n_decoded: u64) -> Option<Error> {
        let arrivals = &self.arrivals;
        let mut timeout = self.timeout?;
        let has_begun = arrivals.n_buffers.load(Ordering::Relaxed) > 0;
        if !has_begun {
            timeout = timeout.max(LEAST_TIMEOUT_OF_FIRST_DATA);
        }
        let is_segmented = arrivals.is_segmented.load(Ordering::Relaxed);
        let has_decoded = arrivals.n_decoded.swap(n_decoded, Ordering::Relaxed) != n_decoded;
        if is_segmented {
            // A segment arrives at once, and its frames are then decoded for a while. So decoded frames count as arrived data.
            if has_decoded {
                arrivals.last_ms.store(arrivals.begin.elapsed().as_millis() as u64, Ordering::Relaxed);
            }
            timeout = timeout.max(LEAST_TIMEOUT_OF_SEGMENTS);
        }
        let since = arrivals.since_last();
        if since < timeout || arrivals.n_in_push.load(Ordering::Relaxed) > 0 || arrivals.is_unknown.load(Ordering::Relaxed) {
            return None;
        }
        // If the source has delivered all its data, it is not late: the data is still being processed. A live playlist is different,
        // because it continues after each segment.
        if arrivals.is_done.load(Ordering::Relaxed) && !(is_segmented && self.duration().is_none()) {
            return None;
        }
        let seconds = timeout.as_secs_f64();
        let what = if has_begun { "was lost: the source delivered nothing" } else { "has delivered nothing" };
        Some(Error::failed(format!(
            "the source `{}` {what} for {seconds} s; check the device and the network, or allow more with --source-timeout SECONDS (0: no limit)",
            self.name
        )))
    }

    /// Returns an error if a live source has delivered data, but no decoded frame, for too long. A frame that downstream has not accepted
    /// yet counts as delivered.
    pub(super) fn starving(&self) -> Option<Error> {
        let (data, frames) = (&self.arrivals, &self.frames);
        let mut timeout = self.frame_timeout?;
        let since = match frames.n_buffers.load(Ordering::Relaxed) {
            // Before the first frame, allow more time: decoding begins with a key frame, which a camera sends only every few seconds.
            0 => {
                timeout = timeout.saturating_mul(3);
                data.first.get()?.elapsed()
            }
            _ => frames.since_last(),
        };
        if data.is_segmented.load(Ordering::Relaxed) {
            timeout = timeout.max(LEAST_TIMEOUT_OF_SEGMENTS);
        }
        let is_waiting = frames.n_in_push.load(Ordering::Relaxed) > 0 || frames.is_done.load(Ordering::Relaxed);
        if since < timeout || is_waiting || !self.is_live() {
            return None;
        }
        Some(Error::failed(format!(
            "the source `{}` was lost: the source delivered data but no frame for {} s; check its format, or allow more with --no-frame-timeout \
             SECONDS (0: no limit)",
            self.name,
            timeout.as_secs_f64()
        )))
    }

    /// Whether the source must deliver frames all the time: it is live, or declares no end. Sends no query, which could block: an element
    /// that is changing its state may hold locks that a query needs.
    fn is_live(&self) -> bool {
        let origin = self.source.property::<Option<gst::Element>>("source");
        let is_live = |origin: gst::Element| {
            let of_base = origin.downcast_ref::<gst_base::BaseSrc>().is_some_and(gst_base::prelude::BaseSrcExt::is_live);
            of_base || factory_name(&origin) == "rtspsrc"
        };
        self.intake.is_endless() || origin.is_some_and(is_live)
    }

    /// Returns the times of the first and the last decoded frame; `None` before the first frame.
    pub(super) fn frames(&self) -> Option<(Instant, Instant)> {
        let first = *self.frames.first.get()?;
        let last = self.frames.begin + Duration::from_millis(self.frames.last_ms.load(Ordering::Relaxed));
        Some((first, last.max(first)))
    }

    /// Whether the source is a recording, which has a duration.
    pub(super) fn is_recording(&self, declares_duration: bool) -> bool {
        declares_duration || self.duration().is_some()
    }

    /// Whether any data has arrived.
    pub(super) fn has_arrived(&self) -> bool {
        self.arrivals.n_buffers.load(Ordering::Relaxed) > 0
    }

    fn duration(&self) -> Option<gst::ClockTime> {
        self.source.query_duration::<gst::ClockTime>().filter(|duration| *duration > gst::ClockTime::ZERO)
    }

    /// Returns an error if EOS was not expected, for example because a camera has no end.
    ///
    /// `reached` is the end of the last frame. `declares_duration` is true if the container declares its duration. The module `decoded`
    /// checks the declared duration.
    pub(super) fn broken_end(&self, reached: Option<gst::ClockTime>, declares_duration: bool) -> Option<Error> {
        if self.is_descriptor {
            return None;
        }
        let duration = self.duration();
        let origin = self.source.property::<Option<gst::Element>>("source");
        let n_bytes = origin.as_ref().and_then(|origin| origin.query_duration::<gst::format::Bytes>());
        let is_live = origin.as_ref().is_some_and(is_live);
        let is_whole = match (n_bytes.map(|bytes| *bytes).filter(|bytes| *bytes > 0), duration) {
            // A live source without a known duration has no regular end, so EOS is unexpected.
            _ if is_live && duration.is_none() && !declares_duration => false,
            // A container may have bytes after its last frame that the demuxer does not read. So a file also counts as complete if
            // its declared duration was played.
            (Some(n_bytes), duration) => {
                let is_played = duration.zip(reached).is_some_and(|(duration, reached)| reached + TOLERANCE >= duration);
                self.arrivals.end_bytes.load(Ordering::Relaxed) >= n_bytes || declares_duration && is_played
            }
            (None, Some(duration)) => reached.is_some_and(|reached| reached + TOLERANCE >= duration),
            (None, None) => declares_duration,
        };
        if is_whole {
            return None;
        }
        Some(Error::failed(format!("the source `{}` ended unexpectedly: the connection was closed or the device was removed", self.name)))
    }
}

impl Default for Arrivals {
    fn default() -> Self {
        Self {
            begin: Instant::now(),
            first: OnceLock::new(),
            last_ms: AtomicU64::new(0),
            n_buffers: AtomicU64::new(0),
            n_decoded: AtomicU64::new(0),
            n_in_push: AtomicUsize::new(0),
            end_bytes: AtomicU64::new(0),
            is_unknown: AtomicBool::new(false),
            is_segmented: AtomicBool::new(false),
            is_done: AtomicBool::new(false),
        }
    }
}

impl Arrivals {
    fn since_last(&self) -> Duration {
        self.begin.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }

    fn arrived(&self, buffer: &gst::BufferRef) {
        self.first.get_or_init(Instant::now);
        self.n_buffers.fetch_add(1, Ordering::Relaxed);
        if buffer.offset_end() != gst::format::Buffers::OFFSET_NONE {
            self.end_bytes.fetch_max(buffer.offset_end(), Ordering::Relaxed);
        } else if buffer.offset() != gst::format::Buffers::OFFSET_NONE {
            self.end_bytes.fetch_max(buffer.offset().saturating_add(buffer.size() as u64), Ordering::Relaxed);
        }
        self.touch();
    }

    fn touch(&self) {
        self.is_done.store(false, Ordering::Relaxed);
        self.last_ms.store(self.begin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}

/// Sets the timeouts of the source element itself, and deselects the streams of a camera that are not video.
fn set_up(source: &gst::Element, timeout: Option<Duration>) {
    // These timeouts also limit the time to connect.
    let timeout = timeout.map(|timeout| timeout.max(LEAST_TIMEOUT_OF_FIRST_DATA));
    let set = |name: &str, value: glib::Value| {
        // The type of a property may differ between versions of the element. Properties of another type are left unchanged.
        if source.find_property(name).is_some_and(|pspec| pspec.value_type() == value.type_()) {
            source.set_property_from_value(name, &value);
        }
    };
    match factory_name(source).as_str() {
        "rtspsrc" => {
            if let Some(timeout) = timeout {
                set("timeout", (MAX_UDP_TRY.min(timeout / 2).as_micros() as u64).to_value());
                set("tcp-timeout", (timeout.as_micros() as u64).to_value());
            }
            source.connect_closure(
                "select-stream",
                false,
                glib::closure!(|_source: &gst::Element, _number: u32, caps: &gst::Caps| -> bool {
                    let media = caps.structure(0).and_then(|structure| structure.get::<String>("media").ok());
                    media.is_none_or(|media| media == "video")
                }),
            );
        }
        // Set the timeout of the element one second longer than the timeout of this module. So this module reports the error first,
        // and its error names the source.
        "souphttpsrc" | "curlhttpsrc" => {
            let seconds = timeout.map_or(0, |timeout| timeout.as_secs().saturating_add(1).min(3600) as u32);
            set("timeout", seconds.to_value());
        }
        _ => {}
    }
}

fn watch_element(bin: &gst::Bin, element: &gst::Element, arrivals: &Arc<Arrivals>) {
    let factory = factory_name(element);
    if klass(element).contains("Adaptive") {
        arrivals.is_segmented.store(true, Ordering::Relaxed);
    }
    if factory == "rtpjitterbuffer" {
        // Count the packets that enter the jitter buffer: it stores packets without ever blocking, even if downstream is slow.
        if let Some(pad) = element.static_pad("sink") {
            let arrivals = arrivals.clone();
            pad.add_probe(gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST, move |_, info| {
                count(&arrivals, info);
                gst::PadProbeReturn::Ok
            });
        }
        return;
    }
    if is_source(element) && !is_in_rtsp(bin) {
        element.src_pads().iter().for_each(|pad| watch_pad(pad, arrivals));
    }
}

/// Adds a probe that pushes the source's buffers itself. So the probe knows when downstream has accepted a buffer.
fn watch_pad(pad: &gst::Pad, arrivals: &Arc<Arrivals>) {
    let of_push = arrivals.clone();
    let data = gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST;
    pad.add_probe(data | gst::PadProbeType::PUSH, move |pad, info| {
        let Some(peer) = pad.peer() else { return gst::PadProbeReturn::Ok };
        count(&of_push, info);
        of_push.n_in_push.fetch_add(1, Ordering::Relaxed);
        info.flow_res = match info.data.take() {
            Some(gst::PadProbeData::Buffer(buffer)) => peer.chain(buffer),
            Some(gst::PadProbeData::BufferList(buffers)) => peer.chain_list(buffers),
            _ => Ok(gst::FlowSuccess::Ok),
        };
        of_push.touch();
        of_push.n_in_push.fetch_sub(1, Ordering::Relaxed);
        gst::PadProbeReturn::Handled
    });
    let of_end = arrivals.clone();
    pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
        if matches!(&info.data, Some(gst::PadProbeData::Event(event)) if event.type_() == gst::EventType::Eos) {
            of_end.is_done.store(true, Ordering::Relaxed);
        }
        gst::PadProbeReturn::Ok
    });
    let of_pull = arrivals.clone();
    pad.add_probe(data | gst::PadProbeType::PULL, move |_, info| {
        of_pull.is_unknown.store(true, Ordering::Relaxed);
        count(&of_pull, info);
        gst::PadProbeReturn::Ok
    });
}

fn count(arrivals: &Arrivals, info: &gst::PadProbeInfo<'_>) {
    match &info.data {
        Some(gst::PadProbeData::Buffer(buffer)) => arrivals.arrived(buffer),
        Some(gst::PadProbeData::BufferList(buffers)) => buffers.iter().for_each(|buffer| arrivals.arrived(buffer)),
        _ => {}
    }
}

fn is_live(origin: &gst::Element) -> bool {
    let mut query = gst::query::Latency::new();
    factory_name(origin) == "rtspsrc" || origin.query(&mut query) && query.result().0
}
