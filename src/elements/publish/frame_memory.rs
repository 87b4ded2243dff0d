//! Pixels of published frames in shared memory, for a program that reads the lines of results: the Python package.
//!
//! The reader creates the shared memory: an anonymous file of a fixed size, which initially occupies no memory pages.
//! [`FrameMemory::write`] converts a frame to 8-bit colors, writes the pixels to a free slot of the file, and returns the position of the
//! slot. The line of the frame contains this position as `image`. The reader maps the slot, so no pixel passes through a pipe. The reader
//! sends lines of text:
//!
//! - `read OFFSET`: the reader has read the line of the frame in the slot at this offset. Until then, the slot counts as unread. Streams
//!   wait while too many slots are unread.
//! - `free OFFSET`: the program no longer uses the pixels, so the slot can be written again.
//!
//! After the line of a frame was sent, its slot is not written again until `free`. So the reader may keep a frame for any time, and may
//! also draw on it.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::frame::json::ImagePlace;
use crate::frame::{Frame, Size};
use crate::tensor::{ElementType, Error, ErrorKind, Result, Shape, Tensor};
use crate::vision::{ChannelOrder, InputLayout, Preprocess, Resize, Scratch};

/// Maximum number of bytes of all unread frames together. The limit does not apply to fewer than [`MIN_UNREAD`] frames.
const MAX_UNREAD_BYTES: u64 = 256 << 20;
const MIN_UNREAD: usize = 4;
/// Maximum number of unread frames. The line of a frame may wait 100 ms until it is written, so a lower maximum would limit the frame rate
/// of small frames.
const MAX_UNREAD: usize = 128;
/// Offsets are multiples of the largest page size of the supported systems, because a mapping starts at a page.
const ALIGNMENT_BYTES: u64 = 64 << 10;
/// Interval at which a waiting stream checks whether it is stopping.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Shared memory for frames, used by all streams of a process. Clones use the same memory.
#[derive(Clone)]
pub struct FrameMemory(Arc<Inner>);

struct Inner {
    file: File,
    n_bytes: u64,
    color: ChannelOrder,
    slots: Mutex<Slots>,
    changed: Condvar,
    /// Buffers of earlier conversions, for reuse.
    idle: Mutex<Vec<Conversion>>,
}

/// Buffers for the conversion of a frame.
#[derive(Default)]
struct Conversion {
    /// Pixels of the last converted frame, with the shape `[1, H, W, 3]`.
    pixels: Option<Tensor>,
    scratch: Scratch,
}

#[derive(Default)]
struct Slots {
    /// End of the last slot in the file.
    end_bytes: u64,
    /// Slots that hold a frame, by offset.
    used: HashMap<u64, Slot>,
    /// Offsets of slots without a frame, by capacity.
    free: HashMap<u64, Vec<u64>>,
    n_unread: usize,
    unread_bytes: u64,
    /// Whether the reader has closed its end of the pipe.
    is_closed: bool,
}

#[derive(Clone, Copy)]
struct Slot {
    capacity_bytes: u64,
    is_unread: bool,
}

impl fmt::Debug for FrameMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameMemory").field("n_bytes", &self.0.n_bytes).field("color", &self.0.color).finish_non_exhaustive()
    }
}

impl PartialEq for FrameMemory {
    /// Returns whether both values are clones of one memory.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for FrameMemory {}

impl FrameMemory {
    /// Uses the memory of `file`, which the reader maps. `color` is the order of the colors, RGB or BGR. The caller must call
    /// [`FrameMemory::follow`] on a separate thread.
    ///
    /// # Errors
    /// Returns an error if the size of the file cannot be read.
    pub fn new(file: File, color: ChannelOrder) -> io::Result<Self> {
        let n_bytes = file.metadata()?.len();
        let (slots, changed, idle) = (Mutex::default(), Condvar::new(), Mutex::default());
        Ok(Self(Arc::new(Inner { file, n_bytes, color, slots, changed, idle })))
    }

