//! Writes small ONNX models for tests, also models whose outputs are constants, whatever the image shows: outputs that another program
//! computed, or that follow from a definition.

use std::path::Path;

use prost::Message;
use roiflow::tensor::ElementType;
use tract_onnx::pb;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;

/// A model with float inputs and outputs, unless the methods say otherwise. Its operators are those of version 17.
#[derive(Clone)]
pub struct Onnx(pb::GraphProto);

impl Onnx {
    pub fn new() -> Self {
        Self(pb::GraphProto { name: "test".to_owned(), ..pb::GraphProto::default() })
    }

    /// Adds an input. An extent of -1 is dynamic.
    pub fn input(self, name: &str, dims: &[i64]) -> Self {
        self.input_of(name, DataType::Float, dims)
    }

    pub fn input_of(mut self, name: &str, element: DataType, dims: &[i64]) -> Self {
        self.0.input.push(port(name, element, dims));
        self
    }

    /// Adds an output. An extent of -1 is dynamic.
    pub fn output(self, name: &str, dims: &[i64]) -> Self {
        self.output_of(name, DataType::Float, dims)
    }

    pub fn output_of(mut self, name: &str, element: DataType, dims: &[i64]) -> Self {
        self.0.output.push(port(name, element, dims));
        self
    }

    /// Adds an operator. `inputs` and `outputs` have names with spaces between them.
    pub fn node(self, operator: &str, inputs: &str, outputs: &str) -> Self {
        self.node_with(operator, inputs, outputs, &[])
    }

    /// Adds an operator with attributes that are whole numbers, or lists of them.
    pub fn node_with(mut self, operator: &str, inputs: &str, outputs: &str, attributes: &[(&str, &[i64])]) -> Self {
        let names = |list: &str| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let attribute = |(name, numbers): &(&str, &[i64])| {
            let is_list = ["axes", "pads", "strides", "perm", "kernel_shape"].contains(name);
            pb::AttributeProto {
                name: (*name).to_owned(),
                r#type: if is_list { AttributeType::Ints } else { AttributeType::Int } as i32,
                i: if is_list { 0 } else { numbers[0] },
                ints: if is_list { numbers.to_vec() } else { Vec::new() },
                ..pb::AttributeProto::default()
            }
        };
        self.0.node.push(pb::NodeProto {
            input: names(inputs),
            output: names(outputs),
            name: format!("n{}", self.0.node.len()),
            op_type: operator.to_owned(),
            attribute: attributes.iter().map(attribute).collect(),
            ..pb::NodeProto::default()
        });
        self
    }

