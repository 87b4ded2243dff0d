//! Loads the libraries of a decoder plugin one by one, before GStreamer would load all of them at once.
//!
//! On Debian, libav's plugin has about 150 dependencies. When these libraries are loaded together, the loader looks up each symbol in all
//! of them, and holds its lock during this time. Engines that compile a model also need this lock. Loaded one by one in dependency order,
//! the libraries take half the time, and other threads can load libraries in between. The result is the same as if other plugins had loaded
//! these libraries earlier.
//!
//! If this module cannot read or load a library, it ignores the error: GStreamer loads the library later, and reports the error.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use elf::abi::{DT_NEEDED, SHT_DYNAMIC};
use elf::endian::AnyEndian;
use elf::{ElfStream, ParseError};
use gst::prelude::*;
use gstreamer as gst;
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// Files of the plugins whose libraries were loaded. The lock is held while libraries are loaded. So a second thread that needs the
/// same libraries waits until they are loaded.
static PREPARED: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);

/// Loads the libraries of the most likely decoder for these caps, unless they are loaded already.
pub(super) fn prepare(caps: &gst::Caps) {
    let kind = gst::ElementFactoryType::DECODER | gst::ElementFactoryType::MEDIA_VIDEO;
    // The list is sorted by rank, which is the order in which GStreamer tries decoders.
    let decoders = gst::ElementFactory::factories_with_type(kind, gst::Rank::MARGINAL);
    let Some(plugin) = decoders.iter().find(|decoder| decoder.can_sink_any_caps(caps)).and_then(|decoder| decoder.plugin()) else { return };
    let Some(file) = plugin.filename().filter(|_| !plugin.is_loaded()) else { return };
    let mut prepared = PREPARED.lock().unwrap_or_else(PoisonError::into_inner);
    if !prepared.contains(&file) {
        let n_opened = open_needs(&file);
        tracing::debug!(plugin = %file.display(), n_opened, "loaded the libraries of a decoder");
        prepared.insert(file);
    }
}

/// Loads the dependencies of a library in dependency order. Returns the number of loaded libraries.
fn open_needs(library: &Path) -> usize {
    // Plugins are usually in a subfolder of the folder with the libraries. If they are elsewhere, this function does not find the
    // dependencies of these libraries. This changes only the load order, because the loader itself finds all libraries.
    let folders: Vec<&Path> = library.ancestors().skip(1).take(2).collect();
    let (mut ordered, mut seen) = (Vec::new(), HashSet::new());
    order_needs(library, &folders, &mut seen, &mut ordered);
    ordered.iter().filter(|name| open(name)).count()
}

/// Appends the dependencies of a library to `ordered`. Each dependency comes after the libraries on which it depends.
fn order_needs(library: &Path, folders: &[&Path], seen: &mut HashSet<String>, ordered: &mut Vec<String>) {
    for name in needs(library).unwrap_or_default() {
        if seen.insert(name.clone()) {
            if let Some(path) = folders.iter().map(|folder| folder.join(&name)).find(|path| path.exists()) {
                order_needs(&path, folders, seen, ordered);
            }
            ordered.push(name);
        }
    }
}

/// Returns the names of the direct dependencies of a library (`DT_NEEDED`).
fn needs(library: &Path) -> Result<Vec<String>, ParseError> {
    let mut file = ElfStream::<AnyEndian, _>::open_stream(File::open(library)?)?;
    let needed: Vec<u64> = match file.dynamic()? {
        Some(entries) => entries.iter().filter(|entry| entry.d_tag == DT_NEEDED).map(|entry| entry.d_val()).collect(),
        None => return Ok(Vec::new()),
    };
    let sections = file.section_headers();
    let names = sections.iter().find(|section| section.sh_type == SHT_DYNAMIC).and_then(|section| sections.get(section.sh_link as usize));
    let Some(names) = names.copied() else { return Ok(Vec::new()) };
    let names = file.section_data_as_strtab(&names)?;
    needed.iter().map(|&offset| Ok(names.get(usize::try_from(offset)?)?.to_owned())).collect()
}

/// Loads a library permanently, as GStreamer loads plugins. Returns false if the loader fails.
fn open(name: &str) -> bool {
    // SAFETY: `Library::open` runs the initializers of the library, which must be sound to run. GStreamer is about to load the plugin on
    // this thread, which would run the same initializers.
    let opened = unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_LOCAL) };
    opened.map(std::mem::forget).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(element: &str) -> Option<PathBuf> {
        gst::init().unwrap();
        gst::ElementFactory::find(element)?.plugin()?.filename()
    }

    #[test]
    fn dependencies_come_first() {
        let plugin = file_of("videoconvert").unwrap();
        let folders: Vec<&Path> = plugin.ancestors().skip(1).take(2).collect();
        let (mut ordered, mut seen) = (Vec::new(), HashSet::new());
        order_needs(&plugin, &folders, &mut seen, &mut ordered);
        let place = |begin: &str| ordered.iter().position(|name| name.starts_with(begin)).unwrap_or_else(|| panic!("{begin}: {ordered:?}"));
        for (needed, by) in
            [("libglib-2.0.so", "libgobject-2.0.so"), ("libgobject-2.0.so", "libgstreamer-1.0.so"), ("libc.so", "libglib-2.0.so")]
        {
            assert!(place(needed) < place(by), "{needed} before {by}: {ordered:?}");
        }
        assert_eq!(seen.len(), ordered.len(), "each once: {ordered:?}");
    }

    #[test]
    fn other_files_have_no_dependencies() {
        assert!(needs(Path::new("/nowhere/libnothing.so")).is_err());
        assert!(needs(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))).is_err());
        assert_eq!(open_needs(Path::new("/nowhere/libnothing.so")), 0);
        assert!(!open("libnothing-of-this-name.so.99"));
    }

    #[test]
    fn libraries_of_a_decoder_are_loaded_once() {
        let Some(plugin) = file_of("avdec_h264") else { return eprintln!("skipped: avdec_h264 is not installed") };
        prepare(&gst::Caps::builder("video/x-h264").build());
        let mapped = std::fs::read_to_string("/proc/self/maps").unwrap();
        for name in needs(&plugin).unwrap() {
            assert!(mapped.contains(&name.split(".so").next().unwrap().to_owned()), "{name} is open");
        }
        assert!(PREPARED.lock().unwrap().contains(&plugin));
        prepare(&gst::Caps::builder("video/x-nothing").build());
    }
}
