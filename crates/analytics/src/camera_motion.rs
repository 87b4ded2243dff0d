//! Motion of the camera between two frames, estimated from luma: a translation and a scale.
//!
//! 1. The luma of the frame is reduced to an image of about 320 columns. A cell is the mean of the pixels in up to four rows.
//! 2. Both images are reduced again by four, and compared at all translations up to an eighth of the frame's width. The best one is the first
//!    estimate, which may be off by some cells if objects move.
//! 3. The image is divided into blocks. Each block is searched around the first estimate, and its place is refined below one cell by one step
//!    of the method of Lucas and Kanade ("An Iterative Image Registration Technique", 1981). Blocks without texture are left out.
//! 4. Translation and scale are fitted to the blocks by least squares. Blocks that differ from the fit belong to moving objects, so they are
//!    left out, and the fit is repeated. There is no estimate if fewer than half of the blocks agree.
//!
//! The time is bounded: it depends on the size of the frame only. Nothing is allocated after the first two frames.

use crate::frame::{Frame, PixelFormat, Size, Transform};
use crate::motion::luma_of;
use crate::tensor::Result;

/// Largest number of columns of the reduced image.
const N_COLUMNS: usize = 320;
/// Number of rows of pixels in a cell.
const N_ROWS_OF_CELL: usize = 4;
/// Factor between the two reduced images.
const COARSE: usize = 4;
/// Largest translation in cells of the coarse image.
const COARSE_X: i32 = 10;
const COARSE_Y: i32 = 6;
/// Side of a block in cells, and the number of blocks along each axis.
const BLOCK: usize = 24;
const N_BLOCKS: (usize, usize) = (8, 5);
/// Largest difference of a block from the first estimate, in cells.
const REFINE: i32 = 5;
/// Smallest mean of the squared gradients along the weakest direction of a block with texture.
const MIN_TEXTURE: f32 = 4.0;
/// Smallest number of blocks of an estimate.
const MIN_BLOCKS: usize = 4;
/// Blocks within this distance of the fit, in cells, belong to the background: in the first and in later passes.
const LIMITS: [f32; 4] = [4.0, 1.5, 0.75, 0.75];
/// Smaller translations (in cells) and changes of the scale are taken for noise.
const MIN_TRANSLATION: f32 = 0.1;
const MIN_SCALE: f32 = 0.001;

/// The estimator; see the module.
#[derive(Debug, Default)]
pub struct CameraMotion {
    /// Format and size of the previous frame; `None` if there is no previous frame.
    kind: Option<(PixelFormat, Size)>,
    previous: Luma,
    current: Luma,
    matches: Vec<Match>,
}

/// The reduced images of a frame.
#[derive(Debug, Default)]
struct Luma {
    fine: Image,
    coarse: Image,
}

#[derive(Debug, Default)]
struct Image {
    width: usize,
    height: usize,
    cells: Vec<u8>,
}

/// A block, and how far it moved, in cells.
#[derive(Debug, Clone, Copy)]
struct Match {
    /// Center of the block in the previous image.
    center: (f32, f32),
    moved: (f32, f32),
    is_background: bool,
}

impl CameraMotion {
    /// Returns the transform from coordinates of the previous frame to coordinates of this frame. `None` if there is no previous frame of the
    /// same size and format, or no estimate.
    ///
    /// # Errors
    /// Returns an error if the frame's memory cannot be read.
    pub fn update(&mut self, frame: &Frame) -> Result<Option<Transform>> {
        std::mem::swap(&mut self.previous, &mut self.current);
        let kind = Some((frame.format(), frame.size()));
        let is_same = std::mem::replace(&mut self.kind, kind) == kind;
        let n_pixels = (frame.size().width as usize).div_ceil(N_COLUMNS).max(1);
        if let Err(error) = self.current.fine.reduce_frame(frame, n_pixels) {
            self.kind = None;
            return Err(error);
        }
        self.current.coarse.reduce(&self.current.fine);
        Ok(if is_same { self.estimate(n_pixels) } else { None })
    }

    /// Removes the previous frame. Call this for a new stream or after a seek.
    pub fn reset(&mut self) {
        self.kind = None;
    }

