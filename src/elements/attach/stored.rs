//! Reads stored results line by line, and finds the line of a frame. Uses no GStreamer.
//!
//! The lines of a stream are in the order of its frames. So the reader needs to hold only the next lines. If the frames go back, for
//! example because the video repeats, the file is read again from its begin.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::Match;
use crate::frame::FrameResults;
use crate::frame::json::{self, StoredFrame};

/// Longest line that is read, in bytes.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Counters since the reader was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) lines: u64,
    pub(super) matched: u64,
    /// Lines without a frame.
    pub(super) unmatched: u64,
    pub(super) errors: u64,
}

/// A line that is not matched yet.
#[derive(Debug)]
struct Pending {
    key: u64,
    results: FrameResults,
}

/// Reads a file of stored results.
#[derive(Debug)]
pub(super) struct Stored {
    path: PathBuf,
    by: Match,
    /// Largest difference of a time stamp in nanoseconds.
    tolerance: u64,
    /// Name of the stream whose lines are read; `None`: all lines.
    stream: Option<String>,
    file: BufReader<File>,
    line: Vec<u8>,
    line_number: u64,
    pending: VecDeque<Pending>,
    last_key: Option<u64>,
    pub(super) counts: Counts,
    /// The first error since the last call of `take_error`.
    error: Option<String>,
}

impl Stored {
    /// Opens a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub(super) fn open(path: &Path, by: Match, tolerance: u64, stream: Option<String>) -> Result<Self, String> {
        let file = open(path)?;
        let tolerance = if by == Match::Frame { 0 } else { tolerance };
        Ok(Self {
            path: path.to_owned(),
            by,
            tolerance,
            stream,
            file,
            line: Vec::new(),
            line_number: 0,
            pending: VecDeque::new(),
            last_key: None,
            counts: Counts::default(),
            error: None,
        })
    }

    /// Whether frames are found by their number.
    pub(super) fn is_by_frame(&self) -> bool {
        self.by == Match::Frame
    }

    /// Returns the results of the frame with this time in nanoseconds, or this number. Each line belongs to one frame at most.
    pub(super) fn find(&mut self, key: u64) -> Option<FrameResults> {
        if self.last_key.is_some_and(|last| key < last) {
            self.rewind();
        }
        self.last_key = Some(key);
        loop {
            // Of two lines within the tolerance, the nearest one is taken.
            while self.pending.len() < 2 {
                match self.next() {
                    Some(line) => self.pending.push_back(line),
                    None => break,
                }
            }
            let first = self.pending.front()?;
            let is_next_nearer = self.pending.get(1).is_some_and(|second| second.key.abs_diff(key) < first.key.abs_diff(key));
            if first.key.saturating_add(self.tolerance) < key || is_next_nearer {
                self.counts.unmatched += 1;
                self.pending.pop_front();
                continue;
            }
            if first.key > key.saturating_add(self.tolerance) {
                return None;
            }
            self.counts.matched += 1;
            return self.pending.pop_front().map(|line| line.results);
        }
    }

    /// Forgets the position in the stream, so that the next frame may have any time.
    pub(super) fn rewind(&mut self) {
        match open(&self.path) {
            Ok(file) => (self.file, self.line_number) = (file, 0),
            Err(error) => self.report(error),
        }
        self.pending.clear();
        self.last_key = None;
    }

    /// The first error since the last call.
    pub(super) fn take_error(&mut self) -> Option<String> {
        self.error.take()
    }

    fn report(&mut self, error: String) {
        self.counts.errors += 1;
        self.error.get_or_insert(error);
    }

    /// Reads up to the next line with the results of a frame.
    fn next(&mut self) -> Option<Pending> {
        loop {
            self.line.clear();
            let read = self.file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut self.line);
            self.line_number += 1;
            let place =
                |error: &dyn std::fmt::Display| format!("reading `{}` failed: line {}: {error}", self.path.display(), self.line_number);
            match read {
                Ok(0) => return None,
                Ok(n_bytes) if n_bytes as u64 == MAX_LINE_BYTES && !self.line.ends_with(b"\n") => {
                    let error = place(&format!("expected at most {} MiB. Set a file with one frame in each line", MAX_LINE_BYTES >> 20));
                    self.report(error);
                    // The rest of the file has no known begin of a line.
                    let _ = self.file.by_ref().read_until(b'\n', &mut Vec::new());
                    return None;
                }
                Ok(_) => {}
                Err(error) => {
                    let error = place(&error);
                    self.report(error);
                    return None;
                }
            }
            if self.line.trim_ascii().is_empty() {
                continue;
            }
            let frame = match json::read_line(&self.line) {
                Ok(Some(frame)) => frame,
                Ok(None) => continue,
                Err(error) => {
                    let error = place(&error);
                    self.report(error);
                    continue;
                }
            };
            let StoredFrame { results, frame_number, timestamp_ns, stream } = frame;
            if self.stream.is_some() && self.stream != stream {
                continue;
            }
            let (field, key) = match self.by {
                Match::Timestamp => ("timestamp", timestamp_ns),
                Match::Frame => ("frame", frame_number),
            };
            match key {
                Some(key) => {
                    self.counts.lines += 1;
                    return Some(Pending { key, results });
                }
                None => {
                    let error =
                        place(&format!("expected the field `{field}`, got none. Set the property `match` to a field that the lines have"));
                    self.report(error);
                }
            }
        }
    }
}

