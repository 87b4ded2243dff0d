//! Where lines of results go: a bounded buffer in front of whatever takes bytes.
//!
//! Owns the account of what was written and what was lost. A destination is anything that implements [`Write`]. Knows no GStreamer
//! and no JSON.

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Lines are handed on when this much has gathered, also before [`Sink::flush`].
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// What became of the lines so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Lines that the destination took whole.
    pub lines: u64,
    /// Bytes that it took.
    pub bytes: u64,
    /// Lines that it did not take.
    pub errors: u64,
}

/// Lines on their way to a destination.
pub struct Sink {
    destination: Box<dyn Write + Send>,
    /// Whole lines only.
    pending: Vec<u8>,
    /// The destination ends in the middle of a line that failed.
    is_torn: bool,
    counts: Counts,
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("pending_bytes", &self.pending.len()).field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Sink {
    /// A sink into `destination`, which needs no buffer of its own.
    pub fn new(destination: impl Write + Send + 'static) -> Self {
        Self { destination: Box::new(destination), pending: Vec::new(), is_torn: false, counts: Counts::default() }
    }

    /// Makes sure that the destination is open: an input without frames has an empty file of results.
    ///
    /// # Errors
    /// If it can't be opened.
    pub fn open(&mut self) -> io::Result<()> {
        self.destination.flush()
    }

    /// Takes a line, end included. It is written later, with others, unless many are waiting.
    ///
    /// # Errors
    /// What [`Sink::flush`] says, if it was time to write.
    pub fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        debug_assert!(line.ends_with(b"\n"));
        self.pending.extend_from_slice(line);
        if self.pending.len() >= PENDING_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    /// Hands all lines on.
    ///
    /// # Errors
    /// The first of the destination's. The lines that were not written are counted and given up, so that memory stays bounded;
    /// the next ones are tried again.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut n_written = 0;
        let outcome = self.write_pending(&mut n_written).and_then(|()| self.destination.flush());
        let n_lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let (written, lost) = self.pending.split_at(n_written);
        self.counts.bytes += n_written as u64;
        self.counts.lines += n_lines(written);
        self.counts.errors += n_lines(lost);
        if !written.is_empty() {
            self.is_torn = !written.ends_with(b"\n");
        }
        self.pending.clear();
        outcome
    }

    /// The account so far; lines that are still waiting are in none of its numbers.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn write_pending(&mut self, n_written: &mut usize) -> io::Result<()> {
        if self.is_torn {
            // What follows a torn line begins on a line of its own.
            self.destination.write_all(b"\n")?;
            self.is_torn = false;
        }
        while *n_written < self.pending.len() {
            match self.destination.write(&self.pending[*n_written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => *n_written += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Takes as many bytes as it has room for, and fails then until there is more.
    #[derive(Clone, Default)]
    struct Narrow(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut guard = self.0.lock().unwrap();
            let (room, taken) = &mut *guard;
            if *room == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            let n = bytes.len().min(*room);
            *room -= n;
            taken.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lost_lines_are_counted_and_later_ones_begin_on_a_new_line() {
        let narrow = Narrow::default();
        let mut sink = Sink::new(narrow.clone());
        let lines = |sink: &mut Sink, room: usize| {
            narrow.0.lock().unwrap().0 = room;
            ["one\n", "two\n", "three\n"].iter().for_each(|line| sink.write_line(line.as_bytes()).unwrap());
            sink.flush().is_ok()
        };
        assert!(!lines(&mut sink, 6), "the second line was torn");
        assert_eq!(sink.counts(), Counts { lines: 1, bytes: 6, errors: 2 });
        assert!(!lines(&mut sink, 0));
        assert_eq!(sink.counts(), Counts { lines: 1, bytes: 6, errors: 5 });
        assert!(lines(&mut sink, 100));
        assert_eq!(sink.counts(), Counts { lines: 4, bytes: 20, errors: 5 });
        assert_eq!(narrow.0.lock().unwrap().1, b"one\ntw\none\ntwo\nthree\n");
    }

    #[test]
    fn what_waits_is_bounded() {
        let narrow = Narrow::default();
        let mut sink = Sink::new(narrow.clone());
        let line = [[b'x'; 999].as_slice(), b"\n"].concat();
        let n_failed = (0..1000).filter(|_| sink.write_line(&line).is_err()).count();
        assert_eq!(n_failed, 1000 / 66, "a flush whenever 64 KiB are full");
        assert!(sink.pending.capacity() <= 2 * PENDING_BYTES_MAX + line.len());
    }
}
