//! Ports and steps of a model that computes nothing.

use std::sync::Arc;

use super::Script;
use super::request::NullRequest;
use crate::runtime::device::{DeviceModel, DeviceRequest, DeviceStep};
use crate::runtime::executor::Executor;
use crate::runtime::{ModelInfo, Result};

pub(super) struct NullModel {
    info: ModelInfo,
    script: Arc<Script>,
    steps: Vec<DeviceStep>,
}

impl NullModel {
    /// With a waiter, a run is handed to the device by the processor, waited for, and finished by the processor, as on an
    /// accelerator; without one it is computed in one step.
    pub(super) fn new(info: ModelInfo, script: Arc<Script>, cpu: Arc<dyn Executor>, waiter: Option<Arc<dyn Executor>>) -> Self {
        let mut steps = match waiter {
            Some(waiter) => vec![
                DeviceStep { name: "submit", executor: cpu.clone() },
                DeviceStep { name: "wait", executor: waiter },
                DeviceStep { name: "finish", executor: cpu },
            ],
            None => vec![DeviceStep { name: "infer", executor: cpu }],
        };
        steps.extend(script.more_steps.iter().map(|(name, executor)| DeviceStep { name, executor: executor.clone() }));
        Self { info, script, steps }
    }
}

impl DeviceModel for NullModel {
    fn info(&self) -> &ModelInfo {
        &self.info
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
        Ok(Box::new(NullRequest { info: self.info.clone(), script: self.script.clone(), steps }))
    }
}
