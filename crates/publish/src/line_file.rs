//! Writes messages as lines to a file, FIFO, device or standard output. A [`Framing`] adds a header, or writes a JSON array.
//!
//! Lines are buffered and written together. If the destination fails within a line, the next write to the same file completes the line,
//! even if another writer makes this write. So lines are never torn or mixed.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::output_file::LineEnd;
use super::{Deadline, Destination, Failure, Framing, IfExists, Message, OutputFile, is_stdout};

/// Buffered lines are written at this size, even without a flush.
const MAX_PENDING_BYTES: usize = 64 * 1024;
/// Interval of attempts to get the lock while another writer writes to the same file.
const TURN_TICK: Duration = Duration::from_millis(2);

/// A destination that writes each message as a line. Connecting opens the file and handles an existing file as [`IfExists`] specifies.
#[derive(Debug)]
pub struct LineFile {
    path: PathBuf,
    if_exists: IfExists,
    framing: Framing,
    /// Whether the file was empty when it was opened. `None` before connecting.
    is_new: Option<bool>,
    /// ID of this writer, unique in the process.
    id: u64,
    /// `None` before connecting.
    file: Option<OutputFile>,
    deadline: Deadline,
    /// Whole lines that are not written yet.
    pending: Vec<u8>,
    /// End positions of the pending lines.
    ends: VecDeque<usize>,
    n_acknowledged: u64,
    /// Committed lines: the acknowledged lines, plus one if a part of the next line is written. [`LineEnd`] holds the unwritten rest of
    /// that line.
    n_committed: u64,
}

impl LineFile {
    /// Creates the destination without opening it. `-` and `/dev/stdout` are standard output.
    pub fn new(path: impl Into<PathBuf>, if_exists: IfExists) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            path: path.into(),
            if_exists,
            framing: Framing::LINES,
            is_new: None,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            file: None,
            deadline: Deadline::default(),
            pending: Vec::new(),
            ends: VecDeque::new(),
            n_acknowledged: 0,
            n_committed: 0,
        }
    }

    /// Returns a destination with other text around the messages.
    #[must_use]
    pub fn with_framing(mut self, framing: Framing) -> Self {
        self.framing = framing;
        self
    }

    /// Whether the next message is the first of a new file.
    fn is_at_begin(&self) -> bool {
        self.is_new == Some(true) && self.n_committed == 0 && self.ends.is_empty()
    }

    /// Writes the pending lines. Discards them after a failure, except for the rest of a line that is partly written.
    fn write_pending(&mut self) -> io::Result<()> {
        let file = self.file.as_mut().ok_or(ErrorKind::NotConnected)?;
        let shared = file.line_end()?;
        let mut line_end = lock(&shared, &self.deadline)?;
        if line_end.writer != self.id || line_end.rest.is_empty() {
            // Another writer has completed the line.
            self.n_acknowledged = self.n_committed;
        }
        let (n_written, written) = write(file, &line_end.rest);
        line_end.rest.drain(..n_written);
        written?;
        self.n_acknowledged = self.n_committed;

        let (n_written, written) = write(file, &self.pending);
        let n_lines = self.ends.iter().take_while(|end| **end <= n_written).count();
        self.n_acknowledged += n_lines as u64;
        self.n_committed = self.n_acknowledged;
        let is_between_lines = n_written == 0 || n_lines > 0 && self.ends[n_lines - 1] == n_written;
        if !is_between_lines {
            line_end.writer = self.id;
            if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
                // The reader of the first part has closed the FIFO. The next reader gets only whole lines.
                (line_end.rest, line_end.writer) = (b"\n".to_vec(), 0);
            } else {
                line_end.rest = self.pending[n_written..self.ends[n_lines]].to_vec();
                self.n_committed += 1;
            }
        }
        written
    }
}

impl Destination for LineFile {
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure> {
        self.deadline = deadline.clone();
        if self.file.is_none() && self.if_exists == IfExists::Append && !is_stdout(&self.path) {
            self.framing.reopen(&self.path).map_err(Failure::fatal)?;
        }
        let ends_lines = self.framing.is_open_ended();
        let new = || OutputFile::new(&self.path, self.if_exists, deadline.clone()).with_line_ends(ends_lines);
        let file = self.file.get_or_insert_with(new);
        file.flush().map_err(|error| match error.kind() {
            // This failure is temporary, because a FIFO may get a reader later.
            ErrorKind::TimedOut => Failure::retryable(error),
            _ => Failure::fatal(error),
        })?;
        self.is_new.get_or_insert_with(|| is_stdout(&self.path) || std::fs::metadata(&self.path).is_ok_and(|metadata| metadata.len() == 0));
        Ok(())
    }

