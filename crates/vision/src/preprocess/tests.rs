//! Compares preprocessing with a slow reference implementation of its definition, on random cases and edge cases.

use super::*;
use crate::frame::{ColorMatrix, ColorRange, Colorimetry, PixelFormat, PixelRect, PlanePlace, Rect};
use crate::tensor::{Memory, Tensor};

/// A generator of pseudorandom numbers (xorshift64), which are equal on all platforms.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number in `low..=high`.
    fn range(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() >> 16) as u32 % (high - low + 1)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.range(0, of.len() as u32 - 1) as usize]
    }
}

/// A frame, and the bytes from which it was created.
struct Image {
    frame: Frame,
    bytes: Vec<u8>,
    places: Vec<PlanePlace>,
}

fn random_image(random: &mut Random, format: PixelFormat, size: Size, colorimetry: Colorimetry) -> Image {
    let mut places = Vec::new();
    let n = format.element().size();
    let mut end = random.range(0, 9) as usize * n;
    for plane_idx in 0..format.n_planes() {
        let shape = format.plane_shape(plane_idx, size);
        let row_stride_bytes = (shape[1] * shape.get(2).unwrap_or(&1) + random.range(0, 7) as usize) * n;
        places.push(PlanePlace { offset_bytes: end, row_stride_bytes });
        end += shape[0] * row_stride_bytes + random.range(0, 5) as usize * n;
    }
    let bytes: Vec<u8> = (0..end).map(|_| (random.next() >> 24) as u8).collect();
    let memory = Memory::zeroed(end);
    memory.lease_write().unwrap().bytes_mut().copy_from_slice(&bytes);
    let frame = Frame::over(&memory, format, size, &places, colorimetry).unwrap();
    Image { frame, bytes, places }
}

/// Computes red, green and blue of one pixel of the whole image, directly from the definition.
fn reference_color(image: &Image, x: usize, y: usize, round: bool, gray: bool) -> [f64; 3] {
    let byte = |plane: usize, row: usize, column: usize| {
        let place = image.places[plane];
        f64::from(image.bytes[place.offset_bytes + row * place.row_stride_bytes + column])
    };
    let format = image.frame.format();
    // Divide 10-bit samples by 4, so that they have the range of 8-bit samples. The results are multiples of 1/4.
    let sample = |plane: usize, row: usize, column: usize| match format {
        PixelFormat::P010 => (byte(plane, row, 2 * column) + 256.0 * byte(plane, row, 2 * column + 1)) / 256.0,
        PixelFormat::I420Ten | PixelFormat::I422Ten | PixelFormat::Y444Ten => {
            (byte(plane, row, 2 * column) + 256.0 * byte(plane, row, 2 * column + 1)) / 4.0
        }
        _ => byte(plane, row, column),
    };
    let full = if format.depth() == 10 { 1023.0 / 4.0 } else { 255.0 };
    let color = match format {
        PixelFormat::Gray8 => match image.frame.colorimetry().range {
            ColorRange::Limited => [((byte(0, y, x) - 16.0) / 219.0 * 255.0).clamp(0.0, 255.0); 3],
            ColorRange::Full => [byte(0, y, x); 3],
        },
        PixelFormat::Gbr | PixelFormat::Gbra => [2, 0, 1].map(|plane| byte(plane, y, x)),
        _ if format.rgb_offsets().is_none() => {
            let (luma, u, v) = match format {
                PixelFormat::Nv12 | PixelFormat::P010 => {
                    (sample(0, y, x), sample(1, y >> 1, 2 * (x >> 1)), sample(1, y >> 1, 2 * (x >> 1) + 1))
                }
                PixelFormat::Y42b | PixelFormat::I422Ten => (sample(0, y, x), sample(1, y, x >> 1), sample(2, y, x >> 1)),
                PixelFormat::Y444 | PixelFormat::Y444Ten => (sample(0, y, x), sample(1, y, x), sample(2, y, x)),
                PixelFormat::Yuy2 => (byte(0, y, 2 * x), byte(0, y, x / 2 * 4 + 1), byte(0, y, x / 2 * 4 + 3)),
                PixelFormat::Uyvy => (byte(0, y, 2 * x + 1), byte(0, y, x / 2 * 4), byte(0, y, x / 2 * 4 + 2)),
                PixelFormat::Ayuv => (byte(0, y, 4 * x + 1), byte(0, y, 4 * x + 2), byte(0, y, 4 * x + 3)),
                _ => (sample(0, y, x), sample(1, y >> 1, x >> 1), sample(2, y >> 1, x >> 1)),
            };
            let (kr, kb) = match image.frame.colorimetry().matrix {
                ColorMatrix::Bt601 => (0.299, 0.114),
                ColorMatrix::Bt709 => (0.2126, 0.0722),
                ColorMatrix::Bt2020 => (0.2627, 0.0593),
            };
            let (luma, cb, cr) = match image.frame.colorimetry().range {
                ColorRange::Limited => ((luma - 16.0) / 219.0, (u - 128.0) / 224.0, (v - 128.0) / 224.0),
                ColorRange::Full => (luma / full, (u - 128.0) / full, (v - 128.0) / full),
            };
            let (r, b) = (luma + 2.0 * (1.0 - kr) * cr, luma + 2.0 * (1.0 - kb) * cb);
            let g = (luma - kr * r - kb * b) / (1.0 - kr - kb);
            [r, g, b].map(|v| (v * 255.0).clamp(0.0, 255.0))
        }
        _ => {
            let n = format.pixel_bytes();
            format.rgb_offsets().unwrap().map(|offset| byte(0, y, x * n + offset))
        }
    };
    let round = |value: f64| if round { (value + 0.5).floor() } else { value };
    let color = color.map(round);
    if gray { [round(0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]); 3] } else { color }
}

