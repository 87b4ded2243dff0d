//! Runs the streams that were assigned to this node: drives the state machines of `roiflow-nodes`, and starts and stops streams of the
//! registry as they require.
//!
//! One thread drives the state machines. It never waits for a stream: each stream that must change has a short-lived thread, which brings the
//! registry to the newest wish for this stream.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roiflow_nodes::agent::{Note, Options};
use roiflow_nodes::coordinator::Waker;
use roiflow_nodes::fence::Fence;
use roiflow_nodes::placement::Reason;
use roiflow_nodes::types::{Epoch, Facts, Interruption};
use roiflow_nodes::worker::StreamEvent;
use roiflow_nodes::{Agent, Coordinator, Input, Output};

use super::descriptions::{Descriptions, Protection};
use super::load::Meter;
use super::results::{ResultLog, gap};
use crate::error::Error;
use crate::events::EventKind;
use crate::registry::Registry;
use crate::stream::{State, StreamSpec};

/// Interval at which the states of the streams are read.
const OBSERVE: Duration = Duration::from_millis(200);
/// Interval at which the load is measured.
const MEASURE: Duration = Duration::from_secs(5);
/// Longest time that streams get to stop before the node leaves.
const MAX_STOP: Duration = Duration::from_secs(2);
/// Interval at which a node that leaves checks whether its streams have stopped.
const STOPPING: Duration = Duration::from_millis(20);
/// Stream of events about the node itself.
const NODE_EVENTS: &str = "";

/// The thread that drives the state machines.
#[derive(Debug)]
pub(super) struct Member {
    commands: Mutex<Sender<Command>>,
    waker: Waker,
    has_left: Arc<AtomicBool>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    streams: Arc<Streams>,
}

enum Command {
    Leave,
}

/// What must run, and what runs.
#[derive(Debug)]
pub(super) struct Streams {
    registry: Registry,
    descriptions: Descriptions,
    results: Option<Arc<dyn ResultLog>>,
    wishes: Mutex<HashMap<String, Wish>>,
    /// A wish was fulfilled.
    fulfilled: Condvar,
    /// Spans of the requests that change streams at this time, by stream.
    spans: Mutex<HashMap<String, tracing::Span>>,
}

/// Ends the part of a request in which its stream is changed.
pub(super) struct OnBehalf<'a> {
    streams: &'a Streams,
    stream: String,
}

/// What a stream must do.
#[derive(Debug, Default)]
struct Wish {
    /// The stream runs with this description in this epoch; `None`: it does not run.
    wanted: Option<(StreamSpec, Epoch)>,
    /// Results are missing before the first result of this epoch.
    interruption: Option<(Interruption, Epoch)>,
    /// Whether a thread brings the registry to this wish.
    is_being_done: bool,
    /// Number of frames when the epoch began.
    n_before: u64,
    /// The event of this epoch that the other nodes know.
    reported: Option<StreamEvent>,
    /// Whether the registry runs the stream in this epoch.
    is_running: bool,
    /// Why the stream runs on with an earlier description.
    refusal: Option<Error>,
}

impl Wish {
    /// Whether the interruption belongs to the epoch in which the stream must run.
    fn has_interruption(&self) -> bool {
        self.wanted.as_ref().is_some_and(|(_, epoch)| self.interruption.as_ref().is_some_and(|(_, of)| of == epoch))
    }
}

