//! The streams on disk. Each change is durable when the call returns; a process that is killed loses none of them.
//!
//! A database that has met an error of the disk, such as a full disk, takes no more changes. The store then opens the file again: at the next
//! change, and once per second until it can write. Until then [`Store::failure`] tells why. A file that was deleted or replaced is noticed at the
//! next change, or within a second, and is written again.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition, WriteTransaction};

use crate::state_folder;
use crate::stream::StreamSpec;

/// Streams by name, as JSON.
const STREAMS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("streams");
/// What the file is. `version`: that of its tables.
const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("about");
/// Version of the tables that this program writes. Files of version 0 have no table [`ABOUT`].
const VERSION: u64 = 1;
/// Name of the thread that checks a file. Its panics are errors of the file, which are reported otherwise.
pub const CHECKING_THREAD: &str = "roiflow-check-store";
/// How often the store checks its file, and tries again after an error.
const PAUSE: Duration = Duration::from_secs(1);
/// Free space that the store needs to leave an error of the disk: more than the largest description of a stream.
const MIN_SPACE: usize = 256 << 10;

/// The store. Clones share it.
#[derive(Debug, Clone)]
pub struct Store(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    state: Mutex<State>,
    /// Why the last write failed; `None`: it did not. A write that hangs does not hold this lock.
    failure: Mutex<Option<String>>,
}

#[derive(Debug)]
struct State {
    /// `None` after an error.
    database: Option<Database>,
    /// Which file it is.
    file: Option<FileId>,
    /// What the file has, or must have when it is opened again: a write that failed may be in it.
    streams: BTreeMap<String, Vec<u8>>,
}

/// Device and number of a file.
type FileId = (u64, u64);

impl Store {
    /// Opens the store in a folder, which is created if it is missing.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written, the file is damaged, or another process uses it.
    pub fn open(folder: &Path) -> Result<Self, String> {
        let path = folder.join("streams.redb");
        let cannot = |error: &dyn std::fmt::Display| format!("cannot open the store `{}`: {error}", path.display());
        let (database, streams) = open(&path).map_err(|error| cannot(&error))?;
        let state = Mutex::new(State { database: Some(database), file: file_id(&path), streams });
        let shared = Arc::new(Shared { path: path.clone(), state, failure: Mutex::default() });
        let watched = Arc::downgrade(&shared);
        let watch = move || {
            loop {
                std::thread::sleep(PAUSE);
                let Some(shared) = watched.upgrade() else { return };
                shared.check();
            }
        };
        std::thread::Builder::new().name("roiflow-store".to_owned()).spawn(watch).map_err(|error| cannot(&error))?;
        Ok(Self(shared))
    }

    /// Returns all streams, and the entries that cannot be read, with the reasons.
    pub fn all(&self) -> (Vec<StreamSpec>, Vec<String>) {
        let (mut specs, mut damaged) = (Vec::new(), Vec::new());
        for (name, text) in &lock(&self.0.state).streams {
            match serde_json::from_slice(text) {
                Ok(spec) => specs.push(spec),
                Err(error) => damaged.push(format!("stream `{name}`: {error}")),
            }
        }
        (specs, damaged)
    }

    /// Adds or replaces a stream. `text` is its description as JSON.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written. The store then has what it had before.
    pub fn put(&self, name: &str, text: &[u8]) -> Result<(), String> {
        self.change(name, Some(text))
    }

    /// Removes a stream.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written. The store then has what it had before.
    pub fn remove(&self, name: &str) -> Result<(), String> {
        self.change(name, None)
    }

    /// Why the last change could not be written; `None`: it was, or the store can be written again.
    pub fn failure(&self) -> Option<String> {
        lock(&self.0.failure).clone()
    }

    fn change(&self, name: &str, text: Option<&[u8]>) -> Result<(), String> {
        let mut state = lock(&self.0.state);
        let mut after = state.streams.clone();
        match text {
            Some(text) => drop(after.insert(name.to_owned(), text.to_owned())),
            None => drop(after.remove(name)),
        }
        let written = match &state.database {
            Some(database) if self.0.is_in_place(&state) => write(database, &after),
            _ => Err("it is closed after an earlier error, or its file was deleted".to_owned()),
        };
        match written.or_else(|_| self.0.open_again(&mut state, &after)) {
            Ok(()) => {
                state.streams = after;
                self.0.succeed();
                Ok(())
            }
            Err(error) => {
                drop(state);
                Err(self.0.fail(&error))
            }
        }
    }
}

