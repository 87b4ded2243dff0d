//! Output check: detects that the first outputs of a model contradict its description, and reports once which key to change.
//!
//! A model with a wrong description usually finds nothing, which is not an error by itself. So the first runs of a stage are examined
//! ([`Survey`]). In four of these runs, all output values are examined. In the other runs, only the boxes above the threshold are examined.
//! The check ends after [`MAX_RUNS`] runs at the latest. From then on, it costs one atomic load per run.
//!
//! If the description was deduced from the ports alone, a contradiction is an error of every run instead of a warning.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::spec::{Head, Source};
use super::{ModelSpec, Result, Task};
use crate::runtime::{Error, ErrorKind};
use crate::vision::decode::{Coordinates, Decoder, Finding, Output, Results, Survey};

/// The runs whose outputs are examined completely, counted from 1.
const IN_WHOLE: [u32; 4] = [1, 3, 10, 30];
/// Number of runs that are examined in total.
const MAX_RUNS: u32 = 200;
/// The runs after which the check looks for another decoder, if no run has found anything.
const SEARCHES: [u32; 7] = [3, 10, 30, 60, 100, 150, 200];
/// The check ends early when this many boxes above the threshold were examined.
const MAX_CANDIDATES: usize = 500;

/// The output check of one stage; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct OutputCheck {
    is_over: AtomicBool,
    /// Whether a warning about `max-boxes` was given.
    has_been_cut: AtomicBool,
    state: Mutex<State>,
    warnings: Mutex<Vec<String>>,
}

#[derive(Debug, Default)]
struct State {
    n_runs: u32,
    /// Statistics of the examined outputs, one entry per head.
    surveys: Vec<Survey>,
    /// The error that every run returns if the outputs contradict a description that was deduced from ports.
    refused: Option<Error>,
}

impl OutputCheck {
    /// Decodes the outputs of one image with each head of the model, and passes the results of each head to `take`. Examines the
    /// outputs while the check is not over.
    pub(super) fn decode(
        &self,
        spec: &ModelSpec,
        outputs: &[Output<'_>],
        results: &mut Results,
        mut take: impl FnMut(&Head, &mut Results),
    ) -> Result<()> {
        let mut decode = |head: &Head, results: &mut Results| -> Result<()> {
            head.decode(outputs, spec.input_size, results)?;
            if results.is_cut && !self.has_been_cut.swap(true, Ordering::Relaxed) {
                self.warn(format!(
                    "model `{}` found more than {} objects in an image, and only the best of them are reported. Set `max-boxes` in [output] of {}. This warning appears only once",
                    spec.model_name,
                    results.boxes.len(),
                    place(spec)
                ));
            }
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
            if n_candidates == 0
                && SEARCHES.contains(&state.n_runs)
                && let Some(other) = other_decoder(spec, outputs)
            {
                self.is_over.store(true, Ordering::Relaxed);
                let decoder = &spec.heads[0].decoder_name;
                self.warn(format!(
                    "model `{}` found nothing in the first {} images with decoder `{decoder}`, but decoder `{other}` finds objects in its outputs. If the model is of that kind, set `decoder = \"{other}\"` in [output] of {}; `roiflow describe MODEL --decoder {other}` writes a description with its preprocessing. This warning appears only once",
                    spec.model_name,
                    state.n_runs,
                    place(spec)
                ));
            }
            return Ok(());
        };
        let of_head = if spec.task == Task::Classification { format!(" of `{}`", head.name) } else { String::new() };
        let message = format!(
            "the outputs of model `{}` do not match decoder `{}`{of_head}: {}",
            spec.model_name,
            head.decoder_name,
            Advice { finding, head, spec }
        );
        if matches!(spec.source, Source::Model(Source::PORTS)) {
            let message = format!("{message}. The decoder was deduced from the model's ports alone, and other models have the same ports");
            let refused = Error::new(ErrorKind::Model, message);
            state.refused = Some(refused.clone());
            return Err(refused);
        }
        let other = other_decoder(spec, outputs).map(|other| format!(". Decoder `{other}` finds objects in these outputs"));
        self.warn(format!("{message}{}. This warning appears only once", other.unwrap_or_default()));
        self.is_over.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Adds a message for [`OutputCheck::take_warning`].
    pub(super) fn warn(&self, message: String) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).insert(0, message);
    }

