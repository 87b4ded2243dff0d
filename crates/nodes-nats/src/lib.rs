//! The coordinator of nodes on NATS: its items are keys of a JetStream key-value bucket.
//!
//! Crate `roiflow-nodes` has the interface, `roiflow_nodes::coordinator`, with the rules that this implementation follows. How it follows
//! them:
//!
//! | rule | by |
//! |---|---|
//! | 1: revisions grow | a revision is the sequence number of the bucket's stream |
//! | 2: a request is executed at most once | each connection has a client of its own, which is dropped with all its buffers when the connection is lost; a copy of a write fails if the write was executed |
//! | 3: `Down` means that no node can reach the servers | all addresses, also those that the servers have announced, refuse connections; if all nodes use the same forwarder, or close them at once |
//! | 4: a watch reports interruptions | each connection has consumers of its own |
//! | 5: a time-to-live begins with the write | the header `Nats-TTL` of the write |
//! | 6: each request gets one reply | each request is a task with a time limit, and ends with the connection |
//!
//! While a cluster elects another leader of the bucket, writes get no answer, and the bucket cannot be looked up. So a connection is used
//! without looking up the bucket, each write is sent again every half second, and a watch that fails begins again by itself.
//!
//! - [`Servers`]: addresses and login. [`Nats`]: the coordinator. [`ResultLog`]: the results that nodes have published.
//! - `session`: one connection, from its begin to its loss. `bucket`: reads, writes and watches of the bucket.

#![deny(unsafe_code)]

mod bucket;
mod results;
mod servers;
mod session;

use std::time::Duration;

use roiflow_nodes::Coordinator;
use roiflow_nodes::coordinator::{Event, Request, Ticket, Waker};
use roiflow_nodes::mailbox::Mailbox;
use tokio::sync::mpsc;

pub use results::{Last, ResultLog};
pub use servers::Servers;

/// A client of the coordinator on NATS. A thread of its own has the connection; it ends when the client is dropped.
#[derive(Debug)]
pub struct Nats {
    requests: mpsc::UnboundedSender<(Ticket, Request)>,
    mailbox: Mailbox,
}

/// The buckets and streams on the NATS servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// Name of the key-value bucket: letters, digits, `-` and `_`. Nodes with the same bucket share their streams.
    pub bucket: String,
    /// Number of servers that keep each item and each result: 1, 3 or 5.
    pub replicas: usize,
    /// JetStream stream that is created for the results of the subject of the nodes; `None`: none is created.
    pub results: Option<Results>,
}

/// The JetStream stream of the results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Results {
    /// Name of the JetStream stream.
    pub stream: String,
    /// Its subjects.
    pub subjects: String,
    /// Results that are older are removed.
    pub max_age: Duration,
    /// The oldest results are removed when all together have more bytes.
    pub max_bytes: i64,
}

impl Nats {
    /// Connects, and creates the bucket and the stream of results if the servers do not have them. `node` is the name that the servers
    /// show for this connection. Returns after the first attempt. If no server can be reached, the client tries again and again, and also
    /// returns why it waits.
    ///
    /// # Errors
    /// Returns an error if the login is wrong, or the server is too old or has no JetStream.
    pub fn connect(servers: Servers, storage: Storage, node: &str) -> Result<(Self, Option<String>), String> {
        let (requests, received) = mpsc::unbounded_channel();
        let mailbox = Mailbox::default();
        let (connected, first) = std::sync::mpsc::channel();
        let run = session::Run { servers, storage, node: node.to_owned(), requests: received, mailbox: mailbox.clone() };
        std::thread::Builder::new()
            .name("roiflow-nats".to_owned())
            .spawn(move || run.run(&connected))
            .map_err(|error| format!("start the thread of NATS failed: {error}"))?;
        let waits = first.recv().unwrap_or_else(|_| Err("the thread of NATS has ended".to_owned()))?;
        Ok((Self { requests, mailbox }, waits))
    }
}

impl Coordinator for Nats {
    fn submit(&mut self, ticket: Ticket, request: Request) {
        // The thread ends only after this client.
        let _sent = self.requests.send((ticket, request));
    }

    fn poll(&mut self, wait: Duration) -> Option<Event> {
        self.mailbox.poll(wait)
    }

    fn waker(&self) -> Waker {
        self.mailbox.waker()
    }
}
