//! Properties of `roioverlay`, and drawing of a buffer's results.
//!
//! `roiflow_images::overlay` draws the results; `meta` reads the results from the buffer.

use std::sync::{LazyLock, Mutex};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use gst_base::subclass::BaseTransformMode;
use gst_base::subclass::prelude::*;
use gst_video::VideoFrameExt;
use gstreamer as gst;
use gstreamer_base as gst_base;
use gstreamer_video as gst_video;
use roiflow_images::draw::{Canvas, Font, Plane};
use roiflow_images::overlay::{self, Style};

use crate::elements::{buffer, caps, meta};
use crate::frame::{Colorimetry, PixelFormat, Size};

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| gst::DebugCategory::new("roioverlay", gst::DebugColorFlags::empty(), Some("Draws results on the frame")));

/// Settings of the element.
#[derive(Debug, Clone, Copy)]
struct Settings {
    draw: bool,
    style: Style,
}

impl Default for Settings {
    fn default() -> Self {
        Self { draw: true, style: Style::default() }
    }
}

/// State of the element from its first caps until it stops.
struct State {
    info: gst_video::VideoInfo,
    format: PixelFormat,
    colorimetry: Colorimetry,
    /// Buffer reused for all captions.
    caption: String,
    warned_of_lost_rois: bool,
}

/// Instance data of `roioverlay`.
#[derive(Default)]
pub struct RoiOverlay {
    settings: Mutex<Settings>,
    state: Mutex<Option<State>>,
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
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let default = Settings::default();
            vec![
                glib::ParamSpecBoolean::builder("draw")
                    .nick("Draw")
                    .blurb("Draw results; false: frames pass unchanged")
                    .default_value(default.draw)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecBoolean::builder("labels")
                    .nick("Labels")
                    .blurb("Write label and attributes above each box")
                    .default_value(default.style.labels)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecBoolean::builder("confidence")
                    .nick("Confidence")
                    .blurb("Write the detector's confidence after the label")
                    .default_value(default.style.confidence)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecUInt::builder("thickness")
                    .nick("Thickness")
                    .blurb("Line width of boxes in pixels; 0: depends on the frame height, at least 2")
                    .maximum(1000)
                    .default_value(default.style.thickness)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecUInt::builder("font-size")
                    .nick("Font size")
                    .blurb("Height of the text in pixels, 16 to 256, rounded to an available size; 0: depends on the frame size")
                    .maximum(Font::MAX_HEIGHT)
                    .default_value(default.style.font_size)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecUInt::builder("mask-opacity")
                    .nick("Mask opacity")
                    .blurb("Opacity of masks and maps in percent; 0: they are not drawn")
                    .maximum(100)
                    .default_value(default.style.mask_opacity)
                    .mutable_playing()
                    .build(),
            ]
        });
        PROPERTIES.as_ref()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        let mut settings = self.settings.lock().unwrap();
        match pspec.name() {
            "draw" => settings.draw = value.get().expect("GObject checked the type"),
            "labels" => settings.style.labels = value.get().expect("GObject checked the type"),
            "confidence" => settings.style.confidence = value.get().expect("GObject checked the type"),
            "thickness" => settings.style.thickness = value.get().expect("GObject checked the type"),
            "mask-opacity" => settings.style.mask_opacity = value.get().expect("GObject checked the type"),
            "font-size" => settings.style.font_size = value.get().expect("GObject checked the type"),
            name => unreachable!("property {name} is not in the list above"),
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        let settings = *self.settings.lock().unwrap();
        match pspec.name() {
            "draw" => settings.draw.to_value(),
            "labels" => settings.style.labels.to_value(),
            "confidence" => settings.style.confidence.to_value(),
            "thickness" => settings.style.thickness.to_value(),
            "font-size" => settings.style.font_size.to_value(),
            "mask-opacity" => settings.style.mask_opacity.to_value(),
            name => unreachable!("property {name} is not in the list above"),
        }
    }
}

impl GstObjectImpl for RoiOverlay {}

impl ElementImpl for RoiOverlay {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Draw results on the frame",
                "Filter/Effect/Video",
                "Draws boxes, masks, poses, labels and attributes on the frame, in the frame's own format",
                "The roiflow developers",
            )
        });
        Some(&*METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static PAD_TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            let caps = caps::raw_video();
            let template = |name, direction| {
                gst::PadTemplate::new(name, direction, gst::PadPresence::Always, &caps).expect("names and caps of pads are valid")
            };
            vec![template("sink", gst::PadDirection::Sink), template("src", gst::PadDirection::Src)]
        });
        PAD_TEMPLATES.as_ref()
    }
}

