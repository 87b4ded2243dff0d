//! The streams of this server, and the backend that runs them. [`crate::nodes`] decides which streams these are.
//!
//! Each stream has a lock of its own for starting and stopping, which may take seconds; no other stream waits for it. A stream that fails
//! is started again, with delays that double up to a minute.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roiflow_results::Gap;
use roiflow_results::redaction::Secrets;
use tracing::field;

use crate::backend::{Backend, Failure, FailureKind, Pipeline, Prepared, Running, Start, Video};
use crate::error::{Error, Result};
use crate::events::{EventKind, Events};
use crate::feed::{Feed, Hub};
use crate::policy::{self, Policy};
use crate::stream::{Counters, State, StreamSpec, StreamView};
use crate::telemetry::TARGET;

/// How long the last events may take to be written.
const MAX_FLUSH: Duration = Duration::from_millis(500);
/// Interval of checks for failed streams.
const TICK: Duration = Duration::from_millis(200);
/// Longest delay before a failed stream is started again.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// A stream that has run for this long starts again without a delay after its next failure.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

/// Shows the number of streams.
impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("streams", &lock(&self.0.streams).len()).finish_non_exhaustive()
    }
}

struct Inner {
    backend: Box<dyn Backend>,
    policy: Policy,
    hub: Arc<Hub>,
    events: Events,
    streams: Mutex<BTreeMap<String, Arc<Entry>>>,
    /// Whether the server is ending.
    is_ending: Mutex<bool>,
    ending: Condvar,
}

struct Entry {
    feed: Feed,
    /// Held while the stream is started or stopped.
    work: Mutex<()>,
    slot: Mutex<Slot>,
}

struct Slot {
    spec: StreamSpec,
    /// Whether the stream was started, or tried to start.
    is_placed: bool,
    /// Number of the assignment of the stream to this node; 0: the server has no other nodes.
    assignment: u64,
    running: Option<Arc<dyn Running>>,
    /// State while no stream runs.
    state: State,
    error: Option<String>,
    /// Counters of earlier runs.
    past: Counters,
    n_failures: u32,
    started: Instant,
    retry_at: Option<Instant>,
}

impl Registry {
    /// Creates a registry without streams.
    pub fn new(backend: Box<dyn Backend>, policy: Policy) -> Self {
        Self(Arc::new(Inner {
            backend,
            policy,
            hub: Arc::default(),
            events: Events::default(),
            streams: Mutex::default(),
            is_ending: Mutex::new(false),
            ending: Condvar::new(),
        }))
    }

    /// Starts a thread that starts failed streams again.
    pub(crate) fn start_retries(&self) -> std::io::Result<()> {
        let registry = self.clone();
        std::thread::Builder::new().name("roiflow-streams".to_owned()).spawn(move || registry.watch())?;
        Ok(())
    }

    /// The pipelines that clients may use.
    pub fn pipelines(&self) -> Vec<Pipeline> {
        let pipelines = self.0.backend.pipelines();
        pipelines.into_iter().filter(|pipeline| self.0.policy.allows_pipeline(&pipeline.name)).collect()
    }

    /// Opens an input as a stream would, and returns what it sends. Blocks for seconds.
    ///
    /// # Errors
    /// Returns why clients may not use the input, or why it cannot be opened or decoded.
    pub fn probe(&self, input: &str) -> Result<Video> {
        let resolved = self.0.policy.input(input)?;
        self.0.backend.probe(&resolved).map_err(|failure| {
            let message = Secrets::of(input).scrub(&failure.message).into_owned();
            Error::new(if failure.kind == FailureKind::Usage { 400 } else { 422 }, "no_video", message)
        })
    }

    /// Reads a model, and describes it. Blocks for seconds.
    ///
    /// # Errors
    /// Returns why the model cannot be read.
    pub fn inspect(&self, model: &std::path::Path) -> Result<String> {
        let status = |kind| if kind == FailureKind::Usage { 422 } else { 500 };
        let refused = |failure: Failure| Error::new(status(failure.kind), "invalid_model", failure.message);
        self.0.backend.inspect(model).map_err(refused)
    }

    /// The events of all streams.
    pub fn events(&self) -> &Events {
        &self.0.events
    }

