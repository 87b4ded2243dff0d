//! `roirecord` writes clips around events; the clips are decoded and their frames compared.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use gst::prelude::*;
use gstreamer as gst;
use roiflow::frame::{Detection, PixelRect, Rect, Size};
use serde_json::Value;

use crate::cli::{command, lines as lines_of};
use crate::harness::{
    Ending, FRAME_TIME, Folder, attach, caps, collect, eventually, face, feed, make_clip, on_buffers, picture, pipeline, results, run, tiny,
};

const SIZE: Size = Size::new(128, 96);

/// Frame `n`: a white bar whose left edge is at `n`.
fn frame(n: u64) -> gst::Buffer {
    picture(SIZE, PixelRect { x: n as u32, y: 0, width: 8, height: SIZE.height }, [255; 3])
}

fn object() -> Detection {
    face(1, Rect { x: 10.0, y: 10.0, width: 30.0, height: 30.0 })
}

/// Plays `n` raw frames of 40 ms with an object in the frames `events`.
fn play(folder: &Folder, properties: &str, n: u64, events: &[u64]) -> (gst::Pipeline, Ending) {
    let line = format!(
        "appsrc name=source ! identity name=attach ! roirecord name=record folder=\"{}\" {properties} \
         ! roipublish stream-id=door address=\"{}\" ! fakesink name=sink",
        folder.file("clips"),
        folder.file("lines.jsonl")
    );
    let pipeline = pipeline(&line);
    let events = events.to_vec();
    attach(&pipeline, move |n| results(SIZE, n, if events.contains(&n) { vec![object()] } else { vec![] }));
    feed(&pipeline, &caps("RGB", SIZE), (0..n).map(frame));
    let ending = run(&pipeline);
    (pipeline, ending)
}

/// Returns the paths of the complete clips, sorted by name.
fn clips(folder: &Folder) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.0.join("clips")).map(|entries| entries.map(|entry| entry.unwrap().path()).collect());
    let mut files: Vec<PathBuf> = entries.unwrap_or_default();
    files.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with("clip-"));
    files.sort();
    files
}

/// Decodes a clip. Returns the number of each frame, by its bar, and checks that timestamps begin at 0 without gaps.
fn decode(path: &Path) -> Vec<u64> {
    decode_from(gst::ClockTime::ZERO, path)
}

/// Like [`decode`], for a clip whose timestamps begin at `begin`.
fn decode_from(begin: gst::ClockTime, path: &Path) -> Vec<u64> {
    let line = "filesrc name=file ! qtdemux ! h264parse ! avdec_h264 ! videoconvert ! video/x-raw,format=GRAY8 ! fakesink name=sink";
    let pipeline = pipeline(line);
    pipeline.by_name("file").unwrap().set_property("location", path.to_str().unwrap());
    let decoded = Arc::new(Mutex::new(Vec::new()));
    let found = decoded.clone();
    on_buffers(&pipeline, "sink", "sink", move |n, buffer| {
        assert_eq!(buffer.pts(), Some(begin + FRAME_TIME * n));
        let map = buffer.map_readable().unwrap();
        let row = &map[SIZE.width as usize * 40..][..SIZE.width as usize];
        found.lock().unwrap().push(row.iter().position(|value| *value > 128).unwrap() as u64);
    });
    assert_eq!(run(&pipeline).error, None, "{}", path.display());
    decoded.lock().unwrap().clone()
}

fn records(folder: &Folder) -> Vec<Value> {
    let records: Vec<Value> = lines_of(&folder.file("lines.jsonl")).into_iter().filter(|line| line["event"] == "clip").collect();
    crate::results_schema::check_records(&records);
    records
}

fn stats(pipeline: &gst::Pipeline) -> [u64; 3] {
    let stats: gst::Structure = pipeline.by_name("record").unwrap().property("stats");
    ["clips", "frames", "errors"].map(|field| stats.get(field).unwrap())
}

