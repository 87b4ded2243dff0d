//! The libraries of the decoder that a stream needs, opened one by one before GStreamer opens them together.
//!
//! On Debian libav's plugin brings some 150 libraries along. The loader looks each symbol of what is opened together up in all of
//! it, and meanwhile whoever else opens a library, or makes a thread that uses one, waits: engines do both while they make a model.
//! Opened one by one, each behind those that it needs itself, they take half the time, and others come in between. That is as if other
//! plugins had needed them before.
//!
//! What can't be read or opened this way is left to GStreamer, whose errors are told.

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

/// Plugins whose libraries were opened; locked while they are, for those who need the same.
static PREPARED: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);

/// Opens the libraries of the decoder that is likeliest for these caps, unless they are open or there is none.
pub(super) fn prepare(caps: &gst::Caps) {
    let kind = gst::ElementFactoryType::DECODER | gst::ElementFactoryType::MEDIA_VIDEO;
    // Sorted by rank, as those are that GStreamer tries.
    let decoders = gst::ElementFactory::factories_with_type(kind, gst::Rank::MARGINAL);
    let Some(plugin) = decoders.iter().find(|decoder| decoder.can_sink_any_caps(caps)).and_then(|decoder| decoder.plugin()) else { return };
    let Some(file) = plugin.filename().filter(|_| !plugin.is_loaded()) else { return };
    let mut prepared = PREPARED.lock().unwrap_or_else(PoisonError::into_inner);
    if !prepared.contains(&file) {
        let n_opened = open_needs(&file);
        tracing::debug!(plugin = %file.display(), n_opened, "opened the libraries of a decoder");
        prepared.insert(file);
    }
}

/// Opens what a library needs, and what that needs before it; how many were opened.
fn open_needs(library: &Path) -> usize {
    // Plugins lie in a folder below the libraries. Another place is only a worse order: the loader finds what it opens by itself.
    let folders: Vec<&Path> = library.ancestors().skip(1).take(2).collect();
    let (mut ordered, mut seen) = (Vec::new(), HashSet::new());
    order_needs(library, &folders, &mut seen, &mut ordered);
    ordered.iter().filter(|name| open(name)).count()
}

/// Appends the names of what a library needs, each behind what it needs itself.
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

/// The names of the libraries that one says it needs (`DT_NEEDED`).
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

/// Opens a library for good, as GStreamer opens plugins; false if the loader does not find it, or it does not stand alone.
fn open(name: &str) -> bool {
    // SAFETY: what opening it runs is what runs when GStreamer opens the plugin that needs it, which it is about to do on this thread.
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
    fn what_a_library_needs_stands_before_it() {
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
    fn what_is_no_library_needs_nothing() {
        assert!(needs(Path::new("/nowhere/libnothing.so")).is_err());
        assert!(needs(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))).is_err());
        assert_eq!(open_needs(Path::new("/nowhere/libnothing.so")), 0);
        assert!(!open("libnothing-of-this-name.so.99"));
    }

    #[test]
    fn the_libraries_of_a_decoder_are_opened_once() {
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
