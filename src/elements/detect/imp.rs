//! Properties of `roidetect`. What it does with a frame is [`super::stage`]'s, everything else the driver's.

use std::sync::{Arc, LazyLock, Mutex};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;

use super::stage::DetectStage;
use crate::elements::classes::ClassCheck;
use crate::elements::infer::Driver;
use crate::elements::lifecycle::{self, KeptStage};
use crate::elements::pads::{self, InferenceElement};
use crate::elements::policy::Policy;
use crate::elements::regions::{InferenceRegion, ObjectFilter};
use crate::elements::settings::ModelSettings;
use crate::elements::stage::Stage;
use crate::stages::{self, Detector};

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new("roidetect", gst::DebugColorFlags::empty(), Some("Finds objects in frames and attaches them to the buffers"))
});

/// What the user asked for.
#[derive(Debug, Clone, PartialEq)]
struct Settings {
    model: ModelSettings,
    region: InferenceRegion,
    objects: ObjectFilter,
}

impl Default for Settings {
    fn default() -> Self {
        Self { model: ModelSettings::default(), region: InferenceRegion::FullFrame, objects: ObjectFilter::default() }
    }
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
    /// Another copy of the library may be in the process.
    const ALLOW_NAME_CONFLICT: bool = true;
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
            properties.push(InferenceRegion::property(
                Settings::default().region,
                "Where to look: in the frame, or in every object that was found before, such as for the plate of a vehicle",
            ));
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
        let element = self.obj().upcast_ref::<gst::Element>().downgrade();
        let stage = |detector, parents| -> stages::Result<Arc<dyn Stage>> {
            Ok(Arc::new(DetectStage { detector, parents, class_check: ClassCheck::default(), element }))
        };
        match settings.region {
            InferenceRegion::RoiList => stage(detector, Some(objects)),
            InferenceRegion::FullFrame => {
                if !objects.is_all() {
                    settings.region.warn_of_unused(self.obj().upcast_ref(), "object-class and the limits of object sizes");
                }
                stage(detector, None)
            }
        }
    }
}
