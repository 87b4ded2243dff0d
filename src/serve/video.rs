//! Live video of a stream: sends the compressed frames of the source to the viewers, or encodes the frames of the stream.
//!
//! The encoder is a separate pipeline, which exists while there are viewers. It never blocks the stream: while the encoder is busy, frames
//! are left out of the video.

use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;
use roiflow_server::video::{Clock, Compressed, Format, Video};

use crate::elements::limited_range::{LimitedRange, encoded};
use crate::pipeline::{CompressedFrame, TappedFrame};

/// Encoders of H.264 with the properties for little delay, in the order of preference.
const ENCODERS: [(&str, &str); 2] = [
    ("x264enc", "tune=zerolatency speed-preset=ultrafast key-int-max=30 bitrate=3000"),
    ("openh264enc", "complexity=low gop-size=30 bitrate=3000000"),
];
/// Widest frame that is encoded. Wider frames are scaled.
const MAX_WIDTH: i64 = 1280;
/// Number of frames that may wait for the encoder.
const MAX_WAITING: u32 = 3;

/// Sends a compressed frame of the source. Returns false if browsers cannot play it.
pub(super) fn pass(frame: &CompressedFrame<'_>, video: &Video) -> bool {
    let send = |bytes: &[u8]| {
        video.compressed(&Compressed {
            bytes,
            format: frame.config().map_or(Format::StartCodes, |config| Format::Lengths { config }),
            size: frame.size(),
            pts_ns: frame.pts_ns,
            dts_ns: frame.dts_ns,
            is_key: frame.is_key,
            is_encoded: false,
            arrived: frame.arrived,
        })
    };
    frame.with_bytes(send).unwrap_or(true)
}

/// The encoder of a stream while there are viewers.
#[derive(Default)]
pub(super) struct Encoders(Mutex<Current>);

#[derive(Default)]
enum Current {
    #[default]
    None,
    /// A thread starts the encoder for frames with these caps.
    Starting(gst::Caps, mpsc::Receiver<Result<Encoder, String>>),
    Running(Encoder),
    /// There is no encoder for frames with these caps.
    Failed(gst::Caps),
}

struct Encoder {
    pipeline: gst::Pipeline,
    source: gst_app::AppSrc,
    caps: gst::Caps,
    clock: Clock,
    /// The conversion of frames with the full range.
    limited: Option<Box<LimitedRange>>,
}

