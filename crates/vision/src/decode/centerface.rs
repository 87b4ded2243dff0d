//! CenterFace (Xu et al., 2019): maps with stride 4. Each cell has a score (after sigmoid), a size, a center offset, and five keypoints
//! relative to the box.

use super::{BoxScheme, BoxThresholds, Output, Port, RawDetection, Results, differs, named, only, unexpected};
use crate::frame::{Point, Rect, Size};
use crate::tensor::Result;

/// Stride of the maps in pixels.
const STRIDE: u32 = 4;
const N_KEYPOINTS: usize = 5;

/// Outputs:
///
/// - `[1, 1, h, w]`: score,
/// - `[1, 2, h, w]`: logarithms of height and width,
/// - `[1, 2, h, w]`: offset down and right, in cells,
/// - `[1, 10, h, w]`: keypoints.
///
/// The two outputs of equal shape must be in this order, unless their names contain `scale` and `offset`.
#[derive(Debug)]
pub(super) struct CenterFace;

/// Indexes of the outputs.
struct Found {
    scores: usize,
    sizes: usize,
    offsets: usize,
    keypoints: usize,
}

impl BoxScheme for CenterFace {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        find(outputs, input).map(|_| 1)
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let found = find(outputs, input)?;
        for (cell_idx, &score) in outputs[found.scores].data.iter().enumerate() {
            if score > score_min {
                let (rect, keypoints) = (place(outputs, &found, cell_idx), &outputs[found.keypoints]);
                results.boxes.push(RawDetection { rect, score, class_id: 0, row: cell_idx as u32 });
                let value = |channel: usize| keypoints.data[channel * n_cells(keypoints) + cell_idx];
                // The map has the y coordinate of each keypoint before the x coordinate, as the size map has the height before
                // the width.
                let point = |point_idx: usize| Point {
                    x: rect.x + value(2 * point_idx + 1) * rect.width,
                    y: rect.y + value(2 * point_idx) * rect.height,
                };
                results.add_keypoints(cell_idx as u32, (0..N_KEYPOINTS).map(point));
            }
        }
        Ok(())
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.5, iou: 0.3, ..Default::default() }
    }

    fn roles(&self) -> &'static [&'static str] {
        &["scale", "offset"]
    }
}

fn place(outputs: &[Output<'_>], found: &Found, cell_idx: usize) -> Rect {
    let [sizes, offsets] = [&outputs[found.sizes], &outputs[found.offsets]];
    let both = |map: &Output<'_>| [map.data[cell_idx], map.data[n_cells(map) + cell_idx]];
    let ([log_height, log_width], [down, right]) = (both(sizes), both(offsets));
    let n_columns = sizes.shape[3];
    let (column, line, pixels) = ((cell_idx % n_columns) as f32, (cell_idx / n_columns) as f32, STRIDE as f32);
    let (x, y) = ((column + right + 0.5) * pixels, (line + down + 0.5) * pixels);
    Rect::from_center(x, y, log_width.exp() * pixels, log_height.exp() * pixels)
}

/// Returns the number of cells of a map, which is the number of values of one channel.
fn n_cells(map: &Output<'_>) -> usize {
    map.shape[2] * map.shape[3]
}

fn find<P: Port>(outputs: &[P], input: Size) -> Result<Found> {
    let (n_lines, n_columns) = ((input.height / STRIDE) as usize, (input.width / STRIDE) as usize);
    let is_map = |shape: &[usize], n_channels: usize| {
        shape.len() == 4 && shape[1] == n_channels && !differs(shape[2], n_lines) && !differs(shape[3], n_columns)
    };
    let is_pair = |shape: &[usize]| is_map(shape, 2);
    let pairs = || {
        let mut pairs = (0..outputs.len()).filter(|&port| is_pair(outputs[port].shape()));
        let (first, second) = (pairs.next()?, pairs.next()?);
        let (sizes, offsets) = (named(outputs, "scale", is_pair), named(outputs, "offset", is_pair));
        let is_only = pairs.next().is_none();
        is_only.then(|| sizes.zip(offsets).filter(|(sizes, offsets)| sizes != offsets).unwrap_or((first, second)))
    };
    let found = || {
        let (sizes, offsets) = pairs()?;
        let (scores, keypoints) = (only(outputs, |shape| is_map(shape, 1))?, only(outputs, |shape| is_map(shape, 2 * N_KEYPOINTS))?);
        Some(Found { scores, sizes, offsets, keypoints })
    };
    found().ok_or_else(|| {
        let expected =
            format!("outputs [1, 1, {n_lines}, {n_columns}], [1, 2, ...] (scale), [1, 2, ...] (offset) and [1, 10, ...] of the same maps");
        unexpected("centerface", expected, outputs)
    })
}
