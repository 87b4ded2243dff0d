//! Guards over the bytes of tensors, and copies between layouts.
//!
//! A guard leases the elements of a tensor. It leases the gaps between rows only if the caller asks for them, because another guard may
//! write to the gaps. So copies go from row to row with pointers: a slice over several rows would contain gaps that are not leased.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::lease::Span;
use super::storage::Lease;
use super::tensor::Placed;
use super::{Element, ElementType, Error, ErrorKind, Layout, MAX_RANK, Memory, Result, Tensor};

/// A layout in memory, and the lease on its elements.
#[derive(Debug)]
pub(super) struct Leased {
    pub(super) lease: Lease,
    layout: Layout,
    offset_bytes: usize,
    /// Whether the lease covers all bytes from the first to the last element.
    is_gapless: bool,
}

impl Leased {
    /// Leases `span`, which must cover the elements of the layout. `gaps` says whether `span` also covers the bytes between the elements.
    #[inline]
    pub(super) fn take(placed: &Placed, span: Option<Span>, writes: bool, gaps: bool) -> Result<Self> {
        placed.memory.check_host()?;
        let lease = placed.memory.lease(span, writes)?;
        Ok(Self::new(lease, placed.layout, placed.offset_bytes, gaps))
    }

    /// Combines a lease with the layout whose elements it covers. `gaps` says whether the lease also covers the bytes between the elements.
    pub(super) fn new(lease: Lease, layout: Layout, offset_bytes: usize, gaps: bool) -> Self {
        Self { lease, layout, offset_bytes, is_gapless: gaps || layout.is_dense() }
    }

    /// Returns the address of the first element. Only leased bytes may be accessed through it.
    #[inline]
    pub(super) fn ptr(&self) -> NonNull<u8> {
        // SAFETY: `add` requires that the result stays inside the allocation or just after its end. The constructor of the tensor has
        // checked that the elements are inside the memory. So the offset is inside the memory, or just after its last byte if the layout
        // has no elements.
        unsafe { self.lease.ptr().add(self.offset_bytes) }
    }

    /// Returns the number of bytes from the first to the last element.
    ///
    /// # Panics
    /// Panics if the gaps between rows are not leased.
    fn extent_bytes(&self) -> usize {
        assert!(
            self.is_gapless,
            "shape {} with strides {:?} has gaps, which this guard does not lease; lease the gaps with `Tensor::bytes`, or copy the elements",
            self.layout.shape(),
            self.layout.stride_bytes()
        );
        self.layout.extent_bytes()
    }

    fn extent(&self) -> &[u8] {
        let len = self.extent_bytes();
        // SAFETY: `extent_bytes` has checked that the lease covers these bytes, so no other thread writes them. The bytes are initialized
        // and in one block. The memory lives as long as the lease, which is a field of `self`.
        unsafe { std::slice::from_raw_parts(self.ptr().as_ptr(), len) }
    }

    /// Checks that the bytes of all elements are valid values of `T`. The lease must cover the elements.
    pub(super) fn check_values<T: Element>(&self) -> Result<()> {
        if T::TYPE != ElementType::Bool {
            return Ok(()); // For every type except `bool`, each bit pattern is a value.
        }
        let mut is_valid = true;
        for_each_run(&self.layout, None, |offset_bytes, _, run_bytes| {
            // SAFETY: these bytes are initialized elements. The lease covers them, so no other thread writes them while the slice exists.
            let run = unsafe { std::slice::from_raw_parts(self.ptr().as_ptr().add(offset_bytes), run_bytes) };
            is_valid &= T::is_valid(run);
        });
        if is_valid { Ok(()) } else { Err(invalid::<T>()) }
    }

    fn dense<T: Element>(&self) -> Result<&[T]> {
        let layout = &self.layout;
        if T::TYPE != layout.element() {
            return Err(Error::new(ErrorKind::ElementType, format!("expected {}, got {}", layout.element(), T::TYPE)));
        }
        if !layout.is_dense() {
            let message =
                format!("expected a dense tensor, got shape {} with strides {:?}, which has gaps", layout.shape(), layout.stride_bytes());
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let extent = self.extent();
        if !T::is_valid(extent) {
            return Err(invalid::<T>());
        }
        if extent.is_empty() {
            return Ok(&[]);
        }
        let ptr = extent.as_ptr().cast::<T>();
        debug_assert!(ptr.is_aligned());
        // SAFETY: the lease covers all elements, and in a dense layout they are adjacent. The constructor of the tensor has checked that
        // the first element is aligned. `is_valid` has checked above that all bytes are valid values of `T`.
        Ok(unsafe { std::slice::from_raw_parts(ptr, layout.n_elements()) })
    }
}

fn invalid<T: Element>() -> Error {
    Error::new(ErrorKind::ElementType, format!("the bytes are not valid {} values (expected 0 or 1)", T::TYPE))
}

/// A guard that reads untyped bytes.
#[derive(Debug)]
pub struct Bytes(pub(super) Leased);

impl Bytes {
    /// Returns the shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Returns the leased elements as a tensor in the same memory. If the original tensor is reshaped later, this tensor does not change.
    #[doc(hidden)]
    pub fn tensor(&self) -> Tensor {
        let (memory, layout) = (Arc::clone(self.0.lease.memory()), self.0.layout);
        Tensor::from_placed(Placed { memory, layout, offset_bytes: self.0.offset_bytes })
    }

