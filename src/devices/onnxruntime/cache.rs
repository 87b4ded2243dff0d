//! Optimized models kept in files. Reading a file and rewriting its graph for the processor takes the library two to three times
//! as long as loading what came of it: 58 and 22 ms for YOLOX-nano, 74 and 22 ms for a re-identification model of 0.8 MiB
//! (one thread, medians of 11).
//!
//! The name of a kept file says what it was made from: the bytes of the model with the shapes asked for, the version of the library,
//! and the processor, because the graph is rewritten for its instructions. What changed has another name, so nothing is ever out
//! of date; old files are for the user to remove. A file is written under another name and then renamed, so that no process
//! reads half of one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Changes where files of earlier versions of this program must not be used.
const FORMAT: u32 = 1;

/// Where the optimized form of a model is kept.
#[derive(Debug)]
pub(super) struct Kept {
    path: PathBuf,
}

impl Kept {
    /// The place of this model in `folder`, which is made.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn of(folder: &Path, model: &[u8], engine_version: &str) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        // Two hashes of 64 bits: one could meet another model's by chance.
        let [a, b] = [0_u8, 1].map(|seed| {
            let mut hasher = DefaultHasher::new();
            (seed, FORMAT, engine_version, processor(), model).hash(&mut hasher);
            hasher.finish()
        });
        Ok(Self { path: folder.join(format!("onnxruntime-{a:016x}{b:016x}.onnx")) })
    }

    /// The file, if there is one.
    pub(super) fn found(&self) -> Option<&Path> {
        self.path.is_file().then_some(&*self.path)
    }

    /// Removes a file that turned out to be unusable.
    pub(super) fn remove(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!("`{}` stays: {error}", self.path.display());
        }
    }

    /// A name that nobody else writes to, beside the file.
    pub(super) fn draft(&self) -> Draft<'_> {
        static N_DRAFTS: AtomicU64 = AtomicU64::new(0);
        let number = N_DRAFTS.fetch_add(1, Ordering::Relaxed);
        Draft { kept: self, path: self.path.with_extension(format!("{}-{number}.tmp", std::process::id())) }
    }
}

/// A file that is being written; gone when dropped.
pub(super) struct Draft<'a> {
    kept: &'a Kept,
    path: PathBuf,
}

impl Draft<'_> {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name.
    pub(super) fn keep(self) {
        if let Err(error) = std::fs::rename(&self.path, &self.kept.path) {
            tracing::warn!("the compiled model is not kept in `{}`: {error}", self.kept.path.display());
        }
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // It has another name by now, or was not written.
        let _removed = std::fs::remove_file(&self.path);
    }
}

/// What the library looks at when it chooses instructions.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let lines = ["model name", "flags", "Features", "CPU part"].map(|key| info.lines().find(|line| line.starts_with(key)));
    format!("{} {:?}", std::env::consts::ARCH, lines)
}
