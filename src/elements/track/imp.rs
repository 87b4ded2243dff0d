//! Properties of `roitrack`, and tracking of a buffer's detections.
//!
//! `roitrack` writes only metas, and reads pixels only for `camera-motion`. If a buffer is shared, the element copies the buffer, but not the
//! memory of the buffer. This module decides when a new stream begins. [`crate::stages::track`] associates objects with tracks; `meta` transports results.

use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::TrackingType;
use crate::elements::classes::ClassCheck;
use crate::elements::regions::ObjectClasses;
use crate::elements::{buffer, caps, meta};
use crate::frame::{Detection, ObjectId, Size};
use crate::stages::{CameraMotion, StreamTime, TrackMethod, TrackOptions, Tracker};

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| gst::DebugCategory::new("roitrack", gst::DebugColorFlags::empty(), Some("Object tracking")));

/// Name of the query for the number of trackers upstream, and the field with this number.
const TRACKERS: &str = "roiflow-trackers";
const N_TRACKERS: &str = "n";

/// Settings of the element.
#[derive(Debug, Clone, Default)]
struct Settings {
    tracking_type: TrackingType,
    object_classes: ObjectClasses,
    options: TrackOptions,
    /// Whether the motion of the camera is estimated from the pixels.
    camera_motion: bool,
}

/// State of the stream.
#[derive(Default)]
struct State {
    tracker: Tracker,
    camera: CameraMotion,
    /// Format of the frames; `None` if it is not supported.
    info: Option<gst_video::VideoInfo>,
    /// Whether the warning about pixels that cannot be read was posted.
    warned_of_pixels: bool,
    /// Frame size from the caps.
    size: Option<Size>,
    time: StreamTime,
    /// Whether the last frame with objects had analytics metadata.
    has_analytics: bool,
    n_frames: u64,
    names: Names,
}

/// Allocates track IDs 1, 2, 3, and so on, so that the same stream has the same IDs in every run. Numbering continues after resets, so that
/// one ID never identifies two objects.
///
/// Several trackers in one stream must not allocate the same ID. So each tracker has its own range of IDs: the first tracker from 1, the
/// second tracker from 2^24 + 1, and so on.
#[derive(Debug, Default)]
struct Names {
    last: i32,
}

impl Names {
    const RANGE: i32 = 1 << 24;

    fn next(&mut self) -> ObjectId {
        self.last = self.last.checked_add(1).unwrap_or(1);
        ObjectId(self.last)
    }

    /// Continues numbering in this range. Has no effect if the current range is later.
    fn skip_to_range(&mut self, range: i32) {
        if self.last / Self::RANGE < range {
            self.last = range.saturating_mul(Self::RANGE);
        }
    }

    /// Continues numbering in the range after that of `foreign`, a track ID of another tracker.
    fn skip(&mut self, foreign: ObjectId) {
        self.skip_to_range(foreign.0 / Self::RANGE + 1);
    }
}

/// Instance data of `roitrack`. Lock order: settings, state. No lock is held during a push or a post.
pub struct RoiTrack {
    sinkpad: gst::Pad,
    srcpad: gst::Pad,
    settings: Mutex<Settings>,
    state: Mutex<State>,
    class_check: ClassCheck,
}

#[glib::object_subclass]
impl ObjectSubclass for RoiTrack {
    const NAME: &'static str = "RoiTrack";
    /// Two copies of the library in one process register this type name, so a name conflict is not an error.
    const ALLOW_NAME_CONFLICT: bool = true;
    type Type = super::RoiTrack;
    type ParentType = gst::Element;

    fn with_class(class: &Self::Class) -> Self {
        let template = |name| class.pad_template(name).expect("pad_templates() gives these two");
        let flags = gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION | gst::PadFlags::PROXY_SCHEDULING;
        let sinkpad = gst::Pad::builder_from_template(&template("sink"))
            .chain_function(|_pad, parent, buffer| {
                Self::catch_panic_pad_function(parent, || Err(gst::FlowError::Error), |imp| imp.sink_chain(buffer))
            })
            .event_function(|pad, parent, event| Self::catch_panic_pad_function(parent, || false, |imp| imp.sink_event(pad, event)))
            .flags(flags)
            .build();
        let srcpad = gst::Pad::builder_from_template(&template("src"))
            .query_function(|pad, parent, query| Self::catch_panic_pad_function(parent, || false, |imp| imp.src_query(pad, query)))
            .flags(flags)
            .build();
        Self { sinkpad, srcpad, settings: Mutex::default(), state: Mutex::default(), class_check: ClassCheck::default() }
    }
}