impl Shared {
    /// Notes an error. Returns it for clients.
    fn fail(&self, error: &str) -> String {
        let reason = format!(
            "cannot write the store `{}`: {error}. Free space on this disk, or repair it: the server tries again each second",
            self.path.display()
        );
        if lock(&self.failure).replace(reason.clone()).is_none() {
            tracing::warn!("{reason}");
        }
        reason
    }

    /// Tries to leave an error, and writes a file again that was deleted or replaced.
    fn check(&self) {
        if lock(&self.failure).is_some() {
            if self.is_usable() {
                self.succeed();
            }
            return;
        }
        let state = &mut *lock(&self.state);
        if self.is_in_place(state) {
            return;
        }
        let streams = state.streams.clone();
        match self.open_again(state, &streams) {
            Ok(()) => tracing::warn!("the store `{}` was deleted or replaced: it was written again", self.path.display()),
            Err(error) => drop(self.fail(&error)),
        }
    }

    /// Whether the path of the store still leads to the open file.
    fn is_in_place(&self, state: &State) -> bool {
        state.file.is_some() && state.file == file_id(&self.path)
    }

    /// Opens the file again, and writes all streams: the file may have a change that failed, or may have been removed.
    fn open_again(&self, state: &mut State, streams: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
        // The file can be opened once.
        (state.database, state.file) = (None, None);
        let (database, _) = open(&self.path)?;
        write(&database, streams)?;
        (state.database, state.file) = (Some(database), file_id(&self.path));
        Ok(())
    }

    /// Whether the store can be written after an error.
    fn is_usable(&self) -> bool {
        let state = &mut *lock(&self.state);
        if lock(&self.failure).is_none() {
            // A change was written meanwhile.
            return true;
        }
        let _created = state_folder::create(self.path.parent().unwrap_or(&self.path));
        // A change of a few bytes may fit into a file whose disk is full.
        let trial = self.path.with_extension("trial");
        let _removed = std::fs::remove_file(&trial);
        let has_space = std::fs::File::create_new(&trial).and_then(|mut file| {
            file.write_all(&vec![1; MIN_SPACE])?;
            file.sync_all()
        });
        let _removed = std::fs::remove_file(&trial);
        let streams = state.streams.clone();
        has_space.is_ok() && self.open_again(state, &streams).is_ok()
    }

    fn succeed(&self) {
        if lock(&self.failure).take().is_some() {
            tracing::warn!("the store `{}` can be written again", self.path.display());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn file_id(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok()
}

/// Opens the file, or creates it and its folder, and returns its streams.
fn open(path: &Path) -> Result<(Database, BTreeMap<String, Vec<u8>>), String> {
    state_folder::create(path.parent().unwrap_or(path)).map_err(|error| error.to_string())?;
    let damaged = |why: &dyn std::fmt::Display| {
        format!(
            "expected a store of streams, got {why}. Restore the file from a backup, or move it away: the server then starts without streams"
        )
    };
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() == 0 => return Err(damaged(&"an empty file")),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => create(path).map_err(|error| error.to_string())?,
        Err(error) => return Err(error.to_string()),
    }
    let opened = checked(path).map_err(|()| damaged(&"a damaged file"))?;
    let database = opened.map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => "another server uses it; stop that server, or choose another folder with --state".to_owned(),
        DatabaseError::UpgradeRequired(_) => damaged(&format_args!("a file of another version of the database ({error})")),
        DatabaseError::Storage(StorageError::Corrupted(_)) => damaged(&format_args!("a damaged file ({error})")),
        DatabaseError::Storage(StorageError::Io(error)) if is_damage(&error) => damaged(&format_args!("a damaged file ({error})")),
        error => error.to_string(),
    })?;
    state_folder::protect(path, 0o600).map_err(|error| error.to_string())?;
    let failed = |error: redb::Error| damaged(&format_args!("a file that cannot be read ({error})"));
    let found = version(&database).map_err(failed)?;
    if found > VERSION {
        return Err(format!(
            "expected a store of version {VERSION} or older, got version {found} of a newer roiflow. Install that version, or choose another \
             folder with --state"
        ));
    }
    // The tables of all versions so far have the same streams; a file of version 0 gets its version with the next write.
    let streams = read(&database).map_err(failed)?;
    if found < VERSION {
        write(&database, &streams)?;
    }
    Ok((database, streams))
}

