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
use crate::servers::Failure;
use crate::{Servers, Storage};

/// Pause between two attempts to connect, to watch, or to create the bucket. It is short, because leases end after seconds.
const RETRY: Duration = Duration::from_millis(300);
/// How long a probe waits for a connection, and then for the first byte of the server.
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
    /// There is no connection, or it was lost.
    Lost,
    /// The coordinator was dropped.
    Dropped,
}

/// A connection with the bucket.
struct Opened {
    client: Client,
    bucket: Bucket,
    /// Index of its server.
    host_idx: usize,
}

impl Run {
    /// Runs until the coordinator is dropped, or the first attempt fails in a way that trying again does not solve. Reports the first attempt: with a
    /// text if no server answers.
    pub(crate) fn run(mut self, connected: &std::sync::mpsc::Sender<Result<Option<String>, String>>) {
        let mut watches: Vec<(Ticket, String)> = Vec::new();
        let mut addresses: BTreeSet<String> = self.servers.hosts().iter().cloned().collect();
        let (mut is_first, mut is_known) = (true, false);
        let mut said = None;
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
                let opened = if std::mem::take(&mut is_first) {
                    let opened = open(&self.servers, &self.storage, &self.node, lost, is_known).await;
                    let report = match &opened {
                        Ok(_) => Ok(None),
                        Err(Failure { text, may_pass: true }) => Ok(Some(text.clone())),
                        Err(Failure { text, .. }) => Err(text.clone()),
                    };
                    let is_failed = report.is_err();
                    let _received = connected.send(report);
                    if is_failed {
                        return End::Dropped;
                    }
                    opened
                } else {
                    match self.open_while_answering(lost, &mut watches, &addresses, is_known).await {
                        Some(opened) => opened,
                        None => return End::Dropped,
                    }
                };
                match opened {
                    Ok(Opened { client, bucket, host_idx }) => {
                        addresses.extend(client.server_info().connect_urls);
                        is_known = true;
                        let end = self.serve(&bucket, is_lost, &mut watches).await;
                        // Its server may still accept connections, and no longer answer.
                        self.servers.put_last(host_idx);
                        said = None;
                        end
                    }
                    Err(Failure { text, may_pass }) => {
                        tracing::debug!("{text}");
                        if !may_pass && said.as_ref() != Some(&text) {
                            tracing::error!("{text}");
                            said = Some(text);
                        }
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

    /// Tries to connect once, and refuses requests meanwhile. Returns `None` if the coordinator was dropped.
    async fn open_while_answering(
        &mut self,
        lost: watch::Sender<bool>,
        watches: &mut Vec<(Ticket, String)>,
        addresses: &BTreeSet<String>,
        is_known: bool,
    ) -> Option<Result<Opened, Failure>> {
        let (servers, storage, node) = (self.servers.clone(), self.storage.clone(), self.node.clone());
        let opening = async move {
            tokio::time::sleep(RETRY).await;
            open(&servers, &storage, &node, lost, is_known).await
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
                    let error = probe(addresses, self.servers.has_shared_forwarder()).await;
                    self.mailbox.push(Event::Reply { ticket, result: Err(error) });
                }
            }
        }
    }

    /// Executes requests until the connection is lost.
    async fn serve(&mut self, bucket: &Bucket, is_lost: watch::Receiver<bool>, watches: &mut Vec<(Ticket, String)>) -> End {
        let mut tasks = JoinSet::new();
        let (storage, mailbox) = (self.storage.clone(), self.mailbox.clone());
        let watch = |watch: (Ticket, String)| watched(bucket.clone(), storage.clone(), watch, mailbox.clone(), is_lost.clone());
        for begun in watches.iter() {
            tasks.spawn(watch(begun.clone()));
        }
        let mut lost = is_lost.clone();
        let end = loop {
            tokio::select! {
                _ = lost.wait_for(|is_lost| *is_lost) => break End::Lost,
                Some(_ended) = tasks.join_next() => {}
                request = self.requests.recv() => match request {
                    None => break End::Dropped,
                    Some((ticket, Request::Watch { prefix })) => {
                        watches.push((ticket, prefix.clone()));
                        tasks.spawn(watch((ticket, prefix)));
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
            while tasks.join_next().await.is_some() {}
            for (ticket, _) in watches.iter() {
                self.mailbox.push(Event::Watch { ticket: *ticket, change: Change::Interrupted });
            }
        }
        end
    }
}

/// Connects. If the bucket was there on an earlier connection, it is not looked up: in a cluster, that takes seconds after the loss of a
/// server, and leases would end meanwhile.
async fn open(servers: &Servers, storage: &Storage, node: &str, lost: watch::Sender<bool>, is_known: bool) -> Result<Opened, Failure> {
    let (client, host_idx) = servers.connect(node, lost).await?;
    let in_context = |failure: Failure| Failure { text: format!("{} (NATS at {})", failure.text, servers.shown()), ..failure };
    let bucket = Bucket::attach(&client, &storage.bucket).await.map_err(in_context)?;
    if !is_known {
        bucket.prepare(storage).await.map_err(in_context)?;
    }
    Ok(Opened { client, bucket, host_idx })
}

/// Executes a request, and reports its result. Ends with the connection.
async fn answered(bucket: Bucket, ticket: Ticket, request: Request, mailbox: Mailbox, mut is_lost: watch::Receiver<bool>) {
    let result = tokio::select! {
        result = tokio::time::timeout(REQUEST_TIMEOUT, bucket.execute(request)) =>
            result.unwrap_or_else(|_| Err(Error::Unreachable("no reply in time".to_owned()))),
        _ = is_lost.wait_for(|is_lost| *is_lost) => Err(Error::Unreachable("the connection was lost".to_owned())),
    };
    mailbox.push(Event::Reply { ticket, result });
}

/// Reports the changes of a watch until the connection is lost. A watch that fails begins again.
async fn watched(bucket: Bucket, storage: Storage, watch: (Ticket, String), mailbox: Mailbox, mut is_lost: watch::Receiver<bool>) {
    let (ticket, prefix) = watch;
    let report = |change| mailbox.push(Event::Watch { ticket, change });
    let watching = async {
        loop {
            let ended = bucket.watch(&prefix, report).await;
            tracing::debug!("the watch of `{prefix}` has ended: {ended:?}");
            report(Change::Interrupted);
            tokio::time::sleep(RETRY).await;
            // The servers may have lost their files.
            if let Err(Failure { text, .. }) = bucket.prepare(&storage).await {
                tracing::debug!("{text}");
            }
        }
    };
    tokio::select! {
        () = watching => {}
        _ = is_lost.wait_for(|is_lost| *is_lost) => {}
    }
}

/// How an address answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probed {
    /// It refuses connections.
    Refuses,
    /// It closes connections before it sends a byte. A NATS server sends first.
    Closes,
    /// It answers, or does not answer in time.
    Other,
}

/// Tries all addresses. `Down` if each refuses connections, so that no node reaches a server. An address that closes connections may be a
/// forwarder whose server is away, or which is cut off from a server that other nodes reach directly.
async fn probe(addresses: &BTreeSet<String>, has_shared_forwarder: bool) -> Error {
    let mut probes = JoinSet::new();
    for address in addresses.iter().cloned() {
        probes.spawn(async move {
            let Ok(connected) = tokio::time::timeout(MAX_PROBE, TcpStream::connect(address)).await else { return Probed::Other };
            match connected {
                Ok(stream) => match tokio::time::timeout(MAX_PROBE, first_read(&stream)).await {
                    Ok(Ok(0) | Err(_)) => Probed::Closes,
                    Ok(Ok(_)) | Err(_) => Probed::Other,
                },
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => Probed::Refuses,
                Err(_) => Probed::Other,
            }
        });
    }
    let mut seen = Vec::new();
    while let Some(probed) = probes.join_next().await {
        seen.push(probed.unwrap_or(Probed::Other));
    }
    let closes = seen.contains(&Probed::Closes);
    if seen.contains(&Probed::Other) {
        Error::Unreachable("there is no connection to a NATS server".to_owned())
    } else if !closes {
        Error::Down("all NATS servers refuse connections".to_owned())
    } else if has_shared_forwarder {
        Error::Down("the forwarder of all nodes closes connections to NATS".to_owned())
    } else {
        let why =
            "NATS accepts connections and closes them at once, as a forwarder does whose server is away. Other nodes may still reach NATS";
        Error::Unreachable(why.to_owned())
    }
}

/// Waits until the server sends something or closes the connection. Returns the number of bytes; 0: closed.
async fn first_read(stream: &TcpStream) -> std::io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}
