//! Properties of `roidetect`, and its stage. Everything else is the driver's.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;

use crate::elements::infer::{self, Done, Driver, Stage};
use crate::elements::lifecycle::KeptStage;
use crate::elements::pads::{self, InferenceElement};
use crate::elements::policy::Policy;
use crate::elements::settings::ModelSettings;
use crate::frame::{Detection, Frame, FrameResults, InferenceStatus};
use crate::stages;
use crate::stages::{Detector, Permit, Scheduling, StageStats};

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new("roidetect", gst::DebugColorFlags::empty(), Some("Finds objects in frames and attaches them to the buffers"))
});

/// What the user asked for.
#[derive(Debug, Clone, Default, PartialEq)]
struct Settings {
    model: ModelSettings,
}

/// The element's inside.
pub struct RoiDetect {
    sinkpad: gst::Pad,
    srcpad: gst::Pad,
    driver: Arc<Driver>,
    settings: Mutex<Settings>,
    stage: KeptStage<Settings>,
}

#[glib::object_subclass]
impl ObjectSubclass for RoiDetect {
    const NAME: &'static str = "RoiDetect";
    type Type = super::RoiDetect;
    type ParentType = gst::Element;

    fn new() -> Self {
        let (sinkpad, srcpad) = pads::pads::<Self>();
        Self { sinkpad, srcpad, driver: Driver::new(*CAT), settings: Mutex::default(), stage: KeptStage::default() }
    }
}

impl ObjectImpl for RoiDetect {
    fn constructed(&self) {
        self.parent_constructed();
        let element = self.obj();
        element.add_pad(&self.sinkpad).expect("a new element has no pad of this name");
        element.add_pad(&self.srcpad).expect("a new element has no pad of this name");
    }

    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let mut properties = ModelSettings::properties();
            properties.extend(Policy::properties());
            properties.push(
                glib::ParamSpecFloat::builder("iou-threshold")
                    .nick("Overlap threshold")
                    .blurb("Boxes that overlap a better one by more (intersection over union) are left out, 0 to 1; -1: what the description says")
                    .minimum(-1.0)
                    .maximum(1.0)
                    .default_value(-1.0)
                    .mutable_ready()
                    .build(),
            );
            properties
        });
        &PROPERTIES
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        let known = self.driver.set_policy(pspec.name(), value) || self.settings.lock().unwrap().model.set(pspec.name(), value);
        debug_assert!(known, "GObject passes on known properties only");
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        let settings = self.settings.lock().unwrap();
        match pspec.name() {
            "stats" => self.driver.stats().to_value(),
            name => self.driver.policy(name).or_else(|| settings.model.get(name)).expect("GObject passes on known properties only"),
        }
    }
}

impl GstObjectImpl for RoiDetect {}

impl ElementImpl for RoiDetect {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Object detector",
                "Filter/Analyzer/Video",
                "Finds objects in frames and attaches them to the buffers",
                env!("CARGO_PKG_NAME"),
            )
        });
        Some(&METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(pads::pad_templates);
        &TEMPLATES
    }

    fn change_state(&self, transition: gst::StateChange) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        let element = self.obj();
        let load = |settings: &Settings| self.load(settings);
        let parent = || self.parent_change_state(transition);
        self.stage.change_state(&self.driver, element.upcast_ref(), transition, &self.settings, load, parent)
    }
}

impl InferenceElement for RoiDetect {
    fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

impl RoiDetect {
    fn load(&self, settings: &Settings) -> stages::Result<Arc<dyn Stage>> {
        let options = settings.model.checked(self.obj().upcast_ref())?;
        Ok(Arc::new(DetectStage(Detector::new(options)?)))
    }
}

/// The detector as the driver sees it.
struct DetectStage(Detector);

impl Stage for DetectStage {
    fn run(&self, frame: Frame, mut results: FrameResults, permit: Arc<Permit>, done: Done) {
        let frame_number = results.frame_number;
        let finish = move |detected: stages::Result<Vec<Detection>>| {
            match detected {
                // Beside what detectors before this one found.
                Ok(detections) => results.detections.extend(detections),
                Err(error) => results.status = InferenceStatus::Failed(error.to_string().into()),
            }
            done(results);
        };
        self.0.submit_with(frame, frame_number, permit, Box::new(finish));
    }

    fn warm_up(&self) -> stages::Result<Duration> {
        self.0.warm_up(|| {
            let frame = infer::black_frame(self.0.spec().input_size)?;
            self.0.detect(&frame)?; // The first run pays for lazily made buffers.
            let begin = Instant::now();
            self.0.detect(&frame)?;
            Ok(begin.elapsed())
        })
    }

    fn drop_pending(&self) {
        self.0.drop_pending();
    }

    fn drop_withdrawn(&self) {
        self.0.drop_withdrawn();
    }

    fn found(&self, results: &FrameResults, n_before: usize) -> FrameResults {
        let detections = results.detections.get(n_before..).unwrap_or_default().to_vec();
        FrameResults { size: results.size, detections, ..FrameResults::default() }
    }

    fn carry(&self, found: &FrameResults, results: &mut FrameResults) {
        let size = results.size;
        results.detections.extend(found.detections.iter().map(|detection| Detection {
            rect: if found.size == size { detection.rect } else { detection.rect.rescaled(found.size, size) },
            ..detection.clone()
        }));
    }

    fn scheduling(&self) -> Scheduling {
        self.0.scheduling()
    }

    fn n_frames_at_once(&self) -> usize {
        self.0.n_frames_at_once()
    }

    fn stats(&self) -> StageStats {
        self.0.stats()
    }

    fn reads_results(&self) -> bool {
        false
    }
}
