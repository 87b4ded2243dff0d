//! Records: results that do not belong to one frame, such as the image of an object or a recorded clip.
//!
//! An element sends a record downstream as a serialized event. Each `roipublish` downstream writes it as a line of its own, with the name
//! of the stream and a message ID. So records reach every destination, in the order of the stream. Applications can also send records.
//!
//! The event is `custom-downstream` with the structure `roiflow-record`. Its field `event` is the kind of the record, and its field `body`
//! is a JSON object with the keys of the line. If the stream was restarted, `roipublish` adds the number of earlier frames to the key
//! `frame`. It adds the time of the restart to the key `timestamp` and to keys that end in `_timestamp`.

use gstreamer as gst;
use serde::Serialize;
use serde_json::{Map, Value};

const NAME: &str = "roiflow-record";

/// A record that was read from an event.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record {
    /// The kind of the record: what happened, such as `crop` or `clip`.
    pub(super) kind: String,
    pub(super) body: Map<String, Value>,
}

/// Creates the event that sends a record.
pub(super) fn event(kind: &str, body: &impl Serialize) -> gst::Event {
    let body = serde_json::to_string(body).expect("every value has a form in JSON");
    gst::event::CustomDownstream::new(gst::Structure::builder(NAME).field("event", kind).field("body", body).build())
}

/// Reads the record in an event. Returns `None` if the event is not a record.
///
/// # Errors
/// Returns a description if the event is a malformed record.
pub(super) fn read(event: &gst::Event) -> Option<Result<Record, String>> {
    let structure = event.structure().filter(|structure| event.type_() == gst::EventType::CustomDownstream && structure.name() == NAME)?;
    let kind = structure.get::<String>("event").map_err(|error| format!("expected a record with the field `event`: {error}"));
    let body = structure.get::<String>("body").map_err(|error| format!("expected a record with the field `body`: {error}"));
    let parse = |body: String| {
        serde_json::from_str(&body).map_err(|error| format!("expected a JSON object in the field `body` of a record: {error}"))
    };
    Some(kind.and_then(|kind| Ok(Record { kind, body: parse(body?)? })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_sent() {
        gst::init().unwrap();
        let sent = event("crop", &serde_json::json!({"frame": 3, "path": "a \"b\""}));
        let record = read(&sent).unwrap().unwrap();
        assert_eq!((&*record.kind, record.body["path"].as_str(), record.body["frame"].as_u64()), ("crop", Some("a \"b\""), Some(3)));
        assert_eq!(read(&gst::event::Eos::new()), None);
        let other = gst::event::CustomDownstream::new(gst::Structure::new_empty("other"));
        assert_eq!(read(&other), None);
        let bad = gst::Structure::builder(NAME).field("event", "crop").field("body", "[1]").build();
        assert!(read(&gst::event::CustomDownstream::new(bad)).unwrap().unwrap_err().contains("JSON object"));
    }
}
