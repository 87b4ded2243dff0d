//! Bad input leads to an error with expected value, actual value and remedy; never to a hang or a panic.

use gst::prelude::*;
use gstreamer as gst;
use roiflow::frame::Size;

use crate::harness::{Folder, TIMEOUT, caps, classify, collect, detect, feed, init, make_clip, pipeline, run, tiny};

/// A pipeline with one mistake, and words that its error must contain.
#[derive(Debug)]
struct Case {
    line: String,
    words: Vec<String>,
}

fn case(line: impl Into<String>, words: &[&str]) -> Case {
    Case { line: line.into(), words: words.iter().map(|word| (*word).to_owned()).collect() }
}

/// Asserts that every case ends with an error that contains its words; prints all cases that fail.
fn check(cases: &[Case]) {
    let mut wrong = Vec::new();
    for case in cases {
        let ending = run(&pipeline(&case.line));
        let said = ending.error.unwrap_or_default();
        let missing: Vec<&String> = case.words.iter().filter(|word| !said.contains(*word)).collect();
        if !missing.is_empty() || said.contains('\n') && !said.contains("TOML") {
            wrong.push(format!("{}\n  said: {said}\n  missing: {missing:?}", case.line));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn source(element: &str) -> String {
    format!("videotestsrc num-buffers=3 ! video/x-raw,format=RGB,width=64,height=48 ! {element} ! fakesink")
}

#[test]
fn bad_models_and_devices_are_errors() {
    let folder = Folder::new("models");
    let text = folder.write("text.onnx", "this is no model");
    let empty = folder.write("empty.onnx", "");
    let cut = folder.write("cut.onnx", &std::fs::read(tiny("rectangle.onnx")).unwrap()[..200]);
    let stays = tiny("rectangle.toml");
    for element in ["roidetect", "roiclassify"] {
        check(&[
            case(source(&format!("{element} name=mine")), &["`mine`", "expected a model", "Set the property `model`"]),
            case(source(&format!("{element} model=\"\"")), &["expected a model", "Set the property `model`"]),
            case(source(&format!("{element} model=/no/such.onnx")), &["/no/such.onnx", "No such file", "check the path"]),
            case(source(&format!("{element} model=\"{}\"", folder.0.display())), &["cannot read model", "check the path"]),
            case(source(&format!("{element} model=\"{text}\" description={stays}")), &["text.onnx", "ONNX"]),
            case(source(&format!("{element} model=\"{empty}\" description={stays}")), &["empty.onnx", "ONNX"]),
            case(source(&format!("{element} model=\"{cut}\" description={stays}")), &["cut.onnx", "ONNX"]),
            case(source(&format!("{element} model={} description={stays}", tiny("unsupported.onnx"))), &["FancyOp", "unsupported.onnx"]),
        ]);
    }
    check(&[
        case(source(&detect("rectangle", "device=GPPU")), &["GPPU", "CPU"]),
        case(source(&detect("rectangle", "config=thread=2")), &["config", "no option `thread`", "threads"]),
        case(source(&detect("rectangle", "config=threads=none")), &["config", "`threads`: expected a number", "got `none`"]),
        case(source(&detect("rectangle", "device=CPU config=TPU.x=1")), &["`TPU.x`", "one of OPENVINO, ORT"]),
        case(source(&classify("color", "config=batch-size=4")), &["config", "separate properties"]),
        case(source(&detect("color", "")), &["color.onnx", "classification", "task = \"detection\""]),
        case(source(&classify("rectangle", "")), &["rectangle.onnx", "detection", "task = \"classification\""]),
    ]);
}

#[test]
fn bad_descriptions_are_errors() {
    let folder = Folder::new("descriptions");
    let rectangle = tiny("rectangle.onnx");
    let good = std::fs::read_to_string(tiny("rectangle.toml")).unwrap();
    let with = |name: &str, from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        let file = folder.write(name, good.replace(from, to));
        source(&format!("roidetect model={rectangle} description=\"{file}\""))
    };
    std::fs::copy(&rectangle, folder.0.join("alone.onnx")).unwrap();
    check(&[
        case(
            source(&format!("roidetect model=\"{}\"", folder.file("alone.onnx"))),
            &["no description", "alone.toml", "roiflow describe", "--decoder NAME"],
        ),
        case(source(&detect("rectangle", "description=/no/such.toml")), &["/no/such.toml", "No such file", "check the path"]),
        case(source(&detect("rectangle", "model-proc=/no/such.json")), &["/no/such.json", "No such file", "check the path"]),
        case(source(&detect("rectangle", "model-proc=a.json description=b.toml")), &["both `description` and `model-proc`"]),
        case(
            source(&format!("roidetect model={rectangle} model-proc=\"{}\"", folder.write("proc.json", "{}"))),
            &["classification", "proc.json"],
        ),
        case(with("layout.toml", "nhwc", "nchw"), &["layout.toml", "expected [N, C, H, W]", "got [1, 64, 64, 3]", "Correct `layout`"]),
        case(with("decoder.toml", "ultraface", "yolox"), &["decoder.toml", "yolox", "[1, 1, 6]"]),
        case(with("nodecoder.toml", "ultraface", "ultrafase"), &["nodecoder.toml", "ultrafase", "ultraface"]),
        case(with("key.toml", "resize =", "resice ="), &["key.toml", "resice", "resize"]),
        case(with("version.toml", "version = 1", "version = 7"), &["version.toml", "expected `version = 1`, got 7"]),
        case(with("labels.toml", "[\"rectangle\"]", "[\"a\", \"b\"]"), &["labels.toml", "expected 1 labels", "got 2"]),
        case(with("syntax.toml", "task = ", "task is "), &["syntax.toml", "line 3"]),
        case(with("task.toml", "\"detection\"", "\"dance\""), &["task.toml", "dance", "detection"]),
    ]);
}

#[test]
fn bad_labels_are_errors() {
    let folder = Folder::new("labels of wrong length");
    let three = folder.write("three.txt", "red\ngreen\nblue\n");
    check(&[
        case(source(&classify("color", &format!("labels-file=\"{three}\""))), &["expected 4 labels", "got 3"]),
        case(source(&classify("color", "labels=a,b,c,d,e")), &["expected 4 labels", "got 5"]),
        case(source(&classify("color", "labels-file=/no/such.txt")), &["/no/such.txt", "No such file", "one label per line"]),
    ]);
}

#[test]
fn bad_property_values_are_errors() {
    init();
    for (line, word) in [
        ("roidetect no-such-property=1", "no-such-property"),
        ("roidetect threshold=high", "threshold"),
        ("roidetect nireq=many", "nireq"),
        ("roipublish method=carrier-pigeon", "carrier-pigeon"),
        ("roipublish format=xml", "format"),
    ] {
        let error = gst::parse::launch(line).expect_err(line);
        assert!(error.to_string().contains(word), "{line}: {error}");
    }
}

#[test]
fn input_other_than_raw_video_is_an_error() {
    init();
    let pushed = |caps: &gst::Caps| {
        let pipeline = pipeline(&format!("appsrc name=source ! {} ! fakesink", detect("rectangle", "")));
        feed(&pipeline, caps, [gst::Buffer::with_size(64 * 48 * 3).unwrap()]);
        run(&pipeline).error.expect("an error")
    };
    let size = Size::new(64, 48);
    let said = pushed(&caps("Y41B", size));
    assert!(["Y41B", "NV12", "GRAY8", "`videoconvert`"].iter().all(|word| said.contains(word)), "{said}");
    let said = pushed(&gst::Caps::builder("image/jpeg").field("width", 64).field("height", 48).build());
    assert!(["raw video", "image/jpeg", "raw video"].iter().all(|word| said.contains(word)), "{said}");
    let said = pushed(&gst::Caps::builder("audio/x-raw").field("format", "S16LE").field("rate", 8000).field("channels", 1).build());
    assert!(["raw video", "audio/x-raw"].iter().all(|word| said.contains(word)), "{said}");
    let on_the_card = gst::Caps::builder("video/x-raw").features(["memory:DMABuf"]).field("format", "NV12").build();
    let said = pushed(&on_the_card);
    assert!(["system memory", "memory:DMABuf"].iter().all(|word| said.contains(word)), "{said}");

    let file = format!("filesrc location={} ! {} ! fakesink", tiny("README.md"), detect("rectangle", ""));
    check(&[case(file, &["raw video", "raw video"])]);
}

#[test]
fn missing_clips_and_clips_without_video_are_errors() {
    let folder = Folder::new("clips");
    let missing = folder.file("missing.mp4");
    let noise: Vec<u8> = (0..20_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let noise = folder.write("noise.mp4", noise);
    let tone = folder.file("tone.wav");
    let make = pipeline("audiotestsrc num-buffers=10 ! wavenc ! filesink name=file");
    make.by_name("file").unwrap().set_property("location", &tone);
    assert_eq!(run(&make).error, None);
    let from = |file: &str| format!("filesrc location=\"{file}\" ! decodebin ! videoconvert ! {} ! fakesink", detect("rectangle", ""));
    // GStreamer's own elements report a missing file or a file without media, before `roidetect` receives data.
    check(&[case(from(&missing), &["Resource not found"]), case(from(&noise), &["Could not determine type of stream"])]);
    // A stream without video causes a warning, and an error that `decodebin` may not post. So an application must watch for the warning.
    let tone = pipeline(&from(&tone));
    tone.set_state(gst::State::Playing).unwrap();
    let message = tone.bus().unwrap().timed_pop_filtered(TIMEOUT, &[gst::MessageType::Warning]).expect("a warning in time");
    let gst::MessageView::Warning(warning) = message.view() else { unreachable!("filtered") };
    assert!(warning.debug().unwrap().contains("failed delayed linking"), "{warning:?}");
    tone.set_state(gst::State::Null).unwrap();
}

#[test]
fn truncated_clip_yields_frames_before_the_end() {
    let folder = Folder::new("cut clip");
    for (name, muxer) in [("clip.mkv", "matroskamux"), ("clip.mp4", "mp4mux faststart=true")] {
        let whole = folder.file(name);
        make_clip(&whole, 60, muxer);
        let bytes = std::fs::read(&whole).unwrap();
        let cut = folder.write(&format!("cut {name}"), &bytes[..bytes.len() / 2]);
        let pipeline =
            pipeline(&format!("filesrc location=\"{cut}\" ! decodebin ! videoconvert ! {} ! fakesink name=sink", detect("rectangle", "")));
        let arrived = collect(&pipeline, "sink", "sink");
        // The pipeline must end with an error or EOS within the time limit.
        let ending = run(&pipeline);
        let arrived = arrived.lock().unwrap();
        assert!((10..50).contains(&arrived.len()), "{name}: {} frames, {ending:?}", arrived.len());
        assert!(arrived.iter().zip(0..).all(|(arrived, n)| arrived.results().unwrap().frame_number == n), "{name}");
        let n_found = arrived.iter().filter(|arrived| arrived.results().unwrap().detections.len() == 1).count();
        assert!(n_found >= arrived.len() - 2, "{name}: {n_found} of {}", arrived.len());
    }
}

#[test]
fn bad_destinations_are_errors() {
    let publish = |address: &str| source(&format!("{} ! roipublish address=\"{address}\"", detect("rectangle", "")));
    check(&[
        case(publish("/no such folder/results.jsonl"), &["/no such folder/results.jsonl", "No such file", "create the folder"]),
        case(publish(env!("CARGO_MANIFEST_DIR")), &[env!("CARGO_MANIFEST_DIR"), "is a directory"]),
    ]);
    let full = run(&pipeline(&publish("/dev/full")));
    assert_eq!(full.error, None, "a full disk does not stop the stream");
    assert!(full.warnings.iter().any(|warning| warning.contains("No space left")), "{:?}", full.warnings);
}
