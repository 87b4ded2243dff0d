//! Destinations of `roiflow serve` and `roiflow run`: credentials of the settings, files that are read again, and secrets that nothing shows.

use serde_json::json;

use crate::brokers::{LIMIT, Webhook};
use crate::cli::{Folder, check_fails};
use crate::serve::Served;

/// The secret part of the path of a webhook.
const SECRET: &str = "T024BE7LD/B024BE7LD/xoxZabcdefgh";

#[test]
fn credentials_of_the_settings_are_read_again_after_a_refusal() {
    let folder = Folder::new("serve-credentials");
    let webhook = Webhook::new(401);
    let settings = format!("[credentials.hook]\nservers = [\"http://127.0.0.1:{}\"]\ntoken-file = \"token\"\n", webhook.port);
    std::fs::write(folder.file("server.toml"), settings).unwrap();
    std::fs::write(folder.file("token"), "old-token\n").unwrap();
    let mut server = Served::start(&folder, &["--config", &folder.file("server.toml"), "--spool", &folder.file("spool")]);
    let add = |name: &str, url: &str| {
        let stream = json!({"name": name, "pipeline": "colors", "input": "test:", "loop": true, "publish": [url]});
        server.json("POST", "/api/streams", Some(stream))
    };
    let (status, refused) = add("evil", "http://localhost:1/s?x-credentials=hook");
    let said = refused["error"]["message"].as_str().unwrap();
    assert!(status == 400 && said.contains("got http://localhost:1"), "{refused}");
    let url = format!("http://127.0.0.1:{}/s?x-credentials=hook", webhook.port);
    let (status, view) = add("door", &url);
    assert_eq!(status, 201, "{view}");
    webhook.refusals.recv_timeout(LIMIT).unwrap();
    // A new token, without a restart.
    std::fs::write(folder.file("token"), "new-token\n").unwrap();
    server.signal("HUP");
    server.wait_for("the files of the credentials were read again");
    webhook.answer_with(200);
    let request = webhook.requests.recv_timeout(LIMIT).unwrap();
    assert!(request.headers.contains("authorization: bearer new-token\r\n"), "{}", request.headers);
    // A file that is gone is reported, and its path is not shown to clients.
    std::fs::remove_file(folder.file("token")).unwrap();
    server.signal("HUP");
    server.wait_for("files of credentials cannot be used for later connections: credentials.hook: cannot read the file `token-file`");
    let (_, events) = server.send("GET", "/api/events", None);
    assert!(!String::from_utf8_lossy(&events).contains(&folder.file("token")));
}

#[test]
fn wrong_credentials_of_the_settings_are_reported_at_the_start() {
    let folder = Folder::new("serve-wrong-credentials");
    let config = folder.file("server.toml");
    for (text, says) in [
        ("[credentials.a]\nservers = [\"mqtt://b\"]\npassword-file = \"none\"\n", "credentials.a: cannot read the file `password-file`"),
        ("[credentials.a]\nuser = \"u\"\n", "missing field `servers`"),
        ("[credentials.a]\nservers = [\"b\"]\n", "expected servers with one of the schemes mqtt"),
    ] {
        std::fs::write(&config, text).unwrap();
        check_fails(&["serve", "--listen", "127.0.0.1:0", "--state", &folder.file("state"), "--config", &config], 2, &[says]);
    }
}

#[test]
fn stored_stream_that_names_a_file_stops_with_a_sentence() {
    let folder = Folder::new("serve-stored-file");
    std::fs::write(folder.file("secret"), "secret77\n").unwrap();
    let webhook = Webhook::new(200);
    let url = format!("http://127.0.0.1:{}/s?x-token-file={}", webhook.port, folder.file("secret"));
    let stream = json!({"name": "door", "pipeline": "colors", "input": "test:", "loop": true, "publish": [url]});
    let store = roiflow_server::store::Store::open(std::path::Path::new(&folder.file("state"))).unwrap();
    store.put("door", stream.to_string().as_bytes()).unwrap();
    drop(store);
    let server = Served::start(&folder, &[]);
    let view = server.wait_until("door", |view| view["state"] == "failed");
    let error = view["error"].as_str().unwrap();
    assert!(error.contains("option x-token-file: expected none, because clients of a server cannot name its files"), "{view}");
    let (code, said) = server.end();
    assert!(code == Some(0) && !said.contains("secret77") && webhook.requests.try_recv().is_err(), "{said}");
}

