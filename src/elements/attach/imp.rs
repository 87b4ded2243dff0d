//! Properties and pads of `roiattach`.
//!
//! The element writes only metas. `stored` finds the stored results of a frame.

use std::path::Path;
use std::sync::{LazyLock, Mutex};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;

use super::Match;
use super::rois::{self, Roi};
use super::stored::{Counts, Stored};
use crate::elements::{caps, meta};
use crate::frame::{FrameResults, Size};

/// Largest difference between the times of a frame and its line, if `tolerance` is not set: less than half a frame at 50 fps.
const TOLERANCE: u64 = 9_000_000;

/// Settings of the element.
#[derive(Debug, Clone)]
struct Settings {
    rois: Option<String>,
    location: Option<String>,
    by: Match,
    tolerance: u64,
    stream_id: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { rois: None, location: None, by: Match::default(), tolerance: TOLERANCE, stream_id: None }
    }
}

/// State of the stream.
#[derive(Default)]
struct State {
    rois: Vec<Roi>,
    stored: Option<Stored>,
    /// Counters of earlier starts.
    earlier: Counts,
    n_frames: u64,
    n_objects: u64,
    /// Number of the next frame since the stream began.
    frame_number: u64,
    has_warned: bool,
    size: Option<Size>,
    segment: Option<gst::FormattedSegment<gst::ClockTime>>,
}

/// Instance data of `roiattach`. No lock is held during a push or a post.
pub struct RoiAttach {
    sinkpad: gst::Pad,
    srcpad: gst::Pad,
    settings: Mutex<Settings>,
    state: Mutex<State>,
}

#[glib::object_subclass]
impl ObjectSubclass for RoiAttach {
    const NAME: &'static str = "RoiAttach";
    /// Two copies of the library in one process register this type name, so a name conflict is not an error.
    const ALLOW_NAME_CONFLICT: bool = true;
    type Type = super::RoiAttach;
    type ParentType = gst::Element;

    fn with_class(class: &Self::Class) -> Self {
        let template = |name| class.pad_template(name).expect("pad_templates() gives these two");
        let flags = gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION | gst::PadFlags::PROXY_SCHEDULING;
        let sinkpad = gst::Pad::builder_from_template(&template("sink"))
            .chain_function(|_pad, parent, buffer| {
                Self::catch_panic_pad_function(parent, || Err(gst::FlowError::Error), |imp| imp.sink_chain(buffer))
            })
            .event_function(|pad, parent, event| Self::catch_panic_pad_function(parent, || false, |imp| imp.sink_event(pad, event)))
            .flags(flags)
            .build();
        let srcpad = gst::Pad::builder_from_template(&template("src")).flags(flags).build();
        Self { sinkpad, srcpad, settings: Mutex::default(), state: Mutex::default() }
    }
}

impl ObjectImpl for RoiAttach {
    fn constructed(&self) {
        self.parent_constructed();
        let element = self.obj();
        element.add_pad(&self.sinkpad).expect("a new element has no pad of this name");
        element.add_pad(&self.srcpad).expect("a new element has no pad of this name");
    }

    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let text = |name: &str, nick, blurb| glib::ParamSpecString::builder(name).nick(nick).blurb(blurb).mutable_ready().build();
            vec![
                text("rois", "Regions", "Boxes for each frame, as [label:]x1,y1,x2,y2 in fractions of the frame, separated by semicolons"),
                text("location", "Location", "File with lines of JSON of an earlier run, from roipublish or gvametaconvert"),
                glib::ParamSpecEnum::builder_with_default("match", Match::default())
                    .nick("Match")
                    .blurb("How the line of a frame is found")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt64::builder("tolerance")
                    .nick("Tolerance")
                    .blurb("Largest difference between the times of a frame and its line, in nanoseconds; with match=timestamp")
                    .default_value(TOLERANCE)
                    .mutable_ready()
                    .build(),
                text("stream-id", "Stream id", "Name of the stream whose lines are read; default: all lines"),
                glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                    .nick("Statistics")
                    .blurb("Counters since the element was created: frames, matched, lines, unmatched and errors")
                    .read_only()
                    .build(),
            ]
        });
        &PROPERTIES
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        let text = || value.get::<Option<String>>().expect("a string property").filter(|text| !text.is_empty());
        let mut settings = self.settings.lock().unwrap();
        match pspec.name() {
            "rois" => settings.rois = text(),
            "location" => settings.location = text(),
            "match" => settings.by = value.get().expect("GObject checked the type"),
            "tolerance" => settings.tolerance = value.get().expect("GObject checked the type"),
            "stream-id" => settings.stream_id = text(),
            name => unreachable!("property {name} is not in the list above"),
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        let settings = self.settings.lock().unwrap();
        match pspec.name() {
            "rois" => settings.rois.to_value(),
            "location" => settings.location.to_value(),
            "match" => settings.by.to_value(),
            "tolerance" => settings.tolerance.to_value(),
            "stream-id" => settings.stream_id.to_value(),
            "stats" => self.state.lock().unwrap().stats().to_value(),
            name => unreachable!("property {name} is not in the list above"),
        }
    }
}

impl GstObjectImpl for RoiAttach {}

