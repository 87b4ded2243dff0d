//! Payload of the results meta, and its encoding for another copy of the library in the process ([`super::results_meta`]).
//!
//! The encoding is JSON with all fields of [`FrameResults`]. Floating-point numbers are written as their bits, so that they are preserved
//! exactly. Copies of different versions are compatible: unknown fields are ignored, missing fields get defaults, and outcomes of an
//! unknown kind are ignored.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::relations::{Written, WrittenEntry, WrittenOfFrame};
use super::roi::Mark;
use crate::frame::{
    Classification, Detection, Direction, FrameResults, Geometry, Grid, InferenceStatus, Keypoint, Keypoints, LostTrack, ObjectId, Outcome,
    PixelRect, Point, Rect, RotatedRect, SceneEvent, SceneEventKind, ScoredLabel, Size, Skeleton, TrackState,
};

/// The results of a frame, and which analytics entries and ROI metas of the buffer belong to these results.
#[derive(Debug, Default)]
pub(super) struct Payload {
    /// The results; `None` while an element has moved them out.
    pub(super) results: Option<Arc<FrameResults>>,
    /// The frame size when the results were attached.
    pub(super) size: Size,
    /// Our entries in the analytics meta.
    pub(super) written: Written,
    /// Snapshots of the ROI metas of our detections, in the order of the buffer's metas.
    pub(super) marks: Vec<Mark>,
    /// Whether the results contain all data of the ROI metas.
    pub(super) is_complete: bool,
}

impl Payload {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { results, size, written, marks, is_complete: _ } = self;
        let none = FrameResults { size: *size, ..FrameResults::default() };
        let FrameResults { size, frame_number, status, detections, classifications, events, lost_tracks } =
            results.as_deref().unwrap_or(&none);
        let message = Message {
            size: (size.width, size.height),
            frame_number: *frame_number,
            status: status.into(),
            detections: detections.iter().map(Into::into).collect(),
            classifications: classifications.iter().map(Into::into).collect(),
            events: events.iter().map(Into::into).collect(),
            lost_tracks: lost_tracks.iter().map(Into::into).collect(),
            written: written.entries(),
            written_of_frame: written.entries_of_frame(),
            regions: Some(marks.iter().map(|mark| (mark.object.0, mark.place())).collect()),
        };
        serde_json::to_vec(&message).expect("every value of a message has a form in JSON")
    }

    pub(super) fn decode(bytes: &[u8]) -> serde_json::Result<Self> {
        let Message {
            size: (width, height),
            frame_number,
            status,
            detections,
            classifications,
            events,
            lost_tracks,
            written,
            written_of_frame,
            regions,
        } = serde_json::from_slice(bytes)?;
        let results = FrameResults {
            size: Size::new(width, height),
            frame_number,
            status: status.into(),
            detections: detections.into_iter().map(Into::into).collect(),
            classifications: classifications.into_iter().filter_map(Said::into_classification).collect(),
            events: events.into_iter().filter_map(Happened::into_event).collect(),
            lost_tracks: lost_tracks.into_iter().map(Into::into).collect(),
        };
        let (size, written) = (results.size, Written::of_entries(written, written_of_frame));
        let regions: Option<HashMap<i32, PixelRect>> = regions.map(|regions| {
            let place = |[x, y, width, height]: [u32; 4]| PixelRect { x, y, width, height };
            regions.into_iter().map(|(object, region)| (object, place(region))).collect()
        });
        let mark = |detection: &Detection| {
            let place = match &regions {
                Some(regions) => regions.get(&detection.id.0).copied(),
                None => detection.rect.to_pixels(size),
            };
            Some(Mark::unseen(detection, written.region_id(detection.id), place?))
        };
        let marks = results.detections.iter().filter_map(mark).collect();
        Ok(Self { results: Some(Arc::new(results)), size, written, marks, is_complete: false })
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Message {
    size: (u32, u32),
    frame_number: u64,
    status: Status,
    detections: Vec<Object>,
    classifications: Vec<Said>,
    events: Vec<Happened>,
    lost_tracks: Vec<Lost>,
    written: Vec<WrittenEntry>,
    written_of_frame: WrittenOfFrame,
    /// The detections that have a ROI meta, and its place as left, top, width and height. `None`: the encoding is that of a version without
    /// this field.
    regions: Option<Vec<(i32, [u32; 4])>>,
}

/// A lost track.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Lost {
    track: i32,
    rect: [Bits; 4],
    label_id: u32,
    label: Option<String>,
    n_missed: u32,
}

