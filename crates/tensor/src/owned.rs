//! Tensors that take over the memory of a `Vec` or of an owned `ndarray`, without a copy. Contains the `unsafe` code that owns this memory.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use ndarray::{Array, Dimension};

use super::{Element, Error, ErrorKind, ForeignMemory, Layout, MAX_RANK, Result, Shape, Tensor};

/// The memory of a `Vec`, taken apart, for a tensor.
struct VecMemory<T: Element> {
    ptr: NonNull<T>,
    len: usize,
    capacity: usize,
}

// SAFETY: this value owns the allocation, which has `len` initialized numbers and never moves. The allocation is accessed only through
// leases, so no other code reads or writes it. It may be written, because it belonged to the `Vec`.
unsafe impl<T: Element> ForeignMemory for VecMemory<T> {
    fn as_ptr(&self) -> NonNull<u8> {
        self.ptr.cast()
    }

    fn len(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn is_writable(&self) -> bool {
        true
    }
}

// SAFETY: the value owns plain numbers, which are `Send`.
unsafe impl<T: Element> Send for VecMemory<T> {}
// SAFETY: no method of a shared `VecMemory` reads or writes the numbers.
unsafe impl<T: Element> Sync for VecMemory<T> {}

impl<T: Element> VecMemory<T> {
    fn new(values: Vec<T>) -> Self {
        let mut values = ManuallyDrop::new(values);
        let ptr = NonNull::new(values.as_mut_ptr()).expect("a Vec has an address, also if it is empty");
        Self { ptr, len: values.len(), capacity: values.capacity() }
    }
}

impl<T: Element> Drop for VecMemory<T> {
    fn drop(&mut self) {
        // SAFETY: pointer and capacity come from the `Vec` that `new` took apart, so the allocator and layout match. The length is 0,
        // because a byte that was written through a lease may be an invalid `bool`, and because numbers need no drop.
        drop(unsafe { Vec::from_raw_parts(self.ptr.as_ptr(), 0, self.capacity) });
    }
}

impl Tensor {
    /// Creates a dense tensor of these values, in row-major order. The tensor takes over the memory of the `Vec` without a copy.
    ///
    /// ```
    /// # use roiflow_tensor::Tensor;
    /// let tensor = Tensor::from_vec([2, 2], vec![1.0_f32, 2.0, 3.0, 4.0])?;
    /// assert_eq!(tensor.view::<f32>()?[[1, 0]], 3.0);
    /// # Ok::<(), roiflow_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] unless `shape` has `values.len()` elements.
    pub fn from_vec<T: Element>(shape: impl Into<Shape>, values: Vec<T>) -> Result<Self> {
        let shape = shape.into();
        let layout = Layout::dense(T::TYPE, shape)?;
        if layout.n_elements() != values.len() {
            let message = format!("shape {shape} has {} elements, got {} values", layout.n_elements(), values.len());
            return Err(Error::new(ErrorKind::Shape, message));
        }
        Self::foreign_whole(Box::new(VecMemory::new(values)), layout)
    }

    /// Creates a tensor from an owned array. The tensor takes over the memory of the array without a copy, even if its rows have gaps. The
    /// values are copied only if the axes are not in row-major order (a transposed array), or if an axis is reversed (a negative stride).
    ///
    /// ```
    /// # use roiflow_tensor::Tensor;
    /// let tensor = Tensor::from_owned(ndarray::arr2(&[[1.0_f32, 2.0], [3.0, 4.0]]))?;
    /// assert_eq!(tensor.view::<f32>()?[[1, 0]], 3.0);
    /// # Ok::<(), roiflow_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if the array has more than [`MAX_RANK`] axes.
    pub fn from_owned<T: Element, D: Dimension>(array: Array<T, D>) -> Result<Self> {
        let copied = |array: &Array<T, D>| Self::from_array(&array.view().into_dyn());
        if array.ndim() > MAX_RANK {
            return copied(&array);
        }
        let shape = Shape::new(array.shape());
        let mut stride_bytes = [0; MAX_RANK];
        for (bytes, &stride) in stride_bytes.iter_mut().zip(array.strides()) {
            let Ok(stride) = usize::try_from(stride) else { return copied(&array) };
            *bytes = stride * size_of::<T>();
        }
        let Ok(layout) = Layout::strided(T::TYPE, shape, &stride_bytes[..shape.len()]) else { return copied(&array) };
        let (values, offset) = array.into_raw_vec_and_offset();
        let is_whole = layout.is_dense() && values.len() == layout.n_elements();
        let memory = Box::new(VecMemory::new(values));
        if is_whole { Self::foreign_whole(memory, layout) } else { Self::foreign(memory, layout, offset.unwrap_or(0) * size_of::<T>()) }
    }
}

impl<T: Element, D: Dimension> TryFrom<Array<T, D>> for Tensor {
    type Error = Error;

