//! Checks leases, fencing, takeover and hand-over of `crates/nodes` with two nodes, one stream and a coordinator, on simulated time.
//!
//! Time passes in ticks. Before each tick, the search changes one thing: the network of a node, whether a process runs, whether the
//! coordinator runs, or whether a node is drained. It tries all changes at all ticks, up to a number of changes in one run. The times of
//! leases are shorter than those of the product, but have the same order.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use roiflow_check::nodes::agent::{Agent, Input, Options, Output};
use roiflow_check::nodes::coordinator::{Change, Error, Event, Request, Ticket};
use roiflow_check::nodes::placement::Policy;
use roiflow_check::nodes::store::Store;
use roiflow_check::nodes::timing::Timing;
use roiflow_check::nodes::types::{Assignment, Facts, NodeRecord, Presence};
use roiflow_check::nodes::worker::StreamEvent;
use roiflow_check::nodes::{Member, Session, keys};

use crate::Check;

pub fn checks() -> Vec<Check> {
    vec![
        Check {
            name: "a_node_that_is_cut_off_stops_before_another_starts",
            bounds: "14 ticks, three changes of the owner's network; all choices",
            run: || {
                explore(&[
                    Step::Link(0, Link::HoldReplies),
                    Step::Link(0, Link::HoldRequests),
                    Step::Link(0, Link::Cut),
                    Step::Link(0, Link::Ok),
                ])
            },
        },
        Check {
            name: "a_coordinator_that_restarts_moves_no_stream_of_a_live_node",
            bounds: "14 ticks, three changes of the coordinator and the owner's network; all choices",
            run: || explore(&[Step::Server(false), Step::Server(true), Step::Link(0, Link::Cut), Step::Link(0, Link::HoldRequests)]),
        },
        Check {
            name: "a_process_that_was_stopped_publishes_nothing_after_its_lease",
            bounds: "14 ticks, three changes of both processes; all choices",
            run: || explore(&[Step::Link(0, Link::Paused), Step::Link(0, Link::Ok), Step::Link(1, Link::Paused), Step::Link(1, Link::Ok)]),
        },
        Check {
            name: "a_hand_over_leaves_one_owner",
            bounds: "14 ticks, three changes: a drain, the networks of both nodes; all choices",
            run: || explore(&[Step::Drain, Step::Link(0, Link::Cut), Step::Link(1, Link::Cut), Step::Link(1, Link::Ok)]),
        },
    ]
}

/// Something that the search changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Link(usize, Link),
    /// Stops or starts the coordinator.
    Server(bool),
    /// A user drains the first node.
    Drain,
}

/// The network of a node, or its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Ok,
    /// Requests wait in the network.
    HoldRequests,
    /// Replies and changes wait in the network.
    HoldReplies,
    /// Nothing arrives. The node notices when the network is back, or by timeouts.
    Cut,
    /// The process is stopped.
    Paused,
}

const TICKS: u64 = 14;
const MAX_CHANGES: usize = 3;
/// Ticks until a request without a reply fails.
const TIMEOUT: u64 = 3;
/// Ticks from the start of a stream to its first frame.
const START: u64 = 1;

fn timing() -> Timing {
    let [ttl, renew, fence, takeover, retry, burial] = [5, 2, 4, 5, 1, 100].map(Duration::from_secs);
    Timing { ttl, renew, fence, takeover, retry, burial }
}

#[derive(Debug, Clone)]
struct World {
    now: u64,
    store: Store,
    is_up: bool,
    nodes: [Node; 2],
    /// Who has published in each epoch.
    publishers: BTreeMap<u64, Member>,
    /// All sessions that nodes have had, and those that cannot renew any more.
    sessions: BTreeSet<Member>,
    ended: BTreeSet<Member>,
    violation: Option<String>,
}

#[derive(Debug, Clone)]
struct Node {
    name: &'static str,
    agent: Agent,
    link: Link,
    is_connected: bool,
    watch: Option<Ticket>,
    fence: Option<Duration>,
    to_server: VecDeque<(Ticket, Request)>,
    to_node: VecDeque<Event>,
    /// When each request fails.
    pending: BTreeMap<Ticket, u64>,
    run: Option<Run>,
}

#[derive(Debug, Clone)]
struct Run {
    epoch: u64,
    starts: u64,
    is_reported: bool,
}

