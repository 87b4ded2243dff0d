//! Compares the decoded frames with what the file declares, to detect truncated files and frames lost in the middle.
//!
//! This module compares the timestamps of the demuxer, which reads the container's index, with those of the decoder's output. A compressed
//! frame in a gap of the decoder's output was lost. The end of the last frame is compared with the declared duration.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::{Error, Input, Plan, container, reasons};
use crate::intake::{Intake, factory_name, is_video_decoder};

/// Demuxers of containers that declare a reliable duration. Other demuxers estimate the duration.
const DEMUXERS: [&str; 3] = ["qtdemux", "matroskademux", "avidemux"];
/// Maximum number of compressed frames inside a decoder.
const MAX_INSIDE: usize = 1024;
/// Time that may be missing at the end of a file that has all its bytes. For a file shorter than ten seconds, the limit is a tenth of its
/// duration.
const MAX_TOLERANCE: gst::ClockTime = gst::ClockTime::from_seconds(1);

/// Counts and compares the compressed and the decoded frames of one input.
pub(super) struct Decoded {
    seen: Arc<Mutex<Seen>>,
    plan: Plan,
}

#[derive(Debug, Default, Clone)]
struct Seen {
    /// The demuxer. The reference is weak, because probes on the demuxer's pads hold a reference to this struct.
    demuxer: Option<glib::WeakRef<gst::Element>>,
    /// Names of the demuxer's video pads. With several video tracks nothing is compared, because decoded frames do not show their
    /// track.
    tracks: BTreeSet<String>,
    /// Timestamps of compressed frames inside the decoder.
    inside: BTreeSet<gst::ClockTime>,
    n_frames: u64,
    begin: Option<gst::ClockTime>,
    end: Option<gst::ClockTime>,
    frame_time: gst::ClockTime,
    /// End of the last buffer of any stream.
    last_end: Option<gst::ClockTime>,
    /// Declared end of the video track.
    declared_end: Option<gst::ClockTime>,
    /// Frames in the file that the decoder did not output.
    n_lost: u64,
    /// Number of frames that would fit into gaps between the timestamps. A variable frame rate causes gaps too, so gaps alone are
    /// no damage.
    n_absent: u64,
    /// Position of damage that was not reported yet.
    news: Option<gst::ClockTime>,
    /// Whether a sink has sent QoS events. Decoders then drop late frames.
    drops_late: bool,
    /// Whether the stream has reached its limit. Later frames are refused, and the decoder drops frames because of that.
    is_at_limit: Arc<AtomicBool>,
}

impl Decoded {
    /// Starts counting the frames of a pipeline. Call this before the pipeline starts.
    /// `is_at_limit` is set when the stream reaches a limit of frames or time.
    pub(super) fn new(pipeline: &gst::Pipeline, plan: &Plan, is_at_limit: Option<Arc<AtomicBool>>) -> Self {
        let seen = Arc::new(Mutex::new(Seen { is_at_limit: is_at_limit.unwrap_or_default(), ..Seen::default() }));
        let of_signal = seen.clone();
        if matches!(plan.input, Input::File(_) | Input::Uri(_)) {
            pipeline.connect_deep_element_added(move |_, _, element| {
                if DEMUXERS.contains(&&*factory_name(element)) {
                    let seen = of_signal.clone();
                    seen.lock().unwrap_or_else(PoisonError::into_inner).demuxer = Some(element.downgrade());
                    element.connect_pad_added(move |_, pad| watch_demuxed(pad, &seen));
                } else if is_video_decoder(element) && reasons::is_in_source(element.upcast_ref()) {
                    watch_decoder(element, &of_signal);
                }
            });
        }
        Self { seen, plan: plan.clone() }
    }

    /// Returns the number of decoded frames.
    pub(super) fn n_frames(&self) -> u64 {
        self.lock().n_frames
    }

    /// Returns the end of the last frame, in stream time.
    pub(super) fn reached(&self) -> Option<gst::ClockTime> {
        self.lock().end
    }

