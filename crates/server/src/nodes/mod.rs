//! The streams of the server, and of all nodes if there are several: this node takes part, and shows and controls all of them.
//!
//! - `alone`: a server without other nodes, whose coordinator is in its own process.
//! - `member`: runs the streams that were assigned to this node. `load`: what it can do and does.
//! - `results`: the results that all nodes have published, and the gaps in them.
//! - `directory`: the items that all nodes share. This module: what clients see and change of them.
//! - `descriptions`: descriptions of streams in these items. `sealed`: seals all items with the [`key`] of the nodes. `migration`: seals the
//!   items of a group that were not sealed.
//!
//! The crate `roiflow-nodes` decides which node runs which stream. `http::peers` passes requests about a stream on to its node.

pub(crate) mod alone;
mod descriptions;
mod directory;
pub mod key;
mod load;
mod member;
mod migration;
mod results;
mod sealed;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use roiflow_nodes::coordinator::{Coordinator, Error as CoordinatorError, REQUEST_TIMEOUT, Reply, Request, Revision};
use roiflow_nodes::fence::Fence;
use roiflow_nodes::placement::Policy as PlacementPolicy;
use roiflow_nodes::timing::Timing;
use roiflow_nodes::types::{Drain, Facts, Presence, Session, StreamState};
use roiflow_nodes::view::Items;
use roiflow_nodes::{agent, keys};
use schemars::JsonSchema;
use serde::Serialize;

use self::descriptions::{Descriptions, Protection, model};
use self::directory::Directory;
use self::key::Key;
use self::load::Meter;
use self::member::{Member, Streams};
pub use self::migration::seal_group;
pub use self::results::{Lines, ResultLog};
use self::sealed::{Health, Sealed};
use crate::backend::Prepared;
use crate::error::{Error, Result};
use crate::events::EventKind;
use crate::policy;
use crate::registry::Registry;
use crate::store::Store;
use crate::stream::{Change, State, StreamSpec, StreamView};

/// How often a change is tried again when another node has changed the same stream meanwhile.
const MAX_ATTEMPTS: usize = 5;
/// How long a stream may take to run on the node to which it is moved.
const MAX_MOVE: Duration = Duration::from_secs(120);
/// How long a request waits for the store of a server without other nodes.
const MAX_DISK: Duration = Duration::from_secs(300);
/// How long a client waits until a server without other nodes has started, changed or stopped a stream.
const MAX_OUTCOME: Duration = Duration::from_secs(30);

/// Settings of this node.
#[derive(Debug)]
pub struct Settings {
    /// Name of this node.
    pub name: String,
    /// Name of the group of the nodes.
    pub group: String,
    /// Labels for the field `needs` of streams.
    pub labels: BTreeMap<String, String>,
    /// Frames per second that this node can process; `None`: it is measured.
    pub capacity: Option<f64>,
    /// Names of the devices that run models.
    pub devices: Vec<String>,
    /// Address at which the other nodes reach the server of this node.
    pub address: String,
    /// Version of the program.
    pub version: String,
    /// Whether the coordinator is a cluster of servers: [`Timing::clustered`]. It must be the same on all nodes.
    pub is_clustered: bool,
    /// Whether streams run on after the lease of this node has ended.
    pub keep_running: bool,
    /// The key that the nodes share.
    pub key: Option<Key>,
    /// The results that all nodes have published; `None`: they are not in one place that this node can read.
    pub results: Option<Arc<dyn ResultLog>>,
}

/// This node and what it knows of the others. See the module.
#[derive(Debug)]
pub struct Nodes {
    name: String,
    directory: Directory,
    member: Member,
    registry: Registry,
    descriptions: Descriptions,
    key: Option<Arc<Key>>,
    /// Whether the key of this node fits.
    health: Arc<Health>,
    fence: Fence,
    results: Option<Arc<dyn ResultLog>>,
    /// Keeps the streams; `None`: the other nodes do.
    store: Option<Store>,
    /// Held while a stream is added, so that clients together do not add more streams than allowed.
    adding: Mutex<()>,
    /// Whether each stream of the store was started once.
    has_started: AtomicBool,
}

