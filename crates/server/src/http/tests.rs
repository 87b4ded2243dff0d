//! Tests of the server over real connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{MAX_HEAD_TIME, Server};
use crate::config::{Config, Limits};
use crate::nodes::Nodes;
use crate::nodes::alone::tests::{alone_with, alone_with_config};
use crate::registry::tests::{Fake, wait_until};
use crate::token::{Role, Tokens};

struct Rig {
    _folder: tempfile::TempDir,
    nodes: Arc<Nodes>,
    address: SocketAddr,
    server: Option<Server>,
}

impl Rig {
    fn new(tokens: Tokens) -> Self {
        Self::with_limits(tokens, Limits { streams: 3, ..Limits::default() })
    }

    fn with_limits(tokens: Tokens, limits: Limits) -> Self {
        Self::with_config(tempfile::tempdir().unwrap(), tokens, |config| config.limits = limits)
    }

    fn with_config(folder: tempfile::TempDir, tokens: Tokens, set: impl FnOnce(&mut Config)) -> Self {
        let nodes = Arc::new(alone_with_config(folder.path(), &Fake::default(), set));
        let server = Server::start("127.0.0.1:0".parse().unwrap(), nodes.clone(), tokens, None, "1.2.3").unwrap();
        Self { _folder: folder, nodes, address: server.address(), server: Some(server) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends a request on a new connection and returns status, head and body.
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = self.connect();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: {}\r\n", self.address);
        }
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        // The server may answer before it has read a body that is too long.
        let _sent = stream.write_all(body);
        let mut answer = Vec::new();
        let _read = stream.read_to_end(&mut answer);
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or_else(|| panic!("no answer to {method} {path}")) + 4;
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head, answer[end..].to_vec())
    }

    fn json(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let text = body.map(|body| body.to_string()).unwrap_or_default();
        let (status, _, body) = self.send(method, path, &[("Content-Type", "application/json")], text.as_bytes());
        (status, serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&body))))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.end();
        }
        self.nodes.registry().end(Instant::now() + Duration::from_secs(5));
    }
}

fn door() -> Value {
    json!({"name": "door", "pipeline": "detect", "input": "rtsp://admin:secret77@cam/1"})
}

#[test]
fn streams_are_added_changed_and_removed() {
    let rig = Rig::new(Tokens::default());
    let (status, view) = rig.json("POST", "/api/streams", Some(door()));
    assert_eq!(
        (status, &view["name"], &view["state"], &view["input"]),
        (201, &"door".into(), &"running".into(), &"rtsp://***@cam/1".into())
    );
    assert_eq!(rig.json("POST", "/api/streams", Some(door())).0, 409);
    let (status, view) = rig.json("PATCH", "/api/streams/door", Some(json!({"pipeline": "faces", "loop": true})));
    assert_eq!((status, &view["pipeline"], &view["loop"]), (200, &"faces".into(), &true.into()));
    assert_eq!(rig.json("POST", "/api/streams/door/restart", None).0, 200);
    let (_, list) = rig.json("GET", "/api/streams", None);
    assert_eq!(list["streams"].as_array().unwrap().len(), 1);
    let (_, results) = rig.json("GET", "/api/streams/door/results?limit=2", None);
    assert_eq!(results["results"].as_array().unwrap().len(), 2, "{results}");
    assert!(results["results"][0]["source"] == "rtsp://***@cam/1", "{results}");
    assert_eq!(rig.json("DELETE", "/api/streams/door", None).0, 200);
    assert_eq!(rig.json("GET", "/api/streams/door", None).0, 404);
    let (_, events) = rig.json("GET", "/api/events?stream=door", None);
    assert_eq!(events["events"].as_array().unwrap().last().unwrap()["kind"], "removed");
    for text in [list.to_string(), results.to_string(), events.to_string()] {
        assert!(!text.contains("secret77"), "{text}");
    }
}

