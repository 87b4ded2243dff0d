//! Removes objects by a rule in a pad probe: elements downstream of the element `filter` do not see small objects.
//!
//! ```text
//! cargo run --release --example probe -- 'videotestsrc num-buffers=3 ! video/x-raw,format=RGB,width=320,height=240 !
//!     roidetect model=faces.onnx name=filter ! roipublish ! fakesink' 80
//! ```
//!
//! The last argument is the smallest height of an object in pixels. The program links roiflow, so it needs no plugin.

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_video as gst_video;
use roiflow::elements::meta;
use roiflow::frame::Size;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [line, min_height] = &*arguments else { return Err("usage: probe PIPELINE MIN_HEIGHT".into()) };
    run(line, min_height.parse()?)
}

/// Runs a pipeline without the objects that are lower than `min_height` pixels.
pub fn run(line: &str, min_height: f32) -> Result<(), Box<dyn std::error::Error>> {
    roiflow::elements::register_static()?;
    let pipeline = gst::parse::launch(line)?.downcast::<gst::Pipeline>().map_err(|_| "expected a pipeline, got one element")?;
    let pad = pipeline.by_name("filter").and_then(|filter| filter.static_pad("src")).ok_or("expected an element named `filter`")?;

    pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        let video = pad.current_caps().and_then(|caps| gst_video::VideoInfo::from_caps(&caps).ok());
        if let (Some(video), Some(buffer)) = (video, info.buffer_mut()) {
            let size = Size::new(video.width(), video.height());
            // With `None`, the buffer would not change.
            meta::edit(buffer.make_mut(), size, |results| {
                results.detections.retain(|object| object.rect.height >= min_height);
                Some(())
            });
        }
        gst::PadProbeReturn::Ok
    });

    pipeline.set_state(gst::State::Playing)?;
    let bus = pipeline.bus().ok_or("a pipeline has a bus")?;
    let message = bus.timed_pop_filtered(gst::ClockTime::NONE, &[gst::MessageType::Eos, gst::MessageType::Error]);
    pipeline.set_state(gst::State::Null)?;
    match message.as_ref().map(|message| message.view()) {
        Some(gst::MessageView::Error(error)) => Err(error.error().to_string().into()),
        _ => Ok(()),
    }
}
