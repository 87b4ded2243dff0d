//! The client side of one connection to a server: messages in flight, acknowledgments and failures. All protocols of this crate share it.
//!
//! A [`Protocol`] opens the connection, encodes messages and reads answers. [`Client`] turns a protocol into a [`Destination`].

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::{Deadline, Destination, Failure, Message};

/// Maximum time to wait for an answer of the server.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of unacknowledged messages.
pub(crate) const MAX_IN_FLIGHT: usize = 256;

/// A protocol that acknowledges single messages.
pub(crate) trait Protocol: Send + 'static {
    /// Opens a connection that is ready for messages.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached, or refuses the connection.
    fn open(&mut self, deadline: &Deadline) -> Result<Connection, Failure>;

    /// Encodes a message. `number` identifies it in [`Protocol::handle_received`].
    ///
    /// # Errors
    /// Returns a description if the server does not accept messages of this size.
    fn encode(&mut self, number: u64, message: &Message) -> Result<Vec<u8>, String>;

    /// Handles all complete answers in the buffer of the connection, without waiting. Removes acknowledged messages from `in_flight`.
    ///
    /// # Errors
    /// Returns an error if an answer is malformed, or reports a failure.
    fn handle_received(&mut self, connection: &mut Connection, in_flight: &mut InFlight) -> Result<(), Failure>;

    /// The request that keeps an idle connection alive.
    fn ping(&self) -> Vec<u8>;

    /// The last bytes of a connection that ends properly.
    fn farewell(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Maximum number of unacknowledged messages that the server accepts; at most [`MAX_IN_FLIGHT`].
    fn max_in_flight(&self) -> usize {
        MAX_IN_FLIGHT
    }
}

/// The messages without an acknowledgment, in order.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// For each message: its number, and whether it is acknowledged although an earlier message is not.
    messages: VecDeque<(u64, bool)>,
    n_acknowledged: u64,
}

impl InFlight {
    /// Number of messages that were acknowledged so far.
    pub(crate) fn n_acknowledged(&self) -> u64 {
        self.n_acknowledged
    }

    /// Adds a message after the messages in flight.
    pub(crate) fn add(&mut self, number: u64) {
        self.messages.push_back((number, false));
    }

    /// Discards the messages without an acknowledgment.
    pub(crate) fn clear(&mut self) {
        self.messages.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether `is_it` accepts the number of the first message. Used before [`Failure::rejected`], which always means the first message.
    pub(crate) fn is_first(&self, is_it: impl Fn(u64) -> bool) -> bool {
        self.messages.front().is_some_and(|(number, _)| is_it(*number))
    }

    /// Acknowledges the message whose number `is_it` accepts. Unknown numbers have no effect.
    pub(crate) fn acknowledge(&mut self, is_it: impl Fn(u64) -> bool) {
        if let Some(message) = self.messages.iter_mut().find(|(number, _)| is_it(*number)) {
            message.1 = true;
        }
        while let Some((_, true)) = self.messages.front() {
            self.messages.pop_front();
            self.n_acknowledged += 1;
        }
    }
}

/// A destination that uses one connection to a server.
pub(crate) struct Client<P> {
    protocol: P,
    connection: Option<Connection>,
    in_flight: InFlight,
    /// Number of the next message. Numbers are not used again on a new connection.
    next: u64,
}

impl<P: Protocol> Client<P> {
    pub(crate) fn new(protocol: P) -> Self {
        Self { protocol, connection: None, in_flight: InFlight::default(), next: 1 }
    }

    /// Calls `act` with the open connection. If `act` fails, discards the connection and the messages in flight, as [`Destination`]
    /// requires.
    fn with_connection(
        &mut self,
        act: impl FnOnce(&mut P, &mut Connection, &mut InFlight, &mut u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Self { protocol, connection, in_flight, next } = self;
        let outcome = match connection.as_mut() {
            Some(connection) => act(protocol, connection, in_flight, next),
            None => Err(Failure::retryable(ErrorKind::NotConnected.into())),
        };
        if outcome.is_err() {
            self.reset();
        }
        outcome
    }

    fn reset(&mut self) {
        self.connection = None;
        self.in_flight.clear();
    }
}

/// Waits until at most `n` messages are unacknowledged.
fn wait_for(n: usize, protocol: &mut impl Protocol, connection: &mut Connection, in_flight: &mut InFlight) -> Result<(), Failure> {
    let mut end = Instant::now() + ANSWER_TIMEOUT;
    while in_flight.len() > n {
        let before = in_flight.len();
        connection.receive(end).map_err(Failure::retryable)?;
        protocol.handle_received(connection, in_flight)?;
        if in_flight.len() < before {
            end = Instant::now() + ANSWER_TIMEOUT;
        }
    }
    Ok(())
}

impl<P: Protocol> Destination for Client<P> {
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure> {
        self.reset();
        self.connection = Some(self.protocol.open(deadline)?);
        Ok(())
    }

    fn publish(&mut self, message: &Message) -> Result<(), Failure> {
        self.with_connection(|protocol, connection, in_flight, next| {
            wait_for(protocol.max_in_flight() - 1, protocol, connection, in_flight)?;
            let bytes = match protocol.encode(*next, message) {
                Ok(bytes) => bytes,
                Err(text) => {
                    // [`Failure::rejected`] means the first unacknowledged message. Wait until this message is the first.
                    wait_for(0, protocol, connection, in_flight)?;
                    return Err(Failure::rejected(io::Error::new(ErrorKind::InvalidInput, text)));
                }
            };
            in_flight.add(*next);
            *next += 1;
            connection.write(&bytes).map_err(Failure::retryable)
        })
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.with_connection(|protocol, connection, in_flight, _| wait_for(0, protocol, connection, in_flight))
    }

    fn acknowledged(&self) -> u64 {
        self.in_flight.n_acknowledged()
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.with_connection(|protocol, connection, in_flight, _| {
            connection.write(&protocol.ping()).map_err(Failure::retryable)?;
            connection.poll().map_err(Failure::retryable)?;
            protocol.handle_received(connection, in_flight)
        })
    }

    fn close(&mut self) -> Result<(), Failure> {
        if let Some(mut connection) = self.connection.take() {
            connection.write_last(&self.protocol.farewell());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgments_out_of_order_count_from_the_first_message() {
        let mut in_flight = InFlight { messages: [(7, false), (8, false), (9, false)].into(), n_acknowledged: 6 };
        in_flight.acknowledge(|number| number == 8);
        assert_eq!((in_flight.len(), in_flight.n_acknowledged), (3, 6));
        assert!(in_flight.is_first(|number| number == 7) && !in_flight.is_first(|number| number == 8));
        in_flight.acknowledge(|number| number == 7);
        assert_eq!((in_flight.len(), in_flight.n_acknowledged), (1, 8));
        in_flight.acknowledge(|number| number == 7);
        assert_eq!((in_flight.len(), in_flight.n_acknowledged), (1, 8));
    }
}
