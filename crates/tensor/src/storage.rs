//! Ownership of memory (allocated, pooled, foreign, shared or device memory), and leases on it as guards. All `unsafe` code of this crate
//! that owns memory is in this module, in `shared` and in `owned`. The module `lease` defines which leases exclude each other.

use std::alloc::{self, Layout as AllocLayout};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::lease::{Conflict, Held, Leases, Span};
use super::pool::PoolReturn;
#[cfg(target_os = "linux")]
use super::shared::SharedMapping;
use super::{Error, ErrorKind, RemoteMemory, Result};

/// Alignment of allocated memory in bytes: the size of a cache line and of the widest vector register.
pub const ALIGN_BYTES: usize = 64;

/// Memory with an owner outside this crate, for example a mapped media buffer or a tensor of an engine.
///
/// # Safety
/// `as_ptr` must point to `len` initialized bytes, whose address does not change during the lifetime of the value. While a lease for
/// reading covers a byte, the byte must not change. While a lease for writing covers a byte, only the holder of the lease may access it. If
/// `is_writable` returns true, writing the bytes must be allowed. If the owner cannot keep other code from writing the bytes during a
/// lease, [`ForeignMemory::may_change`] must return true.
pub unsafe trait ForeignMemory: Send + Sync {
    /// Returns the address of the first byte.
    fn as_ptr(&self) -> NonNull<u8>;
    /// Returns the number of bytes.
    fn len(&self) -> usize;
    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns whether the bytes may be written.
    fn is_writable(&self) -> bool;
    /// Returns whether other code uses the bytes by their address. If so, a tensor over such memory never moves to larger memory, because
    /// the values that are written into the tensor must appear at that address.
    fn is_fixed(&self) -> bool {
        false
    }
    /// Returns whether other code may write the bytes although they are leased, as Python code may write an array. Requests then copy
    /// inputs whose values an engine may use as positions in memory.
    fn may_change(&self) -> bool {
        false
    }
}

/// The kind of a block of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Host memory of this process, allocated or mapped.
    Host,
    /// Host memory with a file descriptor that other processes can map: [`Tensor::shared`](super::Tensor::shared).
    Shared,
    /// Device memory. The host can only copy it.
    Device,
}

/// A block of bytes and the leases on it.
pub struct Memory {
    ptr: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Whether code that knows no leases may write the bytes, see [`Memory::is_written_by_others`].
    others_write: AtomicBool,
    /// The leases on the block. Not used for shared memory, because all mappings of a file share the leases of the file.
    leases: Leases,
    owner: Owner,
}

