//! Result reuse: caches the classifications of tracked objects, so that an object is not classified in every frame.
//!
//! Objects are identified by track ID. [`ResultCache::plan`] is called in the order of arriving frames and decides whether an object is
//! classified. [`ResultCache::insert`] stores results in any order. [`ResultCache::apply`] adds cached results to an outgoing frame. Only
//! results of this frame and of earlier frames are added, so the output does not depend on thread timing.
//!
//! This module uses no models, threads or clocks.
//!
//! # When an object is classified
//!
//! | object | classified |
//! |---|---|
//! | without a track ID | in every frame |
//! | with fewer than [`ReuseOptions::consensus`] attempts | in every frame |
//! | whose box area grew by more than [`ReuseOptions::growth`] | immediately |
//! | whose [`ReuseOptions::interval`] has expired | if it moved by more than [`ReuseOptions::movement`] |
//!
//! A failed run does not count as an attempt. A run whose result is below the threshold counts as an attempt, but adds no vote.
//!
//! # The result of several classifications
//!
//! For each attribute, the last [`ReuseOptions::consensus`] results vote:
//!
//! - Labels: the most frequent label wins. Ties are decided by the sum of confidences, then by the newest result. The confidence is the
//!   mean of the winning results.
//! - Numbers, such as an age: the mean.
//! - Both labels and numbers: only the results of the same kind as the newest result vote.
//!
//! # Results that change over time
//!
//! Some results describe the moment and not the object, for example an action. For these, the caller also records each complete run with
//! [`ResultCache::insert_run`], and each new start of an object with [`ResultCache::restart`]. Then only the last
//! [`ReuseOptions::consensus`] runs since the start vote. If all of these runs are below the threshold, the object has no result.

use crate::frame::{Classification, Detection, ObjectId, Outcome, Rect, Size};

/// Maximum number of cached objects. The object that was seen longest ago is evicted first. Ties are decided by the
/// smallest track ID.
pub const MAX_OBJECTS: usize = 300 // visible: the default limit of one detector's results in a frame
    + 300 // visible: the same for a second detector
    + 424; // not visible, may reappear
/// Maximum number of results that are cached for frames that are still in the pipeline.
const MAX_AHEAD: usize = 64;

/// When an object is classified again, and how many results are combined.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReuseOptions {
    /// Frames between two classifications. 1: every frame; 0: classify once. Default: 1.
    pub interval: u32,
    /// Classify again when the box area has grown by more than this fraction; 0 turns this off. Default: 0.
    pub growth: f32,
    /// When the interval expires, classify only if a box edge moved by more than this fraction of the box's size. With 0, movement is not
    /// required. Default: 0.
    pub movement: f32,
    /// Number of results that vote; at least 1. Default: 1.
    pub consensus: u32,
}

impl Default for ReuseOptions {
    fn default() -> Self {
        Self { interval: 1, growth: 0.0, movement: 0.0, consensus: 1 }
    }
}

impl ReuseOptions {
    /// Returns whether these options make the classifier use cached results.
    pub fn are_used(&self) -> bool {
        *self != Self { growth: self.growth, ..Self::default() }
    }

    /// Returns a message if an option has no effect in combination with the other options.
    pub fn option_without_effect(&self) -> Option<String> {
        if self.growth > 0.0 && self.interval == 1 && self.movement <= 0.0 {
            return Some(format!(
                "reclassify-growth={} has no effect with reclassify-interval=1, which classifies every object in every frame; expected an interval of 0 (once) or more than 1 frames",
                self.growth
            ));
        }
        if self.movement > 0.0 && self.interval == 0 {
            return Some(format!(
                "reclassify-movement={} has no effect with reclassify-interval=0, which never classifies an object again; expected an interval of 1 or more frames",
                self.movement
            ));
        }
        None
    }
}

/// The result cache; see the module.
#[derive(Debug, Default)]
pub struct ResultCache {
    options: ReuseOptions,
    /// Sorted by track ID.
    objects: Vec<CachedObject>,
}

#[derive(Debug)]
struct CachedObject {
    track_id: ObjectId,
    /// Number of the latest frame that contains the object.
    seen_in: u64,
    /// Frame of the latest attempt, and the box at that time, in fractions of the frame.
    last_attempt: Option<(u64, Rect)>,
    /// Number of attempts, without failed runs.
    n_attempts: u32,
    /// Results by attribute.
    attributes: Vec<Attribute>,
    /// Complete runs and starts of the object, in the order of frames, if the caller records them.
    runs: Vec<Run>,
}

