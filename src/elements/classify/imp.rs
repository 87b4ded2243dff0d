//! Properties of `roiclassify`, and loading of its stage. [`super::work`] handles frames. The parent class handles everything else.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, LazyLock};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;

use super::clips::ClipStore;
use super::work::ClassifyWork;
use crate::elements::classes::ClassCheck;
use crate::elements::inference::{Inference, InferenceImpl, Settings};
use crate::elements::regions::{InferenceRegion, ObjectFilter};
use crate::elements::reuse::{self, ResultReuse, ReuseSettings};
use crate::elements::settings;
use crate::elements::work::Work;
use crate::stages::{self, Stage};

/// Instance data of `roiclassify`.
#[derive(Default)]
pub struct RoiClassify;

#[glib::object_subclass]
impl ObjectSubclass for RoiClassify {
    const NAME: &'static str = "RoiClassify";
    /// If two copies of the library are in one process, both register this type name. So a name conflict is not an error.
    const ALLOW_NAME_CONFLICT: bool = true;
    type Type = super::RoiClassify;
    type ParentType = Inference;
}

impl ObjectImpl for RoiClassify {
    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let region = InferenceRegion::property(RoiClassify::REGION, "Classify each object of earlier elements, or the whole frame");
            let objects = ObjectFilter::properties("Labels of the objects to classify, separated by commas; default: all");
            [region].into_iter().chain(objects).chain(settings::OF_CLASSIFIERS.specs()).chain(reuse::PROPERTIES.specs()).collect()
        });
        &PROPERTIES
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        self.obj().upcast_ref::<Inference>().set(pspec, value);
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        self.obj().upcast_ref::<Inference>().get(pspec)
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
}

impl InferenceImpl for RoiClassify {
    const REGION: InferenceRegion = InferenceRegion::RoiList;

    fn category() -> gst::DebugCategory {
        static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
            let describes = "Classifies the regions of interest of frames, zero-copy";
            gst::DebugCategory::new("roiclassify", gst::DebugColorFlags::empty(), Some(describes))
        });
        *CAT
    }

    fn load(&self, settings: &Settings) -> stages::Result<Arc<dyn Work>> {
        let options = settings.model.checked(self.obj().upcast_ref())?;
        let objects = settings.objects.checked()?.clone();
        if let Some(contradiction) = settings.reuse.options.option_without_effect() {
            gst::element_imp_warning!(self, gst::ResourceError::Settings, ("{contradiction}"));
        }
        let objects = match settings.region {
            InferenceRegion::RoiList => Some(objects),
            InferenceRegion::FullFrame => {
                if !(objects.is_all() && settings.reuse == ReuseSettings::default()) {
                    let unused = "object-class, the object size limits, and the properties for tracked objects";
                    settings.region.warn_of_unused(self.obj().upcast_ref(), unused);
                }
                None
            }
        };
        let classifier = if objects.is_some() { Stage::classifier(&options) } else { Stage::classifier_of_frames(&options) }?;
        let counts = self.obj().upcast_ref::<Inference>().reuse_counts().clone();
        let clips = ClipStore::new(&classifier).map(Arc::new);
        let reuse = Arc::new(ResultReuse::new(&settings.reuse, classifier.n_frames_at_once(), counts, clips.is_some()));
        Ok(Arc::new(ClassifyWork {
            classifier,
            objects,
            reuse,
            clips,
            n_unaligned: AtomicU64::new(0),
            class_check: ClassCheck::default(),
            element: self.obj().upcast_ref::<gst::Element>().downgrade(),
        }))
    }
}