    /// Returns whether the lease of this guard covers any element of `tensor`.
    #[doc(hidden)]
    pub fn overlaps(&self, tensor: &Tensor) -> bool {
        tensor.with_span(false, |placed, span| self.0.lease.covers_any(&placed.memory, span))
    }

    /// Returns the bytes from the first to the last element, including gaps.
    ///
    /// # Panics
    /// Panics if the layout has gaps that are not leased. A guard from [`Tensor::elements`], such as the input of a run, does not lease
    /// gaps. [`Bytes::copy_all_to_dense`] copies any layout.
    pub fn extent(&self) -> &[u8] {
        self.0.extent()
    }

    /// Returns all elements as a slice. The layout must be dense.
    ///
    /// # Errors
    /// Returns [`ErrorKind::ElementType`] if `T` is not the element type; [`ErrorKind::Shape`] if there are gaps.
    pub fn dense<T: Element>(&self) -> Result<&[T]> {
        self.0.dense()
    }

    /// Copies all elements to `target`. If rows are adjacent in both layouts, copies them at once.
    ///
    /// # Errors
    /// Returns [`ErrorKind::ElementType`] or [`ErrorKind::Shape`] if the element types or shapes differ.
    pub fn copy_to(&self, target: &mut BytesMut) -> Result<()> {
        let (from, to) = (self.0.layout, target.0.layout);
        if from.element() != to.element() {
            let message = format!("copy: expected {}, as in the target, got {}", to.element(), from.element());
            return Err(Error::new(ErrorKind::ElementType, message));
        }
        if from.shape() != to.shape() {
            return Err(Error::new(ErrorKind::Shape, format!("copy: expected {}, as in the target, got {}", to.shape(), from.shape())));
        }
        // SAFETY: both guards cover the elements of their layouts, which have the same element type and shape (checked above). The lease of
        // `target` is for writing, so it excludes all other leases. Therefore the two guards have no byte in common.
        unsafe { copy_strided(self.0.ptr().as_ptr(), &from, target.0.ptr().as_ptr(), &to) };
        Ok(())
    }

    /// Copies all elements to a buffer without gaps.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if `target` does not have the total size of the elements.
    pub fn copy_all_to_dense(&self, target: &mut [u8]) -> Result<()> {
        let layout = self.0.layout;
        if target.len() != layout.dense_bytes() {
            return Err(Error::new(ErrorKind::Shape, format!("expected {} bytes, got {}", layout.dense_bytes(), target.len())));
        }
        let dense = Layout::dense(layout.element(), *layout.shape())?;
        // SAFETY: the guard covers the elements of `layout`. `target` has the size of the dense layout with the same element type and
        // shape. It is borrowed exclusively, so it has no byte in common with the memory of the guard.
        unsafe { copy_strided(self.0.ptr().as_ptr(), &layout, target.as_mut_ptr(), &dense) };
        Ok(())
    }

    /// Copies one batch item to a buffer without gaps.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if there is no such item, or if `target` does not have the size of the item's elements.
    pub fn copy_row_to_dense(&self, index: usize, target: &mut [u8]) -> Result<()> {
        let (layout, offset_bytes) = row_window(&self.0.layout, index)?;
        if target.len() != layout.dense_bytes() {
            return Err(Error::new(ErrorKind::Shape, format!("batch item: expected {} bytes, got {}", layout.dense_bytes(), target.len())));
        }
        let dense = Layout::dense(layout.element(), *layout.shape())?;
        // SAFETY: as in `copy_all_to_dense`. The elements of the batch item are leased, because they are a part of the elements of the
        // tensor.
        unsafe { copy_strided(self.0.ptr().as_ptr().wrapping_add(offset_bytes), &layout, target.as_mut_ptr(), &dense) };
        Ok(())
    }
}

/// A guard that reads and writes untyped bytes.
#[derive(Debug)]
pub struct BytesMut(pub(super) Leased);

impl BytesMut {
    pub(super) fn memory(&self) -> &Arc<Memory> {
        self.0.lease.memory()
    }

