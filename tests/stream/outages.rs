//! Results reach brokers at least once and in order, even if the broker or the run is killed. With a spool, the stream never waits for a
//! broker.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use gst::prelude::*;
use gstreamer as gst;
use serde_json::Value;

use crate::brokers::{Broker, LIMIT, NatsClient, Proxy, Webhook, certificates, free_port, subscribe};
use crate::harness::{Ending, Folder, on_buffers, pipeline, run, tiny};

/// Returns a stream of small frames to a destination.
pub fn stream(n_frames: u64, properties: &str) -> gst::Pipeline {
    pipeline(&format!(
        "videotestsrc num-buffers={n_frames} ! video/x-raw,format=GRAY8,width=32,height=32,framerate=30/1 ! \
         roipublish name=publish stream-id=door {properties} ! fakesink name=sink"
    ))
}

pub fn stat(pipeline: &gst::Pipeline, field: &str) -> u64 {
    pipeline.by_name("publish").unwrap().property::<gst::Structure>("stats").get(field).unwrap()
}

/// Messages without repetitions, and the number of repetitions.
#[derive(Default)]
pub struct Received {
    /// Frame numbers by epoch, in the order of arrival.
    pub epochs: BTreeMap<u64, Vec<u64>>,
    gaps: Vec<Value>,
    n_repeated: usize,
    pub ids: std::collections::HashSet<String>,
}

impl Received {
    fn add(&mut self, payload: &[u8]) {
        let line: Value = serde_json::from_slice(payload).unwrap();
        let id = line["message_id"].as_str().unwrap().to_owned();
        if !self.ids.insert(id.clone()) {
            self.n_repeated += 1;
            return;
        }
        if line["event"] == "gap" {
            return self.gaps.push(line);
        }
        let parts: Vec<&str> = id.split('/').collect();
        assert_eq!((parts[0], parts[2]), (line["stream"].as_str().unwrap(), &*line["frame"].to_string()));
        self.epochs.entry(parts[1].parse().unwrap()).or_default().push(line["frame"].as_u64().unwrap());
    }

    /// Receives until `n` different messages have arrived.
    pub fn receive(&mut self, from: &Receiver<(String, Vec<u8>)>, n: usize) {
        while self.ids.len() < n {
            let (topic, payload) = from.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("{} of {n} messages arrived", self.ids.len()));
            assert_eq!(topic, "roiflow/door");
            self.add(&payload);
        }
    }

    /// Receives until the broker ends the connection.
    pub fn receive_rest(&mut self, from: &Receiver<(String, Vec<u8>)>) {
        while let Ok((_, payload)) = from.recv_timeout(LIMIT) {
            self.add(&payload);
        }
    }

    /// Asserts that each epoch has all frames from the first on, in order.
    pub fn check_complete(&self) {
        for (epoch, frames) in &self.epochs {
            assert!(frames.iter().copied().eq(0..frames.len() as u64), "epoch {epoch}: {frames:?}");
        }
        assert_eq!(self.gaps, Vec::<Value>::new());
    }
}

#[test]
fn broker_killed_in_mid_stream_loses_nothing() {
    let folder = Folder::new("killed broker");
    let mut broker = Broker::mosquitto(&folder, "");
    broker.start();
    let proxy = Proxy::new(broker.port, true);
    proxy.open();
    let mut subscriber = subscribe(broker.port, "roiflow/#");
    let spool = folder.file("spool");
    let pipeline = stream(3000, &format!("url=mqtt://127.0.0.1:{}/roiflow/{{stream}} spool=\"{spool}\"", proxy.port));
    let (at, killed) = std::sync::mpsc::channel();
    let (go, resumed) = std::sync::mpsc::channel::<()>();
    on_buffers(&pipeline, "publish", "src", move |n, _| {
        if n == 700 || n == 1400 {
            at.send(n).unwrap();
            resumed.recv_timeout(LIMIT).unwrap();
        }
    });
    let playing = std::thread::spawn(move || (run(&pipeline), pipeline));
    let mut received = Received::default();
    for _ in 0..2 {
        killed.recv_timeout(LIMIT).unwrap();
        proxy.close();
        broker.kill();
        go.send(()).unwrap();
        received.receive_rest(&subscriber);
        broker.start();
        subscriber = subscribe(broker.port, "roiflow/#");
        proxy.open();
    }
    received.receive(&subscriber, 3000);
    let (ending, pipeline) = playing.join().unwrap();
    assert_eq!(ending.error, None);
    received.check_complete();
    assert_eq!((received.epochs.len(), stat(&pipeline, "lines"), stat(&pipeline, "spool-waiting")), (1, 3000, 0));
    assert!(ending.warnings.iter().all(|warning| warning.contains("cannot reach mqtt://127.0.0.1")), "{:?}", ending.warnings);
}

