//! Names of known objects: the name of the stored vector that is nearest to a model's output.

use std::collections::HashMap;
use std::sync::Arc;

use super::boxes::bad;
use super::survey::Expected;
use super::{Decoder, Output, Reads, Results, classes, one, one_port, vector};
use crate::frame::{Outcome, Size};
use crate::tensor::{Error, ErrorKind, Result};

/// Vectors of known objects, with the names of the objects. An object can have several vectors.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gallery {
    names: Vec<Arc<str>>,
    /// For each name, its index in `names`.
    idx_of_name: HashMap<Arc<str>, u32>,
    /// All vectors in sequence, each divided by its Euclidean length.
    vectors: Vec<f32>,
    /// For each vector, the index of its name.
    name_idxs: Vec<u32>,
    /// Number of values of a vector; 0 if there are no vectors.
    n_values: usize,
}

impl Gallery {
    /// Adds a vector of the object `name`.
    ///
    /// # Errors
    /// Returns `Unsupported` if the number of values differs from that of the first vector, or if the vector has no direction: its values
    /// are all 0, or not finite. The gallery is then unchanged.
    pub fn push(&mut self, name: &str, vector: &[f32]) -> Result<()> {
        if !self.is_empty() && vector.len() != self.n_values {
            return Err(bad(format!("expected {} values, as in the first vector, got {}", self.n_values, vector.len())));
        }
        let length = vector::length(vector);
        if !(length.is_finite() && length > 0.0) {
            return Err(bad("expected a vector of finite values that are not all 0".to_owned()));
        }
        let name_idx = self.idx_of_name.get(name).copied().unwrap_or_else(|| {
            let (name, name_idx): (Arc<str>, _) = (name.into(), self.names.len() as u32);
            self.names.push(Arc::clone(&name));
            self.idx_of_name.insert(name, name_idx);
            name_idx
        });
        self.n_values = vector.len();
        self.name_idxs.push(name_idx);
        self.vectors.extend(vector.iter().map(|&value| (f64::from(value) / length) as f32));
        Ok(())
    }

    /// Whether there are no vectors.
    pub fn is_empty(&self) -> bool {
        self.name_idxs.is_empty()
    }

    /// Returns the names of the objects, each name once.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Returns the number of values of a vector.
    pub fn n_values(&self) -> usize {
        self.n_values
    }

    /// Returns the index of the name whose stored vector has the smallest angle to `vector`, and the dot product of these two vectors.
    /// Stored vectors have length 1, so the largest product belongs to the smallest angle. Of equal products, returns the first.
    fn nearest(&self, vector: &[f32]) -> (u32, f32) {
        let products = self.vectors.chunks_exact(self.n_values.max(1)).map(|known| dot_product(known, vector));
        let larger = |best: (u32, f32), (&name_idx, product): (&u32, f32)| if product > best.1 { (name_idx, product) } else { best };
        self.name_idxs.iter().zip(products).fold((0, f32::NEG_INFINITY), larger)
    }
}

/// The dot product of two vectors with the same number of values.
fn dot_product(one: &[f32], other: &[f32]) -> f32 {
    // Compute 16 sums first, each of every 16th product, because the compiler converts this loop to vector instructions.
    let ((one, rest_of_one), (other, rest_of_other)) = (one.as_chunks::<16>(), other.as_chunks::<16>());
    let mut sums = [0.0; 16];
    for (one, other) in one.iter().zip(other) {
        for lane in 0..16 {
            sums[lane] += one[lane] * other[lane];
        }
    }
    sums.iter().sum::<f32>() + rest_of_one.iter().zip(rest_of_other).map(|(one, other)| one * other).sum::<f32>()
}

/// Decodes an embedding to the name of the nearest vector of a gallery. The confidence is the cosine of the angle, at least 0.
///
/// The classes are the names of the gallery, and then one class for unknown objects.
#[derive(Debug)]
pub struct Nearest {
    gallery: Gallery,
    threshold: f32,
}

impl Nearest {
    /// Creates the decoder. Objects whose largest cosine is below `threshold` are unknown.
    pub fn new(gallery: Gallery, threshold: f32) -> Self {
        Self { gallery, threshold }
    }
}

impl Decoder for Nearest {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let (name, shape) = one_port(outputs)?;
        let n_values = classes::check(name, shape)?;
        if n_values > 0 && n_values as usize != self.gallery.n_values {
            let message = format!(
                "output `{name}`: expected {} values, as the vectors of the gallery have, got {n_values}. Create the gallery with this model",
                self.gallery.n_values
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        Ok(self.gallery.names.len() as u32 + 1)
    }

    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let output = one(outputs)?;
        self.check(&[(output.name, output.shape)], input)?;
        results.look_at(&output, Expected::Numbers);
        let length = vector::finite_length(&output)?;
        let (nearest, product) = self.gallery.nearest(output.data);
        // A vector of zeros has no direction, so its cosine is 0.
        let confidence = if length > 0.0 { (f64::from(product) / length).clamp(0.0, 1.0) as f32 } else { 0.0 };
        let label_id = if confidence >= self.threshold { nearest } else { self.gallery.names.len() as u32 };
        results.say(Outcome::Label { label_id, label: None, confidence });
        Ok(())
    }

