//! Publishes messages, such as the results of frames. The producing thread blocks only while the queue is full.
//!
//! ```text
//! caller -> Publisher::publish -> bounded queue -> worker thread -> Destination (file, standard output, broker)
//! ```
//!
//! A [`Publisher`] owns a bounded queue and one worker thread for one [`Destination`]. It applies the policy for a full queue
//! ([`WhenFull`]), retries after failures ([`Retry`]), and counts the outcome of each message ([`Counts`]). A destination only connects,
//! accepts messages, and reports how many it has stored.
//!
//! [`LineFile`] is the destination for files, FIFOs, devices and standard output: each message is one line. A `LineFile` writes to an
//! [`OutputFile`], which other writers use, too. To add a destination, add a file that implements [`Destination`].
//!
//! Uses no GStreamer and no message format.

mod deadline;
mod line_file;
mod output_file;
mod publisher;

use std::io;
use std::sync::Arc;

pub use deadline::Deadline;
pub use line_file::LineFile;
pub use output_file::{IfExists, OutputFile, is_stdout, new_file};
pub use publisher::{Counts, Loss, Options, Publisher, Refused, Retry, WhenFull};

/// A message for a destination.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The content, without line end.
    pub payload: Vec<u8>,
    /// The stream of the message. A broker can use it as partition key or in the name of a topic.
    pub stream: Option<Arc<str>>,
}

/// Why a destination did not accept messages.
#[derive(Debug)]
pub struct Failure {
    error: io::Error,
    is_fatal: bool,
}

impl Failure {
    /// A temporary failure: the disk is full, or the server does not answer.
    pub fn retryable(error: io::Error) -> Self {
        Self { error, is_fatal: false }
    }

    /// A permanent failure: the file cannot be created, or the server rejects the password.
    pub fn fatal(error: io::Error) -> Self {
        Self { error, is_fatal: true }
    }

    /// The reason.
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// Whether the failure is permanent.
    pub fn is_fatal(&self) -> bool {
        self.is_fatal
    }
}

/// Accepts messages. All methods are called on the worker thread of one [`Publisher`], so they may block until the deadline.
///
/// Messages are numbered in the order in which they are passed to the destination. [`Destination::acknowledged`] is a position in this
/// order. A destination may accept any number of messages before it acknowledges the first.
///
/// After a failure of any method, the destination discards the messages after [`Destination::committed`]. The publisher connects again and
/// passes the discarded messages again, or drops them. In both cases the next message has the number after the committed messages.
pub trait Destination: Send + 'static {
    /// Connects, also after a failure.
    ///
    /// `deadline` limits the waiting time of this and all later calls. It can be set while a call waits, so waiting calls must check it at
    /// least every 100 ms.
    ///
    /// # Errors
    /// If the destination cannot be opened or reached.
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure>;

    /// Accepts a message, possibly into a buffer. Only [`Destination::flush`] waits for acknowledgments.
    ///
    /// # Errors
    /// If this or an earlier message was rejected, or the connection was lost.
    fn publish(&mut self, message: &Message) -> Result<(), Failure>;

    /// Blocks until all messages are acknowledged.
    ///
    /// # Errors
    /// As [`Destination::publish`].
    fn flush(&mut self) -> Result<(), Failure>;

    /// Number of messages that the destination has stored permanently, from the first. Never decreases.
    fn acknowledged(&self) -> u64;

    /// Like [`Destination::acknowledged`], plus messages that cannot be undone because a part of the last message is written. The publisher
    /// does not pass these messages again; the destination completes them in the next flush.
    fn committed(&self) -> u64 {
        self.acknowledged()
    }

    /// Disconnects. Called once, after the last flush.
    ///
    /// # Errors
    /// If the connection did not end properly. Unacknowledged messages are lost in any case.
    fn close(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}