#[test]
fn stream_passes_while_broker_is_absent_and_results_follow() {
    let folder = Folder::new("absent broker");
    let mut broker = Broker::mosquitto(&folder, "");
    let proxy = Proxy::new(broker.port, true);
    let spool = folder.file("spool");
    let pipeline = stream(2000, &format!("url=mqtt://127.0.0.1:{}/roiflow/{{stream}} spool=\"{spool}\"", proxy.port));
    // The last frame leaves `roipublish` while the broker is absent. The sink holds this frame until the broker runs.
    let (passed, at) = std::sync::mpsc::channel();
    let (go, started) = std::sync::mpsc::channel::<()>();
    on_buffers(&pipeline, "sink", "sink", move |n, _| {
        if n == 1999 {
            passed.send(()).unwrap();
            started.recv_timeout(LIMIT).unwrap();
        }
    });
    let playing = std::thread::spawn(move || (run(&pipeline), pipeline));
    at.recv_timeout(LIMIT).unwrap();
    broker.start();
    let subscriber = subscribe(broker.port, "roiflow/#");
    proxy.open();
    let mut received = Received::default();
    received.receive(&subscriber, 1999);
    go.send(()).unwrap();
    received.receive(&subscriber, 2000);
    let (ending, pipeline) = playing.join().unwrap();
    let Ending { error: None, warnings } = ending else { panic!("{ending:?}") };
    assert!(warnings.len() == 1 && warnings[0].contains("attempts continue; results are stored in"), "{warnings:?}");
    received.check_complete();
    assert_eq!((stat(&pipeline, "spool-delivered"), stat(&pipeline, "dropped")), (2000, 0));
}

#[test]
fn slow_broker_does_not_hold_up_the_stream() {
    let folder = Folder::new("slow broker");
    let mut broker = Broker::mosquitto(&folder, "");
    broker.start();
    // The proxy accepts the connection and passes nothing on, so the broker never answers the packets of the publisher.
    let proxy = std::sync::Arc::new(Proxy::new(broker.port, false));
    let subscriber = subscribe(broker.port, "roiflow/#");
    let spool = folder.file("spool");
    let pipeline = stream(3000, &format!("url=mqtt://127.0.0.1:{}/roiflow/{{stream}} spool=\"{spool}\"", proxy.port));
    let gate = proxy.clone();
    on_buffers(&pipeline, "sink", "sink", move |n, _| {
        if n == 2999 {
            gate.open();
        }
    });
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let mut received = Received::default();
    received.receive(&subscriber, 3000);
    received.check_complete();
}

