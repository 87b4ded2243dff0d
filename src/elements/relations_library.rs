//! Functions and types of GStreamer's analytics library, with their types in the headers `gst/analytics/*.h`. Functions that GStreamer 1.24
//! does not have are optional.

use std::ffi::{c_char, c_float, c_int, c_uint};
use std::ptr;
use std::sync::LazyLock;

use gst::glib::ffi::{GQuark, GType, gboolean, gpointer};
use gstreamer as gst;

use super::CAT;

/// File name of the library. The name is the same in all versions of GStreamer 1.
const LIBRARY: &str = "libgstanalytics-1.0.so.0";

/// The C library's relation meta, an opaque struct.
#[repr(C)]
pub(super) struct RelationMeta {
    _opaque: [u8; 0],
}

/// The C library's handle of an entry.
#[repr(C)]
pub(super) struct Mtd {
    pub(super) id: c_uint,
    pub(super) meta: *mut RelationMeta,
}

impl Mtd {
    pub(super) const NONE: Self = Self { id: c_uint::MAX, meta: ptr::null_mut() };
}

#[repr(C)]
pub(super) struct InitParams {
    pub(super) initial_relation_order: usize,
    pub(super) initial_buf_size: usize,
}

/// The C library's tensor. The extents of its `n_dims` axes follow.
#[repr(C)]
pub(super) struct Tensor {
    pub(super) id: GQuark,
    pub(super) layout: c_int,
    pub(super) data_type: c_int,
    pub(super) data: *mut gst::ffi::GstBuffer,
    pub(super) dims_order: c_int,
    pub(super) n_dims: usize,
    pub(super) dims: [usize; 0],
}

