//! Publishes to an MQTT broker, with QoS 1.
//!
//! This crate implements the protocol, because a publisher needs only a few packets. The existing clients do not report which message a
//! broker has acknowledged, or need an asynchronous runtime. The client uses MQTT 5, or 3.1.1 if the broker does not support version 5.
//! Sessions are clean: unacknowledged messages are published again by the caller, not by the session.
//!
//! Packets: <https://docs.oasis-open.org/mqtt/mqtt/v5.0/mqtt-v5.0.html>.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::address::{Address, Template};
use super::connection::{Connection, Endpoint, TLS_OPTIONS};
use super::{Deadline, Destination, Failure, Message};

/// Maximum time until an acknowledgment.
const ACK_TIMEOUT: Duration = Duration::from_secs(30);
/// The broker publishes the last will after one and a half times this time without a packet. [`Destination::idle`] is called more often.
const KEEP_ALIVE_SECONDS: u16 = 30;
/// Maximum number of unacknowledged messages, if the broker accepts as many.
const MAX_IN_FLIGHT: usize = 256;
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
    user: Option<String>,
    password: Option<String>,
    client_id: String,
    topic: Template,
    status_topic: Option<String>,
    retain: bool,
    /// After this time a broker deletes messages for absent subscribers.
    expiry: Option<Duration>,
    /// Protocol level: 5 for MQTT 5, 4 for MQTT 3.1.1.
    version: u8,
    connection: Option<Connection>,
    has_connected: bool,
    /// For each packet in flight: its identifier, and whether it is acknowledged.
    in_flight: VecDeque<(u16, bool)>,
    next_id: u16,
    n_acknowledged: u64,
    max_in_flight: usize,
    max_packet_bytes: usize,
}

impl Mqtt {
    /// Creates the destination of an `mqtt://` or `mqtts://` address.
    pub(super) fn new(mut address: Address) -> Result<Self, String> {
        let has_tls = address.scheme == "mqtts";
        let endpoint = Endpoint::of(&mut address, (1883, 8883), has_tls)?;
        let status_topic = address.take("status-topic");
        let client_id = address.take("client-id").unwrap_or_else(|| {
            // `RandomState` has random keys, so the hash is a random number.
            format!("roiflow-{:012x}", RandomState::new().build_hasher().finish() >> 16)
        });
        let retain = address.take_switch("retain")?;
        let expiry = address.take_duration("expiry")?;
        address.finish(&format!("client-id, expiry, retain, status-topic, {TLS_OPTIONS}"))?;
        let topic = if address.path.is_empty() { "roiflow/{stream}" } else { &address.path };
        if let Some(c) = topic.chars().chain(status_topic.iter().flat_map(|topic| topic.chars())).find(|c| !is_topic_text(*c)) {
            return Err(format!("expected a topic name without wildcards, got one with `{c}`"));
        }
        Ok(Self {
            endpoint,
            topic: Template::new(topic),
            user: address.user,
            password: address.password,
            client_id,
            status_topic,
            retain,
            expiry,
            version: 5,
            connection: None,
            has_connected: false,
            in_flight: VecDeque::new(),
            next_id: 1,
            n_acknowledged: 0,
            max_in_flight: MAX_IN_FLIGHT,
            max_packet_bytes: MAX_PACKET_BYTES,
        })
    }

    fn connect_packet(&self) -> Vec<u8> {
        let mut body = Vec::new();
        text(&mut body, "MQTT");
        let mut flags = 0x02;
        flags |= if self.status_topic.is_some() { 0x04 | 0x08 | 0x20 } else { 0 };
        flags |= if self.password.is_some() { 0x40 } else { 0 };
        // Version 3.1.1 allows no password without a user.
        flags |= if self.user.is_some() || self.password.is_some() { 0x80 } else { 0 };
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
            text(&mut body, self.user.as_deref().unwrap_or_default());
        }
        if let Some(password) = &self.password {
            text(&mut body, password);
        }
        packet(CONNECT, &body)
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
                properties.extend_from_slice(&u32::try_from(expiry.as_secs()).unwrap_or(u32::MAX).to_be_bytes());
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

