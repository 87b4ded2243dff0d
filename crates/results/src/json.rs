//! JSON format: the results of a frame as one line.
//!
//! The schema is that of DL Streamer's `gvametaconvert`, with additional fields:
//!
//! ```json
//! {"schema_version":2,"frame":7,"stream":"door","timestamp":280000000,"pts":1280000000,"time":"2026-01-31T12:00:00.280Z",
//!  "source":"rtsp://***@camera/1","resolution":{"width":768,"height":432},"inference":{"status":"ok"},
//!  "objects":[{"x":10,"y":20,"w":30,"h":40,"id":3,"track_state":"confirmed","region_id":1,"parent_id":null,"roi_type":"face",
//!   "detection":{"bounding_box":{"x_min":0.013,"y_min":0.046,"x_max":0.052,"y_max":0.139},"confidence":0.99,"label_id":0,"label":"face"},
//!   "gender":{"label":"female","label_id":0,"confidence":0.97,"model":{"name":"age-gender"}},
//!   "age":{"value":31.4,"model":{"name":"age-gender"}}}]}
//! ```
//!
//! `timestamp` is the stream time, as in `gvametaconvert`. `pts` is the presentation timestamp of the buffer. Both are in nanoseconds.
//!
//! - `id` is the track ID, which is the same in every frame. `id` is null without a tracker and for tentative tracks.
//! - `track_state` exists if the object is tracked. It is `tentative`, `confirmed`, or on a frame without inference `held` (the box of the last
//!   inferred frame) or `predicted` (a box that the tracker has moved).
//! - `region_id` numbers the objects of a line from 1. `parent_id` is the `region_id` of the object in whose region this object was
//!   detected.
//!
//! If a stream is analyzed again, its lines are the same, except for `time` and `message_id`. Lines for servers have a `message_id`,
//! because a server may get a line twice.
//!
//! - `x`, `y`, `w`, `h` are integer pixels, clipped to the frame. `bounding_box` and `keypoints` (`[{"x":0.02,"y":0.06}, ...]`) are
//!   fractions of the frame size, not clipped.
//! - `tags` has the constant fields that the user has set for the stream. The key is omitted without such fields.
//! - `classifications` has the attributes of the whole frame. The key is omitted if the frame has no attributes.
//! - `lost_tracks` has the tracks whose objects were not detected: `id`, `track_state` (`lost`), `roi_type`, `bounding_box` (predicted), and `missed`, the
//!   number of inferred frames without the object. The key is omitted unless the tracker reports lost tracks.
//! - `events` has what tracked objects did at lines and in zones. The key is omitted if nothing happened.
//! - `confidence` is omitted if the object was attached without one.
//! - Objects outside the frame are omitted. NaN and infinite numbers are null.
//! - The module `geometry` has the keys of masks, polygons and other shapes, whose coordinates are fractions of the frame size.

mod event;
mod geometry;
mod png;
mod read;
mod record;
mod scene;

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use event::{SourceEvent, event_line};
use geometry::{Placed, RelativePoint};
pub use read::{StoredFrame, read_line};
pub use record::{RecordContext, record_line};
use scene::Events;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::{
    Classification, Detection, FrameResults, InferenceStatus, LostTrack, ObjectId, Outcome, PixelRect, Point, Rect, ScoredLabel, Size,
    TrackState,
};

/// Version of the schema. The version is incremented when the meaning of a field changes, but not when a field is added.
pub const SCHEMA_VERSION: u32 = 2;

/// How masks are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaskFormat {
    /// Run lengths of the mask's cells, and the place of the cells in the frame.
    #[default]
    Runs,
    /// Outlines of the object and of its holes.
    Polygons,
    /// Run lengths of the frame's pixels in the compressed form of COCO, which `pycocotools` reads.
    Coco,
    /// The values of the cells as a PNG image in base64, and the place of the cells in the frame.
    Png,
}

/// How maps of classes and of numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MapFormat {
    /// Classes as run lengths, numbers as a list.
    #[default]
    Lists,
    /// A PNG image in base64. Numbers are rounded to 65535 steps.
    Png,
}

