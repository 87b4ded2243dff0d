//! Events at lines and in zones: `{"event":"line-crossed","place":"door","id":3,"label":"person","direction":"in","count":7}`.

use serde::{Serialize, Serializer};

use crate::{SceneEvent, SceneEventKind};

/// The events of a frame.
pub(super) struct Events<'a>(pub(super) &'a [SceneEvent]);

impl Events<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Serialize)]
struct Event<'a> {
    event: &'static str,
    place: &'a str,
    /// The track ID.
    id: i32,
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    direction: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occupancy: Option<u64>,
    /// Time in the zone, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    dwell: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_lost: Option<bool>,
}

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|SceneEvent { kind, place, track, label }| {
            let event = Event {
                event: kind.name(),
                place,
                id: track.0,
                label: label.as_deref(),
                direction: None,
                count: None,
                occupancy: None,
                dwell: None,
                is_lost: None,
            };
            let seconds = |time: std::time::Duration| Some((time.as_secs_f64() * 1e3).round() / 1e3);
            match *kind {
                SceneEventKind::Crossed { direction, count } => Event { direction: Some(direction.name()), count: Some(count), ..event },
                SceneEventKind::Entered { occupancy } => Event { occupancy: Some(occupancy), ..event },
                SceneEventKind::Exited { occupancy, dwell, is_lost } => {
                    Event { occupancy: Some(occupancy), dwell: seconds(dwell), is_lost: Some(is_lost), ..event }
                }
                SceneEventKind::Loitered { dwell } => Event { dwell: seconds(dwell), ..event },
            }
        }))
    }
}
