//! Virtual methods of `roioverlay`. `settings` has the properties, and `work` changes the pixels.

use std::sync::{LazyLock, Mutex};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use gst_base::subclass::BaseTransformMode;
use gst_base::subclass::prelude::*;
use gstreamer as gst;
use gstreamer_base as gst_base;
use gstreamer_video as gst_video;
use roiflow_images::font::Typeface;
use roiflow_images::overlay::Painter;

use super::settings::Settings;
use super::work::Work;
use crate::elements::{caps, scene};
use crate::stages::Snapshot;

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| gst::DebugCategory::new("roioverlay", gst::DebugColorFlags::empty(), Some("Draws results on the frame")));

/// Whether the elements downstream combine attached images with the frame.
///
/// Elements such as `glupload` answer an allocation query only after they have got caps. So caps with the feature are sent first, and the query is
/// repeated before the first frame. The caps change again if the answer is no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Agreement {
    /// The answer is known, or the feature is not used.
    #[default]
    Settled,
    /// The current caps have the feature, but the answer is not known.
    Open,
    /// The answer was no after the caps were sent.
    Refused,
}

/// Instance data of `roioverlay`.
#[derive(Default)]
pub struct RoiOverlay {
    settings: Mutex<Settings>,
    /// `Some` while the element is started.
    work: Mutex<Option<Work>>,
    agreement: Mutex<Agreement>,
    /// Files that an earlier element of the stream has read.
    snapshot: Mutex<Option<Snapshot>>,
}

impl RoiOverlay {
    /// Reads the font. A file that the snapshot has is not read again.
    pub(super) fn typeface(&self) -> Result<Typeface, String> {
        let Some(path) = self.settings.lock().unwrap().font.clone() else { return Ok(Typeface::default()) };
        let snapshot = self.snapshot.lock().unwrap().clone();
        let read = || Typeface::with_file(&path);
        snapshot.map_or_else(read, |snapshot| snapshot.once(&path, read)).map_err(|error| format!("font: {error}"))
    }

    pub(super) fn set_snapshot(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap() = Some(snapshot);
    }
}

#[glib::object_subclass]
impl ObjectSubclass for RoiOverlay {
    const NAME: &'static str = "RoiOverlay";
    /// If two copies of the library are in one process, both register this type name. So a name conflict is not an error.
    const ALLOW_NAME_CONFLICT: bool = true;
    type Type = super::RoiOverlay;
    type ParentType = gst_base::BaseTransform;
}

impl ObjectImpl for RoiOverlay {
    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(Settings::properties);
        PROPERTIES.as_ref()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        self.settings.lock().unwrap().set(value, pspec);
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        self.settings.lock().unwrap().get(pspec)
    }
}

impl GstObjectImpl for RoiOverlay {}

impl ElementImpl for RoiOverlay {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Draw results on the frame",
                "Filter/Effect/Video",
                "Draws boxes, masks, poses, labels, attributes, trails and zones on the frame, and blurs or pixelates objects, in the frame's own format",
                "The roiflow developers",
            )
        });
        Some(&*METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static PAD_TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            let caps = caps::raw_video();
            let template = |name, direction, caps: &gst::Caps| {
                gst::PadTemplate::new(name, direction, gst::PadPresence::Always, caps).expect("names and caps of pads are valid")
            };
            let mut of_src = caps.clone();
            of_src.merge(with_composition(&caps));
            vec![template("sink", gst::PadDirection::Sink, &caps), template("src", gst::PadDirection::Src, &of_src)]
        });
        PAD_TEMPLATES.as_ref()
    }
}

