//! Tensors in memory shared between processes: sealed anonymous files, whose descriptors are sent over Unix sockets.
//!
//! - *Creating* ([`Tensor::shared`]): `memfd_create`, sized once, then sealed against shrinking, growing and further seals.
//! - *Exporting* ([`Tensor::export`], [`SharedTensor::send`]): a new descriptor and the tensor's layout.
//! - *Importing* ([`SharedTensor::receive`], [`SharedTensor::import`]): the peer's claims are verified. The file must be sealed against
//!   shrinking, because a read behind the end of a mapped file kills the process. The layout must be inside the file. Only the needed part
//!   is mapped.
//!
//! Leases exclude users within one process. Processes must agree on the order themselves: the sender does not write a tensor until the
//! receiver has reported that it is done. A peer that breaks this rule can change the numbers that are read, nothing else: every bit
//! pattern is a valid value of the element types that may be shared. `bool` may not be shared.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::tensor::Placed;
use super::{ElementType, Error, ErrorKind, Layout, MAX_RANK, Memory, Result, Shape, Tensor};

/// A tensor that is sent to or received from another process. Nothing is verified before [`SharedTensor::import`].
#[derive(Debug)]
pub struct SharedTensor {
    /// The file.
    pub descriptor: OwnedFd,
    /// Element type, shape and strides.
    pub layout: Layout,
    /// Byte offset of the first element in the file.
    pub offset_bytes: usize,
}

impl Tensor {
    /// A dense tensor of zeros in memory that other processes can map.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for `bool`, [`ErrorKind::Shape`] if the size overflows, [`ErrorKind::Io`] if the system has no
    /// descriptor or no memory left.
    pub fn shared(element: ElementType, shape: impl Into<Shape>) -> Result<Self> {
        check_element(element)?;
        let layout = Layout::dense(element, shape)?;
        let len = layout.dense_bytes();
        let failed = |what: &'static str| move |errno: Errno| system(&format!("shared memory of {len} bytes: {what}"), errno);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = rustix::fs::memfd_create("roiflow-tensor", flags).map_err(failed("memfd_create"))?;
        // An empty file can't be mapped.
        rustix::fs::ftruncate(&descriptor, len.max(1) as u64).map_err(failed("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&descriptor, seals).map_err(failed("sealing"))?;
        let mapping = SharedMapping::new(descriptor, len, Access::ReadWrite)?;
        Ok(Self::over(Memory::shared(mapping), layout))
    }

    /// The same memory for another process: a new descriptor and the position of the tensor in the file. A region keeps its strides.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] unless the tensor was made by [`Tensor::shared`] or imported; [`ErrorKind::Io`] if there is no
    /// descriptor left.
    pub fn export(&self) -> Result<SharedTensor> {
        let Placed { memory, layout, offset_bytes } = self.placed();
        let mapping = memory.as_shared().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "this tensor's memory is not shared: make it with the shared-memory context, or copy it to one that is",
            )
        })?;
        let descriptor = mapping.descriptor.try_clone().map_err(|error| Error::new(ErrorKind::Io, format!("export: {error}")))?;
        Ok(SharedTensor { descriptor, layout, offset_bytes })
    }

    /// Whether [`Tensor::export`] is possible.
    pub fn is_shared(&self) -> bool {
        self.placed().memory.as_shared().is_some()
    }
}

impl SharedTensor {
    /// Maps the tensor; read-only if the file is sealed against writing or opened for reading.
    ///
    /// Each import is a separate mapping with separate leases: import once, and keep the tensor.
    ///
    /// # Errors
    /// [`ErrorKind::Access`] if the file is not sealed against shrinking; [`ErrorKind::Shape`] if the tensor does not lie inside
    /// the file; [`ErrorKind::Unsupported`] for `bool`; [`ErrorKind::Io`] if the system refuses.
    pub fn import(self) -> Result<Tensor> {
        let Self { descriptor, layout, offset_bytes } = self;
        check_element(layout.element())?;
        let seals = match rustix::fs::fcntl_get_seals(&descriptor) {
            Ok(seals) => seals,
            // Files on a disk and pipes have no seals.
            Err(Errno::INVAL) => SealFlags::empty(),
            Err(errno) => return Err(system("import: reading the seals", errno)),
        };
        if !seals.contains(SealFlags::SHRINK) {
            return Err(Error::new(
                ErrorKind::Access,
                format!(
                    "import: expected a memory file sealed against shrinking (F_SEAL_SHRINK), got seals {seals:?}; \
                     unsealed, its owner could cut it off and kill this process"
                ),
            ));
        }
        // Huge pages may be missing when they are accessed, which also kills the process.
        let kind = rustix::fs::fstatfs(&descriptor).map_err(|errno| system("import: the file's kind", errno))?.f_type;
        if kind != TMPFS {
            let message = format!("import: expected a file in ordinary memory (memfd without MFD_HUGETLB), got one of kind {kind:#x}");
            return Err(Error::new(ErrorKind::Access, message));
        }
        let file_bytes = rustix::fs::fstat(&descriptor).map_err(|errno| system("import: the file's size", errno))?.st_size;
        let file_bytes = usize::try_from(file_bytes).unwrap_or(0);
        let end_bytes = offset_bytes.checked_add(layout.extent_bytes()).filter(|&end| end <= file_bytes);
        let Some(end_bytes) = end_bytes else {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "import: shape {} with strides {:?} at byte {offset_bytes} reaches past the file's {file_bytes} bytes",
                    layout.shape(),
                    layout.stride_bytes()
                ),
            ));
        };
        let mode = rustix::fs::fcntl_getfl(&descriptor).map_err(|errno| system("import: the file's mode", errno))?;
        let access = if seals.contains(SealFlags::WRITE) {
            Access::Constant
        } else if mode & OFlags::ACCMODE == OFlags::RDWR && !seals.contains(SealFlags::FUTURE_WRITE) {
            Access::ReadWrite
        } else {
            Access::ReadOnly
        };
        let memory = Memory::shared(SharedMapping::new(descriptor, end_bytes, access)?);
        if layout.is_dense() && offset_bytes == 0 {
            Ok(Tensor::over(memory, layout))
        } else {
            Tensor::part_of(memory, layout, offset_bytes)
        }
    }

    /// Sends descriptor and layout. Blocks while a blocking socket is full.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the peer closed the socket.
    pub fn send(&self, socket: &UnixStream) -> Result<()> {
        let message = encode(&self.layout, self.offset_bytes);
        let descriptors = [self.descriptor.as_fd()];
        let mut n_sent = 0;
        while n_sent < message.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            // The descriptor is sent with the first byte.
            if n_sent == 0 && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                return Err(Error::new(ErrorKind::Io, "send: no room for one descriptor"));
            }
            // A closed socket is an error instead of SIGPIPE.
            match rustix::net::sendmsg(socket, &[IoSlice::new(&message[n_sent..])], &mut control, SendFlags::NOSIGNAL) {
                Ok(n) => n_sent += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(system("send: the other process may be gone", errno)),
            }
        }
        Ok(())
    }

    /// Receives a tensor of [`SharedTensor::send`]; `None` if the peer closed the socket between two tensors. The socket must carry nothing
    /// else.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the peer closes the socket within a message or sends something else; [`ErrorKind::Shape`] or
    /// [`ErrorKind::ElementType`] if the layout is invalid.
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
            // Surplus descriptors are closed here, or were closed by the system for lack of space.
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
                let message = format!("receive: the other process went after {n_received} of {MESSAGE_BYTES} bytes");
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

