//! One call of a model: its inputs and its outputs.
//!
//! A connection sends the inputs from the memory of their tensors, without a copy. The memory is then lent to the connection: a read lease
//! ([`Lent`]) prevents changes of the tensor until the connection has released the memory. [`Loans`] waits for this.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::datatype::{Output, bytes_of, name_of};
use super::failure::Failure;
use super::grpc::{self, Grpc};
use super::protocol::{InferHead, InferInput, InferResponse, RequestedOutput};
use super::rest;
use super::shared_memory::{Placement, SharedOutputs};
use crate::runtime::io::DeviceIo;
use crate::runtime::{ModelInfo, Result};
use crate::tensor::{Bytes as Lease, ElementType, Shape, Tensor};

/// The inputs of a call. Attempts on several servers send the same memory.
pub(crate) struct Call {
    head: InferHead,
    contents: Vec<Bytes>,
    /// The shared memory with the inputs. The contents are then empty.
    placement: Option<Arc<Placement>>,
    /// The connections that were used, which may still refer to the memory.
    used: Mutex<Vec<super::connection::Connection>>,
}

/// Memory of a tensor that is lent to a connection. The connection drops it when it has sent the bytes.
struct Lent {
    lease: Lease,
    /// Dropped after the lease, because fields are dropped in the order of their declaration.
    _on_loan: OnLoan,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.lease.extent()
    }
}