    /// `n_pixels` is the number of pixels along the side of a cell.
    fn estimate(&mut self, n_pixels: usize) -> Option<Transform> {
        let Self { previous, current, matches, .. } = self;
        let (x, y) = coarse_translation(&previous.coarse, &current.coarse)?;
        let (width, height) = (current.fine.width, current.fine.height);
        matches.clear();
        for row in 0..N_BLOCKS.1 {
            for column in 0..N_BLOCKS.0 {
                let place = |idx: usize, n: usize, extent: usize| ((2 * idx + 1) * extent / (2 * n)).checked_sub(BLOCK / 2);
                let Some((left, top)) = place(column, N_BLOCKS.0, width).zip(place(row, N_BLOCKS.1, height)) else { continue };
                matches.extend(find_block(&previous.fine, &current.fine, (left, top), (x * COARSE as i32, y * COARSE as i32)));
            }
        }
        let middle = ((width as f32 - 1.0) / 2.0, (height as f32 - 1.0) / 2.0);
        let Fit { moved, growth } = fit(matches, middle)?;
        if moved.0.abs().max(moved.1.abs()) < MIN_TRANSLATION && growth.abs() < MIN_SCALE {
            return Some(Transform::IDENTITY);
        }
        // The center of the cell 0 is at half the side of a cell.
        let side = n_pixels as f32;
        let offset = |moved: f32, middle: f32| side * moved - growth * side * (middle + 0.5);
        let scale = 1.0 + growth;
        Some(Transform { scale: (scale, scale), offset: (offset(moved.0, middle.0), offset(moved.1, middle.1)), swaps_axes: false })
    }
}

/// The translation of the middle of the image, in cells, and the change of the scale.
struct Fit {
    moved: (f32, f32),
    growth: f32,
}

/// Fits translation and scale to the blocks of the background. `None` if too few blocks agree.
fn fit(matches: &mut [Match], middle: (f32, f32)) -> Option<Fit> {
    if matches.len() < MIN_BLOCKS {
        return None;
    }
    let mut fitted = Fit { moved: (median(matches, |found| found.moved.0), median(matches, |found| found.moved.1)), growth: 0.0 };
    for limit in LIMITS {
        let Fit { moved, growth } = fitted;
        for found in &mut *matches {
            let x = moved.0 + growth * (found.center.0 - middle.0) - found.moved.0;
            let y = moved.1 + growth * (found.center.1 - middle.1) - found.moved.1;
            found.is_background = x.hypot(y) <= limit;
        }
        let background = || matches.iter().filter(|found| found.is_background);
        let n = background().count();
        if n < MIN_BLOCKS || 2 * n < matches.len() {
            return None;
        }
        let mean = |of: fn(&Match) -> f32| background().map(of).sum::<f32>() / n as f32;
        let (center_x, center_y) = (mean(|found| found.center.0), mean(|found| found.center.1));
        let (moved_x, moved_y) = (mean(|found| found.moved.0), mean(|found| found.moved.1));
        let (mut products, mut squares) = (0.0, 0.0);
        for found in background() {
            let (x, y) = (found.center.0 - center_x, found.center.1 - center_y);
            products += x * (found.moved.0 - moved_x) + y * (found.moved.1 - moved_y);
            squares += x * x + y * y;
        }
        let growth = if squares > 0.0 { products / squares } else { 0.0 };
        let moved = (moved_x + growth * (middle.0 - center_x), moved_y + growth * (middle.1 - center_y));
        fitted = Fit { moved, growth };
    }
    Some(fitted)
}

/// The median of a value of the blocks. Sorts the blocks.
fn median(matches: &mut [Match], of: fn(&Match) -> f32) -> f32 {
    let middle = matches.len() / 2;
    of(matches.select_nth_unstable_by(middle, |one, other| of(one).total_cmp(&of(other))).1)
}

/// Returns the translation in cells at which the images differ least. `None` if the images are too small.
fn coarse_translation(previous: &Image, current: &Image) -> Option<(i32, i32)> {
    let (width, height) = (current.width as i32, current.height as i32);
    let (max_x, max_y) = (COARSE_X.min(width / 3), COARSE_Y.min(height / 3));
    if max_x < 1 || max_y < 1 {
        return None;
    }
    let mut best = (f32::INFINITY, (0, 0));
    for y in -max_y..=max_y {
        for x in -max_x..=max_x {
            let (columns, rows) = ((width - x.abs()) as usize, (height - y.abs()) as usize);
            let difference: u32 = (0..rows)
                .map(|row| {
                    let was = previous.line((row as i32 + (-y).max(0)) as usize, (-x).max(0) as usize, columns);
                    let is = current.line((row as i32 + y.max(0)) as usize, x.max(0) as usize, columns);
                    was.iter().zip(is).map(|(was, is)| u32::from(was.abs_diff(*is))).sum::<u32>()
                })
                .sum();
            let mean = difference as f32 / (columns * rows) as f32;
            // Of equal translations, the smallest is the best: an image without texture has not moved.
            let is_better = mean < best.0 || (mean == best.0 && x * x + y * y < best.1.0 * best.1.0 + best.1.1 * best.1.1);
            if is_better {
                best = (mean, (x, y));
            }
        }
    }
    Some(best.1)
}

