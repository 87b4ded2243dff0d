//! `roiflow serve` from the view of its clients: streams over HTTP, with real pipelines.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::{Folder, command, roiflow};
use crate::rtsp::signal;

/// Time limit of each wait. A longer wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Sends a request to an HTTP server. Returns status and body.
pub fn send(address: &str, method: &str, path: &str, body: Option<Value>) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let text = body.map(|body| body.to_string()).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all(format!("{head}{text}").as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let (mut head, mut line) = (String::new(), String::new());
    while reader.read_line(&mut line).unwrap() > 2 {
        head += &line;
        line.clear();
    }
    // Some servers keep the connection open.
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = Vec::new();
    reader.take(length.unwrap_or(u64::MAX)).read_to_end(&mut body).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

/// A running server with the pipeline `colors`.
pub struct Served {
    child: Child,
    pub address: String,
    /// Messages of the start.
    pub said: String,
    stderr: BufReader<ChildStderr>,
}

impl Served {
    pub fn start(folder: &Folder, arguments: &[&str]) -> Self {
        Self::start_with(folder, arguments, &[])
    }

    /// Starts a server with environment variables.
    pub fn start_with(folder: &Folder, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let state = folder.file("state");
        let pipelines = folder.file("");
        let local = ["--listen", "127.0.0.1:0"];
        // In a process with a terminal, SIGHUP means that the terminal was closed.
        let mut child = Command::new("setsid")
            .arg(command().get_program())
            .env("ROIFLOW_CACHE_DIR", "")
            .current_dir(&pipelines)
            .args(["serve", "--state", &state, "--pipelines", &pipelines, "--media", &pipelines])
            .args(if arguments.contains(&"--listen") { &[][..] } else { &local })
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let (mut line, mut all) = (String::new(), String::new());
        let address = loop {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the server ended: {all}");
            all += &line;
            if let Some((_, address)) = line.split_once("roiflow serves ").and_then(|(_, url)| url.split_once("://")) {
                break address.trim().to_owned();
            }
        };
        Self { child, address, said: all, stderr }
    }

    /// Sends a request. Returns status and body.
    pub fn send(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Vec<u8>) {
        send(&self.address, method, path, body)
    }

    pub fn json(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let (status, body) = self.send(method, path, body);
        (status, serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{method} {path}: {}", String::from_utf8_lossy(&body))))
    }

    pub fn view(&self, name: &str) -> Value {
        self.json("GET", &format!("/api/streams/{name}"), None).1
    }

    pub fn wait_until(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        loop {
            let view = self.view(name);
            if is_so(&view) {
                return view;
            }
            assert!(begin.elapsed() < LIMIT, "{view}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// Waits for a message with this text.
    pub fn wait_for(&mut self, text: &str) {
        let (mut line, mut all) = (String::new(), String::new());
        while !line.contains(text) {
            line.clear();
            assert!(self.stderr.read_line(&mut line).unwrap() > 0, "the server ended without `{text}`: {all}");
            all += &line;
        }
    }

    /// Ends the server by SIGTERM. Returns the exit code and the rest of its messages.
    pub fn end(mut self) -> (Option<i32>, String) {
        signal(&self.child, "TERM");
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn stream(name: &str, input: &str) -> Value {
    json!({"name": name, "pipeline": "colors", "input": input, "loop": true})
}

/// Writes a clip of the test pattern into the folder.
fn clip(folder: &Folder) {
    let video = folder.file("clip.mp4");
    let output = roiflow(&["run", &folder.file("colors.toml"), "-q", "--input", "test:30", "--video", &video]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn stream_survives_sigkill_until_it_is_removed() {
    let folder = Folder::new("serve");
    clip(&folder);
    let server = Served::start(&folder, &[]);
    let (status, view) = server.json("POST", "/api/streams", Some(stream("door", "clip.mp4")));
    assert_eq!((status, &view["name"]), (201, &"door".into()), "{view}");
    // The clip has 30 frames. More frames show that the stream has started the clip again.
    let view = server.wait_until("door", |view| view["frames"].as_u64().unwrap() > 45);
    assert!(view["state"] == "running" && view["objects"].as_object().is_some_and(|objects| !objects.is_empty()), "{view}");
    assert!((15.0..=45.0).contains(&view["fps"].as_f64().unwrap()), "the clip plays at its own rate of 30 fps: {view}");
    let (_, results) = server.json("GET", "/api/streams/door/results?limit=3", None);
    let results = results["results"].as_array().unwrap();
    assert!(results.len() == 3 && results[2]["stream"] == "door" && results[2]["objects"].as_array().is_some_and(|all| !all.is_empty()));
    server.kill();

    let server = Served::start(&folder, &[]);
    server.wait_until("door", |view| view["state"] == "running" && view["frames"].as_u64().unwrap() > 5);
    let (_, metrics) = server.send("GET", "/metrics", None);
    let metrics = String::from_utf8(metrics).unwrap();
    for part in [
        "roiflow_frames_total{stream=\"door\",outcome=\"analyzed\"",
        "roiflow_latency_seconds_bucket{stream=\"door\",le=\"+Inf\"}",
        "roiflow_inferences_total{stream=\"door\"",
    ] {
        assert!(metrics.contains(part), "expected `{part}` in\n{metrics}");
    }
    assert_eq!(server.send("GET", "/readyz", None).0, 200);
    assert_eq!(server.json("DELETE", "/api/streams/door", None).0, 200);
    assert_eq!(server.json("GET", "/api/streams/door", None).0, 404);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    let server = Served::start(&folder, &[]);
    assert_eq!(server.json("GET", "/api/streams", None).1, json!({"streams": []}));
}

#[test]
fn acknowledged_streams_survive_sigkill_in_mid_write() {
    let folder = Folder::new("serve-kill");
    let mut server = Served::start(&folder, &[]);
    // Add streams that end immediately, because only their storage is tested.
    let short = |name: &str| json!({"name": name, "pipeline": "colors", "input": "test:1"});
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let (address, begin) = (server.address.clone(), acknowledged.len());
        let (has_added, added) = std::sync::mpsc::channel();
        let killer = std::thread::spawn(move || {
            added.recv_timeout(LIMIT).unwrap();
            std::thread::sleep(Duration::from_millis(20 + 30 * round));
            signal(&server.child, "KILL");
            server.kill();
        });
        for n in begin..begin + 15 {
            let name = format!("s{n:02}");
            let text = short(&name).to_string();
            let add = || -> std::io::Result<bool> {
                let mut stream = TcpStream::connect(&address)?;
                let head =
                    format!("POST /api/streams HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n");
                stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{text}", text.len()).as_bytes())?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                Ok(answer.starts_with("HTTP/1.1 201"))
            };
            match add() {
                Ok(true) => acknowledged.push(name),
                Ok(false) | Err(_) => break,
            }
            // Fails only after the first stream, because the server is then being killed.
            let _killing = has_added.send(());
        }
        killer.join().unwrap();
        server = Served::start(&folder, &[]);
        let (_, list) = server.json("GET", "/api/streams", None);
        let names: Vec<&str> = list["streams"].as_array().unwrap().iter().map(|view| view["name"].as_str().unwrap()).collect();
        let lost: Vec<&String> = acknowledged.iter().filter(|name| !names.contains(&name.as_str())).collect();
        assert!(lost.is_empty(), "round {round}: {lost:?} of {acknowledged:?}");
        // A stream that was stored, but not acknowledged, may exist.
        acknowledged = names.into_iter().map(str::to_owned).collect();
    }
    assert!(!acknowledged.is_empty());
}

#[test]
fn wrong_streams_are_refused_with_reasons() {
    let folder = Folder::new("serve-wrong");
    let server = Served::start(&folder, &[]);
    for (spec, status, says) in [
        (json!({"name": "a", "pipeline": "color", "input": "test:"}), 400, "Did you mean `colors`?"),
        (json!({"name": "a", "pipeline": "colors", "input": "/etc/passwd"}), 400, "media folder"),
        (json!({"name": "a", "pipeline": "colors", "input": "test:", "parameters": {"detector": "/etc/passwd"}}), 400, "model folder"),
        (json!({"name": "a", "pipeline": "colors", "input": "test:", "parameters": {"devcie": "CPU"}}), 400, "Did you mean `device`?"),
        (json!({"name": "a", "pipeline": "detect", "input": "test:"}), 400, "`model`"),
    ] {
        let (got, body) = server.json("POST", "/api/streams", Some(spec.clone()));
        assert!(got == status && body["error"]["message"].as_str().unwrap().contains(says), "{spec}: {got} {body}");
    }
    assert_eq!(server.json("GET", "/api/streams", None).1, json!({"streams": []}));
}

#[test]
fn credentials_of_cameras_are_never_shown() {
    let folder = Folder::new("serve-secret");
    let server = Served::start(&folder, &["--log", "debug"]);
    let input = "rtspt://admin:secret77x@127.0.0.1:1/live?token=hunter22x";
    let (status, view) = server.json("POST", "/api/streams", Some(stream("door", input)));
    assert_eq!(status, 201, "{view}");
    let view = server.wait_until("door", |view| view["state"] == "reconnecting" && !view["error"].is_null());
    let (_, events) = server.json("GET", "/api/events", None);
    let (_, metrics) = server.send("GET", "/metrics", None);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    for text in [view.to_string(), events.to_string(), String::from_utf8(metrics).unwrap(), said] {
        assert!(!text.contains("secret77x") && !text.contains("hunter22x"), "{text}");
    }
}

#[test]
fn pictures_show_the_frames_of_the_stream() {
    let folder = Folder::new("serve-picture");
    let server = Served::start(&folder, &[]);
    assert_eq!(server.json("POST", "/api/streams", Some(stream("door", "test:"))).0, 201);
    server.wait_until("door", |view| view["frames"].as_u64().unwrap() > 0);
    let picture = |options: &str| {
        let (status, jpeg) = server.send("GET", &format!("/api/streams/door/picture{options}"), None);
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&jpeg));
        image::load_from_memory(&jpeg).unwrap().into_rgb8()
    };
    assert_eq!(picture("").dimensions(), (640, 480));
    let small = picture("?width=160&boxes=false");
    assert_eq!(small.dimensions(), (160, 120));
    // The test pattern begins with a gray and a yellow bar.
    let (gray, yellow) = (small[(10, 20)], small[(34, 20)]);
    assert!(gray[0].abs_diff(gray[2]) < 30 && yellow[0] > 150 && yellow[2] < 90, "{gray:?} {yellow:?}");
    let changed = |a: &image::RgbImage, b: &image::RgbImage| a.pixels().zip(b.pixels()).filter(|(a, b)| a != b).count();
    assert!(changed(&picture(""), &picture("?boxes=false")) > 100, "boxes are drawn");
    let (_, metrics) = server.send("GET", "/metrics", None);
    assert!(String::from_utf8_lossy(&metrics).contains("roiflow_pictures_total 4"), "nothing is encoded that no client asked for");
    let mut viewer = TcpStream::connect(&server.address).unwrap();
    viewer.set_read_timeout(Some(LIMIT)).unwrap();
    viewer.write_all(format!("GET /api/streams/door/mjpeg?width=64 HTTP/1.1\r\nHost: {}\r\n\r\n", server.address).as_bytes()).unwrap();
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    while all.windows(15).filter(|window| window == b"roiflow-picture").count() < 4 {
        let n_bytes = viewer.read(&mut part).unwrap();
        assert!(n_bytes > 0);
        all.extend_from_slice(&part[..n_bytes]);
    }
}

#[test]
fn token_is_printed_once_and_needed_beyond_loopback() {
    let folder = Folder::new("serve-token");
    let state = folder.file("state");
    let refused = roiflow(&["serve", "--listen", "0.0.0.0:0", "--state", &state]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("--create-token"), "{said}");
    let created = roiflow(&["serve", "--create-token", "viewer", "--state", &state]);
    let token = String::from_utf8(created.stdout).unwrap().trim().to_owned();
    assert!(created.status.success() && token.starts_with("roiflow_") && token.len() > 40, "{token}");
    let server = Served::start(&folder, &["--listen", "0.0.0.0:0"]);
    let port = server.address.rsplit(':').next().unwrap().to_owned();
    let status = |scheme: &str, token: &str| {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        let head =
            format!("GET /api/streams HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nAuthorization: {scheme} {token}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!((&*status("Bearer", "x"), &*status("Bearer", &token)), ("401", "200"));
    assert_eq!((&*status("bearer", &token), &*status("BEARER ", &token), &*status("Basic", &token)), ("200", "200", "401"));
}

#[test]
fn ctl_adds_lists_and_removes_streams() {
    let folder = Folder::new("serve-ctl");
    let server = Served::start(&folder, &[]);
    let url = format!("http://{}", server.address);
    let ctl = |arguments: &[&str]| {
        let output = roiflow(&[&["ctl", "--server", &url], arguments].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, out, said) = ctl(&["add", "door", "--pipeline", "colors", "--input", "test:", "--loop", "--set", "device=CPU"]);
    assert!(code == Some(0) && out.contains("door"), "{out}{said}");
    server.wait_until("door", |view| view["state"] == "running" && view["fps"].as_f64().unwrap() > 1.0);
    let (_, out, _) = ctl(&["list"]);
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("NAME") && lines[1].contains("running") && lines[1].contains("rectangle"), "{out}");
    assert_eq!(ctl(&["health"]), (Some(0), "ready\n".to_owned(), String::new()));
    let (code, out, said) = ctl(&["change", "door", "--input", "test:"]);
    assert_eq!(code, Some(0), "{out}{said}");
    // A destination that cannot be reached takes no results, and stops nothing.
    assert_eq!(ctl(&["change", "door", "--publish", "http://127.0.0.1:1/results"]).0, Some(0));
    assert_eq!(server.view("door")["publish"], json!(["http://127.0.0.1:1/results"]));
    assert_eq!(ctl(&["change", "door", "--publish", ""]).0, Some(0));
    assert_eq!(server.view("door")["publish"], Value::Null);
    assert_eq!(ctl(&["restart", "door"]).0, Some(0));
    let (_, out, _) = ctl(&["--json", "pipelines"]);
    assert!(serde_json::from_str::<Value>(&out).unwrap()["pipelines"].as_array().is_some_and(|all| all.len() >= 4), "{out}");
    let (code, out, _) = ctl(&["remove", "door"]);
    assert!(code == Some(0) && out.starts_with("door: removed after "), "{out}");
    let (code, _, said) = ctl(&["remove", "door"]);
    assert!(code == Some(1) && said.contains("expected the name of a stream, got `door`"), "{said}");
    assert!(ctl(&["events"]).1.contains("removed"));
    let (code, _, said) = ctl(&["--server", "ftp://x", "list"]);
    assert!(code == Some(2), "{said}");
    drop(server);
    let (code, _, said) = ctl(&["list"]);
    assert!(code == Some(1) && said.contains("roiflow serve"), "{said}");
    assert_eq!(ctl(&["health"]).0, Some(1));
}

#[test]
fn top_shows_the_streams_in_a_terminal() {
    let folder = Folder::new("serve-top");
    let server = Served::start(&folder, &[]);
    let url = format!("http://{}", server.address);
    assert_eq!(server.json("POST", "/api/streams", Some(stream("door", "test:"))).0, 201);
    assert_eq!(server.json("POST", "/api/streams", Some(stream("gate", "rtspt://127.0.0.1:1/live"))).0, 201);
    server.wait_until("door", |view| view["state"] == "running" && view["fps"].as_f64().unwrap() > 1.0);
    server.wait_until("gate", |view| !view["error"].is_null());
    let output = roiflow(&["top", "--server", &url, "--once", "--sort", "state"]);
    let out = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = out.lines().collect();
    assert!(output.status.success() && lines.len() == 3, "{out}");
    assert!(lines[0].starts_with("NAME  STATE") && lines[0].ends_with("DETAILS"), "{out}");
    assert!(lines[1].starts_with("gate") && lines[1].contains("127.0.0.1"), "a stream that does not run is first: {out}");
    assert!(lines[2].starts_with("door  running") && lines[2].contains(" ms "), "{out}");

    let output = roiflow(&["top", "--server", &url]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("--once"), "{said}");

    // In a pseudo terminal: the table is drawn, and the key q ends the command.
    let line = format!("stty rows 24 cols 120; exec {} top --server {url}", command().get_program().display());
    let mut terminal = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut screen = terminal.stdout.take().unwrap();
    let (mut shown, mut part) = (Vec::new(), [0; 4096]);
    let has = |shown: &[u8], text: &str| String::from_utf8_lossy(shown).contains(text);
    while !(has(&shown, "door") && has(&shown, "DETAILS") && has(&shown, "quit")) {
        let n_bytes = screen.read(&mut part).unwrap();
        assert!(n_bytes > 0, "{}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&part[..n_bytes]);
    }
    terminal.stdin.as_mut().unwrap().write_all(b"q").unwrap();
    screen.read_to_end(&mut shown).unwrap();
    assert_eq!(terminal.wait().unwrap().code(), Some(0), "{}", String::from_utf8_lossy(&shown));
    // The screen is restored: the cursor is shown, and the alternate screen is left.
    assert!(has(&shown, "\u{1b}[?25h") && has(&shown, "\u{1b}[?1049l"), "{}", String::from_utf8_lossy(&shown));
    drop(server);
    let output = roiflow(&["top", "--server", &url, "--once"]);
    assert!(output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("roiflow serve"));
}

#[test]
fn stream_without_inference_runs() {
    let folder = Folder::new("serve-plain");
    let text = "version = 1\nname = \"plain\"\ndescription = \"Without inference.\"\n[pipeline]\ngraph = \"{source} ! {json} ! {video}\"\n";
    std::fs::write(folder.file("plain.toml"), text).unwrap();
    let server = Served::start(&folder, &[]);
    let spec = json!({"name": "door", "pipeline": "plain", "input": "test:", "loop": true});
    let (status, view) = server.json("POST", "/api/streams", Some(spec));
    assert_eq!(status, 201, "{view}");
    let view = server.wait_until("door", |view| view["state"] == "running");
    assert!(view["frames"].as_u64() > Some(0) && view["latency_ms"].is_null(), "{view}");
}

#[test]
fn hangup_without_certificate_and_terminal_ends_no_server() {
    let folder = Folder::new("serve-hangup");
    let mut server = Served::start(&folder, &[]);
    server.signal("HUP");
    server.wait_for("there is no certificate to read again");
    assert_eq!(server.json("GET", "/api/streams", None).0, 200);
}