/// Values that a line contains in addition to the results.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Number of the frame in its stream, from 0.
    pub frame_number: u64,
    /// Name of the stream.
    pub stream_id: Option<&'a str>,
    /// Source of the stream, without credentials; see [`crate::redaction`].
    pub source: Option<&'a str>,
    /// Constant fields of the stream.
    pub tags: Option<&'a serde_json::Map<String, serde_json::Value>>,
    /// Stream time in nanoseconds.
    pub timestamp_ns: Option<u64>,
    /// Presentation timestamp in nanoseconds.
    pub pts_ns: Option<u64>,
    /// Capture time of the frame, or the current time if the capture time is unknown.
    pub time: SystemTime,
    /// ID of the line, by which a receiver recognizes a message that is delivered more than once.
    pub message_id: Option<&'a str>,
    /// Place of the frame's pixels in memory that this process shares with the reader of the line.
    pub image: Option<ImagePlace>,
    /// How masks are written.
    pub masks: MaskFormat,
    /// How maps are written.
    pub maps: MapFormat,
}

/// Place of a frame's pixels in shared memory: rows of 8-bit colors, three bytes per pixel, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ImagePlace {
    /// Offset of the first pixel in bytes.
    pub offset: u64,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

/// How geometry is written: the size of the frame, and the form of masks and maps.
#[derive(Debug, Clone, Copy)]
struct Form {
    size: Size,
    masks: MaskFormat,
    maps: MapFormat,
}

/// Appends one line of JSON with a line feed to `line`.
///
/// # Errors
/// Returns the errors of `serde_json`. No error occurs in practice, because every value has a JSON representation.
pub fn write_line(line: &mut Vec<u8>, results: &FrameResults, context: &Context) -> serde_json::Result<()> {
    let begin = line.len();
    let form = Form { size: results.size, masks: context.masks, maps: context.maps };
    let frame = Frame {
        schema_version: SCHEMA_VERSION,
        frame: context.frame_number,
        stream: context.stream_id,
        timestamp: context.timestamp_ns,
        pts: context.pts_ns,
        time: rfc3339(context.time),
        message_id: context.message_id,
        source: context.source,
        tags: context.tags,
        image: context.image,
        resolution: (!is_empty(results.size)).then_some(Resolution { width: results.size.width, height: results.size.height }),
        inference: inference(&results.status),
        classifications: Classifications(&results.classifications, form),
        events: Events(&results.events),
        lost_tracks: LostTracks(&results.lost_tracks, results.size),
        objects: Objects(results, form),
    };
    let written = serde_json::to_writer(&mut *line, &frame);
    if written.is_err() {
        line.truncate(begin);
        return written;
    }
    line.push(b'\n');
    Ok(())
}

/// Whether the frame has at least one of these: an object with a pixel inside the frame, an attribute of the whole frame, an event, a lost track.
pub fn has_results(results: &FrameResults) -> bool {
    let is_empty = results.classifications.is_empty() && results.events.is_empty() && results.lost_tracks.is_empty();
    !is_empty || objects(results).next().is_some()
}

#[derive(Serialize)]
struct Frame<'a> {
    schema_version: u32,
    frame: u64,
    stream: Option<&'a str>,
    timestamp: Option<u64>,
    pts: Option<u64>,
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_id: Option<&'a str>,
    source: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<&'a serde_json::Map<String, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<ImagePlace>,
    resolution: Option<Resolution>,
    inference: Inference<'a>,
    #[serde(skip_serializing_if = "Classifications::is_empty")]
    classifications: Classifications<'a>,
    #[serde(skip_serializing_if = "Events::is_empty")]
    events: Events<'a>,
    #[serde(skip_serializing_if = "LostTracks::is_empty")]
    lost_tracks: LostTracks<'a>,
    objects: Objects<'a>,
}

#[derive(Serialize)]
struct Resolution {
    width: u32,
    height: u32,
}

#[derive(Serialize)]
struct Inference<'a> {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

#[derive(Serialize)]
struct DetectionBody<'a> {
    bounding_box: BoundingBox,
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence: Option<f32>,
    label_id: u32,
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "Points::is_empty")]
    keypoints: Points<'a>,
}