/// Which node runs a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This node.
    Here,
    /// Another node.
    Other {
        /// Its name.
        node: String,
        /// Address of its server.
        url: String,
    },
    /// No node, or there is no such stream.
    None,
}

/// A node for clients.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct NodeView {
    /// Name of the node.
    pub name: String,
    /// What the node is doing.
    pub state: NodeState,
    /// Whether this node answers the request.
    pub is_this: bool,
    /// Whether this node decides which node runs which stream.
    pub is_planner: bool,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Frames per second that it can process.
    pub capacity: f64,
    /// Frames per second that its streams need.
    pub assigned: f64,
    /// Frames per second that it processes.
    pub fps: f64,
    /// Used part of its processors, 0 to 1.
    pub processor: f64,
    /// Used memory in bytes.
    pub memory_used: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// Its devices.
    pub devices: Vec<String>,
    /// Address of its server.
    pub address: Option<String>,
    /// Version of its program.
    pub version: String,
    /// Names of its streams.
    pub streams: Vec<String>,
}

/// What a node is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// It runs streams.
    Present,
    /// Its streams move to other nodes, and it gets no new ones.
    Draining,
    /// It has left, and can be started again.
    Left,
    /// It does not answer, and its streams run elsewhere.
    Dead,
}

impl Nodes {
    /// Joins the other nodes. `member` and `directory` are two clients of the same coordinator: the first for the streams of this node, the
    /// second for clients.
    ///
    /// # Errors
    /// Returns an error if the name is not valid, or a thread cannot be started.
    pub fn join(
        member: Box<dyn Coordinator>,
        directory: Box<dyn Coordinator>,
        registry: Registry,
        settings: Settings,
    ) -> Result<Self, String> {
        let Settings { is_clustered, name, group, labels, capacity, devices, address, version, keep_running, key, results } = settings;
        if !keys::is_name(&name) {
            let max = keys::MAX_NAME;
            return Err(format!(
                "--name: expected 1 to {max} letters, digits, `-`, `_` or `.`, with no dot at the begin or end and no two dots together, \
                 got `{}`",
                name.escape_debug()
            ));
        }
        let (key, health) = (key.map(Arc::new), Arc::new(Health::default()));
        let descriptions = Descriptions(if key.is_some() { Protection::Sealed } else { Protection::None });
        let sealed = |inner, health| Box::new(Sealed::new(inner, key.clone(), &group, health));
        let (member, directory) = (sealed(member, None), sealed(directory, Some(health.clone())));
        let meter = Meter::new(capacity);
        let facts = Facts { labels, capacity: meter.first(), devices, address: Some(address), version, ..Facts::default() };
        let options = agent::Options {
            node: name,
            session: random_session()?,
            facts,
            keep_running,
            timing: if is_clustered { Timing::clustered() } else { Timing::default() },
            policy: PlacementPolicy::default(),
        };
        let nodes = Self::start(member, directory, registry, (options, meter, descriptions, results))?;
        Ok(Self { key, health, ..nodes })
    }

