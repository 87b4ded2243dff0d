//! Parses the value of `--input`: a file, a folder, a pattern, an address, or a test pattern.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use roiflow_images::file::{self, IMAGE_EXTENSIONS, has_image_extension};

use super::credentials::Credentials;
use super::logins::Logins;
use super::numbered::natural_order;
use super::uri::Uri;
use super::{Error, Result, numbered};
use crate::redaction::{self, Secrets};

/// Source of the frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A video file.
    File(PathBuf),
    /// Image files, in this order.
    Images(Vec<PathBuf>),
    /// Any other address that GStreamer plays: `rtsp://`, `https://`, `v4l2://`.
    Uri(Uri),
    /// GStreamer's test pattern, with this number of frames.
    Test(u32),
    /// Frames that the application pushes.
    Application,
}

/// Default number of frames of `test:`.
const N_TEST_FRAMES: u32 = 300;

impl Input {
    /// Parses an input: a file, an image, a folder or pattern of images (`*.jpg` or `%05d.jpg`), a URI, `test:`, `test:FRAMES`, or `-` for standard input.
    ///
    /// An existing path always means that file or folder. For a single file, its content decides whether it is an image; in folders, the
    /// file extensions decide. Hidden files and subfolders are left out.
    ///
    /// # Errors
    /// Returns an error if the file does not exist, or if no image is in the folder or matches the pattern.
    pub fn parse(text: &str) -> Result<Self> {
        let path = Path::new(text);
        if path.exists() {
            return of_path(text, path);
        }
        if text == "-" {
            return Ok(Self::Uri(Uri::stdin()));
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
            Some(uri) => uri.check().map(|()| Self::Uri(uri)),
            None => of_path(text, path),
        }
    }

    /// Returns the input with the user and password for its host added, if `credentials` has an entry for the host.
    ///
    /// # Errors
    /// Returns an error if there is a password but no user.
    pub fn with_credentials(self, credentials: &Credentials) -> Result<Self> {
        match self {
            Self::Uri(uri) => Ok(Self::Uri(uri.with_credentials(credentials)?)),
            other => Ok(other),
        }
    }

    /// Returns the input with the login for its host, which is read again for each attempt to open the input.
    ///
    /// # Errors
    /// Returns an error if there is a password but no user.
    pub fn with_logins(self, logins: &Logins) -> Result<Self> {
        match self {
            Self::Uri(uri) => Ok(Self::Uri(uri.with_logins(logins)?)),
            other => Ok(other),
        }
    }

    /// Returns the same input with the login that is valid now. Reads files.
    pub(super) fn with_newest_login(&self) -> Self {
        match self {
            Self::Uri(uri) => Self::Uri(uri.with_newest_login()),
            other => other.clone(),
        }
    }

    /// Returns the name of the input for results and messages, without credentials.
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

    /// Returns the credentials that must be removed from texts about this input.
    pub fn secrets(&self) -> Secrets {
        match self {
            Self::Uri(uri) => uri.secrets(),
            _ => Secrets::default(),
        }
    }
}

/// Returns the path of a `file:` URI; `None` for other texts.
///
/// # Errors
/// Returns `Usage` if the URI names another host.
pub(super) fn file_of_uri(text: &str) -> Result<Option<PathBuf>> {
    let Some(rest) = text.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("file:")).map(|_| &text[5..]) else { return Ok(None) };
    let decoded = |path: &str| PathBuf::from(OsString::from_vec(redaction::percent_decoded(path)));
    // The path may be percent-encoded, or it may be literal and contain a percent sign. Use the path that exists.
    let existing = |path: &str| [decoded(path), PathBuf::from(path)].into_iter().find(|path| path.exists());
    let Some(behind) = rest.strip_prefix("//") else {
        return Ok(Some(existing(rest).unwrap_or_else(|| decoded(rest))));
    };
    let (host, path) = behind.split_at(behind.find('/').unwrap_or(behind.len()));
    if host.is_empty() || host.eq_ignore_ascii_case("localhost") {
        return Ok(Some(existing(path).unwrap_or_else(|| decoded(path))));
    }
    // `file://clip.mp4` is not a valid URI of a local file, but its meaning is clear.
    match existing(behind) {
        Some(path) => Ok(Some(path)),
        None => Err(Error::usage(format!(
            "input `{}`: expected a local file, got a file of the host `{}`. Write file:///PATH, or the path alone",
            redaction::redact(text),
            redaction::redact(&format!("x://{host}")).trim_start_matches("x://")
        ))),
    }
}

