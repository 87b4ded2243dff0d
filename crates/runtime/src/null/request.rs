//! A request of the `NULL` device. Its runs do what the script says.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{NullMemory, Script};
use crate::device::{DeviceRequest, profiling_is_off};
use crate::executor::Task;
use crate::io::DeviceIo;
use crate::tensor::{Shape, Tensor};
use crate::{CancelToken, Completion, Error, ErrorKind, ModelInfo, NodeStatus, NodeTime, Result};

pub(super) struct NullRequest {
    pub(super) info: ModelInfo,
    pub(super) script: Arc<Script>,
    /// The names of the steps of the model.
    pub(super) steps: Vec<&'static str>,
    /// The times of the latest run; `None` if profiling is disabled.
    pub(super) times: Option<Times>,
    /// Reports the end of asynchronous work. `None` if the script has no engine: the work then ends before the call returns.
    pub(super) completion: Option<Arc<Completion>>,
}

/// The work of the script's engine for one run.
struct Work {
    script: Arc<Script>,
    completion: Arc<Completion>,
}

impl Task for Work {
    fn run(self: Arc<Self>) {
        self.script.pass_gate();
        self.completion.complete(Ok(()));
    }
}

/// The measured times of the only node in the profile. This node represents the whole script.
#[derive(Default)]
pub(super) struct Times {
    n_steps: usize,
    real: Duration,
}

impl DeviceRequest for NullRequest {
    fn allocate_input(&mut self, port_idx: usize, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::new(self.info.inputs[port_idx].element, shape)?)
    }

    fn run_step(&mut self, step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()> {
        let Some(times) = &mut self.times else { return self.follow_script(step_idx, io, cancel) };
        if step_idx == 0 {
            *times = Times::default();
        }
        let begin = Instant::now();
        let followed = self.follow_script(step_idx, io, cancel);
        if let (Some(times), Ok(())) = (&mut self.times, &followed) {
            (times.n_steps, times.real) = (times.n_steps + 1, times.real + begin.elapsed());
        }
        followed
    }

    fn completion(&self) -> Option<Arc<Completion>> {
        self.completion.clone()
    }

    fn accepts_remote(&self, tensor: &Tensor) -> bool {
        tensor.in_remote::<NullMemory>().is_some()
    }

    fn profiling_info(&self) -> Result<Vec<NodeTime>> {
        let times = self.times.as_ref().ok_or_else(profiling_is_off)?;
        let status = if times.n_steps == self.steps.len() { NodeStatus::Executed } else { NodeStatus::NotRun };
        let real = if status == NodeStatus::Executed { times.real } else { Duration::ZERO };
        Ok(vec![NodeTime { name: "script".to_owned(), kind: "Null".to_owned(), status, real, cpu: None }])
    }
}

impl NullRequest {
    fn follow_script(&self, step_idx: usize, io: &mut DeviceIo<'_>, cancel: &CancelToken) -> Result<()> {
        match self.steps[step_idx] {
            "infer" => {
                self.script.n_calls.fetch_add(1, Ordering::AcqRel);
                self.script.pass_gate();
            }
            "submit" => {
                self.script.n_calls.fetch_add(1, Ordering::AcqRel);
                if let (Some(completion), Some(engine)) = (&self.completion, &self.script.engine) {
                    let work = Work { script: self.script.clone(), completion: completion.clone() };
                    return completion.start(|| {
                        engine.execute(Arc::new(work));
                        Ok(())
                    });
                }
                return Ok(());
            }
            "wait" if self.script.has_own_waiter => {
                self.script.pass_gate();
                return Ok(());
            }
            "finish" if self.script.has_own_waiter || self.completion.is_some() => {}
            _ => return Ok(()),
        }
        if let Some(compute) = &self.script.compute {
            return compute(io, cancel);
        }
        // If the first axis of an output is dynamic, it is the batch, and gets the extent that the first axis of the first input has.
        let batch = if io.n_inputs() > 0 { io.input_tensor(0).shape().first().copied() } else { None };
        for (output_idx, port) in self.info.outputs.iter().enumerate() {
            let shape = port.shape.with_dynamic(|axis| if axis == 0 { batch } else { None });
            let shape = shape
                .ok_or_else(|| Error::new(ErrorKind::Unsupported, format!("device NULL cannot determine the shape of output {port}")))?;
            let tensor = io.output_tensor(output_idx, &shape)?;
            if let Some(on_device) = NullMemory::on_device(tensor) {
                on_device.elements_mut()?.fill_zero();
                continue;
            }
            io.output(output_idx, &shape)?.fill_zero();
        }
        Ok(())
    }
}
