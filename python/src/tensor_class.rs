//! The class `Tensor`.

use std::sync::Mutex;

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple, PyType};

use crate::array;
use crate::errors::{Error, OrRaise, TensorError};
use crate::package;
use crate::port::port_from;
use crate::tensor;
use crate::types::{Type, element_from, is_dtype, name_of};

/// Values of one element type in memory, with a shape.
///
/// | form | memory |
/// |---|---|
/// | `Tensor(array, shared_memory=False)` | a copy of the array; with `shared_memory=True`, the memory of the array |
/// | `Tensor(array, shape[, type])` | the memory of the array, with another shape and type |
/// | `Tensor(list)` | new memory with the values of the list |
/// | `Tensor(type, shape)` | new memory with zeros |
/// | `Tensor(port[, array])` | new memory with zeros, or the memory of the array |
/// | `Tensor(other, begin, end)` | a region of the memory of the other tensor |
///
/// Shared memory stays alive while a tensor, a request or a view uses it.
///
/// Raises RuntimeError if shapes, types or memory do not fit, TypeError for other arguments.
#[pyclass(frozen, module = "roiflow", subclass, weakref)]
pub struct Tensor {
    inner: Mutex<tensor::Tensor>,
}

/// A tensor in the memory of a device. The host copies it with `copy_to` and `copy_from`.
#[pyclass(frozen, module = "roiflow", extends = Tensor)]
pub struct RemoteTensor;

impl Tensor {
    /// Returns a handle of the tensor, which shares the memory.
    pub fn inner(&self) -> tensor::Tensor {
        self.inner.lock().unwrap().clone()
    }

    fn of(inner: tensor::Tensor) -> Self {
        // Python code can write the values at any time: `data` returns an array over the memory.
        inner.let_others_write();
        Self { inner: Mutex::new(inner) }
    }

    fn layout(&self) -> tensor::Layout {
        self.inner.lock().unwrap().layout()
    }
}

/// Returns the Python object of a tensor.
pub fn wrap(py: Python<'_>, inner: tensor::Tensor) -> PyResult<Py<PyAny>> {
    if inner.is_remote() {
        let remote = PyClassInitializer::from(Tensor::of(inner)).add_subclass(RemoteTensor);
        return Ok(Bound::new(py, remote)?.into_any().unbind());
    }
    Ok(Bound::new(py, Tensor::of(inner))?.into_any().unbind())
}

/// Returns the Python objects of tensors, as a list.
pub fn wrap_all(py: Python<'_>, tensors: Vec<tensor::Tensor>) -> PyResult<Vec<Py<PyAny>>> {
    tensors.into_iter().map(|tensor| wrap(py, tensor)).collect()
}

/// Returns the tensor of an argument.
///
/// Raises TypeError if the argument is not a Tensor.
pub fn tensor_from(value: &Bound<'_, PyAny>) -> PyResult<tensor::Tensor> {
    match value.cast::<Tensor>() {
        Ok(tensor) => Ok(tensor.get().inner()),
        Err(_) => Err(PyTypeError::new_err(format!("expected a Tensor, got {}", value.get_type().name()?))),
    }
}

/// Converts a list of Tensor objects to their tensors.
pub fn tensors_from(value: &Bound<'_, PyAny>) -> PyResult<Vec<tensor::Tensor>> {
    if !value.is_instance_of::<PyList>() && !value.is_instance_of::<PyTuple>() {
        return Err(PyTypeError::new_err(format!("expected a list of tensors, got {}", value.get_type().name()?)));
    }
    value.try_iter()?.map(|tensor| tensor_from(&tensor?)).collect()
}

/// Converts a sequence of non-negative integers to a shape.
pub fn shape_from(value: &Bound<'_, PyAny>) -> PyResult<tensor::Shape> {
    let extents: Vec<usize> = value.extract()?;
    array::checked_shape(&extents)
}

/// Creates a tensor with a copy of an array.
fn copy_of(array: &Bound<'_, PyUntypedArray>) -> PyResult<tensor::Tensor> {
    let plain = array::plain(array)?;
    let source = array::shared(&plain, array::element_of(&plain)?, plain.shape())?;
    let copy = tensor::Tensor::new(source.element(), source.shape()).or_raise()?;
    source.copy_to(&copy).or_raise()?;
    Ok(copy)
}

