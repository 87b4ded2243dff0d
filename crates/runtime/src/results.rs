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
/// writes into these tensors. While a view of them exists, starting the next run fails with `Busy`. The results of
/// [`CompiledModel::infer`](super::CompiledModel::infer) and of [`Results::to_owned`] are independent of later runs.
#[derive(Clone)]
pub struct Results {
    ports: Arc<[Port]>,
    /// Pairs of the index of the port and its tensor, in the requested order.
    tensors: Vec<(usize, Tensor)>,
}

impl Results {
    pub(super) fn new(ports: Arc<[Port]>, tensors: Vec<(usize, Tensor)>) -> Self {
        Self { ports, tensors }
    }

    /// Number of requested outputs.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether no output was requested.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Ports and tensors, in the requested order.
    pub fn iter(&self) -> impl Iterator<Item = (&Port, &Tensor)> {
        self.tensors.iter().map(|(port_idx, tensor)| (&self.ports[*port_idx], tensor))
    }

    /// The tensor of an output. The key is a name, an index among the outputs of the model, a port, or `()` for the only output.
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

    /// The values of an output, without a copy.
    ///
    /// # Errors
    /// The errors of [`Results::tensor`]; `Tensor` if the element type is not `T`; `Busy` while a run writes the values.
    pub fn view<'a, T: Element>(&self, key: impl Into<PortKey<'a>>) -> Result<View<T>> {
        Ok(self.tensor(key)?.view()?)
    }

    /// A copy of the values of an output.
    ///
    /// # Errors
    /// The errors of [`Results::view`].
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

    /// The tensors, in the requested order.
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
