//! Calls over HTTP/1.1: JSON, with the values of tensors as binary data after the JSON text (the binary tensor data extension).

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request};
use http_body::{Body, Frame, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::task::AbortHandle;

use super::call::{Call, Response};
use super::datatype::Output;
use super::failure::{Blame, Failure, of_http_status};
use super::grpc::{Life, MAX_RESPONSE_BYTES};
use super::options::{Address, Options};
use super::protocol::{InferHead, ModelMetadataResponse, Parameter, ParameterValue, RegisterRequest, TensorMetadata, UnregisterRequest};
use super::shared_memory::SharedOutputs;
use super::socket;
use crate::runtime::ErrorKind;

/// The header with the length of the JSON text. The binary data follow the text.
const JSON_LENGTH: &str = "inference-header-content-length";

/// A server that is called over HTTP/1.1. Each call in flight has its own connection. Clones share the idle connections.
#[derive(Clone)]
pub(crate) struct Rest(Arc<Shared>);

struct Shared {
    address: Address,
    /// The path of the model, such as `/v2/models/yolo`.
    path: String,
    authorization: Option<HeaderValue>,
    tls: Option<Arc<ClientConfig>>,
    idle: Mutex<Vec<Idle>>,
    /// The tasks that read and write the sockets of all open connections.
    drivers: Mutex<Vec<AbortHandle>>,
    life: Arc<Life>,
    /// How the server takes inputs: [`FORM_UNKNOWN`], [`FORM_BINARY`] or [`FORM_JSON`].
    form: AtomicU8,
}

const FORM_UNKNOWN: u8 = 0;
const FORM_BINARY: u8 = 1;
const FORM_JSON: u8 = 2;

struct Idle {
    sender: SendRequest<Parts>,
}

impl Rest {
    /// Describes a server. A connection is opened by the first call.
    pub(crate) fn new(address: &Address, options: &Options, authorization: Option<HeaderValue>, tls: Option<Arc<ClientConfig>>) -> Self {
        let version = if options.version.is_empty() { String::new() } else { format!("/versions/{}", options.version) };
        let path = format!("{}/v2/models/{}{version}", address.prefix, options.model);
        Self(Arc::new(Shared {
            address: address.clone(),
            path,
            authorization,
            tls,
            idle: Mutex::default(),
            drivers: Mutex::default(),
            life: Arc::default(),
            form: AtomicU8::new(FORM_UNKNOWN),
        }))
    }

    pub(crate) fn life(&self) -> &Life {
        &self.0.life
    }

    /// Closes all connections at once.
    pub(crate) fn kill(&self) {
        self.0.idle.lock().unwrap().clear();
        self.0.drivers.lock().unwrap().drain(..).for_each(|driver| driver.abort());
        self.0.life.end();
    }

    /// Asks whether the server can run the model.
    pub(crate) async fn is_ready(&self, timeout: Duration) -> Result<bool, Failure> {
        let path = self.of_model("/ready");
        let asked = self.send(Method::GET, &path, None, Parts::default());
        match limited(timeout, asked).await {
            Ok(_) => Ok(true),
            // Servers answer 400 or 404 for a model that is not loaded.
            Err(failure) if failure.blames == Blame::Nothing && failure.kind != ErrorKind::Config => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn of_model(&self, path: &str) -> String {
        format!("{}{path}", self.0.path)
    }

    /// Registers a region of shared memory with the server.
    pub(crate) async fn register(&self, request: &RegisterRequest) -> Result<(), Failure> {
        let RegisterRequest { name, key, offset, byte_size } = request;
        let json = serde_json::json!({ "key": key, "offset": offset, "byte_size": byte_size });
        self.change_region(name, "register", Bytes::from(json.to_string())).await
    }

    /// Ends the registration of a region.
    pub(crate) async fn unregister(&self, request: &UnregisterRequest) -> Result<(), Failure> {
        self.change_region(&request.name, "unregister", Bytes::from_static(b"{}")).await
    }

    async fn change_region(&self, name: &str, change: &str, json: Bytes) -> Result<(), Failure> {
        let path = format!("{}/v2/systemsharedmemory/region/{name}/{change}", self.0.address.prefix);
        self.send(Method::POST, &path, None, Parts(VecDeque::from([json]))).await.map(|_empty| ())
    }

    /// Asks for the inputs and outputs of the model.
    pub(crate) async fn metadata(&self, timeout: Duration) -> Result<ModelMetadataResponse, Failure> {
        #[derive(Deserialize)]
        struct Metadata {
            #[serde(default)]
            name: String,
            #[serde(default)]
            versions: Vec<String>,
            #[serde(default)]
            platform: String,
            #[serde(default)]
            inputs: Vec<Tensor>,
            #[serde(default)]
            outputs: Vec<Tensor>,
        }
        #[derive(Deserialize)]
        struct Tensor {
            name: String,
            datatype: String,
            shape: Vec<i64>,
        }
        let (_, body) = limited(timeout, self.send(Method::GET, &self.0.path, None, Parts::default())).await?;
        let read: Metadata = serde_json::from_slice(&body).map_err(not_kserve)?;
        let tensors = |tensors: Vec<Tensor>| {
            let tensors = tensors.into_iter();
            tensors.map(|Tensor { name, datatype, shape }| TensorMetadata { name, datatype, shape }).collect()
        };
        Ok(ModelMetadataResponse {
            name: read.name,
            versions: read.versions,
            platform: read.platform,
            inputs: tensors(read.inputs),
            outputs: tensors(read.outputs),
        })
    }

    /// Runs the model. Servers without binary data, such as MLServer, refuse the first call. It is then repeated with JSON values. If that
    /// succeeds, all later calls use JSON values.
    pub(crate) async fn infer(&self, call: &Call) -> Result<Response, Failure> {
        let form = self.0.form.load(Ordering::Acquire);
        if call.placement().is_some() {
            return self.infer_in(call, true).await;
        }
        if form != FORM_JSON {
            match self.infer_in(call, true).await {
                Ok(response) => {
                    self.0.form.store(FORM_BINARY, Ordering::Release);
                    return Ok(response);
                }
                Err(failure) if form == FORM_UNKNOWN && matches!(failure.kind, ErrorKind::Tensor | ErrorKind::Device) => {
                    return match self.infer_in(call, false).await {
                        Ok(response) => {
                            self.0.form.store(FORM_JSON, Ordering::Release);
                            Ok(response)
                        }
                        // Both forms failed, so JSON is not the reason. The error of the binary form is more informative.
                        Err(_) => Err(failure),
                    };
                }
                Err(failure) => return Err(failure),
            }
        }
        self.infer_in(call, false).await
    }

    async fn infer_in(&self, call: &Call, is_binary: bool) -> Result<Response, Failure> {
        let (json, contents) = call.as_json(is_binary)?;
        let length = json.len();
        let parts = Parts(std::iter::once(json).chain(contents).filter(|part| !part.is_empty()).collect());
        let (headers, mut body) = self.send(Method::POST, &self.of_model("/infer"), Some(length).filter(|_| is_binary), parts).await?;
        let length = headers.get(JSON_LENGTH).and_then(|length| length.to_str().ok()).and_then(|length| length.parse().ok());
        let length = length.unwrap_or(body.len());
        if length > body.len() {
            return Err(Failure::protocol(format!("expected {length} bytes of JSON, got {}", body.len())));
        }
        let json = body.split_to(length);
        Ok(Response::Http { json, binary: body })
    }

    /// Sends a request, and returns the headers and the body of a response with the status 200.
    async fn send(&self, method: Method, path: &str, json_length: Option<usize>, parts: Parts) -> Result<(HeaderMap, Bytes), Failure> {
        let n_bytes: usize = parts.0.iter().map(Bytes::len).sum();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.0.address.authority())
            .header("user-agent", concat!("roiflow/", env!("CARGO_PKG_VERSION")));
        if n_bytes > 0 {
            let kind = if json_length.is_some() { "application/octet-stream" } else { "application/json" };
            request = request.header("content-type", kind).header("content-length", n_bytes);
        }
        if let Some(length) = json_length {
            request = request.header(JSON_LENGTH, length);
        }
        let mut request = request.body(parts).map_err(|error| Failure::protocol(format!("invalid request: {error}")))?;
        if let Some(authorization) = &self.0.authorization {
            request.headers_mut().insert(http::header::AUTHORIZATION, authorization.clone());
        }
        let (response, sender) = loop {
            let (mut sender, was_idle) = self.sender().await?;
            match sender.try_send_request(request).await {
                Ok(response) => break (response, sender),
                // `try_send_request` returns the request if no byte of it was sent, for example because the server has closed an idle
                // connection.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if was_idle => request = unsent,
                    Some(_) => return Err(Failure::unavailable(format!("cannot send a call: {}", error.error()))),
                    None => return Err(Failure { blames: Blame::Server, ..Failure::broken(error.error()) }),
                },
            }
        };
        let (head, body) = response.into_parts();
        let body = collected(body).await?;
        // After an error, some servers do not read the rest of the request. So only connections of successful calls are used again.
        match head.status.as_u16() {
            200 => {
                self.keep(sender);
                Ok((head.headers, body))
            }
            status => Err(of_http_status(status, &error_of(&body))),
        }
    }

    /// Returns an idle connection, or opens one. Also returns whether it was idle.
    async fn sender(&self) -> Result<(SendRequest<Parts>, bool), Failure> {
        while let Some(mut idle) = self.take_idle() {
            if idle.sender.ready().await.is_ok() {
                return Ok((idle.sender, true));
            }
        }
        let socket = socket::open(&self.0.address, self.0.tls.as_ref()).await?;
        let opened = http1::handshake(TokioIo::new(socket)).await;
        let (sender, connection) = opened.map_err(|error| Failure::unavailable(format!("cannot connect: {error}")))?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!("the connection to an inference server ended: {error}");
            }
        });
        let mut drivers = self.0.drivers.lock().unwrap();
        drivers.retain(|driver| !driver.is_finished());
        drivers.push(driver.abort_handle());
        Ok((sender, false))
    }

    fn take_idle(&self) -> Option<Idle> {
        let mut idle = self.0.idle.lock().unwrap();
        idle.retain(|idle| !idle.sender.is_closed());
        idle.pop()
    }

    fn keep(&self, sender: SendRequest<Parts>) {
        if !self.0.life.is_over() {
            self.0.idle.lock().unwrap().push(Idle { sender });
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.life.end();
    }
}

