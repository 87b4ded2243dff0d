//! One request of the device `REMOTE`. A run has two steps: the first sends the inputs, the second reads the response. No thread waits in
//! between.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::call::{Call, Loans, Response};
use super::failure::Failure;
use super::model::Shared;
use super::servers::runtime;
use super::shared_memory::{Placement, SharedOutputs};
use crate::runtime::device::{DeviceRequest, profiling_is_off};
use crate::runtime::io::DeviceIo;
use crate::runtime::{CancelToken, Completion, Error, ErrorKind, Interrupt, NodeStatus, NodeTime, Result};
use crate::tensor::{Shape, Tensor};

/// Time that a connection gets to release the memory of a call that failed or was canceled. After this time, the connection is closed,
/// because its server does not read the data.
const RELEASE_TIME: Duration = Duration::from_millis(250);

pub(crate) struct RemoteRequest {
    model: Arc<Shared>,
    /// Signals the end of a call. `None` if runs must not overlap: they then block the thread of their step.
    completion: Option<Arc<Completion>>,
    outcome: Arc<Mutex<Option<Outcome>>>,
    /// Shared memory for the tensors of the next run; `None` if a run is in progress, or the latest run failed.
    placement: Option<Arc<Placement>>,
    /// The shared memory of the run in progress.
    in_use: Option<Arc<Placement>>,
    /// The time of the latest run, if profiling is enabled.
    latest: Option<Duration>,
}

/// The result of a call, and its duration.
type Outcome = (Result<Response, Failure>, Duration);

/// Cancels the call of one run.
#[derive(Default)]
struct Cancel(Notify);

impl Interrupt for Cancel {
    fn interrupt(&self) {
        self.0.notify_one();
    }
}

impl RemoteRequest {
    pub(crate) fn new(model: Arc<Shared>) -> Self {
        let completion = (!model.is_exclusive).then(Completion::new);
        Self { model, completion, outcome: Arc::default(), placement: None, in_use: None, latest: None }
    }

    /// Sends the call of a run.
    fn submit(&mut self, io: &DeviceIo<'_>, token: &CancelToken) -> Result<()> {
        check_inputs(&self.model, io)?;
        let options = &self.model.servers.shared().options;
        let (info, model, version) = (&self.model.info, &options.model, &options.version);
        let (call, loans) = match options.shared_memory {
            false => Call::new(info, model, version, io)?,
            true => {
                let earlier = self.placement.take().and_then(Arc::into_inner);
                let placement = Arc::new(Placement::new(info, io, earlier)?);
                self.in_use = Some(placement.clone());
                Call::shared(info, model, version, io, placement)
            }
        };
        let runtime = runtime()?;
        let cancel = Arc::new(Cancel::default());
        let interrupt: Arc<dyn Interrupt> = cancel.clone();
        let (model, outcome) = (self.model.clone(), self.outcome.clone());
        let work = async move {
            let begin = Instant::now();
            let result = run(&model, call, loans, &cancel).await;
            *outcome.lock().unwrap() = Some((result, begin.elapsed()));
        };
        match &self.completion {
            Some(completion) => {
                let done = CompletesOnDrop(completion.clone());
                completion.start(|| {
                    runtime.spawn(async move {
                        let _done = done;
                        work.await;
                    });
                    Ok::<(), Error>(())
                })?;
                token.interrupt_with(&interrupt);
            }
            None => {
                let (sender, receiver) = mpsc::sync_channel::<()>(1);
                token.interrupting(&interrupt, || {
                    runtime.spawn(async move {
                        let _ends_the_wait = sender;
                        work.await;
                    });
                    // The sender is dropped when the call has ended.
                    let _ended = receiver.recv();
                });
            }
        }
        Ok(())
    }

