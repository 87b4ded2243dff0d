//! Checks whether a media file has all bytes that its container declares. The check reads only a few headers.
//!
//! ISO base media (mp4, mov): a sequence of boxes with sizes. Matroska: an EBML header, then a segment with a size. AVI: RIFF chunks with
//! sizes. Sources: ISO/IEC 14496-12, RFC 8794, RFC 9559, and Microsoft's RIFF specification.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Maximum number of boxes or chunks that are visited. A fragmented file has two boxes per fragment.
const MAX_PARTS: usize = 1_000_000;

/// Returns the declared and actual length of a truncated file; `None` if it is complete.
pub(super) fn missing_bytes(path: &Path) -> Option<(u64, u64)> {
    let file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let declared = declared_length(file, length)?;
    (declared > length).then_some((declared, length))
}

/// Returns the declared end of the last part that begins in the file. Returns `None` if the format is none of these three, or if a length
/// is not declared.
fn declared_length(mut file: impl Read + Seek, length: u64) -> Option<u64> {
    let mut begin = [0; 12];
    file.read_exact(&mut begin).ok()?;
    match &begin {
        [0x1a, 0x45, 0xdf, 0xa3, ..] => matroska(file),
        [b'R', b'I', b'F', b'F', ..] => parts(file, length, riff_chunk),
        [_, _, _, _, b'f', b't', b'y', b'p', ..] | [_, _, _, _, b'm', b'o', b'o', b'v', ..] | [_, _, _, _, b'w', b'i', b'd', b'e', ..] => {
            parts(file, length, iso_box)
        }
        _ => None,
    }
}

/// Visits the consecutive parts of a file, and returns the end of the last part. `size` reads the header of a part and returns the size of
/// that part.
fn parts<F: Read + Seek>(mut file: F, length: u64, size: impl Fn(&mut F) -> Option<u64>) -> Option<u64> {
    let mut at = 0_u64;
    for _ in 0..MAX_PARTS {
        // The remaining bytes are fewer than a header has, so they are padding.
        if at.saturating_add(8) > length {
            return Some(at);
        }
        file.seek(SeekFrom::Start(at)).ok()?;
        let size = size(&mut file)?;
        at = at.checked_add(size)?;
    }
    None
}

fn iso_box(file: &mut (impl Read + Seek)) -> Option<u64> {
    let mut header = [0; 8];
    file.read_exact(&mut header).ok()?;
    let [a, b, c, d, kind @ ..] = header;
    // These bytes are not a box type, so they are padding or data of another format after the last box.
    if !kind.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ' || *byte == 0xa9) {
        return None;
    }
    match u32::from_be_bytes([a, b, c, d]) {
        // A box of size 0 extends to the end of the file.
        0 => None,
        1 => {
            let mut large = [0; 8];
            file.read_exact(&mut large).ok()?;
            Some(u64::from_be_bytes(large)).filter(|size| *size >= 16)
        }
        size => Some(u64::from(size)).filter(|size| *size >= 8),
    }
}

fn riff_chunk(file: &mut (impl Read + Seek)) -> Option<u64> {
    let mut header = [0; 8];
    file.read_exact(&mut header).ok()?;
    let [kind @ .., a, b, c, d] = header;
    let size = u32::from_le_bytes([a, b, c, d]);
    // A file that was not finished declares the size 0.
    (&kind == b"RIFF" && size > 0).then(|| 8 + u64::from(size).next_multiple_of(2))
}

fn matroska(mut file: impl Read + Seek) -> Option<u64> {
    file.seek(SeekFrom::Start(4)).ok()?;
    let header = ebml_size(&mut file)?;
    file.seek(SeekFrom::Current(i64::try_from(header).ok()?)).ok()?;
    let mut id = [0; 4];
    file.read_exact(&mut id).ok()?;
    if id != [0x18, 0x53, 0x80, 0x67] {
        return None;
    }
    let size = ebml_size(&mut file)?;
    file.stream_position().ok()?.checked_add(size)
}

/// Whether a Matroska file has invalid data between its elements. Reads the header of every block.
pub(super) fn is_broken_matroska(path: &Path) -> bool {
    let is_broken = || {
        let file = File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        has_broken_elements(BufReader::new(file), length)
    };
    is_broken().unwrap_or(false)
}

/// Implements [`is_broken_matroska`]. Returns `None` for files that are not Matroska or have unknown sizes.
fn has_broken_elements(mut file: impl Read + Seek, length: u64) -> Option<bool> {
    const CLUSTER: u32 = 0x1f43_b675;
    let mut magic = [0; 4];
    file.read_exact(&mut magic).ok()?;
    if magic != [0x1a, 0x45, 0xdf, 0xa3] {
        return None;
    }
    let end = matroska(&mut file)?.min(length);
    // Skip the EBML header and the header of the segment. The loop then visits the children of the segment and of its clusters.
    file.seek(SeekFrom::Start(4)).ok()?;
    let header = ebml_size(&mut file)?;
    file.seek_relative(i64::try_from(header).ok()? + 4).ok()?;
    ebml_size(&mut file)?;
    let mut at = file.stream_position().ok()?;
    while at < end {
        let Some(id) = ebml_id(&mut file) else { return Some(true) };
        let size = ebml_size(&mut file)?;
        let begin = file.stream_position().ok()?;
        if id == CLUSTER {
            at = begin;
            continue;
        }
        at = begin.checked_add(size)?;
        if at > end {
            return Some(length >= end);
        }
        file.seek_relative(i64::try_from(size).ok()?).ok()?;
    }
    Some(false)
}

