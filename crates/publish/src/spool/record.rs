//! Form of a message on disk, and records of gaps.
//!
//! A record is `mark (4 bytes) | length of the head (2) | length of the payload (4) | CRC-32 of the payload (4) | CRC-32 of the head (4) |
//! head | payload`. The head is `kind (1) | time (8) | epoch (8) | frame (8) | part (4) | number (8) | stream`. Numbers are little-endian.
//! The checksum of the head also covers the lengths and the checksum of the payload.
//!
//! A damaged byte costs at most its record: the reader continues at the next mark whose head is valid. Bytes of the mark do not occur in
//! JSON. `number` counts the messages of a stream, so a reader notices each missing message. In a gap record, `number` is that of the last
//! missing message, and `part` is the number of missing messages; earlier versions wrote 0.
//!
//! Earlier versions wrote `length (4) | CRC-32 (4) | kind (1) | time (8) | epoch (8) | frame (8) | stream length (2) | stream | part (4) |
//! payload`, without mark and number. Length and checksum cover the bytes after the checksum. Only messages with a part above 0 have the
//! field `part`.

use serde::{Deserialize, Serialize};

use crate::Message;

const MARK: [u8; 4] = [0xf5, 0x52, 0xfa, 0x00];
/// Mark, lengths and checksums.
const PREFIX_BYTES: usize = 4 + 2 + 4 + 4 + 4;
/// The head without the stream.
const HEAD_BYTES: usize = 1 + 8 + 8 + 8 + 4 + 8;
/// Length and checksum of a record of an earlier version, and its fields before the stream.
const OLD_PREFIX_BYTES: usize = 4 + 4;
const OLD_FIELDS_BYTES: usize = 1 + 8 + 8 + 8 + 2;
/// No version of roiflow writes longer records, so a larger length means a damaged file.
pub(super) const MAX_RECORD_BYTES: usize = 64 << 20;

/// Flags of the kind. A flag distinguishes a missing stream name from an empty name.
const IS_GAP: u8 = 1;
const IS_UNNAMED: u8 = 2;
/// The messages of a gap are of an earlier version, and have no numbers.
const HAS_NO_NUMBER: u8 = 8;
/// Only in records of earlier versions: the record has a part.
const HAS_PART: u8 = 4;

/// Format of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Records without marks, which earlier versions wrote.
    Old,
    Marked,
}

/// A stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) message: Message,
    /// When the message was stored, in milliseconds since 1970.
    pub(super) time: u64,
    pub(super) is_gap: bool,
    /// Number of the message in its stream; for a gap record, the numbers of its first and its last message. `None` in records of earlier
    /// versions.
    pub(super) first: Option<u64>,
    pub(super) number: Option<u64>,
}

/// The content of a segment at a position.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A record, and the offset after it.
    Record(Box<Record>, usize),
    /// Damaged bytes, and the offset after them.
    Damaged(usize),
    /// The beginning of a record without its end: the process was killed while it wrote the record.
    Torn,
}

/// A range of messages of one stream that were dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gap {
    event: String,
    message_id: String,
    pub(super) stream: Option<String>,
    pub(super) epoch: u64,
    /// Numbers of the first and the last dropped frame.
    pub(super) from: u64,
    pub(super) to: u64,
    /// Number of dropped messages.
    pub(super) dropped: u64,
    pub(super) reason: String,
    /// Numbers of the first and the last dropped message in their stream.
    #[serde(skip)]
    pub(super) first: Option<u64>,
    #[serde(skip)]
    pub(super) number: Option<u64>,
}

impl Gap {
    pub(super) fn of(message: &Message, number: Option<u64>, reason: &str) -> Self {
        let Message { stream, epoch, frame, .. } = message;
        let (event, message_id) = ("gap".to_owned(), String::new());
        let (stream, reason) = (stream.as_deref().map(str::to_owned), reason.to_owned());
        Self { event, message_id, stream, epoch: *epoch, from: *frame, to: *frame, dropped: 1, reason, first: number, number }
    }

    /// Merges a later gap into this gap if both belong to the same stream and epoch. Returns whether they do. Messages between the two
    /// gaps are missing, too: their records are damaged.
    fn include(&mut self, other: &Self) -> bool {
        let is_same = self.stream == other.stream && self.epoch == other.epoch;
        // A process that was killed while it replaced a segment leaves records behind the gap that replaces them.
        let is_known = other.number.is_some() && other.number <= self.number;
        if is_same && !is_known {
            let n_between = self.number.zip(other.first).map_or(0, |(last, first)| first.saturating_sub(last + 1));
            self.from = self.from.min(other.from);
            self.to = self.to.max(other.to);
            self.dropped += other.dropped + n_between;
            self.reason.clone_from(&other.reason);
            self.first = self.first.min(other.first);
            self.number = self.number.max(other.number);
        }
        is_same
    }

