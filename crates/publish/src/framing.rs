//! What a file has around its messages, such as line ends, a header line, or the brackets of a JSON array.

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

    /// Whether messages can be appended to a file with earlier messages.
    pub fn can_append(&self) -> bool {
        self.end.is_empty()
    }
}

impl Default for Framing {
    fn default() -> Self {
        Self::LINES
    }
}
