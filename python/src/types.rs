//! The class `Type`, and the mapping between element types and numpy types.

use half::{bf16, f16};
use numpy::npyffi::{NPY_TYPES, PY_ARRAY_API};
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::tensor::ElementType;

/// An element type of tensors and ports.
///
/// `Type(numpy type)`, `Type("float32")` and `Type.f32` are the same. numpy has no type for `bf16`: its values appear as `float16` values
/// with the same bits.
///
/// Raises TypeError if the argument is not an element type.
#[pyclass(frozen, eq, hash, module = "roiflow")]
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
pub struct Type(pub ElementType);

/// Returns OpenVINO's name of the type.
pub fn name_of(element: ElementType) -> &'static str {
    if element == ElementType::Bool { "boolean" } else { element.name() }
}

/// OpenVINO's names of types with less than 8 bits. For numpy, some of these names mean types with that many bytes.
const SUB_BYTE: [&str; 6] = ["u1", "u2", "u3", "u4", "u6", "i4"];

/// Finds an element type by its name in roiflow or in OpenVINO.
fn element_of_name(name: &str) -> Option<ElementType> {
    ElementType::ALL.into_iter().find(|element| element.name() == name || name_of(*element) == name)
}

/// Converts a numpy type to an element type, without regard to byte order. Returns `None` if tensors do not support the type.
pub fn element_of_dtype(dtype: &Bound<'_, PyArrayDescr>) -> Option<ElementType> {
    Some(match (dtype.kind(), dtype.itemsize()) {
        (b'b', 1) => ElementType::Bool,
        (b'u', 1) => ElementType::U8,
        (b'u', 2) => ElementType::U16,
        (b'u', 4) => ElementType::U32,
        (b'u', 8) => ElementType::U64,
        (b'i', 1) => ElementType::I8,
        (b'i', 2) => ElementType::I16,
        (b'i', 4) => ElementType::I32,
        (b'i', 8) => ElementType::I64,
        (b'f', 2) => ElementType::F16,
        (b'f', 4) => ElementType::F32,
        (b'f', 8) => ElementType::F64,
        // The package ml_dtypes defines this type.
        (b'V', 2) if dtype.getattr("name").is_ok_and(|name| name.eq("bfloat16").unwrap_or(false)) => ElementType::Bf16,
        _ => return None,
    })
}

