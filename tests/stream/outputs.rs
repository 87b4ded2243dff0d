//! Outputs of `roiflow run`: inputs are never overwritten, nothing is written early, and written files are readable at any time.

use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

use crate::cli::{Folder, check_fails, command, roiflow};

/// Time after which a wait fails the test.
const DEADLINE: Duration = Duration::from_secs(60);

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn n_lines(path: &str) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the number of frames of a video. Only a truncation error may be reported.
fn played(folder: &Folder, video: &str) -> usize {
    let json = folder.file("played.jsonl");
    let output = roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", video, "--json", &json]);
    assert!(output.status.success() || said(&output).contains("is truncated"), "{video}: {}", said(&output));
    n_lines(&json)
}

/// Writes a clip of this many frames into the folder, and returns its path.
fn clip(folder: &Folder, name: &str, n_frames: usize) -> String {
    let path = folder.file(name);
    let output = roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", &format!("test:{n_frames}"), "--video", &path]);
    assert!(output.status.success(), "{}", said(&output));
    path
}

fn picture(path: &str, width: u32, height: u32) {
    image::RgbImage::from_pixel(width, height, image::Rgb([255, 0, 0])).save(path).unwrap();
}

fn fifo(folder: &Folder, name: &str) -> String {
    let path = folder.file(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

fn signal(child: &Child, signal: &str) {
    // Use the shell's builtin `kill`, because not every machine has the program.
    assert!(Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status().unwrap().success());
}

/// Runs the command. Asserts a usage error, and that none of these files changed.
fn check_refused(arguments: &[&str], files: &[&str]) {
    let contents = || files.iter().map(|file| std::fs::read(file).unwrap()).collect::<Vec<_>>();
    let before = contents();
    let output = roiflow(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
    assert!(contents() == before, "{arguments:?}: a file changed");
}

#[test]
fn output_equal_to_input_is_refused() {
    let folder = Folder::new("outputs-input");
    let colors = folder.file("colors.toml");
    let clip = clip(&folder, "clip.mp4", 5);
    let (soft, hard) = (folder.file("soft.mp4"), folder.file("hard.mp4"));
    symlink("clip.mp4", &soft).unwrap();
    std::fs::hard_link(&clip, &hard).unwrap();
    symlink(".", folder.file("again")).unwrap();
    std::fs::create_dir(folder.file("sub")).unwrap();
    let in_linked_folder = folder.file("again/clip.mp4");
    let by_stream = folder.file("{stream}.mp4");
    for output in [&clip, &soft, &hard, &in_linked_folder, &by_stream, &folder.file("sub/../clip.mp4")] {
        for option in ["--video", "--json", "--trace"] {
            if option == "--trace" && output == &by_stream {
                continue;
            }
            check_refused(&["run", &colors, "--input", &clip, option, output], &[&clip, &colors]);
        }
    }
    let uri = format!("file://{clip}");
    check_refused(&["run", &colors, "--input", &uri, "--video", &clip], &[&clip]);
    check_refused(&["run", &colors, "--input", &soft, "--video", &hard], &[&clip]);
    // The output of one stream is the input of another.
    let other = folder.file("other.mp4");
    std::fs::copy(&clip, &other).unwrap();
    check_refused(&["run", &colors, "--input", &clip, "--input", &other, "--json", &by_stream], &[&clip, &other]);
    // The output path is relative to the working folder.
    let output = command().args(["run", "colors.toml", "--input", &clip, "--video", "./clip.mp4"]).current_dir(folder.file(".")).output();
    assert_eq!(output.unwrap().status.code(), Some(2));
    assert_eq!(played(&folder, &clip), 5);
}

#[test]
fn output_equal_to_model_or_label_file_is_refused() {
    let folder = Folder::new("outputs-read");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
    let file = |name: &str| folder.file(name);
    for name in ["rectangle.onnx", "rectangle.toml"] {
        std::fs::copy(tiny.join(name), file(name)).unwrap();
    }
    std::fs::write(file("rectangle.bin"), "weights").unwrap();
    std::fs::write(file("labels.txt"), "rectangle\n").unwrap();
    std::fs::create_dir(file("pictures")).unwrap();
    for name in ["pictures/a.png", "pictures/b.png"] {
        picture(&file(name), 32, 32);
    }
    let colors = std::fs::read_to_string(file("colors.toml"))
        .unwrap()
        .replace("model={detector}", &format!("model={{detector}} labels-file={}", file("labels.txt")));
    std::fs::write(file("colors.toml"), colors).unwrap();
    let detector = format!("detector={}", file("rectangle.onnx"));
    let run = |output: &str| {
        let path = file(output);
        let arguments = ["run", &file("colors.toml"), "--set", &detector, "--input", &file("pictures"), "--json", &path];
        check_refused(&arguments, &[&path]);
        let events = ["run", &file("colors.toml"), "--set", &detector, "--input", &file("pictures"), "--events", &path];
        check_refused(&events, &[&path]);
    };
    for output in ["rectangle.onnx", "rectangle.toml", "rectangle.bin", "labels.txt", "colors.toml", "pictures/a.png", "pictures/b.png"] {
        run(output);
    }
    // The new file would be an input of the next run, so the command rejects it.
    check_fails(&["run", &file("colors.toml"), "--input", &file("pictures"), "--json", &file("pictures/c.png")], 2, &["c.png"]);
    assert!(!Path::new(&file("pictures/c.png")).exists());
    // In this description, the output is a `roipublish` in the graph.
    let text = std::fs::read_to_string(file("colors.toml")).unwrap();
    std::fs::write(file("own.toml"), text.replace("{json}", &format!("roipublish address={} ! {{json}}", file("pictures/b.png")))).unwrap();
    check_refused(&["run", &file("own.toml"), "--input", &file("pictures")], &[&file("pictures/b.png")]);
    let described = ["describe", &file("rectangle.onnx"), "--force", "--out", &file("rectangle.onnx")];
    check_refused(&described, &[&file("rectangle.onnx")]);
}

#[test]
fn two_outputs_to_same_file_are_refused() {
    let folder = Folder::new("outputs-two");
    let colors = folder.file("colors.toml");
    symlink(".", folder.file("again")).unwrap();
    let (new, same) = (folder.file("new.mkv"), folder.file("again/new.mkv"));
    for arguments in [
        ["--json", &new, "--trace", &new],
        ["--json", &new, "--trace", &same],
        ["--json", &new, "--video", &same],
        ["--json", "-", "--video", "-"],
        ["--json", "-", "--video", "/dev/stdout"],
        ["--json", "/dev/stdout", "--trace", "-"],
        ["--json", &new, "--events", &same],
        ["--trace", &new, "--events", &same],
    ] {
        check_refused(&[&["run", &colors, "--input", "test:3"][..], &arguments].concat(), &[]);
        assert!(!Path::new(&new).exists(), "{arguments:?}");
    }
    // Both streams would write to one file, because the second name is a link to the first.
    std::fs::write(folder.file("test.jsonl"), "old").unwrap();
    symlink("test.jsonl", folder.file("test-2.jsonl")).unwrap();
    let two = ["run", &colors, "--input", "test:3", "--input", "test:3", "--json", &folder.file("{stream}.jsonl")];
    check_refused(&two, &[&folder.file("test.jsonl")]);
}

#[test]
fn device_files_may_be_shared_by_outputs() {
    let folder = Folder::new("outputs-devices");
    let colors = folder.file("colors.toml");
    let one = roiflow(&["run", &colors, "--input", "test:3", "--json", "/dev/null", "--trace", "/dev/null", "--video", "/dev/null"]);
    assert!(one.status.success(), "{}", said(&one));
    let two = roiflow(&["run", &colors, "--input", "test:3", "--input", "test:3", "--json", "/dev/null"]);
    assert!(two.status.success(), "{}", said(&two));
    let stdout = roiflow(&["run", &colors, "-q", "--input", "test:3", "--input", "test:3", "--json", "/dev/stdout"]);
    assert_eq!(String::from_utf8_lossy(&stdout.stdout).lines().count(), 6, "{}", said(&stdout));
}

#[test]
fn failed_start_keeps_earlier_results() {
    let folder = Folder::new("outputs-start");
    let colors = folder.file("colors.toml");
    std::fs::write(folder.file("text.mp4"), "this is no video").unwrap();
    let results = ["o.jsonl", "o.mp4", "o.trace"].map(|name| folder.file(name));
    let [json, video, trace] = &results;
    for start in [
        vec!["--input", "test:3", "--set", "detector=no.onnx"],
        vec!["--input", "test:3", "--device", "TPU"],
        vec!["--input", &folder.file("text.mp4")],
        vec!["--input", "no.mp4"],
    ] {
        results.iter().for_each(|path| std::fs::write(path, "old").unwrap());
        let run = [&["run", &colors, "--json", json, "--video", video, "--trace", trace][..], &start].concat();
        assert_eq!(roiflow(&run).status.code(), Some(1), "{start:?}");
        assert!(results.iter().all(|path| std::fs::read(path).unwrap() == b"old"), "{start:?}");
        // The failed run also creates no file.
        results.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        roiflow(&run);
        assert!(results.iter().all(|path| !Path::new(path).exists()), "{start:?}");
    }
}

#[test]
fn unwritable_destination_is_reported_at_start() {
    let folder = Folder::new("outputs-unwritable");
    let colors = folder.file("colors.toml");
    std::fs::create_dir(folder.file("dir.mp4")).unwrap();
    for option in ["--json", "--video", "--trace"] {
        for (path, code) in
            [("no/o.mp4", 1), ("dir.mp4", 1), ("new.mp4/", 1), ("colors.toml/o.mp4", 1)].map(|(path, code)| (folder.file(path), code))
        {
            check_fails(&["run", &colors, "--input", "test:1000000", option, &path], code, &["cannot write"]);
        }
        check_fails(&["run", &colors, "--input", "test:1000000", option, ""], 2, &[option]);
    }
    // No user can create files in `/proc`.
    check_fails(&["run", &colors, "--input", "test:1000000", "--json", "/proc/o.jsonl"], 1, &["cannot write"]);
    let odd = folder.file("line\nbreak {stream}.jsonl");
    assert!(roiflow(&["run", &colors, "--input", "test:3", "--json", &odd]).status.success());
    assert_eq!(n_lines(&odd.replace("{stream}", "test")), 3);
}

#[test]
fn existing_results_are_kept_or_appended_on_request() {
    let folder = Folder::new("outputs-exists");
    let colors = folder.file("colors.toml");
    let json = folder.file("o.jsonl");
    let run = |more: &[&str]| roiflow(&[&["run", &colors, "-q", "--input", "test:3", "--json", &json][..], more].concat());
    assert!(run(&["--no-overwrite"]).status.success());
    check_refused(&["run", &colors, "--input", "test:3", "--json", &json, "--no-overwrite"], &[&json]);
    check_refused(&["run", &colors, "--input", "test:3", "--trace", &json, "--no-overwrite"], &[&json]);
    let video = clip(&folder, "o.mp4", 3);
    check_refused(&["run", &colors, "--input", "test:3", "--video", &video, "--no-overwrite"], &[&video]);
    assert!(run(&["--append"]).status.success());
    assert_eq!(n_lines(&json), 6);
    // The partial last line of a killed run is not continued.
    std::fs::write(&json, "{\"torn").unwrap();
    assert!(run(&["--append"]).status.success());
    assert_eq!(n_lines(&json), 4);
    assert!(run(&[]).status.success());
    assert_eq!(n_lines(&json), 3);
    check_fails(&["run", &colors, "--input", "test:3", "--video", &video, "--json", &json, "--append"], 2, &["--append"]);
    check_fails(&["run", &colors, "--input", "test:3", "--append", "--no-overwrite", "--json", &json], 2, &["--append"]);
}

#[test]
fn input_without_frames_writes_empty_results_file() {
    let folder = Folder::new("outputs-empty");
    let json = folder.file("o.jsonl");
    std::fs::write(&json, "old\n").unwrap();
    let output = roiflow(&["run", &folder.file("colors.toml"), "--input", "test:0", "--json", &json]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(std::fs::read(&json).unwrap(), b"");
}

#[test]
fn video_of_killed_run_is_playable() {
    let folder = Folder::new("outputs-killed");
    for ending in ["mp4", "mov", "mkv"] {
        let (json, video) = (folder.file("o.jsonl"), folder.file(&format!("o.{ending}")));
        let mut child = command()
            .args(["run", &folder.file("colors.toml"), "-q", "--input", "test:1000000", "--json", &json, "--video", &video])
            .spawn()
            .unwrap();
        // Wait for more frames than the encoder and one fragment can hold, so that the file has some frames.
        wait_until("200 frames have results", || {
            std::fs::metadata(&video).is_ok_and(|file| file.len() > 0)
                && std::fs::read_to_string(&json).is_ok_and(|text| text.lines().count() >= 200)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let (n_frames, n_lines) = (played(&folder, &video), n_lines(&json));
        // A killed run loses the data in the encoder and in the last fragment.
        assert!(n_frames > 0 && n_frames + 100 >= n_lines, "{ending}: {n_frames} of {n_lines}");
        std::fs::remove_file(json).unwrap();
    }
}

#[test]
fn finished_video_has_duration_and_is_seekable() {
    let folder = Folder::new("outputs-seek");
    gst::init().unwrap();
    for ending in ["mp4", "mov", "mkv"] {
        let video = clip(&folder, &format!("o.{ending}"), 90);
        assert_eq!(std::fs::read_dir(folder.file(".")).unwrap().count(), 2, "no temporary file remains");
        let pipeline = gst::parse::launch("filesrc name=file ! decodebin ! fakesink name=sink sync=false").unwrap();
        let pipeline = pipeline.downcast::<gst::Pipeline>().unwrap();
        pipeline.by_name("file").unwrap().set_property("location", &video);
        pipeline.set_state(gst::State::Paused).unwrap();
        let time = gst::ClockTime::from_seconds(20);
        assert_eq!(pipeline.state(time).0, Ok(gst::StateChangeSuccess::Success), "{ending}");
        let duration = pipeline.query_duration::<gst::ClockTime>().unwrap();
        assert!((2900..3100).contains(&duration.mseconds()), "{ending}: {duration}");
        pipeline.seek_simple(gst::SeekFlags::FLUSH | gst::SeekFlags::ACCURATE, gst::ClockTime::from_seconds(2)).unwrap();
        assert_eq!(pipeline.state(time).0, Ok(gst::StateChangeSuccess::Success), "{ending}");
        let sample: gst::Sample = pipeline.by_name("sink").unwrap().property("last-sample");
        let position = sample.segment().unwrap().downcast_ref::<gst::ClockTime>().unwrap().to_stream_time(sample.buffer().unwrap().pts());
        assert!((1950..2050).contains(&position.unwrap().mseconds()), "{ending}: {position:?}");
        pipeline.set_state(gst::State::Null).unwrap();
        std::fs::remove_file(video).unwrap();
    }
}

#[test]
fn unwritable_results_end_the_run() {
    let folder = Folder::new("outputs-dev-full");
    let colors = folder.file("colors.toml");
    let video = folder.file("o.mp4");
    let run = ["run", &colors, "--input", "test:1000000", "--json", "/dev/full", "--video", &video];
    check_fails(&run, 1, &["/dev/full", "No space left", "could not be written"]);
    // The run was drained: the video has all received frames.
    assert!(played(&folder, &video) > 0);
}

#[test]
fn closed_reader_ends_run_quietly() {
    let folder = Folder::new("outputs-closed");
    let (colors, video) = (folder.file("colors.toml"), folder.file("o.mkv"));
    for arguments in [
        vec!["run", &colors, "--input", "test:1000000", "--json", "-", "--video", &video],
        vec!["run", &colors, "--input", "test:1000000", "--input", "test:1000000", "--json", "-"],
        vec!["run", &colors, "--input", "test:1000000", "--video", "-"],
        vec!["devices"],
        vec!["devices", "--json"],
        vec!["describe", "--schema"],
        vec!["completions", "bash"],
        vec!["inspect", &colors],
    ] {
        // Simulates a reader that closes immediately, even if the command writes little.
        let (reader, writer) = std::io::pipe().unwrap();
        let child = command().args(&arguments).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        drop(reader);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(13), "{arguments:?}: {} {}", output.status, said(&output));
        assert!(!["error", "panicked", "warning"].iter().any(|word| said(&output).contains(word)), "{arguments:?}: {}", said(&output));
    }
    assert!(played(&folder, &video) > 0, "the second output is complete");
}

#[test]
fn fifo_closed_by_reader_is_an_error() {
    let folder = Folder::new("outputs-fifo");
    let path = fifo(&folder, "fifo.jsonl");
    let arguments = ["run", &folder.file("colors.toml"), "--input", "test:1000000", "--json", &path];
    let child = command().args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(std::fs::File::open(&path).unwrap()), &mut line).unwrap();
    assert!(line.starts_with('{'), "{line}");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("fifo.jsonl"), "{}", said(&output));
}

/// Sends SIGTERM when `is_ready` returns true. Asserts that the process ends within a time limit, and returns its output.
fn check_ends(mut command: Command, what: &str, is_ready: impl Fn() -> bool) -> Output {
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    wait_until(what, || is_ready() && is_handling_signals(&child));
    signal(&child, "TERM");
    let begin = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10), "{what}: {:?}", begin.elapsed());
    output
}

/// Whether the process has installed its signal handlers. An earlier signal would end the process at once.
fn is_handling_signals(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    caught.is_some_and(|caught| caught >> 14 & 1 == 1)
}

#[test]
fn stalled_reader_does_not_delay_end() {
    let folder = Folder::new("outputs-stalled");
    let video = folder.file("o.mp4");
    let (reader, writer) = std::io::pipe().unwrap();
    let mut run = command();
    run.args(["run", &folder.file("colors.toml"), "--input", "test:1000000", "--json", "-", "--video", &video]).stdout(writer);
    let size = std::cell::Cell::new((0, Instant::now()));
    let stands_still = || {
        let now = std::fs::metadata(&video).map_or(0, |file| file.len());
        if now != size.get().0 {
            size.set((now, Instant::now()));
        }
        now > 0 && size.get().1.elapsed() > Duration::from_secs(1)
    };
    let output = check_ends(run, "a stalled reader", stands_still);
    drop(reader);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("lost"), "{}", said(&output));
    assert!(played(&folder, &video) > 0, "the video is complete");
}