#[test]
fn clip_has_the_frames_around_the_event() {
    let folder = Folder::new("record event");
    let (pipeline, ending) = play(&folder, "pre-roll=400 post-roll=400 stream-id=door", 100, &[50, 51, 52]);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let clips = clips(&folder);
    assert_eq!(clips.len(), 1, "{clips:?}");
    let frames = decode(&clips[0]);
    // Ten frames before and after the event; the clip begins at the key frame before, at most one second earlier.
    let (first, last) = (frames[0], *frames.last().unwrap());
    assert!((15..=40).contains(&first) && last == 62, "{first} to {last}");
    assert_eq!(frames, (first..=last).collect::<Vec<_>>());
    let all = lines_of(&folder.file("lines.jsonl"));
    let found = records(&folder);
    assert_eq!((all.len(), found.len()), (101, 1));
    let record = &found[0];
    assert_eq!(
        (&record["stream"], &record["path"], &record["labels"]),
        (&"door".into(), &clips[0].to_str().unwrap().into(), &serde_json::json!(["face"]))
    );
    assert_eq!((record["frames"].as_u64(), record["timestamp"].as_u64()), (Some(frames.len() as u64), Some(first * 40_000_000)));
    assert_eq!(
        (record["event_timestamp"].as_u64(), record["duration"].as_u64()),
        (Some(50 * 40_000_000), Some(frames.len() as u64 * 40_000_000))
    );
    assert_eq!(record["bytes"].as_u64(), Some(std::fs::metadata(&clips[0]).unwrap().len()));
    assert_eq!(stats(&pipeline), [1, frames.len() as u64, 0]);
}

#[test]
fn overlapping_events_give_one_clip_and_distant_events_two() {
    let folder = Folder::new("record overlap");
    let (_, ending) = play(&folder, "pre-roll=200 post-roll=400", 110, &[30, 42, 90]);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let clips: Vec<Vec<u64>> = clips(&folder).iter().map(|clip| decode(clip)).collect();
    assert_eq!(clips.len(), 2, "{clips:?}");
    assert!(clips[0][0] <= 25 && clips[0].last() == Some(&52), "{:?}", clips[0]);
    assert!(clips[1][0] > 52 && clips[1][0] <= 85 && clips[1].last() == Some(&100), "{:?}", clips[1]);
}

#[test]
fn end_of_stream_completes_the_clip_before_eos_leaves() {
    let folder = Folder::new("record eos");
    let (pipeline, ending) = play(&folder, "pre-roll=10000 post-roll=10000", 20, &[10]);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    assert_eq!(decode(&clips(&folder)[0]), (0..20).collect::<Vec<_>>());
    assert_eq!(lines_of(&folder.file("lines.jsonl")).last().unwrap()["event"], "clip");
    assert_eq!(stats(&pipeline), [1, 20, 0]);
}

#[test]
fn event_without_class_or_confidence_gives_no_clip() {
    for properties in ["object-class=dog", "min-confidence=0.8"] {
        let folder = Folder::new(&format!("record {properties}"));
        let (_, ending) = play(&folder, properties, 20, &[10]);
        assert_eq!((ending.error, ending.warnings, clips(&folder).len()), (None, vec![], 0), "{properties}");
    }
}

#[test]
fn long_event_is_split_into_clips_without_lost_frames() {
    let folder = Folder::new("record split");
    let (_, ending) = play(&folder, "pre-roll=0 post-roll=0 max-duration=1500", 110, &(0..110).collect::<Vec<_>>());
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let clips: Vec<Vec<u64>> = clips(&folder).iter().map(|clip| decode(clip)).collect();
    assert!(clips.len() >= 2, "{clips:?}");
    assert_eq!(clips.concat(), (0..110).collect::<Vec<_>>());
}

#[test]
fn encoded_video_is_not_encoded_again() {
    let folder = Folder::new("record encoded");
    let source = folder.file("source.mp4");
    make_clip(&source, 60, "mp4mux");
    let units = |path: &str| {
        let pipeline =
            pipeline("filesrc name=file ! qtdemux ! h264parse ! video/x-h264,stream-format=avc,alignment=au ! fakesink name=sink");
        pipeline.by_name("file").unwrap().set_property("location", path);
        let all = collect(&pipeline, "sink", "sink");
        assert_eq!(run(&pipeline).error, None);
        let all = all.lock().unwrap();
        all.iter().map(|arrived| arrived.buffer.map_readable().unwrap().to_vec()).collect::<Vec<_>>()
    };
    let line = format!(
        "filesrc location=\"{source}\" ! qtdemux ! h264parse ! tee name=camera roirecord name=record pre-roll=200 post-roll=400 folder=\"{}\" \
         ! roipublish address=\"{}\" ! fakesink camera. ! queue ! record.video camera. ! queue ! avdec_h264 ! identity name=attach ! record.sink",
        folder.file("clips"),
        folder.file("lines.jsonl")
    );
    let pipeline = pipeline(&line);
    let size = Size::new(256, 192);
    attach(&pipeline, move |n| results(size, n, if n == 28 { vec![object()] } else { vec![] }));
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let clips = clips(&folder);
    assert_eq!(clips.len(), 1);
    // Key frames are at each tenth frame. The pre-roll begins at frame 23.
    let (original, clip) = (units(&source), units(clips[0].to_str().unwrap()));
    assert_eq!(original.len(), 60);
    assert_eq!(clip.len(), 19);
    assert!(clip == original[20..39], "the clip has the bytes of the source");
    assert_eq!(records(&folder)[0]["event_timestamp"].as_u64(), Some(28 * 40_000_000));
}

