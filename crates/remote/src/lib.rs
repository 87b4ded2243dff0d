//! The device `REMOTE`: models on inference servers that speak KServe v2, such as Triton, OpenVINO Model Server and MLServer.
//!
//! - The address of a model is `grpc://host:8001/model[:version]`, `grpcs://`, `http://` or `https://`. Several addresses, with commas
//!   between, are servers of the same model.
//! - Ports come from the metadata of the server.
//! - Inputs are sent as they are in memory, in their own element type, without a copy.
//! - With `remote.shared-memory=yes`, inputs and outputs are in memory that a server on the same machine maps.
//! - A run blocks no thread while the server computes: up to four background threads serve all connections. Only runs of models with the
//!   option `exclusive-requests` block a thread.
//! - A canceled run cancels its call on the server. A run ends after `remote.timeout` at the latest.
//! - A server that cannot be reached, is not ready, or fails several calls in a row is ejected: it gets no calls until it is ready again.
//! - A call is repeated on another server only if the first server certainly computed nothing.
//! - Errors are `Unavailable` (no server is up, or the connection ended), `Timeout`, `Tensor` (the server refused the inputs), `NotFound`
//!   (the server does not have the model), `Config` (the server refused the token), `Unsupported` and `Device` (all other failures).
//!
//! Reading order: `options`, `model`, `request`, `call`, `servers` (their health, and the choice of a server for a call), `connection`,
//! then the protocols `grpc` and `rest` with `protocol`, `datatype` and `shared_memory`.

#![forbid(unsafe_code)]

mod call;
mod connection;
mod datatype;
mod failure;
mod grpc;
mod model;
mod options;
mod protocol;
mod request;
mod rest;
mod servers;
mod shared_memory;
mod socket;

use std::sync::Arc;

use roiflow_runtime as runtime;
use roiflow_tensor as tensor;

use runtime::device::{Device, DeviceInfo, DeviceModel};
use runtime::executor::Executors;
use runtime::{Config, Error, ErrorKind, Model, ModelInfo, ModelSource, Result};

/// The name of the device.
pub const NAME: &str = "REMOTE";

/// The device `REMOTE`.
#[derive(Debug, Clone, Copy, Default)]
pub struct RemoteDevice;

impl Device for RemoteDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn info(&self) -> DeviceInfo {
        let description = "inference servers that speak KServe v2: Triton, OpenVINO Model Server, MLServer".to_owned();
        let Ok(urls) = std::env::var(options::URL_VARIABLE) else {
            let properties = vec![("model", "grpc://HOST:PORT/MODEL, or https://HOST/MODEL".to_owned())];
            return DeviceInfo { description, properties, missing: None };
        };
        // A server that is down is no reason to report the device as missing, because another address can be set.
        let properties = match model::read(&ModelSource::Remote("".into())) {
            Ok(info) => {
                let ports = |ports: &[runtime::Port]| ports.iter().map(runtime::Port::to_string).collect::<Vec<_>>().join(", ");
                let metadata = info.metadata.iter().map(|(key, value)| format!("{key} {}", one_line(value))).collect::<Vec<_>>().join("; ");
                vec![("model", urls), ("inputs", ports(&info.inputs)), ("outputs", ports(&info.outputs)), ("server", metadata)]
            }
            Err(error) => vec![("model", urls), ("server", error.to_string())],
        };
        DeviceInfo { description, properties, missing: None }
    }

    fn option_prefix(&self) -> Option<&str> {
        Some(options::PREFIX)
    }

    fn read_model(&self, source: &ModelSource) -> Result<ModelInfo> {
        match source {
            ModelSource::Remote(text) if text.split(',').any(|part| ModelSource::is_address(part.trim())) => model::read(source),
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                format!("device {NAME} reads only models on servers, such as grpc://host:8001/model"),
            )),
        }
    }

    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        Ok(Arc::new(model::RemoteModel::new(model, config, executors)?))
    }
}

/// Shortens the message of a server and puts it on one line.
fn one_line(message: &str) -> String {
    const MAX_CHARACTERS: usize = 500;
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}
