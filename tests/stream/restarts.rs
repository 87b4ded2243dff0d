//! Streams of cameras that fail and deliver frames again.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gstreamer as gst;
use gstreamer::prelude::*;
use roiflow::devices::null::{Gate, NullDevice, Script};
use roiflow::pipeline::{
    ErrorKind, Event, Events, Input, Outputs, Phase, PipelineHandle, Plan, Restart, RestartPolicy, Spec, SpoolFolder, StreamId,
};
use roiflow::publish::Url;
use serde_json::Value;

use crate::brokers::{Broker, Proxy, subscribe};
use crate::cli::{Folder, command, lines, roiflow};
use crate::endings::{Running, answer, check, n_lines, read, serve};
use crate::harness::{eventually, init, make_clip, pipeline, tiny};
use crate::results_schema::check_events;
use crate::rtsp::{Server, signal};

/// Time limit of each wait. A longer wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// A policy that restarts without noticeable delay.
pub const FAST: Restart = Restart {
    policy: Some(RestartPolicy::OnError),
    give_up_after: None,
    min_delay: Duration::from_millis(5),
    max_delay: Duration::from_millis(20),
    healthy_after: Duration::from_secs(30),
};

pub fn plan(input: &str, device: &str, outputs: Outputs, restart: Restart) -> Plan {
    let description = format!(
        "version = 1\nname = \"rectangles\"\ndescription = \"Rectangles.\"\n[pipeline]\ngraph = \"{{source}} ! roidetect model={} device={device} ! \
         roitrack ! {{json}} ! {{video}}\"\n",
        tiny("rectangle.onnx")
    );
    let spec = Spec::parse(&description, Path::new("rectangles.toml")).unwrap();
    let plan = Plan::resolve(&spec, &[], Input::parse(input).unwrap(), outputs).unwrap();
    Plan { restart, ..plan }
}

/// Returns a port without a server.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn at_port(port: u16, options: &[&str]) -> Server {
    let port = format!("port={port}");
    Server::start(&[&[&*port], options].concat()).expect("the server has run before")
}

/// Waits for an event of a stream that is neither progress nor a warning.
fn next(events: &Events, stream: StreamId) -> Event {
    let begin = Instant::now();
    loop {
        let event = events.next_timeout(LIMIT).expect("an event in time");
        assert!(begin.elapsed() < LIMIT, "no other event than {event:?}");
        // Events of destinations come at any time.
        let is_other =
            matches!(event.event, Event::Progress(_) | Event::Warning(_) | Event::DestinationLost { .. } | Event::DestinationBack { .. });
        if event.stream == stream && !is_other {
            return event.event;
        }
    }
}

/// Asserts that numbers and times of the lines grow.
pub fn check_order(json: &str) -> Vec<Value> {
    let lines = lines(json);
    for pair in lines.windows(2) {
        assert!(pair[0]["frame"].as_u64() < pair[1]["frame"].as_u64(), "{pair:?}");
        assert!(pair[0]["timestamp"].as_u64() < pair[1]["timestamp"].as_u64(), "{pair:?}");
    }
    lines
}

