//! The driver that all inference elements share: caps, the window of frames in flight, flush, EOS, latency, statistics.
//!
//! # Threads
//!
//! - The *streaming thread* (upstream's) brings buffers and events to the sink pad. It maps a buffer, starts the run, and goes
//!   on; it blocks only while the window is full. That is the backpressure.
//! - *Workers* of the stage end runs and put the result into its place in the window. They never block, push, or touch a pad.
//! - The *source pad's task* takes what is complete, in arrival order, attaches the results and pushes. So results leave as
//!   soon as they are ready, also when no next frame comes, and no further `queue` is needed.
//!
//! Serialized events pass through the window and keep their place. A flush forgets what is in flight; runs that end after it find
//! nothing. Lock order: none, `Driver`'s locks are held only to look or to put.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::{buffer, caps, meta};
use crate::frame::{Frame, FrameResults, InferenceStatus, PixelFormat, Size};
use crate::stages;
use crate::stages::{StageStats, Window};

/// What an inference element does with a frame.
pub(super) trait Stage: Send + Sync {
    /// Starts on a frame; never blocks. `done` is called once, on any thread, after the frame's memory was let go of.
    fn run(&self, frame: Frame, results: FrameResults, done: Done);

    /// Runs once on a black frame, to warm up, and tells how long a frame takes then.
    fn warm_up(&self) -> stages::Result<Duration>;

    /// How many frames can run at once.
    fn n_requests(&self) -> usize;

    /// Runs and times so far.
    fn stats(&self) -> StageStats;

    /// Whether results of earlier elements are needed.
    fn reads_results(&self) -> bool;
}

/// Takes the results of a frame.
pub(super) type Done = Box<dyn FnOnce(FrameResults) + Send>;

/// What is in the window.
enum Item {
    Frame { buffer: gst::Buffer, results: FrameResults, arrived: Instant },
    Event(gst::Event),
}

/// See the module.
pub(super) struct Driver {
    cat: gst::DebugCategory,
    window: Window<Item>,
    stage: Mutex<Option<Arc<dyn Stage>>>,
    stream: Mutex<Stream>,
    counts: Counts,
}

/// What is known of the stream; reset on stop.
struct Stream {
    info: Option<gst_video::VideoInfo>,
    /// What the source pad's task heard from downstream last.
    flow: Result<gst::FlowSuccess, gst::FlowError>,
    capacity: usize,
    /// Reported to the latency query; only ever raised.
    latency: Duration,
    n_frames: u64,
    warned_of_lost_rois: bool,
}

impl Default for Stream {
    fn default() -> Self {
        Self { info: None, flow: Ok(gst::FlowSuccess::Ok), capacity: 1, latency: Duration::ZERO, n_frames: 0, warned_of_lost_rois: false }
    }
}

#[derive(Default)]
struct Counts {
    arrived: AtomicU64,
    left: AtomicU64,
    inferred: AtomicU64,
    failed: AtomicU64,
    objects: AtomicU64,
    latency_ns: AtomicU64,
}

impl Driver {
    pub(super) fn new(cat: gst::DebugCategory) -> Arc<Self> {
        Arc::new(Self { cat, window: Window::new(1), stage: Mutex::default(), stream: Mutex::default(), counts: Counts::default() })
    }

    /// Puts a stage to work: warms it up and sizes the window.
    pub(super) fn prepare(&self, element: &gst::Element, stage: Arc<dyn Stage>) -> stages::Result<()> {
        let run_time = stage.warm_up()?;
        let capacity = stage.n_requests() // one running on each
            + 1                           // one being mapped by the streaming thread
            + 1; // one finished, on its way downstream
        self.window.set_capacity(capacity);
        let latency = run_time * capacity as u32;
        gst::info!(
            self.cat,
            obj = element,
            "{} requests, window of {capacity} frames, {run_time:?} a run, latency {latency:?}",
            stage.n_requests()
        );
        *self.stream.lock().unwrap() = Stream { capacity, latency, ..Stream::default() };
        *self.stage.lock().unwrap() = Some(stage);
        Ok(())
    }

