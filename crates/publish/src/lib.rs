//! Publishes messages, such as the results of frames, without blocking the thread that produces them longer than its queue is full.
//!
//! ```text
//! caller -> Publisher::publish -> bounded queue -> worker thread -> Destination (file, standard output, broker)
//! ```
//!
//! A [`Publisher`] owns a bounded queue and one worker thread for one [`Destination`]. It decides what happens when the queue is full
//! ([`WhenFull`]), how often a failed destination is tried again ([`Retry`]), and counts what became of each message ([`Counts`]).
//! A destination only connects, takes messages over, and reports how many it holds for good.
//!
//! [`LineFile`] is the destination for files, FIFOs, devices and standard output: one message is one line. It writes to an
//! [`OutputFile`], which other writers of bytes use, too. A new destination is one file here that implements [`Destination`].
//!
//! Knows no GStreamer and no format of messages.

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
    /// What is published. The end of a line is not part of it.
    pub payload: Vec<u8>,
    /// The stream it belongs to. A broker may use it as the key of a partition, or in the name of a topic.
    pub stream: Option<Arc<str>>,
}

/// Why a destination did not take messages.
#[derive(Debug)]
pub struct Failure {
    error: io::Error,
    is_fatal: bool,
}

impl Failure {
    /// A later attempt may succeed: the disk is full, the server does not answer.
    pub fn retryable(error: io::Error) -> Self {
        Self { error, is_fatal: false }
    }

    /// No later attempt can succeed: the file cannot be created, the server refuses the password.
    pub fn fatal(error: io::Error) -> Self {
        Self { error, is_fatal: true }
    }

    /// The reason.
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// Whether no later attempt can succeed.
    pub fn is_fatal(&self) -> bool {
        self.is_fatal
    }
}

/// Takes messages over. All methods are called on the worker thread of one [`Publisher`], so they may block until the deadline.
///
/// Messages are numbered by the order in which they are handed over, and [`Destination::acknowledged`] is a cursor into that order. A
/// destination may take any number of messages over before it acknowledges the first one.
///
/// After a failure of any method the destination forgets the messages behind [`Destination::committed`]. The publisher connects again and
/// hands them over again, or gives them up; either way the next message has the number that follows the committed ones.
pub trait Destination: Send + 'static {
    /// Connects, or connects again after a failure.
    ///
    /// `deadline` limits how long this call and all later ones may wait. It can be set while a call waits, so a call that waits has to
    /// look at it at least every 100 ms.
    ///
    /// # Errors
    /// If the destination cannot be opened or reached.
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure>;

    /// Takes a message over. It may be buffered: only [`Destination::flush`] waits for acknowledgements.
    ///
    /// # Errors
    /// If this message or one before it was refused, or the connection was lost.
    fn publish(&mut self, message: &Message) -> Result<(), Failure>;

    /// Blocks until every message is acknowledged.
    ///
    /// # Errors
    /// As [`Destination::publish`].
    fn flush(&mut self) -> Result<(), Failure>;

    /// The number of messages that the destination holds for good, counted from the first one on. It never decreases.
    fn acknowledged(&self) -> u64;

    /// As [`Destination::acknowledged`], plus the messages that can no longer be taken back because a part of the last one is written. The
    /// publisher does not hand these over again: the destination completes them with the next flush.
    fn committed(&self) -> u64 {
        self.acknowledged()
    }

    /// Disconnects. Called once, after the last flush.
    ///
    /// # Errors
    /// If the connection did not end properly. Messages that are not acknowledged are lost in any case.
    fn close(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}
