//! The outputs of a run. A caller selects an output by name, index or port.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use ndarray::ArrayD;

use super::{Error, Port, PortKey, Result};
use crate::tensor::{Element, Tensor, View};

/// The output tensors of one run.
///
/// The results of [`InferRequest::results`](super::InferRequest::results) share the request's own tensors, without a copy. The next run
/// writes into these tensors. While a view of a tensor exists, starting the next run fails with `Busy`. The results of
/// [`CompiledModel::infer`](super::CompiledModel::infer) and of [`Results::to_owned`] are independent of later runs.
#[derive(Clone)]
pub struct Results {
    ports: Arc<[Port]>,
    /// The index of the port and the tensor of each output, in the requested order.
    tensors: Vec<(usize, Tensor)>,
}

impl Results {
    pub(super) fn new(ports: Arc<[Port]>, tensors: Vec<(usize, Tensor)>) -> Self {
        Self { ports, tensors }
    }

    /// Returns the number of requested outputs.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns whether no output was requested.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Returns the ports and tensors, in the requested order.
    pub fn iter(&self) -> impl Iterator<Item = (&Port, &Tensor)> {
        self.tensors.iter().map(|(port_idx, tensor)| (&self.ports[*port_idx], tensor))
    }

    /// Returns the tensor of an output. The key is a name, an index among all outputs of the model, a port, or `()` for the only output.
    ///
    /// # Errors
    /// Returns `NotFound` if the model has no such output, or if the output was not requested.
    pub fn tensor<'a>(&self, key: impl Into<PortKey<'a>>) -> Result<&Tensor> {
        let port_idx = key.into().find("output", &self.ports)?;
        self.tensors.iter().find(|(of, _)| *of == port_idx).map(|(_, tensor)| tensor).ok_or_else(|| {
            let message = format!("output {} was not requested; request it, or request all results", self.ports[port_idx]);
            Error::new(super::ErrorKind::NotFound, message)
        })
    }

    /// Returns the values of an output, without a copy.
    ///
    /// # Errors
    /// Returns the errors of [`Results::tensor`]. Also returns `Tensor` if the element type is not `T`, and `Busy` while a run writes the
    /// values.
    pub fn view<'a, T: Element>(&self, key: impl Into<PortKey<'a>>) -> Result<View<T>> {
        Ok(self.tensor(key)?.view()?)
    }

    /// Returns a copy of the values of an output.
    ///
    /// # Errors
    /// Returns the errors of [`Results::view`].
    pub fn array<'a, T: Element>(&self, key: impl Into<PortKey<'a>>) -> Result<ArrayD<T>> {
        Ok(self.view(key)?.to_owned())
    }

    /// Copies the results into tensors that no later run changes.
    ///
    /// # Errors
    /// Returns `Busy` while a run writes the values.
    pub fn to_owned(&self) -> Result<Self> {
        let copy = |(port_idx, tensor): &(usize, Tensor)| {
            let own = Tensor::new(tensor.element(), tensor.shape())?;
            tensor.copy_to(&own)?;
            Ok((*port_idx, own))
        };
        Ok(Self { ports: self.ports.clone(), tensors: self.tensors.iter().map(copy).collect::<Result<_>>()? })
    }

    /// Returns the tensors, in the requested order.
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.tensors.into_iter().map(|(_, tensor)| tensor).collect()
    }
}

impl Index<usize> for Results {
    type Output = Tensor;

    /// # Panics
    /// Panics if the model has no such output, or if the output was not requested. [`Results::tensor`] returns an error instead.
    fn index(&self, output_idx: usize) -> &Tensor {
        self.tensor(output_idx).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Index<&str> for Results {
    type Output = Tensor;

    /// # Panics
    /// Panics if the model has no such output, or if the output was not requested. [`Results::tensor`] returns an error instead.
    fn index(&self, name: &str) -> &Tensor {
        self.tensor(name).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(port, tensor)| (port.name(), tensor))).finish()
    }
}
