//! The client side of one connection to a server: messages in flight, acknowledgments and failures. All protocols of this crate share it.
//!
//! A [`Protocol`] opens the connection, encodes messages and reads answers. [`Client`] turns a protocol into a [`Destination`].
//!
//! # Refused messages
//!
//! Messages are in flight together, so the server may refuse a message and accept later ones. A refused message is never sent again after a
//! message that was accepted:
//!
//! 1. After a refusal, nothing is sent until all messages in flight have an answer.
//! 2. A refused message before an accepted one is given up, because it would arrive too late. So is a message whose content is refused.
//! 3. If the server has refused all messages from one on, the publisher passes them again, from the first on.
//!
//! Then one message at a time is in flight, so that a further refusal costs no message. The number doubles each time the server has accepted
//! [`CAUTION`] messages.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::{Deadline, Destination, Failure, Message};

/// Maximum time to wait for an answer of the server.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of unacknowledged messages.
pub(crate) const MAX_IN_FLIGHT: usize = 256;
/// Number of messages that the server must accept after a refusal before more messages are in flight.
const CAUTION: u64 = 256;

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

    /// Handles all complete answers in the buffer of the connection, without waiting. Notes accepted and refused messages in `in_flight`.
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

    /// Time after which a message that the server refuses is given up. `None`: never.
    fn give_up_after(&self) -> Option<Duration> {
        None
    }
}

/// The answer to a message.
#[derive(Debug)]
enum Answer {
    Missing,
    Accepted,
    Refused {
        error: io::Error,
        /// Whether the message is given up.
        is_final: bool,
    },
}

/// The messages without an acknowledgment, in order.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    messages: VecDeque<(u64, Answer)>,
    n_acknowledged: u64,
    /// Acknowledged messages that were given up; see [`Destination::take_refused`].
    refused: Vec<(u64, io::Error)>,
    /// Whether a message was given up because the server has accepted a later one.
    was_overtaken: bool,
    /// Since when the server has refused messages and accepted none.
    refused_since: Option<Instant>,
}

impl InFlight {
    /// Number of messages that were accepted or given up so far.
    pub(crate) fn n_acknowledged(&self) -> u64 {
        self.n_acknowledged
    }

    /// See [`Destination::take_refused`].
    pub(crate) fn take_refused(&mut self) -> Vec<(u64, io::Error)> {
        std::mem::take(&mut self.refused)
    }

    /// Adds a message after the messages in flight.
    pub(crate) fn add(&mut self, number: u64) {
        self.messages.push_back((number, Answer::Missing));
    }

    /// Discards the messages without an acknowledgment. Gives up refused messages at the front if a later message has no answer: the server
    /// may have accepted it.
    pub(crate) fn clear(&mut self) {
        while let Some((_, Answer::Refused { .. })) = self.messages.front().filter(|_| self.n_unanswered() > 0) {
            self.pop();
        }
        self.messages.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn n_unanswered(&self) -> usize {
        self.messages.iter().filter(|(_, answer)| matches!(answer, Answer::Missing)).count()
    }

    /// Whether the server has refused a message that is not given up. Nothing may be sent until all messages have an answer.
    pub(crate) fn has_refusal(&self) -> bool {
        self.messages.iter().any(|(_, answer)| matches!(answer, Answer::Refused { is_final: false, .. }))
    }

    /// Accepts the first unanswered message whose number `is_it` accepts. Unknown numbers have no effect.
    pub(crate) fn acknowledge(&mut self, is_it: impl Fn(u64) -> bool) {
        self.answer(is_it, Answer::Accepted);
    }

    /// Refuses the first unanswered message whose number `is_it` accepts. If `is_final`, it is not sent again.
    pub(crate) fn refuse(&mut self, is_it: impl Fn(u64) -> bool, error: io::Error, is_final: bool) {
        self.answer(is_it, Answer::Refused { error, is_final });
    }

    fn answer(&mut self, is_it: impl Fn(u64) -> bool, new: Answer) {
        if matches!(new, Answer::Accepted) {
            self.refused_since = None;
        }
        if let Some((_, answer)) = self.messages.iter_mut().find(|(number, answer)| matches!(answer, Answer::Missing) && is_it(*number)) {
            *answer = new;
        }
        self.settle();
    }

    /// Removes the messages at the front that are accepted or given up.
    fn settle(&mut self) {
        loop {
            let is_overtaken = self.messages.iter().any(|(_, answer)| matches!(answer, Answer::Accepted));
            match self.messages.front() {
                Some((_, Answer::Accepted | Answer::Refused { is_final: true, .. })) => {}
                Some((_, Answer::Refused { .. })) if is_overtaken => self.was_overtaken = true,
                _ => return,
            }
            self.pop();
        }
    }

    /// Removes the first message, which is accepted or given up.
    fn pop(&mut self) {
        if let Some((_, Answer::Refused { error, .. })) = self.messages.pop_front() {
            self.refused.push((self.n_acknowledged, error));
        }
        self.n_acknowledged += 1;
    }

    /// Returns why the server refuses the first message, if all messages have an answer. Gives the message up if the server has accepted
    /// nothing for `give_up_after`.
    pub(crate) fn blocked(&mut self, give_up_after: Option<Duration>) -> Option<io::Error> {
        if self.n_unanswered() > 0 {
            return None;
        }
        let Some((_, Answer::Refused { error, is_final })) = self.messages.front_mut() else { return None };
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        if give_up_after.is_some_and(|limit| since.elapsed() >= limit) {
            *is_final = true;
            self.settle();
            return None;
        }
        Some(std::mem::replace(error, ErrorKind::Other.into()))
    }
}

/// A destination that uses one connection to a server.
pub(crate) struct Client<P> {
    protocol: P,
    connection: Option<Connection>,
    in_flight: InFlight,
    /// Number of the next message. Numbers are not used again on a new connection.
    next: u64,
    /// Maximum number of messages in flight.
    window: usize,
    /// The window doubles when the server has accepted this number of messages more.
    caution: u64,
    /// The number of acknowledged messages at which the window doubles.
    grows_at: u64,
}

impl<P: Protocol> Client<P> {
    pub(crate) fn new(protocol: P) -> Self {
        Self { protocol, connection: None, in_flight: InFlight::default(), next: 1, window: 1, caution: 1, grows_at: 1 }
    }

