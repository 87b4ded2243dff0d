//! Inference stages that share a compiled model: batches, scheduling, dropping of stages, and allowed differences of their options.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use roiflow::devices::null::{Gate, NullDevice, Script};
use roiflow::frame::{Classification, Detection, Frame, ObjectId, Outcome, PixelFormat, PixelRect, Size};
use roiflow::runtime::executor::Pool;
use roiflow::runtime::{Error, ErrorKind, Result};
use roiflow::stages::{Engine, RunGuard, Scheduling, Sharing, Stage, StageOptions, StageResults};

use crate::support::{Scratch, eventually, in_time, is_here, receive, tiny};

/// A device NULL with the counters and script of one test.
struct Scripted {
    name: String,
    script: Arc<Script>,
}

impl Scripted {
    /// Registers the device under this name.
    fn register(name: &str, script: Script) -> Arc<Self> {
        let script = Arc::new(Script { executor: Some(Arc::new(Pool::new("null", 2).unwrap())), ..script });
        Engine::of_process().register_device(Arc::new(NullDevice::instance(name, script.clone())));
        Arc::new(Self { name: name.to_owned(), script })
    }

    fn n_compiled(&self) -> usize {
        self.script.n_compiled()
    }

    fn options(&self, model: &str) -> StageOptions {
        StageOptions {
            model: tiny(model),
            device: Some(self.name.clone()),
            sharing: Sharing::SameOptions,
            n_requests: Some(1),
            ..StageOptions::default()
        }
    }
}

fn gray_image(value: u8) -> Frame {
    Frame::from_packed(PixelFormat::Rgb, Size::new(64, 64), &[value; 64 * 64 * 3]).unwrap()
}

/// Returns a script that reports one box per batch item. The confidence of the box is the mean of the image.
fn means() -> Script {
    Script::computing(|io, _| {
        let (n_rows, values) = (io.input(0).layout().shape()[0], io.input(0).dense::<f32>()?);
        let len = values.len() / n_rows;
        let of_row: Vec<[f32; 6]> =
            values.chunks(len).map(|row| [0.0, row.iter().sum::<f32>() / len as f32 / 255.0, 0.25, 0.25, 0.75, 0.75]).collect();
        io.output(0, &[n_rows, 1, 6])?.dense_mut::<f32>()?.copy_from_slice(of_row.as_flattened());
        Ok(())
    })
}

/// Returns a script that first waits at the gate, if there is one. It then reports a class for each batch item: the first value of the
/// item.
fn echoes(gate: Option<Arc<Gate>>) -> Script {
    let script = Script::computing(|io, _| {
        let (n_rows, values) = (io.input(0).layout().shape()[0], io.input(0).dense::<f32>()?);
        let len = values.len() / n_rows;
        let mut result = vec![0.0; n_rows * 4];
        for (row_idx, row) in values.chunks(len).enumerate() {
            result[row_idx * 4 + row[0] as usize % 4] = 1.0;
        }
        io.output(0, &[n_rows, 4])?.dense_mut::<f32>()?.copy_from_slice(&result);
        Ok(())
    });
    Script { gate, ..script }
}

fn label(result: &Classification) -> &str {
    match &result.outcome {
        Outcome::Label { label: Some(label), .. } => label,
        other => panic!("no label: {other:?}"),
    }
}

/// Returns a frame that consists of four by four images, each of one color, and the positions of these images.
fn mosaic() -> (Frame, Vec<(ObjectId, PixelRect)>) {
    let size = Size::new(64, 64);
    let bytes: Vec<u8> = (0..64 * 64).flat_map(|at| [(at / 64 / 16 * 4 + at % 64 / 16) as u8; 3]).collect();
    let cell = |n: u32| PixelRect { x: n % 4 * 16, y: n / 4 * 16, width: 16, height: 16 };
    (Frame::from_packed(PixelFormat::Rgb, size, &bytes).unwrap(), (0..16).map(|n| (ObjectId(n as i32 + 1), cell(n))).collect())
}

