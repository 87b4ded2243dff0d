//! Settings and properties of `roioverlay`.

use std::path::PathBuf;
use std::sync::Arc;

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;
use roiflow_images::font::MAX_HEIGHT;
use roiflow_images::overlay::{self, Style};
use roiflow_images::privacy::PrivacyRules;

use super::{Clock, ColorBy};

/// Settings of the element.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) draw: bool,
    pub(super) style: Style,
    pub(super) font: Option<PathBuf>,
    /// Whether lines and zones are drawn.
    pub(super) zones: bool,
    pub(super) title: String,
    pub(super) stream_id: String,
    pub(super) clock: Clock,
    pub(super) privacy: Arc<PrivacyRules>,
    /// Whether the drawing is attached where downstream combines it with the frame.
    pub(super) attaches: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            draw: true,
            style: Style::default(),
            font: None,
            zones: true,
            title: String::new(),
            stream_id: String::new(),
            clock: Clock::None,
            privacy: Arc::default(),
            attaches: true,
        }
    }
}

impl Settings {
    pub(super) fn properties() -> Vec<glib::ParamSpec> {
        let default = Self::default();
        let boolean = |name: &'static str, nick: &'static str, blurb: &'static str, value: bool| {
            glib::ParamSpecBoolean::builder(name).nick(nick).blurb(blurb).default_value(value).mutable_playing().build()
        };
        let number = |name: &'static str, nick: &'static str, blurb: &'static str, range: (u32, u32), value: u32| {
            let builder = glib::ParamSpecUInt::builder(name).nick(nick).blurb(blurb).minimum(range.0).maximum(range.1);
            builder.default_value(value).mutable_playing().build()
        };
        let text = |name: &'static str, nick: &'static str, blurb: &'static str| {
            glib::ParamSpecString::builder(name).nick(nick).blurb(blurb).mutable_playing().build()
        };
        vec![
            boolean(
                "draw",
                "Draw",
                "Draw results; false: frames pass unchanged, except for the objects of blur and pixelate",
                default.draw,
            ),
            boolean("labels", "Labels", "Write label and attributes above each box", default.style.labels),
            boolean("confidence", "Confidence", "Write the detector's confidence after the label", default.style.confidence),
            number(
                "thickness",
                "Thickness",
                "Line width of boxes in pixels; 0: depends on the frame height, at least 2",
                (0, 1000),
                default.style.thickness,
            ),
            number(
                "font-size",
                "Font size",
                "Height of the text in pixels, 16 to 256, rounded up to an even number; 0: depends on the frame size",
                (0, MAX_HEIGHT),
                default.style.font_size,
            ),
            glib::ParamSpecString::builder("font")
                .nick("Font")
                .blurb(
                    "Font file (.ttf, .otf or .ttc) for characters that the built-in DejaVu Sans lacks, such as Chinese; it is used first",
                )
                .mutable_ready()
                .build(),
            number(
                "mask-opacity",
                "Mask opacity",
                "Opacity of masks and maps in percent; 0: they are not drawn",
                (0, 100),
                default.style.mask_opacity,
            ),
            glib::ParamSpecEnum::builder_with_default("color-by", ColorBy::Class)
                .nick("Color by")
                .blurb("What determines the color of an object")
                .mutable_playing()
                .build(),
            number(
                "trail",
                "Trail",
                "Number of frames that the trail of a tracked object covers; 0: no trails",
                (0, 1000),
                default.style.trail_length,
            ),
            boolean("zones", "Zones", "Draw the lines and zones of roianalytics upstream, with their counts", default.zones),
            text("title", "Title", "Text in the bottom-left corner; {stream} stands for stream-id"),
            text("stream-id", "Stream id", "Name of the stream, for title"),
            glib::ParamSpecEnum::builder_with_default("clock", default.clock)
                .nick("Clock")
                .blurb("Time after the title")
                .mutable_playing()
                .build(),
            text("blur", "Blur", "Labels of the objects to blur, separated by commas; *: all objects. Not for boxes that were missed"),
            text(
                "pixelate",
                "Pixelate",
                "Labels of the objects to pixelate, separated by commas; *: all objects. Not for boxes that were missed",
            ),
            number(
                "privacy-cells",
                "Privacy cells",
                "Cells along the shorter side of a blurred or pixelated box: fewer hide more",
                (1, 64),
                default.privacy.n_cells,
            ),
            number(
                "privacy-hold",
                "Privacy hold",
                "Number of frames for which the last box of an object stays blurred or pixelated when the object is no longer detected",
                (0, 10_000),
                default.privacy.n_held,
            ),
            boolean(
                "privacy-strict",
                "Privacy strict",
                "With blur or pixelate: pixelate the whole frame when it and the privacy-hold frames before it were not inferred",
                default.privacy.covers_unknown,
            ),
            glib::ParamSpecBoolean::builder("attach-drawing")
                .nick("Attach drawing")
                .blurb(
                    "Attach the drawing as GstVideoOverlayComposition if downstream combines it with the frame; false: paint in any case",
                )
                .default_value(default.attaches)
                .mutable_ready()
                .build(),
        ]
    }

    pub(super) fn set(&mut self, value: &glib::Value, pspec: &glib::ParamSpec) {
        let flag = || value.get::<bool>().expect("GObject checked the type");
        let number = || value.get::<u32>().expect("GObject checked the type");
        let text = || value.get::<Option<String>>().expect("GObject checked the type").unwrap_or_default();
        let labels = || text().split(',').map(|label| label.trim().to_owned()).filter(|label| !label.is_empty()).collect();
        let style = &mut self.style;
        match pspec.name() {
            "draw" => self.draw = flag(),
            "labels" => style.labels = flag(),
            "confidence" => style.confidence = flag(),
            "thickness" => style.thickness = number(),
            "font-size" => style.font_size = number(),
            "font" => self.font = Some(text()).filter(|path| !path.is_empty()).map(Into::into),
            "mask-opacity" => style.mask_opacity = number(),
            "color-by" => style.color_by = value.get::<ColorBy>().expect("GObject checked the type").into(),
            "trail" => style.trail_length = number(),
            "zones" => self.zones = flag(),
            "title" => self.title = text(),
            "stream-id" => self.stream_id = text(),
            "clock" => self.clock = value.get().expect("GObject checked the type"),
            "blur" => Arc::make_mut(&mut self.privacy).blur = labels(),
            "pixelate" => Arc::make_mut(&mut self.privacy).pixelate = labels(),
            "privacy-cells" => Arc::make_mut(&mut self.privacy).n_cells = number(),
            "privacy-hold" => Arc::make_mut(&mut self.privacy).n_held = number(),
            "privacy-strict" => Arc::make_mut(&mut self.privacy).covers_unknown = flag(),
            "attach-drawing" => self.attaches = flag(),
            name => unreachable!("property {name} is not in the list above"),
        }
    }

    pub(super) fn get(&self, pspec: &glib::ParamSpec) -> glib::Value {
        let (style, privacy) = (&self.style, &self.privacy);
        match pspec.name() {
            "draw" => self.draw.to_value(),
            "labels" => style.labels.to_value(),
            "confidence" => style.confidence.to_value(),
            "thickness" => style.thickness.to_value(),
            "font-size" => style.font_size.to_value(),
            "font" => self.font.as_ref().map(|path| path.display().to_string()).to_value(),
            "mask-opacity" => style.mask_opacity.to_value(),
            "color-by" => ColorBy::from(style.color_by).to_value(),
            "trail" => style.trail_length.to_value(),
            "zones" => self.zones.to_value(),
            "title" => self.title.to_value(),
            "stream-id" => self.stream_id.to_value(),
            "clock" => self.clock.to_value(),
            "blur" => privacy.blur.join(",").to_value(),
            "pixelate" => privacy.pixelate.join(",").to_value(),
            "privacy-cells" => privacy.n_cells.to_value(),
            "privacy-hold" => privacy.n_held.to_value(),
            "privacy-strict" => privacy.covers_unknown.to_value(),
            "attach-drawing" => self.attaches.to_value(),
            name => unreachable!("property {name} is not in the list above"),
        }
    }
}

impl From<ColorBy> for overlay::ColorBy {
    fn from(color_by: ColorBy) -> Self {
        match color_by {
            ColorBy::Class => Self::Class,
            ColorBy::Track => Self::Track,
        }
    }
}

impl From<overlay::ColorBy> for ColorBy {
    fn from(color_by: overlay::ColorBy) -> Self {
        match color_by {
            overlay::ColorBy::Class => Self::Class,
            overlay::ColorBy::Track => Self::Track,
        }
    }
}
