//! What `roiclassify` can save by the names that a tracker gives: its properties, and for each frame which objects are classified and
//! what the others get.
//!
//! Who is classified when, and what answers come to, is decided in [`crate::stages::reuse`]; here are the lock around it, the runs in
//! the background, and the counts. The state is taken for moments only, and never while a run is started or something is posted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::properties::Properties;
use crate::frame::{Detection, FrameResults, ObjectId};
use crate::stages::{self, AnswerCache, Cut, Region, ReuseOptions, StageResults};

/// So many objects in a row without a name are no chance: nobody tracks.
const N_NAMELESS: u64 = 16;

/// What the user asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct EconomySettings {
    pub(super) reuse: ReuseOptions,
    /// Frames do not wait for the answers.
    pub(super) is_async: bool,
}

/// The properties of a classifier.
pub(super) static PROPERTIES: LazyLock<Properties<EconomySettings>> = LazyLock::new(|| {
    let default = ReuseOptions::default();
    let share = |name: &'static str, nick: &'static str, blurb: &'static str, maximum: f32, default: f32| {
        let builder = glib::ParamSpecFloat::builder(name).nick(nick).blurb(blurb);
        builder.minimum(0.0).maximum(maximum).default_value(default).mutable_ready().build()
    };
    let number = |name: &'static str, nick: &'static str, blurb: &'static str, minimum: u32, maximum: u32, default: u32| {
        let builder = glib::ParamSpecUInt::builder(name).nick(nick).blurb(blurb);
        builder.minimum(minimum).maximum(maximum).default_value(default).mutable_ready().build()
    };
    Properties::<EconomySettings>::new()
        .field(
            number(
                "reclassify-interval",
                "Interval of reclassification",
                "Classify a tracked object again after this many frames; it carries its last results in between; 1: in every frame, 0: only once",
                0,
                1_000_000,
                default.interval,
            ),
            |settings| &mut settings.reuse.interval,
        )
        .field(
            share(
                "reclassify-growth",
                "Growth for reclassification",
                "Classify a tracked object again when its box area has grown by more than this fraction (0.2: by a fifth); 0: off",
                1000.0,
                default.growth,
            ),
            |settings| &mut settings.reuse.growth,
        )
        .field(
            share(
                "reclassify-movement",
                "Movement for reclassification",
                "When the interval expires, classify again only if a box edge moved by more than this fraction of the box's width or height; 0: also if the object did not move",
                1000.0,
                default.movement,
            ),
            |settings| &mut settings.reuse.movement,
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
            |settings| &mut settings.reuse.consensus,
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

impl EconomySettings {
    /// Whether anything is to be remembered.
    fn are_used(&self) -> bool {
        self.is_async || self.reuse.are_used()
    }
}

/// See the module.
pub(super) struct Economy {
    settings: EconomySettings,
    /// Frames whose objects may be classified in the background at a time: their buffers are held.
    max_in_background: usize,
    state: Mutex<State>,
    counts: Arc<EconomyCounts>,
}

#[derive(Default)]
struct State {
    cache: AnswerCache,
    /// Tells an answer that it is of before a flush.
    n_resets: u64,
    /// Frames whose objects are being classified in the background.
    n_in_background: usize,
    /// What failed there, for the next frame to tell, and whether a run there has given a result since the last frame.
    failed: Option<String>,
    has_succeeded: bool,
    has_names: bool,
    n_nameless: u64,
    has_warned: bool,
}

/// Since the element was made, which keeps them while it has no model.
#[derive(Default)]
pub(super) struct EconomyCounts {
    classified: AtomicU64,
    recalled: AtomicU64,
    nameless: AtomicU64,
    passed_over: AtomicU64,
    unaligned: AtomicU64,
}

/// What becomes of the objects of a frame.
#[derive(Default)]
pub(super) struct FramePlan {
    /// Classified, and the frame waits.
    pub(super) now: Vec<Region>,
    /// Classified, and the frame does not.
    pub(super) in_background: Vec<Region>,
    /// Whose answers are remembered.
    pub(super) remembered: Remembered,
    /// What is to be said on the bus.
    pub(super) warning: Option<String>,
    pub(super) background: Background,
}

/// What happened in the background since the last frame.
#[derive(Default)]
pub(super) struct Background {
    n_resets: u64,
    /// What failed.
    pub(super) failed: Option<String>,
    /// Whether a run has given a result.
    pub(super) has_succeeded: bool,
}

/// Objects whose answers are remembered: the detection's name in its frame, and its name over time.
#[derive(Default)]
pub(super) struct Remembered {
    n_resets: u64,
    frame_number: u64,
    names: Vec<(ObjectId, ObjectId)>,
}

impl Economy {
    /// For a classifier of which so many frames run at once.
    pub(super) fn new(settings: &EconomySettings, n_frames_at_once: usize, counts: Arc<EconomyCounts>) -> Self {
        let state = State { cache: AnswerCache::new(settings.reuse), ..State::default() };
        let max_in_background = n_frames_at_once // one running on each request, or as many as run in a call
            + 1; // one waiting for a request, so that none is idle
        Self { settings: settings.clone(), max_in_background, state: Mutex::new(state), counts }
    }

    /// Decides which of these objects of a frame are classified. Called in the order of the stream.
    pub(super) fn plan<'a>(&self, results: &FrameResults, objects: impl Iterator<Item = &'a Detection>, cut: &Cut) -> FramePlan {
        let mut plan = FramePlan::default();
        if !self.settings.are_used() {
            plan.now.extend(objects.map(|object| cut.region(object)));
            add(&self.counts.classified, plan.now.len());
            return plan;
        }
        let (mut n_named, mut n_nameless, mut n_passed_over) = (0, 0, 0);
        let mut state = self.state.lock().unwrap();
        plan.remembered = Remembered { n_resets: state.n_resets, frame_number: results.frame_number, names: Vec::new() };
        let is_full = self.settings.is_async && state.n_in_background >= self.max_in_background;
        for object in objects {
            let Some(name) = object.track else {
                n_nameless += 1;
                plan.now.push(cut.region(object));
                continue;
            };
            n_named += 1;
            if !state.cache.plan(results.frame_number, name, object.rect, results.size) {
                continue;
            }
            if is_full {
                state.cache.take_back(results.frame_number, name);
                n_passed_over += 1;
                continue;
            }
            plan.remembered.names.push((object.id, name));
            let classified = if self.settings.is_async { &mut plan.in_background } else { &mut plan.now };
            classified.push(cut.region(object));
        }
        state.n_in_background += usize::from(!plan.in_background.is_empty());
        plan.background =
            Background { n_resets: state.n_resets, failed: state.failed.take(), has_succeeded: std::mem::take(&mut state.has_succeeded) };
        plan.warning = state.warning(n_named, n_nameless);
        drop(state);
        add(&self.counts.classified, plan.now.len() + plan.in_background.len());
        add(&self.counts.nameless, n_nameless);
        add(&self.counts.passed_over, n_passed_over);
        plan
    }

    /// The runs of a frame are over.
    pub(super) fn settle(&self, remembered: &Remembered, classified: &StageResults) {
        if !remembered.names.is_empty() {
            self.state.lock().unwrap().settle(remembered, classified);
        }
    }

    /// As [`Economy::settle`], of runs for which no frame waited; `has_succeeded` says whether one of them has given a result.
    pub(super) fn settle_in_background(&self, remembered: &Remembered, classified: &StageResults, has_succeeded: bool) {
        let mut state = self.state.lock().unwrap();
        state.n_in_background -= 1;
        state.settle(remembered, classified);
        state.has_succeeded |= has_succeeded;
        // Runs that were taken back, as where downstream is unlinked, did not fail.
        let counts = |error: &stages::Error| remembered.n_resets == state.n_resets && error.kind() != stages::ErrorKind::Stopped;
        if let Some((error, n_failed)) = classified.failed.as_ref().filter(|(error, _)| counts(error)) {
            let frame_number = remembered.frame_number;
            state.failed.get_or_insert_with(|| format!("in the background, of frame {frame_number}: {n_failed} regions: {error}"));
        }
    }

    /// The frame that was to tell of this passes without inference: the next one does.
    pub(super) fn tell_later(&self, background: Background) {
        let mut state = self.state.lock().unwrap();
        if background.n_resets == state.n_resets {
            state.failed = background.failed.or(state.failed.take());
            state.has_succeeded |= background.has_succeeded;
        }
    }

    /// Gives the objects of a frame that leaves what is known of them.
    pub(super) fn recall(&self, results: &mut FrameResults) {
        if !self.settings.are_used() || results.detections.is_empty() {
            return;
        }
        let mut state = self.state.lock().unwrap();
        let frame_number = results.frame_number;
        let n_recalled = results.detections.iter_mut().map(|detection| usize::from(state.cache.recall(frame_number, detection))).sum();
        drop(state);
        add(&self.counts.recalled, n_recalled);
    }

    /// What was said before has nothing to do with what comes.
    pub(super) fn reset(&self) {
        let mut state = self.state.lock().unwrap();
        state.cache.clear();
        state.n_resets += 1;
        (state.failed, state.has_succeeded) = (None, false);
    }

    /// So many more objects were classified by their boxes, for want of the keypoints that they are aligned by.
    pub(super) fn count_unaligned(&self, n: u64) {
        self.counts.unaligned.fetch_add(n, Ordering::Relaxed);
    }
}

