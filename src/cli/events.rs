//! `--events`: writes a line of JSON when a source, a recording or a server of results is lost, and when it is back.
//!
//! Events are a separate output. Lines of results contain only frames, as programs that read the format of DL Streamer expect. In the
//! results, the time without a source is visible as a gap in `time` and `timestamp`.

use std::path::Path;
use std::time::{Instant, SystemTime};

use super::terminal::Terminal;
use crate::frame::json::{self, SourceEvent};
use crate::pipeline::{Error, Event, IfExists, Result};
use crate::publish::{self, Deadline, LineFile, Message, Options, Publisher};

/// Writes the events of sources, recordings and servers to a file. A separate thread writes them, so that a slow reader delays no stream.
pub(super) struct Events(Publisher);

impl Events {
    /// Starts the thread that writes events. The file is opened when the first event occurs.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub(super) fn start(path: &Path, if_exists: IfExists, terminal: &Terminal) -> Result<Self> {
        // If nothing reads the events, drop the oldest events, so that the streams do not wait.
        let options = Options { when_full: publish::WhenFull::DropOldest, ..Options::default() };
        let (terminal, shown) = (terminal.clone(), path.display().to_string());
        let warn = move |event: publish::Event<'_>| {
            if let publish::Event::Lost { failure, .. } = event {
                terminal.warn(format_args!("cannot write events to `{shown}`: {}", failure.error()));
            }
        };
        let publisher = Publisher::start(LineFile::new(path, if_exists), options, Deadline::default(), warn);
        publisher.map(Self).map_err(|error| Error::failed(format!("cannot start the thread that writes events: {error}")))
    }

    /// Writes a line if the event is about a source, a recording or a server of results.
    pub(super) fn write(&self, event: &Event, stream: &str, source: &str) {
        let (reason, path);
        let event = match event {
            Event::SourceLost { reason: error } => {
                reason = error.to_string();
                SourceEvent::Lost { reason: &reason }
            }
            Event::SourceBack { gap, attempts } => SourceEvent::Back { gap: *gap, attempts: *attempts },
            Event::RecordingLost { reason } => SourceEvent::RecordingLost { reason },
            Event::RecordingContinued { reason, path: file } => {
                path = file.to_string_lossy();
                SourceEvent::RecordingContinued { reason, path: &path }
            }
            Event::DestinationLost { destination, reason } => SourceEvent::DestinationLost { destination, reason },
            Event::DestinationBack { destination } => SourceEvent::DestinationBack { destination },
            _ => return,
        };
        let line = json::event_line(event, Some(stream), Some(source), SystemTime::now());
        // Ignore the return value, because the thread of the publisher reports failures.
        let _published = self.0.publish(Message { payload: line.into_bytes(), stream: Some(stream.into()), ..Message::default() });
    }

    /// Writes the events that are still waiting, until `deadline` at the latest.
    pub(super) fn finish(self, deadline: Instant) {
        self.0.close(deadline);
    }
}
