//! `roiflow-guarded-source`: opens the addresses that playlists and other descriptions of streams name. The element is not part of the
//! plugin: only the command `roiflow` registers it, with [`install`].
//!
//! GStreamer chooses the source of an address by its protocol. In the process of the command, this element is the first choice for all
//! protocols except those of `FREE`. So a playlist from the network cannot name files, devices or ports of this machine:
//!
//! | the address comes from | is opened by |
//! |---|---|
//! | the property `uri` of a `uridecodebin`, which roiflow or a pipeline description has set | GStreamer's own source |
//! | a playlist that is a local file, see [`allow_files`]: a regular file in its folder | this element, until anything was fetched by HTTP |
//! | an `rtspsrc`: a UDP port for its video | GStreamer's own source |
//! | a `urisourcebin` or the line of a pipeline description: a regular file | this element |
//! | any other place | nothing: the element does not start |
//!
//! Elements that fetch the parts of a playlist create sources outside of any bin, so no signal of a bin reports them. But they pass contexts
//! on to these sources, and a context tells the folder.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use gst_base::subclass::prelude::*;
use gstreamer as gst;
use gstreamer_base as gst_base;

use crate::stages::files;
use crate::{intake, redaction};

/// Name of the element.
const NAME: &str = "roiflow-guarded-source";

/// Protocols that open no files, devices or ports of this machine.
const FREE: [&str; 5] = ["http", "https", "icy", "icyx", "data"];

/// Type of the context with the folder whose files a playlist may name.
const FOLDER: &str = "roiflow.folder-of-playlist";

/// Maximum number of refused addresses that a process logs, because a live playlist can name any number.
const MAX_LOGGED: usize = 20;

/// The protocols of this element. They must be known before its type is registered.
static PROTOCOLS: OnceLock<Vec<&'static str>> = OnceLock::new();

glib::wrapper! {
    /// The element; see the [module](self).
    pub struct GuardedSource(ObjectSubclass<imp::GuardedSource>)
        @extends gst_base::BaseSrc, gst::Element, gst::Object, @implements gst::URIHandler;
}

/// Makes this element the first choice for the addresses of this process. Only the first call has an effect.
///
/// # Errors
/// Returns an error if GStreamer cannot be initialized, or refuses the element. Later calls return the same result.
pub fn install() -> Result<(), glib::BoolError> {
    static DONE: OnceLock<Result<(), glib::BoolError>> = OnceLock::new();
    DONE.get_or_init(|| {
        gst::init().map_err(|error| glib::bool_error!("GStreamer can't be initialized: {error}"))?;
        let registry = gst::Registry::get();
        let factories = registry.features(gst::ElementFactory::static_type());
        let sources = factories.iter().filter_map(|feature| feature.downcast_ref::<gst::ElementFactory>());
        let sources = sources.filter(|factory| factory.uri_type() == gst::URIType::Src);
        let protocols: BTreeSet<String> = sources.flat_map(|factory| factory.uri_protocols()).map(|name| name.to_lowercase()).collect();
        let guarded = protocols.into_iter().filter(|name| !FREE.contains(&&**name)).map(|name| &*name.leak());
        let _first = PROTOCOLS.set(guarded.collect());
        intake::watch_cameras();
        gst::Element::register(None, NAME, gst::Rank::from(i32::MAX), GuardedSource::static_type())
    })
    .clone()
}

/// Allows `opener`, a `uridecodebin` that reads the file `playlist`, to open the files that the playlist names: those in its folder and the
/// subfolders, or any file if `is_anywhere` is true. Has no effect if the file is no playlist.
pub fn allow_files(opener: &gst::Element, playlist: &Path, is_anywhere: bool) {
    let real = playlist.canonicalize().ok();
    let folder = if is_anywhere { Some(Path::new("/")) } else { real.as_deref().and_then(Path::parent) };
    let Some(folder) = folder else { return };
    let mut context = gst::Context::new(FOLDER, true);
    if let Some(context) = context.get_mut() {
        context.structure_mut().set("folder", glib::Bytes::from(folder.as_os_str().as_bytes()));
    }
    opener.set_context(&context);
}

