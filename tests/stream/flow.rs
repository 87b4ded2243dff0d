//! No hangs, no losses, no reordering: EOS, flushes, seeks, stops, caps, events, downstream errors, queries, pools, memory and threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;
use gstreamer_app as gst_app;
use roiflow::devices::null::Gate;
use roiflow::frame::{PixelRect, Size};

use crate::harness::{
    FRAME_TIME, Folder, Slow, TIMEOUT, assert_near, caps, classify, collect, detect, detect_compiled_through, eventually, is_alone,
    make_clip, on_buffers, picture, pipeline, run, stamp,
};
use crate::rig::{OTHER_SIZE, Rig, SIZE, refusal};

/// Capacity of the in-flight queue with `nireq` requests.
fn queue_capacity(nireq: usize) -> usize {
    nireq + 2
}

#[test]
fn serialized_events_stay_in_order() {
    let rig = Rig::begun(&detect("rectangle", "nireq=4"));
    let custom = |name: &str| gst::event::CustomDownstream::new(gst::Structure::new_empty(name));
    let mut tags = gst::TagList::new();
    tags.get_mut().unwrap().add::<gst::tags::Title>(&"title", gst::TagMergeMode::Append);
    for round in 0..20 {
        rig.frame(round * 4).unwrap();
        rig.event(custom("first"));
        rig.frame(round * 4 + 1).unwrap();
        rig.frame(round * 4 + 2).unwrap();
        rig.event(gst::event::Gap::builder(FRAME_TIME * round).duration(FRAME_TIME).build());
        rig.event(gst::event::Tag::new(tags.clone()));
        rig.event(custom("second"));
        rig.frame(round * 4 + 3).unwrap();
        let frame = |n| format!("frame {} of 64x48", round * 4 + n);
        let expected = [&*frame(0), "first", &*frame(1), &*frame(2), "gap", "tag", "second", &*frame(3)];
        rig.expect(&expected);
    }
    rig.event(gst::event::Eos::new());
    rig.expect(&["eos"]);
}

#[test]
fn eos_follows_all_frames() {
    let rig = Rig::begun(&detect("stripes", "nireq=8"));
    for n in 0..30 {
        rig.frame(n).unwrap();
    }
    rig.event(gst::event::Eos::new());
    for n in 0..30 {
        rig.expect(&[&format!("frame {n} of 64x48")]);
    }
    rig.expect(&["eos"]);
}

#[test]
fn flush_discards_frames_but_stores_sticky_events() {
    let rig = Rig::begun(&detect("stripes", "nireq=4"));
    let mut tags = gst::TagList::new();
    tags.get_mut().unwrap().add::<gst::tags::Title>(&"title", gst::TagMergeMode::Append);
    for round in 0..200_u64 {
        let size = if round % 2 == 0 { OTHER_SIZE } else { SIZE };
        let n_frames = round % 5;
        for n in 0..n_frames {
            rig.frame(n).unwrap();
        }
        // The flush follows directly after the sticky events, which upstream sends only once.
        rig.event(gst::event::Caps::new(&caps("RGB", size)));
        rig.event(gst::event::Tag::new(tags.clone()));
        rig.event(gst::event::FlushStart::new());
        rig.event(gst::event::FlushStop::new(true));
        rig.segment();
        let rect = PixelRect { x: 0, y: 0, width: 0, height: 0 };
        rig.source.push(stamp(picture(size, rect, [0; 3]), 1000 + round)).unwrap();
        let expected = format!("frame {} of {size}", 1000 + round);
        let mut flushed = false;
        loop {
            let seen = rig.next();
            if seen == expected {
                break;
            }
            flushed |= seen == "flush-stop";
            assert!(!(flushed && seen.starts_with("frame")), "round {round}: {seen} after the flush");
            assert!(!seen.contains("no caps"), "round {round}");
        }
        assert!(flushed, "round {round}: a frame from after the flush arrived before it");
        let tag = rig.sink.sticky_event::<gst::event::Tag>(0).expect("the tags are stored");
        assert_eq!(tag.tag().get::<gst::tags::Title>().unwrap().get(), "title");
    }
}

