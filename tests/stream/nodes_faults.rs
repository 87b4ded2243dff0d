//! Nodes that lose the NATS server or stop for a while: real processes, with a proxy of the test between one node and the server.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::Folder;
use crate::harness::eventually;
use crate::nodes::{NatsServer, Node, all_run, check_complete, check_results, count_refused, n_cameras, places, wait_for_frames};
use crate::serve::send;
use crate::slow_proxy::Proxy;

/// How long results may take to arrive.
const LIMIT: Duration = Duration::from_secs(60);
/// The number of an assignment is its epoch without these digits, which count starts.
const EPOCHS_PER_ASSIGNMENT: u64 = 1_000_000;

/// Returns the names of the streams that this node itself runs, as another node asks for them.
fn own_streams(node: &Node) -> Vec<String> {
    let mut stream = TcpStream::connect(&node.address).unwrap();
    let head = format!("GET /api/streams HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nx-roiflow-node: test\r\n\r\n", node.address);
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let list: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    list["streams"].as_array().unwrap().iter().map(|view| view["name"].as_str().unwrap().to_owned()).collect()
}

/// Whether the other nodes see a node as present.
fn is_present(node: &Node, name: &str) -> bool {
    let (_, list) = node.json("GET", "/api/nodes", None);
    list["nodes"].as_array().is_some_and(|nodes| nodes.iter().any(|view| view["name"] == name && view["state"] == "present"))
}

/// A line of results by assignment of its stream.
type Lines<'a> = BTreeMap<(String, u64), Vec<&'a Value>>;

fn by_assignment(messages: &[(String, Value)]) -> Lines<'_> {
    let mut lines = Lines::new();
    for (id, line) in messages {
        let parts: Vec<&str> = id.rsplitn(3, '/').collect();
        let epoch: u64 = parts[1].parse().unwrap();
        lines.entry((parts[2].to_owned(), epoch / EPOCHS_PER_ASSIGNMENT)).or_default().push(line);
    }
    lines
}

/// Checks each assignment that begins with a gap: the earlier owner has made no result after the first one of the later owner, and the gap
/// names the last result before it. Returns the reasons by stream.
///
/// All nodes of a test have the same clock, so the times of their results can be compared.
pub fn check_gaps(messages: &[(String, Value)]) -> BTreeMap<String, Vec<String>> {
    let lines = by_assignment(messages);
    let time = |line: &Value| line["time"].as_str().unwrap().to_owned();
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((stream, assignment), of_owner) in &lines {
        let gaps: Vec<&&Value> = of_owner.iter().filter(|line| line["event"] == "gap").collect();
        let Some(gap) = gaps.first() else { continue };
        assert_eq!(gaps.len(), 1, "{stream}: one gap before one assignment");
        crate::results_schema::check_records(&[(**gap).clone()]);
        let begin = of_owner.iter().map(|line| time(line)).min().unwrap();
        let earlier = lines.iter().filter(|((other, number), _)| other == stream && number < assignment);
        let end = earlier.flat_map(|(_, lines)| lines).map(|line| time(line)).max().unwrap_or_default();
        let summary = || {
            let of_stream = lines.iter().filter(|((other, _), _)| other == stream);
            let times = of_stream.map(|((_, number), lines)| {
                let gap = lines.iter().find(|line| line["event"] == "gap").map_or(&Value::Null, |gap| &gap["reason"]);
                format!("{number}: {} lines from {} to {}, gap {gap}", lines.len(), time(lines[0]), time(lines[lines.len() - 1]))
            });
            times.collect::<Vec<_>>().join("\n")
        };
        assert!(end <= begin, "{stream}: an earlier owner made a result at {end}, and the later one began at {begin}:\n{}", summary());
        // The position of the gap among all lines, in the order in which the server has stored them.
        let first = messages.iter().position(|(_, line)| line["message_id"] == of_owner[0]["message_id"]).unwrap();
        let before = messages[..first].iter().rev().find(|(id, _)| id.rsplitn(3, '/').nth(2) == Some(stream));
        let (id, last) = before.unwrap();
        let parts: Vec<&str> = id.rsplitn(3, '/').collect();
        let frame: u64 = parts[0].split('.').next().unwrap().parse().unwrap();
        assert_eq!((gap["epoch"].to_string(), gap["from"].as_u64()), (parts[1].to_owned(), Some(frame + 1)), "{gap} after {last}");
        assert_eq!(gap["last_time"], last["time"]);
        assert!(time(gap) > time(last), "{gap}");
        reasons.entry(stream.clone()).or_default().push(gap["reason"].as_str().unwrap().to_owned());
    }
    reasons
}

