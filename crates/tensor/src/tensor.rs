//! The type [`Tensor`], and the guards that read and write its values.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ndarray::{ArrayD, ArrayRef, ArrayViewD, ArrayViewMutD, IxDyn, ShapeBuilder};

use super::bytes::{Bytes, BytesMut, Leased};
use super::lease::Span;
use super::storage::Lease;
use super::{Element, ElementType, Error, ErrorKind, ForeignMemory, Layout, Memory, Result, Shape};
use crate::sync::RwLock;

/// An n-dimensional array in reference-counted memory.
///
/// A clone is another handle to the same tensor, with the same values and shape. A region ([`Tensor::roi`]) shares the memory but has its
/// own offset and shape. Handles are cheap: elements are copied only by [`Tensor::copy_to`] and by the constructors that take values.
///
/// Each guard holds a lease on the bytes of its elements. At any time, a byte is leased by many readers or by one writer. Regions without a
/// common element are independent, even if they are next to each other in one image. A tensor over a whole block of memory leases the whole
/// block. A tensor without elements leases nothing.
#[derive(Clone)]
pub struct Tensor {
    pub(super) body: Body,
    element: ElementType,
}

#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "a region must not allocate, so its layout is inline")]
pub(super) enum Body {
    /// A tensor over a whole block of memory. All its handles share one layout. When the tensor grows, it may get a new block.
    Whole(Arc<RwLock<Placed>>),
    /// A region of a block. If the whole tensor moves to a larger block, the region keeps the old block. `limit` is the original shape of
    /// the region, which the first reshape stores.
    Part { placed: Placed, limit: Option<Box<Shape>> },
}

/// A layout at an offset in a block of memory.
#[derive(Clone)]
pub(super) struct Placed {
    pub(super) memory: Arc<Memory>,
    pub(super) layout: Layout,
    pub(super) offset_bytes: usize,
}

impl Placed {
    /// Returns the span that a tensor over a whole block leases.
    pub(super) fn whole_span(&self) -> Option<Span> {
        if self.layout.is_empty() { None } else { self.memory.whole() }
    }

    /// Returns the span that a region leases. `limit` is the original shape of the region, if the region was reshaped. If `gaps` is true,
    /// the span includes the bytes between rows.
    pub(super) fn part_span(&self, limit: Option<&Shape>, gaps: bool) -> Option<Span> {
        if self.layout.is_empty() {
            return None;
        }
        let layout = limit.map_or(self.layout, |limit| self.layout.with_shape(*limit));
        if gaps { Span::range(self.offset_bytes, layout.extent_bytes()) } else { Span::of_elements(&layout, self.offset_bytes) }
    }
}

impl Tensor {
    /// Creates a dense tensor of zeros.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if the size in bytes overflows; [`ErrorKind::OutOfMemory`] if no memory is left.
    pub fn new(element: ElementType, shape: impl Into<Shape>) -> Result<Self> {
        let layout = Layout::dense(element, shape)?;
        Ok(Self::over(Memory::try_zeroed(layout.dense_bytes())?, layout))
    }

    /// Creates a dense tensor with a copy of these values, in row-major order.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] unless `shape` has `values.len()` elements.
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

    /// Creates a dense tensor with a copy of the array's values.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if the array has more than [`MAX_RANK`](super::MAX_RANK) axes.
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

    /// Creates a tensor over foreign memory, without a copy. Its first element is at `offset_bytes` of the memory.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if the layout exceeds the memory, or if its elements are not aligned.
    pub fn foreign(owner: Box<dyn ForeignMemory>, layout: Layout, offset_bytes: usize) -> Result<Self> {
        Self::part_of(Memory::foreign(owner), layout, offset_bytes)
    }

    /// Same as [`Tensor::foreign`], but creates a dense tensor over the whole memory, which [`Tensor::set_shape`] may grow.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::foreign`].
    pub fn foreign_whole(owner: Box<dyn ForeignMemory>, layout: Layout) -> Result<Self> {
        let tensor = Self::foreign(owner, layout, 0)?;
        let Placed { memory, .. } = tensor.placed();
        Ok(Self::over(memory, layout))
    }

