//! Sticky events that were in the in-flight queue when it was closed: upstream sends each once, so they are kept for the source pad.

use gstreamer as gst;

/// See the module. In the order in which they came.
#[derive(Default)]
pub(super) struct KeptEvents(Vec<gst::Event>);

impl KeptEvents {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an event, or replaces the one that it outdates, as a pad does.
    pub(super) fn keep(&mut self, event: gst::Event) {
        let name = event.structure().map(|structure| structure.name());
        let is_outdated =
            |kept: &&mut gst::Event| kept.type_() == event.type_() && kept.structure().map(|structure| structure.name()) == name;
        match self.0.iter_mut().find(is_outdated) {
            Some(outdated) => *outdated = event,
            None => self.0.push(event),
        }
    }

    /// Adds an event that is older than those that are kept.
    pub(super) fn keep_first(&mut self, event: gst::Event) {
        self.0.insert(0, event);
    }

    pub(super) fn forget_segment(&mut self) {
        self.0.retain(|event| event.type_() != gst::EventType::Segment);
    }

    pub(super) fn take(&mut self) -> Vec<gst::Event> {
        std::mem::take(&mut self.0)
    }
}

/// Whether the event stays true when the frames around it are lost.
pub(super) fn is_kept(event: &gst::Event) -> bool {
    event.is_sticky() && event.type_() != gst::EventType::Eos
}

/// Whether a stream or a segment of it begins or ends with the event.
pub(super) fn begins_or_ends(event: &gst::Event) -> bool {
    use gst::EventType::{Eos, Segment, StreamStart};
    matches!(event.type_(), Eos | Segment | StreamStart)
}
