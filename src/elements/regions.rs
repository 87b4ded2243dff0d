//! On which of the objects that earlier elements found an inference element works: the properties that say so, and the choice.
//!
//! Knows no pads and no stages.

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use crate::frame::{Detection, FrameResults, ObjectId, PixelRect};

/// Where a detector looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiInferenceRegion")]
pub(super) enum InferenceRegion {
    #[default]
    #[enum_value(name = "In the whole frame", nick = "full-frame")]
    FullFrame,
    #[enum_value(name = "In the region of each object found before", nick = "roi-list")]
    RoiList,
}

/// The labels of the objects that are worked on; none is all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ObjectClasses(Vec<String>);

impl ObjectClasses {
    pub(super) fn property(blurb: &'static str) -> glib::ParamSpec {
        glib::ParamSpecString::builder("object-class").nick("Object class").blurb(blurb).mutable_ready().build()
    }

    /// From the property: separated by commas.
    pub(super) fn from_value(value: &glib::Value) -> Self {
        let text = value.get::<Option<String>>().expect("a string property").unwrap_or_default();
        Self(text.split(',').map(|class| class.trim().to_owned()).filter(|class| !class.is_empty()).collect())
    }

    pub(super) fn to_value(&self) -> glib::Value {
        self.0.join(",").to_value()
    }

    /// Whether none is named.
    pub(super) fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, detection: &Detection) -> bool {
        let label = detection.label.as_deref().unwrap_or_default();
        self.is_all() || self.0.iter().any(|class| class == label)
    }

    /// The regions of these objects, in the order of the results. A box without a pixel in the frame has none.
    pub(super) fn regions(&self, results: &FrameResults) -> Vec<(ObjectId, PixelRect)> {
        let wanted = results.detections.iter().filter(|detection| self.has(detection));
        wanted.filter_map(|detection| Some((detection.id, detection.rect.to_pixels(results.size)?))).collect()
    }
}
