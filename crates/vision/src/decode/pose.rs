//! Keypoints: SimCC (RTMPose, Li et al. 2022) and MoveNet. Models with the keypoints of one object run on the region of a person, or on the
//! whole frame. The multi-person variant of MoveNet is a detector.

use std::sync::Arc;

use serde::Deserialize;

use super::boxes::bad;
use super::extra::{fits_skeleton, pose, skeleton};
use super::survey::Expected;
use super::{
    BoxScheme, BoxThresholds, Decoder, Output, Port, RawAttribute, RawDetection, Reads, Results, Section, best_class, named, one, one_port,
    only, shape_text, unexpected,
};
use crate::frame::{Keypoint, Point, Rect, Size, Skeleton};
use crate::tensor::{Error, ErrorKind, Result};

/// Description keys of decoders of keypoints.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct SkeletonKeys {
    /// Names of the keypoints, in order. Default: for 17 keypoints, the names of COCO.
    keypoint_names: Option<Vec<String>>,
    /// Pairs of indexes of connected keypoints, from 0. Default: for 17 keypoints, the skeleton of COCO.
    edges: Option<Vec<[u32; 2]>>,
}

pub(super) fn read_skeleton(section: &mut Section<'_>) -> Result<Arc<Skeleton>> {
    let SkeletonKeys { keypoint_names, edges } = section.keys()?;
    skeleton(keypoint_names, edges).map(Arc::new)
}

/// Outputs `[1, K, width * n]` and `[1, K, height * n]`: for each keypoint, a score for each column and for each row of the input, in steps
/// of 1/n pixel.
#[derive(Debug)]
pub(super) struct SimCc {
    skeleton: Arc<Skeleton>,
}

impl SimCc {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        Ok(Self { skeleton: read_skeleton(section)? })
    }

    /// Returns the indexes of the outputs for x and y. If the names do not identify the outputs, the first output is x and the second
    /// output is y.
    fn find<P: Port>(&self, outputs: &[P], input: Size) -> Result<[usize; 2]> {
        let is_list = |shape: &[usize]| shape.len() == 3 && shape[1] > 0 && shape[2] > 0;
        let expected =
            "outputs [1, K, width * n] and [1, K, height * n] named `simcc_x` and `simcc_y`, or `tensors = { x = ..., y = ... }`";
        let by_name = || Some([named(outputs, "x", is_list)?, named(outputs, "y", is_list)?]);
        let in_order = || match outputs {
            [one, other] if is_list(one.shape()) && is_list(other.shape()) => Some([0, 1]),
            _ => None,
        };
        let fits = |&[x, y]: &[usize; 2]| {
            let (x, y) = (outputs[x].shape(), outputs[y].shape());
            let is_known = [x[1], y[1], x[2], y[2]].iter().all(|extent| *extent != usize::MAX);
            let is_ratio = |extent: usize, pixels: u32| pixels > 0 && extent >= pixels as usize;
            !is_known
                || (x[1] == y[1] && is_ratio(x[2], input.width) && is_ratio(y[2], input.height) && fits_skeleton(&self.skeleton, x[1]))
        };
        by_name().filter(|[x, y]| x != y).or_else(in_order).filter(fits).ok_or_else(|| unexpected("simcc", expected, outputs))
    }
}

impl Decoder for SimCc {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        self.find(outputs, input).map(|_| 0)
    }

    /// The confidence of a keypoint is its column score or its row score, whichever is smaller. Keypoints without a positive score have the
    /// confidence 0.
    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        outputs.iter().try_for_each(Output::check)?;
        let [x, y] = self.find(outputs, input)?.map(|output_idx| &outputs[output_idx]);
        [x, y].iter().for_each(|output| results.look_at(output, Expected::Numbers));
        let scale = |output: &Output<'_>, pixels: u32| pixels as f32 / output.shape[2] as f32;
        let (x_scale, y_scale) = (scale(x, input.width), scale(y, input.height));
        let keypoint = |(columns, rows): (&[f32], &[f32])| {
            let ((column, x_score), (row, y_score)) = (best_class(columns), best_class(rows));
            let point = Point { x: column as f32 * x_scale, y: row as f32 * y_scale };
            Keypoint { point, confidence: Some(x_score.min(y_score).clamp(0.0, 1.0)) }
        };
        let points = x.data.chunks_exact(x.shape[2]).zip(y.data.chunks_exact(y.shape[2])).map(keypoint).collect();
        pose(points, &self.skeleton).into_iter().for_each(|outcome| results.say(outcome));
        Ok(())
    }

    fn roles(&self) -> &'static [&'static str] {
        &["x", "y"]
    }
}

