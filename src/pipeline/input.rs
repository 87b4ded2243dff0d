//! What `--input` means.

use std::path::{Path, PathBuf};

use super::{Error, Result};

/// Where the frames come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A video file.
    File(PathBuf),
    /// Pictures, in this order.
    Images(Vec<PathBuf>),
    /// Anything with a URI that GStreamer plays: `rtsp://`, `https://`, `v4l2://`.
    Uri(String),
    /// GStreamer's test picture, so many frames.
    Test(u32),
    /// Frames that the application pushes.
    Application,
}

const IMAGE_ENDINGS: [&str; 5] = ["png", "jpg", "jpeg", "bmp", "webp"];

/// Frames of `test:`.
const N_TEST_FRAMES: u32 = 300;

impl Input {
    /// Reads what the user typed: a file, a picture, a folder or glob of pictures, a URI, `test:` or `test:FRAMES`.
    ///
    /// # Errors
    /// If there is no such file, or no picture in the folder or glob.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(count) = text.strip_prefix("test:") {
            let n_frames = if count.is_empty() { Ok(N_TEST_FRAMES) } else { count.parse() };
            return n_frames
                .map(Self::Test)
                .map_err(|_| Error::usage(format!("input `{text}`: expected `test:` or `test:FRAMES`, such as `test:100`")));
        }
        if let Some((scheme, rest)) = text.split_once("://") {
            return match scheme {
                "file" => Self::parse(rest),
                _ => Ok(Self::Uri(text.to_owned())),
            };
        }
        let path = Path::new(text);
        if path.is_dir() {
            let pattern = path.join("*");
            return images(text, &pattern.to_string_lossy());
        }
        if !path.exists() && text.contains(['*', '?']) {
            return images(text, text);
        }
        match std::fs::File::open(path) {
            Ok(_) if is_image(path) => Ok(Self::Images(vec![path.to_owned()])),
            Ok(_) => Ok(Self::File(path.to_owned())),
            Err(error) => Err(Error::failed(format!(
                "cannot read input `{text}`: {error}; expected a video, a picture, a folder or glob of pictures, a URI (rtsp://, v4l2://), or `test:`"
            ))),
        }
    }

    /// What to call it in results.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Images(paths) => paths.first().map(|path| path.display().to_string()).unwrap_or_default(),
            Self::Uri(uri) => uri.clone(),
            Self::Test(_) => "test:".to_owned(),
            Self::Application => "application".to_owned(),
        }
    }
}

pub(super) fn is_image(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    IMAGE_ENDINGS.contains(&&*ending)
}

fn images(text: &str, pattern: &str) -> Result<Input> {
    let found = glob::glob(pattern).map_err(|error| Error::usage(format!("input `{text}`: {error}")))?;
    let mut paths: Vec<PathBuf> = found.filter_map(Result::ok).filter(|path| is_image(path)).collect();
    paths.sort();
    if paths.is_empty() {
        return Err(Error::failed(format!("input `{text}`: no pictures found; expected files that end in {}", IMAGE_ENDINGS.join(", "))));
    }
    Ok(Input::Images(paths))
}
