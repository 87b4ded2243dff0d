//! `roianalytics`: events in the JSON and on the bus, counters, restarts and flushes, and wrong layouts.

use gst::prelude::*;
use gstreamer as gst;
use roiflow::elements::analytics::RoiAnalytics;
use roiflow::elements::meta;
use roiflow::frame::{Detection, Rect};
use serde_json::Value;

use crate::cli::{Folder, lines};
use crate::harness::{attach, face, on_buffers, pipeline, results, run};
use crate::rig::{Rig, SIZE, black};

/// An object whose anchor is at (32, y).
fn person(track: i32, y: f32) -> Detection {
    let rect = Rect { x: 27.0, y: y - 20.0, width: 10.0, height: 20.0 };
    Detection { track: Some(roiflow::frame::ObjectId(track)), label: Some("person".into()), classifications: vec![], ..face(track, rect) }
}

fn frame(n: u64, y: f32) -> gst::Buffer {
    let mut buffer = black(n);
    meta::attach(buffer.get_mut().unwrap(), results(SIZE, n, vec![person(1, y)]));
    buffer
}

#[test]
fn events_are_in_the_json_and_on_the_bus() {
    let folder = Folder::new("analytics-events");
    let pipeline = pipeline(
        "videotestsrc num-buffers=12 ! video/x-raw,width=64,height=48,framerate=25/1 ! identity name=attach ! \
         roianalytics name=count lines=door:0,0.5,1,0.5 zones=floor:0,0.7,1,0.7,1,1.1,0,1.1 ! roipublish name=publish ! fakesink",
    );
    pipeline.by_name("publish").unwrap().set_property("address", folder.file("o.jsonl"));
    attach(&pipeline, |n| results(SIZE, n, vec![person(1, 4.0 + 4.0 * n as f32)]));
    let bus = pipeline.bus().unwrap();
    let (sender, seen) = std::sync::mpsc::channel();
    bus.set_sync_handler(move |_, message| {
        if let Some(structure) = message.structure().filter(|structure| structure.name() == "roianalytics-event") {
            let _ = sender.send((structure.get::<String>("event").unwrap(), structure.get::<String>("place").unwrap()));
        }
        gst::BusSyncReply::Pass
    });
    assert_eq!(run(&pipeline).error, None);
    let events: Vec<(u64, Value)> = lines(&folder.file("o.jsonl"))
        .iter()
        .flat_map(|line| line["events"].as_array().into_iter().flatten().map(|event| (line["frame"].as_u64().unwrap(), event.clone())))
        .collect();
    let crossed = serde_json::json!({"event": "line-crossed", "place": "door", "id": 1, "label": "person", "direction": "out", "count": 1});
    let entered = serde_json::json!({"event": "zone-entered", "place": "floor", "id": 1, "label": "person", "occupancy": 1});
    // The line is at 24 and the zone begins at 33.6; the hysteresis is 1 pixel.
    assert_eq!(events, [(6, crossed), (8, entered)]);
    let messages: Vec<_> = seen.try_iter().collect();
    assert_eq!(messages, [("line-crossed".into(), "door".into()), ("zone-entered".into(), "floor".into())]);
}

