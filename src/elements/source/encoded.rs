//! The pad `encoded` of `roisource`: H.264 or H.265 as the source sends it, from the point before the decoder.
//!
//! Like a `tee`, the branch pushes each encoded frame on the thread of the decoder, before the frame is decoded. A parser brings the frames
//! into the form that files need. Each attempt to open the source has its own parser.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_channel::Sender;
use gst::prelude::*;
use gstreamer as gst;

use super::attempt::{Timeline, lock, running_time};
use super::worker::Signal;
use crate::intake::consume;

/// The caps of the pad. In these formats, the caps contain the parameter sets, which a decoder needs at the begin of a file.
pub(in crate::elements) fn caps() -> gst::Caps {
    gst::Caps::builder_full()
        .structure(gst::Structure::builder("video/x-h264").field("stream-format", "avc").field("alignment", "au").build())
        .structure(gst::Structure::builder("video/x-h265").field("stream-format", "hvc1").field("alignment", "au").build())
        .build()
}

/// The branch of one attempt.
pub(super) struct Branch {
    bin: gst::glib::WeakRef<gst::Bin>,
    pad: gst::GhostPad,
    timeline: Arc<Mutex<Timeline>>,
    is_current: Arc<AtomicBool>,
    signals: Sender<Signal>,
    parser: Mutex<Option<Parser>>,
}

/// A parser for one codec.
struct Parser {
    codec: String,
    elements: [gst::Element; 2],
    sink: gst::Pad,
    has_begun: bool,
}

impl Branch {
    /// Connects the pad to the video decoders that this source will have.
    pub(super) fn connect(
        source: &gst::Bin,
        bin: &gst::Bin,
        pad: gst::GhostPad,
        timeline: &Arc<Mutex<Timeline>>,
        is_current: &Arc<AtomicBool>,
        signals: &Sender<Signal>,
    ) -> Arc<Self> {
        let (timeline, is_current, signals) = (timeline.clone(), is_current.clone(), signals.clone());
        let branch = Arc::new(Self { bin: bin.downgrade(), pad, timeline, is_current, signals, parser: Mutex::default() });
        let weak = Arc::downgrade(&branch);
        source.connect_deep_element_added(move |_, _, element| {
            let klass = element.metadata(gst::ELEMENT_METADATA_KLASS).unwrap_or_default();
            let is_decoder = klass.contains("Decoder") && (klass.contains("Video") || klass.contains("Image"));
            let Some(sink) = element.static_pad("sink").filter(|_| is_decoder) else { return };
            let weak = weak.clone();
            sink.add_probe(gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM, move |sink, info| {
                if let Some(branch) = weak.upgrade().filter(|branch| branch.is_current.load(Ordering::Acquire)) {
                    match &info.data {
                        Some(gst::PadProbeData::Buffer(buffer)) => branch.push(sink, buffer),
                        Some(gst::PadProbeData::Event(event)) => branch.push_event(sink, event),
                        _ => {}
                    }
                }
                gst::PadProbeReturn::Ok
            });
        });
        branch
    }

    fn push_event(&self, sink: &gst::Pad, event: &gst::Event) {
        match event.view() {
            // The parser gets the other sticky events together with the caps, because it exists only then.
            gst::EventView::Caps(caps) => self.set_caps(sink, caps.caps(), event),
            gst::EventView::StreamStart(_) => {}
            _ => {
                let parser = lock(&self.parser).as_ref().map(|parser| parser.sink.clone());
                // Ignore the result: before the caps, there is no parser.
                let _sent = parser.is_some_and(|parser| parser.send_event(event.clone()));
            }
        }
    }

