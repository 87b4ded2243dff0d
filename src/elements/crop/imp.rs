//! Properties of `roicrop`; cutting, encoding and storing of images.
//!
//! Images are encoded and written on the streaming thread, once for each track. The line about an image is sent with the next frame, so
//! that it never arrives before the line of the frame from which the image was cut.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use gst_base::subclass::BaseTransformMode;
use gst_base::subclass::prelude::*;
use gstreamer as gst;
use gstreamer_base as gst_base;
use gstreamer_video as gst_video;
use roiflow_images::crop;
use roiflow_vision::Scratch;
use serde::Serialize;

use super::best::{BestCrops, Crop, score};
use crate::elements::regions::ObjectClasses;
use crate::elements::{buffer, caps, meta, records};
use crate::frame::{Detection, FrameResults, PixelRect, TrackState};
use crate::publish::{FileStore, absolute, file_name_part};

static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| gst::DebugCategory::new("roicrop", gst::DebugColorFlags::empty(), Some("Writes images of objects")));

/// Prefix of the names of all files.
const PREFIX: &str = "crop-";

/// Settings of the element.
#[derive(Debug, Clone)]
struct Settings {
    folder: Option<PathBuf>,
    in_message: bool,
    classes: ObjectClasses,
    max_age: u32,
    max_bytes: u64,
    quality: u32,
    stream_id: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            folder: None,
            in_message: false,
            classes: ObjectClasses::default(),
            max_age: 60,
            max_bytes: 1 << 30,
            quality: 90,
            stream_id: None,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    written: u64,
    bytes: u64,
    errors: u64,
}

/// State of the element between start and stop.
struct State {
    settings: Settings,
    store: Option<FileStore>,
    /// Start time of the run in milliseconds since 1970, as part of file names.
    epoch: u64,
    info: Option<gst_video::VideoInfo>,
    best: BestCrops,
    n_frames: u64,
    /// Lines to send with the next frame.
    lines: Vec<gst::Event>,
    scratch: Scratch,
    has_warned: bool,
}

/// Instance data of `roicrop`. Lock order: settings, state, counts. No lock is held during a post or a push.
#[derive(Default)]
pub struct RoiCrop {
    settings: Mutex<Settings>,
    state: Mutex<Option<State>>,
    /// Counters of this run or of the last run.
    counts: Mutex<Counts>,
}

/// The JSON line about an image.
#[derive(Serialize)]
struct Line<'a> {
    frame: u64,
    timestamp: Option<u64>,
    pts: Option<u64>,
    id: Option<i32>,
    region_id: usize,
    roi_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence: Option<f32>,
    label_id: u32,
    x: u32,
    y: u32,
    w: u32,
    h: u32,
    width: u32,
    height: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jpeg: Option<String>,
}

#[glib::object_subclass]
impl ObjectSubclass for RoiCrop {
    const NAME: &'static str = "RoiCrop";
    /// Two copies of the library in one process register this type name, so a name conflict is not an error.
    const ALLOW_NAME_CONFLICT: bool = true;
    type Type = super::RoiCrop;
    type ParentType = gst_base::BaseTransform;
}

