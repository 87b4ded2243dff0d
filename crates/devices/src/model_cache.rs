//! A cache of compiled models in a folder, and the removal of its old entries.
//!
//! - An entry is a folder. Its name is a hash of everything on which the compiled model depends. A changed model has a different name, so
//!   an entry never becomes outdated.
//! - A new entry is first written to a draft, which is a folder that only this process uses. When the draft is complete, one rename makes
//!   it the entry. The files of an entry are never changed, because other processes may read them.
//! - Each entry has a list of checksums. If they do not match, the entry is removed and the model is compiled again. The engine gets the bytes
//!   that were checked, so a file that changes after the check has no effect.
//! - The process that writes a draft holds a file lock on it (`flock`). The lock ends with the process. Drafts without a lock are removed.
//! - Entries that were not used for 90 days are removed. If the remaining entries exceed 2 GiB, the least recently used entries are removed
//!   as well. `ROIFLOW_CACHE_DAYS` and `ROIFLOW_CACHE_SIZE` (such as `500M` or `4G`) change these limits. A process that uses a file can
//!   still read it after its removal.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, FileTimes, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Version of the entry format. Increase it if this program must not use the entries that earlier versions of it wrote.
const FORMAT: u32 = 2;
/// The kinds of entries. The name of an entry begins with its kind.
const KINDS: [&str; 3] = ["openvino", "onnxruntime", "reshaped"];
/// The file in an entry that has the checksums of the other files.
const SUMS: &str = "sums";
/// The ending of the name of a draft.
const DRAFT: &str = "tmp";
/// On a file system without locks, a draft of this age is considered abandoned.
const DRAFT_AGE: Duration = Duration::from_secs(24 * 3600);

/// A cache entry, identified by its folder and name. The entry need not exist yet.
#[derive(Debug)]
pub struct CacheEntry {
    folder: PathBuf,
    name: String,
}

impl CacheEntry {
    /// Returns the entry in `folder` for a model that depends only on `made_from`. Creates the folder. `kind` must be one of [`KINDS`].
    ///
    /// # Errors
    /// Returns the system's error if the folder cannot be created.
    pub fn of(folder: &Path, kind: &str, made_from: impl Hash) -> io::Result<Self> {
        debug_assert!(KINDS.contains(&kind), "`KINDS` must contain `{kind}`");
        create_private(folder, true)?;
        // The name has two 64-bit hashes. With only one hash, two models could get the same name by chance.
        let [a, b] = [0_u8, 1].map(|seed| {
            let mut hasher = DefaultHasher::new();
            (seed, FORMAT, &made_from).hash(&mut hasher);
            hasher.finish()
        });
        Ok(Self { folder: folder.to_owned(), name: format!("{kind}-{a:016x}{b:016x}") })
    }

    fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Returns the folder of the entry, if it exists and its checksums match. Removes a damaged entry.
    #[cfg_attr(not(any(test, feature = "openvino")), allow(dead_code, reason = "for OpenVINO only"))]
    pub fn found(&self) -> Option<PathBuf> {
        self.read(|_, _| ())
    }

    /// Same as [`CacheEntry::found`], but also passes the bytes of each file to `take`, in parts and with the name of the file. The bytes are
    /// valid only if the result is not `None`.
    pub fn read(&self, take: impl FnMut(&OsStr, &[u8])) -> Option<PathBuf> {
        let path = self.path();
        let listed = match File::open(path.join(SUMS)) {
            Ok(mut file) => {
                // The modification time records the last use of the entry, for the removal of old entries. If another user owns the entry,
                // the time cannot be set, and the error is ignored.
                let _touched = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
                let mut text = String::new();
                file.read_to_string(&mut text).map(|_| text)
            }
            Err(_) if !path.exists() => return None,
            Err(error) => Err(error),
        };
        match listed.and_then(|listed| Ok(listed == sums(&path, take)? && !listed.is_empty())) {
            Ok(true) => {
                if is_first_use(&self.folder) {
                    clean(&self.folder, &Limits::of_environment(), &self.name);
                }
                Some(path)
            }
            damaged => {
                let why = damaged.err().map(|error| format!(" ({error})")).unwrap_or_default();
                tracing::warn!("the cached model `{}` is damaged{why} and is compiled again", path.display());
                self.remove();
                None
            }
        }
    }

