//! Publishes to a JetStream stream of a NATS server.
//!
//! This crate implements the protocol, because it is small. The existing client depends on 56 crates and an asynchronous runtime. Each
//! message has the header `Nats-Msg-Id`, so the server drops repeated messages within the time that the stream remembers IDs.
//!
//! Protocol: <https://docs.nats.io/reference/reference-protocols/nats-protocol>; acknowledgments:
//! <https://docs.nats.io/reference/reference-protocols/nats_api_reference>.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::address::{Address, Template};
use super::client::{ANSWER_TIMEOUT, InFlight, Protocol};
use super::connection::{Connection, Endpoint};
use super::files::Login;
use super::{Deadline, Failure, Message};

/// Longer lines and larger messages from the server are an error.
const MAX_RECEIVED_BYTES: usize = 1 << 20;
/// Error codes of JetStream: a stream with this name but other settings exists, or another stream stores the subjects.
const STREAM_EXISTS: [i64; 2] = [10058, 10065];
/// Error code of JetStream: a message is larger than the stream accepts.
const TOO_LARGE: i64 = 10054;

/// A NATS server, or several servers of a cluster, with a subject for each stream.
pub(super) struct Nats {
    /// At least one.
    endpoints: Vec<Endpoint>,
    /// Index of the endpoint that was used last.
    current: usize,
    has_tls: bool,
    login: Login,
    subject: Template,
    /// Name of the JetStream stream that is created if it does not exist.
    create: Option<String>,
    /// See [`Protocol::give_up_after`].
    give_up_after: Option<Duration>,
    inbox: String,
    has_connected: bool,
    max_payload: usize,
}

/// A message from the server.
enum Received {
    Pong,
    Ping,
    Info(Value),
    Error(String),
    /// Subject, status of the headers, and payload.
    Message(String, Option<String>, Vec<u8>),
    Other,
}

impl Nats {
    /// Creates the destination of a `nats://` or `tls://` address.
    pub(super) fn new(mut address: Address) -> Result<Self, String> {
        let (has_tls, login) = (address.has_tls(), address.take_login()?);
        let endpoints = Endpoint::of_each(&mut address)?;
        let create = address.take("create");
        let give_up_after = address.take_duration("give-up-after")?;
        address.finish()?;
        let subject = if address.path.is_empty() { "roiflow.{stream}" } else { &address.path };
        if let Some(c) = subject.chars().find(|c| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>')) {
            return Err(format!("expected a subject without wildcards and spaces, got one with `{c}`"));
        }
        if let Some(name) = create.as_deref().filter(|name| name.is_empty() || !name.chars().all(is_token_text)) {
            return Err(format!("option create: expected the name of a stream without dots and spaces, got `{name}`"));
        }
        Ok(Self {
            endpoints,
            current: 0,
            has_tls,
            subject: Template::checked(subject)?,
            login,
            create,
            give_up_after,
            // `RandomState` has random keys, so the hash is a random number.
            inbox: format!("_INBOX.roiflow{:016x}", RandomState::new().build_hasher().finish()),
            has_connected: false,
            max_payload: usize::MAX,
        })
    }

    /// Connects to the current endpoint.
    fn open_current(&mut self, deadline: &Deadline) -> Result<Connection, Failure> {
        let end = Instant::now() + ANSWER_TIMEOUT;
        let mut connection = Connection::open_plain(&self.endpoints[self.current], deadline).map_err(Failure::retryable)?;
        self.log_in(&mut connection, end)?;
        self.create_stream(&mut connection, end)?;
        self.has_connected = true;
        Ok(connection)
    }

