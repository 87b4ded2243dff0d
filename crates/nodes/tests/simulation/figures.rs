//! What a simulation measures.

use std::fmt;

/// Figures of one or several simulations.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Seconds from the death of a node to the first result of another node, for each of its streams. Without deaths in or shortly
    /// after another fault.
    pub recoveries: Vec<f64>,
    /// The same for all deaths.
    pub recoveries_all: Vec<f64>,
    /// Largest relative difference of a node's load from the share, 60 s after the last fault of each round.
    pub imbalances: Vec<f64>,
    /// Moves to even out the load or to drain a node.
    pub moves: usize,
    /// Streams that were taken from a node that died, and twice the streams of drained nodes: so many moves bring all of them back.
    pub needed_moves: usize,
    /// Results that the consumer accepted, and results that it refused because of their epoch.
    pub accepted: usize,
    pub refused: usize,
    /// Frames of which two results in different epochs were accepted, in hand-overs.
    pub frames_in_two_epochs: usize,
    /// Frames of which no result was accepted, in hand-overs of nodes without a fault.
    pub frames_lost_in_handovers: usize,
    /// Streams of nodes without a fault that had no result for more than 3 s.
    pub interrupted: usize,
    /// Requests to the coordinator, and events that it sent.
    pub requests: usize,
    pub events: usize,
    /// Simulated seconds, faults by kind.
    pub seconds: f64,
    pub faults: std::collections::BTreeMap<&'static str, usize>,
}

impl Figures {
    /// Adds the figures of another simulation.
    pub fn add(&mut self, other: Self) {
        self.recoveries.extend(other.recoveries);
        self.recoveries_all.extend(other.recoveries_all);
        self.imbalances.extend(other.imbalances);
        self.moves += other.moves;
        self.needed_moves += other.needed_moves;
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.frames_in_two_epochs += other.frames_in_two_epochs;
        self.frames_lost_in_handovers += other.frames_lost_in_handovers;
        self.interrupted += other.interrupted;
        self.requests += other.requests;
        self.events += other.events;
        self.seconds += other.seconds;
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }
}

/// Returns the value below which this part of the values is.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let idx = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(idx).copied().unwrap_or(0.0)
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |values: &[f64]| {
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|part| quantile(values, part));
            format!("{} streams, p50 {p50:.1} s, p99 {p99:.1} s, max {max:.1} s", values.len())
        };
        writeln!(f, "simulated time: {:.0} s, faults: {:?}", self.seconds, self.faults)?;
        writeln!(f, "death of a node to results of another node: {}", times(&self.recoveries))?;
        writeln!(f, "  with deaths during other faults: {}", times(&self.recoveries_all))?;
        let imbalances = [0.5, 1.0].map(|part| quantile(&self.imbalances, part) * 100.0);
        writeln!(f, "difference from the share after 60 s: median {:.1} %, max {:.1} %", imbalances[0], imbalances[1])?;
        writeln!(f, "moves to even out and drain: {}, needed: {}", self.moves, self.needed_moves)?;
        writeln!(f, "results: {} accepted, 0 twice, {} refused for their epoch", self.accepted, self.refused)?;
        writeln!(f, "frames at hand-overs: {} in two epochs, {} lost", self.frames_in_two_epochs, self.frames_lost_in_handovers)?;
        writeln!(f, "streams of nodes without a fault that were interrupted: {}", self.interrupted)?;
        write!(f, "coordinator: {} requests, {} events", self.requests, self.events)
    }
}
