//! Formats events of a source, of recordings and of servers of results as lines of JSON. `assets/events.schema.json` is the schema.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::rfc3339;

/// What happened to the source or to a recording of a stream, or to a server of its results.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SourceEvent<'a> {
    /// The source failed or ended, and the pipeline tries to open it again.
    Lost {
        /// The reason, without credentials.
        reason: &'a str,
    },
    /// The source delivers frames again.
    Back {
        /// Duration without frames.
        gap: Duration,
        /// Number of attempts, including the successful one.
        attempts: u64,
    },
    /// A recording has stopped, and is tried again. The stream goes on.
    RecordingLost {
        /// The reason.
        reason: &'a str,
    },
    /// A recording continues in a new file.
    RecordingContinued {
        /// Why there is a new file.
        reason: &'a str,
        /// The new file.
        path: &'a str,
    },
    /// A server of results does not answer, or accepts nothing.
    DestinationLost {
        /// The address, without credentials.
        destination: &'a str,
        /// The reason, without credentials.
        reason: &'a str,
    },
    /// The server accepts results again.
    DestinationBack {
        /// The address, without credentials.
        destination: &'a str,
    },
}

#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    schema_version: u32,
    stream: Option<&'a str>,
    time: String,
    source: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// Duration without frames, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    gap: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u64>,
    /// The new file of a recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
}

/// Version of the schema of events.
const SCHEMA_VERSION: u32 = 1;

/// Returns an event as one line of JSON without a line feed. `source` is the address without credentials.
pub fn event_line(event: SourceEvent<'_>, stream: Option<&str>, source: Option<&str>, time: SystemTime) -> String {
    let (schema_version, time) = (SCHEMA_VERSION, rfc3339(time));
    let (destination, reason, gap, attempts, path) = (None, None, None, None, None);
    let empty = Line { event: "", schema_version, stream, time, source, destination, reason, gap, attempts, path };
    let line = match event {
        SourceEvent::Lost { reason } => Line { event: "source-lost", reason: Some(reason), ..empty },
        SourceEvent::Back { gap, attempts } => {
            let gap = (gap.as_secs_f64() * 1e3).round() / 1e3;
            Line { event: "source-back", gap: Some(gap), attempts: Some(attempts), ..empty }
        }
        SourceEvent::RecordingLost { reason } => Line { event: "recording-lost", reason: Some(reason), ..empty },
        SourceEvent::RecordingContinued { reason, path } => {
            Line { event: "recording-continued", reason: Some(reason), path: Some(path), ..empty }
        }
        SourceEvent::DestinationLost { destination, reason } => {
            Line { event: "destination-lost", destination: Some(destination), reason: Some(reason), ..empty }
        }
        SourceEvent::DestinationBack { destination } => Line { event: "destination-back", destination: Some(destination), ..empty },
    };
    serde_json::to_string(&line).expect("every value can be written as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines_with_stream_and_time() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        let lost = event_line(SourceEvent::Lost { reason: "it was \"off\"" }, Some("door"), None, time);
        assert_eq!(
            lost,
            r#"{"event":"source-lost","schema_version":1,"stream":"door","time":"1970-01-01T00:00:01.500Z","source":null,"reason":"it was \"off\""}"#
        );
        let back = event_line(SourceEvent::Back { gap: Duration::from_micros(2_000_400), attempts: 3 }, None, Some("rtsp://h"), time);
        assert!(
            back.starts_with(r#"{"event":"source-back""#) && back.ends_with(r#""source":"rtsp://h","gap":2.0,"attempts":3}"#),
            "{back}"
        );
        let lost = event_line(SourceEvent::DestinationLost { destination: "mqtt://h", reason: "off" }, Some("door"), None, time);
        assert!(lost.ends_with(r#""source":null,"destination":"mqtt://h","reason":"off"}"#), "{lost}");
        let back = event_line(SourceEvent::DestinationBack { destination: "mqtt://h" }, Some("door"), None, time);
        assert!(back.starts_with(r#"{"event":"destination-back""#) && back.ends_with(r#""destination":"mqtt://h"}"#), "{back}");
    }
}
