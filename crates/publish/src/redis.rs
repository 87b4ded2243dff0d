//! Appends to Redis streams (`XADD`), one stream key for each stream.
//!
//! This crate implements the protocol, because it is small. The existing client depends on 34 crates.
//!
//! Protocol: <https://redis.io/docs/latest/develop/reference/protocol-spec/>.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::address::{Address, Template};
use super::connection::{Connection, Endpoint, TLS_OPTIONS};
use super::{Deadline, Destination, Failure, Message};

/// Maximum time until an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of commands without an answer.
const MAX_IN_FLIGHT: usize = 256;
/// Longer answers are an error: all answers to these commands are short.
const MAX_ANSWER_BYTES: usize = 1 << 16;

/// A Redis server with a stream key for each stream.
pub(super) struct Redis {
    endpoint: Endpoint,
    user: Option<String>,
    password: Option<String>,
    database: Option<String>,
    key: Template,
    /// Approximate number of entries that a key keeps.
    max_length: Option<u64>,
    connection: Option<Connection>,
    has_connected: bool,
    n_in_flight: usize,
    n_acknowledged: u64,
}

impl Redis {
    /// Creates the destination of a `redis://` or `rediss://` address.
    pub(super) fn new(mut address: Address) -> Result<Self, String> {
        let has_tls = address.scheme == "rediss";
        let endpoint = Endpoint::of(&mut address, (6379, 6379), has_tls)?;
        let key = address.take("key").unwrap_or_else(|| "roiflow:{stream}".to_owned());
        let max_length = address.take_number("maxlen")?;
        address.finish(&format!("key, maxlen, {TLS_OPTIONS}"))?;
        let database = Some(address.path).filter(|path| !path.is_empty());
        if let Some(database) = database.as_deref().filter(|database| database.parse::<u32>().is_err()) {
            return Err(format!("expected the number of a database in the path, got `{database}`; the option key names the stream"));
        }
        Ok(Self {
            endpoint,
            user: address.user,
            password: address.password,
            database,
            key: Template::new(key),
            max_length,
            connection: None,
            has_connected: false,
            n_in_flight: 0,
            n_acknowledged: 0,
        })
    }

    fn connection(&mut self) -> Result<&mut Connection, Failure> {
        self.connection.as_mut().ok_or_else(|| Failure::retryable(ErrorKind::NotConnected.into()))
    }

    /// Sends a command and waits for its answer.
    fn call(&mut self, words: &[&[u8]]) -> Result<String, Failure> {
        let connection = self.connection()?;
        connection.write(&command(words)).map_err(Failure::retryable)?;
        self.answer()
    }

    /// Waits for an answer. Returns its first line, which begins with the type.
    fn answer(&mut self) -> Result<String, Failure> {
        let end = Instant::now() + ANSWER_TIMEOUT;
        let connection = self.connection()?;
        loop {
            if let Some(answer) = take_answer(connection).map_err(Failure::retryable)? {
                return Ok(answer);
            }
            connection.receive(end).map_err(Failure::retryable)?;
        }
    }

    fn wait_for(&mut self, n: usize) -> Result<(), Failure> {
        while self.n_in_flight > n {
            let answer = self.answer()?;
            if let Some(error) = answer.strip_prefix('-') {
                let failure = format!("the server does not accept a result: {error}");
                // All errors are treated as temporary: the server has no memory, is loading or is read-only, or the key has another type.
                return Err(Failure::retryable(io::Error::other(failure)));
            }
            self.n_in_flight -= 1;
            self.n_acknowledged += 1;
        }
        Ok(())
    }

