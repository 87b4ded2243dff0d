//! Tensors in memory that processes share: sealed anonymous files, whose descriptors are sent over Unix sockets.
//!
//! - *Creating*: [`Tensor::shared`] creates memory that only this process can write: the file is sealed against all other writers.
//!   [`SharedTensor::new`] creates memory that every process with the descriptor may write.
//! - *Sending* ([`Tensor::export`], [`SharedTensor::send`]): the message has a descriptor of the file and the layout of the tensor.
//! - *Receiving* ([`SharedTensor::receive`]): data from the other process is not trusted. The tensor must be inside the file.
//! - *Copying* ([`SharedTensor::import`], [`SharedTensor::read_to`], [`SharedTensor::write_from`]): the system copies values between the
//!   file and a tensor. Later writes by the other process do not change the copied values.
//! - *Mapping* ([`SharedTensor::map`]): copies nothing. Mapping is `unsafe`, because a lease does not prevent another process from writing.
//!
//! In one process, all tensors over one file share the leases of this file, even if the process received the file several times. So
//! conflicting accesses through different tensors fail. Leases have no effect in other processes. `bool` tensors cannot be shared, because
//! another process could write a byte that is neither 0 nor 1.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::bytes::for_each_run;
use super::lease::{Held, Leases, Span};
use super::remote::check_equal;
use super::storage::busy;
use super::tensor::Placed;
use super::{ElementType, Error, ErrorKind, Layout, MAX_RANK, Memory, Result, Shape, Tensor};

/// A tensor in the memory of a file, which can be sent to another process or was received from one.
///
/// The fields of a received tensor have values that the other process chose. Each method checks them before it uses the file.
#[derive(Debug)]
pub struct SharedTensor {
    /// The descriptor of the file.
    pub descriptor: OwnedFd,
    /// The element type, shape and strides.
    pub layout: Layout,
    /// Byte offset of the first element in the file.
    pub offset_bytes: usize,
}

impl Tensor {
    /// Creates a dense tensor of zeros in memory that other processes can map for reading.
    ///
    /// Only this tensor and its regions can write the memory. The file is sealed against other writers with `F_SEAL_FUTURE_WRITE`, which
    /// exists since Linux 5.1. To create memory that several processes can write, use [`SharedTensor::new`].
    ///
    /// # Errors
    /// Returns [`ErrorKind::Unsupported`] for `bool`. Returns [`ErrorKind::Shape`] if the size overflows. Returns [`ErrorKind::Io`] if the
    /// system has no descriptor or no memory left.
    pub fn shared(element: ElementType, shape: impl Into<Shape>) -> Result<Self> {
        let SharedTensor { descriptor, layout, .. } = SharedTensor::unsealed(element, shape.into())?;
        // Map the file before sealing it: the seal forbids new writable mappings, but does not affect a mapping that already exists.
        let file = File::of(&descriptor, SealFlags::empty())?;
        let mapping = SharedMapping::of(descriptor, layout.dense_bytes(), file)?;
        seal(&mapping.descriptor, SealFlags::FUTURE_WRITE)?;
        Ok(Self::over(Memory::shared(mapping), layout))
    }

    /// Returns a form of the tensor that can be sent to another process: a new descriptor of its file, its layout, and its position in the
    /// file. A region keeps its strides.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Unsupported`] unless [`Tensor::shared`] or [`SharedTensor::map`] created the tensor. Returns [`ErrorKind::Io`]
    /// if the system has no descriptor left.
    pub fn export(&self) -> Result<SharedTensor> {
        let Placed { memory, layout, offset_bytes } = self.placed();
        let mapping = memory.as_shared().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "this tensor's memory is not shared: create the tensor in the shared-memory context, or copy it to such a tensor",
            )
        })?;
        let descriptor = mapping.descriptor.try_clone().map_err(|error| Error::new(ErrorKind::Io, format!("export: {error}")))?;
        Ok(SharedTensor { descriptor, layout, offset_bytes })
    }

    /// Returns whether the tensor is in shared memory, so that [`Tensor::export`] supports it.
    pub fn is_shared(&self) -> bool {
        self.with_placed(|placed| placed.memory.as_shared().is_some())
    }
}

impl SharedTensor {
    /// Creates a dense tensor of zeros in memory that every process with the descriptor may read and write.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::shared`].
    pub fn new(element: ElementType, shape: impl Into<Shape>) -> Result<Self> {
        let tensor = Self::unsealed(element, shape.into())?;
        seal(&tensor.descriptor, SealFlags::empty())?;
        Ok(tensor)
    }

