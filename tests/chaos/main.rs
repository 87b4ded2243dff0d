//! Chaos test: sixteen cameras, four brokers, the disk of the spools and the engine of the model fail in an order drawn from a seed. Each
//! stream publishes to five destinations: MQTT, NATS JetStream, Redis, Kafka, and a file in parts. Run it with
//! `make chaos DURATION=seconds SEED=number`. The last line is the verdict; the exit code is 0 without findings.
//!
//! Invariants, regardless of the failures:
//!
//! - Each camera that works again delivers frames again ([`cameras`]).
//! - Each frame of each stream arrives at each destination, or a gap record reports the frame. A frame has one message ID. After repeated
//!   messages are removed, the frames of a stream are in order ([`received`]).
//! - No stream ends with an error.
//! - Memory, threads and descriptors do not grow ([`verdict`]).
//! - Nothing hangs ([`watch`]).
//!
//! The seed decides which failures follow each other. Their effects also depend on the scheduling of threads and processes.

#[path = "../stream/brokers.rs"]
#[allow(dead_code, reason = "the servers of other tests")]
mod brokers;
#[path = "../support/cameras.rs"]
#[allow(dead_code, reason = "the steps of other tests")]
mod cameras;
mod disk;
#[path = "../support/faulty.rs"]
mod faulty;
#[path = "../support/folder.rs"]
mod harness;
mod kafka;
#[path = "../support/memory.rs"]
mod memory;
#[path = "../support/random.rs"]
mod random;
mod received;
#[path = "../support/rtsp.rs"]
#[allow(dead_code, reason = "the addresses of other tests")]
mod rtsp;
mod servers;
#[path = "../support/trend.rs"]
mod trend;
#[path = "../support/verdict.rs"]
mod verdict;
#[path = "../support/watch.rs"]
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use roiflow::pipeline::{
    Event, Events, Input, Limits, Outputs, Phase, PipelineHandle, Plan, Restart, RestartPolicy, Spec, SpoolFolder, StreamEvent, StreamId,
};
use roiflow::publish::Url;

use cameras::{Camera, Fault, Video};
use disk::SmallDisk;
use faulty::{Faulty, Habits};
use harness::{Folder, eventually};
use memory::Held;
use random::Random;
use servers::{Outage, Server};
use verdict::{Sample, Violations, judge, number};
use watch::Watch;

const N_CAMERAS: usize = 16;
/// Slots of the watch after those of the cameras.
const MAIN: usize = N_CAMERAS;
const N_SLOTS: usize = N_CAMERAS + 1;
/// Interval of the measurements.
const INTERVAL: Duration = Duration::from_secs(1);
/// Streams that restart at the same time, and messages that wait for brokers, need this much memory for a while. A run of an hour reaches the
/// limit of growth per frame first.
const LEAST_GROWTH: f64 = 16.0 * 1024.0 * 1024.0;
/// Small, so that outages also fill it and lead to gap records.
const SPOOL_BYTES: u64 = 256 * 1024;

