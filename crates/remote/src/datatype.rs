//! Element types and shapes of KServe v2, and the ports that they describe.

use bytes::{BufMut, Bytes, BytesMut};

use super::failure::Failure;
use super::protocol::{ModelMetadataResponse, TensorContents, TensorMetadata};
use crate::runtime::{Dim, Error, ErrorKind, ModelInfo, PartialShape, Port, Result};
use crate::tensor::{ElementType, MAX_RANK, Shape};

const NAMES: [(ElementType, &str); 13] = [
    (ElementType::Bool, "BOOL"),
    (ElementType::U8, "UINT8"),
    (ElementType::I8, "INT8"),
    (ElementType::U16, "UINT16"),
    (ElementType::I16, "INT16"),
    (ElementType::U32, "UINT32"),
    (ElementType::I32, "INT32"),
    (ElementType::U64, "UINT64"),
    (ElementType::I64, "INT64"),
    (ElementType::F16, "FP16"),
    (ElementType::Bf16, "BF16"),
    (ElementType::F32, "FP32"),
    (ElementType::F64, "FP64"),
];

/// Returns the name of an element type in the protocol.
pub(crate) fn name_of(element: ElementType) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == element).map_or("", |(_, name)| name)
}

fn element_of(name: &str) -> Option<ElementType> {
    NAMES.iter().find(|(_, known)| *known == name).map(|(element, _)| *element)
}

/// Returns the ports and metadata that a server reports.
///
/// # Errors
/// Returns `Model` if a port has a type or shape that roiflow does not support.
pub(crate) fn info_of(metadata: &ModelMetadataResponse) -> Result<ModelInfo> {
    let ports = |kind: &str, tensors: &[TensorMetadata]| tensors.iter().map(|tensor| port_of(kind, tensor)).collect::<Result<Vec<_>>>();
    let mut texts = std::collections::BTreeMap::new();
    if !metadata.platform.is_empty() {
        texts.insert("platform".to_owned(), metadata.platform.clone());
    }
    if !metadata.versions.is_empty() {
        texts.insert("versions".to_owned(), metadata.versions.join(", "));
    }
    Ok(ModelInfo { inputs: ports("input", &metadata.inputs)?, outputs: ports("output", &metadata.outputs)?, metadata: texts })
}

fn port_of(kind: &str, tensor: &TensorMetadata) -> Result<Port> {
    let fail = |why: String| Error::new(ErrorKind::Model, format!("{kind} `{}` of the server: {why}", tensor.name));
    let element = element_of(&tensor.datatype)
        .ok_or_else(|| fail(format!("expected a type of numbers, such as FP32, got {}. Use a model without strings", tensor.datatype)))?;
    let dims = tensor.shape.iter().map(|&extent| match usize::try_from(extent) {
        Ok(extent) => Dim::Fixed(extent),
        Err(_) => Dim::Dynamic,
    });
    Ok(Port::new(&tensor.name, element, PartialShape::new(dims.collect())?))
}

/// Returns the number of bytes of a dense tensor. Returns `None` if the type or the shape is not supported.
pub(crate) fn n_bytes_of(datatype: &str, shape: &[i64]) -> Option<usize> {
    let n_elements = shape.iter().try_fold(1_usize, |n, &extent| n.checked_mul(usize::try_from(extent).ok()?))?;
    n_elements.checked_mul(element_of(datatype)?.size())
}

/// An output of a response.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) element: ElementType,
    pub(crate) shape: Shape,
    pub(crate) values: Bytes,
}

impl Output {
    /// Checks type, shape and number of bytes.
    pub(crate) fn new(name: String, datatype: &str, shape: &[i64], values: Bytes) -> Result<Self, Failure> {
        let fail = |why: String| Failure::protocol(format!("output `{name}` of the response: {why}"));
        let element = element_of(datatype).ok_or_else(|| fail(format!("expected a type of numbers, got {datatype}")))?;
        if shape.len() > MAX_RANK || shape.iter().any(|&extent| extent < 0) {
            return Err(fail(format!("expected up to {MAX_RANK} extents of 0 or more, got {shape:?}")));
        }
        let shape = Shape::new(&shape.iter().map(|&extent| extent as usize).collect::<Vec<_>>());
        let n_bytes = shape.n_elements().and_then(|n| n.checked_mul(element.size()));
        if n_bytes != Some(values.len()) {
            return Err(fail(format!("expected the bytes of {shape} {element}, got {} bytes", values.len())));
        }
        if let Some(other) = values.iter().find(|&&byte| element == ElementType::Bool && byte > 1) {
            return Err(fail(format!("expected bytes of 0 or 1 for BOOL, got {other}")));
        }
        Ok(Self { name, element, shape, values })
    }
}

