//! Publishes to an MQTT broker, with QoS 1.
//!
//! This crate implements the protocol, because a publisher needs only a few packets. The existing clients do not report which message a
//! broker has acknowledged, or need an asynchronous runtime. The client uses MQTT 5, or 3.1.1 if the broker does not support version 5.
//! Sessions are clean: unacknowledged messages are published again by the caller, not by the session.
//!
//! Packets: <https://docs.oasis-open.org/mqtt/mqtt/v5.0/mqtt-v5.0.html>.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::address::{Address, Template, placeholders};
use super::client::{ANSWER_TIMEOUT, InFlight, MAX_IN_FLIGHT, Protocol};
use super::connection::{Connection, Endpoint};
use super::files::Login;
use super::{Deadline, Failure, Message};

/// If the broker receives no packet for 1.5 times this time, it publishes the last will. An idle connection sends packets at a shorter
/// interval.
const KEEP_ALIVE_SECONDS: u16 = 30;
/// The largest packet that the protocol can express.
const MAX_PACKET_BYTES: usize = 268_435_455;
/// Larger packets from the broker are an error: all packets that a publisher receives are small.
const MAX_RECEIVED_BYTES: usize = 1 << 20;

const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;
const PUBLISH: u8 = 0x30;
const PUBACK: u8 = 0x40;
const PINGREQ: u8 = 0xc0;
const DISCONNECT: u8 = 0xe0;
const QOS_1: u8 = 0x02;
const RETAIN: u8 = 0x01;

/// An MQTT broker with a topic for each stream.
pub(super) struct Mqtt {
    endpoint: Endpoint,
    login: Login,
    client_id: String,
    topic: Template,
    status_topic: Option<String>,
    retain: bool,
    /// After this time, a broker deletes messages that it stores for disconnected subscribers.
    expiry: Option<Duration>,
    /// See [`Protocol::give_up_after`].
    give_up_after: Option<Duration>,
    /// Protocol level: 5 for MQTT 5, 4 for MQTT 3.1.1.
    version: u8,
    has_connected: bool,
    max_in_flight: usize,
    max_packet_bytes: usize,
}

impl Mqtt {
    /// Creates the destination of an `mqtt://` or `mqtts://` address.
    pub(super) fn new(mut address: Address) -> Result<Self, String> {
        let login = address.take_login()?;
        let endpoint = Endpoint::of(&mut address)?;
        let status_topic = address.take("status-topic");
        let client_id = address.take("client-id").unwrap_or_else(|| {
            // `RandomState` has random keys, so the hash is a random number.
            format!("roiflow-{:012x}", RandomState::new().build_hasher().finish() >> 16)
        });
        let retain = address.take_switch("retain")?;
        let (expiry, give_up_after) = (address.take_duration("expiry")?, address.take_duration("give-up-after")?);
        address.finish()?;
        if let Some(found) = status_topic.as_deref().and_then(|topic| placeholders(topic).next()) {
            return Err(format!("option status-topic: expected a topic without placeholders, because all streams share it, got `{found}`"));
        }
        let topic = if address.path.is_empty() { "roiflow/{stream}" } else { &address.path };
        if let Some(c) = topic.chars().chain(status_topic.iter().flat_map(|topic| topic.chars())).find(|c| !is_topic_text(*c)) {
            return Err(format!("expected a topic name without wildcards, got one with `{c}`"));
        }
        Ok(Self {
            endpoint,
            topic: Template::checked(topic)?,
            login,
            client_id,
            status_topic,
            retain,
            expiry,
            give_up_after,
            version: 5,
            has_connected: false,
            max_in_flight: MAX_IN_FLIGHT,
            max_packet_bytes: MAX_PACKET_BYTES,
        })
    }