/// With B-frames, the first frames of a file have decoding times before the first frame is shown.
#[test]
fn clip_at_the_beginning_of_a_file_with_b_frames_has_its_first_frames() {
    let folder = Folder::new("record b-frames");
    let source = folder.file("source.mp4");
    let encode = pipeline(&format!(
        "appsrc name=source ! videoconvert ! video/x-raw,format=I420 ! x264enc bframes=2 b-adapt=false key-int-max=10 ! video/x-h264,profile=main \
         ! mp4mux ! filesink location=\"{source}\""
    ));
    feed(&encode, &caps("RGB", SIZE), (0..30).map(frame));
    assert_eq!(run(&encode).error, None);
    let line = format!(
        "filesrc location=\"{source}\" ! qtdemux ! h264parse ! tee name=camera roirecord name=record pre-roll=200 post-roll=0 folder=\"{}\" \
         ! fakesink camera. ! queue ! record.video camera. ! queue ! avdec_h264 ! identity name=attach ! record.sink",
        folder.file("clips"),
    );
    let pipeline = pipeline(&line);
    attach(&pipeline, move |n| results(SIZE, n, if n == 1 { vec![object()] } else { vec![] }));
    assert_eq!(run(&pipeline).error, None);
    let clips = clips(&folder);
    assert_eq!(clips.len(), 1);
    // The first frame is shown when two more frames are decoded.
    let frames = decode_from(FRAME_TIME * 2, &clips[0]);
    assert!(frames.len() < 20 && frames.starts_with(&[0, 1]), "{frames:?}");
}

#[test]
fn oldest_clips_are_deleted_at_the_limit() {
    let folder = Folder::new("record quota");
    let events = [5, 35, 65, 95];
    let (_, ending) = play(&folder, "pre-roll=0 post-roll=200", 110, &events);
    assert_eq!(ending.error, None);
    let all = clips(&folder);
    let size = |clips: &[PathBuf]| clips.iter().map(|clip| std::fs::metadata(clip).unwrap().len()).sum::<u64>();
    assert_eq!(all.len(), 4, "{all:?}");
    let limit = size(&all) * 2 / 3;
    std::fs::remove_dir_all(folder.0.join("clips")).unwrap();
    let (pipeline, ending) = play(&folder, &format!("pre-roll=0 post-roll=200 max-bytes={limit}"), 110, &events);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let left = clips(&folder);
    assert!(size(&left) <= limit && !left.is_empty() && left.len() < 4, "{left:?}");
    assert_eq!(stats(&pipeline)[0], 4);
    // The newest clip is there.
    assert_eq!(Some(left.last().unwrap().to_str().unwrap()), records(&folder).last().unwrap()["path"].as_str());
}

/// Writes a description that records all rectangles. Returns the arguments of the command.
fn recording(folder: &Folder, source: &str) -> [String; 5] {
    let (model, clips) = (tiny("rectangle.onnx"), folder.file("clips"));
    let graph = format!("{{source}} ! roidetect model={model} ! roirecord folder=\\\"{clips}\\\" pre-roll=0 ! {{json}} ! {{video}}");
    let text = format!("version = 1\nname = \"record\"\ndescription = \"Records.\"\n[pipeline]\ngraph = \"{graph}\"\n");
    ["run".to_owned(), folder.write("record.toml", text), "-q".to_owned(), "--input".to_owned(), source.to_owned()]
}

