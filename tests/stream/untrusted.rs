//! Untrusted files, with the real binary and on the bus: names with control characters, special files, oversized files, and descriptions
//! that refer to files elsewhere.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::cli::{Folder, command};
use crate::harness::{eventually, pipeline, run, tiny};

/// Escape, carriage return, a one-byte control sequence, a change of text direction, and a line break.
const EVIL: &str = "evil\u{1b}[2J\u{1b}]0;t\u{7}\r\u{9b}31m\u{202e}name";

fn hostile() -> String {
    format!("{}/tests/golden/outputs/hostile.onnx", env!("CARGO_MANIFEST_DIR"))
}

/// Runs the command with a time limit that reading an endless file would exceed.
fn roiflow(arguments: &[&str]) -> Output {
    let mut child = command().args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{arguments:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

#[track_caller]
fn check_clean(text: &str) {
    let is_obeyed =
        |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    assert!(!text.contains(is_obeyed), "{text:?}");
}

/// Runs the command and asserts that its output contains no control characters. Returns exit code and output.
#[track_caller]
fn clean(arguments: &[&str]) -> (Option<i32>, String) {
    let output = roiflow(arguments);
    let all = format!("{}{}", String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    check_clean(&all);
    (output.status.code(), all)
}

/// Returns the child processes of a process.
fn children(parent: u32) -> Vec<String> {
    let of_parent = |pid: &String| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.split_whitespace().eq(["PPid:", &parent.to_string()]))
    };
    let names = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).filter(of_parent).collect()
}

#[test]
fn child_killed_by_the_system_is_an_error_that_names_the_memory() {
    const O_NONBLOCK: i32 = 0o4000;
    let model = tiny("rectangle.onnx");
    // The pipe is full, so the child waits until it is killed.
    let (_reader, writer) = std::io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut filler = std::fs::OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(path).unwrap();
    while filler.write(&[b' '; 4096]).is_ok() {}
    drop(filler);
    let parent = command().args(["inspect", &model]).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = Vec::new();
    eventually("the child runs", || {
        child = children(parent.id());
        !child.is_empty()
    });
    assert!(Command::new("sh").args(["-c", &format!("kill -KILL {}", child[0])]).status().unwrap().success());
    let ended = parent.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains(&model) && said.contains("was killed (signal 9)") && said.contains("memory"), "{said}");
}

