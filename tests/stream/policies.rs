//! Policies for frames that cannot or need not be inferred: each frame is reported and counted; order and events are preserved.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use roiflow::devices::null::{NullDevice, Script};
use roiflow::frame::Size;

use crate::harness::{FRAME_TIME, Slow, TIMEOUT, caps, classify, collect, detect, eventually, init, is_alone, on_buffers, pipeline, run};
use crate::rig::{Left, Rig, SIZE, black};

/// Properties of each policy, and whether the policy drops frames that are not inferred.
const POLICIES: [(&str, bool); 6] = [
    ("queue-policy=wait", false),
    ("queue-policy=drop-oldest", false),
    ("queue-policy=drop-newest", false),
    ("queue-policy=drop-oldest drop-frames=true", true),
    ("queue-policy=drop-newest drop-frames=true", true),
    ("queue-policy=drop-oldest max-latency=10", false),
];

fn marker(n: u64) -> gst::Event {
    gst::event::CustomDownstream::new(gst::Structure::new_empty(format!("behind-{n}")))
}

fn statuses(left: &[Left]) -> Vec<(u64, &str)> {
    left.iter().map(|left| (left.n, &*left.status)).collect()
}

/// Pushes frames 0 to `n_frames`, each followed by a marker, while no run ends. Then releases all runs and ends the stream. Returns the
/// output.
fn through_a_held_device(slow: &Slow, properties: &str, n_frames: u64) -> (Rig, Vec<Left>, Vec<String>) {
    let rig = Rig::begun(&slow.detect(&format!("nireq=2 {properties}")));
    slow.hold();
    for n in 0..n_frames {
        rig.frame(n).unwrap();
        rig.event(marker(n));
        if n == 1 {
            slow.wait_for(2);
        }
    }
    slow.release();
    rig.event(gst::event::Eos::new());
    let seen = rig.until_eos();
    rig.check_counts();
    let left = rig.left();
    (rig, left, seen)
}

