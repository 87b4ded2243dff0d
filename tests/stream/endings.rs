//! How a run ends: lost and stalled sources, truncated or damaged files, one of several inputs that fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use gstreamer as gst;
use gstreamer::prelude::*;

use crate::cli::{Folder, command, roiflow};
use crate::harness::{make_clip, pipeline, run};
use crate::rtsp::{Server, signal};

/// Time limit of an ending, far above its duration on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn n_lines(path: &str) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// A run on one input with JSON and video output.
pub struct Running {
    pub child: Child,
    pub json: String,
    pub video: String,
    pub colors: String,
}

impl Running {
    pub fn start(folder: &Folder, input: &str, options: &[&str]) -> Self {
        let (json, video, colors) = (folder.file("o.jsonl"), folder.file("o.mp4"), folder.file("colors.toml"));
        for path in [&json, &video] {
            let _was_there = std::fs::remove_file(path);
        }
        let arguments = ["run", &colors, "--input", input, "--json", &json, "--video", &video];
        let child = command().args(arguments).args(options).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, json, video, colors }
    }

    pub fn wait_for_lines(&mut self, n: usize) {
        let begin = Instant::now();
        while n_lines(&self.json) < n {
            assert!(begin.elapsed() < PATIENCE, "{} of {n} lines came", n_lines(&self.json));
            if let Some(status) = self.child.try_wait().unwrap() {
                let mut said = String::new();
                self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("it ended with {status} before {n} lines: {said}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns standard error of the run, to be read line by line.
    pub fn said(&mut self) -> Said {
        Said::of(&mut self.child)
    }

    /// Waits for the end of the run. Returns exit code, output, and the duration of the wait.
    pub fn end(self) -> (Option<i32>, String, Duration) {
        let begin = Instant::now();
        let (code, said) = read(&self.child.wait_with_output().unwrap());
        (code, said, begin.elapsed())
    }
}

/// Standard error of a run, which a thread reads.
pub struct Said {
    lines: mpsc::Receiver<String>,
    text: String,
}

impl Said {
    /// The child must have a pipe as standard error.
    pub fn of(child: &mut Child) -> Self {
        let (reader, (sender, lines)) = (BufReader::new(child.stderr.take().unwrap()), mpsc::channel());
        std::thread::spawn(move || reader.lines().map_while(Result::ok).try_for_each(|line| sender.send(line + "\n")));
        Self { lines, text: String::new() }
    }

    /// Reads until a line contains this text, at most [`PATIENCE`] for each line.
    pub fn wait_for(&mut self, part: &str) {
        while !self.text.contains(part) {
            let line = self.lines.recv_timeout(PATIENCE);
            self.text += &line.unwrap_or_else(|end| panic!("expected `{part}`, got {} ({end})", self.text));
        }
    }

    /// Reads to the end, and returns everything.
    pub fn rest(&mut self) -> String {
        self.text.extend(self.lines.iter());
        self.text.clone()
    }
}

pub fn read(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

pub fn check(said: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| said.contains(part)), "expected {parts:?}, got {said}");
}

/// Asserts that the written video is playable, and has nearly as many frames as the JSON has lines.
pub fn check_outputs(json: &str, video: &str, colors: &str, folder: &Folder) {
    let again = folder.file("again.jsonl");
    let played = roiflow(&["run", colors, "-q", "--input", video, "--json", &again]);
    let said = String::from_utf8_lossy(&played.stderr).into_owned();
    assert!(n_lines(&again) + 2 >= n_lines(json), "{} of {} frames: {said}", n_lines(&again), n_lines(json));
    let lines = std::fs::read_to_string(json).unwrap();
    assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{lines}");
}

#[test]
fn unopenable_rtsp_source_error_has_reason() {
    let folder = Folder::new("rtsp-open");
    let colors = folder.file("colors.toml");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let fails = |uri: &str, says: &[&str]| {
        let begin = Instant::now();
        let (code, said) = read(&roiflow(&["run", &colors, "--input", uri, "--source-timeout", "3", "--restart", "never"]));
        assert_eq!(code, Some(1), "{uri}: {said}");
        check(&said, says);
        assert!(!said.contains("wrong"), "the password must not be printed: {said}");
        assert!(begin.elapsed() < PATIENCE, "{uri} took {:?}", begin.elapsed());
    };
    fails(&format!("rtsp://127.0.0.1:{closed}/live"), &["cannot play", "refused"]);
    // A server that accepts the connection and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    fails(&format!("rtsp://127.0.0.1:{}/live", silent.local_addr().unwrap().port()), &["127.0.0.1"]);
    if let Some(server) = Server::start(&[]) {
        fails(&server.uri("rtsp", "", "/nothing"), &["no such stream", "404"]);
    }
    if let Some(server) = Server::start(&["private"]) {
        fails(&server.uri("rtsp", "", "/live"), &["user name or the password", "401"]);
        fails(&server.uri("rtsp", "user:wrong@", "/live"), &["user name or the password", "401"]);
        let json = folder.file("private.jsonl");
        let uri = server.uri("rtsp", "user:secret@", "/live");
        let (code, said) = read(&roiflow(&["run", &colors, "-q", "--input", &uri, "--json", &json, "--frames", "3"]));
        assert_eq!((code, n_lines(&json)), (Some(0), 3), "{said}");
    }
}

#[test]
fn killed_rtsp_server_is_error_with_complete_outputs() {
    let folder = Folder::new("rtsp-killed");
    for scheme in ["rtsp", "rtspt"] {
        let Some(server) = Server::start(&[]) else { return };
        let mut running = Running::start(&folder, &server.uri(scheme, "", "/live"), &["--restart", "never"]);
        running.wait_for_lines(10);
        server.signal("KILL");
        let (json, video, colors) = (running.json.clone(), running.video.clone(), running.colors.clone());
        let (code, said, took) = running.end();
        assert_eq!(code, Some(1), "{scheme}: {said}");
        check(&said, &["the source", "127.0.0.1"]);
        assert!(took < Duration::from_secs(25), "{scheme} took {took:?}: {said}");
        check_outputs(&json, &video, &colors, &folder);
    }
}

#[test]
fn stalled_rtsp_server_is_error_after_timeout() {
    let folder = Folder::new("rtsp-stalled");
    for scheme in ["rtsp", "rtspt"] {
        let Some(server) = Server::start(&[]) else { return };
        let mut running = Running::start(&folder, &server.uri(scheme, "", "/live"), &["--source-timeout", "2", "--restart", "never"]);
        running.wait_for_lines(10);
        server.signal("STOP");
        let (json, video, colors) = (running.json.clone(), running.video.clone(), running.colors.clone());
        let (code, said, took) = running.end();
        assert_eq!(code, Some(1), "{scheme}: {said}");
        check(&said, &["the source", "127.0.0.1"]);
        assert!(took < Duration::from_secs(25), "{scheme} took {took:?}: {said}");
        check_outputs(&json, &video, &colors, &folder);
    }
}

#[test]
fn rtsp_stream_ended_by_server_is_an_error() {
    let folder = Folder::new("rtsp-short");
    let Some(server) = Server::start(&[]) else { return };
    let (code, said, _) = Running::start(&folder, &server.uri("rtsp", "", "/short"), &["--restart", "never"]).end();
    assert_eq!(code, Some(1), "{said}");
    check(&said, &["ended unexpectedly"]);
}

#[test]
fn camera_run_ends_by_limit_and_by_interrupt() {
    let folder = Folder::new("rtsp-well");
    let Some(server) = Server::start(&[]) else { return };
    for scheme in ["rtsp", "rtspt"] {
        let running = Running::start(&folder, &server.uri(scheme, "", "/live"), &["--frames", "12"]);
        let json = running.json.clone();
        let (code, said, _) = running.end();
        assert_eq!((code, n_lines(&json)), (Some(0), 12), "{said}");
        let mut running = Running::start(&folder, &server.uri(scheme, "", "/live"), &[]);
        running.wait_for_lines(5);
        signal(&running.child, "INT");
        let (code, said, _) = running.end();
        assert_eq!(code, Some(0), "{said}");
        check(&said, &["by interrupt"]);
    }
}

#[test]
fn silent_udp_source_is_an_error() {
    let folder = Folder::new("udp");
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let sender = pipeline(&format!(
        "videotestsrc is-live=true ! video/x-raw,width=320,height=240,framerate=25/1 ! x264enc tune=zerolatency key-int-max=5 \
         ! h264parse config-interval=-1 ! mpegtsmux ! udpsink host=127.0.0.1 port={port}"
    ));
    sender.set_state(gst::State::Playing).unwrap();
    let mut running = Running::start(&folder, &format!("udp://127.0.0.1:{port}"), &["--source-timeout", "6", "--restart", "never"]);
    // The source timeout of this run is long, because opening a decoder on a busy machine may block data for several seconds.
    running.wait_for_lines(5);
    sender.set_state(gst::State::Null).unwrap();
    let (code, said, _) = running.end();
    assert_eq!(code, Some(1), "{said}");
    check(&said, &["the source `udp://127.0.0.1", "for 6 s", "--source-timeout"]);
}

/// Returns an HTTP server that sends this response to each connection. The server then closes the connection, unless `holds` is true: then
/// it keeps the connection open until the returned sender is dropped.
pub fn serve(answer: Vec<u8>, holds: bool) -> (u16, mpsc::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        let mut held: Vec<TcpStream> = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            let _read = stream.read(&mut request);
            let _sent = stream.write_all(&answer);
            if holds {
                held.push(stream);
            }
            if receiver.try_recv() == Err(mpsc::TryRecvError::Disconnected) {
                return;
            }
        }
    });
    (port, sender)
}