/// Marks memory of a call as lent: it exists as long as a connection uses the memory. [`Loans::ended`] returns when all marks are dropped.
#[derive(Clone)]
pub(crate) struct OnLoan(#[allow(dead_code, reason = "held for its drop")] mpsc::Sender<()>);

/// Waits until no connection uses the memory of a call.
pub(crate) struct Loans(mpsc::Receiver<()>);

impl Loans {
    pub(crate) async fn ended(&mut self) {
        // Nothing is sent, so the channel ends when the last sender is dropped.
        let _none = self.0.recv().await;
    }
}

impl Call {
    /// Returns a call with the inputs of a run. Inputs whose values are contiguous in memory are lent, all others are copied.
    ///
    /// # Errors
    /// Returns the errors of leasing an input.
    pub(crate) fn new(info: &ModelInfo, model: &str, version: &str, io: &DeviceIo<'_>) -> Result<(Self, Loans)> {
        let (on_loan, loans) = loans();
        let mut contents = Vec::with_capacity(info.inputs.len());
        let mut shapes = Vec::with_capacity(info.inputs.len());
        for input_idx in 0..info.inputs.len() {
            let bytes = io.input(input_idx);
            let layout = bytes.layout();
            shapes.push(*layout.shape());
            contents.push(match layout.is_dense() {
                true => lend(io.input_tensor(input_idx), &on_loan)?,
                false => {
                    let mut copy = vec![0; layout.dense_bytes()];
                    bytes.copy_all_to_dense(&mut copy)?;
                    Bytes::from(copy)
                }
            });
        }
        Ok((Self::with(info, model, version, &shapes, contents), loans))
    }

    /// Returns a call with the inputs of a run, which are in shared memory already.
    pub(crate) fn shared(info: &ModelInfo, model: &str, version: &str, io: &DeviceIo<'_>, placement: Arc<Placement>) -> (Self, Loans) {
        let shapes: Vec<Shape> = (0..info.inputs.len()).map(|idx| *io.input(idx).layout().shape()).collect();
        let mut call = Self::with(info, model, version, &shapes, Vec::new());
        for (idx, input) in call.head.inputs.iter_mut().enumerate() {
            input.parameters = placement.of_input(idx);
        }
        for (idx, output) in call.head.outputs.iter_mut().enumerate() {
            output.parameters = placement.of_output(idx);
        }
        (Self { placement: Some(placement), ..call }, loans().1)
    }

    /// Returns the shared memory of the call, if it uses any.
    pub(crate) fn placement(&self) -> Option<&Placement> {
        self.placement.as_deref()
    }

    /// Returns a call whose inputs have these shapes and consist of zeros.
    pub(crate) fn of_zeros(info: &ModelInfo, model: &str, version: &str, shapes: &[Shape]) -> (Self, Loans) {
        let n_bytes = |(shape, element): (&Shape, ElementType)| shape.n_elements().unwrap_or(0) * element.size();
        let ports = shapes.iter().zip(info.inputs.iter().map(|port| port.element));
        let contents = ports.map(|port| Bytes::from(vec![0; n_bytes(port)])).collect();
        (Self::with(info, model, version, shapes, contents), loans().1)
    }

    fn with(info: &ModelInfo, model: &str, version: &str, shapes: &[Shape], contents: Vec<Bytes>) -> Self {
        let inputs = info.inputs.iter().zip(shapes).map(|(port, shape)| InferInput {
            name: port.name().to_owned(),
            datatype: name_of(port.element).to_owned(),
            shape: shape.iter().map(|&extent| extent as i64).collect(),
            ..InferInput::default()
        });
        let head = InferHead {
            model_name: model.to_owned(),
            model_version: version.to_owned(),
            id: String::new(),
            inputs: inputs.collect(),
            outputs: info
                .outputs
                .iter()
                .map(|port| RequestedOutput { name: port.name().to_owned(), ..RequestedOutput::default() })
                .collect(),
        };
        Self { head, contents, placement: None, used: Mutex::default() }
    }

    /// Calls a server over gRPC.
    pub(crate) async fn over_grpc(&self, connection: &Grpc, deadline: tokio::time::Instant) -> Result<Response, Failure> {
        let parts = grpc::infer_parts(&self.head, &self.contents)?;
        connection.call("ModelInfer", parts, deadline).await.map(Response::Grpc)
    }

    /// Returns the JSON text and the binary contents of a call over HTTP/1.1. Without binary contents, the values are in the JSON text.
    ///
    /// # Errors
    /// Fails for types that JSON cannot express.
    pub(crate) fn as_json(&self, is_binary: bool) -> Result<(Bytes, Vec<Bytes>), Failure> {
        match is_binary {
            true => Ok((rest::head_of(&self.head, &self.contents), self.contents.clone())),
            false => Ok((rest::text_of(&self.head, &self.contents)?, Vec::new())),
        }
    }

    /// Records that the memory of this call is lent to a connection.
    pub(crate) fn uses(&self, connection: super::connection::Connection) {
        self.used.lock().unwrap().push(connection);
    }

    /// Drops the memory of the call itself, and returns the connections that may still use it.
    pub(crate) fn release(self) -> Vec<super::connection::Connection> {
        self.used.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn loans() -> (OnLoan, Loans) {
    let (sender, receiver) = mpsc::channel(1);
    (OnLoan(sender), Loans(receiver))
}

fn lend(tensor: &Tensor, on_loan: &OnLoan) -> Result<Bytes> {
    Ok(Bytes::from_owner(Lent { lease: tensor.bytes()?, _on_loan: on_loan.clone() }))
}

/// The response of a server, as received.
pub(crate) enum Response {
    Grpc(Bytes),
    Http { json: Bytes, binary: Bytes },
}

impl Response {
    /// Reads the outputs. Raw contents are not copied.
    pub(crate) fn outputs(self, shared: SharedOutputs<'_>) -> Result<Vec<Output>, Failure> {
        match self {
            Self::Http { json, binary } => rest::outputs_of(&json, binary, shared),
            Self::Grpc(message) => {
                let response: InferResponse = grpc::decoded(message)?;
                // A server may send empty raw contents for outputs in shared memory, or none.
                let has_all_raw = response.raw_output_contents.len() == response.outputs.len();
                let mut raw = response.raw_output_contents.into_iter();
                let has_raw = raw.len() > 0;
                let outputs = response.outputs.into_iter().map(|output| {
                    let inline = match (has_raw, &output.contents) {
                        _ if shared.contains(&output.name) && !has_all_raw => None,
                        (true, _) => {
                            Some(raw.next().ok_or_else(|| Failure::protocol("expected raw contents for each output, got too few"))?)
                        }
                        (false, Some(contents)) => Some(bytes_of(contents, &output.datatype).map_err(Failure::protocol)?),
                        (false, None) => Some(Bytes::new()),
                    };
                    let values = shared.values(&output.name, &output.datatype, &output.shape, inline)?;
                    Output::new(output.name, &output.datatype, &output.shape, values)
                });
                outputs.collect()
            }
        }
    }
}