/// Output `[1, 1, K, 3]`: y, x in fractions of the input, and confidence.
#[derive(Debug)]
pub(super) struct MoveNet {
    skeleton: Arc<Skeleton>,
}

impl MoveNet {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        Ok(Self { skeleton: read_skeleton(section)? })
    }

    fn check_shape(&self, name: &str, shape: &[usize]) -> Result<()> {
        let n_keypoints = match *shape {
            [_, 1, n_keypoints, 3] | [_, n_keypoints, 3] => n_keypoints,
            _ => 0,
        };
        if n_keypoints == 0 {
            let message = format!("output `{name}`: expected [1, 1, K, 3]: y, x and confidence, got {}", shape_text(shape));
            return Err(Error::new(ErrorKind::Shape, message));
        }
        if n_keypoints != usize::MAX && !fits_skeleton(&self.skeleton, n_keypoints) {
            return Err(bad(format!("`keypoint-names` and `edges`: expected {n_keypoints} keypoints, those of output `{name}`")));
        }
        Ok(())
    }
}

impl Decoder for MoveNet {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let (name, shape) = one_port(outputs)?;
        self.check_shape(name, shape).map(|()| 0)
    }

    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let output = one(outputs)?;
        self.check_shape(output.name, output.shape)?;
        results.look_at(&output, Expected::Numbers);
        pose(keypoints(output.data, input), &self.skeleton).into_iter().for_each(|outcome| results.say(outcome));
        Ok(())
    }

    fn reads(&self) -> Reads {
        Reads::One
    }
}

/// Converts triples (y and x in fractions of the input, confidence) to keypoints in input pixels. An incomplete triple is ignored.
fn keypoints(values: &[f32], input: Size) -> Vec<Keypoint> {
    let (width, height) = (input.width as f32, input.height as f32);
    let keypoint = |&[y, x, confidence]: &[f32; 3]| {
        let confidence = if confidence.is_nan() { 0.0 } else { confidence.clamp(0.0, 1.0) };
        Keypoint { point: Point { x: x * width, y: y * height }, confidence: Some(confidence) }
    };
    values.as_chunks().0.iter().map(keypoint).collect()
}

/// Output `[1, N, 3 * K + 5]`: for each person, y, x and confidence of K keypoints, then the box (y before x, in fractions of the input)
/// and its score. The model includes the suppression of overlapping persons.
#[derive(Debug)]
pub(super) struct MultiMoveNet {
    skeleton: Arc<Skeleton>,
}

/// Number of columns after the keypoints: top, left, bottom, right, score.
const N_TRAILING: usize = 5;

impl MultiMoveNet {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        Ok(Self { skeleton: read_skeleton(section)? })
    }

    fn find<P: Port>(&self, outputs: &[P]) -> Result<usize> {
        let fits = |n_columns: usize| {
            let n_values = n_columns.saturating_sub(N_TRAILING);
            n_columns == usize::MAX || (n_values > 0 && n_values.is_multiple_of(3) && fits_skeleton(&self.skeleton, n_values / 3))
        };
        only(outputs, |shape| shape.len() == 3 && fits(shape[2])).ok_or_else(|| {
            let expected = "one output [1, N, 3 * K + 5]: y, x and confidence of K keypoints, top, left, bottom, right, score";
            unexpected("movenet-multi", expected, outputs)
        })
    }
}

