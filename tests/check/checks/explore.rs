//! Runs a scenario under many schedules: all schedules, all with few preemptions, or random ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, Runner};

/// The schedules under which a scenario runs.
#[derive(Debug, Clone, Copy)]
pub enum Search {
    /// All schedules.
    All,
    /// All schedules with at most this number of preemptions of runnable threads.
    Preemptions(usize),
    /// `n` schedules of probabilistic concurrency testing (PCT): random priorities, changed at `depth` points.
    Pct { depth: usize, n: usize },
    /// This number of schedules, in which each step is chosen uniformly at random.
    Random(usize),
}

/// Seed of random schedules: `ROIFLOW_CHECK_SEED`, or a fixed seed, so that failures are reproducible.
pub fn seed() -> u64 {
    std::env::var("ROIFLOW_CHECK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20)
}

/// Returns the value of `ROIFLOW_CHECK_EFFORT`, default 1. The number of random schedules is multiplied by it. From 10 on, all bounds of
/// preemptions are increased by one.
pub fn effort() -> usize {
    std::env::var("ROIFLOW_CHECK_EFFORT").ok().and_then(|effort| effort.parse().ok()).unwrap_or(1).max(1)
}

/// Runs `scenario` once for each schedule and returns their number. Panics and deadlocks are failures.
pub fn explore(search: Search, scenario: impl Fn() + Send + Sync + 'static) -> usize {
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    match search {
        Search::All => Runner::new(Bounded::new(usize::MAX), config).run(scenario),
        Search::Preemptions(n) => Runner::new(Bounded::new(n + usize::from(effort() >= 10)), config).run(scenario),
        Search::Pct { depth, n } => Runner::new(PctScheduler::new_from_seed(seed(), depth, n * effort()), config).run(scenario),
        Search::Random(n) => Runner::new(RandomScheduler::new_from_seed(seed(), n * effort()), config).run(scenario),
    }
}

/// Depth-first search over schedules with a bounded number of preemptions. Switching away from a runnable thread counts as a preemption.
/// Choosing the next thread after one blocks or ends does not.
struct Bounded {
    max_preemptions: usize,
    n_preemptions: usize,
    step: usize,
    levels: Vec<Level>,
    has_begun: bool,
}

struct Level {
    chosen: TaskId,
    /// Threads to try later.
    others: Vec<TaskId>,
}

impl Bounded {
    fn new(max_preemptions: usize) -> Self {
        Self { max_preemptions, n_preemptions: 0, step: 0, levels: Vec::new(), has_begun: false }
    }
}

impl Scheduler for Bounded {
    fn new_execution(&mut self) -> Option<Schedule> {
        if self.has_begun {
            loop {
                let level = self.levels.last_mut()?;
                match level.others.pop() {
                    Some(other) => break level.chosen = other,
                    None => drop(self.levels.pop()),
                }
            }
        }
        (self.has_begun, self.step, self.n_preemptions) = (true, 0, 0);
        Some(Schedule::new(0))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        let can_go_on = current.filter(|current| !is_yielding && runnable.iter().any(|task| task.id() == *current));
        if self.step == self.levels.len() {
            let mut others: Vec<TaskId> = runnable.iter().map(|task| task.id()).rev().collect();
            let chosen = match can_go_on {
                Some(current) => {
                    others.retain(|task| *task != current);
                    if self.n_preemptions >= self.max_preemptions {
                        others.clear();
                    }
                    current
                }
                None => others.pop().expect("one can run"),
            };
            self.levels.push(Level { chosen, others });
        }
        let chosen = self.levels[self.step].chosen;
        self.step += 1;
        self.n_preemptions += usize::from(can_go_on.is_some_and(|current| current != chosen));
        Some(chosen)
    }

    fn next_u64(&mut self) -> u64 {
        unreachable!("no check draws numbers")
    }
}

/// Marks a point at which another thread can continue.
pub fn point() {
    thread_point(&shuttle::sync::atomic::AtomicBool::new(false));
}

fn thread_point(point: &shuttle::sync::atomic::AtomicBool) {
    point.load(std::sync::atomic::Ordering::SeqCst);
}
