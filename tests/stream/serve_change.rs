//! Changes of running streams of `roiflow serve`: changes without a new pipeline, changes with a new pipeline, and refused changes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cameras::{Camera, Video};
use crate::cli::{Folder, check_fails};
use crate::harness::tiny;
use crate::serve::Served;

/// Time limit of a wait; a longer one counts as a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Adds the pipeline `counting`, which finds a car with a confidence of 0.9 in the middle of each picture, and counts it.
fn counting(folder: &Folder) {
    let text = format!(
        "version = 1\nname = \"counting\"\ndescription = \"Counts.\"\n\
         [parameters.threshold]\ntype = \"number\"\ndefault = -1\n\
         [parameters.inference-interval]\ntype = \"integer\"\ndefault = 1\n\
         [parameters.lines]\ntype = \"string\"\ndefault = \"\"\n\
         [parameters.zones]\ntype = \"string\"\ndefault = \"corner:0,0,0.1,0,0.1,0.1\"\n\
         [pipeline]\ngraph = \"{{source}} ! roidetect name=detect model={} device=CPU threshold={{threshold}} inference-interval={{inference-interval}} \
         ! roitrack ! roianalytics name=count lines={{lines}} zones={{zones}} ! {{json}} ! {{video}}\"\n",
        tiny("ultralytics.onnx")
    );
    std::fs::write(folder.file("counting.toml"), text).unwrap();
}

/// The live results of a stream, from the beginning of the subscription on.
struct Live(Receiver<Value>);

impl Live {
    fn of(server: &Served, stream: &str) -> Self {
        let mut connection = TcpStream::connect(&server.address).unwrap();
        connection.set_read_timeout(Some(LIMIT)).unwrap();
        let head = format!("GET /api/streams/{stream}/results/live HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
        connection.write_all(head.as_bytes()).unwrap();
        let mut lines = BufReader::new(connection).lines();
        assert!(lines.next().unwrap().unwrap().contains("200"));
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                assert!(!line.starts_with("event: dropped"), "this client is fast enough");
                let result = line.strip_prefix("data: ").and_then(|text| serde_json::from_str(text).ok());
                if result.is_some_and(|result| sender.send(result).is_err()) {
                    return;
                }
            }
        });
        Self(receiver)
    }

    /// Returns the results up to the first one with a property.
    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Vec<Value> {
        let (begin, mut all) = (Instant::now(), Vec::new());
        loop {
            let result = self.0.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("no result: {what}"));
            all.push(result);
            if is_so(&all[all.len() - 1]) {
                return all;
            }
            assert!(begin.elapsed() < LIMIT, "{what}: {}", all[all.len() - 1]);
        }
    }
}

fn change(server: &Served, parameters: Value) -> Value {
    let (status, view) = server.json("PATCH", "/api/streams/door", Some(json!({"parameters": parameters})));
    assert_eq!(status, 200, "{view}");
    view
}

fn kinds(server: &Served) -> Vec<(String, String)> {
    let (_, events) = server.json("GET", "/api/events?limit=500", None);
    let text = |event: &Value, key: &str| event[key].as_str().unwrap().to_owned();
    events["events"].as_array().unwrap().iter().map(|event| (text(event, "kind"), text(event, "message"))).collect()
}

