//! What a node knows of all items, from its watch, and since when it has seen signs of other nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::coordinator::{Change, Item, Revision};
use crate::keys::Key;
use crate::timing::Timing;
use crate::types::{Assignment, Drain, Member, NodeRecord, PlannerLock, Presence, Status, StreamSpec};

/// Revision of an item that does not exist, but is still in effect.
pub const REMOVED: Revision = Revision(0);

/// A value with its revision.
#[derive(Debug, Clone, PartialEq)]
pub struct Versioned<T> {
    /// Revision of the item.
    pub revision: Revision,
    /// Its value.
    pub value: T,
}

/// The items, decoded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Items {
    /// Specifications by stream.
    pub streams: BTreeMap<String, Versioned<StreamSpec>>,
    /// Records by node.
    pub nodes: BTreeMap<String, Versioned<NodeRecord>>,
    /// Assignments by stream.
    pub assignments: BTreeMap<String, Versioned<Assignment>>,
    /// States by stream.
    pub statuses: BTreeMap<String, Versioned<Status>>,
    /// Requests to drain, by node.
    pub drains: BTreeMap<String, Versioned<Drain>>,
    /// The planner's lock.
    pub lock: Option<Versioned<PlannerLock>>,
    /// Items that this version cannot read, by key, with the error. They are never written.
    pub unreadable: BTreeMap<String, String>,
}

/// Which items a change concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// No item that this version uses.
    Nothing,
    /// Possibly all items: the view is complete again.
    All,
    /// Items of a stream: its specification, assignment or state.
    Stream(String),
    /// Items of a node: its record, or a request to drain it.
    Node(String),
    /// The planner's lock.
    Lock,
}

/// Whether a session may still run streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Its record is present.
    Alive,
    /// Its record is not present, but it may still run streams.
    Silent,
    /// It has stopped its streams, but its record must be replaced before another node takes them: it could still come back.
    Expired,
    /// It has stopped its streams and cannot come back.
    Gone,
}

/// What a node knows; see the module documentation.
#[derive(Debug, Clone, Default)]
pub struct View {
    items: Items,
    /// The items of a snapshot that is not complete.
    next: Option<Items>,
    /// Since when the watch is complete and without interruption.
    current_since: Option<Duration>,
    /// When the watch last delivered a present record of each session.
    signs: BTreeMap<Member, Duration>,
    /// Highest revision of the items of the last complete snapshot.
    of_snapshot: Revision,
    /// Highest revision of all items so far.
    newest: Revision,
}

/// Signs that are older than this have no effect, because sessions are taken over earlier.
const OLD_SIGN: Duration = Duration::from_secs(3600);

impl View {
    /// Returns the items of the last complete snapshot with all later changes.
    pub fn items(&self) -> &Items {
        &self.items
    }

    /// Whether all changes up to a short time ago are known.
    pub fn is_current(&self) -> bool {
        self.current_since.is_some()
    }

    /// Returns the highest revision of all items that were seen.
    pub fn newest(&self) -> Revision {
        self.newest
    }

    /// Since when the view is complete, if this item was there before: it was not written while this node watched.
    pub fn found_since(&self, revision: Revision) -> Option<Duration> {
        self.current_since.filter(|_| revision <= self.of_snapshot)
    }

    /// Applies a change of the watch at a time.
    ///
    /// Only the planner removes an assignment, and only that of a removed stream. If the stream still exists, the removal is of somebody
    /// else, and the owner may run on. So the assignment stays, with the revision [`REMOVED`], until it is written again.
    pub fn apply(&mut self, now: Duration, change: Change) -> Scope {
        match change {
            Change::Begin => {
                self.current_since = None;
                self.next = Some(Items::default());
                Scope::Nothing
            }
            Change::Current => {
                if let Some(next) = self.next.take() {
                    let before = std::mem::replace(&mut self.items, next);
                    for (stream, Versioned { value, .. }) in before.assignments {
                        self.items.keep_assignment(&stream, value);
                    }
                }
                self.of_snapshot = self.newest;
                self.current_since = Some(now);
                self.signs.retain(|_, sign| now.saturating_sub(*sign) < OLD_SIGN);
                Scope::All
            }
            Change::Interrupted => {
                self.current_since = None;
                self.next = None;
                Scope::Nothing
            }
            Change::Put(item) => {
                self.newest = self.newest.max(item.revision);
                let items = self.next.as_mut().unwrap_or(&mut self.items);
                let scope = items.put(&item);
                if let Scope::Node(node) = &scope
                    && let Some(record) = items.nodes.get(node).map(|record| &record.value)
                    && record.presence == Presence::Present
                {
                    self.signs.insert(Member { node: node.clone(), session: record.session }, now);
                }
                scope
            }
            Change::Removed { key } => {
                let items = self.next.as_mut().unwrap_or(&mut self.items);
                let assignment = match Key::parse(&key) {
                    Some(Key::Assign(stream)) => items.assignments.get(stream).map(|assignment| (stream, assignment.value.clone())),
                    _ => None,
                };
                let scope = items.remove(&key);
                if let Some((stream, assignment)) = assignment {
                    items.keep_assignment(stream, assignment);
                }
                scope
            }
        }
    }

