//! Shapes and byte strides. The code here is pure arithmetic and accesses no memory.

use std::fmt;
use std::ops::Deref;

use super::{ElementType, Error, ErrorKind, Result};

/// Maximum number of axes. With this limit, a shape is stored inline, so views allocate nothing.
pub const MAX_RANK: usize = 8;

/// The extent of each axis. The shape of a scalar has no axes, and a scalar has one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// Creates a shape with these extents.
    ///
    /// # Panics
    /// Panics if there are more than [`MAX_RANK`] extents.
    pub fn new(dims: &[usize]) -> Self {
        assert!(dims.len() <= MAX_RANK, "a shape has at most {MAX_RANK} axes, got {}", dims.len());
        let mut inline = [0; MAX_RANK];
        inline[..dims.len()].copy_from_slice(dims);
        Self { dims: inline, rank: dims.len() as u8 }
    }

    /// Returns the extents of the window from `begin` to `end`. `begin` and `end` must have the same number of axes, at most [`MAX_RANK`].
    #[inline(always)]
    fn between(begin: &[usize], end: &[usize]) -> Self {
        let mut dims = [0; MAX_RANK];
        // A fixed number of iterations lets the compiler keep the values in registers.
        for (axis, dim) in dims.iter_mut().enumerate() {
            if axis < begin.len() && axis < end.len() {
                *dim = end[axis] - begin[axis];
            }
        }
        Self { dims, rank: begin.len() as u8 }
    }

    /// Returns the number of elements; `None` if this number overflows.
    pub fn n_elements(&self) -> Option<usize> {
        self.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim))
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.dims[..usize::from(self.rank)]
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self::new(&dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self::new(dims)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// The element type, shape and byte strides of a tensor. The strides define the offset of each element from the first element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    shape: Shape,
    stride_bytes: Shape,
    element: ElementType,
}

impl Layout {
    /// Creates a dense layout in row-major order.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if the size in bytes overflows.
    pub fn dense(element: ElementType, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        let overflow = || Error::new(ErrorKind::Shape, format!("shape {shape}: its size in bytes overflows"));
        let mut strides = [0; MAX_RANK];
        let mut stride_bytes = element.size();
        for axis in (0..shape.len()).rev() {
            strides[axis] = stride_bytes;
            stride_bytes = stride_bytes.checked_mul(shape[axis].max(1)).ok_or_else(overflow)?;
        }
        if stride_bytes > isize::MAX as usize {
            return Err(overflow());
        }
        Ok(Self { shape, stride_bytes: Shape::new(&strides[..shape.len()]), element })
    }

    /// Creates a layout with these strides in bytes.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] unless there is one stride per axis, and each stride is a multiple of the element size and at least the
    /// size in bytes of the axes inside it. Because of this rule, rows may have padding but cannot overlap.
    pub fn strided(element: ElementType, shape: impl Into<Shape>, stride_bytes: &[usize]) -> Result<Self> {
        let shape = shape.into();
        let fail = |what: String| Err(Error::new(ErrorKind::Shape, what));
        if stride_bytes.len() != shape.len() {
            return fail(format!("strides {stride_bytes:?}: expected one stride per axis of shape {shape}"));
        }
        let mut inner_bytes = element.size();
        for axis in (0..shape.len()).rev() {
            let stride = stride_bytes[axis];
            if !stride.is_multiple_of(element.size()) {
                return fail(format!("strides {stride_bytes:?}: expected multiples of {} bytes, the size of {element}", element.size()));
            }
            if shape[axis] > 1 && stride < inner_bytes {
                return fail(format!(
                    "strides {stride_bytes:?}: axis {axis} of shape {shape} needs at least {inner_bytes} bytes, got {stride}"
                ));
            }
            inner_bytes = match stride.max(inner_bytes).checked_mul(shape[axis].max(1)) {
                Some(bytes) if bytes <= isize::MAX as usize => bytes,
                _ => return fail(format!("shape {shape} with strides {stride_bytes:?}: its size in bytes overflows")),
            };
        }
        Ok(Self { shape, stride_bytes: Shape::new(stride_bytes), element })
    }

    /// Returns the extent of each axis.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the strides: the distance in bytes between neighboring elements along each axis.
    pub fn stride_bytes(&self) -> &[usize] {
        &self.stride_bytes
    }

    /// Returns the element type.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.n_elements().expect("checked when the layout was created")
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Returns the total size of the elements in bytes, without gaps.
    pub fn dense_bytes(&self) -> usize {
        self.n_elements() * self.element.size()
    }

    /// Returns the size in bytes from the first byte of the first element to the last byte of the last element, including gaps.
    pub fn extent_bytes(&self) -> usize {
        if self.n_elements() == 0 {
            return 0;
        }
        let last: usize = self.shape.iter().zip(self.stride_bytes.iter()).map(|(&dim, &stride)| (dim - 1) * stride).sum();
        last + self.element.size()
    }

    /// Returns whether the layout has no gaps and is in row-major order.
    pub fn is_dense(&self) -> bool {
        let mut inner_bytes = self.element.size();
        for axis in (0..self.shape.len()).rev() {
            if self.shape[axis] > 1 && self.stride_bytes[axis] != inner_bytes {
                return false;
            }
            inner_bytes *= self.shape[axis].max(1);
        }
        true
    }

