//! Sixteen live cameras, of which eight fail in an order that a seed determines. To repeat a run, set `ROIFLOW_SEED` to its seed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use roiflow::devices::null::{NullDevice, Script};
use roiflow::pipeline::{Limits, Outputs, PipelineHandle, Plan, Restart};
use serde_json::Value;

use crate::cameras::{Camera, Video, draw};
use crate::cli::{Folder, lines};
use crate::harness::eventually;
use crate::restarts::{FAST, check_order, plan};

/// Time without data after which the sources of the failing cameras count as lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// Longest fault. Each fault lasts at least half of this time, so that faults without data are noticed.
const LONGEST: Duration = Duration::from_millis(2400);
const N_FAULTS: usize = 3;

#[test]
fn eight_failing_cameras_cost_eight_healthy_ones_no_frame() {
    let seed: u64 = std::env::var("ROIFLOW_SEED").map_or(0xca3e, |seed| seed.parse().expect("ROIFLOW_SEED"));
    let folder = Folder::new("fleet");
    let script = Arc::new(Script::computing(|io, _| {
        io.output(0, &[1, 1, 6])?.dense_mut::<f32>()?.copy_from_slice(&[0.0, 1.0, 0.25, 0.25, 0.75, 0.75]);
        Ok(())
    }));
    crate::harness::init();
    roiflow::stages::Engine::of_process().register_device(Arc::new(NullDevice::instance("NULL.fleet", script.clone())));
    // The servers are started in parallel, because starting one takes a while.
    let starting: Vec<_> = (0..16).map(|_| std::thread::spawn(|| Camera::start(Video::SMALL))).collect();
    let cameras: Option<Vec<Camera>> = starting.into_iter().map(|starting| starting.join().unwrap()).collect();
    let Some(mut healthy) = cameras else { return };
    let failing = healthy.split_off(8);

    let (handle, _events) = PipelineHandle::new().unwrap();
    let json = |name: &str| folder.file(&format!("{name}.jsonl"));
    let add = |camera: &Camera, name: &str, restart: Restart, source_timeout: Duration| {
        let outputs = Outputs { json: Some(json(name).into()), ..Outputs::default() };
        let plan = plan(&camera.uri(), "NULL.fleet", outputs, restart);
        let limits = Limits { source_timeout: Some(source_timeout), ..plan.limits };
        handle.add(&Plan { limits, ..plan }).unwrap()
    };
    let n_restarts_of = |stream| handle.status(stream).map_or(0, |status| status.n_restarts);
    let n_frames = |stream| handle.stats(stream).map_or(0, |stats| stats.n_frames);
    let short = Restart { min_delay: Duration::from_millis(50), max_delay: Duration::from_millis(400), ..FAST };
    let name_of = |kind: &str, idx: usize| format!("{kind}-{idx}");
    let healthy: Vec<_> = (0..)
        .zip(healthy)
        .map(|(idx, camera)| (add(&camera, &name_of("healthy", idx), Restart::default(), Duration::from_secs(30)), camera))
        .collect();
    let failing: Vec<_> =
        (0..).zip(failing).map(|(idx, camera)| (add(&camera, &name_of("failing", idx), short, LOST_AFTER), camera)).collect();
    for (stream, _) in healthy.iter().chain(&failing) {
        eventually("each camera delivers frames", || n_frames(*stream) > 3);
    }

    let begin = Instant::now();
    let steps = draw(seed, failing.len(), N_FAULTS, LONGEST);
    let failing: Vec<_> = failing.into_iter().map(|(stream, camera)| (stream, std::sync::Mutex::new(camera))).collect();
    std::thread::scope(|scope| {
        for ((stream, camera), steps) in failing.iter().zip(&steps) {
            scope.spawn(move || {
                let mut camera = camera.lock().unwrap();
                for step in steps {
                    std::thread::sleep(step.after);
                    let n_restarts = n_restarts_of(*stream);
                    camera.fail(step.fault);
                    std::thread::sleep(step.lasts);
                    if step.fault.interrupts() {
                        eventually(&format!("ROIFLOW_SEED={seed}: {step:?} is noticed"), || n_restarts_of(*stream) > n_restarts);
                    }
                    camera.heal();
                    let n_before = n_frames(*stream);
                    eventually(&format!("ROIFLOW_SEED={seed}: frames after {step:?}"), || n_frames(*stream) > n_before + 5);
                }
            });
        }
    });
    eprintln!("ROIFLOW_SEED={seed}: {} faults in {:.1} s", steps.iter().map(Vec::len).sum::<usize>(), begin.elapsed().as_secs_f64());

    handle.drain_all();
    for (idx, (stream, _camera)) in failing.iter().enumerate() {
        let ending = handle.wait(*stream).unwrap_or_else(|error| panic!("ROIFLOW_SEED={seed}, {:?}: {error}", steps[idx]));
        assert!(ending.stats.n_restarts > 0, "ROIFLOW_SEED={seed}: {:?}", steps[idx]);
        let lines = lines(&json(&name_of("failing", idx)));
        assert_eq!(lines.len() as u64, ending.stats.n_frames);
        for pair in lines.windows(2) {
            assert_eq!(pair[0]["frame"].as_u64().map(|frame| frame + 1), pair[1]["frame"].as_u64(), "ROIFLOW_SEED={seed}: {pair:?}");
            // After the process of a camera was stopped, GStreamer gives the frames that arrive together the same timestamp.
            assert!(pair[0]["timestamp"].as_u64() <= pair[1]["timestamp"].as_u64(), "ROIFLOW_SEED={seed}: {pair:?}");
        }
    }
    for (idx, (stream, _camera)) in healthy.iter().enumerate() {
        let ending = handle.wait(*stream).unwrap();
        let lines = check_order(&json(&name_of("healthy", idx)));
        let stats = &ending.stats;
        assert_eq!((lines.len() as u64, stats.n_restarts, stats.n_dropped), (stats.n_frames, 0, 0), "ROIFLOW_SEED={seed}");
        check_no_frame_is_missing(&lines, Video::SMALL.rate);
    }
    assert_eq!(script.n_compiled(), 1, "one model for all streams and restarts");
}

/// Asserts that the time from each frame to the next is one frame time. The times are those of the camera's clock.
fn check_no_frame_is_missing(lines: &[Value], rate: u32) {
    let pts: Vec<f64> = lines.iter().map(|line| line["pts"].as_f64().unwrap()).collect();
    let frame_time = 1e9 / f64::from(rate);
    for (idx, pair) in pts.windows(2).enumerate() {
        let n_frames = (pair[1] - pair[0]) / frame_time;
        assert!((0.5..1.5).contains(&n_frames), "{n_frames:.2} frame times after frame {idx} of {}: {pair:?}", lines.len());
    }
    assert!(lines.len() > 50, "{}", lines.len());
}