#[test]
fn node_that_is_cut_off_stops_its_streams_and_returns() {
    let folder = Folder::new("nodes-cut");
    let Some(nats) = NatsServer::start(&folder) else { return };
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], nats.port)));
    let (direct, through_proxy) = (nats.url(), format!("nats://{}", proxy.address()));
    let nodes = [("a", &direct), ("b", &direct), ("c", &through_proxy)].map(|(name, url)| Node::start(&folder, url, name, &[]));
    let n_streams = n_cameras();
    (0..n_streams).for_each(|idx| nodes[0].add(&format!("cam{idx}"), "test:"));
    let before = nodes[0].wait_until("streams run on the node behind the proxy", |streams| {
        all_run(streams, n_streams, &["a", "b", "c"]) && places(streams).values().any(|node| node == "c")
    });
    let of_cut: Vec<String> = places(&before).into_iter().filter(|(_, node)| node == "c").map(|(stream, _)| stream).collect();
    proxy.freeze(true);
    let begin = Instant::now();
    let mut stopped = None;
    nodes[0].wait_until("the streams run on the other nodes", |streams| {
        if stopped.is_none() && own_streams(&nodes[2]).is_empty() {
            stopped = Some(begin.elapsed());
        }
        all_run(streams, n_streams, &["a", "b"])
    });
    let stopped = stopped.expect("the node that was cut off stops its streams before they run elsewhere");
    eprintln!("the node stopped its streams after {stopped:.1?}; they ran elsewhere after {:.1?}", begin.elapsed());
    // The earlier connections do not survive the cut.
    proxy.cut();
    proxy.freeze(false);
    eventually("the node is back", || is_present(&nodes[0], "c"));
    nodes[0].wait_until("the node runs streams again", |streams| {
        all_run(streams, n_streams, &["a", "b", "c"]) && places(streams).values().any(|node| node == "c")
    });
    let messages = nats.messages("roiflow-default-results");
    // The node has sent the results of the time between the cut and the end of its lease only after the cut, so readers refuse them.
    let (n_refused, most) = (count_refused(&messages), of_cut.len() * 30 * 14);
    assert!(n_refused <= most, "{n_refused} results are refused, more than {most}");
    let reasons = check_gaps(&messages);
    for stream in &of_cut {
        let reasons = &reasons[stream];
        assert!(reasons.iter().any(|reason| reason.contains("the node `c` ended without leaving, or lost its connection")), "{reasons:?}");
    }
    assert!(reasons.len() == of_cut.len(), "the other streams ran on: {reasons:?}, {of_cut:?}");
}

/// Starts nodes that reach NATS through the same forwarder, and waits until their streams run. Without its server, the forwarder closes connections.
fn start_behind_forwarder(folder: &Folder, nats: &NatsServer, arguments: &[&str]) -> (Proxy, Vec<Node>) {
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], nats.port)));
    let url = format!("nats://{}", proxy.address());
    let nodes: Vec<Node> = ["a", "b"].iter().map(|name| Node::start(folder, &url, name, arguments)).collect();
    (0..3).for_each(|idx| nodes[0].add(&format!("cam{idx}"), "test:"));
    nodes[0].wait_until("all streams run", |streams| all_run(streams, 3, &["a", "b"]));
    (proxy, nodes)
}

#[test]
fn forwarder_that_closes_connections_is_named_and_streams_return_soon() {
    let folder = Folder::new("nodes-forwarder");
    let Some(mut nats) = NatsServer::start(&folder) else { return };
    let (_proxy, nodes) = start_behind_forwarder(&folder, &nats, &[]);
    nats.kill();
    nodes[0].wait_until("all streams have stopped", |_| nodes.iter().all(|node| own_streams(node).is_empty()));
    nats.start_again();
    let begin = Instant::now();
    nodes[0].wait_until("the streams run again", |streams| all_run(streams, 3, &["a", "b"]));
    let silence = begin.elapsed();
    eprintln!("the streams ran again after {silence:.1?}");
    // A planner that is not told that the earlier sessions have ended waits for 14 s.
    assert!(silence < Duration::from_secs(13), "{silence:?}");
    // The results of the outage may arrive after the gap was computed, so its position is not checked here.
    eventually("each stream has a gap", || {
        let messages = nats.messages("roiflow-default-results");
        let gaps = messages.iter().filter(|(_, line)| line["event"] == "gap").filter_map(|(_, line)| line["stream"].as_str());
        gaps.collect::<std::collections::BTreeSet<_>>().len() == 3
    });
    check_results(&nats.messages("roiflow-default-results"));
    for node in nodes {
        let (code, said) = node.end();
        let has = |text: &str| said.matches(text).count() == 1;
        assert!(code == Some(0) && has("NATS accepts connections and closes them at once") && has(" of this node stop in "), "{said}");
        assert!(has(" streams of this node were stopped") && has("joined the other nodes"), "{said}");
    }
}