#[test]
fn full_spool_delivers_a_gap_record_in_place_of_what_it_dropped() {
    let folder = Folder::new("full spool");
    let mut broker = Broker::mosquitto(&folder, "");
    let spool = folder.file("spool");
    let properties = format!("url=mqtt://127.0.0.1:{}/roiflow/{{stream}} spool=\"{spool}\"", broker.port);
    let pipeline = stream(1000, &format!("{properties} spool-max-bytes=100000"));
    let ending = run(&pipeline);
    assert_eq!(ending.error, None);
    let said = |text: &str| ending.warnings.iter().filter(|warning| warning.contains(text)).count();
    let texts = ["cannot reach", "(the spool is full); a gap record replaces them", "results wait in the spool"];
    assert_eq!((texts.map(said), ending.warnings.len()), ([1, 1, 1], 3), "{:?}", ending.warnings);
    let n_waiting = stat(&pipeline, "spool-waiting");
    assert_eq!(n_waiting + stat(&pipeline, "spool-dropped"), 1000);
    assert!(stat(&pipeline, "spool-bytes") <= 100_000 && n_waiting > 100);
    broker.start();
    let subscriber = subscribe(broker.port, "roiflow/#");
    // A later run delivers the messages that are left in the spool.
    assert_eq!(run(&stream(1, &properties)).error, None);
    let mut received = Received::default();
    received.receive(&subscriber, n_waiting as usize + 2);
    let number = |name: &str| received.gaps[0][name].as_u64().unwrap();
    let (from, to, n_dropped) = (number("from"), number("to"), number("dropped"));
    assert_eq!((received.gaps.len(), from, to + 1, n_dropped + n_waiting), (1, 0, n_dropped, 1000));
    let epochs: Vec<_> = received.epochs.into_values().collect();
    assert_eq!(epochs, [(to + 1..1000).collect::<Vec<_>>(), vec![0]]);
}

#[test]
fn nothing_is_lost_while_the_folder_of_the_spool_is_away() {
    let folder = Folder::new("moved spool");
    let mut broker = Broker::mosquitto(&folder, "");
    let (spool, elsewhere) = (folder.file("spool"), folder.file("elsewhere"));
    let properties = format!("url=mqtt://127.0.0.1:{}/roiflow/{{stream}} spool=\"{spool}\"", broker.port);
    let pipeline = stream(3000, &format!("{properties} spool-max-bytes=4000000"));
    // The frames 300 to 1999 need more space than the open segment of the spool has left.
    let (paths, of_probe) = ((spool.clone(), elsewhere.clone()), pipeline.downgrade());
    on_buffers(&pipeline, "publish", "src", move |n, _| match n {
        300 => std::fs::rename(&paths.0, &paths.1).unwrap(),
        2000 => {
            let pipeline = of_probe.upgrade().unwrap();
            crate::harness::eventually("the results wait", || stat(&pipeline, "spool-waiting") >= 2000);
            std::fs::rename(&paths.1, &paths.0).unwrap();
        }
        _ => {}
    });
    let ending = run(&pipeline);
    assert_eq!(ending.error, None);
    let said = |text: &str| ending.warnings.iter().filter(|warning| warning.contains(text)).count();
    assert_eq!(said("No such file or directory (os error 2); results are kept in memory"), 1, "{:?}", ending.warnings);
    assert_eq!((stat(&pipeline, "spool-waiting"), stat(&pipeline, "spool-dropped"), stat(&pipeline, "spool-refused")), (3000, 0, 0));
    broker.start();
    let subscriber = subscribe(broker.port, "roiflow/#");
    assert_eq!(run(&stream(1, &properties)).error, None);
    let mut received = Received::default();
    received.receive(&subscriber, 3001);
    received.check_complete();
}

#[test]
fn file_in_parts_loses_nothing_while_its_folder_is_away() {
    let folder = Folder::new("moved file");
    let (here, elsewhere) = (folder.0.join("here"), folder.0.join("elsewhere"));
    std::fs::create_dir(&here).unwrap();
    let file = here.join("o.jsonl");
    let url = format!("file://{}?max-bytes=50k", file.to_str().unwrap().replace(' ', "%20"));
    let pipeline = stream(2000, &format!("url=\"{url}\""));
    let paths = (here.clone(), elsewhere);
    on_buffers(&pipeline, "publish", "src", move |n, _| match n {
        300 => std::fs::rename(&paths.0, &paths.1).unwrap(),
        1500 => std::fs::rename(&paths.1, &paths.0).unwrap(),
        _ => {}
    });
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings), (None, vec![]));
    let mut parts: Vec<_> = std::fs::read_dir(&here).unwrap().map(|entry| entry.unwrap().path()).collect();
    parts.sort();
    let text: String = parts.iter().map(|part| std::fs::read_to_string(part).unwrap()).collect();
    let frames: Vec<u64> = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["frame"].as_u64().unwrap()).collect();
    assert!(parts.len() > 1 && frames.iter().copied().eq(0..2000), "{} parts, {} lines", parts.len(), frames.len());
}

