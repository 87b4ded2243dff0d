//! Which node runs which stream: leases, fencing, placement and hand-over.
//!
//! Several machines (*nodes*) run streams together. All nodes see the same items of a [`coordinator`]. The crate has no threads, no network
//! and no clock: state machines take events with the time of their arrival, and return requests and actions. So the same code runs in
//! programs, in a simulation on virtual time (`examples/simulate.rs`), and in model checks (`tests/check/checks/nodes.rs`).
//!
//! - [`agent`]: all state machines of one node together. A program drives this one.
//! - [`membership`]: the lease of the node, with the rule for a coordinator that does not answer. [`fence`]: the deadline of the lease, for
//!   the threads that publish results.
//! - [`worker`]: the streams of the node. [`planner`]: the decisions of the elected node. [`placement`]: which node a stream belongs on.
//! - [`view`]: what the node knows of all items. [`types`]: their values. [`keys`]: their keys. [`timing`]: the times of leases.
//! - [`coordinator`]: the interface to the shared items, with the rules for implementations. [`local`]: an implementation inside the
//!   process. [`store`]: its items, which the simulation and the model checks use as well. [`mailbox`]: a queue of events, for
//!   implementations with threads. [`suite`]: tests for implementations.
//!
//! # Items
//!
//! | key | value | time-to-live | written by | changes |
//! |---|---|---|---|---|
//! | `streams.<stream>` | [`types::StreamSpec`] | none | any node, for a user | when a user adds, changes or removes a stream |
//! | `drain.<node>` | [`types::Drain`] | none | any node, for a user | when a user drains a node, or ends the drain |
//! | `nodes.<node>` | [`types::NodeRecord`] | 15 s | the node; the planner for a dead node | each 3 s: this is the lease of the node |
//! | `assign.<stream>` | [`types::Assignment`] | none | the planner | when a stream gets another owner |
//! | `status.<stream>` | [`types::Status`] | none | the owner of the stream | when the stream starts to run, waits or fails |
//! | `lock.planner` | [`types::PlannerLock`] | 15 s | the planner | each 3 s |
//!
//! A node has one lease for all its streams, so the number of renewals does not depend on the number of streams.
//!
//! # Guarantees
//!
//! 1. A stream has at most one owner in an epoch, and each later owner has a higher epoch. A consumer that refuses results of lower epochs
//!    than it has seen accepts no result twice, whatever the network and the clocks do. [`planner`] has the reason.
//! 2. A node takes over a stream of a dead node only after the dead node has stopped it, if the clocks of the nodes differ in speed by at
//!    most 15 % and if [`coordinator::Error::Down`] is reported only for a coordinator that does not run. [`membership`] and [`timing`] have
//!    the reason. Exception: nodes with the option `keep-running`.
//! 3. In a hand-over between two nodes that are alive, both run the stream for a short time, in different epochs. Frames that only the
//!    earlier owner has processed, after the first result of the new one, are lost; their number is small.

#![deny(unsafe_code)]

pub mod agent;
pub mod coordinator;
pub mod fence;
pub mod keys;
pub mod local;
pub mod mailbox;
pub mod membership;
pub mod placement;
pub mod planner;
pub mod store;
pub mod suite;
pub mod timing;
pub mod types;
pub mod view;
pub mod worker;

pub use agent::{Agent, Input, Output};
pub use coordinator::Coordinator;
pub use local::Local;
pub use types::{Assignment, Epoch, Member, NodeRecord, Session, Status, StreamSpec};