    /// Same as [`Tensor::from_owned`].
    fn try_from(array: Array<T, D>) -> Result<Self> {
        Self::from_owned(array)
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, Array3, ArrayD, Axis, IxDyn, s};

    use super::*;

    #[test]
    fn a_vec_becomes_a_tensor_at_the_same_address() {
        let values = vec![1_i32, 2, 3, 4, 5, 6];
        let address = values.as_ptr().cast::<u8>();
        let mut tensor = Tensor::from_vec([2, 3], values).unwrap();
        assert_eq!((tensor.address(), tensor.layout().is_dense()), (address, true));
        tensor.view_mut::<i32>().unwrap()[[1, 2]] = 7;
        assert_eq!(tensor.view::<i32>().unwrap().to_vec(), [1, 2, 3, 4, 5, 7]);
        tensor.set_shape([3]).unwrap();
        assert_eq!((tensor.address(), tensor.view::<i32>().unwrap().to_vec()), (address, vec![1, 2, 3]));
        tensor.set_shape([100]).unwrap();
        assert_eq!(tensor.view::<i32>().unwrap().len(), 100);
        assert_eq!(Tensor::from_vec([2, 2], vec![0_u8; 3]).unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(Tensor::from_vec([0, 4], Vec::<f32>::new()).unwrap().view::<f32>().unwrap().len(), 0);
        let flags = Tensor::from_vec([2], vec![true, false]).unwrap();
        flags.bytes_mut().unwrap().extent_mut()[0] = 9;
        assert_eq!(flags.view::<bool>().unwrap_err().kind(), ErrorKind::ElementType);
    }

    #[test]
    fn an_owned_array_becomes_a_tensor_at_the_same_address() {
        let numbers = || Array3::from_shape_fn((2, 3, 4), |(a, b, c)| (100 * a + 10 * b + c) as f32);
        let check = |array: ArrayD<f32>, is_moved: bool| {
            let (expected, address) = (array.clone(), array.as_ptr().cast::<u8>());
            let tensor = Tensor::from_owned(array).unwrap();
            assert_eq!(*tensor.view::<f32>().unwrap(), expected);
            assert_eq!(tensor.address() == address, is_moved);
        };
        check(numbers().into_dyn(), true);
        check(numbers().reversed_axes().into_dyn(), false);
        check(numbers().slice_move(s![1.., ..;2, 1..3]).into_dyn(), true);
        check(numbers().slice_move(s![1, .., ..]).into_dyn(), true);
        let mut reversed = numbers();
        reversed.invert_axis(Axis(1));
        check(reversed.into_dyn(), false);
        check(ArrayD::from_elem(IxDyn(&[]), 5.0), true);
        assert_eq!(Tensor::try_from(Array2::<u8>::zeros((0, 3))).unwrap().shape()[..], [0, 3]);
        let too_many = ArrayD::<u8>::zeros(IxDyn(&[1; MAX_RANK + 1]));
        assert_eq!(Tensor::from_owned(too_many).unwrap_err().kind(), ErrorKind::Shape);
    }
}
