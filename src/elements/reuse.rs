//! Result reuse of `roiclassify`: its properties, and the selection of the tracked objects that are classified in a frame.
//!
//! [`crate::stages::reuse`] decides when an object is classified and combines its results. This file adds a lock, background runs and
//! counters. The lock is held briefly. It is never held while a run starts or a bus message is posted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::properties::Properties;
use crate::frame::{Detection, FrameResults, ObjectId};
use crate::stages::{self, Crop, Region, ResultCache, ReuseOptions, StageResults};

/// After this many objects without a track ID in a row, the element warns that there is no tracker upstream.
const MIN_UNTRACKED: u64 = 16;

/// Values of the properties of result reuse.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ReuseSettings {
    pub(super) options: ReuseOptions,
    /// The property `classifier-async-mode`: frames do not wait for the classification of tracked objects.
    pub(super) is_async: bool,
}

/// The properties of result reuse.
pub(super) static PROPERTIES: LazyLock<Properties<ReuseSettings>> = LazyLock::new(|| {
    let default = ReuseOptions::default();
    let share = |name: &'static str, nick: &'static str, blurb: &'static str, maximum: f32, default: f32| {
        let builder = glib::ParamSpecFloat::builder(name).nick(nick).blurb(blurb);
        builder.minimum(0.0).maximum(maximum).default_value(default).mutable_ready().build()
    };
    let number = |name: &'static str, nick: &'static str, blurb: &'static str, minimum: u32, maximum: u32, default: u32| {
        let builder = glib::ParamSpecUInt::builder(name).nick(nick).blurb(blurb);
        builder.minimum(minimum).maximum(maximum).default_value(default).mutable_ready().build()
    };
    Properties::<ReuseSettings>::new()
        .field(
            number(
                "reclassify-interval",
                "Interval of reclassification",
                "Classify a tracked object again after this many frames; it carries its last results in between; 1: in every frame, 0: only once",
                0,
                1_000_000,
                default.interval,
            ),
            |settings| &mut settings.options.interval,
        )
        .field(
            share(
                "reclassify-growth",
                "Growth for reclassification",
                "Classify a tracked object again when its box area has grown by more than this fraction (0.2: by a fifth); 0: off",
                1000.0,
                default.growth,
            ),
            |settings| &mut settings.options.growth,
        )
        .field(
            share(
                "reclassify-movement",
                "Movement for reclassification",
                "When the interval expires, classify again only if a box edge moved by more than this fraction of the box's width or height; 0: also if the object did not move",
                1000.0,
                default.movement,
            ),
            |settings| &mut settings.options.movement,
        )
        .field(
            number(
                "consensus",
                "Consensus",
                "The label of a tracked object is a vote of this many results, a number is their mean; until then it is classified in every frame",
                1,
                100,
                default.consensus,
            ),
            |settings| &mut settings.options.consensus,
        )
        .field(
            glib::ParamSpecBoolean::builder("classifier-async-mode")
                .nick("Asynchronous mode")
                .blurb("Frames do not wait for the classification of tracked objects; new results appear on later frames")
                .default_value(false)
                .mutable_ready()
                .build(),
            |settings| &mut settings.is_async,
        )
});

impl ReuseSettings {
    /// Whether the settings require that results are cached.
    fn are_used(&self) -> bool {
        self.is_async || self.options.are_used()
    }
}

/// Result reuse of one element; see the module.
pub(super) struct ResultReuse {
    settings: ReuseSettings,
    /// Whether results are cached.
    is_used: bool,
    /// Whether a run without a result replaces the earlier result of an object.
    is_momentary: bool,
    /// Maximum number of frames with background runs. There is a limit because each of these frames keeps its buffer.
    max_in_background: usize,
    state: Mutex<State>,
    counts: Arc<ReuseCounts>,
}

#[derive(Default)]
struct State {
    cache: ResultCache,
    /// Number of resets. Results of runs that began before the last reset are ignored.
    n_resets: u64,
    /// Number of frames with running background classifications.
    n_in_background: usize,
    /// The first error of the background runs since the last frame. `has_succeeded` says whether one of these runs succeeded. The next
    /// frame reports the error and this flag.
    failed: Option<String>,
    has_succeeded: bool,
    has_tracked: bool,
    n_untracked: u64,
    has_warned: bool,
}

/// Counters of one element. They continue when the element releases its model and loads it again.
#[derive(Default)]
pub(super) struct ReuseCounts {
    classified: AtomicU64,
    reused: AtomicU64,
    untracked: AtomicU64,
    skipped: AtomicU64,
    unaligned: AtomicU64,
}

