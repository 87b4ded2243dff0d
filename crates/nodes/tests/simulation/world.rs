//! The simulated world: nodes with clocks, a network, a coordinator, cameras, and a consumer that refuses lower epochs.

use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use roiflow_nodes::agent::{Agent, Input, Note, Options, Output};
use roiflow_nodes::coordinator::{Change, Error, Event, Reply, Request, Ticket};
use roiflow_nodes::placement::{Policy, Reason};
use roiflow_nodes::store::Store;
use roiflow_nodes::timing::Timing;
use roiflow_nodes::types::{Assignment, Capacity, Facts, NodeRecord, Presence, Status};
use roiflow_nodes::worker::StreamEvent;
use roiflow_nodes::{Epoch, Member, Session, StreamSpec, keys};

use super::figures::Figures;
use super::random::Random;

/// Size of a simulation.
#[derive(Debug, Clone)]
pub struct Size {
    pub n_streams: usize,
    pub n_nodes: usize,
    /// Each round has faults, and then 60 s without.
    pub n_rounds: usize,
    pub keep_running: bool,
}

/// Time between two frames of a camera. Slower than real cameras, so that hours can be simulated.
pub const FRAME: Duration = Duration::from_secs(1);
/// Most ticks in a row after which the next one is due at once.
const MAX_AT_ONCE: u32 = 3;
const TIMEOUT: Duration = Duration::from_secs(3);

/// A simulated node.
pub struct Node {
    pub name: String,
    pub agent: Agent,
    pub is_alive: bool,
    pub is_paused: bool,
    pub is_cut_off: bool,
    /// Number of the process. Events of earlier processes have no effect.
    process: u64,
    /// Connection to the coordinator, and the number of the next one.
    connection: Option<u64>,
    next_connection: u64,
    rate: f64,
    fence: Option<Duration>,
    pub runs: BTreeMap<String, Run>,
    /// Results that could not be sent.
    spool: VecDeque<Published>,
    /// What arrived while the process was stopped.
    inbox: Vec<What>,
    watch: Option<Ticket>,
    pending: HashMap<Ticket, Request>,
    tick_at: Option<Duration>,
    /// Number of ticks in a row after which the next one is due at once.
    n_at_once: u32,
    /// Order of messages is kept in both directions.
    last_arrival: [Duration; 2],
}

/// A stream that runs on a node.
pub struct Run {
    number: u64,
    epoch: Epoch,
    frame: u64,
    has_started: bool,
    is_reported: bool,
}

/// A result on its way to the consumer.
#[derive(Debug, Clone)]
struct Published {
    stream: String,
    epoch: Epoch,
    frame: u64,
    publisher: (String, u64, Session),
    moment: Duration,
    tick: u64,
}

/// Something that happens at a time.
enum What {
    AtServer {
        node: usize,
        connection: u64,
        ticket: Ticket,
        request: Request,
    },
    AtNode {
        node: usize,
        process: u64,
        connection: u64,
        event: Event,
    },
    /// An event that the client of the node makes itself: a timeout, or the loss of the connection.
    OfClient {
        node: usize,
        process: u64,
        event: Event,
    },
    Timeout {
        node: usize,
        process: u64,
        ticket: Ticket,
    },
    Lost {
        node: usize,
        process: u64,
        connection: u64,
    },
    Connect {
        node: usize,
        process: u64,
    },
    Tick {
        node: usize,
        process: u64,
    },
    Frame {
        node: usize,
        process: u64,
        stream: String,
        run: u64,
        tick: u64,
    },
    Expire,
}

