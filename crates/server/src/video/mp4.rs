//! Writes fragmented MP4 files with one H.264 track: a header, then one fragment per frame (ISO/IEC 14496-12).
//!
//! All times are in microseconds.

use bytes::Bytes;

/// Units of time per second.
const TIMESCALE: u32 = 1_000_000;
/// Number of the only track.
const TRACK: u32 = 1;
/// Flags of a frame that needs no other frame, and of one that needs others.
const IS_KEY: u32 = 0x0200_0000;
const NEEDS_OTHERS: u32 = 0x0101_0000;

/// Bytes of a file that is being written.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u16(&mut self, number: u16) -> &mut Self {
        self.bytes(&number.to_be_bytes())
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_be_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn zeros(&mut self, n_bytes: usize) -> &mut Self {
        self.0.resize(self.0.len() + n_bytes, 0);
        self
    }

    /// Writes a box: its length, its kind and its content.
    fn boxed(&mut self, kind: &[u8; 4], write: impl FnOnce(&mut Self)) -> &mut Self {
        let begin = self.0.len();
        self.u32(0).bytes(kind);
        write(self);
        let length = (self.0.len() - begin) as u32;
        self.0[begin..begin + 4].copy_from_slice(&length.to_be_bytes());
        self
    }

    /// Writes a box that has a version and flags.
    fn full(&mut self, kind: &[u8; 4], version: u8, flags: u32, write: impl FnOnce(&mut Self)) -> &mut Self {
        self.boxed(kind, |file| {
            file.u32(u32::from(version) << 24 | flags);
            write(file);
        })
    }

    /// Writes the matrix of a transform that changes nothing.
    fn identity(&mut self) -> &mut Self {
        for number in [0x1_0000, 0, 0, 0, 0x1_0000, 0, 0, 0, 0x4000_0000] {
            self.u32(number);
        }
        self
    }
}

/// Returns the beginning of a file. `config` is the configuration record of the codec.
pub(super) fn header(config: &[u8], width: u16, height: u16) -> Bytes {
    let mut file = Writer::default();
    file.boxed(b"ftyp", |file| {
        file.bytes(b"iso6").u32(0).bytes(b"iso6isomavc1mp41");
    });
    file.boxed(b"moov", |file| {
        file.full(b"mvhd", 0, 0, |file| {
            // Rate 1 and volume 1. The duration is unknown.
            file.zeros(8).u32(TIMESCALE).u32(0).u32(0x1_0000).u16(0x100).zeros(10).identity().zeros(24).u32(TRACK + 1);
        });
        file.boxed(b"trak", |file| track(file, config, width, height));
        file.boxed(b"mvex", |file| {
            file.full(b"trex", 0, 0, |file| {
                file.u32(TRACK).u32(1).zeros(12);
            });
        });
    });
    file.0.into()
}

fn track(file: &mut Writer, config: &[u8], width: u16, height: u16) {
    // The track is enabled and part of the film.
    file.full(b"tkhd", 0, 3, |file| {
        file.zeros(8).u32(TRACK).zeros(24).identity().u32(u32::from(width) << 16).u32(u32::from(height) << 16);
    });
    file.boxed(b"mdia", |file| {
        file.full(b"mdhd", 0, 0, |file| {
            // No language.
            file.zeros(8).u32(TIMESCALE).u32(0).u16(0x55c4).u16(0);
        });
        file.full(b"hdlr", 0, 0, |file| {
            file.u32(0).bytes(b"vide").zeros(12).bytes(b"video\0");
        });
        file.boxed(b"minf", |file| {
            file.full(b"vmhd", 0, 1, |file| {
                file.zeros(8);
            });
            file.boxed(b"dinf", |file| {
                file.full(b"dref", 0, 0, |file| {
                    // The frames are in this file.
                    file.u32(1).full(b"url ", 0, 1, |_| {});
                });
            });
            file.boxed(b"stbl", |file| {
                file.full(b"stsd", 0, 0, |file| {
                    file.u32(1).boxed(b"avc1", |file| sample_entry(file, config, width, height));
                });
                // Without fragments, the track has no frames.
                for kind in [b"stts", b"stsc", b"stco"] {
                    file.full(kind, 0, 0, |file| {
                        file.u32(0);
                    });
                }
                file.full(b"stsz", 0, 0, |file| {
                    file.zeros(8);
                });
            });
        });
    });
}

