//! YOLOX (Ge et al., 2021), an anchor-free detector. For each cell of three grids the output has the offset of the box, the logarithm of
//! its size, objectness, and class scores (after sigmoid). Exports that decode boxes in the model have center and size in input pixels
//! instead.

use serde::Deserialize;

use super::grid::{self, Grid};
use super::{Activation, BoxScheme, BoxThresholds, Output, Port, RawDetection, Results, ScoreRange, best_class, differs, only, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::{Error, ErrorKind, Result};

/// Strides in pixels, in the order of the grids in the output.
const STRIDES: [u32; 3] = [8, 16, 32];
/// Number of columns before the class scores: x, y, width, height, objectness.
const N_LEADING: usize = 5;

/// Output `[1, N, 5 + classes]`.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) struct Yolox {
    /// Whether the model decodes its boxes: center and size in pixels, as `--decode_in_inference` exports them. Default: false.
    #[serde(default)]
    decoded: bool,
}

impl BoxScheme for Yolox {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        let n_columns = outputs[find(outputs, input)?].1[2];
        Ok(if n_columns == usize::MAX { 0 } else { (n_columns - N_LEADING) as u32 })
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let output = &outputs[find(outputs, input)?];
        let mut rows = output.data.chunks_exact(output.shape[2]).enumerate();
        for grid in STRIDES.map(|stride| Grid::new(input, stride)) {
            for (cell_idx, (row_idx, row)) in rows.by_ref().take(grid.n_cells()).enumerate() {
                let (leading, class_scores) = row.split_at(N_LEADING);
                let objectness = leading[4];
                // The score is objectness times class score, and class scores are at most 1. So cells with a low objectness are skipped
                // without reading their class scores. Most cells have a low objectness.
                if objectness.is_nan() || objectness <= score_min {
                    continue;
                }
                let (class_id, class_score) = best_class(class_scores);
                let score = objectness * class_score;
                if score > score_min {
                    let ((column, line), pixels) = (grid.place(cell_idx), grid.stride as f32);
                    let rect = if self.decoded {
                        Rect::from_center(leading[0], leading[1], leading[2], leading[3])
                    } else {
                        let (x, y) = ((leading[0] + column) * pixels, (leading[1] + line) * pixels);
                        Rect::from_center(x, y, leading[2].exp() * pixels, leading[3].exp() * pixels)
                    };
                    results.boxes.push(RawDetection { rect, score, class_id, row: row_idx as u32 });
                }
            }
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Sigmoid)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<Vec<ScoreRange>> {
        let output_idx = find(outputs, input)?;
        Ok(vec![ScoreRange { output_idx, axis: 2, begin: 4, end: outputs[output_idx].1[2] }])
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.3, iou: 0.45, ..Default::default() }
    }
}

fn find<P: Port>(outputs: &[P], input: Size) -> Result<usize> {
    let largest = STRIDES[STRIDES.len() - 1];
    if !input.width.is_multiple_of(largest) || !input.height.is_multiple_of(largest) {
        return Err(Error::new(
            ErrorKind::Shape,
            format!("decoder `yolox`: expected an input whose width and height are multiples of {largest} pixels, got {input}"),
        ));
    }
    let port = only(outputs, |shape| shape.len() == 3 && shape[2] > N_LEADING)
        .ok_or_else(|| unexpected("yolox", "one output [1, N, 5 + classes]", outputs))?;
    let n_cells = grid::n_cells(input, &STRIDES);
    if differs(outputs[port].shape()[1], n_cells) {
        let expected = format!("one output [1, {n_cells}, 5 + classes], with one row per cell of an input of {input}");
        return Err(unexpected("yolox", expected, outputs));
    }
    Ok(port)
}

#[cfg(test)]
mod tests {
    use crate::decode::tests::{boxes, decoder};
    use crate::decode::{Output, RawDetection};
    use crate::frame::{Rect, Size};

    /// With this size, the three grids have 8x4, 4x2 and 2x1 cells.
    const INPUT: Size = Size::new(64, 32);
    const N_CELLS: usize = 42;
    const N_COLUMNS: usize = 7;

    fn decode(cells: &[(usize, [f32; N_COLUMNS])]) -> Vec<RawDetection> {
        let mut data = vec![0.0; N_CELLS * N_COLUMNS];
        for (cell_idx, row) in cells {
            data[cell_idx * N_COLUMNS..][..N_COLUMNS].copy_from_slice(row);
        }
        let output = Output { name: "output", shape: &[1, N_CELLS, N_COLUMNS], data: &data };
        boxes(&*decoder("yolox", ""), &[output], INPUT)
    }

