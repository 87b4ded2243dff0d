//! The inference request: a caller sets its inputs, starts it, waits for it, cancels it, and reads its results. The module `run` executes
//! the runs.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::batching::Seat;
use super::compiled::CompiledShared;
use super::context::RunContext;
use super::executor::{Executor, Ticket};
use super::io::{InputSlot, Source, check_fits, check_memory};
use super::run::{Handle, OnQuiet, Shared};
use super::steps::{Body, CustomStep, Step, StepTask};
use super::{
    CompiledModel, Error, ErrorKind, FillInput, Input, Inputs, NodeTime, PipelineStep, Port, PortKey, Result, Results, RunFuture, StepTime,
    VariableState, pipeline,
};
use crate::sync::{Deadline, Mutex};
use crate::tensor::{Element, Tensor, View, ViewMut};

/// A handle to an inference request. Clones refer to the same request.
///
/// Dropping the last handle stops the request; see the life of a request in [`runtime`](super).
#[derive(Clone)]
pub struct InferRequest(Arc<Handle>);

/// A weak handle to an inference request. A request's own callback must capture a weak handle: if it captured an [`InferRequest`], the
/// request would keep itself alive and would never be dropped.
#[derive(Debug, Clone)]
pub struct WeakInferRequest(Weak<Handle>);

/// Methods that start a run, wait for it and cancel it.
impl InferRequest {
    pub(super) fn new(model: Arc<CompiledShared>, body: Box<Body>, ticket: Ticket) -> Self {
        Self(Handle::new(model, body, ticket))
    }

    pub(super) fn of(handle: Arc<Handle>) -> Self {
        Self(handle)
    }

    /// Runs the model on the calling thread and returns when the outputs are complete. The callback is not called.
    ///
    /// Sets `inputs` before the run; see [`Inputs`] for the accepted forms. With `()`, all inputs keep their values.
    ///
    /// # Errors
    /// Returns `Busy` if the request is running or a tensor is in use. Returns `Tensor` if a tensor does not match its port. Returns
    /// `OwnedByQueue` if the request belongs to a queue. Also returns the errors of steps and of the device.
    pub fn infer(&self, inputs: impl Inputs) -> Result<()> {
        let body = self.0.begin(&inputs, false)?;
        self.shared().run_here(body)
    }

    /// Starts a run and returns immediately. `inputs` has the same forms as in [`InferRequest::infer`].
    ///
    /// # Errors
    /// Returns `Busy` if the request is running or a tensor is in use. Returns `Tensor` if a tensor does not match its port. Returns
    /// `OwnedByQueue` if the request belongs to a queue. After an error the request stays idle.
    pub fn start_async(&self, inputs: impl Inputs) -> Result<()> {
        let body = self.0.begin(&inputs, true)?;
        self.shared().pass_on(body);
        Ok(())
    }

