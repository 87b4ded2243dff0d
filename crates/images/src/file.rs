//! Reads an image file: complete, upright, converted to RGB, with limited size; or the numbers of a gray PNG image. Does not use GStreamer.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;

use image::codecs::png::PngDecoder;
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, RgbImage};

/// Extensions of image files.
pub const IMAGE_EXTENSIONS: [&str; 5] = ["png", "jpg", "jpeg", "bmp", "webp"];
/// Maximum number of pixels. The largest cameras have fewer. An RGBA image of this size with 16 bits per channel takes 1 GiB.
const PIXELS_MAX: u64 = 128 << 20;
/// Allocation limit for decoders.
const DECODER_BYTES_MAX: u64 = 1536 << 20;
/// Maximum size of an image file.
const FILE_BYTES_MAX: u64 = 512 << 20;
/// Number of bytes that are read to detect the format.
const MAGIC_BYTES: u64 = 32;

/// A decoded image, with an optional note for the user.
pub struct DecodedImage {
    pub pixels: RgbImage,
    pub note: Option<&'static str>,
}

/// Whether the file name has the extension of an image format.
pub fn has_image_extension(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    IMAGE_EXTENSIONS.contains(&&*ending)
}

/// Returns whether a file is an image. The content decides; if the content is unknown, the extension decides.
pub fn is_image(path: &Path) -> io::Result<bool> {
    let mut magic = Vec::new();
    File::open(path)?.take(MAGIC_BYTES).read_to_end(&mut magic)?;
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    // A motion JPEG stream is a video.
    let is_stream = matches!(&*ending, "mjpeg" | "mjpg" | "mjp");
    let is_video = magic.get(4..8) == Some(b"ftyp") || magic.starts_with(&[0x1a, 0x45, 0xdf, 0xa3]) || magic.get(8..12) == Some(b"AVI ");
    Ok(match format_of(&magic) {
        // The magic number of BMP has only two letters, so the header or the extension must also match.
        Some(ImageFormat::Bmp) => has_image_extension(path) || is_bitmap_header(&magic),
        Some(_) => !is_stream,
        None => has_image_extension(path) && !is_video,
    })
}

fn format_of(bytes: &[u8]) -> Option<ImageFormat> {
    let format = image::guess_format(bytes).ok()?;
    matches!(format, ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::Bmp | ImageFormat::WebP).then_some(format)
}

fn is_bitmap_header(magic: &[u8]) -> bool {
    magic
        .get(14..18)
        .is_some_and(|size| matches!(u32::from_le_bytes([size[0], size[1], size[2], size[3]]), 12 | 40 | 52 | 56 | 64 | 108 | 124))
}

/// Reads an image. Returns the reason as an error if the image cannot be read completely.
pub fn read(path: &Path) -> Result<DecodedImage, String> {
    let bytes = bytes_of(path)?;
    if let Some(reason) = is_cut(&bytes) {
        return Err(reason.to_owned());
    }
    let mut decoder = decoder_of(&bytes)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(|error| one_line(&error))?;
    image.apply_orientation(orientation);
    let note = is_animated(&bytes).then_some("the image is animated; only its first frame is analyzed");
    Ok(DecodedImage { pixels: image.into_rgb8(), note })
}

/// Reads the pixels of a gray PNG image of 8 or 16 bits, row by row. Returns the reason as an error if it is none of this size.
pub fn gray_png(bytes: &[u8], columns: u32, rows: u32) -> Result<Vec<u16>, String> {
    let decoder = PngDecoder::new(Cursor::new(bytes)).map_err(|error| one_line(&error))?;
    let (size, color) = (decoder.dimensions(), decoder.color_type());
    if size != (columns, rows) || !matches!(color, ColorType::L8 | ColorType::L16) {
        return Err(format!("got {}x{} pixels of the type {color:?}", size.0, size.1));
    }
    let mut values = vec![0; columns as usize * rows as usize * usize::from(color.bytes_per_pixel())];
    decoder.read_image(&mut values).map_err(|error| one_line(&error))?;
    Ok(match color {
        ColorType::L8 => values.into_iter().map(u16::from).collect(),
        _ => values.as_chunks().0.iter().copied().map(u16::from_ne_bytes).collect(),
    })
}

/// Width and height of the upright image, from its header.
pub fn size(path: &Path) -> Result<(u32, u32), String> {
    let bytes = bytes_of(path)?;
    let mut decoder = decoder_of(&bytes)?;
    let (width, height) = decoder.dimensions();
    let is_turned = matches!(
        decoder.orientation().unwrap_or(Orientation::NoTransforms),
        Orientation::Rotate90 | Orientation::Rotate270 | Orientation::Rotate90FlipH | Orientation::Rotate270FlipH
    );
    Ok(if is_turned { (height, width) } else { (width, height) })
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mut bytes = Vec::with_capacity(metadata.len().min(FILE_BYTES_MAX) as usize);
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match bytes.len() as u64 {
        0 => Err("the file is empty".to_owned()),
        n_bytes if n_bytes > FILE_BYTES_MAX => Err(format!("expected a file of at most {} MiB, got a larger one", FILE_BYTES_MAX >> 20)),
        _ => Ok(bytes),
    }
}

