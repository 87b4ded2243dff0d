//! The servers of a model: their connections, their health, and the choice of a server for each call.
//!
//! Each server has a keeper, a task that connects to the server and checks its health:
//!
//! ```text
//!                 the model is ready            the connection ended
//!   Connecting ───────────────────────▶ Up ───────────────────────────▶ Connecting
//!        │                              │ the model is not ready, a check failed,
//!        │ cannot connect,              │ or MAX_FAILED_CALLS failed in a row
//!        │ or the model is not ready    ▼
//!        └──────────────────────────▶ Down, until the next attempt of the keeper succeeds
//! ```
//!
//! A call goes to the server with the fewest calls in flight among those that are `Up`. If none is `Up`, it waits for servers that are
//! `Connecting`. If all are `Down` (ejected), it fails at once, so that a server that does not answer does not block a stream. A failed
//! call is repeated only if the server certainly computed nothing.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use http::HeaderValue;
use rustls::ClientConfig;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::call::{Call, Response};
use super::connection::Connection;
use super::failure::{Blame, Failure};
use super::options::{Address, Options};
use super::protocol::ModelMetadataResponse;
use super::socket;
use crate::runtime::{Error, ErrorKind, Result};

/// Number of failed calls in a row after which a server is ejected, although it says that it is ready.
const MAX_FAILED_CALLS: usize = 5;
/// Pause before the next attempt to connect. It doubles with each failed attempt, up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two attempts to connect.
const MAX_PAUSE: Duration = Duration::from_secs(3);
/// Pause after a server that was up is ejected, in which it can recover.
const EJECTION: Duration = Duration::from_secs(1);

/// Returns the asynchronous runtime (event loop and threads) that serves all connections of the process.
///
/// # Errors
/// Returns `Device` if the system cannot start a thread.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Result<Runtime>> = OnceLock::new();
    let start = || {
        // The threads only send and receive bytes, so one thread for eight cores is enough.
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(8).min(4);
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(n_threads).thread_name("roiflow-remote").enable_io().enable_time();
        builder.build().map_err(|error| {
            Error::with_source(ErrorKind::Device, format!("device {}: cannot start a thread: {error}", super::NAME), error)
        })
    };
    RUNTIME.get_or_init(start).as_ref().map_err(Error::clone)
}

/// Runs `work` on the threads of [`runtime`] and blocks until it has a result. The calling thread may belong to another asynchronous
/// runtime.
pub(crate) fn wait_for<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    runtime()?.spawn(async move {
        // The receiver waits below, so it exists.
        let _received = sender.send(work.await);
    });
    receiver.recv().map_err(|_| Error::new(ErrorKind::Panic, format!("device {}: a task panicked", super::NAME)))
}

/// The servers of a model. The last reference closes their connections.
pub(crate) struct Servers {
    shared: Arc<Shared>,
    keepers: Vec<AbortHandle>,
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    authorization: Option<HeaderValue>,
    tls: Option<Arc<ClientConfig>>,
    servers: Vec<Server>,
    /// Notified when the state of a server changes.
    changed: watch::Sender<()>,
    /// The server that the next call prefers if several have equally many calls in flight.
    next: AtomicUsize,
}

struct Server {
    address: Address,
    state: Mutex<State>,
    /// Asks the keeper to check the server now.
    check: Notify,
    n_in_flight: AtomicUsize,
    n_failed_in_a_row: AtomicUsize,
    /// When the latest call succeeded. The keeper does not check a server that works.
    succeeded: Mutex<Option<Instant>>,
}

enum State {
    /// The first attempt to connect, at the start or after the connection ended.
    Connecting,
    Up(Connection),
    /// Calls go to other servers. Contains the reason.
    Down(Failure),
}

