//! The files of a spool: a queue on disk, without threads and clocks.
//!
//! Messages are appended to numbered segment files. The cursor is the position up to which the destination has acknowledged messages;
//! segments before the cursor are deleted. The messages between the cursor and the read position are in flight.
//!
//! When a limit is exceeded, gap records replace the oldest segment without messages in flight. A gap record lists the missing messages. If
//! no segment can be replaced, the new message is dropped, and its gap record is written as soon as possible.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Losses;
use super::record::{Gap, Gaps, MAX_RECORD_BYTES, PREFIX_BYTES, Record};
use crate::Message;

/// First bytes of a segment: identifies the format.
const MAGIC: &[u8; 8] = b"RFSPOOL1";
const HEADER_BYTES: u64 = MAGIC.len() as u64;
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
const EXTENSION: &str = "segment";

/// Limits of a spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of the files; at least [`Limits::MIN_BYTES`].
    pub max_bytes: u64,
    /// Maximum age of messages. Older messages are dropped.
    pub max_age: Option<Duration>,
}

impl Limits {
    /// Smallest supported `max_bytes`.
    pub const MIN_BYTES: u64 = 64 << 10;
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 1 << 30, max_age: None }
    }
}

/// A position in the segment files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    segment: u64,
    offset: u64,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    /// Length of the valid part.
    n_bytes: u64,
    /// Time of the newest record, in milliseconds since 1970.
    newest: u64,
    n_messages: u64,
    has_only_gaps: bool,
}

/// Outcome of [`Log::append`] for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Appended {
    Stored,
    /// The message was stored, and older messages were dropped. Contains the reason.
    Replacing(String),
    /// The message was dropped. Contains the reason.
    Dropped(String),
}

#[derive(Debug)]
pub(super) struct Log {
    folder: PathBuf,
    limits: Limits,
    /// Segments, oldest first. Records are appended to the last segment.
    segments: VecDeque<Segment>,
    writer: Arc<File>,
    /// The segment file that was read last, with its number.
    reader: Option<(u64, File)>,
    cursor: Position,
    cursor_file: File,
    read: Position,
    /// For each record in flight: its end position, and whether it is a message or a gap record.
    in_flight: VecDeque<(Position, bool)>,
    /// Dropped messages whose gap records are not written yet.
    pending: Gaps,
    /// Messages that are stored and not acknowledged, without gap records.
    n_waiting: u64,
    /// Counts the dropped messages.
    losses: Arc<Losses>,
    /// Number of messages that were stored so far; see [`Log::progress`].
    n_stored: u64,
    /// File lock on the folder, held while the log is open.
    _lock: File,
}

