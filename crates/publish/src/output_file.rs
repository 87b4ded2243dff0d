//! Output to a file, FIFO, device or standard output.
//!
//! [`OutputFile::check`] reports before the start whether the output can be written, without changing anything. The first write or flush
//! opens the file and replaces an existing file. If the program fails before its first result, the earlier results remain. A write that
//! waits for a reader ends at a [`Deadline`], which another thread can set.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};
use rustix::io::Errno;

use super::Deadline;

/// What to do if the file exists. Output to devices and FIFOs is always written, regardless of this setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfExists {
    /// Empty the file before the first write.
    #[default]
    Replace,
    /// Append to the file.
    Append,
    /// Report an error.
    Fail,
}

/// A file, FIFO, device or standard output. The first write or flush opens it.
#[derive(Debug)]
pub struct OutputFile {
    /// `None` for standard output.
    path: Option<PathBuf>,
    if_exists: IfExists,
    /// Whether an incomplete line at the end of an existing file is completed before text is appended.
    ends_lines: bool,
    /// Whether the file is locked while it is open.
    locks: bool,
    deadline: Deadline,
    opened: Option<Opened>,
}

#[derive(Debug)]
struct Opened {
    file: File,
    /// Whether writes can wait for a reader: FIFOs, pipes and terminals.
    can_wait: bool,
    /// Maximum size of one write.
    max_bytes: usize,
    /// Whether the file had a name when it was opened by its path, so that it can be deleted.
    has_name: bool,
    /// Shared by all line writers of this file.
    line_end: SharedLineEnd,
    /// Whether several streams of this process may write to the file.
    is_shared: bool,
}

/// Interval at which a waiting write checks its deadline.
const TICK: Duration = Duration::from_millis(50);
/// Number of bytes that a writable pipe accepts at once.
const PIPE_BYTES: usize = 4096;

/// The rest of a line that a writer could not complete. The next writer writes this rest first, so no line is torn. Writers hold the lock
/// while they write lines, so lines of several streams are not mixed.
#[derive(Debug, Default)]
pub(super) struct LineEnd {
    pub(super) rest: Vec<u8>,
    /// The writer that started the line.
    pub(super) writer: u64,
}

pub(super) type SharedLineEnd = Arc<Mutex<LineEnd>>;

/// The shared [`LineEnd`] of standard output, a device or a FIFO, by device and inode number. These numbers are unique while a writer has
/// the file open.
fn line_end_at(device: u64, number: u64) -> SharedLineEnd {
    type Entry = ((u64, u64), Weak<Mutex<LineEnd>>);
    static LINE_ENDS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
    let mut line_ends = LINE_ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    line_ends.retain(|(_, line_end)| line_end.strong_count() > 0);
    let known = line_ends.iter().find(|(id, _)| *id == (device, number)).and_then(|(_, line_end)| line_end.upgrade());
    known.unwrap_or_else(|| {
        let line_end = SharedLineEnd::default();
        line_ends.push(((device, number), Arc::downgrade(&line_end)));
        line_end
    })
}

/// Whether the path names standard output.
pub fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}

impl OutputFile {
    /// Creates the output without opening it. `-` and `/dev/stdout` are standard output.
    pub fn new(path: impl Into<PathBuf>, if_exists: IfExists, deadline: Deadline) -> Self {
        let path = path.into();
        let path = (!is_stdout(&path)).then_some(path);
        Self { path, if_exists, ends_lines: true, locks: true, deadline, opened: None }
    }

    /// Sets whether an incomplete line at the end of an existing file is completed before text is appended. Default: true.
    #[must_use]
    pub fn with_line_ends(mut self, ends_lines: bool) -> Self {
        self.ends_lines = ends_lines;
        self
    }

    /// Does not lock the file, because the caller holds a lock on it.
    #[must_use]
    pub fn without_lock(mut self) -> Self {
        self.locks = false;
        self
    }

    /// Whether the output is standard output.
    pub fn is_stdout(&self) -> bool {
        self.path.is_none()
    }

    /// Whether the output is open.
    pub fn is_open(&self) -> bool {
        self.opened.is_some()
    }

