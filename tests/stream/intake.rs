//! Sources that send too much, nothing that can be decoded, or nothing to show: the stream ends with a sentence, and other streams go on.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use serde_json::json;

use crate::cli::{Folder, command, lines, roiflow};
use crate::endings::{Said, check, n_lines, read};
use crate::harness::{detect, eventually, make_clip, pipeline, run};
use crate::serve::Served;

/// Maximum memory of a run in these tests. A run with a small model takes about 200 MiB.
pub const MAX_MEMORY_KIB: u64 = 600 << 10;

/// Returns a JPEG image of more than 2 KiB. GStreamer detects the type of a stream after that much data.
fn image() -> Vec<u8> {
    let noise = |x: u32, y: u32| (x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503)).to_be_bytes();
    let pixels = image::RgbImage::from_fn(96, 96, |x, y| image::Rgb([noise(x, y)[0], noise(y, x)[1], noise(x + y, x)[2]]));
    let mut bytes = std::io::Cursor::new(Vec::new());
    pixels.write_to(&mut bytes, image::ImageFormat::Jpeg).unwrap();
    bytes.into_inner()
}

/// Serves each connection with this function, on a thread of its own, and returns the port.
pub fn serve(talk: impl Fn(TcpStream) -> std::io::Result<()> + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let talk = talk.clone();
            // Writing fails when the reader closes the connection.
            std::thread::spawn(move || drop(talk(connection)));
        }
    });
    port
}

/// Reads the head of a request, and returns its first line and the number of the request.
pub fn request(reader: &mut impl BufRead) -> std::io::Result<(String, String)> {
    let (mut first, mut number) = (String::new(), String::new());
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(value) = line.to_lowercase().strip_prefix("cseq:") {
            number = value.trim().to_owned();
        }
        if line.trim().is_empty() {
            return Ok((first, number));
        }
    }
}

/// Serves MJPEG by HTTP: `send` writes the parts.
fn mjpeg(send: impl Fn(&mut TcpStream) -> std::io::Result<()> + Clone + Send + 'static) -> String {
    let port = serve(move |mut connection| {
        request(&mut BufReader::new(connection.try_clone()?))?;
        connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=frame\r\nConnection: close\r\n\r\n")?;
        send(&mut connection)
    });
    format!("http://127.0.0.1:{port}/video.mjpg")
}

fn part(image: &[u8]) -> Vec<u8> {
    [format!("--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {}\r\n\r\n", image.len()).as_bytes(), image, b"\r\n"].concat()
}

/// Serves RTSP: `describe` answers to the request for the description, of which it gets the number.
pub fn rtsp(describe: impl Fn(&mut TcpStream, &str) -> std::io::Result<()> + Clone + Send + 'static) -> String {
    let port = serve(move |mut connection| {
        let mut reader = BufReader::new(connection.try_clone()?);
        loop {
            let (line, number) = request(&mut reader)?;
            match line.split(' ').next() {
                Some("DESCRIBE") => describe(&mut connection, &number)?,
                _ => write!(connection, "RTSP/1.0 200 OK\r\nCSeq: {number}\r\nPublic: DESCRIBE, SETUP, PLAY\r\n\r\n")?,
            }
        }
    });
    format!("rtspt://127.0.0.1:{port}/live")
}

/// Sends this text until the reader closes the connection.
pub fn flood(connection: &mut TcpStream, text: &str) -> std::io::Result<()> {
    let block = text.repeat((1 << 16) / text.len());
    loop {
        connection.write_all(block.as_bytes())?;
    }
}

pub fn start(folder: &Folder, inputs: &[&str], options: &[&str]) -> Child {
    let (json, colors) = (folder.file("{stream}.jsonl"), folder.file("colors.toml"));
    let inputs = inputs.iter().flat_map(|input| ["--input", input]);
    let arguments = ["run", &colors, "--json", &json].into_iter().chain(inputs).chain(options.iter().copied());
    command().args(arguments).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end of a run. Returns its exit code, its messages, and its largest memory in KiB.
pub fn end(mut child: Child) -> (Option<i32>, String, u64) {
    let mut said = Said::of(&mut child);
    let mut memory_kib = 0;
    let status = loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().trim_end_matches(" kB").parse().ok());
        memory_kib = memory_kib.max(peak.unwrap_or(0));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    (status.code(), said.rest(), memory_kib)
}

