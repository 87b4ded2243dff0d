//! Scenarios with exact counts: lines, zones, class filters, new track IDs, absences, and speeds.

use super::*;
use crate::frame::Rect;

const SIZE: Size = Size::new(1000, 1000);
const FRAME: Duration = Duration::from_millis(40);

/// Objects with boxes of 40 x 100 pixels; their anchor is the middle of the bottom edge.
fn object(track: i32, label: &str, x: f32, y: f32) -> Detection {
    Detection {
        id: ObjectId(70_000 + track),
        track: (track > 0).then_some(ObjectId(track)),
        track_state: None,
        parent: None,
        rect: Rect { x: x - 20.0, y: y - 100.0, width: 40.0, height: 100.0 },
        keypoints: vec![],
        confidence: 0.9,
        label_id: 0,
        label: Some(label.into()),
        classifications: vec![],
    }
}

fn line(repeats: bool, min_time: Duration) -> Line {
    let (from, to) = (Point { x: 0.2, y: 0.5 }, Point { x: 0.8, y: 0.5 });
    Line { name: "door".into(), from, to, classes: vec![], min_time, repeats }
}

fn zone() -> Zone {
    let corners = [(0.4, 0.4), (0.6, 0.4), (0.6, 0.6), (0.4, 0.6)].map(|(x, y)| Point { x, y }).into();
    Zone { name: "hall".into(), corners, classes: vec![], min_time: Duration::ZERO, loiter_time: None }
}

fn with_line(line: Line) -> SceneCounter {
    SceneCounter::new(Layout { lines: vec![line], ..Layout::default() }).unwrap()
}

fn with_zone(zone: Zone) -> SceneCounter {
    SceneCounter::new(Layout { zones: vec![zone], ..Layout::default() }).unwrap()
}

/// Runs frames of objects, 40 ms apart from `begin` on, and returns the events.
fn run(counter: &mut SceneCounter, begin: u32, frames: &[Vec<Detection>]) -> Vec<(i32, SceneEventKind)> {
    let mut events = vec![];
    for (n, frame) in (begin..).zip(frames) {
        counter.update(frame, SIZE, FRAME * n, &mut events);
    }
    events.into_iter().map(|event| (event.track.0, event.kind)).collect()
}

/// The number of crossings in, and the number of crossings out.
fn crossings(counter: &SceneCounter) -> (u64, u64) {
    let of = |wanted| counter.counts().crossings.iter().filter(|((_, direction, _), _)| *direction == wanted).map(|(_, n)| *n).sum();
    (of(Direction::In), of(Direction::Out))
}

/// One object at these heights, in the middle of the line.
fn at_heights(heights: &[f32]) -> Vec<Vec<Detection>> {
    heights.iter().map(|y| vec![object(1, "person", 500.0, *y)]).collect()
}

#[test]
fn crossings_are_counted_by_rule() {
    struct Case(&'static str, &'static [f32], bool, (u64, u64));
    let cases = [
        Case("walks down", &[400.0, 450.0, 490.0, 520.0, 560.0], false, (0, 1)),
        Case("walks up", &[600.0, 550.0, 510.0, 480.0, 440.0], false, (1, 0)),
        Case("turns around", &[400.0, 450.0, 490.0, 450.0, 400.0], false, (0, 0)),
        Case("fast: jumps over the line between two frames", &[100.0, 900.0], false, (0, 1)),
        Case("trembles within the hysteresis", &[400.0, 498.0, 503.0, 497.0, 504.0, 496.0, 503.0], false, (0, 0)),
        Case("trembles on the line, then goes on", &[400.0, 498.0, 503.0, 497.0, 504.0, 496.0, 600.0], false, (0, 1)),
        Case("stops on the line, then goes on", &[400.0, 500.0, 500.0, 500.0, 501.0, 600.0], false, (0, 1)),
        Case("back and forth counts once per direction", &[400.0, 600.0, 400.0, 600.0, 400.0], false, (1, 1)),
        Case("back and forth with repeats", &[400.0, 600.0, 400.0, 600.0, 400.0], true, (2, 2)),
        Case("appears on the line", &[500.0, 520.0, 600.0], false, (0, 0)),
    ];
    for Case(what, heights, repeats, expected) in cases {
        let mut counter = with_line(line(repeats, Duration::ZERO));
        let events = run(&mut counter, 0, &at_heights(heights));
        assert_eq!((crossings(&counter), events.len() as u64), (expected, expected.0 + expected.1), "{what}");
    }
}

