//! Reads lines of JSON as roiflow writes them, to attach stored results to frames again. Also reads the lines of DL Streamer's
//! `gvametaconvert`.
//!
//! Differences to the written results: masks in the form of polygons or of COCO become polygons, or are left out. Object IDs are new.
//! Attributes of an unknown form, and lost tracks, are left out.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::png;
use crate::{
    Classification, Detection, Direction, FrameResults, Geometry, Grid, InferenceStatus, Keypoint, Keypoints, ObjectId, Outcome, Point,
    Rect, RotatedRect, SceneEvent, SceneEventKind, ScoredLabel, Size, Skeleton, TrackState,
};

/// Largest number of cells of a mask or map that is read.
const MAX_CELLS: usize = 1 << 24;

/// The results in a line.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredFrame {
    /// Results, in a frame of the stored size.
    pub results: FrameResults,
    /// Number of the frame in its stream, from 0.
    pub frame_number: Option<u64>,
    /// Stream time in nanoseconds.
    pub timestamp_ns: Option<u64>,
    /// Name of the stream.
    pub stream: Option<String>,
}

/// The keys and values of a JSON object, in their order.
#[derive(Debug, Default)]
struct Pairs(Vec<(String, Value)>);

impl Pairs {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[derive(Deserialize)]
struct Line {
    objects: Option<Vec<Pairs>>,
    #[serde(default)]
    resolution: Value,
    inference: Option<Value>,
    frame: Option<u64>,
    timestamp: Option<u64>,
    stream: Option<String>,
    classifications: Option<Pairs>,
    #[serde(default)]
    events: Vec<Value>,
}

/// Reads a line. Returns `None` if the line is not the results of a frame: such lines report events of a source, or images and clips.
///
/// # Errors
/// Returns the expected and the actual content, if the line is not a JSON object, or an object of the frame has no readable box.
pub fn read_line(line: &[u8]) -> Result<Option<StoredFrame>, String> {
    let line: Line =
        serde_json::from_slice(line).map_err(|error| format!("expected a line of JSON with the results of a frame: {error}"))?;
    let Some(objects) = line.objects else { return Ok(None) };
    let size = size(&line.resolution);
    if !objects.is_empty() && size == Size::default() {
        return Err("expected `resolution` with the width and height of the frame, because the line has objects".into());
    }
    let reader = Reader { size };
    let ids: HashMap<u64, ObjectId> =
        objects.iter().filter_map(|object| Some((object.get("region_id")?.as_u64()?, ObjectId::next()))).collect();
    let detections = objects.iter().map(|object| reader.object(object, &ids)).collect::<Result<_, _>>()?;
    let results = FrameResults {
        size,
        frame_number: line.frame.unwrap_or(0),
        status: line.inference.as_ref().map_or(InferenceStatus::Inferred, status),
        detections,
        classifications: line.classifications.map_or_else(Vec::new, |pairs| reader.attributes(&pairs, &[])),
        events: line.events.iter().filter_map(event).collect(),
        lost_tracks: Vec::new(),
    };
    Ok(Some(StoredFrame { results, frame_number: line.frame, timestamp_ns: line.timestamp, stream: line.stream }))
}

fn size(resolution: &Value) -> Size {
    match (integer(resolution, "width"), integer(resolution, "height")) {
        (Some(width), Some(height)) if width > 0 && height > 0 => Size::new(width, height),
        _ => Size::default(),
    }
}

fn status(inference: &Value) -> InferenceStatus {
    let reason = || text(inference, "reason").unwrap_or_else(|| "unknown".into());
    match inference.get("status").and_then(Value::as_str) {
        Some("skipped") => InferenceStatus::Skipped(reason()),
        Some("failed") => InferenceStatus::Failed(reason()),
        _ => InferenceStatus::Inferred,
    }
}

fn text(value: &Value, key: &str) -> Option<Arc<str>> {
    value.get(key).and_then(Value::as_str).map(Into::into)
}

/// A number; null, which stands for NaN and infinity, is NaN.
fn float(value: &Value) -> Option<f32> {
    if value.is_null() { Some(f32::NAN) } else { value.as_f64().map(|value| value as f32) }
}

fn float_at(value: &Value, key: &str) -> Option<f32> {
    value.get(key).and_then(float)
}

fn integer<T: TryFrom<u64>>(value: &Value, key: &str) -> Option<T> {
    value.get(key)?.as_u64()?.try_into().ok()
}

/// Reads coordinates of a frame.
#[derive(Clone, Copy)]
struct Reader {
    size: Size,
}

impl Reader {
    fn object(self, object: &Pairs, ids: &HashMap<u64, ObjectId>) -> Result<Detection, String> {
        let detection = object.get("detection").unwrap_or(&Value::Null);
        let rect =
            self.rect(object, detection).ok_or("expected objects with `detection` and its `bounding_box`, or `x`, `y`, `w` and `h`")?;
        let id_of = |key: &str| ids.get(&object.get(key)?.as_u64()?).copied();
        let track = object.get("id").and_then(Value::as_i64).and_then(|id| i32::try_from(id).ok()).map(ObjectId);
        let track_state = match object.get("track_state").and_then(Value::as_str) {
            Some("tentative") => Some(TrackState::Tentative),
            Some("held") => Some(TrackState::Held),
            Some("predicted") => Some(TrackState::Predicted),
            Some(_) => Some(TrackState::Confirmed),
            None => track.map(|_| TrackState::Confirmed),
        };
        // Without a label, `roi_type` has a word that stands for any object.
        let roi_type = || object.get("roi_type").and_then(Value::as_str).filter(|_| detection.get("label").is_none());
        let label = text(detection, "label").or_else(|| roi_type().map(Into::into));
        Ok(Detection {
            id: id_of("region_id").unwrap_or_else(ObjectId::next),
            track,
            track_state,
            parent: id_of("parent_id"),
            rect,
            keypoints: self.points(detection.get("keypoints")).unwrap_or_default(),
            confidence: float_at(detection, "confidence").unwrap_or(Detection::UNKNOWN_CONFIDENCE),
            label_id: integer(detection, "label_id").unwrap_or(0),
            label,
            classifications: self.attributes(object, &super::KEYS),
        })
    }