/// Asserts that frames and markers have the order in which they were pushed. Frames may be missing, markers may not.
fn check_order(seen: &[String], n_frames: u64) {
    let place = |what: &str| seen.iter().position(|seen| seen.starts_with(what));
    let markers: Vec<usize> = (0..n_frames).map(|n| place(&format!("behind-{n}")).expect("all events arrive")).collect();
    assert!(markers.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    for n in 0..n_frames {
        if let Some(frame) = place(&format!("frame {n} ")) {
            let before = n.checked_sub(1).map(|n| markers[n as usize]);
            assert!(frame < markers[n as usize] && before.is_none_or(|before| before < frame), "frame {n}: {seen:?}");
        }
    }
}

#[test]
fn drop_newest_skips_new_frame() {
    let slow = Slow::open("newest", 2);
    let (rig, left, seen) = through_a_held_device(&slow, "queue-policy=drop-newest", 7);
    check_order(&seen, 7);
    let expected = ["inferred", "inferred", "inferred", "inferred", "queue-policy", "queue-policy", "queue-policy"];
    assert_eq!(statuses(&left), (0..).zip(expected).collect::<Vec<_>>());
    assert!(left.iter().all(|left| left.ids.len() == usize::from(left.status == "inferred") && !left.is_after_gap));
    assert_eq!((rig.count("skipped-queue-policy"), rig.count("dropped")), (3, 0));
}

#[test]
fn drop_oldest_skips_longest_waiting_frame() {
    let slow = Slow::open("oldest", 2);
    let (rig, left, seen) = through_a_held_device(&slow, "queue-policy=drop-oldest", 7);
    check_order(&seen, 7);
    // Two frames are running and are never discarded. Of the waiting frames, the two newest remain.
    let expected = ["inferred", "inferred", "queue-policy", "queue-policy", "queue-policy", "inferred", "inferred"];
    assert_eq!(statuses(&left), (0..).zip(expected).collect::<Vec<_>>());
    assert_eq!((rig.count("skipped-queue-policy"), rig.count("runs")), (3, 4));
}

#[test]
fn drop_frames_drops_skipped_frames() {
    for (policy, expected) in [("drop-newest", [0, 1, 2, 3]), ("drop-oldest", [0, 1, 5, 6])] {
        let slow = Slow::open(&format!("drop-{policy}"), 2);
        let (rig, left, seen) = through_a_held_device(&slow, &format!("queue-policy={policy} drop-frames=true"), 7);
        check_order(&seen, 7);
        assert_eq!(statuses(&left), expected.map(|n| (n, "inferred")), "{policy}");
        assert_eq!(rig.count("dropped-queue-policy"), 3);
        let after_gaps: Vec<u64> = left.iter().filter(|left| left.is_after_gap).map(|left| left.n).collect();
        let expected: &[u64] = if policy == "drop-oldest" { &[5] } else { &[] };
        assert_eq!(after_gaps, expected, "{policy}: only the frame after the gap has the DISCONT flag");
        rig.begin();
        rig.frame(7).unwrap();
        rig.expect(&["stream-start", "caps 64x48", "segment", "frame 7 of 64x48"]);
        assert_eq!(rig.left()[0].is_after_gap, policy == "drop-newest", "{policy}");
    }
}

#[test]
fn upstream_waits_by_default() {
    for properties in ["", "queue-policy=wait"] {
        let slow = Slow::open("wait", 2);
        let rig = Rig::begun(&slow.detect(&format!("nireq=2 {properties}")));
        slow.hold();
        let (source, (sender, pushed)) = (rig.source.clone(), channel());
        let pushing = std::thread::spawn(move || {
            for n in 0..7 {
                source.push(black(n)).unwrap();
                sender.send(n).unwrap();
            }
        });
        for n in 0..2 {
            assert_eq!(pushed.recv_timeout(TIMEOUT.into()), Ok(n));
        }
        slow.wait_for(2);
        eventually("the third frame arrives and waits", || rig.count("frames-in") == 3);
        assert!(pushed.try_recv().is_err(), "two frames run, and none waits inside");
        slow.let_go(1);
        assert_eq!(pushed.recv_timeout(TIMEOUT.into()), Ok(2), "it gets the slot of the first completed frame");
        slow.wait_for(3);
        slow.release();
        pushing.join().unwrap();
        rig.event(gst::event::Eos::new());
        rig.until_eos();
        assert_eq!(statuses(&rig.left()), (0..7).map(|n| (n, "inferred")).collect::<Vec<_>>());
        rig.check_counts();
    }
}

#[test]
fn only_non_live_source_is_blocked() {
    let slow = Slow::open("live", 1);
    for is_live in [true, false] {
        let line = format!(
            "videotestsrc is-live={is_live} ! video/x-raw,format=RGB,width=64,height=48,framerate=200/1 ! {} ! fakesink",
            slow.detect("nireq=1 name=detect")
        );
        let pipeline = pipeline(&line);
        slow.hold();
        // Release the two runs of the warm-up, which only a live stream has.
        slow.let_go(if is_live { 2 } else { 0 });
        pipeline.set_state(gst::State::Playing).unwrap();
        let count = |field: &str| pipeline.by_name("detect").unwrap().property::<gst::Structure>("stats").get::<u64>(field).unwrap();
        if is_live {
            eventually("frames are skipped", || count("frames-in") > 10 && count("skipped-queue-policy") + count("frames-here") > 10);
            slow.let_go(1);
            eventually("skipped frames leave", || count("skipped-queue-policy") > 0);
        } else {
            eventually("the source waits", || count("frames-in") == 2);
            assert_eq!(count("skipped"), 0);
        }
        slow.release();
        pipeline.set_state(gst::State::Null).unwrap();
        assert_eq!((count("frames-here"), count("frames-in")), (0, count("frames-out") + count("dropped-flush")));
    }
}

#[test]
fn number_of_waiting_skipped_frames_is_bounded() {
    let slow = Slow::open("bounded", 1);
    for policy in ["drop-oldest", "drop-newest"] {
        let rig = Rig::begun(&slow.detect(&format!("nireq=1 queue-policy={policy}")));
        slow.hold();
        let (source, (sender, pushed)) = (rig.source.clone(), channel());
        let pushing = std::thread::spawn(move || {
            for n in 0..200 {
                source.push(black(n)).unwrap();
                let _ = sender.send(n);
            }
        });
        // The first frame is running, and no frame may overtake it.
        eventually("the source waits", || rig.count("frames-in") == 1 + 2 + 32 + 1);
        slow.release();
        pushing.join().unwrap();
        assert_eq!(pushed.iter().count(), 200);
        rig.event(gst::event::Eos::new());
        let numbers: Vec<String> = rig.until_eos();
        assert_eq!(numbers.len(), 200, "{policy}: skipped frames are not lost");
        rig.check_counts();
    }
}

#[test]
fn frame_leaves_without_results_after_max_latency() {
    let slow = Slow::open("late", 2);
    let rig = Rig::begun(&slow.detect("nireq=2 max-latency=200"));
    slow.hold();
    let begin = Instant::now();
    // Two frames are in inference, one waits. No frame completes in time.
    rig.frames(0..3);
    rig.event(marker(2));
    rig.expect(&["frame 0 of 64x48", "frame 1 of 64x48", "frame 2 of 64x48", "behind-2"]);
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(150), "expected at least 150 ms for results, got {took:?}");
    assert_eq!(statuses(&rig.left()), [(0, "max-latency"), (1, "max-latency"), (2, "max-latency")]);
    // The results of runs that end now are late and must be discarded.
    slow.release();
    eventually("the requests are idle", || rig.count("runs") >= 4);
    // Even a busy machine completes frames within this limit.
    rig.element.set_property("max-latency", 60_000_u32);
    for n in 3..8 {
        rig.frame(n).unwrap();
        assert_eq!(rig.next(), format!("frame {n} of 64x48"));
    }
    let left = rig.left();
    assert!(left.iter().all(|left| left.status == "inferred" && left.ids.len() == 1), "{left:?}");
    rig.event(gst::event::Eos::new());
    rig.until_eos();
    rig.check_counts();
    assert_eq!(rig.count("skipped-max-latency"), 3);
}

