//! Outputs that are numbers rather than classes: one, or a vector that is compared with others. Knows no units.

use super::{ClassOutcome, Output, shape_text};
use crate::tensor::{Error, ErrorKind, Result};

/// Whether an output is one number, with axes of extent 1 only after the first.
pub(super) fn check_number(name: &str, shape: &[usize]) -> Result<()> {
    let rest = shape.get(1..).unwrap_or_default();
    if rest.is_empty() || rest.iter().any(|&extent| extent != 1 && extent != usize::MAX) {
        let message = format!("output `{name}`: expected one number, [1, 1], got {}", shape_text(shape));
        return Err(Error::new(ErrorKind::Shape, message));
    }
    Ok(())
}

/// The vector, divided by its Euclidean length if that is asked for; one without a length stays as it is.
pub(super) fn embedding(output: &Output<'_>, normalize: bool) -> Result<ClassOutcome> {
    // In f64, where no square of a finite number overflows.
    let length = output.data.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err(Error::new(ErrorKind::Unsupported, format!("output `{}`: expected a vector of finite numbers", output.name)));
    }
    let divisor = if normalize && length > 0.0 { length } else { 1.0 };
    Ok(ClassOutcome::Vector(output.data.iter().map(|&value| (f64::from(value) / divisor) as f32).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::ClassDecoder;

    fn decode(decoder: &ClassDecoder, data: &[f32]) -> Result<ClassOutcome> {
        decoder.decode(&Output { name: "y", shape: &[1, data.len()], data }, 0.0)
    }

    #[test]
    fn an_embedding_has_the_length_one_unless_it_is_left_alone_or_has_none() {
        let normalized = ClassDecoder::Embedding { normalize: true };
        assert_eq!(decode(&normalized, &[3.0, 0.0, -4.0]), Ok(ClassOutcome::Vector(vec![0.6, 0.0, -0.8])));
        let huge = 2_f32.powi(100);
        assert_eq!(decode(&normalized, &[3.0 * huge, -4.0 * huge]), Ok(ClassOutcome::Vector(vec![0.6, -0.8])));
        assert_eq!(decode(&normalized, &[0.0, 0.0]), Ok(ClassOutcome::Vector(vec![0.0, 0.0])));
        assert_eq!(decode(&ClassDecoder::Embedding { normalize: false }, &[3.0, -4.0]), Ok(ClassOutcome::Vector(vec![3.0, -4.0])));
        assert_eq!(decode(&normalized, &[3.0, f32::NAN]).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_number_is_scaled_and_moved() {
        let decoder = ClassDecoder::Regression { scale: 100.0, offset: -1.0 };
        assert_eq!(decode(&decoder, &[0.25]), Ok(ClassOutcome::Value(24.0)));
        assert_eq!(decode(&decoder, &[f32::INFINITY]).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(decoder.check("age", &[4, 1, 1, 1]), Ok(0));
        let message = decoder.check("age", &[1, 81]).unwrap_err().to_string();
        assert!(message.contains("one number") && message.contains("[1, 81]"), "{message}");
    }
}