    fn unsealed(element: ElementType, shape: Shape) -> Result<Self> {
        check_element(element)?;
        let layout = Layout::dense(element, shape)?;
        let len = layout.dense_bytes();
        let failed = |what: &'static str| move |errno: Errno| system(&format!("cannot create shared memory of {len} bytes: {what}"), errno);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = rustix::fs::memfd_create("roiflow-tensor", flags).map_err(failed("memfd_create"))?;
        // An empty file cannot be mapped, so the file has at least one byte.
        rustix::fs::ftruncate(&descriptor, len.max(1) as u64).map_err(failed("ftruncate"))?;
        Ok(Self { descriptor, layout, offset_bytes: 0 })
    }

    /// Copies the current values into a new tensor in private memory of this process.
    ///
    /// # Errors
    /// Returns the errors of [`SharedTensor::read_to`]. Also returns [`ErrorKind::OutOfMemory`] if no memory is left.
    pub fn import(&self) -> Result<Tensor> {
        // Check the shape before allocating memory for it: the other process chose the shape, which may be huge.
        self.check("import")?;
        let tensor = Tensor::new(self.layout.element(), *self.layout.shape())?;
        self.read_to(&tensor)?;
        Ok(tensor)
    }

    /// Copies the current values to `target`. `target` must have the same element type and shape, and may have any strides.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Access`] if the file is not sealed against shrinking. Returns [`ErrorKind::Shape`] if the shared tensor is not
    /// inside the file, or if `target` has a different shape. Returns [`ErrorKind::ElementType`] if `target` has a different element type.
    /// Returns [`ErrorKind::Busy`] if a lease in this process excludes the copy. Returns [`ErrorKind::Unsupported`] for `bool`. Returns
    /// [`ErrorKind::Io`] if the system fails.
    pub fn read_to(&self, target: &Tensor) -> Result<()> {
        let file = self.check("import")?;
        check_equal(&self.layout, &target.layout())?;
        let _lease = file.lease(&self.layout, self.offset_bytes, false)?;
        if !target.is_remote() {
            let mut elements = target.elements_mut()?;
            check_equal(&self.layout, elements.layout())?;
            if elements.layout().is_dense() {
                return self.read_dense(elements.extent_mut());
            }
        }
        let dense = Tensor::new(self.layout.element(), *self.layout.shape())?;
        self.read_dense(dense.elements_mut()?.extent_mut())?;
        dense.copy_to(target)
    }

    /// Reads the elements without the gaps between them. `target` must have the total size of the elements.
    fn read_dense(&self, target: &mut [u8]) -> Result<()> {
        let dense = Layout::dense(self.layout.element(), *self.layout.shape())?;
        let end = self.offset_bytes + self.layout.extent_bytes();
        // If rows are short, the file is read in blocks of several rows. `block` has the bytes of the file from `block_begin` on.
        let (mut block, mut block_begin) = (Vec::new(), 0);
        let mut outcome = Ok(());
        for_each_run(&self.layout, Some(&dense), |from, to, len| {
            if outcome.is_err() {
                return;
            }
            let (from, target) = (self.offset_bytes + from, &mut target[to..][..len]);
            if len >= BLOCK_BYTES / 2 {
                outcome = read_exactly(&self.descriptor, target, from);
                return;
            }
            if from < block_begin || from + len > block_begin + block.len() {
                block.resize((end - from).min(BLOCK_BYTES), 0);
                block_begin = from;
                outcome = read_exactly(&self.descriptor, &mut block, from);
            }
            if outcome.is_ok() {
                target.copy_from_slice(&block[from - block_begin..][..len]);
            }
        });
        outcome
    }

