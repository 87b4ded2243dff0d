//! Spans and logs of `roiflow serve` at a collector of OpenTelemetry that fails and comes back.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use prost::Message;
use serde_json::json;

use crate::cli::{Folder, roiflow};
use crate::serve::Served;

const LIMIT: Duration = Duration::from_secs(60);

/// A span or a log as the collector has received it.
#[derive(Debug, Clone)]
struct Item {
    name: String,
    trace: Vec<u8>,
    id: Vec<u8>,
    parent: Vec<u8>,
    attributes: BTreeMap<String, String>,
}

#[derive(Default)]
struct Received {
    spans: Vec<Item>,
    logs: Vec<Item>,
    resource: BTreeMap<String, String>,
    heads: String,
    bytes: Vec<u8>,
}

/// A collector that accepts OTLP over HTTP until it is stopped.
struct Collector {
    port: u16,
    received: Arc<Mutex<Received>>,
    is_stopped: Arc<AtomicBool>,
}

/// The path of requests that a collector refuses.
type Refused = Option<&'static str>;

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::BoolValue(flag)) => flag.to_string(),
        other => format!("{other:?}"),
    }
}

fn attributes(of: &[KeyValue]) -> BTreeMap<String, String> {
    of.iter().map(|attribute| (attribute.key.clone(), text(attribute.value.as_ref()))).collect()
}

impl Collector {
    /// Starts a collector. `port` 0: any free port.
    fn start(port: u16) -> Self {
        Self::start_refusing(port, None)
    }

    fn start_refusing(port: u16, refused: Refused) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let collector = Self { port, received: Arc::default(), is_stopped: Arc::default() };
        let (received, is_stopped) = (collector.received.clone(), collector.is_stopped.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_stopped.load(Ordering::Acquire) {
                    return;
                }
                let (received, is_stopped) = (received.clone(), is_stopped.clone());
                std::thread::spawn(move || answer(stream.unwrap(), &received, &is_stopped, refused));
            }
        });
        collector
    }

    /// Closes the port and all connections.
    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        // Wakes up the thread that accepts.
        let _connection = TcpStream::connect(("127.0.0.1", self.port));
    }

    fn wait_for<T>(&self, what: &str, find: impl Fn(&Received) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            let received = self.received.lock().unwrap();
            if let Some(found) = find(&received) {
                return found;
            }
            assert!(begin.elapsed() < LIMIT, "no {what}: {:?} {:?}", received.spans, received.logs);
            drop(received);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn span(&self, name: &str, of: impl Fn(&Item) -> bool) -> Item {
        self.wait_for(name, |received| received.spans.iter().find(|span| span.name == name && of(span)).cloned())
    }
}

