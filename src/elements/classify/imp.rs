//! Properties of `roiclassify`. What it does with a frame is [`super::stage`]'s, everything else the driver's.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, LazyLock, Mutex};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;

use super::stage::ClassifyStage;
use crate::elements::classes::ClassCheck;
use crate::elements::economy::{Economy, EconomySettings};
use crate::elements::infer::Driver;
use crate::elements::lifecycle::{self, KeptStage};
use crate::elements::pads::{self, InferenceElement};
use crate::elements::policy::Policy;
use crate::elements::regions::{InferenceRegion, ObjectFilter};
use crate::elements::settings::ModelSettings;
use crate::elements::stage::Stage;
use crate::stages::{self, Classifier};

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new("roiclassify", gst::DebugColorFlags::empty(), Some("Classifies the regions of interest of frames, zero-copy"))
});

/// What the user asked for.
#[derive(Debug, Clone, PartialEq)]
struct Settings {
    model: ModelSettings,
    region: InferenceRegion,
    objects: ObjectFilter,
    economy: EconomySettings,
}

impl Default for Settings {
    fn default() -> Self {
        let (model, objects, economy) = (ModelSettings::default(), ObjectFilter::default(), EconomySettings::default());
        Self { model, region: InferenceRegion::RoiList, objects, economy }
    }
}

impl lifecycle::Settings for Settings {
    fn check(&self, element: &gst::Element) -> stages::Result<()> {
        self.model.checked(element)?;
        self.objects.checked().map(drop)
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
    /// Another copy of the library may be in the process.
    const ALLOW_NAME_CONFLICT: bool = true;
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
            properties.push(InferenceRegion::property(
                Settings::default().region,
                "What to classify: every object that was found before, or the frame as a whole",
            ));
            properties.extend(ObjectFilter::properties(
                "Only objects with one of these labels are classified, separated by commas; default: all",
            ));
            properties.extend(EconomySettings::properties());
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
                let known = settings.objects.set(name, value) || settings.economy.set(name, value) || settings.model.set(name, value);
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
                let of_objects = || settings.objects.get(name).or_else(|| settings.economy.get(name));
                let value = self.driver.policy(name).or_else(of_objects).or_else(|| settings.model.get(name));
                value.expect("GObject passes on known properties only")
            }
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
        let objects = settings.objects.checked()?.clone();
        if let Some(contradiction) = settings.economy.reuse.without_effect() {
            gst::element_imp_warning!(self, gst::ResourceError::Settings, ("{contradiction}"));
        }
        let objects = match settings.region {
            InferenceRegion::RoiList => Some(objects),
            InferenceRegion::FullFrame => {
                if !(objects.is_all() && settings.economy == EconomySettings::default()) {
                    let unused = "object-class, the limits of object sizes, and what goes by the ids of objects";
                    settings.region.warn_of_unused(self.obj().upcast_ref(), unused);
                }
                None
            }
        };
        let classifier = if objects.is_some() { Classifier::new(options) } else { Classifier::of_frames(options) }?;
        let counts = self.driver.economy.get_or_init(Arc::default).clone();
        let economy = Arc::new(Economy::new(&settings.economy, classifier.n_frames_at_once(), counts));
        Ok(Arc::new(ClassifyStage {
            classifier,
            objects,
            economy,
            n_unaligned: AtomicU64::new(0),
            class_check: ClassCheck::default(),
            element: self.obj().upcast_ref::<gst::Element>().downgrade(),
        }))
    }
}