    /// Ends the stream; the stage stays for the next one.
    pub(super) fn end_stream(&self) {
        *self.stream.lock().unwrap() = Stream::default();
    }

    /// Lets go of the stage, and waits for its runs.
    pub(super) fn release(&self) {
        let stage = self.stage.lock().unwrap().take();
        drop(stage);
    }

    pub(super) fn sink_chain(self: &Arc<Self>, element: &gst::Element, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let arrived = Instant::now();
        let Ok(ticket) = self.window.admit() else { return Err(self.flow().err().unwrap_or(gst::FlowError::Flushing)) };
        let Some(stage) = self.stage.lock().unwrap().clone() else { return Err(gst::FlowError::Flushing) };
        let (info, frame_number) = {
            let mut stream = self.stream.lock().unwrap();
            let frame_number = stream.n_frames;
            stream.n_frames += 1;
            (stream.info.clone(), frame_number)
        };
        self.counts.arrived.fetch_add(1, Ordering::Relaxed);
        let Some(info) = info else {
            gst::error!(self.cat, obj = element, "a buffer came before caps");
            return Err(gst::FlowError::NotNegotiated);
        };
        let size = caps::size(&info);
        let mut results = meta::read(&buffer, size).unwrap_or_default();
        if !meta::has_results(&buffer) {
            results = FrameResults { size, frame_number, ..FrameResults::default() };
        }
        if stage.reads_results() {
            self.warn_of_lost_rois(element, &buffer, &results);
        }
        let frame = match buffer::frame(&buffer, &info) {
            Ok(frame) => frame,
            Err(error) => {
                results.status = InferenceStatus::Failed(error.to_string().into());
                self.window.complete(ticket, Item::Frame { buffer, results, arrived });
                return self.flow();
            }
        };
        let driver = self.clone();
        stage.run(frame, results, Box::new(move |results| driver.window.complete(ticket, Item::Frame { buffer, results, arrived })));
        self.flow()
    }

    pub(super) fn sink_event(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element, event: gst::Event, srcpad: &gst::Pad) -> bool {
        match event.view() {
            gst::EventView::FlushStart(_) => {
                self.window.flush();
                srcpad.push_event(event)
            }
            gst::EventView::FlushStop(_) => {
                // The task has seen the flush once `stop_task` returns; what it pushes next belongs to the new segment.
                let _stopped = srcpad.stop_task();
                self.stream.lock().unwrap().flow = Ok(gst::FlowSuccess::Ok);
                let pushed = srcpad.push_event(event);
                self.window.resume();
                pushed && start_task(self, srcpad, element)
            }
            gst::EventView::Caps(caps) => {
                if let Err(error) = self.set_caps(caps.caps()) {
                    gst::element_error!(element, gst::StreamError::Format, ("{error}"));
                    return false;
                }
                self.window.push(Item::Event(event)).is_ok()
            }
            _ if event.is_serialized() => self.window.push(Item::Event(event)).is_ok(),
            _ => gst::Pad::event_default(pad, Some(element), event),
        }
    }

    fn set_caps(&self, caps: &gst::CapsRef) -> stages::Result<()> {
        let info = gst_video::VideoInfo::from_caps(caps).map_err(|_| {
            stages::Error::new(
                stages::ErrorKind::Config,
                format!("expected raw video in system memory, got `{caps}`; put a decoder and `videoconvert` in front"),
            )
        })?;
        if caps::pixel_format(&info).is_none() {
            return Err(buffer::unsupported(&info).into());
        }
        self.stream.lock().unwrap().info = Some(info);
        Ok(())
    }

    pub(super) fn sink_query(&self, pad: &gst::Pad, element: &gst::Element, query: &mut gst::QueryRef, srcpad: &gst::Pad) -> bool {
        let serialized = query.is_serialized();
        match query.view_mut() {
            gst::QueryViewMut::AcceptCaps(accept) => {
                // Formats that are not ours are refused by the caps event, with a sentence that says what to do.
                let raw = accept.caps().structure(0).is_some_and(|structure| structure.name() == "video/x-raw");
                accept.set_result(raw);
                true
            }
            gst::QueryViewMut::Allocation(allocation) => {
                // Downstream answers for the caps that it has seen: let them, and all frames of the old ones, leave first.
                if self.window.drain().is_err() {
                    return false;
                }
                let answered = srcpad.peer_query(allocation.query_mut());
                self.propose_allocation(allocation);
                gst::debug!(
                    self.cat,
                    obj = element,
                    "allocation: downstream answered {answered}, {} frames more for the window",
                    self.capacity()
                );
                true
            }
            _ if serialized => {
                if self.window.drain().is_err() {
                    return false;
                }
                srcpad.peer_query(query)
            }
            _ => gst::Pad::query_default(pad, Some(element), query),
        }
    }

