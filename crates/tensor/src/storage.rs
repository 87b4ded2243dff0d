//! Ownership of memory (allocated, pooled, foreign, shared or device memory) and the leases on it. All `unsafe` code of this crate that
//! owns memory is here and in `shared`.
//!
//! A lease is one atomic word per memory: 0 free, n readers, `WRITER`. Taking one never blocks, so there is no lock order.

use std::alloc::{self, Layout as AllocLayout};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::pool::PoolReturn;
#[cfg(target_os = "linux")]
use super::shared::SharedMapping;
use super::{Error, ErrorKind, RemoteMemory, Result};
use crate::sync::{AtomicUsize, Ordering};

/// Alignment of allocated memory: a cache line, and the widest vector register.
pub const ALIGN_BYTES: usize = 64;

const WRITER: usize = usize::MAX;

/// Memory with a foreign owner, such as a mapped media buffer or an engine's tensor.
///
/// # Safety
/// `as_ptr` points to `len` initialized bytes at a fixed address for the lifetime of the value. They do not change during a read lease, and
/// are not accessed otherwise during a write lease. If `is_writable` is true, they may be written.
pub unsafe trait ForeignMemory: Send + Sync {
    /// First byte.
    fn as_ptr(&self) -> NonNull<u8>;
    /// Number of bytes.
    fn len(&self) -> usize;
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether the bytes may be written.
    fn is_writable(&self) -> bool;
}

/// The kind of a block of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Host memory of this process, allocated or mapped.
    Host,
    /// Host memory with a file descriptor, shared with other processes: [`Tensor::shared`](super::Tensor::shared).
    Shared,
    /// Device memory, which the host can only copy.
    Device,
}

/// A block of bytes with its leases.
pub struct Memory {
    ptr: NonNull<u8>,
    len: usize,
    writable: bool,
    lease: AtomicUsize,
    owner: Owner,
}

