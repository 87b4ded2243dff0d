//! Tests of tensors and their regions through the public API. Doc comments name the equivalent OpenVINO test. Tests of internals are next
//! to the code.

use std::sync::Arc;

use roiflow::tensor::{Element, ElementType, ErrorKind, Layout, Memory, Shape, Tensor, bf16, f16};

/// Returns a tensor over memory of the caller.
fn over(memory: &Arc<Memory>, shape: &[usize], stride_bytes: &[usize]) -> Tensor {
    Tensor::part_of(memory.clone(), Layout::strided(ElementType::F32, shape, stride_bytes).unwrap(), 0).unwrap()
}

/// Returns a tensor with consecutive numbers from 0.
fn counted(shape: &[usize]) -> Tensor {
    let n_elements: usize = shape.iter().product();
    Tensor::from_slice(shape, &(0..n_elements as i32).collect::<Vec<_>>()).unwrap()
}

fn kind<T>(result: roiflow::tensor::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

/// Equivalent OpenVINO test: canCreateTensor.
#[test]
fn a_tensor_has_the_type_shape_and_strides_that_were_asked_for() {
    let tensor = Tensor::new(ElementType::F32, [4, 3, 2]).unwrap();
    let layout = tensor.layout();
    assert_eq!((layout.n_elements(), layout.dense_bytes(), layout.stride_bytes()), (24, 96, &[24, 8, 4][..]));
    assert_eq!((tensor.element(), tensor.shape()), (ElementType::F32, Shape::from([4, 3, 2])));
    assert_eq!(kind(tensor.view::<i64>()), Some(ErrorKind::ElementType));
    assert_eq!(kind(tensor.view_mut::<i32>()), Some(ErrorKind::ElementType), "another type of the same size is not accepted");
    assert_eq!(tensor.view::<f32>().unwrap().to_vec(), [0.0; 24]);
}

/// Equivalent OpenVINO test: emptySize.
#[test]
fn an_empty_tensor_has_an_address_and_views_without_elements() {
    for shape in [&[0][..], &[0, 4], &[3, 0, 2], &[0, 0, 0, 0]] {
        let tensor = Tensor::new(ElementType::F64, shape).unwrap();
        assert!(!tensor.address().is_null());
        assert!(tensor.layout().is_dense());
        assert_eq!(tensor.view::<f64>().unwrap().len(), 0);
        assert_eq!(tensor.view_mut::<f64>().unwrap().len(), 0);
    }
}

/// Equivalent OpenVINO test: createAllocationOverflow.
#[test]
fn a_shape_that_overflows_is_refused() {
    for shape in [&[usize::MAX][..], &[usize::MAX, 2], &[3, usize::MAX / 8], &[1 << 32, 1 << 32]] {
        assert_eq!(kind(Tensor::new(ElementType::I32, shape)), Some(ErrorKind::Shape), "{shape:?}");
    }
}

/// Equivalent OpenVINO tests: canAccessExternalData, canAccessExternalDataWithStrides.
#[test]
fn memory_of_somebody_else_is_read_and_written_in_place() {
    let memory = Memory::zeroed(32);
    let dense = over(&memory, &[1, 1, 3], &[12, 12, 4]);
    assert_eq!(dense.address(), memory.address());
    dense.view_mut::<f32>().unwrap().iter_mut().zip([5.0, 6.0, 7.0]).for_each(|(to, from)| *to = from);
    let padded = over(&memory, &[2, 3], &[16, 4]);
    assert_eq!(padded.view::<f32>().unwrap().to_vec(), [5.0, 6.0, 7.0, 0.0, 0.0, 0.0]);
    padded.view_mut::<f32>().unwrap()[[1, 2]] = 42.0;
    let all = over(&memory, &[8], &[4]);
    assert_eq!(all.view::<f32>().unwrap().to_vec(), [5.0, 6.0, 7.0, 0.0, 0.0, 0.0, 42.0, 0.0]);
    assert_eq!(kind(padded.view::<i16>()), Some(ErrorKind::ElementType));
    let layout = Layout::strided(ElementType::F32, [2, 3], &[24, 4]).unwrap();
    assert_eq!(kind(Tensor::part_of(memory.clone(), layout, 0)), Some(ErrorKind::Shape), "the layout ends after the memory");
    assert_eq!(kind(Tensor::part_of(memory, Layout::dense(ElementType::F32, [1]).unwrap(), 2)), Some(ErrorKind::Shape), "not aligned");
}

/// Equivalent OpenVINO test: cannotCreateTensorWithWrongStrides. Covers a wrong number of strides, strides that are too small, and strides
/// that are not a multiple of the element size.
#[test]
fn strides_that_make_no_tensor_are_refused() {
    for bad in [&[24, 12, 4][..], &[8, 4], &[12, 0], &[12, 8], &[7, 4], &[3, 0], &[4, 3]] {
        assert_eq!(kind(Layout::strided(ElementType::F32, [2, 3], bad)), Some(ErrorKind::Shape), "{bad:?}");
    }
    Layout::strided(ElementType::F32, [2, 3], &[24, 8]).unwrap();
}

/// Equivalent OpenVINO tests: canSetShape, canSetShapeOfOriginalSizeAfterDecreasing.
#[test]
fn a_tensor_grows_into_new_memory_and_shrinks_in_place() {
    let mut tensor = Tensor::new(ElementType::F32, [1, 2, 3]).unwrap();
    let mut copy = tensor.clone();
    tensor.set_shape([4, 5, 6]).unwrap();
    assert_eq!((copy.shape(), copy.layout().stride_bytes()), (Shape::from([4, 5, 6]), &[120, 24, 4][..]));
    copy.set_shape([4, 5, 6, 7]).unwrap();
    assert!(tensor.is_same(&copy) && tensor.shape() == Shape::from([4, 5, 6, 7]));
    let before = tensor.address();
    for smaller in [&[1, 2, 3][..], &[], &[0], &[840], &[4, 5, 6, 7]] {
        tensor.set_shape(smaller).unwrap();
        assert_eq!((tensor.address(), &copy.shape()[..]), (before, smaller));
    }
    for overflow in [[usize::MAX, 2], [3, usize::MAX / 8]] {
        assert_eq!(kind(tensor.set_shape(overflow)), Some(ErrorKind::Shape));
    }
    assert_eq!(tensor.shape(), Shape::from([4, 5, 6, 7]), "a failed reshape changed the shape");
}

/// Equivalent OpenVINO tests: cannotSetShapeOfBiggerSizeOnPreallocatedMemory, canSetShapeOfSmallerSizeOnPreallocatedMemory,
/// canSetShapeOfSameSizeOnPreallocatedMemory, canSetShapeOfOriginalSizeAfterDecreasingOnPreallocatedMemory, canChangeShapeOnStridedTensor.
#[test]
fn memory_of_somebody_else_is_never_outgrown() {
    let memory = Memory::zeroed(4 * 5 * 6 * 4 * 2);
    let mut tensor = over(&memory, &[4, 5, 6], &[120, 24, 4]);
    for shape in [[1, 2, 3], [4, 5, 6], [4, 5, 6], [0, 0, 0], [4, 5, 6]] {
        tensor.set_shape(shape).unwrap();
        assert_eq!((&tensor.shape()[..], tensor.address()), (&shape[..], memory.address()));
    }
    assert_eq!(kind(tensor.set_shape([4, 5, 7])), Some(ErrorKind::Shape), "the tensor must not grow beyond its own layout");
    let mut strided = over(&memory, &[4, 2, 2], &[64, 16, 4]);
    assert_eq!(kind(strided.set_shape([2, 4, 2])), Some(ErrorKind::Shape));
    strided.set_shape([1, 1, 2]).unwrap();
    assert_eq!(strided.layout().stride_bytes(), [64, 16, 4]);
}

/// Equivalent OpenVINO tests: makeRangeRoiTensor, readRangeRoiBlob. Checks the offset, strides, shape and every address.
#[test]
fn a_region_is_a_window_at_exactly_its_place() {
    let tensor = counted(&[1, 3, 6, 5]);
    let region = tensor.roi(&[0, 0, 1, 2], &[1, 3, 5, 4]).unwrap();
    assert_eq!((region.shape(), region.element()), (Shape::from([1, 3, 4, 2]), ElementType::I32));
    assert_eq!(region.address() as usize - tensor.address() as usize, 7 * 4);
    assert_eq!(region.layout().stride_bytes(), [360, 120, 20, 4]);
    let view = region.view::<i32>().unwrap();
    for (index, value) in view.indexed_iter() {
        assert_eq!(*value as usize, 30 * index[1] + 5 * (index[2] + 1) + index[3] + 2);
    }
}

/// Equivalent OpenVINO test: makeRangeRoiBlobWrongSize.
#[test]
fn a_region_out_of_range_or_of_another_rank_is_refused() {
    let tensor = Tensor::new(ElementType::F32, [1, 3, 4, 4]).unwrap();
    for (begin, end) in [(&[0, 0, 1, 1][..], &[1, 3, 5, 5][..]), (&[0, 0, 1, 1, 3], &[1, 3, 4, 4]), (&[0, 0, 3, 0], &[1, 3, 2, 4])] {
        assert_eq!(kind(tensor.roi(begin, end)), Some(ErrorKind::Shape), "{begin:?}..{end:?}");
    }
}

/// Equivalent OpenVINO tests: setSmallerShapeOnRoiTensor, setMaxSizeShapeOnRoiTensor, setShapeGtMaxOnRoiTensor, setMinShapeOnRoiTensor,
/// cannotSetShapeOnRoiTensor, setShapeInvalidExpandRoiRank.
#[test]
fn a_region_takes_any_shape_within_the_one_it_was_made_with() {
    let tensor = counted(&[1, 3, 6, 5]);
    let mut region = tensor.roi(&[0, 0, 1, 2], &[1, 2, 5, 5]).unwrap();
    for shape in [[1, 1, 3, 2], [1, 2, 1, 1], [0, 0, 0, 0], [1, 2, 4, 3]] {
        region.set_shape(shape).unwrap();
        assert_eq!(region.shape()[..], shape);
        let view = region.view::<i32>().unwrap();
        assert!(view.indexed_iter().all(|(at, value)| *value as usize == 30 * at[1] + 5 * (at[2] + 1) + at[3] + 2));
    }
    for shape in [&[1, 3, 6, 3][..], &[1, 2, 4, 4], &[4, 5, 6], &[24], &[1, 1, 2, 4, 3], &[2, 1, 1, 1]] {
        assert_eq!(kind(region.set_shape(shape)), Some(ErrorKind::Shape), "{shape:?}");
        assert_eq!(region.shape()[..], [1, 2, 4, 3]);
    }
}

/// Equivalent OpenVINO test: copy_to. Copies between dense and strided memory in every combination, for all element types.
#[test]
fn copies_are_exact_for_every_type_and_stride() {
    fn check<T: Element + PartialEq + std::fmt::Debug>(from: impl Fn(u8) -> T) {
        let values: Vec<T> = (0..12).map(|n| from(n % 2)).collect();
        let dense = || Tensor::new(T::TYPE, [3, 2, 2]).unwrap();
        let strided = || Tensor::new(T::TYPE, [4, 5, 3]).unwrap().roi(&[1, 2, 1], &[4, 4, 3]).unwrap();
        for (source, target) in [(dense(), dense()), (dense(), strided()), (strided(), dense()), (strided(), strided())] {
            source.view_mut::<T>().unwrap().iter_mut().zip(&values).for_each(|(to, from)| *to = *from);
            source.copy_to(&target).unwrap();
            assert_eq!(target.view::<T>().unwrap().to_vec(), values, "{}", T::TYPE);
        }
        let scalar = Tensor::from_slice([], &values[1..2]).unwrap();
        let other = Tensor::new(T::TYPE, []).unwrap();
        scalar.copy_to(&other).unwrap();
        assert_eq!(other.view::<T>().unwrap().to_vec(), values[1..2]);
        assert_eq!(kind(scalar.copy_to(&Tensor::new(T::TYPE, [1]).unwrap())), Some(ErrorKind::Shape));
    }
    check(|n| n);
    check(|n| n as i8);
    check(u16::from);
    check(i16::from);
    check(u32::from);
    check(i32::from);
    check(u64::from);
    check(i64::from);
    check(f32::from);
    check(f64::from);
    check(|n| f16::from_f32(f32::from(n)));
    check(|n| bf16::from_f32(f32::from(n)));
    check(|n| n == 1);
}

/// A size that exceeds the available memory is an error with the number of bytes. The tensor stays unchanged for all its handles.
#[test]
fn a_tensor_for_which_there_is_no_memory_is_an_error() {
    let n_bytes = isize::MAX as usize;
    let error = Tensor::new(ElementType::U8, [n_bytes]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains(&n_bytes.to_string()), "{error}");
    let mut tensor = counted(&[2, 3]);
    let handle = tensor.clone();
    for shape in [&[isize::MAX as usize / 4][..], &[1 << 44, 4]] {
        assert_eq!(kind(tensor.set_shape(shape)), Some(ErrorKind::OutOfMemory));
        assert_eq!((&handle.shape()[..], handle.view::<i32>().unwrap().to_vec()), (&[2, 3][..], vec![0, 1, 2, 3, 4, 5]));
    }
    assert_eq!(kind(Memory::try_zeroed(n_bytes)), Some(ErrorKind::OutOfMemory));
    let pool = roiflow::tensor::TensorPool::new(ElementType::U8, [n_bytes], 1).unwrap();
    assert_eq!(kind(pool.try_take()), Some(ErrorKind::OutOfMemory));
}
