//! `roiflow node` with a key: programs without the key that write into the bucket have no effect, and nodes without it do not take part.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::json;

use crate::cli::{Folder, roiflow};
use crate::harness::eventually;
use crate::nodes::{NatsServer, Node, all_run, check_results, places, wait_for_frames};
use crate::serve::send;
use crate::slow_proxy::Proxy;

/// Makes a key, and returns its file.
fn key(folder: &Folder, name: &str) -> String {
    let file = folder.file(name);
    let created = roiflow(&["node", "--create-key", &file]);
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    file
}

/// Returns the status and the text of an answer.
fn get(node: &Node, path: &str) -> (u16, String) {
    let (status, body) = send(&node.address, "GET", path, None);
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// Returns the names of the streams that a node itself runs: its metrics have no others.
fn running(node: &Node) -> BTreeSet<String> {
    let (_, metrics) = get(node, "/metrics");
    let names = metrics.lines().filter_map(|line| line.strip_prefix("roiflow_stream_fps{stream=\"")?.split('"').next());
    names.map(str::to_owned).collect()
}

/// A description of a stream as a stranger would store it.
fn plain_stream(name: &str) -> String {
    json!({"description": {"name": name, "pipeline": "colors", "input": "test:", "loop": true}, "cost": 5.0}).to_string()
}

#[test]
fn node_with_another_or_no_key_is_not_ready_and_takes_part_in_nothing() {
    let folder = Folder::new("nodes-unfit");
    let Some(nats) = NatsServer::start(&folder) else { return };
    let (right, wrong) = (key(&folder, "right.key"), key(&folder, "wrong.key"));
    let node = Node::start(&folder, &nats.url(), "a", &["--key", &right]);
    node.add("door", "test:");
    let before = node.wait_until("the stream runs", |streams| all_run(streams, 1, &["a"]));
    for (name, arguments, says) in
        [("b", vec!["--key", &wrong], "sealed with another key"), ("c", Vec::new(), "because this node has no key")]
    {
        let other = Node::start(&folder, &nats.url(), name, &arguments);
        eventually("the node says why it is not ready", || get(&other, "/readyz").1.contains(says));
        assert_eq!(get(&other, "/readyz").0, 503);
        assert!(other.streams().is_empty());
        let (status, error) = other.json("PUT", "/api/nodes/a/drain", Some(json!({"drain": true})));
        assert!(status == 503 && error["error"]["code"] == "key_does_not_fit", "{error}");
        assert_eq!(send(&other.address, "DELETE", "/api/streams/door", None).0, 503);
        let (status, error) = other.json("POST", "/api/streams", Some(json!({"name": "x", "pipeline": "colors", "input": "test:"})));
        assert!(status == 503 && error.to_string().contains(says), "{error}");
        let (_, list) = node.json("GET", "/api/nodes", None);
        assert_eq!(list["nodes"].as_array().unwrap().len(), 1, "{list}");
        let (code, said) = other.end();
        assert!(code == Some(0) && said.matches("this node takes part in nothing").count() == 1, "{said}");
    }
    let after = wait_for_frames(&node, &before, 30);
    assert_eq!((places(&after), after.len()), (places(&before), 1));
    check_results(&nats.messages("roiflow-default-results"));
}

#[test]
fn items_of_strangers_are_refused_and_counted_and_stop_no_stream() {
    let folder = Folder::new("nodes-strangers");
    let Some(nats) = NatsServer::start(&folder) else { return };
    let right = key(&folder, "right.key");
    let node = Node::start(&folder, &nats.url(), "a", &["--key", &right]);
    node.add("door", "test:");
    let before = node.wait_until("the stream runs", |streams| all_run(streams, 1, &["a"]));
    nats.put("streams.evil", Some(&plain_stream("evil")));
    nats.put("streams.door", Some(&plain_stream("other")));
    nats.put("drain.a", Some("{}"));
    nats.put("assign.door", Some(r#"{"owner":{"node":"x","session":1},"epoch":99}"#));
    eventually("the items are counted", || get(&node, "/metrics").1.contains("roiflow_nodes_refused_items_total 4"));
    // Removals cannot be sealed. The node writes its items again.
    ["assign.door", "status.door", "nodes.a", "lock.planner"].iter().for_each(|key| nats.put(key, None));
    let after = wait_for_frames(&node, &before, 30 * 6);
    assert_eq!(after.len(), 1, "the stream of the stranger is not there: {after:?}");
    let (_, list) = node.json("GET", "/api/nodes", None);
    assert!(list["nodes"][0]["state"] == "present" && list["nodes"].as_array().unwrap().len() == 1, "{list}");
    nats.put("streams.evil", None);
    let stored = nats.bucket("roiflow-default");
    assert!(!stored.contains("\"owner\"") && !stored.contains("colors"), "{stored}");
    let (code, said) = node.end();
    assert!(code == Some(0) && said.contains("of the group `default` is refused: it is not sealed"), "{said}");
    let messages = nats.messages("roiflow-default-results");
    check_results(&messages);
    assert!(messages.iter().all(|(_, line)| line["event"] != "gap" && line["stream"] == "door"), "the stream was not interrupted");
}

#[test]
fn removals_by_strangers_give_no_stream_a_second_owner() {
    let folder = Folder::new("nodes-removals");
    let Some(nats) = NatsServer::start(&folder) else { return };
    let right = key(&folder, "right.key");
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], nats.port)));
    let (direct, through_proxy) = (nats.url(), format!("nats://{}", proxy.address()));
    let [a, b] = [("a", &direct), ("b", &through_proxy)].map(|(name, url)| Node::start(&folder, url, name, &["--key", &right]));
    (0..4).for_each(|idx| a.add(&format!("cam{idx}"), "test:"));
    let before = a.wait_until("streams run on both nodes", |streams| {
        let places = places(streams);
        all_run(streams, 4, &["a", "b"]) && ["a", "b"].iter().all(|node| places.values().any(|place| place == node))
    });
    let of_b = running(&b);
    // The owner does not see the removals, and runs on until its lease ends.
    proxy.freeze(true);
    before.iter().for_each(|view| nats.put(&format!("assign.{}", view["name"].as_str().unwrap()), None));
    nats.put("nodes.b", None);
    let mut n_checks = 0;
    a.wait_until("the streams run on the other node", |streams| {
        // The node that is cut off stops its streams seconds before they may start on the other one.
        let (of_b, of_a) = (running(&b), running(&a));
        let both: Vec<&String> = of_a.intersection(&of_b).collect();
        assert!(both.is_empty(), "two nodes run {both:?}");
        n_checks += 1;
        all_run(streams, 4, &["a"])
    });
    assert!(!of_b.is_empty() && n_checks > 1);
    proxy.cut();
    proxy.freeze(false);
}