    fn rect(self, object: &Pairs, detection: &Value) -> Option<Rect> {
        let (width, height) = (self.size.width as f32, self.size.height as f32);
        if let Some(bounds) = detection.get("bounding_box") {
            let edge = |key: &str| float_at(bounds, key);
            let (left, top, right, bottom) = (edge("x_min")?, edge("y_min")?, edge("x_max")?, edge("y_max")?);
            return Some(Rect::from_corners(left * width, top * height, right * width, bottom * height));
        }
        let pixels = |key: &str| object.get(key).and_then(float);
        Some(Rect { x: pixels("x")?, y: pixels("y")?, width: pixels("w")?, height: pixels("h")? })
    }

    fn point(self, value: &Value) -> Option<Point> {
        let (x, y) = (float_at(value, "x")?, float_at(value, "y")?);
        Some(Point { x: x * self.size.width as f32, y: y * self.size.height as f32 })
    }

    fn points(self, value: Option<&Value>) -> Option<Vec<Point>> {
        value?.as_array()?.iter().map(|value| self.point(value)).collect()
    }

    fn attributes(self, pairs: &Pairs, reserved: &[&str]) -> Vec<Classification> {
        let attribute = |(name, body): &(String, Value)| {
            let outcome = body.is_object().then(|| self.outcome(body)).flatten()?;
            let model = body.get("model").and_then(|model| text(model, "name")).unwrap_or_else(|| "".into());
            Some(Classification { name: name.as_str().into(), model, outcome })
        };
        pairs.0.iter().filter(|(name, _)| !reserved.contains(&name.as_str())).filter_map(attribute).collect()
    }

