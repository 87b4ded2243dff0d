//! A run, as a user step sees it.

use std::fmt;

use super::io::{InputLease, InputSlot, OutputSlot, RunIo};
use super::steps::CancelToken;
use super::{Error, ErrorKind, Port, PortKey, Result};
use crate::tensor::{Element, Shape, Tensor};

/// A run, as a user step sees it: its inputs and outputs.
pub struct RunContext<'a> {
    pub(super) io: &'a RunIo,
    pub(super) cancel: &'a CancelToken,
    pub(super) run: u64,
}

impl RunContext<'_> {
    /// The number of the run, from 1.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// To be checked by steps that take long.
    pub fn cancel(&self) -> &CancelToken {
        self.cancel
    }

    /// Number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.io.visible_inputs().len()
    }

    /// Number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.io.visible_outputs().len()
    }

    /// The port of an input, by name, index, port, or `()` for the only one.
    ///
    /// # Errors
    /// `NotFound` if there is no such input.
    pub fn input_port<'k>(&self, key: impl Into<PortKey<'k>>) -> Result<&Port> {
        self.input_slot(key.into()).map(|slot| &slot.port)
    }

    /// The port of an output, by name, index, port, or `()` for the only one.
    ///
    /// # Errors
    /// `NotFound` if there is no such output.
    pub fn output_port<'k>(&self, key: impl Into<PortKey<'k>>) -> Result<&Port> {
        self.output_slot(key.into()).map(|slot| &slot.port)
    }

    /// The values of an input, last axis fastest, and their shape: `run.input::<f32>("x")?`.
    ///
    /// # Errors
    /// `NotFound` if there is no such input; `Tensor` if the element type is not `T`, the caller's own tensor has gaps, or the step runs
    /// before the input is filled.
    pub fn input<'k, T: Element>(&self, key: impl Into<PortKey<'k>>) -> Result<(Shape, &[T])> {
        let slot = self.input_slot(key.into())?;
        match &slot.lease {
            Some(InputLease::Read(bytes)) => Ok((*bytes.layout().shape(), bytes.dense::<T>()?)),
            Some(InputLease::Remote(_)) => Err(unseen("input", &slot.port, slot.read())),
            _ => Err(Error::new(ErrorKind::Tensor, format!("input {} is not filled yet: read it in a step after `fill`", slot.port))),
        }
    }

    /// The values of an output, last axis fastest, and their shape: `run.output::<f32>("scores")?`.
    ///
    /// # Errors
    /// `NotFound` if there is no such output; `Tensor` if the element type is not `T`, the step runs before the device's, or the caller's
    /// own output tensor has gaps or lies in a device's memory.
    pub fn output<'k, T: Element>(&self, key: impl Into<PortKey<'k>>) -> Result<(Shape, &[T])> {
        let slot = self.output_slot(key.into())?;
        let bytes = slot.lease.as_ref().ok_or_else(|| match slot.remote {
            Some(_) => unseen("output", &slot.port, &slot.tensor),
            None => {
                Error::new(ErrorKind::Tensor, format!("output {} is not computed yet: read it in a step after the device's", slot.port))
            }
        })?;
        Ok((*bytes.layout().shape(), bytes.dense::<T>()?))
    }

    fn input_slot(&self, key: PortKey<'_>) -> Result<&InputSlot> {
        let slots = self.io.visible_inputs();
        Ok(&slots[key.find_in("input", slots.iter().map(|slot| &slot.port))?])
    }

    fn output_slot(&self, key: PortKey<'_>) -> Result<&OutputSlot> {
        let slots = self.io.visible_outputs();
        Ok(&slots[key.find_in("output", slots.iter().map(|slot| &slot.port))?])
    }
}

impl fmt::Debug for RunContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunContext(run {})", self.run)
    }
}

/// The error for values in a device's memory.
pub(super) fn unseen(kind: &str, port: &Port, tensor: &Tensor) -> Error {
    let place = tensor.remote_place().unwrap_or_default();
    Error::new(ErrorKind::Tensor, format!("{kind} {port}: it lies in {place}, which the host can't see")).with_port(port.name())
}
