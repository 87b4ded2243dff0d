//! The GStreamer meta that carries results. All copies of the library in a process share it.
//!
//! A program that links the library may also load the plugin, which is a second copy with its own code, statics and Rust types. GStreamer
//! has one table of meta types per process. So the first copy registers the type, and other copies use it.
//!
//! The shared data has a C layout: [`Raw`], [`Held`], [`Functions`] and the encoding ([`super::payload`]). The version of this layout is
//! part of the name of the meta type. A payload belongs to the copy that wrote it. Other copies retain, release and encode a payload
//! through the functions that are stored with the payload. No copy uses Rust types or memory of another copy, so copies may differ in
//! version, compiler and allocator.
//!
//! A change of the layout requires a new version of the layout. Copies with different layout versions use separate meta types. Each copy
//! reads the results of the other copies only from region metas, as it reads the results of any other detector.

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::{Arc, LazyLock};

use gst::glib;
use gst::glib::gobject_ffi;
use gst::glib::translate::*;
use gst::prelude::*;
use gstreamer as gst;

use super::payload::Payload;
use crate::frame::ObjectId;

/// Returns the payload of this buffer; `None` if the buffer has none, or if another copy of the library wrote it in an
/// incompatible encoding.
pub(super) fn get(buffer: &gst::BufferRef) -> Option<Arc<Payload>> {
    let meta = buffer.meta::<ResultsMeta>()?;
    meta.0.held.payload()
}

/// Returns mutable access to the payload. Returns `None` if a copy of the buffer shares the payload, or if another copy of the library
/// wrote it.
pub(super) fn get_mut(buffer: &mut gst::BufferRef) -> Option<&mut Payload> {
    let held = buffer.meta::<ResultsMeta>().map(|meta| (meta.0.held.functions, meta.0.held.payload))?;
    let (functions, payload) = held;
    if !ptr::eq(functions, &raw const FUNCTIONS) {
        return None;
    }
    // SAFETY: the payload belongs to this copy, so it comes from `Held::of`. The meta's reference is borrowed and not released here.
    let mut borrowed = ManuallyDrop::new(unsafe { Arc::from_raw(payload.cast::<Payload>()) });
    let payload = ptr::from_mut(Arc::get_mut(&mut borrowed)?);
    // SAFETY: the meta's reference is the only one, and the buffer is mutably borrowed as long as the returned reference.
    Some(unsafe { &mut *payload })
}

/// Whether the buffer has a payload.
pub(super) fn is_there(buffer: &gst::BufferRef) -> bool {
    buffer.meta::<ResultsMeta>().is_some()
}

/// Sets the payload of this buffer and releases the previous one.
pub(super) fn put(buffer: &mut gst::BufferRef, payload: Arc<Payload>) {
    put_held(buffer, Held::of(payload));
}

/// Calls `act` while no other copy of the library in the process is in such a call.
pub(super) fn exclude_other_copies(act: impl FnOnce()) {
    let registry = registry();
    // All copies of the library in the process lock the same object.
    let _guard = registry.object_lock();
    act();
}

/// Reserves a range of object IDs that no other copy in the process uses. Call this once, before the first frame.
pub(super) fn claim_ids() {
    let api = registered().api().into_glib();
    let registry = registry();
    // All copies of the library in the process lock the same object, so this lock excludes the other copies.
    let _guard = registry.object_lock();
    // SAFETY: the type is registered, the name is a static C string, and the data is a number that is never dereferenced.
    let n_before = unsafe {
        let quark = glib::ffi::g_quark_from_static_string(c"roiflow-copies".as_ptr());
        let n_before = gobject_ffi::g_type_get_qdata(api, quark) as usize;
        gobject_ffi::g_type_set_qdata(api, quark, (n_before + 1) as glib::ffi::gpointer);
        n_before
    };
    ObjectId::begin_at_copy(n_before);
}

/// Returns GStreamer's plugin registry. All copies of the library use the lock of this object. The object is valid even while GStreamer
/// scans plugins during initialization.
fn registry() -> gst::Registry {
    // SAFETY: the function returns a valid pointer, because GStreamer creates its registry before it scans plugins.
    unsafe { from_glib_none(gst::ffi::gst_registry_get()) }
}

fn put_held(buffer: &mut gst::BufferRef, mut held: Held) {
    if let Some(mut meta) = buffer.meta_mut::<ResultsMeta>() {
        meta.0.held = held;
        return;
    }
    // SAFETY: a `&mut BufferRef` is a writable buffer; the info is never freed; the parameter has the type that `init` expects and
    // outlives the call.
    let meta =
        unsafe { gst::ffi::gst_buffer_add_meta(buffer.as_mut_ptr(), registered().0.as_ptr(), ptr::from_mut(&mut held).cast::<c_void>()) };
    debug_assert!(!meta.is_null(), "init never refuses");
}

/// The results meta as a type for the meta functions of gstreamer-rs.
#[repr(transparent)]
struct ResultsMeta(Raw);

/// The results meta as a C struct. It begins with the header `GstMeta`, as every meta does.
#[repr(C)]
pub(super) struct Raw {
    parent: gst::ffi::GstMeta,
    held: Held,
}

