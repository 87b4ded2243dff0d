//! The thread that has the connection: one session for each connection, from its begin to its loss.
//!
//! Each session has an asynchronous runtime and a client of its own. When the connection is lost, both are dropped, so no buffered request
//! reaches a server over a later connection.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::Duration;

use async_nats::Client;
use roiflow_nodes::coordinator::{Change, Error, Event, REQUEST_TIMEOUT, Request, Ticket};
use roiflow_nodes::mailbox::Mailbox;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::bucket::Bucket;
use crate::{Servers, Storage};

/// Pause between two attempts to connect. It is short, because leases end after seconds.
const RETRY: Duration = Duration::from_millis(300);
/// How long a probe waits for a connection.
const MAX_PROBE: Duration = Duration::from_millis(500);

/// The thread with its state over all connections.
pub(crate) struct Run {
    pub(crate) servers: Servers,
    pub(crate) storage: Storage,
    pub(crate) node: String,
    pub(crate) requests: mpsc::UnboundedReceiver<(Ticket, Request)>,
    pub(crate) mailbox: Mailbox,
}

/// Why a session ended.
enum End {
    /// The connection was lost.
    Lost,
    /// The coordinator was dropped.
    Dropped,
}

impl Run {
    /// Runs until the coordinator is dropped, or the first connection fails. Reports the first connection.
    pub(crate) fn run(mut self, connected: &std::sync::mpsc::Sender<Result<(), String>>) {
        let mut watches: Vec<(Ticket, String)> = Vec::new();
        let mut addresses: BTreeSet<String> = self.servers.hosts().iter().cloned().collect();
        let mut is_first = true;
        loop {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    tracing::error!("cannot start the runtime of NATS: {error}");
                    std::thread::sleep(RETRY);
                    continue;
                }
            };
            let end = runtime.block_on(async {
                let (lost, is_lost) = watch::channel(false);
                let opened = if is_first {
                    let opened = self.open(lost).await;
                    let report = opened.as_ref().map(|_| ()).map_err(Clone::clone);
                    let is_failed = report.is_err();
                    let _received = connected.send(report);
                    if is_failed {
                        return End::Dropped;
                    }
                    opened
                } else {
                    match self.open_while_answering(lost, &mut watches, &addresses).await {
                        Some(opened) => opened,
                        None => return End::Dropped,
                    }
                };
                match opened {
                    Ok((client, bucket)) => {
                        addresses.extend(client.server_info().connect_urls);
                        is_first = false;
                        self.serve(&bucket, is_lost, &mut watches).await
                    }
                    Err(error) => {
                        tracing::debug!("{error}");
                        End::Lost
                    }
                }
            });
            // Ends all tasks of the connection.
            drop(runtime);
            if matches!(end, End::Dropped) {
                return;
            }
        }
    }

    async fn open(&self, lost: watch::Sender<bool>) -> Result<(Client, Bucket), String> {
        let client = self.servers.connect(&self.node, lost).await?;
        let bucket = Bucket::open(&client, &self.storage).await.map_err(|error| format!("{error} (NATS at {})", self.servers.shown()))?;
        Ok((client, bucket))
    }

    /// Tries to connect once, and refuses requests meanwhile. Returns `None` if the coordinator was dropped.
    async fn open_while_answering(
        &mut self,
        lost: watch::Sender<bool>,
        watches: &mut Vec<(Ticket, String)>,
        addresses: &BTreeSet<String>,
    ) -> Option<Result<(Client, Bucket), String>> {
        let (servers, storage, node) = (self.servers.clone(), self.storage.clone(), self.node.clone());
        let opening = async move {
            tokio::time::sleep(RETRY).await;
            let client = servers.connect(&node, lost).await?;
            Bucket::open(&client, &storage).await.map(|bucket| (client, bucket))
        };
        tokio::pin!(opening);
        loop {
            let request = tokio::select! {
                opened = &mut opening => return Some(opened),
                request = self.requests.recv() => request?,
            };
            match request {
                (ticket, Request::Watch { prefix }) => watches.push((ticket, prefix)),
                (ticket, _) => {
                    let error = probe(addresses).await;
                    self.mailbox.push(Event::Reply { ticket, result: Err(error) });
                }
            }
        }
    }

    /// Executes requests until the connection is lost.
    async fn serve(&mut self, bucket: &Bucket, is_lost: watch::Receiver<bool>, watches: &mut Vec<(Ticket, String)>) -> End {
        let mut tasks = JoinSet::new();
        for (ticket, prefix) in watches.iter() {
            tasks.spawn(watched(bucket.clone(), *ticket, prefix.clone(), self.mailbox.clone(), is_lost.clone()));
        }
        let mut lost = is_lost.clone();
        let end = loop {
            tokio::select! {
                _ = lost.wait_for(|is_lost| *is_lost) => break End::Lost,
                // A watch that has ended misses changes, so the connection begins again.
                Some(done) = tasks.join_next() => if matches!(done, Ok(Done::Watch)) { break End::Lost },
                request = self.requests.recv() => match request {
                    None => break End::Dropped,
                    Some((ticket, Request::Watch { prefix })) => {
                        watches.push((ticket, prefix.clone()));
                        tasks.spawn(watched(bucket.clone(), ticket, prefix, self.mailbox.clone(), is_lost.clone()));
                    }
                    Some((ticket, request)) => {
                        tasks.spawn(answered(bucket.clone(), ticket, request, self.mailbox.clone(), is_lost.clone()));
                    }
                },
            }
        };
        if matches!(end, End::Lost) {
            // The tasks see the loss, and report it for their requests.
            drop(lost);
            bucket.declare_lost();
            while tasks.join_next().await.is_some() {}
            for (ticket, _) in watches.iter() {
                self.mailbox.push(Event::Watch { ticket: *ticket, change: Change::Interrupted });
            }
        }
        end
    }
}

