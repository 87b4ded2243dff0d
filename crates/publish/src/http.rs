//! Posts batches of messages to an HTTP server, with an optional signature.
//!
//! A message is acknowledged when the server answers with a status of 200 to 299. Messages are collected until the flush, or until a batch
//! is full.

use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use base64::Engine;

use super::address::Address;
use super::connection::Tls;
use super::{Deadline, Destination, Failure, Message};

/// Maximum time for a request and its answer.
const TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a waiting call checks the deadline.
const TICK: Duration = Duration::from_millis(100);
/// A batch is posted at this size.
const MAX_BATCH_BYTES: usize = 1 << 20;
const MAX_BATCH: u64 = 256;
/// Maximum number of bytes of an answer that an error message quotes.
const MAX_QUOTED_BYTES: u64 = 200;

/// An HTTP server.
pub(super) struct Http {
    agent: ureq::Agent,
    url: String,
    /// Value of the header `Authorization`.
    authorization: Option<String>,
    secret: Option<ring::hmac::Key>,
    /// Whether the body of a request is one JSON array. Otherwise each message is a line.
    is_array: bool,
    max_batch: usize,
    /// Current size of a batch. Smaller than `max_batch` while the server rejects a batch, to find the message that it rejects.
    batch: usize,
    pending: Vec<Vec<u8>>,
    n_pending_bytes: usize,
    n_acknowledged: u64,
    deadline: Deadline,
}

impl Http {
    /// The destination of `http://` and `https://` addresses. Options that begin with `x-` are not sent to the server.
    pub(super) fn new(mut address: Address) -> Result<Self, String> {
        address.take_login("x-")?;
        let has_tls = address.scheme == "https";
        let tls = Tls::of(&mut address, "x-")?;
        let is_array = match address.take("x-format").as_deref() {
            None | Some("lines") => false,
            Some("array") => true,
            Some(other) => return Err(format!("option x-format: expected lines or array, got `{other}`")),
        };
        let max_batch = address.take_number("x-batch")?.unwrap_or(MAX_BATCH).clamp(1, MAX_BATCH) as usize;
        let secret = match (address.take("x-secret"), address.take("x-secret-file")) {
            (None, None) => None,
            (Some(secret), None) => Some(secret),
            (None, Some(path)) => Some(first_line(&path)?),
            (Some(_), Some(_)) => return Err("expected one of the options x-secret and x-secret-file, got both".to_owned()),
        };
        let token = address.take("x-token-file").map(|path| first_line(&path)).transpose()?;
        let authorization = match (token, &address.user, &address.password) {
            (Some(token), _, _) => Some(format!("Bearer {token}")),
            (None, None, None) => None,
            (None, user, password) => {
                let login = format!("{}:{}", user.as_deref().unwrap_or_default(), password.as_deref().unwrap_or_default());
                Some(format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(login)))
            }
        };
        let known = "x-user, x-password-file, x-token-file, x-secret, x-secret-file, x-format, x-batch, x-ca, x-cert, x-key";
        if let Some(name) = address.options().map(|(name, _)| name).find(|name| name.starts_with("x-")) {
            return Err(format!("unknown option `{name}`: expected one of {known}; other options are sent to the server"));
        }
        let mut config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("roiflow/", env!("CARGO_PKG_VERSION")));
        if has_tls {
            config = config.tls_config(super::tls::http_config(&tls).map_err(|error| error.to_string())?);
        }
        let secret = secret.map(|secret| ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes()));
        Ok(Self {
            agent: config.build().into(),
            url: address.shown_with_options(),
            authorization,
            secret,
            is_array,
            max_batch,
            batch: max_batch,
            pending: Vec::new(),
            n_pending_bytes: 0,
            n_acknowledged: 0,
            deadline: Deadline::default(),
        })
    }

    /// Creates the body of a request with these messages.
    fn body(&self, messages: &[Vec<u8>]) -> Vec<u8> {
        if self.is_array {
            let mut body = vec![b'['];
            for (idx, message) in messages.iter().enumerate() {
                body.extend_from_slice(if idx == 0 { b"" } else { b"," });
                body.extend_from_slice(message);
            }
            body.push(b']');
            return body;
        }
        messages.iter().flat_map(|message| message.iter().chain(b"\n")).copied().collect()
    }

    /// Posts a body. Returns the status and the start of the answer.
    fn post(&self, body: Vec<u8>) -> io::Result<(u16, String)> {
        let kind = if self.is_array { "application/json" } else { "application/x-ndjson" };
        let mut request = self.agent.post(&self.url).header("content-type", kind);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        if let Some(secret) = &self.secret {
            let signature: String = ring::hmac::sign(secret, &body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            request = request.header("x-roiflow-signature-256", format!("sha256={signature}"));
        }
        let (answered, answer) = channel();
        // Post on another thread, because the call cannot be interrupted.
        let post = move || {
            let outcome = request.send(&body[..]).map(|mut answer| {
                let mut text = Vec::new();
                let _read = answer.body_mut().as_reader().take(MAX_QUOTED_BYTES).read_to_end(&mut text);
                (answer.status().as_u16(), String::from_utf8_lossy(&text).trim().to_owned())
            });
            // The caller may have stopped waiting.
            let _received = answered.send(outcome);
        };
        std::thread::Builder::new().name("roiflow-http".to_owned()).spawn(post)?;
        loop {
            match answer.recv_timeout(self.deadline.remaining(TICK)?) {
                Ok(outcome) => return outcome.map_err(into_io),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the request failed")),
            }
        }
    }

    fn post_pending(&mut self) -> Result<(), Failure> {
        while !self.pending.is_empty() {
            let n = self.pending.len().min(self.batch);
            let (status, text) = self.post(self.body(&self.pending[..n])).map_err(Failure::retryable)?;
            if !(200..300).contains(&status) {
                let quoted = if text.is_empty() { String::new() } else { format!(": {text}") };
                let error = io::Error::other(format!("the server answers with status {status}{quoted}"));
                // With these status codes, the server rejects the content. All other failures are temporary.
                if !matches!(status, 400 | 413 | 415 | 422) {
                    return Err(Failure::retryable(error));
                }
                if n == 1 {
                    return Err(Failure::rejected(error));
                }
                // Post fewer messages to find the rejected message.
                self.batch = n / 2;
                continue;
            }
            self.batch = (2 * self.batch).min(self.max_batch);
            self.pending.drain(..n);
            self.n_acknowledged += n as u64;
        }
        self.n_pending_bytes = 0;
        Ok(())
    }
}

impl Destination for Http {
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure> {
        self.deadline = deadline.clone();
        Ok(())
    }

    fn publish(&mut self, message: &Message) -> Result<(), Failure> {
        self.n_pending_bytes += message.payload.len();
        self.pending.push(message.payload.clone());
        if self.pending.len() >= self.max_batch || self.n_pending_bytes >= MAX_BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let outcome = self.post_pending();
        if outcome.is_err() {
            self.pending.clear();
            self.n_pending_bytes = 0;
        }
        outcome
    }

    fn acknowledged(&self) -> u64 {
        self.n_acknowledged
    }
}

fn first_line(path: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read the file {path}: {error}"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn into_io(error: ureq::Error) -> io::Error {
    match error {
        ureq::Error::Io(error) => error,
        ureq::Error::Timeout(_) => io::Error::new(ErrorKind::TimedOut, "the server did not answer in time"),
        error => io::Error::other(error.to_string()),
    }
}