struct Entry {
    at: Duration,
    number: u64,
    what: What,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// What the consumer knows of a stream.
#[derive(Default)]
struct Consumed {
    epoch: Epoch,
    last: Option<Duration>,
    last_tick: u64,
}

/// A stream whose node has died, until another node publishes.
struct Orphan {
    died: Duration,
    node: String,
    is_clean: bool,
}

pub struct World {
    pub size: Size,
    pub now: Duration,
    pub random: Random,
    pub nodes: Vec<Node>,
    pub figures: Figures,
    pub store: Store,
    pub is_server_up: bool,
    /// Number of faults that have begun and not ended, and when one last began or ended.
    n_faults: usize,
    fault_at: Option<Duration>,
    queue: BinaryHeap<Entry>,
    n_entries: u64,
    n_processes: u64,
    specs: BTreeMap<String, StreamSpec>,
    consumed: HashMap<String, Consumed>,
    accepted: HashSet<(String, Epoch, u64)>,
    publishers: HashMap<(String, Epoch), (String, u64, Session)>,
    orphans: HashMap<String, Orphan>,
    /// All sessions that nodes have had, by node, and those that cannot renew any more.
    sessions: HashMap<String, HashSet<Session>>,
    ended: HashSet<Member>,
    /// Longest time without a result since the last reset, by stream.
    pub gaps: HashMap<String, Duration>,
    violation: Option<String>,
}

impl World {
    pub fn new(size: Size, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let specs = (0..size.n_streams).map(|idx| {
            let cost = [5.0, 10.0, 15.0][random.below(3)];
            let model = format!("model{}", random.below(5));
            let mut constraints = BTreeMap::new();
            if random.chance(0.1) {
                constraints.insert("site".to_owned(), vec![["a", "b"][random.below(2)].to_owned()]);
            }
            (format!("s{idx:04}"), StreamSpec { description: serde_json::Value::Null, model, cost, memory: 0, constraints })
        });
        let specs: BTreeMap<String, StreamSpec> = specs.collect();
        let mut world = Self {
            now: Duration::ZERO,
            nodes: Vec::new(),
            figures: Figures::default(),
            store: Store::default(),
            is_server_up: true,
            n_faults: 0,
            fault_at: None,
            queue: BinaryHeap::new(),
            n_entries: 0,
            n_processes: 0,
            specs,
            consumed: HashMap::new(),
            accepted: HashSet::new(),
            publishers: HashMap::new(),
            orphans: HashMap::new(),
            sessions: HashMap::new(),
            ended: HashSet::new(),
            gaps: HashMap::new(),
            violation: None,
            random,
            size,
        };
        for (stream, spec) in world.specs.clone() {
            let value = serde_json::to_vec(&spec).unwrap();
            world.store.execute(Duration::ZERO, Request::Create { key: keys::stream(&stream), value, ttl: None }).unwrap();
        }
        world.store.take_changes();
        for idx in 0..world.size.n_nodes {
            // A fifth of the clocks is wrong by up to 6 %.
            let rate = if idx % 5 == 0 { world.random.between(0.94, 1.06) } else { 1.0 };
            let node = world.node(idx, rate);
            world.nodes.push(node);
            world.begin(idx);
        }
        world
    }

    fn node(&mut self, idx: usize, rate: f64) -> Node {
        let name = format!("n{idx:02}");
        let size = [1.0, 1.5, 2.0][idx % 3];
        let facts = Facts {
            labels: BTreeMap::from([("site".to_owned(), ["a", "b"][idx % 2].to_owned())]),
            capacity: Capacity { default: 800.0 * size, models: BTreeMap::new() },
            ..Facts::default()
        };
        let options = Options {
            node: name.clone(),
            session: Session::from_random(self.random.number()),
            facts,
            keep_running: self.size.keep_running,
            timing: Timing::default(),
            policy: Policy::default(),
        };
        Node {
            name,
            agent: Agent::new(options),
            is_alive: true,
            is_paused: false,
            is_cut_off: false,
            process: 0,
            connection: None,
            next_connection: 0,
            rate,
            fence: None,
            runs: BTreeMap::new(),
            spool: VecDeque::new(),
            inbox: Vec::new(),
            watch: None,
            pending: HashMap::new(),
            tick_at: None,
            n_at_once: 0,
            last_arrival: [Duration::ZERO; 2],
        }
    }

    /// Starts the process of a node.
    fn begin(&mut self, idx: usize) {
        self.n_processes += 1;
        self.nodes[idx].process = self.n_processes;
        self.connect_soon(idx);
        self.handle(idx, Input::Tick);
    }