#[test]
fn errors_say_what_was_expected() {
    let rig = Rig::new(Tokens::default());
    let cases = [
        ("POST", "/api/streams", json!({"name": "a/b", "pipeline": "detect", "input": "test:"}), 400, "invalid_name"),
        ("POST", "/api/streams", json!({"name": "a", "pipeline": "detct", "input": "test:"}), 400, "unknown_pipeline"),
        ("POST", "/api/streams", json!({"name": "a", "pipeline": "detect", "input": "/etc/passwd"}), 400, "invalid_input"),
        ("POST", "/api/streams", json!({"name": "a", "pipeline": "detect", "input": "test:", "x": 1}), 400, "invalid_json"),
        ("POST", "/api/streams", json!([]), 400, "invalid_json"),
        ("PATCH", "/api/streams/none", json!({}), 404, "unknown_stream"),
        ("GET", "/api/streams/none/results", Value::Null, 404, "unknown_stream"),
        ("GET", "/api/streams/..%2f..%2fetc", Value::Null, 404, "unknown_stream"),
        ("GET", "/api/events?limit=x", Value::Null, 400, "invalid_option"),
        ("GET", "/api/events?lmit=1", Value::Null, 400, "unknown_option"),
        ("GET", "/../../etc/passwd", Value::Null, 404, "unknown_path"),
        ("GET", "/api/nothing", Value::Null, 404, "unknown_path"),
        ("PUT", "/api/streams", json!({}), 405, "method"),
    ];
    for (method, path, body, status, code) in cases {
        let got = rig.json(method, path, Some(body));
        assert_eq!((got.0, &got.1["error"]["code"]), (status, &code.into()), "{method} {path}: {}", got.1);
        assert!(!got.1["error"]["message"].as_str().unwrap().is_empty());
    }
    let (status, _, body) = rig.send("POST", "/api/streams", &[("Content-Type", "text/plain")], b"{}");
    assert!(status == 415 && String::from_utf8_lossy(&body).contains("application/json"));
    let long = vec![b' '; 100_000];
    assert_eq!(rig.send("POST", "/api/streams", &[("Content-Type", "application/json")], &long).0, 413);
}

