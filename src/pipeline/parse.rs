//! Parses the line of a plan to a `gst::Pipeline`. Its errors help authors of descriptions to find mistakes.
//!
//! Elements and property values are checked before GStreamer's parser reads the line, because that parser accepts values out of
//! range.

use gst::prelude::*;
use gstreamer as gst;

use super::plan::{CROP, PUBLISH};
use super::{Error, Outputs, Plan, Result, properties};
use crate::stages::did_you_mean;

/// Debian packages that contain elements, by prefix of the element's name. If several prefixes match, the longest is used.
const PACKAGES: &[(&str, &str)] = &[
    ("x264", "gstreamer1.0-plugins-ugly"),
    ("mpeg2dec", "gstreamer1.0-plugins-ugly"),
    ("asfdemux", "gstreamer1.0-plugins-ugly"),
    ("avdec_", "gstreamer1.0-libav"),
    ("avenc_", "gstreamer1.0-libav"),
    ("avdemux_", "gstreamer1.0-libav"),
    ("avmux_", "gstreamer1.0-libav"),
    ("va", "gstreamer1.0-plugins-bad"),
    ("nv", "gstreamer1.0-plugins-bad"),
    ("x265", "gstreamer1.0-plugins-bad"),
    ("h264parse", "gstreamer1.0-plugins-bad"),
    ("h265parse", "gstreamer1.0-plugins-bad"),
    ("av1", "gstreamer1.0-plugins-bad"),
    ("openh264", "gstreamer1.0-plugins-bad"),
    ("mpegtsmux", "gstreamer1.0-plugins-bad"),
    ("tsdemux", "gstreamer1.0-plugins-bad"),
    ("hls", "gstreamer1.0-plugins-bad"),
    ("rtmp", "gstreamer1.0-plugins-bad"),
    ("srt", "gstreamer1.0-plugins-bad"),
    ("webrtc", "gstreamer1.0-plugins-bad"),
    ("fpsdisplaysink", "gstreamer1.0-plugins-bad"),
    ("kmssink", "gstreamer1.0-plugins-bad"),
    ("waylandsink", "gstreamer1.0-plugins-bad"),
    ("fakevideosink", "gstreamer1.0-plugins-bad"),
    ("v4l2", "gstreamer1.0-plugins-good"),
    ("vp8", "gstreamer1.0-plugins-good"),
    ("vp9", "gstreamer1.0-plugins-good"),
    ("jpeg", "gstreamer1.0-plugins-good"),
    ("png", "gstreamer1.0-plugins-good"),
    ("matroska", "gstreamer1.0-plugins-good"),
    ("qt", "gstreamer1.0-plugins-good"),
    ("mp4mux", "gstreamer1.0-plugins-good"),
    ("avi", "gstreamer1.0-plugins-good"),
    ("flv", "gstreamer1.0-plugins-good"),
    ("rtp", "gstreamer1.0-plugins-good"),
    ("rtsp", "gstreamer1.0-plugins-good"),
    ("udp", "gstreamer1.0-plugins-good"),
    ("souphttp", "gstreamer1.0-plugins-good"),
    ("videobox", "gstreamer1.0-plugins-good"),
    ("videocrop", "gstreamer1.0-plugins-good"),
    ("videoflip", "gstreamer1.0-plugins-good"),
    ("deinterlace", "gstreamer1.0-plugins-good"),
    ("compositor", "gstreamer1.0-plugins-base"),
    ("videorate", "gstreamer1.0-plugins-base"),
    ("videoscale", "gstreamer1.0-plugins-base"),
    ("videoconvert", "gstreamer1.0-plugins-base"),
    ("videotestsrc", "gstreamer1.0-plugins-base"),
    ("textoverlay", "gstreamer1.0-x"),
    ("timeoverlay", "gstreamer1.0-x"),
    ("clockoverlay", "gstreamer1.0-x"),
    ("ximagesink", "gstreamer1.0-x"),
    ("xvimagesink", "gstreamer1.0-x"),
    ("gl", "gstreamer1.0-gl"),
    ("gtksink", "gstreamer1.0-gtk3"),
    ("rtspclientsink", "gstreamer1.0-rtsp"),
    ("gva", "Intel's DL Streamer (not in Debian)"),
];

