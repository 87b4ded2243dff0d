//! Live video of `roiflow serve`: what viewers get, what it costs, and how a browser shows it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::Folder;
use crate::serve::Served;
use crate::serve_page::Browser;

/// Time limit of each wait. A longer wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// A message of a WebSocket.
enum Message {
    Text(Value),
    Binary(Vec<u8>),
}

/// A viewer of the video of a stream.
struct Viewer(TcpStream);

impl Viewer {
    fn connect(server: &Served, name: &str) -> Self {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let head =
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let request = format!("GET /api/streams/{name}/video HTTP/1.1\r\nHost: {}\r\n{head}\r\n", server.address);
        stream.write_all(request.as_bytes()).unwrap();
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
        Self(stream)
    }

    /// Waits for the next text or binary message.
    fn next(&mut self) -> Message {
        loop {
            let mut head = [0; 2];
            self.0.read_exact(&mut head).unwrap();
            let length = match head[1] & 127 {
                126 => {
                    let mut length = [0; 2];
                    self.0.read_exact(&mut length).unwrap();
                    u64::from(u16::from_be_bytes(length))
                }
                127 => {
                    let mut length = [0; 8];
                    self.0.read_exact(&mut length).unwrap();
                    u64::from_be_bytes(length)
                }
                length => length.into(),
            };
            let mut content = vec![0; length as usize];
            self.0.read_exact(&mut content).unwrap();
            match head[0] & 15 {
                1 => return Message::Text(serde_json::from_slice(&content).unwrap()),
                2 => return Message::Binary(content),
                // Pings keep the connection open.
                _ => {}
            }
        }
    }

    /// Waits until a file begins, and returns its codec.
    fn begin(&mut self) -> String {
        loop {
            if let Message::Text(text) = self.next()
                && let Some(codec) = text["begin"].as_str()
            {
                let Message::Binary(header) = self.next() else { panic!("expected a header") };
                assert_eq!(&header[4..8], b"ftyp");
                return codec.to_owned();
            }
        }
    }

    /// Waits for this number of fragments, and returns the numbers of the frames.
    fn fragments(&mut self, n_fragments: usize) -> Vec<u64> {
        let (mut n_received, mut numbers) = (0, Vec::new());
        while n_received < n_fragments {
            match self.next() {
                Message::Text(text) => numbers.push(text["frame"].as_u64().unwrap_or_else(|| panic!("{text}"))),
                Message::Binary(fragment) => {
                    assert_eq!(&fragment[4..8], b"moof");
                    n_received += 1;
                }
            }
        }
        numbers
    }
}

/// A metric without further labels, or with exactly these.
fn metric(server: &Served, name: &str) -> u64 {
    let text = String::from_utf8(server.send("GET", "/metrics", None).1).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name} is missing in {text}"));
    line.trim().parse().unwrap()
}

fn encoded(server: &Served) -> u64 {
    metric(server, "roiflow_video_frames_total{kind=\"encoded\"}")
}

fn passed(server: &Served) -> u64 {
    metric(server, "roiflow_video_frames_total{kind=\"passed\"}")
}

fn frames(server: &Served) -> u64 {
    server.view("door")["frames"].as_u64().unwrap()
}

fn wait_for_frames(server: &Served, n_frames: u64) {
    let begin = frames(server);
    server.wait_until("door", |view| view["frames"].as_u64().unwrap() >= begin + n_frames);
}

