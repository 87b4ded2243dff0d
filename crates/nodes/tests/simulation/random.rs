//! Random numbers from a seed (SplitMix64), the same on all machines.

use std::time::Duration;

/// A generator of random numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// A number from `begin` to `end`.
    pub fn between(&mut self, begin: f64, end: f64) -> f64 {
        begin + (end - begin) * ((self.number() >> 11) as f64 / (1_u64 << 53) as f64)
    }

    /// A time from `begin` to `end` seconds.
    pub fn seconds(&mut self, begin: f64, end: f64) -> Duration {
        Duration::from_secs_f64(self.between(begin, end))
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.between(0.0, 1.0) < probability
    }
}
