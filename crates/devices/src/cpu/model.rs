//! Reads an ONNX file and compiles plans from it. A plan is the engine's compiled model for fixed input shapes.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use tract_onnx::pb;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::Op;
use tract_onnx::tract_core::ops::cast::cast;
use tract_onnx::tract_core::ops::unimpl::UnimplementedOp;
use tract_onnx::tract_core::plan::SimplePlan;

use super::denormals::flush_weights;
use super::request::CpuRequest;
use crate::runtime::device::{DeviceModel, DeviceRequest, DeviceStep};
use crate::runtime::executor::Executor;
use crate::runtime::{Config, Dim, Error, ErrorKind, Ignored, ModelInfo, ModelSource, PartialShape, Port, Precision, Result};
use crate::tensor::{ElementType, Shape};
use crate::{engine, graph, onnx, panics};

/// Maximum number of cached plans per model. Streams that alternate between a few shapes reuse their plans. The limit bounds the memory if
/// a stream keeps changing its shape.
const MAX_PLANS: usize = 8;

pub(super) type Plan = Arc<TypedSimplePlan>;

/// An ONNX file that was read, but is not compiled.
pub(super) struct OnnxFile {
    pub(super) info: ModelInfo,
    proto: pb::ModelProto,
    source: ModelSource,
}

fn not_onnx(source: &ModelSource, why: &str) -> Error {
    Error::new(ErrorKind::Model, format!("`{source}` is not an ONNX model ({why}); device CPU reads ONNX files"))
}

impl OnnxFile {
    pub(super) fn read(source: &ModelSource) -> Result<Self> {
        Self::open(source).map(|(file, _)| file)
    }

    /// Reads a file with its weights. Returns also its bytes.
    fn open(source: &ModelSource) -> Result<(Self, Cow<'_, [u8]>)> {
        let bytes = match source {
            ModelSource::File(path) => Cow::Owned(onnx::read_whole(path)?),
            ModelSource::Bytes(bytes) => {
                onnx::check_whole(bytes.model()).map_err(|why| engine::refused("CPU", source, &why))?;
                Cow::Borrowed(bytes.model())
            }
            ModelSource::Remote(_) | ModelSource::Ports => return Err(engine::no_source("CPU", source)),
        };
        let proto = without_panics(|| onnx().proto_model_for_read(&mut &*bytes))
            .map_err(|_| not_onnx(source, "the bytes are not a valid protocol buffer of a model"))?;
        Ok((Self::of_proto(proto, source)?, bytes))
    }

    /// Reads the ports and metadata of a file, without its weights.
    pub(super) fn read_info(source: &ModelSource) -> Result<ModelInfo> {
        let outline = || {
            let ModelSource::File(path) = source else { return None };
            let bytes = onnx::outline(std::fs::File::open(path).ok()?).ok()?;
            Self::of_proto(without_panics(|| onnx().proto_model_for_read(&mut &bytes[..])).ok()?, source).ok()
        };
        // If the file cannot be read without its weights, read the whole file instead, because that gives more specific errors.
        outline().map_or_else(|| Self::read(source), Ok).map(|file| file.info)
    }

    fn of_proto(mut proto: pb::ModelProto, source: &ModelSource) -> Result<Self> {
        let graph = proto.graph.as_ref().ok_or_else(|| not_onnx(source, "the file has no graph"))?;
        if graph.output.is_empty() || graph.node.is_empty() {
            return Err(not_onnx(source, "the graph has no nodes or no outputs"));
        }
        let named = |error: Error| error.context(source);
        let weights: std::collections::HashSet<&str> = graph.initializer.iter().map(|weight| &*weight.name).collect();
        let inputs = graph.input.iter().filter(|input| !weights.contains(&*input.name));
        let info = ModelInfo {
            inputs: inputs.map(port_of).collect::<Result<_>>().map_err(named)?,
            outputs: graph.output.iter().map(port_of).collect::<Result<_>>().map_err(named)?,
            metadata: proto.metadata_props.iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect(),
        };
        if let Some(graph) = &mut proto.graph {
            name_nodes(graph);
        }
        Ok(Self { info, proto, source: source.clone() })
    }

