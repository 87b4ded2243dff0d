//! Files of the state folder: readable for their owner only, who is the owner of the folder.
//!
//! A command that an administrator runs as root, such as `roiflow serve --create-token`, writes into the folder of a service that runs as
//! another user. The service must be able to read and replace what the command writes.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Creates a folder that only its owner may read, unless it exists. Each new folder gets the owner of the folder that it is in.
pub(crate) fn create(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create(parent)?;
    }
    fs::create_dir(folder)?;
    protect(folder, 0o700)
}

/// Sets the permissions of a file or a folder that may hold credentials, and gives what root has created the owner of the folder that it is in.
pub(crate) fn protect(path: &Path, mode: u32) -> io::Result<()> {
    let no_link = OFlags::NOFOLLOW.bits() as i32;
    let file = match OpenOptions::new().read(true).custom_flags(no_link).open(path) {
        Ok(file) => file,
        // The owner of the folder could make root give away any file by a link, or change its permissions.
        Err(_) if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) => {
            let is_of_one_owner = fs::symlink_metadata(path)?.uid() == fs::metadata(path)?.uid();
            return if is_of_one_owner { fs::set_permissions(path, Permissions::from_mode(mode)) } else { Ok(()) };
        }
        Err(error) => return Err(error),
    };
    file.set_permissions(Permissions::from_mode(mode))?;
    give(&file, path)
}

/// Replaces the content of a file: a reader sees the old file or the new one, also after a crash.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = Path::new(&name);
    // A process may have ended before the file got its name.
    let _removed = fs::remove_file(new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    give(&file, new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(new, path)
}

/// Gives a file of root the owner of the folder that it is in.
fn give(file: &File, path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (own, folder) = (file.metadata()?, fs::metadata(parent)?);
    // Only root may give files away. A file with a second name may belong to another folder.
    let is_of_root = own.uid() == 0 && folder.uid() != 0 && (own.is_dir() || own.nlink() == 1);
    if is_of_root { std::os::unix::fs::fchown(file, Some(folder.uid()), Some(folder.gid())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_root_writes_belongs_to_the_owner_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        create(&state).unwrap();
        if std::os::unix::fs::chown(&state, Some(4321), Some(4322)).is_err() {
            return eprintln!("skipped: this user may not change the owner of a file");
        }
        let owner = |path: &Path| {
            let metadata = fs::metadata(path).unwrap();
            (metadata.uid(), metadata.gid(), metadata.mode() & 0o777)
        };
        replace(&state.join("tokens.json"), b"{}").unwrap();
        create(&state.join("a/b")).unwrap();
        assert_eq!(owner(&state.join("tokens.json")), (4321, 4322, 0o600));
        assert_eq!(owner(&state.join("a")), (4321, 4322, 0o700));
        assert_eq!(owner(&state.join("a/b")), (4321, 4322, 0o700));
        replace(&state.join("tokens.json"), b"[]").unwrap();
        assert_eq!(owner(&state.join("tokens.json")), (4321, 4322, 0o600), "an existing file is replaced by one of the same owner");
        assert_eq!(fs::read_dir(&state).unwrap().count(), 2, "no other file is left");
        // The owner of the folder cannot use it to get another file, nor to have it overwritten.
        let other = folder.path().join("other");
        fs::write(&other, "of root").unwrap();
        std::os::unix::fs::symlink(&other, state.join("link")).unwrap();
        std::os::unix::fs::symlink(&other, state.join("tokens.json.new")).unwrap();
        fs::hard_link(&other, state.join("streams.redb")).unwrap();
        protect(&state.join("link"), 0o600).unwrap();
        protect(&state.join("streams.redb"), 0o600).unwrap();
        replace(&state.join("tokens.json"), b"{}").unwrap();
        assert_eq!((owner(&other).0, fs::read_to_string(&other).unwrap()), (0, "of root".to_owned()));
        assert_eq!(owner(&state.join("tokens.json")).0, 4321);
    }
}
