//! The streams on disk. Each change is durable when the call returns; a process that is killed loses none of them.

use std::path::Path;

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use crate::stream::StreamSpec;

/// Streams by name, as JSON.
const STREAMS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("streams");

/// The store.
#[derive(Debug)]
pub struct Store(Database);

impl Store {
    /// Opens the store in a folder, which is created if it is missing.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written, or another process uses it.
    pub fn open(folder: &Path) -> Result<Self, String> {
        let path = folder.join("streams.redb");
        let failed = |error: &dyn std::fmt::Display| format!("cannot open the store `{}`: {error}", path.display());
        create_private(folder).map_err(|error| failed(&error))?;
        let database = Database::create(&path).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => {
                failed(&"another server uses it; stop that server, or choose another folder with --state")
            }
            error => failed(&error),
        })?;
        restrict(&path, 0o600).map_err(|error| failed(&error))?;
        let store = Self(database);
        store.write(|_| Ok(())).map_err(|error| failed(&error))?;
        Ok(store)
    }

    /// Returns all streams, and the entries that cannot be read, with the reasons.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn all(&self) -> Result<(Vec<StreamSpec>, Vec<String>), String> {
        let read = || -> Result<_, redb::Error> {
            let (mut specs, mut damaged) = (Vec::new(), Vec::new());
            let table = self.0.begin_read()?.open_table(STREAMS)?;
            for entry in table.iter()? {
                let (name, text) = entry?;
                match serde_json::from_slice(text.value()) {
                    Ok(spec) => specs.push(spec),
                    Err(error) => damaged.push(format!("stream `{}`: {error}", name.value())),
                }
            }
            Ok((specs, damaged))
        };
        read().map_err(|error| format!("cannot read the store: {error}"))
    }

    /// Adds or replaces a stream. `text` is its description as JSON.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn put(&self, name: &str, text: &[u8]) -> Result<(), String> {
        self.write(|table| table.insert(name, text).map(drop))
    }

    /// Removes a stream.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn remove(&self, name: &str) -> Result<(), String> {
        self.write(|table| table.remove(name).map(drop))
    }

    fn write(
        &self,
        act: impl FnOnce(&mut redb::Table<'_, &'static str, &'static [u8]>) -> Result<(), redb::StorageError>,
    ) -> Result<(), String> {
        let write = || -> Result<(), redb::Error> {
            let transaction = self.0.begin_write()?;
            act(&mut transaction.open_table(STREAMS)?)?;
            transaction.commit()?;
            Ok(())
        };
        write().map_err(|error| format!("cannot write the store: {error}"))
    }
}

/// Creates a folder that only its owner may read, unless it exists.
pub(crate) fn create_private(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    restrict(folder, 0o700)
}

/// Sets the permissions of a file that may hold credentials.
pub(crate) fn restrict(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
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
        let (specs, damaged) = Store::open(&state).unwrap().all().unwrap();
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
            let (specs, damaged) = Store::open(&copy).unwrap().all().unwrap();
            assert_eq!((specs.len(), damaged.len()), (n + 1, 0));
        }
    }
}
