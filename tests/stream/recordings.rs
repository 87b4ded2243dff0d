//! Recordings of `roiflow run` fail alone: the analysis goes on, the next file begins, and one event says so.

use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gstreamer as gst;
use gstreamer::prelude::*;
use serde_json::Value;

use crate::cli::{Folder, command, roiflow};
use crate::endings::{Said, check, n_lines, read};
use crate::harness::{caps, eventually, pipeline, run};
use crate::restarts::lines_so_far;
use crate::results_schema::check_events;
use crate::rtsp::{Server, signal};

/// Formats of video files.
const ENDINGS: [&str; 3] = ["mp4", "mov", "mkv"];

/// A run on a camera that writes results, events and a video.
struct Recording {
    child: Child,
    json: String,
    events: String,
    video: String,
}

impl Recording {
    fn start(folder: &Folder, server: &Server, ending: &str) -> Self {
        let [json, events, video] =
            [format!("{ending}.jsonl"), format!("{ending}.events"), format!("{ending}/o.{ending}")].map(|name| folder.file(&name));
        std::fs::create_dir_all(folder.file(ending)).unwrap();
        let (colors, uri) = (folder.file("colors.toml"), server.uri("rtspt", "", "/live"));
        let arguments = ["run", &*colors, "-q", "--input", &uri, "--json", &json, "--events", &events, "--video", &video];
        let child = command().args(arguments).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, json, events, video }
    }

    /// Waits for an event with this text.
    fn wait_for_event(&self, text: &str) {
        eventually(text, || std::fs::read_to_string(&self.events).is_ok_and(|events| events.contains(text)));
    }

    fn part(&self, n: u32) -> String {
        let (stem, ending) = self.video.rsplit_once('.').unwrap();
        format!("{stem}.part{n}.{ending}")
    }

    /// Waits for more results with this width.
    fn wait_for_frames(&self, width: u64, n: usize) {
        let count = || {
            if Path::new(&self.json).exists() {
                lines_so_far(&self.json).iter().filter(|line| line["resolution"]["width"] == width).count()
            } else {
                0
            }
        };
        let before = count();
        eventually("results", || count() >= before + n);
    }

    /// Interrupts the run. Returns its exit code, its words and its events.
    fn end(&mut self) -> (Option<i32>, String, Vec<Value>) {
        let said = Said::of(&mut self.child).rest_after(|| signal(&self.child, "INT"));
        let code = self.child.wait().unwrap().code();
        let events = if Path::new(&self.events).exists() { check_events(&self.events) } else { Vec::new() };
        (code, said, events)
    }
}

impl Said {
    fn rest_after(mut self, act: impl FnOnce()) -> String {
        act();
        self.rest()
    }
}