impl ObjectImpl for RoiTrack {
    fn constructed(&self) {
        self.parent_constructed();
        let element = self.obj();
        element.add_pad(&self.sinkpad).expect("a new element has no pad of this name");
        element.add_pad(&self.srcpad).expect("a new element has no pad of this name");
    }

    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let Settings { tracking_type, options, camera_motion, .. } = Settings::default();
            let number = |name: &str, nick, blurb, minimum: u32, maximum: u32, default: u32| {
                let builder = glib::ParamSpecUInt::builder(name).nick(nick).blurb(blurb);
                builder.minimum(minimum).maximum(maximum).default_value(default).mutable_playing().build()
            };
            vec![
                glib::ParamSpecEnum::builder_with_default("tracking-type", tracking_type)
                    .nick("Tracking type")
                    .blurb("Association method")
                    .mutable_playing()
                    .build(),
                ObjectClasses::property("Labels of the objects to track, separated by commas; default: all"),
                glib::ParamSpecFloat::builder("iou-threshold")
                    .nick("Overlap threshold")
                    .blurb("Smallest overlap (intersection over union) of a box with the predicted box of its track, 0 to 1; not used by hybrid")
                    .minimum(0.0)
                    .maximum(1.0)
                    .default_value(options.iou_threshold)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecFloat::builder("high-confidence")
                    .nick("High confidence")
                    .blurb("hybrid and bytetrack: objects with a lower confidence, 0 to 1, continue tracks but start none")
                    .minimum(0.0)
                    .maximum(1.0)
                    .default_value(options.high_confidence)
                    .mutable_playing()
                    .build(),
                number(
                    "max-age",
                    "Maximum age",
                    "Inferred frames in a row without the object until its track ends",
                    0,
                    1_000_000,
                    options.max_age,
                ),
                number(
                    "min-hits",
                    "Minimum hits",
                    "Frames in a row with the object until it gets a track ID",
                    1,
                    1000,
                    options.min_hits,
                ),
                number(
                    "max-tracks",
                    "Maximum tracks",
                    "Maximum number of tracks, including lost ones; the track that has been lost longest is evicted",
                    1,
                    10_000,
                    options.max_tracks as u32,
                ),
                glib::ParamSpecFloat::builder("appearance-weight")
                    .nick("Weight of the appearance")
                    .blurb("hybrid: weight of the difference of embeddings, which a roiclassify upstream of the tracker computes; 0: embeddings are not used")
                    .minimum(0.0)
                    .maximum(10.0)
                    .default_value(options.appearance_weight)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecBoolean::builder("camera-motion")
                    .nick("Camera motion")
                    .blurb("Estimate the motion of the camera from the pixels of each frame, for cameras that turn, zoom or are carried")
                    .default_value(camera_motion)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecBoolean::builder("report-lost")
                    .nick("Report lost tracks")
                    .blurb("Add tracks whose objects are not detected to the results, with their predicted boxes; the JSON has them in lost_tracks")
                    .default_value(options.reports_lost)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                    .nick("Statistics")
                    .blurb("Counters since the element was created: frames, objects with track ID, current, lost, recovered, started and ended tracks, objects refused because all tracks are in use")
                    .read_only()
                    .build(),
            ]
        });
        &PROPERTIES
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        let number = || value.get::<u32>().expect("an unsigned property");
        let mut settings = self.settings.lock().unwrap();
        match pspec.name() {
            "tracking-type" => settings.tracking_type = value.get().expect("an enum property"),
            "object-class" => {
                settings.object_classes = ObjectClasses::from_value(value);
                self.class_check.reset();
            }
            "iou-threshold" => settings.options.iou_threshold = value.get().expect("a float property"),
            "high-confidence" => settings.options.high_confidence = value.get().expect("a float property"),
            "max-age" => settings.options.max_age = number(),
            "min-hits" => settings.options.min_hits = number(),
            "max-tracks" => settings.options.max_tracks = number() as usize,
            "appearance-weight" => settings.options.appearance_weight = value.get().expect("a float property"),
            "camera-motion" => settings.camera_motion = value.get().expect("a boolean property"),
            "report-lost" => settings.options.reports_lost = value.get().expect("a boolean property"),
            name => unreachable!("property {name} is not in the list above"),
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        if pspec.name() == "stats" {
            let state = self.state.lock().unwrap();
            let counts = state.tracker.counts();
            return gst::Structure::builder("roitrack-stats")
                .field("frames", state.n_frames)
                .field("objects", counts.n_tracked)
                .field("tracks", counts.n_tracks)
                .field("tracks-lost", counts.n_lost)
                .field("tracks-recovered", counts.n_recovered)
                .field("tracks-begun", counts.n_started)
                .field("tracks-ended", counts.n_ended)
                .field("objects-refused", counts.n_refused)
                .build()
                .to_value();
        }
        let Settings { tracking_type, object_classes, options, camera_motion } = &*self.settings.lock().unwrap();
        match pspec.name() {
            "tracking-type" => tracking_type.to_value(),
            "object-class" => object_classes.to_value(),
            "iou-threshold" => options.iou_threshold.to_value(),
            "high-confidence" => options.high_confidence.to_value(),
            "max-age" => options.max_age.to_value(),
            "min-hits" => options.min_hits.to_value(),
            "max-tracks" => (options.max_tracks as u32).to_value(),
            "appearance-weight" => options.appearance_weight.to_value(),
            "camera-motion" => camera_motion.to_value(),
            "report-lost" => options.reports_lost.to_value(),
            name => unreachable!("property {name} is not in the list above"),
        }
    }
}