/// Searches a block of the previous image in the current image, around a translation. `None` if the block has no texture, or if its place is
/// outside the image.
fn find_block(previous: &Image, current: &Image, (left, top): (usize, usize), (guess_x, guess_y): (i32, i32)) -> Option<Match> {
    if left + BLOCK > previous.width || top + BLOCK > previous.height {
        return None;
    }
    // One cell around the block is needed for the gradients.
    let place = |x: i32, y: i32| {
        let (x, y) = (usize::try_from(left as i32 + x).ok()?, usize::try_from(top as i32 + y).ok()?);
        let is_inside = x >= 1 && y >= 1 && x + BLOCK < current.width && y + BLOCK < current.height;
        is_inside.then_some((x, y))
    };
    let mut best: Option<(u32, (i32, i32))> = None;
    for y in guess_y - REFINE..=guess_y + REFINE {
        for x in guess_x - REFINE..=guess_x + REFINE {
            let Some((is_left, is_top)) = place(x, y) else { continue };
            let difference: u32 = (0..BLOCK)
                .map(|row| {
                    let (was, is) = (previous.line(top + row, left, BLOCK), current.line(is_top + row, is_left, BLOCK));
                    was.iter().zip(is).map(|(was, is)| u32::from(was.abs_diff(*is)).pow(2)).sum::<u32>()
                })
                .sum();
            if best.is_none_or(|(least, ..)| difference < least) {
                best = Some((difference, (x, y)));
            }
        }
    }
    let (x, y) = best?.1;
    let (is_left, is_top) = place(x, y)?;
    // The step of Lucas and Kanade: the gradients of the current image explain the remaining difference.
    let (mut xx, mut xy, mut yy, mut x_rest, mut y_rest) = (0.0_f32, 0.0_f32, 0.0_f32, 0.0_f32, 0.0_f32);
    for row in 0..BLOCK {
        let was = previous.line(top + row, left, BLOCK);
        let is = current.line(is_top + row, is_left - 1, BLOCK + 2);
        let (above, below) = (current.line(is_top + row - 1, is_left, BLOCK), current.line(is_top + row + 1, is_left, BLOCK));
        for (((was, around), above), below) in was.iter().zip(is.windows(3)).zip(above).zip(below) {
            let along_x = (f32::from(around[2]) - f32::from(around[0])) / 2.0;
            let along_y = (f32::from(*below) - f32::from(*above)) / 2.0;
            let rest = f32::from(*was) - f32::from(around[1]);
            xx += along_x * along_x;
            xy += along_x * along_y;
            yy += along_y * along_y;
            x_rest += along_x * rest;
            y_rest += along_y * rest;
        }
    }
    let weakest = (xx + yy - ((xx - yy).powi(2) + 4.0 * xy * xy).sqrt()) / 2.0;
    if weakest < MIN_TEXTURE * (BLOCK * BLOCK) as f32 {
        return None;
    }
    let determinant = xx * yy - xy * xy;
    let step = |numerator: f32| (numerator / determinant).clamp(-1.0, 1.0);
    let moved = (x as f32 + step(yy * x_rest - xy * y_rest), y as f32 + step(xx * y_rest - xy * x_rest));
    let middle = (BLOCK as f32 - 1.0) / 2.0;
    Some(Match { center: (left as f32 + middle, top as f32 + middle), moved, is_background: true })
}

impl Image {
    fn line(&self, row: usize, begin: usize, n: usize) -> &[u8] {
        &self.cells[row * self.width + begin..][..n]
    }

