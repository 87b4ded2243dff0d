//! Reads regular files completely, up to a size limit.
//!
//! A path may name an endless device, a FIFO without a writer, or a file larger than memory. A plain read of such a path would never end,
//! or would exhaust the memory. [`read_limited`] and [`read_text`] read a whole file into memory. [`open_regular`] opens a file that the
//! caller then reads, and [`Parts`] reads a file in parts.

use std::fmt;
use std::fs::{File, FileType};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{Error, ErrorKind, Result};

/// Maximum size of model descriptions, pipeline descriptions, model-proc files, and metadata files alongside a model.
pub const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;
/// Maximum size of text files with labels.
pub const MAX_LABELS_BYTES: u64 = 16 << 20;
/// Maximum size of gallery files, which contain vectors of known objects.
pub const MAX_GALLERY_BYTES: u64 = 256 << 20;
/// Maximum size of model files. Models in the protocol buffers format (ONNX) can have at most half of this size.
pub const MAX_MODEL_BYTES: u64 = 4 << 30;
/// Maximum size of the XML file of an OpenVINO IR, without its weights.
pub const MAX_XML_BYTES: u64 = 256 << 20;

/// Opens a regular file for reading. Never blocks, not even for a FIFO. `what` names the kind of file in messages, such as "labels file".
///
/// # Errors
/// Returns `Io` if the file cannot be opened, or is not a regular file.
pub fn open_regular(path: &Path, what: &str) -> Result<File> {
    let failed = |why: &dyn fmt::Display| cannot_read(path, what, why, "check the path");
    let check = |kind: FileType| {
        if kind.is_file() { Ok(()) } else { Err(failed(&format_args!("expected a regular file, got {}", kind_name(kind)))) }
    };
    // Check the type before opening, because opening a FIFO blocks until there is a writer.
    check(std::fs::metadata(path).map_err(|error| failed(&error))?.file_type())?;
    let file = File::open(path).map_err(|error| failed(&error))?;
    // Check again, because the file may have been replaced after the first check.
    check(file.metadata().map_err(|error| failed(&error))?.file_type())?;
    Ok(file)
}

/// Reads a file of at most `max_bytes`. `what` names the kind of file in messages.
///
/// # Errors
/// Returns the errors of [`open_regular`]. Also returns `Io` if the file cannot be read, changes meanwhile, or is larger than `max_bytes`.
pub fn read_limited(path: &Path, max_bytes: u64, what: &str) -> Result<Vec<u8>> {
    let file = open_regular(path, what)?;
    let too_large = |n_bytes: &dyn fmt::Display| {
        cannot_read(path, what, &format_args!("expected at most {max_bytes} bytes, got {n_bytes}"), "name another file")
    };
    let before = state_of(&file);
    let n_bytes = before.map_or(0, |(n_bytes, _)| n_bytes);
    if n_bytes > max_bytes {
        return Err(too_large(&n_bytes));
    }
    let mut bytes = Vec::with_capacity(n_bytes as usize);
    // Do not trust the reported size: the file may grow, and files in `/proc` report 0. So read up to one byte more than the limit: if this
    // byte exists, the file is too large.
    (&file).take(max_bytes + 1).read_to_end(&mut bytes).map_err(|error| cannot_read(path, what, &error, "check the path"))?;
    if state_of(&file) != before {
        return Err(changed(path, what));
    }
    if bytes.len() as u64 > max_bytes {
        return Err(too_large(&"more"));
    }
    Ok(bytes)
}

/// An open file that is read in parts.
#[derive(Debug)]
pub struct Parts {
    file: File,
    path: PathBuf,
    what: &'static str,
    before: Option<State>,
}

impl Parts {
    /// Opens a file. `what` names the kind of file in messages.
    ///
    /// # Errors
    /// Returns the errors of [`open_regular`].
    pub fn open(path: &Path, what: &'static str) -> Result<Self> {
        let file = open_regular(path, what)?;
        Ok(Self { before: state_of(&file), file, path: path.to_owned(), what })
    }