#[test]
fn flush_wakes_blocked_upstream() {
    let rig = Rig::begun(&detect("rectangle", "nireq=2"));
    // Downstream blocks until it is flushed, like a sink in PAUSED.
    let (blocked, is_blocked) = channel();
    rig.answer(move |pad| {
        let _ = blocked.send(());
        while !pad.pad_flags().contains(gst::PadFlags::FLUSHING) {
            std::thread::yield_now();
        }
        Err(gst::FlowError::Flushing)
    });
    let source = rig.source.clone();
    let pushing = std::thread::spawn(move || refusal(&source));
    is_blocked.recv_timeout(TIMEOUT.into()).unwrap();
    rig.event(gst::event::FlushStart::new());
    assert_eq!(pushing.join().unwrap(), gst::FlowError::Flushing);
    rig.answer(|_| Ok(gst::FlowSuccess::Ok));
    rig.event(gst::event::FlushStop::new(true));
    rig.segment();
    rig.frame(5).unwrap();
    rig.expect(&["flush-start", "flush-stop", "segment", "frame 5 of 64x48"]);
}

#[test]
fn flush_from_task_thread_does_not_hang() {
    let rig = Rig::begun(&detect("rectangle", "nireq=2"));
    // Downstream seeks during a push, like a seek in the callback of a sink.
    let source = rig.source.clone();
    let mut n_seeks = 0;
    rig.answer(move |_| {
        n_seeks += 1;
        if n_seeks <= 3 {
            assert!(source.push_event(gst::event::FlushStart::new()));
            assert!(source.push_event(gst::event::FlushStop::new(true)));
            return Err(gst::FlowError::Flushing);
        }
        Ok(gst::FlowSuccess::Ok)
    });
    for round in 0..3 {
        // The flush may arrive before the frame.
        let pushed = rig.frame(round);
        assert!(matches!(pushed, Ok(_) | Err(gst::FlowError::Flushing)), "{pushed:?}");
        rig.expect(&["flush-start", "flush-stop"]);
        rig.segment();
        rig.expect(&["segment"]);
    }
    rig.frame(9).unwrap();
    rig.expect(&["frame 9 of 64x48"]);
    assert!(!rig.has_error());
}

#[test]
fn flush_stop_without_start_does_not_hang() {
    let rig = Rig::begun(&detect("rectangle", ""));
    rig.event(gst::event::FlushStop::new(true));
    rig.segment();
    rig.frame(3).unwrap();
    rig.expect(&["flush-stop", "segment", "frame 3 of 64x48"]);
}

#[test]
fn upstream_gets_eos_and_may_begin_another_stream() {
    for nireq in [1, 4] {
        let rig = Rig::begun(&detect("rectangle", &format!("nireq={nireq}")));
        rig.answer(|_| Err(gst::FlowError::Eos));
        assert_eq!(rig.refusal(), gst::FlowError::Eos);
        rig.event(gst::event::Eos::new());
        rig.expect(&["eos"]);
        rig.answer(|_| Ok(gst::FlowSuccess::Ok));
        rig.event(gst::event::StreamStart::new("another"));
        rig.event(gst::event::Caps::new(&caps("RGB", SIZE)));
        rig.segment();
        rig.frame(5).unwrap();
        rig.expect(&["stream-start", "caps 64x48", "segment", "frame 5 of 64x48"]);
        assert!(!rig.has_error());
    }
}

#[test]
fn segment_after_downstream_eos_restarts_stream() {
    let rig = Rig::begun(&detect("rectangle", "nireq=4"));
    let (let_go, gate) = channel();
    let mut ended = false;
    rig.answer(move |_| {
        if std::mem::replace(&mut ended, true) {
            return Ok(gst::FlowSuccess::Ok);
        }
        gate.recv().unwrap();
        Err(gst::FlowError::Eos)
    });
    rig.frame(0).unwrap();
    rig.frame(1).unwrap();
    rig.event(gst::event::Caps::new(&caps("RGB", OTHER_SIZE)));
    rig.event(gst::event::Caps::new(&caps("RGB", SIZE)));
    rig.segment();
    rig.frame(2).unwrap();
    let_go.send(()).unwrap();
    assert_eq!(rig.next(), "caps 64x48", "frame 1 is dropped with the rest of its segment, but the caps are stored");
    rig.expect(&["segment", "frame 2 of 64x48"]);
    rig.frame(3).unwrap();
    rig.expect(&["frame 3 of 64x48"]);
}

