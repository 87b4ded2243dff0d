//! Cells of masks and maps as PNG images in base64: gray, one pixel per cell.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Returns the image of cells of 8 or 16 bits, which are given as bytes in big-endian order. `None` if there are no cells.
fn encoded(columns: usize, bytes: &[u8], depth: png::BitDepth) -> Option<String> {
    let n_row_bytes = columns * if depth == png::BitDepth::Sixteen { 2 } else { 1 };
    let (width, height) = (u32::try_from(columns).ok()?, u32::try_from(bytes.len().checked_div(n_row_bytes)?).ok()?);
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(depth);
    encoder.set_compression(png::Compression::Fast);
    encoder.write_header().and_then(|mut writer| writer.write_image_data(bytes)).ok()?;
    Some(STANDARD.encode(file))
}

/// Returns the image of cells of 8 bits. `None` if there are no cells.
pub(super) fn of_bytes(columns: usize, cells: &[u8]) -> Option<String> {
    encoded(columns, cells, png::BitDepth::Eight)
}

/// A map of numbers as an image of 16 bits: pixel 0 is a cell without a finite number. The other pixels p represent
/// `min + (p - 1) / 65534 * (max - min)`.
pub(super) struct Numbers {
    pub(super) image: String,
    pub(super) min: f32,
    pub(super) max: f32,
}

/// Largest difference of two pixels that represent numbers.
const STEPS: f64 = 65_534.0;

/// Returns the image of numbers. `None` if there are no cells.
pub(super) fn of_numbers(columns: usize, cells: &[f32]) -> Option<Numbers> {
    let finite = || cells.iter().copied().filter(|cell| cell.is_finite());
    let (min, max) = (finite().reduce(f32::min).unwrap_or(0.0), finite().reduce(f32::max).unwrap_or(0.0));
    let range = f64::from(max) - f64::from(min);
    let pixel = |cell: &f32| {
        let step = if range > 0.0 { (f64::from(*cell) - f64::from(min)) / range * STEPS } else { 0.0 };
        if cell.is_finite() { 1 + step.round() as u16 } else { 0 }
    };
    let bytes: Vec<u8> = cells.iter().flat_map(|cell| pixel(cell).to_be_bytes()).collect();
    Some(Numbers { image: encoded(columns, &bytes, png::BitDepth::Sixteen)?, min, max })
}

/// Reads the pixels of an image with these columns and rows. `None` for other images.
fn decoded(text: &str, columns: usize, rows: usize, depth: png::BitDepth) -> Option<Vec<u8>> {
    let file = STANDARD.decode(text).ok()?;
    let mut reader = png::Decoder::new(Cursor::new(file)).read_info().ok()?;
    let is_expected = |info: &png::Info<'_>| {
        (info.width as usize, info.height as usize) == (columns, rows)
            && (info.color_type, info.bit_depth) == (png::ColorType::Grayscale, depth)
    };
    if !is_expected(reader.info()) {
        return None;
    }
    let mut bytes = vec![0; reader.output_buffer_size()?];
    reader.next_frame(&mut bytes).ok()?;
    Some(bytes)
}

/// Reads cells of 8 bits. `None` if the text is not an image with these columns and rows.
pub(super) fn bytes(text: &str, columns: usize, rows: usize) -> Option<Vec<u8>> {
    decoded(text, columns, rows, png::BitDepth::Eight)
}

/// Reads a map of numbers. `None` if the text is not an image with these columns and rows.
pub(super) fn numbers(text: &str, min: f32, max: f32, columns: usize, rows: usize) -> Option<Vec<f32>> {
    let bytes = decoded(text, columns, rows, png::BitDepth::Sixteen)?;
    let range = f64::from(max) - f64::from(min);
    let number = |pixel: u16| match pixel.checked_sub(1) {
        Some(step) => (f64::from(min) + f64::from(step) / STEPS * range) as f32,
        None => f32::NAN,
    };
    Some(bytes.as_chunks().0.iter().map(|pair| number(u16::from_be_bytes(*pair))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_the_cells() {
        let cells: Vec<u8> = (0..12).map(|cell| cell * 20).collect();
        let image = of_bytes(4, &cells).unwrap();
        assert_eq!(bytes(&image, 4, 3).as_deref(), Some(&*cells));
        assert_eq!((bytes(&image, 3, 4), bytes("no image", 4, 3), bytes("", 4, 3)), (None, None, None));
        assert_eq!((of_bytes(0, &[]), of_bytes(4, &[])), (None, None));
        let file = STANDARD.decode(&image).unwrap();
        assert!((1..file.len() / 2).all(|end| bytes(&STANDARD.encode(&file[..end]), 4, 3).is_none()), "damaged images");
    }

    #[test]
    fn numbers_have_an_error_below_a_60000th_of_their_range() {
        let cells = [1.5_f32, -2.0, f32::NAN, 7.25, 7.0, f32::INFINITY];
        let Numbers { image, min, max } = of_numbers(3, &cells).unwrap();
        assert_eq!((min, max), (-2.0, 7.25));
        let read = numbers(&image, min, max, 3, 2).unwrap();
        for (read, cell) in read.iter().zip(cells) {
            assert!(if cell.is_finite() { (read - cell).abs() < 9.25 / 60_000.0 } else { read.is_nan() }, "{read} {cell}");
        }
        assert_eq!((read[1], read[3]), (-2.0, 7.25), "the limits are exact");
        let Numbers { image, min, max } = of_numbers(2, &[3.0; 4]).unwrap();
        assert_eq!(numbers(&image, min, max, 2, 2).as_deref(), Some(&[3.0; 4][..]));
        let Numbers { image, .. } = of_numbers(1, &[f32::NAN]).unwrap();
        assert!(numbers(&image, 0.0, 0.0, 1, 1).unwrap()[0].is_nan());
    }
}