#[test]
fn killed_process_delivers_after_its_next_start() {
    let folder = Folder::new("killed process");
    let mut broker = Broker::mosquitto(&folder, "");
    broker.start();
    let proxy = Proxy::new(broker.port, true);
    proxy.open();
    let subscriber = subscribe(broker.port, "roiflow/#");
    let url = format!("mqtt://127.0.0.1:{}/roiflow/{{stream}}", proxy.port);
    let start = |n_frames: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roiflow"));
        command.args(["run", "--classify", &tiny("brightness.onnx"), "--device", "CPU", "--input", n_frames, "--name", "door"]);
        command.args(["--publish", &url, "--spool", &folder.file("spool")]).stdin(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let mut received = Received::default();
    // The process is killed twice: while it delivers messages, and while it cannot reach the broker.
    for is_reachable in [true, false] {
        let n_before = received.ids.len();
        let mut process = start("test:1000000");
        received.receive(&subscriber, n_before + 300);
        if !is_reachable {
            proxy.close();
            let stored = || std::fs::read_dir(folder.file("spool")).unwrap().flatten().next().map(|entry| segment_bytes(&entry.path()));
            let before = stored();
            crate::harness::eventually("further results are stored", || stored() > before.map(|n| n + 50_000));
        }
        process.kill().unwrap();
        process.wait().unwrap();
        proxy.open();
    }
    assert!(start("test:3").wait().unwrap().success());
    broker.kill();
    received.receive_rest(&subscriber);
    received.check_complete();
    let numbers: Vec<usize> = received.epochs.values().map(Vec::len).collect();
    // The second process first delivers what the first one has stored, so fewer than 300 results can be its own. It has stored 50,000 bytes.
    assert!(numbers.len() == 3 && numbers[0] >= 300 && numbers[1] >= 50 && numbers[2] == 3, "{numbers:?}");
}

/// Returns the total size of the segments of a spool.
fn segment_bytes(folder: &std::path::Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

#[test]
fn broker_without_spool_never_blocks_the_stream() {
    let pipeline = stream(9000, &format!("url=mqtt://127.0.0.1:{}/x", free_port()));
    let ending = run(&pipeline);
    assert_eq!(ending.error, None);
    assert!(ending.warnings[0].contains("results wait in memory"), "{:?}", ending.warnings);
    assert!(stat(&pipeline, "dropped") > 0);
    assert_eq!(stat(&pipeline, "dropped") + stat(&pipeline, "errors"), 9000);
}

/// Plays a stream on a thread of its own. At frame 1000, the stream waits until `fail` has returned.
fn play_with_failure(pipeline: gst::Pipeline, fail: impl FnOnce()) -> JoinHandle<(Ending, gst::Pipeline)> {
    let (at, arrived) = std::sync::mpsc::channel();
    let (go, resumed) = std::sync::mpsc::channel::<()>();
    on_buffers(&pipeline, "publish", "src", move |n, _| {
        if n == 1000 {
            at.send(n).unwrap();
            resumed.recv_timeout(LIMIT).unwrap();
        }
    });
    let playing = std::thread::spawn(move || (run(&pipeline), pipeline));
    arrived.recv_timeout(LIMIT).unwrap();
    fail();
    go.send(()).unwrap();
    playing
}

#[test]
fn redis_killed_in_mid_stream_loses_nothing() {
    let folder = Folder::new("killed redis");
    let mut broker = Broker::redis(&folder);
    broker.start();
    let spool = folder.file("spool");
    let pipeline = stream(3000, &format!("url=redis://127.0.0.1:{} spool=\"{spool}\"", broker.port));
    let playing = play_with_failure(pipeline, || broker.kill());
    broker.start();
    let (ending, pipeline) = playing.join().unwrap();
    assert_eq!(ending.error, None);
    if stat(&pipeline, "spool-waiting") > 0 {
        // If the first stream ended during the outage, messages wait in the spool. This second stream delivers them.
        assert_eq!(run(&stream(1, &format!("url=redis://127.0.0.1:{} spool=\"{spool}\"", broker.port))).error, None);
    }
    let output = Command::new("redis-cli").args(["-p", &broker.port.to_string(), "--raw", "XRANGE", "roiflow:door", "-", "+"]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let mut received = Received::default();
    text.lines().filter(|line| line.starts_with('{')).for_each(|line| received.add(line.as_bytes()));
    received.check_complete();
    assert_eq!(received.epochs.values().next().unwrap().len(), 3000);
}

#[test]
fn rejected_password_is_an_error_at_the_start_and_never_shown() {
    let folder = Folder::new("password");
    let mut broker = Broker::mosquitto(&folder, "allow_anonymous false\n");
    broker.start();
    let pipeline = stream(100_000, &format!("url=mqtt://me:hunter22@127.0.0.1:{}/x", broker.port));
    let error = run(&pipeline).error.unwrap();
    assert!(error.contains("the broker refuses the connection: the user is not authorized"), "{error}");
    let url: String = pipeline.by_name("publish").unwrap().property("url");
    assert!(!error.contains("hunter22") && url.starts_with("mqtt://***@127.0.0.1"), "{error} {url}");
}

#[test]
fn malformed_destinations_are_errors_before_the_start() {
    for (properties, part) in [
        ("url=mqtt://host/a/#", "expected a topic name without wildcards"),
        ("url=mqtt://host/a?qos=2", "unknown option `qos`: expected one of user, password-file, client-id"),
        ("url=file://x/y", "expected file:///PATH with an absolute path"),
        ("url=file:///tmp/y?gzip=true", "options keep and gzip: expected max-bytes or max-age as well, got neither"),
        ("url=file:///tmp/y?max-bytes=0", "options max-bytes and max-age: expected more than 0"),
        ("url=file:///tmp/y?maxbytes=9", "unknown option `maxbytes`: expected one of max-bytes, max-age, keep, gzip"),
        ("url=carrier-pigeon://host", "unknown scheme `carrier-pigeon`: expected a file"),
        ("url=mqtt://u:${ROIFLOW_NO_SUCH}@host", "environment variable ROIFLOW_NO_SUCH"),
        ("address=/tmp/x spool=/tmp/spool", "spool: expected the url of a server, got the file /tmp/x"),
        ("url=mqtt://host spool=/dev/null/x", "cannot open the spool /dev/null/x"),
        ("url=mqtt://host spool=/tmp/x spool-max-bytes=1", "expected a spool-max-bytes of at least 65536, got 1"),
    ] {
        let error = run(&stream(1, properties)).error.unwrap_or_default();
        assert!(error.contains(part), "{properties}: {error}");
    }
}

#[test]
fn nats_killed_in_mid_stream_stores_each_result_once() {
    let folder = Folder::new("killed nats");
    let mut broker = Broker::new("nats-server", &["-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", &folder.file("store")]);
    broker.start();
    let spool = folder.file("spool");
    let properties = format!("url=nats://127.0.0.1:{}/roiflow.{{stream}}?create=results spool=\"{spool}\"", broker.port);
    let pipeline = stream(3000, &properties);
    let playing = play_with_failure(pipeline, || broker.kill());
    broker.start();
    let (ending, pipeline) = playing.join().unwrap();
    assert_eq!(ending.error, None);
    assert_eq!(stat(&pipeline, "spool-waiting"), 0, "{:?}", ending.warnings);
    let mut client = NatsClient::connect(broker.port);
    let info = client.request("$JS.API.STREAM.INFO.results", "");
    assert_eq!(info["state"]["messages"], 3000, "{info}");
    let settings = r#"{"deliver_subject":"out","deliver_policy":"all","ack_policy":"none","replay_policy":"instant"}"#;
    let consumer = format!(r#"{{"stream_name":"results","config":{settings}}}"#);
    let created = client.request("$JS.API.CONSUMER.CREATE.results", &consumer);
    let mut received = Received::default();
    if created["error"].is_null() && created["message_id"].is_string() {
        received.add(created.to_string().as_bytes());
    }
    while received.ids.len() < 3000 {
        let payload = client.next();
        if !payload.is_empty() && !payload.starts_with(b"{\"type\"") {
            received.add(&payload);
        }
    }
    received.check_complete();
    assert_eq!(received.n_repeated, 0);
}

#[test]
fn results_go_to_the_next_nats_server_when_one_stops() {
    let folder = Folder::new("two nats servers");
    let mut brokers =
        ["a", "b"].map(|name| Broker::new("nats-server", &["-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", &folder.file(name)]));
    brokers.iter_mut().for_each(Broker::start);
    let (servers, spool) = (format!("127.0.0.1:{},127.0.0.1:{}", brokers[0].port, brokers[1].port), folder.file("spool"));
    let pipeline = stream(3000, &format!("url=\"nats://{servers}/roiflow.{{stream}}?create=results\" spool=\"{spool}\""));
    let playing = play_with_failure(pipeline, || brokers[0].kill());
    let (ending, pipeline) = playing.join().unwrap();
    assert_eq!(ending.error, None);
    assert_eq!(stat(&pipeline, "spool-waiting"), 0, "{:?}", ending.warnings);
    brokers[0].start();
    let stored = |broker: &Broker| {
        NatsClient::connect(broker.port).request("$JS.API.STREAM.INFO.results", "")["state"]["messages"].as_u64().unwrap_or(0)
    };
    // Results that the first server has stored without that its acknowledgment arrived are on both.
    assert!(stored(&brokers[1]) >= 2000 && stored(&brokers[0]) + stored(&brokers[1]) >= 3000);
}

#[test]
fn nats_without_a_stream_is_an_outage_with_a_remedy() {
    let folder = Folder::new("no stream");
    let mut broker = Broker::new("nats-server", &["-a", "127.0.0.1", "-p", "{port}"]);
    broker.start();
    let pipeline = stream(10, &format!("url=nats://127.0.0.1:{}/x spool=\"{}\"", broker.port, folder.file("spool")));
    let ending = run(&pipeline);
    assert_eq!((ending.error, stat(&pipeline, "spool-waiting")), (None, 10));
    assert!(ending.warnings[0].contains("no stream stores the subject: create one, or add ?create=NAME"), "{:?}", ending.warnings);
}

#[test]
fn webhook_gets_signed_batches_after_its_outage() {
    let folder = Folder::new("webhook");
    let webhook = Webhook::new(503);
    folder.write("secret", "s3cret\n");
    let properties = format!(
        "url=\"http://me:word@127.0.0.1:{}/hook?a=b&x-secret-file={}\" spool=\"{}\"",
        webhook.port,
        folder.file("secret").replace(' ', "%20"),
        folder.file("spool")
    );
    let pipeline = stream(1000, &properties);
    let (passed, at) = std::sync::mpsc::channel();
    let (go, started) = std::sync::mpsc::channel::<()>();
    on_buffers(&pipeline, "sink", "sink", move |n, _| {
        if n == 999 {
            passed.send(()).unwrap();
            started.recv_timeout(LIMIT).unwrap();
        }
    });
    let playing = std::thread::spawn(move || run(&pipeline));
    at.recv_timeout(LIMIT).unwrap();
    webhook.refusals.recv_timeout(LIMIT).unwrap();
    webhook.answer_with(200);
    go.send(()).unwrap();
    let ending = playing.join().unwrap();
    let Ending { error: None, warnings } = ending else { panic!("{ending:?}") };
    assert!(warnings.len() == 1 && warnings[0].contains("the server answers with status 503: no"), "{warnings:?}");
    let mut received = Received::default();
    while received.ids.len() < 1000 {
        let request = webhook.requests.recv_timeout(LIMIT).unwrap();
        assert!(request.headers.starts_with("post /hook?a=b http/1.1\r\n"), "{}", request.headers);
        assert!(request.headers.contains("authorization: basic bwu6d29yza==\r\n"), "{}", request.headers);
        let path = folder.write("body", &request.body);
        let script = "import hmac,sys; print(hmac.new(b's3cret', open(sys.argv[1],'rb').read(), 'sha256').hexdigest())";
        let expected = Command::new("python3").args(["-c", script, &path]).output().unwrap().stdout;
        let expected = format!("x-roiflow-signature-256: sha256={}", String::from_utf8(expected).unwrap().trim());
        assert!(request.headers.contains(&expected), "{expected}: {}", request.headers);
        request.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).for_each(|line| received.add(line));
    }
    received.check_complete();
}

#[test]
fn webhook_that_refuses_the_content_does_not_stop_later_results() {
    let folder = Folder::new("refusing webhook");
    let webhook = Webhook::new(422);
    let url = format!("url=http://127.0.0.1:{}/ spool=\"{}\"", webhook.port, folder.file("spool"));
    let pipeline = stream(20, &url);
    let ending = run(&pipeline);
    assert_eq!((ending.error, stat(&pipeline, "spool-waiting"), stat(&pipeline, "spool-dropped")), (None, 0, 20));
    assert!(ending.warnings.len() == 1 && ending.warnings[0].contains("does not accept a result"), "{:?}", ending.warnings);
    webhook.answer_with(200);
    assert_eq!(run(&stream(2, &format!("{url} format=json-lines"))).error, None);
    let body = webhook.requests.recv_timeout(LIMIT).unwrap().body;
    assert!(!body.is_empty());
}

#[test]
fn tls_needs_the_right_certificates() {
    let folder = Folder::new("tls");
    let (mut broker, options) = Broker::mosquitto_with_tls(&folder);
    broker.start();
    let url = |options: &str| format!("mqtts://127.0.0.1:{}/roiflow/{{stream}}?{options}", broker.port);
    let pipeline = stream(100, &format!("url=\"{}\"", url(&options)));
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings, stat(&pipeline, "lines")), (None, vec![], 100));
    // Without the option `ca`, the connection fails, because the system does not trust the certificate authority of the test.
    let pipeline = stream(1, &format!("url=\"{}\" spool=\"{}\"", url("client-id=a"), folder.file("spool")));
    let warnings = run(&pipeline).warnings;
    assert!(warnings[0].contains("UnknownIssuer") && stat(&pipeline, "spool-waiting") == 1, "{warnings:?}");
    // A wrong file is a mistake of the settings, not an outage.
    let missing = stream(1, &format!("url=\"{}\" spool=\"{}\"", url("ca=/no/such.pem"), folder.file("spool-2")));
    let error = run(&missing).error.unwrap();
    assert!(error.contains("cannot read the file /no/such.pem: No such file"), "{error}");
}

#[test]
fn https_webhook_is_verified() {
    let folder = Folder::new("https");
    let options = certificates(&folder.0).replace("ca=", "x-ca=").replace("&cert=", "&x-cert=").replace("&key=", "&x-key=");
    // Answers each request with the status 200, over TLS.
    let script = "import http.server, ssl, sys\n\
        class Handler(http.server.BaseHTTPRequestHandler):\n    \
            protocol_version = 'HTTP/1.1'\n    \
            def do_POST(self):\n        \
                self.rfile.read(int(self.headers['content-length'])); self.send_response(200)\n        \
                self.send_header('content-length', '0'); self.end_headers()\n    \
            def log_message(self, *arguments): pass\n\
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(sys.argv[2], sys.argv[3])\n\
        context.load_verify_locations(sys.argv[4]); context.verify_mode = ssl.CERT_REQUIRED\n\
        server = http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler)\n\
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False); server.serve_forever()";
    let files = ["cert.pem", "key.pem", "ca.pem"].map(|name| folder.file(name));
    let mut server = Broker::new("python3", &["-c", script, "{port}", &files[0], &files[1], &files[2]]);
    server.start();
    let url = |options: &str| format!("url=\"https://127.0.0.1:{}/?{options}\"", server.port);
    let pipeline = stream(100, &url(&options));
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings, stat(&pipeline, "lines")), (None, vec![], 100));
    let pipeline = stream(1, &format!("{} spool=\"{}\"", url(""), folder.file("spool")));
    let warnings = run(&pipeline).warnings;
    assert!(warnings[0].contains("UnknownIssuer") && stat(&pipeline, "spool-waiting") == 1, "{warnings:?}");
}

