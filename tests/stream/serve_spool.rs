//! Results of `roiflow serve` survive an outage of their broker and a crash of the server.

use serde_json::json;

use crate::brokers::{Broker, Proxy, subscribe};
use crate::cli::{Folder, roiflow};
use crate::outages::Received;
use crate::serve::Served;

#[test]
fn results_survive_an_outage_of_the_broker_and_sigkill_of_the_server() {
    let folder = Folder::new("serve-spool");
    let of_broker = crate::harness::Folder::new("serve-spool-broker");
    let mut broker = Broker::mosquitto(&of_broker, "");
    broker.start();
    let proxy = Proxy::new(broker.port, true);
    proxy.open();
    let subscriber = subscribe(broker.port, "roiflow/#");
    std::fs::write(folder.file("server.toml"), "[spool]\nfolder = \"spool\"\nmax-bytes = 100000000\nmax-age = \"1h\"\n").unwrap();
    let config = folder.file("server.toml");
    let start = || Served::start(&folder, &["--config", &config]);
    let url = format!("mqtt://127.0.0.1:{}/roiflow/{{stream}}", proxy.port);
    let waiting = |view: &serde_json::Value| view["destinations"][0]["waiting"].as_u64().unwrap_or(0);

    let mut received = Received::default();
    let server = start();
    let stream = json!({"name": "door", "pipeline": "colors", "input": "test:", "loop": true, "publish": [url]});
    let (status, view) = server.json("POST", "/api/streams", Some(stream));
    assert_eq!(status, 201, "{view}");
    received.receive(&subscriber, 10);
    // The broker is away, and the stream runs on.
    proxy.close();
    let n_before = received.ids.len();
    let view = server.wait_until("door", |view| waiting(view) >= 40);
    assert!(view["state"] == "running" && view["destinations"][0]["lost"] == 0, "{view}");
    let n_stored = waiting(&view) as usize;
    // The newest results may not be on disk yet.
    server.wait_until("door", |view| waiting(view) as usize >= n_stored + 30);
    server.kill();

    let server = start();
    // The results of both servers wait.
    server.wait_until("door", |view| waiting(view) as usize >= n_stored && view["frames"].as_u64().unwrap() > 10);
    proxy.open();
    received.receive(&subscriber, n_before + n_stored + 10);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    broker.kill();
    received.receive_rest(&subscriber);
    received.check_complete();
    let numbers: Vec<usize> = received.epochs.values().map(Vec::len).collect();
    assert!(numbers.len() == 2 && numbers[0] >= n_before + n_stored, "{numbers:?}, {n_before} before the outage, {n_stored} stored");
}

#[test]
fn wrong_settings_of_the_spool_are_refused() {
    let folder = Folder::new("serve-spool-wrong");
    let config = folder.file("server.toml");
    for (text, says) in [
        ("[spool]\nmax-bytes = 5\n", "spool: expected a folder"),
        ("[spool]\nfolder = \"spool\"\nmax-age = \"long\"\n", "spool.max-age: "),
        ("[spool]\nfolder = \"spool\"\nmax-bytes = 0\n", "spool.max-bytes: expected a number of bytes above 0, got 0"),
        ("[spool]\nsize = 5\n", "unknown field `size`"),
    ] {
        std::fs::write(&config, text).unwrap();
        let output = roiflow(&["serve", "--listen", "127.0.0.1:0", "--state", &folder.file("state"), "--config", &config]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(says), "{text}: {said}");
    }
}