    fn publish(&mut self, message: &Message) -> Result<(), Failure> {
        let before = if self.is_at_begin() { self.framing.begin } else { self.framing.between };
        self.pending.extend_from_slice(before.as_bytes());
        self.pending.extend_from_slice(&message.payload);
        self.pending.extend_from_slice(self.framing.after.as_bytes());
        self.ends.push_back(self.pending.len());
        if self.pending.len() >= MAX_PENDING_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let written = self.write_pending();
        self.pending.clear();
        self.ends.clear();
        written.map_err(Failure::retryable)
    }

    fn acknowledged(&self) -> u64 {
        self.n_acknowledged
    }

    fn committed(&self) -> u64 {
        self.n_committed
    }

    fn close(&mut self) -> Result<(), Failure> {
        let begin = if self.is_at_begin() { self.framing.begin } else { "" };
        let last = [begin, self.framing.end].concat();
        // A file that was never opened stays as it is.
        if let (Some(file), Some(_), false) = (self.file.as_mut(), self.is_new, last.is_empty()) {
            write(file, last.as_bytes()).1.map_err(Failure::retryable)?;
        }
        Ok(())
    }
}

/// Waits until no other writer of the same file writes, and returns the lock.
fn lock<'a>(shared: &'a Mutex<LineEnd>, deadline: &Deadline) -> io::Result<MutexGuard<'a, LineEnd>> {
    loop {
        match shared.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => deadline.sleep(TURN_TICK)?,
        }
    }
}

