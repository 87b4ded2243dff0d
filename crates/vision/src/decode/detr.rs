//! Detection transformers: DETR, RT-DETR, D-FINE, DEIM and RF-DETR. Each query gives a box; the models need no NMS. The lists of deployed
//! models are in `final_boxes.rs`.
//!
//! | decoder | outputs |
//! |---|---|
//! | `detr` | boxes (center and size, fractions of the input) and a score for each class; optionally a map of mask logits for each query |
//! | `rtdetr` | one table of center, size and class scores, as Ultralytics exports RT-DETR |

use serde::Deserialize;

use super::boxes::bad;
use super::masks::{Buffers, MapShape, Values};
use super::{
    Activation, BoxScheme, BoxThresholds, Coordinates, Output, Port, RawAttribute, RawDetection, Results, ScoreRange, best_class, differs,
    named, only, unexpected,
};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Outputs `[1, N, 4]`, `[1, N, classes]`, and optionally `[1, N, h, w]`.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) struct Detr {
    /// Index of the class for queries without an object.
    background: Option<u32>,
}

impl BoxScheme for Detr {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let n_classes = outputs[find(outputs)?.scores].1[2];
        match self.background {
            Some(background) if background as usize >= n_classes => {
                Err(bad(format!("`background`: expected a class from 0 to {}, got {background}", n_classes - 1)))
            }
            _ => Ok(if n_classes == usize::MAX { 0 } else { n_classes as u32 }),
        }
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let Found { boxes, scores, .. } = find(outputs)?;
        let (boxes, scores) = (&outputs[boxes], &outputs[scores]);
        for (row_idx, (place, scores)) in boxes.data.chunks_exact(4).zip(scores.data.chunks_exact(scores.shape[2])).enumerate() {
            let rect = rect(place, input);
            for (class_id, &score) in (0..).zip(scores) {
                if score > score_min && Some(class_id) != self.background {
                    results.boxes.push(RawDetection { rect, score, class_id, row: row_idx as u32 });
                }
            }
        }
        Ok(())
    }

    fn add_attributes(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let Some(masks) = find(outputs)?.masks.map(|masks| &outputs[masks]) else { return Ok(()) };
        add_masks(masks, input, Values::Logits, results);
        Ok(())
    }

    fn background(&self) -> Option<u32> {
        self.background
    }

    fn may_repeat(&self) -> bool {
        true
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Sigmoid)
    }

    /// The score outputs of the exported models are logits.
    fn default_activation(&self) -> Activation {
        if self.background.is_some() { Activation::Softmax } else { Activation::Sigmoid }
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        let output_idx = find(outputs)?.scores;
        Ok(vec![ScoreRange { output_idx, axis: 2, begin: 0, end: outputs[output_idx].1[2] }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Normalized)
    }

    fn overlaps(&self) -> bool {
        false
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.5, ..Default::default() }
    }

    fn roles(&self) -> &'static [&'static str] {
        &["box", "score"]
    }
}

/// Adds a mask to each box. The maps cover the input. The row of a box is the index of its map.
pub(super) fn add_masks(maps: &Output<'_>, input: Size, values: Values, results: &mut Results) {
    let Some(map) = MapShape::of(maps.shape) else { return };
    let (mut buffers, n_cells) = (Buffers::default(), map.rows * map.columns);
    for of in 0..results.boxes.len() {
        let found = results.boxes[of];
        let Some(cells) = maps.data.chunks_exact(n_cells).nth(found.row as usize) else { continue };
        let mask = buffers.mask(&found.rect, input, map, values, |row, column, values| {
            values.copy_from_slice(&cells[row * map.columns + column..][..values.len()]);
        });
        results.attributes.extend(mask.map(|outcome| RawAttribute { of: Some(of), name: Some("mask".into()), outcome }));
    }
}

/// Converts center and size in fractions of the input.
fn rect(place: &[f32], input: Size) -> Rect {
    let (width, height) = (input.width as f32, input.height as f32);
    Rect::from_center(place[0] * width, place[1] * height, place[2] * width, place[3] * height)
}

/// Indexes of outputs.
struct Found {
    boxes: usize,
    scores: usize,
    masks: Option<usize>,
}

