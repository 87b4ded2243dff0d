//! Selects the objects that are made unrecognizable, and keeps their boxes for frames in which they are not detected.

use std::sync::Arc;

use crate::draw::{Area, Canvas};
use crate::frame::{Detection, FrameResults, Geometry, Grid, InferenceStatus, ObjectId, Outcome, Point, Rect, Size};
use crate::obscure::Manner;

/// A label that stands for all objects.
pub const ALL: &str = "*";
/// Smallest side of a cell in pixels.
const MIN_CELL: u32 = 8;
/// Boxes of one label that overlap more than this are one object.
const SAME_IOU: f32 = 0.3;
/// Cells along the shorter side of the frame, if the whole frame is pixelated.
const N_FRAME_CELLS: u32 = 12;

/// Which objects are made unrecognizable, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivacyRules {
    /// Labels of the objects that are blurred; `*`: all.
    pub blur: Vec<String>,
    /// Labels of the objects that are pixelated; `*`: all. An object in both lists is blurred.
    pub pixelate: Vec<String>,
    /// Number of cells along the shorter side of a box. A cell has at least 8 pixels.
    pub n_cells: u32,
    /// Number of frames for which the box of an object stays obscured after the object was detected last.
    pub n_held: u32,
    /// Pixelate the whole frame if it and more than `n_held` frames before it were not inferred.
    pub covers_unknown: bool,
}

impl Default for PrivacyRules {
    fn default() -> Self {
        Self { blur: Vec::new(), pixelate: Vec::new(), n_cells: 6, n_held: 0, covers_unknown: false }
    }
}

impl PrivacyRules {
    /// Whether there is any object to obscure.
    pub fn is_active(&self) -> bool {
        !self.blur.is_empty() || !self.pixelate.is_empty()
    }

    fn manner(&self, label: Option<&str>) -> Option<Manner> {
        let has = |labels: &[String]| labels.iter().any(|of| of == ALL || label == Some(of.as_str()));
        if has(&self.blur) { Some(Manner::Blur) } else { has(&self.pixelate).then_some(Manner::Pixelate) }
    }

    /// The side of a cell for a box.
    fn cell(&self, rect: &Rect) -> u32 {
        (rect.width.min(rect.height) as u32 / self.n_cells.max(1)).max(MIN_CELL)
    }
}

/// The box of an object of an earlier frame.
#[derive(Debug)]
struct Held {
    rect: Rect,
    track: Option<ObjectId>,
    label: Option<Arc<str>>,
    n_frames_left: u32,
}

/// Obscures objects, frame by frame.
#[derive(Debug, Default)]
pub struct Privacy {
    held: Vec<Held>,
    /// Number of frames in a row that were not inferred.
    n_not_inferred: u32,
}

impl Privacy {
    /// Forgets the boxes of earlier frames.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Processes the next frame of the stream. Returns the areas to obscure, in order.
    pub fn follow(&mut self, rules: &PrivacyRules, size: Size, results: Option<&FrameResults>) -> Vec<Obscured> {
        if !rules.is_active() {
            self.clear();
            return Vec::new();
        }
        let is_inferred = results.is_some_and(|results| results.status == InferenceStatus::Inferred);
        self.n_not_inferred = if is_inferred { 0 } else { self.n_not_inferred.saturating_add(1) };
        let detections = results.map_or(&[][..], |results| &results.detections);
        let current: Vec<(&Detection, Manner)> =
            detections.iter().filter_map(|detection| Some((detection, rules.manner(detection.label.as_deref())?))).collect();
        self.held.retain_mut(|held| {
            let is_seen = current.iter().any(|(detection, _)| is_same(held, detection));
            held.n_frames_left = held.n_frames_left.saturating_sub(1).min(rules.n_held);
            held.n_frames_left > 0 && !is_seen
        });
        let mut areas = Vec::new();
        if rules.covers_unknown && self.n_not_inferred > rules.n_held && current.is_empty() {
            let area = Area::at(0, 0, size.width.into(), size.height.into());
            let cell = (size.width.min(size.height) / N_FRAME_CELLS).max(MIN_CELL);
            areas.push(Obscured { area, manner: Manner::Pixelate, cell, mask: None });
        }
        for held in &self.held {
            if let (Some(area), Some(manner)) = (Area::of(&held.rect), rules.manner(held.label.as_deref())) {
                areas.push(Obscured { area, manner, cell: rules.cell(&held.rect), mask: None });
            }
        }
        for (detection, manner) in current {
            let Some(area) = Area::of(&detection.rect) else { continue };
            areas.push(Obscured { area, manner, cell: rules.cell(&detection.rect), mask: mask_of(detection) });
            if rules.n_held > 0 {
                // This entry has its first frame now.
                let (rect, track, label) = (detection.rect, detection.track, detection.label.clone());
                self.held.push(Held { rect, track, label, n_frames_left: rules.n_held + 1 });
            }
        }
        areas
    }

