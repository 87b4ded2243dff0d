//! Dense outputs: the class of each cell (semantic segmentation), and anomaly maps.

use serde::Deserialize;

use super::boxes::fraction;
use super::masks::MapShape;
use super::survey::Expected;
use super::{Decoder, Output, Port, RawAttribute, Reads, Results, Section, named, one, one_port, only, shape_text, unexpected};
use crate::frame::{Geometry, Grid, Outcome, Point, Size};
use crate::tensor::{Error, ErrorKind, Result};

/// Returns three corners of a grid that covers the whole input: top left, top right and bottom left.
fn whole(input: Size) -> [Point; 3] {
    let (x, y) = (input.width as f32, input.height as f32);
    [Point { x: 0.0, y: 0.0 }, Point { x, y: 0.0 }, Point { x: 0.0, y }]
}

/// Maximum number of classes: a class is one byte.
const MAX_CLASSES: usize = 256;

/// Description keys of the map of classes.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct MapKeys {
    /// For one channel: cells with a larger value belong to class 1, all others to class 0. Without it, the values are class numbers.
    threshold: Option<f32>,
    /// Position of the class axis: first, `[1, classes, h, w]`, or last, `[1, h, w, classes]`. Default: first.
    #[serde(default)]
    classes_axis: ClassesAxis,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) enum ClassesAxis {
    #[default]
    First,
    Last,
}

/// Semantic segmentation: the best class of each cell. Output `[1, classes, h, w]` of scores, or `[1, h, w]` or `[1, 1, h, w]` of classes.
#[derive(Debug)]
pub(super) struct ClassMap {
    threshold: Option<f32>,
    is_last: bool,
}

impl ClassMap {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        let MapKeys { threshold, classes_axis } = section.keys()?;
        let threshold = section.threshold.or(threshold).map(|value| fraction("threshold", value)).transpose()?;
        Ok(Self { threshold, is_last: classes_axis == ClassesAxis::Last })
    }

    /// Returns the number of classes, and the shape of the map.
    fn parts(&self, name: &str, shape: &[usize]) -> Result<(usize, MapShape)> {
        let (n_classes, map) = match *shape {
            [_, rows, columns] => (1, [rows, columns]),
            [_, rows, columns, n_classes] if self.is_last => (n_classes, [rows, columns]),
            [_, n_classes, rows, columns] => (n_classes, [rows, columns]),
            _ => (0, [0, 0]),
        };
        let is_known = n_classes != usize::MAX;
        match MapShape::of(&map).filter(|_| n_classes > 0 && (n_classes <= MAX_CLASSES || !is_known)) {
            Some(map) => Ok((n_classes, map)),
            None => {
                let message = format!(
                    "output `{name}`: expected a map of at most {MAX_CLASSES} classes, [1, classes, h, w] or [1, h, w], got {}",
                    shape_text(shape)
                );
                Err(Error::new(ErrorKind::Shape, message))
            }
        }
    }
}

impl Decoder for ClassMap {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let (name, shape) = one_port(outputs)?;
        let (n_classes, _) = self.parts(name, shape)?;
        Ok(match (n_classes, self.threshold) {
            (1, Some(_)) => 2,
            (1, None) | (usize::MAX, _) => 0,
            (n_classes, _) => n_classes as u32,
        })
    }

    /// NaN is less than every other score.
    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        let output = one(outputs)?;
        let (n_classes, map) = self.parts(output.name, output.shape)?;
        results.look_at(&output, Expected::Numbers);
        let n_cells = map.rows * map.columns;
        let classes: Vec<u8> = match (n_classes, self.threshold) {
            (1, Some(threshold)) => output.data.iter().map(|&value| u8::from(value > threshold)).collect(),
            (1, None) => output.data.iter().map(|&class| class.clamp(0.0, (MAX_CLASSES - 1) as f32) as u8).collect(),
            _ if self.is_last => output.data.chunks_exact(n_classes).map(|scores| super::best_class(scores).0 as u8).collect(),
            _ => {
                let mut best = vec![f32::NEG_INFINITY; n_cells];
                let mut classes = vec![0_u8; n_cells];
                for (class, scores) in output.data.chunks_exact(n_cells).enumerate() {
                    for ((best, found), &score) in best.iter_mut().zip(&mut classes).zip(scores) {
                        let is_better = score > *best;
                        *best = if is_better { score } else { *best };
                        *found = if is_better { class as u8 } else { *found };
                    }
                }
                classes
            }
        };
        let classes = Grid { columns: map.columns, values: classes.into(), corners: whole(input) };
        results.say(Outcome::Geometry(Geometry::ClassMap { classes, labels: [].into() }));
        Ok(())
    }

    fn reads(&self) -> Reads {
        Reads::One
    }
}

/// Description key of anomaly maps.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct AnomalyKeys {
    /// Cells with a value of at least this are anomalous, 0 to 1. Default: 0.5.
    threshold: Option<f32>,
}

/// Anomaly detection: a score of the image, and a mask of the anomalous cells. Outputs: a map `[1, 1, h, w]` or `[1, h, w]` of values from
/// 0 to 1, and optionally the score, one number. Without a score output, the score is the largest value of the map. Other outputs are
/// ignored.
#[derive(Debug)]
pub(super) struct Anomaly {
    threshold: f32,
}

