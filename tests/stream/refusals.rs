//! Servers that refuse single results: nothing arrives after later results, nothing is sent in vain, and the command says so.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use gstreamer as gst;
use serde_json::Value;

use crate::brokers::{Broker, LIMIT, NatsClient, Webhook, subscribe};
use crate::harness::{Folder, eventually, on_buffers, run, tiny};
use crate::outages::{Received, stat, stream};

/// Decides how the broker answers a message: the reason code of PUBACK for the line, and whether the message was refused before.
type Decide = dyn FnMut(&Value, bool) -> u8 + Send;

/// An MQTT 5 broker of the test, which refuses messages as the test decides.
struct Refusing {
    port: u16,
    /// The lines that arrived, in order, with the code of the answer.
    seen: Arc<Mutex<Vec<(Value, u8)>>>,
}

impl Refusing {
    fn new(decide: impl FnMut(&Value, bool) -> u8 + Send + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, decide) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(decide)));
        let of_thread = seen.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (seen, decide) = (of_thread.clone(), decide.clone());
                std::thread::spawn(move || serve(client, &seen, &mut *decide.lock().unwrap()));
            }
        });
        Self { port, seen }
    }

    fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}/roiflow/{{stream}}", self.port)
    }

    fn n_sent(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// The lines that were accepted, in order.
    fn accepted(&self) -> Vec<Value> {
        self.seen.lock().unwrap().iter().filter(|(_, code)| *code < 0x80).map(|(line, _)| line.clone()).collect()
    }

    /// The frames of the accepted lines of frames.
    fn frames(&self) -> Vec<u64> {
        self.accepted().iter().filter(|line| line["event"].is_null()).map(|line| line["frame"].as_u64().unwrap()).collect()
    }

    fn gaps(&self) -> Vec<Value> {
        self.accepted().into_iter().filter(|line| line["event"] == "gap").collect()
    }
}

fn serve(mut client: TcpStream, seen: &Mutex<Vec<(Value, u8)>>, decide: &mut Decide) {
    while let Some((kind, body)) = crate::brokers::packet(&mut client) {
        let answer = match kind & 0xf0 {
            0x10 => vec![0x20, 3, 0, 0, 0],
            0xc0 => vec![0xd0, 0],
            0x30 => {
                let n_topic = usize::from(u16::from_be_bytes([body[0], body[1]]));
                let (id, rest) = body[2 + n_topic..].split_at(2);
                // The length of the properties has one byte in these tests.
                let line: Value = serde_json::from_slice(&rest[1 + usize::from(rest[0])..]).unwrap();
                let mut seen = seen.lock().unwrap();
                let was_refused = seen.iter().any(|(earlier, code)| *code >= 0x80 && earlier["message_id"] == line["message_id"]);
                let code = decide(&line, was_refused);
                seen.push((line, code));
                vec![0x40, 3, id[0], id[1], code]
            }
            _ => return,
        };
        if client.write_all(&answer).is_err() {
            return;
        }
    }
}

