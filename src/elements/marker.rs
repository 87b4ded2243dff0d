//! The marker meta: shows whether the ROI metas of a buffer are still those that were attached.
//!
//! Some elements, such as videocrop, drop all ROI metas, because they cannot move them with the pixels. A program removes a ROI meta to remove
//! the object. Both leave our results, so a second meta tells the two apart. GStreamer decides by the tags of a meta and by the kind of the
//! transform which elements drop it. The marker has the tags of a ROI meta and follows the same transforms, so an element that drops all
//! ROI metas also drops the marker:
//!
//! | marker | ROI meta of an object | meaning |
//! |---|---|---|
//! | is there | is there | nothing has changed |
//! | is there | is gone | a program has removed the object |
//! | is gone | is gone | an element has dropped all ROI metas |
//!
//! The marker has no content. Programs may remove ROI metas with any function of GStreamer.

use std::sync::LazyLock;

use gst::meta::{CustomMeta, MetaTransform as _, MetaTransformCopy};
use gstreamer as gst;
use gstreamer_video::video_meta::VideoMetaTransformScale;

use super::results_meta;

/// Name of the meta. A copy of the library that behaves differently needs another name.
const NAME: &str = "RoiflowRegions1";
/// The tags of a ROI meta.
const TAGS: [&str; 3] = ["video", "orientation", "size"];
/// The transform with a matrix, of GStreamer 1.28.
const MATRIX: &str = "gst-video-matrix";

/// Adds the marker to a buffer with ROI metas of ours.
pub(super) fn put(buffer: &mut gst::BufferRef) {
    if !is_there(buffer) {
        CustomMeta::add(buffer, NAME).expect("the meta is registered, and nothing refuses it");
    }
}

/// Whether the buffer has the marker.
pub(super) fn is_there(buffer: &gst::BufferRef) -> bool {
    LazyLock::force(&REGISTERED);
    CustomMeta::from_buffer(buffer, NAME).is_ok()
}

/// Registers the meta, unless another copy of the library in the process has registered it.
static REGISTERED: LazyLock<()> = LazyLock::new(|| {
    results_meta::exclude_other_copies(|| {
        if !CustomMeta::is_registered(NAME) {
            CustomMeta::register_with_transform(NAME, &TAGS, |to, _, _, kind| {
                let keeps = kind == MetaTransformCopy::quark() || kind == VideoMetaTransformScale::quark() || kind.as_str() == MATRIX;
                if keeps {
                    put(to);
                }
                keeps
            });
        }
    });
});

#[cfg(test)]
mod tests {
    use gstreamer_video::VideoRegionOfInterestMeta;

    use super::*;

    #[test]
    fn marker_has_the_tags_of_a_region() {
        gst::init().unwrap();
        let mut buffer = gst::Buffer::new();
        let buffer = buffer.get_mut().unwrap();
        put(buffer);
        put(buffer);
        VideoRegionOfInterestMeta::add(buffer, "face", (0, 0, 4, 4));
        assert_eq!(buffer.iter_meta::<gst::Meta>().count(), 2, "one marker");
        let tags = |meta: &gst::MetaRef<'_, gst::Meta>| meta.tags().iter().map(|tag| tag.to_string()).collect::<Vec<_>>();
        assert!(buffer.iter_meta::<gst::Meta>().all(|meta| tags(&meta) == TAGS));
    }
}
