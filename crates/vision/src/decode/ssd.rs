//! The list format of the `DetectionOutput` operation: final boxes after NMS.

use super::{Activation, BoxScheme, Coordinates, Output, Port, RawDetection, Results, ScoreRange, class_of, only, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Columns: image index, label, confidence, corners in 0..=1.
const N_COLUMNS: usize = 7;

/// Output `[1, 1, N, 7]`, as `DetectionOutput` of OpenVINO and Caffe.
#[derive(Debug)]
pub(super) struct Ssd;

impl BoxScheme for Ssd {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        find(outputs).map(|_| 0)
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let (width, height) = (input.width as f32, input.height as f32);
        for (row_idx, row) in outputs[find(outputs)?].data.chunks_exact(N_COLUMNS).enumerate() {
            let &[image_id, label, score, x_min, y_min, x_max, y_max] = row else { unreachable!("chunks are of this length") };
            if image_id < 0.0 {
                break;
            }
            if let Some(class_id) = class_of(label).filter(|_| score > score_min) {
                let rect = Rect::from_corners(x_min * width, y_min * height, x_max * width, y_max * height);
                results.boxes.push(RawDetection { rect, score, class_id, row: row_idx as u32 });
            }
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Sigmoid)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        Ok(vec![ScoreRange { output_idx: find(outputs)?, axis: 3, begin: 2, end: 3 }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Normalized)
    }

    fn overlaps(&self) -> bool {
        false
    }
}

fn find<P: Port>(outputs: &[P]) -> Result<usize> {
    only(outputs, |shape| shape.len() == 4 && shape[3] == N_COLUMNS && matches!(shape[1], 1 | usize::MAX))
        .ok_or_else(|| unexpected("ssd", "one output [1, 1, N, 7]", outputs))
}

#[cfg(test)]
mod tests {
    use crate::decode::tests::{boxes, decoder};
    use crate::decode::{Output, RawDetection};
    use crate::frame::{Rect, Size};

    #[rustfmt::skip]
    const ROWS: [[f32; 7]; 8] = [
        [0.0, 1.0, 0.75, 0.125, 0.25, 0.25, 0.5],
        [0.0, 1.0, 0.5, 0.0, 0.0, 0.5, 0.5],
        [0.0, 3.0, 0.875, 0.125, 0.25, 0.25, 0.5],
        [0.0, 2.0, 0.75, -0.125, 0.0, 0.25, 0.5],
        [0.0, 2.0, 0.9, 0.5, 0.5, 0.25, 0.75],
        [0.0, -1.0, 0.9, 0.0, 0.0, 0.25, 0.75],
        [-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 1.0, 0.99, 0.0, 0.0, 1.0, 1.0],
    ];

    #[test]
    fn list_ends_at_its_end_mark_and_is_sorted() {
        let output = Output { name: "detection_out", shape: &[1, 1, 8, 7], data: ROWS.as_flattened() };
        let input = Size::new(320, 240);
        let near = Rect::from_corners(40.0, 60.0, 80.0, 120.0);
        let expected = [
            RawDetection { rect: near, score: 0.875, class_id: 3, row: 2 },
            RawDetection { rect: near, score: 0.75, class_id: 1, row: 0 },
            RawDetection { rect: Rect::from_corners(-40.0, 0.0, 80.0, 120.0), score: 0.75, class_id: 2, row: 3 },
        ];
        assert_eq!(boxes(&*decoder("ssd", ""), &[output], input), expected);
        assert_eq!(boxes(&*decoder("ssd", "max-boxes = 2"), &[output], input), expected[..2]);
    }

    #[test]
    fn other_outputs_are_errors() {
        let check = |shape: &[usize]| decoder("ssd", "").check(&[("detection_out", shape)], Size::new(300, 300));
        assert_eq!(check(&[1, 1, 200, 7]), Ok(0));
        assert_eq!(check(&[1, 1, usize::MAX, 7]), Ok(0));
        assert!(check(&[1, 200, 7]).unwrap_err().to_string().contains("expected one output [1, 1, N, 7], got `detection_out` [1, 200, 7]"));
        assert!(check(&[1, 2, 200, 7]).is_err());
        assert!(check(&[1, 1, 200, 6]).is_err());
    }
}
