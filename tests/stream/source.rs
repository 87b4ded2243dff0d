//! `roisource`: a source that is lost and then delivers frames again, in pipelines like those of gst-launch-1.0.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

use crate::cli::Folder;
use crate::endings::{answer, serve};
use crate::harness::{TIMEOUT, eventually, make_clip, on_buffers, pipeline, run};
use crate::rtsp::Server;

/// Frames at the sink: running time and width.
type Frames = Arc<Mutex<Vec<(gst::ClockTime, i32)>>>;

/// Plays `roisource` with these properties into a sink.
fn play(properties: &str) -> (gst::Pipeline, Frames) {
    let pipeline = pipeline(&format!("roisource name=source {properties} ! fakesink name=sink sync=false"));
    let frames = Frames::default();
    let pad = pipeline.by_name("sink").unwrap().static_pad("sink").unwrap();
    let seen = frames.clone();
    on_buffers(&pipeline, "sink", "sink", move |_, buffer| {
        let segment = pad.sticky_event::<gst::event::Segment>(0).unwrap();
        let time = segment.segment().downcast_ref::<gst::ClockTime>().unwrap().to_running_time(buffer.pts().unwrap()).unwrap();
        let caps = pad.current_caps().unwrap();
        seen.lock().unwrap().push((time, caps.structure(0).unwrap().get("width").unwrap()));
    });
    assert_eq!(pipeline.set_state(gst::State::Paused), Ok(gst::StateChangeSuccess::NoPreroll));
    pipeline.set_state(gst::State::Playing).unwrap();
    (pipeline, frames)
}

/// Returns the next element message, error or EOS on the bus, as text.
fn next(pipeline: &gst::Pipeline) -> String {
    let types = [gst::MessageType::Element, gst::MessageType::Error, gst::MessageType::Eos];
    loop {
        let message = pipeline.bus().unwrap().timed_pop_filtered(TIMEOUT, &types).expect("a message in time");
        match message.view() {
            gst::MessageView::Error(error) => return format!("error: {}", error.error()),
            gst::MessageView::Eos(_) => return "EOS".to_owned(),
            gst::MessageView::Element(element) if element.src().is_some_and(|source| source.name() == "source") => {
                let structure = element.structure().unwrap();
                if structure.name().starts_with("source-") {
                    return structure.to_string().replace('\\', "");
                }
            }
            _ => {}
        }
    }
}

fn wait_for_frames(frames: &Frames, n: usize) {
    let n_before = frames.lock().unwrap().len();
    eventually("frames", || frames.lock().unwrap().len() > n_before + n);
}

