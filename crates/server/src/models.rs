//! The folder of models: what it has, and how a client adds a file.
//!
//! A new file is written to a hidden folder first. There it is inspected, together with the files of the same model. Only then it is moved to
//! its name, so a stream never reads a half-written file, and a file that no engine can read replaces nothing.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::policy::check_name;

/// Endings of models that an engine reads.
const MODELS: [&str; 2] = ["onnx", "xml"];
/// Endings of the files that belong to a model: weights, descriptions and labels.
const PARTS: [&str; 4] = ["bin", "toml", "txt", "json"];
/// Endings of labels, whose names a description chooses.
const LABELS: [&str; 2] = ["txt", "json"];
/// Beginning of the names of hidden folders.
const HIDDEN: &str = ".upload-";
/// Hidden folders of ended processes are removed if they are older. Younger ones may belong to another server with the same folder.
const MIN_STALE_AGE: Duration = Duration::from_secs(3600);
/// Maximum time in which a client sends a file. The inspection has the rest of the time until the hidden folder counts as stale.
pub const MAX_UPLOAD_TIME: Duration = Duration::from_secs(1800);
const _: () = assert!(MAX_UPLOAD_TIME.as_secs() < MIN_STALE_AGE.as_secs());

/// A file in the folder of models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelFile {
    /// Name of the file.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// A file that was added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Uploaded {
    /// Name of the file.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// What `roiflow inspect` says about the model; `null` for other files.
    pub inspection: Option<String>,
}

/// Lists the files that streams can name, in the order of their names.
///
/// # Errors
/// Returns an error if the folder cannot be read.
pub fn list(folder: &Path) -> io::Result<Vec<ModelFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (Ok(metadata), Ok(name)) = (fs::metadata(entry.path()), entry.file_name().into_string()) else { continue };
        let is_known = ending(&name).is_some_and(|ending| MODELS.contains(&ending) || PARTS.contains(&ending));
        if metadata.is_file() && is_known && !name.starts_with('.') {
            files.push(ModelFile { name, bytes: metadata.len() });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn ending(name: &str) -> Option<&str> {
    Path::new(name).extension().and_then(OsStr::to_str)
}

/// A file that a client is sending. Dropping it removes the bytes that were written so far.
#[derive(Debug)]
pub struct Upload {
    folder: PathBuf,
    hidden: PathBuf,
    name: String,
    replace: bool,
    file: File,
    n_bytes: u64,
    max_bytes: u64,
}

impl Upload {
    /// Begins a file of at most `max_bytes` in this folder. A file with this name is replaced only if `replace`.
    ///
    /// # Errors
    /// Returns an error if the name is not allowed or used, or the folder cannot be written.
    pub fn begin(folder: &Path, name: &str, replace: bool, max_bytes: u64) -> Result<Self> {
        check_name(name)?;
        let is_known = ending(name).is_some_and(|ending| MODELS.contains(&ending) || PARTS.contains(&ending));
        if !is_known || name.starts_with('.') {
            let endings = MODELS.into_iter().chain(PARTS).map(|ending| format!(".{ending}")).collect::<Vec<_>>().join(", ");
            return Err(Error::value(
                "invalid_name",
                "name",
                format!("a file name with one of the endings {endings}"),
                format!("`{name}`"),
                "",
            ));
        }
        if !replace && fs::symlink_metadata(folder.join(name)).is_ok() {
            return Err(exists(name));
        }
        // Servers in other containers may have the same process number and the same folder.
        let hidden = folder.join(format!("{HIDDEN}{:016x}", RandomState::new().hash_one(0)));
        fs::create_dir(&hidden).map_err(|error| failed(&error))?;
        let is_model = ending(name).is_some_and(|ending| MODELS.contains(&ending));
        let linked = if is_model { link_parts(folder, &hidden, name) } else { Ok(()) };
        let created = linked.and_then(|()| File::create_new(hidden.join(name)));
        let file = created.map_err(|error| {
            let _removed = fs::remove_dir_all(&hidden);
            failed(&error)
        })?;
        Ok(Self { folder: folder.to_owned(), hidden, name: name.to_owned(), replace, file, n_bytes: 0, max_bytes })
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// Returns an error if the file gets too large, or cannot be written.
    pub fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.n_bytes += bytes.len() as u64;
        if self.n_bytes > self.max_bytes {
            let message = format!("model: expected at most {} bytes, got more. Raise `limits.model-bytes` of the server", self.max_bytes);
            return Err(Error::new(413, "body_too_large", message));
        }
        self.file.write_all(bytes).map_err(|error| failed(&error))
    }

    /// Inspects the file if it is a model, and moves it to its name.
    ///
    /// # Errors
    /// Returns the errors of `inspect`, or an error if the file cannot be moved.
    pub fn finish(self, inspect: impl FnOnce(&Path) -> Result<String>) -> Result<Uploaded> {
        self.file.sync_all().map_err(|error| failed(&error))?;
        let written = self.hidden.join(&self.name);
        let is_model = ending(&self.name).is_some_and(|ending| MODELS.contains(&ending));
        let inspection = if is_model { Some(inspect(&written)?) } else { None };
        let target = self.folder.join(&self.name);
        if self.replace {
            fs::rename(&written, &target).map_err(|error| failed(&error))?;
        } else {
            // Unlike `rename`, a link does not replace a file that another client has added meanwhile.
            fs::hard_link(&written, &target).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => exists(&self.name),
                _ => failed(&error),
            })?;
        }
        Ok(Uploaded { name: self.name.clone(), bytes: self.n_bytes, inspection })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.hidden) {
            tracing::warn!("cannot remove {}: {error}", self.hidden.display());
        }
    }
}