    /// Reduces the luma of a frame. A cell has `n_pixels` pixels along each side. Pixels beyond the last whole cell are not used.
    fn reduce_frame(&mut self, frame: &Frame, n_pixels: usize) -> Result<()> {
        let Size { width, height } = frame.size();
        (self.width, self.height) = (width as usize / n_pixels, height as usize / n_pixels);
        self.cells.clear();
        let Some(plane) = frame.planes().next() else { return Ok(()) };
        let bytes = plane.bytes()?;
        let (row_stride_bytes, bytes) = (bytes.layout().stride_bytes()[0], bytes.extent());
        let n_low_bits = frame.format().n_low_bits() + frame.format().depth() - 8;
        let at = frame.format().luma_offset();
        match (frame.format().rgb_offsets(), frame.format().pixel_bytes()) {
            (None, 2) if frame.format().depth() > 8 => {
                self.reduce_plane(bytes, row_stride_bytes, n_pixels, |luma| u32::from(u16::from_le_bytes(*luma) >> n_low_bits).min(255));
            }
            (None, 2) => self.reduce_plane::<2>(bytes, row_stride_bytes, n_pixels, |pixel| u32::from(pixel[at])),
            (None, 4) => self.reduce_plane::<4>(bytes, row_stride_bytes, n_pixels, |pixel| u32::from(pixel[at])),
            (None, _) => self.reduce_plane(bytes, row_stride_bytes, n_pixels, |[luma]| u32::from(*luma)),
            (Some(offsets), 3) => self.reduce_plane::<3>(bytes, row_stride_bytes, n_pixels, |pixel| luma_of(pixel, offsets)),
            (Some(offsets), _) => self.reduce_plane::<4>(bytes, row_stride_bytes, n_pixels, |pixel| luma_of(pixel, offsets)),
        }
        Ok(())
    }

    /// `N` is the number of bytes per pixel.
    fn reduce_plane<const N: usize>(&mut self, bytes: &[u8], row_stride_bytes: usize, n_pixels: usize, luma: impl Fn(&[u8; N]) -> u32) {
        let n_rows = n_pixels.min(N_ROWS_OF_CELL);
        let mut sums = [0_u32; N_COLUMNS];
        let sums = &mut sums[..self.width];
        for row in 0..self.height {
            sums.fill(0);
            for row_of_cell in 0..n_rows {
                let y = row * n_pixels + row_of_cell * n_pixels / n_rows;
                let line = &bytes[y * row_stride_bytes..][..self.width * n_pixels * N];
                for (sum, pixels) in sums.iter_mut().zip(line.chunks_exact(n_pixels * N)) {
                    *sum += pixels.as_chunks::<N>().0.iter().map(&luma).sum::<u32>();
                }
            }
            let n = (n_rows * n_pixels) as u32;
            self.cells.extend(sums.iter().map(|sum| ((sum + n / 2) / n) as u8));
        }
    }

