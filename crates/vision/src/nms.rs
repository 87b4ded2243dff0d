//! Non-maximum suppression (NMS): greedy NMS and Soft-NMS. The functions are deterministic, work in place, and allocate nothing.

use std::cmp::Ordering;

use super::decode::RawDetection;

/// Options of non-maximum suppression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NmsOptions {
    /// The method. Default: hard suppression.
    pub method: NmsMethod,
    /// Two boxes overlap if their intersection over union (IoU) exceeds this value, 0 to 1. With 1, no boxes overlap.
    pub iou: f32,
    /// Whether boxes are suppressed only by boxes of their own class. Default: true.
    pub class_aware: bool,
    /// Maximum number of boxes in the result. Default: 300.
    pub max_boxes: usize,
    /// Soft-NMS drops a box when its score is reduced to this value or below. Default: 0.
    pub score_min: f32,
}

impl Default for NmsOptions {
    fn default() -> Self {
        Self { method: NmsMethod::Hard, iou: 0.45, class_aware: true, max_boxes: 300, score_min: 0.0 }
    }
}

/// How NMS treats a box that overlaps a box with a higher score.
///
/// The soft methods are from Bodla et al., "Soft-NMS: Improving Object Detection With One Line of Code", ICCV 2017.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum NmsMethod {
    /// The box is dropped.
    #[default]
    Hard,
    /// The box is dropped. The remaining box becomes the mean of the boxes that it suppresses and of itself, weighted by their scores.
    /// [`suppress`] only drops boxes; a decoder computes the means.
    Weighted,
    /// The score is multiplied by `1 - iou` if `iou` exceeds the threshold.
    Linear,
    /// The score is multiplied by `exp(-iou * iou / sigma)` for any overlap. The paper uses `sigma` = 0.5.
    Gaussian {
        /// Greater than 0; larger values suppress less.
        sigma: f32,
    },
}

/// Number of candidates that hard suppression sorts first. If these candidates are not enough, it sorts twice as many next.
const N_SORTED_AT_ONCE: usize = 512;

/// Applies non-maximum suppression. Moves the remaining boxes to the front, in the order of [`better_first`], and returns their number. The
/// rest of the slice is unspecified.
///
/// Boxes with values that are not finite, without area, or with a NaN score are dropped first. The time is at most proportional to the
/// number of given boxes times the number of remaining boxes. [`NmsMethod::Hard`] is usually much faster.
pub fn suppress(boxes: &mut [RawDetection], options: &NmsOptions) -> usize {
    suppress_by(boxes, options, |one, other| one.rect.iou(&other.rect))
}

/// Like [`suppress`], with another overlap of two boxes, from 0 to 1.
pub fn suppress_by(boxes: &mut [RawDetection], options: &NmsOptions, overlap: impl Fn(&RawDetection, &RawDetection) -> f32) -> usize {
    let n_proper = retain(boxes, is_proper);
    let boxes = &mut boxes[..n_proper];
    // Boxes of different classes do not suppress each other.
    let overlap = |one: &RawDetection, other: &RawDetection| {
        if options.class_aware && one.class_id != other.class_id { 0.0 } else { overlap(one, other) }
    };
    match options.method {
        NmsMethod::Hard | NmsMethod::Weighted => suppress_hard(boxes, options, overlap),
        NmsMethod::Linear => suppress_softly(boxes, options, overlap, |iou| if iou > options.iou { 1.0 - iou } else { 1.0 }),
        NmsMethod::Gaussian { sigma } => suppress_softly(boxes, options, overlap, |iou| (-iou * iou / sigma).exp()),
    }
}

/// Like [`suppress`] with [`NmsMethod::Weighted`]. Calls `group` for each remaining box, in order, with this box and all boxes that belong to
/// it: itself, and the boxes that it suppresses. Each box belongs to one remaining box.
pub(super) fn suppress_into_groups(
    boxes: &mut [RawDetection],
    options: &NmsOptions,
    mut group: impl FnMut(&RawDetection, &[RawDetection]),
) -> usize {
    let n_proper = retain(boxes, is_proper);
    boxes[..n_proper].sort_unstable_by(better_first);
    let mut rest = boxes[..n_proper].to_vec();
    let mut n_kept = 0;
    while n_kept < options.max_boxes && !rest.is_empty() {
        let best = rest[0];
        let is_of_best = |other: &RawDetection| {
            let is_comparable = !options.class_aware || other.class_id == best.class_id;
            *other == best || (is_comparable && best.rect.iou(&other.rect) > options.iou)
        };
        let (members, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_of_best);
        group(&best, &members);
        boxes[n_kept] = best;
        n_kept += 1;
        rest = others;
    }
    n_kept
}