/// Computes the value of one input pixel before encoding.
fn reference_value(preprocess: &Preprocess, image: &Image, rect: PixelRect, input: Size, at: (usize, usize, usize)) -> f64 {
    let (channel, y, x) = at;
    let rotation = preprocess.rotation;
    let turned = rotation.turned(rect.size());
    let (w, h) = (f64::from(turned.width), f64::from(turned.height));
    let (width, height) = (f64::from(input.width), f64::from(input.height));
    let (nw, nh, left, top) = match preprocess.resize {
        Resize::Stretch => (width, height, 0.0, 0.0),
        Resize::Letterbox { anchor: Anchor::TopLeft } => {
            let r = (width / w).min(height / h);
            ((w * r).floor().max(1.0), (h * r).floor().max(1.0), 0.0, 0.0)
        }
        Resize::Letterbox { anchor: Anchor::Center } => {
            let r = (width / w).min(height / h);
            let (nw, nh) = ((w * r).round_ties_even().max(1.0), (h * r).round_ties_even().max(1.0));
            (nw, nh, ((width - nw) / 2.0).floor(), ((height - nh) / 2.0).floor())
        }
        Resize::Crop => {
            let r = (width / w).max(height / h);
            let (nw, nh) = ((w * r).round_ties_even(), (h * r).round_ties_even());
            (nw, nh, -((nw - width) / 2.0).floor(), -((nh - height) / 2.0).floor())
        }
    };
    let (i, j) = (x as f64 - left, y as f64 - top);
    let round = preprocess.rounding == Rounding::U8;
    let pixel = if i < 0.0 || j < 0.0 || i >= nw || j >= nh {
        f64::from(preprocess.pad)
    } else {
        // Compute the position of the pixel in the unrotated image.
        let ((i, j), (w, h), (nw, nh)) = match rotation {
            Rotation::None => ((i, j), (w, h), (nw, nh)),
            Rotation::Clockwise => ((j, nw - 1.0 - i), (h, w), (nh, nw)),
            Rotation::Half => ((nw - 1.0 - i, nh - 1.0 - j), (w, h), (nw, nh)),
            Rotation::Counterclockwise => ((nh - 1.0 - j, i), (h, w), (nh, nw)),
        };
        let (sx, sy) = ((i + 0.5) * (w / nw) - 0.5, (j + 0.5) * (h / nh) - 0.5);
        let sample = |column: f64, row: f64| {
            let column = rect.x as usize + column.clamp(0.0, w - 1.0) as usize;
            let row = rect.y as usize + row.clamp(0.0, h - 1.0) as usize;
            let color = reference_color(image, column, row, round, preprocess.color == ChannelOrder::Gray);
            if preprocess.color == ChannelOrder::Bgr { color[2 - channel] } else { color[channel] }
        };
        let (fx, fy) = (sx - sx.floor(), sy - sy.floor());
        if preprocess.antialias {
            let (columns, rows) = (triangle(i, w / nw, w), triangle(j, h / nh, h));
            let interpolate = |taps: &[(f64, f64)], sample: &dyn Fn(f64) -> f64| {
                if round {
                    let sum: i64 = taps.iter().map(|(at, weight)| (weight * 4194304.0 + 0.5) as i64 * sample(*at) as i64).sum();
                    ((sum + 2097152) >> 22).clamp(0, 255) as f64
                } else {
                    taps.iter().map(|(at, weight)| weight * sample(*at)).sum()
                }
            };
            interpolate(&rows, &|row| interpolate(&columns, &|column| sample(column, row)))
        } else if round {
            // Weights have 11 fraction bits, and the sums of a row keep 7 of these bits. See `resize::InterpolateInteger`.
            let steps = |weight: f64| (weight * 2048.0).round_ties_even() as u64;
            let whole = |column: f64, row: f64| sample(column, row) as u64;
            let line = |row: f64| whole(sx.floor(), row) * (2048 - steps(fx)) + whole(sx.floor() + 1.0, row) * steps(fx);
            let term = |row: f64, steps: u64| ((line(row) >> 4) * steps) >> 16;
            ((term(sy.floor(), 2048 - steps(fy)) + term(sy.floor() + 1.0, steps(fy)) + 2) >> 2) as f64
        } else {
            let line = |row: f64| sample(sx.floor(), row) * (1.0 - fx) + sample(sx.floor() + 1.0, row) * fx;
            line(sy.floor()) * (1.0 - fy) + line(sy.floor() + 1.0) * fy
        }
    };
    (pixel - f64::from(preprocess.mean[channel])) / f64::from(preprocess.scale[channel])
}