enum Owner {
    Own(#[allow(dead_code, reason = "held for its drop")] AlignedBytes),
    Pooled(Option<AlignedBytes>, PoolReturn),
    Foreign(#[allow(dead_code, reason = "held for its drop")] Box<dyn ForeignMemory>),
    #[cfg(target_os = "linux")]
    Shared(SharedMapping),
    Remote(Box<dyn RemoteMemory>),
}

// SAFETY: the bytes are reached only through leases, which exclude writers from readers across threads; the owners are Send + Sync.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates zeroed memory.
    ///
    /// # Panics
    /// If memory is exhausted; see [`Memory::try_zeroed`].
    pub fn zeroed(len: usize) -> Arc<Self> {
        Self::try_zeroed(len).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if memory is exhausted.
    pub fn try_zeroed(len: usize) -> Result<Arc<Self>> {
        let bytes = AlignedBytes::zeroed(len)?;
        Ok(Arc::new(Self { ptr: bytes.ptr, len, writable: true, lease: AtomicUsize::new(0), owner: Owner::Own(bytes) }))
    }

    /// Memory with a foreign owner.
    pub fn foreign(owner: Box<dyn ForeignMemory>) -> Arc<Self> {
        Arc::new(Self {
            ptr: owner.as_ptr(),
            len: owner.len(),
            writable: owner.is_writable(),
            lease: AtomicUsize::new(0),
            owner: Owner::Foreign(owner),
        })
    }

    /// Device memory. `ptr` only identifies it and is never dereferenced: there are no host leases on it.
    pub fn remote(owner: Box<dyn RemoteMemory>) -> Arc<Self> {
        Arc::new(Self {
            ptr: NonNull::from(&*owner).cast(),
            len: owner.len(),
            writable: true,
            lease: AtomicUsize::new(0),
            owner: Owner::Remote(owner),
        })
    }

    /// Memory shared with other processes.
    #[cfg(target_os = "linux")]
    pub(super) fn shared(mapping: SharedMapping) -> Arc<Self> {
        Arc::new(Self {
            ptr: mapping.as_ptr(),
            len: mapping.len(),
            writable: mapping.is_writable(),
            lease: AtomicUsize::new(0),
            owner: Owner::Shared(mapping),
        })
    }

    pub(super) fn pooled(bytes: AlignedBytes, pool: PoolReturn) -> Arc<Self> {
        Arc::new(Self {
            ptr: bytes.ptr,
            len: bytes.len,
            writable: true,
            lease: AtomicUsize::new(0),
            owner: Owner::Pooled(Some(bytes), pool),
        })
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the memory may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The address of the first byte, for identity and range checks; reading through it needs a lease. For device memory it is only an
    /// identifier.
    pub fn address(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// The kind of memory.
    pub fn kind(&self) -> MemoryKind {
        match &self.owner {
            Owner::Own(_) | Owner::Pooled(..) | Owner::Foreign(_) => MemoryKind::Host,
            #[cfg(target_os = "linux")]
            Owner::Shared(_) => MemoryKind::Shared,
            Owner::Remote(_) => MemoryKind::Device,
        }
    }

    /// The device memory, if it is of that kind.
    pub fn as_remote(&self) -> Option<&dyn RemoteMemory> {
        match &self.owner {
            Owner::Remote(owner) => Some(&**owner),
            _ => None,
        }
    }

    #[cfg(target_os = "linux")]
    pub(super) fn as_shared(&self) -> Option<&SharedMapping> {
        match &self.owner {
            Owner::Shared(mapping) => Some(mapping),
            _ => None,
        }
    }

    /// Whether a tensor over the whole block may move to newly allocated memory. Shared and device memory is used at its address by others.
    pub(super) fn may_be_left(&self) -> bool {
        match &self.owner {
            Owner::Own(_) | Owner::Pooled(..) | Owner::Foreign(_) => true,
            #[cfg(target_os = "linux")]
            Owner::Shared(_) => false,
            Owner::Remote(_) => false,
        }
    }

    /// Takes a lease for reading.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while the memory is written; [`ErrorKind::Remote`] for device memory.
    pub fn lease_read(self: &Arc<Self>) -> Result<ReadLease> {
        self.check_host()?;
        self.begin_to_read()?;
        Ok(ReadLease(Arc::clone(self)))
    }

    /// Takes the exclusive lease for writing.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while the memory is read or written; [`ErrorKind::Access`] if it is read-only; [`ErrorKind::Remote`] for device
    /// memory.
    pub fn lease_write(self: &Arc<Self>) -> Result<WriteLease> {
        self.check_host()?;
        self.begin_to_write()?;
        Ok(WriteLease(Some(Arc::clone(self))))
    }

    /// Takes a lease for an access without host addresses: by a device or another process.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] and [`ErrorKind::Access`] as for the host's leases.
    pub fn lease_for_device(self: &Arc<Self>, writes: bool) -> Result<DeviceLease> {
        if writes {
            self.begin_to_write()?
        } else {
            self.begin_to_read()?
        }
        Ok(DeviceLease { memory: Arc::clone(self), writes })
    }

    fn check_host(&self) -> Result<()> {
        match self.as_remote() {
            None => Ok(()),
            Some(remote) => Err(Error::new(
                ErrorKind::Remote,
                format!("the tensor lies in {}, which the host can't see; copy it to a host tensor with `copy_to`", remote.place()),
            )),
        }
    }

    fn begin_to_read(&self) -> Result<()> {
        let taken =
            self.lease.fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| if state >= WRITER - 1 { None } else { Some(state + 1) });
        match taken {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(
                ErrorKind::Busy,
                "the tensor is being written (by a running request, or through a view); wait for it, or use another tensor",
            )),
        }
    }

    fn begin_to_write(&self) -> Result<()> {
        if !self.writable {
            return Err(Error::new(
                ErrorKind::Access,
                "the tensor's memory is read-only (a mapped media buffer, or shared for reading); copy it to write",
            ));
        }
        match self.lease.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(state) => {
                let access = if state == WRITER { "written" } else { "read" };
                let message =
                    format!("the tensor is being {access} (by a running request, or through a view); wait for it, or use another tensor");
                Err(Error::new(ErrorKind::Busy, message))
            }
        }
    }

    /// Whether a write lease exists now.
    pub(super) fn is_written(&self) -> bool {
        self.lease.load(Ordering::Relaxed) == WRITER
    }

    fn end_to_read(&self) {
        self.lease.fetch_sub(1, Ordering::Release);
    }

    fn end_to_write(&self) {
        self.lease.store(0, Ordering::Release);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.owner {
            Owner::Own(_) => "own",
            Owner::Pooled(..) => "pooled",
            Owner::Foreign(_) => "foreign",
            #[cfg(target_os = "linux")]
            Owner::Shared(_) => "shared",
            Owner::Remote(_) => "remote",
        };
        write!(f, "Memory({owner}, {} bytes at {:p})", self.len, self.ptr)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Pooled(bytes, pool) = &mut self.owner
            && let Some(bytes) = bytes.take()
        {
            pool.give_back(bytes);
        }
    }
}

/// A lease for reading, released on drop.
#[derive(Debug)]
pub struct ReadLease(Arc<Memory>);

impl ReadLease {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `ptr` and `len` describe initialized memory that `Memory` keeps alive, and this lease keeps writers out.
        unsafe { std::slice::from_raw_parts(self.0.ptr.as_ptr(), self.0.len) }
    }
}

