//! Converts frames from the full range (0 to 255) to the limited range (16 to 235), for encoders: not all players support the full range.
//!
//! `videoconvert` of GStreamer 1.22 keeps the samples if only the range differs. The conversion is exact but for rounding.

use gst_video::{VideoColorRange, VideoColorimetry, VideoFrameExt, VideoFrameRef};
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::caps;
use crate::frame::{PixelFormat, Size};

/// Returns the caps of the frames that an encoder gets, and the conversion, if the frames with these caps have the full range.
pub(crate) fn encoded(caps: &gst::CapsRef) -> (Option<LimitedRange>, gst::Caps) {
    match LimitedRange::new(caps) {
        Some((limited, caps)) => (Some(limited), caps),
        None => (None, caps.to_owned()),
    }
}

/// The conversion of the frames of one stream.
pub(crate) struct LimitedRange {
    info: gst_video::VideoInfo,
    format: PixelFormat,
    /// The new value of each sample, of luma and of chroma.
    tables: [Vec<u16>; 2],
}

impl LimitedRange {
    /// Returns the conversion, and the caps of its frames. `None` if the frames with these caps do not have the full range.
    fn new(caps: &gst::CapsRef) -> Option<(Self, gst::Caps)> {
        let info = caps::video_info(caps).ok().filter(|info| info.format_info().is_yuv())?;
        let (format, full) = (caps::pixel_format(&info)?, info.colorimetry());
        if full.range() != VideoColorRange::Range0_255 {
            return None;
        }
        let (n_values, unit) = (1_u32 << format.depth(), (1 << (format.depth() - 8)) as f32);
        // `zero` is the sample of black or gray with the full range, `begin` with the limited range.
        let table = |zero: f32, begin: f32, span: f32| -> Vec<u16> {
            let scale = span * unit / (n_values - 1) as f32;
            (0..n_values).map(|sample| (begin * unit + (sample as f32 - zero * unit) * scale).round() as u16).collect()
        };
        let limited = VideoColorimetry::new(VideoColorRange::Range16_235, full.matrix(), full.transfer(), full.primaries());
        let mut caps = caps.to_owned();
        caps.make_mut().set("colorimetry", limited.to_string());
        Some((Self { info, format, tables: [table(0.0, 16.0, 219.0), table(128.0, 128.0, 224.0)] }, caps))
    }

    /// Returns a converted copy of a frame, without metas. `None` if the frame cannot be mapped.
    pub(crate) fn convert(&self, buffer: &gst::BufferRef) -> Option<gst::Buffer> {
        let source = VideoFrameRef::from_buffer_ref_readable(buffer, &self.info).ok()?;
        let mut copy = gst::Buffer::with_size(self.info.size()).ok()?;
        {
            let mut target = VideoFrameRef::from_buffer_ref_writable(copy.get_mut()?, &self.info).ok()?;
            source.copy(&mut target).ok()?;
            let strides: Vec<usize> = target.plane_stride().iter().map(|stride| usize::try_from(*stride).unwrap_or(0)).collect();
            let Size { width, height } = caps::size(&self.info);
            let n_low_bits = self.format.n_low_bits();
            for (place, table) in self.format.components().iter().zip([&self.tables[0], &self.tables[1], &self.tables[1]]) {
                let (of_width, of_height) = (place.n_pixels.0, place.n_pixels.1);
                let n_columns = (width as usize).div_ceil(of_width);
                let plane = target.plane_data_mut(place.plane_idx as u32).ok()?;
                for row in plane.chunks_mut(strides[place.plane_idx].max(1)).take((height as usize).div_ceil(of_height)) {
                    let samples = row.get_mut(place.offset_bytes..)?;
                    if self.format.depth() == 8 {
                        samples
                            .iter_mut()
                            .step_by(place.stride_bytes)
                            .take(n_columns)
                            .for_each(|sample| *sample = table[usize::from(*sample)] as u8);
                        continue;
                    }
                    for sample in samples.chunks_mut(place.stride_bytes).take(n_columns).filter_map(|sample| sample.first_chunk_mut::<2>())
                    {
                        let value = u16::from_le_bytes(*sample) >> n_low_bits;
                        *sample = (table.get(usize::from(value)).copied().unwrap_or(value) << n_low_bits).to_le_bytes();
                    }
                }
            }
        }
        let own = copy.get_mut()?;
        own.set_pts(buffer.pts());
        own.set_duration(buffer.duration());
        Some(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(format: &str, colors: &str) -> gst::Caps {
        gst::init().unwrap();
        let caps = gst::Caps::builder("video/x-raw").field("format", format).field("width", 3).field("height", 3);
        caps.field("colorimetry", colors).build()
    }

    #[test]
    fn samples_get_the_limited_range_in_every_format() {
        for format in PixelFormat::ALL.into_iter().filter(|format| !format.is_rgb() && *format != PixelFormat::Gray8) {
            let (range, limited) = LimitedRange::new(&caps(format.name(), "1:0:0:0")).unwrap();
            assert_eq!(limited.structure(0).unwrap().get::<&str>("colorimetry").unwrap(), "2:4:0:0");
            let (white, middle) = if format.depth() == 8 { (235, 128) } else { (940, 512) };
            let mut buffer = gst::Buffer::with_size(range.info.size()).unwrap();
            // White: the largest luma, and chroma in the middle.
            let painted = {
                let unit = if format.depth() == 8 { 255_u16 } else { 1023 };
                let mut frame = VideoFrameRef::from_buffer_ref_writable(buffer.get_mut().unwrap(), &range.info).unwrap();
                let strides = frame.plane_stride().to_vec();
                for (component_idx, place) in format.components().iter().enumerate() {
                    let value = (if component_idx == 0 { unit } else { unit / 2 + 1 }) << format.n_low_bits();
                    let plane = frame.plane_data_mut(place.plane_idx as u32).unwrap();
                    for row in plane.chunks_mut(strides[place.plane_idx] as usize) {
                        for sample in row[place.offset_bytes..].chunks_mut(place.stride_bytes) {
                            let n = format.element().size().min(sample.len());
                            sample[..n].copy_from_slice(&value.to_le_bytes()[..n]);
                        }
                    }
                }
                drop(frame);
                range.convert(&buffer).unwrap()
            };
            let frame = VideoFrameRef::from_buffer_ref_readable(&painted, &range.info).unwrap();
            for (place, expected) in format.components().iter().zip([white, middle, middle]) {
                let row = &frame.plane_data(place.plane_idx as u32).unwrap()[place.offset_bytes..];
                let value =
                    if format.depth() == 8 { u16::from(row[0]) } else { u16::from_le_bytes([row[0], row[1]]) >> format.n_low_bits() };
                assert_eq!(value, expected, "{format}");
            }
        }
    }

    #[test]
    fn other_frames_are_not_converted() {
        for (format, colors) in [("I420", "bt709"), ("I420", "2:0:0:0"), ("RGB", "1:1:0:0"), ("NV16", "1:4:0:0")] {
            assert!(LimitedRange::new(&caps(format, colors)).is_none(), "{format} {colors}");
        }
    }
}
