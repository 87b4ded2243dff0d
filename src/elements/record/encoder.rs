//! Encodes raw video once, for all clips: a small pipeline with the first installed encoder.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;
use gstreamer_video as gst_video;

use super::RunningTimes;
use crate::elements::limited_range::{LimitedRange, encoded};
use crate::elements::private_pipeline::{Increasing, PrivatePipeline, frame_at};

/// Maximum number of frames that wait for the encoder. At this number, the stream waits.
const MAX_WAITING: u64 = 8;
/// Maximum time between key frames. A clip begins at a key frame, so it can begin earlier than its pre-roll by up to this time.
const KEY_INTERVAL_SECONDS: i32 = 1;
/// Frame rate of streams that report no frame rate.
const DEFAULT_RATE: i32 = 30;

/// A running encoder.
pub(super) struct Encoder {
    private: PrivatePipeline,
    times: Mutex<Increasing>,
    /// The conversion of frames with the full range.
    limited: Option<LimitedRange>,
}

impl Encoder {
    /// Starts an encoder for frames with these caps. `on_frame` gets each encoded frame with its caps and its running time in nanoseconds.
    ///
    /// # Errors
    /// Returns a description with a remedy if no encoder is installed.
    pub(super) fn start(
        caps: &gst::Caps,
        kbits_per_second: u32,
        mut on_frame: impl FnMut(gst::Buffer, gst::Caps, Option<u64>) + Send + 'static,
    ) -> Result<Self, String> {
        let rate = gst_video::VideoInfo::from_caps(caps).map_or(0, |info| {
            let rate = info.fps();
            if rate.denom() > 0 { (f64::from(rate.numer()) / f64::from(rate.denom())).round() as i32 } else { 0 }
        });
        let interval = KEY_INTERVAL_SECONDS * if rate > 0 { rate } else { DEFAULT_RATE };
        let encoders = [
            ("x264enc", format!("x264enc tune=zerolatency speed-preset=veryfast bitrate={kbits_per_second} key-int-max={interval}")),
            ("openh264enc", format!("openh264enc complexity=low bitrate={} gop-size={interval}", u64::from(kbits_per_second) * 1000)),
        ];
        let Some((_, encoder)) = encoders.iter().find(|(name, _)| gst::ElementFactory::find(name).is_some()) else {
            return Err("cannot encode video: expected x264enc or openh264enc, got neither; install gstreamer1.0-plugins-ugly, or link \
                        encoded video to the pad `video`"
                .to_owned());
        };
        let (limited, caps) = encoded(caps);
        let line = format!(
            "appsrc name=source ! videoconvert ! video/x-raw,format=I420 ! {encoder} ! h264parse \
             ! video/x-h264,stream-format=avc,alignment=au ! appsink name=sink sync=false max-buffers={MAX_WAITING}"
        );
        let failed = |error: gst::glib::Error| format!("cannot encode video: {error}");
        let pipeline = gst::parse::launch(&line).map_err(failed)?.downcast::<gst::Pipeline>().map_err(|_| "expected a pipeline")?;
        let sink: gst_app::AppSink = pipeline.by_name("sink").and_then(|element| element.downcast().ok()).expect("in the line above");
        let mut times = RunningTimes::default();
        let new_sample = move |sink: &gst_app::AppSink| {
            let sample = sink.pull_sample().map_err(|_| gst::FlowError::Eos)?;
            if let (Some(buffer), Some(caps)) = (sample.buffer_owned(), sample.caps_owned()) {
                // Use the running time, because the encoder shifts the timestamps and the segment by the same time.
                let segment = sample.segment().and_then(|segment| segment.downcast_ref::<gst::ClockTime>());
                let time = segment.and_then(|segment| times.next(segment, &buffer, true));
                on_frame(buffer, caps, time);
            }
            Ok(gst::FlowSuccess::Ok)
        };
        sink.set_callbacks(gst_app::AppSinkCallbacks::builder().new_sample(new_sample).build());
        let private = PrivatePipeline::start(pipeline, &caps, MAX_WAITING, None)
            .map_err(|failure| format!("cannot encode video: {}", failure.text))?;
        Ok(Self { private, times: Mutex::default(), limited })
    }

    /// Encodes a frame. Blocks while too many frames wait.
    ///
    /// # Errors
    /// Returns a description if the encoder has failed.
    pub(super) fn push(&self, buffer: &gst::BufferRef, running_time: gst::ClockTime) -> Result<(), String> {
        let time = self.times.lock().unwrap_or_else(PoisonError::into_inner).next(Some(running_time));
        let limited = self.limited.as_ref().and_then(|limited| limited.convert(buffer));
        let frame = frame_at(limited.as_deref().unwrap_or(buffer), time);
        self.private.push(frame).map_err(|failure| format!("the encoder fails: {}", failure.text))
    }

    /// Encodes the waiting frames, and returns when all frames were passed to `on_frame`, the encoder has failed or was stopped, or
    /// `limit` has passed.
    pub(super) fn finish(&self, limit: Duration) -> Result<(), String> {
        self.private.end();
        self.private.wait_for_end(limit).map_err(|failure| failure.text)
    }

    /// Stops without waiting for frames. Ends a blocked [`Encoder::push`].
    pub(super) fn stop(&self) {
        self.private.stop();
    }
}
