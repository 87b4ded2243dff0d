//! Tensors in device memory. The host knows the shape and element type of such a tensor, but can access its bytes only by copying.
//!
//! A context of the device (`runtime::RemoteContext`) creates such tensors. They have regions and leases, as host tensors have. They can be
//! inputs and outputs of the requests of their device. A host access to their bytes fails with [`ErrorKind::Remote`].

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use super::tensor::Placed;
use super::{DeviceLease, Error, ErrorKind, Layout, Memory, MemoryKind, Result, Tensor};

/// A block of device memory, as a device implements it. The device recognizes its own blocks by their type, see [`Tensor::in_remote`].
pub trait RemoteMemory: Any + Send + Sync + fmt::Debug {
    /// Returns the name of the memory for messages, such as "the memory of GPU.0".
    fn place(&self) -> &str;

    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the elements of `layout` to `target` without gaps. The first element is at `offset_bytes` of the block. Returns when the copy
    /// is complete. The caller holds a lease on the elements. It has also checked that the elements are inside the block and that `target`
    /// has their total size.
    ///
    /// # Errors
    /// May return any error of the device.
    fn read(&self, layout: &Layout, offset_bytes: usize, target: &mut [u8]) -> Result<()>;

    /// Copies the elements of `layout` from `source`, which has no gaps, to the device. The parameters are as in [`RemoteMemory::read`].
    ///
    /// # Errors
    /// May return any error of the device.
    fn write(&self, layout: &Layout, offset_bytes: usize, source: &[u8]) -> Result<()>;
}

/// The position of a tensor in device memory of type `T`. The device uses it to access the elements.
#[derive(Debug, Clone)]
pub struct InRemote<T> {
    memory: Arc<Memory>,
    layout: Layout,
    offset_bytes: usize,
    kind: PhantomData<T>,
}

impl<T> InRemote<T> {
    /// Returns the element type, shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the byte offset of the first element.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }
}

impl<T: RemoteMemory> Deref for InRemote<T> {
    type Target = T;

    fn deref(&self) -> &T {
        let remote: &dyn Any = self.memory.as_remote().expect("the type was checked when this value was created");
        remote.downcast_ref().expect("the type was checked when this value was created")
    }
}

impl Tensor {
    /// Creates a dense tensor over a whole block of device memory. [`Tensor::set_shape`] can give it any shape that fits into the block.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if the memory is too small.
    pub fn remote_whole(owner: Box<dyn RemoteMemory>, layout: Layout) -> Result<Self> {
        let Placed { memory, .. } = Self::part_of(Memory::remote(owner), layout, 0)?.placed();
        Ok(Self::over(memory, layout))
    }

    /// Returns whether the tensor is in device memory, which the host can only copy.
    pub fn is_remote(&self) -> bool {
        self.with_placed(|placed| placed.memory.as_remote().is_some())
    }

    /// Returns the kind of memory that the tensor uses.
    pub fn memory_kind(&self) -> MemoryKind {
        self.with_placed(|placed| placed.memory.kind())
    }

    /// Returns the name of the device memory for messages, such as "the memory of GPU.0"; `None` for host memory.
    pub fn remote_place(&self) -> Option<String> {
        self.placed().memory.as_remote().map(|remote| remote.place().to_owned())
    }

    /// Returns the position of the tensor, if the tensor is in device memory of type `T`.
    pub fn in_remote<T: RemoteMemory>(&self) -> Option<InRemote<T>> {
        let Placed { memory, layout, offset_bytes } = self.placed();
        let remote: &dyn Any = memory.as_remote()?;
        remote.is::<T>().then(|| InRemote { memory: Arc::clone(&memory), layout, offset_bytes, kind: PhantomData })
    }

    /// Leases the tensor for an access without host addresses, by a device or by another process.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Busy`] or [`ErrorKind::Access`] in the same cases as [`Tensor::view`] and [`Tensor::view_mut`].
    pub fn lease_for_device(&self, writes: bool) -> Result<DeviceLease> {
        Ok(self.lease_placed(writes)?.0)
    }

    /// Leases the tensor. Also returns the layout and the memory that the lease covers.
    fn lease_placed(&self, writes: bool) -> Result<(DeviceLease, Placed)> {
        self.with_span(false, |placed, span| Ok((DeviceLease::new(placed.memory.lease(span, writes)?, writes), placed.clone())))
    }

    /// Copies all elements from `source`, see [`Tensor::copy_to`].
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::copy_to`].
    pub fn copy_from(&self, source: &Tensor) -> Result<()> {
        source.copy_to(self)
    }
}

/// Copies between two tensors. At least one of them is in device memory.
pub(super) fn copy(source: &Tensor, target: &Tensor) -> Result<()> {
    check_equal(&source.layout(), &target.layout())?;
    // `lease_placed` and the guards take the lease and read the layout in one step, so no thread can reshape the tensor between the two.
    match (source.is_remote(), target.is_remote()) {
        (true, false) => {
            let (_source_lease, from) = source.lease_placed(false)?;
            let mut bytes_mut = target.elements_mut()?;
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
            let bytes = source.elements()?;
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
        (false, false) => source.elements()?.copy_to(&mut target.elements_mut()?),
    }
}

fn remote_of(placed: &Placed) -> Result<&dyn RemoteMemory> {
    placed
        .memory
        .as_remote()
        .ok_or_else(|| Error::new(ErrorKind::Busy, "copy: the tensor moved to other memory during the copy; copy the tensor again"))
}

/// Checks that the element types and shapes are equal.
pub(super) fn check_equal(from: &Layout, to: &Layout) -> Result<()> {
    if from.element() != to.element() {
        let (expected, got) = (to.element(), from.element());
        return Err(Error::new(ErrorKind::ElementType, format!("copy: expected {expected}, as in the target, got {got}")));
    }
    if from.shape() != to.shape() {
        let (expected, got) = (to.shape(), from.shape());
        return Err(Error::new(ErrorKind::Shape, format!("copy: expected {expected}, as in the target, got {got}")));
    }
    Ok(())
}

/// Allocates a zeroed buffer for all elements, without gaps.
fn zeros(layout: &Layout) -> Result<Vec<u8>> {
    let n_bytes = layout.dense_bytes();
    let mut bytes = Vec::new();
    let out_of_memory = |_| Error::new(ErrorKind::OutOfMemory, format!("no memory for a copy of {n_bytes} bytes; copy a smaller region"));
    bytes.try_reserve_exact(n_bytes).map_err(out_of_memory)?;
    bytes.resize(n_bytes, 0);
    Ok(bytes)
}
