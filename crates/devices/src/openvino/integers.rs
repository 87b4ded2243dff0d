//! Checks for element types that OpenVINO computes in fewer bits. Its plugins compute all integers as signed 32-bit values, and `f64` as
//! `f32`, even if the ports have wider types. An integer that does not fit would wrap around without an error, so inputs are checked before
//! each run.

use crate::graph::LargeInteger;
use crate::runtime::io::DeviceIo;
use crate::runtime::{Error, ErrorKind, ModelInfo, ModelSource, Port, Result};
use crate::tensor::{Element, ElementType};

/// Returns the reason why results may differ from those of exact arithmetic in the model's types; `None` if there is no such reason.
pub(super) fn inexact(info: &ModelInfo) -> Option<String> {
    let is_float = |port: &&Port| port.element == ElementType::F64;
    let input = info.inputs.iter().find(|port| is_wide(port.element) || is_float(port)).map(|port| ("input", port));
    // Outputs with integers are accepted: in practice they are indices, classes and counts, which fit 32 bits.
    let output = || info.outputs.iter().find(is_float).map(|port| ("output", port));
    let (kind, port) = input.or_else(output)?;
    let computes = if is_wide(port.element) { "integers in 32 bits" } else { "f64 in f32" };
    Some(format!("{kind} `{}` is {}, and OpenVINO computes {computes}", port.name(), port.element))
}

/// Returns the error for a model with a constant that does not fit into 32 bits.
pub(super) fn beyond_32_bits(device: &str, source: &ModelSource, large: &LargeInteger<'_>) -> Error {
    let message = format!(
        "device {device} cannot run `{source}`: operator `{}`: expected constants of 32 bits, in which OpenVINO computes integers, got {}; \
         use the device ORT.CPU or AUTO",
        large.operator, large.value
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// Returns whether this type has values that do not fit an `i32`.
pub(super) fn is_wide(element: ElementType) -> bool {
    matches!(element, ElementType::I64 | ElementType::U64 | ElementType::U32)
}

/// Checks that all values of an input fit into 32 bits, because OpenVINO computes integers in 32 bits.
///
/// # Errors
/// Returns `Unsupported` if a value of the input does not fit into 32 bits.
pub(super) fn check(device: &str, port: &Port, input_idx: usize, io: &DeviceIo<'_>) -> Result<()> {
    let found = match port.element {
        ElementType::I64 => beyond::<i64>(input_idx, io)?,
        ElementType::U64 => beyond::<u64>(input_idx, io)?,
        ElementType::U32 => beyond::<u32>(input_idx, io)?,
        _ => None,
    };
    let Some((at, value)) = found else { return Ok(()) };
    let message = format!(
        "device {device}: input `{}`: expected values of 32 bits, in which OpenVINO computes integers, got {value} at index {at}; \
         use the device ORT.CPU, CPU or AUTO",
        port.name()
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// Returns the first value that does not fit, and its index in row-major order.
fn beyond<T: Element + Into<i128>>(input_idx: usize, io: &DeviceIo<'_>) -> Result<Option<(usize, i128)>> {
    let bytes = io.input(input_idx);
    if bytes.layout().n_elements() == 0 {
        return Ok(None);
    }
    if bytes.layout().is_dense() {
        return Ok(first_beyond(bytes.dense::<T>()?));
    }
    let copy = crate::tensor::Tensor::new(T::TYPE, *bytes.layout().shape())?;
    let mut copy = copy.bytes_mut()?;
    bytes.copy_all_to_dense(copy.extent_mut())?;
    Ok(first_beyond(copy.dense_mut::<T>()?))
}

fn first_beyond<T: Element + Into<i128>>(values: &[T]) -> Option<(usize, i128)> {
    values.iter().map(|&value| value.into()).enumerate().find(|(_, value)| i32::try_from(*value).is_err())
}