fn wait_for_no_viewers(server: &Served) {
    let begin = Instant::now();
    while metric(server, "roiflow_video_viewers") > 0 {
        assert!(begin.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn add(server: &Served, pipeline: &str, input: &str) {
    let stream = json!({"name": "door", "pipeline": pipeline, "input": input, "loop": true});
    let (status, view) = server.json("POST", "/api/streams", Some(stream));
    assert_eq!(status, 201, "{view}");
    server.wait_until("door", |view| view["frames"].as_u64().unwrap() > 0);
}

#[test]
fn frames_are_encoded_once_for_all_viewers_and_only_while_they_watch() {
    let folder = Folder::new("serve-video-encoded");
    let server = Served::start(&folder, &[]);
    add(&server, "colors", "test:");
    wait_for_frames(&server, 10);
    assert_eq!((encoded(&server), metric(&server, "roiflow_video_viewers")), (0, 0));

    let mut viewers = [Viewer::connect(&server, "door"), Viewer::connect(&server, "door")];
    for viewer in &mut viewers {
        assert!(viewer.begin().starts_with("avc1."));
    }
    let (first, n_before) = (frames(&server), encoded(&server));
    for viewer in &mut viewers {
        let numbers = viewer.fragments(40);
        assert!(numbers.len() > 20 && numbers.is_sorted(), "{numbers:?}");
    }
    let (n_frames, n_encoded) = (frames(&server) - first, encoded(&server) - n_before);
    assert!(n_encoded <= n_frames + 10, "each frame is encoded once: {n_encoded} of {n_frames}");
    assert_eq!(passed(&server), 0);

    drop(viewers);
    wait_for_no_viewers(&server);
    wait_for_frames(&server, 2);
    let n_encoded = encoded(&server);
    wait_for_frames(&server, 15);
    assert_eq!(encoded(&server), n_encoded, "no viewer, no encoder");
    // Another viewer starts the encoder again.
    let mut viewer = Viewer::connect(&server, "door");
    viewer.begin();
    viewer.fragments(5);
}

#[test]
fn video_of_the_source_is_passed_on_with_the_numbers_of_its_frames() {
    let folder = Folder::new("serve-video-passed");
    crate::harness::make_clip(&folder.file("clip.mp4"), 40, "mp4mux");
    let server = Served::start(&folder, &[]);
    add(&server, "colors", "clip.mp4");
    wait_for_frames(&server, 10);
    assert_eq!(passed(&server), 0, "no viewer, no video");
    let mut viewer = Viewer::connect(&server, "door");
    viewer.begin();
    // More fragments than the clip has frames: the times go on when it starts again.
    let numbers = viewer.fragments(100);
    assert!(numbers.len() > 80 && numbers.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() > 70, "{numbers:?}");
    assert!(encoded(&server) == 0 && passed(&server) >= 100);
    drop(viewer);
    wait_for_no_viewers(&server);
    let n_passed = passed(&server);
    wait_for_frames(&server, 10);
    assert_eq!(passed(&server), n_passed);
}

#[test]
fn video_of_a_camera_is_passed_on() {
    let Some(camera) = crate::rtsp::Server::start(&[]) else { return };
    let folder = Folder::new("serve-video-camera");
    let server = Served::start(&folder, &[]);
    add(&server, "colors", &camera.uri("rtspt", "", "/live"));
    let mut viewer = Viewer::connect(&server, "door");
    assert!(viewer.begin().starts_with("avc1."));
    let numbers = viewer.fragments(50);
    assert!(numbers.len() > 30, "{numbers:?}");
    assert!(encoded(&server) == 0 && passed(&server) >= 50);
}

/// Otherwise a viewer would see what the pipeline hides.
#[test]
fn video_of_the_source_is_not_passed_on_if_the_pipeline_blurs_faces() {
    let folder = Folder::new("serve-video-blurred");
    crate::harness::make_clip(&folder.file("clip.mp4"), 40, "mp4mux");
    let text = format!(
        "version = 1\nname = \"blurred\"\ndescription = \"Blurs.\"\n\
         [pipeline]\ngraph = \"{{source}} ! roidetect model={} device=CPU ! roioverlay blur=rectangle ! {{json}} ! {{video}}\"\n",
        crate::harness::tiny("rectangle.onnx")
    );
    std::fs::write(folder.file("blurred.toml"), text).unwrap();
    let server = Served::start(&folder, &[]);
    add(&server, "blurred", "clip.mp4");
    let mut viewer = Viewer::connect(&server, "door");
    viewer.begin();
    viewer.fragments(10);
    assert!(encoded(&server) >= 10 && passed(&server) == 0);
}

/// Left edges of the red square of the frame that the video shows, and of the box that is drawn over it, as fractions of the width; and
/// how many milliseconds after its results the frame is shown. Also whether MJPEG is still shown.
const SHOWN: &str = "
    const done = arguments[arguments.length - 1];
    const video = document.querySelector('.live video');
    const drawn = document.querySelector('.live canvas');
    const frame = document.createElement('canvas');
    const firstColumn = (canvas, isSet, least) => {
        const { width, height } = canvas;
        const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
        for (let x = 0; x < width; x += 1) {
            let count = 0;
            for (let y = 0; y < height; y += 1) count += isSet(data, 4 * (y * width + x)) ? 1 : 0;
            if (count > least * height) return x / width;
        }
        return -1;
    };
    const all = [];
    const times = new Map();
    const events = new EventSource('/api/streams/door/results/live');
    events.addEventListener('result', ({ data }) => {
        const result = JSON.parse(data);
        times.set(String(result.frame), Date.parse(result.time));
    });
    const step = () => {
        [frame.width, frame.height] = [video.videoWidth, video.videoHeight];
        frame.getContext('2d').drawImage(video, 0, 0);
        const square = firstColumn(frame, (data, at) => data[at] > 120 && data[at + 1] < 90, 0.2);
        const box = firstColumn(drawn, (data, at) => data[at + 3] > 100, 0.2);
        const time = times.get(drawn.dataset.frame);
        if (time !== undefined) all.push({ square, box, delay: Date.now() - time, behind: video.buffered.end(video.buffered.length - 1) - video.currentTime });
        if (all.length < 40) video.requestVideoFrameCallback(step);
        else {
            events.close();
            done(all);
        }
    };
    video.requestVideoFrameCallback(step);
";

#[test]
fn browser_plays_the_video_with_each_box_on_its_frame() {
    let Some(browser) = Browser::start() else { return };
    let folder = Folder::new("serve-video-page");
    // A square that moves from the left to the right, by 1.6 % of the width in each frame.
    crate::harness::make_clip(&folder.file("clip.mp4"), 400, "mp4mux");
    let server = Served::start(&folder, &[]);
    add(&server, "colors", "clip.mp4");
    browser.open(&format!("http://{}/#/streams/door", server.address));
    browser.wait_until("return document.querySelector('.live video.shown')?.currentTime > 0.2 && !document.querySelector('.live img')");
    browser.click("[name=labels]");
    let time = "return document.querySelector('.live video').currentTime";
    let before = browser.run(time).as_f64().unwrap();
    browser.wait_until(&format!("return document.querySelector('.live video').currentTime > {before} + 0.5"));

    let shown = browser.run_async(SHOWN);
    let shown = shown.as_array().unwrap_or_else(|| panic!("{shown}"));
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap();
    let is_apart = |value: &&Value| (number(value, "square") - number(value, "box")).abs() > 0.008;
    let apart: Vec<&Value> = shown.iter().filter(is_apart).collect();
    let distinct = shown.iter().map(|value| value["square"].to_string()).collect::<std::collections::BTreeSet<_>>();
    assert!(distinct.len() > 20, "the pixels change: {shown:?}");
    // A frame whose results are late has the box of the frame before.
    assert!(apart.len() <= shown.len() / 8, "{} of {}: {apart:?}", apart.len(), shown.len());
    let mut delays: Vec<u64> = shown.iter().map(|value| value["delay"].as_f64().unwrap() as u64).collect();
    delays.sort_unstable();
    eprintln!("frames are shown {} ms after their results, at most {} ms", delays[delays.len() / 2], delays[delays.len() - 1]);
    assert!(delays[delays.len() / 2] < 1000, "{delays:?}");
    assert_eq!(encoded(&server), 0);

    // A page that is closed ends the video.
    browser.open("about:blank");
    wait_for_no_viewers(&server);
    let n_passed = passed(&server);
    wait_for_frames(&server, 10);
    assert_eq!(passed(&server), n_passed);
}

#[test]
fn browser_shows_pictures_if_it_cannot_play_the_video() {
    let Some(browser) = Browser::start() else { return };
    let folder = Folder::new("serve-video-pictures");
    let server = Served::start(&folder, &[]);
    add(&server, "colors", "test:");
    browser.open(&format!("http://{}/#/settings", server.address));
    browser.wait_until("return document.querySelector('main').innerText.includes('You are operator')");
    browser
        .run("window.MediaSource.isTypeSupported = () => false; window.ManagedMediaSource = undefined; location.hash = '#/streams/door'");
    browser.wait_until("return document.querySelector('.live [role=status]')?.innerText.includes('cannot play avc1')");
    browser.wait_until("return document.querySelector('.live img')?.naturalWidth === 640");
    browser.wait_until("return document.querySelector('.live canvas').dataset.frame !== ''");
}
