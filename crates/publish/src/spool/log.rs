//! The files of a spool: a queue on disk, without threads and clocks.
//!
//! Messages are appended to numbered segments. A segment is a file, or memory while the disk is full or the folder is missing. The cursor is
//! the position up to which the destination has acknowledged messages; segments before the cursor are deleted. The messages between the
//! cursor and the read position are in flight.
//!
//! When a limit is exceeded, gap records replace the oldest segment without messages in flight. A gap record lists the missing messages. If
//! no segment can be replaced, the new message is dropped, and its gap record is written as soon as possible.
//!
//! The messages of a stream are numbered. A number that is missing, because a file was damaged or deleted, becomes a gap record when the
//! next message of the stream is read. The file `cursor` also has the newest numbers, so messages that are missing at the end of the spool
//! are noticed when it is opened again, and the gap records of refused messages.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Losses;
use super::cursor::{Cursor, Last, Row};
use super::record::{Format, Found, Gap, Gaps, MAX_RECORD_BYTES, Record};
use super::segment::{self, HEADER_BYTES, MAGIC, create, path_of, remove};
use crate::Message;

const SEGMENT_BYTES_MAX: u64 = 8 << 20;
/// Maximum size of all segments in memory, and maximum number of their messages.
const MEMORY: (u64, u64) = (8 << 20, 4096);
/// Memory is divided into this number of segments, because the oldest segment is dropped when memory is full.
const MEMORY_SEGMENTS: u64 = 8;
pub(super) const DAMAGED: &str = "stored results were damaged or deleted";

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

/// A position in the segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    format: Format,
    /// Length of the part that is read.
    n_bytes: u64,
    /// Time of the newest record, in milliseconds since 1970.
    newest: u64,
    n_messages: u64,
    has_only_gaps: bool,
    /// The content of a segment without a file.
    memory: Option<Vec<u8>>,
}

/// What the log knows of the messages of a stream.
#[derive(Debug, Clone, Default)]
struct Stream {
    /// Number of the next message.
    next: u64,
    stored: Option<Last>,
    read: Option<Last>,
    acknowledged: Option<Last>,
}

type Streams = HashMap<Option<Arc<str>>, Stream>;

/// Outcome of [`Log::append`] for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Appended {
    Stored,
    /// The message was stored, and older messages were dropped. Contains the reason.
    Replacing(String),
    /// The message was dropped. Contains the reason.
    Dropped(String),
}

/// A record to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) message: Message,
    pub(super) is_gap: bool,
    /// Why messages before this one are missing, if the loss was not known before.
    pub(super) loss: Option<&'static str>,
}

/// A record in flight.
#[derive(Debug)]
struct InFlight {
    /// Position after the record.
    end: Position,
    /// Number of messages that are waiting until this record is acknowledged: 0 for a stored gap record.
    n_messages: u64,
    /// Number of those messages that were found missing.
    n_lost: u64,
    /// The stream and its last message up to this record.
    last: Option<(Option<Arc<str>>, Last)>,
    /// A gap record that is in no segment.
    unstored: Option<Gap>,
}

#[derive(Debug)]
pub(super) struct Log {
    folder: PathBuf,
    limits: Limits,
    /// Segments, oldest first. Records are appended to the last segment.
    segments: VecDeque<Segment>,
    /// The file of the last segment. `None` if it is in memory.
    writer: Option<Arc<File>>,
    /// The content of the segment that is read, with its number.
    reader: Option<(u64, Vec<u8>)>,
    cursor: Position,
    cursor_file: Cursor,
    read: Position,
    in_flight: VecDeque<InFlight>,
    /// Gap records to send before the next record. The file of the cursor has them until they are acknowledged.
    unstored: VecDeque<Gap>,
    /// Dropped messages whose gap records are not written yet.
    pending: Gaps,
    streams: Streams,
    /// Whether the first message of a stream that is not in `streams` has the number 0.
    knows_begin: bool,
    /// Messages that are stored and not acknowledged, without gap records.
    n_waiting: u64,
    /// Counts the dropped messages.
    losses: Arc<Losses>,
    /// Number of messages that were stored so far; see [`Log::progress`].
    n_stored: u64,
    /// Why the newest segments are in memory.
    disk_error: String,
    /// File lock on the folder, held while the log is open.
    lock: File,
}