async fn limited<T>(timeout: Duration, asked: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match tokio::time::timeout(timeout, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(Failure::timeout(format!("expected an answer within {} ms, got none", timeout.as_millis()))),
    }
}

/// A body of several parts, which are sent without a copy.
#[derive(Default)]
pub(crate) struct Parts(VecDeque<Bytes>);

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}

async fn collected(mut body: hyper::body::Incoming) -> Result<Bytes, Failure> {
    let broken = |error: hyper::Error| Failure { blames: Blame::Server, ..Failure::broken(error) };
    let mut whole = BytesMut::new();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        if whole.len() + data.len() > MAX_RESPONSE_BYTES {
            return Err(Failure::protocol(format!("the response is too large: expected at most {MAX_RESPONSE_BYTES} bytes")));
        }
        if whole.is_empty() && body.is_end_stream() {
            return Ok(data);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// Returns the text of an error in JSON, or the beginning of the body.
fn error_of(body: &[u8]) -> String {
    let error = serde_json::from_slice::<Value>(body).ok().and_then(|json| Some(json.get("error")?.as_str()?.to_owned()));
    error.unwrap_or_else(|| String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned())
}

fn not_kserve(error: serde_json::Error) -> Failure {
    Failure::protocol(format!("expected JSON of KServe v2: {error}"))
}

/// Returns the JSON text of a call whose inputs are values in JSON.
///
/// # Errors
/// Fails for types that JSON cannot express: 16-bit floating point.
pub(crate) fn text_of(head: &InferHead, contents: &[Bytes]) -> Result<Bytes, Failure> {
    let inputs = head.inputs.iter().zip(contents).map(|(input, content)| {
        let data = json_of(content, &input.datatype).ok_or_else(|| {
            let message = format!("input `{}`: the server takes no binary data, and JSON has no {}", input.name, input.datatype);
            Failure::new(ErrorKind::Unsupported, message)
        })?;
        Ok(serde_json::json!({ "name": input.name, "datatype": input.datatype, "shape": input.shape, "data": data }))
    });
    let outputs = head.outputs.iter().map(|output| serde_json::json!({ "name": output.name }));
    let json = serde_json::json!({ "inputs": inputs.collect::<Result<Vec<_>, Failure>>()?, "outputs": outputs.collect::<Vec<_>>() });
    Ok(Bytes::from(json.to_string()))
}

/// Returns the values of a tensor as a flat JSON list. Returns `None` if JSON cannot express the type.
fn json_of(content: &[u8], datatype: &str) -> Option<Value> {
    fn list<const N: usize, T: Into<Value>>(content: &[u8], value: impl Fn([u8; N]) -> T) -> Option<Value> {
        Some(content.as_chunks().0.iter().map(|bytes| value(*bytes).into()).collect::<Vec<Value>>().into())
    }
    match datatype {
        "BOOL" => list(content, |[byte]: [u8; 1]| byte != 0),
        "UINT8" => list(content, u8::from_ne_bytes),
        "INT8" => list(content, i8::from_ne_bytes),
        "UINT16" => list(content, u16::from_ne_bytes),
        "INT16" => list(content, i16::from_ne_bytes),
        "UINT32" => list(content, u32::from_ne_bytes),
        "INT32" => list(content, i32::from_ne_bytes),
        "UINT64" => list(content, u64::from_ne_bytes),
        "INT64" => list(content, i64::from_ne_bytes),
        "FP32" => list(content, f32::from_ne_bytes),
        "FP64" => list(content, f64::from_ne_bytes),
        _ => None,
    }
}

/// Returns the JSON text of a call whose inputs are binary data or in shared memory.
pub(crate) fn head_of(head: &InferHead, contents: &[Bytes]) -> Bytes {
    #[derive(Serialize)]
    struct Head<'a> {
        inputs: Vec<Input<'a>>,
        outputs: Vec<Requested<'a>>,
    }
    #[derive(Serialize)]
    struct Input<'a> {
        name: &'a str,
        datatype: &'a str,
        shape: &'a [i64],
        parameters: Parameters,
    }
    #[derive(Serialize)]
    struct Requested<'a> {
        name: &'a str,
        parameters: Parameters,
    }
    type Parameters = serde_json::Map<String, Value>;
    let parameters = |shared: &HashMap<String, Parameter>, otherwise: (&str, Value)| match shared.is_empty() {
        true => Parameters::from_iter([(otherwise.0.to_owned(), otherwise.1)]),
        false => shared.iter().map(|(key, parameter)| (key.clone(), value_of(parameter))).collect(),
    };
    let inputs = head.inputs.iter().enumerate().map(|(idx, input)| Input {
        name: &input.name,
        datatype: &input.datatype,
        shape: &input.shape,
        parameters: parameters(&input.parameters, ("binary_data_size", contents.get(idx).map_or(0, Bytes::len).into())),
    });
    let outputs = head
        .outputs
        .iter()
        .map(|output| Requested { name: &output.name, parameters: parameters(&output.parameters, ("binary_data", true.into())) });
    let written = serde_json::to_vec(&Head { inputs: inputs.collect(), outputs: outputs.collect() });
    Bytes::from(written.expect("names and numbers are valid JSON"))
}

