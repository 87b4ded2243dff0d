//! Checks whether the first outputs of a model match its description, and reports a mismatch once, with the key that fixes it.
//!
//! A wrongly described model usually detects nothing, which is not an error by itself. So the first runs of a stage are examined
//! ([`Survey`]): four completely, some more by their boxes above the threshold. After that the check costs one atomic load.
//!
//! If a model was recognized by its ports alone, contradicting outputs are an error of every run instead of a warning.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::spec::{Head, Source};
use super::{ModelSpec, Result, Task};
use crate::runtime::{Error, ErrorKind};
use crate::vision::decode::{Coordinates, Finding, Output, Results, Survey};

/// Number of runs that are examined completely.
const IN_WHOLE: [u32; 4] = [1, 3, 10, 30];
/// Number of runs that are examined.
const MAX_RUNS: u32 = 200;
/// Number of boxes above the threshold that is enough for a conclusion.
const MAX_CANDIDATES: usize = 500;

/// The check of one stage; see the module.
#[derive(Debug, Default)]
pub(super) struct OutputCheck {
    is_over: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    n_runs: u32,
    /// By head.
    surveys: Vec<Survey>,
    warning: Option<String>,
    /// The error of every run of a model whose outputs contradict its family.
    refused: Option<Error>,
}

impl OutputCheck {
    /// Decodes the outputs for one image with each head of the model, and examines the first ones. `take` gets the results.
    pub(super) fn decode(
        &self,
        spec: &ModelSpec,
        outputs: &[Output<'_>],
        results: &mut Results,
        mut take: impl FnMut(&Head, &mut Results),
    ) -> Result<()> {
        let mut decode = |head: &Head, results: &mut Results| -> Result<()> {
            head.decode(outputs, spec.input_size, results)?;
            take(head, results);
            Ok(())
        };
        if self.is_over.load(Ordering::Relaxed) {
            return spec.heads.iter().try_for_each(|head| decode(head, results));
        }
        let mut state = self.state();
        if let Some(refused) = &state.refused {
            return Err(refused.clone());
        }
        state.n_runs += 1;
        let in_whole = IN_WHOLE.contains(&state.n_runs);
        state.surveys.resize_with(spec.heads.len(), Survey::default);
        for (head, survey) in spec.heads.iter().zip(&mut state.surveys) {
            survey.in_whole = in_whole;
            results.survey = Some(std::mem::take(survey));
            let decoded = decode(head, results);
            *survey = results.survey.take().unwrap_or_default();
            decoded?;
        }
        let found = spec.heads.iter().zip(&state.surveys).find_map(|(head, survey)| Some((head, survey.finding()?)));
        let Some((head, finding)) = found else {
            let n_candidates: usize = state.surveys.iter().map(Survey::n_candidates).sum();
            let has_seen_enough = state.n_runs >= MAX_RUNS || (n_candidates >= MAX_CANDIDATES && state.n_runs > IN_WHOLE[1]);
            self.is_over.store(has_seen_enough, Ordering::Relaxed);
            return Ok(());
        };
        let of_head = if spec.task == Task::Classification { format!(" of `{}`", head.name) } else { String::new() };
        let message = format!(
            "the outputs of model `{}` are not what decoder `{}`{of_head} expects: {}",
            spec.model_name,
            head.decoder_name,
            Advice { finding, head, spec }
        );
        if matches!(spec.source, Source::Model(Source::PORTS)) {
            let message = format!("{message}. The model was taken for one of that family by its ports alone, which others have, too");
            let refused = Error::new(ErrorKind::Model, message);
            state.refused = Some(refused.clone());
            return Err(refused);
        }
        state.warning = Some(format!("{message}. This is reported once"));
        self.is_over.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The mismatch, if there is one and it was not taken before.
    pub(super) fn take_warning(&self) -> Option<String> {
        // After the check is over and the warning was taken, the lock is not needed.
        self.state().warning.take()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The section of a key.
fn place(spec: &ModelSpec) -> String {
    match &spec.source {
        Source::Named(path) | Source::Beside(path) => format!("its description `{}`", path.display()),
        Source::Known { .. } | Source::Model(_) => "a description, which `roiflow describe MODEL --decoder NAME` begins".to_owned(),
    }
}

/// The observation, its likely cause, and the fix.
struct Advice<'a> {
    finding: Finding,
    head: &'a Head,
    spec: &'a ModelSpec,
}

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { finding, head, spec } = self;
        let (place, size, activation) = (place(spec), spec.input_size, head.decoder.missing_activation());
        let (written, other) = match head.decoder.coordinates() {
            Some(Coordinates::Pixels) => ("pixels", Some("normalized")),
            Some(Coordinates::Normalized) => ("normalized", Some("pixels")),
            None => ("", None),
        };
        match finding {
            Finding::Parts { max } => {
                write!(f, "boxes span 0 to {max:.3} where the input is {size} pixels, so none is larger than about a pixel. ")?;
                match other {
                    Some("normalized") => {
                        write!(f, "The model seems to give parts of the input: set `coordinates = \"normalized\"` in [output] of {place}")
                    }
                    _ => write!(f, "Another decoder may read them: name it with `decoder` in [output] of {place}"),
                }
            }
            Finding::Beyond { max } => {
                write!(f, "boxes lie outside the input of {size} pixels or are many times as large, with coordinates up to {max:.0}. ")?;
                match other {
                    Some("pixels") => write!(
                        f,
                        "Decoder `{}` expects {written} boxes, and the model seems to give pixels: set `coordinates = \"pixels\"` in [output] of {place}",
                        head.decoder_name
                    ),
                    _ => write!(f, "Check `size` in [input], and `decoder` and `coordinates` in [output] of {place}"),
                }
            }
            Finding::Inverted { n, of } => write!(
                f,
                "{n} of {of} boxes have their corners in the wrong order. The model seems to give offsets to which its priors (anchors) are not applied: export it with the priors applied, or name another `decoder` in [output] of {place}"
            ),
            Finding::Scores { min, max } => {
                let scores = if spec.task == Task::Detection { "scores" } else { "probabilities" };
                write!(f, "{scores} span {min:.2} to {max:.2} where 0 to 1 is expected. ")?;
                match activation {
                    Some(activation) => write!(
                        f,
                        "If the model gives logits, set `activation = \"{activation}\"`, or if another decoder reads it, name that with `decoder`, in [output] of {place}"
                    ),
                    None => write!(
                        f,
                        "The model seems to give logits: export it with its last sigmoid or softmax, or name another `decoder` in [output] of {place}"
                    ),
                }
            }
            Finding::SoftmaxTwice => write!(
                f,
                "values are from 0 to 1 and add up to 1, so they are probabilities before the softmax. Set `activation = \"none\"` in [output] of {place}"
            ),
            Finding::Crowded { n, of } => write!(
                f,
                "{n} of {of} rows are above the threshold. An activation may be applied twice, or another decoder reads the model: name it with `decoder`, or raise `threshold`, in [output] of {place}"
            ),
            _ => write!(
                f,
                "values are not finite numbers (NaN or infinity). Check `mean` and `scale` in [input] of {place}, and try another device or `precision=f32` in `config`"
            ),
        }
    }
}
