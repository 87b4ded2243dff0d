//! Implausible model outputs and property values are reported once by the real binary, with a remedy.

use std::process::Output;

use crate::cli::{Folder, command};

fn golden(name: &str) -> String {
    format!("{}/tests/golden/outputs/{name}.onnx", env!("CARGO_MANIFEST_DIR"))
}

fn tiny(name: &str) -> String {
    format!("{}/assets/tiny/{name}.onnx", env!("CARGO_MANIFEST_DIR"))
}

/// Runs these elements on four frames. Returns standard error, and the objects of the first frame.
fn run(folder: &Folder, elements: &str) -> (Output, String, Vec<serde_json::Value>) {
    let (pipeline, json) = (folder.file("graph.toml"), folder.file("results.jsonl"));
    let elements = elements.replace('"', "\\\"");
    let text = format!(
        "version = 1\nname = \"graph\"\ndescription = \"A graph.\"\n[pipeline]\ngraph = \"{{source}} ! {elements} ! {{json}} ! {{video}}\"\n"
    );
    std::fs::write(&pipeline, text).unwrap();
    let _removed = std::fs::remove_file(&json);
    let output = command().args(["run", &pipeline, "-q", "--input", "test:4", "--json", &json]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let first = std::fs::read_to_string(&json).ok().and_then(|text| serde_json::from_str::<serde_json::Value>(text.lines().next()?).ok());
    let objects = first.and_then(|line| Some(line["objects"].as_array()?.clone())).unwrap_or_default();
    (output, said, objects)
}

/// Returns the text of a detector's description.
fn detector(decoder: &str, more: &str) -> String {
    format!(
        "version = 1\ntask = \"detection\"\n[input]\ncolor = \"rgb\"\nlayout = \"nchw\"\nresize = \"stretch\"\n[output]\ndecoder = \"{decoder}\"\n{more}\n"
    )
}

fn described(folder: &Folder, model: &str, description: &str) -> String {
    let path = folder.file("model.toml");
    std::fs::write(&path, description).unwrap();
    format!("roidetect name=detect device=CPU model={} description=\"{path}\"", golden(model))
}

fn place(object: &serde_json::Value) -> [u64; 4] {
    ["x", "y", "w", "h"].map(|key| object[key].as_u64().unwrap())
}

#[test]
fn implausible_boxes_are_warned_about_once_with_key() {
    let folder = Folder::new("implausible");
    for (model, decoder, key, object) in [
        ("yolov5_normalized", "yolov5", "coordinates = \"normalized\"", [160, 180, 320, 120]),
        ("yolov8_normalized", "yolov8", "coordinates = \"normalized\"", [160, 180, 320, 120]),
        ("yolov5_logits", "yolov5", "activation = \"sigmoid\"", [160, 180, 320, 120]),
        ("ssd_pixels", "ssd", "coordinates = \"pixels\"", [80, 120, 320, 240]),
    ] {
        let (output, said, _) = run(&folder, &described(&folder, model, &detector(decoder, "")));
        assert_eq!((output.status.code(), said.matches("warning:").count()), (Some(0), 1), "{model}: {said}");
        for part in [model, decoder, key, "[output]", "model.toml"] {
            assert!(said.contains(part), "{model}: expected `{part}` in {said}");
        }
        let (output, said, objects) = run(&folder, &described(&folder, model, &detector(decoder, key)));
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{model} with {key}");
        assert_eq!(objects.iter().map(place).collect::<Vec<_>>(), [object], "{model} with {key}");
    }
    // Correct descriptions cause no warning.
    let (_, said, objects) = run(&folder, &described(&folder, "yolov5_pixels", &detector("yolov5", "")));
    assert_eq!((said.as_str(), objects.len()), ("", 1));
    let (_, said, objects) = run(&folder, &described(&folder, "ultraface", &detector("ultraface", "")));
    assert!(said.is_empty() && !objects.is_empty(), "{said}");
}

#[test]
fn model_with_wrong_output_ports_is_an_error() {
    let folder = Folder::new("by-ports");
    let by_ports = |model: &str| run(&folder, &format!("roidetect name=detect device=CPU model={}", golden(model)));
    let (output, said, _) = by_ports("ultraface");
    assert_eq!((output.status.code(), said.as_str()), (Some(0), ""));
    let (output, said, objects) = by_ports("ultraface_offsets");
    assert!(output.status.code() == Some(1) && objects.is_empty(), "{said}");
    assert!(["`ultraface`", "priors", "--decoder", "from the model's ports alone"].iter().all(|part| said.contains(part)), "{said}");
    let (output, said, _) = by_ports("class_logits");
    assert!(output.status.code() == Some(1) && said.contains("the model's outputs match no detector decoder"), "{said}");
    // With an explicit description, the contradiction is a warning.
    let (output, said, _) = run(&folder, &described(&folder, "ultraface_offsets", &detector("ultraface", "")));
    assert!(output.status.code() == Some(0) && said.matches("warning:").count() == 1 && said.contains("priors"), "{said}");
    let (output, said, _) = run(&folder, &described(&folder, "blazeface", &detector("yolov5", "")));
    assert!(output.status.code() == Some(0) && said.matches("warning:").count() == 1 && said.contains("`yolov5`"), "{said}");
}

#[test]
fn implausible_classifier_values_are_warned_about_once() {
    let folder = Folder::new("implausible-classes");
    let classify = |model: &str, activation: &str| {
        let path = folder.file("classes.toml");
        let text = format!(
            "version = 1\ntask = \"classification\"\n[input]\ncolor = \"rgb\"\nlayout = \"nchw\"\n[output]\ndecoder = \"classes\"\nactivation = \"{activation}\"\n"
        );
        std::fs::write(&path, text).unwrap();
        let (output, said, _) =
            run(&folder, &format!("roiclassify device=CPU inference-region=full-frame model={} description=\"{path}\"", golden(model)));
        assert_eq!(output.status.code(), Some(0), "{said}");
        said
    };
    for (model, wrong, right) in [("class_logits", "none", "softmax"), ("class_probabilities", "softmax", "none")] {
        let said = classify(model, wrong);
        assert!(said.matches("warning:").count() == 1 && said.contains(&format!("`activation = \"{right}\"`")), "{model}: {said}");
        assert_eq!(classify(model, right), "", "{model}");
    }
    let said = classify("class_nan", "none");
    assert!(said.matches("warning:").count() == 1 && said.contains("not finite"), "{said}");
}

#[test]
fn unknown_object_class_is_warned_about_once() {
    let folder = Folder::new("classes");
    let detect = format!("roidetect name=detect device=CPU model={}", tiny("rectangle"));
    let color = format!("roiclassify device=CPU model={}", tiny("color"));
    let warned = |elements: &str, parts: &[&str]| {
        let (output, said, _) = run(&folder, elements);
        assert_eq!(
            (output.status.code(), said.matches("warning:").count()),
            (Some(0), usize::from(!parts.is_empty())),
            "{elements}: {said}"
        );
        assert!(parts.iter().all(|part| said.contains(part)), "{elements}: {said}");
    };
    let hint = ["`rectangles` (did you mean `rectangle`?)", "`detect` produces rectangle"];
    warned(&format!("{detect} ! {color} object-class=rectangles"), &hint);
    warned(&format!("{detect} ! queue ! tee ! {color} object-class=car,rectangles"), &hint);
    warned(&format!("{detect} ! roitrack object-class=rectangles"), &hint);
    let inner = format!("roidetect device=CPU model={} inference-region=roi-list", tiny("stripes"));
    warned(&format!("{detect} ! {inner} object-class=rectangles"), &hint);
    // There is no suggestion if no label is similar. Labels of a second detector are also known.
    warned(&format!("{detect} ! {color} object-class=giraffe"), &["`giraffe`: `detect` produces rectangle"]);
    warned(&format!("{detect} ! {inner} ! {color} object-class=cell,rectangle"), &[]);
    // A list may contain labels that this model does not have, but not a label that looks like a typo.
    warned(&format!("{detect} ! {color} object-class=rectangle,rectangles,giraffe"), &[]);
    warned(&format!("{detect} ! {inner} ! {color} object-class=rectangle,cel"), &["`cel` (did you mean `cell`?)"]);
    // There is no warning without object-class, or if labels upstream are unknown.
    warned(&format!("{detect} ! {color}"), &[]);
    let unlabeled = described(&folder, "yolov5_pixels", &detector("yolov5", "")).replace("name=detect ", "");
    warned(&format!("{unlabeled} ! {color} object-class=rectangles"), &[]);
    warned(&format!("{detect} ! {unlabeled} ! {color} object-class=rectangles"), &[]);
    warned(&format!("{color} object-class=rectangles"), &[]);
}

/// The elements are in bins, so the search for detectors must pass ghost pads.
#[test]
fn labels_are_found_through_bins() {
    let line = format!(
        "videotestsrc num-buffers=3 ! video/x-raw,format=RGB,width=64,height=48 ! bin.( name=one roidetect name=detect model={} ! queue ) ! bin.( name=two queue ! roiclassify name=classify model={} object-class=rectangles ) ! fakesink",
        tiny("rectangle"),
        tiny("color")
    );
    let ending = crate::harness::run(&crate::harness::pipeline(&line));
    assert_eq!(ending.error, None);
    assert!(ending.warnings.iter().any(|warning| warning.contains("did you mean `rectangle`?")), "{:?}", ending.warnings);
}
