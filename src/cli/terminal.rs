//! Output for users: lines on standard error, and reports on standard output.
//!
//! File names, port names, labels and error texts may contain terminal control characters. All text is printed through [`Printable`], so
//! external text cannot move the cursor, change colors or hide a line. Lines are printed above the progress bar. This module does not write
//! results (JSON lines, video).

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Arc, RwLock};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use tracing_subscriber::fmt::MakeWriter;

use crate::redaction::Secrets;
pub(super) use crate::runtime::text::{OneLine, Printable, Quoted, is_obeyed};

/// Standard error, shared by all threads of the command. Clones share the terminal.
#[derive(Clone)]
pub(super) struct Terminal {
    bars: MultiProgress,
    /// Secrets that are removed from all text that is printed to standard error.
    secrets: Arc<RwLock<Secrets>>,
}

impl Terminal {
    /// Returns standard error, without a progress bar.
    pub(super) fn new() -> Self {
        Self { bars: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()), secrets: Arc::default() }
    }

    /// Removes these secrets from all text that is printed from now on.
    pub(super) fn hide(&self, secrets: Secrets) {
        self.secrets.write().unwrap().extend(secrets);
    }

    /// Whether there are secrets that must be removed.
    pub(super) fn hides(&self) -> bool {
        !self.secrets.read().unwrap().is_empty()
    }

    /// Returns a text without secrets.
    #[cfg(feature = "telemetry")]
    pub(super) fn scrub(&self, text: &str) -> String {
        self.secrets.read().unwrap().scrub(text).into_owned()
    }

    /// Prints one or more lines. Errors in writing to standard error are ignored, because they cannot be reported.
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

    /// Shows a progress bar below all lines, until the bar is finished.
    pub(super) fn add_bar(&self) -> ProgressBar {
        self.bars.add(ProgressBar::no_length())
    }

    fn write(&self, bytes: &[u8]) {
        self.bars.suspend(|| {
            let _unreportable = io::stderr().lock().write_all(bytes);
        });
    }
}

/// Writer for the `tracing` log, which may use colors.
impl<'a> MakeWriter<'a> for Terminal {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LogLine(self)
    }
}

/// Writes one log event above the progress bar.
pub(super) struct LogLine<'a>(&'a Terminal);

impl Write for LogLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // `tracing` escapes the start of control sequences in messages, but not all control characters.
        let text = without_commands(&String::from_utf8_lossy(bytes));
        let text = self.0.secrets.read().unwrap().scrub(&text).into_owned();
        self.0.write(text.as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Escapes control characters as [`Printable`] does, but keeps color sequences. A color sequence is `ESC [`, then digits and
/// semicolons, then `m`.
fn without_commands(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\u{1b}') {
        let (before, behind) = rest.split_at(at);
        safe.push_str(&Printable(before).to_string());
        let color = behind.strip_prefix("\u{1b}[").and_then(|inner| {
            let n_bytes = inner.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
            inner[n_bytes..].starts_with('m').then_some(2 + n_bytes + 1)
        });
        let n_bytes = color.unwrap_or(1);
        match color {
            Some(_) => safe.push_str(&behind[..n_bytes]),
            None => safe.push_str("\\u{1b}"),
        }
        rest = &behind[n_bytes..];
    }
    safe.push_str(&Printable(rest).to_string());
    safe
}

/// Returns standard output for reports. Use this function instead of `println!`.
pub(super) fn stdout() -> PrintableWriter<io::StdoutLock<'static>> {
    PrintableWriter(io::stdout().lock())
}

/// Prints rows in columns of equal width. Each row is one line.
#[cfg(feature = "serve")]
pub(super) fn columns<const N: usize>(out: &mut impl Write, rows: &[[String; N]]) -> anyhow::Result<()> {
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| OneLine(cell).to_string())).collect();
    let widths: [usize; N] = std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// Writes text with escaped control characters.
pub(super) struct PrintableWriter<W>(W);

impl<W: Write> Write for PrintableWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The conversion from bytes loses nothing, because `write!` passes complete characters. Incomplete characters would be
        // replaced.
        write!(self.0, "{}", Printable(&String::from_utf8_lossy(bytes)))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_keeps_colors_and_escapes_other_sequences() {
        assert_eq!(
            without_commands("\u{1b}[2m12:00\u{1b}[0m \u{1b}[33m WARN\u{1b}[0m x\n"),
            "\u{1b}[2m12:00\u{1b}[0m \u{1b}[33m WARN\u{1b}[0m x\n"
        );
        assert_eq!(without_commands("a\u{1b}[2Jb\u{1b}]0;x\u{7}\r\u{1b}"), "a\\u{1b}[2Jb\\u{1b}]0;x\\u{7}\\r\\u{1b}");
    }

    #[test]
    fn only_control_characters_are_escaped() {
        for (text, printable) in [
            ("plain `text` with ümlauts and 車\n", "plain `text` with ümlauts and 車\n"),
            ("a\x1b[31mred\x07\rc1 \u{9b}2J", "a\\u{1b}[31mred\\u{7}\\rc1 \\u{9b}2J"),
        ] {
            let mut written = Vec::new();
            PrintableWriter(&mut written).write_all(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(written).unwrap(), printable);
        }
    }
}