    /// The results of all streams.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.0.hub
    }

    /// The rules.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// Replaces the description of a stream. The caller holds the lock of the stream.
    fn replace(&self, entry: &Arc<Entry>, after: StreamSpec) -> Result<()> {
        let (before, assignment) = {
            let slot = lock(&entry.slot);
            (slot.spec.clone(), slot.assignment)
        };
        let start = Start { assignment, ..self.resolve(&after)? };
        // Another input needs another source in any case.
        let is_same_input = (&before.input, before.repeat) == (&after.input, after.repeat);
        let running = lock(&entry.slot).running.clone().filter(|_| is_same_input);
        let changed = running.map_or(Ok(false), |running| running.change(&start));
        let continues = changed.map_err(|failure| refused(&failure, &after))?;
        let _prepared =
            if continues { Prepared::nothing() } else { self.prepare(entry, &start).map_err(|failure| refused(&failure, &after))? };
        if !continues {
            self.stop(entry);
        }
        entry.feed.set_source(&policy::shown(&after).input);
        entry.feed.forget_places(before.places().difference(&after.places()).cloned());
        lock(&entry.slot).spec = after;
        self.0.events.add(&before.name, EventKind::Changed, if continues { "without a restart" } else { "restarted" });
        if !continues {
            self.start(entry);
        }
        Ok(())
    }

    /// Prepares what a stream needs to run with a description. The stream may run meanwhile. If it does not run, it may have to wait for its
    /// models after its start.
    fn prepare(&self, entry: &Entry, start: &Start) -> Result<Prepared, Failure> {
        let (running, assignment) = {
            let slot = lock(&entry.slot);
            (slot.running.clone(), slot.assignment)
        };
        match running {
            Some(running) => running.prepare(&Start { assignment, ..start.clone() }),
            None => self.prepare_new(start),
        }
    }

    /// Prepares a stream that does not run. Whether it can run may be known later only.
    fn prepare_new(&self, start: &Start) -> Result<Prepared, Failure> {
        match self.0.backend.prepare(start) {
            Err(Failure { kind: FailureKind::Unavailable, message }) => {
                tracing::info!("the stream `{}` starts without preparation: {message}", start.name);
                Ok(Prepared::nothing())
            }
            prepared => prepared,
        }
    }

    /// Restarts a stream, which reads its files again. A stream that could not run with them runs on.
    ///
    /// # Errors
    /// Returns an error if there is no such stream, or why it could not run.
    pub fn restart(&self, name: &str) -> Result<StreamView> {
        let entry = self.entry(name)?;
        let _working = lock(&entry.work);
        self.check_present(name, &entry)?;
        let spec = lock(&entry.slot).spec.clone();
        let is_running = lock(&entry.slot).running.is_some();
        let _prepared = match self.resolve(&spec) {
            Ok(start) if is_running => self.prepare_new(&start).map_err(|failure| refused(&failure, &spec))?,
            _ => Prepared::nothing(),
        };
        let span = tracing::info_span!(target: TARGET, "stream.restart", stream = name);
        span.in_scope(|| {
            self.stop(&entry);
            self.start(&entry);
        });
        Ok(entry.view())
    }

    /// A stream with its state.
    ///
    /// # Errors
    /// Returns an error if there is no such stream.
    pub fn view(&self, name: &str) -> Result<StreamView> {
        self.entry(name).map(|entry| entry.view())
    }

    /// A stream with its state and the percentiles of its latency. Takes milliseconds for a stream that has run for an hour.
    ///
    /// # Errors
    /// Returns an error if there is no such stream.
    pub fn view_with_percentiles(&self, name: &str) -> Result<StreamView> {
        let entry = self.entry(name)?;
        let running = lock(&entry.slot).running.clone();
        let percentiles = running.and_then(|running| running.percentiles());
        Ok(StreamView { latency_percentiles_ms: percentiles, ..entry.view() })
    }

    /// All streams with their states, sorted by name.
    pub fn views(&self) -> Vec<StreamView> {
        self.entries().iter().map(|entry| entry.view()).collect()
    }

    /// Results of a stream.
    ///
    /// # Errors
    /// Returns an error if there is no such stream.
    pub fn feed(&self, name: &str) -> Result<Feed> {
        self.entry(name).map(|entry| entry.feed.clone())
    }

    /// Checks that one more stream may be added to this number of streams.
    pub(crate) fn check_number(&self, n_streams: usize) -> Result<()> {
        let max_streams = self.0.policy.config().limits.streams;
        if n_streams < max_streams {
            return Ok(());
        }
        let message =
            format!("expected at most {max_streams} streams, got one more. Remove a stream, or raise `limits.streams` of the server");
        Err(Error::new(409, "too_many_streams", message))
    }

    /// Announces that results are missing before the first result of an assignment.
    fn announce_gap(&self, gap: Gap) {
        self.0.events.add(&gap.stream, EventKind::Warning, format!("results are missing: {}", gap.reason));
        self.0.backend.announce_gap(gap);
    }

    /// Returns a function that describes a stream, also after its removal; `None`: there is no such stream.
    pub(crate) fn follow(&self, name: &str) -> Option<impl Fn() -> StreamView> {
        let entry = self.entry(name).ok()?;
        Some(move || entry.view())
    }

    /// Runs a stream that was assigned to this node, under a number that is part of the IDs of its results (0: the server has no other nodes).
    /// A stream that cannot start is tried again later. A stream that runs under another number is restarted; one that runs with another
    /// description is changed. `gap` is called when no result of an earlier number is made any more, and its gap is announced.
    ///
    /// # Errors
    /// Returns why a running stream cannot be changed; then it runs on as it is.
    pub(crate) fn place(&self, spec: StreamSpec, assignment: u64, gap: impl FnOnce() -> Option<Gap>) -> Result<()> {
        let name = spec.name.clone();
        let new = || Arc::new(Entry::new(spec.clone(), &self.0.hub, &self.0.events));
        let entry = lock(&self.0.streams).entry(name.clone()).or_insert_with(new).clone();
        let _working = lock(&entry.work);
        let (before, earlier) = {
            let slot = lock(&entry.slot);
            (slot.spec.clone(), slot.is_placed.then_some(slot.assignment))
        };
        let announce = || gap().into_iter().for_each(|gap| self.announce_gap(gap));
        if earlier == Some(assignment) {
            announce();
            return if before == spec { Ok(()) } else { self.replace(&entry, spec) };
        }
        if earlier.is_some() {
            self.stop(&entry);
        } else if assignment > 0 {
            self.0.events.add(&name, EventKind::Added, format!("pipeline {}", spec.pipeline));
        }
        announce();
        {
            let mut slot = lock(&entry.slot);
            (slot.spec, slot.assignment, slot.is_placed) = (spec, assignment, true);
        }
        self.start(&entry);
        Ok(())
    }

    /// Stops and forgets a stream, after its frames in flight have completed.
    pub(crate) fn displace(&self, name: &str) {
        let Ok(entry) = self.entry(name) else { return };
        let _working = lock(&entry.work);
        self.stop(&entry);
        lock(&self.0.streams).remove(name);
        self.0.backend.forget_gap(name);
        self.0.events.add(name, EventKind::Removed, "");
    }

    /// Checks whether clients may have a stream with this description.
    ///
    /// # Errors
    /// Returns what they may not have.
    pub(crate) fn check_rules(&self, spec: &StreamSpec) -> Result<()> {
        self.resolve(spec).map(drop)
    }

    /// Checks whether this server can run a stream with this description, without stopping the stream of this name. While the result exists,
    /// the stream starts without loading a model again.
    ///
    /// # Errors
    /// Returns why it cannot.
    pub(crate) fn check_spec(&self, spec: &StreamSpec) -> Result<Prepared> {
        let start = self.resolve(spec)?;
        let entry = lock(&self.0.streams).get(&spec.name).cloned();
        let prepared = entry.map_or_else(|| self.prepare_new(&start), |entry| self.prepare(&entry, &start));
        prepared.map_err(|failure| refused(&failure, spec))
    }

    /// Name, state, error without credentials, and feed of each stream.
    pub(crate) fn states(&self) -> Vec<(String, State, Option<String>, Feed)> {
        let of = |entry: &Arc<Entry>| {
            let (state, error, _) = entry.status();
            let spec = lock(&entry.slot).spec.clone();
            let error = error.map(|error| policy::secrets(&spec).scrub(&error).into_owned());
            (spec.name, state, error, entry.feed.clone())
        };
        self.entries().iter().map(of).collect()
    }

    /// Name, state, counters and feed of each stream.
    pub fn counters(&self) -> Vec<(String, State, Counters, Feed)> {
        let of = |entry: &Arc<Entry>| {
            let (state, _, counters) = entry.status();
            (lock(&entry.slot).spec.name.clone(), state, counters, entry.feed.clone())
        };
        self.entries().iter().map(of).collect()
    }

    /// Description, counters and frame rate of each stream.
    pub(crate) fn loads(&self) -> Vec<(StreamSpec, Counters, f64)> {
        let of = |entry: &Arc<Entry>| {
            let (_, _, counters) = entry.status();
            (lock(&entry.slot).spec.clone(), counters, entry.feed.fps())
        };
        self.entries().iter().map(of).collect()
    }

    /// Stops all streams, at most until `deadline`. No stream is started afterwards. Returns whether all have stopped.
    pub fn end(&self, deadline: Instant) -> bool {
        *lock(&self.0.is_ending) = true;
        self.0.ending.notify_all();
        let (done, n_done) = std::sync::mpsc::channel();
        let entries = self.entries();
        for entry in &entries {
            let (registry, of_thread, done) = (self.clone(), entry.clone(), done.clone());
            let stop = move || {
                let _working = lock(&of_thread.work);
                registry.stop(&of_thread);
                let _waiting = done.send(());
            };
            if let Err(error) = std::thread::Builder::new().name("roiflow-stop".to_owned()).spawn(stop) {
                tracing::warn!("cannot start a thread that stops a stream: {error}");
            }
        }
        drop(done);
        let all_stopped = entries.iter().all(|_| n_done.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok());
        self.0.events.flush(MAX_FLUSH);
        all_stopped
    }

    fn is_ending(&self) -> bool {
        *lock(&self.0.is_ending)
    }

    fn entries(&self) -> Vec<Arc<Entry>> {
        lock(&self.0.streams).values().cloned().collect()
    }

    fn entry(&self, name: &str) -> Result<Arc<Entry>> {
        let streams = lock(&self.0.streams);
        if let Some(entry) = streams.get(name) {
            return Ok(entry.clone());
        }
        let names: Vec<&str> = streams.keys().map(String::as_str).collect();
        let advice = match policy::nearest(name, &names) {
            Some(near) => format!("Did you mean `{near}`?"),
            None => "`GET /api/streams` lists the streams".to_owned(),
        };
        let shown: String = name.chars().take(100).map(|c| if c.is_control() { '?' } else { c }).collect();
        Err(Error::value("unknown_stream", "stream", "the name of a stream", format!("`{shown}`"), advice).with_status(404))
    }

    /// Checks that a stream was not removed while this call waited for it.
    fn check_present(&self, name: &str, entry: &Arc<Entry>) -> Result<()> {
        let is_present = lock(&self.0.streams).get(name).is_some_and(|present| Arc::ptr_eq(present, entry));
        if is_present {
            Ok(())
        } else {
            self.entry(name).and_then(|_| Err(Error::new(409, "stream_changed", "the stream was replaced meanwhile. Try again")))
        }
    }

    fn resolve(&self, spec: &StreamSpec) -> Result<Start> {
        if self.is_ending() {
            return Err(Error::new(503, "ending", "the server is ending and starts no streams"));
        }
        self.0.policy.resolve(spec, &self.0.backend.pipelines())
    }

    /// Starts a stream. A failure is recorded for a later attempt. The caller holds the lock of the stream.
    fn start(&self, entry: &Arc<Entry>) {
        let (spec, assignment) = {
            let slot = lock(&entry.slot);
            (slot.spec.clone(), slot.assignment)
        };
        let started = self.resolve(&spec).and_then(|start| self.try_start(entry, &Start { assignment, ..start }));
        if let Err(error) = started {
            entry.fail(policy::secrets(&spec).scrub(&error.message).into_owned());
        }
    }

    fn try_start(&self, entry: &Arc<Entry>, start: &Start) -> Result<()> {
        {
            let mut slot = lock(&entry.slot);
            (slot.state, slot.error, slot.retry_at, slot.started) = (State::Starting, None, None, Instant::now());
        }
        let spec = lock(&entry.slot).spec.clone();
        let span = tracing::info_span!(
            target: TARGET,
            "stream.start",
            stream = spec.name,
            pipeline = spec.pipeline,
            otel.status_code = field::Empty,
            otel.status_description = field::Empty,
        );
        let started = span.in_scope(|| self.0.backend.start(start, entry.feed.clone())).map_err(|failure| refused(&failure, &spec));
        if let Err(error) = &started {
            span.record("otel.status_code", "ERROR");
            span.record("otel.status_description", &*error.message);
        }
        lock(&entry.slot).running = Some(started?.into());
        Ok(())
    }

    /// Stops a stream. The caller holds the lock of the stream.
    fn stop(&self, entry: &Entry) {
        let running = lock(&entry.slot).running.clone();
        lock(&entry.slot).state = State::Stopping;
        if let Some(running) = running {
            let name = lock(&entry.slot).spec.name.clone();
            let span = tracing::info_span!(target: TARGET, "stream.stop", stream = name);
            let counters = span.in_scope(|| running.stop());
            let mut slot = lock(&entry.slot);
            slot.past.add(&counters);
            slot.running = None;
        }
        let mut slot = lock(&entry.slot);
        (slot.state, slot.retry_at, slot.n_failures) = (State::Ended, None, 0);
    }

    /// Starts failed streams again until the server ends.
    fn watch(&self) {
        loop {
            let is_ending = lock(&self.0.is_ending);
            let (is_ending, _) = self.0.ending.wait_timeout(is_ending, TICK).unwrap_or_else(PoisonError::into_inner);
            if *is_ending {
                return;
            }
            drop(is_ending);
            for entry in self.entries() {
                // A stream that is being started or stopped is checked the next time.
                let Ok(_working) = entry.work.try_lock() else { continue };
                self.check(&entry);
            }
        }
    }

    fn check(&self, entry: &Arc<Entry>) {
        let running = lock(&entry.slot).running.clone();
        if let Some(running) = running {
            let status = running.status();
            match status.state {
                State::Failed => {
                    let counters = running.stop();
                    let mut slot = lock(&entry.slot);
                    slot.past.add(&counters);
                    slot.running = None;
                    if slot.started.elapsed() >= HEALTHY_AFTER {
                        slot.n_failures = 0;
                    }
                    let secrets = policy::secrets(&slot.spec);
                    drop(slot);
                    let error = status.error.unwrap_or_else(|| "the stream failed without a reason".to_owned());
                    entry.fail(secrets.scrub(&error).into_owned());
                }
                State::Ended => {
                    let counters = running.stop();
                    let mut slot = lock(&entry.slot);
                    slot.past.add(&counters);
                    (slot.running, slot.state) = (None, State::Ended);
                }
                State::Starting | State::Running | State::Reconnecting | State::Stopping => {}
            }
        }
        let is_due = lock(&entry.slot).retry_at.is_some_and(|at| at <= Instant::now());
        if is_due {
            self.start(entry);
        }
    }
}