    fn parse(&self) -> Result<InferenceModel> {
        if let Some((node, what)) = self.proto.graph.as_ref().and_then(ignored_by_engine) {
            return Err(self.cannot(&format!("operator `{}` of node `{}` with {what} is not supported", node.op_type, node.name)));
        }
        // Exporters write the shapes of inner values and outputs, but these are often wrong or for another batch size. So the engine
        // ignores the written shapes and infers them.
        let reader = onnx().with_ignore_output_shapes(true).with_ignore_value_info(true);
        let parsed = without_panics(|| reader.parse(&self.proto, None)).map_err(|error| self.refused(&error))?;
        if let [name, ..] = &*parsed.unresolved_inputs {
            return Err(Error::new(
                ErrorKind::Model,
                format!(
                    "`{}`: a node reads the value `{name}`, which is neither an input of the model nor an output of another node",
                    self.source
                ),
            ));
        }
        let unknown = parsed.model.nodes().iter().find_map(|node| node.op_as::<UnimplementedOp>().map(|op| (&node.name, op.name())));
        if let Some((node, operator)) = unknown {
            let operator = operator.trim_start_matches("Unimplemented(").trim_end_matches(')');
            return Err(self.cannot(&format!("operator `{operator}` of node `{node}` is not supported")));
        }
        Ok(parsed.model)
    }

    /// Checks that the engine supports the element types of the ports. The reader accepts more types, because other devices may run the
    /// model.
    fn check_elements(&self) -> Result<()> {
        let ports = [("input", &self.info.inputs), ("output", &self.info.outputs)];
        let mut ports = ports.into_iter().flat_map(|(kind, ports)| ports.iter().map(move |port| (kind, port)));
        match ports.find(|(_, port)| datum_of(port.element).is_err()) {
            Some((kind, port)) => Err(self.cannot(&format!("{kind} `{}` has the unsupported element type {}", port.name(), port.element))),
            None => Ok(()),
        }
    }

    fn refused(&self, error: &TractError) -> Error {
        self.cannot(&chain(error))
    }

    fn cannot(&self, why: &str) -> Error {
        Error::new(
            ErrorKind::Model,
            format!(
                "device CPU (the built-in engine) cannot run `{}`: {why}; use a float model, or a device with a full ONNX engine (OpenVINO, ONNX Runtime)",
                self.source
            ),
        )
    }
}

/// Returns the first recurrent operator with an attribute that the engine ignores, and this attribute: the engine would compute other values
/// without an error.
fn ignored_by_engine(graph: &pb::GraphProto) -> Option<(&pb::NodeProto, String)> {
    let ignored = |node: &pb::NodeProto| {
        let usual: &[&str] = match &*node.op_type {
            "LSTM" => &["Sigmoid", "Tanh", "Tanh"],
            "GRU" => &["Sigmoid", "Tanh"],
            "RNN" => &["Tanh"],
            _ => return None,
        };
        node.attribute.iter().find_map(|attribute| {
            let is_computed = match &*attribute.name {
                "hidden_size" | "linear_before_reset" => true,
                "direction" => attribute.s != b"reverse",
                "activations" => {
                    attribute.strings.iter().zip(usual.iter().cycle()).all(|(name, usual)| name.eq_ignore_ascii_case(usual.as_bytes()))
                }
                // `layout` and `input_forget`: 0 is the default. `clip` and parameters of activations have no such value.
                _ => attribute.i == 0 && attribute.f == 0.0 && attribute.floats.is_empty(),
            };
            let value = String::from_utf8_lossy(&attribute.s);
            (!is_computed).then(|| format!("the attribute `{}`{}{value}", attribute.name, if value.is_empty() { "" } else { " = " }))
        })
    };
    let own = graph.node.iter().find_map(|node| ignored(node).map(|what| (node, what)));
    let mut bodies = graph.node.iter().flat_map(|node| &node.attribute).filter_map(|attribute| attribute.g.as_ref());
    own.or_else(|| bodies.find_map(ignored_by_engine))
}