#[test]
fn clip_of_a_killed_process_is_playable_and_gets_its_name() {
    let folder = Folder::new("record kill");
    let (long, short) = (folder.file("long.mp4"), folder.file("short.mp4"));
    make_clip(&long, 5000, "mp4mux");
    make_clip(&short, 60, "mp4mux");
    let mut killed = command().args(recording(&folder, &long)).spawn().unwrap();
    let parts = || {
        let entries = std::fs::read_dir(folder.0.join("clips")).into_iter().flatten().map(|entry| entry.unwrap());
        let large = entries.filter(|entry| entry.metadata().is_ok_and(|metadata| metadata.len() > 200_000));
        large.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|ending| ending == "part")).collect::<Vec<_>>()
    };
    eventually("a part of a clip is on disk", || !parts().is_empty());
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!((clips(&folder).len(), parts().len()), (0, 1));
    // A player can already play the part.
    let (copy, json) = (folder.file("copy.mp4"), folder.file("played.jsonl"));
    std::fs::copy(&parts()[0], &copy).unwrap();
    let played = command().args(["run", "-q", &folder.file("record.toml"), "--input", &copy, "--json", &json]).output().unwrap();
    assert!(lines_of(&json).len() > 20, "{played:?}");
    std::fs::remove_dir_all(folder.0.join("clips")).unwrap();
}

#[test]
fn next_start_names_the_clips_of_a_killed_process() {
    let folder = Folder::new("record recover");
    let (_, ending) = play(&folder, "pre-roll=0 post-roll=10000", 60, &[10]);
    assert_eq!(ending.error, None);
    let clip = clips(&folder).remove(0);
    let name = clip.file_name().unwrap().to_str().unwrap();
    // As after a kill: this process ID never exists. The other file has no video.
    std::fs::rename(&clip, clip.with_file_name(format!(".{name}.4194305.part"))).unwrap();
    std::fs::write(clip.with_file_name(".clip-door-1-0001.mp4.4194305.part"), "ftyp").unwrap();
    let (_, ending) = play(&folder, "object-class=dog", 5, &[]);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    assert_eq!(clips(&folder), [clip]);
}

/// Plays encoded video to both pads, with an object in each frame. `change` may change each encoded frame.
fn play_encoded(
    folder: &Folder,
    (source, demuxer): (&str, &str),
    change: impl Fn(u64, &mut gst::Buffer) + Send + Sync + 'static,
) -> Ending {
    let line = format!(
        "filesrc location=\"{source}\" ! {demuxer} ! h264parse ! identity name=parsed ! tee name=camera \
         roirecord name=record pre-roll=0 post-roll=2000 folder=\"{}\" ! fakesink camera. ! queue ! record.video \
         camera. ! queue ! avdec_h264 ! identity name=attach ! record.sink",
        folder.file("clips"),
    );
    let pipeline = pipeline(&line);
    let n = std::sync::atomic::AtomicU64::new(0);
    pipeline.by_name("parsed").unwrap().static_pad("src").unwrap().add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data {
            change(n.fetch_add(1, std::sync::atomic::Ordering::Relaxed), buffer);
        }
        gst::PadProbeReturn::Ok
    });
    attach(&pipeline, |n| results(SIZE, n, vec![object()]));
    run(&pipeline)
}

/// After a pause of the process, the frames of an RTSP camera arrive at once. Some have the same timestamp, and others none.
#[test]
fn frames_without_timestamps_are_in_the_clip() {
    let folder = Folder::new("record no times");
    let source = folder.file("source.mp4");
    make_clip(&source, 60, "mp4mux");
    let ending = play_encoded(&folder, (&source, "qtdemux"), |n, buffer| {
        if (20..45).contains(&n) {
            let buffer = buffer.make_mut();
            buffer.set_pts((n < 30).then(|| FRAME_TIME * 20));
            buffer.set_dts(gst::ClockTime::NONE);
        }
    });
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let clips = clips(&folder);
    assert_eq!((clips.len(), n_played(&clips[0])), (1, 60));
}

fn n_played(path: &Path) -> usize {
    let pipeline = pipeline("filesrc name=file ! qtdemux ! h264parse ! avdec_h264 ! fakesink name=sink");
    pipeline.by_name("file").unwrap().set_property("location", path.to_str().unwrap());
    let frames = collect(&pipeline, "sink", "sink");
    assert_eq!(run(&pipeline).error, None, "{}", path.display());
    frames.lock().unwrap().len()
}