    /// The message that reports the gap.
    pub(super) fn message(mut self) -> Message {
        let stream = self.stream.as_deref().map(Into::into);
        let mut message = Message { payload: Vec::new(), stream, epoch: self.epoch, frame: self.to, part: 0 };
        self.message_id = format!("{}/{}/gap-{}-{}", message.stream_name(), self.epoch, self.from, self.to);
        message.payload = serde_json::to_vec(&self).unwrap_or_default();
        message
    }

    /// Reads the gap of a gap record.
    fn parse(record: &Record) -> Option<Self> {
        let gap: Self = serde_json::from_slice(&record.message.payload).ok()?;
        Some(Self { first: record.first, number: record.number, ..gap })
    }
}

/// Gaps of all streams, in the order in which the first message of each gap was dropped.
#[derive(Debug, Clone, Default)]
pub(super) struct Gaps(pub(super) Vec<Gap>);

impl Gaps {
    pub(super) fn add(&mut self, gap: Gap) {
        if !self.0.iter_mut().any(|known| known.include(&gap)) {
            self.0.push(gap);
        }
    }

    /// Adds a record: a message that is dropped, or an earlier gap. Returns the number of messages that are in no earlier gap.
    pub(super) fn add_record(&mut self, record: &Record, reason: &str) -> u64 {
        let n_all = |gaps: &[Gap]| gaps.iter().map(|gap| gap.dropped).sum::<u64>();
        let earlier = if record.is_gap { Gap::parse(record) } else { None };
        let n_before = n_all(&self.0) + earlier.as_ref().map_or(0, |gap| gap.dropped);
        self.add(earlier.unwrap_or_else(|| Gap::of(&record.message, record.number, reason)));
        n_all(&self.0).saturating_sub(n_before)
    }

    /// Appends the records that report the gaps to `bytes`.
    pub(super) fn write(&self, time: u64, bytes: &mut Vec<u8>) {
        for gap in &self.0 {
            let Gap { first, number, .. } = *gap;
            Record { message: gap.clone().message(), time, is_gap: true, first, number }.write(bytes);
        }
    }
}

impl Record {
    /// Appends the record to `bytes`.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        let Message { payload, stream, epoch, frame, part } = &self.message;
        let n_missing = self.first.zip(self.number).and_then(|(first, last)| u32::try_from((last + 1).checked_sub(first)?).ok());
        let part = if self.is_gap { n_missing.unwrap_or_default() } else { *part };
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let kind = flag(self.is_gap, IS_GAP) | flag(stream.is_none(), IS_UNNAMED) | flag(self.number.is_none(), HAS_NO_NUMBER);
        let stream = stream.as_deref().unwrap_or_default();
        // Names of streams are short; a longer one is cut at a character.
        let n_stream = stream.floor_char_boundary(usize::from(u16::MAX) - HEAD_BYTES);
        let begin = bytes.len();
        bytes.extend_from_slice(&MARK);
        bytes.extend_from_slice(&((HEAD_BYTES + n_stream) as u16).to_le_bytes());
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.push(kind);
        for number in [self.time, *epoch, *frame] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&part.to_le_bytes());
        bytes.extend_from_slice(&self.number.unwrap_or_default().to_le_bytes());
        bytes.extend_from_slice(&stream.as_bytes()[..n_stream]);
        let checksum = head_checksum(&bytes[begin..]);
        bytes[begin + PREFIX_BYTES - 4..begin + PREFIX_BYTES].copy_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(payload);
    }

    /// The frame of the message, or the first frame of the gap.
    pub(super) fn first_frame(&self) -> u64 {
        let gap = if self.is_gap { Gap::parse(self) } else { None };
        gap.map_or(self.message.frame, |gap| gap.from)
    }

    /// Whether the content of a file has a record.
    pub(super) fn is_any(bytes: &[u8]) -> bool {
        next_mark(bytes, 0).is_some()
    }

    /// Reads the record at an offset of the content of a segment.
    pub(super) fn read(bytes: &[u8], offset: usize, format: Format) -> Found {
        match format {
            Format::Old => Self::read_old(bytes, offset),
            Format::Marked => Self::read_marked(bytes, offset),
        }
    }

    fn read_marked(bytes: &[u8], offset: usize) -> Found {
        let rest = &bytes[offset..];
        let Some(head) = Head::parse(rest) else {
            return match next_mark(bytes, offset + 1) {
                Some(next) => Found::Damaged(next),
                None if rest.len() < PREFIX_BYTES + HEAD_BYTES && MARK.starts_with(&rest[..rest.len().min(MARK.len())]) => Found::Torn,
                None => Found::Damaged(bytes.len()),
            };
        };
        let end = offset + head.n_bytes + head.n_payload;
        let Some(payload) = bytes.get(offset + head.n_bytes..end) else {
            return next_mark(bytes, offset + 1).map_or(Found::Torn, Found::Damaged);
        };
        match crc32fast::hash(payload) == head.checksum {
            true => Found::Record(Box::new(head.record(payload)), end),
            false => Found::Damaged(end),
        }
    }

    fn read_old(bytes: &[u8], offset: usize) -> Found {
        let rest = &bytes[offset..];
        let Some((prefix, rest)) = rest.split_first_chunk::<OLD_PREFIX_BYTES>() else { return Found::Torn };
        let [a, b, c, d, e, f, g, h] = *prefix;
        let n_body = u32::from_le_bytes([a, b, c, d]) as usize;
        if !(OLD_FIELDS_BYTES..=MAX_RECORD_BYTES).contains(&n_body) {
            return Found::Damaged(bytes.len());
        }
        let Some(body) = rest.get(..n_body) else { return Found::Torn };
        let end = offset + OLD_PREFIX_BYTES + n_body;
        if crc32fast::hash(body) != u32::from_le_bytes([e, f, g, h]) {
            return Found::Damaged(end);
        }
        Self::parse_old(body).map_or(Found::Damaged(end), |record| Found::Record(Box::new(record), end))
    }

    fn parse_old(body: &[u8]) -> Option<Self> {
        let kind = *body.first()?;
        let (time, epoch, frame) = (number(body, 1)?, number(body, 9)?, number(body, 17)?);
        let n_stream = usize::from(u16::from_le_bytes(body.get(25..27)?.try_into().ok()?));
        let stream = std::str::from_utf8(body.get(OLD_FIELDS_BYTES..OLD_FIELDS_BYTES + n_stream)?).ok()?;
        let rest = body.get(OLD_FIELDS_BYTES + n_stream..)?;
        let (part, payload) = if kind & HAS_PART == 0 {
            (0, rest)
        } else {
            rest.split_at_checked(4).and_then(|(part, rest)| Some((u32::from_le_bytes(part.try_into().ok()?), rest)))?
        };
        let stream = (kind & IS_UNNAMED == 0).then(|| stream.into());
        let message = Message { payload: payload.to_vec(), stream, epoch, frame, part };
        Some(Self { message, time, is_gap: kind & IS_GAP != 0, first: None, number: None })
    }
}