    /// Whether the open file was deleted since it was opened, so that its contents are lost. False for standard output, devices and FIFOs.
    pub fn is_deleted(&self) -> bool {
        let opened = self.opened.as_ref().filter(|opened| opened.has_name);
        opened.is_some_and(|opened| opened.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0))
    }

    /// Whether a muxer can seek in the output.
    pub fn is_seekable(&self) -> bool {
        if self.opened.as_ref().is_some_and(|opened| opened.is_shared) {
            return false;
        }
        let Some(path) = &self.path else { return false };
        self.if_exists != IfExists::Append && std::fs::metadata(path).map_or(true, |metadata| metadata.is_file())
    }

    /// Checks that the output can be opened, without changing anything.
    ///
    /// # Errors
    /// Returns the reason if the output cannot be opened.
    pub fn check(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if path.as_os_str().is_empty() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the path is empty"));
        }
        let may = |path: &Path, access| Ok(accessat(CWD, path, access, AtFlags::EACCESS)?);
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Err(ErrorKind::IsADirectory.into()),
            Ok(metadata) if metadata.is_file() && self.if_exists == IfExists::Fail => Err(ErrorKind::AlreadyExists.into()),
            // Open the file, because the permissions do not show every problem, such as a read-only file system.
            Ok(metadata) if metadata.is_file() => OpenOptions::new().write(true).open(path).map(drop),
            Ok(_) => may(path, Access::WRITE_OK),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (folder, name) = new_file(path)?;
                if name.is_none() {
                    return Err(ErrorKind::IsADirectory.into());
                }
                if !std::fs::metadata(&folder)?.is_dir() {
                    return Err(ErrorKind::NotADirectory.into());
                }
                may(&folder, Access::WRITE_OK | Access::EXEC_OK)
            }
            Err(error) => Err(error),
        }
    }

    fn open(&mut self) -> io::Result<&mut Opened> {
        if self.opened.is_none() {
            let opened = match &self.path {
                None => open_stdout()?,
                Some(path) => open_path(path, self.if_exists, (self.ends_lines, self.locks), &self.deadline)?,
            };
            self.opened = Some(opened);
        }
        Ok(self.opened.as_mut().expect("the file was opened above"))
    }

    /// The [`LineEnd`] that all line writers of this file share. Opens the file if it is not open.
    pub(super) fn line_end(&mut self) -> io::Result<SharedLineEnd> {
        Ok(self.open()?.line_end.clone())
    }
}

impl Write for OutputFile {
    /// Writes as many bytes as the file accepts. Waits for a reader until the deadline.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let deadline = self.deadline.clone();
        self.open()?.write(bytes, &deadline)
    }

    /// Opens the file if it is not open.
    fn flush(&mut self) -> io::Result<()> {
        self.open()?.file.flush()
    }
}

impl Seek for OutputFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.open()?.file.seek(to)
    }
}

impl Opened {
    fn write(&mut self, bytes: &[u8], deadline: &Deadline) -> io::Result<usize> {
        loop {
            if self.can_wait && !is_writable(&self.file, deadline)? {
                continue;
            }
            let n_bytes = bytes.len().min(self.max_bytes);
            match self.file.write(&bytes[..n_bytes]) {
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                written => return written,
            }
        }
    }
}

/// Waits at most [`TICK`] until the file is writable. Also returns true if a write would fail, because the write then reports the error.
fn is_writable(file: &File, deadline: &Deadline) -> io::Result<bool> {
    let mut descriptors = [PollFd::new(file, PollFlags::OUT)];
    // After the deadline, bytes that can be written immediately are still written.
    let remaining = deadline.remaining(TICK);
    let time = remaining.as_ref().map_or(Duration::ZERO, |time| *time);
    let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: time.as_nanos() as _ };
    match poll(&mut descriptors, Some(&time)) {
        Ok(0) => remaining.map(|_| false),
        Ok(_) => Ok(true),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the folder and the name of a file that does not exist yet. The name is `None` if the path can only be a folder. Dangling
/// symlinks are followed, because opening the path would create their target.
///
/// # Errors
/// Returns an error if symlinks form a cycle.
pub fn new_file(path: &Path) -> io::Result<(PathBuf, Option<std::ffi::OsString>)> {
    const MAX_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let is_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
        match std::fs::read_link(&path) {
            Ok(target) => path = folder.join(target),
            Err(_) => return Ok((folder, path.file_name().filter(|_| !is_folder).map(ToOwned::to_owned))),
        }
    }
    Err(Errno::LOOP.into())
}