impl Log {
    /// Opens or creates the spool in a folder. Dropped messages are counted in `losses`.
    ///
    /// # Errors
    /// Returns `WouldBlock` if another process uses the folder.
    pub(super) fn open(folder: &Path, limits: Limits, losses: Arc<Losses>) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let open = |name: &str| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(name));
        let lock = open("lock")?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::new(ErrorKind::WouldBlock, "another process uses this spool folder"),
            TryLockError::Error(error) => error,
        })?;
        let cursor_file = open("cursor")?;
        let mut numbers: Vec<u64> = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let number = path.file_stem().and_then(|stem| u64::from_str_radix(stem.to_str()?, 16).ok());
            if let Some(number) = number.filter(|_| path.extension().is_some_and(|extension| extension == EXTENSION)) {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        let stored = read_cursor(&cursor_file);
        if let Some(cursor) = stored {
            for number in numbers.iter().filter(|number| **number < cursor.segment) {
                remove(&path_of(folder, *number));
            }
            numbers.retain(|number| *number >= cursor.segment);
        }
        let next = stored.map_or(1, |cursor| cursor.segment);
        if numbers.is_empty() {
            create(folder, next)?;
            numbers.push(next);
        }
        let mut cursor = stored.unwrap_or(Position { segment: numbers[0], offset: HEADER_BYTES });
        if cursor.segment < numbers[0] {
            cursor = Position { segment: numbers[0], offset: HEADER_BYTES };
        }
        let (mut segments, mut n_waiting) = (VecDeque::new(), 0);
        for number in numbers {
            let from = if number == cursor.segment { cursor.offset } else { HEADER_BYTES };
            let (segment, n_unread) = recover(folder, number, from)?;
            if number == cursor.segment {
                cursor.offset = cursor.offset.clamp(HEADER_BYTES, segment.n_bytes);
            }
            n_waiting += n_unread;
            segments.push_back(segment);
        }
        let last = segments.back().map_or(next, |segment| segment.number);
        let writer = OpenOptions::new().read(true).write(true).open(path_of(folder, last))?;
        let mut log = Self {
            folder: folder.to_owned(),
            limits,
            segments,
            writer: Arc::new(writer),
            reader: None,
            cursor,
            cursor_file,
            read: cursor,
            in_flight: VecDeque::new(),
            pending: Gaps::default(),
            n_waiting,
            losses,
            n_stored: n_waiting,
            _lock: lock,
        };
        log.delete_acknowledged();
        Ok(log)
    }

    /// Number of messages that are not acknowledged.
    pub(super) fn n_waiting(&self) -> u64 {
        self.n_waiting
    }

    /// Number of dropped messages, as `losses` counts them.
    pub(super) fn n_dropped(&self) -> u64 {
        self.losses.dropped.load(Ordering::Relaxed)
    }

    /// Number of messages that were stored so far, and number of those messages that were acknowledged or dropped.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.n_stored, self.n_stored - self.n_waiting)
    }

    /// Size of the files.
    pub(super) fn n_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.n_bytes).sum()
    }

    /// Maximum size of a segment. The sender limits the messages in flight to this size, so that few segments are kept for them.
    pub(super) fn segment_bytes(&self) -> u64 {
        (self.limits.max_bytes / 8).min(SEGMENT_BYTES_MAX)
    }

    /// The file that must be synchronized with the disk.
    pub(super) fn writer(&self) -> Arc<File> {
        self.writer.clone()
    }

    /// Whether a record waits to be read.
    pub(super) fn has_unread(&self) -> bool {
        self.segments.back().is_some_and(|last| self.read < Position { segment: last.number, offset: last.n_bytes })
    }

    /// Appends a message, or drops messages if there is no space.
    pub(super) fn append(&mut self, message: &Message, time: u64) -> Appended {
        let mut outcome = Appended::Stored;
        let record = Record { message: message.clone(), time, is_gap: false };
        if message.payload.len() as u64 > self.limits.max_bytes / 2 || message.payload.len() > MAX_RECORD_BYTES / 2 {
            let reason = format!("the message is too large for the spool: {} bytes", message.payload.len());
            self.pending.add(Gap::of(message, &reason));
            self.losses.dropped.fetch_add(1, Ordering::Relaxed);
            return Appended::Dropped(reason);
        }
        loop {
            match self.try_append(&record) {
                Ok(()) => return outcome,
                Err(reason) => {
                    // Drop the oldest messages, because new messages are more useful.
                    if self.replace_oldest(&reason, time, |_| true) {
                        outcome = Appended::Replacing(reason);
                        continue;
                    }
                    self.pending.add(Gap::of(message, &reason));
                    self.losses.dropped.fetch_add(1, Ordering::Relaxed);
                    return Appended::Dropped(reason);
                }
            }
        }
    }

    /// Drops messages that are older than the limit. Returns whether it dropped messages.
    pub(super) fn drop_old(&mut self, now: u64) -> bool {
        let Some(max_age) = self.limits.max_age else { return false };
        let oldest = now.saturating_sub(max_age.as_millis() as u64);
        // Only complete segments can be dropped, so complete the newest segment.
        let active = self.segments.back().filter(|segment| segment.n_messages > 0 && segment.newest < oldest);
        if active.is_some() && self.start_segment().is_err() {
            return false;
        }
        let mut is_any = false;
        while self.replace_oldest("older than the age limit", now, |segment| segment.newest < oldest) {
            is_any = true;
        }
        is_any
    }

    /// Returns the first message that is not in flight, and whether it is a gap record. From then on, the message is in flight.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or is damaged. The rest of the segment is skipped.
    pub(super) fn next(&mut self) -> io::Result<Option<(Message, bool)>> {
        loop {
            let Some(idx) = self.segments.iter().position(|segment| segment.number >= self.read.segment) else { return Ok(None) };
            let (number, n_bytes) = (self.segments[idx].number, self.segments[idx].n_bytes);
            if number > self.read.segment {
                self.read = Position { segment: number, offset: HEADER_BYTES };
            }
            if self.read.offset >= n_bytes {
                let Some(next) = self.segments.get(idx + 1) else { return Ok(None) };
                self.read = Position { segment: next.number, offset: HEADER_BYTES };
                continue;
            }
            let record = self.read_record(self.read, n_bytes);
            let (record, end) = match record {
                Ok(found) => found,
                Err(error) => {
                    self.read.offset = n_bytes;
                    return Err(error);
                }
            };
            self.read.offset = end;
            self.in_flight.push_back((self.read, record.is_gap));
            return Ok(Some((record.message, record.is_gap)));
        }
    }

    /// Moves the cursor past the first `n` messages in flight.
    pub(super) fn acknowledge(&mut self, n: usize) {
        let n = n.min(self.in_flight.len());
        let Some((last, _)) = n.checked_sub(1).map(|idx| self.in_flight[idx]) else { return };
        self.n_waiting -= self.in_flight.drain(..n).filter(|(_, is_gap)| !is_gap).count() as u64;
        self.cursor = last;
        self.delete_acknowledged();
    }

    /// Moves the read position back to the cursor, so that the messages in flight are read again.
    pub(super) fn rewind(&mut self) {
        self.in_flight.clear();
        self.read = self.cursor;
    }

    fn read_record(&mut self, at: Position, n_bytes: u64) -> io::Result<(Record, u64)> {
        if self.reader.as_ref().is_none_or(|(number, _)| *number != at.segment) {
            self.reader = Some((at.segment, File::open(path_of(&self.folder, at.segment))?));
        }
        let Some((_, file)) = &self.reader else { return Err(ErrorKind::NotFound.into()) };
        read_record(file, at.offset, n_bytes)
    }

    fn try_append(&mut self, record: &Record) -> Result<(), String> {
        let mut bytes = Vec::new();
        // Write the gap records first, at the position of the missing messages.
        let gaps = std::mem::take(&mut self.pending);
        let kept: Vec<Gap> = gaps.0.clone();
        gaps.into_records(record.time).for_each(|gap| gap.write(&mut bytes));
        record.write(&mut bytes);
        let written = self.write(&bytes);
        match written {
            Ok(()) => {
                if let Some(last) = self.segments.back_mut() {
                    last.n_messages += 1;
                    last.newest = record.time;
                    last.has_only_gaps = false;
                }
                (self.n_waiting, self.n_stored) = (self.n_waiting + 1, self.n_stored + 1);
                Ok(())
            }
            Err(reason) => {
                self.pending = Gaps(kept);
                Err(reason)
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let n_new = bytes.len() as u64;
        let of_disk = |error: io::Error| format!("the spool cannot be written: {error}");
        let is_full = |last: &Segment| last.n_bytes > HEADER_BYTES && last.n_bytes + n_new > self.segment_bytes();
        if self.segments.back().is_none_or(is_full) {
            self.start_segment().map_err(of_disk)?;
        }
        if self.n_bytes() + n_new > self.limits.max_bytes {
            return Err("the spool is full".to_owned());
        }
        let Some(last) = self.segments.back_mut() else { return Err("the spool has no file".to_owned()) };
        if let Err(error) = self.writer.write_all_at(bytes, last.n_bytes) {
            // Remove the part of the record that was written.
            let _cut_when_read = self.writer.set_len(last.n_bytes);
            return Err(of_disk(error));
        }
        last.n_bytes += n_new;
        Ok(())
    }

    fn start_segment(&mut self) -> io::Result<()> {
        let number = self.segments.back().map_or(self.cursor.segment, |last| last.number) + 1;
        self.writer = Arc::new(create(&self.folder, number)?);
        self.segments.push_back(Segment { number, n_bytes: HEADER_BYTES, newest: 0, n_messages: 0, has_only_gaps: false });
        self.delete_acknowledged();
        Ok(())
    }

    /// Replaces the oldest matching segment without messages in flight by gap records. Returns false if there is none.
    fn replace_oldest(&mut self, reason: &str, time: u64, matches: impl Fn(&Segment) -> bool) -> bool {
        let in_flight = (!self.in_flight.is_empty()).then_some(self.cursor.segment..=self.read.segment);
        let is_free = |segment: &Segment| in_flight.as_ref().is_none_or(|range| !range.contains(&segment.number));
        let n_ended = self.segments.len().saturating_sub(1);
        let found = (0..n_ended).find(|idx| {
            let segment = &self.segments[*idx];
            segment.number >= self.cursor.segment && !segment.has_only_gaps && is_free(segment) && matches(segment)
        });
        let Some(mut idx) = found else { return false };
        let mut gaps = Gaps::default();
        // Merge the gap with a neighboring gap.
        let before = idx.checked_sub(1).filter(|before| self.segments[*before].has_only_gaps && is_free(&self.segments[*before]));
        let mut n_messages = 0;
        for idx in before.into_iter().chain([idx]) {
            let (number, n_bytes) = (self.segments[idx].number, self.segments[idx].n_bytes);
            let mut at = Position { segment: number, offset: HEADER_BYTES };
            if self.cursor.segment == number {
                at.offset = self.cursor.offset;
            }
            while at.offset < n_bytes {
                let Ok((record, end)) = self.read_record(at, n_bytes) else { break };
                n_messages += u64::from(!record.is_gap);
                gaps.add_record(&record, reason);
                at.offset = end;
            }
        }
        let number = self.segments[idx].number;
        let mut bytes = MAGIC.to_vec();
        gaps.into_records(time).for_each(|gap| gap.write(&mut bytes));
        // Overwrite the old content, because a full disk has no space for another file. Recovery removes the rest of the old content.
        let replaced = OpenOptions::new().write(true).open(path_of(&self.folder, number)).and_then(|file| {
            file.write_all_at(&bytes, 0)?;
            file.set_len(bytes.len() as u64)
        });
        if let Err(error) = replaced {
            tracing::warn!("a segment of the spool cannot be replaced: {error}");
            return false;
        }
        if let Some(before) = before {
            let before = self.segments.remove(before).map_or(number, |segment| segment.number);
            remove(&path_of(&self.folder, before));
            idx -= 1;
        }
        let segment = &mut self.segments[idx];
        (segment.n_bytes, segment.n_messages, segment.newest, segment.has_only_gaps) = (bytes.len() as u64, 0, time, true);
        self.n_waiting -= n_messages.min(self.n_waiting);
        self.losses.dropped.fetch_add(n_messages, Ordering::Relaxed);
        let begin = Position { segment: number, offset: HEADER_BYTES };
        if self.cursor.segment <= number && self.segments.front().is_some_and(|first| first.number == number) {
            (self.cursor, self.reader) = (begin, None);
            self.write_cursor();
        }
        if self.in_flight.is_empty() {
            self.read = self.cursor;
        }
        true
    }

    /// Deletes the segments before the cursor and stores the cursor.
    fn delete_acknowledged(&mut self) {
        while let [first, next, ..] = self.segments.make_contiguous() {
            let is_done = first.number < self.cursor.segment || first.number == self.cursor.segment && self.cursor.offset >= first.n_bytes;
            if !is_done {
                break;
            }
            let (number, next) = (first.number, Position { segment: next.number, offset: HEADER_BYTES });
            self.cursor = self.cursor.max(next);
            self.read = self.read.max(self.cursor);
            self.segments.pop_front();
            // Store the cursor first. Otherwise the stored cursor could refer to a deleted segment.
            self.write_cursor();
            remove(&path_of(&self.folder, number));
        }
        self.write_cursor();
    }

    fn write_cursor(&self) {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.cursor.segment.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.cursor.offset.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..16]);
        bytes[16..].copy_from_slice(&checksum.to_le_bytes());
        if let Err(error) = self.cursor_file.write_all_at(&bytes, 0) {
            // After a restart, messages would be delivered again. This is allowed.
            tracing::warn!("the cursor of the spool cannot be stored: {error}");
        }
    }
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:016x}.{EXTENSION}"))
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!("cannot delete {}: {error}", path.display());
    }
}

