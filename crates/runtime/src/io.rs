//! The tensors of a request: where each input comes from, where each output goes, and the leases that a run holds on these tensors.
//!
//! Each input has a tensor that belongs to the request, in memory that the device can use. The `Source` of an input says what the next run
//! reads: the request's tensor, a tensor of the user, a batch of slices, or the values of a filler. Slices and the values of a filler are
//! first written into the request's tensor, in one pass, by the step `fill`.

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use super::context::unseen;
use super::device::DeviceRequest;
use super::error::catch;
use super::model::VariablePorts;
use super::port::{Dim, PartialShape, Port, PortKey};
use super::{Error, ErrorKind, Input, Inputs, Result};
use crate::tensor::{Bytes, BytesMut, DeviceLease, ElementType, MAX_RANK, Shape, Tensor, Values};

/// Writes the values of an input directly before the device reads them. `roiflow_inference` implements this trait for video frames.
pub trait FillInput: Send {
    /// Returns the shape of the input in the next run. The port must admit this shape.
    ///
    /// # Errors
    /// May return any error, for example if there is no source. The start of the run then fails with this error.
    fn shape(&mut self, port: &Port) -> Result<Shape>;

    /// Returns the number of the video frame from which the input is made, for traces. Called after [`FillInput::shape`].
    fn frame(&mut self) -> Option<u64> {
        None
    }

    /// Writes all elements of `input`, which has the shape that [`FillInput::shape`] returned.
    ///
    /// # Errors
    /// May return any error, for example if the source does not fit. The run then ends with this error.
    fn fill(&mut self, input: &mut BytesMut) -> Result<()>;
}

/// Where the values of an input come from in the next run.
#[allow(clippy::large_enum_variant, reason = "a region of a tensor must not allocate, so its layout is inline")]
pub(super) enum Source {
    /// The request's own tensor.
    Own,
    /// A tensor of the user, with any strides.
    Shared(Tensor),
    /// Slices of the user, one for each batch item.
    Batch(Vec<Tensor>),
    /// The values that a filler writes.
    Fill(Box<dyn FillInput>),
}

/// An input of a request.
pub(super) struct InputSlot {
    pub(super) port: Port,
    /// The index of this input among the inputs of the device.
    device_idx: usize,
    own: Tensor,
    /// A copy of indices that other code may write during a run. Only this slot knows its memory.
    indices: Option<Tensor>,
    source: Source,
    pub(super) lease: Option<InputLease>,
    /// The leased memory and layout as a tensor, for devices that need a tensor. It may differ from the tensor that the user set: if that
    /// tensor is also an output of another request and grows, it moves to new memory, but this run keeps the old memory.
    leased: OnceCell<Tensor>,
    /// The leases on tensors whose values are copied for the run: the slices of a batch, or a tensor of indices.
    slices: Vec<Bytes>,
    /// The value that the current call sets. It takes effect once all values of that call are checked.
    staged: Option<Staged>,
    /// An empty list, kept for the next batch, so that a stream of batches allocates nothing.
    list: Vec<Tensor>,
    /// Whether a value was ever set for this input. If so, an input without elements is intended.
    is_given: bool,
}

/// A checked value for an input. It takes effect once all values of the same call are checked.
#[allow(clippy::large_enum_variant, reason = "a region of a tensor must not allocate, so its layout is inline")]
enum Staged {
    Source(Source),
    /// Values that are still to be copied into the request's own tensor: the lease on this tensor, and its new shape.
    Place(BytesMut, Shape),
    /// Values that were copied into a new tensor.
    Copied(Tensor),
}

pub(super) enum InputLease {
    Fill(BytesMut),
    Read(Bytes),
    /// A lease on device memory, which has no host addresses.
    Remote(#[allow(dead_code, reason = "held for its drop")] DeviceLease),
}

/// An output of a request.
pub(super) struct OutputSlot {
    pub(super) port: Port,
    pub(super) tensor: Tensor,
    /// Whether the request created the tensor. If it did not, the user set the tensor.
    own: bool,
    /// A second tensor of the request for this output. The two tensors alternate if the user also sets the output tensor as an input.
    spare: Option<Tensor>,
    /// The lease on host memory. `None` if another reader leased the tensor when the run started: the output then gets new memory as soon
    /// as its shape is known.
    pub(super) lease: Option<BytesMut>,
    /// The lease on device memory. If it is `Some`, `lease` is `None`.
    pub(super) remote: Option<DeviceLease>,
}

impl InputSlot {
    pub(super) fn new(port: Port, device_idx: usize, own: Tensor) -> Self {
        Self {
            port,
            device_idx,
            own,
            indices: None,
            source: Source::Own,
            lease: None,
            leased: OnceCell::new(),
            slices: Vec::new(),
            staged: None,
            list: Vec::new(),
            is_given: false,
        }
    }

