//! Streams that are added, drained, stopped and removed while others run.

use std::path::Path;
use std::time::{Duration, Instant};

use roiflow::frame::Size;
use roiflow::pipeline::{Error, ErrorKind, Event, Events, Input, Outputs, Phase, PipelineHandle, Plan, Spec, StreamId, prepare};

use crate::harness::{Folder, eventually, make_clip, tiny};

/// Time limit of each wait. A longer wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(60);
/// An input with more frames than any test waits for.
const ENDLESS: &str = "test:100000000";

fn plan(input: &str, outputs: Outputs) -> Plan {
    let description = format!(
        "version = 1\nname = \"rectangles\"\ndescription = \"Rectangles.\"\n[pipeline]\ngraph = \"{{source}} ! roidetect model={} device=CPU ! \
         {{json}} ! {{video}}\"\n",
        tiny("rectangle.onnx")
    );
    let spec = Spec::parse(&description, Path::new("rectangles.toml")).unwrap();
    Plan::resolve(&spec, &[], Input::parse(input).unwrap(), outputs).unwrap()
}

fn to_json(path: &str) -> Outputs {
    Outputs { json: Some(path.into()), ..Outputs::default() }
}

fn n_lines(path: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{text}");
    text.lines().count() as u64
}

fn n_frames(handle: &PipelineHandle, stream: StreamId) -> u64 {
    handle.stats(stream).unwrap().n_frames
}

fn runs_on(handle: &PipelineHandle, stream: StreamId) {
    let before = n_frames(handle, stream);
    eventually("the other stream continues", || n_frames(handle, stream) > before + 5);
    eventually("its status is current", || handle.status(stream).unwrap().phase == Phase::Running);
}

/// Returns the events of a stream until its end.
fn events_of(events: &mut Events, stream: StreamId) -> Vec<Event> {
    let mut seen = Vec::new();
    loop {
        let event = events.next_timeout(LIMIT).expect("the stream ends in time");
        if event.stream == stream {
            seen.push(event.event);
            if matches!(seen.last(), Some(Event::Ended(_))) {
                return seen;
            }
        }
    }
}

#[test]
fn streams_are_added_and_removed_while_another_runs() {
    let folder = Folder::new("come and go");
    let clip = folder.file("clip.mp4");
    make_clip(&clip, 60, "mp4mux");
    let (handle, mut events) = PipelineHandle::new().unwrap();
    let stays = handle.add(&plan(ENDLESS, to_json(&folder.file("stays.jsonl")))).unwrap();
    runs_on(&handle, stays);
    for turn in 0..3 {
        let json = folder.file(&format!("clip-{turn}.jsonl"));
        let of_clip = handle.add(&plan(&clip, to_json(&json))).unwrap();
        let leaves = handle.add(&plan(ENDLESS, Outputs::default())).unwrap();
        assert_eq!(handle.streams(), [stays, of_clip, leaves]);
        let ending = handle.wait(of_clip).unwrap();
        assert_eq!((ending.stats.n_frames, n_lines(&json), ending.interrupted), (60, 60, false));
        eventually("it plays", || n_frames(&handle, leaves) > 0);
        assert!(handle.remove(leaves).unwrap().interrupted);
        assert_eq!(handle.remove(of_clip), Ok(ending));
        runs_on(&handle, stays);
    }
    assert_eq!(handle.streams(), [stays]);
    let ending = handle.remove(stays).unwrap();
    assert!(ending.interrupted && !ending.forced);
    assert_eq!(n_lines(&folder.file("stays.jsonl")), ending.stats.n_frames);
    assert!(handle.status(stays).is_none() && handle.wait(stays).unwrap_err().to_string().contains("was removed"));
    drop(handle);
    assert_eq!(events.by_ref().filter(|event| matches!(event.event, Event::Ended(_))).count(), 7, "the events end with it");
}