    /// Writes the outputs of a run.
    fn finish(&mut self, io: &mut DeviceIo<'_>, token: &CancelToken) -> Result<()> {
        let outcome = self.outcome.lock().unwrap().take();
        let lost = || Error::new(ErrorKind::Panic, format!("device {}: the task of the call panicked", super::NAME));
        let (response, duration) = outcome.ok_or_else(lost)?;
        token.check()?;
        let placement = self.in_use.take();
        let info = &self.model.info;
        let outputs = response.and_then(|response| match &placement {
            None => response.outputs(SharedOutputs::NONE),
            Some(placement) => response.outputs(SharedOutputs::of(placement, info)),
        });
        let mut outputs = outputs.map_err(Failure::into_error)?;
        self.placement = placement;
        for (output_idx, port) in self.model.info.outputs.iter().enumerate() {
            let position = outputs.iter().position(|output| output.name == port.name());
            let Some(position) = position else {
                return Err(Failure::protocol(format!("expected the output {port} in the response, got none")).into_error());
            };
            let output = outputs.swap_remove(position);
            if output.element != port.element {
                let message = format!("output {port}: expected elements of type {}, got {}", port.element, output.element);
                return Err(Failure::protocol(message).into_error());
            }
            io.output(output_idx, &output.shape)?.copy_all_from_dense(&output.values)?;
        }
        self.latest = Some(duration);
        Ok(())
    }
}

/// Runs a call until it has a result, is canceled, or its time is over. When this function returns, no connection uses the memory of the
/// inputs.
async fn run(model: &Shared, call: Call, mut loans: Loans, cancel: &Cancel) -> Result<Response, Failure> {
    let servers = model.servers.shared();
    let deadline = Instant::now() + servers.options.timeout;
    let result = tokio::select! {
        biased;
        () = cancel.0.notified() => Err(Failure::canceled()),
        result = servers.infer(&call, deadline) => result,
    };
    let used = call.release();
    if timeout(RELEASE_TIME, loans.ended()).await.is_err() {
        used.iter().for_each(super::connection::Connection::kill);
        loans.ended().await;
    }
    result
}

/// Completes a run, also if the task of the call panics.
struct CompletesOnDrop(Arc<Completion>);

impl Drop for CompletesOnDrop {
    fn drop(&mut self) {
        // The step that follows reads the outcome.
        self.0.complete(Ok(()));
    }
}

/// Checks that the caller set each input of dynamic shape.
fn check_inputs(model: &Shared, io: &DeviceIo<'_>) -> Result<()> {
    for (input_idx, port) in model.info.inputs.iter().enumerate() {
        let shape = io.input(input_idx).layout().shape();
        if shape.contains(&0) && port.shape.to_static().is_none() && !io.is_given(input_idx) {
            return Err(Error::new(ErrorKind::Tensor, format!("input {port}: got the empty shape {shape}; set a tensor first")));
        }
    }
    Ok(())
}

impl DeviceRequest for RemoteRequest {
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor> {
        // The memory of this tensor is sent without a copy.
        Ok(Tensor::new(self.model.info.inputs[port_idx].element, shape)?)
    }

    fn run_step(&mut self, step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()> {
        if step_idx == 0 {
            self.latest = None;
            self.submit(io, cancel)?;
        }
        match (step_idx, &self.completion) {
            (0, Some(_)) => Ok(()),
            _ => self.finish(io, cancel),
        }
    }

    fn completion(&self) -> Option<Arc<Completion>> {
        self.completion.clone()
    }

    fn end_run(&mut self) {
        // A canceled run has not taken these values. Drop its shared memory, because the server may still write to it.
        *self.outcome.lock().unwrap() = None;
        self.in_use = None;
    }

    fn profiling_info(&self) -> Result<Vec<NodeTime>> {
        if !self.model.profiling {
            return Err(profiling_is_off());
        }
        let status = if self.latest.is_some() { NodeStatus::Executed } else { NodeStatus::NotRun };
        let (name, kind) = ("ModelInfer".to_owned(), "Remote".to_owned());
        Ok(vec![NodeTime { name, kind, status, real: self.latest.unwrap_or_default(), cpu: None }])
    }
}