    /// Same as [`Tensor::foreign`], but over memory that several tensors share, such as the memory of all planes of a frame.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::foreign`].
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
        // Device memory has no host address. Its first byte is aligned for every element type, so only the offset matters.
        let begin = if memory.as_remote().is_some() { 0 } else { memory.address() as usize };
        if !(begin + offset_bytes).is_multiple_of(layout.element().size()) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("{} elements at address {:p} + {offset_bytes} are not aligned", layout.element(), memory.address()),
            ));
        }
        Ok(Self::from_placed(Placed { memory, layout, offset_bytes }))
    }

    /// Creates a tensor over all of `memory`. The caller ensures that the memory is large enough for the layout.
    pub(super) fn over(memory: Arc<Memory>, layout: Layout) -> Self {
        debug_assert!(layout.extent_bytes() <= memory.len());
        Self { element: layout.element(), body: Body::Whole(Arc::new(RwLock::new(Placed { memory, layout, offset_bytes: 0 }))) }
    }

    /// Returns the element type, which never changes for a tensor.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Returns the extent of each axis.
    #[inline]
    pub fn shape(&self) -> Shape {
        *self.layout().shape()
    }

    /// Returns the element type, shape and strides.
    #[inline]
    pub fn layout(&self) -> Layout {
        self.with_placed(|placed| placed.layout)
    }

    /// Returns the address of the first element, only for comparisons and range checks. For device memory, it is only an identifier.
    pub fn address(&self) -> *const u8 {
        let placed = self.placed();
        placed.memory.address().wrapping_add(placed.offset_bytes)
    }

    /// Returns whether both handles refer to the same elements: the same memory, offset and layout.
    pub fn is_same(&self, other: &Tensor) -> bool {
        let (own, other) = (self.placed(), other.placed());
        Arc::ptr_eq(&own.memory, &other.memory) && own.offset_bytes == other.offset_bytes && own.layout == other.layout
    }

    /// Returns whether the values may be written.
    pub fn is_writable(&self) -> bool {
        self.with_placed(|placed| placed.memory.is_writable())
    }

    /// Returns whether code that knows no leases may write the values: another process, or other code of this process
    /// ([`ForeignMemory::may_change`]).
    pub fn is_written_by_others(&self) -> bool {
        self.with_placed(|placed| placed.memory.is_written_by_others())
    }

    /// Declares that code that knows no leases may write the values from now on, for example through an array over this memory. If the
    /// tensor moves to larger memory, the same holds for that memory.
    pub fn let_others_write(&self) {
        self.with_placed(|placed| placed.memory.let_others_write());
    }

    /// Returns a tensor with the present memory and layout. A later [`Tensor::set_shape`] of the original does not change this tensor.
    pub fn snapshot(&self) -> Self {
        self.with_placed(|placed| Self::from_placed(placed.clone()))
    }

    /// Returns whether both tensors are in the same memory, for example a region and its tensor, or two mappings of one shared memory.
    pub fn shares_memory_with(&self, other: &Tensor) -> bool {
        self.placed().memory.is_same(&other.placed().memory)
    }

    /// Returns whether a guard that writes one of the two tensors excludes all guards of the second tensor. This is the case if they have
    /// an element in common, or are handles of one tensor.
    pub fn overlaps(&self, other: &Tensor) -> bool {
        if !self.shares_memory_with(other) {
            return false;
        }
        if matches!((&self.body, &other.body), (Body::Whole(_), Body::Whole(_))) {
            return true;
        }
        let span_of = |tensor: &Tensor| tensor.with_span(false, |_, span| span);
        matches!((span_of(self), span_of(other)), (Some(own), Some(other)) if own.overlaps(&other))
    }

    /// Returns the size in bytes up to which [`Tensor::set_shape`] keeps the memory.
    pub fn capacity_bytes(&self) -> usize {
        match &self.body {
            Body::Whole(placed) => placed.read().unwrap().memory.len(),
            Body::Part { placed, .. } => placed.layout.dense_bytes(),
        }
    }

    /// Returns a guard that reads the values.
    ///
    /// # Errors
    /// Returns [`ErrorKind::ElementType`] if `T` is not the element type. Returns [`ErrorKind::Busy`] while an element is being written.
    /// Returns [`ErrorKind::Remote`] for device memory.
    pub fn view<T: Element>(&self) -> Result<View<T>> {
        self.check_element::<T>()?;
        let bytes = self.elements()?;
        bytes.0.check_values::<T>()?;
        let strides = element_strides(bytes.layout());
        let dims = IxDyn(bytes.layout().shape());
        // SAFETY: the elements are leased. The constructor of the tensor has checked that they are aligned and inside initialized memory,
        // and `check_values` has checked that they are valid values of `T`. `View` keeps the lease as long as the array, and lends the
        // array only while `View` is borrowed.
        let array = unsafe { ArrayViewD::from_shape_ptr(dims.strides(strides), bytes.0.ptr().as_ptr().cast::<T>().cast_const()) };
        // SAFETY: only the lifetime changes. The lease is stored next to the array, so the elements are valid as long as `View` exists.
        // `View` lends the array only while it is borrowed itself.
        let array = unsafe { std::mem::transmute::<ArrayViewD<'_, T>, ArrayViewD<'static, T>>(array) };
        Ok(View { array, _lease: bytes.0.lease })
    }

    /// Returns a guard that reads and writes the values.
    ///
    /// # Errors
    /// Returns [`ErrorKind::ElementType`] if `T` is not the element type. Returns [`ErrorKind::Busy`] while an element is being read or
    /// written. Returns [`ErrorKind::Access`] if the memory is read-only. Returns [`ErrorKind::Remote`] for device memory.
    pub fn view_mut<T: Element>(&self) -> Result<ViewMut<T>> {
        self.check_element::<T>()?;
        let bytes = self.elements_mut()?;
        bytes.0.check_values::<T>()?;
        let strides = element_strides(bytes.layout());
        let dims = IxDyn(bytes.layout().shape());
        let ptr = bytes.0.ptr().as_ptr().cast::<T>();
        // SAFETY: as in `view`. The lease is for writing, so it excludes all other accesses. `Layout` has checked that no two elements
        // overlap.
        let array = unsafe { ArrayViewMutD::<'static, T>::from_shape_ptr(dims.strides(strides), ptr) };
        Ok(ViewMut { array, _lease: bytes.0.lease })
    }

    /// Returns a guard that reads the bytes from the first to the last element, including the gaps between rows.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Busy`] while one of the bytes is being written; [`ErrorKind::Remote`] for device memory.
    pub fn bytes(&self) -> Result<Bytes> {
        // `with_span` holds the lock of the layout during the call, so `set_shape` cannot run between reading the layout and taking the
        // lease.
        self.with_span(true, |placed, span| Ok(Bytes(Leased::take(placed, span, false, true)?)))
    }

    /// Returns a guard that writes the bytes from the first to the last element, including the gaps between rows.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Busy`] while one of the bytes is being read or written; [`ErrorKind::Access`] if the memory is read-only;
    /// [`ErrorKind::Remote`] for device memory.
    pub fn bytes_mut(&self) -> Result<BytesMut> {
        self.with_span(true, |placed, span| Ok(BytesMut(Leased::take(placed, span, true, true)?)))
    }

    /// Returns a guard that reads the bytes of the elements. In contrast to [`Tensor::bytes`], this guard does not lease the gaps between
    /// rows, so guards of other tensors may use them. [`Bytes::extent`] panics if there are gaps.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Busy`] while an element is being written; [`ErrorKind::Remote`] for device memory.
    pub fn elements(&self) -> Result<Bytes> {
        self.with_span(false, |placed, span| Ok(Bytes(Leased::take(placed, span, false, false)?)))
    }

    /// Returns a guard that writes the bytes of the elements. In contrast to [`Tensor::bytes_mut`], this guard does not lease the gaps
    /// between rows, so guards of other tensors may use them. [`BytesMut::extent_mut`] panics if there are gaps.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Busy`] while an element is being read or written; [`ErrorKind::Access`] if the memory is read-only;
    /// [`ErrorKind::Remote`] for device memory.
    pub fn elements_mut(&self) -> Result<BytesMut> {
        self.with_span(false, |placed, span| Ok(BytesMut(Leased::take(placed, span, true, false)?)))
    }

    /// Copies all elements to `target`. Both tensors may have any strides, and either may be in device memory. The shapes must be equal.
    ///
    /// # Errors
    /// Returns [`ErrorKind::ElementType`] or [`ErrorKind::Shape`] if the element types or shapes differ. Returns [`ErrorKind::Busy`] or
    /// [`ErrorKind::Access`] in the same cases as [`Tensor::view`] and [`Tensor::view_mut`]. Returns [`ErrorKind::Busy`] also if source and
    /// target have an element in common. Returns the device's error if the device fails.
    pub fn copy_to(&self, target: &Tensor) -> Result<()> {
        if self.is_remote() || target.is_remote() {
            return super::remote::copy(self, target);
        }
        let source = self.elements()?;
        source.copy_to(&mut target.elements_mut()?)
    }

    pub(super) fn placed(&self) -> Placed {
        self.with_placed(Placed::clone)
    }

    /// Calls `look` with the layout and memory. No other handle can change them during the call.
    #[inline]
    pub(super) fn with_placed<R>(&self, look: impl FnOnce(&Placed) -> R) -> R {
        match &self.body {
            Body::Whole(placed) => look(&placed.read().unwrap()),
            Body::Part { placed, .. } => look(placed),
        }
    }

    /// Calls `look` with the layout and memory, and with the span that a lease must cover. If `gaps` is true, the span includes the bytes
    /// between rows. For a tensor over a whole block, the span is the whole block. For a region, the span has the elements of its original
    /// shape. So a lease stays sufficient when the tensor is reshaped.
    #[inline]
    pub(super) fn with_span<R>(&self, gaps: bool, look: impl FnOnce(&Placed, Option<Span>) -> R) -> R {
        match &self.body {
            Body::Whole(placed) => {
                let placed = placed.read().unwrap();
                look(&placed, placed.whole_span())
            }
            Body::Part { placed, limit } => look(placed, placed.part_span(limit.as_deref(), gaps)),
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

/// A guard that reads values as an `ndarray` with any number of axes.
#[derive(Debug)]
pub struct View<T: Element> {
    array: ArrayViewD<'static, T>,
    _lease: Lease,
}

impl<T: Element> View<T> {
    /// Returns a copy of the values, in row-major order.
    pub fn to_vec(&self) -> Vec<T> {
        self.array.iter().copied().collect()
    }

    /// Returns a copy of the values as an owned array.
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

/// A guard that reads and writes values as an `ndarray` with any number of axes.
#[derive(Debug)]
pub struct ViewMut<T: Element> {
    array: ArrayViewMutD<'static, T>,
    _lease: Lease,
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
    fn set_shape_is_busy_under_a_view() {
        let mut tensor = Tensor::new(ElementType::U8, [4]).unwrap();
        let view = tensor.view::<u8>().unwrap();
        assert_eq!(tensor.set_shape([8]).unwrap_err().kind(), ErrorKind::Busy);
        drop(view);
        tensor.set_shape([8]).unwrap();
    }

    #[test]
    fn regions_without_a_common_element_are_written_at_the_same_time() {
        let image = Tensor::new(ElementType::U8, [4, 6, 3]).unwrap();
        let region = |begin: [usize; 2], end: [usize; 2]| image.roi(&[begin[0], begin[1], 0], &[end[0], end[1], 3]).unwrap();
        let (left, right, middle) = (region([0, 0], [4, 3]), region([0, 3], [4, 6]), region([1, 2], [2, 4]));
        let (mut left_view, mut right_view) = (left.view_mut::<u8>().unwrap(), right.view_mut::<u8>().unwrap());
        left_view.fill(1);
        right_view.fill(2);
        for refused in [middle.view::<u8>().unwrap_err(), image.view::<u8>().unwrap_err(), left.bytes().unwrap_err()] {
            assert_eq!(refused.kind(), ErrorKind::Busy);
        }
        drop((left_view, right_view));
        assert_eq!(middle.view::<u8>().unwrap().to_vec(), [1, 1, 1, 2, 2, 2]);
        assert!(left.overlaps(&middle) && middle.overlaps(&image) && !left.overlaps(&right));
        left.copy_to(&right).unwrap();
        assert_eq!(right.view::<u8>().unwrap().to_vec(), [1; 36]);
    }

    #[test]
    fn an_empty_tensor_leases_nothing() {
        let mut tensor = Tensor::from_slice([2, 2], &[1_u8, 2, 3, 4]).unwrap();
        let empty = tensor.roi(&[1, 0], &[1, 2]).unwrap();
        let writer = tensor.view_mut::<u8>().unwrap();
        let (reads, writes) = (empty.view::<u8>().unwrap(), empty.bytes_mut().unwrap());
        drop(writer);
        let _writer = tensor.bytes_mut().unwrap();
        assert_eq!((reads.len(), writes.extent().len()), (0, 0));
        drop(_writer);
        tensor.set_shape([0, 2]).unwrap();
        let (_one, _other) = (tensor.bytes_mut().unwrap(), tensor.bytes_mut().unwrap());
        tensor.set_shape([1, 2]).unwrap();
        assert_eq!(tensor.view::<u8>().unwrap().to_vec(), [1, 2]);
    }

    #[test]
    fn huge_strides_of_axes_with_one_element_do_no_harm() {
        let huge = isize::MAX as usize & !7;
        let memory = Memory::zeroed(64);
        for shape in [[1, 1, 4], [1, 0, 4], [1, 4, 1]] {
            for strides in [[huge, huge, 4], [huge, 8, 4], [huge, 4, huge], [huge; 3]] {
                let Ok(layout) = Layout::strided(ElementType::F32, shape, &strides) else { continue };
                let Ok(tensor) = Tensor::part_of(memory.clone(), layout, 16) else { continue };
                for (begin, end) in [([0; 3], shape), (shape, shape), ([0, 0, 1], shape), ([1, 0, 0], shape), ([0, 1, 0], shape)] {
                    let Ok(mut region) = tensor.roi(&begin, &end) else { continue };
                    let n_elements = region.view::<f32>().unwrap().len();
                    assert_eq!(region.view_mut::<f32>().unwrap().iter().count(), n_elements);
                    let copy = Tensor::new(ElementType::F32, region.shape()).unwrap();
                    region.copy_to(&copy).unwrap();
                    copy.copy_to(&region).unwrap();
                    region.set_shape(region.shape()).unwrap();
                    region.roi(&[0; 3], &region.shape()).unwrap();
                    assert!(region.roi(&[0; 3], &[usize::MAX; 3]).is_err());
                    let _ = (region.layout().extent_bytes(), region.layout().is_dense(), region.address());
                }
            }
        }
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