fn main() {
    memory::settle_allocators();
    let duration = Duration::from_secs(number("DURATION").unwrap_or(60));
    let seed = number("SEED").unwrap_or_else(random::any_seed);
    faulty::keep_scripted_panics_quiet();
    roiflow::elements::register_static().expect("the elements can be registered");
    println!("chaos: {} s, SEED={seed}, {N_CAMERAS} cameras, 5 destinations", duration.as_secs());
    let (watch, violations) = (Arc::new(Watch::new(N_SLOTS)), Arc::new(Violations::default()));
    verdict::end_what_hangs("chaos", &watch);

    let habits = Habits { fails_permille: 20, panics_permille: 5, takes_us_max: 2000 };
    let engine = Faulty::register("chaos", seed, habits);
    let starting: Vec<_> = (0..N_CAMERAS).map(|_| std::thread::spawn(|| Camera::start(Video::SMALL))).collect();
    let cameras: Option<Vec<Camera>> = starting.into_iter().map(|starting| starting.join().expect("a camera starts")).collect();
    let Some(cameras) = cameras else {
        println!("chaos: skipped: there is no RTSP server");
        return;
    };
    let folder = Folder::new("chaos");
    let disk = SmallDisk::mount(&folder);
    if disk.is_none() {
        println!("chaos: the disk does not fail, because this user may not mount one");
    }
    let spool = disk.as_ref().map_or_else(|| folder.0.join("spool"), SmallDisk::spool);
    let mut servers = Server::all(&folder, &violations);
    let urls: Vec<String> = servers.iter().map(|server| server.url.clone()).collect();

    let (handle, events) = PipelineHandle::new().expect("a handle");
    let names: Vec<String> = (0..N_CAMERAS).map(|idx| format!("camera-{idx}")).collect();
    let add = |input: &str, name: &str| handle.add(&plan(input, name, &urls, &folder, &spool)).expect("a stream");
    let streams: Vec<StreamId> = cameras.iter().zip(&names).map(|(camera, name)| add(&camera.uri(), name)).collect();
    let n_frames = |stream: StreamId| handle.counters(stream).map_or(0, |stats| stats.n_frames);
    let has_ended = |stream: StreamId| handle.status(stream).is_none_or(|status| status.phase == Phase::Ended);
    note_events(events, &streams, &watch);

    let faults = faults();
    let begin = Instant::now();
    let end = begin + duration;
    let (mut samples, mut n_faults, mut n_outages) = (Vec::new(), 0, 0);
    std::thread::scope(|scope| {
        let (mut of_cameras, mut of_servers) = (Vec::new(), Vec::new());
        for ((idx, mut camera), stream) in (0..).zip(cameras).zip(streams.clone()) {
            let (watch, n_frames, has_ended, faults) = (&watch, &n_frames, &has_ended, &faults);
            let mut random = Random::new(seed ^ (idx as u64 + 1) << 20);
            of_cameras.push(scope.spawn(move || {
                let mut n = 0;
                while sleep_until(end, random.below(12_000)) {
                    let fault = faults[random.below(faults.len() as u64) as usize];
                    watch.note(idx, format!("the camera fails: {fault:?}"));
                    camera.fail(fault);
                    sleep_until(end, 500 + random.below(2500));
                    let n_before = n_frames(stream);
                    camera.heal();
                    watch.note(idx, format!("the camera works again; the stream has {n_before} frames"));
                    let what = format!("{fault:?} camera delivers frames again");
                    let (begin, mut is_asked) = (Instant::now(), false);
                    let works = || {
                        if begin.elapsed() > watch::PATIENCE / 2 && !std::mem::replace(&mut is_asked, true) {
                            watch.note(idx, camera.answer());
                        }
                        has_ended(stream) || n_frames(stream) > n_before + 3
                    };
                    watch.watched(idx, &*what, || eventually(&what, works));
                    n += 1;
                    if has_ended(stream) {
                        // The reason is reported when the streams are waited for.
                        break;
                    }
                }
                (n, camera)
            }));
        }
        for (idx, server) in (0..).zip(&mut servers) {
            let mut random = Random::new(seed ^ (idx as u64 + 1) << 40);
            of_servers.push(scope.spawn(move || {
                let mut n = 0;
                while sleep_until(end, 1000 + random.below(6000)) {
                    server.fail(if random.below(2) == 0 { Outage::Killed } else { Outage::Paused });
                    sleep_until(end, 500 + random.below(6000));
                    server.heal();
                    n += 1;
                }
                n
            }));
        }
        let mut random = Random::new(seed ^ 1 << 60);
        scope.spawn(move || {
            while sleep_until(end, 1000 + random.below(8000)) {
                engine.breaks(true);
                sleep_until(end, 200 + random.below(2000));
                engine.breaks(false);
            }
        });
        if let Some(disk) = &disk {
            let mut random = Random::new(seed ^ 3 << 60);
            scope.spawn(move || {
                while sleep_until(end, 1000 + random.below(10_000)) {
                    disk.fill();
                    sleep_until(end, 500 + random.below(3000));
                    disk.free();
                }
            });
        }
        let mut told = begin;
        while sleep_until(end, INTERVAL.as_millis() as u64) {
            let n_frames = streams.iter().map(|stream| n_frames(*stream)).sum();
            let Some(held) = watch.watched(MAIN, "a look at the memory", Held::now) else {
                println!("chaos: there is no /proc here: memory is not measured");
                break;
            };
            samples.push(Sample { at: begin.elapsed(), n_frames, held });
            if told.elapsed() > (duration / 20).clamp(Duration::from_secs(4), Duration::from_secs(30)) {
                told = Instant::now();
                println!("{}", progress(&samples));
            }
        }
        let cameras: Vec<Camera> = of_cameras
            .into_iter()
            .map(|thread| {
                let (n, camera) = thread.join().expect("the thread of a camera");
                n_faults += n;
                camera
            })
            .collect();
        n_outages = of_servers.into_iter().map(|thread| thread.join().expect("the thread of a server")).sum::<usize>();
        // The cameras work until all streams have ended.
        watch.watched(MAIN, "the streams end", || handle.drain_all());
        for (stream, name) in streams.iter().zip(&names) {
            match watch.watched(MAIN, format!("{name} ends"), || handle.wait(*stream)).map_err(|error| error.to_string()) {
                Ok(_) => {}
                // The run that measures the model has failed, so the stream has not begun.
                Err(error) if error.contains(faulty::SCRIPTED) => println!("{name}: {error}"),
                // The destinations still get a gap record for each lost result, and the file has all results.
                Err(error) if error.contains("could not be written") => println!("{name}: {error}"),
                Err(error) => violations.add(format!("{name}: {error}")),
            }
        }
        drop(cameras);
    });

    deliver_rest(|| add("test:1", "last"), &handle, &watch, &violations);
    let n_restarts: u64 = streams.iter().filter_map(|stream| handle.status(*stream)).map(|status| status.n_restarts).sum();
    println!("slowest: {}", watch.slowest());
    println!("{n_faults} faults of cameras led to {n_restarts} attempts; {n_outages} outages of servers");
    // The statistics, the file and all destinations must have the same number of frames, also for a stream that has failed.
    let n_frames: Vec<u64> = streams
        .iter()
        .zip(&names)
        .map(|(stream, name)| {
            let counted = handle.counters(*stream).map(|stats| stats.n_frames);
            check_file(&folder, name, counted, &violations)
        })
        .collect();
    for server in servers {
        let name = server.name;
        let received = watch.watched(MAIN, format!("{name}: results are read"), || server.finish(&names));
        names.iter().zip(&n_frames).for_each(|(stream, n_frames)| received.check(name, stream, *n_frames, &violations));
        println!(
            "{name}: {} messages, {} of them repeated; {} frames in gap records",
            received.n_messages, received.n_repeated, received.n_in_gaps
        );
    }
    watch.watched(MAIN, "the handle is dropped", || drop(handle));
    drop((disk, folder));
    // Decoders, caches and pools reach their size with the first restarts.
    judge("chaos", &samples, samples.len() / 4, LEAST_GROWTH, &violations);
}

