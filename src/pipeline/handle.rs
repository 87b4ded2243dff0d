//! The handle with which an application adds, monitors, drains, stops and removes streams while other streams run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::life::Life;
use super::session::NewSession;
use super::stats::{Meter, Stats};
use super::supervisor::{Inbox, Input, Request, Way};
use super::{Ending, Error, Plan, Progress, Result, prepare};
use crate::frame::Size;
use crate::stages::Snapshot;

/// If the application has this many unread events, no further progress events are added.
const MAX_UNREAD_PROGRESS: usize = 64;

/// Runs any number of streams. A handle is cheap to clone. Dropping the last clone stops the streams.
///
/// One thread of the process supervises all streams of all handles. Only [`PipelineHandle::wait`] and [`PipelineHandle::remove`] block.
///
/// ```no_run
/// # use std::path::Path;
/// # use roiflow::pipeline::{Event, Input, Outputs, PipelineHandle, Plan, Spec};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let spec = Spec::read(Path::new("pipelines/faces.toml"))?;
/// let plan = |input: &str, json: &str| {
///     Plan::resolve(&spec, &[], Input::parse(input)?, Outputs { json: Some(json.into()), ..Outputs::default() })
/// };
/// let (handle, events) = PipelineHandle::new()?;
/// let door = handle.add(&plan("rtsp://camera-1/live", "door.jsonl")?)?;
/// // Later, while the first stream runs:
/// let yard = handle.add(&plan("rtsp://camera-2/live", "yard.jsonl")?)?;
/// // The results of all frames in flight are written, and the other stream continues.
/// let ending = handle.remove(door)?;
/// println!("{} frames of the door", ending.stats.n_frames);
/// for event in events {
///     match event.event {
///         Event::Warning(warning) => eprintln!("warning: {warning}"),
///         Event::Ended(_) if event.stream == yard => break,
///         _ => {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PipelineHandle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    board: Arc<Board>,
    inbox: Arc<Inbox>,
}

/// ID of a stream, unique in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u64);

/// Phase of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The stream opens its source and loads its models. This phase ends with the first frame or an error.
    Starting,
    /// The stream processes frames.
    Running,
    /// The source is lost: the stream waits for the next attempt, or opens the source again. This phase ends with the first frame.
    Reconnecting,
    /// The stream accepts no new frames, completes the frames in flight, and finishes the outputs.
    Draining,
    /// The pipeline of the stream is stopping.
    Stopping,
    /// The stream has ended; [`PipelineHandle::wait`] returns the result.
    Ended,
}

/// Phase and progress of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Phase of the stream.
    pub phase: Phase,
    /// Progress of the current pipeline; updated ten times per second.
    pub progress: Progress,
    /// Number of restarts after the source was lost. Attempts that delivered no frame are included.
    pub n_restarts: u64,
    /// Time without a source, including the current outage.
    pub time_down: Duration,
}

/// Event of a stream. `Started` occurs at most once, `Ended` is always last.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// All elements have started. Errors of models and source may follow.
    Started,
    /// Progress, ten times per second. Progress events are left out while the application does not receive events.
    Progress(Progress),
    /// An element has posted a warning. Each text is reported once.
    Warning(String),
    /// The source failed or ended. The stream is restarted until the source delivers frames again. This event occurs once per
    /// outage.
    SourceLost {
        /// Why the source was lost.
        reason: Error,
    },
    /// The source delivers frames again.
    SourceBack {
        /// Time from the last frame before the outage, or from the start of a stream without earlier frames, to the first frame after the
        /// outage.
        gap: Duration,
        /// Number of attempts, including the successful one.
        attempts: u64,
    },
    /// A recording has stopped, for example because the disk is full. The stream goes on, and the recording is tried again. This event
    /// occurs once until the recording continues.
    RecordingLost {
        /// Why the recording has stopped.
        reason: String,
    },
    /// A recording continues in a new file, after a failure or because the size of the frames has changed.
    RecordingContinued {
        /// Why there is a new file.
        reason: String,
        /// The new file.
        path: PathBuf,
    },
    /// A server of results does not answer, or accepts nothing. Attempts continue. This event occurs once per outage, for one of the
    /// streams that share the connection.
    DestinationLost {
        /// The address, without credentials.
        destination: String,
        /// The reason.
        reason: String,
    },
    /// The server accepts results again.
    DestinationBack {
        /// The address, without credentials.
        destination: String,
    },
    /// Result of [`PipelineHandle::reload`]. `Ok`: the stream continues with the new plan. `Err`: the new plan is invalid, and
    /// the stream continues with its earlier plan.
    Reloaded(Result<()>),
    /// The stream ended. No events follow.
    Ended(Result<Ending>),
}