fn decoder_of(bytes: &[u8]) -> Result<impl ImageDecoder + '_, String> {
    let format = format_of(bytes).ok_or("expected PNG, JPEG, BMP or WebP, got another format")?;
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(DECODER_BYTES_MAX);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(|error| one_line(&error))?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > PIXELS_MAX {
        return Err(format!("expected at most {} million pixels, got {width}x{height}", PIXELS_MAX / 1_000_000));
    }
    Ok(decoder)
}

/// Formats the error of a decoder as one line.
fn one_line(error: &image::ImageError) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Formats a path as one line. Control characters are escaped as in Rust.
pub fn shown(path: &Path) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().collect::<String>() } else { c.to_string() };
    path.to_string_lossy().chars().map(escaped).collect()
}

/// Returns the reason if the file is incomplete. This check is needed because the decoders of some formats fill the missing part with
/// made-up pixels, without an error.
fn is_cut(bytes: &[u8]) -> Option<&'static str> {
    let is_whole = match format_of(bytes)? {
        ImageFormat::Jpeg => jpeg_ends(bytes),
        ImageFormat::Png => png_chunks(bytes).any(|chunk| chunk == *b"IEND"),
        ImageFormat::Bmp => bmp_ends(bytes),
        ImageFormat::WebP => {
            let size = bytes.get(4..8).map_or(0, |size| u32::from_le_bytes([size[0], size[1], size[2], size[3]]));
            bytes.len() as u64 >= u64::from(size) + 8
        }
        _ => true,
    };
    (!is_whole).then_some("the file is truncated: the end of the image is missing")
}

/// Whether a JPEG has its end marker after the scan data, not just in an embedded preview.
fn jpeg_ends(bytes: &[u8]) -> bool {
    let mut at = 2;
    let mut has_scan = false;
    while let Some(found) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == 0xff)) {
        at += found + 1;
        match bytes.get(at) {
            // Skip fill bytes and stuffed data bytes.
            Some(0xff) => {}
            Some(0x00 | 0x01 | 0xd0..=0xd8) => at += 1,
            Some(0xd9) if has_scan => return true,
            Some(marker) => {
                let Some(&[high, low]) = bytes.get(at + 1..at + 3) else { return false };
                at += 1 + usize::from(u16::from_be_bytes([high, low]));
                has_scan |= *marker == 0xda;
            }
            None => return false,
        }
    }
    false
}

/// Types of the complete chunks of a PNG.
fn png_chunks(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    let mut at = 8;
    std::iter::from_fn(move || {
        let &[a, b, c, d, ref kind @ ..] = bytes.get(at..at + 8)? else { return None };
        at += 12 + u32::from_be_bytes([a, b, c, d]) as usize;
        (at <= bytes.len()).then_some(kind.try_into().ok()).flatten()
    })
}

/// Whether an uncompressed bitmap has all its rows.
fn bmp_ends(bytes: &[u8]) -> bool {
    let number =
        |at: usize| bytes.get(at..at + 4).map(|number| i64::from(i32::from_le_bytes([number[0], number[1], number[2], number[3]])));
    let (Some(offset), Some(header), Some(width), Some(height)) = (number(10), number(14), number(18), number(22)) else { return false };
    let (Some(bits), Some(compression)) = (bytes.get(28..30), number(30)) else { return header < 40 };
    let bits = i64::from(u16::from_le_bytes([bits[0], bits[1]]));
    let row_bytes = (width.abs() * bits + 31) / 32 * 4;
    header < 40 || !matches!(compression, 0 | 3 | 6) || offset + row_bytes * height.abs() <= bytes.len() as i64
}

