//! The one way from the command to people: lines on standard error, reports on standard output.
//!
//! File names, port names, labels and error texts come from outside and may hold control characters that a terminal obeys.
//! Everything printed here passes through [`Printable`], so no foreign text moves the cursor, changes colors or hides a line.
//! Lines are printed around the progress bar, never through it. Results (JSON lines, video) do not pass here.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Write};
use std::sync::{Arc, RwLock};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use tracing_subscriber::fmt::MakeWriter;

use crate::redaction::Secrets;

/// Standard error, shared by all threads of the command. A clone prints on the same terminal.
#[derive(Clone)]
pub(super) struct Terminal {
    bars: MultiProgress,
    /// Hidden in everything that is printed.
    secrets: Arc<RwLock<Secrets>>,
}

impl Terminal {
    /// Standard error, without a progress bar.
    pub(super) fn new() -> Self {
        Self { bars: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()), secrets: Arc::default() }
    }

    /// Hides these from now on.
    pub(super) fn hide(&self, secrets: Secrets) {
        self.secrets.write().unwrap().extend(secrets);
    }

    /// Whether anything is hidden.
    pub(super) fn hides(&self) -> bool {
        !self.secrets.read().unwrap().is_empty()
    }

    /// Prints a line, or several if `text` has line breaks. Errors of standard error are ignored: there is nowhere to report them.
    pub(super) fn print(&self, text: impl Display) {
        let text = text.to_string();
        let text = format!("{}\n", Printable(&self.secrets.read().unwrap().scrub(&text)));
        self.write(text.as_bytes());
    }

    /// Prints a warning.
    pub(super) fn warn(&self, text: impl Display) {
        self.print(format_args!("warning: {text}"));
    }

    /// Prints an error.
    pub(super) fn error(&self, text: impl Display) {
        self.print(format_args!("error: {text}"));
    }

    /// Shows a progress bar below all lines until it is finished.
    pub(super) fn add_bar(&self) -> ProgressBar {
        self.bars.add(ProgressBar::no_length())
    }

    fn write(&self, bytes: &[u8]) {
        self.bars.suspend(|| {
            let _unreportable = io::stderr().lock().write_all(bytes);
        });
    }
}

/// The log of `tracing`, which escapes control characters in messages itself and may use colors.
impl<'a> MakeWriter<'a> for Terminal {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LogLine(self)
    }
}

/// Writes one log event around the progress bar.
pub(super) struct LogLine<'a>(&'a Terminal);

impl Write for LogLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let secrets = self.0.secrets.read().unwrap();
        match secrets.is_empty() {
            true => self.0.write(bytes),
            false => self.0.write(secrets.scrub(&String::from_utf8_lossy(bytes)).as_bytes()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard output for a report that people read. Use it instead of `println!`.
pub(super) fn stdout() -> PrintableWriter<io::StdoutLock<'static>> {
    PrintableWriter(io::stdout().lock())
}

/// Writes text with its control characters escaped.
pub(super) struct PrintableWriter<W>(W);

impl<W: Write> Write for PrintableWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // `write!` hands over whole characters; anything else would be shown as replacement characters.
        write!(self.0, "{}", Printable(&String::from_utf8_lossy(bytes)))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Shows text with control characters escaped as in Rust, such as `\u{1b}`. Line breaks and tabs stay.
///
/// Characters that change the direction of text are escaped too: they can make a line look like another one.
pub(super) struct Printable<'a>(pub &'a str);

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\n' | '\t' => f.write_char(c)?,
                _ if is_obeyed(c) => write!(f, "{}", c.escape_default())?,
                _ => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// As [`Printable`], on one line: line breaks and tabs are escaped, too. For names and values inside a line.
pub(super) struct OneLine<'a>(pub &'a str);

impl Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_obeyed(c) { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
        }
        Ok(())
    }
}

/// Whether a terminal acts on this character instead of showing it.
fn is_obeyed(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_text_is_not() {
        for (text, printable, one_line) in [
            ("plain `text` with ümlauts and 車\n", "plain `text` with ümlauts and 車\n", "plain `text` with ümlauts and 車\\n"),
            ("a\x1b[31mred\x07", "a\\u{1b}[31mred\\u{7}", "a\\u{1b}[31mred\\u{7}"),
            ("over\rwritten\tx", "over\\rwritten\tx", "over\\rwritten\\tx"),
            (
                "c1 \u{9b}2J, del \u{7f}, rtl \u{202e}",
                "c1 \\u{9b}2J, del \\u{7f}, rtl \\u{202e}",
                "c1 \\u{9b}2J, del \\u{7f}, rtl \\u{202e}",
            ),
        ] {
            assert_eq!(Printable(text).to_string(), printable);
            assert_eq!(OneLine(text).to_string(), one_line);
            let mut written = Vec::new();
            PrintableWriter(&mut written).write_all(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), printable);
        }
    }
}