#[test]
fn late_frames_are_dropped_with_drop_frames() {
    let slow = Slow::open("late-drop", 1);
    let rig = Rig::begun(&slow.detect("nireq=1 max-latency=50 drop-frames=true"));
    slow.hold();
    rig.frames(0..2);
    eventually("both are dropped", || rig.count("dropped-max-latency") == 2);
    slow.release();
    eventually("a frame is inferred", || {
        rig.frame(2).unwrap();
        rig.count("inferred") > 0
    });
    assert!(rig.left()[0].is_after_gap);
    rig.event(gst::event::Eos::new());
    rig.until_eos();
    rig.check_counts();
}

#[test]
fn fast_camera_frames_leave_in_time_and_in_order() {
    const MAX_LATENCY: Duration = Duration::from_millis(400);
    let slow = Slow::open("camera", 1);
    let line = format!(
        "videotestsrc is-live=true num-buffers=200 ! video/x-raw,format=RGB,width=64,height=48,framerate=100/1 ! {} ! fakesink name=sink",
        slow.detect(&format!("nireq=1 name=detect max-latency={}", MAX_LATENCY.as_millis()))
    );
    let pipeline = pipeline(&line);
    let arrived = collect(&pipeline, "sink", "sink");
    let opener = slow.clone();
    let (ended, is_ended) = channel::<()>();
    // This thread simulates an engine that completes ten frames per second.
    let opening = std::thread::spawn(move || {
        while is_ended.recv_timeout(Duration::from_millis(100)).is_err() {
            opener.let_go(1);
        }
        opener.release();
    });
    slow.hold();
    let outcome = run(&pipeline);
    ended.send(()).unwrap();
    opening.join().unwrap();
    assert_eq!(outcome.error, None);
    let stats: gst::Structure = pipeline.by_name("detect").unwrap().property("stats");
    let count = |field: &str| stats.get::<u64>(field).unwrap();
    assert_eq!((count("frames-in"), count("frames-out"), count("dropped")), (200, 200, 0), "{stats}");
    assert!(count("inferred") >= 5 && count("skipped-queue-policy") > 100, "{stats}");
    // The bound is far above the limit, because machines stall. Without a policy, the last frame would leave after 18 s.
    assert!(Duration::from_nanos(count("latency-p99-ns")) < 5 * MAX_LATENCY, "{stats}");
    let numbers: Vec<u64> = arrived.lock().unwrap().iter().map(|arrived| arrived.results().unwrap().frame_number).collect();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
}