#[test]
fn web_pages_of_other_sites_are_refused() {
    let rig = Rig::new(Tokens::default());
    let own = format!("http://{}", rig.address);
    let get = |headers: &[(&str, &str)]| rig.send("GET", "/api/streams", headers, b"").0;
    assert_eq!(get(&[("Origin", &own)]), 200);
    assert_eq!(get(&[("Origin", "https://evil.example")]), 403);
    assert_eq!(get(&[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")]), 403);
    assert_eq!(get(&[("Host", "evil.example")]), 421, "a name that resolves to this machine");
    assert_eq!(get(&[("Host", "localhost:1")]), 200);
    let socket = [
        ("Origin", "https://evil.example"),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    assert_eq!(rig.send("GET", "/api/results/ws", &socket, b"").0, 403);
}

#[test]
fn tokens_give_roles() {
    let folder = tempfile::tempdir().unwrap();
    let viewer = Tokens::create(folder.path(), Role::Viewer).unwrap();
    let operator = Tokens::create(folder.path(), Role::Operator).unwrap();
    let rig = Rig::new(Tokens::read(folder.path()).unwrap());
    let status = |method: &str, path: &str, token: &str| rig.send(method, path, &[("Authorization", &format!("Bearer {token}"))], b"").0;
    assert_eq!(
        (status("GET", "/api/streams", &viewer), status("GET", "/api/streams", "x"), status("GET", "/metrics", "")),
        (200, 401, 401)
    );
    assert_eq!((status("DELETE", "/api/streams/a", &viewer), status("DELETE", "/api/streams/a", &operator)), (403, 404));
    assert_eq!((status("GET", "/healthz", ""), status("GET", "/", "")), (200, 200), "health and the page have no data");
    let (code, head, _) =
        rig.send("POST", "/api/login", &[("Content-Type", "application/json")], json!({"token": viewer}).to_string().as_bytes());
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap_or_else(|| panic!("{head}"));
    assert!(code == 200 && cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(rig.send("GET", "/api/streams", &[("Cookie", &format!("a=b; {cookie}"))], b"").0, 200);
    assert_eq!(rig.json("POST", "/api/login", Some(json!({"token": "x"}))).0, 401);
    assert_eq!(rig.json("GET", "/api/server", None).1["role"], Value::Null);
}

#[test]
fn other_machines_need_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = Arc::new(alone_with(folder.path(), &Fake::default(), Limits::default()));
    let error = Server::start("0.0.0.0:0".parse().unwrap(), nodes.clone(), Tokens::default(), None, "1").err().unwrap();
    assert!(error.contains("--create-token"), "{error}");
    Tokens::create(folder.path(), Role::Operator).unwrap();
    Server::start("0.0.0.0:0".parse().unwrap(), nodes.clone(), Tokens::read(folder.path()).unwrap(), None, "1").unwrap().end();
    nodes.registry().end(Instant::now() + Duration::from_secs(5));
}

/// Reads until the text appears.
fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let n_bytes = stream.read(&mut part).unwrap();
        assert!(n_bytes > 0, "the connection ended after {}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&part[..n_bytes]);
        let so_far = String::from_utf8_lossy(&all);
        if so_far.contains(text) {
            return so_far.into_owned();
        }
    }
}

#[test]
fn results_are_sent_live_and_end_with_the_server() {
    let mut rig = Rig::new(Tokens::default());
    rig.json("POST", "/api/streams", Some(door()));
    let mut of_stream = rig.connect();
    let mut of_all = rig.connect();
    let mut socket = rig.connect();
    let host = format!("Host: {}\r\n\r\n", rig.address);
    of_stream.write_all(format!("GET /api/streams/door/results/live HTTP/1.1\r\n{host}").as_bytes()).unwrap();
    of_all.write_all(format!("GET /api/results/live HTTP/1.1\r\n{host}").as_bytes()).unwrap();
    let upgrade =
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    socket.write_all(format!("GET /api/streams/door/results/ws HTTP/1.1\r\n{upgrade}{host}").as_bytes()).unwrap();
    read_until(&mut of_stream, "text/event-stream");
    read_until(&mut of_all, "text/event-stream");
    read_until(&mut socket, "101");
    rig.json("POST", "/api/streams/door/restart", None);
    for stream in [&mut of_stream, &mut of_all] {
        let text = read_until(stream, "\n\n");
        assert!(text.contains("event: result\ndata: {") && text.contains("\"stream\":\"door\"") && !text.contains("secret77"), "{text}");
    }
    read_until(&mut socket, "\"stream\":\"door\"");
    let begin = Instant::now();
    rig.server.take().unwrap().end();
    assert!(begin.elapsed() < Duration::from_secs(3));
    let mut rest = Vec::new();
    of_stream.read_to_end(&mut rest).unwrap();
}

#[test]
fn live_clients_end_when_their_stream_is_removed() {
    let rig = Rig::new(Tokens::default());
    rig.json("POST", "/api/streams", Some(door()));
    let upgrade =
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let clients = [("results/live", "", "200"), ("results/ws", upgrade, "101"), ("video", upgrade, "101"), ("mjpeg", "", "200")];
    let clients = clients.map(|(kind, upgrade, status)| {
        let mut client = rig.connect();
        let connection = if upgrade.is_empty() { "Connection: close\r\n" } else { upgrade };
        let request = format!("GET /api/streams/door/{kind} HTTP/1.1\r\n{connection}Host: {}\r\n\r\n", rig.address);
        client.write_all(request.as_bytes()).unwrap();
        read_until(&mut client, &format!("HTTP/1.1 {status}"));
        (kind, client)
    });
    assert_eq!(rig.json("DELETE", "/api/streams/door", None).0, 200);
    for (kind, mut client) in clients {
        // The read fails after 20 s.
        let mut rest = Vec::new();
        assert!(client.read_to_end(&mut rest).is_ok(), "{kind} goes on after its stream was removed");
    }
}

#[test]
fn metrics_have_the_form_of_prometheus() {
    let rig = Rig::new(Tokens::default());
    rig.json("POST", "/api/streams", Some(door()));
    let (status, head, body) = rig.send("GET", "/metrics", &[], b"");
    let text = String::from_utf8(body).unwrap();
    assert!(status == 200 && head.contains("text/plain; version=0.0.4"), "{head}");
    for part in [
        "# TYPE roiflow_frames_total counter",
        "roiflow_frames_total{stream=\"door\",outcome=\"analyzed\",element=\"\",reason=\"\"} 5",
        "roiflow_stream_state{stream=\"door\",state=\"running\"} 1",
        "roiflow_http_requests_total{status=\"2xx\"} 1",
        "roiflow_build_info{version=\"1.2.3\"} 1",
        "process_resident_memory_bytes ",
        "# TYPE roiflow_latency_seconds histogram",
    ] {
        assert!(text.contains(part), "expected `{part}` in\n{text}");
    }
}

#[test]
fn openapi_describes_every_route() {
    let rig = Rig::new(Tokens::default());
    let (status, document) = rig.json("GET", "/api/openapi.json", None);
    assert_eq!((status, &document["openapi"], &document["info"]["version"]), (200, &"3.1.0".into(), &"1.2.3".into()));
    let n_operations: usize = document["paths"].as_object().unwrap().values().map(|path| path.as_object().unwrap().len()).sum();
    assert_eq!(n_operations, super::routes::routes().len());
    // Each reference leads to a schema.
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
    assert!(document.pointer("/components/schemas/StreamSpec/properties/pipeline").is_some(), "{text}");
}

#[test]
fn slow_clients_block_nobody() {
    let rig = Rig::new(Tokens::default());
    let mut slow: Vec<TcpStream> = (0..50).map(|_| rig.connect()).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(b"GET /api/streams HTTP/1.1\r\nHo").unwrap());
    assert_eq!(rig.json("GET", "/api/streams", None).0, 200);
}

#[test]
fn client_that_sends_too_many_requests_is_told_to_wait() {
    let rig = Rig::with_limits(Tokens::default(), Limits { requests_per_second: 5, ..Limits::default() });
    let statuses: Vec<u16> = (0..30).map(|_| rig.send("GET", "/api/server", &[], b"").0).collect();
    assert!(statuses[..10].iter().all(|status| *status == 200) && statuses.contains(&429), "{statuses:?}");
    assert_eq!(rig.send("GET", "/healthz", &[], b"").0, 200, "health probes have a limit of their own");
    let refused = (0..30).map(|_| rig.send("GET", "/api/streams", &[], b"")).find(|(status, ..)| *status == 429);
    let (_, head, body) = refused.expect("the client is still too fast");
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert!(head.contains("retry-after: 1\r\n") && body["error"]["code"] == "too_many_requests", "{head}{body}");
    wait_until(|| rig.send("GET", "/api/server", &[], b"").0 == 200);
}

#[test]
fn slow_connections_end() {
    let rig = Rig::new(Tokens::default());
    let mut slow: Vec<TcpStream> = (0..8).map(|_| rig.connect()).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(b"GET /healthz HTTP/1.1\r\nHo").unwrap());
    // Each slow client gets an answer with the reason, and its connection ends after ten seconds.
    for stream in &mut slow {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&rest));
    }
    // So is a client that sends its body too slowly.
    let mut slow = rig.connect();
    slow.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head =
        format!("POST /api/streams HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{", rig.address);
    slow.write_all(head.as_bytes()).unwrap();
    let answer = read_until(&mut slow, "body_too_slow");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

