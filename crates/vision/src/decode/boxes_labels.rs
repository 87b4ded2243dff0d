//! Final boxes in two outputs: corners in input pixels with a score, and class indexes. This is the format of OpenVINO Training Extensions,
//! Geti, MMDeploy and some Open Model Zoo models. The model includes NMS. Models of instance segmentation also have a map for each box.

use serde::Deserialize;

use super::masks::{Buffers, MapShape, Values};
use super::{
    Activation, BoxScheme, Coordinates, Output, Port, RawAttribute, RawDetection, Results, ScoreRange, class_of, detr, only, unexpected,
};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Outputs `[N, 5]` and `[N]`, optionally with a batch axis. If the model lacks the second output, all boxes have class 0.
#[derive(Debug)]
pub(super) struct BoxesLabels {
    /// How the third output, `[N, h, w]`, is read; `None` if it is not read.
    pub(super) masks: Option<Masks>,
}

/// Description keys of the maps of masks.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) struct Masks {
    /// What a map covers: the whole input (RTMDet-Ins), or the box of its object (Mask R-CNN). Default: input.
    #[serde(default)]
    mask_area: MaskArea,
    /// Whether maps have probabilities or logits. Default: probabilities.
    #[serde(default)]
    mask_values: MaskValues,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum MaskArea {
    #[default]
    Input,
    Box,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum MaskValues {
    #[default]
    Probabilities,
    Logits,
}

impl BoxesLabels {
    fn find<P: Port>(&self, outputs: &[P]) -> Result<(usize, Option<usize>)> {
        let found = find(outputs, if self.masks.is_some() { "boxes-masks" } else { "boxes-labels" })?;
        if self.masks.is_some() && find_masks(outputs, found.0).is_none() {
            let expected = "outputs [N, 5]: corners and score; [N]: classes; and [N, h, w]: masks, all with or without a batch axis";
            return Err(unexpected("boxes-masks", expected, outputs));
        }
        Ok(found)
    }
}

/// Index of the output with a map for each of the boxes.
fn find_masks<P: Port>(outputs: &[P], boxes: usize) -> Option<usize> {
    let rows = &outputs[boxes].shape()[..outputs[boxes].shape().len() - 1];
    let fits = |(&extent, &of_rows): (&usize, &usize)| extent == of_rows || extent == usize::MAX || of_rows == usize::MAX;
    only(outputs, |shape| shape.len() == rows.len() + 2 && shape.iter().zip(rows).all(fits))
}

impl BoxScheme for BoxesLabels {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        self.find(outputs).map(|_| 0)
    }

    fn candidates(&self, outputs: &[Output<'_>], _input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let (rows, labels) = self.find(outputs)?;
        for (row_idx, row) in outputs[rows].data.chunks_exact(5).enumerate() {
            let &[x_min, y_min, x_max, y_max, score] = row else { unreachable!("chunks are of this length") };
            let class = labels.map_or(Some(0.0), |labels| outputs[labels].data.get(row_idx).copied());
            if let Some(class_id) = class.and_then(class_of).filter(|_| score > score_min) {
                let rect = Rect::from_corners(x_min, y_min, x_max, y_max);
                results.boxes.push(RawDetection { rect, score, class_id, row: row_idx as u32 });
            }
        }
        Ok(())
    }

    fn add_attributes(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let (boxes, _) = self.find(outputs)?;
        let Some((keys, masks)) = self.masks.as_ref().zip(find_masks(outputs, boxes)) else { return Ok(()) };
        let (maps, values) = match keys.mask_values {
            MaskValues::Probabilities => (&outputs[masks], Values::Probabilities),
            MaskValues::Logits => (&outputs[masks], Values::Logits),
        };
        if keys.mask_area == MaskArea::Input {
            detr::add_masks(maps, input, values, results);
            return Ok(());
        }
        let Some(map) = MapShape::of(maps.shape) else { return Ok(()) };
        let mut buffers = Buffers::default();
        for of in 0..results.boxes.len() {
            let found = results.boxes[of];
            let Some(cells) = maps.data.chunks_exact(map.rows * map.columns).nth(found.row as usize) else { continue };
            let mask = buffers.mask_of_box(&found.rect, input, map, values, |row, column, values| {
                values.copy_from_slice(&cells[row * map.columns + column..][..values.len()]);
            });
            results.attributes.extend(mask.map(|outcome| RawAttribute { of: Some(of), name: Some("mask".into()), outcome }));
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Sigmoid)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        let (output_idx, _) = self.find(outputs)?;
        Ok(vec![ScoreRange { output_idx, axis: outputs[output_idx].1.len() - 1, begin: 4, end: 5 }])
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

    fn takes_unbatched_maps(&self) -> bool {
        self.masks.is_some()
    }
}

/// Returns the indexes of the outputs with boxes and with classes. Ignores all other outputs, such as saliency maps.
fn find<P: Port>(outputs: &[P], name: &str) -> Result<(usize, Option<usize>)> {
    let is_boxes = |shape: &[usize]| matches!(shape, [.., _, 5]) && shape.len() <= 3;
    let find = || {
        let boxes = only(outputs, is_boxes)?;
        let rows = &outputs[boxes].shape()[..outputs[boxes].shape().len() - 1];
        let fits = |(&extent, &of_rows): (&usize, &usize)| extent == of_rows || extent == usize::MAX || of_rows == usize::MAX;
        let is_labels = |list: &[usize]| list.len() == rows.len() && list.iter().zip(rows).all(fits);
        Some((boxes, only(outputs, is_labels)))
    };
    find().ok_or_else(|| unexpected(name, "outputs [N, 5] or [1, N, 5]: corners and score; and [N] or [1, N]: classes", outputs))
}

#[cfg(test)]
mod tests {
    use crate::decode::tests::{boxes, decoder};
    use crate::decode::{Output, RawAttribute, Results};
    use crate::frame::{Geometry, Outcome, Rect, Size};

    const ROWS: [f32; 15] = [1.0, 2.0, 11.0, 22.0, 0.9, 5.0, 5.0, 9.0, 6.0, 0.6, 0.0, 0.0, 8.0, 8.0, 0.4];

    #[test]
    fn rows_are_corners_and_score_with_separate_classes() {
        let list = |shape| Output { name: "boxes", shape, data: &ROWS };
        let labels = |shape| Output { name: "labels", shape, data: &[1.0, 7.0, 0.0] };
        let map = Output { name: "saliency_map", shape: &[1, 1, 2, 2], data: &[0.0; 4] };
        for outputs in [&[list(&[3, 5]), labels(&[3])][..], &[labels(&[1, 3]), list(&[1, 3, 5])], &[list(&[3, 5])]] {
            let found = boxes(&*decoder("boxes-labels", ""), outputs, Size::new(64, 32));
            let ids: Vec<u32> = found.iter().map(|found| found.class_id).collect();
            assert_eq!(ids, if outputs.len() == 1 { [0, 0] } else { [1, 7] });
            assert_eq!((found[0].rect, found[0].score), (Rect::from_corners(1.0, 2.0, 11.0, 22.0), 0.9));
        }
        let check = |outputs: &[(&str, &[usize])]| decoder("boxes-labels", "").check(outputs, Size::new(64, 32));
        check(&[("boxes", &[usize::MAX, 5]), ("labels", &[usize::MAX])]).unwrap();
        check(&[("a", &[1, 100, 5]), ("b", &[1, 100]), (map.name, map.shape)]).unwrap();
        for outputs in [&[("a", &[3, 6][..])][..], &[("a", &[5])], &[("a", &[3, 5]), ("b", &[3, 5])], &[("a", &[1, 1, 3, 5])]] {
            check(outputs).unwrap_err();
        }
    }

    #[test]
    fn each_box_has_its_own_map_as_mask() {
        let rows = [1.0, 1.0, 5.0, 3.0, 0.9, 0.0, 0.0, 2.0, 2.0, 0.1, 2.0, 0.0, 8.0, 4.0, 0.8];
        let (boxes, labels) =
            (Output { name: "boxes", shape: &[3, 5], data: &rows }, Output { name: "labels", shape: &[3], data: &[2.0, 0.0, 1.0] });
        let decode = |keys: &str, maps: Output<'_>| {
            let mut results = Results::default();
            decoder("boxes-masks", keys).decode(&[boxes, labels, maps], Size::new(8, 4), &mut results).unwrap();
            assert_eq!(results.boxes.iter().map(|found| (found.class_id, found.row)).collect::<Vec<_>>(), [(2, 0), (1, 2)]);
            let grid = |attribute: &RawAttribute| match &attribute.outcome {
                Outcome::Geometry(Geometry::Mask(mask)) => {
                    (attribute.of, mask.columns, mask.values.iter().map(|value| *value >= 128).collect::<Vec<_>>())
                }
                other => panic!("{other:?}"),
            };
            results.attributes.iter().map(grid).collect::<Vec<_>>()
        };
        // The maps have the size of the input. In the first map, the object covers columns 0 to 2. In the last map, the object covers row
        // 0.
        let mut maps = [0.0; 3 * 32];
        (0..32).filter(|cell| cell % 8 < 3).for_each(|cell| maps[cell] = 1.0);
        maps[64..72].fill(1.0);
        let found = decode("", Output { name: "masks", shape: &[3, 4, 8], data: &maps });
        assert_eq!(found[0], (Some(0), 4, [true, true, false, false].repeat(2)));
        assert_eq!(found[1], (Some(1), 6, (0..24).map(|cell| cell < 6).collect()));
        // A map with one cell covers the whole box.
        let found =
            decode("mask-area = \"box\"\nmask-values = \"logits\"", Output { name: "masks", shape: &[3, 1, 1], data: &[4.0, 4.0, -4.0] });
        assert_eq!(found[0], (Some(0), 4, vec![true; 8]));
        assert!(found.get(1).is_none_or(|(_, _, inside)| !inside.contains(&true)), "{found:?}");
    }
}