#[derive(Serialize)]
struct BoundingBox {
    x_min: f32,
    y_min: f32,
    x_max: f32,
    y_max: f32,
}

/// Points that are serialized as fractions of the frame size.
struct Points<'a>(&'a [Point], Size);

impl Points<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Points<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|point| RelativePoint::of(*point, self.1)))
    }
}

#[derive(Serialize)]
struct Model<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct LabelBody<'a> {
    label: Option<&'a str>,
    label_id: u32,
    confidence: f32,
    model: Model<'a>,
}

#[derive(Serialize)]
struct LabelsBody<'a> {
    labels: Vec<ScoredLabelBody<'a>>,
    model: Model<'a>,
}

#[derive(Serialize)]
struct ScoredLabelBody<'a> {
    label: Option<&'a str>,
    label_id: u32,
    confidence: f32,
}

#[derive(Serialize)]
struct TensorBody<'a> {
    shape: &'a [usize],
    data: &'a [f32],
    model: Model<'a>,
}

#[derive(Serialize)]
struct TextBody<'a> {
    text: &'a str,
    confidence: f32,
    model: Model<'a>,
}

#[derive(Serialize)]
struct GeometryBody<'a> {
    #[serde(flatten)]
    geometry: Placed<'a>,
    model: Model<'a>,
}

#[derive(Serialize)]
struct ValueBody<'a> {
    value: f32,
    model: Model<'a>,
}

/// The lost tracks of a frame of this size.
struct LostTracks<'a>(&'a [LostTrack], Size);

impl LostTracks<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Serialize)]
struct LostBody<'a> {
    id: i32,
    track_state: &'static str,
    roi_type: Option<&'a str>,
    label_id: u32,
    bounding_box: BoundingBox,
    missed: u32,
}

impl Serialize for LostTracks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|LostTrack { track, rect, label_id, label, n_missed }| LostBody {
            id: track.0,
            track_state: "lost",
            roi_type: label.as_deref(),
            label_id: *label_id,
            bounding_box: bounding_box(rect, self.1),
            missed: *n_missed,
        }))
    }
}

struct Objects<'a>(&'a FrameResults, Form);

impl Serialize for Objects<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let region_ids: HashMap<ObjectId, u32> = objects(self.0).zip(1..).map(|((detection, _), number)| (detection.id, number)).collect();
        let object = |((detection, pixels), region_id)| Object { detection, pixels, form: self.1, region_id, region_ids: &region_ids };
        serializer.collect_seq(objects(self.0).zip(1..).map(object))
    }
}

struct Object<'a> {
    detection: &'a Detection,
    pixels: PixelRect,
    form: Form,
    region_id: u32,
    /// The `region_id` of each object of the line, by the ID of its detection.
    region_ids: &'a HashMap<ObjectId, u32>,
}

/// Keys that every object may have, and that no attribute of the object can use.
const KEYS: [&str; 10] = ["x", "y", "w", "h", "id", "track_state", "region_id", "parent_id", "roi_type", "detection"];

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { detection, pixels, form, region_id, region_ids } = *self;
        let size = form.size;
        let label = detection.label.as_deref();
        let body = DetectionBody {
            bounding_box: bounding_box(&detection.rect, size),
            confidence: detection.known_confidence(),
            label_id: detection.label_id,
            label,
            keypoints: Points(&detection.keypoints, size),
        };
        let mut map = serializer.serialize_map(Some(KEYS.len() + detection.classifications.len()))?;
        map.serialize_entry("x", &pixels.x)?;
        map.serialize_entry("y", &pixels.y)?;
        map.serialize_entry("w", &pixels.width)?;
        map.serialize_entry("h", &pixels.height)?;
        map.serialize_entry("id", &detection.track.map(|track| track.0))?;
        if let Some(state) = detection.stated() {
            map.serialize_entry("track_state", track_state(state))?;
        }
        map.serialize_entry("region_id", &region_id)?;
        map.serialize_entry("parent_id", &detection.parent.and_then(|parent| region_ids.get(&parent)))?;
        map.serialize_entry("roi_type", label.unwrap_or("object"))?;
        map.serialize_entry("detection", &body)?;
        serialize_classifications(&mut map, &detection.classifications, form, &KEYS)?;
        map.end()
    }
}

