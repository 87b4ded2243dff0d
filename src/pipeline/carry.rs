//! State that a restarted stream takes over from its earlier pipelines: frame numbers, times, track IDs and output files.
//!
//! Lines of results are appended to the same file. A video file cannot be continued, so each pipeline writes its own:
//! `out.mp4`, `out.part2.mp4`, `out.part3.mp4`.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gst::prelude::*;
use gstreamer as gst;

use super::Plan;
use super::plan::{ENTRY, PUBLISH};
use super::stats::Meter;
use crate::elements::analytics::RoiAnalytics;
use crate::elements::caps;
use crate::elements::publish::{Numbering, RoiPublish};
use crate::elements::record::RoiRecord;
use crate::elements::track::RoiTrack;
use crate::elements::video::{self, Video};
use crate::frame::Size;
use crate::stages::SceneCounts;

/// State that the next pipeline of a stream takes over. See the module.
#[derive(Default)]
pub(super) struct Carried {
    /// Number of frames that the earlier pipelines of the stream have processed.
    pub(super) n_frames: u64,
    last_timestamp_ns: Option<u64>,
    /// The last track ID of each tracker, by the name of the element.
    track_ids: Vec<(String, i32)>,
    /// Counts at lines and in zones by name of the element.
    scene_counts: Vec<(String, SceneCounts)>,
    /// Whether the file of results was opened.
    has_results: bool,
    /// The last video file, and whether it has bytes.
    video: Option<(PathBuf, bool)>,
    /// The FIFO of the output, which stays open so that its reader does not receive end-of-file between two pipelines.
    fifo: Option<File>,
    /// Size of the frames of the last pipeline that had frames.
    pub(super) size: Option<Size>,
}

impl Carried {
    /// Collects the values of one pipeline before it is stopped.
    pub(super) fn of(pipeline: &gst::Pipeline, plan: &Plan, meter: &Meter) -> Self {
        let (mut numbering, mut n_published, mut video) = (Numbering::default(), 0, None);
        let (mut track_ids, mut scene_counts) = (Vec::new(), Vec::new());
        for element in pipeline.iterate_recurse().into_iter().flatten() {
            if let Some(publish) = element.downcast_ref::<RoiPublish>() {
                let frames = publish.property::<gst::Structure>("stats").get::<u64>("frames").unwrap_or(0);
                n_published = n_published.max(frames);
                numbering.last_timestamp_ns = numbering.last_timestamp_ns.max(publish.numbering().last_timestamp_ns);
            } else if let Some(track) = element.downcast_ref::<RoiTrack>() {
                track_ids.push((track.name().to_string(), track.last_id()));
            } else if let Some(analytics) = element.downcast_ref::<RoiAnalytics>() {
                scene_counts.push((analytics.name().to_string(), analytics.counts()));
            } else if let Some(element) = element.downcast_ref::<Video>() {
                video = element.file();
            }
        }
        let has_results = n_published > 0;
        Self {
            n_frames: meter.n_entered().max(n_published),
            last_timestamp_ns: numbering.last_timestamp_ns,
            track_ids,
            scene_counts,
            has_results,
            video,
            fifo: plan.outputs.json.as_deref().filter(|_| has_results).and_then(open_fifo),
            size: frame_size(pipeline),
        }
    }

    /// Combines these values with those of a later pipeline of the same stream.
    pub(super) fn and(self, later: Self) -> Self {
        Self {
            n_frames: self.n_frames + later.n_frames,
            last_timestamp_ns: self.last_timestamp_ns.max(later.last_timestamp_ns),
            has_results: self.has_results || later.has_results,
            fifo: later.fifo.or(self.fifo),
            size: later.size.or(self.size),
            ..later
        }
    }

    /// Returns the plan of the next pipeline. `plan` is the plan of the first pipeline.
    pub(super) fn plan(&self, plan: &Plan) -> Plan {
        let mut next = plan.clone();
        if self.has_results {
            // This includes the elements of `--publish`: their names begin with the name of the element of `--json`.
            let if_exists = next.assignments.iter_mut().filter(|set| set.element.starts_with(PUBLISH) && set.property == "if-exists");
            if_exists.for_each(|set| set.value = "append".to_owned());
        }
        if let Some(n_frames) = &mut next.limits.n_frames {
            *n_frames = n_frames.saturating_sub(self.n_frames).max(1);
        }
        next
    }

    /// Sets frame numbers, times and track IDs in the next pipeline, so that they continue those of the earlier pipelines. Call this
    /// before the pipeline starts. `since_begin` is the time since the first pipeline of the stream started.
    pub(super) fn continue_in(&self, pipeline: &gst::Pipeline, since_begin: Duration) {
        let is_first = self.n_frames == 0;
        let after_last = self.last_timestamp_ns.map_or(0, |last| last + 1);
        let first_timestamp_ns = if is_first { 0 } else { after_last.max(since_begin.as_nanos() as u64) };
        for element in pipeline.iterate_recurse().into_iter().flatten() {
            if let Some(publish) = element.downcast_ref::<RoiPublish>() {
                publish.set_numbering(Numbering { first_frame: self.n_frames, first_timestamp_ns, last_timestamp_ns: None });
            } else if let Some(track) = element.downcast_ref::<RoiTrack>() {
                let last = self.track_ids.iter().find(|(name, _)| *name == track.name()).map_or(0, |(_, last)| *last);
                track.continue_after(last);
            } else if let Some(analytics) = element.downcast_ref::<RoiAnalytics>() {
                let counts = self.scene_counts.iter().find(|(name, _)| *name == analytics.name());
                analytics.continue_counts(counts.map(|(_, counts)| counts.clone()).unwrap_or_default());
            } else if let Some(record) = element.downcast_ref::<RoiRecord>() {
                record.continue_recording();
            } else if let (Some(video), Some((last, is_used))) = (element.downcast_ref::<Video>(), &self.video) {
                let first = PathBuf::from(video.property::<String>("location"));
                video.continue_at(if *is_used { video::next_part(&first, last) } else { last.clone() });
            }
        }
    }
}

/// Returns the size of the frames that enter the graph; `None` before the first frame.
pub(super) fn frame_size(pipeline: &gst::Pipeline) -> Option<Size> {
    let caps = pipeline.by_name(ENTRY)?.static_pad("src")?.current_caps()?;
    caps::size_in_caps(&caps)
}

/// `O_NONBLOCK` of Linux, so that opening a FIFO without a reader does not block.
const O_NONBLOCK: i32 = 0o4000;

fn open_fifo(path: &Path) -> Option<File> {
    let is_fifo = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo());
    let open = || File::options().write(true).custom_flags(O_NONBLOCK).open(path).ok();
    is_fifo.then(open).flatten()
}
