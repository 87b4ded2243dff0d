//! Labels: names of classes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::runtime::{Error, ErrorKind, Result, files};

/// Labels of a model, indexed by class. The list may be empty. Clones share the list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Labels(Arc<[Arc<str>]>);

impl Labels {
    /// Creates labels from one name per class.
    pub fn new<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        Self(names.into_iter().map(|name| Arc::from(name.as_ref())).collect())
    }

    /// Reads a text file with one label per line.
    ///
    /// # Errors
    /// Returns `Io` if the file cannot be read, is too large or not UTF-8. Returns `Config` if it contains no label.
    pub fn read(path: &Path) -> Result<Self> {
        let text = files::read_text(path, files::MAX_LABELS_BYTES, "labels file")
            .map_err(|error| Error::new(error.kind(), format!("{error}. Expected a text file with one label per line")))?;
        if text.trim().is_empty() {
            let message = format!("labels file `{}`: expected a text file with one label per line, got no label", path.display());
            return Err(Error::new(ErrorKind::Config, message));
        }
        Ok(Self::of_lines(&text))
    }

    /// Creates labels from text with one label per line. Empty lines at the end are ignored.
    pub fn of_lines(text: &str) -> Self {
        Self::new(text.trim_end().lines().map(str::trim))
    }

    /// Returns the number of labels.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list has no labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all labels.
    pub fn names(&self) -> Arc<[Arc<str>]> {
        self.0.clone()
    }

    /// Returns the label of the class with this index; `None` if the list has no such entry.
    pub fn get(&self, class_id: u32) -> Option<&Arc<str>> {
        self.0.get(class_id as usize)
    }
}

/// A list of labels as text with commas between, such as `person,traffic light`.
///
/// A label may itself contain commas: the parts of the list between commas are compared with the parts of the label.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelList(Vec<String>);

impl LabelList {
    /// Reads a list. Spaces around the labels are ignored.
    pub fn parse(text: &str) -> Self {
        Self(parts(text).map(str::to_owned).collect())
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the list contains a label.
    pub fn has(&self, label: &str) -> bool {
        self.places(label).next().is_some()
    }

    /// Returns the parts of the list that are in none of these labels.
    pub fn unknown<'a>(&self, labels: impl IntoIterator<Item = &'a str>) -> Vec<&str> {
        let mut is_known = vec![false; self.0.len()];
        for label in labels {
            let n_parts = parts(label).count();
            self.places(label).for_each(|at| is_known[at..at + n_parts].fill(true));
        }
        self.0.iter().zip(is_known).filter(|(_, is_known)| !is_known).map(|(part, _)| part.as_str()).collect()
    }

    /// Returns the places in the list where a label begins.
    fn places<'a>(&'a self, label: &'a str) -> impl Iterator<Item = usize> + 'a {
        let n_parts = parts(label).count();
        let begins = 0..(self.0.len() + 1).saturating_sub(n_parts.max(1));
        begins.filter(move |&at| n_parts > 0 && self.0[at..at + n_parts].iter().eq(parts(label)))
    }
}

impl fmt::Display for LabelList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// The parts of a text between commas, without empty parts and without spaces around them.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_labels_with_and_without_commas() {
        let list = LabelList::parse(" person, traffic light, red ,,dog,");
        for (label, expected) in [
            ("person", true),
            ("red", true),
            ("traffic light, red", true),
            ("traffic light,red", true),
            ("red, dog", true),
            ("red, person", false),
            ("traffic", false),
            ("", false),
            (",", false),
            ("dog, cat", false),
        ] {
            assert_eq!(list.has(label), expected, "{label}");
        }
        assert_eq!(list.to_string(), "person,traffic light,red,dog");
        assert_eq!(list.unknown(["person", "traffic light, red", "cat"]), ["dog"]);
        assert_eq!(list.unknown([]), ["person", "traffic light", "red", "dog"]);
        assert!(LabelList::parse(" , ").is_empty() && !LabelList::default().has("person"));
    }
}