impl BaseTransformImpl for RoiOverlay {
    const MODE: BaseTransformMode = BaseTransformMode::AlwaysInPlace;
    const PASSTHROUGH_ON_SAME_CAPS: bool = false;
    const TRANSFORM_IP_ON_PASSTHROUGH: bool = false;

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        *self.state.lock().unwrap() = None;
        Ok(())
    }

    fn set_caps(&self, incaps: &gst::Caps, _outcaps: &gst::Caps) -> Result<(), gst::LoggableError> {
        let info =
            gst_video::VideoInfo::from_caps(incaps).map_err(|_| gst::loggable_error!(CAT, "expected caps of raw video, got {incaps}"))?;
        let format = caps::pixel_format(&info)
            .ok_or_else(|| gst::loggable_error!(CAT, "expected one of the formats of the pad template, got {incaps}"))?;
        let mut state = self.state.lock().unwrap();
        let warned_of_lost_rois = state.as_ref().is_some_and(|state| state.warned_of_lost_rois);
        let colorimetry = caps::colorimetry(&info);
        *state = Some(State { info, format, colorimetry, caption: String::new(), warned_of_lost_rois });
        Ok(())
    }

    fn before_transform(&self, buffer: &gst::BufferRef) {
        // A buffer without results passes unchanged, so that a shared buffer is not copied to become writable.
        let draws = self.settings.lock().unwrap().draw && meta::has_results(buffer);
        self.obj().set_passthrough(!draws);
    }

    fn transform_ip(&self, buffer: &mut gst::BufferRef) -> Result<gst::FlowSuccess, gst::FlowError> {
        let settings = *self.settings.lock().unwrap();
        let outcome = {
            let mut guard = self.state.lock().unwrap();
            draw(guard.as_mut().ok_or(gst::FlowError::NotNegotiated)?, settings, buffer)
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

/// Draws the results of a buffer. If an upstream element has dropped ROI metas, returns once per stream the frame size when the
/// results were attached, and the current frame size.
fn draw(state: &mut State, settings: Settings, buffer: &mut gst::BufferRef) -> Result<Option<(Size, Size)>, gst::ErrorMessage> {
    let State { format, colorimetry, .. } = *state;
    let size = caps::size(&state.info);
    let Some(results) = meta::read_shared(buffer, size) else {
        return Ok(None);
    };
    let lost_from = meta::size_when_attached(buffer)
        .filter(|attached_size| !state.warned_of_lost_rois && *attached_size != size && meta::has_lost_rois(buffer, &results));
    state.warned_of_lost_rois |= lost_from.is_some();

    if !overlay::has_something_to_draw(&results, settings.style) {
        // Return without mapping the buffer, so that a buffer that is too short for its caps passes.
        return Ok(lost_from.map(|attached_size| (attached_size, size)));
    }
    let mut frame = gst_video::VideoFrameRef::from_buffer_ref_writable(buffer, &state.info).map_err(|error| {
        gst::error_msg!(
            gst::ResourceError::Write,
            ("expected a writable {format} frame of {size}, got a buffer that cannot be mapped for writing: {error}")
        )
    })?;
    // A negative stride (bottom-up image) becomes 0, which the canvas refuses.
    let mut strides = [0; 3];
    for (stride, bytes) in strides.iter_mut().zip(frame.plane_stride()) {
        *stride = usize::try_from(*bytes).unwrap_or(0);
    }
    // The video meta may describe more bytes than the memory holds.
    let lengths = [0, 1, 2].map(|plane_idx| if plane_idx < format.n_planes() { buffer::mapped_bytes(&frame, plane_idx) } else { 0 });
    let [a, b, c, _] = frame.planes_data_mut();
    let planes = [(a, 0), (b, 1), (c, 2)].map(|(bytes, plane_idx)| {
        let n_bytes = bytes.len().min(lengths[plane_idx]);
        Plane { bytes: &mut bytes[..n_bytes], row_stride_bytes: strides[plane_idx] }
    });
    let mut canvas = Canvas::new(format, size, colorimetry, planes).ok_or_else(|| {
        gst::error_msg!(gst::StreamError::Format, ("expected rows of a {format} frame of {size}, got strides of {strides:?} bytes"))
    })?;
    overlay::draw_results(&mut canvas, size, &results, settings.style, &mut state.caption);
    gst::trace!(CAT, "drew {} boxes", results.detections.len());
    Ok(lost_from.map(|attached_size| (attached_size, size)))
}
