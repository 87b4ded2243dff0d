//! Output for users: lines on standard error, and reports on standard output.
//!
//! File names, port names, labels and error texts may contain terminal control characters. All text is printed through [`Printable`], so
//! external text cannot move the cursor, change colors or hide a line. Lines are printed above the progress bar. This module does not write
//! results (JSON lines, video).

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use tracing_subscriber::fmt::MakeWriter;

use crate::redaction::Secrets;
pub(super) use crate::runtime::text::{OneLine, Printable, Quoted, is_obeyed};

/// Number of bytes that may wait for standard error. Further lines are dropped while nothing reads it.
const MAX_WAITING: usize = 1 << 20;
/// How long a thread of the log waits for space. After that, lines are dropped until half of the space is free.
const MAX_LOG_WAIT: Duration = Duration::from_millis(100);
/// How long a message waits until it was written, if nothing reads standard error.
const MAX_PRINT_WAIT: Duration = Duration::from_secs(1);
/// How long the end of the process waits for each write.
const MAX_END_WAIT: Duration = Duration::from_secs(3);

/// Standard error, shared by all threads of the command. Clones share the terminal.
///
/// A thread of its own writes. So a pipe that nothing reads stops neither a stream nor the threads of the command.
#[derive(Clone)]
pub(super) struct Terminal {
    bars: MultiProgress,
    /// Secrets that are removed from all text that is printed to standard error.
    secrets: Arc<RwLock<Secrets>>,
    queue: Arc<Queue>,
}

