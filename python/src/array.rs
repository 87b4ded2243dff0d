//! Shares memory between numpy arrays and tensors: arrays that are views of a tensor, and tensors over the memory of an array.
//!
//! This module needs `unsafe` code, because it creates and reads numpy arrays through the C interface of numpy.

use std::ptr::NonNull;

use numpy::npyffi::{self, NPY_ARRAY_WRITEABLE, NpyTypes, PY_ARRAY_API, npy_intp};
use numpy::{PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors::{OrRaise, TensorError};
use crate::tensor::{ElementType, ForeignMemory, Layout, MAX_RANK, Shape, Tensor};
use crate::types::{dtype_of, element_of_dtype};

/// The memory of an array, for a tensor. This value keeps the array alive.
struct NumpyMemory {
    /// A thread that does not hold the interpreter's lock may drop this reference. PyO3 then releases the array when a thread next enters
    /// this package.
    _array: Py<PyAny>,
    first: NonNull<u8>,
    n_bytes: usize,
    is_writable: bool,
}

// SAFETY: every thread may access the plain memory of the array, to which `first` points. On a thread without the interpreter's lock, the
// reference to the array is only dropped, and PyO3 allows this on any thread.
unsafe impl Send for NumpyMemory {}
// SAFETY: a shared reference gives access only to the address, the length and the flag, which do not change.
unsafe impl Sync for NumpyMemory {}

// SAFETY: the array keeps its initialized bytes at their address while it exists, because numpy does not resize an array that has other
// references. But a lease does not keep Python code from writing the bytes during a run, so `may_change` returns true. Memory that roiflow
// owns counts as written by others as soon as Python has a tensor or an array over it (`let_others_write`).
//
// Integers and booleans are copied at the start of each run, because engines check an index, or count the values that are true, and read
// the memory again later. Python code that writes before the start still reaches the run, as OpenVINO's interface promises. An engine reads
// floating-point numbers and small integers in place. It can then compute with a mix of old and new numbers, but it does not use them as
// positions or sizes, and each bit pattern is a valid number. An operator such as `NonZero` on a floating-point input is the exception:
// it counts values of its input. Do not write such an input during a run.
unsafe impl ForeignMemory for NumpyMemory {
    fn as_ptr(&self) -> NonNull<u8> {
        self.first
    }

    fn len(&self) -> usize {
        self.n_bytes
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn is_fixed(&self) -> bool {
        true
    }

    fn may_change(&self) -> bool {
        true
    }
}

/// The `base` object of an array that is a view of a tensor. This object keeps the memory of the tensor alive.
#[pyclass(frozen, name = "_Memory", module = "roiflow")]
struct Memory(#[allow(dead_code, reason = "held for its drop")] Tensor);

/// Returns an array over the memory of a tensor. The array keeps this memory alive, even if the tensor moves to other memory or is dropped.
pub fn view<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyUntypedArray>> {
    let tensor = tensor.snapshot();
    tensor.let_others_write();
    let (layout, first, is_writable) = (tensor.layout(), tensor.address(), tensor.is_writable());
    let keeper = Bound::new(py, Memory(tensor))?;
    let (mut dims, mut strides) = ([0; MAX_RANK], [0; MAX_RANK]);
    for (axis, (extent, stride)) in layout.shape().iter().zip(layout.stride_bytes()).enumerate() {
        (dims[axis], strides[axis]) = (*extent as npy_intp, *stride as npy_intp);
    }
    // SAFETY: the thread is attached to the interpreter. `dims` and `strides` have one entry per axis. The layout is inside memory that
    // `keeper` keeps alive at its address. `PyArray_NewFromDescr` takes ownership of the reference to the type, and `PyArray_SetBaseObject`
    // takes ownership of the reference to `keeper`.
    unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, NpyTypes::PyArray_Type),
            dtype_of(py, layout.element()).into_dtype_ptr(),
            layout.shape().len() as std::ffi::c_int,
            dims.as_mut_ptr(),
            strides.as_mut_ptr(),
            first.cast_mut().cast(),
            if is_writable { NPY_ARRAY_WRITEABLE } else { 0 },
            std::ptr::null_mut(),
        );
        let array = Bound::from_owned_ptr_or_err(py, array)?;
        if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), keeper.into_ptr()) != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(array.cast_into_unchecked())
    }
}