/// Opens a file, and checks all its pages: reading a damaged page could end in wrong streams. An error without a reason: the library has panicked,
/// as it does for some damages.
fn checked(path: &Path) -> Result<Result<Database, DatabaseError>, ()> {
    let path = path.to_owned();
    let open = move || {
        let mut database = Database::open(&path)?;
        if !database.check_integrity()? {
            tracing::warn!("the store `{}` was repaired: its last change may be missing", path.display());
        }
        Ok(database)
    };
    let checking = std::thread::Builder::new().name(CHECKING_THREAD.to_owned()).spawn(open);
    match checking {
        Ok(checking) => checking.join().map_err(drop),
        Err(error) => Ok(Err(DatabaseError::Storage(StorageError::Io(error)))),
    }
}

/// Whether an error of the file is one of its content.
fn is_damage(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof)
}

/// Creates the file. A disk that is full meanwhile leaves no file that is empty or half written.
fn create(path: &Path) -> Result<(), redb::Error> {
    let new = path.with_extension("redb.new");
    // A process may have ended before the file got its name.
    let _removed = std::fs::remove_file(&new);
    let database = Database::create(&new)?;
    let transaction = database.begin_write()?;
    fill(&transaction, &BTreeMap::new())?;
    transaction.commit()?;
    drop(database);
    std::fs::rename(&new, path)?;
    std::fs::File::open(path.parent().unwrap_or(path))?.sync_all()?;
    Ok(())
}

/// Makes the tables of a file equal to these streams.
fn write(database: &Database, streams: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
    let write = || -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        fill(&transaction, streams)?;
        transaction.commit()?;
        Ok(())
    };
    write().map_err(|error| error.to_string())
}

fn fill(transaction: &WriteTransaction, streams: &BTreeMap<String, Vec<u8>>) -> Result<(), redb::Error> {
    transaction.open_table(ABOUT)?.insert("version", VERSION)?;
    let mut table = transaction.open_table(STREAMS)?;
    table.retain(|name, _| streams.contains_key(name))?;
    for (name, text) in streams {
        let is_new = table.get(&**name)?.is_none_or(|present| present.value() != &**text);
        if is_new {
            table.insert(&**name, &**text)?;
        }
    }
    Ok(())
}

