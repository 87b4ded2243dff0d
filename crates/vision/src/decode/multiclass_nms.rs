//! The list format of Paddle's operation `multiclass_nms`: class, score and corners in input pixels. PP-YOLOE, PP-YOLO and PicoDet, as
//! PaddleDetection exports them, end with this operation. The list of its RT-DETR has the same columns. The model includes NMS, or needs
//! none.

use super::{BoxScheme, Coordinates, Output, Port, RawDetection, Results, class_of, only, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Columns: class, score, corners.
const N_COLUMNS: usize = 6;

/// Output `[N, 6]` or `[1, N, 6]`. Other outputs, such as the number of boxes, are ignored.
#[derive(Debug)]
pub(super) struct MulticlassNms;

impl BoxScheme for MulticlassNms {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        find(outputs).map(|_| 0)
    }

    fn candidates(&self, outputs: &[Output<'_>], _input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        for (row_idx, row) in (0..).zip(outputs[find(outputs)?].data.as_chunks::<N_COLUMNS>().0) {
            let &[class, score, x_min, y_min, x_max, y_max] = row;
            // Unused rows have the class -1.
            if let Some(class_id) = class_of(class).filter(|_| score > score_min) {
                results.boxes.push(RawDetection { rect: Rect::from_corners(x_min, y_min, x_max, y_max), score, class_id, row: row_idx });
            }
        }
        Ok(())
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Pixels)
    }

    fn overlaps(&self) -> bool {
        false
    }

    fn takes_unbatched(&self) -> bool {
        true
    }
}

fn find<P: Port>(outputs: &[P]) -> Result<usize> {
    only(outputs, |shape| matches!(shape, [_, N_COLUMNS] | [1 | usize::MAX, _, N_COLUMNS]))
        .ok_or_else(|| unexpected("multiclass-nms", "one output [N, 6] or [1, N, 6]: class, score, corners", outputs))
}

#[cfg(test)]
mod tests {
    use crate::decode::tests::{boxes, decoder};
    use crate::decode::{Output, RawDetection};
    use crate::frame::{Rect, Size};

    #[test]
    fn rows_are_class_score_and_corners() {
        let rows = [2.0, 0.9, 1.0, 2.0, 11.0, 22.0, -1.0, 0.8, 0.0, 0.0, 5.0, 5.0, 0.0, 0.3, 0.0, 0.0, 5.0, 5.0];
        let count = Output { name: "count", shape: &[1], data: &[3.0] };
        let expected = RawDetection { rect: Rect::from_corners(1.0, 2.0, 11.0, 22.0), score: 0.9, class_id: 2, row: 0 };
        for shape in [&[3, 6][..], &[1, 3, 6]] {
            let list = Output { name: "multiclass_nms3_0.tmp_0", shape, data: &rows };
            for count in [count, Output { shape: &[], ..count }] {
                assert_eq!(boxes(&*decoder("multiclass-nms", ""), &[list, count], Size::new(64, 32)), [expected]);
            }
        }
        let none = Output { name: "list", shape: &[0, 6], data: &[] };
        assert_eq!(boxes(&*decoder("multiclass-nms", ""), &[none], Size::new(64, 32)), []);
    }
}
