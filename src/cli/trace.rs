//! Writes a trace of a run for Perfetto or Chrome. The trace has the time and the thread of each step of each request.
//!
//! The runtime and the elements report spans and events of `tracing`. This module converts them to trace events in the JSON format of
//! <https://ui.perfetto.dev> and `chrome://tracing`. The trace has three groups of lanes:
//!
//! - One lane per executor thread shows overlap between threads.
//! - One lane per request shows the steps of its runs, including waiting times.
//! - Lanes of frames show each frame from its arrival in an element until the element pushes it. An arrow leads from a frame to
//!   each of its runs.
//!
//! The file is valid JSON after every write: each write ends with the closing bracket, which the next write replaces. So a growing trace
//! can be opened, and after a second Ctrl-C or a crash only the newest events are missing. At most `BUFFER_BYTES` are buffered once the
//! file is open. The file is opened when the first frame arrives, so that a run that fails to start does not overwrite an earlier trace.
//! Events before the first frame are buffered too, up to `START_BYTES`.
//!
//! The crate tracing-chrome is not used for three reasons: its lanes are either threads or root spans, its event queue is unbounded, and
//! its file is complete only after an orderly exit.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::pipeline::{Deadline, IfExists, OutputFile};

/// Maximum size of the buffer while the file is open.
const BUFFER_BYTES: usize = 32 << 10;
/// Maximum size of the buffer before the file is open. Further events are dropped.
const START_BYTES: usize = 8 << 20;
/// Maximum time that events are buffered. It is checked when a new event arrives.
const MAX_DELAY: Duration = Duration::from_millis(200);
/// Text that ends the list of events.
const TAIL: &[u8] = b"\n]\n";

/// The three groups of lanes, which are processes in the trace format.
const EXECUTORS: u32 = 1;
const REQUESTS: u32 = 2;
const FRAMES: u32 = 3;

/// A trace that is being written. Clones write the same file.
#[derive(Clone)]
pub(super) struct Trace(Arc<Inner>);

struct Inner {
    begin: Instant,
    path: PathBuf,
    deadline: Deadline,
    output: Mutex<Output>,
    frame_lanes: Mutex<FrameLanes>,
    n_arrows: AtomicU64,
}