#[test]
fn names_in_files_are_escaped_on_terminal() {
    let folder = Folder::new("hostile-names");
    let toml = |text: &str| toml_text(text);
    let description = |name: &str, decoder: &str, label: &str| {
        let text = format!(
            "version = 1\ntask = \"detection\"\nname = {evil}\n[model]\nabout = {evil}\nauthor = {evil}\norigin = {evil}\n[input]\ncolor = \"rgb\"\nlayout = \"nchw\"\n[output]\ndecoder = {}\nlabels = [{}]\n",
            toml(decoder),
            toml(label),
            evil = toml(EVIL),
        );
        let path = folder.file(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let good = description(&format!("{EVIL}.toml"), "yolov10", EVIL);
    let (code, said) = clean(&["inspect", &hostile(), "--description", &good]);
    assert!(code == Some(0) && said.contains("evil\\u{1b}[2J"), "{said}");
    clean(&["inspect", &hostile()]);
    clean(&["describe", &hostile(), "--out", "-", "--decoder", "yolov10"]);
    clean(&["describe", &hostile(), "--out", "-", "--decoder", EVIL]);
    let labels = folder.file("labels.txt");
    std::fs::write(&labels, format!("{EVIL}\n")).unwrap();
    clean(&["describe", &hostile(), "--out", "-", "--decoder", "yolov10", "--labels-file", &labels]);
    clean(&["bench", &hostile(), "--device", "CPU", "--seconds", "1"]);
    clean(&["inspect", &hostile(), "--description", &description("decoder.toml", EVIL, "a")]);
    let run = |description: &str, model: &str| {
        let pipeline = folder.file("pipeline.toml");
        let text = format!(
            "# {}\nversion = 1\nname = {evil}\ndescription = {evil}\n[parameters.a]\ntype = \"string\"\nhelp = {evil}\ndefault = {evil}\n[pipeline]\ngraph = \"{{source}} ! roidetect name=detect device=CPU model={{model}} description={{description}} ! {{json}} ! roiclassify model={}/assets/tiny/color.onnx object-class={{a}} ! {{video}}\"\n[parameters.model]\ntype = \"path\"\n[parameters.description]\ntype = \"path\"\n",
            EVIL.replace(['\r', '\u{1b}', '\u{7}'], ""),
            env!("CARGO_MANIFEST_DIR"),
            evil = toml(EVIL),
        );
        std::fs::write(&pipeline, text).unwrap();
        clean(&["inspect", &pipeline]);
        let set = [format!("model={model}"), format!("description={description}")];
        clean(&["--log", "info", "run", &pipeline, "-q", "--input", "test:2", "--set", &set[0], "--set", &set[1]])
    };
    run(&good, &hostile());
    run(&description("decoder.toml", EVIL, "a"), &hostile());
    run(&good, &folder.file(EVIL));
    run(&folder.file(EVIL), &hostile());
    let evil = folder.file(EVIL);
    for arguments in [
        &["run", &evil, "--input", "test:2"][..],
        &["inspect", &evil],
        &["bench", &evil],
        &["describe", &evil],
        &["run", EVIL],
        &["--log", EVIL, "devices"],
        &["run", "pipelines/detect.toml", "--input", &evil, "--set", "model=a"],
        &["run", "pipelines/detect.toml", "--input", "test:1", "--set", EVIL],
        &["run", "pipelines/detect.toml", "--input", "test:1", "--set", &format!("{EVIL}=1")],
    ] {
        let (code, _) = clean(arguments);
        assert!(matches!(code, Some(1 | 2)), "{arguments:?}: {code:?}");
    }
}

/// Returns a string in TOML syntax with all possible escapes.
fn toml_text(text: &str) -> String {
    let letters: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\U{:08X}", c as u32) }).collect();
    format!("\"{letters}\"")
}

/// `gst-launch-1.0` prints messages without escaping.
#[test]
fn names_in_bus_messages_are_escaped() {
    let folder = Folder::new("hostile-bus");
    let model = folder.file(&EVIL.replace(']', ""));
    std::fs::copy(hostile(), &model).unwrap();
    let source = "videotestsrc num-buffers=2 ! video/x-raw,format=RGB,width=64,height=48";
    for (path, description) in [(folder.file("none\u{1b}[2J"), None), (model.clone(), None), (model, Some("decoder = \"tf-ssd\""))] {
        let pipeline = pipeline(&format!("{source} ! roidetect name=detect ! fakesink"));
        let detect = gstreamer::prelude::GstBinExt::by_name(&pipeline, "detect").unwrap();
        gstreamer::prelude::ObjectExt::set_property(&detect, "model", &path);
        if let Some(decoder) = description {
            let text = format!("version = 1\ntask = \"detection\"\n[input]\ncolor = \"rgb\"\nlayout = \"nchw\"\n[output]\n{decoder}\n");
            let file = folder.file("\u{9b}.toml");
            std::fs::write(&file, text).unwrap();
            gstreamer::prelude::ObjectExt::set_property(&detect, "description", &file);
        }
        let said = run(&pipeline).error.expect("an error");
        check_clean(&said);
        assert!(said.contains("\\u{"), "{said}");
    }
}

#[test]
fn special_files_are_refused_at_once() {
    let folder = Folder::new("special-files");
    let fifo = folder.file("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let link = folder.file("link");
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    let rectangle = format!("{}/assets/tiny/rectangle.onnx", env!("CARGO_MANIFEST_DIR"));
    let with_labels = |file: &str| {
        let text = std::fs::read_to_string(rectangle.replace(".onnx", ".toml")).unwrap();
        let path = folder.file("labels.toml");
        std::fs::write(&path, text.replace("labels = [\"rectangle\"]", &format!("labels-file = \"{file}\""))).unwrap();
        path
    };
    let colors = folder.file("colors.toml");
    let labeled = with_labels("fifo");
    let graph = folder.file("graph.toml");
    for special in [&*fifo, &*link, "/dev/zero", env!("CARGO_MANIFEST_DIR")] {
        let property = |name: &str, file: &str| {
            let text = format!(
                "version = 1\nname = \"x\"\ndescription = \"x\"\n[pipeline]\ngraph = \"{{source}} ! roidetect model={rectangle} {name}={file} ! {{video}}\"\n"
            );
            std::fs::write(&graph, text).unwrap();
        };
        let refused = |arguments: &[&str]| {
            let output = roiflow(arguments);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
            assert!(said.contains("regular file") && said.contains(special), "{arguments:?}: {said}");
        };
        refused(&["run", special, "--input", "test:2"]);
        refused(&["inspect", special]);
        refused(&["bench", special]);
        refused(&["describe", special]);
        refused(&["inspect", &rectangle, "--description", special]);
        refused(&["inspect", &rectangle, "--model-proc", special]);
        refused(&["describe", &rectangle, "--out", "-", "--model-proc", special]);
        refused(&["describe", &rectangle, "--out", "-", "--decoder", "ultraface", "--labels-file", special]);
        refused(&["run", &colors, "--input", "test:2", "--set", &format!("detector={special}")]);
        for name in ["labels-file", "description", "model-proc"] {
            property(name, special);
            refused(&["run", &graph, "-q", "--input", "test:2"]);
        }
    }
    let output = roiflow(&["inspect", &rectangle, "--description", &labeled]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("got a FIFO"), "{said}");
}

#[test]
fn files_above_size_limit_are_refused() {
    let folder = Folder::new("large-files");
    let rectangle = format!("{}/assets/tiny/rectangle.onnx", env!("CARGO_MANIFEST_DIR"));
    let large = |name: &str, n_bytes: u64| {
        let path = folder.file(name);
        // The file is sparse, so it needs no disk space.
        std::fs::File::create(&path).unwrap().set_len(n_bytes).unwrap();
        path
    };
    let description = large("large.toml", (1 << 20) + 1);
    let labels = large("labels.txt", (16 << 20) + 1);
    let (model, ir) = (large("model.onnx", 5 << 30), large("model.xml", 1 << 30));
    for (arguments, limit) in [
        (&["run", &description, "--input", "test:2"][..], "at most 1048576 bytes, got 1048577"),
        (&["inspect", &rectangle, "--description", &description], "at most 1048576 bytes"),
        (&["describe", &rectangle, "--out", "-", "--decoder", "ultraface", "--labels-file", &labels], "at most 16777216 bytes"),
        (&["inspect", &model], "at most 4294967296 bytes, got 5368709120"),
        (&["inspect", &ir], "at most 268435456 bytes"),
    ] {
        let output = roiflow(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(limit), "{arguments:?}: {said}");
    }
}

#[test]
fn files_outside_description_folder_need_permission() {
    let folder = Folder::new("outside-files");
    let rectangle = format!("{}/assets/tiny/rectangle.onnx", env!("CARGO_MANIFEST_DIR"));
    std::fs::write(folder.file("names.txt"), "a name\n").unwrap();
    let inner = folder.file("models");
    std::fs::create_dir_all(&inner).unwrap();
    std::os::unix::fs::symlink(folder.file("names.txt"), Path::new(&inner).join("link.txt")).unwrap();
    let text = std::fs::read_to_string(rectangle.replace(".onnx", ".toml")).unwrap();
    let absolute = folder.file("names.txt");
    for file in ["../names.txt", "link.txt", &absolute] {
        let description = format!("{inner}/model.toml");
        let replaced = text.replace("labels = [\"rectangle\"]", &format!("labels-file = \"{file}\""));
        assert!(replaced.contains(file), "{text}");
        std::fs::write(&description, replaced).unwrap();
        let inspect = ["inspect", &rectangle, "--description", &description];
        let output = roiflow(&inspect);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1), "{said}");
        assert!(
            ["labels-file", file, "--allow-outside-files", "ROIFLOW_ALLOW_OUTSIDE_FILES"].iter().all(|part| said.contains(part)),
            "{said}"
        );
        let allowed = roiflow(&[&inspect[..], &["--allow-outside-files"]].concat());
        assert!(allowed.status.success() && String::from_utf8_lossy(&allowed.stdout).contains("1 labels"));
        let by_variable = command().args(inspect).env("ROIFLOW_ALLOW_OUTSIDE_FILES", "1").output().unwrap();
        assert!(by_variable.status.success());
        let not_by_variable = command().args(inspect).env("ROIFLOW_ALLOW_OUTSIDE_FILES", "0").output().unwrap();
        assert_eq!(not_by_variable.status.code(), Some(1));
    }
    // A file given by the user is always allowed.
    let source = "videotestsrc num-buffers=2 ! video/x-raw,format=RGB,width=64,height=48";
    assert_eq!(run(&pipeline(&format!("{source} ! roidetect model={rectangle} labels-file={absolute} ! fakesink"))).error, None);
}

#[test]
fn pipeline_descriptions_are_checked_before_use() {
    let folder = Folder::new("bad-pipelines");
    let good = "version = 1\nname = \"x\"\ndescription = \"x\"\n[parameters.a]\ntype = \"string\"\ndefault = \"b\"\n[pipeline]\ngraph = \"{source} ! {video}\"\n";
    for (from, to, parts) in [
        ("version = 1", "version = 99", &["expected `version = 1`, got 99"][..]),
        ("version = 1\n", "", &["version"]),
        ("name = \"x\"", "name = \"\"", &["`name`", "at least one letter"]),
        ("[parameters.a]", "[parameters.\"a b\"]", &["letters, digits", "`a b`"]),
        ("[parameters.a]", "[parameters.\"\"]", &["letters, digits", "``"]),
        ("[parameters.a]", "[parameters.\"a\\u001b[2J\"]", &["letters, digits", "\\u{1b}"]),
        ("[parameters.a]", "[parameters.source]", &["[parameters.source]", "another name"]),
        ("default =", "defualt =", &["`defualt`", "did you mean `default`?"]),
        ("\"string\"", "\"sting\"", &["`sting`", "did you mean `string`?"]),
        ("graph =", "grpah =", &["`grpah`", "did you mean `graph`?"]),
        ("default = \"b\"", "default = 3", &["[parameters.a] default", "type string, got integer"]),
    ] {
        let path = folder.file("bad.toml");
        assert!(good.contains(from), "{from}");
        std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let (code, said) = clean(&["run", &path, "--input", "test:1"]);
        assert!(code == Some(2) && parts.iter().all(|part| said.contains(part)), "{to}: {said}");
    }
}