    /// Returns the oldest message, such as one about outputs that contradict the description. Returns each message only once.
    pub(super) fn take_warning(&self) -> Option<String> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the name of another decoder that accepts the model's outputs and finds plausible objects in these outputs.
fn other_decoder<'a>(spec: &'a ModelSpec, outputs: &[Output<'_>]) -> Option<&'a str> {
    let finds = |decoder: &dyn Decoder| {
        let (mut results, mut survey) = (Results::default(), Survey::default());
        survey.in_whole = true;
        results.survey = Some(survey);
        let decoded = decoder.decode(outputs, spec.input_size, &mut results);
        decoded.is_ok() && !results.boxes.is_empty() && results.survey.is_some_and(|survey| survey.finding().is_none())
    };
    spec.other_decoders.iter().find(|(_, decoder)| finds(&**decoder)).map(|(name, _)| &**name)
}

/// Returns a text that says where the user can change a key of the description.
fn place(spec: &ModelSpec) -> String {
    match &spec.source {
        Source::Named(path) | Source::NextToModel(path) => format!("its description `{}`", path.display()),
        Source::Text => "its description".to_owned(),
        Source::Known { .. } | Source::Model(_) => "a description, created with `roiflow describe MODEL --decoder NAME`".to_owned(),
    }
}

/// The message about a contradiction: the observation, its likely cause, and the correction.
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
                write!(f, "boxes span 0 to {max:.3} where the input is {size} pixels, so they are not larger than about a pixel. ")?;
                match other {
                    Some("normalized") => {
                        write!(
                            f,
                            "The model probably outputs fractions of the input: set `coordinates = \"normalized\"` in [output] of {place}"
                        )
                    }
                    _ => write!(f, "Another decoder may match: set `decoder` in [output] of {place}"),
                }
            }
            Finding::Beyond { max } => {
                write!(f, "boxes are outside the input of {size} pixels or much larger, with coordinates up to {max:.0}. ")?;
                match other {
                    Some("pixels") => write!(
                        f,
                        "Decoder `{}` expects {written} boxes, and the model probably outputs pixels: set `coordinates = \"pixels\"` in [output] of {place}",
                        head.decoder_name
                    ),
                    _ => write!(f, "Check `size` in [input], and `decoder` and `coordinates` in [output] of {place}"),
                }
            }
            Finding::Inverted { n, of } => write!(
                f,
                "{n} of {of} boxes have their corners in the wrong order. The model probably outputs offsets from priors (anchors): export the model with decoded boxes, or set another `decoder` in [output] of {place}"
            ),
            Finding::Scores { min, max } => {
                let scores = if spec.task == Task::Detection { "scores" } else { "probabilities" };
                write!(f, "{scores} span {min:.2} to {max:.2} where 0 to 1 is expected. ")?;
                match activation {
                    Some(activation) => write!(
                        f,
                        "If the outputs are logits, set `activation = \"{activation}\"`; if another decoder matches, set `decoder`; both in [output] of {place}"
                    ),
                    None => write!(
                        f,
                        "The model probably outputs logits: export the model with its last sigmoid or softmax, or set another `decoder` in [output] of {place}"
                    ),
                }
            }
            Finding::SoftmaxTwice => write!(
                f,
                "values are from 0 to 1 and add up to 1, so they are probabilities before the softmax. Set `activation = \"none\"` in [output] of {place}"
            ),
            Finding::Crowded { n, of } => write!(
                f,
                "{n} of {of} rows are above the threshold. An activation may be applied twice, or another decoder matches: set `decoder`, or raise `threshold`, in [output] of {place}"
            ),
            Finding::Classes { n, of } => write!(
                f,
                "{n} of {of} class numbers are not whole numbers, so the rows are not final boxes. The model probably outputs rows of a grid, before NMS: set another `decoder` in [output] of {place}"
            ),
            Finding::Repeated { n, of } => write!(
                f,
                "{n} of {of} boxes nearly equal a better box of their class, so the model does not suppress overlapping boxes (NMS). Export the model without NMS, or with a fixed size (`dynamic=False`), and describe it with the decoder of its raw outputs; or set another `decoder` in [output] of {place}"
            ),
            _ => write!(
                f,
                "values are not finite numbers (NaN or infinity). Check `mean` and `scale` in [input] of {place}, and try another device or `precision=f32` in `config`"
            ),
        }
    }
}
