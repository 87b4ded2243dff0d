//! `roiflow run --trace`: content of the file, and its validity after any end of the run.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::cli::{Folder, check_fails, command, roiflow};

const EXECUTORS: u64 = 1;
const REQUESTS: u64 = 2;
const FRAMES: u64 = 3;

/// A slice of the trace.
#[derive(Debug, Clone, PartialEq)]
struct Slice {
    group: u64,
    lane: u64,
    name: String,
    begin_us: f64,
    end_us: f64,
    /// Fields of the slices of a run and of its steps.
    request: Option<u64>,
    run: Option<u64>,
    frame: Option<u64>,
    /// Fields of the slices of a frame and of its phases.
    element: Option<String>,
    outcome: Option<String>,
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
            request: args["request"].as_u64(),
            run: args["run"].as_u64(),
            frame: args["frame"].as_u64(),
            element: args["element"].as_str().map(str::to_owned),
            outcome: args["outcome"].as_str().map(str::to_owned),
        }
    };
    slices.map(slice).collect()
}

/// Returns the names of the lanes of a group.
fn lanes(events: &[Value], group: u64) -> BTreeMap<u64, String> {
    let names = events.iter().filter(|event| event["name"] == "thread_name" && event["pid"] == group);
    names.map(|event| (event["tid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap().to_owned())).collect()
}

#[test]
fn trace_has_steps_per_thread_and_per_request() {
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
    // Leave out runs without a frame, in which the runtime tests whether batch items are independent.
    let runs: Vec<&Slice> = slices.iter().filter(|slice| slice.name == "run" && slice.frame.is_some()).collect();
    assert!(runs.len() >= 80, "{} runs of two models", runs.len());
    for run in runs {
        assert_eq!((run.group, Some(run.lane)), (REQUESTS, run.request));
        frames.extend(run.frame.filter(|_| of_detector.contains(&run.lane)));
        for name in ["fill", "infer", "decode"] {
            let is_step = |slice: &&Slice| (slice.request, slice.run, &*slice.name) == (run.request, run.run, name);
            let steps: Vec<&Slice> = slices.iter().filter(is_step).collect();
            let [on_thread, in_request] = &steps[..] else { panic!("{name} of {run:?}: {steps:?}") };
            assert_eq!((on_thread.group, in_request.group, in_request.lane), (EXECUTORS, REQUESTS, run.lane));
            assert!(threads.contains_key(&on_thread.lane), "{on_thread:?} has a named lane");
            assert_eq!((on_thread.begin_us, on_thread.end_us, on_thread.frame), (in_request.begin_us, in_request.end_us, run.frame));
            assert!(run.begin_us <= in_request.begin_us && in_request.end_us <= run.end_us + 0.001, "{name} lies inside {run:?}");
        }
    }
    assert_eq!(frames, (0..40).collect(), "every frame went through the detector");
    assert!(threads.values().any(|name| name == "roiflow-cpu-0"), "{threads:?}");
    check_nesting(slices);
}

#[test]
fn trace_has_frames_with_arrows_to_runs() {
    let folder = Folder::new("trace-frames");
    let path = folder.file("trace.json");
    let output = roiflow(&["run", &folder.file("colors.toml"), "--input", "test:40", "--trace", &path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events = events(&path);
    let (lanes, requests, slices) = (lanes(&events, FRAMES), lanes(&events, REQUESTS), slices(&events));
    for (element, model) in [("roidetect-0", "rectangle"), ("roiclassify-1", "color")] {
        let of_element = |slice: &&Slice| slice.group == FRAMES && slice.element.as_deref() == Some(element);
        let mut frames: Vec<&Slice> = slices.iter().filter(of_element).filter(|slice| slice.name.starts_with("frame ")).collect();
        frames.sort_by_key(|slice| slice.frame);
        assert_eq!(frames.iter().map(|frame| frame.frame.unwrap()).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>(), "{element}");
        assert!(frames.windows(2).all(|pair| pair[0].end_us < pair[1].end_us), "{element}: frames leave in order");
        let mut n_runs = 0;
        for frame in frames {
            assert!(lanes[&frame.lane].starts_with(&format!("{element}, frame ")), "{lanes:?}");
            assert_eq!(frame.outcome.as_deref(), Some("inferred"));
            let part = |name: &str| {
                let is_part = |slice: &&Slice| of_element(slice) && slice.name == name && slice.frame == frame.frame;
                let parts: Vec<&Slice> = slices.iter().filter(is_part).collect();
                let [part] = parts[..] else { panic!("{name} of {frame:?}: {parts:?}") };
                assert_eq!(part.lane, frame.lane);
                assert!(frame.begin_us <= part.begin_us && part.end_us <= frame.end_us + 0.002, "{part:?} lies inside {frame:?}");
                part
            };
            let (place, inference, turn) = (part("wait for a slot"), part("inference"), part("wait for its turn"));
            assert!(place.end_us <= inference.begin_us + 0.002 && inference.end_us <= turn.begin_us + 0.002, "phases are consecutive");
            for run in arrows_from(&events, &slices, inference) {
                assert_eq!(run.frame, frame.frame);
                assert!(requests[&run.lane].starts_with(&format!("{model}, request ")), "{run:?}");
                assert!(run.end_us <= frame.end_us, "the frame waits for {run:?}");
                n_runs += 1;
            }
        }
        let is_run = |slice: &&Slice| slice.name == "run" && requests[&slice.lane].starts_with(model) && slice.frame.is_some();
        assert_eq!(slices.iter().filter(is_run).count(), n_runs, "{element}: every run has an arrow");
        assert!(n_runs >= 40, "{n_runs}");
    }
    check_nesting(slices);
}

/// Returns the runs to which an arrow leads from this slice.
fn arrows_from<'a>(events: &[Value], slices: &'a [Slice], from: &Slice) -> Vec<&'a Slice> {
    let lies_in = |event: &Value, slice: &Slice| {
        let at = event["ts"].as_f64().unwrap();
        event["pid"] == slice.group && event["tid"] == slice.lane && (slice.begin_us..=slice.end_us).contains(&at)
    };
    let begins = events.iter().filter(|event| event["ph"] == "s" && lies_in(event, from));
    begins
        .map(|begin| {
            let ends: Vec<&Value> = events.iter().filter(|event| event["ph"] == "f" && event["id"] == begin["id"]).collect();
            let [end] = ends[..] else { panic!("{begin}: {ends:?}") };
            let run = slices.iter().find(|slice| slice.name == "run" && lies_in(end, slice));
            run.unwrap_or_else(|| panic!("{end} leads nowhere"))
        })
        .collect()
}

/// Slices of a lane must be disjoint or nested.
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

/// Starts an endless run, and returns once its trace has grown.
fn endless(folder: &Folder, trace: &str) -> Child {
    let child = command()
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
    // Use the shell's builtin `kill`, because not every machine has the program.
    assert!(Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status().unwrap().success());
}

#[test]
fn trace_is_valid_after_interrupt_and_kill() {
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
fn unwritable_trace_is_reported_with_path() {
    let folder = Folder::new("trace-failed");
    let colors = folder.file("colors.toml");
    check_fails(&["run", &colors, "--input", "test:5", "--trace", &folder.file("no/trace.json")], 1, &["trace.json", "cannot write"]);
    check_fails(&["run", &colors, "--input", "test:5", "--trace", "/dev/full"], 1, &["/dev/full", "No space left"]);
}

/// An ITT collector that writes domain and name of each task to standard error.
#[cfg(feature = "ittapi")]
const COLLECTOR: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned long long d1, d2, d3; } id;
typedef struct { const char *name; void *wide; int extra1; void *extra2, *next; } handle;
typedef struct { volatile int flags; const char *name; void *wide; int extra1; void *extra2, *next; } domain;
static __thread int n_open;
const char *__itt_api_version(void) { return "a test"; }
domain *__itt_domain_create(const char *name) {
    domain *made = calloc(1, sizeof *made);
    made->flags = 1;
    made->name = strdup(name);
    return made;
}
handle *__itt_string_handle_create(const char *name) {
    handle *made = calloc(1, sizeof *made);
    made->name = strdup(name);
    return made;
}
void __itt_task_begin(const domain *of, id task, id parent, handle *name) {
    fprintf(stderr, "ITT begin %s %s\n", of->name, name->name);
    n_open++;
}
void __itt_task_end(const domain *of) { fprintf(stderr, "ITT end %s %d\n", of->name, --n_open); }
"#;

#[cfg(feature = "ittapi")]
#[test]
fn profiler_tasks_have_step_names_of_trace() {
    let folder = Folder::new("trace-itt");
    let (source, library, trace) = (folder.file("collector.c"), folder.file("collector.so"), folder.file("trace.json"));
    std::fs::write(&source, COLLECTOR).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source]).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = |listens: bool| {
        let mut command = command();
        command.args(["run", &folder.file("colors.toml"), "-q", "--input", "test:10", "--trace", &trace]);
        if listens {
            // This collector has no initializer, so the environment variable selects the groups that it receives.
            command.env("INTEL_LIBITTNOTIFY64", &library).env("INTEL_ITTNOTIFY_GROUPS", "all");
        }
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        said
    };
    let said = run(true);
    let mut begun: BTreeMap<&str, usize> = BTreeMap::new();
    for name in said.lines().filter_map(|line| line.strip_prefix("ITT begin roiflow ")) {
        *begun.entry(name).or_default() += 1;
    }
    let mut traced: BTreeMap<String, usize> = BTreeMap::new();
    for slice in slices(&events(&trace)).into_iter().filter(|slice| slice.group == EXECUTORS) {
        *traced.entry(slice.name).or_default() += 1;
    }
    assert!(["fill", "infer", "decode", "callback"].iter().all(|step| begun[step] >= 10), "{begun:?}");
    assert_eq!(begun.iter().map(|(name, n)| (name.to_string(), *n)).collect::<BTreeMap<_, _>>(), traced);
    let ends: Vec<i32> = said.lines().filter_map(|line| line.strip_prefix("ITT end roiflow ")?.parse().ok()).collect();
    assert_eq!(ends.len(), begun.values().sum::<usize>(), "every task ends");
    assert!(ends.iter().all(|&n_open| n_open >= 0), "on the thread that began it");
    assert!(!run(false).contains("ITT"), "no profiler collects");
}