    /// Copies the values of `source` into the shared memory. `source` must have the same element type and shape, and may have any strides.
    ///
    /// # Errors
    /// Returns the errors of [`SharedTensor::read_to`]. Also returns [`ErrorKind::Access`] if the memory is read-only for this process.
    pub fn write_from(&self, source: &Tensor) -> Result<()> {
        let file = self.check("export")?;
        check_equal(&source.layout(), &self.layout)?;
        if file.access != Access::ReadWrite {
            return Err(Error::new(
                ErrorKind::Access,
                "write: this shared memory is read-only here; only the process that created it can write it (`SharedTensor::new` creates memory for several writers)",
            ));
        }
        let _lease = file.lease(&self.layout, self.offset_bytes, true)?;
        let dense_source;
        let mut source = source;
        if source.is_remote() || !source.layout().is_dense() {
            dense_source = Tensor::new(self.layout.element(), *self.layout.shape())?;
            source.copy_to(&dense_source)?;
            source = &dense_source;
        }
        let elements = source.elements()?;
        check_equal(elements.layout(), &self.layout)?;
        let (bytes, mut outcome) = (elements.extent(), Ok(()));
        for_each_run(&self.layout, Some(elements.layout()), |to, from, len| {
            if outcome.is_ok() {
                outcome = write_all(&self.descriptor, &bytes[from..][..len], self.offset_bytes + to);
            }
        });
        outcome
    }

    /// Maps the tensor without a copy. The mapping is read-only if the file is sealed against writing, or if its descriptor is read-only.
    ///
    /// Use this function only if the other process follows an agreed protocol, for example: it writes, sends a message, and does not access
    /// the tensor until it gets the answer. For any other process, use [`SharedTensor::import`].
    ///
    /// # Errors
    /// Returns [`ErrorKind::Access`] if the file is not sealed against shrinking. Returns [`ErrorKind::Shape`] if the tensor is not inside
    /// the file. Returns [`ErrorKind::Unsupported`] for `bool`. Returns [`ErrorKind::Io`] if the system fails.
    ///
    /// # Safety
    /// The caller must ensure the following while a handle of the tensor or of one of its regions exists. While a lease of this process (a
    /// view or another guard, a running request, a media buffer) covers a byte of the file, that byte is written only through that lease.
    /// In particular, no other process writes it, and no thread of this process writes it through the descriptor.
    pub unsafe fn map(self) -> Result<Tensor> {
        let file = self.check("import")?;
        let Self { descriptor, layout, offset_bytes } = self;
        let memory = Memory::shared(SharedMapping::of(descriptor, offset_bytes + layout.extent_bytes(), file)?);
        if layout.is_dense() && offset_bytes == 0 {
            Ok(Tensor::over(memory, layout))
        } else {
            Tensor::part_of(memory, layout, offset_bytes)
        }
    }

