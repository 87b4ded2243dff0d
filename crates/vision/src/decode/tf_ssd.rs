//! Final boxes of TensorFlow's Object Detection API and TensorFlow Lite.
//!
//! The four outputs are corners in 0..=1 with y first, classes, scores, and the number of boxes. The model includes NMS.

use super::{BoxScheme, Coordinates, Output, Port, RawDetection, Results, class_of, named, only, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Outputs `[1, N, 4]`, `[1, N]`, `[1, N]` and optionally `[1]`.
#[derive(Debug)]
pub(super) struct TfSsd;

/// Indexes of the outputs.
struct Found {
    boxes: usize,
    classes: usize,
    scores: usize,
    count: Option<usize>,
}

impl BoxScheme for TfSsd {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        find(outputs).map(|_| 0)
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let found = find(outputs)?;
        let (width, height) = (input.width as f32, input.height as f32);
        let corners = outputs[found.boxes].data.chunks_exact(4);
        let rows = corners.zip(outputs[found.classes].data).zip(outputs[found.scores].data);
        // The cast saturates: NaN becomes 0 rows, and a number that is too large becomes all rows.
        let count = found.count.and_then(|count| outputs[count].data.first()).map_or(usize::MAX, |&count| count as usize);
        for (row_idx, ((corners, &class), &score)) in rows.take(count).enumerate() {
            let &[y_min, x_min, y_max, x_max] = corners else { unreachable!("chunks are of this length") };
            if let Some(class_id) = class_of(class).filter(|_| score > score_min) {
                let rect = Rect::from_corners(x_min * width, y_min * height, x_max * width, y_max * height);
                results.boxes.push(RawDetection { rect, score, class_id, row: row_idx as u32 });
            }
        }
        Ok(())
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Normalized)
    }

    fn overlaps(&self) -> bool {
        false
    }

    fn roles(&self) -> &'static [&'static str] {
        &["class", "score"]
    }
}

/// Finds the outputs. Classes and scores have the same shape, so their names identify them.
fn find<P: Port>(outputs: &[P]) -> Result<Found> {
    let is_list = |shape: &[usize]| shape.len() == 2;
    let find = || {
        let boxes = only(outputs, |shape| shape.len() == 3 && shape[2] == 4)?;
        // Names of the TensorFlow Lite converters, which number the outputs: of the last operation in TensorFlow 1, of the model in
        // TensorFlow 2 (SSD, EfficientDet-Lite).
        let lite = |ends: [&str; 2]| {
            (0..outputs.len()).find(|&idx| ends.iter().any(|end| outputs[idx].name().ends_with(end)) && is_list(outputs[idx].shape()))
        };
        let classes = named(outputs, "class", is_list).or_else(|| lite(["PostProcess:1", "StatefulPartitionedCall:2"]))?;
        let scores = named(outputs, "score", is_list).or_else(|| lite(["PostProcess:2", "StatefulPartitionedCall:1"]))?;
        let count = only(outputs, |shape| shape.iter().all(|&extent| extent == 1));
        (classes != scores).then_some(Found { boxes, classes, scores, count })
    };
    let expected = "outputs [1, N, 4], [1, N] (its name with `class`), [1, N] (its name with `score`) and [1], or `tensors = { class = ..., score = ... }`";
    find().ok_or_else(|| unexpected("tf-ssd", expected, outputs))
}
