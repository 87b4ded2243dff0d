//! Decides when a recording that has failed begins a new file, and what is reported, as a pure state machine without clocks and files. The functions at
//! the end post and read the reports.
//!
//! After the first failure, a new file begins at once. If it fails soon, the next files begin after a delay, which doubles. A full disk
//! thus costs one small attempt per minute. One loss is reported once, and so is its end.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

/// Name of the structure in the details of a warning about a recording. Field `reason`: why. Field `path`: the file that continues the
/// recording; it is missing if the recording has stopped.
const NEWS: &str = "roiflow-recording";

/// Delay after the second failure in a row.
const MIN_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// A file that has worked for this time ends a row of failures.
const HEALTHY: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Retry {
    /// Number of failures in a row.
    n_failures: u32,
    /// When the next file may begin; `None`: at once.
    next: Option<Instant>,
    /// When the current file got its first video.
    works_since: Option<Instant>,
    /// Why the current file has begun, until this is reported.
    reason: Option<String>,
    /// Whether a loss was reported whose end was not.
    is_lost: bool,
}

impl Retry {
    /// Whether a new file may begin.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// The file has failed, or cannot begin. Returns whether the recording is lost from now on, which is to be reported.
    pub(super) fn failed(&mut self, reason: &str, now: Instant) -> bool {
        if self.works_since.take().is_some_and(|since| now.saturating_duration_since(since) >= HEALTHY) {
            self.n_failures = 0;
        }
        let delay = match self.n_failures {
            0 => Duration::ZERO,
            n => MIN_DELAY.saturating_mul(1 << (n - 1).min(10)).min(MAX_DELAY),
        };
        self.n_failures += 1;
        self.next = Some(now + delay);
        self.reason.get_or_insert_with(|| reason.to_owned());
        !delay.is_zero() && self.lose()
    }

    /// Video is missing even if the next file begins at once. Returns whether this is to be reported.
    pub(super) fn lose(&mut self) -> bool {
        !std::mem::replace(&mut self.is_lost, true)
    }

    /// The file ends without a failure, and a new file follows, for example because the size of the frames has changed.
    pub(super) fn changed(&mut self, reason: &str) {
        self.reason = Some(reason.to_owned());
    }

    /// The recording ends. Returns the reason of the last failure if it was not reported.
    pub(super) fn end(&mut self) -> Option<String> {
        self.reason.take().filter(|_| !self.is_lost && self.n_failures > 0)
    }

    /// The current file has video. Returns the reason why it has begun if this is to be reported: it continues an earlier file.
    pub(super) fn works(&mut self, now: Instant) -> Option<String> {
        self.works_since.get_or_insert(now);
        self.is_lost = false;
        self.reason.take()
    }
}

/// Posts a warning: a recording continues in another file.
pub(crate) fn report(element: &impl IsA<gst::Element>, reason: &str, path: &Path) {
    let path = path.to_string_lossy();
    let details = gst::Structure::builder(NEWS).field("reason", reason).field("path", &*path).build();
    gst::element_warning!(element, gst::ResourceError::Write, ("{reason}; the recording continues in `{path}`"), details: details);
}

/// Posts a warning: a recording has stopped. `is_over`: no file is tried again.
pub(crate) fn report_lost(element: &impl IsA<gst::Element>, reason: &str, is_over: bool) {
    let reason = format!("{reason}; the recording has stopped{}", if is_over { "" } else { "; a file is tried again" });
    let details = gst::Structure::builder(NEWS).field("reason", &reason).build();
    gst::element_warning!(element, gst::ResourceError::Write, ("{reason}"), details: details);
}

/// Reads the details of a warning that [`report`] or [`report_lost`] has posted: the reason and the path. `None` for other warnings.
pub(crate) fn read(details: Option<&gst::StructureRef>) -> Option<(String, Option<PathBuf>)> {
    let details = details.filter(|details| details.name() == NEWS)?;
    Some((details.get::<String>("reason").ok()?, details.get::<String>("path").ok().map(Into::into)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn first_failure_begins_a_file_at_once_and_is_reported_when_it_works() {
        let (mut retry, begin) = (Retry::default(), Instant::now());
        assert!(retry.may_begin(begin));
        assert_eq!(retry.works(begin), None, "the first file continues nothing");
        assert!(!retry.failed("mux", begin + SECOND) && retry.may_begin(begin + SECOND));
        assert_eq!(retry.works(begin + SECOND), Some("mux".to_owned()));
        assert_eq!(retry.works(begin + SECOND), None);
    }

    #[test]
    fn row_of_failures_is_one_loss_with_growing_delays() {
        let (mut retry, mut now) = (Retry::default(), Instant::now());
        let mut delays = Vec::new();
        let mut n_lost = 0;
        for _ in 0..10 {
            n_lost += u32::from(retry.failed("full", now));
            let delay = (0..).find(|seconds| retry.may_begin(now + SECOND * *seconds)).unwrap();
            delays.push(delay);
            now += SECOND * delay;
        }
        assert_eq!((n_lost, delays), (1, vec![0, 1, 2, 4, 8, 16, 32, 60, 60, 60]));
        assert_eq!(retry.works(now), Some("full".to_owned()));
        // The file fails again soon, so the delay stays. The second loss is reported, too.
        assert!(retry.failed("full again", now + SECOND) && !retry.may_begin(now + SECOND * 60));
        assert_eq!(retry.works(now + SECOND * 100), Some("full again".to_owned()));
        // The file has worked for long, so the next file begins at once.
        assert!(!retry.failed("mux", now + SECOND * 200) && retry.may_begin(now + SECOND * 200));
    }

    #[test]
    fn change_is_reported_with_the_file_that_follows() {
        let (mut retry, now) = (Retry::default(), Instant::now());
        retry.works(now);
        retry.changed("another size");
        assert!(retry.may_begin(now));
        assert_eq!(retry.works(now), Some("another size".to_owned()));
    }
}
