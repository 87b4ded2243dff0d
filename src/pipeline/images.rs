//! Pushes images from files into an `appsrc`. Unreadable images are skipped, reported and counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use gst::prelude::MulDiv;
use gstreamer as gst;
use gstreamer_app as gst_app;
use roiflow_images::file::{self, DecodedImage};

use super::{Error, Result};
use crate::elements::origin;

/// Frame rate of input images. Default: 5 per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRate(gst::Fraction);

impl Default for ImageRate {
    fn default() -> Self {
        Self(gst::Fraction::new(5, 1))
    }
}

impl std::str::FromStr for ImageRate {
    type Err = String;

    /// Parses frames per second: a number such as 25 or 0.5, or a fraction such as 30000/1001.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let fraction = match text.split_once('/') {
            Some((numerator, denominator)) => numerator.parse().ok().zip(denominator.parse().ok().filter(|denominator| *denominator > 0)),
            // Three decimals.
            None => text.parse::<f64>().ok().filter(|rate| rate.is_finite()).map(|rate| ((rate * 1000.0).round() as i32, 1000)),
        };
        let fraction = fraction.filter(|(numerator, denominator)| {
            let rate = f64::from(*numerator) / f64::from(*denominator);
            (0.001..=1000.0).contains(&rate)
        });
        let expected = || format!("expected frames per second from 0.001 to 1000, such as 25 or 30000/1001, got `{text}`");
        fraction.map(|(numerator, denominator)| Self(gst::Fraction::new(numerator, denominator))).ok_or_else(expected)
    }
}

impl ImageRate {
    /// Returns the time stamp of the image with this number, from 0.
    fn time(self, n: u64) -> gst::ClockTime {
        let (numerator, denominator) = (self.0.numer() as u64, self.0.denom() as u64);
        let second = gst::ClockTime::SECOND.nseconds();
        gst::ClockTime::from_nseconds(n.mul_div_floor(second * denominator, numerator).unwrap_or(u64::MAX - 1))
    }
}

/// Counts of the images that a feed has read and skipped.
#[derive(Debug, Clone, Default)]
pub(super) struct Feed(Arc<Mutex<Account>>);

#[derive(Debug, Clone, Default)]
struct Account {
    n_pushed: u64,
    /// Number of unreadable images in the first pass over the files. `reason` is the error of the first unreadable image.
    n_skipped: u64,
    reason: Option<Error>,
}

impl Feed {
    /// Returns the number of unreadable images.
    pub fn n_skipped(&self) -> u64 {
        self.0.lock().unwrap().n_skipped
    }

    /// Returns an error if there were unreadable images and no readable image.
    pub fn nothing_read(&self) -> Option<Error> {
        let account = self.0.lock().unwrap();
        let reason = account.reason.clone().filter(|_| account.n_pushed == 0)?;
        Some(match account.n_skipped {
            1 => reason,
            n_skipped => Error::failed(format!("none of the {n_skipped} images could be read; the first: {reason}")),
        })
    }

    /// Counts an unreadable image. Returns the message to report.
    fn take(&self, path: &Path, error: String, is_first_turn: bool) -> String {
        let mut account = self.0.lock().unwrap();
        account.n_skipped += u64::from(is_first_turn);
        let shown = file::shown(path);
        account.reason.get_or_insert_with(|| Error::failed(format!("cannot read image `{shown}`: {error}")));
        format!("image `{shown}` is skipped: {error}")
    }
}

/// Sends EOS when it is dropped. The feeding thread owns it, so the pipeline does not wait for further images if that thread ends
/// for any reason.
struct EndOfStream(gst_app::AppSrc);

impl Drop for EndOfStream {
    fn drop(&mut self) {
        // Pushing EOS fails only if the pipeline is stopping.
        let _ended = self.0.end_of_stream();
    }
}