    /// Returns the tensor that the next run reads.
    ///
    /// # Errors
    /// Returns `Tensor` if the next run reads a batch of slices, because a batch is more than one tensor.
    pub(super) fn tensor(&self) -> Result<&Tensor> {
        match &self.source {
            Source::Own | Source::Fill(_) => Ok(&self.own),
            Source::Shared(tensor) => Ok(tensor),
            Source::Batch(slices) => Err(Error::new(
                ErrorKind::Tensor,
                format!("input {}: expected one tensor, but a batch of {} slices was set; set a tensor first", self.port, slices.len()),
            )),
        }
    }

    /// Returns the tensor that the next run reads; `None` if its shape is not known yet.
    pub(super) fn given(&self) -> Option<&Tensor> {
        if matches!(self.source, Source::Fill(_)) { None } else { self.tensor().ok() }
    }

    /// Sets the source of the next run. Returns the previous source. The caller must drop it while no lock is held.
    #[must_use]
    pub(super) fn replace_source(&mut self, source: Source) -> Source {
        self.is_given |= !matches!(source, Source::Own);
        std::mem::replace(&mut self.source, source)
    }

    /// Checks a value and stores it in [`InputSlot::staged`]. After all values of a call are staged, only a copy into the request's own
    /// tensor can still fail.
    fn stage(&mut self, device: &mut dyn DeviceRequest, input: &Input<'_>) -> Result<()> {
        if self.staged.is_some() {
            let message = format!("input {}: expected one value, got two in one call; name each input once", self.port);
            return Err(Error::new(ErrorKind::Tensor, message));
        }
        self.check(&*device, input)?;
        self.staged = Some(match input {
            Input::Share(tensor) => Staged::Source(Source::Shared(tensor.clone())),
            Input::Batch([only]) => Staged::Source(Source::Shared(only.clone())),
            Input::Batch(slices) => {
                let mut list = std::mem::take(&mut self.list);
                list.clear();
                list.extend_from_slice(slices);
                Staged::Source(Source::Batch(list))
            }
            Input::Copy(values) => {
                let shape = self.shape_of(*values)?;
                let needed_bytes = shape.n_elements().and_then(|n_elements| n_elements.checked_mul(self.port.element.size()));
                if values.copies_always() && needed_bytes.is_some_and(|needed| needed <= self.own.capacity_bytes()) {
                    Staged::Place(self.own.bytes_mut().map_err(|error| self.named(error.into()))?, shape)
                } else {
                    let own = device.allocate_input(self.device_idx, shape)?;
                    values.copy_to(&mut own.bytes_mut()?).map_err(|error| self.named(error.into()))?;
                    Staged::Copied(own)
                }
            }
        });
        Ok(())
    }

    /// If the staged value must be copied into the request's own tensor, copies it.
    fn copy_staged(&mut self, input: &Input<'_>) -> Result<()> {
        let (Input::Copy(values), Some(Staged::Place(..))) = (input, &self.staged) else { return Ok(()) };
        let Some(Staged::Place(bytes, shape)) = self.staged.take() else { return Ok(()) };
        let mut held = Some(bytes);
        let before = self.own.shape();
        let mut copied = self.own.reshape_leased(&mut held, shape);
        if let (Ok(()), Some(bytes)) = (&copied, &mut held) {
            copied = values.copy_to(bytes);
            if copied.is_err() {
                self.own.reshape_leased(&mut held, before)?;
            }
        }
        copied.map_err(|error| self.named(error.into()))?;
        self.staged = Some(Staged::Source(Source::Own));
        Ok(())
    }

    /// Makes the staged value the source of the next run.
    fn commit(&mut self) {
        let source = match self.staged.take() {
            None => return,
            Some(Staged::Source(source)) => source,
            Some(Staged::Place(..)) => Source::Own,
            Some(Staged::Copied(own)) => {
                self.own = own;
                Source::Own
            }
        };
        self.is_given = true;
        // Two lists alternate: the first list holds the slices of the present batch, and the second list is empty and kept for the next
        // batch. The second list is allocated together with the first one.
        let n_slices = if let Source::Batch(list) = &source { list.len() } else { 0 };
        self.list = match self.replace_source(source) {
            Source::Batch(mut list) => {
                list.clear();
                list
            }
            _ if n_slices > self.list.capacity() => Vec::with_capacity(n_slices),
            _ => return,
        };
    }

    /// Releases the slices of a batch. Their list keeps its capacity for the next batch.
    pub(super) fn forget_slices(&mut self) {
        if let Source::Batch(slices) = &mut self.source {
            slices.clear();
        }
    }

    /// Returns the tensor that the device reads in a run.
    pub(super) fn read(&self) -> &Tensor {
        match (&self.source, &self.lease) {
            (_, Some(InputLease::Read(bytes))) => self.leased.get_or_init(|| bytes.tensor()),
            (Source::Shared(tensor), _) => tensor,
            (Source::Own | Source::Batch(_) | Source::Fill(_), _) => &self.own,
        }
    }