    /// Starts a run immediately and returns a future of its results, for `.await` in any async executor. The results share the request's
    /// own tensors, as in [`InferRequest::results`]. If the start fails, the future returns that error. Dropping the future cancels the
    /// run. To wait for a run that another method started, use [`InferRequest::completed`].
    ///
    /// ```
    /// # use roiflow::{devices, runtime::Config};
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// # let core = devices::core();
    /// # let model = core.compile_model(&core.read_model("assets/tiny/double.onnx")?, "CPU", &Config::default())?;
    /// # futures::executor::block_on(async {
    /// let (first, second) = (model.create_infer_request()?, model.create_infer_request()?);
    /// let both = (first.run(&ndarray::arr2(&[[1.0_f32; 4]])), second.run(&ndarray::arr2(&[[2.0_f32; 4]])));
    /// both.0.await?; // both run already
    /// let results = both.1.await?;
    /// assert_eq!(results.view::<f32>(())?[[0, 3]], 4.0);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn run(&self, inputs: impl Inputs) -> RunFuture<Results> {
        self.run_then(inputs)
    }

    /// Same as [`InferRequest::run`], but the future returns a value of type `T` instead of [`Results`].
    pub(super) fn run_then<T>(&self, inputs: impl Inputs) -> RunFuture<T> {
        let shared = self.shared();
        match self.0.begin(&inputs, true) {
            Ok(body) => {
                let run = shared.expect_latest();
                shared.pass_on(body);
                RunFuture::owning(self.clone(), run)
            }
            Err(error) => RunFuture::failed(self.clone(), error),
        }
    }

    /// Same as [`InferRequest::start_async`], but also attaches `data` to the request. The callback of this run reads the data with
    /// [`InferRequest::user_data`]. If the start fails, the request keeps the data that was attached before.
    ///
    /// ```
    /// # use roiflow::{devices, runtime::Config};
    /// # use std::sync::Arc;
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// # let model = devices::core().compile("assets/tiny/double.onnx", "CPU")?;
    /// # let request = model.create_infer_request()?;
    /// request.set_callback(|request, result| {
    ///     let frame = request.user_data::<u64>().expect("attached by `start_with`");
    ///     println!("frame {frame}: {result:?}");
    /// })?;
    /// request.start_with(&ndarray::arr2(&[[1.0_f32; 4]]), Arc::new(7_u64))?;
    /// request.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::start_async`].
    pub fn start_with(&self, inputs: impl Inputs, data: Arc<dyn Any + Send + Sync>) -> Result<()> {
        let body = self.0.begin(&inputs, true)?;
        let previous = self.shared().guarded.lock().unwrap().user_data.replace(data);
        self.shared().pass_on(body);
        drop(previous); // Dropped after the start and outside the lock, because the drop runs user code.
        Ok(())
    }

    /// Returns a future that becomes ready when the latest run is complete, or that is ready immediately if there was no run. Dropping the
    /// future does not cancel the run. `request.await` does the same.
    pub fn completed(&self) -> RunFuture {
        RunFuture::observing(self.clone())
    }

    /// Blocks until the latest run is complete and its callback has returned. Returns immediately if no run was started.
    ///
    /// # Errors
    /// Returns the error of the run; each waiting thread gets it. Returns `WouldDeadlock` if the caller is inside the request's own
    /// callback, steps or fillers.
    pub fn wait(&self) -> Result<()> {
        self.shared().wait_until(None).map(|_in_time| ())
    }

    /// Same as [`InferRequest::wait`], but blocks for at most `timeout`. Returns `false` if the run is not complete after that time, or if
    /// no run was ever started.
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::wait`].
    pub fn wait_for(&self, timeout: Duration) -> Result<bool> {
        match Deadline::after(timeout) {
            Some(deadline) => self.shared().wait_until(Some(deadline)),
            None if self.shared().guarded.lock().unwrap().state.latest_run() == 0 => Ok(false),
            None => self.shared().wait_until(None),
        }
    }

    /// Cancels the current run, which then ends with `Canceled` unless it is already complete. Has no effect on an idle request.
    ///
    /// A run that waits in the queue of an executor ends immediately. A step that has started is not aborted: the run ends when that step
    /// checks its [`CancelToken`](super::CancelToken) or returns. If the engine can be interrupted, the run ends when the engine stops. No
    /// further step starts. The callback is not called on the thread that calls `cancel`.
    pub fn cancel(&self) {
        self.shared().cancel_latest();
    }

    /// Sets whether asynchronous runs of this request have priority over other runs that wait for the same workers. Set it, for example,
    /// for classifiers of detected objects. While a task that is not urgent waits, workers run at most 16 urgent tasks in a row. The
    /// setting applies to steps that are queued after this call.
    pub fn set_urgent(&self, is_urgent: bool) {
        self.shared().set_urgent(is_urgent);
    }

    /// Sets the callback of asynchronous runs. The callback gets the result or the error before waiting threads continue, and may start the
    /// request again. It is called on the thread that completed the run, so it should be short. If the model was compiled with
    /// [`Config::callback_thread`](super::Config::callback_thread), it may be long. Until the callback returns, the request is busy for
    /// other threads.
    ///
    /// The callbacks of one request never run at the same time, so a callback may change captured variables. If a callback panics, it is
    /// still called for the next run.
    ///
    /// The callback gets the request as an argument. Do not capture a strong handle, because it would keep the request alive forever.
    /// Capture the weak handle of [`InferRequest::downgrade`] instead.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs. Returns `OwnedByQueue` for a request of a queue.
    pub fn set_callback(&self, callback: impl FnMut(&InferRequest, Result<()>) + Send + 'static) -> Result<()> {
        // No thread ever waits for this lock, because only one thread at a time calls the callback. If a run ends while the callback of an
        // earlier run is executed, the thread of that callback calls the callback again afterwards.
        let callback = Mutex::new(callback);
        let callback = move |request: &InferRequest, result: Result<()>| {
            let mut callback = callback.lock().unwrap_or_else(PoisonError::into_inner);
            callback(request, result);
        };
        let previous = {
            let mut guarded = self.shared().lock_unread();
            guarded.check_callback()?;
            guarded.callback.replace(Arc::new(callback))
        };
        drop(previous); // Dropped outside the lock, because the closure may have captured handles of requests.
        Ok(())
    }

    /// Removes the callback.
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::set_callback`].
    pub fn clear_callback(&self) -> Result<()> {
        let previous = {
            let mut guarded = self.shared().lock_unread();
            guarded.check_callback()?;
            guarded.callback.take()
        };
        drop(previous);
        Ok(())
    }

    /// Attaches user data to the request. The request's callback can read this data. Drops the data that was attached before.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn set_user_data(&self, data: Arc<dyn Any + Send + Sync>) -> Result<()> {
        let previous = {
            let mut guarded = self.shared().lock_unread();
            guarded.check_idle()?;
            guarded.user_data.replace(data)
        };
        drop(previous);
        Ok(())
    }

    /// Returns the data that [`InferRequest::set_user_data`] or [`InferRequest::start_with`] attached, if its type is `T`. Available also
    /// while the request runs.
    pub fn user_data<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.shared().guarded.lock().unwrap().user_data.clone()?.downcast().ok()
    }
}

