//! `roiattach`: boxes of the property, stored results by time and number, and wrong files.

use gst::prelude::*;
use gstreamer as gst;
use roiflow::frame::{Detection, ObjectId, Rect, TrackState};

use crate::cli::{lines, roiflow};
use crate::harness::{Ending, Folder, attach, collect, face, pipeline, results, run};
use crate::rig::SIZE;

/// An object that moves to the right.
fn person(n: u64) -> Detection {
    let rect = Rect { x: 2.0 + n as f32, y: 10.0, width: 12.0, height: 20.0 };
    let track = Some(ObjectId(7));
    Detection { track, track_state: Some(TrackState::Confirmed), label: Some("person".into()), ..face(1, rect) }
}

/// Writes the results of a run of ten frames at 25 fps.
fn stored(folder: &Folder) -> String {
    let file = folder.file("stored.jsonl");
    let pipeline = pipeline(
        "videotestsrc num-buffers=10 ! video/x-raw,width=64,height=48,framerate=25/1 ! identity name=attach ! roipublish name=publish ! fakesink",
    );
    pipeline.by_name("publish").unwrap().set_property("address", &file);
    attach(&pipeline, |n| results(SIZE, n, vec![person(n)]));
    assert_eq!(run(&pipeline).error, None);
    file
}

fn stats(pipeline: &gst::Pipeline) -> [u64; 5] {
    let stats: gst::Structure = pipeline.by_name("attach").unwrap().property("stats");
    ["frames", "matched", "lines", "unmatched", "errors"].map(|field| stats.get::<u64>(field).unwrap())
}

#[test]
fn boxes_of_the_property_are_on_every_frame() {
    let pipeline = pipeline(
        "videotestsrc num-buffers=3 ! video/x-raw,width=64,height=48 ! roiattach name=attach rois=\"door:0.25,0.5,0.75,1;0,0,1,0.5\" ! fakesink name=sink",
    );
    let arrived = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None);
    for arrived in arrived.lock().unwrap().iter() {
        let found = arrived.results().unwrap().detections;
        assert_eq!(found.iter().map(|found| found.label.as_deref()).collect::<Vec<_>>(), [Some("door"), None]);
        assert_eq!(found[0].rect, Rect { x: 16.0, y: 24.0, width: 32.0, height: 24.0 });
    }
    assert_eq!(stats(&pipeline), [3, 0, 0, 0, 0]);
}

#[test]
fn stored_results_published_again_are_the_same() {
    let folder = Folder::new("attach-again");
    let file = stored(&folder);
    for by in ["timestamp", "frame"] {
        let again = folder.file(&format!("{by}.jsonl"));
        let pipeline = pipeline(&format!(
            "videotestsrc num-buffers=10 ! video/x-raw,width=64,height=48,framerate=25/1 ! roiattach name=attach match={by} ! \
             roipublish name=publish ! fakesink"
        ));
        pipeline.by_name("attach").unwrap().set_property("location", &file);
        pipeline.by_name("publish").unwrap().set_property("address", &again);
        let Ending { error, warnings } = run(&pipeline);
        assert_eq!((error, warnings), (None, vec![]));
        let without_time = |file: &str| {
            let mut lines = lines(file);
            lines.iter_mut().for_each(|line| drop(line.as_object_mut().unwrap().remove("time")));
            lines
        };
        assert_eq!(without_time(&again), without_time(&file), "{by}");
        assert_eq!(stats(&pipeline), [10, 10, 10, 0, 0]);
    }
}

#[test]
fn results_are_matched_at_other_rates_and_scaled_to_other_sizes() {
    let folder = Folder::new("attach-scaled");
    let file = stored(&folder);
    let pipeline = pipeline(
        "videotestsrc num-buffers=20 ! video/x-raw,width=128,height=48,framerate=50/1 ! roiattach name=attach tolerance=5000000 ! fakesink name=sink",
    );
    pipeline.by_name("attach").unwrap().set_property("location", &file);
    let arrived = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None);
    let edges: Vec<Option<f32>> = arrived.lock().unwrap().iter().map(|arrived| Some(arrived.results()?.detections[0].rect.x)).collect();
    let expected: Vec<Option<f32>> = (0..20).map(|n| (n % 2 == 0).then_some(2.0 * (2.0 + (n / 2) as f32))).collect();
    assert_eq!(edges.len(), 20);
    for (edge, expected) in edges.iter().zip(&expected) {
        assert!(edge.is_some() == expected.is_some() && edge.zip(*expected).is_none_or(|(a, b)| (a - b).abs() < 0.01), "{edges:?}");
    }
}

#[test]
fn results_of_a_detector_are_kept() {
    let pipeline = pipeline(
        "videotestsrc num-buffers=1 ! video/x-raw,width=64,height=48 ! identity name=attach ! roiattach rois=door:0,0,1,1 ! fakesink name=sink",
    );
    attach(&pipeline, |n| results(SIZE, n, vec![person(n)]));
    let arrived = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None);
    let results = arrived.lock().unwrap()[0].results().unwrap();
    assert_eq!(results.detections.iter().map(|found| found.label.as_deref().unwrap()).collect::<Vec<_>>(), ["person", "door"]);
}

#[test]
fn wrong_properties_and_files_are_errors() {
    let folder = Folder::new("attach-wrong");
    folder.write("broken.jsonl", "nonsense\n{\"timestamp\":0,\"resolution\":{\"width\":9,\"height\":9},\"objects\":[]}\n");
    let broken = folder.file("broken.jsonl");
    for (properties, is_error, words) in [
        ("", true, "rois or location"),
        ("rois=10,10,200,200", true, "fractions"),
        ("location=/gone/stored.jsonl", true, "/gone/stored.jsonl"),
        (&*format!("location=\"{broken}\""), false, "line 1"),
    ] {
        let pipeline = pipeline(&format!(
            "videotestsrc num-buffers=2 ! video/x-raw,width=64,height=48 ! roiattach name=attach {properties} ! fakesink"
        ));
        let Ending { error, warnings } = run(&pipeline);
        let messages = if is_error { error.iter().collect::<Vec<_>>() } else { warnings.iter().collect() };
        assert!(messages.len() == 1 && messages[0].contains(words), "{properties}: {error:?} {warnings:?}");
    }
}

#[test]
fn replay_of_the_command_draws_stored_results() {
    let folder = Folder::new("attach-replay");
    let clip = folder.file("clip.mp4");
    let make = format!(
        "videotestsrc num-buffers=10 ! video/x-raw,width=64,height=48,framerate=25/1 ! x264enc ! mp4mux ! filesink location=\"{clip}\""
    );
    assert_eq!(run(&pipeline(&make)).error, None);
    let (file, again, video) = (stored(&folder), folder.file("again.jsonl"), folder.file("out.mp4"));
    let set = format!("results={file}");
    let output = roiflow(&["run", "replay", "--input", &clip, "--set", &set, "--set", "blur=person", "--json", &again, "--video", &video]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("frames  10 in ") && said.contains("objects  10\n"), "{said}");
    let n_objects: Vec<usize> = lines(&again).iter().map(|line| line["objects"].as_array().unwrap().len()).collect();
    assert_eq!(n_objects, [1; 10]);
    assert!(std::fs::metadata(&video).unwrap().len() > 500);
}