impl ReadLease {
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.0
    }
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        self.0.end_to_read();
    }
}

/// An exclusive lease for reading and writing, released on drop.
#[derive(Debug)]
pub struct WriteLease(Option<Arc<Memory>>);

impl WriteLease {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as in `bytes_mut`; the shared borrow of the lease excludes `bytes_mut`.
        unsafe { std::slice::from_raw_parts(self.memory().ptr.as_ptr(), self.memory().len) }
    }

    /// The bytes, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.memory().writable);
        // SAFETY: initialized writable memory that `Memory` keeps alive; this lease excludes every other lease, and the
        // exclusive borrow of the lease excludes every other borrow through it.
        unsafe { std::slice::from_raw_parts_mut(self.memory().ptr.as_ptr(), self.memory().len) }
    }
}

impl WriteLease {
    /// Turns the lease into a reading one, without a gap in which another thread could write.
    pub fn downgrade(mut self) -> ReadLease {
        let memory = self.0.take().expect("only `downgrade` takes it, and consumes the lease");
        memory.lease.store(1, Ordering::Release);
        ReadLease(memory)
    }

    pub(super) fn memory(&self) -> &Arc<Memory> {
        self.0.as_ref().expect("only `downgrade` takes it, and consumes the lease")
    }
}

impl Drop for WriteLease {
    fn drop(&mut self) {
        if let Some(memory) = &self.0 {
            memory.end_to_write();
        }
    }
}

/// A lease without host addresses, see [`Memory::lease_for_device`]; released on drop.
#[derive(Debug)]
pub struct DeviceLease {
    memory: Arc<Memory>,
    writes: bool,
}

impl DeviceLease {
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Whether it is exclusive.
    pub fn writes(&self) -> bool {
        self.writes
    }
}

impl Drop for DeviceLease {
    fn drop(&mut self) {
        if self.writes { self.memory.end_to_write() } else { self.memory.end_to_read() }
    }
}

/// Zeroed, aligned bytes on the heap. The address is valid also for length zero.
pub(super) struct AlignedBytes {
    pub(super) ptr: NonNull<u8>,
    pub(super) len: usize,
}

// SAFETY: plain bytes with one owner.
unsafe impl Send for AlignedBytes {}

impl AlignedBytes {
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if there is not so much memory.
    pub(super) fn zeroed(len: usize) -> Result<Self> {
        let out_of_memory = || Error::new(ErrorKind::OutOfMemory, format!("no memory for a tensor of {len} bytes; use a smaller shape"));
        let layout = Self::alloc_layout(len).ok_or_else(out_of_memory)?;
        // SAFETY: the layout's size is at least one.
        let ptr = unsafe { alloc::alloc_zeroed(layout) };
        NonNull::new(ptr).map(|ptr| Self { ptr, len }).ok_or_else(out_of_memory)
    }

    /// `None` if the size is not representable.
    fn alloc_layout(len: usize) -> Option<AllocLayout> {
        AllocLayout::from_size_align(len.max(1), ALIGN_BYTES).ok()
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        let layout = Self::alloc_layout(self.len).expect("it was allocated with this layout");
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { alloc::dealloc(self.ptr.as_ptr(), layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_readers_or_one_writer_and_never_a_wait() {
        let memory = Memory::zeroed(8);
        let first = memory.lease_read().unwrap();
        let second = memory.lease_read().unwrap();
        assert_eq!(memory.lease_write().unwrap_err().kind(), ErrorKind::Busy);
        drop((first, second));
        let mut writer = memory.lease_write().unwrap();
        writer.bytes_mut()[7] = 3;
        assert_eq!(memory.lease_read().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(memory.lease_write().unwrap_err().kind(), ErrorKind::Busy);
        drop(writer);
        assert_eq!(memory.lease_read().unwrap().bytes()[7], 3);
    }

    #[test]
    fn a_writer_can_go_on_as_a_reader() {
        let memory = Memory::zeroed(4);
        let reader = memory.lease_write().unwrap().downgrade();
        assert_eq!(memory.lease_write().unwrap_err().kind(), ErrorKind::Busy);
        drop((reader, memory.lease_read().unwrap()));
        assert!(memory.lease_write().is_ok());
    }

    #[test]
    fn an_empty_memory_has_an_aligned_address() {
        assert_eq!(Memory::zeroed(0).address() as usize % ALIGN_BYTES, 0);
    }
}
