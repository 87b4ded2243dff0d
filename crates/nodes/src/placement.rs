//! Which node each stream belongs on: a pure function of streams, nodes and present places.
//!
//! # Load
//!
//! A stream with `cost` frames per second uses the part `cost / capacity` of a node, where the capacity is that of the stream's model on
//! the node. The *share* is the load that each node would have if all streams were spread evenly over all nodes. It is the same number for
//! all nodes: a node with twice the capacity gets twice the streams.
//!
//! A node reports a capacity for each model that it has measured, and one for all others. Where other nodes have measured a model and this
//! node has not, its capacity for the model is estimated: its capacity for all others, times the mean ratio of both on those nodes.
//!
//! # Memory
//!
//! A stream that says how much memory it needs gets a node only if all streams of the node that say it need at most
//! [`USABLE_MEMORY`] of the node's memory together. A node that uses more of its memory than that gets a stream only if no other node may
//! run it. Running streams do not move for lack of memory.
//!
//! # Choice of a node
//!
//! A stream without a node gets the first node of this list that its constraints allow, and that is not draining:
//!
//! 1. the node on which it ran before, if the node's load stays near the share;
//! 2. a node that runs the same model, if the node's load stays below the share;
//! 3. any node whose load stays below the share;
//! 4. the node with the lowest load.
//!
//! Among several nodes of rows 2 and 3, weighted rendezvous hashing decides: each node gets a number from a hash of the stream (or model)
//! and the node's name, weighted by capacity, and the highest number wins. So planners on different machines make the same choice, and a
//! node that leaves changes no choice between the others.
//!
//! # Moves of running streams
//!
//! A running stream moves only for a reason: its constraints no longer allow its node, its node is draining, it failed there, or the load
//! is uneven. The load is uneven if a node differs from the share by more than [`Policy::hysteresis`]. Then streams move one by one from
//! the node with the highest to the node with the lowest load, until no two nodes differ by more than half of that. The stream that evens
//! out most is chosen, and among similar ones, a stream whose model already runs on the target.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::types::{Facts, StreamSpec};

/// Settings of the planner.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Part of the share by which the load of a node may differ before streams move.
    pub hysteresis: f64,
    /// Highest number of moves per minute to even out the load and to drain nodes. Streams of dead nodes are not limited.
    pub moves_per_minute: f64,
    /// New streams get no node, and the load is not evened out, for this time after a node has joined or left. Otherwise the first node of
    /// a site would get all streams, and a node that fails again and again would move streams each time.
    pub settle: Duration,
    /// A hand-over without a result of the new owner after this time is taken back.
    pub handover: Duration,
    /// A stream does not return to a node on which it failed for this time.
    pub retry_after: Duration,
    /// Time between two plans.
    pub interval: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            hysteresis: 0.05,
            moves_per_minute: 240.0,
            settle: Duration::from_secs(10),
            handover: Duration::from_secs(60),
            retry_after: Duration::from_secs(600),
            interval: Duration::from_millis(500),
        }
    }
}

/// Part of a node's memory that streams may use.
pub const USABLE_MEMORY: f64 = 0.9;

/// A node that can run streams.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// What it is and can do.
    pub facts: &'a Facts,
    /// Whether its streams must move away.
    pub is_draining: bool,
}

/// A stream to place.
#[derive(Debug, Clone)]
pub struct Placed<'a> {
    /// Name of the stream.
    pub name: &'a str,
    /// Its specification.
    pub spec: &'a StreamSpec,
    /// The present node that owns it. `None`: it needs a node.
    pub at: Option<&'a str>,
    /// A node that should get the stream if it needs one, because the stream ran there before.
    pub prefers: Option<&'a str>,
    /// Whether it may move: it runs, and no hand-over is in progress.
    pub is_movable: bool,
    /// Whether it must move, because it failed at its present node.
    pub has_failed: bool,
    /// Nodes on which it failed lately.
    pub avoids: Vec<&'a str>,
}

/// Why a stream moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The stream has no node.
    NoNode,
    /// The stream failed at its node.
    Failed,
    /// Its constraints do not allow its node.
    Constraint,
    /// Its node is draining.
    Drain,
    /// The load is uneven.
    Balance,
}

/// A stream gets a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Name of the stream.
    pub stream: String,
    /// Name of its next node.
    pub to: String,
    /// Why it moves.
    pub reason: Reason,
}

