//! All state machines of one node together: the view, the lease, the streams and the planner.
//!
//! A program drives an agent with one loop on one thread:
//!
//! 1. Call [`Coordinator::poll`](crate::Coordinator::poll) with the time until [`Agent::next_tick`].
//! 2. Call [`Agent::handle`] with [`Input::Event`] for its event, with [`Input::Stream`] for what happened to a stream, or with
//!    [`Input::Tick`].
//! 3. Execute the returned outputs in order.
//!
//! All times count from the same start of the node's monotonic clock. Use a clock that counts while the machine sleeps
//! (`CLOCK_BOOTTIME`): otherwise a machine that wakes up would publish results after its lease has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::coordinator::{Change, Event, Reply, Request, Ticket};
use crate::membership::{Effect, Membership, State};
use crate::placement::Policy;
use crate::planner::{Decision, Planner, Purpose};
use crate::timing::Timing;
use crate::types::{Epoch, Facts, Interruption, Member, Session, StreamSpec};
use crate::view::{Scope, View};
use crate::worker::{Action, StreamEvent, Worker};

/// Settings of an agent.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the node; see [`keys::is_name`](crate::keys::is_name).
    pub node: String,
    /// A random number: [`Session::from_random`].
    pub session: Session,
    /// What the node publishes about itself.
    pub facts: Facts,
    /// Whether the streams run on after the lease has ended. Then two nodes may run a stream, and publish results of the same frames in
    /// different epochs.
    pub keep_running: bool,
    /// The times of leases. They must be the same on all nodes.
    pub timing: Timing,
    /// Settings of the planner. They should be the same on all nodes.
    pub policy: Policy,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The coordinator reported this.
    Event(Event),
    /// Something happened to a stream of this node.
    Stream {
        /// Name of the stream.
        stream: String,
        /// The epoch in which it happened.
        epoch: Epoch,
        /// What happened.
        event: StreamEvent,
    },
    /// What the node publishes about itself has changed.
    Facts(Facts),
    /// Time has passed.
    Tick,
    /// The node is to leave. It stops all streams at once. [`Agent::has_left`] becomes true when the other nodes know.
    Leave,
}

/// What the program must do.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Submit this request.
    Submit {
        /// Ticket of the request.
        ticket: Ticket,
        /// The request.
        request: Request,
    },
    /// Start a stream: [`Action::Start`].
    Start {
        /// Name of the stream.
        stream: String,
        /// Epoch of its results.
        epoch: Epoch,
        /// Its specification.
        spec: StreamSpec,
    },
    /// Results of a stream are missing: [`Action::Interrupted`].
    Interrupted {
        /// Name of the stream.
        stream: String,
        /// Its epoch.
        epoch: Epoch,
        /// Why results are missing.
        interruption: Interruption,
    },
    /// Set the epoch of a stream: [`Action::SetEpoch`].
    SetEpoch {
        /// Name of the stream.
        stream: String,
        /// Epoch of its results.
        epoch: Epoch,
    },
    /// Change a stream: [`Action::Change`].
    Change {
        /// Name of the stream.
        stream: String,
        /// Its epoch.
        epoch: Epoch,
        /// Its specification.
        spec: StreamSpec,
    },
    /// Stop a stream: [`Action::Stop`].
    Stop {
        /// Name of the stream.
        stream: String,
    },
    /// Results may be published until this time: [`Fence::set`](crate::fence::Fence::set).
    Fence(Option<Duration>),
    /// Something that people want to know.
    Note(Note),
}

/// Something that people want to know.
#[derive(Debug, Clone, PartialEq)]
pub enum Note {
    /// The node has joined under this session.
    Joined(Session),
    /// The lease has ended; the streams were stopped, or run without a lease.
    Lapsed {
        /// Number of streams of this node.
        n_streams: usize,
        /// Whether they run on.
        keep_running: bool,
    },
    /// The lease cannot be renewed: [`Effect::Outage`].
    Outage {
        /// Why.
        error: crate::coordinator::Error,
        /// Time until the streams of this node stop; `None`: they run on.
        left: Option<Duration>,
    },
    /// The lease is renewed again: [`Effect::OutageOver`].
    OutageOver,
    /// Another process has joined under the name of this node. Stop it, or start this one with another name.
    NameInUse,
    /// This node's planner has decided this.
    Decided(Decision),
    /// A request failed with an error that trying again does not solve.
    Rejected(String),
}

