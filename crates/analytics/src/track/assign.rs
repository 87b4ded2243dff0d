//! Optimal assignment of tracks to detections, with a cost limit for pairs.
//!
//! Minimizes the sum of the costs of all pairs, where each unmatched track costs the limit. The algorithm is that of shortest augmenting
//! paths with dual variables (Jonker and Volgenant, "A Shortest Augmenting Path Algorithm for Dense and Sparse Linear Assignment Problems",
//! Computing 38, 1987). It visits candidate pairs only, so its time grows with the number of overlapping boxes and not with the product of
//! tracks and detections.

/// A candidate pair. Costs must be finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    pub track_idx: u32,
    pub detection_idx: u32,
    pub cost: f32,
}

const NONE: u32 = u32::MAX;

/// The solver. Its buffers are reused from frame to frame.
#[derive(Debug, Default)]
pub struct Assignment {
    /// Position of the first candidate of each track, and the number of candidates as last entry.
    begins: Vec<u32>,
    /// Dual variable of each track.
    track_prices: Vec<f32>,
    detections: Vec<Column>,
    /// Detections that the current search has reached, and (in `scanned`) those whose distance is final.
    reached: Vec<u32>,
    scanned: Vec<u32>,
    /// The detection of each track, or [`NONE`].
    detection_of: Vec<u32>,
}

/// A detection during the search.
#[derive(Debug, Clone, Copy)]
struct Column {
    /// Dual variable.
    price: f32,
    /// Length of the shortest known path to this detection.
    distance: f32,
    /// The track before this detection on that path.
    previous: u32,
    track: u32,
    is_scanned: bool,
}

impl Assignment {
    /// Solves the assignment. `candidates` must be sorted by track. Pairs with a cost of `limit` or more are never matched.
    ///
    /// Calls `accept` with the indices of each pair, in the order of the tracks.
    pub fn solve(
        &mut self,
        n_tracks: usize,
        n_detections: usize,
        candidates: &[Candidate],
        limit: f32,
        mut accept: impl FnMut(usize, usize),
    ) {
        self.begins.clear();
        let mut next = 0;
        for track_idx in 0..n_tracks {
            self.begins.push(next as u32);
            while candidates.get(next).is_some_and(|candidate| candidate.track_idx as usize == track_idx) {
                next += 1;
            }
        }
        self.begins.push(next as u32);
        self.track_prices.clear();
        self.track_prices.resize(n_tracks, 0.0);
        self.detection_of.clear();
        self.detection_of.resize(n_tracks, NONE);
        self.detections.clear();
        self.detections
            .resize(n_detections, Column { price: 0.0, distance: f32::INFINITY, previous: NONE, track: NONE, is_scanned: false });
        for track_idx in 0..n_tracks {
            self.augment(track_idx, candidates, limit);
        }
        for (track_idx, &detection_idx) in self.detection_of.iter().enumerate().filter(|(_, idx)| **idx != NONE) {
            accept(track_idx, detection_idx as usize);
        }
    }