    /// Whether the container declares the duration of the video.
    pub(super) fn declares_duration(&self) -> bool {
        let seen = self.lock().clone();
        seen.declared_end.is_some() || seen.demuxer.and_then(|demuxer| duration(&demuxer.upgrade()?)).is_some()
    }

    /// Returns a warning if bytes at the end of the file are missing. The check reads the file only, so it can run before
    /// playback.
    pub(super) fn is_truncated(&self) -> Option<String> {
        let Input::File(path) = &self.plan.input else { return None };
        let (expected, got) = container::missing_bytes(path)?;
        Some(format!("`{}` is truncated: expected {expected} bytes, got {got}; the existing part is played", reasons::name(&self.plan)))
    }

    /// Returns a warning about damage that was found since the last call.
    pub(super) fn news(&self) -> Option<String> {
        let at = self.lock().news.take()?;
        Some(format!("`{}` is damaged at {:.1} s: frames at this time can't be decoded", reasons::name(&self.plan), seconds(at)))
    }

    /// Returns the error of a file that reached EOS with missing frames.
    pub(super) fn missing(&self) -> Option<Error> {
        let mut seen = self.lock().clone();
        let demuxer = seen.demuxer.take()?.upgrade()?;
        if seen.declared_end.is_none() {
            let duration = duration(&demuxer);
            // The declared duration is that of the longest stream of the file, which may be audio. So subtract the time by which
            // other streams are longer.
            let others = seen.last_end.unwrap_or_default().saturating_sub(seen.end.unwrap_or_default());
            seen.declared_end = duration.map(|duration| duration.saturating_sub(others));
        }
        let missing_bytes = match &self.plan.input {
            Input::File(path) => container::missing_bytes(path),
            _ => None,
        };
        if let Input::File(path) = &self.plan.input
            && seen.n_absent > 0
            && container::is_broken_matroska(path)
        {
            seen.n_lost += seen.n_absent;
        }
        let what = seen.damage(missing_bytes)?;
        Some(Error::failed(format!("`{}` {what}; the results of all other frames are written", reasons::name(&self.plan))))
    }

    /// The input, as messages name it.
    pub(super) fn name(&self) -> String {
        reasons::name(&self.plan)
    }

