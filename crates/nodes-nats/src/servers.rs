//! The connection to the NATS servers: addresses, logins, TLS, and the check of the version.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event};
use roiflow_publish::{Address, FileAccess, Kind, Login, NamedFile, Scheme};
use tokio::sync::watch;

/// The oldest server with a time to live of single messages.
const MIN_SERVER: (i64, i64, i64) = (2, 11, 0);
/// The options of `--nats`.
static SCHEME: Scheme = Scheme {
    names: ["nats", "tls"],
    ports: [4222; 2],
    prefix: "",
    options: &[("credentials", Kind::File)],
    settings: None,
    has_secret_path: false,
    is_for_clients: false,
};
/// How long a connection may take to begin.
const MAX_CONNECT: Duration = Duration::from_secs(3);
/// Interval of pings. After two without an answer, the connection is lost.
const PING: Duration = Duration::from_secs(2);
/// The client must not connect again by itself: see `session`. Its tasks end long before.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// Addresses and login of the NATS servers.
#[derive(Clone)]
pub struct Servers {
    hosts: Vec<String>,
    has_shared_forwarder: bool,
    has_tls: bool,
    login: Login,
    /// File with a JWT and its key, as `nsc` writes it.
    credentials: Option<NamedFile>,
    ca: Option<NamedFile>,
    client: Option<(NamedFile, NamedFile)>,
}

impl Servers {
    /// Reads an address: `nats://host:4222`, or `tls://host:4222`, or several hosts with commas between.
    ///
    /// The login is `user:password@` or `token@` before the host, or one of the options `user`, `password-file` and `credentials`. Logins
    /// and options may name environment variables, as in `${NATS_PASSWORD}`. The options of TLS are `ca`, `cert` and `key`.
    ///
    /// # Errors
    /// Returns the first mistake. The text has no credentials.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut address = Address::parse(text, &SCHEME, &FileAccess::Allowed)?;
        let has_tls = match &*address.scheme {
            "nats" => false,
            "tls" => true,
            other => return Err(format!("expected nats:// or tls://, got {other}://")),
        };
        if !address.path.is_empty() {
            return Err("expected an address without a path, got one with a path".to_owned());
        }
        let login = address.take_login()?;
        let mut file = |name: &str| address.take_file(name);
        let (credentials, ca, cert, key) = (file("credentials"), file("ca"), file("cert"), file("key"));
        let client = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err("expected both options cert and key, got one of them".to_owned()),
        };
        address.finish()?;
        Ok(Self { hosts: address.host_texts(), has_shared_forwarder: false, has_tls, login, credentials, ca, client })
    }

    /// Declares that all nodes reach the servers through the same forwarder. Then a forwarder that closes each connection proves that no node
    /// reaches a server.
    #[must_use]
    pub fn with_shared_forwarder(self, has_shared_forwarder: bool) -> Self {
        Self { has_shared_forwarder, ..self }
    }

    /// Whether all nodes reach the servers through the same forwarder.
    pub(crate) fn has_shared_forwarder(&self) -> bool {
        self.has_shared_forwarder
    }

    /// Makes this server the last one to be tried.
    pub(crate) fn put_last(&mut self, host_idx: usize) {
        let n_first = (host_idx + 1) % self.hosts.len();
        self.hosts.rotate_left(n_first);
    }

    /// The first server, as `host:port`.
    pub fn first(&self) -> &str {
        &self.hosts[0]
    }

    /// The texts that no message may show.
    pub fn secrets(&self) -> impl Iterator<Item = String> {
        let (user, password) = self.login.read().unwrap_or_default();
        // A user without a password is a token.
        let token = user.filter(|_| password.is_none());
        password.into_iter().chain(token)
    }

    /// The servers without their login.
    pub fn shown(&self) -> String {
        format!("{}://{}", if self.has_tls { "tls" } else { "nats" }, self.hosts.join(","))
    }

    /// The servers as `host:port`.
    pub(crate) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Connects to one of the servers, and checks its version. `lost` becomes true when the connection is lost. Returns the index of the
    /// server as well.
    pub(crate) async fn connect(&self, node: &str, lost: watch::Sender<bool>) -> Result<(Client, usize), Failure> {
        let shown = self.shown();
        let failed = |reason: &dyn std::fmt::Display| format!("connect to {shown} failed: {reason}");
        let lost = Arc::new(lost);
        let advice = "Start a server with `nats-server --jetstream`, or correct `--nats`";
        let (mut last, mut may_pass) = ("there is no server".to_owned(), false);
        for (host_idx, host) in self.hosts.iter().enumerate() {
            let options = self.options(node, lost.clone()).map_err(|error| Failure { text: failed(&error), may_pass: false })?;
            let is_connected = Arc::new(AtomicBool::new(false));
            let of_delay = is_connected.clone();
            let options = options.reconnect_delay_callback(move |_| if of_delay.load(Ordering::Acquire) { NEVER } else { Duration::ZERO });
            let scheme = if self.has_tls { "tls" } else { "nats" };
            match tokio::time::timeout(MAX_CONNECT, options.connect(format!("{scheme}://{host}"))).await {
                Ok(Ok(client)) => {
                    is_connected.store(true, Ordering::Release);
                    let (major, minor, patch) = MIN_SERVER;
                    if client.is_server_compatible(major, minor, patch) {
                        return Ok((client, host_idx));
                    }
                    let version = client.server_info().version;
                    last = format!(
                        "expected nats-server {major}.{minor} or newer, which ends single messages after a time, got {version}. Install a \
                         newer nats-server"
                    );
                }
                Ok(Err(error)) => {
                    may_pass |= matches!(error.kind(), ConnectErrorKind::Io | ConnectErrorKind::Dns | ConnectErrorKind::TimedOut);
                    last = format!("{host}: {}. {advice}", with_sources(&error));
                }
                Err(_) => {
                    may_pass = true;
                    last = format!("{host}: no connection in time. {advice}");
                }
            }
        }
        Err(Failure { text: failed(&last), may_pass })
    }

    fn options(&self, node: &str, lost: Arc<watch::Sender<bool>>) -> Result<ConnectOptions, String> {
        let on_event = move |event| {
            let lost = lost.clone();
            async move {
                match event {
                    Event::Connected => tracing::info!("connected to NATS"),
                    Event::Disconnected | Event::Closed | Event::LameDuckMode => {
                        tracing::warn!("the connection to NATS is lost");
                        lost.send_replace(true);
                    }
                    other => tracing::warn!("NATS: {other}"),
                }
            }
        };
        let mut options = ConnectOptions::new()
            .name(format!("roiflow node {node}"))
            .connection_timeout(MAX_CONNECT)
            .ping_interval(PING)
            .event_callback(on_event);
        if self.has_tls {
            options = options.require_tls(true);
        }
        // The files are read again for each connection.
        options = match self.login.read().map_err(|error| error.to_string())? {
            (Some(user), Some(password)) => options.user_and_password(user, password),
            // An address with only a user or only a password before the host contains a token.
            (Some(token), None) | (None, Some(token)) => options.token(token),
            (None, None) => options,
        };
        if let Some(file) = &self.credentials {
            let bytes = file.read().map_err(|error| error.to_string())?;
            options = options
                .credentials(&String::from_utf8_lossy(&bytes))
                .map_err(|_| format!("expected credentials of NATS in `{}`, got another file", file.path().display()))?;
        }
        if let Some(ca) = &self.ca {
            options = options.add_root_certificates(ca.path().to_owned());
        }
        if let Some((cert, key)) = &self.client {
            options = options.add_client_certificate(cert.path().to_owned(), key.path().to_owned());
        }
        Ok(options)
    }
}

