//! The folders of roiflow's own files on a user's system: engines, pipelines, compiled models.
//!
//! The folders follow the XDG Base Directory Specification, so an installed binary does not depend on the folder in which it was built.
//! This module reads only environment variables; it does not access the files.

use std::path::PathBuf;

/// Returns the folders of roiflow's data, in search order. A folder in the list need not exist.
///
/// If `ROIFLOW_DATA_DIR` is set, the list contains only the folder that it names. Otherwise it contains the folder `roiflow` in the user's
/// data folder (`XDG_DATA_HOME`, `~/.local/share`), in the `share` folder next to the running program, and in the system's data folders
/// (`XDG_DATA_DIRS`, `/usr/local/share`, `/usr/share`).
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

/// Returns the folder in which compiled models are cached. `ROIFLOW_CACHE_DIR` names it; if that variable is empty, models are not cached.
/// If the variable is not set, the folder is `roiflow/models` in the user's cache folder (`XDG_CACHE_HOME`, `~/.cache`).
pub fn model_cache() -> Option<PathBuf> {
    match std::env::var_os("ROIFLOW_CACHE_DIR") {
        Some(folder) => Some(PathBuf::from(folder)).filter(|folder| !folder.as_os_str().is_empty()),
        None => Some(of_user("XDG_CACHE_HOME", ".cache")?.join("roiflow/models")),
    }
}

/// Returns a folder of the user: the folder that `variable` names, or otherwise the folder `in_home` in the home folder.
fn of_user(variable: &str, in_home: &str) -> Option<PathBuf> {
    named(variable).filter(|folder| folder.is_absolute()).or_else(|| Some(named("HOME")?.join(in_home)))
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}
