//! The tensor, and the guards that read and write it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use ndarray::{ArrayD, ArrayRef, ArrayViewD, ArrayViewMutD, IxDyn, ShapeBuilder};

use super::{Element, ElementType, Error, ErrorKind, ForeignMemory, Layout, Memory, ReadLease, Result, Shape, WriteLease};
use crate::sync::RwLock;

/// An n-dimensional array over shared memory.
///
/// A clone is another handle to the same tensor, with the same values and shape. A region ([`Tensor::roi`]) shares the memory but keeps its
/// own window. Handles are cheap: only [`Tensor::copy_to`] and the constructors from data copy elements.
#[derive(Clone)]
pub struct Tensor {
    pub(super) body: Body,
    element: ElementType,
}

#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "a region must not allocate, so its layout is inline")]
pub(super) enum Body {
    /// A whole block of memory. The handles share one layout; growing replaces the memory.
    Whole(Arc<RwLock<Placed>>),
    /// A window. Keeps its memory when the whole tensor gets larger memory. `limit` is the original shape, set by the first reshape.
    Part { placed: Placed, limit: Option<Box<Shape>> },
}

/// A layout within a block of memory.
#[derive(Clone)]
pub(super) struct Placed {
    pub(super) memory: Arc<Memory>,
    pub(super) layout: Layout,
    pub(super) offset_bytes: usize,
}

impl Tensor {
    /// A dense tensor of zeros.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the size in bytes overflows; [`ErrorKind::OutOfMemory`] if memory is exhausted.
    pub fn new(element: ElementType, shape: impl Into<Shape>) -> Result<Self> {
        let layout = Layout::dense(element, shape)?;
        Ok(Self::over(Memory::try_zeroed(layout.dense_bytes())?, layout))
    }

    /// A dense tensor with a copy of these values, in row-major order.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] unless `shape` has `values.len()` elements.
    pub fn from_slice<T: Element>(shape: impl Into<Shape>, values: &[T]) -> Result<Self> {
        let shape = shape.into();
        let tensor = Self::new(T::TYPE, shape)?;
        let n_elements = tensor.layout().n_elements();
        if n_elements != values.len() {
            return Err(Error::new(ErrorKind::Shape, format!("shape {shape} has {n_elements} elements, got {} values", values.len())));
        }
        let mut view = tensor.view_mut::<T>()?;
        view.as_slice_mut().expect("a new tensor is dense").copy_from_slice(values);
        drop(view);
        Ok(tensor)
    }

