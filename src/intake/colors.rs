//! Keeps the color range of video. GStreamer loses the full range (0 to 255) in two situations:
//!
//! - `qtdemux` before 1.26 ignores the range in the `colr` box of an mp4 file (ISO/IEC 14496-12, 12.1.5), and reports the limited range.
//!   Decoders believe the container, although the encoded video has the full range.
//! - A decoder reports a range without a matrix. GStreamer then ignores both.
//!
//! So probes hide the colorimetry of the container from parsers, and combine it with that of the decoder: if one of them has the full
//! range, the frames have it. This module reads no pixels.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gst::prelude::*;
use gst_video::{VideoColorMatrix, VideoColorRange, VideoColorimetry};
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::{factory_name, is_video_decoder, klass};
use crate::elements::caps;

/// The field of caps with the colorimetry of the container, from the parser to the decoder.
const OF_CONTAINER: &str = "roiflow-colorimetry";
const COLORIMETRY: &str = "colorimetry";

/// Watches an element of a pipeline. Further calls for the same element have no effect.
pub(super) fn keep(element: &gst::Element) {
    if factory_name(element) == "qtdemux" {
        watch_demuxer(element);
    } else if klass(element).contains("Parser") {
        let sink = element.static_pad("sink");
        sink.iter().for_each(|sink| on_caps(sink, |_, caps| hide(caps)));
    } else if is_video_decoder(element)
        && let (Some(src), Some(sink)) = (element.static_pad("src"), element.static_pad("sink"))
    {
        let sink = sink.downgrade();
        on_caps(&src, move |_, caps| {
            let input = sink.upgrade().and_then(|sink| sink.current_caps());
            let combined = input.and_then(|input| combine(caps, &input));
            let complete = caps::with_matrix(combined.as_deref().unwrap_or(caps));
            complete.or(combined)
        });
    }
}

/// Replaces caps that pass a pad.
fn on_caps(pad: &gst::Pad, change: impl Fn(&gst::Pad, &gst::CapsRef) -> Option<gst::Caps> + Send + Sync + 'static) {
    pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |pad, info| {
        if let Some(gst::PadProbeData::Event(event)) = &mut info.data
            && let gst::EventView::Caps(caps) = event.view()
            && let Some(changed) = change(pad, caps.caps())
        {
            *event = gst::event::Caps::builder(&changed).seqnum(event.seqnum()).build();
        }
        gst::PadProbeReturn::Ok
    });
}

fn field(caps: &gst::CapsRef, name: &str) -> Option<String> {
    caps.structure(0)?.get(name).ok()
}

fn colorimetry(caps: &gst::CapsRef, name: &str) -> Option<VideoColorimetry> {
    field(caps, name)?.parse().ok()
}

/// Moves the colorimetry of the container to a field that only this module reads, so that a parser reads that of the encoded video.
fn hide(caps: &gst::CapsRef) -> Option<gst::Caps> {
    let of_container = field(caps, COLORIMETRY).filter(|_| field(caps, OF_CONTAINER).is_none())?;
    let mut caps = caps.to_owned();
    let structure = caps.make_mut().structure_mut(0)?;
    structure.remove_field(COLORIMETRY);
    structure.set(OF_CONTAINER, of_container);
    Some(caps)
}

/// Returns the caps of decoded frames with the colorimetry of the container in `input`, and with the full range if one of them has it.
fn combine(decoded: &gst::CapsRef, input: &gst::CapsRef) -> Option<gst::Caps> {
    let of_container = colorimetry(input, OF_CONTAINER)?;
    let of_decoder = colorimetry(decoded, COLORIMETRY);
    let is_rgb = gst_video::VideoInfo::from_caps(decoded).is_ok_and(|info| info.format_info().is_rgb());
    if is_rgb || of_container.matrix() == VideoColorMatrix::Rgb {
        return None;
    }
    let is_full = of_decoder.as_ref().is_some_and(|colors| colors.range() == VideoColorRange::Range0_255);
    let range = if is_full { VideoColorRange::Range0_255 } else { of_container.range() };
    let matrix = match (of_container.matrix(), &of_decoder) {
        (VideoColorMatrix::Unknown, Some(of_decoder)) => of_decoder.matrix(),
        (matrix, _) => matrix,
    };
    let combined = VideoColorimetry::new(range, matrix, of_container.transfer(), of_container.primaries());
    let mut caps = decoded.to_owned();
    caps.make_mut().set(COLORIMETRY, combined.to_string());
    Some(caps)
}