impl Servers {
    /// Begins to connect to all servers.
    ///
    /// # Errors
    /// Returns `Io` or `Config` if TLS or the token cannot be used; `Device` if the system cannot start a thread.
    pub(crate) fn new(options: Options) -> Result<Self> {
        let authorization = options.token.as_ref().map(super::options::Token::header).transpose()?;
        let tls = socket::tls(&options)?;
        let servers = options.servers.iter().map(|address| Server {
            address: address.clone(),
            state: Mutex::new(State::Connecting),
            check: Notify::new(),
            n_in_flight: AtomicUsize::new(0),
            n_failed_in_a_row: AtomicUsize::new(0),
            succeeded: Mutex::default(),
        });
        let servers: Vec<_> = servers.collect();
        let shared = Shared { authorization, tls, servers, changed: watch::Sender::new(()), next: AtomicUsize::new(0), options };
        let shared = Arc::new(shared);
        let runtime = runtime()?;
        let keepers = (0..shared.servers.len()).map(|idx| runtime.spawn(keep(shared.clone(), idx)).abort_handle()).collect();
        Ok(Self { shared, keepers })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Asks a server for the ports of the model.
    ///
    /// # Errors
    /// Returns `Unavailable` or `Timeout` if no server answers; `NotFound` if the servers do not have the model.
    pub(crate) fn metadata(&self) -> Result<ModelMetadataResponse> {
        let shared = self.shared.clone();
        let asked = wait_for(async move {
            let patience = shared.options.connect_timeout;
            let (server, connection) = shared.choose(&[], Instant::now() + 2 * patience).await?;
            connection.metadata(patience.max(shared.options.timeout)).await.map_err(|failure| failure.at(&server.address))
        })?;
        asked.map_err(Failure::into_error)
    }

    /// Checks that a server can use shared memory of this machine.
    ///
    /// # Errors
    /// Returns `Config` if it cannot; `Unavailable` or `Timeout` if no server answers.
    pub(crate) fn check_shared_memory(&self) -> Result<()> {
        let shared = self.shared.clone();
        let checked = wait_for(async move {
            let deadline = Instant::now() + 2 * shared.options.connect_timeout;
            let (server, connection) = shared.choose(&[], deadline).await?;
            super::shared_memory::check(&connection, deadline).await.map_err(|failure| failure.at(&server.address))
        })?;
        checked.map_err(Failure::into_error)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.keepers.iter().for_each(AbortHandle::abort);
    }
}

impl Shared {
    /// Calls the model on one server after another, until one of them has the results, or may have computed them.
    pub(crate) async fn infer(&self, call: &Call, deadline: Instant) -> Result<Response, Failure> {
        let mut refused: Vec<usize> = Vec::new();
        for attempt in 0.. {
            let (server, connection) = self.choose(&refused, deadline).await?;
            call.uses(connection.clone());
            server.n_in_flight.fetch_add(1, Ordering::AcqRel);
            let in_flight = LeavesOnDrop(server);
            let answer = match timeout_at(deadline, connection.infer(call, deadline)).await {
                // A server that knows the deadline may end the call first, with any status.
                Err(_) | Ok(Err(Failure { kind: ErrorKind::Device | ErrorKind::Unavailable, .. })) if is_over(deadline) => {
                    Err(Failure::timeout(format!(
                        "expected the results within {} ms (remote.timeout), got none",
                        self.options.timeout.as_millis()
                    )))
                }
                Ok(answer) => answer,
                Err(_) => Err(Failure::timeout("expected the results in time, got none")),
            };
            drop(in_flight);
            let failure = match answer {
                Ok(response) => {
                    server.n_failed_in_a_row.store(0, Ordering::Release);
                    *server.succeeded.lock().unwrap() = Some(Instant::now());
                    return Ok(response);
                }
                Err(failure) => failure,
            };
            self.blame(server, &failure);
            if !failure.is_uncomputed || attempt >= self.servers.len() {
                return Err(failure.at(&server.address));
            }
            if failure.blames == Blame::Server {
                let idx = self.servers.iter().position(|known| std::ptr::eq(known, server));
                refused.extend(idx);
                if refused.len() >= self.servers.len() {
                    return Err(failure.at(&server.address));
                }
            }
            tracing::debug!("a call is repeated: {}: {}", server.address, failure.message);
        }
        unreachable!("the loop ends with a return")
    }

