//! Meta that names the image file of a frame, for inputs that are image files.
//!
//! The meta has no tags, so converters, scalers and buffer copies keep it.

use std::sync::LazyLock;

use gst::meta::CustomMeta;
use gstreamer as gst;

const NAME: &str = "RoiflowOrigin";

/// The image file from which a frame was decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Index in the list of files, from 0.
    pub image_idx: u64,
    /// Path for display; invalid UTF-8 is replaced.
    pub path: String,
}

/// Attaches the index and the path of an image file to a buffer.
pub fn attach(buffer: &mut gst::BufferRef, image_idx: u64, path: &str) {
    register();
    match CustomMeta::add(buffer, NAME) {
        Ok(mut meta) => {
            let structure = meta.mut_structure();
            structure.set("image", image_idx);
            structure.set("path", path);
        }
        Err(error) => tracing::warn!("cannot attach the path of an image to its frame: {error}"),
    }
}

/// Returns the image file of this buffer; `None` if the buffer does not have this meta.
pub fn read(buffer: &gst::BufferRef) -> Option<Origin> {
    register();
    let meta = CustomMeta::from_buffer(buffer, NAME).ok()?;
    let structure = meta.structure();
    Some(Origin { image_idx: structure.get("image").ok()?, path: structure.get("path").ok()? })
}

fn register() {
    static REGISTERED: LazyLock<()> = LazyLock::new(|| {
        // The plugin and a program that links this library may be in one process. Each of them has this code, but the meta must
        // be registered only once.
        if !CustomMeta::is_registered(NAME) {
            CustomMeta::register(NAME, &[]);
        }
    });
    LazyLock::force(&REGISTERED);
}