#[test]
fn downstream_error_reaches_upstream_or_bus() {
    for error in [gst::FlowError::Error, gst::FlowError::NotNegotiated, gst::FlowError::NotLinked, gst::FlowError::NotSupported] {
        let rig = Rig::begun(&detect("rectangle", "nireq=2"));
        rig.answer(move |_| Err(error));
        assert_eq!(rig.refusal(), error);
        assert!(!rig.has_error(), "{error:?}: upstream reports it");
        assert!(!rig.source.push_event(gst::event::Eos::new()));
        assert!(rig.error().contains(&format!("{error:?}")), "after EOS, upstream gets no flow return");

        let rig = Rig::begun(&detect("rectangle", "nireq=2"));
        let (let_go, gate) = channel();
        rig.answer(move |_| {
            let _ = gate.recv();
            Err(error)
        });
        rig.frame(0).unwrap();
        rig.frame(1).unwrap();
        rig.event(gst::event::Eos::new());
        let_go.send(()).unwrap();
        assert!(rig.error().contains(&format!("{error:?}")));
    }
}

#[test]
fn buffer_without_caps_is_an_error() {
    let rig = Rig::new(&detect("rectangle", "nireq=1"));
    rig.link();
    rig.event(gst::event::StreamStart::new("stream"));
    rig.segment();
    for n in 0..10 {
        assert_eq!(rig.frame(n), Err(gst::FlowError::NotNegotiated));
    }
    assert!(rig.error().contains("raw video"));
    rig.event(gst::event::FlushStart::new());
    rig.event(gst::event::FlushStop::new(true));
    rig.begin();
    rig.frame(11).unwrap();
    rig.event(gst::event::Eos::new());
    let mut last = Vec::new();
    while last.last().is_none_or(|seen| seen != "eos") {
        last.push(rig.next());
    }
    assert!(last.ends_with(&["caps 64x48".into(), "segment".into(), "frame 11 of 64x48".into(), "eos".into()]), "{last:?}");
}

#[test]
fn pipelines_end_after_any_downstream_result() {
    let source = "videotestsrc num-buffers=40 ! video/x-raw,format=RGB,width=64,height=48";
    let detect = detect("rectangle", "nireq=4");
    for (rest, error) in [
        ("identity error-after=5 ! fakesink", Some("Failed after iterations as requested")),
        ("identity eos-after=5 ! fakesink", None),
        ("identity ! fakesink num-buffers=7", None),
        ("fakesink", None),
    ] {
        let ending = run(&pipeline(&format!("{source} ! {detect} ! {rest}")));
        assert_eq!(ending.error.is_some(), error.is_some(), "{rest}: {ending:?}");
        assert!(ending.error.unwrap_or_default().contains(error.unwrap_or_default()), "{rest}");
    }
    for n_frames in [1, 2, 40] {
        let line = format!("videotestsrc num-buffers={n_frames} ! video/x-raw,format=RGB,width=64,height=48 ! {detect}");
        assert!(run(&pipeline(&line)).error.is_some(), "{n_frames} frames to an unlinked pad");
    }
}

#[test]
fn changed_caps_stay_with_their_frames() {
    let line = format!(
        "appsrc name=source format=time ! {} ! {} ! fakesink name=sink",
        detect("rectangle", "nireq=4"),
        classify("color", "nireq=2")
    );
    let pipeline = pipeline(&line);
    let arrived = collect(&pipeline, "sink", "sink");
    let source: gst_app::AppSrc = pipeline.by_name("source").unwrap().downcast().unwrap();
    let cases = [("RGB", SIZE), ("BGR", SIZE), ("RGB", OTHER_SIZE), ("RGB", Size::new(256, 192))];
    let rect = |size: Size| PixelRect { x: size.width / 4, y: size.height / 8 * 2, width: size.width / 2, height: size.height / 4 };
    for round in 0..40_usize {
        let (format, size) = cases[round % cases.len()];
        let buffer = stamp(picture(size, rect(size), [255, 0, 0]), round as u64);
        source.push_sample(&gst::Sample::builder().caps(&caps(format, size)).buffer(&buffer).build()).unwrap();
    }
    source.end_of_stream().unwrap();
    assert_eq!(run(&pipeline).error, None);
    let arrived = arrived.lock().unwrap();
    assert_eq!(arrived.len(), 40);
    for (round, arrived) in arrived.iter().enumerate() {
        let (format, size) = cases[round % cases.len()];
        assert_eq!(arrived.caps.structure(0).unwrap().get::<&str>("format").unwrap(), format, "frame {round}");
        assert_eq!((arrived.size(), arrived.buffer.pts()), (size, Some(FRAME_TIME * round as u64)));
        let results = arrived.results().unwrap();
        assert_eq!(results.size, size);
        assert_near(results.detections[0].rect, rect(size).to_rect(), 0.01, &format!("frame {round}"));
        assert_eq!(crate::harness::labels(&results), [if format == "RGB" { "red" } else { "blue" }], "frame {round}");
    }
}

