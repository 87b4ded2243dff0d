//! Pictures from files, pushed into an `appsrc` one by one.

use std::path::{Path, PathBuf};

use gstreamer as gst;
use gstreamer_app as gst_app;

use super::{Error, Result};

/// Pictures a second, for players of what comes out.
const FRAMERATE: i32 = 5;

/// Starts a thread that decodes the pictures and pushes them until the end, an error, or the pipeline's stop.
///
/// A picture that can't be read ends the stream with an error on the bus.
pub(super) fn feed(source: &gst_app::AppSrc, paths: Vec<PathBuf>, repeat: bool) -> Result<()> {
    let source = source.clone();
    let feed = move || {
        let mut n_pushed: u64 = 0;
        loop {
            for path in &paths {
                match push_file(&source, path, n_pushed) {
                    Ok(true) => n_pushed += 1,
                    Ok(false) => return,
                    Err(error) => {
                        gst::element_error!(source, gst::ResourceError::Read, ("{error}"));
                        return;
                    }
                }
            }
            if !repeat {
                // Refused only by a pipeline that stops.
                let _ended = source.end_of_stream();
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("roiflow-images".to_owned())
        .spawn(feed)
        .map(drop)
        .map_err(|error| Error::failed(format!("cannot start a thread: {error}")))
}

/// Width and height of a picture, from its header.
pub(super) fn size(path: &Path) -> Result<(u32, u32)> {
    image::image_dimensions(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::failed(format!("cannot read picture `{}`: {error}; expected PNG, JPEG, BMP or WebP", path.display()))
}

/// False if the pipeline takes no more.
fn push_file(source: &gst_app::AppSrc, path: &Path, n_pushed: u64) -> Result<bool> {
    let picture = image::ImageReader::open(path)
        .and_then(|reader| reader.with_guessed_format())
        .map_err(|error| unreadable(path, &error))?
        .decode()
        .map_err(|error| unreadable(path, &error))?
        .into_rgb8();
    let (width, height) = picture.dimensions();
    let caps = super::stream::raw_caps("RGB", width, height, FRAMERATE);
    if source.caps().as_ref() != Some(&caps) {
        source.set_caps(Some(&caps));
    }
    let mut buffer = super::stream::packed_buffer(picture.as_raw(), width as usize * 3, height as usize)?;
    {
        let buffer = buffer.make_mut();
        let pts = |n: u64| gst::ClockTime::from_nseconds(n * gst::ClockTime::SECOND.nseconds() / FRAMERATE as u64);
        buffer.set_pts(pts(n_pushed));
        buffer.set_duration(pts(n_pushed + 1) - pts(n_pushed));
    }
    Ok(source.push_buffer(buffer).is_ok())
}
