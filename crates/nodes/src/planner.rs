//! The planner: one node at a time decides which node runs which stream.
//!
//! Each node has a planner. The one that holds the item `lock.planner` plans; it is *elected*. The lock has a time-to-live and is renewed as
//! the lease of a node is. If the elected node dies, another node creates the lock. A planner that has lost its lock without knowing it
//! does no harm: each write states the revision that it replaces, so a write on old information fails.
//!
//! # What the elected planner does
//!
//! | situation | write |
//! |---|---|
//! | a session has expired ([`Life::Expired`]) | creates the node's record as `Dead`, so that the session cannot come back |
//! | a session is gone ([`Life::Gone`]) | gives its streams to other nodes, without `from` |
//! | a stream moves for another reason | gives it to another node, with the present owner as `from`: the present owner runs it until the new owner has published a result |
//! | a hand-over takes longer than [`Policy::handover`], or the new owner reports `Failed` | gives the stream back to `from` |
//! | the new owner of a hand-over has published a result | removes `from` from the assignment, in the same epoch |
//! | the session of `from` has expired | creates its record as `Dead` |
//! | the session of `from` is gone, and the new owner has no result yet | replaces `from` by the interruption, in the same epoch |
//! | a stream was removed | deletes its status, and its assignment once all its owners are alive or gone |
//! | the session of an owner of a removed stream has expired | creates its record as `Dead` |
//!
//! An assignment that somebody has removed although its stream exists is written again, by the planner or by its owner: until then the
//! owner runs on. A stream that a planner found without an assignment gets a node only after [`Timing::takeover`] if there are several nodes: its
//! assignment may have been removed before the planner watched, and an owner that does not know it may run on until its lease ends.
//!
//! While the planner's view is not current, and while it has no lock, it writes nothing.
//!
//! # Epochs
//!
//! The epoch of an assignment is one more than that of the assignment that it replaces, and at least the revision of the stream's
//! specification. The epoch of a first assignment is at least the newest revision that the planner has seen. Revisions grow with each write
//! of any item, so an epoch is at most the revision of its assignment, and a stream without an assignment gets a higher epoch than it had.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordinator::{Error, Reply, Request, Revision};
use crate::keys;
use crate::placement::{Allowance, Placed, Policy, Reason, Site, plan};
use crate::timing::Timing;
use crate::types::{
    Assignment, Cause, Epoch, Facts, Interruption, Member, NodeRecord, Ownership, PlannerLock, Presence, StreamState, to_json,
};
use crate::view::{Life, REMOVED, Scope, Versioned, View};

/// What a request of the planner is for. Its reply returns with it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Takes or renews the lock.
    Lock,
    /// Declares the session of a node dead.
    Bury(String),
    /// Gives a stream to a node.
    Assign(String),
    /// Deletes an item of a removed stream.
    Clean(String),
}

/// A move that the planner has decided, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Name of the stream.
    pub stream: String,
    /// The new assignment.
    pub assignment: Assignment,
    /// Why the stream moves.
    pub reason: Reason,
}

/// What the planner of a node knows besides the view.
#[derive(Debug, Clone)]
pub struct Planner {
    timing: Timing,
    policy: Policy,
    lock: Option<Lock>,
    /// When the request for the lock in flight was sent.
    lock_sent: Option<Duration>,
    lock_retry_at: Duration,
    /// Assignments that were written, until the view has them.
    written: BTreeMap<String, Written>,
    /// Nodes and keys with a request in flight.
    busy: BTreeSet<Purpose>,
    /// Since when each assignment is known, by stream.
    known_since: BTreeMap<String, (Epoch, Duration)>,
    /// Until when a stream avoids a node, by stream and node.
    avoids: BTreeMap<(String, String), Duration>,
    /// Number of moves that may be made now.
    moves: f64,
    refilled_at: Duration,
    nodes_changed_at: Duration,
    present: BTreeSet<Member>,
    next_plan: Duration,
    decisions: Vec<Decision>,
}

#[derive(Debug, Clone)]
struct Lock {
    revision: Revision,
    deadline: Duration,
    renew_at: Duration,
}

#[derive(Debug, Clone)]
struct Written {
    assignment: Assignment,
    /// `None` until the reply arrives.
    revision: Option<Revision>,
}

impl Planner {
    /// Makes a planner without the lock.
    pub fn new(timing: Timing, policy: Policy) -> Self {
        Self {
            timing,
            moves: 1.0,
            policy,
            lock: None,
            lock_sent: None,
            lock_retry_at: Duration::ZERO,
            written: BTreeMap::new(),
            busy: BTreeSet::new(),
            known_since: BTreeMap::new(),
            avoids: BTreeMap::new(),
            refilled_at: Duration::ZERO,
            nodes_changed_at: Duration::ZERO,
            present: BTreeSet::new(),
            next_plan: Duration::ZERO,
            decisions: Vec::new(),
        }
    }

