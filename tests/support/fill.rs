//! A test case for preprocessing, generated from bytes: any format, size, strides, region, options and input, valid and invalid. Asserts
//! that all results are valid. Random tests and fuzz targets include this file, so it uses no other test helpers.

use roiflow::frame::{ColorMatrix, ColorRange, Colorimetry, Frame, PixelFormat, PixelRect, PlanePlace, Point, Rect, Size};
use roiflow::stages::Crop;
use roiflow::tensor::{ElementType, Memory, Result, Tensor};
use roiflow::vision::{Anchor, ChannelOrder, InputLayout, Preprocess, Resize, Rotation, Rounding, Scratch, SimdBackend};

use super::source::Source;

/// Value of each input byte before preprocessing.
const UNTOUCHED: u8 = 0x55;

/// Runs the case on every SIMD backend. Returns true if preprocessing succeeded.
pub fn try_fill(bytes: &[u8]) -> bool {
    let mut source = Source::new(bytes);
    let preprocess = preprocess(&mut source);
    let (shape, element, row) = input(&mut source, &preprocess);
    let picture = if source.below(5) == 0 { values(&mut source) } else { frame(&mut source) };
    let Ok(picture) = picture else { return false };
    let way = way(&mut source);
    let mut filled: Option<(bool, Vec<u8>)> = None;
    for mut scratch in SimdBackend::ALL.into_iter().filter_map(Scratch::with_simd_backend) {
        let input = Tensor::new(element, shape).expect("a shape that is not too large");
        let mut bytes = input.bytes_mut().expect("no other lease exists");
        bytes.extent_mut().fill(UNTOUCHED);
        let is_filled = match (&picture, &way) {
            (Picture::Frame(frame), Way::Box(crop, rect)) => match crop.rect(*rect, frame.size()) {
                Some(rect) => {
                    let region = frame.region(rect).expect("it lies in the frame");
                    preprocess.fill(&region, &mut bytes, row, &mut scratch).is_ok()
                }
                None => false,
            },
            (Picture::Frame(frame), Way::Region(rect)) => {
                frame.region(*rect).is_ok_and(|region| preprocess.fill(&region, &mut bytes, row, &mut scratch).is_ok())
            }
            (Picture::Frame(frame), Way::Along(crop, keypoints)) => match crop.alignment(keypoints, Size::new(16, 9)) {
                Some(alignment) => preprocess.fill_along(frame, &alignment, &mut bytes, row, &mut scratch).is_ok(),
                None => false,
            },
            (Picture::Values(tensor, layout), _) => preprocess.fill_values(tensor, *layout, &mut bytes, row, &mut scratch).is_ok(),
        };
        let after = bytes.extent_mut().to_vec();
        let row_bytes = after.len() / shape[0].max(1);
        let mut others = after.iter().enumerate().filter(|(at, _)| !is_filled || at / row_bytes.max(1) != row);
        assert!(others.all(|(_, byte)| *byte == UNTOUCHED), "{shape:?} {element}, row {row}: {preprocess:?}: something else was written");
        let after = without_nan(after, element);
        match &filled {
            None => filled = Some((is_filled, after)),
            Some(first) => assert!(*first == (is_filled, after), "{shape:?} {element}: {preprocess:?}, {way:?}: sets differ"),
        }
    }
    filled.is_some_and(|(is_filled, _)| is_filled)
}

