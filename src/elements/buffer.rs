//! A media buffer as a frame: the planes are tensors over the mapped memory, nothing is copied. The only such place.
//!
//! The mapping, and with it a share of the buffer, lives as long as any tensor over it. Whoever wants to write the buffer later
//! drops the frame first.

use std::ptr::NonNull;
use std::sync::Arc;

use gst_video::VideoFrameExt;
use gst_video::video_frame::Readable;
use gstreamer as gst;
use gstreamer_video as gst_video;

use super::caps;
use crate::frame::{Frame, MAX_PLANES, PixelFormat, Size};
use crate::tensor::{Error, ErrorKind, ForeignMemory, Result, Tensor};

/// The buffer as a frame of what `info` says.
///
/// # Errors
/// If the format is not one of ours, the buffer can't be mapped for reading, or is too short for its caps.
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

/// The error for caps whose format is not one of ours.
pub fn unsupported(info: &gst_video::VideoInfo) -> Error {
    let names = PixelFormat::ALL.map(PixelFormat::name).join(", ");
    Error::new(
        ErrorKind::Unsupported,
        format!("pixel format {}: expected one of {names}; put `videoconvert` in front", info.format().to_str()),
    )
}

fn plane_tensor(mapped: &Arc<gst_video::VideoFrame<Readable>>, format: PixelFormat, size: Size, plane_idx: usize) -> Result<Tensor> {
    let stride = mapped.plane_stride()[plane_idx];
    let row_stride_bytes = usize::try_from(stride).map_err(|_| {
        Error::new(ErrorKind::Unsupported, format!("rows {stride} bytes apart (bottom up): expected top down; put `videoflip` in front"))
    })?;
    let bytes = mapped
        .plane_data(plane_idx as u32)
        .map_err(|_| Error::new(ErrorKind::Shape, format!("the buffer has no plane {plane_idx} of a {size} {format} frame")))?;
    let plane = MappedPlane { ptr: NonNull::from(bytes).cast(), len: bytes.len(), _mapped: mapped.clone() };
    Tensor::foreign(Box::new(plane), format.plane_layout(plane_idx, size, row_stride_bytes)?, 0)
}

/// One plane of a mapped buffer.
struct MappedPlane {
    ptr: NonNull<u8>,
    len: usize,
    _mapped: Arc<gst_video::VideoFrame<Readable>>,
}

// SAFETY: GStreamer keeps the memory mapped, in place, until `_mapped` is dropped; while it is mapped for reading, a writer has
// to copy it first. `is_writable` is false, so nobody writes through us.
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

// SAFETY: bytes that nobody writes while we have them, and a mapping that may be used and dropped on any thread.
unsafe impl Send for MappedPlane {}
// SAFETY: as above.
unsafe impl Sync for MappedPlane {}