/// Parses the path of a file, a folder, or a pattern of images.
fn of_path(text: &str, path: &Path) -> Result<Input> {
    let shown = || if path.exists() { text.to_owned() } else { redaction::redact(text).into_owned() };
    let failed = |error: &dyn std::fmt::Display| {
        Error::failed(format!(
            "cannot read input `{}`: {error}; expected a video, an image, a folder or pattern of images, a URI (rtsp://, v4l2://), or `test:`",
            shown()
        ))
    };
    let no_images =
        || Error::failed(format!("input `{}`: no images found; expected files that end in {}", shown(), IMAGE_EXTENSIONS.join(", ")));
    if path.is_dir() {
        let images = in_folder(path).map_err(|error| failed(&error))?;
        return if images.is_empty() { Err(no_images()) } else { Ok(Input::Images(images)) };
    }
    match fs::metadata(path) {
        // Do not read pipes and devices to find out whether they are images: a pipe can be opened only once, by its reader.
        Ok(metadata) if !metadata.is_file() => Ok(Input::File(path.to_owned())),
        Ok(_) => match file::is_image(path) {
            Ok(true) => Ok(Input::Images(vec![path.to_owned()])),
            Ok(false) => Ok(Input::File(path.to_owned())),
            Err(error) => Err(failed(&error)),
        },
        Err(_) if fs::symlink_metadata(path).is_err() && !is_pattern(path) && numbered::matching(path).is_some() => {
            let mut images = numbered::matching(path).unwrap_or_default();
            images.retain(|path| is_image_file(path));
            if images.is_empty() { Err(no_images()) } else { Ok(Input::Images(images)) }
        }
        Err(_) if fs::symlink_metadata(path).is_err() && is_pattern(path) => {
            let images = matching(path).map_err(|error| Error::usage(format!("input `{}`: {error}", shown())))?;
            // Brackets are common in file names. So if a text has brackets but no other wildcards and matches nothing, it means a
            // file that does not exist.
            let is_name = !path.to_string_lossy().contains(['*', '?']);
            match images.is_empty() {
                true if is_name => Err(failed(&std::io::Error::from(std::io::ErrorKind::NotFound))),
                true => Err(no_images()),
                false => Ok(Input::Images(images)),
            }
        }
        Err(error) => Err(failed(&error)),
    }
}

/// Whether a folder's entry counts as an input: a file or a broken link that is not hidden. A broken link is later reported as an
/// unreadable image.
fn is_listed(path: &Path) -> bool {
    let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    !is_hidden && fs::metadata(path).map_or_else(|_| fs::symlink_metadata(path).is_ok(), |metadata| metadata.is_file())
}

/// Returns the images in a folder, in natural order.
fn in_folder(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
    let mut images: Vec<PathBuf> = paths.into_iter().filter(|path| has_image_extension(path) && is_listed(path)).collect();
    images.sort_by(|one, other| natural_order(one, other));
    Ok(images)
}

const WILDCARDS: [char; 3] = ['*', '?', '['];

fn is_pattern(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains(WILDCARDS))
}

/// Returns the images that match a pattern, in natural order. An existing name is taken literally, even if it contains wildcards.
///
/// `*`, `?` and `[...]` match characters of one name, and `**` matches any number of folders. A hidden name matches only if that part
/// of the pattern begins with a dot.
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
    found.retain(|path| is_image_file(path));
    found.sort_by(|one, other| natural_order(one, other));
    found.dedup();
    Ok(found)
}

/// Whether a path is a file, or a broken link, that has the ending or the content of an image.
fn is_image_file(path: &Path) -> bool {
    let is_file = fs::metadata(path).map_or_else(|_| fs::symlink_metadata(path).is_ok(), |metadata| metadata.is_file());
    is_file && (has_image_extension(path) || file::is_image(path).unwrap_or(false))
}

/// Returns the entries of a folder; empty if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    listed.into_iter().flatten().flatten().map(|entry| folder.join(entry.file_name())).collect()
}

/// Returns the folder and all its subfolders, except hidden folders and links.
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