/// Methods for the ports and tensors.
impl InferRequest {
    /// Returns the input ports of the model, in order.
    pub fn model_inputs(&self) -> &[Port] {
        &self.model().info.inputs
    }

    /// Returns the output ports of the model, in order.
    pub fn model_outputs(&self) -> &[Port] {
        &self.model().outputs
    }

    /// Returns the tensor of an input or output. Searches the inputs first. The runtime changes the values of the tensor only during a run.
    ///
    /// # Errors
    /// Returns `NotFound` if the model has no such port. Returns `Busy` while the request runs. Returns `Tensor` if a batch of tensors was
    /// set for the input, see [`InferRequest::set_tensors`].
    pub fn tensor<'a>(&self, key: impl Into<PortKey<'a>>) -> Result<Tensor> {
        let key = key.into();
        self.input_tensor(key).or_else(|error| match error.kind() {
            ErrorKind::NotFound => self.output_tensor(key).map_err(|of_outputs| neither(&error, of_outputs)),
            _ => Err(error),
        })
    }

    /// Returns the tensor of an input. The key is a name, an index, a port, or `()` for the only input.
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::tensor`].
    pub fn input_tensor<'a>(&self, key: impl Into<PortKey<'a>>) -> Result<Tensor> {
        let input_idx = key.into().find("input", self.model_inputs())?;
        self.shared().with_body(|body| body.io.inputs[input_idx].tensor().cloned())
    }

    /// Returns the tensor of an output. The key is a name, an index, a port, or `()` for the only output. If this tensor is also set as an
    /// input of the same request, the next run writes the output into a second tensor. In this case, call this method again after each run.
    ///
    /// # Errors
    /// Returns `NotFound` if the model has no such port. Returns `Busy` while the request runs.
    pub fn output_tensor<'a>(&self, key: impl Into<PortKey<'a>>) -> Result<Tensor> {
        let output_idx = key.into().find("output", self.model_outputs())?;
        self.shared().with_body(|body| Ok(body.io.outputs[output_idx].tensor.clone()))
    }

    /// Returns the values of an output, without a copy: `request.output::<f32>("sum")?`. While the view exists, a start of the next run
    /// fails with `Busy`, unless the shape of the output is dynamic.
    ///
    /// ```
    /// # use roiflow::{devices, runtime::Config};
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// # let model = devices::core().compile("assets/tiny/add.onnx", "CPU")?;
    /// # let request = model.create_infer_request()?;
    /// request.input_mut::<f32>("a")?.fill(1.0);
    /// request.input_mut::<f32>("b")?.fill(2.0);
    /// request.infer(())?;
    /// assert_eq!(request.output::<f32>("sum")?[[0, 0]], 3.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::output_tensor`]. Also returns `Tensor` if the element type is not `T`.
    pub fn output<'a, T: Element>(&self, key: impl Into<PortKey<'a>>) -> Result<View<T>> {
        Ok(self.output_tensor(key)?.view()?)
    }

    /// Returns a mutable view of an input, through which the caller writes values in place.
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::input_tensor`]. Also returns `Tensor` if the element type is not `T`, and `Busy` while a run
    /// of another request reads the tensor.
    pub fn input_mut<'a, T: Element>(&self, key: impl Into<PortKey<'a>>) -> Result<ViewMut<T>> {
        Ok(self.input_tensor(key)?.view_mut()?)
    }

    /// Returns the tensors of all inputs, in order.
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::tensor`].
    pub fn input_tensors(&self) -> Result<Vec<Tensor>> {
        self.shared().with_body(|body| body.io.visible_inputs().iter().map(|slot| slot.tensor().cloned()).collect())
    }

    /// Returns the tensors of all outputs, in order.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn output_tensors(&self) -> Result<Vec<Tensor>> {
        self.shared().with_body(|body| Ok(body.io.visible_outputs().iter().map(|slot| slot.tensor.clone()).collect()))
    }

    /// Returns all outputs of the latest run, without a copy. [`Results`] finds an output by name, index or port.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn results(&self) -> Result<Results> {
        let tensors = self.output_tensors()?.into_iter().enumerate().collect();
        Ok(Results::new(self.model().outputs.clone(), tensors))
    }

    /// Same as [`InferRequest::results`], but returns only the outputs that `keys` select, in the order of `keys`.
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::results`]. Also returns `NotFound` if the model has no such output.
    pub fn results_of<'a, K: Into<PortKey<'a>>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Results> {
        let ports = &self.model().outputs;
        let found = keys.into_iter().map(|key| key.into().find("output", ports)).collect::<Result<Vec<usize>>>()?;
        let tensors =
            self.shared().with_body(|body| Ok(found.into_iter().map(|idx| (idx, body.io.outputs[idx].tensor.clone())).collect()))?;
        Ok(Results::new(ports.clone(), tensors))
    }

    /// Sets an input tensor, without a copy. Each run leases the memory of the tensor. The tensor may have any strides, so it may be a
    /// region of another tensor.
    ///
    /// # Errors
    /// Returns `NotFound` if the model has no such port. Returns `Tensor` if element type or shape do not match the port. Returns
    /// `Unsupported` if the device cannot use the memory of the tensor. Returns `Busy` while the request runs.
    pub fn set_input_tensor<'a>(&self, key: impl Into<PortKey<'a>>, tensor: &Tensor) -> Result<()> {
        let input_idx = key.into().find("input", self.model_inputs())?;
        let set = |body: &mut Body| {
            let slot = &mut body.io.inputs[input_idx];
            slot.check(&*body.device, &Input::Share(tensor.clone()))?;
            Ok(slot.replace_source(Source::Shared(tensor.clone())))
        };
        // Checking a tensor in device memory runs code of the device, so no lock may be held.
        let replaced = if tensor.is_remote() { self.shared().edit(set)? } else { self.shared().with_body(set)? };
        drop(replaced); // Dropped outside the lock: it may be a tensor or filler of the user, whose drop may run any code.
        Ok(())
    }

    /// Sets an output tensor. Runs write into its memory. If the port is dynamic, runs also set the shape of the tensor.
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::set_input_tensor`]. Also returns `Conflict` if the tensor shares memory with another output,
    /// or with one of the request's own input tensors.
    pub fn set_output_tensor<'a>(&self, key: impl Into<PortKey<'a>>, tensor: &Tensor) -> Result<()> {
        let output_idx = key.into().find("output", self.model_outputs())?;
        let set = |body: &mut Body| {
            let port = &body.io.outputs[output_idx].port;
            check_memory("output", port, tensor, &*body.device)?;
            check_output(port, tensor)?;
            body.io.check_new_output(output_idx, tensor, &[])?;
            Ok(body.io.outputs[output_idx].replace(tensor.clone()))
        };
        let replaced = if tensor.is_remote() { self.shared().edit(set)? } else { self.shared().with_body(set)? };
        drop(replaced);
        Ok(())
    }

    /// Sets an input or output tensor. Searches the inputs first.
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::set_input_tensor`] and [`InferRequest::set_output_tensor`].
    pub fn set_tensor<'a>(&self, key: impl Into<PortKey<'a>>, tensor: &Tensor) -> Result<()> {
        let key = key.into();
        match self.set_input_tensor(key, tensor) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.set_output_tensor(key, tensor).map_err(|of_outputs| neither(&error, of_outputs))
            }
            set => set,
        }
    }

    /// Sets a batch of tensors as an input. Each tensor is one batch item with batch size 1, and may be a region of another tensor. The
    /// number of tensors becomes the batch size. If the batch size of the port is fixed, it must equal the number of tensors.
    ///
    /// When a run starts, it copies the tensors into the request's own tensor. So the run reads the values that the tensors have at that
    /// time. A list with one tensor has the same effect as [`InferRequest::set_tensor`]. A tensor that is set later replaces the batch.
    ///
    /// # Errors
    /// Returns `NotFound` if there is no such input. Returns `Busy` while the request runs. Returns `Tensor` if the list is empty, if the
    /// batch is not the first axis of the port ([`Model::with_axes`](super::Model::with_axes)), if the number of tensors does not match the
    /// port, or if the element type or shape of a tensor does not match.
    pub fn set_tensors<'a>(&self, key: impl Into<PortKey<'a>>, slices: &[Tensor]) -> Result<()> {
        self.set_inputs(&[(key.into(), Input::Batch(slices))])
    }

    /// Sets several inputs from a list, pairs or a map; see [`Inputs`]. If one value is invalid, no input is changed.
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::set_input_tensor`] and [`InferRequest::set_tensors`].
    pub fn set_inputs(&self, inputs: impl Inputs) -> Result<()> {
        self.shared().edit(|body| io_set(body, self.model_inputs(), &inputs))
    }

    /// Sets several outputs from pairs of key and tensor. If one tensor is invalid, no output is changed.
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::set_output_tensor`].
    pub fn set_output_tensors<'a, K: Into<PortKey<'a>>, V: AsRef<Tensor>>(&self, outputs: impl IntoIterator<Item = (K, V)>) -> Result<()> {
        let mut found = Vec::new();
        for (key, tensor) in outputs {
            let (output_idx, tensor) = (key.into().find("output", self.model_outputs())?, tensor.as_ref());
            check_output(&self.model_outputs()[output_idx], tensor)?;
            found.push((output_idx, tensor.clone()));
        }
        self.shared().edit(|body| {
            check_outputs(body, self.model_outputs(), &found)?;
            for (output_idx, tensor) in found {
                drop(body.io.outputs[output_idx].replace(tensor));
            }
            Ok(())
        })
    }

    /// Sets several inputs and outputs in one call. Keys are names, indexes or ports, and may be mixed. A key is searched among the inputs
    /// first, as in [`InferRequest::set_tensor`]. The value for an output must be a tensor. If one value is invalid, nothing is changed.
    ///
    /// ```
    /// # use roiflow::{devices, inputs, tensor::Tensor};
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// # let model = devices::core().compile("assets/tiny/add.onnx", "CPU")?;
    /// # let request = model.create_infer_request()?;
    /// let (a, sum) = (Tensor::from_vec([1, 4], vec![1.0_f32; 4])?, Tensor::from_vec([1, 4], vec![0.0_f32; 4])?);
    /// request.set_all(inputs![0 => &a, "b" => &vec![2.0_f32; 4], &request.model_outputs()[0] => &sum])?;
    /// request.infer(())?;
    /// assert_eq!(sum.view::<f32>()?[[0, 0]], 3.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`InferRequest::set_input_tensor`] and [`InferRequest::set_output_tensor`].
    pub fn set_all(&self, tensors: impl Inputs) -> Result<()> {
        let (inputs, outputs) = (self.model_inputs(), self.model_outputs());
        let mut found: Vec<(usize, Tensor)> = Vec::new();
        tensors.visit(&mut |key, value| {
            let of_inputs = match key.find("input", inputs) {
                Err(error) if error.kind() == ErrorKind::NotFound => error,
                other => return other.map(drop),
            };
            let output_idx = key.find("output", outputs).map_err(|of_outputs| neither(&of_inputs, of_outputs))?;
            let port = &outputs[output_idx];
            let Input::Share(tensor) = value else {
                let message = format!("output {port}: expected a tensor, got {value:?}; pass a tensor that the run can write");
                return Err(Error::new(ErrorKind::Tensor, message).with_port(port.name()));
            };
            if found.iter().any(|(known, _)| *known == output_idx) {
                let message = format!("output {port}: expected one value, got two in one call; name each output once");
                return Err(Error::new(ErrorKind::Tensor, message).with_port(port.name()));
            }
            check_output(port, tensor)?;
            found.push((output_idx, tensor.clone()));
            Ok(())
        })?;
        self.shared().edit(|body| {
            check_outputs(body, outputs, &found)?;
            io_set(body, inputs, &OfInputs { tensors: &tensors, inputs })?;
            found.into_iter().for_each(|(output_idx, tensor)| drop(body.io.outputs[output_idx].replace(tensor)));
            Ok(())
        })
    }

    /// Sets a filler for an input. In the step `fill` of every run, the filler writes the input directly into memory that the device uses.
    /// The filler replaces a tensor that was set before, and a tensor that is set later replaces the filler.
    ///
    /// # Errors
    /// Returns `NotFound` if the model has no such port. Returns `Busy` while the request runs.
    pub fn set_input<'a>(&self, key: impl Into<PortKey<'a>>, fill: impl FillInput + 'static) -> Result<()> {
        let input_idx = key.into().find("input", self.model_inputs())?;
        let source = Source::Fill(Box::new(fill));
        let replaced = self.shared().with_body(|body| Ok(body.io.inputs[input_idx].replace_source(source)))?;
        drop(replaced);
        Ok(())
    }

    /// Resets all inputs to the request's own tensors. Releases the tensors, batches and fillers that were set.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn clear_inputs(&self) -> Result<()> {
        self.shared().edit(|body| {
            body.io.clear_inputs();
            Ok(())
        })
    }

    /// Releases the tensors of batches. An input that had a batch then has an empty batch, so it must be set before the next run.
    pub(super) fn forget_slices(&self) -> Result<()> {
        self.shared().edit(|body| {
            body.io.inputs.iter_mut().for_each(InputSlot::forget_slices);
            Ok(())
        })
    }

    /// Takes the output tensors out of the request. Copies an output only if the user set its tensor.
    pub(super) fn take_outputs(&self) -> Result<Results> {
        let tensors = self.shared().with_body(|body| {
            body.io.visible_outputs_mut().iter_mut().enumerate().map(|(idx, slot)| Ok((idx, slot.give_away()?))).collect()
        })?;
        Ok(Results::new(self.model().outputs.clone(), tensors))
    }
}

