//! The state folder of `roiflow serve`: a full disk, damaged files, files of root, and events that survive a restart.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::{Folder, check_fails, roiflow};
use crate::harness::eventually;
use crate::rtsp::Server;
use crate::serve::Served;

/// A file system of a fixed size. It is unmounted when dropped.
struct Small(PathBuf);

impl Small {
    /// Mounts it in a new folder. `None`: this user may not mount a file system.
    fn mount(path: &str, size: &str) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let options = format!("size={size},mode=700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs", path]).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: this user may not mount a file system");
            return None;
        }
        Some(Self(path.into()))
    }

    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.0.join("ballast")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

fn names(server: &Served) -> Vec<String> {
    let (_, list) = server.json("GET", "/api/streams", None);
    list["streams"].as_array().unwrap().iter().map(|view| view["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn full_disk_makes_the_server_unready_until_there_is_space() {
    let folder = Folder::new("state-full");
    let Some(small) = Small::mount(&folder.file("state"), "8m") else { return };
    let server = Served::start(&folder, &[]);
    // Long addresses of a port that nothing listens on, so that few streams fill the file.
    let publish: Vec<String> = (0..8).map(|n| format!("mqtt://127.0.0.1:1/{n}{}", "t".repeat(1900))).collect();
    let input = format!("test:{}1", "0".repeat(1900));
    let stream = |name: &str| json!({"name": name, "pipeline": "colors", "input": input, "publish": publish});
    let add = |name: &str| server.json("POST", "/api/streams", Some(stream(name)));
    let (status, view) = add("before");
    assert_eq!(status, 201, "{view}");
    small.fill();
    let mut n_added = 0;
    let refused = loop {
        // Pages of the file may still be free.
        match add(&format!("s{n_added}")) {
            (201, _) => n_added += 1,
            refused => break refused,
        }
    };
    let ready = || server.json("GET", "/readyz", None);
    for (status, body) in [refused, ready(), add("more"), ready()] {
        assert_eq!((status, &body["error"]["code"]), (503, &"store_failed".into()), "{body}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("streams.redb") && message.contains("No space left") && message.contains("Free space"), "{message}");
    }
    assert_eq!(server.json("DELETE", "/api/streams/before", None).0, 503);
    let present = names(&server);
    assert_eq!(present.len(), n_added + 1, "nothing changes while it cannot be stored: {present:?}");
    assert_eq!(server.send("GET", "/healthz", None).0, 200);
    small.free();
    eventually("the server is ready", || server.send("GET", "/readyz", None).0 == 200);
    assert_eq!(add("after").0, 201);
    assert_eq!(server.json("DELETE", "/api/streams/before", None).0, 200);
    let present = names(&server);
    server.kill();
    let server = Served::start(&folder, &[]);
    assert_eq!(names(&server), present, "the file has what was acknowledged");
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    drop(small);
}

#[test]
fn damaged_files_of_the_state_are_said_with_advice() {
    let folder = Folder::new("state-damaged");
    let state = folder.file("state");
    drop(Served::start(&folder, &[]));
    let path = |name: &str| format!("{state}/{name}");
    let intact = std::fs::read(path("streams.redb")).unwrap();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--state", &state];
    let zeros = vec![0; intact.len()];
    for bytes in [&b""[..], &b"{}"[..], &intact[..intact.len() / 3], &zeros[..]] {
        std::fs::write(path("streams.redb"), bytes).unwrap();
        check_fails(&serve, 1, &["streams.redb", "Restore the file from a backup"]);
        let kept = std::fs::read(path("streams.redb")).unwrap();
        // A reader of the database notes in the first bytes that it has opened the file.
        let content = |bytes: &[u8]| bytes.iter().skip(64).copied().collect::<Vec<_>>();
        assert!(kept.len() == bytes.len() && content(&kept) == content(bytes), "the file is kept for its owner");
    }
    std::fs::write(path("streams.redb"), intact).unwrap();
    for bytes in [&b""[..], &b"{\"tokens\":"[..], &b"\xff"[..]] {
        std::fs::write(path("tokens.json"), bytes).unwrap();
        check_fails(&serve, 1, &["tokens.json", "Restore the file from a backup"]);
    }
    std::fs::remove_file(path("tokens.json")).unwrap();
    // Events are not worth a server that does not start.
    std::fs::write(path("events.jsonl"), b"no JSON\n").unwrap();
    let server = Served::start(&folder, &[]);
    assert!(server.said.contains("events.jsonl"), "{}", server.said);
    assert_eq!(server.json("GET", "/api/events", None).1, json!({"events": []}));
}

#[test]
fn files_that_root_writes_belong_to_the_owner_of_the_folder() {
    let folder = Folder::new("state-owner");
    let state = folder.file("state");
    std::fs::create_dir(&state).unwrap();
    if std::os::unix::fs::chown(&state, Some(4321), Some(4322)).is_err() {
        return eprintln!("skipped: this user may not change the owner of a file");
    }
    let created = roiflow(&["serve", "--create-token", "operator", "--state", &state]);
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let key = roiflow(&["node", "--create-key", &format!("{state}/nodes.key")]);
    assert!(key.status.success(), "{}", String::from_utf8_lossy(&key.stderr));
    let server = Served::start(&folder, &[]);
    assert!(server.said.contains("belongs to the user 4321"), "{}", server.said);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    for name in ["tokens.json", "streams.redb", "nodes.key"] {
        let metadata = std::fs::metadata(Path::new(&state).join(name)).unwrap();
        assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (4321, 4322, 0o600), "{name}");
    }
}

fn events(server: &Served) -> Vec<Value> {
    server.json("GET", "/api/events", None).1["events"].as_array().unwrap().clone()
}

#[test]
fn outage_of_a_camera_is_one_in_log_events_and_metrics() {
    let folder = Folder::new("state-outage");
    let Some(camera) = Server::start(&[]) else { return };
    let port = camera.port;
    let mut server = Served::start(&folder, &[]);
    let stream = json!({"name": "door", "pipeline": "colors", "input": camera.uri("rtspt", "", "/live")});
    assert_eq!(server.json("POST", "/api/streams", Some(stream)).0, 201);
    server.wait_until("door", |view| view["frames"].as_u64().unwrap() > 5);
    let number = |server: &Served, name: &str| -> f64 {
        let text = String::from_utf8(server.send("GET", "/metrics", None).1).unwrap();
        let begin = format!("{name}{{stream=\"door\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&begin)).unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    };
    let counts = |server: &Served| (number(server, "roiflow_source_restarts_total"), number(server, "roiflow_source_down_seconds_total"));
    assert_eq!(counts(&server), (0.0, 0.0));
    drop(camera);
    // The default level of the log shows the outage, which is not over.
    server.wait_for("source-lost");
    let mut before = 0.0;
    let begin = Instant::now();
    // The camera is opened again after one to two seconds, and then after two to four.
    while before < 4.0 {
        let (n_outages, down) = counts(&server);
        assert!(n_outages == 1.0 && down >= before, "{n_outages} outages, {down} s after {before} s");
        assert!(begin.elapsed() < Duration::from_secs(60), "the metrics do not show the outage that goes on");
        before = down;
        std::thread::sleep(Duration::from_millis(50));
    }
    let same_port = format!("port={port}");
    let Some(_camera) = Server::start(&[&*same_port]) else { return };
    server.wait_for("source-back");
    let (n_outages, down) = counts(&server);
    assert!(n_outages == 1.0 && down >= before, "{n_outages} outages, {down} s after {before} s");
    let view = server.wait_until("door", |view| view["state"] == "running");
    assert_eq!(view["restarts"], 1);
    // The log of an outage has few lines.
    let kinds: Vec<String> = events(&server).iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "source-lost").count(), 1, "{kinds:?}");
}

#[test]
fn events_survive_sigkill_of_the_server() {
    let folder = Folder::new("state-events");
    let server = Served::start(&folder, &[]);
    let stream = json!({"name": "door", "pipeline": "colors", "input": "rtspt://admin:secret77x@127.0.0.1:1/live"});
    assert_eq!(server.json("POST", "/api/streams", Some(stream)).0, 201);
    let file = folder.file("state/events.jsonl");
    let written = || std::fs::read_to_string(&file).unwrap_or_default();
    eventually("the events are written", || written().contains("source-lost") && written().contains("added"));
    assert!(!written().contains("secret77x"), "{}", written());
    let before = events(&server);
    eventually("all of them are written", || written().lines().count() >= before.len());
    server.kill();
    let server = Served::start(&folder, &[]);
    let after = events(&server);
    assert_eq!(after[..before.len()], before, "{after:?}");
    let ids: Vec<u64> = after.iter().map(|event| event["id"].as_u64().unwrap()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    let server = Served::start(&folder, &[]);
    assert!(events(&server).len() >= after.len());
}

#[test]
fn failed_logins_are_in_the_log() {
    let folder = Folder::new("state-logins");
    assert!(roiflow(&["serve", "--create-token", "viewer", "--state", &folder.file("state")]).status.success());
    let mut server = Served::start(&folder, &[]);
    for _ in 0..20 {
        assert_eq!(server.json("POST", "/api/login", Some(json!({"token": "guess77x"}))).0, 401);
    }
    server.wait_for("login failed: expected a token of this server, got another one from 127.0.0.1");
    let (_, said) = server.end();
    assert!(!said.contains("login failed") && !said.contains("guess77x"), "one line is enough: {said}");
}

#[test]
fn changed_password_of_a_camera_needs_no_restart() {
    let folder = Folder::new("state-password");
    let Some(camera) = Server::start(&["private"]) else { return };
    let netrc = folder.file("netrc");
    let write = |password: &str| {
        std::fs::write(&netrc, format!("machine 127.0.0.1 login user password {password}\n")).unwrap();
        std::fs::set_permissions(&netrc, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    write("old88y");
    let server = Served::start(&folder, &["--input-credentials", &netrc]);
    let stream = json!({"name": "door", "pipeline": "colors", "input": camera.uri("rtspt", "", "/live")});
    assert_eq!(server.json("POST", "/api/streams", Some(stream)).0, 201);
    server.wait_until("door", |view| view["state"] == "reconnecting" && !view["error"].is_null());
    write("secret");
    server.wait_until("door", |view| view["state"] == "running");
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("old88y") && !said.contains("password secret"), "{said}");
}

#[test]
fn hangup_says_what_it_has_read_and_what_not() {
    let folder = Folder::new("state-hangup");
    let (config, netrc, state) = (folder.file("server.toml"), folder.file("netrc"), folder.file("state"));
    std::fs::write(&config, "[limits]\nstreams = 3\n").unwrap();
    let write = |text: &str| {
        std::fs::write(&netrc, text).unwrap();
        std::fs::set_permissions(&netrc, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    write("machine door login admin password a\n");
    let mut server = Served::start(&folder, &["--config", &config, "--input-credentials", &netrc]);
    server.signal("HUP");
    server.wait_for("the logins of inputs were read again");
    write("machine door login admin passwort a\n");
    server.signal("HUP");
    server.wait_for("the earlier logins of inputs stay in use");
    std::fs::remove_file(&netrc).unwrap();
    server.signal("HUP");
    server.wait_for("the earlier logins of inputs stay in use");
    std::fs::write(&config, "[limits]\nstreams = 4\n").unwrap();
    server.signal("HUP");
    server.wait_for("the settings in `");
    assert!(roiflow(&["serve", "--create-token", "viewer", "--state", &state]).status.success());
    server.signal("HUP");
    server.wait_for("the tokens in `");
    assert_eq!(server.json("GET", "/api/streams", None).0, 200);
}

#[test]
fn log_that_nobody_reads_stops_no_stream() {
    let folder = Folder::new("state-log");
    // The test reads the log only until the address of the server.
    let server = Served::start(&folder, &["--log", "trace"]);
    for name in ["door", "gate"] {
        assert_eq!(
            server.json("POST", "/api/streams", Some(json!({"name": name, "pipeline": "colors", "input": "test:", "loop": true}))).0,
            201
        );
    }
    server.wait_until("door", |view| view["frames"].as_u64().unwrap() > 200);
    server.wait_until("gate", |view| view["frames"].as_u64().unwrap() > 200);
    assert_eq!(server.json("DELETE", "/api/streams/gate", None).0, 200);
}