/// With B-frames and a varying frame rate, a duration that is computed from decoding times is too short.
#[test]
fn clip_of_a_varying_frame_rate_plays_to_its_end() {
    let folder = Folder::new("record rate");
    let source = folder.file("source.ts");
    let encode = pipeline(&format!(
        "appsrc name=source ! identity name=slow ! videoconvert ! video/x-raw,format=I420 ! x264enc bframes=2 b-adapt=false key-int-max=10 \
         ! video/x-h264,profile=main ! mpegtsmux ! filesink location=\"{source}\""
    ));
    let slow = |n: u64| FRAME_TIME * n + FRAME_TIME * 6 * n.saturating_sub(25);
    let n = std::sync::atomic::AtomicU64::new(0);
    encode.by_name("slow").unwrap().static_pad("sink").unwrap().add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data {
            buffer.make_mut().set_pts(slow(n.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
        }
        gst::PadProbeReturn::Ok
    });
    feed(&encode, &caps("RGB", SIZE), (0..30).map(frame));
    assert_eq!(run(&encode).error, None);
    assert_eq!(play_encoded(&folder, (&source, "tsdemux"), |_, _| {}).error, None);
    let clips = clips(&folder);
    assert_eq!((clips.len(), n_played(&clips[0])), (1, 30));
}

/// The file size limit makes each file fail after 100 kB, as a disk does that becomes full.
#[test]
fn failed_clip_is_kept_and_the_next_begins_at_a_key_frame() {
    let folder = Folder::new("record limit");
    let source = folder.file("source.mp4");
    make_clip(&source, 1000, "mp4mux");
    let script = "trap '' XFSZ; ulimit -f 200; exec \"$0\" \"$@\"";
    let mut run = std::process::Command::new("sh");
    run.args(["-c", script, env!("CARGO_BIN_EXE_roiflow")]).args(recording(&folder, &source)).args(["--json", "-"]);
    let ended = run.env("ROIFLOW_CACHE_DIR", "").output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    std::fs::write(folder.file("lines.jsonl"), &ended.stdout).unwrap();
    assert_eq!(lines_of(&folder.file("lines.jsonl")).iter().filter(|line| line["event"].is_null()).count(), 1000);
    let clips = clips(&folder);
    assert!(clips.len() > 1, "{clips:?}");
    assert!(clips.iter().all(|clip| n_played(clip) > 10), "{clips:?}");
    check_records(&folder);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("cannot write clip") && said.contains("the recording continues in"), "{said}");
}

/// Each clip has a line that says how many frames it has and how long they take. All other clips have no file.
fn check_records(folder: &Folder) {
    let (records, clips) = (records(folder), clips(folder));
    let of_files: Vec<_> = clips.iter().map(|clip| (clip.to_str(), Some(n_played(clip) as u64))).collect();
    let of_lines: Vec<_> = records.iter().map(|record| (record["path"].as_str(), record["frames"].as_u64())).collect();
    assert_eq!(of_lines, of_files);
    for record in &records {
        assert_eq!(record["duration"].as_u64(), record["frames"].as_u64().map(|n| n * 40_000_000), "{record}");
    }
}

/// With this limit, not even the index of a file can be written.
#[test]
fn clip_without_video_has_no_line_and_no_file() {
    for limit in [0, 1] {
        let folder = Folder::new(&format!("record full {limit}"));
        let source = folder.file("source.mp4");
        make_clip(&source, 200, "mp4mux");
        let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" \"$@\"");
        let mut run = std::process::Command::new("sh");
        run.args(["-c", &*script, env!("CARGO_BIN_EXE_roiflow")]).args(recording(&folder, &source)).args(["--json", "-"]);
        let ended = run.env("ROIFLOW_CACHE_DIR", "").output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("cannot write clip") && said.contains("the recording has stopped"), "{said}");
        assert!(!String::from_utf8_lossy(&ended.stdout).contains("\"clip\""), "{ended:?}");
        assert_eq!(std::fs::read_dir(folder.0.join("clips")).unwrap().count(), 0);
    }
}

/// Plays 200 frames in real time or faster. `act` is called at frame `at`, with the folder of the clips.
fn play_and(folder: &Folder, at: u64, act: impl Fn(&Path) + Send + 'static, events: std::ops::Range<u64>) -> (gst::Pipeline, Ending) {
    let clips = folder.0.join("clips");
    let line = format!(
        "appsrc name=source ! identity name=attach ! roirecord name=record pre-roll=0 post-roll=0 folder=\"{}\" \
         ! roipublish address=\"{}\" ! fakesink name=sink",
        clips.display(),
        folder.file("lines.jsonl")
    );
    let pipeline = pipeline(&line);
    attach(&pipeline, move |n| {
        if n == at {
            act(&clips);
        }
        results(SIZE, n, if n == 5 || events.contains(&n) { vec![object()] } else { vec![] })
    });
    feed(&pipeline, &caps("RGB", SIZE), (0..200).map(|n| frame(n % 100)));
    let ending = run(&pipeline);
    (pipeline, ending)
}

