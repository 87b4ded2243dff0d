//! Measures preprocessing, one implementation at a time. scripts/compare-fill forms pairs and prints the table.
//!
//! Reads lines `SIDE FORMAT WIDTH HEIGHT INPUT_WIDTH INPUT_HEIGHT BATCH N_RUNS`. Answers each line with the nanoseconds per run and the
//! mean of the values. A run preprocesses regions of a 1080p frame into a batch of f32 NCHW inputs: letterboxed if the region is the whole
//! frame, otherwise stretched. Sides are the SIMD backends of roiflow, `crates`, and `memory`: copying the minimum number of bytes that
//! must be read and written.

mod crates;

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::Instant;

use roiflow_tensor::{ElementType, Memory, Tensor};
use roiflow_vision::frame::{Colorimetry, Frame, PixelFormat, PixelRect, PlanePlace, Size};
use roiflow_vision::{Anchor, SimdBackend, Preprocess, Resize, Scratch};

type Error = Box<dyn std::error::Error>;

/// Size of the frame.
const WIDTH: usize = 1920;
const HEIGHT: usize = 1080;
/// Normalization of the values, per channel: `(pixel - mean) / scale`.
const MEAN: [f32; 3] = [123.675, 116.28, 103.53];
const SCALE: f32 = 58.0;

/// A preprocessing case.
struct Case {
    format: PixelFormat,
    region: Size,
    input: Size,
    n_rows: usize,
}

impl Case {
    /// Parses all words of a line except the first and last.
    fn parse(words: &[&str]) -> Result<Self, Error> {
        let &[format, width, height, input_width, input_height, n_rows] = words else {
            return Err(format!("expected SIDE FORMAT WIDTH HEIGHT INPUT_WIDTH INPUT_HEIGHT BATCH N_RUNS, got {words:?}").into());
        };
        Ok(Self {
            format: PixelFormat::from_name(format).ok_or(format!("`{format}` is no format"))?,
            region: Size::new(width.parse()?, height.parse()?),
            input: Size::new(input_width.parse()?, input_height.parse()?),
            n_rows: n_rows.parse()?,
        })
    }

    /// Regions have even coordinates, so that other implementations can crop them.
    fn rect(&self, row: usize) -> PixelRect {
        let Size { width, height } = self.region;
        let x = (row * 97) as u32 % (WIDTH as u32 - width + 1) / 2 * 2;
        let y = (row * 61) as u32 % (HEIGHT as u32 - height + 1) / 2 * 2;
        PixelRect { x, y, width, height }
    }

    fn is_letterboxed(&self) -> bool {
        self.region == Size::new(WIDTH as u32, HEIGHT as u32)
    }

    /// Returns the part of the input that shows the image.
    fn scaled(&self) -> Size {
        let height = if self.is_letterboxed() { self.input.width * self.region.height / self.region.width } else { self.input.height };
        Size::new(self.input.width, height)
    }

    /// Returns the number of values of a batch.
    fn n_values(&self) -> usize {
        self.n_rows * 3 * (self.input.width * self.input.height) as usize
    }

    /// Minimum number of bytes to read and write for a batch: at most two source rows per input row, and every value once.
    fn n_bytes_min(&self) -> usize {
        let n_source_rows = self.region.height.min(2 * self.scaled().height) as usize;
        let row_bytes = self.region.width as usize * self.format.pixel_bytes();
        let read = n_source_rows * if self.format.is_subsampled() { row_bytes * 3 / 2 } else { row_bytes };
        self.n_rows * read + 4 * self.n_values()
    }
}