    fn connect_packet(&self) -> io::Result<Vec<u8>> {
        let (user, password) = self.login.read()?;
        let mut body = Vec::new();
        text(&mut body, "MQTT");
        let mut flags = 0x02;
        flags |= if self.status_topic.is_some() { 0x04 | 0x08 | 0x20 } else { 0 };
        flags |= if password.is_some() { 0x40 } else { 0 };
        // Version 3.1.1 allows no password without a user.
        flags |= if user.is_some() || password.is_some() { 0x80 } else { 0 };
        body.extend_from_slice(&[self.version, flags]);
        body.extend_from_slice(&KEEP_ALIVE_SECONDS.to_be_bytes());
        if self.version == 5 {
            body.push(0);
        }
        text(&mut body, &self.client_id);
        if let Some(topic) = &self.status_topic {
            if self.version == 5 {
                body.push(0);
            }
            text(&mut body, topic);
            text(&mut body, "offline");
        }
        if flags & 0x80 != 0 {
            text(&mut body, user.as_deref().unwrap_or_default());
        }
        if let Some(password) = &password {
            text(&mut body, password);
        }
        Ok(packet(CONNECT, &body))
    }

    fn publish_packet(&self, id: u16, message: &Message) -> Vec<u8> {
        let mut body = Vec::with_capacity(message.payload.len() + 128);
        text(&mut body, &self.topic.of_stream(message.stream_name(), |c| is_topic_text(c) && c != '/'));
        body.extend_from_slice(&id.to_be_bytes());
        if self.version == 5 {
            let mut properties = vec![0x03];
            text(&mut properties, "application/json");
            if let Some(expiry) = self.expiry {
                properties.push(0x02);
                properties.extend_from_slice(&u32::try_from(expiry.as_secs().max(1)).unwrap_or(u32::MAX).to_be_bytes());
            }
            properties.push(0x26);
            text(&mut properties, "message-id");
            text(&mut properties, &message.id());
            length(&mut body, properties.len());
            body.extend_from_slice(&properties);
        }
        body.extend_from_slice(&message.payload);
        packet(PUBLISH | QOS_1 | if self.retain { RETAIN } else { 0 }, &body)
    }

