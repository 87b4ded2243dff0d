//! Stores the sticky events that were in the in-flight queue when the queue was closed. Upstream sends each sticky event only once. So
//! these events are kept here until they can be stored on the source pad, which then sends them.

use gstreamer as gst;

/// Stored events in arrival order. See the module.
#[derive(Default)]
pub(super) struct StoredEvents(Vec<gst::Event>);

impl StoredEvents {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an event, or replaces the previous event of its type, as a pad does.
    pub(super) fn store(&mut self, event: gst::Event) {
        let name = event.structure().map(|structure| structure.name());
        let is_outdated =
            |stored: &&mut gst::Event| stored.type_() == event.type_() && stored.structure().map(|structure| structure.name()) == name;
        match self.0.iter_mut().find(is_outdated) {
            Some(outdated) => *outdated = event,
            None => self.0.push(event),
        }
    }

    /// Adds an event that is older than the stored events.
    pub(super) fn store_first(&mut self, event: gst::Event) {
        self.0.insert(0, event);
    }

    pub(super) fn discard_segment(&mut self) {
        self.0.retain(|event| event.type_() != gst::EventType::Segment);
    }

    pub(super) fn take(&mut self) -> Vec<gst::Event> {
        std::mem::take(&mut self.0)
    }
}

/// Whether the event must be stored when the queue's frames are discarded.
pub(super) fn is_storable(event: &gst::Event) -> bool {
    event.is_sticky() && event.type_() != gst::EventType::Eos
}

/// Whether the event begins or ends a stream or a segment.
pub(super) fn begins_or_ends(event: &gst::Event) -> bool {
    use gst::EventType::{Eos, Segment, StreamStart};
    matches!(event.type_(), Eos | Segment | StreamStart)
}