/// Waits until the folder has a file with this ending that has video.
fn wait_for_file(clips: &Path, ending: &str) {
    eventually("a file with video", || {
        let mut entries = std::fs::read_dir(clips).unwrap().map(|entry| entry.unwrap());
        entries.any(|entry| entry.path().to_str().unwrap().ends_with(ending) && entry.metadata().is_ok_and(|metadata| metadata.len() > 0))
    });
}

#[test]
fn deleted_folder_is_created_again_for_the_next_clip() {
    let folder = Folder::new("record again");
    let delete = |clips: &Path| {
        wait_for_file(clips, ".mp4");
        std::fs::remove_dir_all(clips).unwrap();
    };
    let (pipeline, ending) = play_and(&folder, 60, delete, 100..101);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    assert_eq!((stats(&pipeline)[0], stats(&pipeline)[2], clips(&folder).len()), (2, 0, 1));
    let last = records(&folder).pop().unwrap();
    assert_eq!(last["path"].as_str(), clips(&folder)[0].to_str());
}

#[test]
fn clip_that_is_deleted_while_it_is_written_is_reported() {
    let folder = Folder::new("record deleted");
    let delete = |clips: &Path| {
        wait_for_file(clips, ".part");
        std::fs::remove_dir_all(clips).unwrap();
    };
    let (pipeline, ending) = play_and(&folder, 60, delete, 0..200);
    assert_eq!(ending.error, None);
    assert!(ending.warnings[0].contains("was deleted"), "{:?}", ending.warnings);
    assert!(stats(&pipeline)[2] >= 1);
    check_records(&folder);
}

#[test]
fn file_that_begins_again_is_one_clip() {
    let folder = Folder::new("record loop");
    let (source, json) = (folder.file("source.mp4"), folder.file("lines.jsonl"));
    make_clip(&source, 60, "mp4mux");
    let ended = command().args(recording(&folder, &source)).args(["--loop", "--frames", "150", "--json", &json]).output().unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    let frames: Vec<_> = records(&folder).iter().map(|record| record["frames"].as_u64()).collect();
    assert_eq!(frames, [Some(150)]);
}

#[test]
fn flush_completes_the_clip_and_the_next_begins_anew() {
    let folder = Folder::new("record flush");
    crate::harness::init();
    let element =
        gst::ElementFactory::make("roirecord").property("folder", folder.file("clips")).property("pre-roll", 0_u32).build().unwrap();
    let mut harness = gstreamer_check::Harness::with_element(&element, Some("sink"), Some("src"));
    harness.set_src_caps(caps("RGB", SIZE));
    for _ in 0..2 {
        for n in 0..30 {
            let mut buffer = crate::harness::stamp(frame(n), n);
            roiflow::elements::meta::attach(buffer.make_mut(), results(SIZE, n, if n == 5 { vec![object()] } else { vec![] }));
            harness.push(buffer).unwrap();
        }
        assert!(harness.push_event(gst::event::FlushStart::new()));
        assert!(harness.push_event(gst::event::FlushStop::new(true)));
        assert!(harness.push_event(gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new())));
    }
    drop(harness);
    element.set_state(gst::State::Null).unwrap();
    let clips = clips(&folder);
    assert_eq!(clips.len(), 2, "{clips:?}");
    for clip in clips {
        let frames = decode(&clip);
        assert!(frames[0] <= 5 && frames.len() > 5 && frames.windows(2).all(|pair| pair[1] == pair[0] + 1), "{frames:?}");
    }
}

