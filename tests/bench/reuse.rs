//! Cost of result reuse: tracking, the result cache, and the motion gate.

use std::time::Instant;

use roiflow::frame::{Colorimetry, Detection, Frame, FrameResults, ObjectId, PixelFormat, PlanePlace, Rect, Size};
use roiflow::runtime::Result;
use roiflow::stages::{MotionGate, TrackOptions, Tracker};
use roiflow::tensor::Memory;

use crate::harness::Effort;
use crate::report::Report;
use crate::{allocator, budgets};

/// CPU caches cannot hold this number of frames. So no frame is in a cache when it is read, as with a frame from a decoder.
const N_FRAMES: usize = 24;

/// Distances of objects that are 50 pixels wide. Objects that overlap by a third of their union may hide each other, so the tracker compares
/// them.
const APART: f32 = 60.0;
const CROWDED: f32 = 25.0;

/// Measures the time and the allocations per frame.
pub fn reuse(effort: &Effort, report: &mut Report) -> Result<()> {
    for (n_objects, distance, budget_us) in [
        (4, APART, None),
        (20, APART, Some(budgets::TRACKING_20_US)),
        (20, CROWDED, Some(budgets::TRACKING_20_US)),
        (300, APART, Some(budgets::TRACKING_300_US)),
        (300, CROWDED, Some(budgets::TRACKING_300_US)),
    ] {
        let name = format!("tracking {n_objects} objects of a frame{}", if distance == CROWDED { " that overlap" } else { "" });
        let mut results: Vec<FrameResults> = (0..2).map(|step| objects(n_objects, distance, step as f32 * 2.0)).collect();
        let (mut tracker, mut n_names, mut n) = (Tracker::default(), 0, 0);
        let mut update = || {
            n += 1;
            let results = &mut results[n % 2];
            results.detections.iter_mut().for_each(|detection| detection.track = None);
            let new_name = || {
                n_names += 1;
                ObjectId(n_names)
            };
            tracker.update(results, &TrackOptions::default(), |_| true, new_name);
        };
        let values = time(effort, &mut update);
        let values: Vec<f64> = values.into_iter().map(|nanoseconds| nanoseconds / 1e3).collect();
        report.counted(&name, "us", &values, budget_us);
        let allocations = effort.count(100, |n_runs| allocator::of_this_thread(|| (0..n_runs).for_each(|_| update())).0);
        report.counted(&format!("{name}, allocations"), "", &allocations, Some(budgets::TRACKING_ALLOCATIONS));
    }
    for (format, size) in [
        (PixelFormat::Nv12, Size::new(640, 360)),
        (PixelFormat::Nv12, Size::new(1920, 1080)),
        (PixelFormat::Bgrx, Size::new(1920, 1080)),
        (PixelFormat::Nv12, Size::new(3840, 2160)),
    ] {
        let frames: Vec<Frame> = (0..N_FRAMES).map(|_| frame(format, size)).collect::<Result<_>>()?;
        let (mut gate, mut n) = (MotionGate::default(), 0);
        let values = time(effort, &mut || {
            n += 1;
            let passes = gate.passes(&frames[n % N_FRAMES], 0.01);
            assert!(passes.is_ok_and(|passes| !passes || n == 1));
        });
        report.counted(&format!("the motion gate on {format} {size}"), "ns", &values, None);
    }
    Ok(())
}

fn time(effort: &Effort, run: &mut dyn FnMut()) -> Vec<f64> {
    effort.count(2000, |n_runs| {
        let begin = Instant::now();
        (0..n_runs).for_each(|_| run());
        begin.elapsed().as_nanos() as usize
    })
}

/// Objects in rows of 20, all moved slightly to the right.
fn objects(n_objects: usize, distance: f32, x: f32) -> FrameResults {
    let detection = |n: usize| Detection {
        id: ObjectId(n as i32 + 1),
        track: None,
        track_state: None,
        parent: None,
        rect: Rect { x: x + (n % 20) as f32 * distance, y: (n / 20) as f32 * 60.0, width: 50.0, height: 50.0 },
        keypoints: vec![],
        confidence: 0.9,
        label_id: 0,
        label: Some("person".into()),
        classifications: Vec::new(),
    };
    FrameResults { size: Size::new(1920, 1080), detections: (0..n_objects).map(detection).collect(), ..FrameResults::default() }
}

fn frame(format: PixelFormat, size: Size) -> Result<Frame> {
    let (row, height) = (size.width as usize * format.pixel_bytes(), size.height as usize);
    let memory = Memory::zeroed(row * height * 3 / 2);
    memory.lease_write()?.bytes_mut().fill(90);
    let places: Vec<PlanePlace> =
        (0..format.n_planes()).map(|plane_idx| PlanePlace { offset_bytes: plane_idx * row * height, row_stride_bytes: row }).collect();
    Ok(Frame::over(&memory, format, size, &places, Colorimetry::default())?)
}
