//! Draws rectangles and text on a frame in any supported format. Pure functions on bytes.
//!
//! Converts colors to pixel values of a format, and blends chroma samples that are partially covered. All drawing is clipped to the frame.
//! This module uses neither GStreamer nor results.

use std::ops::Range;

use crate::damage::Damage;
use crate::font::Bitmap;
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

/// Black or white, whichever has the higher contrast ratio on `background`. The contrast ratio is that of WCAG 2.
pub fn text_color(background: Rgb) -> Rgb {
    let luminance = luminance(background);
    if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) { [0; 3] } else { [255; 3] }
}

/// The relative luminance of a color in sRGB, 0..=1, as WCAG 2 defines it.
fn luminance(color: Rgb) -> f32 {
    let [r, g, b] = color.map(|value| {
        let value = f32::from(value) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    });
    0.2126 * r + 0.7152 * g + 0.0722 * b
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

    pub(crate) fn cut(self, size: Size) -> Option<Inside> {
        let edge = |v: i64, limit: u32| v.clamp(0, i64::from(limit)) as usize;
        let (x_min, x_max) = (edge(self.x_min, size.width), edge(self.x_max, size.width));
        let (y_min, y_max) = (edge(self.y_min, size.height), edge(self.y_max, size.height));
        (x_min < x_max && y_min < y_max).then_some(Inside { x_min, y_min, x_max, y_max })
    }
}

/// A non-empty [`Area`] inside the frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inside {
    pub(crate) x_min: usize,
    pub(crate) y_min: usize,
    pub(crate) x_max: usize,
    pub(crate) y_max: usize,
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
    pub(crate) planes: [Plane<'a>; 3],
    pub(crate) format: PixelFormat,
    pub(crate) size: Size,
    colorimetry: Colorimetry,
    /// Where rectangles, text and lines were drawn.
    damage: Damage,
}

