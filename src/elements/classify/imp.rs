//! Properties of `roiclassify`, and its stage. Everything else is the driver's.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;

use crate::elements::infer::{self, Done, Driver, Stage};
use crate::elements::lifecycle::{self, KeptStage};
use crate::elements::pads::{self, InferenceElement};
use crate::elements::policy::Policy;
use crate::elements::regions::ObjectClasses;
use crate::elements::settings::ModelSettings;
use crate::frame::{Detection, Frame, FrameResults, InferenceStatus};
use crate::stages;
use crate::stages::classifier::Classified;
use crate::stages::{Classifier, Permit, Scheduling, StageStats};

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new("roiclassify", gst::DebugColorFlags::empty(), Some("Classifies the regions of interest of frames, zero-copy"))
});

/// What the user asked for.
#[derive(Debug, Clone, Default, PartialEq)]
struct Settings {
    model: ModelSettings,
    object_classes: ObjectClasses,
}

impl lifecycle::Settings for Settings {
    fn check(&self, element: &gst::Element) -> stages::Result<()> {
        self.model.checked(element).map(drop)
    }
}

/// The element's inside.
pub struct RoiClassify {
    sinkpad: gst::Pad,
    srcpad: gst::Pad,
    driver: Arc<Driver>,
    settings: Mutex<Settings>,
    stage: KeptStage<Settings>,
}

#[glib::object_subclass]
impl ObjectSubclass for RoiClassify {
    const NAME: &'static str = "RoiClassify";
    type Type = super::RoiClassify;
    type ParentType = gst::Element;

    fn new() -> Self {
        let (sinkpad, srcpad) = pads::pads::<Self>();
        Self { sinkpad, srcpad, driver: Driver::new(*CAT), settings: Mutex::default(), stage: KeptStage::default() }
    }
}

impl ObjectImpl for RoiClassify {
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
            properties
                .push(ObjectClasses::property("Only objects with one of these labels are classified, separated by commas; default: all"));
            properties
        });
        &PROPERTIES
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        if self.driver.set_policy(pspec.name(), value) {
            return;
        }
        let mut settings = self.settings.lock().unwrap();
        if !settings.model.set(pspec.name(), value) && pspec.name() == "object-class" {
            settings.object_classes = ObjectClasses::from_value(value);
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        let settings = self.settings.lock().unwrap();
        match pspec.name() {
            "stats" => self.driver.stats().to_value(),
            "object-class" => settings.object_classes.to_value(),
            name => self.driver.policy(name).or_else(|| settings.model.get(name)).expect("GObject passes on known properties only"),
        }
    }
}

impl GstObjectImpl for RoiClassify {}

impl ElementImpl for RoiClassify {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "ROI classifier",
                "Filter/Analyzer/Video",
                "Classifies the regions of interest of frames, zero-copy",
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
        let element = self.obj().clone();
        let load = {
            let element = element.clone();
            move |settings: &Settings| element.imp().load(settings)
        };
        let parent = || self.parent_change_state(transition);
        self.stage.change_state(&self.driver, element.upcast_ref(), transition, &self.settings, load, parent)
    }
}

impl InferenceElement for RoiClassify {
    fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

impl RoiClassify {
    fn load(&self, settings: &Settings) -> stages::Result<Arc<dyn Stage>> {
        let options = settings.model.checked(self.obj().upcast_ref())?;
        let classifier = Classifier::new(options)?;
        Ok(Arc::new(ClassifyStage { classifier, object_classes: settings.object_classes.clone() }))
    }
}

/// The classifier as the driver sees it.
struct ClassifyStage {
    classifier: Classifier,
    object_classes: ObjectClasses,
}

impl Stage for ClassifyStage {
    fn run(&self, frame: Frame, mut results: FrameResults, permit: Arc<Permit>, done: Done) {
        let regions = self.object_classes.regions(&results);
        let frame_number = results.frame_number;
        let finish = move |classified: Classified| {
            for (id, classification) in classified.classifications {
                if let Some(detection) = results.detection_mut(id) {
                    detection.classifications.push(classification);
                }
            }
            if let Some((error, n_failed)) = classified.failed {
                results.status = InferenceStatus::Failed(format!("{n_failed} regions: {error}").into());
            }
            done(results);
        };
        self.classifier.submit_with(frame, frame_number, regions, permit, Box::new(finish));
    }

    fn warm_up(&self) -> stages::Result<Duration> {
        self.classifier.warm_up(|| {
            let frame = infer::black_frame(self.classifier.spec().input_size)?;
            // A model may well say nothing of a black picture; only whether it runs, and how long, matters here.
            self.classifier.classify(&frame)?;
            let begin = Instant::now();
            self.classifier.classify(&frame)?;
            Ok(begin.elapsed())
        })
    }

    fn drop_pending(&self) {
        self.classifier.drop_pending();
    }

    fn drop_withdrawn(&self) {
        self.classifier.drop_withdrawn();
    }

    /// By the names of the objects, which a tracker, or a detector that carries its own results on, gives.
    fn found(&self, results: &FrameResults, _n_before: usize) -> FrameResults {
        let name = &self.classifier.spec().name;
        let of_this = |detection: &Detection| {
            let said: Vec<_> = detection.classifications.iter().filter(|said| said.name == *name).cloned().collect();
            (!said.is_empty()).then(|| Detection { classifications: said, ..detection.clone() })
        };
        FrameResults { detections: results.detections.iter().filter_map(of_this).collect(), ..FrameResults::default() }
    }

    fn carry(&self, found: &FrameResults, results: &mut FrameResults) {
        let name = &self.classifier.spec().name;
        for earlier in &found.detections {
            if let Some(detection) = results.detection_mut(earlier.id)
                && !detection.classifications.iter().any(|said| said.name == *name)
            {
                detection.classifications.extend(earlier.classifications.iter().cloned());
            }
        }
    }

    fn scheduling(&self) -> Scheduling {
        self.classifier.scheduling()
    }

    fn n_frames_at_once(&self) -> usize {
        self.classifier.n_frames_at_once()
    }

    fn stats(&self) -> StageStats {
        self.classifier.stats()
    }

    fn reads_results(&self) -> bool {
        true
    }
}