impl Member {
    /// Joins the other nodes.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub(super) fn start(
        coordinator: Box<dyn Coordinator>,
        options: Options,
        streams: Streams,
        fence: Fence,
        meter: Meter,
    ) -> std::io::Result<Self> {
        let (commands, received) = channel();
        let (waker, has_left) = (coordinator.waker(), Arc::new(AtomicBool::new(false)));
        let (streams, facts, agent) = (Arc::new(streams), options.facts.clone(), Agent::new(options));
        let (of_driver, of_thread) = (streams.clone(), has_left.clone());
        let driver =
            Driver { coordinator, agent, streams: of_driver, fence, facts, meter, leaves_at: None, has_left: of_thread, trouble: None };
        let thread = std::thread::Builder::new().name("roiflow-node".to_owned()).spawn(move || driver.run(&received))?;
        Ok(Self { commands: Mutex::new(commands), waker, has_left, thread: Mutex::new(Some(thread)), streams })
    }

    /// Stops all streams, and tells the other nodes that they may start them. Returns after this, or at the deadline.
    pub(super) fn leave(&self, deadline: Instant) {
        let _sent = lock(&self.commands).send(Command::Leave);
        self.waker.wake();
        while !self.has_left.load(Ordering::Acquire) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.has_left.load(Ordering::Acquire) {
            lock(&self.thread).take().map(std::thread::JoinHandle::join);
        }
    }

    /// What happens to a stream on this node belongs to the present span until the guard is dropped.
    pub(super) fn on_behalf(&self, stream: &str) -> OnBehalf<'_> {
        lock(&self.streams.spans).insert(stream.to_owned(), tracing::Span::current());
        OnBehalf { streams: &self.streams, stream: stream.to_owned() }
    }

    /// Whether a stream was started on this node, or has failed to start.
    pub(super) fn has_placed(&self, stream: &str) -> bool {
        lock(&self.streams.wishes).get(stream).is_some_and(|wish| wish.is_running)
    }

    /// Returns why a stream runs on with an earlier description than the one that it should have.
    pub(super) fn take_refusal(&self, stream: &str) -> Option<Error> {
        lock(&self.streams.wishes).get_mut(stream)?.refusal.take()
    }

    /// Waits until a stream runs with this description, or until it does not run if there is no description. Returns false if that did not
    /// happen in time.
    pub(super) fn is_settled(&self, stream: &str, wanted: Option<&StreamSpec>, max_wait: Duration) -> bool {
        let is_pending = |wishes: &mut HashMap<String, Wish>| match (wishes.get(stream), wanted) {
            (Some(wish), Some(wanted)) => wish.is_being_done || wish.wanted.as_ref().is_none_or(|(spec, _)| spec != wanted),
            (wish, wanted) => wish.is_some() || wanted.is_some(),
        };
        let waited = self.streams.fulfilled.wait_timeout_while(lock(&self.streams.wishes), max_wait, is_pending);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for OnBehalf<'_> {
    fn drop(&mut self) {
        lock(&self.streams.spans).remove(&self.stream);
    }
}

/// The thread ends when the streams have stopped.
impl Drop for Member {
    fn drop(&mut self) {
        let _sent = lock(&self.commands).send(Command::Leave);
        self.waker.wake();
    }
}

struct Driver {
    coordinator: Box<dyn Coordinator>,
    agent: Agent,
    streams: Arc<Streams>,
    fence: Fence,
    facts: Facts,
    meter: Meter,
    /// When the node leaves, even if streams have not stopped; `None`: it has left, or nobody has asked it to leave.
    leaves_at: Option<Duration>,
    has_left: Arc<AtomicBool>,
    /// The last trouble that was told, until it is over.
    trouble: Option<String>,
}

impl Driver {
    fn run(mut self, commands: &Receiver<Command>) {
        let (mut observe_at, mut measure_at) = (now(), now());
        while !self.agent.has_left() {
            if let Ok(Command::Leave) = commands.try_recv() {
                self.streams.stop_all();
                self.leaves_at = Some(now() + MAX_STOP);
            }
            // The other nodes start the streams as soon as this node has left. Some cameras serve only one client.
            if self.leaves_at.is_some_and(|leaves_at| now() >= leaves_at || self.streams.have_stopped()) {
                self.leaves_at = None;
                self.handle(Input::Leave);
                continue;
            }
            if now() >= observe_at {
                observe_at = now() + OBSERVE;
                for (stream, epoch, event) in self.streams.observe() {
                    self.handle(Input::Stream { stream, epoch, event });
                }
            }
            if now() >= measure_at {
                measure_at = now() + MEASURE;
                self.facts = self.meter.measure(self.facts.clone(), self.streams.registry.loads());
                self.handle(Input::Facts(self.facts.clone()));
            }
            let mut until = self.agent.next_tick(now()).min(observe_at);
            if self.leaves_at.is_some() {
                until = until.min(now() + STOPPING);
            }
            let input = self.coordinator.poll(until.saturating_sub(now())).map_or(Input::Tick, Input::Event);
            self.handle(input);
        }
        self.has_left.store(true, Ordering::Release);
    }