/// Methods for the variables.
impl InferRequest {
    /// Returns the variables of the request. A model without state has no variables; see
    /// [`Model::make_stateful`](super::Model::make_stateful).
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn query_state(&self) -> Result<Vec<VariableState>> {
        self.shared().with_body(|_| Ok(()))?;
        Ok((0..self.model().variables.len()).map(|variable_idx| VariableState::new(self.clone(), variable_idx)).collect())
    }

    /// Resets all variables to zero.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn reset_state(&self) -> Result<()> {
        if self.model().variables.is_empty() {
            return self.shared().with_body(|_| Ok(()));
        }
        self.shared().edit(Body::reset_variables)
    }
}

/// Methods for user steps, times and the identity of the request.
impl InferRequest {
    /// Appends a step to the end of every run, for example a decoder. The step runs on the executor of
    /// [`Config::executor`](super::Config::executor), by default the CPU pool, and can read inputs and outputs.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn append_step(&self, name: &str, step: impl FnMut(&RunContext<'_>) -> Result<()> + Send + 'static) -> Result<()> {
        let executor = self.model().step_executor()?;
        self.append_step_on(executor, name, step)
    }

    /// Same as [`InferRequest::append_step`], but the step runs on `executor`.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn append_step_on(
        &self,
        executor: Arc<dyn Executor>,
        name: &str,
        step: impl FnMut(&RunContext<'_>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let step = custom_step(executor, name, Box::new(step));
        self.shared().with_body(|body| {
            body.steps.push(step);
            Ok(())
        })
    }

    /// Adds a step to the start of every run, after the steps that were prepended earlier. It runs before the inputs are filled. A
    /// prepended step may wait for data, or may return an error to end the run.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn prepend_step(&self, name: &str, step: impl FnMut(&RunContext<'_>) -> Result<()> + Send + 'static) -> Result<()> {
        let executor = self.model().step_executor()?;
        self.prepend_step_on(executor, name, step)
    }

    /// Same as [`InferRequest::prepend_step`], but the step runs on `executor`.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn prepend_step_on(
        &self,
        executor: Arc<dyn Executor>,
        name: &str,
        step: impl FnMut(&RunContext<'_>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let step = custom_step(executor, name, Box::new(step));
        self.shared().with_body(|body| {
            body.steps.insert(body.n_prepended, step);
            body.n_prepended += 1;
            Ok(())
        })
    }

    /// Returns the built-in steps of a run: `fill` and the steps of the device. Use this list as the base of a custom pipeline. User steps
    /// are not included, because their tasks cannot be copied.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn pipeline(&self) -> Result<Vec<PipelineStep>> {
        self.shared().with_body(|body| Ok(body.steps.iter().filter_map(PipelineStep::of).collect()))
    }

    /// Replaces the pipeline of later runs. A pipeline is a list of steps, each with its executor. Drops the user steps that were set
    /// before.
    ///
    /// Consecutive steps on the same executor run as one task. If the steps have different executors, the runs of several requests overlap:
    /// the inputs of one request are preprocessed while the device computes another request.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use roiflow::{devices, runtime::{PipelineStep, executor::Pool}};
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// # let model = devices::core().compile("assets/tiny/double.onnx", "CPU")?;
    /// # let request = model.create_infer_request()?;
    /// let decoders = Arc::new(Pool::new("decode", 1)?);
    /// let mut steps = request.pipeline()?; // fill, infer
    /// steps.push(PipelineStep::new("decode", decoders, |run| {
    ///     let (_shape, values) = run.output::<f32>("y")?;
    ///     println!("run {}: {values:?}", run.run());
    ///     Ok(())
    /// }));
    /// request.set_pipeline(steps)?;
    /// request.start_async(&ndarray::arr2(&[[1.0_f32; 4]]))?;
    /// request.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns `Config` unless the list has each step of [`InferRequest::pipeline`] exactly once and in the same order, with no user step
    /// between the steps of the device. Returns `Busy` while the request runs. After an error the pipeline is unchanged.
    pub fn set_pipeline(&self, steps: Vec<PipelineStep>) -> Result<()> {
        let replaced = self.shared().edit(|body| {
            let steps = pipeline::checked(steps, &body.steps)?;
            body.n_prepended = steps.iter().take_while(|step| matches!(step.task, StepTask::Custom(_))).count();
            Ok(std::mem::replace(&mut body.steps, steps))
        })?;
        drop(replaced); // Dropped outside the lock: a user step is a closure of the user, whose drop may run any code.
        Ok(())
    }

    /// Removes all user steps.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn clear_steps(&self) -> Result<()> {
        self.shared().edit(|body| {
            body.steps.retain(|step| !matches!(step.task, StepTask::Custom(_)));
            body.n_prepended = 0;
            Ok(())
        })
    }

    /// Returns the duration of the latest run, without its callback.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn latency(&self) -> Result<Duration> {
        let guarded = self.shared().lock_unread();
        guarded.check_idle()?;
        Ok(guarded.latency)
    }

    /// Returns the duration of the latest run that has ended, without its callback. Returns zero before the first run has ended. Works also
    /// while a run is in progress.
    pub fn latest_latency(&self) -> Duration {
        self.shared().guarded.lock().unwrap().latency
    }

    /// Returns the duration of each step of the latest run.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn step_times(&self) -> Result<Vec<StepTime>> {
        self.shared().with_body(|body| Ok(body.step_times()))
    }

    /// Returns the execution times of the model's nodes in the latest run. The model must be compiled with
    /// [`Config::profiling`](super::Config::profiling).
    ///
    /// # Errors
    /// Returns `Config` if the model was compiled without profiling. Returns `Unsupported` if the device does not report times. Returns
    /// `Busy` while the request runs.
    pub fn profiling_info(&self) -> Result<Vec<NodeTime>> {
        self.shared().read(|body| match body.seat.as_ref().and_then(Seat::profile) {
            Some(profile) => Ok(profile),
            None => body.device.profiling_info(),
        })
    }

    /// Same as [`InferRequest::step_times`], but calls `visit` for each step and does not allocate.
    ///
    /// # Errors
    /// Returns `Busy` while the request runs.
    pub fn visit_step_times(&self, mut visit: impl FnMut(&Arc<str>, Duration)) -> Result<()> {
        let mut of_run = None;
        for step_idx in 0.. {
            // Copy one step at a time under the lock. `visit` may use the request, so the lock must not be held during its call.
            let step = self.shared().with_body(|body| {
                if *of_run.get_or_insert(body.run) != body.run {
                    let message = "the request ran again while its step times were visited; visit them before its next start";
                    return Err(Error::new(ErrorKind::Busy, message));
                }
                Ok(body.steps.get(step_idx).map(|step| (step.name.clone(), step.duration)))
            })?;
            let Some((name, duration)) = step else { break };
            visit(&name, duration);
        }
        Ok(())
    }

    /// Returns the compiled model.
    pub fn compiled_model(&self) -> CompiledModel {
        CompiledModel::from_shared(self.model().clone())
    }

    /// Returns a weak handle.
    pub fn downgrade(&self) -> WeakInferRequest {
        WeakInferRequest(Arc::downgrade(&self.0))
    }

    /// Returns the number that identifies the request in traces.
    pub fn id(&self) -> u64 {
        self.shared().id
    }

    /// Sets the name of the request, for example the name of a camera, a user or a shard. The name appears in traces, in `Debug`, and in
    /// errors of starts.
    ///
    /// ```
    /// # use roiflow::{devices, tensor::{ElementType, Tensor}};
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// # let model = devices::core().compile("assets/tiny/double.onnx", "CPU")?;
    /// let request = model.create_infer_request()?;
    /// request.set_name("front door");
    /// let error = request.infer(Tensor::new(ElementType::U8, [1, 4])?).unwrap_err();
    /// assert_eq!(error.to_string(), "request `front door`: input `x`: expected [?, 4] f32, got [1, 4] u8");
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_name(&self, name: &str) {
        let (request, model, device) = (self.id(), &*self.model().name, &*self.model().device);
        tracing::trace!(target: "roiflow::trace", request, model, device, name, "request");
        let previous = self.shared().guarded.lock().unwrap().name.replace(name.into());
        drop(previous);
    }

    /// Returns the name that [`InferRequest::set_name`] set.
    pub fn name(&self) -> Option<Arc<str>> {
        self.shared().guarded.lock().unwrap().name.clone()
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    pub(super) fn model(&self) -> &Arc<CompiledShared> {
        &self.0.model
    }

    pub(super) fn begin(&self, inputs: &impl Inputs, calls_back: bool) -> Result<Box<Body>> {
        self.0.begin(inputs, calls_back)
    }

    /// Begins a run for the queue that owns the request.
    pub(super) fn begin_for_queue(&self, inputs: &impl Inputs) -> Result<Box<Body>> {
        self.0.begin_for_queue(inputs, true)
    }

    /// Same as [`InferRequest::start_async`], but copies all slices of batches on the calling thread, and then calls `copied`. The leases on
    /// the slices have ended by then.
    pub(super) fn start_copied(&self, inputs: impl Inputs, copied: impl FnOnce()) -> Result<()> {
        let begun = self.begin(&inputs, true).map(|mut body| {
            if let Err(error) = body.io.fill() {
                body.abandon(&self.shared().cancel, error);
            }
            body
        });
        copied();
        self.shared().pass_on(begun?);
        Ok(())
    }

    /// Sets the function that is called when no run and no callback is in progress any more; see [`OnQuiet`].
    pub(super) fn set_on_quiet(&self, on_quiet: OnQuiet) {
        self.shared().set_on_quiet(on_quiet);
    }
}