/// Gives each node a unique name. Exporters may omit names, and the engine does not accept a graph with duplicate names.
fn name_nodes(graph: &mut pb::GraphProto) {
    let mut known = std::collections::HashSet::new();
    for (node_idx, node) in graph.node.iter_mut().enumerate() {
        if node.name.is_empty() || !known.insert(node.name.clone()) {
            node.name = format!("{}_{node_idx}", node.op_type);
            known.insert(node.name.clone());
        }
    }
}

/// Runs code of the engine. If the code panics, for example on an unexpected file, returns an error.
pub(super) fn without_panics<T>(action: impl FnOnce() -> TractResult<T>) -> TractResult<T> {
    panics::catch(action).unwrap_or_else(|why| Err(TractError::msg(why)))
}

/// Returns the error and its causes as text, outermost first, without repetitions.
fn chain(error: &TractError) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !said.iter().any(|earlier| earlier.contains(&text)) {
            said.push(text);
        }
    }
    engine::one_line(&said.join(": "))
}

fn port_of(value: &pb::ValueInfoProto) -> Result<Port> {
    let unreadable = |what: &str| Error::new(ErrorKind::Model, format!("port `{}` {what}", value.name));
    let Some(pb::type_proto::Value::TensorType(tensor)) = value.r#type.as_ref().and_then(|kind| kind.value.as_ref()) else {
        return Err(unreadable("is not a tensor; expected only tensors as inputs and outputs"));
    };
    let element = element_of_onnx(tensor.elem_type)
        .ok_or_else(|| unreadable(&format!("has element type {}, which roiflow tensors do not support", tensor.elem_type)))?;
    let dims = tensor.shape.iter().flat_map(|shape| &shape.dim).map(|dim| match dim.value {
        // Some exporters write a dynamic extent as 0 or -1.
        Some(pb::tensor_shape_proto::dimension::Value::DimValue(extent)) if extent > 0 => Dim::Fixed(extent as usize),
        _ => Dim::Dynamic,
    });
    Ok(Port::new(&value.name, element, PartialShape::new(dims.collect())?))
}

fn element_of_onnx(code: i32) -> Option<ElementType> {
    use pb::tensor_proto::DataType;
    Some(match DataType::try_from(code).ok()? {
        DataType::Bool => ElementType::Bool,
        DataType::Uint8 => ElementType::U8,
        DataType::Int8 => ElementType::I8,
        DataType::Uint16 => ElementType::U16,
        DataType::Int16 => ElementType::I16,
        DataType::Uint32 => ElementType::U32,
        DataType::Int32 => ElementType::I32,
        DataType::Uint64 => ElementType::U64,
        DataType::Int64 => ElementType::I64,
        DataType::Float16 => ElementType::F16,
        DataType::Bfloat16 => ElementType::Bf16,
        DataType::Float => ElementType::F32,
        DataType::Double => ElementType::F64,
        _ => return None,
    })
}

pub(super) fn datum_of(element: ElementType) -> Result<DatumType> {
    Ok(match element {
        ElementType::Bool => DatumType::Bool,
        ElementType::U8 => DatumType::U8,
        ElementType::I8 => DatumType::I8,
        ElementType::U16 => DatumType::U16,
        ElementType::I16 => DatumType::I16,
        ElementType::U32 => DatumType::U32,
        ElementType::I32 => DatumType::I32,
        ElementType::U64 => DatumType::U64,
        ElementType::I64 => DatumType::I64,
        ElementType::F16 => DatumType::F16,
        ElementType::F32 => DatumType::F32,
        ElementType::F64 => DatumType::F64,
        other => return Err(Error::new(ErrorKind::Unsupported, format!("device CPU does not support the element type {other}"))),
    })
}

/// A model compiled for the built-in engine. Its plans are compiled on demand.
pub(super) struct CpuModel {
    info: ModelInfo,
    pool: Arc<dyn Executor>,
    plans: Arc<Plans>,
    profiling: bool,
    ignored: Vec<Ignored>,
}