/// Returns the source samples along one axis and their weights for one output pixel. `step` is the number of samples per output pixel.
fn triangle(pixel: f64, step: f64, extent: f64) -> Vec<(f64, f64)> {
    let (center, reach) = ((pixel + 0.5) * step, step.max(1.0));
    let weighted = (0..extent as u32).map(f64::from);
    let weighted = weighted.map(|idx| (idx, 1.0 - ((idx + 0.5 - center) / reach).abs())).filter(|(_, weight)| *weight > 0.0);
    let weighted: Vec<(f64, f64)> = weighted.collect();
    let sum: f64 = weighted.iter().map(|(_, weight)| weight).sum();
    weighted.into_iter().map(|(idx, weight)| (idx, weight / sum)).collect()
}

/// Reads the value at an index of a tensor of any element type.
fn stored_value(tensor: &Tensor, index: [usize; 4]) -> f64 {
    let bytes = tensor.bytes().unwrap();
    let offset: usize = index.iter().zip(bytes.layout().stride_bytes()).map(|(i, stride)| i * stride).sum();
    let cell = &bytes.extent()[offset..];
    match tensor.element() {
        ElementType::F32 => f64::from(f32::from_ne_bytes([cell[0], cell[1], cell[2], cell[3]])),
        ElementType::Bf16 => f64::from(f32::from_bits(u32::from(u16::from_ne_bytes([cell[0], cell[1]])) << 16)),
        ElementType::F16 => {
            let bits = u16::from_ne_bytes([cell[0], cell[1]]);
            // Convert a half to `f32`: move exponent and fraction, and change the exponent bias.
            let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13) * 2_f32.powi(112);
            f64::from(if bits & 0x8000 == 0 { magnitude } else { -magnitude })
        }
        ElementType::U8 => f64::from(cell[0]),
        ElementType::I8 => f64::from(cell[0] as i8),
        ElementType::I32 => f64::from(i32::from_ne_bytes([cell[0], cell[1], cell[2], cell[3]])),
        other => panic!("no image input has {other}"),
    }
}

fn input_shape(preprocess: &Preprocess, n_rows: usize, size: Size) -> [usize; 4] {
    let (channels, height, width) = (preprocess.color.n_channels(), size.height as usize, size.width as usize);
    match preprocess.layout {
        InputLayout::Nchw => [n_rows, channels, height, width],
        InputLayout::Nhwc => [n_rows, height, width, channels],
    }
}

