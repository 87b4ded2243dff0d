//! Geometry in JSON. Coordinates are fractions of the frame size, like the coordinates of bounding boxes.
//!
//! | geometry | keys |
//! |---|---|
//! | keypoints | `keypoints`: `x`, `y`, and optionally `name` and `confidence`; `skeleton`: pairs of indexes of connected keypoints |
//! | rotated box | `corners`: the four corners, clockwise, beginning with the corner that is top left at angle 0; `angle`: degrees, clockwise |
//! | polygons | `polygons`: lists of `x` and `y` |
//! | mask | `area`: pixels of the frame; and the keys of one of the next four rows |
//! | mask as runs | `corners`, `columns`, `rows`; `runs`: run lengths, alternately of cells outside and inside the object |
//! | mask as polygons | `polygons`: lists of `x` and `y`; points inside an odd number of polygons belong to the object |
//! | mask of COCO | `size`: height and width of the frame; `counts`: compressed run lengths, column by column |
//! | mask as an image | `corners`, `columns`, `rows`; `png`: gray, 8 bits, 0 to 255 represent the probabilities 0 to 1 |
//! | map of classes | `corners`, `columns`, `rows`; `class_runs`: run lengths as pairs of class index and number of cells; `areas`: pairs of class index and fraction of the cells in the frame; `labels` |
//! | map of numbers | `corners`, `columns`, `rows`; `values`: one number per cell |
//!
//! With [`MapFormat::Png`], `png` replaces `class_runs` and `values`: a PNG image in base64, one pixel per cell. A map of classes has 8 bits, the class
//! index. A map of numbers has 16 bits, and the keys `min` and `max`: pixel 0 is a cell without a number, and the other pixels p represent
//! `min + (p - 1) / 65534 * (max - min)`.
//!
//! The `corners` of a mask or map are its top left, top right and bottom left corner. Cells are listed row by row.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::{Form, MapFormat, MaskFormat, png};
use crate::{Geometry, Grid, Keypoint, Point, Size, contour};

/// A geometry, and how to write it. Its keys become keys of the JSON object of the attribute.
pub(super) struct Placed<'a> {
    pub(super) of: &'a Geometry,
    pub(super) form: Form,
}

impl Serialize for Placed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        serialize_keys(&mut map, self.of, self.form)?;
        map.end()
    }
}

fn serialize_keys<M: SerializeMap>(map: &mut M, geometry: &Geometry, form: Form) -> Result<(), M::Error> {
    let size = form.size;
    match geometry {
        Geometry::Keypoints(keypoints) => {
            let names = keypoints.skeleton.names.iter().map(|name| Some(&**name)).chain(std::iter::repeat(None));
            let point = |(&Keypoint { point, confidence }, name)| NamedPoint { name, place: RelativePoint::of(point, size), confidence };
            map.serialize_entry("keypoints", &List(keypoints.points.iter().zip(names).map(point)))?;
            map.serialize_entry("skeleton", &keypoints.skeleton.edges)
        }
        Geometry::RotatedRect(rect) => {
            map.serialize_entry("corners", &rect.corners().map(|corner| RelativePoint::of(corner, size)))?;
            map.serialize_entry("angle", &rect.angle)
        }
        Geometry::Polygons(polygons) => serialize_polygons(map, polygons, size),
        Geometry::Mask(mask) => {
            map.serialize_entry("area", &contour::area(mask))?;
            match form.masks {
                MaskFormat::Runs => {
                    serialize_grid(map, mask, size)?;
                    map.serialize_entry("runs", &runs(mask))
                }
                MaskFormat::Polygons => serialize_polygons(map, &contour::polygons(mask), size),
                MaskFormat::Png => {
                    serialize_grid(map, mask, size)?;
                    match png::of_bytes(mask.columns, &mask.values) {
                        Some(image) => map.serialize_entry("png", &image),
                        None => map.serialize_entry("runs", &runs(mask)),
                    }
                }
                MaskFormat::Coco => {
                    map.serialize_entry("size", &[size.height, size.width])?;
                    map.serialize_entry("counts", &contour::coco_counts(mask, size))
                }
            }
        }
        Geometry::ClassMap { classes, labels } => {
            serialize_grid(map, classes, size)?;
            let image = if form.maps == MapFormat::Png { png::of_bytes(classes.columns, &classes.values) } else { None };
            match image {
                Some(image) => map.serialize_entry("png", &image)?,
                None => {
                    let runs = classes.values.chunk_by(|one, other| one == other).map(|run| (run[0], run.len()));
                    map.serialize_entry("class_runs", &List(runs))?;
                }
            }
            map.serialize_entry("areas", &contour::class_areas(classes, size))?;
            map.serialize_entry("labels", &List(labels.iter().map(|label| &**label)))
        }
        Geometry::ValueMap(values) => {
            serialize_grid(map, values, size)?;
            let image = if form.maps == MapFormat::Png { png::of_numbers(values.columns, &values.values) } else { None };
            match image {
                Some(png::Numbers { image, min, max }) => {
                    map.serialize_entry("png", &image)?;
                    map.serialize_entry("min", &min)?;
                    map.serialize_entry("max", &max)
                }
                None => map.serialize_entry("values", &*values.values),
            }
        }
        #[allow(unreachable_patterns, reason = "the enum may get more kinds, which this format does not have yet")]
        _ => Ok(()),
    }
}