/// Why there is no connection, or no bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The reason, for people.
    pub(crate) text: String,
    /// Whether the same attempt may succeed later: a server does not run or does not answer.
    pub(crate) may_pass: bool,
}

/// Returns an error with its causes.
fn with_sources(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string);
    // Some errors repeat their cause.
    causes.fold(error.to_string(), |text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
}

/// Shows no login.
impl std::fmt::Debug for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Servers").field(&self.shown()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_hosts_and_options_and_hide_their_login() {
        let servers = Servers::parse("tls://me:secret77@a:4223,b,c:4224?ca=ca.pem").unwrap();
        assert_eq!(
            (servers.hosts(), servers.ca.as_ref().map(NamedFile::path)),
            (&["a:4223", "b:4222", "c:4224"].map(str::to_owned)[..], Some(std::path::Path::new("ca.pem")))
        );
        assert_eq!(Servers::parse("nats://[fd00::1]").unwrap().hosts(), ["[fd00::1]:4222"]);
        let mut after_loss = Servers::parse("nats://a,b,c").unwrap();
        after_loss.put_last(1);
        assert_eq!(after_loss.hosts(), ["c:4222", "a:4222", "b:4222"]);
        assert!(!format!("{servers:?}").contains("secret77") && !servers.shown().contains("me:"));
        for (text, says) in [
            ("http://a", "nats:// or tls://"),
            ("nats://a/path", "without a path"),
            ("nats://a:422x,b", "expected a port from 1 to 65535 after the host, got `422x`"),
            ("nats://a?cert=x", "expected a URL with TLS"),
            ("tls://a?cert=x", "both options"),
            ("nats://a?x=1", "unknown option `x`"),
        ] {
            let error = Servers::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