    /// Returns the error of an input that reached EOS without a frame.
    pub(super) fn nothing(&self, intake: &Intake, n_shown: u64) -> Option<Error> {
        let why = match (n_shown, intake.n_frames() + intake.n_compressed()) {
            (1.., _) => return None,
            (0, 0) => "expected a video with at least one frame, got none",
            (0, _) => {
                "its time stamps are negative, its edit list leaves out all frames, or they can't be decoded; write it anew, for example with \
                 `ffmpeg -ignore_editlist 1 -i OLD NEW`"
            }
        };
        Some(Error::failed(format!("`{}` shows no frame: {why}", reasons::name(&self.plan))))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Describes the damage of the file.
    fn damage(&self, missing_bytes: Option<(u64, u64)>) -> Option<String> {
        let (begin, end) = (self.begin?, self.end?);
        let played = end.saturating_sub(begin);
        let declared = self.declared_end.map(|declared| declared.saturating_sub(begin));
        let least = self.frame_time * 5 / 2;
        let tolerance = match (missing_bytes, declared) {
            (None, Some(declared)) => MAX_TOLERANCE.min(declared / 10).max(least),
            _ => least,
        };
        let is_one = self.tracks.len() < 2;
        let n_lost = if self.drops_late || !is_one { 0 } else { self.n_lost };
        match declared.filter(|_| is_one).filter(|declared| declared.saturating_sub(played) > tolerance) {
            Some(declared) => {
                let n_got = self.n_frames + n_lost;
                let share = seconds(declared) / seconds(played).max(1e-3);
                let n_expected = (n_got as f64 * share).round() as u64;
                let (got, expected) = (seconds(played), seconds(declared));
                Some(format!("is truncated: got {} of about {n_expected} frames ({got:.1} of {expected:.1} s)", self.n_frames))
            }
            None if missing_bytes.is_some() => {
                let (expected, got) = missing_bytes?;
                Some(format!("is truncated: got {got} of {expected} bytes, {} frames ({:.1} s)", self.n_frames, seconds(played)))
            }
            None if n_lost > 0 => {
                let n_expected = self.n_frames + n_lost;
                Some(format!("is damaged: got {} of {n_expected} frames, {n_lost} can't be decoded", self.n_frames))
            }
            None => None,
        }
    }

    fn demuxed(&mut self, is_video: bool, pts: Option<gst::ClockTime>, duration: Option<gst::ClockTime>) {
        let Some(pts) = pts else { return };
        self.last_end = self.last_end.max(Some(pts + duration.unwrap_or_default()));
        if is_video {
            if self.inside.len() == MAX_INSIDE {
                self.inside.pop_first();
            }
            self.inside.insert(pts);
        }
    }

    fn decoded(&mut self, pts: Option<gst::ClockTime>, duration: Option<gst::ClockTime>) {
        if self.is_at_limit.load(Ordering::Acquire) {
            return;
        }
        self.n_frames += 1;
        let Some(pts) = pts else { return };
        if let Some(duration) = duration.filter(|duration| *duration > gst::ClockTime::ZERO) {
            self.frame_time = duration;
        }
        let frame_time = self.frame_time;
        let before = self.end.unwrap_or(pts);
        if pts > before + frame_time / 2 {
            let n_lost = self.inside.range(before.saturating_sub(frame_time / 2)..pts).count() as u64;
            // Number of frames that fit into the gap at a constant frame rate.
            let n_room = (pts - before).nseconds().checked_div(frame_time.nseconds()).unwrap_or(0);
            if n_lost > 0 && self.n_lost == 0 {
                self.news = Some(before);
            }
            self.n_lost += n_lost;
            self.n_absent += n_room.saturating_sub(n_lost);
        } else if pts + frame_time / 2 < before {
            // The decoder outputs this frame later than its timestamp demands, because frames were reordered. It was counted as
            // lost, so correct the count.
            self.n_lost = self.n_lost.saturating_sub(1);
        }
        self.inside = self.inside.split_off(&(pts + gst::ClockTime::from_nseconds(1)));
        self.begin.get_or_insert(pts);
        self.end = self.end.max(Some(pts + duration.unwrap_or(frame_time)));
    }

    /// Resets the timestamps. Called when the input starts again, for example in a loop.
    fn restart(&mut self) {
        self.inside.clear();
        self.end = None;
    }
}

fn watch_demuxed(pad: &gst::Pad, seen: &Arc<Mutex<Seen>>) {
    let seen = seen.clone();
    let kinds = gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM;
    pad.add_probe(kinds, move |pad, info| {
        let is_video = || {
            let caps = pad.current_caps();
            caps.is_some_and(|caps| caps.structure(0).is_some_and(|structure| structure.name().starts_with("video/")))
        };
        match &info.data {
            Some(gst::PadProbeData::Buffer(buffer)) => {
                let is_video = is_video();
                seen.lock().unwrap_or_else(PoisonError::into_inner).demuxed(is_video, buffer.pts(), buffer.duration());
            }
            Some(gst::PadProbeData::Event(event)) => {
                if let gst::EventView::Segment(segment) = event.view()
                    && is_video()
                {
                    let stop = segment.segment().downcast_ref::<gst::ClockTime>().and_then(|segment| segment.stop());
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.declared_end = stop;
                    seen.tracks.insert(pad.name().to_string());
                }
            }
            _ => {}
        }
        gst::PadProbeReturn::Ok
    });
}

fn watch_decoder(decoder: &gst::Element, seen: &Arc<Mutex<Seen>>) {
    let Some(pad) = decoder.static_pad("src") else { return };
    let seen = seen.clone();
    let kinds = gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_BOTH;
    pad.add_probe(kinds, move |_, info| {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        match &info.data {
            Some(gst::PadProbeData::Buffer(buffer)) => seen.decoded(buffer.pts(), buffer.duration()),
            Some(gst::PadProbeData::Event(event)) => match event.view() {
                gst::EventView::Segment(_) => seen.restart(),
                gst::EventView::Qos(_) => seen.drops_late = true,
                _ => {}
            },
            _ => {}
        }
        gst::PadProbeReturn::Ok
    });
}

fn duration(demuxer: &gst::Element) -> Option<gst::ClockTime> {
    demuxer.query_duration::<gst::ClockTime>().filter(|duration| *duration > gst::ClockTime::ZERO)
}

fn seconds(time: gst::ClockTime) -> f64 {
    time.nseconds() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: gst::ClockTime = gst::ClockTime::from_mseconds(40);

    /// Returns the state after a video of 100 frames. The decoder outputs only the frames with these numbers.
    fn seen(decoded: impl Iterator<Item = u64>) -> Seen {
        let mut seen = Seen { declared_end: Some(FRAME * 100), frame_time: FRAME, ..Seen::default() };
        let mut n_in = 0;
        for n in decoded {
            // The decoder receives two further frames before it outputs frame `n`.
            while n_in < (n + 3).min(100) {
                seen.demuxed(true, Some(FRAME * n_in), Some(FRAME));
                n_in += 1;
            }
            seen.decoded(Some(FRAME * n), Some(FRAME));
        }
        seen
    }

    #[test]
    fn complete_file_is_not_damaged() {
        assert_eq!(seen(0..100).damage(None), None);
        assert_eq!(seen(0..98).damage(None), None, "durations are rounded");
    }

    #[test]
    fn missing_frames_are_counted() {
        let cut = seen(0..46).damage(None).unwrap();
        assert!(cut.contains("got 46 of about 100 frames (1.8 of 4.0 s)"), "{cut}");
        let damaged = seen((0..30).chain(40..100)).damage(None).unwrap();
        assert!(damaged.contains("got 90 of 100 frames, 10 can't"), "{damaged}");
        let bytes = seen(0..100).damage(Some((2000, 1000))).unwrap();
        assert!(bytes.contains("1000 of 2000 bytes"), "{bytes}");
        let tail = seen(0..96).damage(Some((2000, 1990))).unwrap();
        assert!(tail.contains("got 96 of about 100"), "{tail}");
    }

    #[test]
    fn frames_dropped_after_the_limit_are_not_damage() {
        let mut seen = Seen { frame_time: FRAME, ..Seen::default() };
        (0..8).for_each(|n| seen.demuxed(true, Some(FRAME * n), Some(FRAME)));
        (0..3).for_each(|n| seen.decoded(Some(FRAME * n), Some(FRAME)));
        seen.is_at_limit.store(true, Ordering::Release);
        seen.decoded(Some(FRAME * 7), Some(FRAME));
        assert_eq!((seen.news, seen.n_lost, seen.n_frames), (None, 0, 3));
        seen.is_at_limit.store(false, Ordering::Release);
        seen.decoded(Some(FRAME * 7), Some(FRAME));
        assert_eq!((seen.news, seen.n_lost), (Some(FRAME * 3), 4));
    }

    #[test]
    fn gaps_without_frames_in_the_file_are_not_damage() {
        let mut seen = Seen { frame_time: FRAME, ..Seen::default() };
        for n in [0, 1, 2, 30, 31, 60] {
            seen.demuxed(true, Some(FRAME * n), None);
            seen.decoded(Some(FRAME * n), Some(FRAME));
        }
        // The file contains a hidden frame between two visible frames, which the decoder does not output.
        seen.demuxed(true, Some(FRAME * 60 + FRAME / 2), None);
        seen.demuxed(true, Some(FRAME * 61), None);
        seen.decoded(Some(FRAME * 61), Some(FRAME));
        assert_eq!((seen.n_lost, seen.damage(None)), (0, None));
        // Frames that are dropped because the window is late are not damage.
        let dropping = Seen { drops_late: true, ..self::seen((0..30).chain(40..100)) };
        assert_eq!(dropping.damage(None), None);
    }
}