fn classified(classifier: &Stage, frame: &Frame, regions: &[(ObjectId, PixelRect)]) -> mpsc::Receiver<StageResults> {
    let (sender, receiver) = mpsc::channel();
    let done = move |classified| drop(sender.send(classified));
    classifier.submit_regions(frame.clone(), 0, regions.to_vec(), RunGuard::now(), done);
    receiver
}

type Found = Result<Vec<Detection>>;

fn detected(detector: &Stage, frame: &Frame) -> mpsc::Receiver<Found> {
    let (sender, receiver) = mpsc::channel();
    let done = move |found: StageResults| drop(sender.send(found.into_result().map(|found| found.detections)));
    detector.submit(frame.clone(), 0, RunGuard::now(), done);
    receiver
}

#[test]
fn sixteen_regions_of_a_frame_are_one_call() {
    let device = Scripted::register("NULL.sixteen", echoes(None));
    let classifier = Stage::classifier(&StageOptions { n_requests: None, ..device.options("color.onnx") }).unwrap();
    let (frame, regions) = mosaic();
    let result = receive(&classified(&classifier, &frame, &regions));
    assert_eq!((device.script.n_calls(), result.failed.is_none()), (1, true));
    let names = ["red", "green", "blue", "other"];
    assert_eq!(result.of_regions.len(), 16);
    for (id, result) in &result.of_regions {
        assert_eq!(label(result), names[(id.0 - 1) as usize % 4], "region {id:?}");
    }
    let stats = classifier.stats();
    assert_eq!((stats.n_runs, stats.n_items), (1, 16));
    // A frame with more regions than the maximum batch size needs two calls.
    let many: Vec<_> = regions.iter().cycle().take(40).enumerate().map(|(n, (_, rect))| (ObjectId(n as i32 + 100), *rect)).collect();
    assert_eq!(receive(&classified(&classifier, &frame, &many)).of_regions.len(), 40);
    assert_eq!(device.script.n_calls(), 3);
}

#[test]
fn regions_run_one_by_one_if_configured_or_required() {
    let (frame, regions) = mosaic();
    let device = Scripted::register("NULL.one-by-one", echoes(None));
    let classifier = Stage::classifier(&StageOptions { batch_size: Some(1), ..device.options("color.onnx") }).unwrap();
    receive(&classified(&classifier, &frame, &regions));
    assert_eq!((device.script.n_calls(), classifier.stats().n_runs), (16, 16));
    let device = Scripted::register("NULL.mixes", Script { mixes_rows: true, ..echoes(None) });
    let classifier = Stage::classifier(&device.options("color.onnx")).unwrap();
    receive(&classified(&classifier, &frame, &regions));
    assert_eq!(device.script.n_calls(), 16);
    let error = Stage::classifier(&StageOptions { batch_size: Some(4), ..device.options("color.onnx") }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("not independent") && error.to_string().contains("use batch size 1"), "{error}");
}

#[test]
fn eight_frames_of_eight_streams_are_one_call() {
    let device = Scripted::register("NULL.eight", means());
    let options = StageOptions { batch_size: Some(8), batch_timeout: Some(Duration::from_secs(3600)), ..device.options("rectangle.onnx") };
    let detectors: Vec<Stage> = (0..8).map(|_| Stage::detector(&options).unwrap()).collect();
    let receivers: Vec<_> = detectors.iter().zip(0..).map(|(detector, n)| detected(detector, &gray_image(130 + n * 10))).collect();
    for (receiver, n) in receivers.iter().zip(0..) {
        let found = receive(receiver).unwrap();
        let expected = (130 + n * 10) as f32 / 255.0;
        assert!(found.len() == 1 && (found[0].confidence - expected).abs() < 1e-3, "stream {n}: {found:?}");
    }
    assert_eq!(device.script.n_calls(), 1);
    assert!(detectors.iter().all(|detector| (detector.stats().n_runs, detector.stats().n_items) == (1, 1)));
}

