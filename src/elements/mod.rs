//! The GStreamer plugin and its elements: they convert buffers to frames, and results to metadata.
//!
//! Each element is a folder: `mod.rs` has documentation and type, `imp.rs` has properties and glue code. Code that can be tested without
//! a pipeline is in separate files without GStreamer.
//!
//! Reading order:
//! - [`meta`] with `results_meta`, `payload`, `marker`, `roi` and `relations`: how results travel with a buffer.
//! - [`caps`] and [`buffer`]: how a buffer becomes a frame.
//! - `infer` with `pads`, `settings`, `regions`, `work`, `model`, `stream` and `lifecycle`: the driver of the inference elements, with a
//!   table of its files.
//! - `frames` with `policy` and `stats`: the path of each frame, and its counters. `reuse`: result reuse.
//! - The elements: [`source`], [`attach`], [`detect`], [`track`], [`mod@analytics`], [`classify`], [`crop`], [`record`], [`overlay`], [`publish`].
//! - `records`: lines of JSON that elements send through [`publish`]. `scene`: lines and zones on their way to [`overlay`].
//! - [`guarded_source`]: which addresses a playlist may name. [`redirects`]: limits the requests to cameras.
//! - [`capi`]: the same results for C.
//!
//! An element never uses an inference request directly: it passes frames to an inference stage.

/// Replaces `format!` in `#[enum_type(allow_name_conflict)]`: glib-macros 0.22 expects a `&str` for the type name. Each enumeration is
/// registered once, so at most one string per type leaks.
macro_rules! format_type_name {
    ($($part:tt)*) => { &*std::format!($($part)*).leak() };
}
use format_type_name;

pub mod analytics;
pub mod attach;
mod backlog;
#[allow(unsafe_code, reason = "maps buffers")]
pub mod buffer;
#[allow(unsafe_code, reason = "functions that C calls")]
pub mod capi;
pub mod caps;
mod classes;
pub mod classify;
pub mod crop;
pub mod detect;
mod events;
mod frames;
pub mod guarded_source;
mod if_exists;
mod in_flight;
mod infer;
#[allow(unsafe_code, reason = "declares an abstract class to GObject")]
mod inference;
mod latency;
mod lifecycle;
pub(crate) mod limited_range;
mod loading;
mod marker;
pub mod meta;
mod model;
pub mod origin;
pub mod overlay;
mod pads;
mod payload;
mod policy;
mod pool;
mod private_pipeline;
mod properties;
pub mod publish;
pub mod record;
mod records;
pub mod redirects;
mod regions;
#[allow(unsafe_code, reason = "calls a C library that is loaded at run time")]
mod relations;
#[allow(unsafe_code, reason = "implements a meta of GStreamer")]
mod results_meta;
pub(crate) mod retry;
mod reuse;
mod roi;
mod scene;
mod settings;
pub mod source;
mod stats;
mod stream;
mod tiles;
pub mod track;
pub mod video;
mod video_file;
mod video_parts;
mod video_sink;
mod work;

use std::sync::{Once, OnceLock};

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use crate::frame::Size;
use crate::stages;

/// Name and type of an element.
type Entry = (&'static str, fn() -> glib::Type);

/// All elements of the plugin.
const ELEMENTS: &[Entry] = &[
    ("roisource", source::RoiSource::static_type),
    ("roiattach", attach::RoiAttach::static_type),
    ("roidetect", detect::RoiDetect::static_type),
    ("roitrack", track::RoiTrack::static_type),
    ("roianalytics", analytics::RoiAnalytics::static_type),
    ("roiclassify", classify::RoiClassify::static_type),
    ("roicrop", crop::RoiCrop::static_type),
    ("roirecord", record::RoiRecord::static_type),
    ("roioverlay", overlay::RoiOverlay::static_type),
    ("roipublish", publish::RoiPublish::static_type),
];

/// Properties of these elements that name files or folders.
pub const FILE_PROPERTIES: [&str; 12] =
    ["address", "description", "file-path", "folder", "font", "gallery", "labels-file", "location", "model", "model-proc", "spool", "url"];

/// Registers all elements. If `plugin` is `Some`, they are registered as features of that plugin.
///
/// # Errors
/// Returns an error if GStreamer refuses an element.
pub fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    static CLAIMED: Once = Once::new();
    CLAIMED.call_once(results_meta::claim_ids);
    for (name, element_type) in ELEMENTS {
        gst::Element::register(plugin, name, gst::Rank::NONE, element_type())?;
    }
    Ok(())
}