/// Converts an element type to a numpy type.
pub fn dtype_of(py: Python<'_>, element: ElementType) -> Bound<'_, PyArrayDescr> {
    let number = match element {
        ElementType::Bool => NPY_TYPES::NPY_BOOL,
        ElementType::U8 => NPY_TYPES::NPY_UBYTE,
        ElementType::I8 => NPY_TYPES::NPY_BYTE,
        ElementType::U16 => NPY_TYPES::NPY_USHORT,
        ElementType::I16 => NPY_TYPES::NPY_SHORT,
        ElementType::U32 => NPY_TYPES::NPY_UINT,
        ElementType::I32 => NPY_TYPES::NPY_INT,
        ElementType::F32 => NPY_TYPES::NPY_FLOAT,
        ElementType::F64 => NPY_TYPES::NPY_DOUBLE,
        // On systems where the C type `long` has 64 bits, numpy uses `long` for these types. `numpy::dtype` chooses the C type as numpy
        // does.
        ElementType::U64 => return numpy::dtype::<u64>(py),
        ElementType::I64 => return numpy::dtype::<i64>(py),
        _ => NPY_TYPES::NPY_HALF,
    };
    // SAFETY: the thread is attached to the interpreter, and `number` is the number of a numpy type. For such a number,
    // `PyArray_DescrFromType` returns a new reference to a type. `from_owned_ptr` takes ownership of this reference.
    unsafe {
        let descr = PY_ARRAY_API.PyArray_DescrFromType(py, number as std::ffi::c_int);
        Bound::from_owned_ptr(py, descr.cast()).cast_into_unchecked()
    }
}

/// Converts a `Type`, a numpy type or a name to an element type.
pub fn element_from(value: &Bound<'_, PyAny>) -> PyResult<ElementType> {
    if let Ok(own) = value.cast::<Type>() {
        return Ok(own.get().0);
    }
    let by_name = || value.cast::<PyString>().ok().and_then(|name| element_of_name(name.to_str().ok()?));
    if let Some(element) = by_name() {
        return Ok(element);
    }
    if let Some(name) = value.cast::<PyString>().ok().and_then(|name| name.to_str().ok()).filter(|name| SUB_BYTE.contains(name)) {
        let message =
            format!("no element type {name}: expected elements of whole bytes; numpy's type of this name is numpy.dtype(\"{name}\")");
        return Err(PyTypeError::new_err(message));
    }
    let none = || PyTypeError::new_err(format!("no element type {value}: expected a roiflow.Type, a numpy type or the name of one"));
    if value.is_none() {
        return Err(none()); // numpy would convert `None` to float64.
    }
    let dtype = PyArrayDescr::new(value.py(), value).map_err(|_| none())?;
    element_of_dtype(&dtype).ok_or_else(none)
}

/// Returns whether the value is a numpy type or its class.
pub fn is_dtype(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyArrayDescr>() || value.is_instance_of::<pyo3::types::PyType>()
}

/// Converts numbers to the bits of bfloat16 values, rounded to nearest.
pub fn bf16_of(values: &[f32]) -> Vec<u16> {
    values.iter().map(|value| bf16::from_f32(*value).to_bits()).collect()
}

const _: () = assert!(size_of::<f16>() == 2);

#[pymethods]
#[allow(non_snake_case, reason = "the names are Python's")]
#[allow(clippy::wrong_self_convention, reason = "PyO3 passes a class by reference")]
impl Type {
    #[new]
    fn new(dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        element_from(dtype).map(Self)
    }

    #[classattr]
    fn boolean() -> Self {
        Self(ElementType::Bool)
    }
    #[classattr]
    fn u8() -> Self {
        Self(ElementType::U8)
    }
    #[classattr]
    fn i8() -> Self {
        Self(ElementType::I8)
    }
    #[classattr]
    fn u16() -> Self {
        Self(ElementType::U16)
    }
    #[classattr]
    fn i16() -> Self {
        Self(ElementType::I16)
    }
    #[classattr]
    fn u32() -> Self {
        Self(ElementType::U32)
    }
    #[classattr]
    fn i32() -> Self {
        Self(ElementType::I32)
    }
    #[classattr]
    fn u64() -> Self {
        Self(ElementType::U64)
    }
    #[classattr]
    fn i64() -> Self {
        Self(ElementType::I64)
    }
    #[classattr]
    fn f16() -> Self {
        Self(ElementType::F16)
    }
    #[classattr]
    fn bf16() -> Self {
        Self(ElementType::Bf16)
    }
    #[classattr]
    fn f32() -> Self {
        Self(ElementType::F32)
    }
    #[classattr]
    fn f64() -> Self {
        Self(ElementType::F64)
    }

    /// The numpy type of arrays with these elements.
    fn to_dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyArrayDescr> {
        dtype_of(py, self.0)
    }

    /// The name, as in `Type.f32`.
    #[getter(type_name)]
    fn type_name_property(&self) -> &'static str {
        name_of(self.0)
    }

    /// Bytes of an element.
    #[getter(size)]
    fn size_property(&self) -> usize {
        self.0.size()
    }

    /// Bits of an element.
    #[getter(bitwidth)]
    fn bitwidth_property(&self) -> usize {
        8 * self.0.size()
    }

    /// Whether elements are floating-point numbers.
    #[getter]
    fn real(&self) -> bool {
        matches!(self.0, ElementType::F16 | ElementType::Bf16 | ElementType::F32 | ElementType::F64)
    }

    /// Whether elements are integers or booleans.
    #[getter]
    fn integral(&self) -> bool {
        !self.real()
    }

    /// Whether elements may be negative. As in OpenVINO, booleans count as signed.
    #[getter]
    fn signed(&self) -> bool {
        !matches!(self.0, ElementType::U8 | ElementType::U16 | ElementType::U32 | ElementType::U64)
    }

    fn get_type_name(&self) -> &'static str {
        self.type_name_property()
    }

    fn get_size(&self) -> usize {
        self.size_property()
    }

    fn get_bitwidth(&self) -> usize {
        self.bitwidth_property()
    }

    fn is_real(&self) -> bool {
        self.real()
    }

    fn is_integral(&self) -> bool {
        self.integral()
    }

    fn is_signed(&self) -> bool {
        self.signed()
    }

    /// Always true: every type is known.
    fn is_static(&self) -> bool {
        true
    }

    /// Always false.
    fn is_dynamic(&self) -> bool {
        false
    }

    fn to_string(&self) -> &'static str {
        name_of(self.0)
    }

    fn __repr__(&self) -> String {
        format!("<Type: '{}'>", name_of(self.0))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, pyo3::types::PyType>, (&'static str,)) {
        (py.get_type::<Self>(), (name_of(self.0),))
    }
}