fn stop(pipeline: &gst::Pipeline) {
    let begin = Instant::now();
    pipeline.set_state(gst::State::Null).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

fn check_times(frames: &Frames) {
    let frames = frames.lock().unwrap();
    assert!(frames.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{frames:?}");
}

#[test]
fn source_comes_back_without_frames_in_the_gap() {
    let Some(server) = Server::start(&[]) else { return };
    let port = server.port;
    let (pipeline, frames) = play(&format!("uri={}", server.uri("rtspt", "user:secret@", "/live")));
    wait_for_frames(&frames, 10);
    drop(server);
    let lost = next(&pipeline);
    assert!(lost.starts_with("source-lost") && lost.contains("127.0.0.1") && !lost.contains("secret"), "{lost}");
    let n_lost = frames.lock().unwrap().len();
    let port = format!("port={port}");
    let _server = Server::start(&[&*port, "size=640x480"]).unwrap();
    assert_eq!(frames.lock().unwrap().len(), n_lost, "no frame while the source is lost");
    let back = next(&pipeline);
    assert!(back.starts_with("source-back") && back.contains("attempts=(guint64)"), "{back}");
    wait_for_frames(&frames, 10);
    let sizes: Vec<i32> = frames.lock().unwrap().iter().map(|(_, width)| *width).collect();
    assert_eq!((sizes[n_lost - 1], sizes[n_lost]), (320, 640));
    check_times(&frames);
    let stats: gst::Structure = pipeline.by_name("source").unwrap().property("stats");
    assert_eq!(stats.get::<u64>("restarts").unwrap(), 1);
    assert!(stats.get::<u64>("time-down-ns").unwrap() > 0);
    stop(&pipeline);
}

/// Records each frame without encoding, until the camera was lost and is back with these options.
fn record_over_a_loss(folder: &Folder, options: &[&str]) -> Vec<(std::path::PathBuf, Vec<i32>)> {
    let server = Server::start(&[]).expect("the caller has a server");
    let port = format!("port={}", server.port);
    let line = format!(
        "roisource name=source uri={} roirecord name=record pre-roll=0 folder=\"{}\" ! fakesink name=sink sync=false \
         source.encoded ! queue ! record.video source.src ! queue ! roiattach rois=face:0.2,0.2,0.8,0.8 ! record.sink",
        server.uri("rtspt", "", "/live"),
        folder.file("clips")
    );
    let pipeline = pipeline(&line);
    let frames = Frames::default();
    let seen = frames.clone();
    on_buffers(&pipeline, "sink", "sink", move |_, buffer| seen.lock().unwrap().push((buffer.pts().unwrap(), 0)));
    pipeline.set_state(gst::State::Playing).unwrap();
    wait_for_frames(&frames, 20);
    drop(server);
    assert!(next(&pipeline).starts_with("source-lost"));
    let _server = Server::start(&[&[&*port], options].concat()).unwrap();
    assert!(next(&pipeline).starts_with("source-back"));
    wait_for_frames(&frames, 20);
    let n_seen = frames.lock().unwrap().len();
    assert!(pipeline.by_name("source").unwrap().send_event(gst::event::Eos::new()));
    assert_eq!(next(&pipeline), "EOS");
    stop(&pipeline);
    let mut clips: Vec<_> = std::fs::read_dir(folder.file("clips")).unwrap().map(|entry| entry.unwrap().path()).collect();
    clips.sort();
    let widths = |path: &std::path::PathBuf| {
        let player = crate::harness::pipeline("filesrc name=file ! qtdemux ! h264parse ! avdec_h264 ! fakesink name=sink");
        player.by_name("file").unwrap().set_property("location", path.to_str().unwrap());
        let (played, pad) = (Arc::new(Mutex::new(Vec::new())), player.by_name("sink").unwrap().static_pad("sink").unwrap());
        let seen = played.clone();
        on_buffers(&player, "sink", "sink", move |_, _| {
            seen.lock().unwrap().push(pad.current_caps().unwrap().structure(0).unwrap().get::<i32>("width").unwrap());
        });
        assert_eq!(run(&player).error, None);
        played.lock().unwrap().clone()
    };
    let clips: Vec<_> = clips.iter().map(|path| (path.clone(), widths(path))).collect();
    let n_played: usize = clips.iter().map(|(_, widths)| widths.len()).sum();
    assert!(n_played >= n_seen, "{n_played} of {n_seen} frames");
    clips
}

#[test]
fn recording_without_encoding_goes_on_after_a_loss() {
    if Server::start(&[]).is_none() {
        return;
    }
    let folder = Folder::new("source-encoded");
    let clips = record_over_a_loss(&folder, &[]);
    assert_eq!(clips.len(), 1, "{clips:?}");
    let folder = Folder::new("source-encoded-size");
    let clips = record_over_a_loss(&folder, &["size=640x480"]);
    assert_eq!(clips.len(), 2, "{clips:?}");
    assert!(clips[0].1.iter().all(|width| *width == 320) && clips[1].1.iter().all(|width| *width == 640), "{clips:?}");
}

#[test]
fn pad_of_encoded_video_says_that_jpeg_has_no_frames() {
    let Some(server) = Server::start(&["codec=jpeg"]) else { return };
    let line = format!(
        "roisource name=source uri={} source.encoded ! queue ! fakesink sync=false async=false source.src ! queue ! fakesink name=sink sync=false",
        server.uri("rtspt", "", "/live")
    );
    let pipeline = pipeline(&line);
    let frames = Frames::default();
    let seen = frames.clone();
    on_buffers(&pipeline, "sink", "sink", move |_, buffer| seen.lock().unwrap().push((buffer.pts().unwrap(), 0)));
    pipeline.set_state(gst::State::Playing).unwrap();
    let warning = pipeline.bus().unwrap().timed_pop_filtered(TIMEOUT, &[gst::MessageType::Warning]).expect("a warning");
    let gst::MessageView::Warning(warning) = warning.view() else { panic!("{warning:?}") };
    assert!(warning.error().message().contains("expected H.264 or H.265, got image/jpeg"), "{}", warning.error());
    wait_for_frames(&frames, 5);
    assert!(pipeline.by_name("source").unwrap().send_event(gst::event::Eos::new()));
    assert_eq!(next(&pipeline), "EOS");
    stop(&pipeline);
}

#[test]
fn stalled_source_is_lost_and_comes_back() {
    let Some(server) = Server::start(&[]) else { return };
    let (pipeline, frames) = play(&format!("uri={} no-frame-timeout=1", server.uri("rtspt", "", "/live")));
    wait_for_frames(&frames, 10);
    server.signal("STOP");
    let lost = next(&pipeline);
    assert!(lost.contains("no frame for 1 s"), "{lost}");
    server.signal("CONT");
    assert!(next(&pipeline).starts_with("source-back"));
    wait_for_frames(&frames, 10);
    check_times(&frames);
    stop(&pipeline);
}

#[test]
fn first_connection_that_is_refused_is_an_error_by_default() {
    let Some(server) = Server::start(&["private", "password=other"]) else { return };
    let uri = server.uri("rtspt", "user:secret@", "/live");
    for policy in ["auto", "never"] {
        let (pipeline, _) = play(&format!("uri={uri} restart={policy}"));
        let error = next(&pipeline);
        assert!(error.starts_with("error: cannot play rtspt://") && !error.contains("secret"), "{policy}: {error}");
        stop(&pipeline);
    }
    let (pipeline, frames) = play(&format!("uri={uri} restart=on-error"));
    assert!(next(&pipeline).starts_with("source-lost"));
    let port = format!("port={}", server.port);
    drop(server);
    let _server = Server::start(&["private", &port]).unwrap();
    assert!(next(&pipeline).starts_with("source-back"));
    wait_for_frames(&frames, 5);
    stop(&pipeline);
}

#[test]
fn source_that_stays_away_ends_after_the_limit() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (pipeline, _) = play(&format!("uri=rtspt://127.0.0.1:{closed}/live give-up-after=0.5"));
    assert!(next(&pipeline).starts_with("source-lost"));
    let error = next(&pipeline);
    assert!(error.contains("gave up after 0.5 s without a frame"), "{error}");
    stop(&pipeline);
}

#[test]
fn recording_that_is_repeated_has_growing_times() {
    let folder = Folder::new("source-recording");
    let clip = folder.file("clip.mp4");
    make_clip(&clip, 50, "mp4mux faststart=true");
    let bytes = std::fs::read(&clip).unwrap();
    let head = format!("200 OK\r\nContent-Type: video/mp4\r\nContent-Length: {}", bytes.len());
    let (port, _sender) = serve(answer(&head, &bytes), false);
    let uri = format!("http://127.0.0.1:{port}/clip.mp4");
    let (once, frames) = play(&format!("uri={uri}"));
    assert_eq!((next(&once), frames.lock().unwrap().len()), ("EOS".to_owned(), 50));
    stop(&once);
    let (pipeline, frames) = play(&format!("uri={uri} restart=always"));
    eventually("the third time", || frames.lock().unwrap().len() > 100);
    check_times(&frames);
    stop(&pipeline);
}

#[test]
fn eos_of_the_application_ends_a_lost_source() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (pipeline, _) = play(&format!("uri=rtspt://127.0.0.1:{closed}/live"));
    assert!(next(&pipeline).starts_with("source-lost"));
    assert!(pipeline.send_event(gst::event::Eos::new()));
    assert_eq!(next(&pipeline), "EOS");
    stop(&pipeline);
}