fn serialize_polygons<M: SerializeMap>(map: &mut M, polygons: &[Vec<Point>], size: Size) -> Result<(), M::Error> {
    let points = |polygon: &Vec<Point>| polygon.iter().map(|point| RelativePoint::of(*point, size)).collect::<Vec<_>>();
    map.serialize_entry("polygons", &List(polygons.iter().map(points)))
}

/// The lengths of the runs of cells, alternately outside and inside the object. The first run is outside.
fn runs(mask: &Grid<u8>) -> Vec<usize> {
    let mut runs = Vec::new();
    let (mut is_inside, mut n_cells) = (false, 0_usize);
    for value in mask.values.iter() {
        if contour::is_inside(*value) != is_inside {
            runs.push(std::mem::take(&mut n_cells));
            is_inside = !is_inside;
        }
        n_cells += 1;
    }
    runs.push(n_cells);
    runs
}

/// Writes the position of a grid (top left, top right and bottom left corner) and its numbers of columns and rows.
fn serialize_grid<M: SerializeMap, T>(map: &mut M, grid: &Grid<T>, size: Size) -> Result<(), M::Error> {
    map.serialize_entry("corners", &grid.corners.map(|corner| RelativePoint::of(corner, size)))?;
    map.serialize_entry("columns", &grid.columns)?;
    map.serialize_entry("rows", &grid.rows())
}

/// A point in fractions of the frame size.
#[derive(Serialize)]
pub(super) struct RelativePoint {
    x: f32,
    y: f32,
}

impl RelativePoint {
    pub(super) fn of(point: Point, size: Size) -> Self {
        Self { x: point.x / size.width as f32, y: point.y / size.height as f32 }
    }
}

#[derive(Serialize)]
struct NamedPoint<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(flatten)]
    place: RelativePoint,
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence: Option<f32>,
}