    /// Removes an entry that the engine cannot use.
    pub fn remove(&self) {
        let away = self.draft_path();
        // Rename the folder first, so that a folder with the entry's name is always complete.
        let removed = fs::rename(self.path(), &away).and_then(|()| fs::remove_dir_all(&away));
        if let Err(error) = removed {
            tracing::debug!("`{}` stays: {error}", self.path().display());
        }
    }

    /// Creates a draft of the entry: a folder that no other process writes to or removes.
    ///
    /// # Errors
    /// Returns the system's error if the cache folder cannot be written or the disk is full.
    pub fn draft(&self) -> io::Result<Draft<'_>> {
        loop {
            let path = self.draft_path();
            create_private(&path, false)?;
            let lock = File::open(&path)?;
            // Another process that cleans the cache may have removed the folder before this process locked it.
            let is_ours = !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) && path.is_dir();
            if is_ours {
                return Ok(Draft { entry: self, path, _lock: lock });
            }
        }
    }

    fn draft_path(&self) -> PathBuf {
        static N_DRAFTS: AtomicU64 = AtomicU64::new(0);
        let number = N_DRAFTS.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("{}.{}-{number}.{DRAFT}", self.name, std::process::id()))
    }
}

/// An entry that is being written. Dropping the draft removes its folder, unless [`Draft::keep`] made it the entry.
pub struct Draft<'a> {
    entry: &'a CacheEntry,
    path: PathBuf,
    /// The lock on the draft, held until the draft becomes an entry or is removed.
    _lock: File,
}

impl Draft<'_> {
    /// Returns the folder to which the engine writes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Copies the files of the entry into the draft, for an engine that reads from a folder and writes to it. Returns false if there is no
    /// entry, or if it is damaged.
    ///
    /// # Errors
    /// Returns the system's error if a file cannot be written.
    #[cfg_attr(not(feature = "openvino"), allow(dead_code, reason = "for OpenVINO only"))]
    pub fn copy_entry(&self) -> io::Result<bool> {
        let append = |name: &OsStr, bytes: &[u8]| {
            let file = File::options().create(true).append(true).open(self.path.join(name));
            file.and_then(|mut file| io::Write::write_all(&mut file, bytes))
        };
        let mut written = Ok(());
        let found = self.entry.read(|name, bytes| {
            if written.is_ok() {
                written = append(name, bytes);
            }
        });
        let is_found = written.map(|()| found.is_some());
        if !matches!(is_found, Ok(true)) {
            for file in fs::read_dir(&self.path)?.flatten() {
                fs::remove_file(file.path())?;
            }
        }
        is_found
    }

    /// Makes the draft the cache entry, unless another process has written this entry first. Removes an empty draft.
    pub fn keep(self) {
        let Self { entry, path, .. } = &self;
        let kept = sums(path, |_, _| ()).and_then(|sums| {
            if sums.is_empty() {
                return Ok(());
            }
            // On a full disk, an engine may write a truncated file without reporting an error. Then the file of checksums cannot be written
            // either, and this error prevents the draft from becoming an entry.
            let mut file = File::create_new(path.join(SUMS))?;
            io::Write::write_all(&mut file, sums.as_bytes())?;
            match fs::rename(path, entry.path()) {
                Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => Ok(()),
                renamed => renamed,
            }
        });
        match kept {
            Ok(()) => clean(&entry.folder, &Limits::of_environment(), &entry.name),
            Err(error) => tracing::info!("the compiled model is not cached in `{}`: {error}", entry.folder.display()),
        }
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // If the draft became an entry, its folder has a different name now, so this removal fails without effect.
        let _removed = fs::remove_dir_all(&self.path);
    }
}

/// Creates a folder that only its owner can access. A cached model is code: whoever can write to the folder can make this process run that
/// code.
fn create_private(folder: &Path, with_parents: bool) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(with_parents).create(folder)
}