#[test]
fn flush_stop_and_new_element_keep_counts() {
    let rig = Rig::begun("roianalytics lines=0,0.5,1,0.5");
    let cross = |rig: &Rig, n: u64| {
        rig.source.push(frame(n, 10.0)).unwrap();
        rig.source.push(frame(n + 1, 40.0)).unwrap();
    };
    cross(&rig, 0);
    rig.event(gst::event::FlushStart::new());
    rig.event(gst::event::FlushStop::new(true));
    rig.segment();
    cross(&rig, 0);
    rig.element.set_state(gst::State::Ready).unwrap();
    rig.element.set_state(gst::State::Playing).unwrap();
    rig.begin();
    cross(&rig, 0);
    // When timestamps go back at a discontinuity, a new scene begins: the jump of the object is not a crossing.
    let mut first = frame(0, 10.0);
    first.get_mut().unwrap().set_flags(gst::BufferFlags::DISCONT);
    rig.source.push(first).unwrap();
    let count = |element: &gst::Element| {
        let stats: gst::Structure = element.property("stats");
        let crossings = stats.get::<gst::Array>("crossings").unwrap();
        let of = |value: &gst::glib::SendValue| {
            let crossing = value.get::<gst::Structure>().unwrap();
            (crossing.get::<String>("direction").unwrap(), crossing.get::<u64>("count").unwrap())
        };
        crossings.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(count(&rig.element), [("out".to_owned(), 3)]);
    let later = Rig::new("roianalytics lines=0,0.5,1,0.5");
    let counts = rig.element.downcast_ref::<RoiAnalytics>().unwrap().counts();
    later.element.downcast_ref::<RoiAnalytics>().unwrap().continue_counts(counts);
    assert_eq!(count(&later.element), [("out".to_owned(), 3)]);
}

#[test]
fn every_entry_has_its_exit_although_timestamps_are_wrong() {
    const ZONE: &str = "roianalytics zones=floor:0,0.5,1,0.5,1,1.1,0,1.1";
    // Frames with their timestamps in frames, and whether they have a discontinuity. The object is inside in all but the last one.
    let around = |wrong: u64| (0..8).map(|n| (if n == 4 { wrong } else { 5_000 + n }, false)).collect::<Vec<_>>();
    let restarted: Vec<_> = (5_000..5_004).map(|n| (n, false)).chain([(10, true), (11, false)]).collect();
    let repeated: Vec<_> = (5_000..5_004).chain(0..4).map(|n| (n, false)).collect();
    for (frames, n_entries) in [(around(1_000_000), 1), (around(4_962), 1), (around(0), 1), (restarted, 2), (repeated, 2)] {
        let rig = Rig::begun(ZONE);
        let mut last = 0;
        for (n, is_discont) in &frames {
            let mut buffer = frame(*n, 30.0);
            if *is_discont {
                buffer.get_mut().unwrap().set_flags(gst::BufferFlags::DISCONT);
            }
            rig.source.push(buffer).unwrap();
            last = *n;
        }
        rig.source.push(frame(last + 1, 10.0)).unwrap();
        let stats: gst::Structure = rig.element.property("stats");
        let zones = stats.get::<gst::Array>("zones").unwrap();
        let zone = zones[0].get::<gst::Structure>().unwrap();
        let count = |field: &str| zone.get::<u64>(field).unwrap();
        assert_eq!((count("entries"), count("exits"), count("occupancy")), (n_entries, n_entries, 0), "{frames:?}");
        assert!(count("dwell") < 1_000_000_000, "{frames:?}: {}", count("dwell"));
    }
}

#[test]
fn layout_file_with_ground_gives_speeds_and_heat_map() {
    let folder = Folder::new("analytics-ground");
    // One pixel corresponds to 10 cm on the ground.
    let text = "heat-map = [2, 2]\n[ground]\nimage = [[0, 0], [1, 0], [1, 1], [0, 1]]\nmeters = [[0, 0], [6.4, 0], [6.4, 4.8], [0, 4.8]]\n";
    std::fs::write(folder.file("layout.toml"), text).unwrap();
    let pipeline = pipeline(
        "videotestsrc num-buffers=40 ! video/x-raw,width=64,height=48,framerate=25/1 ! identity name=attach ! \
         roianalytics name=count ! roipublish name=publish ! fakesink",
    );
    pipeline.by_name("publish").unwrap().set_property("address", folder.file("o.jsonl"));
    let count = pipeline.by_name("count").unwrap();
    count.set_property("layout", folder.file("layout.toml"));
    // The object moves down by one pixel per frame.
    attach(&pipeline, |n| results(SIZE, n, vec![person(1, 4.0 + n as f32)]));
    let cells = std::sync::Arc::new(std::sync::Mutex::new((0, 0)));
    let (seen, counter) = (cells.clone(), count.clone());
    on_buffers(&pipeline, "count", "src", move |_, _| {
        let heat: gst::Structure = counter.property("heat-map");
        let cells = heat.get::<gst::Array>("cells").unwrap();
        *seen.lock().unwrap() = (heat.get::<u64>("columns").unwrap(), cells.iter().map(|value| value.get::<u64>().unwrap()).sum::<u64>());
    });
    assert_eq!(run(&pipeline).error, None);
    assert_eq!(*cells.lock().unwrap(), (2, 40));
    let last = lines(&folder.file("o.jsonl")).pop().unwrap();
    let value = |name: &str| last["objects"][0][name]["value"].as_f64().unwrap();
    assert!((value("speed") - 2.5).abs() < 0.05 && (value("heading") - 90.0).abs() < 1.0, "{last}");
}

#[test]
fn wrong_layouts_are_errors_at_the_start() {
    crate::harness::init();
    for (line, reason) in [
        ("roianalytics", "at least one line"),
        ("roianalytics lines=0,0.5,1", "an x and a y"),
        ("roianalytics zones=0,0,1,1", "three corners"),
        ("roianalytics layout=/nowhere/layout.toml", "/nowhere/layout.toml"),
    ] {
        let (element, bus) = (gst::parse::launch(line).unwrap(), gst::Bus::new());
        element.set_bus(Some(&bus));
        assert!(element.set_state(gst::State::Paused).is_err(), "{line}");
        element.set_state(gst::State::Null).unwrap();
        let message = bus.pop_filtered(&[gst::MessageType::Error]).unwrap();
        let gst::MessageView::Error(error) = message.view() else { unreachable!() };
        assert!(error.error().to_string().contains(reason), "{line}: {}", error.error());
    }
}