    fn handle(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for output in self.agent.handle(now(), input) {
                match output {
                    Output::Submit { ticket, request } => self.coordinator.submit(ticket, request),
                    Output::Start { .. } | Output::Interrupted { .. } | Output::SetEpoch { .. } | Output::Change { .. }
                        if self.leaves_at.is_some() => {}
                    Output::Start { stream, epoch, spec } => match self.streams.descriptions.read(&stream, &spec) {
                        Ok(description) => self.streams.want(&stream, Some((description, epoch))),
                        Err(error) => {
                            self.note(error.clone());
                            inputs.push_back(Input::Stream { stream, epoch, event: StreamEvent::Failed(error) });
                        }
                    },
                    Output::Interrupted { stream, epoch, interruption } => self.streams.interrupt(&stream, epoch, interruption),
                    Output::SetEpoch { stream, epoch } => self.streams.set_epoch(&stream, epoch),
                    Output::Change { stream, epoch, spec } => match self.streams.descriptions.read(&stream, &spec) {
                        Ok(description) => self.streams.change(&stream, description, epoch),
                        Err(error) => self.note(error),
                    },
                    Output::Stop { stream } => self.streams.want(&stream, None),
                    Output::Fence(deadline) => self.fence.set(deadline),
                    Output::Note(note) => {
                        if matches!(note, Note::Lapsed { keep_running: false, .. }) {
                            self.fence.revoke();
                        }
                        self.tell(&note);
                    }
                }
            }
        }
    }

    /// Tells people what has happened: as a warning if streams stop or may stop, and when that is over.
    fn tell(&mut self, note: &Note) {
        if self.streams.is_alone() {
            return;
        }
        let is_trouble = matches!(note, Note::Lapsed { .. } | Note::Outage { .. } | Note::NameInUse | Note::Rejected(_));
        let is_end = matches!(note, Note::Joined(_) | Note::OutageOver);
        let text = text(note);
        // A request that is refused is sent again and again.
        if matches!(note, Note::Rejected(_)) && self.trouble.as_ref() == Some(&text) {
            return;
        }
        if is_trouble || (is_end && self.trouble.is_some()) {
            tracing::warn!("{text}");
            self.trouble = Some(text.clone()).filter(|_| is_trouble);
        }
        self.note(text);
    }

    fn note(&self, text: String) {
        if self.streams.is_alone() {
            return;
        }
        tracing::info!("{text}");
        self.streams.registry.events().add(NODE_EVENTS, EventKind::Node, text);
    }
}

/// Time since the start of the machine.
pub(super) fn now() -> Duration {
    // This clock also counts while the machine sleeps, so a machine that wakes up knows that its lease has ended.
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn text(note: &Note) -> String {
    match note {
        Note::Joined(session) => format!("joined the other nodes under session {}", session.0),
        Note::Lapsed { n_streams, keep_running } => {
            let done = if *keep_running { "go on without it, because of --keep-running" } else { "were stopped" };
            format!(
                "lost the lease: the coordinator did not answer in time. The {n_streams} streams of this node {done}. Nodes that reach the \
                 coordinator start them"
            )
        }
        Note::Outage { error, left: Some(left) } => {
            format!("cannot renew the lease: {error}. The streams of this node stop in {} s, unless that ends before", left.as_secs())
        }
        Note::Outage { error, left: None } => format!("cannot renew the lease: {error}. The streams of this node go on"),
        Note::OutageOver => "the coordinator answers again".to_owned(),
        Note::NameInUse => "another process has the name of this node. Stop it, or start this one with another --name".to_owned(),
        Note::Decided(decision) => {
            let (stream, assignment) = (&decision.stream, &decision.assignment);
            format!("gave the stream `{stream}` to the node `{}`: {}", assignment.owner.node, reason(&decision.reason))
        }
        Note::Rejected(error) => format!("the coordinator refuses a request: {error}"),
    }
}

fn reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::NoNode => "no node ran it",
        Reason::Failed => "it failed on its node",
        Reason::Constraint => "it needs another node",
        Reason::Drain => "its node is being drained",
        Reason::Balance => "the load was uneven",
    }
}