/// Returns the checksums of an entry: a sorted list with one line for each file, which has its checksum, length and name. Passes the bytes of
/// each file to `take`.
fn sums(entry: &Path, mut take: impl FnMut(&OsStr, &[u8])) -> io::Result<String> {
    let mut lines = Vec::new();
    for file in fs::read_dir(entry)? {
        let file = file?;
        if file.file_name() != SUMS {
            let name = file.file_name();
            let (sum, n_bytes) = checksum(File::open(file.path())?, |bytes| take(&name, bytes))?;
            lines.push(format!("{sum:016x} {n_bytes} {}\n", name.to_string_lossy()));
        }
    }
    lines.sort_unstable();
    Ok(lines.concat())
}

/// Returns the checksum and length of a file, and passes its bytes to `take`. The checksum detects damage, not forgery. Its cost is one
/// multiplication for eight bytes, in four independent lanes, so it runs at the speed of memory.
fn checksum(mut file: impl Read, mut take: impl FnMut(&[u8])) -> io::Result<(u64, u64)> {
    const PRIME: u64 = 0x9e37_79b1_85eb_ca87;
    let mut lanes = [1_u64, 2, 3, 4];
    let (mut buffer, mut n_bytes) = (vec![0_u8; 1 << 18], 0_u64);
    loop {
        let mut n_read = 0;
        // Fill the buffer, so that the checksum does not depend on how many bytes each read returns.
        while n_read < buffer.len() {
            match file.read(&mut buffer[n_read..])? {
                0 => break,
                n => n_read += n,
            }
        }
        take(&buffer[..n_read]);
        let n_words = n_read.div_ceil(32) * 4;
        buffer[n_read..].iter_mut().take(n_words * 8 - n_read).for_each(|byte| *byte = 0);
        for block in buffer[..n_words * 8].chunks_exact(32) {
            for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
                let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                *lane = (*lane ^ word).wrapping_mul(PRIME).rotate_left(29);
            }
        }
        n_bytes += n_read as u64;
        if n_read < buffer.len() {
            let sum = lanes.iter().fold(n_bytes, |sum, lane| (sum ^ lane).wrapping_mul(PRIME).rotate_left(31));
            return Ok((sum, n_bytes));
        }
    }
}

/// Returns whether this process uses the folder for the first time.
fn is_first_use(folder: &Path) -> bool {
    static USED: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);
    let mut used = USED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    used.get_or_insert_default().insert(folder.to_owned())
}

/// The limits of a cache folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    n_bytes: u64,
    age: Duration,
}

impl Limits {
    const DEFAULT: Self = Self { n_bytes: 2 << 30, age: Duration::from_secs(90 * 24 * 3600) };

    fn of_environment() -> Self {
        let mut limits = Self::DEFAULT;
        let text = |variable: &str| std::env::var(variable).ok().filter(|text| !text.trim().is_empty());
        if let Some(text) = text("ROIFLOW_CACHE_SIZE") {
            match parse_size(&text) {
                Some(n_bytes) => limits.n_bytes = n_bytes,
                None => tracing::warn!("ROIFLOW_CACHE_SIZE: expected a size such as 500M or 2G, got `{text}`; the default 2G is used"),
            }
        }
        if let Some(text) = text("ROIFLOW_CACHE_DAYS") {
            match text.trim().parse::<u32>() {
                Ok(days) => limits.age = Duration::from_secs(u64::from(days) * 24 * 3600),
                Err(_) => tracing::warn!("ROIFLOW_CACHE_DAYS: expected a number of days, got `{text}`; the default 90 is used"),
            }
        }
        limits
    }
}

/// Parses a number of bytes, optionally with the unit K, M, G or T (powers of 1024).
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim().trim_end_matches(['b', 'B']).trim_end_matches('i');
    let (number, shift) = match text.chars().next_back()?.to_ascii_uppercase() {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number = number.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0)?;
    // The conversion saturates, so a size that is too large becomes the largest number.
    Some((number * (1_u64 << shift) as f64) as u64)
}

/// What a file in a cache folder is, according to its name.
#[derive(Debug, PartialEq, Eq)]
enum Item {
    Entry,
    Draft,
    /// An entry that an earlier version of this program wrote.
    Outdated,
}

