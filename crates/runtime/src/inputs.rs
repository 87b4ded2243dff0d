//! Inputs of a request: one value, a list, pairs or a map. Each value is shared, copied, or a batch.

use std::collections::{BTreeMap, HashMap};

use super::port::AsPortKey;
use super::{PortKey, Result, Results};
use crate::tensor::{Element, Tensor, Values};

/// A value for one input.
///
/// A tensor converts to `Share`, an `ndarray` to `Copy`: `request.infer([("a", &tensor)])`, `request.infer(&array)`. Name the variant only
/// to mix them.
#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "a region of a tensor must not allocate, so its layout is inline")]
pub enum Input<'a> {
    /// No copy: later runs lease the tensor's memory, which cannot be written meanwhile.
    Share(Tensor),
    /// Copied immediately into the request's own tensor. A tensor of dynamic shape takes the shape of the values. Values of another type
    /// are cast, see [`Values::copy_to`].
    Copy(&'a dyn Values),
    /// The slices of a batch, see [`InferRequest::set_tensors`](super::InferRequest::set_tensors).
    Batch(&'a [Tensor]),
}

impl std::fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Share(tensor) => write!(f, "Share({tensor:?})"),
            Self::Copy(values) => write!(f, "Copy({:?} {})", values.shape(), values.element()),
            Self::Batch(slices) => write!(f, "Batch({slices:?})"),
        }
    }
}

/// A value of one input.
pub trait AsInput {
    /// The value.
    fn as_input(&self) -> Input<'_>;
}

impl AsInput for Input<'_> {
    fn as_input(&self) -> Input<'_> {
        self.clone()
    }
}

impl AsInput for Tensor {
    fn as_input(&self) -> Input<'_> {
        Input::Share(self.clone())
    }
}

impl<T: Element, S: ndarray::Data<Elem = T>, D: ndarray::Dimension> AsInput for ndarray::ArrayBase<S, D> {
    fn as_input(&self) -> Input<'_> {
        Input::Copy(self)
    }
}

impl<V: AsInput> AsInput for &V {
    fn as_input(&self) -> Input<'_> {
        (*self).as_input()
    }
}

impl<'a> From<&'a Tensor> for Input<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Share(tensor.clone())
    }
}

impl From<Tensor> for Input<'_> {
    fn from(tensor: Tensor) -> Self {
        Self::Share(tensor)
    }
}

impl<'a> From<&'a [Tensor]> for Input<'a> {
    fn from(slices: &'a [Tensor]) -> Self {
        Self::Batch(slices)
    }
}

impl<'a, T: Element, S: ndarray::Data<Elem = T>, D: ndarray::Dimension> From<&'a ndarray::ArrayBase<S, D>> for Input<'a> {
    fn from(values: &'a ndarray::ArrayBase<S, D>) -> Self {
        Self::Copy(values)
    }
}

/// Inputs of [`InferRequest::infer`](super::InferRequest::infer), `start_async`, `set_inputs` and the queue:
///
/// - `()`: all inputs keep their tensors;
/// - one value: for the only input;
/// - a list: for the first inputs, in order;
/// - pairs of a key (name, index, port) and a value, in an array, slice, `Vec` or map; [`inputs!`](macro@crate::inputs) mixes kinds
///   of keys and values;
/// - the [`Results`] of another run, each to the input of the same name.
///
/// All values are checked before the first one is set. Other inputs keep their tensors.
pub trait Inputs {
    /// Calls `see` with each value and its key. May be called more than once.
    ///
    /// # Errors
    /// The first error of `see`.
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()>;
}

/// Inputs whose keys and values are of different kinds: `inputs!["image" => &tensor, 1 => &array, &port => Input::Batch(&slices)]`.
#[macro_export]
macro_rules! inputs {
    ($($key:expr => $value:expr),* $(,)?) => {
        [$(($crate::PortKey::from($key), $crate::Input::from($value))),*]
    };
}

impl Inputs for () {
    fn visit(&self, _see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        Ok(())
    }
}

impl Inputs for Tensor {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        see(PortKey::Only, &self.as_input())
    }
}

impl Inputs for Input<'_> {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        see(PortKey::Only, self)
    }
}

impl<T: Element, S: ndarray::Data<Elem = T>, D: ndarray::Dimension> Inputs for ndarray::ArrayBase<S, D> {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        see(PortKey::Only, &self.as_input())
    }
}

impl<I: Inputs + ?Sized> Inputs for &I {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        (**self).visit(see)
    }
}

/// An element of a list of inputs: a value, whose key is its index, or a pair of key and value.
pub trait AsEntry {
    /// Calls `see` with the value and its key, for an element at `index`.
    ///
    /// # Errors
    /// Those of `see`.
    fn visit(&self, index: usize, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()>;
}

impl<V: AsInput> AsEntry for V {
    fn visit(&self, index: usize, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        see(PortKey::Index(index), &self.as_input())
    }
}

impl<K: AsPortKey, V: AsInput> AsEntry for (K, V) {
    fn visit(&self, _index: usize, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        see(self.0.as_port_key(), &self.1.as_input())
    }
}

impl<E: AsEntry> Inputs for [E] {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        self.iter().enumerate().try_for_each(|(index, entry)| entry.visit(index, see))
    }
}

impl<E: AsEntry, const N: usize> Inputs for [E; N] {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        self.as_slice().visit(see)
    }
}

impl<E: AsEntry> Inputs for Vec<E> {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        self.as_slice().visit(see)
    }
}

impl<K: AsPortKey, V: AsInput, H> Inputs for HashMap<K, V, H> {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        self.iter().try_for_each(|(key, value)| see(key.as_port_key(), &value.as_input()))
    }
}

impl<K: AsPortKey, V: AsInput> Inputs for BTreeMap<K, V> {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        self.iter().try_for_each(|(key, value)| see(key.as_port_key(), &value.as_input()))
    }
}

impl Inputs for Results {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        self.iter().try_for_each(|(port, tensor)| see(PortKey::Name(port.name()), &tensor.as_input()))
    }
}
