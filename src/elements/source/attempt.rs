//! One attempt to open a source: a decoder for the address, connected to the pad of the element while the attempt lasts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::encoded::{Branch, Stopped};
use super::imp::Shared;
use super::worker::Signal;
use crate::elements::{guarded_source, redirects};
use crate::intake::{Intake, consume};

/// How long the end of a source is awaited. A source that takes longer is abandoned: it ends on its own thread.
const MAX_STOP: Duration = Duration::from_secs(5);

/// Times of the frames that have left the element, over all attempts.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    /// End of the last frame, in running time.
    last_end: Option<gst::ClockTime>,
    /// Shift of the current attempt's times, in nanoseconds. `None` before its first frame.
    offset: Option<i64>,
}

impl Timeline {
    /// Adds a frame with this running time. Returns the shift of the attempt's times.
    pub(super) fn add(&mut self, bin: &gst::Bin, time: gst::ClockTime, duration: Option<gst::ClockTime>) -> i64 {
        let last_end = self.last_end;
        let offset = *self.offset.get_or_insert_with(|| {
            last_end.filter(|last_end| time < *last_end).map_or(0, |last_end| {
                let resumes_at = bin.current_running_time().map_or(last_end, |now| now.max(last_end));
                i64::try_from((resumes_at - time).nseconds()).unwrap_or(0)
            })
        });
        let shifted = time.nseconds().saturating_add_signed(offset);
        let end = gst::ClockTime::from_nseconds(shifted) + duration.unwrap_or(gst::ClockTime::ZERO);
        self.last_end = self.last_end.max(Some(end));
        offset
    }
}

/// Frames of one attempt: arrival of the first and of the last.
type Frames = Arc<Mutex<Option<(Instant, Instant)>>>;