    fn outcome(self, body: &Value) -> Option<Outcome> {
        if let Some(geometry) = self.geometry(body) {
            return Some(Outcome::Geometry(geometry));
        }
        let confidence = float_at(body, "confidence").unwrap_or(1.0);
        if let Some(labels) = body.get("labels").and_then(Value::as_array) {
            let label = |value: &Value| ScoredLabel {
                label_id: integer(value, "label_id").unwrap_or(0),
                label: text(value, "label"),
                confidence: float_at(value, "confidence").unwrap_or(1.0),
            };
            return Some(Outcome::Labels(labels.iter().map(label).collect()));
        }
        if let Some(value) = float_at(body, "value") {
            return Some(Outcome::Value(value));
        }
        if let Some(text) = text(body, "text") {
            return Some(Outcome::Text { text, confidence });
        }
        if let (Some(shape), Some(data)) = (body.get("shape").and_then(Value::as_array), body.get("data").and_then(Value::as_array)) {
            let shape = shape.iter().map(|extent| extent.as_u64().and_then(|extent| extent.try_into().ok())).collect::<Option<_>>()?;
            return Some(Outcome::Tensor { shape, data: data.iter().map(float).collect::<Option<Vec<_>>>()?.into() });
        }
        let label = text(body, "label");
        (label.is_some() || body.get("label_id").is_some()).then(|| Outcome::Label {
            label_id: integer(body, "label_id").unwrap_or(0),
            label,
            confidence,
        })
    }

    fn geometry(self, body: &Value) -> Option<Geometry> {
        if body.get("keypoints").is_some() {
            return self.keypoints(body).map(Geometry::Keypoints);
        }
        if let Some(polygons) = body.get("polygons").and_then(Value::as_array) {
            return polygons.iter().map(|polygon| self.points(Some(polygon))).collect::<Option<_>>().map(Geometry::Polygons);
        }
        if let (Some(angle), Some(corners)) = (float_at(body, "angle"), self.points(body.get("corners"))) {
            let [top_left, top_right, bottom_right, bottom_left] = corners[..] else { return None };
            let length = |from: Point, to: Point| (to.x - from.x).hypot(to.y - from.y);
            let mean = |of: fn(&Point) -> f32| corners.iter().map(of).sum::<f32>() / 4.0;
            let _ = bottom_right;
            return Some(Geometry::RotatedRect(RotatedRect {
                center: Point { x: mean(|point| point.x), y: mean(|point| point.y) },
                width: length(top_left, top_right),
                height: length(top_left, bottom_left),
                angle,
            }));
        }
        self.grid(body)
    }

    fn keypoints(self, body: &Value) -> Option<Keypoints> {
        let list = body.get("keypoints")?.as_array()?;
        let point = |value: &Value| Some(Keypoint { point: self.point(value)?, confidence: value.get("confidence").and_then(float) });
        let points = list.iter().map(point).collect::<Option<Vec<_>>>()?;
        let names: Vec<Arc<str>> = list.iter().filter_map(|value| text(value, "name")).collect();
        let names = if names.len() == points.len() { names } else { Vec::new() };
        let edge = |value: &Value| Some((u32::try_from(value.get(0)?.as_u64()?).ok()?, u32::try_from(value.get(1)?.as_u64()?).ok()?));
        let edges = body.get("skeleton").and_then(Value::as_array).into_iter().flatten().filter_map(edge).collect();
        Some(Keypoints { points, skeleton: Arc::new(Skeleton { names, edges }) })
    }