/// Corrects the range that a demuxer of mp4 reports.
fn watch_demuxer(demuxer: &gst::Element) {
    let Some(sink) = demuxer.static_pad("sink") else { return };
    let (scan, is_full, has_pads) = (Mutex::new(Scan::default()), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (found, is_over) = (is_full.clone(), has_pads.clone());
    let kinds = gst::PadProbeType::BUFFER | gst::PadProbeType::PUSH | gst::PadProbeType::PULL;
    sink.add_probe(kinds, move |_, info| {
        // The demuxer adds its pads when it has read the index of the file.
        if is_over.load(Ordering::Relaxed) {
            return gst::PadProbeReturn::Remove;
        }
        if let Some(gst::PadProbeData::Buffer(buffer)) = &info.data
            && let Ok(bytes) = buffer.map_readable()
        {
            let mut scan = scan.lock().unwrap_or_else(PoisonError::into_inner);
            scan.read(&bytes);
            found.store(scan.n_full > 0 && scan.n_limited == 0, Ordering::Relaxed);
        }
        gst::PadProbeReturn::Ok
    });
    demuxer.connect_pad_added(move |_, pad| {
        has_pads.store(true, Ordering::Relaxed);
        let is_full = is_full.clone();
        on_caps(pad, move |_, caps| {
            let colors = colorimetry(caps, COLORIMETRY).filter(|_| is_full.load(Ordering::Relaxed))?;
            let full = VideoColorimetry::new(VideoColorRange::Range0_255, colors.matrix(), colors.transfer(), colors.primaries());
            let mut caps = caps.to_owned();
            caps.make_mut().set(COLORIMETRY, full.to_string());
            Some(caps)
        });
    });
}

/// Searches the bytes of an mp4 file for `colr` boxes of the type `nclx`, which have a range.
#[derive(Debug, Default)]
struct Scan {
    /// The last bytes of the data before.
    rest: Vec<u8>,
    n_full: u32,
    n_limited: u32,
}

impl Scan {
    /// Size, `colr`, `nclx`, three numbers of 16 bits, and the range.
    const BOX_BYTES: usize = 19;
    const BEGIN: [u8; 12] = *b"\0\0\0\x13colrnclx";

    fn read(&mut self, bytes: &[u8]) {
        let mut joined = std::mem::take(&mut self.rest);
        let n_rest = joined.len();
        joined.extend(&bytes[..bytes.len().min(Self::BOX_BYTES - 1)]);
        // A box that begins in the data before is only in `joined`; other boxes that are complete in it are counted below.
        for begin in 0..n_rest {
            joined.get(begin..begin + Self::BOX_BYTES).iter().for_each(|bytes| self.count(bytes));
        }
        let mut at = 0;
        while let Some(found) = bytes.get(at..).and_then(|bytes| bytes.windows(4).position(|window| window == b"colr")) {
            at += found + 4;
            let begin = at.checked_sub(8);
            begin.and_then(|begin| bytes.get(begin..begin + Self::BOX_BYTES)).iter().for_each(|bytes| self.count(bytes));
        }
        let all = if bytes.len() < Self::BOX_BYTES { &joined } else { bytes };
        self.rest = all[all.len().saturating_sub(Self::BOX_BYTES - 1)..].to_vec();
    }

    fn count(&mut self, bytes: &[u8]) {
        if bytes.starts_with(&Self::BEGIN) {
            let is_full = bytes[Self::BOX_BYTES - 1] & 0x80 != 0;
            *(if is_full { &mut self.n_full } else { &mut self.n_limited }) += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOX: &[u8] = b"\0\0\0\x13colrnclx\0\x01\0\x01\0\x01\x80";

    #[test]
    fn range_is_found_wherever_the_data_is_divided() {
        let file = [&b"moov"[..], BOX, b"colr and other data, colr"].concat();
        for n_bytes in 1..file.len() {
            let mut scan = Scan::default();
            file.chunks(n_bytes).for_each(|chunk| scan.read(chunk));
            assert_eq!((scan.n_full, scan.n_limited), (1, 0), "chunks of {n_bytes} bytes");
        }
        let mut scan = Scan::default();
        scan.read(&[BOX, b"\0\0\0\x13colrnclx\0\x01\0\x01\0\x01\0"].concat());
        assert_eq!((scan.n_full, scan.n_limited), (1, 1));
    }

    #[test]
    fn full_range_of_the_container_or_of_the_decoder_wins() {
        gst::init().unwrap();
        let raw = |colors: &str| {
            gst::Caps::builder("video/x-raw")
                .field("format", "I420")
                .field("width", 4)
                .field("height", 4)
                .field(COLORIMETRY, colors)
                .build()
        };
        let encoded = |colors: &str| gst::Caps::builder("video/x-h264").field(COLORIMETRY, colors).build();
        for (container, decoder, expected) in [
            ("bt709", "1:0:0:0", "1:3:5:1"),
            ("1:3:5:1", "2:0:0:0", "1:3:5:1"),
            ("bt709", "2:0:0:0", "bt709"),
            ("2:0:5:1", "bt601", "2:4:5:1"),
        ] {
            let hidden = hide(&encoded(container)).unwrap();
            assert_eq!((field(&hidden, COLORIMETRY), hide(&hidden)), (None, None));
            let combined = combine(&raw(decoder), &hidden).unwrap();
            assert_eq!(field(&combined, COLORIMETRY).as_deref(), Some(expected), "{container}, {decoder}");
        }
        assert_eq!(combine(&raw("1:0:0:0"), &encoded("bt709")), None, "no parser");
    }
}
