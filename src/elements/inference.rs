//! The abstract parent class of the inference elements: pads, driver, state changes, and common properties.
//!
//! A subclass adds properties, its debug category, and a function that loads the stage ([`InferenceImpl`]). [`Inference::set`] and
//! [`Inference::get`] handle the properties of all subclasses.
//!
//! This module uses `lifecycle`, `pads`, `infer`, and the tables of properties.

use std::sync::{Arc, LazyLock, Mutex};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;

use super::infer::Driver;
use super::lifecycle::{self, CachedStage};
use super::pads::{self, InferenceElement};
use super::policy;
use super::regions::{InferenceRegion, ObjectFilter};
use super::reuse::{self, ReuseCounts, ReuseSettings};
use super::settings::{self, ModelSettings};
use super::tiles::{self, TileSettings};
use super::work::Work;
use crate::frame::{Frame, PixelFormat, Size};
use crate::stages;

/// Settings of an inference element.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) model: ModelSettings,
    pub(super) region: InferenceRegion,
    pub(super) objects: ObjectFilter,
    /// Tiles and search area, which only detectors use.
    pub(super) tiles: TileSettings,
    /// Settings of result reuse, which only classifiers use.
    pub(super) reuse: ReuseSettings,
}

impl lifecycle::Settings for Settings {
    fn check(&self, element: &gst::Element) -> stages::Result<()> {
        self.model.checked(element)?;
        self.tiles.checked()?;
        self.objects.checked().map(drop)
    }
}

glib::wrapper! {
    /// Parent class of `roidetect` and `roiclassify`. See the module.
    pub struct Inference(ObjectSubclass<imp::Inference>) @extends gst::Element, gst::Object;
}

/// Functions that each subclass implements.
pub(super) trait InferenceImpl: ElementImpl + ObjectSubclass<Type: IsA<Inference>> {
    /// Default of the property `inference-region`.
    const REGION: InferenceRegion;

    fn category() -> gst::DebugCategory;

    /// Loads a stage from checked settings.
    fn load(&self, settings: &Settings) -> stages::Result<Arc<dyn Work>>;
}

/// The GObject class struct of the inference elements. It contains the functions of the subclass.
#[repr(C)]
pub struct InferenceClass {
    parent: gst::ffi::GstElementClass,
    of_subclass: Option<OfSubclass>,
}

#[derive(Clone, Copy)]
struct OfSubclass {
    region: InferenceRegion,
    category: fn() -> gst::DebugCategory,
    load: fn(&Inference, &Settings) -> stages::Result<Arc<dyn Work>>,
}

// SAFETY: `InferenceClass` is `repr(C)`, and begins with the class struct of the parent type.
unsafe impl ClassStruct for InferenceClass {
    type Type = imp::Inference;
}

// SAFETY: `class_init` first calls `parent_class_init`. The field `of_subclass` is plain data without a destructor. GObject zeroes a
// class struct, and all zeros are a valid `of_subclass`: `None`.
unsafe impl<T: InferenceImpl> IsSubclassable<T> for Inference {
    fn class_init(class: &mut glib::Class<Self>) {
        Self::parent_class_init::<T>(class);
        let load = |element: &Inference, settings: &Settings| {
            element.dynamic_cast_ref::<T::Type>().expect("an element of this class").imp().load(settings)
        };
        class.as_mut().of_subclass = Some(OfSubclass { region: T::REGION, category: T::category, load });
    }
}

impl Inference {
    /// Sets the engine with which the element loads models, from its next start on.
    pub(super) fn set_engine(&self, engine: stages::Engine) {
        self.imp().settings.lock().unwrap().model.options.engine = engine;
    }

    /// Returns the loaded stage with its work per frame; `None` until the stage is loaded.
    pub(super) fn work(&self) -> Option<Arc<dyn Work>> {
        self.imp().driver.work()
    }

    /// Sets the snapshot from which the element gets its model and its files, from its next start on.
    pub(super) fn set_snapshot(&self, snapshot: stages::Snapshot) {
        self.imp().settings.lock().unwrap().model.options.snapshot = Some(snapshot);
    }

    /// Loads the stage as a start of the element would, and runs it on a black frame of this size. `None`: the size of the model's input.
    pub(super) fn prepare(&self, size: Option<Size>) -> stages::Result<()> {
        let settings = self.imp().settings.lock().unwrap().clone();
        lifecycle::Settings::check(&settings, self.upcast_ref())?;
        let work = (self.imp().load)(self, &settings)?;
        let size = size.unwrap_or(work.stage().spec().input_size);
        let frame = Frame::from_packed(PixelFormat::Rgb, size, &vec![0; size.width as usize * size.height as usize * 3])?;
        work.try_frame(&frame)
    }