#[test]
fn lost_folder_is_one_warning_and_the_stream_goes_on() {
    let folder = Folder::new("record lost");
    let clips = folder.0.join("clips");
    let line = format!(
        "appsrc name=source ! identity name=attach ! roirecord name=record pre-roll=0 post-roll=0 folder=\"{}\" ! fakesink name=sink",
        clips.display()
    );
    let pipeline = pipeline(&line);
    attach(&pipeline, move |n| {
        if n == 0 {
            std::fs::remove_dir_all(&clips).unwrap();
            // The folder cannot be created again.
            std::fs::write(&clips, "a file").unwrap();
        }
        results(SIZE, n, if n == 30 || n == 60 { vec![object()] } else { vec![] })
    });
    let passed = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), (0..90).map(frame));
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings.len(), passed.lock().unwrap().len()), (None, 1, 90), "{:?}", ending.warnings);
    assert_eq!(stats(&pipeline), [0, 0, 2]);
}

#[test]
fn application_can_trigger_a_clip_and_reads_a_message() {
    let folder = Folder::new("record trigger");
    let line = format!(
        "appsrc name=source ! identity name=attach ! roirecord name=record pre-roll=0 post-roll=200 folder=\"{}\" ! fakesink",
        folder.file("clips")
    );
    let pipeline = pipeline(&line);
    let pad = pipeline.by_name("attach").unwrap().static_pad("src").unwrap();
    on_buffers(&pipeline, "attach", "sink", move |n, _| {
        if n == 30 {
            let trigger = gst::Structure::builder("roirecord-trigger").field("label", "door-bell").build();
            assert!(pad.push_event(gst::event::CustomDownstream::new(trigger)));
        }
    });
    feed(&pipeline, &caps("RGB", SIZE), (0..60).map(frame));
    let bus = pipeline.bus().unwrap();
    pipeline.set_state(gst::State::Playing).unwrap();
    let types = [gst::MessageType::Eos, gst::MessageType::Error, gst::MessageType::Element];
    let message = bus.timed_pop_filtered(crate::harness::TIMEOUT, &types).unwrap();
    let structure = message.structure().unwrap();
    assert_eq!((structure.name().as_str(), structure.get::<&str>("labels").unwrap()), ("roirecord-clip", "door-bell"));
    assert!(Path::new(structure.get::<&str>("path").unwrap()).exists());
    pipeline.set_state(gst::State::Null).unwrap();
    assert_eq!(clips(&folder).len(), 1);
}

#[test]
fn unusable_settings_and_video_are_reported() {
    let (_, ending) = {
        let pipeline = pipeline("videotestsrc num-buffers=1 ! roirecord ! fakesink");
        let ending = run(&pipeline);
        (pipeline, ending)
    };
    assert!(ending.error.is_some_and(|error| error.contains("expected a folder for clips")));
    let folder = Folder::new("record jpeg");
    let pipeline = pipeline(&format!("videotestsrc num-buffers=2 ! jpegenc ! roirecord folder=\"{}\" ! fakesink", folder.file("clips")));
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings.len()), (None, 1));
    assert!(ending.warnings[0].contains("cannot record image/jpeg"), "{:?}", ending.warnings);
}

#[test]
fn clip_of_the_command_shows_what_the_overlay_draws() {
    let folder = Folder::new("record drawn");
    let clip = |overlay: &str, clips: &str| {
        let graph =
            format!("{{source}} ! roiattach rois=face:0.2,0.2,0.8,0.8 ! {overlay} ! roirecord folder={clips} ! {{json}} ! {{video}}");
        let text = format!("version = 1\nname = \"record\"\ndescription = \"Records.\"\n[pipeline]\ngraph = \"{graph}\"\n");
        std::fs::write(folder.0.join("record.toml"), text).unwrap();
        let output = command().args(["run", &folder.file("record.toml"), "--input", "test:10"]).current_dir(&folder.0).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = std::fs::read_dir(folder.0.join(clips)).unwrap().next().unwrap().unwrap().path();
        let pipeline = pipeline("filesrc name=file ! decodebin ! videoconvert ! video/x-raw,format=GRAY8 ! fakesink name=sink");
        pipeline.by_name("file").unwrap().set_property("location", path.to_str().unwrap());
        let frames = collect(&pipeline, "sink", "sink");
        assert_eq!(run(&pipeline).error, None);
        let frames = frames.lock().unwrap();
        frames[0].rows().concat().concat()
    };
    let (plain, drawn) = (clip("roioverlay draw=false", "plain"), clip("roioverlay attach-drawing=false", "drawn"));
    let n_differing = plain.iter().zip(&drawn).filter(|(plain, drawn)| plain.abs_diff(**drawn) > 60).count();
    assert!(n_differing > 500, "{n_differing} pixels of the box and its label");
}
