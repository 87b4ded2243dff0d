//! What an address from the network makes the process open: playlists, manifests, session descriptions and redirects that name files, devices
//! and ports of this machine. The real binary plays them from a real HTTP server, and the kernel reports each access to a file that must stay
//! closed.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::{Output, Stdio};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use serde_json::json;

use crate::cli::{Folder, command};
use crate::credentials::Server;
use crate::endings::n_lines;
use crate::harness::{pipeline, run};
use crate::serve::Served;

/// Number of frames of a segment.
pub const N_FRAMES: usize = 25;

/// A file of which each access is noted.
struct Canary {
    path: String,
    events: OwnedFd,
}

impl Canary {
    fn new(path: String) -> Self {
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&events, &*path, WatchFlags::OPEN | WatchFlags::ACCESS).unwrap();
        Self { path, events }
    }

    /// Returns whether the file was opened or read since the last call.
    fn was_opened(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.events, &mut buffer);
        let mut was_opened = false;
        while let Ok(event) = reader.next() {
            was_opened |= event.events().intersects(ReadFlags::OPEN | ReadFlags::ACCESS);
        }
        was_opened
    }
}

/// Writes a segment of MPEG-TS, which is also playable alone.
pub fn make_segment(path: &str) {
    let made = run(&pipeline(&format!(
        "videotestsrc num-buffers={N_FRAMES} ! video/x-raw,width=160,height=120,framerate=25/1 ! x264enc key-int-max=25 tune=zerolatency \
         ! h264parse ! mpegtsmux ! filesink location=\"{path}\""
    )));
    assert_eq!(made.error, None);
}

/// Returns the complete answer of a server.
pub fn response(status: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Returns a server with these texts by path. `/segment.ts` is a segment.
fn serve(texts: Vec<(String, String)>, segment: Vec<u8>) -> Server {
    Server::new(move |request| {
        let path = request.split_whitespace().nth(1).unwrap_or_default();
        if let Some(target) = path.strip_prefix("/to/") {
            let head = format!("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", target.replace("%2F", "/"));
            return head.into_bytes();
        }
        if path == "/segment.ts" {
            return response("200 OK", "video/mp2t", &segment);
        }
        let kind = match path.rsplit('.').next() {
            Some("mpd") => "application/dash+xml",
            Some("sdp") => "application/sdp",
            Some("svg") => "image/svg+xml",
            _ => "application/vnd.apple.mpegurl",
        };
        match texts.iter().find(|(name, _)| path == name) {
            Some((_, text)) => response("200 OK", kind, text.as_bytes()),
            None => response("404 Not Found", "text/plain", b""),
        }
    })
}

/// A playlist with these lines and these segments.
pub fn hls(lines: &str, segments: &[&str]) -> String {
    let segments: String = segments.iter().map(|uri| format!("#EXTINF:1.0,\n{uri}\n")).collect();
    format!("#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:1\n#EXT-X-MEDIA-SEQUENCE:0\n{lines}{segments}#EXT-X-ENDLIST\n")
}

/// A manifest of DASH whose parts have these addresses.
fn dash(prolog: &str, base: &str, parts: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?>{prolog}<MPD xmlns=\"urn:mpeg:dash:schema:mpd:2011\" xmlns:xlink=\"http://www.w3.org/1999/xlink\" \
         type=\"static\" mediaPresentationDuration=\"PT1S\" minBufferTime=\"PT1S\" profiles=\"urn:mpeg:dash:profile:mp2t-simple:2011\">{base}<Period>\
         <AdaptationSet mimeType=\"video/mp2t\"><Representation id=\"1\" bandwidth=\"100000\" width=\"160\" height=\"120\">{parts}</Representation>\
         </AdaptationSet></Period></MPD>"
    )
}

