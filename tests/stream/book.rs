//! Runs the commands in the pages of docs/ with the real binary: each block marked `sh`, in page order.
//!
//! Blocks marked `console` are not run: they need a network, a camera, a window or an installation. The comment `<!-- needs demo -->`
//! before a block says that it needs the models of `make demo`. Each page runs in a separate folder. The folder looks like a clone after
//! `make demo`. Files that the pages name are replaced by tiny models and clips.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cli::Folder;
use crate::harness::{built_plugin, pipeline, run, tiny};

/// A block of commands, the number of its first line, and whether it needs the demo.
struct Block {
    text: String,
    line: usize,
    needs_demo: bool,
}

fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut current): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    let (mut is_in_other, mut needs_demo) = (false, false);
    for (line, number) in page.lines().zip(1..) {
        match (&mut current, line.trim_end()) {
            (Some(_), "```") => blocks.extend(current.take()),
            (Some(block), line) => block.text += &format!("{line}\n"),
            (None, "```sh") if !is_in_other => current = Some(Block { text: String::new(), line: number + 1, needs_demo }),
            (None, line) if line.starts_with("```") => is_in_other = !is_in_other,
            (None, _) => {}
        }
        needs_demo = if line.is_empty() { needs_demo } else { line == "<!-- needs demo -->" };
    }
    blocks
}

/// Finds the TOML files that a page asks the reader to save. The page names such a file by "Save it as `NAME`", or by `name = "NAME"` in a
/// pipeline description.
fn pipelines(page: &str) -> Vec<(String, String)> {
    let texts = page.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(text, _)| text);
    let named = texts.filter(|text| text.contains("[pipeline]")).filter_map(|text| {
        let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))?;
        Some((format!("{name}.toml"), text.to_owned()))
    });
    named.collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Creates a folder that looks like a clone and contains the files that pages name.
fn clone(page: &str, name: &str) -> Folder {
    let folder = Folder::new(&format!("book-{name}"));
    let link = |to: PathBuf, from: &str| std::os::unix::fs::symlink(to, folder.file(from)).unwrap();
    for name in ["assets", "pipelines", "examples", "include"] {
        link(root().join(name), name);
    }
    for name in ["bin", "out", "target", "target/gst", "photos"] {
        std::fs::create_dir_all(folder.file(name)).unwrap();
    }
    link(env!("CARGO_BIN_EXE_roiflow").into(), "bin/roiflow");
    link(built_plugin(), "target/gst/libgstroiflow.so");
    for (model, name) in
        [("ultralytics", "yolo11n"), ("rectangle", "detector"), ("color", "color"), ("rectangle", "face"), ("color", "gender")]
    {
        std::fs::copy(tiny(&format!("{model}.onnx")), folder.file(&format!("{name}.onnx"))).unwrap();
        if let Ok(description) = std::fs::read_to_string(tiny(&format!("{model}.toml"))) {
            std::fs::write(folder.file(&format!("{name}.toml")), description).unwrap();
        }
    }
    let clip = folder.file("video.mp4");
    let make = format!(
        "videotestsrc num-buffers=20 ! video/x-raw,width=320,height=240 ! x264enc speed-preset=ultrafast ! mp4mux ! filesink location=\"{clip}\""
    );
    assert_eq!(run(&pipeline(&make)).error, None);
    for name in ["door.mp4", "gate.mp4", "clip.mp4"] {
        std::fs::copy(&clip, folder.file(name)).unwrap();
    }
    folder.picture("photos/red.png", 64, 64, [255, 0, 0]);
    for (name, text) in pipelines(page) {
        std::fs::write(folder.file(&name), text).unwrap();
    }
    folder
}

fn shell(folder: &Folder, text: &str) -> Command {
    let mut command = Command::new("bash");
    let path = format!("{}:{}", folder.file("bin"), std::env::var("PATH").unwrap());
    command.args(["-euo", "pipefail", "-c", text]).current_dir(folder.file("")).stdin(Stdio::null());
    command.env("PATH", path).env("ROIFLOW_CACHE_DIR", "").env("GST_REGISTRY", folder.file("registry"));
    command
}