/// Returns the number of frames that a player shows.
fn played(folder: &Folder, video: &str) -> usize {
    let again = format!("{video}.jsonl");
    let (code, said) = read(&roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", video, "--json", &again]));
    assert!(code == Some(0) || said.contains("is truncated"), "{video}: {said}");
    n_lines(&again)
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

/// After a pause of the process, a camera's frames arrive at once, and many have the same timestamp.
#[test]
fn run_that_was_not_running_for_some_time_records_all_frames() {
    let folder = Folder::new("recordings-starved");
    let Some(server) = Server::start(&[]) else { return };
    let mut all = ENDINGS.map(|ending| Recording::start(&folder, &server, ending));
    all.iter().for_each(|recording| recording.wait_for_frames(320, 20));
    all.iter().for_each(|recording| signal(&recording.child, "STOP"));
    // The length of the pause is what is tested: the camera goes on sending.
    std::thread::sleep(Duration::from_millis(2500));
    all.iter().for_each(|recording| signal(&recording.child, "CONT"));
    all.iter().for_each(|recording| recording.wait_for_frames(320, 80));
    for recording in &mut all {
        let (code, said, events) = recording.end();
        assert_eq!((code, names(&events)), (Some(0), vec![]), "{said}");
        assert!(!said.contains("warning"), "{said}");
        assert_eq!(played(&folder, &recording.video), n_lines(&recording.json), "{}", recording.video);
    }
}

#[test]
fn camera_with_another_size_begins_another_file() {
    let folder = Folder::new("recordings-size");
    let Some(mut server) = Server::start(&[]) else { return };
    let mut all = ENDINGS.map(|ending| Recording::start(&folder, &server, ending));
    all.iter().for_each(|recording| recording.wait_for_frames(320, 20));
    server.tell("size 640x480");
    all.iter().for_each(|recording| recording.wait_for_frames(640, 30));
    for recording in &mut all {
        let (code, said, events) = recording.end();
        assert_eq!((code, names(&events)), (Some(0), vec!["recording-continued"]), "{said}");
        check(&events[0].to_string(), &["from 320x240 to 640x480", &recording.part(2)]);
        check(&said, &["the size of the frames has changed", "the recording continues in"]);
        let widths: Vec<u64> = lines_so_far(&recording.json).iter().map(|line| line["resolution"]["width"].as_u64().unwrap()).collect();
        let n_small = widths.iter().filter(|width| **width == 320).count();
        let parts = [recording.video.clone(), recording.part(2)].map(|path| played(&folder, &path));
        assert_eq!(parts, [n_small, widths.len() - n_small], "{}", recording.video);
    }
}

/// A pipe has one video only, so it keeps its first size.
#[test]
fn camera_with_another_size_keeps_the_size_of_a_pipe() {
    let folder = Folder::new("recordings-pipe");
    let Some(mut server) = Server::start(&[]) else { return };
    let (json, copy) = (folder.file("o.jsonl"), folder.file("copy.mkv"));
    let (colors, uri) = (folder.file("colors.toml"), server.uri("rtspt", "", "/live"));
    let arguments = ["run", &*colors, "-q", "--input", &uri, "--json", &json, "--video", "-"];
    let mut child = command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut from, mut to) = (child.stdout.take().unwrap(), std::fs::File::create(&copy).unwrap());
    let copied = std::thread::spawn(move || std::io::copy(&mut from, &mut to).unwrap());
    let count = |width: u64| {
        if Path::new(&json).exists() { lines_so_far(&json).iter().filter(|line| line["resolution"]["width"] == width).count() } else { 0 }
    };
    eventually("small frames", || count(320) > 10);
    server.tell("size 640x480");
    eventually("large frames", || count(640) > 10);
    signal(&child, "INT");
    let (code, said) = read(&child.wait_with_output().unwrap());
    copied.join().unwrap();
    assert!(code == Some(0) && !said.contains("warning"), "{said}");
    assert_eq!(played(&folder, &copy), n_lines(&json));
}

/// The file size limit makes each file fail after half a megabyte, as a disk does that becomes full.
#[test]
fn failed_file_is_kept_and_the_next_file_begins() {
    let folder = Folder::new("recordings-limit");
    for ending in ["mp4", "mkv"] {
        let [events, video] = [format!("{ending}.events"), format!("o.{ending}")].map(|name| folder.file(&name));
        let script = "trap '' XFSZ; ulimit -f 1000; exec \"$0\" \"$@\"";
        let (roiflow, colors) = (env!("CARGO_BIN_EXE_roiflow"), folder.file("colors.toml"));
        let run =
            ["-c", script, roiflow, "run", &colors, "-q", "--input", "test:2000", "--json", "-", "--events", &events, "--video", &video];
        let output = Command::new("sh").args(run).env("ROIFLOW_CACHE_DIR", "").output().unwrap();
        let (code, said) = read(&output);
        assert_eq!((code, output.stdout.iter().filter(|byte| **byte == b'\n').count()), (Some(1), 2000), "{said}");
        check(&said, &["cannot write video", &video, "frames are missing"]);
        let events = check_events(&events);
        let part = folder.file(&format!("o.part2.{ending}"));
        assert_eq!((&events[0]["event"], &events[0]["path"]), (&"recording-continued".into(), &(&*part).into()), "{events:?}");
        for path in [&video, &part] {
            assert!(std::fs::metadata(path).unwrap().len() <= 512_000);
            assert!(played(&folder, path) > 10, "{path}");
        }
    }
}

#[test]
fn recording_goes_on_when_its_folder_is_back() {
    let folder = Folder::new("recordings-folder");
    let Some(mut server) = Server::start(&[]) else { return };
    let mut recording = Recording::start(&folder, &server, "mp4");
    recording.wait_for_frames(320, 20);
    std::fs::rename(folder.file("mp4"), folder.file("away")).unwrap();
    std::fs::write(folder.file("mp4"), "a file").unwrap();
    server.tell("size 640x480");
    recording.wait_for_event("recording-lost");
    recording.wait_for_frames(640, 10);
    std::fs::remove_file(folder.file("mp4")).unwrap();
    recording.wait_for_event("recording-continued");
    // The folder was created again, with the next part only.
    let part = recording.part(2);
    std::fs::rename(folder.file("away/o.mp4"), &recording.video).unwrap();
    let (code, said, events) = recording.end();
    assert_eq!((code, names(&events)), (Some(1), vec!["recording-lost", "recording-continued"]), "{said}");
    assert_eq!(events[1]["path"], *part);
    check(&said, &["cannot write video", "ot a directory", "is tried again", "frames are missing"]);
    assert!(played(&folder, &recording.video) > 10 && played(&folder, events[1]["path"].as_str().unwrap()) > 0);
}

#[test]
fn images_that_cannot_be_written_end_no_run() {
    let folder = Folder::new("recordings-images");
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\"";
    let (roiflow, colors, images) = (env!("CARGO_BIN_EXE_roiflow"), folder.file("colors.toml"), folder.file("images"));
    let run = ["-c", script, roiflow, "run", &colors, "-q", "--input", "test:20", "--json", "-", "--images", &images];
    let output = Command::new("sh").args(run).env("ROIFLOW_CACHE_DIR", "").output().unwrap();
    let (code, said) = read(&output);
    assert_eq!((code, output.stdout.iter().filter(|byte| **byte == b'\n').count()), (Some(1), 20), "{said}");
    check(&said, &["writing failed 20 times", "frames are missing"]);
    assert_eq!(said.matches("cannot write image").count(), 1, "{said}");
}

/// Between the last frames, more time passes than between the first. So a file whose duration is computed from decoding times would end early.
#[test]
fn video_of_a_varying_frame_rate_plays_to_its_end() {
    let folder = Folder::new("recordings-rate");
    let source = folder.file("source.mkv");
    let encode = pipeline(&format!(
        "appsrc name=source format=time ! videoconvert ! x264enc speed-preset=ultrafast ! h264parse ! matroskamux ! filesink location=\"{source}\""
    ));
    let size = roiflow::frame::Size::new(64, 48);
    let appsrc = encode.by_name("source").unwrap().downcast::<gstreamer_app::AppSrc>().unwrap();
    appsrc.set_caps(Some(&caps("RGB", size)));
    let mut time = gst::ClockTime::ZERO;
    for n in 0..78_u64 {
        let mut buffer = gst::Buffer::from_slice(vec![n as u8 * 3; 64 * 48 * 3]);
        buffer.get_mut().unwrap().set_pts(time);
        time += gst::ClockTime::from_mseconds(if n < 70 { 40 } else { 300 });
        appsrc.push_buffer(buffer).unwrap();
    }
    appsrc.end_of_stream().unwrap();
    assert_eq!(run(&encode).error, None);
    for ending in ENDINGS {
        let video = folder.file(&format!("o.{ending}"));
        let (code, said) = read(&roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", &source, "--video", &video]));
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(played(&folder, &video), 78, "{ending}");
    }
}

#[test]
fn deleted_video_is_a_loss_and_the_next_part_begins() {
    let folder = Folder::new("recordings-deleted");
    let Some(server) = Server::start(&[]) else { return };
    let mut all = ENDINGS.map(|ending| Recording::start(&folder, &server, ending));
    for recording in &all {
        eventually("a file with video", || std::fs::metadata(&recording.video).is_ok_and(|file| file.len() > 4096));
    }
    std::fs::remove_dir_all(folder.file("mp4")).unwrap();
    std::fs::remove_file(&all[1].video).unwrap();
    std::fs::write(folder.file("other"), "other").unwrap();
    std::fs::rename(folder.file("other"), &all[2].video).unwrap();
    for recording in &mut all {
        recording.wait_for_event("recording-continued");
        let (code, said, events) = recording.end();
        assert_eq!((code, names(&events)), (Some(1), vec!["recording-lost", "recording-continued"]), "{said}");
        check(&events[0].to_string(), &["cannot write video", &recording.video, "was deleted"]);
        assert_eq!(events[1]["path"], *recording.part(2));
        check(&said, &["was deleted", "frames are missing"]);
        assert!(!said.contains("can be played"), "{said}");
        assert!(played(&folder, &recording.part(2)) > 0);
    }
    assert_eq!(std::fs::read(&all[2].video).unwrap(), b"other", "the file of another program stays");
}

#[test]
fn video_deleted_before_the_end_fails_the_run() {
    let folder = Folder::new("recordings-deleted-end");
    let Some(server) = Server::start(&[]) else { return };
    for ending in ["mp4", "mkv"] {
        let mut recording = Recording::start(&folder, &server, ending);
        eventually("a file with video", || std::fs::metadata(&recording.video).is_ok_and(|file| file.len() > 4096));
        std::fs::remove_file(&recording.video).unwrap();
        let (code, said, events) = recording.end();
        assert_eq!((code, names(&events)[0]), (Some(1), "recording-lost"), "{ending}: {said}");
    }
}

/// Opens a FIFO without reading from it. A write to it waits, as to a disk that hangs.
fn hold_unread(path: &str) -> std::fs::File {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    std::fs::File::options().read(true).custom_flags(0o4000).open(path).unwrap()
}

/// The folder is a link, so that the test can replace it in one step.
#[test]
fn disk_that_hangs_loses_the_video_and_the_analysis_goes_on() {
    let folder = Folder::new("recordings-hang");
    let Some(mut server) = Server::start(&[]) else { return };
    let point_to = |target: &str| {
        symlink(folder.file(target), folder.file("link")).unwrap();
        std::fs::rename(folder.file("link"), folder.file("mkv")).unwrap();
    };
    for name in ["first", "second"] {
        std::fs::create_dir(folder.file(name)).unwrap();
    }
    point_to("first");
    let mut recording = Recording::start(&folder, &server, "mkv");
    eventually("a file with video", || std::fs::metadata(&recording.video).is_ok_and(|file| file.len() > 0));
    // No file can be there until the second folder is.
    point_to("colors.toml");
    server.tell("size 640x480");
    recording.wait_for_event("recording-lost");
    let _unread = hold_unread(&folder.file("second/o.part2.mkv"));
    point_to("second");
    recording.wait_for_event("did not accept video for 10 s");
    recording.wait_for_frames(640, 10);
    recording.wait_for_event("o.part3.mkv");
    let (code, said, events) = recording.end();
    let expected = ["recording-lost", "recording-continued", "recording-lost", "recording-continued"];
    assert_eq!((code, names(&events)), (Some(1), expected.to_vec()), "{said}");
    assert!(played(&folder, &recording.part(3)) > 0);
}

#[test]
fn pipe_of_a_camera_whose_reader_hangs_loses_the_video_only() {
    let folder = Folder::new("recordings-unread");
    let Some(server) = Server::start(&[]) else { return };
    std::fs::create_dir(folder.file("mkv")).unwrap();
    let _unread = hold_unread(&folder.file("mkv/o.mkv"));
    let mut recording = Recording::start(&folder, &server, "mkv");
    recording.wait_for_event("did not accept video for 10 s");
    recording.wait_for_frames(320, 20);
    let (code, said, events) = recording.end();
    assert_eq!((code, names(&events)), (Some(1), vec!["recording-lost"]), "{said}");
    check(&said, &["the recording has stopped", "frames are missing"]);
    assert!(!said.contains("tried again"), "{said}");
}