    /// Whether this planner holds the lock at this time.
    pub fn is_elected(&self, now: Duration) -> bool {
        self.lock.as_ref().is_some_and(|lock| now < lock.deadline)
    }

    /// Returns the decisions since the last call.
    pub fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }

    /// Handles a change of the view.
    pub fn changed(&mut self, now: Duration, view: &View, scope: &Scope) {
        if matches!(scope, Scope::All | Scope::Node(_)) {
            let is_present = |record: &NodeRecord| record.presence == Presence::Present;
            let records = view.items().nodes.iter().filter(|(_, record)| is_present(&record.value));
            let present: BTreeSet<Member> =
                records.map(|(node, record)| Member { node: node.clone(), session: record.value.session }).collect();
            if present != self.present {
                (self.present, self.nodes_changed_at, self.next_plan) = (present, now, now);
            }
        }
        match scope {
            Scope::Lock if view.items().lock.is_none() => self.lock_retry_at = now,
            Scope::Stream(stream) => self.forget_written(view, stream),
            Scope::All => {
                let streams: Vec<String> = self.written.keys().cloned().collect();
                streams.iter().for_each(|stream| self.forget_written(view, stream));
            }
            _ => {}
        }
    }

    /// Returns the time at which [`Planner::tick`] has an effect.
    pub fn next_tick(&self, now: Duration, view: &View) -> Duration {
        // These events change the planner without a tick: the reply to a request, a view that becomes current, and a lock that becomes free.
        let by_event = now + self.timing.retry;
        if !view.is_current() {
            return by_event;
        }
        let lock = match &self.lock {
            _ if self.lock_sent.is_some() => by_event,
            Some(lock) => lock.renew_at.min(lock.deadline),
            None if view.items().lock.is_some() => by_event,
            None => self.lock_retry_at,
        };
        if self.is_elected(now) { lock.min(self.next_plan) } else { lock }
    }

    /// Handles the passing of time. `member` is this node with its session, if it has a lease.
    pub fn tick(&mut self, now: Duration, view: &View, member: Option<&Member>) -> Vec<(Purpose, Request)> {
        let mut requests: Vec<(Purpose, Request)> = self.elect(now, view, member).into_iter().collect();
        if let Some(member) = member.filter(|_| view.is_current()) {
            requests.extend(self.restore(now, view, member));
        }
        if self.is_elected(now) && member.is_some() && view.is_current() && now >= self.next_plan {
            self.next_plan = now + self.policy.interval;
            requests.extend(self.plan(now, view));
        }
        requests
    }

    /// Handles the reply to a request.
    pub fn reply(&mut self, now: Duration, view: &View, purpose: &Purpose, result: &Result<Reply, Error>) {
        self.busy.remove(purpose);
        match (purpose, result) {
            (Purpose::Lock, result) => {
                let Some(sent) = self.lock_sent.take() else { return };
                match result {
                    Ok(Reply::Written(revision)) => {
                        let (deadline, renew_at) = (sent + self.timing.fence, sent + self.timing.renew);
                        if self.lock.is_none() {
                            // Another planner may have deleted what this one wrote when it was elected before.
                            self.written.clear();
                        }
                        self.lock = Some(Lock { revision: *revision, deadline, renew_at });
                        self.next_plan = now;
                    }
                    Err(Error::Conflict) => {
                        self.lock = None;
                        self.lock_retry_at = now + self.timing.retry;
                    }
                    _ => match &mut self.lock {
                        Some(lock) => lock.renew_at = now + self.timing.retry,
                        None => self.lock_retry_at = now + self.timing.retry,
                    },
                }
            }
            (Purpose::Assign(stream), Ok(Reply::Written(revision))) => {
                if let Some(written) = self.written.get_mut(stream) {
                    written.revision = Some(*revision);
                }
                // The watch may have been faster than the reply.
                self.forget_written(view, stream);
            }
            // The view shows what happened, or will show it.
            (Purpose::Assign(stream), _) => drop(self.written.remove(stream)),
            (Purpose::Bury(_), Ok(_)) => self.next_plan = now,
            (Purpose::Bury(_) | Purpose::Clean(_), _) => {}
        }
    }

    /// Gives up the lock, because the node leaves.
    pub fn leave(&mut self) -> Option<Request> {
        let lock = self.lock.take()?;
        Some(Request::Delete { key: keys::PLANNER.to_owned(), revision: lock.revision })
    }

    fn elect(&mut self, now: Duration, view: &View, member: Option<&Member>) -> Option<(Purpose, Request)> {
        if self.lock.as_ref().is_some_and(|lock| now >= lock.deadline) {
            self.lock = None;
        }
        let member = member?;
        if self.lock_sent.is_some() || !view.is_current() {
            return None;
        }
        let (key, ttl) = (keys::PLANNER.to_owned(), Some(self.timing.ttl));
        let value = to_json(&PlannerLock { planner: member.clone() });
        let request = match &self.lock {
            Some(lock) if now >= lock.renew_at => Request::Update { key, revision: lock.revision, value, ttl },
            None if view.items().lock.is_none() && now >= self.lock_retry_at => Request::Create { key, value, ttl },
            _ => return None,
        };
        self.lock_sent = Some(now);
        Some((Purpose::Lock, request))
    }

    fn forget_written(&mut self, view: &View, stream: &str) {
        let seen = view.items().assignments.get(stream).map(|assignment| assignment.revision);
        let is_seen = |written: &Written| written.revision.is_some_and(|revision| seen.is_some_and(|seen| seen >= revision));
        if self.written.get(stream).is_some_and(is_seen) {
            self.written.remove(stream);
        }
    }

    fn plan(&mut self, now: Duration, view: &View) -> Vec<(Purpose, Request)> {
        let items = view.items();
        self.refill(now);
        self.avoids.retain(|_, until| now < *until);
        self.known_since.retain(|stream, _| items.assignments.contains_key(stream));
        let mut requests = self.clean(now, view);
        let sites: Vec<Site<'_>> = items
            .nodes
            .iter()
            .filter(|(_, record)| record.value.presence == Presence::Present)
            .map(|(name, record)| Site { name, facts: &record.value.facts, is_draining: items.drains.contains_key(name) })
            .collect();
        let is_settled = now.saturating_sub(self.nodes_changed_at) >= self.policy.settle;
        let mut streams = Vec::new();
        let mut taken_back = Vec::new();
        let mut is_waiting = false;
        for (name, spec) in &items.streams {
            if is_unreadable(view, name) {
                continue;
            }
            let assignment = self.assignment(view, name).cloned();
            let mut placed =
                Placed { name, spec: &spec.value, at: None, prefers: None, is_movable: false, has_failed: false, avoids: Vec::new() };
            let is_owned_perhaps = items.nodes.len() > 1
                && view.found_since(spec.revision).is_some_and(|since| now.saturating_sub(since) < self.timing.takeover);
            if assignment.is_none() && (!is_settled || is_owned_perhaps) {
                continue;
            }
            if let Some(assignment) = assignment {
                match view.life(&assignment.owner, now, &self.timing) {
                    Life::Silent => {
                        is_waiting = true;
                        continue;
                    }
                    Life::Expired => {
                        is_waiting = true;
                        requests.extend(self.bury(&assignment.owner));
                        continue;
                    }
                    Life::Gone => placed.prefers = items.nodes.get_key_value(&assignment.owner.node).map(|(name, _)| name.as_str()),
                    Life::Alive => {
                        placed.at = items.nodes.get_key_value(&assignment.owner.node).map(|(name, _)| name.as_str());
                        let progress = self.progress(now, view, name, &assignment);
                        placed.is_movable = progress == Progress::Settled;
                        if let Some(from) = &assignment.from {
                            match (progress, view.life(&from.owner, now, &self.timing)) {
                                (Progress::Settled, _) => requests.extend(self.complete(view, name, None)),
                                (Progress::Starting, Life::Expired) => requests.extend(self.bury(&from.owner)),
                                (Progress::Starting, Life::Gone) => requests.extend(self.complete(view, name, Some(ended(view, from)))),
                                _ => {}
                            }
                        }
                        if progress == Progress::Failed {
                            self.avoid(now, name, &assignment.owner.node);
                            let from = assignment.from.clone().map(|from| from.owner);
                            match from.filter(|from| view.life(from, now, &self.timing) == Life::Alive) {
                                Some(from) => taken_back.push((name.clone(), from)),
                                None => placed.has_failed = true,
                            }
                        }
                    }
                }
            }
            let avoided = self.avoids.range((name.clone(), String::new())..).take_while(|((stream, _), _)| stream == name);
            placed.avoids = avoided.filter_map(|((_, node), _)| items.nodes.get_key_value(node)).map(|(node, _)| node.as_str()).collect();
            streams.push(placed);
        }
        let allowance = Allowance { moves: self.moves as usize, may_balance: is_settled && !is_waiting };
        let result = plan(&streams, &sites, &self.policy, allowance);
        for (stream, from) in taken_back {
            requests.extend(self.assign(view, now, &stream, from, Reason::Failed));
        }
        for step in &result.moves {
            if matches!(step.reason, Reason::Drain | Reason::Balance) {
                self.moves -= 1.0;
            }
            let session = items.nodes[&step.to].value.session;
            let owner = Member { node: step.to.clone(), session };
            requests.extend(self.assign(view, now, &step.stream, owner, step.reason));
        }
        requests
    }

    fn refill(&mut self, now: Duration) {
        let minutes = now.saturating_sub(self.refilled_at).as_secs_f64() / 60.0;
        // After a pause, the moves of six seconds may be made at once.
        let most = (self.policy.moves_per_minute / 10.0).max(1.0);
        self.moves = (self.moves + minutes * self.policy.moves_per_minute).min(most);
        self.refilled_at = now;
    }

    /// The assignment that the planner knows: the one that it has written, or that of the view.
    fn assignment<'a>(&'a self, view: &'a View, stream: &str) -> Option<&'a Assignment> {
        let written = self.written.get(stream).map(|written| &written.assignment);
        written.or_else(|| view.items().assignments.get(stream).map(|assignment| &assignment.value))
    }

    fn progress(&mut self, now: Duration, view: &View, stream: &str, assignment: &Assignment) -> Progress {
        let known = self.known_since.entry(stream.to_owned()).or_insert((assignment.epoch, now));
        if known.0 != assignment.epoch {
            *known = (assignment.epoch, now);
        }
        let since = known.1;
        if self.written.contains_key(stream) {
            return Progress::Starting;
        }
        let status = view.items().statuses.get(stream).map(|status| &status.value);
        match status.filter(|status| status.epoch == assignment.epoch).map(|status| status.state) {
            Some(StreamState::Failed) => Progress::Failed,
            _ if assignment.has_result(status) => Progress::Settled,
            // A lost source is lost on all nodes, so a stream that waits may move if no hand-over is in progress.
            Some(StreamState::Waiting) if assignment.from.is_none() => Progress::Settled,
            _ if assignment.from.is_some() && now.saturating_sub(since) >= self.policy.handover => Progress::Failed,
            _ => Progress::Starting,
        }
    }

    fn avoid(&mut self, now: Duration, stream: &str, node: &str) {
        self.avoids.insert((stream.to_owned(), node.to_owned()), now + self.policy.retry_after);
    }

    fn assign(&mut self, view: &View, now: Duration, stream: &str, owner: Member, reason: Reason) -> Option<(Purpose, Request)> {
        let purpose = Purpose::Assign(stream.to_owned());
        // The write before has no revision yet, or the view does not show it yet.
        if self.written.contains_key(stream) || self.busy.contains(&purpose) {
            return None;
        }
        let spec = view.items().streams.get(stream)?;
        let earlier = view.items().assignments.get(stream);
        let epoch = earlier.map_or(view.newest().0, |earlier| earlier.value.epoch.0 + 1).max(spec.revision.0);
        let from = earlier.and_then(|earlier| self.from(view, now, &earlier.value, &owner));
        let interruption = earlier.and_then(|earlier| interruption(view, stream, &earlier.value, from.is_some(), reason));
        let assignment = Assignment { owner, epoch: Epoch(epoch), from, interruption };
        let (key, value, ttl) = (keys::assign(stream), to_json(&assignment), None);
        let request = match earlier {
            Some(Versioned { revision, .. }) => Request::Update { key, revision: *revision, value, ttl },
            None => Request::Create { key, value, ttl },
        };
        self.written.insert(stream.to_owned(), Written { assignment: assignment.clone(), revision: None });
        self.decisions.push(Decision { stream: stream.to_owned(), assignment, reason });
        self.busy.insert(purpose.clone());
        Some((purpose, request))
    }

    /// Ends a hand-over: the assignment has no earlier owner any more. Otherwise a stream that fails later would look like a hand-over that
    /// failed, and be taken back. `interruption` is set if the earlier owner has ended before the first result.
    fn complete(&mut self, view: &View, stream: &str, interruption: Option<Interruption>) -> Option<(Purpose, Request)> {
        let purpose = Purpose::Assign(stream.to_owned());
        if self.written.contains_key(stream) || self.busy.contains(&purpose) {
            return None;
        }
        let Versioned { revision, value } = view.items().assignments.get(stream)?;
        let interruption = value.interruption.clone().or(interruption);
        let assignment = Assignment { from: None, interruption, ..value.clone() };
        let request = Request::Update { key: keys::assign(stream), revision: *revision, value: to_json(&assignment), ttl: None };
        self.written.insert(stream.to_owned(), Written { assignment, revision: None });
        self.busy.insert(purpose.clone());
        Some((purpose, request))
    }

    /// The member that may run the stream until the new owner has published a result: the earlier owner if it is alive, otherwise the owner
    /// before it, if it has not been replaced yet.
    fn from(&self, view: &View, now: Duration, earlier: &Assignment, owner: &Member) -> Option<Ownership> {
        let is_alive = |member: &Member| view.life(member, now, &self.timing) == Life::Alive;
        let present = Ownership { owner: earlier.owner.clone(), epoch: earlier.epoch };
        let candidates = [Some(present), earlier.from.clone()].into_iter().flatten();
        candidates.into_iter().find(|candidate| candidate.owner != *owner && is_alive(&candidate.owner))
    }

    /// Writes assignments again that were removed although their streams exist: all if this planner is elected, otherwise those of this node.
    fn restore(&mut self, now: Duration, view: &View, member: &Member) -> Vec<(Purpose, Request)> {
        let is_mine = |value: &Assignment| self.is_elected(now) || value.owner == *member;
        let removed = view.items().assignments.iter().filter(|(_, item)| item.revision == REMOVED && is_mine(&item.value));
        let removed: Vec<_> = removed.map(|(stream, item)| (stream.clone(), item.value.clone())).collect();
        let mut requests = Vec::new();
        for (stream, assignment) in removed {
            let purpose = Purpose::Assign(stream.clone());
            if self.busy.insert(purpose.clone()) {
                let (key, value) = (keys::assign(&stream), to_json(&assignment));
                self.written.insert(stream, Written { assignment, revision: None });
                requests.push((purpose, Request::Create { key, value, ttl: None }));
            }
        }
        requests
    }

    fn bury(&mut self, member: &Member) -> Option<(Purpose, Request)> {
        let purpose = Purpose::Bury(member.node.clone());
        if !self.busy.insert(purpose.clone()) {
            return None;
        }
        let record = NodeRecord { session: member.session, presence: Presence::Dead, first_session: None, facts: Facts::default() };
        let (key, value, ttl) = (keys::node(&member.node), to_json(&record), Some(self.timing.burial));
        Some((purpose, Request::Create { key, value, ttl }))
    }

    /// Deletes the items of removed streams. The assignment stays while a node that does not see the removal may run the stream: if the stream
    /// is added again, no other node takes it until then.
    fn clean(&mut self, now: Duration, view: &View) -> Vec<(Purpose, Request)> {
        let items = view.items();
        let is_removed = |stream: &String| !items.streams.contains_key(stream) && !is_unreadable(view, stream);
        let mut requests = Vec::new();
        let mut deletes: Vec<(String, Revision)> = Vec::new();
        for (stream, item) in items.assignments.iter().filter(|(stream, item)| is_removed(stream) && item.revision != REMOVED) {
            let owners = std::iter::once(&item.value.owner).chain(item.value.from.as_ref().map(|from| &from.owner));
            let lives: Vec<(&Member, Life)> = owners.map(|owner| (owner, view.life(owner, now, &self.timing))).collect();
            let expired = lives.iter().filter(|(_, life)| *life == Life::Expired);
            requests.extend(expired.filter_map(|(owner, _)| self.bury(owner)));
            if lives.iter().all(|(_, life)| matches!(life, Life::Alive | Life::Gone)) {
                deletes.push((keys::assign(stream), item.revision));
            }
        }
        deletes.extend(
            items.statuses.iter().filter(|(stream, _)| is_removed(stream)).map(|(stream, item)| (keys::status(stream), item.revision)),
        );
        let deletes = deletes.into_iter().map(|(key, revision)| (Purpose::Clean(key.clone()), Request::Delete { key, revision }));
        requests.extend(deletes.filter(|(purpose, _)| self.busy.insert(purpose.clone())));
        requests
    }
}

