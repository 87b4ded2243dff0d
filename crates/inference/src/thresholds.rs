//! Thresholds of single classes, such as `person=0.6,car=0.4`, and the classes that are reported.

use std::sync::Arc;

use super::labels::{LabelList, Labels};
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
    let mut begun = String::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        // A label may contain commas.
        if !part.contains('=') {
            begun += part;
            begun += ",";
            continue;
        }
        let written = std::mem::take(&mut begun) + part;
        let wrong = || {
            let part = written.split(',').next().unwrap_or_default();
            bad(format!("expected a label and its threshold, such as person=0.6,car=0.4, got `{part}`"))
        };
        let (label, threshold) = written.rsplit_once('=').map(|(label, threshold)| (label.trim(), threshold.trim())).ok_or_else(wrong)?;
        let is_label = |name: &Arc<str>| name.split(',').map(str::trim).eq(label.split(',').map(str::trim));
        let known = (0..labels.len() as u32).filter_map(|class_id| labels.get(class_id)).find(|name| is_label(name));
        let label = known.map_or(label, |name| &**name);
        if label.is_empty() || (known.is_none() && label.contains(',')) {
            return Err(wrong());
        }
        let threshold = threshold
            .parse::<f32>()
            .ok()
            .filter(|threshold| (0.0..=1.0).contains(threshold))
            .ok_or_else(|| bad(format!("expected a threshold from 0 to 1 for `{label}`, got `{threshold}`")))?;
        let class_id = class_of("class-thresholds", label, labels, n_classes)?;
        if thresholds.len() <= class_id {
            thresholds.resize(class_id + 1, None);
        }
        if let Some(earlier) = thresholds[class_id].replace(threshold) {
            return Err(bad(format!("expected one threshold for `{label}`, got {earlier} and {threshold}")));
        }
    }
    if let Some(part) = begun.split(',').next().filter(|part| !part.is_empty()) {
        return Err(bad(format!("expected a label and its threshold, such as person=0.6,car=0.4, got `{part}`")));
    }
    Ok(thresholds.into_iter().map(|threshold| threshold.unwrap_or(other)).collect())
}

/// The classes of a detector that are reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReportedClasses {
    /// Only these classes; empty: all classes.
    keep: LabelList,
    /// None of these classes.
    drop: LabelList,
}

impl ReportedClasses {
    /// Reads both lists, which name classes by label, or by index if the model has no labels. `None` if all classes are reported.
    ///
    /// # Errors
    /// Returns `Config` if a list names a class that the model does not have, or if no class is left.
    pub(super) fn read(keep: Option<&str>, drop: Option<&str>, labels: &Labels, n_classes: u32) -> Result<Option<Self>> {
        let read = |key: &str, text: Option<&str>| -> Result<LabelList> {
            let list = LabelList::parse(text.unwrap_or_default());
            let unknown = if labels.is_empty() { list.unknown([]) } else { list.unknown(labels.names().iter().map(|name| &**name)) };
            for label in unknown {
                class_of(key, label, labels, n_classes)?;
            }
            Ok(list)
        };
        let classes = Self { keep: read("keep-classes", keep)?, drop: read("drop-classes", drop)? };
        if classes.keep.is_empty() && classes.drop.is_empty() {
            return Ok(None);
        }
        let n_known = n_classes.max(labels.len() as u32);
        if n_known > 0 && !(0..n_known).any(|class_id| classes.has(class_id, labels.get(class_id).map(|label| &**label))) {
            let message = "keep-classes and drop-classes: expected at least one class that is reported, got none. Change one of the lists";
            return Err(Error::new(ErrorKind::Config, message));
        }
        Ok(Some(classes))
    }

    /// Whether objects of this class are reported.
    pub(super) fn has(&self, class_id: u32, label: Option<&str>) -> bool {
        let is_in = |list: &LabelList| label.map_or_else(|| list.has(&class_id.to_string()), |label| list.has(label));
        (self.keep.is_empty() || is_in(&self.keep)) && !is_in(&self.drop)
    }

    /// Sets the thresholds of all other classes so high that none of their objects is found. So these objects suppress no others, and do
    /// not count for the maximum number of objects. `other` is the threshold of classes without a threshold of their own.
    pub(super) fn raise(&self, thresholds: &mut Vec<f32>, labels: &Labels, n_classes: u32, other: f32) {
        let n_known = (n_classes as usize).max(labels.len()).max(thresholds.len());
        thresholds.resize(n_known, other);
        for (class_id, threshold) in (0..).zip(thresholds) {
            if !self.has(class_id, labels.get(class_id).map(|label| &**label)) {
                *threshold = f32::INFINITY;
            }
        }
    }
}

fn class_of(key: &str, label: &str, labels: &Labels, n_classes: u32) -> Result<usize> {
    let bad = |message: String| Error::new(ErrorKind::Config, format!("{key}: {message}"));
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
        let with_comma = Labels::new(["car", "light, red"]);
        assert_eq!(by_class("light,red=0.25,car=1", &with_comma, 0, 0.5).unwrap(), [1.0, 0.25]);
    }

    #[test]
    fn reported_classes_are_named_by_label_or_number() {
        let labels = Labels::new(["person", "car", "light, red"]);
        let of = |keep: &str, drop: &str| {
            let classes = ReportedClasses::read(Some(keep), Some(drop), &labels, 3).unwrap();
            let mut thresholds = vec![0.25];
            classes.iter().for_each(|classes| classes.raise(&mut thresholds, &labels, 3, 0.5));
            thresholds
        };
        let none = f32::INFINITY;
        assert_eq!(of("", ""), [0.25]);
        assert_eq!(of("person", ""), [0.25, none, none]);
        assert_eq!(of("light, red,car", ""), [none, 0.5, 0.5]);
        assert_eq!(of("", "person"), [none, 0.5, 0.5]);
        assert_eq!(of("person,car", "car"), [0.25, none, none]);
        let unlabeled = ReportedClasses::read(Some("0,7"), None, &Labels::default(), 0).unwrap().unwrap();
        assert_eq!([0, 1, 7].map(|class_id| unlabeled.has(class_id, None)), [true, false, true]);
        let error = |keep: &str, drop: &str| ReportedClasses::read(Some(keep), Some(drop), &labels, 3).unwrap_err().to_string();
        let message = error("persn", "");
        assert!(
            message.starts_with("keep-classes: the model has no label `persn`: expected one of person, car")
                && message.contains("did you mean `person`"),
            "{message}"
        );
        assert!(error("", "dog").starts_with("drop-classes: the model has no label `dog`"));
        assert!(error("person", "person").contains("at least one class"));
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