    /// Returns whether the run that holds the leases reads any element of this tensor.
    fn reads_elements_of(&self, tensor: &Tensor) -> bool {
        let reads = match &self.lease {
            Some(InputLease::Read(bytes)) => bytes.overlaps(tensor),
            Some(InputLease::Fill(bytes)) => bytes.overlaps(tensor),
            Some(InputLease::Remote(_)) | None => self.read().overlaps(tensor),
        };
        reads || self.slices.iter().any(|slice| slice.overlaps(tensor))
    }

    /// Checks that the value fits the port and that the device can use its memory. Changes nothing.
    pub(super) fn check(&self, device: &dyn DeviceRequest, input: &Input<'_>) -> Result<()> {
        match input {
            Input::Share(tensor) => {
                check_memory("input", &self.port, tensor, device)?;
                check_fits("input", &self.port, tensor.element(), &tensor.shape())
            }
            Input::Copy(values) => self.shape_of(*values).map(drop),
            Input::Batch([only]) => {
                check_memory("input", &self.port, only, device)?;
                self.check_slices(std::slice::from_ref(only)).map(drop)
            }
            Input::Batch(slices) => {
                if let Some(place) = slices.iter().find_map(Tensor::remote_place) {
                    let message =
                        format!("input {}: the host copies the slices of a batch but cannot access {place}; set one tensor", self.port);
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                self.check_slices(slices).map(drop)
            }
        }
    }

    /// Returns the shape that the input gets if it is set to these values.
    fn shape_of(&self, values: &dyn Values) -> Result<Shape> {
        let Some(n_values) = values.flat_len() else {
            check_fits("input", &self.port, self.port.element, values.shape())?;
            return Ok(Shape::new(values.shape()));
        };
        let dims = self.port.shape.dims();
        let n_fixed =
            dims.iter().fold(1, |product: usize, dim| if let Dim::Fixed(extent) = dim { product.saturating_mul(*extent) } else { product });
        let has_one_open = dims.iter().filter(|dim| dim.is_open()).count() == 1;
        let open = if has_one_open && n_fixed > 0 { n_values / n_fixed } else { 0 };
        let shape = self.port.shape.with_dynamic(|_| has_one_open.then_some(open));
        match shape.filter(|shape| self.port.shape.admits(shape) && shape.n_elements() == Some(n_values)) {
            Some(shape) => Ok(shape),
            None => {
                let (expected, got) = (format!("{} {}", self.port.shape, self.port.element), format!("{n_values} values without a shape"));
                let message = format!("input `{}`: expected {expected}, got {got}", self.port.name());
                Err(Error::new(ErrorKind::Tensor, message).with_port(self.port.name()).with_expected(expected, got))
            }
        }
    }

    /// Checks slices, and returns the shape of the batch that they form.
    fn check_slices(&self, slices: &[Tensor]) -> Result<Shape> {
        let port = &self.port;
        let fail = |message: String| Err(Error::new(ErrorKind::Tensor, format!("input {port}: {message}")).with_port(port.name()));
        let rank = port.shape.dims().len();
        let Some(first) = slices.first() else { return fail("expected at least one slice, got an empty batch".to_owned()) };
        let batch_axis = match &port.axes {
            Some(axes) => axes.batch_axis(rank).map_err(|error| self.named(error))?,
            None => (rank > 0).then_some(0),
        };
        if batch_axis != Some(0) {
            let axes = port.axes.as_ref().map_or("none".to_owned(), |axes| format!("`{axes}`"));
            return fail(format!("a batch of slices needs the batch as the first axis, as in `NCHW`; the port's axes: {axes}"));
        }
        if let Some(slice_idx) = slices.iter().position(|slice| slice.overlaps(&self.own)) {
            let message = format!(
                "input {port}: slice {slice_idx} of {} is in the input's own tensor, into which the slices are copied; set slices of another tensor",
                slices.len()
            );
            return Err(Error::new(ErrorKind::Conflict, message).with_port(port.name()));
        }
        let expected = first.shape();
        for (slice_idx, slice) in slices.iter().enumerate() {
            let shape = slice.shape();
            if slice.element() != port.element || shape.first() != Some(&1) || shape != expected {
                let (one, got) = (of_batch_1(&port.shape, &expected), slice.element());
                return fail(format!("slice {slice_idx} of {}: expected {one} {}, got {shape} {got}", slices.len(), port.element));
            }
        }
        let shape = with_first(&expected, slices.len());
        check_fits("input", port, port.element, &shape)?;
        Ok(shape)
    }

    fn named(&self, error: Error) -> Error {
        error.context(format!("input {}", self.port)).with_port(self.port.name())
    }

    /// Sets the shape of the request's own tensor. Allocates new memory only if the present memory is too small.
    fn place_own(&mut self, device: &mut dyn DeviceRequest, shape: Shape) -> Result<()> {
        if self.own.shape() == shape {
            return Ok(());
        }
        check_fits("input", &self.port, self.port.element, &shape)?;
        let needed_bytes = shape.n_elements().and_then(|n_elements| n_elements.checked_mul(self.port.element.size()));
        if needed_bytes.is_some_and(|needed| needed <= self.own.capacity_bytes()) {
            let mut own = self.own.clone();
            own.set_shape(shape).map_err(|error| self.named(error.into()))
        } else {
            self.own = device.allocate_input(self.device_idx, shape)?;
            Ok(())
        }
    }

    /// Leases the request's own tensor for writing, with this shape. Allocates new memory only if the present memory is too small, or if
    /// other code may write indices in it.
    fn lease_own(&mut self, device: &mut dyn DeviceRequest, shape: Shape) -> Result<BytesMut> {
        check_fits("input", &self.port, self.port.element, &shape)?;
        let needed_bytes = shape.n_elements().and_then(|n_elements| n_elements.checked_mul(self.port.element.size()));
        let is_indices_of_others = is_index(self.port.element) && self.own.is_written_by_others();
        if needed_bytes.is_none_or(|needed| needed > self.own.capacity_bytes()) || is_indices_of_others {
            // Other handles of the previous tensor may exist. They keep its memory.
            let own = device.allocate_input(self.device_idx, shape)?;
            let lease = own.bytes_mut().map_err(|error| self.named(error.into()))?;
            self.own = own;
            return Ok(lease);
        }
        let mut lease = self.own.bytes_mut().map_err(|error| self.named(error.into()))?;
        if *lease.layout().shape() != shape {
            let mut held = Some(lease);
            let reshaped = self.own.reshape_leased(&mut held, shape);
            reshaped.map_err(|error| self.named(error.into()))?;
            lease = held.expect("a reshaped tensor has its lease");
        }
        Ok(lease)
    }

    /// Takes the leases of a run.
    fn lease(&mut self, device: &mut dyn DeviceRequest) -> Result<()> {
        let filled_shape = match &mut self.source {
            Source::Own | Source::Shared(_) => None,
            Source::Batch(slices) => {
                let slices = std::mem::take(slices);
                let shape = self.check_slices(&slices);
                let leased = shape.and_then(|shape| {
                    for slice in &slices {
                        self.slices.push(slice.elements().map_err(|error| self.named(error.into()))?);
                    }
                    Ok(shape)
                });
                self.source = Source::Batch(slices);
                Some(leased?)
            }
            Source::Fill(fill) => {
                let asked = catch(format_args!("the filler"), || fill.shape(&self.port)).and_then(|asked| asked);
                Some(asked.map_err(|error| self.named(error))?)
            }
        };
        self.lease = Some(match filled_shape {
            Some(shape) => InputLease::Fill(self.lease_own(device, shape)?),
            None => {
                let tensor = self.tensor()?;
                if tensor.is_remote() {
                    let lease = tensor.lease_for_device(false).map_err(|error| self.named(error.into()))?;
                    check_fits("input", &self.port, tensor.element(), &tensor.shape())?;
                    self.lease = Some(InputLease::Remote(lease));
                    return Ok(());
                }
                let bytes = tensor.elements().map_err(|error| self.named(error.into()))?;
                check_fits("input", &self.port, tensor.element(), bytes.layout().shape())?;
                if (is_index(self.port.element) || device.counts_with(self.device_idx)) && tensor.is_written_by_others() {
                    // Engines first check that an index is in range, and use it later. Other code could change the memory in between, so
                    // the engine gets a copy of the indices.
                    let shape = *bytes.layout().shape();
                    let fits = |copy: &Tensor| bytes.layout().dense_bytes() <= copy.capacity_bytes();
                    let mut copy = self.indices.take().filter(fits).map_or_else(|| device.allocate_input(self.device_idx, shape), Ok)?;
                    copy.set_shape(shape).map_err(|error| self.named(error.into()))?;
                    let mut copied = copy.bytes_mut().map_err(|error| self.named(error.into()))?;
                    bytes.copy_to(&mut copied).map_err(|error| self.named(error.into()))?;
                    self.indices = Some(copy);
                    self.slices.push(bytes);
                    InputLease::Read(copied.downgrade())
                } else {
                    InputLease::Read(bytes)
                }
            }
        });
        Ok(())
    }

    /// If the source is a batch or a filler, writes its values into the request's own tensor.
    fn fill(&mut self) -> Result<()> {
        let Some(InputLease::Fill(mut bytes)) = self.lease.take_if(|lease| matches!(lease, InputLease::Fill(_))) else { return Ok(()) };
        match &mut self.source {
            Source::Fill(fill) => fill.fill(&mut bytes).map_err(|error| error.context(format!("input {}", self.port)))?,
            _ => {
                for (row_idx, slice) in self.slices.drain(..).enumerate() {
                    bytes.row_mut(row_idx)?.copy_from(&slice)?;
                }
            }
        }
        self.lease = Some(InputLease::Read(bytes.downgrade()));
        Ok(())
    }
}

/// Returns the expected shape of a slice, for messages. On the dynamic axes of the port, the extent of the first slice is expected.
fn of_batch_1(port: &PartialShape, first: &Shape) -> PartialShape {
    let dims = port.dims().iter().enumerate().map(|(axis, dim)| match (axis, dim) {
        (0, _) => Dim::Fixed(1),
        (_, open) if open.is_open() && first.len() == port.dims().len() => Dim::Fixed(first[axis]),
        (_, dim) => *dim,
    });
    PartialShape::new(dims.collect()).expect("as many axes as the port has")
}

/// Returns whether engines may use values of this type as positions in memory, as ONNX's `Gather` does, or as a number of elements, as
/// `Compress` does.
pub fn is_index(element: ElementType) -> bool {
    matches!(element, ElementType::Bool | ElementType::I32 | ElementType::I64 | ElementType::U32 | ElementType::U64)
}

/// Returns the shape with a different extent of its first axis. The shape must have at least one axis.
fn with_first(shape: &Shape, extent: usize) -> Shape {
    let mut dims = [0; MAX_RANK];
    dims[..shape.len()].copy_from_slice(shape);
    dims[0] = extent;
    Shape::new(&dims[..shape.len()])
}

impl OutputSlot {
    pub(super) fn new(port: Port, tensor: Tensor) -> Self {
        Self { port, tensor, own: true, spare: None, lease: None, remote: None }
    }

