//! Recognizes MJPEG by HTTP that `multipartdemux` cannot read.
//!
//! This demuxer expects that the data begins with a boundary, and that each part has a `Content-Type` for which there is a decoder. Some cameras
//! send text before the first boundary, parts without headers, or the type `image/jpg`. A parser of JPEG reads all of these, because it skips
//! everything between two images.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use gst::prelude::*;
use gstreamer as gst;

use super::{consume, lock};

/// Makes `decodebin` search for images in the data of a pad if its HTTP response has parts that the demuxer cannot read.
pub(super) fn search_images(pad: &gst::Pad) {
    let (has_parts, segment) = (AtomicBool::new(false), Mutex::new(None));
    pad.add_probe(gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM, move |pad, info| match &info.data {
        Some(gst::PadProbeData::Event(event)) => {
            if event.structure().is_some_and(is_multipart) {
                has_parts.store(true, Ordering::Relaxed);
            }
            // Caps must precede the segment, but only the first data shows which caps there are.
            if !has_parts.load(Ordering::Relaxed) || event.type_() != gst::EventType::Segment {
                return gst::PadProbeReturn::Ok;
            }
            *lock(&segment) = Some(event.clone());
            consume(info)
        }
        Some(gst::PadProbeData::Buffer(buffer)) => {
            // The pad itself has stored the segment already.
            if let (Some(segment), Some(peer)) = (lock(&segment).take(), pad.peer()) {
                if buffer.map_readable().is_ok_and(|bytes| must_be_searched(&bytes)) {
                    // With caps, `decodebin` does not look for the type itself.
                    peer.send_event(gst::event::Caps::new(&gst::Caps::new_empty_simple("image/jpeg")));
                }
                peer.send_event(segment);
            }
            gst::PadProbeReturn::Remove
        }
        _ => gst::PadProbeReturn::Ok,
    });
}

/// Whether the event of an HTTP source tells of a response in parts.
fn is_multipart(structure: &gst::StructureRef) -> bool {
    let Ok(headers) = structure.get::<gst::Structure>("response-headers") else { return false };
    let is_type = |name: &gst::glib::GStr| name.eq_ignore_ascii_case("content-type");
    let kind = headers.fields().find(|name| is_type(name)).and_then(|name| headers.get::<String>(name).ok());
    structure.name() == "http-headers" && kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("multipart/"))
}

/// Whether `multipartdemux` cannot read data that begins with these bytes. False if they do not suffice to know.
fn must_be_searched(bytes: &[u8]) -> bool {
    let bytes = bytes.trim_ascii_start();
    if !bytes.starts_with(b"--") {
        return !b"--".starts_with(bytes);
    }
    let mut lines = bytes.split_inclusive(|&byte| byte == b'\n').map(|line| (line.ends_with(b"\n"), line.trim_ascii()));
    let headers = lines.by_ref().skip(1).take_while(|(is_whole, line)| *is_whole && !line.is_empty());
    let kind = headers.map(|(_, line)| String::from_utf8_lossy(line).to_ascii_lowercase()).find(|line| line.starts_with("content-type:"));
    match kind {
        // The demuxer expects one space.
        Some(kind) if !kind["content-type:".len()..].starts_with(' ') || kind["content-type: ".len()..].starts_with(' ') => true,
        Some(kind) => ["image/jpg", "image/pjpeg"].contains(&kind["content-type:".len()..].split(';').next().unwrap_or_default().trim()),
        // Without an empty line, the type may follow in the next bytes.
        None => [&b"\n\n"[..], b"\n\r\n"].iter().any(|end| bytes.windows(end.len()).any(|window| window == *end)),
    }
}

#[cfg(test)]
mod tests {
    use super::must_be_searched;

    #[test]
    fn only_parts_that_the_demuxer_cannot_read_are_searched() {
        for start in [
            "--b\r\n\r\n\u{1}",
            "--b\n\nx",
            "--b\r\nContent-Length: 5\r\n\r\nabcde",
            "--b\r\ncontent-type: IMAGE/JPG\r\nContent-Length: 5",
            "--b\r\nContent-Type:image/jpeg\r\n\r\n",
            "--b\r\nContent-Type:  image/jpeg\r\n\r\n",
            "\r\n--b\r\nContent-Type: image/pjpeg; a=b\r\n\r\n",
            "This is a message with parts.\r\n--b\r\n",
        ] {
            assert!(must_be_searched(start.as_bytes()), "{start}");
        }
        for start in [
            "",
            "\r\n",
            "-",
            "--b",
            "--b\r\n",
            "--b\r\nContent-Length: 5\r\n",
            "--b\r\nContent-Le",
            "--b\r\nContent-Type: image/jpeg\r\n\r\n",
            "\r\n--b\nX: y\nContent-type: text/plain\n\nhello",
        ] {
            assert!(!must_be_searched(start.as_bytes()), "{start}");
        }
    }
}