    /// Records a failed call. Takes the connection out of use, or ejects the server, if one of them has caused the failure.
    fn blame(&self, server: &Server, failure: &Failure) {
        match failure.blames {
            Blame::Nothing => {}
            Blame::Connection => {
                // The keeper checks whether the connection still works. Until then, other calls do not use it.
                self.set_if_up(server, State::Connecting);
                server.check.notify_one();
            }
            Blame::Server => {
                if server.n_failed_in_a_row.fetch_add(1, Ordering::AcqRel) + 1 >= MAX_FAILED_CALLS {
                    self.set_if_up(server, State::Down(failure.clone()));
                }
                server.check.notify_one();
            }
        }
    }

    /// Chooses a server for a call. Waits for servers that are connecting, if no other is up.
    ///
    /// # Errors
    /// Fails at once if all servers are down, with the reason of each.
    async fn choose(&self, refused: &[usize], deadline: Instant) -> Result<(&Server, Connection), Failure> {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let first = self.next.fetch_add(1, Ordering::Relaxed);
            let n = self.servers.len();
            let order = (0..n).map(|offset| (first.wrapping_add(offset)) % n).filter(|idx| !refused.contains(idx));
            let (mut best, mut is_connecting, mut down) = (None::<(usize, &Server, Connection)>, false, Vec::new());
            for server in order.map(|idx| &self.servers[idx]) {
                match &*server.state.lock().unwrap() {
                    State::Up(connection) if !connection.life().is_over() => {
                        let n_in_flight = server.n_in_flight.load(Ordering::Acquire);
                        if best.as_ref().is_none_or(|(least, ..)| n_in_flight < *least) {
                            best = Some((n_in_flight, server, connection.clone()));
                        }
                    }
                    State::Up(_) | State::Connecting => is_connecting = true,
                    State::Down(failure) => down.push((server.address.clone(), failure.clone())),
                }
            }
            if let Some((_, server, connection)) = best {
                return Ok((server, connection));
            }
            if !is_connecting {
                return Err(none_is_up(&down));
            }
            if timeout_at(deadline, changed.changed()).await.is_err() {
                return Err(Failure::timeout("expected a connection to a server in time, got none"));
            }
        }
    }

    fn set(&self, server: &Server, state: State) {
        let before = std::mem::replace(&mut *server.state.lock().unwrap(), state);
        drop(before);
        self.changed.send_replace(());
    }

    fn set_if_up(&self, server: &Server, state: State) {
        let is_up = matches!(&*server.state.lock().unwrap(), State::Up(_));
        if is_up {
            self.set(server, state);
        }
    }

    /// Connects to a server and checks that it can run the model.
    async fn connect(&self, server: &Server) -> Result<Connection, Failure> {
        let patience = self.options.connect_timeout;
        let connect = async {
            let connection = Connection::open(&server.address, &self.options, self.authorization.clone(), self.tls.as_ref()).await?;
            match connection.is_ready(patience).await? {
                true => Ok(connection),
                false => Err(not_ready(&self.options)),
            }
        };
        match timeout(patience, connect).await {
            Ok(connected) => connected,
            Err(_) => {
                Err(Failure { is_uncomputed: true, ..Failure::timeout(format!("cannot connect within {} ms", patience.as_millis())) })
            }
        }
    }