#[test]
fn fifo_without_reader_does_not_delay_end() {
    let folder = Folder::new("outputs-fifos");
    let path = fifo(&folder, "fifo.mkv");
    for option in ["--json", "--video", "--trace"] {
        let mut run = command();
        run.args(["run", &folder.file("colors.toml"), "--input", "test:1000000", option, &path]);
        let output = check_ends(run, option, || true);
        // The run may end without an error only if the signal arrived before the first frame.
        let has_no_frames = said(&output).contains("frames  0 in");
        assert!(output.status.code() != Some(0) || has_no_frames, "{option}: {}", said(&output));
    }
}

#[test]
fn fifo_without_reader_does_not_delay_error() {
    let folder = Folder::new("outputs-fifo-error");
    let queue = "queue max-size-buffers=0 max-size-bytes=0 max-size-time=0";
    let graph = format!("{{source}} ! tee name=t t. ! {queue} ! {{video}} t. ! {queue} ! identity error-after=400 ! fakesink");
    let description = format!("version = 1\nname = \"e\"\ndescription = \"Fails.\"\n[pipeline]\ngraph = \"{graph}\"\n");
    std::fs::write(folder.file("error.toml"), description).unwrap();
    let path = fifo(&folder, "fifo.mkv");
    let begin = Instant::now();
    let output = roiflow(&["run", &folder.file("error.toml"), "--input", "test:2000", "--video", &path]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("identity") && begin.elapsed() < Duration::from_secs(20), "{:?}: {}", begin.elapsed(), said(&output));
}

