//! Results of a decoder, in input space and without names, to those of a frame.

use std::sync::Arc;

use super::Head;
use crate::frame::{Classification, Detection, ObjectId, Outcome, Transform};
use crate::vision::decode::{RawAttribute, Results};

/// Takes the attributes of the whole image out of the results of a head, which go by its name unless they have their own.
pub(super) fn add_attributes(head: &Head, model: &Arc<str>, results: &mut Results, said: &mut Vec<Classification>) {
    for RawAttribute { of, name, mut outcome } in results.attributes.drain(..) {
        if of.is_none() {
            name_classes(&mut outcome, head);
            said.push(Classification { name: name.unwrap_or_else(|| head.name.clone()), model: model.clone(), outcome });
        }
    }
}

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
    for attribute in results.attributes.iter_mut() {
        let Some(detection) = attribute.of.and_then(|found| detections.get_mut(n_before + found)) else { continue };
        let mut outcome = std::mem::replace(&mut attribute.outcome, Outcome::Value(0.0));
        name_classes(&mut outcome, head);
        let name = attribute.name.clone().unwrap_or_else(|| head.name.clone());
        detection.classifications.push(Classification { name, model: model.clone(), outcome });
    }
    add_attributes(head, model, results, said);
}

/// Gives classes the names of the head's labels.
fn name_classes(outcome: &mut Outcome, head: &Head) {
    let name_of = |class_id: u32| head.labels.get(class_id).cloned();
    match outcome {
        Outcome::Label { label_id, label, .. } => *label = label.take().or_else(|| name_of(*label_id)),
        Outcome::Labels(labels) => labels.iter_mut().for_each(|of| of.label = of.label.take().or_else(|| name_of(of.label_id))),
        _ => {}
    }
}