    /// A dense tensor with a copy of the array's values.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the array has more than [`MAX_RANK`](super::MAX_RANK) axes.
    pub fn from_array<T: Element>(array: &ArrayViewD<'_, T>) -> Result<Self> {
        if array.ndim() > super::MAX_RANK {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("array of shape {:?}: a tensor has at most {} axes", array.shape(), super::MAX_RANK),
            ));
        }
        let tensor = Self::new(T::TYPE, array.shape())?;
        tensor.view_mut::<T>()?.assign(array);
        Ok(tensor)
    }

    /// A tensor over foreign memory, the first element at `offset_bytes`, without a copy.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the layout reaches past the memory or its elements would not be aligned.
    pub fn foreign(owner: Box<dyn ForeignMemory>, layout: Layout, offset_bytes: usize) -> Result<Self> {
        Self::part_of(Memory::foreign(owner), layout, offset_bytes)
    }

    /// As [`Tensor::foreign`], for a dense tensor over the whole memory, which [`Tensor::set_shape`] may grow.
    ///
    /// # Errors
    /// As there.
    pub fn foreign_whole(owner: Box<dyn ForeignMemory>, layout: Layout) -> Result<Self> {
        let tensor = Self::foreign(owner, layout, 0)?;
        let Placed { memory, .. } = tensor.placed();
        Ok(Self::over(memory, layout))
    }

    /// As [`Tensor::foreign`], over memory that several tensors share, such as the planes of a frame.
    ///
    /// # Errors
    /// As there.
    pub fn part_of(memory: Arc<Memory>, layout: Layout, offset_bytes: usize) -> Result<Self> {
        let end_bytes = offset_bytes.checked_add(layout.extent_bytes());
        if end_bytes.is_none_or(|end| end > memory.len()) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "shape {} with strides {:?} at byte {offset_bytes} reaches past the memory's {} bytes",
                    layout.shape(),
                    layout.stride_bytes(),
                    memory.len()
                ),
            ));
        }
        // Device memory has no host address; its start is aligned for every element type.
        let begin = if memory.as_remote().is_some() { 0 } else { memory.address() as usize };
        if !(begin + offset_bytes).is_multiple_of(layout.element().size()) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("{} elements at address {:p} + {offset_bytes} are not aligned", layout.element(), memory.address()),
            ));
        }
        Ok(Self::from_placed(Placed { memory, layout, offset_bytes }))
    }

    /// A tensor over all of `memory`, which is large enough by construction.
    pub(super) fn over(memory: Arc<Memory>, layout: Layout) -> Self {
        debug_assert!(layout.extent_bytes() <= memory.len());
        Self { element: layout.element(), body: Body::Whole(Arc::new(RwLock::new(Placed { memory, layout, offset_bytes: 0 }))) }
    }

    /// The element type. It never changes.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// The extent of each axis.
    #[inline]
    pub fn shape(&self) -> Shape {
        *self.layout().shape()
    }

    /// Shape and strides.
    #[inline]
    pub fn layout(&self) -> Layout {
        self.with_placed(|placed| placed.layout)
    }

    /// The address of the first element, for identity and range checks only. For device memory it only identifies the tensor.
    pub fn address(&self) -> *const u8 {
        let placed = self.placed();
        placed.memory.address().wrapping_add(placed.offset_bytes)
    }

    /// Whether both handles refer to the same elements: same memory, offset and layout.
    pub fn is_same(&self, other: &Tensor) -> bool {
        let (own, other) = (self.placed(), other.placed());
        Arc::ptr_eq(&own.memory, &other.memory) && own.offset_bytes == other.offset_bytes && own.layout == other.layout
    }

    /// Whether both share memory and leases, such as a region and its tensor.
    pub fn shares_memory_with(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.placed().memory, &other.placed().memory)
    }

    /// Size in bytes up to which [`Tensor::set_shape`] needs no new memory.
    pub fn capacity_bytes(&self) -> usize {
        match &self.body {
            Body::Whole(placed) => placed.read().unwrap().memory.len(),
            Body::Part { placed, .. } => placed.layout.dense_bytes(),
        }
    }

    /// A guard to read the values.
    ///
    /// # Errors
    /// [`ErrorKind::ElementType`] if `T` is not the element type; [`ErrorKind::Busy`] while the tensor is written; [`ErrorKind::Remote`]
    /// for device memory.
    pub fn view<T: Element>(&self) -> Result<View<T>> {
        self.check_element::<T>()?;
        let bytes = self.bytes()?;
        if !T::is_valid(bytes.extent()) {
            return Err(Error::new(ErrorKind::ElementType, format!("the bytes are no {} values (expected 0 or 1)", T::TYPE)));
        }
        let strides = element_strides(&bytes.layout);
        let dims = IxDyn(bytes.layout.shape());
        // SAFETY: `bytes` is the extent of the layout, aligned and initialized (checked when the tensor was made), valid `T`s
        // (checked above); `View` keeps the lease as long as the array, and lends the array only for its own lifetime.
        let array = unsafe { ArrayViewD::from_shape_ptr(dims.strides(strides), bytes.extent().as_ptr().cast::<T>()) };
        // SAFETY: the lifetime is that of the lease kept beside it; it never leaves `View` longer than a borrow of `View`.
        let array = unsafe { std::mem::transmute::<ArrayViewD<'_, T>, ArrayViewD<'static, T>>(array) };
        Ok(View { array, _lease: bytes.lease })
    }

    /// A guard to write the values.
    ///
    /// # Errors
    /// [`ErrorKind::ElementType`] if `T` is not the element type; [`ErrorKind::Busy`] while the tensor is read or written;
    /// [`ErrorKind::Access`] if the memory is read-only; [`ErrorKind::Remote`] for device memory.
    pub fn view_mut<T: Element>(&self) -> Result<ViewMut<T>> {
        self.check_element::<T>()?;
        let mut bytes = self.bytes_mut()?;
        if !T::is_valid(bytes.extent_mut()) {
            return Err(Error::new(ErrorKind::ElementType, format!("the bytes are no {} values (expected 0 or 1)", T::TYPE)));
        }
        let strides = element_strides(&bytes.layout);
        let dims = IxDyn(bytes.layout.shape());
        let ptr = bytes.extent_mut().as_mut_ptr().cast::<T>();
        // SAFETY: as in `view`; the write lease excludes all other accesses, and axes do not overlap (checked by `Layout`).
        let array = unsafe { ArrayViewMutD::<'static, T>::from_shape_ptr(dims.strides(strides), ptr) };
        Ok(ViewMut { array, _lease: bytes.lease })
    }

    /// A guard to read the bytes, with their layout.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while the tensor is written; [`ErrorKind::Remote`] for device memory.
    pub fn bytes(&self) -> Result<Bytes> {
        // Under the lock of the layout, so that `set_shape` cannot run between reading the layout and taking the lease.
        self.with_placed(|placed| {
            Ok(Bytes { lease: placed.memory.lease_read()?, layout: placed.layout, offset_bytes: placed.offset_bytes })
        })
    }

    /// A guard to write the bytes, with their layout.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while the tensor is read or written; [`ErrorKind::Access`] if the memory is read-only; [`ErrorKind::Remote`] for
    /// device memory.
    pub fn bytes_mut(&self) -> Result<BytesMut> {
        self.with_placed(|placed| {
            Ok(BytesMut { lease: placed.memory.lease_write()?, layout: placed.layout, offset_bytes: placed.offset_bytes })
        })
    }

    /// Copies all elements to `target`, with any strides on either side, also from and to device memory. The shapes must be equal.
    ///
    /// # Errors
    /// [`ErrorKind::ElementType`] or [`ErrorKind::Shape`] if they differ; [`ErrorKind::Busy`] and [`ErrorKind::Access`] as for views, also
    /// for a copy within the same memory; the device's error if the device fails.
    pub fn copy_to(&self, target: &Tensor) -> Result<()> {
        if self.is_remote() || target.is_remote() {
            return super::remote::copy(self, target);
        }
        let source = self.bytes()?;
        source.copy_to(&mut target.bytes_mut()?)
    }

    pub(super) fn placed(&self) -> Placed {
        self.with_placed(Placed::clone)
    }

    /// Calls `look` with layout and memory while no other handle can change them.
    #[inline]
    pub(super) fn with_placed<R>(&self, look: impl FnOnce(&Placed) -> R) -> R {
        match &self.body {
            Body::Whole(placed) => look(&placed.read().unwrap()),
            Body::Part { placed, .. } => look(placed),
        }
    }

    #[inline(always)]
    pub(super) fn from_placed(placed: Placed) -> Self {
        Self { element: placed.layout.element(), body: Body::Part { placed, limit: None } }
    }

    fn check_element<T: Element>(&self) -> Result<()> {
        if T::TYPE == self.element {
            return Ok(());
        }
        Err(Error::new(ErrorKind::ElementType, format!("expected a view of {}, got {}", self.element, T::TYPE)))
    }
}

