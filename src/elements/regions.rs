//! Selects the objects on which an inference element runs its model. Contains the properties for this selection, and the filter.
//!
//! This module uses no pads. From `crate::stages`, it uses only lists of labels and the error types.

use std::fmt;

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::format_type_name as format;
use crate::frame::{Detection, FrameResults, PixelRect, Size};
use crate::stages;
use crate::stages::labels::LabelList;

/// The region on which a model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, glib::Enum)]
#[enum_type(name = "RoiInferenceRegion", allow_name_conflict)]
pub(super) enum InferenceRegion {
    #[enum_value(name = "On the whole frame", nick = "full-frame")]
    FullFrame,
    #[enum_value(name = "On the region of each object of earlier elements", nick = "roi-list")]
    RoiList,
}

impl InferenceRegion {
    /// Returns the property `inference-region`, with the element's default and blurb.
    pub(super) fn property(default: Self, blurb: &'static str) -> glib::ParamSpec {
        glib::ParamSpecEnum::builder_with_default("inference-region", default).nick("Inference region").blurb(blurb).mutable_ready().build()
    }

    /// Warns that the properties of the object filter, named in `unused`, have no effect because the model runs on the whole
    /// frame.
    pub(super) fn warn_of_unused(self, element: &gst::Element, unused: &str) {
        gst::element_warning!(
            element,
            gst::ResourceError::Settings,
            ("{unused} are not used: the model runs on the whole frame; set inference-region=roi-list to run it on objects")
        );
    }
}

/// Labels of the selected objects. An empty list selects all objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ObjectClasses(LabelList);

impl ObjectClasses {
    pub(super) fn property(blurb: &'static str) -> glib::ParamSpec {
        glib::ParamSpecString::builder("object-class").nick("Object class").blurb(blurb).mutable_ready().build()
    }

    /// Parses the property: labels separated by commas.
    pub(super) fn from_value(value: &glib::Value) -> Self {
        Self(LabelList::parse(&value.get::<Option<String>>().expect("a string property").unwrap_or_default()))
    }

    pub(super) fn to_value(&self) -> glib::Value {
        self.to_string().to_value()
    }

    /// Returns the labels. An empty list selects all objects.
    pub(super) fn list(&self) -> &LabelList {
        &self.0
    }

    /// Whether all objects are selected.
    pub(super) fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the detection has one of the labels. True for every detection if the list is empty.
    pub(super) fn has(&self, detection: &Detection) -> bool {
        self.is_all() || self.0.has(detection.label.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for ObjectClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Filter for objects by label and size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ObjectFilter {
    classes: ObjectClasses,
    /// Smallest size of a box in pixels of the frame, after clipping to the frame. `max` is the largest size. 0 = no limit.
    min: Size,
    max: Size,
}

impl ObjectFilter {
    /// Returns the properties of the filter. `object_class` is the blurb of the property `object-class`.
    pub(super) fn properties(object_class: &'static str) -> Vec<glib::ParamSpec> {
        let pixels = |name: &'static str, nick: &'static str, blurb: &'static str| {
            glib::ParamSpecUInt::builder(name).nick(nick).blurb(blurb).mutable_ready().build()
        };
        vec![
            ObjectClasses::property(object_class),
            pixels("min-object-width", "Minimum width", "Ignore objects narrower than this, in pixels of the frame; 0: no limit"),
            pixels("min-object-height", "Minimum height", "Ignore objects lower than this, in pixels of the frame; 0: no limit"),
            pixels("max-object-width", "Maximum width", "Ignore objects wider than this, in pixels of the frame; 0: no limit"),
            pixels("max-object-height", "Maximum height", "Ignore objects higher than this, in pixels of the frame; 0: no limit"),
        ]
    }

    /// Sets a property. Returns false if `name` is not a property of the filter.
    pub(super) fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        if name == "object-class" {
            self.classes = ObjectClasses::from_value(value);
            return true;
        }
        let Some(limit) = self.limit(name) else { return false };
        *limit = value.get().expect("an unsigned property");
        true
    }

    /// Returns the value of a property. `None` if `name` is not a property of the filter.
    pub(super) fn get(&self, name: &str) -> Option<glib::Value> {
        match name {
            "object-class" => Some(self.classes.to_value()),
            name => self.clone().limit(name).map(|limit| limit.to_value()),
        }
    }

    fn limit(&mut self, name: &str) -> Option<&mut u32> {
        Some(match name {
            "min-object-width" => &mut self.min.width,
            "min-object-height" => &mut self.min.height,
            "max-object-width" => &mut self.max.width,
            "max-object-height" => &mut self.max.height,
            _ => return None,
        })
    }

    /// Returns the labels.
    pub(super) fn classes(&self) -> &ObjectClasses {
        &self.classes
    }

    /// Whether the filter selects all objects.
    pub(super) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that the filter can select an object.
    ///
    /// # Errors
    /// Returns `Config` if a minimum is above its maximum.
    pub(super) fn checked(&self) -> stages::Result<&Self> {
        for (side, min, max) in [("width", self.min.width, self.max.width), ("height", self.min.height, self.max.height)] {
            if max > 0 && min > max {
                let message = std::format!(
                    "min-object-{side}={min} is above max-object-{side}={max}: no object can match; lower min-object-{side} or raise max-object-{side} (0 = no limit)"
                );
                return Err(stages::Error::new(stages::ErrorKind::Config, message));
            }
        }
        Ok(self)
    }

    /// Returns the selected objects with their regions, in the order of the results. Boxes outside the frame are not included.
    pub(super) fn regions<'a>(&'a self, results: &'a FrameResults) -> impl Iterator<Item = (&'a Detection, PixelRect)> {
        let wanted = results.detections.iter().filter(|detection| self.classes.has(detection));
        let placed = wanted.filter_map(|detection| Some((detection, detection.rect.to_pixels(results.size)?)));
        placed.filter(|(_, rect)| self.fits(rect.size()))
    }

    /// Returns the selected objects, as [`ObjectFilter::regions`] does, but without their regions.
    pub(super) fn objects<'a>(&'a self, results: &'a FrameResults) -> impl Iterator<Item = &'a Detection> {
        self.regions(results).map(|(detection, _)| detection)
    }

    fn fits(&self, size: Size) -> bool {
        let fits = |extent: u32, min: u32, max: u32| extent >= min && (max == 0 || extent <= max);
        fits(size.width, self.min.width, self.max.width) && fits(size.height, self.min.height, self.max.height)
    }
}