/// Removes hidden folders that an earlier process has left.
pub fn clean_up(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // The age is the time since the last file was created in the folder: shortly after its begin.
        let is_old = || entry.metadata().ok()?.modified().ok()?.elapsed().ok().map(|age| age > MIN_STALE_AGE);
        if entry.file_name().to_string_lossy().starts_with(HIDDEN) && is_old() == Some(true) {
            let _removed = fs::remove_dir_all(entry.path());
        }
    }
}

/// Links the other files of the same model into the hidden folder, for the inspection: those with its stem, and all labels, which its
/// description may name.
fn link_parts(folder: &Path, hidden: &Path, name: &str) -> io::Result<()> {
    let stem = Path::new(name).file_stem();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(other) = path.file_name().and_then(OsStr::to_str).filter(|other| !other.starts_with('.') && *other != name) else {
            continue;
        };
        let (is_of_model, ending) = (path.file_stem() == stem, ending(other).unwrap_or_default());
        let is_part = if is_of_model { PARTS.contains(&ending) } else { LABELS.contains(&ending) };
        if !is_part || !path.is_file() {
            continue;
        }
        match link_or_copy(&path, &hidden.join(other)) {
            // Most labels belong to other models.
            Err(error) if !is_of_model => tracing::debug!("the inspection of {name} gets no {other}: {error}"),
            linked => linked?,
        }
    }
    Ok(())
}

/// Links a file, or copies it if the system refuses the link. Linux refuses links to files of other users (`fs.protected_hardlinks`), and a
/// link cannot lead to another file system.
fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    // A link to a symbolic link would have its relative target in the wrong folder.
    let from = fs::canonicalize(from)?;
    fs::hard_link(&from, to).or_else(|_| fs::copy(&from, to).map(drop))
}

fn exists(name: &str) -> Error {
    Error::new(
        409,
        "model_exists",
        format!("name: expected a new name, got `{name}`, which exists. Add `replace=true` to replace the file"),
    )
}