#[test]
fn thresholds_interval_and_zones_change_without_a_gap() {
    let folder = Folder::new("change-live");
    counting(&folder);
    let server = Served::start(&folder, &[]);
    let stream = json!({"name": "door", "pipeline": "counting", "input": "test:", "loop": true});
    assert_eq!(server.json("POST", "/api/streams", Some(stream)).0, 201);
    let live = Live::of(&server, "door");
    let has_car = |result: &Value| result["objects"].as_array().is_some_and(|all| !all.is_empty());
    let mut all = live.until("the car is found", has_car);

    change(&server, json!({"threshold": 0.95}));
    all.extend(live.until("the car has a confidence of 0.9 only", |result| !has_car(result)));
    change(&server, json!({"threshold": null}));
    all.extend(live.until("the threshold of the description is back", has_car));

    change(&server, json!({"inference-interval": 3}));
    all.extend(live.until("frames between are skipped", |result| result["inference"]["reason"] == "inference-interval"));
    change(&server, json!({"inference-interval": 1}));

    // The car stands in the middle. It enters a zone that is drawn around it.
    let view = change(&server, json!({"zones": "corner:0,0,0.1,0,0.1,0.1;middle:0.2,0.2,0.8,0.2,0.8,0.9,0.2,0.9"}));
    assert_eq!(view["places"], json!([]), "{view}");
    all.extend(live.until("the car enters the zone", |result| {
        result["events"]
            .as_array()
            .is_some_and(|events| events.iter().any(|event| event["event"] == "zone-entered" && event["place"] == "middle"))
    }));
    let view = server.wait_until("door", |view| view["places"] == json!([{"name": "middle", "in": 1, "out": 0, "inside": 1}]));
    assert!(view["restarts"] == 0, "{view}");
    let (_, metrics) = server.send("GET", "/metrics", None);
    let metrics = String::from_utf8(metrics).unwrap();
    for part in [
        "roiflow_place_objects_total{stream=\"door\",place=\"middle\",direction=\"in\"} 1",
        "roiflow_zone_objects{stream=\"door\",place=\"middle\"} 1",
    ] {
        assert!(metrics.contains(part), "expected `{part}` in\n{metrics}");
    }

    // A zone that is not valid is refused, and the others are counted on.
    for (zones, says) in
        [("middle:0,0,1,1", "three corners"), ("a:0,0,1,0,x", "expected numbers"), ("a:0,0,1,0,1,1;a:0,0,1,0,1,1", "a name of its own")]
    {
        let (status, body) = server.json("PATCH", "/api/streams/door", Some(json!({"parameters": {"zones": zones}})));
        assert!(status == 400 && body["error"]["message"].as_str().unwrap().contains(says), "{zones}: {body}");
    }
    let view = change(&server, json!({"zones": "corner:0,0,0.1,0,0.1,0.1"}));
    assert_eq!(view["places"], json!([]), "the counts of a removed zone are forgotten: {view}");
    all.extend(live.until("a frame later", |_| true));

    // Each frame is there, 33 ms after the one before it, with the next number.
    for pair in all.windows(2) {
        assert_eq!(pair[1]["frame"].as_u64().unwrap(), pair[0]["frame"].as_u64().unwrap() + 1);
        let gap = pair[1]["timestamp"].as_u64().unwrap() - pair[0]["timestamp"].as_u64().unwrap();
        assert!((33_333_333..=33_333_334).contains(&gap), "{} to {}", pair[0], pair[1]);
    }
    let kinds = kinds(&server);
    assert_eq!(kinds.iter().filter(|(kind, _)| kind == "started").count(), 1, "{kinds:?}");
    assert!(kinds.iter().filter(|(kind, _)| kind == "changed").all(|(_, message)| message == "without a restart"), "{kinds:?}");
    // The changes are stored.
    assert_eq!(server.view("door")["parameters"]["zones"], "corner:0,0,0.1,0,0.1,0.1");
    server.kill();
    let server = Served::start(&folder, &[]);
    let view = server.wait_until("door", |view| view["state"] == "running");
    assert_eq!((&view["parameters"]["inference-interval"], &view["parameters"]["threshold"]), (&1.into(), &Value::Null), "{view}");
}

/// An HTTP server that passes on the lines that it receives.
fn receiver() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/results", listener.local_addr().unwrap());
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(client.try_clone().unwrap());
                loop {
                    let (mut length, mut line) = (0, String::new());
                    while reader.read_line(&mut line).unwrap_or(0) > 2 {
                        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                            length = value.trim().parse().unwrap();
                        }
                        line.clear();
                    }
                    let mut body = vec![0; length];
                    if length == 0 || reader.read_exact(&mut body).is_err() {
                        return;
                    }
                    for line in String::from_utf8(body).unwrap().lines() {
                        let _sent = sender.send(serde_json::from_str(line).unwrap());
                    }
                    let _answered = (&client).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
    });
    (url, lines)
}

#[test]
fn camera_stream_gets_a_destination_and_counts_no_restart() {
    let Some(camera) = Camera::start(Video::SMALL) else { return };
    let folder = Folder::new("change-camera");
    counting(&folder);
    let server = Served::start(&folder, &[]);
    let stream = json!({"name": "door", "pipeline": "counting", "input": camera.uri()});
    assert_eq!(server.json("POST", "/api/streams", Some(stream)).0, 201);
    server.wait_until("door", |view| view["frames"].as_u64().unwrap() > 10);
    let live = Live::of(&server, "door");
    let (url, received) = receiver();
    let (status, view) = server.json("PATCH", "/api/streams/door", Some(json!({"publish": [url]})));
    assert_eq!(status, 200, "{view}");
    let first = received.recv_timeout(LIMIT).expect("results arrive at the new destination");
    assert!(first["stream"] == "door" && first["frame"].as_u64().unwrap() > 10, "frame numbers go on: {first}");
    let numbers: Vec<u64> = live
        .until("later frames", |result| result["frame"].as_u64().unwrap() > first["frame"].as_u64().unwrap())
        .iter()
        .map(|result| result["frame"].as_u64().unwrap())
        .collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    let view = server.view("door");
    assert!(view["restarts"] == 0 && view["frames"].as_u64().unwrap() > 10, "{view}");
    // A change of the input is a new source.
    let (status, _) = server.json("PATCH", "/api/streams/door", Some(json!({"input": "test:", "loop": true})));
    assert_eq!(status, 200);
    let kinds = kinds(&server);
    let changes: Vec<&str> = kinds.iter().filter(|(kind, _)| kind == "changed").map(|(_, message)| &**message).collect();
    assert_eq!(changes, ["without a restart", "restarted"], "{kinds:?}");
}