    /// Asks for as many buffers more as the window can hold.
    fn propose_allocation(&self, allocation: &mut gst::query::Allocation<gst::QueryRef>) {
        let n_held = self.capacity() as u32;
        let pools: Vec<_> =
            allocation.allocation_pools().map(|(pool, size, min, max)| (pool.map(|pool| pool.to_owned()), size, min, max)).collect();
        for (pool_idx, (pool, size, min, max)) in pools.iter().enumerate() {
            let max = if *max == 0 { 0 } else { max.saturating_add(n_held) };
            allocation.set_nth_allocation_pool(pool_idx as u32, pool.as_ref(), *size, min.saturating_add(n_held), max);
        }
        let size = self.stream.lock().unwrap().info.as_ref().map_or(0, gst_video::VideoInfo::size);
        if pools.is_empty() && size > 0 {
            allocation.add_allocation_pool(None::<&gst::BufferPool>, size as u32, n_held, 0);
        }
    }

    fn capacity(&self) -> usize {
        self.stream.lock().unwrap().capacity
    }

    pub(super) fn src_query(&self, pad: &gst::Pad, element: &gst::Element, query: &mut gst::QueryRef, sinkpad: &gst::Pad) -> bool {
        let gst::QueryViewMut::Latency(latency) = query.view_mut() else {
            return gst::Pad::query_default(pad, Some(element), query);
        };
        let mut upstream = gst::query::Latency::new();
        if !sinkpad.peer_query(&mut upstream) {
            return false;
        }
        let (live, min, max) = upstream.result();
        let ours = clock_time(self.stream.lock().unwrap().latency);
        latency.set(live, min + ours, max.map(|max| max + ours));
        true
    }

    pub(super) fn src_activate(self: &Arc<Self>, pad: &gst::Pad, element: &gst::Element, active: bool) -> Result<(), gst::LoggableError> {
        if active {
            self.window.resume();
            if !start_task(self, pad, element) {
                return Err(gst::loggable_error!(self.cat, "cannot start the source pad's task"));
            }
        } else {
            self.window.flush();
            pad.stop_task().map_err(|_| gst::loggable_error!(self.cat, "cannot stop the source pad's task"))?;
        }
        Ok(())
    }

    /// One turn of the source pad's task.
    fn src_task(&self, pad: &gst::Pad, element: &gst::Element) {
        let Ok(item) = self.window.take(|item| matches!(item, Item::Frame { .. })) else {
            let _paused = pad.pause_task();
            return;
        };
        match item {
            Item::Event(event) => {
                let is_eos = event.type_() == gst::EventType::Eos;
                gst::log!(self.cat, obj = pad, "pushing {event:?}");
                pad.push_event(event);
                self.window.taken();
                if is_eos {
                    self.log_totals(element);
                }
            }
            Item::Frame { buffer, results, arrived } => {
                let flow = self.push_frame(pad, element, buffer, results, arrived);
                self.window.taken();
                if let Err(error) = flow {
                    self.stop_on(pad, element, error);
                }
            }
        }
    }