/// Whether the address is one of those with which `rtspsrc` receives video: any free port of this machine, or a multicast group. Playlists
/// can contain the same addresses.
fn is_of_rtsp(uri: &str) -> bool {
    let Some(place) = uri.strip_prefix("udp://") else { return false };
    let is_group = |host: &str| host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_multicast());
    matches!(place, "0.0.0.0" | "[::0]" | "[::]") || place.rsplit_once(':').is_some_and(|(host, _)| is_group(host))
}

mod imp {
    use super::*;

    #[derive(Default)]
    pub struct GuardedSource {
        uri: Mutex<Option<String>>,
        /// The open file with its size, from start to stop.
        file: Mutex<Option<(File, u64)>>,
    }

    #[glib::object_subclass]
    impl ObjectSubclass for GuardedSource {
        const NAME: &'static str = "RoiflowGuardedSource";
        /// Two copies of the library in one process register this type name, so a name conflict is not an error.
        const ALLOW_NAME_CONFLICT: bool = true;
        type Type = super::GuardedSource;
        type ParentType = gst_base::BaseSrc;
        type Interfaces = (gst::URIHandler,);
    }

    impl ObjectImpl for GuardedSource {
        fn constructed(&self) {
            self.parent_constructed();
            self.obj().set_format(gst::Format::Bytes);
            self.obj().set_blocksize(1 << 16);
        }
    }

    impl GstObjectImpl for GuardedSource {}