/// A color in the pixel format of a canvas.
#[derive(Debug, Clone, Copy)]
pub struct Ink {
    /// One pixel of plane 0. Formats with fewer than four bytes per pixel use only the first bytes.
    pixel: [u8; 4],
    /// Cb and Cr, or green and blue of formats with a plane for each color; one or two bytes each.
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
        fits.then_some(Self { planes, format, size, colorimetry, damage: Damage::default() })
    }

    /// Where something was drawn.
    pub fn into_damage(self) -> Damage {
        self.damage
    }

    /// The part of an area inside the frame, which is then drawn on.
    fn cut(&mut self, area: Area) -> Option<Inside> {
        let inside = area.cut(self.size)?;
        let Inside { x_min, y_min, x_max, y_max } = inside;
        self.damage.add(Area { x_min: x_min as i64, y_min: y_min as i64, x_max: x_max as i64, y_max: y_max as i64 });
        Some(inside)
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
        if self.format.is_rgb() {
            return Ink { pixel: [color[0]; 4], chroma: [[color[1]; 2], [color[2]; 2]] };
        }
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
            pixel: match self.format {
                PixelFormat::Ayuv => [255, low, sample(c_offset + c_scale * cb)[0], sample(c_offset + c_scale * cr)[0]],
                _ if depth > 8 => [low, high, 0, 0],
                _ => [low; 4],
            },
            chroma: [sample(c_offset + c_scale * cb), sample(c_offset + c_scale * cr)],
        }
    }

    /// Whether each component is drawn for itself. The other formats have pixels in plane 0, and chroma for 2x2 pixels.
    fn is_by_component(&self) -> bool {
        let has_other_chroma = !self.format.is_subsampled() && self.format.n_planes() > 1;
        has_other_chroma || self.format.has_pixel_pairs()
    }

    /// Fills a rectangle. Partially covered chroma samples are blended in proportion.
    pub fn fill_rect(&mut self, area: Area, ink: Ink) {
        let Some(inside) = self.cut(area) else { return };
        if self.is_by_component() {
            return self.blend_components(0, inside, ink, |_, _| 255);
        }
        let n = self.format.pixel_bytes();
        let plane = &mut self.planes[0];
        for y in inside.y_min..inside.y_max {
            let row = y * plane.row_stride_bytes;
            let pixels = &mut plane.bytes[row + inside.x_min * n..row + inside.x_max * n];
            match self.format {
                _ if n == 1 => pixels.fill(ink.pixel[0]),
                // Padding bytes stay unchanged.
                PixelFormat::Rgbx | PixelFormat::Bgrx => {
                    pixels.chunks_exact_mut(n).for_each(|pixel| pixel[..3].copy_from_slice(&ink.pixel[..3]));
                }
                _ => pixels.chunks_exact_mut(n).for_each(|pixel| pixel.copy_from_slice(&ink.pixel[..n])),
            }
        }
        self.fill_chroma(inside, ink);
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

    /// Draws a line of text with its background. The top-left corner is at `(x, y)`, rounded down to a whole chroma sample.
    ///
    /// Replaces all pixels of the bitmap's area: `background` where the bitmap is 0, `foreground` where it is 255, and a mixture between.
    pub fn stamp(&mut self, x: i64, y: i64, bitmap: &Bitmap, background: Ink, foreground: Ink) {
        let (x, y) = if self.format.is_subsampled() { (x & !1, y & !1) } else { (x, y) };
        let area = Area::at(x, y, bitmap.width as i64, bitmap.height as i64);
        let Some(inside) = self.cut(area) else { return };
        if self.is_by_component() {
            self.fill_rect(area, background);
            let coverage = |px: usize, py: usize| bitmap.coverage[(py as i64 - y) as usize * bitmap.width + (px as i64 - x) as usize];
            return self.blend_components(0, inside, foreground, coverage);
        }
        let n = self.format.pixel_bytes();
        let table = mixtures(background.pixel, foreground.pixel, self.format);
        let plane = &mut self.planes[0];
        // Clipped pixels are never before the corner, so the differences are not negative.
        let (first, n_columns) = ((inside.x_min as i64 - x) as usize, inside.x_max - inside.x_min);
        for py in inside.y_min..inside.y_max {
            let coverage = &bitmap.coverage[(py as i64 - y) as usize * bitmap.width + first..][..n_columns];
            let row = &mut plane.bytes[py * plane.row_stride_bytes + inside.x_min * n..][..n_columns * n];
            match (n, self.format) {
                (1, _) => row.iter_mut().zip(coverage).for_each(|(sample, part)| *sample = table[usize::from(*part)][0]),
                // Padding bytes stay unchanged.
                (4, PixelFormat::Rgbx | PixelFormat::Bgrx) => stamp_row::<4, 3>(row, coverage, &table),
                (4, _) => stamp_row::<4, 4>(row, coverage, &table),
                (3, _) => stamp_row::<3, 3>(row, coverage, &table),
                _ => stamp_row::<2, 2>(row, coverage, &table),
            }
        }
        if self.format.is_subsampled() {
            self.stamp_chroma((x, y), bitmap, background, foreground);
        }
    }

    fn stamp_chroma(&mut self, (x, y): (i64, i64), bitmap: &Bitmap, background: Ink, foreground: Ink) {
        let (columns, rows) = (self.size.width.div_ceil(2), self.size.height.div_ceil(2));
        let area = Area::at(x / 2, y / 2, bitmap.width as i64 / 2, bitmap.height as i64 / 2);
        let Some(inside) = area.cut(Size::new(columns, rows)) else { return };
        let n = self.format.element().size();
        let (first, n_columns) = ((inside.x_min as i64 - x / 2) as usize, inside.x_max - inside.x_min);
        for (c_idx, (from, to)) in background.chroma.iter().zip(foreground.chroma).enumerate() {
            let wide = |[low, high]: [u8; 2]| [low, high, 0, 0];
            let table = mixtures(wide(*from), wide(to), self.format);
            let (plane_idx, step, offset) = self.chroma_place(c_idx);
            let plane = &mut self.planes[plane_idx];
            for cy in inside.y_min..inside.y_max {
                let coverage = &bitmap.half[(cy as i64 - y / 2) as usize * (bitmap.width / 2) + first..][..n_columns];
                let begin = cy * plane.row_stride_bytes + (inside.x_min * step + offset) * n;
                let row = &mut plane.bytes[begin..];
                for (column, part) in coverage.iter().enumerate() {
                    let sample = &table[usize::from(*part)];
                    row[column * step * n..][..n].copy_from_slice(&sample[..n]);
                }
            }
        }
    }

    /// The plane of a chroma component, the number of samples from one column to the next, and the offset of the first sample.
    pub(crate) fn chroma_place(&self, component: usize) -> (usize, usize, usize) {
        if self.format.has_interleaved_chroma() { (1, 2, component) } else { (1 + component, 1, 0) }
    }

    /// Draws an antialiased line whose ends are square. Coordinates are limited to those of [`Area::of`].
    pub fn line(&mut self, from: (f32, f32), to: (f32, f32), thickness: u32, ink: Ink) {
        /// Number of columns or rows that are drawn together. The number is even, so that each chroma sample belongs to only one part.
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
            let across = (radius - across + 0.5).clamp(0.0, 1.0);
            let along = ((along + radius).min(length + radius - along) + 0.5).clamp(0.0, 1.0);
            (across * along * 255.0) as u8
        };
        let is_flat = dx.abs() >= dy.abs();
        // The range along the longer axis: from the first to the last pixel of the frame that the line may cover.
        let ((from_along, to_along), extent) = if is_flat { ((from.0, to.0), self.size.width) } else { ((from.1, to.1), self.size.height) };
        let reach = radius * 2.0 + 2.0;
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
        let Some(inside) = self.cut(area) else { return };
        if self.is_by_component() {
            return self.blend_components(0, inside, ink, covered);
        }
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
        if self.format.is_subsampled() {
            self.blend_components(1, inside, ink, covered);
        }
    }

    /// Fills the chroma of a rectangle. Samples that are partially covered are blended.
    fn fill_chroma(&mut self, inside: Inside, ink: Ink) {
        if !self.format.is_subsampled() {
            return;
        }
        let covered = |c: usize, min: usize, max: usize| (2 * c + 2).min(max) - (2 * c).max(min);
        let of_frame = |c: usize, extent: u32| (2 * c + 2).min(extent as usize) - 2 * c;
        // The columns whose pixels are all covered.
        let whole =
            inside.x_min.div_ceil(2)..if inside.x_max == self.size.width as usize { inside.x_max.div_ceil(2) } else { inside.x_max / 2 };
        let columns = inside.x_min / 2..inside.x_max.div_ceil(2);
        let (n, places) = (self.format.element().size(), [0, 1].map(|component| self.chroma_place(component)));
        let (size, format) = (self.size, self.format);
        let is_interleaved = format.has_interleaved_chroma();
        for cy in inside.y_min / 2..inside.y_max.div_ceil(2) {
            let (n_rows, of_rows) = (covered(cy, inside.y_min, inside.y_max), of_frame(cy, size.height));
            let planes = &mut self.planes;
            let mut blend_columns = |columns: Range<usize>| {
                for cx in columns {
                    let part = 255 * covered(cx, inside.x_min, inside.x_max) * n_rows / (of_frame(cx, size.width) * of_rows);
                    for ((plane_idx, step, offset), target) in places.iter().zip(&ink.chroma) {
                        let plane = &mut planes[*plane_idx];
                        let sample = &mut plane.bytes[cy * plane.row_stride_bytes + (cx * step + offset) * n..][..n];
                        blend_samples(sample, target, part as u32, format);
                    }
                }
            };
            if n_rows < of_rows || whole.is_empty() {
                blend_columns(columns.clone());
                continue;
            }
            blend_columns(columns.start..whole.start);
            blend_columns(whole.end..columns.end);
            if is_interleaved && n == 1 {
                let plane = &mut self.planes[1];
                let row = &mut plane.bytes[cy * plane.row_stride_bytes..][2 * whole.start..2 * whole.end];
                row.as_chunks_mut().0.fill([ink.chroma[0][0], ink.chroma[1][0]]);
                continue;
            }
            for ((plane_idx, step, offset), target) in places.iter().zip(&ink.chroma) {
                let plane = &mut self.planes[*plane_idx];
                let row = &mut plane.bytes[cy * plane.row_stride_bytes..];
                if n == 1 {
                    row[whole.clone()].fill(target[0]);
                } else {
                    for cx in whole.clone() {
                        row[(cx * step + offset) * n..][..n].copy_from_slice(&target[..n]);
                    }
                }
            }
        }
    }

    /// Blends the components from `first` on. Each sample is weighted by the mean coverage of its pixels.
    fn blend_components(&mut self, first: usize, inside: Inside, ink: Ink, coverage: impl Fn(usize, usize) -> u8) {
        let (width, height) = (self.size.width as usize, self.size.height as usize);
        let (n, format) = (self.format.element().size(), self.format);
        let targets = [[ink.pixel[0], ink.pixel[1]], ink.chroma[0], ink.chroma[1]];
        for (place, target) in format.components().iter().zip(&targets).skip(first) {
            let (of_width, of_height) = place.n_pixels;
            let plane = &mut self.planes[place.plane_idx];
            for row_idx in inside.y_min / of_height..inside.y_max.div_ceil(of_height) {
                let row = &mut plane.bytes[row_idx * plane.row_stride_bytes + place.offset_bytes..];
                let ys = row_idx * of_height..((row_idx + 1) * of_height).min(height);
                for column in inside.x_min / of_width..inside.x_max.div_ceil(of_width) {
                    let xs = column * of_width..((column + 1) * of_width).min(width);
                    let mut sum = 0;
                    for py in ys.start.max(inside.y_min)..ys.end.min(inside.y_max) {
                        for px in xs.start.max(inside.x_min)..xs.end.min(inside.x_max) {
                            sum += u32::from(coverage(px, py));
                        }
                    }
                    let part = sum / (xs.len() * ys.len()) as u32;
                    blend_samples(&mut row[column * place.stride_bytes..][..n], target, part, format);
                }
            }
        }
    }
}