#[test]
fn seeks_neither_hang_nor_reorder() {
    let folder = Folder::new("seek");
    make_clip(&folder.file("clip.mkv"), 50, "matroskamux");
    for policy in ["", "queue-policy=drop-oldest max-latency=20", "queue-policy=drop-newest scheduling-policy=latency"] {
        seek_about(&folder.file("clip.mkv"), policy);
    }
}

fn seek_about(clip: &str, policy: &str) {
    let line = format!(
        "filesrc location=\"{}\" ! decodebin ! videoconvert ! {} ! {} ! fakesink name=sink",
        clip,
        detect("rectangle", &format!("nireq=4 {policy}")),
        classify("color", "")
    );
    let pipeline = pipeline(&line);
    let (sender, passed) = channel();
    on_buffers(&pipeline, "sink", "sink", move |_, buffer| {
        let _ = sender.send(buffer.pts().unwrap());
    });
    pipeline.set_state(gst::State::Playing).unwrap();
    for round in 0..25_u64 {
        // Seek after a few frames.
        for _ in 0..round % 7 + 1 {
            passed.recv_timeout(TIMEOUT.into()).expect("frames arrive");
        }
        // Discards earlier frames before the seek, because frames of the new segment may arrive before the seek returns.
        while passed.try_recv().is_ok() {}
        pipeline.seek_simple(gst::SeekFlags::FLUSH | gst::SeekFlags::ACCURATE, FRAME_TIME * (round % 3 * 10)).unwrap();
    }
    // Frames from before the seek may arrive first. EOS on the bus may also be from before the seek, so the test does not check EOS.
    let mut times: Vec<gst::ClockTime> = Vec::new();
    while times.len() < 50 || times.last() != Some(&(FRAME_TIME * 49)) {
        let time = passed.recv_timeout(TIMEOUT.into());
        times.push(time.unwrap_or_else(|_| panic!("{policy}: expected 50 frames after the last seek, got {times:?}")));
    }
    assert!(pipeline.bus().unwrap().pop_filtered(&[gst::MessageType::Error]).is_none());
    pipeline.set_state(gst::State::Null).unwrap();
    let last = &times[times.len() - 50..];
    assert!(last.windows(2).all(|pair| pair[0] < pair[1]), "{last:?}");
}

#[test]
fn models_of_pipeline_load_in_parallel() {
    let gates = [Gate::closed(), Gate::closed()];
    let elements = ["load-a", "load-b"].iter().zip(&gates).map(|(name, gate)| detect_compiled_through(gate, name));
    let pipeline = pipeline(&format!("videotestsrc num-buffers=3 ! {} ! fakesink", elements.collect::<Vec<_>>().join(" ! ")));
    pipeline.set_state(gst::State::Ready).unwrap();
    // Both models load at the same time.
    gates.iter().for_each(|gate| gate.wait_for_arrivals(1));
    gates.iter().for_each(|gate| gate.admit(1));
    assert_eq!(run(&pipeline).error, None);
    // A stop before the models are loaded waits until they are loaded.
    pipeline.set_state(gst::State::Ready).unwrap();
    gates.iter().for_each(|gate| gate.wait_for_arrivals(2));
    gates.iter().for_each(|gate| gate.open());
    pipeline.set_state(gst::State::Null).unwrap();
}

#[test]
fn stop_in_mid_stream_returns_at_once() {
    let line = format!(
        "videotestsrc ! video/x-raw,format=NV12,width=320,height=240 ! {} ! {} ! roioverlay ! fakesink name=sink",
        detect("stripes", ""),
        classify("color", "")
    );
    // Measures only the stops, because starting loads models.
    let mut stopping = Duration::ZERO;
    for n_frames in 0..50 {
        let pipeline = pipeline(&line);
        let (sender, passed) = channel();
        on_buffers(&pipeline, "sink", "sink", move |_, _| {
            let _ = sender.send(());
        });
        pipeline.set_state(gst::State::Playing).unwrap();
        for _ in 0..n_frames % 5 {
            passed.recv_timeout(TIMEOUT.into()).unwrap();
        }
        let begin = Instant::now();
        pipeline.set_state(gst::State::Null).unwrap();
        stopping += begin.elapsed();
    }
    assert!(stopping < Duration::from_secs(25), "{stopping:?}");
}