fn item_of(name: &str) -> Option<Item> {
    let (kind, rest) = name.split_once('-')?;
    let is_key = |key: &str| key.len() == 32 && key.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !KINDS.contains(&kind) {
        return None;
    }
    match rest.split_once('.') {
        None => is_key(rest).then_some(Item::Entry),
        Some((key, "onnx")) => is_key(key).then_some(Item::Outdated),
        Some((key, rest)) => (is_key(key) && rest.ends_with(DRAFT)).then_some(Item::Draft),
    }
}

/// Removes abandoned drafts, and entries beyond the limits, from a cache folder. Never removes the entry `just_used`.
fn clean(folder: &Path, limits: &Limits, just_used: &str) {
    let Ok(list) = fs::read_dir(folder) else { return };
    let now = SystemTime::now();
    let age = |time: SystemTime| now.duration_since(time).unwrap_or_default();
    let mut entries = Vec::new();
    for file in list.flatten() {
        let (path, name) = (file.path(), file.file_name());
        let Some(name) = name.to_str() else { continue };
        // In earlier versions of this program, OpenVINO chose the names of cache files. Remove such files only from roiflow's own folder,
        // because in a different folder they may belong to a different program.
        if folder.ends_with("roiflow/models")
            && name.strip_suffix(".blob").is_some_and(|hash| hash.bytes().all(|digit| digit.is_ascii_digit()))
        {
            remove(&path);
        }
        match item_of(name) {
            Some(Item::Entry) => {
                let last_use = fs::metadata(path.join(SUMS)).and_then(|sums| sums.modified());
                entries.push((last_use.map_or(Duration::MAX, age), name != just_used, path));
            }
            Some(Item::Draft) => remove_if_left_behind(&path, &age),
            Some(Item::Outdated) => remove(&path),
            None => {}
        }
    }
    // The entry that was just used is first. After it, the most recently used entries come first.
    entries.sort_by_key(|(age, is_other, _)| (*is_other, *age));
    let mut n_bytes = 0_u64;
    for (age, is_other, path) in entries {
        n_bytes = n_bytes.saturating_add(size_of(&path));
        if is_other && (age > limits.age || n_bytes > limits.n_bytes) {
            n_bytes = n_bytes.saturating_sub(size_of(&path));
            tracing::debug!(
                "removing the cached model `{}`, last used {} days ago: the cache exceeds its age or size limit",
                path.display(),
                age.as_secs() / 86_400
            );
            remove(&path);
        }
    }
}

/// Removes a draft whose writer process has ended. Holds the draft's lock during the removal, so that no other process uses the draft
/// meanwhile.
fn remove_if_left_behind(draft: &Path, age: &impl Fn(SystemTime) -> Duration) {
    let Ok(lock) = File::open(draft) else { return };
    let is_left_behind = match lock.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => lock.metadata().and_then(|draft| draft.modified()).is_ok_and(|time| age(time) > DRAFT_AGE),
    };
    if is_left_behind {
        remove(draft);
    }
}

