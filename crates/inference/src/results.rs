//! Results of a decoder, in input space and without names, to those of a frame.

use std::sync::Arc;

use super::Head;
use crate::frame::{Classification, Detection, Geometry, ObjectId, Outcome, Point, Transform};
use crate::vision::decode::{RawAttribute, Results};

/// Takes all results of a head: its boxes as new detections with their attributes, and what it says of the whole image.
pub(super) fn add_results(
    head: &Head,
    model: &Arc<str>,
    results: &mut Results,
    frame_from_input: &Transform,
    detections: &mut Vec<Detection>,
    said: &mut Vec<Classification>,
) {
    let n_before = detections.len();
    detections.extend(results.boxes.iter().map(|found| Detection {
        id: ObjectId::next(),
        track: None,
        track_state: None,
        parent: None,
        rect: frame_from_input.apply(found.rect),
        keypoints: results.keypoints(found).iter().map(|point| frame_from_input.apply_to_point(*point)).collect(),
        confidence: found.score,
        label_id: found.class_id,
        label: head.labels.get(found.class_id).cloned(),
        classifications: Vec::new(),
    }));
    for attribute in results.attributes.drain(..) {
        let of = attribute.of.map(|found| detections.get_mut(n_before + found));
        let classification = classification(head, model, attribute, |point| frame_from_input.apply_to_point(point));
        match of {
            None => said.push(classification),
            Some(Some(detection)) => detection.classifications.push(classification),
            // Of a detection that is not there.
            Some(None) => {}
        }
    }
}

/// Takes the attributes of the whole image out of the results of a head; `frame_from_input` maps the points of their geometry.
pub(super) fn add_attributes(
    head: &Head,
    model: &Arc<str>,
    results: &mut Results,
    frame_from_input: impl Fn(Point) -> Point,
    said: &mut Vec<Classification>,
) {
    let of_image = results.attributes.drain(..).filter(|attribute| attribute.of.is_none());
    said.extend(of_image.map(|attribute| classification(head, model, attribute, &frame_from_input)));
}

/// An attribute in the frame's space, under the name of its head unless it has its own, and with the names of classes.
fn classification(
    head: &Head,
    model: &Arc<str>,
    RawAttribute { name, mut outcome, .. }: RawAttribute,
    frame_from_input: impl Fn(Point) -> Point,
) -> Classification {
    let name_of = |class_id: u32| head.labels.get(class_id).cloned();
    match &mut outcome {
        Outcome::Label { label_id, label, .. } => *label = label.take().or_else(|| name_of(*label_id)),
        Outcome::Labels(labels) => labels.iter_mut().for_each(|of| of.label = of.label.take().or_else(|| name_of(of.label_id))),
        Outcome::Geometry(Geometry::ClassMap { labels, .. }) if labels.is_empty() => *labels = head.labels.names(),
        _ => {}
    }
    outcome.map(frame_from_input);
    Classification { name: name.unwrap_or_else(|| head.name.clone()), model: model.clone(), outcome }
}