    /// Returns whether a session may still run streams.
    ///
    /// A session is `Expired` or `Gone` only if two conditions hold. The coordinator has no present record of the session. And this
    /// node has watched without interruption, and without a sign of the session, for [`Timing::takeover`]. The second condition covers
    /// nodes that were allowed to run on while the coordinator was down.
    pub fn life(&self, member: &Member, now: Duration, timing: &Timing) -> Life {
        let record = self.items.nodes.get(&member.node).map(|record| &record.value);
        if record.is_some_and(|record| record.has_ended(member.session)) {
            return Life::Gone;
        }
        let own = record.filter(|record| record.session == member.session);
        match own.map(|record| record.presence) {
            Some(Presence::Present) => return Life::Alive,
            Some(Presence::Left) => return Life::Gone,
            Some(Presence::Dead) | None => {}
        }
        let Some(since) = self.current_since else { return Life::Silent };
        let last_sign = self.signs.get(member).map_or(since, |sign| since.max(*sign));
        if now.saturating_sub(last_sign) < timing.takeover {
            return Life::Silent;
        }
        if record.is_some() { Life::Gone } else { Life::Expired }
    }
}

impl Items {
    /// Keeps an assignment that was removed although its stream exists.
    fn keep_assignment(&mut self, stream: &str, value: Assignment) {
        let key = crate::keys::assign(stream);
        if self.streams.contains_key(stream) && !self.assignments.contains_key(stream) && !self.unreadable.contains_key(&key) {
            self.assignments.insert(stream.to_owned(), Versioned { revision: REMOVED, value });
        }
    }

    fn put(&mut self, item: &Item) -> Scope {
        let Some(key) = Key::parse(&item.key) else { return Scope::Nothing };
        self.unreadable.remove(&item.key);
        let (scope, result) = match key {
            Key::Stream(name) => (Scope::Stream(name.to_owned()), insert(&mut self.streams, name, item)),
            Key::Assign(name) => (Scope::Stream(name.to_owned()), insert(&mut self.assignments, name, item)),
            Key::Status(name) => (Scope::Stream(name.to_owned()), insert(&mut self.statuses, name, item)),
            Key::Node(name) => (Scope::Node(name.to_owned()), insert(&mut self.nodes, name, item)),
            Key::Drain(name) => (Scope::Node(name.to_owned()), insert(&mut self.drains, name, item)),
            Key::Planner => {
                let lock = decode(item);
                let result = lock.as_ref().map(|_| ()).map_err(Clone::clone);
                self.lock = lock.ok();
                (Scope::Lock, result)
            }
        };
        if let Err(error) = result {
            self.unreadable.insert(item.key.clone(), error);
        }
        scope
    }

    fn remove(&mut self, key: &str) -> Scope {
        self.unreadable.remove(key);
        match Key::parse(key) {
            None => Scope::Nothing,
            Some(Key::Stream(name)) => removed(&mut self.streams, name, Scope::Stream),
            Some(Key::Assign(name)) => removed(&mut self.assignments, name, Scope::Stream),
            Some(Key::Status(name)) => removed(&mut self.statuses, name, Scope::Stream),
            Some(Key::Node(name)) => removed(&mut self.nodes, name, Scope::Node),
            Some(Key::Drain(name)) => removed(&mut self.drains, name, Scope::Node),
            Some(Key::Planner) => {
                self.lock = None;
                Scope::Lock
            }
        }
    }
}

fn decode<T: DeserializeOwned>(item: &Item) -> Result<Versioned<T>, String> {
    let value = serde_json::from_slice(&item.value).map_err(|error| error.to_string())?;
    Ok(Versioned { revision: item.revision, value })
}

/// Inserts the decoded item. An item that cannot be read is not in the map, also if an earlier version of it was.
fn insert<T: DeserializeOwned>(map: &mut BTreeMap<String, Versioned<T>>, name: &str, item: &Item) -> Result<(), String> {
    map.remove(name);
    map.insert(name.to_owned(), decode(item)?);
    Ok(())
}

