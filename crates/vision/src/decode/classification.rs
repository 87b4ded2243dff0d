//! The answer of a classifier: what can be said of a picture, and how an output says it. Knows no labels.

use std::fmt;
use std::sync::Arc;

use super::survey::Expected;
use super::{Activation, ClassSurvey, Output, classes, expectation, vector};
use crate::tensor::{Error, ErrorKind, Result};

/// How an output of a classifier becomes an answer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ClassDecoder {
    /// The best of several classes.
    Classes {
        /// What makes probabilities of the output.
        activation: Activation,
    },
    /// Every class whose probability is large enough, each for itself.
    MultiLabel {
        /// What makes probabilities of the output; usually the sigmoid.
        activation: Activation,
    },
    /// The mean of a number whose distribution the output is: `sum(p[i] * weights[i])`.
    Expectation {
        /// The number that each class stands for.
        weights: Vec<f32>,
    },
    /// A number as it is, `value * scale + offset`.
    Regression { scale: f32, offset: f32 },
    /// A vector to be compared with others.
    Embedding {
        /// Whether it is divided by its length, so that the product of two is the cosine between them.
        normalize: bool,
    },
    /// The values as they are.
    Raw,
    /// What an application makes of them.
    Scheme { name: Arc<str>, scheme: Arc<dyn ClassScheme> },
}

/// As descriptions call it, with what matters of its keys.
impl fmt::Display for ClassDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Classes { activation } => write!(f, "classes, activation {activation}"),
            Self::MultiLabel { activation } => write!(f, "multi-label, activation {activation}"),
            Self::Expectation { weights } => write!(f, "expectation of {} bins", weights.len()),
            Self::Regression { scale, offset } => write!(f, "regression, value * {scale} + {offset}"),
            Self::Embedding { normalize } => write!(f, "embedding, {}", if *normalize { "divided by its length" } else { "as it is" }),
            Self::Raw => f.write_str("custom, as it is"),
            Self::Scheme { name, .. } => write!(f, "{name}, the application's own"),
        }
    }
}

/// What a [`ClassDecoder`] found.
#[derive(Debug, Clone, PartialEq)]
pub enum ClassOutcome {
    /// A class, and its value after the activation.
    Label { class_id: u32, score: f32 },
    /// Any number of classes with their values after the activation, best first, equal ones in order.
    Labels(Vec<(u32, f32)>),
    /// A number.
    Value(f32),
    /// Several numbers.
    Vector(Vec<f32>),
}

/// A way in which classifiers write answers that an application knows and this crate does not: `stages::register_class_scheme`.
pub trait ClassScheme: fmt::Debug + Send + Sync {
    /// Whether an output of this name and shape is one that this scheme reads, and how many classes it has: 0 if the shape does not
    /// say. The first axis may have any extent, `usize::MAX` stands for one that is not known yet.
    ///
    /// # Errors
    /// `Shape` if not; the message says what was expected and what came.
    fn check(&self, name: &str, shape: &[usize]) -> Result<u32>;

    /// The answer in an output of one row; classes below the threshold need not be told.
    ///
    /// # Errors
    /// As [`ClassScheme::check`]; `Unsupported` if its values give no answer.
    fn decode(&self, output: &Output<'_>, threshold: f32) -> Result<ClassOutcome>;
}

impl ClassDecoder {
    /// Whether it may tell classes, of which there are labels and a threshold; else it tells numbers.
    pub fn tells_classes(&self) -> bool {
        match self {
            Self::Classes { .. } | Self::MultiLabel { .. } | Self::Scheme { .. } => true,
            Self::Expectation { .. } | Self::Regression { .. } | Self::Embedding { .. } | Self::Raw => false,
        }
    }

    /// Whether an output of this name and shape is one that this decoder reads, and how many classes it has: 0 if the shape
    /// does not say, or it tells none apart. The first axis may have any extent, `usize::MAX` stands for one that is not known yet.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if not.
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<u32> {
        match self {
            Self::Classes { .. } | Self::MultiLabel { .. } => classes::check(name, shape),
            Self::Expectation { weights } => expectation::check(name, shape, weights),
            Self::Regression { .. } => vector::check_number(name, shape).map(|()| 0),
            Self::Embedding { .. } => classes::check(name, shape).map(|_| 0),
            Self::Raw => Ok(0),
            Self::Scheme { scheme, .. } => scheme.check(name, shape),
        }
    }

    /// Adds what an output looks like to a survey.
    pub fn survey(&self, output: &Output<'_>, survey: &mut ClassSurvey) {
        let expected = match self {
            Self::Classes { activation } | Self::MultiLabel { activation } => match activation {
                Activation::None => Expected::Probabilities,
                Activation::Softmax => Expected::Logits,
                Activation::Sigmoid | Activation::Bytes => Expected::Numbers,
            },
            Self::Expectation { .. } => Expected::Probabilities,
            Self::Regression { .. } | Self::Embedding { .. } => Expected::Numbers,
            // Of these any numbers may be meant.
            Self::Raw | Self::Scheme { .. } => return,
        };
        survey.add(output, expected);
    }

    /// The answer in an output of one row, `[1, classes]`, with any further axes of extent 1.
    ///
    /// Of equal classes the first one is best; values that are not numbers are passed over. `threshold` is the least score of each
    /// of several labels; a single one is told whatever its score is.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] as [`ClassDecoder::check`], or if the output is not one row or has not as many values as its
    /// shape; [`ErrorKind::Unsupported`] if its values give no finite answer.
    pub fn decode(&self, output: &Output<'_>, threshold: f32) -> Result<ClassOutcome> {
        output.check()?;
        self.check(output.name, output.shape)?;
        match self {
            Self::Classes { activation } => classes::best(output, *activation),
            Self::MultiLabel { activation } => classes::all(output, *activation, threshold),
            Self::Expectation { weights } => expectation::mean(output, weights),
            Self::Regression { scale, offset } => {
                let value = output.data[0] * scale + offset;
                if !value.is_finite() {
                    let message = format!("output `{}`: expected a finite number, got {value}", output.name);
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                Ok(ClassOutcome::Value(value))
            }
            Self::Embedding { normalize } => vector::embedding(output, *normalize),
            Self::Raw => Ok(ClassOutcome::Vector(output.data.to_vec())),
            Self::Scheme { scheme, .. } => scheme.decode(output, threshold),
        }
    }
}
