//! Publishes to Kafka, with an idempotent producer.
//!
//! The client is librdkafka, loaded at run time: the reason is in `Cargo.toml`. The client retries by itself, in order and without repeated
//! messages. If no message is acknowledged for 30 s, this module starts a new producer, and messages can be repeated. The key of a message
//! is the name of its stream, so the messages of a stream stay in one partition, in order.

#[allow(unsafe_code, reason = "calls a C library that is loaded at run time")]
mod api;
#[cfg(test)]
#[allow(unsafe_code, reason = "calls the mock cluster of the same C library")]
mod tests;

use std::time::{Duration, Instant};

use api::{Api, Event, MSG_SIZE_TOO_LARGE, Producer, QUEUE_FULL, io_error};

use super::address::{Address, Template};
use super::client::{ANSWER_TIMEOUT, InFlight, MAX_IN_FLIGHT};
use super::connection::Tls;
use super::files::{Login, NamedFile};
use super::{Deadline, Destination, Failure, Message};

/// Maximum time until a broker answers.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which waiting calls check the deadline.
const TICK: Duration = Duration::from_millis(100);

/// A Kafka cluster with a topic for all streams, or for each stream.
pub(super) struct Kafka {
    api: Api,
    settings: Vec<(String, String)>,
    login: Login,
    topic: Template,
    producer: Option<Producer>,
    in_flight: InFlight,
    /// Number of the next message.
    next: u64,
    deadline: Deadline,
    /// The last error of the connection, for the texts of failures.
    last_error: String,
}

