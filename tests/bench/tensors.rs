//! Measures the creation of tensor regions, and the gathering of several regions into a batch.

use std::hint::black_box;
use std::sync::Arc;

use roiflow::devices::null::{NullDevice, Script};
use roiflow::frame::{Colorimetry, Frame, PixelFormat, PixelRect, PlanePlace, Size};
use roiflow::runtime::{Config, Core, InferRequest, Model, ModelInfo, Port, Result};
use roiflow::tensor::{ElementType, Memory, Tensor};

use crate::budgets::ROI_NS;
use crate::harness::{Clock, Effort};
use crate::report::Report;

const WIDTH: usize = 1920;
const HEIGHT: usize = 1080;
/// Side length of a slice in pixels.
const EDGE: usize = 224;
/// Number of slices in a batch.
const N_SLICES: usize = 8;

/// The region of the frame that the benchmark uses.
const REGION: PixelRect = PixelRect { x: 301, y: 99, width: 300, height: 300 };

/// Measures the creation and the drop of a region.
pub fn regions(effort: &Effort, report: &mut Report) -> Result<()> {
    let (picture, frame) = (picture()?, frame()?);
    let none = |n_runs: usize| {
        for _ in 0..n_runs {
            black_box(());
        }
    };
    let pairs = effort.compare(none, |n_runs| {
        for _ in 0..n_runs {
            black_box(&picture.roi(&[0, 100, 200, 0], &[1, 324, 424, 3]));
        }
    });
    report.more_ns("an ROI tensor", &pairs, Clock::Wall, None);
    report.more_ns("an ROI tensor", &pairs, Clock::Cpu, Some(ROI_NS));
    let inner = region(&picture);
    let pairs = effort.compare(none, |n_runs| {
        for _ in 0..n_runs {
            black_box(&inner.roi(&[0, 10, 20, 0], &[1, 74, 84, 3]));
        }
    });
    report.more_ns("an ROI tensor of an ROI tensor", &pairs, Clock::Wall, None);
    report.more_ns("an ROI tensor of an ROI tensor", &pairs, Clock::Cpu, Some(ROI_NS));
    let pairs = effort.compare(none, |n_runs| {
        for _ in 0..n_runs {
            black_box(&frame.region(REGION));
        }
    });
    report.more_ns("a region of an NV12 frame, two planes", &pairs, Clock::Cpu, None);
    Ok(())
}

/// Compares a run on a batch of regions with copying the same number of bytes.
pub fn gather(effort: &Effort, report: &mut Report) -> Result<()> {
    let picture = picture()?;
    let (request, _) = batched(&picture)?;
    let (row_bytes, stride_bytes) = (EDGE * 3, WIDTH * 3);
    let pixels = vec![7_u8; HEIGHT * stride_bytes];
    let mut batch = vec![0_u8; N_SLICES * EDGE * row_bytes];
    let dense = vec![7_u8; batch.len()];
    let ours = |n_runs: usize| (0..n_runs).for_each(|_| request.infer(()).expect("it runs"));
    let pairs = effort.compare(
        |n_runs| {
            for _ in 0..n_runs {
                batch.copy_from_slice(black_box(&dense));
                black_box(&mut batch);
            }
        },
        ours,
    );
    report.ratio("a run on 8 ROI slices, against one memcpy", &pairs, Clock::Wall, None);
    let pairs = effort.compare(
        |n_runs| {
            for _ in 0..n_runs {
                for (row_idx, row) in batch.chunks_exact_mut(row_bytes).enumerate() {
                    let (slice_idx, row_idx) = (row_idx / EDGE, row_idx % EDGE);
                    let (y, x) = place(slice_idx);
                    row.copy_from_slice(&black_box(&pixels)[(y + row_idx) * stride_bytes + x * 3..][..row_bytes]);
                }
                black_box(&mut batch);
            }
        },
        ours,
    );
    report.ratio("a run on 8 ROI slices, against a memcpy of each row", &pairs, Clock::Wall, None);
    Ok(())
}

/// Returns an RGB image.
pub fn picture() -> Result<Tensor> {
    Ok(Tensor::new(ElementType::U8, [1, HEIGHT, WIDTH, 3])?)
}

pub fn region(picture: &Tensor) -> Tensor {
    picture.roi(&[0, 100, 200, 0], &[1, 100 + EDGE, 200 + EDGE, 3]).expect("it lies inside")
}

/// Returns an image in a video format.
pub fn frame() -> Result<Frame> {
    let memory = Memory::zeroed(WIDTH * HEIGHT * 3 / 2);
    let places =
        [PlanePlace { offset_bytes: 0, row_stride_bytes: WIDTH }, PlanePlace { offset_bytes: WIDTH * HEIGHT, row_stride_bytes: WIDTH }];
    Ok(Frame::over(&memory, PixelFormat::Nv12, Size::new(WIDTH as u32, HEIGHT as u32), &places, Colorimetry::default())?)
}

pub fn frame_region(frame: &Frame) -> Frame {
    frame.region(REGION).expect("it lies inside")
}

/// Returns slices of the image, and a request whose input is a batch of these slices. The model computes nothing.
pub fn batched(picture: &Tensor) -> Result<(InferRequest, Vec<Tensor>)> {
    let info = ModelInfo {
        inputs: vec![Port::new("pictures", ElementType::U8, [N_SLICES, EDGE, EDGE, 3])],
        outputs: vec![Port::new("scores", ElementType::F32, [N_SLICES, 4])],
        ..ModelInfo::default()
    };
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(Arc::new(Script::computing(|_io, _cancel| Ok(()))))));
    let request = core.compile_model(&Model::from_ports(info), "NULL", &Config::default())?.create_infer_request()?;
    let slices = (0..N_SLICES).map(|slice_idx| {
        let (y, x) = place(slice_idx);
        picture.roi(&[0, y, x, 0], &[1, y + EDGE, x + EDGE, 3])
    });
    let slices = slices.collect::<Result<Vec<Tensor>, _>>()?;
    request.set_tensors((), &slices)?;
    Ok((request, slices))
}

/// Returns the position of a slice: row and column.
fn place(slice_idx: usize) -> (usize, usize) {
    (slice_idx * 100, slice_idx * 200)
}