fn answer(stream: TcpStream, received: &Mutex<Received>, is_stopped: &AtomicBool, refused: Refused) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut head, mut line) = (String::new(), String::new());
        while reader.read_line(&mut line).is_ok_and(|n_bytes| n_bytes > 2) {
            head += &line;
            line.clear();
        }
        let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        let Some(length) = length.filter(|_| !is_stopped.load(Ordering::Acquire)) else { return };
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let mut received = received.lock().unwrap();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let status = if refused == Some(&*path) { "404 Not Found" } else { "200 OK" };
        match &*path {
            path if refused == Some(path) => {}
            "/v1/traces" => {
                for resource in ExportTraceServiceRequest::decode(&body[..]).unwrap().resource_spans {
                    received.resource = attributes(&resource.resource.unwrap().attributes);
                    for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
                        let attributes = attributes(&span.attributes);
                        let (trace, id, parent) = (span.trace_id, span.span_id, span.parent_span_id);
                        received.spans.push(Item { name: span.name, trace, id, parent, attributes });
                    }
                }
            }
            "/v1/logs" => {
                for resource in ExportLogsServiceRequest::decode(&body[..]).unwrap().resource_logs {
                    for log in resource.scope_logs.into_iter().flat_map(|scope| scope.log_records) {
                        let (name, attributes) = (text(log.body.as_ref()), attributes(&log.attributes));
                        received.logs.push(Item { name, trace: log.trace_id, id: log.span_id, parent: Vec::new(), attributes });
                    }
                }
            }
            other => panic!("unexpected path {other}"),
        }
        received.heads += &head;
        received.bytes.extend(body);
        drop(received);
        let answer = format!("HTTP/1.1 {status}\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n");
        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn items(server: &Served, kind: &str, outcome: &str) -> u64 {
    let text = String::from_utf8(server.send("GET", "/metrics", None).1).unwrap();
    let begin = format!("roiflow_telemetry_items_total{{kind=\"{kind}\",outcome=\"{outcome}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&begin)).unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

fn stream(name: &str, input: &str) -> serde_json::Value {
    json!({"name": name, "pipeline": "colors", "input": input, "loop": true})
}

#[test]
fn spans_and_logs_survive_an_outage_of_the_collector_without_credentials() {
    let folder = Folder::new("serve-telemetry");
    let collector = Collector::start(0);
    let port = collector.port;
    std::fs::write(folder.file("server.toml"), format!("[telemetry]\nendpoint = \"http://127.0.0.1:{port}\"\n")).unwrap();
    let server = Served::start(&folder, &["--config", &folder.file("server.toml")]);
    assert_eq!(server.json("POST", "/api/streams", Some(stream("door", "test:"))).0, 201);
    server.wait_until("door", |view| view["frames"].as_u64().unwrap() > 50);

    // The start of a stream belongs to its request.
    let request = collector.span("POST /api/streams", |_| true);
    assert_eq!((&*request.attributes["http.response.status_code"], &*request.attributes["http.route"]), ("201", "/api/streams"));
    let start = collector.span("stream.start", |span| span.attributes["stream"] == "door");
    assert_eq!((&start.trace, &start.parent), (&request.trace, &request.id));
    assert_eq!(start.attributes["pipeline"], "colors");
    let open = collector.span("stream.open", |span| span.attributes["stream"] == "door");
    assert_eq!((&open.trace, &open.parent), (&request.trace, &start.id));
    let load = collector.span("model.load", |span| span.attributes["model"].contains("rectangle.onnx"));
    assert_eq!(load.attributes["device"], "CPU");
    let added = collector.wait_for("log", |received| {
        received.logs.iter().find(|log| log.attributes.get("event").is_some_and(|event| event == "added")).cloned()
    });
    assert_eq!((&*added.attributes["stream"], &added.trace), ("door", &request.trace), "{added:?}");
    assert_eq!(server.json("POST", "/api/streams/door/restart", None).0, 200);
    let restart = collector.span("stream.restart", |_| true);
    let stop = collector.span("stream.stop", |_| true);
    assert_eq!((stop.trace, stop.parent), (restart.trace, restart.id));

    // Credentials of cameras and destinations do not leave the server.
    let secret = json!({"name": "yard", "pipeline": "colors", "input": "rtspt://admin:secret77x@127.0.0.1:1/live?token=hunter22x",
                        "publish": ["mqtt://user:hidden88y@127.0.0.1:1/roiflow"]});
    assert_eq!(server.json("POST", "/api/streams", Some(secret)).0, 201);
    server.wait_until("yard", |view| view["state"] == "reconnecting" && !view["error"].is_null());
    collector.wait_for("log of the lost source", |received| {
        received.logs.iter().any(|log| log.attributes.get("event").is_some_and(|event| event == "source-lost")).then_some(())
    });
    {
        let received = collector.received.lock().unwrap();
        assert_eq!((&*received.resource["service.name"], received.resource.contains_key("service.version")), ("roiflow", true));
        let all = String::from_utf8_lossy(&received.bytes);
        for secret in ["secret77x", "hunter22x", "hidden88y"] {
            assert!(!all.contains(secret), "{secret}");
        }
        // The stream has had at least 50 frames.
        assert!(
            received.spans.iter().filter(|span| !span.name.starts_with("GET")).count() < 30,
            "frames are no spans: {:?}",
            received.spans
        );
    }

    // A dead collector costs nothing but counted losses.
    collector.stop();
    let before = server.view("door")["frames"].as_u64().unwrap();
    server.wait_until("door", |_| items(&server, "span", "lost") > 0);
    server.wait_until("door", |view| view["frames"].as_u64().unwrap() > before + 30);
    let (_, view) = server.json("GET", "/api/streams/door?percentiles=true", None);
    assert!(view["dropped"] == json!([]) && view["latency_percentiles_ms"]["p99"].as_f64().unwrap() > 0.0, "{view}");

    let again = Collector::start(port);
    let begin = Instant::now();
    while again.received.lock().unwrap().spans.is_empty() {
        assert!(begin.elapsed() < LIMIT, "nothing is sent after the outage");
        server.view("door");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.json("DELETE", "/api/streams/door", None).0, 200);
    again.span("DELETE /api/streams/{name}", |_| true);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("send spans failed: expected that the collector") && said.contains("accepts spans again"), "{said}");
}

#[test]
fn collector_that_refuses_only_logs_is_reported_once() {
    let folder = Folder::new("serve-telemetry-refused");
    let collector = Collector::start_refusing(0, Some("/v1/logs"));
    let endpoint = format!("http://user:hidden88y@127.0.0.1:{}", collector.port);
    let server = Served::start_with(&folder, &[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
    // Three times in turn, the collector accepts spans and refuses logs.
    for round in 0..3 {
        let (n_spans, n_logs) = (items(&server, "span", "sent"), items(&server, "log", "lost"));
        let name = format!("door{round}");
        assert_eq!(server.json("POST", "/api/streams", Some(stream(&name, "test:"))).0, 201);
        server.wait_until(&name, |_| items(&server, "span", "sent") > n_spans && items(&server, "log", "lost") > n_logs);
    }
    assert_eq!((items(&server, "span", "lost"), items(&server, "log", "sent")), (0, 0));
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    let expected =
        format!("send logs failed: expected that the collector http://***@127.0.0.1:{} accepts logs, got the status 404", collector.port);
    assert_eq!((said.matches(&expected).count(), said.matches("failed: expected that the collector").count()), (1, 1), "{said}");
    assert!(!said.contains("accepts logs again"), "{said}");
}

#[test]
fn signal_without_an_address_is_not_sent() {
    for (variable, path, has_spans) in
        [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "/v1/traces", true), ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "/v1/logs", false)]
    {
        let folder = Folder::new(&format!("serve-telemetry-{has_spans}"));
        let collector = Collector::start(0);
        let endpoint = format!("http://127.0.0.1:{}{path}", collector.port);
        let server = Served::start_with(&folder, &[], &[(variable, &endpoint)]);
        // A request makes a span, and its event makes a log.
        assert_eq!(server.json("POST", "/api/streams", Some(stream("door", "test:"))).0, 201);
        let (sent, other) = if has_spans { ("span", "log") } else { ("log", "span") };
        server.wait_until("door", |view| view["frames"].as_u64().unwrap() > 0 && items(&server, sent, "sent") > 0);
        assert_eq!(items(&server, other, "sent") + items(&server, other, "lost"), 0, "{variable}");
        let (code, said) = server.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("failed: expected that the collector"), "{said}");
        let received = collector.received.lock().unwrap();
        assert_eq!((received.spans.is_empty(), received.logs.is_empty()), (!has_spans, has_spans), "{variable}");
    }
}