#[test]
fn lone_frame_waits_at_most_the_batch_timeout() {
    let device = Scripted::register("NULL.lone", means());
    for timeout in [Duration::ZERO, Duration::from_millis(60)] {
        let options = StageOptions { batch_size: Some(8), batch_timeout: Some(timeout), ..device.options("rectangle.onnx") };
        let detector = Stage::detector(&options).unwrap();
        let begin = Instant::now();
        receive(&detected(&detector, &gray_image(200))).unwrap();
        let took = begin.elapsed();
        assert!(took >= timeout, "the run started before the batch timeout: {took:?}");
        assert!(took < timeout + Duration::from_secs(20), "{took:?}");
    }
    assert_eq!(device.script.n_calls(), 2);
    // A frame that was submitted first but has a later arrival time also meets its timeout.
    let options = StageOptions {
        batch_size: Some(3),
        batch_timeout: Some(Duration::from_millis(200)),
        scheduling: Scheduling::Latency,
        ..device.options("rectangle.onnx")
    };
    let detector = Stage::detector(&options).unwrap();
    let begin = Instant::now();
    let (sender, receiver) = mpsc::channel();
    for age in [0, 1000] {
        let (sender, guard) = (sender.clone(), RunGuard::new(begin.checked_sub(Duration::from_millis(age)).unwrap(), None));
        detector.submit(gray_image(200), 0, guard, move |found| sender.send(found.failed.is_none()).unwrap());
    }
    assert!(receive(&receiver) && receive(&receiver));
    assert_eq!(device.script.n_calls(), 3, "both in one call");
}

#[test]
fn batch_and_single_runs_give_the_same_results() {
    let (frame, regions) = mosaic();
    let colors: Vec<u8> = (0..64 * 64).flat_map(|at| [[250, 3, 9], [4, 240, 7], [1, 2, 255], [90, 90, 90]][at % 64 / 16]).collect();
    let colors = Frame::from_packed(PixelFormat::Rgb, Size::new(64, 64), &colors).unwrap();
    for device in ["CPU", "ORT.CPU", "OPENVINO.CPU"].into_iter().filter(|device| is_here(device)) {
        for (model, frame) in [("color.onnx", &colors), ("brightness.onnx", &frame)] {
            let answers = |batch_size| {
                let options = StageOptions {
                    model: tiny(model),
                    device: Some(device.to_owned()),
                    batch_size,
                    batch_timeout: Some(Duration::from_secs(3600)),
                    ..StageOptions::default()
                };
                let classifier = Stage::classifier(&options).unwrap();
                let mut result = receive(&classified(&classifier, frame, &regions)).of_regions;
                result.sort_by_key(|(id, _)| *id);
                (result, classifier.stats())
            };
            let (alone, of_alone) = answers(Some(1));
            assert_eq!((alone.len(), of_alone.n_runs, of_alone.n_items), (16, 16, 16), "{device} {model}");
            for (batch_size, n_calls) in [(Some(16), 1), (Some(8), 2), (None, if device == "CPU" { 16 } else { 1 })] {
                let (result, stats) = answers(batch_size);
                assert_eq!((stats.n_runs, stats.n_items), (n_calls, 16), "{device} {model} {batch_size:?}");
                for ((id, result), (id_alone, alone)) in result.iter().zip(&alone) {
                    let is_same = match (&result.outcome, &alone.outcome) {
                        (Outcome::Value(value), Outcome::Value(of_alone)) => (value - of_alone).abs() < 1e-3,
                        (
                            Outcome::Label { label_id, confidence, .. },
                            Outcome::Label { label_id: of_alone, confidence: confidence_alone, .. },
                        ) => label_id == of_alone && (confidence - confidence_alone).abs() < 1e-4,
                        _ => false,
                    };
                    assert!(id == id_alone && is_same, "{device} {model} {batch_size:?} {id:?}: {result:?}, alone {alone:?}");
                }
            }
        }
    }
}