#[test]
fn walking_around_the_end_of_a_line_is_no_crossing() {
    let mut counter = with_line(line(true, Duration::ZERO));
    let path = [(500.0, 400.0), (900.0, 400.0), (900.0, 600.0), (500.0, 600.0), (100.0, 600.0), (100.0, 400.0), (500.0, 400.0)];
    let frames: Vec<_> = path.iter().map(|(x, y)| vec![object(1, "person", *x, *y)]).collect();
    assert_eq!(run(&mut counter, 0, &frames), []);
    // The object is on the upper side again, so walking down counts as a crossing.
    assert_eq!(run(&mut counter, 10, &at_heights(&[400.0, 600.0])).len(), 1);
    assert_eq!(crossings(&counter), (0, 1));
}

#[test]
fn minimum_time_is_needed_on_both_sides() {
    let min_time = FRAME * 3;
    let walk = |n_before: usize, n_after: usize| {
        let mut counter = with_line(line(false, min_time));
        let heights = [vec![400.0; n_before], vec![600.0; n_after], vec![400.0; 9]].concat();
        run(&mut counter, 0, &at_heights(&heights));
        crossings(&counter)
    };
    assert_eq!(walk(5, 2), (0, 0), "too short after the crossing");
    assert_eq!(walk(1, 9), (1, 0), "too short before the crossing; the way back counts");
    assert_eq!(walk(5, 9), (1, 1));
}

#[test]
fn classes_and_objects_are_counted_separately() {
    let mut counter = with_line(Line { classes: vec!["car".into(), "bus".into()], ..line(false, Duration::ZERO) });
    let frame = |y: f32| {
        vec![object(1, "car", 300.0, y), object(2, "bus", 500.0, 1000.0 - y), object(3, "person", 700.0, y), object(0, "car", 400.0, y)]
    };
    let events = run(&mut counter, 0, &[frame(400.0), frame(600.0)]);
    assert_eq!(events.iter().map(|(track, _)| *track).collect::<Vec<_>>(), [1, 2], "objects without ID are not one shared object");
    let counts: Vec<_> = counter.counts().crossings.iter().map(|((_, direction, label), n)| (direction.name(), &**label, *n)).collect();
    assert_eq!(counts, [("in", "bus", 1), ("out", "car", 1)]);
}

#[test]
fn new_track_id_of_a_known_object_is_not_counted_twice() {
    // The object crosses, is lost for three frames, and gets a new ID behind the line. Then it walks back.
    let mut counter = with_line(line(false, Duration::ZERO));
    let down = run(&mut counter, 0, &at_heights(&[440.0, 470.0, 500.0, 530.0, 560.0]));
    assert_eq!(down.len(), 1);
    let again = |n: i32| vec![object(2, "person", 500.0, 680.0 - 40.0 * n as f32)];
    let back: Vec<_> = (0..8).map(again).collect();
    assert_eq!(run(&mut counter, 8, &back), [(2, SceneEventKind::Crossed { direction: Direction::In, count: 1 })]);
    assert_eq!((crossings(&counter), counter.counts().n_takeovers), ((1, 1), 1));
    // The object is lost before it reaches the line, and gets a new ID after the crossing.
    let mut counter = with_line(line(false, Duration::ZERO));
    run(&mut counter, 0, &at_heights(&[410.0, 440.0, 470.0]));
    run(&mut counter, 6, &[vec![object(9, "person", 500.0, 590.0)], vec![object(9, "person", 500.0, 620.0)]]);
    assert_eq!(crossings(&counter), (0, 1));
    // These are new objects: an object far away, an object of another class, and an object next to an object that is still detected.
    for (other, x, label) in [(5, 800.0, "person"), (6, 500.0, "dog")] {
        let mut counter = with_zone(zone());
        run(&mut counter, 0, &at_heights(&[500.0, 500.0]));
        run(&mut counter, 3, &[vec![object(other, label, x, 500.0)]]);
        assert_eq!(counter.counts().n_takeovers, 0, "{label} {other}");
    }
    let mut counter = with_zone(zone());
    run(&mut counter, 0, &at_heights(&[500.0, 500.0]));
    run(&mut counter, 2, &[vec![object(2, "person", 505.0, 500.0), object(1, "person", 500.0, 500.0)]]);
    assert_eq!((counter.counts().n_takeovers, counter.counts().occupancy["hall"]), (0, 2));
}

