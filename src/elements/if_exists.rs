//! Enumeration type of the property `if-exists`: the handling of an existing file.

use gst::glib;
use gstreamer as gst;

use super::format_type_name as format;
use crate::publish;

/// See [`publish::IfExists`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiflowIfExists", allow_name_conflict)]
pub enum IfExists {
    /// The file is truncated when the first result is written.
    #[default]
    #[enum_value(name = "Replace it with the first result", nick = "replace")]
    Replace,
    /// Results are appended to the file.
    #[enum_value(name = "Append to it", nick = "append")]
    Append,
    /// An existing file is an error.
    #[enum_value(name = "Fail with an error", nick = "fail")]
    Fail,
}

impl From<IfExists> for publish::IfExists {
    fn from(if_exists: IfExists) -> Self {
        match if_exists {
            IfExists::Replace => Self::Replace,
            IfExists::Append => Self::Append,
            IfExists::Fail => Self::Fail,
        }
    }
}