#[test]
fn failed_batch_runs_item_by_item_and_only_bad_items_fail() {
    let script = Script::computing(|io, _| {
        let (n_rows, values) = (io.input(0).layout().shape()[0], io.input(0).dense::<f32>()?);
        if values.contains(&13.0) {
            return Err(Error::new(ErrorKind::Device, "thirteen"));
        }
        io.output(0, &[n_rows, 1, 6])?.dense_mut::<f32>()?.as_chunks_mut::<6>().0.fill([0.0, 1.0, 0.25, 0.25, 0.75, 0.75]);
        Ok(())
    });
    let device = Scripted::register("NULL.thirteen", script);
    let options = StageOptions { batch_size: Some(4), batch_timeout: Some(Duration::from_secs(3600)), ..device.options("rectangle.onnx") };
    let detectors: Vec<Stage> = (0..4).map(|_| Stage::detector(&options).unwrap()).collect();
    let receivers: Vec<_> = detectors.iter().zip([7, 13, 8, 9]).map(|(detector, value)| detected(detector, &gray_image(value))).collect();
    let found: Vec<_> = receivers.iter().map(|receiver| receive(receiver).map(|found| found.len()).map_err(|error| error.kind())).collect();
    assert_eq!(found, [Ok(1), Err(ErrorKind::Device), Ok(1), Ok(1)]);
    assert_eq!(device.script.n_calls(), 1 + 4);
}

#[test]
fn sixteen_stages_share_a_model_and_the_last_frees_it() {
    let device = Scripted::register("NULL.shared", means());
    let before = Arc::strong_count(&device.script);
    for round in 1..=20 {
        let options = device.options("rectangle.onnx");
        // The detectors are created concurrently.
        let detectors: Vec<Stage> = std::thread::scope(|scope| {
            let loading: Vec<_> = (0..16).map(|_| scope.spawn(|| Stage::detector(&options).unwrap())).collect();
            loading.into_iter().map(|loading| loading.join().unwrap()).collect()
        });
        assert_eq!(device.n_compiled(), round);
        let receivers: Vec<_> = detectors.iter().map(|detector| detected(detector, &gray_image(255))).collect();
        assert!(receivers.iter().all(|receiver| receive(receiver).unwrap().len() == 1));
        drop(detectors);
        assert_eq!(Arc::strong_count(&device.script), before, "the engine's objects are gone when the last drop returns");
    }
}

#[test]
fn stage_dropped_during_runs_frees_everything() {
    let device = Scripted::register("NULL.leaving", means());
    let before = Arc::strong_count(&device.script);
    for _ in 0..200 {
        let detector = Stage::detector(&StageOptions { n_requests: Some(2), ..device.options("rectangle.onnx") }).unwrap();
        let (first, second) = (detected(&detector, &gray_image(255)), detected(&detector, &gray_image(255)));
        receive(&first).unwrap();
        drop(detector);
        assert_eq!(Arc::strong_count(&device.script), before, "objects of the engine remain after the last drop");
        // The job ran, was canceled, or never started. Each of these outcomes must be reported.
        drop(receive(&second));
    }
}

#[test]
fn model_options_prevent_sharing_and_others_do_not() {
    let device = Scripted::register("NULL.differ", means());
    let options = device.options("rectangle.onnx");
    let scratch = Scratch::new("sharing");
    let other_file = scratch.file("rectangle.onnx", std::fs::read(tiny("rectangle.onnx")).unwrap());
    let description = Some(scratch.file("other.toml", std::fs::read(tiny("rectangle.toml")).unwrap()));
    let first = Stage::detector(&options).unwrap();
    let same = [
        StageOptions { threshold: Some(0.9), iou_threshold: Some(0.1), ..options.clone() },
        StageOptions { labels: Some(vec!["box".into()]), scheduling: Scheduling::Latency, ..options.clone() },
        StageOptions { description: description.clone(), batch_timeout: Some(Duration::from_secs(1)), ..options.clone() },
    ];
    let same: Vec<Stage> = same.iter().map(|options| Stage::detector(options).unwrap()).collect();
    assert_eq!(device.n_compiled(), 1);
    let of = |detector: &Stage, value| receive(&detected(detector, &gray_image(value))).unwrap();
    assert_eq!((of(&first, 200).len(), of(&same[0], 200).len(), of(&same[0], 250).len()), (1, 0, 1), "each stage uses its own threshold");
    assert_eq!((of(&same[1], 200)[0].label.as_deref(), of(&first, 200)[0].label.as_deref()), (Some("box"), Some("rectangle")));
    let others = [
        StageOptions { n_requests: Some(2), ..options.clone() },
        StageOptions { batch_size: Some(2), ..options.clone() },
        StageOptions { model: other_file, description, ..options.clone() },
        StageOptions { sharing: Sharing::Named("a name".into()), ..options.clone() },
        StageOptions { sharing: Sharing::Exclusive, ..options.clone() },
    ];
    let n_before = device.n_compiled();
    let kept: Vec<Stage> = others.iter().map(|options| Stage::detector(options).unwrap()).collect();
    // A batch size of two requires one more compilation, with a dynamic batch axis.
    assert_eq!(device.n_compiled(), n_before + kept.len() + 1);
}

