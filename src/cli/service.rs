//! Reports the state of a run to systemd: ready, alive, stopping. Has no effect if the environment variable `NOTIFY_SOCKET` is
//! not set.
//!
//! - `READY=1` when each stream has delivered a frame, waits for a lost source, or has ended.
//! - `WATCHDOG=1`, twice per interval of the unit, while each stream makes progress. A stream that waits for its source makes progress:
//!   restarting the process would not bring the camera back.
//! - `RELOADING=1` when SIGHUP arrives, with `STATUS=` and the reason if something could not be reloaded. `READY=1` when each stream has
//!   reported whether it continues with the new description.
//! - `STOPPING=1` when the first SIGINT or SIGTERM arrives, or at the end of a run without such a signal.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use crate::pipeline::Event;

/// See the module. Clones share the state.
#[derive(Clone)]
pub(super) struct Service(Option<Arc<Shared>>);

struct Shared {
    state: Mutex<State>,
    /// Notified when the run ends.
    changed: Condvar,
}

struct State {
    streams: Vec<Stream>,
    is_ready: bool,
    /// Indexes of the streams that have not reported yet whether they continue with the new description.
    reloading: BTreeSet<usize>,
    is_stopping: bool,
    is_ended: bool,
}

/// Progress of a stream.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stream {
    /// No frame yet.
    Starting,
    /// Number of frames, and the time when that number last changed.
    Running(u64, Instant),
    /// The source is lost.
    Waiting,
    Ended,
}

impl Stream {
    fn after(self, event: &Event, now: Instant) -> Self {
        match (self, event) {
            (_, Event::Ended(_)) => Self::Ended,
            (_, Event::SourceLost { .. }) => Self::Waiting,
            (_, Event::SourceBack { .. }) => Self::Running(0, now),
            (Self::Running(n_frames, _), Event::Progress(progress)) if progress.n_frames != n_frames => {
                Self::Running(progress.n_frames, now)
            }
            (Self::Starting, Event::Progress(progress)) if progress.n_frames > 0 => Self::Running(progress.n_frames, now),
            _ => self,
        }
    }

    /// Whether the stream has made progress within this time. A starting stream counts as making progress, because systemd limits the start
    /// time itself.
    fn progresses(self, within: Duration, now: Instant) -> bool {
        match self {
            Self::Running(_, since) => now.saturating_duration_since(since) <= within,
            Self::Starting | Self::Waiting | Self::Ended => true,
        }
    }
}

impl Service {
    /// Creates the service for a run with `n_streams` streams. If systemd expects watchdog messages, starts the thread that sends
    /// them.
    pub(super) fn of_process(n_streams: usize) -> Self {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return Self(None);
        }
        let state = State {
            streams: vec![Stream::Starting; n_streams],
            is_ready: false,
            reloading: BTreeSet::new(),
            is_stopping: false,
            is_ended: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        if let Some(interval) = sd_notify::watchdog_enabled() {
            let of_thread = shared.clone();
            let spawned = std::thread::Builder::new().name("roiflow-watchdog".to_owned()).spawn(move || of_thread.watch(interval));
            if let Err(error) = spawned {
                tracing::warn!("cannot start the thread of the watchdog: {error}");
            }
        }
        Self(Some(shared))
    }

    /// Records an event of a stream.
    pub(super) fn record(&self, stream_idx: usize, event: &Event) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.lock();
        if let Some(stream) = state.streams.get_mut(stream_idx) {
            *stream = stream.after(event, Instant::now());
        }
        let is_ready = !state.is_ready && state.streams.iter().all(|stream| *stream != Stream::Starting);
        state.is_ready |= is_ready;
        let has_answered = matches!(event, Event::Reloaded(_) | Event::Ended(_)) && state.reloading.remove(&stream_idx);
        let is_reloaded = has_answered && state.reloading.is_empty() && state.is_ready;
        drop(state);
        if is_ready || is_reloaded {
            send(&[NotifyState::Ready]);
        }
    }

    /// Reports that these streams were requested to continue with a new description. `not_read` says what was not reloaded; empty: nothing. systemd
    /// has no other answer to a reload than "done", so this text is the status that `systemctl status` shows.
    pub(super) fn reload(&self, streams: impl IntoIterator<Item = usize>, not_read: &str) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.lock();
        if !state.is_ready || state.is_stopping {
            return;
        }
        state.reloading = streams.into_iter().collect();
        let is_reloaded = state.reloading.is_empty();
        drop(state);
        let status = if not_read.is_empty() { String::new() } else { format!("not reloaded: {}", not_read.replace('\n', " ")) };
        match NotifyState::monotonic_usec_now() {
            // An empty status removes that of an earlier reload.
            Ok(now) => send(&[NotifyState::Reloading, now, NotifyState::Status(&status)]),
            Err(error) => tracing::warn!("cannot read the clock for systemd: {error}"),
        }
        if is_reloaded {
            send(&[NotifyState::Ready]);
        }
    }

    /// Reports to systemd that the command is ready, regardless of its streams.
    #[cfg(feature = "serve")]
    pub(super) fn ready(&self) {
        let Some(shared) = &self.0 else { return };
        if !std::mem::replace(&mut shared.lock().is_ready, true) {
            send(&[NotifyState::Ready]);
        }
    }

    /// Reports to systemd that the run is ending. Only the first call has an effect.
    pub(super) fn stop(&self) {
        let Some(shared) = &self.0 else { return };
        if !std::mem::replace(&mut shared.lock().is_stopping, true) {
            send(&[NotifyState::Stopping]);
        }
    }

    /// Ends the watchdog thread. Called after the run has ended.
    pub(super) fn end(&self) {
        self.stop();
        if let Some(shared) = &self.0 {
            shared.lock().is_ended = true;
            shared.changed.notify_all();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Function of the watchdog thread: reports to systemd that all streams make progress, until the run ends.
    fn watch(&self, interval: Duration) {
        let mut state = self.lock();
        while !state.is_ended {
            let now = Instant::now();
            if state.streams.iter().all(|stream| stream.progresses(interval / 2, now)) {
                drop(state);
                send(&[NotifyState::Watchdog]);
                state = self.lock();
            }
            if !state.is_ended {
                state = self.changed.wait_timeout(state, interval / 2).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify systemd: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{Error, Progress};

    #[test]
    fn only_running_stream_without_frames_lacks_progress() {
        let now = Instant::now();
        let within = Duration::from_secs(1);
        let late = now + Duration::from_secs(2);
        let frames = |n_frames| Event::Progress(Progress { n_frames, ..Progress::default() });
        let starting = Stream::Starting.after(&frames(0), now);
        assert!(starting == Stream::Starting && starting.progresses(within, late));
        let running = starting.after(&frames(3), now);
        assert!(running.progresses(within, now) && !running.progresses(within, late));
        assert!(!running.after(&frames(3), late).progresses(within, late) && running.after(&frames(4), late).progresses(within, late));
        let waiting = running.after(&Event::SourceLost { reason: Error::failed("gone") }, now);
        assert!(waiting.progresses(within, late));
        assert_eq!(waiting.after(&frames(3), late), Stream::Waiting, "an attempt without frames");
        let back = waiting.after(&Event::SourceBack { gap: within, attempts: 1 }, late);
        assert!(back.progresses(within, late) && !back.progresses(within, late + 2 * within));
        assert!(back.after(&Event::Ended(Err(Error::failed("x"))), now).progresses(within, late));
    }
}