impl Entry {
    fn new(spec: StreamSpec, hub: &Arc<Hub>, events: &Events) -> Self {
        let feed = Feed::new(&spec.name, &policy::shown(&spec).input, hub.clone(), events.clone());
        let slot = Slot {
            spec,
            is_placed: false,
            assignment: 0,
            running: None,
            state: State::Starting,
            error: None,
            past: Counters::default(),
            n_failures: 0,
            started: Instant::now(),
            retry_at: None,
        };
        Self { feed, work: Mutex::default(), slot: Mutex::new(slot) }
    }

    /// Records a failure, and when to try again.
    fn fail(&self, error: String) {
        let mut slot = lock(&self.slot);
        let delay = Duration::from_secs(1 << slot.n_failures.min(6)).min(MAX_DELAY);
        slot.n_failures += 1;
        let is_new = slot.error.as_ref() != Some(&error);
        (slot.state, slot.error, slot.retry_at) = (State::Failed, Some(error.clone()), Some(Instant::now() + delay));
        drop(slot);
        if is_new {
            self.feed.event(EventKind::Failed, error);
        }
    }

    fn status(&self) -> (State, Option<String>, Counters) {
        let (running, state, error, mut counters) = {
            let slot = lock(&self.slot);
            (slot.running.clone(), slot.state, slot.error.clone(), slot.past.clone())
        };
        let Some(running) = running else {
            counters.in_flight = 0;
            return (state, error, counters);
        };
        let status = running.status();
        counters.add(&status.counters);
        (if state == State::Stopping { state } else { status.state }, status.error, counters)
    }

