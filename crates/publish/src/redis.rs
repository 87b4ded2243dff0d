//! Appends to Redis streams (`XADD`), one stream key for each stream.
//!
//! This crate implements the protocol, because it is small. The existing client depends on 34 crates.
//!
//! Protocol: <https://redis.io/docs/latest/develop/reference/protocol-spec/>.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::address::{Address, Template};
use super::client::{ANSWER_TIMEOUT, InFlight, Protocol};
use super::connection::{Connection, Endpoint};
use super::files::Login;
use super::{Deadline, Failure, Message};

/// Longer answers are an error: all answers to these commands are short.
const MAX_ANSWER_BYTES: usize = 1 << 16;

/// A Redis server with a stream key for each stream.
pub(super) struct Redis {
    endpoint: Endpoint,
    login: Login,
    database: Option<String>,
    key: Template,
    /// Approximate number of entries that a key keeps.
    max_length: Option<u64>,
    /// See [`Protocol::give_up_after`].
    give_up_after: Option<Duration>,
    has_connected: bool,
}

impl Redis {
    /// Creates the destination of a `redis://` or `rediss://` address.
    pub(super) fn new(mut address: Address) -> Result<Self, String> {
        let login = address.take_login()?;
        let endpoint = Endpoint::of(&mut address)?;
        let key = match (address.take("stream-key"), address.take("key")) {
            (Some(_), Some(_)) => return Err("expected one of the options key and stream-key, got both".to_owned()),
            (key, other) => key.or(other).unwrap_or_else(|| "roiflow:{stream}".to_owned()),
        };
        let max_length = address.take_number("maxlen")?;
        let give_up_after = address.take_duration("give-up-after")?;
        address.finish()?;
        let database = Some(address.path).filter(|path| !path.is_empty());
        if let Some(database) = database.as_deref().filter(|database| database.parse::<u32>().is_err()) {
            return Err(format!("expected the number of a database in the path, got `{database}`; the option stream-key names the stream"));
        }
        // Braces in a key also mark the part that selects the node of a cluster, so any text in braces is allowed.
        Ok(Self { endpoint, login, database, key: Template::new(key), max_length, give_up_after, has_connected: false })
    }
}

impl Protocol for Redis {
    fn open(&mut self, deadline: &Deadline) -> Result<Connection, Failure> {
        let (user, password) = self.login.read().map_err(Failure::retryable)?;
        let mut connection = Connection::open(&self.endpoint, deadline).map_err(Failure::retryable)?;
        let end = Instant::now() + ANSWER_TIMEOUT;
        let mut calls: Vec<Vec<Vec<u8>>> = Vec::new();
        let bytes = |text: &str| text.as_bytes().to_vec();
        if let Some(password) = &password {
            let login = user.iter().chain([password]).map(|word| bytes(word));
            calls.push([bytes("AUTH")].into_iter().chain(login).collect());
        }
        calls.extend(self.database.as_ref().map(|database| vec![bytes("SELECT"), bytes(database)]));
        calls.push(vec![bytes("PING")]);
        for words in &calls {
            let words: Vec<&[u8]> = words.iter().map(|word| &**word).collect();
            connection.write(&command(&words)).map_err(Failure::retryable)?;
            let answer = receive(&mut connection, end)?;
            if let Some(error) = answer.strip_prefix('-') {
                let is_login =
                    ["WRONGPASS", "NOAUTH", "NOPERM", "ERR AUTH", "ERR Client sent AUTH"].iter().any(|code| error.starts_with(code));
                let error = io::Error::new(ErrorKind::PermissionDenied, format!("the server refuses the connection: {error}"));
                return Err(if is_login && !self.has_connected { Failure::fatal(error) } else { Failure::retryable(error) });
            }
        }
        self.has_connected = true;
        Ok(connection)
    }

    fn encode(&mut self, _number: u64, message: &Message) -> Result<Vec<u8>, String> {
        let key = self.key.of_stream(message.stream_name(), |c| !c.is_control());
        let (id, max_length) = (message.id(), self.max_length.map(|n| n.to_string()));
        let mut words: Vec<&[u8]> = vec![b"XADD", key.as_bytes()];
        if let Some(max_length) = &max_length {
            words.extend([b"MAXLEN".as_slice(), b"~", max_length.as_bytes()]);
        }
        words.extend([b"*".as_slice(), b"id", id.as_bytes(), b"data", &message.payload]);
        Ok(command(&words))
    }

    fn handle_received(&mut self, connection: &mut Connection, in_flight: &mut InFlight) -> Result<(), Failure> {
        while let Some(answer) = take_answer(connection).map_err(Failure::retryable)? {
            // The server answers in the order of the commands. The answer to `PING` is the only one that begins with `+`.
            if let Some(error) = answer.strip_prefix('-') {
                // All errors can be corrected at the server: it has no memory, is loading or is read-only, or the key has another type.
                in_flight.refuse(|_| true, io::Error::other(format!("the server does not accept a result: {error}")), false);
            } else if !answer.starts_with('+') {
                in_flight.acknowledge(|_| true);
            }
        }
        Ok(())
    }

    fn ping(&self) -> Vec<u8> {
        command(&[b"PING"])
    }

    fn give_up_after(&self) -> Option<Duration> {
        self.give_up_after
    }
}

/// Waits for an answer. Returns its first line, which begins with the type.
fn receive(connection: &mut Connection, end: Instant) -> Result<String, Failure> {
    loop {
        if let Some(answer) = take_answer(connection).map_err(Failure::retryable)? {
            return Ok(answer);
        }
        connection.receive(end).map_err(Failure::retryable)?;
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

/// Removes a complete answer from the received bytes. Returns its first line. Discards the content of a string.
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
