//! Results stay with their buffer through foreign elements.

use std::sync::Arc;

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video::VideoRegionOfInterestMeta as RoiMeta;
use roiflow::elements::meta;
use roiflow::frame::{Detection, FrameResults, ObjectId, Point, Rect, Size};

use crate::harness::{Arrived, attach, collect, face, pipeline, results, run};

const SIZE: Size = Size::new(320, 240);
const BOX: Rect = Rect { x: 40.25, y: 60.5, width: 80.5, height: 100.25 };

/// Runs five frames through `middle` and returns the output.
fn through(middle: &str) -> Vec<Arrived> {
    through_with(middle, &face(7, BOX))
}

/// Like `through`, with this object in each frame.
fn through_with(middle: &str, object: &Detection) -> Vec<Arrived> {
    let pipeline = pipeline(&format!(
        "videotestsrc num-buffers=5 ! video/x-raw,format=I420,width=320,height=240,framerate=10/1 ! identity name=attach ! {middle} ! \
         fakesink name=sink"
    ));
    let object = object.clone();
    attach(&pipeline, move |n| results(SIZE, n, vec![object.clone()]));
    let arrived = collect(&pipeline, "sink", "sink");
    let ending = run(&pipeline);
    assert_eq!(ending.error, None, "{middle}");
    std::mem::take(&mut *arrived.lock().unwrap())
}

fn buffer() -> gst::Buffer {
    roiflow::elements::register_static().unwrap();
    gst::Buffer::new()
}

/// ID, rectangle and parameter names of a ROI meta.
type Roi = (i32, (u32, u32, u32, u32), Vec<String>);

fn rois(buffer: &gst::BufferRef) -> Vec<Roi> {
    let params = |roi: &RoiMeta| roi.params().map(|structure| structure.name().to_string()).collect();
    buffer.iter_meta::<RoiMeta>().map(|roi| (roi.id(), roi.rect(), params(&roi))).collect()
}

#[test]
fn results_survive_conversion_copies_rates_and_an_encoder() {
    let middles = [
        "videoconvert ! video/x-raw,format=RGB",
        "tee name=t t. ! queue ! fakesink t. ! queue",
        "videorate ! video/x-raw,framerate=20/1",
        "x264enc tune=zerolatency ! avdec_h264",
        "x264enc bframes=2 b-adapt=false ! avdec_h264",
        "videoflip method=horizontal-flip",
    ];
    for middle in middles {
        let arrived = through(middle);
        assert!(arrived.len() >= 5, "{middle}: {} frames", arrived.len());
        for (n, arrived) in arrived.iter().enumerate() {
            let read = arrived.results().unwrap_or_else(|| panic!("{middle}: frame {n} has no results"));
            assert_eq!(read.detections, [face(7, BOX)], "{middle}: frame {n}");
        }
        let numbers: Vec<u64> = arrived.iter().map(|arrived| arrived.results().unwrap().frame_number).collect();
        assert!(numbers.is_sorted() && numbers.first() == Some(&0) && numbers.last() == Some(&4), "{middle}: {numbers:?}");
    }
}

#[test]
fn geometry_follows_a_scaler() {
    for (scaler, size, expected) in [
        ("videoscale add-borders=false ! video/x-raw,width=640,height=720", Size::new(640, 720), [80.0, 183.0, 162.0, 300.0]),
        (
            "videoconvertscale add-borders=false ! video/x-raw,width=160,height=120,format=RGB",
            Size::new(160, 120),
            [20.0, 30.0, 40.0, 50.0],
        ),
    ] {
        let arrived = through(scaler);
        assert_eq!(arrived.len(), 5);
        for arrived in &arrived {
            let read = arrived.results().unwrap();
            let rect = read.detections[0].rect;
            assert_eq!(read.size, size);
            assert_eq!([rect.x, rect.y, rect.width, rect.height], expected, "{scaler}");
            assert_eq!(read.detections[0].classifications, face(7, BOX).classifications);
            assert!(!meta::has_lost_rois(&arrived.buffer, &read));
        }
    }
}

