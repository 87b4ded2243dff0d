//! `roiflow node` with three NATS servers that form a cluster, which keeps each item and each result on all three.

use crate::brokers::free_port;
use crate::cli::Folder;
use crate::harness::eventually;
use crate::nodes::{NatsServer, Node, all_run, check_complete, check_results, places, wait_for_frames};
use crate::nodes_faults::check_gaps;
use crate::serve::send;

/// Starts a cluster of three servers. Returns `None` if the server is missing.
fn start_cluster(folders: &[Folder; 3]) -> Option<Vec<NatsServer>> {
    let ports = [free_port(), free_port(), free_port()];
    let routes = ports.map(|port| format!("nats://127.0.0.1:{port}")).join(", ");
    let servers: Option<Vec<NatsServer>> = (folders.iter().zip(ports).enumerate())
        .map(|(idx, (folder, port))| {
            let cluster = format!("cluster {{ name: test, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}");
            NatsServer::start_with(folder, &format!("server_name: n{idx}\n{cluster}\n"))
        })
        .collect();
    servers.inspect(|servers| servers.iter().for_each(wait_until_healthy))
}

/// Waits until a server has the state of the cluster.
fn wait_until_healthy(server: &NatsServer) {
    let address = format!("127.0.0.1:{}", server.monitor);
    let mut last = None;
    eventually("the server is a healthy part of the cluster", || {
        let is_open = std::net::TcpStream::connect(&address).is_ok();
        let (status, answer) = if is_open { send(&address, "GET", "/healthz", None) } else { Default::default() };
        // The output of a test that fails has all answers.
        if last.as_ref() != Some(&answer) {
            println!("health: {status} {}", String::from_utf8_lossy(&answer));
        }
        last = Some(answer);
        status == 200
    });
}

#[test]
fn failed_server_of_a_cluster_stops_no_stream_and_loses_no_result() {
    let folders = ["nodes-cluster-0", "nodes-cluster-1", "nodes-cluster-2"].map(Folder::new);
    let Some(mut servers) = start_cluster(&folders) else { return };
    let list: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
    let list = format!("nats://{}", list.join(","));
    let nodes: Vec<Node> = ["a", "b"].iter().map(|name| Node::start(&folders[0], &list, name, &["--replicas", "3"])).collect();
    (0..4).for_each(|idx| nodes[0].add(&format!("cam{idx}"), "test:"));
    let before = nodes[0].wait_until("all streams run", |streams| all_run(streams, 4, &["a", "b"]));
    let mut after = before.clone();
    for round in 0..2 {
        // All nodes are connected to the first server of the list. Another one may lead the bucket.
        let victim = if round == 0 {
            0
        } else {
            let leader = servers[0].leader("KV_roiflow-default").unwrap();
            leader.trim_start_matches('n').parse().unwrap()
        };
        servers[victim].kill();
        // The test pattern has 30 frames per second. An election takes 4 to 9 s, and twice as long if its first attempt fails.
        after = wait_for_frames(&nodes[0], &after, 30 * 17);
        assert_eq!(places(&after), places(&before), "nothing was planned again");
        nodes.iter().for_each(|node| eventually("the node has a server", || send(&node.address, "GET", "/readyz", None).0 == 200));
        servers[victim].start_again();
        servers.iter().for_each(wait_until_healthy);
    }
    nodes.into_iter().for_each(|node| drop(node.end()));
    let messages = servers[0].messages("roiflow-default-results");
    check_results(&messages);
    let longest = check_complete(&messages);
    assert!(longest > 2 * 30 * 17, "the results of both outages are there: {longest}");
    let gaps = check_gaps(&messages);
    assert!(gaps.values().flatten().all(|reason| reason.ends_with("has left")), "{gaps:?}");
}