#[test]
fn zones_count_entries_exits_occupancy_and_dwell() {
    let mut counter = with_zone(zone());
    let frame = |n: i32| vec![object(1, "person", 300.0 + 20.0 * n as f32, 500.0), object(2, "car", 500.0, 800.0 - 20.0 * n as f32)];
    let events = run(&mut counter, 0, &(0..20).map(frame).collect::<Vec<_>>());
    // The margin is 5 pixels. Object 1 is inside from x = 420 (frame 6), and outside from x = 620 (frame 16).
    let expected = [
        (1, SceneEventKind::Entered { occupancy: 1 }),
        (2, SceneEventKind::Entered { occupancy: 2 }),
        (1, SceneEventKind::Exited { occupancy: 1, dwell: FRAME * 10, is_lost: false }),
    ];
    assert_eq!(events, expected);
    let counts = counter.counts();
    assert_eq!((counts.entries.values().sum::<u64>(), counts.occupancy["hall"], counts.dwell["hall"]), (2, 1, FRAME * 10));
}

#[test]
fn absent_object_stays_in_its_zone_for_a_while() {
    let mut counter = with_zone(zone());
    run(&mut counter, 0, &at_heights(&[500.0; 10]));
    // Not detected for 20 frames (0.8 s), then detected again.
    assert_eq!(run(&mut counter, 10, &vec![vec![]; 20]), []);
    assert_eq!(run(&mut counter, 30, &at_heights(&[500.0])), []);
    assert_eq!(counter.counts().occupancy["hall"], 1);
    // The object is not detected again. After one second it counts as left, at the time of its last detection.
    let gone = run(&mut counter, 31, &vec![vec![]; 30]);
    assert_eq!(gone, [(1, SceneEventKind::Exited { occupancy: 0, dwell: FRAME * 30, is_lost: true })]);
    assert_eq!(run(&mut counter, 100, &at_heights(&[500.0])), [(1, SceneEventKind::Entered { occupancy: 1 })]);
}

#[test]
fn fast_object_that_jumps_over_a_zone_is_counted() {
    let mut counter = with_zone(zone());
    let events = run(&mut counter, 0, &at_heights(&[300.0, 800.0, 900.0]));
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!((counter.counts().entries.values().sum::<u64>(), counter.counts().occupancy["hall"]), (1, 0));
    // Passing next to the zone does not count.
    let beside = |y: f32| vec![object(2, "person", 700.0, y)];
    assert_eq!(run(&mut counter, 50, &[beside(300.0), beside(800.0)]), []);
}

#[test]
fn loitering_is_reported_once_per_stay() {
    let mut counter = with_zone(Zone { loiter_time: Some(FRAME * 5), min_time: FRAME * 2, ..zone() });
    let mut heights = vec![500.0; 12];
    // One frame outside is shorter than the minimum time, so the object stays in the zone.
    heights[7] = 700.0;
    let events = run(&mut counter, 0, &at_heights(&heights));
    let loitered = SceneEventKind::Loitered { dwell: FRAME * 5 };
    assert_eq!(events, [(1, SceneEventKind::Entered { occupancy: 1 }), (1, loitered)]);
    let heights = [vec![800.0; 4], vec![500.0; 10]].concat();
    let names: Vec<_> = run(&mut counter, 12, &at_heights(&heights)).into_iter().map(|(_, kind)| kind.name()).collect();
    assert_eq!(names, ["zone-exited", "zone-entered", "zone-loitered"]);
}

#[test]
fn flush_keeps_counts_and_forgets_places() {
    let mut counter =
        SceneCounter::new(Layout { lines: vec![line(false, Duration::ZERO)], zones: vec![zone()], ..Layout::default() }).unwrap();
    run(&mut counter, 0, &at_heights(&[300.0, 450.0]));
    counter.flush();
    assert_eq!(counter.counts().occupancy["hall"], 0);
    // Time may go back after a flush. The jump over the line at the flush is not a crossing.
    run(&mut counter, 0, &at_heights(&[700.0, 750.0]));
    assert_eq!(crossings(&counter), (0, 0));
    run(&mut counter, 2, &at_heights(&[450.0]));
    assert_eq!(crossings(&counter), (1, 0));
    let mut later = with_line(line(false, Duration::ZERO));
    later.restore(counter.counts().clone());
    assert_eq!(run(&mut later, 0, &at_heights(&[600.0, 400.0])), [(1, SceneEventKind::Crossed { direction: Direction::In, count: 2 })]);
}

