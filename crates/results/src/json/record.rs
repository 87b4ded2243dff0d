//! Formats records as lines of JSON. A record is a result that does not belong to one frame, such as the image of an object.

use std::time::SystemTime;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{SCHEMA_VERSION, rfc3339};

/// Values that a line contains in addition to the record's own keys.
#[derive(Debug, Clone, Copy)]
pub struct RecordContext<'a> {
    /// Name of the stream.
    pub stream_id: Option<&'a str>,
    /// Source of the stream, without credentials.
    pub source: Option<&'a str>,
    /// Constant fields of the stream.
    pub tags: Option<&'a Map<String, Value>>,
    /// The time at which the record was created.
    pub time: SystemTime,
    /// ID of the line, by which a receiver recognizes a message that is delivered more than once.
    pub message_id: Option<&'a str>,
}

#[derive(Serialize)]
struct Line<'a> {
    event: &'a str,
    schema_version: u32,
    stream: Option<&'a str>,
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_id: Option<&'a str>,
    source: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<&'a Map<String, Value>>,
    #[serde(flatten)]
    body: &'a Map<String, Value>,
}

/// Returns a record as one line of JSON without a line feed. `event` is the kind of the record. Keys of `body` that every line
/// has anyway are left out.
///
/// # Errors
/// Returns the errors of `serde_json`. No error occurs in practice, because every value has a JSON representation.
pub fn record_line(event: &str, mut body: Map<String, Value>, context: &RecordContext) -> serde_json::Result<Vec<u8>> {
    // Remove the keys that every line has, because a line must not have a key twice.
    body.retain(|key, _| !["event", "schema_version", "stream", "time", "message_id", "source", "tags"].contains(&&**key));
    let RecordContext { stream_id: stream, source, tags, time, message_id } = *context;
    serde_json::to_vec(&Line { event, schema_version: SCHEMA_VERSION, stream, time: rfc3339(time), message_id, source, tags, body: &body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_lines_with_stream_time_and_own_keys() {
        let body = serde_json::json!({"frame": 7, "path": "/x.jpg", "stream": "other"});
        let Value::Object(body) = body else { unreachable!() };
        let context = RecordContext {
            stream_id: Some("door"),
            source: None,
            tags: None,
            time: SystemTime::UNIX_EPOCH,
            message_id: Some("door/1/7.1"),
        };
        let line = String::from_utf8(record_line("crop", body, &context).unwrap()).unwrap();
        assert_eq!(
            line,
            r#"{"event":"crop","schema_version":2,"stream":"door","time":"1970-01-01T00:00:00.000Z","message_id":"door/1/7.1","source":null,"frame":7,"path":"/x.jpg"}"#
        );
    }
}
