//! Runs a pipeline for an application: the application pushes frames and iterates over frames with results.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crossbeam_channel::{Receiver, bounded, select};
use gst::prelude::*;
use gst_video::VideoFrameExt;
use gstreamer as gst;
use gstreamer_app as gst_app;
use gstreamer_video as gst_video;

use super::plan::{SINK, SOURCE};
use super::session::NewSession;
use super::{Error, Event, Events, Input, Outputs, PipelineHandle, Plan, Result, Spec};
use crate::elements::{caps, meta};
use crate::frame::{Frame, FrameResults, Size};
use crate::stages::Snapshot;

/// A running pipeline that receives frames from the application and returns results to it. Dropping the stream ends the pipeline.
///
/// ```no_run
/// # use std::path::Path;
/// # use roiflow::{frame::{Frame, PixelFormat, Size}, pipeline::{Spec, Stream}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let spec = Spec::read(Path::new("pipelines/faces.toml"))?;
/// let stream = Stream::open(&spec, &[])?;
/// let sender = stream.sender();
/// std::thread::spawn(move || {
///     let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(640, 480), &vec![0; 640 * 480 * 3])?;
///     sender.push(&frame, Some(std::time::Duration::ZERO))?;
///     sender.end()?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// });
/// for frame in stream {
///     println!("{:?}", frame?.results.detections);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Stream {
    sink: gst_app::AppSink,
    events: Events,
    /// Receives a message when there is a frame, and when the last sender is dropped.
    wake: Receiver<()>,
    entrance: Arc<Entrance>,
    senders: Mutex<Weak<Token>>,
    phase: Phase,
    /// Whether the stream ended because all senders were dropped.
    is_abandoned: bool,
    /// Stops the pipeline when the stream is dropped.
    _handle: PipelineHandle,
}

/// State of a stream for the iterator of the application.
#[derive(Debug)]
enum Phase {
    Running,
    Ended(Result<()>),
    /// The iterator has returned the final outcome.
    Done,
}

/// Pushes the application's frames into a stream. A sender is cheap to clone.
///
/// Call [`Sender::end`] after the last frame. If all senders are dropped while the stream waits for frames, the stream ends with an
/// error.
#[derive(Debug, Clone)]
pub struct Sender(Arc<Token>);

/// The input of a pipeline, which a stream and its senders share.
#[derive(Debug)]
struct Entrance {
    source: gst_app::AppSrc,
    /// Whether `Sender::end` was called or all senders were dropped.
    is_closed: AtomicBool,
    wake: crossbeam_channel::Sender<()>,
}

/// A value that all senders share. It exists while at least one sender exists.
#[derive(Debug)]
struct Token(Arc<Entrance>);

impl Drop for Token {
    fn drop(&mut self) {
        // Sending may fail: a full channel already wakes up the stream, and a disconnected channel means that the stream was dropped.
        let _sent = self.0.wake.try_send(());
    }
}

/// A frame with its results.
#[derive(Debug)]
pub struct ResultFrame {
    /// Results of the frame.
    pub results: FrameResults,
    /// Timestamp of the frame.
    pub pts: Option<std::time::Duration>,
    /// The media buffer with the pixels as they leave the pipeline.
    pub sample: gst::Sample,
}