/// `TMPFS_MAGIC`: the file system of anonymous files without huge pages.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Access to a mapped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    ReadWrite,
    /// Read-only here; other processes may write.
    ReadOnly,
    /// Sealed against writing.
    Constant,
}

/// The beginning of a sealed file, mapped.
#[derive(Debug)]
pub(super) struct SharedMapping {
    ptr: NonNull<u8>,
    len: usize,
    access: Access,
    descriptor: OwnedFd,
}

// SAFETY: the bytes stay mapped until the drop; leases order the accesses, see `Memory`.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// `file` is sealed against shrinking and has at least `len` bytes.
    fn new(descriptor: OwnedFd, len: usize, access: Access) -> Result<Self> {
        debug_assert!(rustix::fs::fcntl_get_seals(&descriptor).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)));
        let (protection, flags) = match access {
            Access::ReadWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            Access::ReadOnly => (ProtFlags::READ, MapFlags::SHARED),
            // Older systems refuse a shared mapping of a file that is sealed against writing; a private one is equivalent.
            Access::Constant => (ProtFlags::READ, MapFlags::PRIVATE),
        };
        // SAFETY: a new mapping at an address of the system's choice replaces no other one.
        let ptr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len.max(1), protection, flags, &descriptor, 0) };
        let ptr = ptr.map_err(|errno| system(&format!("mapping {len} bytes of shared memory"), errno))?;
        let ptr = NonNull::new(ptr.cast()).ok_or_else(|| Error::new(ErrorKind::Io, "the system mapped shared memory to address 0"))?;
        Ok(Self { ptr, len, access, descriptor })
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
}

impl AsFd for SharedMapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; the last lease on it is gone, as each holds the memory that owns this.
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

/// "ROIT", version, element, rank, nothing; then, as 8 bytes each: offset, extents, strides, zeros where there is no axis. In native byte
/// order: messages stay on one machine.
const MESSAGE_BYTES: usize = 8 + 8 * (1 + 2 * MAX_RANK);
const MAGIC: [u8; 5] = *b"ROIT\x01";

fn encode(layout: &Layout, offset_bytes: usize) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..5].copy_from_slice(&MAGIC);
    let element = ElementType::ALL.iter().position(|&element| element == layout.element()).expect("ALL has all of them");
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

    #[test]
    fn both_mappings_are_the_same_memory_and_a_region_keeps_its_strides() {
        let tensor = Tensor::shared(ElementType::U16, [4, 5]).unwrap();
        let region = tensor.roi(&[1, 2], &[3, 4]).unwrap();
        let imported = region.export().unwrap().import().unwrap();
        assert_eq!((imported.layout(), imported.address() == region.address()), (region.layout(), false));
        imported.view_mut::<u16>().unwrap().fill(7);
        assert_eq!(region.view::<u16>().unwrap().to_vec(), [7; 4]);
        assert_eq!(tensor.view::<u16>().unwrap().iter().filter(|&&value| value == 7).count(), 4);
        drop((tensor, region));
        assert_eq!(imported.export().unwrap().import().unwrap().view::<u16>().unwrap().to_vec(), [7; 4]);
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
        assert_eq!(of(sealed(), &[1], 2).import().unwrap_err().kind(), ErrorKind::Shape, "not aligned");
        assert_eq!(of(sealed(), &[12], 16).import().unwrap().shape()[..], [12]);
        assert_eq!(of(sealed(), &[0, 7], 64).import().unwrap().shape()[..], [0, 7]);
    }

    #[test]
    fn what_may_not_be_written_is_mapped_to_be_read() {
        for seals in [SealFlags::SHRINK | SealFlags::WRITE, SealFlags::SHRINK | SealFlags::FUTURE_WRITE] {
            let tensor = of(memory_file(64, seals), &[4], 0).import().unwrap();
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
        assert_eq!(broken(8 + 8 + 7, 0x70), ErrorKind::Shape, "an extent beyond every memory");
    }
}