#[test]
fn crop_loses_regions_and_is_detected() {
    let arrived = through("videocrop left=160");
    assert_eq!(arrived.len(), 5);
    for arrived in &arrived {
        let read = arrived.results().unwrap();
        assert!(meta::has_lost_rois(&arrived.buffer, &read));
        assert_eq!(meta::size_when_attached(&arrived.buffer), Some(SIZE));
        assert_eq!(read.detections[0].rect, BOX.rescaled(SIZE, Size::new(160, 240)), "rescaled, because the crop is unknown");
    }
}

#[test]
fn second_attach_updates_same_region() {
    let mut buffer = buffer();
    let mut detected = face(7, BOX);
    detected.classifications.clear();
    let buffer = buffer.get_mut().unwrap();
    meta::attach(buffer, results(SIZE, 0, vec![detected]));
    assert_eq!(rois(buffer), [(7, (40, 61, 81, 100), vec!["detection".to_owned()])]);

    let mut classified = meta::read(buffer, SIZE).unwrap();
    classified.detections[0].classifications = face(7, BOX).classifications;
    meta::attach(buffer, classified.clone());
    meta::attach(buffer, classified.clone());
    assert_eq!(rois(buffer), [(7, (40, 61, 81, 100), ["detection", "gender", "age"].map(String::from).to_vec())]);
    assert_eq!(meta::read(buffer, SIZE).unwrap(), classified, "our rectangle keeps its subpixel precision");
    assert_eq!(buffer.iter_meta::<gst::Meta>().count(), 3, "our meta, the marker and one region");
}

#[test]
fn regions_of_removed_detections_are_removed() {
    let mut buffer = buffer();
    let buffer = buffer.get_mut().unwrap();
    RoiMeta::add(buffer, "foreign", (1, 2, 3, 4)).set_id(99);
    meta::attach(buffer, results(SIZE, 0, vec![face(1, BOX), face(2, BOX)]));
    meta::attach(buffer, results(SIZE, 0, vec![face(2, BOX), face(3, BOX)]));
    let ids: Vec<i32> = rois(buffer).iter().map(|roi| roi.0).collect();
    assert_eq!(ids, [99, 2, 3]);
}

#[test]
fn region_meta_has_values_of_its_detection() {
    let mut buffer = buffer();
    let buffer = buffer.get_mut().unwrap();
    let mut child = face(8, BOX);
    child.parent = Some(ObjectId(7));
    child.classifications[0].name = "hair color".into();
    child.classifications[1].name = "7".into();
    child.label = Some("fa\0ce".into());
    let outside = face(9, Rect { x: 500.0, ..BOX });
    meta::attach(buffer, results(SIZE, 0, vec![child, outside]));
    let roi = buffer.meta::<RoiMeta>().unwrap();
    assert_eq!((roi.id(), roi.parent_id(), roi.roi_type()), (8, 7, "face"));
    let detection = roi.param("detection").unwrap();
    assert_eq!(detection.get::<f64>("x_min").unwrap(), 40.25 / 320.0);
    assert_eq!(detection.get::<f64>("y_max").unwrap(), 160.75 / 240.0);
    assert_eq!(detection.get::<f64>("confidence").unwrap(), 0.75);
    assert_eq!(detection.get::<i32>("label_id").unwrap(), 1);
    assert_eq!(roi.param("hair_color").unwrap().get::<&str>("label").unwrap(), "female");
    assert_eq!(roi.param("attribute_7").unwrap().get::<f64>("value").unwrap(), f64::from(31.4_f32));
    assert_eq!(rois(buffer).len(), 1, "no region for an object outside the frame");
    assert!(!meta::has_lost_rois(buffer, &meta::read(buffer, SIZE).unwrap()), "it does not count as lost");
}