    /// Calls `act` with the open connection. If `act` fails, discards the connection and the messages in flight, as [`Destination`]
    /// requires. If the server only refuses messages, the connection stays open.
    fn with_connection(
        &mut self,
        act: impl FnOnce(&mut P, &mut Connection, &mut InFlight, &mut u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Self { protocol, connection, in_flight, next, .. } = self;
        let outcome = match connection.as_mut() {
            Some(connection) => act(protocol, connection, in_flight, next),
            None => Err(Failure::retryable(ErrorKind::NotConnected.into())),
        };
        if let Err(failure) = &outcome {
            // One of the messages in flight may be the cause of any failure, so send one at a time.
            self.in_flight.clear();
            self.be_cautious(if failure.is_refused() { CAUTION } else { self.caution });
            if !failure.is_refused() {
                self.connection = None;
            }
        }
        outcome
    }

    /// Sends one message at a time until the server has accepted this number of messages.
    fn be_cautious(&mut self, caution: u64) {
        (self.window, self.caution) = (1, caution);
        self.grows_at = self.in_flight.n_acknowledged() + caution;
    }

    /// Returns how many messages may be in flight.
    fn window(&mut self) -> usize {
        if std::mem::take(&mut self.in_flight.was_overtaken) {
            self.be_cautious(CAUTION);
        }
        if self.in_flight.n_acknowledged() >= self.grows_at && self.window < MAX_IN_FLIGHT {
            self.window *= 2;
            self.grows_at = self.in_flight.n_acknowledged() + self.caution.max(self.window as u64);
            self.caution = if self.window < MAX_IN_FLIGHT { self.caution } else { 1 };
        }
        self.window.min(self.protocol.max_in_flight())
    }
}

/// Waits until at most `n` messages are unacknowledged.
fn wait_for(n: usize, protocol: &mut impl Protocol, connection: &mut Connection, in_flight: &mut InFlight) -> Result<(), Failure> {
    let mut end = Instant::now() + ANSWER_TIMEOUT;
    while in_flight.len() > n || in_flight.has_refusal() {
        if let Some(error) = in_flight.blocked(protocol.give_up_after()) {
            return Err(Failure::refused(error));
        }
        let before = in_flight.n_unanswered();
        if before == 0 {
            continue;
        }
        connection.receive(end).map_err(Failure::retryable)?;
        protocol.handle_received(connection, in_flight)?;
        if in_flight.n_unanswered() < before {
            end = Instant::now() + ANSWER_TIMEOUT;
        }
    }
    Ok(())
}

/// Handles the answers that have arrived.
fn poll(protocol: &mut impl Protocol, connection: &mut Connection, in_flight: &mut InFlight) -> Result<(), Failure> {
    connection.poll().map_err(Failure::retryable)?;
    protocol.handle_received(connection, in_flight)
}

impl<P: Protocol> Destination for Client<P> {
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure> {
        self.in_flight.clear();
        // The connection stays open after a refusal.
        if self.connection.is_none() {
            self.connection = Some(self.protocol.open(deadline)?);
        }
        Ok(())
    }

