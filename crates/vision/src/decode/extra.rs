//! Values of a row in addition to the box and its scores: mask coefficients, keypoints, or an angle. The YOLO decoders share them.

use std::sync::Arc;

use serde::Deserialize;

use super::boxes::bad;
use super::masks::{self, Buffers, MapShape, Values};
use super::{Output, Port, RawAttribute, Results, Section, rotated};
use crate::frame::{Geometry, Keypoint, Keypoints, Outcome, Point, Rect, Size, Skeleton};
use crate::tensor::Result;

/// The additional values of the rows of a decoder.
#[derive(Debug, Clone)]
pub(super) enum Extra {
    None,
    /// A coefficient for each prototype.
    Masks,
    Keypoints(Pose),
    /// The angle of the box in radians, clockwise.
    Angle,
}

/// Description keys of decoders with keypoints.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct PoseKeys {
    /// Number of values per keypoint: 3 for x, y and confidence, or 2 without confidence. Default: 3.
    keypoint_values: Option<usize>,
    /// Names of the keypoints, in order. Default: for 17 keypoints, the names of COCO.
    keypoint_names: Option<Vec<String>>,
    /// Pairs of indexes of connected keypoints, from 0. Default: for 17 keypoints, the skeleton of COCO.
    edges: Option<Vec<[u32; 2]>>,
}

/// Description key of decoders with keypoints after several class scores.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ClassesKeys {
    /// Number of classes. Default: 1.
    classes: Option<usize>,
}

/// Layout of keypoints, and their skeleton.
#[derive(Debug, Clone)]
pub(super) struct Pose {
    /// Number of class scores in front of the keypoints.
    n_classes: usize,
    n_values: usize,
    skeleton: Arc<Skeleton>,
}

/// Maximum number of keypoints.
const MAX_KEYPOINTS: usize = 1000;

/// Names of the keypoints of COCO, in order.
const COCO_NAMES: [&str; 17] = [
    "nose",
    "left_eye",
    "right_eye",
    "left_ear",
    "right_ear",
    "left_shoulder",
    "right_shoulder",
    "left_elbow",
    "right_elbow",
    "left_wrist",
    "right_wrist",
    "left_hip",
    "right_hip",
    "left_knee",
    "right_knee",
    "left_ankle",
    "right_ankle",
];
/// Connected keypoints of COCO, from 0.
const COCO_EDGES: [(u32, u32); 19] = [
    (15, 13),
    (13, 11),
    (16, 14),
    (14, 12),
    (11, 12),
    (5, 11),
    (6, 12),
    (5, 6),
    (5, 7),
    (6, 8),
    (7, 9),
    (8, 10),
    (1, 2),
    (0, 1),
    (0, 2),
    (1, 3),
    (2, 4),
    (3, 5),
    (4, 6),
];

/// Returns the skeleton of COCO.
pub(super) fn coco_skeleton() -> Skeleton {
    Skeleton { names: COCO_NAMES.map(Into::into).to_vec(), edges: COCO_EDGES.to_vec() }
}

impl Pose {
    /// Reads the keys of a section. If `has_classes` is true, the rows have class scores in front of the keypoints.
    pub(super) fn new(section: &mut Section<'_>, has_classes: bool) -> Result<Self> {
        let PoseKeys { keypoint_values, keypoint_names, edges } = section.keys()?;
        let ClassesKeys { classes } = if has_classes { section.keys()? } else { ClassesKeys::default() };
        let n_values = keypoint_values.unwrap_or(3);
        if !(2..=3).contains(&n_values) {
            return Err(bad(format!("`keypoint-values`: expected 2 or 3, got {n_values}")));
        }
        let n_classes = classes.unwrap_or(1);
        if !(1..=65_536).contains(&n_classes) {
            return Err(bad(format!("`classes`: expected 1 to 65536, got {n_classes}")));
        }
        let skeleton = skeleton(keypoint_names, edges)?;
        Ok(Self { n_classes, n_values, skeleton: skeleton.into() })
    }