#[test]
fn paths_of_webhooks_are_shown_nowhere() {
    let folder = Folder::new("serve-webhook");
    let webhook = Webhook::new(503);
    let urls: Vec<String> = ["", "2"].map(|end| format!("http://127.0.0.1:{}/services/{SECRET}{end}?key=AIzaQ7", webhook.port)).to_vec();
    let server = Served::start(&folder, &["--spool", &folder.file("spool")]);
    let stream = json!({"name": "door", "pipeline": "colors", "input": "test:", "loop": true, "publish": urls});
    let (status, added) = server.json("POST", "/api/streams", Some(stream));
    assert_eq!(status, 201, "{added}");
    webhook.refusals.recv_timeout(LIMIT).unwrap();
    let view = server.wait_until("door", |view| view["destinations"].as_array().is_some_and(|all| all.len() == 2));
    let shown = format!("http://127.0.0.1:{}/services/***", webhook.port);
    let names = |view: &serde_json::Value| [0, 1].map(|idx| view["destinations"][idx]["address"].as_str().unwrap().to_owned());
    assert_eq!(names(&view), [shown.clone(), format!("{shown} #2")]);
    // What was shown may be sent back.
    let (status, changed) = server.json("PATCH", "/api/streams/door", Some(json!({"publish": view["publish"]})));
    assert!(status == 200 && changed["publish"] == view["publish"], "{changed}");
    let (status, refused) = server.json("PATCH", "/api/streams/door", Some(json!({"publish": [shown]})));
    assert!(status == 400 && refused.to_string().contains("Give the whole address"), "{refused}");
    webhook.answer_with(200);
    let mut paths = std::collections::BTreeSet::new();
    while paths.len() < 2 {
        let request = webhook.requests.recv_timeout(LIMIT).unwrap();
        paths.insert(request.headers.lines().next().unwrap().to_owned());
    }
    let mut all = format!("{added}{view}{changed}{refused}");
    for path in ["/api/streams", "/api/events", "/metrics"] {
        all += &String::from_utf8_lossy(&server.send("GET", path, None).1);
    }
    let folders = std::fs::read_dir(folder.file("spool")).unwrap();
    all.extend(folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()));
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    all += &said;
    for secret in SECRET.split('/').chain(["AIzaQ7"]) {
        assert!(!all.contains(secret), "{secret} is in {all}");
    }
}

#[test]
fn wrong_file_of_a_destination_is_an_error_before_the_run() {
    let folder = Folder::new("run-wrong-file");
    for option in ["mqtts://HOST/a?ca", "mqtt://HOST/a?password-file", "tls://HOST?ca", "rediss://HOST?ca", "https://HOST/?x-ca"] {
        let url = format!("{}=/nowhere.crt", option.replace("HOST", "127.0.0.1:1"));
        let says = ["cannot read the file /nowhere.crt: No such file"];
        check_fails(&["run", &folder.file("colors.toml"), "--input", "test:3", "--publish", &url], 2, &says);
    }
}

#[test]
fn run_shows_no_path_of_a_webhook() {
    let folder = Folder::new("run-webhook");
    let url = format!("http://127.0.0.1:{}/services/{SECRET}", crate::brokers::free_port());
    let arguments = ["--log", "debug", "run", &folder.file("colors.toml"), "--input", "test:3", "--publish", &url, "--spool"];
    let output = crate::cli::roiflow(&[&arguments[..], &[&folder.file("spool")]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot reach http://127.0.0.1") && said.contains("/services/***"), "{said}");
    assert!(SECRET.split('/').all(|secret| !said.contains(secret)), "{said}");
}

#[test]
fn results_in_a_spool_with_an_earlier_name_are_delivered() {
    let folder = Folder::new("run-earlier-spool");
    let webhook = Webhook::new(503);
    let url = format!("http://127.0.0.1:{}/services/{SECRET}", webhook.port);
    let run = |input: &str| {
        let arguments = ["run", &folder.file("colors.toml"), "-q", "--input", input, "--publish", &url, "--spool", &folder.file("spool")];
        crate::cli::roiflow(&arguments)
    };
    run("test:5");
    let target = roiflow::publish::Target::parse(&url, &roiflow::publish::FileAccess::Allowed).unwrap();
    let spool = std::path::PathBuf::from(folder.file("spool"));
    let earlier = target.earlier_spool_name().unwrap();
    assert!(earlier.contains("T024BE7LD") && !target.spool_name().contains("T024BE7LD"));
    std::fs::rename(spool.join(target.spool_name()), spool.join(earlier)).unwrap();
    webhook.answer_with(200);
    assert!(run("test:1").status.success());
    let bodies: Vec<u8> = webhook.requests.try_iter().flat_map(|request| request.body).collect();
    assert_eq!(String::from_utf8(bodies).unwrap().lines().count(), 6);
    assert_eq!(std::fs::read_dir(&spool).unwrap().count(), 1);
}