    fn start(
        member: Box<dyn Coordinator>,
        directory: Box<dyn Coordinator>,
        registry: Registry,
        (options, meter, descriptions, results): (agent::Options, Meter, Descriptions, Option<Arc<dyn ResultLog>>),
    ) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("start the threads of the node failed: {error}");
        let (name, fence) = (options.node.clone(), Fence::default());
        registry.start_retries().map_err(failed)?;
        // A coordinator in this process always replies, but the disk of its store may be slow.
        let max_wait = if descriptions.0 == Protection::Alone { MAX_DISK } else { REQUEST_TIMEOUT * 2 };
        let directory = Directory::start(directory, max_wait).map_err(failed)?;
        let streams = Streams::new(registry.clone(), descriptions, results.clone());
        let member = Member::start(member, options, streams, fence.clone(), meter).map_err(failed)?;
        Ok(Self {
            name,
            directory,
            member,
            registry,
            descriptions,
            key: None,
            health: Arc::default(),
            fence,
            results,
            store: None,
            adding: Mutex::default(),
            has_started: AtomicBool::new(false),
        })
    }

    /// Whether there are no other nodes.
    pub(crate) fn is_alone(&self) -> bool {
        self.descriptions.0 == Protection::Alone
    }

    /// Name of this node; `None` if there are no other nodes.
    pub(crate) fn name_among_nodes(&self) -> Option<String> {
        Some(self.name.clone()).filter(|_| !self.is_alone())
    }

    /// The streams that run on this node.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Name of this node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether results of a stream may be published at this time. Called for each result with what [`Nodes::generation`] was when the stream has
    /// started, so it is fast.
    pub fn permit(&self) -> impl Fn(u64) -> bool + Send + Sync + 'static {
        let fence = self.fence.clone();
        move |generation| fence.permits(member::now(), generation)
    }

    /// Changes when this node loses its right to run the streams that it has.
    pub fn generation(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let fence = self.fence.clone();
        move || fence.generation()
    }

    /// Stops the streams of this node, and tells the other nodes to start them. Returns at the latest at the deadline.
    pub fn leave(&self, deadline: Instant) {
        self.member.leave(deadline);
    }

    /// Whether this node sees the items of the others. Without other nodes: whether each stream was started once.
    pub(crate) fn is_ready(&self) -> bool {
        if !self.is_alone() {
            return self.directory.is_current();
        }
        // A stream that is added later does not make the server unready.
        if !self.has_started.load(Ordering::Acquire) && self.stream_names().iter().all(|name| self.member.has_placed(name)) {
            self.has_started.store(true, Ordering::Release);
        }
        self.has_started.load(Ordering::Acquire)
    }

    /// Why the store of the streams cannot be written; `None`: it can, or there is none.
    pub(crate) fn store_failure(&self) -> Option<String> {
        self.store.as_ref()?.failure()
    }

    /// The results that all nodes have published; `None`: they are not in one place that this node can read.
    pub(crate) fn results(&self) -> Option<&dyn ResultLog> {
        self.results.as_deref()
    }

    /// The key that the nodes share.
    pub(crate) fn key(&self) -> Option<&Key> {
        self.key.as_deref()
    }

    /// Returns an error if the key of this node does not fit, so that it sees no items.
    pub(crate) fn check_fit(&self) -> Result<()> {
        self.health.unfit().map_or(Ok(()), |reason| Err(Error::new(503, "key_does_not_fit", reason)))
    }

    /// Number of shared items that were refused, because they were not sealed with the key of the nodes.
    pub(crate) fn n_refused_items(&self) -> u64 {
        self.health.n_refused()
    }

    /// Which node runs a stream. In a hand-over, the earlier owner runs it until the later one has a result.
    pub(crate) fn owner(&self, stream: &str) -> Owner {
        self.directory.read(|items| {
            let Some(node) = runs_on(items, stream) else { return Owner::None };
            if node == self.name {
                return Owner::Here;
            }
            let address = items.nodes.get(node).and_then(|record| record.value.facts.address.clone());
            address.map_or(Owner::None, |url| Owner::Other { node: node.to_owned(), url })
        })
    }

    /// The other nodes that should answer, with their addresses.
    pub(crate) fn others(&self) -> Vec<(String, String)> {
        self.directory.read(|items| {
            let present = items.nodes.iter().filter(|(name, record)| **name != self.name && record.value.presence == Presence::Present);
            present.filter_map(|(name, record)| Some((name.clone(), record.value.facts.address.clone()?))).collect()
        })
    }

    /// All nodes, sorted by name.
    pub(crate) fn views(&self) -> Vec<NodeView> {
        self.directory.read(|items| {
            let view = |(name, record): (&String, &roiflow_nodes::view::Versioned<roiflow_nodes::NodeRecord>)| {
                let facts = &record.value.facts;
                let streams: Vec<&String> = items.streams.keys().filter(|stream| runs_on(items, stream) == Some(name)).collect();
                let state = match record.value.presence {
                    Presence::Left => NodeState::Left,
                    Presence::Dead => NodeState::Dead,
                    Presence::Present if items.drains.contains_key(name) => NodeState::Draining,
                    Presence::Present => NodeState::Present,
                };
                NodeView {
                    name: name.clone(),
                    state,
                    is_this: *name == self.name,
                    is_planner: items.lock.as_ref().is_some_and(|lock| lock.value.planner.node == *name),
                    labels: facts.labels.clone(),
                    capacity: facts.capacity.default,
                    // The sum of no numbers is -0.
                    assigned: streams.iter().map(|stream| items.streams[*stream].value.cost).sum::<f64>() + 0.0,
                    fps: facts.load.fps,
                    processor: facts.load.processor,
                    memory_used: facts.load.memory,
                    memory: facts.memory,
                    devices: facts.devices.clone(),
                    address: facts.address.clone(),
                    version: facts.version.clone(),
                    streams: streams.into_iter().cloned().collect(),
                }
            };
            items.nodes.iter().map(view).collect()
        })
    }

    /// Names of all streams.
    pub(crate) fn stream_names(&self) -> Vec<String> {
        self.directory.read(|items| items.streams.keys().cloned().collect())
    }

    /// A view of a stream from the shared items, without asking its node.
    ///
    /// # Errors
    /// Returns that there is no such stream.
    pub(crate) fn known(&self, name: &str) -> Result<StreamView> {
        self.placeholder(name).ok_or_else(|| self.unknown_stream(name))
    }

    /// A view of a stream from the shared items, without asking its node; `None`: there is no such stream.
    pub(crate) fn placeholder(&self, name: &str) -> Option<StreamView> {
        let (item, node, status) = self.directory.read(|items| {
            let status = items.statuses.get(name).map(|status| status.value.clone());
            Some((items.streams.get(name)?.value.clone(), runs_on(items, name).map(str::to_owned), status))
        })?;
        let (spec, mut error) = match self.descriptions.read(name, &item) {
            Ok(spec) => (policy::shown(&spec), status.as_ref().and_then(|status| status.reason.clone())),
            Err(error) => (unknown(name), Some(error)),
        };
        let state = match status.map(|status| status.state) {
            Some(StreamState::Running) => State::Running,
            Some(StreamState::Waiting) => State::Reconnecting,
            Some(StreamState::Failed) => State::Failed,
            Some(StreamState::Starting) | None => State::Starting,
        };
        if node.is_none() && !self.is_alone() {
            error = error.or_else(|| Some(self.directory.read(|items| why_no_node(items, &item))));
        }
        let node = node.filter(|_| !self.is_alone());
        Some(StreamView { node, ..StreamView::unknown(spec, state, error) })
    }

    /// Adds a stream, which a node starts within seconds. A server without other nodes has started it when this returns.
    ///
    /// # Errors
    /// Returns an error if the stream is invalid, or the coordinator does not answer.
    pub(crate) fn add(&self, spec: &StreamSpec) -> Result<StreamView> {
        self.check_fit()?;
        self.registry.check_rules(spec)?;
        let item = self.descriptions.write(spec)?;
        let exists = || {
            let message = format!("stream `{}`: expected a new name, got one that exists. Change or remove that stream first", spec.name);
            Error::new(409, "stream_exists", message)
        };
        let check_place = || {
            let names = self.stream_names();
            if names.contains(&spec.name) { Err(exists()) } else { self.registry.check_number(names.len()) }
        };
        check_place()?;
        let facts = self.directory.read(|items| items.nodes.get(&self.name).map(|record| record.value.facts.clone()));
        let may_run_here = self.is_alone() || facts.is_some_and(|facts| item.allows(&self.name, &facts));
        let _prepared = may_run_here.then(|| self.registry.check_spec(spec)).transpose()?;
        let adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        check_place()?;
        let request = Request::Create { key: keys::stream(&spec.name), value: json(&item)?, ttl: None };
        let _on_behalf = self.member.on_behalf(&spec.name);
        self.directory.call(request).map_err(|error| match error {
            CoordinatorError::Conflict => exists(),
            error => self.failed(&error),
        })?;
        drop(adding);
        if self.is_alone() {
            self.wait_for(&spec.name, Some(&item))?;
            self.registry.events().add(&spec.name, EventKind::Added, format!("pipeline {}", spec.pipeline));
        }
        let own = self.registry.view(&spec.name).ok().filter(|_| self.is_alone());
        let view = own.or_else(|| self.placeholder(&spec.name));
        Ok(view.unwrap_or_else(|| StreamView::unknown(policy::shown(spec), State::Starting, None)))
    }

    /// Changes a stream.
    ///
    /// # Errors
    /// Returns what is wrong with the change, or that the coordinator does not answer. A server without other nodes also returns why the
    /// running stream cannot be changed.
    pub(crate) fn change(&self, name: &str, change: &Change) -> Result<StreamView> {
        let _on_behalf = self.member.on_behalf(name);
        let mut before = None;
        let item = self.update(name, |item| {
            let described = self.descriptions.read(name, item).map_err(Error::internal)?;
            let after = policy::with_credentials(described.changed(change.clone()), &described);
            // A change without an effect needs no preparation. The models are held until the stream has them.
            let prepared = if after == described { Prepared::nothing() } else { self.registry.check_spec(&after)? };
            before = Some((item.clone(), prepared));
            self.descriptions.write(&after)
        })?;
        if !self.is_alone() {
            return self.known(name);
        }
        self.wait_for(name, Some(&item))?;
        if let (Some(error), Some((before, _prepared))) = (self.member.take_refusal(name), before) {
            // The stream must have the description that is in the store.
            let restored = self.update(name, |present| if *present == item { Ok(before.clone()) } else { Err(changed_meanwhile()) });
            if let Err(failed) = restored {
                tracing::warn!("the stream `{name}` runs on with its earlier description, which is not the one in the store: {failed}");
            }
            return Err(error);
        }
        self.registry.view(name).or_else(|_| self.known(name))
    }

    /// Removes a stream. A server without other nodes has completed its frames in flight when this returns.
    ///
    /// # Errors
    /// Returns that there is no such stream, or that the coordinator does not answer.
    pub(crate) fn remove(&self, name: &str) -> Result<StreamView> {
        // The node of the stream gets this request, and knows its counters.
        let own = self.registry.follow(name);
        let known = self.known(name);
        let _on_behalf = self.member.on_behalf(name);
        for _ in 0..MAX_ATTEMPTS {
            let key = keys::stream(name);
            let Some((_, revision)) = self.read(&key)? else { return Err(self.unknown_stream(name)) };
            match self.directory.call(Request::Delete { key, revision }) {
                Err(CoordinatorError::Conflict) => {}
                Err(error) => return Err(self.failed(&error)),
                Ok(_) => {
                    if self.is_alone() {
                        self.wait_for(name, None)?;
                    }
                    let last = match own {
                        Some(own) => StreamView { node: self.name_among_nodes(), ..own() },
                        None => known?,
                    };
                    return Ok(StreamView { state: State::Ended, ..last });
                }
            }
        }
        Err(changed_meanwhile())
    }

    /// Waits until a stream runs as this item says, or no longer runs. Stops waiting when another client changes the stream meanwhile. Only for a
    /// server without other nodes.
    ///
    /// # Errors
    /// Returns that the stream takes too long.
    fn wait_for(&self, name: &str, item: Option<&roiflow_nodes::StreamSpec>) -> Result<()> {
        // The item as it is read: numbers of its description may differ in the last digit.
        let item: Option<roiflow_nodes::StreamSpec> = match item {
            Some(item) => Some(serde_json::from_slice(&json(item)?).map_err(|error| Error::internal(error.to_string()))?),
            None => None,
        };
        let wanted = item.as_ref().map(|item| self.descriptions.read(name, item)).transpose().map_err(Error::internal)?;
        let is_superseded = || self.directory.read(|items| items.streams.get(name).map(|item| &item.value) != item.as_ref());
        let deadline = Instant::now() + MAX_OUTCOME;
        while !self.member.is_settled(name, wanted.as_ref(), Duration::from_millis(100)) {
            if is_superseded() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let message = format!(
                    "stream `{name}`: the change was made, but the stream has not started or stopped within {} s",
                    MAX_OUTCOME.as_secs()
                );
                return Err(Error::new(504, "stream_slow", message));
            }
        }
        Ok(())
    }

    /// Moves a stream to a node. Afterwards it may move again, if that node fails or the load is uneven.
    ///
    /// # Errors
    /// Returns that there is no such stream or node, or that the coordinator does not answer.
    pub(crate) fn move_to(self: &Arc<Self>, name: &str, node: &str) -> Result<StreamView> {
        self.check_node(node)?;
        let record = self.directory.read(|items| items.nodes.get(node).map(|record| record.value.clone()));
        let Some(facts) = record.filter(|record| record.presence == Presence::Present).map(|record| record.facts) else {
            return Err(Error::value("node_absent", "node", "one that is present", format!("`{node}`"), "Start it, or name another one"));
        };
        let only = |item: &roiflow_nodes::StreamSpec| {
            let mut moved = item.clone();
            moved.constraints.insert("node".to_owned(), vec![node.to_owned()]);
            moved
        };
        self.update(name, |item| {
            // The description has the constraints of the user, without those of a move in progress.
            let described = self.descriptions.read(name, item).map_err(Error::internal)?;
            if !self.descriptions.write(&described)?.allows(node, &facts) {
                let advice = "Change the field `needs` of the stream";
                return Err(Error::value("not_allowed", "node", "one that the stream allows", format!("`{node}`"), advice));
            }
            Ok(only(item))
        })?;
        // The constraint holds until the stream runs there, so that the planner moves it.
        let (nodes, name, node) = (self.clone(), name.to_owned(), node.to_owned());
        let of_thread = name.clone();
        let release = move || {
            let end = Instant::now() + MAX_MOVE;
            while Instant::now() < end && nodes.directory.read(|items| runs_on(items, &of_thread) != Some(&*node)) {
                std::thread::sleep(Duration::from_millis(200));
            }
            let released = nodes
                .update(&of_thread, |item| nodes.descriptions.write(&nodes.descriptions.read(&of_thread, item).map_err(Error::internal)?));
            if let Err(error) = released {
                tracing::warn!("the stream `{of_thread}` stays bound to the node `{node}`: {error}");
            }
        };
        std::thread::Builder::new().name("roiflow-move".to_owned()).spawn(release).map_err(|error| Error::internal(error.to_string()))?;
        self.known(&name)
    }

    /// Moves all streams away from a node, or ends that.
    ///
    /// # Errors
    /// Returns that there is no such node, or that the coordinator does not answer.
    pub(crate) fn drain(&self, node: &str, drains: bool) -> Result<NodeView> {
        self.check_node(node)?;
        let key = keys::drain(node);
        let found = self.read(&key)?;
        let request = match (found, drains) {
            (None, true) => {
                Request::Create { key, value: json(&Drain { reason: format!("asked for at the node {}", self.name) })?, ttl: None }
            }
            (Some((_, revision)), false) => Request::Delete { key, revision },
            _ => return self.node_view(node),
        };
        self.directory.call(request).map_err(|error| self.failed(&error))?;
        let mut view = self.node_view(node)?;
        // The change may not have come back to this node.
        view.state = match view.state {
            NodeState::Present if drains => NodeState::Draining,
            NodeState::Draining if !drains => NodeState::Present,
            other => other,
        };
        Ok(view)
    }

    fn node_view(&self, node: &str) -> Result<NodeView> {
        self.views().into_iter().find(|view| view.name == node).ok_or_else(|| Error::new(404, "unknown_node", "the node has left"))
    }

    fn check_node(&self, node: &str) -> Result<()> {
        self.check_fit()?;
        let names: Vec<String> = self.directory.read(|items| items.nodes.keys().cloned().collect());
        if names.iter().any(|name| name == node) {
            return Ok(());
        }
        let shown: String = node.chars().take(100).map(|c| if c.is_control() { '?' } else { c }).collect();
        let expected = format!("one of {}", names.join(", "));
        Err(Error::value("unknown_node", "node", expected, format!("`{shown}`"), "`GET /api/nodes` lists the nodes").with_status(404))
    }

    fn read(&self, key: &str) -> Result<Option<(Vec<u8>, Revision)>> {
        match self.directory.call(Request::Read { key: key.to_owned() }) {
            Ok(Reply::Read(found)) => Ok(found.map(|item| (item.value, item.revision))),
            Ok(Reply::Written(_)) => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Replaces the item of a stream, and returns the new one.
    fn update(
        &self,
        name: &str,
        mut change: impl FnMut(&roiflow_nodes::StreamSpec) -> Result<roiflow_nodes::StreamSpec>,
    ) -> Result<roiflow_nodes::StreamSpec> {
        let key = keys::stream(name);
        for _ in 0..MAX_ATTEMPTS {
            let (value, revision) = self.read(&key)?.ok_or_else(|| self.unknown_stream(name))?;
            let item = serde_json::from_slice(&value).map_err(|error| Error::internal(error.to_string()))?;
            let changed = change(&item)?;
            match self.directory.call(Request::Update { key: key.clone(), revision, value: json(&changed)?, ttl: None }) {
                Err(CoordinatorError::Conflict) => {}
                other => return other.map(|_| changed).map_err(|error| self.failed(&error)),
            }
        }
        Err(changed_meanwhile())
    }

    /// The error of a change that the coordinator did not make.
    fn failed(&self, error: &CoordinatorError) -> Error {
        if self.is_alone() {
            let message = match error {
                CoordinatorError::Rejected(reason) => reason.as_str(),
                _ => "the store of the streams did not answer in time. Check that its disk can be written, then try again",
            };
            return Error::new(503, "store_failed", message);
        }
        let message = format!("change the streams of all nodes failed: {error}. Try again when the coordinator answers");
        Error::new(503, "coordinator_unavailable", message)
    }

    fn unknown_stream(&self, name: &str) -> Error {
        if let Err(error) = self.check_fit() {
            return error;
        }
        let names = self.stream_names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let advice = match policy::nearest(name, &names) {
            Some(near) => format!("Did you mean `{near}`?"),
            None => "`GET /api/streams` lists the streams".to_owned(),
        };
        let shown: String = name.chars().take(100).map(|c| if c.is_control() { '?' } else { c }).collect();
        Error::value("unknown_stream", "stream", "the name of a stream", format!("`{shown}`"), advice).with_status(404)
    }
}

/// The node that runs a stream. In a hand-over, the earlier owner runs it until the later one has a result.
fn runs_on<'a>(items: &'a Items, stream: &str) -> Option<&'a str> {
    let assignment = &items.assignments.get(stream)?.value;
    let status = items.statuses.get(stream).map(|status| &status.value);
    let owner = match &assignment.from {
        Some(from) if !assignment.has_result(status) => &from.owner,
        _ => &assignment.owner,
    };
    Some(&owner.node)
}

