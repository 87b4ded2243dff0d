//! Reads the graph of an OpenVINO IR.

use std::collections::HashMap;

use roxmltree::{Document, Node as Element};

use super::onnx::extent_of;
use super::{Constant, Extents, Graph, MAX_VALUES, Node};
use crate::runtime::Port;

/// Operators of OpenVINO whose name in ONNX differs.
const NAMES: [(&str, &str); 35] = [
    ("ReLU", "Relu"),
    ("Negative", "Neg"),
    ("Ceiling", "Ceil"),
    ("Clamp", "Relu"),
    ("Convert", "Cast"),
    ("Subtract", "Sub"),
    ("Multiply", "Mul"),
    ("Divide", "Div"),
    ("Power", "Pow"),
    ("Maximum", "Max"),
    ("Minimum", "Min"),
    ("LogicalNot", "Not"),
    ("LogicalAnd", "And"),
    ("LogicalOr", "Or"),
    ("GreaterEqual", "GreaterOrEqual"),
    ("LessEqual", "LessOrEqual"),
    ("HSwish", "HardSwish"),
    ("BatchNormInference", "BatchNormalization"),
    ("Convolution", "Conv"),
    ("GroupConvolution", "Conv"),
    ("ConvolutionBackpropData", "ConvTranspose"),
    ("GroupConvolutionBackpropData", "ConvTranspose"),
    ("AvgPool", "AveragePool"),
    ("SoftMax", "Softmax"),
    ("ShapeOf", "Shape"),
    ("ReduceMean", "ReduceMean"),
    ("ReduceMax", "ReduceMax"),
    ("ReduceMin", "ReduceMin"),
    ("ReduceSum", "ReduceSum"),
    ("ReduceProd", "ReduceProd"),
    ("ReduceL1", "ReduceL1"),
    ("ReduceL2", "ReduceL2"),
    ("Select", "Where"),
    ("VariadicSplit", "Split"),
    ("PReLU", "PRelu"),
];

/// Reads the graph of a model; `None` if the text is not an IR. `text` is the XML file, and `weights` the .bin file.
pub fn read(text: &str, weights: &[u8], inputs: &[Port]) -> Option<Graph> {
    graph_of(&Document::parse(text).ok()?, weights, inputs)
}

fn graph_of(document: &Document<'_>, weights: &[u8], ports: &[Port]) -> Option<Graph> {
    let child = |node: Element<'_, '_>, name: &str| node.children().find(|child| child.has_tag_name(name)).map(|child| child.id());
    let part = |name| document.get_node(child(document.root_element(), name)?);
    // The name of the output at which each input begins.
    let mut sources: HashMap<(&str, &str), String> = HashMap::new();
    for edge in part("edges")?.children().filter(Element::is_element) {
        let from = format!("{}:{}", edge.attribute("from-layer")?, edge.attribute("from-port")?);
        sources.insert((edge.attribute("to-layer")?, edge.attribute("to-port")?), from);
    }
    let mut graph = Graph::default();
    let mut ports = ports.iter();
    // The extents in the file are valid only for the input shapes in the file.
    let mut is_reshaped = false;
    for layer in part("layers")?.children().filter(Element::is_element) {
        let id = layer.attribute("id")?;
        let data = child(layer, "data").and_then(|data| document.get_node(data));
        let side = |name: &str| {
            let side = child(layer, name).and_then(|side| document.get_node(side));
            side.into_iter().flat_map(|side| side.children()).filter(|port| port.has_tag_name("port")).collect::<Vec<_>>()
        };
        let source = |port: Element<'_, '_>| sources.get(&(id, port.attribute("id")?)).cloned();
        let inputs = side("input").into_iter().map(source).collect::<Option<Vec<_>>>()?;
        let outputs = side("output").iter().map(|port| Some(format!("{id}:{}", port.attribute("id")?))).collect::<Option<Vec<_>>>()?;
        let dims = side("output").first().map(|port| {
            let dims = port.children().filter(|dim| dim.has_tag_name("dim"));
            dims.map(|dim| dim.text().and_then(|extent| extent.trim().parse::<i64>().ok()).unwrap_or(-1)).collect::<Vec<_>>()
        });
        match layer.attribute("type")? {
            "Parameter" => {
                let inner: Extents = ports.next()?.shape.dims().iter().skip(1).map(extent_of).collect();
                is_reshaped |= !dims?.iter().skip(1).map(|dim| (*dim >= 0).then_some(*dim)).eq(inner.iter().copied());
                graph.inputs.extend(outputs.into_iter().map(|name| (name, inner.clone())));
            }
            "Result" => graph.outputs.extend(inputs),
            "Const" => {
                let constant = constant_of(data?, dims?, weights);
                graph.constants.extend(outputs.into_iter().map(|name| (name, constant.clone())));
            }
            operator => {
                let dims = dims.filter(|_| !is_reshaped);
                graph.nodes.extend(node_of(operator, data, inputs, outputs, dims, &graph.constants));
            }
        }
    }
    Some(graph)
}