enum Owner {
    Own(#[allow(dead_code, reason = "held for its drop")] AlignedBytes),
    Pooled(Option<AlignedBytes>, PoolReturn),
    Foreign(Box<dyn ForeignMemory>),
    #[cfg(target_os = "linux")]
    Shared(SharedMapping),
    Remote(Box<dyn RemoteMemory>),
}

// SAFETY: the bytes are accessed only through leases, which allow many readers or one writer per byte, on any threads. All variants of
// `Owner` may be moved to and used by several threads.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates zeroed memory.
    ///
    /// # Panics
    /// Panics if no memory is left. [`Memory::try_zeroed`] returns an error instead.
    pub fn zeroed(len: usize) -> Arc<Self> {
        Self::try_zeroed(len).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// Returns [`ErrorKind::OutOfMemory`] if no memory is left.
    pub fn try_zeroed(len: usize) -> Result<Arc<Self>> {
        let bytes = AlignedBytes::zeroed(len)?;
        Ok(Self::of(bytes.ptr, len, true, Owner::Own(bytes)))
    }

    /// Creates a block of memory with a foreign owner.
    pub fn foreign(owner: Box<dyn ForeignMemory>) -> Arc<Self> {
        Self::of(owner.as_ptr(), owner.len(), owner.is_writable(), Owner::Foreign(owner))
    }

    /// Creates a block of device memory. Its address is only an identifier and is never dereferenced.
    pub fn remote(owner: Box<dyn RemoteMemory>) -> Arc<Self> {
        Self::of(NonNull::from(&*owner).cast(), owner.len(), true, Owner::Remote(owner))
    }

    /// Creates a block of memory that is shared with other processes.
    #[cfg(target_os = "linux")]
    pub(super) fn shared(mapping: SharedMapping) -> Arc<Self> {
        Self::of(mapping.as_ptr(), mapping.len(), mapping.is_writable(), Owner::Shared(mapping))
    }

    pub(super) fn pooled(bytes: AlignedBytes, pool: PoolReturn) -> Arc<Self> {
        Self::of(bytes.ptr, bytes.len, true, Owner::Pooled(Some(bytes), pool))
    }

    fn of(ptr: NonNull<u8>, len: usize, writable: bool, owner: Owner) -> Arc<Self> {
        let others_write = match &owner {
            Owner::Foreign(owner) => owner.may_change(),
            #[cfg(target_os = "linux")]
            Owner::Shared(_) => true,
            Owner::Own(_) | Owner::Pooled(..) | Owner::Remote(_) => false,
        };
        Arc::new(Self { ptr, len, writable, others_write: others_write.into(), leases: Leases::new(len), owner })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the memory may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the address of the first byte, for comparisons and range checks. Reading the bytes requires a lease. For device memory, the
    /// address is only an identifier.
    pub fn address(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// Returns the kind of memory.
    pub fn kind(&self) -> MemoryKind {
        match &self.owner {
            Owner::Own(_) | Owner::Pooled(..) | Owner::Foreign(_) => MemoryKind::Host,
            #[cfg(target_os = "linux")]
            Owner::Shared(_) => MemoryKind::Shared,
            Owner::Remote(_) => MemoryKind::Device,
        }
    }

    /// Returns the owner of the block, if the block is device memory.
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

    /// Returns whether a tensor over the whole block may move to newly allocated memory. Returns false for device memory, and for shared
    /// memory, because other processes map it.
    pub(super) fn may_move(&self) -> bool {
        match &self.owner {
            Owner::Own(_) | Owner::Pooled(..) => true,
            Owner::Foreign(owner) => !owner.is_fixed(),
            #[cfg(target_os = "linux")]
            Owner::Shared(_) => false,
            Owner::Remote(_) => false,
        }
    }

    /// Returns whether code that knows no leases may write the bytes: another process, or other code of this process.
    pub(super) fn is_written_by_others(&self) -> bool {
        self.others_write.load(Ordering::Acquire)
    }

    /// From now on, code that knows no leases may write the bytes.
    pub(super) fn let_others_write(&self) {
        self.others_write.store(true, Ordering::Release);
    }

    /// Returns whether both values refer to the same bytes with the same leases: they are the same block, or two mappings of one shared
    /// file.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.leases(), other.leases())
    }

    /// Leases all bytes for reading.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Busy`] while a byte is leased for writing; [`ErrorKind::Remote`] for device memory.
    pub fn lease_read(self: &Arc<Self>) -> Result<ReadLease> {
        self.check_host()?;
        Ok(ReadLease(self.lease(self.whole(), false)?))
    }

    /// Leases all bytes for writing.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Busy`] while a byte is leased; [`ErrorKind::Access`] if the memory is read-only; [`ErrorKind::Remote`] for
    /// device memory.
    pub fn lease_write(self: &Arc<Self>) -> Result<WriteLease> {
        self.check_host()?;
        Ok(WriteLease(self.lease(self.whole(), true)?))
    }

    /// Leases all bytes for an access without host addresses, by a device or by another process.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Busy`] or [`ErrorKind::Access`] in the same cases as [`Memory::lease_read`] and [`Memory::lease_write`].
    pub fn lease_for_device(self: &Arc<Self>, writes: bool) -> Result<DeviceLease> {
        Ok(DeviceLease { lease: self.lease(self.whole(), writes)?, writes })
    }

    /// Returns the span of all bytes; `None` if there are no bytes.
    pub(super) fn whole(&self) -> Option<Span> {
        Span::range(0, self.len)
    }

    /// Leases the bytes of `span`, which must be inside the memory.
    ///
    /// # Errors
    /// Returns the errors of [`Memory::lease_for_device`].
    #[inline]
    pub(super) fn lease(self: &Arc<Self>, span: Option<Span>, writes: bool) -> Result<Lease> {
        if writes && !self.writable {
            return Err(read_only());
        }
        let held = match span {
            // Read-only memory has only readers, which never conflict. So lease the whole memory, which is faster than leasing a part,
            // because it needs no lock.
            Some(_) if !self.writable && !self.is_shared() => self.leases().take_whole_to_read(),
            _ => self.leases().take(span, writes),
        };
        match held {
            Ok(held) => Ok(Lease { memory: Arc::clone(self), held }),
            Err(conflict) => Err(busy(conflict)),
        }
    }

    fn is_shared(&self) -> bool {
        self.kind() == MemoryKind::Shared
    }

    #[inline]
    fn leases(&self) -> &Leases {
        match &self.owner {
            #[cfg(target_os = "linux")]
            Owner::Shared(mapping) => mapping.leases(),
            _ => &self.leases,
        }
    }

    /// Checks that the host can access the bytes.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Remote`] for device memory.
    #[inline]
    pub(super) fn check_host(&self) -> Result<()> {
        match self.as_remote() {
            None => Ok(()),
            Some(remote) => Err(Error::new(
                ErrorKind::Remote,
                format!("the tensor is in {}, which the host cannot access; copy it to a host tensor with `copy_to`", remote.place()),
            )),
        }
    }

    /// Returns whether a lease for writing currently exists.
    pub(super) fn is_written(&self) -> bool {
        self.leases().is_written()
    }
}

#[cold]
fn read_only() -> Error {
    Error::new(
        ErrorKind::Access,
        "the tensor's memory is read-only (a mapped media buffer, or shared for reading); copy the tensor to write",
    )
}

#[cold]
pub(super) fn busy(conflict: Conflict) -> Error {
    let access = if conflict == Conflict::Written { "written" } else { "read" };
    let message = format!(
        "the tensor is being {access} (by a running request, or through a view); wait until this access ends, or use another tensor"
    );
    Error::new(ErrorKind::Busy, message)
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

/// A lease on a span of bytes. Dropping the lease ends it.
#[derive(Debug)]
pub(super) struct Lease {
    memory: Arc<Memory>,
    held: Held,
}

impl Lease {
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(super) fn covers_nothing(&self) -> bool {
        matches!(self.held, Held::Nothing)
    }

    /// Returns whether the lease covers any byte of `span` in `memory`.
    pub(super) fn covers_any(&self, memory: &Memory, span: Option<Span>) -> bool {
        self.memory.is_same(memory) && self.memory.leases().covers_any(&self.held, span)
    }

    /// Turns a lease for writing into a lease for reading. No other thread can write between the two leases.
    pub(super) fn downgrade(&mut self) {
        self.memory.leases().downgrade(&mut self.held);
    }

    /// Returns the host address of the first byte of the memory. Only bytes that the lease covers may be accessed through it.
    pub(super) fn ptr(&self) -> NonNull<u8> {
        debug_assert!(self.memory.as_remote().is_none());
        self.memory.ptr
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.memory.leases().end(&self.held);
    }
}

/// A lease for reading on a whole block of memory. Dropping the lease ends it.
#[derive(Debug)]
pub struct ReadLease(Lease);

impl ReadLease {
    /// Returns the leased bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `ptr` and `len` describe initialized memory, which the lease keeps alive. The lease covers all of this memory and
        // excludes writers.
        unsafe { std::slice::from_raw_parts(self.0.ptr().as_ptr(), self.0.memory().len) }
    }
}

/// An exclusive lease for reading and writing on a whole block of memory. Dropping the lease ends it.
#[derive(Debug)]
pub struct WriteLease(Lease);

impl WriteLease {
    /// Returns the leased bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as in `bytes_mut`. The lease is borrowed, so no slice of `bytes_mut` exists at the same time.
        unsafe { std::slice::from_raw_parts(self.0.ptr().as_ptr(), self.0.memory().len) }
    }

    /// Returns the leased bytes as a mutable slice.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.0.memory().writable);
        // SAFETY: the lease keeps this initialized, writable memory alive. The lease covers all of it and excludes every other lease.
        // `self` is borrowed exclusively, so no other slice of this lease exists.
        unsafe { std::slice::from_raw_parts_mut(self.0.ptr().as_ptr(), self.0.memory().len) }
    }

