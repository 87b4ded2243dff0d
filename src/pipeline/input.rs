//! What `--input` means.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use super::credentials::Credentials;
use super::uri::Uri;
use super::{Error, Result, picture};
use crate::redaction::{self, Secrets};

/// Where the frames come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A video file.
    File(PathBuf),
    /// Pictures, in this order.
    Images(Vec<PathBuf>),
    /// Anything else that GStreamer plays: `rtsp://`, `https://`, `v4l2://`.
    Uri(Uri),
    /// GStreamer's test picture, so many frames.
    Test(u32),
    /// Frames that the application pushes.
    Application,
}

const IMAGE_ENDINGS: [&str; 5] = ["png", "jpg", "jpeg", "bmp", "webp"];

/// Frames of `test:`.
const N_TEST_FRAMES: u32 = 300;

impl Input {
    /// Reads what the user typed: a file, a picture, a folder or pattern of pictures, a URI, `test:` or `test:FRAMES`.
    ///
    /// A path that exists is that file or folder, whatever it looks like. Of a single file the content decides whether it is a
    /// picture; in folders the endings of the names. Files whose names begin with a dot, and folders in folders, are left out.
    ///
    /// # Errors
    /// If there is no such file, or no picture in the folder or pattern.
    pub fn parse(text: &str) -> Result<Self> {
        let path = Path::new(text);
        if path.exists() {
            return of_path(text, path);
        }
        if let Some(count) = text.strip_prefix("test:") {
            let n_frames = if count.is_empty() { Ok(N_TEST_FRAMES) } else { count.parse() };
            let expected = || format!("input `{}`: expected `test:` or `test:FRAMES`, such as `test:100`", redaction::redact(text));
            return n_frames.map(Self::Test).map_err(|_| Error::usage(expected()));
        }
        if let Some(path) = file_of_uri(text)? {
            return of_path(text, &path);
        }
        match Uri::parse(text) {
            Some(uri) => Ok(Self::Uri(uri)),
            None => of_path(text, path),
        }
    }

    /// The input, opened with what `credentials` have for its host.
    ///
    /// # Errors
    /// If there is a password for it, but no user.
    pub fn with_credentials(self, credentials: &Credentials) -> Result<Self> {
        match self {
            Self::Uri(uri) => Ok(Self::Uri(uri.with_credentials(credentials)?)),
            other => Ok(other),
        }
    }

    /// What to call it in results and messages; without credentials.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Images(paths) => match &**paths {
                [one] => one.display().to_string(),
                all => all.first().and_then(|path| path.parent()).unwrap_or(Path::new(".")).display().to_string(),
            },
            Self::Uri(uri) => uri.shown(),
            Self::Test(_) => "test:".to_owned(),
            Self::Application => "application".to_owned(),
        }
    }

    /// What must be hidden in any text about this input.
    pub fn secrets(&self) -> Secrets {
        match self {
            Self::Uri(uri) => uri.secrets(),
            _ => Secrets::default(),
        }
    }
}

/// The path of a `file:` URI; `None` if the text is none.
///
/// # Errors
/// `Usage` if it names another host.
pub(super) fn file_of_uri(text: &str) -> Result<Option<PathBuf>> {
    let Some(rest) = text.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("file:")).map(|_| &text[5..]) else { return Ok(None) };
    let decoded = |path: &str| PathBuf::from(OsString::from_vec(redaction::percent_decoded(path)));
    // A path that nobody encoded may hold a percent sign.
    let existing = |path: &str| [decoded(path), PathBuf::from(path)].into_iter().find(|path| path.exists());
    let Some(behind) = rest.strip_prefix("//") else {
        return Ok(Some(existing(rest).unwrap_or_else(|| decoded(rest))));
    };
    let (host, path) = behind.split_at(behind.find('/').unwrap_or(behind.len()));
    if host.is_empty() || host.eq_ignore_ascii_case("localhost") {
        return Ok(Some(existing(path).unwrap_or_else(|| decoded(path))));
    }
    // `file://clip.mp4` is no URI of a file here, but it is clear what is meant.
    match existing(behind) {
        Some(path) => Ok(Some(path)),
        None => Err(Error::usage(format!(
            "input `{}`: expected a file of this machine, got one of the host `{}`. Write file:///PATH, or the path alone",
            redaction::redact(text),
            redaction::redact(&format!("x://{host}")).trim_start_matches("x://")
        ))),
    }
}

