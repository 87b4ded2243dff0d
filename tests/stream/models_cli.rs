//! Models in the command: cache of compiled models, dynamic shapes, malicious files, and the output of `inspect` and `describe`.

use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};

use crate::cli::{Folder, check_fails, command, roiflow};

const DEVICES: [&str; 4] = ["CPU", "ORT.CPU", "OPENVINO.CPU", "AUTO"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn tiny(name: &str) -> String {
    root().join("assets/tiny").join(name).to_str().unwrap().to_owned()
}

fn is_here(device: &str) -> bool {
    ::roiflow::devices::core().devices().iter().any(|(name, info)| name == device && info.missing.is_none())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn succeeds(arguments: &[&str]) -> String {
    let output = roiflow(arguments);
    assert!(output.status.success(), "{arguments:?}: {}: {}", output.status, said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Writes a pipeline with one detector; returns its path.
fn pipeline(folder: &Folder, name: &str, graph: &str) -> String {
    let path = folder.file(name);
    let text = format!(
        "# A test.\nversion = 1\nname = \"test\"\ndescription = \"A test.\"\n[parameters.device]\ntype = \"string\"\ndefault = \"CPU\"\n\
         [pipeline]\ngraph = '''{graph}'''\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// Returns the entries of a cache folder, including temporary files.
fn entries(cache: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(cache).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

/// Starts a run of two frames that caches its models in this folder.
fn cached(pipeline: &str, device: &str, cache: &Path) -> Child {
    let mut command = command();
    command.args(["run", pipeline, "--input", "test:2", "-q", "--device", device, "--log", "debug"]);
    command.env("ROIFLOW_CACHE_DIR", cache).stderr(Stdio::piped()).spawn().unwrap()
}

/// OpenVINO overwrites a cached model while other processes have mapped it, which in the past ended these processes with SIGBUS.
#[test]
fn concurrent_starts_with_empty_cache_succeed() {
    let folder = Folder::new("cache-at-once");
    let demo = root().join("assets/demo/age-v1.onnx");
    let model = if demo.is_file() { demo.to_str().unwrap().to_owned() } else { tiny("color.onnx") };
    let graph = format!("{{source}} ! roiclassify inference-region=full-frame model={model} device={{device}} ! {{video}}");
    let pipeline = pipeline(&folder, "age.toml", &graph);
    for device in ["OPENVINO.CPU", "ORT.CPU"].into_iter().filter(|device| is_here(device)) {
        for round in 0..5 {
            let cache = PathBuf::from(folder.file(&format!("{device}-{round}")));
            let running: Vec<Child> = (0..4).map(|_| cached(&pipeline, device, &cache)).collect();
            // A process that ends while it compiles a copy of the model does not cache the copy.
            let mut is_cut = false;
            for child in running {
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success(), "{device}, round {round}: {}: {}", output.status, said(&output));
                is_cut |= said(&output).contains("the process is exiting");
            }
            let left = entries(&cache);
            assert!(!left.is_empty() && left.iter().all(|entry| entry.extension().is_none()), "no temporary files remain: {left:?}");
            let next = cached(&pipeline, device, &cache).wait_with_output().unwrap();
            assert!(next.status.success() && said(&next).contains("was loaded from the cache"), "{device}: {}", said(&next));
            assert!(is_cut || !said(&next).contains("was compiled"), "{device}: {}", said(&next));
            assert!(is_cut || entries(&cache) == left, "{:?}, before {left:?}", entries(&cache));
        }
    }
}

#[test]
fn damaged_cache_is_rebuilt() {
    let folder = Folder::new("cache-damaged");
    let graph = format!("{{source}} ! roidetect model={} device={{device}} ! {{video}}", tiny("rectangle.onnx"));
    let pipeline = pipeline(&folder, "boxes.toml", &graph);
    for device in ["OPENVINO.CPU", "ORT.CPU"].into_iter().filter(|device| is_here(device)) {
        let cache = PathBuf::from(folder.file(device));
        let run = || {
            let output = cached(&pipeline, device, &cache).wait_with_output().unwrap();
            assert!(output.status.success(), "{device}: {}: {}", output.status, said(&output));
            said(&output)
        };
        run();
        type Damage = fn(Vec<u8>) -> Vec<u8>;
        let damages: [(&str, Damage); 4] = [
            ("cut off", |bytes| bytes[..bytes.len() / 2].to_vec()),
            ("empty", |_| Vec::new()),
            ("zeros", |bytes| vec![0; bytes.len()]),
            ("one byte", |mut bytes| {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                bytes
            }),
        ];
        for (name, damage) in damages {
            for file in entries(&cache).iter().flat_map(|entry| entries(entry)) {
                let bytes = damage(std::fs::read(&file).unwrap());
                // The files in the cache are read-only, so replace the file instead of overwriting it.
                std::fs::remove_file(&file).unwrap();
                std::fs::write(&file, bytes).unwrap();
            }
            let text = run();
            assert!(text.contains("is damaged"), "{device}, {name}: {text}");
            let next = run();
            assert!(next.contains("was loaded from the cache") && !next.contains("is damaged"), "{device}, {name}: {next}");
        }
    }
}

#[test]
fn unwritable_cache_is_a_warning() {
    let folder = Folder::new("cache-unusable");
    std::fs::write(folder.file("file"), "no folder").unwrap();
    let graph = format!("{{source}} ! roidetect model={} device={{device}} ! {{video}}", tiny("rectangle.onnx"));
    let pipeline = pipeline(&folder, "boxes.toml", &graph);
    for device in ["OPENVINO.CPU", "ORT.CPU"].into_iter().filter(|device| is_here(device)) {
        let output = cached(&pipeline, device, Path::new(&folder.file("file/cache"))).wait_with_output().unwrap();
        assert!(output.status.success() && said(&output).contains("cached in"), "{device}: {}", said(&output));
        assert!(!said(&output).contains("WARN"), "{device}: {}", said(&output));
    }
}

#[test]
fn cache_is_cleaned_by_size_and_of_leftovers() {
    let device = "ORT.CPU";
    if !is_here(device) {
        return eprintln!("skipped: {device} is not available");
    }
    let folder = Folder::new("cache-cleaning");
    let cache = PathBuf::from(folder.file("cache"));
    let of = |model: &str| {
        let graph = format!("{{source}} ! roidetect model={} device={{device}} ! {{video}}", tiny(model));
        pipeline(&folder, &format!("{model}.toml"), &graph)
    };
    let run = |model: &str, size: &str| {
        let mut command = command();
        command.args(["run", &of(model), "--input", "test:1", "-q", "--device", device]);
        let output = command.env("ROIFLOW_CACHE_DIR", &cache).env("ROIFLOW_CACHE_SIZE", size).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    };
    run("rectangle.onnx", "1M");
    let first = entries(&cache);
    run("stripes.onnx", "1M");
    assert_eq!(entries(&cache).len(), 2);
    let (key, foreign) = ("0".repeat(32), cache.join("notes.txt"));
    std::fs::create_dir(cache.join(format!("openvino-{key}.123-0.tmp"))).unwrap();
    std::fs::write(&foreign, "of the user").unwrap();
    run("rectangle.onnx", "1");
    assert_eq!(entries(&cache), [foreign, first[0].clone()], "recently used and foreign files stay");
    assert!(run("rectangle.onnx", "much").contains("ROIFLOW_CACHE_SIZE"));
}

/// Returns a description of `open_*.onnx`.
fn open_faces(size: &str) -> String {
    format!(
        "version = 1\ntask = \"detection\"\n[input]\ncolor = \"rgb\"\nlayout = \"nchw\"\nresize = \"stretch\"\n{size}\n\
         [output]\ndecoder = \"scrfd\"\nthreshold = 0.5\nlabels = [\"face\"]\n"
    )
}

/// Writes a black image of 96 x 64 pixels with one white rectangle, and returns its path.
fn picture(folder: &Folder, name: &str, white: [u32; 4], size: [u32; 2]) -> String {
    let [x_min, y_min, x_max, y_max] = white;
    let mut picture = image::RgbImage::new(size[0], size[1]);
    for (x, y, pixel) in picture.enumerate_pixels_mut() {
        if (x_min..x_max).contains(&x) && (y_min..y_max).contains(&y) {
            *pixel = image::Rgb([255; 3]);
        }
    }
    picture.save(folder.file(name)).unwrap();
    folder.file(name)
}

/// Runs a pipeline, and returns the boxes in the first line of its results.
fn boxes(folder: &Folder, pipeline: &str, input: &str, device: &str) -> Vec<[i64; 4]> {
    let json = folder.file("boxes.jsonl");
    succeeds(&["run", pipeline, "-q", "--input", input, "--json", &json, "--device", device]);
    let text = std::fs::read_to_string(json).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let objects = line["objects"].as_array().unwrap();
    objects.iter().map(|object| ["x", "y", "w", "h"].map(|key| object[key].as_f64().unwrap().round() as i64)).collect()
}

#[test]
fn dynamic_model_is_compiled_for_described_size() {
    let folder = Folder::new("open-size");
    let input = picture(&folder, "white.png", [16, 8, 24, 16], [96, 64]);
    for stem in ["open_size", "open_all", "open_width"] {
        let model = folder.file(&format!("{stem}.onnx"));
        std::fs::copy(tiny(&format!("{stem}.onnx")), &model).unwrap();
        let description = folder.file(&format!("{stem}.toml"));
        std::fs::write(&description, open_faces("size = [96, 64]")).unwrap();
        let graph = format!("{{source}} ! roidetect model={model} device={{device}} ! {{json}} ! {{video}}");
        let pipeline = pipeline(&folder, "open.pipeline.toml", &graph);
        for device in DEVICES.into_iter().filter(|device| is_here(device)) {
            assert_eq!(boxes(&folder, &pipeline, &input, device), [[8, 0, 16, 16]], "{stem} on {device}");
            let bench = succeeds(&["bench", &model, "--device", device, "--seconds", "0.05"]);
            assert!(bench.contains("[1, 3, 64, 96]"), "{stem} on {device}: {bench}");
        }
        let text = succeeds(&["inspect", &model]);
        assert!(text.contains("image 96x64") && text.contains("decoder scrfd"), "{stem}: {text}");
        // Without a description, the user must give the size.
        std::fs::remove_file(&description).unwrap();
        let open = succeeds(&["describe", &model, "--decoder", "scrfd"]);
        assert!(open.contains("# size ="), "{stem}: {open}");
        succeeds(&["describe", &model, "--decoder", "scrfd", "--size", "96x64", "--out", &description]);
        assert!(succeeds(&["inspect", &model]).contains("image 96x64"), "{stem}");
        std::fs::remove_file(&description).unwrap();
        check_fails(&["describe", &model, "--size", "0x64"], 2, &["16384"]);
        // The cases are: a size that the model does not support, an excessive size, and no size.
        for (size, parts) in [("size = [0, 64]", "from 1 to"), ("size = [96, 1000000]", "from 1 to"), ("", "has a dynamic size")] {
            std::fs::write(&description, open_faces(size)).unwrap();
            check_fails(&["inspect", &model], 1, &[parts]);
        }
        std::fs::remove_file(&description).unwrap();
    }
    std::fs::copy(tiny("open_width.onnx"), folder.file("w.onnx")).unwrap();
    std::fs::write(folder.file("w.toml"), open_faces("size = [96, 96]")).unwrap();
    check_fails(&["inspect", &folder.file("w.onnx")], 1, &["size = [96, 96]", "contradicts"]);
    check_fails(&["describe", &tiny("stripes.onnx"), "--size", "96x96"], 2, &["dynamic input", "[1, 3, 60, 80]"]);
}

/// OpenVINO reports the shape `[?, ?, ?]` for the boxes of a model that contains NMS.
#[test]
fn detector_with_builtin_nms_runs_on_every_engine() {
    let folder = Folder::new("suppressed");
    let model = folder.file("suppressed.onnx");
    std::fs::copy(tiny("suppressed.onnx"), &model).unwrap();
    let text = succeeds(&["inspect", &model]);
    assert!(text.contains("decoder tf-ssd") && text.contains("the names of its outputs"), "{text}");
    let described = succeeds(&["describe", &model, "--decoder", "tf-ssd"]);
    assert!(
        described.contains("decoder = \"tf-ssd\"") && !described.contains("are missing") && !described.contains("# task"),
        "{described}"
    );
    std::fs::write(folder.file("suppressed.toml"), described).unwrap();
    assert!(succeeds(&["inspect", &model]).contains("next to the model"));
    let input = picture(&folder, "white.png", [32, 16, 48, 32], [64, 64]);
    let graph = format!("{{source}} ! roidetect model={model} device={{device}} ! {{json}} ! {{video}}");
    let pipeline = pipeline(&folder, "ssd.pipeline.toml", &graph);
    for device in ["AUTO", "ORT.CPU", "OPENVINO.CPU"].into_iter().filter(|device| is_here(device)) {
        assert_eq!(boxes(&folder, &pipeline, &input, device), [[32, 16, 16, 16]], "{device}");
    }
}

#[test]
fn unknown_decoder_error_lists_known_decoders() {
    let parts = ["unknown decoder `yolov8x`", "yolov5, yolov8", "classes, multi-label", "did you mean `yolov8`"];
    check_fails(&["describe", &tiny("color.onnx"), "--decoder", "yolov8x"], 1, &parts);
    check_fails(&["describe", &tiny("color.onnx"), "--decoder", "nosuchthing"], 1, &["unknown decoder `nosuchthing`", "ultraface"]);
    let output = roiflow(&["describe", &tiny("color.onnx")]);
    assert!(said(&output).contains("--decoder NAME"), "{}", said(&output));
    let folder = Folder::new("no-description");
    std::fs::copy(tiny("color.onnx"), folder.file("color.onnx")).unwrap();
    check_fails(&["inspect", &folder.file("color.onnx")], 1, &["no description", "--decoder NAME"]);
    assert!(succeeds(&["describe", &folder.file("color.onnx"), "--decoder", "classes"]).contains("\ntask = \"classification\""));
}

#[test]
fn describe_overwrites_only_with_force() {
    let folder = Folder::new("describe-over");
    std::fs::copy(tiny("suppressed.onnx"), folder.file("m.onnx")).unwrap();
    std::fs::write(folder.file("kept.toml"), "mine").unwrap();
    std::os::unix::fs::symlink("kept.toml", folder.file("link.toml")).unwrap();
    std::os::unix::fs::symlink("nowhere.toml", folder.file("dangling.toml")).unwrap();
    for name in ["kept.toml", "link.toml", "dangling.toml", "m.onnx"] {
        check_fails(&["describe", &folder.file("m.onnx"), "--out", &folder.file(name)], 1, &["already exists", "--force"]);
    }
    assert_eq!(std::fs::read_to_string(folder.file("kept.toml")).unwrap(), "mine");
    check_fails(&["describe", &folder.file("m.onnx"), "--force"], 2, &["--out"]);
    // A model that cannot be described keeps the file unchanged, even with --force.
    std::fs::write(folder.file("bad.onnx"), "no model").unwrap();
    check_fails(&["describe", &folder.file("bad.onnx"), "--force", "--out", &folder.file("kept.toml")], 1, &["not an ONNX model"]);
    assert_eq!(std::fs::read_to_string(folder.file("kept.toml")).unwrap(), "mine");
    succeeds(&["describe", &folder.file("m.onnx"), "--force", "--out", &folder.file("link.toml")]);
    assert!(std::fs::read_to_string(folder.file("kept.toml")).unwrap().contains("tf-ssd"));
    assert!(std::fs::symlink_metadata(folder.file("link.toml")).unwrap().is_symlink());
}

#[test]
fn inspect_refuses_what_run_refuses() {
    let folder = Folder::new("inspect-pipeline");
    let model = tiny("rectangle.onnx");
    let write = |parameters: &str, graph: &str| {
        let path = folder.file("p.toml");
        let text = format!("version = 1\nname = \"p\"\ndescription = \"P.\"\n{parameters}\n[pipeline]\ngraph = '''{graph}'''\n");
        std::fs::write(&path, text).unwrap();
        path
    };
    let detector = format!("[parameters.detector]\ntype = \"path\"\ndefault = \"{model}\"\n");
    let graph = "{source} ! roidetect model={detector} device=CPU ! {json} ! {video}";
    let good = write(&detector, graph);
    assert!(succeeds(&["inspect", &good]).contains("default \"/"));
    std::fs::write(folder.file("text.onnx"), "no model").unwrap();
    let cases = [
        ("a missing model", detector.replace(&model, "/nowhere/m.onnx"), graph.to_owned(), 1, "/nowhere/m.onnx"),
        ("no model", String::new(), "{source} ! roidetect ! {video}".to_owned(), 1, "expected a model"),
        ("an unreadable model", detector.replace(&model, &folder.file("text.onnx")), graph.to_owned(), 1, "not an ONNX model"),
        ("an unknown element", detector.clone(), graph.replace("roidetect", "roidetekt"), 1, "roidetekt"),
        ("an unknown property", detector.clone(), graph.replace("device=", "devise="), 2, "devise"),
        ("an unknown property with a placeholder", detector.clone(), graph.replace("model=", "modle="), 2, "modle"),
        ("an unknown placeholder", detector.clone(), graph.replace("{detector}", "{detektor}"), 2, "did you mean `detector`"),
        ("no source", detector.clone(), graph.replace("{source}", "videotestsrc"), 2, "{source}"),
        (
            "a default of another type",
            format!("{detector}[parameters.n]\ntype = \"integer\"\ndefault = \"x\"\n"),
            graph.to_owned(),
            2,
            "integer",
        ),
        ("a device that there is not", detector.clone(), graph.replace("CPU", "TPU"), 1, "no device `TPU`"),
        ("a classifier as a detector", detector.replace("rectangle", "color"), graph.to_owned(), 1, "a detector needs"),
        ("a detector as a classifier", detector.clone(), graph.replace("roidetect", "roiclassify"), 1, "a classifier needs"),
    ];
    for (name, parameters, graph, code, part) in &cases {
        let path = write(parameters, graph);
        let (inspected, ran) = (roiflow(&["inspect", &path]), roiflow(&["run", &path, "--input", "test:1", "-q"]));
        assert_eq!(inspected.status.code(), Some(*code), "{name}: {}", said(&inspected));
        assert!(said(&inspected).contains(part), "{name}: {}", said(&inspected));
        assert!(!ran.status.success(), "{name}: run accepts it");
    }
    // A required parameter is listed, and checked when it is set.
    let open = write("[parameters.detector]\ntype = \"path\"\n", graph);
    let text = succeeds(&["inspect", &open]);
    assert!(text.contains("detector (path, required)") && text.contains("not checked"), "{text}");
    let set = format!("detector={model}");
    assert!(!succeeds(&["inspect", &open, "--set", &set]).contains("not checked"));
    check_fails(&["inspect", &open, "--set", "detector=/nowhere/m.onnx"], 1, &["/nowhere/m.onnx"]);
    check_fails(&["inspect", &open, "--set", "detectr=x"], 2, &["did you mean `detector`"]);
    check_fails(&["inspect", &write("[parameters.detector]\ntype = \"path\"\n", &graph.replace("model=", "modle="))], 2, &["modle"]);
    check_fails(&["inspect", &model, "--set", "a=b"], 2, &["--set", "got a model"]);
}

/// Text from foreign files never moves the cursor or hides a line.
#[test]
fn foreign_text_is_escaped_in_output() {
    let folder = Folder::new("escapes");
    let text = "version = 1\nname = \"\\u001b[2Jname\"\ndescription = \"\\u001b]0;title\\u0007\"\n\
        [parameters.\"\\u001b[1mp\"]\ntype = \"string\"\ndefault = \"\\u001b[3m\"\nhelp = \"help\\u001b[4m\\nsecond\\rline\"\n\
        [pipeline]\ngraph = '''{source} ! {video}'''\n";
    std::fs::write(folder.file("p.toml"), text).unwrap();
    let description = "version = 1\ntask = \"detection\"\nname = \"\\u001b[2Jname\"\n[model]\nabout = \"\\u001b[5mabout\"\nauthor = \"a\\rb\"\n\
        [input]\ncolor = \"rgb\"\nlayout = \"nhwc\"\nresize = \"stretch\"\n[output]\ndecoder = \"ultraface\"\nlabels = [\"\\u001b[6mface\"]\n";
    std::fs::write(folder.file("d.toml"), description).unwrap();
    let bad = description.replace("ultraface", "\\u001b[7mfoo");
    std::fs::write(folder.file("bad.toml"), bad).unwrap();
    let (model, odd) = (tiny("rectangle.onnx"), folder.file("a\u{1b}[2Jb.onnx"));
    // Replace the name of the output in the model file by a name with an escape sequence.
    let mut bytes = std::fs::read(&model).unwrap();
    for at in 0..bytes.len() - 5 {
        if &bytes[at..at + 5] == b"boxes" {
            bytes[at..at + 5].copy_from_slice(b"b\x1b[2J");
        }
    }
    std::fs::write(&odd, bytes).unwrap();
    let (plain, named, wrong) = (folder.file("p.toml"), folder.file("d.toml"), folder.file("bad.toml"));
    for arguments in [
        vec!["inspect", &*plain],
        vec!["inspect", &*model, "--description", &*named],
        vec!["inspect", &*model, "--description", &*wrong],
        vec!["inspect", &*odd, "--description", &*named],
        vec!["inspect", &*odd],
        vec!["describe", &*odd],
        vec!["describe", &*odd, "--decoder", "ultraface"],
        vec!["describe", &*model, "--decoder", "\u{1b}[2J"],
        vec!["bench", &*odd, "--seconds", "0.01", "--device", "CPU"],
    ] {
        let output = roiflow(&arguments);
        for bytes in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(bytes);
            assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{arguments:?}: {text:?}");
        }
    }
}

/// The first gallery is made of images that show only the object, the second one with a detector. Both name the same objects.
#[test]
fn gallery_command_writes_vectors_that_name_objects() {
    let folder = Folder::new("galleries");
    let description = "version = 1\ntask = \"classification\"\nname = \"who\"\n[input]\nlayout = \"nchw\"\ncolor = \"rgb\"\nresize = \"stretch\"\n\
                       [output]\ndecoder = \"embedding\"\n";
    std::fs::write(folder.file("vector.toml"), description).unwrap();
    let (model, description) = (tiny("color.onnx"), folder.file("vector.toml"));
    for (name, color) in [("ruby", [255, 0, 0]), ("emerald", [0, 255, 0]), ("sapphire", [0, 0, 255])] {
        image::RgbImage::from_pixel(16, 16, image::Rgb(color)).save(folder.file(&format!("{name}-cut.png"))).unwrap();
        folder.picture(&format!("{name}.png"), 64, 64, color);
    }
    folder.picture("nothing.png", 64, 64, [0, 0, 0]);
    let detector = tiny("rectangle.onnx");
    for (gallery, suffix, more) in [("cut.jsonl", "-cut.png", vec![]), ("found.jsonl", ".png", vec!["--detector", &*detector])] {
        let gallery = folder.file(gallery);
        let add = |name: &str, image: &str| {
            let image = folder.file(&format!("{image}{suffix}"));
            let fixed = ["gallery", "add", &*gallery, "--model", &*model, "--description", &*description, "--name", name, &*image];
            roiflow(&[&fixed[..], &more].concat())
        };
        assert!(add("Ruby", "ruby").status.success());
        // A line without an end is completed before the next line is appended.
        let text = std::fs::read_to_string(&gallery).unwrap();
        std::fs::write(&gallery, text.trim_end()).unwrap();
        let added = add("Emerald", "emerald");
        assert!(added.status.success() && said(&added).contains("added Emerald"), "{}", said(&added));
        let lines: Vec<serde_json::Value> =
            std::fs::read_to_string(&gallery).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.iter().map(|line| line["name"].as_str().unwrap()).collect::<Vec<_>>(), ["Ruby", "Emerald"]);
        assert!(lines.iter().all(|line| line["vector"].as_array().unwrap().len() == 4), "{lines:?}");
        let graph = format!(
            "{{source}} ! roidetect model={detector} device={{device}} \
             ! roiclassify model={model} description={description} gallery={gallery} device={{device}} ! {{json}} ! {{video}}"
        );
        let pipeline = pipeline(&folder, "who.toml", &graph);
        succeeds(&["inspect", &pipeline]);
        for (image, label) in [("ruby", "Ruby"), ("emerald", "Emerald"), ("sapphire", "unknown")] {
            let text = succeeds(&["run", &pipeline, "--input", &folder.file(&format!("{image}.png")), "--json", "-", "-q"]);
            let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
            assert_eq!(line["objects"][0]["who"]["label"], label, "{line}");
        }
    }
    let gallery = folder.file("cut.jsonl");
    let before = std::fs::read(&gallery).unwrap();
    let (ruby, nothing) = (folder.file("ruby.png"), folder.file("nothing.png"));
    let fixed = ["gallery", "add", &*gallery, "--model", &*model];
    for (more, code, parts) in [
        (vec!["--description", &*description, "--name", "unknown", &*ruby], 2, ["expected another name", "unknown"]),
        (vec!["--description", &*description, "--name", " ", &*ruby], 2, ["expected a name", "--name"]),
        (vec!["--name", "Ruby", &*ruby], 1, ["expected a model with one output of the decoder `embedding`", "classes"]),
        (vec!["--description", &*description, "--name", "Ruby", &*ruby, "/no/such.png"], 1, ["image `/no/such.png`", "image"]),
        (
            vec!["--description", &*description, "--detector", &*detector, "--name", "Ruby", &*nothing],
            1,
            ["expected one object, got 0", "image"],
        ),
    ] {
        check_fails(&[&fixed[..], &more].concat(), code, &parts);
    }
    assert_eq!(std::fs::read(&gallery).unwrap(), before, "a failed command adds nothing");
    check_fails(&["gallery", "add", &ruby, "--model", &model, "--name", "Ruby", &ruby], 2, &["ruby.png"]);
}