/// Connections from one address that begin a request and never end it, many more than the server accepts.
#[test]
fn half_open_requests_keep_no_other_client_out() {
    let folder = tempfile::tempdir().unwrap();
    let token = Tokens::create(folder.path(), Role::Viewer).unwrap();
    let rig = Rig::new(Tokens::read(folder.path()).unwrap());
    let authorization = format!("Bearer {token}");
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: {authorization}\r\n\r\n", rig.address);
    // A client with a token that is connected before, and stays connected.
    let mut known = rig.connect();
    known.write_all(request("/api/streams").as_bytes()).unwrap();
    read_until(&mut known, "{\"streams\":[]}");
    let mut half_open = Vec::new();
    for n in 0..600 {
        let mut stream = rig.connect();
        let text: &[u8] = [&b"GET /api/streams HTTP/1.1\r\nHo"[..], b"", b"\x16\x03\x01"][n % 3];
        stream.write_all(text).unwrap();
        half_open.push(stream);
        // Health probes and logins from the same address get in all the time.
        if n % 50 == 0 {
            assert_eq!(rig.send("GET", "/healthz", &[], b"").0, 200, "{n}");
            assert_eq!(rig.send("GET", "/api/streams", &[("Authorization", &authorization)], b"").0, 200, "{n}");
        }
    }
    known.write_all(request("/api/server").as_bytes()).unwrap();
    read_until(&mut known, "\"role\":\"viewer\"");
    // The oldest connections end for newer ones, long before their time for the head of a request is over.
    let n_open = || {
        let is_open =
            |mut stream: &TcpStream| stream.read(&mut [0; 1000]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        half_open.iter().filter(|stream| is_open(stream)).count()
    };
    half_open.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    let since = Instant::now();
    wait_until(|| n_open() <= Limits::default().unauthenticated_per_address);
    assert!(since.elapsed() < MAX_HEAD_TIME, "they did not end for newer ones");
}

/// Clients that are complete, but name no valid token, and do not read their answers.
#[test]
fn clients_without_a_token_get_few_connections() {
    let folder = tempfile::tempdir().unwrap();
    let token = Tokens::create(folder.path(), Role::Viewer).unwrap();
    let rig = Rig::with_limits(
        Tokens::read(folder.path()).unwrap(),
        Limits { connections: 4, unauthenticated_per_address: 3, requests_per_second: 0, ..Limits::default() },
    );
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer wrong\r\n\r\n", rig.address);
    let strangers: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = rig.connect();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    assert_eq!(rig.send("GET", "/healthz", &[], b"").0, 200);
    assert_eq!(rig.send("GET", "/api/streams", &[("Authorization", &format!("Bearer {token}"))], b"").0, 200);
    drop(strangers);
}

#[test]
fn one_client_does_not_get_all_places() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = [Role::Viewer, Role::Viewer, Role::Operator].map(|role| Tokens::create(folder.path(), role).unwrap());
    let limits = Limits { connections: 9, connections_per_client: 5, subscribers: 6, subscribers_per_client: 3, ..Limits::default() };
    let rig = Rig::with_limits(Tokens::read(folder.path()).unwrap(), limits);
    let connect = |token: &str| {
        let mut stream = rig.connect();
        let request = format!("GET /api/events/live HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n", rig.address);
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let live = |token: &str| {
        let mut stream = connect(token);
        (read_until(&mut stream, "\r\n\r\n")[9..12].to_owned(), stream)
    };
    let statuses = |token: &str, n: usize| (0..n).map(|_| live(token)).collect::<Vec<_>>();
    let of_first = statuses(&tokens[0], 8);
    let codes = |answers: &[(String, TcpStream)]| answers.iter().map(|(code, _)| code.clone()).collect::<Vec<_>>();
    assert_eq!(codes(&of_first), ["200", "200", "200", "503", "503", "503", "503", "503"]);
    let mut refused = connect(&tokens[0]);
    read_until(&mut refused, "of this client");
    // Other viewers and operators are not concerned.
    let others = [statuses(&tokens[1], 2), statuses(&tokens[2], 1)].into_iter().flatten().collect::<Vec<_>>();
    assert_eq!(codes(&others), ["200", "200", "200"]);
    assert_eq!(rig.send("GET", "/healthz", &[], b"").0, 200, "health probes have places of their own");
    // A client that goes makes room.
    drop((of_first, refused));
    wait_until(|| live(&tokens[0]).0 == "200");
}

#[test]
fn clients_behind_a_trusted_proxy_have_limits_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let proxies = toml::from_str("addresses = [\"127.0.0.1\"]").unwrap();
    let limits = Limits { requests_per_second: 2, subscribers_per_client: 1, ..Limits::default() };
    let rig = Rig::with_config(folder, Tokens::default(), |config| (config.limits, config.trusted_proxies) = (limits, Some(proxies)));
    let status = |client: &str| rig.send("GET", "/api/streams", &[("X-Forwarded-For", client)], b"").0;
    let of_first: Vec<u16> = (0..8).map(|_| status("203.0.113.1")).collect();
    assert!(of_first.starts_with(&[200, 200]) && of_first.contains(&429), "{of_first:?}");
    // What a client writes before the address that the proxy adds does not change who it is.
    assert_eq!((status("203.0.113.9, 203.0.113.1"), status("203.0.113.2")), (429, 200));
    let live = |client: &str| {
        let mut stream = rig.connect();
        let request = format!("GET /api/events/live HTTP/1.1\r\nHost: {}\r\nX-Forwarded-For: {client}\r\n\r\n", rig.address);
        stream.write_all(request.as_bytes()).unwrap();
        (read_until(&mut stream, "\r\n\r\n")[9..12].to_owned(), stream)
    };
    let (first, again, other) = (live("203.0.113.3"), live("203.0.113.3"), live("203.0.113.4"));
    assert_eq!([first.0, again.0, other.0], ["200", "503", "200"]);
}

