//! Gaps in the results of streams that move from one machine to another.
//!
//! If the earlier machine has stopped a stream before this machine starts it, results of the time between are missing. The program
//! announces such a gap before it starts the stream. Each `roipublish` of the stream reports it as a record after its first result, so
//! each destination learns of it. If the earlier machine ends while this one starts the stream, the program announces the gap later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, PoisonError};

use gstreamer::glib;
use serde_json::{Map, Value};

use crate::elements::records::Record;
use crate::frame::{Gap, LastResult};

/// The gap of a stream, and the destinations to which it was reported.
struct Announced {
    gap: Gap,
    reported: BTreeSet<String>,
}

static ANNOUNCED: LazyLock<Mutex<BTreeMap<String, Announced>>> = LazyLock::new(Mutex::default);

/// Announces a gap. Call this before the stream starts, or as soon as the gap is known. It replaces an earlier gap of the stream.
pub fn announce_gap(gap: Gap) {
    let mut all = ANNOUNCED.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(gap.stream.clone(), Announced { gap, reported: BTreeSet::new() });
}

/// Removes the gap of a stream that runs on this machine no longer.
pub fn forget_gap(stream: &str) {
    ANNOUNCED.lock().unwrap_or_else(PoisonError::into_inner).remove(stream);
}

/// Returns the record that reports the gap before this assignment of a stream. Returns `None` if there is no gap, or if it was already
/// returned for this destination: a stream may restart within an assignment.
pub(super) fn take(stream: Option<&str>, assignment: u64, destination: &str) -> Option<Record> {
    let stream = stream.filter(|_| assignment > 0)?;
    let mut all = ANNOUNCED.lock().unwrap_or_else(PoisonError::into_inner);
    let announced = all.get_mut(stream).filter(|announced| announced.gap.assignment == assignment)?;
    if !announced.reported.insert(destination.to_owned()) {
        return None;
    }
    Some(record(&announced.gap, &glib::DateTime::now_utc().ok()?))
}

/// Returns the record that reports a gap which ends now. The last result before it may be of a machine whose clock is ahead: then its time
/// is left out, because no gap ends before it begins.
fn record(Gap { reason, last, .. }: &Gap, now: &glib::DateTime) -> Record {
    let mut body = Map::new();
    body.insert("reason".to_owned(), reason.as_str().into());
    if let Some(LastResult { epoch, frame, time }) = last {
        body.insert("epoch".to_owned(), (*epoch).into());
        body.insert("from".to_owned(), (frame + 1).into());
        let is_later = |time: &String| glib::DateTime::from_iso8601(time, None).is_ok_and(|time| time > *now);
        if !time.as_ref().is_some_and(is_later) {
            body.insert("last_time".to_owned(), time.clone().map_or(Value::Null, Into::into));
        }
    }
    Record { kind: "gap".to_owned(), body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_never_ends_before_it_begins() {
        let last_time = |time: &str| {
            let last = LastResult { epoch: 3_000_000, frame: 41, time: Some(time.to_owned()) };
            let gap = Gap { stream: "gate".to_owned(), assignment: 7, reason: "the node ended".to_owned(), last: Some(last) };
            let now = glib::DateTime::from_iso8601("2026-11-26T12:00:00.500Z", None).unwrap();
            record(&gap, &now).body.get("last_time").cloned()
        };
        let before = "2026-11-26T12:00:00.499Z";
        assert_eq!(last_time(before), Some(before.into()));
        assert_eq!(last_time("2026-11-26T15:00:00.000Z"), None, "the clock of the earlier machine is three hours ahead");
    }

    #[test]
    fn each_destination_reports_a_gap_once() {
        let last = LastResult { epoch: 3_000_000, frame: 41, time: Some("2026-11-26T12:00:00.000Z".to_owned()) };
        announce_gap(Gap { stream: "gate".to_owned(), assignment: 7, reason: "the node ended".to_owned(), last: Some(last) });
        assert_eq!(take(Some("gate"), 6, "a"), None, "a pipeline of an earlier assignment");
        assert_eq!(take(Some("door"), 7, "a"), None);
        assert_eq!(take(Some("gate"), 0, "a"), None);
        let record = take(Some("gate"), 7, "a").unwrap();
        let expected = r#"{"epoch":3000000,"from":42,"last_time":"2026-11-26T12:00:00.000Z","reason":"the node ended"}"#;
        assert_eq!((&*record.kind, &*serde_json::to_string(&record.body).unwrap()), ("gap", expected));
        assert_eq!(take(Some("gate"), 7, "a"), None, "a pipeline that starts again");
        assert_eq!(take(Some("gate"), 7, "b"), Some(record));
        forget_gap("gate");
        assert_eq!(take(Some("gate"), 7, "c"), None, "the stream was removed");
    }
}
