//! Properties of `roianalytics`, and counting of a buffer's objects.
//!
//! The element writes only metas. The rules for counting are in [`crate::stages::scene`]. The module `layout` reads lines and zones.

use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;

use super::layout;
use crate::elements::{caps, meta, scene};
use crate::frame::{Classification, Direction, FrameResults, Outcome, SceneEvent, SceneEventKind, Size};
use crate::stages::scene::Layout;
use crate::stages::{FrameTime, SceneCounter, SceneCounts, Snapshot, StreamTime};

/// Settings of the element.
#[derive(Debug, Clone, Default)]
struct Settings {
    layout: Option<String>,
    lines: Option<String>,
    zones: Option<String>,
    /// Files that an earlier element of the stream has read.
    snapshot: Option<Snapshot>,
}

impl Settings {
    /// Reads the layout. A file that the snapshot has is not read again.
    fn layout(&self) -> Result<Layout, String> {
        self.read(|path| self.snapshot.as_ref().map_or_else(|| layout::text(path), |snapshot| snapshot.once(path, || layout::text(path))))
    }

    /// Reads the layout, also if the snapshot has it. Later elements of the stream use this one.
    fn new_layout(&self) -> Result<Layout, String> {
        let mut file = None;
        let layout = self.read(|path| layout::text(path).inspect(|text| file = Some((path.to_owned(), text.clone()))))?;
        if let (Some(snapshot), Some((path, text))) = (&self.snapshot, file) {
            snapshot.replace(path, text);
        }
        Ok(layout)
    }

    fn read(&self, text: impl FnOnce(&Path) -> Result<String, String>) -> Result<Layout, String> {
        layout::read(self.layout.as_deref(), self.lines.as_deref(), self.zones.as_deref(), text)
    }
}

/// State of the stream.
#[derive(Default)]
struct State {
    counter: Option<SceneCounter>,
    /// Counts up to the last stop of the element, or the counts of an earlier element.
    carried: SceneCounts,
    /// Frame size from the caps.
    size: Option<Size>,
    time: StreamTime,
    n_frames: u64,
    n_events: u64,
    has_ground: bool,
    /// Columns of the heat map.
    n_columns: usize,
    /// Whether downstream must get the lines and zones before the next frame.
    must_send_scene: bool,
}

/// Instance data of `roianalytics`. No lock is held during a push or a post.
pub struct RoiAnalytics {
    sinkpad: gst::Pad,
    srcpad: gst::Pad,
    settings: Mutex<Settings>,
    state: Mutex<State>,
}

#[glib::object_subclass]
impl ObjectSubclass for RoiAnalytics {
    const NAME: &'static str = "RoiAnalytics";
    /// Two copies of the library in one process register this type name, so a name conflict is not an error.
    const ALLOW_NAME_CONFLICT: bool = true;
    type Type = super::RoiAnalytics;
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

impl ObjectImpl for RoiAnalytics {
    fn constructed(&self) {
        self.parent_constructed();
        let element = self.obj();
        element.add_pad(&self.sinkpad).expect("a new element has no pad of this name");
        element.add_pad(&self.srcpad).expect("a new element has no pad of this name");
    }

    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let text = |name: &str, nick, blurb| glib::ParamSpecString::builder(name).nick(nick).blurb(blurb).mutable_playing().build();
            let structure =
                |name: &str, nick, blurb| glib::ParamSpecBoxed::builder::<gst::Structure>(name).nick(nick).blurb(blurb).read_only().build();
            vec![
                text("layout", "Layout", "File in TOML with lines, zones, anchor point, ground and heat map"),
                text("lines", "Lines", "Lines as [name:]x1,y1,x2,y2 in fractions of the frame, separated by semicolons"),
                text("zones", "Zones", "Polygons as [name:]x,y,x,y,x,y in fractions of the frame, separated by semicolons"),
                structure("stats", "Statistics", "Counters since the element was created: frames, events, takeovers, crossings and zones"),
                structure("heat-map", "Heat map", "Number of objects in each cell of the heat map, row by row"),
            ]
        });
        &PROPERTIES
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        let text: Option<String> = value.get().expect("a string property");
        let text = text.filter(|text| !text.is_empty());
        let mut settings = self.settings.lock().unwrap();
        match pspec.name() {
            "layout" => settings.layout = text,
            "lines" => settings.lines = text,
            "zones" => settings.zones = text,
            name => unreachable!("property {name} is not in the list above"),
        }
        self.change_layout(&settings);
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        match pspec.name() {
            "layout" => self.settings.lock().unwrap().layout.to_value(),
            "lines" => self.settings.lock().unwrap().lines.to_value(),
            "zones" => self.settings.lock().unwrap().zones.to_value(),
            "stats" => self.state.lock().unwrap().stats().to_value(),
            "heat-map" => self.state.lock().unwrap().heat_map().to_value(),
            name => unreachable!("property {name} is not in the list above"),
        }
    }
}

