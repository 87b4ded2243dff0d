//! Searches all states breadth-first, and reports the steps that lead to an invalid state.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hasher};

use super::*;

impl World {
    /// Conditions for states in which no thread can continue.
    fn check_end(&self) -> Option<&'static str> {
        if !self.flusher.is_empty() || !self.changer.is_empty() || !self.linker.is_empty() {
            return Some("a flush, a change of state and a link end");
        }
        let is_blocked = self.tasks.iter().flatten().any(|task| matches!(task.steps.last(), Some(Step::Blocked(..))));
        if !self.upstream.is_empty() && !is_blocked {
            return Some("upstream is woken");
        }
        if !self.source_is_active {
            let is_idle = self.tasks.iter().all(Option::is_none) && !self.is_open;
            return (!is_idle).then_some("a stopped element has no task, and takes nothing");
        }
        if !self.sink_is_active || self.sink_is_flushing || is_blocked {
            return None;
        }
        match self.flow.state() {
            State::Stopped | State::Flushing | State::PeerFlushing => return Some("behind a flush or a start the stream takes frames"),
            State::Unlinked if self.is_linked => return Some("a stream whose pad is linked takes frames"),
            State::Unlinked | State::Failed(_) | State::Broken(_) => {
                return (!self.has_heard_error && !self.bus_has_error).then_some("an error is heard upstream or on the bus");
            }
            State::Streaming { .. } => {}
        }
        let is_waiting =
            self.of_pad.and_then(|task| self.tasks[task].as_ref()).is_some_and(|task| matches!(task.steps.last(), Some(Step::Take(_))));
        if !is_waiting || !self.queue.is_empty() {
            return Some("the task takes what is in the queue");
        }
        if !self.kept.is_empty() {
            return Some("events that are kept reach the pad");
        }
        for kind in [0, 1] {
            if self.sticky[kind].item != self.accepted[kind] {
                return Some("the pad has the events that upstream sent last");
            }
        }
        if self.accepted[2].is_some() && self.is_linked && self.peer[2].is_none() && !self.bus_has_error {
            return Some("EOS reaches the peer, or an error the bus");
        }
        let State::Streaming { input, .. } = self.flow.state() else { unreachable!("returned above") };
        (input == Input::Refused && self.accepted[2].is_some()).then_some("EOS is accepted behind an end downstream")
    }
}

fn hash(world: &impl Hash) -> u128 {
    let half = |seed: u64| {
        let mut hasher = DefaultHasher::new();
        (seed, world).hash(&mut hasher);
        hasher.finish()
    };
    (u128::from(half(1)) << 64) | u128::from(half(2))
}

/// Visits all states and returns their number. Panics with the steps that lead to a violation.
pub(super) fn explore(scenario: Scenario) -> usize {
    let first = World::new(&scenario);
    let mut seen = HashSet::from([hash(&first)]);
    // For each state: the index of its predecessor, and its position among the successors of this predecessor.
    let mut origins: Vec<(usize, usize)> = vec![(0, 0)];
    let mut waiting = VecDeque::from([(0, first)]);
    while let Some((idx, world)) = waiting.pop_front() {
        let successors = world.successors();
        let violation = world.violation.or_else(|| if successors.is_empty() { world.check_end() } else { None });
        if let Some(violation) = violation {
            report(&scenario, &origins, idx, violation, &world);
        }
        for (successor_idx, (_, successor)) in successors.into_iter().enumerate() {
            if seen.insert(hash(&successor)) {
                origins.push((idx, successor_idx));
                waiting.push_back((origins.len() - 1, successor));
            }
        }
    }
    seen.len()
}

fn report(scenario: &Scenario, origins: &[(usize, usize)], mut idx: usize, violation: &str, last: &impl Debug) -> ! {
    let mut path = Vec::new();
    while idx != 0 {
        path.push(origins[idx].1);
        idx = origins[idx].0;
    }
    let mut world = World::new(scenario);
    let mut steps = Vec::new();
    for successor_idx in path.into_iter().rev() {
        let (who, next) = world.successors().swap_remove(successor_idx);
        steps.push(who.map_or("a run ends".to_owned(), |who| format!("{who:?} {:?}", world.steps(who).last())));
        world = next;
    }
    panic!("{violation}, but not after:\n  {}\nin {last:#?}", steps.join("\n  "));
}