impl GstObjectImpl for RoiTrack {}

impl ElementImpl for RoiTrack {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Object tracker",
                "Filter/Analyzer/Video",
                "Gives each object a track ID that stays the same from frame to frame",
                env!("CARGO_PKG_NAME"),
            )
        });
        Some(&METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            // The element reads no pixels, so it accepts any memory type, and also encoded video with metas.
            let caps = gst::Caps::new_any();
            let template = |name, direction| {
                gst::PadTemplate::new(name, direction, gst::PadPresence::Always, &caps).expect("a static template is valid")
            };
            vec![template("sink", gst::PadDirection::Sink), template("src", gst::PadDirection::Src)]
        });
        &TEMPLATES
    }

    fn change_state(&self, transition: gst::StateChange) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        let changed = self.parent_change_state(transition)?;
        if transition == gst::StateChange::PausedToReady {
            self.state.lock().unwrap().begin_stream(None);
            self.class_check.reset();
        }
        Ok(changed)
    }
}

impl RoiTrack {
    pub(super) fn last_id(&self) -> i32 {
        self.state.lock().unwrap().names.last
    }

    pub(super) fn continue_after(&self, last_id: i32) {
        self.state.lock().unwrap().names.last = last_id;
    }

    fn sink_chain(&self, mut buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let Some(size) = self.state.lock().unwrap().size else {
            gst::element_imp_error!(
                self,
                gst::StreamError::Format,
                ("expected video with its width and height in the caps, got data without a size; put roitrack downstream of a detector")
            );
            return Err(gst::FlowError::NotNegotiated);
        };
        {
            let mut state = self.state.lock().unwrap();
            let timestamp = buffer.pts().map(|pts| Duration::from_nanos(pts.nseconds()));
            let at = state.time.next(timestamp, buffer.flags().contains(gst::BufferFlags::DISCONT));
            if at.is_new_scene {
                gst::info!(CAT, imp = self, "time jump to {:?}: all tracks end", buffer.pts());
                state.tracker.reset();
                state.camera.reset();
            }
            at.interval.iter().for_each(|interval| state.tracker.set_interval(*interval));
        }
        self.estimate_camera_motion(&buffer);
        let results = meta::take(&mut buffer, size);
        let is_empty = results.as_ref().is_none_or(|results| results.detections.is_empty());
        let mut results = results.unwrap_or_else(|| meta::no_results(size));
        if self.class_check.is_due() {
            let classes = self.settings.lock().unwrap().object_classes.clone();
            self.class_check.check(&self.obj().upcast_ref::<gst::Element>().downgrade(), &classes, &results);
        }
        {
            let settings = self.settings.lock().unwrap();
            let mut state = self.state.lock().unwrap();
            state.n_frames += 1;
            let method = match settings.tracking_type {
                TrackingType::Iou => TrackMethod::Iou,
                TrackingType::Sort => TrackMethod::Sort,
                TrackingType::ByteTrack => TrackMethod::ByteTrack,
                TrackingType::Hybrid => TrackMethod::Hybrid,
            };
            let options = TrackOptions { method, ..settings.options };
            let State { tracker, names, .. } = &mut *state;
            results.detections.iter().filter_map(|detection| detection.track).for_each(|foreign| names.skip(foreign));
            // Thresholds of the tracker let objects without a confidence pass.
            let unknown: Vec<usize> = (0..results.detections.len()).filter(|idx| results.detections[*idx].confidence.is_nan()).collect();
            unknown.iter().for_each(|idx| results.detections[*idx].confidence = results.detections[*idx].rank());
            tracker.update(&mut results, &options, |detection| settings.object_classes.has(detection), || names.next());
            unknown.iter().for_each(|idx| results.detections[*idx].confidence = Detection::UNKNOWN_CONFIDENCE);
        }
        if !is_empty || !results.lost_tracks.is_empty() {
            // Keep the analytics meta only if the detector wrote one. On a frame whose boxes were predicted, it writes no regions.
            let with_analytics = if meta::has_regions(&buffer) || is_empty {
                meta::has_analytics(&buffer)
            } else {
                self.state.lock().unwrap().has_analytics
            };
            self.state.lock().unwrap().has_analytics = with_analytics;
            meta::attach_to(buffer.make_mut(), results, with_analytics);
        }
        self.srcpad.push(buffer)
    }

    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        match event.view() {
            gst::EventView::FlushStop(_) => {
                let mut state = self.state.lock().unwrap();
                let size = state.size;
                state.begin_stream(size);
            }
            gst::EventView::StreamStart(_) => {
                let n_upstream = self.n_trackers_upstream();
                let mut state = self.state.lock().unwrap();
                let size = state.size;
                state.begin_stream(size);
                state.names.skip_to_range(n_upstream);
            }
            gst::EventView::Caps(caps) => {
                let mut state = self.state.lock().unwrap();
                state.size = caps::size_in_caps(caps.caps());
                let info = caps::video_info(caps.caps()).ok();
                state.info = info.filter(|info| caps::pixel_format(info).is_some());
            }
            _ => {}
        }
        gst::Pad::event_default(pad, Some(&*self.obj()), event)
    }
}

