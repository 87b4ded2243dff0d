//! Draws rectangles and text on a frame in any supported format. Pure functions on bytes.
//!
//! Converts colors to pixel values of a format, and blends chroma samples that are partially covered. Everything is clipped to the frame.
//! Uses neither GStreamer nor results.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

use crate::frame::format::ColorRange;
use crate::frame::{Colorimetry, PixelFormat, Rect, Size};

/// A color: red, green, blue.
pub type Rgb = [u8; 3];

/// Colors that most color-blind viewers can also distinguish. Sources: Okabe and Ito, and Tol.
pub const PALETTE: [Rgb; 12] = [
    [0, 158, 115],
    [230, 159, 0],
    [86, 180, 233],
    [213, 94, 0],
    [204, 121, 167],
    [240, 228, 66],
    [0, 114, 178],
    [136, 34, 85],
    [153, 221, 68],
    [170, 170, 170],
    [68, 221, 221],
    [119, 82, 48],
];

/// Black or white, whichever has more contrast on `background`.
pub fn text_color(background: Rgb) -> Rgb {
    let [r, g, b] = background.map(u32::from);
    if 299 * r + 587 * g + 114 * b > 128_000 { [0; 3] } else { [255; 3] }
}

/// A half-open rectangle of pixels, which may extend outside the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    pub x_min: i64,
    pub y_min: i64,
    pub x_max: i64,
    pub y_max: i64,
}

impl Area {
    /// The pixels of `rect`, with edges rounded half up as in [`Rect::to_pixels`], but not clipped: at least 1x1.
    ///
    /// `None` if the rectangle has a non-finite or negative extent. Coordinates are clamped to ±1e9.
    pub fn of(rect: &Rect) -> Option<Self> {
        const FAR: f32 = 1e9;
        let round = |v: f32| (v + 0.5).floor().clamp(-FAR, FAR) as i64;
        rect.is_proper().then(|| {
            let (x_min, y_min) = (round(rect.x), round(rect.y));
            Self { x_min, y_min, x_max: round(rect.x_max()).max(x_min + 1), y_max: round(rect.y_max()).max(y_min + 1) }
        })
    }

    /// From the top-left corner, width and height.
    pub fn at(x: i64, y: i64, width: i64, height: i64) -> Self {
        Self { x_min: x, y_min: y, x_max: x + width, y_max: y + height }
    }

    /// The number of pixels that lie in both areas.
    pub fn overlap(&self, other: &Self) -> i64 {
        let width = self.x_max.min(other.x_max) - self.x_min.max(other.x_min);
        let height = self.y_max.min(other.y_max) - self.y_min.max(other.y_min);
        width.max(0) * height.max(0)
    }

    fn cut(self, size: Size) -> Option<Inside> {
        let edge = |v: i64, limit: u32| v.clamp(0, i64::from(limit)) as usize;
        let (x_min, x_max) = (edge(self.x_min, size.width), edge(self.x_max, size.width));
        let (y_min, y_max) = (edge(self.y_min, size.height), edge(self.y_max, size.height));
        (x_min < x_max && y_min < y_max).then_some(Inside { x_min, y_min, x_max, y_max })
    }
}

/// A non-empty [`Area`] inside the frame.
#[derive(Debug, Clone, Copy)]
struct Inside {
    x_min: usize,
    y_min: usize,
    x_max: usize,
    y_max: usize,
}

/// A size of the monospaced font.
///
/// Glyphs are stored at four heights. Larger glyphs are scaled by a whole factor, with bilinear interpolation.
#[derive(Debug, Clone, Copy)]
pub struct Font {
    raster: RasterHeight,
    scale: usize,
}

impl Font {
    const RASTERS: [RasterHeight; 4] = [RasterHeight::Size16, RasterHeight::Size20, RasterHeight::Size24, RasterHeight::Size32];
    /// The height of the largest letters.
    pub const MAX_HEIGHT: u32 = 256;
    /// The factor that enlarges the largest stored letters to [`Font::MAX_HEIGHT`].
    const MAX_SCALE: usize = 8;