    /// Changes the layout and keeps the lease. The lease must cover the elements of the new layout.
    pub(super) fn set_layout(&mut self, layout: Layout, offset_bytes: usize) {
        self.0.is_gapless = layout.is_dense();
        (self.0.layout, self.0.offset_bytes) = (layout, offset_bytes);
    }

    /// Returns the shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Same as [`Bytes::overlaps`].
    #[doc(hidden)]
    pub fn overlaps(&self, tensor: &Tensor) -> bool {
        tensor.with_span(false, |placed, span| self.0.lease.covers_any(&placed.memory, span))
    }

    /// Returns the bytes from the first to the last element, including gaps.
    ///
    /// # Panics
    /// Panics if the layout has gaps that are not leased. A guard from [`Tensor::elements_mut`], such as the output of a run, does not
    /// lease gaps.
    pub fn extent(&self) -> &[u8] {
        self.0.extent()
    }

    /// Returns the bytes from the first to the last element, including gaps, as a mutable slice.
    ///
    /// # Panics
    /// Panics if the layout has gaps that are not leased. A guard from [`Tensor::elements_mut`], such as the output of a run, does not
    /// lease gaps. [`BytesMut::copy_all_from_dense`] fills any layout.
    pub fn extent_mut(&mut self) -> &mut [u8] {
        let len = self.0.extent_bytes();
        // SAFETY: as in `extent`, the bytes are leased, initialized and in one block. The lease is for writing, so it excludes all other
        // leases. `self` is borrowed exclusively, so no other slice of this guard exists.
        unsafe { std::slice::from_raw_parts_mut(self.0.ptr().as_ptr(), len) }
    }

    /// Turns this guard into a guard that reads. No other thread can write between the two leases.
    pub fn downgrade(mut self) -> Bytes {
        self.0.lease.downgrade();
        Bytes(self.0)
    }

    /// Returns all elements as a slice. The layout must be dense.
    ///
    /// # Errors
    /// Returns the errors of [`Bytes::dense`].
    pub fn dense<T: Element>(&self) -> Result<&[T]> {
        self.0.dense()
    }

    /// Returns all elements as a mutable slice. The layout must be dense.
    ///
    /// # Errors
    /// Returns [`ErrorKind::ElementType`] if `T` is not the element type; [`ErrorKind::Shape`] if there are gaps.
    pub fn dense_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        let len = self.0.dense::<T>()?.len();
        let ptr = if len == 0 { NonNull::<T>::dangling().as_ptr() } else { self.0.ptr().as_ptr().cast::<T>() };
        debug_assert!(ptr.is_aligned());
        // SAFETY: `dense` has checked that `len` aligned, valid elements of type `T` follow the pointer without gaps. The lease is for
        // writing and `self` is borrowed exclusively, so no other code accesses these elements.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr, len) })
    }

    /// Copies all elements from `bytes`, a buffer without gaps.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if `bytes` does not have the total size of the elements.
    pub fn copy_all_from_dense(&mut self, bytes: &[u8]) -> Result<()> {
        RowMut { layout: self.0.layout, ptr: self.0.ptr(), guard: PhantomData }.copy_from_dense(bytes)
    }

    /// Sets all bytes of the elements to 0.
    pub fn fill_zero(&mut self) {
        let ptr = self.0.ptr().as_ptr();
        for_each_run(&self.0.layout, None, |offset_bytes, _, run_bytes| {
            // SAFETY: these bytes are elements, so they are inside the memory, and the lease for writing covers them.
            unsafe { ptr::write_bytes(ptr.add(offset_bytes), 0, run_bytes) };
        });
    }

    /// Returns the batch item with this index. The batch is the first axis.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if there is no such item.
    pub fn row_mut(&mut self, index: usize) -> Result<RowMut<'_>> {
        let (layout, offset_bytes) = row_window(&self.0.layout, index)?;
        // SAFETY: the batch item is a part of the leased elements, so its offset is inside the memory.
        let ptr = unsafe { self.0.ptr().add(offset_bytes) };
        Ok(RowMut { layout, ptr, guard: PhantomData })
    }
}

/// A batch item that can be written, see [`BytesMut::row_mut`].
#[derive(Debug)]
pub struct RowMut<'a> {
    layout: Layout,
    /// The address of the first element. The borrowed guard leases all elements of the layout for writing.
    ptr: NonNull<u8>,
    guard: PhantomData<&'a mut BytesMut>,
}

// SAFETY: the value represents an exclusive borrow of a `BytesMut`, which is `Send`.
unsafe impl Send for RowMut<'_> {}
// SAFETY: all methods that access the elements need a `&mut RowMut`.
unsafe impl Sync for RowMut<'_> {}

