//! Tensors in the memory of a device: shape and type are known here, the bytes are not. The way across is a copy.
//!
//! Such a tensor is made by a context of its device (`runtime::RemoteContext`), is cut into regions and leased as any other, and
//! goes into and out of the requests of its own device. Whoever asks for its bytes gets [`ErrorKind::Remote`].

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use super::tensor::Placed;
use super::{DeviceLease, Error, ErrorKind, Layout, Memory, Result, Tensor};

/// A block of a device's memory. The device implements it, and knows its own again by type: [`Tensor::in_remote`].
pub trait RemoteMemory: Any + Send + Sync + fmt::Debug {
    /// What messages call the place: "the memory of GPU.0".
    fn place(&self) -> &str;

    /// Number of bytes.
    fn len(&self) -> usize;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the elements of `layout`, whose first lies at `offset_bytes`, to `target`, without gaps; returns when they are
    /// there. The caller holds a lease, and has checked that all lies inside the block and `target` is as long as the elements.
    ///
    /// # Errors
    /// If the device fails.
    fn read(&self, layout: &Layout, offset_bytes: usize, target: &mut [u8]) -> Result<()>;

    /// The other way.
    ///
    /// # Errors
    /// If the device fails.
    fn write(&self, layout: &Layout, offset_bytes: usize, source: &[u8]) -> Result<()>;
}

/// Where a tensor lies in a device's memory of type `T`: for the device itself.
#[derive(Debug, Clone)]
pub struct InRemote<T> {
    memory: Arc<Memory>,
    layout: Layout,
    offset_bytes: usize,
    kind: PhantomData<T>,
}

impl<T> InRemote<T> {
    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Of the first element.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }
}

impl<T: RemoteMemory> Deref for InRemote<T> {
    type Target = T;

    fn deref(&self) -> &T {
        let remote: &dyn Any = self.memory.as_remote().expect("checked when it was made");
        remote.downcast_ref().expect("checked when it was made")
    }
}

impl Tensor {
    /// A tensor that is all of a device's memory, dense. [`Tensor::set_shape`] takes it to every shape that fits in.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if the memory is too small.
    pub fn remote_whole(owner: Box<dyn RemoteMemory>, layout: Layout) -> Result<Self> {
        let Placed { memory, .. } = Self::part_of(Memory::remote(owner), layout, 0)?.placed();
        Ok(Self::over(memory, layout))
    }

    /// Whether it lies in the memory of a device, which the host reaches by copying only.
    pub fn is_remote(&self) -> bool {
        self.placed().memory.as_remote().is_some()
    }

    /// The place of a remote tensor, for messages: "the memory of GPU.0".
    pub fn remote_place(&self) -> Option<String> {
        self.placed().memory.as_remote().map(|remote| remote.place().to_owned())
    }

    /// Where it lies, if in a device's memory of type `T`.
    pub fn in_remote<T: RemoteMemory>(&self) -> Option<InRemote<T>> {
        let Placed { memory, layout, offset_bytes } = self.placed();
        let remote: &dyn Any = memory.as_remote()?;
        remote.is::<T>().then(|| InRemote { memory: Arc::clone(&memory), layout, offset_bytes, kind: PhantomData })
    }

    /// A lease for somebody who does not go through the host's addresses: a device, another process.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] and [`ErrorKind::Access`] as for views.
    pub fn lease_for_device(&self, writes: bool) -> Result<DeviceLease> {
        self.placed().memory.lease_for_device(writes)
    }

    /// As [`Tensor::copy_to`], from the other end.
    ///
    /// # Errors
    /// As there.
    pub fn copy_from(&self, source: &Tensor) -> Result<()> {
        source.copy_to(self)
    }
}

/// Copies where at least one side is a device's.
pub(super) fn copy(source: &Tensor, target: &Tensor) -> Result<()> {
    let (from, to) = (source.placed(), target.placed());
    if from.layout.element() != to.layout.element() {
        let (expected, got) = (to.layout.element(), from.layout.element());
        return Err(Error::new(ErrorKind::ElementType, format!("copy: expected {expected} as the target has, got {got}")));
    }
    if from.layout.shape() != to.layout.shape() {
        let (expected, got) = (to.layout.shape(), from.layout.shape());
        return Err(Error::new(ErrorKind::Shape, format!("copy: expected {expected} as the target has, got {got}")));
    }
    match (from.memory.as_remote(), to.memory.as_remote()) {
        (Some(device), None) => {
            let _lease = from.memory.lease_for_device(false)?;
            let mut bytes = target.bytes_mut()?;
            if to.layout.is_dense() {
                device.read(&from.layout, from.offset_bytes, bytes.extent_mut())
            } else {
                let mut dense = vec![0; from.layout.dense_bytes()];
                device.read(&from.layout, from.offset_bytes, &mut dense)?;
                bytes.copy_all_from_dense(&dense)
            }
        }
        (None, Some(device)) => {
            let _lease = to.memory.lease_for_device(true)?;
            let bytes = source.bytes()?;
            if from.layout.is_dense() {
                device.write(&to.layout, to.offset_bytes, bytes.extent())
            } else {
                let mut dense = vec![0; from.layout.dense_bytes()];
                bytes.copy_all_to_dense(&mut dense)?;
                device.write(&to.layout, to.offset_bytes, &dense)
            }
        }
        (Some(device), Some(other)) => {
            let _leases = (from.memory.lease_for_device(false)?, to.memory.lease_for_device(true)?);
            let mut dense = vec![0; from.layout.dense_bytes()];
            device.read(&from.layout, from.offset_bytes, &mut dense)?;
            other.write(&to.layout, to.offset_bytes, &dense)
        }
        (None, None) => source.bytes()?.copy_to(&mut target.bytes_mut()?),
    }
}
