//! Measures what nodes and their streams cost: messages and bytes at the NATS server, processor time and memory of the processes.
//!
//! `make prove-nodes` prints the figures of docs/howto/many-machines.md.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::Folder;
use crate::nodes::{NatsServer, Node, n_cameras};

/// Time of each measurement.
const TIME: Duration = Duration::from_secs(30);

/// Counters at one time. All but the memory only grow.
#[derive(Clone, Copy)]
struct Counts {
    received: (f64, f64),
    delivered: (f64, f64),
    server_time: f64,
    node_time: f64,
    node_memory: f64,
}

impl Counts {
    fn of(nats: &NatsServer, nodes: &[Node]) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", nats.monitor)).unwrap();
        // In HTTP 1.0, the answer has no chunks.
        stream.write_all(b"GET /varz HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let server: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        let number = |name: &str| server[name].as_f64().unwrap();
        Self {
            received: (number("in_msgs"), number("in_bytes")),
            delivered: (number("out_msgs"), number("out_bytes")),
            server_time: processor_time(nats.id()),
            node_time: nodes.iter().map(|node| processor_time(node.child.id())).sum(),
            node_memory: nodes.iter().map(|node| memory(node.child.id())).sum(),
        }
    }
}

/// Processor time of a process in seconds.
fn processor_time(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name before the parenthesis may have spaces. The clock has 100 ticks per second on all kernels.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// Resident memory of a process in MiB.
fn memory(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

/// Measures for a while, and prints the figures per second.
fn measure(what: &str, nats: &NatsServer, nodes: &[Node]) {
    let (begin, before) = (Instant::now(), Counts::of(nats, nodes));
    std::thread::sleep(TIME);
    let after = Counts::of(nats, nodes);
    let seconds = begin.elapsed().as_secs_f64();
    let per_second = |before: f64, after: f64| (after - before) / seconds;
    println!(
        "{what}: received {:.1} messages/s, {:.0} bytes/s; delivered {:.1} messages/s, {:.0} bytes/s; NATS {:.2} % of a core; node {:.2} % of a core and {:.0} MiB",
        per_second(before.received.0, after.received.0),
        per_second(before.received.1, after.received.1),
        per_second(before.delivered.0, after.delivered.0),
        per_second(before.delivered.1, after.delivered.1),
        100.0 * per_second(before.server_time, after.server_time),
        100.0 * per_second(before.node_time, after.node_time) / nodes.len() as f64,
        after.node_memory / nodes.len() as f64,
    );
}

#[test]
#[ignore = "it measures and checks nothing; make prove-nodes runs it"]
fn cost_of_nodes_and_of_their_streams() {
    let folder = Folder::new("nodes-size");
    let Some(nats) = NatsServer::start(&folder) else { return };
    let n_streams = n_cameras();
    let plain =
        "version = 1\nname = \"plain\"\ndescription = \"Without inference.\"\n[pipeline]\ngraph = \"{source} ! {json} ! {video}\"\n";
    std::fs::write(folder.file("plain.toml"), plain).unwrap();
    let names = ["a", "b", "c"];
    for (results, group) in [("published", "with"), ("not published", "without")] {
        let arguments: &[&str] = if group == "with" { &["--group", "with"] } else { &["--group", "without", "--results", "none"] };
        for n_nodes in [1, 3] {
            let nodes: Vec<Node> = names[..n_nodes].iter().map(|name| Node::start(&folder, &nats.url(), name, arguments)).collect();
            std::thread::sleep(Duration::from_secs(8));
            if n_nodes == 1 || results == "published" {
                measure(&format!("nodes: {n_nodes}, no streams"), &nats, &nodes);
            }
            if n_nodes == 3 {
                for idx in 0..n_streams {
                    let stream = json!({"name": format!("cam{idx}"), "pipeline": "plain", "input": "test:", "loop": true});
                    assert_eq!(nodes[0].json("POST", "/api/streams", Some(stream)).0, 201);
                }
                // Without inference, no frames are counted.
                let runs = |view: &Value| view["fps"].as_f64().is_some_and(|fps| fps > 10.0);
                nodes[0].wait_until("all streams run", |streams| streams.len() == n_streams && streams.iter().all(runs));
                std::thread::sleep(Duration::from_secs(5));
                measure(&format!("nodes: 3, streams of 30 frames/s: {n_streams}, results {results}"), &nats, &nodes);
            }
            for node in nodes {
                node.end();
            }
        }
    }
}
