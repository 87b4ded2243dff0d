//! Reads the graph of an ONNX file.

use std::collections::HashMap;

use super::{Constant, Graph, MAX_VALUES, Node, beyond_32_bits};
use crate::engine::EngineResult;
use crate::onnx::{Content, Field, MAX_DEPTH, MODEL_GRAPH, is_of_onnx, messages, text};
use crate::runtime::{Dim, Port};

// Field numbers of `GraphProto`, `NodeProto`, `AttributeProto`, `TensorProto`, `SparseTensorProto`, `FunctionProto` and `ModelProto`.
const GRAPH_NODE: u64 = 1;
const GRAPH_INITIALIZER: u64 = 5;
const GRAPH_OUTPUT: u64 = 12;
const GRAPH_SPARSE: u64 = 15;
const NODE_INPUT: u64 = 1;
const NODE_OUTPUT: u64 = 2;
const NODE_OPERATOR: u64 = 4;
const NODE_ATTRIBUTE: u64 = 5;
const NODE_DOMAIN: u64 = 7;
const ATTRIBUTE_FLOAT: u64 = 2;
const ATTRIBUTE_INT: u64 = 3;
const ATTRIBUTE_TENSOR: u64 = 5;
const ATTRIBUTE_GRAPH: u64 = 6;
const ATTRIBUTE_FLOATS: u64 = 7;
const ATTRIBUTE_TYPE: u64 = 20;
const ATTRIBUTE_TYPE_INT: i64 = 2;
const ATTRIBUTE_INTS: u64 = 8;
const ATTRIBUTE_GRAPHS: u64 = 11;
const ATTRIBUTE_SPARSE: u64 = 22;
const TENSOR_DIMS: u64 = 1;
const TENSOR_TYPE: u64 = 2;
const TENSOR_FLOATS: u64 = 4;
const TENSOR_INTS32: u64 = 5;
const TENSOR_INTS64: u64 = 7;
const TENSOR_UINTS64: u64 = 11;
const TENSOR_NAME: u64 = 8;
const TENSOR_RAW: u64 = 9;
const SPARSE_VALUES: u64 = 1;
const FUNCTION_NODE: u64 = 7;
const MODEL_OPSET: u64 = 8;
const MODEL_FUNCTION: u64 = 25;

/// Reads the graph of a model. `inputs` has the ports of the model.
///
/// # Errors
/// Returns an error if the bytes are not a valid message.
pub fn read(model: &[u8], inputs: &[Port]) -> EngineResult<Graph> {
    let inner = |port: &Port| port.shape.dims().iter().skip(1).map(extent_of).collect();
    let inputs = inputs.iter().map(|port| (port.name().to_owned(), inner(port)));
    let mut graph = Graph { inputs: inputs.collect(), ..Graph::default() };
    // The latest version of the operators of ONNX that the model uses.
    let opset = messages(model, MODEL_OPSET)?.into_iter().filter(|opset| text(opset, 1).is_ok_and(is_of_onnx));
    let opset = opset.filter_map(|opset| numbers(opset, 2).ok()?.last().copied()).max().unwrap_or(1);
    for message in messages(model, MODEL_GRAPH)? {
        add_graph(&mut graph, message, opset, 0)?;
    }
    for function in messages(model, MODEL_FUNCTION)? {
        let mut inner = Graph::default();
        for node in messages(function, FUNCTION_NODE)? {
            add_node(&mut inner, node, opset, 0)?;
        }
        graph.functions.push(inner);
    }
    Ok(graph)
}

fn add_graph(graph: &mut Graph, message: &[u8], opset: i64, depth: usize) -> EngineResult<()> {
    if depth == MAX_DEPTH {
        return Err(format!("expected at most {MAX_DEPTH} graphs inside each other"));
    }
    for tensor in messages(message, GRAPH_INITIALIZER)? {
        graph.constants.insert(string(text(tensor, TENSOR_NAME)?), constant_of(tensor)?);
    }
    for tensor in messages(message, GRAPH_SPARSE)? {
        // The values have the name of the whole tensor.
        let name = string(text(text(tensor, SPARSE_VALUES)?, TENSOR_NAME)?);
        graph.constants.insert(name, sparse_constant_of(tensor)?);
    }
    for output in messages(message, GRAPH_OUTPUT)? {
        graph.outputs.push(string(text(output, 1)?));
    }
    for node in messages(message, GRAPH_NODE)? {
        add_node(graph, node, opset, depth)?;
    }
    Ok(())
}

pub(super) fn extent_of(dim: &Dim) -> Option<i64> {
    if let Dim::Fixed(extent) = dim { i64::try_from(*extent).ok() } else { None }
}

