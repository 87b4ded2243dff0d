//! Class scores: activation, best class, multi-label, and top-k. This module does not handle labels.

use std::fmt;

use serde::Deserialize;

use super::activate::sigmoid;
use super::boxes::fraction;
use super::survey::Expected;
use super::{Decoder, Output, Reads, Results, Section, one, one_port, shape_text};
use crate::frame::{Outcome, ScoredLabel, Size};
use crate::tensor::{Error, ErrorKind, Result};

/// Function that turns an output into probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Activation {
    /// Identity: values are probabilities.
    #[default]
    None,
    /// `exp(x[i]) / sum(exp(x))`.
    Softmax,
    /// `1 / (1 + exp(-x[i]))`, for each class independently.
    Sigmoid,
    /// `x / 256`, for quantized models whose bytes represent 0 to 1.
    Bytes,
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Softmax => "softmax",
            Self::Sigmoid => "sigmoid",
            Self::Bytes => "bytes",
        })
    }
}

/// Writes the `k` best classes of one batch item to `best`, best first, as `(class, value after activation)`.
///
/// Of classes with equal values, the class with the smaller index is better. NaN values are ignored, so the result can have fewer than
/// `k` classes.
/// Allocates only to grow `best`.
///
/// # Errors
/// Returns `Shape` if classes are not on a single axis or the number of values is wrong. Returns `Unsupported` if no value is finite.
pub fn top_k(output: &Output<'_>, activation: Activation, k: usize, best: &mut Vec<(u32, f32)>) -> Result<()> {
    best.clear();
    output.check()?;
    check(output.name, output.shape)?;
    for (class_idx, &value) in output.data.iter().enumerate().filter(|(_, value)| !value.is_nan()) {
        let place = best.partition_point(|(_, better)| *better >= value);
        if place < k {
            best.truncate(k - 1);
            best.insert(place, (class_idx as u32, value));
        }
    }
    // The activation is monotonic, so it does not change the order and is applied only to the selected classes.
    let normalizer = Normalizer::new(output, activation)?;
    best.iter_mut().for_each(|(_, value)| *value = normalizer.probability(*value));
    Ok(())
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ClassKeys {
    /// Minimum probability, 0 to 1.
    threshold: Option<f32>,
    /// The activation that turns scores into probabilities.
    activation: Option<Activation>,
}

/// Decodes class scores: the best class, or all classes above the threshold.
#[derive(Debug)]
pub(super) struct Classes {
    is_multi: bool,
    activation: Activation,
    threshold: f32,
}

impl Classes {
    /// Creates a decoder that reports the best class. Of classes with equal scores, it reports the first.
    pub(super) fn best(section: &mut Section<'_>) -> Result<Self> {
        let ClassKeys { threshold, activation } = section.keys()?;
        let threshold = section.threshold.or(threshold).unwrap_or(0.0);
        Ok(Self { is_multi: false, activation: activation.unwrap_or_default(), threshold: fraction("threshold", threshold)? })
    }

    /// Creates a decoder that reports all classes above the threshold, best first. Classes with equal scores are in index order.
    pub(super) fn multi(section: &mut Section<'_>) -> Result<Self> {
        let ClassKeys { threshold, activation } = section.keys()?;
        let threshold = section.threshold.or(threshold).unwrap_or_else(|| {
            section.assumed.push("[output] `threshold` is not given: 0.5".to_owned());
            0.5
        });
        let activation = activation.unwrap_or(Activation::Sigmoid);
        Ok(Self { is_multi: true, activation, threshold: fraction("threshold", threshold)? })
    }
}

/// NaN values are ignored.
impl Decoder for Classes {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let (name, shape) = one_port(outputs)?;
        check(name, shape)
    }

    fn decode(&self, outputs: &[Output<'_>], _input: Size, results: &mut Results) -> Result<()> {
        let output = one(outputs)?;
        check(output.name, output.shape)?;
        let expected = match self.activation {
            Activation::None => Expected::Probabilities,
            Activation::Softmax => Expected::Logits,
            Activation::Sigmoid | Activation::Bytes => Expected::Numbers,
        };
        results.look_at(&output, expected);
        let normalizer = Normalizer::new(&output, self.activation)?;
        if self.is_multi {
            let confidences = output.data.iter().map(|&value| normalizer.probability(value));
            let sure = (0..).zip(confidences).filter(|(_, confidence)| *confidence >= self.threshold);
            let mut labels: Vec<_> = sure.map(|(label_id, confidence)| ScoredLabel { label_id, label: None, confidence }).collect();
            labels.sort_by(|one, other| other.confidence.total_cmp(&one.confidence));
            results.say(Outcome::Labels(labels));
            return Ok(());
        }
        let better = |best: (u32, f32), (class_id, &value): (u32, &f32)| if value > best.1 { (class_id, value) } else { best };
        let (label_id, value) = (0..).zip(output.data).fold((0, f32::NEG_INFINITY), better);
        let confidence = normalizer.probability(value);
        if confidence >= self.threshold {
            results.say(Outcome::Label { label_id, label: None, confidence });
        }
        Ok(())
    }

    fn reads(&self) -> Reads {
        Reads::One
    }

    fn threshold(&self) -> Option<f32> {
        Some(self.threshold)
    }

    fn summary(&self) -> String {
        format!("activation {}", self.activation)
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(if self.is_multi { Activation::Sigmoid } else { Activation::Softmax })
    }
}

/// Checks that all classes are on one axis after the batch axis. Returns the number of classes; 0 if it is dynamic.
pub(super) fn check(name: &str, shape: &[usize]) -> Result<u32> {
    let classes = shape.get(1..).unwrap_or_default();
    let n_long = classes.iter().filter(|&&extent| extent != 1).count();
    if classes.is_empty() || n_long > 1 || classes.contains(&0) {
        return Err(Error::new(
            ErrorKind::Shape,
            format!("output `{name}`: expected classes along one axis, [1, classes], got {}", shape_text(shape)),
        ));
    }
    let n_classes = classes.iter().copied().max().unwrap_or(1);
    Ok(if n_classes == usize::MAX { 0 } else { n_classes as u32 })
}

/// The activation, with the statistics that it needs: maximum and sum over all classes.
enum Normalizer {
    None,
    /// The maximum, and the sum of the exponentials of the differences to the maximum. The subtraction of the maximum avoids
    /// overflow.
    Softmax {
        max: f32,
        sum: f32,
    },
    Sigmoid,
    Bytes,
}

impl Normalizer {
    fn new(output: &Output<'_>, activation: Activation) -> Result<Self> {
        let max = output.data.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !max.is_finite() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("output `{}`: expected finite class scores, got {max} as the largest score", output.name),
            ));
        }
        Ok(match activation {
            Activation::None => Self::None,
            Activation::Softmax => {
                let sum = output.data.iter().filter(|value| !value.is_nan()).map(|value| (value - max).exp()).sum();
                Self::Softmax { max, sum }
            }
            Activation::Sigmoid => Self::Sigmoid,
            Activation::Bytes => Self::Bytes,
        })
    }

    fn probability(&self, value: f32) -> f32 {
        match self {
            Self::None => value,
            Self::Softmax { max, sum } => (value - max).exp() / sum,
            Self::Sigmoid => sigmoid(value),
            Self::Bytes => value / 256.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::tests::{decoder, outcome_of};

    fn output<'a>(shape: &'a [usize], data: &'a [f32]) -> Output<'a> {
        Output { name: "color", shape, data }
    }

    /// Returns the best class and its probability.
    fn best(activation: Activation, data: &[f32]) -> Result<(u32, f32)> {
        match outcome_of(&*decoder("classes", &format!("activation = \"{activation}\"")), data)? {
            Some(Outcome::Label { label_id, label: None, confidence }) => Ok((label_id, confidence)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn best_class_is_the_first_of_equal_ones() {
        #[derive(Debug)]
        struct Case(Activation, &'static [f32], (u32, f32));
        let cases = [
            Case(Activation::None, &[0.25, 0.5, 0.125], (1, 0.5)),
            Case(Activation::None, &[0.5, 0.5], (0, 0.5)),
            Case(Activation::None, &[f32::NAN, 0.5, f32::NAN], (1, 0.5)),
            Case(Activation::Softmax, &[2.0, 2.0], (0, 0.5)),
            Case(Activation::Softmax, &[0.0, 1000.0, 0.0], (1, 1.0)),
            Case(Activation::Softmax, &[-1000.0, -1000.0, -1000.0, -1000.0], (0, 0.25)),
            Case(Activation::Softmax, &[7.0], (0, 1.0)),
            Case(Activation::Sigmoid, &[-1000.0, 0.0], (1, 0.5)),
            Case(Activation::Sigmoid, &[-1000.0, 1000.0], (1, 1.0)),
        ];
        for case in cases {
            assert_eq!(best(case.0, case.1), Ok(case.2), "{case:?}");
        }
    }

    #[test]
    fn class_below_the_threshold_is_not_reported() {
        let outcome_of = |data: &[f32]| outcome_of(&*decoder("classes", "threshold = 0.5"), data).unwrap();
        assert_eq!((outcome_of(&[0.25, 0.49]), outcome_of(&[-3.0, -2.0])), (None, None));
        assert!(matches!(outcome_of(&[0.25, 0.5]), Some(Outcome::Label { label_id: 1, confidence: 0.5, .. })));
    }

    #[test]
    fn multi_label_reports_all_classes_above_the_threshold() {
        let labels = |data: &[f32], activation: &str, threshold: f32| -> Result<Vec<(u32, f32)>> {
            let decoder = decoder("multi-label", &format!("activation = \"{activation}\"\nthreshold = {threshold}"));
            match outcome_of(&*decoder, data)? {
                Some(Outcome::Labels(labels)) => Ok(labels.iter().map(|label| (label.label_id, label.confidence)).collect()),
                other => panic!("{other:?}"),
            }
        };
        let data = [0.0, f32::NAN, -1000.0, 1000.0, 0.0];
        assert_eq!(labels(&data, "sigmoid", 0.5), Ok(vec![(3, 1.0), (0, 0.5), (4, 0.5)]));
        assert_eq!(labels(&data, "sigmoid", 0.6), Ok(vec![(3, 1.0)]));
        assert_eq!(labels(&[0.25, 0.5], "none", 0.6), Ok(vec![]));
        assert_eq!(labels(&[f32::NAN], "sigmoid", 0.5).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn softmax_matches_known_values() {
        let (class_id, score) = best(Activation::Softmax, &[1.0, 2.0, 3.0]).unwrap();
        assert!(class_id == 2 && (score - 0.665_240_9).abs() < 1e-6, "{score}");
    }

    #[test]
    fn top_k_is_in_descending_order() {
        let mut best = vec![(9, 9.0)];
        let data = [0.1, 0.4, f32::NAN, 0.4, 0.05];
        top_k(&output(&[1, 5], &data), Activation::None, 3, &mut best).unwrap();
        assert_eq!(best, [(1, 0.4), (3, 0.4), (0, 0.1)]);
        top_k(&output(&[1, 5], &data), Activation::None, 9, &mut best).unwrap();
        assert_eq!(best.len(), 4);
        top_k(&output(&[1, 5], &data), Activation::None, 0, &mut best).unwrap();
        assert_eq!(best, []);
        top_k(&output(&[1, 2], &[5.0, 5.0]), Activation::Softmax, 1, &mut best).unwrap();
        assert_eq!(best, [(0, 0.5)]);
    }

    #[test]
    fn outputs_without_finite_scores_are_errors() {
        assert_eq!(best(Activation::None, &[f32::NAN, f32::NAN]).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(best(Activation::Softmax, &[f32::INFINITY, 0.0]).unwrap_err().kind(), ErrorKind::Unsupported);
        let check = |shape: &[usize]| decoder("classes", "").check(&[("color", shape)], Size::default());
        assert_eq!((check(&[4, 7, 1, 1]), check(&[usize::MAX, usize::MAX])), (Ok(7), Ok(0)));
        for shape in [&[1, 7, 2][..], &[1, 0], &[7], &[]] {
            let error = check(shape).unwrap_err();
            assert!(error.to_string().contains("`color`: expected classes along one axis"), "{error}");
        }
    }
}