/// All mixtures of two pixels, from none of `to` to all of it.
fn mixtures(from: [u8; 4], to: [u8; 4], format: PixelFormat) -> [[u8; 4]; 256] {
    std::array::from_fn(|part| {
        let mut mixed = from;
        blend_samples(&mut mixed, &to, part as u32, format);
        mixed
    })
}

/// Writes the first `WRITTEN` bytes of each pixel of a row. A pixel has `N` bytes.
fn stamp_row<const N: usize, const WRITTEN: usize>(row: &mut [u8], coverage: &[u8], table: &[[u8; 4]; 256]) {
    for (pixel, part) in row.as_chunks_mut::<N>().0.iter_mut().zip(coverage) {
        pixel[..WRITTEN].copy_from_slice(&table[usize::from(*part)][..WRITTEN]);
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
pub(crate) fn blend(value: u32, target: u32, part: u32) -> u32 {
    (value * (255 - part) + target * part + 127) / 255
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::font::Letters;
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
        let mut letters = Letters::default();
        letters.begin(20, 1000);
        let text = letters.line("aé·字\u{0}");
        for format in PixelFormat::ALL {
            for size in SIZES {
                let mut image = TestImage::new(format, size);
                let mut canvas = image.canvas();
                let (ink, white) = (canvas.ink([255, 0, 0]), canvas.ink([255; 3]));
                for x in far {
                    for width in far {
                        let rect = Rect { x, y: width, width, height: width };
                        if let Some(area) = Area::of(&rect) {
                            canvas.outline(area, 2, ink);
                            canvas.outline(area, u32::MAX, ink);
                            canvas.stamp(area.x_min, area.y_min, &text, ink, white);
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
                    PixelFormat::I420 | PixelFormat::A420 | PixelFormat::Y42b | PixelFormat::Y444 => [&[81], &[90], &[240]],
                    PixelFormat::Yuy2 => [&[81, 90, 81, 240], &[], &[]],
                    PixelFormat::Uyvy => [&[90, 81, 240, 81], &[], &[]],
                    PixelFormat::Ayuv => [&[255, 81, 90, 240], &[], &[]],
                    // The 10-bit values 326, 361 and 960.
                    PixelFormat::P010 => [&[0x80, 0x51], &[0x40, 0x5a, 0x00, 0xf0], &[]],
                    PixelFormat::I420Ten | PixelFormat::I422Ten | PixelFormat::Y444Ten => [&[0x46, 0x01], &[0x69, 0x01], &[0xc0, 0x03]],
                    PixelFormat::Gray8 => [&[81], &[], &[]],
                    PixelFormat::Rgb => [&[255, 0, 0], &[], &[]],
                    PixelFormat::Bgr => [&[0, 0, 255], &[], &[]],
                    PixelFormat::Rgbx => [&[255, 0, 0, 77], &[], &[]],
                    PixelFormat::Bgrx => [&[0, 0, 255, 77], &[], &[]],
                    PixelFormat::Rgba => [&[255, 0, 0, 255], &[], &[]],
                    PixelFormat::Bgra => [&[0, 0, 255, 255], &[], &[]],
                    PixelFormat::Xrgb | PixelFormat::Argb => [&[255, 255, 0, 0], &[], &[]],
                    PixelFormat::Xbgr | PixelFormat::Abgr => [&[255, 0, 0, 255], &[], &[]],
                    PixelFormat::Gbr | PixelFormat::Gbra => [&[0], &[0], &[255]],
                    other => unreachable!("{other} has no expected values here: add them"),
                };
                for (plane_idx, expected) in expected.iter().enumerate().take(format.n_planes()) {
                    for row in image.planes[plane_idx].chunks_exact(image.strides[plane_idx]) {
                        // The second pixel of the last pair is beyond an odd width.
                        let unused = if format.has_pixel_pairs() && size.width % 2 == 1 { 4 } else { 0 };
                        let row = &row[..row.len() - 3 - unused];
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
    fn text_replaces_exactly_its_area_in_every_format() {
        let mut letters = Letters::default();
        letters.begin(16, 1000);
        let text = letters.line("é");
        for format in PixelFormat::ALL {
            let size = Size::new(41, 33);
            let draw = |x: i64, y: i64| {
                let mut image = TestImage::new(format, size);
                let mut canvas = image.canvas();
                let (background, foreground) = (canvas.ink([0, 0, 255]), canvas.ink([255, 255, 0]));
                canvas.stamp(x, y, &text, background, foreground);
                assert!(image.gaps_are_whole(), "{format}");
                image
            };
            let (drawn, n) = (draw(6, 4), format.pixel_bytes());
            // Two pixels share chroma, also beyond the area.
            let (at, n_luma) = if format.has_pixel_pairs() { (format.luma_offset(), 1) } else { (0, n) };
            let is_changed =
                |x: usize, y: usize| drawn.planes[0][y * drawn.strides[0] + x * n + at..][..n_luma].iter().any(|byte| *byte != 77);
            for (x, y) in (0..41).flat_map(|x| (0..33).map(move |y| (x, y))) {
                let is_inside = (6..6 + text.width).contains(&x) && (4..4 + text.height).contains(&y);
                assert!(is_inside || !is_changed(x, y), "{format} ({x}, {y})");
            }
            assert!(is_changed(6, 4) && is_changed(5 + text.width, 3 + text.height), "{format}: the background reaches the corners");
            assert_eq!(draw(-1000, 4).planes, TestImage::new(format, size).planes, "{format}: text outside the frame");
        }
    }

    #[test]
    fn text_has_a_readable_contrast_on_every_color() {
        for background in PALETTE {
            let (a, b) = (luminance(background), luminance(text_color(background)));
            let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
            assert!(contrast >= 4.5, "{background:?}: {contrast}");
        }
    }

    #[test]
    fn lines_are_antialiased() {
        let mut image = TestImage::new(PixelFormat::Gray8, Size::new(40, 30));
        let mut canvas = image.canvas();
        let white = canvas.ink([255; 3]);
        canvas.line((3.0, 4.0), (33.0, 17.3), 3, white);
        let values: std::collections::BTreeSet<u8> = image.planes[0].iter().copied().filter(|value| *value != GAP).collect();
        assert!(values.len() > 8 && values.contains(&77) && values.contains(&235), "{values:?}");
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
