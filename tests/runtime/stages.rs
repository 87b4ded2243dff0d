//! Detectors and classifiers on models with known results. Covers all pixel formats, and checks that each job is delivered exactly once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use roiflow::frame::{Colorimetry, Detection, Frame, ObjectId, Outcome, PixelFormat, PixelRect, PlanePlace, Rect, Size};
use roiflow::runtime::ErrorKind;
use roiflow::stages::{Region, RunGuard, Scheduling, Stage, StageOptions, StageResults};
use roiflow::tensor::Memory;

use crate::support::{Scratch, in_time, is_here, tiny};

const BLACK: [u8; 3] = [0, 0, 0];
const WHITE: [u8; 3] = [255, 255, 255];
const COLORS: [(&str, [u8; 3]); 3] = [("red", [255, 0, 0]), ("green", [0, 255, 0]), ("blue", [0, 0, 255])];

fn options(model: &str) -> StageOptions {
    StageOptions { model: tiny(model), ..StageOptions::default() }
}

fn detector(model: &str) -> Stage {
    Stage::detector(&options(model)).unwrap()
}

/// Returns an image with a rectangle of another color. The rows of the image have padding, and all planes are in one block of memory.
fn paint(format: PixelFormat, size: Size, background: [u8; 3], rect: PixelRect, color: [u8; 3]) -> (Arc<Memory>, Frame) {
    let sample_bytes = format.element().size();
    let row_bytes = |plane_idx: usize| (format.plane_shape(plane_idx, size).iter().skip(1).product::<usize>() + 5) * sample_bytes;
    let mut places = Vec::new();
    let mut n_bytes = 3 * sample_bytes;
    for plane_idx in 0..format.n_planes() {
        places.push(PlanePlace { offset_bytes: n_bytes, row_stride_bytes: row_bytes(plane_idx) });
        n_bytes += row_bytes(plane_idx) * format.plane_shape(plane_idx, size)[0];
    }
    let memory = Memory::zeroed(n_bytes);
    let mut lease = memory.lease_write().unwrap();
    let bytes = lease.bytes_mut();
    for y in 0..size.height {
        for x in 0..size.width {
            let inside = (rect.x..rect.x + rect.width).contains(&x) && (rect.y..rect.y + rect.height).contains(&y);
            let [r, g, b] = if inside { color } else { background };
            let (luma, u, v) = yuv([r, g, b]);
            let values = if format.is_rgb() { [r, g, b] } else { [luma, u, v] };
            for (place, value) in format.components().iter().zip(values).take(if format == PixelFormat::Gray8 { 1 } else { 3 }) {
                let (of_width, of_height) = place.n_pixels;
                // A chroma sample has the color of the rectangle if the rectangle covers a part of it.
                if !inside && (x as usize % of_width, y as usize % of_height) != (0, 0) {
                    continue;
                }
                let sample = match format.depth() {
                    8 => vec![value],
                    _ => ((4 * u16::from(value)) << format.n_low_bits()).to_le_bytes().to_vec(),
                };
                let plane: PlanePlace = places[place.plane_idx];
                let row = plane.offset_bytes + y as usize / of_height * plane.row_stride_bytes;
                bytes[row + place.offset_bytes + x as usize / of_width * place.stride_bytes..][..sample.len()].copy_from_slice(&sample);
            }
        }
    }
    drop(lease);
    let frame = Frame::over(&memory, format, size, &places, Colorimetry::default()).unwrap();
    (memory, frame)
}

/// Converts a color to YUV with BT.601 in limited range.
fn yuv([r, g, b]: [u8; 3]) -> (u8, u8, u8) {
    let [r, g, b] = [r, g, b].map(|value| f64::from(value) / 255.0);
    let luma = 0.299 * r + 0.587 * g + 0.114 * b;
    let (u, v) = ((b - luma) / 1.772, (r - luma) / 1.402);
    ((16.0 + 219.0 * luma).round() as u8, (128.0 + 224.0 * u).round() as u8, (128.0 + 224.0 * v).round() as u8)
}