fn create(folder: &Path, number: u64) -> io::Result<File> {
    let path = path_of(folder, number);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    if let Err(error) = file.write_all_at(MAGIC, 0) {
        remove(&path);
        return Err(error);
    }
    Ok(file)
}

fn read_cursor(file: &File) -> Option<Position> {
    let mut bytes = [0; 20];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let (numbers, checksum) = bytes.split_at(16);
    if checksum != crc32fast::hash(numbers).to_le_bytes() {
        return None;
    }
    let number = |at: usize| numbers[at..at + 8].try_into().ok().map(u64::from_le_bytes);
    Some(Position { segment: number(0)?, offset: number(8)? })
}

/// Reads the record at an offset. Returns it with the offset after it.
fn read_record(file: &File, offset: u64, n_bytes: u64) -> io::Result<(Record, u64)> {
    let damaged = || io::Error::new(ErrorKind::InvalidData, "a record of the spool is damaged");
    let mut prefix = [0; PREFIX_BYTES];
    file.read_exact_at(&mut prefix, offset)?;
    let (length, checksum) = Record::prefix(prefix).ok_or_else(damaged)?;
    let end = offset + (PREFIX_BYTES + length) as u64;
    if end > n_bytes {
        return Err(damaged());
    }
    let mut body = vec![0; length];
    file.read_exact_at(&mut body, offset + PREFIX_BYTES as u64)?;
    Ok((Record::parse(&body, checksum).ok_or_else(damaged)?, end))
}