/// A file, a folder, or a pattern of pictures.
fn of_path(text: &str, path: &Path) -> Result<Input> {
    let shown = || if path.exists() { text.to_owned() } else { redaction::redact(text).into_owned() };
    let failed = |error: &dyn std::fmt::Display| {
        Error::failed(format!(
            "cannot read input `{}`: {error}; expected a video, a picture, a folder or pattern of pictures, a URI (rtsp://, v4l2://), or `test:`",
            shown()
        ))
    };
    let no_pictures =
        || Error::failed(format!("input `{}`: no pictures found; expected files that end in {}", shown(), IMAGE_ENDINGS.join(", ")));
    if path.is_dir() {
        let pictures = in_folder(path).map_err(|error| failed(&error))?;
        return if pictures.is_empty() { Err(no_pictures()) } else { Ok(Input::Images(pictures)) };
    }
    match fs::metadata(path) {
        // A pipe is opened once, by who reads it; a device is not looked into.
        Ok(metadata) if !metadata.is_file() => Ok(Input::File(path.to_owned())),
        Ok(_) => match picture::is_picture(path) {
            Ok(true) => Ok(Input::Images(vec![path.to_owned()])),
            Ok(false) => Ok(Input::File(path.to_owned())),
            Err(error) => Err(failed(&error)),
        },
        Err(_) if fs::symlink_metadata(path).is_err() && is_pattern(path) => {
            let pictures = matching(path).map_err(|error| Error::usage(format!("input `{}`: {error}", shown())))?;
            // Brackets are common in names: without other wildcards, a file was meant.
            let is_name = !path.to_string_lossy().contains(['*', '?']);
            match pictures.is_empty() {
                true if is_name => Err(failed(&std::io::Error::from(std::io::ErrorKind::NotFound))),
                true => Err(no_pictures()),
                false => Ok(Input::Images(pictures)),
            }
        }
        Err(error) => Err(failed(&error)),
    }
}

/// Whether the name ends as those of pictures do.
pub(super) fn has_picture_ending(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    IMAGE_ENDINGS.contains(&&*ending)
}

/// Not hidden, and a file or a link that leads nowhere: that is a picture which cannot be read, and is said to be one.
fn is_listed(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    !is_hidden && fs::metadata(path).map_or_else(|_| fs::symlink_metadata(path).is_ok(), |metadata| metadata.is_file())
}

/// The pictures of a folder, sorted.
fn in_folder(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
    let mut pictures: Vec<PathBuf> = paths.into_iter().filter(|path| has_picture_ending(path) && is_listed(path)).collect();
    pictures.sort();
    Ok(pictures)
}

const WILDCARDS: [char; 3] = ['*', '?', '['];

fn is_pattern(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains(WILDCARDS))
}

/// The pictures that a pattern matches, sorted. A folder or file that exists under the very name of a part of the pattern is that one.
///
/// `*`, `?`, `[...]` stand for letters of one name, `**` for any number of folders. Names that begin with a dot only match if the
/// pattern begins with one, too.
fn matching(path: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![PathBuf::new()];
    for component in path.components() {
        let text = component.as_os_str().to_string_lossy();
        if text == "**" {
            found = found.into_iter().flat_map(|folder| with_subfolders(&folder)).collect();
            continue;
        }
        let pattern = match component {
            Component::Normal(_) if text.contains(WILDCARDS) => Some(glob::Pattern::new(&text).map_err(|error| error.to_string())?),
            _ => None,
        };
        let matching = |folder: PathBuf| match &pattern {
            Some(pattern) if fs::symlink_metadata(folder.join(component)).is_err() => {
                let fits = |path: &PathBuf| {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    pattern.matches(&name) && (!name.starts_with('.') || text.starts_with('.'))
                };
                entries(&folder).into_iter().filter(fits).collect()
            }
            _ => vec![folder.join(component)],
        };
        found = found.into_iter().flat_map(matching).collect();
    }
    let is_picture = |path: &PathBuf| has_picture_ending(path) || picture::is_picture(path).unwrap_or(false);
    let is_file = |path: &PathBuf| fs::metadata(path).map_or_else(|_| fs::symlink_metadata(path).is_ok(), |metadata| metadata.is_file());
    found.retain(|path| is_file(path) && is_picture(path));
    found.sort();
    found.dedup();
    Ok(found)
}

/// What is in a folder; nothing if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    listed.into_iter().flatten().flatten().map(|entry| folder.join(entry.file_name())).collect()
}

/// The folder and all below it, but for hidden ones and links.
fn with_subfolders(folder: &Path) -> Vec<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    let mut folder_idx = 0;
    while let Some(folder) = folders.get(folder_idx) {
        let is_folder = |path: &PathBuf| {
            let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            !is_hidden && fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
        };
        let inside: Vec<PathBuf> = entries(folder).into_iter().filter(is_folder).collect();
        folders.extend(inside);
        folder_idx += 1;
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_uris_are_paths() {
        for (uri, path) in [
            ("file:///a%20b%23%25.mp4", Some("/a b#%.mp4")),
            ("FILE://LocalHost/a.mp4", Some("/a.mp4")),
            ("file:/a.mp4", Some("/a.mp4")),
            ("file:///a?b#c.mp4", Some("/a?b#c.mp4")),
            ("http://host/a", None),
            ("fil", None),
        ] {
            assert_eq!(file_of_uri(uri).unwrap(), path.map(PathBuf::from), "{uri}");
        }
        assert_eq!(file_of_uri("file:///no%ff.png").unwrap().unwrap().into_os_string().into_vec(), b"/no\xff.png");
        let error = file_of_uri("file://u:p4ss@nas/a.mp4").unwrap_err().to_string();
        assert!(error.contains("nas") && error.contains("file:///PATH") && !error.contains("p4ss"), "{error}");
    }
}
