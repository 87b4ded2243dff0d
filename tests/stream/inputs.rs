//! Inputs other than files and RTSP: standard input, MJPEG and HLS by HTTP, SRT, images by a pattern.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Stdio;

use gst::prelude::*;
use gstreamer as gst;

use crate::cli::{Folder, command, lines, roiflow};
use crate::endings::{Running, answer, check, check_outputs, n_lines, read, serve};
use crate::harness::{make_clip, pipeline, run};
use crate::restarts::check_order;
use crate::rtsp::{Server, signal};

/// Starts a run that writes only JSON.
fn start(folder: &Folder, input: &str, options: &[&str]) -> Running {
    let (json, colors) = (folder.file("o.jsonl"), folder.file("colors.toml"));
    let _was_there = std::fs::remove_file(&json);
    let arguments = ["run", &colors, "--input", input, "--json", &json];
    let child = command().args(arguments).args(options).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    Running { child, json, video: String::new(), colors }
}

#[test]
fn standard_input_is_played_to_its_end() {
    let folder = Folder::new("input-stdin");
    let (clip, json) = (folder.file("clip"), folder.file("o.jsonl"));
    for muxer in ["mpegtsmux", "matroskamux", "mp4mux faststart=true"] {
        make_clip(&clip, 50, muxer);
        let arguments = ["run", &folder.file("colors.toml"), "-q", "--input", "-", "--json", &json];
        let mut child = command().args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let bytes = std::fs::read(&clip).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writing = std::thread::spawn(move || stdin.write_all(&bytes));
        let (code, said) = read(&child.wait_with_output().unwrap());
        writing.join().unwrap().unwrap();
        assert_eq!((code, n_lines(&json), &*said), (Some(0), 50, ""), "{muxer}");
        assert!(lines(&json).iter().all(|line| line["source"] == "-"), "{muxer}");
    }
    let (code, said) = read(&roiflow(&["run", &folder.file("colors.toml"), "--input", "-", "--restart", "on-error"]));
    assert!(code == Some(2) && said.contains("expected an input with an address"), "{said}");
}

/// Returns a JPEG image.
fn jpeg() -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(64, 48).write_to(&mut bytes, image::ImageFormat::Jpeg).unwrap();
    bytes.into_inner()
}

#[test]
fn mjpeg_by_http_comes_back() {
    let folder = Folder::new("input-mjpeg");
    let image = jpeg();
    let mut body = Vec::new();
    for _ in 0..30 {
        body.extend_from_slice(format!("--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {}\r\n\r\n", image.len()).as_bytes());
        body.extend_from_slice(&image);
        body.extend_from_slice(b"\r\n");
    }
    let (port, _sender) = serve(answer("200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=frame", &body), false);
    let running = start(&folder, &format!("http://127.0.0.1:{port}/video.mjpg"), &["--frames", "50"]);
    let json = running.json.clone();
    let (code, said, _) = running.end();
    assert_eq!((code, n_lines(&json)), (Some(0), 50), "{said}");
    check(&said, &["ended unexpectedly", "the source is back after"]);
    // The frames have no times of their own, so they get the time of their arrival.
    let times = lines(&json).iter().map(|line| line["pts"].as_u64().expect("a time")).collect::<Vec<_>>();
    assert!(times[..30].is_sorted_by(|a, b| a < b) && times[30..].is_sorted_by(|a, b| a < b), "{times:?}");
    check_order(&json);
}

