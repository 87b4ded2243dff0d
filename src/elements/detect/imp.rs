//! Properties of `roidetect`, and loading of its stage. [`super::work`] handles frames. The parent class handles everything else.

use std::sync::{Arc, LazyLock};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;

use super::work::DetectWork;
use crate::elements::classes::ClassCheck;
use crate::elements::inference::{Inference, InferenceImpl, Settings};
use crate::elements::regions::{InferenceRegion, ObjectFilter};
use crate::elements::work::Work;
use crate::elements::{policy, settings, tiles};
use crate::stages::{self, Stage};

/// Instance data of `roidetect`.
#[derive(Default)]
pub struct RoiDetect;

#[glib::object_subclass]
impl ObjectSubclass for RoiDetect {
    const NAME: &'static str = "RoiDetect";
    /// If two copies of the library are in one process, both register this type name. So a name conflict is not an error.
    const ALLOW_NAME_CONFLICT: bool = true;
    type Type = super::RoiDetect;
    type ParentType = Inference;
}

impl ObjectImpl for RoiDetect {
    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let region = InferenceRegion::property(
                RoiDetect::REGION,
                "Detect in the whole frame, or in each object of earlier elements, for example the plate of a vehicle",
            );
            let objects = ObjectFilter::properties(
                "With inference-region=roi-list: detect only in objects with one of these labels, separated by commas; default: all",
            );
            let of_detectors = settings::OF_DETECTORS.specs().chain(tiles::PROPERTIES.specs()).chain(policy::OF_DETECTORS.specs());
            [region].into_iter().chain(objects).chain(of_detectors).collect()
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

impl GstObjectImpl for RoiDetect {}

impl ElementImpl for RoiDetect {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Object detector",
                "Filter/Analyzer/Video",
                "Detects objects in frames and attaches them to the buffers",
                env!("CARGO_PKG_NAME"),
            )
        });
        Some(&METADATA)
    }
}

impl InferenceImpl for RoiDetect {
    const REGION: InferenceRegion = InferenceRegion::FullFrame;

    fn category() -> gst::DebugCategory {
        static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
            let describes = "Detects objects in frames and attaches them to the buffers";
            gst::DebugCategory::new("roidetect", gst::DebugColorFlags::empty(), Some(describes))
        });
        *CAT
    }

    fn load(&self, settings: &Settings) -> stages::Result<Arc<dyn Work>> {
        let options = settings.model.checked(self.obj().upcast_ref())?;
        let objects = settings.objects.checked()?.clone();
        let (tiles, search_area) = settings.tiles.checked()?;
        let parents = (settings.region == InferenceRegion::RoiList).then_some(objects);
        if tiles.is_some() && parents.is_some() {
            let message = "combining properties failed: expected tiles with inference-region=full-frame, got inference-region=roi-list. Unset one of them";
            return Err(stages::Error::new(stages::ErrorKind::Config, message));
        }
        if parents.is_none() && !settings.objects.classes().is_all() {
            let classes = settings.objects.classes();
            let message = format!(
                "object-class={classes} selects the objects in which the model runs: expected inference-region=roi-list, got the whole frame. To report only these classes of the detector, set keep-classes={classes} instead"
            );
            return Err(stages::Error::new(stages::ErrorKind::Config, message));
        }
        if parents.is_none() && !settings.objects.is_all() {
            settings.region.warn_of_unused(self.obj().upcast_ref(), "the object size limits");
        }
        let detector = match &tiles {
            Some(tiles) => Stage::detector_of_tiles(&options, tiles.n_areas())?,
            None => Stage::detector(&options)?,
        };
        let element = self.obj().upcast_ref::<gst::Element>().downgrade();
        Ok(Arc::new(DetectWork { detector, parents, tiles, search_area: search_area.into(), class_check: ClassCheck::default(), element }))
    }
}
