//! The sources that elements create for themselves: for the parts of a playlist, and for the video of a camera.
//!
//! Elements that fetch a playlist, a key, or a part of a manifest create a source outside of any bin, so no signal of a bin reports it. They
//! store what it sends as a whole. So this module listens to the signal with which each element of the process reports a new pad. A context
//! tells the input that a source works for, because GStreamer passes contexts on to such sources.
//!
//! `rtspsrc` creates its UDP sources outside of any bin too, and these look like those that a playlist names. But `rtspsrc` announces them on
//! the same thread.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::connections::on_emission;
use super::{DATA, Intake, MAX_PLAYLIST_BYTES, consume, n_bytes, responses};

/// Type of the context with the number of an input.
const INPUT: &str = "roiflow.input";

/// The inputs of the process. A context has the address of an `Intake` as a number, because it cannot have a weak reference.
static INPUTS: Mutex<Vec<Weak<Intake>>> = Mutex::new(Vec::new());

thread_local! {
    /// The last `rtspsrc` that has selected a stream on this thread, and the name that the thread had then.
    static CAMERA: RefCell<Option<(glib::WeakRef<gst::Element>, String)>> = const { RefCell::new(None) };
}

/// Begins to watch the sources that elements create. Further calls have no effect.
fn watch_sources() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| on_emission(gst::Element::static_type(), c"pad-added", met));
}

/// Begins to note the threads of all cameras. Further calls have no effect.
pub(crate) fn watch_cameras() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let rtspsrc = gst::ElementFactory::find("rtspsrc").and_then(|factory| factory.load().ok());
        rtspsrc.into_iter().for_each(|factory| on_emission(factory.element_type(), c"select-stream", selects));
    });
}

/// Notes that an `rtspsrc` runs on this thread. It selects each stream before it creates the sources for it.
fn selects(values: &[glib::Value]) {
    let source = values.first().and_then(|value| value.get::<gst::Element>().ok());
    CAMERA.set(source.map(|source| (source.downgrade(), thread_name())));
}

/// Connects the sources that are created for the parts of an input with its `intake`. `opener` opens the input.
pub(super) fn connect(intake: &Arc<Intake>, opener: &gst::Element) {
    watch_sources();
    let mut inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
    inputs.retain(|input| input.strong_count() > 0);
    inputs.push(Arc::downgrade(intake));
    drop(inputs);
    let mut context = gst::Context::new(INPUT, true);
    if let Some(context) = context.get_mut() {
        context.structure_mut().set("number", Arc::as_ptr(intake) as u64);
    }
    opener.set_context(&context);
}

/// Returns the intake of the input that a source works for.
fn intake_of(source: &gst::Element) -> Option<Arc<Intake>> {
    if source.context(INPUT).is_none() {
        // A source outside of any bin gets the contexts of the element that has created it during this call.
        let _posted = source.post_message(gst::message::NeedContext::builder(INPUT).src(source).build());
    }
    let number = source.context(INPUT)?.structure().get::<u64>("number").ok()?;
    let inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
    inputs.iter().filter_map(Weak::upgrade).find(|intake| Arc::as_ptr(intake) as u64 == number)
}

/// Whether the input that a source works for has fetched anything from the network.
pub(crate) fn is_of_network(source: &gst::Element) -> bool {
    intake_of(source).is_some_and(|intake| intake.is_of_network.load(Ordering::Acquire))
}

/// Whether an `rtspsrc` creates elements on this thread now.
pub(crate) fn is_of_camera() -> bool {
    // Each task of GStreamer gives its thread a name of its own. So a task that uses the thread later is not the `rtspsrc`.
    CAMERA.with_borrow(|camera| camera.as_ref().is_some_and(|(source, name)| source.upgrade().is_some() && *name == thread_name()))
}

fn thread_name() -> String {
    std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default()
}

/// Watches a new source of the process. The arguments of the signal are the element and the pad.
fn met(values: &[glib::Value]) {
    // A source gets its pad while it is constructed, as an object of its base class. It has no owner yet, so a reference would destroy it.
    let is_source = values.first().is_some_and(|value| value.type_().name() == "GstBaseSrc");
    if let Some(Ok(pad)) = values.get(1).filter(|_| is_source).map(|value| value.get::<gst::Pad>()) {
        watch_requests(&pad);
    }
}

/// Whether the element sends requests by HTTP.
fn is_http(source: &gst::Element) -> bool {
    let handler = source.dynamic_cast_ref::<gst::URIHandler>();
    handler.is_some_and(|handler| handler.protocols().iter().any(|protocol| protocol.starts_with("http")))
}

/// The request of a source outside of any bin.
#[derive(Default)]
struct Request {
    intake: Mutex<Option<Arc<Intake>>>,
    n_bytes: AtomicU64,
}

/// Limits the data of each request of an HTTP source whose data is stored as a whole.
fn watch_requests(pad: &gst::Pad) {
    let request = Request::default();
    pad.add_probe(DATA | gst::PadProbeType::EVENT_DOWNSTREAM, move |pad, info| {
        let mut of_part = request.intake.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gst::PadProbeData::Event(event)) = &info.data {
            // Each request begins with this event, also if the source is used again.
            if let (gst::EventType::StreamStart, Some(source)) = (event.type_(), pad.parent_element()) {
                if !is_http(&source) {
                    return gst::PadProbeReturn::Remove;
                }
                responses::protect();
                hide_referer(&source);
                let intake = intake_of(&source);
                intake.iter().for_each(|intake| intake.is_of_network.store(true, Ordering::Release));
                *of_part = intake.filter(|_| source.parent().is_none());
                request.n_bytes.store(0, Ordering::Relaxed);
            }
            return gst::PadProbeReturn::Ok;
        }
        let Some(intake) = &*of_part else { return gst::PadProbeReturn::Ok };
        let n_bytes = n_bytes(info);
        let is_too_large = request.n_bytes.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes > MAX_PLAYLIST_BYTES;
        if is_too_large {
            intake.has_large_part.store(true, Ordering::Relaxed);
        }
        if is_too_large || intake.is_hung_up.load(Ordering::Relaxed) {
            // The source posts an error, which ends the request.
            info.flow_res = Err(gst::FlowError::Error);
            return consume(info);
        }
        gst::PadProbeReturn::Ok
    });
}

/// Removes the path and the query of the playlist from a request to another server, because they may contain a token.
fn hide_referer(source: &gst::Element) {
    const HEADERS: &str = "extra-headers";
    if source.find_property(HEADERS).is_none_or(|property| property.value_type() != gst::Structure::static_type()) {
        return;
    }
    let Some(mut headers) = source.property::<Option<gst::Structure>>(HEADERS) else { return };
    let Ok(referer) = headers.get::<String>("Referer") else { return };
    let location = source.dynamic_cast_ref::<gst::URIHandler>().and_then(|handler| handler.uri()).unwrap_or_default();
    let place = |uri: &str| uri.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    if place(&referer) != place(&location) {
        headers.remove_field("Referer");
        source.set_property(HEADERS, headers);
    }
}