    fn publish(&mut self, message: &Message) -> Result<(), Failure> {
        let window = self.window();
        self.with_connection(|protocol, connection, in_flight, next| {
            poll(protocol, connection, in_flight)?;
            wait_for(window - 1, protocol, connection, in_flight)?;
            in_flight.add(*next);
            let number = *next;
            *next += 1;
            match protocol.encode(number, message) {
                Ok(bytes) => connection.write(&bytes).map_err(Failure::retryable),
                Err(text) => {
                    in_flight.refuse(|sent| sent == number, io::Error::new(ErrorKind::InvalidInput, text), true);
                    Ok(())
                }
            }
        })
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.with_connection(|protocol, connection, in_flight, _| wait_for(0, protocol, connection, in_flight))
    }

    fn acknowledged(&self) -> u64 {
        self.in_flight.n_acknowledged()
    }

    fn take_refused(&mut self) -> Vec<(u64, io::Error)> {
        self.in_flight.take_refused()
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.with_connection(|protocol, connection, in_flight, _| {
            connection.write(&protocol.ping()).map_err(Failure::retryable)?;
            poll(protocol, connection, in_flight)
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

    fn in_flight(numbers: impl IntoIterator<Item = u64>) -> InFlight {
        let mut in_flight = InFlight { n_acknowledged: 6, ..InFlight::default() };
        numbers.into_iter().for_each(|number| in_flight.add(number));
        in_flight
    }

    fn refuse(in_flight: &mut InFlight, refused: u64, is_final: bool) {
        in_flight.refuse(|number| number == refused, io::Error::other(refused.to_string()), is_final);
    }

    fn given_up(in_flight: &mut InFlight) -> Vec<(u64, String)> {
        in_flight.take_refused().into_iter().map(|(position, error)| (position, error.to_string())).collect()
    }

    #[test]
    fn acknowledgments_out_of_order_count_from_the_first_message() {
        let mut in_flight = in_flight([7, 8, 9]);
        in_flight.acknowledge(|number| number == 8);
        assert_eq!((in_flight.len(), in_flight.n_acknowledged), (3, 6));
        in_flight.acknowledge(|number| number == 7);
        assert_eq!((in_flight.len(), in_flight.n_acknowledged), (1, 8));
        in_flight.acknowledge(|number| number == 7);
        assert_eq!((in_flight.len(), in_flight.n_acknowledged), (1, 8));
    }

    #[test]
    fn refused_message_before_an_accepted_one_is_given_up() {
        let mut in_flight = in_flight(7..11);
        refuse(&mut in_flight, 8, false);
        in_flight.acknowledge(|number| number == 7);
        assert!(in_flight.has_refusal() && in_flight.blocked(None).is_none(), "two messages have no answer");
        in_flight.acknowledge(|number| number == 9);
        assert_eq!((in_flight.n_acknowledged, given_up(&mut in_flight)), (9, vec![(7, "8".to_owned())]));
        refuse(&mut in_flight, 10, false);
        assert_eq!(in_flight.blocked(None).map(|error| error.to_string()), Some("10".to_owned()));
        assert_eq!((in_flight.n_acknowledged, given_up(&mut in_flight)), (9, vec![]));
    }

    #[test]
    fn refused_message_is_given_up_if_the_answer_to_a_later_one_is_lost() {
        let mut messages = in_flight(7..10);
        refuse(&mut messages, 7, false);
        refuse(&mut messages, 9, false);
        messages.clear();
        assert_eq!((messages.n_acknowledged, messages.len(), given_up(&mut messages)), (7, 0, vec![(6, "7".to_owned())]));
    }

    #[test]
    fn refused_content_is_given_up_at_its_position() {
        let mut in_flight = in_flight(7..10);
        refuse(&mut in_flight, 8, true);
        assert!(!in_flight.has_refusal() && in_flight.n_acknowledged == 6);
        in_flight.acknowledge(|number| number == 7);
        in_flight.acknowledge(|number| number == 9);
        assert_eq!((in_flight.n_acknowledged, given_up(&mut in_flight)), (9, vec![(7, "8".to_owned())]));
    }

    #[test]
    fn refused_messages_are_given_up_when_the_time_is_over() {
        let mut in_flight = in_flight(7..9);
        refuse(&mut in_flight, 7, false);
        refuse(&mut in_flight, 8, false);
        assert!(in_flight.blocked(Some(Duration::from_secs(600))).is_some());
        assert!(in_flight.blocked(Some(Duration::ZERO)).is_none() && in_flight.blocked(Some(Duration::ZERO)).is_none());
        assert_eq!((in_flight.n_acknowledged, given_up(&mut in_flight).len()), (8, 2));
    }
}