    /// Number of keypoints in this number of values; `None` if it is not a whole number, or contradicts the skeleton.
    fn n_keypoints(&self, n_values: usize) -> Option<usize> {
        let n_keypoints = n_values / self.n_values;
        let is_whole = n_keypoints * self.n_values == n_values && (1..=MAX_KEYPOINTS).contains(&n_keypoints);
        (is_whole && fits_skeleton(&self.skeleton, n_keypoints)).then_some(n_keypoints)
    }

    /// Returns the keypoints of a row; `None` if a position is not finite.
    fn keypoints(&self, values: &[f32]) -> Option<Outcome> {
        let points: Vec<Keypoint> = values
            .chunks_exact(self.n_values)
            .map(|values| Keypoint {
                point: Point { x: values[0], y: values[1] },
                confidence: values.get(2).map(|confidence| if confidence.is_nan() { 0.0 } else { confidence.clamp(0.0, 1.0) }),
            })
            .collect();
        pose(points, &self.skeleton)
    }
}

/// Checks names and edges of a description. Without both keys, the skeleton is empty and is replaced by [`pose`] for 17 keypoints.
pub(super) fn skeleton(names: Option<Vec<String>>, edges: Option<Vec<[u32; 2]>>) -> Result<Skeleton> {
    let names: Vec<Arc<str>> = names.unwrap_or_default().iter().map(|name| name.as_str().into()).collect();
    let edges: Vec<(u32, u32)> = edges.unwrap_or_default().iter().map(|&[first, second]| (first, second)).collect();
    let limit = if names.is_empty() { MAX_KEYPOINTS } else { names.len() };
    if let Some((first, second)) = edges.iter().find(|(first, second)| *first.max(second) as usize >= limit) {
        return Err(bad(format!("`edges`: expected indexes of keypoints from 0 to {}, got [{first}, {second}]", limit - 1)));
    }
    Ok(Skeleton { names, edges })
}

/// Whether names and edges of a description can belong to this number of keypoints.
pub(super) fn fits_skeleton(skeleton: &Skeleton, n_keypoints: usize) -> bool {
    let has_names = skeleton.names.is_empty() || skeleton.names.len() == n_keypoints;
    has_names && skeleton.edges.iter().all(|(first, second)| (*first.max(second) as usize) < n_keypoints)
}

/// Returns keypoints as a result; `None` if a position is not finite. 17 keypoints without a skeleton get the skeleton of COCO.
pub(super) fn pose(points: Vec<Keypoint>, skeleton: &Arc<Skeleton>) -> Option<Outcome> {
    static COCO: std::sync::LazyLock<Arc<Skeleton>> = std::sync::LazyLock::new(|| coco_skeleton().into());
    let is_open = skeleton.names.is_empty() && skeleton.edges.is_empty();
    let skeleton = if is_open && points.len() == COCO_NAMES.len() { COCO.clone() } else { skeleton.clone() };
    let is_finite = points.iter().all(|of| of.point.x.is_finite() && of.point.y.is_finite());
    is_finite.then_some(Outcome::Geometry(Geometry::Keypoints(Keypoints { points, skeleton })))
}

