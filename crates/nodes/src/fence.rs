//! The deadline of a node's lease, shared with the threads that publish results.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time until which results may be published. Clones are the same fence.
///
/// A thread that publishes results asks [`Fence::permits`] for each result. So no result leaves after the deadline, even if the thread that
/// stops streams has no processor time. All times count from the same start of the node's monotonic clock.
///
/// A node that has lost its lease may soon have a new one, while the streams of the earlier lease have not stopped yet. So each stream keeps the
/// generation in which it has started, and [`Fence::revoke`] ends it.
#[derive(Debug, Clone, Default)]
pub struct Fence {
    deadline: Arc<AtomicU64>,
    generation: Arc<AtomicU64>,
}

impl Fence {
    /// Sets the deadline; `None` forbids all results.
    pub fn set(&self, deadline: Option<Duration>) {
        let nanos = deadline.map_or(0, |deadline| u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX));
        self.deadline.store(nanos, Ordering::SeqCst);
    }

    /// Forbids the results of all streams that have started so far, for ever.
    pub fn revoke(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// The generation of a stream that starts now.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Whether a result of a stream of this generation may be published at this time.
    pub fn permits(&self, now: Duration, generation: u64) -> bool {
        // In this order: a deadline that is set after the revocation is seen only together with it.
        let is_in_time = now.as_nanos() < u128::from(self.deadline.load(Ordering::SeqCst));
        is_in_time && generation == self.generation()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_permitted_until_the_deadline() {
        let fence = Fence::default();
        assert!(!fence.permits(Duration::ZERO, 0), "a new fence is closed");
        fence.set(Some(Duration::from_secs(12)));
        assert!(fence.clone().permits(Duration::from_millis(11_999), 0) && !fence.permits(Duration::from_secs(12), 0));
        fence.set(Some(Duration::MAX));
        assert!(fence.permits(Duration::from_secs(1 << 33), 0));
        fence.set(None);
        assert!(!fence.permits(Duration::ZERO, 0));
    }

    #[test]
    fn streams_of_an_earlier_lease_publish_nothing_after_the_node_is_back() {
        let fence = Fence::default();
        fence.set(Some(Duration::from_secs(12)));
        let earlier = fence.generation();
        fence.revoke();
        fence.set(Some(Duration::from_secs(40)));
        let now = Duration::from_secs(30);
        assert!(!fence.permits(now, earlier) && fence.clone().permits(now, fence.generation()));
    }
}