/// Returns the version of the tables of a file.
fn version(database: &Database) -> Result<u64, redb::Error> {
    match database.begin_read()?.open_table(ABOUT) {
        Ok(about) => Ok(about.get("version")?.map_or(0, |version| version.value())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

fn read(database: &Database) -> Result<BTreeMap<String, Vec<u8>>, redb::Error> {
    let mut streams = BTreeMap::new();
    for entry in database.begin_read()?.open_table(STREAMS)?.iter()? {
        let (name, text) = entry?;
        streams.insert(name.value().to_owned(), text.value().to_owned());
    }
    Ok(streams)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str) -> Vec<u8> {
        serde_json::json!({"name": name, "pipeline": "faces", "input": "rtsp://u:p@cam/"}).to_string().into_bytes()
    }

    fn spec(name: &str) -> StreamSpec {
        serde_json::from_slice(&text(name)).unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        Store::open(folder).unwrap().all().0.into_iter().map(|spec| spec.name).collect()
    }

    #[test]
    fn deleted_folder_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let store = Store::open(&state).unwrap();
        store.put("a", &text("a")).unwrap();
        // At the next change, ...
        std::fs::remove_dir_all(&state).unwrap();
        store.put("b", &text("b")).unwrap();
        assert!(store.failure().is_none() && state.join("streams.redb").exists());
        // ... and by the check.
        std::fs::remove_file(state.join("streams.redb")).unwrap();
        store.0.check();
        let replaced = folder.path().join("other");
        drop(Store::open(&replaced).unwrap());
        std::fs::rename(replaced.join("streams.redb"), state.join("streams.redb")).unwrap();
        store.0.check();
        // A folder that cannot be created is an error while it lasts.
        std::fs::remove_dir_all(&state).unwrap();
        std::fs::write(&state, "a file").unwrap();
        store.0.check();
        assert!(store.failure().is_some() && store.put("c", &text("c")).is_err());
        std::fs::remove_file(&state).unwrap();
        store.0.check();
        assert_eq!(store.failure(), None);
        drop(store);
        assert_eq!(names(&state), ["a", "b"]);
    }

    #[test]
    fn streams_survive_and_are_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        {
            let store = Store::open(&state).unwrap();
            ["b", "a", "c"].iter().for_each(|name| store.put(name, &text(name)).unwrap());
            store.remove("c").unwrap();
            let error = Store::open(&state).unwrap_err();
            assert!(error.contains("another server"), "{error}");
        }
        let (specs, damaged) = Store::open(&state).unwrap().all();
        assert_eq!((specs, damaged.len()), (vec![spec("a"), spec("b")], 0));
        let mode = std::fs::metadata(state.join("streams.redb")).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "credentials of cameras are in it");
    }

    /// A copy of the file at any moment is what a killed process leaves.
    #[test]
    fn store_of_a_killed_process_has_every_acknowledged_stream() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("live")).unwrap();
        for n in 0..20 {
            let name = format!("s{n:02}");
            store.put(&name, &text(&name)).unwrap();
            let copy = folder.path().join(format!("copy-{n}"));
            std::fs::create_dir(&copy).unwrap();
            std::fs::copy(folder.path().join("live/streams.redb"), copy.join("streams.redb")).unwrap();
            let (specs, damaged) = Store::open(&copy).unwrap().all();
            assert_eq!((specs.len(), damaged.len()), (n + 1, 0));
        }
    }

    #[test]
    fn store_of_the_first_version_gets_a_version_and_keeps_its_streams() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("streams.redb");
        {
            let database = Database::create(&path).unwrap();
            let transaction = database.begin_write().unwrap();
            transaction.open_table(STREAMS).unwrap().insert("a", &*text("a")).unwrap();
            transaction.open_table(STREAMS).unwrap().insert("b", b"no JSON".as_slice()).unwrap();
            transaction.commit().unwrap();
        }
        {
            let store = Store::open(folder.path()).unwrap();
            let (specs, damaged) = store.all();
            assert_eq!((specs, damaged.len()), (vec![spec("a")], 1));
            store.put("c", &text("c")).unwrap();
            assert_eq!(store.all().1.len(), 1, "an entry that cannot be read is kept");
        }
        assert_eq!(version(&Database::open(&path).unwrap()).unwrap(), VERSION);
        assert_eq!(names(folder.path()), ["a", "c"]);
    }

    #[test]
    fn store_of_a_newer_version_is_refused_and_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        drop(Store::open(folder.path()).unwrap());
        let path = folder.path().join("streams.redb");
        {
            let database = Database::open(&path).unwrap();
            let transaction = database.begin_write().unwrap();
            transaction.open_table(ABOUT).unwrap().insert("version", VERSION + 1).unwrap();
            transaction.commit().unwrap();
        }
        let error = Store::open(folder.path()).unwrap_err();
        assert!(error.contains("version 2 of a newer roiflow") && error.contains("--state"), "{error}");
        assert_eq!(version(&Database::open(&path).unwrap()).unwrap(), VERSION + 1);
    }

    #[test]
    fn empty_and_damaged_files_are_refused_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("streams.redb");
        {
            let store = Store::open(folder.path()).unwrap();
            (0..40).for_each(|n| store.put(&format!("s{n}"), &text(&format!("s{n}"))).unwrap());
        }
        let intact = std::fs::read(&path).unwrap();
        let cases: [(&str, Vec<u8>); 6] = [
            ("an empty file", Vec::new()),
            ("another file", b"{\"streams\": []}".to_vec()),
            ("one page", intact[..4096].to_vec()),
            ("half a file", intact[..intact.len() / 2].to_vec()),
            ("zeros", vec![0; intact.len()]),
            ("zeros after the header", [&intact[..4096], &vec![0; intact.len() - 4096]].concat()),
        ];
        for (what, bytes) in cases {
            std::fs::write(&path, bytes).unwrap();
            let error = Store::open(folder.path()).unwrap_err();
            assert!(error.contains("streams.redb") && error.contains("Restore the file from a backup"), "{what}: {error}");
        }
        // One wrong byte anywhere is either without effect, or said: streams never change silently.
        for at in (0..intact.len()).step_by(intact.len() / 97) {
            let mut bytes = intact.clone();
            bytes[at] ^= 0xff;
            std::fs::write(&path, bytes).unwrap();
            match Store::open(folder.path()) {
                Ok(store) => assert_eq!((store.all().0.len(), store.all().1.len()), (40, 0), "byte {at}"),
                Err(error) => assert!(error.contains("Restore the file from a backup"), "byte {at}: {error}"),
            }
        }
    }

    /// A file system of a fixed size, which is full when a file fills it.
    struct Small(tempfile::TempDir);

    impl Small {
        /// `None`: this user may not mount a file system.
        fn mount(size: &str) -> Option<Self> {
            let small = Self(tempfile::tempdir().unwrap());
            let options = format!("size={size}");
            let mounted = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(small.0.path()).output();
            mounted.is_ok_and(|output| output.status.success()).then_some(small)
        }

        fn fill(&self) {
            let mut file = std::fs::File::create(self.0.path().join("ballast")).unwrap();
            while file.write_all(&[1; 4096]).is_ok() {}
        }

        fn free(&self) {
            std::fs::remove_file(self.0.path().join("ballast")).unwrap();
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let _unmounted = std::process::Command::new("umount").arg("-l").arg(self.0.path()).output();
        }
    }

    #[test]
    fn store_is_usable_again_after_the_disk_was_full() {
        let Some(small) = Small::mount("8m") else { return eprintln!("skipped: this user may not mount a file system") };
        let state = small.0.path().join("state");
        let store = Store::open(&state).unwrap();
        store.put("before", &text("before")).unwrap();
        small.fill();
        // Pages of the file may still be free.
        let long = serde_json::json!({"name": "x", "pipeline": "faces", "input": "x".repeat(50_000)}).to_string();
        let mut n_put = 0;
        let error = loop {
            match store.put(&format!("s{n_put}"), long.as_bytes()) {
                Ok(()) => n_put += 1,
                Err(error) => break error,
            }
            assert!(n_put < 500, "the disk is never full");
        };
        assert!(error.contains("streams.redb") && error.contains("Free space"), "{error}");
        assert_eq!(store.failure(), Some(error));
        assert!(store.put("more", long.as_bytes()).is_err(), "it fails while the disk is full");
        (0..3).for_each(|_| store.0.check());
        assert!(store.failure().is_some(), "it stays failed while the disk is full");
        small.free();
        // Without any change, the store becomes usable.
        crate::registry::tests::wait_until(|| store.failure().is_none());
        store.put("after", &text("after")).unwrap();
        drop(store);
        let found = names(&state);
        assert_eq!(found.len(), n_put + 2, "what failed is not in the file: {found:?}");
        assert!(found.contains(&"before".to_owned()) && found.contains(&"after".to_owned()));
    }

    #[test]
    fn change_after_an_error_opens_the_file_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.put("a", &text("a")).unwrap();
        lock(&store.0.state).database = None;
        // Somebody has removed the file.
        std::fs::remove_file(folder.path().join("streams.redb")).unwrap();
        store.put("b", &text("b")).unwrap();
        assert_eq!(store.failure(), None);
        drop(store);
        assert_eq!(names(folder.path()), ["a", "b"]);
    }

    #[test]
    fn disk_that_is_full_at_the_first_start_leaves_no_empty_file() {
        let Some(small) = Small::mount("8k") else { return eprintln!("skipped: this user may not mount a file system") };
        let error = Store::open(small.0.path()).unwrap_err();
        assert!(error.contains("streams.redb"), "{error}");
        assert!(!small.0.path().join("streams.redb").exists());
    }
}