#[test]
fn speed_is_measured_on_the_ground() {
    // A road that narrows towards the horizon: 10 m wide and 40 m long.
    let image = [(0.4, 0.5), (0.6, 0.5), (1.0, 1.0), (0.0, 1.0)].map(|(x, y)| Point { x, y });
    let meters = [(0.0, 40.0), (10.0, 40.0), (10.0, 0.0), (0.0, 0.0)].map(|(x, y)| Point { x, y });
    let mut counter = SceneCounter::new(Layout { ground: Some((image, meters)), ..Layout::default() }).unwrap();
    let ground = Ground::new(image.map(|point| Point { x: point.x * 1000.0, y: point.y * 1000.0 }), meters).unwrap();
    for (point, expected) in image.iter().zip(meters) {
        let (x, y) = ground.map(Point { x: point.x * 1000.0, y: point.y * 1000.0 }).unwrap();
        assert!((x - f64::from(expected.x)).abs() < 1e-3 && (y - f64::from(expected.y)).abs() < 1e-3, "{point:?}: {x} {y}");
    }
    // The object moves away from the camera in the middle of the road at 10 m per second. Find the image row of each distance.
    let height_of = |distance: f64| {
        (500..=1000).rev().map(|y| y as f32).find(|y| ground.map(Point { x: 500.0, y: *y }).unwrap().1 >= distance).unwrap()
    };
    let frames: Vec<_> = (0..30).map(|n| vec![object(1, "car", 500.0, height_of(f64::from(n) * 0.4))]).collect();
    run(&mut counter, 0, &frames);
    let Speed { speed, heading } = counter.speed(ObjectId(1)).unwrap();
    assert!((speed - 10.0).abs() < 1.0 && (heading - 90.0).abs() < 5.0, "{speed} m/s, {heading} degrees");
    let on_a_line = [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (0.0, 1.0)].map(|(x, y)| Point { x, y });
    assert!(SceneCounter::new(Layout { ground: Some((on_a_line, meters)), ..Layout::default() }).is_err());
}

#[test]
fn heat_map_counts_anchors_per_cell() {
    let mut counter = SceneCounter::new(Layout { heat_map: (4, 2), ..Layout::default() }).unwrap();
    let frame = vec![object(1, "person", 100.0, 100.0), object(2, "person", 900.0, 900.0), object(3, "person", 900.0, 1200.0)];
    run(&mut counter, 0, &[frame.clone(), frame]);
    assert_eq!(counter.heat_map(), [2, 0, 0, 0, 0, 0, 0, 2]);
}

#[test]
fn wrong_layouts_are_refused_with_a_reason() {
    let broken = [
        (Layout::default(), "at least one"),
        (Layout { lines: vec![line(false, FRAME), line(false, FRAME)], ..Layout::default() }, "name of its own"),
        (Layout { lines: vec![Line { to: Point { x: 0.2, y: 0.5 }, ..line(false, FRAME) }], ..Layout::default() }, "two different points"),
        (Layout { zones: vec![Zone { corners: vec![Point::default(); 2], ..zone() }], ..Layout::default() }, "three corners"),
        (Layout { lines: vec![Line { to: Point { x: 640.0, y: 0.5 }, ..line(false, FRAME) }], ..Layout::default() }, "units"),
    ];
    for (layout, reason) in broken {
        let error = SceneCounter::new(layout).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn same_frames_give_the_same_events() {
    let mut random = 5_u64;
    let mut unit = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % 1000) as f32
    };
    let frames: Vec<Vec<Detection>> = (0..200).map(|_| (1..12).map(|track| object(track, "person", unit(), unit())).collect()).collect();
    let layout = Layout { lines: vec![line(true, Duration::ZERO)], zones: vec![zone()], ..Layout::default() };
    let mut counters = [0, 1].map(|_| SceneCounter::new(layout.clone()).unwrap());
    let events = counters.each_mut().map(|counter| run(counter, 0, &frames));
    assert!(events[0] == events[1] && events[0].len() > 100, "{}", events[0].len());
    let count = |name: &str| events[0].iter().filter(|(_, kind)| kind.name() == name).count() as u64;
    assert_eq!(count("zone-entered") - count("zone-exited"), counters[0].counts().occupancy["hall"]);
}

