//! The lease of a node: joins, renews, leaves. A state machine without threads and clocks.
//!
//! The record `nodes.<node>` is the lease. [`Membership::deadline`] is the time on the node's own clock at which its streams must stop.
//!
//! # The rule for a coordinator that does not answer
//!
//! A node that cannot renew cannot know whether other nodes still reach the coordinator. If they do, its streams are taken over, so the
//! node must stop them before. Therefore:
//!
//! 1. **No answer** ([`Error::Unreachable`]): the deadline stays. At the deadline the node stops its streams, and joins with a new session
//!    as soon as it can. With the option `keep-running` it does not stop them.
//! 2. **The coordinator is down** ([`Error::Down`]): nobody can take over a stream. A refused connection proves this for the time of the attempt, so
//!    the deadline moves to [`Timing::fence`] after that time, as for a renewal. As long as the coordinator is down, and the node asks it
//!    again and again, the streams run on without limit.
//! 3. **After the coordinator is back**, a planner does not declare any node dead before it has watched without interruption for
//!    [`Timing::takeover`]. This is longer than the time that rule 2 gives to a node. In this time the nodes renew their leases. So nothing
//!    is planned again, although the times to live of all records ended while the coordinator was down.
//! 4. **To declare a node dead**, the planner creates the node's record with [`Presence::Dead`]. This fails if the node has renewed its
//!    record in the meantime. It makes later renewals of that session fail. So the coordinator decides in one step which of both was first.
//!
//! # States
//!
//! | state | the node's streams run | waits for |
//! |---|---|---|
//! | `Out` | no | the time of the next attempt |
//! | `Reading`, `Joining` | no | the reply to a read or write of the record |
//! | `Present`, `Idle` | until the deadline | the time of the next renewal |
//! | `Present`, `Renewing` | until the deadline | the reply to the renewal |
//! | `Present`, `Checking` | until the deadline | the reply to a read of the record, after a conflict |
//! | `Leaving` | no | the reply to the write of `Left` |
//! | `Left` | no | nothing |
//!
//! # Transitions
//!
//! `renew_at` is the time of the next attempt. A new session is the number after the last one.
//!
//! | trigger | in state | next state | effect |
//! |---|---|---|---|
//! | time `renew_at` | `Out` | `Reading` | read the record |
//! | reply: no record, or a record of this process, or one that is `Left` or `Dead` | `Reading` | `Joining` | create or update the record |
//! | reply: another process is present under this name | `Reading` | `Out` | `NameInUse`, if it was not reported before |
//! | reply: written | `Joining` | `Present`, `Idle` | deadline = sent + `fence`; `Joined` |
//! | reply: an error | `Reading`, `Joining` | `Out` | try again after `retry` |
//! | time `renew_at` | `Present`, `Idle` | `Renewing` | update the record |
//! | reply: written | `Renewing` | `Idle` | deadline = sent + `fence` |
//! | reply: conflict | `Renewing` | `Checking` | read the record |
//! | reply: down | `Renewing`, `Checking` | `Idle` | deadline = sent + `fence`; try again at sent + `retry` |
//! | reply: no answer, rejected | `Renewing`, `Checking` | `Idle` | try again at sent + `retry` |
//! | reply: no record | `Checking` | `Renewing` | create the record |
//! | reply: a present record of this session | `Checking` | `Renewing` | update the record |
//! | reply: any other record | `Checking` | `Out` | `Lapsed`; new session |
//! | the deadline | `Present` | `Out` | `Lapsed`; new session |
//! | `leave` | `Present` | `Leaving` | write `Left` |
//! | `leave` | `Out`, `Reading`, `Joining` | `Left` | |
//! | a reply, or the deadline | `Leaving` | `Left` | |
//!
//! The second failure in a row is reported as `Outage`, and the renewal after it as `OutageOver`.
//!
//! A node that joins again writes which of its sessions have ended. So its streams need not wait until the planner is sure of that.
//!
//! A reply to a request of an earlier state is ignored. The next request is not sent before this reply has arrived.

use std::time::Duration;

use crate::coordinator::{Error, Item, Reply, Request, Revision};
use crate::keys;
use crate::timing::Timing;
use crate::types::{Facts, Member, NodeRecord, Presence, Session, to_json};

/// The state of a node's lease; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The node has no lease.
    Out,
    /// The node reads its record, to join.
    Reading,
    /// The node writes its record, to join.
    Joining,
    /// The node has a lease.
    Present(Step),
    /// The node has stopped its streams, and writes that it leaves.
    Leaving,
    /// The node has left.
    Left,
}

