//! The file `cursor` of a spool: the position up to which messages are acknowledged, and the newest messages of each stream.
//!
//! The file is `segment (8 bytes) | offset (8) | CRC-32 (4) | length of the rows (4) | CRC-32 of the rows (4) | rows as JSON`. Earlier
//! versions wrote only the first 20 bytes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::log::Position;
use super::record::Gap;

const POSITION_BYTES: usize = 8 + 8 + 4;
const PREFIX_BYTES: usize = POSITION_BYTES + 4 + 4;
/// Longer rows mean a damaged file.
const MAX_ROWS_BYTES: usize = 16 << 20;

/// A message of a stream: its number in the stream, its epoch and its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Last {
    pub(super) number: u64,
    pub(super) epoch: u64,
    pub(super) frame: u64,
}

/// The last acknowledged message and the last stored message of a stream, and its gap records that are in no segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) stream: Option<String>,
    pub(super) acknowledged: Option<Last>,
    pub(super) stored: Option<Last>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gaps: Vec<Gap>,
}

#[derive(Debug)]
pub(super) struct Cursor(pub(super) Arc<File>);

impl Cursor {
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join("cursor"))?;
        Ok(Self(Arc::new(file)))
    }

    /// Returns the position and the rows; `None` for a part that is missing or damaged.
    pub(super) fn read(&self) -> (Option<Position>, Option<Vec<Row>>) {
        let position = self.read_position();
        let rows = position.and_then(|_| self.read_rows());
        (position, rows)
    }

    fn read_position(&self) -> Option<Position> {
        let mut bytes = [0; POSITION_BYTES];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        let (numbers, checksum) = bytes.split_at(16);
        if checksum != crc32fast::hash(numbers).to_le_bytes() {
            return None;
        }
        let number = |at: usize| numbers[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        Some(Position { segment: number(0)?, offset: number(8)? })
    }

    fn read_rows(&self) -> Option<Vec<Row>> {
        let mut prefix = [0; 8];
        self.0.read_exact_at(&mut prefix, POSITION_BYTES as u64).ok()?;
        let [a, b, c, d, checksum @ ..] = prefix;
        let mut rows = vec![0; Some(u32::from_le_bytes([a, b, c, d]) as usize).filter(|n| *n <= MAX_ROWS_BYTES)?];
        self.0.read_exact_at(&mut rows, PREFIX_BYTES as u64).ok()?;
        (crc32fast::hash(&rows).to_le_bytes() == checksum).then(|| serde_json::from_slice(&rows).ok())?
    }

    /// Stores the position and the rows.
    pub(super) fn write(&self, position: Position, rows: Vec<Row>) -> io::Result<()> {
        let mut bytes = position.segment.to_le_bytes().to_vec();
        bytes.extend_from_slice(&position.offset.to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        let rows = serde_json::to_vec(&rows)?;
        bytes.extend_from_slice(&(rows.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&rows).to_le_bytes());
        bytes.extend_from_slice(&rows);
        self.0.write_all_at(&bytes, 0)
    }
}
