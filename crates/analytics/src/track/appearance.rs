//! Appearance of tracks: compares embeddings, which a classifier upstream of the tracker has computed for each object.
//!
//! An embedding is a vector. Embeddings of the same object have a small angle. The appearance of a track is a moving average of the
//! embeddings of its detections. The moving average is that of BoT-SORT (Aharon et al., 2022).

use crate::frame::{Detection, Outcome};

/// Weight of the new embedding in the moving average.
const NEW_WEIGHT: f32 = 0.1;

/// The mean embedding of a track; empty if no detection of the track had an embedding.
#[derive(Debug, Default)]
pub(super) struct Appearance(Vec<f32>);

impl Appearance {
    /// Adds the embedding of a detection to the average. No effect if the detection has no embedding. An embedding of another length
    /// replaces the average.
    pub(super) fn update(&mut self, detection: &Detection) {
        let Some((embedding, length)) = embedding(detection) else { return };
        if self.0.len() == embedding.len() {
            // The average need not be normalized, because only its angle is used.
            let of = self.0.iter_mut().zip(embedding);
            of.for_each(|(mean, value)| *mean = (1.0 - NEW_WEIGHT) * *mean + NEW_WEIGHT * value / length);
        } else {
            self.0.clear();
            self.0.extend(embedding.iter().map(|value| value / length));
        }
    }

    /// Returns 1 minus the cosine of the angle between the average and the embedding of a detection: 0 to 2. Returns 0 if one of them is
    /// missing, or if they have different lengths.
    pub(super) fn distance(&self, detection: &Detection) -> f32 {
        let Some((embedding, length)) = embedding(detection).filter(|(embedding, _)| embedding.len() == self.0.len()) else { return 0.0 };
        let of_mean = norm(&self.0);
        let product: f32 = self.0.iter().zip(embedding).map(|(mean, value)| mean * value).sum();
        if of_mean > 0.0 { (1.0 - product / (of_mean * length)).clamp(0.0, 2.0) } else { 0.0 }
    }
}

/// Returns the first attribute that is a vector, and the length of the vector. `None` if there is none, or if its length is 0 or not finite.
fn embedding(detection: &Detection) -> Option<(&[f32], f32)> {
    let data = detection.classifications.iter().find_map(|classification| match &classification.outcome {
        Outcome::Tensor { shape, data } if shape.iter().filter(|&&extent| extent > 1).count() == 1 => Some(&**data),
        _ => None,
    })?;
    let length = norm(data);
    (length > 0.0 && length.is_finite()).then_some((data, length))
}

fn norm(vector: &[f32]) -> f32 {
    vector.iter().map(|value| value * value).sum::<f32>().sqrt()
}
