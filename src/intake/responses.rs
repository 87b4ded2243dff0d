//! Keeps libsoup, which `souphttpsrc` uses, from a crash when a source stops.
//!
//! libsoup without its commit bd3f16bd of May 2025 follows a null pointer if a response is dropped after its request has left the queue of the
//! session. A request leaves if it is cancelled after the response is there and before the source takes it: the source stops at the moment
//! when a response begins. This ended about one of a thousand processes that stopped a source while it connected, with all their streams. So
//! this module notes which requests have left the queue, and replaces the function that closes a response.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{LazyLock, Once};

use gio_sys::{GCancellable, GInputStream, GInputStreamClass};
use gst::glib::translate::{Borrowed, IntoGlib, from_glib_borrow};
use gst::glib::{self, ffi, gobject_ffi};
use gst::prelude::*;
use gstreamer as gst;

use super::connections::on_emission;

type Close = unsafe extern "C" fn(*mut GInputStream, *mut GCancellable, *mut *mut ffi::GError) -> ffi::gboolean;

/// The property of a response with its request.
const REQUEST: &str = "message";

/// Marks a request that has left the queue of its session.
static HAS_LEFT: LazyLock<glib::Quark> = LazyLock::new(|| glib::Quark::from_str("roiflow-has-left"));

/// libsoup's own [`Close`], or null before [`replace_close`].
static CLOSE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Begins to protect all responses of the process. Call this before the first request of a `souphttpsrc`, when it has a session. Further calls
/// have no effect.
pub(super) fn protect() {
    static ONCE: Once = Once::new();
    if let Some(session) = glib::Type::from_name("SoupSession") {
        ONCE.call_once(|| {
            on_emission(session, c"request-queued", enters);
            on_emission(session, c"request-unqueued", leaves);
        });
    }
}

/// Returns the request from the arguments of a signal, which are the session and the request.
fn request(values: &[glib::Value]) -> Option<glib::Object> {
    values.get(1).and_then(|value| value.get::<glib::Object>().ok())
}

/// `souphttpsrc` repeats a failed request as the same object.
fn enters(values: &[glib::Value]) {
    if let Some(request) = request(values) {
        // SAFETY: values of this quark have the type `()`.
        unsafe { request.steal_qdata::<()>(*HAS_LEFT) };
    }
}

fn leaves(values: &[glib::Value]) {
    static ONCE: Once = Once::new();
    let Some(request) = request(values) else { return };
    // SAFETY: values of this quark have the type `()`.
    unsafe { request.set_qdata(*HAS_LEFT, ()) };
    // The class exists since the first response. Only a response whose request has left is a danger.
    if let Some(response) = glib::Type::from_name("SoupClientInputStream") {
        ONCE.call_once(|| replace_close(response));
    }
}

/// Replaces the function that closes responses, which are `GInputStream`s.
fn replace_close(response: glib::Type) {
    // SAFETY: the type is registered, and it is a class. The reference to the class is kept, so the class stays.
    let class = unsafe { gobject_ffi::g_type_class_ref(response.into_glib()) }.cast::<GInputStreamClass>();
    // SAFETY: the pointer to a class is valid, and all instances and classes of libsoup's type are of `GObject`.
    let property = unsafe { gobject_ffi::g_object_class_find_property(class.cast(), c"message".as_ptr()) };
    if property.is_null() || !response.is_a(stream_type()) {
        return;
    }
    // SAFETY: the class is one of a `GInputStream`. Other threads read this field as a pointer, which is written at once. The value is null
    // or a function of the type `Close`, and `Option<Close>` has the layout of a pointer.
    let close = unsafe { AtomicPtr::from_ptr((&raw mut (*class).close_fn).cast::<*mut c_void>()) };
    CLOSE.store(close.load(Ordering::Acquire), Ordering::Release);
    close.store(close_safely as Close as *mut c_void, Ordering::Release);
}