impl BoxScheme for MultiMoveNet {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        self.find(outputs).map(|_| 1)
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let output = &outputs[self.find(outputs)?];
        let (width, height) = (input.width as f32, input.height as f32);
        for (row_idx, row) in (0..).zip(output.data.chunks_exact(output.shape[2])) {
            let &[y_min, x_min, y_max, x_max, score] = &row[row.len() - N_TRAILING..] else { unreachable!("`find` checks the columns") };
            if score > score_min {
                let rect = Rect::from_corners(x_min * width, y_min * height, x_max * width, y_max * height);
                results.boxes.push(RawDetection { rect, score, class_id: 0, row: row_idx });
            }
        }
        Ok(())
    }

    fn add_attributes(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let output = &outputs[self.find(outputs)?];
        let n_columns = output.shape[2];
        for of in 0..results.boxes.len() {
            let values = &output.data[results.boxes[of].row as usize * n_columns..][..n_columns - N_TRAILING];
            let outcome = pose(keypoints(values, input), &self.skeleton);
            results.attributes.extend(outcome.map(|outcome| RawAttribute { of: Some(of), name: Some("pose".into()), outcome }));
        }
        Ok(())
    }

    fn overlaps(&self) -> bool {
        false
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.2, ..Default::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::DecoderRegistry;
    use crate::frame::{Geometry, Keypoints, Outcome};

    const INPUT: Size = Size::new(4, 6);

    fn decode(name: &str, keys: &str, outputs: &[Output<'_>]) -> Result<Vec<(f32, f32, f32)>> {
        let (decoder, mut results) = (DecoderRegistry::built_in().make_from_text(name, keys)?, Results::default());
        decoder.decode(outputs, INPUT, &mut results)?;
        match &results.attributes[0].outcome {
            Outcome::Geometry(Geometry::Keypoints(Keypoints { points, .. })) => {
                Ok(points.iter().map(|of| (of.point.x, of.point.y, of.confidence.unwrap())).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn simcc_is_the_best_column_and_row() {
        // Two keypoints, with two columns and rows per pixel.
        let (mut x, mut y) = ([0.0_f32; 16], [-1.0_f32; 24]);
        (x[5], x[8]) = (0.75, 0.25);
        y[11] = 0.5;
        let x = Output { name: "simcc_x", shape: &[1, 2, 8], data: &x };
        let y = Output { name: "simcc_y", shape: &[1, 2, 12], data: &y };
        for outputs in [[x, y], [y, x]] {
            assert_eq!(decode("simcc", "", &outputs).unwrap(), [(2.5, 5.5, 0.5), (0.0, 0.0, 0.0)]);
        }
        let unnamed = [Output { name: "a", ..x }, Output { name: "b", ..y }];
        assert_eq!(decode("simcc", "", &unnamed).unwrap()[0], (2.5, 5.5, 0.5));
        assert!(decode("simcc", "keypoint-names = [\"one\"]", &[x, y]).is_err(), "two keypoints");
        assert!(decode("simcc", "", &[x]).is_err());
    }

    #[test]
    fn movenet_has_y_first_in_fractions() {
        let output = Output { name: "y", shape: &[1, 1, 2, 3], data: &[0.5, 0.25, 0.9, 1.0, 0.0, f32::NAN] };
        assert_eq!(decode("movenet", "", &[output]).unwrap(), [(1.0, 3.0, 0.9), (0.0, 6.0, 0.0)]);
        assert!(decode("movenet", "edges = [[0, 2]]", &[output]).is_err());
    }

    #[test]
    fn each_person_has_a_box_and_a_pose() {
        // Two keypoints, then top, left, bottom, right, score.
        let rows = [0.5, 0.25, 0.9, 1.0, 0.0, 0.1, 0.0, 0.5, 0.5, 1.0, 0.8, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 1.0, 1.0, 0.1];
        let output = Output { name: "output_0", shape: &[1, 2, 11], data: &rows };
        let (decoder, mut results) = (DecoderRegistry::built_in().make_from_text("movenet-multi", "").unwrap(), Results::default());
        decoder.decode(&[output], INPUT, &mut results).unwrap();
        assert_eq!(results.boxes, [RawDetection { rect: Rect::from_corners(2.0, 0.0, 4.0, 3.0), score: 0.8, class_id: 0, row: 0 }]);
        let [RawAttribute { of: Some(0), name: Some(name), outcome: Outcome::Geometry(Geometry::Keypoints(found)) }] = &*results.attributes
        else {
            panic!("{:?}", results.attributes)
        };
        assert_eq!(&**name, "pose");
        let points: Vec<_> = found.points.iter().map(|of| (of.point.x, of.point.y, of.confidence)).collect();
        assert_eq!(points, [(1.0, 3.0, Some(0.9)), (0.0, 6.0, Some(0.1))]);
        let check = |keys: &str, shape: &[usize]| {
            DecoderRegistry::built_in().make_from_text("movenet-multi", keys).unwrap().check(&[("output_0", shape)], INPUT).is_ok()
        };
        assert!(check("", &[1, 6, 56]) && check("edges = [[0, 16]]", &[1, 6, 56]) && check("", &[1, usize::MAX, usize::MAX]));
        assert!(!check("", &[1, 6, 55]) && !check("", &[1, 6, 5]) && !check("edges = [[0, 17]]", &[1, 6, 56]));
    }
}
