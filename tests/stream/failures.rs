//! A failed run loses only the results of its frame and is reported. Too many consecutive failures end the stream with an error.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use gst::prelude::*;
use gstreamer as gst;
use roiflow::devices::null::{NullDevice, Script};
use roiflow::frame::{FrameResults, InferenceStatus, Rect};
use roiflow::runtime::executor::Pool;
use roiflow::runtime::{Error, ErrorKind};

use crate::harness::{classify, detect, eventually, face, init, results};
use crate::rig::{Left, Rig, SIZE, black};

/// How a run ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Well,
    Fails,
    Panics,
}

/// A device for tests. The function `ends` gets the number of a run and returns how this run ends.
struct Scripted {
    name: String,
    /// Number of runs so far. If `None`, all runs succeed and are not counted.
    n_runs: Mutex<Option<u64>>,
    ends: Box<dyn Fn(u64) -> End + Send + Sync>,
}

impl Scripted {
    fn new(name: &str, ends: impl Fn(u64) -> End + Send + Sync + 'static) -> Arc<Self> {
        init();
        let name = format!("NULL.failures-{name}");
        let scripted = Arc::new(Self { name: name.clone(), n_runs: Mutex::default(), ends: Box::new(ends) });
        let of_runs = scripted.clone();
        let script = Script {
            executor: Some(Arc::new(Pool::new("scripted", 1).unwrap())),
            ..Script::computing(move |io, _| {
                match of_runs.next() {
                    End::Well => {}
                    End::Fails => return Err(Error::new(ErrorKind::Device, "the device is on fire")),
                    End::Panics => panic!("the device fell over"),
                }
                // Outputs in the format of the detector and the classifier of these tests.
                let (shape, answer): (&[usize], &[f32]) = match io.input_tensor(0).shape()[..] {
                    [1, 64, 64, 3] => (&[1, 1, 6], &[0.0, 1.0, 0.25, 0.25, 0.75, 0.75]),
                    _ => (&[1, 4], &[1.0, 0.0, 0.0, 0.0]),
                };
                io.output(0, shape)?.dense_mut::<f32>()?.copy_from_slice(answer);
                Ok(())
            })
        };
        roiflow::stages::Engine::of_process().register_device(Arc::new(NullDevice::instance(&name, Arc::new(script))));
        scripted
    }

    fn next(&self) -> End {
        let mut n_runs = self.n_runs.lock().unwrap();
        let Some(n_runs) = &mut *n_runs else { return End::Well };
        *n_runs += 1;
        (self.ends)(*n_runs - 1)
    }

    /// Returns a rig with `roidetect` on this device, which runs one frame at a time. The warm-up is over, and runs are counted from 0.
    fn detect(&self, properties: &str) -> Rig {
        self.rig(&detect("rectangle", &format!("device={} nireq=1 queue-policy=wait {properties}", self.name)))
    }

    /// Returns a rig with `roiclassify` on this device, which runs one region at a time.
    fn classify(&self, properties: &str) -> Rig {
        self.rig(&classify("color", &format!("device={} nireq=1 batch-size=1 queue-policy=wait {properties}", self.name)))
    }

    fn rig(&self, line: &str) -> Rig {
        let rig = Rig::begun_live(line);
        *self.n_runs.lock().unwrap() = Some(0);
        rig
    }
}

fn end(rig: &Rig) {
    rig.event(gst::event::Eos::new());
    rig.until_eos();
    rig.check_counts();
}

/// Status of each frame that left: inferred, or the skip reason.
fn statuses(left: &[Left]) -> Vec<&str> {
    left.iter().map(|left| &*left.status).collect()
}

fn n_failed(left: &[Left]) -> usize {
    left.iter().filter(|left| left.status.contains("on fire")).count()
}

/// Returns a frame with this number of objects.
fn with_objects(n: u64, n_objects: i32) -> gst::Buffer {
    let mut frame = black(n);
    let objects = (1..=n_objects).map(|id| face(id, Rect::from_corners(8.0, 8.0, 24.0, 24.0))).collect();
    roiflow::elements::meta::attach(frame.make_mut(), results(SIZE, n, objects));
    frame
}

