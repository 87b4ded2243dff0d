//! Reads the size of JPEG images from their headers, before a decoder reads them.

/// Reads data that arrives in pieces of any size. The data may be several images.
#[derive(Debug, Default)]
pub(super) struct Header {
    expects: Expects,
    /// Largest number of pixels that a header declares.
    n_pixels: Option<u64>,
}

#[derive(Debug, Default, Clone, Copy)]
enum Expects {
    /// The first byte of the marker that begins an image. Pixels precede it.
    #[default]
    Image,
    /// The code of a marker. `is_inside`: the image has begun.
    Code { is_inside: bool },
    /// The first byte of a marker.
    Marker,
    /// The length of a segment, and the size of the image if it is a frame header. `n_read` bytes are in `bytes`.
    Fields { is_frame: bool, n_read: u8, bytes: [u8; 7] },
    /// This number of bytes that have no meaning here.
    Content(u16),
}

impl Header {
    /// Takes the next bytes. Returns the largest number of pixels that a header declares; `None` before the first header.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Option<u64> {
        while let Some((&byte, rest)) = bytes.split_first() {
            let mut skipped = 0;
            self.expects = match self.expects {
                Expects::Image if byte == 0xff => Expects::Code { is_inside: false },
                Expects::Image => {
                    skipped = rest.iter().position(|&byte| byte == 0xff).unwrap_or(rest.len());
                    Expects::Image
                }
                Expects::Code { is_inside } => match byte {
                    0xff => Expects::Code { is_inside },
                    0xd8 => Expects::Marker,
                    // The pixels begin, or the image ends.
                    0xda | 0xd9 => Expects::Image,
                    _ if !is_inside => Expects::Image,
                    // Markers without a segment.
                    0x01 | 0xd0..=0xd7 => Expects::Marker,
                    // Frame headers, as opposed to tables (C4, CC) and extensions (C8).
                    0xc0..=0xcf => Expects::Fields { is_frame: ![0xc4, 0xc8, 0xcc].contains(&byte), n_read: 0, bytes: [0; 7] },
                    _ => Expects::Fields { is_frame: false, n_read: 0, bytes: [0; 7] },
                },
                // Decoders skip bytes until the next marker.
                Expects::Marker | Expects::Content(0) if byte == 0xff => Expects::Code { is_inside: true },
                Expects::Marker | Expects::Content(0) => Expects::Marker,
                Expects::Fields { is_frame, n_read, bytes: mut fields } => {
                    fields[usize::from(n_read)] = byte;
                    let n_read = n_read + 1;
                    let number = |at: usize| u16::from_be_bytes([fields[at], fields[at + 1]]);
                    if n_read < if is_frame { 7 } else { 2 } {
                        Expects::Fields { is_frame, n_read, bytes: fields }
                    } else {
                        if is_frame {
                            self.n_pixels = self.n_pixels.max(Some(u64::from(number(3)) * u64::from(number(5))));
                        }
                        Expects::Content(number(0).saturating_sub(n_read.into()))
                    }
                }
                Expects::Content(n_left) => {
                    skipped = rest.len().min(usize::from(n_left) - 1);
                    Expects::Content(n_left - 1 - skipped as u16)
                }
            };
            bytes = &rest[skipped..];
        }
        self.n_pixels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 65_500 * 65_500;
    const COMMENT: [u8; 6] = [0xff, 0xfe, 0, 4, 1, 2];
    const FRAME: [u8; 13] = [0xff, 0xc2, 0, 11, 8, 0xff, 0xdc, 0xff, 0xdc, 1, 0, 0, 0];

    fn image(parts: &[&[u8]]) -> Vec<u8> {
        [&[0xff, 0xd8][..], &parts.concat()].concat()
    }

    #[test]
    fn size_is_read_from_any_header_in_any_pieces() {
        let large = [&[0xff, 0xe5, 0xff, 0xff][..], &[0xff; 65_533]].concat();
        let thumbnail = [0xff, 0xe1, 0, 10, 0xff, 0xd8, 0xff, 0xc0, 0, 11, 8, 0];
        let small =
            image(&[&[0xff, 0xc0, 0, 11, 8, 0, 16, 0, 16, 1, 0, 0, 0], &[0xff, 0xda, 0, 2, 1, 0xff, 0, 7, 0xff, 0xd0, 9, 0xff, 0xd9]]);
        for (what, bytes) in [
            ("a comment", image(&[&COMMENT, &FRAME])),
            ("fill bytes", image(&[&COMMENT, &[0xff; 9], &FRAME])),
            ("a large segment", image(&[&large, &large, &large, &FRAME])),
            ("a thumbnail", image(&[&thumbnail, &FRAME])),
            ("bytes between markers", image(&[&COMMENT, &[1, 2, 3], &FRAME])),
            ("an earlier image", [small, image(&[&FRAME])].concat()),
        ] {
            assert_eq!(Header::default().read(&bytes), Some(SIZE), "{what}");
            for n_bytes in [1, 2, 3, 7, 4096] {
                let mut header = Header::default();
                assert_eq!(bytes.chunks(n_bytes).filter_map(|piece| header.read(piece)).last(), Some(SIZE), "{what} {n_bytes}");
            }
        }
    }

    #[test]
    fn other_data_has_no_size() {
        for other in [&b""[..], b"\x89PNG", &image(&[&COMMENT, &FRAME])[..12], &[0xff, 0xd8, 0xff, 0xfe, 0xff, 0xff], &FRAME] {
            assert_eq!(Header::default().read(other), None);
        }
    }
}