impl BaseTransformImpl for RoiOverlay {
    const MODE: BaseTransformMode = BaseTransformMode::AlwaysInPlace;
    const PASSTHROUGH_ON_SAME_CAPS: bool = false;
    const TRANSFORM_IP_ON_PASSTHROUGH: bool = false;

    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let typeface = self.typeface().map_err(|error| gst::error_msg!(gst::ResourceError::Settings, ("{error}")))?;
        *self.work.lock().unwrap() = Some(Work::new(Painter::new(typeface)));
        *self.agreement.lock().unwrap() = Agreement::default();
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        *self.work.lock().unwrap() = None;
        Ok(())
    }

    fn transform_caps(&self, direction: gst::PadDirection, caps: &gst::Caps, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
        let attaches = self.settings.lock().unwrap().attaches;
        let mut transformed = without_composition(caps);
        if direction == gst::PadDirection::Sink && attaches {
            transformed.merge(with_composition(caps));
        }
        Some(filter.map_or_else(|| transformed.clone(), |filter| filter.intersect_with_mode(&transformed, gst::CapsIntersectMode::First)))
    }

    fn fixate_caps(&self, direction: gst::PadDirection, caps: &gst::Caps, othercaps: gst::Caps) -> gst::Caps {
        if direction != gst::PadDirection::Sink {
            return self.parent_fixate_caps(direction, caps, othercaps);
        }
        let attached = with_composition(caps);
        let with = othercaps.intersect(&attached);
        let mut agreement = *self.agreement.lock().unwrap();
        let is_attached = !with.is_empty()
            && match self.downstream_combines(&attached) {
                Some(combines) => {
                    agreement = Agreement::Settled;
                    combines
                }
                None if agreement != Agreement::Refused && self.downstream_names_composition() => {
                    agreement = Agreement::Open;
                    true
                }
                None => false,
            };
        *self.agreement.lock().unwrap() = agreement;
        let chosen = if is_attached { with } else { othercaps.intersect(&without_composition(caps)) };
        // A filter downstream may accept only one of them.
        let chosen = if chosen.is_empty() { othercaps } else { chosen };
        self.parent_fixate_caps(direction, caps, chosen)
    }

    fn transform_size(&self, _direction: gst::PadDirection, _caps: &gst::Caps, size: usize, _othercaps: &gst::Caps) -> Option<usize> {
        Some(size)
    }

    fn set_caps(&self, incaps: &gst::Caps, outcaps: &gst::Caps) -> Result<(), gst::LoggableError> {
        let info = caps::video_info(incaps).map_err(|_| gst::loggable_error!(CAT, "expected caps of raw video, got {incaps}"))?;
        let format = caps::pixel_format(&info)
            .ok_or_else(|| gst::loggable_error!(CAT, "expected one of the formats of the pad template, got {incaps}"))?;
        if let Some(work) = &mut *self.work.lock().unwrap() {
            work.set_format(info, format, has_composition(outcaps));
        }
        Ok(())
    }

    fn sink_event(&self, event: gst::Event) -> bool {
        if let Some(work) = &mut *self.work.lock().unwrap() {
            match event.view() {
                gst::EventView::FlushStop(_) => work.flush(),
                gst::EventView::StreamStart(_) => work.begin_stream(),
                gst::EventView::CustomDownstreamSticky(_) => {
                    if let Some(scene) = scene::read(&event) {
                        work.set_scene(scene);
                    }
                }
                _ => {}
            }
        }
        self.parent_sink_event(event)
    }

    fn before_transform(&self, buffer: &gst::BufferRef) {
        let settings = self.settings.lock().unwrap().clone();
        let may_change = self.work.lock().unwrap().as_ref().is_some_and(|work| work.may_change(&settings, buffer));
        self.obj().set_passthrough(!may_change);
    }

    fn transform_ip(&self, buffer: &mut gst::BufferRef) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.settle_agreement();
        let settings = self.settings.lock().unwrap().clone();
        let segment = self.obj().segment();
        let stream_time = segment.downcast_ref::<gst::ClockTime>().and_then(|segment| segment.to_stream_time(buffer.pts()));
        let outcome = {
            let mut work = self.work.lock().unwrap();
            work.as_mut().ok_or(gst::FlowError::NotNegotiated)?.transform(&settings, buffer, stream_time)
        };
        let lost_from = outcome.map_err(|error| {
            self.post_error_message(error);
            gst::FlowError::Error
        })?;
        if let Some((attached_size, size)) = lost_from {
            gst::element_imp_warning!(
                self,
                gst::StreamError::Format,
                ("the frame changed from {attached_size} to {size} after detection, and an element dropped its regions of interest \
                     (as videocrop does), so boxes may be wrong; crop upstream of the detector, or draw before cropping")
            );
        }
        Ok(gst::FlowSuccess::Ok)
    }
}

impl RoiOverlay {
    /// Whether the elements downstream combine attached images with frames of these caps. `None` if they do not answer.
    fn downstream_combines(&self, caps: &gst::Caps) -> Option<bool> {
        let mut query = gst::query::Allocation::new(Some(caps), false);
        let is_answered = self.obj().src_pad().peer_query(query.query_mut());
        is_answered.then(|| query.find_allocation_meta::<gst_video::VideoOverlayCompositionMeta>().is_some())
    }

    /// Whether the caps of the elements downstream have the feature, so that at least one of these elements knows it. Elements that take any
    /// caps do not count.
    fn downstream_names_composition(&self) -> bool {
        let caps = self.obj().src_pad().peer_query_caps(None);
        !caps.is_any() && caps.iter_with_features().any(|(_, features)| !features.is_any() && features.contains(COMPOSITION))
    }

    /// Asks the elements downstream again, which now have their caps.
    fn settle_agreement(&self) {
        if *self.agreement.lock().unwrap() != Agreement::Open {
            return;
        }
        let caps = self.obj().src_pad().current_caps().filter(has_composition);
        let combines = caps.is_some_and(|caps| self.downstream_combines(&caps) == Some(true));
        *self.agreement.lock().unwrap() = if combines { Agreement::Settled } else { Agreement::Refused };
        if !combines {
            gst::debug!(CAT, imp = self, "downstream has caps of attached images, but does not combine them with frames: painting");
            if let Some(work) = &mut *self.work.lock().unwrap() {
                work.paint();
            }
            self.obj().reconfigure_src();
        }
    }
}

/// The feature of caps whose buffers may have attached images.
const COMPOSITION: &str = "meta:GstVideoOverlayComposition";

fn has_composition(caps: &gst::Caps) -> bool {
    caps.features(0).is_some_and(|features| features.contains(COMPOSITION))
}

/// The same caps, for buffers with attached images.
fn with_composition(caps: &gst::Caps) -> gst::Caps {
    with_features(caps, &gst::CapsFeatures::new(["memory:SystemMemory", COMPOSITION]))
}

/// The same caps, for buffers without attached images.
fn without_composition(caps: &gst::Caps) -> gst::Caps {
    with_features(caps, &gst::CapsFeatures::new(["memory:SystemMemory"]))
}

fn with_features(caps: &gst::Caps, features: &gst::CapsFeatures) -> gst::Caps {
    if caps.is_any() {
        return caps.clone();
    }
    let mut replaced = gst::Caps::new_empty();
    let writable = replaced.make_mut();
    caps.iter().for_each(|structure| {
        writable.append_structure_full(structure.to_owned(), Some(features.clone()));
    });
    replaced.simplify();
    replaced
}