/// Creates a tensor that shares the memory of an array.
fn share(array: &Bound<'_, PyUntypedArray>) -> PyResult<tensor::Tensor> {
    check_plain(array)?;
    if !array::plain(array)?.is(array) {
        return Err(TensorError::new_err("the array holds bytes that are no booleans: expected 0 and 1; copy it with shared_memory=False"));
    }
    array::shared(array, array::element_of(array)?, array.shape())
}

fn check_plain(array: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
    array::element_of(array)?;
    if array::is_plain(array) {
        return Ok(());
    }
    let why = if array.is_c_contiguous() { "aligned and in the byte order of the processor" } else { "C contiguous" };
    Err(TensorError::new_err(format!("memory of an array is shared only if it is {why}: copy it with numpy.ascontiguousarray")))
}

/// Creates a tensor that shares the memory of an array, with a different shape and element type.
fn share_as(array: &Bound<'_, PyUntypedArray>, shape: &tensor::Shape, element: tensor::ElementType) -> PyResult<tensor::Tensor> {
    check_plain(array)?;
    let needed = tensor::Layout::dense(element, *shape).or_raise()?.dense_bytes();
    let n_bytes: usize = array.getattr("nbytes")?.extract()?;
    if needed > n_bytes {
        return Err(TensorError::new_err(format!("shape {shape} {element} needs {needed} bytes, the array has {n_bytes}")));
    }
    if element == tensor::ElementType::Bool && array::element_of(array)? != element {
        let bytes = array::shared(array, tensor::ElementType::U8, &[needed])?;
        if bytes.bytes().or_raise()?.extent().iter().any(|byte| *byte > 1) {
            return Err(TensorError::new_err("the array holds bytes that are no booleans: expected 0 and 1"));
        }
    }
    array::shared(array, element, shape)
}

/// Converts an argument to an array.
fn array_from<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    array::as_array(value)?
        .ok_or_else(|| PyTypeError::new_err(format!("Tensor: expected an array, a type, a port, a list or a Tensor, got {value}")))
}