#[test]
fn drained_stream_has_complete_outputs() {
    let folder = Folder::new("drained");
    let (handle, mut events) = PipelineHandle::new().unwrap();
    for ending in ["mp4", "mkv"] {
        let (json, video) = (folder.file(&format!("{ending}.jsonl")), folder.file(&format!("o.{ending}")));
        let stream = handle.add(&plan(ENDLESS, Outputs { video: Some(video.clone().into()), ..to_json(&json) })).unwrap();
        eventually("some frames", || n_frames(&handle, stream) > 30);
        handle.drain(stream);
        let seen = events_of(&mut events, stream);
        let Some(Event::Ended(Ok(ended))) = seen.last() else { panic!("{seen:?}") };
        assert!(ended.interrupted && !ended.forced, "{ended:?}");
        assert_eq!(handle.status(stream).unwrap().phase, Phase::Ended);
        // The video has the same number of frames and plays without an error.
        let again = handle.add(&plan(&video, Outputs::default())).unwrap();
        let played = handle.remove(again).map(|ending| ending.stats.n_frames);
        assert_eq!((n_lines(&json), handle.stats(stream).unwrap().n_frames), (ended.stats.n_frames, ended.stats.n_frames));
        assert!(played.is_ok(), "{played:?}");
        let again = handle.add(&plan(&video, Outputs::default())).unwrap();
        assert_eq!(handle.wait(again).unwrap().stats.n_frames, ended.stats.n_frames, "{ending}");
    }
}

#[test]
fn stop_time_is_bounded() {
    let folder = Folder::new("bounded");
    // A FIFO without a writer, so opening the source hangs.
    let path = folder.file("fifo.mp4");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (handle, _events) = PipelineHandle::new().unwrap();
    let runs = handle.add(&plan(ENDLESS, Outputs::default())).unwrap();
    let hangs = |ask: fn(&PipelineHandle, StreamId)| {
        let stream = handle.add(&plan(&path, Outputs::default())).unwrap();
        assert_eq!(handle.status(stream).unwrap().phase, Phase::Starting);
        let begin = Instant::now();
        ask(&handle, stream);
        let ending = handle.wait(stream).unwrap();
        assert!(ending.forced && begin.elapsed() < Duration::from_secs(10), "{:?}: {ending:?}", begin.elapsed());
    };
    hangs(PipelineHandle::stop);
    hangs(PipelineHandle::drain);
    runs_on(&handle, runs);
    let begin = Instant::now();
    drop(handle);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    // Opening the FIFO for writing releases the threads that hang while they open it.
    let _opened = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
}

#[test]
fn stream_events_are_in_order() {
    let folder = Folder::new("events");
    let clip = folder.file("cut.mp4");
    make_clip(&clip, 100, "mp4mux faststart=true");
    let bytes = std::fs::read(&clip).unwrap();
    std::fs::write(&clip, &bytes[..bytes.len() / 2]).unwrap();
    let (handle, mut events) = PipelineHandle::new().unwrap();
    let other = handle.add(&plan(ENDLESS, Outputs::default())).unwrap();
    let cut = handle.add(&plan(&clip, Outputs::default())).unwrap();
    let seen = events_of(&mut events, cut);
    let place = |is_it: fn(&Event) -> bool| seen.iter().position(is_it).unwrap_or_else(|| panic!("{seen:?}"));
    assert_eq!(seen.iter().filter(|event| matches!(event, Event::Started | Event::Ended(_))).count(), 2, "{seen:?}");
    let warned = place(|event| matches!(event, Event::Warning(warning) if warning.contains("is truncated")));
    let ended = place(|event| matches!(event, Event::Ended(Err(error)) if error.to_string().contains("is truncated")));
    assert!(warned < ended && place(|event| matches!(event, Event::Started)) < ended);
    let mut frames: Vec<u64> = Vec::new();
    frames.extend(seen.iter().filter_map(|event| if let Event::Progress(progress) = event { Some(progress.n_frames) } else { None }));
    assert!(!frames.is_empty() && frames.is_sorted(), "{frames:?}");
    assert_eq!(handle.stats(cut).map(|stats| stats.n_frames), frames.last().copied(), "a stream that has failed keeps its measurements");
    handle.drain(other);
    let seen = events_of(&mut events, other);
    assert!(matches!(seen.last(), Some(Event::Ended(Ok(ending))) if ending.interrupted), "{:?}", seen.last());
}

