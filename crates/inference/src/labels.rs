//! Labels: names of classes.

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