/// All state machines of one node; see the module documentation.
#[derive(Debug, Clone)]
pub struct Agent {
    view: View,
    membership: Membership,
    worker: Worker,
    planner: Planner,
    keep_running: bool,
    is_leaving: bool,
    requests: BTreeMap<Ticket, Sender>,
    next_ticket: u64,
    watch: Option<Ticket>,
    fence: Option<Duration>,
}

/// Which state machine waits for a reply.
#[derive(Debug, Clone)]
enum Sender {
    Membership,
    Status(String),
    Planner(Purpose),
    Nobody,
}

impl Agent {
    /// Makes the agent of a node that has not joined. Its first tick begins to watch and to join.
    pub fn new(options: Options) -> Self {
        let Options { node, session, facts, keep_running, timing, policy } = options;
        Self {
            view: View::default(),
            membership: Membership::new(&node, session, facts, timing),
            worker: Worker::new(keep_running, timing.retry),
            planner: Planner::new(timing, policy),
            keep_running,
            is_leaving: false,
            requests: BTreeMap::new(),
            next_ticket: 0,
            watch: None,
            fence: None,
        }
    }

    /// Returns what the node knows of all items.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns the lease of the node.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Returns the streams of the node.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Returns the planner of the node.
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Whether the node has left, so that the process may end.
    pub fn has_left(&self) -> bool {
        self.membership.state() == State::Left
    }

    /// Returns the time at which [`Input::Tick`] has an effect.
    pub fn next_tick(&self, now: Duration) -> Duration {
        if self.watch.is_none() {
            return now;
        }
        let ticks = [
            self.membership.next_tick(),
            self.worker.next_tick(&self.view),
            self.member().map(|_| self.planner.next_tick(now, &self.view)),
        ];
        ticks.into_iter().flatten().min().unwrap_or(now + Duration::from_secs(1))
    }

    /// Handles what happened, and returns what the program must do, in order.
    pub fn handle(&mut self, now: Duration, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        if self.watch.is_none() {
            let ticket = self.submit(&mut outputs, Sender::Nobody, Request::Watch { prefix: String::new() });
            self.watch = Some(ticket);
        }
        match input {
            Input::Event(Event::Reply { ticket, result }) => {
                if let Err(error @ crate::coordinator::Error::Rejected(_)) = &result {
                    outputs.push(Output::Note(Note::Rejected(error.to_string())));
                }
                self.reply(now, ticket, result, &mut outputs);
            }
            Input::Event(Event::Watch { ticket, change }) if self.watch == Some(ticket) => self.see(now, change, &mut outputs),
            Input::Event(Event::Watch { .. }) | Input::Tick => {}
            Input::Stream { stream, epoch, event } => {
                let actions = self.worker.stream_event(now, &self.view, &stream, epoch, event);
                self.act(actions, &mut outputs);
            }
            Input::Facts(facts) => self.membership.set_facts(facts),
            Input::Leave => {
                self.is_leaving = true;
                let actions = self.worker.stop_all();
                self.act(actions, &mut outputs);
                if let Some(request) = self.planner.leave() {
                    self.submit(&mut outputs, Sender::Nobody, request);
                }
            }
        }
        let effects = self.membership.tick(now);
        self.apply(now, effects, &mut outputs);
        if self.is_leaving {
            let effects = self.membership.leave(now);
            self.apply(now, effects, &mut outputs);
        } else {
            let actions = self.worker.tick(now, &self.view);
            self.act(actions, &mut outputs);
            let member = self.member();
            for (purpose, request) in self.planner.tick(now, &self.view, member.as_ref()) {
                self.submit(&mut outputs, Sender::Planner(purpose), request);
            }
            outputs.extend(self.planner.take_decisions().into_iter().map(|decision| Output::Note(Note::Decided(decision))));
        }
        self.set_fence(&mut outputs);
        outputs
    }

