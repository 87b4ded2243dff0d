//! The ports and steps of a model on the `NULL` device.

use std::sync::Arc;

use super::Script;
use super::request::{NullRequest, Times};
use crate::device::{DeviceModel, DeviceRequest, DeviceStep};
use crate::executor::Executor;
use crate::{Completion, Config, Ignored, ModelInfo, Precision, Result};

pub(super) struct NullModel {
    info: ModelInfo,
    script: Arc<Script>,
    steps: Vec<DeviceStep>,
    config: Config,
}

impl NullModel {
    /// Creates a model. If there is a waiter, a run has three steps, as on an accelerator: the CPU submits the work, the waiter waits for
    /// it, and the CPU finishes it. If the script has an engine, a run has only the first and the last of these steps. Otherwise, a run has
    /// one step.
    pub(super) fn new(
        info: ModelInfo,
        script: Arc<Script>,
        config: Config,
        cpu: Arc<dyn Executor>,
        waiter: Option<Arc<dyn Executor>>,
    ) -> Self {
        let mut steps = match waiter {
            Some(waiter) => vec![
                DeviceStep { name: "submit", executor: cpu.clone() },
                DeviceStep { name: "wait", executor: waiter },
                DeviceStep { name: "finish", executor: cpu },
            ],
            None if script.engine.is_some() => {
                vec![DeviceStep { name: "submit", executor: cpu.clone() }, DeviceStep { name: "finish", executor: cpu }]
            }
            None => vec![DeviceStep { name: "infer", executor: cpu }],
        };
        steps.extend(script.more_steps.iter().map(|(name, executor)| DeviceStep { name, executor: executor.clone() }));
        Self { info, script, steps, config }
    }
}

impl DeviceModel for NullModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn ignored(&self) -> Vec<Ignored> {
        let (config, why) = (&self.config, "nothing is computed");
        Ignored::of([
            (config.precision != Precision::F32, "precision", why),
            (config.n_threads.is_some(), "n_threads", why),
            (config.cache_folder.is_some(), "cache_folder", why),
        ])
    }

    fn steps(&self) -> Vec<DeviceStep> {
        self.steps.clone()
    }

    fn optimal_number_of_requests(&self) -> usize {
        2
    }

    fn rows_are_independent(&self) -> Option<bool> {
        Some(!self.script.mixes_rows)
    }

    fn create_request(&self) -> Result<Box<dyn DeviceRequest>> {
        let steps = self.steps.iter().map(|step| step.name).collect();
        let times: Option<Times> = self.config.profiling.then(Times::default);
        let completion = self.script.engine.is_some().then(Completion::new);
        Ok(Box::new(NullRequest { info: self.info.clone(), script: self.script.clone(), steps, times, completion }))
    }
}