    fn push_frame(
        &self,
        pad: &gst::Pad,
        element: &gst::Element,
        mut buffer: gst::Buffer,
        results: FrameResults,
        arrived: Instant,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        let latency = arrived.elapsed();
        self.counts.left.fetch_add(1, Ordering::Relaxed);
        self.counts.latency_ns.fetch_add(latency.as_nanos() as u64, Ordering::Relaxed);
        self.counts.objects.fetch_add(results.detections.len() as u64, Ordering::Relaxed);
        match &results.status {
            InferenceStatus::Failed(reason) => self.warn_of_failure(element, results.frame_number, reason),
            _ => {
                self.counts.inferred.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.raise_latency(element, latency);
        meta::attach(buffer.make_mut(), results);
        gst::trace!(self.cat, obj = pad, "pushing {buffer:?}");
        pad.push(buffer)
    }

    /// Downstream takes nothing more: tell upstream with its next buffer, or the bus if there will be none.
    fn stop_on(&self, pad: &gst::Pad, element: &gst::Element, error: gst::FlowError) {
        gst::debug!(self.cat, obj = pad, "downstream says {error:?}");
        self.stream.lock().unwrap().flow = Err(error);
        let had_eos = pad.sticky_event::<gst::event::Eos>(0).is_some();
        self.window.flush();
        let _paused = pad.pause_task();
        if matches!(error, gst::FlowError::NotLinked | gst::FlowError::Error | gst::FlowError::NotNegotiated) && had_eos {
            gst::element_error!(element, gst::StreamError::Failed, ("downstream stopped with {error:?}"));
        }
    }

    fn flow(&self) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.stream.lock().unwrap().flow
    }

    fn warn_of_failure(&self, element: &gst::Element, frame_number: u64, reason: &str) {
        let n_failed = self.counts.failed.fetch_add(1, Ordering::Relaxed) + 1;
        // 1, 2, 4, 8, ...: the first is said at once, and a stream of failures does not flood the bus.
        if n_failed.is_power_of_two() {
            gst::element_warning!(
                element,
                gst::StreamError::Failed,
                ("inference failed on frame {frame_number}: {reason}; the frame goes on without results ({n_failed} failed so far)")
            );
        }
    }

    fn warn_of_lost_rois(&self, element: &gst::Element, buffer: &gst::BufferRef, results: &FrameResults) {
        if !meta::has_lost_rois(buffer, results) || std::mem::replace(&mut self.stream.lock().unwrap().warned_of_lost_rois, true) {
            return;
        }
        gst::element_warning!(
            element,
            gst::StreamError::Failed,
            (
                "an element between the detector and `{}` dropped the regions (videocrop and videobox do), so boxes may be off; put it before the detector or behind the last roi element",
                element.name()
            )
        );
    }

    fn raise_latency(&self, element: &gst::Element, measured: Duration) {
        let raised = {
            let mut stream = self.stream.lock().unwrap();
            // Backpressure of a stream that is not live shows as latency too, but bounded by the window; only what a run itself
            // takes longer than the warm-up counts.
            let limit = stream.latency + stream.latency / 5;
            let raised = measured > limit && stream.latency > Duration::ZERO;
            if raised {
                stream.latency = measured;
            }
            raised
        };
        if raised {
            gst::info!(self.cat, obj = element, "latency raised to {measured:?}");
            let _posted = element.post_message(gst::message::Latency::builder().src(element).build());
        }
    }

    fn log_totals(&self, element: &gst::Element) {
        gst::info!(self.cat, obj = element, "{:?}", self.stats());
    }

    /// The read-only property `stats`.
    pub(super) fn stats(&self) -> gst::Structure {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stage = self.stage.lock().unwrap().clone().map(|stage| stage.stats()).unwrap_or_default();
        let mut structure = gst::Structure::builder("application/x-roiflow-stats")
            .field("frames-in", count(&self.counts.arrived))
            .field("frames-out", count(&self.counts.left))
            .field("inferred", count(&self.counts.inferred))
            .field("failed", count(&self.counts.failed))
            .field("objects", count(&self.counts.objects))
            .field("latency-total-ns", count(&self.counts.latency_ns))
            .field("runs", stage.n_runs)
            .field("runs-failed", stage.n_failed)
            .build();
        for step in stage.steps {
            structure.set(format!("step-{}-ns", step.name), step.total.as_nanos() as u64);
        }
        structure
    }
}

fn start_task(driver: &Arc<Driver>, pad: &gst::Pad, element: &gst::Element) -> bool {
    // Weak, because the pad owns the task: the element must be able to go.
    let (driver, weak_pad, weak_element) = (Arc::downgrade(driver), pad.downgrade(), element.downgrade());
    let turn = move || {
        if let (Some(driver), Some(pad), Some(element)) = (driver.upgrade(), weak_pad.upgrade(), weak_element.upgrade()) {
            driver.src_task(&pad, &element);
        }
    };
    pad.start_task(turn).is_ok()
}

fn clock_time(duration: Duration) -> gst::ClockTime {
    gst::ClockTime::from_nseconds(duration.as_nanos() as u64)
}

/// A black frame of the size that a model likes, for the warm-up.
pub(super) fn black_frame(size: Size) -> crate::tensor::Result<Frame> {
    Frame::from_packed(PixelFormat::Rgb, size, &vec![0; size.width as usize * size.height as usize * 3])
}

/// What [`Driver`] needs of an element.
pub(super) trait InferenceElement {
    fn driver(&self) -> &Arc<Driver>;
}

/// The pads of an inference element, whose functions call its driver.
pub(super) fn pads<T>() -> (gst::Pad, gst::Pad)
where
    T: ElementImpl + InferenceElement,
    T::Type: IsA<gst::Element>,
{
    let [sink_template, src_template] = T::pad_templates() else { unreachable!("pad_templates() gives these two") };
    let sinkpad = gst::Pad::builder_from_template(sink_template)
        .chain_function(|_pad, parent, buffer| {
            T::catch_panic_pad_function(
                parent,
                || Err(gst::FlowError::Error),
                |imp| imp.driver().sink_chain(imp.obj().upcast_ref(), buffer),
            )
        })
        .event_function(|pad, parent, event| {
            T::catch_panic_pad_function(
                parent,
                || false,
                |imp| {
                    let element: gst::Element = imp.obj().clone().upcast();
                    imp.driver().sink_event(pad, &element, event, &src_pad(&element))
                },
            )
        })
        .query_function(|pad, parent, query| {
            T::catch_panic_pad_function(
                parent,
                || false,
                |imp| {
                    let element: gst::Element = imp.obj().clone().upcast();
                    imp.driver().sink_query(pad, &element, query, &src_pad(&element))
                },
            )
        })
        .flags(gst::PadFlags::PROXY_CAPS | gst::PadFlags::PROXY_ALLOCATION)
        .build();
    let srcpad = gst::Pad::builder_from_template(src_template)
        .query_function(|pad, parent, query| {
            T::catch_panic_pad_function(
                parent,
                || false,
                |imp| {
                    let element: gst::Element = imp.obj().clone().upcast();
                    let sinkpad = element.static_pad("sink").expect("added in constructed()");
                    imp.driver().src_query(pad, &element, query, &sinkpad)
                },
            )
        })
        .activatemode_function(|pad, parent, mode, active| {
            T::catch_panic_pad_function(
                parent,
                || Err(gst::loggable_error!(gst::CAT_RUST, "panic in pad activation")),
                |imp| match mode {
                    gst::PadMode::Push => imp.driver().src_activate(pad, imp.obj().upcast_ref(), active),
                    _ => Err(gst::loggable_error!(gst::CAT_RUST, "expected push mode, got {mode:?}")),
                },
            )
        })
        .flags(gst::PadFlags::PROXY_CAPS)
        .build();
    (sinkpad, srcpad)
}

fn src_pad(element: &gst::Element) -> gst::Pad {
    element.static_pad("src").expect("added in constructed()")
}

/// The templates of an inference element.
pub(super) fn pad_templates() -> Vec<gst::PadTemplate> {
    let caps = caps::raw_video();
    [("sink", gst::PadDirection::Sink), ("src", gst::PadDirection::Src)]
        .into_iter()
        .map(|(name, direction)| {
            gst::PadTemplate::new(name, direction, gst::PadPresence::Always, &caps).expect("a static template is valid")
        })
        .collect()
}

/// Posts what loading a stage said.
pub(super) fn post_load_error(element: &gst::Element, error: &stages::Error) {
    use stages::ErrorKind;
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Io => gst::element_error!(element, gst::ResourceError::NotFound, ("{text}")),
        ErrorKind::Config | ErrorKind::NotFound => gst::element_error!(element, gst::ResourceError::Settings, ("{text}")),
        _ => gst::element_error!(element, gst::LibraryError::Init, ("{text}")),
    }
}

