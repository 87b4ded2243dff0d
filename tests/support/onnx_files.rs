//! Writes small ONNX files: models whose outputs are constants, whatever the image shows. Tests write the outputs that another program
//! computed, or that follow from a definition.

use roiflow::tensor::ElementType;

/// An output of a model: its name, its element type, its shape and its values.
#[derive(Debug, Clone)]
pub struct OnnxOutput<'a> {
    pub name: &'a str,
    pub element: ElementType,
    pub shape: &'a [usize],
    pub values: Vec<f32>,
}

/// Returns an output of the type `f32`.
pub fn floats<'a>(name: &'a str, shape: &'a [usize], values: impl Into<Vec<f32>>) -> OnnxOutput<'a> {
    OnnxOutput { name, element: ElementType::F32, shape, values: values.into() }
}

/// Returns the bytes of a model with an image input `images` of this shape and these outputs. An extent of 0 is dynamic.
pub fn constant_model(input_shape: &[usize], outputs: &[OnnxOutput<'_>], metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut graph = Message::default();
    // The outputs depend on the image, because some engines refuse an input without a use.
    graph.message(1, &node("ReduceMean", &["images"], "mean", &[("keepdims", Attribute::Int(0))]));
    graph.message(1, &node("Mul", &["mean", "zero"], "nothing", &[]));
    for OnnxOutput { name, element, .. } in outputs {
        let (constant, sum) = (format!("{name}.constant"), format!("{name}.sum"));
        if *element == ElementType::F32 {
            graph.message(1, &node("Add", &[&constant, "nothing"], name, &[]));
        } else {
            graph.message(1, &node("Add", &[&constant, "nothing"], &sum, &[]));
            graph.message(1, &node("Cast", &[&sum], name, &[("to", Attribute::Int(number_of(*element)))]));
        }
    }
    graph.text(2, "constants");
    graph.message(5, &tensor("zero", &[], &[0.0]));
    outputs.iter().for_each(|output| graph.message(5, &tensor(&format!("{}.constant", output.name), output.shape, &output.values)));
    graph.message(11, &port("images", ElementType::F32, input_shape));
    outputs.iter().for_each(|output| graph.message(12, &port(output.name, output.element, output.shape)));
    model(&graph, metadata)
}

/// Returns the bytes of a model for images of this height and any width. Its output has the mean of each column, `[1, width]`.
pub fn columns_model(height: usize) -> Vec<u8> {
    let mut graph = Message::default();
    graph.message(1, &node("ReduceMean", &["images"], "means", &[("keepdims", Attribute::Int(0)), ("axes", Attribute::Ints(&[1, 2]))]));
    graph.text(2, "columns");
    graph.message(11, &port("images", ElementType::F32, &[0, 3, height, 0]));
    graph.message(12, &port("means", ElementType::F32, &[0, 0]));
    model(&graph, &[])
}

fn model(graph: &Message, metadata: &[(&str, &str)]) -> Vec<u8> {
    let (mut model, mut operators) = (Message::default(), Message::default());
    model.number(1, 8);
    model.message(7, graph);
    operators.number(2, 13);
    model.message(8, &operators);
    for (key, value) in metadata {
        let mut entry = Message::default();
        entry.text(1, key);
        entry.text(2, value);
        model.message(14, &entry);
    }
    model.0
}

/// The value of an attribute of a node.
enum Attribute<'a> {
    Int(u64),
    Ints(&'a [u64]),
}

fn node(operator: &str, inputs: &[&str], output: &str, attributes: &[(&str, Attribute<'_>)]) -> Message {
    let mut node = Message::default();
    inputs.iter().for_each(|input| node.text(1, input));
    node.text(2, output);
    node.text(4, operator);
    for (name, value) in attributes {
        let mut attribute = Message::default();
        attribute.text(1, name);
        match value {
            Attribute::Int(value) => {
                attribute.number(3, *value);
                attribute.number(20, 2);
            }
            Attribute::Ints(values) => {
                values.iter().for_each(|value| attribute.number(8, *value));
                attribute.number(20, 7);
            }
        }
        node.message(5, &attribute);
    }
    node
}

fn tensor(name: &str, shape: &[usize], values: &[f32]) -> Message {
    assert_eq!(values.len(), shape.iter().product::<usize>(), "{name}");
    let mut tensor = Message::default();
    shape.iter().for_each(|&extent| tensor.number(1, extent as u64));
    tensor.number(2, number_of(ElementType::F32));
    tensor.text(8, name);
    tensor.bytes(9, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
    tensor
}

fn port(name: &str, element: ElementType, shape: &[usize]) -> Message {
    let (mut dims, mut tensor, mut of_type, mut port) = (Message::default(), Message::default(), Message::default(), Message::default());
    for (axis, &extent) in shape.iter().enumerate() {
        let mut dim = Message::default();
        match extent {
            0 => dim.text(2, &format!("axis{axis}")),
            extent => dim.number(1, extent as u64),
        }
        dims.message(1, &dim);
    }
    tensor.number(1, number_of(element));
    tensor.message(2, &dims);
    of_type.message(1, &tensor);
    port.text(1, name);
    port.message(2, &of_type);
    port
}

/// The number of an element type in ONNX's `TensorProto.DataType`.
fn number_of(element: ElementType) -> u64 {
    match element {
        ElementType::F32 => 1,
        ElementType::U8 => 2,
        ElementType::I8 => 3,
        ElementType::U16 => 4,
        ElementType::I16 => 5,
        ElementType::I32 => 6,
        ElementType::I64 => 7,
        ElementType::Bool => 9,
        ElementType::F16 => 10,
        ElementType::F64 => 11,
        ElementType::U32 => 12,
        ElementType::U64 => 13,
        ElementType::Bf16 => 16,
        other => panic!("an element type without a number: {other}"),
    }
}

/// A message of protocol buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number > 0x7f {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.varint(field << 3);
        self.varint(number);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &Self) {
        self.bytes(field, &message.0);
    }
}
