//! YOLOv10, YOLO26, RT-DETR exports and similar models with a list of final boxes: corners, score, class, and mask coefficients, keypoints
//! or an angle. With an angle, or with `box-format = "center"`, rows have center and size instead of corners. The model includes NMS, or
//! needs none.

use serde::Deserialize;

use super::boxes::BoxFormat;
use super::extra::Extra;
use super::{
    Activation, BoxScheme, BoxThresholds, Coordinates, Output, Port, RawDetection, Results, ScoreRange, Section, class_of, only, unexpected,
};
use crate::frame::Size;
use crate::tensor::Result;

/// Number of columns before the additional values: corners (or center and size), score, class.
const N_LEADING: usize = 6;

/// Output `[1, N, 6 + additional values]`, and prototypes for masks.
#[derive(Debug)]
pub(super) struct YoloV10 {
    extra: Extra,
    format: BoxFormat,
}

/// Description key of the first four columns.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct FormatKeys {
    /// What the first four columns are. Default: corners.
    #[serde(default)]
    box_format: BoxFormat,
}

impl YoloV10 {
    /// A list whose rows have no additional values.
    pub(super) fn plain(section: &mut Section<'_>) -> Result<Self> {
        let FormatKeys { box_format: format } = section.keys()?;
        Ok(Self { extra: Extra::None, format })
    }

    pub(super) fn with(extra: Extra) -> Self {
        Self { extra, format: BoxFormat::Corners }
    }

    fn find<P: Port>(&self, outputs: &[P]) -> Result<usize> {
        let Self { extra, .. } = self;
        let fits = |shape: &[usize]| {
            let n_values = |n_columns: usize| if n_columns == usize::MAX { Some(n_columns) } else { n_columns.checked_sub(N_LEADING) };
            shape.len() == 3 && n_values(shape[2]).is_some_and(|n_values| extra.fits(n_values, outputs))
        };
        only(outputs, fits).ok_or_else(|| {
            let (name, more, further) = (format!("yolov10{}", extra.suffix()), extra.words(), extra.further_outputs());
            let expected = match extra {
                Extra::None => "one output [1, N, 6]: corners, score, class".to_owned(),
                Extra::Angle => "one output [1, N, 7]: center, size, score, class, angle".to_owned(),
                _ => format!("one output [1, N, 6{more}]: corners, score, class{}{further}", more.replace(" +", ",")),
            };
            unexpected(&name, expected, outputs)
        })
    }
}

/// Values of a row in front of the score.
fn place(output: &Output<'_>, row: u32) -> [f32; 4] {
    let row = &output.data[row as usize * output.shape[2]..];
    [row[0], row[1], row[2], row[3]]
}

/// Additional values of a row.
fn rest<'a>(output: &Output<'a>, row: u32) -> &'a [f32] {
    &output.data[row as usize * output.shape[2]..][N_LEADING..output.shape[2]]
}

impl BoxScheme for YoloV10 {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        self.find(outputs).map(|_| 0)
    }

    fn candidates(&self, outputs: &[Output<'_>], _input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let output = &outputs[self.find(outputs)?];
        for (row_idx, row) in output.data.chunks_exact(output.shape[2]).enumerate() {
            let &[first, second, third, fourth, score, class, ..] = row else { unreachable!("`find` checks the number of columns") };
            results.look_at_class(class);
            if let Some(class_id) = class_of(class).filter(|_| score > score_min) {
                let place = [first, second, third, fourth];
                let rect = match &self.extra {
                    Extra::Angle => self.extra.rect(place, || row[N_LEADING]),
                    _ => self.format.rect(place),
                };
                results.boxes.push(RawDetection { rect, score, class_id, row: row_idx as u32 });
            }
        }
        Ok(())
    }

    fn missing_activation(&self) -> Option<Activation> {
        Some(Activation::Sigmoid)
    }

    fn score_ranges(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<Vec<ScoreRange>> {
        Ok(vec![ScoreRange { output_idx: self.find(outputs)?, axis: 2, begin: 4, end: 5 }])
    }

    fn coordinates(&self) -> Option<Coordinates> {
        matches!(self.extra, Extra::None).then_some(Coordinates::Pixels)
    }

    fn add_attributes(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let output = &outputs[self.find(outputs)?];
        self.extra.add_to(results, outputs, input, |row| place(output, row), |row, values| values.extend(rest(output, row)));
        Ok(())
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
    fn rows_may_have_centers_and_sizes() {
        let rows = [0.5, 0.5, 0.25, 0.5, 0.875, 3.0, 0.0, 0.0, 0.5, 0.5, 0.125, 1.0];
        let output = Output { name: "output0", shape: &[1, 2, 6], data: &rows };
        let found = |keys: &str| boxes(&*decoder("yolov10", keys), &[output], Size::new(64, 32))[0];
        let of_centers = found("box-format = \"center\"\ncoordinates = \"normalized\"");
        assert_eq!((of_centers.class_id, of_centers.score), (3, 0.875));
        assert_eq!(of_centers.rect, Rect::from_corners(24.0, 8.0, 40.0, 24.0));
        assert_eq!(decoder("yolov10-obb", "").check(&[("y", &[1, 2, 7])], Size::new(64, 32)), Ok(0));
    }
}
