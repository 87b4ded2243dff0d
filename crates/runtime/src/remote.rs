//! Where tensors come from that do not lie in plain memory: the memory of a device, and memory that processes share.
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
//! // Memory that another process can map: an ordinary tensor here, and a descriptor for over there.
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

/// What kind of memory a context hands out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContextParams {
    /// The device's own.
    DeviceMemory {
        /// The most bytes that tensors of this context may take together; `None` is as many as the device has.
        max_bytes: Option<usize>,
    },
    /// Memory of the host that other processes may map, see [`tensor::shared`](crate::tensor::shared). The host sees it as any
    /// other.
    SharedMemory,
}

/// Makes tensors in memory of one kind. Cheap to clone; outlives the core, and its tensors outlive it.
#[derive(Clone)]
pub struct RemoteContext {
    device: Arc<str>,
    memory: Arc<dyn ContextMemory>,
}

/// The memory behind a context. A device implements it.
pub trait ContextMemory: Send + Sync {
    /// What the context was made from.
    fn params(&self) -> ContextParams;

    /// A tensor of zeros.
    ///
    /// # Errors
    /// If the size overflows, or there is no room.
    fn create_tensor(&self, element: ElementType, shape: Shape) -> Result<Tensor>;

    /// A tensor of zeros that the host sees, in memory that copies well to and from this one.
    ///
    /// # Errors
    /// If the size overflows, or there is no room.
    fn create_host_tensor(&self, element: ElementType, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::new(element, shape)?)
    }
}

impl RemoteContext {
    /// The memory of a device; for devices.
    pub fn new(device: &str, memory: Arc<dyn ContextMemory>) -> Self {
        Self { device: device.into(), memory }
    }

    /// Memory that processes share.
    pub(crate) fn shared_memory(device: &str) -> Result<Self> {
        if cfg!(target_os = "linux") {
            Ok(Self::new(device, Arc::new(Shared)))
        } else {
            Err(Error::new(ErrorKind::Unsupported, "memory is shared by sealed anonymous files, which only Linux has"))
        }
    }

    /// The device that the memory is for.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What the context was made from.
    pub fn params(&self) -> ContextParams {
        self.memory.params()
    }

    /// A dense tensor of zeros in this memory.
    ///
    /// # Errors
    /// `Tensor` if its size overflows, `Device` or `Io` if there is no room, `Unsupported` if the memory can't hold the type.
    pub fn create_tensor(&self, element: ElementType, shape: impl Into<Shape>) -> Result<Tensor> {
        self.memory.create_tensor(element, shape.into()).map_err(|error| error.context(format!("device {}", self.device)))
    }

    /// A dense tensor of zeros that the host sees: to fill, or to read, what is copied to and from this memory.
    ///
    /// # Errors
    /// As [`RemoteContext::create_tensor`].
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
        Err(Error::new(ErrorKind::Unsupported, "memory is shared by sealed anonymous files, which only Linux has"))
    }
}