#[test]
fn failures_beyond_max_failures_end_the_stream() {
    for max_failures in [0, 1, 5] {
        let device = Scripted::new("max", |n| if n < 2 { End::Well } else { End::Fails });
        let rig = device.detect(&format!("max-failures={max_failures}"));
        assert_eq!(rig.refusal(), gst::FlowError::Error, "upstream gets the error");
        let said = rig.error();
        let expected = [
            format!("inference failed on {} frames in a row", max_failures + 1),
            format!("expected at most {max_failures} (max-failures)"),
            format!("Last error, frame {}:", max_failures + 2),
            "the device is on fire".to_owned(),
            format!("`roiflow bench MODEL --device {}`", device.name),
            "max-failures=-1".to_owned(),
        ];
        assert!(expected.iter().all(|part| said.contains(part)), "{said}");
        let left = rig.left();
        assert_eq!((left.len(), n_failed(&left)), (max_failures + 3, max_failures + 1), "{left:?}");
        rig.check_counts();
        assert!(!rig.source.push_event(gst::event::Eos::new()));
        assert!(!rig.has_error(), "the error is posted once");

        // A flush resets the count.
        rig.event(gst::event::FlushStart::new());
        rig.event(gst::event::FlushStop::new(true));
        rig.segment();
        assert_eq!(rig.refusal(), gst::FlowError::Error);
        assert!(rig.error().contains(&format!("failed on {} frames in a row", max_failures + 1)));
        assert_eq!(n_failed(&rig.left()), max_failures + 1);
        rig.check_counts();
    }
}

#[test]
fn successful_run_resets_failure_count() {
    let device = Scripted::new("anew", |n| if n % 3 == 2 { End::Well } else { End::Fails });
    let rig = device.detect("max-failures=2");
    rig.frames(0..300);
    end(&rig);
    assert_eq!((rig.count("failed"), rig.count("inferred")), (200, 100));
    assert!(!rig.has_error());
}

#[test]
fn skipped_frames_do_not_affect_failure_count() {
    let device = Scripted::new("interval", |_| End::Fails);
    let rig = device.detect("max-failures=2 inference-interval=2");
    assert_eq!(rig.refusal(), gst::FlowError::Error);
    assert!(rig.error().contains("failed on 3 frames in a row"));
    let fails = "the device is on fire";
    let left = rig.left();
    let said: Vec<&str> = statuses(&left).iter().map(|status| if status.contains(fails) { fails } else { *status }).collect();
    assert_eq!(said, [fails, "inference-interval", fails, "inference-interval", fails]);
}

#[test]
fn max_failures_minus_one_continues_with_rarer_warnings() {
    let device = Scripted::new("never", |_| End::Fails);
    let rig = device.detect("max-failures=-1");
    rig.frames(0..300);
    end(&rig);
    assert_eq!(rig.count("failed"), 300);
    assert!(!rig.has_error());
    assert_eq!(rig.element.property::<i32>("max-failures"), -1);
}

#[test]
fn max_failures_defaults_to_100() {
    let device = Scripted::new("default", |_| End::Fails);
    let rig = device.detect("");
    assert_eq!(rig.element.property::<i32>("max-failures"), 100);
    assert_eq!(rig.refusal(), gst::FlowError::Error);
    assert_eq!(n_failed(&rig.left()), 101);
    assert!(rig.error().contains("failed on 101 frames in a row"));
}

#[test]
fn final_failure_after_eos_is_posted_once_and_frames_counted() {
    let device = Scripted::new("behind", |_| End::Fails);
    let rig = device.detect("max-failures=0");
    let (let_go, gate) = channel::<()>();
    rig.answer(move |_| {
        let _ = gate.recv();
        Ok(gst::FlowSuccess::Ok)
    });
    rig.frames(0..3);
    rig.event(gst::event::Eos::new());
    let_go.send(()).unwrap();
    assert!(rig.error().contains("failed on 1 frames in a row"));
    eventually("the remaining frames are counted", || rig.count("dropped-max-failures") == 2);
    rig.check_counts();
    assert!(!rig.has_error());
}

