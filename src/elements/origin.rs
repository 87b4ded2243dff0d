//! Which picture a frame was, where each frame comes from a file of its own.
//!
//! Travels with the buffer as a meta without tags, which converters and scalers keep, and copies of the buffer too.

use std::sync::LazyLock;

use gst::meta::CustomMeta;
use gstreamer as gst;

const NAME: &str = "RoiflowOrigin";

/// The number of the picture among those of the input, and its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// From 0.
    pub picture_idx: u64,
    /// For people: of a name that is not UTF-8 as much as can be shown.
    pub path: String,
}

/// Says which picture this buffer is.
pub fn attach(buffer: &mut gst::BufferRef, picture_idx: u64, path: &str) {
    register();
    match CustomMeta::add(buffer, NAME) {
        Ok(mut meta) => {
            let structure = meta.mut_structure();
            structure.set("picture", picture_idx);
            structure.set("path", path);
        }
        Err(error) => tracing::warn!("the path of a picture does not travel with it: {error}"),
    }
}

/// Which picture this buffer is, if it is one.
pub fn read(buffer: &gst::BufferRef) -> Option<Origin> {
    register();
    let meta = CustomMeta::from_buffer(buffer, NAME).ok()?;
    let structure = meta.structure();
    Some(Origin { picture_idx: structure.get("picture").ok()?, path: structure.get("path").ok()? })
}

fn register() {
    static REGISTERED: LazyLock<()> = LazyLock::new(|| {
        // The plugin and the program may both be in one process.
        if !CustomMeta::is_registered(NAME) {
            CustomMeta::register(NAME, &[]);
        }
    });
    LazyLock::force(&REGISTERED);
}
