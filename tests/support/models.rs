//! Real models, clips and stored results used in development.

use std::path::{Path, PathBuf};

/// Returns the path of a file of this set. The set is next to the project, or in the folder `ROIFLOW_MODELS` (relative to the project).
///
/// If the set is missing, tests print a message and pass. If `ROIFLOW_MODELS` is set, a missing file is a failure. An empty value means
/// that there is no set.
///
/// # Panics
/// Panics if the file is missing from the folder that `ROIFLOW_MODELS` names.
pub fn real(path: &str) -> Option<PathBuf> {
    let named = std::env::var_os("ROIFLOW_MODELS");
    if named.as_ref().is_some_and(|folder| folder.is_empty()) {
        eprintln!("skipped: ROIFLOW_MODELS is empty");
        return None;
    }
    let folder = named.as_deref().unwrap_or("../shared/models".as_ref());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(path);
    if !file.exists() {
        assert!(named.is_none(), "`{}` is not there: ROIFLOW_MODELS names the folder of the real models", file.display());
        eprintln!("skipped: `{}` is not there (set ROIFLOW_MODELS)", file.display());
        return None;
    }
    Some(file)
}