    /// Checks that the tensor is inside the file and that the file cannot shrink. Returns the file's access mode and leases.
    fn check(&self, operation: &str) -> Result<File> {
        check_element(self.layout.element())?;
        let seals = match rustix::fs::fcntl_get_seals(&self.descriptor) {
            Ok(seals) => seals,
            // The system gives this error for files on a disk and for pipes, which do not support seals.
            Err(Errno::INVAL) => SealFlags::empty(),
            Err(errno) => return Err(system(&format!("{operation}: cannot read the seals of the file"), errno)),
        };
        if !seals.contains(SealFlags::SHRINK) {
            return Err(Error::new(
                ErrorKind::Access,
                format!(
                    "{operation}: expected a memory file sealed against shrinking (F_SEAL_SHRINK), got seals {seals:?}; \
                     without the seal, its owner could shrink it and kill a process that maps it"
                ),
            ));
        }
        // A file with huge pages is refused. If no huge page is left, an access to the memory of this file kills the process, like an
        // access beyond the end of a file. So only files in ordinary memory are accepted.
        let kind = rustix::fs::fstatfs(&self.descriptor)
            .map_err(|errno| system(&format!("{operation}: cannot read the kind of the file system"), errno))?
            .f_type;
        if kind != TMPFS {
            let message =
                format!("{operation}: expected a file in ordinary memory (memfd without MFD_HUGETLB), got a file of kind {kind:#x}");
            return Err(Error::new(ErrorKind::Access, message));
        }
        let file = File::of(&self.descriptor, seals)?;
        let end_bytes = self.offset_bytes.checked_add(self.layout.extent_bytes());
        if end_bytes.is_none_or(|end| end > file.leases.len) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "{operation}: shape {} with strides {:?} at byte {} exceeds the file of {} bytes",
                    self.layout.shape(),
                    self.layout.stride_bytes(),
                    self.offset_bytes,
                    file.leases.len
                ),
            ));
        }
        Ok(file)
    }

    /// Sends the descriptor and the layout. If the socket is blocking and its buffer is full, blocks until there is space.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Io`] if the other process closed the socket.
    pub fn send(&self, socket: &UnixStream) -> Result<()> {
        let message = encode(&self.layout, self.offset_bytes);
        let descriptors = [self.descriptor.as_fd()];
        let mut n_sent = 0;
        while n_sent < message.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            // The descriptor is sent together with the first byte.
            if n_sent == 0 && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                return Err(Error::new(ErrorKind::Io, "send: the control message has no space for one file descriptor"));
            }
            // With `NOSIGNAL`, a write to a closed socket returns an error instead of raising SIGPIPE.
            match rustix::net::sendmsg(socket, &[IoSlice::new(&message[n_sent..])], &mut control, SendFlags::NOSIGNAL) {
                Ok(n) => n_sent += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(system("send: cannot write to the socket; the other process may have ended", errno)),
            }
        }
        Ok(())
    }

    /// Receives a tensor that [`SharedTensor::send`] sent. Returns `None` if the other process closed the socket after a complete tensor.
    /// No other data may be sent over the socket.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Io`] if the other process closes the socket within a message or sends other data. Returns [`ErrorKind::Shape`]
    /// or [`ErrorKind::ElementType`] if the layout is invalid.
    pub fn receive(socket: &UnixStream) -> Result<Option<Self>> {
        let mut message = [0; MESSAGE_BYTES];
        let mut n_received = 0;
        let mut descriptor: Option<OwnedFd> = None;
        let mut n_descriptors = 0;
        while n_received < message.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut message[n_received..])];
            let received = match rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(system("receive", errno)),
            };
            // Only the last descriptor is kept. This loop drops the other descriptors, which closes them. The system has closed the
            // descriptors that did not fit into `space`.
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = part {
                    for received in descriptors {
                        n_descriptors += 1;
                        descriptor = Some(received);
                    }
                }
            }
            if received.bytes == 0 {
                if n_received == 0 {
                    return Ok(None);
                }
                let message = format!("receive: expected {MESSAGE_BYTES} bytes, got {n_received} before the connection closed");
                return Err(Error::new(ErrorKind::Io, message));
            }
            n_received += received.bytes;
        }
        let (layout, offset_bytes) = decode(&message)?;
        match descriptor {
            Some(descriptor) if n_descriptors == 1 => Ok(Some(Self { descriptor, layout, offset_bytes })),
            _ => Err(Error::new(ErrorKind::Io, format!("receive: expected one descriptor with a tensor, got {n_descriptors}"))),
        }
    }
}

/// `TMPFS_MAGIC`: the number of the file system that has memory files without huge pages.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Number of bytes that are read from a file at once if rows are short.
const BLOCK_BYTES: usize = 1 << 16;

fn read_exactly(file: &OwnedFd, target: &mut [u8], offset_bytes: usize) -> Result<()> {
    let mut n_read = 0;
    while n_read < target.len() {
        match rustix::io::pread(file, &mut target[n_read..], (offset_bytes + n_read) as u64) {
            // The file is sealed against shrinking, so it cannot end early, and this error is not expected.
            Ok(0) => return Err(Error::new(ErrorKind::Io, "import: the file ended before all elements were read")),
            Ok(n) => n_read += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(system("import", errno)),
        }
    }
    Ok(())
}

fn write_all(file: &OwnedFd, source: &[u8], offset_bytes: usize) -> Result<()> {
    let mut n_written = 0;
    while n_written < source.len() {
        match rustix::io::pwrite(file, &source[n_written..], (offset_bytes + n_written) as u64) {
            Ok(0) => return Err(Error::new(ErrorKind::Io, "write: the file accepts no more bytes")),
            Ok(n) => n_written += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(system("write", errno)),
        }
    }
    Ok(())
}

/// Seals a file against shrinking, growing and further seals, and also adds the seals in `more`.
fn seal(file: &OwnedFd, more: SealFlags) -> Result<()> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | more;
    rustix::fs::fcntl_add_seals(file, seals).map_err(|errno| system("sealing shared memory", errno))
}

/// How this process may access a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    ReadWrite,
    /// This process can only read the file. Other processes may write it.
    ReadOnly,
    /// The file is sealed against writing by any process.
    Constant,
}

/// The access mode of a file in this process, and the leases on it.
struct File {
    access: Access,
    leases: Arc<FileLeases>,
}