/// The plans of a model, by input shapes.
pub(super) struct Plans {
    file: OnnxFile,
    parsed: InferenceModel,
    /// The plans with their input shapes, the oldest first. If there are too many, the oldest is removed.
    by_shapes: Mutex<Vec<(Vec<Shape>, Plan)>>,
    /// The errors for input shapes that have no plan, in the same way.
    refused: Mutex<Vec<(Vec<Shape>, Error)>>,
    /// Whether batch items are certainly independent, so that each is computed alone. A dynamic first axis need not be a batch: a model may
    /// average over it, or append to it.
    pub(super) has_independent_rows: bool,
}

impl CpuModel {
    /// Compiles a model with the input shapes of `read`, which the caller may have changed.
    pub(super) fn compile(source: &ModelSource, read: &ModelInfo, config: &Config, pool: Arc<dyn Executor>) -> Result<Self> {
        let (mut file, bytes) = OnnxFile::open(source)?;
        file.check_elements()?;
        let parsed = file.parse()?;
        if file.info.inputs.len() != read.inputs.len() {
            let message = format!(
                "`{source}` changed after it was read: expected {} inputs, got {}; read the model again",
                read.inputs.len(),
                file.info.inputs.len()
            );
            return Err(Error::new(ErrorKind::Model, message));
        }
        if read.inputs.iter().zip(&file.info.inputs).any(|(read, own)| read.shape != own.shape) {
            // The output shapes in the file are valid only for the file's own input shapes.
            file.info.outputs.iter_mut().for_each(|port| port.shape = port.shape.all_open());
        }
        file.info.inputs.clone_from(&read.inputs);
        let mut info = file.info.clone();
        let graph = graph::onnx::read(&bytes, &info.inputs).unwrap_or_default();
        drop(bytes);
        // The engine narrows integers in casts, and in operators with an input of a cast. It cannot compute extents beyond 32 bits.
        if let Some(large) = graph.integer_beyond_32_bits(&["Cast"]) {
            let message = format!("operator `{}`: expected integer constants of 32 bits, got {}", large.operator, large.value);
            return Err(file.cannot(&message));
        }
        // The proof takes all inputs as batch items.
        let has_independent_rows = info.inputs.iter().all(has_batch) && graph.has_independent_rows();
        let plans = Plans { file, parsed, by_shapes: Mutex::default(), refused: Mutex::default(), has_independent_rows };
        // If only the batch size is dynamic, compile a plan for one item now, so that errors are reported at compilation and the output
        // shapes are exact.
        let batch_of_one = |port: &Port| port.shape.with_dynamic(|axis| (axis == 0).then_some(1));
        if let Some(shapes) = info.inputs.iter().map(batch_of_one).collect::<Option<Vec<Shape>>>() {
            let plan = plans.get(&shapes)?;
            let has_batch = info.inputs.iter().any(has_batch);
            for (output_idx, port) in info.outputs.iter_mut().enumerate() {
                let fact = plan.model().output_fact(output_idx).map_err(|error| plans.file.refused(&error))?;
                if let Some(shape) = fact.shape.as_concrete() {
                    let dims = shape.iter().enumerate().map(|(axis, &extent)| match axis {
                        0 if has_batch => Dim::Dynamic,
                        _ => Dim::Fixed(extent),
                    });
                    port.shape = PartialShape::new(dims.collect())?;
                }
                port.element = ElementType::ALL
                    .into_iter()
                    .find(|&element| datum_of(element).is_ok_and(|datum| datum == fact.datum_type))
                    .ok_or_else(|| {
                        plans.file.cannot(&format!("output `{}` has the unsupported element type {:?}", port.name(), fact.datum_type))
                    })?;
            }
        }
        let ignored = Ignored::of([
            (config.precision != Precision::F32, "precision", "the device computes in the types of the model"),
            (config.n_threads.is_some_and(|n_threads| n_threads > 1), "n_threads", "the device computes each run on one thread"),
            (config.cache_folder.is_some(), "cache_folder", "compiled plans cannot be stored in files"),
        ]);
        Ok(Self { info, pool, plans: Arc::new(plans), profiling: config.profiling, ignored })
    }
}