impl ElementImpl for RoiAttach {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Attaches stored results",
                "Filter/Analyzer/Video",
                "Attaches regions of interest from a property, or the stored results of an earlier run",
                env!("CARGO_PKG_NAME"),
            )
        });
        Some(&METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            // Pixels are not read, so any memory is accepted, and encoded video with metas.
            let caps = gst::Caps::new_any();
            let template = |name, direction| {
                gst::PadTemplate::new(name, direction, gst::PadPresence::Always, &caps).expect("a static template is valid")
            };
            vec![template("sink", gst::PadDirection::Sink), template("src", gst::PadDirection::Src)]
        });
        &TEMPLATES
    }

    fn change_state(&self, transition: gst::StateChange) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        if transition == gst::StateChange::ReadyToPaused {
            let settings = self.settings.lock().unwrap().clone();
            match start(settings) {
                Ok((rois, stored)) => {
                    let mut state = self.state.lock().unwrap();
                    (state.rois, state.stored, state.frame_number, state.has_warned) = (rois, stored, 0, false);
                }
                Err(error) => {
                    gst::element_imp_error!(self, gst::ResourceError::Settings, ("{error}"));
                    return Err(gst::StateChangeError);
                }
            }
        }
        let changed = self.parent_change_state(transition)?;
        if transition == gst::StateChange::PausedToReady {
            self.state.lock().unwrap().stop();
        }
        Ok(changed)
    }
}

/// Reads the boxes, and opens the file.
fn start(settings: Settings) -> Result<(Vec<Roi>, Option<Stored>), String> {
    let Settings { rois, location, by, tolerance, stream_id } = settings;
    if rois.is_none() && location.is_none() {
        return Err("expected boxes or a file with results, got neither. Set rois or location".into());
    }
    let rois = rois.map_or_else(|| Ok(Vec::new()), |text| rois::read(&text))?;
    let stored = location.map(|path| Stored::open(Path::new(&path), by, tolerance, stream_id)).transpose()?;
    Ok((rois, stored))
}

impl RoiAttach {
    fn sink_chain(&self, mut buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let (size, found, error) = {
            let mut state = self.state.lock().unwrap();
            let found = state.size.map(|size| state.find(&buffer, size));
            let error = state.stored.as_mut().and_then(Stored::take_error).filter(|_| !state.has_warned);
            state.has_warned |= error.is_some();
            (state.size, found.flatten(), error)
        };
        let Some(size) = size else {
            gst::element_imp_error!(
                self,
                gst::StreamError::Format,
                ("expected video with its width and height in the caps, got data without a size; put roiattach downstream of a decoder")
            );
            return Err(gst::FlowError::NotNegotiated);
        };
        if let Some(error) = error {
            gst::element_imp_warning!(self, gst::StreamError::Decode, ("{error}. This warning appears only once"));
        }
        if let Some(found) = found {
            let results = match meta::take(&mut buffer, size) {
                None => found,
                Some(mut earlier) => {
                    if earlier.frame_number == meta::UNNUMBERED {
                        earlier.frame_number = found.frame_number;
                    }
                    earlier.detections.extend(found.detections);
                    earlier.classifications.extend(found.classifications);
                    earlier.events.extend(found.events);
                    earlier
                }
            };
            meta::attach(buffer.make_mut(), results);
        }
        self.srcpad.push(buffer)
    }

    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        match event.view() {
            gst::EventView::FlushStop(_) => self.state.lock().unwrap().rewind(),
            gst::EventView::StreamStart(_) => {
                let mut state = self.state.lock().unwrap();
                state.frame_number = 0;
                state.rewind();
            }
            gst::EventView::Caps(caps) => self.state.lock().unwrap().size = caps::size_in_caps(caps.caps()),
            gst::EventView::Segment(segment) => {
                self.state.lock().unwrap().segment = segment.segment().clone().downcast::<gst::ClockTime>().ok();
            }
            _ => {}
        }
        gst::Pad::event_default(pad, Some(&*self.obj()), event)
    }
}

impl State {
    /// Returns the results to attach to a frame. `None`: there are none.
    fn find(&mut self, buffer: &gst::BufferRef, size: Size) -> Option<FrameResults> {
        let frame_number = self.frame_number;
        self.frame_number += 1;
        self.n_frames += 1;
        let stream_time = || self.segment.as_ref()?.to_stream_time(buffer.pts());
        let stored = match &mut self.stored {
            None => None,
            Some(stored) if stored.is_by_frame() => stored.find(frame_number),
            Some(stored) => stream_time().and_then(|time| stored.find(time.nseconds())),
        };
        if stored.is_none() && self.rois.is_empty() {
            return None;
        }
        let mut results = stored.unwrap_or_else(|| FrameResults { size, ..FrameResults::default() });
        results.rescale(size);
        results.frame_number = frame_number;
        results.detections.extend(self.rois.iter().map(|roi| roi.detection(size)));
        self.n_objects += results.detections.len() as u64;
        Some(results)
    }

    fn rewind(&mut self) {
        if let Some(stored) = &mut self.stored {
            stored.rewind();
        }
    }

    fn stop(&mut self) {
        self.earlier = self.counts();
        (self.stored, self.size, self.segment) = (None, None, None);
    }

    fn counts(&self) -> Counts {
        let now = self.stored.as_ref().map(|stored| stored.counts).unwrap_or_default();
        let Counts { lines, matched, unmatched, errors } = self.earlier;
        Counts {
            lines: lines + now.lines,
            matched: matched + now.matched,
            unmatched: unmatched + now.unmatched,
            errors: errors + now.errors,
        }
    }

    fn stats(&self) -> gst::Structure {
        let counts = self.counts();
        gst::Structure::builder("roiattach-stats")
            .field("frames", self.n_frames)
            .field("objects", self.n_objects)
            .field("matched", counts.matched)
            .field("lines", counts.lines)
            .field("unmatched", counts.unmatched)
            .field("errors", counts.errors)
            .build()
    }
}