impl EconomyCounts {
    /// Adds them to an element's statistics.
    pub(super) fn add_to(&self, stats: &mut gst::StructureRef) {
        let Self { classified, recalled, nameless, passed_over, unaligned } = self;
        let fields = [
            ("objects-classified", classified),
            ("objects-recalled", recalled),
            ("objects-nameless", nameless),
            ("objects-passed-over", passed_over),
            ("objects-unaligned", unaligned),
        ];
        for (field, counter) in fields {
            stats.set(field, counter.load(Ordering::Relaxed));
        }
    }
}

impl State {
    fn settle(&mut self, remembered: &Remembered, classified: &StageResults) {
        if remembered.n_resets != self.n_resets {
            return; // Of before a flush.
        }
        let Remembered { frame_number, names, .. } = remembered;
        for &(id, name) in names {
            let mut answers = classified.of_regions.iter().filter(|(of, _)| *of == id).peekable();
            if answers.peek().is_none() && classified.failed.is_some() {
                // Its own run may have ended well, with an answer below the threshold; nobody knows.
                self.cache.take_back(*frame_number, name);
            }
            answers.for_each(|(_, said)| self.cache.remember(*frame_number, name, said));
        }
    }

    /// What is to be said, once, of objects that nobody tracks.
    fn warning(&mut self, n_named: usize, n_nameless: usize) -> Option<String> {
        self.has_names |= n_named > 0;
        self.n_nameless += n_nameless as u64;
        if self.has_names || self.has_warned || self.n_nameless < N_NAMELESS {
            return None;
        }
        self.has_warned = true;
        Some(format!(
            "none of the first {} objects has an id over time, so each is classified in every frame, and its frame waits for that: reclassify-interval, reclassify-movement, consensus and classifier-async-mode need a tracker; put `roitrack` between the detector and this element",
            self.n_nameless
        ))
    }
}

fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
