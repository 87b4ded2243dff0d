//! `roiflow run --trace`: what the file shows, and that it is whole however the run ends.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::cli::{Folder, check_fails, roiflow};

const EXECUTORS: u64 = 1;
const REQUESTS: u64 = 2;

/// A bar of the trace.
#[derive(Debug, Clone, PartialEq)]
struct Slice {
    group: u64,
    lane: u64,
    name: String,
    begin_us: f64,
    end_us: f64,
    request: u64,
    run: u64,
    frame: Option<u64>,
}

fn events(path: &str) -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).expect("the file is valid")
}

fn slices(events: &[Value]) -> Vec<Slice> {
    let slices = events.iter().filter(|event| event["ph"] == "X");
    let slice = |event: &Value| {
        let (number, args) = (|field: &str| event[field].as_u64().unwrap(), &event["args"]);
        let begin_us = event["ts"].as_f64().unwrap();
        Slice {
            group: number("pid"),
            lane: number("tid"),
            name: event["name"].as_str().unwrap().to_owned(),
            begin_us,
            end_us: begin_us + event["dur"].as_f64().unwrap(),
            request: args["request"].as_u64().unwrap(),
            run: args["run"].as_u64().unwrap(),
            frame: args["frame"].as_u64(),
        }
    };
    slices.map(slice).collect()
}

/// The names of the lanes of a group.
fn lanes(events: &[Value], group: u64) -> BTreeMap<u64, String> {
    let names = events.iter().filter(|event| event["name"] == "thread_name" && event["pid"] == group);
    names.map(|event| (event["tid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap().to_owned())).collect()
}

#[test]
fn each_step_of_each_frame_is_in_the_lane_of_its_thread_and_of_its_request() {
    let folder = Folder::new("trace");
    let path = folder.file("trace.json");
    let output = roiflow(&["run", &folder.file("colors.toml"), "--input", "test:40", "--trace", &path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events = events(&path);
    let (threads, requests, slices) = (lanes(&events, EXECUTORS), lanes(&events, REQUESTS), slices(&events));
    let of_detector: BTreeSet<u64> =
        requests.iter().filter(|(_, name)| name.starts_with("rectangle, request ")).map(|(&request, _)| request).collect();
    assert!(!of_detector.is_empty() && requests.values().any(|name| name.starts_with("color, request ")), "{requests:?}");
    let mut frames = BTreeSet::new();
    let runs: Vec<&Slice> = slices.iter().filter(|slice| slice.name == "run").collect();
    assert!(runs.len() >= 80, "{} runs of two models", runs.len());
    for run in runs {
        assert_eq!((run.group, run.lane), (REQUESTS, run.request));
        frames.extend(run.frame.filter(|_| of_detector.contains(&run.request)));
        for name in ["fill", "infer", "decode"] {
            let is_step = |slice: &&Slice| (slice.request, slice.run, &*slice.name) == (run.request, run.run, name);
            let steps: Vec<&Slice> = slices.iter().filter(is_step).collect();
            let [on_thread, in_request] = &steps[..] else { panic!("{name} of {run:?}: {steps:?}") };
            assert_eq!((on_thread.group, in_request.group, in_request.lane), (EXECUTORS, REQUESTS, run.request));
            assert!(threads.contains_key(&on_thread.lane), "{on_thread:?} has a lane with a name");
            assert_eq!((on_thread.begin_us, on_thread.end_us, on_thread.frame), (in_request.begin_us, in_request.end_us, run.frame));
            assert!(run.begin_us <= in_request.begin_us && in_request.end_us <= run.end_us + 0.001, "{name} lies inside {run:?}");
        }
    }
    assert_eq!(frames, (0..40).collect(), "every frame went through the detector");
    assert!(threads.values().any(|name| name == "roiflow-cpu-0"), "{threads:?}");
    check_nesting(slices);
}

/// Viewers want the slices of a lane to lie side by side or inside each other.
fn check_nesting(mut slices: Vec<Slice>) {
    slices.sort_by(|a, b| {
        (a.group, a.lane).cmp(&(b.group, b.lane)).then(a.begin_us.total_cmp(&b.begin_us)).then(b.end_us.total_cmp(&a.end_us))
    });
    let mut open: Vec<&Slice> = Vec::new();
    for slice in &slices {
        open.retain(|outer| (outer.group, outer.lane) == (slice.group, slice.lane) && outer.end_us > slice.begin_us);
        if let Some(outer) = open.last() {
            assert!(slice.end_us <= outer.end_us + 0.002, "{slice:?} crosses {outer:?}");
        }
        open.push(slice);
    }
}

/// A run without an end, once its trace has grown.
fn endless(folder: &Folder, trace: &str) -> Child {
    let child = Command::new(env!("CARGO_BIN_EXE_roiflow"))
        .args(["run", &folder.file("colors.toml"), "-q", "--input", "test:1000000", "--trace", trace])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while std::fs::metadata(trace).map_or(0, |file| file.len()) < 100_000 {
        std::thread::yield_now();
    }
    child
}

fn signal(child: &Child, signal: &str) {
    // The shell's own `kill`: the program of that name is not on every machine.
    assert!(Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status().unwrap().success());
}

#[test]
fn the_file_is_valid_after_an_interrupt_and_after_a_kill() {
    let folder = Folder::new("trace-interrupt");
    for (how, ends_well) in [("INT", true), ("KILL", false)] {
        let path = folder.file(how);
        let child = endless(&folder, &path);
        signal(&child, how);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.success(), ends_well, "{how}: {}", String::from_utf8_lossy(&output.stderr));
        let events = events(&path);
        assert!(slices(&events).len() > 300, "{how}: {} events", events.len());
        assert!(std::fs::metadata(&path).unwrap().len() >= 100_000);
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_said_with_its_path() {
    let folder = Folder::new("trace-failed");
    let colors = folder.file("colors.toml");
    check_fails(&["run", &colors, "--input", "test:5", "--trace", &folder.file("no/trace.json")], 1, &["trace.json", "cannot write"]);
    check_fails(&["run", &colors, "--input", "test:5", "--trace", "/dev/full"], 1, &["/dev/full", "No space left"]);
}
