//! Properties of `roidetect`, and its stage. Everything else is the driver's.

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
use crate::elements::regions::{InferenceRegion, ObjectFilter};
use crate::elements::settings::ModelSettings;
use crate::frame::{Classification, Detection, Frame, FrameResults, InferenceStatus, Rect};
use crate::stages;
use crate::stages::detector::{DetectedInRegions, Found};
use crate::stages::{Detector, Permit, Scheduling, StageStats};

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new("roidetect", gst::DebugColorFlags::empty(), Some("Finds objects in frames and attaches them to the buffers"))
});

/// What the user asked for.
#[derive(Debug, Clone, Default, PartialEq)]
struct Settings {
    model: ModelSettings,
    region: InferenceRegion,
    objects: ObjectFilter,
}

impl lifecycle::Settings for Settings {
    fn check(&self, element: &gst::Element) -> stages::Result<()> {
        self.model.checked(element)?;
        self.objects.checked().map(drop)
    }
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
            properties.push(
                glib::ParamSpecEnum::builder_with_default("inference-region", InferenceRegion::default())
                    .nick("Inference region")
                    .blurb("Where to look: in the frame, or in every object that was found before, such as for the plate of a vehicle")
                    .mutable_ready()
                    .build(),
            );
            properties.extend(ObjectFilter::properties(
                "With inference-region=roi-list only objects with one of these labels are looked at, separated by commas; default: all",
            ));
            properties.push(Policy::motion_property());
            properties.push(
                glib::ParamSpecString::builder("class-thresholds")
                    .nick("Thresholds of classes")
                    .blurb("Thresholds of classes by their labels, such as person=0.6,car=0.4; the others have `threshold`")
                    .mutable_ready()
                    .build(),
            );
            properties
        });
        &PROPERTIES
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        if self.driver.set_policy(pspec.name(), value) {
            return;
        }
        let mut settings = self.settings.lock().unwrap();
        match pspec.name() {
            "inference-region" => settings.region = value.get().expect("an enum property"),
            name => {
                let known = settings.objects.set(name, value) || settings.model.set(name, value);
                debug_assert!(known, "GObject passes on known properties only");
            }
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        let settings = self.settings.lock().unwrap();
        match pspec.name() {
            "stats" => self.driver.stats().to_value(),
            "inference-region" => settings.region.to_value(),
            name => {
                let value = self.driver.policy(name).or_else(|| settings.objects.get(name)).or_else(|| settings.model.get(name));
                value.expect("GObject passes on known properties only")
            }
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
        let element = self.obj().clone();
        let load = {
            let element = element.clone();
            move |settings: &Settings| element.imp().load(settings)
        };
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
        let objects = settings.objects.checked()?.clone();
        let detector = Detector::new(options)?;
        match settings.region {
            InferenceRegion::RoiList => Ok(Arc::new(DetectStage { detector, parents: Some(objects) })),
            InferenceRegion::FullFrame => {
                if !objects.is_all() {
                    gst::element_warning!(
                        self.obj(),
                        gst::ResourceError::Settings,
                        ("object-class and the limits of object sizes are not used: the whole frame is searched; set inference-region=roi-list to search in those objects")
                    );
                }
                Ok(Arc::new(DetectStage { detector, parents: None }))
            }
        }
    }
}

/// The detector as the driver sees it.
struct DetectStage {
    detector: Detector,
    /// In which objects it looks; `None`: in the frame.
    parents: Option<ObjectFilter>,
}

impl Stage for DetectStage {
    fn run(&self, frame: Frame, mut results: FrameResults, permit: Arc<Permit>, done: Done) {
        let frame_number = results.frame_number;
        // What is found stands behind what detectors before this one found.
        let Some(parents) = &self.parents else {
            let finish = move |detected: stages::Result<Found>| {
                match detected {
                    Ok(found) => {
                        results.detections.extend(found.detections);
                        results.classifications.extend(found.said);
                    }
                    Err(error) => results.status = InferenceStatus::Failed(error.to_string().into()),
                }
                done(results);
            };
            return self.detector.submit_with(frame, frame_number, permit, Box::new(finish));
        };
        let regions: Vec<_> = parents.regions(&results).map(|(object, rect)| (object.id, rect)).collect();
        let finish = move |detected: DetectedInRegions| {
            results.detections.extend(detected.detections);
            for (id, said) in detected.said {
                if let Some(detection) = results.detection_mut(id) {
                    detection.classifications.push(said);
                }
            }
            if let Some((error, n_failed)) = detected.failed {
                results.status = InferenceStatus::Failed(format!("{n_failed} regions: {error}").into());
            }
            done(results);
        };
        self.detector.submit_regions(frame, frame_number, &regions, &permit, Box::new(finish));
    }

    fn warm_up(&self) -> stages::Result<Duration> {
        self.detector.warm_up(|| {
            let frame = infer::black_frame(self.detector.spec().input_size)?;
            self.detector.detect(&frame)?; // The first run pays for lazily made buffers.
            let begin = Instant::now();
            self.detector.detect(&frame)?;
            Ok(begin.elapsed())
        })
    }

    fn drop_pending(&self) {
        self.detector.drop_pending();
    }

    fn drop_withdrawn(&self) {
        self.detector.drop_withdrawn();
    }

    /// Beside what was found, the objects in which it was found, without parents of their own: where they were is needed to carry
    /// their children on.
    fn found(&self, results: &FrameResults, n_before: usize) -> FrameResults {
        let (before, found) = results.detections.split_at(n_before.min(results.detections.len()));
        let is_parent = |earlier: &&Detection| self.parents.is_some() && found.iter().any(|found| found.parent == Some(earlier.id));
        let parents = before.iter().filter(is_parent).map(|parent| Detection { parent: None, ..parent.clone() });
        let is_own = |said: &&Classification| said.model == self.detector.spec().model_name;
        FrameResults {
            size: results.size,
            detections: parents.chain(found.iter().cloned()).collect(),
            classifications: results.classifications.iter().filter(is_own).cloned().collect(),
            ..FrameResults::default()
        }
    }

    /// What was found in an object is carried with that object, to where it is now, or not at all if it is gone.
    fn carry(&self, found: &FrameResults, results: &mut FrameResults) {
        let size = results.size;
        let moved = |earlier: &Detection, rect: Rect| {
            let mut moved = earlier.clone();
            moved.move_to(rect);
            moved
        };
        let in_this_size = |rect: Rect| if found.size == size { rect } else { rect.rescaled(found.size, size) };
        if self.parents.is_none() {
            results.detections.extend(found.detections.iter().map(|earlier| moved(earlier, in_this_size(earlier.rect))));
            results.classifications.extend(found.classifications.iter().cloned());
            return;
        }
        let children = found.detections.iter().filter_map(|child| {
            let was = found.detections.iter().find(|parent| child.parent == Some(parent.id))?;
            let is = results.detections.iter().find(|parent| parent.is_same_object(was))?;
            let rect = in_this_size(child.rect).moved_with(in_this_size(was.rect), is.rect);
            Some(Detection { parent: Some(is.id), ..moved(child, rect) })
        });
        let children: Vec<Detection> = children.collect();
        results.detections.extend(children);
    }

    fn scheduling(&self) -> Scheduling {
        self.detector.scheduling()
    }

    fn n_frames_at_once(&self) -> usize {
        self.detector.n_frames_at_once()
    }

    fn n_frames_fewer(&self) -> usize {
        self.detector.n_frames_fewer()
    }

    fn stats(&self) -> StageStats {
        self.detector.stats()
    }

    fn reads_results(&self) -> bool {
        self.parents.is_some()
    }
}