/// Checks the line of a plan, and parses it to a pipeline.
///
/// # Errors
/// Returns an error if an element is not installed (`Failed`), or a property, a value or the graph is wrong (`Usage`).
pub(super) fn launch(plan: &Plan) -> Result<gst::Pipeline> {
    for element in &plan.elements {
        if gst::ElementFactory::find(&element.factory).is_none() {
            return Err(missing(&plan.name, &element.factory));
        }
    }
    for literal in &plan.literals {
        let Some(named) = plan.elements.iter().find(|element| element.name == literal.element) else { continue };
        let Some(factory) = gst::ElementFactory::find(&named.factory) else { continue };
        let pspec = properties::find(&factory, &named.name, &literal.property)?;
        if !properties::is_object(&pspec) {
            properties::value(&named.factory, &named.name, &pspec, &properties::unescaped(&literal.text))?;
        }
    }
    let pipeline = gst::parse::launch(&plan.line).map_err(|error| refused(&plan.name, &error))?;
    let pipeline = pipeline
        .downcast::<gst::Pipeline>()
        .map_err(|_| Error::usage("the graph is a single element: expected `{source} ! ... ! {video}`"))?;
    check_ends(&pipeline)?;
    Ok(pipeline)
}

/// Converts an error of GStreamer's parser to a message for the author of the description.
fn refused(name: &str, error: &gst::glib::Error) -> Error {
    let what = error.message().trim_end_matches('.');
    let advice = match error.kind::<gst::ParseError>() {
        // GStreamer's parser also reports a missing property as a missing element.
        Some(gst::ParseError::NoSuchElement) => {
            return Error::failed(format!("the graph of `{name}` can't be built: {what}; `gst-inspect-1.0` lists the installed elements"));
        }
        Some(gst::ParseError::NoSuchProperty) => "; `gst-inspect-1.0 ELEMENT` lists the properties of an element",
        Some(gst::ParseError::CouldNotSetProperty) => "; `gst-inspect-1.0 ELEMENT` lists the values that a property takes",
        Some(gst::ParseError::Link | gst::ParseError::DelayedLink) => {
            "; linked elements need a common format: add `videoconvert` between them, or check the caps"
        }
        Some(gst::ParseError::Syntax | gst::ParseError::Empty | gst::ParseError::EmptyBin) => {
            "; expected elements joined by `!`, as in `{source} ! roidetect model={model} ! {json} ! {video}`"
        }
        _ => "",
    };
    Error::usage(format!("the graph of `{name}` can't be built: {what}{advice}"))
}

fn missing(name: &str, factory: &str) -> Error {
    let package = PACKAGES.iter().filter(|(begin, _)| factory.starts_with(begin)).max_by_key(|(begin, _)| begin.len());
    let factories = gst::Registry::get().features(gst::ElementFactory::static_type());
    let names: Vec<String> = factories.iter().map(|factory| factory.name().to_string()).collect();
    let near = did_you_mean(factory, names.iter().map(String::as_str));
    let install = match package {
        Some((_, package)) if near.is_empty() => format!("; install {package}"),
        _ => String::new(),
    };
    Error::failed(format!(
        "the graph of `{name}` can't be built: element `{factory}` is not installed{near}{install}; `gst-inspect-1.0` lists the installed elements"
    ))
}

/// Checks that no source pad at the end of the graph is unlinked. Otherwise the first frame would fail with GStreamer's "not linked".
fn check_ends(pipeline: &gst::Pipeline) -> Result<()> {
    for element in pipeline.children() {
        let pads = element.src_pads();
        if !pads.is_empty() && pads.iter().all(|pad| !pad.is_linked()) {
            let what = match element.name() {
                name if name.starts_with(PUBLISH) || name == CROP => "`{json}`".to_owned(),
                name if name.starts_with("roiflow-") => "`{source}`".to_owned(),
                name => format!("element `{name}`"),
            };
            return Err(Error::usage(format!("the graph ends at {what}, expected a sink: end it with `! {{video}}`")));
        }
    }
    Ok(())
}

impl Outputs {
    /// Checks that the graph has a placeholder for each requested output.
    ///
    /// # Errors
    /// Returns `Usage` if a placeholder is missing.
    pub(super) fn check_places(&self, places: &[&str]) -> Result<()> {
        for (is_wanted, place, option, where_to) in [
            (!self.publish.is_empty(), "json", "--publish", "add it after the last inference element, as in `... ! {json} ! {video}`"),
            (self.crops.is_some(), "json", "--crops", "add it after the last inference element, as in `... ! {json} ! {video}`"),
            (self.tap.is_some(), "json", "live results", "add it after the last inference element, as in `... ! {json} ! {video}`"),
            (self.json.is_some(), "json", "--json", "add it after the last inference element, as in `... ! {json} ! {video}`"),
            (self.video.is_some(), "video", "--video", "end the graph with it, as in `... ! roioverlay ! {video}`"),
            (self.show, "video", "--show", "end the graph with it, as in `... ! roioverlay ! {video}`"),
        ] {
            if is_wanted && !places.contains(&place) {
                return Err(Error::usage(format!("{option}: expected `{{{place}}}` in the graph, got none; {where_to}")));
            }
        }
        Ok(())
    }
}