/// Which objects of a frame are classified, and what the frame reports.
#[derive(Default)]
pub(super) struct FramePlan {
    /// Regions to classify; the frame waits for their results.
    pub(super) now: Vec<Region>,
    /// Regions to classify in the background; the frame does not wait.
    pub(super) in_background: Vec<Region>,
    /// The tracked objects of the frame, whose results are cached when their runs are complete.
    pub(super) pending: PendingResults,
    /// A warning for the bus.
    pub(super) warning: Option<String>,
    pub(super) background: BackgroundRuns,
}

/// Outcome of the background runs since the last frame, which this frame reports.
#[derive(Default)]
pub(super) struct BackgroundRuns {
    n_resets: u64,
    /// The first error.
    pub(super) failed: Option<String>,
    /// Whether a run succeeded.
    pub(super) has_succeeded: bool,
}

/// The tracked objects of a frame, whose results are cached when their runs are complete. `objects` has pairs of detection ID and track ID.
#[derive(Default)]
pub(super) struct PendingResults {
    n_resets: u64,
    frame_number: u64,
    objects: Vec<(ObjectId, ObjectId)>,
}

impl ResultReuse {
    /// Creates the result reuse of a classifier that runs `n_frames_at_once` frames at once. With `is_momentary`, results describe what an object
    /// does: they are cached whatever the settings are, and a run without a result replaces the earlier result.
    pub(super) fn new(settings: &ReuseSettings, n_frames_at_once: usize, counts: Arc<ReuseCounts>, is_momentary: bool) -> Self {
        let state = State { cache: ResultCache::new(settings.options), ..State::default() };
        let max_in_background = n_frames_at_once // running
            + 1; // waiting for a request, so that no request is idle
        let is_used = is_momentary || settings.are_used();
        Self { settings: settings.clone(), is_used, is_momentary, max_in_background, state: Mutex::new(state), counts }
    }

    /// Decides which objects of a frame are classified. The caller must pass frames in stream order.
    pub(super) fn plan<'a>(&self, results: &FrameResults, objects: impl Iterator<Item = &'a Detection>, crop: &Crop) -> FramePlan {
        let mut plan = FramePlan::default();
        if !self.is_used {
            plan.now.extend(objects.map(|object| crop.region(object)));
            add(&self.counts.classified, plan.now.len());
            return plan;
        }
        let (mut n_tracked, mut n_untracked, mut n_skipped) = (0, 0, 0);
        let mut state = self.state.lock().unwrap();
        plan.pending = PendingResults { n_resets: state.n_resets, frame_number: results.frame_number, objects: Vec::new() };
        let is_full = self.settings.is_async && state.n_in_background >= self.max_in_background;
        for object in objects {
            let Some(name) = object.track else {
                n_untracked += 1;
                plan.now.push(crop.region(object));
                continue;
            };
            n_tracked += 1;
            if !state.cache.plan(results.frame_number, name, object.rect, results.size) {
                continue;
            }
            if is_full {
                state.cache.cancel_attempt(results.frame_number, name);
                n_skipped += 1;
                continue;
            }
            plan.pending.objects.push((object.id, name));
            let classified = if self.settings.is_async { &mut plan.in_background } else { &mut plan.now };
            classified.push(crop.region(object));
        }
        state.n_in_background += usize::from(!plan.in_background.is_empty());
        plan.background = BackgroundRuns {
            n_resets: state.n_resets,
            failed: state.failed.take(),
            has_succeeded: std::mem::take(&mut state.has_succeeded),
        };
        plan.warning = state.warning(n_tracked, n_untracked);
        drop(state);
        add(&self.counts.classified, plan.now.len() + plan.in_background.len());
        add(&self.counts.untracked, n_untracked);
        add(&self.counts.skipped, n_skipped);
        plan
    }

    /// Caches the results of a frame's runs for the tracked objects in `pending`.
    pub(super) fn record(&self, pending: &PendingResults, classified: &StageResults) {
        if !pending.objects.is_empty() {
            self.state.lock().unwrap().record(pending, classified, self.is_momentary);
        }
    }

    /// Makes tracked objects start anew in a frame: later frames do not use their earlier results.
    pub(super) fn restart(&self, frame_number: u64, tracks: &[ObjectId]) {
        if !tracks.is_empty() {
            let mut state = self.state.lock().unwrap();
            tracks.iter().for_each(|track| state.cache.restart(frame_number, *track));
        }
    }

    /// Like [`ResultReuse::record`], for background runs. `has_succeeded` is true if a run succeeded.
    pub(super) fn record_in_background(&self, pending: &PendingResults, classified: &StageResults, has_succeeded: bool) {
        let mut state = self.state.lock().unwrap();
        state.n_in_background -= 1;
        state.record(pending, classified, self.is_momentary);
        state.has_succeeded |= has_succeeded;
        // A canceled run is not a failure. Runs are canceled when downstream is unlinked, for example.
        let counts = |error: &stages::Error| pending.n_resets == state.n_resets && error.kind() != stages::ErrorKind::Stopped;
        if let Some((error, n_failed)) = classified.failed.as_ref().filter(|(error, _)| counts(error)) {
            let frame_number = pending.frame_number;
            state
                .failed
                .get_or_insert_with(|| format!("background classification failed for {n_failed} regions of frame {frame_number}: {error}"));
        }
    }

    /// Stores the outcome of background runs again, so that the next frame reports it. Called if the frame that should report the
    /// outcome is skipped.
    pub(super) fn report_later(&self, background: BackgroundRuns) {
        let mut state = self.state.lock().unwrap();
        if background.n_resets == state.n_resets {
            state.failed = background.failed.or(state.failed.take());
            state.has_succeeded |= background.has_succeeded;
        }
    }

    /// Adds cached results to the objects of an outgoing frame.
    pub(super) fn apply(&self, results: &mut FrameResults) {
        if !self.is_used || results.detections.is_empty() {
            return;
        }
        let mut state = self.state.lock().unwrap();
        let frame_number = results.frame_number;
        let n_reused = results.detections.iter_mut().map(|detection| usize::from(state.cache.apply(frame_number, detection))).sum();
        drop(state);
        add(&self.counts.reused, n_reused);
    }

    /// Empties the cache. Called for a new stream and after a flush.
    pub(super) fn reset(&self) {
        let mut state = self.state.lock().unwrap();
        state.cache.clear();
        state.n_resets += 1;
        (state.failed, state.has_succeeded) = (None, false);
    }

    /// Counts `n` objects that lack the keypoints for alignment. These objects were classified in the region of their box.
    pub(super) fn count_unaligned(&self, n: u64) {
        self.counts.unaligned.fetch_add(n, Ordering::Relaxed);
    }
}

