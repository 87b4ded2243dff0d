//! The list of events: what happened to streams and their sources.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::broadcast;

/// Number of events that are kept.
const MAX_EVENTS: usize = 500;
/// Number of events that may wait for a slow client.
const MAX_WAITING: usize = 128;

/// Something that happened to a stream.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Event {
    /// Number of the event since the start of the server, from 1.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
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
}

/// The list. Clones share it.
#[derive(Debug, Clone)]
pub struct Events(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kept: Mutex<(u64, VecDeque<Arc<Event>>)>,
    sender: broadcast::Sender<Arc<Event>>,
}

impl Default for Events {
    fn default() -> Self {
        Self(Arc::new(Inner { kept: Mutex::default(), sender: broadcast::channel(MAX_WAITING).0 }))
    }
}

impl Events {
    /// Adds an event.
    pub fn add(&self, stream: &str, kind: EventKind, message: impl Into<String>) {
        let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let (stream, message) = (stream.to_owned(), message.into());
        let mut kept = self.lock();
        kept.0 += 1;
        let event = Arc::new(Event { id: kept.0, time_ms, stream, kind, message });
        if kept.1.len() == MAX_EVENTS {
            kept.1.pop_front();
        }
        kept.1.push_back(event.clone());
        drop(kept);
        tracing::info!(stream = event.stream, event = kind.name(), "{}", event.log_text());
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