pub fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes(), body].concat()
}

#[test]
fn http_error_has_cause() {
    let folder = Folder::new("http-errors");
    let colors = folder.file("colors.toml");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (missing, _missing) = serve(answer("404 Not Found\r\nContent-Length: 0", b""), false);
    let (busy, _busy) = serve(answer("503 Busy\r\nContent-Length: 0", b""), false);
    let (private, _private) = serve(answer("401 Unauthorized\r\nContent-Length: 0", b""), false);
    for (uri, says) in [
        (format!("http://127.0.0.1:{closed}/a.mp4"), "refused"),
        (format!("http://user:pass@127.0.0.1:{missing}/a.mp4"), "404"),
        (format!("http://127.0.0.1:{busy}/a.mp4"), "503"),
        (format!("http://127.0.0.1:{private}/a.mp4"), "401"),
        (format!("https://127.0.0.1:{busy}/a.mp4"), "TLS"),
    ] {
        let (code, said) = read(&roiflow(&["run", &colors, "--input", &uri]));
        assert_eq!(code, Some(1), "{uri}: {said}");
        check(&said, &[says, "127.0.0.1"]);
        assert!(!said.contains("Internal data stream error") && !said.contains("pass@"), "{said}");
    }
}

#[test]
fn incomplete_http_file_is_error_complete_one_is_not() {
    let folder = Folder::new("http-stops");
    let clip = folder.file("clip.mp4");
    make_clip(&clip, 200, "mp4mux faststart=true");
    let bytes = std::fs::read(&clip).unwrap();
    let half = &bytes[..bytes.len() / 2];
    let length = format!("200 OK\r\nContent-Type: video/mp4\r\nContent-Length: {}", bytes.len());
    let open = "200 OK\r\nContent-Type: video/mp4";
    let run = |answer: Vec<u8>, holds: bool| {
        let (port, sender) = serve(answer, holds);
        let running = Running::start(&folder, &format!("http://127.0.0.1:{port}/clip.mp4?token=hidden"), &["--source-timeout", "2"]);
        let json = running.json.clone();
        let (code, said, _) = running.end();
        drop(sender);
        (code, n_lines(&json), said)
    };
    for head in [&*length, open] {
        let (code, n, said) = run(answer(head, &bytes), false);
        assert_eq!((code, n), (Some(0), 200), "{said}");
        for holds in [true, false] {
            let (code, n, said) = run(answer(head, half), holds);
            assert_eq!(code, Some(1), "{head}, holds {holds}: {said}");
            assert!((10..200).contains(&n), "received frames are analyzed: {n} lines, {said}");
        }
    }
    let (_, _, said) = run(answer(&length, half), true);
    check(&said, &["the source", "for 2 s"]);
}