    /// Returns the counters of result reuse of a classifier.
    pub(super) fn reuse_counts(&self) -> &Arc<ReuseCounts> {
        self.imp().driver.reuse.get_or_init(Arc::default)
    }

    /// Sets a property of an inference element.
    pub(super) fn set(&self, pspec: &glib::ParamSpec, value: &glib::Value) {
        let imp = self.imp();
        let name = pspec.name();
        if imp.driver.set_policy(name, value) {
            return;
        }
        let mut guard = imp.settings.lock().unwrap();
        let settings = &mut *guard;
        if name == "inference-region" {
            settings.region = value.get().expect("an enum property");
            return;
        }
        let known = settings.objects.set(name, value)
            || tiles::PROPERTIES.set(&mut settings.tiles, name, value)
            || reuse::PROPERTIES.set(&mut settings.reuse, name, value)
            || settings.model.set(name, value);
        debug_assert!(known, "GObject passes on known properties only");
        let changed = settings::THRESHOLDS.contains(&name).then(|| settings.model.options.thresholds());
        drop(guard);
        if let Some(thresholds) = changed {
            imp.driver.set_thresholds(self.upcast_ref(), thresholds);
        }
    }

    /// Returns the value of a property of an inference element.
    pub(super) fn get(&self, pspec: &glib::ParamSpec) -> glib::Value {
        let imp = self.imp();
        let settings = imp.settings.lock().unwrap();
        match pspec.name() {
            "stats" => imp.driver.stats().to_value(),
            "inference-region" => settings.region.to_value(),
            name => (imp.driver.policy(name))
                .or_else(|| settings.objects.get(name))
                .or_else(|| tiles::PROPERTIES.get(&settings.tiles, name))
                .or_else(|| reuse::PROPERTIES.get(&settings.reuse, name))
                .or_else(|| settings.model.get(name))
                .expect("GObject passes on known properties only"),
        }
    }
}

mod imp {
    use super::*;

    /// Instance data of an inference element.
    pub struct Inference {
        sinkpad: gst::Pad,
        srcpad: gst::Pad,
        pub(super) driver: Arc<Driver>,
        pub(super) settings: Mutex<Settings>,
        pub(super) stage: CachedStage<Settings>,
        pub(super) load: fn(&super::Inference, &Settings) -> stages::Result<Arc<dyn Work>>,
    }

    #[glib::object_subclass]
    impl ObjectSubclass for Inference {
        const NAME: &'static str = "RoiInference";
        const ALLOW_NAME_CONFLICT: bool = true;
        const ABSTRACT: bool = true;
        type Type = super::Inference;
        type ParentType = gst::Element;
        type Class = InferenceClass;

        fn with_class(class: &Self::Class) -> Self {
            let OfSubclass { region, category, load } = class.of_subclass.expect("an abstract class has no elements");
            let (sinkpad, srcpad) = pads::pads::<Self>();
            let settings = Settings {
                model: ModelSettings::default(),
                region,
                objects: ObjectFilter::default(),
                tiles: TileSettings::default(),
                reuse: ReuseSettings::default(),
            };
            Self { sinkpad, srcpad, driver: Driver::new(category()), settings: Mutex::new(settings), stage: CachedStage::default(), load }
        }
    }

    impl ObjectImpl for Inference {
        fn constructed(&self) {
            self.parent_constructed();
            let element = self.obj();
            element.add_pad(&self.sinkpad).expect("a new element has no pad of this name");
            element.add_pad(&self.srcpad).expect("a new element has no pad of this name");
        }

        fn properties() -> &'static [glib::ParamSpec] {
            static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
                let stats = glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                    .nick("Statistics")
                    .blurb("Counters since the element was created: frames in and out, inferred, skipped and dropped by reason, failures, objects, frames per second, latency percentiles, runs, time per step")
                    .read_only()
                    .build();
                settings::PROPERTIES.specs().chain([stats]).chain(policy::PROPERTIES.specs()).collect()
            });
            &PROPERTIES
        }

        fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
            self.obj().set(pspec, value);
        }

        fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
            self.obj().get(pspec)
        }
    }

    impl GstObjectImpl for Inference {}

    impl ElementImpl for Inference {
        fn pad_templates() -> &'static [gst::PadTemplate] {
            static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(pads::pad_templates);
            &TEMPLATES
        }

        fn change_state(&self, transition: gst::StateChange) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
            let element = self.obj().clone();
            let (load, of) = (self.load, element.clone());
            let load = move |settings: &Settings| load(&of, settings);
            let parent = || self.parent_change_state(transition);
            self.stage.change_state(&self.driver, element.upcast_ref(), transition, &self.settings, load, parent)
        }
    }

    impl InferenceElement for Inference {
        fn driver(&self) -> &Arc<Driver> {
            &self.driver
        }
    }
}