impl AsRef<Tensor> for Tensor {
    fn as_ref(&self) -> &Tensor {
        self
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {})", self.shape(), self.element)
    }
}

fn element_strides(layout: &Layout) -> IxDyn {
    let mut strides = [0; super::MAX_RANK];
    for (stride, stride_bytes) in strides.iter_mut().zip(layout.stride_bytes()) {
        *stride = stride_bytes / layout.element().size();
    }
    IxDyn(&strides[..layout.shape().len()])
}

/// A guard to read values as an `ndarray` of any rank.
#[derive(Debug)]
pub struct View<T: Element> {
    array: ArrayViewD<'static, T>,
    _lease: ReadLease,
}

impl<T: Element> View<T> {
    /// A copy of the values, in row-major order.
    pub fn to_vec(&self) -> Vec<T> {
        self.array.iter().copied().collect()
    }

    /// A copy as an owned array.
    pub fn to_owned(&self) -> ArrayD<T> {
        self.array.to_owned()
    }
}

impl<T: Element> Deref for View<T> {
    type Target = ArrayRef<T, IxDyn>;

    fn deref(&self) -> &Self::Target {
        &self.array
    }
}

/// A guard to write values as an `ndarray` of any rank.
#[derive(Debug)]
pub struct ViewMut<T: Element> {
    array: ArrayViewMutD<'static, T>,
    _lease: WriteLease,
}