/// Starts a thread that decodes and pushes the images, until the last image or until the pipeline stops. If `repeat` is true, it
/// starts again after the last image.
pub(super) fn feed(source: &gst_app::AppSrc, paths: Vec<PathBuf>, rate: ImageRate, repeat: bool) -> Result<Feed> {
    let feed = Feed::default();
    let (end, of_thread) = (EndOfStream(source.clone()), feed.clone());
    let push = move || {
        let source = &end.0;
        let mut is_first_turn = true;
        let is_one = paths.len() == 1;
        loop {
            let n_before = of_thread.0.lock().unwrap().n_pushed;
            for (image_idx, path) in paths.iter().enumerate() {
                // If the image decoder panics, skip only this image.
                let read = catch_unwind(AssertUnwindSafe(|| file::read(path))).unwrap_or_else(|_| Err("its decoder panicked".to_owned()));
                let sentence = match read {
                    Ok(image) => {
                        let n_pushed = of_thread.0.lock().unwrap().n_pushed;
                        match push(source, &image, (image_idx, path), rate, n_pushed) {
                            Ok(true) => of_thread.0.lock().unwrap().n_pushed += 1,
                            Ok(false) => return,
                            Err(error) => {
                                gst::element_error!(source, gst::ResourceError::Failed, ("{error}"));
                                return;
                            }
                        }
                        image.note.map(|note| format!("image `{}`: {note}", file::shown(path)))
                    }
                    // If the input is a single image, its error becomes the error of the input and is not posted as a warning.
                    Err(error) => Some(of_thread.take(path, error, is_first_turn)).filter(|_| !is_one),
                };
                if let Some(sentence) = sentence.filter(|_| is_first_turn) {
                    gst::element_warning!(source, gst::ResourceError::Read, ("{sentence}"));
                }
            }
            if let Some(error) = of_thread.nothing_read() {
                gst::element_error!(source, gst::ResourceError::Read, ("{error}"));
                return;
            }
            if of_thread.0.lock().unwrap().n_pushed == n_before {
                gst::element_error!(
                    source,
                    gst::ResourceError::Read,
                    ("cannot repeat the images: none of the images can be read any more")
                );
                return;
            }
            is_first_turn = false;
            if !repeat {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("roiflow-images".to_owned())
        .spawn(push)
        .map(|_thread| feed)
        .map_err(|error| Error::failed(format!("cannot start the thread that reads images: {error}")))
}

/// Returns the width and height of the first readable image, from its header.
pub(super) fn size(paths: &[PathBuf]) -> Result<(u32, u32)> {
    let mut reason = None;
    for path in paths {
        match file::size(path) {
            Ok(size) => return Ok(size),
            Err(error) => drop(reason.get_or_insert_with(|| format!("cannot read image `{}`: {error}", file::shown(path)))),
        }
    }
    Err(Error::failed(reason.unwrap_or_else(|| "expected at least one image, got none".to_owned())))
}

/// Pushes an image as a frame. Returns false if the pipeline accepts no more frames.
fn push(source: &gst_app::AppSrc, image: &DecodedImage, (image_idx, path): (usize, &Path), rate: ImageRate, n_pushed: u64) -> Result<bool> {
    let (width, height) = image.pixels.dimensions();
    let caps = super::stream::raw_caps("RGB", width, height, rate.0);
    if source.caps().as_ref() != Some(&caps) {
        source.set_caps(Some(&caps));
    }
    let mut buffer = super::stream::packed_buffer(image.pixels.as_raw(), width as usize * 3, height as usize)?;
    {
        let buffer = buffer.make_mut();
        buffer.set_pts(rate.time(n_pushed));
        buffer.set_duration(rate.time(n_pushed + 1) - rate.time(n_pushed));
        origin::attach(buffer, image_idx as u64, &path.to_string_lossy());
    }
    Ok(source.push_buffer(buffer).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_numbers_or_fractions() {
        for (text, numerator, denominator) in
            [("25", 25, 1), ("0.5", 1, 2), ("29.97", 2997, 100), ("30000/1001", 30000, 1001), ("1000", 1000, 1)]
        {
            assert_eq!(text.parse(), Ok(ImageRate(gst::Fraction::new(numerator, denominator))), "{text}");
        }
        for text in ["", "0", "-1", "1/0", "fast", "1/-2", "2000", "nan", "1e-9", "inf"] {
            assert!(text.parse::<ImageRate>().unwrap_err().contains("from 0.001 to 1000"), "{text}");
        }
    }

    #[test]
    fn times_do_not_drift() {
        let rate: ImageRate = "30000/1001".parse().unwrap();
        assert_eq!([0, 1, 30_000].map(|n| rate.time(n).nseconds()), [0, 33_366_666, 1_001_000_000_000]);
    }
}
