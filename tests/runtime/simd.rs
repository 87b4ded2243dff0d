//! Preprocessing gives the same bits on all SIMD backends of this processor. Images and inputs are placed directly before or after
//! inaccessible memory, so that an access outside of them crashes the test.

use std::ptr::NonNull;

use roiflow::frame::{ColorMatrix, ColorRange, Colorimetry, Frame, PixelFormat, PixelRect, Point, Similarity, Size};
use roiflow::tensor::{ElementType, ForeignMemory, Layout, Memory, Tensor};
use roiflow::vision::{Anchor, ChannelOrder, InputLayout, Preprocess, Resize, Rotation, Rounding, Scratch, SimdBackend};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::support::Random;

/// Bytes directly after or directly before an inaccessible page.
struct Guarded {
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    offset_bytes: usize,
    n_bytes: usize,
}

const PAGE_BYTES: usize = 4096;

impl Guarded {
    fn new(n_bytes: usize, at_end: bool) -> Self {
        let inner_bytes = n_bytes.next_multiple_of(PAGE_BYTES);
        let mapping_bytes = inner_bytes + 2 * PAGE_BYTES;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the length is not 0. The system chooses the address of the new mapping, so it does not replace another mapping.
        let mapping = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapping_bytes, protection, MapFlags::PRIVATE) };
        let mapping = NonNull::new(mapping.expect("there is memory").cast::<u8>()).expect("a mapping is not at 0");
        for page in [0, mapping_bytes - PAGE_BYTES] {
            // SAFETY: the page belongs to the new mapping, and no other code uses the mapping yet.
            unsafe { rustix::mm::mprotect(mapping.add(page).as_ptr().cast(), PAGE_BYTES, MprotectFlags::empty()) }.expect("it is ours");
        }
        let offset_bytes = PAGE_BYTES + if at_end { inner_bytes - n_bytes } else { 0 };
        Self { mapping, mapping_bytes, offset_bytes, n_bytes }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: `mapping` has this length and is unmapped once. The owner is dropped, so nothing accesses the memory.
        unsafe { rustix::mm::munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) }.expect("it is ours");
    }
}

// SAFETY: the memory belongs to this value, and any thread may access and unmap it.
unsafe impl Send for Guarded {}
// SAFETY: through a shared reference, only the address of the bytes is available. Leases order all accesses to the bytes.
unsafe impl Sync for Guarded {}

// SAFETY: the bytes are inside the mapping, whose pages the system fills with zeros. The mapping does not move, exists until the drop, and
// is accessed only through leases.
unsafe impl ForeignMemory for Guarded {
    fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: the offset is less than the length of the mapping, so the address is inside the mapping.
        unsafe { self.mapping.add(self.offset_bytes) }
    }

    fn len(&self) -> usize {
        self.n_bytes
    }

    fn is_writable(&self) -> bool {
        true
    }
}

fn guarded(layout: Layout, random: &mut Random) -> Tensor {
    let memory = Memory::foreign(Box::new(Guarded::new(layout.extent_bytes(), random.range(0, 1) == 1)));
    Tensor::part_of(memory, layout, 0).expect("the memory is as long as the layout")
}

fn random_bytes(tensor: &Tensor, random: &mut Random) {
    tensor.bytes_mut().unwrap().extent_mut().fill_with(|| random.next() as u8);
}

/// A random preprocessing case.
#[derive(Debug)]
struct Case {
    format: PixelFormat,
    size: Size,
    region: PixelRect,
    colorimetry: Colorimetry,
    preprocess: Preprocess,
    element: ElementType,
    input: Size,
}