    /// Logs in, and waits until the server has accepted the login.
    fn log_in(&mut self, connection: &mut Connection, end: Instant) -> Result<(), Failure> {
        let Received::Info(info) = receive(connection, end)? else { return Err(Failure::retryable(unexpected())) };
        self.max_payload = info["max_payload"].as_u64().unwrap_or(1 << 20) as usize;
        if info["headers"] == false {
            return Err(Failure::fatal(io::Error::new(ErrorKind::Unsupported, "the server is too old: it has no headers")));
        }
        if info["tls_required"] == true && !self.has_tls {
            return Err(Failure::fatal(io::Error::new(ErrorKind::Unsupported, "the server requires TLS: use tls://")));
        }
        let mut options = json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true, "echo": false, "protocol": 1,
            "name": "roiflow", "lang": "rust", "version": env!("CARGO_PKG_VERSION"), "tls_required": self.has_tls,
        });
        match self.login.read().map_err(Failure::retryable)? {
            (Some(user), Some(password)) => {
                options["user"] = user.into();
                options["pass"] = password.into();
            }
            // An address with only a user or only a password before the host contains a token.
            (Some(token), None) | (None, Some(token)) => options["auth_token"] = token.into(),
            (None, None) => {}
        }
        let hello = format!("CONNECT {options}\r\nSUB {}.* 1\r\nPING\r\n", self.inbox);
        connection.start_tls(&self.endpoints[self.current]).map_err(Failure::retryable)?;
        connection.write(hello.as_bytes()).map_err(Failure::retryable)?;
        loop {
            match receive(connection, end)? {
                Received::Pong => return Ok(()),
                Received::Error(text) => {
                    let is_login = text.contains("Authorization") || text.contains("Authentication");
                    let error = io::Error::new(ErrorKind::PermissionDenied, format!("the server refuses the connection: {text}"));
                    return Err(if is_login && !self.has_connected { Failure::fatal(error) } else { Failure::retryable(error) });
                }
                _ => {}
            }
        }
    }

    /// Creates the JetStream stream, if requested.
    fn create_stream(&self, connection: &mut Connection, end: Instant) -> Result<(), Failure> {
        let Some(name) = &self.create else { return Ok(()) };
        let subject = self.subject.of_stream("*", |_| true);
        let settings = json!({ "name": name, "subjects": [subject], "storage": "file", "retention": "limits" }).to_string();
        let request = format!("PUB $JS.API.STREAM.CREATE.{name} {}.create {}\r\n{settings}\r\n", self.inbox, settings.len());
        connection.write(request.as_bytes()).map_err(Failure::retryable)?;
        loop {
            match receive(connection, end)? {
                Received::Message(subject, status, payload) if subject.ends_with(".create") => {
                    let answer: Value = serde_json::from_slice(&payload).unwrap_or_default();
                    let code = answer["error"]["err_code"].as_i64();
                    if code.is_none_or(|code| STREAM_EXISTS.contains(&code)) && status.is_none() {
                        return Ok(());
                    }
                    let reason = if status.is_some() { "JetStream is not enabled".to_owned() } else { answer["error"].to_string() };
                    return Err(Failure::retryable(io::Error::other(format!("the server does not create the stream {name}: {reason}"))));
                }
                received => handle(received, connection, &mut InFlight::default())?,
            }
        }
    }
}

impl Protocol for Nats {
    fn open(&mut self, deadline: &Deadline) -> Result<Connection, Failure> {
        let mut result = self.open_current(deadline);
        for _ in 1..self.endpoints.len() {
            if result.is_ok() {
                break;
            }
            self.current = (self.current + 1) % self.endpoints.len();
            result = self.open_current(deadline);
        }
        result
    }

    fn encode(&mut self, number: u64, message: &Message) -> Result<Vec<u8>, String> {
        let id: String = message.id().chars().map(|c| if c.is_control() { '_' } else { c }).collect();
        let headers = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
        let n_bytes = headers.len() + message.payload.len();
        if n_bytes > self.max_payload {
            return Err(format!("a message of {n_bytes} bytes is larger than the server accepts: {} bytes", self.max_payload));
        }
        let subject = self.subject.of_stream(&subject_token(message.stream_name()), |_| true);
        let line = format!("HPUB {subject} {}.{number} {} {n_bytes}\r\n{headers}", self.inbox, headers.len());
        Ok([line.as_bytes(), &message.payload, b"\r\n"].concat())
    }

    fn handle_received(&mut self, connection: &mut Connection, in_flight: &mut InFlight) -> Result<(), Failure> {
        while let Some(received) = take(connection).map_err(Failure::retryable)? {
            handle(received, connection, in_flight)?;
        }
        Ok(())
    }

    fn ping(&self) -> Vec<u8> {
        b"PING\r\n".to_vec()
    }

    fn give_up_after(&self) -> Option<Duration> {
        self.give_up_after
    }
}

/// Waits for the next message of the server.
fn receive(connection: &mut Connection, end: Instant) -> Result<Received, Failure> {
    loop {
        if let Some(received) = take(connection).map_err(Failure::retryable)? {
            return Ok(received);
        }
        connection.receive(end).map_err(Failure::retryable)?;
    }
}