/// Declares a group of functions. The groups in `optional` are `None` if the library has no such functions.
macro_rules! functions {
    ($(#[$about:meta])* $group:ident { $($name:ident($($argument:ty),*) -> $answer:ty;)* } $(optional { $($field:ident: $type:ident,)* })?) => {
        $(#[$about])*
        pub(super) struct $group {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $answer,)*
            $($(pub(super) $field: Option<$type>,)*)?
        }

        impl $group {
            fn of(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: these are the types that the library's headers declare for these names.
                unsafe {
                    Ok(Self {
                        $($name: *library.get(stringify!($name))?,)*
                        $($($field: $type::of(library).ok(),)*)?
                    })
                }
            }
        }
    };
}

functions! {
    /// GStreamer 1.24. GStreamer 1.26 and 1.28 declare the same types.
    Api {
        gst_analytics_cls_mtd_get_length(*mut Mtd) -> usize;
        gst_analytics_cls_mtd_get_level(*mut Mtd, usize) -> c_float;
        gst_analytics_cls_mtd_get_mtd_type() -> usize;
        gst_analytics_cls_mtd_get_quark(*mut Mtd, usize) -> GQuark;
        gst_analytics_mtd_get_mtd_type(*mut Mtd) -> usize;
        gst_analytics_od_mtd_get_location(*mut Mtd, *mut c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_float) -> gboolean;
        gst_analytics_od_mtd_get_mtd_type() -> usize;
        gst_analytics_od_mtd_get_obj_type(*mut Mtd) -> GQuark;
        gst_analytics_relation_get_length(*mut RelationMeta) -> usize;
        gst_analytics_relation_meta_add_cls_mtd(*mut RelationMeta, usize, *mut c_float, *mut GQuark, *mut Mtd) -> gboolean;
        gst_analytics_relation_meta_add_od_mtd(*mut RelationMeta, GQuark, c_int, c_int, c_int, c_int, c_float, *mut Mtd) -> gboolean;
        gst_analytics_relation_meta_add_tracking_mtd(*mut RelationMeta, u64, u64, *mut Mtd) -> gboolean;
        gst_analytics_relation_meta_api_get_type() -> GType;
        gst_analytics_relation_meta_get_direct_related(*mut RelationMeta, c_uint, c_int, usize, *mut gpointer, *mut Mtd) -> gboolean;
        gst_analytics_relation_meta_get_relation(*mut RelationMeta, c_uint, c_uint) -> c_int;
        gst_analytics_relation_meta_iterate(*mut RelationMeta, *mut gpointer, usize, *mut Mtd) -> gboolean;
        gst_analytics_relation_meta_set_relation(*mut RelationMeta, c_int, c_uint, c_uint) -> gboolean;
        gst_analytics_tracking_mtd_get_info(*mut Mtd, *mut u64, *mut u64, *mut u64, *mut gboolean) -> gboolean;
        gst_analytics_tracking_mtd_get_mtd_type() -> usize;
        gst_buffer_add_analytics_relation_meta_full(*mut gst::ffi::GstBuffer, *mut InitParams) -> *mut RelationMeta;
        gst_buffer_get_analytics_relation_meta(*mut gst::ffi::GstBuffer) -> *mut RelationMeta;
    }
    optional {
        oriented: Oriented,
        segmentation: Segmentation,
        tensors: Tensors,
        keypoints: Keypoints,
        tags: Tags,
    }
}

functions! {
    /// Rotated boxes, since GStreamer 1.26.
    Oriented {
        gst_analytics_od_mtd_get_oriented_location(*mut Mtd, *mut c_int, *mut c_int, *mut c_int, *mut c_int, *mut c_float, *mut c_float) -> gboolean;
        gst_analytics_relation_meta_add_oriented_od_mtd(*mut RelationMeta, GQuark, c_int, c_int, c_int, c_int, c_float, c_float, *mut Mtd) -> gboolean;
    }
}

functions! {
    /// Masks, since GStreamer 1.26.
    Segmentation {
        gst_analytics_relation_meta_add_segmentation_mtd(*mut RelationMeta, *mut gst::ffi::GstBuffer, c_int, usize, *mut c_uint, c_int, c_int, c_uint, c_uint, *mut Mtd) -> gboolean;
        gst_analytics_segmentation_mtd_get_mask(*mut Mtd, *mut c_int, *mut c_int, *mut c_uint, *mut c_uint) -> *mut gst::ffi::GstBuffer;
        gst_analytics_segmentation_mtd_get_mtd_type() -> usize;
        gst_analytics_segmentation_mtd_get_region_count(*mut Mtd) -> usize;
        gst_analytics_segmentation_mtd_get_region_id(*mut Mtd, usize) -> c_uint;
    }
}

functions! {
    /// Tensors, since GStreamer 1.28.
    Tensors {
        gst_analytics_relation_meta_add_tensor_mtd_simple(*mut RelationMeta, GQuark, c_int, *mut gst::ffi::GstBuffer, c_int, usize, *mut usize, *mut Mtd) -> gboolean;
        gst_analytics_tensor_mtd_get_mtd_type() -> usize;
        gst_analytics_tensor_mtd_get_tensor(*mut Mtd) -> *mut Tensor;
    }
}

functions! {
    /// Groups of keypoints, since GStreamer 1.30.
    Keypoints {
        gst_analytics_group_mtd_get_mtd_type() -> usize;
        gst_analytics_group_mtd_iterate(*mut Mtd, *mut gpointer, usize, *mut Mtd) -> gboolean;
        gst_analytics_keypoint_mtd_get_confidence(*mut Mtd, *mut c_float) -> gboolean;
        gst_analytics_keypoint_mtd_get_mtd_type() -> usize;
        gst_analytics_keypoint_mtd_get_position(*mut Mtd, *mut c_int, *mut c_int, *mut c_int, *mut c_int) -> gboolean;
        gst_analytics_relation_meta_add_keypoints_group(*mut RelationMeta, *const c_char, c_int, usize, *const c_int, usize, *const c_float, *const u8, usize, *const c_int, *mut Mtd) -> gboolean;
    }
}

functions! {
    /// Semantic tags, since GStreamer 1.30.
    Tags {
        gst_analytics_mtd_get_semantic_tag(*mut Mtd) -> *mut c_char;
        gst_analytics_mtd_set_semantic_tag(*mut Mtd, *const c_char) -> gboolean;
    }
}

/// Returns the library's functions; `None` if GStreamer is too old or the library is not installed.
pub(super) fn api() -> Option<&'static Api> {
    static API: LazyLock<Option<Api>> = LazyLock::new(|| {
        let (major, minor, ..) = gst::version();
        if (major, minor) < (1, 24) {
            gst::debug!(CAT, "GStreamer {major}.{minor} has no analytics metas: expected GStreamer 1.24 or newer");
            return None;
        }
        // SAFETY: loading runs the initializers of the library. The library is part of GStreamer, and its initializers have no side
        // effects.
        let loaded = unsafe { libloading::Library::new(LIBRARY) }.and_then(|library| {
            let api = Api::of(&library)?;
            // Never unload the library: metas on buffers refer to its functions until the process ends.
            std::mem::forget(library);
            Ok(api)
        });
        loaded.inspect_err(|error| gst::info!(CAT, "no analytics metas: {error}; {LIBRARY} is part of GStreamer's bad plugins")).ok()
    });
    API.as_ref()
}
