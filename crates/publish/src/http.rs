//! Posts batches of messages to an HTTP server, with an optional signature.
//!
//! A message is acknowledged when the server answers with a status of 200 to 299. Messages are collected until the flush, or until a batch
//! is full.

use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use base64::Engine;

use super::address::{Address, placeholders};
use super::connection::Tls;
use super::files::{Login, NamedFile};
use super::{Deadline, Destination, Failure, Message, redaction};

/// Maximum time for a request and its answer.
const TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a waiting call checks the deadline.
const TICK: Duration = Duration::from_millis(100);
/// A batch is posted at this size.
const MAX_BATCH_BYTES: usize = 1 << 20;
const MAX_BATCH: usize = 256;
/// Maximum number of bytes of an answer that an error message quotes.
const MAX_QUOTED_BYTES: u64 = 200;

/// Stands in the place of an answer that repeats a secret.
const NOT_QUOTED: &str = "(its text is hidden, because it repeats a part of the address or of the login)";

/// An HTTP server.
pub(super) struct Http {
    agent: ureq::Agent,
    tls: Option<Tls>,
    url: String,
    login: Login,
    /// The bearer token, which replaces the login.
    token: Option<NamedFile>,
    /// The key of the signature.
    secret: Option<Secret>,
    /// Whether the body of a request is one JSON array. Otherwise each message is a line.
    is_array: bool,
    max_batch: usize,
    /// Current size of a batch. Smaller than `max_batch` while the server rejects a batch, to find the message that it rejects.
    batch: usize,
    pending: Vec<Vec<u8>>,
    n_pending_bytes: usize,
    n_acknowledged: u64,
    /// See [`Destination::take_refused`].
    refused: Vec<(u64, io::Error)>,
    deadline: Deadline,
}

/// The key of the signature.
enum Secret {
    Text(String),
    File(NamedFile),
}

impl Http {
    /// The destination of `http://` and `https://` addresses. Options that begin with `x-` are not sent to the server.
    pub(super) fn new(mut address: Address) -> Result<Self, String> {
        let login = address.take_login()?;
        let tls = Tls::of(&mut address)?;
        let is_array = match address.take("format").as_deref() {
            None | Some("lines") => false,
            Some("array") => true,
            Some(other) => return Err(format!("option x-format: expected lines or array, got `{other}`")),
        };
        let max_batch = match address.take("batch") {
            None => MAX_BATCH,
            Some(text) => text
                .parse::<usize>()
                .ok()
                .filter(|n| (1..=MAX_BATCH).contains(n))
                .ok_or_else(|| format!("option x-batch: expected a number of results from 1 to {MAX_BATCH}, got `{text}`"))?,
        };
        if placeholders(&address.raw_path).next().is_some() {
            // The path can be a secret, so the error does not show it.
            return Err(
                "expected a path without placeholders, because all streams share the URL, got one in braces; write %7B for `{`".to_owned()
            );
        }
        let secret = match (address.take("secret"), address.take_file("secret-file")) {
            (Some(_), Some(_)) => return Err("expected one of the options x-secret and x-secret-file, got both".to_owned()),
            (text, file) => text.map(Secret::Text).or(file.map(Secret::File)),
        };
        let token = address.take_file("token-file");
        address.finish()?;
        let http = Self {
            agent: agent(tls.as_ref()).map_err(|error| error.to_string())?,
            tls,
            url: address.url_of_server(),
            login,
            token,
            secret,
            is_array,
            max_batch,
            batch: max_batch,
            pending: Vec::new(),
            n_pending_bytes: 0,
            n_acknowledged: 0,
            refused: Vec::new(),
            deadline: Deadline::default(),
        };
        // Read the files once, to report a mistake before the start.
        http.authorization().and_then(|_| http.key()).map_err(|error| error.to_string())?;
        Ok(http)
    }

    /// The value of the header `Authorization`. Files are read for each request, because tokens are renewed.
    fn authorization(&self) -> io::Result<Option<String>> {
        if let Some(token) = &self.token {
            return Ok(Some(format!("Bearer {}", token.first_line()?)));
        }
        if !self.login.is_some() {
            return Ok(None);
        }
        let (user, password) = self.login.read()?;
        let login = format!("{}:{}", user.unwrap_or_default(), password.unwrap_or_default());
        Ok(Some(format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(login))))
    }

    /// The key of the signature.
    fn key(&self) -> io::Result<Option<ring::hmac::Key>> {
        let text = match &self.secret {
            None => return Ok(None),
            Some(Secret::Text(text)) => text.clone(),
            Some(Secret::File(file)) => file.first_line()?,
        };
        Ok(Some(ring::hmac::Key::new(ring::hmac::HMAC_SHA256, text.as_bytes())))
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

    /// Posts a body. Returns the status and the start of the answer, which repeats no secret.
    fn post(&self, body: Vec<u8>) -> io::Result<(u16, String)> {
        let kind = if self.is_array { "application/json" } else { "application/x-ndjson" };
        let mut request = self.agent.post(&self.url).header("content-type", kind);
        let authorization = self.authorization()?;
        if let Some(authorization) = &authorization {
            request = request.header("authorization", authorization);
        }
        if let Some(key) = self.key()? {
            let signature: String = ring::hmac::sign(&key, &body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
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
                Ok(outcome) => {
                    let (status, text) = outcome.map_err(into_io)?;
                    let is_secret = redaction::repeats(&text, &self.url, authorization.as_deref());
                    return Ok((status, if is_secret { NOT_QUOTED.to_owned() } else { text }));
                }
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
                match status {
                    // With these status codes, the server rejects the content. All other failures are temporary.
                    400 | 413 | 415 | 422 if n == 1 => self.refused.push((self.n_acknowledged, error)),
                    400 | 413 | 415 | 422 => {
                        // Post fewer messages to find the rejected message.
                        self.batch = n / 2;
                        continue;
                    }
                    // The server is busy. It refuses requests with all other codes of this range until its settings are corrected.
                    408 | 425 | 429 => return Err(Failure::retryable(error)),
                    401..500 => return Err(Failure::refused(error)),
                    _ => return Err(Failure::retryable(error)),
                }
            } else {
                self.batch = (2 * self.batch).min(self.max_batch);
            }
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
        if self.tls.is_some() {
            // Certificates may have changed.
            self.agent = agent(self.tls.as_ref()).map_err(Failure::retryable)?;
        }
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

    fn take_refused(&mut self) -> Vec<(u64, io::Error)> {
        std::mem::take(&mut self.refused)
    }
}

/// Creates the HTTP client.
fn agent(tls: Option<&Tls>) -> io::Result<ureq::Agent> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("roiflow/", env!("CARGO_PKG_VERSION")));
    let config = match tls {
        Some(tls) => config.tls_config(super::tls::http_config(tls)?),
        None => config,
    };
    Ok(config.build().into())
}

fn into_io(error: ureq::Error) -> io::Error {
    match error {
        ureq::Error::Io(error) => error,
        ureq::Error::Timeout(_) => io::Error::new(ErrorKind::TimedOut, "the server did not answer in time"),
        error => io::Error::other(error.to_string()),
    }
}
