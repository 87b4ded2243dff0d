//! The files of segments: their names, their first bytes, and files that only look like segments.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::record::{Format, MAX_RECORD_BYTES, Record};

/// First bytes of a segment: identifies the format.
pub(super) const MAGIC: &[u8; 8] = b"RFSPOOL2";
const OLD_MAGIC: &[u8; 8] = b"RFSPOOL1";
pub(super) const HEADER_BYTES: u64 = MAGIC.len() as u64;
/// A longer file is no segment.
const MAX_BYTES: u64 = 2 * MAX_RECORD_BYTES as u64;
/// Files with higher numbers are no segments.
const MAX_NUMBER: u64 = u64::MAX / 2;
const EXTENSION: &str = "segment";

pub(super) fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:016x}.{EXTENSION}"))
}

/// Returns the numbers of the segments in a folder, in ascending order.
pub(super) fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers: Vec<u64> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| u64::from_str_radix(stem.to_str()?, 16).ok());
        numbers.extend(number.filter(|number| *number <= MAX_NUMBER && path == path_of(folder, *number)));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

pub(super) fn create(folder: &Path, number: u64) -> io::Result<File> {
    let path = path_of(folder, number);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    if let Err(error) = file.write_all_at(MAGIC, 0) {
        remove(&path);
        return Err(error);
    }
    Ok(file)
}

/// Opens the file of a segment to append to it.
pub(super) fn open(folder: &Path, number: u64) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path_of(folder, number))
}

pub(super) fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!("cannot delete {}: {error}", path.display());
    }
}

/// Reads the content of a segment, and repairs its first bytes.
///
/// # Errors
/// Returns an error if the file cannot be read, or is no segment.
pub(super) fn read(folder: &Path, number: u64) -> io::Result<(Format, Vec<u8>)> {
    let path = path_of(folder, number);
    let no_segment = |found: &str| io::Error::new(ErrorKind::InvalidData, format!("expected a segment of a spool, got {found}"));
    let metadata = std::fs::metadata(&path)?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(no_segment(if metadata.is_file() { "a larger file" } else { "no regular file" }));
    }
    let mut bytes = std::fs::read(&path)?;
    if bytes.starts_with(OLD_MAGIC) {
        return Ok((Format::Old, bytes));
    }
    if !bytes.starts_with(MAGIC) {
        // A killed process leaves a part of the first bytes, and a power failure leaves zeros. Otherwise, only the first bytes are damaged.
        let is_segment = MAGIC.starts_with(&bytes) || bytes.iter().all(|byte| *byte == 0) || Record::is_any(&bytes);
        if !is_segment {
            return Err(no_segment("another file"));
        }
        bytes.resize(bytes.len().max(MAGIC.len()), 0);
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        if let Err(error) = open(folder, number).and_then(|file| file.write_all_at(MAGIC, 0)) {
            tracing::warn!("cannot repair {}: {error}", path.display());
        }
    }
    Ok((Format::Marked, bytes))
}

/// Renames a file that is named like a segment and cannot be read. Its content stays, because it may belong to the user.
///
/// # Errors
/// Returns an error if the file may be readable later, or cannot be renamed.
pub(super) fn set_aside(folder: &Path, number: u64, error: io::Error) -> io::Result<()> {
    let path = path_of(folder, number);
    let of_file = |error: &io::Error, text: String| Err(io::Error::new(error.kind(), format!("{}: {text}", path.display())));
    if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) {
        return of_file(&error, error.to_string());
    }
    let name = |n: u32| path.with_extension(if n == 1 { format!("{EXTENSION}.damaged") } else { format!("{EXTENSION}.damaged-{n}") });
    let Some(free) = (1..).map(name).find(|path| path.symlink_metadata().is_err()) else { return Err(error) };
    match std::fs::rename(&path, &free) {
        Ok(()) => tracing::warn!("spool file {}: {error}. It is renamed to {}", path.display(), free.display()),
        // The file was deleted in the meantime.
        Err(renamed) if renamed.kind() == ErrorKind::NotFound => {}
        Err(renamed) => return of_file(&renamed, format!("{error}. It cannot be renamed: {renamed}. Move it out of the folder")),
    }
    Ok(())
}