/// Writes all bytes, or as many as the file accepts.
fn write(file: &mut OutputFile, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut n_written = 0;
    while n_written < bytes.len() {
        match file.write(&bytes[n_written..]) {
            Ok(0) => return (n_written, Err(ErrorKind::WriteZero.into())),
            Ok(n) => n_written += n,
            Err(error) => return (n_written, Err(error)),
        }
    }
    (n_written, Ok(()))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    use std::time::Instant;

    use super::*;

    /// A FIFO with an open non-blocking reader, and the capacity of the FIFO.
    struct Fifo {
        path: PathBuf,
        reader: std::fs::File,
        n_bytes: usize,
    }

    impl Fifo {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("roiflow-lines-{}-{name}", std::process::id()));
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
            let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
            let open = || OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap();
            let reader = open();
            let mut writer = OpenOptions::new().write(true).custom_flags(flags).open(&path).unwrap();
            let n_bytes = writer.write(&[0; 1 << 20]).unwrap();
            drop((writer, reader));
            let reader = open();
            Self { path, reader, n_bytes }
        }

        fn read(&mut self) -> String {
            let mut bytes = Vec::new();
            // Stops when the FIFO is empty.
            let _would_block = self.reader.read_to_end(&mut bytes);
            String::from_utf8(bytes).unwrap()
        }
    }

    impl Drop for Fifo {
        fn drop(&mut self) {
            let _removed = std::fs::remove_file(&self.path);
        }
    }

    fn publish(file: &mut LineFile, text: &str) {
        let message = Message { payload: text.into(), ..Message::default() };
        // The next flush reports the error.
        let _flushed_if_large = file.publish(&message);
    }

    fn connected(path: &std::path::Path, deadline: &Deadline) -> LineFile {
        let mut file = LineFile::new(path, IfExists::Replace);
        file.connect(deadline).unwrap();
        file
    }

    #[test]
    fn partial_line_is_completed_and_acknowledged_later() {
        let mut fifo = Fifo::new("begun");
        let deadline = Deadline::default();
        let mut file = connected(&fifo.path, &deadline);
        deadline.set(Instant::now());
        let (first, long) = ("x".repeat(fifo.n_bytes - 10), "y".repeat(50));
        [&*first, &long, "forgotten"].iter().for_each(|text| publish(&mut file, text));
        let failure = file.flush().unwrap_err();
        assert!(failure.error().kind() == ErrorKind::TimedOut && !failure.is_fatal());
        assert_eq!((file.acknowledged(), file.committed()), (1, 2));
        let mut seen = fifo.read();
        publish(&mut file, "last");
        file.flush().unwrap();
        assert_eq!((file.acknowledged(), file.committed()), (3, 3));
        seen += &fifo.read();
        assert_eq!(seen.lines().collect::<Vec<_>>(), [&*first, &long, "last"]);
    }

    #[test]
    fn another_stream_completes_a_partial_line() {
        let mut fifo = Fifo::new("another");
        let deadline = Deadline::default();
        let (mut one, mut other) = (connected(&fifo.path, &deadline), connected(&fifo.path, &deadline));
        deadline.set(Instant::now());
        let long = "x".repeat(fifo.n_bytes + 10);
        publish(&mut one, &long);
        assert!(one.flush().is_err());
        assert_eq!((one.acknowledged(), one.committed()), (0, 1));
        let mut seen = fifo.read();
        publish(&mut other, "other");
        other.flush().unwrap();
        publish(&mut one, "one");
        one.flush().unwrap();
        seen += &fifo.read();
        assert_eq!(seen.lines().collect::<Vec<_>>(), [&*long, "other", "one"]);
        assert_eq!((one.acknowledged(), other.acknowledged()), (2, 1));
    }

    #[test]
    fn partial_line_is_discarded_after_its_last_writer() {
        let mut fifo = Fifo::new("gone");
        let deadline = Deadline::default();
        let mut file = connected(&fifo.path, &deadline);
        deadline.set(Instant::now());
        let long = "x".repeat(fifo.n_bytes + 10);
        publish(&mut file, &long);
        assert!(file.flush().is_err());
        drop(file);
        let _seen = fifo.read();
        let mut file = connected(&fifo.path, &deadline);
        publish(&mut file, "line");
        file.flush().unwrap();
        assert_eq!(fifo.read(), "line\n");
    }

    #[test]
    fn new_reader_gets_whole_lines() {
        let mut fifo = Fifo::new("reader");
        let deadline = Deadline::default();
        let mut file = connected(&fifo.path, &deadline);
        fifo.reader = OpenOptions::new().read(true).open("/dev/null").unwrap();
        publish(&mut file, "nobody reads this");
        assert_eq!(file.flush().unwrap_err().error().kind(), ErrorKind::BrokenPipe);
        fifo.reader = OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(&fifo.path).unwrap();
        publish(&mut file, "line");
        file.flush().unwrap();
        assert_eq!((fifo.read().trim(), file.acknowledged(), file.committed()), ("line", 1, 1));
    }

    #[test]
    fn complete_array_is_continued() {
        let path = std::env::temp_dir().join(format!("roiflow-lines-{}-array", std::process::id()));
        let _removed = std::fs::remove_file(&path);
        let write = |texts: &[&str]| {
            let mut file = LineFile::new(&path, IfExists::Append).with_framing(Framing::JSON_ARRAY);
            file.connect(&Deadline::default())?;
            texts.iter().for_each(|text| publish(&mut file, text));
            file.flush()?;
            file.close()
        };
        for (texts, expected) in [
            (&[][..], "[\n\n]\n"),
            (&["1"][..], "[\n1\n]\n"),
            (&["2", "3"][..], "[\n1,\n2,\n3\n]\n"),
            (&[][..], "[\n1,\n2,\n3\n]\n"),
            (&["4"][..], "[\n1,\n2,\n3,\n4\n]\n"),
        ] {
            write(texts).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        }
        for other in ["[\n1,\n2", "[]", "{}\n", "x\n1\n]\n"] {
            std::fs::write(&path, other).unwrap();
            let failure = write(&["5"]).unwrap_err();
            assert!(failure.is_fatal() && failure.error().kind() == ErrorKind::InvalidData, "{other}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), other, "the file is unchanged");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn unopenable_file_is_a_fatal_failure() {
        let mut file = LineFile::new("/nowhere/at/all", IfExists::Replace);
        assert!(file.connect(&Deadline::default()).unwrap_err().is_fatal());
        let fifo = Fifo::new("unread");
        std::fs::remove_file(&fifo.path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &fifo.path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let deadline = Deadline::default();
        deadline.set(Instant::now());
        let failure = LineFile::new(&fifo.path, IfExists::Replace).connect(&deadline).unwrap_err();
        assert!(failure.error().kind() == ErrorKind::TimedOut && !failure.is_fatal(), "a reader may come");
    }
}