#[test]
fn max_latency_below_run_time_is_warned_about() {
    let slow = Slow::open("hopeless", 1);
    let opener = slow.clone();
    slow.hold();
    // The warm-up measures the run time.
    let opening = std::thread::spawn(move || {
        opener.wait_for(1);
        opener.let_go(1);
        opener.wait_for(2);
        std::thread::sleep(Duration::from_millis(30));
        opener.release();
    });
    let rig = Rig::begun(&slow.detect("nireq=1 max-latency=10"));
    opening.join().unwrap();
    let message = rig.bus.pop_filtered(&[gst::MessageType::Warning]).expect("a warning is posted");
    let gst::MessageView::Warning(warning) = message.view() else { unreachable!("filtered") };
    let said = warning.error().to_string();
    assert!(said.contains("max-latency is 10 ms") && said.contains("raise max-latency"), "{said}");
}

#[test]
fn inference_interval_skips_frames_with_reason() {
    let rig = Rig::begun(&detect("stripes", "inference-interval=3 drop-frames=true"));
    rig.frames(0..8);
    rig.event(gst::event::Eos::new());
    rig.until_eos();
    let status = |n: u64| if n.is_multiple_of(3) { "inferred" } else { "inference-interval" };
    assert_eq!(statuses(&rig.left()), (0..8).map(|n| (n, status(n))).collect::<Vec<_>>(), "frames skipped by interval are never dropped");
    assert_eq!((rig.count("inferred"), rig.count("skipped-inference-interval")), (3, 5));
    rig.check_counts();
}

#[test]
fn carry_results_copies_objects_to_skipped_frames() {
    let slow = Slow::open("carry", 2);
    let rig = Rig::begun(&slow.detect("inference-interval=3 carry-results=true"));
    rig.frames(0..7);
    rig.event(gst::event::FlushStart::new());
    rig.event(gst::event::FlushStop::new(true));
    rig.segment();
    rig.frames(7..13);
    rig.event(gst::event::Eos::new());
    rig.until_eos();
    let left: Vec<Left> = rig.left().into_iter().filter(|left| left.n >= 7).collect();
    let ids: Vec<&[i32]> = left.iter().map(|left| &*left.ids).collect();
    assert_eq!((ids[0], ids[1]), (&[][..], &[][..]), "results from before the flush are discarded");
    assert_eq!((ids[2].len(), ids[2], ids[2]), (1, ids[3], ids[4]), "expected the same object ID: {left:?}");
    assert!(ids[5] != ids[2] && left[3].status == "inference-interval", "{left:?}");
    assert_eq!(rig.count("objects"), rig.count("inferred"), "carried objects are not counted");
}

#[test]
fn carried_labels_follow_track_id() {
    let line = format!(
        "appsrc name=source ! {} ! {} ! fakesink name=sink",
        detect("rectangle", "inference-interval=2 carry-results=true"),
        classify("color", "inference-interval=2 carry-results=true")
    );
    let pipeline = pipeline(&line);
    let arrived = collect(&pipeline, "sink", "sink");
    let size = Size::new(64, 64);
    let rect = roiflow::frame::PixelRect { x: 16, y: 15, width: 32, height: 30 };
    let red = || crate::harness::picture(size, rect, [255, 0, 0]);
    crate::harness::feed(&pipeline, &caps("RGB", size), (0..6).map(|_| red()));
    assert_eq!(run(&pipeline).error, None);
    for (n, arrived) in arrived.lock().unwrap().iter().enumerate() {
        assert_eq!(crate::harness::labels(&arrived.results().unwrap()), ["red"], "frame {n}");
    }
}

