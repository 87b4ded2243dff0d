//! Converts a media buffer to a frame: the planes are tensors over the mapped memory, without a copy. Also converts a shared tensor to a
//! media buffer over the tensor's file descriptor.
//!
//! The mapping and a reference to the buffer live as long as any tensor over the buffer. To write the buffer later, drop the frame first.

use std::os::fd::{AsRawFd, IntoRawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use gst::glib::translate::from_glib_none;
use gst::prelude::*;
use gst_allocators::prelude::*;
use gst_video::VideoFrameExt;
use gst_video::video_frame::{IsVideoFrame, Readable};
use gstreamer as gst;
use gstreamer_allocators as gst_allocators;
use gstreamer_video as gst_video;

use super::caps;
use crate::frame::{Frame, MAX_PLANES, PixelFormat, Size};
use crate::tensor::{Bytes, Error, ErrorKind, ForeignMemory, Result, SharedTensor, Tensor};

/// Maps the buffer as a frame with the format of `info`.
///
/// # Errors
/// Returns an error if the format is not supported, the buffer cannot be mapped for reading, or the buffer is too short for its caps.
pub fn frame(buffer: &gst::Buffer, info: &gst_video::VideoInfo) -> Result<Frame> {
    let format = caps::pixel_format(info).ok_or_else(|| unsupported(info))?;
    let size = Size::new(info.width(), info.height());
    let mapped = gst_video::VideoFrame::from_buffer_readable(buffer.clone(), info).map_err(|_| {
        Error::new(
            ErrorKind::Shape,
            format!("the buffer's {} bytes can't be mapped as a {size} {format} frame: expected at least {}", buffer.size(), info.size()),
        )
    })?;
    let mapped = Arc::new(mapped);
    let mut planes = [const { None }; MAX_PLANES];
    for (plane_idx, plane) in planes.iter_mut().enumerate().take(format.n_planes()) {
        *plane = Some(plane_tensor(&mapped, format, size, plane_idx)?);
    }
    let tensors: Vec<Tensor> = planes.into_iter().flatten().collect();
    Frame::from_planes(format, size, &tensors, caps::colorimetry(info))
}

/// Returns the address of the buffer's pool, which identifies the pool; 0 if the buffer has no pool.
pub(super) fn pool_address(buffer: &gst::BufferRef) -> usize {
    // SAFETY: a `&BufferRef` is a valid buffer, and the field is written only while the buffer has a single owner.
    unsafe { (*buffer.as_ptr()).pool as usize }
}

/// Returns the maximum number of buffers in the buffer's pool: 0 = unbounded, `None` = no pool.
pub(super) fn pool_size(buffer: &gst::BufferRef) -> Option<usize> {
    // SAFETY: a `&BufferRef` is a valid buffer, and its field `pool` is written only while the buffer has a single owner. The
    // pointer is null or a valid pool, because a buffer in use keeps its pool alive. `from_glib_none` takes a reference, and
    // returns `None` for null.
    let pool: Option<gst::BufferPool> = unsafe { from_glib_none((*buffer.as_ptr()).pool) };
    let (_caps, _size, _min, max) = pool?.config().params()?;
    Some(max as usize)
}

/// Returns the error for a pixel format that is not supported.
pub(super) fn unsupported(info: &gst_video::VideoInfo) -> Error {
    let names = PixelFormat::ALL.map(PixelFormat::name).join(", ");
    Error::new(
        ErrorKind::Unsupported,
        format!("pixel format {}: expected one of {names}; add `videoconvert` upstream", info.format().to_str()),
    )
}

/// Creates a buffer over the memory of a shared tensor, including gaps between rows, without a copy. Other elements can pass on the file
/// descriptor, or map it. If rows have gaps, the caller must add a video meta with the strides.
///
/// The buffer borrows the tensor for reading until the buffer is freed. An element that writes the buffer must copy it.
///
/// # Errors
/// Returns [`ErrorKind::Unsupported`] if the tensor is not shared memory. Returns [`ErrorKind::Busy`] while the tensor is borrowed for
/// writing. Returns [`ErrorKind::Io`] if the process cannot open another file descriptor.
pub fn from_shared(tensor: &Tensor) -> Result<gst::Buffer> {
    let SharedTensor { descriptor, layout, offset_bytes } = tensor.export()?;
    let leased = Leased(tensor.bytes()?);
    let failed = |what: &str| Error::new(ErrorKind::Io, format!("cannot wrap a shared tensor in a GStreamer buffer: {what}"));
    let (len, flags) = (layout.extent_bytes(), gst_allocators::FdMemoryFlags::KEEP_MAPPED);
    // SAFETY: the descriptor is open and refers to a file that has at least this length and cannot shrink.
    let memory = unsafe { gst_allocators::FdAllocator::new().alloc_fd(descriptor.as_raw_fd(), offset_bytes + len, flags) };
    let mut memory = memory.map_err(|error| failed(&error.message))?;
    // The memory owns and closes the descriptor from here on.
    let _raw = descriptor.into_raw_fd();
    memory.get_mut().ok_or_else(|| failed("the new memory has another owner"))?.resize(offset_bytes..offset_bytes + len);
    // SAFETY: the pointer is valid while `memory` lives. The memory has no other owner yet, so nothing else reads or writes its flags.
    unsafe { (*memory.as_mut_ptr()).mini_object.flags |= gst::ffi::GST_MEMORY_FLAG_READONLY };
    let mut buffer = gst::Buffer::new();
    let writable = buffer.get_mut().ok_or_else(|| failed("the new buffer has another owner"))?;
    writable.append_memory(memory);
    gst::ParentBufferMeta::add(writable, &gst::Buffer::from_slice(leased));
    Ok(buffer)
}

/// A tensor that stays borrowed for reading while a buffer over its memory lives.
struct Leased(Bytes);

impl AsRef<[u8]> for Leased {
    fn as_ref(&self) -> &[u8] {
        self.0.extent()
    }
}

fn plane_tensor(mapped: &Arc<gst_video::VideoFrame<Readable>>, format: PixelFormat, size: Size, plane_idx: usize) -> Result<Tensor> {
    let stride = mapped.plane_stride()[plane_idx];
    let row_stride_bytes = usize::try_from(stride).map_err(|_| {
        Error::new(
            ErrorKind::Unsupported,
            format!("row stride {stride} (bottom-up image): expected a positive stride; add `videoflip` upstream"),
        )
    })?;
    let bytes = mapped
        .plane_data(plane_idx as u32)
        .map_err(|_| Error::new(ErrorKind::Shape, format!("the buffer has no plane {plane_idx} of a {size} {format} frame")))?;
    // `plane_data` gives the length from the caps, but the video meta may describe more bytes than the memory holds.
    let len = bytes.len().min(mapped_bytes(mapped.as_ref(), plane_idx));
    let plane = MappedPlane { ptr: NonNull::from(bytes).cast(), len, _mapped: mapped.clone() };
    Tensor::foreign(Box::new(plane), format.plane_layout(plane_idx, size, row_stride_bytes)?, 0)
}

/// Returns the number of mapped bytes from the begin of a plane.
pub(super) fn mapped_bytes(mapped: &impl IsVideoFrame, plane_idx: usize) -> usize {
    let raw = mapped.as_raw();
    // With a video meta, there is one mapping per plane. Otherwise, `map[0]` covers all planes, and the other elements of `map` are
    // uninitialized.
    let map = &raw.map[if raw.meta.is_null() { 0 } else { plane_idx }];
    let skipped = (raw.data[plane_idx] as usize).saturating_sub(map.data as usize);
    map.size.saturating_sub(skipped)
}

/// One plane of a mapped buffer.
struct MappedPlane {
    ptr: NonNull<u8>,
    len: usize,
    _mapped: Arc<gst_video::VideoFrame<Readable>>,
}

// SAFETY: GStreamer keeps the memory mapped, in place, until `_mapped` is dropped. While the memory is mapped for reading, a writer must
// copy the memory first. `is_writable` is false, so nothing writes through this mapping.
unsafe impl ForeignMemory for MappedPlane {
    fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    fn len(&self) -> usize {
        self.len
    }

    fn is_writable(&self) -> bool {
        false
    }
}

// SAFETY: the bytes are not written while they are mapped, and a mapping may be used and dropped on any thread.
unsafe impl Send for MappedPlane {}
// SAFETY: the bytes are not written while they are mapped, so several threads may read them at the same time.
unsafe impl Sync for MappedPlane {}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size::new(37, 21);

    fn info(format: PixelFormat) -> gst_video::VideoInfo {
        gst::init().unwrap();
        gst_video::VideoInfo::builder(format.name().parse().unwrap(), SIZE.width, SIZE.height).build().unwrap()
    }

    #[test]
    fn planes_and_regions_lie_inside_mapped_buffer() {
        for format in PixelFormat::ALL {
            let info = info(format);
            let buffer = gst::Buffer::with_size(info.size()).unwrap();
            let whole = frame(&buffer, &info).unwrap();
            let region = whole.region(crate::frame::PixelRect { x: 3, y: 5, width: 31, height: 13 }).unwrap();
            let map = buffer.map_readable().unwrap();
            let memory = map.as_ptr_range();
            for plane in whole.planes().chain(region.planes()) {
                let begin = plane.address();
                let last = begin.wrapping_add(plane.layout().extent_bytes() - 1);
                assert!(memory.contains(&begin) && memory.contains(&last), "{format}: {begin:?} to {last:?}, {memory:?}");
            }
            assert_eq!(whole.planes().next().unwrap().address(), memory.start, "{format}");
        }
    }

    #[test]
    fn buffer_is_writable_after_last_region_is_dropped() {
        let info = info(PixelFormat::Nv12);
        let mut buffer = gst::Buffer::with_size(info.size()).unwrap();
        let whole = frame(&buffer, &info).unwrap();
        let region = whole.region(crate::frame::PixelRect { x: 0, y: 0, width: 8, height: 8 }).unwrap();
        drop(whole);
        assert!(buffer.get_mut().is_none(), "the region holds the mapping");
        drop(region);
        assert!(buffer.get_mut().is_some());
    }

    #[test]
    fn short_buffer_is_refused_with_and_without_video_meta() {
        for format in PixelFormat::ALL {
            let info = info(format);
            for n_bytes in [0, 1, info.size() / 2, info.size() - 1] {
                let buffer = gst::Buffer::with_size(n_bytes).unwrap();
                let error = frame(&buffer, &info).unwrap_err().to_string();
                assert!(error.contains(&format!("{n_bytes} bytes")) && error.contains(&info.size().to_string()), "{error}");
            }
            if info.n_planes() as usize > format.n_planes() {
                continue; // The last plane is that of opacity, which is not read.
            }
            // The buffer is truncated after its video meta is added, so the meta describes more bytes than the buffer has.
            let mut buffer = gst::Buffer::with_size(info.size()).unwrap();
            let writable = buffer.get_mut().unwrap();
            gst_video::VideoMeta::add(writable, gst_video::VideoFrameFlags::empty(), info.format(), SIZE.width, SIZE.height).unwrap();
            writable.set_size(info.size() - info.stride()[0] as usize * 3);
            frame(&buffer, &info).unwrap_err();
        }
    }
}
