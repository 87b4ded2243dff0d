//! The HTTP server: connections with limits, routes, and who may use them.
//!
//! - `routes`: the table of all routes, from which router and OpenAPI document are made. `openapi`: that document.
//! - `api`: requests about streams. `live`: results and pictures as they occur. `video`: live video. `crops`: objects cut out of
//!   frames. `models`: the folder of models.
//! - `reply`: JSON in and out, and errors.
//! - `peers`: requests from node to node. `nodes`: requests about nodes, and lists of the streams of all nodes.
//! - `clients`: how many connections a client may have. `rate`: how many requests it may send.
//! - `guard`: roles, logins, and protection against other web pages in the user's browser.

mod api;
mod clients;
mod crops;
mod guard;
mod live;
mod models;
mod nodes;
mod openapi;
mod peers;
mod rate;
mod reply;
mod routes;
mod video;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::response::IntoResponse;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

use self::clients::{Client, Full, Share, Shares, Stranger, Strangers};
use self::peers::Peers;
use self::rate::Rates;
use crate::error::Error;
use crate::metrics::Requests;
use crate::nodes::Nodes;
use crate::registry::Registry;
use crate::tls::Tls;
use crate::token::{Role, Tokens};

/// How long a client may take to send the head of a request, or to agree on the encryption.
const MAX_HEAD_TIME: Duration = Duration::from_secs(10);
/// How long open connections may take to complete their requests at the end.
const MAX_END: Duration = Duration::from_secs(1);
/// Pictures that are encoded at the same time.
const MAX_ENCODERS: usize = 2;
/// Inputs that are tested at the same time.
const MAX_PROBES: usize = 2;
/// Pause after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What handlers share.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

pub(crate) struct Shared {
    nodes: Arc<Nodes>,
    tokens: Tokens,
    /// How to reach the servers of the other nodes; `None`: there are no other nodes.
    peers: Option<Peers>,
    requests: Requests,
    n_connections: AtomicUsize,
    strangers: Arc<Strangers>,
    connections: Arc<Shares>,
    /// Requests without a valid token that clients behind trusted proxies wait for.
    visits: Arc<Shares>,
    /// Clients that receive results, pictures or video live.
    live: Arc<Shares>,
    encoders: Semaphore,
    probes: Semaphore,
    uploads: Semaphore,
    rates: Rates,
    /// Health probes are limited apart, so that no other request of the same address delays them.
    health_rates: Rates,
    failed_logins: guard::FailedLogins,
    /// The certificate; `None`: connections are not encrypted.
    tls: Option<Arc<Tls>>,
    /// Becomes true when the server ends; live streams end then.
    ending: watch::Receiver<bool>,
    version: &'static str,
}

impl Shared {
    /// The streams that run on this node.
    fn registry(&self) -> &Registry {
        self.nodes.registry()
    }
}

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// A server that accepts connections.
pub struct Server {
    runtime: tokio::runtime::Runtime,
    address: SocketAddr,
    end: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Accepts connections on this address, which are encrypted if there is a certificate. `version` is shown to clients.
    ///
    /// # Errors
    /// Returns an error if the address is not local and there is no token, or the address cannot be used.
    pub fn start(
        listen: SocketAddr,
        nodes: Arc<Nodes>,
        tokens: Tokens,
        tls: Option<Arc<Tls>>,
        version: &'static str,
    ) -> Result<Self, String> {
        let rate = nodes.registry().policy().config().limits.requests_per_second;
        Self::bind(listen, rate, &tokens)?.serve(nodes, tokens, tls, Vec::new(), version)
    }

    /// Opens the address, so that its port is known, but accepts no connections yet.
    ///
    /// # Errors
    /// Returns the errors of [`Server::start`].
    pub fn bind(listen: SocketAddr, requests_per_second: u32, tokens: &Tokens) -> Result<Bound, String> {
        if tokens.is_empty() && !listen.ip().is_loopback() {
            return Err(format!(
                "listen on {listen}: expected a token, because other machines can reach this address, got none. Create one with \
                 `roiflow serve --create-token operator`, or listen on 127.0.0.1"
            ));
        }
        let failed = |error: &dyn std::fmt::Display| format!("cannot listen on {listen}: {error}");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("roiflow-http")
            .enable_all()
            .build()
            .map_err(|error| failed(&error))?;
        let listener = runtime.block_on(TcpListener::bind(listen)).map_err(|error| failed(&error))?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        Ok(Bound { runtime, listener, address, requests_per_second })
    }

    /// The address on which the server accepts connections.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more connections, ends live streams, and completes requests within a second.
    pub fn end(self) {
        let deadline = Instant::now() + MAX_END;
        let _ended = self.end.send(true);
        let until = tokio::time::Instant::from_std(deadline);
        let accepting = self.accepting;
        let _in_time = self.runtime.block_on(async { tokio::time::timeout_at(until, accepting).await });
        self.runtime.shutdown_timeout(Duration::from_millis(100));
    }
}

