//! Converts the results of a decoder (input coordinates, class indexes) to results of a frame.

use super::job::Alignment;
use super::{Head, ModelSpec, Task};
use crate::frame::{Classification, Detection, Geometry, ObjectId, Outcome, Point, Transform};
use crate::vision::decode::{RawAttribute, Results};

/// How the results of one input are mapped to the frame.
pub(super) struct ResultSpace {
    pub(super) frame_from_input: Transform,
    /// Transform from input to frame for images that are aligned by keypoints. It replaces `frame_from_input`.
    pub(super) alignment: Option<Alignment>,
    /// ID of the object whose region is the input; `None` for a whole frame.
    pub(super) parent: Option<ObjectId>,
}

impl ResultSpace {
    /// Maps a point from input to frame coordinates.
    fn point(&self, point: Point) -> Point {
        match self.alignment {
            // The alignment has pixel centers at integers. Results have pixel centers at integers plus 0.5. So subtract half a pixel first
            // and add it afterwards.
            Some(Alignment::Keypoints(alignment)) => {
                let (x, y) = alignment.apply(f64::from(point.x) - 0.5, f64::from(point.y) - 0.5);
                Point { x: x as f32 + 0.5, y: y as f32 + 0.5 }
            }
            Some(Alignment::Rotated(placement)) => {
                let (x, y) = placement.apply(f64::from(point.x), f64::from(point.y));
                Point { x: x as f32, y: y as f32 }
            }
            None => self.frame_from_input.apply_to_point(point),
        }
    }
}

/// Adds the results of a head. Boxes become detections. An attribute is added to its detection, or to the classifications of the
/// whole image.
pub(super) fn add_results(
    spec: &ModelSpec,
    head: &Head,
    results: &mut Results,
    space: &ResultSpace,
    detections: &mut Vec<Detection>,
    classifications: &mut Vec<Classification>,
) {
    let n_before = detections.len();
    if spec.task == Task::Detection {
        detections.extend(results.boxes.iter().map(|found| Detection {
            id: ObjectId::next(),
            track: None,
            track_state: None,
            parent: space.parent,
            rect: space.frame_from_input.apply(found.rect),
            keypoints: results.keypoints(found).iter().map(|point| space.point(*point)).collect(),
            confidence: found.score,
            label_id: found.class_id,
            label: head.labels.get(found.class_id).cloned(),
            classifications: Vec::new(),
        }));
    }
    for RawAttribute { of, name, mut outcome } in results.attributes.drain(..) {
        let name_of = |class_id: u32| head.labels.get(class_id).cloned();
        match &mut outcome {
            Outcome::Label { label_id, label, .. } => *label = label.take().or_else(|| name_of(*label_id)),
            Outcome::Labels(labels) => labels.iter_mut().for_each(|of| of.label = of.label.take().or_else(|| name_of(of.label_id))),
            Outcome::Geometry(Geometry::ClassMap { labels, .. }) if labels.is_empty() => *labels = head.labels.names(),
            _ => {}
        }
        outcome.map(|point| space.point(point));
        let classification = Classification { name: name.unwrap_or_else(|| head.name.clone()), model: spec.model_name.clone(), outcome };
        match of.map(|found| detections.get_mut(n_before + found)) {
            None => classifications.push(classification),
            Some(Some(detection)) => detection.classifications.push(classification),
            // The decoder assigned the attribute to a detection that does not exist, so the attribute is dropped.
            Some(None) => {}
        }
    }
    // Most decoders have left out these classes already. Others do not know them.
    if let Some(classes) = &head.classes {
        let mut idx = 0;
        detections.retain(|detection| {
            idx += 1;
            idx <= n_before || classes.has(detection.label_id, detection.label.as_deref())
        });
    }
}