    /// Reduces an image by [`COARSE`].
    fn reduce(&mut self, fine: &Self) {
        (self.width, self.height) = (fine.width / COARSE, fine.height / COARSE);
        self.cells.clear();
        for row in 0..self.height {
            for column in 0..self.width {
                let sum: u32 =
                    (0..COARSE).flat_map(|y| fine.line(row * COARSE + y, column * COARSE, COARSE)).map(|cell| u32::from(*cell)).sum();
                self.cells.push((sum / (COARSE * COARSE) as u32) as u8);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The luma of a world of smooth bumps of several sizes.
    fn world(x: f32, y: f32) -> f32 {
        let value = |column: i32, row: i32| {
            let hash = (column.wrapping_mul(374_761_393)).wrapping_add(row.wrapping_mul(668_265_263)) as u32;
            let hash = (hash ^ (hash >> 13)).wrapping_mul(1_274_126_177);
            ((hash ^ (hash >> 16)) & 255) as f32
        };
        let bumps = |x: f32, y: f32| {
            let (column, row) = (x.floor(), y.floor());
            let (u, v) = (x - column, y - row);
            let (u, v) = (u * u * (3.0 - 2.0 * u), v * v * (3.0 - 2.0 * v));
            let at = |right: i32, down: i32| value(column as i32 + right, row as i32 + down);
            let (above, below) = (at(0, 0) + u * (at(1, 0) - at(0, 0)), at(0, 1) + u * (at(1, 1) - at(0, 1)));
            above + v * (below - above)
        };
        0.6 * bumps(x / 60.0, y / 60.0) + 0.4 * bumps(x / 17.0 + 91.0, y / 17.0)
    }

    /// What a camera sees whose upper left corner is at this place of the world. `zoom` is the number of pixels per unit.
    pub(crate) fn view(size: Size, (x, y): (f32, f32), zoom: f32) -> Frame {
        let luma = |row: u32, column: u32| world(x + column as f32 / zoom, y + row as f32 / zoom) as u8;
        let bytes: Vec<u8> = (0..size.height).flat_map(|row| (0..size.width).map(move |column| luma(row, column))).collect();
        Frame::from_packed(PixelFormat::Gray8, size, &bytes).unwrap()
    }

    fn motion(one: &Frame, other: &Frame) -> Option<Transform> {
        let mut motion = CameraMotion::default();
        assert_eq!(motion.update(one).unwrap(), None, "no previous frame");
        motion.update(other).unwrap()
    }

    const SIZE: Size = Size::new(640, 360);

    #[test]
    fn translation_is_estimated_below_a_pixel() {
        let begin = view(SIZE, (500.0, 300.0), 1.0);
        assert_eq!(motion(&begin, &begin), Some(Transform::IDENTITY));
        for (x, y) in [(5.0, 0.0), (-13.0, 7.0), (3.5, -2.5), (61.0, -30.0), (-75.0, 38.0)] {
            let found = motion(&begin, &view(SIZE, (500.0 - x, 300.0 - y), 1.0)).unwrap();
            let error = (found.offset.0 - x).abs().max((found.offset.1 - y).abs());
            // At large translations, the offset at the corner also has the error of the scale.
            assert!(error < 0.7 && (found.scale.0 - 1.0).abs() < 0.003, "{x} {y}: {found:?}");
        }
    }

    #[test]
    fn scale_is_estimated_around_the_middle() {
        let begin = view(SIZE, (500.0, 300.0), 1.0);
        for zoom in [1.03_f32, 0.97] {
            let corner = (820.0 - 320.0 / zoom, 480.0 - 180.0 / zoom);
            let found = motion(&begin, &view(SIZE, corner, zoom)).unwrap();
            assert!((found.scale.0 - zoom).abs() < 0.004, "{zoom}: {found:?}");
            let middle = found.apply_to_point(crate::frame::Point { x: 320.0, y: 180.0 });
            assert!((middle.x - 320.0).abs() < 1.0 && (middle.y - 180.0).abs() < 1.0, "{zoom}: {middle:?}");
        }
    }

    /// A quarter of the frame moves differently.
    #[test]
    fn moving_objects_do_not_change_the_estimate() {
        let with_object = |camera: f32, object: f32| {
            let background = view(SIZE, (500.0 - camera, 300.0), 1.0);
            let other = view(SIZE, (3000.0 - object, 900.0), 1.0);
            let (background, other) = [&background, &other].map(|frame| frame.planes().next().unwrap().bytes().unwrap()).into();
            let is_object = |at: usize| (200..520).contains(&(at % 640)) && (90..270).contains(&(at / 640));
            let bytes: Vec<u8> =
                (0..640 * 360).map(|at| if is_object(at) { other.extent()[at] } else { background.extent()[at] }).collect();
            Frame::from_packed(PixelFormat::Gray8, SIZE, &bytes).unwrap()
        };
        let found = motion(&with_object(0.0, 0.0), &with_object(12.0, -10.0)).unwrap();
        assert!((found.offset.0 - 12.0).abs() < 0.7 && found.offset.1.abs() < 0.7, "{found:?}");
    }

    #[test]
    fn frames_without_texture_or_of_another_size_have_no_estimate() {
        let gray = |size: Size| Frame::from_packed(PixelFormat::Gray8, size, &vec![100; (size.width * size.height) as usize]).unwrap();
        assert_eq!(motion(&gray(SIZE), &gray(SIZE)), None);
        let small = Size::new(320, 180);
        assert_eq!(motion(&view(SIZE, (0.0, 0.0), 1.0), &view(small, (0.0, 0.0), 1.0)), None);
        for (width, height) in [(1, 1), (2, 300), (300, 2), (30, 30)] {
            let size = Size::new(width, height);
            assert_eq!(motion(&gray(size), &gray(size)), None, "{size}");
        }
        // A cut to another scene.
        assert_eq!(motion(&view(SIZE, (0.0, 0.0), 1.0), &view(SIZE, (9000.0, 7000.0), 1.0)), None);
    }
}