/// A server whose address is open, but which accepts no connections yet.
pub struct Bound {
    runtime: tokio::runtime::Runtime,
    listener: TcpListener,
    address: SocketAddr,
    requests_per_second: u32,
}

impl Bound {
    /// The address on which the server will accept connections.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections, which are encrypted if there is a certificate. `authorities` sign the certificates of the other nodes' servers.
    /// `version` is shown to clients.
    ///
    /// # Errors
    /// Returns an error if the authorities cannot be used.
    pub fn serve(
        self,
        nodes: Arc<Nodes>,
        tokens: Tokens,
        tls: Option<Arc<Tls>>,
        authorities: Vec<rustls::pki_types::CertificateDer<'static>>,
        version: &'static str,
    ) -> Result<Server, String> {
        let Self { runtime, listener, address, requests_per_second } = self;
        let peers = match nodes.name_among_nodes() {
            Some(name) => Some(Peers::new(&name, nodes.key().map(|key| key.peer()), crate::tls::client(authorities)?)),
            None => None,
        };
        let config = nodes.registry().policy().config();
        if let Some(folder) = config.models.as_deref().filter(|_| config.upload_models) {
            crate::models::clean_up(folder);
        }
        let (end, ending) = watch::channel(false);
        let limits = config.limits.clone();
        let app = App(Arc::new(Shared {
            nodes,
            tokens,
            peers,
            requests: Requests::default(),
            n_connections: AtomicUsize::new(0),
            strangers: Strangers::new(limits.unauthenticated_per_address),
            connections: Shares::new(limits.connections, limits.connections_per_client),
            visits: Shares::new(limits.connections, limits.unauthenticated_per_address),
            live: Shares::new(limits.subscribers, limits.subscribers_per_client),
            encoders: Semaphore::new(MAX_ENCODERS),
            probes: Semaphore::new(MAX_PROBES),
            uploads: Semaphore::new(1),
            rates: Rates::new(requests_per_second),
            health_rates: Rates::new(requests_per_second),
            failed_logins: guard::FailedLogins::default(),
            tls,
            ending,
            version,
        }));
        let accepting = runtime.spawn(accept(listener, app));
        Ok(Server { runtime, address, end, accepting })
    }
}

/// Accepts connections until the server ends, then waits for those that are open.
async fn accept(listener: TcpListener, app: App) {
    let router = routes::router(&app);
    let mut ending = app.ending.clone();
    let (open, mut all_ended) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ending.wait_for(|is_ending| *is_ending) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (router, app, open) = (router.clone(), app.clone(), open.clone());
                // Before the task runs, so that a burst of connections ends the oldest ones.
                let stranger = app.strangers.enter(peer);
                tokio::spawn(async move {
                    app.n_connections.fetch_add(1, Ordering::Relaxed);
                    connect(stream, peer, router, &app, stranger).await;
                    app.n_connections.fetch_sub(1, Ordering::Relaxed);
                    drop(open);
                });
                // A request that has arrived is read before further connections can end its connection.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                app.strangers.make_room();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((listener, open));
    let _none = all_ended.recv().await;
}

/// Which limits apply to a connection.
#[derive(Debug)]
enum Standing {
    /// No valid token was named yet, and no trusted proxy has sent a request.
    #[expect(dead_code, reason = "dropping it frees the place")]
    Stranger(Stranger),
    /// A client has named a valid token.
    Client { _share: Share },
    /// A trusted proxy, whose clients have limits of their own.
    Proxy { _share: Share },
}

/// Agrees on the encryption if the server has a certificate, and serves the connection until it must make room for another one.
async fn connect(stream: TcpStream, peer: SocketAddr, router: axum::Router, app: &App, stranger: Stranger) {
    // Small messages, such as events, are sent at once.
    let _set = stream.set_nodelay(true);
    // It is notified only while the connection is that of a stranger.
    let makes_room = stranger.end.clone();
    let standing = Arc::new(Mutex::new(Standing::Stranger(stranger)));
    let served = async {
        let mut ending = app.ending.clone();
        let Some(tls) = &app.tls else { return serve(stream, peer, router, app, standing).await };
        let agreed = tokio::select! {
            agreed = tokio::time::timeout(MAX_HEAD_TIME, agree(stream, tls)) => agreed,
            _ = ending.wait_for(|is_ending| *is_ending) => return,
        };
        match agreed {
            Ok(Ok(stream)) => serve(stream, peer, router, app, standing).await,
            Ok(Err(error)) => tracing::debug!("the connection of {peer} cannot be encrypted: {error}"),
            Err(_) => tracing::debug!("the connection of {peer} was not encrypted in time"),
        }
    };
    tokio::select! {
        () = served => {}
        () = makes_room.notified() => tracing::debug!("the connection of {peer} has ended for a newer one: it had named no valid token"),
    }
}