#[pymethods]
impl Tensor {
    #[new]
    #[classmethod]
    #[pyo3(signature = (*args, **kwargs), text_signature = "(*args, **kwargs)")]
    fn py_new(cls: &Bound<'_, PyType>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        if cls.is(cls.py().get_type::<Self>()) {
            return Self::made(args, kwargs);
        }
        // A subclass may have other arguments in its constructor. Such a subclass passes the values to `__init__`.
        Ok(Self::of(tensor::Tensor::new(tensor::ElementType::U8, [0]).or_raise()?))
    }

    #[pyo3(signature = (*args, **kwargs))]
    fn __init__(slf: &Bound<'_, Self>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        if !slf.get_type().is(slf.py().get_type::<Self>()) {
            let made = Self::made(args, kwargs)?.inner();
            let before = std::mem::replace(&mut *slf.get().inner.lock().unwrap(), made);
            drop(before);
        }
        Ok(())
    }

    /// The values as an array that shares the memory. The array keeps the memory alive, even if the tensor is dropped or gets another
    /// shape.
    ///
    /// `bf16` values appear as `float16` values with the same bits. Raises RuntimeError if the tensor is in device memory.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyUntypedArray>> {
        let inner = self.inner();
        check_host(&inner)?;
        array::view(py, &inner)
    }

    /// For tensors of strings, which roiflow does not have: raises RuntimeError.
    #[getter]
    fn bytes_data(&self) -> PyResult<Py<PyAny>> {
        Err(self.no_strings())
    }

    /// For tensors of strings, which roiflow does not have: raises RuntimeError.
    #[getter]
    fn str_data(&self) -> PyResult<Py<PyAny>> {
        Err(self.no_strings())
    }

    /// The extent of each axis. Setting it keeps the memory if it is large enough; otherwise the tensor gets new memory.
    ///
    /// Setting it raises RuntimeError while a run uses the tensor, or if the new shape does not fit into shared memory or into a region.
    #[getter(shape)]
    fn shape_property<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        package::shape(py, self.layout().shape())
    }

    #[setter(shape)]
    fn assign_shape(&self, shape: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set_shape(shape)
    }

    /// The type of the elements.
    #[getter(element_type)]
    fn element_type_property(&self) -> Type {
        Type(self.inner.lock().unwrap().element())
    }

    /// The number of elements.
    #[getter(size)]
    fn size_property(&self) -> usize {
        self.layout().n_elements()
    }

    /// Size of all elements in bytes, without gaps between them.
    #[getter(byte_size)]
    fn byte_size_property(&self) -> usize {
        self.layout().dense_bytes()
    }

    /// Bytes from one element to the next, for each axis.
    #[getter(strides)]
    fn strides_property<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        package::strides(py, self.layout().stride_bytes())
    }

    fn get_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shape_property(py)
    }

    /// Sets the shape, like setting the property `shape`.
    fn set_shape(&self, shape: &Bound<'_, PyAny>) -> PyResult<()> {
        let shape = shape_from(shape)?;
        let mut inner = self.inner.lock().unwrap();
        inner.set_shape(shape).or_raise()
    }

    fn get_element_type(&self) -> Type {
        self.element_type_property()
    }

    fn get_size(&self) -> usize {
        self.size_property()
    }

    fn get_byte_size(&self) -> usize {
        self.byte_size_property()
    }

    fn get_strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.strides_property(py)
    }

    /// Returns whether the elements are contiguous in C order.
    fn is_continuous(&self) -> bool {
        self.layout().is_dense()
    }

    /// Copies the values to another tensor of the same element type. The other tensor gets the shape of this tensor.
    ///
    /// Raises RuntimeError if the element types differ, if the other tensor cannot have this shape, or if a run uses one of the tensors.
    fn copy_to(&self, target_tensor: &Bound<'_, Tensor>) -> PyResult<()> {
        let source = self.inner();
        let mut target = target_tensor.get().inner.lock().unwrap().clone();
        copy(&source, &mut target)?;
        *target_tensor.get().inner.lock().unwrap() = target;
        Ok(())
    }

    /// Copies the values of a tensor, an array or a list with the same element type. This tensor gets their shape.
    ///
    /// Raises RuntimeError in the cases of `copy_to`, and TypeError for other sources.
    fn copy_from(&self, source: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut target = self.inner();
        let from = if let Ok(other) = source.cast::<Tensor>() {
            other.get().inner()
        } else if source.is_instance_of::<PyList>() || source.is_instance_of::<PyTuple>() {
            let values = array::numpy_function(source.py(), "array")?.call1((source,))?.cast_into()?;
            copy_of(&array::cast(&values, target.element())?)?
        } else {
            copy_of(&array_from(source)?)?
        };
        copy(&from, &mut target)?;
        *self.inner.lock().unwrap() = target;
        Ok(())
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(&self, py: Python<'py>, dtype: Option<&Bound<'py, PyAny>>, copy: Option<bool>) -> PyResult<Bound<'py, PyAny>> {
        let view = self.data(py)?.into_any();
        if let (Some(false), Some(dtype)) = (copy, dtype)
            && !numpy::PyArrayDescr::new(py, dtype)?.is_equiv_to(&self.data(py)?.dtype())
        {
            let message = format!("the values cannot have the type {dtype} without a copy: they are {}", name_of(self.inner().element()));
            return Err(PyValueError::new_err(message));
        }
        let kwargs = PyDict::new(py);
        kwargs.set_item("copy", copy.unwrap_or(false))?;
        let dtype = match dtype {
            Some(dtype) => dtype.clone(),
            None => view.getattr("dtype")?,
        };
        view.call_method("astype", (dtype,), Some(&kwargs))
    }

    fn __copy__(&self) -> Self {
        Self::of(self.inner())
    }

    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        let source = self.inner();
        let copy = tensor::Tensor::new(source.element(), source.shape()).or_raise()?;
        source.copy_to(&copy).or_raise()?;
        Ok(Self::of(copy))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("cannot pickle 'Tensor' object: pickle its data"))
    }

    fn __repr__(&self) -> String {
        let layout = self.layout();
        format!("<Tensor: shape{} type: {}>", layout.shape().to_string().replace(", ", ","), name_of(layout.element()))
    }
}