impl ObjectImpl for RoiCrop {
    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(|| {
            let default = Settings::default();
            vec![
                glib::ParamSpecString::builder("folder")
                    .nick("Folder")
                    .blurb("Folder of the image files, which is created if it is missing")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecBoolean::builder("in-message")
                    .nick("In message")
                    .blurb("Put the image, encoded in Base64, into the line that roipublish writes; then folder may be unset")
                    .default_value(default.in_message)
                    .mutable_ready()
                    .build(),
                ObjectClasses::property("Labels of the objects whose images are written, with commas between; unset: all objects"),
                glib::ParamSpecUInt::builder("max-age")
                    .nick("Maximum age")
                    .blurb("Number of frames without the object after which its image is written; at least max-age of roitrack")
                    .default_value(default.max_age)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt64::builder("max-bytes")
                    .nick("Maximum size")
                    .blurb("Maximum size of all images in the folder; the oldest are deleted; 0: no limit")
                    .default_value(default.max_bytes)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecUInt::builder("quality")
                    .nick("Quality")
                    .blurb("JPEG quality")
                    .minimum(1)
                    .maximum(100)
                    .default_value(default.quality)
                    .mutable_ready()
                    .build(),
                glib::ParamSpecString::builder("stream-id")
                    .nick("Stream id")
                    .blurb("Name of the stream in file names")
                    .mutable_ready()
                    .build(),
                glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                    .nick("Statistics")
                    .blurb("Counters: images written and their bytes; errors: images that could not be written")
                    .read_only()
                    .build(),
            ]
        });
        PROPERTIES.as_ref()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        let text = || value.get::<Option<String>>().expect("GObject checked the type").filter(|text| !text.is_empty());
        let mut settings = self.settings.lock().unwrap();
        match pspec.name() {
            "folder" => settings.folder = text().map(Into::into),
            "in-message" => settings.in_message = value.get().expect("GObject checked the type"),
            "object-class" => settings.classes = ObjectClasses::from_value(value),
            "max-age" => settings.max_age = value.get().expect("GObject checked the type"),
            "max-bytes" => settings.max_bytes = value.get().expect("GObject checked the type"),
            "quality" => settings.quality = value.get().expect("GObject checked the type"),
            "stream-id" => settings.stream_id = text(),
            name => unreachable!("property {name} is not in the list above"),
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        let settings = self.settings.lock().unwrap();
        match pspec.name() {
            "folder" => settings.folder.as_ref().map(|folder| folder.display().to_string()).to_value(),
            "in-message" => settings.in_message.to_value(),
            "object-class" => settings.classes.to_value(),
            "max-age" => settings.max_age.to_value(),
            "max-bytes" => settings.max_bytes.to_value(),
            "quality" => settings.quality.to_value(),
            "stream-id" => settings.stream_id.to_value(),
            "stats" => {
                let counts = *self.counts.lock().unwrap();
                let stats = gst::Structure::builder("roicrop-stats").field("images", counts.written).field("bytes", counts.bytes);
                stats.field("errors", counts.errors).build().to_value()
            }
            name => unreachable!("property {name} is not in the list above"),
        }
    }
}

impl GstObjectImpl for RoiCrop {}

impl ElementImpl for RoiCrop {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Write images of objects",
                "Filter/Analyzer/Video",
                "Writes the best image of each tracked object as JPEG, to a folder or into the messages of roipublish",
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

impl BaseTransformImpl for RoiCrop {
    const MODE: BaseTransformMode = BaseTransformMode::AlwaysInPlace;
    const PASSTHROUGH_ON_SAME_CAPS: bool = true;
    const TRANSFORM_IP_ON_PASSTHROUGH: bool = true;

    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let settings = self.settings.lock().unwrap().clone();
        if settings.folder.is_none() && !settings.in_message {
            let text = "roicrop: expected a folder for images, got none; set `folder`, or set `in-message=true`";
            return Err(gst::error_msg!(gst::ResourceError::Settings, ("{text}")));
        }
        let open = |folder: &PathBuf| {
            FileStore::open(absolute(folder), PREFIX, settings.max_bytes).map_err(|error| {
                let text =
                    format!("cannot write images to {}: {error}; set `folder` to a folder that this user may write", folder.display());
                gst::error_msg!(gst::ResourceError::OpenWrite, ("{text}"))
            })
        };
        let store = settings.folder.as_ref().map(open).transpose()?;
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        *self.counts.lock().unwrap() = Counts::default();
        let (best, lines, scratch) = Default::default();
        let state = State { settings, store, epoch, info: None, best, n_frames: 0, lines, scratch, has_warned: false };
        *self.state.lock().unwrap() = Some(state);
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        // A stop without EOS also ends the tracks, so write their images. Lines about these images are not sent, because the stream has
        // ended.
        let state = self.state.lock().unwrap().take();
        if let Some(mut state) = state {
            let crops = state.best.take_all();
            crops.iter().for_each(|crop| self.write(&mut state, crop).unwrap_or_else(|error| gst::warning!(CAT, imp = self, "{error}")));
        }
        Ok(())
    }