    /// Kills the process of a node.
    pub fn kill(&mut self, idx: usize) {
        let is_clean = self.n_faults == 0 && self.fault_at.is_none_or(|at| self.now - at > Duration::from_secs(20));
        self.fault_at = Some(self.now);
        let node = &mut self.nodes[idx];
        node.is_alive = false;
        node.is_paused = false;
        node.connection = None;
        for stream in std::mem::take(&mut node.runs).into_keys() {
            let owner = assignment(&self.store, &stream).map(|assignment| assignment.owner.node);
            if owner.as_ref() == Some(&node.name) {
                self.orphans.insert(stream, Orphan { died: self.now, node: node.name.clone(), is_clean });
            }
        }
    }

    /// Starts a killed node again, as a new process without memory.
    pub fn restart(&mut self, idx: usize) {
        let rate = self.nodes[idx].rate;
        self.nodes[idx] = self.node(idx, rate);
        self.begin(idx);
    }

    pub fn pause(&mut self, idx: usize) {
        self.nodes[idx].is_paused = true;
        self.fault(true);
    }

    /// Continues a stopped process. Its threads continue in any order: frames first.
    pub fn unpause(&mut self, idx: usize) {
        self.nodes[idx].is_paused = false;
        self.fault(false);
        let mut inbox = std::mem::take(&mut self.nodes[idx].inbox);
        inbox.sort_by_key(|what| !matches!(what, What::Frame { .. }));
        for what in inbox {
            self.happen(what);
        }
    }

    /// Cuts a node off the network. Its client notices after some time.
    pub fn cut(&mut self, idx: usize) {
        self.nodes[idx].is_cut_off = true;
        self.fault(true);
        if let Some(connection) = self.nodes[idx].connection {
            let (process, wait) = (self.nodes[idx].process, self.random.seconds(0.5, 8.0));
            self.push(wait, What::Lost { node: idx, process, connection });
        }
    }

    pub fn heal(&mut self, idx: usize) {
        self.nodes[idx].is_cut_off = false;
        self.fault(false);
        // The old connection does not survive.
        if let Some(connection) = self.nodes[idx].connection {
            let process = self.nodes[idx].process;
            self.push(Duration::ZERO, What::Lost { node: idx, process, connection });
        }
        self.connect_soon(idx);
    }

    /// Stops the coordinator's process. Nodes that can reach its machine notice at once.
    pub fn stop_server(&mut self) {
        self.is_server_up = false;
        self.fault(true);
        for node in 0..self.nodes.len() {
            if let Some(connection) = self.nodes[node].connection.filter(|_| !self.nodes[node].is_cut_off) {
                let (process, wait) = (self.nodes[node].process, self.random.seconds(0.0, 0.1));
                self.push(wait, What::Lost { node, process, connection });
            }
        }
    }

    pub fn start_server(&mut self) {
        self.is_server_up = true;
        self.fault(false);
        self.store.expire(self.now);
        self.store.take_changes();
        for node in 0..self.nodes.len() {
            self.connect_soon(node);
        }
    }

    fn fault(&mut self, begins: bool) {
        self.n_faults = if begins { self.n_faults + 1 } else { self.n_faults - 1 };
        self.fault_at = Some(self.now);
    }

    /// Writes an item for a user.
    pub fn write(&mut self, key: String, value: Option<Vec<u8>>) {
        let Ok(Reply::Read(item)) = self.store.execute(self.now, Request::Read { key: key.clone() }) else { unreachable!() };
        let request = match (item, value) {
            (None, Some(value)) => Request::Create { key, value, ttl: None },
            (Some(item), Some(value)) => Request::Update { key, revision: item.revision, value, ttl: None },
            (Some(item), None) => Request::Delete { key, revision: item.revision },
            (None, None) => return,
        };
        self.store.execute(self.now, request).expect("no other write is in between");
        self.broadcast();
    }

    /// Lets time pass until this time.
    pub fn run_until(&mut self, end: Duration) -> Result<(), String> {
        while let Some(entry) = self.queue.peek() {
            if entry.at > end {
                break;
            }
            let Entry { at, what, .. } = self.queue.pop().expect("it was seen");
            self.now = at;
            self.happen(what);
            if let Some(violation) = self.violation.take() {
                return Err(format!("at {:.3} s: {violation}", self.now.as_secs_f64()));
            }
        }
        self.now = end;
        self.figures.seconds = end.as_secs_f64();
        Ok(())
    }