/// A complete run of an object, or a start of the object.
#[derive(Debug)]
struct Run {
    frame_number: u64,
    is_start: bool,
}

#[derive(Debug)]
struct Attribute {
    /// Name and model of the attribute, from its first result.
    result: Classification,
    /// Results with their frame numbers, oldest first.
    results: Vec<(u64, Outcome)>,
}

impl ResultCache {
    /// Creates an empty cache.
    pub fn new(options: ReuseOptions) -> Self {
        Self { options, objects: Vec::new() }
    }

    /// Decides whether the object is classified in this frame. If true, an attempt is recorded.
    pub fn plan(&mut self, frame_number: u64, track_id: ObjectId, rect: Rect, size: Size) -> bool {
        let options = self.options;
        let relative = rect.rescaled(size, Size::new(1, 1));
        let object = self.object_or_new(track_id, frame_number);
        object.seen_in = frame_number;
        if !object.is_due(frame_number, relative, &options) {
            return false;
        }
        object.last_attempt = Some((frame_number, relative));
        object.n_attempts = object.n_attempts.saturating_add(1);
        true
    }

    /// Cancels the attempt of this frame after a failed run. The object is classified in the next frame.
    pub fn cancel_attempt(&mut self, frame_number: u64, track_id: ObjectId) {
        let Some(object) = self.object(track_id) else { return };
        object.n_attempts = object.n_attempts.saturating_sub(1);
        if object.last_attempt.is_some_and(|(attempt_frame, _)| attempt_frame <= frame_number) {
            object.last_attempt = None;
        }
    }

    /// Stores the results of an object in a frame. Geometry is not stored, because it is valid in its own frame only.
    pub fn insert(&mut self, frame_number: u64, track_id: ObjectId, result: &Classification) {
        if matches!(result.outcome, Outcome::Geometry(_)) {
            return;
        }
        let max_results = self.max_results();
        // The object is not found if it was evicted in the meantime.
        let Some(object) = self.object(track_id) else { return };
        let attribute_idx = object.attributes.iter().position(|attribute| attribute.is_of(result)).unwrap_or_else(|| {
            object.attributes.push(Attribute { result: result.clone(), results: Vec::new() });
            object.attributes.len() - 1
        });
        let results = &mut object.attributes[attribute_idx].results;
        let idx = results.partition_point(|(frame, _)| *frame <= frame_number);
        results.insert(idx, (frame_number, result.outcome.clone()));
        if results.len() > max_results {
            results.remove(0);
        }
    }

    /// Records a complete run of an object in a frame, also if the run has no result. Results of earlier runs are used no longer if
    /// [`ReuseOptions::consensus`] later runs are complete.
    pub fn insert_run(&mut self, frame_number: u64, track_id: ObjectId) {
        self.insert_run_or_start(track_id, Run { frame_number, is_start: false });
    }

    /// Records that an object starts anew in a frame. From this frame on, results of earlier frames are used no longer.
    pub fn restart(&mut self, frame_number: u64, track_id: ObjectId) {
        self.insert_run_or_start(track_id, Run { frame_number, is_start: true });
    }

    fn insert_run_or_start(&mut self, track_id: ObjectId, run: Run) {
        let max_runs = self.max_results();
        let Some(object) = self.object(track_id) else { return };
        let idx = object.runs.partition_point(|other| other.frame_number <= run.frame_number);
        object.runs.insert(idx, run);
        if object.runs.len() > max_runs {
            object.runs.remove(0);
        }
    }

    /// Maximum number of results and of runs that are stored for an object.
    fn max_results(&self) -> usize {
        self.options.consensus.max(1) as usize + MAX_AHEAD
    }