    /// Sets a tensor of the user as the output. Returns the previous tensor. The caller must drop it while no lock is held.
    pub(super) fn replace(&mut self, tensor: Tensor) -> Tensor {
        self.own = false;
        std::mem::replace(&mut self.tensor, tensor)
    }

    /// Returns whether the user set the tensor.
    pub(super) fn is_of_user(&self) -> bool {
        !self.own
    }

    /// Returns a tensor with the values of the output, which no later run of this request writes. If the tensor belongs to the request,
    /// returns this tensor and puts a new one in its place. If the user set the tensor, returns a copy.
    pub(super) fn give_away(&mut self) -> Result<Tensor> {
        let other = Tensor::new(self.tensor.element(), self.tensor.shape())?;
        if self.own {
            return Ok(std::mem::replace(&mut self.tensor, other));
        }
        self.tensor.copy_to(&other)?;
        Ok(other)
    }

    fn check_computed(&self, shape: &[usize]) -> Result<()> {
        if self.port.shape.admits(shape) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Device, format!("output {}: the engine computed the shape {shape:?}", self.port)))
    }

    fn lease(&mut self, inputs: &[InputSlot]) -> Result<()> {
        if let Some(input) = inputs.iter().find(|slot| slot.reads_elements_of(&self.tensor)) {
            if !self.own {
                let message = format!(
                    "output {}: its tensor shares memory with that of input {}, and a run cannot write a tensor that it reads; set another tensor",
                    self.port, input.port
                );
                return Err(Error::new(ErrorKind::Conflict, message).with_port(self.port.name()));
            }
            // The run reads the present tensor as an input, so it writes the spare tensor. If there is no spare tensor, or if it is leased,
            // allocate a new one.
            let other = match self.spare.take().filter(|spare| spare.elements_mut().is_ok()) {
                Some(spare) => spare,
                None => Tensor::new(self.tensor.element(), self.tensor.shape())?,
            };
            self.spare = Some(std::mem::replace(&mut self.tensor, other));
        }
        let expected = self.port.shape.to_static();
        if self.tensor.is_remote() {
            self.remote = Some(self.tensor.lease_for_device(true).map_err(|error| self.named(error))?);
        } else {
            match self.tensor.elements_mut() {
                Ok(lease) => self.lease = Some(lease),
                // The output gets new memory once its shape is known. The readers that lease the present memory keep it.
                Err(_) if expected.is_none() && self.own && self.tensor.may_leave_its_readers() => {}
                Err(error) => return Err(self.named(error)),
            }
        }
        match expected {
            Some(shape) if shape != self.tensor.shape() => Err(mismatch("output", &self.port, self.tensor.element(), &self.tensor.shape())),
            _ => Ok(()),
        }
    }

