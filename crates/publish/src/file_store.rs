//! A folder with many files of one kind, such as images or clips. Files appear only when they are complete, and their total size is
//! limited.
//!
//! A file gets its name when it is complete. Until then it has a hidden name that ends in `.part`. When the limit is reached, the oldest
//! files of the same kind are deleted. Several stores, also of several processes, can use the same folder.

use std::ffi::OsStr;
use std::fs::{self, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// If the limit is reached, 1/`MARGIN` of it is freed in advance. Otherwise the folder would be listed for every new file.
const MARGIN: u64 = 16;
/// Age from which a partial file counts as left behind by a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Files in one folder whose names begin with a prefix.
#[derive(Debug)]
pub struct FileStore {
    folder: PathBuf,
    prefix: String,
    max_bytes: u64,
    /// Bytes that may be added until the folder is listed again.
    n_free: u64,
}

impl FileStore {
    /// Creates the folder if it is missing, and removes partial files of processes that were killed. `prefix` is the beginning of the names
    /// of all files of this kind: other files are never deleted. `max_bytes` limits the total size of the files; 0 is no limit.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created or read.
    pub fn open(folder: impl Into<PathBuf>, prefix: &str, max_bytes: u64) -> io::Result<Self> {
        Ok(Self::open_recovering(folder, prefix, max_bytes, |_| false)?.0)
    }

    /// Like [`FileStore::open`]. Partial files of killed processes get their names if `is_usable` accepts them; returns their paths. A
    /// process that writes such a file locks it as long as it writes.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created or read.
    pub fn open_recovering(
        folder: impl Into<PathBuf>,
        prefix: &str,
        max_bytes: u64,
        is_usable: impl Fn(&Path) -> bool,
    ) -> io::Result<(Self, Vec<PathBuf>)> {
        let folder = folder.into();
        fs::create_dir_all(&folder)?;
        let mut store = Self { folder, prefix: prefix.to_owned(), max_bytes, n_free: 0 };
        let (now, mut recovered) = (SystemTime::now(), Vec::new());
        for (time, part, n_bytes) in store.list(|name| name.starts_with(&format!(".{prefix}")) && name.ends_with(".part"))? {
            let name = part.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix('.')?.strip_suffix(".part"));
            let Some((name, _pid)) = name.and_then(|name| name.rsplit_once('.')) else { continue };
            let path = store.path(name);
            let lock = || fs::File::options().append(true).open(&part).map(|file| file.try_lock());
            // Another store may recover or remove the file at the same time, so a failure is no error.
            let is_recovered = is_usable(&part)
                && matches!(lock(), Ok(Ok(())))
                && !path.exists()
                && store.make_room(n_bytes).is_ok()
                && fs::rename(&part, &path).is_ok();
            if is_recovered {
                recovered.push(path);
            } else if now.duration_since(time).is_ok_and(|age| age >= ABANDONED) && !matches!(lock(), Ok(Err(TryLockError::WouldBlock))) {
                let _removed = fs::remove_file(part);
            }
        }
        Ok((store, recovered))
    }

    /// Like [`FileStore::part`]. Creates the folder again if it was deleted.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created.
    pub fn begin(&self, name: &str) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.folder)?;
        Ok(self.part(name))
    }

    /// The path of a file with this name while it is incomplete. `name` begins with the prefix.
    pub fn part(&self, name: &str) -> PathBuf {
        self.folder.join(format!(".{name}.{}.part", std::process::id()))
    }

    /// The path of a complete file with this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Gives a complete file its name, and returns its path. Deletes the oldest files if the limit is reached.
    ///
    /// # Errors
    /// Returns an error if the file alone is larger than the limit, or cannot be renamed. The partial file is removed.
    pub fn finish(&mut self, name: &str) -> io::Result<PathBuf> {
        let (part, path) = (self.part(name), self.path(name));
        let renamed = fs::metadata(&part).and_then(|metadata| self.make_room(metadata.len())).and_then(|()| fs::rename(&part, &path));
        match renamed {
            Ok(()) => Ok(path),
            Err(error) => {
                self.abandon(name);
                Err(error)
            }
        }
    }

    /// Removes the partial file with this name.
    pub fn abandon(&self, name: &str) {
        // The file may not exist yet.
        let _removed = fs::remove_file(self.part(name));
    }

    /// Writes a file, and returns its path.
    ///
    /// # Errors
    /// Returns the errors of [`FileStore::begin`] and [`FileStore::finish`], and an error if the disk is full.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let written = self.begin(name).and_then(fs::File::create).and_then(|mut file| file.write_all(bytes));
        if let Err(error) = written {
            self.abandon(name);
            return Err(error);
        }
        self.finish(name)
    }

    /// Deletes the oldest files until `n_bytes` more fit into the limit.
    fn make_room(&mut self, n_bytes: u64) -> io::Result<()> {
        if self.max_bytes == 0 {
            return Ok(());
        }
        if n_bytes > self.max_bytes {
            let text = format!("expected at most {} bytes, the limit of the folder, got a file of {n_bytes} bytes", self.max_bytes);
            return Err(io::Error::new(ErrorKind::FileTooLarge, text));
        }
        if let Some(n_left) = self.n_free.checked_sub(n_bytes) {
            self.n_free = n_left;
            return Ok(());
        }
        let mut files = self.list(|name| name.starts_with(&self.prefix))?;
        files.sort();
        let mut total: u64 = files.iter().map(|(_, _, n_bytes)| n_bytes).sum();
        // Free more than needed: see `MARGIN`.
        let goal = (self.max_bytes - n_bytes).saturating_sub(self.max_bytes / MARGIN);
        for (_, path, n_bytes) in files {
            if total <= goal {
                break;
            }
            match fs::remove_file(path) {
                Ok(()) => total -= n_bytes,
                // Another store has deleted the file.
                Err(error) if error.kind() == ErrorKind::NotFound => total -= n_bytes,
                Err(error) => return Err(error),
            }
        }
        self.n_free = self.max_bytes.saturating_sub(total + n_bytes);
        Ok(())
    }

    /// Time of the last change, path and size of the files whose names `is_it` accepts.
    fn list(&self, is_it: impl Fn(&str) -> bool) -> io::Result<Vec<(SystemTime, PathBuf, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.file_name().and_then(OsStr::to_str).is_some_and(&is_it)
                // Another store may delete the file at any time. Links are not followed.
                && let Ok(metadata) = fs::symlink_metadata(&path)
                && metadata.is_file()
            {
                files.push((metadata.modified()?, path, metadata.len()));
            }
        }
        Ok(files)
    }
}

