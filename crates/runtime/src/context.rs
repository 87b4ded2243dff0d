//! What user steps can see of a run.

use std::fmt;

use super::io::{InputLease, InputSlot, OutputSlot, RunIo};
use super::steps::CancelToken;
use super::{Error, ErrorKind, Port, PortKey, Result};
use crate::tensor::{Element, Shape, Tensor};

/// The inputs, the outputs and the cancel token of a run, for user steps.
pub struct RunContext<'a> {
    pub(super) io: &'a RunIo,
    pub(super) cancel: &'a CancelToken,
    pub(super) run: u64,
}

impl RunContext<'_> {
    /// Returns the number of the run, counted from 1.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns the cancel token of the run. A step that takes long should check this token from time to time.
    pub fn cancel(&self) -> &CancelToken {
        self.cancel
    }

    /// Returns the number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.io.visible_inputs().len()
    }

    /// Returns the number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.io.visible_outputs().len()
    }

    /// Returns the port of an input. The key is a name, an index, a port, or `()` for the only input.
    ///
    /// # Errors
    /// Returns `NotFound` if there is no such input.
    pub fn input_port<'k>(&self, key: impl Into<PortKey<'k>>) -> Result<&Port> {
        self.input_slot(key.into()).map(|slot| &slot.port)
    }

    /// Returns the port of an output. The key is a name, an index, a port, or `()` for the only output.
    ///
    /// # Errors
    /// Returns `NotFound` if there is no such output.
    pub fn output_port<'k>(&self, key: impl Into<PortKey<'k>>) -> Result<&Port> {
        self.output_slot(key.into()).map(|slot| &slot.port)
    }

    /// Returns the shape and values of an input, in row-major order: `run.input::<f32>("x")?`.
    ///
    /// # Errors
    /// Returns `NotFound` if there is no such input. Returns `Tensor` if the element type is not `T`, if the input is a tensor with gaps
    /// that the user set, if it is in device memory, or if the step runs before the input is filled.
    pub fn input<'k, T: Element>(&self, key: impl Into<PortKey<'k>>) -> Result<(Shape, &[T])> {
        let slot = self.input_slot(key.into())?;
        match &slot.lease {
            Some(InputLease::Read(bytes)) => Ok((*bytes.layout().shape(), bytes.dense::<T>()?)),
            Some(InputLease::Remote(_)) => Err(unseen("input", &slot.port, slot.read())),
            _ => Err(Error::new(ErrorKind::Tensor, format!("input {} is not filled yet: read it in a step after `fill`", slot.port))),
        }
    }

    /// Returns the shape and values of an output, in row-major order: `run.output::<f32>("scores")?`.
    ///
    /// # Errors
    /// Returns `NotFound` if there is no such output. Returns `Tensor` if the element type is not `T`, if the step runs before the steps of
    /// the device, or if the user set an output tensor that has gaps or is in device memory.
    pub fn output<'k, T: Element>(&self, key: impl Into<PortKey<'k>>) -> Result<(Shape, &[T])> {
        let slot = self.output_slot(key.into())?;
        let bytes = slot.lease.as_ref().ok_or_else(|| match slot.remote {
            Some(_) => unseen("output", &slot.port, &slot.tensor),
            None => Error::new(
                ErrorKind::Tensor,
                format!("output {} is not computed yet: read it in a step after the steps of the device", slot.port),
            ),
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

/// Creates the error for values in device memory, which the host cannot read.
pub(super) fn unseen(kind: &str, port: &Port, tensor: &Tensor) -> Error {
    let place = tensor.remote_place().unwrap_or_default();
    Error::new(ErrorKind::Tensor, format!("{kind} {port}: the tensor is in {place}, which the host cannot access")).with_port(port.name())
}
