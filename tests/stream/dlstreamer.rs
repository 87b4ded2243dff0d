//! Interoperability with DL Streamer's elements: region metas in their layout. `tests/analytics` tests the analytics metas.

use gstreamer as gst;
use gstreamer_video::VideoRegionOfInterestMeta as RoiMeta;
use roiflow::elements::meta;
use roiflow::frame::{Classification, Detection, ObjectId, Outcome, Rect, Size};

use crate::harness::{attach, classify, collect, detect, face, labels, on_buffers, pipeline, results, run};

const SIZE: Size = Size::new(320, 240);
const BOX: Rect = Rect { x: 40.0, y: 60.0, width: 80.0, height: 100.0 };

fn buffer() -> gst::Buffer {
    roiflow::elements::register_static().unwrap();
    gst::Buffer::new()
}

/// Adds a region as `gvadetect` writes it.
fn gvadetect(buffer: &mut gst::BufferRef, id: i32, parent: i32, label: &str, (x, y, w, h): (u32, u32, u32, u32)) {
    let part = |pixels: u32, extent: u32| f64::from(pixels) / f64::from(extent);
    let mut roi = RoiMeta::add(buffer, label, (x, y, w, h));
    roi.set_id(id);
    roi.set_parent_id(parent);
    let detection = gst::Structure::builder("detection")
        .field("x_min", part(x, SIZE.width))
        .field("x_max", part(x + w, SIZE.width))
        .field("y_min", part(y, SIZE.height))
        .field("y_max", part(y + h, SIZE.height))
        .field("rotation", 0.0)
        .field("label_id", 3)
        .field("confidence", 0.875)
        .field("precision", 10)
        .field("layer_name", "detection_out")
        .field("model_name", "person-vehicle");
    roi.add_param(detection.build());
}

/// Adds the parameters of `gvaclassify` to each region with this label: a classification, and a raw tensor, which is not a classification.
fn gvaclassify(buffer: &mut gst::BufferRef, of_label: &str, label: &str) {
    for mut roi in buffer.iter_meta_mut::<RoiMeta>().filter(|roi| roi.roi_type() == of_label) {
        let classification = gst::Structure::builder("type")
            .field("layer_name", "type")
            .field("model_name", "vehicle-attributes")
            .field("attribute_name", "type")
            .field("converter", "label")
            .field("method", "max")
            .field("label", label)
            .field("label_id", 2)
            .field("confidence", 0.75)
            .field("tensor_id", 0)
            .field("type", "classification_result");
        roi.add_param(classification.build());
        let tensor = gst::Structure::builder("embedding").field("type", "tensor").field("label_id", 1).field("precision", 10);
        roi.add_param(tensor.build());
    }
}

/// Fields of a region that `gvametaconvert` prints: edges, confidence and label ID of the detection, and each classification.
type Printed = ([f64; 4], f64, i32, Vec<Said>);

/// Attribute, label and model of a classification, with optional confidence and label ID.
type Said = (String, String, String, Option<f64>, Option<i32>);

fn gvametaconvert(roi: &RoiMeta) -> Printed {
    let detection = roi.param("detection").expect("every region has one");
    let edges = ["x_min", "x_max", "y_min", "y_max"].map(|edge| detection.get::<f64>(edge).unwrap());
    let said = roi.params().filter(|structure| !["detection", "object_id"].contains(&structure.name().as_str()));
    let said = said.filter_map(|structure| {
        let text = |field: &str| structure.get::<String>(field).ok();
        let name = text("attribute_name").unwrap_or_else(|| structure.name().to_string());
        Some((name, text("label")?, text("model_name")?, structure.get("confidence").ok(), structure.get("label_id").ok()))
    });
    (edges, detection.get("confidence").unwrap(), detection.get("label_id").unwrap(), said.collect())
}

#[test]
fn region_has_fields_that_gvametaconvert_prints() {
    let mut buffer = buffer();
    meta::attach(buffer.get_mut().unwrap(), results(SIZE, 0, vec![face(7, BOX)]));
    let roi = buffer.iter_meta::<RoiMeta>().next().unwrap();
    let said = |name: &str, label: &str, confidence, label_id| {
        let [name, label, model] = [name, label, "age-gender"].map(str::to_owned);
        (name, label, model, confidence, label_id)
    };
    let said = vec![said("gender", "female", Some(0.5), Some(0)), said("age", "31.4", None, None)];
    assert_eq!(gvametaconvert(&roi), ([0.125, 0.375, 0.25, 160.0 / 240.0], 0.75, 1, said));
}

#[test]
fn boxes_in_region_metas_are_between_0_and_1() {
    let mut buffer = buffer();
    let beyond = Rect { x: -40.0, y: 200.0, width: 400.0, height: 100.0 };
    meta::attach(buffer.get_mut().unwrap(), results(SIZE, 0, vec![face(7, beyond)]));
    let roi = buffer.iter_meta::<RoiMeta>().next().unwrap();
    assert_eq!(gvametaconvert(&roi).0, [0.0, 1.0, 200.0 / 240.0, 1.0]);
    assert_eq!(roi.rect(), (0, 200, 320, 40));
    assert_eq!(meta::read(&buffer, SIZE).unwrap().detections[0].rect, beyond, "our own meta has the unclipped box");
}

