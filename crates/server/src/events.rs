//! The list of events: what happened to streams and their sources.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::event_file::{self, EventFile};

/// Number of events that are kept.
pub(crate) const MAX_EVENTS: usize = 500;
/// Longest message of an event in bytes, so that the list is bounded.
const MAX_MESSAGE: usize = 4096;
/// Number of events that may wait for a slow client.
const MAX_WAITING: usize = 128;

/// Something that happened to a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Number of the event on this server, from 1. It goes on over restarts.
    pub id: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// Name of the stream.
    pub stream: String,
    /// Kind of the event.
    pub kind: EventKind,
    /// Details for people, without credentials.
    pub message: String,
}

impl Event {
    /// Returns the message for the log. It names the kind, because many events have no message of their own.
    fn log_text(&self) -> String {
        let kind = self.kind.name();
        if self.message.is_empty() { kind.to_owned() } else { format!("{kind}: {}", self.message) }
    }
}

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A client added the stream.
    Added,
    /// A client changed the stream.
    Changed,
    /// A client removed the stream.
    Removed,
    /// All elements of the stream have started.
    Started,
    /// The source was lost.
    SourceLost,
    /// The source is back.
    SourceBack,
    /// The stream ended.
    Ended,
    /// The stream failed.
    Failed,
    /// An element posted a warning.
    Warning,
    /// This node has joined or left the other nodes, or has decided which node runs a stream; `stream` is empty.
    Node,
}

impl EventKind {
    /// Returns the name of the kind in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Removed => "removed",
            Self::Started => "started",
            Self::SourceLost => "source-lost",
            Self::SourceBack => "source-back",
            Self::Ended => "ended",
            Self::Failed => "failed",
            Self::Warning => "warning",
            Self::Node => "node",
        }
    }

    /// Whether the log shows the event at its default level: what happened to a camera or a stream, and no client has asked for it.
    const fn is_notable(self) -> bool {
        matches!(self, Self::SourceLost | Self::SourceBack | Self::Failed | Self::Warning)
    }
}

/// The list. Clones share it.
#[derive(Debug, Clone)]
pub struct Events(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kept: Mutex<(u64, VecDeque<Arc<Event>>)>,
    sender: broadcast::Sender<Arc<Event>>,
    file: OnceLock<EventFile>,
}

impl Default for Events {
    fn default() -> Self {
        Self(Arc::new(Inner { kept: Mutex::default(), sender: broadcast::channel(MAX_WAITING).0, file: OnceLock::new() }))
    }
}

impl Events {
    /// Takes the events of earlier runs of the server from a folder, and keeps those that follow there. Says what cannot be read or written;
    /// the server runs on.
    pub fn keep_in(&self, folder: &Path) {
        let mut kept = self.lock();
        let mut all: VecDeque<Arc<Event>> = event_file::read(folder).into_iter().map(Arc::new).collect();
        let last = all.back().map_or(0, |event| event.id);
        // Those that were added before.
        all.extend(kept.1.drain(..).map(|event| Arc::new(Event { id: last + event.id, ..Event::clone(&event) })));
        *kept = (last + kept.0, all);
        drop(kept);
        let of_thread = Arc::downgrade(&self.0);
        let all = move || of_thread.upgrade().map(|inner| Self(inner).newest(None, usize::MAX));
        match EventFile::start(folder, all) {
            // It is set once.
            Ok(file) => drop(self.0.file.set(file)),
            Err(error) => tracing::warn!("cannot start the thread that writes events: {error}. They are lost when the server ends"),
        }
    }

    /// Waits until the events so far are on disk, at most for this time.
    pub fn flush(&self, limit: Duration) {
        self.0.file.get().into_iter().for_each(|file| file.flush(limit));
    }

    /// Adds an event.
    pub fn add(&self, stream: &str, kind: EventKind, message: impl Into<String>) {
        let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let (stream, mut message) = (stream.to_owned(), message.into());
        if message.len() > MAX_MESSAGE {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE));
            message.push('…');
        }
        let mut kept = self.lock();
        kept.0 += 1;
        let event = Arc::new(Event { id: kept.0, time_ms, stream, kind, message });
        if kept.1.len() == MAX_EVENTS {
            kept.1.pop_front();
        }
        kept.1.push_back(event.clone());
        drop(kept);
        self.0.file.get().into_iter().for_each(|file| file.write(event.clone()));
        if kind.is_notable() {
            tracing::warn!(stream = event.stream, event = kind.name(), "{}", event.log_text());
        } else {
            tracing::info!(stream = event.stream, event = kind.name(), "{}", event.log_text());
        }
        // Fails only without clients.
        let _sent = self.0.sender.send(event);
    }

    /// Returns the newest events of a stream, or of all, oldest first.
    pub fn newest(&self, stream: Option<&str>, limit: usize) -> Vec<Arc<Event>> {
        let kept = self.lock();
        let of_stream = kept.1.iter().rev().filter(|event| stream.is_none_or(|stream| event.stream == stream));
        let mut newest: Vec<_> = of_stream.take(limit).cloned().collect();
        newest.reverse();
        newest
    }

    /// Receives later events.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Event>> {
        self.0.sender.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, (u64, VecDeque<Arc<Event>>)> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kinds_are_those_in_json_and_in_the_log() {
        use EventKind::{Added, Changed, Ended, Failed, Node, Removed, SourceBack, SourceLost, Started, Warning};
        let kinds = [Added, Changed, Removed, Started, SourceLost, SourceBack, Ended, Failed, Warning, Node];
        let schema = serde_json::to_value(schemars::schema_for!(EventKind)).unwrap();
        let all: Vec<&str> = schema["oneOf"].as_array().unwrap().iter().map(|kind| kind["const"].as_str().unwrap()).collect();
        assert_eq!(kinds.map(EventKind::name).as_slice(), all);
        for kind in kinds {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
            let event = Event { id: 1, time_ms: 0, stream: "door".into(), kind, message: String::new() };
            assert_eq!(event.log_text(), kind.name());
            assert_eq!(Event { message: "details".into(), ..event }.log_text(), format!("{}: details", kind.name()));
        }
    }

    #[test]
    fn oldest_events_make_room() {
        let events = Events::default();
        for n in 0..MAX_EVENTS + 3 {
            events.add(if n % 2 == 0 { "a" } else { "b" }, EventKind::Warning, n.to_string());
        }
        let all = events.newest(None, usize::MAX);
        assert_eq!((all.len(), all[0].id, all.last().unwrap().id), (MAX_EVENTS, 4, MAX_EVENTS as u64 + 3));
        let last: Vec<_> = events.newest(Some("a"), 2).iter().map(|event| event.message.clone()).collect();
        assert_eq!(last, [(MAX_EVENTS).to_string(), (MAX_EVENTS + 2).to_string()]);
    }
}