    fn set_caps(&self, incaps: &gst::Caps, _outcaps: &gst::Caps) -> Result<(), gst::LoggableError> {
        let info = caps::video_info(incaps).map_err(|_| gst::loggable_error!(CAT, "expected caps of raw video, got {incaps}"))?;
        if let Some(state) = self.state.lock().unwrap().as_mut() {
            state.info = Some(info);
        }
        Ok(())
    }

    fn sink_event(&self, event: gst::Event) -> bool {
        if event.type_() == gst::EventType::Eos {
            let warning = self.with_state(|state| {
                let crops = state.best.take_all();
                self.write_all(state, crops)
            });
            self.warn(warning.flatten());
            self.send_lines();
        }
        self.parent_sink_event(event)
    }

    fn transform_ip_passthrough(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.send_lines();
        let timestamp_ns = self.obj().segment().downcast::<gst::ClockTime>().ok().and_then(|segment| segment.to_stream_time(buffer.pts()));
        let warning = self.with_state(|state| self.handle(state, buffer, timestamp_ns.map(gst::ClockTime::nseconds)));
        self.warn(warning.flatten());
        Ok(gst::FlowSuccess::Ok)
    }
}

impl RoiCrop {
    fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.state.lock().unwrap().as_mut().map(act)
    }

    /// Sends the lines of earlier frames.
    fn send_lines(&self) {
        let lines = self.with_state(|state| std::mem::take(&mut state.lines)).unwrap_or_default();
        for line in lines {
            // Ignore the result, because a line has no receiver if no element is linked downstream.
            let _sent = self.obj().static_pad("src").is_some_and(|pad| pad.push_event(line));
        }
    }

    fn warn(&self, warning: Option<String>) {
        if let Some(text) = warning {
            gst::element_imp_warning!(self, gst::ResourceError::Write, ("{}", crate::stages::Printable(&text)));
        }
    }

    /// Updates the best images, and writes those of ended tracks. Returns a warning to post.
    fn handle(&self, state: &mut State, buffer: &gst::Buffer, timestamp_ns: Option<u64>) -> Option<String> {
        let info = state.info.clone()?;
        let (size, now) = (caps::size(&info), state.n_frames);
        state.n_frames += 1;
        let results = meta::read_shared(buffer, size);
        let frame_number = match &results {
            Some(results) if results.frame_number != meta::UNNUMBERED => results.frame_number,
            _ => now,
        };
        let mut crops = Vec::new();
        let cut = results.map_or(Ok(()), |results| cut_all(state, buffer, &info, &results, (frame_number, timestamp_ns, now), &mut crops));
        crops.extend(state.best.take_ended(now, u64::from(state.settings.max_age)));
        let lost = cut.err().and_then(|error| self.count_error(state, &error));
        self.write_all(state, crops).or(lost)
    }

    /// Writes images. Returns a warning to post.
    fn write_all(&self, state: &mut State, crops: Vec<Crop>) -> Option<String> {
        let failed: Vec<String> = crops.iter().filter_map(|crop| self.write(state, crop).err()).collect();
        let warnings: Vec<String> = failed.iter().filter_map(|error| self.count_error(state, error)).collect();
        warnings.into_iter().next()
    }

    /// Counts a lost image. Returns a warning for the first lost image.
    fn count_error(&self, state: &mut State, error: &str) -> Option<String> {
        self.counts.lock().unwrap().errors += 1;
        gst::warning!(CAT, imp = self, "{error}");
        (!std::mem::replace(&mut state.has_warned, true)).then(|| format!("{error}; images that cannot be written are counted as errors"))
    }

    fn write(&self, state: &mut State, crop: &Crop) -> Result<(), String> {
        let jpeg = crop::jpeg(&crop.image, state.settings.quality as u8).map_err(|error| format!("cannot encode an image: {error}"))?;
        let roi_type = crop.label.as_deref().unwrap_or("object");
        let path = match &mut state.store {
            None => None,
            Some(store) => {
                let stream = file_name_part(state.settings.stream_id.as_deref().unwrap_or("stream"));
                let object = crop.track.map_or(format!("r{}", crop.region_id), |track| track.0.to_string());
                let name = format!("{PREFIX}{stream}-{}-{:06}-{}-{object}.jpg", state.epoch, crop.frame, file_name_part(roi_type));
                let written = store.write(&name, &jpeg).map_err(|error| format!("cannot write image {name}: {error}"))?;
                Some(written.display().to_string())
            }
        };
        let PixelRect { x, y, width: w, height: h } = crop.rect;
        let line = Line {
            frame: crop.frame,
            timestamp: crop.timestamp_ns,
            pts: crop.pts_ns,
            id: crop.track.map(|track| track.0),
            region_id: crop.region_id,
            roi_type,
            confidence: Some(crop.confidence).filter(|confidence| !confidence.is_nan()),
            label_id: crop.label_id,
            x,
            y,
            w,
            h,
            width: crop.image.width(),
            height: crop.image.height(),
            path,
            jpeg: state.settings.in_message.then(|| base64::prelude::BASE64_STANDARD.encode(&jpeg)),
        };
        state.lines.push(records::event("crop", &line));
        let mut counts = self.counts.lock().unwrap();
        (counts.written, counts.bytes) = (counts.written + 1, counts.bytes + jpeg.len() as u64);
        Ok(())
    }
}