impl File {
    fn of(descriptor: &OwnedFd, seals: SealFlags) -> Result<Self> {
        let mode = rustix::fs::fcntl_getfl(descriptor).map_err(|errno| system("cannot read the access mode of shared memory", errno))?;
        let access = if seals.contains(SealFlags::WRITE) {
            Access::Constant
        } else if mode & OFlags::ACCMODE == OFlags::RDWR && !seals.contains(SealFlags::FUTURE_WRITE) {
            Access::ReadWrite
        } else {
            Access::ReadOnly
        };
        Ok(Self { access, leases: FileLeases::of(descriptor)? })
    }

    /// Leases the elements while the system copies them.
    fn lease(&self, layout: &Layout, offset_bytes: usize, writes: bool) -> Result<CopyLease> {
        let held = self.leases.leases.take(Span::of_elements(layout, offset_bytes), writes).map_err(busy)?;
        Ok(CopyLease { leases: Arc::clone(&self.leases), held })
    }
}

struct CopyLease {
    leases: Arc<FileLeases>,
    held: Held,
}

impl Drop for CopyLease {
    fn drop(&mut self) {
        self.leases.leases.end(&self.held);
    }
}

/// The leases on one file. A process has one `FileLeases` per file, even if the file was received and mapped several times.
#[derive(Debug)]
struct FileLeases {
    key: FileKey,
    /// Size of the file in bytes when this process first saw it. The file cannot shrink.
    len: usize,
    leases: Leases,
}

/// The numbers of the device and the inode, which identify a file.
type FileKey = (u64, u64);

/// The files in use. Model checks also use the standard library's lock here, because no operation that the model checker observes happens
/// under this lock.
static FILES: Mutex<BTreeMap<FileKey, Weak<FileLeases>>> = Mutex::new(BTreeMap::new());

impl FileLeases {
    fn of(descriptor: &OwnedFd) -> Result<Arc<Self>> {
        let stat = rustix::fs::fstat(descriptor).map_err(|errno| system("cannot read the size of shared memory", errno))?;
        let key = (stat.st_dev as u64, stat.st_ino as u64);
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leases) = files.get(&key).and_then(Weak::upgrade) {
            return Ok(leases);
        }
        let len = usize::try_from(stat.st_size).unwrap_or(0);
        let leases = Arc::new(Self { key, len, leases: Leases::new(len) });
        files.insert(key, Arc::downgrade(&leases));
        Ok(leases)
    }
}

impl Drop for FileLeases {
    fn drop(&mut self) {
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have inserted a new entry for this file meanwhile. So remove the entry only if its leases no longer exist.
        if files.get(&self.key).is_some_and(|leases| leases.strong_count() == 0) {
            files.remove(&self.key);
        }
    }
}

/// A mapping of the first bytes of a sealed file.
#[derive(Debug)]
pub(super) struct SharedMapping {
    ptr: NonNull<u8>,
    len: usize,
    access: Access,
    leases: Arc<FileLeases>,
    descriptor: OwnedFd,
}

// SAFETY: the bytes stay mapped until the drop, on any thread, and leases order the accesses to them, as in `Memory`.
unsafe impl Send for SharedMapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `len` bytes of a file. The file must be at least that long and must not be able to shrink.
    fn of(descriptor: OwnedFd, len: usize, file: File) -> Result<Self> {
        let File { access, leases } = file;
        let (protection, flags) = match access {
            Access::ReadWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            Access::ReadOnly => (ProtFlags::READ, MapFlags::SHARED),
            // Older kernels do not allow a shared mapping of a file that is sealed against writing. A private mapping has the same content,
            // because no process can change the file.
            Access::Constant => (ProtFlags::READ, MapFlags::PRIVATE),
        };
        // SAFETY: the address is null, so the system chooses a free address range, and the new mapping replaces no existing one. The length
        // is not 0.
        let ptr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len.max(1), protection, flags, &descriptor, 0) };
        let ptr = ptr.map_err(|errno| system(&format!("cannot map {len} bytes of shared memory"), errno))?;
        let ptr = NonNull::new(ptr.cast()).ok_or_else(|| Error::new(ErrorKind::Io, "the system mapped shared memory to address 0"))?;
        Ok(Self { ptr, len, access, leases, descriptor })
    }

    pub(super) fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_writable(&self) -> bool {
        self.access == Access::ReadWrite
    }

    pub(super) fn leases(&self) -> &Leases {
        &self.leases.leases
    }
}

impl AsFd for SharedMapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: `of` mapped this address with this length. No lease is left, because each lease holds the `Memory` that owns this
        // mapping.
        let unmapped = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len.max(1)) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