fn stream_type() -> glib::Type {
    // SAFETY: the function has no condition, and returns a type that GLib registers.
    unsafe { glib::translate::from_glib(gio_sys::g_input_stream_get_type()) }
}

/// Closes a response, unless its request has left the queue: libsoup has then nothing to close.
unsafe extern "C" fn close_safely(
    stream: *mut GInputStream,
    cancellable: *mut GCancellable,
    error: *mut *mut ffi::GError,
) -> ffi::gboolean {
    // SAFETY: GLib calls this function with a response, which is an object and lives until it returns.
    let response: Borrowed<glib::Object> = unsafe { from_glib_borrow(stream.cast::<gobject_ffi::GObject>()) };
    let request = response.property::<Option<glib::Object>>(REQUEST);
    // SAFETY: values of this quark have the type `()`.
    let has_left = request.is_some_and(|request| unsafe { request.qdata::<()>(*HAS_LEFT) }.is_some());
    let Some(close) = NonNull::new(CLOSE.load(Ordering::Acquire)).filter(|_| !has_left) else { return ffi::GTRUE };
    // SAFETY: the pointer comes from this field of the class, so it is a function of this type. It gets the arguments that GLib has passed.
    unsafe { std::mem::transmute::<*mut c_void, Close>(close.as_ptr())(stream, cancellable, error) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::{CString, c_char, c_int};
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::ptr;

    use gio_sys::{GAsyncReadyCallback, GAsyncResult};

    use super::*;

    thread_local! {
        /// The cancellable of the request, until the request has ended.
        static CANCELLABLE: Cell<*mut GCancellable> = const { Cell::new(ptr::null_mut()) };
    }

    type Finish = unsafe extern "C" fn(*mut gobject_ffi::GObject, *mut GAsyncResult, *mut *mut ffi::GError) -> *mut GInputStream;

    /// Cancels the request although its response is there, as a source that stops does.
    unsafe extern "C" fn ended(session: *mut gobject_ffi::GObject, result: *mut GAsyncResult, finish: ffi::gpointer) {
        // SAFETY: the test keeps the cancellable, and passes a function of this type. Both get what libsoup passes.
        unsafe {
            gio_sys::g_cancellable_cancel(CANCELLABLE.replace(ptr::null_mut()));
            let response = std::mem::transmute::<ffi::gpointer, Finish>(finish)(session, result, ptr::null_mut());
            assert!(response.is_null(), "the result keeps the response");
        }
    }

    #[test]
    fn response_may_be_dropped_after_its_request_has_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = CString::new(format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _request = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbytes").unwrap();
        });
        // SAFETY: the symbols have these types. The objects live until the last line; the callback runs on this thread.
        unsafe {
            let soup = libloading::Library::new("libsoup-3.0.so.0").expect("GStreamer's HTTP source uses libsoup 3");
            let new_session = soup.get::<unsafe extern "C" fn() -> *mut c_void>(b"soup_session_new").unwrap();
            let new_message = soup.get::<unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void>(b"soup_message_new").unwrap();
            type Send = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut GCancellable, GAsyncReadyCallback, ffi::gpointer);
            let send = soup.get::<Send>(b"soup_session_send_async").unwrap();
            let finish = *soup.get::<Finish>(b"soup_session_send_finish").unwrap();
            let (session, message) = (new_session(), new_message(c"GET".as_ptr(), uri.as_ptr()));
            protect();
            let cancellable = gio_sys::g_cancellable_new();
            CANCELLABLE.set(cancellable);
            send(session, message, 0, cancellable, Some(ended), finish as ffi::gpointer);
            // Without protection, the process ends in the last iteration.
            while !CANCELLABLE.get().is_null() {
                ffi::g_main_context_iteration(ptr::null_mut(), ffi::GTRUE);
            }
            for object in [message, session, cancellable.cast()] {
                gobject_ffi::g_object_unref(object.cast());
            }
            // The types of the library are registered for good.
            std::mem::forget(soup);
        }
        assert!(!CLOSE.load(Ordering::Acquire).is_null());
        server.join().unwrap();
    }
}