    /// Whether a live node plans.
    pub fn planner(&self) -> Option<usize> {
        let is_planner = |node: &Node| node.is_alive && node.agent.planner().is_elected(local(self.now, node.rate));
        self.nodes.iter().position(is_planner)
    }

    /// Returns the streams that no live node has published for a while.
    pub fn lost(&self) -> Vec<String> {
        let limit = FRAME * 3;
        let is_lost = |stream: &&String| {
            self.consumed.get(*stream).and_then(|consumed| consumed.last).is_none_or(|last| self.now.saturating_sub(last) > limit)
        };
        self.specs.keys().filter(is_lost).cloned().collect()
    }

    /// Returns the streams that run on several nodes or on none.
    pub fn not_on_one_node(&self) -> Vec<String> {
        let count = |stream: &String| self.nodes.iter().filter(|node| node.is_alive && node.runs.contains_key(stream)).count();
        self.specs.keys().filter(|stream| count(stream) != 1).cloned().collect()
    }

    /// Returns the largest relative difference of a present node's load from the share.
    pub fn imbalance(&self) -> f64 {
        let mut loads: BTreeMap<String, (f64, f64)> = BTreeMap::new();
        for node in &self.nodes {
            loads.insert(node.name.clone(), (0.0, node.agent.membership().facts().capacity.default));
        }
        for (stream, spec) in &self.specs {
            if let Some(assignment) = assignment(&self.store, stream) {
                loads.get_mut(&assignment.owner.node).expect("the node exists").0 += spec.cost;
            }
        }
        let share = loads.values().map(|(load, _)| load).sum::<f64>() / loads.values().map(|(_, capacity)| capacity).sum::<f64>();
        loads.values().map(|(load, capacity)| (load / capacity / share - 1.0).abs()).fold(0.0, f64::max)
    }

    /// Describes what the nodes and the coordinator know of a stream, for the report of a violation.
    pub fn describe(&self, stream: &str) -> String {
        let runs = self.nodes.iter().filter_map(|node| {
            let run = node.runs.get(stream)?;
            Some(format!("{} epoch {} frame {} started {}", node.name, run.epoch.0, run.frame, run.has_started))
        });
        let states = self.nodes.iter().map(|node| {
            let membership = node.agent.membership();
            format!(
                "{} alive {} connection {:?} {:?} session {} fence {:?}",
                node.name,
                node.is_alive,
                node.connection,
                membership.state(),
                membership.member().session.0 % 1000,
                node.fence
            )
        });
        let items = ["assign", "status"].map(|kind| {
            let key = format!("{kind}.{stream}");
            let item = self.store.items(&key).find(|item| item.key == key);
            item.map(|item| String::from_utf8_lossy(&item.value).into_owned())
        });
        format!(
            "{stream}: {items:?}\n  runs: {:?}\n  planner: {:?}\n  {}",
            runs.collect::<Vec<_>>(),
            self.planner(),
            states.collect::<Vec<_>>().join("\n  ")
        )
    }

    /// Streams owned by a node, with their epochs.
    pub fn owned(&self, idx: usize) -> Vec<(String, Epoch)> {
        let of_node = |stream: &String| {
            let assignment = assignment(&self.store, stream).filter(|assignment| assignment.owner.node == self.nodes[idx].name)?;
            Some((stream.clone(), assignment.epoch))
        };
        self.specs.keys().filter_map(of_node).collect()
    }

    fn push(&mut self, wait: Duration, what: What) {
        self.n_entries += 1;
        self.queue.push(Entry { at: self.now + wait, number: self.n_entries, what });
    }

    /// A message takes 1 to 20 ms, sometimes much longer. Messages of one connection keep their order.
    fn push_message(&mut self, node: usize, direction: usize, what: What) {
        let wait = if self.random.chance(0.01) { self.random.seconds(0.02, 0.8) } else { self.random.seconds(0.001, 0.02) };
        let at = (self.now + wait).max(self.nodes[node].last_arrival[direction]);
        self.nodes[node].last_arrival[direction] = at;
        self.push(at - self.now, what);
    }

    fn connect_soon(&mut self, node: usize) {
        let (process, wait) = (self.nodes[node].process, self.random.seconds(0.01, 2.0));
        self.push(wait, What::Connect { node, process });
    }