fn sample_entry(file: &mut Writer, config: &[u8], width: u16, height: u16) {
    // The first source of data; 72 dots per inch; one frame per sample.
    file.zeros(6).u16(1).zeros(16).u16(width).u16(height).u32(0x48_0000).u32(0x48_0000).u32(0).u16(1).zeros(32);
    // A depth of 24 bits; no palette.
    file.u16(0x18).u16(0xffff).boxed(b"avcC", |file| {
        file.bytes(config);
    });
}

/// A frame of a file.
pub(super) struct Frame<'a> {
    /// H.264 with lengths.
    pub(super) bytes: &'a [u8],
    /// When it is decoded.
    pub(super) time: u64,
    /// Time until the next frame is decoded.
    pub(super) duration: u32,
    /// Time from decoding to display.
    pub(super) delay: i32,
    pub(super) is_key: bool,
}

/// Returns a fragment with one frame. `number` counts the fragments of a file.
pub(super) fn fragment(number: u32, frame: &Frame<'_>) -> Bytes {
    let mut file = Writer(Vec::with_capacity(frame.bytes.len() + 128));
    let mut offset_at = 0;
    file.boxed(b"moof", |file| {
        file.full(b"mfhd", 0, 0, |file| {
            file.u32(number);
        });
        file.boxed(b"traf", |file| {
            // The data offset counts from the beginning of this fragment.
            file.full(b"tfhd", 0, 0x2_0000, |file| {
                file.u32(TRACK);
            });
            file.full(b"tfdt", 1, 0, |file| {
                file.bytes(&frame.time.to_be_bytes());
            });
            // The fields that follow: the data offset; duration, size, flags and delay of each frame.
            file.full(b"trun", 1, 0xf01, |file| {
                file.u32(1);
                offset_at = file.0.len();
                file.u32(0).u32(frame.duration).u32(frame.bytes.len() as u32);
                file.u32(if frame.is_key { IS_KEY } else { NEEDS_OTHERS }).bytes(&frame.delay.to_be_bytes());
            });
        });
    });
    let offset = (file.0.len() + 8) as u32;
    file.0[offset_at..offset_at + 4].copy_from_slice(&offset.to_be_bytes());
    file.boxed(b"mdat", |file| {
        file.bytes(frame.bytes);
    });
    file.0.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns kind and content of the boxes.
    fn boxes(mut bytes: &[u8]) -> Vec<(String, &[u8])> {
        let mut all = Vec::new();
        while let Some((length, _)) = bytes.split_first_chunk::<4>() {
            let (first, rest) = bytes.split_at(u32::from_be_bytes(*length) as usize);
            all.push((String::from_utf8(first[4..8].to_vec()).unwrap(), &first[8..]));
            bytes = rest;
        }
        all
    }

    fn kinds(bytes: &[u8]) -> Vec<String> {
        boxes(bytes).into_iter().map(|(kind, _)| kind).collect()
    }

    #[test]
    fn header_has_the_boxes_of_a_track_without_frames() {
        let file = header(&[1, 66, 0, 31], 640, 480);
        assert_eq!(kinds(&file), ["ftyp", "moov"]);
        let film = boxes(&file)[1].1;
        assert_eq!(kinds(film), ["mvhd", "trak", "mvex"]);
        assert_eq!(kinds(boxes(film)[1].1), ["tkhd", "mdia"]);
        assert_eq!((boxes(film)[0].1.len(), boxes(boxes(film)[1].1)[0].1.len()), (100, 84), "sizes in the standard");
        let media = boxes(boxes(film)[1].1)[1].1;
        let tables = boxes(boxes(media)[2].1)[2].1;
        assert_eq!(kinds(tables), ["stsd", "stts", "stsc", "stco", "stsz"]);
        let entry = boxes(&boxes(tables)[0].1[8..])[0].1;
        assert_eq!((&entry[24..28], kinds(&entry[78..])), (&[2, 128, 1, 224][..], vec!["avcC".to_owned()]));
    }

    #[test]
    fn data_offset_of_a_fragment_is_where_the_frame_begins() {
        let frame = Frame { bytes: &[7, 8, 9], time: 5, duration: 33_000, delay: -2, is_key: true };
        let file = fragment(4, &frame);
        assert_eq!(kinds(&file), ["moof", "mdat"]);
        let run = boxes(boxes(boxes(&file)[0].1)[1].1)[2].1;
        let number = |at: usize| u32::from_be_bytes(run[at..at + 4].try_into().unwrap());
        assert_eq!(&file[number(8) as usize..], [7, 8, 9]);
        assert_eq!((number(12), number(16), number(20), number(24) as i32), (33_000, 3, IS_KEY, -2));
    }
}