fn add_node(graph: &mut Graph, node: &[u8], opset: i64, depth: usize) -> EngineResult<()> {
    let names = |number| messages(node, number).map(|names| names.into_iter().map(string).collect::<Vec<_>>());
    let (domain, operator) = (text(node, NODE_DOMAIN)?, text(node, NODE_OPERATOR)?);
    let (inputs, outputs) = (names(NODE_INPUT)?, names(NODE_OUTPUT)?);
    let mut attributes = HashMap::from([("opset".to_owned(), vec![opset])]);
    let mut constant = None;
    let mut bodies = Vec::new();
    for attribute in messages(node, NODE_ATTRIBUTE)? {
        for body in [messages(attribute, ATTRIBUTE_GRAPH)?, messages(attribute, ATTRIBUTE_GRAPHS)?].concat() {
            let mut inner = Graph::default();
            add_graph(&mut inner, body, opset, depth + 1)?;
            bodies.push(inner);
        }
        let (tensors, sparse) = (messages(attribute, ATTRIBUTE_TENSOR)?, messages(attribute, ATTRIBUTE_SPARSE)?);
        let mut integers = numbers(attribute, ATTRIBUTE_INTS)?;
        integers.extend(numbers(attribute, ATTRIBUTE_INT)?);
        // Some writers leave out the value 0.
        if integers.is_empty() && numbers(attribute, ATTRIBUTE_TYPE)?.last() == Some(&ATTRIBUTE_TYPE_INT) {
            integers.push(0);
        }
        attributes.insert(string(text(attribute, 1)?), integers.clone());
        let floats: Vec<f64> =
            [ATTRIBUTE_FLOAT, ATTRIBUTE_FLOATS].map(|number| floats(attribute, number)).into_iter().flatten().flatten().collect();
        constant = Some(match (tensors.last(), sparse.last()) {
            (Some(tensor), _) => constant_of(tensor)?,
            (None, Some(tensor)) => sparse_constant_of(tensor)?,
            (None, None) => {
                let values = if floats.is_empty() { integers.iter().map(|value| *value as f64).collect() } else { floats };
                let dims = if values.len() == 1 { None } else { Some(vec![values.len() as i64]) };
                Constant { dims, values: Some(values), beyond_32_bits: beyond_32_bits(&integers) }
            }
        });
    }
    match (operator, constant) {
        (b"Constant", Some(constant)) if is_of_onnx(domain) => {
            graph.constants.extend(outputs.into_iter().map(|name| (name, constant.clone())));
        }
        _ => {
            let is_opaque = !is_of_onnx(domain);
            graph.nodes.push(Node { operator: string(operator), inputs, outputs, attributes, extents: None, is_opaque, bodies });
        }
    }
    Ok(())
}

fn string(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the shape of a tensor. Returns also its values, if they are few.
fn constant_of(tensor: &[u8]) -> EngineResult<Constant> {
    const FLOAT: i64 = 1;
    const INT32: i64 = 6;
    const INT64: i64 = 7;
    const UINT32: i64 = 12;
    const UINT64: i64 = 13;
    let dims = numbers(tensor, TENSOR_DIMS)?;
    let len = dims.iter().try_fold(1_usize, |len, dim| len.checked_mul(usize::try_from(*dim).ok()?));
    let raw = text(tensor, TENSOR_RAW)?;
    let element = numbers(tensor, TENSOR_TYPE)?.last().copied().unwrap_or(0);
    let mut integers: Vec<i64> = match element {
        INT32 => raw.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect(),
        UINT32 => raw.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes).into()).collect(),
        INT64 => raw.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
        UINT64 => raw.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes).try_into().unwrap_or(i64::MAX)).collect(),
        _ => Vec::new(),
    };
    integers.extend(match element {
        INT32 => numbers(tensor, TENSOR_INTS32)?,
        INT64 => numbers(tensor, TENSOR_INTS64)?,
        // The numbers of this field have no sign.
        _ => numbers(tensor, TENSOR_UINTS64)?.into_iter().map(|value| i64::try_from(value.cast_unsigned()).unwrap_or(i64::MAX)).collect(),
    });
    let mut values: Vec<f64> = integers.iter().map(|value| *value as f64).collect();
    if element == FLOAT && len.is_some_and(|len| len <= MAX_VALUES) {
        values = raw.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect();
        values.extend(floats(tensor, TENSOR_FLOATS)?);
    }
    let values = Some(values).filter(|values| values.len() <= MAX_VALUES && len == Some(values.len()));
    Ok(Constant { dims: Some(dims), values, beyond_32_bits: beyond_32_bits(&integers) })
}

/// Returns whether a sparse tensor has a large number. Its shape and its zeros are not read.
fn sparse_constant_of(tensor: &[u8]) -> EngineResult<Constant> {
    Ok(Constant { beyond_32_bits: constant_of(text(tensor, SPARSE_VALUES)?)?.beyond_32_bits, ..Constant::default() })
}

/// Returns the whole numbers of a field, which may be packed.
pub fn numbers(message: &[u8], number: u64) -> EngineResult<Vec<i64>> {
    let (mut found, mut rest) = (Vec::new(), message);
    while let Some(field) = Field::next(&mut rest)? {
        match field.content {
            Content::Number(value) if field.number == number => found.push(value as i64),
            Content::Message(mut packed) if field.number == number => {
                while !packed.is_empty() {
                    found.push(crate::onnx::read_varint(&mut packed)? as i64);
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the numbers of a field with 32-bit floats, which may be packed.
fn floats(message: &[u8], number: u64) -> EngineResult<Vec<f64>> {
    let (mut found, mut rest) = (Vec::new(), message);
    while let Some(field) = Field::next(&mut rest)? {
        let bytes = match field.content {
            Content::Fixed(bytes) | Content::Message(bytes) if field.number == number => bytes,
            _ => continue,
        };
        found.extend(bytes.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))));
    }
    Ok(found)
}
