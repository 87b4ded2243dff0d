//! Values for the inputs of a request: one value, a list, pairs of key and value, or a map. Each value is a shared tensor, copied values,
//! or a batch.

use std::collections::{BTreeMap, HashMap};

use super::port::AsPortKey;
use super::{PortKey, Result, Results};
use crate::tensor::{Element, Tensor, Values, bf16, f16};

/// A value for one input.
///
/// A `&Tensor` converts to `Share`, and an `&ndarray` converts to `Copy`: `request.infer([("a", &tensor)])`, `request.infer(&array)`. Write
/// the variants explicitly only if one call has shared and copied inputs.
#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "a region of a tensor must not allocate, so its layout is inline")]
pub enum Input<'a> {
    /// A tensor that is shared without a copy. Later runs lease its memory, so it cannot be written while they run.
    Share(Tensor),
    /// Values that are copied immediately into the request's own tensor. Synchronous calls copy the values as well, because a run must own
    /// all memory that the engine reads. To pass an array without a copy, move it into a tensor ([`Tensor::from_owned`],
    /// [`Tensor::from_vec`]). If the request's tensor has a dynamic shape, it takes the shape of the values. Values of a different element
    /// type are cast, see [`Values::copy_to`].
    Copy(&'a dyn Values),
    /// The batch items of one input as separate tensors, see [`InferRequest::set_tensors`](super::InferRequest::set_tensors).
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

/// A type of values for one input.
pub trait AsInput {
    /// Returns `self` as the value of an input.
    fn as_input(&self) -> Input<'_>;

    /// Calls `see` for each value of a list, with the index of the input as its key. If the values are scalars, the whole list is the value
    /// of the only input.
    ///
    /// # Errors
    /// Returns the first error of `see`.
    fn visit_list(list: &[Self], see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()>
    where
        Self: Sized,
    {
        list.iter().enumerate().try_for_each(|(index, value)| see(PortKey::Index(index), &value.as_input()))
    }
}

/// The values are copied. They are in row-major order and have no shape, so they take the shape of the input. Their number must be the
/// number of elements of the input. At most one extent of the input may be dynamic.
impl<T: Element> AsInput for Vec<T> {
    fn as_input(&self) -> Input<'_> {
        Input::Copy(self)
    }
}

/// Copies the values. The implementation for `Vec` explains the shape.
impl<T: Element> AsInput for &[T] {
    fn as_input(&self) -> Input<'_> {
        Input::Copy(self)
    }
}

/// Copies the values. The implementation for `Vec` explains the shape.
impl<T: Element, const N: usize> AsInput for [T; N] {
    fn as_input(&self) -> Input<'_> {
        Input::Copy(self)
    }
}

impl<'a, T: Element> From<&'a Vec<T>> for Input<'a> {
    fn from(values: &'a Vec<T>) -> Self {
        Self::Copy(values)
    }
}

impl<'a, T: Element, const N: usize> From<&'a [T; N]> for Input<'a> {
    fn from(values: &'a [T; N]) -> Self {
        Self::Copy(values)
    }
}

macro_rules! scalars {
    ($($scalar:ty),+) => {$(
        /// A single number is the value of an input that has one element.
        impl AsInput for $scalar {
            fn as_input(&self) -> Input<'_> {
                Input::Copy(self)
            }

            fn visit_list(list: &[Self], see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
                see(PortKey::Only, &Input::Copy(&list))
            }
        }

        impl<'a> From<&'a $scalar> for Input<'a> {
            fn from(value: &'a $scalar) -> Self {
                Self::Copy(value)
            }
        }

        impl Inputs for $scalar {
            fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
                see(PortKey::Only, &Input::Copy(self))
            }
        }
    )+};
}

scalars!(bool, u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64);

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

/// The inputs of a run. [`InferRequest::infer`](super::InferRequest::infer), `start_async`, `set_inputs` and
/// [`AsyncInferQueue`](super::AsyncInferQueue) accept:
///
/// - `()`: all inputs keep their tensors.
/// - One value: the value of the only input. A [`Tensor`] is shared. An `ndarray` is copied. A `Vec`, slice or array of numbers is copied
///   and takes the shape of the input. A single number is the value of an input with one element.
/// - A list of values: the values of the first inputs, in order.
/// - Pairs of a key (name, index, port) and a value, in an array, slice, `Vec` or map. With [`inputs!`](macro@crate::inputs), the pairs of
///   one call may have different types of keys and values.
/// - The [`Results`] of a run of another model: each output becomes the value of the input with the same name.
///
/// All values are checked before the first value is set. Inputs for which no value is passed keep their tensors.
pub trait Inputs {
    /// Calls `see` with each value and its key. A caller may call this method more than once.
    ///
    /// # Errors
    /// Returns the first error of `see`.
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()>;
}

/// Creates inputs whose keys and values have different types: `inputs!["image" => &tensor, 1 => &array, &port => Input::Batch(&slices)]`.
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

/// An element of a list of inputs: either a value, whose key is its index in the list, or a pair of key and value.
pub trait AsEntry {
    /// Calls `see` with the value and key of the element at `index`.
    ///
    /// # Errors
    /// Returns the error of `see`.
    fn visit(&self, index: usize, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()>;

    /// Calls `see` with the value and key of each element of a list.
    ///
    /// # Errors
    /// Returns the first error of `see`.
    fn visit_list(list: &[Self], see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()>
    where
        Self: Sized,
    {
        list.iter().enumerate().try_for_each(|(index, entry)| entry.visit(index, see))
    }
}

impl<V: AsInput> AsEntry for V {
    fn visit(&self, index: usize, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        see(PortKey::Index(index), &self.as_input())
    }

    fn visit_list(list: &[Self], see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        V::visit_list(list, see)
    }
}

impl<K: AsPortKey, V: AsInput> AsEntry for (K, V) {
    fn visit(&self, _index: usize, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        see(self.0.as_port_key(), &self.1.as_input())
    }
}

impl<E: AsEntry> Inputs for [E] {
    fn visit(&self, see: &mut dyn FnMut(PortKey<'_>, &Input<'_>) -> Result<()>) -> Result<()> {
        E::visit_list(self, see)
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