    fn happen(&mut self, what: What) {
        let (node, process) = match &what {
            What::AtNode { node, process, .. }
            | What::OfClient { node, process, .. }
            | What::Timeout { node, process, .. }
            | What::Lost { node, process, .. }
            | What::Connect { node, process }
            | What::Tick { node, process }
            | What::Frame { node, process, .. } => (*node, *process),
            What::AtServer { node, connection, ticket, request } => {
                let (node, connection, ticket, request) = (*node, *connection, *ticket, request.clone());
                return self.serve(node, connection, ticket, request);
            }
            What::Expire => {
                if self.is_server_up {
                    self.store.expire(self.now);
                    self.broadcast();
                }
                return;
            }
        };
        if !self.nodes[node].is_alive || self.nodes[node].process != process {
            return;
        }
        if self.nodes[node].is_paused {
            self.nodes[node].inbox.push(what);
            return;
        }
        match what {
            What::AtNode { connection, event, .. } => {
                if self.nodes[node].connection == Some(connection) && !self.nodes[node].is_cut_off {
                    self.figures.events += 1;
                    if let Event::Reply { ticket, .. } = &event
                        && self.nodes[node].pending.remove(ticket).is_none()
                    {
                        return;
                    }
                    self.handle(node, Input::Event(event));
                }
            }
            What::OfClient { event, .. } => {
                if let Event::Reply { ticket, .. } = &event
                    && self.nodes[node].pending.remove(ticket).is_none()
                {
                    return;
                }
                self.handle(node, Input::Event(event));
            }
            What::Timeout { ticket, .. } => {
                if self.nodes[node].pending.remove(&ticket).is_some() {
                    let result = Err(Error::Unreachable("timeout".to_owned()));
                    self.handle(node, Input::Event(Event::Reply { ticket, result }));
                }
            }
            What::Lost { connection, .. } => self.lose(node, connection),
            What::Connect { .. } => self.connect(node),
            What::Tick { .. } => {
                self.nodes[node].tick_at = None;
                self.handle(node, Input::Tick);
            }
            What::Frame { stream, run, tick, .. } => self.frame(node, &stream, run, tick),
            What::AtServer { .. } | What::Expire => unreachable!("handled above"),
        }
    }

    fn lose(&mut self, node: usize, connection: u64) {
        if self.nodes[node].connection != Some(connection) {
            return;
        }
        self.nodes[node].connection = None;
        if let Some(ticket) = self.nodes[node].watch {
            self.handle(node, Input::Event(Event::Watch { ticket, change: Change::Interrupted }));
        }
        let pending: Vec<Ticket> = self.nodes[node].pending.keys().copied().collect();
        let mut pending = pending;
        pending.sort();
        for ticket in pending {
            self.nodes[node].pending.remove(&ticket);
            // The request may have been executed, so it does not matter whether the coordinator is down now.
            self.handle(node, Input::Event(Event::Reply { ticket, result: Err(Error::Unreachable("lost".to_owned())) }));
        }
        self.connect_soon(node);
    }

    fn connect(&mut self, node: usize) {
        if self.nodes[node].connection.is_some() {
            return;
        }
        if !self.is_server_up || self.nodes[node].is_cut_off {
            return self.connect_soon(node);
        }
        let connection = self.nodes[node].next_connection;
        self.nodes[node].next_connection += 1;
        self.nodes[node].connection = Some(connection);
        if let Some(ticket) = self.nodes[node].watch {
            self.send_snapshot(node, connection, ticket);
        }
        for published in std::mem::take(&mut self.nodes[node].spool) {
            self.consume(published);
        }
    }

    fn send_snapshot(&mut self, node: usize, connection: u64, ticket: Ticket) {
        let process = self.nodes[node].process;
        self.store.expire(self.now);
        self.broadcast();
        let items: Vec<Change> = self.store.items("").map(Change::Put).collect();
        for change in [Change::Begin].into_iter().chain(items).chain([Change::Current]) {
            self.push_message(node, 1, What::AtNode { node, process, connection, event: Event::Watch { ticket, change } });
        }
    }

