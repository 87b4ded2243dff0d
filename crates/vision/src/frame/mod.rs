//! A picture, its planes and its regions.
//!
//! A [`Frame`] is planes (tensors over somebody's memory) plus a pixel format and the meaning of its colors. A region of a
//! frame is again a `Frame`: same memory, other offset and extent, nothing copied, nothing allocated.
//!
//! Reading order: [`mod@format`], [`region`].
//!
//! Knows tensors. Knows no models, no threads, no GStreamer.

pub mod format;
pub mod region;

pub use format::{ColorMatrix, ColorRange, Colorimetry, PixelFormat};
pub use roiflow_results::{
    Classification, Detection, FrameResults, Geometry, Grid, InferenceStatus, Keypoint, Keypoints, ObjectId, Outcome, PixelRect, Point,
    Rect, RotatedRect, ScoredLabel, Similarity, Size, Skeleton, TrackState, Transform,
};

pub use roiflow_tensor::MemoryKind;

use crate::tensor::{Error, ErrorKind, Layout, Memory, Result, Tensor};

/// The most planes a format has.
pub const MAX_PLANES: usize = 3;

/// A picture, or a region of one.
///
/// Planes are tensors of [`PixelFormat::element`]: `[rows, columns]` for luma, chroma and gray, `[rows, columns, channels]` where channels are
/// interleaved. A handle: clones share the memory.
#[derive(Debug, Clone)]
pub struct Frame {
    format: PixelFormat,
    size: Size,
    colorimetry: Colorimetry,
    planes: [Option<Tensor>; MAX_PLANES],
    /// How far the exact rectangle begins inside the first sample of the subsampled planes, in pixels.
    chroma_phase: (u32, u32),
}

/// Where a plane begins in the memory of a frame, and the length of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanePlace {
    /// First byte of the first row.
    pub offset_bytes: usize,
    /// From one row to the next.
    pub row_stride_bytes: usize,
}

impl Frame {
    /// A frame over `memory`, one place per plane of `format`. Nothing is copied.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the size is zero, the places are not one per plane, or a plane reaches past the memory.
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

    /// A frame of planes that are tensors already, such as the picture in a model's own `u8` input.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if a plane is not what [`PixelFormat::plane_shape`] says, or has gaps within its rows.
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
            // An axis of one element may have any stride.
            if expected[1..].iter().zip(got.iter().zip(side_by_side)).any(|(extent, (got, dense))| *extent > 1 && got != dense) {
                return Err(Error::new(
                    ErrorKind::Shape,
                    format!(
                        "plane {plane_idx} of a {size} {format} frame: expected pixels side by side, strides of {side_by_side:?} bytes within a row, got {got:?}; copy it first"
                    ),
                ));
            }
            *plane = Some(tensor.clone());
        }
        Ok(Self { format, size, colorimetry, planes, chroma_phase: (0, 0) })
    }

    /// A frame of one interleaved or gray plane (0..255) from its bytes without gaps, copied.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the number of bytes does not match.
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

    /// The arrangement of the pixels.
    pub fn format(&self) -> PixelFormat {
        self.format
    }

    /// Width and height in pixels.
    pub fn size(&self) -> Size {
        self.size
    }

    /// What the numbers mean as colors.
    pub fn colorimetry(&self) -> Colorimetry {
        self.colorimetry
    }

    /// The planes, in the order of the format. Views of subsampled planes cover every chroma sample that the region touches.
    pub fn planes(&self) -> impl Iterator<Item = &Tensor> {
        self.planes.iter().flatten()
    }

    /// What kind of memory it lies in; of planes in several kinds the one that the host reaches least.
    pub fn memory_kind(&self) -> MemoryKind {
        self.planes().map(Tensor::memory_kind).max().unwrap_or(MemoryKind::Host)
    }

    /// Where the region begins inside the first chroma sample, in pixels: 0 or 1 each way.
    pub fn chroma_phase(&self) -> (u32, u32) {
        self.chroma_phase
    }
}

impl PixelFormat {
    /// The layout of a plane whose rows lie `row_stride_bytes` apart.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the stride is shorter than a row, or parts a sample.
    pub fn plane_layout(self, plane_idx: usize, size: Size, row_stride_bytes: usize) -> Result<Layout> {
        let shape = self.plane_shape(plane_idx, size);
        let sample_bytes = self.element().size();
        let pixel_bytes = shape.get(2).copied().unwrap_or(1) * sample_bytes;
        let strides = [row_stride_bytes, pixel_bytes, sample_bytes];
        Layout::strided(self.element(), shape, if shape.len() == 3 { &strides } else { &strides[..2] })
    }
}
