//! Two copies of the library in one process: the built plugin, and the library linked to this test. Each test has its own process,
//! because GStreamer's registrations are permanent.

use gst::prelude::*;
use gstreamer as gst;
use roiflow::elements::detect::RoiDetect;
use roiflow::frame::{Detection, Point, Rect, Size};

use crate::harness::{Folder, attach, built_plugin, collect, face, init, is_alone, labels, pipeline, results, run, tiny};

const SIZE: Size = Size::new(320, 240);
const BOX: Rect = Rect { x: 40.25, y: 60.5, width: 80.5, height: 100.25 };

/// Loads the plugin, and creates its elements with these names.
fn of_plugin<const N: usize>(names: [&str; N]) -> [gst::Element; N] {
    gst::init().unwrap();
    let plugin = gst::Plugin::load_file(built_plugin()).unwrap();
    let make = |name: &str| {
        let factory = gst::ElementFactory::find(name).unwrap();
        assert_eq!(factory.plugin().unwrap().filename(), plugin.filename(), "{name} is an element of the plugin");
        factory.create().build().unwrap()
    };
    names.map(make)
}

/// Returns a pipeline of three red frames through these elements, between the points `attach` and `sink`.
fn through(elements: &[&gst::Element]) -> gst::Pipeline {
    let pipeline = pipeline(
        "videotestsrc num-buffers=3 pattern=red ! video/x-raw,format=RGB,width=320,height=240,framerate=25/1 ! identity name=attach",
    );
    let sink = gst::ElementFactory::make("fakesink").name("sink").build().unwrap();
    let mut before = pipeline.by_name("attach").unwrap();
    for element in elements.iter().copied().chain([&sink]) {
        pipeline.add(element).unwrap();
        before.link(element).unwrap();
        before = element.clone();
    }
    pipeline
}

fn copies_understand_each_other([track, publish, detect, classify]: [gst::Element; 4]) {
    init();
    // All fields of the results pass from this copy to the plugin and back.
    let folder = Folder::new("two copies");
    publish.set_property("address", folder.file("results.jsonl"));
    let sent = Detection { keypoints: vec![Point { x: 60.5, y: 90.25 }], ..face(7, BOX) };
    let playing = through(&[&track, &publish]);
    let object = sent.clone();
    attach(&playing, move |n| results(SIZE, 10 + n, vec![object.clone()]));
    let arrived = collect(&playing, "sink", "sink");
    assert_eq!(run(&playing).error, None);
    for (arrived, n) in arrived.lock().unwrap().iter().zip(10..) {
        let read = arrived.results().unwrap();
        let [object] = &*read.detections else { panic!("{read:?}") };
        assert!(object.track_state.is_some(), "the plugin's tracker tracks it");
        assert_eq!((read.frame_number, Detection { track: None, track_state: None, ..object.clone() }), (n, sent.clone()));
    }
    let lines = std::fs::read_to_string(folder.file("results.jsonl")).unwrap();
    let has_all =
        |line: &str| [r#""age":{"value":31.4"#, r#""keypoints":[{"x":0.1890625"#, r#""frame":1"#].iter().all(|part| line.contains(part));
    assert!(lines.lines().count() == 3 && lines.lines().all(has_all), "{lines}");

    // Objects of both copies in one frame.
    let own = glib_object::<RoiDetect>();
    for (element, model) in [(&detect, "rectangle"), (&own, "rectangle"), (&classify, "color")] {
        element.set_property("model", tiny(&format!("{model}.onnx")));
        element.set_property("device", "CPU");
    }
    let playing = through(&[&detect, &own, &classify]);
    let arrived = collect(&playing, "sink", "sink");
    let ending = run(&playing);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let arrived = arrived.lock().unwrap();
    assert_eq!(arrived.len(), 3);
    for arrived in arrived.iter() {
        let read = arrived.results().unwrap();
        let [one, other] = &*read.detections else { panic!("{read:?}") };
        assert!(one.id.0.abs_diff(other.id.0) > 1 << 26, "{} and {}", one.id, other.id);
        assert_eq!(labels(&read), ["red", "red"]);
    }
}

fn glib_object<T: IsA<gst::Element> + IsA<gst::glib::Object>>() -> gst::Element {
    gst::glib::Object::with_type(T::static_type()).downcast().unwrap()
}

const NAMES: [&str; 4] = ["roitrack", "roipublish", "roidetect", "roiclassify"];

#[test]
fn plugin_works_in_program_that_links_library() {
    if is_alone() {
        init();
        copies_understand_each_other(of_plugin(NAMES));
    }
}

#[test]
fn library_works_in_program_that_loaded_plugin() {
    if is_alone() {
        copies_understand_each_other(of_plugin(NAMES));
    }
}