    fn set_caps(&self, sink: &gst::Pad, caps: &gst::CapsRef, event: &gst::Event) {
        let codec = caps.structure(0).map(|structure| structure.name().to_string()).unwrap_or_default();
        let is_known = |parser: &Parser| parser.codec == codec;
        if !lock(&self.parser).as_ref().is_some_and(is_known) {
            self.stop().into_iter().for_each(Stopped::wait);
            match self.parser(&codec) {
                Ok(parser) => *lock(&self.parser) = Some(parser),
                Err(error) => {
                    if let Some(bin) = self.bin.upgrade() {
                        gst::element_warning!(bin, gst::StreamError::Format, ("no frames leave the pad `encoded`: {error}"));
                    }
                    return;
                }
            }
        }
        let Some(parser) = lock(&self.parser).as_ref().map(|parser| parser.sink.clone()) else { return };
        if parser.sticky_event::<gst::event::StreamStart>(0).is_none() {
            let start = sink.sticky_event::<gst::event::StreamStart>(0).map(gst::Event::from);
            parser.send_event(start.unwrap_or_else(|| gst::event::StreamStart::new("roisource")));
        }
        parser.send_event(event.clone());
        if let Some(segment) = sink.sticky_event::<gst::event::Segment>(0) {
            parser.send_event(segment);
        }
    }

    /// Starts the elements between the decoder's input and the pad.
    fn parser(&self, codec: &str) -> Result<Parser, String> {
        let factory = match codec {
            "video/x-h264" => "h264parse",
            "video/x-h265" => "h265parse",
            _ => return Err(format!("expected H.264 or H.265, got {codec}")),
        };
        let failed = |error: gst::glib::BoolError| error.to_string();
        let bin = self.bin.upgrade().ok_or("the element is gone")?;
        let parse = gst::ElementFactory::make(factory).build().map_err(failed)?;
        let filter = gst::ElementFactory::make("capsfilter").property("caps", caps()).build().map_err(failed)?;
        let elements = [parse, filter];
        for element in &elements {
            element.set_locked_state(true);
            bin.add(element).map_err(failed)?;
        }
        elements[0].link(&elements[1]).map_err(failed)?;
        let (sink, src) = elements[0].static_pad("sink").zip(elements[1].static_pad("src")).ok_or("a parser has pads")?;
        src.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, |_, info| {
            let is_eos = info.event().is_some_and(|event| event.type_() == gst::EventType::Eos);
            if is_eos { consume(info) } else { gst::PadProbeReturn::Ok }
        });
        for element in elements.iter().rev() {
            element.set_state(gst::State::Playing).map_err(|error| error.to_string())?;
        }
        self.pad.set_target(Some(&src)).map_err(failed)?;
        Ok(Parser { codec: codec.to_owned(), elements, sink, has_begun: false })
    }

    fn push(&self, sink: &gst::Pad, buffer: &gst::Buffer) {
        let Some(bin) = self.bin.upgrade() else { return };
        let (parser, is_first) = {
            let mut parser = lock(&self.parser);
            let Some(parser) = parser.as_mut() else { return };
            let is_first = !std::mem::replace(&mut parser.has_begun, true);
            (parser.sink.clone(), is_first)
        };
        if let Some(time) = running_time(sink, buffer) {
            let offset = lock(&self.timeline).add(&bin, time, buffer.duration());
            if is_first && self.pad.offset() != offset {
                self.pad.set_offset(offset);
            }
        }
        // Ignore the result, as an unlinked branch of a `tee` does: the branch does not end the source.
        let _pushed = parser.chain(buffer.clone());
    }

    /// Disconnects the pad from the current parser.
    pub(super) fn stop(&self) -> Option<Stopped> {
        let Parser { elements, .. } = lock(&self.parser).take()?;
        if let Err(error) = self.pad.set_target(None::<&gst::Pad>) {
            let _sent = self.signals.send(Signal::Failed { reason: error.to_string(), is_refused: false });
        }
        if let Some(bin) = self.bin.upgrade() {
            elements.iter().for_each(|element| drop(bin.remove(element)));
        }
        Some(Stopped(elements))
    }
}

/// The elements of a branch that is disconnected.
pub(super) struct Stopped([gst::Element; 2]);

impl Stopped {
    /// Stops the elements. Blocks while a frame passes them.
    pub(super) fn wait(self) {
        for element in self.0 {
            // Ignore the result, because nothing can be done if a parser does not stop.
            let _stopped = element.set_state(gst::State::Null);
        }
    }
}
