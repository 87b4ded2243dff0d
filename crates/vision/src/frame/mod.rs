//! Frames: images with their planes, pixel format and colorimetry.
//!
//! The planes of a [`Frame`] are tensors over existing memory. A region of a frame is also a `Frame`: it shares the memory and has a
//! different offset and size. Creating a region copies and allocates nothing.
//!
//! Reading order: [`mod@format`], [`region`].
//!
//! This module uses tensors, but no models, threads or GStreamer.

pub mod format;
pub mod region;

pub use format::{ColorMatrix, ColorRange, Colorimetry, ComponentPlace, PixelFormat};
pub use roiflow_results::{
    Classification, Detection, Direction, FrameResults, Geometry, Grid, InferenceStatus, Keypoint, Keypoints, LostTrack, ObjectId, Outcome,
    PixelRect, Point, Rect, RotatedRect, SceneEvent, SceneEventKind, ScoredLabel, Similarity, Size, Skeleton, TrackState, Transform,
};

pub use roiflow_tensor::MemoryKind;

use crate::tensor::{Error, ErrorKind, Layout, Memory, Result, Tensor};

/// Maximum number of planes of a format.
pub const MAX_PLANES: usize = 3;

/// An image, or a region of an image. Clones share the memory.
///
/// Planes are tensors with the element type [`PixelFormat::element`]. Luma, chroma and gray planes have the shape `[rows, columns]`,
/// interleaved planes `[rows, columns, channels]`.
#[derive(Debug, Clone)]
pub struct Frame {
    format: PixelFormat,
    size: Size,
    colorimetry: Colorimetry,
    planes: [Option<Tensor>; MAX_PLANES],
    /// Offset of the region within its first chroma sample, in pixels per axis.
    chroma_phase: (u32, u32),
}

/// Position of a plane in the memory of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanePlace {
    /// Offset of the first row of the plane in the memory.
    pub offset_bytes: usize,
    /// Distance of adjacent rows of the plane.
    pub row_stride_bytes: usize,
}

impl Frame {
    /// Creates a frame over `memory` without copying; `places` has one entry per plane of `format`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if the size is zero, the number of places is wrong, or a plane does not fit into the memory.
    pub fn over(
        memory: &std::sync::Arc<Memory>,
        format: PixelFormat,
        size: Size,
        places: &[PlanePlace],
        colorimetry: Colorimetry,
    ) -> Result<Self> {
        let tensors = places.iter().enumerate().map(|(plane_idx, place)| {
            let layout = format.plane_layout(plane_idx, size, place.row_stride_bytes)?;
            Tensor::part_of(memory.clone(), layout, place.offset_bytes)
        });
        let mut planes = [const { None }; MAX_PLANES];
        for (plane, tensor) in planes.iter_mut().zip(tensors) {
            *plane = Some(tensor?);
        }
        Self::check(format, size, places.len())?;
        Ok(Self { format, size, colorimetry, planes, chroma_phase: (0, 0) })
    }

    /// Creates a frame from tensors, such as the `u8` input of a model. Shares their memory.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if a plane does not have [`PixelFormat::plane_shape`], or its rows are not contiguous.
    pub fn from_planes(format: PixelFormat, size: Size, tensors: &[Tensor], colorimetry: Colorimetry) -> Result<Self> {
        Self::check(format, size, tensors.len())?;
        let mut planes = [const { None }; MAX_PLANES];
        for (plane_idx, (plane, tensor)) in planes.iter_mut().zip(tensors).enumerate() {
            let expected = format.plane_shape(plane_idx, size);
            if tensor.element() != format.element() || tensor.shape() != expected {
                return Err(Error::new(
                    ErrorKind::Shape,
                    format!(
                        "plane {plane_idx} of a {size} {format} frame: expected {expected} {}, got {} {}",
                        format.element(),
                        tensor.shape(),
                        tensor.element()
                    ),
                ));
            }
            let (layout, dense) = (tensor.layout(), Layout::dense(format.element(), expected)?);
            let (got, side_by_side) = (&layout.stride_bytes()[1..], &dense.stride_bytes()[1..]);
            // An axis of length 1 may have any stride.
            if expected[1..].iter().zip(got.iter().zip(side_by_side)).any(|(extent, (got, dense))| *extent > 1 && got != dense) {
                return Err(Error::new(
                    ErrorKind::Shape,
                    format!(
                        "plane {plane_idx} of a {size} {format} frame: expected pixels side by side, strides of {side_by_side:?} bytes within a row, got {got:?}; copy the plane first"
                    ),
                ));
            }
            *plane = Some(tensor.clone());
        }
        Ok(Self { format, size, colorimetry, planes, chroma_phase: (0, 0) })
    }

    /// Creates a frame of a format with one plane from contiguous bytes. Copies the bytes. Gray has the full range.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if the format has several planes or the number of bytes does not match.
    pub fn from_packed(format: PixelFormat, size: Size, bytes: &[u8]) -> Result<Self> {
        let plane = Tensor::from_slice(format.plane_shape(0, size), bytes)?;
        let range = if format == PixelFormat::Gray8 { ColorRange::Full } else { ColorRange::Limited };
        Self::from_planes(format, size, &[plane], Colorimetry { range, ..Colorimetry::default() })
    }

    fn check(format: PixelFormat, size: Size, n_planes: usize) -> Result<()> {
        if size.width == 0 || size.height == 0 {
            return Err(Error::new(ErrorKind::Shape, format!("frame of {size}: expected at least 1x1")));
        }
        if n_planes != format.n_planes() {
            return Err(Error::new(ErrorKind::Shape, format!("{format} has {} planes, got {n_planes}", format.n_planes())));
        }
        Ok(())
    }

    /// Returns the pixel format.
    pub fn format(&self) -> PixelFormat {
        self.format
    }

    /// Returns the width and height in pixels.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Returns the color matrix and range.
    pub fn colorimetry(&self) -> Colorimetry {
        self.colorimetry
    }

    /// Returns the planes, in the order of the format. A chroma plane of a region contains every sample that the region touches.
    pub fn planes(&self) -> impl Iterator<Item = &Tensor> {
        self.planes.iter().flatten()
    }

    /// Returns the kind of memory that holds the planes. If the planes are in different kinds of memory, returns the kind that is
    /// least accessible to the host.
    pub fn memory_kind(&self) -> MemoryKind {
        self.planes().map(Tensor::memory_kind).max().unwrap_or(MemoryKind::Host)
    }

    /// Returns the offset of the region within its first chroma sample, in pixels: 0 or 1 per axis.
    pub fn chroma_phase(&self) -> (u32, u32) {
        self.chroma_phase
    }
}

impl PixelFormat {
    /// Returns the layout of a plane with the given row stride.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if the stride is shorter than a row or not a multiple of the sample size.
    pub fn plane_layout(self, plane_idx: usize, size: Size, row_stride_bytes: usize) -> Result<Layout> {
        let shape = self.plane_shape(plane_idx, size);
        let sample_bytes = self.element().size();
        let pixel_bytes = shape.get(2).copied().unwrap_or(1) * sample_bytes;
        let strides = [row_stride_bytes, pixel_bytes, sample_bytes];
        Layout::strided(self.element(), shape, if shape.len() == 3 { &strides } else { &strides[..2] })
    }
}
