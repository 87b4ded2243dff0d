//! Tensors: typed arrays with a shape, in reference-counted memory.
//!
//! A [`Tensor`] consists of an element type, a [`Layout`] (shape and byte strides) and a reference to [`Memory`]. Clones share the memory.
//! A region of interest ([`Tensor::roi`]) is a tensor with a different shape and offset in the same memory. Short-lived guards ([`View`],
//! [`ViewMut`], [`Bytes`]) give access to the values. Each guard holds a *lease* on the bytes of its elements. At any time, a byte is
//! leased by many readers or by one writer. Taking a lease never blocks; an access that conflicts with a lease fails with
//! [`ErrorKind::Busy`]. A running request holds leases, so its inputs cannot change.
//!
//! The memory may belong to a device ([`remote`]); the host can only copy such memory. The memory may also be shared with other processes
//! (`shared`).
//!
//! Reading order: [`element`], [`layout`], [`storage`], [`mod@tensor`], `owned`, `reshape`, [`roi`], [`pool`], [`values`], [`remote`], `shared`,
//! [`process`].
//!
//! This crate has no code for pixels, models, threads or GStreamer.

mod bytes;
pub mod element;
pub mod error;
pub mod layout;
mod lease;
mod owned;
pub mod pool;
pub mod process;
pub mod remote;
mod reshape;
pub mod roi;
#[cfg(target_os = "linux")]
pub mod shared;
pub mod storage;
pub mod sync;
#[allow(clippy::module_inception, reason = "the file is named after the one type it holds")]
pub mod tensor;
pub mod values;

pub use bytes::{Bytes, BytesMut, RowMut};
pub use element::{Element, ElementType, append_f32};
pub use error::{Error, ErrorKind, Result};
pub use half::{bf16, f16};
pub use layout::{Layout, MAX_RANK, Shape};
pub use pool::TensorPool;
pub use remote::{InRemote, RemoteMemory};
#[cfg(target_os = "linux")]
pub use shared::SharedTensor;
pub use storage::{DeviceLease, ForeignMemory, Memory, MemoryKind, ReadLease, WriteLease};
pub use tensor::{Tensor, View, ViewMut};
pub use values::Values;