fn main() -> Result<(), Error> {
    let mut frames: Vec<(PixelFormat, Vec<u8>, Frame)> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [side, case @ .., n_runs] = words.as_slice() else { continue };
        let (case, n_runs) = (Case::parse(case)?, n_runs.parse()?);
        let frame_idx = match frames.iter().position(|(format, ..)| *format == case.format) {
            Some(frame_idx) => frame_idx,
            None => {
                let bytes = frame_bytes(case.format);
                let frame = frame_over(case.format, &bytes)?;
                frames.push((case.format, bytes, frame));
                frames.len() - 1
            }
        };
        let (_, bytes, frame) = &frames[frame_idx];
        let (ns, mean) = match *side {
            "crates" => crates::time(&case, bytes, n_runs)?,
            "memory" => time_memory(&case, n_runs),
            "portable" => time(&case, frame, SimdBackend::Portable, n_runs)?,
            "avx2" => time(&case, frame, SimdBackend::Avx2, n_runs)?,
            "avx512" => time(&case, frame, SimdBackend::Avx512, n_runs)?,
            _ => return Err(format!("there is no side `{side}`").into()),
        };
        println!("{ns:.1} {mean:.6}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Nanoseconds per run, and the mean of the values; 0 and 0 if the processor does not support the backend.
fn time(case: &Case, frame: &Frame, instructions: SimdBackend, n_runs: usize) -> Result<(f64, f64), Error> {
    let Some(mut scratch) = Scratch::with_simd_backend(instructions) else { return Ok((0.0, 0.0)) };
    let resize = if case.is_letterboxed() { Resize::Letterbox { anchor: Anchor::Center } } else { Resize::Stretch };
    let preprocess = Preprocess { resize, mean: MEAN, scale: [SCALE; 3], ..Preprocess::default() };
    let input = Tensor::new(ElementType::F32, [case.n_rows, 3, case.input.height as usize, case.input.width as usize])?;
    let regions = (0..case.n_rows).map(|row| frame.region(case.rect(row))).collect::<Result<Vec<Frame>, _>>()?;
    let mut bytes = input.bytes_mut()?;
    let mut run = || -> Result<(), Error> {
        for (row, region) in regions.iter().enumerate() {
            black_box(preprocess.fill(black_box(region), &mut bytes, row, &mut scratch)?);
        }
        Ok(())
    };
    run()?;
    let begin = Instant::now();
    for _ in 0..n_runs {
        run()?;
    }
    let ns = begin.elapsed().as_nanos() as f64 / n_runs as f64;
    drop(bytes);
    Ok((ns, mean(input.bytes()?.dense()?)))
}

/// Copies half of the minimum number of bytes of the case. The bytes that are read and the bytes that are written then add up to this
/// minimum number.
fn time_memory(case: &Case, n_runs: usize) -> (f64, f64) {
    let n_bytes = case.n_bytes_min() / 2;
    let (source, mut target) = (vec![7_u8; n_bytes], vec![0_u8; n_bytes]);
    target.copy_from_slice(&source);
    let begin = Instant::now();
    for _ in 0..n_runs {
        target.copy_from_slice(black_box(&source));
        black_box(&mut target);
    }
    (begin.elapsed().as_nanos() as f64 / n_runs as f64, 0.0)
}

fn mean(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64
}

/// Returns an image with many colors, equal to that of scripts/compare-fill.
fn frame_bytes(format: PixelFormat) -> Vec<u8> {
    let n_bytes = if format.is_subsampled() { WIDTH * HEIGHT * 3 / 2 } else { WIDTH * HEIGHT * format.pixel_bytes() };
    (0..n_bytes).map(|idx| (idx * 31 / 7 + idx / WIDTH * 3) as u8).collect()
}

fn frame_over(format: PixelFormat, bytes: &[u8]) -> Result<Frame, Error> {
    let memory = Memory::zeroed(bytes.len());
    memory.lease_write()?.bytes_mut().copy_from_slice(bytes);
    let (size, luma_bytes) = (Size::new(WIDTH as u32, HEIGHT as u32), WIDTH * HEIGHT);
    let place = |offset_bytes, row_stride_bytes| PlanePlace { offset_bytes, row_stride_bytes };
    let places = match format {
        PixelFormat::Nv12 => vec![place(0, WIDTH), place(luma_bytes, WIDTH)],
        PixelFormat::I420 => vec![place(0, WIDTH), place(luma_bytes, WIDTH / 2), place(luma_bytes * 5 / 4, WIDTH / 2)],
        _ => vec![place(0, WIDTH * format.pixel_bytes())],
    };
    Ok(Frame::over(&memory, format, size, &places, Colorimetry::default())?)
}