#[test]
fn only_frames_with_regions_affect_failure_count() {
    // Frames without objects do not reset the count.
    let device = Scripted::new("empty", |_| End::Fails);
    let rig = device.classify("max-failures=2");
    for n in 0..9 {
        // The ninth frame is the third failure: its push may already return the error.
        let pushed = rig.source.push(with_objects(n, i32::from(n % 4 == 0)));
        assert!(pushed.is_ok() || n == 8, "frame {n}: {pushed:?}");
        rig.next();
    }
    assert!(rig.error().contains("failed on 3 frames in a row"));
    rig.check_counts();

    // One of three regions fails in each frame. These failures do not end the stream, because the model works.
    let device = Scripted::new("regions", |n| if n % 3 == 1 { End::Fails } else { End::Well });
    let rig = device.classify("max-failures=0");
    for n in 0..50 {
        rig.source.push(with_objects(n, 3)).unwrap();
    }
    end(&rig);
    assert_eq!((rig.count("failed"), rig.has_error()), (50, false));
    assert!(rig.left().iter().all(|left| left.status.contains("1 regions failed: the device is on fire")));
}

#[test]
fn repeated_failure_counts_for_both_elements() {
    let device = Scripted::new("again", |_| End::Fails);
    let rig = device.detect("max-failures=1");
    rig.frame(0).unwrap();
    rig.next();
    let reason = rig.left()[0].status.clone();
    let mut frame = black(1);
    let before = FrameResults { status: InferenceStatus::Failed(reason.into()), ..results(SIZE, 1, vec![]) };
    roiflow::elements::meta::attach(frame.make_mut(), before);
    // This push may already return the error.
    let _result = rig.source.push(frame);
    rig.next();
    assert!(rig.error().contains("failed on 2 frames in a row"));
    assert_eq!(rig.count("failed"), 2);
}

#[test]
fn failure_of_earlier_element_is_not_counted() {
    let device = Scripted::new("before", |_| End::Well);
    let rig = device.detect("max-failures=0");
    for n in 0..10 {
        let mut frame = black(n);
        let before = FrameResults { status: InferenceStatus::Failed("no light".into()), ..results(SIZE, n, vec![]) };
        roiflow::elements::meta::attach(frame.make_mut(), before);
        rig.source.push(frame).unwrap();
    }
    end(&rig);
    assert_eq!((rig.count("failed"), rig.count("inferred"), rig.has_error()), (0, 10, false));
    assert!(rig.left().iter().all(|left| left.status == "no light"), "the earlier status stays");
}

#[test]
fn device_panic_fails_one_frame_and_stream_continues() {
    let device = Scripted::new("panics", |n| if n % 4 == 1 { End::Panics } else { End::Well });
    for properties in ["", "queue-policy=drop-newest max-latency=60000", "batch-size=4 batch-timeout=1"] {
        *device.n_runs.lock().unwrap() = None;
        let rig = device.detect(&format!("{properties} max-failures=1"));
        for n in 0..40 {
            rig.frame(n).unwrap();
            rig.next();
        }
        end(&rig);
        let left = rig.left();
        assert_eq!((left.len(), rig.has_error()), (40, false));
        let n_panicked = left.iter().filter(|left| left.status.contains("the device fell over")).count();
        assert_eq!((n_panicked as u64, rig.count("failed")), (10, 10), "{properties}: {:?}", statuses(&left));
    }
    let device = Scripted::new("panics-always", |_| End::Panics);
    let rig = device.detect("max-failures=3");
    assert_eq!(rig.refusal(), gst::FlowError::Error);
    let said = rig.error();
    assert!(said.contains("failed on 4 frames in a row") && said.contains("the device fell over"), "{said}");
}
