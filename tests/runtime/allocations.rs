//! Memory allocations during preprocessing of a frame: their size must not grow with the frame or the region.
//!
//! The allocator of this test program counts allocations per thread. A synchronous run does all its work on the calling thread.

use std::sync::Arc;

use roiflow::devices::null::{NullDevice, Script};
use roiflow::frame::{Colorimetry, Detection, Frame, FrameResults, ObjectId, PixelFormat, PixelRect, PlanePlace, Rect, Size};
use roiflow::runtime::{Config, Core, Dim, Model, ModelInfo, Port};
use roiflow::stages::{TrackMethod, TrackOptions, Tracker, image_input};
use roiflow::tensor::{ElementType, Memory, Shape, Tensor};
use roiflow::vision::decode::{DecoderRegistry, Output, Results};
use roiflow::vision::{Preprocess, Rounding};

#[path = "../support/allocator.rs"]
mod allocator;

use allocator::of_this_thread as allocations;

fn frame_of(size: Size) -> Frame {
    let (width, height) = (size.width as usize, size.height as usize);
    let memory = Memory::zeroed(width * height * 3 / 2);
    let places =
        [PlanePlace { offset_bytes: 0, row_stride_bytes: width }, PlanePlace { offset_bytes: width * height, row_stride_bytes: width }];
    Frame::over(&memory, PixelFormat::Nv12, size, &places, Colorimetry::default()).unwrap()
}

#[test]
fn a_region_of_a_frame_is_made_without_allocating() {
    let frame = frame_of(Size::new(1920, 1080));
    let mut region = None;
    let made = allocations(|| region = Some(frame.region(PixelRect { x: 301, y: 99, width: 300, height: 300 })));
    assert_eq!(made, (0, 0));
    region.unwrap().unwrap();
}

#[test]
fn from_region_to_engine_no_allocation_exceeds_a_row_and_in_steady_state_there_is_none() {
    let port = |name: &str, shape: Shape| Port::new(name, ElementType::F32, shape);
    let info = ModelInfo {
        inputs: vec![port("picture", Shape::from([1, 3, 224, 224]))],
        outputs: vec![port("scores", Shape::from([1, 2]))],
        ..ModelInfo::default()
    };
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(Arc::new(Script::default()))));
    let request = core.compile_model(&Model::from_ports(info), "NULL", &Config::default()).unwrap().create_infer_request().unwrap();
    let frame = frame_of(Size::new(1920, 1080));
    let region = frame.region(PixelRect { x: 301, y: 99, width: 300, height: 300 }).unwrap();
    request.set_input((), image_input(region.clone())).unwrap();

    let (_, first) = allocations(|| request.infer(()).unwrap());
    let row_bytes = 300 * 4 * size_of::<f32>();
    assert!(first <= row_bytes, "the first run allocated {first} bytes at once: expected at most a row of the region, {row_bytes}");
    let steady = allocations(|| (0..10).for_each(|_| request.infer(()).unwrap()));
    assert_eq!(steady, (0, 0), "ten more runs allocate nothing at all");

    // With antialiasing, one output row depends on several of the 300 source rows, so a buffer of five rows is allowed.
    for rounding in [Rounding::Exact, Rounding::U8] {
        let preprocess = Preprocess { antialias: true, rounding, ..Preprocess::default() };
        request.set_input((), image_input(region.clone()).preprocess(preprocess)).unwrap();
        let (_, first) = allocations(|| request.infer(()).unwrap());
        assert!(first <= 5 * row_bytes, "{rounding:?}: the first run allocated {first} bytes at once: expected at most five rows");
        let steady = allocations(|| (0..10).for_each(|_| request.infer(()).unwrap()));
        assert_eq!(steady, (0, 0), "{rounding:?}");
    }
}

#[test]
fn decoding_allocates_nothing_once_there_were_as_many_boxes() {
    // These outputs are those of YuNet for an input of 64x32: grids of 32, 8 and 2 cells. Each cell contains a face with keypoints.
    let shapes = [32, 8, 2].into_iter().flat_map(|n_cells| [1, 1, 4, 10].map(|n_columns| [1, n_cells, n_columns]));
    let tensors: Vec<([usize; 3], Vec<f32>)> = shapes.map(|shape| (shape, vec![0.97; shape.iter().product()])).collect();
    let outputs: Vec<Output<'_>> = tensors.iter().map(|(shape, data)| Output { name: "y", shape, data }).collect();
    let decoder = DecoderRegistry::built_in().make_from_text("yunet", "").unwrap();
    let mut results = Results::default();
    let mut decode = || {
        results.clear();
        decoder.decode(&outputs, Size::new(64, 32), &mut results).unwrap();
        results.boxes.iter().map(|found| results.keypoints(found).len()).sum::<usize>()
    };
    let n_keypoints = decode();
    assert!(n_keypoints > 20, "{n_keypoints}");
    assert_eq!(allocations(|| (0..10).for_each(|_| assert_eq!(decode(), n_keypoints))), (0, 0));
}

#[test]
fn naming_the_objects_of_a_frame_allocates_nothing_once_there_were_as_many() {
    for method in [TrackMethod::Hybrid, TrackMethod::ByteTrack, TrackMethod::Sort, TrackMethod::Iou] {
        track_without_allocations(&TrackOptions { method, ..TrackOptions::default() });
    }
}

fn track_without_allocations(options: &TrackOptions) {
    let mut tracker = Tracker::default();
    let detection = |n: i32| Detection {
        id: ObjectId(n + 1),
        track: None,
        track_state: None,
        parent: None,
        rect: Rect { x: n as f32 * 60.0, y: 0.0, width: 50.0, height: 50.0 },
        keypoints: vec![],
        confidence: 0.9,
        label_id: 0,
        label: Some("person".into()),
        classifications: vec![],
    };
    let mut results = FrameResults { size: Size::new(1920, 1080), detections: (0..30).map(detection).collect(), ..FrameResults::default() };
    let mut n_names = 0;
    let mut update = |n: usize| {
        // The objects move, and one object is missing in every third frame.
        results.detections.iter_mut().for_each(|detection| (detection.track, detection.rect.y) = (None, n as f32));
        results.detections[0].rect.width = if n.is_multiple_of(3) { -1.0 } else { 50.0 };
        let new_name = || {
            n_names += 1;
            ObjectId(n_names)
        };
        tracker.update(&mut results, options, |_| true, new_name);
    };
    (0..6).for_each(&mut update);
    assert_eq!(allocations(|| (6..60).for_each(&mut update)), (0, 0), "{options:?}");
    assert_eq!(n_names, 30, "{options:?}");
}

/// The request uses the same list for the slices of every batch, so only the first run allocates memory.
#[test]
fn a_stream_of_batches_allocates_nothing() {
    let port = |name: &str| Port::new(name, ElementType::F32, [Dim::Dynamic, Dim::Fixed(4)]);
    let info = ModelInfo { inputs: vec![port("x")], outputs: vec![port("y")], ..ModelInfo::default() };
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::default()));
    let request = core.compile_model(&Model::from_ports(info), "NULL", &Config::default()).unwrap().create_infer_request().unwrap();
    let slices = [1.0_f32, 2.0, 3.0].map(|value| Tensor::from_slice([1, 4], &[value; 4]).unwrap());
    let run = || {
        request.set_tensors("x", &slices).unwrap();
        request.infer(()).unwrap();
    };
    run();
    assert_eq!(allocations(|| (0..10).for_each(|_| run())), (0, 0));
}