impl RoiTrack {
    /// If the property `camera-motion` is set, sets the motion of the camera from the previous frame to this one. Otherwise removes the
    /// previous frame, so that a later estimate does not compare with it.
    fn estimate_camera_motion(&self, buffer: &gst::Buffer) {
        let is_on = self.settings.lock().unwrap().camera_motion;
        let mut state = self.state.lock().unwrap();
        if !is_on {
            state.camera.reset();
            return;
        }
        let State { tracker, camera, info, warned_of_pixels, .. } = &mut *state;
        let estimated = match info {
            Some(info) => buffer::frame(buffer, info).and_then(|frame| camera.update(&frame)).map_err(|error| error.to_string()),
            None => Err("expected raw video in a supported format, got another format".to_owned()),
        };
        match estimated {
            Ok(motion) => tracker.set_camera_motion(motion),
            Err(error) => {
                camera.reset();
                let is_first = !std::mem::replace(warned_of_pixels, true);
                drop(state);
                if is_first {
                    gst::element_imp_warning!(
                        self,
                        gst::ResourceError::Settings,
                        ("camera-motion has no effect: the pixels cannot be read: {error}. Put `videoconvert` upstream, or set camera-motion=false")
                    );
                }
            }
        }
    }

    fn src_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        if let gst::QueryViewMut::Custom(custom) = query.view_mut()
            && custom.structure().is_some_and(|structure| structure.name() == TRACKERS)
        {
            custom.structure_mut().set(N_TRACKERS, self.n_trackers_upstream() + 1);
            return true;
        }
        gst::Pad::query_default(pad, Some(&*self.obj()), query)
    }

    /// Returns the number of trackers upstream.
    fn n_trackers_upstream(&self) -> i32 {
        let mut query = gst::query::Custom::new(gst::Structure::builder(TRACKERS).field(N_TRACKERS, 0).build());
        let is_answered = self.sinkpad.peer_query(query.query_mut());
        query.structure().filter(|_| is_answered).and_then(|structure| structure.get(N_TRACKERS).ok()).unwrap_or(0)
    }
}

impl State {
    /// Resets the state for a new stream.
    fn begin_stream(&mut self, size: Option<Size>) {
        self.tracker.reset();
        self.camera.reset();
        self.time.reset();
        self.size = size;
    }
}