#[test]
fn regions_of_foreign_detector_are_adopted() {
    let mut buffer = buffer();
    let buffer = buffer.get_mut().unwrap();
    assert_eq!(meta::read(buffer, SIZE), None);
    let mut roi = RoiMeta::add(buffer, "car", (1, 2, 3, 4));
    roi.add_param(gst::Structure::builder("detection").field("confidence", 0.5_f64).field("label_id", 3).build());
    let mut read = meta::read(buffer, SIZE).unwrap();
    let car = &mut read.detections[0];
    assert_eq!((car.label.as_deref(), car.confidence, car.label_id), (Some("car"), 0.5, 3));
    assert_eq!(car.rect, Rect { x: 1.0, y: 2.0, width: 3.0, height: 4.0 });
    assert!(car.id.0 > 0);
    car.classifications = face(1, BOX).classifications;
    let id = car.id;
    meta::attach(buffer, read);
    assert_eq!(rois(buffer), [(id.0, (1, 2, 3, 4), ["detection", "gender", "age"].map(String::from).to_vec())]);
}

#[test]
fn regions_of_foreign_detector_are_added_once() {
    let mut buffer = buffer();
    let buffer = buffer.get_mut().unwrap();
    meta::attach(buffer, results(SIZE, 4, vec![face(7, BOX)]));
    RoiMeta::add(buffer, "car", (1, 2, 3, 4)).set_id(9);
    let mut dog = RoiMeta::add(buffer, "dog", (5, 6, 7, 8));
    dog.set_parent_id(9);
    for n_reads in 1..4 {
        let read = meta::read(buffer, SIZE).unwrap();
        let [ours, car, dog] = &*read.detections else { panic!("read {n_reads}: {read:?}") };
        assert_eq!((read.frame_number, ours, car.id, car.label.as_deref()), (4, &face(7, BOX), ObjectId(9), Some("car")));
        assert_eq!((dog.label.as_deref(), dog.parent), (Some("dog"), Some(ObjectId(9))));
        meta::attach(buffer, read);
        assert_eq!(rois(buffer).len(), 3, "foreign regions are adopted, not duplicated");
    }
}

#[test]
fn lost_regions_are_warned_about_once() {
    let classify = crate::harness::classify("color", "");
    let cells = crate::harness::detect("stripes", "inference-region=roi-list object-class=face");
    let folder = crate::harness::Folder::new("lost regions");
    let publish = format!("roipublish address=\"{}\"", folder.file("o.jsonl"));
    for element in [&classify, &cells, &publish, "roioverlay"] {
        for (between, n_warnings) in
            [("videocrop left=40", 1), ("videobox right=20", 1), ("videoscale ! video/x-raw,width=160,height=120", 0)]
        {
            let line = format!(
                "videotestsrc num-buffers=5 ! video/x-raw,format=I420,width=320,height=240 ! identity name=attach ! {between} ! {element} ! \
                 identity ! {element} ! fakesink"
            );
            // Use only one `roipublish`, because two elements would write the same file.
            let line = if element == publish { line.replacen(&format!("identity ! {element} !"), "", 1) } else { line };
            let pipeline = pipeline(&line);
            attach(&pipeline, |n| results(SIZE, n, vec![face(1, BOX)]));
            let ending = run(&pipeline);
            // An inference element attaches correct results again; a reader does not change results.
            let n_readers = if element == "roioverlay" { 2 } else { 1 };
            assert_eq!((ending.error, ending.warnings.len()), (None, n_warnings * n_readers), "{line}: {:?}", ending.warnings);
            let names_order = |warning: &String| warning.contains("detector");
            assert!(ending.warnings.iter().all(names_order), "{:?}", ending.warnings);
        }
    }
}

#[test]
fn new_ids_do_not_collide_with_foreign_detector() {
    let mut buffer = buffer();
    let buffer = buffer.get_mut().unwrap();
    let next = ObjectId::next().0;
    for (id, x) in (next..next + 50).zip(0..) {
        RoiMeta::add(buffer, "car", (x, 0, 1, 1)).set_id(id);
    }
    RoiMeta::add(buffer, "car", (50, 0, 1, 1));
    let mut ids: Vec<i32> = meta::read(buffer, SIZE).unwrap().detections.iter().map(|detection| detection.id.0).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 51);
}