fn is_animated(bytes: &[u8]) -> bool {
    match format_of(bytes) {
        Some(ImageFormat::Png) => png_chunks(bytes).take_while(|chunk| chunk != b"IDAT").any(|chunk| chunk == *b"acTL"),
        Some(ImageFormat::WebP) => bytes.get(12..16) == Some(b"VP8X") && bytes.get(20).is_some_and(|flags| flags & 2 != 0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> RgbImage {
        RgbImage::from_fn(37, 23, |x, y| image::Rgb([(x * 7 % 256) as u8, (y * 11 % 256) as u8, ((x * y) % 256) as u8]))
    }

    #[test]
    fn gray_images_keep_their_numbers() {
        let encoded = |image: DynamicImage| {
            let mut bytes = Vec::new();
            image.write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png).unwrap();
            bytes
        };
        let values: Vec<u16> = (0..15).map(|n| n * 4000 + 7).collect();
        let deep = encoded(image::ImageBuffer::<image::Luma<u16>, _>::from_vec(5, 3, values.clone()).unwrap().into());
        assert_eq!(gray_png(&deep, 5, 3).unwrap(), values);
        let flat = encoded(image::GrayImage::from_vec(2, 1, vec![3, 255]).unwrap().into());
        assert_eq!(gray_png(&flat, 2, 1).unwrap(), [3, 255]);
        assert_eq!(gray_png(&flat, 1, 2).unwrap_err(), "got 2x1 pixels of the type L8");
        assert_eq!(gray_png(&encoded(image().into()), 37, 23).unwrap_err(), "got 37x23 pixels of the type Rgb8");
        assert!(gray_png(&deep[..deep.len() - 20], 5, 3).is_err() && gray_png(b"", 5, 3).is_err());
    }

    fn encoded(format: ImageFormat) -> Vec<u8> {
        let mut bytes = Vec::new();
        image().write_to(&mut Cursor::new(&mut bytes), format).unwrap();
        bytes
    }

    /// A temporary file that is removed when dropped.
    struct Kept(std::path::PathBuf);

    impl Kept {
        fn new(name: &str, bytes: &[u8]) -> Self {
            let path = std::env::temp_dir().join(format!("roiflow-image-{}-{name}", std::process::id()));
            std::fs::write(&path, bytes).unwrap();
            Self(path)
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            let _removed = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn truncated_image_is_an_error() {
        for format in [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::Bmp, ImageFormat::WebP] {
            let bytes = encoded(format);
            let whole = Kept::new(&format!("whole-{format:?}"), &bytes);
            assert_eq!(read(&whole.0).unwrap().pixels.dimensions(), (37, 23), "{format:?}");
            for n_bytes in 0..bytes.len() {
                let cut = Kept::new(&format!("cut-{format:?}"), &bytes[..n_bytes]);
                assert!(read(&cut.0).is_err(), "{format:?}: {n_bytes} of {} bytes", bytes.len());
            }
            let longer = Kept::new(&format!("longer-{format:?}"), &[&bytes[..], &[0; 100]].concat());
            read(&longer.0).unwrap_or_else(|error| panic!("{format:?} with trailing bytes: {error}"));
        }
    }

    #[test]
    fn end_of_preview_is_not_end_of_image() {
        let bytes = encoded(ImageFormat::Jpeg);
        // An APP1 segment with an embedded JPEG, as cameras write it.
        let length = (bytes.len() + 2) as u16;
        let with_preview = [&bytes[..2], &[0xff, 0xe1], &length.to_be_bytes(), &bytes, &bytes[2..]].concat();
        assert!(jpeg_ends(&with_preview));
        assert!(!jpeg_ends(&with_preview[..with_preview.len() - 40]));
    }

    #[test]
    fn exif_orientation_is_applied() {
        // Little-endian TIFF, one entry: orientation (0x0112), SHORT, 1 value.
        let exif = |orientation: u8| {
            let tiff =
                [b"Exif\0\0II*\0".as_slice(), &[8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, orientation, 0, 0, 0, 0, 0, 0, 0]].concat();
            [&[0xff, 0xe1], ((tiff.len() + 2) as u16).to_be_bytes().as_slice(), &tiff].concat()
        };
        let bytes = encoded(ImageFormat::Jpeg);
        let plain = read(&Kept::new("plain", &bytes).0).unwrap().pixels;
        for (orientation, size) in [(1, (37, 23)), (3, (37, 23)), (6, (23, 37)), (8, (23, 37))] {
            let file = Kept::new("exif", &[&bytes[..2], &exif(orientation), &bytes[2..]].concat());
            let turned = read(&file.0).unwrap().pixels;
            assert_eq!((turned.dimensions(), super::size(&file.0).unwrap()), (size, size), "{orientation}");
            let corner = match orientation {
                1 => (0, 0),
                3 => (36, 22),
                6 => (22, 0),
                _ => (0, 36),
            };
            assert_eq!(turned.get_pixel(corner.0, corner.1), plain.get_pixel(0, 0), "{orientation}");
        }
    }

    #[test]
    fn too_many_pixels_are_refused_before_decoding() {
        let mut bytes = encoded(ImageFormat::Png);
        bytes[16..24].copy_from_slice(&[0, 0, 0xff, 0, 0, 0, 0xff, 0]);
        // A valid checksum of the header, so that only the size is wrong.
        let crc = bytes[12..29].iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
        });
        bytes[29..33].copy_from_slice(&(!crc).to_be_bytes());
        let error = read(&Kept::new("bomb", &bytes).0).err().unwrap();
        assert!(error.contains("million pixels") && error.contains("65280x65280"), "{error}");
    }

    #[test]
    fn content_decides_whether_a_file_is_an_image() {
        let (png, jpeg) = (encoded(ImageFormat::Png), encoded(ImageFormat::Jpeg));
        for (name, bytes, expected) in [
            ("a.dat", &*png, true),
            ("b", &jpeg, true),
            ("c.mjpeg", &jpeg, false),
            ("d.mp4", b"\0\0\0\x20ftypisom\0\0\0\0", false),
            ("e.jpg", b"\0\0\0\x20ftypisom\0\0\0\0", false),
            ("f.JPG", b"", true),
            ("g.mp4", b"BM is how this text begins, and no bitmap", false),
            ("h.txt", b"text", false),
        ] {
            assert_eq!(is_image(&Kept::new(name, bytes).0).unwrap(), expected, "{name}");
        }
    }
}