/// Returns the maximum error due to quantized weights or factors, as a fraction of the value range.
fn step_off(preprocess: &Preprocess, format: PixelFormat) -> f64 {
    let has_steps = preprocess.rounding == Rounding::Exact && format.depth() == 8;
    if has_steps && !format.is_rgb() && format != PixelFormat::Gray8 {
        return 0.01 / 255.0;
    }
    let has_weights = has_steps && format.is_rgb() && preprocess.color != ChannelOrder::Gray;
    if has_weights { 0.5 / 16384.0 } else { 0.0 }
}

/// Preprocesses into batch item 1 of 3 and compares every value. Returns the number of values that differ by one rounding step.
fn check(
    preprocess: &Preprocess,
    image: &Image,
    rect: PixelRect,
    tensor: &Tensor,
    input: Size,
    scratch: &mut Scratch,
) -> Result<usize, String> {
    let region = image.frame.region(rect).unwrap();
    let mut bytes = tensor.bytes_mut().unwrap();
    bytes.extent_mut().fill(0x55);
    preprocess.fill(&region, &mut bytes, 1, scratch).unwrap();
    drop(bytes);
    let untouched = Tensor::new(tensor.element(), [1, 1, 1, 1]).unwrap();
    untouched.bytes_mut().unwrap().extent_mut().fill(0x55);
    let untouched = stored_value(&untouched, [0; 4]);
    let mut n_off = 0;
    for channel in 0..preprocess.color.n_channels() {
        for y in 0..input.height as usize {
            for x in 0..input.width as usize {
                let index = |row| match preprocess.layout {
                    InputLayout::Nchw => [row, channel, y, x],
                    InputLayout::Nhwc => [row, y, x, channel],
                };
                let expected = reference_value(preprocess, image, rect, input, (channel, y, x));
                let got = stored_value(tensor, index(1));
                // A rounded value may differ by one if the exact value is near the midpoint.
                let step = if preprocess.rounding == Rounding::U8 { 1.001 / f64::from(preprocess.scale[channel].abs()) } else { 0.0 };
                let range = 255.0 / f64::from(preprocess.scale[channel].abs());
                let off = range * (step_off(preprocess, image.frame.format()) + 1e-5);
                let (expected, fine, coarse) = match tensor.element() {
                    ElementType::U8 => ((expected + 0.5).floor().clamp(0.0, 255.0), 0.0, step.ceil().max(1.0)),
                    ElementType::I8 => ((expected + 0.5).floor().clamp(-128.0, 127.0), 0.0, step.ceil().max(1.0)),
                    ElementType::I32 => ((expected + 0.5).floor(), 0.0, step.ceil().max(1.0)),
                    ElementType::F16 => (expected, off + expected.abs().max(got.abs()) / 2048.0, step),
                    ElementType::Bf16 => (expected, off + expected.abs().max(got.abs()) / 256.0, step),
                    _ => (expected, off, step),
                };
                let difference = (got - expected).abs();
                if difference > fine + coarse {
                    return Err(format!("channel {channel}, y {y}, x {x}: expected {expected}, got {got}"));
                }
                n_off += usize::from(difference > fine);
                for row in [0, 2] {
                    if stored_value(tensor, index(row)) != untouched {
                        return Err(format!("row {row} was written"));
                    }
                }
            }
        }
    }
    Ok(n_off)
}