#[test]
fn qos_skips_frames_that_are_too_late() {
    let rig = Rig::begun(&detect("stripes", "nireq=1"));
    let late = |jitter: i64, at: u64| gst::event::Qos::new(gst::QOSType::Underflow, 1.0, jitter, FRAME_TIME * at);
    let frames = |range: std::ops::Range<u64>| {
        rig.frames(range.clone());
        range.for_each(|n| assert_eq!(rig.next(), format!("frame {n} of 64x48")));
        rig.left().into_iter().map(|left| left.status).collect::<Vec<_>>()
    };
    assert_eq!(frames(0..2), ["inferred"; 2]);
    // Frame 1 was late by one frame: frames shown before frame 3 would be late as well.
    assert!(rig.sink.push_event(late(FRAME_TIME.nseconds() as i64, 1)));
    assert_eq!(frames(2..5), ["qos", "inferred", "inferred"]);
    assert!(rig.sink.push_event(late(FRAME_TIME.nseconds() as i64 * 100, 4)));
    assert_eq!(frames(5..6), ["qos"]);
    assert!(rig.sink.push_event(late(-1, 5)), "the sink has caught up");
    assert_eq!(frames(6..7), ["inferred"]);
    assert!(rig.sink.push_event(late(FRAME_TIME.nseconds() as i64 * 100, 6)));
    rig.event(gst::event::FlushStart::new());
    rig.event(gst::event::FlushStop::new(true));
    rig.segment();
    rig.expect(&["flush-start", "flush-stop", "segment"]);
    assert_eq!(frames(0..1), ["inferred"], "a flush resets the QoS time");
    rig.element.set_property("qos", false);
    assert!(rig.sink.push_event(late(FRAME_TIME.nseconds() as i64 * 100, 0)));
    assert_eq!(frames(1..2), ["inferred"]);
    assert_eq!(rig.count("skipped-qos"), 2);
    rig.check_counts();
}

#[test]
fn latency_scheduling_keeps_no_frame_waiting() {
    let slow = Slow::open("scheduling", 2);
    for (scheduling, n_inside) in [("throughput", 4), ("latency", 2)] {
        let rig = Rig::begun(&slow.detect(&format!("nireq=2 scheduling-policy={scheduling} queue-policy=drop-newest")));
        assert_eq!(rig.count("window"), n_inside);
        slow.hold();
        rig.frames(0..6);
        slow.release();
        rig.event(gst::event::Eos::new());
        rig.until_eos();
        assert_eq!(rig.count("inferred"), n_inside, "{scheduling}");
        rig.check_counts();
    }
}

/// There are four requests per CPU thread, so each run waits for three other runs.
#[test]
fn cpu_starved_runs_shrink_queue_if_upstream_waits() {
    init();
    let script = Script::computing(|io, _| {
        std::thread::sleep(Duration::from_millis(3));
        io.output(0, &[1, 1, 6])?.dense_mut::<f32>()?.copy_from_slice(&[0.0, 1.0, 0.25, 0.25, 0.75, 0.75]);
        Ok(())
    });
    roiflow::stages::Engine::of_process().register_device(Arc::new(NullDevice::instance("NULL.busy", Arc::new(script))));
    let n_rigs = 1 + 2 * std::thread::available_parallelism().unwrap().get();
    let mut rigs: Vec<Rig> = (0..n_rigs)
        .map(|idx| {
            let n_requests = if idx == 0 { "nireq=2" } else { "" };
            Rig::begun(&detect("rectangle", &format!("device=NULL.busy model-instance-id=pace-{idx} {n_requests}")))
        })
        .collect();
    assert!(rigs.iter().all(|rig| rig.count("window") == 4));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for rig in &rigs {
            let is_over = &is_over;
            let source = rig.source.clone();
            scope.spawn(move || {
                let mut numbers = 0..;
                while !is_over.load(Ordering::Relaxed) {
                    source.push(black(numbers.next().unwrap())).unwrap();
                }
            });
        }
        // Catch the panic of a failed assertion, so that the other threads can end.
        let are_smaller = || [1, n_rigs - 1].iter().all(|idx| rigs[*idx].count("window") == 2);
        let is_less = catch_unwind(AssertUnwindSafe(|| eventually("smaller windows", are_smaller)));
        is_over.store(true, Ordering::Relaxed);
        is_less.unwrap();
    });
    assert_eq!(rigs[0].count("window"), 4, "an explicit nireq keeps its queue capacity");
    rigs[1].element.set_property_from_str("queue-policy", "drop-newest");
    rigs[1].frame(0).unwrap();
    assert_eq!(rigs[1].count("window"), 4, "drop policies keep their queue capacity");
    let begun_anew = rigs.pop().unwrap();
    begun_anew.element.set_state(gst::State::Ready).unwrap();
    begun_anew.element.set_state(gst::State::Playing).unwrap();
    begun_anew.begin();
    assert_eq!(begun_anew.count("window"), 4, "a new stream starts with the full capacity");
    for rig in rigs {
        rig.event(gst::event::Eos::new());
        rig.until_eos();
        rig.check_counts();
    }
}