/// What cameras send that is not in the standard: browsers show all of it.
#[test]
fn mjpeg_by_http_may_lack_headers_have_text_and_a_wrong_type() {
    let folder = Folder::new("input-mjpeg-odd");
    let image = jpeg();
    let part = |headers: &str| [b"--frame\r\n", headers.as_bytes(), b"\r\n", &image, b"\r\n"].concat();
    let plain = part("Content-Type: image/jpeg\r\n");
    let text = b"--frame\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello\r\n".to_vec();
    for (what, first, each) in [
        ("text before the first part", &b"This is a message with parts.\r\n"[..], plain.clone()),
        ("parts without headers", b"", part("")),
        ("parts with their length only", b"", part(&format!("Content-Length: {}\r\n", image.len()))),
        ("the type image/jpg", b"", part("Content-Type: image/jpg\r\n")),
        ("text between the images", b"", [&text[..], &plain].concat()),
        ("text after the first image", &plain, [text, plain.clone()].concat()),
        ("another kind of image after the first one", &plain, [part("Content-Type: image/png\r\n"), plain.clone()].concat()),
        ("images without parts", b"", image.clone()),
    ] {
        let body = [first, &each.repeat(40)].concat();
        let (port, _sender) = serve(answer("200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=frame", &body), false);
        let running = start(&folder, &format!("http://127.0.0.1:{port}/video.mjpg"), &["--frames", "30"]);
        let (code, said, _) = running.end();
        assert_eq!((code, n_lines(&folder.file("o.jsonl"))), (Some(0), 30), "{what}: {said}");
    }
}

#[test]
fn video_of_mjpeg_by_http_is_playable() {
    let folder = Folder::new("input-mjpeg-video");
    let image = jpeg();
    let part = format!("--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {}\r\n\r\n", image.len());
    let body = [part.as_bytes(), &image, b"\r\n"].concat().repeat(40);
    let (port, _sender) = serve(answer("200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=frame", &body), false);
    for ending in ["mp4", "mkv"] {
        let video = folder.file(&format!("video.{ending}"));
        let running = start(&folder, &format!("http://127.0.0.1:{port}/video.mjpg"), &["--frames", "30", "--video", &video]);
        let (code, said, _) = running.end();
        assert_eq!(code, Some(0), "{said}");
        check_outputs(&folder.file("o.jsonl"), &video, &folder.file("colors.toml"), &folder);
    }
}

#[test]
fn images_by_number_have_the_given_rate() {
    let folder = Folder::new("input-numbered");
    for n in [8, 9, 10, 12, 100] {
        folder.picture(&format!("frame-{n:03}.png"), 64, 48, [255, 0, 0]);
    }
    folder.picture("frame-7.png", 64, 48, [0, 255, 0]);
    let pattern = folder.file("frame-%03d.png");
    for (options, period_ns) in [(&["--image-rate", "25"][..], 40_000_000), (&["--image-rate", "1/2"], 2_000_000_000), (&[], 200_000_000)] {
        let running = start(&folder, &pattern, options);
        let json = running.json.clone();
        let (code, said, _) = running.end();
        assert_eq!(code, Some(0), "{said}");
        let seen: Vec<(String, u64)> =
            lines(&json).iter().map(|line| (line["source"].as_str().unwrap().to_owned(), line["pts"].as_u64().unwrap())).collect();
        let expected: Vec<(String, u64)> =
            ["008", "009", "010", "012", "100"].iter().zip(0..).map(|(n, idx)| (pattern.replace("%03d", n), idx * period_ns)).collect();
        assert_eq!(seen, expected);
    }
    for (input, options, says) in [
        (folder.file("none-%03d.png"), &[][..], "no images found"),
        (pattern.clone(), &["--image-rate", "0"], "from 0.001 to 1000"),
        ("test:3".to_owned(), &["--image-rate", "25"], "expected an input of images"),
    ] {
        let (code, said, _) = start(&folder, &input, options).end();
        assert!(code != Some(0) && said.contains(says), "{input}: {code:?} {said}");
    }
}

/// Serves the files of a folder by HTTP, and returns the port.
fn serve_files(folder: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let n_bytes = client.read(&mut request).unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..n_bytes]).into_owned();
            let name = request.split_whitespace().nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
            let kind = if name.ends_with("m3u8") { "application/vnd.apple.mpegurl" } else { "video/mp2t" };
            let file = std::fs::read(format!("{folder}/{name}"));
            let answer = match &file {
                Ok(bytes) => answer(&format!("200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}", bytes.len()), bytes),
                Err(_) => answer("404 Not Found\r\nContent-Length: 0", b""),
            };
            let _sent = client.write_all(&answer);
        }
    });
    port
}

