//! `roiflow run` with models instead of a pipeline description.

use crate::cli::{Folder, check_fails, lines, roiflow};
use crate::harness::tiny;

#[test]
fn models_run_without_pipeline_description() {
    let folder = Folder::new("models");
    folder.picture("red.png", 64, 64, [255, 0, 0]);
    let (json, red) = (folder.file("o.jsonl"), folder.file("red.png"));
    let (detector, color, brightness) = (tiny("rectangle.onnx"), tiny("color.onnx"), tiny("brightness.onnx"));
    let models = ["--model", &detector, "--classify", &color, "--classify", &brightness, "--device", "CPU"];
    let output = roiflow(&[&["run", "--track", "--input", &red, "--json", &json], &models[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let object = &lines(&json)[0]["objects"][0];
    assert_eq!((&object["id"], &object["roi_type"], &object["color"]["label"]), (&1.into(), &"rectangle".into(), &"red".into()));
    assert!(object["brightness"]["value"].is_number(), "{object}");

    let output = roiflow(&["run", "--classify", &color, "--device", "CPU", "--input", &red, "--json", &json]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = &lines(&json)[0];
    assert!(line["classifications"]["color"]["label"].is_string() && line["objects"].as_array().unwrap().is_empty(), "{line}");
}

#[test]
fn run_without_outputs_suggests_output_options() {
    let output = roiflow(&["run", "--model", &tiny("rectangle.onnx"), "--device", "CPU", "--input", "test:2"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("results  not written") && said.contains("--json FILE"), "{said}");
}

#[test]
fn a_classifier_takes_only_objects_with_its_labels() {
    let folder = Folder::new("labels");
    folder.picture("red.png", 64, 64, [255, 0, 0]);
    let (json, red) = (folder.file("o.jsonl"), folder.file("red.png"));
    let (detector, color, brightness) = (tiny("rectangle.onnx"), tiny("color.onnx"), tiny("brightness.onnx"));
    let run = |labels: &str| {
        let color = format!("{color}@{labels}");
        let models = ["--model", &detector, "--classify", &color, "--classify", &brightness, "--device", "CPU"];
        roiflow(&[&["run", "--input", &red, "--json", &json], &models[..]].concat())
    };
    let output = run("rectangle");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let object = &lines(&json)[0]["objects"][0];
    assert!(object["color"]["label"] == "red" && object["brightness"]["value"].is_number(), "{object}");
    for labels in ["rectangel", "rectangle,car"] {
        let said = run(labels);
        let said = (said.status.code(), String::from_utf8_lossy(&said.stderr).into_owned());
        let unknown = labels.split(',').next_back().unwrap();
        assert!(
            said.0 == Some(2)
                && said.1.contains(&format!("got `{unknown}`"))
                && said.1.contains("The detector gives rectangle")
                && !said.1.contains("?."),
            "{said:?}"
        );
    }
    let alone = format!("{color}@car");
    check_fails(&["run", "--classify", &alone, "--input", &red], 2, &["--model FILE"]);
    check_fails(&["run", "--model", &detector, "--classify", &format!("{color}@"), "--input", &red], 2, &["MODEL@LABEL"]);
}

/// The detector finds one `car` of confidence 0.9 in each frame.
#[test]
fn options_select_classes_and_confidence() {
    let folder = Folder::new("classes");
    folder.picture("red.png", 64, 64, [255, 0, 0]);
    let (json, red, model) = (folder.file("o.jsonl"), folder.file("red.png"), tiny("ultralytics.onnx"));
    let (of_model, of_pipeline) = (["run", "--model", &model], ["run", "detect", "--set", &format!("model={model}")].map(str::to_owned));
    let of_pipeline = of_pipeline.each_ref().map(String::as_str);
    for command in [&of_model[..], &of_pipeline[..]] {
        for (options, n_objects) in [
            (&["--classes", "person,car"][..], 1),
            (&["--classes", "person"], 0),
            (&["--drop-classes", "car"], 0),
            (&["--threshold", "0.5"], 1),
            (&["--threshold", "0.95"], 0),
        ] {
            let output = roiflow(&[command, &["--device", "CPU", "--input", &red, "--json", &json], options].concat());
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(lines(&json)[0]["objects"].as_array().unwrap().len(), n_objects, "{command:?} {options:?}");
        }
    }
    let color = tiny("color.onnx");
    check_fails(
        &["run", "--model", &model, "--device", "CPU", "--input", &red, "--classes", "cat"],
        1,
        &["no label `cat`", "did you mean `car`"],
    );
    check_fails(&["run", "--model", &model, "--input", &red, "--threshold", "80"], 2, &["--threshold", "from 0 to 1", "80"]);
    check_fails(&["run", "--classify", &color, "--input", &red, "--classes", "red"], 2, &["--classes", "--model FILE"]);
    check_fails(&["run", &folder.file("colors.toml"), "--input", &red, "--classes", "red"], 2, &["--classes", "the parameter `classes`"]);
}

/// The detector finds one `car` in each frame.
#[test]
fn lines_have_own_fields_and_are_filtered() {
    let folder = Folder::new("own fields");
    let (json, model) = (folder.file("o.jsonl"), tiny("ultralytics.onnx"));
    let run = |command: &[&str], options: &[&str]| {
        let output = roiflow(&[command, &["--device", "CPU", "--input", "test:7", "--json", &json], options].concat());
        assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
        lines(&json)
    };
    let of_model = ["run", "--model", &*model];
    let frames = |lines: &[serde_json::Value]| lines.iter().map(|line| line["frame"].as_u64().unwrap()).collect::<Vec<_>>();
    let n_objects = |lines: &[serde_json::Value]| lines.iter().map(|line| line["objects"].as_array().unwrap().len()).sum::<usize>();
    let seen = run(&of_model, &["--tag", "site=gate", "--tag", "lane=3", "--tag", "id=\"007\"", "--only-labels", "person,car"]);
    assert_eq!((seen[0]["tags"].clone(), n_objects(&seen)), (serde_json::json!({"site": "gate", "lane": 3, "id": "007"}), 7));
    assert_eq!(n_objects(&run(&of_model, &["--only-labels", "person"])), 0);
    // Frames of the test pattern are 1/30 s apart.
    assert_eq!(frames(&run(&of_model, &["--max-rate", "10"])), [0, 3, 6]);
    assert_eq!(frames(&run(&of_model, &["--only-changes"])), [0]);
    assert!(run(&of_model, &["--only-events"]).is_empty());

    let description = folder.file("own.toml");
    let text = format!(
        "version = 1\nname = \"own\"\ndescription = \"Own fields.\"\n[parameters.site]\ntype = \"string\"\ndefault = \"none\"\n\
         [parameters.device]\ntype = \"string\"\ndefault = \"CPU\"\n\
         [publish]\ntags = {{ site = \"{{site}}\", lane = 3 }}\nlabels = \"car\"\nmax-rate = 10\n\
         [pipeline]\ngraph = \"{{source}} ! roidetect model={model} device={{device}} ! {{json}} ! {{video}}\"\n"
    );
    std::fs::write(&description, &text).unwrap();
    let seen = run(&["run", &description], &["--set", "site=gate", "--tag", "lane=4", "--max-rate", "5"]);
    assert_eq!((seen[0]["tags"].clone(), frames(&seen)), (serde_json::json!({"site": "gate", "lane": 4}), vec![0, 6]));
    assert_eq!(frames(&run(&["run", &description], &[])), [0, 3, 6]);
    for (from, to, parts) in
        [("{site}", "{sit}", ["[publish] uses `{sit}`", "did you mean `site`"]), ("max-rate", "max-rates", ["max-rates", "max-rate"])]
    {
        std::fs::write(&description, text.replace(from, to)).unwrap();
        check_fails(&["run", &description, "--input", "test:2"], 2, &parts);
    }
    check_fails(&["run", "--model", &model, "--input", "test:2", "--tag", "a=1"], 2, &["--tag", "--json or --publish"]);
    check_fails(&["run", "--model", &model, "--input", "test:2", "--json", &json, "--tag", "a"], 2, &["--tag", "NAME=VALUE"]);
    check_fails(&["run", "--model", &model, "--input", "test:2", "--json", &json, "--max-rate", "0"], 2, &["--max-rate", "above 0"]);
}

#[test]
fn a_run_ends_with_a_command_that_shows_the_results() {
    let folder = Folder::new("next command");
    let (model, json) = (tiny("rectangle.onnx"), folder.file("it's {stream}.jsonl"));
    let output = roiflow(&["run", "--model", &model, "--device", "CPU", "--input", "test:2", "--name", "door", "--json", &json]);
    let said = String::from_utf8_lossy(&output.stderr);
    let next = said.lines().find_map(|line| line.trim().strip_prefix("next  ")).unwrap_or_else(|| panic!("{said}"));
    let shown = std::process::Command::new("sh").args(["-c", next]).output().unwrap();
    let line: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap_or_else(|error| panic!("{next}: {error}"));
    assert_eq!(line["frame"], 0, "{line}");
}

#[test]
fn pipeline_and_model_arguments_exclude_each_other() {
    let folder = Folder::new("both");
    let (pipeline, detector) = (folder.file("colors.toml"), tiny("rectangle.onnx"));
    check_fails(&["run", &pipeline, "--model", &detector, "--input", "test:2"], 2, &["--model", "PIPELINE"]);
    check_fails(&["run", "--input", "test:2"], 2, &["--model FILE", "--classify FILE", "PIPELINE"]);
    check_fails(&["run", "--classify", &detector, "--track", "--input", "test:2"], 2, &["--model"]);
    check_fails(&["run", "--model", &detector, "--set", "thing=1", "--input", "test:2"], 2, &["no parameter `thing`", "model-description"]);
    check_fails(&["run", "--model", &tiny("color.onnx"), "--input", "test:2"], 1, &["`task = \"detection\"`", "as a classifier instead"]);
    check_fails(&["run", "--model", "nowhere.onnx", "--input", "test:2"], 1, &["nowhere.onnx"]);
}

#[test]
fn documented_options_and_commands_exist() {
    let page = include_str!("../../docs/command-line.md");
    let help = |arguments: &[&str]| String::from_utf8(roiflow(arguments).stdout).unwrap();
    let (commands, options) = (help(&["--help"]), help(&["run", "--help"]));
    let first_cells = page.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|line| line.split(" |").next());
    let (mut n_commands, mut n_options) = (0, 0);
    for code in first_cells.flat_map(|cell| cell.split('`').filter(|code| code.starts_with("--") || code.starts_with("roiflow "))) {
        let word = code.trim_start_matches("roiflow ").split(' ').next().unwrap();
        if code.starts_with("--") {
            n_options += 1;
            assert!(options.contains(word), "{word}: {options}");
        } else {
            n_commands += 1;
            assert!(commands.contains(&format!("  {word}")), "{word}: {commands}");
        }
    }
    assert!(n_commands >= 6 && n_options >= 10, "{n_commands} commands, {n_options} options");
}