    #[test]
    fn cells_of_each_grid_are_at_their_positions() {
        #[derive(Debug)]
        struct Case(usize, (f32, f32), f32);
        // The cells are column 3, line 1 of the grid with 8 columns; column 2, line 1 of the grid with 4 columns; and column 1 of
        // the grid with 2 columns.
        for case in [Case(8 + 3, (28.0, 12.0), 8.0), Case(32 + 4 + 2, (40.0, 24.0), 16.0), Case(40 + 1, (48.0, 16.0), 32.0)] {
            let boxes = decode(&[(case.0, [0.5, 0.5, 2_f32.ln(), 0.0, 0.8, 0.25, 0.75])]);
            assert_eq!(boxes.len(), 1, "{case:?}");
            let Rect { x, y, width, height } = boxes[0].rect;
            assert!((width - 2.0 * case.2).abs() < 1e-4 && (height - case.2).abs() < 1e-4, "{case:?}: {boxes:?}");
            let center = (x + width / 2.0, y + height / 2.0);
            assert!((center.0 - case.1.0).abs() < 1e-4 && (center.1 - case.1.1).abs() < 1e-4, "{case:?}: {boxes:?}");
            assert_eq!((boxes[0].class_id, boxes[0].score), (1, 0.8 * 0.75), "{case:?}");
        }
    }

    #[test]
    fn decoded_boxes_are_centers_and_sizes_in_pixels() {
        let mut data = vec![0.0; N_CELLS * N_COLUMNS];
        data[40 * N_COLUMNS..][..N_COLUMNS].copy_from_slice(&[20.0, 12.0, 16.0, 8.0, 0.8, 0.25, 0.75]);
        let output = Output { name: "output", shape: &[1, N_CELLS, N_COLUMNS], data: &data };
        let boxes = boxes(&*decoder("yolox", "decoded = true"), &[output], INPUT);
        let rect = Rect { x: 12.0, y: 8.0, width: 16.0, height: 8.0 };
        assert_eq!(boxes, [RawDetection { rect, score: 0.8 * 0.75, class_id: 1, row: 40 }]);
    }

    #[test]
    fn boxes_suppress_each_other_within_a_class_only() {
        let row = |objectness, class_scores: [f32; 2]| [0.0, 0.0, 2.0, 2.0, objectness, class_scores[0], class_scores[1]];
        let boxes = decode(&[(9, row(0.9, [1.0, 0.0])), (10, row(0.8, [1.0, 0.0])), (11, row(0.7, [0.0, 1.0]))]);
        let kept: Vec<_> = boxes.iter().map(|kept| (kept.score, kept.class_id)).collect();
        assert_eq!(kept, [(0.9, 0), (0.7, 1)]);
    }

    #[test]
    fn low_scores_and_invalid_cells_are_dropped() {
        let cells = [
            (0, [0.0, 0.0, 0.0, 0.0, 0.5, 0.6, 0.0]),
            (1, [f32::NAN, 0.0, 0.0, 0.0, 0.9, 0.9, 0.0]),
            (2, [0.0, 0.0, 1e9, 0.0, 0.9, 0.9, 0.0]),
            (3, [0.0, 0.0, 0.0, 0.0, f32::NAN, 0.9, 0.0]),
            (4, [0.0, 0.0, 0.0, 0.0, 0.9, 0.0, f32::NAN]),
            (5, [0.0, 0.0, 0.0, 0.0, 0.9, -0.1, 0.0]),
        ];
        assert_eq!(decode(&cells), []);
    }

    #[test]
    fn wrong_input_or_output_size_is_an_error_with_both_numbers() {
        let check = |input, shape: &[usize]| decoder("yolox", "").check(&[("output", shape)], input);
        let size = Size::new(416, 416);
        assert_eq!(check(size, &[1, 3549, 85]), Ok(80));
        assert_eq!(check(size, &[usize::MAX, usize::MAX, 85]), Ok(80));
        assert_eq!(check(size, &[1, 3549, usize::MAX]), Ok(0));
        for (input, shape, parts) in [
            (size, &[1, 3548, 85][..], ["3549", "3548"]),
            (Size::new(416, 384), &[1, 3549, 85], ["3276", "3549"]),
            (Size::new(416, 400), &[1, 3549, 85], ["32 pixels", "416x400"]),
            (size, &[1, 3549, 5], ["[1, N, 5 + classes]", "[1, 3549, 5]"]),
            (size, &[3549, 85], ["[1, N, 5 + classes]", "[3549, 85]"]),
        ] {
            let message = check(input, shape).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}