    /// Connects with the current version of the protocol. Returns false if the broker refuses the version.
    fn try_connect(&mut self, deadline: &Deadline) -> Result<bool, Failure> {
        let mut connection = Connection::open(&self.endpoint, deadline).map_err(Failure::retryable)?;
        connection.write(&self.connect_packet()).map_err(Failure::retryable)?;
        let end = Instant::now() + ACK_TIMEOUT;
        let answer = loop {
            match take_packet(&mut connection).map_err(Failure::retryable)? {
                Some(answer) => break answer,
                None => match connection.receive(end) {
                    Ok(()) => {}
                    // Some brokers close the connection if they do not know the version.
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof && self.version == 5 && !self.has_connected => return Ok(false),
                    Err(error) => return Err(Failure::retryable(error)),
                },
            }
        };
        let (CONNACK, [_, code, properties @ ..]) = (answer.0, &*answer.1) else {
            return Err(Failure::retryable(unexpected("another packet than CONNACK")));
        };
        match (self.version, code) {
            (_, 0) => {}
            (5, 0x01 | 0x84) => return Ok(false),
            (version, code) => return Err(self.refused(version, *code)),
        }
        (self.max_in_flight, self.max_packet_bytes) = (MAX_IN_FLIGHT, MAX_PACKET_BYTES);
        if self.version == 5 {
            self.apply(properties).ok_or_else(|| Failure::retryable(unexpected("malformed properties")))?;
        }
        if let Some(status) = self.status_packet("online") {
            connection.write(&status).map_err(Failure::retryable)?;
        }
        self.connection = Some(connection);
        self.has_connected = true;
        Ok(true)
    }

    fn refused(&self, version: u8, code: u8) -> Failure {
        let (reason, is_login) = match (version, code) {
            (5, 0x86) | (4, 4) => ("it rejects user or password", true),
            (5, 0x87) | (4, 5) => ("the user is not authorized", true),
            (5, 0x85) | (4, 2) => ("it rejects the client ID", true),
            (5, 0x88 | 0x89) | (4, 3) => ("it is not available", false),
            _ => ("", false),
        };
        let error = io::Error::new(ErrorKind::PermissionDenied, format!("the broker refuses the connection: {reason} (code {code:#04x})"));
        // A broker that has accepted the login before may be starting up.
        if is_login && !self.has_connected { Failure::fatal(error) } else { Failure::retryable(error) }
    }

    /// Reads the limits of the broker from the properties of CONNACK. `None` if they are malformed.
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

    fn connection(&mut self) -> Result<&mut Connection, Failure> {
        self.connection.as_mut().ok_or_else(|| Failure::retryable(ErrorKind::NotConnected.into()))
    }

    /// Handles the packets that have arrived.
    fn handle_received(&mut self) -> Result<(), Failure> {
        loop {
            let taken = take_packet(self.connection()?).map_err(Failure::retryable)?;
            match taken {
                None => return Ok(()),
                Some((PUBACK, body)) => self.acknowledge(&body)?,
                Some((DISCONNECT, body)) => {
                    let code = body.first().copied().unwrap_or(0);
                    let error = io::Error::new(ErrorKind::ConnectionReset, format!("the broker ended the connection (code {code:#04x})"));
                    let is_too_large = code == 0x95 && self.in_flight.len() == 1;
                    return Err(if is_too_large { Failure::rejected(error) } else { Failure::retryable(error) });
                }
                Some(_) => {}
            }
        }
    }