impl Stream {
    /// Builds and starts the pipeline of a description. The application is the source and the sink of the pipeline.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::resolve`] and [`PipelineHandle::add`], and errors of elements that fail to start.
    pub fn open(spec: &Spec, set: &[(String, String)]) -> Result<Self> {
        let outputs = Outputs { application: true, ..Outputs::default() };
        let plan = Plan::resolve(spec, set, Input::Application, outputs)?;
        let snapshot = Snapshot::default();
        let session = NewSession::build(&plan, 0, &snapshot)?;
        let end = |name: &str| {
            session.pipeline().by_name(name).ok_or_else(|| {
                Error::usage(format!("the graph of `{}` has no element `{name}`: expected {{source}} and {{video}}", plan.name))
            })
        };
        let source = end(SOURCE)?
            .downcast::<gst_app::AppSrc>()
            .map_err(|_| Error::usage("expected an appsrc at {source} in the graph, got another element"))?;
        let sink = end(SINK)?
            .downcast::<gst_app::AppSink>()
            .map_err(|_| Error::usage("expected an appsink at {video} in the graph, got another element"))?;
        let (wake_stream, wake) = bounded(1);
        let of_sink = wake_stream.clone();
        let new_sample = move |_: &gst_app::AppSink| {
            let _sent = of_sink.try_send(());
            Ok(gst::FlowSuccess::Ok)
        };
        sink.set_callbacks(gst_app::AppSinkCallbacks::builder().new_sample(new_sample).build());
        let entrance = Arc::new(Entrance { source, is_closed: AtomicBool::new(false), wake: wake_stream });
        let (handle, mut events) = PipelineHandle::new()?;
        handle.start(session, &plan, snapshot);
        // Wait until the pipeline has started. If an element fails to start, return its error.
        for started in events.by_ref() {
            match started.event {
                Event::Started => break,
                Event::Ended(ended) => {
                    ended?;
                    return Err(Error::failed("the pipeline ended before it had started"));
                }
                _ => {}
            }
        }
        let (senders, phase) = (Mutex::default(), Phase::Running);
        Ok(Self { sink, events, wake, entrance, senders, phase, is_abandoned: false, _handle: handle })
    }

    /// Returns a sender of frames. The sender may be used on another thread, and blocks while the pipeline is full. Keep a sender until you
    /// have called [`Sender::end`].
    pub fn sender(&self) -> Sender {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        let token = senders.upgrade().unwrap_or_else(|| Arc::new(Token(self.entrance.clone())));
        *senders = Arc::downgrade(&token);
        Sender(token)
    }

    /// Ends the stream if it has no sender and its input was not ended. No sender can be created during this call, because the call
    /// borrows the stream mutably.
    fn end_if_abandoned(&mut self) {
        let has_sender = self.senders.get_mut().unwrap_or_else(PoisonError::into_inner).strong_count() > 0;
        if !has_sender && !self.entrance.is_closed.swap(true, Ordering::AcqRel) {
            self.is_abandoned = true;
            // Ending the stream fails only if the pipeline has already ended.
            let _ended = self.entrance.source.end_of_stream();
        }
    }
}

impl Iterator for Stream {
    type Item = Result<ResultFrame>;

    /// Returns the next frame. Returns an error after the last frame if all senders were dropped without [`Sender::end`]. If an element
    /// fails, frames that the application has not read yet are discarded.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(sample) = self.sink.try_pull_sample(gst::ClockTime::ZERO) {
                return Some(result_frame(sample));
            }
            match std::mem::replace(&mut self.phase, Phase::Done) {
                Phase::Running => self.phase = Phase::Running,
                Phase::Ended(Ok(())) if self.is_abandoned => {
                    return Some(Err(Error::failed(
                        "the stream failed: expected Sender::end after the last frame, but all senders were dropped. Keep a sender until its `end`",
                    )));
                }
                Phase::Ended(ended) => return ended.err().map(Err),
                Phase::Done => return None,
            }
            self.end_if_abandoned();
            select! {
                recv(self.wake) -> _ => {}
                recv(self.events.receiver()) -> event => match event.map(|event| event.event) {
                    Ok(Event::Ended(ended)) => self.phase = Phase::Ended(ended.map(drop)),
                    Ok(_) => {}
                    Err(_) => self.phase = Phase::Ended(Err(Error::failed("internal error: the stream ended without an event"))),
                },
            }
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl Sender {
    /// Pushes a frame, which is copied once into the pipeline's memory. The next frame may have another size or format.
    ///
    /// # Errors
    /// Returns an error if the pipeline has ended.
    pub fn push(&self, frame: &Frame, pts: Option<std::time::Duration>) -> Result<()> {
        let size = frame.size();
        let caps = raw_caps(frame.format().name(), size.width, size.height, gst::Fraction::new(0, 1));
        let source = &self.0.0.source;
        if source.caps().as_ref() != Some(&caps) {
            source.set_caps(Some(&caps));
        }
        let mut buffer = buffer_of(frame, &caps)?;
        buffer.make_mut().set_pts(pts.map(|pts| gst::ClockTime::from_nseconds(pts.as_nanos() as u64)));
        source.push_buffer(buffer).map(drop).map_err(|error| Error::failed(format!("the pipeline accepts no more frames: {error:?}")))
    }

    /// Ends the input. The results of earlier frames are still delivered.
    ///
    /// # Errors
    /// Returns an error if the pipeline has ended.
    pub fn end(&self) -> Result<()> {
        self.0.0.is_closed.store(true, Ordering::Release);
        self.0.0.source.end_of_stream().map(drop).map_err(|error| Error::failed(format!("the pipeline has ended: {error:?}")))
    }
}