fn check_element(element: ElementType) -> Result<()> {
    if element != ElementType::Bool {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        "bool tensors can't be shared: another process could turn a byte into neither 0 nor 1 while it is read; use u8",
    ))
}

fn system(what: &str, errno: Errno) -> Error {
    Error::new(ErrorKind::Io, format!("{what}: {errno}"))
}

/// The size of a message. A message starts with "ROIT", the version, the element type, the number of axes and an unused byte. Then follow
/// numbers of 8 bytes each: the offset, [`MAX_RANK`] extents and [`MAX_RANK`] strides. Numbers for missing axes are 0. The byte order is
/// native, because a message does not leave the machine.
const MESSAGE_BYTES: usize = 8 + 8 * (1 + 2 * MAX_RANK);
const MAGIC: [u8; 5] = *b"ROIT\x01";

fn encode(layout: &Layout, offset_bytes: usize) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..5].copy_from_slice(&MAGIC);
    let element = ElementType::ALL.iter().position(|&element| element == layout.element()).expect("ALL contains all element types");
    (message[5], message[6]) = (element as u8, layout.shape().len() as u8);
    let mut put = |idx: usize, number: usize| message[8 + 8 * idx..][..8].copy_from_slice(&(number as u64).to_ne_bytes());
    put(0, offset_bytes);
    layout.shape().iter().enumerate().for_each(|(axis, &extent)| put(1 + axis, extent));
    layout.stride_bytes().iter().enumerate().for_each(|(axis, &stride)| put(1 + MAX_RANK + axis, stride));
    message
}