impl Log {
    /// Opens or creates the spool in a folder. Dropped messages are counted in `losses`.
    ///
    /// # Errors
    /// Returns `WouldBlock` if another process uses the folder.
    pub(super) fn open(folder: &Path, limits: Limits, losses: Arc<Losses>) -> io::Result<Self> {
        let lock = take_lock(folder)?;
        let cursor_file = Cursor::open(folder)?;
        let mut numbers = segment::numbers(folder)?;
        let (stored, rows) = cursor_file.read();
        let knows_begin = rows.is_some() || stored.is_none() && numbers.is_empty();
        let rows = rows.unwrap_or_default();
        if let Some(cursor) = stored {
            for number in numbers.extract_if(.., |number| *number < cursor.segment) {
                remove(&path_of(folder, number));
            }
        }
        let (mut streams, mut unstored): (Streams, _) = (HashMap::new(), VecDeque::new());
        for Row { stream, acknowledged, gaps, .. } in &rows {
            let next = acknowledged.map_or(0, |last| last.number + 1);
            let known = Stream { next, stored: *acknowledged, read: *acknowledged, acknowledged: *acknowledged };
            streams.insert(stream.as_deref().map(Into::into), known);
            unstored.extend(gaps.iter().cloned());
        }
        let (mut segments, mut n_waiting) = (VecDeque::new(), 0);
        for number in numbers {
            let from = stored.filter(|cursor| cursor.segment == number).map_or(HEADER_BYTES, |cursor| cursor.offset);
            match recover(folder, number, from, (&mut streams, knows_begin)) {
                Ok((segment, n_unread)) => {
                    n_waiting += n_unread;
                    segments.push_back(segment);
                }
                // Its results are missing, and gap records replace them.
                Err(error) => segment::set_aside(folder, number, error)?,
            }
        }
        let of_last = segments.back().filter(|last| last.format == Format::Marked).map(|last| segment::open(folder, last.number));
        let mut writer = of_last.and_then(Result::ok);
        if writer.is_none() {
            let number = segments.back().map_or(stored.map_or(1, |cursor| cursor.segment), |last| last.number + 1);
            match create(folder, number) {
                Ok(file) => {
                    writer = Some(file);
                    segments.push_back(Segment::new(number, None));
                }
                // The messages wait in memory.
                Err(error) if error.kind() == ErrorKind::StorageFull => {}
                Err(error) => return Err(error),
            }
        }
        let first = Position { segment: segments.front().map_or(1, |first| first.number), offset: HEADER_BYTES };
        let mut cursor = stored.unwrap_or(first).max(first);
        if let Some(segment) = segments.iter().find(|segment| segment.number == cursor.segment) {
            cursor.offset = cursor.offset.min(segment.n_bytes);
        }
        let mut log = Self {
            folder: folder.to_owned(),
            limits,
            segments,
            writer: writer.map(Arc::new),
            reader: None,
            cursor,
            cursor_file,
            read: cursor,
            in_flight: VecDeque::new(),
            unstored,
            pending: Gaps::default(),
            streams,
            knows_begin,
            n_waiting,
            losses,
            n_stored: n_waiting,
            disk_error: String::new(),
            lock,
        };
        if log.writer.is_none() {
            log.start_segment();
        }
        log.find_missing_end(&rows);
        log.delete_acknowledged();
        Ok(log)
    }

    /// Writes a gap record for messages that `rows` list and no segment has.
    fn find_missing_end(&mut self, rows: &[Row]) {
        for row in rows {
            let stream: Option<Arc<str>> = row.stream.as_deref().map(Into::into);
            let known = self.streams.entry(stream.clone()).or_default();
            let Some(stored) = row.stored.filter(|stored| stored.number >= known.next) else { continue };
            let gap = gap_between(stream, known.stored, stored);
            self.losses.dropped.fetch_add(gap.dropped, Ordering::Relaxed);
            (known.next, known.stored) = (stored.number + 1, Some(stored));
            self.pending.add(gap);
        }
        self.write_pending();
    }

