//! The streams of one node: which of them run, in which epoch, and what the node reports about them.
//!
//! The worker compares the assignments in the [`View`] with the streams that run, and returns the difference as actions. It does so after
//! each change, so a change that was missed has no lasting effect. While the view is not current, it changes nothing: missing information
//! stops no stream.
//!
//! # Phases of a stream on this node
//!
//! | phase | the stream runs because | epoch of its results |
//! |---|---|---|
//! | `Owned` | the assignment names this node and its session | that of the assignment |
//! | `Leaving` | the assignment names this node as the earlier owner, and the new owner has not published a result yet | the earlier one |
//! | `Detached` | the lease has ended, and the node has the option `keep-running` | the last one |
//!
//! # Transitions
//!
//! *Named* means: the assignment's owner is this node with its present session. The first row that fits is used.
//!
//! | trigger | in phase | next phase | action |
//! |---|---|---|---|
//! | the lease ends, `keep-running` | any | `Detached` | |
//! | the lease ends | any | none | `Stop` |
//! | the specification or the assignment is removed | any | none | `Stop` |
//! | named | none | `Owned` | `Interrupted` if the assignment has an interruption, `Start` |
//! | named, in another epoch | any | `Owned` | `Interrupted` if the assignment has an interruption, `SetEpoch` |
//! | named, interruption added | `Owned` | `Owned` | `Interrupted` |
//! | named, specification changed | `Owned` | `Owned` | `Change` |
//! | another owner, this node is `from`, no result of the new epoch | `Owned`, `Leaving` | `Leaving` | |
//! | another owner, no result of its epoch | `Detached` | `Detached` | |
//! | another owner | any | none | `Stop` |
//!
//! The first frame, a lost source and a failure of an owned stream are written to `status.<stream>`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::coordinator::{Error, Reply, Request, Revision};
use crate::keys;
use crate::types::{Assignment, Epoch, Interruption, Member, Ownership, Status, StreamSpec, StreamState, to_json};
use crate::view::View;

/// Why a stream runs on this node; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// This node is the owner.
    Owned,
    /// This node was the owner, and runs the stream until the new owner has published a result.
    Leaving,
    /// This node has no lease, but keeps its streams running.
    Detached,
}

/// What happens to a stream on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEvent {
    /// The result of a frame in this epoch was published.
    Running,
    /// The source is lost, for a reason.
    Waiting(String),
    /// The stream failed, for a reason. The node may try again by itself.
    Failed(String),
}

/// An operation on a stream of this node.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Run the stream. Its results carry the epoch, and numbers of frames that begin at 0.
    Start {
        /// Name of the stream.
        stream: String,
        /// Epoch of its results.
        epoch: Epoch,
        /// Its specification.
        spec: StreamSpec,
    },
    /// Results are missing before the first result of this epoch. Comes before the `Start` or `SetEpoch` of the epoch; later if the earlier
    /// owner ends during a hand-over.
    Interrupted {
        /// Name of the stream.
        stream: String,
        /// Its epoch.
        epoch: Epoch,
        /// Why results are missing.
        interruption: Interruption,
    },
    /// The results of the running stream carry this epoch from now on. The program may restart the stream for this: [`Action::Interrupted`]
    /// comes before. Report [`StreamEvent::Running`] for the first of them.
    SetEpoch {
        /// Name of the stream.
        stream: String,
        /// Epoch of its results.
        epoch: Epoch,
    },
    /// The running stream has another specification. The epoch and the numbers of frames continue.
    Change {
        /// Name of the stream.
        stream: String,
        /// Its epoch.
        epoch: Epoch,
        /// Its specification.
        spec: StreamSpec,
    },
    /// Stop the stream. From now on, no result of it may be published, also if the stream takes time to stop.
    Stop {
        /// Name of the stream.
        stream: String,
    },
    /// Send this request, and call [`Worker::status_reply`] with its reply.
    WriteStatus {
        /// Name of the stream.
        stream: String,
        /// The request.
        request: Request,
    },
}

