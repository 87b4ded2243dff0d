//! The GStreamer plugin and its elements: buffers on one side, frames and results on the other.
//!
//! Each element is a folder: `mod.rs` has its documentation and type, `imp.rs` its properties and glue code. Code that can be tested
//! without a pipeline is in separate files without GStreamer.
//!
//! Reading order: [`meta`] with `results_meta`, `payload`, `roi` and `analytics` (how results travel with a buffer), [`caps`] and [`buffer`] (how a buffer becomes
//! a frame), `infer` with `pads`, `settings`, `regions`, `work`, `model`, `stream` and `lifecycle` (the driver of the inference elements, with a
//! table of its files), `frames` with `policy` and `stats` (what becomes of each frame, and the count of it), `reuse` (which objects need no run), then the elements: [`detect`],
//! [`track`], [`classify`], [`overlay`], [`publish`]; [`capi`] is the same results for other languages.
//!
//! An element never uses a request: it passes frames to an inference stage.

/// What `#[enum_type(allow_name_conflict)]` needs as `format!` where it stands: glib-macros 0.22 gives the names that it tries two types. An
/// enumeration is registered once, so at most one name of each stays in memory.
macro_rules! format_type_name {
    ($($part:tt)*) => { &*std::format!($($part)*).leak() };
}
use format_type_name;

#[allow(unsafe_code, reason = "calls a C library that is loaded at run time")]
mod analytics;
mod backlog;
#[allow(unsafe_code, reason = "maps buffers")]
pub mod buffer;
#[allow(unsafe_code, reason = "functions that C calls")]
pub mod capi;
pub mod caps;
mod classes;
pub mod classify;
pub mod detect;
mod events;
mod frames;
mod if_exists;
mod in_flight;
mod infer;
#[allow(unsafe_code, reason = "declares an abstract class to GObject")]
mod inference;
mod latency;
mod lifecycle;
mod loading;
pub mod meta;
mod model;
pub mod origin;
pub mod overlay;
mod pads;
mod payload;
mod policy;
mod pool;
mod properties;
pub mod publish;
mod regions;
#[allow(unsafe_code, reason = "implements a meta of GStreamer")]
mod results_meta;
mod reuse;
mod roi;
mod settings;
mod stats;
mod stream;
pub mod track;
pub mod video_file;
mod work;

use std::sync::{Once, OnceLock};

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use crate::stages;

/// Name and type of an element.
type Entry = (&'static str, fn() -> glib::Type);

/// Every element.
const ELEMENTS: &[Entry] = &[
    ("roidetect", detect::RoiDetect::static_type),
    ("roitrack", track::RoiTrack::static_type),
    ("roiclassify", classify::RoiClassify::static_type),
    ("roioverlay", overlay::RoiOverlay::static_type),
    ("roipublish", publish::RoiPublish::static_type),
];

/// Registers all elements, as features of `plugin` if it is given.
///
/// # Errors
/// If GStreamer refuses one of them.
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
/// If GStreamer cannot be initialized, or refuses an element. Later calls return the same result.
pub fn register_static() -> Result<(), glib::BoolError> {
    static DONE: OnceLock<Result<(), glib::BoolError>> = OnceLock::new();
    DONE.get_or_init(|| {
        gst::init().map_err(|error| glib::bool_error!("GStreamer can't be initialized: {error}"))?;
        plugin_register_static()?;
        // Used by `roiflow run` only, not part of the plugin.
        gst::Element::register(None, video_file::NAME, gst::Rank::NONE, video_file::VideoFile::static_type())
    })
    .clone()
}

/// Sets the engine with which the inference elements in this bin load their models, from their next start on. The default is
/// [`stages::Engine::of_process`].
pub fn set_engine(bin: &impl IsA<gst::Bin>, engine: &stages::Engine) {
    let elements = bin.as_ref().iterate_recurse().into_iter().flatten();
    elements.filter_map(|element| element.downcast::<inference::Inference>().ok()).for_each(|element| element.set_engine(engine.clone()));
}

fn plugin_init(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    register(Some(plugin))
}

gst::plugin_define!(
    roiflow,
    "Video analytics: regions of interest, what was found in them, and where the results go",
    plugin_init,
    env!("CARGO_PKG_VERSION"),
    "MIT/X11",
    env!("CARGO_PKG_NAME"),
    env!("CARGO_PKG_NAME"),
    env!("CARGO_PKG_REPOSITORY")
);