    /// Gives the output the computed shape. The shape and the lease change in one step, so no other thread sees the new shape with the old
    /// lease.
    fn reshape(&mut self, shape: &[usize]) -> Result<()> {
        self.check_computed(shape)?;
        let shape = Shape::new(shape);
        let reshaped = match &mut self.remote {
            Some(lease) => self.tensor.reshape_leased_by_device(lease, shape),
            None => self.tensor.reshape_leased(&mut self.lease, shape),
        };
        reshaped.map_err(|error| self.named(error))
    }

    fn named(&self, error: crate::tensor::Error) -> Error {
        Error::from(error).context(format!("output {}", self.port)).with_port(self.port.name())
    }
}

/// The tensors of a request, and the leases of a run on them. In both lists, the slots of the visible ports come first, then the slots of
/// variables.
pub(super) struct RunIo {
    pub(super) inputs: Vec<InputSlot>,
    pub(super) outputs: Vec<OutputSlot>,
    pub(super) places: Arc<Places>,
    /// The number of the video frame from which the inputs of the run are made, for traces.
    pub(super) frame: Option<u64>,
}

/// Maps the ports of a device to the slots of a request.
#[derive(Debug)]
pub(super) struct Places {
    /// For each input of the device, the index of its slot.
    pub(super) inputs: Vec<usize>,
    /// For each output of the device, the index of its slot.
    pub(super) outputs: Vec<usize>,
    /// For each variable, the indices of its input slot and its output slot.
    pub(super) variables: Vec<(usize, usize)>,
}