#[test]
fn streams_go_on_while_the_forwarder_of_all_nodes_closes_connections() {
    let folder = Folder::new("nodes-forwarder-shared");
    let Some(mut nats) = NatsServer::start(&folder) else { return };
    let (_proxy, nodes) = start_behind_forwarder(&folder, &nats, &["--nats-shared-forwarder"]);
    let before = nodes[0].streams();
    nats.kill();
    // The test pattern has 30 frames per second, and a lease ends after 15 s.
    let during = wait_for_frames(&nodes[0], &before, 30 * 17);
    nats.start_again();
    nodes.iter().for_each(|node| eventually("the node sees NATS again", || send(&node.address, "GET", "/readyz", None).0 == 200));
    let after = wait_for_frames(&nodes[0], &during, 60);
    assert_eq!(places(&after), places(&before), "nothing was planned again");
    for node in nodes {
        let (code, said) = node.end();
        assert!(code == Some(0) && said.contains("The streams of this node go on") && !said.contains("were stopped"), "{said}");
    }
    let messages = nats.messages("roiflow-default-results");
    check_results(&messages);
    check_complete(&messages);
}

#[test]
fn node_that_was_stopped_longer_than_its_lease_publishes_nothing_late() {
    let folder = Folder::new("nodes-stop");
    let Some(nats) = NatsServer::start(&folder) else { return };
    let nodes: Vec<Node> = ["a", "b"].iter().map(|name| Node::start(&folder, &nats.url(), name, &[])).collect();
    (0..4).for_each(|idx| nodes[0].add(&format!("cam{idx}"), "test:"));
    let before = nodes[0].wait_until("all streams run on both nodes", |streams| {
        all_run(streams, 4, &["a", "b"]) && places(streams).values().any(|node| node == "b")
    });
    nodes[1].signal("STOP");
    nodes[0].wait_until("the streams run on the other node", |streams| all_run(streams, 4, &["a"]));
    nodes[1].signal("CONT");
    eventually("the node is back", || is_present(&nodes[0], "b"));
    let after = nodes[0].wait_until("all streams run", |streams| all_run(streams, 4, &["a", "b"]));
    assert_eq!(after.len(), before.len());
    let messages = nats.messages("roiflow-default-results");
    check_results(&messages);
    let n_moved = places(&before).values().filter(|node| *node == "b").count();
    assert_eq!(check_gaps(&messages).len(), n_moved, "each stream of the node that was stopped has a gap");
}

#[test]
fn live_results_of_any_node_are_those_of_all_nodes() {
    let folder = Folder::new("nodes-live");
    let Some(nats) = NatsServer::start(&folder) else { return };
    // The first server of the list does not run, so everything goes to the second one.
    let servers = format!("nats://127.0.0.1:{},127.0.0.1:{}", crate::brokers::free_port(), nats.port);
    let nodes: Vec<Node> = ["a", "b"].iter().map(|name| Node::start(&folder, &servers, name, &[])).collect();
    (0..4).for_each(|idx| nodes[0].add(&format!("cam{idx}"), "test:"));
    nodes[0].wait_until("all streams run on both nodes", |streams| {
        let places = places(streams);
        all_run(streams, 4, &["a", "b"]) && ["a", "b"].iter().all(|node| places.values().any(|place| place == node))
    });
    let mut stream = TcpStream::connect(&nodes[0].address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(format!("GET /api/results/live HTTP/1.1\r\nHost: {}\r\n\r\n", nodes[0].address).as_bytes()).unwrap();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let begin = Instant::now();
    for line in BufReader::new(stream).lines() {
        // Results of some streams, and signs of life, arrive also if those of other streams never do.
        assert!(begin.elapsed() < LIMIT, "results of all streams: {seen:?}");
        let line = line.unwrap();
        let Some(line) = line.strip_prefix("data: ") else { continue };
        let line: Value = serde_json::from_str(line).unwrap();
        let (stream, frame) = (line["stream"].as_str().unwrap(), line["frame"].as_u64().unwrap_or_else(|| panic!("{line}")));
        let newest = seen.entry(stream.to_owned()).or_insert(frame);
        assert!(frame >= *newest, "frames are in order: {line}");
        *newest = frame;
        if seen.len() == 4 {
            break;
        }
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}