#[test]
fn pipeline_may_be_restarted_repeatedly() {
    let line = format!(
        "videotestsrc num-buffers=5 ! video/x-raw,format=RGB,width=64,height=48 ! {} ! fakesink name=sink",
        detect("rectangle", "name=detect")
    );
    let pipeline = pipeline(&line);
    let arrived = collect(&pipeline, "sink", "sink");
    for round in 1..=50 {
        // READY keeps the model, NULL releases it; every third stop is in mid-stream.
        if round % 3 == 0 {
            pipeline.set_state(gst::State::Playing).unwrap();
            pipeline.set_state(if round % 2 == 0 { gst::State::Ready } else { gst::State::Null }).unwrap();
            continue;
        }
        arrived.lock().unwrap().clear();
        let ending = run(&pipeline);
        assert_eq!((ending.error, ending.warnings), (None, vec![]));
        let numbers: Vec<u64> = arrived.lock().unwrap().iter().map(|arrived| arrived.results().unwrap().frame_number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4], "round {round}");
    }
    let stats: gst::Structure = pipeline.by_name("detect").unwrap().property("stats");
    assert_eq!(stats.get::<u64>("failed").unwrap(), 0, "{stats}");
}

#[test]
fn live_pipeline_reports_latency() {
    for (source, live) in [("videotestsrc is-live=true", true), ("videotestsrc", false)] {
        let line =
            format!("{source} ! video/x-raw,format=RGB,width=64,height=48 ! {} ! fakesink name=sink", detect("rectangle", "name=detect"));
        let pipeline = pipeline(&line);
        let (sender, passed) = channel();
        on_buffers(&pipeline, "sink", "sink", move |_, _| {
            let _ = sender.send(());
        });
        pipeline.set_state(gst::State::Playing).unwrap();
        passed.recv_timeout(TIMEOUT.into()).unwrap();
        let latency_at = |pad: &str| {
            let mut query = gst::query::Latency::new();
            let pad = pipeline.by_name("detect").unwrap().static_pad(pad).unwrap();
            assert!(if pad.direction() == gst::PadDirection::Src { pad.query(&mut query) } else { pad.peer_query(&mut query) });
            query.result()
        };
        let (before, after) = (latency_at("sink"), latency_at("src"));
        assert_eq!((before.0, after.0), (live, live));
        assert!(after.1 > before.1, "{after:?} after the element, {before:?} before it");
        assert!(after.1 < before.1 + gst::ClockTime::from_seconds(1), "{after:?}");
        pipeline.set_state(gst::State::Null).unwrap();
    }
}

#[test]
fn slow_sink_does_not_raise_latency() {
    let line = format!(
        "videotestsrc num-buffers=20 ! video/x-raw,format=RGB,width=64,height=48,framerate=50/1 ! {} ! fakesink sync=true",
        detect("rectangle", "name=detect nireq=8")
    );
    let pipeline = pipeline(&line);
    assert_eq!(run(&pipeline).error, None);
    let element = pipeline.by_name("detect").unwrap();
    let bus_said = pipeline.bus().unwrap().pop_filtered(&[gst::MessageType::Latency]);
    assert!(bus_said.is_none_or(|message| message.src() != Some(element.upcast_ref())));
}

#[test]
fn allocation_query_adds_queue_capacity() {
    let n_more = queue_capacity(4) as u32;
    let ask = |downstream: Option<(u32, u32)>| {
        let rig = Rig::begun(&detect("rectangle", "nireq=4"));
        rig.sink.set_active(false).unwrap();
        // SAFETY: the pad is not active, so nothing streams.
        unsafe {
            rig.sink.set_query_function(move |_, _, query| match (query.view_mut(), downstream) {
                (gst::QueryViewMut::Allocation(allocation), Some((min, max))) => {
                    allocation.add_allocation_pool(None::<&gst::BufferPool>, 9216, min, max);
                    true
                }
                _ => false,
            });
        }
        rig.sink.set_active(true).unwrap();
        let mut query = gst::query::Allocation::new(Some(&caps("RGB", SIZE)), true);
        assert!(rig.source.peer_query(&mut query));
        query.allocation_pools().map(|(_, size, min, max)| (size, min, max)).collect::<Vec<_>>()
    };
    assert_eq!(ask(None), [(9216, n_more, 0)]);
    assert_eq!(ask(Some((2, 0))), [(9216, 2 + n_more, 0)]);
    assert_eq!(ask(Some((2, 5))), [(9216, 2 + n_more, 5 + n_more)]);
}