/// An event with its stream.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamEvent {
    /// The stream.
    pub stream: StreamId,
    /// The event.
    pub event: Event,
}

/// The events of all streams of a handle. The iterator blocks until there is an event. The iterator ends when all clones of the handle
/// were dropped and all its streams have ended. Events are stored until they are received; drop this value if they are not needed.
#[derive(Debug)]
pub struct Events(crossbeam_channel::Receiver<StreamEvent>);

impl Events {
    /// Waits for the next event and returns it. Returns `None` if there is no event within `timeout`, or if no further event can
    /// follow.
    pub fn next_timeout(&self, timeout: Duration) -> Option<StreamEvent> {
        self.0.recv_timeout(timeout).ok()
    }

    pub(super) fn receiver(&self) -> &crossbeam_channel::Receiver<StreamEvent> {
        &self.0
    }
}

impl Iterator for Events {
    type Item = StreamEvent;

    fn next(&mut self) -> Option<StreamEvent> {
        self.0.recv().ok()
    }
}

impl PipelineHandle {
    /// Creates a handle without streams.
    ///
    /// # Errors
    /// Returns an error if the supervising thread cannot be started.
    pub fn new() -> Result<(Self, Events)> {
        let (sender, receiver) = crossbeam_channel::unbounded();
        let board = Arc::new(Board { entries: Mutex::default(), changed: Condvar::new(), events: sender });
        Ok((Self(Arc::new(Inner { board, inbox: Inbox::shared()? })), Events(receiver)))
    }

    /// Builds and starts a pipeline of the plan in addition to the running streams.
    ///
    /// # Errors
    /// Returns the errors of [`build`](super::build::build), and an error if an output of the plan is also an input. Errors that occur
    /// after the start are in [`Event::Ended`].
    pub fn add(&self, plan: &Plan) -> Result<StreamId> {
        self.add_prepared(plan, Snapshot::default())
    }

    /// Like [`PipelineHandle::add`], with the models and files that [`prepare`](super::prepare()) has read.
    ///
    /// # Errors
    /// Returns the errors of [`PipelineHandle::add`].
    pub fn add_prepared(&self, plan: &Plan, snapshot: Snapshot) -> Result<StreamId> {
        Ok(self.start(NewSession::build(plan, 0, &snapshot)?, plan, snapshot))
    }

