//! Parser for thresholds of single classes, such as `person=0.6,car=0.4`.

use super::labels::Labels;
use crate::runtime::{Error, ErrorKind, Result};

/// Maximum number of labels listed in an error message.
const N_NAMED: usize = 12;

/// Returns the threshold of each class, by class index. Classes that are not in the text have the threshold `other`.
///
/// The text names a class by its label, or by its index if the model has no labels. `n_classes` is 0 if the number of classes is
/// unknown.
///
/// # Errors
/// Returns `Config` with the expected and the actual text if the text is invalid or names an unknown class.
pub(super) fn by_class(text: &str, labels: &Labels, n_classes: u32, other: f32) -> Result<Vec<f32>> {
    let mut thresholds: Vec<Option<f32>> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (label, threshold) = part
            .rsplit_once('=')
            .map(|(label, threshold)| (label.trim(), threshold.trim()))
            .filter(|(label, _)| !label.is_empty())
            .ok_or_else(|| bad(format!("expected a label and its threshold, such as person=0.6,car=0.4, got `{part}`")))?;
        let threshold = threshold
            .parse::<f32>()
            .ok()
            .filter(|threshold| (0.0..=1.0).contains(threshold))
            .ok_or_else(|| bad(format!("expected a threshold from 0 to 1 for `{label}`, got `{threshold}`")))?;
        let class_id = class_of(label, labels, n_classes)?;
        if thresholds.len() <= class_id {
            thresholds.resize(class_id + 1, None);
        }
        if let Some(earlier) = thresholds[class_id].replace(threshold) {
            return Err(bad(format!("expected one threshold for `{label}`, got {earlier} and {threshold}")));
        }
    }
    Ok(thresholds.into_iter().map(|threshold| threshold.unwrap_or(other)).collect())
}

fn class_of(label: &str, labels: &Labels, n_classes: u32) -> Result<usize> {
    if labels.is_empty() {
        // If the number of classes is unknown, accept any `u16`, because no model has more classes.
        let class_id = label.parse::<u16>().ok().filter(|&class_id| n_classes == 0 || u32::from(class_id) < n_classes);
        let known = if n_classes > 0 { format!(" below {n_classes}") } else { String::new() };
        return class_id.map(usize::from).ok_or_else(|| {
            bad(format!(
                "the model has no labels: expected the number of a class{known}, or labels by `labels` or `labels-file`, got `{label}`"
            ))
        });
    }
    let names = || (0..labels.len() as u32).filter_map(|class_id| labels.get(class_id));
    names().position(|name| **name == *label).ok_or_else(|| {
        let near = names().min_by_key(|name| strsim::levenshtein(name, label)).filter(|name| strsim::levenshtein(name, label) <= 2);
        let hint = near.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        let listed = names().take(N_NAMED).map(|name| &**name).collect::<Vec<_>>().join(", ");
        let more = if labels.len() > N_NAMED { format!(" and {} more", labels.len() - N_NAMED) } else { String::new() };
        bad(format!("the model has no label `{label}`: expected one of {listed}{more}{hint}"))
    })
}

fn bad(message: String) -> Error {
    Error::new(ErrorKind::Config, format!("class-thresholds: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_belong_to_the_named_classes() {
        let labels = Labels::new(["person", "car", "traffic light", "a=b"]);
        let of = |text: &str| by_class(text, &labels, 0, 0.5).unwrap();
        assert!(of("").is_empty());
        assert_eq!(of("person=0.6,car=0.4"), [0.6, 0.4]);
        assert_eq!(of(" traffic light = 1 , a=b=0,"), [0.5, 0.5, 1.0, 0.0]);
        assert_eq!(by_class("2=0.25", &Labels::default(), 3, 0.5).unwrap(), [0.5, 0.5, 0.25]);
    }

    #[test]
    fn invalid_text_is_an_error_with_both_sides() {
        let labels = Labels::new(["person", "car"]);
        for (text, parts) in [
            ("person", ["such as person=0.6", "got `person`"]),
            ("=0.5", ["a label and its threshold", "got `=0.5`"]),
            ("person=high", ["from 0 to 1 for `person`", "got `high`"]),
            ("person=1.5", ["from 0 to 1 for `person`", "got `1.5`"]),
            ("person=NaN", ["from 0 to 1 for `person`", "got `NaN`"]),
            ("persn=0.5", ["no label `persn`: expected one of person, car", "did you mean `person`"]),
            ("car=0.5,car=0.6", ["one threshold for `car`", "got 0.5 and 0.6"]),
        ] {
            let error = by_class(text, &labels, 0, 0.5).unwrap_err();
            let message = error.to_string();
            assert!(error.kind() == ErrorKind::Config && parts.iter().all(|part| message.contains(part)), "{text}: {message}");
        }
        let message = by_class("person=0.5", &Labels::default(), 3, 0.5).unwrap_err().to_string();
        assert!(message.contains("no labels") && message.contains("the number of a class below 3"), "{message}");
        by_class("3=0.5", &Labels::default(), 3, 0.5).unwrap_err();
        let many = Labels::new((0..80).map(|n| format!("class {n}")));
        let message = by_class("tree=0.5", &many, 80, 0.5).unwrap_err().to_string();
        assert!(message.contains("class 11 and 68 more"), "{message}");
    }
}