fn value_of(parameter: &Parameter) -> Value {
    match &parameter.value {
        None => Value::Null,
        Some(ParameterValue::Number(number)) => (*number).into(),
        Some(ParameterValue::Text(text)) => text.as_str().into(),
    }
}

/// Reads the outputs of a response.
pub(crate) fn outputs_of(json: &[u8], mut binary: Bytes, shared: SharedOutputs<'_>) -> Result<Vec<Output>, Failure> {
    #[derive(Deserialize)]
    struct Head {
        outputs: Vec<Tensor>,
    }
    #[derive(Deserialize)]
    struct Tensor {
        name: String,
        datatype: String,
        shape: Vec<i64>,
        #[serde(default)]
        parameters: Option<serde_json::Map<String, Value>>,
        #[serde(default)]
        data: Option<Value>,
    }
    let head: Head = serde_json::from_slice(json).map_err(not_kserve)?;
    let outputs = head.outputs.into_iter().map(|tensor| {
        let parameters = tensor.parameters.unwrap_or_default();
        let n_bytes = parameters.get("binary_data_size").and_then(Value::as_u64).map(|n_bytes| n_bytes as usize);
        let inline = match (n_bytes, &tensor.data) {
            (Some(n_bytes), _) if n_bytes <= binary.len() => Some(binary.split_to(n_bytes)),
            (Some(n_bytes), _) => {
                let message = format!("output `{}`: expected {n_bytes} bytes of binary data, got {}", tensor.name, binary.len());
                return Err(Failure::protocol(message));
            }
            (None, Some(data)) => Some(values_of(data, &tensor.datatype).map_err(Failure::protocol)?),
            (None, None) => None,
        };
        let values = shared.values(&tensor.name, &tensor.datatype, &tensor.shape, inline)?;
        Output::new(tensor.name, &tensor.datatype, &tensor.shape, values)
    });
    outputs.collect()
}