    /// Reads the lines of the reader until the reader closes its end of the pipe. Frames after that are published without pixels. This
    /// function blocks, so call it on a separate thread.
    pub fn follow(&self, answers: impl BufRead) {
        for answer in answers.lines().map_while(io::Result::ok) {
            let (step, offset) = answer.split_once(' ').unwrap_or_default();
            match (step, offset.parse()) {
                ("read", Ok(offset)) => self.lock().read(offset),
                ("free", Ok(offset)) => self.lock().free(offset),
                _ => tracing::warn!("frame memory: expected `read OFFSET` or `free OFFSET`, got {answer:?}"),
            }
            self.0.changed.notify_all();
        }
        self.lock().is_closed = true;
        self.0.changed.notify_all();
    }

    /// Writes the pixels of a frame, and returns their position for the line of the frame. Blocks while too many frames are unread. Returns
    /// `None` if the reader has closed its end of the pipe, or `is_over` returns true.
    ///
    /// # Errors
    /// Returns an error if the frame cannot be read, or no memory is left.
    pub fn write(&self, frame: &Frame, is_over: impl Fn() -> bool) -> Result<Option<ImagePlace>> {
        let size = frame.size();
        let n_bytes = u64::from(size.width) * u64::from(size.height) * 3;
        let mut slots = self.lock();
        while !slots.is_closed && !slots.has_room(n_bytes) && !is_over() {
            slots = self.0.changed.wait_timeout(slots, CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        if slots.is_closed || is_over() {
            return Ok(None);
        }
        let offset = slots.take(n_bytes);
        drop(slots);
        let written = self.convert(frame, size, offset);
        match written {
            Ok(()) => Ok(Some(ImagePlace { offset, width: size.width, height: size.height })),
            Err(error) => {
                self.discard(offset);
                Err(error)
            }
        }
    }

    /// Frees the slot of a frame without a line.
    pub fn discard(&self, offset: u64) {
        self.lock().free(offset);
        self.0.changed.notify_all();
    }

    /// Converts a frame and writes it at `offset`.
    fn convert(&self, frame: &Frame, size: Size, offset: u64) -> Result<()> {
        let idle = || self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut conversion = idle().pop().unwrap_or_default();
        let shape = Shape::from([1, size.height as usize, size.width as usize, 3]);
        let pixels = match conversion.pixels.take().filter(|pixels| pixels.shape() == shape) {
            Some(pixels) => pixels,
            None => Tensor::new(ElementType::U8, shape)?,
        };
        let preprocess = Preprocess { color: self.0.color, layout: InputLayout::Nhwc, resize: Resize::Stretch, ..Preprocess::default() };
        preprocess.fill(frame, &mut pixels.bytes_mut()?, 0, &mut conversion.scratch)?;
        self.write_at(pixels.bytes()?.extent(), offset)?;
        conversion.pixels = Some(pixels);
        idle().push(conversion);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let n_bytes = self.0.n_bytes;
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > n_bytes) {
            let message = format!("frame memory: {} bytes at {offset} do not fit into {n_bytes} bytes; keep fewer frames", bytes.len());
            return Err(Error::new(ErrorKind::OutOfMemory, message));
        }
        self.0.file.write_all_at(bytes, offset).map_err(|error| Error::new(ErrorKind::Io, format!("frame memory: {error}")))
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    /// Whether another unread frame of this size is allowed.
    fn has_room(&self, n_bytes: u64) -> bool {
        self.n_unread < MIN_UNREAD || self.n_unread < MAX_UNREAD && self.unread_bytes + n_bytes <= MAX_UNREAD_BYTES
    }

    /// Takes a free slot of this capacity, or a new one. The slot is unread.
    fn take(&mut self, n_bytes: u64) -> u64 {
        let capacity_bytes = n_bytes.max(1).next_multiple_of(ALIGNMENT_BYTES);
        let offset = self.free.get_mut(&capacity_bytes).and_then(Vec::pop).unwrap_or_else(|| {
            let offset = self.end_bytes;
            self.end_bytes += capacity_bytes;
            offset
        });
        self.used.insert(offset, Slot { capacity_bytes, is_unread: true });
        self.n_unread += 1;
        self.unread_bytes += capacity_bytes;
        offset
    }

    fn read(&mut self, offset: u64) {
        if let Some(slot) = self.used.get_mut(&offset).filter(|slot| slot.is_unread) {
            slot.is_unread = false;
            self.n_unread -= 1;
            self.unread_bytes -= slot.capacity_bytes;
        }
    }

    fn free(&mut self, offset: u64) {
        self.read(offset);
        if let Some(slot) = self.used.remove(&offset) {
            self.free.entry(slot.capacity_bytes).or_default().push(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::frame::{Colorimetry, PixelFormat};

    fn memory(color: ChannelOrder) -> (FrameMemory, File) {
        let path = std::env::temp_dir().join(format!("roiflow-frames-{}-{:?}", std::process::id(), thread::current().id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        (FrameMemory::new(file.try_clone().unwrap(), color).unwrap(), file)
    }

    fn frame(width: u32, height: u32, rgb: [u8; 3]) -> Frame {
        let tensor = Tensor::from_vec([height as usize, width as usize, 3], rgb.repeat((width * height) as usize)).unwrap();
        Frame::from_planes(PixelFormat::Rgb, Size::new(width, height), &[tensor], Colorimetry::default()).unwrap()
    }

    fn pixels(file: &File, place: ImagePlace) -> Vec<u8> {
        let mut pixels = vec![0; (place.width * place.height * 3) as usize];
        file.read_exact_at(&mut pixels, place.offset).unwrap();
        pixels
    }

    #[test]
    fn a_frame_that_is_in_use_keeps_its_pixels() {
        let (memory, file) = memory(ChannelOrder::Bgr);
        let first = memory.write(&frame(5, 3, [1, 2, 3]), || false).unwrap().unwrap();
        let second = memory.write(&frame(5, 3, [4, 5, 6]), || false).unwrap().unwrap();
        assert_eq!(pixels(&file, first), [3, 2, 1].repeat(15));
        assert_eq!(pixels(&file, second), [6, 5, 4].repeat(15));
        memory.follow(io::Cursor::new(format!("read {0}\nfree {0}\nnonsense\n", first.offset)));
        assert!(memory.write(&frame(5, 3, [7; 3]), || false).unwrap().is_none(), "the reader has closed its end");
    }

    #[test]
    fn a_freed_slot_is_used_again() {
        let (memory, _file) = memory(ChannelOrder::Rgb);
        let write = |size: (u32, u32)| memory.write(&frame(size.0, size.1, [0; 3]), || false).unwrap().unwrap().offset;
        let offset = write((5, 3));
        memory.discard(offset);
        assert_eq!(write((5, 3)), offset);
        memory.discard(offset);
        assert_ne!(write((500, 300)), offset, "a larger frame needs a larger slot");
        assert_eq!(write((5, 3)), offset);
    }

    #[test]
    fn a_stream_waits_while_too_many_frames_are_unread() {
        let (memory, _file) = memory(ChannelOrder::Rgb);
        for _ in 0..MAX_UNREAD {
            memory.write(&frame(2, 2, [0; 3]), || false).unwrap().unwrap();
        }
        let (reader, mut writer) = io::pipe().unwrap();
        let (done, is_done) = mpsc::channel();
        thread::scope(|scope| {
            let waiting = memory.clone();
            scope.spawn(move || done.send(waiting.write(&frame(2, 2, [0; 3]), || false).unwrap()));
            assert!(is_done.recv_timeout(Duration::from_millis(50)).is_err(), "no line was read");
            let follower = memory.clone();
            scope.spawn(move || follower.follow(io::BufReader::new(reader)));
            io::Write::write_all(&mut writer, b"read 0\n").unwrap();
            assert!(is_done.recv().unwrap().is_some());
            drop(writer);
        });
    }

    #[test]
    fn a_stream_that_stops_does_not_wait() {
        let (memory, file) = memory(ChannelOrder::Rgb);
        for _ in 0..MAX_UNREAD {
            memory.write(&frame(2, 2, [0; 3]), || false).unwrap().unwrap();
        }
        assert!(memory.write(&frame(2, 2, [0; 3]), || true).unwrap().is_none());
        let mut first = [1; 12];
        (&file).read_exact(&mut first).unwrap();
        assert_eq!(first, [0; 12]);
    }
}
