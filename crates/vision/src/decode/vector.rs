//! Numeric outputs: a number, an embedding vector, or raw values.

use serde::Deserialize;

use super::boxes::bad;
use super::expectation::MAX_NUMBER;
use super::survey::Expected;
use super::{Decoder, Output, Reads, Results, Section, classes, one, one_port, shape_text};
use crate::frame::{Outcome, Size};
use crate::tensor::{Error, ErrorKind, Result};

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct RegressionKeys {
    /// Factor of the number.
    scale: Option<f32>,
    /// Offset, added after the multiplication.
    offset: Option<f32>,
}

/// Decodes one number: `value * scale + offset`.
#[derive(Debug)]
pub(super) struct Regression {
    scale: f32,
    offset: f32,
}

impl Regression {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        let RegressionKeys { scale, offset } = section.keys()?;
        let (scale, offset) = (scale.unwrap_or(1.0), offset.unwrap_or(0.0));
        let is_in_range = |value: f32| (-MAX_NUMBER..=MAX_NUMBER).contains(&value);
        if !(is_in_range(scale) && is_in_range(offset) && scale != 0.0) {
            return Err(bad(format!(
                "`scale` and `offset`: expected finite numbers up to {MAX_NUMBER:e} in magnitude, and a scale other than 0, got {scale} and {offset}"
            )));
        }
        Ok(Self { scale, offset })
    }
}

impl Decoder for Regression {
    /// Checks that there is one number: all axes after the first have extent 1.
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let (name, shape) = one_port(outputs)?;
        let rest = shape.get(1..).unwrap_or_default();
        if rest.is_empty() || rest.iter().any(|&extent| extent != 1 && extent != usize::MAX) {
            let message = format!("output `{name}`: expected one number, [1, 1], got {}", shape_text(shape));
            return Err(Error::new(ErrorKind::Shape, message));
        }
        Ok(0)
    }

    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let output = one(outputs)?;
        self.check(&[(output.name, output.shape)], input)?;
        results.look_at(&output, Expected::Numbers);
        let value = output.data[0] * self.scale + self.offset;
        if !value.is_finite() {
            let message = format!("output `{}`: expected a finite number, got {value}", output.name);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        results.say(Outcome::Value(value));
        Ok(())
    }

    fn reads(&self) -> Reads {
        Reads::One
    }

    fn summary(&self) -> String {
        format!("value * {} + {}", self.scale, self.offset)
    }
}

/// Decodes an embedding: a vector for comparisons.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) struct Embedding {
    /// Whether the vector is normalized to length 1. The dot product of two such vectors is the cosine of their angle.
    #[serde(default = "yes")]
    normalize: bool,
}

fn yes() -> bool {
    true
}

/// The Euclidean length. Computed in f64, because squares of finite f32 values can overflow in f32.
pub(super) fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
}

/// The Euclidean length of the vector in an output.
///
/// # Errors
/// Returns `Unsupported` if a value is infinite or NaN, or if the length is too large for f32. Otherwise, the dot product with a vector of
/// length 1 is finite in f32.
pub(super) fn finite_length(output: &Output<'_>) -> Result<f64> {
    let length = length(output.data);
    if length <= f64::from(f32::MAX) {
        return Ok(length);
    }
    let message = format!("output `{}`: expected a vector of finite numbers with a finite length, got the length {length:e}", output.name);
    Err(Error::new(ErrorKind::Unsupported, message))
}

impl Decoder for Embedding {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let (name, shape) = one_port(outputs)?;
        classes::check(name, shape).map(|_| 0)
    }

    /// Adds the vector to the results, divided by its Euclidean length if `normalize` is true. A zero vector stays unchanged.
    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let output = one(outputs)?;
        self.check(&[(output.name, output.shape)], input)?;
        results.look_at(&output, Expected::Numbers);
        let length = finite_length(&output)?;
        let divisor = if self.normalize && length > 0.0 { length } else { 1.0 };
        let data = output.data.iter().map(|&value| (f64::from(value) / divisor) as f32).collect();
        results.say(Outcome::Tensor { shape: output.shape.to_vec(), data });
        Ok(())
    }

    fn reads(&self) -> Reads {
        Reads::One
    }

    fn summary(&self) -> String {
        if self.normalize { "divided by its length" } else { "unchanged" }.to_owned()
    }
}

/// Decodes raw values.
#[derive(Debug)]
pub(super) struct Raw;

impl Decoder for Raw {
    fn check(&self, _outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        Ok(0)
    }

    fn decode(&self, outputs: &[Output<'_>], _input: Size, results: &mut Results) -> Result<()> {
        let output = one(outputs)?;
        results.say(Outcome::Tensor { shape: output.shape.to_vec(), data: output.data.into() });
        Ok(())
    }

    fn reads(&self) -> Reads {
        Reads::Each
    }

    fn summary(&self) -> String {
        "unchanged".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::tests::{decoder, outcome_of};

    #[test]
    fn embedding_is_normalized_unless_disabled_or_zero() {
        let vector = |keys: &str, data: &[f32]| -> Result<Vec<f32>> {
            match outcome_of(&*decoder("embedding", keys), data)? {
                Some(Outcome::Tensor { shape, data }) if shape == [1, data.len(), 1, 1] => Ok(data.to_vec()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(vector("", &[3.0, 0.0, -4.0]), Ok(vec![0.6, 0.0, -0.8]));
        let huge = 2_f32.powi(100);
        assert_eq!(vector("", &[3.0 * huge, -4.0 * huge]), Ok(vec![0.6, -0.8]));
        assert_eq!(vector("", &[0.0, 0.0]), Ok(vec![0.0, 0.0]));
        assert_eq!(vector("normalize = false", &[3.0, -4.0]), Ok(vec![3.0, -4.0]));
        for data in [[3.0, f32::NAN], [f32::INFINITY, 0.0], [f32::MAX, f32::MAX]] {
            assert_eq!(vector("", &data).unwrap_err().kind(), ErrorKind::Unsupported, "{data:?}");
        }
    }

    #[test]
    fn number_is_scaled_and_offset() {
        let decoder = decoder("regression", "scale = 100\noffset = -1");
        assert_eq!(outcome_of(&*decoder, &[0.25]), Ok(Some(Outcome::Value(24.0))));
        assert_eq!(outcome_of(&*decoder, &[f32::INFINITY]).unwrap_err().kind(), ErrorKind::Unsupported);
        let check = |shape: &[usize]| decoder.check(&[("age", shape)], Size::default());
        assert_eq!(check(&[4, 1, 1, 1]), Ok(0));
        let message = check(&[1, 81]).unwrap_err().to_string();
        assert!(message.contains("one number") && message.contains("[1, 81]"), "{message}");
    }
}