#[test]
fn flush_discards_waiting_frames_under_every_policy() {
    for (policy, _) in POLICIES {
        let slow = Slow::open("flush", 2);
        let rig = Rig::begun(&slow.detect(&format!("nireq=2 {policy}")));
        for round in 0..20_u64 {
            slow.hold();
            // With more frames, upstream would wait for a slot.
            let n_frames = if policy == "queue-policy=wait" { round % 3 } else { round % 9 };
            for n in 0..n_frames.min(4) {
                rig.frame(n).unwrap();
            }
            rig.event(gst::event::FlushStart::new());
            rig.event(gst::event::FlushStop::new(true));
            rig.segment();
            slow.release();
            rig.frame(100 + round).unwrap();
            let expected = format!("frame {} of 64x48", 100 + round);
            let mut flushed = false;
            loop {
                let seen = rig.next();
                flushed |= seen == "flush-stop";
                assert!(!flushed || !seen.starts_with("frame") || seen == expected, "{policy}: {seen} after the flush");
                if seen == expected {
                    break;
                }
            }
        }
        rig.event(gst::event::Eos::new());
        rig.until_eos();
        rig.check_counts();
    }
}

#[test]
fn caps_stay_with_frames_under_every_policy() {
    let sizes = [SIZE, Size::new(128, 96), Size::new(256, 192)];
    for (policy, drops) in POLICIES {
        let slow = Slow::open("caps", 2);
        let rig = Rig::begun(&slow.detect(&format!("nireq=2 {policy}")));
        let source = rig.source.clone();
        let pushing = std::thread::spawn(move || {
            for n in 0..30_u64 {
                let size = sizes[n as usize % sizes.len()];
                assert!(source.push_event(gst::event::Caps::new(&caps("RGB", size))));
                let rect = roiflow::frame::PixelRect { x: 0, y: 0, width: 0, height: 0 };
                source.push(crate::harness::stamp(crate::harness::picture(size, rect, [0; 3]), n)).unwrap();
            }
            assert!(source.push_event(gst::event::Eos::new()));
        });
        let seen = rig.until_eos();
        pushing.join().unwrap();
        let frames: Vec<&String> = seen.iter().filter(|seen| seen.starts_with("frame")).collect();
        assert!(drops || frames.len() == 30, "{policy}: {seen:?}");
        for frame in frames {
            let n: usize = frame.split(' ').nth(1).unwrap().parse().unwrap();
            assert!(frame.ends_with(&sizes[n % sizes.len()].to_string()), "{policy}: {frame}");
        }
        rig.check_counts();
    }
}

#[test]
fn serialized_query_waits_for_earlier_frames() {
    for (policy, _) in POLICIES {
        let slow = Slow::open("drain", 2);
        let rig = Rig::begun(&slow.detect(&format!("nireq=2 {policy}")));
        slow.hold();
        rig.frames(0..2);
        let opener = slow.clone();
        let opening = std::thread::spawn(move || opener.release());
        let mut query = gst::query::Allocation::new(Some(&caps("RGB", SIZE)), false);
        assert!(rig.source.peer_query(&mut query));
        assert_eq!(rig.count("frames-here"), 0, "{policy}");
        opening.join().unwrap();
        rig.check_counts();
    }
}

#[test]
fn relinked_pad_gets_frames_under_every_policy() {
    for (policy, _) in POLICIES {
        let slow = Slow::open("relink", 2);
        let rig = Rig::begun(&slow.detect(&format!("nireq=2 {policy}")));
        let srcpad = rig.element.static_pad("src").unwrap();
        for round in 0..10_u64 {
            srcpad.unlink(&rig.sink).unwrap();
            eventually("upstream gets NotLinked", || rig.frame(1) == Err(gst::FlowError::NotLinked));
            rig.link();
            let expected = format!("frame {} of 64x48", 100 + round);
            eventually("a frame arrives", || {
                let _again = rig.frame(100 + round);
                rig.left().iter().any(|left| left.n == 100 + round)
            });
            while rig.next() != expected {}
        }
        rig.event(gst::event::Eos::new());
        rig.until_eos();
        rig.check_counts();
    }
}