    impl ElementImpl for GuardedSource {
        fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
            static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
                let about = "Opens the addresses that playlists name, if they are files in an allowed folder";
                gst::subclass::ElementMetadata::new("Guarded source", "Source/File", about, "The roiflow authors")
            });
            Some(&METADATA)
        }

        fn pad_templates() -> &'static [gst::PadTemplate] {
            static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
                let caps = gst::Caps::new_any();
                let source = gst::PadTemplate::new("src", gst::PadDirection::Src, gst::PadPresence::Always, &caps);
                source.into_iter().collect()
            });
            &TEMPLATES
        }
    }

    impl URIHandlerImpl for GuardedSource {
        const URI_TYPE: gst::URIType = gst::URIType::Src;

        fn protocols() -> &'static [&'static str] {
            PROTOCOLS.get().map_or(&[], Vec::as_slice)
        }

        fn uri(&self) -> Option<String> {
            self.lock_uri().clone()
        }

        fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
            // `uridecodebin` calls the sources that it creates `source`. The elements that fetch the parts of a playlist give no name.
            if self.obj().name() == "source" || is_of_rtsp(uri) && intake::is_of_camera() {
                // Then GStreamer takes the source of the next lower rank.
                return Err(glib::Error::new(gst::URIError::UnsupportedProtocol, "another source opens this address"));
            }
            *self.lock_uri() = Some(uri.to_owned());
            Ok(())
        }
    }

    impl BaseSrcImpl for GuardedSource {
        fn start(&self) -> Result<(), gst::ErrorMessage> {
            let uri = self.uri().unwrap_or_default();
            match self.open(&uri) {
                Ok(opened) => {
                    *self.lock_file() = Some(opened);
                    Ok(())
                }
                Err(reason) => {
                    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
                    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
                    // Not all elements that fetch the parts of a playlist report the errors of their sources, and all of them try again.
                    if logged.len() < MAX_LOGGED && logged.insert(reason.clone()) {
                        tracing::warn!("{reason}");
                    }
                    Err(gst::error_msg!(gst::ResourceError::NotAuthorized, ("{reason}")))
                }
            }
        }

        fn stop(&self) -> Result<(), gst::ErrorMessage> {
            *self.lock_file() = None;
            Ok(())
        }

        fn is_seekable(&self) -> bool {
            true
        }

        fn size(&self) -> Option<u64> {
            self.lock_file().as_ref().map(|(_, n_bytes)| *n_bytes)
        }

        fn fill(&self, offset: u64, _length: u32, buffer: &mut gst::BufferRef) -> Result<gst::FlowSuccess, gst::FlowError> {
            let n_bytes = {
                let file = self.lock_file();
                let (file, _) = file.as_ref().ok_or(gst::FlowError::Flushing)?;
                let mut bytes = buffer.map_writable().map_err(|_| gst::FlowError::Error)?;
                file.read_at(&mut bytes, offset).map_err(|error| {
                    gst::element_imp_error!(self, gst::ResourceError::Read, ["cannot read a file that a playlist names: {error}"]);
                    gst::FlowError::Error
                })?
            };
            if n_bytes == 0 {
                return Err(gst::FlowError::Eos);
            }
            buffer.set_size(n_bytes);
            Ok(gst::FlowSuccess::Ok)
        }
    }

    impl GuardedSource {
        fn lock_uri(&self) -> std::sync::MutexGuard<'_, Option<String>> {
            self.uri.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn lock_file(&self) -> std::sync::MutexGuard<'_, Option<(File, u64)>> {
            self.file.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Opens the file of an address, if it is allowed. Returns the file with its size, or why it is refused. The reason does not
        /// tell whether a file exists.
        fn open(&self, uri: &str) -> Result<(File, u64), String> {
            let shown = redaction::redact(uri);
            let Some(folder) = self.folder() else {
                return Err(format!(
                    "refused `{shown}`, which a playlist or another description of the input names: expected an address with http or https. What comes \
                     from the network cannot name files, devices or ports of this machine, and a local playlist can name files only until anything \
                     was fetched from the network"
                ));
            };
            let refused = || {
                format!(
                    "refused `{shown}`, which the playlist names: expected a file in the folder of the playlist, `{}`. Move the file there, or allow \
                     other files with --allow-outside-files",
                    folder.display()
                )
            };
            let (path, host) = glib::filename_from_uri(uri).map_err(|_| refused())?;
            let is_local = host.is_none_or(|host| host.is_empty() || host.eq_ignore_ascii_case("localhost"));
            let path = path.canonicalize().ok().filter(|path| is_local && path.starts_with(&folder)).ok_or_else(refused)?;
            let failed = |error: &dyn std::fmt::Display| format!("cannot read `{shown}`, which the playlist names: {error}");
            let file = files::open_regular(&path, "file of a playlist").map_err(|error| failed(&error))?;
            let n_bytes = file.metadata().map_err(|error| failed(&error))?.len();
            Ok((file, n_bytes))
        }

        /// Returns the folder whose files this source may open; `None`: no files.
        fn folder(&self) -> Option<PathBuf> {
            let element = self.obj();
            let parent = element.parent().and_downcast::<gst::Element>();
            let is_trusted = |parent: gst::Element| {
                parent.is::<gst::Pipeline>() || parent.factory().is_some_and(|factory| factory.name() == "urisourcebin")
            };
            if parent.is_some_and(is_trusted) {
                return Some(PathBuf::from("/"));
            }
            if element.context(FOLDER).is_none() {
                // A source outside of any bin gets the contexts of the element that has created it during this call.
                let _posted = element.post_message(gst::message::NeedContext::builder(FOLDER).src(&*element).build());
            }
            let folder = element.context(FOLDER)?.structure().get::<glib::Bytes>("folder").ok()?;
            // A playlist that was fetched may name the file.
            (!intake::is_of_network(element.upcast_ref())).then(|| PathBuf::from(OsStr::from_bytes(&folder)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_addresses_of_rtsp_are_known() {
        for uri in ["udp://0.0.0.0", "udp://[::0]", "udp://239.1.2.3:5004", "udp://[ff02::1]:5004"] {
            assert!(is_of_rtsp(uri), "{uri}");
        }
        for uri in ["udp://0.0.0.0:5004", "udp://127.0.0.1:80", "udp://host:1", "udp://", "file://239.1.2.3:5004", "rtp://0.0.0.0"] {
            assert!(!is_of_rtsp(uri), "{uri}");
        }
    }
}