/// Result of [`plan`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The moves, in the order in which they should be made.
    pub moves: Vec<Move>,
    /// Streams that no present node may run.
    pub unplaced: Vec<String>,
    /// The share: part of each node's capacity that all streams need. Above 1, the nodes cannot process all frames.
    pub share: f64,
}

/// How much a plan may do.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// Number of moves for the reasons `Drain` and `Balance`.
    pub moves: usize,
    /// Whether the load may be evened out.
    pub may_balance: bool,
}

/// Plans moves; see the module documentation. The order of the arguments does not matter.
pub fn plan(streams: &[Placed<'_>], nodes: &[Site<'_>], policy: &Policy, allowance: Allowance) -> Plan {
    let mut board = Board::new(streams, nodes);
    let mut result = Plan { share: board.share, ..Plan::default() };
    if nodes.is_empty() {
        result.unplaced = streams.iter().filter(|stream| stream.at.is_none()).map(|stream| stream.name.to_owned()).collect();
        return result;
    }
    for stream in board.order.clone() {
        let Some(reason) = board.must_move(stream) else { continue };
        if matches!(reason, Reason::Drain) {
            continue;
        }
        match board.choose(stream) {
            Some(to) => result.moves.push(board.put(stream, to, reason)),
            None if board.at[stream].is_none() => result.unplaced.push(streams[stream].name.to_owned()),
            None => {}
        }
    }
    let mut left = allowance.moves;
    for stream in board.order.clone() {
        if left == 0 {
            break;
        }
        if streams[stream].is_movable
            && board.must_move(stream) == Some(Reason::Drain)
            && let Some(to) = board.choose(stream)
        {
            result.moves.push(board.put(stream, to, Reason::Drain));
            left -= 1;
        }
    }
    if allowance.may_balance && board.is_uneven(policy.hysteresis) {
        while left > 0
            && let Some((stream, to)) = board.best_move(policy.hysteresis / 2.0)
        {
            result.moves.push(board.put(stream, to, Reason::Balance));
            board.is_moved[stream] = true;
            left -= 1;
        }
    }
    result
}

/// Streams and nodes by index, with the load of each node.
struct Board<'a> {
    streams: &'a [Placed<'a>],
    nodes: &'a [Site<'a>],
    at: Vec<Option<usize>>,
    is_moved: Vec<bool>,
    load: Vec<f64>,
    /// Memory that the streams of each node need, in bytes.
    memory: Vec<u64>,
    /// Mean ratio of the measured capacity for a model to the capacity for other models, by model.
    ratios: BTreeMap<&'a str, f64>,
    /// Number of streams of each model on each node.
    models: Vec<BTreeMap<&'a str, usize>>,
    share: f64,
    /// Streams by falling cost, then by hash, so that large streams are placed while there is room.
    order: Vec<usize>,
}