    /// Gives an input to the agent of a node, and executes its outputs.
    fn handle(&mut self, idx: usize, input: Input) {
        let now = local(self.now, self.nodes[idx].rate);
        let outputs = self.nodes[idx].agent.handle(now, input);
        for output in outputs {
            match output {
                Output::Submit { ticket, request } => self.submit(idx, ticket, request),
                Output::Start { stream, epoch, .. } => {
                    self.n_entries += 1;
                    let number = self.n_entries;
                    let run = Run { number, epoch, frame: 0, has_started: false, is_reported: false };
                    self.nodes[idx].runs.insert(stream.clone(), run);
                    // The camera's frames have the same times on all nodes.
                    let wait = self.random.seconds(0.4, 1.4);
                    let process = self.nodes[idx].process;
                    self.push(wait, What::Frame { node: idx, process, stream, run: number, tick: u64::MAX });
                }
                Output::SetEpoch { stream, epoch } => {
                    let run = self.nodes[idx].runs.get_mut(&stream).expect("it runs");
                    (run.epoch, run.frame, run.is_reported) = (epoch, 0, false);
                }
                Output::Change { .. } | Output::Interrupted { .. } => {}
                Output::Stop { stream } => {
                    self.nodes[idx].runs.remove(&stream).expect("it runs");
                }
                Output::Fence(deadline) => self.nodes[idx].fence = deadline,
                Output::Note(Note::Decided(decision)) => {
                    if matches!(decision.reason, Reason::Balance | Reason::Drain) {
                        self.figures.moves += 1;
                    }
                    // The first epoch of a stream is the revision of its specification: here, its position. A later one means that the
                    // stream had a node that died.
                    let first = decision.stream[1..].parse::<u64>().unwrap() + 1;
                    if decision.reason == Reason::NoNode && decision.assignment.epoch.0 > first {
                        self.figures.needed_moves += 1;
                    }
                }
                Output::Note(_) => {}
            }
        }
        let next = self.nodes[idx].agent.next_tick(now);
        // A tick may lead to another one at once, for example to join again after the lease was lost, but not again and again.
        self.nodes[idx].n_at_once = if next > now { 0 } else { self.nodes[idx].n_at_once + 1 };
        if self.nodes[idx].n_at_once > MAX_AT_ONCE {
            self.violate(format!("{}: ticks have no effect and are repeated at once", self.nodes[idx].name));
        }
        let next = next.max(now + Duration::from_millis(1));
        let at = Duration::from_secs_f64(next.as_secs_f64() / self.nodes[idx].rate) + Duration::from_micros(10);
        if self.nodes[idx].tick_at.is_none_or(|tick_at| at < tick_at) {
            self.nodes[idx].tick_at = Some(at);
            let process = self.nodes[idx].process;
            self.push(at.saturating_sub(self.now), What::Tick { node: idx, process });
        }
    }

    fn submit(&mut self, node: usize, ticket: Ticket, request: Request) {
        let process = self.nodes[node].process;
        if let Request::Watch { .. } = request {
            self.nodes[node].watch = Some(ticket);
            if let Some(connection) = self.nodes[node].connection {
                self.send_snapshot(node, connection, ticket);
            }
            return;
        }
        self.figures.requests += 1;
        self.nodes[node].pending.insert(ticket, request.clone());
        self.push(TIMEOUT, What::Timeout { node, process, ticket });
        match self.nodes[node].connection {
            Some(connection) => self.push_message(node, 0, What::AtServer { node, connection, ticket, request }),
            None if !self.is_server_up && !self.nodes[node].is_cut_off => {
                let result = Err(Error::Down("refused".to_owned()));
                let wait = self.random.seconds(0.001, 0.02);
                self.push(wait, What::OfClient { node, process, event: Event::Reply { ticket, result } });
            }
            // The connection is being opened, or the network is cut.
            None => {}
        }
    }

    /// The coordinator executes a request.
    fn serve(&mut self, node: usize, connection: u64, ticket: Ticket, request: Request) {
        let is_connected = self.nodes[node].connection == Some(connection) && !self.nodes[node].is_cut_off;
        if !is_connected || !self.is_server_up || !self.nodes[node].is_alive {
            return;
        }
        let before = request.key().strip_prefix(keys::ASSIGN).and_then(|stream| assignment(&self.store, stream));
        let ttl = match &request {
            Request::Create { ttl, .. } | Request::Update { ttl, .. } => *ttl,
            _ => None,
        };
        let key = request.key().to_owned();
        let result = self.store.execute(self.now, request);
        if let (Some(before), Ok(_)) = (before, &result) {
            self.check_assignment(&key, &before);
        }
        if let (Some(ttl), Ok(_)) = (ttl, &result) {
            // A server looks for expired items now and then.
            let wait = ttl + self.random.seconds(0.0, 0.5);
            self.push(wait, What::Expire);
        }
        self.broadcast();
        let process = self.nodes[node].process;
        self.push_message(node, 1, What::AtNode { node, process, connection, event: Event::Reply { ticket, result } });
    }