    /// Returns the layout of the window from `begin` to `end` (exclusive), and the byte offset of its first element.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] unless `begin` and `end` have one entry per axis and `begin <= end <= shape` on every axis.
    pub fn window(&self, begin: &[usize], end: &[usize]) -> Result<(Layout, usize)> {
        let offset_bytes = self.window_offset(begin, end)?;
        Ok((self.with_window(begin, end), offset_bytes))
    }

    /// Returns the byte offset of [`Layout::window`]. Fails if the window is not inside the shape.
    #[inline(always)]
    pub(super) fn window_offset(&self, begin: &[usize], end: &[usize]) -> Result<usize> {
        let fail = || Err(self.not_within(begin, end));
        if begin.len() != self.shape.len() || end.len() != self.shape.len() {
            return fail();
        }
        let (mut offset_bytes, mut is_empty) = (0_usize, false);
        for (((begin, end), extent), stride_bytes) in begin.iter().zip(end).zip(self.shape.iter()).zip(self.stride_bytes.iter()) {
            if begin > end || end > extent {
                return fail();
            }
            // If an axis has one element, or if the layout has no elements, the stride may be so large that this product overflows. The
            // wrong offset does no harm, because then `begin` is 0 or the window is empty.
            offset_bytes = offset_bytes.wrapping_add(begin.wrapping_mul(*stride_bytes));
            is_empty |= begin == end;
        }
        Ok(if is_empty { 0 } else { offset_bytes })
    }

    /// Returns the layout of a window that was already checked. This function and its callers are inlined, so that the layout stays in
    /// registers. Otherwise, the layout is stored word by word and loaded with vector instructions, and the processor stalls until the
    /// stores are complete. The stall takes three times as long as the rest of the function.
    #[inline(always)]
    pub(super) fn with_window(&self, begin: &[usize], end: &[usize]) -> Self {
        Self { shape: Shape::between(begin, end), stride_bytes: self.stride_bytes, element: self.element }
    }

    #[cold]
    fn not_within(&self, begin: &[usize], end: &[usize]) -> Error {
        Error::new(ErrorKind::Shape, format!("region {begin:?}..{end:?}: expected begin <= end within shape {}", self.shape))
    }

    /// Returns a layout with the same strides and a different shape. The new shape must not extend beyond the largest shape that the layout
    /// had.
    pub(super) fn with_shape(&self, shape: Shape) -> Self {
        Self { shape, ..*self }
    }

    /// Same as [`Layout::with_shape`], for a tensor that is not dense, but checks the shape: no extent may exceed the extent in `limit`.
    pub(super) fn with_smaller_shape(&self, shape: Shape, limit: &Shape) -> Result<Self> {
        if shape.len() != limit.len() || shape.iter().zip(limit.iter()).any(|(new, limit)| new > limit) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("set_shape {shape}: this tensor is a region, whose shape is at most {limit}"),
            ));
        }
        Ok(self.with_shape(shape))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_checked_against_rank_element_and_extent() {
        let shape = Shape::from([2, 3]);
        for bad in [&[12][..], &[12, 3], &[8, 4], &[2, 4]] {
            assert!(Layout::strided(ElementType::F32, shape, bad).is_err(), "{bad:?}");
        }
        let padded = Layout::strided(ElementType::F32, shape, &[16, 4]).unwrap();
        assert!(!padded.is_dense());
        assert_eq!(padded.extent_bytes(), 28);
        assert_eq!(Layout::dense(ElementType::F32, shape).unwrap().stride_bytes(), [12, 4]);
        assert!(Layout::dense(ElementType::F32, [usize::MAX, 2]).is_err());
    }

    #[test]
    fn windows_of_huge_strides_do_not_overflow() {
        // An axis with one element has an arbitrary stride.
        let huge = isize::MAX as usize & !7;
        let layout = Layout::strided(ElementType::U8, [1; MAX_RANK], &[huge; MAX_RANK]).unwrap();
        let (empty, offset_bytes) = layout.window(&[1; MAX_RANK], &[1; MAX_RANK]).unwrap();
        assert_eq!((empty.n_elements(), empty.extent_bytes(), offset_bytes), (0, 0, 0));
        let (whole, offset_bytes) = layout.window(&[0; MAX_RANK], &[1; MAX_RANK]).unwrap();
        assert_eq!((whole.n_elements(), whole.extent_bytes(), offset_bytes), (1, 1, 0));
        assert!(layout.window(&[0; MAX_RANK], &[usize::MAX; MAX_RANK]).is_err());
    }

    #[test]
    fn a_window_keeps_strides_and_moves_the_offset() {
        let layout = Layout::dense(ElementType::U8, [4, 5, 3]).unwrap();
        let (window, offset_bytes) = layout.window(&[1, 2, 0], &[3, 4, 3]).unwrap();
        assert_eq!((window.shape(), offset_bytes), (&Shape::from([2, 2, 3]), 15 + 6));
        assert_eq!(window.stride_bytes(), layout.stride_bytes());
        assert!(layout.window(&[0, 0, 0], &[4, 6, 3]).is_err());
        assert!(layout.window(&[0, 0], &[4, 5]).is_err());
    }
}