/// Documents that name the file `path` or the UDP port `port` of this machine, by their paths on the server.
fn attacks(path: &str, port: u16) -> Vec<(String, String)> {
    let list = |dot: &str, uri: &str| (dot.to_owned(), hls("", &[uri]));
    let file = format!("file://{path}");
    let list_of_canary = format!("{file}.m3u8");
    let variant = |uri: &str| format!("#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=100000\n{uri}\n");
    let parts = |uri: &str| format!("<SegmentList duration=\"1\"><SegmentURL media=\"{uri}\"/></SegmentList>");
    let text = |name: &str, text: String| (name.to_owned(), text);
    vec![
        list("/segment.m3u8", &file),
        text("/second.m3u8", hls("", &["segment.ts", &file, "segment.ts"])),
        list("/upper.m3u8", &format!("FILE://{path}")),
        list("/localhost.m3u8", &format!("file://localhost{path}")),
        list("/pushfile.m3u8", &format!("pushfile://{path}")),
        list("/sequence.m3u8", &format!("imagesequence://{path}")),
        list("/multifile.m3u8", &format!("multifile://{path}")),
        list("/splitfile.m3u8", &format!("splitfile://{path}")),
        list("/splitmux.m3u8", &format!("splitmux://{path}")),
        list("/v4l2.m3u8", &format!("v4l2://{path}")),
        list("/dvd.m3u8", &format!("dvd://{path}")),
        list("/resource.m3u8", &format!("resource://{path}")),
        list("/descriptor.m3u8", "fd://0"),
        list("/udp.m3u8", &format!("udp://127.0.0.1:{port}")),
        list("/udp-any.m3u8", "udp://0.0.0.0"),
        list("/udp-any6.m3u8", "udp://[::0]"),
        list("/udp-group.m3u8", &format!("udp://239.1.2.3:{port}")),
        text("/variant-udp-any.m3u8", variant("udp://0.0.0.0")),
        text("/map-udp-group.m3u8", hls(&format!("#EXT-X-MAP:URI=\"udp://239.1.2.3:{port}\"\n"), &["segment.ts"])),
        text("/key-udp-any.m3u8", hls("#EXT-X-KEY:METHOD=AES-128,URI=\"udp://0.0.0.0\"\n", &["segment.ts"])),
        list("/rtp.m3u8", &format!("rtp://127.0.0.1:{port}")),
        list("/srt.m3u8", &format!("srt://:{port}?mode=listener")),
        text("/variant-udp.m3u8", variant(&format!("udp://127.0.0.1:{port}"))),
        text(
            "/session.sdp",
            format!("v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=video {port} RTP/AVP 26\r\n"),
        ),
        text("/variant.m3u8", variant(&list_of_canary)),
        text("/variant-pushfile.m3u8", variant(&format!("pushfile://{path}.m3u8"))),
        text("/key.m3u8", hls(&format!("#EXT-X-KEY:METHOD=AES-128,URI=\"{file}\"\n"), &["segment.ts"])),
        text("/map.m3u8", hls(&format!("#EXT-X-MAP:URI=\"{file}\"\n"), &["segment.ts"])),
        text("/range.m3u8", hls("#EXT-X-BYTERANGE:188@0\n", &[&file])),
        text("/to-segment.m3u8", hls("", &[&format!("/to/{file}")])),
        text("/to-variant.m3u8", variant(&format!("/to/{list_of_canary}"))),
        text("/base.mpd", dash("", &format!("<BaseURL>{file}</BaseURL>"), "")),
        text("/parts.mpd", dash("", "", &parts(&file))),
        text("/folder.mpd", dash("", "<BaseURL>file:///</BaseURL>", &parts(path.trim_start_matches('/')))),
        text("/initialization.mpd", dash("", "", &format!("<SegmentBase><Initialization sourceURL=\"{file}\"/></SegmentBase>"))),
        text(
            "/entity.mpd",
            dash(&format!("<!DOCTYPE MPD [<!ENTITY e SYSTEM \"{file}\">]>"), "<BaseURL>&e;</BaseURL>", &parts("segment.ts")),
        ),
        text("/doctype.mpd", dash(&format!("<!DOCTYPE MPD SYSTEM \"{file}\">"), "", &parts("segment.ts"))),
        text("/xlink.mpd", dash("", &format!("<Period xlink:href=\"{file}\" xlink:actuate=\"onLoad\"/>"), &parts("segment.ts"))),
        text("/location.mpd", dash("", &format!("<Location>{file}</Location>"), &parts(&file))),
        text(
            "/image.svg",
            format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" xmlns:xlink=\"http://www.w3.org/1999/xlink\" width=\"9\" height=\"9\"><image \
                 xlink:href=\"{file}\" width=\"9\" height=\"9\"/></svg>"
            ),
        ),
    ]
}