#[test]
fn changed_layout_keeps_what_stays_the_same() {
    let layout = |zones: Vec<Zone>, lines: Vec<Line>| Layout { zones, lines, ..Layout::default() };
    let mut counter = SceneCounter::new(layout(vec![zone()], vec![line(false, Duration::ZERO)])).unwrap();
    let inside = |n: usize| vec![vec![object(1, "person", 500.0, 550.0)]; n];
    assert_eq!(run(&mut counter, 0, &inside(2)), [(1, SceneEventKind::Entered { occupancy: 1 })]);

    // The zone stays the same, so the object does not enter it again. It enters the new zone, in which it stands.
    let all = Zone {
        name: "all".into(),
        corners: [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)].map(|(x, y)| Point { x, y }).into(),
        ..zone()
    };
    counter.set_layout(layout(vec![all.clone(), zone()], vec![line(false, Duration::ZERO)])).unwrap();
    assert_eq!(counter.counts().occupancy, BTreeMap::from([("all".into(), 0), ("hall".into(), 1)]));
    assert_eq!(run(&mut counter, 2, &inside(2)), [(1, SceneEventKind::Entered { occupancy: 1 })]);
    // The line knows on which side the object was.
    let up = [vec![object(1, "person", 500.0, 440.0)]];
    assert_eq!(run(&mut counter, 4, &up), [(1, SceneEventKind::Crossed { direction: Direction::In, count: 1 })]);

    // A layout that is not valid changes nothing.
    counter.set_layout(layout(vec![zone(), zone()], vec![])).unwrap_err();
    counter.set_layout(layout(vec![], vec![])).unwrap_err();
    assert_eq!(counter.counts().occupancy.len(), 2);

    // Counts of removed places are forgotten; those of a changed place go on.
    let smaller = Zone { corners: zone().corners[..3].into(), ..zone() };
    counter.set_layout(layout(vec![smaller], vec![])).unwrap();
    assert_eq!(counter.counts().occupancy, BTreeMap::from([("hall".into(), 0)]));
    assert_eq!(counter.counts().entries.values().sum::<u64>(), 1);
    assert!(counter.counts().crossings.is_empty());
}

/// The names and track IDs of events.
fn names(events: &[SceneEvent]) -> Vec<(&str, i32)> {
    events.iter().map(|event| (event.kind.name(), event.track.0)).collect()
}

#[test]
fn every_entry_has_its_exit() {
    let layout = || Layout { zones: vec![zone()], ..Layout::default() };
    let size = Size::new(1000, 1000);
    let inside = [object(1, "car", 500.0, 500.0)];
    #[derive(Debug)]
    enum After {
        Flush,
        OtherSize,
        OtherLayout,
        LongAbsence,
    }
    for after in [After::Flush, After::OtherSize, After::OtherLayout, After::LongAbsence] {
        let mut counter = SceneCounter::new(Layout { absence: Duration::from_secs(1000), ..layout() }).unwrap();
        let mut events = Vec::new();
        counter.update(&inside, size, Duration::ZERO, &mut events);
        counter.update(&inside, size, Duration::from_secs(2), &mut events);
        let (mut next_size, mut next_time) = (size, Duration::from_secs(3));
        match after {
            After::Flush => counter.flush(),
            After::OtherSize => next_size = Size::new(500, 500),
            After::OtherLayout => {
                let mut other = layout();
                other.zones[0].name = "other".into();
                counter.set_layout(other).unwrap();
            }
            After::LongAbsence => next_time = Duration::from_secs(2000),
        }
        counter.update(&[], next_size, next_time, &mut events);
        assert_eq!(names(&events), [("zone-entered", 1), ("zone-exited", 1)], "{after:?}");
        let exit = SceneEventKind::Exited { occupancy: 0, dwell: Duration::from_secs(2), is_lost: true };
        assert_eq!(events[1].kind, exit, "{after:?}");
        assert!(counter.counts().occupancy.values().all(|n| *n == 0), "{after:?}");
    }
}

#[test]
fn zone_without_area_is_an_error() {
    let with = |corners: &[(f32, f32)]| {
        let corners = corners.iter().map(|(x, y)| Point { x: *x, y: *y }).collect();
        Layout { zones: vec![Zone { corners, ..zone() }], ..Layout::default() }.check()
    };
    for flat in [
        &[(0.1, 0.1), (0.5, 0.5), (0.9, 0.9)][..],
        &[(0.2, 0.2), (0.2, 0.2), (0.2, 0.2)],
        &[(0.1, 0.5), (0.9, 0.5), (0.9, 0.5), (0.1, 0.5)],
        &[(0.3, 0.1), (0.3, 0.9), (0.3, 0.4), (0.3, 0.2)],
        &[(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (1.0, 0.0)],
    ] {
        let error = with(flat).expect_err("a zone without area");
        assert!(error.contains("enclose an area") && error.contains("hall"), "{error}");
    }
    for proper in [
        &[(0.1, 0.1), (0.9, 0.1), (0.5, 0.101)][..],
        &[(0.0, 0.0), (1.0, 1.0), (1.0, 0.0), (0.0, 1.0)],
        &[(0.2, 0.2), (0.8, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8), (0.2, 0.2)],
        &[(0.1, 0.1), (0.9, 0.1), (0.9, 0.9), (0.5, 0.2), (0.1, 0.9)],
    ] {
        assert_eq!(with(proper), Ok(()), "{proper:?}");
    }
}
