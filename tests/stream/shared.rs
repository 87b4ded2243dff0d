//! Memory with a file descriptor passes into and out of the elements without a copy.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use gst_allocators::prelude::*;
use gstreamer as gst;
use gstreamer_allocators as gst_allocators;
use gstreamer_video as gst_video;
use roiflow::elements::buffer;
use roiflow::frame::{PixelRect, Size};
use roiflow::tensor::{ElementType, ErrorKind, SharedTensor, Tensor};

use crate::harness::{assert_near, caps, collect, detect, feed, init, on_buffers, pipeline, run};

const SIZE: Size = Size::new(256, 192);

/// Returns a black image with a red rectangle in shared memory.
fn painted(rect: PixelRect) -> Tensor {
    let tensor = Tensor::shared(ElementType::U8, [SIZE.height as usize, SIZE.width as usize, 3]).unwrap();
    let mut view = tensor.view_mut::<u8>().unwrap();
    for y in rect.y..rect.y + rect.height {
        for x in rect.x..rect.x + rect.width {
            view[[y as usize, x as usize, 0]] = 255;
        }
    }
    drop(view);
    tensor
}

/// Returns the file of the only memory of a buffer.
fn file(buffer: &gst::BufferRef) -> (u64, u64) {
    assert_eq!(buffer.n_memory(), 1);
    let memory = buffer.peek_memory(0).downcast_memory_ref::<gst_allocators::FdMemory>().expect("memory with a file descriptor");
    inode(memory.fd())
}

fn inode(descriptor: i32) -> (u64, u64) {
    let file = std::fs::metadata(format!("/proc/self/fd/{descriptor}")).unwrap();
    (file.dev(), file.ino())
}

fn address(buffer: &gst::BufferRef) -> usize {
    buffer.map_readable().unwrap().as_ptr() as usize
}

#[test]
fn shared_tensor_is_inferred_without_copy() {
    let rect = PixelRect { x: 64, y: 48, width: 96, height: 72 };
    // Simulates another process that writes through the descriptor.
    let made = SharedTensor::new(ElementType::U8, [SIZE.height as usize, SIZE.width as usize, 3]).unwrap();
    made.write_from(&painted(rect)).unwrap();
    let exported = || SharedTensor { descriptor: made.descriptor.try_clone().unwrap(), ..made };
    // SAFETY: nothing reads the memory as a slice while it is written below.
    let tensor = unsafe { exported().map() }.unwrap();
    let pipeline = pipeline(&format!("appsrc name=source ! {} name=detect ! fakesink name=sink", detect("rectangle", "")));
    let (sender, entered) = std::sync::mpsc::channel();
    on_buffers(&pipeline, "detect", "sink", move |_, buffer| sender.send((address(buffer), file(buffer))).unwrap());
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), (0..3).map(|_| buffer::from_shared(&tensor).unwrap()));
    assert_eq!(run(&pipeline).error, None);
    let arrived = std::mem::take(&mut *arrived.lock().unwrap());
    assert_eq!(arrived.len(), 3);
    let info = gst_video::VideoInfo::from_caps(&caps("RGB", SIZE)).unwrap();
    for arrived in &arrived {
        let (before, file_before) = entered.recv().unwrap();
        assert_eq!((address(&arrived.buffer), file(&arrived.buffer)), (before, file_before));
        assert_eq!(file_before, inode(made.descriptor.as_raw_fd()), "the file of the other process");
        let frame = buffer::frame(&arrived.buffer, &info).unwrap();
        assert_eq!(frame.planes().next().unwrap().address() as usize, before, "the detector reads the mapping");
        let results = arrived.results().unwrap();
        assert_near(results.detections[0].rect, rect.to_rect(), 0.01, "the box");
    }
    // The buffers show the bytes that are written to the file. The buffers lease the tensor, so this process cannot write through the
    // tensor. It writes to the file instead.
    assert_eq!(tensor.view_mut::<u8>().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(made.write_from(&painted(rect)).unwrap_err().kind(), ErrorKind::Busy);
    let file = std::fs::File::from(made.descriptor.try_clone().unwrap());
    file.write_all_at(&[77], 1).unwrap();
    assert!(arrived.iter().all(|arrived| arrived.buffer.map_readable().unwrap()[1] == 77));
}

#[test]
fn dma_buffer_is_read_in_place() {
    init();
    let rect = PixelRect { x: 64, y: 48, width: 96, height: 72 };
    let tensor = painted(rect);
    // The allocator accepts any mappable descriptor; real DMA buffers differ only in a call around the mapping.
    let allocator = gst_allocators::DmaBufAllocator::new();
    let dma_buffer = || {
        let descriptor = tensor.export().unwrap().descriptor;
        // SAFETY: the descriptor is open, belongs to a file of this length that cannot shrink, and is owned by the memory.
        let memory = unsafe { allocator.alloc_dmabuf(descriptor, 256 * 192 * 3) }.unwrap();
        let mut buffer = gst::Buffer::new();
        buffer.get_mut().unwrap().append_memory(memory);
        buffer
    };
    let pipeline = pipeline(&format!("appsrc name=source ! {} name=detect ! fakesink name=sink", detect("rectangle", "")));
    let arrived = collect(&pipeline, "sink", "sink");
    feed(&pipeline, &caps("RGB", SIZE), (0..3).map(|_| dma_buffer()));
    assert_eq!(run(&pipeline).error, None);
    let arrived = std::mem::take(&mut *arrived.lock().unwrap());
    assert_eq!(arrived.len(), 3);
    for arrived in &arrived {
        let memory = arrived.buffer.peek_memory(0).downcast_memory_ref::<gst_allocators::DmaBufMemory>().expect("still the same memory");
        assert_eq!(inode(memory.fd()), inode(tensor.export().unwrap().descriptor.as_raw_fd()));
        assert_near(arrived.results().unwrap().detections[0].rect, rect.to_rect(), 0.01, "the box");
    }
}

#[test]
fn buffer_borrows_tensor_and_is_copied_on_write() {
    init();
    let tensor = painted(PixelRect { x: 0, y: 0, width: 8, height: 8 });
    let mut buffer = buffer::from_shared(&tensor).unwrap();
    assert_eq!(tensor.view_mut::<u8>().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(buffer.map_readable().unwrap()[..], *tensor.bytes().unwrap().extent());
    buffer.make_mut().map_writable().unwrap()[0] = 1;
    assert_eq!((tensor.view::<u8>().unwrap()[[0, 0, 0]], buffer.map_readable().unwrap()[0]), (255, 1));
    drop(buffer);
    tensor.view_mut::<u8>().unwrap()[[0, 0, 0]] = 2;
}

#[test]
fn buffer_of_region_spans_first_to_last_byte() {
    init();
    let tensor = painted(PixelRect { x: 10, y: 20, width: 30, height: 40 });
    let region = tensor.roi(&[20, 10, 0], &[60, 40, 3]).unwrap();
    let buffer = buffer::from_shared(&region).unwrap();
    assert_eq!(buffer.map_readable().unwrap()[..], *region.bytes().unwrap().extent());
    assert_eq!(buffer.size(), region.layout().extent_bytes());
    let refused = buffer::from_shared(&Tensor::new(ElementType::U8, [4]).unwrap()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}