/// The part of a record before its payload.
struct Head {
    /// Length up to the payload.
    n_bytes: usize,
    n_payload: usize,
    /// Checksum of the payload.
    checksum: u32,
    /// The record without its payload.
    record: Record,
}

impl Head {
    /// Reads the head at the start of `bytes`. Returns `None` if it is damaged or incomplete.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let [m0, m1, m2, m3, a, b, c, d, e, f, g, h, i, j, k, l, m, n] = *bytes.first_chunk::<PREFIX_BYTES>()?;
        let n_bytes = PREFIX_BYTES + usize::from(u16::from_le_bytes([a, b]));
        let n_payload = u32::from_le_bytes([c, d, e, f]) as usize;
        if [m0, m1, m2, m3] != MARK || n_bytes < PREFIX_BYTES + HEAD_BYTES || n_payload > MAX_RECORD_BYTES {
            return None;
        }
        let all = bytes.get(..n_bytes)?;
        if head_checksum(all) != u32::from_le_bytes([k, l, m, n]) {
            return None;
        }
        let head = &all[PREFIX_BYTES..];
        let (kind, part) = (head[0], u32::from_le_bytes(head.get(25..29)?.try_into().ok()?));
        let stream = std::str::from_utf8(&head[HEAD_BYTES..]).ok()?;
        let stream = (kind & IS_UNNAMED == 0).then(|| stream.into());
        let (time, epoch, frame) = (number(head, 1)?, number(head, 9)?, number(head, 17)?);
        let is_gap = kind & IS_GAP != 0;
        let number = number(head, 29).filter(|_| kind & HAS_NO_NUMBER == 0);
        let (first, part) = match (is_gap, part) {
            (false, _) => (number, part),
            (true, 0) => (None, 0),
            (true, n_missing) => (number.and_then(|last| (last + 1).checked_sub(n_missing.into())), 0),
        };
        let message = Message { payload: Vec::new(), stream, epoch, frame, part };
        let record = Record { message, time, is_gap, first, number };
        Some(Self { n_bytes, n_payload, checksum: u32::from_le_bytes([g, h, i, j]), record })
    }

    fn record(self, payload: &[u8]) -> Record {
        let message = Message { payload: payload.to_vec(), ..self.record.message };
        Record { message, ..self.record }
    }
}

/// Checksum of a head with its lengths and the checksum of its payload.
fn head_checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[MARK.len()..PREFIX_BYTES - 4]);
    hasher.update(&bytes[PREFIX_BYTES..]);
    hasher.finalize()
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// The offset of the next valid head at or after `from`.
fn next_mark(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(found) = bytes.get(at..)?.windows(MARK.len()).position(|window| window == MARK) {
        if Head::parse(&bytes[at + found..]).is_some() {
            return Some(at + found);
        }
        at += found + 1;
    }
    None
}
