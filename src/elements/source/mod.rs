//! `roisource`: decodes a camera or another address, and opens it again when it is lost.
//!
//! ```text
//! gst-launch-1.0 roisource uri=rtsp://camera/1 restart=on-error ! videoconvert ! roidetect model=face.onnx ! roipublish ! fakesink
//! ```
//!
//! The pad `src` has decoded video. The request pad `encoded` has H.264 or H.265 as the source sends it, so `roirecord` can record it without
//! encoding, also after the source was lost:
//!
//! ```text
//! gst-launch-1.0 roisource name=camera uri=rtsp://camera/1 roirecord name=record folder=clips ! roipublish ! fakesink
//!     camera.encoded ! queue ! record.video
//!     camera.src ! queue ! videoconvert ! roidetect model=face.onnx ! record.sink
//! ```
//!
//! While the source is lost, the pipeline keeps running: `roisource` pushes no frames, neither black nor repeated
//! ones. It posts the element messages `source-lost` and `source-back`. The rules of restarts and delays are those of `roiflow run`
//! ([`crate::restart`]).
//!
//! `worker` opens, watches and closes the source on its own thread, because each of these operations may block.

mod attempt;
pub(super) mod encoded;
mod imp;
mod worker;

use gst::glib;
use gstreamer as gst;

use crate::elements::format_type_name as format;
use crate::restart::RestartPolicy;

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct RoiSource(ObjectSubclass<imp::RoiSource>) @extends gst::Bin, gst::Element, gst::Object;
}

/// Name of the element message that the source is lost. Fields: `uri` and `reason`, both texts without credentials.
pub const SOURCE_LOST: &str = "source-lost";
/// Name of the element message that the source delivers frames again. Fields: `uri`, `gap` (nanoseconds without frames, u64) and
/// `attempts` (u64).
pub const SOURCE_BACK: &str = "source-back";

/// Values of the property `restart`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[repr(i32)]
#[enum_type(name = "RoiSourceRestart", allow_name_conflict)]
pub enum Policy {
    /// The default of `roiflow run`.
    #[default]
    #[enum_value(name = "Live sources that fail, except a first connection that is refused", nick = "auto")]
    Auto,
    /// After failures and regular ends.
    #[enum_value(name = "Sources that fail or end", nick = "always")]
    Always,
    /// After failures.
    #[enum_value(name = "Sources that fail, also if they refuse the first connection", nick = "on-error")]
    OnError,
    /// Never.
    #[enum_value(name = "None: a failure ends the stream with an error", nick = "never")]
    Never,
}

impl From<Policy> for Option<RestartPolicy> {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Auto => None,
            Policy::Always => Some(RestartPolicy::Always),
            Policy::OnError => Some(RestartPolicy::OnError),
            Policy::Never => Some(RestartPolicy::Never),
        }
    }
}