/// A payload, and the functions of the library copy that wrote it. Both pointers are null if a meta was added without a payload.
#[repr(C)]
struct Held {
    functions: *const Functions,
    payload: *const c_void,
}

/// Functions of one copy of the library, through which all copies handle the payloads that this copy wrote. They are valid until the
/// process ends.
#[repr(C)]
struct Functions {
    /// Adds a reference to the payload.
    retain: unsafe extern "C" fn(payload: *const c_void),
    /// Removes a reference from the payload.
    release: unsafe extern "C" fn(payload: *const c_void),
    /// Calls `sink` once with the encoded payload, whose bytes are valid during the call.
    encode: unsafe extern "C" fn(payload: *const c_void, sink: Sink, context: *mut c_void),
}

type Sink = unsafe extern "C" fn(context: *mut c_void, bytes: *const u8, len: usize);

/// The functions of this copy. If a payload is stored with the address of this static, this copy wrote the payload.
static FUNCTIONS: Functions = Functions { retain, release, encode };

/// Adds a reference to a payload.
///
/// # Safety
/// `payload` belongs to this copy.
unsafe extern "C" fn retain(payload: *const c_void) {
    // SAFETY: the caller guarantees that the payload belongs to this copy, so it comes from `Held::of`.
    unsafe { Arc::increment_strong_count(payload.cast::<Payload>()) }
}

/// Removes a reference from a payload, and frees the payload if this was the last reference.
///
/// # Safety
/// `payload` belongs to this copy, and the caller owns a reference to it.
unsafe extern "C" fn release(payload: *const c_void) {
    // SAFETY: the caller guarantees that the payload belongs to this copy, and passes its reference to this function.
    unsafe { Arc::decrement_strong_count(payload.cast::<Payload>()) }
}

/// Passes the encoded payload to `sink`.
///
/// # Safety
/// `payload` belongs to this copy, and `sink` may be called with `context`.
unsafe extern "C" fn encode(payload: *const c_void, sink: Sink, context: *mut c_void) {
    // SAFETY: the caller guarantees that the payload belongs to this copy, so it is a valid `Payload`.
    let bytes = unsafe { &*payload.cast::<Payload>() }.encode();
    // SAFETY: the caller guarantees that `sink` may be called with `context`; the bytes are valid during the call.
    unsafe { sink(context, bytes.as_ptr(), bytes.len()) }
}

impl Held {
    fn of(payload: Arc<Payload>) -> Self {
        Self { functions: &raw const FUNCTIONS, payload: Arc::into_raw(payload).cast() }
    }

    /// Returns the functions for the payload; `None` if there is no payload.
    fn functions(&self) -> Option<&Functions> {
        // SAFETY: the pointer is null, or refers to the functions of a copy, which are valid until the process ends.
        unsafe { self.functions.as_ref() }
    }

    fn payload(&self) -> Option<Arc<Payload>> {
        let functions = self.functions()?;
        if ptr::eq(functions, &raw const FUNCTIONS) {
            // SAFETY: the payload belongs to this copy, so it comes from `Held::of`, and `self` owns a reference to it.
            return Some(unsafe {
                Arc::increment_strong_count(self.payload.cast::<Payload>());
                Arc::from_raw(self.payload.cast())
            });
        }
        let mut bytes: Vec<u8> = Vec::new();
        // SAFETY: `self` owns a reference to the payload, the functions are those of the copy that wrote the payload, and the context
        // has the type that `collect` expects.
        unsafe { (functions.encode)(self.payload, collect, ptr::from_mut(&mut bytes).cast()) };
        match Payload::decode(&bytes) {
            Ok(payload) => Some(Arc::new(payload)),
            Err(error) => {
                static WARNED: std::sync::Once = std::sync::Once::new();
                WARNED.call_once(|| {
                    tracing::warn!(
                        "results of another version of roiflow in this process cannot be read, except for their regions: {error}; \
                         use the plugin and the library of one version"
                    );
                });
                None
            }
        }
    }
}

/// Appends bytes to the vector `context`. This function is the sink of [`encode`].
///
/// # Safety
/// `context` points to a `Vec<u8>` that nothing else uses, and `bytes` points to `len` bytes.
unsafe extern "C" fn collect(context: *mut c_void, bytes: *const u8, len: usize) {
    // SAFETY: the caller guarantees that `context` points to a `Vec<u8>` that nothing else uses, and that `bytes` points to `len`
    // bytes.
    unsafe { (*context.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(bytes, len)) }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        if let Some(functions) = self.functions() {
            // SAFETY: `self` owns a reference to the payload, and the functions are those of the copy that wrote the payload.
            unsafe { (functions.retain)(self.payload) };
        }
        Self { functions: self.functions, payload: self.payload }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(functions) = self.functions() {
            // SAFETY: `self` owns a reference to the payload, which is not used afterwards, and the functions are those of the
            // copy that wrote the payload.
            unsafe { (functions.release)(self.payload) };
        }
    }
}