    /// Replaces the attributes of an object in an outgoing frame with the combined results.
    ///
    /// Returns true if a combined result is based on earlier frames only.
    pub fn apply(&mut self, frame_number: u64, detection: &mut Detection) -> bool {
        let n_voters = self.options.consensus.max(1) as usize;
        let Some(object) = detection.track.and_then(|track_id| self.object(track_id)) else { return false };
        object.seen_in = object.seen_in.max(frame_number);
        let mut is_from_earlier = false;
        let first_frame = object.first_frame_of_votes(frame_number, n_voters);
        for Attribute { result, results } in &object.attributes {
            let n_results = results.partition_point(|(frame, _)| *frame <= frame_number);
            let n_outdated = results.partition_point(|(frame, _)| *frame < first_frame);
            let voters = &results[n_outdated.max(n_results.saturating_sub(n_voters))..n_results];
            let Some((newest, _)) = voters.last() else { continue };
            let outcome = vote(voters);
            let is_same = |other: &&mut Classification| other.name == result.name && other.model == result.model;
            match detection.classifications.iter_mut().find(is_same) {
                Some(own) => own.outcome = outcome,
                None => detection.classifications.push(Classification { outcome, ..result.clone() }),
            }
            is_from_earlier |= *newest != frame_number;
        }
        is_from_earlier
    }

    /// Removes all objects.
    pub fn clear(&mut self) {
        self.objects.clear();
    }

    /// Number of cached objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn object(&mut self, track_id: ObjectId) -> Option<&mut CachedObject> {
        let idx = self.objects.binary_search_by_key(&track_id, |object| object.track_id).ok()?;
        self.objects.get_mut(idx)
    }

    fn object_or_new(&mut self, track_id: ObjectId, frame_number: u64) -> &mut CachedObject {
        let is_new = self.objects.binary_search_by_key(&track_id, |object| object.track_id).is_err();
        if is_new && self.objects.len() >= MAX_OBJECTS {
            // `min_by_key` returns the first of equal elements.
            let oldest = self.objects.iter().enumerate().min_by_key(|(_, object)| object.seen_in).map_or(0, |(idx, _)| idx);
            self.objects.remove(oldest);
        }
        let idx = match self.objects.binary_search_by_key(&track_id, |object| object.track_id) {
            Ok(idx) => idx,
            Err(idx) => {
                self.objects.insert(
                    idx,
                    CachedObject {
                        track_id,
                        seen_in: frame_number,
                        last_attempt: None,
                        n_attempts: 0,
                        attributes: Vec::new(),
                        runs: Vec::new(),
                    },
                );
                idx
            }
        };
        &mut self.objects[idx]
    }
}

impl CachedObject {
    fn is_due(&self, frame_number: u64, rect: Rect, options: &ReuseOptions) -> bool {
        let Some((attempt_frame, was)) = self.last_attempt else { return true };
        // If the number is equal, this is the same frame. If it is smaller, a new stream has started.
        let Some(n_frames) = frame_number.checked_sub(attempt_frame) else { return true };
        if n_frames == 0 {
            return false;
        }
        let has_grown = || options.growth > 0.0 && rect.area() > was.area() * (1.0 + options.growth);
        let is_time = || options.interval > 0 && n_frames >= u64::from(options.interval);
        let stands_still = || options.movement > 0.0 && !has_moved(rect, was, options.movement);
        self.n_attempts < options.consensus || has_grown() || (is_time() && !stands_still())
    }

    /// Returns the first frame whose results vote in this frame, if runs are recorded. Otherwise 0.
    fn first_frame_of_votes(&self, frame_number: u64, n_voters: usize) -> u64 {
        let runs = &self.runs[..self.runs.partition_point(|run| run.frame_number <= frame_number)];
        let start = runs.iter().rposition(|run| run.is_start).unwrap_or_default();
        runs.get(start.max(runs.len().saturating_sub(n_voters))).map_or(0, |run| run.frame_number)
    }
}

impl Attribute {
    fn is_of(&self, result: &Classification) -> bool {
        self.result.name == result.name && self.result.model == result.model
    }
}

/// Whether a box edge moved by more than this fraction of the previous width or height.
fn has_moved(is: Rect, was: Rect, share: f32) -> bool {
    let (x, y) = ((is.x - was.x).abs().max((is.x_max() - was.x_max()).abs()), (is.y - was.y).abs().max((is.y_max() - was.y_max()).abs()));
    x > share * was.width || y > share * was.height
}