fn size_of(entry: &Path) -> u64 {
    fs::read_dir(entry).into_iter().flatten().flatten().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

fn remove(path: &Path) {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    if let Err(error) = removed {
        tracing::debug!("`{}` stays: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache folder for one test. Dropping it removes the folder.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("roiflow-kept-{}-{name}", std::process::id()));
            let _old = fs::remove_dir_all(&path);
            Self(path)
        }

        /// Adds an entry with a file of `n_bytes` bytes.
        fn keep(&self, model: u32, n_bytes: usize) -> CacheEntry {
            let kept = CacheEntry::of(&self.0, "openvino", model).unwrap();
            let draft = kept.draft().unwrap();
            fs::write(draft.path().join("model.blob"), vec![7; n_bytes]).unwrap();
            draft.keep();
            kept
        }

        /// Sets the last use of an entry to `days` days ago.
        fn age(&self, kept: &CacheEntry, days: u64) {
            let time = SystemTime::now() - Duration::from_secs(days * 86_400);
            File::open(kept.path().join(SUMS)).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
        }

        fn n_files(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _removed = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_entry_is_found_until_its_files_are_damaged() {
        let folder = Folder::new("damaged");
        let kept = folder.keep(1, 1000);
        let file = kept.found().unwrap().join("model.blob");
        assert!(CacheEntry::of(&folder.0, "openvino", 2).unwrap().found().is_none());
        type Damage = fn(&Path);
        let damages: [Damage; 4] = [
            |file| fs::write(file, [7; 999]).unwrap(),
            |file| fs::write(file, [&[7; 500][..], &[8], &[7; 499]].concat()).unwrap(),
            |file| fs::remove_file(file).unwrap(),
            |file| fs::write(file.with_file_name(SUMS), b"\xff").unwrap(),
        ];
        for damage in damages {
            folder.keep(1, 1000);
            assert!(kept.found().is_some());
            damage(&file);
            assert!(kept.found().is_none());
            assert_eq!(folder.n_files(), 0, "a damaged entry is removed");
        }
    }

    #[test]
    fn the_first_of_two_drafts_stays_and_nothing_is_left_of_the_other() {
        let folder = Folder::new("drafts");
        let kept = CacheEntry::of(&folder.0, "openvino", 1).unwrap();
        let (first, second, unused) = (kept.draft().unwrap(), kept.draft().unwrap(), kept.draft().unwrap());
        fs::write(first.path().join("a"), "first").unwrap();
        fs::write(second.path().join("a"), "second").unwrap();
        first.keep();
        second.keep();
        unused.keep();
        assert_eq!(fs::read_to_string(kept.found().unwrap().join("a")).unwrap(), "first");
        assert_eq!(folder.n_files(), 1);
    }

    #[test]
    #[cfg(unix)]
    fn other_users_cannot_look_into_the_folder() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new("private");
        let entry = folder.keep(1, 10).path();
        for path in [&folder.0, &entry] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn the_least_recently_used_entries_go_first() {
        let folder = Folder::new("limits");
        let entries: Vec<CacheEntry> = (0..4).map(|model| folder.keep(model, 1000)).collect();
        for (entry, days) in entries.iter().zip([4, 100, 1, 3]) {
            folder.age(entry, days);
        }
        let is_there = || entries.iter().map(|entry| entry.path().exists()).collect::<Vec<_>>();
        clean(&folder.0, &Limits::DEFAULT, "");
        assert_eq!(is_there(), [true, false, true, true], "an entry that is too old is removed");
        clean(&folder.0, &Limits { n_bytes: 2500, ..Limits::DEFAULT }, "");
        assert_eq!(is_there(), [false, false, true, true]);
        clean(&folder.0, &Limits { n_bytes: 0, ..Limits::DEFAULT }, &entries[3].name);
        assert_eq!(is_there(), [false, false, false, true], "the entry that was just used stays");
    }

    #[test]
    fn only_files_of_ours_are_removed_and_no_draft_with_a_writer() {
        let folder = Folder::new("foreign");
        let kept = folder.keep(1, 10);
        let (writing, key) = (kept.draft().unwrap(), "0".repeat(32));
        let ours = [format!("openvino-{key}"), format!("openvino-{key}.1-0.tmp"), format!("reshaped-{key}.onnx")];
        let foreign = ["notes".to_owned(), "openvino-notes".to_owned(), format!("other-{key}"), format!("openvino-{key}.txt")];
        for name in ours.iter().chain(&foreign) {
            fs::create_dir(folder.0.join(name)).unwrap();
        }
        clean(&folder.0, &Limits { n_bytes: 0, ..Limits::DEFAULT }, &kept.name);
        for name in &ours {
            assert!(!folder.0.join(name).exists(), "{name}");
        }
        for name in &foreign {
            assert!(folder.0.join(name).exists(), "{name}");
        }
        assert!(writing.path().exists() && kept.found().is_some());
    }

    #[test]
    fn sizes_are_read_with_their_units() {
        let cases = [("0", 0), ("100", 100), ("2k", 2048), ("1.5M", 3 << 19), ("2G", 2 << 30), ("2 GiB", 2 << 30), ("1TB", 1 << 40)];
        for (text, n_bytes) in cases {
            assert_eq!(parse_size(text), Some(n_bytes), "{text}");
        }
        for text in ["", "G", "-1", "nan", "much", "é"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