#[test]
fn probe_tells_what_an_input_sends() {
    let folder = Folder::new("probe");
    let clip = folder.file("clip.mp4");
    crate::harness::make_clip(&clip, 60, "mp4mux");
    let server = Served::start(&folder, &[]);
    let probe = |input: &str| server.json("POST", "/api/probe", Some(json!({"input": input})));
    let (status, video) = probe("clip.mp4");
    assert!(status == 200 && video["codec"] == "H.264" && video["width"].as_u64().unwrap() > 0, "{video}");
    assert_eq!(probe("test:").1, json!({"width": 640, "height": 480, "codec": null, "fps": 30.0}));
    std::fs::write(folder.file("text.txt"), "no video").unwrap();
    for (input, status, says) in [
        ("text.txt", 422, "text.txt"),
        ("rtspt://admin:secret77x@127.0.0.1:1/live", 422, "cannot connect to port 1 of 127.0.0.1"),
        ("/etc/passwd", 400, "media folder"),
        ("gopher://x", 400, "schemes"),
    ] {
        let (got, body) = probe(input);
        let message = body["error"]["message"].as_str().unwrap_or_default();
        assert!(got == status && message.contains(says) && !message.contains("secret77x"), "{input}: {got} {body}");
    }
    let Some(camera) = Camera::start(Video::SMALL) else { return };
    let (status, video) = probe(&camera.uri());
    assert!(status == 200 && video["codec"] == "H.264" && video["width"] == 160 && video["height"] == 120, "{video}");
    let fps = video["fps"].as_f64().unwrap();
    assert!((7.0..14.0).contains(&fps), "the camera sends 10 frames per second: {video}");
    let (status, body) = probe(&camera.uri().replace("secret", "wrong"));
    assert!(
        status == 422 && body["error"]["message"].as_str().unwrap().contains("the server refused the user name or the password"),
        "{body}"
    );
}

/// Adds the pipeline `models` with a parameter for each kind of value, and a folder with a complete model and with files that do not fit it.
fn models(folder: &Folder) -> String {
    let models = folder.file("models");
    std::fs::create_dir_all(&models).unwrap();
    let file = |name: &str| format!("{models}/{name}");
    for name in ["rectangle.onnx", "rectangle.toml", "color.onnx", "color.toml"] {
        std::fs::copy(tiny(name), file(name)).unwrap();
    }
    let model = std::fs::read(tiny("rectangle.onnx")).unwrap();
    std::fs::write(file("half.onnx"), &model[..model.len() / 2]).unwrap();
    let description = std::fs::read_to_string(tiny("rectangle.toml")).unwrap();
    std::fs::write(file("half.toml"), &description).unwrap();
    std::fs::write(file("garbage.toml"), "\u{1}garbage").unwrap();
    std::fs::write(file("layout.toml"), description.replace("nhwc", "nchw")).unwrap();
    std::fs::write(file("decoder.toml"), description.replace("ultraface", "yolov8")).unwrap();
    std::fs::write(file("labels.toml"), description.replace("labels = [\"rectangle\"]", "labels-file = \"absent.txt\"")).unwrap();
    std::fs::write(file("labels.txt"), b"\xff\xfe").unwrap();
    std::fs::write(file("many.txt"), "a\nb\nc\n").unwrap();
    let parameters = [
        ("model", "path", "rectangle.onnx"),
        ("description", "string", ""),
        ("labels-file", "string", ""),
        ("device", "string", "CPU"),
        ("config", "string", ""),
        ("tiles", "string", ""),
        ("region", "string", "full-frame"),
        ("policy", "string", "throughput"),
        ("class-thresholds", "string", ""),
        ("font", "string", ""),
    ];
    let mut text =
        "version = 1\nname = \"models\"\ndescription = \"Finds.\"\n[parameters.threshold]\ntype = \"number\"\ndefault = -1\n".to_owned();
    for (name, kind, default) in parameters {
        let default = if name == "model" { file(default) } else { default.to_owned() };
        text += &format!("[parameters.{name}]\ntype = \"{kind}\"\ndefault = \"{default}\"\n");
    }
    text += "[pipeline]\ngraph = \"{source} ! roidetect name=detect model={model} description={description} labels-file={labels-file} \
             device={device} config={config} tiles={tiles} inference-region={region} scheduling-policy={policy} threshold={threshold} \
             class-thresholds={class-thresholds} ! roitrack ! {json} ! roioverlay font={font} ! {video}\"\n";
    std::fs::write(folder.file("models.toml"), text).unwrap();
    models
}