    /// Returns the available size nearest to `height` pixels: 16, 20, 24, 32, 40, 48, 64, ..., 256. Of equally near sizes, returns the size
    /// with the smallest scale factor.
    pub fn nearest(height: u32) -> Self {
        let fonts = (1..=Self::MAX_SCALE).flat_map(|scale| Self::RASTERS.map(|raster| Self { raster, scale }));
        // Only the largest raster has enough detail to be enlarged by more than two.
        let fonts = fonts.filter(|font| font.scale <= 2 || matches!(font.raster, RasterHeight::Size32));
        let nearest = fonts.min_by_key(|font| (font.height().abs_diff(i64::from(height)), font.scale));
        nearest.unwrap_or(Self { raster: RasterHeight::Size16, scale: 1 })
    }

    /// Returns a readable size for a frame of this size. The line height is about 1/30 of the shorter side, and at least 16 pixels.
    pub fn for_frame(size: Size) -> Self {
        Self::nearest(size.width.min(size.height) / 30)
    }

    /// Line height in pixels.
    pub fn height(self) -> i64 {
        (self.raster.val() * self.scale) as i64
    }

    /// Width of a text in pixels.
    pub fn width(self, text: &str) -> i64 {
        text.chars().count() as i64 * self.advance()
    }

    /// Distance from one letter to the next, in pixels.
    fn advance(self) -> i64 {
        (get_raster_width(FontWeight::Regular, self.raster) * self.scale) as i64
    }
}

/// Returns one sample of a letter that is enlarged by `scale`, with bilinear interpolation. Samples beyond the edge are empty.
fn enlarged(coverage: &[&[u8]], scale: usize, x: usize, y: usize) -> u8 {
    if scale == 1 {
        return coverage[y][x];
    }
    // Compute the distance from the center of the first sample to the center of the pixel, in units of half an enlarged pixel.
    let split = |at: usize| {
        let position = (2 * at + 1) as i64 - scale as i64;
        let unit = 2 * scale as i64;
        (position.div_euclid(unit), position.rem_euclid(unit))
    };
    let sample = |x: i64, y: i64| {
        let row = usize::try_from(y).ok().and_then(|y| coverage.get(y));
        row.and_then(|row| row.get(usize::try_from(x).ok()?)).map_or(0, |value| i64::from(*value))
    };
    let ((x, x_part), (y, y_part), unit) = (split(x), split(y), 2 * scale as i64);
    let row = |y: i64| sample(x, y) * (unit - x_part) + sample(x + 1, y) * x_part;
    ((row(y) * (unit - y_part) + row(y + 1) * y_part) / (unit * unit)) as u8
}

/// The bytes of one plane.
#[derive(Debug, Default)]
pub struct Plane<'a> {
    pub bytes: &'a mut [u8],
    /// Bytes from one row to the next.
    pub row_stride_bytes: usize,
}

/// A frame to draw on.
#[derive(Debug)]
pub struct Canvas<'a> {
    planes: [Plane<'a>; 3],
    format: PixelFormat,
    size: Size,
    colorimetry: Colorimetry,
}

/// A color in the pixel format of a canvas.
#[derive(Debug, Clone, Copy)]
pub struct Ink {
    /// One pixel of plane 0. Formats with fewer than four bytes per pixel use only the first bytes.
    pixel: [u8; 4],
    /// Cb and Cr; one or two bytes each.
    chroma: [[u8; 2]; 2],
}