/// Visits all choices, and returns the number of states. Panics with the choices that lead to a violation.
fn explore(steps: &[Step]) -> usize {
    let mut world = World::new();
    for _ in 0..8 {
        world.tick(None);
    }
    assert!(world.nodes[0].run.is_some() && world.violation.is_none(), "the first node runs the stream: {world:#?}");
    let mut seen = HashSet::new();
    visit(&world, steps, TICKS, MAX_CHANGES, &mut seen, &mut Vec::new());
    seen.len()
}

fn visit(world: &World, steps: &[Step], ticks: u64, changes: usize, seen: &mut HashSet<u64>, path: &mut Vec<(u64, Option<Step>)>) {
    if ticks == 0 {
        return world.check_end(path);
    }
    let none = std::iter::once(None);
    let some = steps.iter().copied().filter(|step| changes > 0 && world.has_effect(*step)).map(Some);
    for step in none.chain(some) {
        let mut next = world.clone();
        next.tick(step);
        path.push((world.now, step));
        if let Some(violation) = &next.violation {
            panic!("{violation}; changes: {:?}", changes_of(path));
        }
        let changes = changes - usize::from(step.is_some());
        if seen.insert(hash(&(changes, &next))) {
            visit(&next, steps, ticks - 1, changes, seen, path);
        }
        path.pop();
    }
}

fn changes_of(path: &[(u64, Option<Step>)]) -> Vec<(u64, Step)> {
    path.iter().filter_map(|(tick, step)| Some((*tick, (*step)?))).collect()
}

/// Hash of a value's debug text, which contains all its fields.
fn hash(value: &impl std::fmt::Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(format!("{value:?}").as_bytes());
    hasher.finish()
}

