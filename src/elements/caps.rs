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

/// Returns the format of raw video.
///
/// # Errors
/// Returns an error if the caps are not those of video.
pub fn video_info(caps: &gst::CapsRef) -> Result<gst_video::VideoInfo, gst::glib::BoolError> {
    match with_matrix(caps) {
        Some(caps) => gst_video::VideoInfo::from_caps(&caps),
        None => gst_video::VideoInfo::from_caps(caps),
    }
}

/// Returns the caps with GStreamer's default matrix for the size of the frames, if they have a range without a matrix. GStreamer ignores such
/// colorimetry, and would take the full range for the limited range.
pub fn with_matrix(caps: &gst::CapsRef) -> Option<gst::Caps> {
    let tagged: gst_video::VideoColorimetry = caps.structure(0)?.get::<&str>("colorimetry").ok()?.parse().ok()?;
    if tagged.matrix() != gst_video::VideoColorMatrix::Unknown || tagged.range() == gst_video::VideoColorRange::Unknown {
        return None;
    }
    let info = gst_video::VideoInfo::from_caps(caps).ok().filter(|info| info.format_info().is_yuv())?;
    let matrix = info.colorimetry().matrix();
    let complete = gst_video::VideoColorimetry::new(tagged.range(), matrix, tagged.transfer(), tagged.primaries());
    let mut caps = caps.to_owned();
    caps.make_mut().set("colorimetry", complete.to_string());
    Some(caps)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(format: &str, height: i32, colors: &str) -> gst::Caps {
        gst::init().unwrap();
        let caps = gst::Caps::builder("video/x-raw").field("format", format).field("width", 640).field("height", height);
        caps.field("colorimetry", colors).build()
    }

    #[test]
    fn range_without_a_matrix_is_kept() {
        use ColorMatrix::{Bt601, Bt709};
        use ColorRange::{Full, Limited};
        for (format, height, colors, matrix, range) in [
            ("I420", 480, "1:0:0:0", Bt601, Full),
            ("NV12", 720, "1:0:0:0", Bt709, Full),
            ("YUY2", 480, "2:0:5:1", Bt601, Limited),
            ("Y444", 480, "1:3:5:1", Bt709, Full),
            ("I420", 480, "bt709", Bt709, Limited),
        ] {
            let read = colorimetry(&video_info(&caps(format, height, colors)).unwrap());
            assert_eq!(read, Colorimetry { matrix, range }, "{format} {height} {colors}");
        }
        assert_eq!(with_matrix(&caps("RGB", 480, "1:0:0:0")), None, "RGB has no matrix");
    }
}