impl Places {
    pub(super) fn new(n_inputs: usize, n_outputs: usize, variables: &[VariablePorts]) -> Self {
        // Visible ports keep their order from the model. The ports of variables follow, in the order of the variables.
        let place = |n_ports: usize, variable_ports: Vec<usize>| {
            let visible = (0..n_ports).filter(|port_idx| !variable_ports.contains(port_idx));
            let order: Vec<usize> = visible.chain(variable_ports.iter().copied()).collect();
            (0..n_ports)
                .map(|port_idx| order.iter().position(|at| *at == port_idx).expect("the order contains all outputs"))
                .collect::<Vec<usize>>()
        };
        let inputs = place(n_inputs, variables.iter().map(|variable| variable.input_idx).collect());
        let outputs = place(n_outputs, variables.iter().map(|variable| variable.output_idx).collect());
        let variables = variables.iter().map(|variable| (inputs[variable.input_idx], outputs[variable.output_idx])).collect();
        Self { inputs, outputs, variables }
    }

    /// Returns the number of inputs and the number of outputs that do not belong to variables.
    pub(super) fn n_visible(&self) -> (usize, usize) {
        (self.inputs.len() - self.variables.len(), self.outputs.len() - self.variables.len())
    }
}

impl RunIo {
    /// Returns the inputs that do not belong to variables.
    pub(super) fn visible_inputs(&self) -> &[InputSlot] {
        &self.inputs[..self.places.n_visible().0]
    }

    /// Returns the outputs that do not belong to variables.
    pub(super) fn visible_outputs(&self) -> &[OutputSlot] {
        &self.outputs[..self.places.n_visible().1]
    }

    /// Same as [`RunIo::visible_outputs`], but mutable.
    pub(super) fn visible_outputs_mut(&mut self) -> &mut [OutputSlot] {
        &mut self.outputs[..self.places.n_visible().1]
    }

    /// Passes the values of the variables from this run to the next run: swaps the input and output tensor of each variable, without a
    /// copy.
    pub(super) fn commit_variables(&mut self) {
        for (input_idx, output_idx) in &self.places.variables {
            std::mem::swap(&mut self.inputs[*input_idx].own, &mut self.outputs[*output_idx].tensor);
        }
    }

    /// Returns a copy of the current value of a variable.
    pub(super) fn variable(&self, variable_idx: usize) -> Result<Tensor> {
        let own = &self.inputs[self.places.variables[variable_idx].0].own;
        let copy = Tensor::new(own.element(), own.shape())?;
        own.copy_to(&copy)?;
        Ok(copy)
    }

    /// Sets a variable to the values of `state`. If `state` is `None`, sets it to zeros, with an extent of 0 on each dynamic axis.
    pub(super) fn set_variable(&mut self, device: &mut dyn DeviceRequest, variable_idx: usize, state: Option<&Tensor>) -> Result<()> {
        let slot = &mut self.inputs[self.places.variables[variable_idx].0];
        match state {
            Some(state) => {
                check_fits("variable", &slot.port, state.element(), &state.shape())?;
                if state.is_remote() {
                    slot.place_own(device, state.shape())?;
                    return Ok(state.copy_to(&slot.own)?);
                }
                // Lease `state` before the variable, so that the variable is unchanged if this lease fails.
                let state = state.elements()?;
                Ok(state.copy_to(&mut slot.lease_own(device, *state.layout().shape())?)?)
            }
            None => {
                let shape = slot.port.shape.with_dynamic(|_| Some(0)).expect("no extent is left open");
                if slot.own.shape() != shape {
                    slot.own = device.allocate_input(slot.device_idx, shape)?;
                }
                slot.own.bytes_mut().map_err(|error| slot.named(error.into()))?.extent_mut().fill(0);
                Ok(())
            }
        }
    }

