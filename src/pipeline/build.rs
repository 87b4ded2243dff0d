//! Builds a `gst::Pipeline` from a plan: parses the line, then sets every value on its element.

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::plan::{Assignment, PUBLISH, SOURCE, WINDOW};
use super::{Error, Input, Plan, Result, decoders, display, parse, properties, upright};
use crate::elements::{self, guarded_source, publish::RoiPublish};

/// Builds the pipeline without starting it.
///
/// # Errors
/// Returns an error if an element is not installed, or an element, property or value is unknown.
pub fn build(plan: &Plan) -> Result<gst::Pipeline> {
    elements::register_static().map_err(|error| Error::failed(error.to_string()))?;
    if plan.outputs.show {
        display::check()?;
    }
    let pipeline = parse::launch(plan)?;
    plan.assignments.iter().try_for_each(|assignment| assign(&pipeline, assignment))?;
    if let Some(source) = pipeline.by_name(SOURCE).filter(|source| source.find_property("uri").is_some()) {
        match &plan.input {
            Input::Uri(uri) => uri.open_with(&source),
            Input::File(path) => guarded_source::allow_files(&source, path, plan.engine.allows_outside_files()),
            _ => {}
        }
        // Do not decode audio and subtitles. This saves time, and avoids GStreamer's warnings about unlinked streams.
        source.connect_closure(
            "autoplug-continue",
            false,
            glib::closure!(|_source: &gst::Element, _pad: &gst::Pad, caps: &gst::Caps| {
                let kind = caps.structure(0).map(|structure| structure.name().as_str());
                // GIF is not decoded, because GStreamer 1.22's GIF demuxer never reaches EOS.
                let is_other =
                    kind.is_some_and(|kind| ["audio/", "text/", "subpicture/", "image/gif"].iter().any(|other| kind.starts_with(other)));
                if !is_other {
                    decoders::prepare(caps);
                }
                !is_other
            }),
        );
    }
    elements::set_engine(&pipeline, &plan.engine);
    upright::keep(&pipeline);
    if let Some(window) = pipeline.by_name(WINDOW) {
        // Let the sink of the window synchronize to the clock, so that a file is shown at its own frame rate.
        window.set_property("sync", true);
        // If the window is late, its sink sends QoS events upstream. These events would make upstream elements drop frames, and the results
        // of these frames would be missing. Only the window itself may drop frames.
        let sinks = window.downcast_ref::<gst::Bin>().expect("autovideosink is a bin");
        sinks.connect_deep_element_added(|_, _, element| {
            if element.find_property("qos").is_some_and(|property| property.value_type() == glib::Type::BOOL) {
                element.set_property("qos", false);
            }
        });
    }
    let publish = |name: &str| pipeline.by_name(name).and_then(|publish| publish.downcast::<RoiPublish>().ok());
    if let (Some(publish), Some(memory)) = (publish(PUBLISH), &plan.outputs.frame_memory) {
        publish.set_frame_memory(memory.clone());
    }
    for (idx, url) in plan.outputs.publish.iter().enumerate() {
        // A graph without `{json}` has no such element.
        if let Some(publish) = publish(&format!("{PUBLISH}-{}", idx + 1)) {
            publish.set_url(url.clone());
        }
    }
    Ok(pipeline)
}

fn assign(pipeline: &gst::Pipeline, assignment: &Assignment) -> Result<()> {
    let Assignment { element: name, property, value } = assignment;
    let element = pipeline.by_name(name).ok_or_else(|| Error::usage(format!("the graph has no element `{name}`")))?;
    let factory = element.factory().ok_or_else(|| Error::failed(format!("element `{name}` has no factory")))?;
    let pspec = properties::find(&factory, name, property)?;
    if pspec.flags().contains(glib::ParamFlags::CONSTRUCT_ONLY) {
        let message = format!("property `{property}` of `{name}` cannot be set by a parameter: write its value into the graph");
        return Err(Error::usage(message));
    }
    let typed = properties::value(&factory.name(), name, &pspec, value)?;
    element.set_property_from_value(property, &typed);
    Ok(())
}