/// Moves the best `max_boxes` boxes to the front, in the order of [`better_first`], and returns their number.
///
/// Use this function for models that include NMS. It drops invalid boxes like [`suppress`].
pub fn take_best(boxes: &mut [RawDetection], max_boxes: usize) -> usize {
    let n_proper = retain(boxes, is_proper);
    boxes[..n_proper].sort_unstable_by(better_first);
    n_proper.min(max_boxes)
}

/// Compares two results by descending score, then by row and class. So the order of results does not depend on the order of candidates.
pub fn better_first(one: &RawDetection, other: &RawDetection) -> Ordering {
    other.score.total_cmp(&one.score).then(one.row.cmp(&other.row)).then(one.class_id.cmp(&other.class_id))
}

/// Applies hard suppression. In the loop, `boxes[..n_kept]` are results and `boxes[next..]` are candidates. Each candidate is compared only
/// with the results before it. So the loop ends when there are enough results, and candidates that are not reached are not sorted.
fn suppress_hard(boxes: &mut [RawDetection], options: &NmsOptions, overlap: impl Fn(&RawDetection, &RawDetection) -> f32) -> usize {
    let (mut n_kept, mut next, mut n_sorted) = (0, 0, N_SORTED_AT_ONCE);
    while next < boxes.len() && n_kept < options.max_boxes {
        let end = boxes.len().min(next + n_sorted);
        if end < boxes.len() {
            boxes[next..].select_nth_unstable_by(end - next, better_first);
        }
        boxes[next..end].sort_unstable_by(better_first);
        for idx in next..end {
            let candidate = boxes[idx];
            if n_kept < options.max_boxes && !boxes[..n_kept].iter().any(|kept| overlap(kept, &candidate) > options.iou) {
                boxes[n_kept] = candidate;
                n_kept += 1;
            }
        }
        (next, n_sorted) = (end, n_sorted * 2);
    }
    n_kept
}

/// Applies Soft-NMS. In the loop, `boxes[..n_kept]` are results, and `boxes[n_kept..end]` are unsorted candidates. The scores of the
/// candidates change in each round.
fn suppress_softly(
    boxes: &mut [RawDetection],
    options: &NmsOptions,
    overlap: impl Fn(&RawDetection, &RawDetection) -> f32,
    weight: impl Fn(f32) -> f32,
) -> usize {
    let (mut n_kept, mut end) = (0, boxes.len());
    while n_kept < end && n_kept < options.max_boxes {
        let best = (n_kept..end).min_by(|&one, &other| better_first(&boxes[one], &boxes[other]));
        boxes.swap(n_kept, best.unwrap_or(n_kept));
        let best = boxes[n_kept];
        n_kept += 1;
        for candidate in &mut boxes[n_kept..end] {
            candidate.score *= weight(overlap(&best, candidate));
        }
        end = n_kept + retain(&mut boxes[n_kept..end], |candidate| candidate.score > options.score_min);
    }
    n_kept
}

fn is_proper(candidate: &RawDetection) -> bool {
    candidate.rect.is_proper() && !candidate.score.is_nan()
}