    /// Returns the size of the file in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.before.map_or(0, |(n_bytes, _)| n_bytes)
    }

    /// Appends `len` bytes from `offset` on to `bytes`. Returns false if the file has fewer bytes.
    ///
    /// # Errors
    /// Returns `Io` if the file cannot be read.
    pub fn read(&mut self, offset: u64, len: u64, bytes: &mut Vec<u8>) -> Result<bool> {
        if offset.checked_add(len).is_none_or(|end| end > self.n_bytes()) {
            return Ok(false);
        }
        let read = self.file.seek(SeekFrom::Start(offset)).and_then(|_| (&self.file).take(len).read_to_end(bytes));
        read.map(|n_read| n_read as u64 == len).map_err(|error| cannot_read(&self.path, self.what, &error, "check the path"))
    }

    /// Checks that the file is the same as when it was opened, so that all parts belong together.
    ///
    /// # Errors
    /// Returns `Io` if the file has changed.
    pub fn check(&self) -> Result<()> {
        if state_of(&self.file) == self.before { Ok(()) } else { Err(changed(&self.path, self.what)) }
    }
}

/// The size and the time of the last change of a file.
type State = (u64, SystemTime);

fn state_of(file: &File) -> Option<State> {
    file.metadata().and_then(|file| Ok((file.len(), file.modified()?))).ok()
}

fn changed(path: &Path, what: &str) -> Error {
    cannot_read(path, what, &"the file changed while it was read", "write it to another name, then rename it")
}

/// Same as [`read_limited`], but for text in UTF-8.
///
/// # Errors
/// Returns the errors of [`read_limited`]. Also returns `Io` if the text is not UTF-8.
pub fn read_text(path: &Path, max_bytes: u64, what: &str) -> Result<String> {
    String::from_utf8(read_limited(path, max_bytes, what)?).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        cannot_read(path, what, &format_args!("expected a text in UTF-8, got other bytes at {place}"), "save the file as UTF-8")
    })
}

fn cannot_read(path: &Path, what: &str, why: &dyn fmt::Display, remedy: &str) -> Error {
    Error::new(ErrorKind::Io, format!("cannot read {what} `{}`: {why}; {remedy}", path.display()))
}

fn kind_name(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a FIFO or pipe";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    if kind.is_dir() { "a folder" } else { "something else" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let folder = std::env::temp_dir().join(format!("roiflow-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("ten");
        std::fs::write(&file, "0123456789").unwrap();
        assert_eq!(read_text(&file, 10, "text").unwrap(), "0123456789");
        let fails = |path: &Path, max, parts: &[&str]| {
            let error = read_limited(path, max, "text").unwrap_err();
            let said = error.to_string();
            assert!(error.kind() == ErrorKind::Io && parts.iter().all(|part| said.contains(part)), "{said}");
        };
        fails(&file, 9, &["text", "ten`", "at most 9 bytes", "got 10"]);
        fails(&folder, 9, &["regular file, got a folder"]);
        fails(&folder.join("none"), 9, &["No such file"]);
        #[cfg(unix)]
        {
            fails(Path::new("/dev/zero"), 9, &["/dev/zero", "regular file, got a device"]);
            let fifo = folder.join("fifo");
            assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
            fails(&fifo, 9, &["got a FIFO"]);
            std::os::unix::fs::symlink("/dev/zero", folder.join("link")).unwrap();
            fails(&folder.join("link"), 9, &["got a device"]);
            std::os::unix::fs::symlink("loop", folder.join("loop")).unwrap();
            read_limited(&folder.join("loop"), 9, "text").unwrap_err();
        }
        std::fs::write(&file, [b'a', 0xff]).unwrap();
        assert!(read_text(&file, 9, "text").unwrap_err().to_string().contains("UTF-8, got other bytes at 1"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Files in `/proc` report a size of 0, but have content.
    #[test]
    #[cfg(target_os = "linux")]
    fn files_of_the_system_are_read_to_their_end() {
        assert!(read_text(Path::new("/proc/self/status"), 1 << 20, "status").unwrap().contains("VmRSS"));
        read_limited(Path::new("/proc/self/status"), 10, "status").unwrap_err();
    }
}