/// What interrupts a stream whose next assignment replaces `earlier`; `None`: the earlier owner runs it until the next owner has a result.
fn interruption(view: &View, stream: &str, earlier: &Assignment, runs_on: bool, reason: Reason) -> Option<Interruption> {
    let status = view.items().statuses.get(stream).map(|status| &status.value);
    if earlier.interruption.is_some() && !earlier.has_result(status) {
        // The earlier owner has not reported it: it would do so after its first result.
        return earlier.interruption.clone();
    }
    let earlier = Ownership { owner: earlier.owner.clone(), epoch: earlier.epoch };
    match reason {
        Reason::Failed => Some(Interruption { earlier, cause: Cause::StreamFailed }),
        _ if runs_on => None,
        _ => Some(ended(view, &earlier)),
    }
}

/// The interruption by an owner whose session has ended.
fn ended(view: &View, earlier: &Ownership) -> Interruption {
    let record = view.items().nodes.get(&earlier.owner.node).map(|record| &record.value);
    let has_left = record.is_some_and(|record| record.session == earlier.owner.session && record.presence == Presence::Left);
    Interruption { earlier: earlier.clone(), cause: if has_left { Cause::NodeLeft } else { Cause::NodeLost } }
}

/// How far an owner has come with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The owner starts it.
    Starting,
    /// It runs, or waits for its source.
    Settled,
    /// The owner cannot run it.
    Failed,
}