/// Returns the values of a JSON list, which may be nested, as bytes.
fn values_of(data: &Value, datatype: &str) -> Result<Bytes, String> {
    let mut contents = super::protocol::TensorContents::default();
    let mut wrong: Option<Value> = None;
    each_value(data, &mut |value| {
        let is_taken = match datatype {
            "BOOL" => taken(&mut contents.bools, value.as_bool().or_else(|| value.as_f64().map(|number| number != 0.0))),
            "FP32" => taken(&mut contents.floats, real(value).and_then(narrow)),
            "FP64" => taken(&mut contents.doubles, real(value)),
            "UINT64" => taken(&mut contents.uint64s, whole(value)),
            "UINT8" | "UINT16" | "UINT32" => taken(&mut contents.uints, whole(value)),
            "INT64" => taken(&mut contents.int64s, whole(value)),
            _ => taken(&mut contents.ints, whole(value)),
        };
        if !is_taken {
            wrong.get_or_insert_with(|| value.clone());
        }
    });
    match wrong {
        Some(value) => Err(format!("expected values of the type {datatype}, got {value}")),
        None => super::datatype::bytes_of(&contents, datatype),
    }
}

fn taken<T>(list: &mut Vec<T>, value: Option<T>) -> bool {
    value.map(|value| list.push(value)).is_some()
}

