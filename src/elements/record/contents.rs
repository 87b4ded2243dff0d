//! Reads how much video an MP4 file has: a complete file, or fragments of which the last may be incomplete. The file has one track.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

/// Maximum number of frames of a file with fragments, which is ten hours of video. Damaged files declare more.
const MAX_FRAMES: u64 = 1 << 20;
/// Maximum size of the boxes that describe a file or a fragment.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of boxes within each other. The time of frames is in the sixth one.
const MAX_DEPTH: usize = 8;

/// The video of a file, as players show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) n_frames: u64,
    pub(super) duration_ns: u64,
}

/// The values that the boxes of a file declare. Durations are in units of `timescale`.
#[derive(Default)]
struct Track {
    timescale: u32,
    n_frames: u64,
    duration: u64,
    /// Duration and size of a frame that declares none.
    default: (u32, u32),
    /// Size of the file, and position of the data of the current fragment.
    n_bytes: u64,
    data: u64,
}

impl Contents {
    /// Returns the video of a file; `None` if no frame can be played.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let mut track = Track::default();
        let _end = track.read(path);
        let duration_ns = (u128::from(track.duration) * 1_000_000_000).checked_div(u128::from(track.timescale))?;
        (track.n_frames > 0).then_some(Self { n_frames: track.n_frames, duration_ns: u64::try_from(duration_ns).ok()? })
    }
}

impl Track {
    /// Reads all boxes. Returns `None` at the end of the file.
    fn read(&mut self, path: &Path) -> Option<()> {
        let file = File::open(path).ok()?;
        self.n_bytes = file.metadata().ok()?.len();
        let mut file = BufReader::new(file);
        loop {
            let begin = file.stream_position().ok()?;
            let (mut header, mut large) = ([0; 8], [0; 8]);
            file.read_exact(&mut header).ok()?;
            let [a, b, c, d, kind @ ..] = header;
            let size = match u32::from_be_bytes([a, b, c, d]) {
                1 => {
                    file.read_exact(&mut large).ok()?;
                    u64::from_be_bytes(large).checked_sub(16)?
                }
                size => u64::from(size).checked_sub(8)?,
            };
            if matches!(&kind, b"moov" | b"moof") {
                if size > MAX_BYTES {
                    return None;
                }
                let mut bytes = Vec::new();
                let n_read = file.by_ref().take(size).read_to_end(&mut bytes).ok()?;
                if n_read as u64 != size {
                    return None;
                }
                self.data = begin;
                self.visit(&kind, &bytes, 0)?;
            } else {
                file.seek_relative(i64::try_from(size).ok()?).ok()?;
            }
        }
    }

    /// Reads a box, and the boxes within it. Returns `None` if it is damaged.
    fn visit(&mut self, kind: &[u8], bytes: &[u8], depth: usize) -> Option<()> {
        // The flags of a box declare which fields are present.
        let flags = number(bytes, 0).unwrap_or(0);
        let has = |flag: u32| flags & flag != 0;
        match kind {
            b"moov" | b"trak" | b"mdia" | b"minf" | b"stbl" | b"mvex" | b"moof" | b"traf" if depth < MAX_DEPTH => {
                let mut rest = bytes;
                while let (Some(size), Some(kind)) = (number(rest, 0), rest.get(4..8)) {
                    self.visit(kind, rest.get(8..size as usize)?, depth + 1)?;
                    rest = &rest[size as usize..];
                }
            }
            b"mdhd" => self.timescale = number(bytes, if bytes.first() == Some(&1) { 20 } else { 12 })?,
            b"stts" if number(bytes, 4)? > 0 => {
                // The last index of a file has all its frames.
                (self.n_frames, self.duration) = (0, 0);
                for entry in bytes.get(8..)?.chunks_exact(8).take(number(bytes, 4)? as usize) {
                    let n = u64::from(number(entry, 0)?);
                    self.n_frames = self.n_frames.saturating_add(n);
                    self.duration = self.duration.saturating_add(n * u64::from(number(entry, 4)?));
                }
            }
            b"trex" => self.default = (number(bytes, 12)?, number(bytes, 16)?),
            b"tfhd" => {
                let mut at = 8;
                if has(0x1) {
                    self.data = (u64::from(number(bytes, 8)?) << 32) | u64::from(number(bytes, 12)?);
                    at += 8;
                }
                if has(0x2) {
                    at += 4;
                }
                if has(0x8) {
                    self.default.0 = number(bytes, at)?;
                    at += 4;
                }
                if has(0x10) {
                    self.default.1 = number(bytes, at)?;
                }
            }
            b"trun" => {
                let mut end = if has(0x1) { self.data.saturating_add_signed(i64::from(number(bytes, 8)? as i32)) } else { self.data };
                let mut at = 8 + 4 * [0x1, 0x4].iter().filter(|flag| has(**flag)).count();
                for _ in 0..number(bytes, 4)? {
                    let mut next = |flag| {
                        let value = if has(flag) { Some(number(bytes, at)?) } else { None };
                        at += if has(flag) { 4 } else { 0 };
                        Some(value)
                    };
                    let (duration, size) = (next(0x100)?, next(0x200)?);
                    let _unused = (next(0x400)?, next(0x800)?);
                    end = end.saturating_add(u64::from(size.unwrap_or(self.default.1)));
                    // The data of the last frames may be missing.
                    if end > self.n_bytes || self.n_frames >= MAX_FRAMES {
                        break;
                    }
                    self.n_frames += 1;
                    self.duration = self.duration.saturating_add(u64::from(duration.unwrap_or(self.default.0)));
                }
            }
            _ => {}
        }
        Some(())
    }
}

