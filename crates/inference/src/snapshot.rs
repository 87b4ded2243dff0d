//! A snapshot: models and files of a stream as they were when the stream first read them.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::instance::{HeldInstance, SnapshotKey};
use super::{Description, StageOptions};

/// Models, descriptions, labels, galleries and other files of a stream, as they were when they were first read.
///
/// Stages with the same snapshot read each file once. A stage that is created later gets the same contents, even if a file was replaced or
/// removed, or is being written. So a stream that opens its source again continues with the same models and labels. The models stay loaded
/// while the snapshot exists. Clones share their contents.
#[derive(Clone, Default)]
pub struct Snapshot(Arc<Contents>);

#[derive(Default)]
struct Contents {
    models: Mutex<HashMap<SnapshotKey, HeldInstance>>,
    descriptions: Mutex<HashMap<DescriptionKey, Description>>,
    /// Contents of files by path and type.
    files: Mutex<HashMap<(PathBuf, TypeId), Box<dyn Any + Send + Sync>>>,
}

/// The options that select a description: model, description and model-proc file.
type DescriptionKey = [Option<PathBuf>; 3];

fn key(options: &StageOptions) -> DescriptionKey {
    [Some(options.model.clone()), options.description.clone(), options.model_proc.clone()]
}

impl Snapshot {
    /// Returns the contents of a file: those that were read first, or those that `read` returns now.
    ///
    /// # Errors
    /// Returns the error of `read`. The next call then reads the file again.
    pub fn once<T: Clone + Send + Sync + 'static, E>(&self, path: &Path, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let key = (path.to_owned(), TypeId::of::<T>());
        if let Some(contents) = lock(&self.0.files).get(&key).and_then(|contents| contents.downcast_ref::<T>()) {
            return Ok(contents.clone());
        }
        let contents = read()?;
        self.replace(key.0, contents.clone());
        Ok(contents)
    }

    /// Replaces the contents of a file.
    pub fn replace<T: Clone + Send + Sync + 'static>(&self, path: PathBuf, contents: T) {
        lock(&self.0.files).insert((path, TypeId::of::<T>()), Box::new(contents));
    }

    /// Returns the place of the model with these options. Its lock is held while the model is loaded.
    pub(super) fn model(&self, key: SnapshotKey) -> HeldInstance {
        lock(&self.0.models).entry(key).or_default().clone()
    }

    /// Returns the description of the model that a stage with these options uses.
    pub(super) fn description(&self, options: &StageOptions) -> Option<Description> {
        lock(&self.0.descriptions).get(&key(options)).cloned()
    }

    /// Stores the description that a stage with these options uses.
    pub(super) fn keep_description(&self, options: &StageOptions, description: Description) {
        lock(&self.0.descriptions).entry(key(options)).or_insert(description);
    }
}

/// Two snapshots are equal if one is a clone of the other.
impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Snapshot").field(&Arc::as_ptr(&self.0)).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sharing, Stage, Thresholds};

    #[test]
    fn stages_of_a_snapshot_do_not_read_files_again() {
        let folder = std::env::temp_dir().join(format!("roiflow-snapshot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
        let file = |name: &str| folder.join(name);
        // A link, as of a folder `current` that leads to another version later.
        std::fs::copy(tiny.join("color.onnx"), file("v1.onnx")).unwrap();
        std::os::unix::fs::symlink(file("v1.onnx"), file("color.onnx")).unwrap();
        let text = std::fs::read_to_string(tiny.join("color.toml")).unwrap();
        let text: String = text.lines().filter(|line| !line.starts_with("labels")).map(|line| format!("{line}\n")).collect();
        std::fs::write(file("color.toml"), format!("{text}labels-file = \"labels.txt\"\n")).unwrap();
        std::fs::write(file("labels.txt"), "red\ngreen\nblue\nother\n").unwrap();
        let options = StageOptions {
            model: file("color.onnx"),
            device: Some("CPU".to_owned()),
            sharing: Sharing::SameOptions,
            snapshot: Some(Snapshot::default()),
            ..StageOptions::default()
        };
        let first = Stage::classifier(&options).unwrap();

        std::fs::write(file("v2.onnx"), "half a model").unwrap();
        std::fs::remove_file(file("color.onnx")).unwrap();
        std::os::unix::fs::symlink(file("v2.onnx"), file("color.onnx")).unwrap();
        std::fs::write(file("color.toml"), "garbage").unwrap();
        std::fs::remove_file(file("labels.txt")).unwrap();
        let later = Stage::classifier(&options).unwrap();
        assert_eq!((later.spec().labels.names(), later.model().info().inputs.len()), (first.spec().labels.names(), 1));
        let low = Thresholds { threshold: Some(0.25), ..Thresholds::default() };
        first.set_thresholds(&low).unwrap();
        // The model stays loaded without stages.
        drop((first, later));
        let again = Stage::classifier(&options).unwrap();
        again.set_thresholds(&low).unwrap();
        assert_eq!(again.spec().labels.get(1).map(|label| &**label), Some("green"));
        // Stages without this snapshot read the files.
        assert!(Stage::classifier(&StageOptions { snapshot: None, ..options }).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn file_that_could_not_be_read_is_read_again() {
        let snapshot = Snapshot::default();
        let read = |contents: Result<u8, ()>| snapshot.once(Path::new("a"), || contents);
        assert_eq!((read(Err(())), read(Ok(1)), read(Ok(2)), read(Err(()))), (Err(()), Ok(1), Ok(1), Ok(1)));
        assert_eq!(snapshot.once(Path::new("a"), || Ok::<_, ()>("text")), Ok("text"), "another type is another file");
        snapshot.replace("a".into(), 3_u8);
        assert_eq!(read(Ok(2)), Ok(3));
    }
}
