//! Messages as lines of a file, FIFO, device or standard output.
//!
//! Lines are gathered and written together. A line that is written in part when the destination fails is completed by the next write, of
//! this writer or of another one to the same file, so that lines are neither torn nor mixed.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::output_file::LineEnd;
use super::{Deadline, Destination, Failure, IfExists, Message, OutputFile};

/// Gathered lines are written at this size, also before a flush.
const MAX_PENDING_BYTES: usize = 64 * 1024;
/// How often a writer tries again while another one writes to the same file.
const TURN_TICK: Duration = Duration::from_millis(2);

/// A destination that writes each message as a line. The file is opened, and one that exists is replaced, when it is connected.
#[derive(Debug)]
pub struct LineFile {
    path: PathBuf,
    if_exists: IfExists,
    /// No other writer of the process has it.
    id: u64,
    /// Exists once it is connected.
    file: Option<OutputFile>,
    deadline: Deadline,
    /// Whole lines that are not written.
    pending: Vec<u8>,
    /// Where each pending line ends.
    ends: VecDeque<usize>,
    n_acknowledged: u64,
    /// One more than the acknowledged ones if a part of the next line is written. The rest of that is in [`LineEnd`].
    n_committed: u64,
}

impl LineFile {
    /// Opens nothing; `-` and `/dev/stdout` are standard output.
    pub fn new(path: impl Into<PathBuf>, if_exists: IfExists) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            path: path.into(),
            if_exists,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            file: None,
            deadline: Deadline::default(),
            pending: Vec::new(),
            ends: VecDeque::new(),
            n_acknowledged: 0,
            n_committed: 0,
        }
    }

    /// Writes what is pending. What was not written is forgotten, but for the end of a line that was begun.
    fn write_pending(&mut self) -> io::Result<()> {
        let file = self.file.as_mut().ok_or(ErrorKind::NotConnected)?;
        let shared = file.line_end()?;
        let mut line_end = lock(&shared, &self.deadline)?;
        if line_end.writer != self.id || line_end.rest.is_empty() {
            // Another stream has completed the line that this one began.
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
                // The reader of the begin is gone. The next one gets whole lines.
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
        let file = self.file.get_or_insert_with(|| OutputFile::new(&self.path, self.if_exists, deadline.clone()));
        file.flush().map_err(|error| match error.kind() {
            // A FIFO may get its reader later.
            ErrorKind::TimedOut => Failure::retryable(error),
            _ => Failure::fatal(error),
        })
    }

    fn publish(&mut self, message: &Message) -> Result<(), Failure> {
        self.pending.extend_from_slice(&message.payload);
        self.pending.push(b'\n');
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
}

/// Waits for other writers of the same file.
fn lock<'a>(shared: &'a Mutex<LineEnd>, deadline: &Deadline) -> io::Result<MutexGuard<'a, LineEnd>> {
    loop {
        match shared.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => deadline.sleep(TURN_TICK)?,
        }
    }
}

/// Writes all bytes, or as many as are accepted.
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

    /// A FIFO, a reader that is open and does not block, and how many bytes the FIFO holds.
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
            // Ends where the FIFO is empty.
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
        let message = Message { payload: text.into(), stream: None };
        // A flush tells.
        let _flushed_if_large = file.publish(&message);
    }

    fn connected(path: &std::path::Path, deadline: &Deadline) -> LineFile {
        let mut file = LineFile::new(path, IfExists::Replace);
        file.connect(deadline).unwrap();
        file
    }

    #[test]
    fn a_line_that_was_begun_is_completed_and_acknowledged_later() {
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
    fn another_stream_completes_the_line_that_one_began() {
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
    fn a_line_whose_last_writer_is_gone_is_forgotten() {
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
    fn a_new_reader_gets_whole_lines() {
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
    fn a_file_that_cannot_be_opened_is_a_fatal_failure() {
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
