//! The memory of the `NULL` device. This memory is ordinary host memory, but tensors treat it as device memory, which the host can only
//! copy. Use it to test code that handles device memory without a real device.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::remote::ContextMemory;
use crate::tensor::{ElementType, InRemote, Layout, Memory, RemoteMemory, Result as TensorResult, Shape, Tensor};
use crate::{ContextParams, Error, ErrorKind, Result};

/// A block of the device's memory.
pub struct NullMemory {
    memory: Arc<Memory>,
    room: Arc<Room>,
}

impl NullMemory {
    /// Returns the tensor as an ordinary tensor, for code of the device that accesses its bytes. Returns `None` if the tensor is not in the
    /// memory of a `NULL` device.
    pub fn on_device(tensor: &Tensor) -> Option<Tensor> {
        let place: InRemote<NullMemory> = tensor.in_remote()?;
        Some(place.part(place.layout(), place.offset_bytes()).expect("the place was checked when the remote tensor was created"))
    }

    fn part(&self, layout: &Layout, offset_bytes: usize) -> TensorResult<Tensor> {
        Tensor::part_of(self.memory.clone(), *layout, offset_bytes)
    }
}

impl RemoteMemory for NullMemory {
    fn place(&self) -> &str {
        &self.room.place
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn read(&self, layout: &Layout, offset_bytes: usize, target: &mut [u8]) -> TensorResult<()> {
        self.part(layout, offset_bytes)?.elements()?.copy_all_to_dense(target)
    }

    fn write(&self, layout: &Layout, offset_bytes: usize, source: &[u8]) -> TensorResult<()> {
        self.part(layout, offset_bytes)?.elements_mut()?.copy_all_from_dense(source)
    }
}

impl fmt::Debug for NullMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NullMemory({} bytes)", self.len())
    }
}

impl Drop for NullMemory {
    fn drop(&mut self) {
        self.room.used_bytes.fetch_sub(self.memory.len(), Ordering::AcqRel);
    }
}

/// The total size of all tensors of a context, and its limit.
pub(super) struct Room {
    /// The name of the memory in messages.
    place: String,
    max_bytes: Option<usize>,
    used_bytes: AtomicUsize,
}

impl Room {
    pub(super) fn new(device: &str, max_bytes: Option<usize>) -> Arc<Self> {
        Arc::new(Self { place: format!("the memory of {device}"), max_bytes, used_bytes: AtomicUsize::new(0) })
    }
}

impl ContextMemory for Arc<Room> {
    fn params(&self) -> ContextParams {
        ContextParams::DeviceMemory { max_bytes: self.max_bytes }
    }

    fn create_tensor(&self, element: ElementType, shape: Shape) -> Result<Tensor> {
        let layout = Layout::dense(element, shape)?;
        let len = layout.dense_bytes();
        let take = |used: usize| used.checked_add(len).filter(|&used| self.max_bytes.is_none_or(|max| used <= max));
        if let Err(used) = self.used_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) {
            let max = self.max_bytes.unwrap_or(usize::MAX);
            return Err(Error::new(
                ErrorKind::Device,
                format!("expected at most {max} bytes in total, got {len} more than the {used} in use"),
            ));
        }
        let memory = Memory::try_zeroed(len).inspect_err(|_| {
            self.used_bytes.fetch_sub(len, Ordering::AcqRel);
        })?;
        let block = NullMemory { memory, room: Arc::clone(self) };
        Ok(Tensor::remote_whole(Box::new(block), layout)?)
    }
}