#[test]
fn endless_data_without_a_frame_ends_the_source() {
    let folder = Folder::new("intake-endless");
    let image = image();
    let head = "--frame\r\nContent-Type: image/jpeg\r\n\r\n";
    let http = |kind: &'static str, begin: &'static str, text: &'static str| {
        let port = serve(move |mut connection| {
            request(&mut BufReader::new(connection.try_clone()?))?;
            write!(connection, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n{begin}")?;
            flood(&mut connection, text)
        });
        format!("http://127.0.0.1:{port}/video")
    };
    let playlist = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nx.ts\n";
    for (what, input, says) in [
        ("the first part", mjpeg(move |to| to.write_all(head.as_bytes()).and_then(|()| flood(to, "x"))), "64 MiB without a complete frame"),
        (
            "a part after frames",
            mjpeg(move |to| {
                (0..5).try_for_each(|_| to.write_all(&part(&image)))?;
                to.write_all(head.as_bytes()).and_then(|()| flood(to, "x"))
            }),
            "64 MiB without a complete frame",
        ),
        ("a playlist", http("application/vnd.apple.mpegurl", playlist, "#EXTINF:10,\nx.ts\n"), "a playlist or a key of more than 8 MiB"),
    ] {
        let (code, said, memory_kib) = end(start(&folder, &[&input], &["--restart", "never"]));
        assert_eq!(code, Some(1), "{what}: {said}");
        check(&said, &["the source `http://127.0.0.1", says]);
        assert!(memory_kib < MAX_MEMORY_KIB, "{what}: {memory_kib} KiB, {said}");
    }
}

#[test]
fn image_with_too_many_pixels_ends_the_source() {
    let folder = Folder::new("intake-pixels");
    let mut image = image();
    // The frame header: marker, length, bits per sample, height and width.
    let header = image.windows(4).position(|bytes| bytes == [0xff, 0xc0, 0, 17]).expect("a frame header");
    // Decoders of JPEG accept at most 65500 rows.
    image[header + 5..header + 9].copy_from_slice(&[0x4e, 0x20, 0x4e, 0x20]);
    let with = |more: &[u8]| [&image[..header], more, &image[header..]].concat();
    let server = Served::start(&folder, &[]);
    let segment = [&[0xff, 0xe5, 0xff, 0xff][..], &[0; 65_533]].concat();
    let mut progressive = with(&[0xff]);
    progressive[header + 2] = 0xc2;
    for (what, image) in [
        ("plain", image.clone()),
        ("with a fill byte", with(&[0xff])),
        ("progressive", progressive),
        ("with a header after 192 KiB", with(&segment.repeat(3))),
        ("PNG", large_png()),
    ] {
        let parts = part(&image);
        let motion = mjpeg(move |to| to.write_all(&parts.repeat(2)).and_then(|()| to.read(&mut [0; 1])).map(drop));
        let port = serve(move |mut connection| {
            request(&mut BufReader::new(connection.try_clone()?))?;
            write!(connection, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", image.len())?;
            connection.write_all(&image)
        });
        let one = format!("http://127.0.0.1:{port}/image");
        for input in [motion, one].iter().skip(usize::from(what == "PNG")) {
            let (code, said, memory_kib) = end(start(&folder, &[input], &["--restart", "never"]));
            assert_eq!(code, Some(1), "{what}: {said}");
            check(&said, &["400000000 pixels", "at most 134217728"]);
            let (status, answer) = server.json("POST", "/api/probe", Some(json!({"input": input})));
            assert!(status >= 400 && answer.to_string().contains("400000000 pixels"), "{what}: {status} {answer}");
            assert!(memory_kib < MAX_MEMORY_KIB, "{what}: {memory_kib} KiB, {said}");
        }
    }
}

/// Returns an image that declares 20000x20000 pixels.
fn large_png() -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbImage::from_fn(64, 64, |x, y| image::Rgb([x as u8, y as u8, (x * y) as u8]))
        .write_to(&mut bytes, image::ImageFormat::Png)
        .unwrap();
    let mut bytes = bytes.into_inner();
    // The header: its kind, width, height, and further fields; then its checksum.
    bytes[16..24].copy_from_slice(&[0, 0, 0x4e, 0x20, 0, 0, 0x4e, 0x20]);
    let checksum = bytes[12..29].iter().fold(!0_u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 })
    });
    bytes[29..33].copy_from_slice(&(!checksum).to_be_bytes());
    bytes
}