/// Reads the ID of an element; `None` if the ID is invalid in a segment or a cluster.
fn ebml_id(file: &mut impl Read) -> Option<u32> {
    let mut first = [0; 1];
    file.read_exact(&mut first).ok()?;
    let n_more = first[0].leading_zeros() as usize;
    if n_more > 3 {
        return None;
    }
    let mut bytes = [0; 4];
    bytes[3 - n_more] = first[0];
    file.read_exact(&mut bytes[4 - n_more..]).ok()?;
    Some(u32::from_be_bytes(bytes))
}

/// Reads the size of an EBML element; `None` if it is declared as unknown.
fn ebml_size(file: &mut impl Read) -> Option<u64> {
    let mut first = [0; 1];
    file.read_exact(&mut first).ok()?;
    let n_more = first[0].leading_zeros() as usize;
    if n_more > 7 {
        return None;
    }
    let mut bytes = [0; 8];
    // The marker bit is not part of the number. With eight bytes, the first byte has no other bits.
    bytes[7 - n_more] = first[0] & (0x7f_u8.checked_shr(n_more as u32).unwrap_or(0));
    file.read_exact(&mut bytes[8 - n_more..]).ok()?;
    let size = u64::from_be_bytes(bytes);
    (size != (1 << (7 * (n_more + 1))) - 1).then_some(size)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn declared(bytes: &[u8]) -> Option<u64> {
        declared_length(Cursor::new(bytes), bytes.len() as u64)
    }

    fn iso(boxes: &[(u32, &[u8; 4], usize)]) -> Vec<u8> {
        boxes.iter().flat_map(|(size, kind, n)| [&size.to_be_bytes()[..], &kind[..], &vec![0; *n]].concat()).collect()
    }

    #[test]
    fn truncated_mp4_is_detected() {
        assert_eq!(declared(&iso(&[(16, b"ftyp", 8), (108, b"moov", 100)])), Some(124));
        assert_eq!(declared(&iso(&[(16, b"ftyp", 8), (108, b"moov", 100), (1000, b"mdat", 10)])), Some(1124));
        assert_eq!(declared(&iso(&[(16, b"ftyp", 8), (0, b"mdat", 10)])), None, "extends to the end");
        assert_eq!(declared(&iso(&[(16, b"ftyp", 8), (3, b"moov", 100)])), None, "invalid size");
        let large = [&iso(&[(16, b"ftyp", 8), (1, b"mdat", 0)])[..], &5000_u64.to_be_bytes(), &[0; 50]].concat();
        assert_eq!(declared(&large), Some(5016));
        let overflow = [&iso(&[(16, b"ftyp", 8), (1, b"mdat", 0)])[..], &u64::MAX.to_be_bytes(), &[0; 50]].concat();
        assert_eq!(declared(&overflow), None);
    }

    #[test]
    fn truncated_matroska_and_avi_are_detected() {
        let begin = [0x1a, 0x45, 0xdf, 0xa3, 0x83, 1, 2, 3, 0x18, 0x53, 0x80, 0x67];
        assert_eq!(declared(&[&begin[..], &[0x84, 0, 0, 0, 0]].concat()), Some(17));
        assert_eq!(declared(&[&begin[..], &[0x01, 0, 0, 0, 0, 0, 1, 0]].concat()), Some(20 + 256));
        assert_eq!(declared(&[&begin[..], &[0x01, 255, 255, 255, 255, 255, 255, 255]].concat()), None, "unknown size");
        assert_eq!(declared(&[&begin[..], &[0xff]].concat()), None, "unknown size");
        let block = |size: u8, payload: &[u8]| [&[0xa3, 0x80 | size][..], payload].concat();
        let file = |cluster: &[u8]| {
            let cluster = [&[0x1f, 0x43, 0xb6, 0x75, 0x80 | cluster.len() as u8][..], cluster].concat();
            [&begin[..], &[0x80 | cluster.len() as u8], &cluster[..]].concat()
        };
        let broken = |bytes: &[u8]| has_broken_elements(Cursor::new(bytes), bytes.len() as u64);
        assert_eq!(broken(&file(&[block(3, &[1, 2, 3]), block(2, &[0, 0])].concat())), Some(false));
        assert_eq!(broken(&file(&[block(3, &[1, 2, 3]), vec![0, 0, 0, 0], block(2, &[0, 0])].concat())), Some(true));
        assert_eq!(broken(&file(&[block(3, &[1, 2, 3]), block(99, &[0, 0])].concat())), Some(true));
        assert_eq!(broken(b"RIFF\x10\0\0\0AVI LIST"), None);
        assert_eq!(declared(b"RIFF\x10\0\0\0AVI LIST"), Some(24));
        assert_eq!(declared(b"RIFF\0\0\0\0AVI LIST"), None);
        assert_eq!(declared(b"this is no media file"), None);
        assert_eq!(declared(b""), None);
    }
}
