//! Publishes messages, such as the results of frames. The producing thread blocks only while the queue is full.
//!
//! ```text
//! caller -> Publisher::publish -> bounded queue -> worker thread -> Destination (file, standard output, broker)
//! caller -> Publisher::publish -> bounded queue -> worker thread -> Spool (disk) -> sender thread -> Destination (broker)
//! ```
//!
//! A [`Publisher`] owns a bounded queue and one worker thread for one [`Destination`]. It applies the policy for a full queue
//! ([`WhenFull`]), retries after failures ([`Retry`]), and counts the outcome of each message ([`Counts`]). A destination only connects,
//! accepts messages, and reports how many it has stored.
//!
//! [`LineFile`] is the destination for files, FIFOs, devices and standard output: each message is one line. A `LineFile` writes to an
//! [`OutputFile`]. Programs can also use an `OutputFile` for other formats. [`Target`] is the destination that a URL names, such as an MQTT
//! broker. To add a destination, add a file that implements [`Destination`].
//!
//! A [`Spool`] stores messages on disk until the destination acknowledges them. Messages survive an outage of the destination and the end
//! of the process. Each message is delivered at least once, in order; [`Message::id`] identifies repeated messages. A message that the
//! destination refuses is passed again before later messages, or given up; it never arrives after later messages.
//!
//! A [`FileStore`] is a folder of whole files, such as images and clips, that messages refer to.
//!
//! This crate does not depend on GStreamer or on the format of messages.

mod address;
mod client;
mod connection;
mod deadline;
mod file_store;
mod files;
mod framing;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "kafka")]
mod kafka;
mod line_file;
mod mqtt;
mod nats;
mod options;
mod output_file;
mod publisher;
mod redaction;
mod redis;
mod retry;
mod rotating_file;
mod spool;
mod target;
#[cfg(feature = "tls")]
mod tls;

use std::io;
use std::sync::Arc;

pub use address::{Address, bytes as parse_bytes, duration as parse_duration};
pub use deadline::Deadline;
pub use file_store::{FileStore, absolute, file_name_part};
pub use files::{Credentials, FileAccess, Login, NamedFile};
pub use framing::Framing;
pub use line_file::LineFile;
pub use nats::subject_token;
pub use options::{Kind, Scheme, schemes_for_clients};
pub use output_file::{IfExists, OutputFile, is_stdout, new_file};
pub use publisher::{Counts, Event, Options, Publisher, Refused, WhenFull};
pub use redaction::{Url, redact, secrets};
pub use retry::Retry;
pub use spool::{Limits, Spool, SpoolStatus, SpoolWriter};
pub use target::Target;

/// A message for a destination.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The content, without line end.
    pub payload: Vec<u8>,
    /// The stream of the message. A broker can use it as partition key or in the name of a topic.
    pub stream: Option<Arc<str>>,
    /// Start of the run that produced the message, in milliseconds since 1970. Increases from run to run.
    pub epoch: u64,
    /// Number of the frame. Increases within an epoch of a stream.
    pub frame: u64,
    /// 0 for the results of the frame. Further messages before the next frame have the numbers 1, 2 and so on.
    pub part: u32,
}

impl Message {
    /// Stream name in topics and IDs, for messages without a stream.
    pub const UNNAMED: &str = "unnamed";

    /// Name of the stream in topics and IDs.
    pub fn stream_name(&self) -> &str {
        self.stream.as_deref().unwrap_or(Self::UNNAMED)
    }

    /// `stream/epoch/frame`, or `stream/epoch/frame.part` for further messages. A message that is delivered again has the same ID.
    pub fn id(&self) -> String {
        let part = if self.part == 0 { String::new() } else { format!(".{}", self.part) };
        format!("{}/{}/{}{part}", self.stream_name(), self.epoch, self.frame)
    }
}

/// Position of a message in its stream. A later message has a higher position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// [`Message::epoch`].
    pub epoch: u64,
    /// [`Message::frame`]; for the record of a gap, its last frame.
    pub frame: u64,
    /// [`Message::part`].
    pub part: u32,
}

impl Position {
    /// Reads the name of the stream and the position from [`Message::id`], or from the ID `stream/epoch/gap-first-last` of a gap in a spool.
    pub fn parse(id: &str) -> Option<(&str, Self)> {
        let mut parts = id.rsplitn(3, '/');
        let (frame, epoch, stream) = (parts.next()?, parts.next()?, parts.next()?);
        let frame = frame.rsplit('-').next()?;
        let (frame, part) = frame.split_once('.').unwrap_or((frame, "0"));
        Some((stream, Self { epoch: epoch.parse().ok()?, frame: frame.parse().ok()?, part: part.parse().ok()? }))
    }
}