impl Streams {
    /// `results` are the results that all nodes have published.
    pub(super) fn new(registry: Registry, descriptions: Descriptions, results: Option<Arc<dyn ResultLog>>) -> Self {
        Self { registry, descriptions, results, wishes: Mutex::default(), fulfilled: Condvar::new(), spans: Mutex::default() }
    }

    fn is_alone(&self) -> bool {
        self.descriptions.0 == Protection::Alone
    }

    /// The number of an assignment for the IDs of results. Without other nodes, results need no such number.
    fn number(&self, epoch: Epoch) -> u64 {
        if self.is_alone() { 0 } else { epoch.0 }
    }

    /// Results are missing before the first result of this epoch. The gap is announced when the stream starts in the epoch, or at once if it
    /// has started.
    fn interrupt(self: &Arc<Self>, stream: &str, epoch: Epoch, interruption: Interruption) {
        let mut wishes = lock(&self.wishes);
        let wish = wishes.entry(stream.to_owned()).or_default();
        wish.interruption = Some((interruption, epoch));
        if wish.has_interruption() {
            self.begin(stream, wish);
        }
    }

    fn want(self: &Arc<Self>, stream: &str, wanted: Option<(StreamSpec, Epoch)>) {
        let mut wishes = lock(&self.wishes);
        let wish = wishes.entry(stream.to_owned()).or_default();
        (wish.wanted, wish.reported, wish.is_running) = (wanted, None, false);
        if wish.wanted.is_none() {
            wish.interruption = None;
        }
        self.begin(stream, wish);
    }

    fn set_epoch(self: &Arc<Self>, stream: &str, epoch: Epoch) {
        let wanted = lock(&self.wishes).get(stream).and_then(|wish| wish.wanted.clone());
        if let Some((spec, _)) = wanted {
            self.want(stream, Some((spec, epoch)));
        }
    }

    /// Changes a stream, or starts it if its earlier description could not be read.
    fn change(self: &Arc<Self>, stream: &str, spec: StreamSpec, epoch: Epoch) {
        let mut wishes = lock(&self.wishes);
        let wish = wishes.entry(stream.to_owned()).or_default();
        match &mut wish.wanted {
            Some((before, _)) => *before = spec,
            wanted => *wanted = Some((spec, epoch)),
        }
        self.begin(stream, wish);
    }

    fn stop_all(self: &Arc<Self>) {
        let names: Vec<String> = lock(&self.wishes).keys().cloned().collect();
        names.iter().for_each(|stream| self.want(stream, None));
    }

    fn have_stopped(&self) -> bool {
        lock(&self.wishes).is_empty()
    }

    /// Starts a thread that brings the registry to the wish, unless there is one.
    fn begin(self: &Arc<Self>, stream: &str, wish: &mut Wish) {
        if wish.is_being_done {
            return;
        }
        let (streams, name) = (self.clone(), stream.to_owned());
        match std::thread::Builder::new().name("roiflow-assign".to_owned()).spawn(move || streams.fulfill(&name)) {
            Ok(_) => wish.is_being_done = true,
            Err(error) => tracing::error!("cannot start a thread for the stream `{stream}`: {error}"),
        }
    }