    /// Starts a session of the plan. `snapshot` is the one of its elements.
    pub(super) fn start(&self, session: NewSession, plan: &Plan, snapshot: Snapshot) -> StreamId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let stream = StreamId(NEXT.fetch_add(1, Ordering::Relaxed));
        let status = Status { phase: Phase::Starting, progress: Progress::default(), n_restarts: 0, time_down: Duration::ZERO };
        let outcome = Outcome::Pending { past: Stats::default(), meter: Some(session.meter()) };
        self.0.board.lock().insert(stream, Entry { status, is_started: false, snapshot, outcome });
        let (board, inbox) = (self.0.board.clone(), self.0.inbox.clone());
        let session = session.supervised(stream, 0, board.clone(), inbox.clone(), Vec::new());
        self.0.inbox.send(Input::Add(Box::new(Life::new(stream, session, plan.clone(), board, inbox))));
        stream
    }

    /// Returns the streams of this handle, in the order in which they were added.
    pub fn streams(&self) -> Vec<StreamId> {
        self.0.board.lock().keys().copied().collect()
    }

    /// Returns phase and progress of a stream; `None` if the handle does not have this stream.
    pub fn status(&self, stream: StreamId) -> Option<Status> {
        self.0.board.lock().get(&stream).map(|entry| entry.status)
    }

    /// Returns the measurements of a stream so far, also of a stream that has failed. `None` if the handle does not have this stream.
    pub fn stats(&self, stream: StreamId) -> Option<Stats> {
        self.0.board.measured(stream, Stats::clone, |meter| meter.stats(false))
    }

    /// Returns the measurements of a stream so far, without the list of latencies. So this call takes the same time for long and short
    /// streams. Returns `None` in the same cases as [`PipelineHandle::stats`].
    pub fn counters(&self, stream: StreamId) -> Option<Stats> {
        self.0.board.measured(stream, Stats::counters, |meter| meter.counters(false))
    }

    /// Drains a stream: it accepts no more frames, frames in flight complete, and outputs are finished. If this takes more than five
    /// seconds, the stream is stopped. Does not block.
    pub fn drain(&self, stream: StreamId) {
        self.0.inbox.send(Input::Request(stream, Request::Drain));
    }

    /// Drains all streams. Does not block.
    pub fn drain_all(&self) {
        self.streams().into_iter().for_each(|stream| self.drain(stream));
    }

    /// Stops a stream at once: frames in flight are lost, and files may be incomplete. Does not block.
    pub fn stop(&self, stream: StreamId) {
        self.0.inbox.send(Input::Request(stream, Request::Stop));
    }

    /// Continues a stream with another plan. Does not block: [`Event::Reloaded`] follows.
    ///
    /// First the plan is prepared while the stream runs, see [`prepare`](super::prepare()), in at most 60 seconds. All files are read again. If
    /// the plan can run, the stream drains and starts a new pipeline, as after a lost source: results are appended, and frame numbers and track
    /// IDs continue. If not, the stream continues unchanged. Only streams whose input has an address can be reloaded, because a file would start again from its beginning.
    pub fn reload(&self, stream: StreamId, plan: &Plan) {
        self.0.inbox.send(Input::Request(stream, Request::Reload(Box::new(plan.clone()), Way::NewPipeline)));
    }

    /// Continues a stream with another plan, if possible without a gap. Does not block: [`Event::Reloaded`] follows.
    ///
    /// If the plans differ only in properties that may change in PLAYING, such as thresholds, `inference-interval`, lines and zones, the
    /// running elements get the new values after they were checked. No frame is lost, and the input may be of any kind. Files that have
    /// changed since, such as descriptions of models, are not read again. All other changes are those of [`PipelineHandle::reload`], prepared
    /// in at most 15 seconds; [`Plan::can_continue_with`] tells whether they are possible.
    pub fn change(&self, stream: StreamId, plan: &Plan) {
        self.0.inbox.send(Input::Request(stream, Request::Reload(Box::new(plan.clone()), Way::InPlace)));
    }

    /// Checks whether a stream can run with a plan whose changes its running elements take ([`Plan::takes`]): like [`prepare`](super::prepare()),
    /// but with the models and files that the stream has.
    ///
    /// # Errors
    /// Returns the errors of [`prepare`](super::prepare()).
    pub fn check_change(&self, stream: StreamId, plan: &Plan, size: Option<Size>) -> Result<()> {
        prepare::prepare_in(plan, self.0.board.snapshot(stream), size, prepare::MAX_REQUEST).map(drop)
    }

    /// Blocks until a stream has ended, and returns the result.
    ///
    /// # Errors
    /// Returns the error of the stream if the stream has failed, or `Usage` if the handle does not have this stream.
    pub fn wait(&self, stream: StreamId) -> Result<Ending> {
        let mut entries = self.0.board.lock();
        loop {
            match entries.get(&stream) {
                None => return Err(Error::usage("the stream was removed, or belongs to another handle; expected one of `streams`")),
                Some(Entry { outcome: Outcome::Ended(ended), .. }) => return ended.clone().result(),
                Some(_) => entries = self.0.board.changed.wait(entries).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Drains a stream, blocks until the stream has ended, and removes the stream.
    ///
    /// # Errors
    /// Returns the errors of [`PipelineHandle::wait`].
    pub fn remove(&self, stream: StreamId) -> Result<Ending> {
        self.drain(stream);
        let ended = self.wait(stream);
        self.0.board.lock().remove(&stream);
        ended
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let streams: Vec<StreamId> = self.board.lock().keys().copied().collect();
        streams.iter().for_each(|stream| self.inbox.send(Input::Request(*stream, Request::Stop)));
        // Wait until all streams have ended. The wait is limited, because each stop takes a limited time.
        let mut entries = self.board.lock();
        while entries.values().any(|entry| matches!(entry.outcome, Outcome::Pending { .. })) {
            entries = self.board.changed.wait(entries).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// State of the streams of a handle. The bus loop updates it, and the handle reads it.
#[derive(Debug)]
pub(super) struct Board {
    entries: Mutex<BTreeMap<StreamId, Entry>>,
    /// Condition variable that is notified when a stream ends or is removed.
    changed: Condvar,
    events: crossbeam_channel::Sender<StreamEvent>,
}

#[derive(Debug)]
struct Entry {
    status: Status,
    /// Whether `Event::Started` was sent.
    is_started: bool,
    /// Models and files of the stream; empty after its end.
    snapshot: Snapshot,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    /// The stream has not ended. `past` are the measurements of its earlier pipelines, and `meter` measures the current pipeline.
    Pending {
        past: Stats,
        meter: Option<Arc<Meter>>,
    },
    Ended(Ended),
}

/// How a stream has ended.
#[derive(Debug, Clone)]
enum Ended {
    Well(Ending),
    /// The error, and the measurements until then.
    Failed(Error, Stats),
}

impl Ended {
    fn result(self) -> Result<Ending> {
        match self {
            Self::Well(ending) => Ok(ending),
            Self::Failed(error, _) => Err(error),
        }
    }

    fn stats(&self) -> &Stats {
        match self {
            Self::Well(ending) => &ending.stats,
            Self::Failed(_, stats) => stats,
        }
    }
}

impl Board {
    pub(super) fn set_phase(&self, stream: StreamId, phase: Phase) {
        if let Some(entry) = self.lock().get_mut(&stream) {
            entry.status.phase = phase;
        }
    }

    /// Returns the models and files of a stream.
    pub(super) fn snapshot(&self, stream: StreamId) -> Snapshot {
        self.lock().get(&stream).map(|entry| entry.snapshot.clone()).unwrap_or_default()
    }

    pub(super) fn set_snapshot(&self, stream: StreamId, snapshot: Snapshot) {
        let before = self.lock().get_mut(&stream).map(|entry| std::mem::replace(&mut entry.snapshot, snapshot));
        // Drop the previous snapshot after the lock is released, because the drop may free models.
        drop(before);
    }

    /// Records that a stream waits for its source. `past` are the measurements of the stream's pipelines so far.
    pub(super) fn wait_for_source(&self, stream: StreamId, past: &Stats) {
        self.set_pipeline(stream, Phase::Reconnecting, past, None);
    }

    /// Records that a stream has a new pipeline. `meter` measures that pipeline, and `past` are the measurements of the earlier
    /// pipelines.
    pub(super) fn restart(&self, stream: StreamId, meter: Arc<Meter>, past: &Stats) {
        self.set_pipeline(stream, Phase::Reconnecting, past, Some(meter));
    }

    fn set_pipeline(&self, stream: StreamId, phase: Phase, past: &Stats, meter: Option<Arc<Meter>>) {
        let before = self.lock().get_mut(&stream).map(|entry| {
            entry.status.phase = phase;
            std::mem::replace(&mut entry.outcome, Outcome::Pending { past: past.clone(), meter })
        });
        // Drop the previous outcome after the lock is released, because the drop may free elements.
        drop(before);
    }

    pub(super) fn set_down(&self, stream: StreamId, n_restarts: u64, time_down: Duration) {
        if let Some(entry) = self.lock().get_mut(&stream) {
            // Monitoring takes a counter that decreases for one that was reset.
            (entry.status.n_restarts, entry.status.time_down) = (n_restarts, time_down.max(entry.status.time_down));
        }
    }

    /// Sends an event of a stream that has not ended. Progress events contain the progress of the current pipeline.
    pub(super) fn report(&self, stream: StreamId, mut event: Event) {
        if event == Event::Started
            && let Some(entry) = self.lock().get_mut(&stream)
            && std::mem::replace(&mut entry.is_started, true)
        {
            return;
        }
        if let Event::Progress(progress) = &mut event {
            if let Some(entry) = self.lock().get_mut(&stream) {
                if matches!(entry.status.phase, Phase::Starting | Phase::Reconnecting) && progress.n_frames > 0 {
                    entry.status.phase = Phase::Running;
                }
                if let Outcome::Pending { past, .. } = &entry.outcome {
                    progress.n_frames += past.n_frames;
                }
                entry.status.progress = *progress;
            }
            if self.events.len() >= MAX_UNREAD_PROGRESS {
                return;
            }
        }
        // Sending fails only if the application has dropped the receiver.
        let _sent = self.events.send(StreamEvent { stream, event });
    }

    /// Returns the measurements of a stream; `None` if there is no such stream. `of` and `now` return the measurements of ended pipelines and
    /// of the current one.
    fn measured(&self, stream: StreamId, of: fn(&Stats) -> Stats, now: fn(&Meter) -> Stats) -> Option<Stats> {
        let (mut stats, meter) = {
            let entries = self.lock();
            let entry = entries.get(&stream)?;
            match &entry.outcome {
                Outcome::Ended(ended) => return Some(of(ended.stats())),
                // The status has the time of the current outage.
                Outcome::Pending { past, meter } => (Stats { time_down: entry.status.time_down, ..of(past) }, meter.clone()),
            }
        };
        if let Some(meter) = meter {
            stats.continue_with(&now(&meter));
        }
        Some(stats)
    }

    /// Records the result of a stream.
    pub(super) fn end(&self, stream: StreamId, ended: Result<Ending>) {
        let outcome = match ended.clone() {
            Ok(ending) => Ended::Well(ending),
            Err(error) => Ended::Failed(error, self.measured(stream, Stats::clone, |meter| meter.stats(false)).unwrap_or_default()),
        };
        let pending = self.lock().get_mut(&stream).map(|entry| {
            entry.status.phase = Phase::Ended;
            std::mem::replace(&mut entry.outcome, Outcome::Ended(outcome))
        });
        // Drop the pending outcome after the lock is released, because the drop may free elements.
        drop(pending);
        let _sent = self.events.send(StreamEvent { stream, event: Event::Ended(ended) });
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<StreamId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