impl<'a> Board<'a> {
    fn new(streams: &'a [Placed<'a>], nodes: &'a [Site<'a>]) -> Self {
        let index: BTreeMap<&str, usize> = nodes.iter().enumerate().map(|(idx, node)| (node.name, idx)).collect();
        let at: Vec<Option<usize>> = streams.iter().map(|stream| stream.at.and_then(|at| index.get(at).copied())).collect();
        let mut board = Self {
            streams,
            nodes,
            is_moved: vec![false; streams.len()],
            load: vec![0.0; nodes.len()],
            memory: vec![0; nodes.len()],
            ratios: ratios(nodes),
            models: vec![BTreeMap::new(); nodes.len()],
            share: 0.0,
            order: (0..streams.len()).collect(),
            at: vec![None; streams.len()],
        };
        for (stream, node) in at.into_iter().enumerate() {
            if let Some(node) = node {
                board.add(stream, node);
            }
        }
        board.share = board.mean_load();
        let key = |stream: usize| (board.cost_key(stream), hash(&[streams[stream].name]));
        let mut order = board.order.clone();
        order.sort_by_cached_key(|stream| std::cmp::Reverse(key(*stream)));
        board.order = order;
        board
    }

    /// Cost as an integer, which can be sorted.
    fn cost_key(&self, stream: usize) -> u64 {
        (cost(self.streams[stream].spec) * 1000.0) as u64
    }

    /// The load that all nodes that are not draining would have if all streams were spread evenly.
    fn mean_load(&self) -> f64 {
        let sites = || self.nodes.iter().filter(|node| !node.is_draining);
        let n_sites = sites().count().max(1) as f64;
        let mut work: BTreeMap<&str, f64> = BTreeMap::new();
        for stream in self.streams {
            *work.entry(&stream.spec.model).or_default() += cost(stream.spec);
        }
        // Capacities of a model relative to the mean node. The size of a node is the mean over models, weighted by their work.
        let mean_capacity = |model: &str| sites().map(|node| self.capacity(node, model)).sum::<f64>() / n_sites;
        let total: f64 = work.iter().map(|(model, work)| work / mean_capacity(model).max(1e-9)).sum();
        total / n_sites
    }

    fn part(&self, stream: usize, node: usize) -> f64 {
        let spec = self.streams[stream].spec;
        cost(spec) / self.capacity(&self.nodes[node], &spec.model)
    }

    /// Frames per second of a model on a node: measured, or estimated from the measurements of other nodes.
    fn capacity(&self, node: &Site<'_>, model: &str) -> f64 {
        let capacity = &node.facts.capacity;
        match self.ratios.get(model) {
            Some(ratio) if !capacity.models.contains_key(model) => (capacity.of("") * ratio).max(1e-3),
            _ => capacity.of(model),
        }
    }

    /// Whether a node has the memory that a stream needs.
    fn has_memory(&self, stream: usize, node: usize) -> bool {
        let (needed, total) = (self.streams[stream].spec.memory, self.nodes[node].facts.memory);
        needed == 0 || total == 0 || self.memory[node].saturating_add(needed) as f64 <= USABLE_MEMORY * total as f64
    }

    /// Whether a node reports that most of its memory is in use.
    fn is_full(&self, node: usize) -> bool {
        let facts = self.nodes[node].facts;
        facts.memory > 0 && facts.load.memory as f64 > USABLE_MEMORY * facts.memory as f64
    }

    fn add(&mut self, stream: usize, node: usize) {
        self.at[stream] = Some(node);
        self.load[node] += self.part(stream, node);
        self.memory[node] = self.memory[node].saturating_add(self.streams[stream].spec.memory);
        *self.models[node].entry(&self.streams[stream].spec.model).or_default() += 1;
    }

    fn put(&mut self, stream: usize, to: usize, reason: Reason) -> Move {
        if let Some(from) = self.at[stream] {
            self.load[from] -= self.part(stream, from);
            self.memory[from] = self.memory[from].saturating_sub(self.streams[stream].spec.memory);
            if let Some(count) = self.models[from].get_mut(self.streams[stream].spec.model.as_str()) {
                *count -= 1;
            }
        }
        self.add(stream, to);
        Move { stream: self.streams[stream].name.to_owned(), to: self.nodes[to].name.to_owned(), reason }
    }

    fn runs_model(&self, node: usize, model: &str) -> bool {
        !model.is_empty() && self.models[node].get(model).is_some_and(|count| *count > 0)
    }

    fn allows(&self, stream: usize, node: usize) -> bool {
        self.streams[stream].spec.allows(self.nodes[node].name, self.nodes[node].facts)
    }

    fn must_move(&self, stream: usize) -> Option<Reason> {
        let Some(at) = self.at[stream] else { return Some(Reason::NoNode) };
        let placed = &self.streams[stream];
        if placed.has_failed {
            Some(Reason::Failed)
        } else if placed.is_movable && !self.allows(stream, at) {
            Some(Reason::Constraint)
        } else {
            self.nodes[at].is_draining.then_some(Reason::Drain)
        }
    }

    /// Returns the node for a stream that needs one or must move; see the module documentation.
    fn choose(&self, stream: usize) -> Option<usize> {
        let placed = &self.streams[stream];
        let others = |node: &usize| self.at[stream] != Some(*node) && self.allows(stream, *node) && self.has_memory(stream, *node);
        let allowed: Vec<usize> = (0..self.nodes.len()).filter(others).collect();
        let is_free = |node: &&usize| !self.nodes[**node].is_draining && !placed.avoids.contains(&self.nodes[**node].name);
        let mut candidates: Vec<usize> = allowed.iter().filter(is_free).copied().collect();
        if candidates.is_empty() && self.at[stream].is_none() {
            // A stream that runs nowhere is better on a draining node, or on one where it failed, than on none.
            candidates = allowed;
        }
        if candidates.iter().any(|node| !self.is_full(*node)) {
            candidates.retain(|node| !self.is_full(*node));
        }
        let model = placed.spec.model.as_str();
        let after = |node: usize| self.load[node] + self.part(stream, node);
        let rank = |node: usize| {
            let (name, capacity) = (self.nodes[node].name, self.capacity(&self.nodes[node], model));
            let fits = after(node) <= self.share + 1e-9;
            if placed.prefers == Some(name) && after(node) <= self.share * 1.05 + 1e-9 {
                (3, 0.0)
            } else if fits && self.runs_model(node, model) {
                (2, score(&[placed.name, name], capacity))
            } else if fits {
                (1, score(&[if model.is_empty() { placed.name } else { model }, name], capacity))
            } else {
                (0, -after(node))
            }
        };
        let best = candidates.into_iter().map(|node| (rank(node), node));
        // Equal ranks are decided by the name, so the order of the arguments does not matter.
        let by_rank = |(a, a_node): &((i32, f64), usize), (b, b_node): &((i32, f64), usize)| {
            (a.0.cmp(&b.0)).then(a.1.total_cmp(&b.1)).then_with(|| self.nodes[*b_node].name.cmp(self.nodes[*a_node].name))
        };
        best.max_by(by_rank).map(|(_, node)| node)
    }

    fn sites(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|node| !self.nodes[*node].is_draining)
    }

    fn is_uneven(&self, hysteresis: f64) -> bool {
        self.sites().any(|node| (self.load[node] - self.share).abs() > hysteresis * self.share)
    }

    /// Returns the move that evens out the load most, or `None` if no two nodes differ by more than this part of the share.
    fn best_move(&self, tolerance: f64) -> Option<(usize, usize)> {
        let mut by_load: Vec<usize> = self.sites().collect();
        by_load.sort_by(|a, b| self.load[*a].total_cmp(&self.load[*b]).then_with(|| self.nodes[*a].name.cmp(self.nodes[*b].name)));
        let mut on: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (stream, at) in self.at.iter().enumerate() {
            if let Some(at) = at
                && self.streams[stream].is_movable
                && !self.is_moved[stream]
            {
                on[*at].push(stream);
            }
        }
        // Pairs with a large difference first.
        let pairs = by_load.iter().rev().flat_map(|from| by_load.iter().map(move |to| (*from, *to)));
        for (from, to) in pairs {
            let gap = self.load[from] - self.load[to];
            if gap <= tolerance * self.share {
                continue;
            }
            let best = on[from].iter().filter_map(|stream| Some((self.benefit(*stream, from, to, gap, tolerance)?, *stream)));
            if let Some((_, stream)) = best.max_by(|(a, _), (b, _)| (a.0.cmp(&b.0)).then(a.1.cmp(&b.1)).then(a.2.total_cmp(&b.2))) {
                return Some((stream, to));
            }
        }
        None
    }

    /// How useful it is to move a stream: how much it evens out in eighths, whether the model runs on the target, and a hash.
    fn benefit(&self, stream: usize, from: usize, to: usize, gap: f64, tolerance: f64) -> Option<(u32, bool, f64)> {
        let placed = &self.streams[stream];
        let has_room = self.has_memory(stream, to) && !self.is_full(to);
        if !self.allows(stream, to) || !has_room || placed.avoids.contains(&self.nodes[to].name) {
            return None;
        }
        let gap_after = (gap - self.part(stream, from) - self.part(stream, to)).abs();
        if gap - gap_after <= tolerance * self.share / 4.0 {
            return None;
        }
        let eighths = ((gap - gap_after) / gap * 8.0) as u32;
        let model = placed.spec.model.as_str();
        let score = score(&[placed.name, self.nodes[to].name], self.capacity(&self.nodes[to], model));
        Some((eighths, self.runs_model(to, model), score))
    }
}

