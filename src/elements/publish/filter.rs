//! Constant fields of the lines of a stream, and the filter that decides which lines and objects are published.
//!
//! This module uses no pads and no buffers.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, LazyLock};

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;
use serde_json::{Map, Value};

use crate::elements::properties::Properties;
use crate::elements::scene::Zones;
use crate::frame::{Detection, FrameResults, InferenceStatus, Outcome, Rect, Size, polygon};
use crate::stages::labels::LabelList;

/// Settings of the filter, and the constant fields.
#[derive(Debug, Clone, Default)]
pub(super) struct FilterSettings {
    tags: String,
    labels: String,
    zones: String,
    events_only: bool,
    /// Maximum number of lines per second; 0 = no limit.
    max_rate: f64,
    only_changes: bool,
}

/// The properties.
pub(super) static PROPERTIES: LazyLock<Properties<FilterSettings>> = LazyLock::new(|| {
    let text = |name: &'static str, nick: &'static str, blurb: &'static str| {
        glib::ParamSpecString::builder(name).nick(nick).blurb(blurb).mutable_ready().build()
    };
    let flag = |name: &'static str, nick: &'static str, blurb: &'static str| {
        glib::ParamSpecBoolean::builder(name).nick(nick).blurb(blurb).mutable_ready().build()
    };
    Properties::<FilterSettings>::new()
        .with(
            text("tags", "Tags", "Constant fields of each line of the stream, as a JSON object such as {\"site\":\"gate\",\"lane\":3}: the field `tags`"),
            |settings| Some(settings.tags.clone()).filter(|text| !text.is_empty()),
            |settings, text: Option<String>| settings.tags = text.unwrap_or_default(),
        )
        .with(
            text("labels", "Labels", "Publish only objects and events with one of these labels, separated by commas; default: all"),
            |settings| Some(settings.labels.clone()).filter(|text| !text.is_empty()),
            |settings, text: Option<String>| settings.labels = text.unwrap_or_default(),
        )
        .with(
            text("zones", "Zones", "Publish only objects in these zones of roianalytics, and events at these lines and zones, separated by commas; default: all"),
            |settings| Some(settings.zones.clone()).filter(|text| !text.is_empty()),
            |settings, text: Option<String>| settings.zones = text.unwrap_or_default(),
        )
        .field(flag("events-only", "Events only", "Publish only frames with events of roianalytics"), |settings| &mut settings.events_only)
        .field(
            glib::ParamSpecDouble::builder("max-rate")
                .nick("Maximum rate")
                .blurb("Publish at most this number of frames per second of stream time, and in addition all frames with events; 0 = no limit")
                .minimum(0.0)
                .maximum(1e6)
                .mutable_ready()
                .build(),
            |settings| &mut settings.max_rate,
        )
        .field(
            flag("only-changes", "Only changes", "Publish a frame only if its objects, their attributes, or whether inference failed differ from the last published frame; movement is no change"),
            |settings| &mut settings.only_changes,
        )
});

/// The filter of a stream. See the module.
#[derive(Debug, Default)]
pub(super) struct Filter {
    pub(super) tags: Option<Arc<Map<String, Value>>>,
    labels: LabelList,
    zone_names: LabelList,
    events_only: bool,
    /// Shortest time between two lines in nanoseconds.
    interval_ns: u64,
    only_changes: bool,
    /// The zones of each `roianalytics` upstream that has sent them.
    pub(super) zones: BTreeMap<String, Zones>,
    has_warned: bool,
    last: Mark,
}

/// What the filter remembers of a published frame.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Mark {
    /// The time of the frame, unless it was published because of its events.
    time_ns: Option<u64>,
    /// Hash of the state of the frame.
    state: Option<u64>,
}

impl Filter {
    /// Checks the settings.
    ///
    /// # Errors
    /// Returns an error if `tags` is not a JSON object.
    pub(super) fn new(settings: &FilterSettings) -> Result<Self, String> {
        let FilterSettings { tags, labels, zones, events_only, max_rate, only_changes } = settings;
        let wrong = |found: &str| format!("tags: expected a JSON object such as {{\"site\":\"gate\",\"lane\":3}}, got {found}");
        let tags = match tags.trim() {
            "" => None,
            text => match serde_json::from_str(text) {
                Ok(Value::Object(tags)) => Some(tags).filter(|tags| !tags.is_empty()),
                Ok(_) => return Err(wrong(&format!("`{text}`"))),
                Err(error) => return Err(wrong(&format!("`{text}` ({error})"))),
            },
        };
        Ok(Self {
            tags: tags.map(Arc::new),
            labels: LabelList::parse(labels),
            zone_names: LabelList::parse(zones),
            events_only: *events_only,
            interval_ns: if *max_rate > 0.0 { (1e9 / max_rate) as u64 } else { 0 },
            only_changes: *only_changes,
            ..Self::default()
        })
    }

