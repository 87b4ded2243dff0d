//! A row of class scores: activation, the best class, the best k. Knows no labels.

use std::fmt;

use super::{ClassOutcome, Output, shape_text};
use crate::tensor::{Error, ErrorKind, Result};

/// What makes probabilities of a model's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Activation {
    /// Nothing: they are probabilities already.
    #[default]
    None,
    /// `exp(x[i]) / sum(exp(x))`.
    Softmax,
    /// `1 / (1 + exp(-x[i]))`, each for itself.
    Sigmoid,
    /// `x / 256`: of quantized models, whose bytes stand for 0 to 1.
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

/// The `k` best classes of an output of one row, `(class, value after the activation)`, best first, into `best`.
///
/// Of equal classes the first one is better; values that are not numbers are passed over, so that fewer than `k` may come.
/// Allocates only to grow `best`.
///
/// # Errors
/// As [`ClassDecoder::decode`](super::ClassDecoder::decode).
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
    // The activation keeps the order, so that it is due only for those that are left.
    let normalizer = Normalizer::new(output, activation)?;
    best.iter_mut().for_each(|(_, value)| *value = normalizer.probability(*value));
    Ok(())
}

/// The best class.
pub(super) fn best(output: &Output<'_>, activation: Activation) -> Result<ClassOutcome> {
    let mut best = (0, f32::NEG_INFINITY);
    for (class_idx, &value) in output.data.iter().enumerate() {
        if value > best.1 {
            best = (class_idx, value);
        }
    }
    let score = Normalizer::new(output, activation)?.probability(best.1);
    Ok(ClassOutcome::Label { class_id: best.0 as u32, score })
}

/// Every class of at least this score, best first and equal ones in order.
pub(super) fn all(output: &Output<'_>, activation: Activation, threshold: f32) -> Result<ClassOutcome> {
    let normalizer = Normalizer::new(output, activation)?;
    let scores = output.data.iter().map(|&value| normalizer.probability(value));
    let mut labels: Vec<(u32, f32)> = (0..).zip(scores).filter(|(_, score)| *score >= threshold).collect();
    labels.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    Ok(ClassOutcome::Labels(labels))
}

/// Whether all classes lie along one axis after the first one; their number, 0 if it is not known.
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

/// The activation with what it needs to know of the whole row.
enum Normalizer {
    None,
    /// The largest value, and the sum of the powers relative to it, so that nothing overflows.
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
                format!("output `{}`: expected finite class scores, got {max} as the largest of them", output.name),
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
            // Of large negative values the power is infinite, and the result 0.
            Self::Sigmoid => 1.0 / (1.0 + (-value).exp()),
            Self::Bytes => value / 256.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::ClassDecoder;

    fn output<'a>(shape: &'a [usize], data: &'a [f32]) -> Output<'a> {
        Output { name: "color", shape, data }
    }

    fn decode(activation: Activation, data: &[f32]) -> Result<ClassOutcome> {
        ClassDecoder::Classes { activation }.decode(&output(&[1, data.len(), 1, 1], data), 0.0)
    }

    #[test]
    fn the_best_class_wins_and_the_first_of_equals() {
        #[derive(Debug)]
        struct Case(Activation, &'static [f32], (u32, f32));
        let cases = [
            Case(Activation::None, &[0.25, 0.5, 0.125], (1, 0.5)),
            Case(Activation::None, &[0.5, 0.5], (0, 0.5)),
            Case(Activation::None, &[f32::NAN, 0.5, f32::NAN], (1, 0.5)),
            Case(Activation::None, &[-3.0, -2.0], (1, -2.0)),
            Case(Activation::Softmax, &[2.0, 2.0], (0, 0.5)),
            Case(Activation::Softmax, &[0.0, 1000.0, 0.0], (1, 1.0)),
            Case(Activation::Softmax, &[-1000.0, -1000.0, -1000.0, -1000.0], (0, 0.25)),
            Case(Activation::Softmax, &[7.0], (0, 1.0)),
            Case(Activation::Sigmoid, &[-1000.0, 0.0], (1, 0.5)),
            Case(Activation::Sigmoid, &[-1000.0, 1000.0], (1, 1.0)),
        ];
        for case in cases {
            let (class_id, score) = case.2;
            assert_eq!(decode(case.0, case.1), Ok(ClassOutcome::Label { class_id, score }), "{case:?}");
        }
    }

    #[test]
    fn of_several_labels_each_is_told_that_is_sure_enough() {
        let decode = |data: &[f32], activation, threshold| {
            ClassDecoder::MultiLabel { activation }.decode(&output(&[1, data.len()], data), threshold)
        };
        let data = [0.0, f32::NAN, -1000.0, 1000.0, 0.0];
        assert_eq!(decode(&data, Activation::Sigmoid, 0.5), Ok(ClassOutcome::Labels(vec![(3, 1.0), (0, 0.5), (4, 0.5)])));
        assert_eq!(decode(&data, Activation::Sigmoid, 0.6), Ok(ClassOutcome::Labels(vec![(3, 1.0)])));
        assert_eq!(decode(&[0.25, 0.5], Activation::None, 0.6), Ok(ClassOutcome::Labels(vec![])));
        assert_eq!(decode(&[f32::NAN], Activation::Sigmoid, 0.5).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn softmax_gives_what_it_should() {
        let Ok(ClassOutcome::Label { class_id: 2, score }) = decode(Activation::Softmax, &[1.0, 2.0, 3.0]) else { panic!() };
        assert!((score - 0.665_240_9).abs() < 1e-6, "{score}");
    }

    #[test]
    fn the_best_k_come_in_order() {
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
    fn outputs_without_an_answer_are_refused() {
        assert_eq!(decode(Activation::None, &[f32::NAN, f32::NAN]).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(decode(Activation::Softmax, &[f32::INFINITY, 0.0]).unwrap_err().kind(), ErrorKind::Unsupported);
        let decoder = ClassDecoder::Classes { activation: Activation::None };
        assert_eq!(decoder.check("color", &[4, 7, 1, 1]), Ok(7));
        assert_eq!(decoder.check("color", &[usize::MAX, usize::MAX]), Ok(0));
        for shape in [&[1, 7, 2][..], &[1, 0], &[7], &[]] {
            let error = decoder.check("color", shape).unwrap_err();
            assert!(error.to_string().contains("`color`: expected classes along one axis"), "{error}");
        }
    }
}
