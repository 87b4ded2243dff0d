//! Bounded reuse of tensor memory.

use std::sync::{Arc, Weak};

use super::storage::AlignedBytes;
use super::{ElementType, Layout, Memory, Result, Shape, Tensor};
use crate::sync::Mutex;

/// Hands out tensors of one type and shape, and takes their memory back when the last share is dropped.
///
/// Keeps at most `capacity` idle blocks; more may be out at a time, the surplus is freed on return. Does not help where a
/// request's own tensors are used over and over: those are never reallocated anyway.
#[derive(Debug, Clone)]
pub struct TensorPool {
    layout: Layout,
    idle: Arc<Idle>,
}

#[derive(Debug)]
struct Idle {
    capacity: usize,
    blocks: Mutex<Vec<AlignedBytes>>,
}

impl std::fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

impl TensorPool {
    /// A pool of dense tensors.
    ///
    /// # Errors
    /// If the size in bytes overflows.
    pub fn new(element: ElementType, shape: impl Into<Shape>, capacity: usize) -> Result<Self> {
        let layout = Layout::dense(element, shape)?;
        Ok(Self { layout, idle: Arc::new(Idle { capacity, blocks: Mutex::new(Vec::with_capacity(capacity)) }) })
    }

    /// A tensor; its bytes are zero or what the last user left there.
    ///
    /// # Panics
    /// If there is not so much memory, see [`TensorPool::try_take`].
    pub fn take(&self) -> Tensor {
        self.try_take().unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`TensorPool::take`], for a size that comes from outside.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](super::ErrorKind::OutOfMemory) if there is not so much memory.
    pub fn try_take(&self) -> Result<Tensor> {
        let block = self.idle.blocks.lock().unwrap().pop();
        let block = match block {
            Some(block) => block,
            None => AlignedBytes::zeroed(self.layout.dense_bytes())?,
        };
        Ok(Tensor::over(Memory::pooled(block, PoolReturn(Arc::downgrade(&self.idle))), self.layout))
    }

    /// Blocks that wait for their next use.
    pub fn n_idle(&self) -> usize {
        self.idle.blocks.lock().unwrap().len()
    }
}

/// The way back into the pool, if it still exists.
pub(super) struct PoolReturn(Weak<Idle>);

impl PoolReturn {
    pub(super) fn give_back(&self, block: AlignedBytes) {
        if let Some(idle) = self.0.upgrade() {
            let mut blocks = idle.blocks.lock().unwrap();
            if blocks.len() < idle.capacity {
                blocks.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_the_last_share_goes_and_the_pool_stays_bounded() {
        let pool = TensorPool::new(ElementType::F32, [4], 1).unwrap();
        let tensor = pool.take();
        let address = tensor.address();
        let share = tensor.roi(&[1], &[3]).unwrap();
        drop(tensor);
        assert_eq!(pool.n_idle(), 0, "a region still uses it");
        drop(share);
        assert_eq!(pool.n_idle(), 1);
        let (again, other) = (pool.take(), pool.take());
        assert_eq!(again.address(), address);
        drop((again, other));
        assert_eq!(pool.n_idle(), 1);
    }
}