impl From<&LostTrack> for Lost {
    fn from(LostTrack { track, rect, label_id, label, n_missed }: &LostTrack) -> Self {
        let rect = [rect.x, rect.y, rect.width, rect.height].map(Bits::from);
        Self { track: track.0, rect, label_id: *label_id, label: label.as_deref().map(Into::into), n_missed: *n_missed }
    }
}

impl From<Lost> for LostTrack {
    fn from(Lost { track, rect, label_id, label, n_missed }: Lost) -> Self {
        let [x, y, width, height] = rect.map(f32::from);
        Self { track: ObjectId(track), rect: Rect { x, y, width, height }, label_id, label: label.map(Into::into), n_missed }
    }
}

/// An event at a line or in a zone.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Happened {
    name: String,
    place: String,
    track: i32,
    label: Option<String>,
    direction: Option<String>,
    n: u64,
    dwell_ns: u64,
    is_lost: bool,
}

impl From<&SceneEvent> for Happened {
    fn from(event: &SceneEvent) -> Self {
        let empty = Self {
            name: event.kind.name().into(),
            place: (&*event.place).into(),
            track: event.track.0,
            label: event.label.as_deref().map(Into::into),
            ..Self::default()
        };
        match event.kind {
            SceneEventKind::Crossed { direction, count } => Self { direction: Some(direction.name().into()), n: count, ..empty },
            SceneEventKind::Entered { occupancy } => Self { n: occupancy, ..empty },
            SceneEventKind::Exited { occupancy, dwell, is_lost } => {
                Self { n: occupancy, dwell_ns: dwell.as_nanos() as u64, is_lost, ..empty }
            }
            SceneEventKind::Loitered { dwell } => Self { dwell_ns: dwell.as_nanos() as u64, ..empty },
        }
    }
}

impl Happened {
    /// Converts the event. Returns `None` for an event of an unknown kind, because later versions may have more kinds.
    fn into_event(self) -> Option<SceneEvent> {
        let dwell = Duration::from_nanos(self.dwell_ns);
        let kind = match (&*self.name, self.direction.as_deref()) {
            ("line-crossed", Some("in")) => SceneEventKind::Crossed { direction: Direction::In, count: self.n },
            ("line-crossed", Some("out")) => SceneEventKind::Crossed { direction: Direction::Out, count: self.n },
            ("zone-entered", _) => SceneEventKind::Entered { occupancy: self.n },
            ("zone-exited", _) => SceneEventKind::Exited { occupancy: self.n, dwell, is_lost: self.is_lost },
            ("zone-loitered", _) => SceneEventKind::Loitered { dwell },
            _ => return None,
        };
        Some(SceneEvent { kind, place: self.place.into(), track: ObjectId(self.track), label: self.label.map(Into::into) })
    }
}

#[derive(Default, Serialize, Deserialize)]
enum Status {
    #[default]
    Inferred,
    Skipped(String),
    Failed(String),
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Object {
    id: i32,
    track: Option<i32>,
    track_state: Option<State>,
    parent: Option<i32>,
    rect: [Bits; 4],
    keypoints: Vec<[Bits; 2]>,
    confidence: Bits,
    label_id: u32,
    label: Option<String>,
    classifications: Vec<Said>,
}

#[derive(Serialize, Deserialize)]
enum State {
    Tentative,
    Confirmed,
    Held,
    Predicted,
}

#[derive(Serialize, Deserialize)]
struct Said {
    name: String,
    model: String,
    outcome: Form,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Form {
    Label(Scored),
    Labels {
        labels: Vec<Scored>,
    },
    Value {
        value: Bits,
    },
    Tensor {
        shape: Vec<usize>,
        data: Vec<Bits>,
    },
    Text {
        text: String,
        confidence: Bits,
    },
    Keypoints {
        points: Vec<([Bits; 2], Option<Bits>)>,
        names: Vec<String>,
        edges: Vec<(u32, u32)>,
    },
    RotatedRect {
        center: [Bits; 2],
        width: Bits,
        height: Bits,
        angle: Bits,
    },
    Polygons {
        polygons: Vec<Vec<[Bits; 2]>>,
    },
    Mask {
        grid: Cells<u8>,
    },
    ClassMap {
        grid: Cells<u8>,
        labels: Vec<String>,
    },
    ValueMap {
        grid: Cells<Bits>,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Serialize, Deserialize)]
struct Scored {
    label_id: u32,
    label: Option<String>,
    confidence: Bits,
}

/// The encoded form of a [`Grid`].
#[derive(Serialize, Deserialize)]
struct Cells<T> {
    columns: usize,
    values: Vec<T>,
    corners: [[Bits; 2]; 3],
}

impl<T> Cells<T> {
    fn of<V: Copy + Into<T>>(grid: &Grid<V>) -> Self {
        let Grid { columns, values, corners } = grid;
        Self { columns: *columns, values: values.iter().map(|value| (*value).into()).collect(), corners: corners.map(bits_of) }
    }