#[test]
fn random_regions_match_the_reference() {
    let seed = std::env::var("ROIFLOW_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
    eprintln!("seed {seed}");
    let mut random = Random(seed | 1);
    let mut scratch = Scratch::default();
    let (mut n_off, mut n_values) = (0, 0);
    let elements =
        [ElementType::F32, ElementType::F32, ElementType::F16, ElementType::Bf16, ElementType::U8, ElementType::I8, ElementType::I32];
    for case_idx in 0..3000 {
        let format = PixelFormat::ALL[case_idx % PixelFormat::ALL.len()];
        let size = Size::new(random.range(1, 40), random.range(1, 24));
        let colorimetry = Colorimetry {
            matrix: random.pick(&[ColorMatrix::Bt601, ColorMatrix::Bt709, ColorMatrix::Bt2020]),
            range: random.pick(&[ColorRange::Limited, ColorRange::Full]),
        };
        let image = random_image(&mut random, format, size, colorimetry);
        let (x, y) = (random.range(0, size.width - 1), random.range(0, size.height - 1));
        let rect = PixelRect { x, y, width: random.range(1, size.width - x), height: random.range(1, size.height - y) };
        let preprocess = Preprocess {
            color: random.pick(&[ChannelOrder::Rgb, ChannelOrder::Bgr, ChannelOrder::Gray]),
            layout: random.pick(&[InputLayout::Nchw, InputLayout::Nhwc]),
            resize: random.pick(&[
                Resize::Stretch,
                Resize::Letterbox { anchor: Anchor::TopLeft },
                Resize::Letterbox { anchor: Anchor::Center },
                Resize::Crop,
            ]),
            rotation: random.pick(&[Rotation::None, Rotation::None, Rotation::Clockwise, Rotation::Half, Rotation::Counterclockwise]),
            pad: random.range(0, 255) as f32,
            mean: random.pick(&[[0.0; 3], [127.0; 3], [103.53, 116.28, 123.675]]),
            scale: random.pick(&[[1.0; 3], [255.0; 3], [57.375, 57.12, 58.395]]),
            rounding: random.pick(&[Rounding::Exact, Rounding::U8]),
            antialias: random.range(0, 1) == 1,
        };
        let input = Size::new(random.range(1, 20), random.range(1, 20));
        let shape = input_shape(&preprocess, 3, input);
        let mut tensor = Tensor::new(random.pick(&elements), shape).unwrap();
        if random.range(0, 3) == 0 {
            let outer = Tensor::new(tensor.element(), shape.map(|extent| extent + 2)).unwrap();
            tensor = outer.roi(&[1, 1, 2, 0], &[1 + shape[0], 1 + shape[1], 2 + shape[2], shape[3]]).unwrap();
        }
        match check(&preprocess, &image, rect, &tensor, input, &mut scratch) {
            Ok(n) => n_off += n,
            Err(difference) => {
                panic!("seed {seed}, case {case_idx}: {format} {size} {rect} -> {tensor:?}, {preprocess:?}, {colorimetry:?}: {difference}")
            }
        }
        n_values += tensor.layout().n_elements() / 3;
    }
    // Values near a rounding midpoint are rare.
    assert!(n_off * 200 < n_values, "seed {seed}: {n_off} of {n_values} values are a step off");
    eprintln!("{n_off} of {n_values} values a step off");
}

#[test]
fn image_of_input_size_is_unchanged() {
    let bytes: Vec<u8> = (0..2 * 3 * 3).map(|value| value * 14).collect();
    let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(3, 2), &bytes).unwrap();
    let preprocess = Preprocess { layout: InputLayout::Nhwc, ..Default::default() };
    let tensor = Tensor::new(ElementType::U8, [1, 2, 3, 3]).unwrap();
    let transform = preprocess.fill(&frame, &mut tensor.bytes_mut().unwrap(), 0, &mut Scratch::default()).unwrap();
    assert_eq!(tensor.view::<u8>().unwrap().to_vec(), bytes);
    assert_eq!(transform, Transform::IDENTITY);
}

#[test]
fn channels_are_ordered_and_normalized_as_configured() {
    let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(2, 1), &[10, 20, 30, 40, 50, 60]).unwrap();
    let preprocess = Preprocess { color: ChannelOrder::Bgr, mean: [1.0, 2.0, 3.0], scale: [1.0, 2.0, 4.0], ..Default::default() };
    let tensor = Tensor::new(ElementType::F32, [1, 3, 1, 2]).unwrap();
    preprocess.fill(&frame, &mut tensor.bytes_mut().unwrap(), 0, &mut Scratch::default()).unwrap();
    assert_eq!(tensor.view::<f32>().unwrap().to_vec(), [29.0, 59.0, 9.0, 24.0, 1.75, 9.25]);
}