impl Trace {
    /// Starts a trace. Its events are buffered until [`Trace::open`] is called, and then written to this file.
    pub(super) fn new(path: &Path, if_exists: IfExists) -> Self {
        let deadline = Deadline::default();
        let mut output = Output::new(OutputFile::new(path, if_exists, deadline.clone()));
        for (group, name) in [(EXECUTORS, "executors"), (REQUESTS, "requests"), (FRAMES, "frames")] {
            output.put(&format!(r#"{{"ph":"M","pid":{group},"name":"process_name","args":{{"name":"{name}"}}}}"#));
        }
        Self(Arc::new(Inner {
            begin: Instant::now(),
            path: path.to_owned(),
            deadline,
            output: Mutex::new(output),
            frame_lanes: Mutex::default(),
            n_arrows: AtomicU64::new(0),
        }))
    }

    /// Opens the file on a separate thread, because opening a FIFO blocks until the FIFO has a reader.
    pub(super) fn open(&self) {
        let trace = self.clone();
        let open = move || trace.0.output.lock().unwrap().open();
        if let Err(error) = std::thread::Builder::new().name("roiflow-trace".to_owned()).spawn(open) {
            tracing::warn!("cannot start the thread that opens the trace: {error}");
        }
    }

    /// Whether the file was opened.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.0.output.lock().unwrap().state, State::Held)
    }

    /// Sets the time until which writing the trace may wait for a reader.
    pub(super) fn write_until(&self, deadline: Instant) {
        self.0.deadline.set(deadline);
    }

    /// Completes the file, and opens it if necessary. Later events are dropped.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        match self.0.output.lock().unwrap().close() {
            Ok(()) => Ok(()),
            Err(error) => Err(anyhow::anyhow!("cannot write the trace `{}`: {error}", self.0.path.display())),
        }
    }

    /// Whether a span or event belongs in the trace.
    pub(super) fn wants(metadata: &Metadata<'_>) -> bool {
        metadata.target() == "roiflow::trace"
    }

    fn put(&self, event: &str) {
        self.0.output.lock().unwrap().put(event);
    }

    fn microseconds(&self, time: Instant) -> f64 {
        time.saturating_duration_since(self.0.begin).as_nanos() as f64 / 1e3
    }

    /// Returns the lane of the calling thread. If the lane is new, writes its name to the trace.
    fn lane(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static LANE: Cell<u64> = const { Cell::new(0) };
        }
        if LANE.get() == 0 {
            LANE.set(NEXT.fetch_add(1, Ordering::Relaxed));
            let thread = std::thread::current();
            self.name_lane(EXECUTORS, LANE.get(), thread.name().unwrap_or("thread"));
        }
        LANE.get()
    }

    fn name_lane(&self, group: u32, lane: u64, name: &str) {
        let name = quoted(name);
        self.put(&format!(r#"{{"ph":"M","pid":{group},"tid":{lane},"name":"thread_name","args":{{"name":{name}}}}}"#));
    }

    /// Returns a free lane for a frame in this element. If the lane is new, writes its name to the trace.
    fn frame_lane(&self, element: &str) -> u64 {
        let (lane, place) = self.0.frame_lanes.lock().unwrap().take(element);
        if let Some(place) = place {
            self.name_lane(FRAMES, lane, &format!("{element}, frame {place}"));
        }
        lane
    }

    fn put_slice(&self, group: u32, lane: u64, name: &str, begin: Instant, duration: Duration, args: &str) {
        let (begin_us, duration_us, name) = (self.microseconds(begin), duration.as_nanos() as f64 / 1e3, quoted(name));
        self.put(&format!(
            r#"{{"ph":"X","pid":{group},"tid":{lane},"name":{name},"ts":{begin_us:.3},"dur":{duration_us:.3},"args":{{{args}}}}}"#
        ));
    }

    fn put_frame(&self, begin: Instant, fields: &Fields) {
        self.put_slice(FRAMES, fields.lane, &fields.frame_name(), begin, begin.elapsed(), &fields.frame_args());
    }

    /// Draws an arrow from the frame in this lane to the run that begins now.
    fn put_arrow(&self, lane: u64, request: u64, now: Instant) {
        let (arrow, at_us) = (self.0.n_arrows.fetch_add(1, Ordering::Relaxed), self.microseconds(now));
        for (phase, group, lane) in [(r#""ph":"s""#, FRAMES, lane), (r#""ph":"f","bp":"e""#, REQUESTS, request)] {
            self.put(&format!(
                r#"{{{phase},"id":{arrow},"cat":"frame","name":"run of the frame","pid":{group},"tid":{lane},"ts":{at_us:.3}}}"#
            ));
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for Trace {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let Some(span) = context.span(id) else { return };
        let begin = Instant::now();
        match span.name() {
            "frame" => fields.lane = self.frame_lane(fields.element.as_deref().unwrap_or_default()),
            // A run for a frame starts inside the span of the frame, so the current span is that of the frame.
            "run" => {
                let frame = context.lookup_current().filter(|current| current.name() == "frame");
                let lane = frame.and_then(|frame| frame.extensions().get::<(Instant, Fields)>().map(|(_, frame)| frame.lane));
                if let Some(lane) = lane {
                    self.put_arrow(lane, fields.request, begin);
                }
            }
            _ => {}
        }
        span.extensions_mut().insert((begin, fields));
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some((begin, fields)) = span.extensions_mut().get_mut::<(Instant, Fields)>()
        {
            values.record(fields);
            // Write a frame to the trace when the frame leaves. The span of the frame may stay open longer, even after the end of the
            // trace.
            if span.name() == "frame" && fields.outcome.is_some() && !std::mem::replace(&mut fields.is_shown, true) {
                self.put_frame(*begin, fields);
            }
        }
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let extensions = span.extensions();
        let Some((begin, fields)) = extensions.get::<(Instant, Fields)>() else { return };
        let duration = begin.elapsed();
        match (span.name(), &fields.step) {
            ("frame", _) => {
                if !fields.is_shown {
                    self.put_frame(*begin, fields);
                }
                self.0.frame_lanes.lock().unwrap().give_back(fields.lane);
            }
            // A run moves between threads, so it has no thread lane.
            ("run", _) => self.put_slice(REQUESTS, fields.request, "run", *begin, duration, &fields.run_args()),
            (name, Some(step)) => {
                let args = fields.run_args();
                self.put_slice(EXECUTORS, self.lane(), step, *begin, duration, &args);
                // Write no slice for the callback to the request's lane: the next run may begin inside the callback, and slices of one lane
                // must not overlap.
                if name != "callback" {
                    self.put_slice(REQUESTS, fields.request, step, *begin, duration, &args);
                }
            }
            // A span without the field `step` is a phase of a frame.
            (part, None) => {
                let Some(frame) = span.parent().filter(|parent| parent.name() == "frame") else { return };
                if let Some((_, frame)) = frame.extensions().get::<(Instant, Fields)>() {
                    self.put_slice(FRAMES, frame.lane, part, *begin, duration, &frame.part_args());
                }
            }
        }
    }

    /// Names the lane of a new request. The runtime sends an event with the model and the device of each new request.
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let Some(model) = &fields.model {
            let model = Path::new(model).file_stem().map_or(model.into(), |stem| stem.to_string_lossy());
            let name = fields.name.as_deref().map(|name| format!(" `{name}`")).unwrap_or_default();
            self.name_lane(REQUESTS, fields.request, &format!("{model}, request {}{name}", fields.request));
        }
    }
}

/// The lanes of frames. Each entry is the name of an element and whether the lane is in use; lanes are numbered from 1. An
/// element has as many lanes as its largest number of simultaneous frames.
#[derive(Default)]
struct FrameLanes(Vec<(String, bool)>);

impl FrameLanes {
    /// Takes a free lane of this element. For a new lane, also returns its number within the element, from 1.
    fn take(&mut self, element: &str) -> (u64, Option<usize>) {
        let free = self.0.iter().position(|(of, taken)| of == element && !taken);
        let place = free.is_none().then(|| self.0.iter().filter(|(of, _)| of == element).count() + 1);
        let lane = free.unwrap_or_else(|| {
            self.0.push((element.to_owned(), false));
            self.0.len() - 1
        });
        self.0[lane].1 = true;
        (lane as u64 + 1, place)
    }

    fn give_back(&mut self, lane: u64) {
        if let Some((_, taken)) = self.0.get_mut(lane as usize - 1) {
            *taken = false;
        }
    }
}

/// Fields of spans and events of the runtime and of the elements.
#[derive(Default)]
struct Fields {
    request: u64,
    run: u64,
    frame: Option<u64>,
    /// Name of the step; `None` for the span of a complete run.
    step: Option<String>,
    model: Option<String>,
    /// The user's name for the request.
    name: Option<String>,
    /// Name of the element in which a frame is.
    element: Option<String>,
    /// Outcome of a run or of a frame. If a frame has left without an outcome, it was dropped.
    outcome: Option<String>,
    /// Reason of a skipped or dropped frame.
    reason: Option<String>,
    /// Whether the frame is already in the trace.
    is_shown: bool,
    /// Lane of a frame.
    lane: u64,
}

impl Fields {
    fn run_args(&self) -> String {
        let mut args = format!(r#""request":{},"run":{}"#, self.request, self.run);
        if let Some(frame) = self.frame {
            // Writing to a string cannot fail.
            let _written = write!(args, r#","frame":{frame}"#);
        }
        if let Some(outcome) = &self.outcome {
            let _written = write!(args, r#","outcome":{}"#, quoted(outcome));
        }
        args
    }

    fn frame_name(&self) -> String {
        self.frame.map_or("a frame that was not accepted".to_owned(), |frame| format!("frame {frame}"))
    }

    fn frame_args(&self) -> String {
        let outcome = quoted(self.outcome.as_deref().unwrap_or("dropped"));
        let reason = self.reason.as_deref().map(|reason| format!(r#","reason":{}"#, quoted(reason))).unwrap_or_default();
        format!(r#"{},"outcome":{outcome}{reason}"#, self.part_args())
    }

    fn part_args(&self) -> String {
        let frame = self.frame.map_or("null".to_owned(), |frame| frame.to_string());
        format!(r#""element":{},"frame":{frame}"#, quoted(self.element.as_deref().unwrap_or_default()))
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "request" => self.request = value,
            "run" => self.run = value,
            "frame" => self.frame = Some(value),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "step" => self.step = Some(value.to_owned()),
            "model" => self.model = Some(value.to_owned()),
            "name" => self.name = Some(value.to_owned()),
            "element" => self.element = Some(value.to_owned()),
            "outcome" => self.outcome = Some(value.to_owned()),
            "reason" => self.reason = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The output file: a list of events that is complete after every write.
struct Output {
    file: OutputFile,
    /// Position in the file at which the next event is written, over the tail. `None` for a pipe, to which the tail is written
    /// only at the end.
    end: Option<u64>,
    held: Vec<u8>,
    is_first: bool,
    written: Instant,
    state: State,
}

enum State {
    /// Nothing is written yet.
    Held,
    Open,
    Closed,
    /// Writing has failed. After the first error, nothing more is written.
    Failed(io::Error),
}

impl Output {
    fn new(file: OutputFile) -> Self {
        Self { file, end: None, held: b"[\n".to_vec(), is_first: true, written: Instant::now(), state: State::Held }
    }

    fn open(&mut self) {
        if !matches!(self.state, State::Held) {
            return;
        }
        self.end = self.file.is_seekable().then_some(0);
        self.state = State::Open;
        self.flush(false);
    }

    fn put(&mut self, event: &str) {
        match self.state {
            State::Open => {}
            State::Held if self.held.len() < START_BYTES => {}
            State::Held | State::Closed | State::Failed(_) => return,
        }
        if !std::mem::take(&mut self.is_first) {
            self.held.extend_from_slice(b",\n");
        }
        self.held.extend_from_slice(event.as_bytes());
        let is_open = matches!(self.state, State::Open);
        if is_open && (self.held.len() >= BUFFER_BYTES || self.written.elapsed() >= MAX_DELAY) {
            self.flush(false);
        }
    }

    fn close(&mut self) -> io::Result<()> {
        self.open();
        self.flush(true);
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Failed(error) => Err(error),
            State::Held | State::Open | State::Closed => Ok(()),
        }
    }

    fn flush(&mut self, last: bool) {
        if matches!(self.state, State::Open)
            && let Err(error) = self.write(last)
        {
            self.state = State::Failed(error);
        }
        self.held.clear();
        self.written = Instant::now();
    }

    fn write(&mut self, last: bool) -> io::Result<()> {
        let n_bytes = self.held.len() as u64;
        if let Some(end) = &mut self.end {
            self.file.seek(SeekFrom::Start(*end))?;
            *end += n_bytes;
        }
        if last || self.end.is_some() {
            self.held.extend_from_slice(TAIL);
        }
        self.file.write_all(&self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_complete_after_every_write() {
        let path = std::env::temp_dir().join(format!("roiflow-trace-{}.json", std::process::id()));
        std::fs::write(&path, "of an earlier run, and longer than the new content").unwrap();
        let mut output = Output::new(OutputFile::new(&path, IfExists::Replace, Deadline::default()));
        output.open();
        for n_events in 1..=200_usize {
            output.put(&format!(r#"{{"ph":"X","name":"{}"}}"#, "x".repeat(n_events * 7 % 400)));
            output.flush(n_events == 200);
            let events: Vec<serde_json::Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!(events.len(), n_events);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn buffer_is_bounded() {
        let mut output = Output::new(OutputFile::new("/dev/null", IfExists::Replace, Deadline::default()));
        output.open();
        for _ in 0..100_000 {
            output.put(r#"{"ph":"X","name":"step"}"#);
            assert!(output.held.len() < BUFFER_BYTES + 100);
        }
        assert!(output.close().is_ok());
    }
}