/// Returns a UDP port that nothing uses.
fn free_port() -> u16 {
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn play(folder: &Folder, input: &str, options: &[&str]) -> (Output, usize) {
    // Several runs write at the same time.
    let name = input.rsplit('/').next().unwrap_or_default();
    let (json, colors) = (folder.file(&format!("{name}.jsonl")), folder.file("colors.toml"));
    let _was_there = std::fs::remove_file(&json);
    let mut running = command();
    running.args(["run", &colors, "-q", "--input", input, "--json", &json, "--restart", "never"]).args(options);
    (running.stdin(Stdio::null()).output().unwrap(), n_lines(&json))
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn address_of_the_network_opens_no_file() {
    let folder = Folder::new("playlist-files");
    let canary = Canary::new({
        make_segment(&folder.file("canary.ts"));
        folder.file("canary.ts")
    });
    let list = format!("{}.m3u8", canary.path);
    std::fs::write(&list, hls("", &[&canary.path])).unwrap();
    let list = Canary::new(list);
    let segment = std::fs::read(&canary.path).unwrap();
    assert!(canary.was_opened() && !list.was_opened(), "the kernel reports accesses");
    let mut texts = attacks(&canary.path, free_port());
    texts.push(("/good.m3u8".to_owned(), hls("", &["segment.ts", "/to//segment.ts"])));
    let names: Vec<String> = texts.iter().map(|(name, _)| name.clone()).chain([format!("/to/file://{}", canary.path)]).collect();
    let server = serve(texts, segment);
    let address = |name: &str| format!("http://127.0.0.1:{}{name}", server.port);
    let check = &|name: &String| {
        let (output, n_frames) = play(&folder, &address(name), &[]);
        let said = said(&output);
        match &**name {
            "/good.m3u8" => assert_eq!((output.status.code(), n_frames), (Some(0), 2 * N_FRAMES), "{said}"),
            // The parts that can be played are played.
            "/xlink.mpd" | "/image.svg" => assert_eq!(output.status.code(), Some(0), "{name}: {said}"),
            _ => assert!(output.status.code() == Some(1) && !said.contains("guarded_source.rs"), "{name}: {said}"),
        }
        if name.ends_with(".m3u8") && !name.starts_with("/to-") && name != "/good.m3u8" {
            assert!(said.contains("refused `"), "{name}: {said}");
        }
    };
    for group in names.chunks(6) {
        std::thread::scope(|scope| group.iter().for_each(|name| drop(scope.spawn(move || check(name)))));
        assert!(!canary.was_opened() && !list.was_opened(), "one of {group:?} opens the file");
    }
}

#[test]
fn local_playlist_names_files_of_its_folder() {
    let folder = Folder::new("playlist-local");
    let inner = folder.file("lists");
    std::fs::create_dir_all(format!("{inner}/more")).unwrap();
    let outside = folder.file("outside.ts");
    make_segment(&outside);
    for copy in ["a.ts", "b c.ts", "more/d.ts"] {
        std::fs::copy(&outside, format!("{inner}/{copy}")).unwrap();
    }
    std::os::unix::fs::symlink(&outside, format!("{inner}/link.ts")).unwrap();
    std::os::unix::fs::symlink("a.ts", format!("{inner}/inner.ts")).unwrap();
    let n_bytes = std::fs::metadata(&outside).unwrap().len();
    // A playlist from a server names no files, also if a local playlist has led there.
    let texts = vec![("/files.m3u8".to_owned(), hls("", &[&format!("file://{inner}/hidden.ts")]))];
    let server = serve(texts, std::fs::read(&outside).unwrap());
    let list = |segments: &[&str]| {
        let path = format!("{inner}/list.m3u8");
        std::fs::write(&path, hls("", segments)).unwrap();
        path
    };
    let (absolute, of_network) = (format!("{inner}/a.ts"), format!("http://127.0.0.1:{}/segment.ts", server.port));
    let (with_scheme, range) = (format!("file://{inner}/b%20c.ts"), format!("#EXT-X-BYTERANGE:{n_bytes}@0\na.ts"));
    for segments in [&["a.ts", "more/d.ts", "inner.ts"][..], &[&absolute, &with_scheme], &["a.ts", &of_network], &["b%20c.ts"], &[&range]] {
        let (output, n_frames) = play(&folder, &list(segments), &[]);
        assert_eq!((output.status.code(), n_frames), (Some(0), segments.len() * N_FRAMES), "{segments:?}: {}", said(&output));
    }
    let master = format!("{inner}/master.m3u8");
    list(&["a.ts"]);
    std::fs::write(&master, "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=100000\nlist.m3u8\n").unwrap();
    let (output, n_frames) = play(&folder, &master, &[]);
    assert_eq!((output.status.code(), n_frames), (Some(0), N_FRAMES), "{}", said(&output));

    std::fs::copy(&outside, format!("{inner}/hidden.ts")).unwrap();
    let hidden = Canary::new(format!("{inner}/hidden.ts"));
    std::fs::write(&master, format!("#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=100000\nhttp://127.0.0.1:{}/files.m3u8\n", server.port)).unwrap();
    for options in [&[][..], &["--allow-outside-files"]] {
        let (output, _) = play(&folder, &master, options);
        assert!(output.status.code() == Some(1) && said(&output).contains("refused `"), "{options:?}: {}", said(&output));
        assert!(!hidden.was_opened(), "{options:?}: {}", said(&output));
    }

    let canary = Canary::new(outside.clone());
    let absolute = format!("file://{outside}");
    for segment in ["../outside.ts", "link.ts", &*outside, &*absolute] {
        // Also after a segment that is allowed.
        let path = list(&["a.ts", segment]);
        let (output, _) = play(&folder, &path, &[]);
        let said = said(&output);
        assert!(!canary.was_opened(), "{segment}: {said}");
        assert!(said.contains("refused") && said.contains("--allow-outside-files"), "{segment}: {said}");
        let (output, n_frames) = play(&folder, &path, &["--allow-outside-files"]);
        assert_eq!((output.status.code(), n_frames), (Some(0), 2 * N_FRAMES), "{segment}");
        assert!(canary.was_opened(), "{segment}");
    }
    for other in ["/dev/zero", "fd://0", "pushfile:///dev/zero", "missing.ts"] {
        let (output, _) = play(&folder, &list(&[other]), &[]);
        assert_ne!(output.status.code(), Some(0), "{other}: {}", said(&output));
    }

    // The same in a server.
    let server = Served::start(&folder, &[]);
    let add = |name: &str| {
        let stream = json!({"name": name, "pipeline": "colors", "input": format!("lists/{name}.m3u8"), "loop": false});
        server.json("POST", "/api/streams", Some(stream))
    };
    std::fs::write(format!("{inner}/good.m3u8"), hls("", &["a.ts", "more/d.ts"])).unwrap();
    std::fs::write(format!("{inner}/bad.m3u8"), hls("", &["../outside.ts"])).unwrap();
    assert_eq!(add("good").0, 201);
    server.wait_until("good", |view| view["frames"].as_u64() == Some(2 * N_FRAMES as u64));
    let (status, answer) = add("bad");
    assert!(status == 422 && answer.to_string().contains("refused"), "{status} {answer}");
    assert!(!canary.was_opened());
}

#[test]
fn clients_of_a_server_open_no_file_through_the_network() {
    let folder = Folder::new("playlist-serve");
    // The file is in the media folder, where clients may name it themselves. Other servers may not.
    make_segment(&folder.file("canary.ts"));
    let canary = Canary::new(folder.file("canary.ts"));
    let segment = std::fs::read(&canary.path).unwrap();
    let port = free_port();
    let mut texts = attacks(&canary.path, port);
    texts.push(("/good.m3u8".to_owned(), hls("", &["segment.ts"])));
    let sources = serve(texts, segment);
    assert!(canary.was_opened());
    let server = Served::start(&folder, &[]);
    let input = |name: &str| format!("http://127.0.0.1:{}{name}", sources.port);
    let (status, found) = server.json("POST", "/api/probe", Some(json!({"input": input("/good.m3u8")})));
    assert_eq!((status, &found["width"]), (200, &160.into()), "{found}");
    let names =
        ["/segment.m3u8", "/second.m3u8", "/variant.m3u8", "/key.m3u8", "/map.m3u8", "/folder.mpd", "/udp.m3u8", "/variant-udp.m3u8"];
    for name in names {
        let (_, answer) = server.json("POST", "/api/probe", Some(json!({"input": input(name)})));
        assert!(!canary.was_opened(), "{name}: {answer}");
    }
    for name in names {
        let stream = name.trim_matches('/').replace('.', "-");
        let spec = json!({"name": stream, "pipeline": "colors", "input": input(name)});
        let (status, answer) = server.json("POST", "/api/streams", Some(spec));
        assert_eq!(status, 201, "{answer}");
    }
    for name in names {
        let stream = name.trim_matches('/').replace('.', "-");
        server.wait_until(&stream, |view| !view["error"].is_null());
        let (_, picture) = server.send("GET", &format!("/api/streams/{stream}/picture"), None);
        assert!(name == "/second.m3u8" || !picture.starts_with(b"\xff\xd8"), "{name}: there is no picture");
    }
    assert!(!canary.was_opened());
    // Nothing uses the port.
    std::net::UdpSocket::bind(("127.0.0.1", port)).unwrap();
}

#[test]
fn clients_open_no_device_file_or_port_by_an_address() {
    let folder = Folder::new("playlist-addresses");
    let server = Served::start(&folder, &[]);
    let refusal = |input: &str| {
        let spec = json!({"name": "door", "pipeline": "colors", "input": input});
        let asked = [("/api/streams", spec), ("/api/probe", json!({"input": input}))];
        let answers = asked.map(|(path, body)| server.json("POST", path, Some(body)));
        assert!(answers.iter().all(|(status, _)| *status == 400), "{input}: {answers:?}");
        answers
            .map(|(_, answer)| format!("{} {} {}", answer["error"]["code"], answer["error"]["expected"], answer["error"]["advice"]))
            .concat()
    };
    let missing = refusal("v4l2:///no/such/file");
    assert!(missing.contains("`devices`"), "{missing}");
    for path in ["/etc/passwd", "/dev/null", "/dev/video0/../null", "/proc/self/environ", &folder.file("colors.toml")] {
        assert_eq!(refusal(&format!("v4l2://{path}")), missing, "{path}");
    }
    for input in ["udp://127.0.0.1:5000", "rtp://127.0.0.1:5000", "srt://:5000", "srt://127.0.0.1:5000?mode=listener"] {
        assert!(refusal(input).contains("opens a port"), "{input}");
    }
    drop(server);
    std::fs::write(folder.file("server.toml"), "schemes = [\"udp\", \"v4l2\"]\ndevices = [\"/dev/no-such-camera\"]\n").unwrap();
    let server = Served::start(&folder, &["--config", &folder.file("server.toml")]);
    let port = free_port();
    for (name, input) in [("port", format!("udp://127.0.0.1:{port}")), ("device", "v4l2:///dev/no-such-camera".to_owned())] {
        let (status, answer) = server.json("POST", "/api/streams", Some(json!({"name": name, "pipeline": "colors", "input": input})));
        assert_eq!(status, 201, "{answer}");
    }
    crate::harness::eventually("the port is open", || std::net::UdpSocket::bind(("127.0.0.1", port)).is_err());
}