    /// A stream gets another owner: the earlier owner is named in the assignment, or its session has ended. An interruption that was not
    /// reported remains in the assignment.
    fn check_assignment(&mut self, key: &str, before: &Assignment) {
        let stream = key.strip_prefix(keys::ASSIGN).expect("the caller checked it");
        let Some(after) = assignment(&self.store, stream) else { return };
        let has_result = before.has_result(status(&self.store, stream).as_ref());
        if before.interruption.is_some() && !has_result && after.interruption != before.interruption {
            self.violate(format!("{stream}: the interruption {:?} is lost: {after:?}", before.interruption));
        }
        // The end of a hand-over changes neither the owner nor the epoch. The earlier owner ran until the first result, or has ended.
        if let Some(from) = &before.from
            && after == (Assignment { from: None, interruption: after.interruption.clone(), ..before.clone() })
        {
            let named = after.interruption.as_ref().map(|interruption| &interruption.earlier);
            let is_named = named == Some(from) && self.has_ended(&from.owner);
            // Without an interruption, the new owner has a result.
            let is_allowed = if before.interruption == after.interruption { has_result } else { is_named };
            if !is_allowed {
                self.violate(format!("{stream}: a hand-over ends without a result or a gap: {before:?}, then {after:?}"));
            }
            return;
        }
        if after.epoch <= before.epoch {
            self.violate(format!("{stream}: epoch {:?} follows {:?}", after.epoch, before.epoch));
        }
        let is_from = after.from.as_ref().is_some_and(|from| from.owner == before.owner);
        if after.owner != before.owner && !is_from && !self.has_ended(&before.owner) {
            self.violate(format!("{stream}: {:?} was replaced by {:?} although its session has not ended", before.owner, after.owner));
        }
        // Without an owner that runs the stream on, results are missing, and the later owner must be able to report it.
        let earlier = after.interruption.as_ref().map(|interruption| (&interruption.earlier.owner, interruption.earlier.epoch));
        let is_named = earlier == Some((&before.owner, before.epoch)) || before.interruption.is_some() && !has_result;
        if after.owner != before.owner && after.from.is_none() && !is_named {
            self.violate(format!(
                "{stream}: {:?} was replaced by {:?} without a gap, although nothing runs the stream",
                before.owner, after.owner
            ));
        }
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
        let sessions = self.sessions.entry(node.to_owned()).or_default();
        sessions.insert(record.session);
        let is_ended = |session: &&Session| **session != record.session || record.presence != Presence::Present;
        let ended = sessions.iter().filter(is_ended).map(|session| Member { node: node.to_owned(), session: *session });
        self.ended.extend(ended);
    }

    fn broadcast(&mut self) {
        for change in self.store.take_changes() {
            self.note_sessions(&change);
            for node in 0..self.nodes.len() {
                let (connection, watch) = (self.nodes[node].connection, self.nodes[node].watch);
                if let (Some(connection), Some(ticket)) = (connection, watch) {
                    let (process, event) = (self.nodes[node].process, Event::Watch { ticket, change: change.clone() });
                    self.push_message(node, 1, What::AtNode { node, process, connection, event });
                }
            }
        }
    }

