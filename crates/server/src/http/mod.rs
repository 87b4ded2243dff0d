//! The HTTP server: connections with limits, routes, and who may use them.
//!
//! - `routes`: the table of all routes, from which router and OpenAPI document are made. `openapi`: that document.
//! - `api`: requests about streams. `live`: results and pictures as they occur. `reply`: JSON in and out, and errors.
//! - `guard`: roles, logins, and protection against other web pages in the user's browser.

mod api;
mod guard;
mod live;
mod openapi;
mod reply;
mod routes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::metrics::Requests;
use crate::registry::Registry;
use crate::token::{Role, Tokens};

/// How long a client may take to send the head of a request.
const MAX_HEAD_TIME: Duration = Duration::from_secs(10);
/// How long open connections may take to complete their requests at the end.
const MAX_END: Duration = Duration::from_secs(1);
/// Pictures that are encoded at the same time.
const MAX_ENCODERS: usize = 2;
/// Pause after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What handlers share.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

pub(crate) struct Shared {
    registry: Registry,
    tokens: Tokens,
    requests: Requests,
    n_connections: AtomicUsize,
    encoders: Semaphore,
    /// Becomes true when the server ends; live streams end then.
    ending: watch::Receiver<bool>,
    version: &'static str,
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
    /// Accepts connections on this address. `version` is shown to clients.
    ///
    /// # Errors
    /// Returns an error if the address is not local and there is no token, or the address cannot be used.
    pub fn start(listen: SocketAddr, registry: Registry, tokens: Tokens, version: &'static str) -> Result<Self, String> {
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
        let (end, ending) = watch::channel(false);
        let max_connections = registry.policy().config().limits.connections;
        let app = App(Arc::new(Shared {
            registry,
            tokens,
            requests: Requests::default(),
            n_connections: AtomicUsize::new(0),
            encoders: Semaphore::new(MAX_ENCODERS),
            ending,
            version,
        }));
        let accepting = runtime.spawn(accept(listener, app, max_connections));
        Ok(Self { runtime, address, end, accepting })
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

/// Accepts connections until the server ends, then waits for those that are open.
async fn accept(listener: TcpListener, app: App, max_connections: usize) {
    let router = routes::router(&app);
    let places = Arc::new(Semaphore::new(max_connections));
    let mut ending = app.ending.clone();
    loop {
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
            _ = ending.wait_for(|is_ending| *is_ending) => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ending.wait_for(|is_ending| *is_ending) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (router, app) = (router.clone(), app.clone());
                tokio::spawn(async move {
                    app.n_connections.fetch_add(1, Ordering::Relaxed);
                    serve(stream, peer, router, app.ending.clone()).await;
                    app.n_connections.fetch_sub(1, Ordering::Relaxed);
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // Each open connection holds a place.
    let all = u32::try_from(max_connections).unwrap_or(u32::MAX);
    let _all_ended = places.acquire_many(all).await;
}

async fn serve(stream: TcpStream, peer: SocketAddr, router: axum::Router, mut ending: watch::Receiver<bool>) {
    // Small messages, such as events, are sent at once.
    let _set = stream.set_nodelay(true);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_HEAD_TIME)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
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