#[test]
fn pixels_outside_the_region_have_no_effect() {
    let size = Size::new(9, 7);
    let rect = PixelRect { x: 3, y: 2, width: 3, height: 3 };
    let bytes: Vec<u8> = (0..63).map(|i| if (3..6).contains(&(i % 9)) && (2..5).contains(&(i / 9)) { 100 } else { 255 }).collect();
    let frame = Frame::from_packed(PixelFormat::Gray8, size, &bytes).unwrap().region(rect).unwrap();
    let tensor = Tensor::new(ElementType::U8, [1, 1, 16, 16]).unwrap();
    for resize in [Resize::Stretch, Resize::Crop, Resize::Letterbox { anchor: Anchor::Center }] {
        let preprocess = Preprocess { color: ChannelOrder::Gray, resize, ..Default::default() };
        preprocess.fill(&frame, &mut tensor.bytes_mut().unwrap(), 0, &mut Scratch::default()).unwrap();
        assert!(tensor.view::<u8>().unwrap().iter().all(|&value| value == 100), "{resize:?}");
    }
}

#[test]
fn boxes_map_from_input_to_image() {
    let frame = Frame::from_packed(PixelFormat::Gray8, Size::new(8, 4), &[0; 32]).unwrap();
    let preprocess = Preprocess { color: ChannelOrder::Gray, resize: Resize::Letterbox { anchor: Anchor::Center }, ..Default::default() };
    let tensor = Tensor::new(ElementType::F32, [1, 1, 16, 16]).unwrap();
    let frame_from_input = preprocess.fill(&frame, &mut tensor.bytes_mut().unwrap(), 0, &mut Scratch::default()).unwrap();
    let in_input = Rect { x: 2.0, y: 6.0, width: 4.0, height: 2.0 };
    assert_eq!(frame_from_input.apply(in_input), Rect { x: 1.0, y: 1.0, width: 2.0, height: 1.0 });
}