#[test]
fn frame_without_objects_has_results() {
    let mut buffer = buffer();
    meta::attach(buffer.get_mut().unwrap(), results(SIZE, 3, vec![]));
    let copy = buffer.copy();
    assert_eq!(meta::read(&copy, SIZE), Some(results(SIZE, 3, vec![])));
}

/// Keypoints are in pixels in roiflow's meta, and relative to the frame size in the region meta.
#[test]
fn keypoints_move_with_box_and_are_in_region_meta() {
    let face_with_points = || {
        let mut face = face(7, Rect { x: 40.0, y: 60.0, width: 80.0, height: 100.0 });
        face.keypoints = vec![Point { x: 60.0, y: 90.0 }, Point { x: 30.0, y: 160.0 }];
        face
    };
    let mut buffer = buffer();
    meta::attach(buffer.get_mut().unwrap(), results(SIZE, 3, vec![face_with_points()]));
    assert_eq!(meta::read(&buffer, SIZE).unwrap().detections, [face_with_points()]);
    let region = buffer.iter_meta::<RoiMeta>().next().unwrap();
    let coordinates: Vec<f64> = {
        let listed = region.param("detection").unwrap().get::<gst::Array>("keypoints").unwrap();
        listed.iter().map(|value| value.get::<f64>().unwrap()).collect()
    };
    assert_eq!(coordinates, [60.0 / 320.0, 90.0 / 240.0, 30.0 / 320.0, 160.0 / 240.0]);
    let arrived = through_with("videoscale ! video/x-raw,width=640,height=480", &face_with_points());
    let scaled = arrived[0].results().unwrap().detections.remove(0);
    assert_eq!(scaled.rect, Rect { x: 80.0, y: 120.0, width: 160.0, height: 200.0 });
    assert_eq!(scaled.keypoints, [Point { x: 120.0, y: 180.0 }, Point { x: 60.0, y: 320.0 }]);
}

#[test]
fn copies_share_results_and_last_buffer_frees_them() {
    let mut buffer = buffer();
    let label: Arc<str> = "face".into();
    let mut detection = face(1, BOX);
    detection.label = Some(label.clone());
    let with_label = |detection| FrameResults { detections: vec![detection], ..results(SIZE, 0, vec![]) };
    meta::attach(buffer.get_mut().unwrap(), with_label(detection.clone()));
    meta::attach(buffer.get_mut().unwrap(), with_label(detection));
    assert_eq!(Arc::strong_count(&label), 2, "replaced results are freed");
    let mut copies: Vec<gst::Buffer> = (0..3).map(|_| buffer.copy()).collect();
    copies.push(buffer.copy_deep().unwrap());
    assert_eq!(Arc::strong_count(&label), 2, "copies share");
    drop(buffer);
    assert!(copies.iter().all(|copy| meta::read(copy, SIZE).is_some()));
    drop(copies);
    assert_eq!(Arc::strong_count(&label), 1);
}

#[test]
fn elements_register_once_from_any_thread() {
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(roiflow::elements::register_static)).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    for name in ["roioverlay", "roipublish"] {
        let factory = gst::ElementFactory::find(name).unwrap();
        assert_eq!(factory.plugin().unwrap().plugin_name(), "roiflow");
        factory.create().build().unwrap();
    }
}

/// Reads the results and attaches them again, as each element does. Returns the labels of the objects.
fn pass_element(buffer: &mut gst::BufferRef) -> Vec<String> {
    let read = meta::read(buffer, SIZE).unwrap();
    let labels = read.detections.iter().map(|object| object.label.as_deref().unwrap().to_owned()).collect();
    meta::attach(buffer, read);
    labels
}