#[test]
fn source_without_an_address_is_an_error() {
    for (properties, got) in [("", "got none"), ("uri=camera", "got `camera`")] {
        let pipeline = pipeline(&format!("roisource name=source {properties} ! fakesink"));
        assert!(pipeline.set_state(gst::State::Playing).is_err());
        let error = next(&pipeline);
        assert!(error.contains("expected an address such as rtsp://camera/1") && error.contains(got), "{error}");
        stop(&pipeline);
    }
}

#[test]
fn source_pauses_and_continues() {
    let Some(server) = Server::start(&[]) else { return };
    let (pipeline, frames) = play(&format!("uri={}", server.uri("rtspt", "", "/live")));
    for _ in 0..2 {
        wait_for_frames(&frames, 5);
        pipeline.set_state(gst::State::Paused).unwrap();
        pipeline.set_state(gst::State::Playing).unwrap();
    }
    wait_for_frames(&frames, 5);
    stop(&pipeline);
    // The same element runs again.
    frames.lock().unwrap().clear();
    pipeline.set_state(gst::State::Playing).unwrap();
    wait_for_frames(&frames, 5);
    stop(&pipeline);
}

#[test]
fn redirects_in_a_circle_end_the_source() {
    let camera = crate::credentials::rtsp_server(|request| {
        let address = request.split_whitespace().nth(1).unwrap_or_default();
        format!("302 Found\r\nLocation: {address}")
    });
    let ending = run(&pipeline(&format!("roisource uri=rtsp://127.0.0.1:{}/live restart=never ! fakesink", camera.port)));
    assert!(ending.error.as_ref().is_some_and(|error| error.contains("redirects in a circle")), "{ending:?}");
    let n_requests = camera.n_requests();
    assert!((3..=64).contains(&n_requests), "{n_requests} requests");
}