    /// A frame of a camera arrives at a node.
    fn frame(&mut self, idx: usize, stream: &str, number: u64, tick: u64) {
        let now = local(self.now, self.nodes[idx].rate);
        let node = &mut self.nodes[idx];
        let Some(run) = node.runs.get_mut(stream).filter(|run| run.number == number) else { return };
        run.has_started = true;
        // Frames of a camera have numbers that are the same on all nodes. The first frame comes at any time.
        let this_tick = self.now.as_nanos() as u64 / FRAME.as_nanos() as u64;
        let tick = if tick == u64::MAX { this_tick } else { tick };
        let next = FRAME * u32::try_from(tick + 1).unwrap();
        let process = node.process;
        let is_permitted = node.fence.is_some_and(|deadline| now < deadline);
        let mut report = None;
        if is_permitted {
            let publisher = (node.name.clone(), node.process, node.agent.membership().member().session);
            let published = Published { stream: stream.to_owned(), epoch: run.epoch, frame: run.frame, publisher, moment: self.now, tick };
            run.frame += 1;
            if !std::mem::replace(&mut run.is_reported, true) {
                report = Some(run.epoch);
            }
            self.publish(idx, published);
        }
        let wait = next.saturating_sub(self.now).max(Duration::from_millis(1));
        self.push(wait, What::Frame { node: idx, process, stream: stream.to_owned(), run: number, tick: tick + 1 });
        if let Some(epoch) = report {
            self.handle(idx, Input::Stream { stream: stream.to_owned(), epoch, event: StreamEvent::Running });
        }
    }

    fn publish(&mut self, idx: usize, published: Published) {
        let Published { stream, epoch, publisher, .. } = &published;
        let member = Member { node: publisher.0.clone(), session: publisher.2 };
        if !self.size.keep_running && self.has_ended(&member) {
            let text = format!("{stream}: {} publishes in epoch {} although its session has ended", member.node, epoch.0);
            return self.violate(text);
        }
        let known = self.publishers.entry((stream.clone(), *epoch)).or_insert_with(|| publisher.clone());
        if (&known.0, known.1) != (&publisher.0, publisher.1) {
            let text = format!("{stream}: {known:?} and {publisher:?} publish in epoch {}", epoch.0);
            return self.violate(text);
        }
        if self.nodes[idx].connection.is_some() && self.is_server_up && !self.nodes[idx].is_cut_off {
            self.consume(published);
        } else {
            self.nodes[idx].spool.push_back(published);
        }
    }

    /// The consumer gets a result.
    fn consume(&mut self, published: Published) {
        let Published { stream, epoch, frame, publisher, moment, tick } = published;
        let consumed = self.consumed.entry(stream.clone()).or_default();
        if epoch < consumed.epoch {
            self.figures.refused += 1;
            return;
        }
        if !self.accepted.insert((stream.clone(), epoch, frame)) {
            return self.violate(format!("{stream}: the result {}/{frame} was accepted twice", epoch.0));
        }
        let is_new_epoch = epoch > consumed.epoch;
        consumed.epoch = epoch;
        self.figures.accepted += 1;
        if is_new_epoch && tick <= consumed.last_tick && consumed.last.is_some() {
            self.figures.frames_in_two_epochs += 1;
        }
        if let Some(last) = consumed.last {
            let gap = self.gaps.entry(stream.clone()).or_default();
            *gap = (*gap).max(moment.saturating_sub(last));
        }
        consumed.last = Some(moment.max(consumed.last.unwrap_or_default()));
        consumed.last_tick = consumed.last_tick.max(tick);
        if let Some(orphan) = self.orphans.get(&stream)
            && (orphan.node != publisher.0 || moment > orphan.died)
        {
            let seconds = (moment.saturating_sub(orphan.died)).as_secs_f64();
            if moment > orphan.died {
                if orphan.is_clean && self.fault_at == Some(orphan.died) {
                    self.figures.recoveries.push(seconds);
                }
                self.figures.recoveries_all.push(seconds);
                self.orphans.remove(&stream);
            }
        }
    }

    fn violate(&mut self, text: String) {
        self.violation.get_or_insert(text);
    }
}

/// The time of a node's own clock.
fn local(now: Duration, rate: f64) -> Duration {
    Duration::from_secs_f64(now.as_secs_f64() * rate)
}

fn assignment(store: &Store, stream: &str) -> Option<Assignment> {
    item(store, &keys::assign(stream))
}

fn status(store: &Store, stream: &str) -> Option<Status> {
    item(store, &keys::status(stream))
}

fn item<T: serde::de::DeserializeOwned>(store: &Store, key: &str) -> Option<T> {
    let item = store.items(key).find(|item| item.key == key)?;
    serde_json::from_slice(&item.value).ok()
}