/// Returns the faults of the cameras: all, or the fault that `FAULT` names.
fn faults() -> Vec<Fault> {
    let name = std::env::var("FAULT").unwrap_or_default();
    let faults: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| name.is_empty() || format!("{fault:?}") == name).collect();
    assert!(!faults.is_empty(), "FAULT: expected one of {:?}, got {name}", Fault::ALL);
    faults
}

/// Keeps the events of the streams as notes, which explain a hang.
fn note_events(events: Events, streams: &[StreamId], watch: &Arc<Watch>) {
    let (streams, watch) = (streams.to_vec(), watch.clone());
    std::thread::spawn(move || {
        for StreamEvent { stream, event } in events {
            let idx = streams.iter().position(|other| *other == stream);
            if let Some(idx) = idx.filter(|_| !matches!(event, Event::Progress(_))) {
                watch.note(idx, format!("{event:?}"));
            }
        }
    });
}

/// Sleeps for a number of milliseconds. Returns false at the end of the test.
fn sleep_until(end: Instant, milliseconds: u64) -> bool {
    let rest = end.saturating_duration_since(Instant::now());
    std::thread::sleep(Duration::from_millis(milliseconds).min(rest));
    Instant::now() < end
}

fn plan(input: &str, name: &str, urls: &[String], folder: &Folder, spool: &Path) -> Plan {
    let description = format!(
        "version = 1\nname = \"chaos\"\ndescription = \"Rectangles.\"\n[pipeline]\ngraph = \"{{source}} ! roidetect model={} device=NULL.chaos \
         max-failures=-1 ! roitrack ! {{json}} ! {{video}}\"\n",
        concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tiny/rectangle.onnx")
    );
    let spec = Spec::parse(&description, Path::new("chaos.toml")).expect("a valid description");
    let file = format!("file://{}?max-bytes=200k", folder.file("{stream}.jsonl").replace(' ', "%20"));
    let spool = SpoolFolder { path: spool.to_owned(), max_bytes: Some(SPOOL_BYTES), max_age: None };
    let outputs =
        Outputs { publish: urls.iter().cloned().chain([file]).map(Url::of_user).collect(), spool: Some(spool), ..Outputs::default() };
    let input = Input::parse(input).expect("a valid input");
    let plan = Plan::resolve(&spec, &[], input, outputs.of_stream(name, true)).expect("a valid plan");
    let restart = Restart {
        policy: Some(RestartPolicy::OnError),
        min_delay: Duration::from_millis(50),
        max_delay: Duration::from_secs(1),
        ..Restart::default()
    };
    let limits = Limits { source_timeout: Some(Duration::from_secs(1)), ..plan.limits };
    Plan { restart, limits, ..plan }
}