#[test]
fn other_clients_cannot_claim_an_address() {
    let rig = Rig::with_limits(Tokens::default(), Limits { requests_per_second: 2, ..Limits::default() });
    let statuses: Vec<u16> =
        (0..12).map(|n| rig.send("GET", "/api/streams", &[("X-Forwarded-For", &format!("203.0.113.{n}"))], b"").0).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[test]
fn inputs_are_tested_without_a_stream() {
    let rig = Rig::new(Tokens::default());
    let probe = |input: &str| rig.json("POST", "/api/probe", Some(json!({"input": input})));
    assert_eq!(probe("rtsp://admin:secret77@cam/1"), (200, json!({"width": 640, "height": 480, "codec": "H.264", "fps": 25.0})));
    let (status, body) = probe("test:3");
    assert_eq!(
        (status, &body["error"]["code"], &body["error"]["message"]),
        (422, &"no_video".into(), &"the server has no such stream".into())
    );
    assert_eq!(probe("/etc/passwd").1["error"]["code"], "invalid_input");
    assert_eq!(rig.json("GET", "/api/streams", None).1, json!({"streams": []}));
}

#[test]
fn two_hundred_clients_receive_results_and_one_more_is_refused_at_the_limit() {
    let mut rig =
        Rig::with_limits(Tokens::default(), Limits { subscribers_per_client: 256, connections_per_client: 300, ..Limits::default() });
    rig.json("POST", "/api/streams", Some(door()));
    let request = format!("GET /api/streams/door/results/live HTTP/1.1\r\nHost: {}\r\n\r\n", rig.address);
    let mut clients: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut client = rig.connect();
            client.write_all(request.as_bytes()).unwrap();
            client
        })
        .collect();
    clients.iter_mut().for_each(|client| drop(read_until(client, "text/event-stream")));
    rig.json("POST", "/api/streams/door/restart", None);
    clients.iter_mut().for_each(|client| drop(read_until(client, "event: result")));
    // 256 is the default limit.
    let connect = || {
        let mut client = rig.connect();
        client.write_all(request.as_bytes()).unwrap();
        client
    };
    let mut more: Vec<TcpStream> = (0..56).map(|_| connect()).collect();
    more.iter_mut().for_each(|client| drop(read_until(client, "text/event-stream")));
    let refused = read_until(&mut connect(), "too_many_subscribers");
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    // A client that goes makes room.
    drop(clients);
    wait_until(|| {
        rig.json("POST", "/api/streams/door/restart", None);
        rig.nodes.registry().hub().subscribers.load(std::sync::atomic::Ordering::Acquire) == 56
    });
    rig.server.take().unwrap().end();
}