impl<'a> Canvas<'a> {
    /// A canvas over the planes of `format`; extra planes are ignored.
    ///
    /// `None` if a plane is too short for its rows.
    pub fn new(format: PixelFormat, size: Size, colorimetry: Colorimetry, planes: [Plane<'a>; 3]) -> Option<Self> {
        let fits = planes.iter().take(format.n_planes()).enumerate().all(|(plane_idx, plane)| {
            let shape = format.plane_shape(plane_idx, size);
            let row_bytes = shape.iter().skip(1).product::<usize>() * format.element().size();
            let n_rows = shape.first().copied().unwrap_or(0);
            let needed = n_rows.checked_sub(1).map_or(Some(0), |n| n.checked_mul(plane.row_stride_bytes)?.checked_add(row_bytes));
            (row_bytes <= plane.row_stride_bytes || n_rows <= 1) && needed.is_some_and(|needed| needed <= plane.bytes.len())
        });
        fits.then_some(Self { planes, format, size, colorimetry })
    }

    /// Converts `color` to the format of this canvas.
    pub fn ink(&self, color: Rgb) -> Ink {
        if let Some([r, g, b]) = self.format.rgb_offsets() {
            // The fourth byte, if any, is opacity or padding.
            let mut pixel = [255; 4];
            (pixel[r], pixel[g], pixel[b]) = (color[0], color[1], color[2]);
            return Ink { pixel, chroma: [[128; 2]; 2] };
        }
        let [r, g, b] = color.map(|v| f32::from(v) / 255.0);
        let (kr, kb) = self.colorimetry.matrix.kr_kb();
        let luma = kr * r + (1.0 - kr - kb) * g + kb * b;
        let (depth, n_low_bits) = (self.format.depth(), self.format.n_low_bits());
        let (beyond_eight, all) = ((1 << (depth - 8)) as f32, ((1 << depth) - 1) as f32);
        let (y_offset, y_scale, c_scale) = match self.colorimetry.range {
            ColorRange::Limited => (16.0 * beyond_eight, 219.0 * beyond_eight, 224.0 * beyond_eight),
            ColorRange::Full => (0.0, all, all),
        };
        let sample = |v: f32| ((v.round().clamp(0.0, all) as u16) << n_low_bits).to_le_bytes();
        let cb = (b - luma) / (2.0 * (1.0 - kb));
        let cr = (r - luma) / (2.0 * (1.0 - kr));
        let [low, high] = sample(y_offset + y_scale * luma);
        let c_offset = 128.0 * beyond_eight;
        Ink {
            pixel: if depth > 8 { [low, high, 0, 0] } else { [low; 4] },
            chroma: [sample(c_offset + c_scale * cb), sample(c_offset + c_scale * cr)],
        }
    }

    /// Fills a rectangle. Partially covered chroma samples are blended in proportion.
    pub fn fill_rect(&mut self, area: Area, ink: Ink) {
        let Some(inside) = area.cut(self.size) else { return };
        let n = self.format.pixel_bytes();
        let plane = &mut self.planes[0];
        for y in inside.y_min..inside.y_max {
            let row = y * plane.row_stride_bytes;
            let pixels = &mut plane.bytes[row + inside.x_min * n..row + inside.x_max * n];
            match self.format {
                PixelFormat::Nv12 | PixelFormat::I420 | PixelFormat::Gray8 => pixels.fill(ink.pixel[0]),
                // Padding bytes stay unchanged.
                PixelFormat::Rgbx | PixelFormat::Bgrx => {
                    pixels.chunks_exact_mut(n).for_each(|pixel| pixel[..3].copy_from_slice(&ink.pixel[..3]));
                }
                _ => pixels.chunks_exact_mut(n).for_each(|pixel| pixel.copy_from_slice(&ink.pixel[..n])),
            }
        }
        self.blend_chroma(inside, ink, |_, _| 255);
    }

    /// Draws the outline of a rectangle, inside its edges. Edges outside the frame are not drawn.
    pub fn outline(&mut self, area: Area, thickness: u32, ink: Ink) {
        let t = i64::from(thickness);
        let Area { x_min, y_min, x_max, y_max } = area;
        if x_max - x_min <= 2 * t || y_max - y_min <= 2 * t {
            return self.fill_rect(area, ink);
        }
        self.fill_rect(Area { y_max: y_min + t, ..area }, ink);
        self.fill_rect(Area { y_min: y_max - t, ..area }, ink);
        let between = Area { y_min: y_min + t, y_max: y_max - t, ..area };
        self.fill_rect(Area { x_max: x_min + t, ..between }, ink);
        self.fill_rect(Area { x_min: x_max - t, ..between }, ink);
    }

    /// Draws one line of text with its top-left corner at `(x, y)`. Characters outside Latin-1 become question marks.
    pub fn text(&mut self, x: i64, y: i64, text: &str, font: Font, ink: Ink) {
        let advance = font.advance();
        for (letter_idx, letter) in text.chars().enumerate() {
            let raster = get_raster(letter, FontWeight::Regular, font.raster).or_else(|| get_raster('?', FontWeight::Regular, font.raster));
            if let Some(raster) = raster {
                self.glyph(x + letter_idx as i64 * advance, y, (raster.raster(), font.scale), ink);
            }
        }
    }

    /// Blends a glyph in. `coverage` has rows of equal length with values 0..=255, and is enlarged by `scale`.
    fn glyph(&mut self, x: i64, y: i64, (coverage, scale): (&[&[u8]], usize), ink: Ink) {
        let (width, height) = (coverage.first().map_or(0, |row| row.len()) * scale, coverage.len() * scale);
        // Clipped pixels are never before the corner, so the differences are not negative.
        self.shade(Area::at(x, y, width as i64, height as i64), ink, |px, py| {
            enlarged(coverage, scale, (px as i64 - x) as usize, (py as i64 - y) as usize)
        });
    }

    /// Draws a line whose ends are square. Coordinates are limited to those of [`Area::of`].
    pub fn line(&mut self, from: (f32, f32), to: (f32, f32), thickness: u32, ink: Ink) {
        /// Number of columns or rows that are drawn together. It is even, so that a chroma sample belongs to one part.
        const PART: i64 = 32;
        const FAR: f32 = 1e9;
        if [from.0, from.1, to.0, to.1].iter().any(|value| !value.is_finite()) {
            return;
        }
        let limit = |(x, y): (f32, f32)| (x.clamp(-FAR, FAR), y.clamp(-FAR, FAR));
        let (from, to, radius) = (limit(from), limit(to), thickness.min(1000) as f32 / 2.0);
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        let (ux, uy) = if length > 0.0 { (dx / length, dy / length) } else { (1.0, 0.0) };
        let covered = |px: usize, py: usize| {
            let (x, y) = (px as f32 + 0.5 - from.0, py as f32 + 0.5 - from.1);
            let (along, across) = (x * ux + y * uy, (y * ux - x * uy).abs());
            if (-radius..=length + radius).contains(&along) && across <= radius { 255 } else { 0 }
        };
        let is_flat = dx.abs() >= dy.abs();
        // Along the longer axis, from the first to the last pixel that can be covered and is in the frame.
        let ((from_along, to_along), extent) = if is_flat { ((from.0, to.0), self.size.width) } else { ((from.1, to.1), self.size.height) };
        let reach = radius * 2.0 + 1.0;
        let begin = ((from_along.min(to_along) - reach).floor() as i64).max(0);
        let end = ((from_along.max(to_along) + reach).ceil() as i64).min(i64::from(extent));
        let slope = if is_flat { dy / dx } else { dx / dy };
        let slope = if slope.is_finite() { slope } else { 0.0 };
        let (start_along, start_across) = if is_flat { (from.0, from.1) } else { (from.1, from.0) };
        let mut part = begin - begin.rem_euclid(PART);
        while part < end {
            let next = part + PART;
            let across = [part, next].map(|at| start_across + (at as f32 - start_along) * slope);
            let (low, high) = (across[0].min(across[1]) - reach, across[0].max(across[1]) + reach);
            let (low, high) = (low.floor().clamp(-FAR, FAR) as i64, high.ceil().clamp(-FAR, FAR) as i64);
            let area = if is_flat {
                Area { x_min: part, x_max: next, y_min: low, y_max: high }
            } else {
                Area { x_min: low, x_max: high, y_min: part, y_max: next }
            };
            self.shade(area, ink, covered);
            part = next;
        }
    }

    /// Blends a color into an area. `covered` returns for each pixel how much of it is covered, 0 to 255.
    pub fn shade(&mut self, area: Area, ink: Ink, covered: impl Fn(usize, usize) -> u8) {
        let Some(inside) = area.cut(self.size) else { return };
        let n = self.format.pixel_bytes();
        let n_blended = match self.format {
            PixelFormat::Rgbx | PixelFormat::Bgrx => 3,
            _ => n,
        };
        let plane = &mut self.planes[0];
        for py in inside.y_min..inside.y_max {
            let row = py * plane.row_stride_bytes;
            for px in inside.x_min..inside.x_max {
                let part = covered(px, py);
                if part > 0 {
                    let pixel = &mut plane.bytes[row + px * n..][..n_blended];
                    blend_samples(pixel, &ink.pixel, u32::from(part), self.format);
                }
            }
        }
        self.blend_chroma(inside, ink, covered);
    }

    /// Blends chroma. Each sample is weighted by the mean coverage of its pixels.
    fn blend_chroma(&mut self, inside: Inside, ink: Ink, coverage: impl Fn(usize, usize) -> u8) {
        if !self.format.is_subsampled() {
            return;
        }
        let (width, height) = (self.size.width as usize, self.size.height as usize);
        for cy in inside.y_min / 2..inside.y_max.div_ceil(2) {
            for cx in inside.x_min / 2..inside.x_max.div_ceil(2) {
                let (xs, ys) = (2 * cx..(2 * cx + 2).min(width), 2 * cy..(2 * cy + 2).min(height));
                let n_pixels = (xs.len() * ys.len()) as u32;
                let mut sum = 0;
                for py in ys.start.max(inside.y_min)..ys.end.min(inside.y_max) {
                    for px in xs.start.max(inside.x_min)..xs.end.min(inside.x_max) {
                        sum += u32::from(coverage(px, py));
                    }
                }
                let part = sum / n_pixels;
                for (c_idx, target) in ink.chroma.iter().enumerate() {
                    let (plane, x) = match self.format.has_interleaved_chroma() {
                        true => (&mut self.planes[1], 2 * cx + c_idx),
                        false => (&mut self.planes[1 + c_idx], cx),
                    };
                    let n = self.format.element().size();
                    let sample = &mut plane.bytes[cy * plane.row_stride_bytes + x * n..][..n];
                    blend_samples(sample, target, part, self.format);
                }
            }
        }
    }
}

/// Moves samples `part`/255 of the way to `target`, which has at least as many samples.
fn blend_samples(samples: &mut [u8], target: &[u8], part: u32, format: PixelFormat) {
    if format.depth() == 8 {
        samples.iter_mut().zip(target).for_each(|(value, target)| *value = blend(u32::from(*value), u32::from(*target), part) as u8);
        return;
    }
    let number = |bytes: [u8; 2]| u32::from(u16::from_le_bytes(bytes) >> format.n_low_bits());
    for (sample, target) in samples.as_chunks_mut().0.iter_mut().zip(target.as_chunks().0) {
        *sample = ((blend(number(*sample), number(*target), part) as u16) << format.n_low_bits()).to_le_bytes();
    }
}

/// Interpolates `part`/255 of the way from `value` to `target`, both at most 16 bits.
fn blend(value: u32, target: u32, part: u32) -> u32 {
    (value * (255 - part) + target * part + 127) / 255
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ColorMatrix;

    /// A test image with gaps at the ends of rows, filled with a pattern.
    struct TestImage {
        format: PixelFormat,
        size: Size,
        planes: [Vec<u8>; 3],
        strides: [usize; 3],
    }

    const GAP: u8 = 0xEE;

    impl TestImage {
        fn new(format: PixelFormat, size: Size) -> Self {
            let (mut planes, mut strides) = ([vec![], vec![], vec![]], [0; 3]);
            for plane_idx in 0..format.n_planes() {
                let shape = format.plane_shape(plane_idx, size);
                let row_bytes = shape.iter().skip(1).product::<usize>() * format.element().size();
                strides[plane_idx] = row_bytes + 3;
                planes[plane_idx] = vec![GAP; strides[plane_idx] * shape[0]];
                for row in planes[plane_idx].chunks_exact_mut(row_bytes + 3) {
                    row[..row_bytes].fill(77);
                }
            }
            Self { format, size, planes, strides }
        }

        fn canvas(&mut self) -> Canvas<'_> {
            let [a, b, c] = &mut self.planes;
            let planes = [a, b, c].into_iter().zip(self.strides);
            let mut planes = planes.map(|(bytes, row_stride_bytes)| Plane { bytes, row_stride_bytes });
            let planes = std::array::from_fn(|_| planes.next().unwrap());
            Canvas::new(self.format, self.size, Colorimetry::default(), planes).unwrap()
        }

        fn gaps_are_whole(&self) -> bool {
            (0..self.format.n_planes())
                .all(|plane_idx| self.planes[plane_idx].chunks_exact(self.strides[plane_idx]).all(|row| row[row.len() - 3..] == [GAP; 3]))
        }
    }

