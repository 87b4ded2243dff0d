//! Tests of the real binary from a user's perspective.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub use crate::harness::lines;

/// A folder per test, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("roiflow-cli-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let description = format!(
            "# Finds colored rectangles.\nversion = 1\nname = \"colors\"\ndescription = \"Colors of rectangles.\"\n\
             [parameters.detector]\ntype = \"path\"\ndefault = \"{tiny}/rectangle.onnx\"\nhelp = \"the detector\"\n\
             [parameters.device]\ntype = \"string\"\ndefault = \"CPU\"\n\
             [pipeline]\ngraph = \"{{source}} ! roidetect model={{detector}} device={{device}} ! roiclassify model={tiny}/color.onnx ! {{json}} ! roioverlay ! {{video}}\"\n",
            tiny = root.join("assets/tiny").display()
        );
        std::fs::write(path.join("colors.toml"), description).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub fn picture(&self, name: &str, width: u32, height: u32, color: [u8; 3]) {
        let mut picture = image::RgbImage::new(width, height);
        for (x, y, pixel) in picture.enumerate_pixels_mut() {
            if x >= width / 4 && x < width / 2 && y >= height / 4 && y < height * 3 / 4 {
                *pixel = image::Rgb(color);
            }
        }
        picture.save(self.0.join(name)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the command, configured not to write to the user's folders.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roiflow"));
    command.env("ROIFLOW_CACHE_DIR", "");
    command
}

pub fn roiflow(arguments: &[&str]) -> Output {
    command().args(arguments).stdin(Stdio::null()).output().unwrap()
}

pub fn check_fails(arguments: &[&str], code: i32, says: &[&str]) {
    let output = roiflow(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(says.iter().all(|part| said.contains(part)), "{arguments:?}: expected {says:?}, got {said}");
}

#[test]
fn cascade_json_has_parent_ids() {
    let folder = Folder::new("cascade");
    // A red area with a white cell: the area is 160 x 120, so each of the 20 x 15 cells is 8 x 8.
    let mut picture = image::RgbImage::new(320, 240);
    for (x, y, pixel) in picture.enumerate_pixels_mut() {
        let is_in =
            |x_min: u32, y_min: u32, width: u32, height: u32| (x_min..x_min + width).contains(&x) && (y_min..y_min + height).contains(&y);
        if is_in(80, 60, 160, 120) {
            *pixel = image::Rgb(if is_in(80 + 3 * 8, 60 + 2 * 8, 8, 8) { [255; 3] } else { [255, 0, 0] });
        }
    }
    picture.save(folder.file("area.png")).unwrap();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
    let description = format!(
        "# Cells in areas.\nversion = 1\nname = \"cells\"\ndescription = \"Bright cells in colored areas.\"\n\
         [pipeline]\ngraph = \"{{source}} ! roidetect model={tiny}/rectangle.onnx ! roidetect model={tiny}/stripes.onnx \
         inference-region=roi-list object-class=rectangle ! roiclassify model={tiny}/color.onnx object-class=rectangle \
         ! roiclassify model={tiny}/brightness.onnx object-class=cell ! {{json}} ! {{video}}\"\n",
        tiny = tiny.display()
    );
    std::fs::write(folder.file("cells.toml"), description).unwrap();
    let json = folder.file("cells.jsonl");
    let output = roiflow(&["run", &folder.file("cells.toml"), "-q", "--input", &folder.file("area.png"), "--json", &json]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = lines(&json);
    let [line] = &*lines else { panic!("{lines:?}") };
    let objects = line["objects"].as_array().unwrap();
    let [area, cell] = &**objects else { panic!("{line}") };
    let place = |object: &serde_json::Value| ["x", "y", "w", "h"].map(|key| object[key].as_u64().unwrap());
    assert_eq!((place(area), place(cell)), ([80, 60, 160, 120], [104, 76, 8, 8]), "{line}");
    assert!(area["parent_id"].is_null() && cell["parent_id"] == area["region_id"] && cell["region_id"] != area["region_id"], "{line}");
    // Without a tracker, objects have no track ID.
    assert!(area["id"].is_null() && cell["id"].is_null(), "{line}");
    assert_eq!((&area["color"]["label"], &area["brightness"]), (&"red".into(), &serde_json::Value::Null));
    assert_eq!((cell["brightness"]["value"].as_f64().unwrap().round(), &cell["color"]), (100.0, &serde_json::Value::Null));
}

/// A pipe has space for 64 KiB.
#[test]
fn log_that_nobody_reads_stops_no_run() {
    let folder = Folder::new("unread-log");
    let json = folder.file("o.jsonl");
    for (level, debug) in [("trace", ""), ("off", "*:6")] {
        let arguments = ["run", &folder.file("colors.toml"), "-q", "--log", level, "--input", "test:400", "--json", &json];
        let mut child = command().args(arguments).env("GST_DEBUG", debug).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut unread = child.stderr.take().unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(lines(&json).len(), 400);
        let mut said = Vec::new();
        std::io::Read::read_to_end(&mut unread, &mut said).unwrap();
        assert!(said.len() > 32 << 10, "the log is too short for this test: {} bytes", said.len());
    }
}

#[test]
fn log_of_gstreamer_has_no_password() {
    let folder = Folder::new("gstreamer-log");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let input = format!("rtsp://someone:ge-heim%20nis@127.0.0.1:{port}/a");
    let arguments = ["run", &folder.file("colors.toml"), "-q", "--input", &input, "--restart", "never"];
    let output = command().args(arguments).env("GST_DEBUG", "*:6").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("rtspsrc") && said.contains("127.0.0.1"), "{said}");
    assert!(!said.contains("heim"), "{}", said.lines().find(|line| line.contains("heim")).unwrap());
}

#[test]
fn run_writes_json_video_and_summary() {
    let folder = Folder::new("run");
    let (json, video) = (folder.file("o.jsonl"), folder.file("o.mp4"));
    let output = roiflow(&["run", &folder.file("colors.toml"), "--input", "test:40", "--json", &json, "--video", &video]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    for part in ["frames  40 in", "latency  p50", "runs on CPU: fill", "dropped  0", "o.jsonl", "o.mp4"] {
        assert!(said.contains(part), "expected `{part}` in {said}");
    }
    let lines = lines(&json);
    assert_eq!(lines.len(), 40);
    assert!(lines.iter().enumerate().all(|(idx, line)| line["frame"] == idx && line["inference"]["status"] == "ok"));
    // The video is complete: used as an input, it has the same number of frames.
    let again = folder.file("again.jsonl");
    assert!(roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", &video, "--json", &again]).status.success());
    assert_eq!(self::lines(&again).len(), 40);
}

#[test]
fn frames_of_pipeline_without_inference_are_counted() {
    let folder = Folder::new("plain");
    let text = "version = 1\nname = \"plain\"\ndescription = \"Without inference.\"\n[pipeline]\ngraph = \"{source} ! {json} ! {video}\"\n";
    std::fs::write(folder.file("plain.toml"), text).unwrap();
    let video = folder.file("o.mp4");
    let output = roiflow(&["run", &folder.file("plain.toml"), "--input", "test:40", "--video", &video]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(0) && said.contains("frames  40 in") && !said.contains("latency"), "{said}");
    // A file has a decoder, whose output is counted.
    let output = roiflow(&["run", &folder.file("plain.toml"), "--input", &video]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(0) && said.contains("frames  40 in"), "{said}");
}

#[test]
fn skipped_frames_have_reasons_in_summary_and_json() {
    let folder = Folder::new("interval");
    let path = folder.file("colors.toml");
    let text = std::fs::read_to_string(&path).unwrap().replace("device={device}", "device={device} inference-interval=4");
    std::fs::write(&path, text).unwrap();
    let json = folder.file("o.jsonl");
    let output = roiflow(&["run", &path, "--input", "test:20", "--json", &json]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("skipped  15 frames by roidetect-0: inference-interval") && said.contains("dropped  0 frames"), "{said}");
    for (n, line) in lines(&json).iter().enumerate() {
        let expected = if n % 4 == 0 {
            serde_json::json!({"status": "ok"})
        } else {
            serde_json::json!({"status": "skipped", "reason": "inference-interval"})
        };
        assert_eq!(line["inference"], expected, "frame {n}");
    }
}

#[test]
fn failing_model_ends_run_unless_max_failures_is_negative() {
    use gstreamer::prelude::*;

    use crate::harness::{caps, feed, picture, pipeline, run};
    let folder = Folder::new("breaks");
    let clip = folder.file("clip.mkv");
    let make = pipeline(
        "appsrc name=source ! videoconvert ! video/x-raw,format=I420 ! x264enc speed-preset=ultrafast ! matroskamux ! filesink name=file",
    );
    make.by_name("file").unwrap().set_property("location", &clip);
    // The model runs on black images and fails on white ones.
    let size = ::roiflow::frame::Size::new(64, 64);
    let whole = ::roiflow::frame::PixelRect { x: 0, y: 0, width: 64, height: 64 };
    let shades = (0..40).map(|n| if n < 10 { 0 } else { 255 });
    feed(&make, &caps("RGB", size), shades.map(|shade| picture(size, whole, [shade; 3])));
    assert_eq!(run(&make).error, None);

    let core = ::roiflow::devices::core();
    let is_there = |device: &str| core.devices().iter().any(|(name, info)| name == device && info.missing.is_none());
    let fragile = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/fragile.onnx");
    for device in ["CPU", "ORT.CPU"].into_iter().filter(|device| is_there(device)) {
        for max_failures in [5, -1] {
            let (path, json) = (folder.file("fragile.toml"), folder.file("o.jsonl"));
            let graph = format!(
                "{{source}} ! roidetect model={} device={device} nireq=1 max-failures={max_failures} ! {{json}} ! {{video}}",
                fragile.display()
            );
            std::fs::write(&path, format!("# Breaks.\nversion = 1\nname = \"fragile\"\ndescription = \"Breaks on bright pictures.\"\n[pipeline]\ngraph = \"{graph}\"\n")).unwrap();
            let output = roiflow(&["run", &path, "--input", &clip, "--json", &json]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let statuses: Vec<String> = lines(&json).iter().map(|line| line["inference"]["status"].as_str().unwrap().to_owned()).collect();
            let n_ok = statuses.iter().filter(|status| *status == "ok").count();
            if max_failures < 0 {
                assert_eq!(output.status.code(), Some(0), "{device}: {said}");
                assert_eq!((n_ok, statuses.len()), (10, 40), "{device}");
                assert!(said.contains("inference failed on 30"), "{said}");
                continue;
            }
            assert_eq!(output.status.code(), Some(1), "{device}: {said}");
            let expected = format!("roidetect-0: inference failed on 6 frames in a row, expected at most {max_failures} (max-failures)");
            assert!(said.contains(&expected) && said.contains(&format!("--device {device}`")), "{said}");
            assert_eq!((n_ok, statuses.len()), (10, 16), "{device}: earlier results are written");
            assert!(statuses[10..].iter().all(|status| status == "failed"), "{device}: {statuses:?}");
        }
    }
}

#[test]
fn folder_glob_and_single_image_are_inputs() {
    let folder = Folder::new("pictures");
    folder.picture("a.png", 64, 64, [255, 0, 0]);
    folder.picture("b.png", 128, 96, [0, 255, 0]);
    folder.picture("c.png", 65, 47, [0, 0, 255]);
    let json = folder.file("o.jsonl");
    let colors = |input: &str| {
        let output =
            roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", input, "--json", &json, "--video", &folder.file("o.mkv")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        lines(&json).iter().map(|line| line["objects"][0]["color"]["label"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(colors(folder.0.to_str().unwrap()), ["red", "green", "blue"]);
    assert_eq!(colors(&folder.file("?.png")), ["red", "green", "blue"]);
    assert_eq!(colors(&folder.file("b.png")), ["green"]);
}

#[test]
fn compiled_models_are_cached_for_next_start() {
    let folder = Folder::new("cache");
    let cache = folder.file("cache");
    let run = |device: &str| {
        let mut command = command();
        command.args(["run", &folder.file("colors.toml"), "--input", "test:2", "--device", device, "-q"]);
        let output = command.env_remove("ROIFLOW_CACHE_DIR").env("XDG_CACHE_HOME", &cache).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let device = "ORT.CPU";
    if ::roiflow::devices::core().devices().iter().any(|(name, info)| name == device && info.missing.is_none()) {
        run(device);
        let kept = || std::fs::read_dir(Path::new(&cache).join("roiflow/models")).map_or(0, Iterator::count);
        let n_kept = kept();
        assert!(n_kept > 0);
        run(device);
        assert_eq!(kept(), n_kept, "the second start used the cache");
    }
}

#[test]
fn only_json_goes_to_standard_output() {
    let folder = Folder::new("stdout");
    let output = roiflow(&["run", &folder.file("colors.toml"), "--input", "test:3", "--json", "-"]);
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 3);
    assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{text}");
}

#[test]
fn several_inputs_have_separate_results() {
    let folder = Folder::new("several");
    let clip = folder.file("clip.mkv");
    assert!(roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", "test:7", "--video", &clip]).status.success());
    folder.picture("dot.png", 64, 64, [0, 255, 0]);
    let (json, video) = (folder.file("{stream}.jsonl"), folder.file("{stream} drawn.mkv"));
    let arguments = ["run", &folder.file("colors.toml"), "--json", &json, "--video", &video];
    let inputs = [clip.as_str(), "test:20", &folder.file("dot.png"), "test:30"];
    let with = |inputs: &[&str]| {
        let inputs = inputs.iter().flat_map(|input| ["--input", input]);
        roiflow(&arguments.into_iter().chain(inputs).collect::<Vec<_>>())
    };
    let output = with(&inputs);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    for part in ["stream  clip: 7 frames", "stream  test: 20 frames", "stream  dot: 1 frames", "stream  test-2: 30 frames", "frames  58 in"]
    {
        assert!(said.contains(part), "expected `{part}` in {said}");
    }
    for (name, n_lines) in [("clip", 7), ("test", 20), ("dot", 1), ("test-2", 30)] {
        let lines = lines(&folder.file(&format!("{name}.jsonl")));
        assert_eq!(lines.len(), n_lines, "{name}");
        assert!(lines.iter().enumerate().all(|(idx, line)| line["frame"] == idx && line["stream"] == name), "{name}: {lines:?}");
        assert!(Path::new(&folder.file(&format!("{name} drawn.mkv"))).is_file());
    }
    assert_eq!(lines(&folder.file("dot.jsonl"))[0]["objects"][0]["color"]["label"], "green");

    // One input cannot be opened, and one fails while playing; all others play to their end.
    std::fs::write(folder.0.join("broken.mp4"), "this is no video").unwrap();
    let output = with(&["no.mp4", "test:20", &folder.file("broken.mp4")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    for part in ["stream no: cannot read input", "stream broken: cannot play", "stream  test: 20 frames", "2 of 3 inputs failed"] {
        assert!(said.contains(part), "expected `{part}` in {said}");
    }
    assert_eq!(lines(&folder.file("test.jsonl")).len(), 20);
    let output = with(&["no.mp4", &folder.file("broken.mp4")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("all 2 inputs failed"));
}

#[test]
fn lines_of_several_streams_are_whole_and_have_stream_names() {
    let folder = Folder::new("several-stdout");
    let inputs = ["--input", "test:200", "--input", "test:200", "--input", "test:200"];
    let colors = folder.file("colors.toml");
    let output = roiflow(&["run", &colors, "-q", "--json", "-"].into_iter().chain(inputs).collect::<Vec<_>>());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut next = std::collections::BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let frame: &mut u64 = next.entry(line["stream"].as_str().unwrap().to_owned()).or_default();
        assert_eq!(line["frame"], *frame);
        *frame += 1;
    }
    assert_eq!(next.into_iter().collect::<Vec<_>>(), ["test", "test-2", "test-3"].map(|name| (name.to_owned(), 200)));
}

#[test]
fn interrupt_completes_files_of_all_streams() {
    let folder = Folder::new("interrupt-several");
    let (json, video) = (folder.file("{stream}.jsonl"), folder.file("{stream}.mp4"));
    let arguments =
        ["run", &folder.file("colors.toml"), "--json", &json, "--video", &video, "--input", "test:1000000", "--input", "test:1000000"];
    let child = command().args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    for name in ["test", "test-2"] {
        while std::fs::read_to_string(folder.file(&format!("{name}.jsonl"))).map_or(0, |text| text.lines().count()) < 5 {
            std::thread::yield_now();
        }
    }
    assert!(Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("by interrupt"), "{said}");
    for name in ["test", "test-2"] {
        let again = folder.file("again.jsonl");
        let video = folder.file(&format!("{name}.mp4"));
        assert!(roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", &video, "--json", &again]).status.success());
        assert!(lines(&again).len() >= 4, "{name}: the video is playable");
    }
}

/// Counts the malloc arenas of threads by their addresses, which are multiples of 64 MiB with glibc on 64-bit systems.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
fn threads_share_malloc_arena_by_default() {
    if std::thread::available_parallelism().unwrap().get() > 4 {
        return eprintln!("skipped: with more than 4 cores, each of these threads may have its own arena");
    }
    let folder = Folder::new("heaps");
    let n_heaps = |allowed: Option<&str>| {
        let json = folder.file(&format!("{}-{{stream}}.jsonl", allowed.unwrap_or("shared")));
        let colors = folder.file("colors.toml");
        let inputs = ["--input", "test:1000000"].repeat(8);
        let arguments = ["run", &colors, "-q", "--json", &json].into_iter().chain(inputs);
        let mut running = command();
        running.args(arguments).env_remove("MALLOC_ARENA_MAX").env_remove("GLIBC_TUNABLES");
        let mut child = running.envs(allowed.map(|allowed| ("MALLOC_ARENA_MAX", allowed))).spawn().unwrap();
        for name in ["test", "test-8"] {
            while std::fs::read_to_string(json.replace("{stream}", name)).map_or(0, |text| text.lines().count()) < 5 {
                std::thread::yield_now();
            }
        }
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let begins = maps.lines().filter(|line| line.contains(" rw-p ")).filter_map(|line| line.split('-').next());
        begins.filter(|begin| u64::from_str_radix(begin, 16).is_ok_and(|begin| begin % (64 << 20) == 0)).count()
    };
    let (shared, of_their_own) = (n_heaps(None), n_heaps(Some("1000")));
    assert!(shared <= 8, "{shared} heaps");
    assert!(of_their_own > 8, "expected several arenas if separate arenas are allowed, got {of_their_own}");
}

#[test]
fn interrupt_completes_files_of_looped_images() {
    let folder = Folder::new("interrupt-pictures");
    folder.picture("a.png", 64, 64, [255, 0, 0]);
    check_interrupt(&folder, &["--input", &folder.file("a.png"), "--loop"], 1);
}

#[test]
fn interrupt_completes_files_of_looped_clip() {
    let folder = Folder::new("interrupt-clip");
    let clip = folder.file("clip.mp4");
    assert!(roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", "test:15", "--video", &clip]).status.success());
    // Wait for more lines than the clip has frames, so that the loop has restarted at least once.
    check_interrupt(&folder, &["--input", &clip, "--loop"], 40);
}

#[test]
fn interrupt_completes_files_of_live_source() {
    let folder = Folder::new("interrupt-test");
    check_interrupt(&folder, &["--input", "test:1000000"], 1);
}

/// Interrupts a run once it has written this many lines.
fn check_interrupt(folder: &Folder, input: &[&str], n_lines: usize) {
    let (json, video) = (folder.file("o.jsonl"), folder.file("o.mp4"));
    let colors = folder.file("colors.toml");
    let arguments = ["run", &colors, "--json", &json, "--video", &video].into_iter().chain(input.iter().copied());
    let child = command().args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    // The growing results file is the signal to interrupt.
    while std::fs::read_to_string(&json).map_or(0, |text| text.lines().count()) < n_lines {
        std::thread::yield_now();
    }
    // Use the shell's builtin `kill`, because not every machine has the program.
    let interrupt = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &interrupt]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("by interrupt") && !said.contains("CRITICAL") && !said.contains("incomplete"), "{said}");
    let again = folder.file("again.jsonl");
    assert!(roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", &video, "--json", &again]).status.success());
    let (n_results, n_played) = (lines(&json).len(), lines(&again).len());
    // The muxer estimates the duration of the last frame, and a reader may drop it.
    assert!(n_played == n_results || n_played + 1 == n_results, "expected a playable video with every frame: {n_played} of {n_results}");
}

#[test]
fn wrong_usage_is_explained_with_exit_code_2() {
    let folder = Folder::new("usage");
    let colors = folder.file("colors.toml");
    check_fails(&["run"], 2, &["--input", "Usage"]);
    check_fails(&["run", &colors, "--input", "test:", "--set", "detectr=x"], 2, &["no parameter `detectr`", "did you mean `detector`"]);
    check_fails(&["run", &colors, "--input", "test:", "--set", "detector"], 2, &["NAME=VALUE"]);
    check_fails(&["run", &colors, "--input", "test:x"], 2, &["test:FRAMES"]);
    check_fails(&["run", &colors, "--input", "test:", "--video", &folder.file("o.avi")], 2, &[".mp4"]);
    check_fails(&["run", &colors, "--input", "test:", "--json", "-", "--video", "-"], 2, &["only one"]);
    check_fails(&["run", &colors, "--input", "test:", "--loop"], 2, &["--loop needs a file"]);
    let two = ["run", &colors, "--input", "test:", "--input", "test:"];
    check_fails(&[&two[..], &["--json", "o.jsonl"]].concat(), 2, &["2 inputs", "{stream}"]);
    check_fails(&[&two[..], &["--video", "-"]].concat(), 2, &["expected one input, got 2"]);
    check_fails(&["run", &colors, "--input", "test:", "--input", "test:x"], 2, &["test:FRAMES"]);
}

#[test]
fn failure_is_explained_with_exit_code_1() {
    let folder = Folder::new("failed");
    let colors = folder.file("colors.toml");
    check_fails(&["run", "no.toml", "--input", "test:"], 1, &["no.toml", "expected a file"]);
    check_fails(&["run", &colors, "--input", "no.mp4"], 1, &["no.mp4", "expected a video"]);
    check_fails(&["run", &colors, "--input", "test:", "--set", "detector=no.onnx"], 1, &["no.onnx", "check the path"]);
    for model in [&*crate::harness::tiny("rectangle.onnx"), "nowhere.xml"] {
        check_fails(&["run", model, "--input", "test:"], 2, &["got the model", &format!("write `--model {model}`")]);
    }
    check_fails(&["run", &colors, "--input", "test:", "--device", "TPU"], 1, &["no device `TPU`", "CPU"]);
    check_fails(&["run", &colors, "--input", "test:", "--json", &folder.file("no/o.jsonl")], 1, &["does not exist", "create the folder"]);
    check_fails(&["run", &colors, "--input", "test:", "--video", &folder.file("no/o.mp4")], 1, &["does not exist", "create the folder"]);
    check_fails(&["run", &colors, "--input", "test:5", "--json", "/dev/full"], 1, &["lines of results", "/dev/full"]);
    check_fails(&["run", &colors, "--input", &folder.file("*.png")], 1, &["no images"]);
    std::fs::write(folder.0.join("text.mp4"), "this is no video").unwrap();
    check_fails(&["run", &colors, "--input", &folder.file("text.mp4")], 1, &["cannot play", "text.mp4"]);
    crate::harness::run(&crate::harness::pipeline(&format!(
        "audiotestsrc num-buffers=20 ! wavenc ! filesink location={}",
        folder.file("sound.wav")
    )));
    check_fails(&["run", &colors, "--input", &folder.file("sound.wav")], 1, &["sound.wav", "expected a file or stream with video"]);
    check_fails(&["inspect", &folder.file("text.mp4")], 1, &["not an ONNX model"]);
    // The message contains the reason only once.
    check_fails(&["bench", "no.onnx"], 1, &["cannot read model `no.onnx`", "check the path\n"]);
}

#[test]
fn show_without_display_is_an_error() {
    let folder = Folder::new("show");
    let output = command()
        .args(["run", &folder.file("colors.toml"), "--input", "test:3", "--show"])
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--show needs a display"));
}

#[test]
fn inspect_and_devices_print_their_reports() {
    let folder = Folder::new("inspect");
    let said = |arguments: &[&str]| {
        let output = roiflow(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/color.onnx");
    let text = said(&["inspect", model.to_str().unwrap()]);
    assert!(["input  `image` [?, 3, 8, 8] f32", "task classification", "description"].iter().all(|part| text.contains(part)), "{text}");
    let beside = std::fs::read_to_string(model.with_extension("toml")).unwrap();
    let own = folder.file("own.toml");
    std::fs::write(&own, beside.replace("[input]\n", "[input]\nantialias = true\nrotate = 90\nsquare = true\nmargin = 0.1\n")).unwrap();
    let text = said(&["inspect", model.to_str().unwrap(), "--description", &own]);
    let parts = [
        "image 8x8: rgb, nchw, stretch, rotate 90, antialias, (pixel",
        "of a detection: margin 0.1, square true\n",
        "decoder classes",
        " labels\n",
    ];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    let number = said(&["inspect", model.with_file_name("brightness.onnx").to_str().unwrap()]);
    assert!(number.contains("decoder expectation") && !number.contains(" labels") && !number.contains("threshold"), "{number}");
    let text = said(&["inspect", &folder.file("colors.toml")]);
    assert!(["Colors of rectangles.", "detector (path", "the detector"].iter().all(|part| text.contains(part)), "{text}");
    assert!(said(&["devices"]).contains("CPU"));
    let devices: serde_json::Value = serde_json::from_str(&said(&["devices", "--json"])).unwrap();
    for name in ["CPU", "AUTO", "ORT.CPU", "OPENVINO.CPU"] {
        let device =
            devices.as_array().unwrap().iter().find(|device| device["name"] == name).unwrap_or_else(|| panic!("{name}: {devices}"));
        // An unavailable device has `install` with instructions instead of `properties`.
        let told = if device["available"] == true { &device["properties"] } else { &device["install"] };
        assert!(!told.is_null(), "{device}");
    }
    let double = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny/double.onnx");
    for mode in ["latency", "throughput"] {
        let bench =
            ["bench", double.to_str().unwrap(), "--device", "CPU", "--mode", mode, "--requests", "2", "--shape", "3x4", "--seconds", "0.1"];
        assert!(said(&bench).contains("throughput"));
        let measured: serde_json::Value = serde_json::from_str(&said(&[&bench[..], &["--json"]].concat())).unwrap();
        assert_eq!(
            (&measured["device"], &measured["requests"], &measured["inputs"]["x"]),
            (&"CPU".into(), &2.into(), &serde_json::json!([3, 4]))
        );
        assert!(measured["throughput"].as_f64().unwrap() > 0.0 && measured["latency_ms"]["p99"].as_f64().unwrap() > 0.0, "{measured}");
    }
    check_fails(&["bench", double.to_str().unwrap(), "--shape", "3x5"], 1, &["does not accept the shape"]);
    check_fails(&["bench", double.to_str().unwrap(), "--shape", "y=3x4"], 1, &["`y`", "`x`"]);
    assert!(said(&["completions", "bash"]).contains("_roiflow"));
}

#[test]
fn describe_writes_known_fields_and_overwrites_no_file() {
    let folder = Folder::new("describe");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let said = |arguments: &[&str]| {
        let output = roiflow(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        (String::from_utf8(output.stdout).unwrap(), said)
    };
    std::fs::copy(root.join("tests/golden/descriptions/yolo.onnx"), folder.0.join("yolo.onnx")).unwrap();
    let model = folder.file("yolo.onnx");
    let (before, _) = said(&["inspect", &model]);
    assert!(
        before.contains("description of the metadata of an Ultralytics export; `roiflow describe` writes this description to a file"),
        "{before}"
    );
    assert!(before.contains("assumed: [input] `color` is rgb"), "{before}");
    let (printed, error) = said(&["describe", &model]);
    assert!(error.contains("assumed: ") && !Path::new(&folder.file("yolo.toml")).exists(), "{error}");
    let to_file = ["describe", &model, "--out", &folder.file("yolo.toml")];
    let (out, error) = said(&to_file);
    assert!(out.is_empty() && error.contains("wrote `") && error.contains("assumed: "), "{out}{error}");
    let text = std::fs::read_to_string(folder.file("yolo.toml")).unwrap();
    assert_eq!(text, printed);
    assert!(!text.contains("#:schema") && text.contains("# Assumed: Ultralytics preprocesses this way.\nscale = [255.0]"), "{text}");
    let (after, _) = said(&["inspect", &model]);
    let of_picture = |text: &str| text.lines().find(|line| line.contains("  image ")).unwrap().to_owned();
    assert!(after.contains("yolo.toml`, next to the model") && of_picture(&after) == of_picture(&before), "{after}");
    check_fails(&to_file, 1, &["yolo.toml", "already exists", "--force"]);
    assert_eq!(std::fs::read_to_string(folder.file("yolo.toml")).unwrap(), text);
    // The description refers to the schema file only if the schema file exists.
    std::fs::write(folder.0.join("model-description.schema.json"), said(&["describe", "--schema"]).0).unwrap();
    std::fs::write(folder.0.join("names.txt"), "a\nb\nc\nd\n").unwrap();
    said(&[&to_file[..], &["--force", "--labels-file", &folder.file("names.txt")]].concat());
    let text = std::fs::read_to_string(folder.file("yolo.toml")).unwrap();
    assert!(text.contains("labels = [\"a\", \"b\", \"c\", \"d\"]"), "{text}");
    assert!(text.starts_with("#:schema model-description.schema.json\n"), "{text}");
    // Fields that `describe` cannot determine are reported, and the user must complete them in the file.
    std::fs::copy(root.join("assets/tiny/color.onnx"), folder.0.join("color.onnx")).unwrap();
    let (out, error) = said(&["describe", &folder.file("color.onnx"), "--out", "-"]);
    assert!(out.contains("# task = \"detection\"") && out.contains("layout = \"nchw\"") && error.contains("  missing: "), "{out}{error}");
    check_fails(&["inspect", &folder.file("color.onnx")], 1, &["no description", "color.toml", "roiflow describe"]);
    let json = r#"{"json_schema_version": "2.2.0", "input_preproc": [], "output_postproc": [{"converter": "label", "method": "softmax"}]}"#;
    std::fs::write(folder.0.join("proc.json"), json).unwrap();
    let (out, _) = said(&["describe", &folder.file("color.onnx"), "--model-proc", &folder.file("proc.json"), "--out", "-"]);
    assert!(out.contains("color = \"bgr\"") && out.contains("activation = \"softmax\""), "{out}");
    let schema: serde_json::Value = serde_json::from_str(&said(&["describe", "--schema"]).0).unwrap();
    assert_eq!(schema["title"], "roiflow model description");
}
