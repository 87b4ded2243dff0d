//! Reads the graph of an OpenVINO IR.

use std::collections::HashMap;

use roxmltree::{Document, Node as Element};

use super::onnx::extent_of;
use super::{Constant, Extents, Graph, MAX_VALUES, Node, beyond_32_bits};
use crate::onnx::MAX_DEPTH;
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

/// The graphs inside `TensorIterator`, `Loop` and `If`.
const BODIES: [&str; 3] = ["body", "then_body", "else_body"];

/// Returns the bytes of the .bin file from an offset on, with this length; `None` if the file has no such bytes.
pub type Weights<'a> = &'a dyn Fn(u64, usize) -> Option<Vec<u8>>;

/// Reads the graph of a model; `None` if the text is not an IR. `text` is the XML file. Of the weights, reads only whole numbers and small
/// constants.
pub fn read(text: &str, weights: Weights<'_>, inputs: &[Port]) -> Option<Graph> {
    graph_of(Document::parse(text).ok()?.root_element(), weights, Some(inputs), 0)
}

/// Reads the layers and edges of a model or of a body, which has no ports of its own.
fn graph_of(element: Element<'_, '_>, weights: Weights<'_>, ports: Option<&[Port]>, depth: usize) -> Option<Graph> {
    if depth == MAX_DEPTH {
        return None;
    }
    let child = |node: Element<'_, '_>, name: &str| node.children().find(|child| child.has_tag_name(name)).map(|child| child.id());
    let part = |name| element.document().get_node(child(element, name)?);
    // The name of the output at which each input begins.
    let mut sources: HashMap<(&str, &str), String> = HashMap::new();
    for edge in part("edges")?.children().filter(Element::is_element) {
        let from = format!("{}:{}", edge.attribute("from-layer")?, edge.attribute("from-port")?);
        sources.insert((edge.attribute("to-layer")?, edge.attribute("to-port")?), from);
    }
    let mut graph = Graph::default();
    let mut ports = ports.map(|ports| ports.iter());
    // The extents in the file are valid only for the input shapes in the file.
    let mut is_reshaped = false;
    for layer in part("layers")?.children().filter(Element::is_element) {
        let id = layer.attribute("id")?;
        let data = child(layer, "data").and_then(|data| element.document().get_node(data));
        let side = |name: &str| {
            let side = child(layer, name).and_then(|side| element.document().get_node(side));
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
            "Parameter" if ports.is_none() => graph.inputs.extend(outputs.into_iter().map(|name| (name, Vec::new()))),
            "Parameter" => {
                let inner: Extents = ports.as_mut()?.next()?.shape.dims().iter().skip(1).map(extent_of).collect();
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
                let node = node_of(operator, data, inputs.clone(), outputs.clone(), dims, &graph.constants);
                let opaque = || Node { operator: name_of(operator), inputs, outputs, is_opaque: true, ..Node::default() };
                let bodies = layer.children().filter(|part| BODIES.contains(&part.tag_name().name()));
                let bodies = bodies.map(|body| graph_of(body, weights, None, depth + 1)).collect::<Option<Vec<_>>>()?;
                graph.nodes.push(Node { bodies, ..node.unwrap_or_else(opaque) });
            }
        }
    }
    Some(graph)
}

