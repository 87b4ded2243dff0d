//! Every documented pipeline in the README, docs/elements.md and the elements' documentation runs and detects objects.
//!
//! Missing models, clips and cameras are replaced by tiny models and generated images; windows are removed.

use std::path::Path;

use gst::prelude::*;
use gstreamer as gst;

use crate::harness::{Folder, pipeline, run, tiny};

const N_FRAMES: usize = 30;
/// The beginning of a model's name, the tiny model that replaces it, and the label of the detected objects.
const STAND_INS: [(&str, &str, Option<&str>); 10] = [
    ("face", "rectangle", Some("face")),
    ("ultraface", "rectangle", Some("face")),
    ("person", "rectangle", Some("person")),
    ("vehicle", "rectangle", Some("car")),
    ("plate", "stripes", Some("plate")),
    ("gender", "color", None),
    ("color", "color", None),
    ("age", "brightness", None),
    ("scene", "color", None),
    ("action", "clip", None),
];
const TEXTS: [(&str, &str); 10] = [
    ("README.md", include_str!("../../README.md")),
    ("docs/elements.md", include_str!("../../docs/elements.md")),
    ("roidetect", include_str!("../../src/elements/detect/mod.rs")),
    ("roiclassify", include_str!("../../src/elements/classify/mod.rs")),
    ("roitrack", include_str!("../../src/elements/track/mod.rs")),
    ("roicrop", include_str!("../../src/elements/crop/mod.rs")),
    ("roianalytics", include_str!("../../src/elements/analytics/mod.rs")),
    ("roioverlay", include_str!("../../src/elements/overlay/mod.rs")),
    ("roiattach", include_str!("../../src/elements/attach/mod.rs")),
    ("roipublish", include_str!("../../src/elements/publish/mod.rs")),
];

/// Returns the pipelines in the code blocks of a text.
pub fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut in_code = false;
    for line in text.lines().map(|line| line.trim_start_matches("//!").trim()) {
        in_code ^= line.starts_with("```");
        if let (true, Some((_, line))) = (in_code, line.split_once("gst-launch-1.0 ")) {
            lines.push(line.to_owned());
        } else if in_code && line.starts_with('!') {
            let last = lines.last_mut().expect("the begin of this line");
            *last = format!("{} {line}", last.trim_end_matches('\\'));
        }
    }
    lines
}

/// Returns the executable form of a documented line.
fn runnable(line: &str, folder: &Folder, clip: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut words: Vec<String> = Vec::new();
    let mut is_replaced = false;
    for word in line.split_whitespace() {
        let word = match word.split_once('=') {
            _ if word.starts_with('-') => continue,
            None if word == "v4l2src" => format!("videotestsrc is-live=true num-buffers={N_FRAMES}"),
            None if word == "autovideosink" => "fakesink".to_owned(),
            None if word == "roipublish" => format!("roipublish address=\"{}\"", folder.file("found.jsonl")),
            Some(("address", _)) => continue,
            Some(("folder", _)) => format!("folder=\"{}\"", folder.file("out")),
            Some(("location", path)) if path.ends_with(".jsonl") => {
                folder.write(path, "{\"timestamp\":0,\"resolution\":{\"width\":9,\"height\":9},\"objects\":[]}\n");
                format!("location=\"{}\"", folder.file(path))
            }
            Some(("location", path)) if !root.join(path).exists() => format!("location=\"{clip}\""),
            Some(("model", path)) if !root.join(path).exists() => {
                is_replaced = true;
                let name = Path::new(path).file_stem().unwrap().to_str().unwrap();
                let known = STAND_INS.into_iter().find(|(known, ..)| name.starts_with(known));
                let (_, model, label) = known.unwrap_or_else(|| panic!("expected a replacement for `{name}`"));
                let mut description = std::fs::read_to_string(tiny(&format!("{model}.toml"))).unwrap();
                if let Some(label) = label {
                    let (before, _) = description.split_once("labels =").unwrap();
                    description = format!("{before}labels = [\"{label}\"]\n");
                }
                std::fs::copy(tiny(&format!("{model}.onnx")), folder.file(&format!("{name}.onnx"))).unwrap();
                folder.write(&format!("{name}.toml"), description);
                format!("model=\"{}\"", folder.file(&format!("{name}.onnx")))
            }
            Some(("description", _)) if is_replaced => continue,
            Some((property @ ("location" | "model" | "description"), path)) => format!("{property}=\"{}\"", root.join(path).display()),
            _ => word.to_owned(),
        };
        words.push(word);
    }
    words.join(" ")
}

#[test]
fn documented_pipelines_run_and_detect_objects() {
    let folder = Folder::new("lines to paste");
    let clip = folder.file("clip.mp4");
    let make = format!(
        "videotestsrc num-buffers={N_FRAMES} ! video/x-raw,width=320,height=240 ! x264enc speed-preset=ultrafast ! mp4mux ! filesink location=\"{clip}\""
    );
    assert_eq!(run(&pipeline(&make)).error, None);
    for (text, contents) in TEXTS {
        let lines = lines(contents);
        assert!(!lines.is_empty(), "{text}");
        for line in lines {
            let pipeline = pipeline(&runnable(&line, &folder, &clip));
            let ending = run(&pipeline);
            assert_eq!((ending.error, ending.warnings), (None, vec![]), "{text}: {line}");
            for element in pipeline.iterate_recurse().into_iter().map(Result::unwrap) {
                let found = match &*element.factory().unwrap().name() {
                    "roidetect" => "objects",
                    // A whole frame is not an object, so count the inferred frames.
                    "roiclassify" if line.contains("inference-region=full-frame") => "inferred",
                    "roiclassify" => "objects-classified",
                    _ => continue,
                };
                let stats: gst::Structure = element.property("stats");
                assert!(stats.get::<u64>(found).unwrap() > 0, "{text}: {line}: {stats}");
            }
            if line.contains("roipublish") {
                let published = std::fs::read_to_string(folder.file("found.jsonl")).unwrap();
                let found = if line.contains("roidetect") { "\"objects\":[{" } else { "\"classifications\":{" };
                assert!(published.lines().count() > 0 && published.contains(found), "{text}: {line}: {published}");
                std::fs::remove_file(folder.file("found.jsonl")).unwrap();
            }
        }
    }
}
