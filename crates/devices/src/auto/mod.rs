//! `AUTO`: for each model the fastest device that compiles it. It has no engine: compiled models and requests are those of the chosen device.
//!
//! - The order is `OPENVINO.CPU`, `ORT.CPU`, `CPU`. The variable `ROIFLOW_DEVICE` sets another device, or a comma-separated list.
//! - A device is also skipped if the caller cannot use the ports that it reports.
//! - A device that would change results ([`Device::inexact`]) is skipped.
//! - Each skipped device is logged with the reason, and so is the chosen one, at info level. The search warns of a library that cannot be
//!   used, see `find`.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crate::runtime::device::{Device, DeviceInfo, DeviceModel};
use crate::runtime::executor::Executors;
use crate::runtime::{Config, Core, Error, ErrorKind, Model, ModelInfo, ModelSource, Result};

const NAME: &str = "AUTO";
const VARIABLE: &str = "ROIFLOW_DEVICE";
const FASTEST_FIRST: &str = "OPENVINO.CPU,ORT.CPU,CPU";

/// The device.
pub struct AutoDevice {
    /// The devices to choose from, without `AUTO`.
    core: Core,
    order: Option<String>,
    /// Messages that were logged already.
    logged: Mutex<HashSet<String>>,
}

impl AutoDevice {
    /// Chooses among the devices of `core`. Devices that are registered later are not included.
    pub fn new(core: Core) -> Self {
        Self { core, order: None, logged: Mutex::default() }
    }

    /// As [`AutoDevice::new`], with this order (comma-separated names) instead of that of the variable or the default.
    pub fn with_order(core: Core, order: &str) -> Self {
        Self { order: Some(order.to_owned()), ..Self::new(core) }
    }

    fn order(&self) -> Vec<String> {
        let asked = std::env::var(VARIABLE).ok().filter(|names| !names.trim().is_empty());
        let names = self.order.clone().or(asked).unwrap_or_else(|| FASTEST_FIRST.to_owned());
        let names = names.split(',').map(|name| name.trim().to_owned());
        names.filter(|name| !name.is_empty() && name != NAME).collect()
    }

    fn log_once(&self, sentence: String) {
        if self.logged.lock().unwrap().insert(sentence.clone()) {
            tracing::info!("{sentence}");
        }
    }
}

impl Device for AutoDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            description: "for each model the fastest device that runs it".to_owned(),
            properties: vec![("order", self.order().join(", "))],
            missing: None,
        }
    }

    fn read_model(&self, _source: &ModelSource) -> Result<ModelInfo> {
        // Its core calls those devices directly.
        Err(Error::new(ErrorKind::Unsupported, format!("device {NAME} reads what the devices read that it chooses from")))
    }

    fn prepare(&self) -> bool {
        self.order().iter().any(|name| self.core.prepare(name))
    }

    /// As the first device of the order.
    fn copy_bytes(&self, model: &Model) -> Option<u64> {
        self.core.copy_bytes(model, self.order().first()?)
    }

    fn compile(&self, model: &Model, config: &Config, executors: &Executors) -> Result<Arc<dyn DeviceModel>> {
        self.compile_accepted(model, config, executors, &|_| Ok(()))
    }

    fn compile_accepted(
        &self,
        model: &Model,
        config: &Config,
        _executors: &Executors,
        accept: &dyn Fn(&ModelInfo) -> Result<()>,
    ) -> Result<Arc<dyn DeviceModel>> {
        let order = self.order();
        let mut refused: Vec<Error> = Vec::new();
        let mut skipped: Vec<String> = Vec::new();
        // Why the caller cannot use the ports of the first device that compiled the model: more specific than later refusals.
        let mut unusable: Option<Error> = None;
        for (name, next) in order.iter().zip(order.iter().skip(1).map(Some).chain([None])) {
            // A list of one device is the user's choice.
            if let Some(why) = self.core.inexact(model, name).filter(|_| order.len() > 1) {
                self.log_once(format!("device {NAME} skips {name} for `{}`, because results could change: {why}", model.name()));
                skipped.push(format!("{name} was skipped, because results could change: {why} (choose it by its name to use it)"));
                continue;
            }
            let not_accepted = Cell::new(None);
            let accept = |info: &ModelInfo| {
                accept(info).inspect_err(|error| {
                    let leaves_open = info.outputs.iter().any(|port| port.shape.to_static().is_none());
                    not_accepted.set(Some((error.clone(), leaves_open)));
                })
            };
            let compiled = self.core.compile_device_model(model, name, config, &accept);
            if let Some((error, leaves_open)) = not_accepted.take() {
                // If a device knows all shapes, the others report the same.
                if !leaves_open {
                    return Err(unusable.unwrap_or(error));
                }
                if let Some(next) = next {
                    self.log_once(format!(
                        "device {NAME} goes on to {next}: what {name} reports of `{}` cannot be used: {error}",
                        model.name()
                    ));
                }
                unusable.get_or_insert(error);
                continue;
            }
            match compiled {
                Ok(compiled) => {
                    self.log_once(format!("device {NAME}: {name} runs `{}`", model.name()));
                    return Ok(compiled);
                }
                Err(error) => {
                    if let Some(next) = next {
                        self.log_once(format!("device {NAME} goes on to {next}: {error}"));
                    }
                    refused.push(error);
                }
            }
        }
        if let Some(error) = unusable {
            return Err(error);
        }
        // The error of a single device is the most specific.
        if let ([error], []) = (&*refused, &*skipped) {
            return Err(error.clone());
        }
        let kind = if refused.iter().any(|error| error.kind() == ErrorKind::Model) { ErrorKind::Model } else { ErrorKind::Unsupported };
        let reasons: Vec<_> = refused.iter().map(Error::to_string).chain(skipped).collect();
        Err(Error::new(kind, format!("device {NAME}: none of {} runs the model: {}", order.join(", "), reasons.join("; "))))
    }
}
