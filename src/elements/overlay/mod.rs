//! `roioverlay`: draws boxes, keypoints, labels and attributes on the frame, and makes objects unrecognizable.
//!
//! ```text
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert ! roidetect model=face.onnx ! roioverlay ! videoconvert ! autovideosink
//! gst-launch-1.0 filesrc location=clip.mp4 ! decodebin ! videoconvert ! roidetect model=face.onnx ! roioverlay draw=false blur=face ! videoconvert ! autovideosink
//! ```
//!
//! `roioverlay` draws in the frame's own format, in place and without conversion. Frames without results, and all frames with `draw=false`,
//! pass unchanged. Objects of `blur` and `pixelate` are changed in any case. The element runs no model: it reads only metas.
//!
//! If downstream combines images with frames (`GstVideoOverlayComposition`), the drawing is attached as such images, and the frame stays
//! unchanged. `attach-drawing=false` paints in any case.
//!
//! The drawing code, without GStreamer, is in `roiflow_images`.
//!
//! | file | has |
//! |---|---|
//! | `imp.rs` | the virtual methods of GStreamer |
//! | `settings.rs` | the properties |
//! | `work.rs` | drawing, blurring and attaching for one frame |
//! | `composition.rs` | images that the sink combines with the frame |

mod composition;
mod imp;
mod settings;
mod work;

use gst::glib;
use gst::subclass::prelude::ObjectSubclassIsExt;
use gstreamer as gst;
use gstreamer_base as gst_base;

use super::format_type_name as format;
use crate::stages::Snapshot;

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct RoiOverlay(ObjectSubclass<imp::RoiOverlay>) @extends gst_base::BaseTransform, gst::Element, gst::Object;
}

impl RoiOverlay {
    /// Checks the font without starting the element.
    ///
    /// # Errors
    /// Returns an error if the font cannot be read.
    pub fn check_font(&self) -> Result<(), String> {
        self.imp().typeface().map(drop)
    }

    /// Sets the snapshot from which the element gets the file of its font, from its next start on.
    pub(in crate::elements) fn set_snapshot(&self, snapshot: Snapshot) {
        self.imp().set_snapshot(snapshot);
    }
}

/// What determines the color of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiOverlayColorBy", allow_name_conflict)]
pub enum ColorBy {
    /// The class.
    #[default]
    #[enum_value(name = "The class", nick = "class")]
    Class,
    /// The track ID.
    #[enum_value(name = "The track ID; without track ID, the class", nick = "track")]
    Track,
}

/// The time that is written after the title.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiOverlayClock", allow_name_conflict)]
pub enum Clock {
    /// No time.
    #[default]
    #[enum_value(name = "No time", nick = "none")]
    None,
    /// Capture time, in the time zone of the process.
    #[enum_value(name = "Date and time of capture in the local time zone", nick = "local")]
    Local,
    /// Capture time in UTC.
    #[enum_value(name = "Date and time of capture in UTC", nick = "utc")]
    Utc,
    /// Stream time.
    #[enum_value(name = "Position in the stream", nick = "position")]
    Position,
}