#[test]
fn hanging_start_does_not_delay_end() {
    let folder = Folder::new("outputs-hang");
    // The input is a FIFO without a writer, so opening it hangs.
    let path = fifo(&folder, "fifo.mp4");
    let json = folder.file("o.jsonl");
    std::fs::write(&json, "old").unwrap();
    // The input is a server that accepts connections and never responds.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let camera = format!("rtsp://{}/camera", server.local_addr().unwrap());
    for input in [&path, &camera] {
        let mut run = command();
        run.args(["run", &folder.file("colors.toml"), "--json", &json, "--input", input]);
        let output = check_ends(run, "a start that hangs", || true);
        assert_eq!(output.status.code(), Some(128 + 15), "{input:?}: {}", said(&output));
        assert_eq!(std::fs::read(&json).unwrap(), b"old");
    }
}

#[test]
fn second_signal_ends_process_at_once() {
    let folder = Folder::new("outputs-second");
    // The start of the pipeline hangs, because the FIFO has no writer.
    let input = fifo(&folder, "fifo.mp4");
    let mut child = command().args(["run", &folder.file("colors.toml"), "--input", &input]).spawn().unwrap();
    wait_until("the process handles signals", || is_handling_signals(&child));
    let begin = Instant::now();
    // Signals in quick succession count as one.
    let together = format!("kill -TERM {0}; kill -INT {0}", child.id());
    assert!(Command::new("sh").args(["-c", &together]).status().unwrap().success());
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none());
    signal(&child, "INT");
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(128 + 2));
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
}