/// Returns the values of typed contents as bytes.
///
/// # Errors
/// Returns an error if a value does not fit the type, or if servers send the type only as raw contents.
pub(crate) fn bytes_of(contents: &TensorContents, datatype: &str) -> Result<Bytes, String> {
    let mut bytes = BytesMut::new();
    // Protocol Buffers have no integers of 8 and 16 bits, so the contents have wider values.
    let mut beyond: Option<i64> = None;
    fn narrowed<T: TryFrom<i64> + Default>(value: i64, beyond: &mut Option<i64>) -> T {
        T::try_from(value).unwrap_or_else(|_| {
            beyond.get_or_insert(value);
            T::default()
        })
    }
    match datatype {
        "BOOL" => contents.bools.iter().for_each(|&value| bytes.put_u8(value.into())),
        "INT8" => contents.ints.iter().for_each(|&value| bytes.put_i8(narrowed(value.into(), &mut beyond))),
        "INT16" => contents.ints.iter().for_each(|&value| bytes.put_slice(&narrowed::<i16>(value.into(), &mut beyond).to_ne_bytes())),
        "INT32" => contents.ints.iter().for_each(|&value| bytes.put_slice(&value.to_ne_bytes())),
        "INT64" => contents.int64s.iter().for_each(|&value| bytes.put_slice(&value.to_ne_bytes())),
        "UINT8" => contents.uints.iter().for_each(|&value| bytes.put_u8(narrowed(value.into(), &mut beyond))),
        "UINT16" => contents.uints.iter().for_each(|&value| bytes.put_slice(&narrowed::<u16>(value.into(), &mut beyond).to_ne_bytes())),
        "UINT32" => contents.uints.iter().for_each(|&value| bytes.put_slice(&value.to_ne_bytes())),
        "UINT64" => contents.uint64s.iter().for_each(|&value| bytes.put_slice(&value.to_ne_bytes())),
        "FP32" => contents.floats.iter().for_each(|&value| bytes.put_slice(&value.to_ne_bytes())),
        "FP64" => contents.doubles.iter().for_each(|&value| bytes.put_slice(&value.to_ne_bytes())),
        other => return Err(format!("expected raw contents for {other}")),
    }
    match beyond {
        Some(value) => Err(format!("expected values of the type {datatype}, got {value}")),
        None => Ok(bytes.freeze()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_their_type_are_errors() {
        let contents = |ints: &[i32], uints: &[u32]| TensorContents { ints: ints.into(), uints: uints.into(), ..TensorContents::default() };
        for (datatype, ints, uints, is_valid) in [
            ("INT8", &[-128, 127][..], &[][..], true),
            ("INT8", &[300], &[], false),
            ("INT8", &[-129], &[], false),
            ("INT16", &[32767, -32768], &[], true),
            ("INT16", &[32768], &[], false),
            ("UINT8", &[], &[0, 255], true),
            ("UINT8", &[], &[256], false),
            ("UINT16", &[], &[65535], true),
            ("UINT16", &[], &[65536], false),
        ] {
            assert_eq!(bytes_of(&contents(ints, uints), datatype).is_ok(), is_valid, "{datatype} {ints:?} {uints:?}");
        }
        let error = bytes_of(&contents(&[300], &[]), "INT8").unwrap_err();
        assert_eq!(error, "expected values of the type INT8, got 300");
    }

    #[test]
    fn booleans_are_zero_or_one() {
        let output = |bytes: &'static [u8]| Output::new("y".to_owned(), "BOOL", &[3], Bytes::from_static(bytes));
        assert!(output(&[0, 1, 1]).is_ok());
        assert!(format!("{:?}", output(&[0, 2, 7]).unwrap_err()).contains("expected bytes of 0 or 1 for BOOL, got 2"));
    }
}