/// Returns the first 64 characters of a text for use in a file name. All characters except letters, digits, `.`, `_` and `-` become `_`.
pub fn file_name_part(text: &str) -> String {
    text.chars().map(|c| if c.is_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' }).take(64).collect()
}

/// Returns an absolute path without resolving links, for messages to programs with another working folder.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("roiflow store {} {test}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let names = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        }

        fn age(&self, name: &str, seconds: u64) {
            let file = fs::File::options().append(true).open(self.0.join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn oldest_files_of_the_kind_make_room() {
        let folder = Folder::new("quota");
        fs::write(folder.0.join("other.jpg"), [0; 500]).unwrap();
        folder.age("other.jpg", 9000);
        let mut store = FileStore::open(&folder.0, "crop-", 100).unwrap();
        for n in 0..4 {
            store.write(&format!("crop-{n}"), &[0; 30]).unwrap();
            folder.age(&format!("crop-{n}"), 100 - n);
            let total: u64 = folder.names().iter().filter(|name| name.starts_with("crop")).map(|_| 30).sum();
            assert!(total <= 100, "{:?}", folder.names());
        }
        assert_eq!(folder.names(), ["crop-1", "crop-2", "crop-3", "other.jpg"]);
        // A second store of the same folder counts the files of the first.
        let mut second = FileStore::open(&folder.0, "crop-", 100).unwrap();
        second.write("crop-4", &[0; 60]).unwrap();
        assert_eq!(folder.names(), ["crop-3", "crop-4", "other.jpg"]);
    }

    #[test]
    fn deleted_folder_is_created_again() {
        let folder = Folder::new("again");
        for limit in [0, 100] {
            let mut store = FileStore::open(folder.0.join("a/b"), "clip-", limit).unwrap();
            store.write("clip-1", &[0; 30]).unwrap();
            fs::remove_dir_all(folder.0.join("a")).unwrap();
            let path = store.write("clip-2", &[0; 90]).unwrap();
            assert_eq!(fs::read(path).unwrap().len(), 90);
        }
    }

    #[test]
    fn file_above_the_limit_is_an_error_and_leaves_nothing() {
        let folder = Folder::new("large");
        let mut store = FileStore::open(&folder.0, "clip-", 100).unwrap();
        store.write("clip-1", &[0; 90]).unwrap();
        let error = store.write("clip-2", &[0; 101]).unwrap_err();
        assert!(error.to_string().contains("expected at most 100 bytes"), "{error}");
        assert_eq!(folder.names(), ["clip-1"]);
    }

    #[test]
    fn partial_files_have_no_final_name_and_are_removed_when_old() {
        let folder = Folder::new("part");
        let store = FileStore::open(&folder.0, "clip-", 0).unwrap();
        fs::write(store.part("clip-1.mp4"), "half").unwrap();
        fs::write(store.part("clip-2.mp4"), "half").unwrap();
        let part = |name: &str| store.part(name).file_name().unwrap().to_str().unwrap().to_owned();
        folder.age(&part("clip-1.mp4"), 7200);
        let mut store = FileStore::open(&folder.0, "clip-", 0).unwrap();
        assert_eq!(folder.names(), [part("clip-2.mp4")]);
        assert_eq!(store.finish("clip-2.mp4").unwrap(), folder.0.join("clip-2.mp4"));
        assert_eq!(folder.names(), ["clip-2.mp4"]);
    }

    #[test]
    fn usable_files_of_killed_processes_get_their_names() {
        let folder = Folder::new("recover");
        let store = FileStore::open(&folder.0, "clip-", 0).unwrap();
        let part = |name: &str| store.part(name).file_name().unwrap().to_str().unwrap().to_owned();
        let locked = fs::File::create(store.part("clip-1.mp4")).unwrap();
        locked.try_lock().unwrap();
        for name in ["clip-2.mp4", "clip-3.mp4"] {
            fs::write(store.part(name), name).unwrap();
            folder.age(&part(name), 7200);
        }
        let is_usable = |path: &Path| fs::read_to_string(path).is_ok_and(|text| text != "clip-3.mp4");
        let recovered = || FileStore::open_recovering(&folder.0, "clip-", 0, is_usable).unwrap().1;
        assert_eq!(recovered(), [folder.0.join("clip-2.mp4")]);
        assert_eq!(folder.names(), [part("clip-1.mp4"), "clip-2.mp4".to_owned()]);
        drop(locked);
        assert_eq!(recovered(), [folder.0.join("clip-1.mp4")]);
    }

    #[test]
    fn names_of_streams_become_parts_of_file_names() {
        assert_eq!(file_name_part("../Tür 1/a:b"), ".._Tür_1_a_b");
    }
}
