//! A bounded pool of tensor memory.

use std::sync::{Arc, Weak};

use super::storage::AlignedBytes;
use super::{ElementType, Layout, Memory, Result, Shape, Tensor};
use crate::sync::Mutex;

/// A pool of memory for tensors of one type and shape. When the last handle of a tensor or of its regions is dropped, its memory returns to
/// the pool.
///
/// The pool keeps at most `capacity` idle blocks of memory and frees further blocks when they return. The tensors of a request do not need
/// a pool, because all runs of the request use the same tensors.
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
    /// Creates a pool of memory for dense tensors.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`](super::ErrorKind::Shape) if the size in bytes overflows.
    pub fn new(element: ElementType, shape: impl Into<Shape>, capacity: usize) -> Result<Self> {
        let layout = Layout::dense(element, shape)?;
        Ok(Self { layout, idle: Arc::new(Idle { capacity, blocks: Mutex::new(Vec::with_capacity(capacity)) }) })
    }

    /// Takes a tensor out of the pool. Its values are zero, or the values that the previous user of the memory wrote.
    ///
    /// # Panics
    /// Panics if no memory is left. [`TensorPool::try_take`] returns an error instead.
    pub fn take(&self) -> Tensor {
        self.try_take().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Same as [`TensorPool::take`], but returns an error if no memory is left.
    ///
    /// # Errors
    /// Returns [`ErrorKind::OutOfMemory`](super::ErrorKind::OutOfMemory) if no memory is left.
    pub fn try_take(&self) -> Result<Tensor> {
        let block = self.idle.blocks.lock().unwrap().pop();
        let block = match block {
            Some(block) => block,
            None => AlignedBytes::zeroed(self.layout.dense_bytes())?,
        };
        Ok(Tensor::over(Memory::pooled(block, PoolReturn(Arc::downgrade(&self.idle))), self.layout))
    }

    /// Returns the number of idle blocks of memory.
    pub fn n_idle(&self) -> usize {
        self.idle.blocks.lock().unwrap().len()
    }
}

/// The way back to the pool for one block of memory. If the pool no longer exists, the memory is freed.
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
        assert_eq!(pool.n_idle(), 0, "a region still uses the memory");
        drop(share);
        assert_eq!(pool.n_idle(), 1);
        let (again, other) = (pool.take(), pool.take());
        assert_eq!(again.address(), address);
        drop((again, other));
        assert_eq!(pool.n_idle(), 1);
    }
}