#[test]
fn region_beyond_the_frame_is_one_object() {
    let minus = |pixels: i32| (-pixels).cast_unsigned();
    let places = [
        ("right", (221, 10, 100, 100)),
        ("bottom", (10, 200, 50, 500)),
        ("left", (minus(5), 50, 100, 100)),
        ("around", (minus(1), minus(1), 322, 242)),
        ("huge", (10, 10, u32::MAX, 20)),
        ("outside", (500, 500, 10, 10)),
        ("empty", (50, 50, 0, 10)),
    ];
    let mut buffer = buffer();
    let buffer = buffer.get_mut().unwrap();
    for (label, place) in &places {
        RoiMeta::add(buffer, label, *place);
    }
    let labels = places.map(|(label, _)| label.to_owned());
    for _ in 0..3 {
        assert_eq!(pass_element(buffer), labels);
        let regions: Vec<_> = buffer.iter_meta::<RoiMeta>().map(|roi| (roi.roi_type().to_owned(), roi.rect())).collect();
        assert_eq!(regions, places.map(|(label, place)| (label.to_owned(), place)), "no region is added or changed");
    }
    let read = meta::read(buffer, SIZE).unwrap();
    assert_eq!(read.detections[2].rect, Rect { x: -5.0, y: 50.0, width: 100.0, height: 100.0 });
    assert!(!meta::has_lost_rois(buffer, &read));
}

#[test]
fn regions_beyond_the_frame_are_classified_and_tracked_once() {
    let pipeline = pipeline(&format!(
        "videotestsrc num-buffers=4 pattern=red ! video/x-raw,format=RGB,width=320,height=240,framerate=10/1 ! identity name=attach ! \
         roitrack min-hits=1 ! {} ! roitrack ! fakesink name=sink",
        crate::harness::classify("color", "")
    ));
    crate::harness::on_buffers(&pipeline, "attach", "src", |_, buffer| {
        RoiMeta::add(buffer.make_mut(), "edge", (221, 100, 100, 141));
    });
    let arrived = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None);
    for arrived in arrived.lock().unwrap().iter() {
        let read = arrived.results().unwrap();
        let seen: Vec<_> = read.detections.iter().map(|object| (object.track, object.classifications.len())).collect();
        assert_eq!(seen, [(Some(ObjectId(1)), 1)]);
    }
}

/// `gvametaaggregate` copies the regions of all its inputs to one buffer, with new IDs, and keeps one meta of ours.
#[test]
fn renumbered_and_repeated_regions_are_no_new_objects() {
    let mut buffer = buffer();
    let buffer = buffer.get_mut().unwrap();
    let mut child = face(8, Rect { x: 50.0, y: 70.0, width: 20.0, height: 20.0 });
    child.parent = Some(ObjectId(7));
    meta::attach(buffer, results(SIZE, 0, vec![face(7, BOX), child.clone()]));
    let places: Vec<_> = buffer.iter_meta::<RoiMeta>().map(|roi| roi.rect()).collect();
    // Old versions set no ID.
    for (place, id) in places.into_iter().zip([0, 41]) {
        let mut roi = RoiMeta::add(buffer, "face", place);
        roi.set_id(id);
        roi.add_param(gst::Structure::builder("detection").field("confidence", 0.75_f64).build());
        roi.add_param(gst::Structure::builder("type").field("label", "van").field("attribute_name", "type").build());
    }
    let mut ids = [30, 31].into_iter();
    buffer.iter_meta_mut::<RoiMeta>().take(2).for_each(|mut roi| roi.set_id(ids.next().unwrap()));
    let mut plate = RoiMeta::add(buffer, "plate", (60, 80, 5, 5));
    plate.set_parent_id(31);
    for _ in 0..3 {
        let read = meta::read(buffer, SIZE).unwrap();
        let seen: Vec<_> = read.detections.iter().map(|object| (object.id.0, object.parent, object.classifications.len())).collect();
        assert_eq!(seen[..2], [(7, None, 3), (8, Some(ObjectId(7)), 3)], "the classifications of the copies are added");
        assert_eq!((read.detections.len(), read.detections[2].parent), (3, Some(ObjectId(8))));
        meta::attach(buffer, read);
    }
}