impl Encoders {
    /// Sends the number of a frame to the viewers. Also encodes the frame, if the source has no compressed video that browsers can play.
    pub(super) fn frame(&self, frame: &TappedFrame<'_>, number: u64, video: &Video) {
        let mut current = self.lock();
        if !video.is_wanted() {
            *current = Current::None;
            return;
        }
        if frame.is_passed {
            *current = Current::None;
            frame.pts_ns.into_iter().for_each(|pts_ns| video.passed(pts_ns, number, None));
            return;
        }
        let Some(caps) = frame.buffer().1 else { return };
        // Frames of another size or format need a new encoder.
        if current.caps().is_some_and(|known| known != caps) {
            *current = Current::None;
        }
        if let Current::None = *current {
            let (sender, receiver) = mpsc::channel();
            let (of_thread, video) = (caps.clone(), video.clone());
            let start = move || drop(sender.send(Encoder::start(&of_thread, video)));
            if std::thread::Builder::new().name("roiflow-video".to_owned()).spawn(start).is_ok() {
                *current = Current::Starting(caps.clone(), receiver);
            }
        }
        if let Current::Starting(_, receiver) = &*current {
            match receiver.try_recv() {
                Ok(Ok(encoder)) => *current = Current::Running(encoder),
                Ok(Err(reason)) => {
                    *current = Current::Failed(caps.clone());
                    tracing::warn!("live video: {reason}");
                    video.fail(&reason);
                }
                Err(_) => return,
            }
        }
        if let Current::Running(encoder) = &mut *current
            && !encoder.push(frame, number, video)
        {
            *current = Current::Failed(caps.clone());
            video.fail("the encoder of the video has failed");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    fn caps(&self) -> Option<&gst::Caps> {
        match self {
            Self::None => None,
            Self::Starting(caps, _) | Self::Failed(caps) => Some(caps),
            Self::Running(encoder) => Some(&encoder.caps),
        }
    }
}

impl Encoder {
    fn start(caps: &gst::Caps, video: Video) -> Result<Self, String> {
        let known = ENCODERS.into_iter().find(|(name, _)| gst::ElementFactory::find(name).is_some());
        let Some((name, properties)) = known else {
            return Err("cannot encode video: expected x264enc or openh264enc, got neither. Install gstreamer1.0-plugins-ugly".to_owned());
        };
        // `leaky-type=downstream`: if the queue of the source is full, a new frame replaces the oldest one.
        let line = format!(
            "appsrc name=source format=time max-buffers={MAX_WAITING} max-bytes=0 leaky-type=downstream ! videoconvert ! videoscale add-borders=false \
             ! capsfilter name=size ! {name} {properties} ! h264parse ! video/x-h264,stream-format=avc,alignment=au \
             ! appsink name=sink sync=false"
        );
        let failed = |error: &dyn std::fmt::Display| format!("cannot encode video: {error}");
        let pipeline = gst::parse::launch(&line).map_err(|error| failed(&error))?;
        let pipeline = pipeline.downcast::<gst::Pipeline>().map_err(|_| failed(&"expected a pipeline"))?;
        let element = |name: &str| pipeline.by_name(name).expect("in the line above");
        let size = size(caps);
        element("size").set_property("caps", caps_of(size));
        let source = element("source").downcast::<gst_app::AppSrc>().expect("in the line above");
        let (limited, encoded) = encoded(caps);
        source.set_caps(Some(&encoded));
        let sink = element("sink").downcast::<gst_app::AppSink>().expect("in the line above");
        let receive = move |sink: &gst_app::AppSink| {
            let sample = sink.pull_sample().map_err(|_| gst::FlowError::Eos)?;
            send(&sample, size, &video).ok_or(gst::FlowError::Error)
        };
        sink.set_callbacks(gst_app::AppSinkCallbacks::builder().new_sample(receive).build());
        pipeline.set_state(gst::State::Playing).map_err(|error| failed(&error))?;
        Ok(Self { pipeline, source, caps: caps.clone(), clock: Clock::default(), limited: limited.map(Box::new) })
    }

    /// Adds a frame. Returns false if the encoder has failed.
    fn push(&mut self, frame: &TappedFrame<'_>, number: u64, video: &Video) -> bool {
        let has_failed = self.pipeline.bus().is_some_and(|bus| bus.pop_filtered(&[gst::MessageType::Error]).is_some());
        if has_failed {
            return false;
        }
        let Some(pts_ns) = frame.pts_ns else { return true };
        let arrived = frame.arrived();
        // The memory is shared, not copied.
        let source = frame.buffer().0;
        let copy = match &self.limited {
            Some(limited) => limited.convert(source),
            None => source.copy_region(gst::BufferCopyFlags::MEMORY | gst::BufferCopyFlags::META, ..).ok(),
        };
        let Some(mut frame) = copy else { return true };
        let time = self.clock.time(pts_ns);
        if let Some(frame) = frame.get_mut() {
            frame.set_pts(gst::ClockTime::from_nseconds(time));
        }
        video.passed(time, number, arrived);
        self.source.push_buffer(frame).is_ok()
    }
}

impl Drop for Encoder {
    /// Stops the encoder on a separate thread, because that may block.
    fn drop(&mut self) {
        let pipeline = self.pipeline.clone();
        let stop = move || {
            let _stopped = pipeline.set_state(gst::State::Null);
        };
        if std::thread::Builder::new().name("roiflow-video-end".to_owned()).spawn(stop).is_err() {
            let _stopped = self.pipeline.set_state(gst::State::Null);
        }
    }
}

/// Sends an encoded frame to the viewers.
fn send(sample: &gst::Sample, size: (u16, u16), video: &Video) -> Option<gst::FlowSuccess> {
    let buffer = sample.buffer()?;
    let bytes = buffer.map_readable().ok()?;
    let config = sample.caps()?.structure(0)?.get::<gst::Buffer>("codec_data").ok()?;
    let config = config.map_readable().ok()?;
    // Encoders may add a constant to time stamps, and the same constant to the start of the segment. Running time is free of it.
    let segment = sample.segment()?.downcast_ref::<gst::ClockTime>()?;
    let of = |time: Option<gst::ClockTime>| segment.to_running_time(time).map(gst::ClockTime::nseconds);
    let _is_playable = video.compressed(&Compressed {
        bytes: &bytes,
        format: Format::Lengths { config: &config },
        size,
        pts_ns: of(buffer.pts())?,
        dts_ns: None,
        is_key: !buffer.flags().contains(gst::BufferFlags::DELTA_UNIT),
        is_encoded: true,
        // `Encoder::push` has told when the frame has arrived.
        arrived: None,
    });
    Some(gst::FlowSuccess::Ok)
}

/// Returns width and height of the encoded frames: even numbers, at most [`MAX_WIDTH`] wide, with the aspect ratio of the frames.
fn size(caps: &gst::Caps) -> (u16, u16) {
    let of = |name: &str| caps.structure(0).and_then(|structure| structure.get::<i32>(name).ok()).map_or(2, i64::from).max(2);
    let (width, height) = (of("width"), of("height"));
    let scaled = width.min(MAX_WIDTH);
    let even = |length: i64| u16::try_from(length / 2 * 2).unwrap_or(2).max(2);
    (even(scaled), even(height * scaled / width))
}

fn caps_of((width, height): (u16, u16)) -> gst::Caps {
    let video = gst::Caps::builder("video/x-raw").field("format", "I420");
    video.field("width", i32::from(width)).field("height", i32::from(height)).field("pixel-aspect-ratio", gst::Fraction::new(1, 1)).build()
}
