//! The times of leases, and the rule why they are safe.
//!
//! | time | default | measured by | from |
//! |---|---|---|---|
//! | [`Timing::ttl`] | 15 s | the coordinator | a renewal is executed |
//! | [`Timing::renew`] | 3 s | the node | it has sent the last renewal |
//! | [`Timing::fence`] | 12 s | the node | it has sent the last renewal that succeeded |
//! | [`Timing::takeover`] | 14 s | the planner | it has last seen a sign of the node, and its watch has been without interruption |
//!
//! A node stops its streams `fence` after it *sent* a renewal. The coordinator removes the node's record `ttl` after it *executed* the
//! renewal, which is later. So the node has stopped before the record ends, if its clock runs at more than 0.8 times the speed of the
//! coordinator's clock. The planner compares with its own clock as well: `takeover` is longer than `fence`, so clocks of nodes may differ by
//! up to 15 %.
//!
//! In a cluster of NATS servers, no write succeeds while the servers elect another leader of the bucket. A server stands for election 4 to 9 s
//! after it has last heard of the leader, by chance; if it is not elected, the next one needs this time again. So [`Timing::clustered`] has a
//! `fence` of 22 s: the age of the last renewal (3 s) and 18 s are less than that, and such an election stops no stream. The price is that the
//! streams of a dead node start later: `ttl` is 28 s, and `takeover` 25.5 s.

use std::time::Duration;

/// The times of leases; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Time-to-live of node records and of the planner's lock.
    pub ttl: Duration,
    /// Interval of renewals.
    pub renew: Duration,
    /// A node stops its streams this long after it sent its last successful renewal.
    pub fence: Duration,
    /// A planner takes streams of a node that has shown no sign for this long.
    pub takeover: Duration,
    /// A failed renewal is tried again after this time.
    pub retry: Duration,
    /// Time-to-live of the record of a session that was declared dead or has left. In this time, no late request of the session may arrive.
    pub burial: Duration,
}

impl Timing {
    /// The times for nodes whose coordinator is a cluster of servers, which may elect a leader for up to 18 s.
    pub fn clustered() -> Self {
        let (ttl, fence, takeover) = (Duration::from_secs(28), Duration::from_secs(22), Duration::from_millis(25_500));
        Self { ttl, fence, takeover, ..Self::default() }
    }

    /// The times for a node that has no other nodes and a coordinator in its own process: its lease does not end, also if the machine sleeps
    /// for days.
    pub fn alone() -> Self {
        let never = Duration::from_secs(u64::from(u32::MAX));
        Self { ttl: never, renew: Duration::from_secs(3600), fence: never, takeover: never, ..Self::default() }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(15),
            renew: Duration::from_secs(3),
            fence: Duration::from_secs(12),
            takeover: Duration::from_secs(14),
            retry: Duration::from_secs(1),
            burial: Duration::from_secs(600),
        }
    }
}