    /// Watches a server that is up. Returns the next state.
    async fn watch(&self, server: &Server, connection: &Connection) -> State {
        let interval = self.options.health_interval;
        loop {
            tokio::select! {
                () = connection.life().ended() => return State::Connecting,
                () = server.check.notified() => {}
                () = sleep(interval) => {
                    if server.succeeded.lock().unwrap().is_some_and(|at| at.elapsed() < interval) {
                        continue;
                    }
                }
            }
            if let State::Down(failure) = &*server.state.lock().unwrap() {
                return State::Down(failure.clone());
            }
            match connection.life().is_over() {
                true => return State::Connecting,
                false => match timeout(self.options.connect_timeout, connection.is_ready(self.options.connect_timeout)).await {
                    Ok(Ok(true)) => {
                        // `blame` may have taken the connection out of use. It works, so use it again.
                        let is_unused = matches!(&*server.state.lock().unwrap(), State::Connecting);
                        if is_unused {
                            self.set(server, State::Up(connection.clone()));
                        }
                    }
                    Ok(Ok(false)) => return State::Down(not_ready(&self.options)),
                    // The server has closed this connection, but may accept another one.
                    Ok(Err(failure)) if failure.blames == Blame::Connection || connection.life().is_over() => return State::Connecting,
                    Ok(Err(failure)) => return State::Down(failure),
                    Err(_) => {
                        // The server does not even answer this question, so its calls in flight get no answer either.
                        connection.kill();
                        return State::Down(Failure::timeout("the server does not answer"));
                    }
                },
            }
        }
    }
}

/// Connects to a server, watches it, and connects again, without end.
async fn keep(shared: Arc<Shared>, idx: usize) {
    let server = &shared.servers[idx];
    let mut pause = MIN_PAUSE;
    loop {
        match shared.connect(server).await {
            Ok(connection) => {
                tracing::debug!("{} is ready", server.address);
                server.n_failed_in_a_row.store(0, Ordering::Release);
                shared.set(server, State::Up(connection.clone()));
                let next = shared.watch(server, &connection).await;
                drop(connection);
                let is_down = matches!(next, State::Down(_));
                if let State::Down(failure) = &next {
                    tracing::warn!("{} is ejected: {}", server.address, failure.message);
                }
                shared.set(server, next);
                pause = MIN_PAUSE;
                if is_down {
                    sleep(EJECTION).await;
                }
            }
            Err(failure) => {
                if !matches!(&*server.state.lock().unwrap(), State::Down(_)) {
                    tracing::warn!("{} is not used: {}", server.address, failure.message);
                }
                shared.set(server, State::Down(failure));
                sleep(pause).await;
                pause = (2 * pause).min(MAX_PAUSE);
            }
        }
    }
}

/// Returns whether a deadline has passed, or passes within 5 ms. The tolerance is necessary because gRPC sends deadlines in whole
/// milliseconds.
fn is_over(deadline: Instant) -> bool {
    deadline.saturating_duration_since(Instant::now()) < Duration::from_millis(5)
}

fn not_ready(options: &Options) -> Failure {
    let version = if options.version.is_empty() { String::new() } else { format!(" version {}", options.version) };
    Failure::unavailable(format!("expected the model `{}`{version} to be ready, got not ready. Load it on the server", options.model))
}

fn none_is_up(down: &[(Address, Failure)]) -> Failure {
    let reasons: Vec<_> = down.iter().map(|(address, failure)| format!("{address}: {}", failure.message)).collect();
    // If all servers refuse the login or the model, waiting does not help, so the error has that kind.
    let kind = match down {
        [(_, first), rest @ ..] if rest.iter().all(|(_, failure)| failure.kind == first.kind) => first.kind,
        _ => ErrorKind::Unavailable,
    };
    let kind = if kind == ErrorKind::Timeout { ErrorKind::Unavailable } else { kind };
    Failure { kind, ..Failure::unavailable(format!("no server is up: {}", reasons.join("; "))) }
}

/// A call in flight on a server. Dropping it decreases the server's number of calls in flight.
struct LeavesOnDrop<'a>(&'a Server);

impl Drop for LeavesOnDrop<'_> {
    fn drop(&mut self) {
        self.0.n_in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}
