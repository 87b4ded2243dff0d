//! Keypoints as numbers: the output has the coordinates of each keypoint of one object (PFLD, landmarks of MediaPipe and of the Open Model
//! Zoo). The model runs on the region of a face, hand or person.

use std::sync::Arc;

use serde::Deserialize;

use super::boxes::bad;
use super::extra::{fits_skeleton, pose};
use super::pose::read_skeleton;
use super::survey::Expected;
use super::{Coordinates, Decoder, Output, Reads, Results, Section, one, one_port, shape_text};
use crate::frame::{Keypoint, Point, Size, Skeleton};
use crate::tensor::{Error, ErrorKind, Result};

/// Description keys of keypoints as numbers.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct LandmarkKeys {
    /// Number of values of each keypoint, 2 to 8. The first two are x and y. Default: 2.
    point_values: Option<usize>,
    /// Unit of x and y: pixels of the input, or fractions of its width and height. Default: fractions if no keypoint is far outside of 0 to 1.
    coordinates: Option<Coordinates>,
}

/// Output `[1, K * values]` or `[1, K, values]`, with any axes of extent 1.
#[derive(Debug)]
pub(super) struct Landmarks {
    n_values: usize,
    coordinates: Option<Coordinates>,
    skeleton: Arc<Skeleton>,
}

impl Landmarks {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        let LandmarkKeys { point_values, coordinates } = section.keys()?;
        let skeleton = read_skeleton(section)?;
        let n_values = point_values.unwrap_or(2);
        if !(2..=8).contains(&n_values) {
            return Err(bad(format!("`point-values`: expected 2 to 8, got {n_values}")));
        }
        Ok(Self { n_values, coordinates, skeleton })
    }

    fn check_shape(&self, name: &str, shape: &[usize]) -> Result<()> {
        let of_image = shape.get(1..).unwrap_or_default();
        if of_image.contains(&usize::MAX) {
            return Ok(());
        }
        let n = of_image.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent)).unwrap_or(0);
        if n == 0 || !n.is_multiple_of(self.n_values) {
            let message = format!(
                "output `{name}`: expected [1, K * {n}], {n} values for each keypoint, got {}. Set `point-values`",
                shape_text(shape),
                n = self.n_values
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let n_keypoints = n / self.n_values;
        if !fits_skeleton(&self.skeleton, n_keypoints) {
            return Err(bad(format!("`keypoint-names` and `edges`: expected {n_keypoints} keypoints, those of output `{name}`")));
        }
        Ok(())
    }
}

impl Decoder for Landmarks {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let (name, shape) = one_port(outputs)?;
        self.check_shape(name, shape).map(|()| 0)
    }

    /// Values beyond x and y are ignored. The keypoints have no confidence.
    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        /// Keypoints may be a little outside of the region.
        const MAX_FRACTION: f32 = 2.0;
        let output = one(outputs)?;
        self.check_shape(output.name, output.shape)?;
        results.look_at(&output, Expected::Numbers);
        let points = || output.data.chunks_exact(self.n_values).map(|values| Point { x: values[0], y: values[1] });
        let are_fractions = || points().all(|point| point.x.abs() <= MAX_FRACTION && point.y.abs() <= MAX_FRACTION);
        let (x_scale, y_scale) = match self.coordinates {
            Some(Coordinates::Pixels) => (1.0, 1.0),
            None if !are_fractions() => (1.0, 1.0),
            _ => (input.width as f32, input.height as f32),
        };
        let keypoint = |point: Point| Keypoint { point: Point { x: point.x * x_scale, y: point.y * y_scale }, confidence: None };
        pose(points().map(keypoint).collect(), &self.skeleton).into_iter().for_each(|outcome| results.say(outcome));
        Ok(())
    }

    fn reads(&self) -> Reads {
        Reads::One
    }
}

#[cfg(test)]
mod tests {
    use crate::decode::tests::decoder;
    use crate::decode::{Output, Results};
    use crate::frame::{Geometry, Outcome, Size};

    fn points(keys: &str, shape: &[usize], data: &[f32]) -> Vec<(f32, f32)> {
        let mut results = Results::default();
        decoder("landmarks", keys).decode(&[Output { name: "y", shape, data }], Size::new(64, 32), &mut results).unwrap();
        match results.attributes.pop().map(|of| of.outcome) {
            Some(Outcome::Geometry(Geometry::Keypoints(found))) => found.points.iter().map(|of| (of.point.x, of.point.y)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keypoints_are_fractions_or_pixels() {
        let expected = [(16.0, 8.0), (48.0, 24.0)];
        for shape in [&[1, 4][..], &[1, 4, 1, 1], &[1, 2, 2]] {
            assert_eq!(points("", shape, &[0.25, 0.25, 0.75, 0.75]), expected, "{shape:?}");
        }
        for (shape, n) in [(&[1, 1, 1, 6][..], 3), (&[1, 6], 3), (&[1, 2, 3], 3)] {
            let keys = format!("point-values = {n}");
            assert_eq!(points(&keys, shape, &[16.0, 8.0, -5.0, 48.0, 24.0, 7.0]), expected, "{shape:?}");
        }
        assert_eq!(points("coordinates = \"pixels\"", &[1, 2], &[0.5, 1.0]), [(0.5, 1.0)]);
        let named = "keypoint-names = [\"left\", \"right\"]\nedges = [[0, 1]]";
        assert_eq!(points(named, &[1, 4], &[0.25, 0.25, 0.75, 0.75]), expected);
        let refused =
            |keys: &str, shape: &[usize]| decoder("landmarks", keys).check(&[("y", shape)], Size::new(64, 32)).unwrap_err().to_string();
        assert!(refused("point-values = 3", &[1, 10]).contains("Set `point-values`"));
        assert!(refused(named, &[1, 10]).contains("expected 5 keypoints"));
    }
}