/// Writes MPEG-TS with this number of video streams.
fn make_videos(path: &str, n_streams: usize, n_frames: usize) {
    let video = format!(
        "videotestsrc num-buffers={n_frames} ! video/x-raw,width=64,height=64,framerate=25/1 ! x264enc key-int-max=25 tune=zerolatency ! \
         h264parse config-interval=-1 ! muxer. "
    );
    let made = run(&pipeline(&format!("mpegtsmux name=muxer ! filesink location=\"{path}\" {}", video.repeat(n_streams))));
    assert_eq!(made.error, None);
}

#[test]
fn frame_without_an_end_beside_a_video_ends_the_source() {
    let folder = Folder::new("intake-beside");
    let clip = folder.file("clip.ts");
    make_videos(&clip, 2, 200);
    let clip = std::fs::read(&clip).unwrap();
    let number = |packet: &[u8]| u16::from_be_bytes([packet[1] & 0x1f, packet[2]]);
    let port = serve(move |mut connection| {
        request(&mut BufReader::new(connection.try_clone()?))?;
        write!(connection, "HTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\nConnection: close\r\n\r\n")?;
        let packets = clip.chunks(188);
        let n_packets = packets.len();
        // The last packet of the second stream, and whether the stream no longer ends its packet.
        let (mut second, mut is_endless) = (None, false);
        for (packet_idx, packet) in packets.enumerate() {
            let is_second = number(packet) == 0x42;
            if is_endless && is_second {
                continue;
            }
            connection.write_all(packet)?;
            if is_second {
                second = Some(packet[3] & 0xf);
                is_endless = packet_idx > n_packets / 2 && packet[1] & 0x40 != 0;
            }
            if let Some(count) = second.as_mut().filter(|_| is_endless) {
                for _ in 0..5000 {
                    *count = (*count + 1) & 0xf;
                    connection.write_all(&[&[0x47, 0, 0x42, 0x10 | *count][..], &[0xaa; 184]].concat())?;
                }
            }
        }
        Ok(())
    });
    let (code, said, memory_kib) =
        end(start(&folder, &[&format!("http://127.0.0.1:{port}/x.ts")], &["--restart", "never", "--name", "it"]));
    assert_eq!(code, Some(1), "{said}");
    check(&said, &["64 MiB without a complete frame"]);
    assert!(n_lines(&folder.file("it.jsonl")) > 50, "{said}");
    assert!(memory_kib < MAX_MEMORY_KIB, "{memory_kib} KiB, {said}");
}

#[test]
fn only_the_first_videos_of_a_source_are_decoded() {
    let folder = Folder::new("intake-many");
    let clip = folder.file("clip.ts");
    make_videos(&clip, 12, 10);
    let pipeline = pipeline(&format!("roisource uri=\"file://{clip}\" ! fakesink name=sink"));
    let (weak, n_decoders) = (pipeline.downgrade(), Arc::new(AtomicUsize::new(0)));
    let of_sink = n_decoders.clone();
    crate::harness::on_buffers(&pipeline, "sink", "sink", move |_, _| {
        let elements = weak.upgrade().into_iter().flat_map(|pipeline| pipeline.iterate_recurse().into_iter().flatten());
        let n = elements
            .filter(|element| {
                element.factory().is_some_and(|factory| factory.metadata("klass").is_some_and(|klass| klass.contains("Decoder/Video")))
            })
            .count();
        of_sink.fetch_max(n, Ordering::Relaxed);
    });
    assert_eq!(run(&pipeline).error, None);
    assert!((1..=4).contains(&n_decoders.load(Ordering::Relaxed)), "{n_decoders:?}");
}