/// Returns the expected box of a rectangle with its own color. If the chroma planes are subsampled, the color extends to the edges of the
/// chroma samples.
fn expected_rect(format: PixelFormat, rect: PixelRect) -> Option<Rect> {
    let (x_end, y_end) = (rect.x + rect.width, rect.y + rect.height);
    match format {
        PixelFormat::Gray8 => None,
        _ => {
            let (of_width, of_height) = format.chroma_pixels();
            let begin = |begin: u32, pixels: usize| (begin - begin % pixels as u32) as f32;
            let end = |end: u32, pixels: usize| end.next_multiple_of(pixels as u32) as f32;
            let (x, y) = (begin(rect.x, of_width), begin(rect.y, of_height));
            Some(Rect::from_corners(x, y, end(x_end, of_width), end(y_end, of_height)))
        }
    }
}

fn label(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Label { label: Some(label), .. } => label,
        other => panic!("no label: {other:?}"),
    }
}

#[test]
fn colored_rectangle_is_detected_and_classified_in_every_format() {
    let (detector, classifier) = (detector("rectangle.onnx"), Stage::classifier(&options("color.onnx")).unwrap());
    let rects = [[0, 0, 64, 64], [10, 20, 30, 12], [7, 3, 11, 21], [1, 63, 1, 1], [62, 0, 2, 63], [33, 31, 4, 5]];
    let mut failures = Vec::new();
    for format in PixelFormat::ALL {
        for [x, y, width, height] in rects {
            // The input has 64 x 64 pixels: unscaled, and scaled by two integer factors.
            for (factor_x, factor_y) in [(1, 1), (2, 3)] {
                let rect = PixelRect { x: x * factor_x, y: y * factor_y, width: width * factor_x, height: height * factor_y };
                if format.chroma_pixels().0 > 1 && factor_x > 1 && (rect.y % 6, rect.height % 6) != (0, 0) {
                    continue; // A chroma sample would end inside an input pixel.
                }
                let size = Size::new(64 * factor_x, 64 * factor_y);
                for (name, color) in COLORS {
                    let (_memory, frame) = paint(format, size, BLACK, rect, color);
                    let found = detector.detect(&frame).unwrap();
                    let places: Vec<Rect> = found.iter().map(|detection| detection.rect).collect();
                    if places != Vec::from_iter(expected_rect(format, rect)) {
                        failures.push(format!("{name} {rect} in {size} {format}: found {places:?}"));
                    }
                    for Detection { rect, confidence, label: found, .. } in found {
                        assert_eq!((confidence, found.as_deref()), (1.0, Some("rectangle")));
                        let region = frame.region(rect.to_pixels(frame.size()).unwrap()).unwrap();
                        let classification = classifier.classify(&region).unwrap().remove(0);
                        assert_eq!((&*classification.name, &*classification.model), ("color", "color"));
                        if label(&classification.outcome) != name {
                            failures.push(format!("{name} {rect:?} in {size} {format}: named {:?}", classification.outcome));
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn region_planes_are_inside_the_memory_of_the_frame() {
    for format in PixelFormat::ALL {
        let size = Size::new(33, 17);
        let (memory, frame) = paint(format, size, BLACK, PixelRect::whole(size), WHITE);
        let n_shares = Arc::strong_count(&memory);
        let region = frame.region(PixelRect { x: 5, y: 3, width: 27, height: 14 }).unwrap();
        let begin = memory.address() as usize;
        for plane in region.planes() {
            let (first, layout) = (plane.address() as usize, plane.layout());
            assert!(first >= begin && first + layout.extent_bytes() <= begin + memory.len(), "{format}");
        }
        assert_eq!(Arc::strong_count(&memory), n_shares + format.n_planes(), "{format}: the region shares the memory");
    }
}

#[test]
fn white_image_has_three_hundred_objects_and_black_none() {
    let detector = detector("stripes.onnx");
    let size = Size::new(80, 60);
    let detect = |rect, color| {
        let (_memory, frame) = paint(PixelFormat::Rgb, size, BLACK, rect, color);
        detector.detect(&frame).unwrap()
    };
    let found = detect(PixelRect::whole(size), WHITE);
    assert_eq!(found.len(), 300);
    let mut cells: Vec<(u32, u32)> = found.iter().map(|found| (found.rect.x.round() as u32, found.rect.y.round() as u32)).collect();
    cells.sort_unstable();
    cells.dedup();
    assert_eq!(cells.len(), 300, "two detections have the same cell");
    let mut ids: Vec<ObjectId> = found.iter().map(|found| found.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 300, "two detections have the same ID");
    assert!(found.iter().all(|found| (found.rect.width - 4.0).abs() < 1e-3 && (found.rect.height - 4.0).abs() < 1e-3));
    assert_eq!(detect(PixelRect::whole(size), BLACK).len(), 0);
    assert_eq!(detect(PixelRect { x: 0, y: 0, width: 40, height: 60 }, WHITE).len(), 150);
    let one = detect(PixelRect { x: 76, y: 56, width: 4, height: 4 }, WHITE);
    assert_eq!(one.len(), 1);
    assert!(one[0].rect.iou(&Rect::from_corners(76.0, 56.0, 80.0, 60.0)) > 0.9999, "{:?}", one[0].rect);
}

#[test]
fn caller_threshold_replaces_that_of_the_description() {
    let size = Size::new(80, 60);
    let (_memory, frame) = paint(PixelFormat::Rgb, size, BLACK, PixelRect::whole(size), [153; 3]);
    for (threshold, n_expected) in [(None, 300), (Some(0.59), 300), (Some(0.61), 0)] {
        let detector = Stage::detector(&StageOptions { threshold, ..options("stripes.onnx") }).unwrap();
        assert_eq!(detector.detect(&frame).unwrap().len(), n_expected, "{threshold:?}");
    }
}

/// The border is brighter than the image, so the model detects objects in the border. These objects cover no pixels of the frame.
#[test]
fn boxes_outside_the_frame_are_reported_without_pixels() {
    let scratch = Scratch::new("letterbox");
    let text = std::fs::read_to_string(tiny("stripes.toml")).unwrap();
    let text = text.replace("resize = \"stretch\"", "resize = \"letterbox\"\npad = 255.0");
    let description = Some(scratch.file("letterbox.toml", text));
    let detector = Stage::detector(&StageOptions { description, ..options("stripes.onnx") }).unwrap();
    let classifier = Stage::classifier(&options("color.onnx")).unwrap();
    let size = Size::new(80, 20);
    let (_memory, frame) = paint(PixelFormat::Nv12, size, BLACK, PixelRect { x: 0, y: 0, width: 4, height: 4 }, WHITE);
    let found = detector.detect(&frame).unwrap();
    assert_eq!(found.len(), 201, "ten rows of border, and one cell of the image");
    let pixels: Vec<PixelRect> = found.iter().filter_map(|found| found.rect.to_pixels(size)).collect();
    assert_eq!(pixels, [PixelRect { x: 0, y: 0, width: 4, height: 4 }]);
    let (sender, receiver) = mpsc::channel();
    let outside = PixelRect { x: 80, y: 10, width: 4, height: 4 };
    let regions = [(ObjectId::next(), outside), (ObjectId::next(), pixels[0]), (ObjectId::next(), PixelRect::default())];
    classifier.submit_regions(frame, 0, regions, RunGuard::now(), move |classified| sender.send(classified).unwrap());
    let classified = receiver.recv().unwrap();
    let (error, n_failed) = classified.failed.unwrap();
    assert_eq!((classified.of_regions.len(), n_failed, error.kind()), (1, 2, ErrorKind::Tensor));
    assert_eq!(classified.of_regions[0].0, regions[1].0);
    assert_eq!(label(&classified.of_regions[0].1.outcome), "other");
}

#[test]
fn value_is_the_expectation_over_the_bins() {
    let classifier = Stage::classifier(&options("brightness.onnx")).unwrap();
    for (gray, expected) in [(0, 0.0), (51, 20.0), (255, 100.0)] {
        for format in [PixelFormat::Rgb, PixelFormat::Gray8, PixelFormat::Bgrx] {
            let size = Size::new(31, 9);
            let (_memory, frame) = match format {
                PixelFormat::Gray8 => (None, Frame::from_packed(format, size, &[gray; 31 * 9]).unwrap()),
                _ => {
                    let (memory, frame) = paint(format, size, [gray; 3], PixelRect::default(), WHITE);
                    (Some(memory), frame)
                }
            };
            match classifier.classify(&frame).unwrap().remove(0).outcome {
                Outcome::Value(value) => assert!((value - expected).abs() < 1e-3, "{format} {gray}: {value}"),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn every_frame_is_delivered_once_with_its_own_result() {
    deliver_each_once(&detector("rectangle.onnx"));
}

/// With a model cache, a small model may be compiled once per core of the CPU, so several compiled models deliver frames.
#[test]
fn every_frame_is_delivered_once_with_a_model_cache() {
    let scratch = Scratch::new("copies");
    for device in ["AUTO", "CPU", "ORT.CPU", "OPENVINO.CPU"].into_iter().filter(|device| *device == "AUTO" || is_here(device)) {
        let config = format!("cache-folder={}", scratch.path().join(device).display());
        let options = StageOptions { device: Some(device.to_owned()), config: Some(config), ..options("rectangle.onnx") };
        let detector = Stage::detector(&options).unwrap();
        assert_eq!(detector.n_requests(), std::thread::available_parallelism().unwrap().get(), "{device}");
        deliver_each_once(&detector);
    }
}

fn deliver_each_once(detector: &Stage) {
    let (sender, receiver) = mpsc::channel();
    let n_frames = 300;
    for number in 0..n_frames {
        let rect = PixelRect { x: number % 50, y: number % 41, width: 3, height: 5 };
        let (memory, frame) = paint(PixelFormat::Rgb, Size::new(64, 64), BLACK, rect, COLORS[0].1);
        let sender = sender.clone();
        let done = move |found: StageResults| {
            // The stage has released the frame before it reported the result.
            assert_eq!(Arc::strong_count(&memory), 1);
            memory.lease_write().unwrap();
            sender.send((number, rect, found.into_result().unwrap().detections)).unwrap();
        };
        detector.submit(frame, number.into(), RunGuard::now(), done);
    }
    drop(sender);
    let delivered: Vec<_> = in_time(move || receiver.iter().collect());
    let mut numbers: Vec<u32> = delivered.iter().map(|(number, _, _)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..n_frames).collect::<Vec<_>>());
    for (number, rect, found) in delivered {
        assert_eq!(found.iter().map(|found| found.rect).collect::<Vec<_>>(), [rect.to_rect()], "frame {number}");
    }
    let stats = detector.stats();
    assert_eq!((stats.n_runs, stats.n_failed), (n_frames.into(), 0));
    assert_eq!(stats.steps.iter().map(|step| &*step.name).collect::<Vec<_>>(), ["fill", "infer", "decode"]);
}

/// Submits frames while the only request is busy. `ages` are the times since their arrival in milliseconds. Then calls `meddle` and
/// releases the request. Returns the frames in order of completion, and whether each was inferred.
fn done_in_order(scheduling: Scheduling, ages: &[u64], meddle: impl FnOnce(&Stage, &[Arc<RunGuard>])) -> Vec<(usize, bool)> {
    let detector = Stage::detector(&StageOptions { n_requests: Some(1), scheduling, ..options("rectangle.onnx") }).unwrap();
    let (_memory, frame) = paint(PixelFormat::Rgb, Size::new(64, 64), BLACK, PixelRect::default(), WHITE);
    let (entered, has_entered) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let done = move |_| {
        entered.send(()).unwrap();
        may_go_on.recv().unwrap();
    };
    detector.submit(frame.clone(), 0, RunGuard::now(), done);
    has_entered.recv().unwrap();
    let (sender, receiver) = mpsc::channel();
    let now = Instant::now();
    let guards: Vec<Arc<RunGuard>> = ages.iter().map(|&age| RunGuard::new(now - Duration::from_millis(age), None)).collect();
    for (number, guard) in guards.iter().enumerate() {
        let sender = sender.clone();
        let done = move |results: StageResults| sender.send((number, results.failed.is_none())).unwrap();
        detector.submit(frame.clone(), number as u64, guard.clone(), done);
    }
    meddle(&detector, &guards);
    go_on.send(()).unwrap();
    drop(sender);
    in_time(move || {
        let order = receiver.iter().collect();
        drop(detector);
        order
    })
}

#[test]
fn latency_scheduling_runs_the_oldest_frame_first() {
    // These ages correspond to two streams, one of which is late.
    let ages = [50, 400, 40, 300, 30, 300];
    let order = |scheduling| done_in_order(scheduling, &ages, |_, _| {}).into_iter().map(|(number, _)| number).collect::<Vec<_>>();
    assert_eq!(order(Scheduling::Throughput), [0, 1, 2, 3, 4, 5]);
    assert_eq!(order(Scheduling::Latency), [1, 3, 5, 0, 2, 4], "frames of equal age keep their order");
}

#[test]
fn canceled_frames_do_not_run_and_complete_at_once() {
    let order = done_in_order(Scheduling::Throughput, &[5, 4, 3, 2, 1], |detector, guards| {
        assert!(guards[1].displace() && guards[3].displace());
        detector.discard_canceled();
        guards[2].cancel();
        assert_eq!(detector.stats().n_runs, 1, "only the first frame has run");
    });
    // The last frame is discarded at the time when its run would start.
    assert_eq!(order, [(1, false), (3, false), (0, true), (2, false), (4, true)]);
}

#[test]
fn waiting_jobs_fail_once_when_the_stage_is_dropped() {
    let detector = Stage::detector(&StageOptions { n_requests: Some(1), ..options("rectangle.onnx") }).unwrap();
    let (_memory, frame) = paint(PixelFormat::Rgb, Size::new(64, 64), BLACK, PixelRect::default(), WHITE);
    let (entered, has_entered) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let results = Arc::new(Mutex::new(Vec::new()));
    let note = |number: u32| {
        let results = results.clone();
        move |found: StageResults| {
            results.lock().unwrap().push((number, found.into_result().map_err(|error| error.kind()).map(|found| found.detections.len())));
        }
    };
    let first = note(0);
    let done = move |result| {
        entered.send(()).unwrap();
        may_go_on.recv().unwrap();
        first(result);
    };
    detector.submit(frame.clone(), 0, RunGuard::now(), done);
    has_entered.recv().unwrap();
    (1..20).for_each(|number| detector.submit(frame.clone(), number.into(), RunGuard::now(), note(number)));
    in_time(move || drop(detector));
    let stopped: Vec<_> = (1..20).map(|number| (number, Err(ErrorKind::Stopped))).collect();
    assert_eq!(*results.lock().unwrap(), stopped);
    go_on.send(()).unwrap();
    let noted = results.clone();
    in_time(move || {
        while noted.lock().unwrap().len() < 20 {
            std::thread::yield_now();
        }
    });
    assert_eq!(results.lock().unwrap()[19], (0, Ok(0)));
}

/// Drops a stage at various moments of a run. Every job must be reported exactly once.
#[test]
fn running_jobs_are_delivered_once_when_the_stage_is_dropped() {
    let (_memory, frame) = paint(PixelFormat::Rgb, Size::new(64, 64), BLACK, PixelRect::default(), WHITE);
    for n_jobs in 1..40 {
        let classifier = Stage::classifier(&options("color.onnx")).unwrap();
        let n_delivered = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = mpsc::channel();
        for _ in 0..n_jobs {
            let (n, sender) = (n_delivered.clone(), sender.clone());
            let regions = [4, 8].map(|width| (ObjectId::next(), PixelRect { x: 0, y: 0, width, height: 8 }));
            let done = move |classified: StageResults| {
                n.fetch_add(1, Ordering::AcqRel);
                let n_failed = classified.failed.map_or(0, |(error, n_failed)| {
                    assert!(matches!(error.kind(), ErrorKind::Stopped | ErrorKind::Canceled), "{error}");
                    n_failed
                });
                sender.send(classified.of_regions.len() + n_failed).unwrap();
            };
            classifier.submit_regions(frame.clone(), 0, regions, RunGuard::now(), done);
        }
        drop(sender);
        in_time(move || drop(classifier));
        let n_regions: Vec<usize> = in_time(move || receiver.iter().collect());
        assert_eq!(n_regions, vec![2; n_jobs]);
        assert_eq!(n_delivered.load(Ordering::Acquire), n_jobs);
    }
}

#[test]
fn frame_without_regions_completes_at_once() {
    let classifier = Stage::classifier(&options("color.onnx")).unwrap();
    let (memory, frame) = paint(PixelFormat::I420, Size::new(8, 8), BLACK, PixelRect::default(), WHITE);
    let (sender, receiver) = mpsc::channel();
    let done = move |classified: StageResults| sender.send(classified.of_regions.len()).unwrap();
    classifier.submit_regions(frame, 0, Vec::<Region>::new(), RunGuard::now(), done);
    assert_eq!(receiver.try_recv(), Ok(0));
    assert_eq!(Arc::strong_count(&memory), 1);
}

/// A panic in the closure of one frame does not affect other frames.
#[test]
fn panicking_closure_does_not_lose_the_request() {
    let detector = Stage::detector(&StageOptions { n_requests: Some(1), ..options("rectangle.onnx") }).unwrap();
    let (_memory, frame) = paint(PixelFormat::Rgb, Size::new(64, 64), BLACK, PixelRect::default(), WHITE);
    detector.submit(frame.clone(), 0, RunGuard::now(), |_| panic!("in the closure of a frame"));
    let found = in_time(move || (0..3).map(|_| detector.detect(&frame).unwrap().len()).sum::<usize>());
    assert_eq!(found, 0);
}

/// A frame may arrive at the moment when the only request becomes idle. The start of that frame's run must not fail with `Busy`.
#[test]
fn frame_between_two_runs_is_accepted() {
    let classifier = Stage::classifier(&StageOptions { n_requests: Some(1), ..options("color.onnx") }).unwrap();
    let (_memory, frame) = paint(PixelFormat::Rgb, Size::new(8, 8), BLACK, PixelRect::default(), WHITE);
    let n_delivered = Arc::new(AtomicUsize::new(0));
    let refused = Arc::new(Mutex::new(None));
    for round in 0..20_000 {
        let (n, refused) = (n_delivered.clone(), refused.clone());
        let done = move |classified: StageResults| {
            if let Some((error, _)) = classified.failed {
                *refused.lock().unwrap() = Some(error);
            }
            n.fetch_add(1, Ordering::AcqRel);
        };
        let whole = [(ObjectId::next(), PixelRect::whole(frame.size()))];
        classifier.submit_regions(frame.clone(), round as u64, whole, RunGuard::now(), done);
        while n_delivered.load(Ordering::Acquire) <= round {
            std::hint::spin_loop();
        }
        // The delay before the next frame varies, so that some frames arrive exactly when the request becomes idle.
        (0..round % 40).for_each(|_| std::hint::spin_loop());
    }
    assert!(refused.lock().unwrap().is_none(), "{refused:?}");
}

#[test]
fn stage_accepts_only_models_of_its_task() {
    let error = Stage::detector(&options("color.onnx")).unwrap_err();
    assert!(error.to_string().contains("described as classification") && error.to_string().contains("task = \"detection\""), "{error}");
    let error = Stage::classifier(&options("rectangle.onnx")).unwrap_err();
    assert!(error.to_string().contains("described as detection") && error.to_string().contains("task = \"classification\""), "{error}");
}

#[test]
fn dynamic_batch_is_fixed_at_one_without_batching() {
    for (batch_size, expected) in [(Some(1), "[1, 3, 8, 8]"), (None, "[?, 3, 8, 8]")] {
        let classifier = Stage::classifier(&StageOptions { batch_size, device: Some("CPU".to_owned()), ..options("color.onnx") }).unwrap();
        assert_eq!(classifier.model().inputs()[0].shape.to_string(), expected, "batch size {batch_size:?}");
    }
}