    /// Turns the lease into a lease for reading. No other thread can write between the two leases.
    pub fn downgrade(mut self) -> ReadLease {
        self.0.downgrade();
        ReadLease(self.0)
    }
}

/// A lease without host addresses, see [`Memory::lease_for_device`]. Dropping the lease ends it.
#[derive(Debug)]
pub struct DeviceLease {
    lease: Lease,
    writes: bool,
}

impl DeviceLease {
    pub(super) fn new(lease: Lease, writes: bool) -> Self {
        Self { lease, writes }
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// If the present lease covers no bytes, takes a lease on `span` instead.
    ///
    /// # Errors
    /// Returns the errors of [`Memory::lease_for_device`].
    pub(super) fn take_if_empty(&mut self, memory: &Arc<Memory>, span: Option<Span>) -> Result<()> {
        if self.lease.covers_nothing() {
            self.lease = memory.lease(span, self.writes)?;
        }
        Ok(())
    }

    /// Returns whether the lease is for writing, so that it excludes all other leases.
    pub fn writes(&self) -> bool {
        self.writes
    }
}

/// Zeroed, aligned bytes on the heap. The address is valid and aligned even if there are no bytes.
pub(super) struct AlignedBytes {
    pub(super) ptr: NonNull<u8>,
    pub(super) len: usize,
}

// SAFETY: this value is the only owner of the bytes, and every thread may access and free heap memory.
unsafe impl Send for AlignedBytes {}

impl AlignedBytes {
    /// Allocates `len` zeroed bytes.
    ///
    /// # Errors
    /// Returns [`ErrorKind::OutOfMemory`] if no memory is left.
    pub(super) fn zeroed(len: usize) -> Result<Self> {
        let out_of_memory = || Error::new(ErrorKind::OutOfMemory, format!("no memory for a tensor of {len} bytes; use a smaller shape"));
        let layout = Self::alloc_layout(len).ok_or_else(out_of_memory)?;
        // SAFETY: `alloc_zeroed` requires a size that is not zero, and `alloc_layout` uses a size of at least one.
        let ptr = unsafe { alloc::alloc_zeroed(layout) };
        NonNull::new(ptr).map(|ptr| Self { ptr, len }).ok_or_else(out_of_memory)
    }

    /// Returns the layout for the allocator; `None` if the allocator cannot represent the size.
    fn alloc_layout(len: usize) -> Option<AllocLayout> {
        AllocLayout::from_size_align(len.max(1), ALIGN_BYTES).ok()
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        let layout = Self::alloc_layout(self.len).expect("the memory was allocated with this layout");
        // SAFETY: `zeroed` allocated the memory with the same allocator and layout, and this value is its only owner.
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