    fn into_grid<V: From<T>>(self) -> Grid<V> {
        Grid { columns: self.columns, values: self.values.into_iter().map(V::from).collect(), corners: self.corners.map(point_of) }
    }
}

fn bits_of(point: Point) -> [Bits; 2] {
    [point.x.into(), point.y.into()]
}

fn point_of([x, y]: [Bits; 2]) -> Point {
    Point { x: x.into(), y: y.into() }
}

/// The encoded form of a floating-point number: its bits.
#[derive(Default, Clone, Copy, Serialize, Deserialize)]
struct Bits(u32);

impl From<f32> for Bits {
    fn from(value: f32) -> Self {
        Self(value.to_bits())
    }
}

impl From<Bits> for f32 {
    fn from(bits: Bits) -> Self {
        Self::from_bits(bits.0)
    }
}

impl From<&InferenceStatus> for Status {
    fn from(status: &InferenceStatus) -> Self {
        match status {
            InferenceStatus::Inferred => Self::Inferred,
            InferenceStatus::Skipped(reason) => Self::Skipped(reason.to_string()),
            InferenceStatus::Failed(reason) => Self::Failed(reason.to_string()),
        }
    }
}

impl From<Status> for InferenceStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Inferred => Self::Inferred,
            Status::Skipped(reason) => Self::Skipped(reason.into()),
            Status::Failed(reason) => Self::Failed(reason.into()),
        }
    }
}

impl From<&Detection> for Object {
    fn from(detection: &Detection) -> Self {
        let Detection { id, track, track_state, parent, rect, keypoints, confidence, label_id, label, classifications } = detection;
        Self {
            id: id.0,
            track: track.map(|track| track.0),
            track_state: track_state.map(|state| match state {
                TrackState::Tentative => State::Tentative,
                TrackState::Confirmed => State::Confirmed,
                TrackState::Held => State::Held,
                TrackState::Predicted => State::Predicted,
            }),
            parent: parent.map(|parent| parent.0),
            rect: [rect.x, rect.y, rect.width, rect.height].map(Bits::from),
            keypoints: keypoints.iter().map(|point| [point.x, point.y].map(Bits::from)).collect(),
            confidence: (*confidence).into(),
            label_id: *label_id,
            label: label.as_deref().map(str::to_owned),
            classifications: classifications.iter().map(Into::into).collect(),
        }
    }
}

impl From<Object> for Detection {
    fn from(object: Object) -> Self {
        let Object { id, track, track_state, parent, rect, keypoints, confidence, label_id, label, classifications } = object;
        let [x, y, width, height] = rect.map(f32::from);
        Self {
            id: ObjectId(id),
            track: track.map(ObjectId),
            track_state: track_state.map(|state| match state {
                State::Tentative => TrackState::Tentative,
                State::Confirmed => TrackState::Confirmed,
                State::Held => TrackState::Held,
                State::Predicted => TrackState::Predicted,
            }),
            parent: parent.map(ObjectId),
            rect: Rect { x, y, width, height },
            keypoints: keypoints.into_iter().map(|[x, y]| Point { x: x.into(), y: y.into() }).collect(),
            confidence: confidence.into(),
            label_id,
            label: label.map(Into::into),
            classifications: classifications.into_iter().filter_map(Said::into_classification).collect(),
        }
    }
}

impl From<&Classification> for Said {
    fn from(classification: &Classification) -> Self {
        let scored = |label_id: u32, label: Option<&str>, confidence: f32| Scored {
            label_id,
            label: label.map(str::to_owned),
            confidence: confidence.into(),
        };
        let Classification { name, model, outcome } = classification;
        let outcome = match outcome {
            Outcome::Label { label_id, label, confidence } => Form::Label(scored(*label_id, label.as_deref(), *confidence)),
            Outcome::Labels(labels) => {
                let labels = labels.iter().map(|label| scored(label.label_id, label.label.as_deref(), label.confidence));
                Form::Labels { labels: labels.collect() }
            }
            Outcome::Value(value) => Form::Value { value: (*value).into() },
            Outcome::Tensor { shape, data } => {
                Form::Tensor { shape: shape.clone(), data: data.iter().map(|value| (*value).into()).collect() }
            }
            Outcome::Text { text, confidence } => Form::Text { text: text.to_string(), confidence: (*confidence).into() },
            Outcome::Geometry(geometry) => Form::of_geometry(geometry),
        };
        Self { name: name.to_string(), model: model.to_string(), outcome }
    }
}

