//! Names of known objects: the name of the stored vector that is nearest to a model's output.

use std::sync::Arc;

use super::boxes::bad;
use super::survey::Expected;
use super::{Decoder, Output, Reads, Results, classes, one, one_port};
use crate::frame::{Outcome, Size};
use crate::tensor::{Error, ErrorKind, Result};

/// Vectors of known objects, with the names of the objects. An object can have several vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct Gallery {
    names: Vec<Arc<str>>,
    /// All vectors in sequence, each divided by its length.
    vectors: Vec<f32>,
    /// For each vector, the index of its name.
    name_idxs: Vec<u32>,
    /// Number of values of a vector.
    n_values: usize,
}

impl Gallery {
    /// Creates a gallery from names and vectors.
    ///
    /// # Errors
    /// Returns `Unsupported` if there are no vectors, if their numbers of values differ, or if a vector has no direction: its values are all
    /// 0, or not finite. The message has the number of the entry, counted from 1.
    pub fn new(entries: impl IntoIterator<Item = (Arc<str>, Vec<f32>)>) -> Result<Self> {
        let mut gallery = Self { names: Vec::new(), vectors: Vec::new(), name_idxs: Vec::new(), n_values: 0 };
        for (number, (name, vector)) in (1..).zip(entries) {
            if gallery.n_values == 0 {
                gallery.n_values = vector.len();
            }
            let length = length(&vector);
            if vector.len() != gallery.n_values {
                return Err(bad(format!(
                    "entry {number}: expected {} values, as in the first entry, got {}",
                    gallery.n_values,
                    vector.len()
                )));
            }
            if !(length.is_finite() && length > 0.0) {
                return Err(bad(format!("entry {number}: expected a vector of finite values that are not all 0")));
            }
            let name_idx = gallery.names.iter().position(|known| *known == name).unwrap_or_else(|| {
                gallery.names.push(name);
                gallery.names.len() - 1
            });
            gallery.name_idxs.push(name_idx as u32);
            gallery.vectors.extend(vector.iter().map(|&value| (f64::from(value) / length) as f32));
        }
        if gallery.n_values == 0 {
            return Err(bad("expected at least one vector, got none".to_owned()));
        }
        Ok(gallery)
    }

    /// Returns the names of the objects, each name once.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Returns the number of values of a vector.
    pub fn n_values(&self) -> usize {
        self.n_values
    }

    /// Returns the index of the name whose vector has the smallest angle to this vector of length 1, and the cosine of the angle. Of equal
    /// cosines, returns the first.
    fn nearest(&self, vector: &[f32]) -> (u32, f32) {
        let cosines = self.vectors.chunks_exact(self.n_values).map(|known| known.iter().zip(vector).map(|(one, other)| one * other).sum());
        let larger = |best: (u32, f32), (&name_idx, cosine): (&u32, f32)| if cosine > best.1 { (name_idx, cosine) } else { best };
        self.name_idxs.iter().zip(cosines).fold((0, f32::NEG_INFINITY), larger)
    }
}

/// The Euclidean length. Computed in f64, because squares of finite f32 values can overflow in f32.
fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
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
        let length = length(output.data);
        if !length.is_finite() {
            let message = format!("output `{}`: expected a vector of finite numbers, got infinity or NaN", output.name);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        // A vector of zeros has no direction, so its cosine is 0.
        let divisor = if length > 0.0 { length } else { 1.0 };
        let vector: Vec<f32> = output.data.iter().map(|&value| (f64::from(value) / divisor) as f32).collect();
        let (nearest, cosine) = self.gallery.nearest(&vector);
        let confidence = cosine.clamp(0.0, 1.0);
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
        Gallery::new(entries.iter().map(|(name, vector)| ((*name).into(), vector.to_vec())))
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
        assert!(message(&[("a", &[1.0, 0.0]), ("b", &[1.0])]).contains("entry 2: expected 2 values, as in the first entry, got 1"));
        assert!(message(&[("a", &[0.0, 0.0])]).contains("entry 1: expected a vector of finite values"));
        assert!(message(&[("a", &[1.0]), ("a", &[f32::NAN])]).contains("entry 2"));
        assert!(message(&[("a", &[])]).contains("entry 1") && message(&[]).contains("got none"));
    }
}
