//! Events of tracked objects at lines and in zones of the scene.

use std::sync::Arc;
use std::time::Duration;

use super::ObjectId;

/// A tracked object crossed a line, or entered, left or loitered in a zone.
#[derive(Debug, Clone, PartialEq)]
pub struct SceneEvent {
    /// What happened.
    pub kind: SceneEventKind,
    /// Name of the line or zone.
    pub place: Arc<str>,
    /// Track ID of the object.
    pub track: ObjectId,
    /// Label of the object's class, if it has one.
    pub label: Option<Arc<str>>,
}

/// What happened at a line or in a zone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SceneEventKind {
    /// The object crossed the line.
    Crossed {
        direction: Direction,
        /// Crossings of the line in this direction so far, including this one.
        count: u64,
    },
    /// The object entered the zone.
    Entered {
        /// Objects in the zone, including this one.
        occupancy: u64,
    },
    /// The object left the zone.
    Exited {
        /// Objects in the zone without this one.
        occupancy: u64,
        /// Time in the zone.
        dwell: Duration,
        /// Whether the object vanished inside the zone. In this case, the dwell time ends when the object was last seen.
        is_lost: bool,
    },
    /// The object has been in the zone for the zone's loitering time.
    Loitered {
        /// Time in the zone.
        dwell: Duration,
    },
}

impl SceneEventKind {
    /// The name of the event in JSON and in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Crossed { .. } => "line-crossed",
            Self::Entered { .. } => "zone-entered",
            Self::Exited { .. } => "zone-exited",
            Self::Loitered { .. } => "zone-loitered",
        }
    }
}

/// Direction of a crossing, seen from the begin of the line towards its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the right side to the left side.
    In,
    /// From the left side to the right side.
    Out,
}

impl Direction {
    /// The name of the direction in JSON and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}