    /// Finds the shortest path from a track to a free detection, or to a track that becomes unmatched.
    fn augment(&mut self, first_track: usize, candidates: &[Candidate], limit: f32) {
        let (mut track, mut distance) = (first_track, 0.0);
        // The shortest path that ends by leaving a track unmatched.
        let (mut best_end, mut unmatched_via) = (f32::INFINITY, NONE);
        let mut via = NONE;
        let end = loop {
            let price = self.track_prices[track];
            if distance + (limit - price) < best_end {
                (best_end, unmatched_via) = (distance + (limit - price), via);
            }
            for candidate in &candidates[self.begins[track] as usize..self.begins[track + 1] as usize] {
                let column = &mut self.detections[candidate.detection_idx as usize];
                let length = distance + candidate.cost - price - column.price;
                if candidate.cost < limit && length < column.distance && !column.is_scanned {
                    if column.distance == f32::INFINITY {
                        self.reached.push(candidate.detection_idx);
                    }
                    (column.distance, column.previous) = (length, track as u32);
                }
            }
            let open = self.reached.iter().filter(|idx| !self.detections[**idx as usize].is_scanned);
            let nearest = open.min_by(|a, b| self.detections[**a as usize].distance.total_cmp(&self.detections[**b as usize].distance));
            let Some(&nearest) = nearest.filter(|idx| self.detections[**idx as usize].distance < best_end) else {
                break unmatched_via;
            };
            let column = &mut self.detections[nearest as usize];
            if column.track == NONE {
                best_end = column.distance;
                break nearest;
            }
            column.is_scanned = true;
            self.scanned.push(nearest);
            (track, distance, via) = (column.track as usize, column.distance, nearest);
        };
        self.track_prices[first_track] += best_end;
        for &idx in &self.scanned {
            let column = &mut self.detections[idx as usize];
            self.track_prices[column.track as usize] += best_end - column.distance;
            column.price -= best_end - column.distance;
        }
        self.reassign(first_track, end);
        for idx in self.reached.drain(..) {
            let column = &mut self.detections[idx as usize];
            (column.distance, column.previous, column.is_scanned) = (f32::INFINITY, NONE, false);
        }
        self.scanned.clear();
    }

    /// Swaps the pairs along the path that ends at the detection `end`.
    fn reassign(&mut self, first_track: usize, mut end: u32) {
        if end != NONE && self.detections[end as usize].track != NONE {
            // The last track of the path becomes unmatched.
            self.detection_of[self.detections[end as usize].track as usize] = NONE;
        }
        while end != NONE {
            let track = self.detections[end as usize].previous;
            self.detections[end as usize].track = track;
            let next = std::mem::replace(&mut self.detection_of[track as usize], end);
            end = if track as usize == first_track { NONE } else { next };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest sum of costs, found by trying all assignments.
    fn brute_force(costs: &[Vec<f32>], limit: f32, track_idx: usize, used: &mut Vec<bool>) -> f32 {
        if track_idx == costs.len() {
            return 0.0;
        }
        let mut best = limit + brute_force(costs, limit, track_idx + 1, used);
        for detection_idx in 0..used.len() {
            if !used[detection_idx] && costs[track_idx][detection_idx] < limit {
                used[detection_idx] = true;
                best = best.min(costs[track_idx][detection_idx] + brute_force(costs, limit, track_idx + 1, used));
                used[detection_idx] = false;
            }
        }
        best
    }

    #[test]
    fn sum_of_costs_is_the_smallest() {
        let mut random = 7_u64;
        let mut unit = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % 1000) as f32 / 1000.0
        };
        let mut assignment = Assignment::default();
        for round in 0..2000 {
            let (n_tracks, n_detections) = (round % 6, round / 6 % 6);
            let costs: Vec<Vec<f32>> = (0..n_tracks).map(|_| (0..n_detections).map(|_| unit() * 2.0 - 0.5).collect()).collect();
            let limit = 0.2 + unit();
            let all =
                costs.iter().enumerate().flat_map(|(track, row)| row.iter().enumerate().map(move |(found, cost)| (track, found, *cost)));
            let candidates: Vec<Candidate> = all
                .filter(|(.., cost)| *cost < 1.2)
                .map(|(track, found, cost)| Candidate { track_idx: track as u32, detection_idx: found as u32, cost })
                .collect();
            let (mut sum, mut used) = (limit * n_tracks as f32, vec![false; n_detections]);
            assignment.solve(n_tracks, n_detections, &candidates, limit, |track, found| {
                assert!(!std::mem::replace(&mut used[found], true), "round {round}: detection {found} is used twice");
                sum += costs[track][found] - limit;
            });
            let expected = brute_force(&costs, limit, 0, &mut vec![false; n_detections]);
            assert!((sum - expected).abs() < 1e-4, "round {round}: expected {expected}, got {sum}");
        }
    }
}