    /// Returns the results to publish; `None` if the frame is not published. `time_ns` is the time of the frame in nanoseconds. If the frame
    /// gets a message, call [`Filter::published`] with the mark.
    pub(super) fn apply(&self, mut results: Arc<FrameResults>, time_ns: Option<u64>) -> Option<(Arc<FrameResults>, Mark)> {
        let selects = !self.labels.is_empty() || !self.zone_names.is_empty();
        if selects {
            let all = Arc::make_mut(&mut results);
            all.detections.retain(|object| self.has_label(object.label.as_deref()) && self.is_in_zone(&object.rect, all.size));
            all.lost_tracks.retain(|track| self.has_label(track.label.as_deref()) && self.is_in_zone(&track.rect, all.size));
            let is_there = |place: &str| self.zone_names.is_empty() || self.zone_names.has(place);
            all.events.retain(|event| self.has_label(event.label.as_deref()) && is_there(&event.place));
        }
        let has_events = !results.events.is_empty();
        if self.events_only && !has_events {
            return None;
        }
        let state = self.only_changes.then(|| state_of(&results));
        if !has_events {
            // The time goes back if a file is played again.
            let is_too_early = |last: u64| time_ns.is_some_and(|now| now >= last && now - last < self.interval_ns);
            // A skipped frame without carried results says nothing about its objects.
            let is_unknown = matches!(results.status, InferenceStatus::Skipped(_)) && results.detections.is_empty();
            let is_unchanged = state.is_some() && (state == self.last.state || is_unknown);
            if is_unchanged || self.last.time_ns.is_some_and(is_too_early) {
                return None;
            }
        }
        Some((results, Mark { time_ns: if has_events { self.last.time_ns } else { time_ns }, state }))
    }

    /// Notes a frame that got a message.
    pub(super) fn published(&mut self, mark: Mark) {
        self.last = mark;
    }

    /// Returns the names in `zones` that no `roianalytics` upstream defines, once, together with the names that are defined.
    pub(super) fn take_unknown_zones(&mut self) -> Option<(String, String)> {
        if self.zone_names.is_empty() || std::mem::replace(&mut self.has_warned, true) {
            return None;
        }
        let known: Vec<&str> = self.zones.values().flat_map(Zones::places).collect();
        let unknown = self.zone_names.unknown(known.iter().copied());
        (!unknown.is_empty()).then(|| (unknown.join(", "), known.join(", ")))
    }

    fn has_label(&self, label: Option<&str>) -> bool {
        self.labels.is_empty() || self.labels.has(label.unwrap_or("object"))
    }

    fn is_in_zone(&self, rect: &Rect, size: Size) -> bool {
        let has = |zones: &Zones| {
            let anchor = zones.anchor_of(rect, size);
            zones.zones().any(|(name, corners)| self.zone_names.has(name) && polygon::contains(corners, anchor))
        };
        self.zone_names.is_empty() || self.zones.values().any(has)
    }
}

