//! Files that devices keep in the cache folder, so that the next process need not make them again.
//!
//! The name of a kept file says what it was made from: what changed has another name, so nothing is ever out of date; old files are for
//! the user to remove. A file is written under another name and then renamed, so that no process reads half of one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Changes where files of earlier versions of this program must not be used.
const FORMAT: u32 = 1;

/// Where something that was made of a model is kept.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
}

impl Kept {
    /// The place in `folder`, which is made, of what is made from this and nothing else; `what` begins the file's name.
    ///
    /// # Errors
    /// The system's.
    pub fn of(folder: &Path, what: &str, made_from: impl Hash) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        // Two hashes of 64 bits: one could meet another model's by chance.
        let [a, b] = [0_u8, 1].map(|seed| {
            let mut hasher = DefaultHasher::new();
            (seed, FORMAT, &made_from).hash(&mut hasher);
            hasher.finish()
        });
        Ok(Self { path: folder.join(format!("{what}-{a:016x}{b:016x}.onnx")) })
    }

    /// The file, if there is one.
    pub fn found(&self) -> Option<&Path> {
        self.path.is_file().then_some(&*self.path)
    }

    /// Removes a file that turned out to be unusable.
    pub fn remove(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!("`{}` stays: {error}", self.path.display());
        }
    }

    /// A name that nobody else writes to, beside the file.
    pub fn draft(&self) -> Draft<'_> {
        static N_DRAFTS: AtomicU64 = AtomicU64::new(0);
        let number = N_DRAFTS.fetch_add(1, Ordering::Relaxed);
        Draft { kept: self, path: self.path.with_extension(format!("{}-{number}.tmp", std::process::id())) }
    }
}

/// A file that is being written; gone when dropped.
pub struct Draft<'a> {
    kept: &'a Kept,
    path: PathBuf,
}

impl Draft<'_> {
    /// Where to write.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name.
    pub fn keep(self) {
        if let Err(error) = std::fs::rename(&self.path, &self.kept.path) {
            tracing::warn!("nothing is kept in `{}`: {error}", self.kept.path.display());
        }
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // It has another name by now, or was not written.
        let _removed = std::fs::remove_file(&self.path);
    }
}
