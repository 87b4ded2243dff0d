//! Reads format, size and colorimetry of a frame from caps.
//!
//! Converts the values in caps to the types of this library. This module does not access buffers.

use gstreamer as gst;
use gstreamer_video as gst_video;

use crate::frame::{ColorMatrix, ColorRange, Colorimetry, PixelFormat, Size};

/// Returns the caps of raw video in system memory, in all supported formats.
pub fn raw_video() -> gst::Caps {
    let range = gst::IntRange::new(1, i32::MAX);
    gst::Caps::builder("video/x-raw")
        .field("format", gst::List::new(PixelFormat::ALL.map(PixelFormat::name)))
        .field("width", range)
        .field("height", range)
        .field("framerate", gst::FractionRange::new(gst::Fraction::new(0, 1), gst::Fraction::new(i32::MAX, 1)))
        .build()
}

/// Whether the frames are raw video in system memory.
pub fn is_raw_in_system_memory(caps: &gst::CapsRef) -> bool {
    let is_raw = caps.structure(0).is_some_and(|structure| structure.name() == "video/x-raw");
    let is_foreign = |feature: &str| feature.starts_with("memory:") && feature != "memory:SystemMemory";
    let is_elsewhere = caps.features(0).is_some_and(|features| features.iter().any(|feature| is_foreign(feature)));
    is_raw && !is_elsewhere
}

/// Returns the pixel format of the frames; `None` if it is not supported.
pub fn pixel_format(info: &gst_video::VideoInfo) -> Option<PixelFormat> {
    PixelFormat::from_name(info.format().to_str())
}

/// Returns the width and height of the frames.
pub fn size(info: &gst_video::VideoInfo) -> Size {
    Size::new(info.width(), info.height())
}

/// Returns the width and height in the caps, also of encoded video; `None` if the caps lack one of them.
pub fn size_in_caps(caps: &gst::CapsRef) -> Option<Size> {
    let structure = caps.structure(0)?;
    let extent = |name: &str| structure.get::<i32>(name).ok().and_then(|value| u32::try_from(value).ok()).filter(|value| *value > 0);
    Some(Size::new(extent("width")?, extent("height")?))
}

/// Returns the colorimetry of the frames. Unspecified values become GStreamer's defaults: BT.601, limited range for Y'CbCr, and full range
/// for gray.
pub fn colorimetry(info: &gst_video::VideoInfo) -> Colorimetry {
    let colorimetry = info.colorimetry();
    let matrix = match colorimetry.matrix() {
        gst_video::VideoColorMatrix::Bt709 => ColorMatrix::Bt709,
        gst_video::VideoColorMatrix::Bt2020 => ColorMatrix::Bt2020,
        _ => ColorMatrix::Bt601,
    };
    let range = match colorimetry.range() {
        gst_video::VideoColorRange::Range0_255 => ColorRange::Full,
        gst_video::VideoColorRange::Range16_235 => ColorRange::Limited,
        _ if info.format() == gst_video::VideoFormat::Gray8 => ColorRange::Full,
        _ => ColorRange::Limited,
    };
    Colorimetry { matrix, range }
}