/// The cost of a stream as a valid number.
fn cost(spec: &StreamSpec) -> f64 {
    if spec.cost.is_finite() { spec.cost.max(0.0) } else { 0.0 }
}

/// Returns the mean ratio of the measured capacity for a model to the capacity for other models, by model.
fn ratios<'a>(nodes: &[Site<'a>]) -> BTreeMap<&'a str, f64> {
    let mut found: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for Site { facts, .. } in nodes {
        let capacity = &facts.capacity;
        for model in capacity.models.keys() {
            let (sum, n_nodes) = found.entry(model).or_default();
            (*sum, *n_nodes) = (*sum + capacity.of(model) / capacity.of(""), *n_nodes + 1.0);
        }
    }
    found.into_iter().map(|(model, (sum, n_nodes))| (model, sum / n_nodes)).collect()
}

/// Weighted rendezvous hashing: the number of a node for a key. The node with the highest number is chosen with a probability in proportion
/// to its weight.
fn score(key: &[&str], weight: f64) -> f64 {
    // Between 0 and 1, exclusive.
    let unit = ((hash(key) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -weight / unit.ln()
}

/// FNV-1a over the parts, then the final mixing of SplitMix64. The same on all machines and in all versions.
fn hash(parts: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in part.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::types::Capacity;

    /// Streams and nodes of a test, with the present places.
    struct Town {
        specs: BTreeMap<String, StreamSpec>,
        facts: BTreeMap<String, Facts>,
        draining: BTreeSet<String>,
        at: BTreeMap<String, String>,
    }

    impl Town {
        fn new(n_streams: usize, n_models: usize, capacities: &[f64]) -> Self {
            let spec = |idx: usize| StreamSpec {
                description: serde_json::Value::Null,
                model: format!("model{}", idx % n_models),
                cost: 10.0,
                memory: 0,
                constraints: BTreeMap::new(),
            };
            let facts = |capacity: f64| Facts { capacity: Capacity { default: capacity, models: BTreeMap::new() }, ..Facts::default() };
            Self {
                specs: (0..n_streams).map(|idx| (format!("s{idx:04}"), spec(idx))).collect(),
                facts: capacities.iter().enumerate().map(|(idx, capacity)| (format!("n{idx:02}"), facts(*capacity))).collect(),
                draining: BTreeSet::new(),
                at: BTreeMap::new(),
            }
        }

        fn plan(&self, moves: usize, may_balance: bool) -> Plan {
            let streams: Vec<Placed<'_>> = self
                .specs
                .iter()
                .map(|(name, spec)| Placed {
                    name,
                    spec,
                    at: self.at.get(name).map(String::as_str).filter(|at| self.facts.contains_key(*at)),
                    prefers: None,
                    is_movable: true,
                    has_failed: false,
                    avoids: Vec::new(),
                })
                .collect();
            let nodes: Vec<Site<'_>> =
                self.facts.iter().map(|(name, facts)| Site { name, facts, is_draining: self.draining.contains(name) }).collect();
            plan(&streams, &nodes, &Policy::default(), Allowance { moves, may_balance })
        }

        fn step(&mut self) -> Vec<Move> {
            let plan = self.plan(usize::MAX, true);
            for Move { stream, to, .. } in &plan.moves {
                self.at.insert(stream.clone(), to.clone());
            }
            plan.moves
        }

        fn count(&self, node: &str) -> usize {
            self.at.values().filter(|at| *at == node).count()
        }

        fn n_models(&self, node: &str) -> usize {
            let models: BTreeSet<&str> =
                self.at.iter().filter(|(_, at)| *at == node).map(|(stream, _)| self.specs[stream].model.as_str()).collect();
            models.len()
        }
    }

    #[test]
    fn equal_nodes_get_equal_streams_and_then_nothing_moves() {
        let mut town = Town::new(1000, 5, &[1000.0; 20]);
        assert_eq!(town.step().len(), 1000);
        let counts: Vec<usize> = town.facts.keys().map(|node| town.count(node)).collect();
        assert!(counts.iter().all(|count| (49..=51).contains(count)), "{counts:?}");
        assert!(town.step().is_empty());
    }

    #[test]
    fn capacity_decides_how_many_streams_a_node_gets() {
        let mut town = Town::new(300, 1, &[1000.0, 2000.0, 3000.0]);
        town.step();
        assert_eq!([town.count("n00"), town.count("n01"), town.count("n02")], [50, 100, 150]);
    }

    #[test]
    fn streams_of_a_model_are_on_few_nodes() {
        let mut town = Town::new(1000, 10, &[1000.0; 20]);
        town.step();
        let n_models: usize = town.facts.keys().map(|node| town.n_models(node)).sum();
        assert!(n_models <= 50, "{n_models} models on 20 nodes; without affinity, there are 200");
    }

    #[test]
    fn only_streams_of_a_lost_node_move() {
        let mut town = Town::new(1000, 5, &[1000.0; 20]);
        town.step();
        town.facts.remove("n07");
        let moves = town.step();
        assert_eq!(moves.len(), 50);
        assert!(moves.iter().all(|step| step.reason == Reason::NoNode));
        let counts: Vec<usize> = town.facts.keys().map(|node| town.count(node)).collect();
        assert!(counts.iter().all(|count| (51..=54).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_new_node_gets_its_share_with_as_few_moves() {
        let mut town = Town::new(1000, 5, &[1000.0; 20]);
        let facts = town.facts.remove("n07").unwrap();
        town.step();
        town.facts.insert("n07".to_owned(), facts);
        let moves = town.step();
        assert!((48..=52).contains(&moves.len()), "{} moves", moves.len());
        assert!(moves.iter().all(|step| step.reason == Reason::Balance && step.to == "n07"));
        assert!(town.step().is_empty());
    }

    #[test]
    fn moves_are_bounded() {
        let mut town = Town::new(100, 1, &[1000.0; 2]);
        town.step();
        town.draining.insert("n01".to_owned());
        assert_eq!(town.plan(7, true).moves.len(), 7);
        assert!(town.plan(7, true).moves.iter().all(|step| step.reason == Reason::Drain && step.to == "n00"));
    }

    #[test]
    fn a_small_difference_moves_nothing() {
        let mut town = Town::new(100, 1, &[1000.0; 4]);
        town.step();
        let stream = town.at.iter().find(|(_, at)| *at == "n00").map(|(stream, _)| stream.clone()).unwrap();
        town.at.insert(stream, "n01".to_owned());
        assert_eq!(town.plan(usize::MAX, true).moves.len(), 0, "24 and 26 streams differ from 25 by 4 %");
    }

    #[test]
    fn constraints_are_kept_and_streams_without_a_node_are_reported() {
        let mut town = Town::new(40, 1, &[1000.0; 4]);
        for node in ["n00", "n01"] {
            town.facts.get_mut(node).unwrap().labels.insert("site".to_owned(), "a".to_owned());
        }
        for (idx, spec) in town.specs.values_mut().enumerate() {
            if idx < 10 {
                spec.constraints.insert("site".to_owned(), vec!["a".to_owned()]);
            }
        }
        town.specs.get_mut("s0030").unwrap().constraints.insert("node".to_owned(), vec!["n03".to_owned()]);
        town.specs.get_mut("s0031").unwrap().constraints.insert("gpu".to_owned(), Vec::new());
        assert_eq!(town.plan(0, false).unplaced, ["s0031"]);
        town.step();
        assert!((0..10).all(|idx| ["n00", "n01"].contains(&&*town.at[&format!("s{idx:04}")])));
        assert_eq!(town.at["s0030"], "n03");
        // A constraint that is added later moves the stream.
        let stream = town.at.iter().find(|(_, at)| *at == "n02").map(|(stream, _)| stream.clone()).unwrap();
        town.specs.get_mut(&stream).unwrap().constraints.insert("site".to_owned(), vec!["a".to_owned()]);
        let moves = town.step();
        assert!(moves.iter().any(|step| step.stream == stream && step.reason == Reason::Constraint), "{moves:?}");
    }

    #[test]
    fn streams_that_need_a_device_run_where_it_is() {
        let mut town = Town::new(30, 1, &[1000.0; 3]);
        for (node, devices) in [("n00", vec!["CPU"]), ("n01", vec!["CPU", "OPENVINO.GPU.0"]), ("n02", vec!["CPU", "ORT.CUDA"])] {
            town.facts.get_mut(node).unwrap().devices = devices.into_iter().map(str::to_owned).collect();
        }
        let mut need = |stream: &str, devices: &[&str]| {
            let devices = devices.iter().map(|device| (*device).to_owned()).collect();
            town.specs.get_mut(stream).unwrap().constraints.insert("device".to_owned(), devices);
        };
        need("s0000", &["OPENVINO.GPU"]);
        need("s0001", &["OPENVINO.GPU.0"]);
        need("s0002", &["ORT.CUDA", "OPENVINO"]);
        need("s0003", &["ORT"]);
        need("s0004", &["OPENVINO.NPU"]);
        need("s0005", &[]);
        need("s0006", &["CP"]);
        let unplaced: BTreeSet<String> = town.plan(0, false).unplaced.into_iter().collect();
        assert_eq!(unplaced, ["s0004", "s0006"].map(str::to_owned).into());
        town.step();
        assert_eq!([&town.at["s0000"], &town.at["s0001"], &town.at["s0003"]], ["n01", "n01", "n02"]);
        assert!(["n01", "n02"].contains(&&*town.at["s0002"]));
    }

    #[test]
    fn streams_that_need_memory_get_a_node_that_has_it() {
        const GIB: u64 = 1 << 30;
        let mut town = Town::new(20, 1, &[1000.0; 2]);
        town.facts.get_mut("n00").unwrap().memory = 4 * GIB;
        town.facts.get_mut("n01").unwrap().memory = 16 * GIB;
        for spec in town.specs.values_mut() {
            spec.memory = GIB;
        }
        // 0.9 of 4 GiB and of 16 GiB.
        assert_eq!(town.plan(0, false).unplaced.len(), 20 - 3 - 14);
        town.step();
        assert_eq!((town.count("n00"), town.count("n01")), (3, 14));
        assert!(town.step().is_empty(), "an uneven load does not move streams to a node without memory for them");
    }

    #[test]
    fn node_that_uses_most_of_its_memory_gets_no_streams_unless_it_is_the_only_one() {
        let mut town = Town::new(10, 1, &[1000.0; 2]);
        let full = town.facts.get_mut("n00").unwrap();
        (full.memory, full.load.memory) = (1000, 950);
        town.specs.get_mut("s0000").unwrap().constraints.insert("node".to_owned(), vec!["n00".to_owned()]);
        town.step();
        assert_eq!((&*town.at["s0000"], town.count("n01")), ("n00", 9));
        assert!(town.step().is_empty());
    }

    #[test]
    fn capacity_of_a_model_decides_and_is_estimated_where_it_was_not_measured() {
        let mut town = Town::new(100, 2, &[1000.0, 1000.0, 2000.0]);
        // The model 0 is ten times slower than the others. The third node has not measured it, and is twice as fast.
        for node in ["n00", "n01"] {
            town.facts.get_mut(node).unwrap().capacity.models.insert("model0".to_owned(), 100.0);
        }
        town.specs.retain(|_, spec| spec.model == "model0");
        town.step();
        let counts = [town.count("n00"), town.count("n01"), town.count("n02")];
        assert!((12..=13).contains(&counts[0]) && (12..=13).contains(&counts[1]) && counts[2] == 25, "{counts:?}");
        // A node on which only this model is slow gets fewer streams of it.
        let mut town = Town::new(50, 1, &[1000.0, 1000.0]);
        town.facts.get_mut("n00").unwrap().capacity.models.insert("model0".to_owned(), 250.0);
        town.facts.get_mut("n01").unwrap().capacity.models.insert("model0".to_owned(), 1000.0);
        town.step();
        assert_eq!((town.count("n00"), town.count("n01")), (10, 40));
    }

    #[test]
    fn the_order_of_streams_and_nodes_does_not_matter() {
        let town = Town::new(60, 3, &[1000.0, 500.0, 700.0]);
        let plan_of = |is_reversed: bool| {
            let mut streams: Vec<Placed<'_>> = town
                .specs
                .iter()
                .map(|(name, spec)| Placed { name, spec, at: None, prefers: None, is_movable: true, has_failed: false, avoids: Vec::new() })
                .collect();
            let mut nodes: Vec<Site<'_>> = town.facts.iter().map(|(name, facts)| Site { name, facts, is_draining: false }).collect();
            if is_reversed {
                streams.reverse();
                nodes.reverse();
            }
            plan(&streams, &nodes, &Policy::default(), Allowance { moves: 0, may_balance: false }).moves
        };
        assert_eq!(plan_of(false), plan_of(true));
    }

    #[test]
    fn more_work_than_capacity_is_still_placed() {
        let mut town = Town::new(500, 1, &[1000.0; 2]);
        assert!((town.plan(0, false).share - 2.5).abs() < 1e-9);
        town.step();
        assert_eq!(town.at.len(), 500);
    }
}
