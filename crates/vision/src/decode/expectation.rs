//! Decodes an output that is a discrete distribution to its expected value, for example an age in years.

use serde::Deserialize;

use super::boxes::bad;
use super::survey::Expected;
use super::{Decoder, Output, Reads, Results, Section, classes, one, one_port, shape_text};
use crate::frame::{Outcome, Size};
use crate::tensor::{Error, ErrorKind, Result};

/// Maximum magnitude of numbers in a description.
pub(super) const MAX_NUMBER: f32 = 1e9;

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ExpectationKeys {
    /// The value of each bin.
    weights: Option<Vec<f32>>,
}

/// The expected value of an output that is a distribution: `sum(p[i] * weights[i])`.
#[derive(Debug)]
pub(super) struct Expectation {
    weights: Vec<f32>,
}

impl Expectation {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        let ExpectationKeys { weights } = section.keys()?;
        let missing = || bad("decoder `expectation` needs `weights`: the number that each bin stands for".to_owned());
        let weights = weights.ok_or_else(missing)?;
        if weights.is_empty() {
            return Err(bad("`weights`: expected one number for each bin, got none".to_owned()));
        }
        match weights.iter().find(|weight| !(-MAX_NUMBER..=MAX_NUMBER).contains(*weight)) {
            Some(weight) => Err(bad(format!("`weights`: expected finite numbers from -{MAX_NUMBER:e} to {MAX_NUMBER:e}, got {weight}"))),
            None => Ok(Self { weights }),
        }
    }
}

impl Decoder for Expectation {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let (name, shape) = one_port(outputs)?;
        let (n_classes, n_weights) = (classes::check(name, shape)?, self.weights.len());
        if n_classes as usize != n_weights && n_classes != 0 {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "output `{name}`: expected a value for each of the {n_weights} weights, [1, {n_weights}], got {}",
                    shape_text(shape)
                ),
            ));
        }
        Ok(n_classes)
    }

    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let output = one(outputs)?;
        self.check(&[(output.name, output.shape)], input)?;
        results.look_at(&output, Expected::Probabilities);
        // Computed in f64: the sum of a hundred terms of different magnitude would lose significant digits in f32.
        let sum: f64 = output.data.iter().zip(&self.weights).map(|(&p, &weight)| f64::from(p) * f64::from(weight)).sum();
        let mean = sum as f32;
        if !mean.is_finite() {
            return Err(Error::new(ErrorKind::Unsupported, format!("output `{}`: expected a finite mean, got {mean}", output.name)));
        }
        results.say(Outcome::Value(mean));
        Ok(())
    }

    fn reads(&self) -> Reads {
        Reads::One
    }

    fn summary(&self) -> String {
        format!("{} bins", self.weights.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::tests::{decoder, outcome_of};

    #[test]
    fn mean_weights_every_class() {
        let decoder = decoder("expectation", "weights = [0.25, 1.0, 2.0, 3.0]");
        assert_eq!(outcome_of(&*decoder, &[0.0, 0.5, 0.0, 0.5]), Ok(Some(Outcome::Value(2.0))));
        assert_eq!(outcome_of(&*decoder, &[1.0, 0.0, 0.0, 0.0]), Ok(Some(Outcome::Value(0.25))));
        assert_eq!(outcome_of(&*decoder, &[1.0, f32::NAN, 0.0, 0.0]).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn number_of_weights_must_match_the_classes() {
        let decoder = Expectation { weights: vec![1.0; 81] };
        let check = |shape: &[usize]| decoder.check(&[("age", shape)], Size::default());
        assert_eq!((check(&[1, 81]), check(&[1, usize::MAX])), (Ok(81), Ok(0)));
        let message = check(&[1, 80]).unwrap_err().to_string();
        assert!(message.contains("81") && message.contains("[1, 80]"), "{message}");
    }
}