    /// Gives the last operator a graph of its own, such as a branch of `If`.
    pub fn body(mut self, name: &str, body: Self) -> Self {
        let attribute =
            pb::AttributeProto { name: name.to_owned(), r#type: AttributeType::Graph as i32, g: Some(body.0), ..Default::default() };
        self.0.node.last_mut().expect("an operator").attribute.push(attribute);
        self
    }

    pub fn floats(mut self, name: &str, dims: &[i64], values: &[f32]) -> Self {
        let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.0.initializer.push(tensor(name, DataType::Float, dims, raw_data));
        self
    }

    /// Adds a constant of whole numbers with one axis.
    pub fn integers(mut self, name: &str, values: &[i64]) -> Self {
        let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.0.initializer.push(tensor(name, DataType::Int64, &[values.len() as i64], raw_data));
        self
    }

    /// Adds a constant of 64-bit numbers without a sign, in the field for such numbers.
    pub fn unsigned(mut self, name: &str, values: &[u64]) -> Self {
        let tensor = tensor(name, DataType::Uint64, &[values.len() as i64], Vec::new());
        self.0.initializer.push(pb::TensorProto { uint64_data: values.to_vec(), ..tensor });
        self
    }

    /// Adds floats that are the content of a separate file.
    pub fn floats_of_file(mut self, name: &str, dims: &[i64], file: &str) -> Self {
        let tensor = tensor(name, DataType::Float, dims, Vec::new());
        let entry = pb::StringStringEntryProto { key: "location".to_owned(), value: file.to_owned() };
        let data_location = Some(pb::tensor_proto::DataLocation::External as i32);
        self.0.initializer.push(pb::TensorProto { external_data: vec![entry], data_location, ..tensor });
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let opset_import = vec![pb::OperatorSetIdProto { domain: String::new(), version: 17 }];
        pb::ModelProto { ir_version: 8, opset_import, graph: Some(self.0.clone()), ..pb::ModelProto::default() }.encode_to_vec()
    }

    /// Writes the model and a separate file with all its constants.
    pub fn write_apart(&self, model: &Path, weights: &str) {
        std::fs::write(model.with_file_name(weights), self.write_named(model, weights)).unwrap();
    }

    /// Writes the model without its constants, and returns their bytes. The model names the file that should have them.
    pub fn write_named(&self, model: &Path, weights: &str) -> Vec<u8> {
        let mut apart = self.clone();
        let mut all = Vec::new();
        for tensor in &mut apart.0.initializer {
            let bytes = std::mem::take(&mut tensor.raw_data);
            let entries = [("location", weights.to_owned()), ("offset", all.len().to_string()), ("length", bytes.len().to_string())];
            tensor.external_data = entries.map(|(key, value)| pb::StringStringEntryProto { key: key.to_owned(), value }).into();
            tensor.data_location = Some(pb::tensor_proto::DataLocation::External as i32);
            all.extend(bytes);
        }
        std::fs::write(model, apart.bytes()).unwrap();
        all
    }
}

fn tensor(name: &str, element: DataType, dims: &[i64], raw_data: Vec<u8>) -> pb::TensorProto {
    pb::TensorProto { name: name.to_owned(), data_type: element as i32, dims: dims.to_vec(), raw_data, ..pb::TensorProto::default() }
}

fn port(name: &str, element: DataType, dims: &[i64]) -> pb::ValueInfoProto {
    use pb::tensor_shape_proto::Dimension;
    use pb::tensor_shape_proto::dimension::Value;
    let dim = |(axis, extent): (usize, &i64)| {
        let value = if *extent < 0 { Value::DimParam(format!("axis{axis}")) } else { Value::DimValue(*extent) };
        Dimension { value: Some(value), ..Dimension::default() }
    };
    let shape = Some(pb::TensorShapeProto { dim: (0..).zip(dims).map(dim).collect() });
    let value = pb::type_proto::Value::TensorType(pb::type_proto::Tensor { elem_type: element as i32, shape });
    let kind = pb::TypeProto { value: Some(value), ..pb::TypeProto::default() };
    pb::ValueInfoProto { name: name.to_owned(), r#type: Some(kind), ..pb::ValueInfoProto::default() }
}

/// An output of a model: its name, its element type, its shape and its values.
#[derive(Debug, Clone)]
pub struct OnnxOutput<'a> {
    pub name: &'a str,
    pub element: ElementType,
    pub shape: &'a [i64],
    pub values: Vec<f32>,
}

/// Returns an output of the type `f32`.
pub fn floats<'a>(name: &'a str, shape: &'a [i64], values: impl Into<Vec<f32>>) -> OnnxOutput<'a> {
    OnnxOutput { name, element: ElementType::F32, shape, values: values.into() }
}

/// Returns the bytes of a model with an image input `images` of this shape and these outputs.
pub fn constant_model(input_shape: &[i64], outputs: &[OnnxOutput<'_>]) -> Vec<u8> {
    // The outputs depend on the image, because some engines refuse an input without a use.
    let mut model = Onnx::new().input("images", input_shape).floats("zero", &[], &[0.0]);
    model = model.node_with("ReduceMean", "images", "mean", &[("keepdims", &[0])]).node("Mul", "mean zero", "nothing");
    for OnnxOutput { name, element, shape, values } in outputs {
        let (constant, element) = (format!("{name}.constant"), data_type(*element));
        model = model.floats(&constant, shape, values).node("Add", &format!("{constant} nothing"), &format!("{name}.sum"));
        model = model.node_with("Cast", &format!("{name}.sum"), name, &[("to", &[element as i64])]).output_of(name, element, shape);
    }
    model.bytes()
}

/// Returns the bytes of a model for images of this height and any width. Its output has the mean of each column, `[1, width]`.
pub fn columns_model(height: i64) -> Vec<u8> {
    let model = Onnx::new().input("images", &[-1, 3, height, -1]).output("means", &[-1, -1]);
    model.node_with("ReduceMean", "images", "means", &[("keepdims", &[0]), ("axes", &[1, 2])]).bytes()
}

fn data_type(element: ElementType) -> DataType {
    match element {
        ElementType::F32 => DataType::Float,
        ElementType::U8 => DataType::Uint8,
        ElementType::I8 => DataType::Int8,
        ElementType::U16 => DataType::Uint16,
        ElementType::I16 => DataType::Int16,
        ElementType::I32 => DataType::Int32,
        ElementType::I64 => DataType::Int64,
        ElementType::Bool => DataType::Bool,
        ElementType::F16 => DataType::Float16,
        ElementType::F64 => DataType::Double,
        ElementType::U32 => DataType::Uint32,
        ElementType::U64 => DataType::Uint64,
        ElementType::Bf16 => DataType::Bfloat16,
        other => panic!("an element type without a number: {other}"),
    }
}