/// Creates an array that has its own, uninitialized memory.
fn empty<'py>(py: Python<'py>, element: ElementType, shape: &[usize]) -> PyResult<Bound<'py, PyUntypedArray>> {
    let mut dims = [0; MAX_RANK];
    for (dim, extent) in dims.iter_mut().zip(shape) {
        *dim = *extent as npy_intp;
    }
    // SAFETY: the thread is attached to the interpreter. `dims` has one entry per axis. The null pointers make numpy choose the strides and
    // allocate the memory. The function takes ownership of the reference to the type.
    unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, NpyTypes::PyArray_Type),
            dtype_of(py, element).into_dtype_ptr(),
            shape.len() as std::ffi::c_int,
            dims.as_mut_ptr(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
        );
        Ok(Bound::from_owned_ptr_or_err(py, array)?.cast_into_unchecked())
    }
}

/// Copies a tensor to a new array.
///
/// Raises Busy while the tensor is leased for writing.
pub fn copied<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyUntypedArray>> {
    let bytes = tensor.bytes().or_raise()?;
    let layout = *bytes.layout();
    if !layout.is_dense() {
        let copy = view(py, tensor)?.call_method0("copy")?;
        return Ok(copy.cast_into()?);
    }
    let array = empty(py, layout.element(), layout.shape())?;
    let n_bytes = layout.dense_bytes();
    // SAFETY: `empty` has created a dense array with this layout, so it has `n_bytes` bytes. No other code has a reference to this array.
    unsafe { std::ptr::copy_nonoverlapping(bytes.extent().as_ptr(), data(&array), n_bytes) };
    Ok(array)
}

/// Returns the address of the first byte of an array.
fn data(array: &Bound<'_, PyUntypedArray>) -> *mut u8 {
    // SAFETY: the object is an array. Its fields may be read while the thread is attached to the interpreter; the `Bound` shows that it is.
    unsafe { (*array.as_array_ptr()).fields.data.cast() }
}

fn flags(array: &Bound<'_, PyUntypedArray>) -> std::ffi::c_int {
    // SAFETY: the object is an array. Its fields may be read while the thread is attached to the interpreter; the `Bound` shows that it is.
    unsafe { (*array.as_array_ptr()).fields.flags }
}

/// Returns whether Python code may write the array.
pub fn is_writable(array: &Bound<'_, PyUntypedArray>) -> bool {
    flags(array) & NPY_ARRAY_WRITEABLE != 0
}

/// Returns whether the elements are contiguous in C order, aligned, and in the byte order of the processor.
pub fn is_plain(array: &Bound<'_, PyUntypedArray>) -> bool {
    array.is_c_contiguous() && flags(array) & npyffi::NPY_ARRAY_ALIGNED != 0 && array.dtype().is_native_byteorder() != Some(false)
}

/// Returns the element type of an array.
///
/// Raises TypeError if tensors do not support the type.
pub fn element_of(array: &Bound<'_, PyUntypedArray>) -> PyResult<ElementType> {
    let dtype = array.dtype();
    element_of_dtype(&dtype).ok_or_else(|| {
        pyo3::exceptions::PyTypeError::new_err(format!("an array of type {dtype} is no tensor: expected booleans, whole or real numbers"))
    })
}

/// Returns whether each byte of an array of booleans is 0 or 1. Engines require this.
fn has_valid_bools(array: &Bound<'_, PyUntypedArray>) -> bool {
    // SAFETY: the array is plain and has elements of one byte, so the slice covers exactly its memory. Other threads need the interpreter's
    // lock to write the array, and this thread holds the lock.
    let bytes = unsafe { std::slice::from_raw_parts(data(array), array.len()) };
    array.is_empty() || bytes.iter().all(|byte| *byte <= 1)
}

/// Returns the array itself if a tensor can use its memory. Otherwise returns a copy that is plain (see [`is_plain`]) and whose booleans
/// are 0 or 1.
pub fn plain<'py>(array: &Bound<'py, PyUntypedArray>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let element = element_of(array)?;
    let array = if is_plain(array) { array.clone() } else { cast(array, element)? };
    if element != ElementType::Bool || has_valid_bools(&array) {
        return Ok(array);
    }
    let numbers = array.call_method1("view", ("uint8",))?;
    Ok(numbers.call_method1("astype", ("bool",))?.cast_into()?)
}

/// Copies the array and casts its elements to this type, with the rules of numpy.
pub fn cast<'py>(array: &Bound<'py, PyUntypedArray>, element: ElementType) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = array.py();
    if element == ElementType::Bf16 {
        return as_bf16(array);
    }
    let kwargs = pyo3::types::PyDict::new(py);
    kwargs.set_item("order", "C")?;
    let copy = array.call_method("astype", (dtype_of(py, element),), Some(&kwargs))?;
    Ok(copy.cast_into()?)
}

