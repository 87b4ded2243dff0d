//! Reuse of classifications of tracked objects, so that an object is not classified in every frame. No models, no threads, no clocks.
//!
//! Objects are identified by track ID. [`AnswerCache::plan`] decides, in the order of arriving frames, whether an object is classified.
//! [`AnswerCache::remember`] stores results, in any order. [`AnswerCache::recall`] adds the known results to an outgoing frame: those of
//! this frame and earlier ones only, so the output does not depend on the speed of threads.
//!
//! # When an object is classified
//!
//! An object without a track ID is classified in every frame. A tracked object is classified in every frame until
//! [`ReuseOptions::consensus`] attempts were made. After that it is classified when it has grown ([`ReuseOptions::growth`]), and when the
//! interval expires ([`ReuseOptions::interval`]) unless it did not move ([`ReuseOptions::movement`]). A failed run is no attempt. A result
//! below the threshold is an attempt without a vote.
//!
//! # The result of several classifications
//!
//! For each attribute, the last [`ReuseOptions::consensus`] results vote. The most frequent label wins; ties are decided by the sum of
//! confidences, then by the newest result. The confidence is the mean of the winning results. Numbers, such as an age, are averaged. If an
//! attribute has labels and numbers, the kind of the newest result counts.

use crate::frame::{Classification, Detection, ObjectId, Outcome, Rect, Size};

/// Maximum number of remembered objects. The object that was seen longest ago is evicted first; ties are decided by the smaller track ID.
pub const MAX_OBJECTS: usize = 300 // in sight: what one detector reports of a frame at most, if nobody asked for more
    + 300 // in sight: what a second one reports
    + 424; // out of sight, and may come back
/// Maximum number of stored results for frames later than the outgoing one.
const MAX_AHEAD: usize = 64;

/// When an object is classified again, and how its results are combined.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReuseOptions {
    /// Frames between two classifications; 1: every frame, 0: only once. Default: 1.
    pub interval: u32,
    /// Classify again when the box area has grown by more than this fraction; 0: off. Default: 0.
    pub growth: f32,
    /// When the interval expires, classify only if a box edge moved by more than this fraction of the width or height; 0: also without
    /// movement. Default: 0.
    pub movement: f32,
    /// Number of results that vote. Default: 1.
    pub consensus: u32,
}

impl Default for ReuseOptions {
    fn default() -> Self {
        Self { interval: 1, growth: 0.0, movement: 0.0, consensus: 1 }
    }
}

impl ReuseOptions {
    /// Whether these options need stored results.
    pub fn are_used(&self) -> bool {
        *self != Self { growth: self.growth, ..Self::default() }
    }