#[test]
fn result_of_gvaclassify_on_our_region_is_read_once() {
    let mut buffer = buffer();
    let buffer = buffer.get_mut().unwrap();
    let plain = Detection { classifications: vec![], ..face(7, BOX) };
    meta::attach(buffer, results(SIZE, 0, vec![plain]));
    gvaclassify(buffer, "face", "van");
    let outcome = Outcome::Label { label_id: 2, label: Some("van".into()), confidence: 0.75 };
    let expected = [Classification { name: "type".into(), model: "vehicle-attributes".into(), outcome }];
    for n_reads in 1..4 {
        let read = meta::read(buffer, SIZE).unwrap();
        assert_eq!((read.detections.len(), &*read.detections[0].classifications), (1, &expected[..]), "read {n_reads}");
        meta::attach(buffer, read);
        let roi = buffer.iter_meta::<RoiMeta>().next().unwrap();
        assert_eq!(roi.params().count(), 3, "nothing is written twice");
    }
}

#[test]
fn regions_of_gvadetect_are_classified_and_keep_their_parents() {
    let pipeline = pipeline(&format!(
        "videotestsrc num-buffers=3 pattern=red ! video/x-raw,format=RGB,width=320,height=240 ! identity name=attach ! {} ! {} ! fakesink \
         name=sink",
        detect("rectangle", ""),
        classify("color", ""),
    ));
    on_buffers(&pipeline, "attach", "src", |_, buffer| {
        let buffer = buffer.make_mut();
        // DL Streamer uses the index in the analytics meta as ID, so the first object can have ID 0. The parent -1 stands for the frame.
        gvadetect(buffer, 0, -1, "dog", (0, 0, 40, 40));
        gvadetect(buffer, 1, -1, "car", (40, 60, 80, 100));
        gvadetect(buffer, 2, 1, "plate", (60, 80, 20, 10));
        gvaclassify(buffer, "car", "van");
    });
    let arrived = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None);
    let arrived = arrived.lock().unwrap();
    assert_eq!(arrived.len(), 3);
    for arrived in arrived.iter() {
        let read = arrived.results().unwrap();
        let [dog, car, plate, ours] = &*read.detections else { panic!("{read:?}") };
        let what = |found: &Detection| (found.label.clone().unwrap().to_string(), found.confidence, found.label_id);
        assert_eq!([dog, car, plate].map(what), ["dog", "car", "plate"].map(|label| (label.to_owned(), 0.875, 3)));
        assert_eq!((dog.parent, car.parent, plate.parent, ours.parent), (None, None, Some(car.id), None));
        let mut ids: Vec<ObjectId> = read.detections.iter().map(|found| found.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4, "{read:?}");
        assert_eq!(labels(&read), ["red", "van", "red", "red", "red"]);
        let regions: Vec<(i32, String)> = arrived.buffer.iter_meta::<RoiMeta>().map(|roi| (roi.id(), roi.roi_type().to_owned())).collect();
        assert_eq!(regions.len(), 4, "one region per object: {regions:?}");
    }
}

#[test]
fn region_with_our_id_but_other_label_is_another_object() {
    let mut buffer = buffer();
    let buffer = buffer.get_mut().unwrap();
    meta::attach(buffer, results(SIZE, 0, vec![face(7, BOX)]));
    gvadetect(buffer, 7, -1, "car", (1, 2, 30, 40));
    for _ in 0..2 {
        let read = meta::read(buffer, SIZE).unwrap();
        let found: Vec<(&str, Rect)> = read.detections.iter().map(|found| (found.label.as_deref().unwrap(), found.rect)).collect();
        assert_eq!(found, [("face", BOX), ("car", Rect { x: 1.0, y: 2.0, width: 30.0, height: 40.0 })]);
        assert_ne!(read.detections[0].id, read.detections[1].id);
        meta::attach(buffer, read);
        assert_eq!(buffer.iter_meta::<RoiMeta>().count(), 2);
    }
}

#[test]
fn tee_branches_do_not_share_later_results() {
    let pipeline = pipeline(
        "videotestsrc num-buffers=3 ! video/x-raw,format=RGB,width=320,height=240 ! identity name=attach ! tee name=t \
         t. ! queue ! identity name=classify ! roitrack ! fakesink name=one t. ! queue ! roitrack ! fakesink name=other",
    );
    attach(&pipeline, |n| results(SIZE, n, vec![Detection { classifications: vec![], ..face(1 + n as i32, BOX) }]));
    on_buffers(&pipeline, "classify", "src", |_, buffer| gvaclassify(buffer.make_mut(), "face", "van"));
    let (one, other) = (collect(&pipeline, "one", "sink"), collect(&pipeline, "other", "sink"));
    assert_eq!(run(&pipeline).error, None);
    for (arrived, expected) in [(one, &["van"][..]), (other, &[])] {
        for arrived in arrived.lock().unwrap().iter() {
            assert_eq!(labels(&arrived.results().unwrap()), expected);
        }
    }
}
