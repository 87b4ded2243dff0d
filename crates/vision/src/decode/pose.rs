//! Keypoints of one object: SimCC (RTMPose, Li et al. 2022) and MoveNet. These models run on the region of a person, or on the whole frame.

use std::sync::Arc;

use serde::Deserialize;

use super::boxes::bad;
use super::extra::{fits_skeleton, pose, skeleton};
use super::survey::Expected;
use super::{Decoder, Output, Port, Reads, Results, Section, best_class, named, one, one_port, shape_text, unexpected};
use crate::frame::{Keypoint, Point, Size, Skeleton};
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

fn read_skeleton(section: &mut Section<'_>) -> Result<Arc<Skeleton>> {
    let SkeletonKeys { keypoint_names, edges } = section.keys()?;
    skeleton(keypoint_names, edges).map(Arc::new)
}

/// Outputs `[1, K, width * ratio]` and `[1, K, height * ratio]`: for each keypoint, scores of its column and of its row.
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
        let (width, height) = (input.width as f32, input.height as f32);
        let keypoint = |&[y, x, confidence]: &[f32; 3]| {
            let confidence = if confidence.is_nan() { 0.0 } else { confidence.clamp(0.0, 1.0) };
            Keypoint { point: Point { x: x * width, y: y * height }, confidence: Some(confidence) }
        };
        let points = output.data.as_chunks().0.iter().map(keypoint).collect();
        pose(points, &self.skeleton).into_iter().for_each(|outcome| results.say(outcome));
        Ok(())
    }

    fn reads(&self) -> Reads {
        Reads::One
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
}
