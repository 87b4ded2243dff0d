//! The files of a recording: their names, and the elements that write them.

use std::path::{Path, PathBuf};

use crate::publish::{self, Deadline, IfExists, OutputFile};

/// How a file is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Container {
    /// The muxer with its properties.
    pub(super) muxer: &'static str,
    /// Whether the file is written only once it can be played.
    pub(super) holds_until_moov: bool,
    /// Whether other files can follow. If not, the destination is a pipe or a device.
    pub(super) has_parts: bool,
}

impl Container {
    /// Returns the container for a path; `None` if its extension is unknown.
    pub(super) fn of(path: &Path, if_exists: IfExists) -> Option<Self> {
        let pipe = |muxer| Some(Self { muxer, holds_until_moov: false, has_parts: false });
        if publish::is_stdout(path) {
            return pipe("matroskamux streamable=true");
        }
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
        let has_parts = OutputFile::new(path, if_exists, Deadline::default()).is_seekable();
        // Write the file in fragments, so that it can be played at any time. At the end, one index for the whole file replaces the indexes
        // of the fragments.
        match (&*ending, has_parts) {
            ("mp4" | "m4v", true) => {
                let muxer = "mp4mux fragment-duration=500 fragment-mode=first-moov-then-finalise";
                Some(Self { muxer, holds_until_moov: true, has_parts })
            }
            ("mov", true) => {
                let muxer = "qtmux fragment-duration=500 fragment-mode=first-moov-then-finalise";
                Some(Self { muxer, holds_until_moov: true, has_parts })
            }
            ("mkv", true) => Some(Self { muxer: "matroskamux", holds_until_moov: false, has_parts }),
            ("mp4" | "m4v", false) => pipe("mp4mux fragment-duration=500 streamable=true"),
            ("mov", false) => pipe("qtmux fragment-duration=500 streamable=true"),
            (_, false) => pipe("matroskamux streamable=true"),
            _ => None,
        }
    }
}

/// Checks that the element can write a video to this path.
///
/// # Errors
/// Returns what was expected if the extension is unknown.
pub fn check(path: &Path, if_exists: IfExists) -> Result<(), String> {
    match Container::of(path, if_exists) {
        Some(_) => Ok(()),
        None => Err(format!("video `{}`: expected a file that ends in .mp4, .mov or .mkv, or `-`", path.display())),
    }
}

/// Returns the path of the next part of a video: the first path at which no file exists. `first` is the path of the first part.
pub fn next_part(first: &Path, current: &Path) -> PathBuf {
    let stem = first.file_stem().unwrap_or_default().to_string_lossy();
    let ending = first.extension().unwrap_or_default().to_string_lossy();
    let parts = (2_u64..).map(|n| first.with_file_name(format!("{stem}.part{n}.{ending}")));
    let mut free = parts.filter(|path| path != current && std::fs::symlink_metadata(path).is_err());
    free.next().unwrap_or_else(|| current.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_video_never_replace_files() {
        let folder = std::env::temp_dir().join(format!("roiflow-parts-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let first = folder.join("door.1.mp4");
        assert_eq!(next_part(&first, &first), folder.join("door.1.part2.mp4"));
        std::fs::write(folder.join("door.1.part2.mp4"), "").unwrap();
        assert_eq!(next_part(&first, &first), folder.join("door.1.part3.mp4"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
