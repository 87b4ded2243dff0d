//! Properties of `roioverlay`, and drawing of a buffer's results.
//!
//! Decides the captions and their positions. `draw` draws pixels; `meta` transports results.

use std::fmt::Write;
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

use super::draw::{Area, Canvas, Font, PALETTE, Plane, text_color};
use crate::elements::{buffer, caps, meta};
use crate::frame::{Classification, Colorimetry, Detection, FrameResults, Outcome, PixelFormat, Rect, ScoredLabel, Size};

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| gst::DebugCategory::new("roioverlay", gst::DebugColorFlags::empty(), Some("Draws results on the frame")));

/// Settings of the element.
#[derive(Debug, Clone, Copy)]
struct Settings {
    draw: bool,
    labels: bool,
    confidence: bool,
    thickness: u32,
    font_size: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { draw: true, labels: true, confidence: true, thickness: 0, font_size: 0 }
    }
}

/// State of the element between caps and stop.
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
    /// Two copies of the library may be in one process.
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
                    .default_value(default.labels)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecBoolean::builder("confidence")
                    .nick("Confidence")
                    .blurb("Write the detector's confidence after the label")
                    .default_value(default.confidence)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecUInt::builder("thickness")
                    .nick("Thickness")
                    .blurb("Line width of boxes in pixels; 0: by frame height, at least 2")
                    .maximum(1000)
                    .default_value(default.thickness)
                    .mutable_playing()
                    .build(),
                glib::ParamSpecUInt::builder("font-size")
                    .nick("Font size")
                    .blurb("Height of the text in pixels, 16 to 256, rounded to a size that exists; 0: by frame size")
                    .maximum(Font::MAX_HEIGHT)
                    .default_value(default.font_size)
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
            "labels" => settings.labels = value.get().expect("GObject checked the type"),
            "confidence" => settings.confidence = value.get().expect("GObject checked the type"),
            "thickness" => settings.thickness = value.get().expect("GObject checked the type"),
            "font-size" => settings.font_size = value.get().expect("GObject checked the type"),
            name => unreachable!("property {name} is not in the list above"),
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        let settings = *self.settings.lock().unwrap();
        match pspec.name() {
            "draw" => settings.draw.to_value(),
            "labels" => settings.labels.to_value(),
            "confidence" => settings.confidence.to_value(),
            "thickness" => settings.thickness.to_value(),
            "font-size" => settings.font_size.to_value(),
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
                "Draws boxes, labels and attributes on the frame, in the frame's own format",
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
                     (videocrop does), so boxes may be off; crop before the detector, or draw before cropping")
            );
        }
        Ok(gst::FlowSuccess::Ok)
    }
}