fn decode(message: &[u8; MESSAGE_BYTES]) -> Result<(Layout, usize)> {
    if message[..5] != MAGIC {
        return Err(Error::new(ErrorKind::Io, format!("receive: expected a tensor ({MAGIC:02x?}), got {:02x?}", &message[..5])));
    }
    let rank = usize::from(message[6]);
    let element = ElementType::ALL.get(usize::from(message[5])).copied();
    let element = element.ok_or_else(|| Error::new(ErrorKind::ElementType, format!("receive: unknown element type {}", message[5])))?;
    if rank > MAX_RANK {
        return Err(Error::new(ErrorKind::Shape, format!("receive: expected at most {MAX_RANK} axes, got {rank}")));
    }
    let number = |idx: usize| {
        let bytes: [u8; 8] = message[8 + 8 * idx..][..8].try_into().expect("eight bytes");
        let number = u64::from_ne_bytes(bytes);
        usize::try_from(number).map_err(|_| Error::new(ErrorKind::Shape, format!("receive: {number} does not fit this machine")))
    };
    let numbers = |first: usize| (first..first + rank).map(number).collect::<Result<Vec<usize>>>();
    let (dims, stride_bytes) = (numbers(1)?, numbers(1 + MAX_RANK)?);
    Ok((Layout::strided(element, &dims[..], &stride_bytes)?, number(0)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory_file(n_bytes: u64, seals: SealFlags) -> OwnedFd {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, n_bytes).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    }

    fn of(descriptor: OwnedFd, shape: &[usize], offset_bytes: usize) -> SharedTensor {
        SharedTensor { descriptor, layout: Layout::dense(ElementType::F32, shape).unwrap(), offset_bytes }
    }

    /// Maps a tensor of a file that only this process has.
    fn mapped(shared: SharedTensor) -> Tensor {
        // SAFETY: only this process has the file, and the tests write it only through tensors, so leases exclude all conflicting writes.
        unsafe { shared.map() }.unwrap()
    }

    #[test]
    fn both_mappings_are_the_same_memory_and_a_region_keeps_its_strides() {
        let tensor = mapped(SharedTensor::new(ElementType::U16, [4, 5]).unwrap());
        let region = tensor.roi(&[1, 2], &[3, 4]).unwrap();
        let other = mapped(region.export().unwrap());
        assert_eq!((other.layout(), other.address() == region.address()), (region.layout(), false));
        other.view_mut::<u16>().unwrap().fill(7);
        assert_eq!(region.view::<u16>().unwrap().to_vec(), [7; 4]);
        assert_eq!(tensor.view::<u16>().unwrap().iter().filter(|&&value| value == 7).count(), 4);
        drop((tensor, region));
        assert_eq!(other.export().unwrap().import().unwrap().view::<u16>().unwrap().to_vec(), [7; 4]);
    }

    #[test]
    fn two_mappings_of_one_file_share_their_leases() {
        let one = mapped(SharedTensor::new(ElementType::U8, [4, 4]).unwrap());
        let two = mapped(one.export().unwrap());
        let corner = mapped(one.roi(&[0, 0], &[2, 2]).unwrap().export().unwrap());
        assert!(one.shares_memory_with(&two) && one.overlaps(&corner) && !one.is_same(&two));
        let view = one.view::<u8>().unwrap();
        assert_eq!(two.view_mut::<u8>().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(corner.view_mut::<u8>().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(
            corner.export().unwrap().write_from(&Tensor::new(ElementType::U8, [2, 2]).unwrap()).unwrap_err().kind(),
            ErrorKind::Busy
        );
        drop(view);
        let writer = corner.view_mut::<u8>().unwrap();
        assert_eq!(two.view::<u8>().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(two.export().unwrap().import().unwrap_err().kind(), ErrorKind::Busy, "a copy would see half of a write");
        assert_eq!(two.roi(&[2, 0], &[4, 4]).unwrap().view_mut::<u8>().unwrap().len(), 8, "the other bytes are not leased");
        drop(writer);
        drop((one, corner));
        two.view_mut::<u8>().unwrap();
    }

    #[test]
    fn a_file_that_is_gone_leaves_no_leases_behind() {
        let tensor = Tensor::shared(ElementType::U8, [4]).unwrap();
        let key = tensor.placed().memory.as_shared().unwrap().leases.key;
        assert!(FILES.lock().unwrap().contains_key(&key));
        drop(tensor);
        assert!(!FILES.lock().unwrap().contains_key(&key));
    }

    #[test]
    fn an_import_is_a_copy_that_later_writes_do_not_change() {
        let made = Tensor::shared(ElementType::I64, [3, 5]).unwrap();
        made.view_mut::<i64>().unwrap().iter_mut().enumerate().for_each(|(idx, value)| *value = idx as i64);
        let region = made.roi(&[1, 1], &[3, 3]).unwrap();
        let shared = region.export().unwrap();
        let imported = shared.import().unwrap();
        made.view_mut::<i64>().unwrap().fill(-1);
        assert_eq!((imported.view::<i64>().unwrap().to_vec(), imported.is_shared()), (vec![6, 7, 11, 12], false));
        shared.read_to(&imported).unwrap();
        assert_eq!(imported.view::<i64>().unwrap().to_vec(), [-1; 4]);
        let other = Tensor::new(ElementType::I64, [2, 3]).unwrap();
        assert_eq!(shared.read_to(&other).unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(shared.read_to(&Tensor::new(ElementType::F64, [2, 2]).unwrap()).unwrap_err().kind(), ErrorKind::ElementType);
    }

    #[test]
    fn copies_go_between_files_and_tensors_with_any_strides() {
        let values: Vec<u16> = (0..300 * 700).map(|value| value as u16).collect();
        let source = Tensor::from_slice([300, 700], &values).unwrap();
        let file = SharedTensor::new(ElementType::U16, [300, 700]).unwrap();
        file.write_from(&source).unwrap();
        for (begin, end) in [([0, 0], [300, 700]), ([7, 3], [299, 5]), ([7, 3], [9, 700]), ([5, 0], [5, 9])] {
            let layout = source.roi(&begin, &end).unwrap().layout();
            let offset_bytes = 2 * (begin[0] * 700 + begin[1]);
            let part = SharedTensor { descriptor: file.descriptor.try_clone().unwrap(), layout, offset_bytes };
            let expected = source.roi(&begin, &end).unwrap().view::<u16>().unwrap().to_vec();
            assert_eq!(part.import().unwrap().view::<u16>().unwrap().to_vec(), expected, "{begin:?}");
            let strided = Tensor::new(ElementType::U16, [302, 702]).unwrap().roi(&begin, &end).unwrap();
            part.read_to(&strided).unwrap();
            assert_eq!(strided.view::<u16>().unwrap().to_vec(), expected, "{begin:?}");
            strided.view_mut::<u16>().unwrap().fill(0);
            part.write_from(&strided).unwrap();
            assert!(part.import().unwrap().view::<u16>().unwrap().iter().all(|&value| value == 0), "{begin:?}");
            file.write_from(&source).unwrap();
        }
    }

    #[test]
    fn memory_of_one_writer_can_not_be_written_through_the_descriptor() {
        let tensor = Tensor::shared(ElementType::U8, [4]).unwrap();
        let shared = tensor.export().unwrap();
        assert_eq!(shared.write_from(&Tensor::new(ElementType::U8, [4]).unwrap()).unwrap_err().kind(), ErrorKind::Access);
        assert_eq!(rustix::io::pwrite(&shared.descriptor, &[1], 0), Err(Errno::PERM));
        assert_eq!(mapped(shared).view_mut::<u8>().unwrap_err().kind(), ErrorKind::Access);
        tensor.view_mut::<u8>().unwrap().fill(1);
    }

    #[test]
    fn an_import_without_the_seal_or_past_the_end_is_refused() {
        for seals in [SealFlags::empty(), SealFlags::GROW] {
            let error = of(memory_file(64, seals), &[4], 0).import().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Access);
            assert!(error.to_string().contains("F_SEAL_SHRINK"), "{error}");
        }
        let on_disk = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(of(on_disk.into(), &[4], 0).import().unwrap_err().kind(), ErrorKind::Access);
        let sealed = || memory_file(64, SealFlags::SHRINK);
        for (shape, offset_bytes) in [(&[17][..], 0), (&[16], 4), (&[1], 64), (&[1], usize::MAX - 1)] {
            let error = of(sealed(), shape, offset_bytes).import().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape, "{shape:?} at {offset_bytes}");
            assert!(error.to_string().contains("64 bytes"), "{error}");
        }
        of(sealed(), &[1], 2).import().unwrap();
        // SAFETY: no other code has the file, so no code writes it.
        let not_aligned = unsafe { of(sealed(), &[1], 2).map() };
        assert_eq!(not_aligned.unwrap_err().kind(), ErrorKind::Shape, "not aligned");
        assert_eq!(of(sealed(), &[12], 16).import().unwrap().shape()[..], [12]);
        assert_eq!(of(sealed(), &[0, 7], 64).import().unwrap().shape()[..], [0, 7]);
    }

    #[test]
    fn what_may_not_be_written_is_mapped_to_be_read() {
        for seals in [SealFlags::SHRINK | SealFlags::WRITE, SealFlags::SHRINK | SealFlags::FUTURE_WRITE] {
            let tensor = mapped(of(memory_file(64, seals), &[4], 0));
            assert_eq!(tensor.view::<f32>().unwrap().to_vec(), [0.0; 4]);
            assert_eq!(tensor.view_mut::<f32>().unwrap_err().kind(), ErrorKind::Access);
        }
    }

    #[test]
    fn shared_memory_is_never_left_for_other_memory() {
        let mut tensor = Tensor::shared(ElementType::F32, [4, 4]).unwrap();
        let before = tensor.address();
        tensor.set_shape([2, 6]).unwrap();
        assert_eq!(tensor.set_shape([17]).unwrap_err().kind(), ErrorKind::Shape);
        tensor.set_shape([16]).unwrap();
        assert_eq!((tensor.address(), tensor.is_shared()), (before, true));
        assert_eq!(Tensor::new(ElementType::F32, [4]).unwrap().export().unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(Tensor::shared(ElementType::Bool, [4]).unwrap_err().kind(), ErrorKind::Unsupported);
        Tensor::shared(ElementType::F32, [0, 3]).unwrap().export().unwrap().import().unwrap();
    }

    #[test]
    fn messages_come_out_as_they_went_in_and_others_are_refused() {
        let layout = Layout::strided(ElementType::F16, [2, 3, 5], &[64, 16, 2]).unwrap();
        assert_eq!(decode(&encode(&layout, 48)).unwrap(), (layout, 48));
        let scalar = Layout::dense(ElementType::F64, []).unwrap();
        assert_eq!(decode(&encode(&scalar, 0)).unwrap(), (scalar, 0));
        let broken = |place: usize, byte: u8| {
            let mut message = encode(&layout, 48);
            message[place] = byte;
            decode(&message).unwrap_err().kind()
        };
        assert_eq!(broken(0, b'X'), ErrorKind::Io);
        assert_eq!(broken(5, 200), ErrorKind::ElementType);
        assert_eq!(broken(6, 9), ErrorKind::Shape);
        assert_eq!(broken(8 + 8 * (1 + MAX_RANK) + 16, 1), ErrorKind::Shape, "a stride smaller than an element");
        assert_eq!(broken(8 + 8 + 7, 0x70), ErrorKind::Shape, "an extent that exceeds all memory");
    }
}
