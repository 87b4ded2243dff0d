//! `roiflow serve`: models that clients upload, and results that wait for a destination.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::cli::{Folder, roiflow};
use crate::serve::Served;

/// Uploads a file. Returns status and answer.
pub fn upload(server: &Served, name: &str, content: &[u8]) -> (u16, Value) {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = format!("POST /api/models?name={name} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", server.address);
    let kind = format!("Content-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n", content.len());
    stream.write_all(format!("{head}{kind}").as_bytes()).unwrap();
    // The server may answer before it has read a body that it refuses.
    let _sent = stream.write_all(content);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn uploaded_model_is_inspected_and_then_runs_in_a_stream() {
    let folder = Folder::new("serve-models");
    let models = folder.file("models");
    std::fs::create_dir(&models).unwrap();
    let settings = folder.file("server.toml");
    std::fs::write(&settings, "models = \"models\"\nupload-models = true\n").unwrap();
    let tiny = |name: &str| std::fs::read(crate::harness::tiny(name)).unwrap();

    let server = Served::start(&folder, &["--config", &settings]);
    assert_eq!(upload(&server, "rectangle.toml", &tiny("rectangle.toml")).0, 201);
    let (status, uploaded) = upload(&server, "rectangle.onnx", &tiny("rectangle.onnx"));
    let inspection = uploaded["inspection"].as_str().unwrap_or_else(|| panic!("{status}: {uploaded}"));
    assert!(status == 201 && inspection.contains("input") && inspection.contains("description"), "{uploaded}");
    assert!(!inspection.contains(&models), "clients do not learn where the folder is: {inspection}");
    let (status, refused) = upload(&server, "broken.onnx", b"no model");
    assert!(status == 422 && refused["error"]["message"].as_str().unwrap().contains("broken.onnx"), "{refused}");
    let (_, list) = server.json("GET", "/api/models", None);
    assert_eq!(list["models"].as_array().unwrap().len(), 2, "{list}");
    assert_eq!(std::fs::read_dir(&models).unwrap().count(), 2);

    let stream = json!({"name": "door", "pipeline": "detect", "input": "test:", "parameters": {"model": "rectangle.onnx"}});
    assert_eq!(server.json("POST", "/api/streams", Some(stream)).0, 201);
    server.wait_until("door", |view| view["objects"].as_object().is_some_and(|objects| !objects.is_empty()));
    drop(server);

    std::fs::write(&settings, "models = \"models\"\n").unwrap();
    let server = Served::start(&folder, &["--config", &settings]);
    let (status, refused) = upload(&server, "b.toml", b"");
    assert_eq!((status, &refused["error"]["code"]), (403, &"uploads_off".into()), "uploads are off by default");
}

#[test]
fn folder_of_pipelines_accepts_no_uploads() {
    let folder = Folder::new("serve-same-folder");
    let (settings, both) = (folder.file("server.toml"), folder.file("both"));
    std::fs::create_dir(&both).unwrap();
    std::fs::write(&settings, "models = \"both\"\nupload-models = true\n").unwrap();
    let state = folder.file("state");
    let refused = roiflow(&["serve", "--listen", "127.0.0.1:0", "--state", &state, "--config", &settings, "--pipelines", &both]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("upload-models") && said.contains("pipelines"), "{said}");
}

#[test]
fn results_that_wait_for_a_destination_are_counted() {
    let folder = Folder::new("serve-waiting");
    let server = Served::start(&folder, &[]);
    // No server listens on this port.
    let address = "http://127.0.0.1:1/results";
    let stream = json!({"name": "door", "pipeline": "colors", "input": "test:", "loop": true, "publish": [address]});
    assert_eq!(server.json("POST", "/api/streams", Some(stream)).0, 201);
    let view = server.wait_until("door", |view| view["destinations"][0]["waiting"].as_u64().is_some_and(|waiting| waiting > 10));
    assert_eq!((&view["destinations"][0]["address"], &view["destinations"][0]["written"]), (&address.into(), &0.into()), "{view}");
    let metrics = String::from_utf8(server.send("GET", "/metrics", None).1).unwrap();
    let begin = format!("roiflow_destination_waiting{{stream=\"door\",destination=\"{address}\"}} ");
    let waiting = metrics.lines().find_map(|line| line.strip_prefix(&*begin)).unwrap_or_else(|| panic!("{metrics}"));
    assert!(waiting.parse::<u64>().unwrap() > 10, "{waiting}");
    assert!(
        metrics.contains(&format!("roiflow_destination_results_total{{stream=\"door\",destination=\"{address}\",outcome=\"dropped\"}} 0"))
    );
}