/// A source that was opened. See the module.
pub(super) struct Attempt {
    /// The decoder. It is not part of the bin's state changes.
    pub(super) decoder: gst::Element,
    pub(super) intake: Arc<Intake>,
    pad: gst::GhostPad,
    frames: Frames,
    is_current: Arc<AtomicBool>,
    /// The branch of the pad `encoded`, if that pad was requested.
    encoded: Option<Arc<Branch>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Attempt {
    /// Adds a decoder for the address to the bin. It is not started yet.
    ///
    /// # Errors
    /// Returns the text of an error if GStreamer lacks the decoder's plugin.
    pub(super) fn new(
        bin: &gst::Bin,
        shared: &Shared,
        uri: &str,
        timeline: &Arc<Mutex<Timeline>>,
        signals: &Sender<Signal>,
    ) -> Result<Self, String> {
        let caps = gst::Caps::new_empty_simple("video/x-raw");
        let decoder = gst::ElementFactory::make("uridecodebin").property("uri", uri).property("caps", caps).build();
        let decoder = decoder.map_err(|_| "expected the element uridecodebin: install gstreamer1.0-plugins-base".to_owned())?;
        if let Ok((path, _)) = glib::filename_from_uri(uri) {
            guarded_source::allow_files(&decoder, &path, false);
        }
        decoder.connect_closure(
            "source-setup",
            false,
            glib::closure!(|_decoder: &gst::Element, source: &gst::Element| {
                if source.factory().is_some_and(|factory| factory.name() == "rtspsrc") {
                    redirects::limit(source);
                }
            }),
        );
        let (frames, is_current) = (Frames::default(), Arc::new(AtomicBool::new(true)));
        let intake = Intake::of(decoder.downcast_ref().ok_or("internal error: uridecodebin is no bin")?);
        decoder.set_locked_state(true);
        bin.add(&decoder).map_err(|error| error.to_string())?;
        decoder.set_bus(Some(&own_bus(bin, &decoder, (&is_current, &intake), signals)));
        lock(timeline).offset = None;
        let encoded = lock(&shared.encoded).clone().zip(decoder.downcast_ref::<gst::Bin>());
        let encoded = encoded.map(|(pad, source)| Branch::connect(source, bin, pad, timeline, &is_current, signals));
        let is_linked = AtomicBool::new(false);
        let (ghost, timeline, signals) = (shared.pad.clone(), timeline.clone(), signals.clone());
        let (of_pad, of_frames) = (is_current.clone(), frames.clone());
        let weak = bin.downgrade();
        decoder.connect_pad_added(move |_, decoded| {
            let Some(bin) = weak.upgrade() else { return };
            if !of_pad.load(Ordering::Acquire) || is_linked.swap(true, Ordering::AcqRel) {
                return;
            }
            watch(decoded, &ghost, &bin, (&timeline, &of_frames, &of_pad), &signals);
            if let Err(error) = ghost.set_target(Some(decoded)) {
                let _sent = signals.send(Signal::Failed { reason: error.to_string(), is_refused: false });
            }
        });
        Ok(Self { decoder, intake, pad: shared.pad.clone(), frames, is_current, encoded })
    }

    /// Arrival of the first and of the last frame.
    pub(super) fn frames(&self) -> Option<(Instant, Instant)> {
        *lock(&self.frames)
    }

    /// Whether the source has a duration, as a recording.
    pub(super) fn is_recording(&self) -> bool {
        self.decoder.query_duration::<gst::ClockTime>().is_some()
    }

    /// Disconnects the source, and stops it on a separate thread.
    pub(super) fn stop(self, bin: &gst::Bin) {
        self.is_current.store(false, Ordering::Release);
        if let Err(error) = self.pad.set_target(None::<&gst::Pad>) {
            gst::warning!(super::imp::CAT, obj = bin, "cannot disconnect the source: {error}");
        }
        self.intake.hang_up();
        let _removed = bin.remove(&self.decoder);
        let (stopped, is_stopped) = bounded::<()>(1);
        let (decoder, parser) = (self.decoder, self.encoded.and_then(|encoded| encoded.stop()));
        let stop = move || {
            let _state = decoder.set_state(gst::State::Null);
            parser.into_iter().for_each(Stopped::wait);
            drop((decoder, stopped));
        };
        if std::thread::Builder::new().name("roisource-stop".to_owned()).spawn(stop).is_ok() {
            // The channel is closed when the source has stopped.
            let _timeout = is_stopped.recv_timeout(MAX_STOP);
        }
    }
}

/// Returns a bus for the messages of a source. Errors are signals. All other messages go to the bus of the element, except those about
/// states, which belong to the bin.
fn own_bus(
    bin: &gst::Bin,
    decoder: &gst::Element,
    (is_current, intake): (&Arc<AtomicBool>, &Arc<Intake>),
    signals: &Sender<Signal>,
) -> gst::Bus {
    let bus = gst::Bus::new();
    let (weak, decoder, signals) = (bin.downgrade(), decoder.downgrade(), signals.clone());
    let (is_current, intake) = (is_current.clone(), intake.clone());
    bus.set_sync_handler(move |_, message| {
        if !is_current.load(Ordering::Acquire) {
            return gst::BusSyncReply::Drop;
        }
        match message.view() {
            gst::MessageView::Error(error) => {
                let is = |kind: gst::ResourceError| error.error().matches(kind);
                let format = intake.undecodable(error);
                let is_refused = format.is_some()
                    || is(gst::ResourceError::NotFound)
                    || is(gst::ResourceError::NotAuthorized)
                    || error.error().matches(gst::StreamError::TypeNotFound)
                    || error.error().matches(gst::StreamError::WrongType);
                let reason = format.or_else(|| intake.excess()).unwrap_or_else(|| error.error().to_string());
                let _sent = signals.send(Signal::Failed { reason, is_refused });
            }
            // A state change that ends later is continued by the bin, but not for an element whose state is locked.
            gst::MessageView::AsyncDone(_) if decoder.upgrade().is_some_and(|decoder| message.src() == Some(decoder.upcast_ref())) => {
                let _sent = signals.send(Signal::Prepared);
            }
            gst::MessageView::Latency(_) | gst::MessageView::Warning(_) | gst::MessageView::Tag(_) | gst::MessageView::Element(_) => {
                if let Some(bin) = weak.upgrade() {
                    let _posted = bin.post_message(message.clone());
                }
            }
            _ => {}
        }
        gst::BusSyncReply::Drop
    });
    bus
}

/// Notes the frames of a source, keeps EOS back, and shifts the times of a source that begins again at zero.
fn watch(
    decoded: &gst::Pad,
    ghost: &gst::GhostPad,
    bin: &gst::Bin,
    (timeline, frames, is_current): (&Arc<Mutex<Timeline>>, &Frames, &Arc<AtomicBool>),
    signals: &Sender<Signal>,
) {
    let (weak_bin, weak_ghost) = (bin.downgrade(), ghost.downgrade());
    let (timeline, frames, is_current, signals) = (timeline.clone(), frames.clone(), is_current.clone(), signals.clone());
    let types = gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM;
    decoded.add_probe(types, move |pad, info| {
        if !is_current.load(Ordering::Acquire) {
            return consume(info);
        }
        if info.event().is_some_and(|event| event.type_() == gst::EventType::Eos) {
            let _sent = signals.send(Signal::Ended);
            return consume(info);
        }
        let (Some(buffer), Some(bin), Some(ghost)) = (info.buffer(), weak_bin.upgrade(), weak_ghost.upgrade()) else {
            return gst::PadProbeReturn::Ok;
        };
        let now = Instant::now();
        let is_first = {
            let mut frames = lock(&frames);
            let is_first = frames.is_none();
            *frames = Some((frames.map_or(now, |(first, _)| first), now));
            is_first
        };
        let offset = running_time(pad, buffer).map(|time| lock(&timeline).add(&bin, time, buffer.duration()));
        if is_first {
            // The offset applies to the segment, which is sent again before this frame.
            if let Some(offset) = offset.filter(|offset| ghost.offset() != *offset) {
                ghost.set_offset(offset);
            }
            let _sent = signals.send(Signal::Delivers);
        }
        gst::PadProbeReturn::Ok
    });
}

pub(super) fn running_time(pad: &gst::Pad, buffer: &gst::BufferRef) -> Option<gst::ClockTime> {
    let segment = pad.sticky_event::<gst::event::Segment>(0)?;
    segment.segment().downcast_ref::<gst::ClockTime>()?.to_running_time(buffer.pts()?)
}