    fn try_connect(&mut self, deadline: &Deadline) -> Result<(), Failure> {
        self.connection = Some(Connection::open(&self.endpoint, deadline).map_err(Failure::retryable)?);
        let mut calls: Vec<Vec<Vec<u8>>> = Vec::new();
        let bytes = |text: &str| text.as_bytes().to_vec();
        if let Some(password) = &self.password {
            let login = self.user.iter().chain([password]).map(|word| bytes(word));
            calls.push([bytes("AUTH")].into_iter().chain(login).collect());
        }
        calls.extend(self.database.as_ref().map(|database| vec![bytes("SELECT"), bytes(database)]));
        calls.push(vec![bytes("PING")]);
        for words in &calls {
            let answer = self.call(&words.iter().map(|word| &**word).collect::<Vec<_>>())?;
            if let Some(error) = answer.strip_prefix('-') {
                let is_login =
                    ["WRONGPASS", "NOAUTH", "NOPERM", "ERR AUTH", "ERR Client sent AUTH"].iter().any(|code| error.starts_with(code));
                let error = io::Error::new(ErrorKind::PermissionDenied, format!("the server refuses the connection: {error}"));
                return Err(if is_login && !self.has_connected { Failure::fatal(error) } else { Failure::retryable(error) });
            }
        }
        self.has_connected = true;
        Ok(())
    }

    fn try_publish(&mut self, message: &Message) -> Result<(), Failure> {
        self.wait_for(MAX_IN_FLIGHT - 1)?;
        let key = self.key.of_stream(message.stream_name(), |c| !c.is_control());
        let (id, max_length) = (message.id(), self.max_length.map(|n| n.to_string()));
        let mut words: Vec<&[u8]> = vec![b"XADD", key.as_bytes()];
        if let Some(max_length) = &max_length {
            words.extend([b"MAXLEN".as_slice(), b"~", max_length.as_bytes()]);
        }
        words.extend([b"*".as_slice(), b"id", id.as_bytes(), b"data", &message.payload]);
        self.n_in_flight += 1;
        self.connection()?.write(&command(&words)).map_err(Failure::retryable)
    }

    fn reset_on_failure(&mut self, outcome: Result<(), Failure>) -> Result<(), Failure> {
        if outcome.is_err() {
            self.connection = None;
            self.n_in_flight = 0;
        }
        outcome
    }
}

impl Destination for Redis {
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure> {
        self.n_in_flight = 0;
        let outcome = self.try_connect(deadline);
        self.reset_on_failure(outcome)
    }

    fn publish(&mut self, message: &Message) -> Result<(), Failure> {
        let outcome = self.try_publish(message);
        self.reset_on_failure(outcome)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let outcome = self.wait_for(0);
        self.reset_on_failure(outcome)
    }

    fn acknowledged(&self) -> u64 {
        self.n_acknowledged
    }

    fn idle(&mut self) -> Result<(), Failure> {
        let outcome = self.call(&[b"PING"]).map(|_| ());
        self.reset_on_failure(outcome)
    }
}

/// Encodes a command as an array of strings.
fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Removes a complete answer from the received bytes. Returns its first line; the content of a string is dropped.
fn take_answer(connection: &mut Connection) -> io::Result<Option<String>> {
    let unexpected = || io::Error::new(ErrorKind::InvalidData, "expected a Redis server, got other bytes");
    let received = connection.received();
    let Some(n_line) = received.windows(2).position(|pair| pair == b"\r\n") else {
        return if received.len() > MAX_ANSWER_BYTES { Err(unexpected()) } else { Ok(None) };
    };
    let line = std::str::from_utf8(&received[..n_line]).map_err(|_| unexpected())?.to_owned();
    let n_bytes = match line.split_at_checked(1) {
        Some(("+" | "-" | ":", _)) => n_line + 2,
        Some(("$", length)) => match length.parse::<i64>().map_err(|_| unexpected())? {
            ..0 => n_line + 2,
            length if length <= MAX_ANSWER_BYTES as i64 => n_line + 2 + length as usize + 2,
            _ => return Err(unexpected()),
        },
        _ => return Err(unexpected()),
    };
    if connection.received().len() < n_bytes {
        return Ok(None);
    }
    connection.consume(n_bytes);
    Ok(Some(line))
}