impl Case {
    fn random(random: &mut Random, case_idx: usize) -> Self {
        // Some widths are large enough for several column blocks. In some cases, the samples of a row are far apart.
        let widths = [1, 7, 40, 90, 300, 2000];
        let size = Size::new(random.range(1, widths[case_idx % widths.len()]), random.range(1, 12));
        let (x, y) = (random.range(0, size.width / 2), random.range(0, size.height / 2));
        let whole = PixelRect { x: 0, y: 0, width: size.width, height: size.height };
        let right_and_below = PixelRect { x, y, width: size.width - x, height: size.height - y };
        let inside = PixelRect { width: random.range(1, size.width - x), height: random.range(1, size.height - y), ..right_and_below };
        Self {
            format: random.pick(&PixelFormat::ALL),
            size,
            region: random.pick(&[whole, right_and_below, inside]),
            colorimetry: Colorimetry {
                matrix: random.pick(&[ColorMatrix::Bt601, ColorMatrix::Bt709, ColorMatrix::Bt2020]),
                range: random.pick(&[ColorRange::Limited, ColorRange::Full]),
            },
            preprocess: Preprocess {
                color: random.pick(&[ChannelOrder::Rgb, ChannelOrder::Bgr, ChannelOrder::Gray]),
                layout: random.pick(&[InputLayout::Nchw, InputLayout::Nhwc]),
                rotation: random.pick(&[Rotation::None, Rotation::None, Rotation::Clockwise, Rotation::Half, Rotation::Counterclockwise]),
                resize: random.pick(&[Resize::Stretch, Resize::Letterbox { anchor: Anchor::Center }, Resize::Crop]),
                mean: random.pick(&[[0.0; 3], [103.53, 116.28, 123.675]]),
                scale: random.pick(&[[1.0; 3], [57.375, 57.12, 58.395]]),
                rounding: random.pick(&[Rounding::Exact, Rounding::U8]),
                antialias: random.range(0, 1) == 1,
                ..Preprocess::default()
            },
            element: random.pick(&[
                ElementType::F32,
                ElementType::F16,
                ElementType::Bf16,
                ElementType::U8,
                ElementType::I8,
                ElementType::I32,
            ]),
            input: Size::new(random.range(1, 200), random.range(1, 12)),
        }
    }

    fn frame(&self, random: &mut Random) -> Frame {
        let planes: Vec<Tensor> = (0..self.format.n_planes())
            .map(|plane_idx| {
                let shape = self.format.plane_shape(plane_idx, self.size);
                let n_samples = shape[1] * shape.get(2).unwrap_or(&1) + random.range(0, 9) as usize;
                let layout = self.format.plane_layout(plane_idx, self.size, n_samples * self.format.element().size()).unwrap();
                let plane = guarded(layout, random);
                random_bytes(&plane, random);
                plane
            })
            .collect();
        Frame::from_planes(self.format, self.size, &planes, self.colorimetry).unwrap().region(self.region).unwrap()
    }

    /// Returns the second of three batch items. The item is contiguous or a region of a larger tensor.
    fn inputs(&self, random: &mut Random) -> Tensor {
        let (channels, height, width) = (self.preprocess.color.n_channels(), self.input.height as usize, self.input.width as usize);
        let shape = match self.preprocess.layout {
            InputLayout::Nchw => [3, channels, height, width],
            InputLayout::Nhwc => [3, height, width, channels],
        };
        let wider = [shape[0], shape[1], shape[2], shape[3] + random.range(0, 1) as usize];
        guarded(Layout::dense(self.element, wider).unwrap(), random).roi(&[0; 4], &shape).unwrap()
    }
}

#[test]
fn all_backends_give_the_same_bits_and_stay_in_bounds() {
    let (mut random, seed) = Random::seeded();
    let mut scratches: Vec<(SimdBackend, Scratch)> =
        SimdBackend::ALL.into_iter().filter_map(|set| Some((set, Scratch::with_simd_backend(set)?))).collect();
    for missing in SimdBackend::ALL.iter().filter(|set| !set.is_available()) {
        eprintln!("skipped: this processor has no {missing:?}");
    }
    for case_idx in 0..1500 {
        let case = Case::random(&mut random, case_idx);
        let (frame, input) = (case.frame(&mut random), case.inputs(&mut random));
        let mut expected: Option<Vec<u8>> = None;
        for (set, scratch) in &mut scratches {
            let mut bytes = input.bytes_mut().unwrap();
            bytes.extent_mut().fill(0x55);
            case.preprocess.fill(&frame, &mut bytes, 1, scratch).unwrap();
            match &expected {
                Some(expected) => assert!(bytes.extent_mut() == expected, "ROIFLOW_SEED={seed}, case {case_idx}, {set:?}: {case:?}"),
                None => expected = Some(bytes.extent_mut().to_vec()),
            }
        }
    }
}