impl ReuseCounts {
    /// Adds the counters to an element's statistics.
    pub(super) fn add_to(&self, stats: &mut gst::StructureRef) {
        let Self { classified, reused, untracked, skipped, unaligned } = self;
        let fields = [
            ("objects-classified", classified),
            ("objects-recalled", reused),
            ("objects-nameless", untracked),
            ("objects-passed-over", skipped),
            ("objects-unaligned", unaligned),
        ];
        for (field, counter) in fields {
            stats.set(field, counter.load(Ordering::Relaxed));
        }
    }
}

impl State {
    fn record(&mut self, pending: &PendingResults, classified: &StageResults, is_momentary: bool) {
        if pending.n_resets != self.n_resets {
            return; // These results are outdated: their runs began before the last reset.
        }
        let PendingResults { frame_number, objects, .. } = pending;
        for &(id, name) in objects {
            let mut results = classified.of_regions.iter().filter(|(of, _)| *of == id).peekable();
            if results.peek().is_none() && classified.failed.is_some() {
                // A run of this frame failed, and this object has no result. Either the run of this object failed, or its result is below
                // the threshold. In both cases, the object is classified again.
                self.cache.cancel_attempt(*frame_number, name);
            } else if is_momentary {
                self.cache.insert_run(*frame_number, name);
            }
            results.for_each(|(_, result)| self.cache.insert(*frame_number, name, result));
        }
    }

    /// Returns a warning if [`MIN_UNTRACKED`] objects have arrived and none of them had a track ID. Returns the warning only once.
    fn warning(&mut self, n_tracked: usize, n_untracked: usize) -> Option<String> {
        self.has_tracked |= n_tracked > 0;
        self.n_untracked += n_untracked as u64;
        if self.has_tracked || self.has_warned || self.n_untracked < MIN_UNTRACKED {
            return None;
        }
        self.has_warned = true;
        Some(format!(
            "result reuse has no effect: none of the first {} objects has a track ID, so each is classified in every frame, and the frame waits for the result. reclassify-interval, reclassify-movement, consensus and classifier-async-mode need a tracker: put `roitrack` between the detector and this element",
            self.n_untracked
        ))
    }
}

fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
