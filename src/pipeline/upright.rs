//! Rotates the frames of a file whose metadata declares a rotation. Phones record such files.
//!
//! Nothing is added to pipelines of other files, so their frames pass without a copy.

use std::sync::{Mutex, PoisonError};

use gst::prelude::*;
use gst_video::VideoOrientationMethod;
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::plan::ENTRY;

/// Name of the inserted element. From then on, the compressed frames of the source no longer show what the pipeline shows.
pub(super) const NAME: &str = "roiflow-upright";

/// Watches the tags after the decoder, and inserts a `videoflip` if a tag declares an orientation.
pub(super) fn keep(pipeline: &gst::Pipeline) {
    let Some(pad) = pipeline.by_name(ENTRY).and_then(|entry| entry.static_pad("src")) else { return };
    let pipeline = pipeline.downgrade();
    let flip: Mutex<Option<gst::Element>> = Mutex::default();
    pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |pad, info| {
        let Some(gst::PadProbeData::Event(event)) = &info.data else { return gst::PadProbeReturn::Ok };
        let gst::EventView::Tag(tag) = event.view() else { return gst::PadProbeReturn::Ok };
        let Some(method) = VideoOrientationMethod::from_tag(tag.tag()) else { return gst::PadProbeReturn::Ok };
        let mut flip = flip.lock().unwrap_or_else(PoisonError::into_inner);
        match &*flip {
            Some(flip) => flip.set_property("video-direction", method),
            None if method == VideoOrientationMethod::Identity => return gst::PadProbeReturn::Ok,
            None => {
                *flip = pipeline.upgrade().and_then(|pipeline| insert(&pipeline, pad, method));
                if flip.is_none() {
                    return gst::PadProbeReturn::Ok;
                }
                tracing::info!("frames are rotated as the orientation tag of the file says: {method:?}");
            }
        }
        drop(flip);
        // Remove the orientation tag. Otherwise a player of the output would rotate the frames again.
        let mut tags = tag.tag_owned();
        tags.make_mut().remove::<gst::tags::ImageOrientation>();
        info.data = Some(gst::PadProbeData::Event(gst::event::Tag::new(tags)));
        gst::PadProbeReturn::Ok
    });
}

/// Inserts a `videoflip` after the pad. Called on the streaming thread between two buffers, so no frame is being pushed through
/// the pad.
fn insert(pipeline: &gst::Pipeline, pad: &gst::Pad, method: VideoOrientationMethod) -> Option<gst::Element> {
    let next = pad.peer()?;
    let flip = gst::ElementFactory::make("videoflip").name(NAME).property("video-direction", method).build();
    let flip = flip.inspect_err(|error| tracing::warn!("frames are not rotated to their orientation: {error}")).ok()?;
    pipeline.add(&flip).ok()?;
    let (sink, src) = (flip.static_pad("sink")?, flip.static_pad("src")?);
    let _unlinked = pad.unlink(&next);
    let linked = src.link(&next).and_then(|_| pad.link(&sink));
    if let Err(error) =
        linked.map_err(|error| error.to_string()).and_then(|_| flip.sync_state_with_parent().map_err(|error| error.to_string()))
    {
        tracing::warn!("frames are not rotated to their orientation: {error}");
    }
    Some(flip)
}
