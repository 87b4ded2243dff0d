//! Ports and steps of a model that computes nothing.

use std::sync::Arc;

use super::Script;
use super::request::NullRequest;
use crate::runtime::device::{DeviceModel, DeviceRequest, DeviceStep};
use crate::runtime::executor::{Executor, Executors};
use crate::runtime::{ModelInfo, Result};

pub(super) struct NullModel {
    info: ModelInfo,
    script: Arc<Script>,
    executor: Arc<dyn Executor>,
}

impl NullModel {
    pub(super) fn new(info: ModelInfo, script: Arc<Script>, executors: &Executors) -> Result<Self> {
        let executor = match &script.executor {
            Some(executor) => executor.clone(),
            None => executors.cpu()?,
        };
        Ok(Self { info, script, executor })
    }
}

impl DeviceModel for NullModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn steps(&self) -> Vec<DeviceStep> {
        let mut steps = vec![DeviceStep { name: "infer", executor: self.executor.clone() }];
        steps.extend(self.script.more_steps.iter().map(|(name, executor)| DeviceStep { name, executor: executor.clone() }));
        steps
    }

    fn optimal_number_of_requests(&self) -> usize {
        2
    }

    fn create_request(&self) -> Result<Box<dyn DeviceRequest>> {
        Ok(Box::new(NullRequest { info: self.info.clone(), script: self.script.clone() }))
    }
}