#[test]
fn ten_thousand_requests_leave_nothing_behind() {
    let rig = Rig::with_limits(Tokens::default(), Limits { requests_per_second: 0, ..Limits::default() });
    rig.json("POST", "/api/streams", Some(door()));
    let mut stream = rig.connect();
    let request = format!("GET /api/streams/door HTTP/1.1\r\nHost: {}\r\n\r\n", rig.address);
    let mut part = [0; 65536];
    for _ in 0..100 {
        stream.write_all(request.repeat(100).as_bytes()).unwrap();
        let mut answers = Vec::new();
        while answers.windows(12).filter(|window| window == b"HTTP/1.1 200").count() < 100 {
            let n_bytes = stream.read(&mut part).unwrap();
            assert!(n_bytes > 0);
            answers.extend_from_slice(&part[..n_bytes]);
        }
    }
    drop(stream);
    wait_until(|| {
        let (_, _, body) = rig.send("GET", "/metrics", &[], b"");
        let text = String::from_utf8(body).unwrap();
        text.contains("roiflow_http_connections 1\n")
    });
}

/// Broken requests get an error, and the server goes on.
#[test]
fn random_bodies_never_break_the_server() {
    let rig = Rig::with_limits(Tokens::default(), Limits { requests_per_second: 0, ..Limits::default() });
    let valid = door().to_string();
    let mut state = 12345_u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for _ in 0..300 {
        let mut body = valid.clone().into_bytes();
        for _ in 0..1 + random(4) {
            let at = random(body.len());
            match random(3) {
                0 => body[at] = random(256) as u8,
                1 => body.truncate(at + 1),
                _ => body.insert(at, b"{}[]\",:\\0e-\x00\xff"[random(13)]),
            }
        }
        let (status, _, answer) = rig.send("POST", "/api/streams", &[("Content-Type", "application/json")], &body);
        assert!((200..500).contains(&status), "{status} for {}", String::from_utf8_lossy(&body));
        serde_json::from_slice::<Value>(&answer).unwrap();
    }
    assert_eq!(rig.json("GET", "/api/streams", None).0, 200);
}