#[test]
fn group_of_nodes_without_a_key_is_sealed_once() {
    let folder = Folder::new("nodes-migration");
    let Some(nats) = NatsServer::start(&folder) else { return };
    let right = key(&folder, "right.key");
    let plain = Node::start(&folder, &nats.url(), "a", &[]);
    plain.add("door", "test:");
    plain.wait_until("the stream runs", |streams| all_run(streams, 1, &["a"]));
    let seal = || roiflow(&["node", "--nats", &nats.url(), "--key", &right, "--seal-group"]);
    let refused = seal();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("expected no node that runs, got a"), "{said}");
    assert_eq!(plain.end().0, Some(0));
    let node = Node::start(&folder, &nats.url(), "a", &["--key", &right]);
    eventually("the node asks for the migration", || get(&node, "/readyz").1.contains("--seal-group"));
    let sealed = seal();
    let said = String::from_utf8_lossy(&sealed.stderr).into_owned();
    assert!(sealed.status.success() && said.contains("stream door: it was NOT encrypted, check it"), "{said}");
    node.wait_until("the stream runs again", |streams| all_run(streams, 1, &["a"]));
    assert!(get(&node, "/readyz").0 == 200 && !nats.bucket("roiflow-default").contains("colors"));
    check_results(&nats.messages("roiflow-default-results"));
}

#[test]
fn permissions_of_the_trust_page_are_enough_for_nodes() {
    let page = include_str!("../../docs/trust.md");
    let config = page.split_once("```text\nauthorization {").and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    let config = format!("authorization {{{config}").replace("$NODES_PASSWORD", "secret77x").replace("$READER_PASSWORD", "secret88x");
    let folder = Folder::new("nodes-permissions");
    let Some(nats) = NatsServer::start_with(&folder, &config) else { return };
    let right = key(&folder, "right.key");
    let url = |user: &str| format!("nats://{user}@127.0.0.1:{}", nats.port);
    let [a, b] = ["a", "b"].map(|name| Node::start(&folder, &url("nodes:secret77x"), name, &["--key", &right]));
    a.add("door", "test:");
    let streams = a.wait_until("the stream runs", |streams| all_run(streams, 1, &["a", "b"]));
    // Results of the other node arrive.
    let reader = if streams[0]["node"] == "a" { &b } else { &a };
    wait_for_frames(reader, &streams, 30);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let login = async_nats::ConnectOptions::with_user_and_password("reader".to_owned(), "secret88x".to_owned());
        let client = login.connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
        let jetstream = async_nats::jetstream::new(client);
        let results = jetstream.get_stream("roiflow-default-results").await.unwrap();
        assert!(results.get_last_raw_message_by_subject("roiflow.default.door").await.is_ok());
        let written = jetstream.publish("$KV.roiflow-default.streams.evil", "{}".into()).await.unwrap();
        let answer = tokio::time::timeout(std::time::Duration::from_secs(1), written.into_future()).await;
        assert!(!matches!(answer, Ok(Ok(_))), "a reader of results writes no items");
    });
    [a, b].into_iter().for_each(|node| {
        let (code, said) = node.end();
        assert!(code == Some(0) && !said.contains("ermission"), "{said}");
    });
}