/// A stream that runs on this node.
#[derive(Debug, Clone)]
struct Entry {
    phase: Phase,
    own: Ownership,
    spec: Revision,
    state: StreamState,
    /// Whether a result was published in the epoch.
    has_result: bool,
    reason: Option<String>,
    /// The interruption before this epoch that was reported as an action.
    interruption: Option<Interruption>,
    /// A status that was sent, until the view has it: without a revision until its reply arrives.
    sent: Option<(Status, Option<Revision>)>,
    /// When a status that could not be written is tried again.
    retry_at: Option<Duration>,
}

impl Entry {
    /// Reports the interruption before an assignment of this node, unless it was reported already.
    fn interrupt(&mut self, stream: &str, assignment: &Assignment) -> Option<Action> {
        if self.interruption == assignment.interruption {
            return None;
        }
        self.interruption.clone_from(&assignment.interruption);
        let interruption = self.interruption.clone()?;
        Some(Action::Interrupted { stream: stream.to_owned(), epoch: assignment.epoch, interruption })
    }

    /// Whether this node tells the state of the stream to the other nodes, and no request that does so is in flight.
    fn has_status(&self) -> bool {
        self.phase == Phase::Owned && self.state != StreamState::Starting && !matches!(self.sent, Some((_, None)))
    }
}

/// The streams of one node; see the module documentation.
#[derive(Debug, Clone)]
pub struct Worker {
    keep_running: bool,
    retry: Duration,
    streams: BTreeMap<String, Entry>,
}

impl Worker {
    /// Makes the worker of a node without streams. `retry` is the time after which a failed write is tried again.
    pub fn new(keep_running: bool, retry: Duration) -> Self {
        Self { keep_running, retry, streams: BTreeMap::new() }
    }

    /// Returns the streams that run on this node, with the phase and the epoch of each.
    pub fn streams(&self) -> impl Iterator<Item = (&str, Phase, Epoch)> {
        self.streams.iter().map(|(name, entry)| (name.as_str(), entry.phase, entry.own.epoch))
    }

    /// The lease of the node has ended.
    pub fn lapse(&mut self) -> Vec<Action> {
        if self.keep_running {
            self.streams.values_mut().for_each(|entry| entry.phase = Phase::Detached);
            return Vec::new();
        }
        self.stop_all()
    }