impl Tensor {
    /// Creates a tensor from the arguments of the constructor.
    fn made(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        const FORMS: [&[&str]; 12] = [
            &["array"],
            &["array", "shared_memory"],
            &["array", "shape"],
            &["array", "shape", "type"],
            &["type", "shape"],
            &["port"],
            &["port", "array"],
            &["other"],
            &["other", "begin", "end"],
            &["image"],
            &["image", "shared_memory"],
            &["array", "type"],
        ];
        let (form_idx, values) = crate::arguments::bind("Tensor", &FORMS, args, kwargs)?;
        let names = FORMS[form_idx];
        let first = &values[0];
        if let Ok(other) = first.cast::<Tensor>() {
            let other = other.get().inner();
            return match &values[1..] {
                [] => Ok(Self::of(other)),
                [begin, end] => {
                    let (begin, end): (Vec<usize>, Vec<usize>) = (begin.extract()?, end.extract()?);
                    Ok(Self::of(other.roi(&begin, &end).or_raise()?))
                }
                _ => Err(PyTypeError::new_err("Tensor(other, begin, end): expected both or none of begin and end")),
            };
        }
        if let Some(port) = port_from(first) {
            return match &values[1..] {
                [] => {
                    let shape = port.port.shape.with_dynamic(|_| Some(0)).unwrap_or(tensor::Shape::new(&[]));
                    Ok(Self::of(tensor::Tensor::new(port.port.element, shape).or_raise()?))
                }
                [array] => {
                    let array = array_from(array)?;
                    match port.port.shape.to_static() {
                        Some(shape) => share_as(&array, &shape, port.port.element).map(Self::of),
                        None => share_as(&array, &array::checked_shape(array.shape())?, port.port.element).map(Self::of),
                    }
                }
                _ => Err(PyTypeError::new_err("Tensor(port, array): expected at most an array")),
            };
        }
        if first.is_instance_of::<Type>() || is_dtype(first) {
            return match &values[1..] {
                [shape] => {
                    let element = element_from(first)?;
                    Ok(Self::of(tensor::Tensor::new(element, shape_from(shape)?).or_raise()?))
                }
                _ => Err(PyTypeError::new_err("Tensor(type, shape): expected a shape")),
            };
        }
        let array = if first.is_instance_of::<PyList>() {
            array::numpy_function(first.py(), "array")?.call1((first,))?.cast_into()?
        } else {
            array_from(first)?
        };
        match &values[1..] {
            [] => copy_of(&array).map(Self::of),
            [type_] if names[1] == "type" => copy_of(&array::cast(&array, element_from(type_)?)?).map(Self::of),
            [shared] if shared.is_instance_of::<PyBool>() => {
                let is_shared = shared.extract::<bool>()?;
                if is_shared { share(&array).map(Self::of) } else { copy_of(&array).map(Self::of) }
            }
            [shape] => share_as(&array, &shape_from(shape)?, array::element_of(&array)?).map(Self::of),
            [shape, element] => share_as(&array, &shape_from(shape)?, element_from(element)?).map(Self::of),
            _ => Err(PyTypeError::new_err("Tensor: too many arguments")),
        }
    }

    fn no_strings(&self) -> PyErr {
        Error::new_err(format!("expected a tensor of strings, got {}; read `data`", name_of(self.inner().element())))
    }
}

fn check_host(tensor: &tensor::Tensor) -> PyResult<()> {
    match tensor.remote_place() {
        None => Ok(()),
        Some(place) => Err(TensorError::new_err(format!(
            "the tensor is in {place}, which the host cannot access; copy it to a host tensor with copy_to"
        ))),
    }
}

fn copy(source: &tensor::Tensor, target: &mut tensor::Tensor) -> PyResult<()> {
    if source.element() != target.element() {
        let message = format!("copy: expected {}, as in the target, got {}", name_of(target.element()), name_of(source.element()));
        return Err(TensorError::new_err(message));
    }
    if source.shape() != target.shape() {
        target.set_shape(source.shape()).or_raise()?;
    }
    source.copy_to(target).or_raise()
}