// SAFETY: a payload is immutable while it is shared, and its reference count is atomic. The meta itself is changed only through a
// writable buffer, which has a single owner.
unsafe impl Send for ResultsMeta {}
// SAFETY: several threads may read a payload at the same time, for the same reasons as in `Send`.
unsafe impl Sync for ResultsMeta {}

// SAFETY: `ResultsMeta` is a transparent wrapper of the type that is registered under this API with its size.
unsafe impl MetaAPI for ResultsMeta {
    type GstType = Raw;

    fn meta_api() -> glib::Type {
        registered().api()
    }
}

impl fmt::Debug for ResultsMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResultsMeta").field(&self.0.held.payload()).finish()
    }
}

/// The registered type of the results meta: a pointer to GStreamer's description of the type.
struct Registered(NonNull<gst::ffi::GstMetaInfo>);

// SAFETY: GStreamer never changes or frees a registered info.
unsafe impl Send for Registered {}
// SAFETY: several threads may read a registered info at the same time, because GStreamer never changes it.
unsafe impl Sync for Registered {}

impl Registered {
    fn api(&self) -> glib::Type {
        // SAFETY: the info is never freed, and its API is a registered type.
        unsafe { from_glib((*self.0.as_ptr()).api) }
    }
}

/// Returns the type of the results meta. The first copy of the library that calls this function registers the type. The number in
/// the type's name is the layout version.
fn registered() -> &'static Registered {
    static REGISTERED: LazyLock<Registered> = LazyLock::new(|| {
        const NAME: &std::ffi::CStr = c"RoiflowResultsMeta1";
        let registry = registry();
        // All copies of the library in the process lock the same object, so this lock excludes the other copies.
        let _guard = registry.object_lock();
        // SAFETY: names are C strings, the list of tags ends with null, and both are copied; size and functions belong to `Raw`, which
        // begins with a `GstMeta`.
        let info = unsafe {
            let known = gst::ffi::gst_meta_get_info(NAME.as_ptr());
            if known.is_null() {
                // No tags: converters keep metas that depend on neither memory, size, orientation nor colors.
                let mut tags: [*const std::ffi::c_char; 1] = [ptr::null()];
                let api = gst::ffi::gst_meta_api_type_register(c"RoiflowResultsMeta1API".as_ptr(), tags.as_mut_ptr());
                gst::ffi::gst_meta_register(api, NAME.as_ptr(), size_of::<Raw>(), Some(init), Some(free), Some(transform))
            } else {
                known
            }
        };
        Registered(NonNull::new(info.cast_mut()).expect("no other type has these names"))
    });
    &REGISTERED
}

/// Initializes a meta with the payload in `held`, or without a payload if `held` is null.
///
/// # Safety
/// `meta` is uninitialized memory of the registered size; `held` is null, or a [`Held`] of any copy, which is moved out.
unsafe extern "C" fn init(
    meta: *mut gst::ffi::GstMeta,
    held: glib::ffi::gpointer,
    _buffer: *mut gst::ffi::GstBuffer,
) -> glib::ffi::gboolean {
    // SAFETY: the caller guarantees that `held` is null or a `Held` of any copy, which only `put_held` passes.
    let held = unsafe { held.cast::<Held>().as_mut() };
    let none = || Held { functions: ptr::null(), payload: ptr::null() };
    let held = held.map_or_else(none, |held| std::mem::replace(held, none()));
    // SAFETY: the caller guarantees that `meta` has the size of `Raw`. The field is uninitialized, so it is written without dropping an
    // earlier value.
    unsafe { ptr::write(&raw mut (*meta.cast::<Raw>()).held, held) };
    glib::ffi::GTRUE
}

/// Releases the payload of a meta.
///
/// # Safety
/// `meta` was initialized by [`init`] and is not used afterwards.
unsafe extern "C" fn free(meta: *mut gst::ffi::GstMeta, _buffer: *mut gst::ffi::GstBuffer) {
    // SAFETY: the caller guarantees that `init` initialized `meta`, which is not used afterwards. GStreamer frees the header.
    unsafe { ptr::drop_in_place(&raw mut (*meta.cast::<Raw>()).held) };
}

/// Copies a meta to another buffer, for every kind of transform. Scaling needs no change: the results contain the frame size to which they
/// refer, so readers can rescale them.
///
/// # Safety
/// `meta` was initialized by [`init`], `dest` is a writable buffer.
unsafe extern "C" fn transform(
    dest: *mut gst::ffi::GstBuffer,
    meta: *mut gst::ffi::GstMeta,
    _buffer: *mut gst::ffi::GstBuffer,
    _transform_type: glib::ffi::GQuark,
    _data: glib::ffi::gpointer,
) -> glib::ffi::gboolean {
    // SAFETY: the caller guarantees that `init` initialized `meta`.
    let held = unsafe { (*meta.cast::<Raw>()).held.clone() };
    // SAFETY: the caller guarantees that `dest` is a writable buffer. Nothing else refers to it during the call.
    put_held(unsafe { gst::BufferRef::from_mut_ptr(dest) }, held);
    glib::ffi::GTRUE
}