/// Returns whether the first axis of the port is dynamic. A dynamic first axis is treated as the batch axis.
pub(super) fn has_batch(port: &Port) -> bool {
    port.shape.dims().first().is_some_and(Dim::is_open)
}

fn found<T: Clone>(by_shapes: &[(Vec<Shape>, T)], shapes: &[Shape]) -> Option<T> {
    by_shapes.iter().find(|(known, _)| known == shapes).map(|(_, value)| value.clone())
}

/// Adds a value. If there are too many, removes the oldest.
fn add<T>(by_shapes: &mut Vec<(Vec<Shape>, T)>, shapes: &[Shape], value: T) {
    if by_shapes.len() == MAX_PLANS {
        by_shapes.remove(0);
    }
    by_shapes.push((shapes.to_vec(), value));
}

impl Plans {
    /// Returns the plan for these input shapes, which is compiled if it is not cached.
    pub(super) fn get(&self, shapes: &[Shape]) -> Result<Plan> {
        let mut by_shapes = self.by_shapes.lock().unwrap();
        let mut refused = self.refused.lock().unwrap();
        if let Some(plan) = found(&by_shapes, shapes) {
            return Ok(plan);
        }
        if let Some(error) = found(&refused, shapes) {
            return Err(error);
        }
        // Hold the locks during the compilation. Otherwise, other requests would compile the same plan at the same time.
        match without_panics(|| self.compile(shapes)).map_err(|error| self.file.refused(&error)) {
            Ok(plan) => {
                add(&mut by_shapes, shapes, plan.clone());
                Ok(plan)
            }
            Err(error) => {
                add(&mut refused, shapes, error.clone());
                Err(error)
            }
        }
    }

    /// Returns whether the plan for these input shapes is cached.
    pub(super) fn has(&self, shapes: &[Shape]) -> bool {
        found(&self.by_shapes.lock().unwrap(), shapes).is_some()
    }

    /// Returns the names and operators of the nodes in the file, except weights and inputs.
    pub(super) fn nodes_of_file(&self) -> Vec<(String, String)> {
        let nodes = self.parsed.nodes().iter().map(|node| (node.name.clone(), node.op.name().into_owned()));
        nodes.filter(|(_, kind)| !matches!(&**kind, "Source" | "Const")).collect()
    }

    fn compile(&self, shapes: &[Shape]) -> TractResult<Plan> {
        let mut model = self.parsed.clone();
        for (input_idx, (shape, port)) in shapes.iter().zip(&self.file.info.inputs).enumerate() {
            let datum = datum_of(port.element).map_err(TractError::msg)?;
            model.set_input_fact(input_idx, InferenceFact::dt_shape(datum, &**shape))?;
        }
        let mut model = model.into_typed()?;
        convert_dimensions(&mut model)?;
        let mut model = model.into_decluttered()?;
        // Change the weights at this point: the engine has folded constant products of weights, and has not packed the weights yet.
        flush_weights(&mut model)?;
        SimplePlan::new(model.into_optimized()?)
    }
}

/// Converts outputs that the engine computes as symbolic dimensions to integers of 64 bits. The engine does so after a cast to such integers.
fn convert_dimensions(model: &mut TypedModel) -> TractResult<()> {
    let mut outlets = model.output_outlets()?.to_vec();
    for (output_idx, outlet) in outlets.iter_mut().enumerate() {
        if model.outlet_fact(*outlet)?.datum_type == DatumType::TDim {
            *outlet = model.wire_node(format!("output_{output_idx}_as_i64"), cast(DatumType::I64), &[*outlet])?[0];
        }
    }
    model.select_output_outlets(&outlets)
}

