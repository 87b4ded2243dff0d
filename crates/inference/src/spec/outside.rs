//! Checks that the files that a description names are in the description's folder. The user can allow other folders.
//!
//! A description may come from an untrusted source, but its files are read with the user's rights. For example, a labels file `/etc/shadow`
//! would appear in every result. Files that the user names in a property or an option are not restricted.

use std::path::{Component, Path, PathBuf};

use super::config;
use crate::runtime::Result;

/// Returns the path of the file that a description names with `key`.
///
/// # Errors
/// Returns `Config` if `is_allowed` is false and the file is outside the description's folder, because of its path or because of
/// a symlink.
pub(super) fn file_of(description: &Path, key: &str, file: &Path, is_allowed: bool) -> Result<PathBuf> {
    let folder = description.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let joined = folder.join(file);
    if is_allowed {
        return Ok(joined);
    }
    let refused = |is: &str| {
        config(format!(
            "`{key}`: expected a file in the folder of the description, `{}`, got `{}`, which {is}; move the file into that folder, or allow such files with --allow-outside-files or ROIFLOW_ALLOW_OUTSIDE_FILES=1 if you trust the description",
            folder.display(),
            file.display()
        ))
    };
    let mut depth = 0_i32;
    for component in file.components() {
        match component {
            Component::RootDir | Component::Prefix(_) => return Err(refused("is an absolute path")),
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
        }
        if depth < 0 {
            return Err(refused("lies outside"));
        }
    }
    // If the file does not exist, return its path, so that the code that reads the file reports the error.
    match (folder.canonicalize(), joined.canonicalize()) {
        (Ok(folder), Ok(real)) if !real.starts_with(&folder) => Err(refused("is a link that leads outside")),
        (Ok(_), Ok(real)) => Ok(real),
        _ => Ok(joined),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn description_may_name_files_in_its_folder() {
        use std::os::unix::fs::symlink;
        let root = std::env::temp_dir().join(format!("roiflow-outside-{}", std::process::id()));
        let folder = root.join("models");
        std::fs::create_dir_all(folder.join("labels")).unwrap();
        let write = |path: &Path| std::fs::write(path, "a").unwrap();
        [root.join("secret"), folder.join("in"), folder.join("labels/in")].iter().for_each(|path| write(path));
        symlink(root.join("secret"), folder.join("link")).unwrap();
        symlink(&root, folder.join("up")).unwrap();
        symlink("in", folder.join("inner")).unwrap();
        let description = folder.join("model.toml");
        for (file, parts) in [
            ("in", None),
            ("labels/in", None),
            ("./labels/../in", None),
            ("inner", None),
            ("none", None),
            ("../secret", Some("lies outside")),
            ("labels/../../secret", Some("lies outside")),
            ("../models/in", Some("lies outside")),
            ("/etc/passwd", Some("absolute")),
            ("link", Some("link that leads outside")),
            ("up/secret", Some("link that leads outside")),
        ] {
            let message = file_of(&description, "labels-file", Path::new(file), false).map_err(|error| error.to_string());
            match parts {
                None => assert!(message.is_ok(), "{file}: {message:?}"),
                Some(part) => {
                    assert!(
                        message.as_ref().is_err_and(|message| message.contains(part) && message.contains("labels-file")),
                        "{file}: {message:?}"
                    )
                }
            }
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