fn each_value(data: &Value, take: &mut impl FnMut(&Value)) {
    match data {
        Value::Array(values) => values.iter().for_each(|value| each_value(value, take)),
        value => take(value),
    }
}

/// Returns a real number. Some servers write NaN and infinite values as `null` or as text.
fn real(value: &Value) -> Option<f64> {
    match value {
        Value::Null => Some(f64::NAN),
        Value::String(text) => match text.trim_start_matches(['+', '-']) {
            "NaN" | "nan" | "Infinity" | "infinity" | "inf" | "Inf" => text.parse().ok(),
            _ => None,
        },
        value => value.as_f64(),
    }
}

/// Returns the nearest 32-bit float; `None` if a finite number becomes infinite.
fn narrow(number: f64) -> Option<f32> {
    let narrow = number as f32;
    (narrow.is_finite() || !number.is_finite()).then_some(narrow)
}

/// Returns a whole number, which may be written with a fraction of 0, such as `3.0`. Returns `None` if it does not fit the type.
fn whole<T: TryFrom<i64> + TryFrom<u64>>(value: &Value) -> Option<T> {
    const LARGEST: f64 = (1_u64 << 53) as f64;
    let written = || value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= LARGEST).map(|number| number as i64);
    match (value.as_i64().or_else(written), value.as_u64()) {
        (Some(number), _) => T::try_from(number).ok(),
        (None, Some(number)) => T::try_from(number).ok(),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_values_are_those_of_the_bytes() {
        for (datatype, content, expected) in [
            ("UINT8", vec![0, 255], "[0,255]"),
            ("BOOL", vec![0, 1], "[false,true]"),
            ("INT16", (-2_i16).to_ne_bytes().to_vec(), "[-2]"),
            ("FP32", [1.5_f32, -0.25].map(f32::to_ne_bytes).concat(), "[1.5,-0.25]"),
            ("INT64", i64::MIN.to_ne_bytes().to_vec(), "[-9223372036854775808]"),
        ] {
            let json = json_of(&content, datatype).unwrap();
            assert_eq!(json.to_string(), expected, "{datatype}");
            assert_eq!(values_of(&json, datatype).unwrap()[..], content, "{datatype}");
        }
        assert!(json_of(&[0, 0], "FP16").is_none());
        for (datatype, json, got) in [
            ("INT8", "[44, [300]]", "300"),
            ("UINT8", "[-1]", "-1"),
            ("UINT32", "[4294967296]", "4294967296"),
            ("INT32", "[2147483648]", "2147483648"),
            ("INT64", "[9223372036854775808]", "9223372036854775808"),
            ("UINT64", "[-1]", "-1"),
            ("INT16", "[1.5]", "1.5"),
            ("INT32", "[\"7\"]", "\"7\""),
            ("BOOL", "[null]", "null"),
            ("FP32", "[\"abc\"]", "\"abc\""),
            ("FP64", "[\"1\"]", "\"1\""),
            ("FP64", "[true]", "true"),
            ("FP32", "[1e300]", "1e+300"),
        ] {
            let error = values_of(&serde_json::from_str(json).unwrap(), datatype).unwrap_err();
            assert_eq!(error, format!("expected values of the type {datatype}, got {got}"));
        }
        assert_eq!(values_of(&serde_json::from_str("[3.0]").unwrap(), "INT8").unwrap()[..], [3]);
        let special = serde_json::from_str(r#"["Infinity", "-Infinity", "-inf", "NaN", null]"#).unwrap();
        let floats = values_of(&special, "FP32").unwrap();
        let floats: Vec<f32> = floats.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect();
        assert_eq!(floats[..3], [f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY]);
        assert!(floats[3].is_nan() && floats[4].is_nan());
        assert_eq!(values_of(&serde_json::from_str("[1e300]").unwrap(), "FP64").unwrap()[..], 1e300_f64.to_ne_bytes());
    }

    #[test]
    fn outputs_are_binary_or_json() {
        let json = br#"{"outputs":[{"name":"a","datatype":"UINT8","shape":[2],"parameters":{"binary_data_size":2}},
            {"name":"b","datatype":"FP32","shape":[2,1],"data":[[1.5],[-2]]},
            {"name":"c","datatype":"INT64","shape":[1],"parameters":{"binary_data_size":8}}]}"#;
        let outputs = outputs_of(json, Bytes::from(vec![7, 8, 3, 0, 0, 0, 0, 0, 0, 0]), SharedOutputs::NONE).unwrap();
        assert_eq!(outputs.iter().map(|output| &*output.name).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(outputs[0].values[..], [7, 8]);
        assert_eq!(outputs[1].values[..], [1.5_f32, -2.0].map(f32::to_ne_bytes).concat());
        assert_eq!(outputs[2].values[..], 3_i64.to_ne_bytes());
        assert!(
            outputs_of(json, Bytes::from(vec![7]), SharedOutputs::NONE)
                .unwrap_err()
                .message
                .contains("expected 2 bytes of binary data, got 1")
        );
        let short = br#"{"outputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1]}]}"#;
        assert!(
            outputs_of(short, Bytes::new(), SharedOutputs::NONE)
                .unwrap_err()
                .message
                .contains("expected the bytes of [2] f32, got 4 bytes")
        );
    }
}