/// Converts an array to bfloat16. The bits of float16, which NumPy has for bfloat16, and of types that NumPy does not know are taken as the
/// bits of bfloat16 values. Other elements are converted as numbers.
fn as_bf16<'py>(array: &Bound<'py, PyUntypedArray>) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = array.py();
    if array.dtype().itemsize() == 2 && matches!(array.dtype().kind(), b'f' | b'V') {
        let dense = numpy_function(py, "ascontiguousarray")?.call1((array,))?;
        return Ok(dense.call_method1("view", ("float16",))?.call_method0("copy")?.cast_into()?);
    }
    // The class of the array may return anything.
    let floats = cast(array, ElementType::F32)?.cast_into::<numpy::PyArrayDyn<f32>>()?;
    let values = numpy_function(py, "ravel")?.call1((&floats,))?.cast_into::<numpy::PyArray1<f32>>()?.to_vec()?;
    let bits = numpy::PyArray1::from_vec(py, crate::types::bf16_of(&values));
    let shape = pyo3::types::PyTuple::new(py, floats.shape())?;
    Ok(bits.call_method1("view", ("float16",))?.call_method1("reshape", (shape,))?.cast_into()?)
}

/// Creates a tensor over the memory of a plain array. The tensor keeps the array alive.
pub fn shared(array: &Bound<'_, PyUntypedArray>, element: ElementType, shape: &[usize]) -> PyResult<Tensor> {
    let layout = Layout::dense(element, checked_shape(shape)?).or_raise()?;
    let memory = NumpyMemory {
        _array: array.clone().into_any().unbind(),
        first: NonNull::new(data(array)).unwrap_or(NonNull::dangling()),
        n_bytes: array.len() * array.dtype().itemsize(),
        is_writable: is_writable(array),
    };
    Tensor::foreign_whole(Box::new(memory), layout).or_raise()
}

/// Creates a tensor of this layout over the memory of an array of bytes. The tensor keeps the array alive. The layout must have the strides
/// of the array, except for axes of length 1.
pub fn strided(array: &Bound<'_, PyUntypedArray>, layout: Layout) -> PyResult<Tensor> {
    let memory = NumpyMemory {
        _array: array.clone().into_any().unbind(),
        first: NonNull::new(data(array)).unwrap_or(NonNull::dangling()),
        n_bytes: layout.extent_bytes(),
        is_writable: is_writable(array),
    };
    Tensor::foreign(Box::new(memory), layout, 0).or_raise()
}

/// Calls `write` with the bytes of a new plain array. No other code may have a reference to this array. `write` runs without the
/// interpreter's lock.
pub fn with_bytes_mut(array: &Bound<'_, PyUntypedArray>, write: impl FnOnce(&mut [u8]) + Send) {
    let n_bytes = array.len() * array.dtype().itemsize();
    if n_bytes > 0 {
        // SAFETY: a plain array is contiguous, so it has this many bytes. The caller has the only reference to the array.
        let bytes = unsafe { std::slice::from_raw_parts_mut(data(array), n_bytes) };
        crate::interpreter::detached(array.py(), || write(bytes));
    }
}

/// Converts a shape. Raises an error if a tensor cannot have this number of axes.
pub fn checked_shape(shape: &[usize]) -> PyResult<Shape> {
    if shape.len() > MAX_RANK {
        let message = format!("shape {shape:?}: a tensor has at most {MAX_RANK} axes, got {}", shape.len());
        return Err(TensorError::new_err(message));
    }
    Ok(Shape::new(shape))
}

/// Returns a function of the module numpy.
pub fn numpy_function<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let numpy = NUMPY.get_or_try_init(py, || py.import("numpy").map(Bound::unbind))?;
    numpy.bind(py).getattr(name)
}

/// Returns the value as an array. Returns `None` if the value is not an array and cannot be converted to one.
pub fn as_array<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyUntypedArray>>> {
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return Ok(Some(array.clone()));
    }
    let becomes_array =
        !value.is_instance_of::<pyo3::types::PyType>() && (value.hasattr("__array__")? || value.hasattr("__array_interface__")?);
    if !becomes_array {
        return Ok(None);
    }
    let array = numpy_function(value.py(), "asarray")?.call1((value,))?;
    Ok(Some(array.cast_into()?))
}