/// Runs short streams until no results wait in the spools.
fn deliver_rest(add: impl Fn() -> StreamId, handle: &PipelineHandle, watch: &Watch, violations: &Violations) {
    for _ in 0..20 {
        match watch.watched(MAIN, "the spools are delivered", || handle.wait(add())) {
            Ok(ending) if !ending.warnings.iter().any(|warning| warning.contains("wait in the spool")) => return,
            Ok(_) => {}
            Err(error) => return violations.add(format!("the stream after the test: {error}")),
        }
    }
    violations.add("results still wait in the spools".to_owned());
}

/// Checks that the parts of a stream's file have each frame once, in order, and `n_frames` frames if this number is known. Returns their
/// number.
fn check_file(folder: &Folder, stream: &str, n_frames: Option<u64>, violations: &Violations) -> u64 {
    let is_of_stream = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{stream}.")));
    let mut parts: Vec<_> = std::fs::read_dir(&folder.0).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    parts.retain(|path| is_of_stream(path));
    // The current file `camera-1.jsonl` sorts after its parts `camera-1.000001.jsonl`.
    parts.sort();
    let mut next = 0;
    for part in &parts {
        for line in std::fs::read_to_string(part).unwrap_or_default().lines() {
            let frame = serde_json::from_str::<serde_json::Value>(line).ok().and_then(|line| line["frame"].as_u64());
            if frame != Some(next) {
                violations.add(format!("{}: expected frame {next}, got {line}", part.display()));
            }
            next = frame.unwrap_or(next) + 1;
        }
    }
    if let Some(n_frames) = n_frames.filter(|n_frames| *n_frames != next) {
        violations.add(format!("the file of {stream} has {next} frames, expected {n_frames}"));
    }
    next
}

fn progress(samples: &[Sample]) -> String {
    let Some(Sample { at, n_frames, held }) = samples.last() else { return String::new() };
    format!(
        "{:4} s: {n_frames} frames; resident {:.1} MiB, heap {:.1} MiB, {} threads, {} descriptors",
        at.as_secs(),
        held.resident_bytes as f64 / 1024.0 / 1024.0,
        held.heap_bytes as f64 / 1024.0 / 1024.0,
        held.n_threads,
        held.n_descriptors
    )
}
