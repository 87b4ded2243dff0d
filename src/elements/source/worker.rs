//! The thread that opens, watches and closes the source.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::attempt::{Attempt, Timeline};
use super::imp::{CAT, Shared};
use super::{RoiSource, SOURCE_BACK, SOURCE_LOST};
use crate::redaction::{self, Secrets};
use crate::restart::{self, Backoff, End, Fault, Restart, is_live_scheme};

/// Interval in which the frames are checked.
const TICK: Duration = Duration::from_millis(100);
/// Factor of the time limit before the first frame of an attempt.
const FIRST_FRAME: u32 = 3;

/// A message to the thread.
#[derive(Debug)]
pub(super) enum Signal {
    /// The source has reached PAUSED.
    Prepared,
    /// The element has changed from PAUSED to PLAYING, or back. Only this thread changes the state of the source: a change by another thread
    /// could come after the change to NULL.
    StateChanged,
    /// The source delivers its first frame.
    Delivers,
    /// The source has reached its end.
    Ended,
    Failed {
        reason: String,
        /// Whether the server or the system refuses.
        is_refused: bool,
    },
    /// The application ends the stream with EOS.
    End,
    /// The element stops.
    Stop,
}

/// What the thread needs to know.
pub(super) struct Job {
    pub(super) uri: String,
    pub(super) restart: Restart,
    pub(super) no_frame_timeout: Option<Duration>,
    pub(super) shared: Arc<Shared>,
    pub(super) sender: Sender<Signal>,
    pub(super) signals: Receiver<Signal>,
}

/// How an attempt ended.
enum Outcome {
    End(End, String),
    GaveUp(String),
    /// The application ends the stream.
    Drained,
    Stopped,
}

/// State of the stream over all attempts.
struct Stream<'a> {
    job: &'a Job,
    element: &'a glib::WeakRef<RoiSource>,
    secrets: Secrets,
    timeline: Arc<Mutex<Timeline>>,
    begin: Instant,
    backoff: Backoff,
    has_played: bool,
    /// Reason of the current outage, and number of attempts since.
    outage: Option<(String, u64)>,
    /// Time of the next attempt.
    next: Instant,
}

/// Opens the source until the element stops, or the stream ends.
pub(super) fn run(job: &Job, element: &glib::WeakRef<RoiSource>) {
    let mut stream = Stream {
        job,
        element,
        secrets: Secrets::of(&job.uri),
        timeline: Arc::default(),
        begin: Instant::now(),
        backoff: Backoff::default(),
        has_played: false,
        outage: None,
        next: Instant::now(),
    };
    loop {
        if let Some((_, n_attempts)) = &mut stream.outage {
            *n_attempts += 1;
        }
        let Some(mut outcome) = stream.attempt() else { return };
        if let Outcome::End(end, reason) = outcome {
            outcome = if job.restart.follows(end, stream.is_live(), stream.has_played) {
                stream.wait(reason)
            } else {
                return stream.finish(end, &reason);
            };
        }
        match outcome {
            Outcome::End(..) => {}
            Outcome::GaveUp(reason) => return stream.finish(End::Final, &reason),
            Outcome::Drained => return stream.push_eos(),
            Outcome::Stopped => return,
        }
    }
}