fn open(path: &Path) -> Result<BufReader<File>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("opening `{}` failed: {error}", path.display());
    let file = File::open(path).map_err(|error| failed(&error))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(failed(&"expected a file with lines of JSON, got a folder"));
    }
    Ok(BufReader::with_capacity(1 << 16, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestFile(PathBuf);

    impl TestFile {
        fn new(name: &str, text: &str) -> Self {
            let path = std::env::temp_dir().join(format!("roiflow-stored-{name}-{}.jsonl", std::process::id()));
            std::fs::write(&path, text).unwrap();
            Self(path)
        }
    }

    impl Drop for TestFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn line(frame: u64, timestamp: u64, stream: &str) -> String {
        format!(
            "{{\"frame\":{frame},\"stream\":\"{stream}\",\"timestamp\":{timestamp},\"resolution\":{{\"width\":9,\"height\":9}},\"objects\":[]}}\n"
        )
    }

    /// The numbers of the lines that are found for these keys.
    fn numbers(stored: &mut Stored, keys: &[u64]) -> Vec<Option<u64>> {
        keys.iter().map(|key| stored.find(*key).map(|results| results.frame_number)).collect()
    }

    #[test]
    fn lines_are_found_by_time_within_the_tolerance() {
        let text: String = (0..10).map(|n| line(n, n * 100, "a")).collect();
        let file = TestFile::new("time", &text);
        let mut stored = Stored::open(&file.0, Match::Timestamp, 20, None).unwrap();
        assert_eq!(
            numbers(&mut stored, &[0, 110, 150, 285, 299, 700, 950, 5000]),
            [Some(0), Some(1), None, Some(3), None, Some(7), None, None]
        );
        assert_eq!(stored.counts, Counts { lines: 10, matched: 4, unmatched: 6, errors: 0 });
        assert_eq!(numbers(&mut stored, &[100, 200]), [Some(1), Some(2)], "the video goes back");
        let mut wide = Stored::open(&file.0, Match::Timestamp, 1000, None).unwrap();
        assert_eq!(numbers(&mut wide, &[290, 310]), [Some(3), Some(4)], "the nearest line, once");
    }

    #[test]
    fn lines_are_found_by_number_and_stream() {
        let text: String = (0..6).map(|n| line(n, 0, "a") + &line(n, 0, "b")).collect();
        let file = TestFile::new("number", &text);
        let mut stored = Stored::open(&file.0, Match::Frame, 1000, Some("b".into())).unwrap();
        assert_eq!(numbers(&mut stored, &[0, 1, 3, 3, 5, 6]), [Some(0), Some(1), Some(3), None, Some(5), None]);
        assert_eq!(stored.counts.lines, 6);
    }

    #[test]
    fn unreadable_lines_are_skipped_and_reported() {
        let text =
            format!("{}\nnonsense\n{{\"event\":\"source-lost\"}}\n{}{{\"frame\":2,\"obj", line(0, 0, "a").trim_end(), line(1, 100, "a"));
        let file = TestFile::new("broken", &text);
        let mut stored = Stored::open(&file.0, Match::Timestamp, 20, None).unwrap();
        assert_eq!(numbers(&mut stored, &[0, 100, 200]), [Some(0), Some(1), None]);
        assert_eq!(stored.counts.errors, 2);
        let error = stored.take_error().unwrap();
        assert!(error.contains("line 2") && error.contains("broken") && stored.take_error().is_none(), "{error}");
        let without = TestFile::new("without", "{\"objects\":[]}\n");
        let mut stored = Stored::open(&without.0, Match::Frame, 0, None).unwrap();
        assert_eq!(numbers(&mut stored, &[0]), [None]);
        assert!(stored.take_error().unwrap().contains("`frame`"));
        assert!(Stored::open(Path::new("/gone.jsonl"), Match::Frame, 0, None).unwrap_err().contains("/gone.jsonl"));
        assert!(Stored::open(Path::new("/"), Match::Frame, 0, None).unwrap_err().contains("folder"));
    }
}