#[test]
fn source_may_need_longer_than_its_timeout_to_connect() {
    let folder = Folder::new("slow-start");
    let clip = folder.file("clip.mp4");
    make_clip(&clip, 20, "mp4mux faststart=true");
    let bytes = std::fs::read(&clip).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let response = answer(&format!("200 OK\r\nContent-Type: video/mp4\r\nContent-Length: {}", bytes.len()), &bytes);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            // The sleep is the tested situation: the first data come after the timeout.
            std::thread::sleep(Duration::from_secs(3));
            let _read = stream.read(&mut [0; 4096]);
            let _written = stream.write_all(&response);
        }
    });
    let running = Running::start(&folder, &format!("http://127.0.0.1:{port}/clip.mp4"), &["--source-timeout", "1", "--restart", "never"]);
    let json = running.json.clone();
    let (code, said, _) = running.end();
    assert_eq!((code, n_lines(&json)), (Some(0), 20), "{said}");
}

#[test]
fn slow_reader_is_not_a_lost_source() {
    let folder = Folder::new("slow-reader");
    let clip = folder.file("clip.mkv");
    // The clip has more data than the queues after the source can hold.
    let make = pipeline(&format!(
        "videotestsrc pattern=snow num-buffers=600 ! video/x-raw,width=320,height=240,framerate=25/1 \
         ! x264enc speed-preset=ultrafast bitrate=20000 ! h264parse ! matroskamux ! filesink location={clip}"
    ));
    assert_eq!(run(&make).error, None);
    let bytes = std::fs::read(&clip).unwrap();
    let (port, _sender) = serve(answer(&format!("200 OK\r\nContent-Length: {}", bytes.len()), &bytes), false);
    let input = format!("http://127.0.0.1:{port}/clip.mkv");
    let arguments = ["run", &folder.file("colors.toml"), "-q", "--input", &input, "--json", "-", "--source-timeout", "0.5"];
    let mut child = command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The sleep is the tested situation: the reader stalls for four times the source timeout.
    std::thread::sleep(Duration::from_secs(2));
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let (code, said) = read(&child.wait_with_output().unwrap());
    assert_eq!((code, text.lines().count()), (Some(0), 600), "{said}");
}