#[test]
fn source_with_four_buffers_does_not_stall() {
    for nireq in [1, 4, 16] {
        let line = format!(
            "appsrc name=source format=time ! {} ! {} ! fakesink",
            detect("rectangle", &format!("nireq={nireq}")),
            classify("color", "")
        );
        let pipeline = pipeline(&line);
        let source: gst_app::AppSrc = pipeline.by_name("source").unwrap().downcast().unwrap();
        source.set_caps(Some(&caps("RGB", SIZE)));
        let feeding = std::thread::spawn(move || {
            let pool = pool_of_four();
            for n in 0..100 {
                // Blocks until one of the four buffers is returned.
                let mut buffer = pool.acquire_buffer(None).unwrap();
                buffer.get_mut().unwrap().memset(.., 0).unwrap();
                source.push_buffer(stamp(buffer, n)).unwrap();
            }
            source.end_of_stream().unwrap();
            pool
        });
        assert_eq!(run(&pipeline).error, None, "nireq={nireq}");
        feeding.join().unwrap().set_active(false).unwrap();
    }
}

/// Pushes 40 frames from a pool of four buffers, each as soon as a buffer is free.
fn feed_from_a_pool(source: gst::Pad) -> std::thread::JoinHandle<()> {
    let pool = pool_of_four();
    std::thread::spawn(move || {
        for n in 0..40 {
            let mut buffer = pool.acquire_buffer(None).unwrap();
            buffer.get_mut().unwrap().memset(.., 0).unwrap();
            source.push(stamp(buffer, n)).unwrap();
        }
        assert!(source.push_event(gst::event::Eos::new()));
        pool.set_active(false).unwrap();
    })
}

/// Returns a pool with exactly four buffers.
fn pool_of_four() -> gst::BufferPool {
    let pool = gst::BufferPool::new();
    let mut config = pool.config();
    config.set_params(Some(&caps("RGB", SIZE)), SIZE.width * SIZE.height * 3, 4, 4);
    pool.set_config(config).unwrap();
    pool.set_active(true).unwrap();
    pool
}

#[test]
fn drop_policies_leave_a_free_buffer_in_small_pool() {
    // The elements are in a row, or in parallel on the same buffers.
    let shapes: [fn(&str, &str) -> String; 2] = [
        |first, second| format!("{first} ! {second} ! fakesink enable-last-sample=false async=false"),
        |first, second| {
            let sink = "fakesink enable-last-sample=false async=false";
            format!("tee name=t t. ! {first} ! {sink} t. ! {second} ! {sink}")
        },
    ];
    for shape in shapes {
        let slow = Slow::open("small-pool", 2);
        let line = shape(
            &slow.detect("name=first nireq=2 queue-policy=drop-oldest"),
            &slow.detect("name=second nireq=2 queue-policy=drop-newest model-instance-id=other"),
        );
        let pipeline = gst::Pipeline::new();
        let bin = gst::parse::bin_from_description(&line, true).unwrap();
        pipeline.add(&bin).unwrap();
        let source = gst::Pad::new(gst::PadDirection::Src);
        source.set_active(true).unwrap();
        source.link(&bin.static_pad("sink").unwrap()).unwrap();
        pipeline.set_state(gst::State::Playing).unwrap();
        source.push_event(gst::event::StreamStart::new("camera"));
        source.push_event(gst::event::Caps::new(&caps("RGB", SIZE)));
        source.push_event(gst::event::Segment::new(&gst::FormattedSegment::<gst::ClockTime>::new()));
        let stats = |name: &str| bin.by_name(name).unwrap().property::<gst::Structure>("stats");
        let count = |name: &str, field: &str| stats(name).get::<u64>(field).unwrap();
        let pool = pool_of_four();
        slow.hold();
        // No run ends during these pushes. With `DONTWAIT`, the test fails if the pool has no free buffer for the next frame.
        for n in 0..30 {
            let params = gst::BufferPoolAcquireParams::with_flags(gst::BufferPoolAcquireFlags::DONTWAIT);
            let mut buffer = pool.acquire_buffer(Some(&params)).unwrap_or_else(|_| panic!("{line}: a camera would lose frame {n}"));
            buffer.get_mut().unwrap().memset(.., 0).unwrap();
            source.push(stamp(buffer, n)).unwrap();
        }
        slow.release();
        source.push_event(gst::event::Eos::new());
        eventually("all frames have left", || count("first", "frames-here") + count("second", "frames-here") == 0);
        assert!(count("first", "copied") + count("second", "copied") > 0, "{}, {}", stats("first"), stats("second"));
        pipeline.set_state(gst::State::Null).unwrap();
        pool.set_active(false).unwrap();
    }
}