    fn fulfill(&self, stream: &str) {
        let mut done = None;
        loop {
            let (wanted, interruption) = {
                let mut wishes = lock(&self.wishes);
                let Some(wish) = wishes.get_mut(stream) else { return };
                if done.as_ref() == Some(&wish.wanted) && !wish.has_interruption() {
                    wish.is_being_done = false;
                    wish.is_running = wish.wanted.is_some();
                    // An interruption may come before the epoch that it belongs to.
                    if wish.wanted.is_none() && wish.interruption.is_none() {
                        wishes.remove(stream);
                    }
                    self.fulfilled.notify_all();
                    return;
                }
                // Taken, because a gap is announced once.
                let interruption = if wish.has_interruption() { wish.interruption.take() } else { None };
                (wish.wanted.clone(), interruption)
            };
            // Frames of an earlier epoch are not results of the new one.
            let is_new = self.registry.feed(stream).is_err();
            let span = lock(&self.spans).get(stream).cloned().unwrap_or_else(tracing::Span::none);
            let placed = span.in_scope(|| match &wanted {
                Some((spec, epoch)) => {
                    let gap = || Some(gap(stream, epoch.0, &interruption?.0, self.results.as_deref()));
                    self.registry.place(spec.clone(), self.number(*epoch), gap)
                }
                None => {
                    self.registry.displace(stream);
                    Ok(())
                }
            });
            let refusal = placed.err();
            if let Some(error) = &refusal {
                self.registry.events().add(stream, EventKind::Warning, error.message.clone());
            }
            let n_before = if is_new { 0 } else { self.registry.feed(stream).map_or(0, |feed| feed.n_frames()) };
            if let Some(wish) = lock(&self.wishes).get_mut(stream) {
                (wish.n_before, wish.refusal) = (n_before, refusal);
            }
            done = Some(wanted);
        }
    }

    /// Returns what has happened to streams since the last call.
    fn observe(&self) -> Vec<(String, Epoch, StreamEvent)> {
        let mut happened = Vec::new();
        for (name, state, error, feed) in self.registry.states() {
            let mut wishes = lock(&self.wishes);
            let Some(wish) = wishes.get_mut(&name).filter(|wish| wish.is_running) else { continue };
            let Some((_, epoch)) = wish.wanted else { continue };
            let error = || error.unwrap_or_else(|| "no reason is known".to_owned());
            let event = match state {
                State::Running | State::Ended if feed.n_frames() > wish.n_before => StreamEvent::Running,
                State::Reconnecting => StreamEvent::Waiting(error()),
                State::Failed => StreamEvent::Failed(error()),
                _ => continue,
            };
            if wish.reported.as_ref() != Some(&event) {
                wish.reported = Some(event.clone());
                happened.push((name, epoch, event));
            }
        }
        happened
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use roiflow_nodes::types::{Cause, Member, Ownership, Session};

    use super::*;
    use crate::registry::tests::{Fake, registry, spec, wait_until};

    fn interruption(node: &str) -> Interruption {
        let owner = Member { node: node.to_owned(), session: Session(1) };
        Interruption { earlier: Ownership { owner, epoch: Epoch(2) }, cause: Cause::NodeLost }
    }

    /// The streams of this node, whose backend is `fake`.
    fn streams(folder: &std::path::Path, fake: &Fake) -> Arc<Streams> {
        Arc::new(Streams::new(registry(folder, fake, |_| {}), Descriptions(Protection::None), None))
    }

    /// Waits until all wishes are fulfilled.
    fn settle(streams: &Streams) {
        wait_until(|| lock(&streams.wishes).values().all(|wish| !wish.is_being_done));
    }

    #[test]
    fn gap_is_announced_before_the_stream_starts_in_an_epoch() {
        let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::default());
        let streams = streams(folder.path(), &fake);
        streams.interrupt("door", Epoch(3), interruption("b"));
        streams.want("door", Some((spec("door", "test:1"), Epoch(3))));
        settle(&streams);
        // A hand-over that is taken back: the stream ran in epoch 3 until now.
        streams.interrupt("door", Epoch(5), interruption("c"));
        streams.set_epoch("door", Epoch(5));
        settle(&streams);
        assert_eq!(fake.state().log, ["gap 3", "start door", "stop door", "gap 5", "start door"]);
        streams.want("door", None);
        wait_until(|| streams.have_stopped());
        assert_eq!(fake.state().log[5..], ["stop door", "forget door"]);
    }

    #[test]
    fn gap_of_a_running_stream_is_announced_without_a_restart() {
        let (folder, fake) = (tempfile::tempdir().unwrap(), Fake::default());
        let streams = streams(folder.path(), &fake);
        streams.want("door", Some((spec("door", "test:1"), Epoch(4))));
        settle(&streams);
        streams.interrupt("door", Epoch(4), interruption("a"));
        settle(&streams);
        assert_eq!(fake.state().log, ["start door", "gap 4"]);
    }
}