/// Draws the results of a buffer. Returns, once per stream, the frame sizes between which ROI metas were lost.
fn draw(state: &mut State, settings: Settings, buffer: &mut gst::BufferRef) -> Result<Option<(Size, Size)>, gst::ErrorMessage> {
    let State { format, colorimetry, .. } = *state;
    let size = caps::size(&state.info);
    let Some(results) = meta::read_shared(buffer, size) else {
        return Ok(None);
    };
    let lost_from = meta::size_when_attached(buffer)
        .filter(|attached_size| !state.warned_of_lost_rois && *attached_size != size && meta::has_lost_rois(buffer, &results));
    state.warned_of_lost_rois |= lost_from.is_some();

    if results.detections.is_empty()
        && !(settings.labels && results.classifications.iter().any(|classification| is_drawable(&classification.outcome)))
    {
        // Without mapping the buffer, so that a buffer that is too short for its caps passes.
        return Ok(lost_from.map(|attached_size| (attached_size, size)));
    }
    let mut frame = gst_video::VideoFrameRef::from_buffer_ref_writable(buffer, &state.info).map_err(|error| {
        gst::error_msg!(
            gst::ResourceError::Write,
            ("expected a {format} frame of {size} that is writable, got a buffer that is not: {error}")
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
    draw_results(&mut canvas, size, &results, settings, &mut state.caption);
    gst::trace!(CAT, "drew {} boxes", results.detections.len());
    Ok(lost_from.map(|attached_size| (attached_size, size)))
}

/// Draws boxes and keypoints first, then captions, so that no line crosses a text. Results of the whole frame are in its top-left corner.
fn draw_results(canvas: &mut Canvas, size: Size, results: &FrameResults, settings: Settings, caption: &mut String) {
    let thickness = match settings.thickness {
        0 => ((size.height + 180) / 360).max(2),
        thickness => thickness,
    };
    let font = match settings.font_size {
        0 => Font::for_frame(size),
        height => Font::nearest(height),
    };
    let color = |detection: &Detection| PALETTE[detection.label_id as usize % PALETTE.len()];
    let boxes = || results.detections.iter().filter_map(|detection| Some((detection, Area::of(&detection.rect)?)));
    for (detection, area) in boxes() {
        let ink = canvas.ink(color(detection));
        canvas.outline(area, thickness, ink);
        // Keypoints are twice as wide as lines.
        let radius = thickness as f32;
        for point in &detection.keypoints {
            let dot = Rect { x: point.x - radius, y: point.y - radius, width: 2.0 * radius, height: 2.0 * radius };
            if let Some(dot) = Area::of(&dot) {
                canvas.fill_rect(dot, ink);
            }
        }
    }
    if !settings.labels {
        return;
    }
    let mut captions: Vec<Area> = Vec::new();
    for (detection, area) in boxes().filter(|(detection, _)| detection.rect.to_pixels(size).is_some()) {
        write_caption(caption, detection, settings.confidence);
        let (background, foreground) = (canvas.ink(color(detection)), canvas.ink(text_color(color(detection))));
        let place = free_area(area, size, (font.width(caption), font.height()), &captions);
        if captions.len() < MAX_COMPARED {
            captions.push(place);
        }
        canvas.fill_rect(place, background);
        canvas.text(place.x_min, place.y_min, caption, font, foreground);
    }
    caption.clear();
    write_classifications(caption, "", &results.classifications);
    if !caption.is_empty() {
        let (background, foreground) = (canvas.ink(PALETTE[0]), canvas.ink(text_color(PALETTE[0])));
        canvas.fill_rect(Area::at(0, 0, font.width(caption), font.height()), background);
        canvas.text(0, 0, caption, font, foreground);
    }
}

/// Maximum number of captions that are placed without overlap. The time grows with the square of the number, and a frame with more
/// captions is not readable.
const MAX_COMPARED: usize = 200;

/// A place for a caption near its box, where it covers as few pixels of earlier captions as possible.
fn free_area(area: Area, size: Size, (width, height): (i64, i64), taken: &[Area]) -> Area {
    let first = caption_area(area, size, width, height);
    let in_frame = |x: i64, y: i64| {
        let (x_most, y_most) = (i64::from(size.width) - width, i64::from(size.height) - height);
        Area::at(x.min(x_most).max(0), y.min(y_most).max(0), width, height)
    };
    let right = area.x_max.saturating_sub(width);
    let others = [
        in_frame(right, area.y_min.saturating_sub(height)),
        in_frame(area.x_min, area.y_max),
        in_frame(right, area.y_max),
        in_frame(area.x_min, area.y_min),
        in_frame(area.x_min, area.y_max.saturating_sub(height)),
        in_frame(area.x_min, first.y_min.saturating_sub(height)),
        in_frame(area.x_min, area.y_max.saturating_add(height)),
        in_frame(area.x_max, area.y_min),
        in_frame(area.x_min.saturating_sub(width), area.y_min),
    ];
    let covered = |place: &Area| taken.iter().map(|other| place.overlap(other)).sum::<i64>();
    let mut best = (covered(&first), first);
    for place in others {
        if best.0 == 0 {
            break;
        }
        let n_pixels = covered(&place);
        if n_pixels < best.0 {
            best = (n_pixels, place);
        }
    }
    best.1
}

/// Above the box, or at its top inside if there is no space above; moved left if it would leave the frame.
fn caption_area(area: Area, size: Size, width: i64, height: i64) -> Area {
    let x = area.x_min.min(i64::from(size.width) - width).max(0);
    let y = if area.y_min >= height { area.y_min - height } else { area.y_min.max(0) };
    Area::at(x, y, width, height)
}

/// Writes a caption such as `face #12 0.99 · female 31`; `#12` is the track ID.
fn write_caption(caption: &mut String, detection: &Detection, with_confidence: bool) {
    caption.clear();
    // Writing to a string can't fail.
    let _ = match &detection.label {
        Some(label) => caption.write_str(label),
        None => write!(caption, "class {}", detection.label_id),
    };
    if let Some(track) = detection.track {
        let _ = write!(caption, " #{track}");
    }
    if with_confidence {
        let _ = write!(caption, " {:.2}", detection.confidence);
    }
    write_classifications(caption, " · ", &detection.classifications);
}

/// Appends drawable classifications such as `female 31`, after `separator`.
fn write_classifications(caption: &mut String, mut separator: &'static str, classifications: &[Classification]) {
    for Classification { name, outcome, .. } in classifications.iter().filter(|classification| is_drawable(&classification.outcome)) {
        caption.push_str(std::mem::replace(&mut separator, " "));
        let _ = match outcome {
            Outcome::Label { label: Some(label), .. } => caption.write_str(label),
            Outcome::Label { label_id, .. } => write!(caption, "{name} {label_id}"),
            Outcome::Labels(labels) => labels.iter().enumerate().try_for_each(|(label_idx, ScoredLabel { label, label_id, .. })| {
                caption.push_str(if label_idx == 0 { "" } else { "+" });
                match label {
                    Some(label) => caption.write_str(label),
                    None => write!(caption, "{label_id}"),
                }
            }),
            Outcome::Value(value) if value.abs() < 10.0 => write!(caption, "{value:.1}"),
            Outcome::Value(value) => write!(caption, "{value:.0}"),
            Outcome::Text { text, .. } => caption.write_str(text),
            _ => Ok(()),
        };
    }
}

/// Whether the outcome has a text: tensors, geometry and empty label lists have none.
fn is_drawable(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Tensor { .. } | Outcome::Geometry(_)) && !matches!(outcome, Outcome::Labels(labels) if labels.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ObjectId;

    #[test]
    fn caption_has_label_confidence_and_classifications() {
        let outcome = |name: &str, outcome| Classification { name: name.into(), model: "m".into(), outcome };
        let label = |label: Option<&str>| Outcome::Label { label_id: 1, label: label.map(Into::into), confidence: 0.9 };
        let mut detection = Detection {
            id: ObjectId(1),
            track: None,
            track_state: None,
            parent: None,
            rect: Rect::default(),
            keypoints: vec![],
            confidence: 0.987,
            label_id: 7,
            label: Some("face".into()),
            classifications: vec![],
        };
        let mut caption = String::new();
        write_caption(&mut caption, &detection, true);
        assert_eq!(caption, "face 0.99");
        detection.classifications = vec![outcome("gender", label(Some("female"))), outcome("age", Outcome::Value(31.4))];
        write_caption(&mut caption, &detection, true);
        assert_eq!(caption, "face 0.99 · female 31");
        detection.classifications = vec![outcome("color", label(None)), outcome("tilt", Outcome::Value(-0.25))];
        detection.label = None;
        write_caption(&mut caption, &detection, false);
        assert_eq!(caption, "class 7 · color 1 -0.2");
        detection.track = Some(ObjectId(12));
        write_caption(&mut caption, &detection, false);
        assert_eq!(caption, "class 7 #12 · color 1 -0.2");
    }

    #[test]
    fn caption_omits_tensors_and_empty_labels() {
        let classification = |name: &str, outcome| Classification { name: name.into(), model: "m".into(), outcome };
        let vector = classification("identity", Outcome::Tensor { shape: vec![1, 2], data: [0.6, 0.8].into() });
        let labels = |labels: &[(u32, Option<&str>)]| {
            let label = |&(label_id, label): &(u32, Option<&str>)| ScoredLabel { label_id, label: label.map(Into::into), confidence: 0.9 };
            classification("wears", Outcome::Labels(labels.iter().map(label).collect()))
        };
        let age = classification("age", Outcome::Value(31.4));
        let caption_of = |classifications: Vec<Classification>| {
            let mut caption = String::new();
            let detection = Detection {
                id: ObjectId(1),
                track: None,
                track_state: None,
                parent: None,
                rect: Rect::default(),
                keypoints: vec![],
                confidence: 0.9,
                label_id: 0,
                label: Some("person".into()),
                classifications,
            };
            write_caption(&mut caption, &detection, false);
            caption
        };
        assert_eq!(caption_of(vec![vector.clone()]), "person");
        assert_eq!(caption_of(vec![labels(&[])]), "person");
        assert_eq!(caption_of(vec![vector, labels(&[(0, Some("hat")), (4, None)]), age]), "person · hat+4 31");
    }

    #[test]
    fn captions_of_a_crowd_keep_off_each_other() {
        let (size, text) = (Size::new(640, 360), (60, 16));
        let place_all = |boxes: &[Area]| {
            boxes.iter().fold(Vec::new(), |mut taken, area| {
                taken.push(free_area(*area, size, text, &taken));
                taken
            })
        };
        let n_covered =
            |places: &[Area]| places.iter().enumerate().map(|(n, a)| places[..n].iter().map(|b| a.overlap(b)).sum::<i64>()).sum::<i64>();
        // Heads in two rows, nearer to each other than a caption is wide.
        let crowd: Vec<Area> = (0..20).map(|n| Area::at(20 + n % 10 * 40, 100 + n / 10 * 90, 34, 60)).collect();
        let before: Vec<Area> = crowd.iter().map(|area| caption_area(*area, size, text.0, text.1)).collect();
        let after = place_all(&crowd);
        assert!(n_covered(&before) > 5000 && n_covered(&after) == 0, "{} and {} pixels", n_covered(&before), n_covered(&after));
        let same = place_all(&[Area::at(100, 100, 80, 80); 5]);
        assert_eq!((n_covered(&same), same[0]), (0, Area::at(100, 84, 60, 16)), "objects at one place");
        assert!(same.iter().all(|place| place.x_min >= 0 && place.y_min >= 0 && place.x_max <= 640 && place.y_max <= 360));
    }

    #[test]
    fn caption_is_above_box_or_inside_at_top() {
        let size = Size::new(100, 60);
        assert_eq!(caption_area(Area::at(10, 30, 20, 20), size, 40, 16), Area::at(10, 14, 40, 16));
        assert_eq!(caption_area(Area::at(10, 5, 20, 20), size, 40, 16), Area::at(10, 5, 40, 16));
        assert_eq!(caption_area(Area::at(90, -50, 20, 80), size, 40, 16), Area::at(60, 0, 40, 16));
        assert_eq!(caption_area(Area::at(90, 30, 20, 20), size, 400, 16), Area::at(0, 14, 400, 16));
    }
}