impl<T: Element> Deref for ViewMut<T> {
    type Target = ArrayRef<T, IxDyn>;

    fn deref(&self) -> &Self::Target {
        &self.array
    }
}

impl<T: Element> DerefMut for ViewMut<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.array
    }
}

/// A guard to read untyped bytes.
#[derive(Debug)]
pub struct Bytes {
    lease: ReadLease,
    layout: Layout,
    offset_bytes: usize,
}

impl Bytes {
    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn memory(&self) -> &Arc<Memory> {
        self.lease.memory()
    }

    pub(super) fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// The bytes from the first to the last element, including gaps.
    pub fn extent(&self) -> &[u8] {
        &self.lease.bytes()[self.offset_bytes..][..self.layout.extent_bytes()]
    }

    /// All elements as a slice, if the layout is dense.
    ///
    /// # Errors
    /// [`ErrorKind::ElementType`] if `T` is not the element type; [`ErrorKind::Shape`] if there are gaps.
    pub fn dense<T: Element>(&self) -> Result<&[T]> {
        dense_slice(&self.layout, self.extent())
    }

    /// Copies all elements; dense rows are copied at once.
    ///
    /// # Errors
    /// If element type or shape differ.
    pub fn copy_to(&self, target: &mut BytesMut) -> Result<()> {
        if self.layout.element() != target.layout.element() {
            return Err(Error::new(
                ErrorKind::ElementType,
                format!("copy: expected {} as the target has, got {}", target.layout.element(), self.layout.element()),
            ));
        }
        if self.layout.shape() != target.layout.shape() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("copy: expected {} as the target has, got {}", target.layout.shape(), self.layout.shape()),
            ));
        }
        let (from, to) = (self.layout, target.layout);
        copy_strided(self.extent(), &from, target.extent_mut(), &to);
        Ok(())
    }
}

/// A guard to write untyped bytes.
#[derive(Debug)]
pub struct BytesMut {
    lease: WriteLease,
    layout: Layout,
    offset_bytes: usize,
}

impl BytesMut {
    /// `layout` must be inside the leased memory.
    pub(super) fn new(lease: WriteLease, layout: Layout, offset_bytes: usize) -> Self {
        Self { lease, layout, offset_bytes }
    }

    pub(super) fn into_lease(self) -> WriteLease {
        self.lease
    }

    pub(super) fn memory(&self) -> &Arc<Memory> {
        self.lease.memory()
    }