    fn view(&self) -> StreamView {
        let (state, error, counters) = self.status();
        let (spec, retry_at) = {
            let slot = lock(&self.slot);
            (slot.spec.clone(), slot.retry_at)
        };
        let error = error.map(|error| policy::secrets(&spec).scrub(&error).into_owned());
        let (n_latencies, missed) = (counters.latency.count(), counters.missed());
        StreamView {
            spec: policy::shown(&spec),
            node: None,
            state,
            error,
            seconds_to_retry: retry_at.map(|at| at.saturating_duration_since(Instant::now()).as_secs_f64()),
            fps: (self.feed.fps() * 10.0).round() / 10.0,
            frames: counters.frames,
            dropped: counters.dropped,
            skipped: counters.skipped,
            missed,
            failed: counters.failed,
            restarts: counters.restarts,
            in_flight: counters.in_flight,
            latency_ms: (n_latencies > 0).then(|| counters.latency.sum.as_secs_f64() * 1e3 / n_latencies as f64),
            latency_percentiles_ms: None,
            objects: self.feed.objects(),
            places: self.feed.places(),
            destinations: counters.destinations,
        }
    }
}

/// Converts a failure of the backend, without credentials.
fn refused(failure: &Failure, spec: &StreamSpec) -> Error {
    let message = policy::secrets(spec).scrub(&failure.message).into_owned();
    match failure.kind {
        FailureKind::Usage => Error::new(400, "invalid_stream", message),
        FailureKind::Failed => Error::new(422, "cannot_start", message),
        FailureKind::Unavailable => Error::new(503, "not_prepared", message),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::backend::Status;
    use crate::config::Config;
    use crate::stream::Percentiles;

    /// A backend whose streams do what their input says: `test:1` runs, `test:2` fails at once, `test:3` cannot be built,
    /// `test:99` cannot be prepared in time.
    #[derive(Default, Clone)]
    pub(crate) struct Fake(Arc<Mutex<FakeState>>);

    #[derive(Default)]
    pub(crate) struct FakeState {
        pub(crate) started: Vec<String>,
        pub(crate) stopped: Vec<String>,
        pub(crate) changed: Vec<String>,
        /// Starts, stops and gaps, in order.
        pub(crate) log: Vec<String>,
    }

    struct FakeRunning(String, Arc<Mutex<FakeState>>, bool);

    impl Fake {
        pub(crate) fn state(&self) -> MutexGuard<'_, FakeState> {
            lock(&self.0)
        }
    }

    impl Backend for Fake {
        fn pipelines(&self) -> Vec<Pipeline> {
            let named = |name: &str| Pipeline { name: name.into(), description: "finds".into(), parameters: Vec::new(), path: None };
            vec![named("detect"), named("faces")]
        }

        fn prepare(&self, start: &Start) -> Result<Prepared, Failure> {
            match &*start.input {
                "test:3" => Err(Failure::new(FailureKind::Usage, "no such model")),
                "test:99" => Err(Failure::new(FailureKind::Unavailable, "the engine hangs")),
                _ => Ok(Prepared::nothing()),
            }
        }

        fn probe(&self, input: &str) -> Result<Video, Failure> {
            match input {
                "test:3" => Err(Failure::new(FailureKind::Failed, "the server has no such stream")),
                _ => Ok(Video { width: 640, height: 480, codec: Some("H.264".into()), fps: Some(25.0) }),
            }
        }

        fn announce_gap(&self, gap: Gap) {
            self.state().log.push(format!("gap {}", gap.assignment));
        }

        fn forget_gap(&self, stream: &str) {
            self.state().log.push(format!("forget {stream}"));
        }

        fn inspect(&self, model: &std::path::Path) -> Result<String, Failure> {
            let refused = Failure::new(FailureKind::Usage, "the file is no model");
            if std::fs::read(model).is_ok_and(|bytes| bytes.starts_with(b"model")) { Ok("input x".into()) } else { Err(refused) }
        }

        fn start(&self, start: &Start, feed: Feed) -> Result<Box<dyn Running>, Failure> {
            if &*start.input == "test:3" {
                self.prepare(start)?;
            }
            self.state().started.push(start.name.clone());
            self.state().log.push(format!("start {}", start.name));
            feed.event(EventKind::Started, "");
            feed.publish(crate::FrameResult {
                results: Arc::default(),
                timestamp_ns: None,
                pts_ns: None,
                time: std::time::SystemTime::now(),
            });
            Ok(Box::new(FakeRunning(start.name.clone(), self.0.clone(), start.input == "test:2")))
        }
    }

    impl Running for FakeRunning {
        fn status(&self) -> Status {
            let counters = Counters { frames: 5, ..Counters::default() };
            if self.2 {
                Status { state: State::Failed, error: Some("broken".into()), counters }
            } else {
                Status { state: State::Running, error: None, counters }
            }
        }

        fn percentiles(&self) -> Option<Percentiles> {
            Some(Percentiles { p50: 1.0, p95: 2.0, p99: 3.0 })
        }

        fn prepare(&self, start: &Start) -> Result<Prepared, Failure> {
            Fake(self.1.clone()).prepare(start)
        }

        fn change(&self, start: &Start) -> Result<bool, Failure> {
            if start.publish.iter().any(|url| url.text.contains("refused")) {
                return Err(Failure::new(FailureKind::Failed, "the model cannot be loaded"));
            }
            let can_continue = start.pipeline == "detect";
            if can_continue {
                lock(&self.1).changed.push(start.name.clone());
            }
            Ok(can_continue)
        }

        fn stop(&self) -> Counters {
            lock(&self.1).stopped.push(self.0.clone());
            lock(&self.1).log.push(format!("stop {}", self.0));
            self.status().counters
        }
    }

    pub(crate) fn spec(name: &str, input: &str) -> StreamSpec {
        serde_json::from_value(serde_json::json!({"name": name, "pipeline": "detect", "input": input})).unwrap()
    }

    pub(crate) fn registry(folder: &std::path::Path, fake: &Fake, set: impl FnOnce(&mut Config)) -> Registry {
        let mut config = Config { models: Some(folder.to_owned()), upload_models: true, ..Config::default() };
        set(&mut config);
        Registry::new(Box::new(fake.clone()), Policy::new(config))
    }

    pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < Duration::from_secs(20), "timeout");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// As for a description that another program has put into the bucket of the nodes.
    #[test]
    fn description_that_does_not_fit_leaves_the_stream_running() {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let registry = registry(folder.path(), &fake, |_| {});
        registry.place(spec("a", "test:1"), 1, || None).unwrap();
        for (input, status) in [("test:3", 400), ("test:99", 503)] {
            assert_eq!(registry.place(spec("a", input), 1, || None).unwrap_err().status, status);
        }
        assert_eq!(registry.view("a").unwrap().spec, spec("a", "test:1"));
        registry.place(spec("a", "test:4"), 1, || None).unwrap();
        let state = fake.state();
        assert_eq!((state.started.len(), state.stopped.len()), (2, 1));
    }

    #[test]
    fn failed_stream_is_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let registry = registry(folder.path(), &fake, |_| {});
        registry.start_retries().unwrap();
        registry.place(spec("a", "test:2"), 1, || None).unwrap();
        wait_until(|| registry.view("a").unwrap().state == State::Failed && registry.view("a").unwrap().seconds_to_retry.is_some());
        assert_eq!(registry.view("a").unwrap().error.as_deref(), Some("broken"));
        wait_until(|| fake.state().started.len() >= 2);
        registry.displace("a");
        let kinds: Vec<EventKind> = registry.events().newest(None, 100).iter().map(|event| event.kind).collect();
        assert_eq!(kinds[..2], [EventKind::Added, EventKind::Started]);
        assert!(kinds.contains(&EventKind::Failed) && kinds.last() == Some(&EventKind::Removed), "{kinds:?}");
        registry.end(Instant::now() + Duration::from_secs(5));
    }
}