#[test]
fn object_attached_without_confidence_has_none() {
    let folder = crate::harness::Folder::new("no confidence");
    let pipeline = pipeline(&format!(
        "videotestsrc num-buffers=3 ! video/x-raw,format=RGB,width=320,height=240,framerate=10/1 ! \
         roiattach name=attach rois=door:0.1,0.1,0.5,0.9 ! roitrack min-hits=1 high-confidence=0.9 ! roipublish address=\"{}\" ! \
         roipublish format=csv address=\"{}\" ! roioverlay ! fakesink",
        folder.file("o.jsonl"),
        folder.file("o.csv")
    ));
    crate::harness::on_buffers(&pipeline, "attach", "sink", |_, buffer| {
        RoiMeta::add(buffer.make_mut(), "car", (10, 20, 30, 40));
    });
    assert_eq!(run(&pipeline).error, None);
    let lines = crate::harness::lines(&folder.file("o.jsonl"));
    assert_eq!(lines.len(), 3);
    for line in &lines {
        let objects = line["objects"].as_array().unwrap();
        assert_eq!(objects.len(), 2, "{line}");
        for (object, id) in objects.iter().zip(1..) {
            assert_eq!((object["detection"].get("confidence"), &object["id"]), (None, &id.into()), "thresholds let it pass");
        }
    }
    let text = std::fs::read_to_string(folder.file("o.csv")).unwrap();
    assert!(!text.contains("NaN"), "{text}");
}

/// Removes the regions of this type, as a program does in a probe.
fn remove_regions(buffer: &mut gst::Buffer, kind: &str) {
    buffer.make_mut().foreach_meta_mut(|mut meta| {
        let is_it = meta.downcast_ref::<RoiMeta>().is_some_and(|roi| roi.roi_type() == kind);
        std::ops::ControlFlow::Continue(if is_it {
            gst::buffer::BufferMetaForeachAction::Remove
        } else {
            gst::buffer::BufferMetaForeachAction::Keep
        })
    });
}

fn car_and_person(n: u64) -> FrameResults {
    let car = Detection { label: Some("car".into()), ..face(1, BOX) };
    let person = Detection { label: Some("person".into()), ..face(2, Rect { x: 10.0, y: 10.0, width: 40.0, height: 60.0 }) };
    let outside = Detection { label: Some("outside".into()), ..face(3, Rect { x: 900.0, y: 10.0, width: 40.0, height: 60.0 }) };
    results(SIZE, n, vec![car, person, outside])
}

/// A probe upstream or downstream of an element that keeps regions removes them.
#[test]
fn object_whose_region_a_program_removes_is_removed() {
    for (elements, probe, removed, expected) in [
        ("identity name=a", "a", &["car"][..], &["person", "outside"][..]),
        ("identity name=a", "a", &["car", "person"], &["outside"]),
        ("identity name=a ! videoconvert ! video/x-raw,format=RGB", "a", &["car"], &["person", "outside"]),
        ("videoconvert name=a ! video/x-raw,format=RGB", "a", &["car"], &["person", "outside"]),
        ("videoscale name=a ! video/x-raw,width=640,height=480", "a", &["car"], &["person", "outside"]),
        ("identity name=a ! videoscale ! video/x-raw,width=640,height=480", "a", &["car", "person"], &["outside"]),
        ("roitrack name=a min-hits=1", "a", &["person"], &["car", "outside"]),
        ("tee name=t ! queue ! fakesink t. ! queue name=a", "a", &["person"], &["car", "outside"]),
        ("videorate name=a ! video/x-raw,framerate=20/1", "a", &["person"], &["car", "outside"]),
        ("identity name=a ! videocrop left=10", "a", &[], &["car", "person", "outside"]),
        ("videocrop name=a left=10", "a", &["car"], &["car", "person", "outside"]),
    ] {
        let pipeline = pipeline(&format!(
            "videotestsrc num-buffers=3 ! video/x-raw,format=I420,width=320,height=240,framerate=10/1 ! identity name=attach ! {elements} ! \
             roitrack min-hits=1 ! {} ! fakesink name=sink",
            crate::harness::classify("color", "")
        ));
        attach(&pipeline, car_and_person);
        crate::harness::on_buffers(&pipeline, probe, "src", |_, buffer| removed.iter().for_each(|kind| remove_regions(buffer, kind)));
        let arrived = collect(&pipeline, "sink", "sink");
        let ending = run(&pipeline);
        assert_eq!(ending.error, None, "{elements}");
        let arrived = arrived.lock().unwrap();
        assert!(arrived.len() >= 3);
        for arrived in arrived.iter() {
            let read = arrived.results().unwrap();
            let labels: Vec<&str> = read.detections.iter().map(|object| object.label.as_deref().unwrap()).collect();
            assert_eq!(labels, expected, "{elements}, removed {removed:?}");
        }
    }
}

