//! The messages of the KServe v2 inference protocol over gRPC, with the field numbers of the published protocol.
//!
//! The structs are written by hand, because generated code needs `protoc` or another compiler in each build. They have only the messages
//! and fields that roiflow uses. Fields that are not listed are skipped when a message is read.

use std::collections::HashMap;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

/// The name of the gRPC service.
pub(crate) const SERVICE: &str = "inference.GRPCInferenceService";

/// The key of the field `raw_input_contents` in Protocol Buffers: field number 7 and wire type 2 (length and bytes).
const RAW_INPUT_KEY: u8 = 7 << 3 | 2;

/// The request of `ModelReady` and of `ModelMetadata`, which have the same fields.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelReadyResponse {
    #[prost(bool, tag = "1")]
    pub(crate) ready: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelMetadataResponse {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) versions: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) platform: String,
    #[prost(message, repeated, tag = "4")]
    pub(crate) inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) outputs: Vec<TensorMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) datatype: String,
    /// The extents; -1 is a dynamic extent.
    #[prost(int64, repeated, tag = "3")]
    pub(crate) shape: Vec<i64>,
}

/// `ModelInferRequest` without the field `raw_input_contents`, which [`encode_infer`] appends.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferHead {
    #[prost(string, tag = "1")]
    pub(crate) model_name: String,
    #[prost(string, tag = "2")]
    pub(crate) model_version: String,
    #[prost(string, tag = "3")]
    pub(crate) id: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) inputs: Vec<InferInput>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) outputs: Vec<RequestedOutput>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferInput {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) shape: Vec<i64>,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) parameters: HashMap<String, Parameter>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestedOutput {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(map = "string, message", tag = "2")]
    pub(crate) parameters: HashMap<String, Parameter>,
}

/// A parameter of an input or output.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Parameter {
    #[prost(oneof = "ParameterValue", tags = "2, 3")]
    pub(crate) value: Option<ParameterValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum ParameterValue {
    #[prost(int64, tag = "2")]
    Number(i64),
    #[prost(string, tag = "3")]
    Text(String),
}

impl Parameter {
    pub(crate) fn number(value: usize) -> Self {
        Self { value: Some(ParameterValue::Number(value as i64)) }
    }

    pub(crate) fn text(value: &str) -> Self {
        Self { value: Some(ParameterValue::Text(value.to_owned())) }
    }
}

/// Registers a region of shared memory. Part of the extension "system shared memory".
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// The name of the memory in POSIX: a slash, and the name of the file in `/dev/shm`.
    #[prost(string, tag = "2")]
    pub(crate) key: String,
    #[prost(uint64, tag = "3")]
    pub(crate) offset: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) byte_size: u64,
}

/// Ends the registration of a region.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UnregisterRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferResponse {
    #[prost(message, repeated, tag = "5")]
    pub(crate) outputs: Vec<InferOutput>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(crate) raw_output_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferOutput {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) shape: Vec<i64>,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) parameters: HashMap<String, Parameter>,
    #[prost(message, optional, tag = "5")]
    pub(crate) contents: Option<TensorContents>,
}

/// The values of an output, from servers that do not send raw contents.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorContents {
    #[prost(bool, repeated, tag = "1")]
    pub(crate) bools: Vec<bool>,
    /// For `INT8`, `INT16` and `INT32`.
    #[prost(int32, repeated, tag = "2")]
    pub(crate) ints: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) int64s: Vec<i64>,
    /// For `UINT8`, `UINT16` and `UINT32`.
    #[prost(uint32, repeated, tag = "4")]
    pub(crate) uints: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub(crate) uint64s: Vec<u64>,
    #[prost(float, repeated, tag = "6")]
    pub(crate) floats: Vec<f32>,
    #[prost(double, repeated, tag = "7")]
    pub(crate) doubles: Vec<f64>,
}

/// Returns a message with the five bytes that precede it in a gRPC stream: not compressed, and the length.
///
/// # Errors
/// Returns the length if it needs more than 32 bits.
pub(crate) fn framed(message: &impl Message) -> Result<Bytes, usize> {
    let mut buffer = BytesMut::with_capacity(5 + message.encoded_len());
    put_frame(&mut buffer, message.encoded_len())?;
    put_message(&mut buffer, message);
    Ok(buffer.freeze())
}

/// Returns the parts of a framed `ModelInferRequest`. The contents are not copied: each of them is one part.
///
/// # Errors
/// Returns the length of the message if it needs more than 32 bits.
pub(crate) fn encode_infer(head: &InferHead, contents: &[Bytes]) -> Result<Vec<Bytes>, usize> {
    let len_of = |content: &Bytes| 1 + prost::encoding::encoded_len_varint(content.len() as u64) + content.len();
    let mut buffer = BytesMut::with_capacity(64 + head.encoded_len());
    put_frame(&mut buffer, head.encoded_len() + contents.iter().map(len_of).sum::<usize>())?;
    put_message(&mut buffer, head);
    let mut parts = Vec::with_capacity(2 * contents.len());
    for content in contents {
        buffer.put_u8(RAW_INPUT_KEY);
        prost::encoding::encode_varint(content.len() as u64, &mut buffer);
        parts.push(buffer.split().freeze());
        parts.push(content.clone());
    }
    if !buffer.is_empty() {
        parts.push(buffer.freeze());
    }
    parts.retain(|part| !part.is_empty());
    Ok(parts)
}

fn put_frame(buffer: &mut BytesMut, len: usize) -> Result<(), usize> {
    buffer.put_u8(0);
    buffer.put_u32(u32::try_from(len).map_err(|_| len)?);
    Ok(())
}

fn put_message(buffer: &mut BytesMut, message: &impl Message) {
    message.encode(buffer).expect("the buffer of `bytes` grows");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole message, as another program reads it.
    #[derive(Clone, PartialEq, Message)]
    struct Whole {
        #[prost(string, tag = "1")]
        model_name: String,
        #[prost(message, repeated, tag = "5")]
        inputs: Vec<TensorMetadata>,
        #[prost(bytes = "bytes", repeated, tag = "7")]
        raw_input_contents: Vec<Bytes>,
    }

    #[test]
    fn the_parts_of_a_call_are_one_message() {
        let input = TensorMetadata { name: "x".to_owned(), datatype: "UINT8".to_owned(), shape: vec![1, 300] };
        let sent = InferInput { name: "x".to_owned(), datatype: "UINT8".to_owned(), shape: vec![1, 300], ..InferInput::default() };
        let head = InferHead { model_name: "m".to_owned(), inputs: vec![sent.clone(), sent], ..InferHead::default() };
        for contents in [vec![Bytes::from(vec![7; 300]), Bytes::from(vec![1, 2, 3])], vec![Bytes::new(), Bytes::from(vec![9])], vec![]] {
            let parts = encode_infer(&head, &contents).unwrap();
            let whole = parts.concat();
            assert_eq!((whole[0], u32::from_be_bytes(whole[1..5].try_into().unwrap()) as usize), (0, whole.len() - 5));
            let read = Whole::decode(&whole[5..]).unwrap();
            assert_eq!((&*read.model_name, &read.inputs, &read.raw_input_contents), ("m", &vec![input.clone(), input.clone()], &contents));
            let large = contents.iter().filter(|content| content.len() == 300);
            assert!(large.into_iter().all(|content| parts.iter().any(|part| part.as_ptr() == content.as_ptr())), "contents were copied");
        }
    }
}