#[test]
fn only_the_first_streams_of_a_camera_are_received() {
    let folder = Folder::new("intake-media");
    let n_setups = Arc::new(AtomicUsize::new(0));
    let of_server = n_setups.clone();
    let port = serve(move |mut connection| {
        let mut reader = BufReader::new(connection.try_clone()?);
        loop {
            let (line, number) = request(&mut reader)?;
            let media: String = (0..50)
                .map(|n| format!("m=video 0 RTP/AVP 96\r\nc=IN IP4 0.0.0.0\r\na=rtpmap:96 H264/90000\r\na=control:t{n}\r\n"))
                .collect();
            let description = format!("v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\n{media}");
            let answer = match line.split(' ').next() {
                Some("DESCRIBE") => format!("Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{description}", description.len()),
                Some("SETUP") => {
                    let channel = 2 * of_server.fetch_add(1, Ordering::Relaxed);
                    format!("Session: 1\r\nTransport: RTP/AVP/TCP;unicast;interleaved={channel}-{}\r\n\r\n", channel + 1)
                }
                _ => "Session: 1\r\nPublic: DESCRIBE, SETUP, PLAY\r\n\r\n".to_owned(),
            };
            write!(connection, "RTSP/1.0 200 OK\r\nCSeq: {number}\r\n{answer}")?;
        }
    });
    let options = ["--restart", "never", "--source-timeout", "3"];
    let (code, said, _) = end(start(&folder, &[&format!("rtspt://127.0.0.1:{port}/live")], &options));
    assert_eq!(code, Some(1), "{said}");
    // GStreamer may open the camera twice.
    assert!((1..=16).contains(&n_setups.load(Ordering::Relaxed)), "{n_setups:?} of 50 streams: {said}");
}

#[test]
fn removed_source_that_never_answers_ends_at_once() {
    let folder = Folder::new("intake-remove");
    let server = Served::start(&folder, &[]);
    let (sender, is_asked) = mpsc::channel();
    let head = |number: &str| format!("RTSP/1.0 200 OK\r\nCSeq: {number}\r\nContent-Type: application/sdp\r\n");
    let (of_line, of_length) = (sender.clone(), sender.clone());
    for (name, input) in [
        (
            "line",
            rtsp(move |to, number| {
                of_line.send(()).unwrap();
                write!(to, "{}X-A: ", head(number)).and_then(|()| flood(to, "y"))
            }),
        ),
        (
            "length",
            rtsp(move |to, number| {
                of_length.send(()).unwrap();
                write!(to, "{}Content-Length: 2000000000\r\n\r\n", head(number))?;
                to.read(&mut [0; 1]).map(drop)
            }),
        ),
    ] {
        let added = server.json("POST", "/api/streams", Some(json!({"name": name, "pipeline": "colors", "input": input})));
        assert_eq!(added.0, 201, "{added:?}");
        is_asked.recv().unwrap();
        let begin = Instant::now();
        let removed = server.send("DELETE", &format!("/api/streams/{name}"), None);
        // A stream that does not end is stopped after ten seconds.
        assert!(removed.0 < 300 && begin.elapsed() < Duration::from_secs(6), "{name}: {} after {:?}", removed.0, begin.elapsed());
    }
}

#[test]
fn rtsp_server_with_endless_answer_ends_the_source() {
    let folder = Folder::new("intake-rtsp");
    let head = |number: &str| format!("RTSP/1.0 200 OK\r\nCSeq: {number}\r\nContent-Type: application/sdp\r\n");
    let line = "a=x:yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n";
    // GStreamer reads headers so slowly that they reach the time limit first.
    let (too_much, too_long) = ("it sent more than 8 MiB that are no video", "has delivered nothing for 5 s");
    for (what, says, input) in [
        (
            "a description",
            too_much,
            rtsp(move |to, number| {
                write!(to, "{}Content-Length: 2147483000\r\n\r\nv=0\r\n", head(number))?;
                flood(to, line)
            }),
        ),
        // Packets of 257 bytes on channel 1, which no stream uses.
        ("packets", too_much, rtsp(|to, _| flood(to, &format!("$\u{1}\u{1}\u{1}{}", "x".repeat(257))))),
        (
            "headers",
            too_long,
            rtsp(move |to, number| write!(to, "{}", head(number)).and_then(|()| flood(to, "X-A: yyyyyyyyyyyyyyyyyy\r\n"))),
        ),
        ("a header", too_long, rtsp(move |to, number| write!(to, "{}X-A: ", head(number)).and_then(|()| flood(to, "y")))),
    ] {
        let (code, said, memory_kib) = end(start(&folder, &[&input], &["--restart", "never", "--source-timeout", "5"]));
        assert_eq!(code, Some(1), "{what}: {said}");
        check(&said, &["the source `rtspt://127.0.0.1", says]);
        assert!(!said.contains("did not stop"), "{what}: {said}");
        assert!(memory_kib < MAX_MEMORY_KIB, "{what}: {memory_kib} KiB, {said}");
    }
}

