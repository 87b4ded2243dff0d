//! A test case for the readers of model files, generated from bytes: an ONNX file with changed input shapes, and an OpenVINO IR. Results
//! are compared with a second protocol buffer parser, and with the values written. Random tests and fuzz targets include this file.

use std::io::Cursor;

use prost::Message as _;
use roiflow::devices::onnx;
use roiflow::devices::openvino::ir::Ir;
use roiflow::runtime::{Dim, PartialShape, Port};
use roiflow::tensor::ElementType;

use crate::source::Source;

/// The compared parts of ONNX's `onnx.proto3`, parsed by prost.
#[derive(Clone, PartialEq, prost::Message)]
struct Model {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    weights: Vec<Weights>,
    #[prost(message, repeated, tag = "11")]
    inputs: Vec<Value>,
    #[prost(message, repeated, tag = "12")]
    outputs: Vec<Value>,
    #[prost(message, repeated, tag = "13")]
    values: Vec<Value>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Node {
    #[prost(string, repeated, tag = "1")]
    inputs: Vec<String>,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    operator: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Weights {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(float, repeated, tag = "4")]
    floats: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    int32s: Vec<i32>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    texts: Vec<Vec<u8>>,
    #[prost(int64, repeated, tag = "7")]
    int64s: Vec<i64>,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(bytes = "vec", tag = "9")]
    raw: Vec<u8>,
    #[prost(double, repeated, tag = "10")]
    doubles: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    uint64s: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Value {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    of_type: Option<Type>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Type {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TensorType>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    element: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Shape {
    #[prost(message, repeated, tag = "1")]
    dims: Vec<Extent>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Extent {
    #[prost(oneof = "Kind", tags = "1, 2")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(int64, tag = "1")]
    Number(i64),
    #[prost(string, tag = "2")]
    Name(String),
}

impl Value {
    fn dims(&mut self) -> &mut [Extent] {
        let shape = self.of_type.as_mut().and_then(|of_type| of_type.tensor.as_mut()).and_then(|tensor| tensor.shape.as_mut());
        shape.map_or(&mut [], |shape| &mut shape.dims)
    }
}

impl Extent {
    fn dim(&self) -> Dim {
        match self.kind {
            Some(Kind::Number(number)) => Dim::Fixed(usize::try_from(number).unwrap_or(0)),
            _ => Dim::Dynamic,
        }
    }

    /// Changes the dimension only if it differs from `wanted`, as roiflow does.
    fn want(&mut self, wanted: Dim) {
        match (self.dim(), wanted) {
            (own, wanted) if own == wanted => {}
            (_, Dim::Fixed(extent)) => self.kind = Some(Kind::Number(extent as i64)),
            _ => self.kind = None,
        }
    }
}

/// Reads `case` as an ONNX file, with input shapes chosen by its last byte. Returns whether the second parser accepts it as a model.
pub fn try_onnx(case: &[u8]) -> bool {
    let read = Model::decode(case);
    let mut inputs = read.iter().flat_map(|model| &model.graph).flat_map(|graph| graph.inputs.clone()).collect::<Vec<_>>();
    let mut source = Source::new(case.last_chunk::<1>().map_or(&[], |last| last));
    let ports: Vec<Port> = inputs.iter_mut().map(|input| wanted(input, &mut source)).collect();

    let reshaped = onnx::with_input_shapes(case, &ports);
    let nodes = onnx::nodes(case);
    let outline = onnx::outline(Cursor::new(case));
    let names_a_file = case.windows(8).any(|bytes| bytes == b"location");
    assert_eq!(onnx::may_have_other_files(case).unwrap(), names_a_file);

    let Ok(read) = read else { return false };
    if let Ok(nodes) = nodes {
        let named = read.graph.iter().flat_map(|graph| &graph.nodes).filter(|node| node.operator != "Constant" && !node.name.is_empty());
        assert_eq!(nodes, named.map(|node| (node.name.clone(), node.operator.clone())).collect::<Vec<_>>());
    }
    if let Ok(outline) = outline {
        let mut without_values = read.clone();
        for weights in without_values.graph.iter_mut().flat_map(|graph| &mut graph.weights) {
            *weights = Weights { dims: weights.dims.clone(), name: weights.name.clone(), ..Weights::default() };
        }
        assert_same(&Model::decode(&*outline).expect("it is a model"), &without_values);
    }
    if let Ok(reshaped) = reshaped {
        let mut expected = read.clone();
        if let Some(graph) = &mut expected.graph {
            for input in &mut graph.inputs {
                let Some(port) = ports.iter().find(|port| port.name() == input.name) else { continue };
                input.dims().iter_mut().zip(port.shape.dims()).for_each(|(extent, wanted)| extent.want(*wanted));
            }
        }
        let Some(changed) = reshaped else {
            assert_same(&read, &expected);
            return true;
        };
        if let Some(graph) = &mut expected.graph {
            graph.outputs.iter_mut().flat_map(Value::dims).for_each(|extent| extent.kind = None);
            graph.values.clear();
        }
        assert_same(&Model::decode(&*changed).expect("it is a model"), &expected);
        assert_eq!(onnx::with_input_shapes(&changed, &ports), Ok(None), "it has the shapes now");
    }
    true
}

/// Asserts that both models have the same bytes. Values are not compared, because a NaN among the weights does not equal itself.
fn assert_same(read: &Model, expected: &Model) {
    assert!(read.encode_to_vec() == expected.encode_to_vec(), "read: {read:?}\nexpected: {expected:?}");
}

/// Returns an input of this name with some of its extents, and other inputs.
fn wanted(input: &mut Value, source: &mut Source<'_>) -> Port {
    let dims = input.dims().iter().take(8).map(|extent| match source.below(3) {
        0 => extent.dim(),
        1 => Dim::Dynamic,
        _ => Dim::Fixed(source.below(1000)),
    });
    let shape = PartialShape::new(dims.collect()).expect("eight axes are allowed");
    Port::new(&input.name, ElementType::F32, shape)
}

/// Reads `case` as an IR. Then writes the words of `case` as tensor names and metadata of an IR, and reads this IR. Returns the number of
/// names.
pub fn try_ir(case: &[u8]) -> usize {
    let text = String::from_utf8_lossy(case);
    let names_of = |ir: &Ir, name: &str| {
        let mut port = Port::new(name, ElementType::F32, [1]);
        ir.complete(&mut port);
        port.names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let ir = Ir::of_text(&text);
    assert!(ir.metadata.keys().all(|key| key.starts_with("model_info ")), "{:?}", ir.metadata);
    assert_eq!(names_of(&ir, "input")[0], "input", "a port keeps its first name");

    // Other characters are not allowed in XML. A backslash at the end of a name is removed, because it would escape the comma after the
    // name.
    let is_legal = |c: char| c >= ' ' && !matches!(c, '\u{fffe}' | '\u{ffff}');
    let words = text.split(|c: char| c.is_whitespace() || !is_legal(c)).map(|word| word.trim_end_matches('\\'));
    let mut names: Vec<&str> = words.filter(|word| !word.is_empty()).take(6).collect();
    names.sort_unstable();
    names.dedup();
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    let list = names.iter().map(|name| name.replace(',', "\\,")).collect::<Vec<_>>().join(",");
    let ir = Ir::of_text(&format!(
        "<net><layers><layer id=\"0\"><output><port id=\"0\" names=\"{}\"/></output></layer></layers>\
         <rt_info><model_info><labels value=\"{}\"/></model_info></rt_info></net>",
        escaped(&list),
        escaped(&names.join(" ")),
    ));
    assert_eq!(ir.metadata.get("model_info labels").map(String::as_str), Some(&*names.join(" ")));
    for (idx, name) in names.iter().enumerate() {
        let mut expected = names.clone();
        let own = expected.remove(idx);
        expected.insert(0, own);
        assert_eq!(names_of(&ir, name), expected);
    }
    names.len()
}