    const SIZES: [Size; 5] = [Size::new(1, 1), Size::new(1, 7), Size::new(3, 3), Size::new(17, 9), Size::new(64, 48)];

    #[test]
    fn every_format_and_odd_size_accepts_any_rectangle() {
        let far = [f32::MIN, -1e20, -3.4, 0.0, 0.5, 8.0, 1e20, f32::MAX, f32::INFINITY, f32::NAN];
        for format in PixelFormat::ALL {
            for size in SIZES {
                let mut image = TestImage::new(format, size);
                let mut canvas = image.canvas();
                let ink = canvas.ink([255, 0, 0]);
                for x in far {
                    for width in far {
                        let rect = Rect { x, y: width, width, height: width };
                        if let Some(area) = Area::of(&rect) {
                            canvas.outline(area, 2, ink);
                            canvas.outline(area, u32::MAX, ink);
                            canvas.text(area.x_min, area.y_min, "aé·字\u{0}", Font::nearest(20), ink);
                        }
                    }
                }
                assert!(image.gaps_are_whole(), "{format} {size}");
            }
        }
    }

    #[test]
    fn full_fill_has_color_in_every_format() {
        for format in PixelFormat::ALL {
            for size in SIZES {
                let mut image = TestImage::new(format, size);
                let mut canvas = image.canvas();
                let red = canvas.ink([255, 0, 0]);
                canvas.fill_rect(Area::at(-5, -5, 1000, 1000), red);
                let expected: [&[u8]; 3] = match format {
                    PixelFormat::Nv12 => [&[81], &[90, 240], &[]],
                    PixelFormat::I420 => [&[81], &[90], &[240]],
                    // 326, 361 and 960 of 1023.
                    PixelFormat::P010 => [&[0x80, 0x51], &[0x40, 0x5a, 0x00, 0xf0], &[]],
                    PixelFormat::I420Ten => [&[0x46, 0x01], &[0x69, 0x01], &[0xc0, 0x03]],
                    PixelFormat::Gray8 => [&[81], &[], &[]],
                    PixelFormat::Rgb => [&[255, 0, 0], &[], &[]],
                    PixelFormat::Bgr => [&[0, 0, 255], &[], &[]],
                    PixelFormat::Rgbx => [&[255, 0, 0, 77], &[], &[]],
                    PixelFormat::Bgrx => [&[0, 0, 255, 77], &[], &[]],
                    PixelFormat::Rgba => [&[255, 0, 0, 255], &[], &[]],
                    PixelFormat::Bgra => [&[0, 0, 255, 255], &[], &[]],
                    other => unreachable!("{other} has no expected values here: add them"),
                };
                for (plane_idx, expected) in expected.iter().enumerate().take(format.n_planes()) {
                    for row in image.planes[plane_idx].chunks_exact(image.strides[plane_idx]) {
                        let row = &row[..row.len() - 3];
                        assert!(row.chunks_exact(expected.len()).all(|pixel| pixel == *expected), "{format} {size} {row:?}");
                    }
                }
                assert!(image.gaps_are_whole(), "{format} {size}");
            }
        }
    }

