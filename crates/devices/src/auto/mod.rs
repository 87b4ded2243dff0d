//! The device `AUTO`. For each model, it chooses the first device of a list that can run the model. `AUTO` has no engine of its own:
//! compiled models and requests are those of the chosen device.
//!
//! - The list is `OPENVINO.CPU`, `ORT.CPU`, `CPU`, because usually the faster engines come first in this order. `AUTO` measures no speed.
//! - The environment variable `ROIFLOW_DEVICE` replaces the list by a device or a comma-separated list of devices.
//! - `AUTO` skips a device that cannot compile the model, or whose output shapes the caller cannot use.
//! - `AUTO` skips a device whose results would differ from exact arithmetic ([`Device::inexact`]), unless the list has only this device.
//! - A model that is an address on an inference server runs on `REMOTE`.
//! - `AUTO` logs the chosen device, and each skipped device with the reason, at info level. The search for libraries (`find`) logs a
//!   warning for each library that cannot be used.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crate::runtime::device::{Device, DeviceInfo, DeviceModel};
use crate::runtime::executor::Executors;
use crate::runtime::{Config, Core, Error, ErrorKind, Model, ModelInfo, ModelSource, Result};

const NAME: &str = "AUTO";
const VARIABLE: &str = "ROIFLOW_DEVICE";
/// The device that runs models on inference servers.
const REMOTE: &str = "REMOTE";
const FASTEST_FIRST: &str = "OPENVINO.CPU,ORT.CPU,CPU";

/// The device `AUTO`.
pub struct AutoDevice {
    /// The core with all devices except `AUTO`.
    core: Core,
    order: Option<String>,
    /// The messages that were already logged, so that each message is logged only once.
    logged: Mutex<HashSet<String>>,
}

impl AutoDevice {
    /// Creates a device that chooses among the devices that `core` has now.
    pub fn new(core: Core) -> Self {
        Self { core, order: None, logged: Mutex::default() }
    }

    /// Same as [`AutoDevice::new`], but with this order (comma-separated names) instead of `ROIFLOW_DEVICE` or the default order.
    pub fn with_order(core: Core, order: &str) -> Self {
        Self { order: Some(order.to_owned()), ..Self::new(core) }
    }

    fn order(&self) -> Vec<String> {
        let asked = std::env::var(VARIABLE).ok().filter(|names| !names.trim().is_empty());
        let names = self.order.clone().or(asked).unwrap_or_else(|| FASTEST_FIRST.to_owned());
        let names = names.split(',').map(|name| name.trim().to_owned());
        names.filter(|name| !name.is_empty() && name != NAME).collect()
    }

    /// Returns the order for this model. Only the device `REMOTE` runs models on inference servers.
    fn order_for(&self, model: &Model) -> Vec<String> {
        match model.source() {
            ModelSource::Remote(address) if ModelSource::is_address(address) => vec![REMOTE.to_owned()],
            _ => self.order(),
        }
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
            description: "runs each model on the first device of the order that accepts it".to_owned(),
            properties: vec![("order", self.order().join(", "))],
            missing: None,
        }
    }

    fn read_model(&self, _source: &ModelSource) -> Result<ModelInfo> {
        // `Core::read_model` asks the other devices directly, so no caller needs this function.
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("device {NAME} cannot read a model itself; read the model with one of the devices among which {NAME} chooses"),
        ))
    }

    fn prepare(&self) -> bool {
        self.order().iter().any(|name| self.core.prepare(name))
    }

    /// Returns the value of the first device of the order, because `AUTO` tries this device first.
    fn copy_bytes(&self, model: &Model) -> Option<u64> {
        self.core.copy_bytes(model, self.order_for(model).first()?)
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
        let order = self.order_for(model);
        let mut refused: Vec<Error> = Vec::new();
        let mut skipped: Vec<String> = Vec::new();
        // The reason why the caller cannot use the ports that a device reported. Only the first reason is kept, because it is more specific
        // than the reasons of later devices.
        let mut unusable: Option<Error> = None;
        for (name, next) in order.iter().zip(order.iter().skip(1).map(Some).chain([None])) {
            // If the list has only one device, the user chose this device explicitly, so it is used even if results may differ.
            if let Some(why) = self.core.inexact(model, name).filter(|_| order.len() > 1) {
                self.log_once(format!("device {NAME} skips {name} for `{}`, because results could change: {why}", model.name()));
                skipped.push(format!("{name} was skipped, because results could change: {why} (to use {name}, set it as the device)"));
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
                // If a device reports static output shapes, all devices would report the same shapes, so trying further devices is useless.
                if !leaves_open {
                    return Err(unusable.unwrap_or(error));
                }
                if let Some(next) = next {
                    self.log_once(format!(
                        "device {NAME} tries {next} next: the ports that {name} reports for `{}` cannot be used: {error}",
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
                        self.log_once(format!("device {NAME} tries {next} next: {error}"));
                    }
                    refused.push(error);
                }
            }
        }
        if let Some(error) = unusable {
            return Err(error);
        }
        // If only one device was tried, its error is returned unchanged, because it is the most specific.
        if let ([error], []) = (&*refused, &*skipped) {
            return Err(error.clone());
        }
        let kind = if refused.iter().any(|error| error.kind() == ErrorKind::Model) { ErrorKind::Model } else { ErrorKind::Unsupported };
        let reasons: Vec<_> = refused.iter().map(Error::to_string).chain(skipped).collect();
        Err(Error::new(kind, format!("device {NAME}: none of {} runs the model: {}", order.join(", "), reasons.join("; "))))
    }
}