impl Anomaly {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        let AnomalyKeys { threshold } = section.keys()?;
        let threshold = section.threshold.or(threshold).unwrap_or_else(|| {
            section.assumed.push("[output] `threshold` is not given: 0.5".to_owned());
            0.5
        });
        Ok(Self { threshold: fraction("threshold", threshold)? })
    }

    /// Indexes of the map and the score.
    fn find<P: Port>(outputs: &[P]) -> Result<(usize, Option<usize>)> {
        let is_map = |shape: &[usize]| match *shape {
            [_, 1, rows, columns] | [_, rows, columns] => rows > 1 && columns > 1,
            _ => false,
        };
        let is_score = |shape: &[usize]| !shape.is_empty() && shape.len() <= 2 && shape[1..].iter().all(|extent| *extent == 1);
        let map = only(outputs, is_map).or_else(|| named(outputs, "map", is_map));
        let map = map.ok_or_else(|| unexpected("anomaly", "a map [1, 1, h, w] or [1, h, w], named `map` if there are several", outputs))?;
        Ok((map, named(outputs, "score", is_score).or_else(|| only(outputs, is_score))))
    }
}

impl Decoder for Anomaly {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        Self::find(outputs).map(|_| 0)
    }

    fn decode(&self, outputs: &[Output<'_>], input: Size, results: &mut Results) -> Result<()> {
        outputs.iter().try_for_each(Output::check)?;
        let (map, score) = Self::find(outputs)?;
        let map = &outputs[map];
        results.look_at(map, Expected::Numbers);
        let largest = || map.data.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let score = score.and_then(|score| outputs[score].data.first().copied()).unwrap_or_else(largest);
        if !score.is_finite() {
            let message = format!("output `{}`: expected a finite score, got {score}", map.name);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        results.say(Outcome::Value(score));
        // In a mask, values of 128 or more are inside. So a value equal to the threshold becomes 128.
        let scale = |value: f32| {
            let part = (value - self.threshold) / (if value < self.threshold { self.threshold } else { 1.0 - self.threshold }).max(1e-6);
            (128.0 + part * if part < 0.0 { 128.0 } else { 127.0 }) as u8
        };
        let columns = map.shape[map.shape.len() - 1];
        let mask = Grid { columns, values: map.data.iter().map(|&value| scale(value)).collect(), corners: whole(input) };
        let outcome = Outcome::Geometry(Geometry::Mask(mask));
        results.attributes.push(RawAttribute { of: None, name: Some("anomaly_mask".into()), outcome });
        Ok(())
    }

    fn summary(&self) -> String {
        format!("threshold {}", self.threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::DecoderRegistry;

    const INPUT: Size = Size::new(8, 4);

    fn decode(name: &str, keys: &str, outputs: &[Output<'_>]) -> Vec<RawAttribute> {
        let (decoder, mut results) = (DecoderRegistry::built_in().make_from_text(name, keys).unwrap(), Results::default());
        decoder.decode(outputs, INPUT, &mut results).unwrap();
        results.attributes
    }

    fn classes(keys: &str, shape: &[usize], data: &[f32]) -> Vec<u8> {
        match &decode("class-map", keys, &[Output { name: "map", shape, data }])[0].outcome {
            Outcome::Geometry(Geometry::ClassMap { classes, .. }) => {
                assert_eq!((classes.columns, classes.corners), (2, whole(INPUT)));
                classes.values.to_vec()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn map_has_the_best_class_of_each_cell() {
        let scores = [0.1, 0.9, f32::NAN, 0.2, 0.5, 0.1, 0.4, 0.2];
        assert_eq!(classes("", &[1, 2, 2, 2], &scores), [1, 0, 1, 0]);
        assert_eq!(classes("classes-axis = \"last\"", &[1, 2, 2, 2], &scores), [1, 1, 0, 0]);
        assert_eq!(classes("", &[1, 2, 2], &[0.0, 3.0, 255.0, 1e9]), [0, 3, 255, 255]);
        assert_eq!(classes("threshold = 0.5", &[1, 1, 2, 2], &[0.0, 0.6, 0.5, f32::NAN]), [0, 1, 0, 0]);
        let check = |shape: &[usize]| DecoderRegistry::built_in().make_from_text("class-map", "").unwrap().check(&[("map", shape)], INPUT);
        assert_eq!((check(&[1, 21, 4, 4]), check(&[1, 4, 4])), (Ok(21), Ok(0)));
        assert!([&[1, 257, 4, 4][..], &[1, 4], &[1, 3, 0, 4]].iter().all(|shape| check(shape).is_err()));
    }

    #[test]
    fn anomaly_is_a_score_and_a_mask() {
        let map = Output { name: "anomaly_map", shape: &[1, 1, 2, 2], data: &[0.1, 0.3, 0.29, 1.0] };
        let score = Output { name: "pred_score", shape: &[1], data: &[0.7] };
        let label = Output { name: "pred_label", shape: &[1], data: &[1.0] };
        for (outputs, expected) in [(&[score, label, map][..], 0.7), (&[map], 1.0)] {
            let said = decode("anomaly", "threshold = 0.3", outputs);
            assert_eq!(said[0].outcome, Outcome::Value(expected));
            let Outcome::Geometry(Geometry::Mask(mask)) = &said[1].outcome else { panic!("{said:?}") };
            assert_eq!(mask.values.iter().map(|value| *value >= 128).collect::<Vec<_>>(), [false, true, false, true]);
        }
    }
}