    /// Whether the next frame may need a change even if it has no results.
    pub fn is_pending(&self, rules: &PrivacyRules) -> bool {
        rules.is_active() && (rules.covers_unknown || !self.held.is_empty())
    }
}

fn is_same(held: &Held, detection: &Detection) -> bool {
    if held.track.is_some() && held.track == detection.track {
        return true;
    }
    held.label == detection.label && held.rect.iou(&detection.rect) > SAME_IOU
}

/// An area to obscure.
#[derive(Debug)]
pub struct Obscured {
    area: Area,
    manner: Manner,
    cell: u32,
    mask: Option<Grid<u8>>,
}

impl Obscured {
    /// Changes the pixels of a frame.
    pub fn apply(&self, canvas: &mut Canvas) {
        let Some(mask) = &self.mask else {
            return canvas.obscure(self.area, self.manner, self.cell, None);
        };
        let is_inside = |x: usize, y: usize| mask.at(Point { x: x as f32 + 0.5, y: y as f32 + 0.5 }).is_some_and(|value| *value >= 128);
        canvas.obscure(self.area, self.manner, self.cell, Some(&is_inside));
    }
}

/// The mask of an object, grown by one cell in each direction. `None` if the object has no mask, or an empty one.
fn mask_of(detection: &Detection) -> Option<Grid<u8>> {
    let mask = detection.classifications.iter().find_map(|classification| match &classification.outcome {
        Outcome::Geometry(Geometry::Mask(mask)) => Some(mask),
        _ => None,
    })?;
    let (columns, rows) = (mask.columns, mask.rows());
    if !mask.values.iter().any(|value| *value >= 128) || columns == 0 {
        return None;
    }
    let around = |idx: usize, limit: usize| idx.saturating_sub(1)..(idx + 2).min(limit);
    let across: Vec<u8> = (0..columns * rows)
        .map(|idx| {
            let row = &mask.values[idx / columns * columns..][..columns];
            row[around(idx % columns, columns)].iter().copied().max().unwrap_or(0)
        })
        .collect();
    let grown =
        (0..columns * rows).map(|idx| around(idx / columns, rows).map(|row| across[row * columns + idx % columns]).max().unwrap_or(0));
    Some(Grid { columns, values: grown.collect(), corners: mask.corners })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Classification;

    const SIZE: Size = Size::new(320, 240);

    fn found(label: &str, x: f32, track: Option<i32>) -> Detection {
        Detection {
            id: ObjectId(1),
            track: track.map(ObjectId),
            track_state: None,
            parent: None,
            rect: Rect { x, y: 20.0, width: 60.0, height: 90.0 },
            keypoints: vec![],
            confidence: 0.9,
            label_id: 0,
            label: Some(label.into()),
            classifications: vec![],
        }
    }

    fn frame(detections: Vec<Detection>) -> FrameResults {
        FrameResults { size: SIZE, detections, ..FrameResults::default() }
    }

    fn rules(n_held: u32) -> PrivacyRules {
        PrivacyRules { blur: vec!["person".into()], pixelate: vec!["face".into()], n_held, ..PrivacyRules::default() }
    }

    /// The left edges of the areas.
    fn edges(areas: &[Obscured]) -> Vec<i64> {
        areas.iter().map(|area| area.area.x_min).collect()
    }

    #[test]
    fn objects_are_selected_by_their_label() {
        let results = frame(vec![found("person", 10.0, None), found("dog", 90.0, None), found("face", 200.0, None)]);
        let areas = Privacy::default().follow(&rules(0), SIZE, Some(&results));
        assert_eq!(
            areas.iter().map(|area| (area.area.x_min, area.manner)).collect::<Vec<_>>(),
            [(10, Manner::Blur), (200, Manner::Pixelate)]
        );
        assert!(areas.iter().all(|area| area.cell == 10), "six cells along the shorter side");
        let all = PrivacyRules { pixelate: vec![ALL.into()], ..PrivacyRules::default() };
        assert_eq!(edges(&Privacy::default().follow(&all, SIZE, Some(&results))), [10, 90, 200]);
        assert!(Privacy::default().follow(&PrivacyRules::default(), SIZE, Some(&results)).is_empty());
    }

    #[test]
    fn boxes_are_held_for_frames_without_the_object() {
        let mut privacy = Privacy::default();
        let skipped = FrameResults { status: InferenceStatus::Skipped("interval".into()), ..frame(vec![]) };
        let frames = [Some(frame(vec![found("person", 10.0, None)])), Some(skipped), None, Some(frame(vec![])), None];
        let n: Vec<usize> = frames.iter().map(|results| privacy.follow(&rules(2), SIZE, results.as_ref()).len()).collect();
        assert_eq!(n, [1, 1, 1, 0, 0]);
        let n: Vec<usize> = frames.iter().map(|results| privacy.follow(&rules(0), SIZE, results.as_ref()).len()).collect();
        assert_eq!(n, [1, 0, 0, 0, 0]);
    }

    #[test]
    fn a_held_box_ends_when_its_object_is_found_again() {
        let mut privacy = Privacy::default();
        let mut edges_of = |detections| edges(&privacy.follow(&rules(5), SIZE, Some(&frame(detections))));
        assert_eq!(edges_of(vec![found("person", 10.0, None)]), [10]);
        assert_eq!(edges_of(vec![found("person", 20.0, None)]), [20], "the boxes overlap");
        assert_eq!(edges_of(vec![found("person", 150.0, None)]), [20, 150], "another object");
        privacy.clear();
        let mut edges_of = |detections| edges(&privacy.follow(&rules(5), SIZE, Some(&frame(detections))));
        assert_eq!(edges_of(vec![found("person", 10.0, Some(7))]), [10]);
        assert_eq!(edges_of(vec![found("person", 150.0, Some(7))]), [150], "the track ID is the same");
    }

    #[test]
    fn unknown_frames_can_be_covered_as_a_whole() {
        let mut privacy = Privacy::default();
        let rules = PrivacyRules { covers_unknown: true, ..rules(1) };
        let failed = FrameResults { status: InferenceStatus::Failed("engine".into()), ..frame(vec![]) };
        let is_whole = |areas: &[Obscured]| areas.iter().any(|area| area.area == Area::at(0, 0, 320, 240));
        assert!(!is_whole(&privacy.follow(&rules, SIZE, Some(&frame(vec![])))));
        assert!(!is_whole(&privacy.follow(&rules, SIZE, Some(&failed))), "one frame is held");
        assert!(is_whole(&privacy.follow(&rules, SIZE, Some(&failed))) && is_whole(&privacy.follow(&rules, SIZE, None)));
        assert!(!is_whole(&privacy.follow(&rules, SIZE, Some(&frame(vec![])))), "an inferred frame is known");
        assert!(is_whole(&Privacy::default().follow(&PrivacyRules { n_held: 0, ..rules }, SIZE, None)), "the first frame");
    }

    #[test]
    fn masks_limit_the_area_and_grow_by_a_cell() {
        let mut person = found("person", 0.0, None);
        let corners = [Point { x: 0.0, y: 20.0 }, Point { x: 60.0, y: 20.0 }, Point { x: 0.0, y: 110.0 }];
        let with = |values: [u8; 25]| {
            let outcome = Outcome::Geometry(Geometry::Mask(Grid { columns: 5, values: values.into(), corners }));
            vec![Classification { name: "mask".into(), model: "m".into(), outcome }]
        };
        let mut values = [0; 25];
        values[6] = 255;
        person.classifications = with(values);
        let mask = mask_of(&person).unwrap();
        let inside: Vec<usize> = mask.values.iter().enumerate().filter(|(_, value)| **value > 0).map(|(idx, _)| idx).collect();
        assert_eq!(inside, [0, 1, 2, 5, 6, 7, 10, 11, 12]);
        person.classifications = with([0; 25]);
        assert!(mask_of(&person).is_none(), "an empty mask does not uncover the box");
    }
}