/// Runs the reader of the documentation on lines. Returns the numbers of frames of the results that it takes, and the number of gaps.
fn documented_reader(folder: &Folder, lines: &[Value]) -> (Vec<u64>, usize) {
    let page = std::fs::read_to_string(format!("{}/docs/howto/publish-results.md", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let code = page.split("```python").nth(1).unwrap().split("```").next().unwrap();
    let script = format!(
        "import json, sys\n{code}\nfor text in sys.stdin:\n    line = json.loads(text)\n    if is_new(line): print(json.dumps(line))"
    );
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let path = folder.write("reader.py", &script);
    let mut python =
        Command::new("python3").arg(&path).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    python.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let mut taken = String::new();
    python.stdout.take().unwrap().read_to_string(&mut taken).unwrap();
    assert!(python.wait().unwrap().success());
    let taken: Vec<Value> = taken.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let frames = taken.iter().filter(|line| line["event"].is_null()).map(|line| line["frame"].as_u64().unwrap()).collect();
    (frames, taken.iter().filter(|line| line["event"] == "gap").count())
}

/// The lines of the file of refused results of the only spool in a folder.
fn refused(spool: &str) -> Vec<Value> {
    let folder = std::fs::read_dir(spool).unwrap().flatten().next().unwrap().path();
    let text = std::fs::read_to_string(folder.join("refused.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn frame(line: &Value) -> u64 {
    line["frame"].as_u64().unwrap_or(u64::MAX)
}

#[test]
fn refusals_of_single_results_keep_the_order_and_cause_no_flood() {
    for code in [0x97, 0x87, 0x80, 0x83] {
        let folder = Folder::new(&format!("single refusals {code:x}"));
        let broker = Refusing::new(move |line, was_refused| if frame(line) % 10 == 7 && !was_refused { code } else { 0 });
        let spool = folder.file("spool");
        let pipeline = stream(400, &format!("url=\"{}\" spool=\"{spool}\"", broker.url()));
        assert_eq!(run(&pipeline).error, None);
        let (frames, given_up) = (broker.frames(), refused(&spool));
        assert!(frames.is_sorted(), "{frames:?}");
        let mut all: Vec<u64> =
            frames.iter().copied().chain(given_up.iter().map(|line| line["result"]["frame"].as_u64().unwrap())).collect();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..400), "each result arrives once, or is kept with its reason: {all:?}");
        let says = |line: &Value| line["reason"].as_str().unwrap().contains(&format!("{code:#04x}"));
        assert!(given_up.iter().all(says), "{given_up:?}");
        // A result is given up only if the broker has accepted a later one, which was sent before the refusal arrived.
        assert!(given_up.len() <= 8, "{} of 40 refused results were given up", given_up.len());
        assert_eq!((broker.gaps().len(), stat(&pipeline, "spool-refused")), (given_up.len(), given_up.len() as u64));
        assert!(broker.n_sent() <= 400 + 40 + given_up.len(), "{} messages were sent", broker.n_sent());
        let (taken, n_gaps) = documented_reader(&folder, &broker.accepted());
        assert_eq!((taken, n_gaps), (frames, given_up.len()), "the documented reader takes each result that arrived");
    }
}

#[test]
fn quota_that_is_exceeded_for_a_time_loses_nothing() {
    for options in ["spool", ""] {
        let folder = Folder::new(&format!("quota {options}"));
        // The broker refuses everything from frame 100 on, until this frame arrives for the fifth time.
        let mut n_attempts = 0;
        let broker = Refusing::new(move |line, _| {
            n_attempts += usize::from(frame(line) == 100);
            if frame(line) >= 100 && n_attempts < 5 { 0x97 } else { 0 }
        });
        let spool = if options.is_empty() { String::new() } else { format!("spool=\"{}\"", folder.file("spool")) };
        let pipeline = stream(400, &format!("url=\"{}\" {spool}", broker.url()));
        let ending = run(&pipeline);
        assert_eq!((ending.error, stat(&pipeline, "errors")), (None, 0), "{options}");
        assert!(broker.frames().into_iter().eq(0..400), "{:?}", broker.frames());
        let mut n_sent = std::collections::BTreeMap::<u64, usize>::new();
        broker.seen.lock().unwrap().iter().for_each(|(line, _)| *n_sent.entry(frame(line)).or_default() += 1);
        assert!(
            n_sent[&100] == 5 && n_sent.iter().all(|(frame, n)| *frame == 100 || *n <= 2),
            "only one result is tried again: {n_sent:?}"
        );
    }
}

#[test]
fn refused_content_is_given_up_with_its_reason_and_a_gap() {
    let folder = Folder::new("refused content");
    let broker = Refusing::new(|line, _| if [5, 17].contains(&frame(line)) { 0x99 } else { 0 });
    let spool = folder.file("spool");
    let pipeline = stream(60, &format!("url=\"{}\" spool=\"{spool}\"", broker.url()));
    let ending = run(&pipeline);
    assert_eq!(ending.error, None);
    assert!(
        ending.warnings.iter().any(|warning| warning.contains("it rejects the content (code 0x99)); it is kept in")),
        "{:?}",
        ending.warnings
    );
    let ids: Vec<u64> = refused(&spool).iter().map(|line| line["result"]["frame"].as_u64().unwrap()).collect();
    let gaps: Vec<_> = broker.gaps().iter().map(|gap| (gap["from"].as_u64(), gap["dropped"].as_u64())).collect();
    assert_eq!((ids, gaps), (vec![5, 17], vec![(Some(5), Some(1)), (Some(17), Some(1))]));
    assert!(broker.frames().into_iter().eq((0..60).filter(|frame| ![5, 17].contains(frame))));
    assert_eq!(broker.n_sent(), 62, "two gap records, and no result twice");
}

#[test]
fn refused_result_is_given_up_when_its_time_is_over() {
    let folder = Folder::new("give up");
    let broker = Refusing::new(|line, _| if frame(line) >= 20 { 0x87 } else { 0 });
    let spool = folder.file("spool");
    let pipeline = stream(60, &format!("url=\"{}?give-up-after=1s\" spool=\"{spool}\"", broker.url()));
    let ending = run(&pipeline);
    let text = "accepts no results (the broker does not accept a message: the user is not authorized";
    assert!(ending.warnings.iter().any(|warning| warning.contains(text)), "{:?}", ending.warnings);
    assert!(broker.frames().into_iter().eq(0..20), "{:?}", broker.frames());
    let given_up: Vec<u64> = refused(&spool).iter().map(|line| line["result"]["frame"].as_u64().unwrap()).collect();
    assert!(given_up.iter().copied().eq(20..60), "{given_up:?}");
    assert_eq!((stat(&pipeline, "spool-waiting"), stat(&pipeline, "spool-refused")), (0, 40));
}

#[test]
fn command_fails_with_the_same_code_if_results_are_refused_with_and_without_a_spool() {
    for code in [0x99, 0x87] {
        for has_spool in [false, true] {
            let folder = Folder::new("refused codes");
            let broker = Refusing::new(move |_, _| code);
            let (classifier, spool, url) = (tiny("brightness.onnx"), folder.file("spool"), broker.url());
            let mut arguments = vec!["run", "--classify", &classifier, "--device", "CPU", "--input", "test:60", "--publish", &url];
            arguments.extend(["--spool", &spool].into_iter().filter(|_| has_spool));
            let output = crate::cli::roiflow(&arguments);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{code:#x}, spool: {has_spool}: {said}");
            let expected = "60 lines of results could not be written to the destinations of --publish";
            assert!(said.contains(expected) && said.contains(&format!("(code {code:#04x})")), "{said}");
        }
    }
}

/// Plays a stream to a server that refuses results from frame 100 on. Calls `allow` when the other frames wait in the spool.
fn play_refused(n_frames: u64, properties: &str, refuse: impl Fn() + Send + 'static, allow: impl FnOnce(&gst::Pipeline)) {
    let pipeline = stream(n_frames, properties);
    let (passed, at) = channel();
    let (go, allowed) = channel::<()>();
    on_buffers(&pipeline, "sink", "sink", move |n, _| {
        if n == n_frames - 1 {
            passed.send(()).unwrap();
            allowed.recv_timeout(LIMIT).unwrap();
        }
    });
    let of_probe = gst::prelude::ObjectExt::downgrade(&pipeline);
    on_buffers(&pipeline, "publish", "src", move |n, _| {
        if n == 100 {
            let pipeline = of_probe.upgrade().unwrap();
            eventually("the first results are stored", || stat(&pipeline, "spool-delivered") >= 90);
            refuse();
        }
    });
    // After a refusal, the publisher sends one message at a time. Before, the end of the refusal could fall between two messages.
    let (refused, is_refused) = channel();
    let bus = gst::prelude::ElementExt::bus(&pipeline).unwrap();
    bus.enable_sync_message_emission();
    bus.connect_sync_message(None, move |_, message| {
        let details = match message.view() {
            gst::MessageView::Warning(warning) => warning.details(),
            _ => None,
        };
        if details.is_some_and(|details| details.get("is-down") == Ok(true)) {
            let _received = refused.send(());
        }
    });
    let held = pipeline.clone();
    let playing = std::thread::spawn(move || (run(&pipeline), pipeline));
    at.recv_timeout(LIMIT).unwrap();
    eventually("results wait", || stat(&held, "spool-waiting") > 200);
    is_refused.recv_timeout(LIMIT).unwrap();
    allow(&held);
    go.send(()).unwrap();
    let (ending, pipeline) = playing.join().unwrap();
    assert_eq!((ending.error, stat(&pipeline, "spool-waiting")), (None, 0), "{:?}", ending.warnings);
}

/// Whether a broker denies the topic of the streams. A separate small client asks it.
fn is_denied(port: u16) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // A CONNECT packet of MQTT 5, and a PUBLISH packet with QoS 1 and the identifier 1.
    stream.write_all(b"\x10\x12\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x05probe").unwrap();
    assert_eq!(crate::brokers::packet(&mut stream).unwrap().1[1], 0);
    stream.write_all(b"\x32\x12\x00\x0droiflow/probe\x00\x01\x00").unwrap();
    crate::brokers::packet(&mut stream).unwrap().1.get(2).is_some_and(|code| *code == 0x87)
}

#[test]
fn mosquitto_that_denies_a_topic_gets_all_results_when_it_allows_it() {
    let folder = Folder::new("acl");
    let rules = folder.file("rules");
    let allow = |topic: &str| std::fs::write(&rules, format!("topic write {topic}\ntopic read #\n")).unwrap();
    allow("roiflow/#");
    let mut broker = Broker::mosquitto(&folder, &format!("acl_file {rules}\n"));
    broker.start();
    let subscriber: Receiver<(String, Vec<u8>)> = subscribe(broker.port, "roiflow/door");
    let properties = format!("url=mqtt://127.0.0.1:{}/roiflow/{{stream}} spool=\"{}\"", broker.port, folder.file("spool"));
    let broker = Arc::new(broker);
    let (of_probe, path) = (broker.clone(), rules.clone());
    let refuse = move || {
        std::fs::write(&path, "topic write other/#\ntopic read #\n").unwrap();
        of_probe.signal("HUP");
        eventually("the broker denies the topic", || is_denied(of_probe.port));
    };
    play_refused(400, &properties, refuse, |_| {
        allow("roiflow/#");
        broker.signal("HUP");
    });
    let mut received = Received::default();
    received.receive(&subscriber, 400);
    received.check_complete();
}

#[test]
fn redis_without_memory_gets_all_results_in_order_when_it_has_memory() {
    let folder = Folder::new("redis memory");
    let mut broker = Broker::redis(&folder);
    broker.start();
    let port = broker.port.to_string();
    let cli = move |arguments: &[&str]| {
        let output = Command::new("redis-cli").args(["-p", &port, "--raw"]).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let properties = format!("url=redis://127.0.0.1:{} spool=\"{}\"", broker.port, folder.file("spool"));
    let refuse = cli.clone();
    play_refused(
        400,
        &properties,
        move || drop(refuse(&["CONFIG", "SET", "maxmemory", "1"])),
        |_| {
            cli(&["CONFIG", "SET", "maxmemory", "0"]);
        },
    );
    let text = cli(&["XRANGE", "roiflow:door", "-", "+"]);
    let lines: Vec<Value> = text.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().map(frame).eq(0..400), "{:?}", lines.iter().map(frame).collect::<Vec<_>>());
}

#[test]
fn nats_stream_that_is_full_gets_all_results_in_order_when_it_has_space() {
    let folder = Folder::new("full nats");
    let mut broker = Broker::new("nats-server", &["-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", &folder.file("store")]);
    broker.start();
    let settings =
        |limit: &str| format!(r#"{{"name":"results","subjects":["roiflow.*"],"storage":"file","discard":"new","max_msgs":{limit}}}"#);
    let created = NatsClient::connect(broker.port).request("$JS.API.STREAM.CREATE.results", &settings("150"));
    assert!(created["error"].is_null(), "{created}");
    let properties = format!("url=nats://127.0.0.1:{}/roiflow.{{stream}} spool=\"{}\"", broker.port, folder.file("spool"));
    play_refused(
        400,
        &properties,
        || {},
        |pipeline| {
            eventually("the stream is full", || stat(pipeline, "spool-delivered") == 150);
            let updated = NatsClient::connect(broker.port).request("$JS.API.STREAM.UPDATE.results", &settings("-1"));
            assert!(updated["error"].is_null(), "{updated}");
        },
    );
    let mut client = NatsClient::connect(broker.port);
    let mut frames = Vec::new();
    for number in 1..=400 {
        let answer = client.request("$JS.API.STREAM.MSG.GET.results", &format!("{{\"seq\":{number}}}"));
        let data = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, answer["message"]["data"].as_str().unwrap()).unwrap();
        frames.push(frame(&serde_json::from_slice(&data).unwrap()));
    }
    assert!(frames.iter().copied().eq(0..400), "{frames:?}");
}

#[test]
fn webhook_that_denies_access_gets_each_result_once_when_it_allows_it() {
    let folder = Folder::new("denied webhook");
    let webhook = Webhook::new(403);
    let pipeline = stream(300, &format!("url=http://127.0.0.1:{}/ spool=\"{}\"", webhook.port, folder.file("spool")));
    let (passed, at) = channel();
    let (go, allowed) = channel::<()>();
    on_buffers(&pipeline, "sink", "sink", move |n, _| {
        if n == 299 {
            passed.send(()).unwrap();
            allowed.recv_timeout(LIMIT).unwrap();
        }
    });
    let playing = std::thread::spawn(move || (run(&pipeline), pipeline));
    at.recv_timeout(LIMIT).unwrap();
    (0..2).for_each(|_| webhook.refusals.recv_timeout(LIMIT).unwrap());
    webhook.answer_with(200);
    go.send(()).unwrap();
    let (ending, pipeline) = playing.join().unwrap();
    assert_eq!((ending.error, stat(&pipeline, "spool-waiting"), stat(&pipeline, "spool-refused")), (None, 0, 0));
    assert!(ending.warnings[0].contains("accepts no results (the server answers with status 403: no)"), "{:?}", ending.warnings);
    let mut frames = Vec::new();
    while frames.len() < 300 {
        let body = webhook.requests.recv_timeout(LIMIT).unwrap().body;
        frames.extend(
            body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(|line| frame(&serde_json::from_slice(line).unwrap())),
        );
    }
    assert!(frames.into_iter().eq(0..300));
}