/// Returns the complete lines of a file that is being written. The file may not exist yet, and the last line may be incomplete.
pub fn lines_so_far(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn killed_camera_comes_back_with_other_size() {
    let folder = Folder::new("restart-killed");
    let Some(server) = Server::start(&[]) else { return };
    let (port, uri) = (server.port, server.uri("rtspt", "", "/live"));
    let part = folder.file("o.part2.mp4");
    let mut running = Running::start(&folder, &uri, &["--source-timeout", "3"]);
    running.wait_for_lines(10);
    drop(server);
    let _server = at_port(port, &["size=640x480"]);
    let is_large = |line: &Value| line["resolution"]["width"] == 640;
    let json = running.json.clone();
    eventually("results of the second server", || lines_so_far(&json).iter().filter(|line| is_large(line)).count() > 10);
    signal(&running.child, "INT");
    let (video, colors) = (running.video.clone(), running.colors.clone());
    let (code, said, _) = running.end();
    assert_eq!(code, Some(0), "{said}");
    check(&said, &["trying again until it is back", "the source is back after", "restarts  ", "of the source; "]);
    let lines = check_order(&json);
    let n_small = lines.iter().filter(|line| !is_large(line)).count();
    assert!(n_small >= 10 && lines[n_small..].iter().all(is_large));
    // Each part of the video can be played.
    for (path, n_expected) in [(video, n_small), (part, lines.len() - n_small)] {
        let again = folder.file("again.jsonl");
        let (code, said) = read(&roiflow(&["run", &colors, "-q", "--input", &path, "--json", &again]));
        assert!(code == Some(0) && n_lines(&again) + 2 >= n_expected, "{path}: {} of {n_expected} frames: {said}", n_lines(&again));
    }
}

#[test]
fn file_of_publish_is_continued_after_a_restart() {
    let folder = Folder::new("restart-publish-file");
    let Some(server) = Server::start(&[]) else { return };
    let (port, uri) = (server.port, server.uri("rtspt", "", "/live"));
    let (whole, parts) = (folder.file("whole.jsonl"), folder.file("parts.jsonl"));
    let urls = [format!("file://{whole}"), format!("file://{parts}?max-bytes=100k")];
    let mut running = Running::start(&folder, &uri, &["--publish", &urls[0], "--publish", &urls[1]]);
    running.wait_for_lines(10);
    drop(server);
    let _server = at_port(port, &["size=640x480"]);
    let json = running.json.clone();
    eventually("results of the second server", || {
        lines_so_far(&json).iter().filter(|line| line["resolution"]["width"] == 640).count() > 10
    });
    signal(&running.child, "INT");
    let (code, said, _) = running.end();
    assert_eq!(code, Some(0), "{said}");
    let frames = |path: &str| check_order(path).iter().map(|line| line["frame"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!((frames(&whole), frames(&parts)), (frames(&json), frames(&json)));
}

#[test]
fn stalled_camera_comes_back() {
    let folder = Folder::new("restart-stalled");
    let Some(server) = Server::start(&[]) else { return };
    let events = folder.file("events.jsonl");
    let options = ["--source-timeout", "1", "--events", &events, "--name", "door"];
    let mut running = Running::start(&folder, &server.uri("rtspt", "user:secret@", "/live"), &options);
    running.wait_for_lines(10);
    server.signal("STOP");
    let mut said = running.said();
    said.wait_for("trying again");
    let n_before = n_lines(&running.json);
    server.signal("CONT");
    running.wait_for_lines(n_before + 10);
    said.wait_for("is back after");
    signal(&running.child, "TERM");
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    check_order(&running.json);
    let events = check_events(&events);
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["source-lost", "source-back"], "{events:?}");
    assert!(events.iter().all(|event| event["stream"] == "door" && !event.to_string().contains("secret")), "{events:?}");
    assert!(events[1]["gap"].as_f64().unwrap() >= 1.0, "{events:?}");
}

#[test]
fn fifo_of_results_stays_open() {
    let folder = Folder::new("restart-fifo");
    let Some(server) = Server::start(&[]) else { return };
    let (port, uri, fifo) = (server.port, server.uri("rtspt", "", "/live"), folder.file("fifo"));
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut child = command().args(["run", &folder.file("colors.toml"), "-q", "--input", &uri, "--json", &fifo]).spawn().unwrap();
    let mut reader = BufReader::new(std::fs::File::open(&fifo).unwrap());
    let mut next_width = || {
        let mut line = String::new();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "the reader sees an end");
        serde_json::from_str::<Value>(&line).unwrap()["resolution"]["width"].as_u64().unwrap()
    };
    assert_eq!(next_width(), 320);
    drop(server);
    let _server = at_port(port, &["size=640x480"]);
    while next_width() != 640 {}
    signal(&child, "INT");
    let mut rest = String::new();
    while reader.read_line(&mut rest).unwrap() > 0 {}
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn policy_always_restarts_after_regular_end() {
    let folder = Folder::new("restart-always");
    let clip = folder.file("clip.mp4");
    make_clip(&clip, 50, "mp4mux faststart=true");
    let bytes = std::fs::read(&clip).unwrap();
    let head = format!("200 OK\r\nContent-Type: video/mp4\r\nContent-Length: {}", bytes.len());
    let (port, _sender) = serve(answer(&head, &bytes), false);
    let (json, uri) = (folder.file("o.jsonl"), format!("http://127.0.0.1:{port}/clip.mp4"));
    let run =
        |options: &[&str]| read(&roiflow(&[&["run", &*folder.file("colors.toml"), "--input", &*uri, "--json", &*json], options].concat()));
    let (code, said) = run(&["--restart", "always", "--frames", "120"]);
    assert_eq!((code, n_lines(&json)), (Some(0), 120), "{said}");
    check_order(&json);
    // A recording ends by default.
    let (code, said) = run(&[]);
    assert_eq!((code, n_lines(&json)), (Some(0), 50), "{said}");
}

#[test]
fn interrupt_during_backoff_ends_at_once() {
    let folder = Folder::new("restart-interrupt");
    let uri = format!("rtspt://127.0.0.1:{}/live", closed_port());
    for name in ["INT", "TERM"] {
        let mut running = Running::start(&folder, &uri, &[]);
        let mut said = running.said();
        said.wait_for("trying again");
        let begin = Instant::now();
        signal(&running.child, name);
        assert_eq!(running.child.wait().unwrap().code(), Some(0), "{}", said.rest());
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}

#[test]
fn wrong_password_is_tried_again_on_request() {
    let folder = Folder::new("restart-password");
    let Some(server) = Server::start(&["private", "password=other"]) else { return };
    let (port, uri) = (server.port, server.uri("rtspt", "user:secret@", "/live"));
    let mut running = Running::start(&folder, &uri, &["--restart", "on-error"]);
    let mut said = running.said();
    said.wait_for("401");
    drop(server);
    let _server = at_port(port, &["private"]);
    running.wait_for_lines(5);
    signal(&running.child, "INT");
    let rest = said.rest();
    assert_eq!(running.child.wait().unwrap().code(), Some(0), "{rest}");
    assert!(!rest.contains("secret"), "{rest}");
}

#[test]
fn source_that_stops_video_but_not_audio_is_lost() {
    let folder = Folder::new("restart-blind");
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let sender = pipeline(&format!(
        "mpegtsmux name=mux ! udpsink host=127.0.0.1 port={port} videotestsrc is-live=true name=video ! video/x-raw,width=320,height=240,framerate=25/1 \
         ! x264enc tune=zerolatency key-int-max=5 ! h264parse config-interval=-1 ! mux. \
         audiotestsrc is-live=true ! lamemp3enc ! mpegaudioparse ! mux."
    ));
    sender.set_state(gst::State::Playing).unwrap();
    let options = ["--no-frame-timeout", "3s", "--source-timeout", "30", "--restart", "never"];
    let mut running = Running::start(&folder, &format!("udp://127.0.0.1:{port}"), &options);
    running.wait_for_lines(5);
    sender.by_name("video").unwrap().send_event(gst::event::Eos::new());
    let (code, said, _) = running.end();
    assert_eq!(code, Some(1), "{said}");
    check(&said, &["delivered data but no frame for 3 s", "--no-frame-timeout"]);
    sender.set_state(gst::State::Null).unwrap();
}

#[test]
fn source_is_given_up_after_the_limit() {
    let folder = Folder::new("restart-gives-up");
    let (colors, uri) = (folder.file("colors.toml"), format!("rtspt://127.0.0.1:{}/live", closed_port()));
    let begin = Instant::now();
    let (code, said) = read(&roiflow(&["run", &colors, "--input", &uri, "--give-up-after", "2s"]));
    assert_eq!(code, Some(1), "{said}");
    check(&said, &["gave up after 2 s without a frame", "--give-up-after", "refused"]);
    assert!((2..20).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
}

#[test]
fn restart_options_are_checked() {
    let folder = Folder::new("restart-options");
    let colors = folder.file("colors.toml");
    for (options, says) in [
        (&["--input", "test:5", "--restart", "always"][..], "use --loop"),
        (&["--input", "rtsp://h/", "--restart", "sometimes"], "on-error"),
        (&["--input", "test:5", "--give-up-after", "soon"], "expected a duration such as"),
        (&["--input", "test:5", "--give-up-after", "0"], "above 0"),
        (&["--input", "rtsp://h/", "--restart", "on-error", "--video", "-"], "got a pipe"),
        (&["--input", "rtsp://h/", "--events", "-", "--json", "-"], "--events `-`: expected another file than that of --json"),
    ] {
        let (code, said) = read(&roiflow(&[&["run", &*colors], options].concat()));
        assert_eq!(code, Some(2), "{options:?}: {said}");
        check(&said, &[says]);
    }
    let text = std::fs::read_to_string(&colors).unwrap();
    for (section, says) in
        [("restart = \"maybe\"", "on-error"), ("give-up-after = \"soon\"", "[source] give-up-after"), ("retry = 1", "retry")]
    {
        let path = folder.file("section.toml");
        std::fs::write(&path, text.replace("[pipeline]", &format!("[source]\n{section}\n[pipeline]"))).unwrap();
        let (code, said) = read(&roiflow(&["run", &path, "--input", "test:5"]));
        assert!(code == Some(2) && said.contains(says), "{section}: {said}");
    }
    // The description sets the options that the command does not set.
    let path = folder.file("section.toml");
    let section = "[source]\nrestart = \"on-error\"\ngive-up-after = 1\nno-frame-timeout = \"5s\"\n[pipeline]";
    std::fs::write(&path, text.replace("[pipeline]", section)).unwrap();
    let uri = format!("http://127.0.0.1:{}/live", closed_port());
    let (code, said) = read(&roiflow(&["run", &path, "--input", &uri]));
    assert!(code == Some(1) && said.contains("gave up after 1 s"), "{said}");
}

#[test]
fn restart_compiles_no_model_and_continues_numbers() {
    init();
    let folder = Folder::new("restart-model");
    let Some(server) = Server::start(&[]) else { return };
    let (port, uri) = (server.port, server.uri("rtspt", "", "/live"));
    let script = Arc::new(Script::computing(|io, _| {
        let output = io.output(0, &[1, 1, 6])?;
        output.dense_mut::<f32>()?.copy_from_slice(&[0.0, 1.0, 0.25, 0.25, 0.75, 0.75]);
        Ok(())
    }));
    roiflow::stages::Engine::of_process().register_device(Arc::new(NullDevice::instance("NULL.restart", script.clone())));
    let json = folder.file("o.jsonl");
    std::fs::write(&json, "of an earlier run\n").unwrap();
    let (handle, events) = PipelineHandle::new().unwrap();
    let to_json = Outputs { json: Some(json.clone().into()), ..Outputs::default() };
    let stream = handle.add(&plan(&uri, "NULL.restart", to_json, FAST)).unwrap();
    let mut server = Some(server);
    assert_eq!(next(&events, stream), Event::Started);
    for turn in 1..=3 {
        let before = handle.stats(stream).unwrap().n_frames;
        eventually("frames", || handle.stats(stream).unwrap().n_frames > before + 10);
        drop(server.take());
        let lost = next(&events, stream);
        assert!(matches!(&lost, Event::SourceLost { reason } if reason.to_string().contains("127.0.0.1")), "{lost:?}");
        eventually("the state", || handle.status(stream).unwrap().phase == Phase::Reconnecting);
        server = Some(at_port(port, &[]));
        let back = next(&events, stream);
        assert!(matches!(back, Event::SourceBack { gap, attempts } if attempts > 0 && gap > Duration::ZERO), "{back:?}");
        let status = handle.status(stream).unwrap();
        let stats = handle.counters(stream).unwrap();
        assert!(status.n_restarts >= turn && status.time_down > Duration::ZERO, "{status:?}");
        assert_eq!(
            (stats.n_outages, stats.time_down),
            (turn, status.time_down),
            "an outage is counted when it is over, not with the next one"
        );
        eventually("the state", || handle.status(stream).unwrap().phase == Phase::Running);
    }
    let ending = handle.remove(stream).unwrap();
    assert!(ending.interrupted && !ending.forced && ending.stats.n_restarts >= 3, "{ending:?}");
    assert_eq!(script.n_compiled(), 1);
    let lines = check_order(&json);
    assert_eq!(lines.len() as u64, ending.stats.n_frames, "all frames have a line, and none of an earlier run");
    // A track ID is never used again after a restart.
    let mut ids: Vec<u64> = lines.iter().filter_map(|line| line["objects"][0]["id"].as_u64()).collect();
    assert!(ids.is_sorted(), "{ids:?}");
    ids.dedup();
    assert_eq!(ids, [1, 2, 3, 4]);
}

#[test]
fn coco_file_is_continued_after_a_restart() {
    init();
    let folder = Folder::new("restart-coco");
    let Some(server) = Server::start(&[]) else { return };
    let (port, uri) = (server.port, server.uri("rtspt", "", "/live"));
    let script = Arc::new(Script::computing(|io, _| {
        let output = io.output(0, &[1, 1, 6])?;
        output.dense_mut::<f32>()?.copy_from_slice(&[0.0, 1.0, 0.25, 0.25, 0.75, 0.75]);
        Ok(())
    }));
    roiflow::stages::Engine::of_process().register_device(Arc::new(NullDevice::instance("NULL.coco", script)));
    let file = folder.file("o.coco.json");
    let (handle, events) = PipelineHandle::new().unwrap();
    let outputs = Outputs { publish: vec![Url::of_user(&file)], ..Outputs::default() };
    let stream = handle.add(&plan(&uri, "NULL.coco", outputs, FAST)).unwrap();
    assert_eq!(next(&events, stream), Event::Started);
    let frames_pass = || {
        let before = handle.stats(stream).unwrap().n_frames;
        eventually("frames", || handle.stats(stream).unwrap().n_frames > before + 10);
    };
    frames_pass();
    drop(server);
    assert!(matches!(next(&events, stream), Event::SourceLost { .. }));
    let _server = at_port(port, &[]);
    assert!(matches!(next(&events, stream), Event::SourceBack { .. }));
    frames_pass();
    let ending = handle.remove(stream).unwrap();
    assert!(ending.stats.n_restarts >= 1, "{ending:?}");
    let entries: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let images = entries.iter().map(|entry| entry["image_id"].as_u64().unwrap());
    assert!(images.eq(0..ending.stats.n_frames), "{entries:?}");
}

/// A folder with a detector of the label `old`, and with a layout.
struct ModelFolder(Folder);

impl ModelFolder {
    fn new(name: &str) -> Self {
        let folder = Self(Folder::new(name));
        folder.write("old");
        folder
    }

    fn write(&self, label: &str) {
        std::fs::copy(tiny("rectangle.onnx"), self.0.file("m.onnx")).unwrap();
        let text = std::fs::read_to_string(tiny("rectangle.toml")).unwrap();
        std::fs::write(self.0.file("m.toml"), text.replace("labels = [\"rectangle\"]", "labels-file = \"labels.txt\"")).unwrap();
        std::fs::write(self.0.file("labels.txt"), format!("{label}\n")).unwrap();
        std::fs::write(self.0.file("layout.toml"), "[[zone]]\nname = \"all\"\ncorners = [[0, 0], [1, 0], [1, 1]]\n").unwrap();
    }

    /// Leaves only a part of each file, as while the files are being copied.
    fn cut(&self) {
        for name in ["m.onnx", "m.toml", "layout.toml"] {
            let bytes = std::fs::read(self.0.file(name)).unwrap();
            std::fs::write(self.0.file(name), &bytes[..bytes.len() / 2]).unwrap();
        }
        std::fs::remove_file(self.0.file("labels.txt")).unwrap();
    }

    fn plan(&self, input: &str, threshold: &str, outputs: Outputs) -> Plan {
        let description = format!(
            "version = 1\nname = \"rectangles\"\ndescription = \"Rectangles.\"\n[parameters.threshold]\ntype = \"number\"\n\
             [pipeline]\ngraph = \"{{source}} ! roidetect model={} device=CPU threshold={{threshold}} ! roitrack ! roianalytics layout={} \
             ! {{json}} ! {{video}}\"\n",
            self.0.file("m.onnx"),
            self.0.file("layout.toml")
        );
        let spec = Spec::parse(&description, Path::new("rectangles.toml")).unwrap();
        let set = [("threshold".to_owned(), threshold.to_owned())];
        Plan { restart: FAST, ..Plan::resolve(&spec, &set, Input::parse(input).unwrap(), outputs).unwrap() }
    }
}

fn labels(json: &str) -> Vec<String> {
    let label = |line: &Value| line["objects"][0]["detection"]["label"].as_str().map(str::to_owned);
    let mut all: Vec<String> = lines_so_far(json).iter().filter_map(label).collect();
    all.dedup();
    all
}

#[test]
fn reconnect_keeps_model_description_labels_and_layout() {
    let folder = ModelFolder::new("restart-files");
    let Some(server) = Server::start(&[]) else { return };
    let (port, uri) = (server.port, server.uri("rtspt", "", "/live"));
    let (json, other) = (folder.0.file("o.jsonl"), folder.0.file("other.jsonl"));
    let to = |json: &str| Outputs { json: Some(json.into()), ..Outputs::default() };
    let (handle, events) = PipelineHandle::new().unwrap();
    let stream = handle.add(&folder.plan(&uri, "0.5", to(&json))).unwrap();
    assert_eq!(next(&events, stream), Event::Started);
    eventually("results", || n_lines(&json) > 5 && labels(&json) == ["old"]);

    // Files are replaced while the source is lost. The stream has all that it needs.
    drop(server);
    assert!(matches!(next(&events, stream), Event::SourceLost { .. }));
    folder.cut();
    let server = at_port(port, &[]);
    assert!(matches!(next(&events, stream), Event::SourceBack { .. }));
    let n_before = n_lines(&json);
    eventually("results with the model of before", || n_lines(&json) > n_before + 5);
    assert_eq!(labels(&json), ["old"]);

    // A reload reads the files. It is refused while they are incomplete.
    handle.reload(stream, &folder.plan(&uri, "0.5", to(&json)));
    let refused = next(&events, stream);
    assert!(matches!(&refused, Event::Reloaded(Err(error)) if error.to_string().contains("layout.toml")), "{refused:?}");
    // A new stream reads the files as well.
    let fails = handle.add(&folder.plan("test:10", "0.5", Outputs::default())).unwrap();
    assert!(handle.wait(fails).is_err());
    // A change that the running elements take needs none of the files.
    handle.change(stream, &folder.plan(&uri, "0.25", to(&json)));
    assert_eq!(next(&events, stream), Event::Reloaded(Ok(())));
    handle.change(stream, &folder.plan(&uri, "1.5", to(&json)));
    let refused = next(&events, stream);
    assert!(matches!(&refused, Event::Reloaded(Err(error)) if error.to_string().contains("threshold")), "{refused:?}");
    let n_before = n_lines(&json);
    eventually("results after the change", || n_lines(&json) > n_before + 5);

    // With complete files, a reload switches to them, and a later reconnect keeps them.
    folder.write("new");
    handle.reload(stream, &folder.plan(&uri, "0.5", to(&other)));
    assert_eq!(next(&events, stream), Event::Reloaded(Ok(())));
    eventually("results with the new label", || std::fs::metadata(&other).is_ok() && labels(&other) == ["new"]);
    folder.cut();
    drop(server);
    assert!(matches!(next(&events, stream), Event::SourceLost { .. }));
    let _server = at_port(port, &[]);
    assert!(matches!(next(&events, stream), Event::SourceBack { .. }));
    let n_before = n_lines(&other);
    eventually("results with the reloaded model", || n_lines(&other) > n_before + 5);
    assert_eq!((labels(&json), labels(&other)), (vec!["old".to_owned()], vec!["new".to_owned()]));
    assert!(handle.remove(stream).unwrap().stats.n_restarts >= 2);
}

#[test]
fn change_that_hangs_ends_with_an_error_and_the_stream_goes_on() {
    init();
    let Some(server) = Server::start(&[]) else { return };
    let uri = server.uri("rtspt", "", "/live");
    let gate = Gate::closed();
    let script = Script { compile_gate: Some(gate.clone()), ..Script::default() };
    roiflow::stages::Engine::of_process().register_device(Arc::new(NullDevice::instance("NULL.hangs", Arc::new(script))));
    let (handle, events) = PipelineHandle::new().unwrap();
    let stream = handle.add(&plan(&uri, "CPU", Outputs::default(), FAST)).unwrap();
    assert_eq!(next(&events, stream), Event::Started);
    eventually("frames", || handle.stats(stream).unwrap().n_frames > 5);
    handle.change(stream, &plan(&uri, "NULL.hangs", Outputs::default(), FAST));
    gate.wait_for_arrivals(1);
    let n_before = handle.stats(stream).unwrap().n_frames;
    let refused = next(&events, stream);
    assert!(
        matches!(&refused, Event::Reloaded(Err(error)) if error.kind() == ErrorKind::Unavailable && error.to_string().contains("try again")),
        "{refused:?}"
    );
    assert!(handle.stats(stream).unwrap().n_frames > n_before + 20, "frames arrive meanwhile");
    // The next attempt finds what the first one has compiled meanwhile.
    gate.open();
    handle.change(stream, &plan(&uri, "NULL.hangs", Outputs::default(), FAST));
    assert_eq!(next(&events, stream), Event::Reloaded(Ok(())));
    eventually("frames", || handle.stats(stream).unwrap().n_frames > n_before + 40);
    handle.remove(stream).unwrap();
}

#[test]
fn plan_that_is_reloaded_during_an_outage_is_used_afterwards() {
    let Some(server) = Server::start(&[]) else { return };
    let folder = Folder::new("restart-reload");
    let (port, uri) = (server.port, server.uri("rtspt", "", "/live"));
    let to_json = |name: &str| Outputs { json: Some(folder.file(name).into()), ..Outputs::default() };
    let (handle, events) = PipelineHandle::new().unwrap();
    let stream = handle.add(&plan(&uri, "CPU", to_json("old.jsonl"), FAST)).unwrap();
    assert_eq!(next(&events, stream), Event::Started);
    eventually("frames", || handle.stats(stream).unwrap().n_frames > 5);
    drop(server);
    assert!(matches!(next(&events, stream), Event::SourceLost { .. }));
    // A plan that cannot run has no effect.
    handle.reload(stream, &plan(&uri, "NULL.absent", to_json("new.jsonl"), FAST));
    let refused = next(&events, stream);
    assert!(matches!(&refused, Event::Reloaded(Err(error)) if error.to_string().contains("NULL.absent")), "{refused:?}");
    handle.reload(stream, &plan(&uri, "CPU", to_json("new.jsonl"), FAST));
    assert_eq!(next(&events, stream), Event::Reloaded(Ok(())));
    let _server = at_port(port, &[]);
    assert!(matches!(next(&events, stream), Event::SourceBack { .. }));
    let n_before = handle.stats(stream).unwrap().n_frames;
    eventually("frames", || handle.stats(stream).unwrap().n_frames > n_before + 5);
    // A plan that is reloaded while frames arrive is used at once. This does not count as a restart.
    let n_restarts = handle.status(stream).unwrap().n_restarts;
    handle.reload(stream, &plan(&uri, "CPU", to_json("new.jsonl"), FAST));
    assert_eq!(next(&events, stream), Event::Reloaded(Ok(())));
    let n_before = handle.stats(stream).unwrap().n_frames;
    eventually("frames", || handle.stats(stream).unwrap().n_frames > n_before + 5);
    assert_eq!(handle.status(stream).unwrap().n_restarts, n_restarts);
    let ending = handle.remove(stream).unwrap();
    assert!(ending.interrupted && !ending.forced, "{ending:?}");
    let frames: Vec<u64> = ["old.jsonl", "new.jsonl"]
        .iter()
        .flat_map(|name| check_order(&folder.file(name)))
        .map(|line| line["frame"].as_u64().unwrap())
        .collect();
    assert!(frames.iter().copied().eq(0..ending.stats.n_frames), "numbers go on in the next file: {frames:?}");
}

#[test]
fn camera_and_broker_lost_together_deliver_everything_in_order() {
    let folder = crate::harness::Folder::new("camera and broker");
    let Some(server) = Server::start(&[]) else { return };
    let (port, uri) = (server.port, server.uri("rtspt", "", "/live"));
    let mut broker = Broker::mosquitto(&folder, "");
    broker.start();
    let proxy = Proxy::new(broker.port, true);
    proxy.open();
    let first = subscribe(broker.port, "roiflow/#");
    let (json, copy) = (folder.file("o.jsonl"), folder.file("copy.jsonl"));
    let outputs = Outputs {
        json: Some(json.clone().into()),
        publish: [format!("mqtt://127.0.0.1:{}/roiflow/{{stream}}", proxy.port), copy.clone()].map(Url::of_user).to_vec(),
        spool: Some(SpoolFolder { path: folder.0.join("spool"), max_bytes: None, max_age: None }),
        stream_of_servers: Some("door".to_owned()),
        ..Outputs::default()
    };
    let (handle, events) = PipelineHandle::new().unwrap();
    let stream = handle.add(&plan(&uri, "CPU", outputs, FAST)).unwrap();
    assert_eq!(next(&events, stream), Event::Started);
    let frames_pass = || {
        let before = handle.stats(stream).unwrap().n_frames;
        eventually("frames", || handle.stats(stream).unwrap().n_frames > before + 10);
    };
    frames_pass();
    let mut messages = vec![first.recv_timeout(LIMIT).unwrap()];
    // The broker is lost first, then the camera. The camera returns first, and delivers frames while the broker cannot be reached.
    proxy.close();
    broker.kill();
    frames_pass();
    drop(server);
    assert!(matches!(next(&events, stream), Event::SourceLost { .. }));
    let _server = at_port(port, &[]);
    assert!(matches!(next(&events, stream), Event::SourceBack { .. }));
    frames_pass();
    messages.extend(first.iter());
    broker.start();
    let second = subscribe(broker.port, "roiflow/#");
    proxy.open();
    frames_pass();
    let ending = handle.remove(stream).unwrap();
    assert!(ending.interrupted && ending.stats.n_restarts >= 1, "{ending:?}");
    broker.kill();
    messages.extend(second.iter());
    let mut ids = std::collections::HashSet::new();
    let mut delivered: Vec<Value> = messages.iter().map(|(_, payload)| serde_json::from_slice(payload).unwrap()).collect();
    delivered.retain(|line| ids.insert(line["message_id"].as_str().unwrap().to_owned()));
    let numbers = |lines: &[Value]| lines.iter().map(|line| line["frame"].as_u64().unwrap()).collect::<Vec<_>>();
    let written = check_order(&json);
    assert_eq!(numbers(&delivered), numbers(&written));
    assert!(delivered.iter().all(|line| line["stream"] == "door"));
    // A file of `--publish` is continued, too.
    assert_eq!(numbers(&check_order(&copy)), numbers(&written));
}

#[test]
fn drain_while_source_is_being_lost_ends_the_stream() {
    for _ in 0..3 {
        let Some(server) = Server::start(&[]) else { return };
        let (handle, _events) = PipelineHandle::new().unwrap();
        let stream = handle.add(&plan(&server.uri("rtspt", "", "/live"), "CPU", Outputs::default(), FAST)).unwrap();
        eventually("frames", || handle.stats(stream).unwrap().n_frames > 5);
        drop(server);
        // At this time, the pipeline of the stream drains or stops, or the stream already waits for its next attempt.
        eventually("the loss", || handle.status(stream).unwrap().phase != Phase::Running);
        handle.drain(stream);
        let begin = Instant::now();
        assert!(handle.wait(stream).unwrap().interrupted);
        assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    }
}

fn n_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn n_threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn failed_attempts_leave_nothing_behind() {
    let uri = format!("rtspt://127.0.0.1:{}/live", closed_port());
    let (handle, events) = PipelineHandle::new().unwrap();
    drop(events);
    let stream = handle.add(&plan(&uri, "CPU", Outputs::default(), FAST)).unwrap();
    let restarts = || handle.status(stream).unwrap().n_restarts;
    let mut down = Duration::ZERO;
    let mut counts = |n: u64| {
        eventually("restarts", || restarts() >= n);
        // All attempts belong to one outage, whose time is counted before it has ended, and never decreases.
        let stats = handle.counters(stream).unwrap();
        assert!(stats.n_outages == 1 && stats.time_down > down, "{} outages, {:?} after {down:?}", stats.n_outages, stats.time_down);
        down = stats.time_down;
        (n_descriptors(), n_threads(), resident_kib())
    };
    let before = counts(20);
    let after = counts(120);
    // The limits allow for one running session, because a session may be running at either measurement.
    assert!(after.0 <= before.0 + 10 && after.1 <= before.1 + 6 && after.2 <= before.2 + 12 * 1024, "before {before:?}, after {after:?}");
    assert!(handle.remove(stream).unwrap().interrupted);
}

#[test]
fn failing_cameras_do_not_affect_others() {
    let folder = Folder::new("restart-many");
    let Some(stalls) = Server::start(&[]) else { return };
    let clip = folder.file("clip.mp4");
    make_clip(&clip, 150, "mp4mux");
    let (handle, events) = PipelineHandle::new().unwrap();
    let short = Restart { min_delay: Duration::from_millis(50), max_delay: Duration::from_millis(200), ..FAST };
    // A fixed sequence decides which of the streams fail.
    let fails = |stream_idx: u64| ((stream_idx * 2_654_435_761) >> 7) % 16 < 5;
    let (mut healthy, mut failing) = (Vec::new(), Vec::new());
    for stream_idx in 0..16_u64 {
        if !fails(stream_idx) {
            healthy.push(handle.add(&plan(&clip, "CPU", Outputs::default(), Restart::default())).unwrap());
            continue;
        }
        let uri = match failing.len() % 2 {
            0 => format!("rtspt://127.0.0.1:{}/live", closed_port()),
            _ => stalls.uri("rtspt", "", "/live"),
        };
        let mut failing_plan = plan(&uri, "CPU", Outputs::default(), short);
        failing_plan.limits.source_timeout = Some(Duration::from_secs(1));
        failing.push(handle.add(&failing_plan).unwrap());
    }
    assert!(failing.len() > 1 && healthy.len() > 8, "{} fail", failing.len());
    stalls.signal("STOP");
    for stream in healthy {
        assert_eq!(handle.wait(stream).unwrap().stats.n_frames, 150);
    }
    for stream in &failing {
        eventually("each failing stream is restarted", || handle.status(*stream).unwrap().n_restarts > 1);
    }
    stalls.signal("CONT");
    drop(events);
    let begin = Instant::now();
    failing.iter().for_each(|stream| handle.drain(*stream));
    failing.iter().for_each(|stream| assert!(handle.wait(*stream).is_ok()));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}