fn removed<T>(map: &mut BTreeMap<String, T>, name: &str, scope: fn(String) -> Scope) -> Scope {
    map.remove(name);
    scope(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;
    use crate::types::{Facts, Session, to_json};

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn record(session: u64, presence: Presence) -> Change {
        let value = to_json(&NodeRecord { session: Session(session), presence, first_session: None, facts: Facts::default() });
        Change::Put(Item { key: keys::node("a"), revision: Revision(1), value })
    }

    fn member(session: u64) -> Member {
        Member { node: "a".to_owned(), session: Session(session) }
    }

    fn view(changes: &[(u64, Change)]) -> View {
        let mut view = View::default();
        view.apply(at(0), Change::Begin);
        view.apply(at(0), Change::Current);
        for (time, change) in changes {
            view.apply(at(*time), change.clone());
        }
        view
    }

    fn life(view: &View, time: u64) -> Life {
        view.life(&member(1), at(time), &Timing::default())
    }

    #[test]
    fn a_session_whose_record_is_removed_is_silent_first() {
        let removed = Change::Removed { key: keys::node("a") };
        let view = view(&[(1, record(1, Presence::Present)), (16, record(1, Presence::Present)), (17, removed)]);
        assert_eq!((life(&view, 17), life(&view, 29), life(&view, 30)), (Life::Silent, Life::Silent, Life::Expired));
    }

    #[test]
    fn a_replaced_record_ends_a_session_only_after_the_takeover_time() {
        let view = view(&[(10, record(1, Presence::Present)), (11, record(2, Presence::Present))]);
        assert_eq!((life(&view, 23), life(&view, 24)), (Life::Silent, Life::Gone));
        assert_eq!(view.life(&member(2), at(100), &Timing::default()), Life::Alive);
    }

    #[test]
    fn a_session_that_its_own_process_has_ended_is_gone_at_once() {
        let joined_again = |first| {
            let first_session = Some(Session(first));
            let value = to_json(&NodeRecord { session: Session(3), presence: Presence::Present, first_session, facts: Facts::default() });
            Change::Put(Item { key: keys::node("a"), revision: Revision(2), value })
        };
        let before = (10, record(1, Presence::Present));
        assert_eq!(life(&view(&[before.clone(), (11, joined_again(1))]), 11), Life::Gone);
        assert_eq!(life(&view(&[before, (11, joined_again(2))]), 11), Life::Silent, "a session of an earlier process");
    }

    #[test]
    fn an_assignment_that_is_removed_although_its_stream_exists_stays_in_effect() {
        let put = |key: String, revision, value| Change::Put(Item { key, revision: Revision(revision), value });
        let stream = || put(keys::stream("s"), 1, br#"{"description":{}}"#.to_vec());
        let assignment = Assignment { owner: member(1), epoch: crate::types::Epoch(7), from: None, interruption: None };
        let removed = |key: String| Change::Removed { key };
        let mut view = view(&[(1, stream()), (2, put(keys::assign("s"), 2, to_json(&assignment)))]);
        assert_eq!(view.apply(at(3), removed(keys::assign("s"))), Scope::Stream("s".to_owned()));
        let kept = Some(Versioned { revision: REMOVED, value: assignment.clone() });
        assert_eq!(view.items().assignments.get("s"), kept.as_ref());
        // A snapshot without it changes nothing.
        for change in [Change::Interrupted, Change::Begin, stream(), Change::Current] {
            view.apply(at(4), change);
        }
        assert_eq!(view.items().assignments.get("s"), kept.as_ref());
        view.apply(at(5), put(keys::assign("s"), 9, to_json(&assignment)));
        assert_eq!(view.items().assignments["s"].revision, Revision(9));
        // The planner removes the assignment of a removed stream.
        view.apply(at(6), removed(keys::stream("s")));
        view.apply(at(6), removed(keys::assign("s")));
        assert!(view.items().assignments.is_empty());
    }

    #[test]
    fn a_session_that_left_is_gone_at_once() {
        assert_eq!(life(&view(&[(10, record(1, Presence::Present)), (11, record(1, Presence::Left))]), 11), Life::Gone);
    }

    #[test]
    fn an_interruption_of_the_watch_begins_the_takeover_time_again() {
        let mut view = view(&[(1, record(1, Presence::Dead))]);
        assert_eq!(life(&view, 20), Life::Gone);
        view.apply(at(20), Change::Interrupted);
        assert_eq!(life(&view, 90), Life::Silent);
        view.apply(at(91), Change::Begin);
        view.apply(at(91), record(1, Presence::Dead));
        view.apply(at(92), Change::Current);
        assert_eq!((life(&view, 105), life(&view, 106)), (Life::Silent, Life::Gone));
    }

    #[test]
    fn items_of_a_snapshot_replace_earlier_items_at_its_end() {
        let mut view = view(&[(1, record(1, Presence::Present))]);
        view.apply(at(2), Change::Interrupted);
        view.apply(at(3), Change::Begin);
        assert!(view.items().nodes.contains_key("a"), "the earlier items are known until the snapshot is complete");
        assert_eq!(view.apply(at(3), Change::Current), Scope::All);
        assert!(view.items().nodes.is_empty());
    }

    #[test]
    fn an_item_that_cannot_be_read_is_reported_and_not_used() {
        let mut view = view(&[(1, record(1, Presence::Present))]);
        view.apply(at(2), Change::Put(Item { key: keys::node("a"), revision: Revision(2), value: b"{".to_vec() }));
        assert!(view.items().nodes.is_empty() && view.items().unreadable.contains_key("nodes.a"));
        view.apply(at(3), record(1, Presence::Present));
        assert!(view.items().unreadable.is_empty());
    }
}