/// Hash of the values whose change is published: whether inference failed, and class, track and attributes of the objects, but not their places, confidences
/// and numbers.
fn state_of(results: &FrameResults) -> u64 {
    let attributes = |of: &[crate::frame::Classification]| -> Vec<String> {
        let value = |outcome: &Outcome| match outcome {
            Outcome::Label { label_id, label, .. } => label.as_deref().map_or_else(|| label_id.to_string(), str::to_owned),
            Outcome::Labels(labels) => labels.iter().map(|label| format!("{},", label.label_id)).collect(),
            Outcome::Text { text, .. } => text.to_string(),
            Outcome::Value(_) | Outcome::Geometry(_) | Outcome::Tensor { .. } => String::new(),
        };
        of.iter().map(|attribute| format!("{}={}", attribute.name, value(&attribute.outcome))).collect()
    };
    let object = |object: &Detection| {
        let track = object.track.map(|track| track.0);
        format!("{:?} {} {track:?} {:?}", object.label, object.label_id, attributes(&object.classifications))
    };
    let inside = results.detections.iter().filter(|object| object.rect.to_pixels(results.size).is_some());
    let mut objects: Vec<String> = inside.map(object).collect();
    // The order of objects depends on their confidence.
    objects.sort_unstable();
    let lost: BTreeSet<i32> = results.lost_tracks.iter().map(|track| track.track.0).collect();
    let mut hasher = DefaultHasher::new();
    let error = match &results.status {
        InferenceStatus::Failed(error) => Some(error),
        InferenceStatus::Inferred | InferenceStatus::Skipped(_) => None,
    };
    (error, objects, attributes(&results.classifications), lost).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Classification, ObjectId, SceneEvent, SceneEventKind};

    fn object(label: &str, track: i32, x: f32) -> Detection {
        Detection {
            id: ObjectId::next(),
            track: Some(ObjectId(track)),
            track_state: None,
            parent: None,
            rect: Rect { x, y: 10.0, width: 10.0, height: 10.0 },
            keypoints: vec![],
            confidence: 0.5,
            label_id: 0,
            label: Some(label.into()),
            classifications: vec![],
        }
    }

    fn frame(detections: Vec<Detection>) -> Arc<FrameResults> {
        Arc::new(FrameResults { size: Size::new(100, 100), detections, ..FrameResults::default() })
    }

    fn event(place: &str, label: &str) -> SceneEvent {
        let kind = SceneEventKind::Entered { occupancy: 1 };
        SceneEvent { kind, place: place.into(), track: ObjectId(1), label: Some(label.into()) }
    }

    fn filter(settings: FilterSettings) -> Filter {
        Filter::new(&settings).unwrap()
    }

    impl Filter {
        /// Publishes the frame if the filter lets it pass. Returns whether it does.
        fn publish(&mut self, results: Arc<FrameResults>, time_ns: Option<u64>) -> bool {
            let passed = self.apply(results, time_ns);
            passed.map(|(_, mark)| self.published(mark)).is_some()
        }
    }

    #[test]
    fn labels_select_objects_and_events() {
        let filter = filter(FilterSettings { labels: "car, dog".into(), ..FilterSettings::default() });
        let mut results = frame(vec![object("car", 1, 0.0), object("person", 2, 0.0)]);
        Arc::make_mut(&mut results).events = vec![event("door", "person"), event("door", "dog")];
        let (seen, _) = filter.apply(results, None).unwrap();
        assert_eq!((seen.detections.len(), seen.detections[0].label.as_deref(), seen.events.len()), (1, Some("car"), 1));
    }

    #[test]
    fn events_and_changes_and_rate_select_frames() {
        let second = 1_000_000_000;
        let mut rate = filter(FilterSettings { max_rate: 2.0, ..FilterSettings::default() });
        let mut with_event = frame(vec![]);
        Arc::make_mut(&mut with_event).events = vec![event("door", "dog")];
        let seen: Vec<bool> = (0..10).map(|n| rate.publish(frame(vec![]), Some(n * second / 10))).collect();
        let numbers: Vec<usize> = (0..10).filter(|n| seen[*n]).collect();
        assert_eq!(numbers, [0, 5]);
        assert!(rate.publish(with_event.clone(), Some(second - 1)), "events are always published");
        assert!(rate.publish(frame(vec![]), Some(second)), "events delay no other frame");
        assert!(rate.apply(frame(vec![]), Some(2 * second)).is_some(), "the frame got no message");
        assert!(rate.publish(frame(vec![]), Some(2 * second + 1)));
        assert!(rate.publish(frame(vec![]), Some(0)), "the file begins again");

        let mut events = filter(FilterSettings { events_only: true, ..FilterSettings::default() });
        assert!(!events.publish(frame(vec![object("car", 1, 0.0)]), None) && events.publish(with_event.clone(), None));

        let mut changes = filter(FilterSettings { only_changes: true, ..FilterSettings::default() });
        let mut red = object("car", 1, 0.0);
        let outcome = Outcome::Label { label_id: 1, label: Some("red".into()), confidence: 0.5 };
        red.classifications.push(Classification { name: "color".into(), model: "m".into(), outcome });
        let seen = [
            vec![object("car", 1, 0.0), object("dog", 2, 9.0)],
            vec![object("dog", 2, 50.0), object("car", 1, 20.0)],
            vec![object("car", 1, 20.0)],
            vec![object("car", 3, 20.0)],
            vec![object("car", 3, 20.0), object("car", 4, 900.0)],
            vec![red],
            vec![],
            vec![],
        ]
        .map(|objects| changes.publish(frame(objects), None));
        assert_eq!(seen, [true, false, true, true, false, true, true, false]);
        assert!(changes.publish(with_event, None));
        let with_status = |status: InferenceStatus, objects: Vec<Detection>| {
            let mut results = frame(objects);
            Arc::make_mut(&mut results).status = status;
            results
        };
        let (skipped, failed) = (InferenceStatus::Skipped("interval".into()), InferenceStatus::Failed("model".into()));
        let car = || vec![object("car", 5, 0.0)];
        let seen = [
            with_status(InferenceStatus::Inferred, car()),
            with_status(skipped.clone(), car()),
            with_status(skipped, vec![]),
            with_status(InferenceStatus::Inferred, car()),
            with_status(failed.clone(), vec![]),
            with_status(failed, vec![]),
        ]
        .map(|results| changes.publish(results, None));
        assert_eq!(seen, [true, false, false, false, true, false]);
    }

    #[test]
    fn tags_are_a_json_object() {
        let tags = |text: &str| Filter::new(&FilterSettings { tags: text.into(), ..FilterSettings::default() }).map(|filter| filter.tags);
        assert_eq!(tags(" {\"lane\": 3}").unwrap().unwrap()["lane"], 3);
        assert_eq!((tags("").unwrap(), tags("{}").unwrap()), (None, None));
        for wrong in ["lane=3", "[1]", "{\"lane\":", "3"] {
            let error = tags(wrong).unwrap_err();
            assert!(error.starts_with("tags: expected a JSON object") && error.contains(wrong), "{error}");
        }
    }
}