/// Serializes the items of an iterator as a list.
struct List<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for List<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::{Keypoints, RotatedRect, Skeleton};

    const SIZE: Size = Size::new(200, 100);

    fn written(geometry: Geometry) -> Value {
        written_as(&geometry, MaskFormat::Runs)
    }

    fn written_as(of: &Geometry, masks: MaskFormat) -> Value {
        serde_json::to_value(Placed { of, form: Form { size: SIZE, masks, maps: MapFormat::Lists } }).unwrap()
    }

    const fn at(x: f32, y: f32) -> Point {
        Point { x, y }
    }

    fn grid<T>(columns: usize, values: impl Into<Arc<[T]>>) -> Grid<T> {
        Grid { columns, values: values.into(), corners: [at(0.0, 0.0), at(100.0, 0.0), at(0.0, 50.0)] }
    }

    #[test]
    fn keypoints_have_names_and_a_skeleton() {
        let skeleton = Arc::new(Skeleton { names: vec!["nose".into()], edges: vec![(0, 1)] });
        let points = [(at(50.0, 25.0), Some(0.5)), (at(100.0, 50.0), None)].map(|(point, confidence)| Keypoint { point, confidence });
        let expected = json!({
            "keypoints": [{"name": "nose", "x": 0.25, "y": 0.25, "confidence": 0.5}, {"x": 0.5, "y": 0.5}],
            "skeleton": [[0, 1]],
        });
        assert_eq!(written(Geometry::Keypoints(Keypoints { points: points.to_vec(), skeleton })), expected);
    }

    #[test]
    fn boxes_and_polygons_are_relative_points() {
        let rect = RotatedRect { center: at(100.0, 50.0), width: 100.0, height: 50.0, angle: 0.0 };
        let corners = json!([{"x": 0.25, "y": 0.25}, {"x": 0.75, "y": 0.25}, {"x": 0.75, "y": 0.75}, {"x": 0.25, "y": 0.75}]);
        assert_eq!(written(Geometry::RotatedRect(rect)), json!({"corners": corners, "angle": 0.0}));
        let expected = json!({"polygons": [[{"x": 0.0, "y": 0.5}, {"x": 0.5, "y": 0.0}]]});
        assert_eq!(written(Geometry::Polygons(vec![vec![at(0.0, 50.0), at(100.0, 0.0)]])), expected);
    }

    #[test]
    fn masks_and_maps_have_corners_and_runs() {
        let place = json!({
            "corners": [{"x": 0.0, "y": 0.0}, {"x": 0.5, "y": 0.0}, {"x": 0.0, "y": 0.5}], "columns": 3, "rows": 2,
        });
        let with = |more: Value| {
            let mut place = place.clone();
            place.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            place
        };
        let mask = |values: [u8; 6]| written(Geometry::Mask(grid(3, values)));
        assert_eq!(mask([0, 127, 128, 255, 255, 0]), with(json!({"runs": [2, 3, 1], "area": 2500.0})));
        assert_eq!(mask([255; 6]), with(json!({"runs": [0, 6], "area": 5000.0})));
        let classes = Geometry::ClassMap { classes: grid(3, [0, 0, 2, 2, 2, 1]), labels: ["road".into()].into() };
        assert_eq!(
            written(classes),
            with(json!({
                "class_runs": [[0, 2], [2, 3], [1, 1]], "areas": [[0, 1.0 / 3.0], [1, 1.0 / 6.0], [2, 0.5]], "labels": ["road"],
            }))
        );
        let depth = Geometry::ValueMap(grid(3, [0.5, 1.0, 1.5, 2.0, 2.5, f32::NAN]));
        assert_eq!(written(depth), with(json!({"values": [0.5, 1.0, 1.5, 2.0, 2.5, null]})));
    }

    #[test]
    fn masks_and_maps_can_be_images() {
        let form = Form { size: SIZE, masks: MaskFormat::Png, maps: MapFormat::Png };
        let written = |of: &Geometry| serde_json::to_value(Placed { of, form }).unwrap();
        let mask = written(&Geometry::Mask(grid(3, [0_u8, 127, 128, 255, 255, 0])));
        let image = |value: &Value| png::bytes(value["png"].as_str().unwrap(), 3, 2).unwrap();
        assert_eq!((image(&mask), &mask["area"], mask.get("runs")), (vec![0, 127, 128, 255, 255, 0], &json!(2500.0), None));
        let classes = written(&Geometry::ClassMap { classes: grid(3, [0, 0, 2, 2, 2, 1]), labels: ["road".into()].into() });
        assert_eq!((image(&classes), &classes["labels"], classes.get("class_runs")), (vec![0, 0, 2, 2, 2, 1], &json!(["road"]), None));
        assert_eq!(classes["areas"].as_array().map(Vec::len), Some(3));
        let depth = written(&Geometry::ValueMap(grid(3, [0.5, 1.0, 1.5, 2.0, 2.5, f32::NAN])));
        let read = png::numbers(depth["png"].as_str().unwrap(), 0.5, 2.5, 3, 2).unwrap();
        assert_eq!((&depth["min"], &depth["max"], depth.get("values")), (&json!(0.5), &json!(2.5), None));
        assert!(read.iter().zip([0.5, 1.0, 1.5, 2.0, 2.5]).all(|(read, cell)| (read - cell).abs() < 1e-4) && read[5].is_nan(), "{read:?}");
        let empty = written(&Geometry::ValueMap(grid(3, [])));
        assert_eq!((&empty["values"], empty.get("png")), (&json!([]), None));
    }

    #[test]
    fn masks_can_be_polygons_or_runs_of_coco() {
        let left = Geometry::Mask(grid(2, [255_u8, 0]));
        let corners = json!([{"x": 0.25, "y": 0.0}, {"x": 0.25, "y": 0.5}, {"x": 0.0, "y": 0.5}, {"x": 0.0, "y": 0.0}]);
        assert_eq!(written_as(&left, MaskFormat::Polygons), json!({"area": 2500.0, "polygons": [corners]}));
        let coco = written_as(&left, MaskFormat::Coco);
        assert_eq!((&coco["size"], &coco["area"]), (&json!([100, 200]), &json!(2500.0)));
        assert!(coco["counts"].as_str().is_some_and(|counts| !counts.is_empty()) && coco.get("runs").is_none(), "{coco}");
    }
}