#[test]
fn conflicting_options_of_a_shared_name_are_an_error() {
    let device = Scripted::register("NULL.named", means());
    let named = |options| StageOptions { sharing: Sharing::Named("front".into()), ..options };
    let options = named(StageOptions { batch_size: Some(2), ..device.options("rectangle.onnx") });
    let first = Stage::detector(&options).unwrap();
    let open = StageOptions { device: None, n_requests: None, batch_size: None, ..options.clone() };
    let second = Stage::detector(&open).unwrap();
    assert_eq!(second.model().device(), first.model().device(), "unset options are those of the other stage");
    let says = |error: Error, parts: &[&str]| {
        let result = error.to_string();
        assert!(error.kind() == ErrorKind::Config && parts.iter().all(|part| result.contains(part)), "{result}");
    };
    let other = StageOptions { n_requests: Some(3), device: Some("CPU".into()), batch_size: Some(4), ..options.clone() };
    let both_sides = [
        "`front`",
        "nireq: 1 in the other element, 3 in this one",
        "device: NULL.named in the other element, CPU in this one",
        "batch-size: 2 in the other element, 4 in this one",
    ];
    says(Stage::detector(&other).unwrap_err(), &both_sides);
    says(
        Stage::detector(&StageOptions { model: tiny("stripes.onnx"), ..options.clone() }).unwrap_err(),
        &["rectangle.onnx", "stripes.onnx"],
    );
    says(Stage::classifier(&StageOptions { model: tiny("color.onnx"), ..options }).unwrap_err(), &["is a detector", "is a classifier"]);
    drop((first, second));
    Stage::classifier(&named(device.options("color.onnx"))).unwrap();
}

/// Returns one detector per stream. All detectors use the same request, which waits at the returned gate with a frame of the first stream.
fn held(name: &str, n_streams: usize, change: impl Fn(StageOptions) -> StageOptions) -> (Arc<Gate>, Vec<Stage>, mpsc::Receiver<Found>) {
    let gate = Gate::closed();
    let device = Scripted::register(name, Script { gate: Some(gate.clone()), ..means() });
    let options = change(device.options("rectangle.onnx"));
    let detectors: Vec<Stage> = (0..n_streams).map(|_| Stage::detector(&options).unwrap()).collect();
    let first = detected(&detectors[0], &gray_image(255));
    gate.wait_for_arrivals(1);
    (gate, detectors, first)
}

#[test]
fn scheduling_orders_frames_of_all_streams() {
    for (scheduling, expected) in [(Scheduling::Throughput, [0, 1, 2, 3, 4, 5]), (Scheduling::Latency, [1, 3, 5, 0, 2, 4])] {
        let (gate, detectors, first) = held(&format!("NULL.age-{scheduling:?}"), 3, |options| StageOptions { scheduling, ..options });
        let order = Arc::new(Mutex::new(Vec::new()));
        let now = Instant::now();
        for (number, age) in [50, 400, 40, 300, 30, 300].into_iter().enumerate() {
            let (order, guard) = (order.clone(), RunGuard::new(now - Duration::from_millis(age), None));
            let done = move |_| order.lock().unwrap().push(number);
            detectors[number % 3].submit(gray_image(255), 0, guard, done);
        }
        gate.open();
        receive(&first).unwrap();
        eventually({
            let order = order.clone();
            move || order.lock().unwrap().len() == 6
        });
        assert_eq!(*order.lock().unwrap(), expected, "{scheduling:?}");
    }
}