    fn status_packet(&self, status: &str) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        text(&mut body, self.status_topic.as_deref()?);
        if self.version == 5 {
            body.push(0);
        }
        body.extend_from_slice(status.as_bytes());
        Some(packet(PUBLISH | RETAIN, &body))
    }

    /// Connects with the current version of the protocol. Returns `None` if the broker refuses the version.
    fn try_open(&mut self, deadline: &Deadline) -> Result<Option<Connection>, Failure> {
        let hello = self.connect_packet().map_err(Failure::retryable)?;
        let mut connection = Connection::open(&self.endpoint, deadline).map_err(Failure::retryable)?;
        connection.write(&hello).map_err(Failure::retryable)?;
        let end = Instant::now() + ANSWER_TIMEOUT;
        let answer = loop {
            match take_packet(&mut connection).map_err(Failure::retryable)? {
                Some(answer) => break answer,
                None => match connection.receive(end) {
                    Ok(()) => {}
                    // Some brokers close the connection if they do not know the version.
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof && self.version == 5 && !self.has_connected => return Ok(None),
                    Err(error) => return Err(Failure::retryable(error)),
                },
            }
        };
        let (CONNACK, [_, code, properties @ ..]) = (answer.0, &*answer.1) else {
            return Err(Failure::retryable(unexpected("another packet than CONNACK")));
        };
        match (self.version, code) {
            (_, 0) => {}
            (5, 0x01 | 0x84) => return Ok(None),
            (version, code) => return Err(self.refused(version, *code)),
        }
        (self.max_in_flight, self.max_packet_bytes) = (MAX_IN_FLIGHT, MAX_PACKET_BYTES);
        if self.version == 5 {
            self.apply(properties).ok_or_else(|| Failure::retryable(unexpected("malformed properties")))?;
        }
        if let Some(status) = self.status_packet("online") {
            connection.write(&status).map_err(Failure::retryable)?;
        }
        self.has_connected = true;
        Ok(Some(connection))
    }

    fn refused(&self, version: u8, code: u8) -> Failure {
        let (reason, is_login) = match (version, code) {
            (5, 0x86) | (4, 4) => ("it rejects the user name or the password", true),
            (5, 0x87) | (4, 5) => ("the user is not authorized", true),
            (5, 0x85) | (4, 2) => ("it rejects the client ID", true),
            (5, 0x88 | 0x89) | (4, 3) => ("its service is not available", false),
            _ => ("", false),
        };
        let error = io::Error::new(ErrorKind::PermissionDenied, format!("the broker refuses the connection: {reason} (code {code:#04x})"));
        // If the broker has accepted this login before, it may be starting up: the failure is temporary.
        if is_login && !self.has_connected { Failure::fatal(error) } else { Failure::retryable(error) }
    }

    /// Reads the limits of the broker from the properties of CONNACK. Returns `None` if the properties are malformed.
    fn apply(&mut self, properties: &[u8]) -> Option<()> {
        let (n_bytes, mut rest) = split_length(properties)?;
        rest = rest.get(..n_bytes)?;
        while let [id, value @ ..] = rest {
            let n_value = match id {
                0x24 | 0x25 | 0x28 | 0x29 | 0x2a => 1,
                0x13 | 0x21 | 0x22 => 2,
                0x11 | 0x27 => 4,
                0x12 | 0x15 | 0x16 | 0x1a | 0x1c | 0x1f => text_bytes(value)?,
                0x26 => text_bytes(value)? + text_bytes(value.get(text_bytes(value)?..)?)?,
                _ => return None,
            };
            let (value, after) = value.split_at_checked(n_value)?;
            match (id, value) {
                (0x21, [a, b]) => self.max_in_flight = usize::from(u16::from_be_bytes([*a, *b])).clamp(1, MAX_IN_FLIGHT),
                (0x27, [a, b, c, d]) => self.max_packet_bytes = u32::from_be_bytes([*a, *b, *c, *d]) as usize,
                _ => {}
            }
            rest = after;
        }
        Some(())
    }
}

impl Protocol for Mqtt {
    fn open(&mut self, deadline: &Deadline) -> Result<Connection, Failure> {
        if let Some(connection) = self.try_open(deadline)? {
            return Ok(connection);
        }
        self.version = 4;
        let outcome = match self.try_open(deadline) {
            Ok(Some(connection)) => return Ok(connection),
            Ok(None) => Failure::retryable(unexpected("a refusal of all versions")),
            Err(failure) => failure,
        };
        // The broker may have been starting up, so try version 5 again.
        self.version = 5;
        Err(outcome)
    }

    fn encode(&mut self, number: u64, message: &Message) -> Result<Vec<u8>, String> {
        let packet = self.publish_packet(packet_id(number), message);
        if packet.len() > self.max_packet_bytes {
            let (n_bytes, maximum) = (packet.len(), self.max_packet_bytes);
            return Err(format!("a message of {n_bytes} bytes is larger than the broker accepts: {maximum} bytes"));
        }
        Ok(packet)
    }