/// Properties that all inference elements have, and what the user asked with them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ModelSettings {
    pub(super) options: stages::StageOptions,
}

impl ModelSettings {
    pub(super) fn properties() -> Vec<glib::ParamSpec> {
        let text = |name: &'static str, nick: &'static str, blurb: &'static str| {
            glib::ParamSpecString::builder(name).nick(nick).blurb(blurb).mutable_ready().build()
        };
        vec![
            text("model", "Model", "Path of the model file (ONNX). Changes take effect on the way to PAUSED"),
            text("description", "Description", "Path of the model's description; default: the file beside the model with the ending .toml"),
            text("labels", "Labels", "Names of the classes, separated by commas; instead of the description's"),
            text("labels-file", "Labels file", "Path of a text file with one label per line; instead of the description's"),
            glib::ParamSpecString::builder("device")
                .nick("Device")
                .blurb("Name of the device that runs the model; `roiflow devices` lists them")
                .default_value(Some(stages::spec::DEFAULT_DEVICE))
                .mutable_ready()
                .build(),
            glib::ParamSpecFloat::builder("threshold")
                .nick("Threshold")
                .blurb("Results with less confidence are left out, 0 to 1; -1: what the description says")
                .minimum(-1.0)
                .maximum(1.0)
                .default_value(-1.0)
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt::builder("nireq")
                .nick("Number of inference requests")
                .blurb("How many runs are possible at once; 0: what the device likes best")
                .maximum(1024)
                .mutable_ready()
                .build(),
            glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                .nick("Statistics")
                .blurb("Frames, objects, runs, and time per step since the element was made")
                .read_only()
                .build(),
        ]
    }

    /// Takes a property; false if it is not one of these.
    pub(super) fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        let text = || value.get::<Option<String>>().expect("a string property").filter(|text| !text.is_empty());
        let options = &mut self.options;
        match name {
            "model" => options.model = text().unwrap_or_default().into(),
            "description" => options.description = text().map(Into::into),
            "labels" => options.labels = text().map(|text| text.split(',').map(|label| label.trim().to_owned()).collect()),
            "labels-file" => options.labels_file = text().map(Into::into),
            "device" => options.device = text(),
            "threshold" => options.threshold = fraction(value),
            "iou-threshold" => options.iou_threshold = fraction(value),
            "nireq" => options.n_requests = Some(value.get::<u32>().expect("an unsigned property") as usize).filter(|&n| n > 0),
            _ => return false,
        }
        true
    }

    /// The value of a property; `None` if it is not one of these.
    pub(super) fn get(&self, name: &str) -> Option<glib::Value> {
        let options = &self.options;
        let path = |path: &std::path::Path| path.to_str().filter(|path| !path.is_empty()).map(str::to_owned).to_value();
        Some(match name {
            "model" => path(&options.model),
            "description" => options.description.as_deref().map_or_else(|| None::<String>.to_value(), path),
            "labels" => options.labels.as_ref().map(|labels| labels.join(",")).to_value(),
            "labels-file" => options.labels_file.as_deref().map_or_else(|| None::<String>.to_value(), path),
            "device" => options.device.as_deref().unwrap_or(stages::spec::DEFAULT_DEVICE).to_value(),
            "threshold" => options.threshold.unwrap_or(-1.0).to_value(),
            "iou-threshold" => options.iou_threshold.unwrap_or(-1.0).to_value(),
            "nireq" => (options.n_requests.unwrap_or(0) as u32).to_value(),
            _ => return None,
        })
    }

    /// The options, if they name a model.
    pub(super) fn checked(&self, element: &gst::Element) -> stages::Result<&stages::StageOptions> {
        if self.options.model.as_os_str().is_empty() {
            let message = format!("`{}` has no model: set the property `model` to the path of a model file", element.name());
            return Err(stages::Error::new(stages::ErrorKind::Config, message));
        }
        Ok(&self.options)
    }
}

fn fraction(value: &glib::Value) -> Option<f32> {
    Some(value.get::<f32>().expect("a float property")).filter(|&fraction| fraction >= 0.0)
}