#[test]
fn environment_names_the_collector_and_its_headers() {
    let folder = Folder::new("serve-telemetry-environment");
    let collector = Collector::start(0);
    let endpoint = format!("http://127.0.0.1:{}", collector.port);
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token99z"),
        ("OTEL_SERVICE_NAME", "cameras"),
        ("OTEL_LOGS_EXPORTER", "none"),
    ];
    let server = Served::start_with(&folder, &["--log", "debug"], &variables);
    server.json("GET", "/api/streams", None);
    collector.span("GET /api/streams", |_| true);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    let received = collector.received.lock().unwrap();
    assert_eq!(received.resource["service.name"], "cameras");
    assert!(received.heads.to_lowercase().contains("authorization: bearer token99z") && received.logs.is_empty(), "{}", received.heads);
    assert!(!said.contains("token99z"), "{said}");
}

#[test]
fn wrong_settings_of_telemetry_are_refused() {
    let folder = Folder::new("serve-telemetry-wrong");
    let config = folder.file("server.toml");
    for (text, says) in [
        (
            "[telemetry]\nendpoint = \"grpc://user:hidden88y@collector:4317\"\n",
            "expected the address of a collector such as http://127.0.0.1:4318",
        ),
        ("[telemetry]\nlogs = \"all\"\n", "unknown variant `all`"),
    ] {
        std::fs::write(&config, text).unwrap();
        let output = roiflow(&["serve", "--listen", "127.0.0.1:0", "--state", &folder.file("state"), "--config", &config]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(says) && !said.contains("hidden88y"), "{text}: {said}");
    }
}