#[test]
fn last_will_tells_that_the_process_is_gone() {
    let folder = Folder::new("will");
    let mut broker = Broker::mosquitto(&folder, "");
    broker.start();
    let subscriber = subscribe(broker.port, "state");
    let url = format!("mqtt://127.0.0.1:{}/x?status-topic=state", broker.port);
    let start = |input: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roiflow"));
        command.args(["run", "--classify", &tiny("brightness.onnx"), "--device", "CPU", "--input", input, "--publish", &url]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let status = || String::from_utf8(subscriber.recv_timeout(LIMIT).unwrap().1).unwrap();
    let mut killed = start("test:1000000");
    assert_eq!(status(), "online");
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(status(), "offline");
    assert!(start("test:2").wait().unwrap().success());
    assert_eq!([status(), status()], ["online", "offline"]);
}

#[test]
fn command_fails_if_a_server_without_spool_gets_nothing_and_hides_the_password() {
    let url = format!("mqtt://me:hunter22@127.0.0.1:{}/roiflow/{{stream}}", free_port());
    let arguments = ["run", "--classify", &tiny("brightness.onnx"), "--device", "CPU", "--input", "test:5", "--publish", &url];
    let output = crate::cli::roiflow(&arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in
        ["roiflow/{stream} (Connection refused", "add a spool", "5 lines of results could not be written to the destinations of --publish"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("hunter22"), "{text}");
}

#[test]
fn file_is_split_into_compressed_parts() {
    let folder = Folder::new("rotated");
    let path = folder.file("results.jsonl").replace(' ', "%20");
    let pipeline = stream(2000, &format!("url=file://{path}?max-bytes=100K&gzip=true"));
    let ending = run(&pipeline);
    assert_eq!((ending.error, ending.warnings, stat(&pipeline, "lines")), (None, vec![], 2000));
    let output = Command::new("sh").args(["-c", "zcat results.*.gz; cat results.jsonl"]).current_dir(&folder.0).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let frame = |line: &str| serde_json::from_str::<Value>(line).unwrap()["frame"].as_u64().unwrap();
    assert!(text.lines().map(frame).eq(0..2000));
    let n_parts = std::fs::read_dir(&folder.0).unwrap().count();
    assert!((4..10).contains(&n_parts), "{n_parts}");
}

#[test]
fn streams_of_a_process_share_the_spool_and_report_an_outage_once() {
    let folder = Folder::new("shared spool");
    let url = format!("mqtt://127.0.0.1:{}/roiflow/{{stream}}", free_port());
    let mut arguments = vec!["run", "--device", "CPU", "--publish", &url, "--quiet"];
    let (classifier, spool) = (tiny("brightness.onnx"), folder.file("spool"));
    arguments.extend(["--classify", &classifier, "--spool", &spool]);
    for name in ["a", "b", "c"] {
        arguments.extend(["--input", "test:20", "--name", name]);
    }
    let output = crate::cli::roiflow(&arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert_eq!(["cannot reach", "results wait in the spool"].map(|part| text.matches(part).count()), [1, 1], "{text}");
    // A second process that uses the spool gets an error that names the remedy. The test takes the lock of the spool, like a first process.
    let held = std::fs::read_dir(&spool).unwrap().flatten().next().unwrap().path().join("lock");
    let lock = std::fs::File::open(held).unwrap();
    lock.try_lock().unwrap();
    let output = crate::cli::roiflow(&arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("another process uses this spool folder; end that process, or set `spool`"),
        "{text}"
    );
}
