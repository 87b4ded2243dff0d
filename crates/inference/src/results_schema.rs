//! Tests that lines of results follow `assets/results.schema.json`. These tests are in this crate because its tests of the description
//! schema already need the validator crate.

use std::time::{Duration, UNIX_EPOCH};

use roiflow_results::json::{Context, ImagePlace, MapFormat, MaskFormat, SCHEMA_VERSION, write_line};
use roiflow_results::{
    Classification, Detection, Direction, FrameResults, Geometry, Grid, InferenceStatus, LostTrack, ObjectId, Outcome, Point, Rect,
    SceneEvent, SceneEventKind, ScoredLabel, Size, TrackState,
};
use serde_json::Value;

fn validator() -> jsonschema::Validator {
    let schema = serde_json::from_str(include_str!("../assets/results.schema.json")).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

fn line(results: &FrameResults) -> Value {
    line_as(results, MaskFormat::default())
}

fn line_as(results: &FrameResults, masks: MaskFormat) -> Value {
    let context = Context {
        frame_number: 7,
        stream_id: Some("door"),
        source: None,
        tags: None,
        timestamp_ns: Some(40),
        pts_ns: None,
        time: UNIX_EPOCH,
        message_id: Some("door/1/7"),
        image: Some(ImagePlace { offset: 65_536, width: 640, height: 480 }),
        masks,
        maps: if masks == MaskFormat::Png { MapFormat::Png } else { MapFormat::Lists },
    };
    let mut line = Vec::new();
    write_line(&mut line, results, &context).unwrap();
    serde_json::from_slice(&line).unwrap()
}

/// Returns results with every kind of outcome, and with numbers that JSON cannot represent.
fn all_kinds() -> FrameResults {
    let said = |name: &str, outcome| Classification { name: name.into(), model: "m".into(), outcome };
    let scored = ScoredLabel { label_id: 2, label: None, confidence: 0.5 };
    let point = Point { x: 50.0, y: 25.0 };
    let classifications = vec![
        said("gender", Outcome::Label { label_id: 0, label: Some("female".into()), confidence: 0.97 }),
        said("clothes", Outcome::Labels(vec![scored])),
        said("age", Outcome::Value(f32::NAN)),
        said("identity", Outcome::Tensor { shape: vec![1, 2], data: [0.5, f32::INFINITY].into() }),
        said("number", Outcome::Text { text: "AB 12".into(), confidence: 0.5 }),
        said("outline", Outcome::Geometry(Geometry::Polygons(vec![vec![point]]))),
        said("depth", Outcome::Geometry(Geometry::ValueMap(Grid { columns: 2, values: [0.5, f32::NAN].into(), corners: [point; 3] }))),
        said("mask", Outcome::Geometry(Geometry::Mask(Grid { columns: 2, values: [255, 0].into(), corners: [point; 3] }))),
    ];
    let detection = Detection {
        id: ObjectId(5),
        track: Some(ObjectId(3)),
        track_state: Some(TrackState::Held),
        parent: None,
        rect: Rect::from_corners(-20.0, 10.0, 60.0, 90.0),
        keypoints: vec![point],
        confidence: 0.9,
        label_id: 3,
        label: None,
        classifications: classifications.clone(),
    };
    let events = [
        SceneEventKind::Crossed { direction: Direction::Out, count: 1 },
        SceneEventKind::Entered { occupancy: 1 },
        SceneEventKind::Exited { occupancy: 0, dwell: Duration::from_millis(40), is_lost: false },
        SceneEventKind::Loitered { dwell: Duration::from_secs(60) },
    ]
    .map(|kind| SceneEvent { kind, place: "door".into(), track: ObjectId(3), label: None })
    .into();
    let lost_tracks = vec![LostTrack { track: ObjectId(9), rect: detection.rect, label_id: 3, label: None, n_missed: 2 }];
    FrameResults { size: Size::new(200, 100), detections: vec![detection], classifications, events, lost_tracks, ..FrameResults::default() }
}

#[test]
fn lines_with_all_kinds_of_results_follow_the_schema() {
    let validator = validator();
    for status in [InferenceStatus::Inferred, InferenceStatus::Skipped("qos".into()), InferenceStatus::Failed("broken".into())] {
        let formats = [MaskFormat::Runs, MaskFormat::Polygons, MaskFormat::Coco, MaskFormat::Png];
        for (results, masks) in [all_kinds(), FrameResults::default()].iter().flat_map(|results| formats.map(|masks| (results, masks))) {
            let value = line_as(&FrameResults { status: status.clone(), ..results.clone() }, masks);
            let wrong: Vec<String> = validator.iter_errors(&value).map(|error| format!("{}: {error}", error.instance_path())).collect();
            assert_eq!(wrong, [] as [String; 0], "{value}");
        }
    }
}

#[test]
fn the_schema_is_of_one_version() {
    let validator = validator();
    let is_valid = |version: u32| {
        let mut value = line(&all_kinds());
        value["schema_version"] = version.into();
        validator.is_valid(&value)
    };
    assert_eq!([SCHEMA_VERSION - 1, SCHEMA_VERSION, SCHEMA_VERSION + 1].map(is_valid), [false, true, false]);
}