#[test]
fn removed_object_does_not_come_back_when_results_are_attached_again() {
    let mut buffer = buffer();
    meta::attach(buffer.get_mut().unwrap(), car_and_person(0));
    let copy = buffer.copy();
    remove_regions(&mut buffer, "car");
    for _ in 0..2 {
        assert_eq!(pass_element(buffer.get_mut().unwrap()), ["person", "outside"]);
        assert_eq!(rois(&buffer).len(), 1);
    }
    remove_regions(&mut buffer, "person");
    assert_eq!(pass_element(buffer.get_mut().unwrap()), ["outside"], "the last region");
    assert_eq!(meta::read(&copy, SIZE).unwrap().detections.len(), 3, "a copy from before keeps its objects");
    RoiMeta::add(buffer.get_mut().unwrap(), "dog", (1, 2, 3, 4));
    assert_eq!(pass_element(buffer.get_mut().unwrap()), ["outside", "dog"]);
    remove_regions(&mut buffer, "dog");
    assert_eq!(pass_element(buffer.get_mut().unwrap()), ["outside"], "a region that another program added");
}

#[test]
fn frames_with_results_of_other_elements_are_numbered() {
    let folder = crate::harness::Folder::new("numbers");
    let pipeline = pipeline(&format!(
        "videotestsrc num-buffers=3 ! video/x-raw,format=RGB,width=320,height=240 ! identity name=attach ! roitrack ! identity name=edit ! \
         roipublish address=\"{}\" ! fakesink",
        folder.file("o.jsonl")
    ));
    crate::harness::on_buffers(&pipeline, "attach", "src", |_, buffer| {
        RoiMeta::add(buffer.make_mut(), "car", (10, 20, 30, 40));
    });
    crate::harness::on_buffers(&pipeline, "edit", "src", |_, buffer| {
        let removed = meta::edit(buffer.make_mut(), SIZE, |results| results.detections.pop());
        assert_eq!(removed.unwrap().label.as_deref(), Some("car"));
    });
    assert_eq!(run(&pipeline).error, None);
    let seen: Vec<_> = crate::harness::lines(&folder.file("o.jsonl"))
        .iter()
        .map(|line| (line["frame"].clone(), line["objects"].as_array().unwrap().len()))
        .collect();
    assert_eq!(seen, [(0.into(), 0), (1.into(), 0), (2.into(), 0)]);
}

#[test]
fn program_edits_objects_of_other_elements() {
    let mut buffer = buffer();
    let buffer = buffer.get_mut().unwrap();
    RoiMeta::add(buffer, "car", (1, 2, 30, 40));
    RoiMeta::add(buffer, "car", (1, 2, 30, 40)).set_id(8);
    RoiMeta::add(buffer, "dog", (100, 2, 30, 40)).set_id(9);
    assert_eq!(meta::edit(buffer, SIZE, |results| results.detections.get(7).cloned()), None);
    assert_eq!((buffer.iter_meta::<gst::Meta>().count(), rois(buffer).len()), (3, 3), "nothing changes");
    let n_objects = meta::edit(buffer, SIZE, |results| {
        results.detections.retain(|object| object.label.as_deref() != Some("car"));
        results.detections.push(face(77, BOX));
        Some(results.detections.len())
    });
    assert_eq!(n_objects, Some(2));
    let read = meta::read(buffer, SIZE).unwrap();
    let labels: Vec<&str> = read.detections.iter().map(|object| object.label.as_deref().unwrap()).collect();
    assert_eq!((labels, rois(buffer).iter().map(|roi| roi.0).collect::<Vec<_>>()), (vec!["dog", "face"], vec![9, 77]));
}