#[test]
fn video_is_written_for_odd_and_tiny_frame_sizes() {
    let folder = Folder::new("outputs-odd");
    let colors = folder.file("colors.toml");
    for (width, height) in [(101, 75), (100, 75), (7, 9), (1, 1)] {
        let name = format!("{width}x{height}.png");
        picture(&folder.file(&name), width, height);
        let video = folder.file("o.mp4");
        let output = roiflow(&["run", &colors, "-q", "--input", &folder.file(&name), "--video", &video]);
        assert!(output.status.success(), "{name}: {}", said(&output));
        assert_eq!(played(&folder, &video), 1, "{name}");
    }
    let clip = folder.file("odd.mkv");
    crate::harness::run(&crate::harness::pipeline(&format!(
        "videotestsrc num-buffers=10 ! video/x-raw,width=101,height=75 ! videoconvert ! jpegenc ! matroskamux ! filesink location={clip}"
    )));
    for ending in ["mp4", "mkv"] {
        let video = folder.file(&format!("o.{ending}"));
        let output = roiflow(&["run", &colors, "-q", "--input", &clip, "--video", &video]);
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(played(&folder, &video), 10);
    }
}

/// `roiflow run --show` on a fake display, with a sink instead of a window.
fn show(folder: &Folder, more: &[&str]) -> Output {
    let socket = folder.file("wayland");
    let display = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    // Each pipeline that is built connects to the display once.
    std::thread::spawn(move || {
        for stream in display.incoming() {
            let mut stream = stream.unwrap();
            std::io::Read::read_exact(&mut stream, &mut [0; 12]).unwrap();
            std::io::Write::write_all(&mut stream, b"an answer").unwrap();
        }
    });
    command()
        .args(["run", &folder.file("colors.toml"), "--show"])
        .args(more)
        .env_remove("DISPLAY")
        .env("WAYLAND_DISPLAY", &socket)
        .env("GST_PLUGIN_FEATURE_RANK", "fakevideosink:MAX")
        .output()
        .unwrap()
}