fn failed(error: &io::Error) -> Error {
    Error::internal(format!("the model cannot be written: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(_: &Path) -> Result<String> {
        Ok("input".to_owned())
    }

    #[test]
    fn file_appears_when_it_is_complete_and_inspected() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.toml"), "description").unwrap();
        let mut upload = Upload::begin(folder.path(), "a.onnx", false, 10).unwrap();
        upload.add(b"12345").unwrap();
        assert_eq!(list(folder.path()).unwrap().len(), 1, "only the description");
        let uploaded = upload.finish(|path| {
            assert_eq!(fs::read(path).unwrap(), b"12345");
            assert!(path.with_extension("toml").exists(), "the inspection finds the description");
            accept(path)
        });
        assert_eq!(uploaded.unwrap(), Uploaded { name: "a.onnx".into(), bytes: 5, inspection: Some("input".into()) });
        let names: Vec<String> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(names.len() == 2 && names.contains(&"a.onnx".to_owned()), "{names:?}");
        assert_eq!(Upload::begin(folder.path(), "a.onnx", false, 10).unwrap_err().code, "model_exists");
    }

    #[test]
    fn inspection_finds_the_labels_that_a_description_may_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("coco.txt"), "labels").unwrap();
        fs::write(path("b.toml"), "description of another model").unwrap();
        fs::create_dir(path("folder.txt")).unwrap();
        fs::write(path("shared"), "description").unwrap();
        std::os::unix::fs::symlink("shared", path("a.toml")).unwrap();
        std::os::unix::fs::symlink("missing", path("broken.json")).unwrap();
        let upload = Upload::begin(folder.path(), "a.onnx", false, 10).unwrap();
        let uploaded = upload.finish(|path| {
            assert_eq!(fs::read(path.with_extension("toml")).unwrap(), b"description");
            assert_eq!(fs::read(path.with_file_name("coco.txt")).unwrap(), b"labels");
            assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 3, "the model, its description and the labels");
            accept(path)
        });
        uploaded.unwrap();
        // Labels need no labels.
        let upload = Upload::begin(folder.path(), "b.txt", false, 10).unwrap();
        assert_eq!(fs::read_dir(&upload.hidden).unwrap().count(), 1);
    }

    #[test]
    fn file_that_cannot_be_linked_is_copied() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let (from, to) = (other.path().join("a"), folder.path().join("b"));
        fs::write(&from, "labels").unwrap();
        link_or_copy(&from, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"labels");
    }

    #[test]
    fn only_old_hidden_folders_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let upload = Upload::begin(folder.path(), "a.onnx", false, 10).unwrap();
        let second = Upload::begin(folder.path(), "a.onnx", false, 10).unwrap();
        assert_ne!(upload.hidden, second.hidden);
        let own = format!("{}-0", std::process::id());
        assert!(!upload.hidden.to_string_lossy().contains(&own), "other servers may have the same process number");
        let old = folder.path().join(".upload-1-0");
        fs::create_dir(&old).unwrap();
        let before = std::time::SystemTime::now() - MIN_STALE_AGE - Duration::from_secs(60);
        File::open(&old).unwrap().set_modified(before).unwrap();
        clean_up(folder.path());
        assert!(upload.hidden.exists() && second.hidden.exists(), "another server may be using them");
        assert!(!old.exists());
    }

    #[test]
    fn refused_and_broken_files_leave_nothing_and_replace_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.onnx"), "old").unwrap();
        let mut upload = Upload::begin(folder.path(), "a.onnx", true, 10).unwrap();
        upload.add(b"new").unwrap();
        assert!(upload.finish(|_| Err(Error::new(422, "invalid_model", "no"))).is_err());
        let mut upload = Upload::begin(folder.path(), "b.onnx", true, 10).unwrap();
        assert_eq!(upload.add(&[0; 11]).unwrap_err().status, 413);
        drop(upload);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read(folder.path().join("a.onnx")).unwrap(), b"old");
        let mut upload = Upload::begin(folder.path(), "a.onnx", true, 10).unwrap();
        upload.add(b"new").unwrap();
        upload.finish(accept).unwrap();
        assert_eq!(fs::read(folder.path().join("a.onnx")).unwrap(), b"new");
    }

    #[test]
    fn names_stay_inside_the_folder() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("models");
        fs::create_dir(&folder).unwrap();
        for name in ["../a.onnx", "/tmp/a.onnx", "b/a.onnx", "..", ".onnx", ".a.onnx", "a", "a.sh", "a.onnx\0", "a\\b.onnx", "", "a.onnx/"]
        {
            assert!(Upload::begin(&folder, name, true, 10).is_err(), "{name:?}");
        }
        assert_eq!((fs::read_dir(&folder).unwrap().count(), fs::read_dir(parent.path()).unwrap().count()), (0, 1));
    }
}