impl DeviceModel for CpuModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn device(&self) -> Option<&str> {
        Some("CPU")
    }

    fn ignored(&self) -> Vec<Ignored> {
        self.ignored.clone()
    }

    fn steps(&self) -> Vec<DeviceStep> {
        vec![DeviceStep { name: "infer", executor: self.pool.clone() }]
    }

    fn rows_are_independent(&self) -> Option<bool> {
        self.plans.has_independent_rows.then_some(true)
    }

    fn computes_rows_in_turn(&self) -> bool {
        true
    }

    fn optimal_number_of_requests(&self) -> usize {
        self.pool.n_threads()
    }

    fn create_request(&self) -> Result<Box<dyn DeviceRequest>> {
        Ok(Box::new(CpuRequest::new(self.plans.clone(), &self.info, self.profiling)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model whose batch size is written into the graph has plans only for that size. Each run with other sizes asks for their plan.
    #[test]
    fn shapes_without_a_plan_are_compiled_once() {
        let port = |name: &str, extent: i64| {
            let dim = |value| pb::tensor_shape_proto::Dimension { value: Some(value), ..Default::default() };
            let dims = vec![dim(pb::tensor_shape_proto::dimension::Value::DimValue(extent))];
            let shape = Some(pb::TensorShapeProto { dim: dims });
            let value = Some(pb::type_proto::Value::TensorType(pb::type_proto::Tensor { elem_type: 1, shape }));
            pb::ValueInfoProto { name: name.into(), r#type: Some(pb::TypeProto { value, ..Default::default() }), ..Default::default() }
        };
        let four = pb::TensorProto { name: "four".into(), data_type: 7, dims: vec![1], int64_data: vec![4], ..Default::default() };
        let (op_type, input, output) = ("Reshape".into(), vec!["x".into(), "four".into()], vec!["y".into()]);
        let graph = pb::GraphProto {
            node: vec![pb::NodeProto { op_type, input, output, ..Default::default() }],
            input: vec![port("x", -1)],
            output: vec![port("y", -1)],
            initializer: vec![four],
            ..Default::default()
        };
        let opset_import = vec![pb::OperatorSetIdProto { domain: String::new(), version: 17 }];
        let proto = pb::ModelProto { ir_version: 8, opset_import, graph: Some(graph), ..Default::default() };
        let file = OnnxFile::of_proto(proto, &ModelSource::Ports).unwrap();
        let parsed = file.parse().unwrap();
        let plans = Plans { file, parsed, by_shapes: Mutex::default(), refused: Mutex::default(), has_independent_rows: false };
        for _ in 0..3 {
            plans.get(&[Shape::new(&[4])]).unwrap();
            plans.get(&[Shape::new(&[3])]).unwrap_err();
        }
        assert!(plans.has(&[Shape::new(&[4])]) && !plans.has(&[Shape::new(&[3])]));
        assert_eq!((plans.by_shapes.lock().unwrap().len(), plans.refused.lock().unwrap().len()), (1, 1));
    }

    #[test]
    fn a_model_without_its_weights_says_the_same_of_itself() {
        let ours = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
        let real = std::env::var_os("ROIFLOW_MODELS").filter(|folder| !folder.is_empty());
        let real = real.map(|folder| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder).join("models"));
        let files = [Some(ours), real].into_iter().flatten().flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let mut n_models = 0;
        for path in files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|ending| ending == "onnx")) {
            let outline = onnx::outline(std::fs::File::open(&path).unwrap()).unwrap();
            let source = ModelSource::from(&path);
            let outlined = OnnxFile::of_proto(onnx().proto_model_for_read(&mut &outline[..]).unwrap(), &source).unwrap();
            let (whole, n_bytes) = (OnnxFile::read(&source).unwrap(), std::fs::metadata(&path).unwrap().len());
            assert_eq!(outlined.info, whole.info, "{}", path.display());
            assert_eq!(OnnxFile::read_info(&source).unwrap(), whole.info, "{}", path.display());
            // Some models have their weights inside nodes. The outline of such a model contains the weights.
            let has_weights_apart = path.ends_with("age-v1.onnx");
            assert!(
                outline.len() as u64 <= if has_weights_apart { n_bytes / 100 } else { n_bytes },
                "{}: {}",
                path.display(),
                outline.len()
            );
            n_models += 1;
        }
        assert!(n_models > 5);
    }
}
