//! The text that a file contains around its messages: line ends, a header line, or the brackets of a JSON array.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

/// Text around the messages of a file. The default is lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framing {
    /// Before the first message of a new file.
    pub begin: &'static str,
    /// Before each further message.
    pub between: &'static str,
    /// After each message.
    pub after: &'static str,
    /// At the end of the file.
    pub end: &'static str,
}

impl Framing {
    /// Each message is a line.
    pub const LINES: Self = Self { begin: "", between: "", after: "\n", end: "" };
    /// Messages are entries of a JSON array.
    pub const JSON_ARRAY: Self = Self { begin: "[\n", between: ",\n", after: "", end: "\n]\n" };

    /// Each message is one line or several lines, after a header line.
    pub const fn with_header(header: &'static str) -> Self {
        Self { begin: header, ..Self::LINES }
    }

    /// Whether a file has no text after its last message.
    pub fn is_open_ended(&self) -> bool {
        self.end.is_empty()
    }

    /// Checks that messages can be appended to a file. Changes nothing. A file that does not exist can be appended to.
    ///
    /// # Errors
    /// Returns `InvalidData` if the file does not end as a complete file of this framing, for example because its writer was killed.
    pub fn check_append(&self, path: &Path) -> io::Result<()> {
        self.message_end(path).map(drop)
    }

    /// Removes the text after the last message of a file, so that messages can be appended. A file without messages becomes empty.
    ///
    /// # Errors
    /// Returns the errors of [`check_append`](Self::check_append), and an error if the file cannot be written.
    pub(crate) fn reopen(&self, path: &Path) -> io::Result<()> {
        match self.message_end(path)? {
            Some(end) => OpenOptions::new().write(true).open(path)?.set_len(end),
            None => Ok(()),
        }
    }

    /// Returns the position after the last message of a file, 0 if the file has no messages. `None` if nothing has to be removed from the
    /// file.
    fn message_end(&self, path: &Path) -> io::Result<Option<u64>> {
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) if self.is_open_ended() || !metadata.is_file() || metadata.len() == 0 => return Ok(None),
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let (n_begin, n_end) = (self.begin.len() as u64, self.end.len() as u64);
        let incomplete = || io::Error::new(ErrorKind::InvalidData, "the file is not a complete array that roiflow has written");
        let end = metadata.len().checked_sub(n_end).filter(|end| *end >= n_begin).ok_or_else(incomplete)?;
        let mut file = std::fs::File::open(path)?;
        let (mut begin, mut last) = (vec![0; self.begin.len()], vec![0; self.end.len()]);
        file.read_exact(&mut begin)?;
        file.seek(SeekFrom::Start(end))?;
        file.read_exact(&mut last)?;
        if begin != self.begin.as_bytes() || last != self.end.as_bytes() {
            return Err(incomplete());
        }
        Ok(Some(if end == n_begin { 0 } else { end }))
    }
}

impl Default for Framing {
    fn default() -> Self {
        Self::LINES
    }
}
