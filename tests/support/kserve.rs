//! An inference server for tests: it speaks KServe v2 over gRPC and HTTP/1.1 on one port, and computes with a closure or with the built-in
//! engine. Tests make it fail, hold calls, and kill it.
//!
//! The server is written with `tonic` and `axum`, and has its own definitions of the messages. So it also checks that roiflow's client
//! speaks the protocol, and not only the same dialect.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::{Path as UrlPath, Request, State as AppState};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, body};
use prost::Message;
use roiflow::devices;
use roiflow::runtime::{CompiledModel, Config, Model, PartialShape};
use roiflow::tensor::{ElementType, Shape, Tensor};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tonic::Status;
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;

/// The header with the length of the JSON text in a body with binary data.
const JSON_LENGTH: &str = "inference-header-content-length";

#[derive(Clone, PartialEq, Message)]
pub struct Named {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Ready {
    #[prost(bool, tag = "1")]
    pub ready: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, repeated, tag = "2")]
    pub versions: Vec<String>,
    #[prost(string, tag = "3")]
    pub platform: String,
    #[prost(message, repeated, tag = "4")]
    pub inputs: Vec<TensorOf>,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<TensorOf>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorOf {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
    #[prost(map = "string, message", tag = "4")]
    pub parameters: HashMap<String, Parameter>,
    #[prost(message, optional, tag = "5")]
    pub contents: Option<Contents>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Parameter {
    #[prost(oneof = "ParameterChoice", tags = "1, 2, 3")]
    pub choice: Option<ParameterChoice>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ParameterChoice {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(int64, tag = "2")]
    Int64(i64),
    #[prost(string, tag = "3")]
    String(String),
}

#[derive(Clone, PartialEq, Message)]
pub struct Requested {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(map = "string, message", tag = "2")]
    pub parameters: HashMap<String, Parameter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Register {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub key: String,
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    #[prost(uint64, tag = "4")]
    pub byte_size: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub struct Contents {
    #[prost(float, repeated, tag = "6")]
    pub fp32: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InferRequest {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<TensorOf>,
    #[prost(message, repeated, tag = "6")]
    pub outputs: Vec<Requested>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    pub raw_input_contents: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InferResponse {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<TensorOf>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub raw_output_contents: Vec<Vec<u8>>,
}

const TYPES: [(&str, ElementType); 6] = [
    ("FP32", ElementType::F32),
    ("UINT8", ElementType::U8),
    ("INT64", ElementType::I64),
    ("INT32", ElementType::I32),
    ("FP64", ElementType::F64),
    ("BOOL", ElementType::Bool),
];

fn name_of(element: ElementType) -> String {
    TYPES.iter().find(|(_, known)| *known == element).unwrap().0.to_owned()
}

type Outputs = Vec<(String, Tensor)>;
type Compute = Box<dyn Fn(Vec<Tensor>) -> Result<Outputs, String> + Send + Sync>;

/// A model of the server.
pub struct Served {
    name: String,
    inputs: Vec<TensorOf>,
    outputs: Vec<TensorOf>,
    compute: Compute,
}

impl Served {
    /// A model that a closure computes. Ports have a name, a type and a shape.
    pub fn computing(
        name: &str,
        inputs: &[(&str, &str, &[i64])],
        outputs: &[(&str, &str, &[i64])],
        compute: impl Fn(Vec<Tensor>) -> Result<Outputs, String> + Send + Sync + 'static,
    ) -> Self {
        let ports = |ports: &[(&str, &str, &[i64])]| {
            let port = |(name, datatype, shape): &(&str, &str, &[i64])| TensorOf {
                name: (*name).to_owned(),
                datatype: (*datatype).to_owned(),
                shape: shape.to_vec(),
                ..TensorOf::default()
            };
            ports.iter().map(port).collect()
        };
        Self { name: name.to_owned(), inputs: ports(inputs), outputs: ports(outputs), compute: Box::new(compute) }
    }

    /// A model file, which the built-in engine computes. The server accepts any shape that the engine can compute.
    pub fn of_file(name: &str, file: &Path) -> Self {
        let model = devices::core().read_model(file).unwrap();
        let compiled = devices::core().compile_model(&model, "CPU", &Config::default()).unwrap();
        let ports = |ports: &[roiflow::runtime::Port]| {
            let port = |port: &roiflow::runtime::Port| TensorOf {
                name: port.name().to_owned(),
                datatype: name_of(port.element),
                shape: port
                    .shape
                    .dims()
                    .iter()
                    .map(|dim| if let roiflow::runtime::Dim::Fixed(extent) = dim { *extent as i64 } else { -1 })
                    .collect(),
                ..TensorOf::default()
            };
            ports.iter().map(port).collect()
        };
        let (inputs, outputs) = (ports(compiled.inputs()), ports(compiled.outputs()));
        let reshaped: Mutex<HashMap<Vec<Shape>, CompiledModel>> = Mutex::default();
        let compute = move |tensors: Vec<Tensor>| {
            let shapes: Vec<Shape> = tensors.iter().map(Tensor::shape).collect();
            let fits = compiled.inputs().iter().zip(&shapes).all(|(port, shape)| port.shape.admits(shape));
            let model = match fits {
                true => compiled.clone(),
                false => reshaped_to(&model, &shapes, &mut reshaped.lock().unwrap())?,
            };
            let inputs: Vec<_> = model.inputs().iter().map(|port| port.name().to_owned()).zip(&tensors).collect();
            let request = model.create_infer_request().map_err(|error| error.to_string())?;
            for (name, tensor) in inputs {
                request.set_tensor(&*name, tensor).map_err(|error| error.to_string())?;
            }
            request.infer(()).map_err(|error| error.to_string())?;
            let outputs = model.outputs().iter().map(|port| Ok((port.name().to_owned(), request.tensor(port.name())?)));
            outputs.collect::<roiflow::runtime::Result<_>>().map_err(|error| error.to_string())
        };
        Self { name: name.to_owned(), inputs, outputs, compute: Box::new(compute) }
    }
}

fn reshaped_to(model: &Model, shapes: &[Shape], known: &mut HashMap<Vec<Shape>, CompiledModel>) -> Result<CompiledModel, String> {
    if let Some(known) = known.get(shapes) {
        return Ok(known.clone());
    }
    let compile = || {
        let model = model.reshape(shapes.iter().enumerate().map(|(idx, shape)| (idx, PartialShape::from(*shape))))?;
        devices::core().compile_model(&model, "CPU", &Config::default())
    };
    let compiled = compile().map_err(|error| error.to_string())?;
    known.insert(shapes.to_vec(), compiled.clone());
    Ok(compiled)
}

/// How the server handles calls of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behavior {
    Well,
    /// Calls wait until the behavior changes.
    Holds,
    /// Answers UNAVAILABLE, or 503.
    Unavailable,
    /// Answers INTERNAL, or 500, after it computed.
    Internal,
    /// Says that the model is not ready, and refuses calls.
    NotReady,
}

/// The state of the server, which tests read and change.
pub struct State {
    models: Vec<Served>,
    behavior: watch::Sender<Behavior>,
    /// Number of calls that arrived, were computed, and were canceled by the client.
    pub n_calls: AtomicUsize,
    pub n_computed: AtomicUsize,
    pub n_canceled: AtomicUsize,
    /// The types and numbers of bytes of the inputs of the latest call.
    pub latest_inputs: Mutex<Vec<(String, usize)>>,
    /// The login that the server requires, as in `Bearer TOKEN`.
    pub required_login: Mutex<Option<String>>,
    /// Whether outputs are typed contents or JSON, not raw bytes.
    pub types_outputs: AtomicBool,
    /// Whether the server does not know the ports of its models.
    pub hides_ports: AtomicBool,
    /// Whether the server has the extension "system shared memory".
    pub has_shared_memory: AtomicBool,
    /// The regions of shared memory that clients registered, by name.
    pub regions: Mutex<HashMap<String, Region>>,
    /// Number of bytes of tensors that were read from shared memory, and written to it.
    pub n_shared: Mutex<(usize, usize)>,
}

/// A region of shared memory, which the server has opened.
pub struct Region {
    file: File,
    n_bytes: u64,
}

/// A running server. Dropping it kills it.
pub struct Server {
    pub state: Arc<State>,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Server {
    /// Starts a server on a free port.
    pub fn start(models: Vec<Served>) -> Self {
        let state = State {
            models,
            behavior: watch::Sender::new(Behavior::Well),
            n_calls: AtomicUsize::new(0),
            n_computed: AtomicUsize::new(0),
            n_canceled: AtomicUsize::new(0),
            latest_inputs: Mutex::default(),
            required_login: Mutex::default(),
            types_outputs: AtomicBool::new(false),
            hides_ports: AtomicBool::new(false),
            has_shared_memory: AtomicBool::new(true),
            regions: Mutex::default(),
            n_shared: Mutex::default(),
        };
        let mut server = Self { state: Arc::new(state), address: ([127, 0, 0, 1], 0).into(), runtime: None };
        server.revive();
        server
    }

    /// Returns the address of a model, such as `grpc://127.0.0.1:8001/double`.
    pub fn grpc(&self, model: &str) -> String {
        format!("grpc://{}/{model}", self.address)
    }

    pub fn http(&self, model: &str) -> String {
        format!("http://{}/{model}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn behave(&self, behavior: Behavior) {
        self.state.behavior.send_replace(behavior);
    }

    /// Closes the port and all connections at once, as when the process dies.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        self.state.regions.lock().unwrap().clear();
    }

    /// Starts a killed server again, on the same port.
    pub fn revive(&mut self) {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_io().enable_time().build().unwrap();
        let address = self.address;
        let listener = runtime.block_on(async {
            // The port of a killed server is free as soon as its tasks are gone.
            for _ in 0..100 {
                match tokio::net::TcpListener::bind(address).await {
                    Ok(listener) => return listener,
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
                }
            }
            panic!("the port {address} stays in use");
        });
        self.address = listener.local_addr().unwrap();
        let app = Router::new()
            .route("/v2/models/{model}", get(metadata))
            .route("/v2/models/{model}/ready", get(ready))
            .route("/v2/models/{model}/infer", post(infer))
            .route("/v2/systemsharedmemory/region/{name}/{change}", post(change_region))
            .fallback(grpc)
            .with_state(self.state.clone());
        runtime.spawn(async move {
            // Without TCP_NODELAY, an answer would wait 40 ms for a delayed acknowledgment of the client.
            let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
            let server = tonic::transport::Server::builder().accept_http1(true);
            server.serve_with_incoming(app, incoming).await.unwrap();
        });
        self.runtime = Some(runtime);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl State {
    pub fn count(count: &AtomicUsize) -> usize {
        count.load(Ordering::Acquire)
    }

    fn model(&self, name: &str) -> Result<&Served, Status> {
        self.models.iter().find(|model| model.name == name).ok_or_else(|| Status::not_found(format!("no model `{name}` on this server")))
    }

    fn check_login(&self, headers: &HeaderMap) -> Result<(), Status> {
        let required = self.required_login.lock().unwrap();
        let got = headers.get("authorization").and_then(|value| value.to_str().ok());
        match &*required {
            Some(required) if got != Some(required) => Err(Status::unauthenticated("a login is required")),
            _ => Ok(()),
        }
    }

    fn is_ready(&self, name: &str) -> bool {
        *self.behavior.borrow() != Behavior::NotReady && self.model(name).is_ok()
    }

    fn metadata(&self, name: &str) -> Result<Metadata, Status> {
        let model = self.model(name)?;
        let ports = |ports: &[TensorOf]| if self.hides_ports.load(Ordering::Acquire) { Vec::new() } else { ports.to_vec() };
        Ok(Metadata {
            name: name.to_owned(),
            versions: vec!["1".to_owned()],
            platform: "roiflow_tests".to_owned(),
            inputs: ports(&model.inputs),
            outputs: ports(&model.outputs),
        })
    }

    async fn infer(self: Arc<Self>, name: String, inputs: Vec<(TensorOf, Vec<u8>)>) -> Result<Outputs, Status> {
        self.n_calls.fetch_add(1, Ordering::AcqRel);
        *self.latest_inputs.lock().unwrap() = inputs.iter().map(|(input, raw)| (input.datatype.clone(), raw.len())).collect();
        let mut canceled = CountsOnDrop { count: Some(&self.n_canceled) };
        let mut behavior = self.behavior.subscribe();
        let behavior = *behavior.wait_for(|behavior| *behavior != Behavior::Holds).await.unwrap();
        if matches!(behavior, Behavior::Unavailable | Behavior::NotReady) {
            canceled.count = None;
            return Err(Status::unavailable("the server has no capacity"));
        }
        let state = self.clone();
        let computing = tokio::task::spawn_blocking(move || {
            let model = state.model(&name)?;
            let tensors = inputs.iter().map(|(input, raw)| tensor_of(input, raw)).collect::<Result<Vec<_>, _>>()?;
            let known = model.inputs.len() == tensors.len()
                && model.inputs.iter().zip(&inputs).all(|(port, (input, _))| port.name == input.name && port.datatype == input.datatype);
            if !known {
                return Err(Status::invalid_argument("other inputs than those of the model"));
            }
            let outputs = (model.compute)(tensors).map_err(Status::invalid_argument)?;
            state.n_computed.fetch_add(1, Ordering::AcqRel);
            Ok(outputs)
        });
        let computed = computing.await.unwrap();
        canceled.count = None;
        if behavior == Behavior::Internal {
            return Err(Status::internal("the engine of the server failed: 100 % \u{20ac}"));
        }
        computed
    }
}

/// The place of a tensor in shared memory.
#[derive(Clone)]
struct Shared {
    region: String,
    offset: u64,
    n_bytes: usize,
}

impl Shared {
    fn of(parameters: &HashMap<String, Parameter>) -> Option<Self> {
        let number = |key: &str| match parameters.get(key)?.choice.as_ref()? {
            ParameterChoice::Int64(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let Some(ParameterChoice::String(region)) = &parameters.get("shared_memory_region")?.choice else { return None };
        let n_bytes = number("shared_memory_byte_size")? as usize;
        Some(Self { region: region.clone(), offset: number("shared_memory_offset").unwrap_or(0), n_bytes })
    }
}

impl State {
    fn register(&self, asked: &Register) -> Result<Empty, Status> {
        if !self.has_shared_memory.load(Ordering::Acquire) {
            return Err(Status::unimplemented("this server has no shared memory"));
        }
        let mut regions = self.regions.lock().unwrap();
        if regions.contains_key(&asked.name) {
            return Err(Status::already_exists(format!("shared memory region '{}' already in manager", asked.name)));
        }
        let path = Path::new("/dev/shm").join(asked.key.strip_prefix('/').unwrap_or(&asked.key));
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file =
            opened.map_err(|error| Status::invalid_argument(format!("Unable to open shared memory region: '{}': {error}", asked.key)))?;
        if file.metadata().unwrap().len() < asked.offset + asked.byte_size {
            return Err(Status::invalid_argument("the shared memory is too small"));
        }
        regions.insert(asked.name.clone(), Region { file, n_bytes: asked.byte_size });
        Ok(Empty {})
    }

    fn unregister(&self, asked: &Named) -> Empty {
        self.regions.lock().unwrap().remove(&asked.name);
        Empty {}
    }

    /// Runs `access` on the file of a region that has the place.
    fn with_region<R>(&self, place: &Shared, access: impl FnOnce(&File) -> std::io::Result<R>) -> Result<R, Status> {
        let regions = self.regions.lock().unwrap();
        let unknown = || Status::invalid_argument(format!("Unable to find shared memory region: '{}'", place.region));
        let region = regions.get(&place.region).ok_or_else(unknown)?;
        if place.offset + place.n_bytes as u64 > region.n_bytes {
            return Err(Status::invalid_argument("a tensor is outside of its region"));
        }
        access(&region.file).map_err(|error| Status::internal(error.to_string()))
    }

    fn read_shared(&self, place: &Shared) -> Result<Vec<u8>, Status> {
        let mut values = vec![0; place.n_bytes];
        self.with_region(place, |file| file.read_exact_at(&mut values, place.offset))?;
        self.n_shared.lock().unwrap().0 += values.len();
        Ok(values)
    }

    /// Writes an output to the place that the client asked for. Returns its description, which does not name the place, as that of Triton.
    fn write_shared(&self, place: &Shared, name: &str, tensor: &Tensor) -> Result<TensorOf, Status> {
        let raw = raw_of(tensor);
        if raw.len() > place.n_bytes {
            return Err(Status::invalid_argument("the place of an output is too small"));
        }
        self.with_region(place, |file| file.write_all_at(&raw, place.offset))?;
        self.n_shared.lock().unwrap().1 += raw.len();
        Ok(described(name, tensor))
    }
}

/// Counts a call whose future is dropped before its end.
struct CountsOnDrop<'a> {
    count: Option<&'a AtomicUsize>,
}

impl Drop for CountsOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.count {
            count.fetch_add(1, Ordering::AcqRel);
        }
    }
}

fn tensor_of(input: &TensorOf, raw: &[u8]) -> Result<Tensor, Status> {
    let wrong = |why: String| Status::invalid_argument(format!("input `{}`: {why}", input.name));
    let element = TYPES.iter().find(|(name, _)| *name == input.datatype).ok_or_else(|| wrong(format!("type {}", input.datatype)))?.1;
    let shape = Shape::new(&input.shape.iter().map(|&extent| extent as usize).collect::<Vec<_>>());
    let tensor = Tensor::new(element, shape).map_err(|error| wrong(error.to_string()))?;
    tensor.bytes_mut().and_then(|mut bytes| bytes.copy_all_from_dense(raw)).map_err(|error| wrong(error.to_string()))?;
    Ok(tensor)
}

fn raw_of(tensor: &Tensor) -> Vec<u8> {
    let bytes = tensor.bytes().unwrap();
    let mut raw = vec![0; bytes.layout().dense_bytes()];
    bytes.copy_all_to_dense(&mut raw).unwrap();
    raw
}

fn described(name: &str, tensor: &Tensor) -> TensorOf {
    let shape = tensor.shape().iter().map(|&extent| extent as i64).collect();
    TensorOf { name: name.to_owned(), datatype: name_of(tensor.element()), shape, ..TensorOf::default() }
}

/// A method of gRPC.
struct Method<F>(F);

impl<M: Message + Default, R, F, A> UnaryService<M> for Method<F>
where
    F: Fn(M) -> A,
    A: Future<Output = Result<R, Status>> + Send + 'static,
{
    type Response = R;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<R>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<M>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async move { answer.await.map(tonic::Response::new) })
    }
}

async fn grpc(AppState(state): AppState<Arc<State>>, request: Request) -> Result<axum::http::Response<tonic::body::Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let login = state.check_login(request.headers());
    let method = path.strip_prefix("/inference.GRPCInferenceService/").unwrap_or_default().to_owned();
    if let Err(status) = login {
        return Ok(status.into_http());
    }
    Ok(match &*method {
        "ModelReady" => {
            let ready = |asked: Named| {
                let ready = state.is_ready(&asked.name);
                async move { Ok(Ready { ready }) }
            };
            Grpc::new(ProstCodec::<Ready, Named>::default()).unary(Method(ready), request).await
        }
        "ModelMetadata" => {
            let metadata = |asked: Named| {
                let metadata = state.metadata(&asked.name);
                async move { metadata }
            };
            Grpc::new(ProstCodec::<Metadata, Named>::default()).unary(Method(metadata), request).await
        }
        "SystemSharedMemoryRegister" => {
            let register = |asked: Register| {
                let registered = state.register(&asked);
                async move { registered }
            };
            Grpc::new(ProstCodec::<Empty, Register>::default()).unary(Method(register), request).await
        }
        "SystemSharedMemoryUnregister" => {
            let unregister = |asked: Named| {
                let gone = state.unregister(&asked);
                async move { Ok(gone) }
            };
            Grpc::new(ProstCodec::<Empty, Named>::default()).unary(Method(unregister), request).await
        }
        "ModelInfer" => {
            let types = state.types_outputs.load(Ordering::Acquire);
            let infer = |call: InferRequest| {
                let state = state.clone();
                async move {
                    let InferRequest { model_name, inputs, outputs: requested, raw_input_contents, .. } = call;
                    // Inputs in shared memory have no raw contents.
                    let mut raw = raw_input_contents.into_iter();
                    let values = inputs.into_iter().map(|input| match Shared::of(&input.parameters) {
                        Some(place) => Ok((input, state.read_shared(&place)?)),
                        None => Ok((input, raw.next().ok_or_else(|| Status::invalid_argument("expected raw contents for each input"))?)),
                    });
                    let values = values.collect::<Result<Vec<_>, Status>>()?;
                    if raw.next().is_some() {
                        return Err(Status::invalid_argument("expected raw contents only for inputs outside of shared memory"));
                    }
                    let outputs = state.clone().infer(model_name.clone(), values).await?;
                    let place =
                        |name: &str| requested.iter().find(|output| output.name == name).and_then(|output| Shared::of(&output.parameters));
                    if outputs.iter().any(|(name, _)| place(name).is_some()) {
                        let written = outputs.iter().map(|(name, tensor)| match place(name) {
                            Some(place) => state.write_shared(&place, name, tensor).map(|port| (port, Vec::new())),
                            None => Ok((described(name, tensor), raw_of(tensor))),
                        });
                        let (outputs, raw_output_contents) = written.collect::<Result<Vec<_>, Status>>()?.into_iter().unzip();
                        return Ok(InferResponse { model_name, outputs, raw_output_contents });
                    }
                    let typed = |(name, tensor): &(String, Tensor)| TensorOf {
                        contents: types.then(|| Contents { fp32: tensor.view::<f32>().unwrap().to_vec() }),
                        ..described(name, tensor)
                    };
                    Ok(InferResponse {
                        model_name,
                        outputs: outputs.iter().map(typed).collect(),
                        raw_output_contents: if types { Vec::new() } else { outputs.iter().map(|(_, tensor)| raw_of(tensor)).collect() },
                    })
                }
            };
            let codec = ProstCodec::<InferResponse, InferRequest>::default();
            Grpc::new(codec).max_decoding_message_size(1 << 30).max_encoding_message_size(1 << 30).unary(Method(infer), request).await
        }
        _ => Status::unimplemented(path).into_http(),
    })
}

/// The status of HTTP for a status of gRPC, with the text as JSON.
fn http_error(status: &Status) -> Response {
    let code = match status.code() {
        tonic::Code::InvalidArgument => StatusCode::BAD_REQUEST,
        tonic::Code::NotFound => StatusCode::NOT_FOUND,
        tonic::Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        tonic::Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        tonic::Code::AlreadyExists => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (code, serde_json::json!({ "error": status.message() }).to_string()).into_response()
}

async fn ready(AppState(state): AppState<Arc<State>>, UrlPath(model): UrlPath<String>, headers: HeaderMap) -> Response {
    match state.check_login(&headers) {
        Err(status) => http_error(&status),
        Ok(()) if state.is_ready(&model) => StatusCode::OK.into_response(),
        Ok(()) => (StatusCode::BAD_REQUEST, "not ready").into_response(),
    }
}

async fn metadata(AppState(state): AppState<Arc<State>>, UrlPath(model): UrlPath<String>, headers: HeaderMap) -> Response {
    let read = state.check_login(&headers).and_then(|()| state.metadata(&model));
    let ports = |ports: &[TensorOf]| {
        let port = |port: &TensorOf| serde_json::json!({ "name": port.name, "datatype": port.datatype, "shape": port.shape });
        ports.iter().map(port).collect::<Vec<_>>()
    };
    match read {
        Err(status) => http_error(&status),
        Ok(read) => {
            let (inputs, outputs) = (ports(&read.inputs), ports(&read.outputs));
            let json = serde_json::json!({
                "name": read.name, "versions": read.versions, "platform": read.platform, "inputs": inputs, "outputs": outputs,
            });
            json.to_string().into_response()
        }
    }
}

async fn change_region(
    AppState(state): AppState<Arc<State>>,
    UrlPath((name, change)): UrlPath<(String, String)>,
    body: body::Bytes,
) -> Response {
    let asked: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let number = |key: &str| asked[key].as_u64().unwrap_or(0);
    let changed = match &*change {
        "register" => {
            let key = asked["key"].as_str().unwrap().to_owned();
            state.register(&Register { name, key, offset: number("offset"), byte_size: number("byte_size") })
        }
        _ => Ok(state.unregister(&Named { name, version: String::new() })),
    };
    match changed {
        Ok(_) => StatusCode::OK.into_response(),
        Err(status) if status.code() == tonic::Code::Unimplemented => StatusCode::NOT_FOUND.into_response(),
        Err(status) => http_error(&status),
    }
}

/// Returns the parameters of a tensor in JSON.
fn parameters_of(json: &serde_json::Value) -> HashMap<String, Parameter> {
    let parameter = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Some(ParameterChoice::String(text.clone())),
        serde_json::Value::Number(number) => Some(ParameterChoice::Int64(number.as_i64()?)),
        _ => None,
    };
    let parameters = json["parameters"].as_object().into_iter().flatten();
    parameters.map(|(key, value)| (key.clone(), Parameter { choice: parameter(value) })).collect()
}

async fn infer(AppState(state): AppState<Arc<State>>, UrlPath(model): UrlPath<String>, request: Request) -> Response {
    let types = state.types_outputs.load(Ordering::Acquire);
    let answered = async {
        state.check_login(request.headers())?;
        let length = request.headers().get(JSON_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        let whole = body::to_bytes(request.into_body(), 1 << 30).await.map_err(|error| Status::internal(error.to_string()))?;
        let (json, mut binary) = whole.split_at(length.unwrap_or(whole.len()));
        let json: serde_json::Value = serde_json::from_slice(json).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let mut inputs = Vec::new();
        for input in json["inputs"].as_array().into_iter().flatten() {
            let raw = match Shared::of(&parameters_of(input)) {
                Some(place) => state.read_shared(&place)?,
                None => {
                    let n_bytes = input["parameters"]["binary_data_size"].as_u64().unwrap() as usize;
                    let (raw, rest) = binary.split_at(n_bytes);
                    binary = rest;
                    raw.to_vec()
                }
            };
            let shape = input["shape"].as_array().unwrap().iter().map(|extent| extent.as_i64().unwrap()).collect();
            let text = |key: &str| input[key].as_str().unwrap().to_owned();
            inputs.push((TensorOf { name: text("name"), datatype: text("datatype"), shape, ..TensorOf::default() }, raw));
        }
        let outputs = state.clone().infer(model, inputs).await?;
        let place = |name: &str| {
            let requested = json["outputs"].as_array().into_iter().flatten().find(|output| output["name"] == name)?;
            Shared::of(&parameters_of(requested))
        };
        let written = outputs.into_iter().map(|(name, tensor)| {
            let place = place(&name);
            if let Some(place) = &place {
                state.write_shared(place, &name, &tensor)?;
            }
            Ok((name, tensor, place))
        });
        written.collect::<Result<Vec<_>, Status>>()
    };
    match answered.await {
        Err(status) => http_error(&status),
        Ok(outputs) => {
            let mut binary = Vec::new();
            let described = outputs.iter().map(|(name, tensor, place)| {
                let port = described(name, tensor);
                let mut json = serde_json::json!({ "name": port.name, "datatype": port.datatype, "shape": port.shape });
                if let Some(place) = place {
                    json["parameters"] = serde_json::json!({
                        "shared_memory_region": place.region, "shared_memory_offset": place.offset, "shared_memory_byte_size": place.n_bytes,
                    });
                } else if types {
                    json["data"] = tensor.view::<f32>().unwrap().to_vec().into();
                } else {
                    let raw = raw_of(tensor);
                    json["parameters"] = serde_json::json!({ "binary_data_size": raw.len() });
                    binary.extend(raw);
                }
                json
            });
            let mut body = serde_json::json!({ "outputs": described.collect::<Vec<_>>() }).to_string().into_bytes();
            let length = body.len().to_string();
            body.extend(binary);
            match types {
                true => body.into_response(),
                false => ([(JSON_LENGTH, length)], body).into_response(),
            }
        }
    }
}