fn io_set(body: &mut Body, ports: &[Port], inputs: &impl Inputs) -> Result<()> {
    let Body { device, io, .. } = body;
    io.set_inputs(&mut **device, ports, inputs)
}

fn check_outputs(body: &Body, ports: &[Port], tensors: &[(usize, Tensor)]) -> Result<()> {
    tensors.iter().try_for_each(|(output_idx, tensor)| {
        check_memory("output", &ports[*output_idx], tensor, &*body.device)?;
        body.io.check_new_output(*output_idx, tensor, tensors)
    })
}

/// The values for inputs, selected from a list of values for inputs and outputs.
struct OfInputs<'a, I> {
    tensors: &'a I,
    inputs: &'a [Port],
}

impl<I: Inputs> Inputs for OfInputs<'_, I> {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        self.tensors.visit(&mut |key, value| if key.find("input", self.inputs).is_ok() { see(key, value) } else { Ok(()) })
    }
}

fn custom_step(executor: Arc<dyn Executor>, name: &str, step: CustomStep) -> Step {
    Step { name: name.into(), executor, task: StepTask::Custom(step), duration: Duration::ZERO }
}

fn check_output(port: &Port, tensor: &Tensor) -> Result<()> {
    // The run computes the dynamic extents and then sets the shape of the tensor, so the shape that the tensor has now does not matter.
    let is_open = port.shape.to_static().is_none();
    if is_open && tensor.element() == port.element { Ok(()) } else { check_fits("output", port, tensor.element(), &tensor.shape()) }
}

/// Returns the error for a key that matches no input and no output. `of_inputs` and `of_outputs` are the errors of both searches.
fn neither(of_inputs: &Error, of_outputs: Error) -> Error {
    match of_outputs.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::NotFound, format!("{of_inputs}; {of_outputs}")),
        _ => of_outputs,
    }
}

impl WeakInferRequest {
    /// Returns a strong handle, if the request still exists.
    pub fn upgrade(&self) -> Option<InferRequest> {
        self.0.upgrade().map(InferRequest)
    }
}

impl PartialEq for InferRequest {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for InferRequest {}

impl Hash for InferRequest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl fmt::Debug for InferRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Do not block: a debugger may format the request while another thread holds the lock. The name is then left out.
        let name = self.shared().guarded.try_lock().ok().and_then(|guarded| guarded.name.clone());
        match name {
            Some(name) => write!(f, "InferRequest({} `{name}`)", self.id()),
            None => write!(f, "InferRequest({})", self.id()),
        }
    }
}