/// Finds the valid part of a segment and cuts the rest, which a killed process left behind. Returns the number of messages from `from` on.
fn recover(folder: &Path, number: u64, from: u64) -> io::Result<(Segment, u64)> {
    let path = path_of(folder, number);
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    let length = file.metadata()?.len();
    let mut magic = [0; MAGIC.len()];
    let has_magic = file.read_exact_at(&mut magic, 0).is_ok() && &magic == MAGIC;
    if !has_magic {
        if length > HEADER_BYTES {
            let path = path.display();
            return Err(io::Error::new(ErrorKind::InvalidData, format!("{path}: expected a segment of a spool, got another file")));
        }
        file.write_all_at(MAGIC, 0)?;
    }
    let mut segment = Segment { number, n_bytes: HEADER_BYTES, newest: 0, n_messages: 0, has_only_gaps: false };
    let (mut n_unread, mut n_gaps) = (0, 0);
    while segment.n_bytes < length {
        let Ok((record, end)) = read_record(&file, segment.n_bytes, length) else { break };
        let is_message = u64::from(!record.is_gap);
        segment.n_messages += is_message;
        n_gaps += 1 - is_message;
        n_unread += if segment.n_bytes >= from { is_message } else { 0 };
        segment.newest = segment.newest.max(record.time);
        segment.n_bytes = end;
    }
    segment.has_only_gaps = segment.n_messages == 0 && n_gaps > 0;
    if segment.n_bytes < length {
        tracing::warn!("spool file {}: {} bytes after the last complete record are removed", path.display(), length - segment.n_bytes);
        file.set_len(segment.n_bytes)?;
    }
    Ok((segment, n_unread))
}