    /// Stops all streams, because the node leaves.
    pub fn stop_all(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.streams).into_keys().map(|stream| Action::Stop { stream }).collect()
    }

    /// Compares all streams with the view. `member` is the node with its session, if it has a lease.
    pub fn update_all(&mut self, now: Duration, view: &View, member: Option<&Member>) -> Vec<Action> {
        let named = view.items().assignments.iter().filter(|(_, assignment)| Some(&assignment.value.owner) == member);
        let mut names: Vec<String> = self.streams.keys().cloned().chain(named.map(|(name, _)| name.clone())).collect();
        names.sort();
        names.dedup();
        names.iter().flat_map(|name| self.update(now, view, member, name)).collect()
    }

    /// Compares one stream with the view.
    pub fn update(&mut self, now: Duration, view: &View, member: Option<&Member>, stream: &str) -> Vec<Action> {
        let is_unreadable = |key: String| view.items().unreadable.contains_key(&key);
        if !view.is_current() || is_unreadable(keys::assign(stream)) || is_unreadable(keys::stream(stream)) {
            return Vec::new();
        }
        let mut actions = self.place(view, member, stream);
        actions.extend(self.write_status(now, view, stream));
        actions
    }

    /// Handles what happened to a stream. An event of an earlier epoch has no effect.
    pub fn stream_event(&mut self, now: Duration, view: &View, stream: &str, epoch: Epoch, event: StreamEvent) -> Vec<Action> {
        let Some(entry) = self.streams.get_mut(stream).filter(|entry| entry.own.epoch == epoch) else { return Vec::new() };
        entry.has_result |= event == StreamEvent::Running;
        (entry.state, entry.reason) = match event {
            StreamEvent::Running => (StreamState::Running, None),
            StreamEvent::Waiting(reason) => (StreamState::Waiting, Some(reason)),
            StreamEvent::Failed(reason) => (StreamState::Failed, Some(reason)),
        };
        self.write_status(now, view, stream).into_iter().collect()
    }

    /// Handles the reply to [`Action::WriteStatus`].
    pub fn status_reply(&mut self, now: Duration, view: &View, stream: &str, result: &Result<Reply, Error>) -> Vec<Action> {
        let Some(entry) = self.streams.get_mut(stream) else { return Vec::new() };
        match (result, &mut entry.sent) {
            (Ok(Reply::Written(revision)), Some((_, written))) => *written = Some(*revision),
            (_, sent) => {
                *sent = None;
                entry.retry_at = Some(now + self.retry);
            }
        }
        self.write_status(now, view, stream).into_iter().collect()
    }

    /// Returns the time at which [`Worker::tick`] has an effect.
    pub fn next_tick(&self, view: &View) -> Option<Duration> {
        // Without a current view nothing is written, and the change of the view is an event of its own.
        self.streams.values().filter(|entry| view.is_current() && entry.has_status()).filter_map(|entry| entry.retry_at).min()
    }

    /// Handles the passing of time: writes again what could not be written.
    pub fn tick(&mut self, now: Duration, view: &View) -> Vec<Action> {
        let is_due = |entry: &Entry| entry.retry_at.is_some_and(|retry_at| retry_at <= now);
        let due: Vec<String> = self.streams.iter().filter(|(_, entry)| is_due(entry)).map(|(name, _)| name.clone()).collect();
        due.iter().filter_map(|stream| self.write_status(now, view, stream)).collect()
    }

    fn place(&mut self, view: &View, member: Option<&Member>, stream: &str) -> Vec<Action> {
        let assignment = view.items().assignments.get(stream).map(|assignment| &assignment.value);
        let spec = view.items().streams.get(stream);
        let name = || stream.to_owned();
        let entry = self.streams.get_mut(stream);
        let (Some(assignment), Some(spec)) = (assignment, spec) else {
            return if self.streams.remove(stream).is_some() { vec![Action::Stop { stream: name() }] } else { Vec::new() };
        };
        if member == Some(&assignment.owner) {
            let own = Ownership { owner: assignment.owner.clone(), epoch: assignment.epoch };
            let Some(entry) = entry else {
                let mut entry = Entry {
                    phase: Phase::Owned,
                    own,
                    spec: spec.revision,
                    state: StreamState::Starting,
                    has_result: false,
                    reason: None,
                    interruption: None,
                    sent: None,
                    retry_at: None,
                };
                let mut actions = Vec::from_iter(entry.interrupt(stream, assignment));
                self.streams.insert(name(), entry);
                actions.push(Action::Start { stream: name(), epoch: assignment.epoch, spec: spec.value.clone() });
                return actions;
            };
            entry.phase = Phase::Owned;
            let is_new = entry.own != own;
            if is_new {
                // The number of the first frame of the new epoch is not known here, so the state is unknown as well.
                (entry.own, entry.state, entry.has_result, entry.reason) = (own, StreamState::Starting, false, None);
                entry.interruption = None;
            }
            let mut actions = Vec::from_iter(entry.interrupt(stream, assignment));
            if is_new {
                actions.push(Action::SetEpoch { stream: name(), epoch: assignment.epoch });
            }
            if entry.spec != spec.revision {
                entry.spec = spec.revision;
                actions.push(Action::Change { stream: name(), epoch: assignment.epoch, spec: spec.value.clone() });
            }
            return actions;
        }
        let Some(entry) = entry else { return Vec::new() };
        let status = view.items().statuses.get(stream).map(|status| &status.value);
        let has_result = assignment.has_result(status);
        let is_from = assignment.from.as_ref() == Some(&entry.own) && member == Some(&entry.own.owner);
        let is_own = entry.own.owner == assignment.owner;
        match entry.phase {
            Phase::Detached if is_own || !has_result => Vec::new(),
            Phase::Owned | Phase::Leaving if is_from && !has_result => {
                entry.phase = Phase::Leaving;
                Vec::new()
            }
            _ => {
                self.streams.remove(stream);
                vec![Action::Stop { stream: name() }]
            }
        }
    }

    /// Returns the request that writes the state of an owned stream, if the item has another state.
    fn write_status(&mut self, now: Duration, view: &View, stream: &str) -> Option<Action> {
        let entry = self.streams.get_mut(stream)?;
        if entry.phase != Phase::Owned || entry.state == StreamState::Starting || !view.is_current() {
            return None;
        }
        let own = entry.own.clone();
        let (owner, epoch) = (own.owner, own.epoch);
        let wanted = Status { owner, epoch, state: entry.state, has_result: entry.has_result, reason: entry.reason.clone() };
        let mut current = view.items().statuses.get(stream).map(|item| (&item.value, item.revision));
        match &entry.sent {
            Some((_, None)) => return None,
            Some((sent, Some(revision))) if current.is_none_or(|(_, seen)| seen < *revision) => current = Some((sent, *revision)),
            _ => {}
        }
        // A status of a later epoch belongs to a later owner.
        let is_done = current.is_some_and(|(status, _)| *status == wanted || status.epoch > wanted.epoch);
        if is_done || entry.retry_at.is_some_and(|retry_at| now < retry_at) {
            if is_done {
                entry.retry_at = None;
            }
            return None;
        }
        let (key, value, ttl) = (keys::status(stream), to_json(&wanted), None);
        let request = match current {
            Some((_, revision)) => Request::Update { key, revision, value, ttl },
            None => Request::Create { key, value, ttl },
        };
        (entry.sent, entry.retry_at) = (Some((wanted, None)), None);
        Some(Action::WriteStatus { stream: stream.to_owned(), request })
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::coordinator::{Change, Item};
    use crate::types::{Cause, Session};

    const NOW: Duration = Duration::from_secs(100);

    fn member(node: &str) -> Member {
        Member { node: node.to_owned(), session: Session(1) }
    }

    fn own(node: &str, epoch: u64) -> Ownership {
        Ownership { owner: member(node), epoch: Epoch(epoch) }
    }

    /// A node `a` with a lease, and what it sees.
    struct Node {
        worker: Worker,
        view: View,
        revision: u64,
    }

    impl Node {
        fn new(keep_running: bool) -> Self {
            let mut view = View::default();
            view.apply(NOW, Change::Begin);
            view.apply(NOW, Change::Current);
            let mut node = Self { worker: Worker::new(keep_running, Duration::from_secs(1)), view, revision: 0 };
            let spec = StreamSpec {
                description: serde_json::json!({}),
                model: String::new(),
                cost: 25.0,
                memory: 0,
                constraints: BTreeMap::new(),
            };
            node.see(&keys::stream("s"), &spec);
            node
        }

        fn see(&mut self, key: &str, value: &impl Serialize) -> Vec<Action> {
            self.revision += 1;
            let item = Item { key: key.to_owned(), revision: Revision(self.revision), value: to_json(value) };
            self.view.apply(NOW, Change::Put(item));
            self.worker.update(NOW, &self.view, Some(&member("a")), "s")
        }

        fn assign(&mut self, node: &str, epoch: u64, from: Option<Ownership>) -> Vec<Action> {
            self.see(&keys::assign("s"), &Assignment { owner: member(node), epoch: Epoch(epoch), from, interruption: None })
        }

        fn status(&mut self, node: &str, epoch: u64, state: StreamState) -> Vec<Action> {
            let has_result = state == StreamState::Running;
            self.see(&keys::status("s"), &Status { owner: member(node), epoch: Epoch(epoch), state, has_result, reason: None })
        }

        fn event(&mut self, epoch: u64, event: StreamEvent) -> Vec<Action> {
            self.worker.stream_event(NOW, &self.view, "s", Epoch(epoch), event)
        }
    }

    fn stop() -> Vec<Action> {
        vec![Action::Stop { stream: "s".to_owned() }]
    }

    #[test]
    fn an_assignment_starts_a_stream_and_its_first_frame_is_reported() {
        let mut node = Node::new(false);
        assert!(matches!(&node.assign("a", 3, None)[..], [Action::Start { epoch: Epoch(3), .. }]));
        assert!(node.event(2, StreamEvent::Running).is_empty(), "an event of an earlier epoch");
        let actions = node.event(3, StreamEvent::Running);
        let [Action::WriteStatus { request: Request::Create { key, .. }, .. }] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(key, "status.s");
        assert!(node.event(3, StreamEvent::Running).is_empty(), "it is already being written");
    }

    #[test]
    fn the_earlier_owner_leaves_after_the_first_result_of_the_new_owner() {
        let mut node = Node::new(false);
        node.assign("a", 3, None);
        assert!(node.assign("b", 4, Some(own("a", 3))).is_empty());
        assert_eq!(node.worker.streams().next(), Some(("s", Phase::Leaving, Epoch(3))));
        assert!(node.status("b", 4, StreamState::Waiting).is_empty());
        assert_eq!(node.status("b", 4, StreamState::Running), stop());
    }

    #[test]
    fn a_hand_over_that_is_taken_back_continues_without_a_restart() {
        let mut node = Node::new(false);
        node.assign("a", 3, None);
        node.assign("b", 4, Some(own("a", 3)));
        assert_eq!(node.assign("a", 5, None), [Action::SetEpoch { stream: "s".to_owned(), epoch: Epoch(5) }]);
    }

    #[test]
    fn an_interruption_is_reported_once_before_the_stream_starts_or_goes_on_in_a_new_epoch() {
        let interruption = |node: &str, epoch| Interruption { earlier: own(node, epoch), cause: Cause::NodeLost };
        let assignment = |epoch, interruption| Assignment { owner: member("a"), epoch: Epoch(epoch), from: None, interruption };
        let reported = |epoch, interruption| Action::Interrupted { stream: "s".to_owned(), epoch: Epoch(epoch), interruption };
        let mut node = Node::new(false);
        let actions = node.see(&keys::assign("s"), &assignment(3, Some(interruption("b", 2))));
        assert!(matches!(&actions[..], [first, Action::Start { .. }] if *first == reported(3, interruption("b", 2))), "{actions:?}");
        assert!(node.see(&keys::assign("s"), &assignment(3, Some(interruption("b", 2)))).is_empty());
        let actions = node.see(&keys::assign("s"), &assignment(5, Some(interruption("b", 4))));
        let set_epoch = Action::SetEpoch { stream: "s".to_owned(), epoch: Epoch(5) };
        assert_eq!(actions, [reported(5, interruption("b", 4)), set_epoch], "a hand-over that is taken back");
        let set_epoch = Action::SetEpoch { stream: "s".to_owned(), epoch: Epoch(7) };
        assert_eq!(node.see(&keys::assign("s"), &assignment(7, None)), [set_epoch]);
        let actions = node.see(&keys::assign("s"), &assignment(7, Some(interruption("c", 6))));
        assert_eq!(actions, [reported(7, interruption("c", 6))], "the earlier owner has ended during the hand-over");
    }

    #[test]
    fn a_stream_that_waits_after_its_first_result_still_says_that_it_had_one() {
        let mut node = Node::new(false);
        node.assign("a", 3, None);
        node.event(3, StreamEvent::Running);
        node.worker.status_reply(NOW, &node.view, "s", &Ok(Reply::Written(Revision(90))));
        let actions = node.event(3, StreamEvent::Waiting("no camera".to_owned()));
        let [Action::WriteStatus { request: Request::Update { value, .. }, .. }] = &actions[..] else { panic!("{actions:?}") };
        let status: Status = serde_json::from_slice(value).unwrap();
        assert!(status.has_result && status.state == StreamState::Waiting, "{status:?}");
    }

    #[test]
    fn a_stream_stops_when_another_owner_is_named_or_the_stream_is_removed() {
        let mut node = Node::new(false);
        node.assign("a", 3, None);
        assert_eq!(node.assign("b", 4, None), stop());
        node.assign("a", 5, None);
        node.view.apply(NOW, Change::Removed { key: keys::stream("s") });
        assert_eq!(node.worker.update(NOW, &node.view, Some(&member("a")), "s"), stop());
    }

    #[test]
    fn missing_information_changes_nothing() {
        let mut node = Node::new(false);
        node.assign("a", 3, None);
        node.view.apply(NOW, Change::Interrupted);
        node.view.apply(NOW, Change::Begin);
        assert!(node.worker.update_all(NOW, &node.view, Some(&member("a"))).is_empty());
        node.view.apply(NOW, Change::Current);
        assert_eq!(node.worker.update_all(NOW, &node.view, Some(&member("a"))), stop(), "the coordinator has no assignment");
    }

    #[test]
    fn the_end_of_the_lease_stops_all_streams() {
        let mut node = Node::new(false);
        node.assign("a", 3, None);
        assert_eq!(node.worker.lapse(), stop());
    }

    #[test]
    fn a_node_that_keeps_running_stops_after_the_first_result_of_the_new_owner() {
        let mut node = Node::new(true);
        node.assign("a", 3, None);
        assert!(node.worker.lapse().is_empty());
        let update = |node: &mut Node| node.worker.update(NOW, &node.view, None, "s");
        assert!(update(&mut node).is_empty(), "nothing was planned anew");
        assert!(node.assign("b", 4, None).is_empty());
        assert_eq!(node.status("b", 4, StreamState::Running), stop());
    }

    #[test]
    fn a_status_that_could_not_be_written_is_tried_again() {
        let mut node = Node::new(false);
        node.assign("a", 3, None);
        node.event(3, StreamEvent::Waiting("no camera".to_owned()));
        assert!(node.worker.status_reply(NOW, &node.view, "s", &Err(Error::Unreachable(String::new()))).is_empty());
        let later = node.worker.next_tick(&node.view).unwrap();
        assert_eq!(later, NOW + Duration::from_secs(1));
        assert!(matches!(&node.worker.tick(later, &node.view)[..], [Action::WriteStatus { request: Request::Create { .. }, .. }]));
        assert!(node.worker.status_reply(later, &node.view, "s", &Ok(Reply::Written(Revision(90)))).is_empty());
        // The next state replaces the item that the view does not show yet.
        let actions = node.event(3, StreamEvent::Running);
        assert!(
            matches!(&actions[..], [Action::WriteStatus { request: Request::Update { revision: Revision(90), .. }, .. }]),
            "{actions:?}"
        );
    }

    #[test]
    fn a_changed_specification_reaches_the_running_stream() {
        let mut node = Node::new(false);
        node.assign("a", 3, None);
        let spec = StreamSpec {
            description: serde_json::json!({"input": "x"}),
            model: String::new(),
            cost: 9.0,
            memory: 0,
            constraints: BTreeMap::new(),
        };
        assert_eq!(node.see(&keys::stream("s"), &spec), [Action::Change { stream: "s".to_owned(), epoch: Epoch(3), spec }]);
    }
}