/// Values that the pipeline `models` does not take, with a part of the reason.
fn invalid() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"tiles": "100x100"}), "tiles"),
        (json!({"tiles": "2x2", "region": "roi-list"}), "inference-region"),
        (json!({"device": "CUDA"}), "CUDA"),
        (json!({"config": "nonsense=1"}), "nonsense"),
        (json!({"description": "garbage.toml"}), "garbage.toml"),
        (json!({"description": "layout.toml"}), "layout"),
        (json!({"description": "decoder.toml"}), "decoder.toml"),
        (json!({"description": "labels.toml"}), "absent.txt"),
        (json!({"labels-file": "labels.txt"}), "labels.txt"),
        (json!({"labels-file": "many.txt"}), "labels"),
        (json!({"model": "half.onnx"}), "half.onnx"),
        (json!({"model": "color.onnx"}), "classification"),
        (json!({"threshold": 1.5}), "threshold"),
        (json!({"class-thresholds": "rectangle=7"}), "rectangle"),
        (json!({"class-thresholds": "dog=0.5"}), "dog"),
        (json!({"font": "labels.txt"}), "font"),
        (json!({"policy": "fastest"}), "fastest"),
        (json!({"region": "nowhere"}), "nowhere"),
    ]
}

/// Checks that the numbers of the frames have no gap, and that each frame is 1/30 s after the one before it.
fn check_complete(results: &[Value], is_paced: bool) {
    for pair in results.windows(2) {
        assert_eq!(pair[1]["frame"].as_u64().unwrap(), pair[0]["frame"].as_u64().unwrap() + 1);
        let gap = pair[1]["timestamp"].as_u64().unwrap() - pair[0]["timestamp"].as_u64().unwrap();
        assert!(!is_paced || (33_333_333..=33_333_334).contains(&gap), "{} to {}", pair[0], pair[1]);
    }
}

#[test]
fn invalid_changes_and_streams_are_refused_and_no_frame_is_lost() {
    let folder = Folder::new("change-invalid");
    let models = models(&folder);
    let server = Served::start(&folder, &["--models", &models]);
    let add = |name: &str, input: &str, parameters: Value| {
        let stream = json!({"name": name, "pipeline": "models", "input": input, "loop": true, "parameters": parameters});
        server.json("POST", "/api/streams", Some(stream))
    };
    assert_eq!(add("door", "test:", json!({})).0, 201);
    let live = Live::of(&server, "door");
    let mut all = live.until("a frame", |_| true);
    for (parameters, says) in invalid() {
        let (status, body) = server.json("PATCH", "/api/streams/door", Some(json!({"parameters": parameters})));
        assert!(status == 422 && body["error"]["message"].as_str().unwrap().contains(says), "{parameters}: {status} {body}");
        // A stream with these values does not begin either.
        let (status, body) = add("other", "test:", parameters.clone());
        assert!(status == 422 && body["error"]["message"].as_str().unwrap().contains(says), "{parameters}: {status} {body}");
        all.extend(live.until("a frame after the refused change", |_| true));
    }
    std::fs::write(folder.file("text.mp4"), "no video").unwrap();
    let (status, body) = server.json("PATCH", "/api/streams/door", Some(json!({"input": "text.mp4"})));
    assert!(status == 422 && body["error"]["message"].as_str().unwrap().contains("text.mp4"), "{status} {body}");
    assert_eq!(add("other", "text.mp4", json!({})).0, 422);
    // The command says it, too.
    let url = format!("http://{}", server.address);
    check_fails(&["ctl", "--server", &url, "change", "door", "--set", "tiles=100x100"], 1, &["tiles"]);
    check_fails(
        &["ctl", "--server", &url, "add", "other", "--pipeline", "models", "--input", "test:", "--set", "device=CUDA"],
        1,
        &["CUDA"],
    );

    // A restart would read the model again, which is being copied.
    let (model, part) = (format!("{models}/rectangle.onnx"), format!("{models}/half.onnx"));
    std::fs::copy(&part, &model).unwrap();
    let (status, body) = server.json("POST", "/api/streams/door/restart", None);
    assert!(status == 422 && body["error"]["message"].as_str().unwrap().contains("rectangle.onnx"), "{status} {body}");
    assert_eq!(change(&server, json!({"threshold": 0.75}))["restarts"], 0, "a threshold needs no file");
    let (status, _) = server.json("PATCH", "/api/streams/door", Some(json!({"parameters": {"tiles": "2x2"}})));
    assert_eq!(status, 422);
    let last = all[all.len() - 1]["frame"].as_u64().unwrap();
    all.extend(live.until("later frames", |result| result["frame"].as_u64().unwrap() > last + 30));
    check_complete(&all, true);

    // Nothing else has changed.
    let view = server.view("door");
    assert!(view["state"] == "running" && view["restarts"] == 0 && view["parameters"] == json!({"threshold": 0.75}), "{view}");
    let kinds = kinds(&server);
    assert!(kinds.iter().all(|(kind, _)| ["added", "started", "changed", "warning"].contains(&&**kind)), "{kinds:?}");
    assert_eq!(server.json("GET", "/api/streams", None).1["streams"].as_array().unwrap().len(), 1);

    // A valid change restarts the pattern. What needs the camera is known later.
    std::fs::copy(tiny("rectangle.onnx"), &model).unwrap();
    change(&server, json!({"tiles": "2x2"}));
    server.wait_until("door", |view| view["state"] == "running" && view["parameters"]["tiles"] == "2x2");
    assert_eq!(add("camera", "rtspt://127.0.0.1:1/live", json!({})).0, 201);
}