/// Attributes of the whole frame, one key per attribute.
struct Classifications<'a>(&'a [Classification], Form);

impl Classifications<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Classifications<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        serialize_classifications(&mut map, self.0, self.1, &[])?;
        map.end()
    }
}

/// Writes one key per attribute. An attribute with the name of a reserved key gets another key, see [`key_of`].
fn serialize_classifications<M: SerializeMap>(
    map: &mut M,
    classifications: &[Classification],
    form: Form,
    taken: &[&str],
) -> Result<(), M::Error> {
    for (classification_idx, classification) in classifications.iter().enumerate() {
        let key = key_of(classification, &classifications[..classification_idx], taken);
        let model = Model { name: &classification.model };
        match &classification.outcome {
            Outcome::Label { label_id, label, confidence } => {
                let body = LabelBody { label: label.as_deref(), label_id: *label_id, confidence: *confidence, model };
                map.serialize_entry(&key, &body)?;
            }
            Outcome::Labels(labels) => {
                let labels = labels.iter().map(|ScoredLabel { label_id, label, confidence }| ScoredLabelBody {
                    label: label.as_deref(),
                    label_id: *label_id,
                    confidence: *confidence,
                });
                map.serialize_entry(&key, &LabelsBody { labels: labels.collect(), model })?;
            }
            Outcome::Value(value) => map.serialize_entry(&key, &ValueBody { value: *value, model })?,
            Outcome::Tensor { shape, data } => map.serialize_entry(&key, &TensorBody { shape, data, model })?,
            Outcome::Text { text, confidence } => map.serialize_entry(&key, &TextBody { text, confidence: *confidence, model })?,
            Outcome::Geometry(of) => map.serialize_entry(&key, &GeometryBody { geometry: Placed { of, form }, model })?,
            #[allow(unreachable_patterns, reason = "the enum may get more kinds, which this format does not have yet")]
            _ => {}
        }
    }
    Ok(())
}

/// Returns the key of an attribute, which is its name. If the JSON object already has this key, appends a number to the name, because JSON
/// parsers reject or drop duplicate keys.
fn key_of<'a>(classification: &'a Classification, earlier: &[Classification], taken: &[&str]) -> Cow<'a, str> {
    let name = &*classification.name;
    let n_taken = usize::from(taken.contains(&name)) + earlier.iter().filter(|other| *other.name == *name).count();
    if n_taken == 0 { Cow::Borrowed(name) } else { Cow::Owned(format!("{name}_{}", n_taken + 1)) }
}

pub(crate) fn track_state(state: TrackState) -> &'static str {
    match state {
        TrackState::Tentative => "tentative",
        TrackState::Confirmed => "confirmed",
        TrackState::Held => "held",
        TrackState::Predicted => "predicted",
    }
}

fn is_empty(size: Size) -> bool {
    size.width == 0 || size.height == 0
}

pub(crate) fn objects(results: &FrameResults) -> impl Iterator<Item = (&Detection, PixelRect)> {
    let detections = if is_empty(results.size) { &[] } else { results.detections.as_slice() };
    detections.iter().filter_map(|detection| Some((detection, detection.rect.to_pixels(results.size)?)))
}

fn bounding_box(rect: &Rect, size: Size) -> BoundingBox {
    let (width, height) = (size.width as f32, size.height as f32);
    BoundingBox { x_min: rect.x / width, y_min: rect.y / height, x_max: rect.x_max() / width, y_max: rect.y_max() / height }
}

fn inference(status: &InferenceStatus) -> Inference<'_> {
    match status {
        InferenceStatus::Inferred => Inference { status: "ok", reason: None },
        InferenceStatus::Skipped(reason) => Inference { status: "skipped", reason: Some(reason) },
        InferenceStatus::Failed(reason) => Inference { status: "failed", reason: Some(reason) },
    }
}

