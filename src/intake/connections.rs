//! The TCP connections of `rtspsrc`: how many bytes they have received, and how to end them.
//!
//! `rtspsrc` stores a response of any size, and cannot be stopped while a response arrives. It does not show its connections either. So this
//! module listens to a signal of GLib's `GSocketClient`, which makes the connections, for all clients of the process. The signal comes on the
//! thread that connects.

use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::Once;

use gst::glib::translate::{FromGlib, IntoGlib};
use gst::glib::{self, ffi, gobject_ffi};
use gst::prelude::*;
use gstreamer as gst;

/// A connection of a `GSocket`. It does not keep the socket open.
#[derive(Debug)]
pub(super) struct Connection(glib::WeakRef<glib::Object>);

// SAFETY: references to objects are counted atomically, also weak ones. This type reads only the property `fd`, and calls
// `g_socket_shutdown`; GLib allows both on every thread.
unsafe impl Send for Connection {}
// SAFETY: as for `Send`.
unsafe impl Sync for Connection {}

impl PartialEq for Connection {
    fn eq(&self, other: &Self) -> bool {
        self.0.upgrade() == other.0.upgrade()
    }
}

thread_local! {
    /// The socket of the last connection that this thread has made.
    static LAST: RefCell<Option<glib::WeakRef<glib::Object>>> = const { RefCell::new(None) };
}

unsafe extern "C" {
    fn g_socket_client_get_type() -> ffi::GType;
    fn g_socket_shutdown(socket: *mut c_void, read: ffi::gboolean, write: ffi::gboolean, error: *mut *mut ffi::GError) -> ffi::gboolean;
    fn getsockopt(socket: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut c_uint) -> c_int;
}

/// Calls `act` for each emission of a signal of a type, with the object and the arguments. A signal that the type does not have is never
/// emitted.
pub(super) fn on_emission(type_: glib::Type, signal: &CStr, act: fn(&[glib::Value])) {
    // SAFETY: the functions take a type and the name of one of its signals. The class is not released, so the signal stays. `emitted` has the
    // signature of an emission hook, and gets the function as its data.
    unsafe {
        gobject_ffi::g_type_class_ref(type_.into_glib());
        let signal = gobject_ffi::g_signal_lookup(signal.as_ptr(), type_.into_glib());
        if signal != 0 {
            gobject_ffi::g_signal_add_emission_hook(signal, 0, Some(emitted), act as *mut c_void, None);
        }
    }
}

/// Calls the function `data`.
unsafe extern "C" fn emitted(
    _hint: *mut gobject_ffi::GSignalInvocationHint,
    n_values: c_uint,
    values: *const gobject_ffi::GValue,
    data: ffi::gpointer,
) -> ffi::gboolean {
    // SAFETY: GObject passes `n_values` initialized values, which live until this function returns. `Value` has the layout of `GValue`.
    let values = unsafe { std::slice::from_raw_parts(values.cast::<glib::Value>(), n_values as usize) };
    // SAFETY: `on_emission` has passed a function of this type.
    let act = unsafe { std::mem::transmute::<ffi::gpointer, fn(&[glib::Value])>(data) };
    act(values);
    ffi::GTRUE
}

/// Begins to note the connections that threads make. Further calls have no effect.
pub(super) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function has no condition, and returns a type that GLib registers.
        let client = unsafe { glib::Type::from_glib(g_socket_client_get_type()) };
        on_emission(client, c"event", note);
    });
}

/// Notes the socket of a new connection. The arguments of the signal are the client, the event, the address, and the connection.
fn note(values: &[glib::Value]) {
    let connection = values.get(3).and_then(|value| value.get::<Option<glib::Object>>().ok().flatten());
    // Only a connection without TLS has a socket. TLS is added to it later, with further events.
    let socket = connection
        .filter(|connection| connection.type_().name() == "GTcpConnection")
        .and_then(|connection| connection.property::<Option<glib::Object>>("socket"));
    if let Some(socket) = socket {
        // Without access, the thread is ending.
        let _noted = LAST.try_with(|last| *last.borrow_mut() = Some(socket.downgrade()));
    }
}

impl Connection {
    /// Returns the last connection that this thread has made, if it still exists.
    pub(super) fn of_this_thread() -> Option<Self> {
        let last = LAST.with_borrow(Clone::clone)?;
        last.upgrade().map(|_| Self(last))
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.upgrade().is_some()
    }

    /// Number of bytes that have arrived. 0: the system does not tell.
    pub(super) fn n_received(&self) -> u64 {
        /// Linux: `SOL_TCP`, `TCP_INFO`, and the place of `tcpi_bytes_received` in `struct tcp_info`, in units of 8 bytes.
        const TCP: c_int = 6;
        const INFO: c_int = 11;
        const RECEIVED: usize = 16;
        let Some(socket) = self.0.upgrade().filter(|_| cfg!(target_os = "linux")) else { return 0 };
        let mut info = [0_u64; 32];
        let mut length = size_of_val(&info) as c_uint;
        // SAFETY: the system writes at most `length` bytes to `info`. Any number is a valid argument as a socket: the call then fails.
        let failed = unsafe { getsockopt(socket.property("fd"), TCP, INFO, info.as_mut_ptr().cast(), &raw mut length) } != 0;
        let is_told = !failed && length as usize >= (RECEIVED + 1) * size_of::<u64>();
        if is_told { info[RECEIVED] } else { 0 }
    }

    /// Ends the connection: its reader gets an end of file.
    pub(super) fn close(&self) {
        if let Some(socket) = self.0.upgrade() {
            // SAFETY: the object is a `GSocket`, because it is the property `socket` of a `GTcpConnection`. An error need not be returned.
            unsafe { g_socket_shutdown(socket.as_ptr().cast(), ffi::GTRUE, ffi::GTRUE, std::ptr::null_mut()) };
        }
    }
}
