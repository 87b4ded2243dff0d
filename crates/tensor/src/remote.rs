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
use super::{DeviceLease, Error, ErrorKind, Layout, Memory, MemoryKind, Result, Tensor};

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

    /// What kind of memory it lies in.
    pub fn memory_kind(&self) -> MemoryKind {
        self.placed().memory.kind()
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
        self.with_placed(|placed| placed.memory.lease_for_device(writes))
    }

    /// A lease, and the layout and memory that it is on.
    fn lease_placed(&self, writes: bool) -> Result<(DeviceLease, Placed)> {
        self.with_placed(|placed| Ok((placed.memory.lease_for_device(writes)?, placed.clone())))
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
    check_equal(&source.layout(), &target.layout())?;
    // Leases and layouts are taken together: neither side can get another shape in between.
    match (source.is_remote(), target.is_remote()) {
        (true, false) => {
            let (_source_lease, from) = source.lease_placed(false)?;
            let mut bytes_mut = target.bytes_mut()?;
            check_equal(&from.layout, bytes_mut.layout())?;
            let device = remote_of(&from)?;
            if bytes_mut.layout().is_dense() {
                device.read(&from.layout, from.offset_bytes, bytes_mut.extent_mut())
            } else {
                let mut dense = zeros(&from.layout)?;
                device.read(&from.layout, from.offset_bytes, &mut dense)?;
                bytes_mut.copy_all_from_dense(&dense)
            }
        }
        (false, true) => {
            let (_target_lease, to) = target.lease_placed(true)?;
            let bytes = source.bytes()?;
            check_equal(bytes.layout(), &to.layout)?;
            let device = remote_of(&to)?;
            if bytes.layout().is_dense() {
                device.write(&to.layout, to.offset_bytes, bytes.extent())
            } else {
                let mut dense = zeros(&to.layout)?;
                bytes.copy_all_to_dense(&mut dense)?;
                device.write(&to.layout, to.offset_bytes, &dense)
            }
        }
        (true, true) => {
            let (_source_lease, from) = source.lease_placed(false)?;
            let (_target_lease, to) = target.lease_placed(true)?;
            check_equal(&from.layout, &to.layout)?;
            let mut dense = zeros(&from.layout)?;
            remote_of(&from)?.read(&from.layout, from.offset_bytes, &mut dense)?;
            remote_of(&to)?.write(&to.layout, to.offset_bytes, &dense)
        }
        (false, false) => source.bytes()?.copy_to(&mut target.bytes_mut()?),
    }
}

fn remote_of(placed: &Placed) -> Result<&dyn RemoteMemory> {
    placed.memory.as_remote().ok_or_else(|| Error::new(ErrorKind::Busy, "copy: the tensor took other memory meanwhile; copy it again"))
}

fn check_equal(from: &Layout, to: &Layout) -> Result<()> {
    if from.element() != to.element() {
        let (expected, got) = (to.element(), from.element());
        return Err(Error::new(ErrorKind::ElementType, format!("copy: expected {expected} as the target has, got {got}")));
    }
    if from.shape() != to.shape() {
        let (expected, got) = (to.shape(), from.shape());
        return Err(Error::new(ErrorKind::Shape, format!("copy: expected {expected} as the target has, got {got}")));
    }
    Ok(())
}

/// Bytes for all elements, without gaps.
fn zeros(layout: &Layout) -> Result<Vec<u8>> {
    let n_bytes = layout.dense_bytes();
    let mut bytes = Vec::new();
    let out_of_memory = |_| Error::new(ErrorKind::OutOfMemory, format!("no memory for a copy of {n_bytes} bytes; copy a smaller region"));
    bytes.try_reserve_exact(n_bytes).map_err(out_of_memory)?;
    bytes.resize(n_bytes, 0);
    Ok(bytes)
}