    /// Sets several inputs. If one value does not fit or cannot be copied, no input changes.
    pub(super) fn set_inputs(&mut self, device: &mut dyn DeviceRequest, ports: &[Port], inputs: &impl Inputs) -> Result<()> {
        /// Discards the staged values if a later input does not fit or the caller's code panics.
        struct Unstage<'a>(&'a mut [InputSlot]);
        impl Drop for Unstage<'_> {
            fn drop(&mut self) {
                self.0.iter_mut().for_each(|slot| slot.staged = None);
            }
        }
        let slots = Unstage(&mut self.inputs);
        inputs.visit(&mut |key: PortKey<'_>, input| slots.0[key.find("input", ports)?].stage(device, input))?;
        if slots.0.iter().any(|slot| matches!(slot.staged, Some(Staged::Place(..)))) {
            inputs.visit(&mut |key: PortKey<'_>, input| slots.0[key.find("input", ports)?].copy_staged(input))?;
        }
        slots.0.iter_mut().for_each(InputSlot::commit);
        Ok(())
    }

    /// Checks that a new output tensor shares no element with the tensor of another output, or with the own tensor of an input. `others`
    /// are the output tensors that the same call sets.
    pub(super) fn check_new_output(&self, output_idx: usize, tensor: &Tensor, others: &[(usize, Tensor)]) -> Result<()> {
        let port = &self.outputs[output_idx].port;
        let will_be = |idx: usize| others.iter().rfind(|(of, _)| *of == idx).map_or(&self.outputs[idx].tensor, |(_, tensor)| tensor);
        let is_other = |idx: &usize| *idx != output_idx && will_be(*idx).overlaps(tensor);
        if let Some(other_idx) = (0..self.visible_outputs().len()).find(is_other) {
            let other = &self.outputs[other_idx].port;
            let message =
                format!("output {port}: its tensor shares memory with that of output {other}; set a different tensor for each output");
            return Err(Error::new(ErrorKind::Conflict, message).with_port(port.name()));
        }
        let is_own = |slot: &&InputSlot| !matches!(slot.source, Source::Shared(_)) && slot.own.overlaps(tensor);
        if let Some(input) = self.visible_inputs().iter().find(is_own) {
            let message = format!(
                "output {port}: its tensor shares memory with that of input {}, and a run cannot write a tensor that it reads; set another tensor",
                input.port
            );
            return Err(Error::new(ErrorKind::Conflict, message).with_port(port.name()));
        }
        Ok(())
    }

    /// Checks the tensors against the ports and takes the leases of a run.
    pub(super) fn lease(&mut self, device: &mut dyn DeviceRequest) -> Result<()> {
        let leased = self.lease_all(device);
        if leased.is_err() {
            self.release();
        }
        leased
    }

    fn lease_all(&mut self, device: &mut dyn DeviceRequest) -> Result<()> {
        self.frame = None;
        for input_idx in 0..self.inputs.len() {
            if let Err(error) = self.inputs[input_idx].lease(device) {
                return Err(self.own_conflict(input_idx).unwrap_or(error));
            }
            let slot = &mut self.inputs[input_idx];
            if let Source::Fill(fill) = &mut slot.source {
                self.frame = self.frame.or_else(|| fill.frame());
            }
        }
        self.outputs.iter_mut().try_for_each(|slot| slot.lease(&self.inputs))
    }

    /// Returns the error for an input that cannot be leased because an earlier input of the same request uses its memory. The kind of this
    /// error is `Conflict` instead of `Busy`, because waiting would not help.
    fn own_conflict(&self, input_idx: usize) -> Option<Error> {
        let slot = &self.inputs[input_idx];
        let wanted = match &slot.source {
            Source::Shared(tensor) => tensor,
            _ => &slot.own,
        };
        let other = self.inputs[..input_idx].iter().find(|other| other.lease.is_some() && other.reads_elements_of(wanted))?;
        let is_written = |slot: &InputSlot| matches!(slot.source, Source::Batch(_) | Source::Fill(_));
        if !is_written(slot) && !is_written(other) {
            return None;
        }
        let message = format!(
            "input {}: its tensor shares memory with input {}, and the run writes one of the two; set another tensor",
            slot.port, other.port
        );
        Some(Error::new(ErrorKind::Conflict, message).with_port(slot.port.name()))
    }

    /// Writes the inputs whose source is a filler or a batch into the request's own tensors.
    pub(super) fn fill(&mut self) -> Result<()> {
        self.inputs.iter_mut().try_for_each(InputSlot::fill)
    }

    /// Resets all inputs to the request's own tensors.
    pub(super) fn clear_inputs(&mut self) {
        self.inputs.iter_mut().for_each(|slot| drop(slot.replace_source(Source::Own)));
    }

    /// Ends all leases of the run.
    pub(super) fn release(&mut self) {
        for slot in &mut self.inputs {
            slot.lease = None;
            slot.leased.take();
            slot.slices.clear();
        }
        self.outputs.iter_mut().for_each(|slot| (slot.lease, slot.remote) = (None, None));
    }
}

