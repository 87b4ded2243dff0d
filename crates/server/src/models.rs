//! The folder of models: what it has, and how a client adds a file.
//!
//! A new file is written to a hidden folder first. There it is inspected, together with the files of the same model. Only then it is moved to
//! its name, so a stream never reads a half-written file, and a file that no engine can read replaces nothing.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::policy::check_name;

/// Endings of models that an engine reads.
const MODELS: [&str; 2] = ["onnx", "xml"];
/// Endings of the files that belong to a model: weights, descriptions and labels.
const PARTS: [&str; 4] = ["bin", "toml", "txt", "json"];
/// Beginning of the names of hidden folders.
const HIDDEN: &str = ".upload-";

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
        static NUMBER: AtomicU64 = AtomicU64::new(0);
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
        let hidden = folder.join(format!("{HIDDEN}{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&hidden).map_err(|error| failed(&error))?;
        let created = link_parts(folder, &hidden, name).and_then(|()| File::create_new(hidden.join(name)));
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
        if entry.file_name().to_string_lossy().starts_with(HIDDEN) {
            let _removed = fs::remove_dir_all(entry.path());
        }
    }
}

/// Links the other files of the same model into the hidden folder, for the inspection.
fn link_parts(folder: &Path, hidden: &Path, name: &str) -> io::Result<()> {
    let stem = Path::new(name).file_stem();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_part = path.extension().and_then(OsStr::to_str).is_some_and(|ending| PARTS.contains(&ending));
        if let Some(other) = path.file_name().filter(|other| is_part && path.file_stem() == stem && *other != name) {
            fs::hard_link(&path, hidden.join(other))?;
        }
    }
    Ok(())
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