    /// Writes the gap records that no message has followed.
    fn write_pending(&mut self) {
        let mut bytes = Vec::new();
        let newest = self.segments.iter().map(|segment| segment.newest).max().unwrap_or_default();
        self.pending.write(newest, &mut bytes);
        if !bytes.is_empty() && self.write(&bytes).is_ok() {
            self.pending = Gaps::default();
        }
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
        (self.n_stored, self.n_stored - self.n_waiting.min(self.n_stored))
    }

    /// Size of all segments.
    pub(super) fn n_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.n_bytes).sum()
    }

    /// Number of messages in segments that have no file. Those messages end with the process.
    pub(super) fn n_in_memory(&self) -> u64 {
        let of_memory = self.segments.iter().filter(|segment| segment.memory.is_some());
        of_memory.map(|segment| segment.n_messages).sum::<u64>().min(self.n_waiting)
    }

    /// Why messages are kept in memory.
    pub(super) fn disk_error(&self) -> &str {
        &self.disk_error
    }

    /// Maximum size of a segment. The sender limits the messages in flight to this size, so that few segments are kept for them.
    pub(super) fn segment_bytes(&self) -> u64 {
        (self.limits.max_bytes / 8).min(SEGMENT_BYTES_MAX)
    }

    /// The files that must be synchronized with the disk.
    pub(super) fn files(&self) -> impl Iterator<Item = Arc<File>> + use<> {
        self.writer.clone().into_iter().chain([self.cursor_file.0.clone()])
    }

    /// Whether a record waits to be read.
    pub(super) fn has_unread(&self) -> bool {
        let end = self.segments.back().map(|last| Position { segment: last.number, offset: last.n_bytes });
        !self.unstored.is_empty() || end.is_some_and(|end| self.read < end)
    }

    /// Appends a message, or drops messages if there is no space.
    pub(super) fn append(&mut self, message: &Message, time: u64) -> Appended {
        let stream = self.streams.entry(message.stream.clone()).or_default();
        let number = stream.next;
        stream.next += 1;
        stream.stored = Some(Last { number, epoch: message.epoch, frame: message.frame });
        if message.payload.len() as u64 > self.limits.max_bytes / 2 || message.payload.len() > MAX_RECORD_BYTES / 2 {
            return self.drop_new(message, number, format!("the message is too large for the spool: {} bytes", message.payload.len()));
        }
        // Write the gap records first, at the position of the missing messages.
        let mut bytes = Vec::new();
        self.pending.write(time, &mut bytes);
        Record { message: message.clone(), time, is_gap: false, first: Some(number), number: Some(number) }.write(&mut bytes);
        let mut outcome = Appended::Stored;
        while let Err(reason) = self.write(&bytes) {
            // Drop the oldest messages, because new messages are more useful.
            if !self.replace_oldest(&reason, time, |_| true) {
                return self.drop_new(message, number, reason);
            }
            outcome = Appended::Replacing(reason);
        }
        self.pending = Gaps::default();
        if let Some(last) = self.segments.back_mut() {
            (last.n_messages, last.newest, last.has_only_gaps) = (last.n_messages + 1, time, false);
        }
        (self.n_waiting, self.n_stored) = (self.n_waiting + 1, self.n_stored + 1);
        outcome
    }

    fn drop_new(&mut self, message: &Message, number: u64, reason: String) -> Appended {
        self.pending.add(Gap::of(message, Some(number), &reason));
        self.losses.dropped.fetch_add(1, Ordering::Relaxed);
        Appended::Dropped(reason)
    }

    /// Drops messages that are older than the limit. Returns whether it dropped messages.
    pub(super) fn drop_old(&mut self, now: u64) -> bool {
        let Some(max_age) = self.limits.max_age else { return false };
        let oldest = now.saturating_sub(max_age.as_millis() as u64);
        // Only complete segments can be dropped, so complete the newest segment.
        if self.segments.back().is_some_and(|segment| segment.n_messages > 0 && segment.newest < oldest) {
            self.start_segment();
        }
        let mut is_any = false;
        while self.replace_oldest("older than the age limit", now, |segment| segment.newest < oldest) {
            is_any = true;
        }
        is_any
    }

    /// Sends a gap record before the next record. [`Log::acknowledge`] stores it with the cursor.
    pub(super) fn send_gap(&mut self, gap: Gap) {
        self.unstored.push_back(gap);
    }

    /// Whether gap records of [`Log::send_gap`] are not acknowledged.
    pub(super) fn has_unstored(&self) -> bool {
        !self.unstored.is_empty() || self.in_flight.iter().any(|record| record.unstored.is_some())
    }

    /// Returns the first record that is not in flight. From then on, the record is in flight. Skips what cannot be read: the numbers of the
    /// later messages show what is missing.
    pub(super) fn next(&mut self) -> Option<Next> {
        if let Some(gap) = self.unstored.pop_front() {
            let message = gap.clone().message();
            self.in_flight.push_back(InFlight { end: self.read, n_messages: 0, n_lost: 0, last: None, unstored: Some(gap) });
            return Some(Next { message, is_gap: true, loss: None });
        }
        loop {
            let idx = self.segments.iter().position(|segment| segment.number >= self.read.segment)?;
            let (number, n_bytes) = (self.segments[idx].number, self.segments[idx].n_bytes);
            if number > self.read.segment {
                self.read = Position { segment: number, offset: HEADER_BYTES };
            }
            if self.read.offset >= n_bytes {
                let Some(next) = self.segments.get(idx + 1) else {
                    if self.in_flight.is_empty() && self.cursor < self.read {
                        // The records at the end were skipped.
                        self.cursor = self.read;
                        self.delete_acknowledged();
                    }
                    return None;
                };
                self.read = Position { segment: next.number, offset: HEADER_BYTES };
                continue;
            }
            let (record, end) = match self.find(idx, self.read.offset) {
                Ok(Found::Record(record, end)) => (record, end as u64),
                Ok(Found::Damaged(end)) => {
                    tracing::warn!("a part of a segment of the spool is damaged: bytes {} to {end} are skipped", self.read.offset);
                    self.read.offset = end as u64;
                    continue;
                }
                found => {
                    if let Err(error) = found {
                        tracing::warn!("a segment of the spool cannot be read, and is skipped: {error}");
                    }
                    self.read.offset = n_bytes;
                    continue;
                }
            };
            let stream = self.streams.entry(record.message.stream.clone()).or_default();
            if let Some(number) = record.number {
                let before = stream.read;
                let expected = before.map_or(0, |before| before.number + 1);
                if number < expected {
                    // A gap record has replaced this record, or it was acknowledged.
                    self.read.offset = end;
                    continue;
                }
                let epoch = record.message.epoch;
                if let Some(first) = record.first.filter(|first| *first > expected && (before.is_some() || self.knows_begin)) {
                    let missing = Last { number: first - 1, epoch, frame: record.first_frame().saturating_sub(1) };
                    stream.read = Some(missing);
                    let gap = gap_between(record.message.stream.clone(), before, missing);
                    let n_lost = gap.dropped;
                    let last = Some((record.message.stream, missing));
                    self.in_flight.push_back(InFlight { end: self.read, n_messages: n_lost, n_lost, last, unstored: None });
                    return Some(Next { message: gap.message(), is_gap: true, loss: Some(DAMAGED) });
                }
                stream.read = Some(Last { number, epoch, frame: record.message.frame });
            }
            let Record { message, is_gap, number, .. } = *record;
            self.read.offset = end;
            let last = number.and_then(|_| Some((message.stream.clone(), stream.read?)));
            self.in_flight.push_back(InFlight { end: self.read, n_messages: u64::from(!is_gap), n_lost: 0, last, unstored: None });
            return Some(Next { message, is_gap, loss: None });
        }
    }

    /// Moves the cursor past the first `n` records in flight.
    pub(super) fn acknowledge(&mut self, n: usize) {
        let n = n.min(self.in_flight.len());
        if n == 0 {
            return;
        }
        for InFlight { end, n_messages, n_lost, last, .. } in self.in_flight.drain(..n) {
            self.n_waiting = self.n_waiting.saturating_sub(n_messages);
            self.losses.dropped.fetch_add(n_lost, Ordering::Relaxed);
            self.cursor = end;
            if let Some((stream, last)) = last {
                self.streams.entry(stream).or_default().acknowledged = Some(last);
            }
        }
        self.delete_acknowledged();
    }

    /// Moves the read position back to the cursor, so that the messages in flight are read again.
    pub(super) fn rewind(&mut self) {
        for unstored in self.in_flight.drain(..).rev().filter_map(|record| record.unstored) {
            self.unstored.push_front(unstored);
        }
        self.streams.values_mut().for_each(|stream| stream.read = stream.acknowledged);
        self.read = self.cursor;
    }

    /// Reads the content of a segment at an offset.
    fn find(&mut self, idx: usize, offset: u64) -> io::Result<Found> {
        let Segment { number, format, n_bytes, memory, .. } = &self.segments[idx];
        if let Some(bytes) = memory {
            return Ok(Record::read(bytes, offset as usize, *format));
        }
        let mut bytes = self.reader.take().filter(|(of, _)| of == number).map(|(_, bytes)| bytes).unwrap_or_default();
        let n_read = bytes.len();
        if (n_read as u64) < *n_bytes {
            // The file of the last segment is open, so it can be read although it was deleted.
            let open = self.writer.clone().filter(|_| idx + 1 == self.segments.len());
            let file = open.map_or_else(|| File::open(path_of(&self.folder, *number)).map(Arc::new), Ok)?;
            bytes.resize(*n_bytes as usize, 0);
            file.read_exact_at(&mut bytes[n_read..], n_read as u64)?;
        }
        let found = Record::read(&bytes, offset as usize, *format);
        self.reader = Some((*number, bytes));
        Ok(found)
    }

    /// Appends bytes to the last segment.
    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (n_new, segment_bytes) = (bytes.len() as u64, self.segment_bytes());
        let is_full = |last: &Segment| {
            let (n_bytes, n_messages) = match last.memory {
                Some(_) => (segment_bytes.min(MEMORY.0 / MEMORY_SEGMENTS), MEMORY.1 / MEMORY_SEGMENTS),
                None => (segment_bytes, u64::MAX),
            };
            last.n_bytes > HEADER_BYTES && (last.n_bytes + n_new > n_bytes || last.n_messages >= n_messages)
        };
        let mut has_failed = false;
        loop {
            if self.segments.back().is_none_or(is_full) {
                self.start_segment();
            }
            if self.n_bytes() + n_new > self.limits.max_bytes {
                return Err("the spool is full".to_owned());
            }
            let of_memory = || self.segments.iter().filter(|segment| segment.memory.is_some());
            let n_used: u64 = of_memory().map(|segment| segment.n_bytes).sum();
            let n_messages: u64 = of_memory().map(|segment| segment.n_messages).sum();
            let Some(last) = self.segments.back_mut() else { return Err("the spool has no segment".to_owned()) };
            if let Some(writer) = &self.writer {
                let Err(error) = writer.write_all_at(bytes, last.n_bytes) else {
                    last.n_bytes += n_new;
                    return Ok(());
                };
                // Remove the part of the record that was written.
                let _cut_when_read = writer.set_len(last.n_bytes);
                let number = last.number + 1;
                self.push_memory(number, &error);
                has_failed = true;
                continue;
            }
            let Some(memory) = &mut last.memory else { return Err("the spool has no file".to_owned()) };
            if n_used + n_new <= MEMORY.0 && n_messages < MEMORY.1 {
                memory.extend_from_slice(bytes);
                last.n_bytes += n_new;
                return Ok(());
            }
            if has_failed {
                return Err(self.disk_error.clone());
            }
            has_failed = !self.restore();
        }
    }

    /// Starts a segment: a file, or memory if no file can be created.
    fn start_segment(&mut self) {
        let number = self.segments.back().map_or(self.cursor.segment, |last| last.number) + 1;
        match self.try_restore().and_then(|()| create(&self.folder, number)) {
            Ok(file) => {
                self.writer = Some(Arc::new(file));
                self.segments.push_back(Segment::new(number, None));
            }
            Err(error) => self.push_memory(number, &error),
        }
        self.delete_acknowledged();
    }

    fn push_memory(&mut self, number: u64, error: &io::Error) {
        self.disk_error = cannot_write(error);
        // Close the file, so that its space is free when it is deleted.
        self.writer = None;
        self.segments.push_back(Segment::new(number, Some(MAGIC.to_vec())));
    }

    /// Writes the segments in memory to files, oldest first. Creates the folder again if it was deleted. Returns false if a segment remains
    /// in memory.
    pub(super) fn restore(&mut self) -> bool {
        let restored = self.try_restore();
        self.disk_error = restored.as_ref().err().map(cannot_write).unwrap_or_default();
        restored.is_ok()
    }

    /// Brings memory and the deleted files back to the disk, and stores the newest numbers. Called about every second.
    pub(super) fn refresh(&mut self) {
        if self.n_waiting > 0 || !self.disk_error.is_empty() {
            self.restore();
        }
        self.write_pending();
        self.write_cursor();
    }

    fn try_restore(&mut self) -> io::Result<()> {
        self.keep_deleted()?;
        let n_segments = self.segments.len();
        for (idx, segment) in self.segments.iter_mut().enumerate() {
            let Some(memory) = &segment.memory else { continue };
            let file = create(&self.folder, segment.number)?;
            if let Err(error) = file.write_all_at(memory, 0) {
                remove(&path_of(&self.folder, segment.number));
                return Err(error);
            }
            segment.memory = None;
            if idx + 1 == n_segments {
                self.writer = Some(Arc::new(file));
            }
        }
        Ok(())
    }

    /// If the file of the last segment was deleted, keeps its content in memory. If the folder was deleted, creates it again.
    fn keep_deleted(&mut self) -> io::Result<()> {
        let is_deleted = |file: &File| file.metadata().is_ok_and(|metadata| metadata.nlink() == 0);
        if let (Some(last), Some(writer)) = (self.segments.back_mut(), self.writer.take_if(|writer| is_deleted(writer))) {
            let mut bytes = vec![0; last.n_bytes as usize];
            writer.read_exact_at(&mut bytes, 0)?;
            last.memory = Some(bytes);
        }
        if is_deleted(&self.lock) {
            // Fails if another process has begun to use the folder.
            self.lock = take_lock(&self.folder)?;
            self.cursor_file = Cursor::open(&self.folder)?;
            self.write_cursor();
        }
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
            let mut offset = if self.cursor.segment == self.segments[idx].number { self.cursor.offset } else { HEADER_BYTES };
            while offset < self.segments[idx].n_bytes {
                offset = match self.find(idx, offset) {
                    Ok(Found::Record(record, end)) => {
                        n_messages += gaps.add_record(&record, reason);
                        end as u64
                    }
                    Ok(Found::Damaged(end)) => end as u64,
                    Ok(Found::Torn) | Err(_) => break,
                };
            }
        }
        let number = self.segments[idx].number;
        let mut bytes = MAGIC.to_vec();
        gaps.write(time, &mut bytes);
        let n_bytes = bytes.len() as u64;
        if let Some(memory) = &mut self.segments[idx].memory {
            *memory = bytes;
        } else {
            // Overwrite the old content, because a full disk has no space for another file. If the process is killed before it cuts the
            // rest of the old content, the numbers of those records show that the gap records replace them.
            let replaced = OpenOptions::new().write(true).open(path_of(&self.folder, number)).and_then(|file| {
                file.write_all_at(&bytes, 0)?;
                file.set_len(n_bytes)
            });
            match replaced {
                Err(error) if error.kind() == ErrorKind::NotFound => self.segments[idx].memory = Some(bytes),
                Err(error) => {
                    tracing::warn!("a segment of the spool cannot be replaced: {error}");
                    return false;
                }
                Ok(()) => {}
            }
        }
        if let Some(before) = before {
            if let Some(Segment { number, memory: None, .. }) = self.segments.remove(before) {
                remove(&path_of(&self.folder, number));
            }
            idx -= 1;
        }
        let memory = self.segments[idx].memory.take();
        self.segments[idx] = Segment { n_bytes, newest: time, has_only_gaps: true, memory, ..Segment::new(number, None) };
        self.reader = None;
        self.n_waiting -= n_messages.min(self.n_waiting);
        self.losses.dropped.fetch_add(n_messages, Ordering::Relaxed);
        if self.cursor.segment <= number && self.segments.front().is_some_and(|first| first.number == number) {
            self.cursor = Position { segment: number, offset: HEADER_BYTES };
            self.write_cursor();
        }
        if self.in_flight.is_empty() {
            self.rewind();
        }
        true
    }

    /// Deletes the segments before the cursor and stores the cursor. Frees the last segment if all its messages are acknowledged.
    fn delete_acknowledged(&mut self) {
        while let [first, next, ..] = self.segments.make_contiguous() {
            let is_done = first.number < self.cursor.segment || first.number == self.cursor.segment && self.cursor.offset >= first.n_bytes;
            if !is_done {
                break;
            }
            let (number, is_file, next) = (first.number, first.memory.is_none(), Position { segment: next.number, offset: HEADER_BYTES });
            self.cursor = self.cursor.max(next);
            self.read = self.read.max(self.cursor);
            self.segments.pop_front();
            // Store the cursor first. Otherwise the stored cursor could refer to a deleted segment.
            self.write_cursor();
            if is_file {
                remove(&path_of(&self.folder, number));
            }
        }
        let is_empty = self.in_flight.is_empty() && !self.has_unread();
        if let Some(last) = self.segments.back().filter(|last| is_empty && last.n_bytes > HEADER_BYTES) {
            // The numbers of acknowledged records are in the file of the cursor, so a crash before the file is cut repeats no message.
            let (number, is_memory) = (last.number, last.memory.is_some());
            let before = std::mem::replace(&mut self.cursor, Position { segment: number, offset: HEADER_BYTES });
            self.n_waiting = 0;
            if !self.write_cursor() && !is_memory {
                self.cursor = before;
                return;
            }
            if let Some(writer) = &self.writer {
                let _cut_when_opened = writer.set_len(HEADER_BYTES);
            }
            (self.read, self.reader) = (self.cursor, None);
            self.segments.pop_back();
            self.segments.push_back(Segment::new(number, is_memory.then(|| MAGIC.to_vec())));
            return;
        }
        self.write_cursor();
    }

    /// Stores the cursor, the newest numbers of the streams, and the gap records that are in no segment. Returns whether they are stored.
    pub(super) fn write_cursor(&self) -> bool {
        let unstored = || self.in_flight.iter().filter_map(|record| record.unstored.as_ref()).chain(&self.unstored);
        let rows = self.streams.iter().map(|(stream, known)| Row {
            stream: stream.as_deref().map(str::to_owned),
            acknowledged: known.acknowledged,
            stored: known.stored,
            gaps: unstored().filter(|gap| gap.stream.as_deref() == stream.as_deref()).cloned().collect(),
        });
        let written = self.cursor_file.write(self.cursor, rows.collect());
        if let Err(error) = &written {
            // After a restart, messages would be delivered again. This is allowed.
            tracing::warn!("the cursor of the spool cannot be stored: {error}");
        }
        written.is_ok()
    }
}

