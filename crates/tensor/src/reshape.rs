//! Reshaping of tensors, also while the caller holds a lease on them.
//!
//! The handles of a tensor share its layout, which a lock protects. Layout, memory and lease change in one step under that lock, so a lease
//! always matches the layout. A lease covers all bytes of the memory that the tensor may use after it has grown. A tensor without elements
//! leases nothing. It takes its lease when a reshape gives it elements.

use std::sync::Arc;

use super::bytes::Leased;
use super::storage::Lease;
use super::tensor::{Body, Placed};
use super::{BytesMut, DeviceLease, Error, ErrorKind, Layout, Memory, Result, Shape, Tensor};

impl Tensor {
    /// Changes the shape. If the memory of a dense tensor is large enough, the tensor keeps it. Otherwise, the tensor gets new zeroed
    /// memory, and existing regions keep the old memory. A region can only shrink, and grow back to its original shape.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Busy`] while a guard covers a byte of the memory; [`ErrorKind::Shape`] if a region would exceed its original
    /// shape, or if the new shape does not fit into shared or device memory.
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
                drop((lease, before)); // Dropped without the lock, because dropping foreign memory runs code of its owner.
            }
        }
        Ok(())
    }

    /// Changes the shape while the caller holds a lease for writing. The lease does not end during the change, so other threads cannot see
    /// the new shape with old values.
    ///
    /// If `lease` is `None`, other threads may be reading the tensor. In this case, the tensor gets new memory, and the readers keep the
    /// old memory.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::set_shape`]. After an error, the tensor and the lease are unchanged.
    #[doc(hidden)]
    pub fn reshape_leased(&mut self, lease: &mut Option<BytesMut>, shape: Shape) -> Result<()> {
        let element = self.element();
        match &mut self.body {
            Body::Part { placed, limit } => {
                let layout = smaller_layout(placed, limit, shape)?;
                let new = Placed { layout, ..placed.clone() };
                match lease {
                    Some(lease) if !lease.0.lease.covers_nothing() => lease.set_layout(layout, placed.offset_bytes),
                    _ => *lease = Some(BytesMut(Leased::take(&new, new.part_span(limit.as_deref(), false), true, false)?)),
                }
                *placed = new;
            }
            Body::Whole(shared) => {
                let mut placed = shared.write().unwrap();
                let layout = Layout::dense(element, shape)?;
                let fits = fits(&placed, &layout);
                let mut held = lease.as_mut().filter(|lease| !lease.0.lease.covers_nothing());
                if let Some(held) = held.as_mut().filter(|_| fits) {
                    check_is_of(held.memory(), &placed)?;
                    (placed.layout, placed.offset_bytes) = (layout, 0);
                    held.set_layout(layout, 0);
                    return Ok(());
                }
                let new = Placed { memory: Arc::clone(&placed.memory), layout, offset_bytes: 0 };
                let write = match held {
                    Some(held) => check_is_of(held.memory(), &placed).map(|()| None)?,
                    None => match new.memory.lease(new.whole_span(), true) {
                        Ok(write) => Some(write).filter(|_| fits),
                        // When the run started, readers held the present memory, so the tensor gets new memory, even if these readers have
                        // ended meanwhile.
                        Err(error) if error.kind() == ErrorKind::Busy && !placed.memory.is_written() => None,
                        Err(error) => return Err(error),
                    },
                };
                let (new, write): (Placed, Lease) = match write {
                    Some(write) => (new, write),
                    None => {
                        let new = Placed { memory: larger_memory(&placed, &layout)?, ..new };
                        let write = new.memory.lease(new.whole_span(), true)?;
                        (new, write)
                    }
                };
                let before = std::mem::replace(&mut *placed, new);
                let before = (lease.replace(BytesMut(Leased::new(write, layout, 0, false))), before);
                drop(placed);
                drop(before); // Dropped without the lock, as in `set_shape`.
            }
        }
        Ok(())
    }

    /// Same as [`Tensor::reshape_leased`], but for a tensor in device memory, which never moves.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::reshape_leased`].
    #[doc(hidden)]
    pub fn reshape_leased_by_device(&mut self, lease: &mut DeviceLease, shape: Shape) -> Result<()> {
        let element = self.element();
        match &mut self.body {
            Body::Part { placed, limit } => {
                let new = Placed { layout: smaller_layout(placed, limit, shape)?, ..placed.clone() };
                lease.take_if_empty(&new.memory, new.part_span(limit.as_deref(), false))?;
                *placed = new;
            }
            Body::Whole(shared) => {
                let mut placed = shared.write().unwrap();
                let layout = Layout::dense(element, shape)?;
                if !fits(&placed, &layout) {
                    return Err(too_small(&placed, &layout));
                }
                let new = Placed { memory: Arc::clone(&placed.memory), layout, offset_bytes: 0 };
                lease.take_if_empty(&new.memory, new.whole_span())?;
                check_is_of(lease.lease().memory(), &placed)?;
                *placed = new;
            }
        }
        Ok(())
    }

    /// Returns whether the tensor may get new memory while its readers keep the present memory. Returns false while the tensor is being
    /// written.
    #[doc(hidden)]
    pub fn may_leave_its_readers(&self) -> bool {
        matches!(self.body, Body::Whole(_)) && self.with_placed(|placed| placed.memory.may_move() && !placed.memory.is_written())
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
    if !placed.memory.may_move() {
        return Err(too_small(placed, layout));
    }
    let larger = Memory::try_zeroed(layout.dense_bytes())?;
    if placed.memory.is_written_by_others() {
        larger.let_others_write();
    }
    Ok(larger)
}

fn too_small(placed: &Placed, layout: &Layout) -> Error {
    let (shape, needed, held) = (layout.shape(), layout.dense_bytes(), placed.memory.len());
    Error::new(
        ErrorKind::Shape,
        format!("set_shape {shape} needs {needed} bytes, this tensor's memory holds {held}; create a larger tensor in the same context"),
    )
}

/// Checks that the lease is on the memory that the tensor has now.
fn check_is_of(memory: &Arc<Memory>, placed: &Placed) -> Result<()> {
    if Arc::ptr_eq(memory, &placed.memory) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Busy, "the tensor moved to other memory while a run leased it; use a tensor that no other request writes"))
}