/// Text that waits for the thread that writes.
#[derive(Default)]
struct Queue {
    /// Whether the thread that writes could be started; empty before the first text.
    has_writer: OnceLock<bool>,
    state: Mutex<Waiting>,
    /// Notified at each change.
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    /// Bytes in `lines`, and in the line that is being written.
    n_bytes: usize,
    n_dropped: u64,
    /// Numbers of lines that were added and that were written.
    n_added: u64,
    n_written: u64,
    /// Whether nothing has read standard error for too long.
    is_stuck: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is_so`, as long as each write ends within `limit`. Returns whether it is so.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, Waiting>,
        limit: Duration,
        is_so: impl Fn(&Waiting) -> bool,
    ) -> (MutexGuard<'a, Waiting>, bool) {
        while !is_so(&state) {
            let n_written = state.n_written;
            let waits = |state: &mut Waiting| state.n_written == n_written && !is_so(state);
            state = self.changed.wait_timeout_while(state, limit, waits).unwrap_or_else(PoisonError::into_inner).0;
            if state.n_written == n_written && !is_so(&state) {
                state.is_stuck = true;
                return (state, false);
            }
        }
        (state, true)
    }

    /// Adds a text, or drops it if nothing reads standard error. Returns the number of the write that ends with this text.
    fn add(&self, bytes: &[u8]) -> Option<u64> {
        let mut state = self.lock();
        let has_space = |state: &Waiting| state.n_bytes < MAX_WAITING;
        if !has_space(&state) && !state.is_stuck {
            state = self.wait(state, MAX_LOG_WAIT, has_space).0;
        }
        if state.is_stuck && !has_space(&state) {
            state.n_dropped += 1;
            return None;
        }
        state.push(bytes.to_owned());
        self.changed.notify_all();
        Some(state.n_added)
    }

    /// Function of the thread that writes.
    fn write_all(&self, write: impl Fn(&[u8])) {
        let mut state = self.lock();
        loop {
            let Some(line) = state.lines.pop_front() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            write(&line);
            state = self.lock();
            state.n_written += 1;
            state.n_bytes -= line.len();
            if state.is_stuck && state.n_bytes <= MAX_WAITING / 2 {
                state.is_stuck = false;
                let n_dropped = std::mem::take(&mut state.n_dropped);
                if n_dropped > 0 {
                    let text = format!("warning: {n_dropped} lines of the log were dropped, because standard error was not read in time\n");
                    state.push(text.into_bytes());
                }
            }
            self.changed.notify_all();
        }
    }
}

impl Waiting {
    fn push(&mut self, line: Vec<u8>) {
        self.n_bytes += line.len();
        self.n_added += 1;
        self.lines.push_back(line);
    }
}

impl Terminal {
    /// Returns standard error, without a progress bar.
    pub(super) fn new() -> Self {
        Self { bars: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()), secrets: Arc::default(), queue: Arc::default() }
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

    /// Waits until everything was written, as long as standard error is read.
    pub(super) fn flush(&self) {
        let state = self.queue.lock();
        let _is_written = self.queue.wait(state, MAX_END_WAIT, |state| state.n_bytes == 0);
    }

    /// Writes a text, and waits until it was written, unless nothing reads standard error.
    fn write(&self, bytes: &[u8]) {
        let Some(number) = self.send(bytes) else { return };
        let state = self.queue.lock();
        if !state.is_stuck {
            let _is_written = self.queue.wait(state, MAX_PRINT_WAIT, |state| state.n_written >= number);
        }
    }

    /// Passes a text to the thread that writes. Returns the number of the text, or `None` if it was dropped, or was written by this thread.
    fn send(&self, bytes: &[u8]) -> Option<u64> {
        let has_writer = self.queue.has_writer.get_or_init(|| {
            let (queue, bars) = (self.queue.clone(), self.bars.clone());
            let write = move |bytes: &[u8]| {
                let write = || {
                    let _unreportable = io::stderr().lock().write_all(bytes);
                };
                // Bars that are not shown must not be locked while a write blocks.
                if bars.is_hidden() { write() } else { bars.suspend(write) }
            };
            std::thread::Builder::new().name("roiflow-stderr".to_owned()).spawn(move || queue.write_all(write)).is_ok()
        });
        if *has_writer {
            return self.queue.add(bytes);
        }
        let _unreportable = io::stderr().lock().write_all(bytes);
        None
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
        // The log does not wait until a line was written.
        let _number = self.0.send(text.as_bytes());
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

    type Lines = Arc<Mutex<Vec<String>>>;

    /// A queue whose writes wait until the test allows them.
    fn gated() -> (Arc<Queue>, Arc<Mutex<bool>>, Lines) {
        let (queue, closed, written) = (Arc::new(Queue::default()), Arc::new(Mutex::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (of_thread, gate, to) = (queue.clone(), closed.clone(), written.clone());
        std::thread::spawn(move || {
            of_thread.write_all(|line| {
                let _open = gate.lock().unwrap();
                to.lock().unwrap().push(String::from_utf8_lossy(line).into_owned());
            });
        });
        (queue, closed, written)
    }

    #[test]
    fn log_that_is_not_read_blocks_nobody_and_counts_what_it_drops() {
        let (queue, gate, written) = gated();
        let closed = gate.lock().unwrap();
        let line = "x".repeat(1023) + "\n";
        // More than fits. Only the first line beyond the limit waits.
        for _ in 0..3 * MAX_WAITING / line.len() {
            queue.add(line.as_bytes());
        }
        let n_dropped = queue.lock().n_dropped;
        assert!(queue.lock().n_bytes <= MAX_WAITING + line.len() && n_dropped > 1000, "{n_dropped}");
        drop(closed);
        assert!(queue.wait(queue.lock(), Duration::from_secs(60), |state| state.n_bytes == 0).1);
        assert!(queue.add(b"last\n").is_some());
        assert!(queue.wait(queue.lock(), Duration::from_secs(60), |state| state.n_bytes == 0).1);
        let written = written.lock().unwrap();
        let notice = format!("warning: {n_dropped} lines of the log were dropped");
        assert!(written.iter().filter(|line| line.starts_with(&notice)).count() == 1, "{:?}", written.last());
        assert_eq!(written.last().unwrap(), "last\n");
        assert_eq!(written.iter().filter(|text| **text == line).count() as u64 + n_dropped, (3 * MAX_WAITING / line.len()) as u64);
    }

    #[test]
    fn lines_keep_their_order() {
        let (queue, _gate, written) = gated();
        let numbers: Vec<u64> = (0..1000).map(|n| queue.add(format!("{n}").as_bytes()).unwrap()).collect();
        assert!(queue.wait(queue.lock(), Duration::from_secs(60), |state| state.n_written >= *numbers.last().unwrap()).1);
        assert!(written.lock().unwrap().iter().enumerate().all(|(n, line)| *line == n.to_string()));
    }

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
