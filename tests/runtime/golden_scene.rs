//! Lines and zones, compared with stored counts of the package `supervision`. The cases are those in which both have the same rules.

use std::time::Duration;

use roiflow::frame::{Detection, ObjectId, Point, Rect, SceneEventKind, Size};
use roiflow::stages::scene::{Layout, Line, SceneCounter, Units, Zone};

const SIZE: Size = Size::new(200, 200);

/// Returns the rows of a golden file: frame, track ID, anchor, and the event that the reference counts.
fn golden(text: &str) -> Vec<(u32, i32, Point, &str)> {
    text.lines().map(row).collect()
}

fn row(line: &str) -> (u32, i32, Point, &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let &[frame, track, x, y, word] = &words[..] else { panic!("{line}") };
    (frame.parse().unwrap(), track.parse().unwrap(), Point { x: x.parse().unwrap(), y: y.parse().unwrap() }, word)
}

fn object(track: i32, anchor: Point) -> Detection {
    Detection {
        id: ObjectId::next(),
        track: Some(ObjectId(track)),
        track_state: None,
        parent: None,
        rect: Rect { x: anchor.x - 10.0, y: anchor.y - 30.0, width: 20.0, height: 30.0 },
        keypoints: vec![],
        confidence: 0.9,
        label_id: 0,
        label: None,
        classifications: vec![],
    }
}

/// Passes all frames to a counter. After each frame, calls `look` with the counter, the events of roiflow, and those of the reference.
fn run(text: &str, layout: Layout, mut look: impl FnMut(&SceneCounter, Vec<(i32, &str)>, Vec<(i32, &str)>)) {
    let layout = Layout { units: Units::Pixels, hysteresis: 0.0, ..layout };
    let mut counter = SceneCounter::new(layout).unwrap();
    let rows = golden(text);
    for of_frame in rows.chunk_by(|a, b| a.0 == b.0) {
        let objects: Vec<Detection> = of_frame.iter().map(|(_, track, anchor, _)| object(*track, *anchor)).collect();
        let mut events = vec![];
        counter.update(&objects, SIZE, Duration::from_millis(40) * of_frame[0].0, &mut events);
        let events = events.iter().map(|event| match event.kind {
            SceneEventKind::Crossed { direction, .. } => (event.track.0, direction.name()),
            kind => (event.track.0, kind.name()),
        });
        look(&counter, events.collect(), of_frame.iter().map(|(_, track, _, word)| (*track, *word)).collect());
    }
}

#[test]
fn crossings_are_those_of_the_reference() {
    let (from, to) = (Point { x: 0.0, y: 120.0 }, Point { x: 200.0, y: 80.0 });
    let line = Line { name: "line".into(), from, to, classes: vec![], min_time: Duration::ZERO, repeats: true };
    let mut n_crossings = 0;
    run(include_str!("../golden/scene/line.txt"), Layout { lines: vec![line], ..Layout::default() }, |_, events, mut expected| {
        expected.retain(|(_, word)| *word != "-");
        n_crossings += events.len();
        assert_eq!(events, expected);
    });
    assert_eq!(n_crossings, 30);
}

#[test]
fn occupancy_is_that_of_the_reference() {
    let corners = [(40.0, 30.0), (160.0, 60.0), (150.0, 170.0), (90.0, 110.0), (30.0, 150.0)].map(|(x, y)| Point { x, y });
    let zone = Zone { name: "zone".into(), corners: corners.into(), classes: vec![], min_time: Duration::ZERO, loiter_time: None };
    run(include_str!("../golden/scene/zone.txt"), Layout { zones: vec![zone], ..Layout::default() }, |counter, _, expected| {
        let n_inside = expected.iter().filter(|(_, word)| *word == "1").count() as u64;
        assert_eq!(counter.counts().occupancy["zone"], n_inside);
    });
}