/// Why a destination did not accept messages.
#[derive(Debug)]
pub struct Failure {
    error: io::Error,
    kind: FailureKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureKind {
    Retryable,
    Fatal,
    Refused,
}

impl Failure {
    /// A temporary failure: the disk is full, or the server does not answer.
    pub fn retryable(error: io::Error) -> Self {
        Self { error, kind: FailureKind::Retryable }
    }

    /// A permanent failure: the file cannot be created, or the server rejects the password.
    pub fn fatal(error: io::Error) -> Self {
        Self { error, kind: FailureKind::Fatal }
    }

    /// The destination answers, but does not accept the first message after [`Destination::committed`] now: its quota is exceeded, or the
    /// user may not write. The publisher passes this message again, and no later message before it.
    pub fn refused(error: io::Error) -> Self {
        Self { error, kind: FailureKind::Refused }
    }

    /// The reason.
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// Whether the failure is permanent.
    pub fn is_fatal(&self) -> bool {
        self.kind == FailureKind::Fatal
    }

    /// Whether the destination answers, and refuses the first message.
    pub fn is_refused(&self) -> bool {
        self.kind == FailureKind::Refused
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
    /// Connects. Also called after each failure, to connect again.
    ///
    /// `deadline` limits the waiting time of this and all later calls. It can be set while a call waits, so waiting calls must check it at
    /// least every 100 ms.
    ///
    /// # Errors
    /// Returns an error if the destination cannot be opened or reached.
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure>;

    /// Accepts a message. The destination may buffer it. Only [`Destination::flush`] waits for acknowledgments.
    ///
    /// # Errors
    /// Returns an error if this or an earlier message was rejected, or the connection was lost.
    fn publish(&mut self, message: &Message) -> Result<(), Failure>;

    /// Blocks until all messages are acknowledged.
    ///
    /// # Errors
    /// Returns the errors of [`Destination::publish`].
    fn flush(&mut self) -> Result<(), Failure>;

    /// Number of messages, from the first, that the destination has stored permanently or refused for good. Never decreases.
    fn acknowledged(&self) -> u64;

    /// Removes and returns the acknowledged messages that the destination has refused for good: the position of each, from 0, and the
    /// reason. Called after each change of [`Destination::acknowledged`].
    fn take_refused(&mut self) -> Vec<(u64, io::Error)> {
        Vec::new()
    }

    /// Number of acknowledged messages, plus the messages that the destination cannot undo because a part of the last one is written. The
    /// publisher does not pass these messages again. The destination completes them in the next flush.
    fn committed(&self) -> u64 {
        self.acknowledged()
    }

    /// Keeps the connection alive. Called every few seconds while no messages arrive.
    ///
    /// # Errors
    /// Returns an error if the connection was lost.
    fn idle(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Disconnects. Called once, after the last flush.
    ///
    /// # Errors
    /// Returns an error if the connection did not end properly. Unacknowledged messages are lost in any case.
    fn close(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

impl<D: Destination + ?Sized> Destination for Box<D> {
    fn connect(&mut self, deadline: &Deadline) -> Result<(), Failure> {
        (**self).connect(deadline)
    }

    fn publish(&mut self, message: &Message) -> Result<(), Failure> {
        (**self).publish(message)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        (**self).flush()
    }

    fn acknowledged(&self) -> u64 {
        (**self).acknowledged()
    }

    fn take_refused(&mut self) -> Vec<(u64, io::Error)> {
        (**self).take_refused()
    }

    fn committed(&self) -> u64 {
        (**self).committed()
    }

    fn idle(&mut self) -> Result<(), Failure> {
        (**self).idle()
    }

    fn close(&mut self) -> Result<(), Failure> {
        (**self).close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_is_read_from_the_id_of_a_message() {
        let message = Message { stream: Some("gate/left".into()), epoch: 7_000_002, frame: 41, ..Message::default() };
        let position = |frame, part| Position { epoch: 7_000_002, frame, part };
        assert_eq!(Position::parse(&message.id()), Some(("gate/left", position(41, 0))));
        let part = Message { part: 2, ..message };
        assert_eq!(Position::parse(&part.id()), Some(("gate/left", position(41, 2))));
        assert_eq!(Position::parse("gate/7000002/gap-3-12"), Some(("gate", position(12, 0))));
        for id in ["", "x", "gate/7", "gate/x/7", "gate/7/x", "gate/7/1.x"] {
            assert_eq!(Position::parse(id), None, "{id}");
        }
        assert!(position(41, 2) < position(42, 0) && position(42, 0) < Position { epoch: 8_000_000, frame: 0, part: 0 });
    }
}