/// The number at an offset.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use gst::prelude::*;
    use gstreamer as gst;

    use super::*;

    /// Writes 20 frames of 40 ms.
    fn write(path: &Path, muxer: &str) -> Vec<u8> {
        gst::init().unwrap();
        let line = format!(
            "videotestsrc num-buffers=20 ! video/x-raw,width=64,height=48,framerate=25/1 ! x264enc tune=zerolatency key-int-max=5 \
             ! {muxer} ! filesink location=\"{}\"",
            path.display()
        );
        let pipeline = gst::parse::launch(&line).unwrap();
        pipeline.set_state(gst::State::Playing).unwrap();
        let ended = pipeline.bus().unwrap().timed_pop_filtered(None, &[gst::MessageType::Eos, gst::MessageType::Error]).unwrap();
        assert_eq!(ended.type_(), gst::MessageType::Eos);
        pipeline.set_state(gst::State::Null).unwrap();
        std::fs::read(path).unwrap()
    }

    /// Files of 1 MB that are made to cost much more time or memory than they have bytes.
    #[test]
    fn hostile_files_cost_little() {
        let path = std::env::temp_dir().join(format!("roiflow-hostile-{}.mp4", std::process::id()));
        let of = |kind: &[u8; 4], content: &[u8]| [&(content.len() as u32 + 8).to_be_bytes()[..], kind, content].concat();
        let n_deep: u32 = 120_000;
        let deep: Vec<u8> = (1..=n_deep).rev().flat_map(|n| (n * 8).to_be_bytes().into_iter().chain(*b"moov")).collect();
        let run = of(b"trun", &[[0; 4], u32::MAX.to_be_bytes()].concat());
        let many = of(b"moof", &of(b"traf", &run.repeat(50_000)));
        let mut large = of(b"moov", &[]);
        large[..4].copy_from_slice(&u32::MAX.to_be_bytes());
        let times = of(b"stts", &[&[0; 4][..], &100_u32.to_be_bytes(), &[255; 800]].concat());
        for (name, bytes) in [("deep", deep), ("many", many), ("large", large), ("times", of(b"moov", &times))] {
            std::fs::write(&path, bytes).unwrap();
            let begin = std::time::Instant::now();
            let _any = Contents::of(&path);
            assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{name}: {:?}", begin.elapsed());
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn complete_and_incomplete_files_have_the_frames_that_were_written() {
        let path = std::env::temp_dir().join(format!("roiflow-contents-{}.mp4", std::process::id()));
        let fragments = "mp4mux fragment-duration=200";
        for muxer in ["mp4mux", fragments, &format!("{fragments} fragment-mode=first-moov-then-finalise")] {
            let bytes = write(&path, muxer);
            assert_eq!(Contents::of(&path), Some(Contents { n_frames: 20, duration_ns: 800_000_000 }), "{muxer}");
            let mut last = 0;
            let mut seen = std::collections::BTreeSet::new();
            for end in (0..bytes.len()).step_by(13) {
                std::fs::write(&path, &bytes[..end]).unwrap();
                let contents = Contents::of(&path);
                let n_frames = contents.map_or(0, |contents| contents.n_frames);
                assert_eq!(contents.map_or(0, |contents| contents.duration_ns), n_frames * 40_000_000);
                assert!(n_frames >= last);
                last = n_frames;
                seen.insert(n_frames);
            }
            // Only fragments can be played before the file is complete.
            assert_eq!(seen.len() > 15, muxer == fragments, "{muxer}: {seen:?}");
            for at in (0..bytes.len()).step_by(3) {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0xff;
                std::fs::write(&path, &damaged).unwrap();
                let _any = Contents::of(&path);
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}