    #[test]
    fn fill_keeps_luma_outside_and_blends_chroma_at_edges() {
        let mut image = TestImage::new(PixelFormat::I420, Size::new(7, 5));
        let mut canvas = image.canvas();
        let red = canvas.ink([255, 0, 0]);
        canvas.fill_rect(Area::at(1, 2, 3, 2), red);
        let luma = |x: usize, y: usize| image.planes[0][y * image.strides[0] + x];
        for y in 0..5 {
            for x in 0..7 {
                let inside = (1..4).contains(&x) && (2..4).contains(&y);
                assert_eq!(luma(x, y), if inside { 81 } else { 77 }, "({x}, {y})");
            }
        }
        let v = |x: usize, y: usize| image.planes[2][y * image.strides[2] + x];
        assert_eq!([v(0, 1), v(1, 1), v(2, 1), v(0, 0)], [blend(77, 240, 127) as u8, 240, 77, 77]);
    }

    #[test]
    fn outline_keeps_its_inside() {
        let mut image = TestImage::new(PixelFormat::Gray8, Size::new(20, 12));
        let mut canvas = image.canvas();
        let white = canvas.ink([255; 3]);
        canvas.outline(Area::at(3, 2, 10, 8), 2, white);
        for y in 0..12 {
            for x in 0..20 {
                let within = |x0, y0, x1, y1| (x0..x1).contains(&x) && (y0..y1).contains(&y);
                let on = within(3, 2, 13, 10) && !within(5, 4, 11, 8);
                assert_eq!(image.planes[0][y * image.strides[0] + x], if on { 235 } else { 77 }, "({x}, {y})");
            }
        }
    }

