//! Bytes with a shape.
//!
//! A [`Tensor`] is an element type, a [`Layout`] (shape and byte strides) and a share of some [`Memory`]. Clones share; a
//! region of interest ([`Tensor::roi`]) shares too, with another shape and offset. Access goes through short-lived guards
//! ([`View`], [`ViewMut`], [`Bytes`]) that hold a *lease* on the memory: many readers or one writer. A lease never waits; who
//! comes second gets [`ErrorKind::Busy`]. This is how a running request keeps others from rewriting what it reads.
//!
//! Memory may be a device's, which the host reaches by copying only ([`remote`]), or shared with other processes (`shared`).
//!
//! Reading order: [`element`], [`layout`], [`storage`], [`mod@tensor`], `reshape`, [`roi`], [`pool`], [`values`], [`remote`], `shared`.
//!
//! Knows no pixels, no models, no threads, no GStreamer.

pub mod element;
pub mod error;
pub mod layout;
pub mod pool;
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

pub use element::{Element, ElementType};
pub use error::{Error, ErrorKind, Result};
pub use half::{bf16, f16};
pub use layout::{Layout, MAX_RANK, Shape};
pub use pool::TensorPool;
pub use remote::{InRemote, RemoteMemory};
#[cfg(target_os = "linux")]
pub use shared::SharedTensor;
pub use storage::{DeviceLease, ForeignMemory, Memory, MemoryKind, ReadLease, WriteLease};
pub use tensor::{Bytes, BytesMut, Tensor, View, ViewMut};
pub use values::Values;
