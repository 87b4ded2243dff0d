//! Encodes raw video once, for all clips: a small pipeline with the first installed encoder.

use std::sync::atomic::{AtomicU64, Ordering};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;
use gstreamer_video as gst_video;

use super::clip::text_of;
use super::decoding_time;

/// Maximum number of frames that wait for the encoder. At this number, the stream waits.
const MAX_WAITING: u64 = 8;
/// Maximum time between key frames. A clip begins at a key frame, so it can begin earlier than its pre-roll by up to this time.
const KEY_INTERVAL_SECONDS: i32 = 1;
/// Time step after the previous frame, for a frame whose timestamp is not later than that of the previous frame.
const MIN_STEP_NS: u64 = 1_000_000;
/// Frame rate of streams that report no frame rate.
const DEFAULT_RATE: i32 = 30;

/// A running encoder.
pub(super) struct Encoder {
    pipeline: gst::Pipeline,
    source: gst_app::AppSrc,
    /// Timestamp of the last frame in nanoseconds, plus 1; 0 before the first frame.
    after_last: AtomicU64,
}

impl Encoder {
    /// Starts an encoder for frames with these caps. `on_frame` gets each encoded frame with its caps and its running time in nanoseconds.
    /// `on_end` is called after the last frame.
    ///
    /// # Errors
    /// Returns a description with a remedy if no encoder is installed.
    pub(super) fn start(
        caps: &gst::Caps,
        kbits_per_second: u32,
        mut on_frame: impl FnMut(gst::Buffer, gst::Caps, Option<u64>) + Send + 'static,
        on_end: impl FnMut() + Send + 'static,
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
        let line = format!(
            "appsrc name=source format=time block=true max-buffers={MAX_WAITING} max-bytes=0 ! videoconvert ! {encoder} ! h264parse \
             ! video/x-h264,stream-format=avc,alignment=au ! appsink name=sink sync=false max-buffers={MAX_WAITING}"
        );
        let failed = |error: gst::glib::Error| format!("cannot encode video: {error}");
        let pipeline = gst::parse::launch(&line).map_err(failed)?.downcast::<gst::Pipeline>().map_err(|_| "expected a pipeline")?;
        let source: gst_app::AppSrc = pipeline.by_name("source").and_then(|element| element.downcast().ok()).expect("in the line above");
        let sink: gst_app::AppSink = pipeline.by_name("sink").and_then(|element| element.downcast().ok()).expect("in the line above");
        source.set_caps(Some(caps));
        let new_sample = move |sink: &gst_app::AppSink| {
            let sample = sink.pull_sample().map_err(|_| gst::FlowError::Eos)?;
            if let (Some(buffer), Some(caps)) = (sample.buffer_owned(), sample.caps_owned()) {
                // Use the running time, because the encoder shifts the timestamps and the segment by the same time.
                let segment = sample.segment().and_then(|segment| segment.downcast_ref::<gst::ClockTime>());
                let time = segment.and_then(|segment| decoding_time(segment, &buffer));
                on_frame(buffer, caps, time);
            }
            Ok(gst::FlowSuccess::Ok)
        };
        let mut on_end = on_end;
        sink.set_callbacks(gst_app::AppSinkCallbacks::builder().new_sample(new_sample).eos(move |_| on_end()).build());
        pipeline.set_state(gst::State::Playing).map_err(|_| "cannot encode video: the encoder does not start")?;
        Ok(Self { pipeline, source, after_last: AtomicU64::new(0) })
    }

    /// Encodes a frame. Blocks while too many frames wait. The timestamps are running times.
    ///
    /// # Errors
    /// Returns a description if the encoder has failed.
    pub(super) fn push(&self, mut buffer: gst::Buffer) -> Result<(), String> {
        let after_last = self.after_last.load(Ordering::Relaxed);
        let mut time = buffer.pts().unwrap_or_default().nseconds();
        if time < after_last {
            // Encoders and muxers need increasing timestamps. When a file starts again, two frames can have the same running time.
            time = after_last + MIN_STEP_NS;
            buffer.make_mut().set_pts(gst::ClockTime::from_nseconds(time));
        }
        self.after_last.store(time + 1, Ordering::Relaxed);
        let bus = self.pipeline.bus().expect("a pipeline has a bus");
        if let Some(error) = bus.pop_filtered(&[gst::MessageType::Error]).and_then(|message| text_of(&message)) {
            return Err(format!("the encoder fails: {error}"));
        }
        // `Flushing` and `Eos` are no errors: the element is stopping.
        self.source.push_buffer(buffer).map(|_| ()).or_else(|flow| match flow {
            gst::FlowError::Flushing | gst::FlowError::Eos => Ok(()),
            flow => Err(format!("the encoder refuses a frame ({flow})")),
        })
    }

    /// Encodes the waiting frames. `on_end` is called after the last frame.
    pub(super) fn finish(&self) {
        // Ignore an error: the next push reports it.
        let _ended = self.source.end_of_stream();
    }

    /// Stops without waiting for frames. Ends a blocked [`Encoder::push`].
    pub(super) fn stop(&self) {
        let _stopped = self.pipeline.set_state(gst::State::Null);
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        self.stop();
    }
}