    fn acknowledge(&mut self, body: &[u8]) -> Result<(), Failure> {
        let (id, code) = match body {
            [a, b] => (u16::from_be_bytes([*a, *b]), 0),
            [a, b, code, ..] => (u16::from_be_bytes([*a, *b]), *code),
            _ => return Err(Failure::retryable(unexpected("a malformed PUBACK"))),
        };
        if code >= 0x80 {
            let is_first = self.in_flight.front().is_some_and(|(first, _)| *first == id);
            let error = io::Error::new(ErrorKind::PermissionDenied, format!("the broker does not accept a message (code {code:#04x})"));
            // Invalid topic or payload. Other reasons can be corrected at the broker.
            return Err(if is_first && matches!(code, 0x90 | 0x99) { Failure::rejected(error) } else { Failure::retryable(error) });
        }
        if let Some(sent) = self.in_flight.iter_mut().find(|(sent, _)| *sent == id) {
            sent.1 = true;
        }
        while let Some((_, true)) = self.in_flight.front() {
            self.in_flight.pop_front();
            self.n_acknowledged += 1;
        }
        Ok(())
    }

    /// Waits until at most `n` messages are unacknowledged.
    fn wait_for(&mut self, n: usize) -> Result<(), Failure> {
        let mut end = Instant::now() + ACK_TIMEOUT;
        while self.in_flight.len() > n {
            let before = self.in_flight.len();
            self.connection()?.receive(end).map_err(Failure::retryable)?;
            self.handle_received()?;
            if self.in_flight.len() < before {
                end = Instant::now() + ACK_TIMEOUT;
            }
        }
        Ok(())
    }

    /// Discards the messages in flight if `outcome` is a failure, as [`Destination`] requires.
    fn reset_on_failure<T>(&mut self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if outcome.is_err() {
            self.connection = None;
            self.in_flight.clear();
        }
        outcome
    }

    fn try_publish(&mut self, message: &Message) -> Result<(), Failure> {
        self.wait_for(self.max_in_flight - 1)?;
        let id = self.next_id;
        let packet = self.publish_packet(id, message);
        if packet.len() > self.max_packet_bytes {
            // Only the first unacknowledged message can be rejected.
            self.wait_for(0)?;
            let error = format!("a message of {} bytes is larger than the broker accepts: {} bytes", packet.len(), self.max_packet_bytes);
            return Err(Failure::rejected(io::Error::new(ErrorKind::InvalidInput, error)));
        }
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        self.in_flight.push_back((id, false));
        self.connection()?.write(&packet).map_err(Failure::retryable)
    }

    fn try_idle(&mut self) -> Result<(), Failure> {
        let connection = self.connection()?;
        connection.write(&packet(PINGREQ, &[])).map_err(Failure::retryable)?;
        connection.poll().map_err(Failure::retryable)?;
        self.handle_received()
    }
}

impl Destination for Mqtt {
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure> {
        self.connection = None;
        self.in_flight.clear();
        if self.try_connect(deadline)? {
            return Ok(());
        }
        self.version = 4;
        let outcome = match self.try_connect(deadline) {
            Ok(true) => return Ok(()),
            Ok(false) => Failure::retryable(unexpected("a refusal of all versions")),
            Err(failure) => failure,
        };
        // The broker may have been starting up, so try version 5 again.
        self.version = 5;
        Err(outcome)
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
        let outcome = self.try_idle();
        self.reset_on_failure(outcome)
    }

    fn close(&mut self) -> Result<(), Failure> {
        let last = self.status_packet("offline").unwrap_or_default();
        if let Some(mut connection) = self.connection.take() {
            connection.write_last(&[last, packet(DISCONNECT, &[])].concat());
        }
        Ok(())
    }
}

/// Whether a character may be in the name of a topic to publish to.
fn is_topic_text(c: char) -> bool {
    !matches!(c, '+' | '#') && !c.is_control()
}

fn unexpected(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("expected an MQTT broker, got {what}"))
}

/// Appends a string with its length in two bytes. Strings that are too long are cut.
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

/// Splits a length from the bytes after it. `None` if it is incomplete or too long.
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
