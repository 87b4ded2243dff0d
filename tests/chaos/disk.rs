//! A small disk that fills up, for the spools.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use crate::harness::Folder;

/// Size of the disk. The spools may have more bytes in total, so they also fill the disk themselves.
const SIZE: &str = "size=640k";

/// A file system in memory.
pub struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts the disk in a folder. `None` if this user may not mount.
    pub fn mount(folder: &Folder) -> Option<Self> {
        let path = folder.0.join("disk");
        std::fs::create_dir_all(&path).ok()?;
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", SIZE, "tmpfs"]).arg(&path).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self { path })
    }

    /// The folder of the spools.
    pub fn spool(&self) -> PathBuf {
        self.path.join("spool")
    }

    /// Fills the disk with another file.
    pub fn fill(&self) {
        let Ok(mut file) = File::create(self.path.join("other")) else { return };
        while file.write_all(&[0; 1024]).is_ok() {}
    }

    /// Frees the space again.
    pub fn free(&self) {
        // The file is missing if it could not be created.
        let _removed = std::fs::remove_file(self.path.join("other"));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg(&self.path).status();
    }
}
