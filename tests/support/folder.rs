//! Temporary folders, and waits for a condition.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time limit of a wait, far above the duration of any test on a busy machine. A longer wait is a hang.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until the condition holds.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < TIMEOUT, "expected within the time limit: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A folder for one test, removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("roiflow test {} {test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    #[allow(dead_code, reason = "not all users of this file write files")]
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.join(name), contents).unwrap();
        self.file(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
