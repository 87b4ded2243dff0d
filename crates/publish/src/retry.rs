//! How many attempts follow a failure, and the pauses between them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Retries after a temporary failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Number of attempts without progress after which messages are lost; at least 1.
    pub max_attempts: u32,
    /// Pause before the second attempt. Doubles with each attempt.
    pub delay: Duration,
    /// Maximum pause.
    pub max_delay: Duration,
}

impl Retry {
    /// Returns options for an unlimited number of attempts, for destinations on a network.
    pub fn unlimited() -> Self {
        Self { max_attempts: u32::MAX, ..Self::default() }
    }

    /// Returns the pause after `n_attempts` attempts. The pause has jitter, so that many senders do not reconnect at the same time after an
    /// outage.
    pub(crate) fn pause(&self, n_attempts: u32) -> Duration {
        let pause = self.delay.saturating_mul(1 << n_attempts.saturating_sub(1).min(16)).min(self.max_delay);
        // `RandomState` has random keys, so the hash is a random number.
        let random = RandomState::new().build_hasher().finish() % 256;
        pause - pause.mul_f64(random as f64 / 1024.0)
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_attempts: 1, delay: Duration::from_millis(100), max_delay: Duration::from_secs(10) }
    }
}