/// Combines results, oldest first; `results` is not empty.
fn vote(results: &[(u64, Outcome)]) -> Outcome {
    let newest = &results[results.len() - 1].1;
    let outcomes = || results.iter().map(|(_, outcome)| outcome);
    match newest {
        Outcome::Value(_) => {
            let values = || outcomes().filter_map(|outcome| if let Outcome::Value(value) = outcome { Some(*value) } else { None });
            Outcome::Value(values().sum::<f32>() / values().count() as f32)
        }
        Outcome::Label { .. } => {
            let labels = || {
                outcomes().filter_map(|outcome| match outcome {
                    Outcome::Label { label_id, label, confidence } => Some((*label_id, label, *confidence)),
                    _ => None,
                })
            };
            let tally = |label_id: u32, label: &Option<_>| {
                let same = labels().filter(|(other_id, other, _)| *other_id == label_id && *other == label);
                same.fold((0_u32, 0.0_f32), |(n_votes, sum), (_, _, confidence)| (n_votes + 1, sum + confidence))
            };
            let tallied = labels().map(|(label_id, label, _)| (label_id, label, tally(label_id, label)));
            // `max_by` returns the last of equal elements, which is the newest.
            let best = tallied.max_by(|(_, _, one), (_, _, other)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
            match best {
                Some((label_id, label, (n_votes, sum))) => {
                    Outcome::Label { label_id, label: label.clone(), confidence: sum / n_votes as f32 }
                }
                None => newest.clone(),
            }
        }
        // Results that are neither labels nor numbers do not vote.
        _ => newest.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size::new(640, 480);
    const TRACK: ObjectId = ObjectId(7);

    fn here(x: f32, width: f32) -> Rect {
        Rect { x, y: 100.0, width, height: 80.0 }
    }

    fn result(name: &str, outcome: Outcome) -> Classification {
        Classification { name: name.into(), model: "m".into(), outcome }
    }

    fn label(label_id: u32, confidence: f32) -> Outcome {
        Outcome::Label { label_id, label: Some(format!("label {label_id}").into()), confidence }
    }

    fn object(track: Option<ObjectId>) -> Detection {
        let rect = here(10.0, 40.0);
        Detection {
            id: ObjectId(1),
            track,
            track_state: None,
            parent: None,
            rect,
            keypoints: vec![],
            confidence: 1.0,
            label_id: 0,
            label: None,
            classifications: vec![],
        }
    }

    /// The frames in which an object with these boxes is classified.
    fn attempts(options: ReuseOptions, n_frames: u64, rect: impl Fn(u64) -> Rect) -> Vec<u64> {
        let mut cache = ResultCache::new(options);
        (0..n_frames).filter(|&n| cache.plan(n, TRACK, rect(n), SIZE)).collect()
    }

    #[test]
    fn object_is_classified_when_the_interval_expires() {
        let still = |_| here(10.0, 40.0);
        for (interval, expected) in [(0, vec![0]), (1, (0..10).collect()), (2, vec![0, 2, 4, 6, 8]), (4, vec![0, 4, 8])] {
            assert_eq!(attempts(ReuseOptions { interval, ..ReuseOptions::default() }, 10, still), expected, "every {interval}");
        }
        // The object is classified in every frame until it has `consensus` results.
        let options = ReuseOptions { interval: 4, consensus: 3, ..ReuseOptions::default() };
        assert_eq!(attempts(options, 12, still), [0, 1, 2, 6, 10]);
        assert_eq!(attempts(ReuseOptions { interval: 0, ..options }, 12, still), [0, 1, 2]);
    }

    #[test]
    fn grown_object_is_classified_at_once() {
        let options = ReuseOptions { interval: 0, growth: 0.2, ..ReuseOptions::default() };
        let widths = [40.0, 44.0, 47.0, 49.0, 58.0, 60.0];
        assert_eq!(attempts(options, 6, |n| here(10.0, widths[n as usize])), [0, 3, 5]);
        assert_eq!(attempts(options, 6, |n| here(10.0, widths[5 - n as usize])), [0], "a shrinking object is not");
    }

    #[test]
    fn unmoved_object_is_not_classified_again() {
        let options = ReuseOptions { interval: 2, movement: 0.26, ..ReuseOptions::default() };
        assert_eq!(attempts(options, 10, |n| here(10.0 + (n % 2) as f32, 40.0)), [0]);
        // Two pixels per frame at a width of 40: enough movement after six frames.
        assert_eq!(attempts(options, 20, |n| here(10.0 + 2.0 * n as f32, 40.0)), [0, 6, 12, 18]);
        let growing = ReuseOptions { movement: 0.5, growth: 0.1, ..options };
        assert_eq!(attempts(growing, 4, |n| here(10.0, 40.0 + n as f32 * 6.0)), [0, 1, 2, 3], "growth counts without movement");
        // If the frame size changes and the box keeps its relative position, the object has not moved.
        let mut cache = ResultCache::new(options);
        assert!(cache.plan(0, TRACK, here(10.0, 40.0), SIZE));
        let half = Size::new(SIZE.width / 2, SIZE.height / 2);
        assert!(!cache.plan(2, TRACK, here(10.0, 40.0).rescaled(SIZE, half), half));
    }

    #[test]
    fn failed_run_is_not_an_attempt() {
        let mut cache = ResultCache::new(ReuseOptions { interval: 0, ..ReuseOptions::default() });
        let mut plan = |n| cache.plan(n, TRACK, here(10.0, 40.0), SIZE);
        assert!(plan(0) && !plan(1));
        cache.cancel_attempt(0, TRACK);
        let mut plan = |n| cache.plan(n, TRACK, here(10.0, 40.0), SIZE);
        assert!(plan(2) && !plan(3));
        cache.cancel_attempt(99, ObjectId(99));
    }

    #[test]
    fn repeated_frame_and_restarted_numbers_are_distinguished() {
        let mut cache = ResultCache::new(ReuseOptions { interval: 5, consensus: 2, ..ReuseOptions::default() });
        let mut plan = |n| cache.plan(n, TRACK, here(10.0, 40.0), SIZE);
        assert_eq!([100, 100, 101, 101, 102].map(&mut plan), [true, false, true, false, false]);
        assert!(plan(3), "another stream");
    }

    #[test]
    fn labels_vote_and_numbers_are_averaged() {
        #[derive(Debug)]
        struct Case(&'static [(u32, f32)], (u32, f32));
        for case in [
            Case(&[(1, 0.9)], (1, 0.9)),
            Case(&[(1, 0.5), (2, 0.9), (1, 0.7)], (1, 0.6)),
            Case(&[(1, 0.5), (2, 0.9)], (2, 0.9)),
            Case(&[(2, 0.9), (1, 0.5)], (2, 0.9)),
            Case(&[(1, 0.5), (2, 0.5)], (2, 0.5)),
            Case(&[(3, 0.9), (1, 0.5), (2, 0.25), (1, 0.5), (2, 0.75)], (2, 0.5)),
        ] {
            let results: Vec<(u64, Outcome)> = case.0.iter().zip(0..).map(|(&(id, confidence), n)| (n, label(id, confidence))).collect();
            assert_eq!(vote(&results), label(case.1.0, case.1.1), "{case:?}");
        }
        let values: Vec<(u64, Outcome)> = [10.0, 20.0, 60.0].into_iter().zip(0..).map(|(value, n)| (n, Outcome::Value(value))).collect();
        assert_eq!(vote(&values), Outcome::Value(30.0));
        assert_eq!(vote(&[values[2].clone(), (9, label(1, 0.5))]), label(1, 0.5), "the kind of the newest result");
        assert_eq!(vote(&[(0, label(1, 0.5)), values[2].clone()]), Outcome::Value(60.0));
    }

    #[test]
    fn outgoing_frame_uses_earlier_results_only() {
        let mut cache = ResultCache::new(ReuseOptions { consensus: 3, ..ReuseOptions::default() });
        for n in 0..5 {
            assert!(cache.plan(n, TRACK, here(10.0, 40.0), SIZE));
        }
        for (n, id) in [(3, 2), (0, 1), (4, 2), (2, 2), (1, 1)] {
            cache.insert(n, TRACK, &result("color", label(id, 0.5)));
            cache.insert(n, TRACK, &result("age", Outcome::Value(n as f32)));
        }
        for (n, id, age) in [(0, 1, 0.0), (1, 1, 0.5), (2, 1, 1.0), (3, 2, 2.0), (4, 2, 3.0), (9, 2, 3.0)] {
            let mut detection = object(Some(TRACK));
            detection.classifications.push(result("color", label(5, 1.0)));
            assert_eq!(cache.apply(n, &mut detection), n == 9, "frame {n}");
            assert_eq!(detection.classifications, [result("color", label(id, 0.5)), result("age", Outcome::Value(age))], "frame {n}");
        }
        let mut unnamed = object(None);
        assert!(!cache.apply(4, &mut unnamed) && unnamed.classifications.is_empty());
    }

    #[test]
    fn recorded_run_without_result_replaces_earlier_results() {
        let shown = |consensus: u32, events: &[(u64, &str)], n: u64| {
            let mut cache = ResultCache::new(ReuseOptions { consensus, ..ReuseOptions::default() });
            assert!(cache.plan(0, TRACK, here(10.0, 40.0), SIZE));
            for (frame, event) in events {
                match *event {
                    "start" => cache.restart(*frame, TRACK),
                    "none" => cache.insert_run(*frame, TRACK),
                    id => {
                        cache.insert_run(*frame, TRACK);
                        cache.insert(*frame, TRACK, &result("action", label(id.parse().unwrap(), 0.5)));
                    }
                }
            }
            let mut detection = object(Some(TRACK));
            cache.apply(n, &mut detection);
            detection.classifications.first().map(|found| found.outcome.clone())
        };
        // The run of frame 4 is complete before the run of frame 2.
        let runs = [(0, "1"), (4, "none"), (2, "2"), (6, "1")];
        let expected = [Some(1), Some(1), Some(2), Some(2), None, None, Some(1), Some(1)];
        for (n, expected) in (0..).zip(expected) {
            assert_eq!(shown(1, &runs, n), expected.map(|id| label(id, 0.5)), "frame {n}");
        }
        for (n, expected) in (0..).zip([Some(1), Some(1), Some(2), Some(2), Some(2), Some(2), Some(1)]) {
            assert_eq!(shown(2, &runs, n), expected.map(|id| label(id, 0.5)), "two runs vote in frame {n}");
        }
        // A frame before the new start may leave after the object has started.
        let restarted = [(0, "1"), (5, "start"), (4, "2"), (8, "none"), (9, "1")];
        for (n, expected) in [(3, Some(1)), (4, Some(2)), (5, None), (8, None), (9, Some(1))] {
            assert_eq!(shown(1, &restarted, n), expected.map(|id| label(id, 0.5)), "frame {n}");
            assert_eq!(shown(3, &restarted, n).is_some(), expected.is_some(), "three runs vote in frame {n}");
        }
        let mut cache = ResultCache::new(ReuseOptions::default());
        cache.insert_run(0, TRACK);
        assert!(cache.is_empty(), "an object that was never classified");
        cache.plan(0, TRACK, here(10.0, 40.0), SIZE);
        (0..1000).for_each(|n| cache.restart(n, TRACK));
        assert_eq!(cache.object(TRACK).unwrap().runs.len(), 1 + MAX_AHEAD);
    }

    #[test]
    fn cache_is_bounded_and_evicts_the_object_seen_longest_ago() {
        let mut cache = ResultCache::new(ReuseOptions { interval: 0, ..ReuseOptions::default() });
        let track_id = |n: usize| ObjectId(n as i32 + 1);
        for n in 0..MAX_OBJECTS * 3 {
            assert!(cache.plan(n as u64, track_id(n), here(10.0, 40.0), SIZE));
            assert!(n == 0 || !cache.plan(n as u64, track_id(0), here(10.0, 40.0), SIZE), "a visible object is not evicted");
            assert!(cache.len() <= MAX_OBJECTS);
        }
        assert!(!cache.plan(9999, track_id(MAX_OBJECTS * 2 + 5), here(10.0, 40.0), SIZE), "cached");
        assert!(cache.plan(9999, track_id(5), here(10.0, 40.0), SIZE), "evicted");
        for n in 0..1000 {
            cache.insert(n, track_id(5), &result("age", Outcome::Value(1.0)));
        }
        let object = cache.object(track_id(5)).unwrap();
        assert!(object.attributes[0].results.len() <= 1 + MAX_AHEAD);
        cache.clear();
        assert!(cache.is_empty());
    }

    #[test]
    fn options_without_effect_are_reported() {
        let default = ReuseOptions::default();
        let result = |options: ReuseOptions| options.option_without_effect().unwrap_or_default();
        let growth = result(ReuseOptions { growth: 0.2, ..default });
        assert!(growth.contains("reclassify-growth=0.2") && growth.contains("reclassify-interval=1"), "{growth}");
        let movement = result(ReuseOptions { movement: 0.1, interval: 0, ..default });
        assert!(movement.contains("reclassify-movement=0.1") && movement.contains("reclassify-interval=0"), "{movement}");
        for fine in [default, ReuseOptions { interval: 0, growth: 0.2, ..default }, ReuseOptions { movement: 0.1, growth: 0.2, ..default }]
        {
            assert_eq!(fine.option_without_effect(), None, "{fine:?}");
        }
        assert!(!ReuseOptions { growth: 0.2, ..default }.are_used() && ReuseOptions { consensus: 2, ..default }.are_used());
    }
}