fn find<P: Port>(outputs: &[P]) -> Result<Found> {
    let is_table = |shape: &[usize]| shape.len() == 3 && shape[2] > 0;
    let is_boxes = |shape: &[usize]| is_table(shape) && !differs(shape[2], 4);
    let by_shape = || {
        let boxes = only(outputs, is_boxes)?;
        Some((boxes, only(outputs, |shape| is_table(shape) && !is_boxes(shape))?))
    };
    let by_name = || {
        let boxes = named(outputs, "box", is_boxes).or_else(|| named(outputs, "det", is_boxes))?;
        let scores = ["score", "logit", "label"].iter().find_map(|role| named(outputs, role, is_table))?;
        Some((boxes, scores))
    };
    let is_same = |one: usize, other: usize| one == other || one == usize::MAX || other == usize::MAX;
    let fits = |&(boxes, scores): &(usize, usize)| boxes != scores && is_same(outputs[boxes].shape()[1], outputs[scores].shape()[1]);
    let expected = "outputs [1, N, 4] and [1, N, classes], or `tensors = { box = ..., score = ... }`; for masks also [1, N, h, w]";
    let (boxes, scores) = by_shape().or_else(by_name).filter(fits).ok_or_else(|| unexpected("detr", expected, outputs))?;
    let n_rows = outputs[boxes].shape()[1];
    let masks = only(outputs, |shape| shape.len() == 4 && is_same(shape[1], n_rows));
    Ok(Found { boxes, scores, masks })
}

/// Output `[1, N, 4 + classes]`.
#[derive(Debug)]
pub(super) struct RtDetr;

/// Number of columns before the class scores: center and size.
const N_LEADING: usize = 4;

impl RtDetr {
    fn find<P: Port>(outputs: &[P]) -> Result<usize> {
        only(outputs, |shape| shape.len() == 3 && shape[2] > N_LEADING)
            .ok_or_else(|| unexpected("rtdetr", "one output [1, N, 4 + classes]", outputs))
    }
}

impl BoxScheme for RtDetr {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let n_columns = outputs[Self::find(outputs)?].1[2];
        Ok(if n_columns == usize::MAX { 0 } else { (n_columns - N_LEADING) as u32 })
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let output = &outputs[Self::find(outputs)?];
        for (row_idx, row) in output.data.chunks_exact(output.shape[2]).enumerate() {
            let (class_id, score) = best_class(&row[N_LEADING..]);
            if score > score_min {
                results.boxes.push(RawDetection { rect: rect(row, input), score, class_id, row: row_idx as u32 });
            }
        }
        Ok(())
    }

    fn may_repeat(&self) -> bool {
        true
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Sigmoid)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        let output_idx = Self::find(outputs)?;
        Ok(vec![ScoreRange { output_idx, axis: 2, begin: N_LEADING, end: outputs[output_idx].1[2] }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        Some(Coordinates::Normalized)
    }

    fn overlaps(&self) -> bool {
        false
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.25, ..Default::default() }
    }
}

#[cfg(test)]
mod tests {
    use crate::decode::Output;
    use crate::decode::tests::{boxes, decoder};
    use crate::frame::{Rect, Size};

    #[test]
    fn rows_of_rtdetr_are_center_size_and_class_scores() {
        let rows = [0.5, 0.5, 0.2, 0.4, 0.1, 0.8, 0.25, 0.5, 0.5, 1.0, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.2, f32::NAN];
        let found = boxes(&*decoder("rtdetr", ""), &[Output { name: "output0", shape: &[1, 3, 6], data: &rows }], Size::new(100, 50));
        let found: Vec<_> = found.iter().map(|found| (found.class_id, found.score, found.rect)).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].0, found[0].1, found[1].0, found[1].1), (1, 0.8, 0, 0.3));
        for (rect, expected) in
            [(found[0].2, Rect::from_corners(40.0, 15.0, 60.0, 35.0)), (found[1].2, Rect::from_corners(0.0, 0.0, 50.0, 50.0))]
        {
            let edges = |rect: Rect| [rect.x, rect.y, rect.width, rect.height];
            assert!(edges(rect).iter().zip(edges(expected)).all(|(edge, expected)| (edge - expected).abs() < 1e-4), "{rect:?}");
        }
        let check = |shape: &[usize]| decoder("rtdetr", "").check(&[("output0", shape)], Size::new(100, 50));
        assert_eq!(check(&[1, 300, 84]).unwrap(), 80);
        assert!(check(&[1, 300, 4]).is_err() && check(&[300, 84]).is_err());
    }
}