#[test]
fn images_by_http_are_analyzed_when_they_arrive() {
    let folder = Folder::new("intake-at-once");
    let (image, (next, allowed)) = (image(), mpsc::channel::<()>());
    let allowed = Arc::new(std::sync::Mutex::new(allowed));
    // A camera may send a part without an image first.
    let input = mjpeg(move |to| {
        to.write_all(b"--frame\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello\r\n")?;
        while allowed.lock().unwrap().recv().is_ok() {
            to.write_all(&part(&image))?;
        }
        Ok(())
    });
    let child = start(&folder, &[&input], &["--name", "camera", "--frames", "4"]);
    let json = folder.file("camera.jsonl");
    for n in 1..=4 {
        next.send(()).unwrap();
        eventually("a result before the next image is sent", || n_lines(&json) >= n);
    }
    let (code, said, _) = end(child);
    assert_eq!((code, n_lines(&json)), (Some(0), 4), "{said}");
}

/// Sends this text again and again, slowly.
pub fn trickle(text: Vec<u8>) -> impl Fn(&mut TcpStream) -> std::io::Result<()> + Clone + Send + 'static {
    move |to| {
        loop {
            to.write_all(&text)?;
            // The sleep is the tested situation: data arrives, but no image.
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn http_source_that_sends_no_image_is_lost() {
    let folder = Folder::new("intake-empty");
    for (what, input) in [("empty parts", mjpeg(trickle(part(b"")))), ("a part that grows slowly", mjpeg(trickle(b"--frame\r\n".to_vec())))]
    {
        let options = ["--restart", "never", "--no-frame-timeout", "1", "--source-timeout", "60"];
        let (code, said, _) = end(start(&folder, &[&input], &options));
        assert_eq!(code, Some(1), "{what}: {said}");
        check(&said, &["delivered data but no frame for 3 s", "--no-frame-timeout"]);
    }
}

fn clip(name: &str) -> String {
    format!("{}/tests/clips/{name}", env!("CARGO_MANIFEST_DIR"))
}

const UNKNOWN_FORMATS: [&str; 6] =
    ["ffv1-gbrp16.mkv", "ffv1-gray10.mkv", "ffv1-rgb48.mkv", "ffv1-ya8.mkv", "hevc-gray10.mkv", "hevc-gray12.mkv"];

#[test]
fn unknown_pixel_format_ends_only_its_own_stream() {
    let folder = Folder::new("intake-formats");
    let good = folder.file("good.mp4");
    make_clip(&good, 25, "mp4mux");
    let clips: Vec<String> = UNKNOWN_FORMATS.iter().map(|name| clip(name)).chain([clip("hevc-8-then-gray10.h265")]).collect();
    let inputs: Vec<&str> = clips.iter().map(String::as_str).chain([&*good]).collect();
    let (code, said, _) = end(start(&folder, &inputs, &[]));
    assert_eq!((code, n_lines(&folder.file("good.jsonl"))), (Some(3), 25), "{said}");
    assert_eq!(said.matches("cannot be decoded").count(), clips.len(), "{said}");
    check(&said, &["h265, profile monochrome-10", "Gray with 10 bits"]);
    assert!(n_lines(&folder.file("hevc-8-then-gray10.jsonl")) > 0, "frames before the change are analyzed");
}

#[test]
fn unknown_pixel_format_is_an_error_of_elements() {
    for name in UNKNOWN_FORMATS {
        let clip = clip(name);
        let line = |source: &str| pipeline(&format!("{source} ! videoconvert ! {} ! fakesink", detect("rectangle", "")));
        let says = run(&line(&format!("roisource uri=\"file://{clip}\""))).error.unwrap_or_default();
        assert!(says.contains("cannot be decoded"), "{name}: {says}");
        // `decodebin` does not always report an error, and does not always end. The process must survive.
        let other = line(&format!("filesrc location=\"{clip}\" ! decodebin"));
        let _playing = other.set_state(gst::State::Playing);
        let ends = [gst::MessageType::Eos, gst::MessageType::Error];
        let _end = other.bus().unwrap().timed_pop_filtered(gst::ClockTime::from_seconds(5), &ends);
        other.set_state(gst::State::Null).unwrap();
    }
}

#[test]
fn server_survives_an_unknown_pixel_format() {
    let folder = Folder::new("intake-serve");
    make_clip(&folder.file("good.mp4"), 25, "mp4mux");
    std::fs::copy(clip("hevc-gray10.mkv"), folder.file("gray.mkv")).unwrap();
    let server = Served::start(&folder, &[]);
    let add = |name: &str, input: &str| {
        server.json("POST", "/api/streams", Some(json!({"name": name, "pipeline": "colors", "input": input, "loop": true})))
    };
    assert_eq!(add("good", "good.mp4").0, 201);
    let (status, view) = add("gray", "gray.mkv");
    assert!(status == 422 && view.to_string().contains("cannot be decoded"), "{status} {view}");
    server.wait_until("good", |view| view["frames"].as_u64().unwrap() > 50);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn file_that_shows_no_frame_is_an_error() {
    let folder = Folder::new("intake-hidden");
    let clip = clip("times-before-0.mp4");
    let (code, said, _) = end(start(&folder, &[&clip], &["--name", "it"]));
    assert_eq!((code, n_lines(&folder.file("it.jsonl"))), (Some(1), 0), "{said}");
    check(&said, &["shows no frame", "negative", "ffmpeg"]);
}

#[test]
fn stream_time_begins_with_the_first_frame() {
    let folder = Folder::new("intake-times");
    let (clip, json) = (folder.file("clip"), folder.file("o.jsonl"));
    for muxer in ["mpegtsmux", "mp4mux", "matroskamux"] {
        make_clip(&clip, 50, muxer);
        let repeated: (&[&str], usize) = (&["--loop", "--frames", "120"], 120);
        // GStreamer's demuxer of MPEG-TS cannot repeat a file.
        for (options, n) in [(&[][..], 50), repeated].into_iter().take(if muxer == "mpegtsmux" { 1 } else { 2 }) {
            let arguments = ["run", &folder.file("colors.toml"), "-q", "--input", &clip, "--json", &json];
            let (code, said) = read(&roiflow(&[&arguments[..], options].concat()));
            assert_eq!(code, Some(0), "{muxer} {options:?}: {said}");
            let times: Vec<u64> = lines(&json).iter().map(|line| line["timestamp"].as_u64().expect("a time")).collect();
            assert_eq!((times.len(), times[0]), (n, 0), "{muxer} {options:?}: {times:?}");
            assert!(times.is_sorted_by(|a, b| a < b) && times[1].abs_diff(40_000_000) < 1_000_000, "{muxer} {options:?}: {times:?}");
            let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max();
            assert!(longest < Some(200_000_000), "{muxer} {options:?}: time goes on without a gap: {times:?}");
        }
    }
}

/// Starts the command with limits of open files.
fn limited(limits: &str, arguments: &[&str]) -> std::process::Output {
    let script = format!("{limits}; exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(command().get_program()).args(arguments).env("ROIFLOW_CACHE_DIR", "");
    shell.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn too_few_descriptors_are_told_before_the_start() {
    let folder = Folder::new("intake-descriptors");
    let (json, colors) = (folder.file("{stream}.jsonl"), folder.file("colors.toml"));
    let inputs: Vec<String> = (0..8).map(|n| format!("rtspt://127.0.0.1:1/{n}")).collect();
    let inputs: Vec<&str> = inputs.iter().flat_map(|input| ["--input", input]).collect();
    let arguments = [&["run", &colors, "--json", &json][..], &inputs, &["--restart", "never"]].concat();
    let (code, said) = read(&limited("ulimit -n 60", &arguments));
    assert_eq!(code, Some(1), "{said}");
    check(&said, &["cannot start 8 streams", "open files, got 60", "ulimit -n"]);
    // The soft limit is raised.
    let (code, said) = read(&limited("ulimit -S -n 60", &arguments));
    assert_eq!(code, Some(1), "{said}");
    check(&said, &["cannot connect to port 1"]);
    assert!(!said.contains("ulimit"), "{said}");
}

#[test]
fn server_refuses_streams_beyond_its_descriptors() {
    let folder = Folder::new("intake-descriptors-serve");
    let server = Served::start(&folder, &[]);
    // Two streams of a test pattern may start.
    let n_open = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count();
    let limit = format!("--nofile={0}:{0}", n_open + 44);
    assert!(Command::new("prlimit").args(["--pid", &server.id().to_string(), &limit]).status().unwrap().success());
    let mut refused = String::new();
    for n in 0..4 {
        let stream = json!({"name": format!("s{n}"), "pipeline": "colors", "input": "test:", "loop": true});
        let (status, view) = server.json("POST", "/api/streams", Some(stream));
        if status != 201 {
            refused = view.to_string();
            break;
        }
    }
    assert!(refused.contains("cannot start one more stream") && refused.contains("LimitNOFILE"), "{refused}");
    assert_eq!(server.send("GET", "/healthz", None).0, 200);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
}