/// The expected result comes from an image that the test rotates pixel by pixel before preprocessing.
#[test]
fn rotation_equals_preprocessing_a_rotated_image() {
    let (width, height) = (13_u32, 7_u32);
    let bytes: Vec<u8> = (0..width * height * 3).map(|idx| (idx * 7919 % 251) as u8).collect();
    let pixel = |x: u32, y: u32| &bytes[((y * width + x) * 3) as usize..][..3];
    let frame = Frame::from_packed(PixelFormat::Rgb, Size::new(width, height), &bytes).unwrap();
    for rotation in [Rotation::None, Rotation::Clockwise, Rotation::Half, Rotation::Counterclockwise] {
        let size = rotation.turned(frame.size());
        let mut turned = Vec::new();
        for (y, x) in (0..size.height).flat_map(|y| (0..size.width).map(move |x| (y, x))) {
            turned.extend(match rotation {
                Rotation::None => pixel(x, y),
                Rotation::Clockwise => pixel(y, height - 1 - x),
                Rotation::Half => pixel(width - 1 - x, height - 1 - y),
                Rotation::Counterclockwise => pixel(width - 1 - y, x),
            });
        }
        let turned = Frame::from_packed(PixelFormat::Rgb, size, &turned).unwrap();
        for resize in
            [Resize::Stretch, Resize::Crop, Resize::Letterbox { anchor: Anchor::TopLeft }, Resize::Letterbox { anchor: Anchor::Center }]
        {
            for (layout, antialias) in [(InputLayout::Nchw, false), (InputLayout::Nhwc, true)] {
                let before = Preprocess { resize, layout, antialias, ..Default::default() };
                let shape = input_shape(&before, 1, Size::new(9, 6));
                let fill = |preprocess: &Preprocess, frame: &Frame| {
                    let tensor = Tensor::new(ElementType::F32, shape).unwrap();
                    let way = preprocess.fill(frame, &mut tensor.bytes_mut().unwrap(), 0, &mut Scratch::default()).unwrap();
                    (tensor.view::<f32>().unwrap().to_vec(), way)
                };
                let (expected, turned_from_input) = fill(&before, &turned);
                let (got, frame_from_input) = fill(&Preprocess { rotation, ..before }, &frame);
                let worst = got.iter().zip(&expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
                // The implementation rounds the horizontal weights. In the rotated image, these are the weights of the other
                // axis.
                assert!(worst < 255.0 / 32768.0 + 1e-3, "{rotation:?}, {resize:?}: {worst}");
                // A box corner in the rotated image maps to a corner in the frame.
                let in_turned = turned_from_input.apply(Rect { x: 1.0, y: 2.0, width: 3.0, height: 1.5 });
                let (w, h) = (width as f32, height as f32);
                let expected = match rotation {
                    Rotation::None => in_turned,
                    Rotation::Clockwise => Rect::from_corners(in_turned.y, h - in_turned.x_max(), in_turned.y_max(), h - in_turned.x),
                    Rotation::Half => Rect::from_corners(w - in_turned.x_max(), h - in_turned.y_max(), w - in_turned.x, h - in_turned.y),
                    Rotation::Counterclockwise => {
                        Rect::from_corners(w - in_turned.y_max(), in_turned.x, w - in_turned.y, in_turned.x_max())
                    }
                };
                let got = frame_from_input.apply(Rect { x: 1.0, y: 2.0, width: 3.0, height: 1.5 });
                let sides = |rect: Rect| [rect.x, rect.y, rect.width, rect.height];
                assert!(
                    sides(got).iter().zip(sides(expected)).all(|(got, expected)| (got - expected).abs() < 1e-4),
                    "{rotation:?}: {got:?} {expected:?}"
                );
            }
        }
    }
}

#[test]
fn very_large_image_fits_a_small_input() {
    let size = Size::new(7680, 4320);
    let mut random = Random(7);
    let image = random_image(&mut random, PixelFormat::Nv12, size, Colorimetry::default());
    let preprocess = Preprocess::default();
    let tensor = Tensor::new(ElementType::F32, [3, 3, 9, 16]).unwrap();
    assert_eq!(check(&preprocess, &image, PixelRect::whole(size), &tensor, Size::new(16, 9), &mut Scratch::default()), Ok(0));
}

#[test]
fn invalid_inputs_are_errors_with_expected_and_actual_values() {
    #[derive(Debug)]
    struct Case(InputLayout, ChannelOrder, &'static [usize], Result<(u32, u32), &'static str>);
    let cases = [
        Case(InputLayout::Nchw, ChannelOrder::Rgb, &[1, 3, 240, 320], Ok((320, 240))),
        Case(InputLayout::Nhwc, ChannelOrder::Bgr, &[4, 240, 320, 3], Ok((320, 240))),
        Case(InputLayout::Nhwc, ChannelOrder::Gray, &[1, 64, 48, 1], Ok((48, 64))),
        Case(InputLayout::Nchw, ChannelOrder::Rgb, &[1, 240, 320, 3], Err("[N, C, H, W]")),
        Case(InputLayout::Nhwc, ChannelOrder::Rgb, &[1, 3, 240, 320], Err("[N, H, W, C]")),
        Case(InputLayout::Nchw, ChannelOrder::Gray, &[1, 3, 8, 8], Err("C = 1")),
        Case(InputLayout::Nchw, ChannelOrder::Rgb, &[3, 8, 8], Err("[3, 8, 8]")),
        Case(InputLayout::Nchw, ChannelOrder::Rgb, &[1, 3, 0, 8], Err("[1, 3, 0, 8]")),
    ];
    for case in cases {
        let preprocess = Preprocess { layout: case.0, color: case.1, ..Default::default() };
        match (preprocess.input_size(case.2), &case.3) {
            (Ok(size), Ok(expected)) => assert_eq!((size.width, size.height), *expected, "{case:?}"),
            (Err(error), Err(part)) => assert!(error.kind() == ErrorKind::Shape && error.to_string().contains(part), "{case:?}: {error}"),
            (got, _) => panic!("{case:?}: {got:?}"),
        }
    }
    let frame = Frame::from_packed(PixelFormat::Gray8, Size::new(1, 1), &[0]).unwrap();
    let fill = |preprocess: &Preprocess, element, row| {
        let tensor = Tensor::new(element, [2, 3, 4, 4]).unwrap();
        preprocess.fill(&frame, &mut tensor.bytes_mut().unwrap(), row, &mut Scratch::default()).map_err(|error| error.kind())
    };
    assert_eq!(fill(&Preprocess::default(), ElementType::F32, 2), Err(ErrorKind::Shape));
    assert_eq!(fill(&Preprocess::default(), ElementType::I64, 0), Err(ErrorKind::ElementType));
    assert_eq!(fill(&Preprocess { scale: [1.0, 0.0, 1.0], ..Default::default() }, ElementType::F32, 0), Err(ErrorKind::Unsupported));
}
