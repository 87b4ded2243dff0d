//! A distribution over numbers (an age in years, say) to its mean. Knows no units.

use super::{ClassOutcome, Output, classes, shape_text};
use crate::tensor::{Error, ErrorKind, Result};

/// `sum(p[i] * weights[i])`.
pub(super) fn mean(output: &Output<'_>, weights: &[f32]) -> Result<ClassOutcome> {
    // In f64: a hundred terms of different size otherwise cost digits that people read.
    let sum: f64 = output.data.iter().zip(weights).map(|(&p, &weight)| f64::from(p) * f64::from(weight)).sum();
    let mean = sum as f32;
    if !mean.is_finite() {
        return Err(Error::new(ErrorKind::Unsupported, format!("output `{}`: expected a finite mean, got {mean}", output.name)));
    }
    Ok(ClassOutcome::Value(mean))
}

pub(super) fn check(name: &str, shape: &[usize], weights: &[f32]) -> Result<u32> {
    let n_classes = classes::check(name, shape)?;
    if n_classes as usize != weights.len() && n_classes != 0 {
        return Err(Error::new(
            ErrorKind::Shape,
            format!("output `{name}`: expected a value for each of the {} weights, [1, {0}], got {}", weights.len(), shape_text(shape)),
        ));
    }
    Ok(n_classes)
}

#[cfg(test)]
mod tests {
    use crate::decode::{ClassDecoder, ClassOutcome, Output};
    use crate::tensor::ErrorKind;

    #[test]
    fn the_mean_weighs_every_class() {
        let decoder = ClassDecoder::Expectation { weights: vec![0.25, 1.0, 2.0, 3.0] };
        let decode = |data: &[f32]| decoder.decode(&Output { name: "age", shape: &[1, 4], data }, 0.0);
        assert_eq!(decode(&[0.0, 0.5, 0.0, 0.5]), Ok(ClassOutcome::Value(2.0)));
        assert_eq!(decode(&[1.0, 0.0, 0.0, 0.0]), Ok(ClassOutcome::Value(0.25)));
        assert_eq!(decode(&[1.0, f32::NAN, 0.0, 0.0]).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn there_is_one_weight_per_class() {
        let decoder = ClassDecoder::Expectation { weights: vec![1.0; 81] };
        assert_eq!(decoder.check("age", &[1, 81]), Ok(81));
        assert_eq!(decoder.check("age", &[1, usize::MAX]), Ok(0));
        let message = decoder.check("age", &[1, 80]).unwrap_err().to_string();
        assert!(message.contains("81") && message.contains("[1, 80]"), "{message}");
    }
}