#[test]
fn dropped_stage_discards_and_waits_for_its_own_frames_only() {
    let (gate, mut detectors, first) = held("NULL.leave", 3, |options| options);
    let kinds = |receivers: &[mpsc::Receiver<Found>]| -> Vec<_> {
        receivers.iter().map(|receiver| receive(receiver).map(|found| found.len()).map_err(|error| error.kind())).collect()
    };
    let of = |detector: &Stage| (0..3).map(|_| detected(detector, &gray_image(255))).collect::<Vec<_>>();
    let (of_second, of_third) = (of(&detectors[1]), of(&detectors[2]));
    let leaving = detectors.pop().unwrap();
    // The gate is closed. If the drop waited for the run of another stage, it would block here.
    in_time(move || drop(leaving));
    assert_eq!(kinds(&of_third), [Err(ErrorKind::Stopped); 3]);
    assert!(of_second.iter().all(|receiver| receiver.try_recv().is_err()));
    gate.open();
    assert_eq!((kinds(&of_second), receive(&first).is_ok()), (vec![Ok(1); 3], true));
}

#[test]
fn dropped_stage_waits_for_its_frame_in_a_shared_batch() {
    let (gate, mut detectors, first) =
        held("NULL.own", 2, |options| StageOptions { batch_size: Some(2), batch_timeout: Some(Duration::ZERO), ..options });
    let (second, third) = (detected(&detectors[0], &gray_image(255)), detected(&detectors[1], &gray_image(255)));
    gate.admit(1);
    receive(&first).unwrap();
    gate.wait_for_arrivals(2);
    let leaving = detectors.pop().unwrap();
    let (sender, left) = mpsc::channel();
    let dropping = std::thread::spawn(move || {
        drop(leaving);
        sender.send(()).unwrap();
    });
    assert!(left.recv_timeout(Duration::from_millis(50)).is_err(), "the drop returned while its frame was in the engine");
    gate.open();
    assert_eq!((receive(&second).unwrap().len(), receive(&third).unwrap().len()), (1, 1), "no frame was canceled");
    receive(&left);
    dropping.join().unwrap();
}

#[test]
fn stage_may_be_dropped_in_a_result_closure() {
    let device = Scripted::register("NULL.taker", means());
    let before = Arc::strong_count(&device.script);
    let detector = Arc::new(Stage::detector(&device.options("rectangle.onnx")).unwrap());
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    let last = detector.clone();
    let done = move |_| {
        may_go_on.recv().unwrap();
        drop(last);
        sender.send(()).unwrap();
    };
    detector.submit(gray_image(255), 0, RunGuard::now(), done);
    drop(detector);
    let begin = Instant::now();
    go_on.send(()).unwrap();
    receive(&receiver);
    assert!(begin.elapsed() < Duration::from_secs(4), "the drop waited for its own closure");
    eventually(move || Arc::strong_count(&device.script) == before);
}

#[test]
fn engines_share_no_devices_and_models() {
    let script = Arc::new(Script { executor: Some(Arc::new(Pool::new("null", 2).unwrap())), ..means() });
    let device = Arc::new(NullDevice::instance("NULL.of-engines", script.clone()));
    let engines = [(); 2].map(|()| Engine::new(roiflow::devices::core().clone()));
    let options = |engine: &Engine| StageOptions {
        model: tiny("rectangle.onnx"),
        device: Some("NULL.of-engines".to_owned()),
        sharing: Sharing::SameOptions,
        engine: engine.clone(),
        ..StageOptions::default()
    };
    engines[0].register_device(device.clone());
    let first = Stage::detector(&options(&engines[0])).unwrap();
    let same = Stage::detector(&options(&engines[0])).unwrap();
    assert_eq!(script.n_compiled(), 1);
    assert_eq!(Stage::detector(&options(&engines[1])).unwrap_err().kind(), ErrorKind::NotFound);
    engines[1].register_device(device);
    let other = Stage::detector(&options(&engines[1])).unwrap();
    assert_eq!(script.n_compiled(), 2);
    assert_eq!(Stage::detector(&options(Engine::of_process())).unwrap_err().kind(), ErrorKind::NotFound);
    drop((first, same, other));
}