/// Returns the operator with the names, inputs and attributes of ONNX. Returns `None` if it is not known.
fn node_of(
    operator: &str,
    data: Option<Element<'_, '_>>,
    mut inputs: Vec<String>,
    outputs: Vec<String>,
    dims: Option<Vec<i64>>,
    constants: &HashMap<String, Constant>,
) -> Option<Node> {
    let attribute = |name: &str| data.and_then(|data| data.attribute(name));
    if attribute("auto_broadcast").is_some_and(|rule| rule != "numpy") {
        return None;
    }
    let mut attributes: HashMap<String, Vec<i64>> = HashMap::new();
    let mut set = |name: &str, value: i64| attributes.insert(name.to_owned(), vec![value]);
    let flag = |name: &str| i64::from(attribute(name).is_some_and(|value| value == "true" || value == "1"));
    let number_at = |input_idx: usize| Some(*constants.get(inputs.get(input_idx)?)?.values.as_ref()?.first()? as i64);
    let name = NAMES.iter().find(|(known, _)| *known == operator).map_or(operator, |(_, name)| name);
    match name {
        "MatMul" => drop((set("transA", flag("transpose_a")), set("transB", flag("transpose_b")))),
        "Softmax" => drop(set("axis", attribute("axis").unwrap_or("1").parse().ok()?)),
        "LogSoftmax" => drop(set("axis", attribute("axis").unwrap_or("-1").parse().ok()?)),
        "Concat" | "TopK" => drop(set("axis", attribute("axis")?.parse().ok()?)),
        "Reshape" => drop(set("allowzero", 1 - flag("special_zero"))),
        "Split" => drop((set("axis", number_at(1)?), inputs.truncate(1))),
        "Gather" if flag("batch_dims") == 0 && attribute("batch_dims").is_none_or(|dims| dims == "0") => {
            drop((set("axis", number_at(2)?), inputs.truncate(2)));
        }
        _ if name.starts_with("Reduce") => drop(set("keepdims", flag("keep_dims"))),
        // In OpenVINO, the order of the inputs or the meaning of the attributes differs.
        "BatchNormalization"
        | "Slice"
        | "Pad"
        | "Gather"
        | "Resize"
        | "QuantizeLinear"
        | "DequantizeLinear"
        | "CumSum"
        | "ArgMax"
        | "Gemm"
        | "Flatten"
        | "LayerNormalization"
        | "InstanceNormalization"
        | "GroupNormalization"
        | "Upsample" => return None,
        _ => {}
    }
    let extents = dims.filter(|dims| !dims.is_empty()).map(|dims| dims[1..].iter().map(|dim| (*dim >= 0).then_some(*dim)).collect());
    Some(Node { operator: name.to_owned(), inputs, outputs, attributes, extents })
}

fn constant_of(data: Element<'_, '_>, dims: Vec<i64>, weights: &[u8]) -> Constant {
    let number = |name: &str| data.attribute(name)?.parse::<usize>().ok();
    let bytes = || weights.get(number("offset")?..number("offset")?.checked_add(number("size")?)?);
    let (bytes, element) = (bytes().unwrap_or_default(), data.attribute("element_type").unwrap_or_default());
    let integers: Vec<i64> = match element {
        "i64" => bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
        "i32" => bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect(),
        _ => Vec::new(),
    };
    let values: Vec<f64> = match element {
        "f32" if bytes.len() <= 4 * MAX_VALUES => bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect(),
        _ => integers.iter().map(|value| *value as f64).collect(),
    };
    let len = dims.iter().try_fold(1_i64, |len, dim| len.checked_mul(*dim));
    let values = Some(values).filter(|values| values.len() <= MAX_VALUES && len == Some(values.len() as i64));
    let beyond_32_bits = integers.into_iter().find(|value| i32::try_from(*value).is_err());
    Constant { dims: Some(dims), values, beyond_32_bits }
}