#[test]
fn hls_playlist_is_played_to_its_end() {
    let folder = Folder::new("input-hls");
    let (segments, playlist) = (folder.file("s%05d.ts"), folder.file("list.m3u8"));
    let made = run(&pipeline(&format!(
        "videotestsrc num-buffers=100 ! video/x-raw,width=160,height=120,framerate=25/1 ! x264enc key-int-max=25 tune=zerolatency ! h264parse \
         ! hlssink2 target-duration=1 playlist-length=0 max-files=0 location=\"{segments}\" playlist-location=\"{playlist}\""
    )));
    assert_eq!(made.error, None);
    let port = serve_files(folder.file(""));
    let running = start(&folder, &format!("http://127.0.0.1:{port}/list.m3u8"), &["-q"]);
    let json = running.json.clone();
    let (code, said, _) = running.end();
    assert_eq!((code, n_lines(&json)), (Some(0), 100), "{said}");
    // Its times begin with the first frame, and do not depend on the segments.
    let times = lines(&json).iter().map(|line| (line["timestamp"].as_u64().expect("a time") + 500_000) / 1_000_000).collect::<Vec<_>>();
    assert_eq!(times, (0..100).map(|n| n * 40).collect::<Vec<_>>());
}

#[test]
fn codecs_of_rtsp_cameras_are_decoded() {
    let folder = Folder::new("input-codecs");
    for codec in ["h264", "h265", "vp8", "jpeg"] {
        let Some(server) = Server::start(&[&format!("codec={codec}")]) else { return };
        let running = start(&folder, &server.uri("rtspt", "", "/live"), &["-q", "--frames", "20"]);
        let json = running.json.clone();
        let (code, said, _) = running.end();
        assert_eq!((code, n_lines(&json), &*said), (Some(0), 20, ""), "{codec}");
        assert!(lines(&json).iter().all(|line| line["pts"].is_u64()), "{codec}");
    }
}

/// Starts a sender of SRT.
fn srt_sender(uri: &str) -> gst::Pipeline {
    let sender = pipeline(&format!(
        "videotestsrc is-live=true ! video/x-raw,width=160,height=120,framerate=25/1 ! x264enc key-int-max=10 tune=zerolatency ! mpegtsmux \
         ! srtsink uri=\"{uri}\" wait-for-connection=false"
    ));
    sender.set_state(gst::State::Playing).unwrap();
    sender
}

#[test]
fn srt_source_comes_back() {
    let folder = Folder::new("input-srt");
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // In the first case the sender listens, in the second case roiflow listens.
    for (of_sender, of_input) in
        [("127.0.0.1:PORT?mode=listener", "127.0.0.1:PORT"), ("127.0.0.1:PORT?mode=caller", "127.0.0.1:PORT?mode=listener")]
    {
        let [of_sender, of_input] = [of_sender, of_input].map(|text| format!("srt://{}", text.replace("PORT", &port.to_string())));
        let sender = srt_sender(&of_sender);
        let mut running = start(&folder, &of_input, &["--source-timeout", "2"]);
        running.wait_for_lines(10);
        sender.set_state(gst::State::Null).unwrap();
        let mut said = running.said();
        said.wait_for("trying again");
        let n_before = n_lines(&running.json);
        let sender = srt_sender(&of_sender);
        running.wait_for_lines(n_before + 10);
        signal(&running.child, "INT");
        assert_eq!(running.child.wait().unwrap().code(), Some(0), "{of_input}: {}", said.rest());
        // Its video is playable.
        let video = folder.file("video.mp4");
        let running = start(&folder, &of_input, &["--source-timeout", "2", "--frames", "30", "--video", &video]);
        let (code, said, _) = running.end();
        assert_eq!(code, Some(0), "{of_input}: {said}");
        check_outputs(&folder.file("o.jsonl"), &video, &folder.file("colors.toml"), &folder);
        let _removed = std::fs::remove_file(&video);
        sender.set_state(gst::State::Null).unwrap();
    }
}