impl Segment {
    fn new(number: u64, memory: Option<Vec<u8>>) -> Self {
        Self { number, format: Format::Marked, n_bytes: HEADER_BYTES, newest: 0, n_messages: 0, has_only_gaps: false, memory }
    }
}

/// The gap from the message after `before` to the message `to`.
fn gap_between(stream: Option<Arc<str>>, before: Option<Last>, to: Last) -> Gap {
    let n_before = before.map_or(0, |before| before.number + 1);
    let (epoch, dropped) = (to.epoch, to.number + 1 - n_before);
    let (epoch, from, to_frame) = match before {
        // The missing messages may belong to both epochs. Reported is the earlier one, because readers have nothing newer of it.
        Some(before) if before.epoch != epoch => (before.epoch, before.frame + 1, before.frame + dropped),
        Some(before) => (epoch, (before.frame + 1).min(to.frame.max(before.frame)), to.frame.max(before.frame)),
        None => (epoch, to.frame.saturating_sub(dropped - 1), to.frame),
    };
    let message = Message { stream, epoch, frame: from, ..Message::default() };
    let mut gap = Gap::of(&message, Some(to.number), DAMAGED);
    (gap.to, gap.dropped, gap.first) = (to_frame, dropped, Some(n_before));
    gap
}

const LOCK: &str = "lock";

