//! The values of the items: streams, nodes, assignments and states, as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Number of an ownership of a stream. It grows with each assignment of the stream.
///
/// Each result carries the epoch in which it was computed. A consumer that has seen an epoch refuses results of lower epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// Number of a node's membership. A node gets a new session when its process starts, and when its lease has ended.
///
/// Below 2^53, so that a program in JavaScript reads it without loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Session(pub u64);

impl Session {
    /// Makes a session of a random number.
    pub fn from_random(random: u64) -> Self {
        Self(random & ((1 << 52) - 1))
    }

    /// Returns the session after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A membership of a node: its name and its session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Name of the node.
    pub node: String,
    /// Session of the node.
    pub session: Session,
}

/// A stream that some node must run: the value of `streams.<stream>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamSpec {
    /// Description for the node that runs the stream. This crate does not read it.
    pub description: Value,
    /// Streams with the same text share a model, so they are placed on few nodes. Empty: the stream has no model.
    #[serde(default)]
    pub model: String,
    /// Frames per second on which the model runs.
    #[serde(default = "default_cost")]
    pub cost: f64,
    /// Memory in bytes that the stream needs; 0: it is not known.
    #[serde(default)]
    pub memory: u64,
    /// Labels that the node must have, each with the allowed values. An empty list allows any value. The label `node` is the node's name.
    /// The label `device` is the name of each of its devices; `OPENVINO` also allows `OPENVINO.GPU`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub constraints: BTreeMap<String, Vec<String>>,
}

fn default_cost() -> f64 {
    25.0
}

impl StreamSpec {
    /// Whether a node with this name may run the stream.
    pub fn allows(&self, node: &str, facts: &Facts) -> bool {
        self.constraints.iter().all(|(label, allowed)| {
            let is_allowed = |value: &str| allowed.is_empty() || allowed.iter().any(|allowed| allowed == value);
            let is_allowed_device =
                |device: &String| is_allowed(device) || device.match_indices('.').any(|(family, _)| is_allowed(&device[..family]));
            match &**label {
                "node" => is_allowed(node),
                "device" => facts.devices.iter().any(is_allowed_device),
                label => facts.labels.get(label).is_some_and(|value| is_allowed(value)),
            }
        })
    }
}

/// A node: the value of `nodes.<node>`. It is also the lease of the node: while the item exists, the node's streams are its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Session of the node.
    pub session: Session,
    /// Whether the session holds its lease.
    pub presence: Presence,
    /// First session of the process. The sessions from this one to before `session` have ended, and their streams have stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_session: Option<Session>,
    /// What the node is and can do.
    #[serde(flatten)]
    pub facts: Facts,
}

impl NodeRecord {
    /// Whether the node itself says that this session of it has ended.
    pub fn has_ended(&self, session: Session) -> bool {
        self.first_session.is_some_and(|first| first <= session && session < self.session)
    }
}

/// Whether the session of a node record holds its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Presence {
    /// The node renews this record.
    Present,
    /// The node has stopped all its streams and left. Its streams may start elsewhere at once.
    Left,
    /// The planner has declared the session dead after its lease had ended. The session can no longer renew; the node needs a new one.
    Dead,
}

/// What a node is and can do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Labels for constraints of streams, such as `site`, `gpu` or `network`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What the node can do.
    #[serde(default)]
    pub capacity: Capacity,
    /// What the node does.
    #[serde(default)]
    pub load: Load,
    /// Size of its memory in bytes.
    #[serde(default)]
    pub memory: u64,
    /// Names of its devices, such as `CPU`.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Address of its REST server, such as `https://10.0.0.7:8787`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Version of its program.
    #[serde(default)]
    pub version: String,
}

/// How many frames per second a node can process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// For models that are not listed.
    pub default: f64,
    /// Measured, by model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, f64>,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { default: 100.0, models: BTreeMap::new() }
    }
}

impl Capacity {
    /// Returns the frames per second of a model, if the node runs nothing else. At least a small positive number.
    pub fn of(&self, model: &str) -> f64 {
        let rate = self.models.get(model).copied().unwrap_or(self.default);
        if rate.is_finite() { rate.max(1e-3) } else { 1e-3 }
    }
}

/// What a node does, for people. The planner computes load from assignments.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Used part of the processors, 0 to 1.
    pub processor: f64,
    /// Used memory in bytes.
    pub memory: u64,
    /// Processed frames per second over all streams.
    pub fps: f64,
}

/// Which node runs a stream: the value of `assign.<stream>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The owner: the node that runs the stream.
    pub owner: Member,
    /// The epoch of this assignment.
    pub epoch: Epoch,
    /// In a hand-over: the earlier owner. It runs the stream in its own epoch until the owner reports a result in this epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Ownership>,
    /// Set if the earlier owner does not run the stream until the owner has a result. Results of the time between are missing. If the earlier
    /// owner ends during a hand-over, this is set later, in the same epoch. If an owner had no result, this is passed on to the next owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interruption: Option<Interruption>,
}

/// Why an earlier owner stopped a stream before the next owner has started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interruption {
    /// The earlier owner, with its epoch.
    pub earlier: Ownership,
    /// What has happened to it.
    pub cause: Cause,
}

/// What has happened to the earlier owner of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Its session was declared dead: the node ended, stopped for a while, or lost the coordinator.
    NodeLost,
    /// The node has left.
    NodeLeft,
    /// The stream failed there.
    StreamFailed,
}

/// A member that owns a stream in an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ownership {
    /// The owner.
    pub owner: Member,
    /// Its epoch.
    pub epoch: Epoch,
}

impl Assignment {
    /// Whether the owner has published a result in the epoch of this assignment. A hand-over is then complete.
    pub fn has_result(&self, status: Option<&Status>) -> bool {
        status.is_some_and(|status| status.epoch == self.epoch && status.has_result)
    }
}

/// What a stream does on its owner: the value of `status.<stream>`. It is written when the state changes, not for each frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The node that has written this status.
    pub owner: Member,
    /// The epoch to which this status belongs. A status of another epoch than that of the assignment is outdated.
    pub epoch: Epoch,
    /// The state.
    pub state: StreamState,
    /// Whether a result was published in this epoch, also if the stream waits or has failed since.
    #[serde(default)]
    pub has_result: bool,
    /// Why the stream failed or waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a stream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamState {
    /// The node opens the source and loads the models.
    Starting,
    /// At least one frame was processed in this epoch, and its result was published.
    Running,
    /// The source is lost, and the node tries to open it again. Another node would not help.
    Waiting,
    /// The node cannot run the stream. Another node may be able to.
    Failed,
}

/// Request to move all streams away from a node: the value of `drain.<node>`. The request ends when the item is deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Who asked for it and why, for people.
    #[serde(default)]
    pub reason: String,
}

/// The planner's lock: the value of `lock.planner`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannerLock {
    /// The member that plans.
    pub planner: Member,
}

/// Writes a value as JSON.
pub(crate) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("the values of this module have text keys only")
}
