//! Non-maximum suppression: of boxes that cover the same object, the best. Pure, deterministic, in place, without allocation.
//! Knows no models.

use super::decode::RawDetection;

/// How boxes suppress each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NmsOptions {
    /// A box is suppressed if its intersection over union with a better one is larger than this; 1 keeps all.
    pub iou: f32,
    /// Whether boxes of different classes leave each other alone. Default: true.
    pub class_aware: bool,
    /// The most boxes kept. Default: 300.
    pub max_boxes: usize,
}

impl Default for NmsOptions {
    fn default() -> Self {
        Self { iou: 0.45, class_aware: true, max_boxes: 300 }
    }
}

/// Moves the boxes that survive to the front, score descending and equal scores in their old order, and returns how many
/// they are. What lies behind them is left in no useful state.
///
/// Boxes that are not finite, have no area, or whose score is not a number are dropped first. The time is that of the number
/// kept times the number given.
pub fn suppress(boxes: &mut [RawDetection], options: &NmsOptions) -> usize {
    // Greedy by selection: a sort would have to allocate to keep equal scores in order, and is not cheaper, because every
    // round looks at the rest anyway. `boxes[..n_kept]` is done, `boxes[n_kept..end]` are candidates in their old order.
    let mut end = retain(boxes, |candidate| candidate.rect.is_proper() && !candidate.score.is_nan());
    let mut n_kept = 0;
    while n_kept < end && n_kept < options.max_boxes {
        let candidates = &mut boxes[n_kept..end];
        let mut best_idx = 0;
        for (idx, candidate) in candidates.iter().enumerate() {
            if candidate.score > candidates[best_idx].score {
                best_idx = idx;
            }
        }
        candidates[..=best_idx].rotate_right(1);
        let best = candidates[0];
        n_kept += 1;
        end = n_kept
            + retain(&mut boxes[n_kept..end], |candidate| {
                let same_class = !options.class_aware || candidate.class_id == best.class_id;
                !(same_class && candidate.rect.iou(&best.rect) > options.iou)
            });
    }
    n_kept
}

/// Moves those that satisfy `keep` to the front, in order, and returns how many they are.
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
        RawDetection { rect: Rect { x, y, width, height }, score, class_id }
    }

    fn survivors(boxes: &[RawDetection], options: &NmsOptions) -> Vec<(f32, f32)> {
        let mut boxes = boxes.to_vec();
        let n_kept = suppress(&mut boxes, options);
        boxes[..n_kept].iter().map(|kept| (kept.rect.x, kept.score)).collect()
    }

    #[test]
    fn the_best_box_suppresses_its_neighbors_and_no_others() {
        // 0 and 1 overlap by 8 of 12, 1 and 2 by 8 of 12, 0 and 2 by 6 of 14.
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
    fn a_suppressed_box_suppresses_nothing() {
        let boxes =
            [detection(0.0, 0.0, 10.0, 1.0, 0.9, 0), detection(3.0, 0.0, 10.0, 1.0, 0.8, 0), detection(6.0, 0.0, 10.0, 1.0, 0.7, 0)];
        assert_eq!(survivors(&boxes, &NmsOptions { iou: 0.5, ..Default::default() }), [(0.0, 0.9), (6.0, 0.7)]);
    }

    #[test]
    fn an_overlap_of_exactly_the_threshold_stays() {
        let boxes = [detection(0.0, 0.0, 2.0, 1.0, 0.9, 0), detection(0.0, 0.0, 1.0, 1.0, 0.8, 0)];
        assert_eq!(survivors(&boxes, &NmsOptions { iou: 0.5, ..Default::default() }).len(), 2);
        assert_eq!(survivors(&boxes, &NmsOptions { iou: 0.499, ..Default::default() }).len(), 1);
    }

    #[test]
    fn classes_matter_only_when_asked() {
        let boxes = [detection(0.0, 0.0, 3.0, 7.0, 0.5, 1), detection(0.0, 0.0, 3.0, 7.0, 0.9, 2)];
        assert_eq!(survivors(&boxes, &NmsOptions::default()).len(), 2);
        assert_eq!(survivors(&boxes, &NmsOptions { class_aware: false, ..Default::default() }), [(0.0, 0.9)]);
    }

    #[test]
    fn equal_scores_keep_their_order_and_the_cap_takes_the_first() {
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
    fn broken_boxes_are_dropped_before_they_suppress() {
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
    fn random_boxes_survive_as_in_the_plain_algorithm() {
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
            let options = NmsOptions { iou: next(10) / 10.0, class_aware: next(2) == 0.0, max_boxes: 300 };
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