#[test]
fn models_are_uploaded_within_limits() {
    let rig = Rig::with_limits(Tokens::default(), Limits { model_bytes: 100_000, ..Limits::default() });
    let headers = [("Content-Type", "application/octet-stream")];
    let upload = |path: &str, headers: &[(&str, &str)], body: &[u8]| {
        let (status, _, body) = rig.send("POST", path, headers, body);
        (status, serde_json::from_slice::<Value>(&body).unwrap())
    };
    // Larger than the limit of other requests.
    let model = [&b"model"[..], &vec![7; 90_000]].concat();
    let (status, uploaded) = upload("/api/models?name=a.onnx", &headers, &model);
    assert_eq!((status, &uploaded["bytes"], &uploaded["inspection"]), (201, &90_005.into(), &"input x".into()), "{uploaded}");
    assert_eq!(std::fs::read(rig._folder.path().join("a.onnx")).unwrap(), model);
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [u8], u16, &'a str);
    let cases: [Case<'_>; 7] = [
        ("/api/models?name=a.onnx", &headers, b"model", 409, "model_exists"),
        ("/api/models?name=..%2Fb.onnx", &headers, b"model", 400, "invalid_name"),
        ("/api/models?name=b.sh", &headers, b"model", 400, "invalid_name"),
        ("/api/models", &headers, b"model", 400, "invalid_name"),
        ("/api/models?name=b.onnx", &headers, b"other", 422, "invalid_model"),
        ("/api/models?name=b.onnx", &[("Content-Type", "text/plain")], b"model", 415, "content_type"),
        ("/api/models?name=b.onnx", &headers, &[0; 100_001], 413, "body_too_large"),
    ];
    for (path, headers, body, status, code) in cases {
        let got = upload(path, headers, body);
        assert_eq!((got.0, &got.1["error"]["code"]), (status, &code.into()), "{path}: {}", got.1);
    }
    let (_, list) = rig.json("GET", "/api/models", None);
    assert_eq!(list, json!({"models": [{"name": "a.onnx", "bytes": 90_005}]}));
    let folders = std::fs::read_dir(rig._folder.path()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir());
    assert_eq!(folders.count(), 0, "no part of an upload is left");
}