/// Initializes GStreamer and registers the plugin in this process, without a plugin path.
///
/// May be called repeatedly and from several threads; only the first call has an effect.
///
/// # Errors
/// Returns an error if GStreamer cannot be initialized, or refuses an element. Later calls return the same result.
pub fn register_static() -> Result<(), glib::BoolError> {
    static DONE: OnceLock<Result<(), glib::BoolError>> = OnceLock::new();
    DONE.get_or_init(|| {
        gst::init().map_err(|error| glib::bool_error!("GStreamer can't be initialized: {error}"))?;
        plugin_register_static()?;
        // Only `roiflow run` uses this element; the element is not part of the plugin.
        gst::Element::register(None, video::NAME, gst::Rank::NONE, video::Video::static_type())
    })
    .clone()
}

/// Sets the engine with which the inference elements of this bin load models, from their next start on. The default is
/// [`stages::Engine::of_process`].
pub fn set_engine(bin: &impl IsA<gst::Bin>, engine: &stages::Engine) {
    inference_elements(bin).for_each(|element| element.set_engine(engine.clone()));
}

/// Sets the snapshot from which the elements of this bin get models and files, from their next start on.
pub fn set_snapshot(bin: &impl IsA<gst::Bin>, snapshot: &stages::Snapshot) {
    inference_elements(bin).for_each(|element| element.set_snapshot(snapshot.clone()));
    for element in bin.as_ref().iterate_recurse().into_iter().flatten() {
        if let Some(analytics) = element.downcast_ref::<analytics::RoiAnalytics>() {
            analytics.set_snapshot(snapshot.clone());
        } else if let Some(overlay) = element.downcast_ref::<overlay::RoiOverlay>() {
            overlay.set_snapshot(snapshot.clone());
        }
    }
}

/// Loads the models of the inference elements in this bin as a start of the elements would, and runs each on a black frame of this size.
/// `None`: the size of the model's input. The elements are not started.
///
/// # Errors
/// Returns the name of the first element whose model does not load or run, and the reason.
pub fn prepare(bin: &impl IsA<gst::Bin>, size: Option<Size>) -> Result<(), (String, stages::Error)> {
    let elements: Vec<_> = inference_elements(bin).collect();
    // In parallel, as the elements load their models when they start.
    let prepared: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = elements.iter().map(|element| scope.spawn(move || element.prepare(size))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| Err(stages::Error::of_panic("loading the model", &*panic))))
            .collect()
    });
    elements.iter().zip(prepared).try_for_each(|(element, prepared)| prepared.map_err(|error| (element.name().to_string(), error)))
}

/// Like [`prepare`], for one element. Does nothing for elements without a model.
///
/// # Errors
/// Returns why the model does not load or run.
pub fn prepare_element(element: &gst::Element) -> stages::Result<()> {
    element.downcast_ref::<inference::Inference>().map_or(Ok(()), |element| element.prepare(None))
}

fn inference_elements(bin: &impl IsA<gst::Bin>) -> impl Iterator<Item = inference::Inference> {
    bin.as_ref().iterate_recurse().into_iter().flatten().filter_map(|element| element.downcast::<inference::Inference>().ok())
}

fn plugin_init(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    register(Some(plugin))
}

gst::plugin_define!(
    roiflow,
    "Video analytics: detects, tracks and classifies objects in video frames, and publishes the results",
    plugin_init,
    env!("CARGO_PKG_VERSION"),
    "MIT/X11",
    env!("CARGO_PKG_NAME"),
    env!("CARGO_PKG_NAME"),
    env!("CARGO_PKG_REPOSITORY")
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_properties_exist() {
        register_static().unwrap();
        let elements: Vec<_> = ELEMENTS.iter().map(|(name, _)| gst::ElementFactory::make(name).build().unwrap()).collect();
        for name in FILE_PROPERTIES {
            assert!(elements.iter().any(|element| element.find_property(name).is_some()), "{name}");
        }
    }
}
