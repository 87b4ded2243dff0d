//! Paired measurements: both sides are measured alternately in one process, so that disturbances affect both.
//!
//! This harness reports the difference between neighboring measurements, in processor time and in wall time, so other load on the machine
//! does not distort the result. Criterion is not suitable: it measures each function separately and compares the result with an earlier
//! run. A budget is compared with the confidence interval of the median difference.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Mean duration of a run in one block of consecutive runs, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    pub wall_ns: f64,
    /// Processor time of all threads of the process.
    pub cpu_ns: f64,
}

/// Whether a reported value is wall time or processor time.
#[derive(Debug, Clone, Copy)]
pub enum Clock {
    Wall,
    Cpu,
}

impl Reading {
    pub fn get(self, clock: Clock) -> f64 {
        match clock {
            Clock::Wall => self.wall_ns,
            Clock::Cpu => self.cpu_ns,
        }
    }
}

/// Pairs of neighboring blocks: the bare engine call, and roiflow.
#[derive(Debug)]
pub struct Pairs(pub Vec<(Reading, Reading)>);

/// Number and length of the blocks of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub n_pairs: usize,
    /// Approximate duration of a block, for the slower side.
    pub block: Duration,
    /// Minimum number of runs per block.
    pub n_runs_min: usize,
    /// Whether the measurement only checks that everything works, with few runs and without budgets.
    pub quick: bool,
}

impl Effort {
    /// Returns the effort for several threads: blocks are longer, so that the start and the end of a block have no effect.
    pub fn of_threads(&self, n_requests: usize) -> Self {
        Self { block: 2 * self.block, n_runs_min: 4 * n_requests, ..*self }
    }

    /// Measures two closures in pairs of blocks. Each closure executes the given number of runs.
    pub fn compare(&self, mut bare: impl FnMut(usize), mut ours: impl FnMut(usize)) -> Pairs {
        let n_runs = self.n_runs(&mut bare, &mut ours);
        let pair = |pair_idx: usize| {
            // Both sides go first equally often, because the side that goes second may benefit from warm caches or suffer from a hotter
            // CPU.
            if pair_idx.is_multiple_of(2) {
                let of_bare = read(n_runs, &mut bare);
                (of_bare, read(n_runs, &mut ours))
            } else {
                let of_ours = read(n_runs, &mut ours);
                (read(n_runs, &mut bare), of_ours)
            }
        };
        Pairs((0..self.n_pairs).map(pair).collect())
    }

    /// Measures the value of a counter per run, `n_pairs` times after a warm-up.
    pub fn count(&self, n_runs: usize, mut count: impl FnMut(usize) -> usize) -> Vec<f64> {
        let n_runs = if self.quick { 2 } else { n_runs };
        count(n_runs);
        (0..self.n_pairs).map(|_| count(n_runs) as f64 / n_runs as f64).collect()
    }

    /// Chooses the number of runs per block, after a warm-up of both sides.
    fn n_runs(&self, bare: &mut impl FnMut(usize), ours: &mut impl FnMut(usize)) -> usize {
        if self.quick {
            return 2;
        }
        // The number is based on processor time, because under other load wall time would make blocks too short.
        let mut n_runs = 1;
        loop {
            let slower = read(n_runs, bare).cpu_ns.max(read(n_runs, ours).cpu_ns) * n_runs as f64;
            let target = self.block.as_nanos() as f64;
            if slower > 0.2 * target {
                return ((n_runs as f64 * target / slower).ceil() as usize).max(self.n_runs_min);
            }
            n_runs *= 4;
        }
    }
}

fn read(n_runs: usize, act: &mut impl FnMut(usize)) -> Reading {
    let (cpu, wall) = (cpu_time_ns(), Instant::now());
    act(n_runs);
    let (wall, cpu_ns) = (wall.elapsed(), cpu_time_ns() - cpu);
    Reading { wall_ns: wall.as_nanos() as f64 / n_runs as f64, cpu_ns: cpu_ns / n_runs as f64 }
}

fn cpu_time_ns() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// A median, and an interval that contains the true median with a probability of at least 95 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Estimate {
    /// The interval is between order statistics, for any distribution. The number of values below the true median has a binomial
    /// distribution. With seven values, the interval from the smallest to the largest value has a probability of 98.4 %. With fewer than
    /// six values, no interval reaches 95 %.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        assert!(n > 0, "an estimate needs a value");
        let skipped = n_skipped(n);
        Self { median: (values[(n - 1) / 2] + values[n / 2]) / 2.0, low: values[skipped], high: values[n - 1 - skipped] }
    }
}

/// Returns the number of values at each end outside the interval.
fn n_skipped(n: usize) -> usize {
    let (mut probability, mut tail, mut skipped) = (0.5_f64.powi(n as i32), 0.0, 0);
    loop {
        tail += probability;
        if 2.0 * tail > 0.05 || 2 * (skipped + 1) > n {
            return skipped.saturating_sub(1);
        }
        skipped += 1;
        probability *= (n + 1 - skipped) as f64 / skipped as f64;
    }
}

/// Checks the statistics against a table. The benchmark calls this before any measurement.
pub fn check() {
    // Number of excluded values at each end, from a table of the sign test at 5 %, two-sided.
    for (n, expected) in [(1, 0), (7, 0), (8, 0), (9, 1), (12, 2), (15, 3), (21, 5), (25, 7)] {
        assert_eq!(n_skipped(n), expected, "{n} values");
    }
    assert_eq!(Estimate::of([3.0, 1.0, 2.0, 9.0, 4.0, 5.0, 8.0]), Estimate { median: 4.0, low: 1.0, high: 9.0 });
}