fn open_path(path: &Path, if_exists: IfExists, (ends_lines, locks): (bool, bool), deadline: &Deadline) -> io::Result<Opened> {
    loop {
        let is_special = std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        let mut options = OpenOptions::new();
        // Opening a FIFO without a reader, or a slow device, must not block the thread.
        options.write(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        match if_exists {
            _ if is_special => {}
            IfExists::Replace => drop(options.create(true).truncate(false)),
            IfExists::Append => drop(options.append(true).create(true)),
            IfExists::Fail => drop(options.create_new(true)),
        }
        match options.open(path) {
            Ok(file) => {
                let metadata = file.metadata()?;
                let is_file = metadata.is_file();
                if is_file && locks {
                    lock(&file, if_exists)?;
                }
                if is_file && (ends_lines || if_exists != IfExists::Append) {
                    begin(&file, path, if_exists)?;
                }
                let line_end = if is_file { SharedLineEnd::default() } else { line_end_at(metadata.dev(), metadata.ino()) };
                let has_name = is_file && metadata.nlink() > 0;
                return Ok(Opened { can_wait: !is_file, max_bytes: usize::MAX, file, has_name, line_end, is_shared: !is_file });
            }
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) && is_fifo(path) => {
                deadline.sleep(TICK)?;
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_fifo(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// Locks a file until it is closed, so that no other run replaces its content. Several runs may append to a file.
fn lock(file: &File, if_exists: IfExists) -> io::Result<()> {
    // The magic numbers of SMB. Its locks are mandatory: they would keep other programs, and even this one, from the content.
    const SMB: [u32; 2] = [0xff53_4d42, 0xfe53_4d42];
    if rustix::fs::fstatfs(file).is_ok_and(|system| SMB.contains(&(system.f_type as u32))) {
        return Ok(());
    }
    // A file system without locks reports another error.
    if if_exists != IfExists::Append && matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return Err(io::Error::new(ErrorKind::ResourceBusy, "another stream or process writes this file; name another file"));
    }
    let _locked = file.try_lock_shared();
    Ok(())
}

/// Truncates a file, or terminates an incomplete line of an earlier run.
fn begin(mut file: &File, path: &Path, if_exists: IfExists) -> io::Result<()> {
    if if_exists != IfExists::Append {
        return file.set_len(0);
    }
    let last_byte = || {
        let mut readable = File::open(path)?;
        readable.seek(SeekFrom::End(-1))?;
        let mut last = [b'\n'];
        readable.read_exact(&mut last)?;
        io::Result::Ok(last[0])
    };
    match last_byte() {
        Ok(b'\n') | Err(_) => Ok(()),
        Ok(_) => file.write_all(b"\n"),
    }
}

fn open_stdout() -> io::Result<Opened> {
    let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let metadata = file.metadata()?;
    let line_end = line_end_at(metadata.dev(), metadata.ino());
    if metadata.is_file() {
        return Ok(Opened { file, can_wait: false, max_bytes: usize::MAX, has_name: false, line_end, is_shared: true });
    }
    // Open standard output again, so that non-blocking mode affects this process only. Other processes may share the original file
    // description.
    let own = OpenOptions::new().write(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open("/proc/self/fd/1");
    let (file, max_bytes) = own.map_or((file, PIPE_BYTES), |own| (own, usize::MAX));
    Ok(Opened { file, can_wait: true, max_bytes, has_name: false, line_end, is_shared: true })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("roiflow-output-file-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _removed = std::fs::remove_dir_all(&self.0);
        }
    }

    fn output(path: &Path, if_exists: IfExists) -> OutputFile {
        OutputFile::new(path, if_exists, Deadline::default())
    }

    #[test]
    fn file_is_replaced_by_the_first_write_only() {
        let folder = Folder::new("replace");
        let path = folder.0.join("file");
        std::fs::write(&path, "old").unwrap();
        let mut file = output(&path, IfExists::Replace);
        file.check().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        file.write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        let busy = |result: io::Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::ResourceBusy);
        output(&path, IfExists::Replace).check().unwrap();
        busy(output(&path, IfExists::Replace).write_all(b"other"));
        output(&path, IfExists::Append).write_all(b"er").unwrap();
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap(), b"new\ner");
        let mut empty = output(&path, IfExists::Replace);
        empty.flush().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn only_a_file_without_a_name_is_deleted() {
        let folder = Folder::new("deleted");
        let [path, moved] = ["file", "moved"].map(|name| folder.0.join(name));
        let mut file = output(&path, IfExists::Replace);
        assert!(!file.is_deleted(), "the file is not open");
        file.write_all(b"a").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        assert!(!file.is_deleted());
        std::fs::remove_file(&moved).unwrap();
        assert!(file.is_deleted());
        // This file had no name when it was opened.
        let mut unnamed = output(Path::new(&format!("/proc/self/fd/{}", file.opened.as_ref().unwrap().file.as_raw_fd())), IfExists::Append);
        unnamed.write_all(b"a").unwrap();
        assert!(!unnamed.is_deleted());
    }

    #[test]
    fn lines_are_appended_after_complete_lines() {
        let folder = Folder::new("append");
        let path = folder.0.join("file");
        for (before, after) in [("a\n", "a\nb\n"), ("torn", "torn\nb\n"), ("", "b\n")] {
            std::fs::write(&path, before).unwrap();
            output(&path, IfExists::Append).write_all(b"b\n").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
        }
    }

    #[test]
    fn check_reports_unwritable_outputs() {
        let folder = Folder::new("check");
        let file = folder.0.join("file");
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("nowhere/file", folder.0.join("dangling")).unwrap();
        std::os::unix::fs::symlink("circle", folder.0.join("circle")).unwrap();
        std::os::unix::fs::symlink("new", folder.0.join("link to new")).unwrap();
        let kind = |path: &Path, if_exists| output(path, if_exists).check().map_err(|error| error.kind());
        assert_eq!(kind(&file, IfExists::Fail), Err(ErrorKind::AlreadyExists));
        assert_eq!(kind(Path::new("/dev/null"), IfExists::Fail), Ok(()));
        for (name, expected) in [
            ("new", Ok(())),
            ("link to new", Ok(())),
            ("", Err(ErrorKind::IsADirectory)),
            ("new/", Err(ErrorKind::IsADirectory)),
            ("no/new", Err(ErrorKind::NotFound)),
            ("dangling", Err(ErrorKind::NotFound)),
            ("file/new", Err(ErrorKind::NotADirectory)),
        ] {
            assert_eq!(kind(&folder.0.join(name), IfExists::Replace), expected, "{name}");
        }
        assert!(kind(&folder.0.join("circle"), IfExists::Replace).is_err());
        assert_eq!(kind(Path::new(""), IfExists::Replace), Err(ErrorKind::InvalidInput));
        assert!(!folder.0.join("new").exists());
    }

    #[test]
    fn write_without_a_reader_ends_at_the_deadline() {
        let folder = Folder::new("deadline");
        let path = folder.0.join("fifo");
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let deadline = Deadline::default();
        let mut destination = OutputFile::new(&path, IfExists::Replace, deadline.clone());
        let writer = std::thread::spawn(move || {
            let opening = destination.write(b"x").map_err(|error| error.kind());
            (destination, opening)
        });
        deadline.set(Instant::now());
        let (mut destination, opening) = writer.join().unwrap();
        assert_eq!(opening, Err(ErrorKind::TimedOut));
        // A reader that reads nothing: the pipe accepts bytes until it is full.
        deadline.clear();
        let reader = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path).unwrap();
        assert!(destination.write(&[0; 1 << 20]).unwrap() < 1 << 20);
        deadline.set(Instant::now());
        let error = destination.write_all(&[0; 1 << 20]).unwrap_err().kind();
        assert_eq!(error, ErrorKind::TimedOut);
        drop(reader);
        assert_eq!(destination.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