    #[test]
    fn text_is_antialiased_and_unknown_characters_are_question_marks() {
        let draw = |text: &str| {
            let mut image = TestImage::new(PixelFormat::Gray8, Size::new(60, 32));
            let mut canvas = image.canvas();
            let white = canvas.ink([255; 3]);
            canvas.text(2, 3, text, Font::nearest(32), white);
            image.planes[0].clone()
        };
        assert_eq!(draw("字"), draw("?"));
        assert_ne!(draw("é"), draw("?"));
        let values: std::collections::BTreeSet<u8> = draw("a").into_iter().collect();
        assert!(values.len() > 8, "expected more than 8 gray levels, got {values:?}");
    }

    #[test]
    fn letters_grow_with_the_frame() {
        let height = |width, height| Font::for_frame(Size::new(width, height)).height();
        assert_eq!([height(320, 180), height(640, 480), height(1280, 720), height(1920, 1080)], [16, 16, 24, 32]);
        assert_eq!([height(1080, 1920), height(3840, 2160), height(7680, 4320), height(1, 1)], [32, 64, 128, 16]);
        assert_eq!([17, 40, 70, 256, u32::MAX].map(|height| Font::nearest(height).height()), [16, 40, 64, 256, 256]);
    }

    #[test]
    fn enlarged_letters_keep_their_shape() {
        let draw = |height: u32| {
            let mut image = TestImage::new(PixelFormat::Gray8, Size::new(130, 130));
            let mut canvas = image.canvas();
            let white = canvas.ink([255; 3]);
            canvas.text(0, 0, "E", Font::nearest(height), white);
            (image.planes[0].clone(), image.strides[0])
        };
        let ((small, stride), (large, _)) = (draw(32), draw(64));
        let mean = |x: usize, y: usize| {
            let sum: u32 =
                [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(dx, dy)| u32::from(large[(2 * y + dy) * stride + 2 * x + dx])).iter().sum();
            sum / 4
        };
        let difference: u32 =
            (0..32 * 17).map(|at| (at % 17, at / 17)).map(|(x, y)| mean(x, y).abs_diff(u32::from(small[y * stride + x]))).sum();
        assert!(difference / (32 * 17) < 16, "mean difference {}", difference / (32 * 17));
    }