#[test]
fn flush_stop_after_deactivation_starts_nothing() {
    let rig = Rig::begun(&detect("rectangle", ""));
    let srcpad = rig.element.static_pad("src").unwrap();
    // Simulates a state change during a seek on another thread.
    srcpad.set_active(false).unwrap();
    rig.event(gst::event::FlushStart::new());
    let _refused = rig.source.push_event(gst::event::FlushStop::new(true));
    assert_eq!(srcpad.task_state(), gst::TaskState::Stopped);
    let _refused = srcpad.send_event(gst::event::Reconfigure::new());
    assert_eq!(srcpad.task_state(), gst::TaskState::Stopped);
    rig.element.set_state(gst::State::Ready).unwrap();
    // The sink has received FLUSH_START but no FLUSH_STOP, so restart it.
    rig.sink.set_active(false).unwrap();
    rig.sink.set_active(true).unwrap();
    rig.element.set_state(gst::State::Playing).unwrap();
    rig.begin();
    rig.frame(0).unwrap();
    while rig.next() != "frame 0 of 64x48" {}
}

#[test]
fn restart_during_flush_leaves_working_stream() {
    let rig = Rig::begun(&detect("rectangle", "nireq=1"));
    for round in 0..300 {
        let source = rig.source.clone();
        let flushing = std::thread::spawn(move || {
            source.push_event(gst::event::FlushStart::new());
            source.push_event(gst::event::FlushStop::new(true));
        });
        rig.element.set_state(gst::State::Ready).unwrap();
        rig.element.set_state(gst::State::Playing).unwrap();
        flushing.join().unwrap();
        // The sink was not restarted with the element, and may still be flushing, so restart it.
        rig.sink.set_active(false).unwrap();
        rig.sink.set_active(true).unwrap();
        rig.begin();
        rig.frame(round).unwrap();
        let frame = format!("frame {round} of 64x48");
        while rig.next() != frame {}
    }
    assert!(!rig.has_error());
}

#[test]
fn concurrent_flushes_and_stops_do_not_hang() {
    let rig = Rig::begun(&detect("rectangle", "nireq=2"));
    let is_over = Arc::new(AtomicBool::new(false));
    let (source, over) = (rig.source.clone(), is_over.clone());
    // This thread sends only flushes and no frames. The element may be reactivated at any time, and frames would then arrive without caps
    // and segment.
    let flushing = std::thread::spawn(move || {
        while !over.load(Ordering::Acquire) {
            source.push_event(gst::event::FlushStart::new());
            source.push_event(gst::event::FlushStop::new(true));
        }
    });
    for _ in 0..300 {
        rig.element.set_state(gst::State::Ready).unwrap();
        rig.element.set_state(gst::State::Playing).unwrap();
    }
    is_over.store(true, Ordering::Release);
    flushing.join().unwrap();
    rig.element.set_state(gst::State::Ready).unwrap();
}

#[test]
fn small_pool_shrinks_queue_or_copies_frames() {
    // Upstream uses one of four buffers, so three may be in flight.
    for (nireq, window, n_copied, said) in [(1, 3, 0, None), (2, 3, 0, Some("at most 3")), (4, 6, 2, Some("frames are copied while 3"))] {
        let slow = Slow::open("pool", nireq);
        let rig = Rig::begun(&slow.detect(&format!("nireq={nireq}")));
        slow.hold();
        let feeding = feed_from_a_pool(rig.source.clone());
        // The element holds one frame more than it has requests.
        eventually("all requests run", || rig.count("frames-here") == nireq as u64 + 1);
        slow.wait_for(nireq);
        eventually("what is too much is copied", || rig.count("copied") >= n_copied);
        assert_eq!(rig.count("window"), window, "{nireq} requests");
        slow.release();
        feeding.join().unwrap();
        rig.until_eos();
        assert_eq!(rig.count("inferred"), 40);
        assert!(nireq > 2 || rig.count("copied") == 0, "{nireq} requests");
        rig.check_counts();
        let infos: Vec<gst::Message> = std::iter::from_fn(|| rig.bus.pop_filtered(&[gst::MessageType::Info])).collect();
        let texts: Vec<String> = infos
            .iter()
            .map(|message| match message.view() {
                gst::MessageView::Info(info) => info.error().to_string(),
                _ => unreachable!("filtered"),
            })
            .collect();
        assert_eq!(texts.len(), usize::from(said.is_some()), "{texts:?}");
        assert!(said.is_none_or(|said| texts[0].contains(said) && texts[0].contains("upstream's pool has 4 buffers")), "{texts:?}");
    }
}