/// Cuts the images of a frame that are better than earlier images of their tracks. Images of objects without a tracker are added to `crops`.
fn cut_all(
    state: &mut State,
    buffer: &gst::Buffer,
    info: &gst_video::VideoInfo,
    results: &Arc<FrameResults>,
    (frame, timestamp_ns, now): (u64, Option<u64>, u64),
    crops: &mut Vec<Crop>,
) -> Result<(), String> {
    let mut mapped = None;
    let inside = results.detections.iter().filter_map(|detection| Some((detection, detection.rect.to_pixels(results.size)?)));
    for (idx, (detection, rect)) in inside.enumerate() {
        if !state.settings.classes.has(detection) || !is_detected(detection) {
            if let Some(track) = detection.track {
                state.best.see(track, 0.0, now);
            }
            continue;
        }
        let score = score(detection, rect);
        if detection.track.is_some_and(|track| !state.best.see(track, score, now)) {
            continue;
        }
        if mapped.is_none() {
            mapped = Some(buffer::frame(buffer, info).map_err(|error| format!("cannot read a frame: {error}"))?);
        }
        let Some(frame_pixels) = &mapped else { continue };
        let image =
            crop::cut(frame_pixels, rect, &mut state.scratch).map_err(|error| format!("cannot cut an object out of a frame: {error}"))?;
        let crop = Crop {
            image,
            rect,
            track: detection.track,
            region_id: idx + 1,
            confidence: detection.confidence,
            label: detection.label.clone(),
            label_id: detection.label_id,
            frame,
            timestamp_ns,
            pts_ns: buffer.pts().map(gst::ClockTime::nseconds),
        };
        match detection.track {
            Some(track) => state.best.keep(track, score, crop, now),
            None => crops.push(crop),
        }
    }
    Ok(())
}

/// Whether the object was detected in this frame, and has a confirmed track or no tracker.
fn is_detected(detection: &Detection) -> bool {
    matches!(detection.track_state, None | Some(TrackState::Confirmed))
}