#[test]
fn random_order_keeps_events_and_frames_under_every_policy() {
    let seed = std::env::var("ROIFLOW_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64);
    eprintln!("ROIFLOW_SEED={seed}");
    for (policy, _) in POLICIES {
        let mut random = Random(seed | 1);
        let slow = Slow::open("random", 2);
        let rig = Rig::begun(&slow.detect(&format!("nireq=2 {policy} inference-interval={}", 1 + random.below(2))));
        slow.hold();
        let (opener, ended) = (slow.clone(), Arc::new(AtomicBool::new(false)));
        let (of_opener, mut pauses) = (ended.clone(), Random(random.next() | 1));
        let opening = std::thread::spawn(move || {
            while !of_opener.load(Ordering::Acquire) {
                opener.let_go(1);
                std::thread::sleep(Duration::from_micros(pauses.below(1500)));
            }
            opener.release();
        });
        let (mut n_markers, mut n_flushes) = (0, 0);
        for n in 0..200 {
            match random.below(20) {
                0 => {
                    rig.event(gst::event::FlushStart::new());
                    rig.event(gst::event::FlushStop::new(true));
                    rig.segment();
                    n_flushes += 1;
                }
                1..=3 => {
                    rig.event(marker(n));
                    n_markers += 1;
                }
                4 => rig.event(gst::event::Gap::builder(FRAME_TIME * n).duration(FRAME_TIME).build()),
                5 => drop(rig.source.peer_query(&mut gst::query::Allocation::new(Some(&caps("RGB", SIZE)), false))),
                _ => {}
            }
            rig.frame(n).unwrap();
        }
        rig.event(gst::event::Eos::new());
        let seen = rig.until_eos();
        ended.store(true, Ordering::Release);
        opening.join().unwrap();
        let left = rig.left();
        assert!(left.windows(2).all(|pair| pair[0].n < pair[1].n), "{policy}: {:?}", statuses(&left));
        let numbers: Vec<u64> = seen.iter().filter_map(|seen| seen.strip_prefix("behind-")?.parse().ok()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{policy}: {numbers:?}");
        assert!(n_flushes > 0 || numbers.len() == n_markers, "{policy}: only a flush removes events");
        // A marker follows the previous frame and precedes the frame with the same number.
        let mut last = None;
        for seen in &seen {
            if let Some(n) = seen.strip_prefix("frame ").and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok()) {
                last = Some(n);
            } else if let Some(n) = seen.strip_prefix("behind-").and_then(|n| n.parse::<u64>().ok()) {
                assert!(last.is_none_or(|last| last < n), "{policy}: {seen} after frame {last:?}");
            }
        }
        assert!(rig.count("inferred") > 0, "{policy}");
        rig.check_counts();
    }
}

/// Pseudorandom numbers (xorshift), sufficient for tests.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

#[test]
fn resident_memory_is_flat_over_a_thousand_state_changes() {
    if !is_alone() {
        return;
    }
    // READY keeps the models, NULL releases them.
    for (state, n_rounds) in [(gst::State::Ready, 5000), (gst::State::Null, 1000)] {
        let line = format!(
            "videotestsrc ! video/x-raw,format=RGB,width=64,height=48 ! {} ! {} ! fakesink name=sink",
            detect("rectangle", "nireq=2 device=CPU queue-policy=drop-oldest"),
            classify("color", "nireq=2 device=CPU max-latency=100")
        );
        let pipeline = pipeline(&line);
        let (sender, passed) = channel();
        on_buffers(&pipeline, "sink", "sink", move |_, _| {
            let _ = sender.send(());
        });
        let mut resident = Vec::new();
        for round in 0..n_rounds {
            pipeline.set_state(gst::State::Playing).unwrap();
            if round % 2 == 0 {
                passed.recv_timeout(TIMEOUT.into()).unwrap();
            }
            pipeline.set_state(state).unwrap();
            while passed.try_recv().is_ok() {}
            while pipeline.bus().unwrap().pop().is_some() {}
            if (round + 1) % (n_rounds / 10) == 0 {
                resident.push(crate::flow::resident_kib());
            }
        }
        pipeline.set_state(gst::State::Null).unwrap();
        eprintln!("resident KiB after each tenth of {n_rounds} changes to {state:?}: {resident:?}");
        assert!(resident[9].saturating_sub(resident[1]) < 1024, "{state:?}: {resident:?}");
    }
}