impl Kafka {
    /// Creates the destination of a `kafka://` or `kafkas://` address. A list of hosts is separated by commas.
    pub(super) fn new(mut address: Address) -> Result<Self, String> {
        let login = address.take_login()?;
        let tls = Tls::of(&mut address)?;
        let hosts = address.host_texts().join(",");
        let mechanism = address.take("sasl");
        let mut settings: Vec<(String, String)> = [
            ("bootstrap.servers", &*hosts),
            ("client.id", "roiflow"),
            ("enable.idempotence", "true"),
            // The library must not drop messages that are not delivered in time. This module ends the wait.
            ("message.timeout.ms", "0"),
            ("linger.ms", "5"),
            ("reconnect.backoff.max.ms", "5000"),
            // This module reports failures. Without this setting, the library also writes each failure to standard error.
            ("log_level", "0"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let mut set = |name: &str, value: Option<String>| settings.extend(value.map(|value| (name.to_owned(), value)));
        let protocol = match (tls.is_some(), login.user.is_some()) {
            (false, false) => "plaintext",
            (true, false) => "ssl",
            (false, true) => "sasl_plaintext",
            (true, true) => "sasl_ssl",
        };
        set("security.protocol", Some(protocol.to_owned()));
        if let Some(Tls { ca, client }) = tls {
            // The library opens the files itself.
            let path = |file: NamedFile| file.path().to_string_lossy().into_owned();
            set("ssl.ca.location", ca.map(path));
            let (cert, key) = client.unzip();
            set("ssl.certificate.location", cert.map(path));
            set("ssl.key.location", key.map(path));
        }
        if login.user.is_some() {
            set("sasl.mechanisms", Some(mechanism.unwrap_or_else(|| "PLAIN".to_owned())));
            set("sasl.username", login.user.clone());
        }
        for name in ["client-id", "compression"] {
            set(if name == "client-id" { "client.id" } else { "compression.codec" }, address.take(name));
        }
        settings.extend(address.take_settings());
        address.finish()?;
        let topic = if address.path.is_empty() { "roiflow" } else { &address.path };
        let template = Template::checked(topic)?;
        if let Some(c) = topic.replace("{stream}", "").chars().find(|c| !is_topic_text(*c)) {
            return Err(format!("expected a topic of letters, digits, `.`, `_` and `-`, got one with `{c}`"));
        }
        let (topic, api) = (template, Api::load()?);
        let (producer, in_flight, deadline, last_error) = Default::default();
        let kafka = Self { api, settings, login, topic, producer, in_flight, next: 1, deadline, last_error };
        // Create a producer now, to report unknown settings before the start.
        drop(kafka.new_producer()?);
        Ok(kafka)
    }

    /// Creates a producer with the present password.
    fn new_producer(&self) -> Result<Producer, String> {
        let mut settings = self.settings.clone();
        if self.login.user.is_some() {
            let (_, password) = self.login.read().map_err(|error| error.to_string())?;
            // Settings of the address follow the login.
            let idx = settings.iter().position(|(name, _)| name == "sasl.username").map_or(settings.len(), |idx| idx + 1);
            settings.splice(idx..idx, password.map(|password| ("sasl.password".to_owned(), password)));
        }
        Producer::new(&self.api, &settings)
    }

    fn reset_on_failure(&mut self, outcome: Result<(), Failure>) -> Result<(), Failure> {
        if outcome.is_err() {
            self.producer = None;
            self.in_flight.clear();
        }
        outcome
    }

    fn try_connect(&mut self) -> Result<(), Failure> {
        // The settings were accepted before, so a file has changed.
        let producer = self.new_producer().map_err(|error| Failure::retryable(io_error(error)))?;
        let end = Instant::now() + CONNECT_TIMEOUT;
        while let Err(code) = producer.probe(TICK.as_millis() as i32) {
            self.deadline.remaining(TICK).map_err(Failure::retryable)?;
            while let Some(event) = producer.poll(0) {
                if let Event::Error(text) = event {
                    self.last_error = text;
                }
            }
            if Instant::now() >= end {
                let reason = if self.last_error.is_empty() { self.api.error_text(code) } else { self.last_error.clone() };
                return Err(Failure::retryable(io_error(format!("no broker answers: {reason}"))));
            }
        }
        self.producer = Some(producer);
        Ok(())
    }

    /// Waits until at most `n` messages are unacknowledged.
    fn wait_for(&mut self, n: usize) -> Result<(), Failure> {
        let mut end = Instant::now() + ANSWER_TIMEOUT;
        while self.in_flight.len() > n || self.in_flight.has_refusal() {
            if let Some(error) = self.in_flight.blocked(None) {
                return Err(Failure::refused(error));
            }
            let left = self.deadline.remaining(TICK).map_err(Failure::retryable)?;
            let before = self.in_flight.len();
            self.handle(left.as_millis().max(1) as i32)?;
            if self.in_flight.len() < before {
                end = Instant::now() + ANSWER_TIMEOUT;
            } else if Instant::now() >= end {
                let reason = if self.last_error.is_empty() { "no answer".to_owned() } else { self.last_error.clone() };
                return Err(Failure::retryable(io_error(format!("the brokers did not acknowledge messages in time: {reason}"))));
            }
        }
        Ok(())
    }

    /// Waits for an event, and handles all events that have arrived.
    fn handle(&mut self, timeout_ms: i32) -> Result<(), Failure> {
        let Self { producer, in_flight, last_error, api, .. } = self;
        let producer = producer.as_ref().ok_or_else(not_connected)?;
        let mut next = producer.poll(timeout_ms);
        while let Some(event) = next {
            match event {
                Event::Delivered(messages) => {
                    for (number, code) in messages {
                        if code != 0 {
                            let error = io_error(format!("the broker does not accept a message: {}", api.error_text(code)));
                            // The library reports its own errors, such as a lost connection, with negative codes.
                            if code < 0 {
                                return Err(Failure::retryable(error));
                            }
                            in_flight.refuse(|sent| sent == number, error, code == MSG_SIZE_TOO_LARGE);
                            continue;
                        }
                        in_flight.acknowledge(|sent| sent == number);
                        last_error.clear();
                    }
                }
                Event::Error(text) => *last_error = text,
                Event::Other => {}
            }
            next = producer.poll(0);
        }
        Ok(())
    }

    fn try_publish(&mut self, message: &Message) -> Result<(), Failure> {
        self.wait_for(MAX_IN_FLIGHT - 1)?;
        let topic = self.topic.of_stream(message.stream_name(), is_topic_text);
        let id = message.id();
        loop {
            let producer = self.producer.as_ref().ok_or_else(not_connected)?;
            match producer.produce(&topic, message.stream_name(), ("message-id", &id), &message.payload, self.next) {
                Ok(()) => break,
                // The options can limit the library's queue to fewer messages than this module passes.
                Err((QUEUE_FULL, _)) if self.in_flight.len() > 0 => self.wait_for(self.in_flight.len() - 1)?,
                Err((MSG_SIZE_TOO_LARGE, text)) => {
                    let number = self.next;
                    self.in_flight.add(number);
                    self.next += 1;
                    self.in_flight.refuse(|sent| sent == number, io_error(text), true);
                    return Ok(());
                }
                Err((_, text)) => return Err(Failure::retryable(io_error(text))),
            }
        }
        self.in_flight.add(self.next);
        self.next += 1;
        Ok(())
    }
}

impl Destination for Kafka {
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure> {
        self.deadline = deadline.clone();
        self.in_flight.clear();
        self.producer = None;
        let outcome = self.try_connect();
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
        self.in_flight.n_acknowledged()
    }

    fn take_refused(&mut self) -> Vec<(u64, std::io::Error)> {
        self.in_flight.take_refused()
    }

    fn idle(&mut self) -> Result<(), Failure> {
        // Only handle events: the library reconnects by itself.
        let outcome = self.handle(0);
        self.reset_on_failure(outcome)
    }

    fn close(&mut self) -> Result<(), Failure> {
        self.producer = None;
        Ok(())
    }
}

fn not_connected() -> Failure {
    Failure::retryable(std::io::ErrorKind::NotConnected.into())
}

/// Whether a character may be in the name of a topic.
fn is_topic_text(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}