#[test]
fn extreme_mean_and_scale_give_the_same_bits() {
    let (mut random, seed) = Random::seeded();
    let ends = [1e-45, 1e-38, 1.0, 1e34, f32::MAX];
    for (mean, scale) in ends.into_iter().flat_map(|mean| ends.map(|scale| (-mean, scale))) {
        let mut case = Case::random(&mut random, 4);
        case.format = PixelFormat::Rgb;
        case.element = ElementType::F32;
        case.preprocess = Preprocess { mean: [mean, 0.0, 1.0], scale: [1.0, scale, 2.0], ..Preprocess::default() };
        let (frame, input) = (case.frame(&mut random), case.inputs(&mut random));
        let filled: Vec<Vec<u8>> = SimdBackend::ALL
            .into_iter()
            .filter_map(Scratch::with_simd_backend)
            .map(|mut scratch| {
                let mut bytes = input.bytes_mut().unwrap();
                case.preprocess.fill(&frame, &mut bytes, 1, &mut scratch).unwrap();
                bytes.extent_mut().to_vec()
            })
            .collect();
        assert!(filled.windows(2).all(|pair| pair[0] == pair[1]), "ROIFLOW_SEED={seed}: {case:?}");
    }
}

/// The test aligns regions to keypoints that are inside, at the edge of, and outside the frame.
#[test]
fn alignment_gives_the_same_bits() {
    let (mut random, seed) = Random::seeded();
    for case_idx in 0..500 {
        let mut case = Case::random(&mut random, case_idx);
        case.preprocess.rotation = Rotation::None;
        let (frame, input) = (case.frame(&mut random), case.inputs(&mut random));
        let mut point = |extent: u32| Point { x: random.range(0, 3 * extent) as f32 - extent as f32, y: random.range(0, 30) as f32 - 10.0 };
        let (from, to) = ([(); 3].map(|()| point(case.input.width)), [(); 3].map(|()| point(case.size.width)));
        let Some(frame_from_input) = Similarity::estimate(&from, &to) else { continue };
        let filled: Vec<Vec<u8>> = SimdBackend::ALL
            .into_iter()
            .filter_map(Scratch::with_simd_backend)
            .map(|mut scratch| {
                let mut bytes = input.bytes_mut().unwrap();
                bytes.extent_mut().fill(0x55);
                case.preprocess.fill_along(&frame, &frame_from_input, &mut bytes, 1, &mut scratch).unwrap();
                bytes.extent_mut().to_vec()
            })
            .collect();
        assert!(filled.windows(2).all(|pair| pair[0] == pair[1]), "ROIFLOW_SEED={seed}, case {case_idx}: {case:?}");
    }
}

/// The inputs are image tensors with random strides.
#[test]
fn image_tensors_give_the_same_bits() {
    let (mut random, seed) = Random::seeded();
    for case_idx in 0..300 {
        let mut case = Case::random(&mut random, case_idx);
        let element = random.pick(&[ElementType::U8, ElementType::F32]);
        if element == ElementType::F32 {
            case.preprocess.rounding = Rounding::Exact;
        }
        let axes = random.pick(&[InputLayout::Nchw, InputLayout::Nhwc]);
        let (channels, height, width) = (random.pick(&[1, 3, 4]), case.size.height as usize, case.size.width as usize);
        let shape = match axes {
            InputLayout::Nchw => [1, channels, height, width],
            InputLayout::Nhwc => [1, height, width, channels],
        };
        let end = shape.map(|extent| extent + [0, 0, 1, 6][random.range(0, 3) as usize]);
        let wider = guarded(Layout::dense(element, end).unwrap(), &mut random);
        match element {
            ElementType::U8 => random_bytes(&wider, &mut random),
            _ => wider.view_mut::<f32>().unwrap().iter_mut().for_each(|value| *value = random.range(0, 2000) as f32 / 8.0 - 20.0),
        }
        let begin: [usize; 4] = std::array::from_fn(|axis| end[axis] - shape[axis]);
        let image = wider.roi(&begin, &end).unwrap();
        let input = case.inputs(&mut random);
        let filled: Vec<Vec<u8>> = SimdBackend::ALL
            .into_iter()
            .filter_map(Scratch::with_simd_backend)
            .map(|mut scratch| {
                let mut bytes = input.bytes_mut().unwrap();
                bytes.extent_mut().fill(0x55);
                case.preprocess.fill_values(&image, axes, &mut bytes, 1, &mut scratch).unwrap();
                bytes.extent_mut().to_vec()
            })
            .collect();
        assert!(filled.windows(2).all(|pair| pair[0] == pair[1]), "ROIFLOW_SEED={seed}, case {case_idx}, {image:?}: {case:?}");
    }
}
