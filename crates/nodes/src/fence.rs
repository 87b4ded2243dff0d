//! The deadline of a node's lease, shared with the threads that publish results.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time until which results may be published. Clones are the same fence.
///
/// A thread that publishes results asks [`Fence::permits`] for each result. So no result leaves after the deadline, even if the thread that
/// stops streams has no processor time. All times count from the same start of the node's monotonic clock.
#[derive(Debug, Clone, Default)]
pub struct Fence(Arc<AtomicU64>);

impl Fence {
    /// Sets the deadline; `None` forbids all results.
    pub fn set(&self, deadline: Option<Duration>) {
        let nanos = deadline.map_or(0, |deadline| u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX));
        self.0.store(nanos, Ordering::SeqCst);
    }

    /// Whether a result may be published at this time.
    pub fn permits(&self, now: Duration) -> bool {
        now.as_nanos() < u128::from(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_permitted_until_the_deadline() {
        let fence = Fence::default();
        assert!(!fence.permits(Duration::ZERO), "a new fence is closed");
        fence.set(Some(Duration::from_secs(12)));
        assert!(fence.clone().permits(Duration::from_millis(11_999)) && !fence.permits(Duration::from_secs(12)));
        fence.set(Some(Duration::MAX));
        assert!(fence.permits(Duration::from_secs(1 << 33)));
        fence.set(None);
        assert!(!fence.permits(Duration::ZERO));
    }
}