/// Why no node runs a stream.
fn why_no_node(items: &Items, spec: &roiflow_nodes::StreamSpec) -> String {
    let present = || items.nodes.iter().filter(|(_, record)| record.value.presence == Presence::Present);
    let allowed = |spec: &roiflow_nodes::StreamSpec| present().any(|(node, record)| spec.allows(node, &record.value.facts));
    if !allowed(spec) {
        let missing = spec.constraints.iter().find(|(label, values)| {
            let constraints = BTreeMap::from([((*label).clone(), (*values).clone())]);
            !allowed(&roiflow_nodes::StreamSpec { constraints, ..spec.clone() })
        });
        let what = match missing {
            Some((label, values)) if values.is_empty() => format!("`{label}`"),
            Some((label, values)) => format!("`{label}` with the value {}", values.join(" or ")),
            None => "all that `needs` requires".to_owned(),
        };
        return format!("no node runs the stream: expected a present node that has {what}, got none. Change `needs`, or start such a node");
    }
    if spec.memory > 0 {
        let needed = spec.memory >> 20;
        return format!(
            "no node runs the stream: the nodes have not decided yet, or no node has {needed} MiB left of the memory for streams"
        );
    }
    "no node runs the stream: the nodes have not decided yet".to_owned()
}

fn unknown(name: &str) -> StreamSpec {
    let parameters = BTreeMap::new();
    StreamSpec {
        name: name.to_owned(),
        pipeline: String::new(),
        input: String::new(),
        parameters,
        repeat: false,
        publish: Vec::new(),
        needs: BTreeMap::new(),
        cost: None,
        memory: None,
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::internal(error.to_string()))
}

fn changed_meanwhile() -> Error {
    Error::new(409, "stream_changed", "other clients change the stream at the same time. Try again")
}

/// A random session, which no earlier process of this node had.
fn random_session() -> Result<Session, String> {
    let mut random = [0; 8];
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut random);
    filled.map_err(|_| "start the node failed: the system has no random numbers".to_owned())?;
    Ok(Session::from_random(u64::from_le_bytes(random)))
}