/// Which task has ended.
enum Done {
    Request,
    Watch,
}

/// Executes a request, and reports its result. Ends with the connection.
async fn answered(bucket: Bucket, ticket: Ticket, request: Request, mailbox: Mailbox, mut is_lost: watch::Receiver<bool>) -> Done {
    let mut given_up = bucket.lost();
    let result = tokio::select! {
        result = tokio::time::timeout(REQUEST_TIMEOUT, bucket.execute(request)) =>
            result.unwrap_or_else(|_| Err(Error::Unreachable("no reply in time".to_owned()))),
        _ = is_lost.wait_for(|is_lost| *is_lost) => Err(Error::Unreachable("the connection was lost".to_owned())),
        _ = given_up.wait_for(|is_lost| *is_lost) => Err(Error::Unreachable("the connection was lost".to_owned())),
    };
    mailbox.push(Event::Reply { ticket, result });
    Done::Request
}

/// Reports the changes of a watch until the connection is lost.
async fn watched(bucket: Bucket, ticket: Ticket, prefix: String, mailbox: Mailbox, mut is_lost: watch::Receiver<bool>) -> Done {
    let mut given_up = bucket.lost();
    let report = |change| mailbox.push(Event::Watch { ticket, change });
    tokio::select! {
        ended = bucket.watch(&prefix, report) => tracing::debug!("the watch of `{prefix}` has ended: {ended:?}"),
        _ = is_lost.wait_for(|is_lost| *is_lost) => {}
        _ = given_up.wait_for(|is_lost| *is_lost) => {}
    }
    Done::Watch
}

/// Tries all addresses. `Down` if each refuses connections, so that no node reaches a server.
async fn probe(addresses: &BTreeSet<String>) -> Error {
    let mut probes = JoinSet::new();
    for address in addresses.iter().cloned() {
        probes.spawn(async move { tokio::time::timeout(MAX_PROBE, TcpStream::connect(address)).await });
    }
    let mut is_refused = true;
    while let Some(probed) = probes.join_next().await {
        is_refused &= matches!(probed, Ok(Ok(Err(error))) if error.kind() == ErrorKind::ConnectionRefused);
    }
    if is_refused {
        Error::Down("all NATS servers refuse connections".to_owned())
    } else {
        Error::Unreachable("there is no connection to a NATS server".to_owned())
    }
}