    fn reads(&self) -> Reads {
        Reads::One
    }

    fn threshold(&self) -> Option<f32> {
        Some(self.threshold)
    }

    fn summary(&self) -> String {
        format!("the nearest of {} vectors of {} names", self.gallery.name_idxs.len(), self.gallery.names.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gallery(entries: &[(&str, &[f32])]) -> Result<Gallery> {
        let mut gallery = Gallery::default();
        entries.iter().try_for_each(|(name, vector)| gallery.push(name, vector)).map(|()| gallery)
    }

    #[test]
    fn nearest_vector_gives_the_name_and_the_cosine() {
        let known = gallery(&[("Anna", &[3.0, 0.0]), ("Ben", &[0.0, 0.5]), ("Anna", &[-1.0, 0.0])]).unwrap();
        let found = |threshold: f32, vector: [f32; 2]| {
            let mut results = Results::default();
            let output = Output { name: "y", shape: &[1, 2], data: &vector };
            Nearest::new(known.clone(), threshold).decode(&[output], Size::default(), &mut results).unwrap();
            match results.attributes.remove(0).outcome {
                Outcome::Label { label_id, label: None, confidence } => (label_id, confidence),
                other => panic!("{other:?}"),
            }
        };
        // The cosines of the vector (4, 3) and the axes are 0.8 and 0.6. Its length does not matter.
        assert_eq!(found(0.5, [4.0, 3.0]), (0, 0.8));
        assert_eq!(found(0.5, [6.0, 8.0]), (1, 0.8));
        assert_eq!(found(0.5, [-8.0, 6.0]), (0, 0.8));
        assert_eq!(found(0.8, [4.0, 3.0]), (0, 0.8), "a cosine equal to the threshold is sufficient");
        assert_eq!(found(0.81, [4.0, 3.0]), (2, 0.8), "2: unknown");
        assert_eq!(found(0.5, [0.0, 0.0]), (2, 0.0));
        assert_eq!(found(0.0, [0.0, -1.0]), (0, 0.0), "of equal cosines, the first");
        let check = |shape: &[usize]| Nearest::new(known.clone(), 0.5).check(&[("y", shape)], Size::default());
        assert_eq!((check(&[1, 2]), check(&[1, 2, 1, 1]), check(&[1, usize::MAX])), (Ok(3), Ok(3), Ok(3)));
        let message = check(&[1, 3]).unwrap_err().to_string();
        assert!(message.contains("expected 2 values") && message.contains("got 3"), "{message}");
    }

    #[test]
    fn vectors_without_direction_or_of_other_lengths_are_errors() {
        let message = |entries: &[(&str, &[f32])]| gallery(entries).unwrap_err().to_string();
        assert!(message(&[("a", &[1.0, 0.0]), ("b", &[1.0])]).contains("expected 2 values, as in the first vector, got 1"));
        for vector in [&[0.0, 0.0][..], &[f32::NAN], &[1.0, f32::INFINITY], &[]] {
            assert!(message(&[("a", vector)]).contains("expected a vector of finite values"), "{vector:?}");
        }
        let mut known = gallery(&[("a", &[1.0, 0.0])]).unwrap();
        let before = known.clone();
        assert!(known.push("b", &[0.0, 0.0]).is_err() && known.push("b", &[1.0]).is_err());
        assert_eq!((&known, known.is_empty(), Gallery::default().is_empty()), (&before, false, true));
    }

    #[test]
    fn long_vectors_of_any_length_are_compared() {
        // 37 values: two blocks of lanes and a rest.
        let axis = |idx: usize, length: f32| (0..37).map(|value| if value == idx { length } else { 0.0 }).collect::<Vec<f32>>();
        let mut known = Gallery::default();
        (0..37).for_each(|idx| known.push(&format!("name {}", idx % 30), &axis(idx, 1.0 + idx as f32)).unwrap());
        assert_eq!(known.names().len(), 30);
        for (idx, length) in [(0, 1.0), (15, 1e-30), (16, 1e30), (31, 3.0), (36, 1e-3)] {
            let vector = axis(idx, length);
            let mut results = Results::default();
            let output = Output { name: "y", shape: &[1, 37], data: &vector };
            Nearest::new(known.clone(), 0.5).decode(&[output], Size::default(), &mut results).unwrap();
            let expected = Outcome::Label { label_id: idx as u32 % 30, label: None, confidence: 1.0 };
            assert_eq!(results.attributes.remove(0).outcome, expected, "{idx}, {length}");
        }
    }
}
