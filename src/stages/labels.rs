//! The names of classes.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::runtime::{Error, ErrorKind, Result};

/// The most that a file of labels may have.
const MAX_FILE_BYTES: u64 = 1 << 24;

/// Class names by index; may be empty. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Labels(Arc<[Arc<str>]>);

impl Labels {
    /// One name per class.
    pub fn new<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        Self(names.into_iter().map(|name| Arc::from(name.as_ref())).collect())
    }

    /// The lines of a file, as [`Labels::of_lines`].
    ///
    /// # Errors
    /// `Io` if the file can't be read.
    pub fn read(path: &Path) -> Result<Self> {
        let refused = |why: &dyn fmt::Display| {
            let message = format!("cannot read labels file `{}`: {why}; expected a text file with one label per line", path.display());
            Error::new(ErrorKind::Io, message)
        };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(|error| refused(&error))?;
        // A device gives bytes without end.
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| refused(&error))?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(refused(&format_args!("it has more than {MAX_FILE_BYTES} bytes")));
        }
        Ok(Self::of_lines(&text))
    }

    /// One name per line; empty lines at the end do not count.
    pub fn of_lines(text: &str) -> Self {
        Self::new(text.trim_end().lines().map(str::trim))
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