    #[test]
    fn ink_follows_matrix_and_range() {
        let mut bytes = [0; 3];
        let (y, c) = bytes.split_at_mut(1);
        let planes = [Plane { bytes: y, row_stride_bytes: 1 }, Plane { bytes: c, row_stride_bytes: 2 }, Plane::default()];
        let mut canvas = Canvas::new(PixelFormat::Nv12, Size::new(1, 1), Colorimetry::default(), planes).unwrap();
        #[derive(Debug)]
        struct Case(ColorMatrix, ColorRange, [u8; 3]);
        // Green, by the equations of the ITU-R recommendations.
        let cases = [
            Case(ColorMatrix::Bt601, ColorRange::Limited, [145, 54, 34]),
            Case(ColorMatrix::Bt601, ColorRange::Full, [150, 44, 21]),
            Case(ColorMatrix::Bt709, ColorRange::Limited, [173, 42, 26]),
            Case(ColorMatrix::Bt2020, ColorRange::Limited, [164, 47, 25]),
        ];
        for case in cases {
            canvas.colorimetry = Colorimetry { matrix: case.0, range: case.1 };
            let ink = canvas.ink([0, 255, 0]);
            assert_eq!([ink.pixel[0], ink.chroma[0][0], ink.chroma[1][0]], case.2, "{case:?}");
        }
    }

    #[test]
    fn short_plane_is_refused() {
        let mut bytes = [0; 11];
        let planes = [Plane { bytes: &mut bytes, row_stride_bytes: 4 }, Plane::default(), Plane::default()];
        assert!(Canvas::new(PixelFormat::Gray8, Size::new(4, 3), Colorimetry::default(), planes).is_none());
    }
}
