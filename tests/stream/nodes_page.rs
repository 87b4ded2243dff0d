//! The page of the nodes in a real browser.

use crate::cli::Folder;
use crate::nodes::{NatsServer, Node, all_run};
use crate::serve_page::Browser;

#[test]
fn node_is_drained_and_a_stream_moved_in_a_browser() {
    let folder = Folder::new("nodes-page");
    let Some(nats) = NatsServer::start(&folder) else { return };
    let Some(browser) = Browser::start() else { return };
    let nodes: Vec<Node> = ["a", "b"].iter().map(|name| Node::start(&folder, &nats.url(), name, &[])).collect();
    (0..2).for_each(|idx| nodes[0].add(&format!("cam{idx}"), "test:"));
    nodes[0].wait_until("all streams run", |streams| all_run(streams, 2, &["a", "b"]));
    browser.open(&format!("http://{}/#/nodes", nodes[0].address));
    let n_streams = |node: &str| format!("document.querySelectorAll('[data-node={node}] li').length");
    browser.wait_until(&format!("return {} + {} === 2", n_streams("a"), n_streams("b")));
    browser.click("[data-node=b] button.drain");
    browser.wait_until("return !!document.querySelector('[data-node=b] .state.draining')");
    browser.wait_until(&format!("return {} === 2 && {} === 0", n_streams("a"), n_streams("b")));
    browser.click("[data-node=b] button.drain");
    browser.wait_until("return !!document.querySelector('[data-node=b] .state.present')");
    browser.run(
        "const select = document.querySelector('[data-stream=cam0] select');
         select.value = 'b';
         select.dispatchEvent(new Event('change', {bubbles: true}));",
    );
    browser.wait_until("return !!document.querySelector('[data-node=b] [data-stream=cam0]')");
    let messages = browser.messages();
    assert!(!messages.contains("SEVERE"), "{messages}");
}