fn is_unreadable(view: &View, stream: &str) -> bool {
    let unreadable = &view.items().unreadable;
    !unreadable.is_empty()
        && [keys::stream(stream), keys::assign(stream), keys::status(stream)].iter().any(|key| unreadable.contains_key(key))
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::coordinator::{Change, Item};
    use crate::types::{Capacity, Session, Status, StreamSpec};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(1000 + seconds)
    }

    fn member(node: &str) -> Member {
        Member { node: node.to_owned(), session: Session(1) }
    }

    /// A planner with the lock, and what it sees.
    #[derive(Clone)]
    struct Elected {
        planner: Planner,
        view: View,
        revision: u64,
    }

    impl Elected {
        /// The nodes `a` and `b`, and the stream `s`.
        fn new() -> Self {
            let mut view = View::default();
            view.apply(at(0), Change::Begin);
            let mut elected = Self { planner: Planner::new(Timing::default(), Policy::default()), view, revision: 0 };
            for node in ["a", "b"] {
                let facts = Facts { capacity: Capacity { default: 100.0, ..Capacity::default() }, ..Facts::default() };
                let record = NodeRecord { session: Session(1), presence: Presence::Present, first_session: None, facts };
                elected.see(0, &keys::node(node), &record);
            }
            let spec = StreamSpec {
                description: serde_json::json!({}),
                model: String::new(),
                cost: 25.0,
                memory: 0,
                constraints: BTreeMap::new(),
            };
            elected.see(0, &keys::stream("s"), &spec);
            let scope = elected.view.apply(at(0), Change::Current);
            elected.planner.changed(at(0), &elected.view, &scope);
            let asked = elected.planner.tick(at(0), &elected.view, Some(&member("a")));
            assert!(matches!(&asked[..], [(Purpose::Lock, Request::Create { .. })]), "{asked:?}");
            elected.planner.reply(at(0), &elected.view, &Purpose::Lock, &Ok(Reply::Written(Revision(900))));
            elected
        }

        fn see(&mut self, seconds: u64, key: &str, value: &impl Serialize) {
            self.revision += 1;
            let item = Item { key: key.to_owned(), revision: Revision(self.revision), value: to_json(value) };
            let scope = self.view.apply(at(seconds), Change::Put(item));
            self.planner.changed(at(seconds), &self.view, &scope);
        }

        /// Passes time, and returns the assignments that are written for the stream, which the planner then sees.
        fn pass(&mut self, seconds: u64) -> Option<Assignment> {
            let requests = self.planner.plan(at(seconds), &self.view);
            let (purpose, request) = requests.into_iter().find(|(purpose, _)| matches!(purpose, Purpose::Assign(_)))?;
            let (Request::Create { value, .. } | Request::Update { value, .. }) = request else { return None };
            let assignment: Assignment = serde_json::from_slice(&value).unwrap();
            self.planner.reply(at(seconds), &self.view, &purpose, &Ok(Reply::Written(Revision(self.revision + 1))));
            self.see(seconds, &keys::assign("s"), &assignment);
            Some(assignment)
        }

        /// The node `b` reports a state in epoch 4.
        fn state(&mut self, seconds: u64, state: StreamState) {
            let had_result = self.view.items().statuses.get("s").is_some_and(|status| status.value.has_result);
            let has_result = had_result || state == StreamState::Running;
            self.see(seconds, &keys::status("s"), &Status { owner: member("b"), epoch: Epoch(4), state, has_result, reason: None });
        }
    }

    #[test]
    fn a_hand_over_ends_with_the_first_result_and_a_lost_camera_does_not_undo_it() {
        let mut planner = Elected::new();
        let from = Some(Ownership { owner: member("a"), epoch: Epoch(3) });
        let handed_over = Assignment { owner: member("b"), epoch: Epoch(4), from, interruption: None };
        planner.see(1, &keys::assign("s"), &handed_over);
        assert_eq!(planner.pass(2), None, "the new owner starts the stream");
        planner.state(3, StreamState::Running);
        assert_eq!(planner.pass(4), Some(Assignment { from: None, ..handed_over }));
        planner.state(5, StreamState::Waiting);
        assert_eq!(planner.pass(8), None, "the camera is lost on all nodes");
    }

    #[test]
    fn an_assignment_names_the_owner_that_could_not_run_the_stream_on() {
        let mut planner = Elected::new();
        let first = Assignment { owner: member("b"), epoch: Epoch(4), from: None, interruption: None };
        planner.see(1, &keys::assign("s"), &first);
        planner.state(2, StreamState::Running);
        let earlier = Ownership { owner: member("b"), epoch: Epoch(4) };
        let interruption = |cause| Some(Interruption { earlier: earlier.clone(), cause });
        let left = NodeRecord { session: Session(1), presence: Presence::Left, first_session: None, facts: Facts::default() };
        let mut of_node_that_left = planner.clone();
        of_node_that_left.see(20, &keys::node("b"), &left);
        assert_eq!(of_node_that_left.pass(21).unwrap().interruption, interruption(Cause::NodeLeft));
        let mut of_dead_node = planner.clone();
        of_dead_node.see(20, &keys::node("b"), &NodeRecord { presence: Presence::Dead, ..left });
        assert_eq!(of_dead_node.pass(40).unwrap().interruption, interruption(Cause::NodeLost));
        let mut of_failed_stream = planner.clone();
        of_failed_stream.state(20, StreamState::Failed);
        assert_eq!(of_failed_stream.pass(21).unwrap().interruption, interruption(Cause::StreamFailed));
        let mut of_drained_node = planner;
        of_drained_node.see(20, &keys::drain("b"), &crate::types::Drain::default());
        let moved = of_drained_node.pass(21).unwrap();
        assert_eq!((moved.from, moved.interruption), (Some(earlier), None), "the earlier owner runs it until then");
    }

    /// A planner that sees a hand-over from `a` to `b`, and the earlier owner.
    fn handed_over() -> (Elected, Ownership) {
        let mut planner = Elected::new();
        let from = Ownership { owner: member("a"), epoch: Epoch(3) };
        let assignment = Assignment { owner: member("b"), epoch: Epoch(4), from: Some(from.clone()), interruption: None };
        planner.see(1, &keys::assign("s"), &assignment);
        (planner, from)
    }

    #[test]
    fn an_earlier_owner_that_ends_before_the_first_result_interrupts_the_stream() {
        let (mut planner, from) = handed_over();
        let removed = planner.view.apply(at(2), Change::Removed { key: keys::node("a") });
        planner.planner.changed(at(2), &planner.view, &removed);
        assert_eq!(planner.pass(5), None, "it may come back");
        let requests = planner.planner.plan(at(20), &planner.view);
        assert!(matches!(&requests[..], [(Purpose::Bury(node), _)] if node == "a"), "{requests:?}");
        let dead = NodeRecord { session: Session(1), presence: Presence::Dead, first_session: None, facts: Facts::default() };
        planner.see(21, &keys::node("a"), &dead);
        let interruption = Some(Interruption { earlier: from, cause: Cause::NodeLost });
        let expected = Assignment { owner: member("b"), epoch: Epoch(4), from: None, interruption };
        assert_eq!(planner.pass(22), Some(expected));
        assert_eq!(planner.pass(90), None, "nobody can take the stream back");
    }

    #[test]
    fn an_earlier_owner_that_ends_after_the_first_result_interrupts_nothing() {
        let (mut planner, _) = handed_over();
        planner.state(2, StreamState::Running);
        planner.state(3, StreamState::Waiting);
        let left = NodeRecord { session: Session(1), presence: Presence::Left, first_session: None, facts: Facts::default() };
        planner.see(3, &keys::node("a"), &left);
        assert_eq!(planner.pass(4), Some(Assignment { owner: member("b"), epoch: Epoch(4), from: None, interruption: None }));
    }

    #[test]
    fn an_interruption_is_passed_on_by_an_owner_without_a_result() {
        let mut planner = Elected::new();
        let interruption = Some(Interruption { earlier: Ownership { owner: member("c"), epoch: Epoch(3) }, cause: Cause::NodeLost });
        let first = Assignment { owner: member("b"), epoch: Epoch(4), from: None, interruption: interruption.clone() };
        planner.see(1, &keys::assign("s"), &first);
        planner.state(2, StreamState::Waiting);
        planner.see(3, &keys::drain("b"), &crate::types::Drain::default());
        let mut with_result = planner.clone();
        let moved = planner.pass(20).unwrap();
        assert_eq!((moved.owner, moved.interruption), (member("a"), interruption));
        with_result.state(4, StreamState::Running);
        assert_eq!(with_result.pass(20).unwrap().interruption, None, "it was reported");
    }

    #[test]
    fn a_removed_assignment_of_a_stream_that_exists_is_written_again() {
        let mut planner = Elected::new();
        let assignment = Assignment { owner: member("b"), epoch: Epoch(4), from: None, interruption: None };
        planner.see(1, &keys::assign("s"), &assignment);
        planner.state(2, StreamState::Running);
        let removed = planner.view.apply(at(20), Change::Removed { key: keys::assign("s") });
        planner.planner.changed(at(20), &planner.view, &removed);
        let mut of_owner = Planner::new(Timing::default(), Policy::default());
        let other = of_owner.tick(at(20), &planner.view, Some(&member("c")));
        assert!(other.iter().all(|(purpose, _)| *purpose == Purpose::Lock), "it is not its stream: {other:?}");
        for requests in [of_owner.restore(at(20), &planner.view, &member("b")), planner.planner.restore(at(1), &planner.view, &member("a"))]
        {
            let [(_, Request::Create { key, value, .. })] = &requests[..] else { panic!("{requests:?}") };
            assert_eq!((&**key, serde_json::from_slice::<Assignment>(value).unwrap()), ("assign.s", assignment.clone()));
        }
        assert_eq!(planner.pass(21), None, "the owner runs on");
    }

    #[test]
    fn a_stream_that_is_removed_and_added_again_waits_until_an_owner_that_is_cut_off_has_stopped() {
        let mut planner = Elected::new();
        let first = Assignment { owner: member("b"), epoch: Epoch(4), from: None, interruption: None };
        planner.see(1, &keys::assign("s"), &first);
        planner.state(2, StreamState::Running);
        let spec = planner.view.items().streams["s"].value.clone();
        let remove = |planner: &mut Elected, time, key: String| {
            let scope = planner.view.apply(at(time), Change::Removed { key });
            planner.planner.changed(at(time), &planner.view, &scope);
        };
        let deletes = |planner: &mut Elected, time| {
            let requests = planner.planner.plan(at(time), &planner.view);
            requests.iter().any(|(_, request)| matches!(request, Request::Delete { key, .. } if *key == keys::assign("s")))
        };
        let mut of_living_owner = planner.clone();
        remove(&mut of_living_owner, 3, keys::stream("s"));
        assert!(deletes(&mut of_living_owner, 3), "the owner sees the removal");

        remove(&mut planner, 3, keys::node("b"));
        remove(&mut planner, 3, keys::stream("s"));
        let mut not_added_again = planner.clone();
        assert!(!deletes(&mut planner, 4), "the owner may run on");
        planner.see(5, &keys::stream("s"), &spec);
        assert_eq!(planner.pass(6), None);
        let requests = planner.planner.plan(at(20), &planner.view);
        assert!(matches!(&requests[..], [(Purpose::Bury(node), _)] if node == "b"), "{requests:?}");
        let requests = not_added_again.planner.plan(at(20), &not_added_again.view);
        assert!(requests.iter().any(|(purpose, _)| *purpose == Purpose::Bury("b".to_owned())), "{requests:?}");
        let dead = NodeRecord { session: Session(1), presence: Presence::Dead, first_session: None, facts: Facts::default() };
        planner.see(21, &keys::node("b"), &dead);
        not_added_again.see(21, &keys::node("b"), &dead);
        assert_eq!(planner.pass(22).unwrap().owner, member("a"));
        assert!(deletes(&mut not_added_again, 22));
    }

    #[test]
    fn a_stream_that_was_found_without_an_assignment_waits_until_an_unknown_owner_has_stopped() {
        let mut planner = Elected::new();
        assert_eq!(planner.pass(13), None);
        planner.planner.reply(at(13), &planner.view, &Purpose::Lock, &Ok(Reply::Written(Revision(901))));
        let mut of_new_stream = planner.clone();
        assert_eq!(planner.pass(14).unwrap().epoch, Epoch(3), "the newest revision");
        let spec = of_new_stream.view.items().streams["s"].value.clone();
        of_new_stream.see(13, &keys::stream("s"), &spec);
        assert!(of_new_stream.pass(13).is_some(), "it was added while the planner watched");
    }

    #[test]
    fn a_planner_does_nothing_until_the_lock_of_another_is_free() {
        let mut elected = Elected::new();
        elected.see(1, keys::PLANNER, &PlannerLock { planner: member("b") });
        elected.planner.reply(at(1), &elected.view, &Purpose::Lock, &Err(Error::Conflict));
        elected.planner.lock_sent = Some(at(1));
        elected.planner.reply(at(1), &elected.view, &Purpose::Lock, &Err(Error::Conflict));
        assert!(elected.planner.tick(at(20), &elected.view, Some(&member("a"))).is_empty());
        assert!(elected.planner.next_tick(at(20), &elected.view) > at(20));
    }
}
