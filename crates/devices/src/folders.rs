//! Where roiflow's own files lie on a user's system: engines, pipelines, compiled models.
//!
//! The places are those of the XDG Base Directory Specification, so an installed binary does not depend on the folder in which it
//! was built. Reads the environment; knows nothing of the files themselves.

use std::path::PathBuf;

/// The folders that hold roiflow's data, in the order in which they are searched; they need not exist.
///
/// `ROIFLOW_DATA_DIR` alone if it is set. Otherwise `roiflow` in the user's data folder (`XDG_DATA_HOME`, `~/.local/share`), in the `share`
/// folder that belongs to the running program, and in the system's data folders (`XDG_DATA_DIRS`, `/usr/local/share`, `/usr/share`).
pub fn data() -> Vec<PathBuf> {
    if let Some(folder) = named("ROIFLOW_DATA_DIR") {
        return vec![folder];
    }
    let mut folders: Vec<PathBuf> = of_user("XDG_DATA_HOME", ".local/share").into_iter().collect();
    let program = std::env::current_exe().ok();
    folders.extend(program.and_then(|program| Some(program.parent()?.parent()?.join("share"))));
    let of_system = std::env::var_os("XDG_DATA_DIRS").filter(|value| !value.is_empty()).unwrap_or("/usr/local/share:/usr/share".into());
    folders.extend(std::env::split_paths(&of_system).filter(|folder| folder.is_absolute()));
    let mut known = Vec::new();
    for folder in folders.iter().map(|folder| folder.join("roiflow")) {
        if !known.contains(&folder) {
            known.push(folder);
        }
    }
    known
}

/// The folder for compiled models, so that the next start is quick: `ROIFLOW_CACHE_DIR` (none if it is empty), otherwise
/// `roiflow/models` in the user's cache folder (`XDG_CACHE_HOME`, `~/.cache`).
pub fn model_cache() -> Option<PathBuf> {
    match std::env::var_os("ROIFLOW_CACHE_DIR") {
        Some(folder) => Some(PathBuf::from(folder)).filter(|folder| !folder.as_os_str().is_empty()),
        None => Some(of_user("XDG_CACHE_HOME", ".cache")?.join("roiflow/models")),
    }
}

/// A folder of the user: the one that the variable names, or this one in the home folder.
fn of_user(variable: &str, in_home: &str) -> Option<PathBuf> {
    named(variable).filter(|folder| folder.is_absolute()).or_else(|| Some(named("HOME")?.join(in_home)))
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}
