//! Reshaping a tensor, alone or together with a lease that the caller holds.
//!
//! The handles of a tensor share its layout behind one lock. Layout, memory and lease change in one step under that lock, so a lease always
//! matches its layout.

use std::sync::Arc;

use super::tensor::{Body, BytesMut, Placed};
use super::{Bytes, DeviceLease, Error, ErrorKind, Layout, Memory, Result, Shape, Tensor, WriteLease};

impl Tensor {
    /// Changes the shape. A dense tensor keeps its memory if it is large enough; otherwise it gets new zeroed memory, and existing regions
    /// keep the old one. A region can shrink, and grow back to its original shape.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a view exists; [`ErrorKind::Shape`] if a region would exceed its original shape, or the new shape does not
    /// fit into shared or device memory.
    pub fn set_shape(&mut self, shape: impl Into<Shape>) -> Result<()> {
        let (shape, element) = (shape.into(), self.element());
        match &mut self.body {
            Body::Part { placed, limit } => {
                placed.layout = smaller_layout(placed, limit, shape)?;
            }
            Body::Whole(shared) => {
                let mut placed = shared.write().unwrap();
                let layout = Layout::dense(element, shape)?;
                let lease = placed.memory.lease_for_device(true)?;
                let memory = if fits(&placed, &layout) { Arc::clone(&placed.memory) } else { larger_memory(&placed, &layout)? };
                let before = std::mem::replace(&mut *placed, Placed { memory, layout, offset_bytes: 0 });
                drop(placed);
                drop((lease, before)); // Without the lock: the memory may be foreign, and its owner runs code of its own.
            }
        }
        Ok(())
    }

    /// Changes the shape under a write lease. The lease never ends in between, so no other thread sees the new shape with old values.
    ///
    /// Without a lease, other threads may read the tensor: it gets new memory, and the readers keep the old one.
    ///
    /// # Errors
    /// As [`Tensor::set_shape`]; tensor and lease are then unchanged.
    #[doc(hidden)]
    pub fn reshape_leased(&mut self, lease: &mut Option<BytesMut>, shape: Shape) -> Result<()> {
        let element = self.element();
        match &mut self.body {
            Body::Part { placed, limit } => {
                let layout = smaller_layout(placed, limit, shape)?;
                let write = match lease.take() {
                    Some(lease) => lease.into_lease(),
                    None => placed.memory.lease_write()?,
                };
                placed.layout = layout;
                *lease = Some(BytesMut::new(write, layout, placed.offset_bytes));
            }
            Body::Whole(shared) => {
                let mut placed = shared.write().unwrap();
                let layout = Layout::dense(element, shape)?;
                let fits = fits(&placed, &layout);
                if let Some(lease) = lease.as_mut().filter(|_| fits) {
                    check_is_of(lease.memory(), &placed)?;
                    (placed.layout, placed.offset_bytes) = (layout, 0);
                    lease.set_layout(layout);
                    return Ok(());
                }
                let write = match lease {
                    Some(lease) => check_is_of(lease.memory(), &placed).map(|()| None)?,
                    None => match placed.memory.lease_write() {
                        Ok(write) => Some(write).filter(|_| fits),
                        // The readers may have finished meanwhile.
                        Err(error) if error.kind() == ErrorKind::Busy && !placed.memory.is_written() => None,
                        Err(error) => return Err(error),
                    },
                };
                let (memory, write): (Arc<Memory>, WriteLease) = match write {
                    Some(write) => (Arc::clone(&placed.memory), write),
                    None => {
                        let memory = larger_memory(&placed, &layout)?;
                        let write = memory.lease_write()?;
                        (memory, write)
                    }
                };
                let before = std::mem::replace(&mut *placed, Placed { memory, layout, offset_bytes: 0 });
                let before = (lease.replace(BytesMut::new(write, layout, 0)), before);
                drop(placed);
                drop(before); // As in `set_shape`.
            }
        }
        Ok(())
    }

    /// As [`Tensor::reshape_leased`], for a tensor in device memory, which never moves.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn reshape_leased_by_device(&mut self, lease: &DeviceLease, shape: Shape) -> Result<()> {
        let element = self.element();
        match &mut self.body {
            Body::Part { placed, limit } => placed.layout = smaller_layout(placed, limit, shape)?,
            Body::Whole(shared) => {
                let mut placed = shared.write().unwrap();
                let layout = Layout::dense(element, shape)?;
                check_is_of(lease.memory(), &placed)?;
                if !fits(&placed, &layout) {
                    return Err(too_small(&placed, &layout));
                }
                (placed.layout, placed.offset_bytes) = (layout, 0);
            }
        }
        Ok(())
    }

    /// Whether the tensor is not being written, and may get new memory while readers keep the present one.
    #[doc(hidden)]
    pub fn may_leave_its_readers(&self) -> bool {
        matches!(self.body, Body::Whole(_)) && self.with_placed(|placed| placed.memory.may_be_left() && !placed.memory.is_written())
    }
}

impl Bytes {
    /// The leased elements as a tensor with this memory and layout, independent of later reshapes of the leased tensor.
    #[doc(hidden)]
    pub fn tensor(&self) -> Tensor {
        Tensor::from_placed(Placed { memory: Arc::clone(self.memory()), layout: *self.layout(), offset_bytes: self.offset_bytes() })
    }

    /// Whether the leased memory is that of `tensor`.
    #[doc(hidden)]
    pub fn is_of_memory_of(&self, tensor: &Tensor) -> bool {
        tensor.with_placed(|placed| Arc::ptr_eq(&placed.memory, self.memory()))
    }
}

impl BytesMut {
    /// As [`Bytes::is_of_memory_of`].
    #[doc(hidden)]
    pub fn is_of_memory_of(&self, tensor: &Tensor) -> bool {
        tensor.with_placed(|placed| Arc::ptr_eq(&placed.memory, self.memory()))
    }
}

fn smaller_layout(placed: &Placed, limit: &mut Option<Box<Shape>>, shape: Shape) -> Result<Layout> {
    let limit = limit.get_or_insert_with(|| Box::new(*placed.layout.shape()));
    placed.layout.with_smaller_shape(shape, limit)
}

fn fits(placed: &Placed, layout: &Layout) -> bool {
    layout.dense_bytes() <= placed.memory.len()
}

fn larger_memory(placed: &Placed, layout: &Layout) -> Result<Arc<Memory>> {
    if placed.memory.may_be_left() { Memory::try_zeroed(layout.dense_bytes()) } else { Err(too_small(placed, layout)) }
}

fn too_small(placed: &Placed, layout: &Layout) -> Error {
    let (shape, needed, held) = (layout.shape(), layout.dense_bytes(), placed.memory.len());
    Error::new(
        ErrorKind::Shape,
        format!("set_shape {shape} needs {needed} bytes, this tensor's memory holds {held}; create one in its context"),
    )
}

/// Whether the lease covers the memory of the tensor.
fn check_is_of(memory: &Arc<Memory>, placed: &Placed) -> Result<()> {
    if Arc::ptr_eq(memory, &placed.memory) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Busy, "the tensor took other memory while a run held it; use a tensor that no other request writes"))
}