/// Runs the blocks of a page.
fn check_page(name: &str) {
    let page = std::fs::read_to_string(root().join("docs").join(name)).unwrap();
    let blocks = blocks(&page);
    assert!(!blocks.is_empty(), "docs/{name} has no block marked `sh`");
    let folder = clone(&page, &name.replace('/', "-"));
    let has_demo = root().join("assets/demo/ultraface_rfb_320_nhwc.onnx").exists();
    if has_demo && blocks.iter().any(|block| block.needs_demo) {
        let demo = "roiflow run pipelines/faces.toml --input video.mp4 --json out/faces.jsonl --quiet --frames 3";
        assert!(shell(&folder, demo).status().unwrap().success());
    }
    for block in blocks {
        if block.needs_demo && !has_demo {
            eprintln!("skipped: line {} of docs/{name} needs `make demo`", block.line);
            continue;
        }
        // `head` ends before the command whose output it reads, and that command would then fail. So collect the output before `head` reads
        // it.
        let text = block.text.replace("| head", "| (cat > .piped; cat .piped) | head");
        let output = shell(&folder, &text).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "line {} of docs/{name}:\n{}\n{out}\n{err}", block.line, block.text);
        let warned = err.lines().find(|line| line.starts_with("warning:") || line.contains("CRITICAL"));
        assert_eq!(warned, None, "line {} of docs/{name}", block.line);
        check_printed(&page, &block, &out, name);
    }
}

/// Checks the output of `roiflow inspect`. If the next `text` block looks like such output, it must equal the output of the commands
/// directly before it.
fn check_printed(page: &str, block: &Block, printed: &str, name: &str) {
    let rest: Vec<&str> = page.lines().skip(block.line - 1).collect();
    let rest = rest.join("\n");
    let Some((between, shown)) = rest.split_once("```text\n") else { return };
    if between.matches("```").count() != 1 || !block.text.starts_with("roiflow inspect") {
        return;
    }
    let shown = shown.split("\n```").next().unwrap();
    // Do not compare the lines about devices, because the available engines depend on the machine.
    let lines = |text: &str| text.lines().filter(|line| !line.starts_with("  device ")).map(str::to_owned).collect::<Vec<_>>();
    let (printed, shown) = (lines(printed), lines(shown));
    let missing: Vec<&String> = shown.iter().filter(|line| !printed.contains(line)).collect();
    assert!(missing.is_empty(), "docs/{name} shows what is not printed: {missing:#?}\nprinted: {printed:#?}");
}

macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        $(#[test]
        fn $test() {
            check_page($page);
        })*

        /// Asserts that the list of pages in this module includes all pages with commands.
        #[test]
        fn every_page_with_commands_is_run() {
            let known = [$($page),*];
            let mut folders = vec![root().join("docs")];
            // The commands on these pages are tested elsewhere, for example in tests/stream/documentation.rs.
            let elsewhere = ["elements.md", "python.md", "from-openvino-python.md", "devices.md", "inference-requests.md", "remote-tensors.md"];
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(folder).unwrap() {
                    let path = entry.unwrap().path();
                    if path.is_dir() {
                        folders.push(path);
                        continue;
                    }
                    let name = path.strip_prefix(root().join("docs")).unwrap().to_str().unwrap().to_owned();
                    let is_page = name.ends_with(".md") && !elsewhere.contains(&&*name);
                    if is_page && !blocks(&std::fs::read_to_string(&path).unwrap()).is_empty() {
                        assert!(known.contains(&&*name), "docs/{name}: add it to the pages above");
                    }
                }
            }
        }
    };
}

pages! {
    first_pipeline_runs: "tutorials/first-pipeline.md",
    yolo_runs: "tutorials/yolo.md",
    cascade_runs: "tutorials/cascade.md",
    read_results_runs: "tutorials/read-results.md",
    cameras_run: "howto/cameras.md",
    latency_runs: "howto/latency.md",
    small_machines_run: "howto/small-machines.md",
    many_streams_run: "howto/many-streams.md",
    count_and_track_runs: "howto/count-and-track.md",
    less_inference_runs: "howto/less-inference.md",
    find_small_objects_runs: "howto/find-small-objects.md",
    draw_results_runs: "howto/draw-results.md",
    engines_run: "howto/engines.md",
    describe_a_model_runs: "howto/describe-a-model.md",
    troubleshooting_runs: "howto/troubleshooting.md",
    command_line_runs: "command-line.md",
    pipeline_files_run: "reference/pipeline-files.md",
}

#[test]
fn blocks_are_found_with_their_lines() {
    let page = "# Page\n\n```toml\nx = 1\n```\n\n<!-- needs demo -->\n```sh\na\nb\n```\n\n```sh\nc\n```\n\n```console\nd\n```\n";
    let found: Vec<_> = blocks(page).into_iter().map(|block| (block.text, block.line, block.needs_demo)).collect();
    assert_eq!(found, [("a\nb\n".to_owned(), 9, true), ("c\n".to_owned(), 14, false)]);
}