/// Returns the bytes with all NaN values replaced by one NaN, because processors do not define which NaN an addition returns.
fn without_nan(mut bytes: Vec<u8>, element: ElementType) -> Vec<u8> {
    match element {
        ElementType::F32 => {
            let is_nan = |bytes: &[u8; 4]| f32::from_ne_bytes(*bytes).is_nan();
            bytes.as_chunks_mut().0.iter_mut().filter(|bytes| is_nan(bytes)).for_each(|bytes| *bytes = f32::NAN.to_ne_bytes());
        }
        ElementType::F16 | ElementType::Bf16 => {
            let infinity = if element == ElementType::F16 { 0x7c00 } else { 0x7f80 };
            let is_nan = |bytes: &[u8; 2]| u16::from_ne_bytes(*bytes) & 0x7fff > infinity;
            bytes.as_chunks_mut().0.iter_mut().filter(|bytes| is_nan(bytes)).for_each(|bytes| *bytes = [0xff; 2]);
        }
        _ => {}
    }
    bytes
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
enum Picture {
    Frame(Frame),
    Values(Tensor, InputLayout),
}

/// The region of the image.
#[derive(Debug)]
enum Way {
    Box(Crop, Rect),
    Region(PixelRect),
    Along(Crop, Vec<Point>),
}

fn pick<T: Copy>(source: &mut Source<'_>, of: &[T]) -> T {
    of[source.below(of.len())]
}

/// Returns an extent of at least 1, usually a small one.
fn extent(source: &mut Source<'_>, limit: usize) -> u32 {
    let limit = pick(source, &[2, 9, 40, limit]).min(limit);
    1 + (source.random() % limit as u64) as u32
}

/// Returns a coordinate: usually of a pixel, sometimes any value.
fn place(source: &mut Source<'_>) -> f32 {
    if source.below(16) == 0 { source.value() } else { source.below(120) as f32 - 20.0 + source.fraction() }
}

fn preprocess(source: &mut Source<'_>) -> Preprocess {
    let mut three = |normal: f32| {
        let is_wild = source.below(40) == 0;
        [(); 3].map(|()| if is_wild { source.value() } else { normal + source.fraction() })
    };
    let (mean, scale) = (three(100.0), three(57.0));
    Preprocess {
        color: pick(source, &[ChannelOrder::Rgb, ChannelOrder::Bgr, ChannelOrder::Gray]),
        layout: pick(source, &[InputLayout::Nchw, InputLayout::Nhwc]),
        rotation: pick(source, &[Rotation::None, Rotation::None, Rotation::Clockwise, Rotation::Half, Rotation::Counterclockwise]),
        resize: pick(
            source,
            &[Resize::Stretch, Resize::Letterbox { anchor: Anchor::TopLeft }, Resize::Letterbox { anchor: Anchor::Center }, Resize::Crop],
        ),
        pad: if source.below(30) == 0 { source.value() } else { source.below(256) as f32 },
        mean,
        scale,
        rounding: pick(source, &[Rounding::Exact, Rounding::U8]),
        antialias: source.below(2) == 0,
    }
}

/// Shape, element type and batch item, usually valid.
fn input(source: &mut Source<'_>, preprocess: &Preprocess) -> ([usize; 4], ElementType, usize) {
    let (n_rows, width, height) = (1 + source.below(3), extent(source, 300) as usize, extent(source, 60) as usize);
    let n_channels = if source.below(20) == 0 { source.below(5) } else { preprocess.color.n_channels() };
    let shape = match preprocess.layout {
        InputLayout::Nchw => [n_rows, n_channels, height, width],
        InputLayout::Nhwc => [n_rows, height, width, n_channels],
    };
    let elements =
        [ElementType::F32, ElementType::F16, ElementType::Bf16, ElementType::U8, ElementType::I8, ElementType::I32, ElementType::I64];
    let row = if source.below(20) == 0 { source.below(9) } else { source.below(n_rows) };
    (shape, pick(source, &elements), row)
}

fn frame(source: &mut Source<'_>) -> Result<Picture> {
    let format = pick(source, &PixelFormat::ALL);
    let size = if source.below(50) == 0 { Size::new(0, 3) } else { Size::new(extent(source, 2000), extent(source, 60)) };
    let mut end = source.below(9);
    let mut places = Vec::new();
    for plane_idx in 0..format.n_planes() {
        let shape = format.plane_shape(plane_idx, size);
        let n_samples = shape.iter().skip(1).product::<usize>() + source.below(9);
        let gap_bytes = if source.below(30) == 0 { 1 } else { 0 };
        let row_stride_bytes = (n_samples * format.element().size()).saturating_sub(gap_bytes);
        places.push(PlanePlace { offset_bytes: end, row_stride_bytes });
        end += shape[0] * row_stride_bytes;
    }
    // Sometimes a plane exceeds the memory.
    let memory = Memory::zeroed(if source.below(30) == 0 { end / 2 } else { end });
    memory.lease_write()?.bytes_mut().fill_with(|| source.random() as u8);
    let colorimetry = Colorimetry {
        matrix: pick(source, &[ColorMatrix::Bt601, ColorMatrix::Bt709, ColorMatrix::Bt2020]),
        range: pick(source, &[ColorRange::Limited, ColorRange::Full]),
    };
    Frame::over(&memory, format, size, &places, colorimetry).map(Picture::Frame)
}

fn values(source: &mut Source<'_>) -> Result<Picture> {
    let layout = pick(source, &[InputLayout::Nchw, InputLayout::Nhwc]);
    let (n_channels, width, height) = (source.below(6), extent(source, 300) as usize, extent(source, 40) as usize);
    let shape = match layout {
        InputLayout::Nchw => [1, n_channels, height, width],
        InputLayout::Nhwc => [1, height, width, n_channels],
    };
    let tensor = Tensor::new(pick(source, &[ElementType::U8, ElementType::F32, ElementType::I32]), shape)?;
    match tensor.element() {
        ElementType::F32 => tensor.view_mut::<f32>()?.iter_mut().for_each(|value| *value = source.value()),
        _ => tensor.bytes_mut()?.extent_mut().fill_with(|| source.random() as u8),
    }
    Ok(Picture::Values(tensor, layout))
}

fn way(source: &mut Source<'_>) -> Way {
    let mut crop =
        Crop { margin: pick(source, &[0.0, 0.1, 10.0]), square: source.below(2) == 0, align: Vec::new(), rotated: false, turned_by: None };
    match source.below(4) {
        0 => {
            let mut side = |limit: usize| source.below(limit) as u32;
            Way::Region(PixelRect { x: side(40), y: side(20), width: side(90), height: side(30) })
        }
        1 => {
            let n_points = 2 + source.below(5);
            let mut points = || -> Vec<Point> { (0..n_points).map(|_| Point { x: place(source), y: place(source) }).collect() };
            let keypoints = points();
            crop.align = points().into_iter().map(|point| Point { x: point.x / 50.0, y: point.y / 50.0 }).collect();
            Way::Along(crop, keypoints)
        }
        _ => Way::Box(crop, Rect { x: place(source), y: place(source), width: place(source) + 20.0, height: place(source) + 20.0 }),
    }
}
