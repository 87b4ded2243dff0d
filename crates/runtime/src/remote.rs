//! Contexts for tensors outside plain host memory: device memory, and memory that processes share.
//!
//! ```
//! use roiflow::devices;
//! use roiflow::runtime::ContextParams;
//! use roiflow::tensor::{ElementType, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A device's own memory: the host sees shape and type, and reaches the values by copying.
//! let device = devices::core().default_context("NULL")?;
//! let on_device = device.create_tensor(ElementType::F32, [1, 4])?;
//! assert!(on_device.view::<f32>().is_err());
//! on_device.copy_from(&Tensor::from_slice([1, 4], &[1_f32, 2.0, 3.0, 4.0])?)?;
//! let back = device.create_host_tensor(ElementType::F32, [1, 2])?;
//! on_device.roi(&[0, 2], &[1, 4])?.copy_to(&back)?;
//! assert_eq!(back.view::<f32>()?.to_vec(), [3.0, 4.0]);
//!
//! // Memory that another process can map: an ordinary tensor in this process, and a descriptor for the other process.
//! let shared = devices::core().create_context("CPU", &ContextParams::SharedMemory)?;
//! let frame = shared.create_tensor(ElementType::U8, [480, 640, 3])?;
//! frame.view_mut::<u8>()?.fill(128);
//! let for_the_peer = frame.export()?; // SharedTensor::send puts it onto a Unix socket.
//! let as_the_peer_sees_it = for_the_peer.import()?;
//! assert_eq!(as_the_peer_sees_it.view::<u8>()?[[0, 0, 0]], 128);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::Arc;

use super::{Error, ErrorKind, Result};
use crate::tensor::{ElementType, Shape, Tensor};

/// The kind of memory that a context uses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContextParams {
    /// Memory of the device.
    DeviceMemory {
        /// Maximum total size of the tensors of this context, in bytes. `None`: limited only by the memory of the device.
        max_bytes: Option<usize>,
    },
    /// Host memory that other processes can map, see [`tensor::shared`](crate::tensor::shared).
    SharedMemory,
}

/// Creates tensors in one kind of memory. A context may be used after the core is dropped, and its tensors may be used after the context is
/// dropped.
#[derive(Clone)]
pub struct RemoteContext {
    device: Arc<str>,
    memory: Arc<dyn ContextMemory>,
}

/// The memory of a context. Devices implement this trait.
pub trait ContextMemory: Send + Sync {
    /// Returns the kind of this memory.
    fn params(&self) -> ContextParams;

    /// Creates a tensor of zeros in this memory.
    ///
    /// # Errors
    /// Returns `Tensor` if the size overflows. Returns another error, which the device chooses, if no memory is left.
    fn create_tensor(&self, element: ElementType, shape: Shape) -> Result<Tensor>;

    /// Creates a host tensor of zeros, in memory from which copies to and from this context are fast.
    ///
    /// # Errors
    /// Returns `Tensor` if the size overflows. Returns another error, which the device chooses, if no memory is left.
    fn create_host_tensor(&self, element: ElementType, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::new(element, shape)?)
    }
}

impl RemoteContext {
    /// Creates a context of device memory. Devices call this function.
    pub fn new(device: &str, memory: Arc<dyn ContextMemory>) -> Self {
        Self { device: device.into(), memory }
    }

    /// Creates a context of shared memory.
    pub(crate) fn shared_memory(device: &str) -> Result<Self> {
        if cfg!(target_os = "linux") {
            Ok(Self::new(device, Arc::new(Shared)))
        } else {
            Err(Error::new(ErrorKind::Unsupported, "shared memory needs sealed anonymous files, which only Linux supports"))
        }
    }

    /// Returns the name of the device that uses the memory.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns the kind of memory that the context uses.
    pub fn params(&self) -> ContextParams {
        self.memory.params()
    }

    /// Creates a dense tensor of zeros in this memory.
    ///
    /// # Errors
    /// Returns `Tensor` if the size overflows. Returns `Device` or `Io` if no memory is left. Returns `Unsupported` if the memory cannot
    /// hold the element type.
    pub fn create_tensor(&self, element: ElementType, shape: impl Into<Shape>) -> Result<Tensor> {
        self.memory.create_tensor(element, shape.into()).map_err(|error| error.context(format!("device {}", self.device)))
    }

    /// Creates a dense tensor of zeros in host memory that is suited for copies to and from the memory of this context.
    ///
    /// # Errors
    /// Returns the errors of [`RemoteContext::create_tensor`].
    pub fn create_host_tensor(&self, element: ElementType, shape: impl Into<Shape>) -> Result<Tensor> {
        self.memory.create_host_tensor(element, shape.into()).map_err(|error| error.context(format!("device {}", self.device)))
    }
}

impl fmt::Debug for RemoteContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteContext({}, {:?})", self.device, self.params())
    }
}

struct Shared;

impl ContextMemory for Shared {
    fn params(&self) -> ContextParams {
        ContextParams::SharedMemory
    }

    #[cfg(target_os = "linux")]
    fn create_tensor(&self, element: ElementType, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::shared(element, shape)?)
    }

    #[cfg(not(target_os = "linux"))]
    fn create_tensor(&self, _element: ElementType, _shape: Shape) -> Result<Tensor> {
        Err(Error::new(ErrorKind::Unsupported, "shared memory needs sealed anonymous files, which only Linux supports"))
    }
}