/// Returns the name of an operator in ONNX.
fn name_of(operator: &str) -> String {
    NAMES.iter().find(|(known, _)| *known == operator).map_or(operator, |(_, name)| name).to_owned()
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
    let name = name_of(operator);
    match &*name {
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
        | "LRN"
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
    Some(Node { operator: name, inputs, outputs, attributes, extents, is_opaque: false, bodies: Vec::new() })
}

fn constant_of(data: Element<'_, '_>, dims: Vec<i64>, weights: Weights<'_>) -> Constant {
    let number = |name: &str| data.attribute(name)?.parse::<u64>().ok();
    let element = data.attribute("element_type").unwrap_or_default();
    let is_read = |n_bytes: &usize| ["i64", "u64"].contains(&element) || *n_bytes <= 4 * MAX_VALUES;
    let bytes = || weights(number("offset")?, usize::try_from(number("size")?).ok().filter(is_read)?);
    let bytes = bytes().unwrap_or_default();
    let integers: Vec<i64> = match element {
        "u64" => bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes).try_into().unwrap_or(i64::MAX)).collect(),
        "i64" => bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
        "i32" => bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect(),
        _ => Vec::new(),
    };
    let values: Vec<f64> = match element {
        "f32" => bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect(),
        _ => integers.iter().map(|value| *value as f64).collect(),
    };
    let len = dims.iter().try_fold(1_i64, |len, dim| len.checked_mul(*dim));
    let values = Some(values).filter(|values| values.len() <= MAX_VALUES && len == Some(values.len() as i64));
    Constant { dims: Some(dims), values, beyond_32_bits: beyond_32_bits(&integers) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Dim;
    use crate::tensor::ElementType;

    /// Reads the graph of an IR that computes `y = operator(x, c)`, with the whole numbers `c`.
    fn graph(operator: &str, data: &str, element: &str, values: &[i64]) -> Graph {
        let port = |id: usize| format!("<port id='{id}'><dim>-1</dim><dim>4</dim></port>");
        let text = format!(
            "<net><layers><layer id='0' type='Parameter'><output>{}</output></layer>\
             <layer id='1' type='Const'><data element_type='{element}' offset='8' size='{}'/><output>\
             <port id='0'><dim>{}</dim></port></output></layer>\
             <layer id='2' type='{operator}'><data {data}/><input>{}{}</input><output>{}</output></layer>\
             <layer id='3' type='Result'><input>{}</input></layer></layers><edges>\
             <edge from-layer='0' from-port='0' to-layer='2' to-port='0'/><edge from-layer='1' from-port='0' to-layer='2' to-port='1'/>\
             <edge from-layer='2' from-port='2' to-layer='3' to-port='0'/></edges></net>",
            port(0),
            8 * values.len(),
            values.len(),
            port(0),
            port(1),
            port(2),
            port(0)
        );
        let bytes: Vec<u8> = [0].iter().chain(values).flat_map(|value| value.to_le_bytes()).collect();
        let weights = |offset: u64, len: usize| Some(bytes.get(offset as usize..offset as usize + len)?.to_vec());
        read(&text, &weights, &[Port::new("x", ElementType::F32, [Dim::Dynamic, 4.into()])]).unwrap()
    }

    #[test]
    fn constants_of_all_operators_are_checked() {
        for (operator, data, is_checked) in [
            ("Add", "auto_broadcast='numpy'", true),
            ("Add", "auto_broadcast='none'", true),
            ("NewOperator", "", true),
            ("Slice", "", false),
            ("NonMaxSuppression", "", true),
        ] {
            let graph = graph(operator, data, "i64", &[1 << 40]);
            let found = graph.integer_beyond_32_bits(&[]).map(|large| (large.operator, large.value));
            assert_eq!(found, is_checked.then_some((operator, 1 << 40)));
        }
        let many: Vec<i64> = (0..600).map(|idx| if idx == 599 { -1 } else { 0 }).collect();
        assert_eq!(graph("Add", "", "i64", &many).integer_beyond_32_bits(&[]), None);
        assert_eq!(graph("Add", "", "u64", &many).integer_beyond_32_bits(&[]).unwrap().value, i64::MAX);
    }

    #[test]
    fn a_normalization_over_the_batch_is_not_proven() {
        assert!(graph("Add", "", "i64", &[1]).has_independent_rows());
        assert!(!graph("LRN", "", "i64", &[0]).has_independent_rows());
        assert!(!graph("NewOperator", "", "i64", &[1]).has_independent_rows());
    }
}