#[test]
fn error_of_one_stream_does_not_affect_others() {
    let folder = Folder::new("one fails");
    let broken = folder.write("broken.mp4", "this is no video");
    let (handle, mut events) = PipelineHandle::new().unwrap();
    let runs = handle.add(&plan(ENDLESS, Outputs::default())).unwrap();
    let fails = handle.add(&plan(&broken, Outputs::default())).unwrap();
    let seen = events_of(&mut events, fails);
    let Some(Event::Ended(Err(error))) = seen.last() else { panic!("{seen:?}") };
    assert!(error.to_string().contains("cannot play") && error.to_string().contains("broken.mp4"), "{error}");
    assert_eq!(handle.wait(fails), Err::<_, Error>(error.clone()));
    assert_eq!(handle.stats(fails).map(|stats| stats.n_frames), Some(0));
    runs_on(&handle, runs);
    // If a stream cannot be built, the call returns an error.
    let same = folder.file("same.mp4");
    make_clip(&same, 5, "mp4mux");
    let error = handle.add(&plan(&same, to_json(&same))).unwrap_err();
    assert!(error.to_string().contains("same.mp4"), "{error}");
    runs_on(&handle, runs);
    assert!(handle.remove(runs).is_ok());
}

#[test]
fn prepared_stream_needs_no_file_and_an_invalid_plan_changes_nothing() {
    let folder = Folder::new("prepared");
    let model = folder.file("m.onnx");
    let files = ["onnx", "toml"].map(|ending| (tiny(&format!("rectangle.{ending}")), folder.file(&format!("m.{ending}"))));
    let plan = |input: &str, properties: &str| {
        let description = format!(
            "version = 1\nname = \"copy\"\ndescription = \"Rectangles.\"\n[pipeline]\ngraph = '{{source}} ! roidetect model=\"{model}\" device=CPU \
             {properties} ! {{json}} ! {{video}}'\n"
        );
        let spec = Spec::parse(&description, Path::new("copy.toml")).unwrap();
        Plan::resolve(&spec, &[], Input::parse(input).unwrap(), Outputs::default()).unwrap()
    };
    for (from, to) in &files {
        std::fs::copy(from, to).unwrap();
    }
    let size = Some(Size::new(320, 240));
    let prepared = prepare(&plan("test:40", ""), size).unwrap();
    for (properties, says) in [("tiles=100x100", "tiles"), ("tiles=2x2 overlap=2", "overlap"), ("threshold=2", "threshold")] {
        let error = prepare(&plan("test:40", properties), size).unwrap_err();
        assert!(error.kind() == ErrorKind::Failed && error.to_string().contains(says), "{properties}: {error}");
    }
    // The camera is not opened.
    prepare(&plan("rtspt://127.0.0.1:1/live", "tiles=2x2"), size).unwrap();
    std::fs::write(&model, "half a model").unwrap();
    let error = prepare(&plan("test:40", ""), size).unwrap_err();
    assert!(error.to_string().contains("m.onnx"), "{error}");

    let (handle, mut events) = PipelineHandle::new().unwrap();
    let runs = handle.add_prepared(&plan(ENDLESS, ""), prepared.clone()).unwrap();
    runs_on(&handle, runs);
    // A test pattern would begin again, so the stream refuses a change that needs a new pipeline, and runs on.
    handle.change(runs, &plan(ENDLESS, "tiles=100x100"));
    loop {
        match events.next_timeout(LIMIT).expect("an event in time").event {
            Event::Reloaded(refused) => break assert!(refused.is_err()),
            Event::Ended(ended) => panic!("{ended:?}"),
            _ => {}
        }
    }
    runs_on(&handle, runs);
    let prepared = handle.add_prepared(&plan("test:40", ""), prepared).unwrap();
    assert_eq!(handle.wait(prepared).unwrap().stats.n_frames, 40);
    let reads = handle.add(&plan("test:40", "")).unwrap();
    assert!(events_of(&mut events, reads).iter().any(|event| matches!(event, Event::Ended(Err(_)))));
    handle.remove(runs).unwrap();
}

#[test]
fn one_thread_supervises_all_streams() {
    let handles: Vec<_> = (0..3).map(|_| PipelineHandle::new().unwrap()).collect();
    let streams: Vec<_> = handles.iter().map(|(handle, _)| handle.add(&plan(ENDLESS, Outputs::default())).unwrap()).collect();
    handles.iter().zip(&streams).for_each(|((handle, _), stream)| runs_on(handle, *stream));
    let is_supervisor = |task: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default();
        name.trim() == "roiflow-bus"
    };
    // Wait, because a thread that has become idle may still be exiting.
    eventually("one thread", || {
        std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| is_supervisor(task).then_some(())).count() == 1
    });
}