impl GstObjectImpl for RoiAnalytics {}

impl ElementImpl for RoiAnalytics {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Object counter",
                "Filter/Analyzer/Video",
                "Counts tracked objects at lines and in zones",
                env!("CARGO_PKG_NAME"),
            )
        });
        Some(&METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            // The element reads no pixels, so it accepts any memory type, and also encoded video with metas.
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
            let started = settings.layout().and_then(|layout| Ok((layout.ground.is_some(), layout.heat_map.0, SceneCounter::new(layout)?)));
            match started {
                Ok((has_ground, n_columns, counter)) => self.state.lock().unwrap().start(has_ground, n_columns, counter),
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

impl RoiAnalytics {
    /// Continues with a changed layout if the element runs. Posts a warning if the layout is not valid.
    fn change_layout(&self, settings: &Settings) {
        if self.state.lock().unwrap().counter.is_none() {
            return;
        }
        // The layout is read without the lock of the state, which the streaming thread needs for each frame.
        let changed = settings.new_layout().and_then(|layout| {
            let mut state = self.state.lock().unwrap();
            let (has_ground, n_columns) = (layout.ground.is_some(), layout.heat_map.0);
            let Some(counter) = &mut state.counter else { return Ok(()) };
            counter.set_layout(layout)?;
            (state.has_ground, state.n_columns, state.must_send_scene) = (has_ground, n_columns, true);
            Ok(())
        });
        if let Err(error) = changed {
            gst::element_imp_warning!(self, gst::ResourceError::Settings, ("the earlier layout stays in use: {error}"));
        }
    }

    pub(super) fn check_layout(&self) -> Result<(), String> {
        let settings = self.settings.lock().unwrap().clone();
        settings.layout()?.check()
    }

    pub(super) fn set_snapshot(&self, snapshot: Snapshot) {
        self.settings.lock().unwrap().snapshot = Some(snapshot);
    }

    pub(super) fn counts(&self) -> SceneCounts {
        let state = self.state.lock().unwrap();
        state.counter.as_ref().map_or(&state.carried, SceneCounter::counts).clone()
    }

    pub(super) fn continue_counts(&self, counts: SceneCounts) {
        let mut state = self.state.lock().unwrap();
        state.carried = counts.clone();
        if let Some(counter) = &mut state.counter {
            counter.restore(counts);
        }
    }

    fn sink_chain(&self, mut buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let size = self.state.lock().unwrap().size;
        let Some(size) = size else {
            gst::element_imp_error!(
                self,
                gst::StreamError::Format,
                ("expected video with its width and height in the caps, got data without; put roianalytics downstream of roitrack")
            );
            return Err(gst::FlowError::NotNegotiated);
        };
        let had_results = meta::has_results(&buffer);
        let mut results = meta::take(&mut buffer, size).unwrap_or_else(|| meta::no_results(size));
        let begin = results.events.len();
        let scene = self.state.lock().unwrap().scene_to_send(self.obj().upcast_ref(), size);
        if let Some(scene) = scene {
            self.srcpad.push_event(scene);
        }
        self.state.lock().unwrap().count(&mut results, size, &buffer);
        for event in &results.events[begin..] {
            let message = gst::message::Element::builder(message(event, buffer.pts())).src(&*self.obj()).build();
            let _ = self.obj().post_message(message);
        }
        if had_results || !results.events.is_empty() {
            // Keep the analytics meta only if the detector wrote one.
            let with_analytics = meta::has_analytics(&buffer);
            meta::attach_to(buffer.make_mut(), results, with_analytics);
        }
        self.srcpad.push(buffer)
    }

    fn sink_event(&self, pad: &gst::Pad, event: gst::Event) -> bool {
        match event.view() {
            gst::EventView::FlushStop(_) | gst::EventView::StreamStart(_) => {
                let mut state = self.state.lock().unwrap();
                state.flush();
                state.must_send_scene = true;
            }
            gst::EventView::Caps(caps) => {
                let mut state = self.state.lock().unwrap();
                (state.size, state.must_send_scene) = (caps::size_in_caps(caps.caps()), true);
            }
            _ => {}
        }
        gst::Pad::event_default(pad, Some(&*self.obj()), event)
    }
}

impl State {
    fn start(&mut self, has_ground: bool, n_columns: usize, mut counter: SceneCounter) {
        counter.restore(self.carried.clone());
        (self.has_ground, self.n_columns, self.counter) = (has_ground, n_columns, Some(counter));
        self.time.reset();
    }

    fn stop(&mut self) {
        self.flush();
        self.size = None;
        if let Some(counter) = self.counter.take() {
            self.carried = counter.counts().clone();
        }
    }

    fn flush(&mut self) {
        self.time.reset();
        if let Some(counter) = &mut self.counter {
            counter.flush();
        }
    }

    /// The event with the lines and zones, if downstream must get it now.
    fn scene_to_send(&mut self, element: &gst::Object, size: Size) -> Option<gst::Event> {
        let counter = self.counter.as_ref().filter(|_| std::mem::take(&mut self.must_send_scene))?;
        Some(scene::event(element, counter.layout(), counter.counts(), size))
    }

    /// Counts the objects of a frame, and adds events and speeds to its results.
    fn count(&mut self, results: &mut FrameResults, size: Size, buffer: &gst::BufferRef) {
        self.n_frames += 1;
        let timestamp = buffer.pts().map(|pts| Duration::from_nanos(pts.nseconds()));
        let FrameTime { time, is_new_scene, .. } = self.time.next(timestamp, buffer.flags().contains(gst::BufferFlags::DISCONT));
        let Some(counter) = &mut self.counter else { return };
        if is_new_scene {
            counter.flush();
        }
        let n_before = results.events.len();
        counter.update(&results.detections, size, time, &mut results.events);
        self.n_events += (results.events.len() - n_before) as u64;
        if !self.has_ground {
            return;
        }
        for detection in &mut results.detections {
            if let Some(speed) = detection.track.and_then(|track| counter.speed(track)) {
                for (name, value) in [("speed", speed.speed), ("heading", speed.heading)] {
                    let outcome = Outcome::Value(value);
                    detection.classifications.push(Classification { name: name.into(), model: "roianalytics".into(), outcome });
                }
            }
        }
    }

    fn stats(&self) -> gst::Structure {
        let counts = self.counter.as_ref().map_or(&self.carried, SceneCounter::counts);
        let crossings = counts.crossings.iter().map(|((line, direction, label), n)| {
            gst::Structure::builder("crossings")
                .field("line", &**line)
                .field("direction", direction.name())
                .field("label", &**label)
                .field("count", *n)
                .build()
                .to_send_value()
        });
        let sum = |of: &std::collections::BTreeMap<_, u64>, zone: &std::sync::Arc<str>| -> u64 {
            let of_zone = of.iter().filter(|((name, _), _): &(&(std::sync::Arc<str>, std::sync::Arc<str>), _)| name == zone);
            of_zone.map(|(_, n)| *n).sum()
        };
        let zones = counts.occupancy.iter().map(|(zone, occupancy)| {
            gst::Structure::builder("zone")
                .field("zone", &**zone)
                .field("occupancy", *occupancy)
                .field("entries", sum(&counts.entries, zone))
                .field("exits", sum(&counts.exits, zone))
                .field("dwell", counts.dwell.get(zone).map_or(0, |dwell| dwell.as_nanos() as u64))
                .build()
                .to_send_value()
        });
        gst::Structure::builder("roianalytics-stats")
            .field("frames", self.n_frames)
            .field("events", self.n_events)
            .field("takeovers", counts.n_takeovers)
            .field("crossings", gst::Array::from_values(crossings))
            .field("zones", gst::Array::from_values(zones))
            .build()
    }

    fn heat_map(&self) -> gst::Structure {
        let cells = self.counter.as_ref().map_or(&[][..], SceneCounter::heat_map);
        let n_rows = cells.len() / self.n_columns.max(1);
        gst::Structure::builder("roianalytics-heat-map")
            .field("columns", self.n_columns as u64)
            .field("rows", n_rows as u64)
            .field("cells", gst::Array::from_values(cells.iter().map(|n| n.to_send_value())))
            .build()
    }
}

/// Returns the bus message of an event.
fn message(event: &SceneEvent, pts: Option<gst::ClockTime>) -> gst::Structure {
    let builder = gst::Structure::builder("roianalytics-event")
        .field("event", event.kind.name())
        .field("place", &*event.place)
        .field("id", event.track.0)
        .field("label", event.label.as_deref())
        .field("pts", pts);
    let nanoseconds = |time: Duration| time.as_nanos() as u64;
    match event.kind {
        SceneEventKind::Crossed { direction, count } => builder.field("direction", Direction::name(direction)).field("count", count),
        SceneEventKind::Entered { occupancy } => builder.field("occupancy", occupancy),
        SceneEventKind::Exited { occupancy, dwell, is_lost } => {
            builder.field("occupancy", occupancy).field("dwell", nanoseconds(dwell)).field("is-lost", is_lost)
        }
        SceneEventKind::Loitered { dwell } => builder.field("dwell", nanoseconds(dwell)),
    }
    .build()
}
