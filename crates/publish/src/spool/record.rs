//! Form of a message on disk, and records of gaps.
//!
//! A record is `length (4 bytes) | CRC-32 (4) | kind (1) | time (8) | epoch (8) | frame (8) | stream length (2) | stream | part (4) |
//! payload`. Numbers are little-endian. Length and checksum cover the bytes after the checksum. Only messages with a part above 0 have the
//! field `part`.

use serde::{Deserialize, Serialize};

use crate::Message;

/// Length and checksum.
pub(super) const PREFIX_BYTES: usize = 8;
/// The fields after the checksum, before the stream.
const FIELDS_BYTES: usize = 1 + 8 + 8 + 8 + 2;
/// No version of roiflow writes longer records, so a larger length means a damaged file.
pub(super) const MAX_RECORD_BYTES: usize = 64 << 20;

/// A stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) message: Message,
    /// When the message was stored, in milliseconds since 1970.
    pub(super) time: u64,
    pub(super) is_gap: bool,
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
}

impl Gap {
    pub(super) fn of(message: &Message, reason: &str) -> Self {
        let Message { stream, epoch, frame, .. } = message;
        let (stream, reason) = (stream.as_deref().map(str::to_owned), reason.to_owned());
        Self { event: "gap".to_owned(), message_id: String::new(), stream, epoch: *epoch, from: *frame, to: *frame, dropped: 1, reason }
    }

    /// Merges `other` into this gap if both belong to the same stream and epoch. Returns whether they do.
    fn include(&mut self, other: &Self) -> bool {
        let is_same = self.stream == other.stream && self.epoch == other.epoch;
        if is_same {
            self.from = self.from.min(other.from);
            self.to = self.to.max(other.to);
            self.dropped += other.dropped;
            self.reason.clone_from(&other.reason);
        }
        is_same
    }

    /// The message that reports the gap.
    pub(super) fn message(mut self) -> Message {
        let mut message =
            Message { payload: Vec::new(), stream: self.stream.as_deref().map(Into::into), epoch: self.epoch, frame: self.to, part: 0 };
        self.message_id = format!("{}/{}/gap-{}-{}", message.stream_name(), self.epoch, self.from, self.to);
        message.payload = serde_json::to_vec(&self).unwrap_or_default();
        message
    }

    /// Reads the gap of a gap record.
    pub(super) fn parse(message: &Message) -> Option<Self> {
        serde_json::from_slice(&message.payload).ok()
    }
}

/// Gaps of all streams, in the order in which the first message of each gap was dropped.
#[derive(Debug, Default)]
pub(super) struct Gaps(pub(super) Vec<Gap>);

impl Gaps {
    pub(super) fn add(&mut self, gap: Gap) {
        if !self.0.iter_mut().any(|known| known.include(&gap)) {
            self.0.push(gap);
        }
    }

    /// Adds a record: a message that is dropped, or an earlier gap.
    pub(super) fn add_record(&mut self, record: &Record, reason: &str) {
        let earlier = if record.is_gap { Gap::parse(&record.message) } else { None };
        self.add(earlier.unwrap_or_else(|| Gap::of(&record.message, reason)));
    }

    /// The records that report the gaps.
    pub(super) fn into_records(self, time: u64) -> impl Iterator<Item = Record> {
        self.0.into_iter().map(move |gap| Record { message: gap.message(), time, is_gap: true })
    }
}

impl Record {
    /// Appends the record to `bytes`.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        let Message { payload, stream, epoch, frame, part } = &self.message;
        // A flag in the kind distinguishes a missing stream name from an empty name.
        let kind = u8::from(self.is_gap) | u8::from(stream.is_none()) << 1 | u8::from(*part > 0) << 2;
        let stream = stream.as_deref().unwrap_or_default();
        let begin = bytes.len();
        bytes.extend_from_slice(&[0; PREFIX_BYTES]);
        bytes.push(kind);
        bytes.extend_from_slice(&self.time.to_le_bytes());
        bytes.extend_from_slice(&epoch.to_le_bytes());
        bytes.extend_from_slice(&frame.to_le_bytes());
        // Names of streams are short; a longer one is cut at a character.
        let n_stream = stream.floor_char_boundary(usize::from(u16::MAX));
        bytes.extend_from_slice(&(n_stream as u16).to_le_bytes());
        bytes.extend_from_slice(&stream.as_bytes()[..n_stream]);
        if *part > 0 {
            bytes.extend_from_slice(&part.to_le_bytes());
        }
        bytes.extend_from_slice(payload);
        let body = &bytes[begin + PREFIX_BYTES..];
        let (length, checksum) = (body.len() as u32, crc32fast::hash(body));
        bytes[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
        bytes[begin + 4..begin + PREFIX_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Length and checksum of the body. Returns `None` if a record cannot have this length.
    pub(super) fn prefix(bytes: [u8; PREFIX_BYTES]) -> Option<(usize, u32)> {
        let [a, b, c, d, e, f, g, h] = bytes;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        (FIELDS_BYTES..=MAX_RECORD_BYTES).contains(&length).then_some((length, u32::from_le_bytes([e, f, g, h])))
    }

    /// Reads the bytes after the checksum. `None` if they are damaged.
    pub(super) fn parse(body: &[u8], checksum: u32) -> Option<Self> {
        if crc32fast::hash(body) != checksum {
            return None;
        }
        let number = |at: usize| body.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let kind = *body.first()?;
        let (time, epoch, frame) = (number(1)?, number(9)?, number(17)?);
        let n_stream = usize::from(u16::from_le_bytes(body.get(25..27)?.try_into().ok()?));
        let stream = std::str::from_utf8(body.get(FIELDS_BYTES..FIELDS_BYTES + n_stream)?).ok()?;
        let rest = body.get(FIELDS_BYTES + n_stream..)?;
        let (part, payload) = if kind & 4 == 0 {
            (0, rest)
        } else {
            rest.split_at_checked(4).and_then(|(part, rest)| Some((u32::from_le_bytes(part.try_into().ok()?), rest)))?
        };
        let payload = payload.to_vec();
        let stream = (kind & 2 == 0).then(|| stream.into());
        Some(Self { message: Message { payload, stream, epoch, frame, part }, time, is_gap: kind & 1 == 1 })
    }
}