    /// A dense layout from the first byte of the leased memory, which must be large enough.
    pub(super) fn set_layout(&mut self, layout: Layout) {
        (self.layout, self.offset_bytes) = (layout, 0);
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The bytes from the first to the last element, including gaps.
    pub fn extent(&self) -> &[u8] {
        &self.lease.bytes()[self.offset_bytes..][..self.layout.extent_bytes()]
    }

    /// As [`BytesMut::extent`], mutable.
    pub fn extent_mut(&mut self) -> &mut [u8] {
        &mut self.lease.bytes_mut()[self.offset_bytes..][..self.layout.extent_bytes()]
    }

    /// Turns the guard into a reading one, without a gap in which another thread could write.
    pub fn downgrade(self) -> Bytes {
        Bytes { lease: self.lease.downgrade(), layout: self.layout, offset_bytes: self.offset_bytes }
    }

    /// All elements as a slice, if the layout is dense.
    ///
    /// # Errors
    /// As [`Bytes::dense`].
    pub fn dense<T: Element>(&self) -> Result<&[T]> {
        dense_slice(&self.layout, self.extent())
    }

    /// All elements as a mutable slice, if the layout is dense.
    ///
    /// # Errors
    /// [`ErrorKind::ElementType`] if `T` is not the element type; [`ErrorKind::Shape`] if there are gaps.
    pub fn dense_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        let layout = self.layout;
        let dense: &[T] = dense_slice(&layout, self.extent())?;
        let len = dense.len();
        let ptr = if len == 0 { NonNull::<T>::dangling().as_ptr() } else { self.extent_mut().as_mut_ptr().cast::<T>() };
        debug_assert!(ptr.is_aligned());
        // SAFETY: the same elements that `dense_slice` checked, reached through the exclusive borrow of the write lease.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr, len) })
    }

    /// Copies elements from a buffer without gaps.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] unless there are as many bytes as the elements have.
    pub fn copy_all_from_dense(&mut self, bytes: &[u8]) -> Result<()> {
        let layout = self.layout;
        RowMut { layout, bytes: self.extent_mut() }.copy_from_dense(bytes)
    }

    /// The batch item with this index on the first axis.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if there is no such row.
    pub fn row_mut(&mut self, index: usize) -> Result<RowMut<'_>> {
        let (layout, offset_bytes) = row_window(&self.layout, index)?;
        let len = layout.extent_bytes();
        Ok(RowMut { layout, bytes: &mut self.extent_mut()[offset_bytes..][..len] })
    }
}

/// One batch item, see [`BytesMut::row_mut`].
#[derive(Debug)]
pub struct RowMut<'a> {
    layout: Layout,
    bytes: &'a mut [u8],
}

impl RowMut<'_> {
    /// Shape (first axis 1) and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Copies the elements of a tensor into the batch item.
    ///
    /// # Errors
    /// If element type or shape differ.
    pub fn copy_from(&mut self, source: &Bytes) -> Result<()> {
        if (source.layout.element(), source.layout.shape()) != (self.layout.element(), self.layout.shape()) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "row of a batch: expected {} {}, got {} {}",
                    self.layout.shape(),
                    self.layout.element(),
                    source.layout.shape(),
                    source.layout.element()
                ),
            ));
        }
        copy_strided(source.extent(), &source.layout, self.bytes, &self.layout);
        Ok(())
    }

    /// Copies elements from a buffer without gaps into the batch item.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] unless there are as many bytes as the row's elements have.
    pub fn copy_from_dense(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.layout.dense_bytes() {
            let expected = self.layout.dense_bytes();
            return Err(Error::new(ErrorKind::Shape, format!("expected {expected} bytes, got {}", bytes.len())));
        }
        copy_strided(bytes, &Layout::dense(self.layout.element(), *self.layout.shape())?, self.bytes, &self.layout);
        Ok(())
    }
}

impl Bytes {
    /// Copies all elements to a buffer without gaps.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if `target` is not as long as the elements.
    pub fn copy_all_to_dense(&self, target: &mut [u8]) -> Result<()> {
        if target.len() != self.layout.dense_bytes() {
            return Err(Error::new(ErrorKind::Shape, format!("expected {} bytes, got {}", self.layout.dense_bytes(), target.len())));
        }
        copy_strided(self.extent(), &self.layout, target, &Layout::dense(self.layout.element(), *self.layout.shape())?);
        Ok(())
    }