#[test]
fn source_timeout_argument_is_checked() {
    let folder = Folder::new("timeout");
    let colors = folder.file("colors.toml");
    for value in ["-1", "x", "nan", "inf", ""] {
        let (code, said) = read(&roiflow(&["run", &colors, "--input", "test:", &format!("--source-timeout={value}")]));
        assert_eq!(code, Some(2), "{value}: {said}");
        check(&said, &["expected a duration such as"]);
    }
    let (code, said) = read(&roiflow(&["run", &colors, "-q", "--input", "test:5", "--source-timeout", "0"]));
    assert_eq!(code, Some(0), "{said}");
}

/// Plays a file. Returns exit code, number of JSON lines and output.
fn play(folder: &Folder, input: &str) -> (Option<i32>, usize, String) {
    let running = Running::start(folder, input, &["-q"]);
    let json = running.json.clone();
    let (code, said, _) = running.end();
    (code, n_lines(&json), said)
}

#[test]
fn truncated_file_is_error_after_all_frames() {
    let folder = Folder::new("cut");
    for (name, muxer) in [
        ("a.mp4", "mp4mux faststart=true"),
        ("a.mov", "qtmux faststart=true"),
        ("a.mkv", "matroskamux"),
        ("frag.mp4", "mp4mux fragment-duration=400"),
    ] {
        let whole = folder.file(name);
        make_clip(&whole, 200, muxer);
        let (code, n, said) = play(&folder, &whole);
        assert_eq!((code, n), (Some(0), 200), "{name}: {said}");
        let bytes = std::fs::read(&whole).unwrap();
        for percent in [30, 60, 97] {
            let cut = folder.file(&format!("cut-{percent}-{name}"));
            std::fs::write(&cut, &bytes[..bytes.len() * percent / 100]).unwrap();
            let (code, n, said) = play(&folder, &cut);
            assert_eq!(code, Some(1), "{name}, {percent} %: {said}");
            check(&said, &["is truncated: got", &format!("{n} ")]);
            let (warned, failed) = (said.find("warning: "), said.find("error: "));
            assert!(warned.is_some() && warned < failed, "{name}, {percent} %: reported at once: {said}");
            assert!((20..200).contains(&n), "{name}, {percent} %: {n} lines");
            if name == "a.mp4" || name == "a.mkv" {
                check(&said, &["of about", "8.0 s"]);
            }
        }
    }
}

#[test]
fn damage_in_file_is_reported_when_detected() {
    let folder = Folder::new("damaged");
    for (name, muxer) in [("a.mp4", "mp4mux faststart=true"), ("a.mkv", "matroskamux")] {
        let path = folder.file(name);
        make_clip(&path, 200, muxer);
        let mut bytes = std::fs::read(&path).unwrap();
        let (begin, end) = (bytes.len() / 2, bytes.len() * 13 / 20);
        bytes[begin..end].fill(0);
        std::fs::write(&path, bytes).unwrap();
        let (code, n, said) = play(&folder, &path);
        assert_eq!(code, Some(1), "{name}: {said}");
        check(&said, &["is damaged", &format!("got {n} of ")]);
        assert!((100..200).contains(&n), "{name}: {n} lines");
    }
}