    /// An option that has no effect together with the others, with the reason.
    pub fn without_effect(&self) -> Option<String> {
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

/// The store of classifications; see the module.
#[derive(Debug, Default)]
pub struct AnswerCache {
    options: ReuseOptions,
    /// By track ID.
    objects: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    name: ObjectId,
    /// Number of the latest frame with the object.
    seen_in: u64,
    /// Frame of the latest attempt, and the box then, in fractions of the frame.
    tried: Option<(u64, Rect)>,
    /// Attempts without failed runs.
    n_tries: u32,
    /// Results by attribute.
    attributes: Vec<Attribute>,
}

#[derive(Debug)]
struct Attribute {
    /// The latest result.
    said: Classification,
    /// By frame, oldest first.
    answers: Vec<(u64, Outcome)>,
}

impl AnswerCache {
    /// Makes an empty store.
    pub fn new(options: ReuseOptions) -> Self {
        Self { options, objects: Vec::new() }
    }

    /// Whether to classify the object with this track ID and box in a frame of this number and size; if so, it counts as an attempt.
    pub fn plan(&mut self, frame_number: u64, name: ObjectId, rect: Rect, size: Size) -> bool {
        let options = self.options;
        let place = rect.rescaled(size, Size::new(1, 1));
        let known = self.known_or_new(name, frame_number);
        known.seen_in = frame_number;
        if !known.is_due(frame_number, place, &options) {
            return false;
        }
        known.tried = Some((frame_number, place));
        known.n_tries = known.n_tries.saturating_add(1);
        true
    }

    /// Reports that the run for this frame failed: the next frame is the next attempt.
    pub fn take_back(&mut self, frame_number: u64, name: ObjectId) {
        let Some(known) = self.known(name) else { return };
        known.n_tries = known.n_tries.saturating_sub(1);
        if known.tried.is_some_and(|(tried_in, _)| tried_in <= frame_number) {
            known.tried = None;
        }
    }

    /// Stores the results of an object in a frame. Geometry is not stored, because it is valid in its frame only.
    pub fn remember(&mut self, frame_number: u64, name: ObjectId, said: &Classification) {
        if matches!(said.outcome, Outcome::Geometry(_)) {
            return;
        }
        let max_answers = self.options.consensus.max(1) as usize + MAX_AHEAD;
        // The object was evicted meanwhile.
        let Some(known) = self.known(name) else { return };
        let attribute_idx = known.attributes.iter().position(|attribute| attribute.is_of(said)).unwrap_or_else(|| {
            known.attributes.push(Attribute { said: said.clone(), answers: Vec::new() });
            known.attributes.len() - 1
        });
        let answers = &mut known.attributes[attribute_idx].answers;
        let place = answers.partition_point(|(answered_in, _)| *answered_in <= frame_number);
        answers.insert(place, (frame_number, said.outcome.clone()));
        if answers.len() > max_answers {
            answers.remove(0);
        }
    }

    /// Replaces the attributes of an object of an outgoing frame with the combined results. Returns true if these are from earlier frames
    /// only.
    pub fn recall(&mut self, frame_number: u64, detection: &mut Detection) -> bool {
        let n_voters = self.options.consensus.max(1) as usize;
        let Some(known) = detection.track.and_then(|name| self.known(name)) else { return false };
        known.seen_in = known.seen_in.max(frame_number);
        let mut is_recalled = false;
        for Attribute { said, answers } in &known.attributes {
            let n_answers = answers.partition_point(|(answered_in, _)| *answered_in <= frame_number);
            let voters = &answers[n_answers.saturating_sub(n_voters)..n_answers];
            let Some((newest, _)) = voters.last() else { continue };
            let outcome = vote(voters);
            let is_same = |other: &&mut Classification| other.name == said.name && other.model == said.model;
            match detection.classifications.iter_mut().find(is_same) {
                Some(own) => own.outcome = outcome,
                None => detection.classifications.push(Classification { outcome, ..said.clone() }),
            }
            is_recalled |= *newest != frame_number;
        }
        is_recalled
    }

    /// Removes all objects.
    pub fn clear(&mut self) {
        self.objects.clear();
    }

    /// Number of stored objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether the store is empty.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn known(&mut self, name: ObjectId) -> Option<&mut Known> {
        let place = self.objects.binary_search_by_key(&name, |known| known.name).ok()?;
        self.objects.get_mut(place)
    }

    fn known_or_new(&mut self, name: ObjectId, frame_number: u64) -> &mut Known {
        let is_new = self.objects.binary_search_by_key(&name, |known| known.name).is_err();
        if is_new && self.objects.len() >= MAX_OBJECTS {
            // `min_by_key` takes the first of equal ones.
            let oldest = self.objects.iter().enumerate().min_by_key(|(_, known)| known.seen_in).map_or(0, |(place, _)| place);
            self.objects.remove(oldest);
        }
        let place = match self.objects.binary_search_by_key(&name, |known| known.name) {
            Ok(place) => place,
            Err(place) => {
                self.objects.insert(place, Known { name, seen_in: frame_number, tried: None, n_tries: 0, attributes: Vec::new() });
                place
            }
        };
        &mut self.objects[place]
    }
}

impl Known {
    fn is_due(&self, frame_number: u64, place: Rect, options: &ReuseOptions) -> bool {
        let Some((tried_in, was)) = self.tried else { return true };
        // An equal number is the same frame; a smaller one belongs to a new stream.
        let Some(n_frames) = frame_number.checked_sub(tried_in) else { return true };
        if n_frames == 0 {
            return false;
        }
        let has_grown = || options.growth > 0.0 && place.area() > was.area() * (1.0 + options.growth);
        let is_time = || options.interval > 0 && n_frames >= u64::from(options.interval);
        let stands_still = || options.movement > 0.0 && !has_moved(place, was, options.movement);
        self.n_tries < options.consensus || has_grown() || (is_time() && !stands_still())
    }
}

impl Attribute {
    fn is_of(&self, said: &Classification) -> bool {
        self.said.name == said.name && self.said.model == said.model
    }
}

/// Whether an edge moved by more than this fraction of the previous width or height.
fn has_moved(is: Rect, was: Rect, share: f32) -> bool {
    let (x, y) = ((is.x - was.x).abs().max((is.x_max() - was.x_max()).abs()), (is.y - was.y).abs().max((is.y_max() - was.y_max()).abs()));
    x > share * was.width || y > share * was.height
}

/// Combines these results, at least one, oldest first.
fn vote(answers: &[(u64, Outcome)]) -> Outcome {
    let newest = &answers[answers.len() - 1].1;
    let outcomes = || answers.iter().map(|(_, outcome)| outcome);
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
            // `max_by` takes the last of equal ones, which is the newest.
            let best = tallied.max_by(|(_, _, one), (_, _, other)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
            match best {
                Some((label_id, label, (n_votes, sum))) => {
                    Outcome::Label { label_id, label: label.clone(), confidence: sum / n_votes as f32 }
                }
                None => newest.clone(),
            }
        }
        // Values that cannot vote.
        _ => newest.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size::new(640, 480);
    const ME: ObjectId = ObjectId(7);

    fn here(x: f32, width: f32) -> Rect {
        Rect { x, y: 100.0, width, height: 80.0 }
    }

    fn said(name: &str, outcome: Outcome) -> Classification {
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
    fn tries(options: ReuseOptions, n_frames: u64, place: impl Fn(u64) -> Rect) -> Vec<u64> {
        let mut cache = AnswerCache::new(options);
        (0..n_frames).filter(|&n| cache.plan(n, ME, place(n), SIZE)).collect()
    }

    #[test]
    fn an_object_is_classified_when_it_is_time() {
        let still = |_| here(10.0, 40.0);
        for (interval, expected) in [(0, vec![0]), (1, (0..10).collect()), (2, vec![0, 2, 4, 6, 8]), (4, vec![0, 4, 8])] {
            assert_eq!(tries(ReuseOptions { interval, ..ReuseOptions::default() }, 10, still), expected, "every {interval}");
        }
        // In every frame until enough results exist.
        let options = ReuseOptions { interval: 4, consensus: 3, ..ReuseOptions::default() };
        assert_eq!(tries(options, 12, still), [0, 1, 2, 6, 10]);
        assert_eq!(tries(ReuseOptions { interval: 0, ..options }, 12, still), [0, 1, 2]);
    }

    #[test]
    fn an_object_that_has_grown_is_classified_at_once() {
        let options = ReuseOptions { interval: 0, growth: 0.2, ..ReuseOptions::default() };
        let widths = [40.0, 44.0, 47.0, 49.0, 58.0, 60.0];
        assert_eq!(tries(options, 6, |n| here(10.0, widths[n as usize])), [0, 3, 5]);
        assert_eq!(tries(options, 6, |n| here(10.0, widths[5 - n as usize])), [0], "one that shrinks is not");
    }

    #[test]
    fn an_object_that_stands_still_is_not_classified_again() {
        let options = ReuseOptions { interval: 2, movement: 0.26, ..ReuseOptions::default() };
        assert_eq!(tries(options, 10, |n| here(10.0 + (n % 2) as f32, 40.0)), [0]);
        // Two pixels per frame at a width of 40: enough movement after six frames.
        assert_eq!(tries(options, 20, |n| here(10.0 + 2.0 * n as f32, 40.0)), [0, 6, 12, 18]);
        let growing = ReuseOptions { movement: 0.5, growth: 0.1, ..options };
        assert_eq!(tries(growing, 4, |n| here(10.0, 40.0 + n as f32 * 6.0)), [0, 1, 2, 3], "growth counts also without movement");
        // The same fraction of a smaller frame is no movement.
        let mut cache = AnswerCache::new(options);
        assert!(cache.plan(0, ME, here(10.0, 40.0), SIZE));
        let half = Size::new(SIZE.width / 2, SIZE.height / 2);
        assert!(!cache.plan(2, ME, here(10.0, 40.0).rescaled(SIZE, half), half));
    }

    #[test]
    fn a_try_that_failed_is_none() {
        let mut cache = AnswerCache::new(ReuseOptions { interval: 0, ..ReuseOptions::default() });
        let mut plan = |n| cache.plan(n, ME, here(10.0, 40.0), SIZE);
        assert!(plan(0) && !plan(1));
        cache.take_back(0, ME);
        let mut plan = |n| cache.plan(n, ME, here(10.0, 40.0), SIZE);
        assert!(plan(2) && !plan(3));
        cache.take_back(99, ObjectId(99));
    }

    #[test]
    fn a_frame_that_comes_twice_and_numbers_that_begin_anew_are_told_apart() {
        let mut cache = AnswerCache::new(ReuseOptions { interval: 5, consensus: 2, ..ReuseOptions::default() });
        let mut plan = |n| cache.plan(n, ME, here(10.0, 40.0), SIZE);
        assert_eq!([100, 100, 101, 101, 102].map(&mut plan), [true, false, true, false, false]);
        assert!(plan(3), "another stream");
    }

    #[test]
    fn labels_are_voted_for_and_numbers_are_averaged() {
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
            let answers: Vec<(u64, Outcome)> = case.0.iter().zip(0..).map(|(&(id, confidence), n)| (n, label(id, confidence))).collect();
            assert_eq!(vote(&answers), label(case.1.0, case.1.1), "{case:?}");
        }
        let values: Vec<(u64, Outcome)> = [10.0, 20.0, 60.0].into_iter().zip(0..).map(|(value, n)| (n, Outcome::Value(value))).collect();
        assert_eq!(vote(&values), Outcome::Value(30.0));
        assert_eq!(vote(&[values[2].clone(), (9, label(1, 0.5))]), label(1, 0.5), "the kind of the newest");
        assert_eq!(vote(&[(0, label(1, 0.5)), values[2].clone()]), Outcome::Value(60.0));
    }

    #[test]
    fn a_frame_that_leaves_knows_what_was_said_up_to_it_in_whichever_order_answers_came() {
        let mut cache = AnswerCache::new(ReuseOptions { consensus: 3, ..ReuseOptions::default() });
        for n in 0..5 {
            assert!(cache.plan(n, ME, here(10.0, 40.0), SIZE));
        }
        for (n, id) in [(3, 2), (0, 1), (4, 2), (2, 2), (1, 1)] {
            cache.remember(n, ME, &said("color", label(id, 0.5)));
            cache.remember(n, ME, &said("age", Outcome::Value(n as f32)));
        }
        for (n, id, age) in [(0, 1, 0.0), (1, 1, 0.5), (2, 1, 1.0), (3, 2, 2.0), (4, 2, 3.0), (9, 2, 3.0)] {
            let mut detection = object(Some(ME));
            detection.classifications.push(said("color", label(5, 1.0)));
            assert_eq!(cache.recall(n, &mut detection), n == 9, "frame {n}");
            assert_eq!(detection.classifications, [said("color", label(id, 0.5)), said("age", Outcome::Value(age))], "frame {n}");
        }
        let mut unnamed = object(None);
        assert!(!cache.recall(4, &mut unnamed) && unnamed.classifications.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded_and_who_was_seen_longest_ago_is_forgotten() {
        let mut cache = AnswerCache::new(ReuseOptions { interval: 0, ..ReuseOptions::default() });
        let name = |n: usize| ObjectId(n as i32 + 1);
        for n in 0..MAX_OBJECTS * 3 {
            assert!(cache.plan(n as u64, name(n), here(10.0, 40.0), SIZE));
            assert!(n == 0 || !cache.plan(n as u64, name(0), here(10.0, 40.0), SIZE), "who stays in sight is not forgotten");
            assert!(cache.len() <= MAX_OBJECTS);
        }
        assert!(!cache.plan(9999, name(MAX_OBJECTS * 2 + 5), here(10.0, 40.0), SIZE), "one of the latest");
        assert!(cache.plan(9999, name(5), here(10.0, 40.0), SIZE), "one of the first");
        for n in 0..1000 {
            cache.remember(n, name(5), &said("age", Outcome::Value(1.0)));
        }
        let known = cache.known(name(5)).unwrap();
        assert!(known.attributes[0].answers.len() <= 1 + MAX_AHEAD);
        cache.clear();
        assert!(cache.is_empty());
    }

    #[test]
    fn what_contradicts_is_told() {
        let default = ReuseOptions::default();
        let said = |options: ReuseOptions| options.without_effect().unwrap_or_default();
        let growth = said(ReuseOptions { growth: 0.2, ..default });
        assert!(growth.contains("reclassify-growth=0.2") && growth.contains("reclassify-interval=1"), "{growth}");
        let movement = said(ReuseOptions { movement: 0.1, interval: 0, ..default });
        assert!(movement.contains("reclassify-movement=0.1") && movement.contains("reclassify-interval=0"), "{movement}");
        for fine in [default, ReuseOptions { interval: 0, growth: 0.2, ..default }, ReuseOptions { movement: 0.1, growth: 0.2, ..default }]
        {
            assert_eq!(fine.without_effect(), None, "{fine:?}");
        }
        assert!(!ReuseOptions { growth: 0.2, ..default }.are_used() && ReuseOptions { consensus: 2, ..default }.are_used());
    }
}