    /// Copies one batch item to a buffer without gaps.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if there is no such row, or `target` is not as long as the row's elements.
    pub fn copy_row_to_dense(&self, index: usize, target: &mut [u8]) -> Result<()> {
        let (layout, offset_bytes) = row_window(&self.layout, index)?;
        if target.len() != layout.dense_bytes() {
            return Err(Error::new(ErrorKind::Shape, format!("row: expected {} bytes, got {}", layout.dense_bytes(), target.len())));
        }
        let row = &self.extent()[offset_bytes..][..layout.extent_bytes()];
        copy_strided(row, &layout, target, &Layout::dense(layout.element(), *layout.shape())?);
        Ok(())
    }
}

/// The window of one index of the first axis.
fn row_window(layout: &Layout, index: usize) -> Result<(Layout, usize)> {
    let mut end = [0; super::MAX_RANK];
    let rank = layout.shape().len();
    end[..rank].copy_from_slice(layout.shape());
    let mut begin = [0; super::MAX_RANK];
    if rank == 0 || index >= end[0] {
        return Err(Error::new(ErrorKind::Shape, format!("row {index} of shape {}: there is none", layout.shape())));
    }
    (begin[0], end[0]) = (index, index + 1);
    layout.window(&begin[..rank], &end[..rank])
}

fn dense_slice<'a, T: Element>(layout: &Layout, extent: &'a [u8]) -> Result<&'a [T]> {
    if T::TYPE != layout.element() {
        return Err(Error::new(ErrorKind::ElementType, format!("expected {}, got {}", layout.element(), T::TYPE)));
    }
    if !layout.is_dense() {
        return Err(Error::new(ErrorKind::Shape, format!("shape {} with strides {:?} has gaps", layout.shape(), layout.stride_bytes())));
    }
    if !T::is_valid(extent) {
        return Err(Error::new(ErrorKind::ElementType, format!("the bytes are no {} values (expected 0 or 1)", T::TYPE)));
    }
    if extent.is_empty() {
        return Ok(&[]);
    }
    let ptr = extent.as_ptr().cast::<T>();
    debug_assert!(ptr.is_aligned());
    // SAFETY: the extent of a dense layout is its elements, aligned (checked when the tensor was made) and valid (above).
    Ok(unsafe { std::slice::from_raw_parts(ptr, layout.n_elements()) })
}

