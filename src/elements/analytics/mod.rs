//! `roianalytics`: counts tracked objects at lines and in zones, and measures their speed.
//!
//! ```text
//! gst-launch-1.0 videotestsrc num-buffers=60 pattern=ball foreground-color=0xffff0000 ! videoconvert
//!     ! roidetect model=assets/tiny/rectangle.onnx ! roitrack ! roianalytics lines=0,0.5,1,0.5
//!     ! roipublish address=counts.jsonl ! fakesink
//! ```
//!
//! Place it downstream of `roitrack`, because only objects with a track ID are counted. It reads no pixels.
//!
//! - `lines`: lines as `x1,y1,x2,y2`, several separated by `;`, each with an optional name as in `door:0,0.5,1,0.5`. `zones`: polygons in
//!   the same way. Coordinates are fractions of the frame.
//! - `layout`: a file in TOML with lines and zones, and with classes, minimum times, loitering, the anchor point, the ground and a heat map.
//!   The page "Count and track" of the book has all keys and rules.
//!
//! Events are in `events` of the JSON of their frame. Each event is also an element message `roianalytics-event` on the bus, with the
//! fields `event`, `place`, `id`, `label`, `pts`, and `direction` and `count`, or `occupancy` and `dwell` (nanoseconds). If the layout
//! describes the ground, objects have the attributes `speed` (meters per second) and `heading` (degrees).
//!
//! `stats` has `frames`, `events`, `takeovers` (new track IDs that continue an object), and the arrays `crossings` and `zones`. `heat-map` has
//! `columns`, `rows` and the `cells`, row by row. A flush, a seek and a new stream keep the counts.

mod imp;
mod layout;

use gst::glib;
use gst::subclass::prelude::ObjectSubclassIsExt;
use gstreamer as gst;

use crate::stages::{SceneCounts, Snapshot};

glib::wrapper! {
    /// See the module.
    pub struct RoiAnalytics(ObjectSubclass<imp::RoiAnalytics>) @extends gst::Element, gst::Object;
}

impl RoiAnalytics {
    /// Returns the counts so far.
    pub fn counts(&self) -> SceneCounts {
        self.imp().counts()
    }

    /// Checks the layout of the properties without starting the element.
    ///
    /// # Errors
    /// Returns an error if the layout is invalid.
    pub fn check_layout(&self) -> Result<(), String> {
        self.imp().check_layout()
    }

    /// Sets the snapshot from which the element gets the file of its layout, from its next start on.
    pub(in crate::elements) fn set_snapshot(&self, snapshot: Snapshot) {
        self.imp().set_snapshot(snapshot);
    }

    /// Continues counting from the counts of an earlier element. Call this before the element starts, so that a restarted stream keeps its
    /// counts.
    pub fn continue_counts(&self, counts: SceneCounts) {
        self.imp().continue_counts(counts);
    }
}