fn take_lock(folder: &Path) -> io::Result<File> {
    std::fs::create_dir_all(folder)?;
    let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join(LOCK))?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::new(ErrorKind::WouldBlock, "another process uses this spool folder"),
        TryLockError::Error(error) => error,
    })?;
    Ok(lock)
}

fn cannot_write(error: &io::Error) -> String {
    format!("the spool cannot be written: {error}")
}

/// Reads a segment, and cuts an incomplete record at its end, which a killed process left behind. Notes the newest messages of its streams.
/// Returns the number of messages from `from` on.
///
/// # Errors
/// Returns an error if the file cannot be read, or is no segment.
fn recover(folder: &Path, number: u64, from: u64, (streams, knows_begin): (&mut Streams, bool)) -> io::Result<(Segment, u64)> {
    let (format, bytes) = segment::read(folder, number)?;
    let mut segment = Segment { format, ..Segment::new(number, None) };
    let (mut n_unread, mut n_gaps) = (0, 0);
    while segment.n_bytes < bytes.len() as u64 {
        let offset = segment.n_bytes;
        match Record::read(&bytes, offset as usize, format) {
            Found::Torn => break,
            Found::Damaged(end) => segment.n_bytes = end as u64,
            Found::Record(record, end) => {
                segment.n_bytes = end as u64;
                let Record { message, time, is_gap, first, number } = *record;
                let stream = streams.entry(message.stream).or_default();
                let mut n_missing = 0;
                if let Some(number) = number {
                    if number < stream.next {
                        // A gap record has replaced this record, or it was acknowledged.
                        continue;
                    }
                    if knows_begin || stream.stored.is_some() {
                        n_missing = first.map_or(0, |first| first.saturating_sub(stream.next));
                    }
                    (stream.next, stream.stored) = (number + 1, Some(Last { number, epoch: message.epoch, frame: message.frame }));
                }
                let is_message = u64::from(!is_gap);
                segment.n_messages += is_message;
                n_gaps += 1 - is_message;
                n_unread += if offset >= from { is_message + n_missing } else { 0 };
                segment.newest = segment.newest.max(time);
            }
        }
    }
    segment.has_only_gaps = segment.n_messages == 0 && n_gaps > 0;
    if segment.n_bytes < bytes.len() as u64 {
        let (n_removed, path) = (bytes.len() as u64 - segment.n_bytes, path_of(folder, number));
        tracing::warn!("spool file {}: {n_removed} bytes after the last complete record are removed", path.display());
        if let Err(error) = segment::open(folder, number).and_then(|file| file.set_len(segment.n_bytes)) {
            tracing::warn!("cannot cut {}: {error}", path.display());
        }
    }
    Ok((segment, n_unread))
}
