//! The parts of playlists and manifests: how much they may send, and which servers get a login. The real binary plays them from real HTTP
//! servers.

use std::io::{BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cli::Folder;
use crate::credentials::{CHALLENGE, Server, login};
use crate::endings::check;
use crate::intake::{MAX_MEMORY_KIB, end, flood, request, serve, start, trickle};
use crate::playlists::{N_FRAMES, hls, make_segment, play, response, said};
use crate::serve::Served;

/// Returns a segment of MPEG-TS.
fn segment(folder: &Folder) -> Vec<u8> {
    let path = folder.file("segment.ts");
    make_segment(&path);
    std::fs::read(path).unwrap()
}

#[test]
fn login_of_a_playlist_stays_with_its_host() {
    let folder = Folder::new("parts-login");
    let segment = segment(&folder);
    let closed = |playlist: String| {
        let segment = segment.clone();
        Server::new(move |request| match request {
            _ if !request.contains(&login()) => format!("HTTP/1.1 {CHALLENGE}\r\nContent-Length: 0\r\n\r\n").into_bytes(),
            _ if request.contains(".m3u8") => response("200 OK", "application/vnd.apple.mpegurl", playlist.as_bytes()),
            _ => response("200 OK", "video/mp2t", &segment),
        })
    };
    let of_open = segment.clone();
    let open = Server::new(move |_| response("200 OK", "video/mp2t", &of_open));
    let other = closed(String::new());
    let [at_open, at_other] = [&open, &other].map(|server| format!("http://127.0.0.1:{}/segment.ts", server.port));
    let home = closed(hls("", &["a.ts", &at_open, "b.ts", &at_other]));
    let input = format!("http://camera:hunter22@127.0.0.1:{}/list.m3u8", home.port);
    let (output, n_frames) = play(&folder, &input, &[]);
    let said = said(&output);
    assert!(n_frames > 2 * N_FRAMES, "{n_frames}: the segments of both servers are played: {said}");
    for server in [open, other] {
        let requests = server.requests();
        assert!(requests.contains("segment.ts") && !requests.contains("Authorization"), "{requests}");
    }
    let requests = home.requests();
    assert!(requests.contains("/b.ts") && !said.contains("hunter22"), "{requests}");
}

#[test]
fn address_of_a_playlist_stays_with_its_host() {
    let folder = Folder::new("parts-referer");
    let segment = segment(&folder);
    let list = hls("", &["a.ts"]);
    let other = Server::new(move |request| match request {
        _ if request.contains(".m3u8") => response("200 OK", "application/vnd.apple.mpegurl", list.as_bytes()),
        _ => response("200 OK", "video/mp2t", &segment),
    });
    let master = format!("#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=100000\nhttp://127.0.0.1:{}/list.m3u8\n", other.port);
    let home = Server::new(move |_| response("200 OK", "application/vnd.apple.mpegurl", master.as_bytes()));
    let (output, n_frames) = play(&folder, &format!("http://127.0.0.1:{}/master.m3u8?token=t0ken", home.port), &[]);
    assert_eq!((output.status.code(), n_frames), (Some(0), N_FRAMES), "{}", said(&output));
    let requests = other.requests();
    assert!(requests.contains("a.ts") && !requests.contains("t0ken"), "{requests}");
}

/// A master playlist, and playlists and manifests that need the resource `/part`.
const PLAYLISTS: [(&str, &str); 5] = [
    ("/variant.m3u8", "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=100000\npart\n"),
    ("/key.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-KEY:METHOD=AES-128,URI=\"part\"\n#EXTINF:1,\na.ts\n#EXT-X-ENDLIST\n"),
    ("/live.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\na.ts\n#EXTINF:1,\na.ts\n#EXTINF:1,\na.ts\n#EXTINF:1,\na.ts\n"),
    (
        "/period.mpd",
        "<?xml version=\"1.0\"?><MPD xmlns=\"urn:mpeg:dash:schema:mpd:2011\" xmlns:xlink=\"http://www.w3.org/1999/xlink\" type=\"static\" \
         mediaPresentationDuration=\"PT4S\" minBufferTime=\"PT1S\" profiles=\"urn:mpeg:dash:profile:isoff-main:2011\"><Period \
         xlink:href=\"http://HOST/part\" xlink:actuate=\"onLoad\"/></MPD>",
    ),
    (
        "/time.mpd",
        "<?xml version=\"1.0\"?><MPD xmlns=\"urn:mpeg:dash:schema:mpd:2011\" type=\"dynamic\" availabilityStartTime=\"2020-01-01T00:00:00Z\" \
         minimumUpdatePeriod=\"PT1S\" minBufferTime=\"PT1S\" profiles=\"urn:mpeg:dash:profile:isoff-live:2011\"><UTCTiming \
         schemeIdUri=\"urn:mpeg:dash:utc:http-iso:2014\" value=\"http://HOST/part\"/><Period start=\"PT0S\"><AdaptationSet \
         mimeType=\"video/mp2t\"><SegmentTemplate duration=\"2\" timescale=\"1\" media=\"a.ts\" startNumber=\"1\"/><Representation id=\"1\" \
         bandwidth=\"100000\" width=\"160\" height=\"120\"/></AdaptationSet></Period></MPD>",
    ),
];

/// Serves the playlists. `part` answers the requests for the resource, and those for `/live.m3u8` after the first two.
fn playlists(segment: Vec<u8>, part: impl Fn(&mut std::net::TcpStream) -> std::io::Result<()> + Clone + Send + 'static) -> u16 {
    let (segment, n_live) = (Arc::new(segment), Arc::new(AtomicUsize::new(0)));
    serve(move |mut connection| {
        let mut reader = BufReader::new(connection.try_clone()?);
        let host = connection.local_addr()?.to_string();
        loop {
            let (line, _) = request(&mut reader)?;
            let path = line.split(' ').nth(1).unwrap_or_default();
            let playlist = PLAYLISTS.iter().find(|(name, _)| *name == path);
            let is_part = path == "/part" || path == "/live.m3u8" && n_live.fetch_add(1, Ordering::Relaxed) >= 2;
            match playlist.filter(|_| !is_part) {
                _ if is_part => {
                    write!(connection, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
                    return part(&mut connection);
                }
                Some((name, text)) => {
                    let kind = if name.ends_with(".mpd") { "application/dash+xml" } else { "application/vnd.apple.mpegurl" };
                    // GStreamer does not recognize a manifest of less than 512 bytes.
                    connection.write_all(&response("200 OK", kind, format!("{:600}\n", text.replace("HOST", &host)).as_bytes()))?;
                }
                None => connection.write_all(&response("200 OK", "video/mp2t", &segment))?,
            }
        }
    })
}

#[test]
fn endless_part_of_a_playlist_ends_the_source() {
    let folder = Folder::new("parts-endless");
    let segment = segment(&folder);
    for (name, _) in PLAYLISTS {
        let port = playlists(segment.clone(), |to| flood(to, "#EXTINF:1,\na.ts\n"));
        let (code, said, memory_kib) = end(start(&folder, &[&format!("http://127.0.0.1:{port}{name}")], &["--restart", "never"]));
        assert_eq!(code, Some(1), "{name}: {said}");
        check(&said, &[&format!("`http://127.0.0.1:{port}{name}`"), "a playlist or a key of more than 8 MiB"]);
        assert!(memory_kib < MAX_MEMORY_KIB, "{name}: {memory_kib} KiB, {said}");
    }
}

#[test]
fn removed_playlist_with_a_part_without_an_end_ends_at_once() {
    let folder = Folder::new("parts-remove");
    let segment = segment(&folder);
    let server = Served::start(&folder, &[]);
    for (path, _) in PLAYLISTS {
        let (sender, is_asked) = mpsc::channel();
        let port = playlists(segment.clone(), move |to| {
            // Nothing waits for further requests.
            let _sent = sender.send(());
            trickle(b"x".to_vec())(to)
        });
        let name = path.trim_matches('/').replace('.', "-");
        let stream = json!({"name": name, "pipeline": "colors", "input": format!("http://127.0.0.1:{port}{path}")});
        let added = server.json("POST", "/api/streams", Some(stream));
        assert_eq!(added.0, 201, "{added:?}");
        is_asked.recv_timeout(Duration::from_secs(30)).expect(path);
        let begin = Instant::now();
        let removed = server.send("DELETE", &format!("/api/streams/{name}"), None);
        // A stream that does not end is stopped after ten seconds.
        assert!(removed.0 < 300 && begin.elapsed() < Duration::from_secs(6), "{name}: {} after {:?}", removed.0, begin.elapsed());
    }
}