/// Moves the boxes that satisfy `keep` to the front, in order, and returns their number.
fn retain(boxes: &mut [RawDetection], keep: impl Fn(&RawDetection) -> bool) -> usize {
    let mut n_kept = 0;
    for idx in 0..boxes.len() {
        if keep(&boxes[idx]) {
            boxes[n_kept] = boxes[idx];
            n_kept += 1;
        }
    }
    n_kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Rect;

    fn detection(x: f32, y: f32, width: f32, height: f32, score: f32, class_id: u32) -> RawDetection {
        RawDetection { rect: Rect { x, y, width, height }, score, class_id, row: 0 }
    }

    /// Returns the boxes. The row number of each box is its position in the list.
    fn numbered(boxes: &[RawDetection]) -> Vec<RawDetection> {
        (0..).zip(boxes).map(|(row, &found)| RawDetection { row, ..found }).collect()
    }

    fn survivors(boxes: &[RawDetection], options: &NmsOptions) -> Vec<(f32, f32)> {
        let mut boxes = numbered(boxes);
        let n_kept = suppress(&mut boxes, options);
        boxes[..n_kept].iter().map(|kept| (kept.rect.x, kept.score)).collect()
    }

    #[test]
    fn box_suppresses_only_its_overlapping_neighbors() {
        // The IoU of boxes 0 and 1 is 8/12, of boxes 1 and 2 also 8/12, and of boxes 0 and 2 it is 6/14.
        let boxes =
            [detection(0.0, 0.0, 10.0, 1.0, 0.5, 0), detection(2.0, 0.0, 10.0, 1.0, 0.7, 0), detection(4.0, 0.0, 10.0, 1.0, 0.6, 0)];
        for (iou, expected) in [
            (0.5, &[(2.0, 0.7)][..]),
            (0.67, &[(2.0, 0.7), (4.0, 0.6), (0.0, 0.5)]),
            (1.0, &[(2.0, 0.7), (4.0, 0.6), (0.0, 0.5)]),
            (0.0, &[(2.0, 0.7)]),
        ] {
            assert_eq!(survivors(&boxes, &NmsOptions { iou, ..Default::default() }), expected, "iou {iou}");
        }
    }

    #[test]
    fn suppressed_box_does_not_suppress() {
        let boxes =
            [detection(0.0, 0.0, 10.0, 1.0, 0.9, 0), detection(3.0, 0.0, 10.0, 1.0, 0.8, 0), detection(6.0, 0.0, 10.0, 1.0, 0.7, 0)];
        assert_eq!(survivors(&boxes, &NmsOptions { iou: 0.5, ..Default::default() }), [(0.0, 0.9), (6.0, 0.7)]);
    }

    #[test]
    fn overlap_equal_to_the_threshold_is_kept() {
        let boxes = [detection(0.0, 0.0, 2.0, 1.0, 0.9, 0), detection(0.0, 0.0, 1.0, 1.0, 0.8, 0)];
        assert_eq!(survivors(&boxes, &NmsOptions { iou: 0.5, ..Default::default() }).len(), 2);
        assert_eq!(survivors(&boxes, &NmsOptions { iou: 0.499, ..Default::default() }).len(), 1);
    }

    #[test]
    fn classes_are_separate_only_if_per_class() {
        let boxes = [detection(0.0, 0.0, 3.0, 7.0, 0.5, 1), detection(0.0, 0.0, 3.0, 7.0, 0.9, 2)];
        assert_eq!(survivors(&boxes, &NmsOptions::default()).len(), 2);
        assert_eq!(survivors(&boxes, &NmsOptions { class_aware: false, ..Default::default() }), [(0.0, 0.9)]);
    }

    #[test]
    fn equal_scores_keep_their_order() {
        let mut boxes: Vec<_> = (0..40).map(|idx| detection(idx as f32 * 20.0, 0.0, 5.0, 9.0, 0.5, 0)).collect();
        boxes[33].score = 0.6;
        boxes[7].score = 0.4;
        let options = NmsOptions { max_boxes: 4, ..Default::default() };
        assert_eq!(survivors(&boxes, &options), [(660.0, 0.6), (0.0, 0.5), (20.0, 0.5), (40.0, 0.5)]);
        assert_eq!(survivors(&boxes, &NmsOptions::default())[39], (140.0, 0.4));
        assert_eq!(survivors(&boxes, &NmsOptions { max_boxes: 0, ..Default::default() }), []);
        assert_eq!(survivors(&[], &NmsOptions::default()), []);
    }

    #[test]
    fn invalid_boxes_are_dropped_first() {
        let good = detection(1.0, 1.0, 4.0, 4.0, 0.3, 0);
        let mut boxes = vec![good];
        boxes.push(detection(1.0, 1.0, 4.0, 4.0, f32::NAN, 0));
        boxes.push(detection(f32::NAN, 1.0, 4.0, 4.0, 0.9, 0));
        boxes.push(detection(1.0, 1.0, f32::INFINITY, 4.0, 0.9, 0));
        boxes.push(detection(1.0, 1.0, -4.0, 4.0, 0.9, 0));
        boxes.push(detection(1.0, 1.0, 4.0, 0.0, 0.9, 0));
        assert_eq!(survivors(&boxes, &NmsOptions::default()), [(1.0, 0.3)]);
    }

    #[test]
    fn random_boxes_match_the_reference_algorithm() {
        let seed = 0xb0c5_u64;
        eprintln!("seed {seed}");
        let mut state = seed;
        let mut next = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 20) % limit) as f32
        };
        for case_idx in 0..200 {
            let boxes: Vec<_> =
                (0..60).map(|_| detection(next(40), next(30), 1.0 + next(20), 1.0 + next(20), next(12) / 12.0, next(3) as u32)).collect();
            let boxes = numbered(&boxes);
            let options = NmsOptions { iou: next(10) / 10.0, class_aware: next(2) == 0.0, ..NmsOptions::default() };
            let mut order: Vec<usize> = (0..boxes.len()).collect();
            order.sort_by(|&a, &b| boxes[b].score.total_cmp(&boxes[a].score));
            let mut expected: Vec<RawDetection> = Vec::new();
            for idx in order {
                let clashes = |kept: &&RawDetection| {
                    (!options.class_aware || kept.class_id == boxes[idx].class_id) && kept.rect.iou(&boxes[idx].rect) > options.iou
                };
                if !expected.iter().any(|kept| clashes(&kept)) {
                    expected.push(boxes[idx]);
                }
            }
            let mut got = boxes.clone();
            let n_kept = suppress(&mut got, &options);
            assert_eq!(got[..n_kept], expected, "seed {seed}, case {case_idx}, {options:?}");
        }
    }
}