    fn handle_received(&mut self, connection: &mut Connection, in_flight: &mut InFlight) -> Result<(), Failure> {
        while let Some((kind, body)) = take_packet(connection).map_err(Failure::retryable)? {
            match kind {
                PUBACK => acknowledge(&body, in_flight)?,
                DISCONNECT => {
                    let code = body.first().copied().unwrap_or(0);
                    let error = io::Error::new(ErrorKind::ConnectionReset, format!("the broker ended the connection (code {code:#04x})"));
                    if code == 0x95 && in_flight.n_unanswered() == 1 {
                        in_flight.refuse(|_| true, io::Error::new(ErrorKind::InvalidInput, error.to_string()), true);
                    }
                    return Err(Failure::retryable(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn ping(&self) -> Vec<u8> {
        packet(PINGREQ, &[])
    }

    fn farewell(&self) -> Vec<u8> {
        [self.status_packet("offline").unwrap_or_default(), packet(DISCONNECT, &[])].concat()
    }

    fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    fn give_up_after(&self) -> Option<Duration> {
        self.give_up_after
    }
}

/// The packet identifier of a message: never 0, and different for all messages in flight.
fn packet_id(number: u64) -> u16 {
    1 + (number % u64::from(u16::MAX)) as u16
}

fn acknowledge(body: &[u8], in_flight: &mut InFlight) -> Result<(), Failure> {
    let (id, code) = match body {
        [a, b] => (u16::from_be_bytes([*a, *b]), 0),
        [a, b, code, ..] => (u16::from_be_bytes([*a, *b]), *code),
        _ => return Err(Failure::retryable(unexpected("a malformed PUBACK"))),
    };
    let is_it = |number| packet_id(number) == id;
    if code < 0x80 {
        in_flight.acknowledge(is_it);
        return Ok(());
    }
    // The first two codes concern the content. All other reasons can be corrected at the broker.
    let (reason, is_final) = match code {
        0x90 => ("it rejects the topic", true),
        0x99 => ("it rejects the content", true),
        0x87 => ("the user is not authorized", false),
        0x97 => ("a quota is exceeded", false),
        _ => ("it gives no reason", false),
    };
    let error = format!("the broker does not accept a message: {reason} (code {code:#04x})");
    in_flight.refuse(is_it, io::Error::new(ErrorKind::PermissionDenied, error), is_final);
    Ok(())
}

/// Whether a character may be in the name of a topic to publish to.
fn is_topic_text(c: char) -> bool {
    !matches!(c, '+' | '#') && !c.is_control()
}

fn unexpected(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("expected an MQTT broker, got {what}"))
}

/// Appends a string with its length in two bytes. Cuts strings above 65,535 bytes.
fn text(bytes: &mut Vec<u8>, text: &str) {
    let n_bytes = text.floor_char_boundary(usize::from(u16::MAX));
    bytes.extend_from_slice(&(n_bytes as u16).to_be_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..n_bytes]);
}

/// Appends a length in groups of seven bits.
fn length(bytes: &mut Vec<u8>, mut n: usize) {
    while n >= 0x80 {
        bytes.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
}

fn packet(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![kind];
    length(&mut packet, body.len());
    packet.extend_from_slice(body);
    packet
}

/// Reads the length at the start. Returns it and the bytes after it. `None` if the length is incomplete or has more than four bytes.
fn split_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut n = 0;
    for (idx, byte) in bytes.iter().enumerate().take(4) {
        n |= usize::from(byte & 0x7f) << (7 * idx);
        if byte & 0x80 == 0 {
            return Some((n, &bytes[idx + 1..]));
        }
    }
    None
}

/// Number of bytes of the string at the start, with its length.
fn text_bytes(bytes: &[u8]) -> Option<usize> {
    let [a, b, ..] = bytes else { return None };
    Some(2 + usize::from(u16::from_be_bytes([*a, *b])))
}

/// Removes a complete packet from the received bytes: its type and its body.
fn take_packet(connection: &mut Connection) -> io::Result<Option<(u8, Vec<u8>)>> {
    let [kind, rest @ ..] = connection.received() else { return Ok(None) };
    let Some((n_bytes, after)) = split_length(rest) else {
        return if rest.len() >= 4 { Err(unexpected("a malformed packet")) } else { Ok(None) };
    };
    if n_bytes > MAX_RECEIVED_BYTES {
        return Err(unexpected("a packet of more than a megabyte"));
    }
    let Some(body) = after.get(..n_bytes) else { return Ok(None) };
    let (kind, body, n_before) = (kind & 0xf0, body.to_vec(), 1 + rest.len() - after.len());
    connection.consume(n_before + n_bytes);
    Ok(Some((kind, body)))
}