impl RowMut<'_> {
    /// Returns the layout of the batch item. Its first extent is 1.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Copies the elements of a tensor into the batch item.
    ///
    /// # Errors
    /// Returns [`ErrorKind::ElementType`] or [`ErrorKind::Shape`] if the element types or shapes differ.
    pub fn copy_from(&mut self, source: &Bytes) -> Result<()> {
        let from = source.layout();
        if (from.element(), from.shape()) != (self.layout.element(), self.layout.shape()) {
            let (expected, element) = (self.layout.shape(), self.layout.element());
            let message = format!("batch item: expected {expected} {element}, got {} {}", from.shape(), from.element());
            return Err(Error::new(ErrorKind::Shape, message));
        }
        // SAFETY: as in `Bytes::copy_to`: both guards cover the elements, the layouts have the same element type and shape, and the
        // elements have no byte in common.
        unsafe { copy_strided(source.0.ptr().as_ptr(), from, self.ptr.as_ptr(), &self.layout) };
        Ok(())
    }

    /// Copies the elements from `bytes`, a buffer without gaps, into the batch item.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if `bytes` does not have the size of the item's elements.
    pub fn copy_from_dense(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.layout.dense_bytes() {
            let expected = self.layout.dense_bytes();
            return Err(Error::new(ErrorKind::Shape, format!("expected {expected} bytes, got {}", bytes.len())));
        }
        let dense = Layout::dense(self.layout.element(), *self.layout.shape())?;
        // SAFETY: `bytes` has the size of the dense layout, which has the same element type and shape. The guard covers the elements of
        // `self.layout`. Its lease for writing excludes all other accesses, so `bytes` cannot contain these elements.
        unsafe { copy_strided(bytes.as_ptr(), &dense, self.ptr.as_ptr(), &self.layout) };
        Ok(())
    }
}

/// Returns the layout of the batch item with this index, and its byte offset.
fn row_window(layout: &Layout, index: usize) -> Result<(Layout, usize)> {
    let mut end = [0; MAX_RANK];
    let rank = layout.shape().len();
    end[..rank].copy_from_slice(layout.shape());
    let mut begin = [0; MAX_RANK];
    if rank == 0 || index >= end[0] {
        return Err(Error::new(ErrorKind::Shape, format!("batch item {index}: shape {} has no such item", layout.shape())));
    }
    (begin[0], end[0]) = (index, index + 1);
    layout.window(&begin[..rank], &end[..rank])
}

/// Copies between two layouts of the same shape and element type.
///
/// # Safety
/// The two layouts must have the same element type and shape. The elements of `from_layout` at `from` must be readable. The elements of
/// `to_layout` at `to` must be writable. The elements at `from` and at `to` must have no byte in common.
unsafe fn copy_strided(from: *const u8, from_layout: &Layout, to: *mut u8, to_layout: &Layout) {
    for_each_run(from_layout, Some(to_layout), |from_offset, to_offset, run_bytes| {
        // SAFETY: both runs consist of elements of their layouts. The caller guarantees that the first run is readable, that the second run
        // is writable, and that they have no byte in common.
        unsafe { ptr::copy_nonoverlapping(from.add(from_offset), to.add(to_offset), run_bytes) };
    });
}

/// Calls `visit` for each run of adjacent elements. The arguments of `visit` are the byte offset of the run in `layout`, the byte offset of
/// the same elements in `second`, and the length of the run in bytes. `second` is a layout of the same shape. If `second` is `None`, both
/// offsets refer to `layout`.
pub(super) fn for_each_run(layout: &Layout, second: Option<&Layout>, mut visit: impl FnMut(usize, usize, usize)) {
    if layout.is_empty() {
        return;
    }
    let shape = *layout.shape();
    let second = second.unwrap_or(layout);
    // The elements are adjacent along the trailing axes that are dense in both layouts, so these axes form one run.
    let mut run_bytes = layout.element().size();
    let mut n_outer = shape.len();
    while n_outer > 0 {
        let axis = n_outer - 1;
        let is_dense = layout.stride_bytes()[axis] == run_bytes && second.stride_bytes()[axis] == run_bytes;
        if !is_dense && shape[axis] > 1 {
            break;
        }
        run_bytes *= shape[axis];
        n_outer = axis;
    }
    let mut index = [0; MAX_RANK];
    loop {
        let offset = |layout: &Layout| (0..n_outer).map(|axis| index[axis] * layout.stride_bytes()[axis]).sum::<usize>();
        visit(offset(layout), offset(second), run_bytes);
        let mut axis = n_outer;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}