/// The inputs and outputs of a run for a device, in the order of the ports that the device compiled.
pub struct DeviceIo<'a> {
    pub(super) io: &'a mut RunIo,
}

impl fmt::Debug for DeviceIo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceIo({} inputs, {} outputs)", self.n_inputs(), self.n_outputs())
    }
}

impl DeviceIo<'_> {
    /// Returns the number of inputs, including those of variables.
    pub fn n_inputs(&self) -> usize {
        self.io.inputs.len()
    }

    /// Returns the number of outputs, including those of variables.
    pub fn n_outputs(&self) -> usize {
        self.io.outputs.len()
    }

    /// Returns whether all inputs and outputs are in host memory.
    pub(super) fn is_on_host(&self) -> bool {
        self.io.inputs.iter().all(|slot| matches!(slot.lease, Some(InputLease::Read(_))))
            && self.io.outputs.iter().all(|slot| slot.remote.is_none())
    }

    /// Returns whether a tensor, values or a filler were ever set for this input. If not, an input of dynamic shape has no elements.
    pub fn is_given(&self, input_idx: usize) -> bool {
        self.io.inputs[self.io.places.inputs[input_idx]].is_given
    }

    /// Returns the tensor of an input, with the memory and layout that it had when the run started.
    pub fn input_tensor(&self, input_idx: usize) -> &Tensor {
        self.io.inputs[self.io.places.inputs[input_idx]].read()
    }

    /// Returns the bytes of an input, which are leased for the whole run. The strides are arbitrary. The gaps between rows are not leased,
    /// see [`Tensor::elements`].
    ///
    /// # Panics
    /// Panics if the input is in device memory. A device that accepts tensors in device memory must look at [`DeviceIo::input_tensor`]
    /// first.
    pub fn input(&self, input_idx: usize) -> &Bytes {
        match &self.io.inputs[self.io.places.inputs[input_idx]].lease {
            Some(InputLease::Read(bytes)) => bytes,
            Some(InputLease::Remote(_)) => panic!("input {input_idx} is in device memory"),
            _ => unreachable!("inputs are readable once the step `fill` ended"),
        }
    }

    /// Gives an output this shape, and returns its bytes. If the tensor is too small, it grows. The gaps between rows are not leased, see
    /// [`Tensor::elements_mut`].
    ///
    /// # Errors
    /// Returns `Device` if the port does not admit the shape. Returns `Tensor` if the user set the tensor and it cannot have this shape, or
    /// if it is in device memory.
    pub fn output(&mut self, output_idx: usize, shape: &[usize]) -> Result<&mut BytesMut> {
        let slot = &mut self.io.outputs[self.io.places.outputs[output_idx]];
        if slot.lease.as_ref().is_none_or(|lease| **lease.layout().shape() != *shape) {
            slot.reshape(shape)?;
        }
        slot.lease.as_mut().ok_or_else(|| unseen("output", &slot.port, &slot.tensor))
    }

    /// Gives an output this shape, and returns its tensor. For devices that write into their own memory.
    ///
    /// # Errors
    /// Returns the errors of [`DeviceIo::output`], except that a tensor in device memory is no error.
    pub fn output_tensor(&mut self, output_idx: usize, shape: &[usize]) -> Result<&Tensor> {
        let slot_idx = self.io.places.outputs[output_idx];
        if self.io.outputs[slot_idx].remote.is_none() {
            self.output(output_idx, shape)?;
            return Ok(&self.io.outputs[slot_idx].tensor);
        }
        let slot = &mut self.io.outputs[slot_idx];
        if *slot.tensor.shape() != *shape {
            slot.reshape(shape)?;
        }
        Ok(&slot.tensor)
    }
}

/// Checks that the device can use the memory of this tensor.
pub(super) fn check_memory(kind: &str, port: &Port, tensor: &Tensor, device: &dyn DeviceRequest) -> Result<()> {
    match tensor.remote_place() {
        Some(place) if !device.accepts_remote(tensor) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{kind} {port}: this device cannot use {place}; copy the tensor to a host tensor, or to a tensor of the device's own context"
            ),
        )),
        _ => Ok(()),
    }
}

/// Checks that the port accepts a tensor of this type and shape.
pub(super) fn check_fits(kind: &str, port: &Port, element: ElementType, shape: &[usize]) -> Result<()> {
    if element == port.element && port.shape.admits(shape) { Ok(()) } else { Err(mismatch(kind, port, element, shape)) }
}

fn mismatch(kind: &str, port: &Port, element: ElementType, shape: &[usize]) -> Error {
    let (expected, got) = (format!("{} {}", port.shape, port.element), format!("{shape:?} {element}"));
    let message = format!("{kind} `{}`: expected {expected}, got {got}", port.name());
    Error::new(ErrorKind::Tensor, message).with_port(port.name()).with_expected(expected, got)
}