fn handle(received: Received, connection: &mut Connection, in_flight: &mut InFlight) -> Result<(), Failure> {
    match received {
        Received::Ping => connection.write(b"PONG\r\n").map_err(Failure::retryable),
        // The server does not tell which message it concerns. After a failure, only one message is in flight.
        Received::Error(text) if text.starts_with("Permissions Violation for Publish") && in_flight.n_unanswered() == 1 => {
            in_flight.refuse(|_| true, io::Error::other(format!("the server does not accept a result: {text}")), false);
            Ok(())
        }
        Received::Error(text) => Err(Failure::retryable(io::Error::other(format!("the server reports an error: {text}")))),
        Received::Message(subject, status, payload) => acknowledge(&subject, status, &payload, in_flight),
        Received::Pong | Received::Info(_) | Received::Other => Ok(()),
    }
}

fn acknowledge(subject: &str, status: Option<String>, payload: &[u8], in_flight: &mut InFlight) -> Result<(), Failure> {
    let Some(number) = subject.rsplit('.').next().and_then(|number| number.parse::<u64>().ok()) else { return Ok(()) };
    if let Some(status) = status {
        let hint = "no stream stores the subject: create one, or add ?create=NAME to the address";
        in_flight.refuse(|sent| sent == number, io::Error::other(format!("the server answers with status {status}; {hint}")), false);
        return Ok(());
    }
    let answer: Value = serde_json::from_slice(payload).map_err(|error| Failure::retryable(io::Error::other(error)))?;
    if let Some(description) = answer["error"]["description"].as_str() {
        let error = io::Error::other(format!("the server does not store a result: {description}"));
        in_flight.refuse(|sent| sent == number, error, answer["error"]["err_code"] == TOO_LARGE);
        return Ok(());
    }
    in_flight.acknowledge(|sent| sent == number);
    Ok(())
}

/// Whether a part of a subject, between two dots, may contain the character.
/// Returns the name of a stream as a part of a subject: a subject has no spaces and wildcards, and dots separate its parts.
pub fn subject_token(stream: &str) -> String {
    stream.chars().map(|c| if is_token_text(c) { c } else { '_' }).collect()
}

fn is_token_text(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !matches!(c, '.' | '*' | '>')
}

fn unexpected() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "expected a NATS server, got other bytes")
}

/// Removes a complete message from the received bytes.
fn take(connection: &mut Connection) -> io::Result<Option<Received>> {
    let received = connection.received();
    let Some(n_line) = received.windows(2).position(|pair| pair == b"\r\n") else {
        return if received.len() > MAX_RECEIVED_BYTES { Err(unexpected()) } else { Ok(None) };
    };
    let line = std::str::from_utf8(&received[..n_line]).map_err(|_| unexpected())?.to_owned();
    let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
    let begin = n_line + 2;
    let (taken, n_bytes) = match word.to_ascii_uppercase().as_str() {
        "PING" => (Received::Ping, begin),
        "PONG" => (Received::Pong, begin),
        "+OK" => (Received::Other, begin),
        "-ERR" => (Received::Error(rest.trim_matches('\'').to_owned()), begin),
        "INFO" => (Received::Info(serde_json::from_str(rest).map_err(|_| unexpected())?), begin),
        kind @ ("MSG" | "HMSG") => {
            let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
            let number = |text: Option<&&str>| text.and_then(|text| text.parse::<usize>().ok()).filter(|n| *n <= MAX_RECEIVED_BYTES);
            let n_total = number(fields.last()).ok_or_else(unexpected)?;
            let n_headers = match kind {
                "HMSG" => {
                    fields.len().checked_sub(2).and_then(|idx| number(fields.get(idx))).filter(|n| *n <= n_total).ok_or_else(unexpected)?
                }
                _ => 0,
            };
            let Some(content) = received.get(begin..begin + n_total + 2) else { return Ok(None) };
            let (headers, payload) = content[..n_total].split_at(n_headers);
            let first = headers.split(|byte| *byte == b'\r').next().unwrap_or_default();
            // The first line is `NATS/1.0`. If the server itself answers, for example because no stream stores the subject, a status
            // follows.
            let status = String::from_utf8_lossy(first).split_once(' ').map(|(_, status)| status.trim().to_owned());
            let subject = fields.first().copied().unwrap_or_default().to_owned();
            (Received::Message(subject, status, payload.to_vec()), begin + n_total + 2)
        }
        _ => return Err(unexpected()),
    };
    connection.consume(n_bytes);
    Ok(Some(taken))
}