#[test]
fn complete_files_are_not_reported_as_damaged() {
    let folder = Folder::new("whole");
    let video = "videotestsrc num-buffers=50 ! video/x-raw,width=160,height=120,framerate=25/1";
    let sound = "audiotestsrc num-buffers=300 ! audio/x-raw,rate=44100,channels=1";
    for (name, line) in [
        ("sound.mkv", format!("matroskamux name=mux ! filesink name=file {video} ! x264enc ! mux. {sound} ! vorbisenc ! mux.")),
        ("sound.mp4", format!("mp4mux name=mux ! filesink name=file {video} ! x264enc ! mux. {sound} ! lamemp3enc ! mux.")),
        ("frames.avi", format!("{video} ! jpegenc ! avimux ! filesink name=file")),
        ("vp8.webm", format!("{video} ! vp8enc deadline=1 auto-alt-ref=true lag-in-frames=10 ! webmmux ! filesink name=file")),
        ("sent.mkv", format!("{video} ! x264enc ! matroskamux streamable=true ! filesink name=file")),
        ("b.ts", format!("{video} ! x264enc ! mpegtsmux ! filesink name=file")),
        ("raw.h264", format!("{video} ! x264enc ! h264parse ! video/x-h264,stream-format=byte-stream ! filesink name=file")),
        ("gaps.mkv", format!("{video} ! videorate drop-only=true max-rate=5 ! x264enc ! matroskamux ! filesink name=file")),
    ] {
        crate::harness::init();
        let Ok(made) = gst::parse::launch(&line) else {
            eprintln!("skipped: {name} cannot be created here");
            continue;
        };
        let made: gst::Pipeline = made.downcast().unwrap();
        made.by_name("file").unwrap().set_property("location", folder.file(name));
        assert_eq!(run(&made).error, None, "{name}");
        let (code, n, said) = play(&folder, &folder.file(name));
        let expected = if name == "gaps.mkv" { 5..=12 } else { 49..=50 };
        assert!(code == Some(0) && expected.contains(&n), "{name}: {code:?}, {n} lines: {said}");
    }
}

#[test]
fn lost_input_is_reported_while_others_continue() {
    let folder = Folder::new("dies");
    let clip = folder.file("cut.mp4");
    make_clip(&clip, 100, "mp4mux faststart=true");
    let bytes = std::fs::read(&clip).unwrap();
    std::fs::write(&clip, &bytes[..bytes.len() / 2]).unwrap();
    for options in [&[][..], &["-q"]] {
        let arguments = ["run", &folder.file("colors.toml"), "--json", &folder.file("{stream}.jsonl")];
        let inputs = ["--input", "test:100000000", "--input", &clip, "--name", "goes-on"];
        let mut child = command().args(arguments).args(inputs).args(options).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut seen = String::new();
        while !seen.contains("error: stream cut:") {
            assert_ne!(said.read_line(&mut seen).unwrap(), 0, "it ended: {seen}");
        }
        check(&seen, &["is truncated"]);
        assert_eq!(child.try_wait().unwrap(), None, "the other stream continues");
        signal(&child, "INT");
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(3), "{seen}{rest}");
        check(&rest, &["1 of 2 inputs failed"]);
        assert!(n_lines(&folder.file("cut.jsonl")) > 20 && n_lines(&folder.file("goes-on.jsonl")) > 0);
    }
}

#[test]
fn limit_before_truncation_ends_run_successfully() {
    let folder = Folder::new("cut-limit");
    let clip = folder.file("cut.mkv");
    make_clip(&clip, 100, "matroskamux");
    let bytes = std::fs::read(&clip).unwrap();
    std::fs::write(&clip, &bytes[..bytes.len() / 2]).unwrap();
    for options in [&["--frames", "10"][..], &["--frames", "10", "--loop"]] {
        let running = Running::start(&folder, &clip, options);
        let json = running.json.clone();
        let (code, said, _) = running.end();
        assert_eq!((code, n_lines(&json)), (Some(0), 10), "{said}");
        check(&said, &["warning: ", "is truncated"]);
    }
}

#[test]
fn missing_capture_device_is_an_error() {
    let folder = Folder::new("no-device");
    let colors = folder.file("colors.toml");
    let (code, said) = read(&roiflow(&["run", &colors, "--input", "v4l2:///dev/video4095"]));
    assert_eq!(code, Some(1), "{said}");
    check(&said, &["cannot play `v4l2:///dev/video4095`"]);
}
