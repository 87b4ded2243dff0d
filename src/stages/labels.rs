//! The names of classes.

use std::path::Path;
use std::sync::Arc;

use crate::runtime::{Error, ErrorKind, Result};

/// Class names by index; may be empty. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Labels(Arc<[Arc<str>]>);

impl Labels {
    /// One name per class.
    pub fn new<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        Self(names.into_iter().map(|name| Arc::from(name.as_ref())).collect())
    }

    /// One name per line; empty lines at the end do not count.
    ///
    /// # Errors
    /// `Io` if the file can't be read.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::new(
                ErrorKind::Io,
                format!("cannot read labels file `{}`: {error}; expected a text file with one label per line", path.display()),
            )
        })?;
        Ok(Self::new(text.trim_end().lines().map(str::trim)))
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name of a class.
    pub fn get(&self, class_id: u32) -> Option<&Arc<str>> {
        self.0.get(class_id as usize)
    }
}