/// What a node with a lease does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Waits for the time of the next renewal.
    Idle,
    /// Writes the record.
    Renewing,
    /// Reads the record after a conflict.
    Checking,
}

/// Longest list of reasons that are reported in one outage.
const MAX_REPORTED: usize = 4;

/// What happens in a transition, for the node's streams and for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send this request. Exactly one request is in flight.
    Send(Request),
    /// The node has a lease, under a new session.
    Joined,
    /// The lease has ended. The streams of this session must stop, unless the node keeps them running.
    Lapsed,
    /// Another process has joined under the name of this node. Reported once, although the node tries to join again and again.
    NameInUse,
    /// Two attempts in a row to renew the lease have failed for this reason. Reported once for each reason in an outage. The streams stop
    /// after `left`, unless a renewal succeeds; `None`: they run on, because the coordinator is down.
    Outage {
        /// Why the attempts have failed.
        error: Error,
        /// Time until the deadline.
        left: Option<Duration>,
    },
    /// The lease is renewed again after a reported outage.
    OutageOver,
    /// The deadline has changed.
    Deadline,
}

/// The lease of a node; see the module documentation.
#[derive(Debug, Clone)]
pub struct Membership {
    node: String,
    timing: Timing,
    facts: Facts,
    state: State,
    /// Session of this process when it started. The sessions from this one to the present one are its own.
    first_session: Session,
    session: Session,
    /// Revision of the record that this node has written last.
    revision: Revision,
    deadline: Duration,
    renew_at: Duration,
    /// Whether [`Effect::NameInUse`] was reported since the last attempt that found the name free.
    has_reported_name: bool,
    /// When the request in flight was sent, and the state that expects its reply.
    in_flight: Option<(Duration, State)>,
    /// Number of attempts to renew that have failed in a row.
    n_failed: usize,
    /// Reasons of failed attempts that were reported since the last renewal.
    reported: Vec<Error>,
}