/// Formats a time as UTC in RFC 3339 with milliseconds. Times are clamped to the years 1970 to 9999.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    const LAST_SECOND: Duration = Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_millis(time.clamp(UNIX_EPOCH, UNIX_EPOCH + LAST_SECOND)).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Geometry;

    fn detection(id: i32, rect: Rect) -> Detection {
        Detection {
            id: ObjectId(id),
            track: None,
            track_state: None,
            parent: None,
            rect,
            keypoints: vec![],
            confidence: 0.9,
            label_id: 3,
            label: Some("face".into()),
            classifications: vec![],
        }
    }

    fn results(detections: Vec<Detection>) -> FrameResults {
        FrameResults { size: Size::new(200, 100), detections, ..FrameResults::default() }
    }

    fn line(results: &FrameResults) -> (String, Value) {
        let context = Context {
            frame_number: 7,
            stream_id: None,
            source: None,
            tags: None,
            timestamp_ns: Some(40),
            pts_ns: Some(1040),
            time: UNIX_EPOCH,
            message_id: None,
            image: None,
            masks: MaskFormat::default(),
            maps: MapFormat::default(),
        };
        let mut line = Vec::new();
        write_line(&mut line, results, &context).unwrap();
        let text = String::from_utf8(line).unwrap();
        let value = serde_json::from_str(&text).unwrap();
        (text, value)
    }

    #[test]
    fn line_matches_the_documented_schema() {
        let name = |name: &str, outcome| Classification { name: name.into(), model: "age-gender".into(), outcome };
        let mut face = detection(5, Rect::from_corners(20.0, 10.0, 60.0, 90.0));
        (face.track, face.track_state) = (Some(ObjectId(3)), Some(TrackState::Confirmed));
        face.classifications = vec![
            name("gender", Outcome::Label { label_id: 0, label: Some("female".into()), confidence: 0.97 }),
            name("age", Outcome::Value(31.4)),
        ];
        let (text, _) = line(&results(vec![face]));
        let expected = concat!(
            r#"{"schema_version":2,"frame":7,"stream":null,"timestamp":40,"pts":1040,"time":"1970-01-01T00:00:00.000Z","source":null,"#,
            r#""resolution":{"width":200,"height":100},"inference":{"status":"ok"},"objects":[{"x":20,"y":10,"w":40,"h":80,"#,
            r#""id":3,"track_state":"confirmed","region_id":1,"parent_id":null,"roi_type":"face","#,
            r#""detection":{"bounding_box":{"x_min":0.1,"y_min":0.1,"x_max":0.3,"y_max":0.9},"confidence":0.9,"label_id":3,"label":"face"},"#,
            r#""gender":{"label":"female","label_id":0,"confidence":0.97,"model":{"name":"age-gender"}},"#,
            r#""age":{"value":31.4,"model":{"name":"age-gender"}}}]}"#,
            "\n"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn lost_tracks_are_separate_from_the_objects() {
        let rect = Rect::from_corners(20.0, 10.0, 60.0, 90.0);
        let lost = LostTrack { track: ObjectId(3), rect, label_id: 1, label: Some("person".into()), n_missed: 4 };
        let (_, value) = line(&FrameResults { lost_tracks: vec![lost], ..results(vec![]) });
        let expected = json!([{
            "id": 3, "track_state": "lost", "roi_type": "person", "label_id": 1, "missed": 4,
            "bounding_box": {"x_min": 0.1, "y_min": 0.1, "x_max": 0.3, "y_max": 0.9},
        }]);
        assert_eq!((&value["lost_tracks"], &value["objects"]), (&expected, &json!([])));
        assert_eq!(line(&results(vec![])).1.get("lost_tracks"), None);
    }

    #[test]
    fn regions_are_numbered_and_parents_refer_to_the_numbers() {
        let inside = Rect::from_corners(20.0, 10.0, 60.0, 90.0);
        let outside = Rect::from_corners(300.0, 0.0, 400.0, 10.0);
        let child = |id, parent| Detection { parent: Some(ObjectId(parent)), ..detection(id, inside) };
        let objects = vec![detection(71, outside), detection(70, inside), child(75, 70), child(74, 71), child(73, 9)];
        let (_, value) = line(&results(objects));
        let ids = |key: &str| value["objects"].as_array().unwrap().iter().map(|object| object[key].clone()).collect::<Vec<_>>();
        assert_eq!(ids("region_id"), [1, 2, 3, 4]);
        assert_eq!(ids("parent_id"), [json!(null), json!(1), json!(null), json!(null)], "parents that are not in the line are null");
        assert_eq!(ids("id"), vec![Value::Null; 4], "there is no tracker");
        assert!(value["objects"].as_array().unwrap().iter().all(|object| object.get("track_state").is_none()));
    }

    #[test]
    fn tentative_object_has_a_null_id() {
        let mut face = detection(1, Rect::from_corners(0.0, 0.0, 10.0, 10.0));
        for (track, state, expected) in [
            (None, TrackState::Tentative, json!([null, "tentative"])),
            (Some(ObjectId(4)), TrackState::Confirmed, json!([4, "confirmed"])),
            (Some(ObjectId(4)), TrackState::Held, json!([4, "held"])),
        ] {
            (face.track, face.track_state) = (track, Some(state));
            let (_, value) = line(&results(vec![face.clone()]));
            let object = &value["objects"][0];
            assert_eq!(json!([object["id"], object["track_state"]]), expected);
        }
    }

    #[test]
    fn keypoints_are_relative_and_omitted_if_empty() {
        let mut face = detection(1, Rect::from_corners(0.0, 0.0, 50.0, 50.0));
        let (_, value) = line(&results(vec![face.clone()]));
        assert_eq!(value["objects"][0]["detection"].get("keypoints"), None);
        face.keypoints = vec![Point { x: 50.0, y: 25.0 }, Point { x: 100.0, y: -50.0 }];
        let (_, value) = line(&results(vec![face]));
        assert_eq!(value["objects"][0]["detection"]["keypoints"], json!([{"x": 0.25, "y": 0.25}, {"x": 0.5, "y": -0.5}]));
    }

    #[test]
    fn labels_and_vectors_have_separate_keys() {
        let classification = |name: &str, outcome| Classification { name: name.into(), model: "m".into(), outcome };
        let label = |label_id, name: Option<&str>| ScoredLabel { label_id, label: name.map(Into::into), confidence: 0.5 };
        let mut person = detection(1, Rect::from_corners(0.0, 0.0, 50.0, 50.0));
        person.classifications = vec![
            classification("attributes", Outcome::Labels(vec![label(2, Some("hat")), label(0, None)])),
            classification("identity", Outcome::Tensor { shape: vec![1, 3], data: [0.5, -0.25, f32::NAN].into() }),
        ];
        let (text, value) = line(&results(vec![person]));
        let object = &value["objects"][0];
        let expected = json!({
            "labels": [{"label": "hat", "label_id": 2, "confidence": 0.5}, {"label": null, "label_id": 0, "confidence": 0.5}],
            "model": {"name": "m"}
        });
        assert_eq!(object["attributes"], expected, "{text}");
        assert_eq!(object["identity"], json!({"shape": [1, 3], "data": [0.5, -0.25, null], "model": {"name": "m"}}), "{text}");
        assert_eq!(value.get("classifications"), None);
        let frame = FrameResults {
            classifications: vec![classification("map", Outcome::Value(2.0)), classification("map", Outcome::Value(3.0))],
            ..results(vec![])
        };
        let (text, value) = line(&frame);
        let expected = json!({"map": {"value": 2.0, "model": {"name": "m"}}, "map_2": {"value": 3.0, "model": {"name": "m"}}});
        assert_eq!(value["classifications"], expected, "{text}");
    }

    #[test]
    fn text_and_geometry_are_attributes() {
        let classification = |name: &str, outcome| Classification { name: name.into(), model: "m".into(), outcome };
        let outline = Outcome::Geometry(Geometry::Polygons(vec![vec![Point { x: 50.0, y: 25.0 }]]));
        let mut plate = detection(1, Rect::from_corners(0.0, 0.0, 50.0, 50.0));
        plate.classifications = vec![
            classification("number", Outcome::Text { text: "AB 12".into(), confidence: 0.5 }),
            classification("outline", outline.clone()),
        ];
        let frame = FrameResults { classifications: vec![classification("road", outline)], ..results(vec![plate]) };
        let (text, value) = line(&frame);
        let object = &value["objects"][0];
        assert_eq!(object["number"], json!({"text": "AB 12", "confidence": 0.5, "model": {"name": "m"}}), "{text}");
        assert_eq!(object["outline"], json!({"polygons": [[{"x": 0.25, "y": 0.25}]], "model": {"name": "m"}}), "{text}");
        assert_eq!(value["classifications"]["road"], object["outline"], "{text}");
    }

    #[test]
    fn pixels_are_clipped_and_the_bounding_box_is_not() {
        let (_, value) = line(&results(vec![
            detection(1, Rect::from_corners(-20.0, 50.0, 20.0, 150.0)),
            detection(2, Rect::from_corners(300.0, 0.0, 400.0, 10.0)),
        ]));
        let objects = value["objects"].as_array().unwrap();
        assert_eq!(objects.len(), 1, "an object outside the frame is not written");
        assert_eq!([&objects[0]["x"], &objects[0]["y"], &objects[0]["w"], &objects[0]["h"]], [0, 50, 20, 50]);
        assert_eq!(objects[0]["detection"]["bounding_box"], json!({"x_min": -0.1, "y_min": 0.5, "x_max": 0.1, "y_max": 1.5}));
    }

    #[test]
    fn nan_and_infinity_are_null() {
        let mut face = detection(1, Rect::from_corners(0.0, 0.0, 10.0, 10.0));
        face.confidence = f32::NAN;
        face.label = None;
        face.classifications = vec![Classification { name: "age".into(), model: "m".into(), outcome: Outcome::Value(f32::INFINITY) }];
        let (_, value) = line(&results(vec![face]));
        let object = &value["objects"][0];
        assert_eq!([&object["detection"]["label"], &object["age"]["value"]], [&Value::Null; 2]);
        assert_eq!(object["detection"].get("confidence"), None, "it is unknown");
        assert_eq!(object["roi_type"], "object");
    }

    #[test]
    fn keys_are_unique() {
        let named = |name: &str| Classification { name: name.into(), model: "m".into(), outcome: Outcome::Value(1.0) };
        let mut face = detection(1, Rect::from_corners(0.0, 0.0, 10.0, 10.0));
        face.classifications = vec![named("detection"), named("age"), named("age"), named("x")];
        let (text, value) = line(&results(vec![face]));
        let object = value["objects"][0].as_object().unwrap();
        assert_eq!(object.len(), KEYS.len() - 1 + 4, "there is no tracker: {text}");
        assert!(["detection_2", "age", "age_2", "x_2"].iter().all(|key| object.contains_key(*key)), "{text}");
    }

    #[test]
    fn skipped_and_failed_frames_have_a_reason() {
        for (status, word) in
            [(InferenceStatus::Skipped("a \"reason\"\n".into()), "skipped"), (InferenceStatus::Failed("a \"reason\"\n".into()), "failed")]
        {
            let (text, value) = line(&FrameResults { status, ..FrameResults::default() });
            assert_eq!(value["inference"], json!({"status": word, "reason": "a \"reason\"\n"}));
            assert_eq!(value["resolution"], Value::Null, "no caps, no resolution");
            assert_eq!(text.lines().count(), 1);
        }
    }

    #[test]
    fn objects_are_omitted_if_the_frame_size_is_unknown() {
        let mut results = results(vec![detection(1, Rect::from_corners(-5.0, -5.0, 10.0, 10.0))]);
        assert!(has_results(&results));
        results.size = Size::default();
        assert!(!has_results(&results));
    }

    #[test]
    fn times_match_the_calendar() {
        #[derive(Debug)]
        struct Case(u64, &'static str);
        let cases = [
            Case(0, "1970-01-01T00:00:00.000Z"),
            Case(951_782_399_999, "2000-02-28T23:59:59.999Z"),
            Case(951_782_400_000, "2000-02-29T00:00:00.000Z"),
            Case(951_868_800_000, "2000-03-01T00:00:00.000Z"),
            Case(1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            Case(4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            Case(253_402_300_800_000, "9999-12-31T23:59:59.000Z"),
        ];
        for case in cases {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(case.0)), case.1, "{case:?}");
        }
    }
}