impl World {
    fn new() -> Self {
        let mut store = Store::default();
        let create = |key: String, value: &str| Request::Create { key, value: value.as_bytes().to_vec(), ttl: None };
        store.execute(Duration::ZERO, create(keys::stream("s"), r#"{"description":{},"constraints":{}}"#)).unwrap();
        store.take_changes();
        // The second node comes later, so the first node gets the stream and the planner's lock.
        let nodes = [("a", Link::Ok, 100), ("b", Link::Cut, 200)].map(|(name, link, session)| Node {
            name,
            agent: Agent::new(Options {
                node: name.to_owned(),
                session: Session(session),
                facts: Facts::default(),
                keep_running: false,
                timing: timing(),
                policy: Policy {
                    moves_per_minute: 0.0,
                    settle: Duration::ZERO,
                    interval: Duration::from_secs(1),
                    handover: Duration::from_secs(8),
                    ..Policy::default()
                },
            }),
            link,
            is_connected: false,
            watch: None,
            fence: None,
            to_server: VecDeque::new(),
            to_node: VecDeque::new(),
            pending: BTreeMap::new(),
            run: None,
        });
        let (sessions, ended) = (BTreeSet::new(), BTreeSet::new());
        let mut world = Self { now: 0, store, is_up: true, nodes, publishers: BTreeMap::new(), sessions, ended, violation: None };
        world.tick(None);
        world.tick(None);
        world.nodes[1].link = Link::Ok;
        world
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.now)
    }

    fn has_effect(&self, step: Step) -> bool {
        match step {
            Step::Link(node, link) => self.nodes[node].link != link,
            Step::Server(is_up) => self.is_up != is_up,
            Step::Drain => self.store.items(keys::DRAIN).next().is_none(),
        }
    }

    /// Changes something, and lets everything happen that happens in one tick.
    fn tick(&mut self, step: Option<Step>) {
        self.now += 1;
        match step {
            Some(Step::Link(node, link)) => {
                let before = std::mem::replace(&mut self.nodes[node].link, link);
                if before == Link::Paused {
                    // The thread that publishes may continue before all others.
                    self.frame(node);
                }
                if before == Link::Cut {
                    self.lose(node);
                }
            }
            Some(Step::Server(is_up)) => self.is_up = is_up,
            Some(Step::Drain) => {
                let request = Request::Create { key: keys::drain("a"), value: b"{}".to_vec(), ttl: None };
                self.store.execute(self.time(), request).unwrap();
            }
            None => {}
        }
        if self.is_up {
            self.store.expire(self.time());
        }
        self.broadcast();
        for node in 0..2 {
            if self.nodes[node].link == Link::Paused {
                continue;
            }
            if !self.is_up && self.nodes[node].link != Link::Cut {
                self.lose(node);
            }
            let late: Vec<Ticket> =
                self.nodes[node].pending.iter().filter(|(_, end)| **end <= self.now).map(|(ticket, _)| *ticket).collect();
            for ticket in late {
                self.fail(node, ticket);
            }
            self.connect(node);
            self.handle(node, Input::Tick);
        }
        while self.deliver() {}
        for node in 0..2 {
            if self.nodes[node].link != Link::Paused {
                self.frame(node);
            }
        }
        while self.deliver() {}
    }

    /// Delivers what can be delivered. Returns whether there was something.
    fn deliver(&mut self) -> bool {
        let mut is_busy = false;
        for node in 0..2 {
            let link = self.nodes[node].link;
            if !matches!(link, Link::Cut | Link::HoldRequests)
                && self.is_up
                && let Some((ticket, request)) = self.nodes[node].to_server.pop_front()
            {
                is_busy = true;
                let before = self.assignment().filter(|_| request.key() == keys::assign("s"));
                let result = self.store.execute(self.time(), request);
                if let Some(before) = before {
                    self.check_assignment(&before);
                }
                self.broadcast();
                self.nodes[node].to_node.push_back(Event::Reply { ticket, result });
            }
            if !matches!(link, Link::Cut | Link::HoldReplies | Link::Paused)
                && let Some(event) = self.nodes[node].to_node.pop_front()
            {
                is_busy = true;
                if let Event::Reply { ticket, .. } = &event
                    && self.nodes[node].pending.remove(ticket).is_none()
                {
                    continue;
                }
                self.handle(node, Input::Event(event));
            }
        }
        is_busy
    }

    fn connect(&mut self, node: usize) {
        if !self.is_up || self.nodes[node].is_connected || self.nodes[node].link == Link::Cut {
            return;
        }
        self.nodes[node].is_connected = true;
        self.snapshot(node);
    }

    fn snapshot(&mut self, node: usize) {
        let Some(ticket) = self.nodes[node].watch else { return };
        let items: Vec<Change> = self.store.items("").map(Change::Put).collect();
        let changes = [Change::Begin].into_iter().chain(items).chain([Change::Current]);
        self.nodes[node].to_node.extend(changes.map(|change| Event::Watch { ticket, change }));
    }

    fn lose(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].is_connected, false) {
            return;
        }
        self.nodes[node].to_server.clear();
        self.nodes[node].to_node.clear();
        if let Some(ticket) = self.nodes[node].watch {
            self.handle(node, Input::Event(Event::Watch { ticket, change: Change::Interrupted }));
        }
        let pending: Vec<Ticket> = self.nodes[node].pending.keys().copied().collect();
        for ticket in pending {
            self.fail(node, ticket);
        }
    }

    fn fail(&mut self, node: usize, ticket: Ticket) {
        self.nodes[node].pending.remove(&ticket);
        self.handle(node, Input::Event(Event::Reply { ticket, result: Err(Error::Unreachable(String::new())) }));
    }

    fn handle(&mut self, node: usize, input: Input) {
        let outputs = self.nodes[node].agent.handle(self.time(), input);
        for output in outputs {
            let now = self.now;
            let this = &mut self.nodes[node];
            match output {
                Output::Submit { ticket, request: Request::Watch { .. } } => {
                    this.watch = Some(ticket);
                    if this.is_connected {
                        self.snapshot(node);
                    }
                }
                Output::Submit { ticket, request } => {
                    this.pending.insert(ticket, now + TIMEOUT);
                    if this.is_connected {
                        this.to_server.push_back((ticket, request));
                    } else if !self.is_up && this.link != Link::Cut {
                        this.to_node.push_back(Event::Reply { ticket, result: Err(Error::Down(String::new())) });
                    }
                }
                Output::Start { epoch, .. } => this.run = Some(Run { epoch: epoch.0, starts: now + START, is_reported: false }),
                Output::SetEpoch { epoch, .. } => {
                    let run = this.run.as_mut().expect("the stream runs");
                    (run.epoch, run.is_reported) = (epoch.0, false);
                }
                Output::Stop { .. } => this.run = None,
                Output::Fence(deadline) => this.fence = deadline,
                Output::Change { .. } | Output::Interrupted { .. } | Output::Note(_) => {}
            }
        }
    }

    fn broadcast(&mut self) {
        for change in self.store.take_changes() {
            self.note_sessions(&change);
            for node in self.nodes.iter_mut().filter(|node| node.is_connected) {
                if let Some(ticket) = node.watch {
                    node.to_node.push_back(Event::Watch { ticket, change: change.clone() });
                }
            }
        }
    }

    /// The node publishes the result of a frame, if its fence permits it.
    fn frame(&mut self, node: usize) {
        let (now, time) = (self.now, self.time());
        let this = &mut self.nodes[node];
        let Some(run) = this.run.as_mut().filter(|run| now >= run.starts) else { return };
        if this.fence.is_none_or(|deadline| time >= deadline) {
            return;
        }
        let (epoch, is_first) = (run.epoch, !std::mem::replace(&mut run.is_reported, true));
        let member = this.agent.membership().member();
        if self.has_ended(&member) {
            self.violate("a session that has ended publishes");
        }
        if *self.publishers.entry(epoch).or_insert_with(|| member.clone()) != member {
            self.violate("two nodes publish in one epoch");
        }
        if is_first {
            let epoch = roiflow_check::nodes::Epoch(epoch);
            self.handle(node, Input::Stream { stream: "s".to_owned(), epoch, event: StreamEvent::Running });
        }
    }

    fn assignment(&self) -> Option<Assignment> {
        let item = self.store.items(&keys::assign("s")).next()?;
        serde_json::from_slice(&item.value).ok()
    }

    /// Whether the coordinator has made it impossible for a session to renew: its record was replaced.
    fn has_ended(&self, member: &Member) -> bool {
        self.ended.contains(member)
    }

    /// Notes which sessions a change of a node's record ends: all sessions that the node had, except a present one.
    fn note_sessions(&mut self, change: &Change) {
        let Change::Put(item) = change else { return };
        let Some(node) = item.key.strip_prefix(keys::NODES) else { return };
        let record: NodeRecord = serde_json::from_slice(&item.value).expect("a node has written it");
        let member = Member { node: node.to_owned(), session: record.session };
        self.sessions.insert(member.clone());
        let is_ended = |other: &&Member| other.node == node && (**other != member || record.presence != Presence::Present);
        let ended: Vec<Member> = self.sessions.iter().filter(is_ended).cloned().collect();
        self.ended.extend(ended);
    }

    fn check_assignment(&mut self, before: &Assignment) {
        let Some(after) = self.assignment().filter(|after| after != before) else { return };
        // The end of a hand-over changes neither the owner nor the epoch. It names the earlier owner if that one has ended.
        if let Some(from) = &before.from
            && after == (Assignment { from: None, interruption: after.interruption.clone(), ..before.clone() })
        {
            let named = after.interruption.as_ref().map(|interruption| &interruption.earlier);
            if after.interruption != before.interruption && (named != Some(from) || !self.has_ended(&from.owner)) {
                self.violate("a hand-over is interrupted although the earlier owner has not ended");
            }
            return;
        }
        if after.epoch <= before.epoch {
            self.violate("an epoch does not grow");
        }
        let is_from = after.from.as_ref().is_some_and(|from| from.owner == before.owner);
        if after.owner != before.owner && !is_from && !self.has_ended(&before.owner) {
            self.violate(&format!("a stream is taken from a session that has not ended, at tick {}: {before:?}, then {after:?}", self.now));
        }
    }

    fn violate(&mut self, text: &str) {
        self.violation.get_or_insert_with(|| text.to_owned());
    }

    /// When all faults end, the stream runs on exactly one node.
    fn check_end(&self, path: &[(u64, Option<Step>)]) {
        let mut world = self.clone();
        world.tick((!world.is_up).then_some(Step::Server(true)));
        for node in 0..2 {
            world.tick(world.has_effect(Step::Link(node, Link::Ok)).then_some(Step::Link(node, Link::Ok)));
        }
        for _ in 0..20 {
            world.tick(None);
        }
        let violation = world.violation.clone();
        let n_runs = world.nodes.iter().filter(|node| node.run.as_ref().is_some_and(|run| run.is_reported)).count();
        let violation = violation.or_else(|| (n_runs != 1).then(|| format!("{n_runs} nodes run the stream at the end")));
        if let Some(violation) = violation {
            panic!("{violation}; changes: {:?}", changes_of(path));
        }
    }
}