/// Copies between two layouts of the same shape and element type.
fn copy_strided(from: &[u8], from_layout: &Layout, to: &mut [u8], to_layout: &Layout) {
    if from_layout.n_elements() == 0 {
        return;
    }
    if from_layout.is_dense() && to_layout.is_dense() {
        to.copy_from_slice(from);
        return;
    }
    let shape = *from_layout.shape();
    // The trailing axes that are dense on both sides are copied at once.
    let mut run_bytes = from_layout.element().size();
    let mut n_outer = shape.len();
    while n_outer > 0 {
        let axis = n_outer - 1;
        let dense = from_layout.stride_bytes()[axis] == run_bytes && to_layout.stride_bytes()[axis] == run_bytes;
        if !dense && shape[axis] > 1 {
            break;
        }
        run_bytes *= shape[axis];
        n_outer = axis;
    }
    let mut index = [0; super::MAX_RANK];
    loop {
        let offset = |layout: &Layout| (0..n_outer).map(|axis| index[axis] * layout.stride_bytes()[axis]).sum::<usize>();
        let (source, target) = (offset(from_layout), offset(to_layout));
        to[target..][..run_bytes].copy_from_slice(&from[source..][..run_bytes]);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_views_refuse_other_types_and_exclude_each_other() {
        let tensor = Tensor::from_slice([2, 3], &[1_f32, 2., 3., 4., 5., 6.]).unwrap();
        assert_eq!(tensor.view::<u8>().unwrap_err().kind(), ErrorKind::ElementType);
        let view = tensor.view::<f32>().unwrap();
        assert_eq!(view[[1, 0]], 4.0);
        assert_eq!(tensor.view_mut::<f32>().unwrap_err().kind(), ErrorKind::Busy);
        drop(view);
        tensor.view_mut::<f32>().unwrap()[[0, 2]] = 9.0;
        assert_eq!(tensor.view::<f32>().unwrap().to_vec(), [1., 2., 9., 4., 5., 6.]);
    }

    #[test]
    fn a_bool_view_of_other_bytes_is_refused() {
        let tensor = Tensor::new(ElementType::Bool, [2]).unwrap();
        assert_eq!(tensor.view::<bool>().unwrap().to_vec(), [false, false]);
        tensor.bytes_mut().unwrap().extent_mut()[1] = 7;
        assert_eq!(tensor.view::<bool>().unwrap_err().kind(), ErrorKind::ElementType);
    }

    #[test]
    fn set_shape_is_seen_by_every_handle_and_keeps_the_pointer_while_it_fits() {
        let mut tensor = Tensor::new(ElementType::F32, [4]).unwrap();
        let handle = tensor.clone();
        let address = tensor.address();
        tensor.set_shape([2]).unwrap();
        assert_eq!((handle.shape(), handle.address()), (Shape::from([2]), address));
        tensor.set_shape([4]).unwrap();
        assert_eq!(tensor.address(), address);
        let region = tensor.roi(&[1], &[3]).unwrap();
        region.view_mut::<f32>().unwrap()[[0]] = 5.0;
        tensor.set_shape([400]).unwrap();
        assert_eq!(handle.shape(), Shape::from([400]));
        assert_eq!(region.view::<f32>().unwrap().to_vec(), [5.0, 0.0], "the region keeps the memory it was made of");
    }

    #[test]
    fn set_shape_waits_for_nobody() {
        let mut tensor = Tensor::new(ElementType::U8, [4]).unwrap();
        let view = tensor.view::<u8>().unwrap();
        assert_eq!(tensor.set_shape([8]).unwrap_err().kind(), ErrorKind::Busy);
        drop(view);
        tensor.set_shape([8]).unwrap();
    }

    #[test]
    fn copies_go_between_dense_and_strided_in_every_combination() {
        let values: Vec<u16> = (0..2 * 3 * 4).collect();
        let source = Tensor::from_slice([2, 3, 4], &values).unwrap();
        let big = Tensor::new(ElementType::U16, [4, 5, 6]).unwrap();
        let window = big.roi(&[1, 1, 1], &[3, 4, 5]).unwrap();
        source.copy_to(&window).unwrap();
        assert_eq!(window.view::<u16>().unwrap().to_vec(), values);
        let back = Tensor::new(ElementType::U16, [2, 3, 4]).unwrap();
        window.copy_to(&back).unwrap();
        assert_eq!(back.view::<u16>().unwrap().to_vec(), values);
        let other = Tensor::new(ElementType::U16, [4, 5, 6]).unwrap().roi(&[0, 2, 2], &[2, 5, 6]).unwrap();
        window.copy_to(&other).unwrap();
        assert_eq!(other.view::<u16>().unwrap().to_vec(), values);
        assert_eq!(
            big.view::<u16>().unwrap().iter().map(|&v| u64::from(v)).sum::<u64>(),
            values.iter().map(|&v| u64::from(v)).sum::<u64>()
        );
        assert_eq!(source.copy_to(&Tensor::new(ElementType::U16, [24]).unwrap()).unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(source.copy_to(&source).unwrap_err().kind(), ErrorKind::Busy);
    }

    #[test]
    fn rows_of_a_batch_take_strided_slices() {
        let picture = Tensor::from_slice([1, 4, 4], &(0..16_u8).collect::<Vec<_>>()).unwrap();
        let slice = picture.roi(&[0, 1, 1], &[1, 3, 3]).unwrap();
        let batch = Tensor::new(ElementType::U8, [2, 2, 2]).unwrap();
        let mut bytes = batch.bytes_mut().unwrap();
        bytes.row_mut(1).unwrap().copy_from(&slice.bytes().unwrap()).unwrap();
        assert!(bytes.row_mut(2).is_err());
        drop(bytes);
        assert_eq!(batch.view::<u8>().unwrap().to_vec(), [0, 0, 0, 0, 5, 6, 9, 10]);
    }
}