impl Stream<'_> {
    fn is_live(&self) -> bool {
        is_live_scheme(self.job.uri.split(':').next().unwrap_or_default())
    }

    /// Brings the source into the state of the element.
    fn follow(&self, attempt: &Attempt) {
        let state = if self.is_playing() { gst::State::Playing } else { gst::State::Paused };
        if attempt.decoder.set_state(state).is_err() {
            // The source posts the reason. If it has posted none, this is the reason.
            let _sent = self.job.sender.send(Signal::Failed { reason: "the source cannot be opened".to_owned(), is_refused: false });
        }
    }

    fn is_playing(&self) -> bool {
        self.job.shared.is_playing.load(Ordering::Acquire)
    }

    /// Opens the source, and watches it until it ends. `None` if the element is gone.
    fn attempt(&mut self) -> Option<Outcome> {
        let element = self.element.upgrade()?;
        let bin = element.upcast_ref::<gst::Bin>();
        // Signals of the last attempt.
        for signal in self.job.signals.try_iter() {
            match signal {
                Signal::Stop => return Some(Outcome::Stopped),
                Signal::End => return Some(Outcome::Drained),
                _ => {}
            }
        }
        let opened = Instant::now();
        let attempt = match Attempt::new(bin, &self.job.shared, &self.job.uri, &self.timeline, &self.job.sender) {
            Ok(attempt) => attempt,
            Err(reason) => return Some(Outcome::End(End::Final, reason)),
        };
        *self.job.shared.decoder.lock().unwrap_or_else(PoisonError::into_inner) = Some(attempt.decoder.clone());
        self.follow(&attempt);
        let outcome = self.watch(&element, &attempt, opened);
        let frames = attempt.frames();
        *self.job.shared.decoder.lock().unwrap_or_else(PoisonError::into_inner) = None;
        attempt.stop(bin);
        if let Outcome::End(End::Eos | End::Source(_), _) = outcome {
            self.next = self.backoff.failed(&self.job.restart, self.begin, frames, Instant::now(), restart::random());
        }
        Some(outcome)
    }

    /// Waits for the end of an attempt.
    fn watch(&mut self, element: &RoiSource, attempt: &Attempt, opened: Instant) -> Outcome {
        loop {
            match self.job.signals.recv_timeout(TICK) {
                Ok(Signal::Prepared | Signal::StateChanged) => self.follow(attempt),
                Ok(Signal::Delivers) => self.is_back(element, attempt),
                // The data beyond a limit may be the last of the source.
                Ok(Signal::Ended) if attempt.intake.excess().is_some() => {}
                Ok(Signal::Ended) if attempt.is_recording() => return Outcome::End(End::Eos, "the source has ended".to_owned()),
                Ok(Signal::Ended) if self.is_live() || attempt.intake.is_endless() => {
                    return Outcome::End(End::Source(Fault::default()), "the server ended the stream".to_owned());
                }
                Ok(Signal::Ended) => return Outcome::End(End::Eos, "the source has ended".to_owned()),
                Ok(Signal::Failed { reason, is_refused }) => {
                    let is_recording = attempt.is_recording();
                    let reason = self.secrets.scrub(&reason).into_owned();
                    return Outcome::End(End::Source(Fault { is_refused, is_recording }), reason);
                }
                Ok(Signal::End) => return Outcome::Drained,
                Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return Outcome::Stopped,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            if self.backoff.deadline(&self.job.restart).is_some_and(|deadline| deadline <= now) && attempt.frames().is_none() {
                return Outcome::GaveUp(self.gave_up());
            }
            if let Some(reason) = attempt.intake.excess() {
                let is_recording = attempt.is_recording();
                return Outcome::End(End::Source(Fault { is_recording, ..Fault::default() }), reason);
            }
            // A paused source delivers no frames, and a recording waits for downstream.
            let must_deliver = (self.is_live() || attempt.intake.is_endless()) && self.is_playing();
            let limit = self.job.no_frame_timeout.filter(|_| must_deliver);
            let overdue = limit.filter(|limit| match attempt.frames() {
                Some((_, last)) => now.saturating_duration_since(last) > *limit,
                None => now.saturating_duration_since(opened) > *limit * FIRST_FRAME,
            });
            if let Some(limit) = overdue {
                let limit = if attempt.frames().is_some() { limit } else { limit * FIRST_FRAME };
                let reason = format!("the source delivered no frame for {} s (no-frame-timeout)", limit.as_secs_f64());
                return Outcome::End(End::Source(Fault::default()), reason);
            }
        }
    }

    /// The first frame of an attempt has arrived.
    fn is_back(&mut self, element: &RoiSource, attempt: &Attempt) {
        self.has_played = true;
        let Some((_, n_attempts)) = self.outage.take() else { return };
        let first = attempt.frames().map_or_else(Instant::now, |(first, _)| first);
        let gap = self.backoff.lost_since().map_or(Duration::ZERO, |since| first.saturating_duration_since(since));
        self.backoff.is_back();
        self.job.shared.count_restart(gap);
        let structure = gst::Structure::builder(SOURCE_BACK)
            .field("uri", &*redaction::redact(&self.job.uri))
            .field("gap", u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX))
            .field("attempts", n_attempts);
        post(element, structure.build());
    }

    /// Waits until the next attempt is due.
    fn wait(&mut self, reason: String) -> Outcome {
        if self.outage.is_none() {
            if let Some(element) = self.element.upgrade() {
                gst::warning!(CAT, obj = element, "the source is lost: {reason}");
                let uri = redaction::redact(&self.job.uri).into_owned();
                post(&element, gst::Structure::builder(SOURCE_LOST).field("uri", uri).field("reason", &reason).build());
            }
            self.outage = Some((reason.clone(), 0));
        }
        let deadline = self.backoff.deadline(&self.job.restart);
        let until = deadline.map_or(self.next, |deadline| self.next.min(deadline));
        loop {
            match self.job.signals.recv_deadline(until) {
                Ok(Signal::End) => return Outcome::Drained,
                Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return Outcome::Stopped,
                // Signals of the last attempt.
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        match deadline {
            Some(deadline) if deadline <= Instant::now() => Outcome::GaveUp(self.gave_up()),
            _ => Outcome::End(End::Source(Fault::default()), reason),
        }
    }

    fn gave_up(&self) -> String {
        let seconds = self.job.restart.give_up_after.unwrap_or_default().as_secs_f64();
        let (reason, n_attempts) = self.outage.clone().unwrap_or_else(|| ("no frame has arrived".to_owned(), 0));
        let attempts = if n_attempts == 1 { "attempt" } else { "attempts" };
        format!("gave up after {seconds} s without a frame and {n_attempts} {attempts} (give-up-after): {reason}")
    }

    /// Ends the stream: with EOS after a regular end, otherwise with an error.
    fn finish(&self, end: End, reason: &str) {
        if end == End::Eos {
            return self.push_eos();
        }
        if let Some(element) = self.element.upgrade() {
            let uri = redaction::redact(&self.job.uri);
            gst::element_error!(element, gst::ResourceError::Read, ("cannot play {uri}: {reason}"));
        }
    }

    fn push_eos(&self) {
        for pad in self.job.shared.pads() {
            if pad.sticky_event::<gst::event::StreamStart>(0).is_none() {
                // Each stream begins with these events.
                pad.push_event(gst::event::StreamStart::new("roisource"));
                pad.push_event(gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new()));
            }
            pad.push_event(gst::event::Eos::new());
        }
    }
}

fn post(element: &RoiSource, structure: gst::Structure) {
    let message = gst::message::Element::builder(structure).src(element).build();
    if element.post_message(message).is_err() {
        gst::debug!(CAT, obj = element, "there is no bus for messages");
    }
}