    /// The node with its session, if it has a lease and is not leaving.
    fn member(&self) -> Option<Member> {
        self.membership.deadline().filter(|_| !self.is_leaving).map(|_| self.membership.member())
    }

    fn see(&mut self, now: Duration, change: Change, outputs: &mut Vec<Output>) {
        let scope = self.view.apply(now, change);
        self.planner.changed(now, &self.view, &scope);
        if self.is_leaving {
            return;
        }
        let member = self.member();
        let actions = match &scope {
            Scope::All => self.worker.update_all(now, &self.view, member.as_ref()),
            Scope::Stream(stream) => self.worker.update(now, &self.view, member.as_ref(), stream),
            Scope::Nothing | Scope::Node(_) | Scope::Lock => Vec::new(),
        };
        self.act(actions, outputs);
    }

    fn reply(&mut self, now: Duration, ticket: Ticket, result: Result<Reply, crate::coordinator::Error>, outputs: &mut Vec<Output>) {
        match self.requests.remove(&ticket) {
            Some(Sender::Membership) => {
                let effects = self.membership.reply(now, result);
                self.apply(now, effects, outputs);
            }
            Some(Sender::Status(stream)) => {
                let actions = self.worker.status_reply(now, &self.view, &stream, &result);
                self.act(actions, outputs);
            }
            Some(Sender::Planner(purpose)) => self.planner.reply(now, &self.view, &purpose, &result),
            Some(Sender::Nobody) | None => {}
        }
    }

    fn apply(&mut self, now: Duration, effects: Vec<Effect>, outputs: &mut Vec<Output>) {
        for effect in effects {
            match effect {
                Effect::Send(request) => {
                    self.submit(outputs, Sender::Membership, request);
                }
                Effect::Joined => {
                    outputs.push(Output::Note(Note::Joined(self.membership.member().session)));
                    let member = self.member();
                    let actions = self.worker.update_all(now, &self.view, member.as_ref());
                    self.act(actions, outputs);
                }
                Effect::Lapsed => {
                    let (n_streams, keep_running) = (self.worker.streams().count(), self.keep_running);
                    outputs.push(Output::Note(Note::Lapsed { n_streams, keep_running }));
                    let actions = self.worker.lapse();
                    self.act(actions, outputs);
                }
                Effect::NameInUse => outputs.push(Output::Note(Note::NameInUse)),
                Effect::Outage { error, left } => {
                    let left = left.filter(|_| !self.keep_running);
                    outputs.push(Output::Note(Note::Outage { error, left }));
                }
                Effect::OutageOver => outputs.push(Output::Note(Note::OutageOver)),
                // `set_fence` reports it.
                Effect::Deadline => {}
            }
        }
    }

    fn act(&mut self, actions: Vec<Action>, outputs: &mut Vec<Output>) {
        for action in actions {
            match action {
                Action::Start { stream, epoch, spec } => outputs.push(Output::Start { stream, epoch, spec }),
                Action::Interrupted { stream, epoch, interruption } => outputs.push(Output::Interrupted { stream, epoch, interruption }),
                Action::SetEpoch { stream, epoch } => outputs.push(Output::SetEpoch { stream, epoch }),
                Action::Change { stream, epoch, spec } => outputs.push(Output::Change { stream, epoch, spec }),
                Action::Stop { stream } => outputs.push(Output::Stop { stream }),
                Action::WriteStatus { stream, request } => {
                    self.submit(outputs, Sender::Status(stream), request);
                }
            }
        }
    }

    fn set_fence(&mut self, outputs: &mut Vec<Output>) {
        let is_open_ended = self.keep_running && !self.is_leaving;
        let fence = if is_open_ended { Some(Duration::MAX) } else { self.membership.deadline() };
        if fence != self.fence {
            self.fence = fence;
            outputs.push(Output::Fence(fence));
        }
    }

    fn submit(&mut self, outputs: &mut Vec<Output>, sender: Sender, request: Request) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        // A watch has no reply.
        if !matches!(request, Request::Watch { .. }) {
            self.requests.insert(ticket, sender);
        }
        outputs.push(Output::Submit { ticket, request });
        ticket
    }
}