impl Extra {
    /// Returns the suffix of the decoder's name, such as `-seg`.
    pub(super) fn suffix(&self) -> &'static str {
        match self {
            Self::None => "",
            Self::Masks => "-seg",
            Self::Keypoints(_) => "-pose",
            Self::Angle => "-obb",
        }
    }

    /// Returns the name of the additional values, for messages.
    pub(super) fn words(&self) -> &'static str {
        match self {
            Self::None => "",
            Self::Masks => " + coefficients",
            Self::Keypoints(_) => " + keypoints",
            Self::Angle => " + angle",
        }
    }

    /// Returns the description of further outputs that the decoder needs, for messages.
    pub(super) fn further_outputs(&self) -> &'static str {
        match self {
            Self::Masks => " and prototypes [1, coefficients, h, w]",
            _ => "",
        }
    }

    /// Splits a number of values into class scores and additional values. Returns the number of class scores; `None` if this is impossible.
    /// `usize::MAX` is an unknown number.
    pub(super) fn n_classes<P: Port>(&self, n_values: usize, outputs: &[P]) -> Option<usize> {
        if n_values == usize::MAX {
            return (!self.lacks_prototypes(outputs)).then_some(usize::MAX);
        }
        let n_classes = match self {
            Self::None => n_values,
            Self::Masks => n_values.checked_sub(outputs[masks::find_prototypes(outputs)?].shape()[1])?,
            Self::Keypoints(pose) => {
                pose.n_keypoints(n_values.checked_sub(pose.n_classes)?)?;
                pose.n_classes
            }
            Self::Angle => n_values.checked_sub(1)?,
        };
        (n_classes > 0).then_some(n_classes)
    }

    /// Whether a row of a list can have this number of additional values.
    pub(super) fn fits<P: Port>(&self, n_values: usize, outputs: &[P]) -> bool {
        if n_values == usize::MAX {
            return !self.lacks_prototypes(outputs);
        }
        match self {
            Self::None => n_values == 0,
            Self::Masks => masks::find_prototypes(outputs).is_some_and(|port| outputs[port].shape()[1] == n_values),
            Self::Keypoints(pose) => pose.n_keypoints(n_values).is_some(),
            Self::Angle => n_values == 1,
        }
    }

    fn lacks_prototypes<P: Port>(&self, outputs: &[P]) -> bool {
        matches!(self, Self::Masks) && masks::find_prototypes(outputs).is_none()
    }

    /// The axis-aligned box of an object with this center and size. `angle` returns the first additional value.
    pub(super) fn rect(&self, [x, y, width, height]: [f32; 4], angle: impl Fn() -> f32) -> Rect {
        match self {
            Self::Angle => rotated::enclosing(&rotated::from_radians([x, y, width, height], angle())),
            _ => Rect::from_center(x, y, width, height),
        }
    }

    /// Adds masks, keypoints or rotated boxes to the boxes. `place` returns center and size of a row. `values` appends the additional
    /// values of a row.
    pub(super) fn add_to(
        &self,
        results: &mut Results,
        outputs: &[Output<'_>],
        input: Size,
        place: impl Fn(u32) -> [f32; 4],
        values: impl Fn(u32, &mut Vec<f32>),
    ) {
        let (mut buffers, mut row_values) = (Buffers::default(), Vec::new());
        let prototypes = masks::find_prototypes(outputs).map(|port| &outputs[port]);
        for of in 0..results.boxes.len() {
            let found = results.boxes[of];
            row_values.clear();
            values(found.row, &mut row_values);
            let outcome = match self {
                Self::None => return,
                Self::Masks => prototypes.and_then(|prototypes| {
                    let map = MapShape::of(prototypes.shape)?;
                    buffers.mask(&found.rect, input, map, Values::Logits, |row, column, cells| {
                        masks::combine(prototypes, map, row_values.iter().copied(), row, column, cells);
                    })
                }),
                Self::Keypoints(pose) => pose.keypoints(&row_values),
                Self::Angle => row_values.first().map(|&angle| rotated::from_radians(place(found.row), angle)).and_then(rotated::outcome),
            };
            results.attributes.extend(outcome.map(|outcome| RawAttribute { of: Some(of), name: Some(self.attribute_name()), outcome }));
        }
    }

    fn attribute_name(&self) -> Arc<str> {
        match self {
            Self::None => "none",
            Self::Masks => "mask",
            Self::Keypoints(_) => "pose",
            Self::Angle => "rotated_box",
        }
        .into()
    }

    /// Returns the overlaps of the candidates, for NMS; `None` if boxes are not rotated.
    pub(super) fn rotated(
        &self,
        results: &Results,
        place: impl Fn(u32) -> [f32; 4],
        values: impl Fn(u32, &mut Vec<f32>),
    ) -> Option<rotated::Overlap> {
        if !matches!(self, Self::Angle) {
            return None;
        }
        let mut row_values = Vec::new();
        let boxes = results.boxes.iter().map(|found| {
            row_values.clear();
            values(found.row, &mut row_values);
            (found.row, rotated::from_radians(place(found.row), row_values.first().copied().unwrap_or(0.0)))
        });
        Some(rotated::Overlap::new(boxes))
    }
}