/// Agrees with a client on the encryption. A client that does not encrypt gets an answer that says so.
async fn agree(mut stream: TcpStream, tls: &Tls) -> std::io::Result<tokio_rustls::server::TlsStream<TcpStream>> {
    /// First byte of each TLS connection.
    const HANDSHAKE: u8 = 22;
    let mut first = [0];
    let n_bytes = stream.peek(&mut first).await?;
    if n_bytes == 1 && first[0] != HANDSHAKE {
        // An unread request would reset the connection before the client has read the answer.
        let _request = stream.read(&mut [0; 4096]).await?;
        let text = "This server encrypts connections. Use an address that begins with https://.\n";
        let length = text.len();
        let head = format!("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        stream.write_all(format!("{head}{text}").as_bytes()).await?;
        stream.shutdown().await?;
        return Err(std::io::Error::other("the client does not encrypt"));
    }
    tls.acceptor().accept(stream).await
}

/// Whether a request only asks for the health of the server.
fn is_probe(request: &hyper::Request<hyper::body::Incoming>) -> bool {
    matches!(request.uri().path(), "/healthz" | "/readyz")
}

/// Checks the limits of a request from `peer`. `standing` is that of its connection. Returns a share that is held until the request is answered.
fn admit(
    app: &App,
    client: &Client,
    peer: IpAddr,
    is_probe: bool,
    standing: &Mutex<Standing>,
) -> Result<Option<Share>, Box<axum::response::Response>> {
    let rates = if is_probe { &app.health_rates } else { &app.rates };
    if let Some(bucket) = rates.of(client.address, Instant::now()) {
        bucket.take(Instant::now()).map_err(|error| Box::new(too_many(error)))?;
    }
    let refused = |error| Box::new(too_many_connections(error));
    let mut standing = standing.lock().unwrap_or_else(PoisonError::into_inner);
    let proxies = app.registry().policy().config().trusted_proxies.as_ref();
    if matches!(*standing, Standing::Stranger(_)) && !is_probe && proxies.is_some_and(|proxies| proxies.contains(peer)) {
        let share = app.connections.take(&Client::of_proxy(peer)).map_err(refused)?;
        *standing = Standing::Proxy { _share: share };
    }
    match &*standing {
        Standing::Proxy { .. } if client.role.is_none() => app.visits.take(client).map(Some).map_err(refused),
        Standing::Stranger(_) if client.role.is_some() && !is_probe => {
            let share = app.connections.take(client).map_err(refused)?;
            *standing = Standing::Client { _share: share };
            Ok(None)
        }
        _ => Ok(None),
    }
}

async fn serve<S>(stream: S, peer: SocketAddr, router: axum::Router, app: &App, standing: Arc<Mutex<Standing>>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut ending = app.ending.clone();
    let (router, of_requests) = (TowerToHyperService::new(router), app.clone());
    let limited = service_fn(move |mut request| {
        let client = Client::of(&of_requests, peer.ip(), request.headers());
        let admitted = admit(&of_requests, &client, peer.ip(), is_probe(&request), &standing);
        request.extensions_mut().insert(client);
        let (router, app) = (router.clone(), of_requests.clone());
        async move {
            match admitted {
                Ok(_share) => router.call(request).await,
                Err(refused) => {
                    app.requests.count(refused.status().as_u16());
                    Ok(*refused)
                }
            }
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_HEAD_TIME)
        .serve_connection(TokioIo::new(stream), limited)
        .with_upgrades();
    tokio::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => Some(served),
        _ = ending.wait_for(|is_ending| *is_ending) => None,
    };
    let served = match served {
        Some(served) => served,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!("the connection of {peer} ended: {error}");
    }
}

/// The answer to a client that sends too many requests.
fn too_many(wait: Duration) -> axum::response::Response {
    let message = "too many requests: expected fewer requests of this client per second. Wait for the time in `Retry-After`, or raise \
                   `limits.requests-per-second` of the server";
    let mut response = Error::new(429, "too_many_requests", message).into_response();
    let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
    response.headers_mut().insert(axum::http::header::RETRY_AFTER, seconds.into());
    response
}

/// The answer to a client that has too many connections.
fn too_many_connections(full: Full) -> axum::response::Response {
    let message = match full {
        Full::All(max) => format!("too many connections: expected at most {max}, got one more. Try again later"),
        Full::OfClient(max) => format!(
            "too many connections: expected at most {max} of this client, got one more. Close another one, or raise the limits of the server"
        ),
    };
    let mut response = Error::new(503, "too_many_connections", message).into_response();
    response.headers_mut().insert(axum::http::header::CONNECTION, axum::http::HeaderValue::from_static("close"));
    response
}

/// Role that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody: the page without data, health, login.
    Public,
    /// Clients with at least this role.
    Role(Role),
}

#[cfg(test)]
mod tests;
