//! FastestDet (dog-qiuqiu, 2022), an anchor-free detector with one grid. Each cell has objectness (after sigmoid), class scores (after
//! softmax), the offset of the box center from the cell (before tanh), and the size as a fraction of the input (before sigmoid).

use super::activate::sigmoid;
use super::{BoxScheme, BoxThresholds, Output, Port, RawDetection, Results, only, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Number of channels before the class scores: objectness, x, y, width, height.
const N_LEADING: usize = 5;
/// The score is `objectness ^ 0.6 * class score ^ 0.4`.
const EXPONENTS: [f32; 2] = [0.6, 0.4];

/// Output `[1, 5 + classes, h, w]`.
#[derive(Debug)]
pub(super) struct FastestDet;

impl BoxScheme for FastestDet {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        let n_channels = outputs[find(outputs, input)?].1[1];
        Ok(if n_channels == usize::MAX { 0 } else { (n_channels - N_LEADING) as u32 })
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let output = &outputs[find(outputs, input)?];
        let (n_channels, n_lines, n_columns) = (output.shape[1], output.shape[2], output.shape[3]);
        let n_cells = n_lines * n_columns;
        let (width, height) = (input.width as f32, input.height as f32);
        for cell_idx in 0..n_cells {
            let at = |channel: usize| output.data[channel * n_cells + cell_idx];
            // Class scores are at most 1, so the factor of the objectness is an upper limit of the score.
            let of_objectness = at(0).powf(EXPONENTS[0]);
            if of_objectness.is_nan() || of_objectness <= score_min {
                continue;
            }
            let (mut class_id, mut best) = (0, f32::NEG_INFINITY);
            for class in N_LEADING..n_channels {
                if at(class) > best {
                    (class_id, best) = ((class - N_LEADING) as u32, at(class));
                }
            }
            // Without a valid class score, `best` is negative infinity, whose power is positive infinity.
            let score = of_objectness * best.max(0.0).powf(EXPONENTS[1]);
            if score > score_min {
                let (column, line) = ((cell_idx % n_columns) as f32, (cell_idx / n_columns) as f32);
                let x = (column + at(1).tanh()) / n_columns as f32 * width;
                let y = (line + at(2).tanh()) / n_lines as f32 * height;
                let rect = Rect::from_center(x, y, sigmoid(at(3)) * width, sigmoid(at(4)) * height);
                results.boxes.push(RawDetection { rect, score, class_id, row: cell_idx as u32 });
            }
        }
        Ok(())
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.65, iou: 0.45, ..Default::default() }
    }
}

/// Returns the index of the only map with enough channels whose cells have a whole number of pixels of the input.
fn find<P: Port>(outputs: &[P], input: Size) -> Result<usize> {
    let divides = |pixels: u32, cells: usize| cells == usize::MAX || (cells > 0 && (pixels as usize).is_multiple_of(cells));
    let is_map = |shape: &[usize]| match *shape {
        [_, n_channels, rows, columns] => n_channels > N_LEADING && divides(input.height, rows) && divides(input.width, columns),
        _ => false,
    };
    let expected = "one output [1, 5 + classes, h, w], with a whole number of pixels per cell";
    only(outputs, is_map).ok_or_else(|| unexpected("fastestdet", expected, outputs))
}

#[cfg(test)]
mod tests {
    use crate::decode::Output;
    use crate::decode::tests::{boxes, decoder};
    use crate::frame::{Rect, Size};

    const INPUT: Size = Size::new(64, 32);

    #[test]
    fn center_is_relative_to_the_corner_of_the_cell() {
        // Eight channels of a grid with four columns and two lines. The object is in column 2 of line 1.
        let mut data = [0.0; 8 * 8];
        for (channel, value) in [0.81, 0.5_f32.atanh(), -(0.25_f32.atanh()), 0.0, 3_f32.ln(), 0.1, 0.9, 0.0].into_iter().enumerate() {
            data[channel * 8 + 4 + 2] = value;
        }
        let output = Output { name: "output", shape: &[1, 8, 2, 4], data: &data };
        let found = boxes(&*decoder("fastestdet", ""), &[output], INPUT);
        assert_eq!((found.len(), found[0].class_id, found[0].row), (1, 1, 6));
        assert!((found[0].score - 0.81_f32.powf(0.6) * 0.9_f32.powf(0.4)).abs() < 1e-6);
        let (rect, expected) = (found[0].rect, Rect::from_center(40.0, 12.0, 32.0, 24.0));
        let edges = |rect: Rect| [rect.x, rect.y, rect.width, rect.height];
        assert!(edges(rect).iter().zip(edges(expected)).all(|(edge, expected)| (edge - expected).abs() < 1e-4), "{rect:?}");
    }

    #[test]
    fn invalid_objectness_gives_no_box() {
        for objectness in [-0.5, f32::NAN, 0.0] {
            let mut data = [1.0; 6];
            data[0] = objectness;
            assert_eq!(boxes(&*decoder("fastestdet", ""), &[Output { name: "y", shape: &[1, 6, 1, 1], data: &data }], INPUT), []);
        }
    }

    #[test]
    fn invalid_class_scores_give_no_box() {
        for class_scores in [[f32::NAN; 2], [f32::NEG_INFINITY; 2], [-0.5, f32::NAN]] {
            let data = [&[1.0; 5][..], &class_scores].concat();
            assert_eq!(boxes(&*decoder("fastestdet", ""), &[Output { name: "y", shape: &[1, 7, 1, 1], data: &data }], INPUT), []);
        }
    }
}