impl Form {
    fn of_geometry(geometry: &Geometry) -> Self {
        let texts = |texts: &[Arc<str>]| texts.iter().map(|text| text.to_string()).collect();
        match geometry {
            Geometry::Keypoints(Keypoints { points, skeleton }) => Self::Keypoints {
                points: points.iter().map(|of| (bits_of(of.point), of.confidence.map(Bits::from))).collect(),
                names: texts(&skeleton.names),
                edges: skeleton.edges.clone(),
            },
            Geometry::RotatedRect(RotatedRect { center, width, height, angle }) => {
                Self::RotatedRect { center: bits_of(*center), width: (*width).into(), height: (*height).into(), angle: (*angle).into() }
            }
            Geometry::Polygons(polygons) => {
                Self::Polygons { polygons: polygons.iter().map(|points| points.iter().copied().map(bits_of).collect()).collect() }
            }
            Geometry::Mask(grid) => Self::Mask { grid: Cells::of(grid) },
            Geometry::ClassMap { classes, labels } => Self::ClassMap { grid: Cells::of(classes), labels: texts(labels) },
            Geometry::ValueMap(grid) => Self::ValueMap { grid: Cells::of(grid) },
        }
    }
}

impl Said {
    /// Converts the encoded form to a classification; `None` if its outcome is of an unknown kind.
    fn into_classification(self) -> Option<Classification> {
        let Self { name, model, outcome } = self;
        let outcome = match outcome {
            Form::Label(Scored { label_id, label, confidence }) => {
                Outcome::Label { label_id, label: label.map(Into::into), confidence: confidence.into() }
            }
            Form::Labels { labels } => {
                let label = |Scored { label_id, label, confidence }| ScoredLabel {
                    label_id,
                    label: label.map(Into::into),
                    confidence: f32::from(confidence),
                };
                Outcome::Labels(labels.into_iter().map(label).collect())
            }
            Form::Value { value } => Outcome::Value(value.into()),
            Form::Tensor { shape, data } => Outcome::Tensor { shape, data: data.into_iter().map(f32::from).collect() },
            Form::Text { text, confidence } => Outcome::Text { text: text.into(), confidence: confidence.into() },
            Form::Keypoints { points, names, edges } => {
                let point = |(point, confidence): ([Bits; 2], Option<Bits>)| Keypoint {
                    point: point_of(point),
                    confidence: confidence.map(f32::from),
                };
                let skeleton = Skeleton { names: names.into_iter().map(Into::into).collect(), edges };
                Outcome::Geometry(Geometry::Keypoints(Keypoints {
                    points: points.into_iter().map(point).collect(),
                    skeleton: Arc::new(skeleton),
                }))
            }
            Form::RotatedRect { center, width, height, angle } => Outcome::Geometry(Geometry::RotatedRect(RotatedRect {
                center: point_of(center),
                width: width.into(),
                height: height.into(),
                angle: angle.into(),
            })),
            Form::Polygons { polygons } => {
                let polygons = polygons.into_iter().map(|points| points.into_iter().map(point_of).collect());
                Outcome::Geometry(Geometry::Polygons(polygons.collect()))
            }
            Form::Mask { grid } => Outcome::Geometry(Geometry::Mask(grid.into_grid())),
            Form::ClassMap { grid, labels } => {
                Outcome::Geometry(Geometry::ClassMap { classes: grid.into_grid(), labels: labels.into_iter().map(Into::into).collect() })
            }
            Form::ValueMap { grid } => Outcome::Geometry(Geometry::ValueMap(grid.into_grid())),
            Form::Unknown => return None,
        };
        Some(Classification { name: name.into(), model: model.into(), outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> FrameResults {
        let classification = |name: &str, outcome| Classification { name: name.into(), model: "m".into(), outcome };
        let label = |label: Option<&str>| ScoredLabel { label_id: 2, label: label.map(Into::into), confidence: 0.1 };
        let center = Point { x: 0.3, y: 0.7 };
        let grid = |values: Vec<u8>| Grid { columns: 2, values: values.into(), corners: [center; 3] };
        let skeleton = Skeleton { names: vec!["nose".into()], edges: vec![(0, 0)] };
        let pose = Keypoints { points: vec![Keypoint { point: center, confidence: Some(0.1) }], skeleton: Arc::new(skeleton) };
        let face = Detection {
            id: ObjectId(7),
            track: Some(ObjectId(3)),
            track_state: Some(TrackState::Held),
            parent: Some(ObjectId(5)),
            rect: Rect { x: 0.1, y: -0.2, width: 1e-30, height: 1e30 },
            keypoints: vec![Point { x: 0.3, y: 0.7 }],
            confidence: 0.9,
            label_id: 4,
            label: Some("fa\"ce\0".into()),
            classifications: vec![
                classification("gender", Outcome::Label { label_id: 1, label: None, confidence: f32::INFINITY }),
                classification("attributes", Outcome::Labels(vec![label(Some("hat")), label(None)])),
                classification("age", Outcome::Value(31.4)),
                classification("identity", Outcome::Tensor { shape: vec![1, 2], data: [0.5, -0.25].into() }),
                classification("plate", Outcome::Text { text: "B 12".into(), confidence: 0.3 }),
                classification("pose", Outcome::Geometry(Geometry::Keypoints(pose))),
                classification(
                    "box",
                    Outcome::Geometry(Geometry::RotatedRect(RotatedRect { center, width: 2.5, height: 0.1, angle: -30.0 })),
                ),
                classification("outline", Outcome::Geometry(Geometry::Polygons(vec![vec![center], vec![]]))),
                classification("mask", Outcome::Geometry(Geometry::Mask(grid(vec![0, 255])))),
                classification(
                    "classes",
                    Outcome::Geometry(Geometry::ClassMap { classes: grid(vec![1, 2]), labels: ["road".into()].into() }),
                ),
                classification(
                    "depth",
                    Outcome::Geometry(Geometry::ValueMap(Grid { columns: 1, values: [0.1_f32].into(), corners: [center; 3] })),
                ),
            ],
        };
        FrameResults {
            size: Size::new(640, 360),
            frame_number: 1 << 60,
            status: InferenceStatus::Failed("why".into()),
            detections: vec![face],
            classifications: vec![classification("scene", Outcome::Value(2.0))],
            events: [
                SceneEventKind::Crossed { direction: Direction::In, count: 7 },
                SceneEventKind::Crossed { direction: Direction::Out, count: 1 },
                SceneEventKind::Entered { occupancy: 2 },
                SceneEventKind::Exited { occupancy: 1, dwell: Duration::from_millis(1500), is_lost: true },
                SceneEventKind::Loitered { dwell: Duration::from_nanos(3) },
            ]
            .map(|kind| SceneEvent { kind, place: "door".into(), track: ObjectId(3), label: Some("person".into()) })
            .into(),
            lost_tracks: vec![LostTrack {
                track: ObjectId(5),
                rect: Rect { x: -0.1, y: 0.2, width: 3.0, height: 1e30 },
                label_id: 4,
                label: Some("person".into()),
                n_missed: 7,
            }],
        }
    }

    #[test]
    fn decoded_results_equal_the_encoded_ones() {
        for results in [everything(), FrameResults::default()] {
            let payload = Payload { size: results.size, results: Some(Arc::new(results)), ..Payload::default() };
            let decoded = Payload::decode(&payload.encode()).unwrap();
            assert_eq!((decoded.results, decoded.written, decoded.size), (payload.results, payload.written, payload.size));
        }
        let value = |results: &FrameResults| match results.classifications[0].outcome {
            Outcome::Value(value) => value,
            _ => unreachable!("made below"),
        };
        let mut results = everything();
        results.classifications[0].outcome = Outcome::Value(f32::NAN);
        let payload = Payload { results: Some(Arc::new(results)), ..Payload::default() };
        assert!(value(&Payload::decode(&payload.encode()).unwrap().results.unwrap()).is_nan());
    }

    #[test]
    fn bytes_of_another_version_are_read_partially() {
        let bytes = br#"{"size":[4,3],"new":1,"detections":[{"id":7,"mask":[],"classifications":[
            {"name":"pose","model":"m","outcome":{"kind":"Skeleton","bones":3}},
            {"name":"age","model":"m","outcome":{"kind":"Value","value":0,"unit":"years"}}]}]}"#;
        let results = Payload::decode(bytes).unwrap().results.unwrap();
        assert_eq!((results.size, results.frame_number, results.detections[0].id), (Size::new(4, 3), 0, ObjectId(7)));
        let names: Vec<&str> = results.detections[0].classifications.iter().map(|classification| &*classification.name).collect();
        assert_eq!(names, ["age"]);
        assert!(Payload::decode(b"{\"size\":7}").is_err());
    }
}
