//! `roiflow node`: several processes and a real NATS server share streams, lose nodes, and take over.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::LastRawMessageErrorKind;
use serde_json::{Value, json};

use crate::brokers::free_port;
use crate::cli::{Folder, command};
use crate::harness::eventually;
use crate::nodes_faults::check_gaps;
use crate::rtsp::signal;
use crate::serve::send;

/// Time limit of each wait. A longer wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(90);

/// A NATS server with JetStream, which keeps its port and its files over restarts.
pub struct NatsServer {
    pub port: u16,
    /// Port of its counters.
    pub monitor: u16,
    program: String,
    folder: String,
    config: String,
    process: Option<Child>,
}

impl NatsServer {
    /// Starts the server that `scripts/fetch-tools` fetches. If it is missing, prints a message and returns `None`.
    pub fn start(folder: &Folder) -> Option<Self> {
        Self::start_with(folder, "")
    }

    /// Like [`NatsServer::start`], with the text of a configuration file.
    pub fn start_with(folder: &Folder, config: &str) -> Option<Self> {
        std::fs::write(folder.file("nats.conf"), config).unwrap();
        let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| format!("{}/target", env!("CARGO_MANIFEST_DIR")));
        let program = format!("{target}/tools/nats-server");
        if !std::path::Path::new(&program).exists() {
            eprintln!("skipped: nats-server is not there (run scripts/fetch-tools nats-server)");
            return None;
        }
        let mut server = Self {
            port: free_port(),
            monitor: free_port(),
            program,
            folder: folder.file("nats"),
            config: folder.file("nats.conf"),
            process: None,
        };
        server.start_again();
        Some(server)
    }

    pub fn start_again(&mut self) {
        let (port, monitor) = (self.port.to_string(), self.monitor.to_string());
        let process = Command::new(&self.program)
            .args([
                "--config",
                &self.config,
                "--addr",
                "127.0.0.1",
                "--port",
                &port,
                "--http_port",
                &monitor,
                "--jetstream",
                "--store_dir",
                &self.folder,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(process);
        eventually("NATS accepts connections", || std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Returns the limit of a JetStream stream in bytes.
    fn max_bytes(&self, stream: &str) -> i64 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let context = async_nats::jetstream::new(async_nats::connect(self.url()).await.unwrap());
            context.get_stream(stream).await.unwrap().cached_info().config.max_bytes
        })
    }

    /// Returns the name of the server of the cluster that leads a JetStream stream.
    pub fn leader(&self, stream: &str) -> Option<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let context = async_nats::jetstream::new(async_nats::connect(self.url()).await.ok()?);
            context.get_stream(stream).await.ok()?.cached_info().cluster.as_ref()?.leader.clone()
        })
    }

    /// Returns the payloads of all messages of a JetStream stream, with their IDs. A cluster may elect a leader of the stream meanwhile.
    pub fn messages(&self, stream: &str) -> Vec<(String, Value)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = async_nats::connect(self.url()).await.unwrap();
            let context = async_nats::jetstream::new(client);
            let stream = context.get_stream(stream).await.unwrap();
            let state = stream.cached_info().state.clone();
            println!("state of the stream: {state:?}");
            let mut all = Vec::new();
            for sequence in state.first_sequence..=state.last_sequence {
                let begin = Instant::now();
                let message = loop {
                    match stream.get_raw_message(sequence).await {
                        Ok(message) => break Some(message),
                        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => break None,
                        Err(error) => assert!(begin.elapsed() < LIMIT, "message {sequence} of {state:?}: {error}"),
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                };
                let Some(message) = message else { continue };
                let id = message.headers.get("Nats-Msg-Id").map(ToString::to_string).unwrap_or_default();
                all.push((id, serde_json::from_slice(&message.payload).unwrap_or(Value::Null)));
            }
            all
        })
    }

    /// Writes an item into the key-value bucket of the group `default`, as any program that may write there; `None`: removes it.
    pub fn put(&self, key: &str, value: Option<&str>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let context = async_nats::jetstream::new(async_nats::connect(self.url()).await.unwrap());
            let mut headers = async_nats::HeaderMap::new();
            if value.is_none() {
                headers.insert("KV-Operation", "DEL");
            }
            let subject = format!("$KV.roiflow-default.{key}");
            let sent = context.publish_with_headers(subject, headers, value.unwrap_or_default().to_owned().into()).await;
            sent.unwrap().await.unwrap();
        });
    }

    /// Returns all bytes that the key-value bucket stores.
    pub fn bucket(&self, bucket: &str) -> String {
        let all = self.messages(&format!("KV_{bucket}"));
        all.into_iter().map(|(_, value)| value.to_string()).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A running node.
pub struct Node {
    pub child: Child,
    pub address: String,
    pub name: String,
    /// Messages before the address.
    first: String,
    stderr: BufReader<ChildStderr>,
}

impl Node {
    pub fn start(folder: &Folder, nats: &str, name: &str, arguments: &[&str]) -> Self {
        let (state, pipelines) = (folder.file(&format!("state-{name}")), folder.file(""));
        let mut child = command()
            .args(["node", "--nats", nats, "--name", name, "--state", &state, "--pipelines", &pipelines, "--media", &pipelines])
            .args(["--listen", "127.0.0.1:0", "--capacity", "1000"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let (mut line, mut all) = (String::new(), String::new());
        let address = loop {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the node ended: {all}");
            all += &line;
            if let Some((_, address)) = line.split_once("roiflow serves http://") {
                break address.trim().to_owned();
            }
        };
        Self { child, address, name: name.to_owned(), first: all, stderr }
    }

    pub fn json(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let (status, body) = send(&self.address, method, path, body);
        (status, serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{method} {path}: {}", String::from_utf8_lossy(&body))))
    }

    /// The streams of all nodes.
    pub fn streams(&self) -> Vec<Value> {
        self.json("GET", "/api/streams", None).1["streams"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until the list of all streams is as expected. Returns it.
    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut(&[Value]) -> bool) -> Vec<Value> {
        let begin = Instant::now();
        loop {
            let streams = self.streams();
            if is_so(&streams) {
                return streams;
            }
            assert!(begin.elapsed() < LIMIT, "{what}: {streams:#?}\nevents: {:#}", self.json("GET", "/api/events", None).1);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub fn add(&self, name: &str, input: &str) {
        let (status, view) =
            self.json("POST", "/api/streams", Some(json!({"name": name, "pipeline": "colors", "input": input, "loop": true})));
        assert_eq!(status, 201, "{view}");
    }

    pub fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the node by SIGTERM. Returns the exit code and its messages.
    pub fn end(mut self) -> (Option<i32>, String) {
        self.signal("TERM");
        let mut said = std::mem::take(&mut self.first);
        self.stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Number of simulated cameras.
pub fn n_cameras() -> usize {
    std::env::var("ROIFLOW_TEST_CAMERAS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// Whether all streams run on nodes among these.
pub fn all_run(streams: &[Value], n_streams: usize, nodes: &[&str]) -> bool {
    let runs = |view: &Value| {
        view["state"] == "running"
            && view["frames"].as_u64().is_some_and(|frames| frames > 0)
            && view["node"].as_str().is_some_and(|node| nodes.contains(&node))
    };
    streams.len() == n_streams && streams.iter().all(runs)
}

/// Checks the results as a consumer that refuses lower epochs: IDs are unique, no frame is repeated, and few results are refused.
pub fn check_results(messages: &[(String, Value)]) {
    let n_refused = count_refused(messages);
    // In a hand-over, the earlier owner may publish some frames after the first result of the later one.
    assert!(n_refused * 10 < messages.len(), "{n_refused} of {} results are refused", messages.len());
}

/// Checks that each owner has published each of its frames in order. Returns the largest number of frames of an owner.
pub fn check_complete(messages: &[(String, Value)]) -> usize {
    let mut frames: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    // A gap record has no frame.
    for (id, _) in messages.iter().filter(|(_, line)| line["event"].is_null()) {
        let parts: Vec<&str> = id.rsplitn(3, '/').collect();
        frames.entry((parts[2].to_owned(), parts[1].to_owned())).or_default().push(parts[0].parse().unwrap());
    }
    for (stream, numbers) in &frames {
        let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
        assert_eq!(numbers.len() as u64, last - first + 1, "{stream:?}: frames {first} to {last} are complete");
    }
    frames.values().map(Vec::len).max().unwrap()
}

/// Checks that IDs are unique, and returns the number of results that a consumer refuses.
pub fn count_refused(messages: &[(String, Value)]) -> usize {
    let ids: BTreeSet<&String> = messages.iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), messages.len(), "IDs are unique");
    let mut newest: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut n_refused = 0;
    for (id, _) in messages {
        let parts: Vec<&str> = id.rsplitn(3, '/').collect();
        let (frame, epoch) = (parts[0].split('.').next().unwrap().parse().unwrap(), parts[1].parse().unwrap());
        let position = newest.entry(parts[2].to_owned()).or_default();
        if (epoch, frame) > *position {
            *position = (epoch, frame);
        } else if *position != (0, 0) {
            n_refused += 1;
        }
    }
    n_refused
}

#[test]
fn streams_of_a_killed_node_run_on_the_others() {
    let folder = Folder::new("nodes");
    let Some(nats) = NatsServer::start(&folder) else { return };
    let names = ["a", "b", "c"];
    let mut nodes: Vec<Node> = names.iter().map(|name| Node::start(&folder, &nats.url(), name, &[])).collect();
    let n_streams = n_cameras();
    (0..n_streams).for_each(|idx| nodes[idx % 3].add(&format!("cam{idx}"), "test:"));
    let streams = nodes[1].wait_until("all streams run", |streams| all_run(streams, n_streams, &names));
    let used: BTreeSet<&str> = streams.iter().filter_map(|view| view["node"].as_str()).collect();
    assert!(used.len() >= 2, "the streams are spread over nodes: {used:?}");

    // Any node shows a picture and the results of a stream of another node.
    let other = streams.iter().find(|view| view["node"] != "b").unwrap()["name"].as_str().unwrap().to_owned();
    let (status, picture) = send(&nodes[1].address, "GET", &format!("/api/streams/{other}/picture?width=160"), None);
    assert!(status == 200 && image::load_from_memory(&picture).is_ok(), "{}", String::from_utf8_lossy(&picture));
    let (status, results) = nodes[1].json("GET", &format!("/api/streams/{other}/results?limit=2"), None);
    assert!(status == 200 && results["results"].as_array().is_some_and(|results| !results.is_empty()), "{results}");

    let victim = nodes.iter().position(|node| used.contains(&*node.name)).unwrap();
    let mut dead = nodes.remove(victim);
    let rest: Vec<&str> = names.iter().copied().filter(|name| *name != dead.name).collect();
    dead.kill();
    let begin = Instant::now();
    nodes[0].wait_until("the streams run elsewhere", |streams| all_run(streams, n_streams, &rest));
    eprintln!("all {n_streams} streams ran elsewhere {:.1} s after SIGKILL", begin.elapsed().as_secs_f64());
    let messages = nats.messages("roiflow-default-results");
    check_results(&messages);
    let of_dead = places(&streams).into_iter().filter(|(_, node)| *node == dead.name).map(|(stream, _)| stream);
    let gaps = check_gaps(&messages);
    assert_eq!(gaps.keys().cloned().collect::<Vec<_>>(), of_dead.collect::<Vec<_>>(), "streams of the dead node have a gap: {gaps:?}");
    let ended = format!("the node `{}` ended without leaving", dead.name);
    assert!(gaps.values().flatten().all(|reason| reason.contains(&ended)), "{gaps:?}");

    // A node that ends by SIGTERM tells the others, so they do not wait for its lease to end.
    let leaving = nodes.remove(1);
    let (begin, last) = (Instant::now(), nodes[0].name.clone());
    let (code, said) = leaving.end();
    assert_eq!(code, Some(0), "{said}");
    nodes[0].wait_until("the streams run on the last node", |streams| all_run(streams, n_streams, &[&last]));
    assert!(begin.elapsed() < Duration::from_secs(12), "{:?}", begin.elapsed());
    let gaps = check_gaps(&nats.messages("roiflow-default-results"));
    assert!(gaps.values().flatten().any(|reason| reason.ends_with("has left")), "{gaps:?}");
}

#[test]
fn change_that_cannot_run_is_refused_through_any_node() {
    let folder = Folder::new("nodes-change");
    let Some(nats) = NatsServer::start(&folder) else { return };
    let nodes = ["a", "b"].map(|name| Node::start(&folder, &nats.url(), name, &[]));
    nodes[0].add("door", "test:");
    let before = nodes[0].wait_until("the stream runs", |streams| all_run(streams, 1, &["a", "b"]));
    let wrong = json!({"device": "CUDA"});
    let other = json!({"name": "other", "pipeline": "colors", "input": "test:", "parameters": wrong});
    for node in &nodes {
        for (method, path, body) in [("PATCH", "/api/streams/door", json!({"parameters": wrong})), ("POST", "/api/streams", other.clone())]
        {
            let (status, body) = node.json(method, path, Some(body));
            assert!(status == 422 && body["error"]["message"].as_str().unwrap().contains("CUDA"), "{method}: {status} {body}");
        }
    }
    let after = wait_for_frames(&nodes[1], &before, 30);
    let [stream] = &after[..] else { panic!("{after:?}") };
    assert!(
        stream["state"] == "running" && stream["parameters"] == before[0]["parameters"] && places(&after) == places(&before),
        "{stream}"
    );
    let (_, events) = nodes[0].json("GET", "/api/events?stream=door", None);
    let kinds: Vec<&str> = events["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds.iter().filter(|kind| ["added", "started"].contains(kind)).count(), kinds.len(), "{events}");
}

/// Waits until a stream of the list has processed this many more frames than in `before`.
pub fn wait_for_frames(node: &Node, before: &[Value], n_frames: u64) -> Vec<Value> {
    let frames = |streams: &[Value], name: &Value| {
        streams.iter().find(|view| view["name"] == *name).and_then(|view| view["frames"].as_u64()).unwrap_or(0)
    };
    node.wait_until("the streams process frames", |streams| {
        before.iter().all(|view| frames(streams, &view["name"]) >= frames(before, &view["name"]) + n_frames)
    })
}

/// The nodes of all streams.
pub fn places(streams: &[Value]) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    streams.iter().map(|view| (text(&view["name"]), text(&view["node"]))).collect()
}

#[test]
fn streams_run_on_while_nats_is_down_and_no_result_is_lost() {
    let folder = Folder::new("nodes-nats");
    let Some(mut nats) = NatsServer::start(&folder) else { return };
    let nodes: Vec<Node> = ["a", "b"].iter().map(|name| Node::start(&folder, &nats.url(), name, &[])).collect();
    (0..3).for_each(|idx| nodes[0].add(&format!("cam{idx}"), "test:"));
    let before = nodes[0].wait_until("all streams run", |streams| all_run(streams, 3, &["a", "b"]));
    nats.kill();
    // The test pattern has 30 frames per second, and a lease ends after 15 s.
    let during = wait_for_frames(&nodes[0], &before, 30 * 17);
    nats.start_again();
    nodes.iter().for_each(|node| eventually("the node sees NATS again", || send(&node.address, "GET", "/readyz", None).0 == 200));
    let after = wait_for_frames(&nodes[0], &during, 60);
    assert_eq!(places(&after), places(&before), "nothing was planned again");
    nodes.into_iter().for_each(|node| drop(node.end()));

    let messages = nats.messages("roiflow-default-results");
    check_results(&messages);
    let longest = check_complete(&messages);
    assert!(longest > 30 * 17, "the results of the outage were sent afterwards: {longest}");
}

#[test]
fn streams_move_and_drain_without_a_pause_and_secrets_are_encrypted() {
    let folder = Folder::new("nodes-drain");
    let Some(nats) = NatsServer::start(&folder) else { return };
    let key = folder.file("nodes.key");
    let created = crate::cli::roiflow(&["node", "--create-key", &key]);
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let nodes: Vec<Node> = ["a", "b"].iter().map(|name| Node::start(&folder, &nats.url(), name, &["--key", &key])).collect();
    (0..2).for_each(|idx| nodes[0].add(&format!("cam{idx}"), "test:"));
    let streams = nodes[0].wait_until("all streams run", |streams| all_run(streams, 2, &["a", "b"]));
    let place = streams[0]["node"].as_str().unwrap();
    let other = if place == "a" { "b" } else { "a" };
    let (status, view) = nodes[0].json("PUT", "/api/streams/cam0/node", Some(json!({"node": other})));
    assert_eq!(status, 200, "{view}");
    nodes[1].wait_until("the stream has moved", |streams| all_run(streams, 2, &["a", "b"]) && places(streams)["cam0"] == other);
    let messages = nats.messages("roiflow-default-results");
    assert!(messages.iter().all(|(_, line)| line["event"] != "gap"), "a move has no gap");
    let (status, view) = nodes[0].json("PUT", "/api/nodes/b/drain", Some(json!({"drain": true})));
    assert!(status == 200 && view["state"] == "draining", "{view}");
    nodes[0].wait_until("the node is drained", |streams| all_run(streams, 2, &["a"]));
    let (_, error) = nodes[0].json("PUT", "/api/nodes/x/drain", Some(json!({"drain": true})));
    assert!(error["error"]["message"].as_str().unwrap().contains("expected one of a, b, got `x`"), "{error}");

    // A camera that does not exist. Its password is on no server in clear text.
    nodes[0].add("door", "rtspt://admin:secret77x@127.0.0.1:1/live");
    let stored = nats.bucket("roiflow-default");
    assert!(stored.contains("\"sealed\":2") && !stored.contains("secret77x") && !stored.contains("\"presence\""), "{stored}");
    nodes[1].wait_until("the camera is tried", |streams| {
        streams
            .iter()
            .any(|view| view["name"] == "door" && view["state"] == "reconnecting" && view["input"] == "rtspt://***@127.0.0.1:1/live")
    });
    // A second JetStream stream of results would need more free disk space than some machines have.
    let without = Node::start(&folder, &nats.url(), "c", &["--group", "other", "--results", "none"]);
    let spec = json!({"name": "door", "pipeline": "colors", "input": "rtspt://admin:secret77x@127.0.0.1:1/live"});
    let (status, error) = without.json("POST", "/api/streams", Some(spec));
    assert!(status == 400 && error["error"]["message"].as_str().unwrap().contains("--key"), "{error}");
    for node in nodes {
        let (code, said) = node.end();
        assert!(code == Some(0) && !said.contains("secret77x"), "{said}");
    }
}

#[test]
fn old_or_missing_nats_server_is_named_with_advice() {
    let folder = Folder::new("nodes-old");
    let run = |url: &str| {
        crate::cli::roiflow(&["node", "--nats", url, "--name", "a", "--listen", "127.0.0.1:0", "--state", &folder.file("state")])
    };
    let (code, said) = Node::start(&folder, "nats://me:secret77x@127.0.0.1:1", "b", &[]).end();
    assert!(said.contains("Start a server with `nats-server --jetstream`, or correct `--nats`"), "{said}");
    assert!(code == Some(0) && said.contains("connect to nats://127.0.0.1:1 failed") && !said.contains("secret77x"), "{said}");
    let output = run("http://127.0.0.1");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("expected nats:// or tls://"), "{said}");
    // Debian 12 has version 2.9. Where the system has a newer server, there is none to refuse.
    let version = Command::new("/usr/sbin/nats-server").arg("--version").output();
    if !version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("v2.9.")) {
        return;
    }
    let mut old = crate::brokers::Broker::new("nats-server", &["-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", &folder.file("old")]);
    old.start();
    let output = run(&format!("nats://127.0.0.1:{}", old.port));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("expected nats-server 2.11 or newer"), "{said}");
}

#[test]
fn node_waits_for_nats_at_its_start() {
    let folder = Folder::new("nodes-wait");
    let Some(mut nats) = NatsServer::start(&folder) else { return };
    nats.kill();
    let node = Node::start(&folder, &nats.url(), "a", &[]);
    assert_eq!(["/healthz", "/readyz"].map(|path| send(&node.address, "GET", path, None).0), [200, 503]);
    let (status, error) = node.json("POST", "/api/streams", Some(json!({"name": "x", "pipeline": "colors", "input": "test:"})));
    assert!(status == 503 && error["error"]["code"] == "coordinator_unavailable", "{error}");
    nats.start_again();
    eventually("the node is ready", || send(&node.address, "GET", "/readyz", None).0 == 200);
    node.add("cam0", "test:");
    node.wait_until("the stream runs", |streams| all_run(streams, 1, &["a"]));
    let (code, said) = node.end();
    assert!(code == Some(0) && said.matches("this node waits for NATS: connect to").count() == 1, "{said}");
}

#[test]
fn server_with_little_storage_keeps_fewer_results() {
    let folder = Folder::new("nodes-storage");
    let Some(nats) = NatsServer::start_with(&folder, "jetstream { max_file_store: 700MB }") else { return };
    let _node = Node::start(&folder, &nats.url(), "a", &[]);
    assert_eq!(nats.max_bytes("roiflow-default-results"), 512 << 20);
}

#[test]
fn example_manifests_use_options_of_the_command() {
    let help = String::from_utf8(crate::cli::roiflow(&["node", "--help"]).stdout).unwrap();
    let read = |name: &str| std::fs::read_to_string(format!("{}/packaging/nodes/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let (unit, manifest) = (read("roiflow-node.service"), read("kubernetes.yaml"));
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/roiflow node ")).unwrap();
    let of_manifest = manifest.lines().filter_map(|line| line.trim().strip_prefix("- --"));
    let options = start.split(" --").map(|text| text.trim_start_matches("--")).chain(of_manifest);
    let mut n_options = 0;
    for option in options {
        let name = option.split(['=', ' ']).next().unwrap();
        assert!(help.contains(&format!("--{name} ")), "expected --{name} in\n{help}");
        n_options += 1;
    }
    assert!(n_options > 8);
    // The form of the manifest: each document has a version, a kind and a name, and spaces instead of tabs.
    for document in manifest.split("\n---\n") {
        let has = |begin: &str| document.lines().any(|line| line.starts_with(begin));
        assert!(has("apiVersion: ") && has("kind: ") && has("  name: ") && has("spec:") && !document.contains('\t'));
        let lines = document.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
        for line in lines {
            let is_even = (line.len() - line.trim_start().len()).is_multiple_of(2);
            let item = line.trim_start().trim_start_matches("- ");
            let is_entry = item.contains(": ") || item.ends_with(':') || item.starts_with("--") || item == "node";
            assert!(is_even && is_entry, "{line}");
        }
    }
}