#[test]
fn pixels_are_not_copied_from_source_to_overlay() {
    let line = format!(
        "videotestsrc num-buffers=20 ! video/x-raw,format=NV12,width=320,height=240 ! identity name=in ! {} ! {} ! roioverlay ! fakesink name=sink",
        detect("stripes", "nireq=4"),
        classify("color", "")
    );
    let pipeline = pipeline(&line);
    let addresses = |element: &str| {
        let addresses = Arc::new(Mutex::new(Vec::new()));
        let seen = addresses.clone();
        on_buffers(&pipeline, element, "sink", move |_, buffer| {
            seen.lock().unwrap().push(buffer.map_readable().unwrap().as_ptr() as usize);
        });
        addresses
    };
    let (before, after) = (addresses("in"), addresses("sink"));
    assert_eq!(run(&pipeline).error, None);
    assert_eq!(before.lock().unwrap().len(), 20);
    assert_eq!(*before.lock().unwrap(), *after.lock().unwrap());
}

#[test]
fn thread_count_is_independent_of_request_count() {
    if !is_alone() {
        return;
    }
    let n_threads = |nireq: usize| {
        let line = format!(
            "videotestsrc num-buffers=60 ! video/x-raw,format=RGB,width=64,height=48 ! {} ! {} ! fakesink name=sink",
            detect("rectangle", &format!("nireq={nireq} device=CPU")),
            classify("color", &format!("nireq={nireq} device=CPU"))
        );
        let pipeline = pipeline(&line);
        let least = Arc::new(Mutex::new(usize::MAX));
        let seen = least.clone();
        on_buffers(&pipeline, "sink", "sink", move |_, _| {
            // Threads that load models, and GStreamer's state-change threads (GLib's pool), are temporary.
            let stays = |name: &String| name != "roiflow-load\n" && !name.starts_with("pool-");
            let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.unwrap().path().join("comm"));
            let mut least = seen.lock().unwrap();
            let n_threads = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| name(task).ok()).filter(stays).count();
            *least = n_threads.min(*least);
        });
        assert_eq!(run(&pipeline).error, None);
        *least.lock().unwrap()
    };
    n_threads(1);
    let counts = [1, 4, 64, 512].map(n_threads);
    eprintln!("threads with 1, 4, 64 and 512 requests: {counts:?}");
    // An exiting thread may still be counted on a busy machine.
    assert!(counts.iter().all(|count| count.abs_diff(counts[0]) <= 2), "{counts:?}");
}

#[test]
fn resident_memory_is_flat_over_ten_thousand_frames() {
    if !is_alone() {
        return;
    }
    let line = format!(
        "videotestsrc num-buffers=10000 pattern=ball ! video/x-raw,format=GRAY8,width=320,height=240 ! {} ! {} ! roioverlay ! fakesink name=sink",
        detect("stripes", ""),
        classify("color", "")
    );
    let pipeline = pipeline(&line);
    let resident = Arc::new(Mutex::new(Vec::new()));
    let seen = resident.clone();
    on_buffers(&pipeline, "sink", "sink", move |n, _| {
        if n % 1000 == 999 {
            seen.lock().unwrap().push(resident_kib());
        }
    });
    assert_eq!(run(&pipeline).error, None);
    let resident = resident.lock().unwrap();
    eprintln!("resident KiB every 1000 frames: {resident:?}");
    assert_eq!(resident.len(), 10);
    let growth = resident[9].saturating_sub(resident[1]);
    assert!(growth < 8 * 1024, "{growth} KiB more: {resident:?}");
}

#[test]
fn resident_memory_is_flat_over_a_thousand_flushes() {
    if !is_alone() {
        return;
    }
    let rig = Rig::begun(&detect("rectangle", "nireq=2"));
    let mut resident = Vec::new();
    for round in 0..1000 {
        rig.frame(round).unwrap();
        rig.event(gst::event::FlushStart::new());
        rig.event(gst::event::FlushStop::new(true));
        rig.segment();
        // Each start of the task posts a message, which would use memory if it stayed on the bus.
        while rig.bus.pop().is_some() {}
        if round % 100 == 99 {
            resident.push(resident_kib());
        }
    }
    eprintln!("resident KiB every 100 flushes: {resident:?}");
    assert!(resident[9].saturating_sub(resident[1]) < 2 * 1024, "{resident:?}");
}

pub fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