    /// A mask or map.
    fn grid(self, body: &Value) -> Option<Geometry> {
        let corners: [Point; 3] = self.points(body.get("corners"))?.try_into().ok()?;
        let (columns, rows): (usize, usize) = (integer(body, "columns")?, integer(body, "rows")?);
        let n_cells = columns.checked_mul(rows).filter(|n_cells| *n_cells <= MAX_CELLS)?;
        let labels =
            || body.get("labels").and_then(Value::as_array).into_iter().flatten().filter_map(|label| label.as_str().map(Into::into));
        if let Some(image) = body.get("png").and_then(Value::as_str) {
            if let Some((min, max)) = float_at(body, "min").zip(float_at(body, "max")) {
                let values = png::numbers(image, min, max, columns, rows)?.into();
                return Some(Geometry::ValueMap(Grid { columns, values, corners }));
            }
            let cells = Grid { columns, values: png::bytes(image, columns, rows)?.into(), corners };
            let is_mask = body.get("area").is_some();
            return Some(if is_mask { Geometry::Mask(cells) } else { Geometry::ClassMap { classes: cells, labels: labels().collect() } });
        }
        if let Some(runs) = body.get("runs").and_then(Value::as_array) {
            let runs = runs.iter().enumerate().map(|(idx, run)| Some((if idx % 2 == 0 { 0 } else { 255 }, run.as_u64()?)));
            return Some(Geometry::Mask(Grid { columns, values: expanded(runs, n_cells)?.into(), corners }));
        }
        if let Some(runs) = body.get("class_runs").and_then(Value::as_array) {
            let run = |run: &Value| Some((u8::try_from(run.get(0)?.as_u64()?).ok()?, run.get(1)?.as_u64()?));
            let classes = Grid { columns, values: expanded(runs.iter().map(run), n_cells)?.into(), corners };
            return Some(Geometry::ClassMap { classes, labels: labels().collect() });
        }
        let values = body.get("values")?.as_array()?.iter().map(float).collect::<Option<Vec<_>>>()?;
        (values.len() == n_cells).then(|| Geometry::ValueMap(Grid { columns, values: values.into(), corners }))
    }
}

/// Returns the cells of run lengths, if they are as many as the grid has.
fn expanded(runs: impl Iterator<Item = Option<(u8, u64)>>, n_cells: usize) -> Option<Vec<u8>> {
    let mut cells = Vec::new();
    for run in runs {
        let (value, length) = run?;
        let end = cells.len().checked_add(usize::try_from(length).ok()?).filter(|end| *end <= n_cells)?;
        cells.resize(end, value);
    }
    (cells.len() == n_cells).then_some(cells)
}

fn event(value: &Value) -> Option<SceneEvent> {
    let count = |key: &str| value.get(key).and_then(Value::as_u64);
    let dwell = || {
        let seconds = value.get("dwell").and_then(Value::as_f64).unwrap_or(0.0);
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    };
    let kind = match value.get("event")?.as_str()? {
        "line-crossed" => {
            let direction = if value.get("direction")?.as_str()? == "in" { Direction::In } else { Direction::Out };
            SceneEventKind::Crossed { direction, count: count("count")? }
        }
        "zone-entered" => SceneEventKind::Entered { occupancy: count("occupancy")? },
        "zone-exited" => {
            let is_lost = value.get("is_lost").and_then(Value::as_bool).unwrap_or(false);
            SceneEventKind::Exited { occupancy: count("occupancy")?, dwell: dwell(), is_lost }
        }
        "zone-loitered" => SceneEventKind::Loitered { dwell: dwell() },
        _ => return None,
    };
    let track = ObjectId(i32::try_from(value.get("id")?.as_i64()?).ok()?);
    Some(SceneEvent { kind, place: text(value, "place")?, track, label: text(value, "label") })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::json::{Context, MapFormat, MaskFormat, write_line};

    const SIZE: Size = Size::new(200, 100);

    fn line_of(results: &FrameResults) -> Vec<u8> {
        line_as(results, MaskFormat::default(), MapFormat::default())
    }

    fn line_as(results: &FrameResults, masks: MaskFormat, maps: MapFormat) -> Vec<u8> {
        let context = Context {
            frame_number: 7,
            stream_id: Some("door"),
            source: None,
            tags: None,
            timestamp_ns: Some(40),
            pts_ns: Some(1040),
            time: UNIX_EPOCH,
            message_id: None,
            image: None,
            masks,
            maps,
        };
        let mut line = Vec::new();
        write_line(&mut line, results, &context).unwrap();
        line
    }

    fn read(line: &[u8]) -> StoredFrame {
        read_line(line).unwrap().unwrap()
    }

    /// Results with every kind of attribute, geometry and event.
    fn everything() -> FrameResults {
        let at = |x: f32, y: f32| Point { x, y };
        let corners = [at(0.0, 0.0), at(100.0, 0.0), at(0.0, 50.0)];
        let named = |name: &str, outcome| Classification { name: name.into(), model: "m".into(), outcome };
        let skeleton = Arc::new(Skeleton { names: vec!["nose".into(), "eye".into()], edges: vec![(0, 1)] });
        let keypoint = |x, confidence| Keypoint { point: at(x, 25.0), confidence };
        let geometry = [
            Geometry::Keypoints(Keypoints { points: vec![keypoint(50.0, Some(0.5)), keypoint(100.0, None)], skeleton }),
            Geometry::RotatedRect(RotatedRect { center: at(100.0, 50.0), width: 50.0, height: 25.0, angle: 90.0 }),
            Geometry::Polygons(vec![vec![at(0.0, 50.0), at(100.0, 0.0), at(50.0, 25.0)]]),
            Geometry::Mask(Grid { columns: 2, values: [0, 255, 255, 0].into(), corners }),
            Geometry::ClassMap {
                classes: Grid { columns: 2, values: [0, 2, 2, 1].into(), corners },
                labels: ["road".into(), "car".into()].into(),
            },
            Geometry::ValueMap(Grid { columns: 2, values: [0.5, 1.5].into(), corners }),
        ];
        let label = |label_id, label: &str| ScoredLabel { label_id, label: Some(label.into()), confidence: 0.5 };
        let others = [
            Outcome::Label { label_id: 1, label: Some("red".into()), confidence: 0.75 },
            Outcome::Labels(vec![label(0, "hat"), label(2, "bag")]),
            Outcome::Value(31.5),
            Outcome::Text { text: "AB \"12\"".into(), confidence: 0.5 },
            Outcome::Tensor { shape: vec![1, 2], data: [0.5, -0.25].into() },
        ];
        let outcomes = geometry.into_iter().map(Outcome::Geometry).chain(others);
        // The names are not in alphabetical order.
        let classifications = outcomes.enumerate().map(|(n, outcome)| named(&format!("a{}", 99 - n), outcome)).collect();
        let detection = |id, rect| Detection {
            id: ObjectId(id),
            track: None,
            track_state: None,
            parent: None,
            rect,
            keypoints: vec![],
            confidence: 0.5,
            label_id: 3,
            label: None,
            classifications: vec![],
        };
        let person = Detection {
            track: Some(ObjectId(4)),
            track_state: Some(TrackState::Held),
            keypoints: vec![at(50.0, 25.0), at(100.0, -50.0)],
            label: Some("person".into()),
            classifications,
            ..detection(71, Rect::from_corners(50.0, 25.0, 100.0, 75.0))
        };
        let hand = Detection { parent: Some(ObjectId(71)), ..detection(72, Rect::from_corners(-50.0, 50.0, 25.0, 125.0)) };
        let event = |kind| SceneEvent { kind, place: "door".into(), track: ObjectId(4), label: Some("person".into()) };
        let dwell = Duration::from_millis(1500);
        FrameResults {
            size: SIZE,
            frame_number: 7,
            status: InferenceStatus::Skipped("interval".into()),
            detections: vec![person, hand],
            classifications: vec![named("weather", Outcome::Value(2.0))],
            events: vec![
                event(SceneEventKind::Crossed { direction: Direction::Out, count: 3 }),
                event(SceneEventKind::Entered { occupancy: 2 }),
                event(SceneEventKind::Exited { occupancy: 1, dwell, is_lost: true }),
                event(SceneEventKind::Loitered { dwell }),
            ],
            lost_tracks: vec![],
        }
    }

    #[test]
    fn everything_that_is_written_is_read() {
        let mut expected = everything();
        let stored = read(&line_of(&expected));
        assert_eq!((stored.frame_number, stored.timestamp_ns, stored.stream.as_deref()), (Some(7), Some(40), Some("door")));
        let [person, hand] = &stored.results.detections[..] else { panic!("{:?}", stored.results) };
        assert!(person.id != hand.id && hand.parent == Some(person.id));
        for (expected, read) in expected.detections.iter_mut().zip(&stored.results.detections) {
            (expected.id, expected.parent) = (read.id, read.parent);
        }
        assert_eq!(stored.results, expected);
        assert_eq!(line_of(&stored.results), line_of(&everything()), "written again, the line is the same");
    }

    #[test]
    fn lines_of_dlstreamer_are_read() {
        let line = br#"{"objects":[{"detection":{"bounding_box":{"x_max":0.5,"x_min":0.25,"y_max":0.75,"y_min":0.5},"confidence":0.9,"label":"car",
            "label_id":2},"h":25,"w":50,"x":50,"y":50,"region_id":9,"id":5,"roi_type":"car","color":{"label":"white","model":{"name":"c"}}}],
            "resolution":{"height":100,"width":200},"timestamp":33333333}"#;
        let StoredFrame { results, frame_number, timestamp_ns, .. } = read(line);
        assert_eq!((frame_number, timestamp_ns, &results.status), (None, Some(33_333_333), &InferenceStatus::Inferred));
        let car = &results.detections[0];
        assert_eq!(
            (car.rect, car.track, car.label.as_deref()),
            (Rect::from_corners(50.0, 50.0, 100.0, 75.0), Some(ObjectId(5)), Some("car"))
        );
        assert!(matches!(&car.classifications[0].outcome, Outcome::Label { label: Some(label), .. } if &**label == "white"));
        let plain = br#"{"objects":[{"x":1,"y":2,"w":3,"h":4,"roi_type":"dog"}],"resolution":{"height":100,"width":200}}"#;
        let dog = &read(plain).results.detections[0];
        assert_eq!((dog.rect, dog.label.as_deref()), (Rect { x: 1.0, y: 2.0, width: 3.0, height: 4.0 }, Some("dog")));
    }

    #[test]
    fn other_lines_are_ignored_and_broken_lines_are_errors() {
        assert_eq!(read_line(br#"{"event":"source-lost","schema_version":1}"#), Ok(None));
        for (line, word) in [
            ("", "JSON"),
            (r#"{"objects":[{"x""#, "JSON"),
            ("[1]", "sequence"),
            (r#"{"objects":7}"#, "sequence"),
            (r#"{"objects":[{"x":1,"y":2,"w":3,"h":4}]}"#, "resolution"),
            (r#"{"objects":[{"x":1}],"resolution":{"width":2,"height":2}}"#, "bounding_box"),
            (r#"{"objects":["x"],"resolution":{"width":2,"height":2}}"#, "object"),
        ] {
            let error = read_line(line.as_bytes()).unwrap_err();
            assert!(error.contains(word) && error.contains("expected"), "{line}: {error}");
        }
    }

    #[test]
    fn huge_and_contradictory_grids_are_left_out() {
        let corners = r#""corners":[{"x":0,"y":0},{"x":1,"y":0},{"x":0,"y":1}]"#;
        for grid in [
            r#""columns":100000000000,"rows":100000000000,"runs":[5]"#,
            r#""columns":4294967296,"rows":4294967296,"runs":[0]"#,
            r#""columns":100000,"rows":100000,"runs":[10000000000]"#,
            r#""columns":2,"rows":2,"runs":[3]"#,
            r#""columns":2,"rows":2,"runs":[1,18446744073709551615]"#,
            r#""columns":2,"rows":2,"class_runs":[[300,4]]"#,
            r#""columns":2,"rows":2,"values":[1]"#,
        ] {
            let line = format!(r#"{{"objects":[],"resolution":{{"width":2,"height":2}},"classifications":{{"m":{{{corners},{grid}}}}}}}"#);
            assert_eq!(read(line.as_bytes()).results.classifications, [], "{grid}");
        }
    }

    #[test]
    fn images_of_masks_and_maps_are_read() {
        let stored = read(&line_as(&everything(), MaskFormat::Png, MapFormat::Png));
        let expected = read(&line_of(&everything()));
        assert_eq!(stored.results.detections[0].classifications, expected.results.detections[0].classifications);
    }

    #[test]
    fn damaged_lines_are_errors_or_results() {
        let line = line_of(&everything());
        for end in 0..line.len() - 2 {
            assert!(read_line(&line[..end]).is_err(), "cut after {end} bytes");
        }
        // Each byte is replaced by bytes that change numbers, names and the structure.
        for at in 0..line.len() {
            for byte in *b"0-9e.\"[{:," {
                let mut damaged = line.clone();
                damaged[at] = byte;
                if let Ok(Some(frame)) = read_line(&damaged) {
                    assert!(frame.results.detections.len() <= 2, "byte {at} is {}", char::from(byte));
                }
            }
        }
    }
}
