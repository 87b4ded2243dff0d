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
    assert_eq!(buffer.iter_meta::<gst::Meta>().count(), 2, "our meta and one region");
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