fn result_frame(sample: gst::Sample) -> Result<ResultFrame> {
    let buffer = sample.buffer().ok_or_else(|| Error::failed("cannot read a result: the pipeline delivered a sample without a buffer"))?;
    let size = sample.caps().and_then(caps::size_in_caps).unwrap_or(Size::new(0, 0));
    let results = meta::read(buffer, size).unwrap_or_default();
    let pts = buffer.pts().map(|pts| std::time::Duration::from_nanos(pts.nseconds()));
    Ok(ResultFrame { results, pts, sample })
}

/// Returns the caps of raw video; a frame rate of 0 means unknown.
pub(super) fn raw_caps(format: &str, width: u32, height: u32, framerate: gst::Fraction) -> gst::Caps {
    gst::Caps::builder("video/x-raw")
        .field("format", format)
        .field("width", width as i32)
        .field("height", height as i32)
        .field("framerate", framerate)
        .build()
}

/// Copies packed rows to a buffer with the row padding that GStreamer expects.
pub(super) fn packed_buffer(bytes: &[u8], row_bytes: usize, n_rows: usize) -> Result<gst::Buffer> {
    let stride = row_bytes.next_multiple_of(4);
    let mut buffer =
        gst::Buffer::with_size(stride * n_rows).map_err(|_| Error::failed("cannot create a buffer for a frame: no memory is left"))?;
    let writable = buffer.get_mut().expect("a new buffer is writable");
    let mut map = writable.map_writable().map_err(|_| Error::failed("cannot map the new buffer of a frame"))?;
    for (target, row) in map.chunks_mut(stride).zip(bytes.chunks(row_bytes)) {
        target[..row.len()].copy_from_slice(row);
    }
    drop(map);
    Ok(buffer)
}

fn buffer_of(frame: &Frame, caps: &gst::Caps) -> Result<gst::Buffer> {
    let failed = |what: &str| Error::failed(format!("cannot create a buffer for a {} {} frame: {what}", frame.size(), frame.format()));
    let info = gst_video::VideoInfo::from_caps(caps).map_err(|_| failed("GStreamer refuses the caps"))?;
    let mut buffer = gst::Buffer::with_size(info.size()).map_err(|_| failed("no memory is left"))?;
    {
        let writable = buffer.get_mut().expect("a new buffer is writable");
        let mut target =
            gst_video::VideoFrameRef::from_buffer_ref_writable(writable, &info).map_err(|_| failed("the buffer can't be mapped"))?;
        for (plane_idx, plane) in frame.planes().enumerate() {
            let stride = target.plane_stride()[plane_idx] as usize;
            let bytes = plane.bytes().map_err(|error| failed(&error.to_string()))?;
            let (shape, strides) = (bytes.layout().shape(), bytes.layout().stride_bytes());
            let row_bytes = shape[1] * strides[1];
            let data = target.plane_data_mut(plane_idx as u32).map_err(|_| failed("the buffer has too few planes"))?;
            for (row, line) in bytes.extent().chunks(strides[0]).zip(data.chunks_mut(stride)) {
                let n_bytes = row_bytes.min(row.len()).min(line.len());
                line[..n_bytes].copy_from_slice(&row[..n_bytes]);
            }
        }
    }
    Ok(buffer)
}