#[test]
fn window_does_not_drop_frames_from_results() {
    let folder = Folder::new("outputs-show");
    let clip = folder.file("clip.mkv");
    // The clip has more frames per second than this machine can infer, so the frames in the window are late.
    crate::harness::run(&crate::harness::pipeline(&format!(
        "videotestsrc num-buffers=300 ! video/x-raw,width=640,height=480,framerate=300/1 ! videoconvert ! x264enc speed-preset=ultrafast \
         ! h264parse ! matroskamux ! filesink location={clip}"
    )));
    let json = folder.file("o.jsonl");
    let output = show(&folder, &["--input", &clip, "--json", &json]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(n_lines(&json), 300, "{}", said(&output));
}

#[test]
fn unresponsive_display_is_an_error() {
    let folder = Folder::new("outputs-display");
    let silent = folder.file("silent");
    let _silent = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    for (names, says) in [
        (vec![("DISPLAY", ":4077")], "DISPLAY"),
        (vec![("WAYLAND_DISPLAY", &*silent)], "does not respond"),
        (vec![("DISPLAY", "nonsense")], "HOST:NUMBER"),
        (vec![("WAYLAND_DISPLAY", "wayland-4077"), ("XDG_RUNTIME_DIR", "/tmp")], "WAYLAND_DISPLAY"),
        (vec![("WAYLAND_DISPLAY", "wayland-0")], "XDG_RUNTIME_DIR"),
    ] {
        let mut run = command();
        run.args(["run", &folder.file("colors.toml"), "--input", "test:3", "--show"]);
        for name in ["DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"] {
            run.env_remove(name);
        }
        let output = run.envs(names.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{names:?}: {}", said(&output));
        assert!(said(&output).contains("--show") && said(&output).contains(says), "{names:?}: {}", said(&output));
    }
}

#[test]
fn second_run_with_the_same_output_is_refused() {
    let folder = Folder::new("same-output");
    let (colors, json, video) = (folder.file("colors.toml"), folder.file("o.jsonl"), folder.file("o.mkv"));
    let arguments = ["run", &colors, "-q", "--input", "test:", "--json", &json, "--video", &video];
    let mut first = command().args(arguments).stdin(Stdio::null()).spawn().unwrap();
    wait_until("the first run writes", || n_lines(&json) > 3 && std::fs::metadata(&video).is_ok_and(|file| file.len() > 0));
    let output = roiflow(&["run", &colors, "-q", "--input", "test:30", "--json", &json]);
    assert!(output.status.code() == Some(1) && said(&output).contains("another stream or process writes this file"), "{}", said(&output));
    // A recording begins another file if it cannot write one.
    roiflow(&["run", &colors, "-q", "--input", "test:30", "--video", &video]);
    signal(&first, "TERM");
    first.wait().unwrap();
    assert!(crate::harness::lines(&json).iter().enumerate().all(|(idx, line)| line["frame"] == idx), "each line of the first run is there");
    assert!(played(&folder, &video) > 3);
}