impl Membership {
    /// Makes the lease of a node that has not joined. `session` is a random number: [`Session::from_random`].
    pub fn new(node: &str, session: Session, facts: Facts, timing: Timing) -> Self {
        Self {
            node: node.to_owned(),
            timing,
            facts,
            state: State::Out,
            first_session: session,
            session,
            revision: Revision(0),
            deadline: Duration::ZERO,
            renew_at: Duration::ZERO,
            has_reported_name: false,
            in_flight: None,
            n_failed: 0,
            reported: Vec::new(),
        }
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the name and the session of the node. The session is valid while [`Membership::deadline`] returns a time.
    pub fn member(&self) -> Member {
        Member { node: self.node.clone(), session: self.session }
    }

    /// Returns the time at which the streams of this session must stop, or `None` if the node has no lease.
    pub fn deadline(&self) -> Option<Duration> {
        matches!(self.state, State::Present(_)).then_some(self.deadline)
    }

    /// Returns what the node publishes about itself.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Sets what the node publishes about itself, with the next renewal.
    pub fn set_facts(&mut self, facts: Facts) {
        self.facts = facts;
    }

    /// Returns the time at which [`Membership::tick`] has an effect.
    pub fn next_tick(&self) -> Option<Duration> {
        let attempt = self.in_flight.is_none().then_some(self.renew_at);
        match self.state {
            State::Out | State::Present(Step::Idle) => match (attempt, self.deadline()) {
                (Some(attempt), Some(deadline)) => Some(attempt.min(deadline)),
                (attempt, deadline) => attempt.or(deadline),
            },
            State::Present(_) => Some(self.deadline),
            State::Leaving => Some(self.deadline),
            State::Reading | State::Joining | State::Left => None,
        }
    }

    /// Handles the passing of time.
    pub fn tick(&mut self, now: Duration) -> Vec<Effect> {
        match self.state {
            State::Present(_) if now >= self.deadline => self.lapse(now),
            State::Leaving if now >= self.deadline => {
                self.state = State::Left;
                Vec::new()
            }
            State::Out if now >= self.renew_at && self.in_flight.is_none() => {
                self.send(now, State::Reading, Request::Read { key: keys::node(&self.node) })
            }
            State::Present(Step::Idle) if now >= self.renew_at && self.in_flight.is_none() => self.renew(now),
            _ => Vec::new(),
        }
    }

    /// Handles the reply to the request in flight.
    pub fn reply(&mut self, now: Duration, result: Result<Reply, Error>) -> Vec<Effect> {
        // Time may have passed since the last tick.
        let mut effects = self.tick(now);
        let Some((sent, expected)) = self.in_flight.take() else { return effects };
        if expected != self.state {
            return effects;
        }
        let next = match (self.state, result) {
            (State::Reading, Ok(Reply::Read(item))) => self.join(now, item),
            (State::Joining, Ok(Reply::Written(revision))) => {
                self.state = State::Present(Step::Idle);
                self.written(sent, revision);
                self.end_outage();
                if now >= self.deadline { self.lapse(now) } else { vec![Effect::Joined, Effect::Deadline] }
            }
            (State::Reading | State::Joining, _) => {
                self.state = State::Out;
                self.renew_at = now + self.timing.retry;
                Vec::new()
            }
            (State::Present(Step::Renewing), Ok(Reply::Written(revision))) => {
                self.state = State::Present(Step::Idle);
                self.written(sent, revision);
                let mut effects = vec![Effect::Deadline];
                effects.extend(self.end_outage().then_some(Effect::OutageOver));
                effects
            }
            (State::Present(Step::Renewing), Err(Error::Conflict)) => {
                self.send(now, State::Present(Step::Checking), Request::Read { key: keys::node(&self.node) })
            }
            (State::Present(Step::Checking), Ok(Reply::Read(item))) => self.check(now, item),
            (State::Present(_), result) => {
                self.state = State::Present(Step::Idle);
                // An attempt that got no answer has taken longer than the pause.
                self.renew_at = now.max(sent + self.timing.retry);
                let mut effects = Vec::new();
                if matches!(result, Err(Error::Down(_))) {
                    self.deadline = self.deadline.max(sent + self.timing.fence);
                    effects.push(Effect::Deadline);
                }
                effects.extend(result.err().and_then(|error| self.outage(now, error)));
                effects
            }
            (State::Leaving, _) => {
                self.state = State::Left;
                Vec::new()
            }
            (State::Out | State::Left, _) => Vec::new(),
        };
        effects.extend(next);
        effects
    }

    /// Leaves. The caller has stopped all streams of the node before.
    pub fn leave(&mut self, now: Duration) -> Vec<Effect> {
        match self.state {
            State::Present(Step::Idle) => {
                let request = self.update(Presence::Left, self.timing.burial);
                self.send(now, State::Leaving, request)
            }
            // The reply to the request in flight has the revision that the next write needs. If no reply comes, the lease ends by itself.
            State::Present(_) => Vec::new(),
            State::Leaving | State::Left => Vec::new(),
            State::Out | State::Reading | State::Joining => {
                self.state = State::Left;
                Vec::new()
            }
        }
    }

    /// Reads of the record to join have found this item.
    fn join(&mut self, now: Duration, item: Option<Item>) -> Vec<Effect> {
        let record: Option<NodeRecord> = item.as_ref().and_then(|item| serde_json::from_slice(&item.value).ok());
        if let Some(record) = &record {
            let is_own = record.session >= self.first_session && record.session <= self.session;
            if !is_own && record.presence == Presence::Present {
                self.state = State::Out;
                self.renew_at = now + self.timing.retry;
                let is_reported = std::mem::replace(&mut self.has_reported_name, true);
                return if is_reported { Vec::new() } else { vec![Effect::NameInUse] };
            }
            // The session was used, and must not be used again.
            if is_own && record.session == self.session {
                self.session = self.session.next();
            }
        }
        self.has_reported_name = false;
        let request = match item {
            None => self.create(),
            Some(item) => {
                self.revision = item.revision;
                self.update(Presence::Present, self.timing.ttl)
            }
        };
        self.send(now, State::Joining, request)
    }

    /// After a conflict, the record is this item.
    fn check(&mut self, now: Duration, item: Option<Item>) -> Vec<Effect> {
        let Some(item) = item else {
            // The record expired while the coordinator was down. The session was not declared dead, because then its record would exist.
            let request = self.create();
            return self.send(now, State::Present(Step::Renewing), request);
        };
        let record: Option<NodeRecord> = serde_json::from_slice(&item.value).ok();
        match record {
            // An earlier renewal was executed although its reply did not arrive.
            Some(record) if record.session == self.session && record.presence == Presence::Present => {
                self.revision = item.revision;
                self.renew(now)
            }
            _ => self.lapse(now),
        }
    }

    fn renew(&mut self, now: Duration) -> Vec<Effect> {
        let request = self.update(Presence::Present, self.timing.ttl);
        self.send(now, State::Present(Step::Renewing), request)
    }

    fn lapse(&mut self, now: Duration) -> Vec<Effect> {
        self.state = State::Out;
        self.session = self.session.next();
        self.renew_at = now;
        vec![Effect::Lapsed]
    }

    /// Counts a failed renewal, and reports its reason.
    fn outage(&mut self, now: Duration, error: Error) -> Option<Effect> {
        self.n_failed += 1;
        if self.n_failed < 2 || self.reported.len() >= MAX_REPORTED || self.reported.contains(&error) {
            return None;
        }
        self.reported.push(error.clone());
        let left = (!matches!(error, Error::Down(_))).then(|| self.deadline.saturating_sub(now));
        Some(Effect::Outage { error, left })
    }

    /// Returns whether an outage was reported.
    fn end_outage(&mut self) -> bool {
        self.n_failed = 0;
        !std::mem::take(&mut self.reported).is_empty()
    }

    fn written(&mut self, sent: Duration, revision: Revision) {
        self.revision = revision;
        self.deadline = sent + self.timing.fence;
        self.renew_at = sent + self.timing.renew;
    }

    fn send(&mut self, now: Duration, state: State, request: Request) -> Vec<Effect> {
        self.state = state;
        self.in_flight = Some((now, state));
        vec![Effect::Send(request)]
    }

    fn create(&self) -> Request {
        Request::Create { key: keys::node(&self.node), value: self.value(Presence::Present), ttl: Some(self.timing.ttl) }
    }

    fn update(&self, presence: Presence, ttl: Duration) -> Request {
        Request::Update { key: keys::node(&self.node), revision: self.revision, value: self.value(presence), ttl: Some(ttl) }
    }

    fn value(&self, presence: Presence) -> Vec<u8> {
        let (session, first_session) = (self.session, Some(self.first_session).filter(|first| *first < self.session));
        to_json(&NodeRecord { session, presence, first_session, facts: self.facts.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn new() -> Membership {
        Membership::new("a", Session(10), Facts::default(), Timing::default())
    }

    fn written(revision: u64) -> Result<Reply, Error> {
        Ok(Reply::Written(Revision(revision)))
    }

    fn record(session: u64, presence: Presence) -> Result<Reply, Error> {
        let value = to_json(&NodeRecord { session: Session(session), presence, first_session: None, facts: Facts::default() });
        Ok(Reply::Read(Some(Item { key: keys::node("a"), revision: Revision(77), value })))
    }

    fn down() -> Result<Reply, Error> {
        Err(Error::Down(String::new()))
    }

    fn lost() -> Result<Reply, Error> {
        Err(Error::Unreachable(String::new()))
    }

    /// A node that has joined at 0 s.
    fn joined() -> Membership {
        let mut node = new();
        assert!(matches!(node.tick(at(0))[..], [Effect::Send(Request::Read { .. })]));
        assert!(matches!(node.reply(at(0), Ok(Reply::Read(None)))[..], [Effect::Send(Request::Create { .. })]));
        assert_eq!(node.reply(at(0), written(1)), [Effect::Joined, Effect::Deadline]);
        assert_eq!(node.deadline(), Some(at(12)));
        node
    }

    #[test]
    fn the_deadline_counts_from_the_sending_of_a_renewal() {
        let mut node = joined();
        assert_eq!(node.next_tick(), Some(at(3)));
        assert!(matches!(node.tick(at(3))[..], [Effect::Send(Request::Update { revision: Revision(1), .. })]));
        node.reply(at(5), written(2));
        assert_eq!((node.deadline(), node.next_tick()), (Some(at(15)), Some(at(6))));
    }

    #[test]
    fn a_node_without_an_answer_stops_at_its_deadline() {
        let mut node = joined();
        node.tick(at(5));
        assert!(node.reply(at(8), lost()).is_empty());
        assert!(matches!(node.tick(at(8))[..], [Effect::Send(_)]), "an attempt without an answer is followed by the next one at once");
        let outage = Effect::Outage { error: Error::Unreachable(String::new()), left: Some(Duration::from_secs(4)) };
        assert_eq!(node.reply(at(8), lost()), [outage]);
        assert!(node.tick(at(8)).is_empty());
        assert!(matches!(node.tick(at(9))[..], [Effect::Send(_)]));
        assert_eq!(node.tick(at(12)), [Effect::Lapsed]);
        assert_eq!((node.state(), node.member().session), (State::Out, Session(11)));
        assert!(node.tick(at(13)).is_empty(), "the earlier request is still in flight");
        assert!(node.reply(at(14), written(9)).iter().all(|effect| *effect != Effect::Deadline), "a late reply has no effect");
    }

    #[test]
    fn a_coordinator_that_is_down_moves_the_deadline() {
        let mut node = joined();
        for second in 5..100 {
            assert!(matches!(node.tick(at(second))[..], [Effect::Send(_)]), "{second}");
            let effects = node.reply(at(second), down());
            let outage = Effect::Outage { error: Error::Down(String::new()), left: None };
            assert_eq!(effects, if second == 6 { vec![Effect::Deadline, outage] } else { vec![Effect::Deadline] }, "{second}");
            assert_eq!(node.deadline(), Some(at(second + 12)));
        }
        // The coordinator is back, and the record has expired. The node keeps its session.
        node.tick(at(100));
        assert!(matches!(node.reply(at(100), Err(Error::Conflict))[..], [Effect::Send(Request::Read { .. })]));
        assert!(matches!(node.reply(at(100), Ok(Reply::Read(None)))[..], [Effect::Send(Request::Create { .. })]));
        assert_eq!(node.reply(at(101), written(5)), [Effect::Deadline, Effect::OutageOver]);
        assert_eq!((node.deadline(), node.member().session), (Some(at(112)), Session(10)));
    }

    #[test]
    fn a_report_that_the_coordinator_is_down_does_not_revive_a_lapsed_lease() {
        let mut node = joined();
        node.tick(at(11));
        assert_eq!(node.reply(at(13), down()), [Effect::Lapsed]);
        assert_eq!(node.deadline(), None);
    }

    #[test]
    fn a_session_that_was_declared_dead_ends_at_once() {
        let mut node = joined();
        node.tick(at(5));
        node.reply(at(5), Err(Error::Conflict));
        assert_eq!(node.reply(at(5), record(10, Presence::Dead)), [Effect::Lapsed]);
        // It joins again with a new session, over the record of the old one.
        node.tick(at(5));
        assert!(matches!(
            node.reply(at(5), record(10, Presence::Dead))[..],
            [Effect::Send(Request::Update { revision: Revision(77), .. })]
        ));
        assert_eq!(node.reply(at(5), written(78))[0], Effect::Joined);
        assert_eq!(node.member().session, Session(11));
        // The record says that the session before has ended.
        let effects = node.tick(at(8));
        let [Effect::Send(Request::Update { value, .. })] = &effects[..] else { panic!("{effects:?}") };
        let record: NodeRecord = serde_json::from_slice(value).unwrap();
        assert!(record.has_ended(Session(10)) && !record.has_ended(Session(11)) && !record.has_ended(Session(9)));
    }

    #[test]
    fn a_renewal_whose_reply_was_lost_is_recognized() {
        let mut node = joined();
        node.tick(at(5));
        node.reply(at(8), lost());
        node.tick(at(9));
        node.reply(at(9), Err(Error::Conflict));
        let effects = node.reply(at(9), record(10, Presence::Present));
        assert!(matches!(effects[..], [Effect::Send(Request::Update { revision: Revision(77), .. })]), "{effects:?}");
    }

    #[test]
    fn two_processes_with_one_name_do_not_join_together() {
        let mut node = new();
        node.tick(at(0));
        assert_eq!(node.reply(at(0), record(500, Presence::Present)), [Effect::NameInUse]);
        assert_eq!(node.next_tick(), Some(at(1)));
        node.tick(at(1));
        assert_eq!(node.reply(at(1), record(500, Presence::Present)), [], "it was reported");
        node.tick(at(2));
        assert!(matches!(node.reply(at(2), record(500, Presence::Left))[..], [Effect::Send(Request::Update { .. })]));
    }

    #[test]
    fn a_node_that_leaves_says_so() {
        let mut node = joined();
        let effects = node.leave(at(1));
        let [Effect::Send(Request::Update { value, .. })] = &effects[..] else { panic!("{effects:?}") };
        assert!(String::from_utf8_lossy(value).contains("\"left\""));
        assert_eq!(node.deadline(), None);
        node.reply(at(1), written(3));
        assert_eq!(node.state(), State::Left);
    }
}
