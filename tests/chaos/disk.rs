//! A small disk that fills up, for the spools.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::harness::Folder;

/// Mounts the disk, and unmounts it when standard input ends: also if the test ends without dropping its values. The spools may have more
/// bytes in total than the disk, so they also fill the disk themselves.
const MOUNT: &str = "mount -t tmpfs -o size=640k tmpfs \"$0\" || exit 1; echo mounted; read _; umount -l \"$0\"";

/// A file system in memory.
pub struct SmallDisk {
    path: PathBuf,
    /// The process that unmounts the disk.
    mount: Child,
}

impl SmallDisk {
    /// Mounts the disk in a folder. `None` if this user may not mount.
    pub fn mount(folder: &Folder) -> Option<Self> {
        let path = folder.0.join("disk");
        std::fs::create_dir_all(&path).ok()?;
        let mut command = Command::new("sh");
        // A signal to the group of the test, such as that of Ctrl-C, does not end this process.
        command.process_group(0);
        command.args(["-c", MOUNT]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut mount = command.spawn().ok()?;
        let mut said = [0; 1];
        let is_mounted = mount.stdout.as_mut()?.read(&mut said).is_ok_and(|n| n == 1);
        if !is_mounted {
            let _reaped = mount.wait();
            return None;
        }
        Some(Self { path, mount })
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
    #[allow(dead_code, reason = "not all users of this file free the disk")]
    pub fn free(&self) {
        // The file is missing if it could not be created.
        let _removed = std::fs::remove_file(self.path.join("other"));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.mount.stdin.take());
        let _unmounted = self.mount.wait();
    }
}