#[test]
fn invalid_changes_of_a_camera_stream_are_refused_and_no_frame_is_lost() {
    let Some(camera) = Camera::start(Video::SMALL) else { return };
    let folder = Folder::new("change-invalid-camera");
    let models = models(&folder);
    let server = Served::start(&folder, &["--models", &models]);
    let stream = json!({"name": "door", "pipeline": "models", "input": camera.uri()});
    assert_eq!(server.json("POST", "/api/streams", Some(stream)).0, 201);
    server.wait_until("door", |view| view["frames"].as_u64().unwrap() > 5);
    let live = Live::of(&server, "door");
    let mut all = live.until("a frame", |_| true);
    for (parameters, says) in invalid() {
        let (status, body) = server.json("PATCH", "/api/streams/door", Some(json!({"parameters": parameters})));
        assert!(status == 422 && body["error"]["message"].as_str().unwrap().contains(says), "{parameters}: {status} {body}");
    }
    all.extend(live.until("a frame", |_| true));
    // An inference server that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = format!(
        "version = 1\nname = \"remote\"\ndescription = \"Asks.\"\n[pipeline]\ngraph = \"{{source}} ! roidetect model=grpc://{}/m device=REMOTE ! \
         {{json}} ! {{video}}\"\n",
        silent.local_addr().unwrap()
    );
    std::fs::write(folder.file("remote.toml"), remote).unwrap();
    let (changed, result) = channel();
    let address = server.address.clone();
    std::thread::spawn(move || {
        let (status, body) =
            crate::serve::send(&address, "PATCH", "/api/streams/door", Some(json!({"pipeline": "remote", "parameters": {}})));
        changed.send((status, String::from_utf8(body).unwrap())).unwrap();
    });
    // Other requests are answered meanwhile, also changes of other streams.
    let other = json!({"name": "other", "pipeline": "models", "input": "test:", "loop": true});
    assert_eq!(server.json("POST", "/api/streams", Some(other)).0, 201);
    let (status, _) = server.json("PATCH", "/api/streams/other", Some(json!({"parameters": {"threshold": 0.75}})));
    assert_eq!(status, 200);
    let (status, body) = result.recv_timeout(LIMIT).expect("the change ends");
    assert!(status == 503 && body.contains("error"), "{status} {body}");
    all.extend(live.until("later frames", |result| result["frame"].as_u64().unwrap() > all[all.len() - 1]["frame"].as_u64().unwrap() + 10));
    check_complete(&all, false);
    let view = server.view("door");
    assert!(view["state"] == "running" && view["restarts"] == 0 && view["pipeline"] == "models", "{view}");
    let changes = kinds(&server).into_iter().filter(|(kind, _)| kind == "source-lost" || kind == "failed").count();
    assert_eq!(changes, 0);
}
